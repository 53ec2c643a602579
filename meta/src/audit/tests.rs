//! Lines, their way through the queue, and which requests have some.

use std::{sync::Arc, time::Duration};

use base::{FsError, Seq, Time};
use wire::{Answer, FileRef, IdMapping, IdRange, Mkdir, Request, Squash, Token};

use super::*;
use crate::ops::tests::{
    client::{Client, name, user},
    world::{Setup, World, in_world_of},
};

fn escaped(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    Text(&mut out).bytes("name", bytes);
    String::from_utf8(out).unwrap()
}

#[test]
fn names_are_escaped_so_that_no_two_look_the_same() {
    assert_eq!(escaped(b"plain"), r#","name":"plain""#);
    assert_eq!(escaped("\u{e9}t\u{e9}".as_bytes()), ",\"name\":\"\u{e9}t\u{e9}\"");
    assert_eq!(escaped(b"a\"b\\c\nd\x01\x7f"), r#","name":"a\"b\\c\nd\u0001\u007f""#);
    assert_eq!(escaped(b"\xff\x00a"), r#","name_hex":"ff0061""#);
    assert_eq!(escaped(b"ff0061"), r#","name":"ff0061""#);
}

#[test]
fn numbers_modes_and_ids_are_as_people_write_them() {
    let mut out = Vec::new();
    let mut text = Text(&mut out);
    text.number("a", 0);
    text.number("b", u64::MAX);
    text.mode("mode", 0o104_755);
    text.id("id", 0xab);
    text.number_if("none", None::<u32>);
    text.flag_if("yes", true);
    text.flag_if("no", false);
    let told = String::from_utf8(out).unwrap();
    let wanted =
        r#","a":0,"b":18446744073709551615,"mode":"4755","id":"00000000000000ab","yes":true"#;
    assert_eq!(told, wanted);
}

#[test]
fn times_are_of_the_calendar() {
    let at = |sec, nsec| moment(Time { sec, nsec });
    assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000Z");
    assert_eq!(at(951_782_399, 999_999_999), "2000-02-28T23:59:59.999999Z");
    assert_eq!(at(951_782_400, 1000), "2000-02-29T00:00:00.000001Z");
    assert_eq!(at(1_735_689_599, 0), "2024-12-31T23:59:59.000000Z");
    assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000000Z");
    assert_eq!(at(-1, 0), "1969-12-31T23:59:59.000000Z");
}

fn some(text: &str) -> Lines {
    Lines { text: text.as_bytes().to_vec(), count: 1 }
}

#[test]
fn lines_of_a_core_are_taken_in_their_order_and_those_without_room_are_counted() {
    let queue = AuditQueue::new(3, AuditWhat::default(), 2);
    queue.push(0, &some("one\n"));
    queue.push(1, &some("of another core\n"));
    queue.push(0, &some("two\n"));
    let mut out = Vec::new();
    assert_eq!(queue.take(&mut out), Taken { lines: 3, lost: 0, is_last: false });
    assert_eq!(out, b"one\ntwo\nof another core\n");
    let large = "x".repeat(1 << 20) + "\n";
    (0..10).for_each(|_| queue.push(0, &some(&large)));
    queue.push(1, &some("a shelf of its own\n"));
    out.clear();
    assert_eq!(queue.take(&mut out), Taken { lines: 4, lost: 7, is_last: false });
    assert_eq!(queue.lost(), 7);
    queue.push(0, &some("last\n"));
    queue.end();
    out.clear();
    assert_eq!(queue.take(&mut out), Taken { lines: 1, lost: 0, is_last: true });
    assert_eq!(queue.take(&mut out), Taken { lines: 0, lost: 0, is_last: true });
    assert!(queue.pause(Duration::from_secs(60)));
}

/// A log that a test reads from the queue.
struct Log(Arc<AuditQueue>);

impl crate::Beside for Log {
    fn problem(&self) -> Option<String> {
        None
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

impl crate::Audit for Log {
    fn queue(&self) -> &Arc<AuditQueue> {
        &self.0
    }
}

/// Runs a test in a world with a log; `told` takes the lines that have come.
fn audited(what: AuditWhat, test: impl AsyncFnOnce(&mut World, &dyn Fn() -> Vec<String>)) {
    let queue = Arc::new(AuditQueue::new(0, what, 1));
    let audit: Arc<dyn crate::Audit> = Arc::new(Log(queue.clone()));
    let told = move || {
        // Something to take, so that the test does not wait for it.
        queue.push(0, &some("\n"));
        let mut out = Vec::new();
        queue.take(&mut out);
        let text = String::from_utf8(out).unwrap();
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    let setup = Setup { audit: Some(audit), ..Setup::default() };
    in_world_of(setup, async |world| test(world, &told).await);
}

fn count(lines: &[String], part: &str) -> usize {
    lines.iter().filter(|line| line.contains(part)).count()
}

#[test]
fn what_was_executed_has_one_line_and_its_repetitions_none() {
    audited(AuditWhat { failures: true, ..AuditWhat::default() }, async |world, told| {
        let mut client = world.client().await;
        let root = client.root;
        let mkdir = Request::Mkdir(Mkdir { dir: root, name: name("d"), mode: 0o755 });
        for _ in 0..3 {
            let answer = client.ask_as(Seq(1), Seq(1), mkdir.clone()).await;
            assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
        }
        world.restart().await;
        client.resume(world).await;
        client.ask_as(Seq(1), Seq(1), mkdir.clone()).await;
        let lines = told();
        assert_eq!(count(&lines, r#""op":"mkdir","result":"ok""#), 1, "{lines:#?}");
        assert_eq!(count(&lines, r#""op":"hello""#), 2);
        assert_eq!(count(&lines, r#""resumed":true"#), 1);
        for _ in 0..3 {
            let again = client.ask_as(Seq(2), Seq(2), mkdir.clone()).await;
            assert_eq!(again, Answer::Failed(FsError::Exists));
        }
        client.seq = Seq(2);
        let lines = told();
        assert_eq!(count(&lines, r#""op":"mkdir","result":"EEXIST""#), 1, "{lines:#?}");
        client.bye().await;
        assert_eq!(count(&told(), r#""op":"bye""#), 1);
    });
}

#[test]
fn a_line_has_the_path_that_its_directory_has_then() {
    audited(AuditWhat::default(), async |world, told| {
        let mut client = world.client().await;
        let root = client.root;
        let a = client.mkdir(&root, "a").await.unwrap();
        let b = client.mkdir(&a, "b").await.unwrap();
        client.create(&b, "one").await.unwrap();
        client.create(&b, "two").await.unwrap();
        client.rename((&root, "a"), (&root, "c")).await.unwrap();
        client.create(&b, "three").await.unwrap();
        let lines = told();
        let create = |dir: &str, name: &str| {
            let (dir, name) = (format!(r#""dir":"{dir}""#), format!(r#""name":"{name}""#));
            lines.iter().filter(|line| line.contains(&dir) && line.contains(&name)).count()
        };
        assert_eq!(create("/a/b", "one") + create("/a/b", "two"), 2, "{lines:#?}");
        assert_eq!((create("/c/b", "three"), create("/a", "b")), (1, 1), "{lines:#?}");
        assert_eq!(count(&lines, r#""name":"a","to_dir":"/","to_dir_ino":"#), 1);
    });
}

#[test]
fn what_is_refused_and_as_whom_it_was_asked_for_is_told() {
    audited(AuditWhat::default(), async |world, told| {
        let mut admin = world.client().await;
        let root = admin.root;
        admin.create_mode(&root, "theirs", 0o600).await.unwrap();
        let ids = IdMapping {
            squash: Squash::Nobody,
            anonymous_uid: 99,
            anonymous_gid: 98,
            uids: vec![IdRange { outside: 0, inside: 5000, count: 10 }],
            gids: Vec::new(),
        };
        let token = Token { ids: Some(ids), id: 0xbeef, ..Token::administrator() };
        let mut client = Client::open(world, &token, true).await.unwrap();
        client.cred = user(3);
        let inside = client.root;
        let ino = client.lookup(&inside, "theirs").await.unwrap().attr.ino;
        let file = FileRef { dir: inside, name: name("theirs"), ino };
        told();
        assert_eq!(client.open_for(&file, 4).await.err(), Some(FsError::Denied));
        assert_eq!(client.chmod(&file, 0o777).await, Err(FsError::NotPermitted));
        assert_eq!(client.get(Request::Status).await, Err(FsError::NotPermitted));
        let lines = told();
        let who =
            r#""token":"000000000000beef","token_path":"/","uid":5003,"gid":3,"client_uid":3"#;
        assert_eq!(count(&lines, who), 3, "{lines:#?}");
        for part in [r#""op":"open","result":"EACCES""#, r#""op":"setattr","result":"EPERM""#] {
            assert_eq!(count(&lines, part), 1, "{lines:#?}");
        }
        assert_eq!(count(&lines, r#""op":"status","result":"EPERM""#), 1);
    });
}

#[test]
fn strangers_do_not_fill_the_log() {
    audited(AuditWhat::default(), async |world, told| {
        for _ in 0..50 {
            let token = Token::administrator().sign(b"another key");
            assert!(Client::open_signed(world, token, true).await.is_err());
        }
        let lines = told();
        assert_eq!(count(&lines, r#""op":"hello","result":"refused""#), 1, "{lines:#?}");
        world.wait(Duration::from_secs(1)).await;
        assert!(Client::open_signed(world, "pando2.00".into(), true).await.is_err());
        let lines = told();
        assert_eq!(count(&lines, r#""reason":"malformed token","others":49"#), 1, "{lines:#?}");
    });
}

#[test]
fn a_session_that_the_server_ends_is_told_with_the_reason() {
    audited(AuditWhat::default(), async |world, told| {
        let expires = Some(world.tick().plus_ms(1000));
        let token = Token { expires, id: 0xfeed, ..Token::administrator() };
        let _client = world.client_with(&token).await;
        world.advance(2);
        world.wait(world.server.shared.options.lease).await;
        let lines = told();
        let ended = lines.iter().find(|line| line.contains(r#""op":"session_end""#));
        let ended = ended.expect("it has ended");
        assert!(ended.contains(r#""token":"000000000000feed""#), "{ended}");
        assert!(ended.contains(r#""reason":"token expired""#), "{ended}");
    });
}

#[test]
fn nothing_is_told_that_was_not_asked_for() {
    audited(AuditWhat::NOTHING, async |world, told| {
        let mut client = world.client().await;
        let root = client.root;
        client.mkdir(&root, "d").await.unwrap();
        client.cred = user(7);
        assert_eq!(client.chmod(&root, 0).await, Err(FsError::NotPermitted));
        client.bye().await;
        assert_eq!(told(), Vec::<String>::new());
    });
}
