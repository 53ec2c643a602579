//! Faults of a file system in memory, and counts of calls.

use std::collections::BTreeMap;

use base::FsError;

use crate::{Path, below::Result};

/// A call, as a plan of faults sees it.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Name of the method; one of [`Contents`](crate::below::Contents) has `file.` before it.
    pub method: &'static str,
    /// First path of the call. A call on an open file has none.
    pub path: Option<&'a Path>,
    /// Second path of the call.
    pub to: Option<&'a Path>,
    /// Whether it changes something.
    pub is_change: bool,
    /// Whether it fails on a full disk.
    pub needs_space: bool,
}

impl<'a> Call<'a> {
    /// All paths of the call.
    pub fn paths(&self) -> impl Iterator<Item = &'a Path> {
        self.path.into_iter().chain(self.to)
    }
}

type Plan = Box<dyn FnMut(&Call<'_>) -> Option<FsError> + Send>;

/// The faults that are planned.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) plans: Vec<Plan>,
    pub(super) is_full: bool,
    /// Changes until everything fails.
    pub(super) changes_left: Option<u64>,
    pub(super) changes: u64,
    pub(super) calls: BTreeMap<&'static str, u64>,
}

impl Faults {
    /// Counts a call, and fails it where a fault says so.
    pub(super) fn meet(&mut self, call: &Call<'_>) -> Result<()> {
        *self.calls.entry(call.method).or_default() += 1;
        if self.changes_left == Some(0) {
            return Err(FsError::Io);
        }
        if let Some(error) = self.plans.iter_mut().find_map(|plan| plan(call)) {
            return Err(error);
        }
        if self.is_full && call.needs_space { Err(FsError::NoSpace) } else { Ok(()) }
    }

    /// A change was made.
    pub(super) fn changed(&mut self) {
        self.changes += 1;
        self.changes_left = self.changes_left.map(|left| left - 1);
    }
}
