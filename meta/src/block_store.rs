//! How the store of blocks fares: who asks it says what failed; it is tried until it works again, and
//! [`standing`](crate::server) says so meanwhile.
//!
//! Never: it decides nothing. A put or a get is tried whatever became of those before.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use base::BlockId;
use parking_lot::Mutex;
use store::BlocksError;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{
    error::describe,
    server::{Counters, Shared},
    session::Session,
};

/// A store that has failed is tried so often.
const TRY_PERIOD: Duration = Duration::from_secs(3);
/// A trial that takes longer has failed.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Failures are logged so often at most.
const LOG_PERIOD: Duration = Duration::from_secs(10);
/// So many blocks are remembered as asked for in vain.
const MISSED_MAX: usize = 256;
/// A block that a session has asked for so often in vain is lost.
const MISSED_TIMES: u32 = 4;
/// As much of a cause as is shown.
const CAUSE_BYTES_MAX: usize = 400;

/// What is known of the store of blocks.
#[derive(Default)]
pub(crate) struct BlockStore {
    state: Mutex<State>,
    /// Whether `state` has a problem; it changes together with that.
    fails: AtomicBool,
    /// It is to be tried.
    doubted: Notify,
    missed: Mutex<VecDeque<Missed>>,
}

#[derive(Default)]
struct State {
    /// Why it does not work, as the last failure said.
    problem: Option<String>,
    /// When a failure was logged last.
    logged: Option<Instant>,
    /// Nothing was logged since of its working again.
    told: bool,
}

impl State {
    /// Whether a failure is to be logged.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = self.logged.is_none_or(|at| now.duration_since(at) >= LOG_PERIOD);
        if due {
            (self.logged, self.told) = (Some(now), true);
        }
        due
    }
}

/// A block that a session was told of and did not find, so many times.
struct Missed {
    of: (u64, BlockId),
    times: u32,
}

impl BlockStore {
    /// Why it does not work, if it does not.
    pub(crate) fn problem(&self) -> Option<String> {
        self.state.lock().problem.clone()
    }

    /// It does what is asked of it.
    pub(crate) fn works(&self) {
        if !self.fails.load(Ordering::Relaxed) {
            return;
        }
        let state = &mut *self.state.lock();
        state.problem = None;
        self.fails.store(false, Ordering::Relaxed);
        if std::mem::take(&mut state.told) {
            tracing::warn!("the block store works again");
        }
    }

    /// It does not work, and why; `true`: that is to be logged.
    fn fails(&self, cause: &str) -> bool {
        let cause = cause.replace('\n', " ");
        let cause = cause[..cause.floor_char_boundary(CAUSE_BYTES_MAX)].to_owned();
        let state = &mut *self.state.lock();
        state.problem = Some(cause);
        self.fails.store(true, Ordering::Relaxed);
        self.doubted.notify_one();
        state.is_due()
    }

    /// A block cannot be read, which may be the block's fault: the store is tried. `true`: that is to be logged.
    fn is_doubtful(&self) -> bool {
        self.doubted.notify_one();
        self.state.lock().is_due()
    }

    /// A trial did not succeed.
    pub(crate) fn has_failed_a_trial(&self, cause: &str) {
        if self.fails(cause) {
            tracing::error!(error = cause, "the block store does not work");
        }
    }

    /// A session did not find a block. Once that is usual: it was replaced since the session was told of it, and it asks for a
    /// few ranges at a time. Before it goes on it asks where the contents are; so who comes again and again was told of it by
    /// records that name what is lost.
    fn missed(&self, session: &Session, block: BlockId) {
        let mut missed = self.missed.lock();
        let of = (session.id.0, block);
        if let Some(found) = missed.iter_mut().find(|missed| missed.of == of) {
            found.times = found.times.saturating_add(1);
            if found.times == MISSED_TIMES {
                let client = &session.client;
                tracing::error!(
                    %block,
                    client,
                    "a block is missing, and contents are lost with it; `pando fsck` says of which files"
                );
            }
            return;
        }
        if missed.len() == MISSED_MAX {
            missed.pop_front();
        }
        missed.push_back(Missed { of, times: 1 });
    }
}

impl Shared {
    /// What became of a put or a get of a session.
    pub(crate) fn note_blocks<T>(
        &self,
        session: &Session,
        (action, block): (&'static str, BlockId),
        result: &Result<T, BlocksError>,
    ) {
        let error = match result {
            Ok(_) if action == "put" => return self.block_store.works(),
            Ok(_) => return,
            Err(error) => error,
        };
        match error {
            BlocksError::Exists { .. } | BlocksError::Bounds { .. } => {}
            BlocksError::Missing { .. } => {
                Counters::add(&self.counters.blocks_missed);
                self.block_store.missed(session, block);
            }
            BlocksError::Corrupt { .. } => {
                Counters::add(&self.counters.block_failures);
                let client = &session.client;
                tracing::error!(%block, client, "a block is damaged; `pando fsck` says of which file");
            }
            BlocksError::Full(_)
            | BlocksError::Refused(_)
            | BlocksError::Config { .. }
            | BlocksError::Store(_)
            | BlocksError::Io(_) => {
                Counters::add(&self.counters.block_failures);
                let (cause, store) = (describe(error), &self.block_store);
                let due = if action == "put" { store.fails(&cause) } else { store.is_doubtful() };
                if due {
                    let client = &session.client;
                    tracing::error!(%block, client, error = cause, "cannot {action} a block");
                }
            }
        }
    }
}

/// Tries the store when it is in doubt, until it works.
pub(crate) async fn watch(shared: &Shared) {
    loop {
        shared.block_store.doubted.notified().await;
        loop {
            let trial = shared.blocks.trial(shared.random.next());
            match timeout(TRIAL_TIMEOUT, trial).await {
                Ok(Ok(())) => break shared.block_store.works(),
                Ok(Err(error)) => shared.block_store.has_failed_a_trial(&describe(&error)),
                Err(_) => shared.block_store.has_failed_a_trial("it does not answer"),
            }
            sleep(TRY_PERIOD).await;
        }
    }
}
