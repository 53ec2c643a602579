//! Each rule of the model once. Times come from a clock that is a second later each time it is
//! read.

mod attributes;
mod contents;
mod namespace;
mod rename;
mod xattrs;

use std::{
    pin::pin,
    sync::atomic::{AtomicI64, Ordering},
    task::{Context, Poll, Waker},
};

use super::*;

const KEY: HashKey = HashKey::new(1, 2);

struct Steps(AtomicI64);

impl Clock for Steps {
    fn now(&self) -> Time {
        Time { sec: self.0.fetch_add(1, Ordering::Relaxed), nsec: 0 }
    }
}

fn done<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the model never waits"),
    }
}

fn name(text: &str) -> EntryName {
    EntryName::new(text.as_bytes()).unwrap()
}

fn user(uid: u32, groups: &[u32]) -> Cred {
    Cred { uid, gid: uid, groups: groups.to_vec() }
}

/// A client of the model, and paths for short.
struct Fs {
    model: Model,
    cred: Cred,
}

impl Fs {
    fn new() -> Fs {
        let model = Model::new(Arc::new(Steps(AtomicI64::new(1))), KEY, false);
        Fs { model, cred: Cred::ROOT }
    }

    fn by(&self, cred: &Cred) -> Fs {
        Fs { model: self.model.clone(), cred: cred.clone() }
    }

    fn trusted(&self, cred: &Cred) -> Fs {
        Fs { model: self.model.client(true), cred: cred.clone() }
    }

    /// Checks the invariants, and takes the error apart.
    fn outcome<T>(&self, result: Result<T>) -> std::result::Result<T, FsError> {
        self.model.check();
        result.map_err(|error| error.as_fs())
    }

    /// The directory of a path, found by the superuser, and the last name.
    fn at(&self, path: &str) -> (DirRef, EntryName) {
        match path.rsplit_once('/') {
            Some((dir, last)) => (self.dir(dir), name(last)),
            None => (self.model.root().0, name(path)),
        }
    }

    fn found(&self, path: &str) -> Entry {
        let (dir, last) = self.at(path);
        done(self.model.lookup(&Cred::ROOT, &dir, &last)).unwrap()
    }

    fn dir(&self, path: &str) -> DirRef {
        if path.is_empty() { self.model.root().0 } else { self.found(path).dir.unwrap() }
    }

    fn node(&self, path: &str) -> NodeRef {
        if path.is_empty() {
            return NodeRef::Dir(self.model.root().0);
        }
        let (dir, last) = self.at(path);
        self.found(path).node(&dir, &last)
    }

    fn file(&self, path: &str) -> FileRef {
        match self.node(path) {
            NodeRef::File(file) => file,
            NodeRef::Dir(_) => panic!("{path} is a directory"),
        }
    }

    fn stat(&self, path: &str) -> Attr {
        self.outcome(done(self.model.getattr(&self.cred, &self.node(path)))).unwrap()
    }

    fn lookup(&self, path: &str) -> std::result::Result<Entry, FsError> {
        let (dir, last) = self.at(path);
        self.outcome(done(self.model.lookup(&self.cred, &dir, &last)))
    }

    fn make(
        &self,
        path: &str,
        kind: FileKind,
        mode: u32,
        open: bool,
    ) -> std::result::Result<Made, FsError> {
        let (dir, last) = self.at(path);
        let new = New { kind, mode, rdev: 7 };
        self.outcome(done(self.model.create(&self.cred, &dir, &last, new, true, open)))
    }

    fn create(&self, path: &str, mode: u32) -> std::result::Result<Attr, FsError> {
        Ok(self.make(path, FileKind::File, mode, false)?.entry.attr)
    }

    /// Makes a file that is open.
    fn opened(&self, path: &str) -> Handle {
        self.make(path, FileKind::File, 0o644, true).unwrap().handle.unwrap()
    }

    fn mkdir(&self, path: &str, mode: u32) -> std::result::Result<Attr, FsError> {
        let (dir, last) = self.at(path);
        Ok(self.outcome(done(self.model.mkdir(&self.cred, &dir, &last, mode)))?.attr)
    }

    fn symlink(&self, path: &str, target: &[u8]) -> std::result::Result<Entry, FsError> {
        let (dir, last) = self.at(path);
        let target = Bytes::copy_from_slice(target);
        self.outcome(done(self.model.symlink(&self.cred, &dir, &last, target)))
    }

    fn link(&self, target: &str, path: &str) -> std::result::Result<Entry, FsError> {
        self.link_node(&self.node(target), path)
    }

    fn link_node(&self, target: &NodeRef, path: &str) -> std::result::Result<Entry, FsError> {
        let (dir, last) = self.at(path);
        self.outcome(done(self.model.link(&self.cred, target, &dir, &last)))
    }

    fn unlink(&self, path: &str) -> std::result::Result<Attr, FsError> {
        let (dir, last) = self.at(path);
        self.outcome(done(self.model.unlink(&self.cred, &dir, &last)))
    }

    fn rmdir(&self, path: &str) -> std::result::Result<Ino, FsError> {
        let (dir, last) = self.at(path);
        self.outcome(done(self.model.rmdir(&self.cred, &dir, &last)))
    }

    fn rename_as(
        &self,
        mode: RenameMode,
        from: &str,
        to: &str,
    ) -> std::result::Result<Ino, FsError> {
        let (from, to) = (self.at(from), self.at(to));
        let (from, to) = ((&from.0, &from.1), (&to.0, &to.1));
        let renamed = done(self.model.rename(&self.cred, from, to, mode));
        self.outcome(renamed.map(|renamed| renamed.moved))
    }

    fn rename(&self, from: &str, to: &str) -> std::result::Result<Ino, FsError> {
        self.rename_as(RenameMode::Replace, from, to)
    }

    fn setattr(&self, path: &str, set: SetAttr) -> std::result::Result<Attr, FsError> {
        self.outcome(done(self.model.setattr(&self.cred, &self.node(path), set)))
    }

    fn chmod(&self, path: &str, mode: u32) -> std::result::Result<Attr, FsError> {
        self.setattr(path, SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    fn chown(&self, path: &str, uid: u32, gid: u32) -> std::result::Result<Attr, FsError> {
        self.setattr(path, SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() })
    }

    fn setxattr(
        &self,
        path: &str,
        name: &str,
        value: &[u8],
        mode: XattrMode,
    ) -> std::result::Result<(), FsError> {
        let (name, value) =
            (Bytes::copy_from_slice(name.as_bytes()), Bytes::copy_from_slice(value));
        self.outcome(done(self.model.setxattr(&self.cred, &self.node(path), name, value, mode)))
    }
}
