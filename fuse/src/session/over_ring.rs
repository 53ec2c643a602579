//! Requests over io_uring: the session's loop where the ring is in use.

use tokio::io::unix::AsyncFd;

use super::{
    BUDGET, Ended, Handler, LOOKS_MAX, Next, READY, SessionError,
    desk::{Desk, turn, writable},
    next,
    policy::Courtesy,
};
use crate::{
    buffer::Buffer,
    channel::Channel,
    ring::{Ring, Taken, Woken},
};
use rustix::io::Errno;
use std::{io, pin::pin, sync::Arc, task::Poll};

/// Looks for the next request, each a look into memory, to one turn of other tasks.
const LOOKS_A_TURN: u32 = 4;

impl Desk {
    /// Serves a ring until the file system is unmounted, and reads `device`, if it is this thread
    /// that does.
    pub(super) async fn over_ring(
        &self,
        mut ring: Ring,
        device: Option<&AsyncFd<Arc<Channel>>>,
        mut courtesy: Option<Courtesy>,
        handler: &impl Handler,
    ) -> Result<Ended, SessionError> {
        let mut buffer = self.pool.get();
        let (mut budget, mut looks) = (BUDGET, 0);
        let ended = loop {
            let mut readable = false;
            if let Some(taken) = ring.next()? {
                let before = self.in_hand();
                self.take(&mut buffer, taken, handler);
                if let Some(courtesy) = &mut courtesy {
                    courtesy.serves();
                }
                if self.in_hand() > before {
                    ring.submit()?;
                    self.give_turns(before, || ring.submit().map(|_| ())).await?;
                }
                looks = 0;
            } else if device.is_none() && self.in_hand() == 0 && handler.is_idle() {
                if ring.is_over() {
                    break Ended::Unmounted;
                }
                // The kernel alone can have something to do for this thread.
                ring.submit_and_wait()?;
            } else if ring.submit()? {
                // The answers may have let the kernel send more.
            } else if looks < LOOKS_MAX && self.in_hand() == 0 {
                looks += 1;
                std::thread::yield_now();
                if looks.is_multiple_of(LOOKS_A_TURN) {
                    turn().await;
                }
            } else {
                if ring.is_over() && device.is_none() {
                    break Ended::Unmounted;
                }
                let woken = ring.wait(ready(device)).await.map_err(SessionError::Device)?;
                readable = woken == Woken::Device;
                budget = BUDGET;
            }
            budget -= 1;
            if budget == 0 {
                tokio::task::yield_now().await;
                budget = BUDGET;
                readable = is_ready(device).await.map_err(SessionError::Device)?;
            }
            if readable && let Some(ended) = self.read_all(&mut buffer, handler)? {
                break ended;
            }
        };
        ring.take_back(turn).await;
        Ok(ended)
    }

    /// Hands a request from the ring to the handler.
    fn take(&self, buffer: &mut Arc<Buffer>, taken: Taken, handler: &impl Handler) {
        match taken.message(writable(buffer, &self.pool)) {
            Ok(len) => self.dispatch(buffer, len, Some(taken), handler),
            Err(error) => {
                tracing::error!(%error, "a request over io_uring");
                let _ = taken.answer(-Errno::IO.raw_os_error(), &[]);
            }
        }
    }

    /// Reads `/dev/fuse` until it is empty.
    fn read_all(
        &self,
        buffer: &mut Arc<Buffer>,
        handler: &impl Handler,
    ) -> Result<Option<Ended>, SessionError> {
        loop {
            match next(&self.channel, writable(buffer, &self.pool))? {
                Next::Bytes(len) => self.dispatch(buffer, len, None, handler),
                Next::Again => {}
                Next::Empty => return Ok(None),
                Next::Ended(ended) => return Ok(Some(ended)),
            }
        }
    }
}

/// Waits until the device has been ready since it was last said to be empty.
async fn ready(device: Option<&AsyncFd<Arc<Channel>>>) -> io::Result<()> {
    match device {
        Some(fd) => fd.ready(READY).await?.clear_ready(),
        None => std::future::pending().await,
    }
    Ok(())
}

/// Whether [`ready`] would return at once.
async fn is_ready(device: Option<&AsyncFd<Arc<Channel>>>) -> io::Result<bool> {
    let mut ready = pin!(ready(device));
    std::future::poll_fn(|cx| match ready.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(done.map(|()| true)),
        Poll::Pending => Poll::Ready(Ok(false)),
    })
    .await
}
