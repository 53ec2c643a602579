//! Linearizability of the namespace: "every operation happens at one point in time between its call
//! and its answer".
//!
//! A [`History`] is what concurrent clients did on a small tree: calls and answers in the order in
//! which they really happened. [`check`] looks for an order of the operations, each between its
//! call and its answer, in which a file system that does one thing after another (`model`) gives
//! the same answers. If there is none, some answer cannot be explained: something stale was read, a
//! change was lost, done twice or seen by half.
//!
//! # What is promised of what
//!
//! A path is resolved in several steps, and still most operations have one point in time, that of
//! their last request: a directory on the way cannot be removed while something is in it, and of
//! one that was moved or closed meanwhile the client is told, and begins anew. So it is with
//!
//! * mkdir, create, unlink, rmdir and rename in each of its modes: one point, for the whole of both
//!   paths;
//! * stat on a single server: one point.
//!
//! As everywhere in POSIX, some operations find an inode by its path and then work on that inode,
//! wherever it is by then. They have two points, the second not before the first, and each is
//! checked:
//!
//! * chmod, readdir, and link for the file that gets another name (its new name is one with the
//!   second point);
//! * stat on several servers, where the server of the name need not know the attributes: the second
//!   point is theirs.
//!
//! A directory in several partitions is listed partition by partition, and names move from one to
//! another. So there each name has a point of its own after the first: at that point it is in the
//! directory as the listing has it, or it is not in the directory and not in the listing. What was
//! there all the time is listed, what never was there is not, and what was renamed within the
//! directory may be listed twice, or not at all. Where the directory is removed after the first
//! point, the listing may end with `Stale`.
//!
//! An operation that was never answered, since its client died or its session was lost, has
//! happened at any time after its call, or not at all. Operations that were refused must have a
//! point at which they are refused for that reason; where a rename can be refused for several, any
//! of them will do.
//!
//! # How it is searched
//!
//! As Lowe's just-in-time linearization ("Testing for linearizability", 2017): the events are taken
//! one by one with the set of all states that the file system may be in. At a call nothing has to
//! happen. At an answer, the operation is done in each of the states, after any of the others that
//! are under way; what gives another answer is dropped. States are remembered, so that each is
//! looked at once, whatever order led to it. What never changes anything (a look, or what is
//! refused) and gives its answer now is done at once: whatever comes of doing it later comes of
//! this too, since it hinders nobody.
//!
//! The tree is checked as a whole. To look at its directories one by one would be sound only where
//! no directory is renamed, and what is gained is small: with a handful of clients and a hundred
//! operations there are few states at any time. When there are more than [`STATES_MAX`] all in all,
//! it gives up and says so.
//!
//! Workloads (`sim::work::linear`) call it; it never waits or draws anything.

mod model;
mod search;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use base::{FsError, Ino};
use wire::RenameMode;

/// So many states are looked at, at most.
pub const STATES_MAX: usize = 300_000;

/// A path below the tree's root: names of one letter each. An empty one is the root.
#[derive(Clone, PartialEq, Eq)]
pub struct Path(pub Vec<u8>);

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        self.0.iter().try_for_each(|name| write!(f, "/{}", char::from(*name)))
    }
}

/// What is asked for. What changes anything is asked for by the superuser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Make a directory.
    Mkdir(Path),
    /// Make a file where nothing is.
    Create(Path),
    /// Remove a name of a file.
    Unlink(Path),
    /// Remove a directory.
    Rmdir(Path),
    /// Move, by a mode.
    Rename(Path, Path, RenameMode),
    /// Give a file another name.
    Link(Path, Path),
    /// Set the mode of a directory.
    Chmod(Path, u32),
    /// Look at the attributes; by a user who owns nothing, or by the superuser.
    Stat(Path, By),
    /// List a directory.
    List(Path, By),
}

/// Who looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The superuser.
    Root,
    /// Somebody who owns nothing.
    User,
}

/// What an operation showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It only says that it was done.
    Nothing,
    /// What was made or changed.
    Made(Attributes),
    /// All that can be known.
    Found(Attributes),
    /// What is in a directory.
    Names(Names),
}

/// What is known of an inode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Which it is.
    pub ino: Ino,
    /// Of a directory: its mode and the number of its entries.
    pub dir: Option<(u32, u64)>,
    /// Its link count.
    pub nlink: u32,
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attributes { ino, dir, nlink } = self;
        match dir {
            Some((mode, entries)) => write!(f, "dir {ino} {mode:o} nlink={nlink} size={entries}"),
            None => write!(f, "file {ino} nlink={nlink}"),
        }
    }
}

/// Names, with what they are: the inode and whether it is a directory.
pub type Names = BTreeMap<u8, (Ino, bool)>;

/// Where the tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// On one server.
    Server,
    /// On several servers: a stat has two points.
    Servers,
    /// As well, and directories may be in several partitions: of a listing each name has a point.
    Partitions,
}

/// What was answered.
pub type Answer = Result<Seen, FsError>;

/// An operation.
#[derive(Debug, Clone)]
struct Operation {
    /// Who did it, for people.
    by: String,
    call: Call,
    /// `None`: never.
    answer: Option<Answer>,
}

/// An event: the operation, and whether this is its answer.
#[derive(Debug, Clone, Copy)]
struct Event {
    operation: usize,
    answered: bool,
}

/// What concurrent clients did.
#[derive(Debug, Clone)]
pub struct History {
    root: Ino,
    extent: Extent,
    operations: Vec<Operation>,
    events: Vec<Event>,
}

/// What came of a check that found nothing wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Linearizable {
        /// How many states were looked at.
        states: usize,
    },
    /// It takes too long to tell.
    GaveUp,
}

/// There is no such order.
#[derive(Debug)]
pub struct Refused {
    /// The history up to the answer that cannot be explained, and what could have been before it.
    pub why: String,
}

impl History {
    /// An empty directory of mode 0755.
    #[must_use]
    pub fn new(root: Ino, extent: Extent) -> History {
        History { root, extent, operations: Vec::new(), events: Vec::new() }
    }

    /// Somebody asks for something; returns the number of the operation.
    pub fn call(&mut self, by: impl Into<String>, call: Call) -> usize {
        let operation = self.operations.len();
        self.operations.push(Operation { by: by.into(), call, answer: None });
        self.events.push(Event { operation, answered: false });
        operation
    }

    /// An operation is answered.
    pub fn answer(&mut self, operation: usize, answer: Answer) {
        self.operations[operation].answer = Some(answer);
        self.events.push(Event { operation, answered: true });
    }

    /// How many operations there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether nobody did anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The events up to one of them, a line each.
    fn show(&self, events: usize) -> String {
        let mut text = String::new();
        for event in &self.events[..events] {
            let number = event.operation;
            let Operation { by, call, answer } = &self.operations[number];
            let shown = match (event.answered, answer) {
                (true, Some(answer)) => {
                    writeln!(text, "    {number:>3} {by} {call:?} = {answer:?}")
                }
                (false, None) => writeln!(text, "    {number:>3} {by} {call:?} (never answered)"),
                (false, Some(_)) | (true, None) => {
                    writeln!(text, "    {number:>3} {by} {call:?} ...")
                }
            };
            shown.expect("writing to a string cannot fail");
        }
        text
    }
}

/// Looks for an order that explains all answers.
///
/// # Errors
/// When there is none.
pub fn check(history: &History) -> Result<Verdict, Refused> {
    search::run(history)
}
