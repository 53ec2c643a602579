//! The search: all states that the file system may be in, event by event.

use std::rc::Rc;

use base::HashSet;

use super::{
    By, Call, Extent, History, Names, Operation, Refused, STATES_MAX, Seen, Verdict,
    model::{After, Id, State},
};

/// All 26 bits, one for each letter: every name of a listing is explained.
const ALL_SHOWN: u32 = (1 << 26) - 1;

/// How far an operation that is under way has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Progress {
    /// The operation has found the inode that it will work on.
    Looked(Id),
    /// A listing has found its directory. The bits are the names whose listing is explained by some
    /// moment since; see [`State::shown`].
    Listed(Id, u32),
    /// The operation has happened, and its answer is on the way.
    Done,
}

/// A state, with the progress of the operations in flight that led to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Possible {
    /// Sorted by operation. Operations without progress are left out.
    progress: Vec<(usize, Progress)>,
    state: Rc<State>,
}

struct Search<'a> {
    history: &'a History,
    /// Operations that were called and are not answered yet.
    open: Vec<usize>,
    states: usize,
}

pub(super) fn run(history: &History) -> Result<Verdict, Refused> {
    let mut search = Search { history, open: Vec::new(), states: 0 };
    let state = Rc::new(State::new(history.root));
    let mut possible = vec![Possible { progress: Vec::new(), state }];
    for (at, event) in history.events.iter().enumerate() {
        if event.answered {
            let next = search.answered(&possible, event.operation);
            if search.states > STATES_MAX {
                return Ok(Verdict::GaveUp);
            }
            if next.is_empty() {
                return Err(refused(history, at, &possible));
            }
            possible = next;
            search.open.retain(|open| *open != event.operation);
        } else {
            search.open.push(event.operation);
            possible.iter_mut().for_each(|one| search.do_harmless(one));
        }
    }
    Ok(Verdict::Linearizable { states: search.states })
}

fn refused(history: &History, at: usize, possible: &[Possible]) -> Refused {
    let Operation { by, call, answer } = &history.operations[history.events[at].operation];
    let answer = answer.as_ref().expect("this is its answer");
    let mut why =
        format!("nothing explains that {by} {call:?} = {answer:?}\n  there could have been");
    for one in possible.iter().take(4) {
        why += &format!("\n    {:?}", one.state);
    }
    if possible.len() > 4 {
        why += &format!("\n    and {} more", possible.len() - 4);
    }
    Refused { why: format!("{why}\n  after\n{}", history.show(at + 1)) }
}

impl Possible {
    fn progress(&self, operation: usize) -> Option<Progress> {
        let found = self.progress.binary_search_by_key(&operation, |(other, _)| *other);
        found.ok().map(|at| self.progress[at].1)
    }

    fn set(&mut self, operation: usize, progress: Option<Progress>) {
        let found = self.progress.binary_search_by_key(&operation, |(other, _)| *other);
        match (found, progress) {
            (Ok(at), Some(progress)) => self.progress[at].1 = progress,
            (Ok(at), None) => drop(self.progress.remove(at)),
            (Err(at), Some(progress)) => self.progress.insert(at, (operation, progress)),
            (Err(_), None) => {}
        }
    }
}

impl Search<'_> {
    /// All possible states once an operation has been answered.
    fn answered(&mut self, possible: &[Possible], operation: usize) -> Vec<Possible> {
        let mut met: HashSet<Possible> = possible.iter().cloned().collect();
        let mut left = possible.to_vec();
        let mut found = HashSet::default();
        let mut ended = Vec::new();
        while let Some(one) = left.pop() {
            self.states += 1;
            if self.states > STATES_MAX {
                break;
            }
            if one.progress(operation) == Some(Progress::Done) {
                let mut one = one;
                one.set(operation, None);
                if found.insert(one.clone()) {
                    ended.push(one);
                }
                continue;
            }
            for next in self.next(&one) {
                if met.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
        ended
    }

    /// Whether an operation first finds an inode and then, at a second point, works on it.
    fn has_two_points(&self, call: &Call) -> bool {
        match call {
            Call::Link(..) | Call::Chmod(..) | Call::List(..) => true,
            Call::Stat(..) => self.history.extent != Extent::Server,
            Call::Mkdir(_)
            | Call::Create(_)
            | Call::Unlink(_)
            | Call::Rmdir(_)
            | Call::Rename(..) => false,
        }
    }

    /// The names of a listing whose names have a point each; `None` for any other operation.
    fn listed(&self, operation: usize) -> Option<(By, &Names)> {
        let Operation { call, answer, .. } = &self.history.operations[operation];
        match (self.history.extent, call, answer) {
            (Extent::Partitions, Call::List(_, by), Some(Ok(Seen::Names(names)))) => {
                Some((*by, names))
            }
            _ => None,
        }
    }

    /// Whether an operation can work on the inode that it has found.
    fn can_work_on(&self, state: &State, operation: usize, id: Id) -> bool {
        let call = &self.history.operations[operation].call;
        let may_be_gone =
            self.history.extent == Extent::Partitions && matches!(call, Call::List(..));
        may_be_gone || state.can_work_on(call, id)
    }

    /// Does an operation in a state, on the inode `looked`, or on the one that it finds now.
    fn act(&self, one: &Possible, operation: usize, looked: Option<Id>) -> Option<After> {
        let Operation { call, answer, .. } = &self.history.operations[operation];
        let looked = looked.map_or_else(|| one.state.look(call), Ok);
        let new = Id::try_from(operation + 1).expect("histories are short");
        one.state.act(call, looked, new, answer.as_ref())
    }

    /// All possible next states: one step of any operation in flight.
    fn next(&self, one: &Possible) -> Vec<Possible> {
        let mut found = Vec::new();
        for operation in self.open.iter().copied() {
            let call = &self.history.operations[operation].call;
            let looked = match one.progress(operation) {
                Some(Progress::Done) => continue,
                Some(Progress::Looked(id) | Progress::Listed(id, _)) => Some(id),
                None => None,
            };
            if let Some((by, names)) = self.listed(operation) {
                found.extend(self.list_on(one, operation, looked, (by, names)));
                continue;
            }
            let mut acted = vec![self.act(one, operation, None)];
            if let Some(id) = looked
                && self.can_work_on(&one.state, operation, id)
            {
                acted.push(self.act(one, operation, Some(id)));
            }
            for After(state) in acted.into_iter().flatten() {
                let mut next = one.clone();
                next.set(operation, Some(Progress::Done));
                if let Some(state) = state {
                    next.state = Rc::new(state);
                }
                self.do_harmless(&mut next);
                found.push(next);
            }
            if self.has_two_points(call)
                && let Ok(id) = one.state.look(call)
                && looked != Some(id)
            {
                let mut next = one.clone();
                next.set(operation, Some(Progress::Looked(id)));
                self.do_harmless(&mut next);
                found.push(next);
            }
        }
        found
    }

    /// The next states of a listing: it begins anew in another directory, or shows the number of an
    /// inode.
    fn list_on(
        &self,
        one: &Possible,
        operation: usize,
        looked: Option<Id>,
        (by, names): (By, &Names),
    ) -> Vec<Possible> {
        let mut found = Vec::new();
        if let Ok(dir) = one.state.look(&self.history.operations[operation].call)
            && looked != Some(dir)
        {
            let mut next = one.clone();
            next.set(operation, Some(Progress::Listed(dir, 0)));
            found.push(next);
        }
        for state in looked.into_iter().flat_map(|dir| one.state.learn(dir, by, names)) {
            found.push(Possible { state: Rc::new(state), ..one.clone() });
        }
        found.iter_mut().for_each(|next| self.do_harmless(next));
        found
    }

    /// Adds the names that a listing may have seen in this state to its progress.
    fn list_now(&self, one: &mut Possible, operation: usize, (by, names): (By, &Names)) {
        let begun = match one.progress(operation) {
            Some(Progress::Done) => return,
            Some(Progress::Looked(dir)) => Some((dir, 0)),
            Some(Progress::Listed(dir, shown)) => Some((dir, shown)),
            None => {
                let looked = one.state.look(&self.history.operations[operation].call);
                looked.ok().map(|dir| (dir, 0))
            }
        };
        let Some((dir, shown)) = begun else { return };
        let shown = shown | one.state.shown(dir, by, names);
        // Names other than `a` to `z` are in no state.
        let all = shown == ALL_SHOWN && names.keys().all(u8::is_ascii_lowercase);
        one.set(operation, Some(if all { Progress::Done } else { Progress::Listed(dir, shown) }));
    }

    /// Does every operation that never changes anything and whose answer fits now. Also takes the
    /// first point of operations that have found nothing yet; they may still look again later.
    fn do_harmless(&self, one: &mut Possible) {
        for operation in self.open.iter().copied() {
            let Operation { call, answer, .. } = &self.history.operations[operation];
            let looked = match one.progress(operation) {
                Some(Progress::Done) => continue,
                Some(Progress::Looked(id) | Progress::Listed(id, _)) => Some(id),
                None => None,
            };
            if let Some(listed) = self.listed(operation) {
                self.list_now(one, operation, listed);
                continue;
            }
            let held = looked.filter(|id| self.can_work_on(&one.state, operation, *id));
            let now = self.act(one, operation, None);
            let then = held.and_then(|id| self.act(one, operation, Some(id)));
            let same = [now, then].into_iter().flatten().any(|After(state)| state.is_none());
            // A chmod to the present mode changes nothing now, but may change it later.
            let looks = matches!(call, Call::Stat(..) | Call::List(..));
            let harmless = answer.as_ref().is_some_and(|answer| looks || answer.is_err());
            if same && harmless {
                one.set(operation, Some(Progress::Done));
            } else if looked.is_none()
                && self.has_two_points(call)
                && let Ok(id) = one.state.look(call)
            {
                one.set(operation, Some(Progress::Looked(id)));
            }
        }
    }
}
