//! Tokens that squash or map ids, when their holder does not use our client: it says what it likes
//! of its users, and that its kernel has checked them.

use base::{Cred, FsError, Seq, acl::ACCESS};
use bytes::Bytes;
use wire::{
    Answer, Claim, ClaimedFile, DirRef, FileRef, Guess, Held, Hello, IdMapping, IdRange,
    KeysChange, Mkdir, NodeRef, Reply, Request, Search, Setattr, SignToken, Speculate, Squash,
    Stand, Token,
};

use super::{
    client::{Client, name, user},
    world::{World, in_world},
};

const ANYBODY: u32 = 99;

fn squashing(squash: Squash) -> Token {
    let ids = IdMapping {
        squash,
        anonymous_uid: ANYBODY,
        anonymous_gid: ANYBODY,
        uids: Vec::new(),
        gids: Vec::new(),
    };
    Token { ids: Some(ids), ..Token::administrator() }
}

/// Users and groups 0 to 9 of clients are 5000 to 5009 of the file system.
fn mapping() -> Token {
    let map = vec![IdRange { outside: 0, inside: 5000, count: 10 }];
    let mut token = squashing(Squash::Nobody);
    token.ids = token.ids.map(|ids| IdMapping { uids: map.clone(), gids: map, ..ids });
    token
}

/// A session as of a mount whose kernel is said to have checked all.
async fn holder(world: &mut World, token: &Token, cred: Cred) -> Client {
    let mut client = Client::open(world, token, true).await.unwrap();
    assert!(!client.welcome.trusted && client.welcome.direct.is_none());
    client.cred = cred;
    client
}

/// The same file, as a session names it that must prove its walks.
async fn shown(client: &mut Client, text: &str) -> FileRef {
    let dir = client.root;
    let ino = client.lookup(&dir, text).await.unwrap().attr.ino;
    FileRef { dir, name: name(text), ino }
}

/// The owner may read and write, the named user read, and nobody else anything.
fn acl(named: u32) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries =
        [(1u16, 6u16, NOBODY), (2, 4, named), (4, 0, NOBODY), (0x10, 4, NOBODY), (0x20, 0, NOBODY)];
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn the_squashed_superuser_is_the_anonymous_user_whatever_its_client_says() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        admin.chmod(&root, 0o777).await.unwrap();
        let theirs = admin.create_mode(&root, "theirs", 0o600).await.unwrap();
        admin.write(&theirs, 0, b"secret").await.unwrap();
        for squash in [Squash::Root, Squash::All] {
            let mut client = holder(world, &squashing(squash), Cred::ROOT).await;
            let theirs = shown(&mut client, "theirs").await;
            let inside = client.root;
            assert_eq!(client.open_for(&theirs, 4).await.err(), Some(FsError::Denied));
            assert_eq!(client.truncate(&theirs, 0).await, Err(FsError::Denied));
            assert_eq!(client.write(&theirs, 0, b"x").await, Err(FsError::Denied));
            for refused in [
                client.chmod(&theirs, 0o666).await.map(drop),
                client.chown(&theirs, ANYBODY, ANYBODY).await.map(drop),
                client.set_xattr(&theirs, "trusted.x", b"").await,
                client.set_xattr(&theirs, "security.x", b"").await,
            ] {
                assert_eq!(refused, Err(FsError::NotPermitted));
            }
            let mine = client.create_mode(&inside, "mine", 0o600).await.unwrap();
            let attr = client.stat(&mine).await.unwrap();
            assert_eq!((attr.uid, attr.gid), (ANYBODY, ANYBODY));
            assert_eq!(client.chown(&mine, 0, 0).await, Err(FsError::NotPermitted));
            client.chmod(&mine, 0o640).await.unwrap();
            client.write(&mine, 0, b"x").await.unwrap();
            client.unlink(&inside, "mine").await.unwrap();
        }
        assert_eq!(admin.read(&theirs).await.unwrap(), b"secret");
    });
}

#[test]
fn only_the_superuser_is_squashed_or_everybody() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        admin.chmod(&root, 0o777).await.unwrap();
        for (squash, owner) in [(Squash::Root, 7), (Squash::All, ANYBODY)] {
            let mut client = holder(world, &squashing(squash), user(7)).await;
            let inside = client.root;
            let file = client.create_mode(&inside, "f", 0o600).await.unwrap();
            assert_eq!(client.stat(&file).await.unwrap().uid, owner);
            client.open_file(&file).await.unwrap();
            client.unlink(&inside, "f").await.unwrap();
        }
    });
}

#[test]
fn a_session_whose_ids_are_not_those_of_the_file_system_gets_nothing_that_trust_gives() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        admin.chmod(&root, 0o777).await.unwrap();
        let dir = admin.mkdir_mode(&root, "d", 0o777).await.unwrap();
        let file = admin.create_mode(&dir, "f", 0o666).await.unwrap();
        let to_superuser = IdRange { outside: 7, inside: 0, count: 1 };
        let mut becomes_root = mapping();
        becomes_root.ids.as_mut().unwrap().uids = vec![to_superuser];
        for (token, cred) in [
            (squashing(Squash::Root), Cred::ROOT),
            (squashing(Squash::Root), user(7)),
            (squashing(Squash::All), Cred::ROOT),
            (mapping(), Cred::ROOT),
            // A superuser by its map: it may all that the superuser may, and administers nothing.
            (becomes_root, user(7)),
        ] {
            let mut client = holder(world, &token, cred).await;
            let inside = client.root;
            // Directories and files of others' sessions: their tickets were not shown to it.
            assert_eq!(client.lookup(&dir, "f").await, Err(FsError::Denied));
            assert_eq!(client.stat(&file).await, Err(FsError::Denied));
            let search = Search { dir: inside, ino: file.ino, from: Bytes::new() };
            assert_eq!(client.get(Request::Search(search)).await, Err(FsError::Stale));
            let guess = Guess { dir: dir.id, home: dir.home, partition: 0, name: Some(name("f")) };
            let sign = SignToken { token: Token { id: 5, ..Token::administrator() } };
            for request in [
                Request::Speculate(Speculate { guesses: vec![guess] }),
                Request::Status,
                Request::Sessions,
                Request::Load,
                Request::Cluster,
                Request::DumpStart,
                Request::Keys(KeysChange::Show),
                Request::Keys(KeysChange::Retire(0)),
                Request::SignToken(sign),
                Request::FsckStart(wire::FsckStart { gc: false }),
            ] {
                let answer = client.get(request.clone()).await;
                assert_eq!(answer, Err(FsError::NotPermitted), "{request:?}");
            }
            let limit = client.set_xattr(&inside, "pando.quota.bytes", b"1").await;
            assert_eq!(limit, Err(FsError::NotPermitted));
            // A wish for a delegation is not heard, nor are its facts noted for a mount.
            client.stands_on = Stand { held: Some(Held::WISH), ..Stand::NONE };
            let mkdir = Mkdir { dir: inside, name: name("new"), mode: 0o755 };
            let answer = client.ask(Request::Mkdir(mkdir)).await;
            assert!(matches!(answer, Answer::Done(Reply::Entry(_))), "{answer:?}");
            assert_eq!(client.noted, None);
            client.stands_on = Stand::NONE;
            client.rmdir(&inside, "new").await.unwrap();
            client.bye().await;
        }
    });
}

#[test]
fn ids_are_mapped_on_their_way_in_and_out() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        admin.chmod(&root, 0o777).await.unwrap();
        let roots = admin.create(&root, "roots").await.unwrap();
        let mut client = holder(world, &mapping(), user(3)).await;
        let inside = client.root;
        assert_eq!(client.welcome.root_attr.uid, ANYBODY, "user 0 has no id outside");
        let file = client.create_mode(&inside, "f", 0o600).await.unwrap();
        let inner = FileRef { dir: root, ..file.clone() };
        let owners = |attr: base::Attr| (attr.uid, attr.gid);
        assert_eq!(owners(client.stat(&file).await.unwrap()), (3, 3));
        assert_eq!(owners(admin.stat(&inner).await.unwrap()), (5003, 5003));
        assert_eq!(owners(client.lookup(&inside, "roots").await.unwrap().attr), (ANYBODY, ANYBODY));
        let page = client.page(&inside, 0, 9).await.unwrap();
        let mut listed: Vec<_> = page
            .entries
            .iter()
            .map(|entry| (entry.name.to_string(), owners(entry.entry.as_ref().unwrap().attr)))
            .collect();
        listed.sort_unstable();
        let is = |text: &str, id| (text.to_owned(), (id, id));
        assert_eq!(listed, [is("f", 3), is("roots", ANYBODY)]);

        // The owner of a file by the map may use it, and no other.
        client.chmod(&file, 0o640).await.unwrap();
        client.set_xattr(&file, std::str::from_utf8(ACCESS).unwrap(), &acl(4)).await.unwrap();
        let seen = |acls: Vec<(Bytes, Bytes)>| acls.into_iter().find(|(name, _)| name == ACCESS);
        assert_eq!(seen(client.xattrs(&file).await).unwrap().1, acl(4));
        assert_eq!(seen(admin.xattrs(&inner).await).unwrap().1, acl(5004));
        let unmapped = client.set_xattr(&file, "system.posix_acl_access", &acl(10)).await;
        assert_eq!(unmapped, Err(FsError::Invalid));
        client.cred = user(4);
        client.open_for(&file, 4).await.unwrap();
        assert_eq!(client.open_for(&file, 2).await.err(), Some(FsError::Denied));
        client.cred = user(5);
        assert_eq!(client.open_for(&file, 4).await.err(), Some(FsError::Denied));
        let theirs = FileRef { dir: inside, ..roots };
        client.cred = user(ANYBODY);
        assert_eq!(client.chmod(&theirs, 0o666).await, Err(FsError::NotPermitted));

        // No owner can be named that has no id outside; the superuser outside is one of many.
        client.cred = Cred { uid: 3, gid: 3, groups: vec![4, 11] };
        for (uid, gid) in [(10, 3), (3, 10), (5003, 3), (ANYBODY, 3)] {
            assert_eq!(client.chown(&file, uid, gid).await, Err(FsError::Invalid), "{uid} {gid}");
        }
        assert_eq!(owners(client.chown(&file, 3, 4).await.unwrap()), (3, 4));
        assert_eq!(admin.stat(&inner).await.unwrap().gid, 5004);
        client.cred = Cred::ROOT;
        assert_eq!(client.chown(&file, 0, 0).await, Err(FsError::NotPermitted));
    });
}

#[test]
fn a_stored_answer_is_mapped_when_it_is_asked_for_again_and_after_a_restart() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        admin.chmod(&root, 0o777).await.unwrap();
        let mut client = holder(world, &mapping(), user(3)).await;
        let mkdir = |dir| Request::Mkdir(Mkdir { dir, name: name("d"), mode: 0o755 });
        let owner = |answer: Answer| match answer {
            Answer::Done(Reply::Entry(entry)) => (entry.attr.uid, entry.attr.gid),
            other => panic!("{other:?}"),
        };
        let request = mkdir(client.root);
        assert_eq!(owner(client.ask_as(Seq(1), Seq(1), request.clone()).await), (3, 3));
        assert_eq!(owner(client.ask_as(Seq(1), Seq(1), request.clone()).await), (3, 3));
        world.restart().await;
        client.resume(world).await;
        assert_eq!(owner(client.ask_as(Seq(1), Seq(1), request).await), (3, 3));
        client.seq = Seq(1);
        admin.resume(world).await;
        assert_eq!(admin.lookup(&root, "d").await.unwrap().attr.uid, 5003);
    });
}

#[test]
fn a_refused_owner_leaves_the_number_of_its_request_free() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        admin.chmod(&root, 0o777).await.unwrap();
        let mut client = holder(world, &mapping(), user(3)).await;
        let inside = client.root;
        let file = client.create_mode(&inside, "f", 0o600).await.unwrap();
        let set = base::SetAttr { uid: Some(77), ..base::SetAttr::default() };
        let chown = Request::Setattr(Setattr { node: NodeRef::File(file), set });
        let seq = client.seq.next();
        for _ in 0..2 {
            let answer = client.ask_as(seq, seq, chown.clone()).await;
            assert_eq!(answer, Answer::Failed(FsError::Invalid));
        }
        let mkdir = Request::Mkdir(Mkdir { dir: inside, name: name("d"), mode: 0o755 });
        assert!(matches!(client.ask_as(seq, seq, mkdir).await, Answer::Done(_)));
        client.seq = seq;
    });
}

#[test]
fn neither_a_session_nor_its_connection_goes_on_with_other_ids() {
    in_world(async |world| {
        let mut client = holder(world, &squashing(Squash::Root), user(7)).await;
        for token in
            [Token::administrator(), squashing(Squash::All), squashing(Squash::Nobody), mapping()]
        {
            let refused = client.resume_with(world, &token).await.unwrap_err();
            assert!(refused.contains("a token of other rights"), "{refused}");
        }
        for (first, then) in [
            (squashing(Squash::Root), Token::administrator()),
            (Token::administrator(), squashing(Squash::Root)),
            (mapping(), squashing(Squash::Root)),
        ] {
            let mut client = Client::open(world, &first, true).await.unwrap();
            let hello = Hello {
                token: World::sign(&then),
                client: "test".into(),
                resume: None,
                kernel_checks: true,
            };
            let answer = client.ask(Request::Hello(hello)).await;
            let Answer::Refused(why) = answer else { panic!("{answer:?}") };
            assert!(why.contains("the connection has a session with other ids"), "{why}");
        }
    });
}

#[test]
fn an_open_is_claimed_after_a_restart_by_the_same_user_outside() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        admin.chmod(&root, 0o777).await.unwrap();
        let mut client = holder(world, &mapping(), user(3)).await;
        let inside: DirRef = client.root;
        let file = client.create_mode(&inside, "f", 0o600).await.unwrap();
        let opened = client.open_for(&file, 6).await.unwrap();
        let number = client.opened();
        let inner = FileRef { dir: root, ..file.clone() };
        admin.chown(&inner, 0, 0).await.unwrap();
        client.write(&file, 0, b"open").await.unwrap();
        for cred in [user(4), user(ANYBODY), user(3)] {
            world.restart().await;
            client.resume(world).await;
            client.cred = cred.clone();
            let files = vec![ClaimedFile { file: file.clone(), number, proof: opened.proof }];
            let claimed = client.get(Request::Claim(Claim { files, last: true })).await;
            assert_eq!(claimed.is_ok(), cred.uid == 3, "{cred:?} {claimed:?}");
        }
        client.write(&file, 0, b"still open").await.unwrap();
    });
}
