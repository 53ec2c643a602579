//! Trial of a block store before anything relies on it: whether it takes blocks.

use std::thread;

use anyhow::{Context as _, anyhow};
use base::Random as _;
use store::Blocks;

use crate::system::SystemRandom;

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
    let tried = runtime.block_on(meta::try_blocks(blocks, SystemRandom::default().next()));
    runtime.shutdown_background();
    Ok(tried)
}
