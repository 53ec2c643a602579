//! Moving shards between servers, for administrators (see [`wire::moves`]).
//!
//! Whatever happens to this client or to a server meanwhile, the shards are either where they were
//! or where they were to go, and everything goes on by itself within some seconds.

use std::{collections::BTreeMap, convert::Infallible, pin::pin, time::Duration};

use base::ShardId;
use futures::future::{Either, join_all, select, try_join_all};
use tokio::time::{Instant, sleep, timeout};
use wire::{
    DumpStage, DumpStep, MoveStage, MoveStep, Reply, Request, ShardMove, ShardsFrom, moves::NO_PLAN,
};

use crate::{
    Client, Error,
    error::unexpected,
    route::{COORDINATOR, Route},
};

/// Time that a server is given for a step while changes wait.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time that names may take to arrive before that.
const GATHERED_WITHIN: Duration = Duration::from_secs(20);
/// Time for all copies. Sessions must not end meanwhile at the servers that have stopped.
const COPIED_WITHIN: Duration = Duration::from_secs(40);
/// Servers that have stopped are told so again, or they begin anew.
const STOP_AGAIN: Duration = Duration::from_secs(2);
/// Time until all servers should serve with the new map.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// The reason why shards have not moved. They are where they were.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// A server did not take a step in time.
    #[error("server {0} does not answer")]
    Silent(u16),
    /// The copy has taken too long.
    #[error("the records were not copied within {0:?}, for which changes may wait")]
    TooLong(Duration),
    /// A server has refused, or could not be asked.
    #[error(transparent)]
    Client(#[from] Error),
}

/// How shards have moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The shards that have.
    pub moves: Vec<ShardMove>,
    /// Number of records that were copied.
    pub records: u64,
    /// Time for which changes have waited at servers that shards left.
    pub waited: Duration,
}

impl Client {
    /// The shards that would move so that servers in `leave` have none and the others equally many.
    ///
    /// # Errors
    /// When the coordinator refuses, as where a server is away; `NotPermitted` when the token does
    /// not administer.
    pub async fn plan_moves(&self, leave: &[u16]) -> Result<Vec<ShardMove>, MoveError> {
        self.ask_plan(NO_PLAN, leave).await
    }

    async fn ask_plan(&self, plan: u64, leave: &[u16]) -> Result<Vec<ShardMove>, MoveError> {
        match self.step(COORDINATOR, plan, MoveStage::Plan(leave.to_vec()), PATIENCE).await? {
            Reply::Plan(moves) => Ok(moves),
            _ => Err(unexpected().into()),
        }
    }

    /// Moves shards so that servers in `leave` have none and the others equally many. Changes wait
    /// while those are copied; nobody sees an error. For administrators.
    ///
    /// # Errors
    /// See [`MoveError`]. The shards are where they were then.
    pub async fn move_shards(&self, leave: &[u16]) -> Result<Moved, MoveError> {
        let number = self.core.config.random.next() | 1;
        // All servers are asked, so the session is joined before any waits.
        self.dump_step(number, DumpStage::Gather).await?;
        let moved = self.lead(number, leave).await;
        let (from, _) = moved.as_ref().map(|moved| parties(&moved.moves)).unwrap_or_default();
        self.end_move(number, moved.is_err(), from).await;
        let moved = moved?;
        self.until_settled(&moved.moves).await;
        Ok(moved)
    }

    async fn lead(&self, number: u64, leave: &[u16]) -> Result<Moved, MoveError> {
        let moves = self.ask_plan(number, leave).await?;
        if moves.is_empty() {
            return Ok(Moved { moves, records: 0, waited: Duration::ZERO });
        }
        let (from, _) = parties(&moves);
        let began = Instant::now();
        self.dump_step(number, DumpStage::Pause).await?;
        self.dump_step(number, DumpStage::Settle).await?;
        let stops = from.iter().map(|server| self.step(*server, number, MoveStage::Stop, PATIENCE));
        try_join_all(stops).await?;
        // The others go on. One whose changes have not waited until now refuses.
        let others = (0..self.servers()).filter(|server| !from.contains(server));
        let go_on = others.map(|server| self.dump_step_at(server, number, DumpStage::Resume));
        try_join_all(go_on).await?;
        let records = self.copy_while_stopped(number, &moves, &from).await?;
        if let Err(error) = self.step(COORDINATOR, number, MoveStage::Commit, PATIENCE).await
            && !self.is_committed(&moves).await
        {
            return Err(error);
        }
        Ok(Moved { moves, records, waited: began.elapsed() })
    }

    async fn copy_while_stopped(
        &self,
        number: u64,
        moves: &[ShardMove],
        from: &[u16],
    ) -> Result<u64, MoveError> {
        let copied = pin!(timeout(COPIED_WITHIN, self.copy(number, moves)));
        match select(copied, pin!(self.keep_stopped(number, from))).await {
            Either::Left((copied, _)) => copied.map_err(|_| MoveError::TooLong(COPIED_WITHIN))?,
            Either::Right((never, _)) => match never {},
        }
    }

    /// Has each server that gets shards pull them, and returns the number of records.
    async fn copy(&self, number: u64, moves: &[ShardMove]) -> Result<u64, MoveError> {
        let mut takes: BTreeMap<u16, BTreeMap<u16, Vec<ShardId>>> = BTreeMap::new();
        for ShardMove { shard, from, to } in moves {
            takes.entry(*to).or_default().entry(*from).or_default().push(*shard);
        }
        let copies = takes.into_iter().map(|(to, from)| async move {
            let mut records = 0;
            for (server, shards) in from {
                let take = MoveStage::Take(ShardsFrom { server, shards });
                match self.step(to, number, take, COPIED_WITHIN).await? {
                    Reply::Job(count) => records += count,
                    _ => return Err(MoveError::from(unexpected())),
                }
            }
            Ok(records)
        });
        Ok(try_join_all(copies).await?.into_iter().sum())
    }

    /// Tells servers that have stopped, again and again, that somebody leads the move.
    async fn keep_stopped(&self, number: u64, from: &[u16]) -> Infallible {
        loop {
            sleep(STOP_AGAIN).await;
            let stops =
                from.iter().map(|server| self.step(*server, number, MoveStage::Stop, PATIENCE));
            // One that is gone is found out by those that pull from it, or by the coordinator.
            join_all(stops).await;
        }
    }

    async fn step(
        &self,
        server: u16,
        plan: u64,
        stage: MoveStage,
        patience: Duration,
    ) -> Result<Reply, MoveError> {
        let asked = self.ask_server(server, Request::Move(MoveStep { plan, stage }));
        Ok(timeout(patience, asked).await.map_err(|_| MoveError::Silent(server))??)
    }

    async fn dump_step(&self, dump: u64, stage: DumpStage) -> Result<(), MoveError> {
        let all = (0..self.servers()).map(|server| self.dump_step_at(server, dump, stage));
        try_join_all(all).await.map(drop)
    }

    async fn dump_step_at(
        &self,
        server: u16,
        dump: u64,
        stage: DumpStage,
    ) -> Result<(), MoveError> {
        let patience = if stage == DumpStage::Gather { GATHERED_WITHIN } else { PATIENCE };
        let asked = self.ask_server(server, Request::DumpStep(DumpStep { dump, stage }));
        timeout(patience, asked).await.map_err(|_| MoveError::Silent(server))??;
        Ok(())
    }

    /// Has all servers go on that have stopped, or wait still.
    async fn end_move(&self, number: u64, all: bool, from: Vec<u16>) {
        let told = (0..self.servers()).map(|server| {
            let from = &from;
            async move {
                if all || from.contains(&server) {
                    let over = MoveStep { plan: number, stage: MoveStage::Over };
                    let over = self.ask_server(server, Request::Move(over));
                    let _ = timeout(Duration::from_secs(1), over).await;
                }
                if all || from.is_empty() {
                    let resume = DumpStep { dump: number, stage: DumpStage::Resume };
                    let resume = self.ask_server(server, Request::DumpStep(resume));
                    let _ = timeout(Duration::from_secs(1), resume).await;
                }
            }
        });
        join_all(told).await;
    }

    /// Whether the shards have moved, although the coordinator's answer was lost.
    async fn is_committed(&self, moves: &[ShardMove]) -> bool {
        // The map comes with the answer of a coordinator that has begun anew, or that serves still.
        let ping = self.ask_server(COORDINATOR, Request::Ping);
        let _ = timeout(SETTLED_WITHIN, ping).await;
        self.are_at_target(moves)
    }

    fn are_at_target(&self, moves: &[ShardMove]) -> bool {
        let at = |it: &ShardMove| self.core.channels.of(Route::Shard(it.shard)).server;
        moves.iter().all(|it| at(it) == it.to)
    }

    /// Returns when this client knows the new map, and servers that have begun anew are back.
    async fn until_settled(&self, moves: &[ShardMove]) {
        let until = Instant::now() + SETTLED_WITHIN;
        let all = async {
            while !self.are_at_target(moves) && Instant::now() < until {
                let _ = self.ask_server(COORDINATOR, Request::Ping).await;
                sleep(Duration::from_millis(50)).await;
            }
            let back = (0..self.servers()).map(|server| self.ask_server(server, Request::Ping));
            join_all(back).await;
        };
        let _ = timeout(SETTLED_WITHIN, all).await;
    }
}

/// The servers that shards leave, and those that get some.
fn parties(moves: &[ShardMove]) -> (Vec<u16>, Vec<u16>) {
    let sorted = |of: fn(&ShardMove) -> u16| {
        let mut servers: Vec<u16> = moves.iter().map(of).collect();
        servers.sort_unstable();
        servers.dedup();
        servers
    };
    (sorted(|it| it.from), sorted(|it| it.to))
}
