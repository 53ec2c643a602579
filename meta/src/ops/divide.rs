//! Policies of directories: how a directory is divided, and which contents of its files rest in its
//! entries. `settings` sets a policy, `info` shows it, and a new directory may inherit it.
//!
//! A directory with nothing in it is divided at once: all its partitions are made, or made anew, in
//! one transaction.
//!
//! Cost: a locked read and a put for each partition that was there or will be; one batch on each
//! shard.
//! POSIX: none. ENOTEMPTY for a directory that has entries, EINVAL for more partitions than there
//! are shards.

use base::{FsError, Layout, Spread};

use crate::{
    error::Result,
    record::{Content, Policy},
    txn::{Dir, Txn, removal},
};

/// Changes a directory's policy, and divides the directory accordingly.
pub(crate) fn set(txn: &mut Txn<'_>, mut dir: Dir, change: impl FnOnce(&mut Policy)) -> Result<()> {
    let was = dir.content.policy;
    change(&mut dir.content.policy);
    let policy = dir.content.policy;
    if policy == was {
        return Ok(());
    }
    // There is one partition on a shard at most.
    if policy.large_dir > txn.shared.config.shards {
        return Err(FsError::Invalid.into());
    }
    // A directory of one partition that has entries is divided later, when it is too large.
    let deals = (policy.spread, policy.partitions()) != (was.spread, was.partitions());
    let grows = !dir.is_divided() && policy.partitions() == 1 && dir.content.entries > 0;
    if !deals || grows {
        return txn.put_everywhere(&dir);
    }
    removal::others_empty(txn, &dir)?;
    let layout = policy.layout(&dir.content.layout).ok_or(FsError::NoSpace)?;
    if layout == dir.content.layout {
        return txn.put_everywhere(&dir);
    }
    txn.divide(&mut dir, layout)
}

/// Divides a new directory as its parent's policy says.
pub(crate) fn inherit(txn: &mut Txn<'_>, parent: &Content, child: &mut Dir) -> Result<()> {
    let policy = parent.policy.inherited();
    child.content.policy = policy;
    // A dump may be loaded where nothing is divided.
    if policy.partitions() > 1 && txn.shared.cluster.is_some() {
        let layout = policy.layout(&Layout::Whole).ok_or(FsError::NoSpace)?;
        txn.divide(child, layout)?;
    }
    Ok(())
}

/// The lines that `info` prints about a policy.
pub(crate) fn tell(content: &Content, line: &mut dyn FnMut(&str, String)) {
    let policy = content.policy;
    if policy == Policy::NONE {
        return;
    }
    if policy.divides() {
        let spread = match policy.spread() {
            Spread::None => "none",
            Spread::Extendible => "extendible",
            Spread::Subsets => "subsets",
        };
        line("spread", spread.to_owned());
        line("large_dir", policy.partitions().to_string());
    }
    if policy.split_threshold > 0 {
        line("split_threshold", policy.split_threshold.to_string());
    }
    if let Some(number) = policy.inline_max.0 {
        line("inline_max", number.to_string());
    }
    line("inherit", if policy.inherit { "yes" } else { "no" }.to_owned());
}
