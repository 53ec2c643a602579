//! The end of a session leaves nothing behind, whoever ends it and whatever other cores do for it
//! meanwhile.

use std::sync::Barrier;

use base::{ByteRange, EntryName, Ino, LockKind, LockMode, SessionId};
use wire::{Answer, ClaimedFile, Create, Evict, Lock, Reply, Request, Retry, Welcome};

use super::{
    client::{Client, name},
    world::{Setup, World, in_world, in_world_of, on_core},
};
use crate::record::key;

const ROUNDS: usize = 25;

fn in_wide_world(test: impl AsyncFnOnce(&mut World)) {
    in_world_of(Setup { cores: 3, ..Setup::default() }, test);
}

fn file_name(client: &Client, number: u64) -> EntryName {
    name(&format!("{}-{number}", client.welcome.session))
}

fn create(client: &Client, number: u64) -> Request {
    let open = Some(number);
    let (dir, name) = (client.root, file_name(client, number));
    let kind = base::FileKind::File;
    Request::Create(Create { dir, name, kind, mode: 0o644, rdev: 0, exclusive: true, open })
}

fn lock(ino: Ino, number: u64, mode: Option<LockMode>, wait: bool) -> Request {
    let (kind, range) = (LockKind::Whole, ByteRange::ALL);
    Request::Lock(Lock { ino, kind, owner: 1, pid: 7, range, mode, wait, number, settled: 0 })
}

/// The traces that a session has left behind.
fn remains(world: &World, session: SessionId) -> Vec<&'static str> {
    let shared = &world.server.shared;
    let mut found = Vec::new();
    if shared.session(session).is_some() {
        found.push("it is in the table");
    }
    if shared.engine.get(&key::session(session)).unwrap().is_some() {
        found.push("its record is stored");
    }
    if !shared.stored_answers(session).unwrap().is_empty() {
        found.push("answers are stored");
    }
    if shared.opens.count(session) > 0 {
        found.push("it has files open");
    }
    if shared.file_locks.totals() != (0, 0, 0) {
        found.push("it has locks");
    }
    found
}

fn open_sessions(world: &World) -> usize {
    world.server.shared.sessions.lock().len()
}

/// Joins a session over a connection of another core.
async fn joined(world: &mut World, welcome: &Welcome) -> Client {
    let mut client = world.client().await;
    client.bye().await;
    client.welcome = welcome.clone();
    client.resume(world).await;
    client
}

/// Runs many rounds in which one core works for a session without a pause, and another ends it.
/// Nothing may be left behind.
fn while_it_ends(
    work: impl AsyncFn(&mut Client, u64) -> Answer + Sync,
    end: impl AsyncFn(&mut World, &Welcome) + Sync,
) {
    in_wide_world(async |world| {
        for _ in 0..ROUNDS {
            let client = world.client().await;
            let welcome = client.welcome.clone();
            let ready = Barrier::new(2);
            let (works, ends) = (world.parts(), world.parts());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    on_core(works, 1, async |world| {
                        let mut client = joined(world, &welcome).await;
                        ready.wait();
                        for number in 1.. {
                            match work(&mut client, number).await {
                                Answer::Done(_) => {}
                                Answer::Retry(Retry::NoSession) => break,
                                other => panic!("{other:?}"),
                            }
                        }
                    });
                });
                scope.spawn(|| {
                    on_core(ends, 2, async |world| {
                        ready.wait();
                        end(world, &welcome).await;
                    });
                });
            });
            assert_eq!(remains(world, welcome.session), Vec::<&str>::new());
        }
    });
}

async fn leave(world: &mut World, welcome: &Welcome) {
    let mut client = joined(world, welcome).await;
    client.ask(Request::Ping).await;
    client.bye().await;
}

async fn evict(world: &mut World, welcome: &Welcome) {
    let mut client = world.client().await;
    let evict = Request::Evict(Evict { session: welcome.session });
    assert_eq!(client.ask(evict).await, Answer::Done(Reply::Nothing));
    client.bye().await;
}

#[test]
fn a_session_that_leaves_leaves_nothing_whatever_another_core_does_for_it() {
    let work = async |client: &mut Client, number| client.ask(create(client, number)).await;
    while_it_ends(work, leave);
}

#[test]
fn a_session_that_is_evicted_leaves_nothing_whatever_another_core_does_for_it() {
    let work = async |client: &mut Client, number| client.ask(create(client, number)).await;
    while_it_ends(work, evict);
}

#[test]
fn locks_end_with_their_session_whatever_another_core_does_for_it() {
    let work = async |client: &mut Client, number| {
        let Answer::Done(Reply::Created(made)) = client.ask(create(client, number)).await else {
            return Answer::Retry(Retry::NoSession);
        };
        let (ino, mode) = (made.entry.attr.ino, Some(LockMode::Exclusive));
        client.ask(lock(ino, number, mode, number % 2 == 0)).await
    };
    while_it_ends(work, evict);
}

#[test]
fn claims_end_with_their_session_whatever_another_core_does_for_it() {
    let work = async |client: &mut Client, number| {
        let Answer::Done(Reply::Created(made)) = client.ask(create(client, number)).await else {
            return Answer::Retry(Retry::NoSession);
        };
        let file = wire::FileRef {
            dir: client.root,
            name: file_name(client, number),
            ino: made.entry.attr.ino,
        };
        let proof = made.opened.map(|opened| opened.proof).unwrap_or_default();
        let files = vec![ClaimedFile { file, number, proof }];
        client.ask(Request::Claim(wire::Claim { files, last: false })).await
    };
    while_it_ends(work, evict);
}

#[test]
fn who_comes_back_to_a_session_that_ends_gets_another_one() {
    in_wide_world(async |world| {
        for _ in 0..ROUNDS {
            let client = world.client().await;
            let welcome = client.welcome.clone();
            let ready = Barrier::new(2);
            let (comes, ends) = (world.parts(), world.parts());
            let got = std::thread::scope(|scope| {
                let comes = scope.spawn(|| {
                    let mut got = Vec::new();
                    on_core(comes, 1, async |world| {
                        let mut client = joined(world, &welcome).await;
                        ready.wait();
                        while client.resume_or_start(world).await {}
                        assert_eq!(client.ask(Request::Ping).await, Answer::Done(Reply::Nothing));
                        got.push(client.welcome.session);
                    });
                    got[0]
                });
                scope.spawn(|| {
                    on_core(ends, 2, async |world| {
                        ready.wait();
                        evict(world, &welcome).await;
                    });
                });
                comes.join().unwrap()
            });
            assert_eq!(remains(world, welcome.session), Vec::<&str>::new());
            assert!(world.server.shared.session(got).is_some(), "what it got is no session");
        }
    });
}

#[test]
fn who_evicts_itself_is_gone() {
    in_world(async |world| {
        let mut client = world.client().await;
        let session = client.welcome.session;
        let before = open_sessions(world);
        let evict = Request::Evict(Evict { session });
        assert_eq!(client.ask(evict).await, Answer::Done(Reply::Nothing));
        assert_eq!(client.ask(Request::Ping).await, Answer::Retry(Retry::NoSession));
        assert_eq!(open_sessions(world), before - 1);
        assert_eq!(remains(world, session), Vec::<&str>::new());
    });
}

/// A client has a removed file open, and locks a file that another one waits for. Then a third
/// client, perhaps on another core, evicts it.
async fn frees_all_at_once(world: &mut World, evicts: impl AsyncFnOnce(&mut World, &Welcome)) {
    let (mut has, mut wants) = (world.client().await, world.client().await);
    let root = has.root;
    let orphan = has.create(&root, "orphan").await.unwrap();
    has.open_file(&orphan).await.unwrap();
    has.unlink(&root, "orphan").await.unwrap();
    let locked = has.create(&root, "locked").await.unwrap();
    for client in [&mut has, &mut wants] {
        client.open_file(&locked).await.unwrap();
    }
    let exclusive = Some(LockMode::Exclusive);
    assert_eq!(has.ask(lock(locked.ino, 1, exclusive, false)).await, Answer::Done(Reply::Nothing));
    let seq = wants.seq;
    wants.send(base::Seq(0), seq, &lock(locked.ino, 1, exclusive, true)).await;
    world.settle().await;
    let reclaimed = world.counter("inodes_reclaimed");
    assert_eq!(world.server.shared.backlog.lengths().1, 1, "the orphan is open");

    evicts(world, &has.welcome).await;
    assert_eq!(wants.receive().await, Answer::Done(Reply::Nothing), "the lock is its own");
    world.settle().await;
    assert_eq!(world.server.shared.opens.count(has.welcome.session), 0);
    assert_eq!(world.counter("inodes_reclaimed"), reclaimed + 1);
    assert_eq!(world.server.shared.backlog.lengths(), (0, 0));
    assert_eq!(has.ask(Request::Ping).await, Answer::Retry(Retry::NoSession));
    wants.bye().await;
}

#[test]
fn evict_frees_locks_opens_and_orphans_at_once() {
    in_world(async |world| frees_all_at_once(world, evict).await);
}

#[test]
fn evict_on_another_core_frees_locks_opens_and_orphans_at_once() {
    in_wide_world(async |world| {
        frees_all_at_once(world, async |world, welcome| {
            let parts = world.parts();
            std::thread::scope(|scope| {
                scope.spawn(|| on_core(parts, 1, async |world| evict(world, welcome).await));
            });
        })
        .await;
    });
}
