//! Front ends over pipes in memory: locks, losses, leaving, the note, and large files.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use base::{
    ByteRange, Clock, Cred, EntryName, FileKind, FsError, HashKey, LockKind, LockMode, Time,
};
use bytes::Bytes;
use client::{Error, FileLock, FileSystem as _, Handle, New};
use tokio::task::JoinHandle;
use wire::{DirRef, FileRef};

use super::{hello::JoinError, lead, message, secret::Secret, *};
use crate::{Calls, Memory, Region, Settings};

/// A clock that runs by a second with each look.
struct Seconds(AtomicI64);

impl Clock for Seconds {
    fn now(&self) -> Time {
        Time { sec: self.0.fetch_add(1, Ordering::Relaxed), nsec: 0 }
    }
}

fn region() -> Region {
    let clock = Arc::new(Seconds(AtomicI64::new(1_000_000)));
    let memory = Memory::new(Arc::clone(&clock) as Arc<dyn Clock>);
    let (settings, key) = (Settings::default(), HashKey::new(1, 2));
    Region::new(Arc::new(memory), Calls::Here, settings, clock, key).unwrap()
}

/// A front end of a lead, and its two ends as tasks.
fn join(lead: &Lead, region: &Region, name: &str) -> (Front, JoinHandle<()>, JoinHandle<()>) {
    let (here, there) = tokio::io::duplex(1 << 16);
    let joined = lead.join(name.to_owned()).expect("the region does not end");
    let (front, carry) = Front::over(there, region.root().1);
    (front, tokio::spawn(joined.serve(here)), tokio::spawn(carry))
}

/// The present, as certificates have it.
fn now() -> std::time::SystemTime {
    let now = client::SystemClock.now();
    std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(now.sec.unsigned_abs())
}

fn name(text: &str) -> EntryName {
    EntryName::new(text.as_bytes()).unwrap()
}

async fn create(front: &Front, text: &str) -> (FileRef, Handle) {
    let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
    let made = front.create(&Cred::ROOT, &DirRef::ROOT, &name(text), new, true, true).await;
    let made = made.unwrap();
    let file = FileRef { dir: DirRef::ROOT, name: name(text), ino: made.entry.attr.ino };
    (file, made.handle.expect("it was asked for"))
}

fn write_lock() -> FileLock {
    let range = ByteRange { first: 0, last: 9 };
    FileLock { kind: LockKind::Range, mode: LockMode::Exclusive, range, pid: 7 }
}

#[tokio::test]
async fn what_one_machine_has_locked_another_one_waits_for() {
    let region = region();
    let lead = Lead::new(region.clone());
    let ((one, ..), (other, ..)) = (join(&lead, &region, "one"), join(&lead, &region, "other"));
    let (file, first) = create(&one, "f").await;
    one.write(first, 0, Bytes::from_static(b"contents"), false).await.unwrap();
    let second = other.open(&Cred::ROOT, &file, None).await.unwrap();
    assert_eq!(other.read(second, 0, 100).await.unwrap(), "contents");
    assert_eq!(other.opened_attr(second).unwrap().size, 8);
    // Owners are numbers of each machine: 5 here is not 5 there.
    one.lock(first, 5, write_lock()).await.unwrap();
    assert_eq!(other.lock(second, 5, write_lock()).await, Err(FsError::TryAgain.into()));
    let found = other.find_lock(second, 5, write_lock()).await.unwrap().unwrap();
    assert_eq!(found.pid, 0, "a number of another machine's process means nothing here");
    let interrupted = other.lock_wait(second, 5, write_lock(), async {}).await;
    assert_eq!(interrupted, Err(FsError::Interrupted.into()));
    let waits = other.lock_wait(second, 5, write_lock(), std::future::pending());
    let unlocks = async {
        tokio::task::yield_now().await;
        one.unlock(first, 5, LockKind::Range, ByteRange { first: 0, last: 9 }).await.unwrap();
    };
    assert_eq!(futures::future::join(waits, unlocks).await.0, Ok(()));
}

#[tokio::test]
async fn a_machine_that_is_lost_keeps_nothing_open_or_locked() {
    let region = region();
    let lead = Lead::new(region.clone());
    let (one, served, carried) = join(&lead, &region, "one");
    let (other, ..) = join(&lead, &region, "other");
    let (file, handle) = create(&one, "f").await;
    one.lock(handle, 5, write_lock()).await.unwrap();
    // Waiting for a lock keeps nothing, either.
    let (_, locked) = create(&other, "g").await;
    other.lock(locked, 1, write_lock()).await.unwrap();
    let waits = Cell::new(false);
    let waiting = async {
        let node = one.lookup(&Cred::ROOT, &DirRef::ROOT, &name("g")).await.unwrap();
        let file = FileRef { dir: DirRef::ROOT, name: name("g"), ino: node.attr.ino };
        let there = one.open(&Cred::ROOT, &file, None).await.unwrap();
        waits.set(true);
        let lost = one.lock_wait(there, 5, write_lock(), std::future::pending()).await;
        assert_eq!(lost, Err(Error::SessionLost));
    };
    let ends = async {
        while !waits.get() {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        carried.abort();
        one.close();
    };
    futures::future::join(waiting, ends).await;
    served.await.unwrap();
    assert_eq!(lead.machines(), ["other"]);
    assert_eq!(one.getattr(&Cred::ROOT, &wire::NodeRef::Dir(DirRef::ROOT)).await, {
        Err(Error::SessionLost)
    });
    let handle = other.open(&Cred::ROOT, &file, None).await.unwrap();
    other.lock(handle, 5, write_lock()).await.unwrap();
    region.check();
    assert_eq!(region.open_handles(), 2, "those of the machine that is there");
}

#[tokio::test]
async fn a_machine_uses_only_files_that_it_has_opened() {
    let region = region();
    let lead = Lead::new(region.clone());
    let ((one, ..), (other, ..)) = (join(&lead, &region, "one"), join(&lead, &region, "other"));
    let (_, handle) = create(&one, "f").await;
    let refused = Err(FsError::BadHandle.into());
    assert_eq!(other.read(handle, 0, 1).await.map(drop), refused);
    assert_eq!(other.write(handle, 0, Bytes::from_static(b"x"), false).await, refused);
    assert_eq!(other.release(handle).await, refused);
    assert_eq!(one.release(handle).await, Ok(()));
}

#[tokio::test]
async fn programs_do_not_see_the_note_by_which_machines_find_each_other() {
    let region = region();
    let lead = Lead::new(region.clone());
    let (front, ..) = join(&lead, &region, "one");
    let (cred, root, note) = (&Cred::ROOT, &DirRef::ROOT, &name(".pando-region"));
    assert_eq!(front.lookup(cred, root, note).await.err(), Some(FsError::NotFound.into()));
    assert_eq!(front.unlink(cred, root, note).await.err(), Some(FsError::NotFound.into()));
    assert_eq!(
        front.mkdir(cred, root, note, 0o755).await.err(),
        Some(FsError::NotPermitted.into())
    );
    let dir = front.mkdir(cred, root, &name("d"), 0o755).await.unwrap().dir.unwrap();
    let d = name("d");
    let to_note = front.rename(cred, (root, &d), (root, note), wire::RenameMode::Replace);
    assert_eq!(to_note.await.err(), Some(FsError::NotPermitted.into()));
    front.mkdir(cred, &dir, note, 0o755).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn machines_leave_when_they_are_asked_to_and_say_why_they_do_not() {
    let region = region();
    let lead = Lead::new(region.clone());
    let ((one, ..), (other, ..)) = (join(&lead, &region, "one"), join(&lead, &region, "other"));
    let (within, since) = (Duration::from_secs(60), tokio::time::Instant::now());
    let answers = async |front: &Front, expected: Wish, stays: Option<&str>| {
        assert_eq!(front.wish().await, expected);
        front.answer(expected, stays.map(str::to_owned));
    };
    let busy = Err(vec!["other: a program runs".to_owned()]);
    let both = futures::future::join(
        answers(&one, Wish::Ask, None),
        answers(&other, Wish::Ask, Some("a program runs")),
    );
    assert_eq!(futures::future::join(lead.ask(Wish::Ask, within), both).await.0, busy);
    assert_eq!(lead.machines().len(), 2, "a question has nobody leave");
    let leaves = async {
        assert_eq!(one.wish().await, Wish::Leave);
        one.close();
    };
    let both = futures::future::join(leaves, answers(&other, Wish::Leave, Some("a program runs")));
    assert_eq!(futures::future::join(lead.ask(Wish::Leave, within), both).await.0, busy);
    // An answer to an older wish is no answer to a newer one.
    let goes = async {
        assert_eq!(other.wish().await, Wish::Must);
        other.answer(Wish::Leave, Some("late".to_owned()));
        assert_eq!(other.wish().await, Wish::Must);
        other.close();
    };
    assert_eq!(futures::join!(lead.ask(Wish::Must, within), goes).0, Ok(()));
    assert_eq!(lead.machines(), Vec::<String>::new());
    assert_eq!(since.elapsed(), Duration::ZERO, "nobody was waited for who had answered");
    let (_silent, ..) = join(&lead, &region, "silent");
    let silent = Err(vec!["silent: it does not answer".to_owned()]);
    assert_eq!(lead.ask(Wish::Leave, within).await, silent);
    assert_eq!(since.elapsed(), within);
    lead.ends(true);
    assert!(lead.join("late".to_owned()).is_none());
}

#[tokio::test]
async fn a_machine_that_takes_no_answers_holds_up_nobody() {
    let region = region();
    let lead = Lead::new(region.clone());
    let (other, ..) = join(&lead, &region, "other");
    let (_, handle) = create(&other, "f").await;
    other.write(handle, 0, Bytes::from(vec![7; 4096]), false).await.unwrap();
    let (here, mut there) = tokio::io::duplex(1 << 16);
    let joined = lead.join("slow".to_owned()).unwrap();
    let outbox = joined.outbox();
    let served = tokio::spawn(joined.serve(here));
    // Someone opens the file, and asks for its contents again and again without reading any.
    let mut out = Vec::new();
    let mut ask = |number: u64, call: &message::Call| {
        wire::frame::put_frame(&mut out, |out| {
            base::Encode::encode(&number, out);
            base::Encode::encode(call, out);
        });
    };
    let file = other.lookup(&Cred::ROOT, &DirRef::ROOT, &name("f")).await.unwrap();
    let file = FileRef { dir: DirRef::ROOT, name: name("f"), ino: file.attr.ino };
    ask(1, &message::Call::Open(file));
    for number in 2..20_000 {
        let read = message::Read { handle: handle.0 + 1, offset: 0, len: 4096 };
        ask(number, &message::Call::Read(read));
    }
    let asks = tokio::spawn(async move {
        let sent = tokio::io::AsyncWriteExt::write_all(&mut there, &out).await;
        (sent.is_ok(), there)
    });
    while !outbox.is_full() {
        tokio::task::yield_now().await;
    }
    // Others are answered, and what waits for this one is bounded.
    assert_eq!(other.read(handle, 0, 4).await.unwrap(), &[7, 7, 7, 7][..]);
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert!(outbox.bytes() < 2 * lead::UNTAKEN_MAX, "{}", outbox.bytes());
    assert!(!asks.is_finished(), "its calls are not even read");
    asks.abort();
    drop(asks.await);
    served.await.unwrap();
    assert_eq!(region.open_handles(), 1);
}

#[tokio::test]
async fn a_machine_without_the_secret_is_no_part_of_the_region() {
    let (secret, wrong) = (Secret::new([7; 32]), Secret::new([8; 32]));
    let attr = region().root().1;
    let meet = async |theirs: &Secret, answer: Result<base::Attr, String>| {
        let acceptor = tls::Acceptor::new(secret.identity(now()).unwrap()).unwrap();
        let (here, there) = tokio::io::duplex(1 << 16);
        let accepting = accept(here, &acceptor, &secret, || answer);
        let reaching = reach(there, theirs, "laptop");
        let (accepted, reached) = futures::future::join(accepting, reaching).await;
        (accepted.map(|(_, name)| name), reached.map(|(_, attr)| attr))
    };
    let (accepted, reached) = meet(&secret, Ok(attr)).await;
    assert_eq!((accepted.unwrap(), reached.unwrap()), ("laptop".to_owned(), attr));
    let (accepted, reached) = meet(&wrong, Ok(attr)).await;
    assert!(matches!(accepted, Err(JoinError::Tls(_))), "{:?}", accepted.err());
    assert!(matches!(reached, Err(JoinError::Tls(tls::Error::Stranger))), "{:?}", reached.err());
    let (accepted, reached) = meet(&secret, Err("the region ends".to_owned())).await;
    for refused in [accepted.map(drop), reached.map(drop)] {
        assert!(matches!(refused, Err(JoinError::Refused(why)) if why == "the region ends"));
    }
}

#[tokio::test]
async fn a_caller_that_knows_the_lead_only_by_its_certificate_is_not_let_in() {
    // A caller that has seen the authority's fingerprint, but not the secret, can connect and prove
    // nothing.
    let (secret, wrong) = (Secret::new([7; 32]), Secret::new([8; 32]));
    let acceptor = tls::Acceptor::new(secret.identity(now()).unwrap()).unwrap();
    let (here, there) = tokio::io::duplex(1 << 16);
    let accepting = accept(here, &acceptor, &wrong, || Err("never asked".to_owned()));
    let reaching = reach(there, &secret, "stranger");
    let (accepted, reached) = futures::future::join(accepting, reaching).await;
    assert!(matches!(accepted.map(drop), Err(JoinError::Secret)));
    assert!(matches!(reached.map(drop), Err(JoinError::Silent)));
}

#[test]
fn a_note_is_only_its_user_s_and_is_written_once() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::here().unwrap();
    let note = |lead: &str| {
        let (lead, machine) = (lead.to_owned(), machine.clone());
        Note { lead, machine, secret: Secret::new([7; 32]) }
    };
    assert_eq!(Note::read(folder.path()).unwrap(), None);
    let time = || std::fs::metadata(folder.path()).unwrap().modified().unwrap();
    let before = time();
    note("host:1").write(folder.path()).unwrap();
    assert_eq!(Note::read(folder.path()).unwrap(), Some(note("host:1")));
    assert!(matches!(note("host:2").write(folder.path()), Err(NoteError::There(_))));
    // Another region's note stays.
    note("host:2").remove(folder.path()).unwrap();
    assert_eq!(Note::read(folder.path()).unwrap(), Some(note("host:1")));
    let path = Note::path(folder.path());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(Note::read(folder.path()), Err(NoteError::Open(_))));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    note("host:1").remove(folder.path()).unwrap();
    assert_eq!(Note::read(folder.path()).unwrap(), None);
    assert_eq!(time(), before, "a region compares its directory with below");
    std::fs::write(&path, "{}").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(Note::read(folder.path()), Err(NoteError::Other { .. })));
    std::fs::remove_file(&path).unwrap();
    // A pipe that somebody else has put there holds nobody up.
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
    assert!(matches!(Note::read(folder.path()), Err(NoteError::Open(_))));
}

/// A region over a file system whose files all change at one moment, with a file that is large.
async fn large() -> (Region, Lead, FileRef, [Front; 2]) {
    struct Still;

    impl Clock for Still {
        fn now(&self) -> Time {
            Time { sec: 1_000_000, nsec: 0 }
        }
    }

    let memory = Memory::new(Arc::new(Still));
    let settings = Settings { inline_max: 16, ..Settings::default() };
    let clock = Arc::new(Seconds(AtomicI64::new(1_000_000)));
    let key = HashKey::new(1, 2);
    let calls = Calls::OnThreads;
    let region = Region::new(Arc::new(memory), calls, settings, clock, key).unwrap();
    let lead = Lead::new(region.clone());
    let fronts = ["one", "other"].map(|name| join(&lead, &region, name).0);
    let (file, handle) = create(&fronts[0], "f").await;
    fronts[0].write(handle, 0, Bytes::from(vec![1; 100]), false).await.unwrap();
    (region, lead, file, fronts)
}

#[tokio::test]
async fn a_large_file_that_is_written_again_has_another_time_however_fast_that_is() {
    let (_region, _lead, file, [one, other]) = large().await;
    let node = wire::NodeRef::File(file.clone());
    let handle = one.open(&Cred::ROOT, &file, None).await.unwrap();
    let mut last = other.getattr(&Cred::ROOT, &node).await.unwrap().mtime;
    for byte in 2..10 {
        one.write(handle, 0, Bytes::from(vec![byte; 100]), false).await.unwrap();
        let now = other.getattr(&Cred::ROOT, &node).await.unwrap().mtime;
        assert!(now > last, "a kernel that has the old contents takes them for the new ones");
        last = now;
    }
    // A time that was asked for is that time.
    let time = Time { sec: 5, nsec: 0 };
    let set = base::SetAttr { mtime: Some(base::SetTime::At(time)), ..Default::default() };
    assert_eq!(other.setattr(&Cred::ROOT, &node, set).await.unwrap().mtime, time);
}

#[tokio::test]
async fn attributes_of_a_large_file_that_two_machines_set_at_once_are_both_set() {
    let (_region, _lead, file, [one, other]) = large().await;
    let node = wire::NodeRef::File(file);
    for round in 1..200 {
        let mode = base::SetAttr { mode: Some(0o400 + round), ..Default::default() };
        let owner = base::SetAttr { uid: Some(round), ..Default::default() };
        let (set, given) = futures::future::join(
            one.setattr(&Cred::ROOT, &node, mode),
            other.setattr(&Cred::ROOT, &node, owner),
        )
        .await;
        set.unwrap();
        given.unwrap();
        let attr = one.getattr(&Cred::ROOT, &node).await.unwrap();
        assert_eq!((attr.mode & 0o777, attr.uid), (0o400 + round, round));
    }
}

#[test]
fn a_process_is_gone_where_its_machine_is_this_one_or_has_started_anew() {
    let machine = |name: &str, boot: &str| Machine { name: name.to_owned(), boot: boot.to_owned() };
    let here = machine("n1 17", "b2");
    assert!(machine("n1 17", "b1").is_gone(&here) && machine("", "b2").is_gone(&here));
    assert!(!machine("n1 18", "b1").is_gone(&here) && !machine("", "b1").is_gone(&here));
    assert!(!machine("", "b1").is_gone(&machine("", "b2")), "copies of one that has no name");
}
