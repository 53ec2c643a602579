//! Content records of directories that are born on this server, until they are confirmed.

use bytes::Bytes;
use wire::{Birth, TxnId};

use crate::{
    bugs::Bug,
    error::Result,
    record::{Key, key, key::Part},
    transact::PreparedRecord,
    txn::Txn,
};

/// Makes lost directories again that were born here, with nothing in them.
pub(crate) fn born(txn: &mut Txn<'_>, early_mkdirs: &[Birth]) -> Result<()> {
    let mut lost = Vec::new();
    for early_mkdir in
        early_mkdirs.iter().filter(|early_mkdir| !txn.shared.prepared.has(early_mkdir.txn))
    {
        txn.lock_key(&early_mkdir.key)?;
        if txn.get_bytes(&early_mkdir.key)?.is_none() {
            lost.push(early_mkdir);
        }
    }
    // Everything that may have to wait comes before: when this runs again, a key that is held for
    // an early mkdir is taken to be stored.
    for early_mkdir in lost {
        store(txn, early_mkdir.txn, &early_mkdir.key, &early_mkdir.content);
    }
    Ok(())
}

/// Stores a record that is confirmed later. Returns `false` when another transaction is in the way.
pub(in crate::transact) fn store(
    txn: &mut Txn<'_>,
    early_mkdir: TxnId,
    at: &Bytes,
    content: &Bytes,
) -> bool {
    if !txn.shared.prepared.take_early_mkdir(early_mkdir, Key::from_slice(at)) {
        return false;
    }
    txn.be_part_of(early_mkdir);
    txn.put_stored(Key::from_slice(at), content);
    let record = PreparedRecord { born: Some(at.clone()), ..PreparedRecord::default() };
    if !txn.shared.bugs.has(Bug::PrepareNotStored) {
        txn.put(key::prepared(early_mkdir), &record);
    }
    true
}

/// Ends an early mkdir: the directory is confirmed, or the early mkdir has come to nothing and
/// nobody has seen the directory.
pub(in crate::transact) fn end(
    txn: &mut Txn<'_>,
    early_mkdir: TxnId,
    at: &Key,
    is_there: bool,
) -> Result<()> {
    txn.be_part_of(early_mkdir);
    if !is_there {
        forget(txn, at)?;
    }
    txn.delete(key::prepared(early_mkdir));
    txn.facts.ended.push(early_mkdir);
    Ok(())
}

/// Removes a directory, unless something is in it: then the result is `false`.
pub(super) fn forget(txn: &mut Txn<'_>, at: &Key) -> Result<bool> {
    let (shard, Some(dir)) = (key::shard_of(at), key::parse_dir(at)) else { return Ok(true) };
    let Some(content) = txn.get_content(at)? else { return Ok(true) };
    if content.entries > 0 {
        return Ok(false);
    }
    // This removes attributes that were too long for the record. Rename lists stay, also those of
    // earlier directories with this id: the versions in them live elsewhere.
    txn.delete(key::content(shard, dir, 0, Part::Xattrs));
    txn.delete(at.clone());
    Ok(true)
}
