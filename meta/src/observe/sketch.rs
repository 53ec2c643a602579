//! Sessions and directories with the most requests: a few counters, whatever the number of sessions
//! and directories.
//!
//! Space-saving (Metwally, Agrawal, El Abbadi 2005): a key without a counter takes over the
//! smallest one and its count. So every frequent key has a counter in the end, and no count is too
//! small. One request in [`SAMPLED`] is looked at, at distances that vary, so that no rhythm of a
//! client hides it. Counts are of two windows of time, the present and the one before it, so rates
//! are of the last seconds.

use base::SessionId;

use super::{Count, Nanos, Subject};

/// One request in this many is looked at, on average.
pub(crate) const SAMPLED: u64 = 16;
/// Number of counters.
const COUNTERS: usize = 64;
/// Length of a window, in nanoseconds.
const WINDOW: u64 = 5_000_000_000;

/// Chooses the requests to look at.
#[derive(Default)]
pub(crate) struct Sampler {
    skip: Count,
    state: Count,
}

impl Sampler {
    /// Whether to look at this request.
    pub(crate) fn takes(&self) -> bool {
        let skip = self.skip.get();
        if skip > 0 {
            self.skip.set(skip - 1);
            return false;
        }
        // The upper bits of a linear congruential generator: which request is taken is no secret.
        let state = self
            .state
            .get()
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.state.set(state);
        // The distance is 0 to 30, 15 on average, and then comes the request that is taken.
        self.skip.set((state >> 33) % (2 * SAMPLED - 1));
        true
    }
}

/// Counters of the most frequent keys.
pub(crate) struct Sketch<K> {
    counters: Vec<(K, u64)>,
}

impl<K> Default for Sketch<K> {
    fn default() -> Sketch<K> {
        Sketch { counters: Vec::new() }
    }
}

impl<K: Copy + Eq> Sketch<K> {
    fn add(&mut self, key: K) {
        if let Some((_, count)) = self.counters.iter_mut().find(|(known, _)| *known == key) {
            *count += 1;
        } else if self.counters.len() < COUNTERS {
            self.counters.push((key, 1));
        } else if let Some(least) = self.counters.iter_mut().min_by_key(|(_, count)| *count) {
            *least = (key, least.1 + 1);
        }
    }
}

/// The present window and the one before it.
pub(crate) struct Windows<K> {
    now: Sketch<K>,
    before: Sketch<K>,
}

impl<K> Default for Windows<K> {
    fn default() -> Windows<K> {
        Windows { now: Sketch::default(), before: Sketch::default() }
    }
}

impl<K: Copy + Eq> Windows<K> {
    /// Keys and thousandths of a request per second.
    fn rates(&self, nanos: u64) -> Vec<(K, u64)> {
        let mut sum: Vec<(K, u64)> = Vec::new();
        for (key, count) in self.now.counters.iter().chain(&self.before.counters) {
            match sum.iter_mut().find(|(known, _)| known == key) {
                Some((_, total)) => *total += count,
                None => sum.push((*key, *count)),
            }
        }
        for (_, count) in &mut sum {
            let milli = u128::from(*count * SAMPLED) * 1_000_000_000_000 / u128::from(nanos.max(1));
            *count = u64::try_from(milli).unwrap_or(u64::MAX);
        }
        sum
    }
}

/// The busiest sessions and directories of one core.
#[derive(Default)]
pub(crate) struct Busy {
    sessions: Windows<SessionId>,
    subjects: Windows<Subject>,
    /// Time when the present window began.
    began: Nanos,
}

/// Keys with their rates, in thousandths of a request per second.
pub(crate) type Rates<K> = Vec<(K, u64)>;

impl Busy {
    pub(crate) fn add(&mut self, session: SessionId, subject: Option<Subject>, now: Nanos) {
        self.turn(now);
        self.sessions.now.add(session);
        if let Some(subject) = subject {
            self.subjects.now.add(subject);
        }
    }

    fn turn(&mut self, now: Nanos) {
        let passed = now.since(self.began);
        if passed < WINDOW {
            return;
        }
        self.sessions.before = std::mem::take(&mut self.sessions.now);
        self.subjects.before = std::mem::take(&mut self.subjects.now);
        self.began = Nanos(self.began.0 + WINDOW);
        if passed >= 2 * WINDOW {
            self.sessions.before = Sketch::default();
            self.subjects.before = Sketch::default();
            self.began = now;
        }
    }

    /// Rates of sessions and directories.
    pub(crate) fn rates(&mut self, now: Nanos) -> (Rates<SessionId>, Rates<Subject>) {
        self.turn(now);
        // The earlier window is complete, except right after the start.
        let nanos = now.since(self.began) + WINDOW.min(self.began.0);
        // Requests of less than a second say little about a second.
        let nanos = nanos.max(1_000_000_000);
        (self.sessions.rates(nanos), self.subjects.rates(nanos))
    }
}

#[cfg(test)]
mod tests {
    use base::DirId;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_is_asked_often_has_a_counter_however_many_others_there_are() {
        let mut sketch = Sketch::default();
        for other in 0..100_000u64 {
            sketch.add(other + 10);
            if other % 20 == 0 {
                sketch.add(1);
            }
        }
        let found = sketch.counters.iter().find(|(key, _)| *key == 1);
        assert!(found.is_some_and(|(_, count)| *count >= 5000), "{found:?}");
        assert_eq!(sketch.counters.len(), COUNTERS);
    }

    #[test]
    fn one_request_in_sixteen_is_looked_at_in_no_rhythm() {
        let sampler = Sampler::default();
        let taken: Vec<u64> = (0..160_000).filter(|_| sampler.takes()).collect();
        assert!((9000..11_000).contains(&taken.len()), "{}", taken.len());
        let even = taken.iter().filter(|at| *at % 2 == 0).count();
        assert!((4500..5500).contains(&even), "{even} of them are even");
    }

    #[test]
    fn rates_are_of_the_last_seconds() {
        let mut busy = Busy::default();
        let subject = (DirId(1), DirId(1));
        for tenth in 0..80 {
            busy.add(SessionId(5), Some(subject), Nanos(tenth * SECOND / 10));
        }
        let (sessions, subjects) = busy.rates(Nanos(8 * SECOND));
        // 80 samples in 8 seconds stand for 160 requests a second.
        assert_eq!(sessions, [(SessionId(5), 160_000)]);
        assert_eq!(subjects, [(subject, 160_000)]);
        assert!(busy.rates(Nanos(20 * SECOND)).0.is_empty());
    }
}
