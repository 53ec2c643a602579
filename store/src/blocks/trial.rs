//! A trial of a store: whether it does what blocks need, tried with an object that is no block.

use bytes::Bytes;
use object_store::{ObjectStoreExt, PutMode, path::Path};

use super::{Blocks, BlocksError, Result, from_store};
use base::BlockId;

const TEXT: &[u8] = b"Pando has tried whether this store takes objects; this one can be deleted.\n";

impl Blocks {
    /// Puts an object that is not there, reads and deletes it: four requests. `nonce` makes its
    /// name, so that no other trial uses the same one.
    ///
    /// # Errors
    /// The errors of a put; `Corrupt` where other bytes are read than were put.
    pub async fn trial(&self, nonce: u64) -> Result<()> {
        let id = BlockId(nonce.into());
        let path = Path::from(format!("{}trial-{nonce:016x}", self.prefix));
        let failed = |error| from_store(id, error);
        let text = Bytes::from_static(TEXT);
        self.objects
            .put_opts(&path, text.clone().into(), PutMode::Create.into())
            .await
            .map_err(failed)?;
        let read = self.objects.get(&path).await.map_err(failed)?.bytes().await.map_err(failed);
        // The trial block is deleted also when it could not be read.
        self.objects.delete(&path).await.map_err(failed)?;
        if read? == text { Ok(()) } else { Err(BlocksError::Corrupt { id }) }
    }
}
