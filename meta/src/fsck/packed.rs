//! Repairs as bytes: the client of a cluster's checks gets them from one server, and gives them to
//! the server that is to do them. Only servers read them, and they are never stored.

use base::{BlockId, Decode as _, DirId, Encode as _, FsError, Ino, ShardId, codec};
use bytes::Bytes;
use wire::TxnId;

use super::fix::Fix;
use crate::record::{Key, key};

codec! {
    /// A [`Fix`], except those of quotas, which a cluster does not have.
    #[derive(Debug, Clone, PartialEq, Eq)]
    enum Packed {
        Look(Bytes) = 1,
        Group((ShardId, DirId)) = 2,
        Counts(((ShardId, DirId), (Ino, (i64, i64)))) = 3,
        Reserve((Ino, Bytes)) = 5,
        Renumber(Bytes) = 6,
        Stray((Ino, bool)) = 7,
        InUse((Ino, Bytes)) = 8,
        Named((Ino, (u32, BlockId))) = 9,
        Lost((Ino, (u32, BlockId))) = 10,
        Decide((TxnId, bool)) = 11,
    }
}

/// Encodes a repair; `None` for one that no cluster has.
pub(super) fn pack(fix: &Fix) -> Option<Bytes> {
    let bytes = |key: &Key| Bytes::copy_from_slice(key);
    let packed = match fix {
        Fix::Look(key) => Packed::Look(bytes(key)),
        Fix::Group(shard, dir) => Packed::Group((*shard, *dir)),
        Fix::Counts { shard, dir, ino, entries, subdirs } => {
            Packed::Counts(((*shard, *dir), (*ino, (*entries, *subdirs))))
        }
        Fix::Reserve(ino, key) => Packed::Reserve((*ino, bytes(key))),
        Fix::Renumber(key) => Packed::Renumber(bytes(key)),
        Fix::Stray(ino, taken) => Packed::Stray((*ino, *taken)),
        Fix::InUse(ino, key) => Packed::InUse((*ino, bytes(key))),
        Fix::Named(ino, chunk, block) => Packed::Named((*ino, (*chunk, *block))),
        Fix::Lost(ino, chunk, block) => Packed::Lost((*ino, (*chunk, *block))),
        Fix::Decide(txn, commit) => Packed::Decide((*txn, *commit)),
        Fix::Links { .. } | Fix::Usage(..) | Fix::Forget(_) => return None,
    };
    Some(packed.to_vec().into())
}

/// Decodes a repair; `Invalid` when the bytes are none.
pub(super) fn unpack(bytes: &Bytes) -> Result<Fix, FsError> {
    let key = |bytes: Bytes| match key::zone(&bytes) {
        None => Err(FsError::Invalid),
        Some(_) => Ok(Key::from_slice(&bytes)),
    };
    let packed = Packed::from_bytes(bytes).map_err(|_| FsError::Invalid)?;
    Ok(match packed {
        Packed::Look(at) => Fix::Look(key(at)?),
        Packed::Group((shard, dir)) => Fix::Group(shard, dir),
        Packed::Counts(((shard, dir), (ino, (entries, subdirs)))) => {
            Fix::Counts { shard, dir, ino, entries, subdirs }
        }
        Packed::Reserve((ino, at)) => Fix::Reserve(ino, key(at)?),
        Packed::Renumber(at) => Fix::Renumber(key(at)?),
        Packed::Stray((ino, taken)) => Fix::Stray(ino, taken),
        Packed::InUse((ino, at)) => Fix::InUse(ino, key(at)?),
        Packed::Named((ino, (chunk, block))) => Fix::Named(ino, chunk, block),
        Packed::Lost((ino, (chunk, block))) => Fix::Lost(ino, chunk, block),
        Packed::Decide((txn, commit)) => Fix::Decide(txn, commit),
    })
}
