//! Listings of a directory whose partitions split, merge and step while it is listed, in pages of a
//! few entries.

use proptest::{prelude::*, sample::Index};

use super::{
    super::world::{Change, SHARDS, World, change, split, subsets},
    *,
};

const AHEAD: Ahead = Ahead { partitions: 3, entries: 12 };

/// An event between two steps of a listing.
#[derive(Debug, Clone)]
enum Event {
    Change(Change),
    /// A server reads a page that was asked for.
    Read(Index),
    /// A page arrives.
    Arrive(Index),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => change().prop_map(Event::Change),
        4 => any::<Index>().prop_map(Event::Read),
        4 => any::<Index>().prop_map(Event::Arrive),
    ];
    prop::collection::vec(event, 0..300)
}

type Answer = (Ask, Result<ReaddirPage, LayoutNews>);

/// A listing under way.
struct Run {
    world: World,
    merge: Merge,
    sent: Vec<Ask>,
    read: Vec<Answer>,
    listed: Vec<ReaddirEntry>,
}

impl Run {
    fn new(world: World, hint: Layout) -> Run {
        let merge = Merge::new(0, hint);
        Run { world, merge, sent: Vec::new(), read: Vec::new(), listed: Vec::new() }
    }

    fn on(&mut self, event: Event, max: usize) {
        match event {
            Event::Change(change) => self.world.change(change),
            Event::Read(which) if !self.sent.is_empty() => {
                self.read(which.index(self.sent.len()), max);
            }
            Event::Arrive(which) if !self.read.is_empty() => {
                self.arrive(which.index(self.read.len()));
            }
            Event::Read(_) | Event::Arrive(_) => {}
        }
        self.go_on(max);
    }

    fn read(&mut self, at: usize, max: usize) {
        let ask = self.sent.swap_remove(at);
        self.read.push((ask, self.world.page(ask, max)));
    }

    fn arrive(&mut self, at: usize) {
        let (ask, answer) = self.read.swap_remove(at);
        match answer {
            Ok(page) => self.merge.take(ask, page),
            Err(news) => self.merge.correct(ask, &news),
        }
    }

    fn go_on(&mut self, max: usize) {
        while !self.merge.is_at_end()
            && let Some(entries) = self.merge.next(max)
        {
            self.listed.extend(entries);
        }
        self.sent.extend(self.merge.wants(AHEAD));
    }

    /// Runs the listing to its end without further changes.
    fn finish(&mut self, max: usize) {
        for _ in 0..10_000 {
            if self.merge.is_at_end() {
                return;
            }
            if !self.sent.is_empty() {
                self.read(0, max);
            }
            assert!(!self.read.is_empty(), "something is on its way");
            self.arrive(0);
            self.go_on(max);
        }
        panic!("it does not end: {:?}", self.merge);
    }
}

fn lists_each_once(mut run: Run, events: Vec<Event>, max: usize) {
    let all = run.world.names();
    run.sent = run.merge.wants(AHEAD);
    events.into_iter().for_each(|event| run.on(event, max));
    run.finish(max);
    assert!(run.listed.is_sorted_by_key(|entry| entry.pos));
    let mut listed: Vec<u64> = run.listed.iter().map(|entry| entry.ino.0).collect();
    assert_eq!(listed.len(), all);
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed.len(), all, "each once");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn what_is_there_all_the_time_is_listed_once_while_partitions_split_and_merge(
        events in events(), partitions in 1..6u16, names in 0..120u64, max in 1..6usize, known: bool,
    ) {
        let world = World::new(split(partitions), names);
        let hint = if known { split(partitions) } else { Layout::Whole };
        lists_each_once(Run::new(world, hint), events, max);
    }

    #[test]
    fn what_is_there_all_the_time_is_listed_once_while_subsets_come_and_go(
        events in events(), partitions in 1..6u16, names in 0..120u64, max in 1..6usize, known: bool,
    ) {
        let world = World::new(subsets(partitions), names);
        let hint = if known { subsets(partitions) } else { Layout::Whole };
        lists_each_once(Run::new(world, hint), events, max);
    }

    #[test]
    fn a_partition_that_never_was_keeps_no_listing_from_its_end(
        phantom in 1..SHARDS, partitions in 1..6u16, scattered: bool,
    ) {
        let of = |partitions| if scattered { subsets(partitions) } else { split(partitions) };
        let hint = of(partitions.max(phantom));
        lists_each_once(Run::new(World::new(of(partitions), 60), hint), Vec::new(), 3);
    }
}

#[test]
fn pages_of_all_partitions_are_asked_for_at_once() {
    let ahead = Ahead { partitions: 4, entries: 100 };
    let mut merge = Merge::new(0, split(8));
    let asked: Vec<u16> = merge.wants(ahead).iter().map(|ask| ask.partition).collect();
    assert_eq!(asked, [0, 4, 2, 6], "in the order of their positions");
    assert!(merge.wants(ahead).is_empty());
    let mut merge = Merge::new(0, subsets(5));
    assert_eq!(merge.wants(Ahead { partitions: 1, entries: 0 }).len(), 5);
}

#[test]
fn a_listing_that_is_not_read_asks_for_no_more() {
    let world = World::new(split(2), 1000);
    let mut merge = Merge::new(0, split(2));
    let ahead = Ahead { partitions: 4, entries: 20 };
    let mut pages = 0;
    loop {
        let asks = merge.wants(ahead);
        if asks.is_empty() {
            break;
        }
        for ask in asks {
            merge.take(ask, world.page(ask, 5).unwrap());
            pages += 1;
        }
    }
    assert!((4..=6).contains(&pages), "{pages}");
}
