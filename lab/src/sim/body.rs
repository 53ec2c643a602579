//! The tasks of a process, which can stand still, be slow, or be swept away between any two steps.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

/// The tasks of a process.
#[derive(Default)]
pub(super) struct Body {
    pub(super) tasks: RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
    pub(super) stopped: Cell<bool>,
    /// Minimum time between two steps of the process.
    pub(super) pace: Cell<Duration>,
    rest: RefCell<Option<Pin<Box<Sleep>>>>,
    waker: RefCell<Option<Waker>>,
}

impl Body {
    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Whether a slow machine has to wait before the next step.
    fn rests(&self, cx: &mut Context<'_>) -> bool {
        let mut rest = self.rest.borrow_mut();
        if let Some(rest) = rest.as_mut()
            && rest.as_mut().poll(cx).is_pending()
        {
            return true;
        }
        let pace = self.pace.get();
        *rest = (!pace.is_zero()).then(|| Box::pin(sleep_until(Instant::now() + pace)));
        false
    }
}

/// Runs the tasks of a process until they are swept away.
pub(super) async fn run(body: Rc<Body>) {
    poll_fn(|cx| {
        body.waker.replace(Some(cx.waker().clone()));
        match body.tasks.borrow_mut().as_mut() {
            None => Poll::Ready(()),
            Some(_) if body.stopped.get() || body.rests(cx) => Poll::Pending,
            Some(tasks) => tasks.as_mut().poll(cx),
        }
    })
    .await;
}
