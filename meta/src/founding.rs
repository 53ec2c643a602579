//! Founding: a file system of one server becomes the first server of a cluster.
//!
//! All records are stored alike for one server and for several, but for two. A server that is alone
//! embeds inodes in the trash, and in lost+found, wherever the entry is; with several an embedded
//! inode is on its shard of birth ([`txn::find`](crate::txn)), so here these get slots. And a root
//! of a quota that is gone has none above it.
//!
//! Always true: membership is stored last, so what was interrupted begins anew; until then a server
//! that is alone reads each of these records in either form.

use std::ops::ControlFlow;

use base::{Ino, Random, ShardId};
use bytes::Bytes;
use store::{Batch, Engine};

use crate::{
    OpenError,
    cluster::member::Member,
    coordinator::roster::Roster,
    record::{
        Config, EntryRecord, Key, QuotaRecord, QuotaState, Record as _, Slot,
        key::{self, Part, UsagePart},
    },
    upgrade,
};

/// Number of records that are looked at for one batch of changes.
const BATCH_RECORDS: usize = 1000;

/// Makes the server of a file system that has one the coordinator of a cluster, which others can
/// join from its next start on. Does nothing where it is one already. All is on stable storage when
/// this returns.
///
/// # Errors
/// When the engine has no file system, or cannot be read.
pub fn found_cluster(engine: &dyn Engine, random: &dyn Random) -> Result<(), OpenError> {
    upgrade::bring_up_to_date(engine)?;
    let config = engine.get(&key::config())?.ok_or(OpenError::NotFormatted)?;
    let config = Config::from_record(&config)?;
    if engine.get(&key::member())?.is_some() {
        return Ok(engine.sync()?);
    }
    for shard in (0..config.shards).map(ShardId) {
        let prefix = key::kind(shard, b'I');
        change(engine, prefix, |at, value, batch| embedded(engine, &config, (at, value), batch))?;
    }
    change(engine, key::own(b'A'), orphaned)?;
    let (member, mut batch) = (random.next(), Batch::default());
    batch.put(&key::member(), &Member::new(0, 1, member).to_record());
    batch.put(&key::roster(), &Roster::founded(member).to_record());
    engine.write(batch)?;
    Ok(engine.sync()?)
}

/// Asks `step` about each record under a prefix, and makes the changes that it adds to the batch.
fn change(
    engine: &dyn Engine,
    prefix: Key,
    step: impl Fn(&[u8], &Bytes, &mut Batch) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    let (mut from, end) = (Some(prefix.clone()), key::end_of(&prefix));
    while let Some(begin) = from.take() {
        let mut page: Vec<(Key, Bytes)> = Vec::new();
        engine.scan(&begin, &end, &mut |at, value| {
            if page.len() == BATCH_RECORDS {
                from = Some(Key::from_slice(at));
                return ControlFlow::Break(());
            }
            page.push((Key::from_slice(at), Bytes::copy_from_slice(value)));
            ControlFlow::Continue(())
        })?;
        let mut batch = Batch::default();
        page.iter().try_for_each(|(at, value)| step(at, value, &mut batch))?;
        engine.write(batch)?;
    }
    Ok(())
}

/// Gives an inode its slot that is embedded on another shard than the one of its birth. Records that
/// are damaged are left to `pando fsck`.
fn embedded(
    engine: &dyn Engine,
    config: &Config,
    (at, value): (&[u8], &Bytes),
    batch: &mut Batch,
) -> Result<(), OpenError> {
    let Ok(Slot::Moved(place)) = Slot::from_record(value) else { return Ok(()) };
    let shard = config.placement().shard_of(place.home, 0);
    if shard == key::shard_of(at) {
        return Ok(());
    }
    let pos = config.hash_key.pos(&place.name);
    let of_name = |part| key::name(shard, place.dir, pos, &place.name, part);
    let Some(entry) = engine.get(&of_name(Part::Main))? else { return Ok(()) };
    let Ok(EntryRecord::Node(inode)) = EntryRecord::from_record(&entry) else { return Ok(()) };
    let ino = inode.ino;
    if key::inode(ino, Part::Main)[..] != *at {
        return Ok(());
    }
    if let Some(xattrs) = engine.get(&of_name(Part::Xattrs))? {
        batch.put(&key::inode(ino, Part::Xattrs), &xattrs);
        batch.delete(&of_name(Part::Xattrs));
    }
    batch.put(at, &Slot::Inode(inode).to_record());
    batch.put(&of_name(Part::Main), &EntryRecord::Link(ino).to_record());
    Ok(())
}

/// Takes a root of a quota that is gone away from the one above.
fn orphaned(at: &[u8], value: &Bytes, batch: &mut Batch) -> Result<(), OpenError> {
    if let Some((_, UsagePart::Root)) = key::parse_usage(at)
        && let Ok(quota) = QuotaRecord::from_record(value)
        && quota.state == QuotaState::Gone
        && quota.parent != Ino(0)
    {
        batch.put(at, &QuotaRecord { parent: Ino(0), ..quota }.to_record());
    }
    Ok(())
}
