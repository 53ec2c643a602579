//! One core: a single-threaded executor of requests.
//!
//! Connections stay on the core that accepted them. In one wake-up every connection that has bytes
//! decodes all its requests into the core's queue. Then a piece of the queue is executed inline
//! ([`execute`]), its effects gathered in one batch and written once, and only then is all of it
//! answered; clients work on these answers while the core has the next piece. With strict
//! durability a piece is all that is ready. So requests that were ready share the cost of a write,
//! and nobody waits for a timer.
//!
//! This file has what mechanisms use of a core: they queue steps, and ask other servers. They do
//! not know how it executes.
//!
//! Invariant: a reply leaves only after the write that holds its effect, and everything it saw.

mod execute;

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    sync::Arc,
};

use base::Time;
use tokio::sync::{Notify, oneshot};
use wire::TxnId;

use crate::{
    error::Result,
    follow::Followers,
    incoming::Incoming,
    observe::{CoreCounts, Nanos, Note},
    peer::Peers,
    record::Key,
    serve::connection::Connection,
    server::Shared,
    space_guard::Level,
    step::Step,
    transact::{
        early_mkdirs::news::Telling,
        phase::{Ended, Phase},
    },
    txn::{CommitGroup, Remote, Txn},
    wait::AtCore,
};

/// One core of a server. Cloning shares it; it never leaves its thread.
#[derive(Clone)]
pub struct Core {
    pub(crate) inner: Rc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    index: usize,
    queue: RefCell<VecDeque<Work>>,
    run: RefCell<OpenGroup>,
    wake: Notify,
    /// The other servers.
    pub(crate) peers: Peers,
    /// News of early mkdirs, to be told to other servers.
    pub(crate) early_mkdirs: Telling,
}

/// Something to execute.
pub(crate) enum Work {
    /// A client's request.
    Request(Incoming),
    /// A request that has waited for a handoff.
    Slowed(Incoming),
    /// A request that opens a session, with what it knows of other servers.
    Begin(Incoming, Box<Remote>),
    /// A step of a mechanism; its sender hears whether it was done.
    Step(Step, oneshot::Sender<()>),
    /// A run of an operation that needs other servers.
    Phase(Box<Phase>),
}

/// The effects that one run of the queue has gathered. Empty between two runs, but keeps its
/// memory.
struct OpenGroup {
    group: CommitGroup,
    followers: Followers,
    now: Time,
    /// Connections with replies in this group, and where in their buffer these start.
    touched: Vec<(Rc<Connection>, usize)>,
    /// Steps and syncs that are done with this group's write.
    done: Vec<oneshot::Sender<()>>,
    /// Runs of operations that commit with this group.
    phases: Vec<oneshot::Sender<Ended>>,
    /// Whether this core is inside the [`Gate`](crate::gate::Gate).
    is_inside: bool,
    /// The requests of this group, to be recorded when their answers leave.
    notes: Vec<Note>,
    /// When the latest request was executed, or the group began.
    lap: Nanos,
}

impl Core {
    pub(crate) fn new(shared: Arc<Shared>, index: usize, followers: Followers) -> Core {
        let run = OpenGroup {
            group: CommitGroup::new(index),
            followers,
            now: Time::default(),
            touched: Vec::new(),
            done: Vec::new(),
            phases: Vec::new(),
            is_inside: false,
            notes: Vec::new(),
            lap: Nanos::default(),
        };
        let (queue, run) = (RefCell::default(), RefCell::new(run));
        let peers = Peers::new(shared.clone());
        let (wake, early_mkdirs) = (Notify::new(), Telling::default());
        Core { inner: Rc::new(Inner { shared, index, queue, run, wake, peers, early_mkdirs }) }
    }

    /// Has a step executed. Returns its result when its group is written; `None` when the step was
    /// refused, and its task looks again later.
    pub(crate) async fn step<T: 'static>(
        &self,
        run: impl Fn(&mut Txn<'_>) -> Result<T> + 'static,
    ) -> Option<T> {
        self.execute(run, None).await
    }

    /// Like [`Core::step`], for a part of a transaction over several servers.
    pub(crate) async fn step_of<T: 'static>(
        &self,
        txn: TxnId,
        run: impl Fn(&mut Txn<'_>) -> Result<T> + 'static,
    ) -> Option<T> {
        self.execute(run, Some(txn)).await
    }

    async fn execute<T: 'static>(
        &self,
        run: impl Fn(&mut Txn<'_>) -> Result<T> + 'static,
        part_of: Option<TxnId>,
    ) -> Option<T> {
        self.inner.shared.space_guard.until(Level::Low).await;
        let result = Rc::new(Cell::new(None));
        let (step, (done, written)) = (Rc::clone(&result), oneshot::channel());
        let step = Step::new(move |txn| {
            step.set(Some(run(txn)?));
            Ok(())
        });
        let step = match part_of {
            Some(txn) => step.part_of(txn),
            None => step,
        };
        self.inner.push(Work::Step(step, done));
        let is_done = written.await.is_ok();
        if self.inner.shared.is_halted() {
            // The task would find the same work again, for ever, and keep this core busy.
            std::future::pending::<()>().await;
        }
        result.take().filter(|_| is_done)
    }

    /// The core as a wait sees it.
    pub(crate) fn at(&self) -> AtCore<'_> {
        let Inner { shared, peers, index, .. } = &*self.inner;
        AtCore { shared, peers, core: *index }
    }

    /// Removes records that nobody needs any more. Returns when the removal is written.
    pub(crate) async fn forget(&self, keys: Vec<Key>) {
        self.step(move |txn| {
            keys.iter().for_each(|key| txn.delete(key.clone()));
            Ok(())
        })
        .await;
    }
}

impl Inner {
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// The counters of this core.
    pub(crate) fn counts(&self) -> &CoreCounts {
        self.shared.observed.core(self.index)
    }

    pub(crate) fn push(&self, work: Work) {
        self.queue.borrow_mut().push_back(work);
        self.counts().queued.add(1);
        self.wake.notify_one();
    }
}
