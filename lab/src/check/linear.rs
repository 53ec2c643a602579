//! Linearizability of the namespace: "every operation happens at one point in time between its call
//! and its answer".
//!
//! A [`History`] records what concurrent clients did on a small tree: calls and answers in the
//! order in which they really happened. [`check`] looks for an order of the operations, each
//! between its call and its answer, in which a sequential file system (`model`) gives the same
//! answers. If there is none, some answer cannot be explained: a read was stale, or a change was
//! lost, done twice or seen by half.
//!
//! # What is promised of what
//!
//! A path is resolved in several steps, and still most operations have one point in time, that of
//! their last request. A directory on the way cannot be removed while it has entries. If a
//! directory on the way was moved or closed meanwhile, the client is told and begins anew. This
//! holds for
//!
//! * mkdir, create, unlink, rmdir and rename in each of its modes: one point, for the whole of both
//!   paths;
//! * stat on a single server: one point.
//!
//! As everywhere in POSIX, some operations find an inode by its path and then work on that inode,
//! wherever it is by then. They have two points, the second not before the first, and both are
//! checked:
//!
//! * chmod, readdir, and link for the file that gets another name (its new name is one with the
//!   second point);
//! * stat on several servers, where the server of the name need not know the attributes: the second
//!   point is theirs.
//!
//! A directory in several partitions is listed partition by partition, and names move from one to
//! another. So each name has a point of its own, after the first point. At that point either the
//! directory has the name as the listing shows it, or neither the directory nor the listing has it.
//! A name that existed all the time is listed, and one that never existed is not. A name that was
//! renamed within the directory may be listed twice, or not at all. Where the directory is removed
//! after the first point, the listing may end with `Stale`.
//!
//! An operation that was never answered, because its client died or its session was lost, happened
//! at any time after its call, or never. A refused operation must have a point at which it is
//! refused for that reason. Where a rename can be refused for several reasons, any of them will do.
//!
//! # How it is searched
//!
//! The search is Lowe's just-in-time linearization ("Testing for linearizability", 2017). It takes
//! the events one by one and keeps the set of all states that the file system may be in. At a call
//! nothing has to happen. At an answer, the operation is done in each of the states, after any of
//! the others that are in flight; states that give another answer are dropped. States are
//! remembered, so that each is visited once, whatever order led to it. An operation that never
//! changes anything (a look, or a refused one) and whose answer fits now is done at once. Doing it
//! later could not lead to more states, because it hinders no other operation.
//!
//! The tree is checked as a whole. Checking each directory alone would be sound only where no
//! directory is renamed, and would gain little: with a handful of clients and a hundred operations
//! there are few states at any time. When the search has visited more than [`STATES_MAX`] states,
//! it gives up and says so.
//!
//! Workloads (`sim::work::linear`) call this module. It never waits and draws no random numbers.

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

/// Maximum number of states that the search visits.
pub const STATES_MAX: usize = 300_000;

/// A path below the tree's root, with names of one letter each. The empty path is the root.
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

/// The operation that a client asks for. Operations that change anything are done by the superuser.
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

/// The user who looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The superuser.
    Root,
    /// A user who owns nothing.
    User,
}

/// The result of an operation that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Success, and nothing else.
    Nothing,
    /// Attributes of the inode that was made or changed.
    Made(Attributes),
    /// All attributes, as stat shows them.
    Found(Attributes),
    /// The entries of a directory.
    Names(Names),
}

/// The checked attributes of an inode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// The inode number.
    pub ino: Ino,
    /// Of a directory: its mode and the number of its entries.
    pub dir: Option<(u32, u64)>,
    /// The link count.
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

/// Names, each with its inode number and whether that is a directory.
pub type Names = BTreeMap<u8, (Ino, bool)>;

/// The servers that the tree is on, which decide how many points an operation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// On one server.
    Server,
    /// On several servers: a stat has two points.
    Servers,
    /// On several servers, and directories may be in several partitions: each name of a listing has
    /// a point of its own.
    Partitions,
}

/// The answer to an operation.
pub type Answer = Result<Seen, FsError>;

/// An operation.
#[derive(Debug, Clone)]
struct Operation {
    /// The client, as text for people.
    by: String,
    call: Call,
    /// `None` while the operation is unanswered.
    answer: Option<Answer>,
}

/// A call or an answer: the number of the operation, and whether this is its answer.
#[derive(Debug, Clone, Copy)]
struct Event {
    operation: usize,
    answered: bool,
}

/// The calls and answers of concurrent clients, in real-time order.
#[derive(Debug, Clone)]
pub struct History {
    root: Ino,
    extent: Extent,
    operations: Vec<Operation>,
    events: Vec<Event>,
}

/// The result of a check that found nothing wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Some order explains all answers.
    Linearizable {
        /// Number of states visited.
        states: usize,
    },
    /// The search visited [`STATES_MAX`] states without a result.
    GaveUp,
}

/// No order explains all answers.
#[derive(Debug)]
pub struct Refused {
    /// The history up to the answer that cannot be explained, and the states possible before it.
    pub why: String,
}

impl History {
    /// Begins a history with an empty root directory of mode 0755.
    #[must_use]
    pub fn new(root: Ino, extent: Extent) -> History {
        History { root, extent, operations: Vec::new(), events: Vec::new() }
    }

    /// Records a call. Returns the number of the operation.
    pub fn call(&mut self, by: impl Into<String>, call: Call) -> usize {
        let operation = self.operations.len();
        self.operations.push(Operation { by: by.into(), call, answer: None });
        self.events.push(Event { operation, answered: false });
        operation
    }

    /// Records the answer to an operation.
    pub fn answer(&mut self, operation: usize, answer: Answer) {
        self.operations[operation].answer = Some(answer);
        self.events.push(Event { operation, answered: true });
    }

    /// Number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there are no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The first `events` events, one per line.
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
