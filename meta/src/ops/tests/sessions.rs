//! Sessions: each change once, opens that outlive names and restarts, and ends.

use std::{sync::Arc, time::Duration};

use base::{Cred, FsError, Seq, limits::REQUESTS_IN_FLIGHT_MAX};
use tokio::io::AsyncWriteExt as _;
use wire::{
    Answer, Claim, ClaimedFile, FileRef, Getattr, Lookup, Mkdir, NodeRef, Opened, Rename,
    RenameMode, Reply, Request, Retry, Rmdir, Statfs, Token, Unlink, frame,
};

use super::{
    client::{Client, name, user},
    world::{Setup, World, in_world, in_world_of},
};
use crate::{Durability, Offload};

fn mkdir(client: &Client, text: &str) -> Request {
    Request::Mkdir(Mkdir { dir: client.root, name: name(text), mode: 0o755 })
}

#[test]
fn a_request_that_is_asked_again_gets_its_answer_and_is_executed_once() {
    in_world(async |world| {
        let mut client = world.client().await;
        let request = mkdir(&client, "d");
        let first = client.ask_as(Seq(1), Seq(1), request.clone()).await;
        assert!(matches!(first, Answer::Done(Reply::Entry(_))));
        assert_eq!(client.ask_as(Seq(1), Seq(1), request.clone()).await, first);
        client.resume(world).await;
        assert_eq!(client.ask_as(Seq(1), Seq(1), request.clone()).await, first);
        assert_eq!(world.counter("duplicates_suppressed"), 2);

        world.restart().await;
        client.resume(world).await;
        assert_eq!(client.ask_as(Seq(1), Seq(1), request).await, first);
        assert_eq!(world.counter("duplicates_suppressed"), 1);
        assert_eq!(client.names(&client.root.clone()).await, ["d"]);
    });
}

#[test]
fn an_answer_is_stored_with_its_effect_or_not_at_all() {
    in_world(async |world| {
        let mut client = world.client().await;
        world.server.sync().unwrap();
        let request = mkdir(&client, "d");
        client.ask_as(Seq(1), Seq(1), request.clone()).await;
        world.power_cut(0).await;
        client.resume(world).await;
        assert!(client.names(&client.root.clone()).await.is_empty());
        // Neither effect nor answer is left, so the request is executed when it is asked again.
        assert!(matches!(client.ask_as(Seq(1), Seq(1), request).await, Answer::Done(_)));
        assert_eq!(world.counter("duplicates_suppressed"), 0);
        assert_eq!(client.names(&client.root.clone()).await, ["d"]);
    });
}

#[test]
fn an_echo_of_what_failed_does_not_succeed_later() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        client.mkdir(&root, "d").await.unwrap();
        let request = mkdir(&client, "d");
        let failed = Answer::Failed(FsError::Exists);
        assert_eq!(client.ask_as(Seq(2), Seq(2), request.clone()).await, failed);
        let rmdir = Request::Rmdir(Rmdir { dir: root, name: name("d") });
        assert!(matches!(client.ask_as(Seq(3), Seq(2), rmdir).await, Answer::Done(_)));
        // The client has not said yet that it has the answer to 2.
        assert_eq!(client.ask_as(Seq(2), Seq(2), request.clone()).await, failed);
        // The client has the answer now: a request that still comes is an echo from an older
        // connection.
        client.ask_as(Seq(4), Seq(4), mkdir(&client, "e")).await;
        let echo = client.ask_as(Seq(2), Seq(2), request).await;
        assert_eq!(echo, Answer::Retry(Retry::Busy));
        assert_eq!(client.names(&root).await, ["e"]);
    });
}

#[test]
fn a_session_keeps_to_its_window_of_numbers() {
    in_world(async |world| {
        let mut client = world.client().await;
        let beyond = Seq(REQUESTS_IN_FLIGHT_MAX + 1);
        let refused = client.ask_as(beyond, Seq(1), mkdir(&client, "d")).await;
        assert!(matches!(refused, Answer::Refused(_)));
        let refused = client.ask_as(Seq(0), Seq(1), mkdir(&client, "d")).await;
        assert!(matches!(refused, Answer::Refused(_)));
        let last = client.ask_as(Seq(beyond.0 - 1), Seq(1), mkdir(&client, "d")).await;
        assert!(matches!(last, Answer::Done(_)));
        let first = client.ask_as(Seq(1), Seq(1), mkdir(&client, "e")).await;
        assert!(matches!(first, Answer::Done(_)));
        // After a restart both are still known.
        world.restart().await;
        client.resume(world).await;
        assert_eq!(client.ask_as(Seq(1), Seq(1), mkdir(&client, "e")).await, first);
        assert_eq!(client.ask_as(Seq(beyond.0 - 1), Seq(1), mkdir(&client, "d")).await, last);
    });
}

#[test]
fn the_last_number_of_all_is_a_number_too() {
    in_world(async |world| {
        let mut client = world.client().await;
        let max = Seq(u64::MAX);
        let first = client.ask_as(max, max, mkdir(&client, "d")).await;
        assert!(matches!(first, Answer::Done(_)));
        world.restart().await;
        client.resume(world).await;
        assert_eq!(client.ask_as(max, max, mkdir(&client, "d")).await, first);
    });
}

#[test]
fn a_repeated_request_is_answered_whatever_has_become_of_what_it_stood_on() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        client.goes_by(&[&root, &dir]);
        let request = Request::Mkdir(Mkdir { dir, name: name("sub"), mode: 0 });
        let first = client.ask_as(Seq(2), Seq(2), request.clone()).await;
        let mut other = world.client().await;
        other.rename((&root, "d"), (&root, "e")).await.unwrap();
        assert_eq!(client.ask_as(Seq(2), Seq(2), request.clone()).await, first);
        let new = client.ask_as(Seq(3), Seq(3), request).await;
        let Answer::Retry(Retry::StaleCache(events)) = new else { panic!("{new:?}") };
        assert_eq!((events.reset, events.dirs.as_slice()), (false, &[dir.id][..]));
        client.stands_on.version = events.version;
        client.seq = Seq(3);
        client.mkdir(&dir, "other").await.unwrap();
        world.restart().await;
        client.resume(world).await;
        let answer = client.ask(mkdir(&client, "x")).await;
        let Answer::Retry(Retry::StaleCache(events)) = answer else { panic!("{answer:?}") };
        assert!(events.reset, "no version of an earlier run is current");
    });
}

#[test]
fn a_request_is_stale_only_by_what_happened_on_its_way() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let below = client.mkdir(&dir, "below").await.unwrap();
        client.mkdir(&root, "elsewhere").await.unwrap();
        let file = client.create(&below, "f").await.unwrap();
        client.goes_by(&[&root, &dir, &below]);
        let mut other = world.client().await;
        let rename = |from: &str, to: &str| {
            let (from_name, to_name, mode) = (name(from), name(to), RenameMode::Replace);
            let rename = Rename { from_dir: below, from_name, to_dir: below, to_name, mode };
            Request::Rename(rename)
        };
        other.rename((&root, "elsewhere"), (&root, "moved")).await.unwrap();
        for request in [
            Request::Lookup(Lookup { dir: below, name: name("f") }),
            Request::Getattr(Getattr { node: NodeRef::File(file.clone()) }),
            rename("f", "g"),
            mkdir(&client, "made"),
        ] {
            let known = client.stands_on.clone();
            client.stands_on.way.clear();
            let answer = client.ask(request.clone()).await;
            assert!(matches!(answer, Answer::Retry(Retry::StaleCache(_))), "{answer:?}");
            client.stands_on = known;
            let answer = client.ask(request).await;
            assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
        }
        // A move of the directory above moves the one below along.
        other.rename((&root, "d"), (&root, "e")).await.unwrap();
        let answer = client.ask(rename("g", "h")).await;
        let Answer::Retry(Retry::StaleCache(events)) = answer else { panic!("{answer:?}") };
        assert_eq!(events.dirs.last(), Some(&dir.id));
    });
}

#[test]
fn clients_are_told_of_directories_whose_permissions_change() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        client.lookup(&root, "d").await.unwrap();
        let before = client.latest.cache_version;
        client.chmod(&dir, 0o700).await.unwrap();
        client.lookup(&root, "d").await.unwrap();
        assert_eq!(client.latest.cache_version, before + 1);
        // Neither times nor the mode of a file are cached for walks.
        let file = client.create(&dir, "f").await.unwrap();
        client.chmod(&file, 0).await.unwrap();
        client.chmod(&dir, 0o700).await.unwrap();
        client.lookup(&root, "d").await.unwrap();
        assert_eq!(client.latest.cache_version, before + 1);
    });
}

#[test]
fn a_file_that_is_open_lives_on_until_it_is_closed() {
    in_world(async |world| {
        let (mut one, mut two) = (world.client().await, world.client().await);
        let root = one.root;
        let file = one.create(&root, "f").await.unwrap();
        one.write_blocks(&file, 0, &[7; 9000]).await.unwrap();
        one.open_file(&file).await.unwrap();
        two.open_file(&file).await.unwrap();
        assert_eq!(two.unlink(&root, "f").await.unwrap().nlink, 0);
        one.release(file.ino, one.opened()).await;
        world.settle().await;
        assert_eq!(two.read(&file).await.unwrap(), [7; 9000]);
        two.write_blocks(&file, 9000, &[8; 9000]).await.unwrap();
        assert_eq!(two.stat(&file).await.unwrap().size, 18000);
        assert_eq!(world.counter("inodes_reclaimed"), 0);
        two.release(file.ino, two.opened()).await;
        world.settle().await;
        assert_eq!(two.stat(&file).await, Err(FsError::Stale));
        assert_eq!(world.counter("blocks_deleted"), 2);
    });
}

#[test]
fn a_release_older_than_the_latest_open_does_nothing() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.open_file(&file).await.unwrap();
        let first = client.opened();
        client.open_file(&file).await.unwrap();
        client.unlink(&root, "f").await.unwrap();
        client.release(file.ino, first).await;
        world.settle().await;
        client.write(&file, 0, b"still").await.unwrap();
        client.release(file.ino, client.opened()).await;
        world.settle().await;
        assert_eq!(client.stat(&file).await, Err(FsError::Stale));
    });
}

#[test]
fn the_end_of_a_session_closes_its_files_and_forgets_its_answers() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.open_file(&file).await.unwrap();
        client.unlink(&root, "f").await.unwrap();
        let before = world.server.status().store_records;
        client.bye().await;
        assert_eq!(client.ask(Request::Ping).await, Answer::Retry(Retry::NoSession));
        world.settle().await;
        assert_eq!(world.counter("inodes_reclaimed"), 1);
        // The session, its answers in one record, the orphan and its note are gone.
        assert_eq!(world.server.status().store_records, before - 4);
        assert!(!client.resume_or_start(world).await);
    });
}

#[test]
fn a_silent_session_expires_and_one_that_pings_does_not() {
    in_world(async |world| {
        let (mut quiet, mut alive) = (world.client().await, world.client().await);
        let root = quiet.root;
        let file = quiet.create(&root, "f").await.unwrap();
        quiet.open_file(&file).await.unwrap();
        alive.unlink(&root, "f").await.unwrap();
        for _ in 0..10 {
            world.wait(Duration::from_secs(10)).await;
            alive.get(Request::Ping).await.unwrap();
        }
        assert_eq!(world.counter("sessions_expired"), 1);
        assert_eq!(world.counter("inodes_reclaimed"), 1);
        assert_eq!(quiet.ask(Request::Ping).await, Answer::Retry(Retry::NoSession));
        assert!(!quiet.resume_or_start(world).await);
    });
}

async fn claim(client: &mut Client, opened: &[(&FileRef, u64, &Opened)], last: bool) -> Answer {
    let claimed = |(file, number, opened): &(&FileRef, u64, &Opened)| ClaimedFile {
        file: (*file).clone(),
        number: *number,
        proof: opened.proof,
    };
    let files = opened.iter().map(claimed).collect();
    client.ask(Request::Claim(Claim { files, last })).await
}

#[test]
fn orphans_wait_for_claims_after_a_restart_and_stay_when_claimed() {
    in_world(async |world| {
        let (mut one, mut two) = (world.client().await, world.client().await);
        let root = one.root;
        let kept = one.create(&root, "kept").await.unwrap();
        let dropped = one.create(&root, "dropped").await.unwrap();
        let opened = one.open_file(&kept).await.unwrap();
        let number = one.opened();
        one.open_file(&dropped).await.unwrap();
        one.unlink(&root, "kept").await.unwrap();
        one.unlink(&root, "dropped").await.unwrap();
        world.restart().await;

        one.resume(world).await;
        world.settle().await;
        // In the grace period any file may be open: a file that is removed now is kept as well.
        let late = one.create(&root, "late").await.unwrap();
        one.unlink(&root, "late").await.unwrap();
        world.settle().await;
        assert_eq!(world.counter("inodes_reclaimed"), 0);
        let done = Answer::Done(Reply::Nothing);
        assert_eq!(claim(&mut one, &[(&kept, number, &opened)], true).await, done);
        world.settle().await;
        assert_eq!(world.counter("inodes_reclaimed"), 0, "the other session may still claim");
        two.resume(world).await;
        assert_eq!(claim(&mut two, &[], true).await, done);
        world.settle().await;
        assert_eq!(world.counter("inodes_reclaimed"), 2);
        one.write(&kept, 0, b"kept").await.unwrap();
        assert_eq!(one.read(&kept).await.unwrap(), b"kept");
        assert_eq!(one.stat(&late).await, Err(FsError::Stale));
        one.release(kept.ino, number).await;
        world.settle().await;
        assert_eq!(world.counter("inodes_reclaimed"), 3);
    });
}

#[test]
fn sessions_that_do_not_come_back_hold_up_orphans_only_for_their_lease() {
    in_world(async |world| {
        let mut gone = world.client().await;
        let root = gone.root;
        let file = gone.create(&root, "f").await.unwrap();
        gone.open_file(&file).await.unwrap();
        gone.unlink(&root, "f").await.unwrap();
        world.restart().await;
        world.wait(Duration::from_secs(50)).await;
        assert_eq!(world.counter("inodes_reclaimed"), 0);
        world.wait(Duration::from_secs(50)).await;
        assert_eq!(world.counter("inodes_reclaimed"), 1);
    });
}

#[test]
fn a_server_that_was_stopped_does_not_hold_it_against_its_clients() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.open_file(&file).await.unwrap();
        client.unlink(&root, "f").await.unwrap();
        world.wait(Duration::from_secs(20)).await;
        tokio::time::advance(Duration::from_secs(600)).await;
        client.resume(world).await;
        assert!(client.stat(&file).await.is_ok());
        world.wait(Duration::from_secs(100)).await;
        assert!(!client.resume_or_start(world).await, "who is silent is ended as ever");
    });
}

#[test]
fn an_answer_that_is_too_long_is_an_error_and_nothing_worse() {
    in_world(async |world| {
        let mut client = world.client().await;
        let long = "x".repeat(1024);
        for _ in 0..base::limits::FRAME_BYTES_MAX / long.len() {
            let hello = wire::Hello {
                token: World::sign(&Token::administrator()),
                client: long.clone(),
                resume: None,
                kernel_checks: false,
            };
            let answer = client.ask(Request::Hello(hello)).await;
            assert!(matches!(answer, Answer::Done(Reply::Welcome(_))));
        }
        assert_eq!(client.ask(Request::Status).await, Answer::Failed(FsError::Io));
        client.get(Request::Ping).await.unwrap();
    });
}

#[test]
fn only_what_was_opened_can_be_claimed() {
    in_world(async |world| {
        let (mut one, mut two) = (world.client().await, world.client().await);
        let root = one.root;
        let file = one.create(&root, "f").await.unwrap();
        let other = one.create(&root, "g").await.unwrap();
        let opened = one.open_file(&file).await.unwrap();
        let denied = Answer::Failed(FsError::Denied);
        assert_eq!(claim(&mut one, &[(&other, 1, &opened)], false).await, denied);
        assert_eq!(claim(&mut two, &[(&file, 1, &opened)], false).await, denied);
        for bit in 0..64 {
            let forged = Opened { proof: opened.proof ^ 1 << bit, ..opened.clone() };
            assert_eq!(claim(&mut one, &[(&file, 1, &forged)], false).await, denied);
        }
        assert_eq!(
            claim(&mut one, &[(&file, 1, &opened)], false).await,
            Answer::Done(Reply::Nothing)
        );
    });
}

#[test]
fn what_concerns_only_the_session_needs_neither_user_nor_map() {
    in_world(async |world| {
        let root = world.client().await.root;
        let token = Token { uid: Some(7), gids: vec![7], ..Token::administrator() };
        let mut client = world.client_with(&token).await;
        assert_eq!(client.cred, Cred::ROOT);
        let done = Answer::Done(Reply::Nothing);
        assert_eq!(client.ask(Request::Ping).await, done);
        assert_eq!(client.ask(Request::Sync).await, done);
        assert_eq!(claim(&mut client, &[], true).await, done);
        let Answer::Done(Reply::Statfs(statfs)) = client.ask(Request::Statfs).await else {
            panic!()
        };
        assert!(matches!(statfs, Statfs { bytes, bytes_free, .. } if bytes_free < bytes));
        let refused = client.ask(Request::Lookup(Lookup { dir: root, name: name("x") })).await;
        assert_eq!(refused, Answer::Failed(FsError::NotPermitted));
        client.cred = user(7);
        let root = client.root;
        assert_eq!(client.lookup(&root, "x").await, Err(FsError::NotFound));
    });
}

#[test]
fn a_malformed_frame_ends_its_connection_and_nothing_else() {
    in_world(async |world| {
        let (mut good, mut bad) = (world.client().await, world.client().await);
        let mut junk = Vec::new();
        frame::put_frame(&mut junk, |out| out.extend_from_slice(&[0xff; 40]));
        bad.send_bytes(&junk).await;
        assert_eq!(bad.try_receive().await, None);
        bad.resume(world).await;
        bad.send_bytes(&u32::MAX.to_le_bytes()).await;
        assert_eq!(bad.try_receive().await, None);
        let root = good.root;
        good.mkdir(&root, "d").await.unwrap();

        let mut http = world.connect();
        http.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut http, &mut answer).await.unwrap();
        assert!(answer.is_empty());
        good.mkdir(&root, "e").await.unwrap();
    });
}

#[test]
fn who_does_not_introduce_itself_is_not_waited_for() {
    in_world(async |world| {
        let mut client = world.client().await;
        let mut silent = world.connect();
        silent.write_all(&frame::opening()).await.unwrap();
        // A connection that has introduced itself may be silent for longer.
        world.wait(Duration::from_secs(12)).await;
        let mut answer = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut silent, &mut answer).await.unwrap();
        assert!(answer.is_empty());
        client.get(Request::Ping).await.unwrap();
    });
}

#[test]
fn without_a_valid_token_nothing_is_served() {
    in_world(async |world| {
        let expires = Some(base::Time { sec: 1_000_010, nsec: 0 });
        let token = Token { expires, ..Token::administrator() };
        let mut client = world.client_with(&token).await;
        client.get(Request::Ping).await.unwrap();
        for _ in 0..10 {
            world.tick();
        }
        assert!(matches!(client.ask(Request::Ping).await, Answer::Refused(_)));
        assert!(Client::open(world, &token, true).await.is_err());
        let nowhere = Token { path: "/no/such".into(), ..Token::administrator() };
        assert!(Client::open(world, &nowhere, true).await.is_err());
    });
}

#[test]
fn nothing_is_answered_that_could_not_be_written() {
    in_world(async |world| {
        let mut client = world.client().await;
        world.engine.break_down();
        client.send(Seq(1), Seq(1), &mkdir(&client, "d")).await;
        assert_eq!(client.try_receive().await, None);
        assert!(client.resume_is_halted(world).await);
        world.engine.repair();
        world.restart().await;
        client.resume(world).await;
        assert!(matches!(
            client.ask_as(Seq(1), Seq(1), mkdir(&client, "d")).await,
            Answer::Done(_)
        ));
    });
}

#[test]
fn a_server_that_halted_does_not_keep_its_core_busy() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.open_file(&file).await.unwrap();
        client.truncate(&file, 5000).await.unwrap();
        client.unlink(&root, "f").await.unwrap();
        world.engine.break_down();
        // The contents are to be reclaimed now, and cannot be. Time goes on, which shows that all
        // tasks wait.
        client.release(file.ino, client.opened()).await;
        world.settle().await;
        assert!(client.resume_is_halted(world).await);
        world.engine.repair();
        world.restart().await;
        client.resume(world).await;
        client.claim_nothing().await;
        world.settle().await;
    });
}

#[test]
fn strict_answers_are_stable() {
    let setup = Setup { durability: Durability::Strict, ..Setup::default() };
    in_world_of(setup, async |world| {
        let mut client = world.client().await;
        let root = client.root;
        client.mkdir(&root, "d").await.unwrap();
        assert_eq!(world.engine.memory.unsynced(), 0);
        world.power_cut(0).await;
        client.resume(world).await;
        client.unlink(&root, "d").await.unwrap_err();
        client.rmdir(&root, "d").await.unwrap();
        world.power_cut(0).await;
        client.resume(world).await;
        assert!(client.names(&root).await.is_empty());
    });
}

#[test]
fn strict_looks_tell_only_what_is_stable() {
    let slow = Offload::Timed(Arc::new(|| (Duration::from_millis(50), Duration::ZERO)));
    let setup = Setup { durability: Durability::Strict, offload: slow, ..Setup::default() };
    in_world_of(setup, async |world| {
        let (mut makes, mut looks) = (world.client().await, world.client().await);
        let root = makes.root;
        let look = async {
            world.wait(Duration::from_millis(10)).await;
            (looks.names(&root).await, world.engine.memory.unsynced())
        };
        let (made, seen) = futures::join!(makes.mkdir(&root, "d"), look);
        made.unwrap();
        assert_eq!(seen, (vec!["d".to_owned()], 0));
    });
}

#[test]
fn what_was_answered_is_stable_after_a_sync_and_after_the_commit_interval() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        client.mkdir(&root, "a").await.unwrap();
        client.get(Request::Sync).await.unwrap();
        client.mkdir(&root, "b").await.unwrap();
        world.power_cut(0).await;
        client.resume(world).await;
        assert_eq!(client.names(&root).await, ["a"]);
        client.mkdir(&root, "c").await.unwrap();
        world.wait(Duration::from_millis(25)).await;
        world.power_cut(0).await;
        client.resume(world).await;
        assert_eq!(client.names(&root).await, ["a", "c"]);
    });
}

#[test]
fn no_inode_number_is_given_out_twice_after_a_power_cut() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        world.server.sync().unwrap();
        let lost = client.create(&root, "f").await.unwrap();
        world.power_cut(0).await;
        client.resume(world).await;
        let new = client.create(&root, "f").await.unwrap();
        assert!(new.ino > lost.ino);
    });
}

#[test]
fn a_crash_between_unlink_and_reclaim_loses_no_work() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.write_blocks(&file, 0, &[1; 5000]).await.unwrap();
        let unlink = Request::Unlink(Unlink { dir: root, name: name("f") });
        client.get(unlink).await.unwrap();
        world.restart().await;
        client.resume(world).await;
        claim(&mut client, &[], true).await;
        world.settle().await;
        assert_eq!(world.counter("blocks_deleted"), 1);
        assert_eq!(blocks(world).await, 0);
    });
}

async fn blocks(world: &World) -> usize {
    use futures::StreamExt as _;
    world.blocks.list().count().await
}
