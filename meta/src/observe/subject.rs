//! Which directory a request is about.

use wire::{DirRef, FileRef, NodeRef, Request};

use super::Subject;

/// The directory that a request names, or that holds what it names.
pub(crate) fn subject(request: &Request) -> Option<Subject> {
    match request {
        Request::Lookup(req) => Some(dir(&req.dir)),
        Request::Walk(req) => Some(dir(&req.from)),
        Request::Getattr(req) | Request::Readlink(req) | Request::Xattrs(req) => {
            Some(node(&req.node))
        }
        Request::Setattr(req) => Some(node(&req.node)),
        Request::Create(req) => Some(dir(&req.dir)),
        Request::Tmpfile(req) => Some(dir(&req.dir)),
        Request::Mkdir(req) => Some(dir(&req.dir)),
        Request::Symlink(req) => Some(dir(&req.dir)),
        Request::Link(req) => Some(dir(&req.dir)),
        Request::Unlink(req) => Some(dir(&req.dir)),
        Request::Rmdir(req) => Some(dir(&req.dir)),
        Request::Rename(req) => Some(dir(&req.from_dir)),
        Request::Readdir(req) => Some(dir(&req.dir)),
        Request::Open(req) => Some(file(&req.file)),
        Request::Write(req) => Some(file(&req.file)),
        Request::BlockMap(req) => Some(file(&req.file)),
        Request::Allocate(req) => Some(file(&req.file)),
        Request::Seek(req) => Some(file(&req.file)),
        Request::Setxattr(req) => Some(node(&req.node)),
        Request::Removexattr(req) => Some(node(&req.node)),
        Request::Info(req) => Some(node(&req.node)),
        Request::Hello(_)
        | Request::Ping
        | Request::Bye
        | Request::Claim(_)
        | Request::Statfs
        | Request::Sync
        | Request::Release(_)
        | Request::BlockPut(_)
        | Request::BlockGet(_)
        | Request::Status
        | Request::FsckStart(_)
        | Request::Repair(_)
        | Request::FsckPoll(_)
        | Request::Lock(_)
        | Request::LockTest(_)
        | Request::LockCancel(_)
        | Request::LockClaim(_)
        | Request::Load
        | Request::Slow(_)
        | Request::Sessions
        | Request::Opens(_)
        | Request::Evict(_)
        | Request::DumpStart
        | Request::DumpNext(_) => None,
    }
}

fn dir(dir: &DirRef) -> Subject {
    (dir.id, dir.home)
}

fn file(file: &FileRef) -> Subject {
    dir(&file.dir)
}

fn node(node: &NodeRef) -> Subject {
    match node {
        NodeRef::Dir(found) => dir(found),
        NodeRef::File(found) => file(found),
    }
}
