//! Keys and values that the server stores.
//!
//! Persisted: every key and value has golden bytes in `testdata/`, described in `docs/BYTES.md`. A
//! value starts with its version, so that a later build can tell what it reads.

mod acl;
pub(crate) mod chunk;
pub(crate) mod content;
pub(crate) mod entry;
pub(crate) mod inode;
pub(crate) mod key;
mod listing;
pub(crate) mod located;
pub(crate) mod placing;
pub(crate) mod policy;
pub(crate) mod quota;
pub(crate) mod system;
pub(crate) mod tail;

use base::{Decode, DecodeError, Encode, Reader};
use bytes::Bytes;

pub(crate) use chunk::ChunkRecord;
pub(crate) use content::{Content, ContentState};
pub(crate) use entry::{Access, EntryRecord, RenameList};
pub(crate) use inode::{Contents, InTrash, Inode, Location, Slot, Times, XattrSet, Xattrs};
pub(crate) use key::Key;
pub(crate) use listing::StoredListing;
pub(crate) use placing::Placing;
pub(crate) use policy::{InlineMax, Policy};
pub(crate) use quota::{Accounts, QuotaId, QuotaRecord, QuotaState, UNLIMITED, Usage};
pub(crate) use system::{
    Config, Lived, Reclaim, ReclaimKind, SessionRecord, Settings, Tail, Trash, TrashSetting,
};

/// The version of every value that this build writes.
pub(crate) const VERSION: u8 = 1;

/// A value that is stored.
pub(crate) trait Record: Encode + Decode {
    /// The bytes to store: the version, then the value.
    fn to_record(&self) -> Bytes {
        let mut out = Vec::with_capacity(160);
        self.encode_record(&mut out);
        out.into()
    }

    /// Appends the bytes to store.
    fn encode_record(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        self.encode(out);
    }

    /// Reads a stored value.
    fn from_record(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        match u8::decode(&mut reader)? {
            VERSION => {}
            tag => return Err(DecodeError::Tag { what: "record version", tag }),
        }
        let value = Self::decode(&mut reader)?;
        match (reader.is_empty(), value.is_sound()) {
            (true, true) => Ok(value),
            (true, false) => Err(DecodeError::Invalid("record")),
            (false, _) => Err(DecodeError::Trailing),
        }
    }

    /// Whether the parts of the value fit together, so that its users need not check.
    fn is_sound(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
