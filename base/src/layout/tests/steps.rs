//! Steps from one number of subsets to another: what they move, who knows of it, and how many
//! handoffs can be under way at once.

use super::*;
use crate::placement::jump_hash;

fn of(pos: u64, count: u16) -> u16 {
    u16::try_from(jump_hash(pos, u32::from(count))).unwrap()
}

fn begun(count: u16, goal: u16) -> Subsets {
    Subsets::started(1, count).begin(goal, 4096).unwrap()
}

/// The numbers of subsets on the way.
fn way(count: u16, goal: u16) -> Vec<u16> {
    let mut at = Subsets::started(1, count);
    let mut way = Vec::new();
    while let Some(next) = at.begin(goal, 4096) {
        way.push(next.goal());
        at = Subsets::started(1, next.goal());
    }
    way
}

#[test]
fn a_step_goes_to_twice_as_many_or_half_at_most_and_never_has_too_many_pairs() {
    assert_eq!(way(1, 26), [2, 4, 8, 16, 26]);
    assert_eq!(way(26, 1), [13, 7, 4, 2, 1]);
    assert_eq!(way(100, 200), [140, 169, 193, 200]);
    assert_eq!(way(3, 3), [0; 0]);
    assert_eq!(Subsets::started(1, 4).begin(30, 5).unwrap().goal(), 5, "no more than shards");
    for count in 1..=4096u16 {
        for goal in [1, count.saturating_sub(1).max(1), (count + 1).min(4096), 4096] {
            let Some(step) = Subsets::started(1, count).begin(goal, 4096) else {
                assert_eq!(count, goal, "it gets there");
                continue;
            };
            let layout = Layout::Subsets(step);
            assert_eq!(Layout::from_bytes(&layout.to_vec().into()), Ok(layout), "it is sound");
        }
    }
}

#[test]
fn a_step_of_several_subsets_moves_each_name_at_most_once_and_only_to_new_subsets() {
    let step = begun(5, 9);
    let after = done(step.clone());
    let mut moved = 0;
    for pos in positions() {
        let (was, is) = (step.partition(pos), after.partition(pos));
        assert_eq!((was, is), (of(pos, 5), of(pos, 9)));
        assert!(was == is || is >= 5);
        moved += u32::from(was != is);
    }
    assert!((1650..1910).contains(&moved), "four ninths of 4003: {moved}");
    let back = done(after.begin(5, SHARDS).unwrap());
    assert!(positions().all(|pos| back.partition(pos) == of(pos, 5)));
    assert_eq!((after.count(), back.count()), (9, 5));
}

#[test]
fn a_subset_is_there_from_its_first_names_to_its_last() {
    let active = |subsets: &Subsets| Layout::Subsets(subsets.clone()).active().collect::<Vec<_>>();
    let mut step = begun(2, 4);
    assert_eq!((active(&step), step.count()), (vec![0, 1], 2));
    step = step.after(Transfer { source: 1, target: 3 }).unwrap();
    assert_eq!((active(&step), step.count()), (vec![0, 1, 3], 3));
    step = done(step);
    assert_eq!(active(&step), [0, 1, 2, 3]);
    step = step.begin(2, SHARDS).unwrap();
    for (target, there) in [(1, vec![0, 1, 2, 3]), (0, vec![0, 1, 3])] {
        step = step.after(Transfer { source: 2, target }).unwrap();
        assert_eq!(active(&step), there);
    }
}

#[test]
fn a_layout_that_is_stored_since_steps_had_one_subset_says_what_it_said() {
    let stored = |bytes: &'static [u8]| match Layout::from_bytes(&Bytes::from_static(bytes)) {
        Ok(Layout::Subsets(subsets)) => subsets,
        other => panic!("{other:?}"),
    };
    // From three to four, and back; of the pairs the first and the third have moved, or all.
    for (grows, part, all) in [
        (true, stored(&[3, 1, 3, 3, 4, 1, 5]), stored(&[3, 1, 3, 3, 4, 1, 7])),
        (false, stored(&[3, 1, 4, 4, 3, 1, 5]), stored(&[3, 1, 4, 4, 3, 1, 7])),
    ] {
        for pos in positions() {
            let expect = match (of(pos, 4), of(pos, 3)) {
                (3, pair) if grows == (pair != 1) => 3,
                (3, pair) => pair,
                (subset, _) => subset,
            };
            assert_eq!(part.partition(pos), expect);
            assert_eq!(all.partition(pos), of(pos, if grows { 4 } else { 3 }));
        }
        assert!(!part.is_settled() && all.is_settled());
        assert_eq!(part.transfers().count(), 1);
        // The result equals that of a step done now, and both are one layout.
        let mut now = done(part.clone());
        assert_eq!((all.count(), all.goal()), (now.count(), now.goal()));
        for partition in 0..5 {
            assert_eq!(all.part(partition), now.part(partition));
        }
        assert!(!now.learn(&all) && !all.clone().learn(&now));
        let mut late = part;
        assert!(late.learn(&all));
        assert!(late.is_settled() && late.begin(9, SHARDS) == all.begin(9, SHARDS));
    }
    let pair = Pair { lower: 2, upper: 5, few: 5, many: 6 };
    for pos in positions() {
        assert_eq!(Moving::Subset((2, 5)).contains(pos), Moving::Pair(pair).contains(pos));
    }
}

#[test]
fn of_two_steps_with_one_number_the_one_that_is_told_last_is_taken() {
    let (lost, is) = (begun(4, 8), begun(4, 6));
    let lost = lost.after(Transfer { source: 0, target: 7 }).unwrap();
    for lost in [lost.clone(), done(lost)] {
        let mut known = lost;
        assert!(known.learn(&is));
        assert_eq!(known, is);
    }
}

/// A directory in which all handoffs take one round, and a partition takes part in one at a time.
struct Rounds {
    subsets: Subsets,
    rounds: u32,
    handoffs: u32,
}

impl Rounds {
    fn new() -> Rounds {
        Rounds { subsets: Subsets::new(1), rounds: 0, handoffs: 0 }
    }

    /// One round, of no more handoffs than `most`.
    fn go(&mut self, most: usize) {
        let (mut busy, mut made) = (Vec::new(), Vec::new());
        for source in 0..self.subsets.many() {
            let free = |transfer: &Transfer| !busy.contains(&transfer.target);
            if made.len() < most
                && let Some(transfer) = self.subsets.transfers_of(source).find(free)
            {
                busy.push(transfer.target);
                made.push(transfer);
            }
        }
        self.handoffs += u32::try_from(made.len()).unwrap();
        for transfer in made {
            self.subsets = self.subsets.after(transfer).unwrap();
        }
        self.rounds += 1;
    }

    /// The master looks how many there should be.
    fn look(&mut self, entries: u64) {
        let wanted = Subsets::wanted(self.subsets.goal(), entries, 8000, 1);
        if let Some(begun) = self.subsets.begin(wanted, 64) {
            self.subsets = begun;
        }
    }
}

#[test]
fn subsets_of_a_directory_that_is_there_come_in_few_rounds() {
    let mut all = Rounds::new();
    let mut alone = Rounds::new();
    for (rounds, most) in [(&mut all, usize::MAX), (&mut alone, 1)] {
        while rounds.subsets.count() < 26 || !rounds.subsets.is_settled() {
            rounds.look(200_000);
            rounds.go(most);
        }
    }
    // A step from n to m takes as many as the greater of n and m - n, here 1, 2, 4, 8 and 16, and
    // some more where sources meet at a target. One subset after the other, each from one source
    // after the other, would take 1 + 2 + ... + 25 = 325.
    assert_eq!((all.handoffs, alone.rounds), (245, 245));
    assert!((31..=36).contains(&all.rounds), "{}", all.rounds);
}

#[test]
fn subsets_follow_a_burst_of_creates() {
    // 200,000 creates in 2.5 s, while a handoff takes 18 ms.
    const CREATES: u64 = 1440;
    let after = |most: usize| {
        let mut growing = Rounds::new();
        let mut entries = 0;
        let mut late = 0;
        while growing.subsets.count() < 26 || !growing.subsets.is_settled() {
            late += u32::from(entries == 200_000);
            entries = (entries + CREATES).min(200_000);
            if growing.subsets.is_settled() {
                growing.look(entries);
            }
            growing.go(most);
        }
        late
    };
    assert!(after(usize::MAX) <= 60, "{}", after(usize::MAX));
    assert!(after(1) > 120, "{}", after(1));
}

/// An event for a directory with subsets.
#[derive(Debug, Clone)]
enum Act {
    /// A partition gives some names, as it knows of; whether the master hears of it at once.
    Give { source: Index, transfer: Index, told: bool },
    /// One hears what another one knows.
    Hear(Index, Index),
    /// The master wants so many subsets.
    Want(u16),
}

fn act() -> impl Strategy<Value = Act> {
    let give = any::<(Index, Index, bool)>();
    prop_oneof![
        8 => give.prop_map(|(source, transfer, told)| Act::Give { source, transfer, told }),
        3 => any::<(Index, Index)>().prop_map(|(who, whom)| Act::Hear(who, whom)),
        2 => (1..=SHARDS).prop_map(Act::Want),
    ]
}

impl World {
    fn act(&mut self, act: &Act) {
        let len = self.views.len();
        match act {
            Act::Give { source, transfer, told } => {
                let at = source.index(len);
                let number = u16::try_from(at).unwrap();
                let mine: Vec<Transfer> = subsets_of_or_none(&self.views[at])
                    .map(|own| own.transfers_of(number).collect())
                    .unwrap_or_default();
                if !mine.is_empty() {
                    self.make(mine[transfer.index(mine.len())]);
                    if *told {
                        let own = self.views[at].clone();
                        self.views[0].learn(&own);
                    }
                }
            }
            Act::Hear(who, whom) => {
                let other = self.views[whom.index(len)].clone();
                self.views[who.index(len)].learn(&other);
            }
            Act::Want(goal) => {
                let begun = subsets_of(&self.views[0]).begin(*goal, SHARDS);
                let Some(begun) = begun.map(Layout::Subsets) else { return };
                self.truth.learn(&begun);
                self.views[0] = begun;
            }
        }
    }
}

fn subsets_of_or_none(layout: &Layout) -> Option<&Subsets> {
    match layout {
        Layout::Subsets(subsets) => Some(subsets),
        Layout::Whole | Layout::Extendible(_) => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn whatever_subsets_have_seen_each_position_has_one_of_them_and_every_client_finds_it(
        started in 1..10u16,
        acts in prop::collection::vec(act(), 1..250),
        seen in prop::collection::vec(any::<Index>(), 0..6),
        order in any::<[Index; 4]>(),
    ) {
        let mut world = World::new(Layout::Subsets(Subsets::started(1, started)));
        // A partition that was made with the directory knows how it was divided then.
        world.views = vec![world.truth.clone(); usize::from(started)];
        let mut client = Layout::Whole;
        for (at, act) in acts.iter().enumerate() {
            world.act(act);
            if at % 16 == 0 {
                is_a_layout(&world.truth);
            }
        }
        for index in seen {
            client.learn(&world.views[index.index(world.views.len())].clone());
            is_a_layout(&client);
        }
        for (at, view) in (0..).zip(&world.views) {
            prop_assert!(view.agrees_about(&world.truth, at), "{at}: {view:?}, {:?}", world.truth);
            prop_assert_eq!(view.is_active(at), world.truth.is_active(at));
            for pos in positions().take(300) {
                prop_assert_eq!(view.partition(pos) == at, world.truth.partition(pos) == at);
            }
        }
        // In whatever order all is heard.
        let mut views = world.views.clone();
        for index in order {
            let at = index.index(views.len());
            views.rotate_left(at);
            let mut joined = Layout::Whole;
            for view in &views {
                joined.learn(view);
            }
            prop_assert_eq!(&joined, &world.truth);
        }
        for pos in positions().take(300) {
            let mut stale = client.clone();
            let mut wrong = 0;
            loop {
                let asked = stale.partition(pos);
                let none = Layout::Whole;
                let view = world.views.get(usize::from(asked)).unwrap_or(&none);
                if view.partition(pos) == asked {
                    break;
                }
                // A partition that is gone answers for itself until the master knows; later the
                // master is asked.
                let news = stale.learn(view) || stale.learn(&world.views[0]);
                prop_assert!(news, "who does not have it knows more");
                wrong += 1;
            }
            prop_assert!(wrong <= 10, "{wrong} wrong probes");
        }
    }
}
