//! Trash: removed files are kept, found and put back, and are gone when their days are over.

use std::time::Duration;

use base::{FileKind, FsError};
use wire::{DirRef, FileRef, Info, NodeRef, Reply, Request, Token};

use super::{
    client::{Client, name, user},
    world::{Setup, World, in_world, in_world_of},
};

const DAY: i64 = 86_400;

async fn keep(client: &mut Client, days: &str) {
    let root = client.root;
    client.set_xattr(&root, "pando.trash_days", days.as_bytes()).await.unwrap();
}

async fn names(client: &mut Client, dir: &DirRef) -> Vec<String> {
    let page = client.page(dir, 0, 100).await.unwrap();
    let mut names: Vec<_> = page.entries.iter().map(|entry| entry.name.to_string()).collect();
    names.sort_unstable();
    names
}

/// The directory of the only hour.
async fn hour(client: &mut Client) -> DirRef {
    let root = client.root;
    let trash = client.lookup(&root, ".trash").await.unwrap().dir.unwrap();
    let [hour] = &names(client, &trash).await[..] else { panic!("not one hour") };
    client.lookup(&trash, &hour.clone()).await.unwrap().dir.unwrap()
}

/// The only thing in the trash: its directory, and its name there.
pub(super) async fn only_one(client: &mut Client) -> (DirRef, String) {
    let hour = hour(client).await;
    let [called] = &names(client, &hour).await[..] else { panic!("not one thing") };
    let called = called.clone();
    (hour, called)
}

/// The path that `info` reports of something in the trash.
async fn path(client: &mut Client, dir: &DirRef, called: &str) -> String {
    let node = client.lookup(dir, called).await.unwrap().node(dir, &name(called));
    let Ok(Reply::Lines(lines)) = client.get(Request::Info(Info { node })).await else { panic!() };
    lines.into_iter().find(|(name, _)| name == "trash.path").unwrap().1
}

/// Advances the clock by so many days at once, and lets the background look once.
async fn jump(world: &World, days: i64) {
    world.advance(days * DAY);
    world.wait(Duration::from_secs(61)).await;
    world.settle().await;
}

/// Lets so many days pass, and the background look once.
async fn pass(world: &World, days: i64) {
    world.advance(days * DAY);
    tokio::time::advance(Duration::from_secs((days * DAY).unsigned_abs())).await;
    world.wait(Duration::from_secs(61)).await;
    world.settle().await;
}

#[test]
fn an_open_file_that_is_in_the_trash_gets_no_name_in_a_session_of_a_subtree() {
    in_world(async |world| {
        let mut admin = world.client().await;
        keep(&mut admin, "7").await;
        let root = admin.root;
        let a = admin.mkdir(&root, "a").await.unwrap();
        admin.create(&a, "f").await.unwrap();
        let token = Token { path: "/a".into(), ..Token::administrator() };
        let mut client = world.client_with(&token).await;
        let inside = client.root;
        let ino = client.lookup(&inside, "f").await.unwrap().attr.ino;
        let file = FileRef { dir: inside, name: name("f"), ino };
        client.open_file(&file).await.unwrap();
        admin.unlink(&a, "f").await.unwrap();
        let gone = Err(FsError::NotFound);
        assert_eq!(client.link(&file, &inside, "again").await.map(drop), gone);
    });
}

#[test]
fn without_trash_nothing_is_kept_and_nothing_is_read_or_written_more() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        client.create(&root, "f").await.unwrap();
        world.engine.take_cost();
        client.unlink(&root, "f").await.unwrap();
        let cost = world.engine.take_cost();
        assert!(cost.reads <= 2 && cost.batches == 1 && cost.changes == 5, "{cost:?}");
        assert_eq!(client.lookup(&root, ".trash").await, Err(FsError::NotFound));
    });
}

#[test]
fn a_removed_file_is_in_the_trash_with_its_contents_and_knows_where_it_was() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "1").await;
        let a = client.mkdir(&root, "a").await.unwrap();
        let big = client.create(&a, "big").await.unwrap();
        client.write_blocks(&big, 0, &[7; 9000]).await.unwrap();
        client.set_xattr(&big, "user.big", &[1; 2000]).await.unwrap();
        client.unlink(&a, "big").await.unwrap();
        assert_eq!(client.lookup(&a, "big").await, Err(FsError::NotFound));
        assert_eq!(client.stat(&a).await.unwrap().size, 0);
        // The root does not list the trash.
        assert_eq!(names(&mut client, &root).await, ["a"]);
        let hour = hour(&mut client).await;
        let called = format!("{}-{}-big", a.ino.0, big.ino.0);
        assert_eq!(names(&mut client, &hour).await, std::slice::from_ref(&called));
        assert_eq!(path(&mut client, &hour, &called).await, "/a/big");
        let kept = FileRef { dir: hour, name: name(&called), ino: big.ino };
        assert_eq!(client.read(&kept).await.unwrap(), [7; 9000]);
        // The file is put back, and has not changed.
        client.rename((&a, "x"), (&a, "y")).await.unwrap_err();
        client.rename((&hour, &called), (&a, "big")).await.unwrap();
        assert_eq!(client.read(&big).await.unwrap(), [7; 9000]);
        assert_eq!(names(&mut client, &hour).await, Vec::<String>::new());
    });
}

#[test]
fn a_tree_that_was_removed_name_by_name_finds_together_again() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "1").await;
        let a = client.mkdir(&root, "a").await.unwrap();
        let b = client.mkdir(&a, "b").await.unwrap();
        let f = client.create(&b, "f").await.unwrap();
        client.unlink(&b, "f").await.unwrap();
        client.rmdir(&a, "b").await.unwrap();
        client.rmdir(&root, "a").await.unwrap();
        // A new directory of the same name in the same place is another one.
        let other = client.mkdir(&root, "a").await.unwrap();
        assert_ne!(other.id, a.id);
        client.rename((&root, "a"), (&root, "other")).await.unwrap();
        let hour = hour(&mut client).await;
        let called =
            |above: base::Ino, ino: base::Ino, name| format!("{}-{}-{name}", above.0, ino.0);
        let (in_trash_a, in_trash_b) = (called(root.ino, a.ino, "a"), called(a.ino, b.ino, "b"));
        let in_trash_f = called(b.ino, f.ino, "f");
        assert_eq!(path(&mut client, &hour, &in_trash_f).await, "/a/b/f");
        client.rename((&hour, &in_trash_a), (&root, "back")).await.unwrap();
        // The path of its former contents follows the directory.
        assert_eq!(path(&mut client, &hour, &in_trash_b).await, "/back/b");
        client.rename((&hour, &in_trash_b), (&a, "b")).await.unwrap();
        assert_eq!(path(&mut client, &hour, &in_trash_f).await, "/back/b/f");
        client.rename((&hour, &in_trash_f), (&b, "f")).await.unwrap();
        assert_eq!(names(&mut client, &b).await, ["f"]);
    });
}

#[test]
fn what_a_rename_replaces_is_in_the_trash() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "1").await;
        let old = client.create(&root, "f").await.unwrap();
        client.create(&root, "new").await.unwrap();
        client.rename((&root, "new"), (&root, "f")).await.unwrap();
        let d = client.mkdir(&root, "d").await.unwrap();
        client.mkdir(&root, "e").await.unwrap();
        client.rename((&root, "e"), (&root, "d")).await.unwrap();
        let hour = hour(&mut client).await;
        let mut expected = [("f", old.ino), ("d", d.ino)]
            .map(|(name, ino)| format!("{}-{}-{name}", root.ino.0, ino.0));
        expected.sort_unstable();
        assert_eq!(names(&mut client, &hour).await, expected);
        // A file that is put back over another sends that to where it comes from.
        let [f] = [format!("{}-{}-f", root.ino.0, old.ino.0)];
        client.rename((&hour, &f), (&root, "f")).await.unwrap();
        assert_eq!(names(&mut client, &hour).await.len(), 2);
        assert_eq!(client.stat(&hour).await.unwrap().size, 2);
    });
}

#[test]
fn of_a_file_with_several_names_the_last_goes_to_the_trash() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "1").await;
        let file = client.create(&root, "one").await.unwrap();
        client.link(&file, &root, "two").await.unwrap();
        assert_eq!(client.unlink(&root, "one").await.unwrap().nlink, 1);
        client.unlink(&root, "two").await.unwrap();
        let hour = hour(&mut client).await;
        let called = format!("{}-{}-two", root.ino.0, file.ino.0);
        assert_eq!(names(&mut client, &hour).await, std::slice::from_ref(&called));
        client.rename((&hour, &called), (&root, "three")).await.unwrap();
        assert_eq!(client.lookup(&root, "three").await.unwrap().attr.ino, file.ino);
    });
}

#[test]
fn what_is_only_in_the_trash_gets_another_name_only_from_there() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "1").await;
        let embedded = client.create(&root, "embedded").await.unwrap();
        let slot = client.create(&root, "slot").await.unwrap();
        client.link(&slot, &root, "second").await.unwrap();
        client.unlink(&root, "second").await.unwrap();
        for (file, text) in [(embedded, "embedded"), (slot, "slot")] {
            client.unlink(&root, text).await.unwrap();
            let gone = client.link(&file, &root, "new").await.map(drop);
            assert_eq!(gone, Err(FsError::NotFound), "{text}");
            // A client that has the file open goes on writing.
            client.write(&file, 0, b"written").await.unwrap();
            let hour = hour(&mut client).await;
            let called = format!("{}-{}-{text}", root.ino.0, file.ino.0);
            // A file that is put back is like any other.
            client.rename((&hour, &called), (&root, "back")).await.unwrap();
            client.link(&file, &root, "new").await.unwrap();
            client.unlink(&root, "new").await.unwrap();
            client.unlink(&root, "back").await.unwrap();
            // A client that looks into the trash may give the file one more name, and then the file
            // has a name elsewhere.
            let called = format!("{}-{}-back", root.ino.0, file.ino.0);
            let kept = FileRef { dir: hour, name: name(&called), ino: file.ino };
            client.link(&kept, &root, "beside").await.unwrap();
            client.link(&file, &root, "new").await.unwrap();
            client.rename((&root, "new"), (&root, "renamed")).await.unwrap();
            client.unlink(&root, "beside").await.unwrap();
            client.unlink(&root, "renamed").await.unwrap();
            let gone = client.link(&file, &root, "new").await.map(drop);
            assert_eq!(gone, Err(FsError::NotFound), "{text}");
            // Of several names the one in the trash may be removed.
            client.link(&kept, &root, "beside").await.unwrap();
            client.unlink(&hour, &called).await.unwrap();
            let again = client.link(&file, &root, "new").await.unwrap();
            assert_eq!(client.read(&again).await.unwrap(), b"written");
            assert_eq!(client.unlink(&root, "beside").await.unwrap().nlink, 1);
            client.unlink(&root, "new").await.unwrap();
        }
        assert_eq!(world.findings().await, Vec::<String>::new());
    });
}

#[test]
fn what_is_removed_in_the_trash_is_gone() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "1").await;
        let file = client.create(&root, "f").await.unwrap();
        client.write_blocks(&file, 0, &[1; 9000]).await.unwrap();
        client.mkdir(&root, "d").await.unwrap();
        client.unlink(&root, "f").await.unwrap();
        client.rmdir(&root, "d").await.unwrap();
        let hour = hour(&mut client).await;
        for called in names(&mut client, &hour).await {
            if called.ends_with('f') {
                client.unlink(&hour, &called).await.unwrap();
            } else {
                client.rmdir(&hour, &called).await.unwrap();
            }
        }
        assert_eq!(names(&mut client, &hour).await, Vec::<String>::new());
        world.settle().await;
        assert_eq!(world.counter("blocks_deleted"), 1);
        // The trash itself stays.
        let busy = Err(FsError::Busy);
        assert_eq!(client.rename((&root, ".trash"), (&root, "x")).await.map(drop), busy);
        let rmdir = wire::Rmdir { dir: root, name: name(".trash") };
        assert_eq!(client.get(Request::Rmdir(rmdir)).await.map(drop), busy);
    });
}

#[test]
fn the_trash_is_for_root_alone() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "1").await;
        client.create(&root, "f").await.unwrap();
        client.unlink(&root, "f").await.unwrap();
        let trash = client.lookup(&root, ".trash").await.unwrap();
        let attr = trash.attr;
        assert_eq!((attr.kind, attr.uid, attr.mode & 0o777), (FileKind::Directory, 0, 0o700));
        let trash = trash.dir.unwrap();
        let hour = hour(&mut client).await;
        client.cred = user(7);
        for dir in [&trash, &hour] {
            assert_eq!(client.page(dir, 0, 10).await.map(drop), Err(FsError::Denied));
        }
        client.cred = base::Cred::ROOT;
    });
}

#[test]
fn what_a_user_removes_goes_to_the_trash_whose_owner_is_root() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "1").await;
        let home = client.mkdir(&root, "home").await.unwrap();
        let own = base::SetAttr { uid: Some(7), ..base::SetAttr::default() };
        let node = NodeRef::Dir(home);
        client.get(Request::Setattr(wire::Setattr { node, set: own })).await.unwrap();
        client.cred = user(7);
        client.create(&home, "f").await.unwrap();
        client.unlink(&home, "f").await.unwrap();
        client.cred = base::Cred::ROOT;
        let hour = hour(&mut client).await;
        assert_eq!(client.stat(&hour).await.unwrap().uid, 0);
        let [called] = &names(&mut client, &hour).await[..] else { panic!() };
        assert_eq!(client.lookup(&hour, &called.clone()).await.unwrap().attr.uid, 7);
    });
}

#[test]
fn it_is_emptied_when_its_days_are_over_whatever_was_put_into_it() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "2").await;
        for round in 0..200 {
            client.create(&root, &format!("f{round}")).await.unwrap();
            client.unlink(&root, &format!("f{round}")).await.unwrap();
        }
        client.mkdir(&root, "d").await.unwrap();
        client.rmdir(&root, "d").await.unwrap();
        let hour = hour(&mut client).await;
        let inner = client.mkdir(&hour, "inner").await.unwrap();
        client.create(&inner, "file").await.unwrap();
        pass(world, 1).await;
        assert_eq!(client.stat(&hour).await.unwrap().size, 202);
        pass(world, 2).await;
        let trash = client.lookup(&root, ".trash").await.unwrap().dir.unwrap();
        assert_eq!(names(&mut client, &trash).await, Vec::<String>::new());
    });
}

#[test]
fn it_is_emptied_where_cores_share_the_locks() {
    in_world_of(Setup { cores: 2, ..Setup::default() }, async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "1").await;
        client.create(&root, "small").await.unwrap();
        let big = client.create(&root, "big").await.unwrap();
        client.write_blocks(&big, 0, &[7; 9000]).await.unwrap();
        let linked = client.create(&root, "one").await.unwrap();
        client.link(&linked, &root, "two").await.unwrap();
        for text in ["small", "big", "one", "two"] {
            client.unlink(&root, text).await.unwrap();
        }
        client.mkdir(&root, "d").await.unwrap();
        client.rmdir(&root, "d").await.unwrap();
        let hour = hour(&mut client).await;
        assert_eq!(client.stat(&hour).await.unwrap().size, 4);
        pass(world, 2).await;
        let trash = client.lookup(&root, ".trash").await.unwrap().dir.unwrap();
        assert_eq!(names(&mut client, &trash).await, Vec::<String>::new());
        assert_eq!(world.counter("blocks_deleted"), 1);
    });
}

#[test]
fn what_is_in_the_trash_stays_when_something_else_would_be_called_the_same() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "1").await;
        let first = client.create(&root, "f").await.unwrap();
        let dir = client.mkdir(&root, "d").await.unwrap();
        client.unlink(&root, "f").await.unwrap();
        client.rmdir(&root, "d").await.unwrap();
        let hour = hour(&mut client).await;
        let called_f = format!("{}-{}-f", root.ino.0, first.ino.0);
        let called_d = format!("{}-{}-d", root.ino.0, dir.ino.0);
        let other = client.create(&root, "f").await.unwrap();
        // The file is put back, and another one is put in its place in the trash.
        for (called, text) in [(&called_f, "f"), (&called_d, "d")] {
            if text == "d" {
                client.mkdir(&root, "d").await.unwrap();
            }
            client.exchange((&root, text), (&hour, called)).await.unwrap();
        }
        client.unlink(&root, "f").await.unwrap();
        client.rmdir(&root, "d").await.unwrap();
        let [second_f, second_d] = [&called_f, &called_d].map(|called| format!("{called}~2"));
        assert_eq!(client.lookup(&hour, &called_f).await.unwrap().attr.ino, other.ino);
        assert_eq!(client.lookup(&hour, &second_f).await.unwrap().attr.ino, first.ino);
        assert_eq!(client.lookup(&hour, &second_d).await.unwrap().attr.ino, dir.ino);
        assert_eq!(path(&mut client, &hour, &second_f).await, "/f");
        assert_eq!(path(&mut client, &hour, &second_d).await, "/d");
        assert_eq!(client.stat(&hour).await.unwrap().size, 4);
        pass(world, 2).await;
        let trash = client.lookup(&root, ".trash").await.unwrap().dir.unwrap();
        assert_eq!(names(&mut client, &trash).await, Vec::<String>::new());
    });
}

#[test]
fn of_the_directories_of_one_name_only_so_many_are_kept() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "1").await;
        for round in 0..1000 {
            client.mkdir(&root, "d").await.unwrap();
            if round % 2 == 0 {
                client.rmdir(&root, "d").await.unwrap();
            } else {
                client.rename((&root, "d"), (&root, "e")).await.unwrap();
                client.rmdir(&root, "e").await.unwrap();
            }
        }
        let hour = hour(&mut client).await;
        assert_eq!(client.stat(&hour).await.unwrap().size, 16);
        // When the days of these are over, others are kept.
        pass(world, 2).await;
        client.mkdir(&root, "d").await.unwrap();
        client.rmdir(&root, "d").await.unwrap();
        let hour = self::hour(&mut client).await;
        assert_eq!(client.stat(&hour).await.unwrap().size, 1);
    });
}

#[test]
fn a_clock_that_jumps_ahead_empties_nothing_at_once() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "7").await;
        client.create(&root, "f").await.unwrap();
        client.unlink(&root, "f").await.unwrap();
        jump(world, 0).await;
        let trash = client.lookup(&root, ".trash").await.unwrap().dir.unwrap();
        let hour = names(&mut client, &trash).await;
        // The clock is wrong while the server runs, when it starts, and when a file is removed at a
        // time that seems to be in the future.
        jump(world, 30).await;
        assert_eq!(names(&mut client, &trash).await, hour);
        world.restart().await;
        client.resume(world).await;
        client.claim_nothing().await;
        jump(world, 300).await;
        client.create(&root, "g").await.unwrap();
        client.unlink(&root, "g").await.unwrap();
        world.restart().await;
        client.resume(world).await;
        client.claim_nothing().await;
        jump(world, 0).await;
        assert_eq!(names(&mut client, &trash).await.len(), 2);
        // The file is kept for half of the days at least, and for as many as set when the clock is
        // right again.
        pass(world, 3).await;
        assert_eq!(names(&mut client, &trash).await.len(), 2);
        world.advance(-330 * DAY);
        pass(world, 1).await;
        assert_eq!(names(&mut client, &trash).await.len(), 2);
        pass(world, 4).await;
        assert_eq!(names(&mut client, &trash).await.len(), 1);
        keep(&mut client, "none").await;
    });
}

#[test]
fn setting_it_to_0_empties_it() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "300").await;
        client.create(&root, "f").await.unwrap();
        client.unlink(&root, "f").await.unwrap();
        keep(&mut client, "0").await;
        client.create(&root, "g").await.unwrap();
        client.unlink(&root, "g").await.unwrap();
        world.advance(2 * 3600);
        pass(world, 0).await;
        let trash = client.lookup(&root, ".trash").await.unwrap().dir.unwrap();
        assert_eq!(names(&mut client, &trash).await, Vec::<String>::new());
        keep(&mut client, "none").await;
    });
}

#[test]
fn a_quota_has_its_room_back_at_once() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        keep(&mut client, "1").await;
        let a = client.mkdir(&root, "a").await.unwrap();
        client.set_xattr(&a, "pando.quota.entries", b"2").await.unwrap();
        world.settle().await;
        for round in 0..3 {
            client.create(&a, &format!("f{round}")).await.unwrap();
            client.unlink(&a, &format!("f{round}")).await.unwrap();
            client.mkdir(&a, "d").await.unwrap();
            client.rmdir(&a, "d").await.unwrap();
        }
        // A file is charged again where it is put back.
        let hour = hour(&mut client).await;
        let called = names(&mut client, &hour).await;
        let files: Vec<_> = called.iter().filter(|called| !called.ends_with('d')).collect();
        client.rename((&hour, files[0]), (&a, "x")).await.unwrap();
        let over = client.rename((&hour, files[1]), (&a, "y")).await;
        assert_eq!(over.map(drop), Err(FsError::QuotaExceeded));
        // A directory with a quota loses the quota with its name.
        client.unlink(&a, "x").await.unwrap();
        client.rmdir(&root, "a").await.unwrap();
        assert_eq!(world.findings().await, Vec::<String>::new());
    });
}

#[test]
fn a_crash_leaves_each_thing_in_its_place_or_in_the_trash() {
    for keep_batches in 0..12 {
        in_world(async |world| {
            let mut client = world.client().await;
            let root = client.root;
            keep(&mut client, "1").await;
            for text in ["a", "b", "c"] {
                client.create(&root, text).await.unwrap();
            }
            client.mkdir(&root, "d").await.unwrap();
            client.get(Request::Sync).await.unwrap();
            for text in ["a", "b", "c"] {
                client.unlink(&root, text).await.unwrap();
            }
            client.rmdir(&root, "d").await.unwrap();
            world.power_cut(keep_batches).await;
            let mut client = world.client().await;
            let left = names(&mut client, &root).await.len();
            let trash = client.lookup(&root, ".trash").await.unwrap().dir.unwrap();
            let mut kept = 0;
            for hour in names(&mut client, &trash).await {
                let hour = client.lookup(&trash, &hour).await.unwrap().dir.unwrap();
                kept += names(&mut client, &hour).await.len();
            }
            assert_eq!(left + kept, 4, "keep_batches={keep_batches}");
        });
    }
}

#[test]
fn a_restart_remembers_it() {
    in_world(async |world| {
        let mut client = world.client().await;
        keep(&mut client, "3").await;
        world.restart().await;
        client.resume(world).await;
        client.claim_nothing().await;
        let root = client.root;
        client.create(&root, "f").await.unwrap();
        client.unlink(&root, "f").await.unwrap();
        let hour = hour(&mut client).await;
        assert_eq!(names(&mut client, &hour).await.len(), 1);
    });
}
