//! The attributes of a directory from those of its partitions: sums of the counts, and the latest
//! times.
//!
//! Each partition answers with its own counts and its layout. The answers go together when the
//! newest layout agrees with each about what its partition has: then no name was counted twice, or
//! missed, because it was on its way. Entries may still be made or removed between the answers; a
//! caller for which that matters asks again.

use base::{Attr, Layout};
use wire::{LayoutNews, ShareStat};

use super::{Reading, View};

/// The answers so far; see the module's page.
#[derive(Debug)]
pub(crate) struct Shares {
    view: View<ShareStat>,
}

impl Reading for ShareStat {
    fn fits(&self, partition: u16, now: &Layout) -> bool {
        now.agrees_about(&self.layout, partition)
    }
}

impl Shares {
    /// The attributes of a directory with this layout, which may be outdated.
    pub(crate) fn new(layout: Layout) -> Shares {
        Shares { view: View::new(layout) }
    }

    /// The partitions that are to be asked; none when all have answered.
    pub(crate) fn wants(&self) -> Vec<u16> {
        self.view
            .layout
            .active()
            .filter(|partition| !self.view.read.contains_key(partition))
            .collect()
    }

    /// Whether to pause before anything is asked again.
    pub(crate) fn must_wait(&self) -> bool {
        self.view.vain.must_wait()
    }

    /// The layout of the directory, as far as it is known now.
    pub(crate) fn layout(&self) -> &Layout {
        &self.view.layout
    }

    /// Takes in the answer of a partition.
    pub(crate) fn take(&mut self, partition: u16, share: ShareStat) {
        self.view.learn(&share.layout);
        if self.view.layout.agrees_about(&share.layout, partition) {
            self.view.read.insert(partition, share);
        } else {
            self.view.in_vain();
        }
    }

    /// Takes in that a partition is not active.
    pub(crate) fn correct(&mut self, partition: u16, news: &LayoutNews) {
        let layout = news.layout.as_ref().unwrap_or(&Layout::Whole);
        let learnt = self.view.learn(layout);
        self.view.in_vain();
        if news.layout.is_none() || !learnt && self.view.layout.is_active(partition) {
            self.view.forget(layout.clone());
        }
    }

    /// Takes the attributes of all partitions, once all have answered; all are to be asked again
    /// then. The caller compares the answers with those of the next time. `None` while some are
    /// still to be asked.
    pub(crate) fn complete(&mut self) -> Option<Vec<Attr>> {
        if !self.wants().is_empty() {
            return None;
        }
        self.view.vain.end();
        let active: Vec<u16> = self.view.layout.active().collect();
        let mut found = std::mem::take(&mut self.view.read);
        found.retain(|partition, _| active.contains(partition));
        Some(found.into_values().map(|share| share.attr).collect())
    }
}

/// The attributes of a directory whose partitions have these, the master first.
pub(crate) fn total(parts: &[Attr]) -> Option<Attr> {
    let (master, others) = parts.split_first()?;
    let add = |total: Attr, part: &Attr| Attr {
        // Two names of its own, and one for each directory in it.
        nlink: total.nlink.saturating_add(part.nlink.saturating_sub(2)),
        size: total.size.saturating_add(part.size),
        allocated: total.allocated.saturating_add(part.allocated),
        mtime: total.mtime.max(part.mtime),
        ctime: total.ctime.max(part.ctime),
        ..total
    };
    Some(others.iter().fold(*master, add))
}

#[cfg(test)]
mod tests {
    use base::{FileKind, Ino, Time};
    use proptest::prelude::*;

    use super::{
        super::world::{Change, World, changes, split, subsets},
        *,
    };

    fn attr_of(entries: u64) -> Attr {
        Attr { size: entries, nlink: 2, ..Attr::blank(Ino(7), FileKind::Directory) }
    }

    fn ask(world: &World, shares: &mut Shares, partition: u16) {
        match world.share(partition) {
            Ok((entries, layout)) => {
                shares.take(partition, ShareStat { attr: attr_of(entries), layout });
            }
            Err(news) => shares.correct(partition, &news),
        }
    }

    proptest! {
        #[test]
        fn no_name_is_counted_twice_or_not_at_all_because_it_moves(
            changes in changes(), partitions in 1..6u16, names in 0..120u64, known: bool, scattered: bool,
        ) {
            let layout = if scattered { subsets(partitions) } else { split(partitions) };
            let mut world = World::new(layout.clone(), names);
            let mut shares = Shares::new(if known { layout } else { Layout::Whole });
            // One partition is asked, something changes, another is asked, and so on.
            let mut changes = changes.into_iter();
            let mut steps = 0..10_000;
            while steps.next().is_some() {
                if let Some(parts) = shares.complete() {
                    prop_assert_eq!(total(&parts).unwrap().size, names);
                    if changes.len() == 0 {
                        return Ok(());
                    }
                }
                let wants = shares.wants();
                ask(&world, &mut shares, wants[changes.len() % wants.len()]);
                world.change(changes.next().unwrap_or(Change::Nothing));
            }
            prop_assert!(false, "it does not end: {:?}", shares);
        }
    }

    #[test]
    fn counts_are_added_up_and_of_times_the_latest_counts() {
        let time = |sec| Time { sec, nsec: 0 };
        let part = |nlink, size, mtime, ctime| Attr {
            nlink,
            size,
            mtime: time(mtime),
            ctime: time(ctime),
            atime: time(mtime),
            ..attr_of(0)
        };
        let parts = [part(3, 10, 5, 9), part(2, 0, 7, 7), part(6, 20, 1, 1)];
        let total = total(&parts).unwrap();
        assert_eq!((total.nlink, total.size), (7, 30));
        assert_eq!([total.mtime, total.ctime, total.atime], [7, 9, 5].map(time));
    }
}
