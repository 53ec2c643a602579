//! Access: tickets, tokens, and permissions where the server checks them.

use base::{Access, Cred, FileKind, FsError, SetAttr, SetTime, Time};
use wire::{
    BlockMap, BlockPart, ChunkSlices, Create, DirRef, FileRef, Getattr, Link, Lookup, Mkdir,
    NodeRef, Open, OpenState, Readdir, RenameMode, Reply, Request, Setattr, Slice, SliceSource,
    Token, Write,
};

use super::{
    client::{Client, name, user},
    world::{World, in_world},
};

/// A session bound to user 7, whose groups are 7 and 70.
fn of_user() -> Token {
    Token { uid: Some(7), gids: vec![7, 70], ..Token::administrator() }
}

async fn as_user(world: &mut World) -> Client {
    let mut client = world.client_with(&of_user()).await;
    client.cred = user(7);
    client
}

#[test]
fn a_session_that_must_prove_its_walks_uses_only_what_it_was_shown() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let dir = admin.mkdir_mode(&root, "d", 0o777).await.unwrap();
        let file = admin.create_mode(&dir, "f", 0o666).await.unwrap();
        let mut client = as_user(world).await;
        let (mine, forged) = (client.root, DirRef { ticket: 1, ..dir });
        assert_ne!(mine.ticket, 0);
        for dir in [dir, forged, DirRef { ticket: mine.ticket, ..dir }] {
            let file = FileRef { dir, ..file.clone() };
            let denied = Err(FsError::Denied);
            let node = |node| Request::Getattr(Getattr { node });
            for request in [
                Request::Lookup(Lookup { dir, name: name("f") }),
                Request::Readdir(Readdir { dir, after: 0, entries_max: 9, plus: true }),
                Request::Mkdir(Mkdir { dir, name: name("x"), mode: 0 }),
                node(NodeRef::Dir(dir)),
                node(NodeRef::File(file.clone())),
                Request::Open(Open { file: file.clone(), number: 1, access: 4 }),
                Request::Xattrs(Getattr { node: NodeRef::File(file.clone()) }),
                Request::BlockMap(BlockMap { file: file.clone(), first: 0, count: 1 }),
                Request::Link(Link { target: NodeRef::File(file), dir: mine, name: name("x") }),
            ] {
                assert_eq!(client.get(request).await, denied);
            }
            let renamed = client.rename((&dir, "f"), (&mine, "f")).await;
            assert_eq!(renamed, Err(FsError::Denied));
        }
        let shown = client.lookup(&mine, "d").await.unwrap().dir.unwrap();
        assert!(shown.same(&dir));
        client.mkdir(&shown, "x").await.unwrap();
        let file = FileRef { dir: shown, ..file };
        client.stat(&file).await.unwrap();
        // The tickets of one session are worth nothing to another, and survive a restart.
        let mut other = as_user(world).await;
        assert_eq!(other.lookup(&shown, "f").await, Err(FsError::Denied));
        world.restart().await;
        client.resume(world).await;
        client.lookup(&shown, "f").await.unwrap();
    });
}

#[test]
fn a_session_of_a_subtree_cannot_leave_it() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let a = admin.mkdir(&root, "a").await.unwrap();
        let sub = admin.mkdir(&a, "sub").await.unwrap();
        let secret = admin.create(&root, "secret").await.unwrap();
        admin.create(&sub, "f").await.unwrap();
        let token = Token { path: "/a/sub".into(), ..Token::administrator() };
        for kernel_checks in [true, false] {
            let mut client = Client::open(world, &token, kernel_checks).await.unwrap();
            assert!(client.root.same(&sub) && !client.welcome.trusted);
            let inside = client.root;
            client.lookup(&inside, "f").await.unwrap();
            for outside in [root, a, sub] {
                assert_eq!(client.lookup(&outside, "f").await, Err(FsError::Denied));
                assert_eq!(client.mkdir(&outside, "x").await, Err(FsError::Denied));
            }
            for outside in [root, a] {
                let moved = client.rename((&inside, "f"), (&outside, "f")).await;
                assert_eq!(moved, Err(FsError::Denied));
            }
            assert_eq!(client.stat(&secret).await, Err(FsError::Denied));
            // A number is not enough either: only an open file is followed out of its directory.
            let pretended = FileRef { dir: inside, name: name("f"), ino: secret.ino };
            assert_eq!(client.stat(&pretended).await, Err(FsError::Stale));
            assert_eq!(client.link(&pretended, &inside, "x").await, Err(FsError::Stale));
            let repair = wire::Repair { gc: false, discard_lost: false };
            let check = Request::FsckStart(wire::FsckStart { gc: false });
            for request in [Request::Status, check, Request::Repair(repair)] {
                assert_eq!(client.get(request).await, Err(FsError::NotPermitted));
            }
        }
    });
}

#[test]
fn an_open_file_is_followed_wherever_it_is_moved() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let dir = admin.mkdir_mode(&root, "d", 0o777).await.unwrap();
        admin.chmod(&root, 0o755).await.unwrap();
        admin.create_mode(&dir, "f", 0o666).await.unwrap();
        let token = Token { path: "/d".into(), ..of_user() };
        let mut client = world.client_with(&token).await;
        client.cred = user(7);
        let inside = client.root;
        let ino = client.lookup(&inside, "f").await.unwrap().attr.ino;
        let file = FileRef { dir: inside, name: name("f"), ino };
        client.open_file(&file).await.unwrap();
        admin.rename((&dir, "f"), (&root, "g")).await.unwrap();
        client.write(&file, 0, b"here").await.unwrap();
        client.release(ino, client.opened()).await;
        assert_eq!(client.write(&file, 0, b"x").await, Err(FsError::Stale));
    });
}

#[test]
fn a_read_only_session_changes_nothing() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let file = admin.create(&root, "f").await.unwrap();
        let token = Token { read_only: true, ..Token::administrator() };
        let mut client = world.client_with(&token).await;
        assert!(client.welcome.read_only);
        let refused = FsError::ReadOnly;
        assert_eq!(client.mkdir(&root, "d").await, Err(refused));
        assert_eq!(client.create(&root, "g").await, Err(refused));
        assert_eq!(client.unlink(&root, "f").await, Err(refused));
        assert_eq!(client.write(&file, 0, b"x").await, Err(refused));
        assert_eq!(client.chmod(&file, 0).await, Err(refused));
        assert_eq!(client.set_xattr(&file, "user.x", b"").await, Err(refused));
        let block = client.next_block();
        assert_eq!(client.put_block(block, b"x").await, Err(refused));
        client.open_for(&file, 4).await.unwrap();
        assert_eq!(client.read(&file).await.unwrap(), b"");
        assert_eq!(client.get(Request::Status).await, Err(FsError::NotPermitted));
    });
}

#[test]
fn a_session_bound_to_a_user_acts_as_no_other_and_is_checked_whatever_it_says() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let file = admin.create_mode(&root, "f", 0o600).await.unwrap();
        let mut client = Client::open(world, &of_user(), true).await.unwrap();
        let mine = FileRef { dir: client.root, ..file };
        for cred in [Cred::ROOT, user(8), Cred { uid: 7, gid: 8, groups: vec![] }] {
            client.cred = cred;
            assert_eq!(client.stat(&mine).await, Err(FsError::NotPermitted));
        }
        client.cred = Cred { uid: 7, gid: 7, groups: vec![70] };
        assert_eq!(client.open_for(&mine, 4).await.unwrap_err(), FsError::Denied);
    });
}

#[test]
fn directories_are_walked_read_and_changed_by_their_modes() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let dir = admin.mkdir(&root, "d").await.unwrap();
        admin.create_mode(&dir, "f", 0o666).await.unwrap();
        admin.mkdir(&dir, "sub").await.unwrap();
        admin.chmod(&root, 0o777).await.unwrap();
        let mut client = as_user(world).await;
        let mine = client.root;
        let shown = client.lookup(&mine, "d").await.unwrap().dir.unwrap();
        let ino = client.lookup(&shown, "f").await.unwrap().attr.ino;
        let file = FileRef { dir: shown, name: name("f"), ino };
        for (mode, walk, list, change) in [
            (0o777, true, true, true),
            (0o774, false, true, false),
            (0o771, true, false, false),
            (0o776, false, true, false),
            (0o773, true, false, true),
            (0o772, false, false, false),
        ] {
            admin.chmod(&dir, mode).await.unwrap();
            let denied = |allowed: bool| if allowed { None } else { Some(FsError::Denied) };
            let shows = format!("{mode:o}");
            assert_eq!(client.lookup(&shown, "f").await.err(), denied(walk), "{shows}");
            assert_eq!(client.stat(&file).await.err(), denied(walk), "{shows}");
            assert_eq!(client.open_for(&file, 4).await.err(), denied(walk), "{shows}");
            client.release(ino, client.opened()).await;
            // Without permission to walk nobody learns whether a name is there.
            let missing = client.lookup(&shown, "x").await.err();
            assert_eq!(missing, denied(walk).or(Some(FsError::NotFound)), "{shows}");
            let missing = client.unlink(&shown, "x").await.err();
            assert_eq!(missing, denied(walk).or(Some(FsError::NotFound)), "{shows}");
            let missing = client.rmdir(&shown, "x").await.err();
            assert_eq!(missing, denied(walk).or(Some(FsError::NotFound)), "{shows}");
            let missing = client.rename((&shown, "x"), (&mine, "y")).await.err();
            assert_eq!(missing, denied(walk).or(Some(FsError::NotFound)), "{shows}");
            let exists = client.mkdir(&shown, "f").await.err();
            assert_eq!(exists, denied(walk).or(Some(FsError::Exists)), "{shows}");

            let page = client.page(&shown, 0, 10).await;
            assert_eq!(page.as_ref().err().copied(), denied(list), "{shows}");
            if let Ok(page) = page {
                assert!(page.entries.iter().all(|entry| entry.entry.is_some() == walk), "{shows}");
            }
            let made = client.create(&shown, "new").await;
            assert_eq!(made.err(), denied(change), "{shows}");
            assert_eq!(client.mkdir(&shown, "newdir").await.err(), denied(change), "{shows}");
            assert_eq!(client.symlink(&shown, "news", "x").await.err(), denied(change), "{shows}");
            let renamed = client.rename((&shown, "f"), (&shown, "g")).await;
            assert_eq!(renamed.err(), denied(change), "{shows}");
            if change {
                client.rename((&shown, "g"), (&shown, "f")).await.unwrap();
                client.unlink(&shown, "new").await.unwrap();
                client.unlink(&shown, "news").await.unwrap();
                client.rmdir(&shown, "newdir").await.unwrap();
            } else {
                assert_eq!(client.unlink(&shown, "f").await, Err(FsError::Denied), "{shows}");
                assert_eq!(client.rmdir(&shown, "sub").await, Err(FsError::Denied), "{shows}");
            }
        }
    });
}

#[test]
fn a_sticky_directory_keeps_what_is_not_the_callers() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        admin.chmod(&root, 0o1777).await.unwrap();
        admin.create(&root, "theirs").await.unwrap();
        admin.mkdir_mode(&root, "their dir", 0o777).await.unwrap();
        let mut client = as_user(world).await;
        let mine = client.root;
        let own = client.create(&mine, "own").await.unwrap();
        let not_permitted = Err(FsError::NotPermitted);
        assert_eq!(client.unlink(&mine, "theirs").await.map(drop), not_permitted);
        assert_eq!(client.rmdir(&mine, "their dir").await, not_permitted);
        assert_eq!(client.rename((&mine, "theirs"), (&mine, "x")).await, not_permitted);
        assert_eq!(client.rename((&mine, "own"), (&mine, "theirs")).await, not_permitted);
        assert_eq!(client.exchange((&mine, "own"), (&mine, "theirs")).await, not_permitted);
        // Another name of one's own file is one's own.
        client.link(&own, &mine, "link").await.unwrap();
        client.rename((&mine, "own"), (&mine, "mine")).await.unwrap();
        client.unlink(&mine, "mine").await.unwrap();
        client.unlink(&mine, "link").await.unwrap();
    });
}

#[test]
fn a_directory_whose_parent_changes_must_be_writable() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        admin.chmod(&root, 0o777).await.unwrap();
        let target = admin.mkdir_mode(&root, "target", 0o777).await.unwrap();
        admin.mkdir(&root, "theirs").await.unwrap();
        admin.create(&target, "f").await.unwrap();
        let mut client = as_user(world).await;
        let mine = client.root;
        let shown = client.lookup(&mine, "target").await.unwrap().dir.unwrap();
        let denied = Err(FsError::Denied);
        assert_eq!(client.rename((&mine, "theirs"), (&shown, "x")).await, denied);
        assert_eq!(client.exchange((&shown, "f"), (&mine, "theirs")).await, denied);
        client.rename((&mine, "theirs"), (&mine, "x")).await.unwrap();
    });
}

#[test]
fn modes_are_changed_by_owners_and_owners_by_root() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        admin.chmod(&root, 0o777).await.unwrap();
        let theirs = admin.create_mode(&root, "theirs", 0o666).await.unwrap();
        let mut client = as_user(world).await;
        let mine = client.root;
        let own = client.create(&mine, "own").await.unwrap();
        let theirs = FileRef { dir: mine, ..theirs };
        let not_permitted = FsError::NotPermitted;
        assert_eq!(client.chmod(&theirs, 0o777).await, Err(not_permitted));
        assert_eq!(client.chown(&theirs, 7, 7).await, Err(not_permitted));
        assert_eq!(client.chown(&own, 8, 7).await, Err(not_permitted));
        assert_eq!(client.chown(&own, 7, 99).await, Err(not_permitted));
        client.cred = Cred { uid: 7, gid: 7, groups: vec![70] };
        assert_eq!(client.chmod(&own, 0o6755).await.unwrap().mode, 0o6755);
        let attr = client.chown(&own, 7, 70).await.unwrap();
        assert_eq!((attr.gid, attr.mode), (70, 0o755), "a change of owner clears the set-id bits");
        // A caller outside the file's group does not give the group's rights away.
        client.cred = user(7);
        assert_eq!(client.chmod(&own, 0o2755).await.unwrap().mode, 0o755);
        let root_file = FileRef { dir: root, ..own };
        admin.chmod(&root_file, 0o6711).await.unwrap();
        assert_eq!(admin.chown(&root_file, 9, 9).await.unwrap().mode, 0o711);
        admin.chmod(&root_file, 0o2701).await.unwrap();
        let attr = admin.chown(&root_file, 9, 9).await.unwrap();
        assert_eq!(attr.mode, 0o2701, "without execute permission of the group it marks locking");
    });
}

#[test]
fn times_are_set_by_owners_and_to_now_by_writers() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        admin.create_mode(&root, "f", 0o666).await.unwrap();
        admin.create_mode(&root, "g", 0o644).await.unwrap();
        let mut client = as_user(world).await;
        let mut file = async |text: &str| {
            let dir = client.root;
            let ino = client.lookup(&dir, text).await.unwrap().attr.ino;
            FileRef { dir, name: name(text), ino }
        };
        let (writable, other) = (file("f").await, file("g").await);
        let now =
            SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
        let at = SetAttr { mtime: Some(SetTime::At(Time { sec: 5, nsec: 5 })), ..now };
        let instant = world.tick();
        let attr = client.setattr(&writable, now).await.unwrap();
        assert_eq!([attr.atime, attr.mtime, attr.ctime], [instant; 3]);
        assert_eq!(client.setattr(&writable, at).await, Err(FsError::NotPermitted));
        assert_eq!(client.setattr(&other, now).await, Err(FsError::Denied));
        let attr = admin.setattr(&FileRef { dir: root, ..other.clone() }, at).await.unwrap();
        assert_eq!((attr.mtime, attr.ctime), (Time { sec: 5, nsec: 5 }, instant));

        // A read moves the time of access forward, never back, and nothing else.
        let later = world.tick();
        let read = SetAttr { atime: Some(SetTime::Now), access_only: true, ..SetAttr::default() };
        let attr = client.setattr(&other, read).await.unwrap();
        assert_eq!((attr.atime, attr.ctime), (later, instant));
        let back = SetAttr { atime: Some(SetTime::At(instant)), ..read };
        assert_eq!(client.setattr(&other, back).await.unwrap().atime, later);
        let node = NodeRef::File(FileRef { dir: root, ..other.clone() });
        let hide = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        admin.get(Request::Setattr(Setattr { node, set: hide })).await.unwrap();
        assert_eq!(client.setattr(&other, read).await, Err(FsError::Denied));
    });
}

#[test]
fn an_open_file_does_what_it_was_opened_for_and_no_more() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let theirs = admin.create_mode(&root, "f", 0o664).await.unwrap();
        admin.write(&theirs, 0, b"secret").await.unwrap();
        let mut client = as_user(world).await;
        let file = FileRef { dir: client.root, ..theirs.clone() };
        let map =
            |file: &FileRef| Request::BlockMap(BlockMap { file: file.clone(), first: 0, count: 1 });
        let denied = Some(FsError::Denied);
        client.open_for(&file, 4).await.unwrap();
        assert_eq!(client.write(&file, 0, b"x").await.err(), denied);
        assert_eq!(client.truncate(&file, 0).await.err(), denied);
        client.release(file.ino, client.opened()).await;

        admin.chmod(&theirs, 0o662).await.unwrap();
        for access in [2, 0] {
            let opened = client.open_for(&file, access).await.unwrap();
            assert_eq!(opened.contents, OpenState::Withheld);
            assert_eq!(client.get(map(&file)).await.err(), denied);
        }
        client.write(&file, 0, b"S").await.unwrap();
        // A right that was granted stays, whatever becomes of the mode.
        admin.chmod(&theirs, 0o600).await.unwrap();
        client.write(&file, 1, b"E").await.unwrap();
        assert_eq!(client.open_for(&file, 4).await.unwrap_err(), FsError::Denied);
        client.truncate(&file, 2).await.unwrap();
        client.release(file.ino, client.opened()).await;
        assert_eq!(client.write(&file, 0, b"x").await.err(), denied);
        assert_eq!(admin.read(&theirs).await.unwrap(), b"SE");

        // The creator uses the file, whatever mode it got.
        admin.chmod(&root, 0o777).await.unwrap();
        let create = Create {
            dir: client.root,
            name: name("mine"),
            kind: FileKind::File,
            mode: 0,
            rdev: 0,
            exclusive: true,
            open: Some(100),
        };
        let Reply::Created(created) = client.get(Request::Create(create)).await.unwrap() else {
            panic!("not created");
        };
        let mine = FileRef { dir: client.root, name: name("mine"), ino: created.entry.attr.ino };
        client.write(&mine, 0, b"own").await.unwrap();
        assert_eq!(client.read(&mine).await.unwrap(), b"own");
    });
}

#[test]
fn who_writes_without_privilege_leaves_no_set_id_bits() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let theirs = admin.create_mode(&root, "f", 0o6777).await.unwrap();
        let mut client = as_user(world).await;
        let file = FileRef { dir: client.root, ..theirs.clone() };
        assert_eq!(client.write(&file, 0, b"evil").await.unwrap().mode, 0o777);
        admin.chmod(&theirs, 0o6777).await.unwrap();
        assert_eq!(client.truncate(&file, 1).await.unwrap().mode, 0o777);
        admin.chmod(&theirs, 0o6777).await.unwrap();
        assert_eq!(admin.write(&theirs, 0, b"fine").await.unwrap().mode, 0o6777);
    });
}

#[test]
fn a_block_is_read_by_who_was_told_of_it_and_named_by_who_wrote_it() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let data = vec![9; 6000];
        let hidden = admin.create_mode(&root, "hidden", 0o600).await.unwrap();
        admin.write_blocks(&hidden, 0, &data).await.unwrap();
        let block = base::BlockId::new(admin.welcome.session, 1);
        let part = BlockPart { block, block_bytes: 6000, offset: 0, ticket: 0 };
        let mut client = as_user(world).await;
        for ticket in [0, 1, client.root.ticket] {
            let guessed = BlockPart { ticket, ..part };
            assert_eq!(client.get_block(guessed, 10).await, Err(FsError::Denied));
        }
        admin.chmod(&hidden, 0o604).await.unwrap();
        let file = FileRef { dir: client.root, ..hidden.clone() };
        assert_eq!(client.read(&file).await.unwrap(), data);

        // Another's block is neither put nor made a part of one's own file.
        assert_eq!(client.put_block(block, b"x").await, Err(FsError::NotPermitted));
        admin.chmod(&hidden, 0o606).await.unwrap();
        let slice = Slice { start: 0, len: 6000, source: SliceSource::Block(part) };
        let chunks = vec![ChunkSlices { chunk: 0, slices: vec![slice] }];
        let taken = client.write_chunks(&file, chunks, 6000).await;
        assert_eq!(taken, Err(FsError::Invalid));
    });
}

#[test]
fn a_write_keeps_within_its_file_and_its_chunk() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        let zeros = |start, len| Slice { start, len, source: SliceSource::Zeros };
        let chunk = base::limits::CHUNK_BYTES;
        for (slices, end) in [
            (vec![zeros(0, 0)], 10),
            (vec![zeros(0, 11)], 10),
            (vec![zeros(chunk - 1, 2)], u64::from(chunk) * 2),
            (vec![zeros(u32::MAX, u32::MAX)], u64::from(chunk) * 2),
            (vec![zeros(0, 1); base::limits::SLICES_A_WRITE_MAX + 1], 10),
        ] {
            let chunks = vec![ChunkSlices { chunk: 0, slices }];
            let wrong = client.write_chunks(&file, chunks, end).await;
            assert_eq!(wrong, Err(FsError::Invalid));
        }
        let long = vec![0; base::limits::EMBEDDED_BYTES_A_WRITE_MAX + 1];
        let len = u32::try_from(long.len()).unwrap();
        let long = Slice { start: 0, len, source: SliceSource::Embedded(long.into()) };
        let chunks = vec![ChunkSlices { chunk: 0, slices: vec![long] }];
        let wrong = client.write_chunks(&file, chunks, u64::from(len)).await;
        assert_eq!(wrong, Err(FsError::Invalid));
        let many = vec![ChunkSlices::default(); base::limits::CHUNKS_A_WRITE_MAX + 1];
        assert_eq!(client.write_chunks(&file, many, 10).await, Err(FsError::Invalid));
        let too_big = base::limits::FILE_BYTES_MAX + 1;
        assert_eq!(client.write_chunks(&file, vec![], too_big).await, Err(FsError::FileTooBig));
        assert_eq!(client.truncate(&file, too_big).await, Err(FsError::FileTooBig));
        let embedded = SliceSource::Embedded(bytes::Bytes::from_static(b"four"));
        let short = Slice { start: 0, len: 5, source: embedded };
        let chunks = vec![ChunkSlices { chunk: 0, slices: vec![short] }];
        let write = Write {
            file,
            chunks,
            end: 5,
            at: None,
            clear_set_id: true,
            set: None,
            blocks: Vec::new(),
        };
        assert_eq!(client.get(Request::Write(write)).await, Err(FsError::Invalid));
    });
}

#[test]
fn execute_permission_is_asked_for_like_the_others() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let file = admin.create_mode(&root, "f", 0o644).await.unwrap();
        let execute = u8::try_from(Access::EXECUTE.bits()).unwrap();
        assert_eq!(admin.open_for(&file, execute).await.unwrap_err(), FsError::Denied);
        admin.chmod(&file, 0o100).await.unwrap();
        admin.open_for(&file, execute).await.unwrap();
        let moved = admin.rename_mode((&root, "f"), (&root, "g"), RenameMode::NoReplace).await;
        assert_eq!(moved, Ok(()));
    });
}
