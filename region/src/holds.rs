//! Holds: parts of the region in which a structural operation lets nothing else run.

use crate::Path;

/// Everything that is held. Operations that were under way when a hold began are done: none of them
/// waits halfway, but for loads, which the holder waits for.
#[derive(Default)]
pub(crate) struct Holds {
    held: Vec<(u64, Vec<Path>)>,
    last: u64,
}

impl Holds {
    /// Whether a path, or something above it, is held.
    pub(crate) fn cover(&self, path: &Path) -> bool {
        let mut scopes = self.held.iter().flat_map(|(_, scopes)| scopes);
        scopes.any(|scope| path.is_within(scope))
    }

    /// Holds all these paths with what is below them, unless something of it is held already. A
    /// hold takes all its paths at once: so no two wait for each other.
    pub(crate) fn take(&mut self, scopes: &[Path]) -> Option<u64> {
        let overlaps = |one: &Path, other: &Path| one.is_within(other) || other.is_within(one);
        let mut held = self.held.iter().flat_map(|(_, scopes)| scopes);
        if held.any(|held| scopes.iter().any(|scope| overlaps(held, scope))) {
            return None;
        }
        self.last += 1;
        self.held.push((self.last, scopes.to_vec()));
        Some(self.last)
    }

    pub(crate) fn release(&mut self, number: u64) {
        self.held.retain(|(held, _)| *held != number);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}
