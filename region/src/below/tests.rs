//! One suite for all file systems below: each test runs over [`Memory`] and over [`Mounted`].
//!
//! `everything_again` runs the whole suite under another umask and as another user.

mod again;
mod contents;
mod faults;
mod metadata;
mod names;
mod random;

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use base::{Clock, EntryName, Time};

use super::{Below, Change, Found, Memory, Meta, Mounted, New};
use crate::Path;

/// A clock that goes on by a second whenever somebody looks.
struct Seconds(AtomicI64);

impl Clock for Seconds {
    fn now(&self) -> Time {
        Time { sec: self.0.fetch_add(1, Ordering::Relaxed), nsec: 0 }
    }
}

fn memory() -> Memory {
    Memory::new(Arc::new(Seconds(AtomicI64::new(1_000_000_000))))
}

/// Runs a test over each file system.
fn each(test: impl Fn(&dyn Below)) {
    let memory = memory();
    test(&memory);
    memory.check();
    let dir = tempfile::tempdir().unwrap();
    test(&Mounted::open(dir.path()).unwrap());
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn path(text: impl AsRef<[u8]>) -> Path {
    let names = text.as_ref().split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.fold(Path::root(), |above, name| above.child(&EntryName::new(name).unwrap()))
}

fn time(sec: i64) -> Time {
    Time { sec, nsec: 123_456_000 }
}

/// Metadata of the user who runs the test.
fn meta(mode: u32) -> Meta {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    Meta { mode, uid, gid, atime: time(11), mtime: time(12) }
}

fn contents(text: impl AsRef<[u8]>) -> Arc<Vec<u8>> {
    Arc::new(text.as_ref().to_vec())
}

fn file(below: &dyn Below, at: &str, text: &str) -> Found {
    below.make(&path(at), &New::File(contents(text)), &meta(0o644)).unwrap()
}

fn dir(below: &dyn Below, at: &str) -> Found {
    below.make(&path(at), &New::Directory, &meta(0o755)).unwrap()
}

fn symlink(below: &dyn Below, at: &str, target: &'static str) -> Found {
    below.make(&path(at), &New::Symlink(target.into()), &meta(0o777)).unwrap()
}

fn look(below: &dyn Below, at: &str) -> Option<Found> {
    below.look(&path(at)).unwrap()
}

fn text(below: &dyn Below, at: &str) -> String {
    String::from_utf8(below.read(&path(at), 1 << 20).unwrap()).unwrap()
}

fn names(below: &dyn Below, at: &str) -> Vec<String> {
    let listed = below.list(&path(at), usize::MAX).unwrap();
    let mut names: Vec<String> = listed.iter().map(|entry| entry.name.to_string()).collect();
    names.sort();
    names
}

fn mode(mode: u32) -> Change {
    Change { mode: Some(mode), ..Change::default() }
}
