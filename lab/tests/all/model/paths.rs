//! Operations by path: two programs with caches of their own see every answered change at once.
//!
//! The client resolves with its cache and in one request, the model name by name (`walker`).

mod walker;

use std::{cell::RefCell, collections::BTreeMap, fmt::Debug, iter};

use base::{Attr, EntryName, FileKind, Ino, Time};
use bytes::Bytes;
use client::{Client, Error, New, OpenOptions};
use lab::{clock::HandClock, ops::User};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, RngSeed, TestCaseError, TestRunner},
};
use wire::{RenameMode, Token};

use self::walker::Walker;
use super::{
    START, STEPS_MAX, model,
    real::USUAL,
    world::{Setup, in_world, settle},
};

/// One operation of a program.
#[derive(Debug, Clone)]
struct Step {
    client: usize,
    user: User,
    op: Op,
}

#[derive(Debug, Clone)]
enum Op {
    Stat(String),
    Lstat(String),
    List(String),
    Mkdir(String, u32),
    Mknod(String, u32),
    Rmdir(String),
    Unlink(String),
    Symlink(String, String),
    Link(String, String),
    Rename(String, String, RenameMode),
    Readlink(String),
    Chmod(String, u32),
    Chown(String, u32),
    Truncate(String, u64),
    Write(String, usize),
    Read(String),
}

/// The answer to an operation.
#[derive(Debug, PartialEq)]
enum Out {
    Done,
    Attr(Attr),
    Names(Vec<(EntryName, Option<FileKind>)>),
    Data(Bytes),
}

fn path() -> impl Strategy<Value = String> {
    let part = select(vec!["a", "a", "b", "b", "c", ".."]);
    (any::<bool>(), vec(part, 1..5)).prop_map(|(absolute, parts)| {
        let path = parts.join("/");
        if absolute { format!("/{path}") } else { path }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let mode = || select(vec![0o777, 0o755, 0o700, 0o711, 0o644, 0o1777, 0o2775, 0]);
    let rename = select(vec![
        RenameMode::Replace,
        RenameMode::Replace,
        RenameMode::Exchange,
        RenameMode::NoReplace,
    ]);
    prop_oneof![
        4 => path().prop_map(Op::Stat),
        1 => path().prop_map(Op::Lstat),
        2 => path().prop_map(Op::List),
        6 => (path(), mode()).prop_map(|(path, mode)| Op::Mkdir(path, mode)),
        2 => (path(), mode()).prop_map(|(path, mode)| Op::Mknod(path, mode)),
        2 => path().prop_map(Op::Rmdir),
        1 => path().prop_map(Op::Unlink),
        2 => (path(), path()).prop_map(|(target, path)| Op::Symlink(target, path)),
        1 => (path(), path()).prop_map(|(old, new)| Op::Link(old, new)),
        5 => (path(), path(), rename).prop_map(|(from, to, mode)| Op::Rename(from, to, mode)),
        1 => path().prop_map(Op::Readlink),
        3 => (path(), mode()).prop_map(|(path, mode)| Op::Chmod(path, mode)),
        1 => (path(), select(vec![0, 100, 200])).prop_map(|(path, uid)| Op::Chown(path, uid)),
        1 => (path(), 0..9000u64).prop_map(|(path, size)| Op::Truncate(path, size)),
        2 => (path(), 0..9000usize).prop_map(|(path, len)| Op::Write(path, len)),
        2 => path().prop_map(Op::Read),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let user = prop_oneof![3 => Just(User::Root), 2 => Just(User::Ann), 1 => Just(User::Bob)];
    let step = (0..2usize, user, op());
    vec(step.prop_map(|(client, user, op)| Step { client, user, op }), 1..STEPS_MAX)
}

/// Does an operation as a program does, through the native client.
async fn by_client(client: &Client, op: &Op) -> Result<Out, Error> {
    Ok(match op {
        Op::Stat(path) => Out::Attr(client.stat(path).await?),
        Op::Lstat(path) => Out::Attr(client.lstat(path).await?),
        Op::List(path) => {
            let found = client.read_dir(path).await?.all().await?;
            names(found.into_iter().map(|entry| (entry.name, entry.kind)))
        }
        Op::Mkdir(path, mode) => Out::Attr(client.mkdir(path, *mode).await?),
        Op::Mknod(path, mode) => Out::Attr(client.mknod(path, file(*mode)).await?),
        Op::Rmdir(path) => done(client.rmdir(path).await?),
        Op::Unlink(path) => done(client.unlink(path).await?),
        Op::Symlink(target, path) => done(client.symlink(target, path).await?),
        Op::Link(old, new) => done(client.link(old, new).await?),
        Op::Rename(from, to, mode) => done(client.rename_with(from, to, *mode).await?),
        Op::Readlink(path) => Out::Data(client.readlink(path).await?),
        Op::Chmod(path, mode) => Out::Attr(client.chmod(path, *mode).await?),
        Op::Chown(path, uid) => Out::Attr(client.chown(path, Some(*uid), None).await?),
        Op::Truncate(path, size) => Out::Attr(client.truncate(path, *size).await?),
        Op::Write(path, len) => {
            let options = OpenOptions::writing().create(0o644).truncate();
            let opened = client.open_with(path, options).await?;
            opened.write_at(0, &vec![7; *len]).await?;
            done(opened.close().await?)
        }
        Op::Read(path) => Out::Data(client.read(path).await?),
    })
}

fn done((): ()) -> Out {
    Out::Done
}

fn names(found: impl Iterator<Item = (EntryName, Option<FileKind>)>) -> Out {
    let mut names: Vec<_> = found.collect();
    names.sort_by(|one, other| one.0.cmp(&other.0));
    Out::Names(names)
}

fn file(mode: u32) -> New {
    New { kind: FileKind::File, mode, rdev: 0 }
}

/// Replaces inode numbers by their order of appearance, and clears attributes that may differ.
fn seen(numbers: &mut BTreeMap<Ino, u64>, out: Out) -> Out {
    let Out::Attr(attr) = out else { return out };
    let next = numbers.len() as u64;
    let ino = Ino(*numbers.entry(attr.ino).or_insert(next));
    // Each of several writes at one time has a `ctime` of its own.
    let ctime = Time { nsec: 0, ..attr.ctime };
    Out::Attr(Attr { ino, allocated: 0, atime: Time::default(), ctime, ..attr })
}

/// Numbers of times that each operation was done and refused.
type Counts = BTreeMap<String, (u32, u32)>;

fn run(setup: Setup, steps: &[Step], counts: &mut Counts) -> Result<(), String> {
    let clock = HandClock::at(START);
    in_world(setup, &clock, async |world| {
        let token = Token::administrator();
        let clients = [world.client(&token, false).await, world.client(&token, false).await];
        let models = model(&clock, [false; 2], 4096);
        let (mut left, mut right) = (BTreeMap::new(), BTreeMap::new());
        let open_up = Step { client: 0, user: User::Root, op: Op::Chmod("/".to_owned(), 0o777) };
        for (index, Step { client, user, op }) in iter::once(&open_up).chain(steps).enumerate() {
            settle().await;
            clock.tick();
            let cred = user.cred();
            let mine = by_client(&clients[*client].as_user(cred.clone()), op).await;
            let walker = Walker { fs: &models[*client], cred: &cred };
            let mine = mine.map(|out| seen(&mut left, out));
            let expected = walker.run(op).await.map(|out| seen(&mut right, out));
            count(counts, op, mine.is_ok());
            // Where both paths are wrong, the client may find it of the other one.
            let both_refuse = mine.is_err() && expected.is_err();
            let two_paths = matches!(op, Op::Rename(..) | Op::Link(..));
            if mine != expected && !(two_paths && both_refuse) {
                return Err(format!("step {index}\n  client: {mine:?}\n  model:  {expected:?}"));
            }
        }
        let findings = world.fsck().await.findings;
        if findings.is_empty() { Ok(()) } else { Err(format!("{findings:?}")) }
    })
}

fn count(counts: &mut Counts, op: &impl Debug, done: bool) {
    let text = format!("{op:?}");
    let kind = text.split('(').next().unwrap_or_default().to_owned();
    let (all_done, all_refused) = counts.entry(kind).or_default();
    *if done { all_done } else { all_refused } += 1;
}

#[test]
fn operations_by_path_answer_as_the_model_whatever_is_cached() {
    let counts = RefCell::new(Counts::new());
    for access_cache_bytes in [64 << 20, 1500, 0] {
        let setup = Setup { access_cache_bytes, ..USUAL.setup };
        let asked = Config::default();
        let many = std::env::var_os("PROPTEST_CASES").is_some();
        let cases = if many { asked.cases } else { 400 };
        let rng_seed = match asked.rng_seed {
            RngSeed::Random => RngSeed::Fixed(1),
            RngSeed::Fixed(seed) => RngSeed::Fixed(seed),
        };
        let config = Config { cases, rng_seed, failure_persistence: None, ..asked };
        let result = TestRunner::new(config).run(&steps(), |steps| {
            run(setup, &steps, &mut counts.borrow_mut()).map_err(TestCaseError::fail)
        });
        assert!(result.is_ok(), "{setup:?}\n{:#}", result.expect_err("checked"));
    }
    for (kind, (done, refused)) in counts.borrow().iter() {
        println!("{kind:10} done={done} refused={refused}");
        assert!(*done > 0 && *refused > 0, "{kind} was never done, or never refused");
    }
}
