//! Checks "Nothing that was answered as durable is lost; nothing that was refused happened."
//!
//! A client that works alone in a directory knows each state the directory went through. After a
//! power cut the directory must be in one of these states, none older than the last durable one:
//! only a suffix of whole operations may be lost. The operation that was in flight may have been
//! applied on top of that state, because its client retried it. A write addresses the open file and
//! not its name. Where a rename of that file is among the lost operations, the write is in the file
//! under its earlier name.

use std::collections::BTreeMap;

use anyhow::bail;
use base::FsError;

/// A directory: the thing under each name.
pub type State = BTreeMap<String, Thing>;

/// A thing that has a name in the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Thing {
    /// An empty directory.
    Directory,
    /// A file with its contents.
    File(Vec<u8>),
}

/// One operation. It happens as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Make an empty file.
    Create(String),
    /// Make a directory.
    Mkdir(String),
    /// Overwrite the beginning of a file with these bytes.
    Fill(String, Vec<u8>),
    /// Move to a free name.
    Rename(String, String),
    /// Remove a file.
    Unlink(String),
    /// Remove a directory.
    Rmdir(String),
}

impl Act {
    /// Applies the operation to a state.
    ///
    /// # Errors
    /// The error that POSIX asks for when the operation cannot be done.
    pub fn apply(&self, state: &mut State) -> Result<(), FsError> {
        let taken = |state: &State, name: &String| match state.get(name) {
            Some(_) => Err(FsError::Exists),
            None => Ok(()),
        };
        match self {
            Act::Create(name) => {
                taken(state, name)?;
                state.insert(name.clone(), Thing::File(Vec::new()));
            }
            Act::Mkdir(name) => {
                taken(state, name)?;
                state.insert(name.clone(), Thing::Directory);
            }
            Act::Fill(name, bytes) => match state.get_mut(name) {
                None => return Err(FsError::NotFound),
                Some(Thing::Directory) => return Err(FsError::IsDirectory),
                Some(Thing::File(old)) => {
                    let kept = old.split_off(bytes.len().min(old.len()));
                    old.clone_from(bytes);
                    old.extend(kept);
                }
            },
            Act::Rename(from, to) => {
                let thing = state.get(from).cloned().ok_or(FsError::NotFound)?;
                taken(state, to)?;
                state.remove(from);
                state.insert(to.clone(), thing);
            }
            Act::Unlink(name) => match state.get(name) {
                None => return Err(FsError::NotFound),
                Some(Thing::Directory) => return Err(FsError::IsDirectory),
                Some(Thing::File(_)) => drop(state.remove(name)),
            },
            Act::Rmdir(name) => match state.get(name) {
                None => return Err(FsError::NotFound),
                Some(Thing::File(_)) => return Err(FsError::NotDirectory),
                Some(Thing::Directory) => drop(state.remove(name)),
            },
        }
        Ok(())
    }
}

/// The states that a directory may be in after a power cut, oldest first.
#[derive(Debug)]
pub struct History {
    states: Vec<State>,
    /// The operations between the states: `acts[i]` leads from `states[i]` to `states[i + 1]`.
    acts: Vec<Act>,
    /// Names that are known to be durable as of the state with this index, or a later one.
    names: BTreeMap<String, usize>,
}

impl History {
    /// Begins a history in a state that is durable.
    #[must_use]
    pub fn new(state: State) -> History {
        History { states: vec![state], acts: Vec::new(), names: BTreeMap::new() }
    }

    /// The newest state that the client knows.
    #[must_use]
    pub fn now(&self) -> &State {
        self.states.last().expect("there is always one")
    }

    /// Records an operation that was answered with success, and the state after it.
    pub fn answered(&mut self, act: Act, state: State) {
        self.acts.push(act);
        self.states.push(state);
    }

    /// Records that the present state is durable.
    pub fn durable(&mut self) {
        self.states.drain(..self.states.len() - 1);
        self.acts.clear();
        self.names.clear();
    }

    /// Records that one name is durable as it is now. This says nothing about other names.
    pub fn durable_of(&mut self, name: &str) {
        self.names.insert(name.to_owned(), self.states.len() - 1);
    }

    /// The write `act` to a file that was opened in the present state, as it would be in the state
    /// `at`: to the name that the file had there. `None` for any other operation, and where the
    /// file did not exist yet.
    fn then(&self, act: &Act, at: usize) -> Option<Act> {
        let Act::Fill(name, bytes) = act else { return None };
        let mut name = name;
        for passed in self.acts[at..].iter().rev() {
            match passed {
                Act::Rename(from, to) if to == name => name = from,
                // The file did not exist before this.
                Act::Create(made) if made == name => return None,
                Act::Create(_)
                | Act::Mkdir(_)
                | Act::Fill(..)
                | Act::Rename(..)
                | Act::Unlink(_)
                | Act::Rmdir(_) => {}
            }
        }
        Some(Act::Fill(name.clone(), bytes.clone()))
    }

    /// Checks the state found after a power cut. `act` is the operation that was in flight then.
    ///
    /// # Errors
    /// When something durable is lost, an operation from the middle is lost, or an operation is
    /// half applied.
    pub fn check(&self, found: &State, act: Option<&Act>) -> anyhow::Result<()> {
        self.check_names(found, act, 0, |_| true)?;
        self.check_each(found, act)
    }

    /// Like [`History::check`], for a directory in several partitions. Each partition loses a
    /// suffix of its own, so each name is checked alone.
    ///
    /// # Errors
    /// As for [`History::check`].
    pub fn check_each(&self, found: &State, act: Option<&Act>) -> anyhow::Result<()> {
        let states = self.states.iter().flat_map(State::keys);
        for name in states.chain(found.keys()) {
            let since = self.names.get(name).copied().unwrap_or_default();
            self.check_names(found, act, since, |other| other == name)?;
        }
        Ok(())
    }

    fn check_names(
        &self,
        found: &State,
        act: Option<&Act>,
        since: usize,
        counts: impl Fn(&String) -> bool,
    ) -> anyhow::Result<()> {
        let of = |state: &State| -> State {
            let names = state.iter().filter(|(name, _)| counts(name));
            names.map(|(name, thing)| (name.clone(), thing.clone())).collect()
        };
        let seen = of(found);
        for (at, state) in self.states.iter().enumerate().skip(since) {
            let by_file = act.and_then(|act| self.then(act, at));
            let with = |act: &Act| {
                let mut then = state.clone();
                act.apply(&mut then).is_ok() && of(&then) == seen
            };
            if of(state) == seen || act.is_some_and(with) || by_file.as_ref().is_some_and(with) {
                return Ok(());
            }
        }
        bail!(
            "after a power cut there is {found:?}; durable was {:?}, and then came {:?}, with \
             {act:?} under way",
            self.states.first(),
            &self.states[1..]
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(acts: &[&str]) -> State {
        let mut state = State::new();
        acts.iter().for_each(|name| create(name).apply(&mut state).unwrap());
        state
    }

    fn create(name: &str) -> Act {
        Act::Create(name.into())
    }

    fn rename(from: &str, to: &str) -> Act {
        Act::Rename(from.into(), to.into())
    }

    /// The client does an operation and has its answer.
    fn act(history: &mut History, act: Act) {
        let mut then = history.now().clone();
        act.apply(&mut then).unwrap();
        history.answered(act, then);
    }

    #[test]
    fn of_several_partitions_each_may_lose_a_suffix() {
        let mut history = History::new(after(&["z"]));
        act(&mut history, create("a"));
        act(&mut history, create("b"));
        assert!(history.check_each(&after(&["b", "z"]), None).is_ok());
        assert!(history.check_each(&after(&["b"]), None).is_err(), "what was durable is lost");
        assert!(history.check_each(&after(&["c", "z"]), None).is_err(), "it was never there");
    }

    #[test]
    fn what_is_durable_of_one_name_says_nothing_of_others() {
        let mut history = History::new(after(&["z"]));
        act(&mut history, create("a"));
        act(&mut history, create("b"));
        history.durable_of("b");
        assert!(history.check_each(&after(&["b", "z"]), None).is_ok());
        assert!(history.check_each(&after(&["a", "z"]), None).is_err());
        assert!(history.check(&after(&["a", "z"]), None).is_err());
        assert!(history.check(&after(&["a", "b", "z"]), None).is_ok());
    }

    #[test]
    fn a_suffix_may_be_lost_but_nothing_from_the_middle() {
        let mut history = History::new(State::new());
        act(&mut history, create("a"));
        act(&mut history, create("b"));
        assert!(history.check(&after(&["a"]), None).is_ok());
        assert!(history.check(&after(&["b"]), None).is_err());
        let under_way = create("c");
        assert!(history.check(&after(&["a", "c"]), Some(&under_way)).is_ok());
        assert!(history.check(&after(&["b", "c"]), Some(&under_way)).is_err());
        history.durable();
        assert!(history.check(&after(&["a"]), None).is_err());
    }

    #[test]
    fn a_write_that_was_under_way_goes_to_the_file_whatever_it_is_called_again() {
        let mut history = History::new(after(&["a", "z"]));
        act(&mut history, rename("a", "b"));
        act(&mut history, rename("b", "c"));
        act(&mut history, create("a"));
        let write = Act::Fill("c".into(), b"x".to_vec());
        let found = |names: &[&str], written: &str| {
            let mut found = after(names);
            Act::Fill(written.into(), b"x".to_vec()).apply(&mut found).unwrap();
            found
        };
        for (names, written) in [(["a", "z"], "a"), (["b", "z"], "b"), (["c", "z"], "c")] {
            assert!(history.check(&found(&names, written), Some(&write)).is_ok(), "{names:?}");
            assert!(history.check_each(&found(&names, written), Some(&write)).is_ok());
        }
        assert!(history.check(&found(&["a", "c", "z"], "c"), Some(&write)).is_ok());
        // The write never goes to another file that has the name now, or once had it.
        assert!(history.check(&found(&["a", "c", "z"], "a"), Some(&write)).is_err());
        assert!(history.check(&found(&["a", "z"], "z"), Some(&write)).is_err());
        assert!(history.check(&found(&["a", "z"], "a"), None).is_err());
        let other = Act::Fill("a".into(), b"x".to_vec());
        assert!(history.check(&found(&["b", "z"], "b"), Some(&other)).is_err());
        // Durable operations are not undone to explain the write.
        history.durable();
        assert!(history.check(&found(&["a", "z"], "a"), Some(&write)).is_err());
    }
}
