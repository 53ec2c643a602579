//! Trial of a block store before anything relies on it: whether it takes blocks.

use std::{thread, time::Duration};

use anyhow::{Context as _, anyhow};
use base::{Random as _, error::describe};
use store::Blocks;

use crate::system::SystemRandom;

/// A store that needs longer does not work.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Tries a store that was opened for this: its connections end with the trial. The inner result has
/// the cause with which it failed, or nothing if it works.
pub(crate) fn run(blocks: &Blocks) -> anyhow::Result<Result<(), String>> {
    // On a thread of its own: the caller's may have a runtime.
    let tried = thread::scope(|scope| scope.spawn(|| on_this_thread(blocks)).join());
    tried.unwrap_or_else(|_| Err(anyhow!("the trial of the block store was interrupted")))
}

fn on_this_thread(blocks: &Blocks) -> anyhow::Result<Result<(), String>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let trial = blocks.trial(SystemRandom::default().next());
    let tried = runtime.block_on(async { tokio::time::timeout(TIMEOUT, trial).await });
    runtime.shutdown_background();
    Ok(match tried {
        Ok(tried) => tried.map_err(|error| describe(&error)),
        Err(_) => Err(format!("it does not answer within {} s", TIMEOUT.as_secs())),
    })
}
