//! One thread's side of a connection: what it does with each message.

use std::{future::poll_fn, sync::Arc, task::Poll};

use rustix::io::Errno;

use super::Handler;
use crate::{
    abi::opcode,
    buffer::{Buffer, Pool},
    channel::Channel,
    init::{Negotiated, Transport},
    interrupt::Reader,
    reply::Reply,
    request::{self, Malformed, Message, Source},
    ring::Taken,
    types::Unique,
};

/// Turns for a request that waits: what a file system on this thread takes to answer, and some
/// more.
const TURNS_MAX: u32 = 16;

/// Where one thread takes requests, hands them to the file system, and answers what is no request.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) channel: Arc<Channel>,
    pub(super) pool: Arc<Pool>,
    pub(super) negotiated: Negotiated,
    reader: Reader,
}

impl Desk {
    pub(super) fn new(channel: &Arc<Channel>, pool: &Arc<Pool>, negotiated: Negotiated) -> Desk {
        let reader = channel.shared.interrupts.reader();
        Desk { channel: Arc::clone(channel), pool: Arc::clone(pool), negotiated, reader }
    }

    /// How many requests of this thread are not answered.
    pub(super) fn in_hand(&self) -> usize {
        self.channel.shared.interrupts.in_hand(self.reader)
    }

    /// Lets other tasks run until no more than `before` requests are in hand, or for long enough.
    /// Calls `each` after every turn.
    pub(super) async fn give_turns(
        &self,
        before: usize,
        mut each: impl FnMut() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        for _ in 0..TURNS_MAX {
            if self.in_hand() <= before {
                break;
            }
            turn().await;
            each()?;
        }
        Ok(())
    }

    /// Handles the message at the beginning of the buffer. One that came over io_uring has taken an
    /// entry.
    pub(super) fn dispatch(
        &self,
        buffer: &Arc<Buffer>,
        len: usize,
        taken: Option<Taken>,
        handler: &impl Handler,
    ) {
        let bytes = &buffer[..len];
        let message = request::decode(bytes, Source::Buffer { buffer, len });
        match message {
            Ok(Message::Request(request)) => {
                let header = &request.header;
                let reply =
                    Reply::new(&self.channel, header.unique, header.opcode, self.reader, taken);
                handler.request(request, reply);
            }
            Ok(Message::Forget(forgets)) => {
                forgets.for_each(|(node, lookups)| handler.forget(node, lookups));
                self.give_back(taken);
            }
            Ok(Message::Interrupt { interrupted }) => {
                self.interrupt(bytes, interrupted);
                self.give_back(taken);
            }
            Ok(Message::Destroy) => {
                handler.destroy();
                self.refuse(bytes, taken, None);
            }
            Ok(Message::NotifyReply) => self.give_back(taken),
            Ok(Message::Init(_)) => self.refuse(bytes, taken, Some(Errno::IO)),
            Ok(Message::Unknown) => self.refuse(bytes, taken, Some(Errno::NOSYS)),
            Err(Malformed) => {
                tracing::error!(len, "malformed request from the kernel");
                self.refuse(bytes, taken, Some(Errno::IO));
            }
        }
    }

    /// An INTERRUPT is only answered when its request is not in hand: EAGAIN asks the kernel to
    /// send it again, should the request still wait on this descriptor. Requests over io_uring wait
    /// on none, and the kernel would not find them.
    fn interrupt(&self, bytes: &[u8], interrupted: Unique) {
        let found = self.channel.shared.interrupts.interrupt(interrupted);
        if !found && self.negotiated.transport() == Transport::Device {
            self.refuse(bytes, None, Some(Errno::AGAIN));
        }
    }

    /// Gives back the entry of a message that has no answer. The kernel sends none of these over
    /// io_uring.
    fn give_back(&self, taken: Option<Taken>) {
        if let Some(taken) = taken {
            let _ = taken.answer(0, &[]);
        }
    }

    /// Answers without the file system.
    fn refuse(&self, bytes: &[u8], taken: Option<Taken>, errno: Option<Errno>) {
        let Ok((head, _)) = request::header(bytes) else { return };
        let error = errno.map_or(0, |errno| -errno.raw_os_error());
        let sent = match taken {
            Some(taken) => taken.answer(error, &[]),
            None => self.channel.write(head.unique, error, &[]),
        };
        match sent {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => {
                let op = opcode::name(head.opcode);
                tracing::error!(op, %errno, "the kernel refused an answer");
            }
        }
    }
}

/// Returns the session's buffer if no handler kept it, otherwise a fresh one in its place.
pub(super) fn writable<'a>(buffer: &'a mut Arc<Buffer>, pool: &Arc<Pool>) -> &'a mut [u8] {
    if Arc::get_mut(buffer).is_none() {
        *buffer = pool.get();
    }
    Arc::get_mut(buffer).expect("a buffer fresh from the pool has one owner").bytes_mut()
}

/// Lets every task run that is ready now; the network and timers are looked at as often as ever.
pub(super) async fn turn() {
    let mut given = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
