//! The switch: names belong to the target from here on.
//!
//! An operation of the server itself, which `transact` runs as it runs those of clients: its reads
//! and writes at the target's server and its writes here are one transaction.

use base::{Ino, Spread, Time, Transfer};
use wire::{Retry, Tally, TxnId};

use super::{HandoffRecord, Receiving, table::Partition};
use crate::{
    error::{Fault, Result},
    lock,
    record::{Content, ContentState, Times},
    txn::{Dir, Txn},
};

/// Names that change their partition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Switch {
    pub(crate) txn: TxnId,
    pub(crate) source: Partition,
    pub(crate) target: Partition,
    pub(crate) ino: Ino,
    /// The way in which the directory is to be divided, if it is not divided yet.
    pub(crate) spread: Spread,
    /// Counts of the moved records, as the target has them.
    pub(crate) tally: Tally,
}

impl Switch {
    fn transfer(&self) -> Transfer {
        Transfer { source: self.source.number, target: self.target.number }
    }
}

/// Writes both shares, and the record of the work that is left.
pub(crate) fn run(txn: &mut Txn<'_>, switch: &Switch) -> Result<()> {
    let (source, target) = (switch.source, switch.target);
    txn.lock(lock::dir_lock(source.dir))?;
    txn.want(&[target.share(), target.handoff()])?;
    let changed = Fault::Retry(Retry::Busy);
    let Some(mut own) = txn.get_content(&source.share())?.filter(|own| own.ino == switch.ino)
    else {
        return Err(changed);
    };
    if txn.get::<HandoffRecord>(&source.handoff())?.is_some() {
        return Err(changed);
    }
    let theirs = txn.get_content(&target.share())?;
    if theirs.as_ref().is_some_and(|theirs| theirs.ino != switch.ino) {
        return Err(changed);
    }
    let is_ours = |what: Receiving| what.txn == switch.txn;
    match txn.get::<HandoffRecord>(&target.handoff())? {
        Some(HandoffRecord::Receiving(what)) if is_ours(what) => {}
        Some(_) | None => return Err(changed),
    }
    let mut layout = own.layout.turned(switch.spread).unwrap_or_else(|| own.layout.clone());
    if let Some(theirs) = &theirs {
        layout.learn(&theirs.layout);
    }
    let Some(after) = layout.after(switch.transfer()) else { return Err(changed) };

    let subdirs = u32::try_from(switch.tally.subdirs).unwrap_or(u32::MAX);
    // Operations go on in the names that stay, so a new share does not begin with the present
    // times. Readers see the latest times of all shares.
    let mut theirs = theirs.unwrap_or_else(|| {
        let times = Times { mtime: Time::default(), ctime: Time::default(), ..own.times };
        Content { times, ..own.share() }
    });
    if !after.is_active(source.number) {
        // All names of the source go, and they do not change meanwhile.
        theirs.times.mtime = theirs.times.mtime.max(own.times.mtime);
        theirs.times.ctime = theirs.times.ctime.max(own.times.ctime);
    }
    theirs.layout = after.clone();
    theirs.entries = theirs.entries.saturating_add(switch.tally.entries);
    theirs.subdirs = theirs.subdirs.saturating_add(subdirs);
    own.layout = after;
    if !own.layout.is_active(source.number) {
        // The source's share redirects requests until the master knows the layout.
        own.state = ContentState::Merged;
    }
    own.entries = own.entries.saturating_sub(switch.tally.entries);
    own.subdirs = own.subdirs.saturating_sub(subdirs);
    let dir = source.dir;
    txn.put_dir(&Dir { id: dir, partition: target.number, content: theirs });
    txn.delete(target.handoff());
    txn.put_dir(&Dir { id: dir, partition: source.number, content: own });
    // A master that gives need not be told.
    let left = match source.number {
        0 => HandoffRecord::Sweeping(switch.ino),
        _ => HandoffRecord::Given(switch.ino),
    };
    txn.put(source.handoff(), &left);
    Ok(())
}
