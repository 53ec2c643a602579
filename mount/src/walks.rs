//! Threads that were told ESTALE of a path and walk it again.
//!
//! The adapter asks this table about every request; it is empty nearly always. Linux answers ESTALE
//! by walking the path once more, with a LOOKUP of each of its names (`retry_estale`,
//! `LOOKUP_REVAL` in fs/namei.c), and gives what comes then to the program. That second walk finds
//! what stands there now. Where another client removes that as well before it is used, the path has
//! led nowhere at that moment: the program is told ENOENT.
//!
//! The kernel does not say which walk a request belongs to. A thread makes one system call at a
//! time, so its number tells: since it was told ESTALE it has only looked at things, and has looked
//! up the node that is gone now. What is used without a path, through a descriptor or as the
//! working directory, was not looked up, and stays ESTALE.

use base::HashMap;
use fuse::{Errno, NodeId, Op};

use crate::{
    answer::{Answer, Outcome},
    convert::Failed,
};

/// The most threads that are known; those that walk no further are never heard of again.
const THREADS_MAX: usize = 1024;

/// By thread, the nodes that it has looked up since it was told ESTALE.
#[derive(Default)]
pub(crate) struct Walks(HashMap<u32, Vec<NodeId>>);

impl Walks {
    /// Returns the outcome that a thread is told of its request about `node`. `id` says which node
    /// an answer leads to.
    pub(crate) fn tell(
        &mut self,
        (thread, node): (u32, NodeId),
        op: &Op<'_>,
        outcome: Outcome,
        id: impl FnOnce(&Answer) -> Option<NodeId>,
    ) -> Outcome {
        match &outcome {
            Err(Failed(Errno::STALE)) => return Err(Failed(self.stale(thread, node, op))),
            _ if self.0.is_empty() => {}
            Ok(answer) if matches!(op, Op::Lookup { .. }) => {
                if let Some(seen) = self.0.get_mut(&thread) {
                    seen.extend(id(answer));
                }
            }
            _ if is_of_a_walk(op) => {}
            _ => drop(self.0.remove(&thread)),
        }
        outcome
    }

    /// A node that a request is about is gone.
    fn stale(&mut self, thread: u32, node: NodeId, op: &Op<'_>) -> Errno {
        let other = match *op {
            Op::Rename { new_parent, .. } => Some(new_parent),
            Op::Link { node, .. } => Some(node),
            _ => None,
        };
        let looked_up = self.0.get(&thread).is_some_and(|seen| {
            seen.contains(&node) || other.is_some_and(|other| seen.contains(&other))
        });
        if looked_up {
            self.0.remove(&thread);
            return Errno::NOENT;
        }
        // A thread of another pid namespace has the number 0, as all of them have.
        if thread != 0 {
            if self.0.len() >= THREADS_MAX {
                self.0.clear();
            }
            self.0.insert(thread, Vec::new());
        }
        Errno::STALE
    }
}

/// Whether the kernel asks this while it walks a path.
fn is_of_a_walk(op: &Op<'_>) -> bool {
    matches!(
        op,
        Op::Lookup { .. }
            | Op::GetAttr { .. }
            | Op::Statx { .. }
            | Op::ReadLink
            | Op::GetXattr { .. }
            | Op::Access { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: NodeId = NodeId(5);
    const NEW: NodeId = NodeId(6);
    const LOOKUP: Op<'_> = Op::Lookup { name: b"dir" };
    const MKDIR: Op<'_> = Op::MkDir { name: b"sub", mode: 0, umask: 0 };

    fn ask(walks: &mut Walks, thread: u32, node: NodeId, op: &Op<'_>, outcome: Outcome) -> i32 {
        match walks.tell((thread, node), op, outcome, |_| Some(NEW)) {
            Ok(_) => 0,
            Err(Failed(errno)) => errno.raw_os_error(),
        }
    }

    fn stale() -> Outcome {
        Err(Failed(Errno::STALE))
    }

    #[test]
    fn what_is_gone_again_in_the_second_walk_is_not_there() {
        let mut walks = Walks::default();
        assert_eq!(ask(&mut walks, 7, DIR, &MKDIR, stale()), libc::ESTALE);
        assert_eq!(ask(&mut walks, 7, NodeId::ROOT, &LOOKUP, Ok(Answer::Done)), 0);
        // Somebody else's first walk.
        assert_eq!(ask(&mut walks, 8, NEW, &MKDIR, stale()), libc::ESTALE);
        let absent = Err(Failed(Errno::NOENT));
        assert_eq!(ask(&mut walks, 7, NEW, &LOOKUP, absent), libc::ENOENT);
        assert_eq!(ask(&mut walks, 7, NEW, &MKDIR, stale()), libc::ENOENT);
        // The next call is a new one.
        assert_eq!(ask(&mut walks, 7, NEW, &MKDIR, stale()), libc::ESTALE);
    }

    #[test]
    fn what_was_not_looked_up_again_stays_stale() {
        let mut walks = Walks::default();
        let getattr = Op::GetAttr { fh: None };
        for _ in 0..3 {
            assert_eq!(ask(&mut walks, 7, DIR, &getattr, stale()), libc::ESTALE);
        }
        // The thread is of another pid namespace: the requester cannot be told.
        for _ in 0..3 {
            assert_eq!(ask(&mut walks, 0, NEW, &MKDIR, stale()), libc::ESTALE);
            assert_eq!(ask(&mut walks, 0, NodeId::ROOT, &LOOKUP, Ok(Answer::Done)), 0);
        }
    }

    #[test]
    fn a_call_that_succeeds_ends_the_walk() {
        let mut walks = Walks::default();
        assert_eq!(ask(&mut walks, 7, DIR, &MKDIR, stale()), libc::ESTALE);
        assert_eq!(ask(&mut walks, 7, NodeId::ROOT, &LOOKUP, Ok(Answer::Done)), 0);
        assert_eq!(ask(&mut walks, 7, NEW, &MKDIR, Ok(Answer::Done)), 0);
        assert!(walks.0.is_empty());
        assert_eq!(ask(&mut walks, 7, NEW, &MKDIR, stale()), libc::ESTALE);
    }

    #[test]
    fn threads_that_are_never_heard_of_again_are_forgotten() {
        let mut walks = Walks::default();
        for thread in 1..5000 {
            assert_eq!(ask(&mut walks, thread, DIR, &MKDIR, stale()), libc::ESTALE);
        }
        assert!(walks.0.len() <= THREADS_MAX);
    }
}
