//! "Nothing that was answered as durable is lost; nothing that was refused happened."
//!
//! A client that works alone in a directory knows each state it went through. After a power cut the
//! directory must be in one of these states, none older than what was durable: what is lost is a suffix of
//! whole operations. The operation that was under way may have happened on top of it, for its client asked
//! again.

use std::collections::BTreeMap;

use anyhow::bail;
use base::FsError;

/// A directory: what is under each name.
pub type State = BTreeMap<String, Thing>;

/// What is under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Thing {
    /// An empty directory.
    Directory,
    /// A file and its contents.
    File(Vec<u8>),
}

/// One operation: all of it happens, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Make an empty file.
    Create(String),
    /// Make a directory.
    Mkdir(String),
    /// Replace the contents of a file by as many bytes.
    Fill(String, Vec<u8>),
    /// Move to a free name.
    Rename(String, String),
    /// Remove a file.
    Unlink(String),
    /// Remove a directory.
    Rmdir(String),
}

impl Act {
    /// What it makes of a state.
    ///
    /// # Errors
    /// What POSIX says when it cannot be done.
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
}

impl History {
    /// The directory is durably in this state.
    #[must_use]
    pub fn new(state: State) -> History {
        History { states: vec![state] }
    }

    /// The state that the client knows.
    #[must_use]
    pub fn now(&self) -> &State {
        self.states.last().expect("there is always one")
    }

    /// An operation was answered with success.
    pub fn answered(&mut self, state: State) {
        self.states.push(state);
    }

    /// The present state is durable.
    pub fn durable(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }

    /// Checks what was found after a power cut, `act` being under way when it came.
    ///
    /// # Errors
    /// When something durable is lost, or an operation is lost from the middle, or by half.
    pub fn check(&self, found: &State, act: Option<&Act>) -> anyhow::Result<()> {
        self.check_names(found, act, |_| true)
    }

    /// As [`History::check`], of a directory in several partitions: each has lost what it has lost, so only of each name
    /// can something be said.
    ///
    /// # Errors
    /// As [`History::check`].
    pub fn check_each(&self, found: &State, act: Option<&Act>) -> anyhow::Result<()> {
        let states = self.states.iter().flat_map(State::keys);
        for name in states.chain(found.keys()) {
            self.check_names(found, act, |other| other == name)?;
        }
        Ok(())
    }

    fn check_names(
        &self,
        found: &State,
        act: Option<&Act>,
        counts: impl Fn(&String) -> bool,
    ) -> anyhow::Result<()> {
        let of = |state: &State| -> State {
            let names = state.iter().filter(|(name, _)| counts(name));
            names.map(|(name, thing)| (name.clone(), thing.clone())).collect()
        };
        let seen = of(found);
        for state in &self.states {
            if of(state) == seen {
                return Ok(());
            }
            let mut then = state.clone();
            if act.is_some_and(|act| act.apply(&mut then).is_ok()) && of(&then) == seen {
                return Ok(());
            }
        }
        bail!(
            "after a power cut there is {found:?}; durable was {:?}, and then came {:?}, with {act:?} under way",
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
        acts.iter().for_each(|name| Act::Create((*name).into()).apply(&mut state).unwrap());
        state
    }

    #[test]
    fn of_several_partitions_each_may_lose_a_suffix() {
        let mut history = History::new(after(&["z"]));
        history.answered(after(&["a", "z"]));
        history.answered(after(&["a", "b", "z"]));
        assert!(history.check_each(&after(&["b", "z"]), None).is_ok());
        assert!(history.check_each(&after(&["b"]), None).is_err(), "what was durable is lost");
        assert!(history.check_each(&after(&["c", "z"]), None).is_err(), "it was never there");
    }

    #[test]
    fn a_suffix_may_be_lost_but_nothing_from_the_middle() {
        let mut history = History::new(State::new());
        history.answered(after(&["a"]));
        history.answered(after(&["a", "b"]));
        assert!(history.check(&after(&["a"]), None).is_ok());
        assert!(history.check(&after(&["b"]), None).is_err());
        let under_way = Act::Create("c".into());
        assert!(history.check(&after(&["a", "c"]), Some(&under_way)).is_ok());
        assert!(history.check(&after(&["b", "c"]), Some(&under_way)).is_err());
        history.durable();
        assert!(history.check(&after(&["a"]), None).is_err());
    }
}
