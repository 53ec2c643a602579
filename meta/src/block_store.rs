//! Health of the block store. Each caller reports what failed; a failed store is tried until it
//! works again, and [`standing`](crate::server) reports the problem meanwhile.
//!
//! Never: this module decides nothing. A put or a get is tried whatever became of those before.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use base::{BlockId, Random, error::describe};
use parking_lot::Mutex;
use store::{Blocks, BlocksError};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::{log_limit::LogLimit, server::Counters, session::Session};

/// Interval between trials of a store that has failed.
const TRY_PERIOD: Duration = Duration::from_secs(3);
/// A trial that takes longer has failed.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum interval between logged failures.
const LOG_PERIOD: Duration = Duration::from_secs(10);
/// Number of blocks that are remembered as asked for in vain.
const MISSED_MAX: usize = 256;
/// A block that one session has asked for in vain this often is lost, and has a name.
const MISSED_TIMES: u32 = 4;
/// Number of bytes of a cause that are kept.
const CAUSE_BYTES_MAX: usize = 400;

/// State of the block store, as last seen.
#[derive(Default)]
pub(crate) struct BlockStore {
    state: Mutex<State>,
    /// Whether `state` has a problem; both change together.
    fails: AtomicBool,
    /// Wakes the task that tries the store.
    doubted: Notify,
    missed: Mutex<VecDeque<Missed>>,
}

struct State {
    /// Cause of the last failure, while the store does not work.
    problem: Option<String>,
    limit: LogLimit,
    /// Whether a failure was logged and the recovery is not logged yet.
    told: bool,
}

impl Default for State {
    fn default() -> State {
        State { problem: None, limit: LogLimit::new(LOG_PERIOD), told: false }
    }
}

impl State {
    /// Whether a failure should be logged now.
    fn is_due(&mut self) -> bool {
        let due = self.limit.due().is_some();
        self.told |= due;
        due
    }
}

/// A block that a session was told of and asked for in vain, and how often.
struct Missed {
    of: (u64, BlockId),
    times: u32,
}

impl BlockStore {
    /// Cause of the store's failure, if it does not work.
    pub(crate) fn problem(&self) -> Option<String> {
        self.state.lock().problem.clone()
    }

    /// Notes that the store works.
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

    /// Notes that the store does not work, and why. `true` if that should be logged.
    fn fails(&self, cause: &str) -> bool {
        let cause = cause.replace('\n', " ");
        let cause = cause[..cause.floor_char_boundary(CAUSE_BYTES_MAX)].to_owned();
        let state = &mut *self.state.lock();
        state.problem = Some(cause);
        self.fails.store(true, Ordering::Relaxed);
        self.doubted.notify_one();
        state.is_due()
    }

    /// Notes that a block cannot be read, which may be the block's own fault: the store is tried.
    /// `true` if that should be logged.
    fn is_doubtful(&self) -> bool {
        self.doubted.notify_one();
        self.state.lock().is_due()
    }

    /// Notes that a trial has failed.
    pub(crate) fn has_failed_a_trial(&self, cause: &str) {
        if self.fails(cause) {
            tracing::error!(error = cause, "the block store does not work");
        }
    }

    /// Notes that a session did not find a block, or found it damaged. Once is usual: the block was
    /// replaced since the session was told of it, or a power cut has taken it with the records that
    /// named it; and the session asks for a few ranges at a time. Before it goes on it asks again
    /// where the contents are. So a session that misses the same block again and again was told of
    /// it by records that name a lost block. Returns whether this is such a block, with `alarm`
    /// called when that is known first.
    fn missed(&self, session: &Session, block: BlockId, alarm: impl FnOnce()) -> bool {
        let mut missed = self.missed.lock();
        let of = (session.id.0, block);
        if let Some(found) = missed.iter_mut().find(|missed| missed.of == of) {
            found.times = found.times.saturating_add(1);
            if found.times == MISSED_TIMES {
                alarm();
            }
            return found.times >= MISSED_TIMES;
        }
        if missed.len() == MISSED_MAX {
            missed.pop_front();
        }
        missed.push_back(Missed { of, times: 1 });
        false
    }
}

impl BlockStore {
    /// Notes the result of a session's put or get. Returns whether the session should ask again
    /// where the contents are, as the block may have no name any more.
    pub(crate) fn note<T>(
        &self,
        counters: &Counters,
        session: &Session,
        (action, block): (&'static str, BlockId),
        result: &Result<T, BlocksError>,
    ) -> bool {
        let error = match result {
            Ok(_) => {
                if action == "put" {
                    self.works();
                }
                return false;
            }
            Err(error) => error,
        };
        let client = &session.client;
        match error {
            BlocksError::Exists { .. } | BlocksError::Bounds { .. } => {}
            BlocksError::Missing { .. } => {
                Counters::add(&counters.blocks_missed);
                self.missed(session, block, || {
                    tracing::error!(
                        %block,
                        client,
                        "a block is missing, and contents are lost with it; `pando fsck` says of \
                         which files"
                    );
                });
                return true;
            }
            BlocksError::Corrupt { .. } => {
                Counters::add(&counters.block_failures);
                let named = self.missed(session, block, || {
                    tracing::error!(
                        %block,
                        client,
                        "a block is damaged; `pando fsck` says of which file"
                    );
                });
                return !named;
            }
            BlocksError::Full(_)
            | BlocksError::Refused(_)
            | BlocksError::Config { .. }
            | BlocksError::Store(_)
            | BlocksError::Io(_) => {
                Counters::add(&counters.block_failures);
                let cause = describe(error);
                let due = if action == "put" { self.fails(&cause) } else { self.is_doubtful() };
                if due {
                    tracing::error!(%block, client, error = cause, "cannot {action} a block");
                }
            }
        }
        false
    }

    /// Tries the store when it is in doubt, until it works.
    pub(crate) async fn watch(&self, blocks: &Blocks, random: &dyn Random) {
        loop {
            self.doubted.notified().await;
            loop {
                match try_blocks(blocks, random.next()).await {
                    Ok(()) => break self.works(),
                    Err(cause) => self.has_failed_a_trial(&cause),
                }
                sleep(TRY_PERIOD).await;
            }
        }
    }
}

/// Tries whether a store takes blocks; a store that needs longer than [`TRIAL_TIMEOUT`] does not
/// work. `nonce` makes the name of the trial block, which no other trial uses.
///
/// # Errors
/// The cause of the failure, as text.
pub async fn try_blocks(blocks: &Blocks, nonce: u64) -> Result<(), String> {
    match timeout(TRIAL_TIMEOUT, blocks.trial(nonce)).await {
        Ok(tried) => tried.map_err(|error| describe(&error)),
        Err(_) => Err(format!("it does not answer within {} s", TRIAL_TIMEOUT.as_secs())),
    }
}
