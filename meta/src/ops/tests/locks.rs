//! Locks of files, as clients see them.

use std::{sync::Arc, time::Duration};

use base::{ByteRange, FsError, Ino, LockKind, LockMode};
use wire::{
    Answer, Claim, ClaimedFile, ClaimedLock, Lock, LockCancel, LockClaim, Reply, Request, Retry,
};

use super::{
    client::Client,
    world::{Setup, World, in_world, in_world_of},
};
use crate::{Durability, Offload, serve::connection::WAITING_MAX};

const DONE: Answer = Answer::Done(Reply::Nothing);
const HELD: Answer = Answer::Failed(FsError::TryAgain);

fn lock(ino: Ino, number: u64) -> Lock {
    Lock {
        ino,
        kind: LockKind::Range,
        owner: 1,
        pid: 1,
        range: ByteRange { first: 0, last: 9 },
        mode: Some(LockMode::Exclusive),
        wait: false,
        number,
        settled: number,
    }
}

/// Two clients that have one file open, the file, and the proof of the first one's open.
async fn two_with_a_file(world: &mut World) -> (Client, Client, ClaimedFile) {
    let (mut one, mut two) = (world.client().await, world.client().await);
    let root = one.root;
    let file = one.create(&root, "f").await.unwrap();
    let opened = one.open_file(&file).await.unwrap();
    two.open_file(&file).await.unwrap();
    (one, two, ClaimedFile { file, number: 1, proof: opened.proof })
}

#[test]
fn a_lock_needs_an_open_file_and_ends_when_its_session_closes_it() {
    in_world(async |world| {
        let (mut one, mut two, claimed) = two_with_a_file(world).await;
        let ino = claimed.file.ino;
        assert_eq!(one.ask(Request::Lock(lock(ino, 1))).await, DONE);
        assert_eq!(two.ask(Request::Lock(lock(ino, 1))).await, HELD);
        one.release(ino, u64::MAX).await;
        assert_eq!(two.ask(Request::Lock(lock(ino, 2))).await, DONE);
        let closed = one.ask(Request::Lock(lock(ino, 2))).await;
        assert_eq!(closed, Answer::Failed(FsError::BadHandle));
    });
}

#[test]
fn a_server_gives_a_session_65_536_locks_and_no_more() {
    in_world(async |world| {
        let (mut one, mut two, claimed) = two_with_a_file(world).await;
        let nth = |number: u64| {
            let range = ByteRange { first: 2 * number, last: 2 * number };
            Request::Lock(Lock { range, ..lock(claimed.file.ino, number) })
        };
        // All but one are of other files.
        for number in 1..65_536 {
            let lock = lock(Ino(1_000_000 + number), number);
            let (taken, _) = world.server.shared.file_locks.set(one.welcome.session, &lock);
            assert!(taken.is_ok(), "lock {number}");
        }
        assert_eq!(one.ask(nth(65_536)).await, DONE);
        assert_eq!(one.ask(nth(65_537)).await, Answer::Failed(FsError::NoLocks));
        assert_eq!(two.ask(nth(65_537)).await, DONE);
    });
}

#[test]
fn an_echo_of_a_settled_request_takes_nothing() {
    in_world(async |world| {
        let (mut one, mut two, claimed) = two_with_a_file(world).await;
        let ino = claimed.file.ino;
        assert_eq!(one.ask(Request::Lock(lock(ino, 1))).await, DONE);
        assert_eq!(one.ask(Request::Lock(lock(ino, 1))).await, DONE, "asked again");
        let back = Lock { mode: None, ..lock(ino, 2) };
        assert_eq!(one.ask(Request::Lock(back)).await, DONE);
        for wait in [false, true] {
            let echo = Lock { wait, ..lock(ino, 1) };
            assert_eq!(one.ask(Request::Lock(echo)).await, Answer::Retry(Retry::Busy));
        }
        assert_eq!(two.ask(Request::Lock(lock(ino, 1))).await, DONE);
    });
}

#[test]
fn who_waits_is_answered_when_it_is_its_turn_or_is_cancelled() {
    in_world(async |world| {
        let (mut one, mut two, claimed) = two_with_a_file(world).await;
        let ino = claimed.file.ino;
        assert_eq!(one.ask(Request::Lock(lock(ino, 1))).await, DONE);
        let waits = Lock { wait: true, settled: 1, ..lock(ino, 1) };
        two.send(base::Seq(0), base::Seq(1), &Request::Lock(waits)).await;
        let cancel = Request::LockCancel(LockCancel { number: 1, settled: 1 });
        let answers = [two.ask(cancel).await, two.receive().await];
        assert!(answers.contains(&DONE) && answers.contains(&Answer::Failed(FsError::Interrupted)));
        let waits = Lock { wait: true, ..lock(ino, 2) };
        two.send(base::Seq(0), base::Seq(1), &Request::Lock(waits)).await;
        assert_eq!(one.ask(Request::Lock(Lock { mode: None, ..lock(ino, 2) })).await, DONE);
        assert_eq!(two.receive().await, DONE);
        assert_eq!(one.ask(Request::Lock(lock(ino, 3))).await, HELD);
    });
}

#[test]
fn who_asks_again_waits_in_the_place_of_who_asked_before() {
    in_world(async |world| {
        let (mut one, mut two, claimed) = two_with_a_file(world).await;
        let ino = claimed.file.ino;
        assert_eq!(one.ask(Request::Lock(lock(ino, 1))).await, DONE);
        let waits = Request::Lock(Lock { wait: true, ..lock(ino, 1) });
        for _ in 0..3 {
            two.send(base::Seq(0), base::Seq(1), &waits).await;
        }
        for _ in 0..2 {
            assert_eq!(two.receive().await, Answer::Retry(Retry::Busy));
        }
        assert_eq!(world.server.shared.file_locks.totals(), (1, 1, 1));
        assert_eq!(one.ask(Request::Lock(Lock { mode: None, ..lock(ino, 2) })).await, DONE);
        assert_eq!(two.receive().await, DONE);
    });
}

#[test]
fn so_many_requests_of_a_connection_wait_and_the_others_go_on() {
    in_world(async |world| {
        let (mut one, mut two, claimed) = two_with_a_file(world).await;
        let ino = claimed.file.ino;
        assert_eq!(one.ask(Request::Lock(lock(ino, 1))).await, DONE);
        let waits = |number| Lock { wait: true, settled: 1, owner: number, ..lock(ino, number) };
        let max = WAITING_MAX as u64;
        for number in 1..=max + 2 {
            two.send(base::Seq(0), base::Seq(1), &Request::Lock(waits(number))).await;
        }
        for _ in 0..2 {
            assert_eq!(two.receive().await, Answer::Retry(Retry::Busy));
        }
        // The number of requests that a core sets aside is bounded as well; others are answered at
        // once.
        assert_eq!(two.ask(Request::Sync).await, Answer::Retry(Retry::Busy));
        assert_eq!(two.ask(Request::Ping).await, DONE);
        let cancel = Request::LockCancel(LockCancel { number: 1, settled: 1 });
        let answers = [two.ask(cancel).await, two.receive().await];
        assert!(answers.contains(&DONE) && answers.contains(&Answer::Failed(FsError::Interrupted)));
        assert_eq!(two.ask(Request::Sync).await, DONE);
    });
}

#[test]
fn the_locks_of_a_silent_session_are_free_when_its_lease_ends() {
    in_world(async |world| {
        let (mut one, mut two, claimed) = two_with_a_file(world).await;
        let ino = claimed.file.ino;
        assert_eq!(one.ask(Request::Lock(lock(ino, 1))).await, DONE);
        let waits = Lock { wait: true, ..lock(ino, 1) };
        two.send(base::Seq(0), base::Seq(1), &Request::Lock(waits)).await;
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_secs(2)).await;
            two.send(base::Seq(0), base::Seq(1), &Request::Ping).await;
        }
        for _ in 0..41 {
            assert_eq!(two.receive().await, DONE);
        }
        assert_eq!(world.server.shared.file_locks.totals(), (1, 1, 0));
    });
}

#[test]
fn with_strict_durability_a_lock_is_given_when_the_end_of_its_session_is_stable() {
    let slow = Offload::Timed(Arc::new(|| (Duration::from_millis(50), Duration::ZERO)));
    let setup = Setup { durability: Durability::Strict, offload: slow, ..Setup::default() };
    in_world_of(setup, async |world| {
        let (mut one, mut two, claimed) = two_with_a_file(world).await;
        let ino = claimed.file.ino;
        assert_eq!(one.ask(Request::Lock(lock(ino, 1))).await, DONE);
        let waits = Lock { wait: true, ..lock(ino, 1) };
        two.send(base::Seq(0), base::Seq(1), &Request::Lock(waits)).await;
        one.send(base::Seq(0), base::Seq(1), &Request::Bye).await;
        assert_eq!(two.receive().await, DONE);
        assert_eq!(world.engine.memory.unsynced(), 0);
    });
}

#[test]
fn after_a_restart_nobody_gets_a_lock_before_all_have_claimed() {
    in_world(async |world| {
        let (mut one, mut two, claimed) = two_with_a_file(world).await;
        let ino = claimed.file.ino;
        assert_eq!(one.ask(Request::Lock(lock(ino, 1))).await, DONE);
        world.restart().await;
        two.resume(world).await;
        let opened = two.open_file(&claimed.file).await.unwrap();
        let busy = Answer::Retry(Retry::Busy);
        assert_eq!(two.ask(Request::Lock(lock(ino, 2))).await, busy);
        let own = ClaimedFile { proof: opened.proof, ..claimed.clone() };
        two.ask(Request::Claim(Claim { files: vec![own], last: true })).await;
        assert_eq!(two.ask(Request::Lock(lock(ino, 2))).await, busy);
        let held = ClaimedLock {
            ino,
            kind: LockKind::Range,
            owner: 1,
            pid: 1,
            range: ByteRange { first: 0, last: 9 },
            mode: LockMode::Exclusive,
        };
        let claim = Request::LockClaim(LockClaim { locks: vec![held], settled: 2 });
        assert_eq!(two.ask(claim.clone()).await, DONE, "too late: it claims nothing");
        one.resume(world).await;
        one.ask(Request::Claim(Claim { files: vec![claimed], last: false })).await;
        assert_eq!(one.ask(claim).await, DONE);
        one.ask(Request::Claim(Claim { files: vec![], last: true })).await;
        assert_eq!(two.ask(Request::Lock(lock(ino, 2))).await, HELD);
        assert_eq!(one.ask(Request::Lock(Lock { mode: None, ..lock(ino, 2) })).await, DONE);
        assert_eq!(two.ask(Request::Lock(lock(ino, 2))).await, DONE);
    });
}

#[test]
fn who_is_back_and_claims_nothing_holds_up_locks_for_a_lease_and_loses_its_session() {
    in_world(async |world| {
        let (mut one, mut two, claimed) = two_with_a_file(world).await;
        let ino = claimed.file.ino;
        assert_eq!(one.ask(Request::Lock(lock(ino, 1))).await, DONE);
        world.restart().await;
        one.resume(world).await;
        two.resume(world).await;
        two.claim_nothing().await;
        two.open_file(&claimed.file).await.unwrap();
        let lease = Duration::from_millis(two.welcome.lease_ms);
        let began = tokio::time::Instant::now();
        for number in 2.. {
            let answer = two.ask(Request::Lock(lock(ino, number))).await;
            if answer == DONE {
                break;
            }
            assert_eq!(answer, Answer::Retry(Retry::Busy));
            assert!(
                began.elapsed() < lease * 3 / 2,
                "locks wait for a session that claims nothing"
            );
            let some = Claim { files: vec![claimed.clone()], last: false };
            for request in [Request::Ping, Request::Claim(some)] {
                let answer = one.ask(request).await;
                assert!(answer == DONE || answer == Answer::Retry(Retry::NoSession), "{answer:?}");
            }
            world.wait(lease / 20).await;
        }
        assert!(began.elapsed() >= lease, "it has a lease to claim what it had");
        assert!(!one.resume_or_start(world).await, "it knows that its lock is gone");
    });
}
