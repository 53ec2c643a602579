//! A shared store, and the addresses under which its blocks are reached.
//!
//! The store takes the address of a block from a table of batches here. `direct` asks the server
//! for those that the table lacks.

use std::sync::Arc;

use base::{BlockId, HashMap};
use parking_lot::Mutex;
use store::{Blocks, Compression, SignedFor, SignedUrls};
use tokio::{sync::OnceCell, time::Instant};

use crate::{Error, Result};

/// How many blocks one question is about: 64 MiB of a large file, and no more than a few kilobytes
/// of answer.
pub(super) const BATCH: u64 = 16;

/// A shared store.
#[derive(Clone)]
pub(crate) struct Direct {
    pub(super) blocks: Blocks,
    pub(super) urls: Arc<Urls>,
    /// Until then nothing is tried: it did not work.
    pub(super) avoided: Arc<Mutex<Option<Instant>>>,
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
}

/// Key of a batch: access, whether the blocks are stored compressed, and the first block.
pub(super) type Place = (SignedFor, bool, BlockId);

#[derive(Debug, Default)]
pub(super) struct Urls {
    pub(super) batches: Mutex<HashMap<Place, Arc<Batch>>>,
}

/// The addresses of a batch, once the server has answered.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) signed: OnceCell<(Vec<String>, Instant)>,
}

impl Batch {
    /// Whether its addresses are good, or will be.
    pub(super) fn is_good(&self) -> bool {
        self.signed.get().is_none_or(|(_, until)| Instant::now() < *until)
    }
}

/// The batch of a block, and its place there.
pub(super) fn place(id: BlockId, packed: bool, access: SignedFor) -> (Place, usize) {
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

#[cfg(test)]
mod tests {
    use base::SessionId;
    use tokio::time::Duration;

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
