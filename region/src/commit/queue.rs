//! The order in which dirty entries are committed.

use std::collections::VecDeque;

use base::Time;

use crate::Path;

/// Paths in the order in which they became dirty, removals apart: they free space, and never wait
/// for it.
#[derive(Default)]
pub(crate) struct Queue {
    removals: VecDeque<Path>,
    others: VecDeque<(Path, Time)>,
    /// Whether the last one was a removal.
    removed: bool,
}

impl Queue {
    pub(crate) fn push(&mut self, path: Path, removal: bool, now: Time) {
        if removal {
            self.removals.push_back(path);
        } else {
            self.others.push_back((path, now));
        }
    }

    /// A path that waited for another one.
    pub(crate) fn push_front(&mut self, path: Path) {
        self.others.push_front((path, Time::default()));
    }

    /// The next path, if it has been there for `linger_ms`: else, for how long it is to wait.
    pub(crate) fn pop(
        &mut self,
        now: Time,
        linger_ms: u64,
        removals_first: bool,
    ) -> Result<Path, Option<u64>> {
        let removal = !self.removals.is_empty()
            && (removals_first || !self.removed || self.others.is_empty());
        self.removed = removal;
        if removal {
            return self.removals.pop_front().ok_or(None);
        }
        let (_, since) = self.others.front().ok_or(None)?;
        let left = since.plus_ms(linger_ms).as_nanos() - now.as_nanos();
        match u64::try_from(left) {
            Ok(left) if left > 0 && !self.removals.is_empty() => {
                self.removals.pop_front().ok_or(None)
            }
            Ok(left) if left > 0 => Err(Some(left.div_ceil(1_000_000))),
            _ => self.others.pop_front().map(|(path, _)| path).ok_or(None),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.removals.len() + self.others.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
