//! The load of shards, as a planner wants to know it: requests, and bytes that are stored.

use std::sync::Arc;

use base::ShardId;
use store::Engine;
use wire::ShardCounts;

use crate::{
    Problem,
    error::{Fault, Result},
    record::key,
    server::Shared,
};

/// Part of what is stored that may be in memory only, where it is not counted, or so many bytes:
/// more than an empty memtable has.
const UNWRITTEN_SHARE: u64 = 32;
const UNWRITTEN_BYTES: u64 = 4 << 20;

/// The load of each shard that this server has. While much is in memory only, that is written out,
/// for the next look.
pub(super) async fn loads(shared: &Shared) -> Result<Vec<ShardCounts>> {
    let shards: Vec<ShardId> =
        (0..shared.config.shards).map(ShardId).filter(|shard| shared.owns(*shard)).collect();
    let (engine, of) = (Arc::clone(&shared.engine), shards.clone());
    let stored = shared.options.offload.run(move || stored(engine.as_ref(), &of)).await;
    let stored = stored.map_err(|error| Fault::Halt(Problem::of(&error)))?;
    let written: u64 = stored.iter().sum();
    if shared.engine.unwritten_bytes() > UNWRITTEN_BYTES.max(written / UNWRITTEN_SHARE) {
        let (engine, offload) = (Arc::clone(&shared.engine), shared.options.offload.clone());
        tokio::task::spawn_local(async move {
            if let Err(error) = offload.run(move || engine.write_out()).await {
                tracing::error!(%error, "what is in memory is not written out");
            }
        });
    }
    let counts = |(shard, bytes)| ShardCounts { shard, requests: shared.loads.of(shard), bytes };
    Ok(shards.into_iter().zip(stored).map(counts).collect())
}

/// Bytes of the records of these shards.
fn stored(engine: &dyn Engine, shards: &[ShardId]) -> store::Result<Vec<u64>> {
    let ranges = shards.iter().map(|shard| {
        let from = key::shard(*shard);
        let to = key::end_of(&from);
        (from, to)
    });
    let ranges: Vec<_> = ranges.collect();
    let ranges: Vec<_> = ranges.iter().map(|(from, to)| (&from[..], &to[..])).collect();
    engine.sizes(&ranges)
}

#[cfg(test)]
mod tests {
    use store::{Batch, MemoryEngine};

    use super::*;

    #[test]
    fn what_is_stored_is_told_by_shard() {
        let engine = MemoryEngine::new();
        let mut batch = Batch::default();
        for (shard, bytes) in [(0, 10), (2, 20), (2, 30), (3, 40)] {
            let name = [&key::shard(ShardId(shard))[..], b"N", &[bytes]].concat();
            batch.put(&name, &vec![0; usize::from(bytes)]);
        }
        batch.put(&key::roster(), &[0; 100]);
        engine.write(batch).unwrap();
        assert_eq!(stored(&engine, &[2, 1, 0].map(ShardId)).unwrap(), [50 + 2 * 4, 0, 10 + 4]);
    }
}
