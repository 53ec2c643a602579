//! How a core executes its queue: group by group, with one write for each.

use std::{mem, rc::Rc, sync::Arc, time::Duration};

use base::Tagged as _;
use store::Batch;
use tokio::{
    sync::oneshot,
    task::{spawn_local, yield_now},
    time::timeout_at,
};
use wire::{Answer, ReplyHeader, Retry};

use super::{Core, Inner, OpenGroup, Work};
use crate::{
    audit,
    bugs::Bug,
    driver::{self, Outcome},
    error::Fault,
    follow::Write,
    incoming::Incoming,
    observe::{Note, Verdict, Written},
    quota::ask,
    serve::connection::Connection,
    server::{Counters, Durability},
    session::Session,
    step::Step,
    sync::SyncQueue,
    transact::{
        self, outcome, participant,
        phase::{Ended, Phase},
    },
    txn::{Caller, GROUP_BYTES_MAX, Promise, Remote, Txn},
    wait::{Wait, WaitApart, WaitNow},
};

/// A group is written after this many requests, even if more are waiting: that bounds their delay.
const GROUP_REQUESTS_MAX: usize = 512;
/// Fewer requests are not divided into groups: the wake-ups would cost more than what is gained.
const GROUP_REQUESTS_MIN: usize = 8;

impl Core {
    /// Executes what connections bring. Runs until it is dropped; must be polled in a `LocalSet`.
    pub async fn run(&self) {
        // Answers that wait for stable storage share a sync, and a sync costs more than a wait.
        let is_strict = self.inner.shared.options.durability == Durability::Strict;
        let mut before = 0;
        self.run_after(yield_now, |waiting| {
            before = if is_strict { all(waiting) } else { piece(waiting, before) };
            before
        })
        .await;
    }

    /// Like [`Core::run`], for a core whose clients are tasks beside it. Their requests are here
    /// already, so the core executes them without looking at the network first.
    pub async fn run_beside_clients(&self) {
        self.run_after(|| std::future::ready(()), all).await;
    }

    /// `piece` says how many of so many requests that wait are executed before others run.
    async fn run_after<F: Future<Output = ()>>(
        &self,
        pause: impl Fn() -> F,
        mut piece: impl FnMut(usize) -> usize,
    ) {
        let mut work = Vec::new();
        loop {
            self.inner.wake.notified().await;
            loop {
                // Connections that are ready in the same wake-up bring their requests first, and
                // the answers to the piece before leave.
                pause().await;
                {
                    let mut queue = self.inner.queue.borrow_mut();
                    let piece = piece(queue.len());
                    work.extend(queue.drain(..piece));
                }
                if work.is_empty() {
                    break;
                }
                if let Some(late) = self.inner.execute_all(&mut work) {
                    self.inner.write_late(late).await;
                }
            }
        }
    }
}

/// The next group has all of `waiting` requests, as far as a group may.
fn all(waiting: usize) -> usize {
    waiting.min(GROUP_REQUESTS_MAX)
}

/// How many of `waiting` requests are executed as the next group, after one of `before`: half of
/// what clients have under way, as far as that is seen here. So clients have answers to work on
/// while the core executes the other half, and neither waits for the other.
fn piece(waiting: usize, before: usize) -> usize {
    let half = usize::midpoint(waiting, before).clamp(GROUP_REQUESTS_MIN, GROUP_REQUESTS_MAX);
    // A small rest would be a group of its own.
    if waiting < half + half / 2 { all(waiting) } else { half }
}

impl Inner {
    /// Executes and answers. The batch it returns was answered too early
    /// ([`Bug::AnswerBeforeWrite`]).
    fn execute_all(self: &Rc<Self>, work: &mut Vec<Work>) -> Option<Batch> {
        let (began, counts, queued) = (self.shared.observed.now(), self.counts(), work.len());
        counts.busy_since.set(began.0.max(1));
        let run = &mut *self.run.borrow_mut();
        run.now = self.shared.clock.now();
        run.lap = began;
        run.group.audit.now = run.now;
        for work in work.drain(..) {
            match work {
                Work::Request(incoming) => {
                    let incoming = self.pauses(run, incoming, Work::Request);
                    match incoming.and_then(|incoming| self.slows(run, incoming)) {
                        Some(incoming) => self.execute(run, incoming, None),
                        None => continue,
                    }
                }
                Work::Slowed(incoming) => match self.pauses(run, incoming, Work::Slowed) {
                    Some(incoming) => self.execute(run, incoming, None),
                    None => continue,
                },
                Work::Begin(incoming, way) => self.execute(run, incoming, Some(way)),
                Work::Phase(phase) => {
                    self.execute_phase(run, *phase);
                    run.lap = self.shared.observed.now();
                }
                Work::Step(step, done) => {
                    self.execute_step(run, step, done);
                    run.lap = self.shared.observed.now();
                }
            }
            let is_full = run.group.changes.bytes() >= GROUP_BYTES_MAX;
            // Others wait outside while this core is alone.
            if is_full || run.group.is_alone {
                self.write(run);
            }
        }
        let early = self.shared.bugs.has(Bug::AnswerBeforeWrite);
        let late = early.then(|| run.group.changes.take_batch());
        self.write(run);
        counts.busy_since.set(0);
        counts.queued.subtract(u64::try_from(queued).unwrap_or(u64::MAX));
        late
    }

    fn execute(
        self: &Rc<Self>,
        run: &mut OpenGroup,
        mut incoming: Incoming,
        mut way: Option<Box<Remote>>,
    ) {
        Counters::add(&self.shared.counters.requests);
        self.shared.loads.count(incoming.header.shard);
        incoming.waits = None;
        if let Err(error) = incoming.take_in_ids() {
            self.enter(run);
            run.touch(&incoming.connection);
            let verdict = driver::refuse_ids(&self.shared, &incoming, error);
            return self.note(run, &incoming, verdict);
        }
        loop {
            self.enter(run);
            run.touch(&incoming.connection);
            let outcome =
                driver::execute(&self.shared, &mut run.group, &incoming, run.now, way.take());
            if outcome.waits() {
                if !incoming.connection.may_wait() {
                    let verdict = driver::turn_away(&incoming);
                    return self.note(run, &incoming, verdict);
                }
                incoming.waits = Some(incoming.connection.waits());
            }
            match outcome {
                Outcome::Answered(verdict) => return self.note(run, &incoming, verdict),
                Outcome::Elsewhere(remote) => {
                    let core = Core { inner: Rc::clone(self) };
                    // Race: before the task runs the connection may be another session's.
                    let session = incoming.connection.session();
                    let session = session.expect("its first run was in a session");
                    spawn_local(transact::run::run(core, incoming, session, remote));
                    return;
                }
                Outcome::SessionRoot(remote) => {
                    let core = Core { inner: Rc::clone(self) };
                    spawn_local(transact::session_root::run(core, incoming, remote));
                    return;
                }
                Outcome::Grant { from, ask } => {
                    let core = Core { inner: Rc::clone(self) };
                    spawn_local(async move {
                        ask::answer(core.at(), incoming, from, ask).await;
                    });
                    return;
                }
                Outcome::Relayed(ask) => {
                    let core = Core { inner: Rc::clone(self) };
                    spawn_local(outcome::relay(core, incoming, ask));
                    return;
                }
                Outcome::Async(task) => {
                    if task.after_write {
                        self.write(run);
                    }
                    let waits = incoming.connection.waits();
                    spawn_local(async move {
                        let _waits = waits;
                        task.future.await;
                    });
                    return;
                }
                Outcome::Waits(Wait::Now(wait)) => self.make_way(run, wait.as_ref()),
                Outcome::Waits(Wait::Apart(wait)) => return self.wait_apart(incoming, wait),
            }
        }
    }

    /// Makes a request wait while nothing may change; otherwise gives it back.
    fn pauses(
        self: &Rc<Self>,
        run: &mut OpenGroup,
        incoming: Incoming,
        work: fn(Incoming) -> Work,
    ) -> Option<Incoming> {
        if !self.shared.pauses.holds() || !incoming.request.mutates() {
            return Some(incoming);
        }
        let incoming = self.may_wait(run, incoming)?;
        let shared = Arc::clone(&self.shared);
        self.later(incoming, false, async move { shared.pauses.over().await }, work);
        None
    }

    /// Makes a request wait if it changes names that a handoff moves, and changes come too fast for
    /// the handoff; otherwise gives it back.
    fn slows(self: &Rc<Self>, run: &mut OpenGroup, incoming: Incoming) -> Option<Incoming> {
        if !self.shared.handoffs.any() {
            return Some(incoming);
        }
        let Some(pause) = self.shared.handoffs.slows(&incoming.request) else {
            return Some(incoming);
        };
        let incoming = self.may_wait(run, incoming)?;
        Counters::add(&self.shared.counters.handoff_slowed);
        self.later(incoming, true, tokio::time::sleep(pause), Work::Slowed);
        None
    }

    /// Counts a request that is about to wait before it has begun. If too many requests of its
    /// connection wait already, the client is told to ask again.
    fn may_wait(&self, run: &mut OpenGroup, mut incoming: Incoming) -> Option<Incoming> {
        incoming.waits = None;
        if incoming.connection.may_wait() {
            incoming.waits = Some(incoming.connection.waits());
            return Some(incoming);
        }
        self.enter(run);
        run.touch(&incoming.connection);
        let verdict = driver::turn_away_at_once(&incoming);
        self.note(run, &incoming, verdict);
        None
    }

    /// Executes a request when `happens` has ended. `for_handoff` says whether it waits for names
    /// to move.
    fn later(
        self: &Rc<Self>,
        incoming: Incoming,
        for_handoff: bool,
        happens: impl Future<Output = ()> + 'static,
        work: fn(Incoming) -> Work,
    ) {
        let core = Rc::clone(self);
        let session = incoming.connection.session();
        spawn_local(async move {
            let since = core.shared.observed.now();
            happens.await;
            if for_handoff && !incoming.request.kind().between_servers {
                let waited = core.shared.observed.now().since(since);
                incoming.parked.add(&core.shared, core.index, waited);
            }
            core.again(incoming, session.as_ref(), work);
        });
    }

    /// Executes a request again when its wait is over. Some requests of other servers wait only for
    /// so long, and are answered then.
    fn wait_apart(self: &Rc<Self>, mut incoming: Incoming, wait: Box<dyn WaitApart>) {
        let core = Core { inner: Rc::clone(self) };
        let session = incoming.connection.session();
        wait.begin(&incoming);
        let bound = participant::patience(&incoming.request);
        let bound = bound.map(|(within, late)| (incoming.waits_since() + within, late));
        spawn_local(async move {
            let over = wait.over(core.at(), Some(&incoming));
            match bound {
                None => over.await,
                Some((until, late)) => {
                    if timeout_at(until, over).await.is_err() {
                        let call = incoming.header.call;
                        let reply = ReplyHeader { call, cache_version: 0 };
                        return incoming.connection.reply_now(reply, &late);
                    }
                }
            }
            if wait.is_asked_for() {
                incoming.arrived = core.inner.shared.observed.now();
            }
            core.inner.again(incoming, session.as_ref(), Work::Request);
        });
    }

    /// Executes a request that has waited, if its connection still belongs to the same session.
    fn again(
        &self,
        incoming: Incoming,
        session: Option<&Arc<Session>>,
        work: fn(Incoming) -> Work,
    ) {
        // The client does not hear the answer any more, and the client may have asked again
        // elsewhere.
        if incoming.connection.is_closed() {
            return;
        }
        if incoming.connection.is_of(session) {
            self.push(work(incoming));
        } else {
            incoming.connection.reply_now(
                ReplyHeader { call: incoming.header.call, cache_version: 0 },
                &Answer::Retry(Retry::NoSession),
            );
        }
    }

    /// Notes a request that was executed.
    fn note(&self, run: &mut OpenGroup, incoming: &Incoming, verdict: Verdict) {
        audit::note::verdict(&self.shared, &mut run.group, incoming, verdict);
        let ended = self.shared.observed.now();
        run.notes.push(Note {
            kind: incoming.request.tag(),
            verdict,
            session: incoming.connection.session_id(),
            call: incoming.header.call,
            subject: incoming.request.kind().about.map(|dir| (dir.id, dir.home)),
            arrived: incoming.arrived,
            begun: run.lap,
            ended,
        });
        run.lap = ended;
    }

    /// Tells the audit log of a request that a task has answered.
    pub(crate) fn audit(&self, incoming: &Incoming, verdict: Verdict) {
        let run = &mut *self.run.borrow_mut();
        run.group.audit.now = self.shared.clock.now();
        audit::note::verdict(&self.shared, &mut run.group, incoming, verdict);
    }

    /// Runs an operation that needs other servers, or commits it.
    fn execute_phase(&self, run: &mut OpenGroup, mut phase: Phase) {
        loop {
            self.enter(run);
            if let Some(connection) = phase.connection().filter(|_| phase.commits()) {
                run.touch(connection);
            }
            match phase.execute(&self.shared, &mut run.group, run.now) {
                Ok(Ended::Committed) => return run.phases.push(phase.done),
                Ok(ended) => {
                    // The task that asked may have gone.
                    let _ = phase.done.send(ended);
                    return;
                }
                Err(wait) => self.make_way(run, wait.as_ref()),
            }
        }
    }

    fn execute_step(self: &Rc<Self>, run: &mut OpenGroup, step: Step, done: oneshot::Sender<()>) {
        loop {
            self.enter(run);
            let mut txn = Txn::new(&self.shared, &mut run.group, Caller::SERVER, run.now);
            let result = step.execute(&mut txn);
            let result = result.and_then(|()| txn.unsettled());
            if result.is_ok() {
                txn.commit();
            } else {
                // Dropping the transaction gives back what it charged before anybody else looks.
                drop(txn);
            }
            match result {
                Ok(()) => {
                    run.done.push(done);
                    return;
                }
                Err(Fault::Wait(Wait::Now(wait))) => self.make_way(run, wait.as_ref()),
                // The server itself does not wait for other servers.
                Err(Fault::Wait(Wait::Apart(wait))) if !wait.changes_records() => return,
                Err(Fault::Wait(Wait::Apart(wait))) => {
                    let core = Core { inner: Rc::clone(self) };
                    spawn_local(async move {
                        wait.over(core.at(), None).await;
                        core.inner.push(Work::Step(step, done));
                    });
                    return;
                }
                Err(Fault::Halt(reason)) => return self.shared.halt(reason),
                Err(Fault::Remote) => {
                    return tracing::error!("a background step needs another server");
                }
                Err(Fault::Answer(error)) => {
                    return tracing::error!(%error, "a background step failed");
                }
                Err(Fault::Retry(_) | Fault::Refused(_)) => return,
            }
        }
    }

    /// Writes the group, so that its locks are free and its effects are in the engine. Then lets
    /// pass what was in the way.
    fn make_way(&self, run: &mut OpenGroup, wait: &dyn WaitNow) {
        self.write(run);
        wait.pass(&self.shared);
        if wait.wants_alone() {
            self.shared.gate.enter_alone(self.index);
            (run.is_inside, run.group.is_alone) = (true, true);
        }
    }

    /// Begins a group, unless one is under way.
    fn enter(&self, run: &mut OpenGroup) {
        if !mem::replace(&mut run.is_inside, true) {
            self.shared.gate.enter(self.index);
        }
    }

    /// Ends a group that is written, with all that had to be done after it.
    fn leave(&self, run: &mut OpenGroup) {
        match (mem::take(&mut run.is_inside), mem::take(&mut run.group.is_alone)) {
            (true, true) => self.shared.gate.leave_alone(self.index),
            (true, false) => self.shared.gate.leave(self.index),
            (false, _) => {}
        }
    }

    /// Writes the group and lets its replies go.
    fn write(&self, run: &mut OpenGroup) {
        let (changes, followers) = (&mut run.group.changes, &mut run.followers);
        let has_news = !changes.are_none();
        if has_news {
            followers.iter_mut().for_each(|follower| follower.writing(changes));
        }
        let batch = changes.take_batch();
        let (wrote, bytes) = (!batch.is_empty(), batch.bytes());
        let mut is_done = false;
        if wrote && !self.shared.is_halted() {
            Counters::add(&self.shared.counters.groups);
            is_done = self.shared.write(batch);
        }
        changes.written();
        let write = Write { is_done, is_halted: self.shared.is_halted() };
        if has_news {
            let facts = &mut changes.facts;
            followers.iter_mut().for_each(|follower| follower.written(facts, write));
        }
        let times = self.measure(run, wrote, bytes);
        let after = &mut run.group.after;
        if !write.is_halted {
            let [promises, looks, acknowledgements] =
                [&mut after.promises, &mut after.looks, &mut after.acknowledgements].map(mem::take);
            self.keep_promises(promises, SyncQueue::wait, Bug::PromiseNotStable);
            self.keep_promises(looks, SyncQueue::until_stable, Bug::PromiseNotStable);
            self.keep_promises(acknowledgements, SyncQueue::ride, Bug::AcknowledgedEarly);
        }
        let tells_of_change = mem::take(&mut after.tells_of_change);
        let is_late = mem::take(&mut after.serves) && self.shared.is_late();
        // Other servers may have heard of the process in its place.
        let is_replaced = mem::take(&mut after.serves_servers) && self.shared.may_be_replaced();
        let is_strict = self.shared.options.durability == Durability::Strict;
        for (session, seq, answer) in after.answers.drain(..) {
            session.answered(seq, answer);
        }
        if has_news {
            let facts = &mut run.group.changes.facts;
            run.followers.iter_mut().for_each(|follower| follower.answered(facts, write));
        }
        self.shared.locks.unlock_all(&mut run.group.locks);
        run.group.leave_sessions();
        self.leave(run);
        run.done.drain(..).for_each(|done| {
            // The waiting task may have gone.
            let _ = done.send(());
        });
        run.phases.drain(..).for_each(|done| {
            let _ = done.send(Ended::Committed);
        });
        let touched = run.touched.drain(..);
        if self.shared.is_halted() && wrote {
            run.notes.iter_mut().for_each(|note| note.verdict = Verdict::Halted);
            self.counts().answered(&self.shared.observed, &run.notes, times);
            run.notes.clear();
            touched.for_each(|(connection, start)| connection.discard(start));
        } else if is_late || is_replaced {
            // Clients ask again, and find the stored answers here, or another process.
            run.notes.clear();
            let (to_servers, to_clients): (Vec<_>, Vec<_>) =
                touched.partition(|(connection, _)| connection.peer().is_some());
            for (all, is_held) in [(to_servers, is_replaced), (to_clients, is_late)] {
                all.into_iter().for_each(|(connection, start)| match is_held {
                    true => connection.discard(start),
                    false => connection.send(),
                });
            }
        } else if is_strict && (tells_of_change || !self.shared.sync.is_stable()) {
            let notes = mem::take(&mut run.notes);
            // Replies to other servers leave at once: those that must be stable first are promises,
            // and another server may be waiting for these.
            let (to_servers, held): (Vec<_>, Vec<_>) =
                touched.partition(|(connection, _)| connection.peer().is_some());
            to_servers.into_iter().for_each(|(connection, _)| connection.send());
            self.send_when_stable(held, notes, times, tells_of_change);
        } else {
            self.counts().answered(&self.shared.observed, &run.notes, times);
            run.notes.clear();
            touched.for_each(|(connection, _)| connection.send());
        }
    }

    /// Writes what was answered already, a moment later ([`Bug::AnswerBeforeWrite`]).
    async fn write_late(&self, batch: Batch) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.shared.write(batch);
    }

    /// Measures when the group was executed and written.
    fn measure(&self, run: &mut OpenGroup, wrote: bool, bytes: usize) -> Written {
        let executed = run.lap;
        let counts = self.counts();
        if !run.notes.is_empty() {
            counts.group_requests.record(u64::try_from(run.notes.len()).unwrap_or(u64::MAX));
        }
        if wrote {
            run.lap = self.shared.observed.now();
            counts.writes.record(run.lap.since(executed));
            counts.group_bytes.record(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
        Written { executed, written: run.lap, answered: run.lap }
    }

    /// Answers other servers when this group's writes are stable, which `wait` awaits. With the bug
    /// `early` the answers do not wait.
    fn keep_promises(
        &self,
        promises: Vec<Promise>,
        wait: impl AsyncFnOnce(&SyncQueue) + 'static,
        early: Bug,
    ) {
        if promises.is_empty() {
            return;
        }
        let shared = self.shared.clone();
        spawn_local(async move {
            if !shared.bugs.has(early) {
                wait(&shared.sync).await;
            }
            let is_late = shared.is_late();
            for Promise { connection, reply, answer } in promises {
                match is_late {
                    true => connection.close(),
                    false => connection.reply_now(reply, &answer),
                }
            }
        });
    }

    fn send_when_stable(
        &self,
        touched: Vec<(Rc<Connection>, usize)>,
        notes: Vec<Note>,
        times: Written,
        tells_of_change: bool,
    ) {
        let held: Vec<_> = touched
            .into_iter()
            .map(|(connection, start)| {
                let replies = connection.hold(start);
                (connection, replies)
            })
            .collect();
        let (shared, index) = (self.shared.clone(), self.index);
        spawn_local(async move {
            match tells_of_change {
                _ if shared.bugs.has(Bug::SyncNotAwaited) => {}
                true => shared.until_stable().await,
                // The answers may show changes of other requests.
                false => shared.until_told().await,
            }
            if shared.is_late() {
                return held.iter().for_each(|(connection, _)| connection.close());
            }
            let observed = &shared.observed;
            let times = Written { answered: observed.now(), ..times };
            observed.core(index).answered(observed, &notes, times);
            for (connection, replies) in held {
                connection.send_held(&replies);
            }
        });
    }
}

impl OpenGroup {
    fn touch(&mut self, connection: &Rc<Connection>) {
        if !self.touched.iter().any(|(touched, _)| Rc::ptr_eq(touched, connection)) {
            self.touched.push((connection.clone(), connection.buffered()));
            connection.heard();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_half_of_what_it_has_under_way_while_the_core_has_the_other() {
        // 128 are under way: those of the piece before come back while the next one is executed.
        assert_eq!(piece(128, 0), 64);
        assert_eq!(piece(64, 64), 64);
        // Some of them came back late.
        assert_eq!(piece(80, 64), 80);
        assert_eq!(piece(16, 0), 8);
    }

    #[test]
    fn pieces_are_neither_tiny_nor_without_bound() {
        for few in [0, 1, 7, 8, 11] {
            assert_eq!(piece(few, 0), few, "nothing is left behind");
        }
        assert_eq!(piece(12, 0), 8);
        assert_eq!(piece(600, 512), 512);
        assert_eq!(piece(100_000, 512), 512);
    }
}
