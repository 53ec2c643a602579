//! How evenly the servers are loaded, as far as the coordinator knows, and what it does about it.
//! Pure: `coordinator` stores what is said, and calls this under its lock.

use std::time::Duration;

use base::codec;
use bytes::Bytes;
use store::Engine;
use tokio::time::Instant;
use wire::{BalanceLook, BalanceMode, BalanceStatus};

use crate::{
    millis::millis,
    problem::OpenError,
    record::{Record, key},
};

codec! {
    /// The record of what the coordinator was told about the load of shards.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub(crate) struct Balancing {
        pub mode: Option<BalanceMode>,
        /// Numbers of servers that were drained, ascending.
        pub drained: Vec<u16>,
    }
}

impl Record for Balancing {}

/// The last look counts for so long; then nobody looks any more.
const LOOK_MAX: Duration = Duration::from_secs(600);

/// The word of administrators, and the last look.
#[derive(Debug, Default)]
pub(super) struct Balance {
    told: Balancing,
    /// Whether there is a record, which also says so when it is as if nothing was said.
    is_told: bool,
    look: Option<(Instant, BalanceLook)>,
}

impl Balance {
    /// The state that the last run has stored.
    pub(super) fn open(engine: &dyn Engine) -> Result<Balance, OpenError> {
        let Some(told) = engine.get(&key::balancing())? else { return Ok(Balance::default()) };
        let told = Balancing::from_record(&told).unwrap_or_else(|error| {
            tracing::error!(%error, "what the coordinator was told of balancing cannot be read");
            Balancing::default()
        });
        Ok(Balance { told, is_told: true, look: None })
    }

    /// The record, unless nothing was ever said.
    pub(super) fn record(&self) -> Option<Bytes> {
        self.is_told.then(|| self.told.to_record())
    }

    /// The mode. Hybrid placement needs shards that move, as it does not divide trees evenly;
    /// hashed directories lie evenly by themselves.
    fn mode(&self, is_hybrid: bool) -> BalanceMode {
        let unsaid = if is_hybrid { BalanceMode::On } else { BalanceMode::Advise };
        self.told.mode.unwrap_or(unsaid)
    }

    /// The state, at this time.
    pub(super) fn status(&self, is_hybrid: bool, now: Instant) -> BalanceStatus {
        BalanceStatus {
            mode: self.mode(is_hybrid),
            look: self.look.as_ref().map(|(_, look)| look.clone()),
            ago_ms: self.look.as_ref().map_or(0, |(at, _)| millis(now - *at)),
            drained: self.told.drained.clone(),
        }
    }

    /// The mode is another one from now on; what was seen before was for the one before.
    pub(super) fn says(&mut self, mode: BalanceMode) {
        self.told.mode = Some(mode);
        self.is_told = true;
        self.look = None;
    }

    /// The servers that have no shards when those in `leave` have none: servers that were drained
    /// stay so, unless no other is left.
    pub(super) fn with_drained(
        &self,
        leave: &[u16],
        mut members: impl Iterator<Item = u16>,
    ) -> Vec<u16> {
        let all = [leave, &self.told.drained].concat();
        let any_stays = members.any(|server| !all.contains(&server));
        if leave.is_empty() || !any_stays { leave.to_vec() } else { all }
    }

    /// The servers in `leave` have no shards, and are to get none; all others have their share. Returns
    /// whether that is news.
    pub(super) fn drains(&mut self, leave: &[u16]) -> bool {
        let mut drained = leave.to_vec();
        drained.sort_unstable();
        drained.dedup();
        let is_news = self.told.drained != drained;
        self.told.drained = drained;
        self.is_told |= is_news;
        is_news
    }

    /// A look has found this. One that was late, when nobody is to look any more, is forgotten.
    pub(super) fn saw(&mut self, look: BalanceLook, now: Instant) {
        if self.told.mode != Some(BalanceMode::Off) {
            self.look = Some((now, look));
        }
    }

    /// The last look since this run began, while it counts.
    pub(super) fn look(&self, now: Instant) -> Option<&BalanceLook> {
        self.look.as_ref().filter(|(at, _)| now - *at < LOOK_MAX).map(|(_, look)| look)
    }
}

/// The state of the only server of a file system.
pub(super) fn alone() -> BalanceStatus {
    BalanceStatus { mode: BalanceMode::Off, look: None, ago_ms: 0, drained: vec![] }
}

#[cfg(test)]
mod tests {
    use store::{Batch, MemoryEngine};

    use super::*;

    /// The state that the next run finds.
    fn reopened(balance: &Balance) -> Balance {
        let engine = MemoryEngine::new();
        let mut batch = Batch::default();
        balance.record().into_iter().for_each(|told| batch.put(&key::balancing(), &told));
        engine.write(batch).unwrap();
        Balance::open(&engine).unwrap()
    }

    #[test]
    fn what_was_said_last_is_found_at_the_next_start() {
        let mut balance = Balance::default();
        assert!(balance.record().is_none());
        assert!(balance.drains(&[3, 1]) && !balance.drains(&[1, 3]));
        balance = reopened(&balance);
        assert_eq!(balance.told.drained, [1, 3]);
        assert!(balance.drains(&[]));
        balance = reopened(&balance);
        assert_eq!(balance.told, Balancing::default());
        balance.says(BalanceMode::Off);
        assert_eq!(reopened(&balance).mode(true), BalanceMode::Off);
    }

    #[test]
    fn drained_servers_stay_drained_unless_no_other_is_left_or_all_get_their_share() {
        let mut balance = Balance::default();
        balance.drains(&[1]);
        assert_eq!(balance.with_drained(&[2], 0..4), [2, 1]);
        assert_eq!(balance.with_drained(&[0, 2, 3], 0..4), [0, 2, 3]);
        assert!(balance.with_drained(&[], 0..4).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_counts_for_a_while_and_not_when_nobody_is_to_look() {
        let look = BalanceLook {
            requests: 1200,
            stored: 0,
            moves: vec![],
            moved: false,
            because: String::new(),
        };
        let (mut balance, now) = (Balance::default(), Instant::now());
        balance.saw(look.clone(), now);
        assert_eq!(balance.look(now + LOOK_MAX / 2), Some(&look));
        assert_eq!(balance.look(now + LOOK_MAX), None);
        balance.says(BalanceMode::Off);
        balance.saw(look, now);
        assert_eq!(balance.look(now), None);
    }
}
