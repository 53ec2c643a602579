//! One held directory: its names, and the changes of them that wait to be sent.
//!
//! Changes of one name are sent in their order, one at a time; those of different names at the same
//! time. A caller that sends something itself claims the names first: then nothing of them waits,
//! and nobody else changes them.
//!
//! Times of the directory itself are set when all other changes are sent, and nothing is sent
//! meanwhile: each change of a name sets them, too.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use base::{Attr, Cred, EntryName, HashMap, HashSet, Ino, SetAttr, SetTime, Time, attr::touched};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use wire::{DirRef, Grant};

use super::file::{Change, Local};
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
    /// When the grant came.
    pub(super) granted: Instant,
    pub(super) state: Mutex<State>,
    /// Woken when a change was sent, a name is no longer claimed, or the directory is held no more.
    pub(super) changed: Notify,
}

/// How a directory is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    /// The directory was removed from here, and the server is to be told. Programs wait.
    Leaving,
    /// The directory is given back when everything is sent. Programs wait.
    Returning,
    Over,
}

pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) attr: Attr,
    /// Whether `attr` is known. Otherwise the server is asked when everything is sent.
    pub(super) is_known: bool,
    /// Whether mode and group in `attr` are the server's: new files inherit the group, perhaps.
    pub(super) is_group_known: bool,
    /// Whether the directory has no extended attributes for certain.
    pub(super) is_plain: bool,
    /// Inode number of the directory above.
    pub(super) parent: Ino,
    /// Whether the directory has been moved: where it was made there is a note of that.
    pub(super) is_moved: bool,
    /// In the order of listings.
    names: BTreeMap<(u64, EntryName), Item>,
    inos: (Ino, u16),
    is_asking: bool,
    queue: VecDeque<Op>,
    /// Names with a change on its way, and its number.
    busy: HashMap<EntryName, u64>,
    /// The directory's own times, which are not sent.
    times: Option<Times>,
    is_sending_times: bool,
    /// Number of the last change.
    numbered: u64,
    /// Counts everything that happens here: an answer that was asked for before is old.
    pub(super) changes: u64,
    /// Number of the last change of mode or owner that the server was asked for.
    accesses: u64,
    /// Second names that are on their way, after the first names of their files. Nobody changes what
    /// has either of them meanwhile.
    linking: Vec<[EntryName; 2]>,
    /// Files with two names here that a link has made of one.
    pub(super) twins: HashMap<Ino, Twins>,
    /// Names of which somebody sends a change itself.
    claimed: HashSet<EntryName>,
    /// How many wait for a claim: the directory's own times are not set from here meanwhile.
    pub(super) claims: usize,
    /// A task looks at the queue when its first change is old enough.
    pub(super) is_timed: bool,
    /// The directory is among those of which something may wait.
    pub(super) is_unsent: bool,
}

/// The two names of a file, and whether it had no extended attributes for certain.
#[derive(Debug)]
pub(super) struct Twins {
    pub(super) names: [EntryName; 2],
    pub(super) is_plain: bool,
}

/// An entry of a held directory.
#[derive(Debug, Clone)]
pub(super) enum Item {
    /// A file whose inode is with its name.
    File(Box<Local>),
    Dir(DirRef),
    /// A second name, which is not sent, of the file here that has this one.
    Twin(Ino, EntryName),
    /// A file with other names, of which the server knows more.
    Other(Ino),
}

impl Item {
    pub(super) fn ino(&self) -> Ino {
        match self {
            Item::File(file) => file.attr.ino,
            Item::Dir(dir) => dir.ino,
            Item::Twin(ino, _) | Item::Other(ino) => *ino,
        }
    }
}

/// A change that waits to be sent.
#[derive(Debug, Clone)]
pub(super) struct Op {
    pub(super) name: EntryName,
    pub(super) what: What,
    /// Sent by itself at this time, not before: more may come to it.
    pub(super) due: Instant,
    /// Whether nothing more is expected, so that it goes with the next change that is due.
    pub(super) is_whole: bool,
    /// Changes are numbered in the order in which they came.
    pub(super) number: u64,
}

impl Op {
    /// The other name that all must be sent of before: this gives its file a second one.
    fn first(&self) -> Option<&EntryName> {
        match &self.what {
            What::Link { first, .. } => Some(first),
            What::Update(_) | What::Unlink { .. } | What::Rmdir { .. } => None,
        }
    }

    /// Whether this can only be sent in a request of its own.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self.what, What::Link { .. } | What::Rmdir { .. })
    }

    /// Whether this gives a file the second name `name`.
    fn is_link_of(&self, name: &EntryName) -> bool {
        self.name == *name && self.first().is_some()
    }
}

/// A change of a directory's own times.
#[derive(Debug, Clone)]
pub(super) struct Times {
    pub(super) change: Change,
    due: Instant,
    /// Number of the first of the changes that these are.
    since: u64,
    /// Number of the last one: what came before goes first.
    number: u64,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    /// Tell the server what it does not know of the file of this number.
    Update(Ino),
    /// Give the file of this number, which has a name here, this one, too.
    Link { ino: Ino, first: EntryName, cred: Cred, at: Time },
    /// Remove the name of a file.
    Unlink { ino: Ino, cred: Cred, at: Time },
    /// Remove the directory of this number.
    Rmdir { ino: Ino, cred: Cred, at: Time },
}

impl HeldDir {
    pub(super) fn new(dir: DirRef, attr: Attr, parent: Ino, grant: &Grant, run: Run) -> HeldDir {
        let state = State {
            phase: Phase::Held,
            attr,
            is_known: true,
            is_group_known: true,
            is_plain: true,
            parent,
            is_moved: false,
            names: BTreeMap::new(),
            inos: (grant.inos.first, grant.inos.count),
            is_asking: false,
            queue: VecDeque::new(),
            busy: HashMap::default(),
            times: None,
            is_sending_times: false,
            numbered: 0,
            changes: 0,
            accesses: 0,
            linking: Vec::new(),
            twins: HashMap::default(),
            claimed: HashSet::default(),
            claims: 0,
            is_timed: false,
            is_unsent: false,
        };
        let granted = Instant::now();
        HeldDir { dir, run, granted, state: Mutex::new(state), changed: Notify::new() }
    }
}

impl HeldDir {
    /// Returns when `is_so` says so of the directory.
    pub(super) async fn until(&self, mut is_so: impl FnMut(&mut State) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if is_so(&mut self.state.lock()) {
                return;
            }
            changed.await;
        }
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
            Item::File(_) | Item::Dir(_) | Item::Twin(..) | Item::Other(_) => None,
        }
    }

    pub(super) fn put(&mut self, pos: u64, name: EntryName, item: Item) {
        self.changes += 1;
        self.names.insert((pos, name), item);
    }

    pub(super) fn take(&mut self, pos: u64, name: &EntryName) -> Option<Item> {
        self.changes += 1;
        self.names.remove(&(pos, name.clone()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Has the directory leave, if it is empty, nobody is changing anything in it, and its removal
    /// concerns no other directory than the one above.
    pub(super) fn leaves(&mut self) -> bool {
        let is_free = self.claimed.is_empty() && self.claims == 0;
        let may_leave = self.phase == Phase::Held && !self.is_moved;
        let leaves = may_leave && self.is_empty() && is_free;
        if leaves {
            self.phase = Phase::Leaving;
        }
        leaves
    }

    /// The names after a position, in the order of listings.
    pub(super) fn names_after(&self, after: u64) -> impl Iterator<Item = (u64, &EntryName, &Item)> {
        let least = EntryName::new(&[1]).expect("one byte that is not zero is a name");
        let from = (after.saturating_add(1), least);
        self.names.range(from..).map(|((pos, name), item)| (*pos, name, item))
    }

    /// Inode numbers of all files.
    pub(super) fn files(&self) -> Vec<Ino> {
        let files = self.names.values().filter(|item| matches!(item, Item::File(_)));
        files.map(Item::ino).collect()
    }

    /// Inode numbers and names of all files.
    pub(super) fn places(&self) -> Vec<(Ino, EntryName)> {
        let files = self.names.iter().filter(|(_, item)| matches!(item, Item::File(_)));
        files.map(|((_, name), item)| (item.ino(), name.clone())).collect()
    }

    /// Notes a change of names: by how many there are more, how many of them directories, and when.
    pub(super) fn touch(&mut self, names: i64, subdirs: i32, at: Time) {
        self.changes += 1;
        self.attr.size = self.attr.size.saturating_add_signed(names);
        self.attr.nlink = self.attr.nlink.saturating_add_signed(subdirs);
        let Attr { mtime, ctime, .. } = self.attr;
        let (mtime, ctime) = touched(mtime, ctime, at);
        (self.attr.mtime, self.attr.ctime) = (mtime, ctime);
        if let Some(times) = &mut self.times {
            (times.change.set.mtime, times.change.at) = (Some(SetTime::At(mtime)), ctime);
        }
    }

    /// Notes that the directory was listed. A time of access that was set before must not come after
    /// that.
    pub(super) fn was_listed(&mut self, at: Time) {
        self.attr.atime = at;
        if let Some(times) = &mut self.times
            && times.change.set.atime.is_some()
        {
            times.change.set.atime = Some(SetTime::At(at));
        }
    }

    /// Sets the directory's own times. How many changes wait since; `None` when they cannot wait, as
    /// somebody is sending a change of a name itself.
    pub(super) fn set_times(
        &mut self,
        (set, cred): (SetAttr, &Cred),
        at: Time,
        due: Instant,
    ) -> Option<usize> {
        let is_free = self.claimed.is_empty() && self.claims == 0;
        if self.phase != Phase::Held || !self.is_known || !is_free {
            return None;
        }
        self.changes += 1;
        self.numbered += 1;
        let mut change = Change::new(set, cred, at, &self.attr);
        change.at = at.max(self.attr.ctime);
        change.apply(&mut self.attr);
        let number = self.numbered;
        let (added, times) = match self.times.take() {
            None => (1, Times { change, due, since: number, number }),
            Some(before) => (0, Times { change: before.change.then(change), number, ..before }),
        };
        self.times = Some(times);
        Some(added)
    }

    /// The server is about to be asked to change mode or owner of the directory: the number of that.
    pub(super) fn begin_access(&mut self) -> u64 {
        self.accesses += 1;
        self.accesses
    }

    /// The server has done so, and tells what it knows of the directory, which is not all.
    pub(super) fn learn_access(&mut self, number: u64, told: &Attr) {
        self.changes += 1;
        if number != self.accesses {
            return self.access_is_unknown();
        }
        let Attr { mode, uid, gid, ctime, .. } = *told;
        self.attr = Attr { mode, uid, gid, ctime: ctime.max(self.attr.ctime), ..self.attr };
    }

    /// Mode and owner may be others by now: the server was asked for two changes at a time, or has
    /// not answered. Answers that are still to come are old.
    pub(super) fn access_is_unknown(&mut self) {
        self.accesses += 1;
        (self.is_known, self.is_group_known) = (false, false);
    }

    /// Takes the directory's own times, if they are to be sent now, and nothing from before waits.
    pub(super) fn take_times(&mut self, now: Instant) -> Option<Times> {
        let is_due = self.upto(now) != u64::MAX;
        if !is_due || self.is_sending_times || self.times_must_wait() {
            return None;
        }
        self.is_sending_times = true;
        self.times.take()
    }

    /// Whether changes from before the directory's own times are not sent.
    fn times_must_wait(&self) -> bool {
        let Some(times) = &self.times else { return false };
        !self.busy.is_empty() || self.queue.iter().any(|op| op.number < times.number)
    }

    /// The number of the last change that may be sent now: once the directory's own times are due,
    /// what came after them waits.
    fn upto(&self, now: Instant) -> u64 {
        let all = self.phase != Phase::Held;
        let due = self.times.as_ref().filter(|times| all || times.due <= now);
        due.map_or(u64::MAX, |times| times.number)
    }

    /// Makes the directory's own times due. Whether there are any.
    pub(super) fn hurry_times(&mut self, now: Instant) -> bool {
        let Some(times) = &mut self.times else { return false };
        times.due = times.due.min(now);
        true
    }

    /// The directory's own times were sent.
    pub(super) fn times_are_sent(&mut self) {
        self.changes += 1;
        self.is_sending_times = false;
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
    pub(super) fn push(
        &mut self,
        name: &EntryName,
        what: What,
        due: Instant,
        is_whole: bool,
    ) -> usize {
        self.changes += 1;
        self.numbered += 1;
        let op = Op { name: name.clone(), what, due, is_whole, number: self.numbered };
        let mut same = self.queue.iter_mut().rev().filter(|queued| queued.name == op.name);
        if let Some(last) = same.next()
            && let (What::Update(queued), What::Update(new)) = (&last.what, &op.what)
            && queued == new
        {
            // With the first number it keeps its place before what came in between.
            last.due = last.due.min(op.due);
            last.is_whole |= is_whole;
            return 0;
        }
        self.queue.push_back(op);
        1
    }

    /// Takes back changes of a name that were not begun, if all are of this file. How many there
    /// were; `None` when a change is on its way.
    pub(super) fn withdraw(&mut self, name: &EntryName, ino: Ino) -> Option<usize> {
        if self.busy.contains_key(name) {
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

    /// Whether anything but a second name waits under a name, or is on its way.
    pub(super) fn is_wanted(&self, name: &EntryName) -> bool {
        let waits = |op: &Op| op.name == *name && !op.is_link_of(name);
        self.busy.contains_key(name) || self.queue.iter().any(waits)
    }

    /// Number of the first change of a name that waits.
    pub(super) fn first_of(&self, name: &EntryName) -> Option<u64> {
        self.queue.iter().filter(|op| op.name == *name).map(|op| op.number).min()
    }

    /// The last change of a name is no later one than `number`: who waits for all up to that waits
    /// for it.
    pub(super) fn counts_as(&mut self, name: &EntryName, number: u64) {
        if let Some(op) = self.queue.iter_mut().rev().find(|op| op.name == *name) {
            op.number = op.number.min(number);
        }
    }

    /// Whether a second name of a file waits, and was not begun.
    pub(super) fn has_link(&self, name: &EntryName) -> bool {
        self.queue.iter().any(|op| op.is_link_of(name))
    }

    /// Whether a second name of a file waits, or is on its way.
    pub(super) fn sends_link(&self, name: &EntryName) -> bool {
        self.has_link(name) || self.linking.iter().any(|[_, second]| second == name)
    }

    /// Takes back a second name of a file, if it was not begun.
    pub(super) fn withdraw_link(&mut self, name: &EntryName) {
        self.queue.retain(|op| !op.is_link_of(name));
    }

    /// The two names of a file of which the second one is not sent.
    pub(super) fn twins_of(&self, pos: u64, name: &EntryName) -> Option<[EntryName; 2]> {
        match self.get(pos, name)? {
            Item::File(file) => file.twin.as_ref().map(|(twin, _)| [name.clone(), twin.clone()]),
            Item::Twin(_, first) => Some([first.clone(), name.clone()]),
            Item::Dir(_) | Item::Other(_) => None,
        }
    }

    /// Takes back the removal of a file that was never made. How many changes that were.
    pub(super) fn withdraw_removal(&mut self, name: &EntryName, ino: Ino) -> usize {
        let is_it = |op: &Op| {
            op.name == *name && matches!(op.what, What::Unlink { ino: other, .. } if other == ino)
        };
        let before = self.queue.len();
        self.queue.retain(|op| !is_it(op));
        before - self.queue.len()
    }

    /// Takes the changes that may be sent now; all are due when the directory is given back.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Op> {
        let all = self.phase != Phase::Held;
        let room = IN_FLIGHT_MAX.saturating_sub(self.busy.len());
        let mut taken = Vec::new();
        if room == 0 || self.is_sending_times || !self.queue.iter().any(|op| all || op.due <= now) {
            return taken;
        }
        let mut left: HashSet<EntryName> = HashSet::default();
        let (mut at, upto) = (0, self.upto(now));
        while taken.len() < room
            && let Some(op) = self.queue.get(at)
        {
            // An earlier change of the name goes first.
            let is_free = !self.busy.contains_key(&op.name)
                && !left.contains(&op.name)
                && !self.first_waits(op);
            if is_free
                && op.number <= upto
                && (all || op.due <= now)
                && let Some(op) = self.queue.remove(at)
            {
                self.busy.insert(op.name.clone(), op.number);
                if let Some(first) = op.first() {
                    self.linking.push([first.clone(), op.name.clone()]);
                }
                taken.push(op);
            } else {
                left.insert(self.queue[at].name.clone());
                at += 1;
            }
        }
        taken
    }

    /// A change is due by itself: what is whole goes with it.
    pub(super) fn gather(&mut self, now: Instant) {
        self.is_timed = false;
        for op in self.queue.iter_mut().filter(|op| op.is_whole) {
            op.due = op.due.min(now);
        }
    }

    /// The time at which the queue should be looked at again.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        if self.is_sending_times {
            return None;
        }
        let upto = self.upto(now);
        let has_room = self.busy.len() < IN_FLIGHT_MAX;
        let is_free = |op: &&Op| {
            let is_busy = self.busy.contains_key(&op.name);
            has_room && op.number <= upto && !is_busy && !self.first_waits(op)
        };
        let of_names = self.queue.iter().filter(is_free).map(|op| op.due).min();
        let times = self.times.as_ref().filter(|_| !self.times_must_wait()).map(|times| times.due);
        of_names.into_iter().chain(times).min()
    }

    /// A change was sent.
    pub(super) fn done(&mut self, name: &EntryName) {
        self.changes += 1;
        self.busy.remove(name);
        self.linking.retain(|[_, second]| second != name);
    }

    /// Whether this is a second name of a file of which something is not sent that came before. Later
    /// than that come only contents and closes.
    fn first_waits(&self, op: &Op) -> bool {
        op.first().is_some_and(|first| {
            let goes_first = |other: &Op| other.name == *first && other.number < op.number;
            self.busy.contains_key(first) || self.queue.iter().any(goes_first)
        })
    }

    /// Number of the last change.
    pub(super) fn last(&self) -> u64 {
        self.numbered
    }

    /// Makes all changes of these names due up to a number, or those of all names. Whether there
    /// are none, also on their way.
    pub(super) fn hurry(&mut self, names: Option<&[&EntryName]>, upto: u64, now: Instant) -> bool {
        // A second name is sent after what came before of its file.
        let firsts: Vec<EntryName> = match names {
            Some(names) => {
                let of_names = self.queue.iter().filter(|op| names.contains(&&op.name));
                of_names.filter_map(|op| op.first().cloned()).collect()
            }
            None => Vec::new(),
        };
        let concerns = |name: &EntryName, number: u64| {
            let is_named = names.is_none_or(|names| names.contains(&name));
            number <= upto && (is_named || firsts.contains(name))
        };
        let mut is_idle = !self.busy.iter().any(|(name, number)| concerns(name, *number));
        for op in self.queue.iter_mut().filter(|op| concerns(&op.name, op.number)) {
            op.due = op.due.min(now);
            is_idle = false;
        }
        if names.is_none() {
            is_idle &= !self.is_sending_times;
            if let Some(times) = self.times.as_mut().filter(|times| times.since <= upto) {
                times.due = times.due.min(now);
                is_idle = false;
            }
        }
        is_idle
    }

    /// Whether nothing waits, or is on its way.
    pub(super) fn is_idle(&self) -> bool {
        let are_known = self.times.is_none() && !self.is_sending_times;
        self.queue.is_empty() && self.busy.is_empty() && are_known
    }

    pub(super) fn is_claimed(&self, name: &EntryName) -> bool {
        self.claimed.contains(name) || self.linking.iter().any(|names| names.contains(name))
    }

    /// Claims names of which nothing waits and nobody has claimed any. The directory's own times
    /// must be sent first: they may not overtake a change that somebody sends itself. So must the
    /// removal of the directory.
    pub(super) fn claim(&mut self, names: &[&EntryName]) -> bool {
        if self.times.is_some() || self.is_sending_times || self.phase == Phase::Leaving {
            return false;
        }
        if names.iter().any(|name| self.is_claimed(name)) {
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

    /// Takes out everything that is not begun: the directory is lost. The changes of names, and
    /// whether its own times are among what is lost.
    pub(super) fn give_up(&mut self) -> (Vec<Op>, bool) {
        self.phase = Phase::Returning;
        self.names.retain(|_, item| !matches!(item, Item::Twin(..)));
        for item in self.names.values_mut() {
            if let Item::File(file) = item {
                file.twin = None;
            }
        }
        (self.queue.drain(..).collect(), self.times.take().is_some())
    }
}
