//! The switch: names belong to the taker from here on.
//!
//! An operation of the server itself, which `transact` runs as it runs those of clients: its reads
//! and writes at the taker's server and its writes here are one transaction.

use base::{Ino, Shift, Spread, Time};
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
    pub(crate) giver: Partition,
    pub(crate) taker: Partition,
    pub(crate) ino: Ino,
    /// The way in which the directory is to be divided, if it is not divided yet.
    pub(crate) spread: Spread,
    /// Counts of the moved records, as the taker has them.
    pub(crate) tally: Tally,
}

impl Switch {
    fn shift(&self) -> Shift {
        Shift { giver: self.giver.number, taker: self.taker.number }
    }
}

/// Writes both shares, and the record of the work that is left.
pub(crate) fn run(txn: &mut Txn<'_>, switch: &Switch) -> Result<()> {
    let (giver, taker) = (switch.giver, switch.taker);
    txn.lock(lock::dir_lock(giver.dir))?;
    txn.want(&[taker.share(), taker.handoff()])?;
    let changed = Fault::Retry(Retry::Busy);
    let Some(mut own) = txn.get_content(&giver.share())?.filter(|own| own.ino == switch.ino) else {
        return Err(changed);
    };
    if txn.get::<HandoffRecord>(&giver.handoff())?.is_some() {
        return Err(changed);
    }
    let theirs = txn.get_content(&taker.share())?;
    if theirs.as_ref().is_some_and(|theirs| theirs.ino != switch.ino) {
        return Err(changed);
    }
    let is_ours = |what: Receiving| what.txn == switch.txn;
    match txn.get::<HandoffRecord>(&taker.handoff())? {
        Some(HandoffRecord::Receiving(what)) if is_ours(what) => {}
        Some(_) | None => return Err(changed),
    }
    let mut layout = own.layout.turned(switch.spread).unwrap_or_else(|| own.layout.clone());
    if let Some(theirs) = &theirs {
        layout.learn(&theirs.layout);
    }
    let Some(after) = layout.after(switch.shift()) else { return Err(changed) };

    let subdirs = u32::try_from(switch.tally.subdirs).unwrap_or(u32::MAX);
    // Operations go on in the names that stay, so a new share does not begin with the present
    // times. Readers see the latest times of all shares.
    let mut theirs = theirs.unwrap_or_else(|| {
        let times = Times { mtime: Time::default(), ctime: Time::default(), ..own.times };
        Content { times, ..own.share() }
    });
    if !after.is_active(giver.number) {
        // All names of the giver go, and they do not change meanwhile.
        theirs.times.mtime = theirs.times.mtime.max(own.times.mtime);
        theirs.times.ctime = theirs.times.ctime.max(own.times.ctime);
    }
    theirs.layout = after.clone();
    theirs.entries = theirs.entries.saturating_add(switch.tally.entries);
    theirs.subdirs = theirs.subdirs.saturating_add(subdirs);
    own.layout = after;
    if !own.layout.is_active(giver.number) {
        // The giver's share redirects requests until the master knows the layout.
        own.state = ContentState::Merged;
    }
    own.entries = own.entries.saturating_sub(switch.tally.entries);
    own.subdirs = own.subdirs.saturating_sub(subdirs);
    let dir = giver.dir;
    txn.put_dir(&Dir { id: dir, partition: taker.number, content: theirs });
    txn.delete(taker.handoff());
    txn.put_dir(&Dir { id: dir, partition: giver.number, content: own });
    // A master that gives need not be told.
    let left = match giver.number {
        0 => HandoffRecord::Sweeping(switch.ino),
        _ => HandoffRecord::Given(switch.ino),
    };
    txn.put(giver.handoff(), &left);
    Ok(())
}
