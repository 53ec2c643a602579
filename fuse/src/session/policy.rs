//! The scheduling policy of a worker: `SCHED_IDLE` while that keeps its callers on its CPU.
//!
//! A process that an answer wakes goes to an idle CPU, if there is one: its own is busy, with the
//! worker that answers. Waking another CPU costs 25 to 60 µs in a virtual machine, more than
//! everything else in a request. The kernel takes a CPU with nothing but `SCHED_IDLE` threads for
//! idle (`sched_idle_cpu` in kernel/sched/fair.c), so with such a worker the process stays where it
//! is, runs at once, and its next request finds the worker there.
//!
//! The price is that all other work of the CPU goes before the worker. So each worker looks how long
//! its requests have waited for it, by what the kernel counts (`/proc/thread-self/schedstat`), and
//! is a thread like any other for a while when that costs more than it brings.

use std::{fs::File, os::unix::fs::FileExt as _, thread, time::Duration};

use tokio::time::Instant;

use crate::sys::{self, Policy};

/// Requests between two looks, at most.
const LOOK_EACH: u32 = 16;
/// Time between two looks, at most: one request that waits for long ends an attempt.
const LOOK_AFTER: Duration = Duration::from_millis(2);
/// The longest that a request may wait for the worker, as a mean: what waking another CPU costs.
const WAIT_MAX: Duration = Duration::from_micros(50);
/// First and longest time without a new attempt after one that did not pay.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// Where requests waited, at least so many times as long passes without an attempt.
const PAUSE_FOR_WAIT: u32 = 20;
/// Looks after which an attempt counts as one that pays.
const PAYS_AFTER: u32 = 256;

/// The kernel's file with a thread's time on a CPU, its time of waiting for one, and its turns.
const SCHEDSTAT: &str = "/proc/thread-self/schedstat";

/// The policy of this thread, which must not change its thread.
#[derive(Debug)]
pub(super) struct Courtesy {
    waits: File,
    rule: Rule,
    /// Requests since the last look.
    served: u32,
    looked: Instant,
}

impl Courtesy {
    /// `None` where a thread may not take its policy back, or the kernel does not say how long one
    /// has waited.
    pub(super) fn new() -> Option<Courtesy> {
        let waits = File::open(SCHEDSTAT).ok()?;
        waited(&waits)?;
        let now = Instant::now();
        Some(Courtesy { waits, rule: Rule::new(now), served: 0, looked: now })
    }

    /// A request was taken.
    pub(super) fn serves(&mut self) {
        self.served += 1;
        let now = Instant::now();
        if self.served < LOOK_EACH && now.saturating_duration_since(self.looked) < LOOK_AFTER {
            return;
        }
        let Some(waited) = waited(&self.waits) else { return };
        let policy = self.rule.look(self.served, waited, now);
        (self.served, self.looked) = (0, now);
        if let Some(policy) = policy
            && let Err(error) = sys::set_policy(policy)
        {
            tracing::debug!(%error, ?policy, "a thread of the mount keeps its policy");
        }
    }
}

/// Whether a thread that has become `SCHED_IDLE` can become an ordinary one again: that takes
/// `CAP_SYS_NICE`, or a limit of nice values that allows it. Tried on a thread that ends afterwards.
pub(super) fn is_allowed() -> bool {
    let both = || sys::set_policy(Policy::Idle).and_then(|()| sys::set_policy(Policy::Normal));
    let tried = thread::Builder::new().name("policy".to_owned()).spawn(both);
    tried.is_ok_and(|thread| thread.join().is_ok_and(|done| done.is_ok()))
}

/// Time for which this thread was to run and did not, since it began.
fn waited(file: &File) -> Option<Duration> {
    let mut bytes = [0; 96];
    let len = file.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(bytes.get(..len)?).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// When which policy pays.
#[derive(Debug)]
struct Rule {
    policy: Policy,
    /// How long the thread had waited in all at the last look.
    waited: Duration,
    /// Looks since the attempt began.
    looks: u32,
    not_before: Instant,
    pause: Duration,
}

impl Rule {
    fn new(now: Instant) -> Rule {
        Rule {
            policy: Policy::Normal,
            waited: Duration::ZERO,
            looks: 0,
            not_before: now,
            pause: PAUSE_FIRST,
        }
    }

    /// `served` requests were taken since the last look, and the thread has waited so long in all.
    /// Returns the policy that it is to have from now on, where that is another.
    fn look(&mut self, served: u32, waited: Duration, now: Instant) -> Option<Policy> {
        let lately = waited.saturating_sub(self.waited);
        self.waited = waited;
        self.looks = self.looks.saturating_add(1);
        let pays = lately / served.max(1) <= WAIT_MAX;
        match self.policy {
            // Where an ordinary thread waits, too, other work is waiting.
            Policy::Normal if pays && now >= self.not_before => {
                (self.policy, self.looks) = (Policy::Idle, 0);
                Some(Policy::Idle)
            }
            Policy::Idle if !pays => {
                if self.looks > PAYS_AFTER {
                    self.pause = PAUSE_FIRST;
                }
                let pause = self.pause.max((lately * PAUSE_FOR_WAIT).min(PAUSE_MAX));
                self.policy = Policy::Normal;
                self.not_before = now + pause;
                self.pause = (2 * self.pause).min(PAUSE_MAX);
                Some(Policy::Normal)
            }
            Policy::Normal | Policy::Idle => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(1);

    #[test]
    fn a_thread_whose_requests_wait_is_an_ordinary_one_again_and_longer_each_time() {
        let mut now = Instant::now();
        let (mut rule, mut waited) = (Rule::new(now), Duration::ZERO);
        for pause in [PAUSE_FIRST, 2 * PAUSE_FIRST, 4 * PAUSE_FIRST] {
            assert_eq!(rule.look(16, waited, now), Some(Policy::Idle));
            assert_eq!(rule.look(16, waited, now), None);
            waited += LONG;
            assert_eq!(rule.look(16, waited, now), Some(Policy::Normal));
            now += pause;
            assert_eq!(rule.look(16, waited, now - Duration::from_millis(1)), None);
        }
        for _ in 0..20 {
            now += PAUSE_MAX;
            assert_eq!(rule.look(16, waited, now), Some(Policy::Idle));
            waited += LONG;
            assert_eq!(rule.look(16, waited, now), Some(Policy::Normal));
        }
        assert_eq!(rule.not_before, now + PAUSE_MAX);
    }

    #[test]
    fn one_request_that_waits_for_long_ends_an_attempt_and_costs_a_long_pause() {
        let now = Instant::now();
        let mut rule = Rule::new(now);
        assert_eq!(rule.look(1, Duration::ZERO, now), Some(Policy::Idle));
        let waited = Duration::from_millis(100);
        assert_eq!(rule.look(1, waited, now), Some(Policy::Normal));
        assert_eq!(rule.not_before, now + Duration::from_secs(2));
    }

    #[test]
    fn no_attempt_is_made_while_an_ordinary_thread_waits_too() {
        let now = Instant::now();
        let mut rule = Rule::new(now);
        assert_eq!(rule.look(16, LONG, now), None);
        assert_eq!(rule.look(16, 2 * LONG, now), None);
        assert_eq!(rule.look(16, 2 * LONG, now), Some(Policy::Idle));
    }

    #[test]
    fn an_attempt_that_has_paid_for_long_is_repeated_soon() {
        let mut now = Instant::now();
        let (mut rule, mut waited) = (Rule::new(now), Duration::ZERO);
        for _ in 0..3 {
            now += PAUSE_MAX;
            assert_eq!(rule.look(16, waited, now), Some(Policy::Idle));
            for _ in 0..=PAYS_AFTER {
                waited += WAIT_MAX * 16;
                assert_eq!(rule.look(16, waited, now), None);
            }
            waited += LONG;
            assert_eq!(rule.look(16, waited, now), Some(Policy::Normal));
            assert_eq!(rule.not_before, now + PAUSE_FIRST);
        }
    }

    #[test]
    fn the_kernel_says_how_long_a_thread_has_waited() {
        let file = File::open(SCHEDSTAT).unwrap();
        assert!(waited(&file).is_some());
    }
}
