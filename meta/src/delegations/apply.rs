//! Many changes of a session, in a directory that it holds, in one request.
//!
//! Each is a transaction of its own, in the order in which the session made them, and all join one
//! group: a crash leaves all of them or none. The first that cannot be done here and now ends the
//! request, which answers for those before it; the session then asks for each of the rest alone, and
//! hears what is in its way. Only if nothing was done does the request wait as any other.
//!
//! Cost: that of the changes, with one stored answer, one message and one wake-up for all.

use std::sync::Arc;

use base::{Attr, FileKind, FsError, Time, limits::HELD_CHANGES_MAX};
use wire::{Applied, Apply, Held, HeldChange, HeldReply, HeldRequest, NodeRef, Request, Setattr};

use crate::{
    audit,
    error::{Fault, Result},
    feed,
    incoming::Incoming,
    ops,
    server::Shared,
    session::Session,
    txn::{Caller, CommitGroup, GROUP_BYTES_MAX, Txn},
};

/// Does the changes, as far as that goes: their answers, and the directory as they have left it.
pub(crate) fn run(
    shared: &Shared,
    group: &mut CommitGroup,
    incoming: &Incoming,
    by: (&Arc<Session>, Time),
    several: &Apply,
) -> Result<(Applied, Vec<Attr>)> {
    let held = incoming.header.stand.held.and_then(|held| held.dir);
    if several.changes.len() > HELD_CHANGES_MAX || held != Some(several.dir.id) {
        return Err(FsError::Invalid.into());
    }
    let mut done = Vec::with_capacity(several.changes.len());
    let mut dirs = Vec::new();
    for change in &several.changes {
        match one(shared, group, incoming, by, (several, change)) {
            Ok((reply, told)) => {
                done.push(reply);
                if !told.is_empty() {
                    dirs = told;
                }
            }
            Err(fault @ Fault::Halt(_)) => return Err(fault),
            Err(fault @ Fault::Wait(_)) if done.is_empty() => return Err(fault),
            Err(_) => break,
        }
        if group.changes.bytes() >= GROUP_BYTES_MAX {
            break;
        }
    }
    Ok((Applied { done }, dirs))
}

fn one(
    shared: &Shared,
    group: &mut CommitGroup,
    incoming: &Incoming,
    (session, now): (&Arc<Session>, Time),
    (several, change): (&Apply, &HeldChange),
) -> Result<(HeldReply, Vec<Attr>)> {
    let HeldChange { cred, at, ino, request } = change;
    if request.dir().id != several.dir.id || !is_simple(request) {
        return Err(FsError::Invalid.into());
    }
    let header = &incoming.header;
    let standing = session.admit(Some(cred), true, now, &shared.keys)?;
    let grant_state = incoming.grant_state.get();
    let caller = Caller { cred, session: Some(session), standing, grant_state };
    let held = Held { dir: Some(several.dir.id), at: Some(*at), ino: *ino, wants: false };
    let txn = Txn::new(shared, group, caller, now).asked_of(header.shard);
    let mut txn = txn.waited(incoming.waited_since.get()).stands_on(Some(held));
    let reply = ops::run_held(&mut txn, request)?;
    txn.unsettled()?;
    // Another server has a part in it, or something is assumed of one.
    if txn.is_remote() || txn.is_torn() || txn.assumes() {
        return Err(Fault::Remote);
    }
    if shared.feed.is_on() {
        feed::events::of_request(&mut txn, &alone(request));
    }
    audit::note::held_change(&mut txn, incoming, change, &reply);
    let told = txn.take_noted();
    txn.commit();
    Ok((reply, told))
}

/// The same change as a request of its own.
fn alone(request: &HeldRequest) -> Request {
    match request.clone() {
        HeldRequest::Create(req) => Request::Create(req),
        HeldRequest::Write(req) => Request::Write(req),
        HeldRequest::Setattr(req) => Request::Setattr(req),
        HeldRequest::Unlink(req) => Request::Unlink(req),
    }
}

/// Whether a change is one that waits for nothing and needs little.
fn is_simple(request: &HeldRequest) -> bool {
    match request {
        // A link that is there already would have its target in the answer.
        HeldRequest::Create(req) => req.exclusive && req.kind == FileKind::File,
        HeldRequest::Unlink(_) => true,
        HeldRequest::Write(write) => write.blocks.is_empty(),
        HeldRequest::Setattr(Setattr { node, set }) => {
            matches!(node, NodeRef::File(_)) && set.size.is_none()
        }
    }
}
