//! Files that are at their shard of birth: which they are, and how a request names one.
//!
//! A file that was moved to another shard's directory, or has names in several, rests in its slot
//! on the shard where it was born. Who asks for it by its directory is sent there, with a ticket;
//! that is remembered for the next time. It is a hint: the servers know better, and what turns out
//! wrong is forgotten.

use std::collections::VecDeque;

use base::{DirId, HashMap, Ino};
use wire::{FileRef, NodeRef, Request};

/// Maximum number of remembered files; the oldest is forgotten.
const FILES_MAX: usize = 4096;

/// Tickets of files whose inodes are at their shard of birth.
#[derive(Debug, Default)]
pub(crate) struct InodeRoutes {
    tickets: HashMap<Ino, u64>,
    /// In the order in which they were learnt; some may be forgotten.
    order: VecDeque<Ino>,
}

/// A request that was sent to a shard of birth from memory, as it was before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remembered {
    pub(crate) home: DirId,
    pub(crate) ticket: u64,
}

impl InodeRoutes {
    /// A server has said so.
    pub(crate) fn learn(&mut self, ino: Ino, ticket: u64) {
        if self.tickets.insert(ino, ticket).is_none() {
            self.order.push_back(ino);
        }
        while self.order.len() > FILES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.tickets.remove(&oldest);
        }
    }

    /// Forgets a file, whose inode may be elsewhere now.
    pub(crate) fn forget(&mut self, ino: Ino) {
        if self.tickets.remove(&ino).is_some() {
            self.order.retain(|known| *known != ino);
        }
    }

    /// The ticket for a file that is known to be at birth.
    pub(crate) fn ticket(&self, ino: Ino) -> Option<u64> {
        self.tickets.get(&ino).copied()
    }
}

/// The file that a request is about, and names by its directory.
pub(crate) fn file_of(request: &mut Request) -> Option<&mut FileRef> {
    let node = match request {
        Request::Open(req) => return Some(&mut req.file),
        Request::Write(req) => return Some(&mut req.file),
        Request::BlockMap(req) => return Some(&mut req.file),
        Request::Allocate(req) => return Some(&mut req.file),
        Request::Seek(req) => return Some(&mut req.file),
        Request::Getattr(req) | Request::Readlink(req) | Request::Xattrs(req) => &mut req.node,
        Request::Setattr(req) => &mut req.node,
        Request::Setxattr(req) => &mut req.node,
        Request::Removexattr(req) => &mut req.node,
        Request::Info(req) => &mut req.node,
        _ => return None,
    };
    match node {
        NodeRef::File(file) => Some(file),
        NodeRef::Dir(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learnt_first_is_forgotten_first() {
        let mut inode_routes = InodeRoutes::default();
        let last = FILES_MAX as u64;
        (0..=last).for_each(|ino| inode_routes.learn(Ino(ino), ino));
        assert_eq!(inode_routes.ticket(Ino(0)), None);
        assert_eq!(inode_routes.ticket(Ino(1)), Some(1));
        inode_routes.forget(Ino(1));
        inode_routes.learn(Ino(last + 1), 7);
        assert_eq!(inode_routes.ticket(Ino(2)), Some(2), "there was room");
    }
}
