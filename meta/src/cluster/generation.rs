//! The generation of this process, and the newest generations that it knows of others.
//!
//! `lease` takes in what the coordinator says, `driver` and `peer` what other servers say. A server
//! believes no process of an older generation, and one that hears of a newer generation of its own
//! server ends. Always true: generations that are known only grow.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use wire::{Challenge, PeerHello, Term};

use super::{
    Word,
    member::{Member, Served},
};
use crate::{
    Problem,
    bugs::{Bug, Planted},
};

/// Interval at which a server stores how far the coordinator's stable data have come, and by how
/// many writes they must have come further: what both store for this must not make the other one
/// store it again.
const FOLLOWS_PERIOD: Duration = Duration::from_secs(10);
const FOLLOWS_STEP: u64 = 16;

/// Generations, as this process knows them.
pub(crate) struct Own {
    me: u16,
    /// The newest generation of each server that is known, by number. That of this process is its
    /// own.
    known: Vec<AtomicU64>,
    /// The generation of this process; 0: none yet.
    generation: AtomicU64,
    /// Notified when this process is given its generation.
    given: Notify,
    /// The newest generation that this server's directory has on stable storage.
    stored: AtomicU64,
    /// Where the store ended when a process before was refused; 0: none was.
    refused_at: AtomicU64,
    /// The coordinator that this process keeps to, and how far that one's stable data have come.
    follows: Mutex<(Term, u64)>,
    /// The position in `follows` that this server's directory has, and since when.
    follows_kept: Mutex<(u64, Instant)>,
    word: Word,
    unchecked: AtomicBool,
    resigned: AtomicBool,
    /// When the process before has certainly stopped, while this one waits for that.
    waits: Mutex<Option<Instant>>,
}

/// How another process introduces itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Met {
    /// The other process may ask.
    LetIn,
    /// The other process may ask later: one of the two has no generation yet.
    Later,
    /// The other process is outdated.
    Outdated(String),
    /// This process is outdated.
    Ends(Problem),
}

impl Own {
    pub(super) fn new(member: &Member, run: u64, word: Word, term: Option<u64>) -> Own {
        let Served { generation: stored, follows, follows_at, unchecked, refused_at } =
            member.last.0;
        // The coordinator has given itself a generation.
        let generation = term.unwrap_or(0);
        let follows = match term {
            Some(_) => (Term { number: generation, run }, 0),
            None => (follows, follows_at),
        };
        let own = Own {
            me: member.server,
            known: (0..member.count()).map(|_| AtomicU64::new(0)).collect(),
            generation: AtomicU64::new(generation),
            given: Notify::new(),
            stored: AtomicU64::new(stored),
            refused_at: AtomicU64::new(refused_at),
            follows: Mutex::new(follows),
            follows_kept: Mutex::new((follows.1, Instant::now())),
            word,
            unchecked: AtomicBool::new(unchecked || word.restored),
            resigned: AtomicBool::new(false),
            waits: Mutex::new(None),
        };
        own.knows(member.server, generation);
        own
    }

    /// The generation of this process; 0: none yet.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The newest generation that this server's directory has on stable storage.
    pub(crate) fn stored(&self) -> u64 {
        self.stored.load(Ordering::Acquire)
    }

    /// Notes that the directory has this process's generation on stable storage.
    pub(super) fn is_stored(&self) {
        self.stored.fetch_max(self.generation(), Ordering::AcqRel);
    }

    /// Where the store ended when a process before was refused.
    pub(crate) fn refused_at(&self) -> Option<u64> {
        Some(self.refused_at.load(Ordering::Acquire)).filter(|at| *at > 0)
    }

    /// Notes that this process is refused, and where its store ended. Returns whether the next one
    /// must know.
    pub(super) fn is_refused(&self, position: u64) -> bool {
        let none = self.generation() == 0 && self.refused_at().is_none();
        if none {
            self.refused_at.store(position.max(1), Ordering::Release);
        }
        none
    }

    /// The operator's word.
    pub(crate) fn word(&self) -> Word {
        self.word
    }

    /// The coordinator that this process keeps to, and the position up to which that one's
    /// directory has everything on stable storage, as far as is known.
    pub(crate) fn follows(&self) -> (Term, u64) {
        *self.follows.lock()
    }

    /// Whether the directory is an old copy that no check has looked at yet.
    pub(crate) fn is_unchecked(&self) -> bool {
        self.unchecked.load(Ordering::Acquire)
    }

    /// Notes that a check has looked at the directory. Returns whether that is news.
    pub(crate) fn is_checked(&self) -> bool {
        self.unchecked.swap(false, Ordering::AcqRel)
    }

    /// Whether the process has stopped serving for good.
    pub(crate) fn has_resigned(&self) -> bool {
        self.resigned.load(Ordering::Acquire)
    }

    /// Stops serving for good.
    pub(crate) fn resign(&self) {
        self.resigned.store(true, Ordering::Release);
    }

    /// Time until the process before has certainly stopped, while this one waits for that.
    pub(crate) fn waits(&self) -> Option<Duration> {
        self.waits.lock().map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Notes that the process before may serve for so long. Returns whether that is news.
    pub(crate) fn must_wait(&self, time: Duration) -> bool {
        self.waits.lock().replace(Instant::now() + time).is_none()
    }

    /// Takes the generation that the coordinator gave. Returns whether it is news.
    pub(crate) fn takes(&self, generation: u64) -> bool {
        *self.waits.lock() = None;
        self.refused_at.store(0, Ordering::Release);
        let news = self.generation.swap(generation, Ordering::AcqRel) != generation;
        if news {
            self.knows(self.me, generation);
            self.given.notify_waiters();
        }
        news
    }

    /// Returns when this process has a generation.
    pub(crate) async fn until_given(&self) {
        loop {
            let given = self.given.notified();
            tokio::pin!(given);
            given.as_mut().enable();
            if self.generation() > 0 {
                return;
            }
            given.await;
        }
    }

    /// The newest generation of a server that is known; 0: none.
    pub(crate) fn known(&self, server: u16) -> u64 {
        self.known.get(usize::from(server)).map_or(0, |it| it.load(Ordering::Acquire))
    }

    /// Notes a generation of a server.
    pub(crate) fn knows(&self, server: u16, generation: u64) {
        if let Some(known) = self.known.get(usize::from(server)) {
            known.fetch_max(generation, Ordering::AcqRel);
        }
    }

    /// Keeps to the coordinator that answers, whose stable data have come to `position`, unless
    /// this process keeps to a later one, or to another of the same generation. Returns whether it
    /// does; and whether that is news.
    pub(crate) fn keeps_to(&self, coordinator: Term, position: u64) -> (bool, bool) {
        let mut follows = self.follows.lock();
        let (known, at) = &mut *follows;
        if *known == coordinator {
            *at = position.max(*at);
            return (true, false);
        }
        if coordinator.number <= known.number {
            return (false, false);
        }
        *follows = (coordinator, position);
        // The caller stores both.
        *self.follows_kept.lock() = (position, Instant::now());
        (true, true)
    }

    /// Whether the directory should be told how far the coordinator's stable data have come: after
    /// a crash of all servers an old copy of its directory is found by that.
    pub(super) fn should_keep_follows(&self) -> bool {
        let at = self.follows.lock().1;
        let mut kept = self.follows_kept.lock();
        let should = kept.1.elapsed() >= FOLLOWS_PERIOD && at >= kept.0 + FOLLOWS_STEP;
        if should {
            *kept = (at, Instant::now());
        }
        should
    }

    /// Judges a server that has proven its hello.
    pub(crate) fn meets(&self, hello: &PeerHello, bugs: Planted) -> Met {
        let (own, from) = (self.generation(), hello.from);
        if bugs.has(Bug::OlderGenerationTaken) {
            return Met::LetIn;
        }
        if let Some(problem) = self.is_outdated(hello.knows) {
            return Met::Ends(problem);
        }
        // Only the coordinator has something for a process without a generation.
        if own == 0 || hello.generation == 0 && self.me != 0 {
            return Met::Later;
        }
        let known = self.known(from);
        if hello.generation > 0 && hello.generation < known {
            let its = hello.generation;
            return Met::Outdated(format!(
                "a newer process of server {from} has begun, with generation {known}; the one that \
                 asks has {its}"
            ));
        }
        // Only leases say which process coordinates: a copy of the coordinator's
        // directory that is started elsewhere gives itself a generation, and must not end the one
        // that everybody keeps to.
        if from != 0 {
            self.knows(from, hello.generation);
        }
        Met::LetIn
    }

    /// Whether a process of `server` with this generation is outdated. 0 is that of a process that
    /// asks for its first lease.
    pub(crate) fn outdates(&self, server: u16, generation: u64, bugs: Planted) -> bool {
        generation > 0 && generation < self.known(server) && !bugs.has(Bug::OlderGenerationTaken)
    }

    /// Judges what a server has answered to a hello.
    ///
    /// # Errors
    /// When this process is outdated.
    pub(crate) fn reaches(
        &self,
        server: u16,
        challenge: Challenge,
        bugs: Planted,
    ) -> Result<bool, Problem> {
        if bugs.has(Bug::OlderGenerationTaken) {
            return Ok(true);
        }
        match self.is_outdated(challenge.knows) {
            Some(problem) => Err(problem),
            None => Ok(!self.outdates(server, challenge.generation, bugs)),
        }
    }

    /// The reason to end, when a process of this server has a newer generation.
    pub(crate) fn is_outdated(&self, newest: u64) -> Option<Problem> {
        let own = self.generation();
        (own > 0 && newest > own).then(|| Problem::because(is_outdated(self.me, own, newest)))
    }

    /// The part of these facts that the next process of this directory must know.
    pub(super) fn to_served(&self) -> Served {
        let (follows, follows_at) = self.follows();
        Served {
            generation: self.generation().max(self.stored()),
            follows,
            follows_at,
            unchecked: self.is_unchecked(),
            refused_at: self.refused_at().unwrap_or(0),
        }
    }
}

/// The reason why a process of `server` ends that has generation `its`.
pub(crate) fn is_outdated(server: u16, its: u64, newest: u64) -> String {
    format!(
        "a newer process of server {server} has begun, with generation {newest}; this one has \
         {its}. A copy of this data directory, or its disk, is served elsewhere. Go on there, and \
         do not start this directory again"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn how_far_the_coordinator_is_gets_stored_now_and_then() {
        let own = Own::new(&Member::new(1, 2, 7), 3, Word::default(), None);
        let coordinator = Term { number: 1, run: 5 };
        assert_eq!(own.keeps_to(coordinator, 100), (true, true));
        own.keeps_to(coordinator, 200);
        assert!(!own.should_keep_follows(), "too soon");
        tokio::time::sleep(FOLLOWS_PERIOD).await;
        assert!(own.should_keep_follows() && !own.should_keep_follows());
        tokio::time::sleep(FOLLOWS_PERIOD).await;
        own.keeps_to(coordinator, 200 + FOLLOWS_STEP - 1);
        assert!(!own.should_keep_follows(), "so little may be what storing it costs");
        own.keeps_to(coordinator, 200 + FOLLOWS_STEP);
        assert!(own.should_keep_follows());
    }
}
