//! The choice of shards that move so that servers have equally much to do, and to store. Pure: times
//! and loads come in, steps go out.
//!
//! Servers are compared by requests, by what is stored, and by how many shards they have, which
//! stands for what will come. A step moves one shard. It must make the sum of the fourth powers of
//! all shares smaller, by all measures together, so under one load planning ends, and nothing goes
//! there and back, also between measures.
//!
//! Paper: HSM² §3.3 (migration by load).

use std::{collections::VecDeque, time::Duration};

use base::ShardId;
use wire::ShardMove;

/// The load of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardLoad {
    /// The shard.
    pub shard: ShardId,
    /// Number of the server that has it.
    pub server: u16,
    /// Number of requests since the last look.
    pub requests: u64,
    /// Bytes of its records.
    pub bytes: u64,
}

/// When shards move, and how many.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    /// Largest share of a server, as a multiple of the mean, above which shards move.
    pub begins_above: f64,
    /// The same, at which enough have moved.
    pub ends_at: f64,
    /// Number of looks in a row that must show too large a share.
    pub looks: u32,
    /// Part of all shards, and of all that is stored, that moves in an hour at most. A shard that is
    /// more than that moves alone, when nothing else has moved for an hour.
    pub an_hour: f64,
    /// Time for which a shard that has moved stays where it is.
    pub rest: Duration,
    /// With fewer requests of all servers together they are not compared by them: no server is
    /// short of time.
    pub requests_min: u64,
    /// With fewer bytes for each server they are not compared by them.
    pub bytes_min: u64,
}

impl Default for Goal {
    fn default() -> Goal {
        Goal {
            begins_above: 1.10,
            ends_at: 1.04,
            looks: 3,
            an_hour: 0.2,
            rest: Duration::from_secs(600),
            requests_min: 1000,
            bytes_min: 64 << 20,
        }
    }
}

/// The largest share of a server by each measure, as a multiple of the mean; `None` where servers
/// are not compared by it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Largest {
    /// Of requests.
    pub requests: Option<f64>,
    /// Of what is stored.
    pub bytes: Option<f64>,
}

impl Largest {
    /// The larger one; 0 where servers are not compared.
    #[must_use]
    pub fn of_all(&self) -> f64 {
        self.requests.unwrap_or_default().max(self.bytes.unwrap_or_default())
    }
}

/// A shard that is to move, and what that changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The move.
    pub shard: ShardMove,
    /// Requests of the shard since the last look.
    pub requests: u64,
    /// Bytes of its records.
    pub bytes: u64,
    /// The largest shares with this step and those before it.
    pub largest: Largest,
    /// The part of all shards that it is, or of all that is stored, if that is more.
    part: f64,
}

/// The outcome of a look.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The largest shares.
    pub largest: Largest,
    /// The steps, in their order. A server that gives some gets none.
    pub steps: Vec<Step>,
    /// The reason why there are none, or no more.
    pub because: Because,
}

/// Why a plan ends where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// All servers have about equally much.
    Even,
    /// A share has been too large for too few looks.
    Waits,
    /// There is too little to do, and to store.
    Idle,
    /// No move of one shard makes it better, of those that have not moved just now.
    NoStep,
    /// Enough has moved for this hour.
    Hour,
}

/// Gain of a step at least; of one that is more than may move in an hour.
const GAIN_MIN: f64 = 0.001;
const GAIN_ALONE_MIN: f64 = 0.05;
/// Weight of the number of shards where servers are compared by what they store.
const COUNT_WEIGHT: f64 = 0.125;

/// Looks at loads again and again.
#[derive(Debug, Default)]
pub struct Balancer {
    goal: Goal,
    /// Number of looks in a row that have shown too large a share.
    above: u32,
    /// When shards have moved, in order, and the part of all that each was.
    moved: VecDeque<(Duration, ShardId, f64)>,
}

const HOUR: Duration = Duration::from_secs(3600);

impl Balancer {
    /// One that has seen nothing yet.
    #[must_use]
    pub fn new(goal: Goal) -> Balancer {
        Balancer { goal, ..Balancer::default() }
    }

    /// Looks at the loads of all shards at a time, of a cluster of so many servers. Those in `leave`
    /// get none.
    pub fn look(
        &mut self,
        now: Duration,
        loads: &[ShardLoad],
        (servers, leave): (u16, &[u16]),
    ) -> Plan {
        let mut shares = Shares::of(loads, (servers, leave), &self.goal);
        let largest = shares.largest();
        let none = |because| Plan { largest, steps: Vec::new(), because };
        if largest == Largest::default() {
            self.above = 0;
            return none(Because::Idle);
        }
        if largest.of_all() <= self.goal.begins_above {
            self.above = 0;
            return none(Because::Even);
        }
        self.above += 1;
        if self.above < self.goal.looks {
            return none(Because::Waits);
        }
        while self.moved.front().is_some_and(|(at, ..)| *at + HOUR <= now) {
            self.moved.pop_front();
        }
        let rests: Vec<ShardId> = self
            .moved
            .iter()
            .filter(|(at, ..)| *at + self.goal.rest > now)
            .map(|(_, shard, _)| *shard)
            .collect();
        let mut left = self.goal.an_hour - self.moved.iter().map(|(.., part)| part).sum::<f64>();
        let (mut steps, mut because) = (Vec::new(), Because::Even);
        while shares.largest().of_all() > self.goal.ends_at {
            let moves_now = |shard| steps.iter().any(|step: &Step| step.shard.shard == shard);
            let is_free = |load: &ShardLoad| !rests.contains(&load.shard) && !moves_now(load.shard);
            // Parts are not exact.
            let fits = |load: &ShardLoad| shares.part(load) <= left + f64::EPSILON * 1024.0;
            let mut best =
                shares.best(loads, &self.goal, GAIN_MIN, &|load| is_free(load) && fits(load));
            if best.is_none() && steps.is_empty() && self.moved.is_empty() {
                best = shares.best(loads, &self.goal, GAIN_ALONE_MIN, &is_free);
            }
            let Some((load, to)) = best else {
                because = if shares.largest().of_all() <= self.goal.begins_above {
                    Because::Even
                } else if shares.best(loads, &self.goal, GAIN_MIN, &is_free).is_some() {
                    Because::Hour
                } else {
                    Because::NoStep
                };
                break;
            };
            let part = shares.part(load);
            left -= part;
            shares.moves(load, to);
            let shard = ShardMove { shard: load.shard, from: load.server, to };
            let (requests, bytes, largest) = (load.requests, load.bytes, shares.largest());
            steps.push(Step { shard, requests, bytes, largest, part });
        }
        Plan { largest, steps, because }
    }

    /// The load is not known at a look.
    pub fn misses(&mut self) {
        self.above = 0;
    }

    /// Notes that the steps of a plan were taken, at their end.
    pub fn has_moved(&mut self, now: Duration, steps: &[Step]) {
        self.above = 0;
        self.moved.extend(steps.iter().map(|step| (now, step.shard.shard, step.part)));
    }

    /// Notes that the steps of a plan were not taken: their shards rest, as if they had moved.
    pub fn has_tried(&mut self, now: Duration, steps: &[Step]) {
        self.moved.extend(steps.iter().map(|step| (now, step.shard.shard, 0.0)));
    }
}

/// Amounts by each measure, of a server or a shard: requests, bytes, shards.
type Amounts = [f64; 3];

/// The shares of all servers.
struct Shares {
    of: Vec<Amounts>,
    all: Amounts,
    mean: Amounts,
    /// The weight of each measure; 0: servers are not compared by it.
    weights: Amounts,
    gives: Vec<bool>,
    gets: Vec<bool>,
    stays: Vec<bool>,
}

fn amounts(load: &ShardLoad) -> Amounts {
    [load.requests as f64, load.bytes as f64, 1.0]
}

impl Shares {
    fn of(loads: &[ShardLoad], (servers, leave): (u16, &[u16]), goal: &Goal) -> Shares {
        let (mut of, mut all) = (vec![[0.0; 3]; usize::from(servers)], [0.0; 3]);
        for load in loads {
            all = sum(all, amounts(load), 1.0);
            if let Some(share) = of.get_mut(usize::from(load.server)) {
                *share = sum(*share, amounts(load), 1.0);
            }
        }
        let stays: Vec<bool> = (0..servers).map(|server| !leave.contains(&server)).collect();
        let count = stays.iter().filter(|stays| **stays).count().max(1) as f64;
        let by_bytes = all[1] >= (goal.bytes_min as f64 * count).max(1.0);
        let by_requests = all[0] >= (goal.requests_min as f64).max(1.0);
        let weight = |counts: bool| if counts { 1.0 } else { 0.0 };
        let of_count = if by_bytes { COUNT_WEIGHT } else { 1.0 };
        let weights = [weight(by_requests), weight(by_bytes), of_count];
        let mean = all.map(|all| (all / count).max(1.0));
        let none = vec![false; usize::from(servers)];
        Shares { of, all, mean, weights, gives: none.clone(), gets: none, stays }
    }

    fn largest(&self) -> Largest {
        let by = |measure: usize| {
            let shares = self.of.iter().map(|of| of[measure] / self.mean[measure]);
            (self.weights[measure] > 0.0).then(|| shares.fold(0.0, f64::max))
        };
        Largest { requests: by(0), bytes: by(1) }
    }

    /// The part that a shard is of all of them, or of what is stored, if that is more.
    fn part(&self, load: &ShardLoad) -> f64 {
        let [_, bytes, one] = amounts(load);
        let of_bytes = if self.weights[1] > 0.0 { bytes / self.all[1] } else { 0.0 };
        of_bytes.max(one / self.all[2])
    }

    fn cost(&self, amounts: Amounts) -> f64 {
        let each = amounts.iter().zip(self.mean).zip(self.weights);
        each.map(|((amount, mean), weight)| weight * (amount / mean).powi(4)).sum()
    }

    /// The shard whose move makes shares most equal, of the server that costs most of those that
    /// can give one, and the server that gets it. Servers give only while a share of theirs is too
    /// large: or small differences of others would have shards move for ever beside a server whose
    /// share cannot become smaller.
    fn best<'a>(
        &self,
        loads: &'a [ShardLoad],
        goal: &Goal,
        gain_min: f64,
        may_move: &dyn Fn(&ShardLoad) -> bool,
    ) -> Option<(&'a ShardLoad, u16)> {
        let costs: Vec<f64> = self.of.iter().map(|of| self.cost(*of)).collect();
        let has_much = |from: usize| {
            let most = if self.gives[from] { goal.ends_at } else { goal.begins_above };
            let mut compared = (0..2).filter(|measure| self.weights[*measure] > 0.0);
            compared.any(|measure| self.of[from][measure] / self.mean[measure] > most)
        };
        let may_give = |from: &usize| !self.gets[*from] && has_much(*from);
        let mut from: Vec<usize> = (0..self.of.len()).filter(may_give).collect();
        from.sort_by(|a, b| costs[*b].total_cmp(&costs[*a]));
        from.into_iter().find_map(|from| {
            let may_get = |to: &usize| !self.gives[*to] && self.stays[*to] && *to != from;
            let to: Vec<usize> = (0..self.of.len()).filter(may_get).collect();
            let of_from = loads.iter().filter(|load| usize::from(load.server) == from);
            let pairs = of_from
                .filter(|load| may_move(load))
                .flat_map(|load| to.iter().map(move |to| (load, *to)));
            let gain = |(load, to): (&ShardLoad, usize)| {
                let amounts = amounts(load);
                let without = self.cost(sum(self.of[from], amounts, -1.0));
                costs[from] + costs[to] - without - self.cost(sum(self.of[to], amounts, 1.0))
            };
            let best = pairs.map(|pair| (gain(pair), pair)).max_by(|a, b| a.0.total_cmp(&b.0));
            let (_, (load, to)) = best.filter(|(gain, _)| *gain >= gain_min)?;
            Some((load, u16::try_from(to).unwrap_or(u16::MAX)))
        })
    }

    fn moves(&mut self, load: &ShardLoad, to: u16) {
        let (from, to) = (usize::from(load.server), usize::from(to));
        self.of[from] = sum(self.of[from], amounts(load), -1.0);
        self.of[to] = sum(self.of[to], amounts(load), 1.0);
        (self.gives[from], self.gets[to]) = (true, true);
    }
}

/// One and so many times the other.
fn sum(one: Amounts, other: Amounts, times: f64) -> Amounts {
    std::array::from_fn(|measure| one[measure] + times * other[measure])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Shards that servers have in turn, with equal loads.
    fn even(servers: u16, shards: u16, requests: u64) -> Vec<ShardLoad> {
        let shard = |shard| ShardLoad {
            shard: ShardId(shard),
            server: shard % servers,
            requests,
            bytes: 0,
        };
        (0..shards).map(shard).collect()
    }

    fn plan_at_once(loads: &[ShardLoad], servers: u16) -> Plan {
        let goal = Goal { looks: 1, ..Goal::default() };
        Balancer::new(goal).look(Duration::ZERO, loads, (servers, &[]))
    }

    fn after(loads: &[ShardLoad], steps: &[Step]) -> Vec<ShardLoad> {
        let to: BTreeMap<ShardId, u16> =
            steps.iter().map(|step| (step.shard.shard, step.shard.to)).collect();
        let moved = |load: &ShardLoad| ShardLoad {
            server: to.get(&load.shard).copied().unwrap_or(load.server),
            ..*load
        };
        loads.iter().map(moved).collect()
    }

    #[test]
    fn nothing_moves_while_all_have_equally_much_or_little_to_do() {
        let plan = plan_at_once(&even(4, 64, 100), 4);
        assert_eq!((plan.steps, plan.because), (vec![], Because::Even));
        let mut idle = even(4, 64, 0);
        idle[0].requests = 999;
        assert_eq!(plan_at_once(&idle, 4).because, Because::Idle);
    }

    #[test]
    fn one_shard_that_is_as_hot_as_all_others_has_a_server_nearly_of_its_own() {
        let mut loads = even(4, 64, 100);
        loads[0].requests = 1600;
        let plan = plan_at_once(&loads, 4);
        assert!(plan.largest.of_all() > 1.5, "{plan:?}");
        assert!(plan.steps.iter().all(|step| step.shard.from == 0 && step.shard.shard.0 != 0));
        let last = plan.steps.last().unwrap();
        assert!(last.largest.of_all() < plan.largest.of_all() - 0.25, "{plan:?}");
        // Of what is left nothing gets better.
        let again = plan_at_once(&after(&loads, &plan.steps), 4);
        assert!(again.steps.is_empty(), "{again:?}");
    }

    #[test]
    fn what_is_stored_is_evened_out_also_where_nobody_asks_for_anything() {
        let mut loads = even(4, 64, 0);
        loads.iter_mut().for_each(|load| load.bytes = 8 << 20);
        loads.iter_mut().filter(|load| load.server == 2).for_each(|load| load.bytes *= 3);
        let plan = plan_at_once(&loads, 4);
        assert_eq!(plan.largest, Largest { requests: None, bytes: Some(2.0) });
        assert!(plan.steps.iter().all(|step| step.shard.from == 2), "{plan:?}");
        // A fifth of what is stored moves in an hour.
        let stored = |loads: &[ShardLoad]| loads.iter().map(|load| load.bytes).sum::<u64>();
        let moved: u64 = plan.steps.iter().map(|step| step.bytes).sum();
        assert!(5 * moved <= stored(&loads) && plan.because == Because::Hour, "{plan:?}");
        let goal = Goal { looks: 1, an_hour: 1.0, ..Goal::default() };
        let plan = Balancer::new(goal).look(Duration::ZERO, &loads, (4, &[]));
        let last = plan.steps.last().unwrap().largest;
        assert!(last.of_all() <= 1.05, "{plan:?}");
        // Little that is stored is nothing to move for.
        loads.iter_mut().for_each(|load| load.bytes >>= 10);
        assert_eq!(plan_at_once(&loads, 4).because, Because::Idle);
    }

    #[test]
    fn beside_a_shard_that_is_too_busy_for_any_server_little_moves() {
        let mut state = 5_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut loads = even(4, 256, 0);
        let mut balancer = Balancer::new(Goal::default());
        let mut moved = 0;
        for minute in 0..24 * 60 {
            for load in &mut loads {
                // Another server has a little more than its share from time to time.
                let is_hot = load.shard == ShardId(0);
                let base = if load.server == 1 { 190 } else { 160 };
                load.requests = if is_hot { 22_000 } else { base + draw(80) };
            }
            let now = Duration::from_secs(60 * minute);
            let plan = balancer.look(now, &loads, (4, &[]));
            balancer.has_moved(now, &plan.steps);
            loads = after(&loads, &plan.steps);
            // At first that moves which the busiest server has beside it.
            moved += if minute > 6 * 60 { plan.steps.len() } else { 0 };
        }
        assert!(moved <= 8, "{moved} shards have moved in 18 hours");
    }

    #[test]
    fn a_shard_that_is_more_than_may_move_in_an_hour_moves_alone_and_others_beside_it() {
        let mut loads = even(2, 64, 0);
        loads.iter_mut().for_each(|load| load.bytes = 4 << 20);
        let large = loads.iter_mut().find(|load| load.server == 0).unwrap();
        large.bytes = 120 << 20;
        let plan = plan_at_once(&loads, 2);
        assert!(!plan.steps.is_empty(), "{plan:?}");
        let last = plan.steps.last().unwrap().largest;
        assert!(last.of_all() < plan.largest.of_all(), "{plan:?}");
        // Three such shards on one of three servers: one moves in an hour.
        let mut loads = even(3, 9, 0);
        loads.iter_mut().filter(|load| load.server == 0).for_each(|load| load.bytes = 100 << 20);
        let mut balancer = Balancer::new(Goal { looks: 1, ..Goal::default() });
        let first = balancer.look(Duration::ZERO, &loads, (3, &[]));
        assert_eq!((first.steps.len(), first.because), (1, Because::Hour));
        balancer.has_moved(Duration::ZERO, &first.steps);
        let loads = after(&loads, &first.steps);
        let soon = balancer.look(HOUR / 2, &loads, (3, &[]));
        assert_eq!((soon.steps.len(), soon.because), (0, Because::Hour));
        assert_eq!(balancer.look(HOUR, &loads, (3, &[])).steps.len(), 1);
    }

    #[test]
    fn a_server_with_much_to_do_and_little_to_store_gives_what_is_asked_for_and_small() {
        let mut loads = even(2, 64, 100);
        for load in &mut loads {
            let is_hot = load.server == 0;
            load.bytes = if is_hot { 4 << 20 } else { 8 << 20 };
            load.requests = if is_hot { 200 } else { 100 };
        }
        // Several plans: a server that gives shards gets none by the same one.
        let goal = Goal { looks: 1, an_hour: 1.0, rest: Duration::ZERO, ..Goal::default() };
        let mut balancer = Balancer::new(goal);
        let mut at = Duration::ZERO;
        for _ in 0..16 {
            let plan = balancer.look(at, &loads, (2, &[]));
            balancer.has_moved(at, &plan.steps);
            loads = after(&loads, &plan.steps);
            at += HOUR;
        }
        let plan = balancer.look(at, &loads, (2, &[]));
        assert!(plan.largest.of_all() <= 1.10 && plan.steps.is_empty(), "{plan:?}");
    }

    #[test]
    fn a_load_must_be_too_large_for_three_looks_and_a_shard_that_moved_rests() {
        let mut loads = even(2, 32, 100);
        loads.iter_mut().filter(|load| load.server == 0).for_each(|load| load.requests = 300);
        let mut balancer = Balancer::new(Goal { an_hour: 1.0, ..Goal::default() });
        let mut at = Duration::ZERO;
        let mut look = |balancer: &mut Balancer, loads: &[ShardLoad]| {
            at += Duration::from_secs(60);
            (at, balancer.look(at, loads, (2, &[])))
        };
        for _ in 0..2 {
            assert_eq!(look(&mut balancer, &loads).1.because, Because::Waits);
        }
        let (now, plan) = look(&mut balancer, &loads);
        assert!(plan.steps.len() > 2 && plan.because != Because::Waits, "{plan:?}");
        balancer.has_moved(now, &plan.steps);
        // Shards that have moved are hot now: they stay, and others move.
        let mut later = after(&loads, &plan.steps);
        let moved: Vec<ShardId> = plan.steps.iter().map(|step| step.shard.shard).collect();
        for load in &mut later {
            load.requests = if moved.contains(&load.shard) { 900 } else { 100 };
        }
        let plans: Vec<Plan> = (0..3).map(|_| look(&mut balancer, &later).1).collect();
        let again = plans[2].steps.iter().any(|step| moved.contains(&step.shard.shard));
        assert!(!again, "{:?}", plans[2]);
    }

    #[test]
    fn no_more_moves_in_an_hour_than_may() {
        let mut loads = even(2, 100, 10);
        loads.iter_mut().filter(|load| load.server == 0).for_each(|load| load.requests = 90);
        let mut balancer = Balancer::new(Goal { looks: 1, an_hour: 0.05, ..Goal::default() });
        let first = balancer.look(Duration::ZERO, &loads, (2, &[]));
        assert_eq!((first.steps.len(), first.because), (5, Because::Hour));
        balancer.has_moved(Duration::ZERO, &first.steps);
        let loads = after(&loads, &first.steps);
        let soon = balancer.look(HOUR / 2, &loads, (2, &[]));
        assert_eq!((soon.steps.len(), soon.because), (0, Because::Hour));
        let later = balancer.look(HOUR, &loads, (2, &[]));
        assert_eq!(later.steps.len(), 5);
    }

    /// A million minutes in which hot shards come and go, and some are large: servers are even by
    /// both measures most of the time from twelve minutes after each change, and little moves.
    #[test]
    fn loads_are_even_soon_after_each_change_for_years_and_little_moves() {
        const SERVERS: u16 = 5;
        const SHARDS: u16 = 1024;
        const MINUTES: u64 = 1_000_000;
        // Load changes so often.
        const PERIOD: u64 = 180;
        let mut state = 7_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut loads = even(SERVERS, SHARDS, 0);
        let mut balancer = Balancer::new(Goal::default());
        let (mut even_looks, mut looks, mut moved) = (0_u64, 0_u64, 0_usize);
        for minute in 0..MINUTES {
            if minute % PERIOD == 0 {
                // A tenth of all shards, on some servers more than on others, is hot.
                let hot = u16::try_from(draw(u64::from(SERVERS))).unwrap();
                for load in &mut loads {
                    // Some grow, and some are emptied.
                    if load.bytes == 0 || draw(20) == 0 {
                        load.bytes = (1 << 20) * (1 + draw(8) * draw(8));
                    }
                    let base = 40 + draw(20);
                    let is_hot = draw(10) < if load.server == hot { 4 } else { 1 };
                    load.requests = if is_hot { base * 3 } else { base };
                }
            }
            let now = Duration::from_secs(60 * minute);
            let plan = balancer.look(now, &loads, (SERVERS, &[]));
            if minute % PERIOD >= 12 {
                looks += 1;
                even_looks += u64::from(plan.largest.of_all() <= 1.10);
            }
            if !plan.steps.is_empty() {
                moved += plan.steps.len();
                loads = after(&loads, &plan.steps);
                balancer.has_moved(now, &plan.steps);
            }
        }
        assert!(even_looks * 100 >= looks * 95, "{even_looks} of {looks} looks are even");
        let an_hour = moved as f64 / (MINUTES as f64 / 60.0) / f64::from(SHARDS);
        assert!(an_hour <= 0.2, "{an_hour} of all shards move in an hour");
        assert!(moved > 100, "{moved} shards have moved");
    }
}
