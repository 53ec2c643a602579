//! A caller's hold on a call.
//!
//! `call` has one for each request, polls it for the answer, and says what happens next: ask again,
//! here or elsewhere, or let it go.

use std::{
    mem,
    task::{Context, Poll},
};

use base::{Cred, Ino};
use wire::{Request, Stand};

use super::{
    Answered, Channel, Key, Order,
    slots::{Link, State},
    wake_all,
};
use crate::{Error, inode_routes, route::Route};

/// A caller's hold on its slot. Dropping it ends the call: one that was sent and changes something
/// is handed on as an orphan, any other is forgotten.
pub(crate) struct Ticket<'a> {
    pub(super) channel: &'a Channel,
    pub(super) key: Key,
}

impl<'a> Ticket<'a> {
    /// The answer, once it is there.
    pub(crate) fn poll_answer(&mut self, cx: &Context<'_>) -> Poll<Result<Answered, Error>> {
        let mut inner = self.channel.inner.lock();
        let slot = inner.held(self.key);
        match mem::replace(&mut slot.state, State::Held) {
            State::Answered(answered) => Poll::Ready(Ok(answered)),
            State::Failed(error) => Poll::Ready(Err(error)),
            state @ (State::Queued | State::Sent | State::Free | State::Held) => {
                slot.state = state;
                match &mut slot.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => slot.waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }

    /// Asks again: nothing happened.
    pub(crate) fn again(&mut self) {
        let mut inner = self.channel.inner.lock();
        let wake = inner.enqueue(self.key, &self.channel.counters);
        drop(inner);
        wake_all(wake);
    }

    /// Asks again on another connection, because this one leads nowhere; `unsure` when it may have
    /// happened.
    pub(crate) fn reopen(&mut self, unsure: bool, incarnation: u64) {
        let mut inner = self.channel.inner.lock();
        let slot = inner.held(self.key);
        slot.unsure |= unsure;
        slot.state = State::Queued;
        let current = inner.incarnation == incarnation && matches!(inner.link, Link::Up);
        let wake = if current && inner.order == Order::Send {
            inner.order = Order::Reopen;
            inner.pump.take()
        } else if current {
            None
        } else {
            inner.enqueue(self.key, &self.channel.counters)
        };
        drop(inner);
        wake_all(wake);
    }

    /// The channel that it is a call of.
    pub(crate) fn channel(&self) -> &'a Channel {
        self.channel
    }

    /// Returns the route of the request.
    pub(crate) fn route(&self) -> Route {
        self.channel.inner.lock().held(self.key).route
    }

    /// Takes a request back that has not happened here, and its number with it; with whom it is of
    /// and what it stands on.
    pub(crate) fn withdraw(self) -> (Cred, Request, Stand) {
        let mut inner = self.channel.inner.lock();
        let slot = inner.held(self.key);
        let request = mem::replace(&mut slot.request, Request::Ping);
        (mem::take(&mut slot.cred), request, slot.stand.clone())
    }

    /// The version of the access cache that the request stands on.
    pub(crate) fn stands_since(&self) -> u64 {
        self.channel.inner.lock().held(self.key).stand.version
    }

    /// Returns what `look` sees in the request.
    pub(crate) fn with_request<T>(&self, look: impl FnOnce(&mut Request) -> T) -> T {
        look(&mut self.channel.inner.lock().held(self.key).request)
    }

    /// The file that the request names by its directory, if it does.
    pub(crate) fn file(&self) -> Option<Ino> {
        self.with_request(|request| inode_routes::file_of(request).map(|file| file.ino))
    }

    /// The number of the open that the request asked for, if it did, and for whom.
    pub(crate) fn opens(&self) -> Option<(u64, u32)> {
        let mut inner = self.channel.inner.lock();
        let slot = inner.held(self.key);
        let number = match &slot.request {
            Request::Open(open) => open.number,
            Request::Create(create) => create.open?,
            Request::Tmpfile(made) => made.number,
            _ => return None,
        };
        Some((number, slot.cred.uid))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut inner = self.channel.inner.lock();
        let ended = matches!(inner.link, Link::Ended(_));
        let slot = inner.held(self.key);
        let wake = match &slot.state {
            State::Queued | State::Sent | State::Answered(_) if slot.binds() && !ended => {
                slot.waker = None;
                inner.orphans.push(self.key);
                inner.pump.take().into_iter().collect()
            }
            State::Queued
            | State::Sent
            | State::Answered(_)
            | State::Failed(_)
            | State::Held
            | State::Free => {
                inner.release(self.key);
                inner.send_queued(&self.channel.counters)
            }
        };
        drop(inner);
        wake_all(wake);
    }
}
