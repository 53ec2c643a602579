//! The choice of shards that move so that servers have equally much to do. Pure: times and loads
//! come in, steps go out.
//!
//! Servers are compared by requests, and by how many shards they have, which stands for what is
//! stored. A step moves one shard from the server that has most to do to the one that has least. It
//! must make the sum of the fourth powers of all shares smaller, by requests and by shards
//! together, so under one load planning ends, and nothing goes there and back.
//!
//! Paper: HSM² §3.3 (migration by load).

use std::{collections::VecDeque, time::Duration};

use base::ShardId;
use wire::ShardMove;

/// The requests of a shard since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardLoad {
    /// The shard.
    pub shard: ShardId,
    /// Number of the server that has it.
    pub server: u16,
    /// Number of requests.
    pub requests: u64,
}

/// When shards move, and how many.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    /// Largest load of a server, as a multiple of the mean, above which shards move.
    pub begins_above: f64,
    /// The same, at which enough have moved.
    pub ends_at: f64,
    /// Number of looks in a row that must show too large a load.
    pub looks: u32,
    /// Part of all shards that moves in an hour at most.
    pub an_hour: f64,
    /// Time for which a shard that has moved stays where it is.
    pub rest: Duration,
    /// With fewer requests of all servers together nothing moves: no server is short of time.
    pub requests_min: u64,
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
        }
    }
}

/// A shard that is to move, and what that changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The move.
    pub shard: ShardMove,
    /// Requests of the shard since the last look.
    pub requests: u64,
    /// Largest load of a server, as a multiple of the mean, with this step and those before it.
    pub largest: f64,
}

/// The outcome of a look.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Largest load of a server, as a multiple of the mean.
    pub largest: f64,
    /// The steps, in their order. A server that gives some gets none.
    pub steps: Vec<Step>,
    /// The reason why there are none, or no more.
    pub because: Because,
}

/// Why a plan ends where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// All servers have about equally much to do.
    Even,
    /// The load has been too large for too few looks.
    Waits,
    /// There is too little to do.
    Idle,
    /// No move of one shard makes it better.
    NoStep,
    /// Enough shards have moved for this hour.
    Hour,
}

/// Gain of a step at least.
const GAIN_MIN: f64 = 0.001;

/// Looks at loads again and again.
#[derive(Debug, Default)]
pub struct Balancer {
    goal: Goal,
    /// Number of looks in a row that have shown too large a load.
    above: u32,
    /// When shards have moved, in order.
    moved: VecDeque<(Duration, ShardId)>,
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
        let mut shares = Shares::of(loads, (servers, leave));
        let largest = shares.largest();
        let none = |because| Plan { largest, steps: Vec::new(), because };
        if shares.requests < self.goal.requests_min {
            self.above = 0;
            return none(Because::Idle);
        }
        if largest <= self.goal.begins_above {
            self.above = 0;
            return none(Because::Even);
        }
        self.above += 1;
        if self.above < self.goal.looks {
            return none(Because::Waits);
        }
        while self.moved.front().is_some_and(|(at, _)| *at + HOUR <= now) {
            self.moved.pop_front();
        }
        let rests: Vec<ShardId> = self
            .moved
            .iter()
            .filter(|(at, _)| *at + self.goal.rest > now)
            .map(|(_, shard)| *shard)
            .collect();
        let left = (loads.len() as f64 * self.goal.an_hour) - self.moved.len() as f64;
        let (mut steps, mut because) = (Vec::new(), Because::Even);
        while shares.largest() > self.goal.ends_at {
            if (steps.len() as f64) + 1.0 > left {
                because = Because::Hour;
                break;
            }
            let moves_now = |shard| steps.iter().any(|step: &Step| step.shard.shard == shard);
            let may_move =
                |load: &ShardLoad| !rests.contains(&load.shard) && !moves_now(load.shard);
            let Some((load, to)) = shares.best(loads, &may_move) else {
                because = Because::NoStep;
                break;
            };
            shares.moves(load, to);
            let shard = ShardMove { shard: load.shard, from: load.server, to };
            steps.push(Step { shard, requests: load.requests, largest: shares.largest() });
        }
        Plan { largest, steps, because }
    }

    /// The load is not known at a look.
    pub fn misses(&mut self) {
        self.above = 0;
    }

    /// Notes that the steps of a plan were taken.
    pub fn has_moved(&mut self, now: Duration, steps: &[Step]) {
        self.above = 0;
        self.moved.extend(steps.iter().map(|step| (now, step.shard.shard)));
    }
}

/// The shares of all servers.
struct Shares {
    requests: u64,
    /// Requests and shards of each server.
    of: Vec<(f64, f64)>,
    mean: (f64, f64),
    gives: Vec<bool>,
    gets: Vec<bool>,
    stays: Vec<bool>,
}

impl Shares {
    fn of(loads: &[ShardLoad], (servers, leave): (u16, &[u16])) -> Shares {
        let mut of = vec![(0.0, 0.0); usize::from(servers)];
        for load in loads {
            if let Some(share) = of.get_mut(usize::from(load.server)) {
                share.0 += load.requests as f64;
                share.1 += 1.0;
            }
        }
        let stays: Vec<bool> = (0..servers).map(|server| !leave.contains(&server)).collect();
        let count = stays.iter().filter(|stays| **stays).count().max(1) as f64;
        let requests = loads.iter().map(|load| load.requests).sum();
        let mean = ((requests as f64 / count).max(1.0), (loads.len() as f64 / count).max(1.0));
        let none = vec![false; usize::from(servers)];
        Shares { requests, of, mean, gives: none.clone(), gets: none, stays }
    }

    fn largest(&self) -> f64 {
        self.of.iter().map(|(requests, _)| requests / self.mean.0).fold(0.0, f64::max)
    }

    fn cost(&self, (requests, shards): (f64, f64)) -> f64 {
        (requests / self.mean.0).powi(4) + (shards / self.mean.1).powi(4)
    }

    /// The shard of the server that has most to do whose move makes shares most equal, and the
    /// server that gets it.
    fn best<'a>(
        &self,
        loads: &'a [ShardLoad],
        may_move: &dyn Fn(&ShardLoad) -> bool,
    ) -> Option<(&'a ShardLoad, u16)> {
        let by = |servers: &dyn Fn(usize) -> bool| {
            let all = (0..self.of.len()).filter(|server| servers(*server));
            let mut all: Vec<usize> = all.collect();
            all.sort_by(|a, b| self.of[*a].0.total_cmp(&self.of[*b].0));
            all
        };
        let from = *by(&|server| !self.gets[server]).last()?;
        let to =
            *by(&|server| !self.gives[server] && self.stays[server] && server != from).first()?;
        let before = self.cost(self.of[from]) + self.cost(self.of[to]);
        let gain = |load: &ShardLoad| {
            let requests = load.requests as f64;
            let (a, b) = (self.of[from], self.of[to]);
            before - self.cost((a.0 - requests, a.1 - 1.0)) - self.cost((b.0 + requests, b.1 + 1.0))
        };
        let of_from = loads.iter().filter(|load| usize::from(load.server) == from);
        let best = of_from
            .filter(|load| may_move(load))
            .map(|load| (gain(load), load))
            .max_by(|a, b| a.0.total_cmp(&b.0))?;
        (best.0 >= GAIN_MIN).then(|| (best.1, u16::try_from(to).unwrap_or(u16::MAX)))
    }

    fn moves(&mut self, load: &ShardLoad, to: u16) {
        let (from, to) = (usize::from(load.server), usize::from(to));
        let requests = load.requests as f64;
        self.of[from].0 -= requests;
        self.of[from].1 -= 1.0;
        self.of[to].0 += requests;
        self.of[to].1 += 1.0;
        (self.gives[from], self.gets[to]) = (true, true);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Shards that servers have in turn, with equal loads.
    fn even(servers: u16, shards: u16, requests: u64) -> Vec<ShardLoad> {
        let shard = |shard| ShardLoad { shard: ShardId(shard), server: shard % servers, requests };
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
        assert!(plan.largest > 1.5, "{plan:?}");
        assert!(plan.steps.iter().all(|step| step.shard.from == 0 && step.shard.shard.0 != 0));
        let last = plan.steps.last().unwrap();
        assert!(last.largest < plan.largest - 0.25, "{plan:?}");
        // Of what is left nothing gets better.
        let again = plan_at_once(&after(&loads, &plan.steps), 4);
        assert!(again.steps.is_empty(), "{again:?}");
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

    /// A million minutes in which hot shards come and go: loads are even most of the time from twelve
    /// minutes after each change, and little moves.
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
                    let base = 40 + draw(20);
                    let is_hot = draw(10) < if load.server == hot { 4 } else { 1 };
                    load.requests = if is_hot { base * 3 } else { base };
                }
            }
            let now = Duration::from_secs(60 * minute);
            let plan = balancer.look(now, &loads, (SERVERS, &[]));
            if minute % PERIOD >= 12 {
                looks += 1;
                even_looks += u64::from(plan.largest <= 1.10);
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
