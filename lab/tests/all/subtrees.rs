//! Tokens for a subtree whose path leads over several servers: the subtree is the session's root,
//! and the token gives access to nothing else.

use std::time::Duration;

use base::{Cred, DirId, EntryName, FsError, Locality, NameVersion, placement::shard_of};
use client::{Client, Error, FileSystem};
use lab::sim::{network::Place, plan::Plan, play::test_in, world::World};
use tokio::time::timeout;
use wire::{DirRef, FileRef, NodeRef, Token, XattrMode};

const SERVERS: u16 = 4;
/// Number of directories below each other, whose groups are on several servers.
const DEPTH: usize = 6;

fn path(depth: usize) -> String {
    (0..depth).map(|at| format!("/d{at}")).collect()
}

fn of(path: &str) -> Token {
    Token { path: path.to_owned(), ..Token::administrator() }
}

fn name(name: &str) -> EntryName {
    EntryName::new(name.as_bytes()).unwrap()
}

/// Runs a test on `/d0/d1/...`, with a file in each directory, and `/secret/file` beside it.
fn on_a_cluster(test: impl AsyncFnOnce(&World, &Client)) {
    let plan =
        Plan { split_threshold: u64::MAX, locality: Locality::Directory, ..Plan::draw(3, SERVERS) };
    test_in(plan, async |world| {
        let machine = world.connect("makes").await.unwrap();
        let client = &machine.client;
        for depth in 0..=DEPTH {
            if depth > 0 {
                client.mkdir(path(depth), 0o777).await.unwrap();
            }
            client.write(format!("{}/file", path(depth)), path(depth).as_bytes()).await.unwrap();
        }
        client.mkdir("/secret", 0o777).await.unwrap();
        client.write("/secret/file", b"secret").await.unwrap();
        test(world, client).await;
    });
}

async fn refusal(world: &World, token: &Token) -> String {
    match world.connect_with("refused", token).await {
        Err(Error::Refused(reason)) => reason,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was let in with {token:?}"),
    }
}

#[test]
fn the_root_of_a_token_is_its_directory_wherever_that_is() {
    on_a_cluster(async |world, all| {
        let mut servers = std::collections::BTreeSet::new();
        for depth in 1..=DEPTH {
            let machine = world.connect_with("inside", &of(&path(depth))).await.unwrap();
            let inside = &machine.client;
            let (root, attr) = FileSystem::root(inside);
            let outside = all.stat(path(depth)).await.unwrap();
            assert_eq!((root.ino, attr.ino, attr.nlink), (outside.ino, outside.ino, outside.nlink));
            assert_eq!(attr.mtime, outside.mtime, "it is not only what its parent knows");
            assert_eq!(inside.stat("/").await.unwrap(), outside);
            assert_eq!(inside.read("/file").await.unwrap(), path(depth).as_bytes());
            assert_eq!(inside.read("/../../file").await.unwrap(), path(depth).as_bytes());
            inside.write(format!("/made{depth}"), b"made").await.unwrap();
            let made = format!("{}/made{depth}", path(depth));
            assert_eq!(all.read(made).await.unwrap(), b"made"[..]);
            servers.insert(server_of(world, &root));
        }
        assert!(servers.len() > 1, "all of it is on one server");
        for missing in ["/no", "/d0/no", "/d0/d1/file", "/d0/d1/d2/no/more", "/secret/d0"] {
            assert!(refusal(world, &of(missing)).await.contains("is no directory"), "{missing}");
        }
    });
}

#[test]
fn the_way_to_a_root_leads_through_directories_that_are_divided() {
    on_a_cluster(async |world, all| {
        all.mkdir("/d0/wide", 0o777).await.unwrap();
        for (name, value) in [("pando.spread", "extendible"), ("pando.large_dir", "4")] {
            all.set_xattr("/d0/wide", name, value.as_bytes(), XattrMode::Set).await.unwrap();
        }
        for dir in 0..12 {
            let below = format!("/d0/wide/{dir}/below");
            all.mkdir(format!("/d0/wide/{dir}"), 0o777).await.unwrap();
            all.mkdir(&below, 0o777).await.unwrap();
            let inside = world.connect_with("inside", &of(&below)).await.unwrap();
            let ino = inside.client.root().0.ino;
            assert_eq!(ino, all.stat(&below).await.unwrap().ino);
        }
        assert_eq!(
            world.connect_with("inside", &of("/d0/wide")).await.unwrap().client.root().0.ino,
            all.stat("/d0/wide").await.unwrap().ino
        );
    });
}

/// A client with a token for a subtree knows the key of names, so it can compute the id of any
/// directory.
#[test]
fn nobody_leaves_the_subtree_of_a_token() {
    on_a_cluster(async |world, all| {
        let hash_key = all.fs_info().hash_key;
        let cred = Cred::ROOT;
        let secret = FileSystem::lookup(all, &cred, &FileSystem::root(all).0, &name("secret"))
            .await
            .unwrap()
            .dir
            .unwrap();
        let file = FileSystem::lookup(all, &cred, &secret, &name("file")).await.unwrap().attr.ino;
        assert_eq!(secret.id, hash_key.dir_id(DirId::ROOT, &name("secret"), NameVersion(0)));
        for depth in [1, 3, DEPTH] {
            let machine = world.connect_with("inside", &of(&path(depth))).await.unwrap();
            let inside = &machine.client;
            inside.read("/file").await.unwrap();
            let mine = FileSystem::root(inside).0;
            let root = DirRef::ROOT;
            let above = {
                let at = all.stat(format!("/{}", path(depth - 1))).await.unwrap().ino;
                let mut id = DirId::ROOT;
                for step in 0..depth - 1 {
                    id = hash_key.dir_id(id, &name(&format!("d{step}")), NameVersion(0));
                }
                DirRef { id, ino: at, home: id, ticket: 0 }
            };
            // Tickets of its own, tickets of others, and none.
            for ticket in [0, mine.ticket, secret.ticket, FileSystem::root(all).0.ticket] {
                for dir in [root, secret, above] {
                    let dir = DirRef { ticket, ..dir };
                    let file_there = FileRef { dir, name: name("file"), ino: file };
                    let denied = |what: Result<(), Error>| match what {
                        Err(Error::Fs(FsError::Denied | FsError::Stale)) => {}
                        other => panic!("{other:?} of {dir:?}"),
                    };
                    denied(FileSystem::lookup(inside, &cred, &dir, &name("file")).await.map(drop));
                    denied(FileSystem::getattr(inside, &cred, &NodeRef::Dir(dir)).await.map(drop));
                    denied(
                        FileSystem::mkdir(inside, &cred, &dir, &name("new"), 0o755).await.map(drop),
                    );
                    denied(FileSystem::unlink(inside, &cred, &dir, &name("file")).await.map(drop));
                    denied(FileSystem::readlink(inside, &cred, &file_there).await.map(drop));
                    denied(
                        FileSystem::getattr(inside, &cred, &NodeRef::File(file_there))
                            .await
                            .map(drop),
                    );
                    let (into, out) = ((&dir, &name("in")), (&mine, &name("file")));
                    let mode = wire::RenameMode::Replace;
                    denied(FileSystem::rename(inside, &cred, out, into, mode).await.map(drop));
                    let (out, into) = ((&dir, &name("file")), (&mine, &name("got")));
                    denied(FileSystem::rename(inside, &cred, out, into, mode).await.map(drop));
                }
            }
            assert_eq!(inside.read("/file").await.unwrap(), path(depth).as_bytes());
        }
        assert_eq!(all.read("/secret/file").await.unwrap(), b"secret"[..]);
        assert_eq!(all.stat("/secret").await.unwrap().size, 1, "nothing was made there");
    });
}

#[test]
fn a_session_stays_in_its_directory_when_that_moves_and_servers_restart() {
    on_a_cluster(async |world, all| {
        let machine = world.connect_with("inside", &of(&path(4))).await.unwrap();
        let inside = &machine.client;
        all.rename("/d0/d1", "/secret/d1").await.unwrap();
        assert_eq!(inside.read("/file").await.unwrap(), path(4).as_bytes());
        assert!(refusal(world, &of(&path(4))).await.contains("is no directory"));
        let moved = world.connect_with("moved", &of("/secret/d1/d2/d3")).await.unwrap();
        assert_eq!(moved.client.root().0.ino, inside.root().0.ino);
        moved.client.close().await.unwrap();
        all.rename("/secret/d1", "/d0/d1").await.unwrap();
        for host in world.hosts() {
            host.kill();
            host.start().unwrap();
            inside.write("/after", b"it").await.unwrap();
            assert_eq!(all.read(format!("{}/after", path(4))).await.unwrap(), b"it"[..]);
        }
    });
}

fn server_of(world: &World, dir: &DirRef) -> u16 {
    shard_of(dir.home, 0, world.plan().shards).0 % SERVERS
}

/// Asks a server for a directory by handle, as a mount does.
async fn look(client: &Client, dir: DirRef) -> Result<(), Error> {
    FileSystem::getattr(client, &Cred::ROOT, &NodeRef::Dir(dir)).await.map(drop)
}

/// Ends the session with this token everywhere, as `pando sessions --evict` does. Returns the
/// number of servers that had it.
async fn evict(all: &Client, token: &Token) -> usize {
    let mut session = None;
    for server in 0..SERVERS {
        let sessions = all.sessions(server).await.unwrap();
        let of_token = sessions.iter().find(|found| found.path.as_ref() == Some(&token.path));
        session = session.or(of_token.map(|found| found.session));
    }
    let session = session.unwrap();
    let mut ended = 0;
    for server in 0..SERVERS {
        match all.evict(server, session).await {
            Ok(()) => ended += 1,
            Err(Error::Fs(FsError::NotFound)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    ended
}

#[test]
fn who_is_evicted_has_nothing_of_a_subtree_that_was_moved_away() {
    on_a_cluster(async |world, all| {
        world.trace().expect("this client ends");
        let token = of(&path(2));
        for (round, taken) in [false, true].into_iter().enumerate() {
            let machine = world.connect_with("inside", &token).await.unwrap();
            let inside = &machine.client;
            let mut dirs = vec![FileSystem::root(inside).0];
            for at in 2..DEPTH {
                let above = dirs.last().unwrap();
                let found =
                    FileSystem::lookup(inside, &Cred::ROOT, above, &name(&format!("d{at}"))).await;
                dirs.push(found.unwrap().dir.unwrap());
            }
            let moved = format!("/secret/moved{round}");
            all.rename(path(2), &moved).await.unwrap();
            for dir in &dirs {
                look(inside, *dir).await.unwrap();
            }
            if taken {
                all.create_dir_all(path(DEPTH), 0o777).await.unwrap();
            }
            assert!(evict(all, &token).await > 1, "it was at one server only");
            for dir in &dirs {
                let found = look(inside, *dir).await;
                assert!(matches!(found, Err(Error::Refused(_))), "{found:?}: {dir:?}");
            }
            if !taken {
                all.rename(moved, path(2)).await.unwrap();
            }
        }
    });
}

#[test]
fn who_is_evicted_goes_on_in_its_directory_where_that_has_stayed() {
    on_a_cluster(async |world, all| {
        let token = of(&path(2));
        let machine = world.connect_with("inside", &token).await.unwrap();
        let inside = &machine.client;
        let deep = &path(DEPTH)[path(2).len()..];
        for _ in 0..2 {
            inside.read(format!("{deep}/file")).await.unwrap();
            evict(all, &token).await;
            inside.write(format!("{deep}/after"), b"it").await.unwrap();
        }
    });
}

/// A session, its root, and the server of that root, which the session has not asked yet.
async fn before_it_comes(world: &World, depth: usize) -> Option<(Client, DirRef, u16)> {
    let machine = world.connect_with("inside", &of(&path(depth))).await.unwrap();
    let root = FileSystem::root(&machine.client).0;
    let server = server_of(world, &root);
    (server != 0).then(|| (machine.client.clone(), root, server))
}

#[test]
fn a_session_comes_to_further_servers_wherever_its_directory_is() {
    on_a_cluster(async |world, all| {
        let mut came = 0;
        for depth in 2..=DEPTH {
            let Some((inside, root, server)) = before_it_comes(world, depth).await else {
                continue;
            };
            all.rename(path(depth), "/secret/moved").await.unwrap();
            let others: Vec<_> = (1..SERVERS).filter(|other| *other != server).collect();
            others.iter().for_each(|other| world.hosts()[usize::from(*other)].kill());
            look(&inside, root).await.unwrap();
            others.iter().for_each(|other| world.hosts()[usize::from(*other)].start().unwrap());
            all.rename("/secret/moved", path(depth)).await.unwrap();
            came += 1;
        }
        assert!(came > 1);
    });
}

#[test]
fn who_comes_to_a_server_while_it_is_evicted_stays_out() {
    on_a_cluster(async |world, all| {
        world.trace().expect("this client ends");
        let mut came = 0;
        for depth in 2..=DEPTH {
            let Some((inside, root, server)) = before_it_comes(world, depth).await else {
                continue;
            };
            let moved = format!("/secret/moved{depth}");
            all.rename(path(depth), &moved).await.unwrap();
            // The answer that the session exists arrives only after the eviction.
            let (from, to) = (Place::Server(0), Place::Server(server));
            world.network().wall(from, to, Duration::from_secs(2));
            let comes = look(&inside, root);
            let evicts = async {
                world.wait(Duration::from_secs(1)).await;
                assert_eq!(evict(all, &of(&path(depth))).await, 1);
            };
            let (found, ()) = futures::future::join(comes, evicts).await;
            assert!(matches!(found, Err(Error::Refused(_))), "{found:?}");
            all.rename(moved, path(depth)).await.unwrap();
            came += 1;
        }
        assert!(came > 1);
    });
}

/// A mount names directories, such as working directories, by the handles that it was shown, and
/// not by path.
#[test]
fn working_directories_go_along_within_the_subtree_and_are_gone_outside() {
    on_a_cluster(async |world, all| {
        for depth in [1, 2] {
            let machine = world.connect_with("inside", &of(&path(depth))).await.unwrap();
            let (inside, cred) = (&machine.client, Cred::ROOT);
            let mut dirs = vec![FileSystem::root(inside).0];
            for at in depth..DEPTH {
                let step = name(&format!("d{at}"));
                let found = FileSystem::lookup(inside, &cred, &dirs[at - depth], &step).await;
                dirs.push(found.unwrap().dir.unwrap());
            }
            let deepest = *dirs.last().unwrap();
            let look = async || {
                FileSystem::getattr(inside, &cred, &NodeRef::Dir(deepest)).await.map(|_| ())
            };
            let make = async |called: &str| {
                let made = FileSystem::mkdir(inside, &cred, &deepest, &name(called), 0o755).await;
                made.map(|_| ())
            };
            look().await.unwrap();
            let (was, leaves) = (path(3), path(depth));
            for (to, called) in [(format!("{leaves}/aside"), "one"), (was.clone(), "two")] {
                let from = if called == "one" { was.clone() } else { format!("{leaves}/aside") };
                all.rename(from, to).await.unwrap();
                look().await.unwrap();
                make(&format!("{called}{depth}")).await.unwrap();
            }
            let stale = Err(Error::Fs(FsError::Stale));
            for round in 0..3 {
                all.rename(&was, "/secret/left").await.unwrap();
                assert_eq!(look().await, stale);
                assert_eq!(make("three").await, stale);
                let by_path = path(DEPTH)[leaves.len()..].to_owned();
                assert_eq!(inside.stat(by_path).await, Err(Error::Fs(FsError::NotFound)));
                all.rename("/secret/left", &was).await.unwrap();
                look().await.unwrap();
                make(&format!("back{depth}.{round}")).await.unwrap();
            }
        }
    });
}

#[test]
fn who_comes_while_a_server_on_the_way_is_away_waits_for_it() {
    on_a_cluster(async |world, all| {
        let deep = path(DEPTH);
        let ino = all.stat(&deep).await.unwrap().ino;
        for away in 1..usize::from(SERVERS) {
            world.hosts()[away].kill();
            let token = of(&deep);
            let connects = world.connect_with("waits", &token);
            let comes_back = async {
                world.wait(Duration::from_secs(2)).await;
                world.hosts()[away].start().unwrap();
            };
            let (connected, ()) = futures::future::join(connects, comes_back).await;
            assert_eq!(connected.unwrap().client.root().0.ino, ino);
        }
    });
}

#[test]
fn what_a_dead_server_has_above_a_directory_is_not_asked_for_when_it_is_known() {
    on_a_cluster(async |world, all| {
        let mut servers = vec![];
        for depth in 0..=DEPTH {
            let path = format!("/{}", path(depth));
            let NodeRef::Dir(dir) = all.resolve(&path).await.unwrap() else { panic!("{path}") };
            let shard = shard_of(dir.home, 0, world.plan().shards);
            servers.push(shard.0 % SERVERS);
        }
        // The server of a directory that is above another server's, and not the coordinator's.
        let is_between = |above: &usize| {
            let dead = servers[*above];
            dead != 0 && servers[*above + 1..].iter().any(|server| *server != dead)
        };
        let above = (2..DEPTH).find(is_between).unwrap();
        let dead = servers[above];
        let below = (above + 1..=DEPTH).rfind(|depth| servers[*depth] != dead).unwrap();
        let machine = world.connect_with("inside", &of(&path(1))).await.unwrap();
        let (inside, cred) = (&machine.client, Cred::ROOT);
        let within: String = (1..below).map(|at| format!("/d{at}")).collect();
        let node = inside.resolve(&within).await.unwrap();
        let NodeRef::Dir(dir) = &node else { panic!("{node:?}") };
        let host = &world.hosts()[usize::from(dead)];
        host.kill();
        for away in [0, 5, 60] {
            world.wait(Duration::from_secs(away)).await;
            let looks = async {
                inside.getattr(&cred, &node).await.unwrap();
                inside.lookup(&cred, dir, &name("file")).await.unwrap();
                inside.readdir(&cred, dir, 0, 100, true).await.unwrap();
            };
            timeout(Duration::from_secs(1), looks).await.unwrap();
        }
        host.start().unwrap();
        machine.close().await.unwrap();
    });
}
