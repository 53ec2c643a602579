//! The records that an operation has written here, beside those of before.

use bytes::Bytes;

use super::Txn;
use crate::{
    changes::Found,
    error::Result,
    record::{Content, Key, Record as _},
};

/// A record that an operation has written, with its bytes before and after.
pub(crate) struct Changed {
    pub(crate) key: Key,
    pub(crate) was: Option<Bytes>,
    pub(crate) now: Option<Bytes>,
}

fn bytes(found: Found<'_>) -> Option<Bytes> {
    match found {
        Found::Bytes(bytes) => Some(Bytes::copy_from_slice(bytes)),
        Found::Dir(content) => Some(content.to_record()),
        Found::Deleted => None,
    }
}

impl Txn<'_> {
    /// The records of this server that the operation has written, each once, in the order in which
    /// it wrote them first; only those whose keys are `wanted`, which is told whether the record
    /// was removed. Names that a handoff moves are not among them.
    pub(crate) fn changed(&self, wanted: impl Fn(&[u8], bool) -> bool) -> Result<Vec<Changed>> {
        let mut all: Vec<Changed> = Vec::new();
        let wanted = |(key, is_removed): &(&Key, bool)| wanted(key, *is_removed);
        for (key, _) in self.group.pending_keys().filter(wanted) {
            if all.iter().any(|seen| seen.key == *key) {
                continue;
            }
            let was = match self.group.changes.find(key) {
                Some(found) => bytes(found),
                None => self.stored(key)?,
            };
            let now = self.group.find(key).and_then(bytes);
            all.push(Changed { key: key.clone(), was, now });
        }
        Ok(all)
    }

    /// A record of this server as the operation leaves it, whatever is about to change it.
    pub(crate) fn left(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.group.find(key) {
            Some(found) => Ok(bytes(found)),
            None => self.stored(key),
        }
    }

    /// Like [`Txn::left`], for a content record.
    pub(crate) fn left_content(&self, key: &[u8]) -> Result<Option<Content>> {
        if let Some(Found::Dir(content)) = self.group.find(key) {
            return Ok(Some(content.clone()));
        }
        Ok(self.left(key)?.map(|bytes| Content::from_record(&bytes)).transpose()?)
    }

    /// A record as it is, or, if another server has it, as it was a moment ago: the operation does
    /// not stand on it.
    pub(crate) fn glance_at(&self, key: &[u8]) -> Result<Option<Bytes>> {
        if self.is_here(key) {
            return self.get_bytes(key);
        }
        self.with_remote(|remote| remote.glance(key)).map(|(bytes, _)| bytes)
    }
}
