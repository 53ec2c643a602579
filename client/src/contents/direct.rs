//! Blocks that a client reaches itself in a shared store, without its keys: the server signs an
//! address for each.
//!
//! Addresses are asked for in batches of the numbers that a session gives its blocks. A file that
//! is written at once has neighbouring numbers, so one question serves many blocks, of a writer as
//! of a reader. Addresses are kept until shortly before they end. What cannot be done under an
//! address is done through the server, and so is all else for a while.

use std::sync::Arc;

use base::{BlockId, Cred, HashMap, error::describe};
use parking_lot::Mutex;
use store::{Blocks, BlocksError, Compression, SignedFor, SignedUrls};
use tokio::{
    sync::OnceCell,
    time::{Duration, Instant},
};
use wire::{Reply, Request, SignBlocks, SignFor, SignedBlocks};

use crate::{Error, Result, core::Core, error::unexpected, route::Route};

/// How many blocks one question is about: 64 MiB of a large file, and no more than a few kilobytes
/// of answer.
const BATCH: u64 = 16;
/// An address is used no more when it ends so soon: a request takes a while to arrive.
const MARGIN: Duration = Duration::from_secs(15);
/// Time for which all blocks go through the server after a request that failed.
const AVOIDED_FOR: Duration = Duration::from_secs(30);
/// The number of batches that are kept at most.
const BATCHES_MAX: usize = 1024;

/// A shared store.
#[derive(Clone)]
pub(crate) struct Direct {
    blocks: Blocks,
    urls: Arc<Urls>,
    /// Until then nothing is tried: it did not work.
    avoided: Arc<Mutex<Option<Instant>>>,
}

/// Key of a batch: access, whether the blocks are stored compressed, and the first block.
type Place = (SignedFor, bool, BlockId);

#[derive(Debug, Default)]
struct Urls {
    batches: Mutex<HashMap<Place, Arc<Batch>>>,
}

/// The addresses of a batch, once the server has answered.
#[derive(Debug, Default)]
struct Batch {
    signed: OnceCell<(Vec<String>, Instant)>,
}

impl Batch {
    /// Whether its addresses are good, or will be.
    fn is_good(&self) -> bool {
        self.signed.get().is_none_or(|(_, until)| Instant::now() < *until)
    }
}

/// The batch of a block, and its place there.
fn place(id: BlockId, packed: bool, access: SignedFor) -> (Place, usize) {
    let within = id.counter() % BATCH;
    let first = BlockId::new(id.session(), id.counter() - within);
    ((access, packed, first), usize::try_from(within).expect("a batch is small"))
}

impl SignedUrls for Urls {
    fn url(&self, id: BlockId, packed: bool, access: SignedFor) -> Option<String> {
        let (place, within) = place(id, packed, access);
        let batch = self.batches.lock().get(&place).cloned()?;
        let (urls, _) = batch.signed.get().filter(|_| batch.is_good())?;
        urls.get(within).cloned()
    }
}

impl Direct {
    /// A store whose new blocks are compressed so.
    pub(crate) fn new(compression: &str) -> Result<Direct> {
        let compression: Compression = compression.parse().map_err(|()| {
            Error::Refused(format!("the store of blocks: unknown compression {compression}"))
        })?;
        let urls = Arc::new(Urls::default());
        let blocks = Blocks::signed(Arc::clone(&urls) as Arc<dyn SignedUrls>, compression);
        let blocks =
            blocks.map_err(|error| Error::Refused(format!("the store of blocks: {error}")))?;
        Ok(Direct { blocks, urls, avoided: Arc::default() })
    }

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

#[cfg(test)]
mod tests {
    use base::SessionId;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn addresses_are_used_until_shortly_before_they_end() {
        let urls = Urls::default();
        let id = |counter| BlockId::new(SessionId(3), counter);
        let (here, within) = place(id(BATCH + 2), true, SignedFor::Put);
        assert_eq!((here, within), ((SignedFor::Put, true, id(BATCH)), 2));
        let batch = Batch::default();
        let addresses = (0..BATCH).map(|number| number.to_string()).collect();
        batch.signed.set((addresses, Instant::now() + Duration::from_secs(45))).unwrap();
        urls.batches.lock().insert(here, Arc::new(batch));
        let put = |counter| urls.url(id(counter), true, SignedFor::Put);
        assert_eq!(put(BATCH).as_deref(), Some("0"));
        assert_eq!(put(2 * BATCH - 1).as_deref(), Some("15"));
        assert_eq!(put(BATCH - 1), None);
        assert_eq!(urls.url(id(BATCH), false, SignedFor::Put), None);
        assert_eq!(urls.url(id(BATCH), true, SignedFor::Get), None);
        tokio::time::advance(Duration::from_secs(46)).await;
        assert_eq!(put(BATCH), None);
    }
}
