//! The initiator's side: an operation that needs other servers, from its first run to its commit.
//!
//! `core` starts it for a request whose first run met a record of another server, and mechanisms of
//! this server for steps of their own ([`once`], [`once_as`]). It reads what the operation lacks,
//! and runs it again without effect until it lacks nothing. Then it has the other servers prepare,
//! and runs the operation once more for good. That run reads this server's records anew: it commits
//! if it wants of the others exactly what they have prepared. Between its runs nothing of this
//! server is locked.
//!
//! Always true: the request is answered once, or its number is free to be asked again.

use std::{cell::OnceCell, rc::Rc, sync::Arc, time::Duration};

use base::{Backoff, FsError};
use futures::future::join_all;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout_at},
};
use wire::{Answer, Prepare, Reply, ReplyHeader, Request, Retry, TxnId, Vote};

use super::{
    early_mkdirs,
    locks::Mode,
    phase::{Asked, Commit, Ended, Job, Phase},
    read::{Held, is_walked, read, read_and_hold},
    tell::tell,
};
use crate::{
    Core,
    bugs::{Bug, Planted},
    cluster::Cluster,
    coordinator::{self, graph, state::Coordinator},
    core::Work,
    driver,
    error::{Fault, Result},
    incoming::Incoming,
    observe::{Laps, Part, Verdict},
    peer::Unanswered,
    record::Key,
    server::{Counters, Shared},
    session::Session,
    step::Step,
    txn::{Remote, remote::Plan},
    wait::Wait,
};

/// The pause after a conflict, at first and at most.
const PAUSE_FIRST: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// An attempt that took longer than this had to wait for another transaction or server.
const SLOW: Duration = Duration::from_millis(100);
/// After a slow attempt nothing is prepared for this many times its length, [`SLOW_PAUSE_MAX`] at
/// most.
const SLOW_PAUSES: u32 = 4;
const SLOW_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Sees a request through that needs other servers.
pub(crate) async fn run(
    core: Core,
    incoming: Incoming,
    session: Arc<Session>,
    remote: Box<Remote>,
) {
    let shared = core.inner.shared.clone();
    let Some(cluster) = &shared.cluster else { return };
    let reply =
        ReplyHeader { call: incoming.header.call, cache_version: shared.invalidations.version() };
    let asked = Rc::new(Asked { incoming, session, reply });
    let job = Job::Request(Rc::clone(&asked));
    let mut run = Initiator::of(&core, &shared, cluster, job);
    if let Err(fault) = run.attempts(&asked.incoming, remote).await {
        run.turn.take();
        shared.until_told().await;
        run.answer(&asked, fault);
    }
}

/// Reads the records of other servers that a step would need now, so that they are not read while
/// names are frozen for it. They are only a start: their servers promise to the step itself that
/// they have not changed.
pub(crate) async fn foresee(core: &Core, step: Step, until: Instant) -> Box<Remote> {
    let shared = core.inner.shared.clone();
    let Some(cluster) = &shared.cluster else { return Box::default() };
    let run =
        Initiator { until: Some(until), ..Initiator::of(core, &shared, cluster, Job::Step(step)) };
    let looked = run.in_time(run.look(Box::default())).await.flatten();
    looked.map_or_else(|_| Box::default(), |looked| looked.remote)
}

/// Executes a step as transaction `txn`, or not. There is one attempt, whatever is in the way, and
/// it fails if the other servers have not prepared by `until`. Returns whether it is committed.
pub(crate) async fn once_as(
    core: &Core,
    (txn, step): (TxnId, Step),
    remote: Box<Remote>,
    until: Instant,
) -> bool {
    let shared = core.inner.shared.clone();
    let Some(cluster) = &shared.cluster else { return false };
    let job = Job::Step(step);
    let run = Initiator { until: Some(until), ..Initiator::of(core, &shared, cluster, job) };
    let Some(_under_way) = shared.pauses.transaction_now() else { return false };
    // Names are frozen meanwhile.
    let looked = run.in_time(run.look(remote)).await.flatten();
    let Ok(plan) = looked.and_then(|looked| {
        looked.done?;
        Ok((looked.remote.plan(cluster, shared.bugs)?, looked.remote))
    }) else {
        return false;
    };
    let (plan, remote) = (Rc::new(plan.0), plan.1);
    let ended = run.prepared(remote, txn, &plan, false, None).await;
    run.halts().await;
    let committed = matches!(ended, Ok(Attempt::Committed));
    let participants = plan.keys().copied().collect();
    let core = core.clone();
    tokio::task::spawn_local(async move {
        let laps = Laps::begin(core.inner.shared.observed.now());
        tell(&core, txn, participants, committed, &laps).await;
    });
    committed
}

/// Tries once to execute a step. Returns whether it is committed. An error is logged as `fails`.
pub(crate) async fn once(core: &Core, step: Step, fails: &str) -> bool {
    let shared = core.inner.shared.clone();
    let Some(cluster) = &shared.cluster else { return false };
    let run = Initiator::of(core, &shared, cluster, Job::Step(step));
    let ended = match run.look(Box::default()).await {
        Ok(looked) => run.attempt(looked).await,
        Err(fault) => Err(fault),
    };
    if let Err(fault @ (Fault::Answer(_) | Fault::Halt(_))) = &ended {
        tracing::error!(?fault, "{fails}");
    }
    matches!(ended, Ok(Attempt::Committed))
}

struct Initiator<'a> {
    core: &'a Core,
    shared: &'a Arc<Shared>,
    cluster: &'a Cluster,
    job: Job,
    /// The time by which all must have prepared, if there is one.
    until: Option<Instant>,
    /// The place in the queue of directory moves, for a move that had to wait, or may have to.
    turn: OnceCell<InTurn<'a>>,
    /// The times that the parts of the request have taken.
    laps: Laps,
}

/// How an attempt to commit ended.
enum Attempt {
    Committed,
    /// Something was in the way, or had changed.
    Again(Box<Remote>),
}

impl<'a> Initiator<'a> {
    fn of(
        core: &'a Core,
        shared: &'a Arc<Shared>,
        cluster: &'a Cluster,
        job: Job,
    ) -> Initiator<'a> {
        let laps = Laps::begin(shared.observed.now());
        Initiator { core, shared, cluster, job, until: None, turn: OnceCell::new(), laps }
    }
}

impl Initiator<'_> {
    /// Tries until the request is committed and answered.
    async fn attempts(&self, incoming: &Incoming, mut remote: Box<Remote>) -> Result<()> {
        let mut pauses = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        loop {
            if incoming.connection.is_closed() {
                return Err(Fault::Retry(Retry::Busy));
            }
            let looked = if remote.complete {
                let done = Ok(Box::new(Reply::Nothing));
                Ok(Looked { remote, written: Vec::new(), done, held: None })
            } else {
                self.look(remote).await
            };
            let began = Instant::now();
            let ended = match looked {
                Ok(looked) if !incoming.request.mutates() => {
                    self.shared.until_told().await;
                    let answer = Answer::Done(*looked.done?);
                    self.core.inner.audit(incoming, Verdict::Done);
                    self.reply(&answer);
                    return Ok(());
                }
                Ok(looked) => {
                    self.ends(Part::Read);
                    self.attempt(looked).await
                }
                Err(fault) => Err(fault),
            };
            match ended {
                Ok(Attempt::Committed) => return Ok(()),
                Err(Fault::Wait(Wait::Apart(wait))) => {
                    wait.begin(incoming);
                    wait.over(self.core.at(), Some(incoming)).await;
                    remote = Box::default();
                }
                Err(fault) => return Err(fault),
                Ok(Attempt::Again(again)) => {
                    Counters::add(&self.shared.counters.transactions_repeated);
                    // An attempt that merely assumed wrongly need not have met another
                    // transaction.
                    let took = began.elapsed();
                    if again.assumed().is_none() || took >= SLOW {
                        let pause = pauses.draw(self.shared.random.as_ref());
                        let long = (took * SLOW_PAUSES).min(SLOW_PAUSE_MAX);
                        // The long pause is drawn at random, too: transactions that met come back
                        // one after the other.
                        let long = Backoff::new(long, long).draw(self.shared.random.as_ref());
                        sleep(if took >= SLOW { pause.max(long) } else { pause }).await;
                    }
                    self.laps.again(self.shared.observed.now());
                    again.unlearn_assumed(&self.shared.remote_hints);
                    remote = again;
                    remote.forget();
                }
            }
        }
    }

    fn ends(&self, part: Part) {
        self.laps.end(part, self.shared.observed.now());
    }

    /// Waits for something before the commit, while there is time.
    async fn in_time<T>(&self, what: impl Future<Output = T>) -> Result<T> {
        match self.until {
            Some(until) => timeout_at(until, what).await.or(Err(Fault::Retry(Retry::Busy))),
            None => Ok(what.await),
        }
    }

    /// Reads the records that the operation needs of other servers, until it can run.
    ///
    /// Records that were held while they were read stay held only if nothing else was lacking: a
    /// transaction that holds records waits for no other.
    async fn look(&self, mut remote: Box<Remote>) -> Result<Looked<'_>> {
        let mut pauses = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let mut may_hold = true;
        loop {
            let held = match may_hold && !remote.held().is_empty() {
                true => {
                    // A pause delays the transaction here, while nothing is held for it, as it does
                    // while nothing is prepared.
                    let under_way = self.shared.pauses.transaction().await;
                    read_and_hold(self.core, self.cluster, &mut remote, under_way).await?
                }
                false => None,
            };
            may_hold = false;
            if held.is_none() {
                read(self.core, self.cluster, &mut remote).await?;
            }
            match self.phase(remote, None).await? {
                Ended::Ran(remote, reply, written) => {
                    return Ok(Looked { remote, written, done: Ok(reply), held });
                }
                Ended::Refused(mut remote, error) => {
                    if self.shared.bugs.has(Bug::RefusedUnseen) {
                        return Err(error.into());
                    }
                    remote.refuses();
                    return Ok(Looked { remote, written: Vec::new(), done: Err(error), held });
                }
                Ended::Lacks(again) => remote = again,
                Ended::Waits(again, wait) => {
                    drop(held);
                    if let Some(incoming) = self.incoming() {
                        wait.begin(incoming);
                    }
                    wait.over(self.core.at(), self.incoming()).await;
                    remote = again;
                    remote.forget();
                }
                Ended::Torn(mut again) => {
                    drop(held);
                    if !again.is_damaged() {
                        sleep(pauses.draw(self.shared.random.as_ref())).await;
                    }
                    remote = again;
                }
                Ended::Failed(fault) => return Err(fault),
                Ended::Differs(_) | Ended::Committed => unreachable!("it has no effect"),
            }
        }
    }

    /// The client's request, if the operation is one.
    fn incoming(&self) -> Option<&Incoming> {
        match &self.job {
            Job::Request(asked) => Some(&asked.incoming),
            Job::Step(_) => None,
        }
    }

    /// Has the other servers prepare, and commits if all have.
    ///
    /// Race: one record may have been read before another took its place, and that one after. So a
    /// refused request also has the others promise that all records it has seen are there, and is
    /// run again; its only effect is the answer.
    async fn attempt(&self, looked: Looked<'_>) -> Result<Attempt> {
        let Looked { remote, written, mut held, .. } = looked;
        // A pause delays the transaction here, while nothing is prepared for it. Taking one moment
        // of all servers waits for its end.
        let _under_way = match &held {
            Some(_) => None,
            None => Some(self.shared.pauses.transaction().await),
        };
        let plan = Rc::new(remote.plan(self.cluster, self.shared.bugs)?);
        let txn = held.as_ref().map_or_else(|| self.cluster.next_txn(), |held| held.txn);
        let moves = match self.begin_moves(&remote, txn, written) {
            Begun::Nothing => None,
            Begun::Moves(moves) => Some(moves),
            Begun::Wait => return Ok(Attempt::Again(remote)),
        };
        let moved = remote.coordinated;
        if let Some(held) = &mut held {
            // The participants hear the outcome anyway.
            held.untold.retain(|server| !plan.contains_key(server));
        }
        let born = early_mkdirs::planned(&plan).filter(|_| self.makes_dir());
        let is_early_mkdir = born.is_some();
        if let Some((server, child)) = born {
            self.shared.early_mkdirs.begin(txn, server, child);
        }
        self.shared.initiated.begin(txn);
        Counters::add(&self.shared.counters.transactions_begun);
        let ended = self.prepared(remote, txn, &plan, is_early_mkdir, held.as_ref()).await;
        drop(moves);
        self.halts().await;
        self.shared.initiated.end(txn);
        let committed = matches!(ended, Ok(Attempt::Committed));
        if !committed {
            Counters::add(&self.shared.counters.transactions_aborted);
        }
        if is_early_mkdir && committed {
            self.core.inner.counts().transactions.record(moved, &Part::BEFORE, &self.laps);
            early_mkdirs::tell(self.core, txn);
            return ended;
        }
        if is_early_mkdir {
            self.shared.early_mkdirs.end(txn);
        }
        let participants = plan.keys().copied().collect();
        if committed {
            self.core.inner.counts().transactions.record(moved, &Part::BEFORE, &self.laps);
        }
        let core = self.core.clone();
        tokio::task::spawn_local(async move {
            let laps = Laps::begin(core.inner.shared.observed.now());
            tell(&core, txn, participants, committed, &laps).await;
            if committed {
                core.inner.counts().transactions.record(moved, &Part::AFTER, &laps);
            }
        });
        ended
    }

    fn makes_dir(&self) -> bool {
        match &self.job {
            Job::Request(asked) => matches!(asked.incoming.request, Request::Mkdir(_)),
            Job::Step(_) => false,
        }
    }

    /// Does not return when the server has halted: whether the commit was written is not known, and
    /// the server answers that after a restart.
    async fn halts(&self) {
        if self.shared.is_halted() {
            std::future::pending::<()>().await;
        }
    }

    /// Begins the moves of directories: no other move touches what this one stands on, and nobody
    /// reads what it writes here.
    fn begin_moves(&self, remote: &Remote, txn: TxnId, written: Vec<Key>) -> Begun<'_> {
        let coordinator = self.cluster.coordinator.as_ref().filter(|_| remote.coordinated);
        let Some(coordinator) = coordinator else { return Begun::Nothing };
        let turn = self.turn.get_or_init(|| InTurn::new(coordinator)).turn;
        let mut graph = coordinator.graph();
        let begun = graph.begin_in_turn(turn, &remote.moves, &remote.chain);
        let graph::Begun::Granted(token) = begun else { return Begun::Wait };
        // Other changes are seen with the commit.
        let keys = written.into_iter().filter(|key| is_walked(key, &remote.moves));
        let keys = keys.map(|key| (key, Mode::Exclusive)).collect();
        if !self.shared.prepared.take(txn, keys) {
            graph.end(token);
            return Begun::Wait;
        }
        Begun::Moves(Moves { shared: self.shared, coordinator, txn, token: Some(token) })
    }

    async fn prepared(
        &self,
        remote: Box<Remote>,
        txn: TxnId,
        plan: &Rc<Plan>,
        is_early_mkdir: bool,
        held: Option<&Held<'_>>,
    ) -> Result<Attempt> {
        let moves = remote.coordinated && !remote.moves.is_empty();
        // If all records that walks may see are held, the move may be announced while it is
        // prepared.
        let held = held.filter(|held| moves && held.has_all(plan, &remote.moves));
        let asked: Vec<_> = plan
            .iter()
            .map(|(server, part)| {
                let (expects, writes) = (part.expects.clone(), part.writes.clone());
                let held = held.is_some_and(|held| held.servers.contains(server));
                let others = plan.keys().copied().filter(|other| other != server).collect();
                let (early_mkdir, session) = (is_early_mkdir, remote.session);
                let request = Request::Prepare(Prepare {
                    txn,
                    expects,
                    writes,
                    early_mkdir,
                    held,
                    others,
                    session,
                });
                self.core.inner.peers.ask(*server, &request)
            })
            .collect();
        let prepare = async {
            // A participant that prepares too late hears, or asks, that the transaction did not
            // happen: no commit of it is written.
            let votes = self.in_time(join_all(asked)).await?;
            self.ends(Part::Prepare);
            all_prepared(&votes, self.shared.bugs)
        };
        let all = match held {
            Some(_) => {
                let prepare = async { prepare.await.map_err(Some)?.then_some(()).ok_or(None) };
                let announce = async { self.announce(&remote).await.map_err(Some) };
                match tokio::try_join!(prepare, announce) {
                    Ok(_) => true,
                    // The announcement is not awaited to its end: the move does not happen.
                    Err(None) => false,
                    Err(Some(fault)) => return Err(fault),
                }
            }
            None => {
                let all = prepare.await?;
                if all && moves {
                    self.announce(&remote).await?;
                }
                all
            }
        };
        if !all {
            return Ok(Attempt::Again(remote));
        }
        let (moves, chain) = (remote.moves.clone(), remote.chain.clone());
        let commit = Commit { txn, plan: Rc::clone(plan), is_early_mkdir, moves, chain };
        match self.phase(remote, Some(commit)).await? {
            Ended::Committed => {
                self.ends(Part::Commit);
                Ok(Attempt::Committed)
            }
            Ended::Differs(remote)
            | Ended::Lacks(remote)
            | Ended::Waits(remote, _)
            | Ended::Torn(remote) => Ok(Attempt::Again(remote)),
            Ended::Failed(fault) => Err(fault),
            Ended::Ran(..) | Ended::Refused(..) => unreachable!("it is to have an effect"),
        }
    }

    /// Tells every server that directories move.
    ///
    /// Race: the client's knowledge is checked against the version that the move gets. From then on
    /// the graph keeps all directories above in place. The moved entry is prepared or held at its
    /// server before the news.
    async fn announce(&self, remote: &Remote) -> Result<()> {
        let Job::Request(asked) = &self.job else { return Ok(()) };
        driver::is_current(self.shared, &asked.incoming.header, &asked.incoming.request)?;
        coordinator::announce(self.shared, &remote.moves).await?;
        self.ends(Part::Announce);
        Ok(())
    }

    async fn phase(&self, remote: Box<Remote>, commit: Option<Commit>) -> Result<Ended> {
        let (done, ended) = oneshot::channel();
        let phase = Phase { job: self.job.clone(), remote: Some(remote), commit, done };
        self.core.inner.push(Work::Phase(Box::new(phase)));
        // The core drops the sender only when the server has halted.
        ended.await.map_err(|_| Fault::Answer(FsError::Io))
    }

    fn reply(&self, answer: &Answer) {
        if let Job::Request(asked) = &self.job {
            if self.shared.is_late() {
                return asked.incoming.connection.close();
            }
            asked.incoming.connection.reply_now(asked.reply, answer);
        }
    }

    /// Answers a request that had no effect.
    fn answer(&self, asked: &Asked, fault: Fault) {
        if asked.incoming.request.mutates() {
            driver::remember_refusal(&asked.session, asked.incoming.header.seq, &fault);
        }
        let answer = fault.answer(self.shared);
        self.core.inner.audit(&asked.incoming, Verdict::of(&answer));
        self.reply(&answer);
    }
}

/// An operation that has read everything it needs.
struct Looked<'a> {
    remote: Box<Remote>,
    /// The keys that the operation would write here.
    written: Vec<Key>,
    /// The answer that the operation would give.
    done: std::result::Result<Box<Reply>, FsError>,
    /// Records of other servers that are held, so that nobody else sees them.
    held: Option<Held<'a>>,
}

/// A place in the queue of directory moves; it is given up when this is dropped.
struct InTurn<'a> {
    coordinator: &'a Coordinator,
    turn: graph::Turn,
}

impl InTurn<'_> {
    fn new(coordinator: &Coordinator) -> InTurn<'_> {
        InTurn { coordinator, turn: coordinator.graph().turn() }
    }
}

impl Drop for InTurn<'_> {
    fn drop(&mut self) {
        self.coordinator.graph().leave(self.turn);
    }
}

enum Begun<'a> {
    /// No directory moves.
    Nothing,
    Moves(Moves<'a>),
    /// Another move is in the way.
    Wait,
}

/// A move of directories that is under way; it ends when this is dropped.
struct Moves<'a> {
    shared: &'a Shared,
    coordinator: &'a Coordinator,
    txn: TxnId,
    token: Option<graph::Token>,
}

impl Drop for Moves<'_> {
    fn drop(&mut self) {
        self.shared.prepared.free(self.txn);
        if let Some(token) = self.token.take() {
            self.coordinator.graph().end(token);
        }
    }
}

/// Whether all have prepared. An error when a server cannot, however often it is asked.
fn all_prepared(votes: &[std::result::Result<Reply, Unanswered>], bugs: Planted) -> Result<bool> {
    let mut all = true;
    for vote in votes {
        match vote {
            Ok(Reply::Vote(Vote::Prepared)) => {}
            Err(Unanswered::Failed(FsError::NoSpace)) if bugs.has(Bug::NoRoomIgnored) => {}
            Err(Unanswered::Failed(error)) => return Err((*error).into()),
            Ok(_) | Err(Unanswered::Lost) => all = false,
        }
    }
    Ok(all)
}
