//! Directories that were born here and whose entries are lost.

use wire::{DirRef, Retry, TxnId};

use super::here::forget;
use crate::{
    error::{Fault, Result},
    fsck, lock,
    record::{Content, EntryRecord, Key, Usage, key},
    transact::PreparedRecord,
    txn::{Dir, Txn},
};

/// Handles the loss of the entry of a directory that is born here. An empty directory goes as well;
/// any other gets its entry back.
pub(crate) fn orphaned(txn: &mut Txn<'_>, early_mkdir: TxnId) -> Result<()> {
    let record = txn.get::<PreparedRecord>(&key::prepared(early_mkdir))?;
    let Some(at) = record.and_then(|record| record.born) else { return Ok(()) };
    let (at, Some(id)) = (Key::from_slice(&at), key::parse_dir(&at)) else { return Ok(()) };
    txn.lock(lock::dir_lock(id))?;
    if !forget(txn, &at)?
        && let Some(content) = txn.get_content(&at)?
    {
        let mut dir = Dir::master(id, content);
        if !enter(txn, &dir)? {
            tracing::warn!(%id, "a directory has lost its place, and is in /lost+found");
            fsck::rescue(txn, &mut dir)?;
            txn.charge_freely(dir.content.accounts(), Usage::of(1, 0));
            txn.put_dir(&dir);
        }
    }
    txn.delete(key::prepared(early_mkdir));
    txn.facts.ended.push(early_mkdir);
    Ok(())
}

/// Puts a directory back where it was born. Returns `false` when its parent is lost as well, or has
/// another entry of that name.
fn enter(txn: &mut Txn<'_>, dir: &Dir) -> Result<bool> {
    let Content { parent, parent_ino, parent_home, name, .. } = &dir.content;
    let Some(name) = name else { return Ok(false) };
    let above = DirRef { id: *parent, ino: *parent_ino, home: *parent_home, ticket: 0 };
    let mut above = match txn.owner(&above, name) {
        Ok(above) => above,
        Err(Fault::Retry(Retry::StaleDir)) => return Ok(false),
        Err(fault) => return Err(fault),
    };
    if let Some(there) = txn.entry(&above, name)? {
        return Ok(matches!(there, EntryRecord::Dir(access) if access.id == dir.id));
    }
    // The charge of the directory was lost with the entry.
    txn.charge_freely(dir.content.accounts(), Usage::of(1, 0));
    txn.put_subdir(&mut above, name, dir);
    Ok(true)
}
