//! Names: creations and removals, the counts that they change, and refusals.

use base::{FileKind, FsError, Ino, SetAttr, ShardId};
use store::Engine as _;
use wire::{
    Answer, Create, DirRef, FileRef, Getattr, Lookup, Mkdir, NodeRef, Reply, Request, Retry,
    Symlink, Token, Walk,
};

use super::{
    client::{Client, name},
    world::{Setup, in_damaged_world, in_world, in_world_of},
};
use crate::record::key;

#[test]
fn a_new_file_is_found_and_its_directory_changes() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let born = world.tick();
        let dir = client.mkdir(&root, "d").await.unwrap();
        let now = world.tick();
        let file = client.create_mode(&dir, "f", 0o6644).await.unwrap();

        let attr = client.stat(&file).await.unwrap();
        assert_eq!((attr.kind, attr.mode, attr.nlink), (FileKind::File, 0o6644, 1));
        assert_eq!([attr.atime, attr.mtime, attr.ctime, attr.btime], [now; 4]);
        let found = client.lookup(&dir, "f").await.unwrap();
        assert_eq!(found.attr, attr);

        let attr = client.stat(&dir).await.unwrap();
        assert_eq!((attr.size, attr.nlink, attr.mode), (1, 2, 0o755));
        assert_eq!((attr.mtime, attr.ctime, attr.atime, attr.btime), (now, now, born, born));
        assert_eq!(client.stat(&root).await.unwrap().nlink, 3);
        assert_eq!(client.lookup(&root, "f").await, Err(FsError::NotFound));
    });
}

#[test]
fn a_taken_name_cannot_be_made_again() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.mkdir(&root, "d").await.unwrap();
        client.symlink(&root, "s", "nowhere").await.unwrap();
        for taken in ["f", "d", "s"] {
            assert_eq!(client.create(&root, taken).await, Err(FsError::Exists));
            assert_eq!(client.mkdir(&root, taken).await, Err(FsError::Exists));
            assert_eq!(client.symlink(&root, taken, "x").await, Err(FsError::Exists));
            assert_eq!(client.link(&file, &root, taken).await, Err(FsError::Exists));
        }
        assert_eq!(client.stat(&root).await.unwrap().size, 3);
    });
}

#[test]
fn create_that_is_not_exclusive_answers_what_is_there() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        let create = Create {
            dir: root,
            name: name("f"),
            kind: FileKind::File,
            mode: 0,
            rdev: 0,
            exclusive: false,
            open: Some(1),
        };
        let reply = client.get(Request::Create(create)).await.unwrap();
        let Reply::Created(created) = reply else { panic!("{reply:?}") };
        assert!(created.existed && created.opened.is_none());
        assert_eq!(created.entry.attr.ino, file.ino);
    });
}

#[test]
fn special_files_keep_their_kind_and_device() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        for (text, kind, rdev) in [
            ("fifo", FileKind::Fifo, 0),
            ("socket", FileKind::Socket, 0),
            ("null", FileKind::CharDevice, 0x103),
            ("disk", FileKind::BlockDevice, 0x800),
        ] {
            let create = Create {
                dir: root,
                name: name(text),
                kind,
                mode: 0o600,
                rdev,
                exclusive: true,
                open: None,
            };
            client.get(Request::Create(create)).await.unwrap();
            let attr = client.lookup(&root, text).await.unwrap().attr;
            assert_eq!((attr.kind, attr.rdev, attr.size), (kind, rdev, 0));
            let special = FileRef { dir: root, name: name(text), ino: attr.ino };
            assert_eq!(client.open_file(&special).await.unwrap_err(), FsError::NoSuchDevice);
            assert_eq!(client.truncate(&special, 0).await, Err(FsError::Invalid));
        }
        for kind in [FileKind::Directory, FileKind::Symlink] {
            assert_eq!(client.make(&root, "x", kind, 0).await, Err(FsError::Invalid));
        }
    });
}

#[test]
fn a_symlink_keeps_its_target() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        client.symlink(&root, "s", "../x").await.unwrap();
        let entry = client.lookup(&root, "s").await.unwrap();
        assert_eq!(entry.target.unwrap(), "../x");
        assert_eq!((entry.attr.size, entry.attr.mode), (4, 0o777));
        let long = "x".repeat(4096);
        assert_eq!(client.symlink(&root, "long", &long).await, Err(FsError::NameTooLong));
        assert_eq!(client.symlink(&root, "empty", "").await, Err(FsError::NotFound));
        client.symlink(&root, "longest", &long[1..]).await.unwrap();
    });
}

#[test]
fn unlink_and_rmdir_remove_what_they_are_for() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        client.create(&dir, "f").await.unwrap();
        assert_eq!(client.unlink(&root, "d").await, Err(FsError::IsDirectory));
        assert_eq!(client.rmdir(&dir, "f").await, Err(FsError::NotDirectory));
        assert_eq!(client.rmdir(&root, "d").await, Err(FsError::NotEmpty));
        assert_eq!(client.unlink(&dir, "x").await, Err(FsError::NotFound));
        assert_eq!(client.rmdir(&dir, "x").await, Err(FsError::NotFound));

        let now = world.tick();
        let gone = client.unlink(&dir, "f").await.unwrap();
        assert_eq!((gone.nlink, gone.ctime), (0, now));
        let attr = client.stat(&dir).await.unwrap();
        assert_eq!((attr.size, attr.mtime, attr.ctime), (0, now, now));
        let now = world.tick();
        client.rmdir(&root, "d").await.unwrap();
        let attr = client.stat(&root).await.unwrap();
        assert_eq!((attr.size, attr.nlink, attr.mtime), (0, 2, now));
    });
}

#[test]
fn a_directory_that_was_removed_is_stale_even_when_its_name_is_made_anew() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let old = client.mkdir(&root, "d").await.unwrap();
        let file = client.create(&old, "f").await.unwrap();
        client.unlink(&old, "f").await.unwrap();
        client.rmdir(&root, "d").await.unwrap();
        let new = client.mkdir(&root, "d").await.unwrap();
        assert_eq!(old.id, new.id, "the birth triple is the same");
        assert_ne!(old.ino, new.ino);

        let requests = [
            Request::Lookup(Lookup { dir: old, name: name("f") }),
            Request::Mkdir(Mkdir { dir: old, name: name("x"), mode: 0 }),
            Request::Symlink(Symlink { dir: old, name: name("x"), target: "x".into() }),
        ];
        for request in requests {
            assert_eq!(client.ask(request).await, Answer::Retry(Retry::StaleDir));
        }
        let getattr = Getattr { node: NodeRef::File(file.clone()) };
        assert_eq!(client.ask(Request::Getattr(getattr)).await, Answer::Retry(Retry::StaleDir));
        // Where the kernel checks walks only the file itself counts, and it is gone.
        let mut mount = Client::open(world, &Token::administrator(), true).await.unwrap();
        assert_eq!(mount.stat(&file).await, Err(FsError::Stale));
        let liar = DirRef { ino: Ino(999), ..new };
        let lookup = Request::Lookup(Lookup { dir: liar, name: name("f") });
        assert_eq!(client.ask(lookup).await, Answer::Retry(Retry::StaleDir));
    });
}

#[test]
fn a_file_whose_name_was_given_to_another_is_stale() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let old = client.create(&root, "f").await.unwrap();
        client.unlink(&root, "f").await.unwrap();
        let new = client.create(&root, "f").await.unwrap();
        assert_ne!(old.ino, new.ino);
        assert_eq!(client.stat(&old).await, Err(FsError::Stale));
        assert_eq!(client.write(&old, 0, b"x").await, Err(FsError::Stale));
        assert_eq!(client.chmod(&old, 0).await, Err(FsError::Stale));
        assert_eq!(client.stat(&new).await.unwrap().size, 0);
    });
}

#[test]
fn a_setgid_directory_passes_its_group_on() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        client.chown(&dir, 5, 50).await.unwrap();
        client.chmod(&dir, 0o2777).await.unwrap();
        client.cred = super::client::user(9);
        let file = client.create(&dir, "f").await.unwrap();
        let attr = client.stat(&file).await.unwrap();
        assert_eq!((attr.uid, attr.gid), (9, 50));
        let sub = client.mkdir(&dir, "sub").await.unwrap();
        let attr = client.stat(&sub).await.unwrap();
        assert_eq!((attr.uid, attr.gid, attr.mode), (9, 50, 0o2755));
        // A caller outside the group makes no executable that acts as the group.
        let file = client.create_mode(&dir, "x", 0o2770).await.unwrap();
        assert_eq!(client.stat(&file).await.unwrap().mode, 0o770);
    });
}

#[test]
fn a_walk_ends_at_what_is_no_directory_and_says_why() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let a = client.mkdir(&root, "a").await.unwrap();
        let b = client.mkdir(&a, "b").await.unwrap();
        client.create(&b, "f").await.unwrap();
        let mut walk = async |names: &[&str]| {
            let names = names.iter().map(|text| name(text)).collect();
            match client.get(Request::Walk(Walk { from: root, names })).await.unwrap() {
                Reply::Walked(walked) => (walked.entries.len(), walked.error),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(walk(&["a", "b", "f"]).await, (3, None));
        assert_eq!(walk(&["a", "b", "f", "x"]).await, (3, None));
        assert_eq!(walk(&["a", "x", "f"]).await, (1, Some(FsError::NotFound)));
        assert_eq!(walk(&[]).await, (0, None));
    });
}

#[test]
fn a_walk_longer_than_any_path_is_refused() {
    in_world(async |world| {
        let mut client = world.client().await;
        let walk = Walk { from: client.root, names: vec![name("a"); 2049] };
        assert_eq!(client.get(Request::Walk(walk)).await, Err(FsError::NameTooLong));
    });
}

#[test]
fn a_listing_returns_every_name_once_whatever_the_size_of_its_pages() {
    in_world(async |world| {
        let mut client = world.client().await;
        let dir = client.root;
        let first = client.create(&dir, "f0").await.unwrap();
        for index in 1..40 {
            match index % 4 {
                0 => drop(client.create(&dir, &format!("f{index}")).await.unwrap()),
                1 => drop(client.mkdir(&dir, &format!("d{index}")).await.unwrap()),
                2 => drop(client.link(&first, &dir, &format!("l{index}")).await.unwrap()),
                _ => drop(client.symlink(&dir, &format!("s{index}"), "x").await.unwrap()),
            }
        }
        let all = client.names(&dir).await;
        assert_eq!(all.len(), 40);
        for entries_max in [1, 2, 7, 39, 40, 41] {
            let (mut after, mut names, mut last) = (0, Vec::new(), 0);
            loop {
                let page = client.page(&dir, after, entries_max).await.unwrap();
                assert!(page.entries.len() <= entries_max as usize);
                for entry in &page.entries {
                    assert!(entry.pos > last);
                    last = entry.pos;
                    let shown = entry.entry.as_ref().unwrap();
                    assert_eq!((shown.attr.ino, shown.attr.kind), (entry.ino, entry.kind.unwrap()));
                    names.push(entry.name.to_string());
                }
                if page.end {
                    break;
                }
                after = last;
            }
            names.sort_unstable();
            assert_eq!(names, all);
        }
    });
}

#[test]
fn a_page_never_ends_inside_a_run_of_equal_positions() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let dir = client.root;
        // No two names of a test have one position, so these are put at positions of others.
        let config = &world.server.shared.config;
        let mut batch = store::Batch::new();
        for (index, pos) in [20, 30, 30, 30, 40].into_iter().enumerate() {
            let text = format!("f{index}");
            client.create(&dir, &text).await.unwrap();
            let key = |pos| key::name(ShardId(0), dir.id, pos, &name(&text), key::Part::Main);
            let here = key(config.hash_key.pos(&name(&text)));
            let entry = world.engine.get(&here).unwrap().unwrap();
            batch.delete(&here);
            batch.put(&key(pos), &entry);
        }
        world.engine.write(batch).unwrap();
        world.server.shared.record_cache.clear();
        for (entries_max, pages) in
            [(1, vec![1, 3, 1]), (2, vec![4, 1]), (4, vec![4, 1]), (9, vec![5])]
        {
            let (mut after, mut lengths) = (0, Vec::new());
            loop {
                let page = client.page(&dir, after, entries_max).await.unwrap();
                lengths.push(page.entries.len());
                if page.end {
                    break;
                }
                after = page.entries.last().unwrap().pos;
            }
            assert_eq!(lengths, pages, "entries_max={entries_max}");
        }
    });
}

#[test]
fn a_page_of_long_symlinks_fits_in_a_frame() {
    in_world(async |world| {
        let mut client = world.client().await;
        let dir = client.mkdir(&client.root.clone(), "d").await.unwrap();
        let target = "x".repeat(4095);
        let linked = client.symlink(&dir, "first", &target).await.unwrap();
        for index in 0..2100 {
            client.symlink(&dir, &format!("s{index}"), &target).await.unwrap();
            client.link(&linked, &dir, &format!("l{index}")).await.unwrap();
        }
        let (mut after, mut seen) = (0, 0);
        loop {
            let page = client.page(&dir, after, u32::MAX).await.unwrap();
            seen += page.entries.len();
            if page.end {
                break;
            }
            after = page.entries.last().unwrap().pos;
        }
        assert_eq!(seen, 4201);
    });
}

#[test]
fn what_was_not_written_yet_is_listed() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        // Both requests are executed in one group.
        client.seq = client.seq.next();
        let seq = client.seq;
        let mkdir = Request::Mkdir(Mkdir { dir: root, name: name("d"), mode: 0 });
        client.send(seq, seq, &mkdir).await;
        let readdir = wire::Readdir { dir: root, after: 0, entries_max: 9, plus: false };
        client.send(base::Seq(0), seq, &Request::Readdir(readdir)).await;
        assert!(matches!(client.receive().await, Answer::Done(Reply::Entry(_))));
        let answer = client.receive().await;
        let Answer::Done(Reply::Page(page)) = answer else { panic!("{answer:?}") };
        assert_eq!(page.entries.len(), 1);
        assert!(page.entries[0].entry.is_none());
    });
}

#[test]
fn a_whole_tree_is_on_one_shard_when_homes_are_subtrees() {
    let setup = Setup { locality: base::Locality::Subtree, ..Setup::default() };
    in_world_of(setup, async |world| {
        let mut client = world.client().await;
        let mut dir = client.root;
        for depth in 0..20 {
            dir = client.mkdir(&dir, &format!("d{depth}")).await.unwrap();
            assert_eq!(dir.home, base::DirId::ROOT);
            let file = client.create(&dir, "f").await.unwrap();
            assert_eq!(file.ino.shard(), ShardId(0));
        }
    });
}

#[test]
fn a_change_of_nothing_changes_nothing() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let before = client.stat(&root).await.unwrap();
        world.tick();
        assert_eq!(client.setattr(&root, SetAttr::default()).await.unwrap(), before);
        assert_eq!(client.truncate(&file_of(root), 0).await, Err(FsError::Stale));
    });
}

fn file_of(dir: DirRef) -> FileRef {
    FileRef { dir, name: name("missing"), ino: Ino(12345) }
}
