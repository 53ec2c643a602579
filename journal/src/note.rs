//! The note of a member's data on the journal: whose the end of the chain is.

use serde::{Deserialize, Serialize};

use crate::Owner;

/// The part of a member's data that is about the journal, kept beside the engine. Persisted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The newest generation that these data have had.
    pub generation: u64,
    /// Later generations that were begun to fence for: fences that may be there, or may come late.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<Owner>,
    /// The newest generation was of other data: these have followed, and have served nobody since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follows: bool,
    /// The journal was taken over with these data when the lease before it had ended, and the server has
    /// had no lease of its cluster since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub succeeds: bool,
    /// A segment from which the journal can be read; 0: its first.
    pub segment: u64,
    /// The newest base of these data; 0: none.
    pub base: u64,
    /// The position that the base covers.
    pub position: u64,
}

impl Note {
    /// A generation that was not asked for.
    #[must_use]
    pub fn next_generation(&self) -> u64 {
        let asked = self.asked.iter().map(|asked| asked.generation);
        asked.fold(self.generation, u64::max) + 1
    }
}
