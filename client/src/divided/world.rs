//! The world that the tests of `divided` ask: a directory whose partitions split, merge and step,
//! as its servers see it.

use std::collections::BTreeMap;

use base::{
    Attr, DirId, EntryName, FileKind, Ino, Layout, Splits, Subsets, Transfer, layout::POS_MAX,
};
use proptest::{prelude::*, sample::Index};
use wire::{LayoutNews, ReaddirEntry, ReaddirPage};

use super::merge::Ask;

pub(super) const SHARDS: u16 = 7;

/// The partitions of a directory, and the layout that each knows.
pub(super) struct World {
    views: Vec<Layout>,
    truth: Layout,
    /// The names, as numbers, by position; some positions have several.
    names: BTreeMap<u64, Vec<u64>>,
}

fn entry(pos: u64, number: u64) -> ReaddirEntry {
    let name = EntryName::new(number.to_string().as_bytes()).unwrap();
    ReaddirEntry { pos, name, ino: Ino(number), kind: Some(FileKind::File), entry: None }
}

impl World {
    pub(super) fn new(layout: Layout, names: u64) -> World {
        let mut at: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for number in 0..names {
            // Every third name has the position of the one before.
            let mixed =
                (number - u64::from(number % 3 == 2) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            at.entry((mixed ^ mixed >> 29) & POS_MAX).or_default().push(number);
        }
        let views = vec![layout.clone(); usize::from(SHARDS)];
        World { views, truth: layout, names: at }
    }

    fn transfers(&self) -> Vec<Transfer> {
        let by = |source: u16| {
            let own = &self.views[usize::from(source)];
            let mine: Vec<Transfer> = match own {
                Layout::Whole => Vec::new(),
                Layout::Extendible(splits) => [splits.split(source, SHARDS), splits.merge(source)]
                    .into_iter()
                    .flatten()
                    .collect(),
                Layout::Subsets(subsets) => {
                    subsets.transfers().filter(|transfer| transfer.source == source).collect()
                }
            };
            mine.into_iter().filter(move |_| own.is_active(source))
        };
        (0..SHARDS).flat_map(by).collect()
    }

    fn make(&mut self, transfer: Transfer) {
        let mut both = self.views[usize::from(transfer.source)].clone();
        both.learn(&self.views[usize::from(transfer.target)]);
        let Some(after) = both.after(transfer) else { return };
        self.truth.learn(&after);
        self.views[usize::from(transfer.source)] = after.clone();
        self.views[usize::from(transfer.target)] = after;
    }

    pub(super) fn change(&mut self, change: Change) {
        let len = self.views.len();
        match change {
            Change::Transfer(which) => {
                let all = self.transfers();
                if !all.is_empty() {
                    self.make(all[which.index(all.len())]);
                }
            }
            Change::Step(goal) => self.step(goal),
            Change::Hear(who, whom) => {
                let other = self.views[whom.index(len)].clone();
                self.views[who.index(len)].learn(&other);
            }
            Change::Nothing => {}
        }
    }

    /// The master begins to have more or fewer subsets, if the last step is done.
    fn step(&mut self, goal: u16) {
        let Layout::Subsets(subsets) = &self.truth else { return };
        if let Some(next) = subsets.begin(goal, SHARDS) {
            self.truth = Layout::Subsets(next);
            self.views[0] = self.truth.clone();
        }
    }

    fn news(&self, partition: u16) -> LayoutNews {
        let layout = Some(self.views[usize::from(partition)].clone());
        LayoutNews { dir: DirId(7), ino: Ino(7), layout }
    }

    /// Number of names in all.
    pub(super) fn names(&self) -> usize {
        self.names.values().map(Vec::len).sum()
    }

    /// Number of names that a partition has, and its layout.
    pub(super) fn share(&self, partition: u16) -> Result<(u64, Layout), LayoutNews> {
        let own = &self.views[usize::from(partition)];
        if !own.is_active(partition) {
            return Err(self.news(partition));
        }
        let has = |(pos, names): (&u64, &Vec<u64>)| {
            if own.partition(*pos) == partition { names.len() as u64 } else { 0 }
        };
        Ok((self.names.iter().map(has).sum(), own.clone()))
    }

    /// Answers a request for a page like a server.
    pub(super) fn page(&self, ask: Ask, max: usize) -> Result<ReaddirPage, LayoutNews> {
        let own = &self.views[usize::from(ask.partition)];
        let has_some = match own {
            Layout::Subsets(_) => own.is_active(ask.partition),
            Layout::Whole | Layout::Extendible(_) => own.partition(ask.after + 1) == ask.partition,
        };
        if !has_some {
            return Err(self.news(ask.partition));
        }
        let (mut entries, mut reach) = (Vec::new(), own.reach(ask.after + 1));
        for (pos, numbers) in self.names.range(ask.after + 1..) {
            if own.partition(*pos) == ask.partition {
                if entries.len() >= max {
                    reach = reach.min(entries.last().map_or(reach, |last: &ReaddirEntry| last.pos));
                    break;
                }
                entries.extend(numbers.iter().map(|number| entry(*pos, *number)));
            }
        }
        let layout = Some(own.clone());
        let (attr, parent_ino) = (Attr::blank(Ino(7), FileKind::Directory), Ino(1));
        Ok(ReaddirPage { entries, end: reach == POS_MAX, attr, parent_ino, reach, layout })
    }
}

/// A change of the directory.
#[derive(Debug, Clone)]
pub(super) enum Change {
    /// Names go from one partition to another.
    Transfer(Index),
    /// The master begins a step towards this number of subsets.
    Step(u16),
    /// One partition hears what another knows.
    Hear(Index, Index),
    Nothing,
}

pub(super) fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        2 => any::<Index>().prop_map(Change::Transfer),
        1 => (1..SHARDS).prop_map(Change::Step),
        1 => any::<(Index, Index)>().prop_map(|(who, whom)| Change::Hear(who, whom)),
        1 => Just(Change::Nothing),
    ]
}

pub(super) fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(change(), 0..100)
}

pub(super) fn split(partitions: u16) -> Layout {
    Layout::Extendible(Splits::started(1, partitions))
}

pub(super) fn subsets(partitions: u16) -> Layout {
    Layout::Subsets(Subsets::started(1, partitions))
}
