//! Requests in, answers out: inline when the file system has the answer at once, in a task
//! otherwise.
//!
//! `fuse` calls this with every request. The request's future is polled once where it was read;
//! most of them are done then. One that waits moves into a local task, in the box in which it was
//! polled; boxes are used again, so what is answered inline allocates nothing for its future.
//!
//! A request whose process is being killed is answered with EINTR. Its operation still goes on to
//! its end, and what it would have given to the kernel is taken back.

use std::{
    cell::{Cell, RefCell},
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Waker},
};

use client::FileSystem;
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

/// Serves the kernel's requests until the mount ends, and then sees through what is under way.
pub(crate) async fn serve<S: FileSystem + 'static>(
    session: Session,
    adapter: Rc<Adapter<S>>,
) -> Result<Ended, fuse::SessionError> {
    let calls = Rc::clone(&adapter);
    let make = move |request: OwnedRequest| {
        // The span is for a subscriber; without one it costs a comparison.
        let span = tracing::trace_span!(target: "pando::trace", "call", op = request.get().name());
        Rc::clone(&calls).call(request).instrument(span)
    };
    let server = Server(Rc::new(Shared {
        adapter: Rc::clone(&adapter),
        make,
        spare: RefCell::default(),
        waiting: Cell::new(0),
        idle: Notify::new(),
    }));
    let ended = session.run(&server).await;
    server.0.until_idle().await;
    adapter.end().await;
    ended
}

struct Server<S, M, F>(Rc<Shared<S, M, F>>);

struct Shared<S, M, F> {
    adapter: Rc<Adapter<S>>,
    /// Begins a request.
    make: M,
    spare: RefCell<Vec<Slot<F>>>,
    /// Requests in tasks.
    waiting: Cell<usize>,
    idle: Notify,
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
        let mut slot = shared.begin(request.detach());
        match poll_slot(&mut slot, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => {
                shared.put_back(slot);
                shared.adapter.send(reply, outcome);
            }
            Poll::Pending => {
                let header = request.header;
                tokio::task::spawn_local(Rc::clone(shared).finish(slot, header, reply));
            }
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.0.adapter.forget(node, lookups);
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

    async fn finish(self: Rc<Self>, mut slot: Slot<F>, header: Header, reply: Reply) {
        self.waiting.set(self.waiting.get() + 1);
        let outcome = {
            let mut done = std::future::poll_fn(|cx| poll_slot(&mut slot, cx));
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
            Some(outcome) => self.adapter.send(reply, outcome),
            None => {
                reply.error(Errno::INTR);
                let outcome = std::future::poll_fn(|cx| poll_slot(&mut slot, cx)).await;
                self.adapter.discard(outcome).await;
            }
        }
        self.put_back(slot);
        self.waiting.set(self.waiting.get() - 1);
        if self.waiting.get() == 0 {
            self.idle.notify_waiters();
        }
    }

    /// Any signal ends waiting for a lock; the answer, whichever it is, comes soon after.
    async fn until_interrupted(
        &self,
        done: &mut (impl Future<Output = Outcome> + Unpin),
        reply: &Reply,
        header: &Header,
    ) -> Option<Outcome> {
        match select(done, pin!(signalled(reply, header.pid))).await {
            Either::Left((outcome, _)) => Some(outcome),
            Either::Right(((), _)) => {
                self.adapter.interrupt(header.unique);
                None
            }
        }
    }

    async fn until_idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.waiting.get() == 0 {
                break;
            }
            idle.await;
        }
    }
}

fn poll_slot<F: Future>(slot: &mut Slot<F>, cx: &mut Context<'_>) -> Poll<F::Output> {
    slot.as_mut().as_pin_mut().expect("a slot in use holds a future").poll(cx)
}
