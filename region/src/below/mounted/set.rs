//! Changes of what is there: contents, owner, mode and times, in this order.
//!
//! Writing and a new owner take set-id bits away, so the mode comes after both. The times are set
//! last, because everything before changes them.

use std::os::fd::AsFd;

use base::{FileKind, attr};
use rustix::fs::OFlags;

use super::{contents::write, node::Node, walk::error};
use crate::below::{Change, Found, Result};

/// Mode bits that writing or a change of owner takes away.
const SET_ID: u32 = attr::MODE_SETUID | attr::MODE_SETGID;

pub(super) fn run(node: &Node, change: &Change) -> Result<Found> {
    if let Some(contents) = &change.contents {
        let before = node.must_be_file()?;
        let file = node.reopen(OFlags::WRONLY)?;
        write(&file, 0, contents)?;
        // No bytes leave the time as it was, and the contents were set all the same.
        if before.size > contents.len() as u64 || contents.is_empty() {
            rustix::fs::ftruncate(&file, contents.len() as u64).map_err(error)?;
        }
        // Where nothing was asked about the mode, it stays, its set-id bits included.
        if before.mode & SET_ID != 0 && change.mode.is_none() && change.owner.is_none() {
            node.set_mode(before.mode)?;
        }
    }
    meta(node, change)?;
    node.found()
}

/// Changes all but the contents.
pub(super) fn meta<F: AsFd>(node: &Node<F>, change: &Change) -> Result<()> {
    let before = match change {
        Change { mode: None, owner: None, .. } => None,
        Change { .. } => Some(node.attr()?),
    };
    if let Some(before) = before {
        let mut mode = change.mode.map(|mode| mode & attr::MODE_BITS);
        let mut now = before.mode;
        if let Some(owner) = change.owner
            && owner != (before.uid, before.gid)
        {
            node.set_owner(owner)?;
            if before.mode & SET_ID != 0 {
                mode = mode.or(Some(before.mode));
                now = attr::without_set_id(before.mode);
            }
        }
        // A symbolic link has no mode that somebody could change.
        if let Some(mode) = mode
            && mode != now
            && before.kind != FileKind::Symlink
        {
            node.set_mode(mode)?;
        }
    }
    if let Some((atime, mtime)) = change.times {
        node.set_times(atime, mtime)?;
    }
    Ok(())
}
