//! Blocks that a client reaches itself in a shared store, without its keys: the server signs an
//! address for each.
//!
//! Addresses are asked for in batches of the numbers that a session gives its blocks. A file that
//! is written at once has neighbouring numbers, so one question serves many blocks, of a writer as
//! of a reader. Addresses are kept until shortly before they end. What cannot be done under an
//! address is done through the server, and so is all else for a while.

mod addresses;

use std::sync::Arc;

use base::{BlockId, Cred, error::describe};
use store::{Blocks, BlocksError, Compression, SignedFor};
use tokio::time::{Duration, Instant};
use wire::{Reply, Request, SignBlocks, SignFor, SignedBlocks};

pub(crate) use self::addresses::Direct;
use self::addresses::{BATCH, Place, place};
use crate::{Result, core::Core, error::unexpected, route::Route};

/// An address is used no more when it ends so soon: a request takes a while to arrive.
const MARGIN: Duration = Duration::from_secs(15);
/// Time for which all blocks go through the server after a request that failed.
const AVOIDED_FOR: Duration = Duration::from_secs(30);
/// The number of batches that are kept at most.
const BATCHES_MAX: usize = 1024;

impl Direct {
    /// The store, to be asked for this block; `None`: the server is to do it.
    pub(crate) async fn store(
        &self,
        core: &Core,
        route: Route,
        id: BlockId,
        access: SignedFor,
    ) -> Result<Option<&Blocks>> {
        if self.avoided.lock().is_some_and(|until| Instant::now() < until) {
            return Ok(None);
        }
        self.sign(core, route, id, access).await?;
        Ok(Some(&self.blocks))
    }

    /// The store was asked in vain.
    pub(crate) fn avoid(&self, error: &BlocksError) {
        tracing::warn!(error = describe(error), "blocks go through the server for a while");
        *self.avoided.lock() = Some(Instant::now() + AVOIDED_FOR);
    }

    /// Sees that there is an address of a block, which the server of `route` is asked for if need
    /// be.
    async fn sign(&self, core: &Core, route: Route, id: BlockId, access: SignedFor) -> Result<()> {
        let packed = self.blocks.compression() != Compression::None;
        let (place, _) = place(id, packed, access);
        let batch = {
            let mut batches = self.urls.batches.lock();
            if batches.len() >= BATCHES_MAX {
                batches.retain(|_, batch| batch.is_good());
            }
            if batches.len() >= BATCHES_MAX {
                batches.clear();
            }
            let batch = batches.entry(place).or_default();
            if !batch.is_good() {
                *batch = Arc::default();
            }
            Arc::clone(batch)
        };
        batch.signed.get_or_try_init(|| ask(core, route, place)).await.map(drop)
    }
}

async fn ask(core: &Core, route: Route, place: Place) -> Result<(Vec<String>, Instant)> {
    let (access, packed, first) = place;
    let access = match access {
        SignedFor::Get => SignFor::Get,
        SignedFor::Put => SignFor::Put,
    };
    let count = u32::try_from(BATCH).expect("a batch is small");
    let sign = Request::SignBlocks(SignBlocks { access, first, count, packed });
    // The server has signed them later than this.
    let asked = Instant::now();
    match core.ask(&Cred::ROOT, route, sign).await?.reply {
        Reply::SignedBlocks(SignedBlocks { urls, valid_ms }) => {
            let valid = Duration::from_millis(valid_ms).saturating_sub(MARGIN);
            Ok((urls, asked + valid))
        }
        _ => Err(unexpected()),
    }
}
