//! Requests in, answers out: inline when the file system has the answer at once, in a task
//! otherwise.
//!
//! `fuse` calls this with every request. The request's future is polled once where it was read;
//! most of them are done then. One that waits moves into a local task, in the box in which it was
//! polled; boxes are used again, so what is answered inline allocates nothing for its future.
//!
//! A request whose process is being killed is answered with EINTR. Its operation still goes on to
//! its end, and what it would have given to the kernel is taken back.
//!
//! Where each CPU has a thread of its own, each has a server of its own, and all share the adapter.
//! The threads use it in turns (`client::Turns`), as one thread would.

use std::{
    cell::{Cell, RefCell},
    pin::{Pin, pin},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use client::{FileSystem, Turns};
use fuse::{Ended, Errno, Handler, Header, NodeId, OwnedRequest, Reply, Request, Session};
use futures::future::{Either, select};
use tokio::sync::Notify;
use tracing::Instrument as _;

use crate::{
    adapter::Adapter,
    answer::Outcome,
    killed::{killed, signalled},
};

/// Boxes kept for later.
const SPARE_MAX: usize = 64;

/// Name of the threads that serve a mount, before their CPU.
const THREADS: &str = "pando-mount";

/// Starts the threads of a session, if it is to have some.
pub(crate) async fn start_threads<S: FileSystem + Send + Sync + 'static>(
    session: &mut Session,
    adapter: &Arc<Adapter<S>>,
    turns: &Turns,
) -> Result<(), fuse::SessionError> {
    let (adapter, turns) = (Arc::clone(adapter), turns.clone());
    let serve = move |worker: fuse::Worker| {
        let (adapter, turns) = (Arc::clone(&adapter), turns.clone());
        async move {
            let server = server(&adapter, turns);
            worker.run(&server).await?;
            server.until_idle().await;
            Ok(())
        }
    };
    session.start_workers(THREADS, serve).await
}

/// Serves the kernel's requests until the mount ends, and then sees through what is under way.
pub(crate) async fn serve<S: FileSystem + 'static>(
    session: Session,
    adapter: Arc<Adapter<S>>,
    turns: Turns,
) -> Result<Ended, fuse::SessionError> {
    let server = server(&adapter, turns.clone());
    // One that has failed ends with this process, and programs may still use what they have open.
    let ended = session.run(&server).await?;
    server.until_idle().await;
    turns.in_turn(adapter.end()).await;
    Ok(ended)
}

/// A thread's server.
fn server<S: FileSystem + 'static>(adapter: &Arc<Adapter<S>>, turns: Turns) -> impl Serving {
    let calls = Arc::clone(adapter);
    let make = move |request: OwnedRequest| {
        // The span is for a subscriber; without one it costs a comparison.
        let span = tracing::trace_span!(target: "pando::trace", "call", op = request.get().name());
        Arc::clone(&calls).call(request).instrument(span)
    };
    Server(Rc::new(Shared {
        adapter: Arc::clone(adapter),
        make,
        turns,
        spare: RefCell::default(),
        waiting: Cell::new(0),
        idle: Notify::new(),
    }))
}

/// A handler that goes on with requests after the mount's end.
trait Serving: Handler {
    /// Waits until none is under way.
    async fn until_idle(&self);
}

struct Server<S, M, F>(Rc<Shared<S, M, F>>);

struct Shared<S, M, F> {
    adapter: Arc<Adapter<S>>,
    turns: Turns,
    /// Begins a request.
    make: M,
    spare: RefCell<Vec<Slot<F>>>,
    /// Requests in tasks.
    waiting: Cell<usize>,
    idle: Notify,
}

/// A request in a task, which may end by a panic.
struct Waits<S, M, F>(Rc<Shared<S, M, F>>);

impl<S, M, F> Waits<S, M, F> {
    fn begin(shared: &Rc<Shared<S, M, F>>) -> Self {
        shared.waiting.set(shared.waiting.get() + 1);
        Waits(Rc::clone(shared))
    }
}

impl<S, M, F> Drop for Waits<S, M, F> {
    fn drop(&mut self) {
        let waiting = self.0.waiting.get() - 1;
        self.0.waiting.set(waiting);
        if waiting == 0 {
            self.0.idle.notify_waiters();
        }
    }
}

/// A place for a request's future, which can be emptied and filled again.
type Slot<F> = Pin<Box<Option<F>>>;

impl<S, M, F> Handler for Server<S, M, F>
where
    S: FileSystem + 'static,
    M: Fn(OwnedRequest) -> F + 'static,
    F: Future<Output = Outcome> + 'static,
{
    fn request(&self, request: Request<'_>, reply: Reply) {
        let shared = &self.0;
        let _turn = shared.turns.take();
        let mut slot = shared.begin(request.detach());
        match poll_slot(&mut slot, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => {
                shared.put_back(slot);
                shared.adapter.send(reply, outcome);
            }
            Poll::Pending => {
                let waits = Waits::begin(shared);
                let (shared, header) = (Rc::clone(shared), request.header);
                tokio::task::spawn_local(async move {
                    let _waits = waits;
                    shared.finish(slot, header, reply).await;
                });
            }
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.0.adapter.forget(node, lookups);
    }

    fn is_idle(&self) -> bool {
        self.0.waiting.get() == 0
    }
}

impl<S, M, F> Serving for Server<S, M, F>
where
    S: FileSystem + 'static,
    M: Fn(OwnedRequest) -> F + 'static,
    F: Future<Output = Outcome> + 'static,
{
    async fn until_idle(&self) {
        let shared = &self.0;
        loop {
            let idle = shared.idle.notified();
            if shared.waiting.get() == 0 {
                break;
            }
            idle.await;
        }
    }
}

impl<S, M, F> Shared<S, M, F>
where
    S: FileSystem,
    M: Fn(OwnedRequest) -> F,
    F: Future<Output = Outcome>,
{
    fn begin(&self, request: OwnedRequest) -> Slot<F> {
        let mut slot = self.spare.borrow_mut().pop().unwrap_or_else(|| Box::pin(None));
        slot.set(Some((self.make)(request)));
        slot
    }

    fn put_back(&self, mut slot: Slot<F>) {
        slot.set(None);
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_MAX {
            spare.push(slot);
        }
    }

    async fn finish(&self, mut slot: Slot<F>, header: Header, reply: Reply) {
        let outcome = {
            // The outcome is sent within the turn that had it.
            let mut done = std::future::poll_fn(|cx| {
                let turn = self.turns.take();
                poll_slot(&mut slot, cx).map(|outcome| (outcome, turn))
            });
            let early = if self.adapter.waits_for_lock(header.unique) {
                self.until_interrupted(&mut done, &reply, &header).await
            } else {
                None
            };
            match early {
                Some(outcome) => Some(outcome),
                None => {
                    let killed = pin!(killed(&reply, header.pid));
                    match select(done, killed).await {
                        Either::Left((outcome, _)) => Some(outcome),
                        Either::Right(((), _)) => None,
                    }
                }
            }
        };
        match outcome {
            Some((outcome, turn)) => {
                self.adapter.send(reply, outcome);
                drop(turn);
            }
            None => {
                reply.error(Errno::INTR);
                let rest = async {
                    let outcome = std::future::poll_fn(|cx| poll_slot(&mut slot, cx)).await;
                    self.adapter.discard(outcome).await;
                };
                self.turns.in_turn(rest).await;
            }
        }
        self.put_back(slot);
    }

    /// Any signal ends waiting for a lock; the answer, whichever it is, comes soon after.
    async fn until_interrupted<O>(
        &self,
        done: &mut (impl Future<Output = O> + Unpin),
        reply: &Reply,
        header: &Header,
    ) -> Option<O> {
        match select(done, pin!(signalled(reply, header.pid))).await {
            Either::Left((outcome, _)) => Some(outcome),
            Either::Right(((), _)) => {
                self.adapter.interrupt(header.unique);
                None
            }
        }
    }
}

fn poll_slot<F: Future>(slot: &mut Slot<F>, cx: &mut Context<'_>) -> Poll<F::Output> {
    slot.as_mut().as_pin_mut().expect("a slot in use holds a future").poll(cx)
}
