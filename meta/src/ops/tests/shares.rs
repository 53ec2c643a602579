//! Directories in several partitions, all of them on one server.

use base::{
    Access, Attr, DirId, FsError, Layout, SetAttr, SetTime, ShardId, Splits, Subsets, Time,
    Transfer, layout::POS_MAX, placement::shard_of,
};
use store::Engine as _;
use wire::{
    Answer, ContentPatch, Decide, DirRef, Expected, Getattr, NodeRef, PeerWrite, Prepare, Reply,
    Request, Retry, Setattr, ShareStat, Stands, Token, TxnId, Vote,
};

use super::{
    client::{Client, name, user},
    world::{World, in_damaged_world},
};
use crate::{
    Server,
    error::Result,
    followers,
    record::{Content, EntryRecord, Record as _, key, key::Part},
    transact::participant,
    txn::{Caller, CommitGroup, Dir, Txn},
};

const TXN: TxnId = TxnId { server: 1, run: 1, number: 1 };

/// A layout with this many partitions from the start.
fn split(count: u16) -> Layout {
    Layout::Extendible(Splits::started(1, count))
}

/// Executes something as the server itself, and writes it.
fn directly<T>(server: &Server, act: impl FnOnce(&mut Txn<'_>) -> Result<T>) -> T {
    let shared = &server.shared;
    let mut group = CommitGroup::new(0);
    let mut txn = Txn::new(shared, &mut group, Caller::SERVER, shared.clock.now());
    let done = act(&mut txn).unwrap_or_else(|fault| panic!("{fault:?}"));
    txn.commit();
    followers::write(shared, &mut group);
    done
}

/// Divides a directory without entries.
fn divide(world: &World, dir: &DirRef, layout: Layout) {
    directly(&world.server, |txn| {
        let mut master = txn.master_locked(dir)?;
        txn.divide(&mut master, layout)?;
        txn.put_dir(&master);
        Ok(())
    });
}

#[test]
fn a_directory_that_moves_within_its_parent_need_not_be_writable() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let layout = split(2);
        let dir = divided(world, &mut client, "d", layout.clone()).await;
        client.chmod(&dir, 0o777).await.unwrap();
        client.cred = user(7);
        let (here, there) = (name_in(world, &layout, 0, 1), name_in(world, &layout, 1, 1));
        client.mkdir_mode(&dir, &here, 0).await.unwrap();
        client.rename((&dir, &here), (&dir, &there)).await.unwrap();
        assert_eq!(counts(world, &dir, 2), (1, 1));
        // In the new place `..` is another directory.
        let root = client.root;
        client.cred = user(0);
        client.chmod(&root, 0o777).await.unwrap();
        client.cred = user(7);
        assert_eq!(client.rename((&dir, &there), (&root, "x")).await, Err(FsError::Denied));
    });
}

/// Makes a directory that is divided.
async fn divided(world: &World, client: &mut Client, text: &str, layout: Layout) -> DirRef {
    let root = client.root;
    let dir = client.mkdir(&root, text).await.unwrap();
    divide(world, &dir, layout);
    dir
}

fn shard(world: &World, dir: &DirRef, partition: u16) -> ShardId {
    shard_of(dir.home, partition, world.server.shared.config.shards)
}

/// The share of a partition, as it is stored.
fn share(world: &World, dir: &DirRef, partition: u16) -> Option<Content> {
    let key = key::content(shard(world, dir, partition), dir.id, partition, Part::Main);
    world.engine.memory.get(&key).unwrap().map(|value| Content::from_record(&value).unwrap())
}

fn pos(world: &World, text: &str) -> u64 {
    world.server.shared.config.hash_key.pos(&name(text))
}

/// A name that a partition has.
fn name_in(world: &World, layout: &Layout, partition: u16, number: u32) -> String {
    let mut texts = (number * 1000..).map(|number| format!("n{number}"));
    texts.find(|text| layout.partition(pos(world, text)) == partition).unwrap()
}

/// The entry under a name on the shard of a partition.
fn entry_at(world: &World, dir: &DirRef, partition: u16, text: &str) -> Option<EntryRecord> {
    let shard = shard(world, dir, partition);
    let key = key::name(shard, dir.id, pos(world, text), &name(text), Part::Main);
    world.engine.memory.get(&key).unwrap().map(|value| EntryRecord::from_record(&value).unwrap())
}

/// The counts of all partitions, as a client adds them up.
fn counts(world: &World, dir: &DirRef, partitions: u16) -> (u64, u32) {
    let shares = (0..partitions).map(|partition| share(world, dir, partition).unwrap());
    shares.fold((0, 0), |sum, share| (sum.0 + share.entries, sum.1 + share.subdirs))
}

#[test]
fn a_name_stands_in_the_partition_that_has_it_and_is_counted_there() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        for (text, layout) in [("e", split(5)), ("s", Layout::Subsets(Subsets::started(1, 5)))] {
            let dir = divided(world, &mut client, text, layout.clone()).await;
            let mut expected = [0; 5];
            for number in 0..60 {
                let text = format!("f{number}");
                let file = client.create(&dir, &text).await.unwrap();
                let partition = layout.partition(pos(world, &text));
                expected[usize::from(partition)] += 1;
                for other in 0..5 {
                    let there = entry_at(world, &dir, other, &text).is_some();
                    assert_eq!(there, other == partition, "{text} in {other}");
                }
                assert_eq!(file.ino.shard(), shard(world, &dir, partition));
                assert_eq!(client.stat(&file).await.unwrap().ino, file.ino);
                assert_eq!(client.create(&dir, &text).await, Err(FsError::Exists));
            }
            let found = [0, 1, 2, 3, 4].map(|at| share(world, &dir, at).unwrap().entries);
            assert_eq!(found, expected);
            assert!(expected.iter().all(|count| *count > 0));
            for number in 0..60 {
                client.unlink(&dir, &format!("f{number}")).await.unwrap();
            }
            assert_eq!(counts(world, &dir, 5), (0, 0));
        }
    });
}

/// Makes partitions 0, 1, 3 and 7 of a directory, each of which knows only its own splits.
fn chain(world: &World, dir: &DirRef) -> Layout {
    let mut layout = split(1);
    let (mut known, mut pairs) = (vec![(0, layout.clone())], Vec::new());
    for (source, target) in [(0, 1), (1, 3), (3, 7)] {
        layout = layout.after(Transfer { source, target }).unwrap();
        pairs.push((source, layout.clone()));
        known.push((target, layout.clone()));
    }
    known.extend(pairs);
    divide(world, dir, layout.clone());
    directly(&world.server, |txn| {
        let master = txn.master_locked(dir)?;
        for (partition, layout) in known {
            let content = Content { layout, ..master.content.clone() };
            txn.put_dir(&Dir { partition, content, ..master.clone() });
        }
        Ok(())
    });
    layout
}

#[test]
fn a_name_is_found_from_share_to_share() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let layout = chain(world, &dir);
        assert_eq!(share(world, &dir, 0).unwrap().layout, split(2));
        for partition in [0, 1, 3, 7] {
            let text = name_in(world, &layout, partition, 1);
            let file = client.create(&dir, &text).await.unwrap();
            assert!(entry_at(world, &dir, partition, &text).is_some());
            assert_eq!(client.lookup(&dir, &text).await.unwrap().attr.ino, file.ino);
            assert_eq!(client.stat(&file).await.unwrap().ino, file.ino);
        }
        // All partitions are one directory, however little the master knows of them.
        assert_eq!(client.rmdir(&root, "d").await, Err(FsError::NotEmpty));
        for partition in [0, 1, 3] {
            client.unlink(&dir, &name_in(world, &layout, partition, 1)).await.unwrap();
        }
        assert_eq!(client.rmdir(&root, "d").await, Err(FsError::NotEmpty));
        client.chmod(&dir, 0o700).await.unwrap();
        for partition in [0, 1, 3, 7] {
            assert_eq!(share(world, &dir, partition).unwrap().mode, 0o700);
        }
        client.unlink(&dir, &name_in(world, &layout, 7, 1)).await.unwrap();
        client.rmdir(&root, "d").await.unwrap();
        assert!([0, 1, 3, 7].iter().all(|partition| share(world, &dir, *partition).is_none()));
        let gone = client.ask(Request::Getattr(Getattr { node: NodeRef::Dir(dir) })).await;
        assert_eq!(gone, Answer::Retry(Retry::StaleDir));
    });
}

#[cfg(feature = "bugs")]
#[test]
fn who_asks_only_the_master_removes_what_others_have() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let layout = chain(world, &dir);
        client.create(&dir, &name_in(world, &layout, 7, 1)).await.unwrap();
        let shared = &world.server.shared;
        let server = Server::open_wrong(
            world.engine.clone(),
            world.blocks.clone(),
            crate::ServerOptions::simulated("memory:1"),
            shared.clock.clone(),
            shared.random.clone(),
            Some(crate::Bug::ClosureStops),
        );
        let rmdir = Request::Rmdir(wire::Rmdir { dir: root, name: name("d") });
        directly(&server.unwrap(), |txn| crate::ops::run(txn, &rmdir));
        assert!(share(world, &dir, 0).is_none() && share(world, &dir, 7).is_some());
    });
}

#[test]
fn an_entry_moves_between_partitions_of_one_directory() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let layout = split(3);
        let dir = divided(world, &mut client, "d", layout.clone()).await;
        let at = |partition, number| name_in(world, &layout, partition, number);
        let (one, two) = (at(1, 1), at(2, 1));
        let file = client.create(&dir, &one).await.unwrap();
        client.write(&file, 0, b"contents").await.unwrap();
        client.rename((&dir, &one), (&dir, &two)).await.unwrap();
        // The inode stays where it was born.
        assert_eq!(entry_at(world, &dir, 1, &one), None);
        assert_eq!(entry_at(world, &dir, 2, &two), Some(EntryRecord::Link(file.ino)));
        assert_eq!(client.read(&file).await.unwrap(), b"contents");
        assert_eq!(client.lookup(&dir, &two).await.unwrap().attr.ino, file.ino);
        let counted = |partition| share(world, &dir, partition).map(|share| share.entries);
        assert_eq!([0, 1, 2].map(counted), [Some(0), Some(0), Some(1)]);
        // A directory is renamed over another one.
        let (from, over) = (at(0, 1), at(1, 2));
        let sub = client.mkdir(&dir, &from).await.unwrap();
        client.mkdir(&dir, &over).await.unwrap();
        client.create(&sub, "x").await.unwrap();
        client.rename((&dir, &from), (&dir, &over)).await.unwrap();
        assert_eq!(client.lookup(&dir, &over).await.unwrap().attr.ino, sub.ino);
        assert_eq!(client.names(&sub).await, ["x"]);
        assert_eq!(counts(world, &dir, 3), (2, 1));
        assert_eq!(share(world, &dir, 1).unwrap().subdirs, 1);
        // The directory is exchanged with a file.
        client.exchange((&dir, &over), (&dir, &two)).await.unwrap();
        assert_eq!(client.lookup(&dir, &two).await.unwrap().attr.ino, sub.ino);
        let subdirs = |partition| share(world, &dir, partition).map(|share| share.subdirs);
        assert_eq!([0, 1, 2].map(subdirs), [Some(0), Some(0), Some(1)]);
        // The file moves into another directory, and back.
        let root = client.root;
        client.rename((&dir, &over), (&root, "f")).await.unwrap();
        client.rename((&root, "f"), (&dir, &one)).await.unwrap();
        assert_eq!(client.read(&file).await.unwrap(), b"contents");
        client.link(&file, &dir, &from).await.unwrap();
        client.unlink(&dir, &one).await.unwrap();
        assert_eq!(client.lookup(&dir, &from).await.unwrap().attr.nlink, 1);
        // A directory that was born in one partition and lives in another is noted beside the
        // master.
        let again = client.mkdir(&dir, &from).await;
        assert_eq!(again, Err(FsError::Exists));
        client.unlink(&dir, &from).await.unwrap();
        let born = client.mkdir(&dir, &from).await.unwrap();
        assert_ne!(born.id, sub.id);
    });
}

#[test]
fn a_file_that_another_one_links_to_is_found_in_every_partition() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let layout = split(4);
        let dir = divided(world, &mut client, "d", layout.clone()).await;
        for partition in 0..4 {
            let (text, other) =
                (name_in(world, &layout, partition, 1), name_in(world, &layout, 3 - partition, 2));
            let file = client.create(&dir, &text).await.unwrap();
            let linked = client.link(&file, &dir, &other).await.unwrap();
            assert_eq!(client.stat(&linked).await.unwrap().nlink, 2);
            client.unlink(&dir, &text).await.unwrap();
            assert_eq!(client.stat(&file).await.unwrap().nlink, 1);
        }
        assert_eq!(counts(world, &dir, 4), (4, 0));
    });
}

#[test]
fn what_is_set_of_a_directory_is_set_in_all_its_partitions() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let layout = split(4);
        let dir = divided(world, &mut client, "d", layout.clone()).await;
        client.set_xattr(&dir, "user.a", b"b").await.unwrap();
        client.chmod(&dir, 0o777).await.unwrap();
        client.cred = user(7);
        for partition in 0..4 {
            client.create(&dir, &name_in(world, &layout, partition, 1)).await.unwrap();
        }
        client.cred = user(0);
        let attr = client.chown(&dir, 8, 9).await.unwrap();
        assert_eq!((attr.uid, attr.gid, attr.size), (8, 9, 4));
        client.chmod(&dir, 0o755).await.unwrap();
        client.cred = user(7);
        for partition in 0..4 {
            let text = name_in(world, &layout, partition, 2);
            assert_eq!(client.create(&dir, &text).await, Err(FsError::Denied));
            let share = share(world, &dir, partition).unwrap();
            assert_eq!((share.mode, share.uid, share.gid), (0o755, 8, 9));
            // Attributes of users are the master's.
            assert_eq!(share.xattrs.here().len(), usize::from(partition == 0));
        }
        // A user who is named in an ACL may write, in every partition.
        client.cred = user(0);
        let acl = [
            &2u32.to_le_bytes()[..],
            &entry(1, 7, u32::MAX),
            &entry(2, 7, 7),
            &entry(4, 5, u32::MAX),
            &entry(16, 7, u32::MAX),
            &entry(32, 5, u32::MAX),
        ]
        .concat();
        client.set_xattr(&dir, "system.posix_acl_access", &acl).await.unwrap();
        client.cred = user(7);
        for partition in 0..4 {
            client.create(&dir, &name_in(world, &layout, partition, 2)).await.unwrap();
        }
        client.cred = user(0);
        let root = client.root;
        client.rename((&root, "d"), (&root, "e")).await.unwrap();
        for partition in 0..4 {
            let share = share(world, &dir, partition).unwrap();
            assert_eq!(share.name, Some(name("e")));
            let cred = user(7);
            share.permits(&cred, Access::CHANGE).unwrap();
        }
        assert_eq!(client.xattrs(&dir).await.len(), 2);
    });
}

/// An entry of an ACL.
fn entry(tag: u16, bits: u16, id: u32) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
}

/// The attributes and the layout that a partition answers for itself.
async fn stat_of(
    world: &World,
    client: &mut Client,
    dir: &DirRef,
    partition: u16,
) -> (Attr, Option<Layout>) {
    client.shard = shard(world, dir, partition);
    match client.get(Request::Getattr(Getattr { node: NodeRef::Dir(*dir) })).await.unwrap() {
        Reply::Share(ShareStat { attr, layout }) => (attr, Some(layout)),
        Reply::Attr(attr) => (attr, None),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_change_in_one_of_several_partitions_tells_a_mount_nothing_of_the_directory() {
    in_damaged_world(async |world| {
        let mut client = Client::open(world, &Token::administrator(), true).await.unwrap();
        let layout = split(3);
        let dir = divided(world, &mut client, "d", layout.clone()).await;
        for partition in 0..3 {
            client.shard = shard(world, &dir, partition);
            client.mkdir(&dir, &name_in(world, &layout, partition, 1)).await.unwrap();
            assert_eq!(client.noted, None, "it is the client that adds up what all have");
        }
    });
}

#[test]
fn each_partition_answers_for_its_own_times_and_counts() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let layout = split(3);
        let dir = divided(world, &mut client, "d", layout.clone()).await;
        let later = world.tick();
        let two = name_in(world, &layout, 2, 1);
        client.mkdir(&dir, &two).await.unwrap();
        for partition in 0..3 {
            let (attr, known) = stat_of(world, &mut client, &dir, partition).await;
            assert_eq!(known, Some(layout.clone()));
            let has = u32::from(partition == 2);
            assert_eq!((attr.size, attr.nlink), (has.into(), 2 + has));
            assert_eq!(attr.mtime == later, partition == 2);
        }
        // The latest time is shown: so a time is set in all partitions.
        let past = Time { sec: 5, nsec: 0 };
        let set = SetAttr { mtime: Some(SetTime::At(past)), ..SetAttr::default() };
        assert_eq!(client.setattr(&dir, set).await.unwrap().mtime, past);
        for partition in 0..3 {
            let (attr, _) = stat_of(world, &mut client, &dir, partition).await;
            assert_eq!((attr.mtime, attr.ctime), (past, later));
        }
        // A directory of one partition is like any other.
        let root = client.root;
        let plain = client.mkdir(&root, "plain").await.unwrap();
        divide(world, &plain, split(1));
        assert_eq!(stat_of(world, &mut client, &plain, 0).await.1, None);
        let shown = client.lookup(&root, "d").await.unwrap();
        assert!(!shown.whole && client.lookup(&root, "plain").await.unwrap().whole);
    });
}

#[test]
fn a_page_says_up_to_where_it_is_complete() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let layout = split(5);
        let dir = divided(world, &mut client, "e", layout.clone()).await;
        let mut names: Vec<String> = (0..50).map(|number| format!("f{number}")).collect();
        for text in &names {
            client.create(&dir, text).await.unwrap();
        }
        // An entry that lies on a shard, but belongs to another partition, is not listed there.
        directly(&world.server, |txn| {
            let (text, right) = (&names[0], layout.partition(pos(world, &names[0])));
            let master = txn.master(&dir)?;
            let of = |partition| Dir { partition, ..master.clone() };
            let entry = txn.entry(&of(right), &name(text))?.unwrap();
            txn.put_entry(&of((right + 1) % 5), &name(text), &entry);
            Ok(())
        });
        names.sort_by_key(|text| pos(world, text));
        let (mut after, mut found, mut pages) = (0, Vec::new(), 0);
        while after < POS_MAX {
            let page = client.page(&dir, after, 3).await.unwrap();
            assert_eq!(page.layout.as_ref(), Some(&layout));
            let partition = layout.partition(after + 1);
            for entry in &page.entries {
                assert_eq!(layout.partition(entry.pos), partition);
                assert!((after + 1..=page.reach).contains(&entry.pos));
            }
            assert_eq!(page.end, page.reach == layout.reach(after + 1));
            found.extend(page.entries.iter().map(|entry| entry.name.to_string()));
            (after, pages) = (page.reach, pages + 1);
        }
        assert_eq!(found, names);
        assert!(pages >= 17);
    });
}

#[test]
fn of_scattered_names_each_partition_lists_its_own() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let layout = Layout::Subsets(Subsets::started(1, 4));
        let dir = divided(world, &mut client, "s", layout.clone()).await;
        let names: Vec<String> = (0..40).map(|number| format!("f{number}")).collect();
        for text in &names {
            client.create(&dir, text).await.unwrap();
        }
        let mut all = Vec::new();
        for partition in 0..4 {
            client.shard = shard(world, &dir, partition);
            let mut after = 0;
            while after < POS_MAX {
                let page = client.page(&dir, after, 3).await.unwrap();
                let texts = page.entries.iter().map(|entry| entry.name.to_string());
                all.extend(texts.inspect(|text| {
                    assert_eq!(layout.partition(pos(world, text)), partition);
                }));
                after = page.reach;
            }
        }
        all.sort_unstable();
        let mut names = names;
        names.sort_unstable();
        assert_eq!(all, names);
    });
}

/// The request by which the server of a directory's entry has this one prepare the directory's
/// removal.
fn removal(world: &World, dir: &DirRef, partition: u16) -> Prepare {
    let at = key::content(shard(world, dir, partition), dir.id, partition, Part::Main);
    let at = bytes::Bytes::copy_from_slice(&at);
    let was = share(world, dir, partition).map(|share| share.to_record());
    let expects = vec![Expected { key: at.clone(), was, stands: Stands::Whole }];
    Prepare {
        txn: TXN,
        expects,
        writes: vec![PeerWrite::Delete(at)],
        early_mkdir: false,
        held: false,
        others: vec![],
        session: None,
    }
}

fn vote(world: &World, prepare: &Prepare) -> Vote {
    directly(&world.server, |txn| {
        txn.be_part_of(prepare.txn);
        participant::prepare(txn, prepare)
    })
}

#[test]
fn who_makes_a_name_in_the_last_partition_is_seen_by_who_removes_the_directory() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let layout = split(4);
        let dir = divided(world, &mut client, "d", layout.clone()).await;
        let stale = removal(world, &dir, 3);
        client.create(&dir, &name_in(world, &layout, 3, 1)).await.unwrap();
        assert_eq!(vote(world, &stale), Vote::Changed);
    });
}

#[test]
fn who_makes_a_name_in_a_directory_that_is_being_removed_waits_for_the_outcome() {
    in_damaged_world(async |world| {
        let (mut client, mut other) = (world.client().await, world.client().await);
        let layout = split(4);
        let dir = divided(world, &mut client, "d", layout.clone()).await;
        assert_eq!(vote(world, &removal(world, &dir, 3)), Vote::Prepared);
        // The other partitions have promised nothing yet.
        other.create(&dir, &name_in(world, &layout, 2, 1)).await.unwrap();
        for commit in [false, true] {
            if commit {
                assert_eq!(vote(world, &removal(world, &dir, 3)), Vote::Prepared);
            }
            let text = name_in(world, &layout, 3, 1);
            client.seq = client.seq.next();
            let lookup = wire::Lookup { dir, name: name(&text) };
            client.send(client.seq, client.seq, &Request::Lookup(lookup)).await;
            world.settle().await;
            let core = world.core.clone();
            let decide = Decide { txn: TXN, commit };
            core.step_of(TXN, move |txn| participant::decide(txn, &decide)).await;
            let answer = client.receive().await;
            if commit {
                // Partition 3 is gone, and the master says that it has the name: something is wrong
                // with them.
                assert_eq!(answer, Answer::Failed(FsError::Io));
                assert!(share(world, &dir, 3).is_none());
            } else {
                assert_eq!(answer, Answer::Failed(FsError::NotFound));
            }
        }
    });
}

/// The request by which another server has this one prepare that a name comes to a partition.
fn arrival(world: &World, dir: &DirRef, partition: u16) -> Prepare {
    let at = key::content(shard(world, dir, partition), dir.id, partition, Part::Main);
    let (stable, now) = (None, Some(world.server.shared.clock.now()));
    let (entries, subdirs, exact) = (1, 0, false);
    let patch = ContentPatch { stable, entries, subdirs, mtime: now, ctime: now, exact };
    let write = PeerWrite::Patch((bytes::Bytes::copy_from_slice(&at), patch));
    Prepare { expects: Vec::new(), writes: vec![write], ..removal(world, dir, partition) }
}

#[test]
fn attributes_of_a_directory_are_set_and_told_after_a_rename_that_is_prepared() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let whole = client.mkdir(&root, "whole").await.unwrap();
        let several = divided(world, &mut client, "several", split(2)).await;
        let past = Time { sec: 5, nsec: 0 };
        let atime = SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() };
        let mtime = SetAttr { mtime: Some(SetTime::At(past)), ..SetAttr::default() };
        for (dir, partition) in [(&whole, 0), (&several, 0), (&several, 1)] {
            for (set, size) in [(SetAttr::default(), 1), (atime, 2), (mtime, 3)] {
                world.tick();
                assert_eq!(vote(world, &arrival(world, dir, partition)), Vote::Prepared);
                world.tick();
                client.seq = client.seq.next();
                let request = Request::Setattr(Setattr { node: NodeRef::Dir(*dir), set });
                client.send(client.seq, client.seq, &request).await;
                world.settle().await;
                let decide = Decide { txn: TXN, commit: true };
                world.core.step_of(TXN, move |txn| participant::decide(txn, &decide)).await;
                let Answer::Done(Reply::Attr(attr)) = client.receive().await else { panic!() };
                let before = if *dir == whole || partition == 0 { 0 } else { 3 };
                assert_eq!((attr.size, attr.mtime == past), (before + size, set == mtime));
            }
        }
    });
}

#[test]
fn a_name_is_prepared_only_where_it_belongs() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let layout = split(4);
        let dir = divided(world, &mut client, "d", layout.clone()).await;
        let text = name_in(world, &layout, 2, 1);
        let put = |partition, expects| {
            let shard = shard(world, &dir, partition);
            let at = key::name(shard, dir.id, pos(world, &text), &name(&text), Part::Main);
            let value = EntryRecord::Link(base::Ino(77)).to_record();
            let at = bytes::Bytes::copy_from_slice(&at);
            Prepare {
                txn: TXN,
                expects,
                writes: vec![PeerWrite::Put((at, value))],
                early_mkdir: false,
                held: false,
                others: vec![],
                session: None,
            }
        };
        let expects = |partition| removal(world, &dir, partition).expects;
        for partition in [0, 1, 3] {
            assert_eq!(vote(world, &put(partition, expects(partition))), Vote::Changed);
            assert_eq!(vote(world, &put(partition, Vec::new())), Vote::Changed);
        }
        assert_eq!(vote(world, &put(2, expects(2))), Vote::Prepared);
    });
}

#[test]
fn what_is_guessed_at_the_wrong_partition_brings_the_layout() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let layout = split(3);
        let dir = divided(world, &mut client, "d", layout.clone()).await;
        let text = name_in(world, &layout, 2, 1);
        let file = client.create(&dir, &text).await.unwrap();
        let guess = |partition, text: Option<&str>| wire::Guess {
            dir: dir.id,
            home: dir.home,
            partition,
            name: text.map(name),
        };
        let guesses =
            vec![guess(0, Some(&text)), guess(2, Some(&text)), guess(3, None), guess(1, None)];
        let request = Request::Speculate(wire::Speculate { guesses });
        let Reply::Guessed(found) = client.get(request).await.unwrap() else { panic!() };
        assert_eq!((&found[0].entry, &found[0].layout), (&None, &Some(layout)));
        assert_eq!(found[1].entry.as_ref().unwrap().attr.ino, file.ino);
        assert_eq!(found[2].dir, None);
        assert!(!found[3].entry.as_ref().unwrap().whole);
        // A walk goes through the divided directory.
        let walk = wire::Walk { from: client.root, names: vec![name("d"), name(&text)] };
        let Reply::Walked(walked) = client.get(Request::Walk(walk)).await.unwrap() else {
            panic!()
        };
        assert_eq!(walked.entries[1].attr.ino, file.ino);
        assert_eq!(client.root.id, DirId::ROOT);
    });
}
