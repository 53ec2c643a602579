//! The operations, a file each: read, check, write. `driver` has everything around them.

mod accounts;
mod acl;
mod allocate;
pub(crate) mod blocks;
mod create;
mod divide;
pub(crate) mod hello;
mod info;
mod keys;
mod link;
pub(crate) mod lock;
mod lookup;
pub(crate) mod mkdir;
pub(crate) mod observe;
mod open;
mod readdir;
pub(crate) mod rename;
pub(crate) mod rmdir;
mod search;
mod seek;
mod session;
mod setattr;
mod settings;
mod speculate;
mod stat;
mod symlink;
mod tmpfile;
mod unlink;
mod walk_to;
mod write;
mod xattr;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::atomic::AtomicU64;

use wire::{Created, HeldMade, HeldReply, HeldRequest, Reply, Request};

use crate::{
    coordinator,
    delegations::{existing, requests as delegations},
    error::Result,
    server::Counters,
    txn::Txn,
};

/// Runs one of several changes in a directory that the session holds.
pub(crate) fn run_held(txn: &mut Txn<'_>, request: &HeldRequest) -> Result<HeldReply> {
    let counters = &txn.shared.counters;
    match request {
        HeldRequest::Create(req) => {
            Counters::add(&counters.create);
            let Created { entry, opened, .. } = create::run(txn, req)?;
            let proof = opened.map(|opened| opened.proof);
            Ok(HeldReply::Made(HeldMade { attr: entry.attr, proof }))
        }
        HeldRequest::Write(req) => {
            Counters::add(&counters.write);
            write::run(txn, req).map(HeldReply::Written)
        }
        HeldRequest::Setattr(req) => {
            Counters::add(&counters.setattr);
            setattr::run(txn, req).map(HeldReply::Attr)
        }
        HeldRequest::Unlink(req) => {
            Counters::add(&counters.unlink);
            unlink::run(txn, req).map(HeldReply::Attr)
        }
    }
}

/// Runs the operation that a request asks for.
pub(crate) fn run(txn: &mut Txn<'_>, request: &Request) -> Result<Reply> {
    let counters = &txn.shared.counters;
    let count = |counter: &AtomicU64| Counters::add(counter);
    match request {
        Request::Lookup(req) => {
            count(&counters.lookup);
            lookup::run(txn, req).map(Reply::Entry)
        }
        Request::Walk(req) => {
            count(&counters.lookup);
            lookup::walk(txn, req).map(Reply::Walked)
        }
        Request::WalkTo(req) => {
            count(&counters.lookup);
            walk_to::run(txn, req).map(Reply::Walked)
        }
        Request::Getattr(req) => {
            count(&counters.getattr);
            stat::run(txn, req)
        }
        Request::Setattr(req) => {
            count(&counters.setattr);
            setattr::run(txn, req).map(Reply::Attr)
        }
        Request::Create(req) => {
            count(&counters.create);
            create::run(txn, req).map(Reply::Created)
        }
        Request::Tmpfile(req) => {
            count(&counters.create);
            tmpfile::run(txn, req).map(Reply::Created)
        }
        Request::Mkdir(req) => {
            count(&counters.mkdir);
            mkdir::run(txn, req).map(Reply::Entry)
        }
        Request::Symlink(req) => {
            count(&counters.symlink);
            symlink::run(txn, req).map(Reply::Entry)
        }
        Request::Link(req) => {
            count(&counters.link);
            link::run(txn, req).map(Reply::Entry)
        }
        Request::Unlink(req) => {
            count(&counters.unlink);
            unlink::run(txn, req).map(Reply::Attr)
        }
        Request::Rmdir(req) => {
            count(&counters.rmdir);
            rmdir::run(txn, req).map(Reply::Ino)
        }
        Request::Rename(req) => {
            count(&counters.rename);
            rename::run(txn, req).map(Reply::Renamed)
        }
        Request::Readdir(req) => {
            count(&counters.readdir);
            readdir::run(txn, req).map(Reply::Page)
        }
        Request::Readlink(req) => {
            count(&counters.lookup);
            symlink::read(txn, req).map(Reply::Entry)
        }
        Request::Open(req) => {
            count(&counters.open);
            open::run(txn, req).map(Reply::Opened)
        }
        Request::Release(req) => session::release(txn, req).map(|()| Reply::Nothing),
        Request::Claim(req) => session::claim(txn, req).map(|()| Reply::Nothing),
        Request::Ping => Ok(Reply::Nothing),
        Request::Recalls => delegations::recalls(txn).map(Reply::Recalled),
        Request::Return(req) => delegations::give_back(txn, req).map(|()| Reply::Nothing),
        Request::Delegate(req) => existing::run(txn, req),
        Request::ReserveInos(req) => delegations::reserve_inos(txn, req).map(Reply::Inos),
        Request::Bye => session::bye(txn).map(|()| Reply::Nothing),
        Request::Statfs => Ok(Reply::Statfs(session::statfs(txn))),
        Request::Write(req) => {
            count(&counters.write);
            write::run(txn, req).map(Reply::Written)
        }
        Request::Allocate(req) => {
            count(&counters.write);
            allocate::run(txn, req).map(Reply::Attr)
        }
        Request::Search(req) => {
            count(&counters.lookup);
            search::run(txn, req).map(Reply::Searched)
        }
        Request::Watch(req) => {
            count(&counters.watch);
            crate::feed::watch::run(txn, req).map(Reply::Watched)
        }
        Request::Seek(req) => {
            count(&counters.block_map);
            seek::run(txn, req).map(Reply::Offset)
        }
        Request::BlockMap(req) => {
            count(&counters.block_map);
            blocks::run(txn, req).map(Reply::BlockMapped)
        }
        Request::Setxattr(req) => {
            count(&counters.xattr);
            xattr::set(txn, req).map(|()| Reply::Nothing)
        }
        Request::Xattrs(req) => {
            count(&counters.xattr);
            xattr::list(txn, req).map(Reply::Xattrs)
        }
        Request::Removexattr(req) => {
            count(&counters.xattr);
            xattr::remove(txn, req).map(|()| Reply::Nothing)
        }
        Request::Status => Ok(Reply::Status(txn.shared.status())),
        Request::FsckPoll(req) => crate::fsck::poll(txn.shared, *req).map(Reply::Fsck),
        Request::FsckNames(req) => crate::fsck::names(txn.shared, *req).map(Reply::FsckNames),
        Request::FsckFixes(req) => crate::fsck::fixes(txn.shared, *req).map(Reply::FsckFixes),
        Request::FsckQuotas(req) => crate::fsck::quotas(txn.shared, *req).map(Reply::FsckQuotas),
        Request::FsckInos(req) => crate::fsck::inos(txn.shared, *req).map(Reply::FsckInos),
        Request::FsckMend(req) => crate::fsck::mend(txn, req).map(Reply::Mended),
        Request::Info(req) => info::run(txn, req).map(Reply::Lines),
        Request::Accounts(req) => accounts::list(txn, *req).map(Reply::Accounts),
        Request::Lock(req) => {
            count(&counters.lock);
            lock::run(txn, req).map(|()| Reply::Nothing)
        }
        Request::LockTest(req) => lock::find(txn, req).map(Reply::Lock),
        Request::LockCancel(req) => lock::cancel(txn, req).map(|()| Reply::Nothing),
        Request::LockClaim(req) => lock::claim(txn, req).map(|()| Reply::Nothing),
        Request::Load => Ok(Reply::Load(observe::load(txn))),
        Request::Slow(req) => Ok(Reply::Slow(observe::slow(txn, *req))),
        Request::Sessions => Ok(Reply::Sessions(observe::sessions(txn))),
        Request::Opens(req) => Ok(Reply::Opens(observe::opens(txn, *req))),
        Request::Locks(req) => Ok(Reply::Locks(observe::locks(txn, *req))),
        Request::Evict(req) => observe::evict(txn, *req).map(|()| Reply::Nothing),
        Request::Keys(req) => keys::run(txn, req).map(Reply::Keys),
        Request::SignToken(req) => keys::sign(txn, req).map(Reply::Signed),
        Request::Join(req) => coordinator::join(txn.shared, req).map(Reply::Joined),
        Request::Cluster => coordinator::status(txn.shared).map(Reply::Cluster),
        Request::BlockDrop(req) => session::drop_blocks(txn, req).map(|()| Reply::Nothing),
        Request::Speculate(req) => {
            count(&counters.lookup);
            speculate::run(txn, req).map(Reply::Guessed)
        }
        Request::Hello(_)
        | Request::Standing(_)
        | Request::Apply(_)
        | Request::Sync
        | Request::BlockPut(_)
        | Request::BlockGet(_)
        | Request::SignBlocks(_)
        | Request::FsckStart(_)
        | Request::Repair(_)
        | Request::DumpStart
        | Request::PeerHello(_)
        | Request::PeerRead(_)
        | Request::Prepare(_)
        | Request::Decide(_)
        | Request::AskOutcome(_)
        | Request::AskOver(_)
        | Request::Heartbeat(_)
        | Request::Announce(_)
        | Request::HandoffBegin(_)
        | Request::HandoffPut(_)
        | Request::LayoutLearnt(_)
        | Request::Born(_)
        | Request::AskBirths
        | Request::SettleBirths
        | Request::Count(_)
        | Request::AskRoom(_)
        | Request::GiveRoom(_)
        | Request::HurryBirths(_)
        | Request::DumpNext(_)
        | Request::DumpStep(_)
        | Request::Move(_)
        | Request::ShardPull(_)
        | Request::ShardBlock(_) => unreachable!("the driver answers these itself"),
    }
}
