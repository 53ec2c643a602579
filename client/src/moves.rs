//! Moving shards between servers, and servers that leave, for administrators (see [`wire::moves`]).
//!
//! Whatever happens to this client or to a server meanwhile, the shards are either where they were
//! or where they were to go, and everything goes on by itself within some seconds.

pub mod balance;

use std::{collections::BTreeMap, convert::Infallible, pin::pin, time::Duration};

use base::ShardId;
use futures::future::{Either, join_all, select, try_join_all};
use tokio::time::{Instant, sleep, timeout};
use wire::{
    BalanceLook, BalanceMode, DumpStage, DumpStep, MoveStage, MoveStep, Reply, Request,
    ShardCounts, ShardMove, ShardsFrom, moves::NO_PLAN,
};

use self::balance::ShardLoad;
use crate::{
    Client, Error,
    error::unexpected,
    route::{COORDINATOR, Route},
};

/// Time that a server is given for a step while changes wait.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time that names may take to arrive before that.
const GATHERED_WITHIN: Duration = Duration::from_secs(20);
/// Time for the copies that are made ahead, while everything goes on.
const AHEAD_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// Number of times that records are copied ahead, and the time after which once more is not worth it.
const AHEAD_TURNS: usize = 5;
const AHEAD_SHORT: Duration = Duration::from_secs(3);
/// Pause between two questions how much is copied.
const TOLD_PERIOD: Duration = Duration::from_millis(500);
/// Time for all copies. Sessions must not end meanwhile at the servers that have stopped.
const COPIED_WITHIN: Duration = Duration::from_secs(40);
/// Servers that have stopped are told so again, or they begin anew.
const STOP_AGAIN: Duration = Duration::from_secs(2);
/// Number of times that the coordinator, which may store the map slowly, is asked to.
const COMMITS_ASKED: usize = 3;
/// Pause between two questions whether a server may leave.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
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

    /// Moves shards so that servers in `leave` have none and the others equally many. Most records
    /// are copied while they are used; then changes wait for the rest, and servers begin anew.
    /// Programs see no error. This is for administrators.
    ///
    /// # Errors
    /// See [`MoveError`]. The shards are where they were then.
    pub async fn move_shards(&self, leave: &[u16]) -> Result<Moved, MoveError> {
        self.move_shards_and_tell(leave, &|_| ()).await
    }

    /// Moves exactly these shards, like [`Client::move_shards_and_tell`]. A server that gives some
    /// may get none. Nobody else uses this client meanwhile: what a server that has stopped refuses
    /// would end the connection over which the move is led.
    ///
    /// # Errors
    /// See [`MoveError`]; refused, too, when a shard is not where its move begins.
    pub async fn move_these_shards(
        &self,
        moves: &[ShardMove],
        tell: &dyn Fn(u64),
    ) -> Result<Moved, MoveError> {
        let number = self.core.config.random.next() | 1;
        let adopt = MoveStage::Adopt(moves.to_vec());
        match self.step(COORDINATOR, number, adopt, PATIENCE).await? {
            Reply::Plan(moves) => self.move_planned(number, moves, tell).await,
            _ => Err(unexpected().into()),
        }
    }

    /// The number of servers that there have been, and the load of each shard. Requests are those
    /// since its server began; a server that begins anew counts from 0 again. What is stored is
    /// estimated, without the newest changes. For administrators.
    ///
    /// # Errors
    /// See [`MoveError`].
    pub async fn shard_loads(&self) -> Result<(u16, Vec<ShardLoad>), MoveError> {
        let asked = self.members().into_iter().map(|server| async move {
            match self.step(server, NO_PLAN, MoveStage::Loads, PATIENCE).await? {
                Reply::Loads(loads) => Ok((server, loads)),
                _ => Err(MoveError::from(unexpected())),
            }
        });
        let all = try_join_all(asked).await?.into_iter();
        let loads = all.flat_map(|(server, loads)| {
            let load = move |ShardCounts { shard, requests, bytes }| ShardLoad {
                shard,
                server,
                requests,
                bytes,
            };
            loads.into_iter().map(load)
        });
        Ok((self.servers(), loads.collect()))
    }

    /// Has the coordinator do this about the load of shards from now on. For administrators.
    ///
    /// # Errors
    /// See [`MoveError`].
    pub async fn set_balance_mode(&self, mode: BalanceMode) -> Result<(), MoveError> {
        self.step(COORDINATOR, NO_PLAN, MoveStage::Mode(mode), PATIENCE).await.map(drop)
    }

    /// Whether a server is part of a move that somebody leads, of a dump or of a check, so that no
    /// other move should begin. For administrators.
    ///
    /// # Errors
    /// See [`MoveError`].
    pub async fn any_is_busy(&self) -> Result<bool, MoveError> {
        let asked = self.members().into_iter().map(|server| async move {
            match self.step(server, NO_PLAN, MoveStage::Busy, PATIENCE).await? {
                Reply::Job(busy) => Ok(busy > 0),
                _ => Err(MoveError::from(unexpected())),
            }
        });
        Ok(try_join_all(asked).await?.contains(&true))
    }

    /// Tells the coordinator what a look at the load of shards has found. For who looks for it.
    ///
    /// # Errors
    /// See [`MoveError`].
    pub async fn tell_look(&self, look: BalanceLook) -> Result<(), MoveError> {
        self.step(COORDINATOR, NO_PLAN, MoveStage::Looked(look), PATIENCE).await.map(drop)
    }

    /// Like [`Client::move_shards`]. `tell` is called with the number of records that are copied so
    /// far, while everything goes on.
    ///
    /// # Errors
    /// See [`MoveError`].
    pub async fn move_shards_and_tell(
        &self,
        leave: &[u16],
        tell: &dyn Fn(u64),
    ) -> Result<Moved, MoveError> {
        let number = self.core.config.random.next() | 1;
        let moves = self.ask_plan(number, leave).await?;
        self.move_planned(number, moves, tell).await
    }

    /// Has a server leave the cluster that has no shards. It waits until each client that may have
    /// lost an answer of it has asked again; `tell` is called with the time for which it still does.
    /// This is for administrators.
    ///
    /// # Errors
    /// See [`MoveError`]. The server is a member still, unless only the last answer was lost.
    pub async fn let_leave(&self, server: u16, tell: &dyn Fn(Duration)) -> Result<(), MoveError> {
        if !self.members().contains(&server) {
            return Err(Error::refused(format!("there is no server {server}")).into());
        }
        loop {
            let left = self.ask_to_leave(server, NO_PLAN, server).await?;
            if left.is_zero() {
                break;
            }
            tell(left);
            sleep(left.min(LOOK_PERIOD)).await;
        }
        let number = self.core.config.random.next() | 1;
        self.ask_to_leave(COORDINATOR, number, server).await?;
        self.dump_step(number, DumpStage::Gather).await?;
        let stops = vec![COORDINATOR, server];
        let left = self.lead_to_leave(number, server, &stops).await;
        self.end_move(number, left.is_err(), stops).await;
        left?;
        self.until(|| self.core.channels.has_left(server)).await;
        Ok(())
    }

    /// Asks a server, or the coordinator, to let a server leave. Returns the time after which it
    /// may.
    async fn ask_to_leave(
        &self,
        asked: u16,
        plan: u64,
        server: u16,
    ) -> Result<Duration, MoveError> {
        match self.step(asked, plan, MoveStage::Leave(server), PATIENCE).await? {
            Reply::Job(ms) => Ok(Duration::from_millis(ms)),
            _ => Err(unexpected().into()),
        }
    }

    async fn lead_to_leave(
        &self,
        number: u64,
        server: u16,
        stops: &[u16],
    ) -> Result<(), MoveError> {
        self.pause_and_stop(number, stops).await?;
        self.step(COORDINATOR, number, MoveStage::Charges(server), PATIENCE).await?;
        self.commit(number, || self.core.channels.has_left(server)).await
    }

    async fn move_planned(
        &self,
        number: u64,
        moves: Vec<ShardMove>,
        tell: &dyn Fn(u64),
    ) -> Result<Moved, MoveError> {
        if moves.is_empty() {
            return Ok(Moved { moves, records: 0, waited: Duration::ZERO });
        }
        // A server that gets shards of several copies them in turn, so those of the first have
        // changed by the end.
        for _ in 0..AHEAD_TURNS {
            let began = Instant::now();
            self.copy_ahead(number, &moves, tell).await?;
            if began.elapsed() < AHEAD_SHORT {
                break;
            }
        }
        // All servers are asked, so the session is joined before any waits.
        self.dump_step(number, DumpStage::Gather).await?;
        let (from, _) = parties(&moves);
        let moved = self.lead(number, moves).await;
        self.end_move(number, moved.is_err(), from).await;
        let moved = moved?;
        self.until(|| self.are_at_target(&moved.moves)).await;
        Ok(moved)
    }

    async fn lead(&self, number: u64, moves: Vec<ShardMove>) -> Result<Moved, MoveError> {
        let (from, _) = parties(&moves);
        let began = Instant::now();
        self.pause_and_stop(number, &from).await?;
        let records = self.copy_while_stopped(number, &moves, &from).await?;
        self.commit(number, || self.are_at_target(&moves)).await?;
        Ok(Moved { moves, records, waited: began.elapsed() })
    }

    /// Has all servers pause, these stop, and the others go on.
    async fn pause_and_stop(&self, number: u64, stops: &[u16]) -> Result<(), MoveError> {
        self.dump_step(number, DumpStage::Pause).await?;
        self.dump_step(number, DumpStage::Settle).await?;
        let stop = |server: &u16| self.step(*server, number, MoveStage::Stop, PATIENCE);
        try_join_all(stops.iter().map(stop)).await?;
        // One whose changes have not waited until now refuses.
        let others = self.members().into_iter().filter(|server| !stops.contains(server));
        let go_on = others.map(|server| self.dump_step_at(server, number, DumpStage::Resume));
        try_join_all(go_on).await.map(drop)
    }

    /// Has the coordinator store the next map; `is_known` says whether this client has it.
    async fn commit(&self, number: u64, is_known: impl Fn() -> bool) -> Result<(), MoveError> {
        let mut committed = Ok(Reply::Nothing);
        for _ in 0..COMMITS_ASKED {
            committed = self.step(COORDINATOR, number, MoveStage::Commit, PATIENCE).await;
            if !matches!(committed, Err(MoveError::Silent(_))) {
                break;
            }
        }
        if let Err(error) = committed {
            // The answer may be lost. The map comes with the answer of a coordinator that has begun
            // anew, or that serves still.
            let ping = self.ask_server(COORDINATOR, Request::Ping);
            let _ = timeout(SETTLED_WITHIN, ping).await;
            if !is_known() {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn copy_while_stopped(
        &self,
        number: u64,
        moves: &[ShardMove],
        from: &[u16],
    ) -> Result<u64, MoveError> {
        let copy = self.copy(number, moves, MoveStage::Take, COPIED_WITHIN);
        let copied = pin!(timeout(COPIED_WITHIN, copy));
        match select(copied, pin!(self.keep_stopped(number, from))).await {
            Either::Left((copied, _)) => copied.map_err(|_| MoveError::TooLong(COPIED_WITHIN))?,
            Either::Right((never, _)) => match never {},
        }
    }

    /// Has each server that gets shards copy them, while they are served where they are.
    async fn copy_ahead(
        &self,
        number: u64,
        moves: &[ShardMove],
        tell: &dyn Fn(u64),
    ) -> Result<(), MoveError> {
        let copied = pin!(self.copy(number, moves, MoveStage::Ahead, AHEAD_WITHIN));
        match select(copied, pin!(self.tell_copied(number, moves, tell))).await {
            Either::Left((copied, _)) => copied.map(drop),
            Either::Right((never, _)) => match never {},
        }
    }

    /// Tells again and again how many records the servers that get shards have copied.
    async fn tell_copied(
        &self,
        number: u64,
        moves: &[ShardMove],
        tell: &dyn Fn(u64),
    ) -> Infallible {
        let (from, to) = parties(moves);
        let all: Vec<u16> = to.iter().chain(&from).copied().collect();
        loop {
            sleep(TOLD_PERIOD).await;
            // All learn by this that somebody leads the move.
            let asked = all.iter().map(|it| self.step(*it, number, MoveStage::Copied, PATIENCE));
            let copied = join_all(asked).await;
            let copied = copied.into_iter().take(to.len()).map(|copied| match copied {
                Ok(Reply::Job(records)) => records,
                _ => 0,
            });
            tell(copied.sum());
        }
    }

    /// Has each server that gets shards pull them, and returns the number of records.
    async fn copy(
        &self,
        number: u64,
        moves: &[ShardMove],
        stage: fn(ShardsFrom) -> MoveStage,
        patience: Duration,
    ) -> Result<u64, MoveError> {
        let mut takes: BTreeMap<u16, BTreeMap<u16, Vec<ShardId>>> = BTreeMap::new();
        for ShardMove { shard, from, to } in moves {
            takes.entry(*to).or_default().entry(*from).or_default().push(*shard);
        }
        let copies = takes.into_iter().map(|(to, from)| async move {
            let mut records = 0;
            for (server, mut shards) in from {
                shards.sort_unstable();
                let take = stage(ShardsFrom { server, shards });
                match self.step(to, number, take, patience).await? {
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
        let all = self.members().into_iter().map(|server| self.dump_step_at(server, dump, stage));
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
        let told = self.members().into_iter().map(|server| {
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

    fn are_at_target(&self, moves: &[ShardMove]) -> bool {
        let at = |it: &ShardMove| self.core.channels.of(Route::Shard(it.shard)).server;
        moves.iter().all(|it| at(it) == it.to)
    }

    /// Returns when this client knows the new map, and servers that have begun anew are back.
    async fn until(&self, is_known: impl Fn() -> bool) {
        let until = Instant::now() + SETTLED_WITHIN;
        let all = async {
            while !is_known() && Instant::now() < until {
                let _ = self.ask_server(COORDINATOR, Request::Ping).await;
                sleep(Duration::from_millis(50)).await;
            }
            let members = self.members().into_iter();
            join_all(members.map(|server| self.ask_server(server, Request::Ping))).await;
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
