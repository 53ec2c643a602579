//! Layouts under random changes that everybody hears of late, in another order, or never.

mod steps;

use bytes::Bytes;
use proptest::{prelude::*, sample::Index};

use super::*;
use crate::{Decode as _, Encode as _, HashKey, name::EntryName};

const SHARDS: u16 = 24;

fn transfers(layout: &Layout) -> Vec<Transfer> {
    match layout {
        Layout::Whole => Vec::new(),
        Layout::Extendible(splits) => {
            let of = |partition| [splits.split(partition, SHARDS), splits.merge(partition)];
            layout.active().flat_map(of).flatten().collect()
        }
        Layout::Subsets(subsets) => subsets.transfers().collect(),
    }
}

fn extendible() -> Layout {
    Layout::Extendible(Splits::new(1))
}

fn subsets(count: u16) -> Layout {
    let mut subsets = Subsets::new(1);
    while let Some(next) = subsets.begin(count, SHARDS) {
        subsets = done(next);
    }
    Layout::Subsets(subsets)
}

/// All transfers of a step, one after the other.
fn done(begun: Subsets) -> Subsets {
    let all: Vec<Transfer> = begun.transfers().collect();
    all.into_iter().fold(begun, |at, transfer| at.after(transfer).unwrap())
}

fn subsets_of(layout: &Layout) -> &Subsets {
    match layout {
        Layout::Subsets(subsets) => subsets,
        Layout::Whole | Layout::Extendible(_) => panic!("no subsets: {layout:?}"),
    }
}

fn splits_of(layout: &Layout) -> &Splits {
    match layout {
        Layout::Extendible(splits) => splits,
        Layout::Whole | Layout::Subsets(_) => panic!("not extendible: {layout:?}"),
    }
}

/// Makes the transfers that are drawn.
fn made(mut layout: Layout, drawn: &[Index]) -> Layout {
    for index in drawn {
        let next = transfers(&layout);
        if !next.is_empty() {
            layout = layout.after(next[index.index(next.len())]).unwrap();
        }
    }
    layout
}

fn positions() -> impl Iterator<Item = u64> {
    (0..4000u64).map(|at| scattered(at) & POS_MAX).chain([0, 16, POS_MAX])
}

/// Numbers without a pattern.
fn scattered(at: u64) -> u64 {
    let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ mixed >> 17
}

fn is_a_layout(layout: &Layout) {
    let bytes = Bytes::from(layout.to_vec());
    assert_eq!(Layout::from_bytes(&bytes).as_ref(), Ok(layout));
    for pos in positions() {
        assert!(layout.is_active(layout.partition(pos)), "{layout:?} at {pos:x}");
    }
}

#[test]
fn the_example_of_the_paper() {
    // SFS figure 2: two partitions at first; then 0 splits, then 1.
    let two = extendible().after(Transfer { source: 0, target: 1 }).unwrap();
    assert_eq!([0, 1].map(|partition| splits_of(&two).depth(partition)), [1, 1]);
    let three = two.after(Transfer { source: 0, target: 2 }).unwrap();
    assert_eq!([0, 1, 2].map(|partition| splits_of(&three).depth(partition)), [2, 1, 2]);
    assert_eq!(splits_of(&three).split(1, 5), Some(Transfer { source: 1, target: 3 }));
    assert_eq!(splits_of(&three).split(0, 5), Some(Transfer { source: 0, target: 4 }));
    assert_eq!(splits_of(&three).split(2, 5), None, "there is no partition 6");
    // The hash that ends in 01 stays with 1 until that splits, and then as well.
    let ends_in = |hash: u64| hash.reverse_bits() >> 1;
    assert_eq!([0b100, 0b01, 0b11, 0b110].map(|hash| three.partition(ends_in(hash))), [0, 1, 1, 2]);
}

#[test]
fn the_partition_that_was_split_off_last_merges_first() {
    let mut layout = extendible();
    for target in [1, 2, 4] {
        layout = layout.after(Transfer { source: 0, target }).unwrap();
    }
    layout = layout.after(Transfer { source: 1, target: 3 }).unwrap();
    let merges = |layout: &Layout| -> Vec<u16> {
        let merge = |source: &u16| splits_of(layout).merge(*source).is_some();
        layout.active().filter(merge).collect()
    };
    assert_eq!(merges(&layout), [3, 4]);
    layout = layout.after(Transfer { source: 4, target: 0 }).unwrap();
    layout = layout.after(Transfer { source: 3, target: 1 }).unwrap();
    assert_eq!(merges(&layout), [2]);
    layout = layout.after(Transfer { source: 2, target: 0 }).unwrap();
    assert_eq!(merges(&layout), [1]);
    layout = layout.after(Transfer { source: 1, target: 0 }).unwrap();
    assert_eq!(layout.active().collect::<Vec<_>>(), [0]);
    assert!(positions().all(|pos| layout.partition(pos) == 0));
}

#[test]
fn splits_end_when_all_servers_have_enough_partitions() {
    let most = |servers| Splits::partitions_max(servers, SHARDS);
    assert_eq!([1, 2, 3, 4, 5, 8].map(most), [4, 8, 16, 16, 32, 32].map(|most| SHARDS.min(most)));
    assert_eq!(most(u16::MAX), SHARDS);
    let mut layout = Layout::Extendible(Splits::started(0, 4));
    let next = |layout: &Layout| {
        let splits = splits_of(layout);
        layout.active().find_map(|partition| splits.split(partition, 8))
    };
    while let Some(transfer) = next(&layout) {
        layout = layout.after(transfer).expect("it is next");
    }
    assert!(layout.active().eq(0..8), "{layout:?}");
}

#[test]
fn a_directory_in_one_partition_can_be_divided_otherwise() {
    let mut layout = Layout::Whole;
    assert_eq!(layout.turned(Spread::None), None);
    layout = layout.turned(Spread::Extendible).unwrap();
    assert_eq!(layout.turned(Spread::Extendible), None, "it is already");
    let split = layout.after(Transfer { source: 0, target: 1 }).unwrap();
    assert_eq!(split.turned(Spread::Subsets), None, "it has two partitions");
    let merged = split.after(Transfer { source: 1, target: 0 }).unwrap();
    let turned = merged.turned(Spread::Subsets).unwrap();
    assert_eq!(turned.turn(), 2);
    let mut stale = split;
    assert!(stale.learn(&turned));
    assert!(!stale.learn(&merged));
    assert_eq!(stale, turned);
}

#[test]
fn a_directory_can_start_with_any_number_of_partitions() {
    let mut grown = extendible();
    for count in 1..=SHARDS {
        let started = Layout::Extendible(Splits::started(1, count));
        is_a_layout(&started);
        assert_eq!(started, grown, "as if it had grown");
        if let Some(transfer) =
            transfers(&grown).into_iter().find(|transfer| transfer.target == count)
        {
            grown = grown.after(transfer).unwrap();
        }
        let subsets_started = Layout::Subsets(Subsets::started(1, count));
        let subsets_grown = subsets(count);
        is_a_layout(&subsets_started);
        for pos in positions().take(100) {
            assert_eq!(subsets_started.partition(pos), subsets_grown.partition(pos));
        }
    }
}

#[test]
fn layouts_have_known_bytes() {
    let split = extendible().after(Transfer { source: 0, target: 1 }).unwrap();
    let split = split.after(Transfer { source: 1, target: 3 }).unwrap();
    assert_eq!(Layout::Whole.to_vec(), [1]);
    assert_eq!(split.to_vec(), [2, 1, 4, 1, 1, 0, 1]);
    let layout = subsets(3);
    let three = subsets_of(&layout);
    assert_eq!(layout.to_vec(), [3, 1, 2, 3, 3, 0]);
    let fourth = three.begin(4, SHARDS).unwrap().after(Transfer { source: 2, target: 3 }).unwrap();
    assert_eq!(Layout::Subsets(fourth).to_vec(), [3, 1, 3, 3, 4, 1, 4]);
    let sixth = three.begin(9, SHARDS).unwrap().after(Transfer { source: 2, target: 5 }).unwrap();
    assert_eq!(Layout::Subsets(sixth).to_vec(), [3, 1, 3, 3, 6, 1, 128, 2]);
}

#[test]
fn what_splits_and_merges_cannot_make_is_no_layout() {
    for wrong in [
        // No partition; no partition 0; 3 without 1; 2 before 1; a last one that never was.
        &[2, 1, 0][..],
        &[2, 1, 1, 2],
        &[2, 1, 4, 1, 0, 0, 1],
        &[2, 1, 3, 1, 2, 1],
        &[2, 1, 2, 1, 0],
        // No subset; more than twice as many, or less than half; too many pairs; a pair that is
        // none; a word of no pair.
        &[3, 1, 0, 0, 0, 0],
        &[3, 1, 1, 1, 3, 0],
        &[3, 1, 1, 5, 2, 0],
        &[3, 1, 1, 128, 1, 161, 1, 0],
        &[3, 1, 1, 2, 4, 1, 16],
        &[3, 1, 1, 3, 4, 1, 8],
        &[3, 1, 1, 3, 4, 1, 0],
    ] {
        assert!(Layout::from_bytes(&Bytes::copy_from_slice(wrong)).is_err(), "{wrong:?}");
    }
}

#[test]
fn one_subset_more_takes_its_share_of_each_and_nothing_else_moves() {
    let mut layout = subsets(7);
    let before: Vec<u16> = positions().map(|pos| layout.partition(pos)).collect();
    layout = Layout::Subsets(subsets_of(&layout).begin(8, SHARDS).unwrap());
    for transfer in transfers(&layout) {
        let moving = layout.moving(transfer).unwrap();
        let (had, goes) = positions().fold((0, 0), |(had, goes), pos| {
            let has = layout.partition(pos) == transfer.source;
            (had + u32::from(has), goes + u32::from(has && moving.contains(pos)))
        });
        assert!((had / 16..had / 5).contains(&goes), "{transfer:?}: {goes} of {had}");
        layout = layout.after(transfer).unwrap();
    }
    let mut moved = 0;
    for (pos, was) in positions().zip(&before) {
        if layout.partition(pos) != *was {
            assert_eq!(layout.partition(pos), 7);
            moved += 1;
        }
    }
    assert!((450..550).contains(&moved), "an eighth of 4003: {moved}");
}

#[test]
fn the_number_of_subsets_follows_the_size_with_some_patience() {
    let wanted = |count, entries| Subsets::wanted(count, entries, 100, 1);
    assert_eq!([0, 99, 100, 350].map(|entries| wanted(1, entries)), [1, 1, 2, 4]);
    // Two subsets until half of one would do.
    assert_eq!([120, 99, 50, 49].map(|entries| wanted(2, entries)), [2, 2, 2, 1]);
    assert_eq!(Subsets::wanted(2, 0, 100, 2), 2, "never fewer than there shall be");
    for entries in 0..1000 {
        let up = wanted(1, entries);
        assert_eq!(wanted(up, entries), up, "it stays as it is");
    }
}

fn imbalance(layout: &Layout, shards: u16, servers: u16) -> f64 {
    let key = HashKey::new(7, 8);
    let names = 200_000u32;
    let mut held = vec![0u32; usize::from(servers)];
    for number in 0..names {
        let name = EntryName::new(format!("file.mdtest.{number}").as_bytes()).unwrap();
        let partition = layout.partition(key.pos(&name));
        held[usize::from(partition % shards % servers)] += 1;
    }
    f64::from(*held.iter().max().unwrap()) * f64::from(servers) / f64::from(names)
}

#[test]
fn names_lie_evenly_on_servers() {
    let mut layout = extendible();
    while let Some(transfer) = {
        let splits = splits_of(&layout);
        layout.active().filter_map(|partition| splits.split(partition, 32)).next()
    } {
        layout = layout.after(transfer).unwrap();
    }
    assert_eq!(layout.active().count(), 32);
    assert!(imbalance(&layout, 32, 32) < 1.05);
    let mut subsets = Subsets::new(1);
    while let Some(next) = subsets.begin(126, 4096) {
        subsets = done(next);
    }
    assert!(imbalance(&Layout::Subsets(subsets), 4096, 32) < 1.06);
}

/// The layout that each partition of a directory knows.
struct World {
    views: Vec<Layout>,
    truth: Layout,
}

impl World {
    fn new(layout: Layout) -> World {
        World { views: vec![layout.clone()], truth: layout }
    }

    /// A source that knows of a transfer makes it with its target.
    fn make(&mut self, transfer: Transfer) {
        let places = usize::from(transfer.source.max(transfer.target)) + 1;
        if self.views.len() < places {
            self.views.resize(places, Layout::Whole);
        }
        let mut both = self.views[usize::from(transfer.source)].clone();
        both.learn(&self.views[usize::from(transfer.target)]);
        let Some(after) = both.after(transfer) else { return };
        self.truth.learn(&after);
        self.views[usize::from(transfer.source)] = after.clone();
        self.views[usize::from(transfer.target)] = after;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_transfers_are_made_each_position_has_one_partition(
        drawn in prop::collection::vec(any::<Index>(), 0..80)
    ) {
        let layout = made(extendible(), &drawn);
        is_a_layout(&layout);
        // The ranges of all partitions are all positions.
        let splits = splits_of(&layout);
        let mut ranges: Vec<(u64, u64)> = layout.active().map(|partition| splits.range(partition)).collect();
        ranges.sort_unstable();
        prop_assert_eq!(ranges[0].0, 0);
        prop_assert_eq!(ranges.last().unwrap().1, POS_MAX);
        prop_assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0));
        for pos in positions().take(200) {
            let (first, last) = splits.range(layout.partition(pos));
            prop_assert!((first..=last).contains(&pos));
            prop_assert_eq!(layout.reach(pos), last);
        }
    }

    #[test]
    fn a_transfer_moves_just_what_it_says(
        drawn in prop::collection::vec(any::<Index>(), 0..60),
        count in 1..12u16,
        goal in 1..=SHARDS,
        which in any::<Index>(),
        scattered in any::<bool>(),
    ) {
        let layout = if scattered {
            let steady = subsets_of(&subsets(count)).clone();
            made(Layout::Subsets(steady.begin(goal, SHARDS).unwrap_or(steady)), &drawn[..drawn.len() / 3])
        } else {
            made(extendible(), &drawn)
        };
        is_a_layout(&layout);
        let next = transfers(&layout);
        prop_assume!(!next.is_empty());
        let transfer = next[which.index(next.len())];
        let (moving, after) = (layout.moving(transfer).unwrap(), layout.after(transfer).unwrap());
        let (first, last) = moving.bounds();
        for pos in positions() {
            let (was, is) = (layout.partition(pos), after.partition(pos));
            let goes = was == transfer.source && moving.contains(pos);
            prop_assert_eq!(is, if goes { transfer.target } else { was });
            prop_assert!(!goes || (first..=last).contains(&pos));
        }
        is_a_layout(&after);
        for partition in 0..SHARDS {
            let changes = partition == transfer.source || partition == transfer.target;
            prop_assert_eq!(layout.agrees_about(&after, partition), !changes);
        }
    }

    #[test]
    fn transfers_of_different_partitions_commute(
        drawn in prop::collection::vec(any::<Index>(), 0..60),
        order in any::<[Index; 8]>(),
        begun in prop::option::of((1..12u16, 1..=SHARDS)),
    ) {
        let layout = match begun {
            None => made(extendible(), &drawn),
            Some((count, goal)) => {
                let steady = subsets_of(&subsets(count)).clone();
                made(Layout::Subsets(steady.begin(goal, SHARDS).unwrap_or(steady)), &drawn)
            }
        };
        let mut busy = Vec::new();
        let mut apart = transfers(&layout);
        apart.retain(|transfer| {
            let free = !busy.contains(&transfer.source) && !busy.contains(&transfer.target);
            if free {
                busy.extend([transfer.source, transfer.target]);
            }
            free
        });
        let all = |transfers: &[Transfer]| {
            transfers.iter().fold(layout.clone(), |at, transfer| at.after(*transfer).unwrap())
        };
        // Each alone, and then joined, is the same as all of them one after the other, in any
        // order.
        let joined = apart.iter().fold(layout.clone(), |mut joined, transfer| {
            joined.learn(&layout.after(*transfer).unwrap());
            joined
        });
        prop_assert_eq!(&all(&apart), &joined);
        for index in order {
            if !apart.is_empty() {
                let at = index.index(apart.len());
                apart.rotate_left(at);
                prop_assert_eq!(&all(&apart), &joined);
            }
        }
    }

    #[test]
    fn any_two_cuts_join_and_every_stale_client_arrives(
        steps in prop::collection::vec((any::<Index>(), any::<Index>(), 0..4u8), 1..120),
        seen in prop::collection::vec(any::<Index>(), 0..6),
    ) {
        let mut world = World::new(extendible());
        let mut client = extendible();
        for (who, which, what) in steps {
            let at = who.index(world.views.len());
            // Partitions act on what they know themselves.
            let own = world.views[at].clone();
            let mine: Vec<Transfer> = transfers(&own)
                .into_iter()
                .filter(|transfer| usize::from(transfer.source) == at && own.is_active(transfer.source))
                .collect();
            if what < 3 && !mine.is_empty() {
                world.make(mine[which.index(mine.len())]);
            } else {
                // Somebody hears from somebody.
                let other = world.views[which.index(world.views.len())].clone();
                world.views[at].learn(&other);
                client.learn(&other);
            }
        }
        for index in seen {
            client.learn(&world.views[index.index(world.views.len())].clone());
            is_a_layout(&client);
        }
        for (at, view) in (0..).zip(&world.views) {
            prop_assert!(view.agrees_about(&world.truth, at));
            for pos in positions().take(300) {
                prop_assert_eq!(view.partition(pos) == at, world.truth.partition(pos) == at);
            }
        }
        for pos in positions().take(300) {
            let mut stale = client.clone();
            let mut wrong = 0;
            loop {
                let asked = stale.partition(pos);
                let view = &world.views[usize::from(asked)];
                if view.partition(pos) == asked {
                    break;
                }
                prop_assert!(stale.learn(view), "who does not have it knows more");
                wrong += 1;
            }
            prop_assert!(wrong <= 2 * 5, "{wrong} wrong probes");
        }
    }
}
