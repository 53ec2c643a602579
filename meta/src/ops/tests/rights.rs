//! Rights: whatever a session earned with a token is worth nothing without the token, and no more
//! than it.

use base::{Access, Clock as _, FileKind, FsError, Time};
use wire::{
    Answer, Claim, ClaimedFile, Create, FileRef, Getattr, Hello, Info, Link, Lookup, NodeRef,
    Reply, Request, Retry, Token,
};

use super::{
    client::{Client, name, user},
    world::{Setup, World, in_world, in_world_of},
};
use crate::Limits;

fn below(path: &str) -> Token {
    Token { path: path.into(), ..Token::administrator() }
}

async fn is_stale(client: &mut Client, request: Request) -> bool {
    client.ask(request).await == Answer::Retry(Retry::StaleDir)
}

fn getattr(node: NodeRef) -> Request {
    Request::Getattr(Getattr { node })
}

/// The rights of one token, and others that are not the same.
fn pairs() -> Vec<(Token, Token)> {
    let user = Token { uid: Some(7), gids: vec![7], ..Token::administrator() };
    vec![
        (Token { read_only: true, ..below("/data") }, below("/scratch")),
        (Token { read_only: true, ..below("/data") }, below("/data")),
        (user.clone(), below("/scratch")),
        (user.clone(), Token { gids: vec![7, 70], ..user.clone() }),
        (user.clone(), Token { uid: Some(70), ..user }),
        (below("/data"), Token::administrator()),
        (Token { read_only: true, ..Token::administrator() }, Token::administrator()),
    ]
}

#[test]
fn a_session_is_not_resumed_with_other_rights() {
    for restarts in [false, true] {
        in_world(async |world| {
            let mut admin = world.client().await;
            let root = admin.root;
            for dir in ["data", "scratch"] {
                admin.mkdir_mode(&root, dir, 0o777).await.unwrap();
            }
            for (token, other) in pairs() {
                let mut client = world.client_with(&token).await;
                let (session, shown) = (client.welcome.session, client.root);
                if restarts {
                    world.restart().await;
                    admin.resume(world).await;
                }
                let refused = client.resume_with(world, &other).await.unwrap_err();
                assert!(refused.contains("a token of other rights"), "{refused}");
                // The tickets are worth nothing to another session of either token.
                let mut stranger = Client::open(world, &other, true).await.unwrap();
                assert_ne!(stranger.welcome.session, session);
                stranger.cred = user(other.uid.unwrap_or(0));
                if !stranger.welcome.trusted && !shown.same(&stranger.root) {
                    assert_eq!(stranger.lookup(&shown, "x").await, Err(FsError::Denied));
                }
                client.resume_with(world, &token).await.unwrap();
                assert_eq!(client.welcome.session, session, "it is as it was");
            }
        });
    }
}

#[test]
fn a_session_is_resumed_with_a_renewed_token_until_its_token_ends() {
    in_world(async |world| {
        let ends = |at: Time| Token { expires: Some(at), ..below("/") };
        let now = world.clock.now();
        let (first, second) = (ends(now.plus_ms(1000)), ends(now.plus_ms(5000)));
        let mut client = world.client_with(&Token { read_only: true, ..first }).await;
        let session = client.welcome.session;
        let renewed = Token { read_only: true, ..second };
        client.resume_with(world, &renewed).await.unwrap();
        assert_eq!(client.welcome.session, session);
        world.advance(3);
        client.resume_with(world, &renewed).await.unwrap();
        assert_eq!(client.welcome.session, session, "it has not ended");
        world.advance(3);
        let later = Token { expires: Some(now.plus_ms(60_000)), ..renewed };
        client.resume_with(world, &later).await.unwrap();
        assert_ne!(client.welcome.session, session, "it ended with its token");
    });
}

#[test]
fn a_session_whose_token_ends_gives_back_what_it_has() {
    in_world(async |world| {
        let token =
            Token { expires: Some(world.clock.now().plus_ms(1000)), ..Token::administrator() };
        let mut admin = world.client().await;
        let root = admin.root;
        let file = admin.create(&root, "f").await.unwrap();
        let mut client = world.client_with(&token).await;
        let session = client.welcome.session;
        client.open_file(&file).await.unwrap();
        world.advance(2);
        // The session is heard of, but that keeps nothing any more.
        for _ in 0..10 {
            client.ask(Request::Ping).await;
            admin.ask(Request::Ping).await;
            tokio::time::sleep(world.server.shared.options.lease / 4).await;
        }
        assert!(world.server.shared.session(session).is_none());
        assert_eq!(world.server.shared.opens.count(session), 0);
    });
}

#[test]
fn a_claim_is_taken_only_while_claims_are_awaited() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        admin.chmod(&root, 0o777).await.unwrap();
        let theirs = admin.create_mode(&root, "f", 0o666).await.unwrap();
        let token = Token { uid: Some(7), gids: vec![7], ..Token::administrator() };
        let mut client = world.client_with(&token).await;
        client.cred = user(7);
        let file = FileRef { dir: client.root, ..theirs.clone() };
        let write = u8::try_from(Access::WRITE.bits()).unwrap();
        let opened = client.open_for(&file, write).await.unwrap();
        let number = client.opened();
        let files = vec![ClaimedFile { file: file.clone(), number, proof: opened.proof }];
        let claim = |last| Request::Claim(Claim { files: files.clone(), last });
        client.release(file.ino, number).await;
        admin.chmod(&theirs, 0o600).await.unwrap();
        for last in [false, true] {
            client.get(claim(last)).await.unwrap();
            assert_eq!(client.write(&file, 0, b"x").await.err(), Some(FsError::Denied));
        }
        // After a restart the session has the files open again that it had.
        admin.chmod(&theirs, 0o666).await.unwrap();
        client.open_for(&file, write).await.unwrap();
        admin.chmod(&theirs, 0o600).await.unwrap();
        world.restart().await;
        client.resume(world).await;
        client.get(claim(true)).await.unwrap();
        client.write(&file, 0, b"x").await.unwrap();
        // The claim works once.
        client.release(file.ino, u64::MAX).await;
        client.get(claim(true)).await.unwrap();
        assert_eq!(client.write(&file, 0, b"x").await.err(), Some(FsError::Denied));
    });
}

#[test]
fn a_directory_that_leaves_the_subtree_of_a_token_takes_what_is_in_it_along() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let a = admin.mkdir(&root, "a").await.unwrap();
        let private = admin.mkdir(&root, "private").await.unwrap();
        let x = admin.mkdir(&a, "x").await.unwrap();
        let y = admin.mkdir(&x, "y").await.unwrap();
        admin.create(&y, "f").await.unwrap();
        for kernel_checks in [true, false] {
            let mut client = Client::open(world, &below("/a"), kernel_checks).await.unwrap();
            let inside = client.root;
            let x = client.lookup(&inside, "x").await.unwrap().dir.unwrap();
            let y = client.lookup(&x, "y").await.unwrap().dir.unwrap();
            let ino = client.lookup(&y, "f").await.unwrap().attr.ino;
            let file = FileRef { dir: y, name: name("f"), ino };
            client.stat(&file).await.unwrap();

            admin.rename((&a, "x"), (&private, "x")).await.unwrap();
            for dir in [x, y] {
                let look = Lookup { dir, name: name("f") };
                assert!(is_stale(&mut client, Request::Lookup(look)).await);
                let create = Create {
                    dir,
                    name: name("new"),
                    kind: FileKind::File,
                    mode: 0o600,
                    rdev: 0,
                    exclusive: true,
                    open: None,
                };
                assert!(is_stale(&mut client, Request::Create(create)).await);
                assert!(is_stale(&mut client, getattr(NodeRef::Dir(dir))).await);
            }
            assert!(is_stale(&mut client, getattr(NodeRef::File(file.clone()))).await);

            // The directory may be anywhere within the subtree, and its tickets are good again.
            let z = admin.mkdir(&a, "z").await.unwrap();
            admin.rename((&private, "x"), (&z, "x")).await.unwrap();
            client.lookup(&y, "f").await.unwrap();
            client.stat(&file).await.unwrap();
            // The session stays in its directory, wherever that is moved.
            admin.rename((&root, "a"), (&private, "a")).await.unwrap();
            client.lookup(&y, "f").await.unwrap();
            admin.rename((&private, "a"), (&root, "a")).await.unwrap();
            admin.rename((&z, "x"), (&a, "x")).await.unwrap();
            admin.rmdir(&a, "z").await.unwrap();
        }
    });
}

#[test]
fn what_is_open_in_a_directory_that_leaves_the_subtree_stays_open() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let a = admin.mkdir(&root, "a").await.unwrap();
        let x = admin.mkdir(&a, "x").await.unwrap();
        admin.create(&x, "f").await.unwrap();
        let mut client = world.client_with(&below("/a")).await;
        let inside = client.root;
        let dir = client.lookup(&inside, "x").await.unwrap().dir.unwrap();
        let ino = client.lookup(&dir, "f").await.unwrap().attr.ino;
        let file = FileRef { dir, name: name("f"), ino };
        client.open_file(&file).await.unwrap();
        admin.rename((&a, "x"), (&root, "x")).await.unwrap();
        client.write(&file, 0, b"here").await.unwrap();
        client.release(ino, client.opened()).await;
        assert!(is_stale(&mut client, getattr(NodeRef::File(file))).await);
    });
}

#[test]
fn a_file_that_is_open_gets_no_name_in_a_subtree_that_it_has_left() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let a = admin.mkdir(&root, "a").await.unwrap();
        let x = admin.mkdir(&a, "x").await.unwrap();
        let mut client = world.client_with(&below("/a")).await;
        let inside = client.root;
        let dir = client.lookup(&inside, "x").await.unwrap().dir.unwrap();
        let link = |file: &FileRef, to: &str| {
            let target = NodeRef::File(file.clone());
            Request::Link(Link { target, dir: inside, name: name(to) })
        };
        // The second of them has two names, so its inode is under neither.
        for (at, two) in [(0, false), (1, true)] {
            let (gone, kept) = (format!("gone{at}"), format!("kept{at}"));
            for text in [&gone, &kept] {
                let made = admin.create(&x, text).await.unwrap();
                if two {
                    admin.link(&made, &root, &format!("{text} too")).await.unwrap();
                }
            }
            let mut opened = Vec::new();
            for text in [&gone, &kept] {
                let ino = client.lookup(&dir, text).await.unwrap().attr.ino;
                let file = FileRef { dir, name: name(text), ino };
                client.open_file(&file).await.unwrap();
                opened.push(file);
            }
            admin.rename((&x, &gone), (&root, &gone)).await.unwrap();
            admin.rename((&x, &kept), (&a, &kept)).await.unwrap();
            let stale = Answer::Failed(FsError::Stale);
            for file in &opened {
                assert_eq!(client.ask(link(file, "by its old name")).await, stale);
                client.write(file, 0, b"open").await.unwrap();
            }
            let [gone, kept] = &opened[..] else { unreachable!() };
            let pretended = FileRef { dir: inside, ..gone.clone() };
            assert_eq!(client.ask(link(&pretended, "as if it were there")).await, stale);
            let found = FileRef { dir: inside, ..kept.clone() };
            let again = format!("again{at}");
            client.link(&found, &inside, &again).await.unwrap();
        }
        let unnamed = client.tmpfile(&dir, true).await.unwrap();
        client.link(&unnamed, &inside, "first").await.unwrap();

        let file = admin.create(&x, "along").await.unwrap();
        let file = FileRef { dir, ..file };
        client.open_file(&file).await.unwrap();
        admin.rename((&a, "x"), (&root, "x")).await.unwrap();
        // Another search for the new name's directory would not help.
        assert_eq!(client.ask(link(&file, "back")).await, Answer::Failed(FsError::Stale));
        client.write(&file, 0, b"open").await.unwrap();
    });
}

#[test]
fn a_session_does_not_come_back_to_another_directory_than_its_own() {
    for restarts in [false, true] {
        in_world(async |world| {
            let mut admin = world.client().await;
            let root = admin.root;
            admin.mkdir(&root, "a").await.unwrap();
            let token = below("/a");
            let mut client = world.client_with(&token).await;
            let (session, own) = (client.welcome.session, client.root);
            admin.rename((&root, "a"), (&root, "old")).await.unwrap();
            admin.mkdir(&root, "a").await.unwrap();
            if restarts {
                world.restart().await;
                admin.resume(world).await;
            }
            let refused = client.resume_with(world, &token).await.unwrap_err();
            assert!(refused.contains("another directory than at first"), "{refused}");
            admin.rmdir(&root, "a").await.unwrap();
            let refused = client.resume_with(world, &token).await.unwrap_err();
            assert!(refused.contains("is no directory"), "{refused}");
            admin.rename((&root, "old"), (&root, "a")).await.unwrap();
            client.resume_with(world, &token).await.unwrap();
            assert_eq!(client.welcome.session, session);
            assert!(client.root.same(&own));
        });
    }
}

#[test]
fn info_of_a_subtree_tells_nothing_of_what_is_above() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        let above = admin.mkdir(&root, "above").await.unwrap();
        let a = admin.mkdir(&above, "a").await.unwrap();
        let x = admin.mkdir(&a, "x").await.unwrap();
        admin.create(&x, "f").await.unwrap();
        let mut client = world.client_with(&below("/above/a")).await;
        let inside = client.root;
        let dir = client.lookup(&inside, "x").await.unwrap().dir.unwrap();
        let ino = client.lookup(&dir, "f").await.unwrap().attr.ino;
        for (node, path) in [
            (NodeRef::Dir(inside), Some("/")),
            (NodeRef::Dir(dir), Some("/x")),
            (NodeRef::File(FileRef { dir, name: name("f"), ino }), None),
        ] {
            let Reply::Lines(lines) = client.get(Request::Info(Info { node })).await.unwrap()
            else {
                panic!("no lines");
            };
            let told = |of: &str| {
                lines.iter().find(|(name, _)| name == of).map(|(_, value)| value.as_str())
            };
            assert_eq!(told("path"), path);
            assert_eq!(told("server"), None);
            assert!(!format!("{lines:?}").contains("above"), "{lines:?}");
        }
    });
}

fn hello(token: &Token) -> Request {
    let (token, client) = (World::sign(token), "more".to_owned());
    Request::Hello(Hello { token, client, resume: None, kernel_checks: false })
}

#[test]
fn a_token_has_so_many_sessions_and_leaves_the_others_to_others() {
    let limits = Limits { sessions_a_token_max: 2, ..Limits::default() };
    in_world_of(Setup { limits, ..Setup::default() }, async |world| {
        let mut admin = world.client().await;
        let root = admin.root;
        for dir in ["a", "b"] {
            admin.mkdir(&root, dir).await.unwrap();
        }
        let mut first = world.client_with(&below("/a")).await;
        let mut second = world.client_with(&below("/a")).await;
        assert_eq!(admin.ask(hello(&below("/a"))).await, Answer::Retry(Retry::Busy));
        assert_eq!(world.counter("sessions_refused"), 1);
        let welcome = |answer| matches!(answer, Answer::Done(Reply::Welcome(_)));
        assert!(welcome(second.ask(hello(&below("/b"))).await));
        // Administrators have to come in to see to it.
        for _ in 0..3 {
            assert!(welcome(admin.ask(hello(&Token::administrator())).await));
        }
        // A session from before a restart is counted when it is back.
        world.restart().await;
        first.resume(world).await;
        let mut third = world.client_with(&below("/a")).await;
        assert_eq!(third.ask(hello(&below("/a"))).await, Answer::Retry(Retry::Busy));
        first.bye().await;
        drop(first);
        world.settle().await;
        assert!(welcome(third.ask(hello(&below("/a"))).await));
    });
}
