//! Fences of keys, as the coordinator keeps them: which changes hold a key, and which questions for
//! its value are open.
//!
//! A change that may take a right or a name away opens a fence on its keys before it commits, and
//! ends it after it has committed or was given up, whichever it was. When the last fence of a key
//! has ended, the key's owners are asked for its value, and the answer is published. Commits,
//! aborts, crashes and builds have this one way back to a known value.
//!
//! Always true:
//! - A value is published only if it was asked for after the last fence of its key had ended, and
//!   no later fence or question came since.
//! - A key without fence and without question has the value of its records in each complete table.
//!
//! Pure: the coordinator sends what the functions return, in their order.

use std::collections::BTreeMap;

use super::Keys;
use crate::{DirId, codec};

codec! {
    /// A change that holds fences. Numbers are not used again in a run of the coordinator.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub struct FenceToken {
        /// Counted from 1.
        pub number: u64,
    }
}

codec! {
    /// A question for the value of a key.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Question {
        /// The key.
        pub key: DirId,
        /// Number of the question; a later one has a higher number.
        pub number: u64,
    }
}

/// All fences and questions of a run of the coordinator.
#[derive(Debug, Clone, Default)]
pub struct Fences {
    keys: BTreeMap<DirId, KeyState>,
    tokens: BTreeMap<FenceToken, Keys>,
    last_token: u64,
    last_question: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyState {
    /// Number of fences, at least 1. Answers to older questions do not count.
    Fenced(u32),
    /// Number of the question that was asked last.
    Asked(u64),
}

impl Fences {
    /// Opens a fence on all of `keys`, each given once. Every table must have them fenced before
    /// the change commits.
    pub fn open(&mut self, keys: Keys) -> FenceToken {
        self.last_token += 1;
        let token = FenceToken { number: self.last_token };
        for key in &keys {
            let state = self.keys.entry(*key).or_insert(KeyState::Fenced(0));
            *state = match *state {
                KeyState::Fenced(count) => KeyState::Fenced(count + 1),
                KeyState::Asked(_) => KeyState::Fenced(1),
            };
        }
        self.tokens.insert(token, keys);
        token
    }

    /// Ends a fence. Returns the questions to be asked now: of each key whose last fence this was.
    /// Ending a fence twice asks nothing.
    pub fn end(&mut self, token: FenceToken) -> Vec<Question> {
        let keys = self.tokens.remove(&token).unwrap_or_default();
        keys.into_iter().filter_map(|key| self.end_one(key)).collect()
    }

    fn end_one(&mut self, key: DirId) -> Option<Question> {
        match self.keys.get_mut(&key) {
            Some(KeyState::Fenced(count)) if *count > 1 => {
                *count -= 1;
                None
            }
            Some(KeyState::Fenced(_)) => Some(self.ask(key)),
            Some(KeyState::Asked(_)) | None => None,
        }
    }

    /// A change that only gave rights is stable: asks for the value of its key, unless a fence will
    /// do so when it ends. A later question takes the place of an earlier one.
    pub fn refill(&mut self, key: DirId) -> Option<Question> {
        let fenced = matches!(self.keys.get(&key), Some(KeyState::Fenced(_)));
        (!fenced).then(|| self.ask(key))
    }

    fn ask(&mut self, key: DirId) -> Question {
        self.last_question += 1;
        self.keys.insert(key, KeyState::Asked(self.last_question));
        Question { key, number: self.last_question }
    }

    /// Whether the answer to a question is to be published. Afterwards nothing is open on its key.
    /// Otherwise a newer fence or question came, and another answer follows.
    #[must_use]
    pub fn answered(&mut self, question: Question) -> bool {
        let is_last = self.keys.get(&question.key) == Some(&KeyState::Asked(question.number));
        if is_last {
            self.keys.remove(&question.key);
        }
        is_last
    }

    /// Questions without an answer, to be asked again after a failure.
    pub fn questions(&self) -> impl Iterator<Item = Question> {
        self.keys.iter().filter_map(|(key, state)| match state {
            KeyState::Fenced(_) => None,
            KeyState::Asked(number) => Some(Question { key: *key, number: *number }),
        })
    }

    /// Keys that are unknown to tables: all that are fenced, and those asked for. A table that
    /// is built fences them first. One that was asked for by [`refill`](Self::refill) alone comes
    /// with them; fencing it costs an unknown answer and no more.
    pub fn open_keys(&self) -> impl Iterator<Item = DirId> {
        self.keys.keys().copied()
    }

    /// Number of changes that hold fences.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }
}
