//! Use of users and groups: counted from the beginning, so that who looks finds it at once and a
//! limit needs no walk.
//!
//! A data directory of before on-disk version 18 has no such counts. Its records are counted once,
//! before the server serves; the superuser's sum of the first core, which is stored with the counts
//! and stays, says that it was done.
//!
//! Cost: a sum of some 40 bytes for each user and group that a group of operations has charged.
//! Once, for a file system of before: a read of all entries and inodes, one after the other.

use std::ops::ControlFlow;

use base::{Account, DecodeError, DirId, HashMap, Layout, ShardId};
use bytes::Bytes;
use store::{Batch, Engine};

use crate::{
    OpenError,
    record::{
        Accounts, Content, EntryRecord, QuotaId, Record as _, Slot, Usage,
        key::{self, Key, Part, UsagePart},
    },
};

/// The account of the superuser.
pub(crate) fn superuser() -> QuotaId {
    Account::User(0).into()
}

/// The key of the sum which says that a server has counted what owners use.
pub(crate) fn note() -> Key {
    key::usage(superuser(), UsagePart::Core(0))
}

/// The accounts and the amount that a record is charged: an inode or a directory. Others, and shares
/// of a directory beside the first, are charged to nothing.
///
/// # Errors
/// When the record is of one of these kinds and cannot be read.
pub(crate) fn charge_of(
    at: &[u8],
    value: &Bytes,
) -> Result<Option<(Accounts, Usage)>, DecodeError> {
    if at.last() != Some(&(Part::Main as u8)) {
        return Ok(None);
    }
    let inode = match at.get(2) {
        Some(b'N') => match EntryRecord::from_record(value)? {
            EntryRecord::Node(inode) => inode,
            EntryRecord::Dir(_) | EntryRecord::Link(_) => return Ok(None),
        },
        Some(b'I') => match Slot::from_record(value)? {
            Slot::Inode(inode) => inode,
            Slot::Moved(_) => return Ok(None),
        },
        Some(b'D') => {
            let content = Content::from_record(value)?;
            // A directory counts once, however many partitions it has.
            let first = key::parse_share(at).is_some_and(|(partition, _)| partition == 0);
            return Ok(first.then(|| (content.accounts(), Usage::of(1, 0))));
        }
        _ => return Ok(None),
    };
    Ok(Some((inode.accounts(), inode.usage())))
}

/// Counts what owners use on this server, if that was never done. A record that cannot be read
/// counts for nobody; `fsck` finds it.
///
/// # Errors
/// When the engine fails.
pub(crate) fn count_once(engine: &dyn Engine, shards: u16) -> Result<(), OpenError> {
    if engine.get(&note())?.is_some() {
        return Ok(());
    }
    let mut sums = Sums::default();
    sums.of.insert(superuser(), Usage::default());
    for shard in (0..shards).map(ShardId) {
        sums.shares.clear();
        // Names are told by their directories, so these come first.
        for kind in *b"DNI" {
            let prefix = key::kind(shard, kind);
            engine.scan(&prefix, &key::end_of(&prefix), &mut |at, value| {
                sums.add(at, &Bytes::copy_from_slice(value));
                ControlFlow::Continue(())
            })?;
        }
    }
    if is_unsettled(engine)? {
        tracing::warn!(
            "what users and groups have was counted while something had not ended that concerns \
             several servers: run `pando fsck --repair` when all are up"
        );
    }
    let mut batch = Batch::new();
    for (id, sum) in &sums.of {
        batch.put(&key::usage(*id, UsagePart::Core(0)), &sum.to_record());
    }
    engine.write(batch)?;
    engine.sync()?;
    Ok(())
}

/// Whether the server was stopped with transactions of several servers under way. Only a program
/// that knows of owners charges them for what these have left.
fn is_unsettled(engine: &dyn Engine) -> Result<bool, OpenError> {
    let mut found = false;
    for kind in *b"PX" {
        let prefix = key::own(kind);
        engine.scan(&prefix, &key::end_of(&prefix), &mut |_, _| {
            found = true;
            ControlFlow::Break(())
        })?;
    }
    Ok(found)
}

/// Sums of what was counted so far.
#[derive(Default)]
struct Sums {
    of: HashMap<QuotaId, Usage>,
    counted: u64,
    /// The partitions that the shard has of each directory, with the layout of one that is divided.
    shares: HashMap<DirId, Vec<(u16, Option<Layout>)>>,
}

impl Sums {
    fn add(&mut self, at: &[u8], value: &Bytes) {
        if !self.owns(at, value) {
            return;
        }
        let Ok(Some((accounts, usage))) = charge_of(at, value) else { return };
        let owners = Accounts { quota: QuotaId::NONE, ..accounts };
        for id in owners.ids() {
            let sum = self.of.entry(id).or_default();
            *sum = sum.plus(usage);
        }
        self.counted += 1;
        if self.counted.is_multiple_of(TOLD_EVERY) {
            tracing::info!(counted = self.counted, "what each user and group has is being counted");
        }
    }

    /// Whether a record counts here. Names that have come before their partition owns them, or have
    /// left and are not removed yet, are another's.
    fn owns(&mut self, at: &[u8], value: &Bytes) -> bool {
        let Some(dir) = key::parse_dir(at) else { return true };
        if let Some((partition, part)) = key::parse_share(at) {
            if part == Part::Main as u8
                && let Ok(content) = Content::from_record(value)
            {
                let divided = (content.layout != Layout::Whole).then_some(content.layout);
                self.shares.entry(dir).or_default().push((partition, divided));
            }
            return true;
        }
        let Some((pos, ..)) = key::parse_name(at).filter(|_| key::is_name(at)) else { return true };
        let has = |(partition, layout): &(u16, Option<Layout>)| {
            layout.as_ref().is_none_or(|layout| layout.partition(pos) == *partition)
        };
        self.shares.get(&dir).is_some_and(|shares| shares.iter().any(has))
    }
}

/// Number of inodes and directories after which a count says how far it is.
const TOLD_EVERY: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use base::{Ino, Time};
    use store::MemoryEngine;

    use super::*;
    use crate::{quota::Quotas, record::key::Part};

    #[test]
    fn what_owners_have_is_counted_once() {
        let engine = MemoryEngine::new();
        let dir = |partition, uid, gid| {
            let root = crate::format::root_content(Time::default());
            let content = Content { ino: Ino(7), uid, gid, ..root };
            let mut batch = Batch::new();
            let at = key::content(ShardId(0), DirId(u128::from(uid)), partition, Part::Main);
            batch.put(&at, &content.to_record());
            engine.write(batch).unwrap();
        };
        let used = || {
            let quotas = Quotas::load(&engine, true).unwrap();
            let of = |account: Account| quotas.get(account.into()).map_or(0, |it| it.total.entries);
            [Account::User(0), Account::User(5), Account::Group(9)].map(of)
        };
        dir(0, 5, 9);
        dir(0, 6, 9);
        dir(1, 5, 9);
        count_once(&engine, 4).unwrap();
        assert_eq!(used(), [0, 1, 2], "each directory once");
        dir(0, 7, 9);
        count_once(&engine, 4).unwrap();
        assert_eq!(used(), [0, 1, 2], "charges do what the count has done once");
    }
}
