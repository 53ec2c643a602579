//! One held directory: its names, and the changes of them that wait to be sent.
//!
//! Changes of one name are sent in their order, one at a time; those of different names at the same
//! time. A caller that sends something itself claims the names first: then nothing of them waits,
//! and nobody else changes them.

use std::collections::{BTreeMap, VecDeque};

use base::{Attr, Cred, EntryName, HashSet, Ino, Time};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use wire::{DirRef, Grant};

use super::file::Local;
use crate::runs::Run;

/// Most changes of one directory that are on their way at the same time.
const IN_FLIGHT_MAX: usize = 64;
/// Fewest inode numbers left before more are asked for.
const INOS_LOW: u16 = 16;

/// A directory that is held.
pub(super) struct HeldDir {
    pub(super) dir: DirRef,
    /// The server's run, and the session there, that granted it.
    pub(super) run: Run,
    pub(super) state: Mutex<State>,
    /// Woken when a change was sent, a name is no longer claimed, or the directory is held no more.
    pub(super) changed: Notify,
}

/// How a directory is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    /// It is given back when everything is sent. Programs wait.
    Returning,
    Over,
}

pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) attr: Attr,
    /// Whether `attr` is known. Otherwise the server is asked when everything is sent.
    pub(super) is_known: bool,
    /// Whether the directory has no extended attributes for certain.
    pub(super) is_plain: bool,
    /// Inode number of the directory above.
    pub(super) parent: Ino,
    /// In the order of listings.
    names: BTreeMap<(u64, EntryName), Item>,
    inos: (Ino, u16),
    is_asking: bool,
    queue: VecDeque<Op>,
    /// Names with a change on its way.
    busy: HashSet<EntryName>,
    /// Names of which somebody sends a change itself.
    claimed: HashSet<EntryName>,
    /// A task looks at the queue when its first change is old enough.
    pub(super) is_timed: bool,
}

/// What is under a name.
#[derive(Debug, Clone)]
pub(super) enum Item {
    /// A file whose inode is with its name.
    File(Box<Local>),
    Dir(DirRef),
    /// A file with other names, of which the server knows more.
    Other(Ino),
}

impl Item {
    pub(super) fn ino(&self) -> Ino {
        match self {
            Item::File(file) => file.attr.ino,
            Item::Dir(dir) => dir.ino,
            Item::Other(ino) => *ino,
        }
    }
}

/// A change that waits to be sent.
#[derive(Debug, Clone)]
pub(super) struct Op {
    pub(super) name: EntryName,
    pub(super) what: What,
    /// Not before this time: more may come to it.
    pub(super) due: Instant,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    /// Tell the server what it does not know of the file of this number.
    Update(Ino),
    /// Remove the name.
    Unlink { ino: Ino, cred: Cred, at: Time },
}

impl HeldDir {
    pub(super) fn new(dir: DirRef, attr: Attr, parent: Ino, grant: &Grant, run: Run) -> HeldDir {
        let state = State {
            phase: Phase::Held,
            attr,
            is_known: true,
            is_plain: true,
            parent,
            names: BTreeMap::new(),
            inos: (grant.inos.first, grant.inos.count),
            is_asking: false,
            queue: VecDeque::new(),
            busy: HashSet::default(),
            claimed: HashSet::default(),
            is_timed: false,
        };
        HeldDir { dir, run, state: Mutex::new(state), changed: Notify::new() }
    }
}

impl State {
    pub(super) fn get(&self, pos: u64, name: &EntryName) -> Option<&Item> {
        self.names.get(&(pos, name.clone()))
    }

    /// The file of this number under a name.
    pub(super) fn file(&mut self, pos: u64, name: &EntryName, ino: Ino) -> Option<&mut Local> {
        match self.names.get_mut(&(pos, name.clone()))? {
            Item::File(file) if file.attr.ino == ino => Some(file),
            Item::File(_) | Item::Dir(_) | Item::Other(_) => None,
        }
    }

    pub(super) fn put(&mut self, pos: u64, name: EntryName, item: Item) {
        self.names.insert((pos, name), item);
    }

    pub(super) fn take(&mut self, pos: u64, name: &EntryName) -> Option<Item> {
        self.names.remove(&(pos, name.clone()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The names after a position, in the order of listings.
    pub(super) fn names_after(&self, after: u64) -> impl Iterator<Item = (u64, &EntryName, &Item)> {
        let names = self.names.iter().skip_while(move |((pos, _), _)| *pos <= after);
        names.map(|((pos, name), item)| (*pos, name, item))
    }

    /// Notes a change of names: by how many there are more, how many of them directories, and when.
    pub(super) fn touch(&mut self, names: i64, subdirs: i32, at: Time) {
        self.attr.size = self.attr.size.saturating_add_signed(names);
        self.attr.nlink = self.attr.nlink.saturating_add_signed(subdirs);
        let at = at.max(self.attr.ctime);
        (self.attr.mtime, self.attr.ctime) = (at, at);
    }

    /// Takes an inode number. Whether more should be asked for.
    pub(super) fn take_ino(&mut self) -> (Option<Ino>, bool) {
        let (next, left) = self.inos;
        let taken = (left > 0).then_some(next);
        if taken.is_some() {
            self.inos = (Ino(next.0 + 1), left - 1);
        }
        let asks = self.inos.1 < INOS_LOW && !std::mem::replace(&mut self.is_asking, true);
        (taken, asks)
    }

    /// Numbers have come: they take the place of those that are left.
    pub(super) fn give_inos(&mut self, inos: Option<(Ino, u16)>) {
        self.is_asking = false;
        self.inos = inos.unwrap_or(self.inos);
    }

    /// Adds a change to the queue, unless the last one of the name says as much. How many were
    /// added.
    pub(super) fn push(&mut self, op: Op) -> usize {
        let mut same = self.queue.iter_mut().rev().filter(|queued| queued.name == op.name);
        if let Some(last) = same.next()
            && let (What::Update(queued), What::Update(new)) = (&last.what, &op.what)
            && queued == new
        {
            last.due = last.due.min(op.due);
            return 0;
        }
        self.queue.push_back(op);
        1
    }

    /// Takes back changes of a name that were not begun, if all are of this file. How many there
    /// were; `None` when a change is on its way.
    pub(super) fn withdraw(&mut self, name: &EntryName, ino: Ino) -> Option<usize> {
        if self.busy.contains(name) {
            return None;
        }
        let of_file = |op: &Op| matches!(op.what, What::Update(other) if other == ino);
        if self.queue.iter().any(|op| op.name == *name && !of_file(op)) {
            return None;
        }
        let before = self.queue.len();
        self.queue.retain(|op| op.name != *name);
        Some(before - self.queue.len())
    }

    /// Takes the next change that may be sent; all are due when the directory is given back.
    pub(super) fn next(&mut self, now: Instant) -> Option<Op> {
        if self.busy.len() >= IN_FLIGHT_MAX {
            return None;
        }
        let all = self.phase != Phase::Held;
        let mut before: HashSet<&EntryName> = HashSet::default();
        let mut found = None;
        for (index, op) in self.queue.iter().enumerate() {
            let is_free = !self.busy.contains(&op.name) && !before.contains(&op.name);
            if is_free && (all || op.due <= now) {
                found = Some(index);
                break;
            }
            before.insert(&op.name);
        }
        let op = self.queue.remove(found?)?;
        self.busy.insert(op.name.clone());
        Some(op)
    }

    /// The time at which the queue should be looked at again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queue.iter().filter(|op| !self.busy.contains(&op.name)).map(|op| op.due).min()
    }

    /// A change was sent.
    pub(super) fn done(&mut self, name: &EntryName) {
        self.busy.remove(name);
    }

    /// Makes all changes of these names due, or all there are. Whether there are none, also on
    /// their way.
    pub(super) fn hurry(&mut self, names: Option<&[&EntryName]>, now: Instant) -> bool {
        let concerns = |name: &EntryName| names.is_none_or(|names| names.contains(&name));
        let mut is_idle = !self.busy.iter().any(concerns);
        for op in self.queue.iter_mut().filter(|op| concerns(&op.name)) {
            op.due = op.due.min(now);
            is_idle = false;
        }
        is_idle
    }

    /// Whether nothing waits, or is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.busy.is_empty()
    }

    pub(super) fn is_claimed(&self, name: &EntryName) -> bool {
        self.claimed.contains(name)
    }

    /// Claims names of which nothing waits and nobody has claimed any.
    pub(super) fn claim(&mut self, names: &[&EntryName]) -> bool {
        if names.iter().any(|name| self.claimed.contains(*name)) {
            return false;
        }
        self.claimed.extend(names.iter().map(|name| (*name).clone()));
        true
    }

    pub(super) fn unclaim(&mut self, names: &[EntryName]) {
        names.iter().for_each(|name| {
            self.claimed.remove(name);
        });
    }

    /// Takes out everything that is not begun: the directory is lost. The names of all changes.
    pub(super) fn give_up(&mut self) -> Vec<Op> {
        self.phase = Phase::Returning;
        self.queue.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::{DirId, FileKind};
    use wire::InoRange;

    use super::*;

    fn held() -> HeldDir {
        let grant = Grant {
            inos: InoRange { first: Ino(100), count: 20 },
            now: Time::default(),
            lease_ms: 1000,
        };
        let dir = DirRef { id: DirId(7), ..DirRef::ROOT };
        let run = Run { server: 0, incarnation: 1, life: 0 };
        HeldDir::new(dir, Attr::blank(Ino(9), FileKind::Directory), Ino(1), &grant, run)
    }

    fn name(text: &str) -> EntryName {
        EntryName::new(text.as_bytes()).unwrap()
    }

    fn update(text: &str, ino: u64, due: Instant) -> Op {
        Op { name: name(text), what: What::Update(Ino(ino)), due }
    }

    fn unlink(text: &str, due: Instant) -> Op {
        let what = What::Unlink { ino: Ino(1), cred: Cred::ROOT, at: Time::default() };
        Op { name: name(text), what, due }
    }

    #[tokio::test(start_paused = true)]
    async fn changes_of_one_name_are_sent_in_order_and_others_meanwhile() {
        let (held, now) = (held(), Instant::now());
        let mut state = held.state.lock();
        assert_eq!(state.push(update("a", 1, now)), 1);
        assert_eq!(state.push(update("a", 1, now)), 0, "it says as much");
        state.push(unlink("a", now));
        assert_eq!(state.push(update("a", 2, now)), 1, "another file");
        state.push(update("b", 3, now + Duration::from_secs(1)));
        assert!(matches!(state.next(now).unwrap().what, What::Update(Ino(1))));
        assert!(state.next(now).is_none(), "a has one on its way, and b may wait");
        assert!(state.next(now + Duration::from_secs(1)).is_some_and(|op| op.name == name("b")));
        state.done(&name("a"));
        assert!(matches!(state.next(now).unwrap().what, What::Unlink { .. }));
        state.done(&name("a"));
        assert!(matches!(state.next(now).unwrap().what, What::Update(Ino(2))));
        assert!(!state.is_idle() && !state.hurry(Some(&[&name("a")]), now));
        state.done(&name("a"));
        assert!(state.hurry(Some(&[&name("a")]), now) && !state.hurry(None, now));
        state.done(&name("b"));
        assert!(state.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_made_and_removed_before_it_was_sent_is_never_sent() {
        let (held, now) = (held(), Instant::now());
        let mut state = held.state.lock();
        state.push(update("a", 1, now));
        assert_eq!(state.withdraw(&name("a"), Ino(1)), Some(1));
        assert!(state.is_idle());
        state.push(unlink("a", now));
        state.push(update("a", 2, now));
        assert_eq!(state.withdraw(&name("a"), Ino(2)), None, "the one before is still there");
        assert!(state.next(now).is_some());
        assert_eq!(state.withdraw(&name("a"), Ino(2)), None);
    }

    #[test]
    fn numbers_are_asked_for_once_before_they_run_out() {
        let held = held();
        let mut state = held.state.lock();
        let taken: Vec<_> = (0..20).map(|_| state.take_ino()).collect();
        assert_eq!(taken.iter().filter(|(_, asks)| *asks).count(), 1);
        assert_eq!(taken.last().unwrap().0, Some(Ino(119)));
        assert_eq!(state.take_ino(), (None, false));
        state.give_inos(Some((Ino(500), 256)));
        assert_eq!(state.take_ino(), (Some(Ino(500)), false));
    }
}
