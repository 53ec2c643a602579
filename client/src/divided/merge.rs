//! The state of a listing of a directory of several partitions, without any IO: the pages read, and
//! the pages to ask for next.
//!
//! `listing` asks and hands in the answers. Partitions split, merge and give names away while a
//! directory is listed. Names that are there all the time are still handed out exactly once, for
//! one of two reasons:
//!
//! * Where each partition has a *range* of positions, a page says for which positions it is
//!   complete, and was read while its partition owned them. Each position is handed out from one
//!   page.
//! * Where names are *scattered*, pages of all partitions are merged as far as all of them reach,
//!   if the newest layout agrees with each page about what the partition has that it comes from:
//!   then every move was before the pages of both partitions that it concerns, or after.
//!
//! Always true: all names up to `after` were handed out. Each partition is asked for one page at a
//! time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

use base::{Layout, layout::POS_MAX};
use wire::{LayoutNews, ReaddirEntry, ReaddirPage};

use super::{Reading, View};

/// A listing in progress; see the module's page.
#[derive(Debug)]
pub(crate) struct Merge {
    /// Position up to which everything was handed out.
    after: u64,
    view: View<Lane>,
    /// Partitions that were asked and have not answered, each with the position it was asked after.
    asked: BTreeMap<u16, u64>,
}

/// The entries read of one partition: all that it has in `(from, reach]`.
#[derive(Debug)]
struct Lane {
    from: u64,
    reach: u64,
    /// The pages in the order of their answers, without entries that were handed out; none is
    /// empty.
    pages: VecDeque<VecDeque<ReaddirEntry>>,
    /// The layout that came with the last page.
    layout: Layout,
}

impl Lane {
    fn entries(&self) -> usize {
        self.pages.iter().map(VecDeque::len).sum()
    }

    /// The position of the next entry.
    fn next(&self) -> Option<u64> {
        self.pages.front()?.front().map(|entry| entry.pos)
    }

    fn pop(&mut self) -> Option<ReaddirEntry> {
        let page = self.pages.front_mut()?;
        let entry = page.pop_front();
        if page.is_empty() {
            self.pages.pop_front();
        }
        entry
    }

    /// The whole of the next page, if it has not more than `max` entries and none after `reach`.
    fn pop_page(&mut self, reach: u64, max: usize) -> Option<Vec<ReaddirEntry>> {
        let page = self.pages.front()?;
        let fits = page.len() <= max && page.back().is_some_and(|last| last.pos <= reach);
        // Entries of equal positions are always within one page, so none are parted.
        if fits { self.pages.pop_front().map(Vec::from) } else { None }
    }
}

/// A page to be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) partition: u16,
    pub(crate) after: u64,
}

/// Limits of reading ahead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead {
    /// Number of partitions that are asked at once.
    pub(crate) partitions: usize,
    /// Number of entries read from which on no more is read ahead.
    pub(crate) entries: usize,
}

impl Reading for Lane {
    fn fits(&self, partition: u16, now: &Layout) -> bool {
        match now.scatters() {
            true => now.agrees_about(&self.layout, partition),
            false => !self.layout.scatters(),
        }
    }
}

impl Merge {
    /// A listing that goes on after a position, of a directory with this layout, which may be
    /// outdated.
    pub(crate) fn new(after: u64, layout: Layout) -> Merge {
        Merge { after, view: View::new(layout), asked: BTreeMap::new() }
    }

    /// Position up to which everything was handed out.
    pub(crate) fn after(&self) -> u64 {
        self.after
    }

    /// Whether everything was handed out.
    pub(crate) fn is_at_end(&self) -> bool {
        self.after >= POS_MAX
    }

    /// Number of partitions over which one page of the listing is spread.
    pub(crate) fn width(&self) -> usize {
        if self.view.layout.scatters() { self.view.layout.active().count() } else { 1 }
    }

    /// Whether to pause before anything is asked again.
    pub(crate) fn must_wait(&self) -> bool {
        self.view.vain.must_wait()
    }

    /// The pages to ask for now. If [`Merge::next`] has nothing, at least one page is on its way
    /// then.
    pub(crate) fn wants(&mut self, ahead: Ahead) -> Vec<Ask> {
        let buffered: usize = self.view.read.values().map(Lane::entries).sum();
        let room = buffered < ahead.entries;
        if self.view.layout.scatters() {
            let active: Vec<u16> = self.view.layout.active().collect();
            let want = |partition| self.want(partition, self.after, room);
            return active.into_iter().filter_map(want).collect();
        }
        let (mut asks, mut start) = (Vec::new(), self.after);
        loop {
            while let Some(partition) = self.covering(start) {
                start = self.view.read[&partition].reach;
            }
            let is_next = start == self.after;
            let more = room && self.asked.len() < ahead.partitions;
            if start >= POS_MAX || !is_next && !more {
                return asks;
            }
            asks.extend(self.want(self.view.layout.partition(start + 1), start, true));
            start = self.view.layout.reach(start + 1);
        }
    }

    /// The next page of a partition to ask for, after the entries known from `after` on. `None`
    /// when one is asked for already, or none is needed.
    fn want(&mut self, partition: u16, after: u64, ahead: bool) -> Option<Ask> {
        if self.asked.contains_key(&partition) {
            return None;
        }
        let known = self.view.read.get(&partition).map(|lane| (lane.from, lane.reach));
        let after = match known {
            Some((from, reach)) if (from..=reach).contains(&after) => {
                if !ahead && reach > after || reach >= POS_MAX {
                    return None;
                }
                reach
            }
            Some(_) | None => {
                self.view.read.remove(&partition);
                after
            }
        };
        self.asked.insert(partition, after);
        Some(Ask { partition, after })
    }

    /// The partition whose entries are known right after a position.
    fn covering(&self, after: u64) -> Option<u16> {
        let covers = |lane: &Lane| (lane.from..lane.reach).contains(&after);
        self.view.read.iter().find(|(_, lane)| covers(lane)).map(|(partition, _)| *partition)
    }

    /// Takes in a page.
    pub(crate) fn take(&mut self, ask: Ask, page: ReaddirPage) {
        self.asked.remove(&ask.partition);
        let layout = match page.layout {
            Some(layout) => {
                self.view.learn(&layout);
                layout
            }
            // An answer without a layout comes from a directory in one partition: forget any other
            // layout.
            None => {
                self.view.forget(Layout::Whole);
                Layout::Whole
            }
        };
        let partition = if self.view.layout.scatters() {
            Some(ask.partition).filter(|asked| self.view.layout.agrees_about(&layout, *asked))
        } else {
            // The server may also have another partition, the right one, and have answered for
            // that.
            Some(layout.partition(ask.after + 1)).filter(|_| !layout.scatters())
        };
        let Some(partition) = partition else { return self.view.in_vain() };
        let lane = self.view.read.entry(partition).or_insert_with(|| Lane {
            from: ask.after,
            reach: ask.after,
            pages: VecDeque::new(),
            layout: layout.clone(),
        });
        if lane.reach == ask.after {
            lane.reach = page.reach;
            lane.pages.extend(Some(VecDeque::from(page.entries)).filter(|page| !page.is_empty()));
            lane.layout = layout;
        }
    }

    /// Takes in that a partition does not have the names that it was asked for.
    pub(crate) fn correct(&mut self, ask: Ask, news: &LayoutNews) {
        self.asked.remove(&ask.partition);
        let layout = news.layout.as_ref().unwrap_or(&Layout::Whole);
        let learnt = self.view.learn(layout);
        let again = if self.view.layout.scatters() {
            self.view.layout.is_active(ask.partition)
        } else {
            self.view.layout.partition(ask.after + 1) == ask.partition
        };
        self.view.in_vain();
        if again && !learnt || news.layout.is_none() {
            self.view.forget(layout.clone());
        }
    }

    /// Takes in that a page was not read.
    pub(crate) fn lose(&mut self, ask: Ask) {
        self.asked.remove(&ask.partition);
    }

    /// The next entries, about `max` at most: entries of equal positions are not parted. `None`
    /// when they must be read first.
    pub(crate) fn next(&mut self, max: usize) -> Option<Vec<ReaddirEntry>> {
        let of: Vec<u16> = match self.view.layout.scatters() {
            true => self.view.layout.active().collect(),
            false => vec![self.covering(self.after)?],
        };
        let after = self.after;
        let lane = |partition: &u16| {
            let lane = self.view.read.get(partition);
            lane.filter(|lane| (lane.from..lane.reach).contains(&after)).map(|lane| lane.reach)
        };
        let reaches: Option<Vec<u64>> = of.iter().map(lane).collect();
        let reach = reaches?.into_iter().min()?;
        let (out, full) = self.merge(&of, reach, max);
        self.after = match out.last() {
            Some(last) if full => last.pos,
            Some(_) | None => reach,
        };
        self.view.vain.end();
        self.view.read.retain(|_, lane| lane.reach > self.after);
        Some(out)
    }

    /// The entries up to `reach` of these partitions, in order. Also returns whether there were
    /// more than `max`.
    fn merge(&mut self, of: &[u16], reach: u64, max: usize) -> (Vec<ReaddirEntry>, bool) {
        let (after, mut heads) = (self.after, BinaryHeap::with_capacity(of.len()));
        for partition in of {
            let Some(lane) = self.view.read.get_mut(partition) else { continue };
            while lane.next().is_some_and(|pos| pos <= after) {
                lane.pop();
            }
            // A page that needs no merging is handed on as it is.
            if of.len() == 1
                && let Some(page) = lane.pop_page(reach, max)
            {
                let more = lane.next().is_some_and(|pos| pos <= reach);
                return (page, more);
            }
            let next = lane.next().filter(|pos| *pos <= reach);
            heads.extend(next.map(|pos| Reverse((pos, *partition))));
        }
        let mut out: Vec<ReaddirEntry> = Vec::new();
        while let Some(Reverse((pos, partition))) = heads.pop() {
            if out.len() >= max.max(1) && out.last().is_some_and(|last| last.pos != pos) {
                return (out, true);
            }
            let Some(lane) = self.view.read.get_mut(&partition) else { continue };
            out.extend(lane.pop());
            let next = lane.next().filter(|pos| *pos <= reach);
            heads.extend(next.map(|pos| Reverse((pos, partition))));
        }
        (out, false)
    }
}

#[cfg(test)]
mod tests;
