//! The slots of a channel: the life of each call, and the bytes it becomes.
//!
//! A slot: `Queued` → `Sent` → `Answered` → `Held` (its caller has taken the answer) → free, or
//! `Queued` again when the answer was to ask again. Only `channel` and its tickets come here, with
//! the lock held; nothing here wakes anybody: whom to wake is returned.

use std::{
    collections::VecDeque,
    mem,
    sync::atomic::Ordering,
    task::{Context, Waker},
};

use base::{Cred, Encode as _, FsError, Seq};
use tokio::time::Instant;
use wire::{Answer, ReplyHeader, Request, Retry, Stand};

use super::{Answered, Counters, Key, Order, stable::Changes};
use crate::{
    Error,
    route::{Place, Route, Router},
    window::Window,
};

pub(super) const INDEX_BITS: u32 = 24;

pub(super) enum Link {
    Down,
    Up,
    Ended(Error),
}

pub(super) struct Inner {
    pub(super) slots: Vec<Slot>,
    pub(super) free: Vec<u32>,
    /// Calls that wait for a connection, or for room in the window.
    pub(super) queued: VecDeque<Key>,
    /// Mutating calls whose callers went away; somebody else must see them through.
    pub(super) orphans: Vec<Key>,
    pub(super) out: Vec<u8>,
    pub(super) link: Link,
    /// The number of the server, if it has left the cluster.
    pub(super) left: Option<u16>,
    /// Whether the server has shards, by the newest map.
    pub(super) has_shards: bool,
    pub(super) order: Order,
    pub(super) pump: Option<Waker>,
    pub(super) window: Window,
    pub(super) router: Router,
    /// Counts sessions: a number belongs to the session it was taken in.
    pub(super) life: u64,
    pub(super) incarnation: u64,
    /// The last change that succeeded in this session, by the order of answers; 0 when there is
    /// none.
    pub(super) answered: Seq,
    pub(super) changes: Changes,
    /// The server keeps the session until then, by this machine's clock.
    pub(super) leased_until: Option<Instant>,
    /// Counts how often the server was heard of.
    pub(super) heard: u64,
    /// The server did not answer when it was last waited for, and was not heard of since.
    pub(super) silent: bool,
    pub(super) arrivals: u64,
}

#[expect(
    clippy::large_enum_variant,
    reason = "slots are reused; a box would be an allocation a call"
)]
pub(super) enum State {
    Free,
    Queued,
    Sent,
    Answered(Answered),
    Failed(Error),
    Held,
}

pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) state: State,
    pub(super) request: Request,
    pub(super) cred: Cred,
    pub(super) route: Route,
    /// The part of the access cache that the request stands on.
    pub(super) stand: Stand,
    /// Zero: no number, or none yet.
    pub(super) seq: Seq,
    /// The session in which the call began, or took its number.
    pub(super) life: u64,
    pub(super) attempts: u32,
    /// An attempt was sent whose answer never came: it may have happened.
    pub(super) unsure: bool,
    /// An attempt with this number was sent while the server had shards.
    pub(super) met_shards: bool,
    pub(super) arrival: u64,
    pub(super) waker: Option<Waker>,
}

impl Inner {
    pub(super) fn new() -> Inner {
        Inner {
            slots: Vec::new(),
            free: Vec::new(),
            queued: VecDeque::new(),
            orphans: Vec::new(),
            out: Vec::new(),
            link: Link::Down,
            left: None,
            has_shards: true,
            order: Order::Send,
            pump: None,
            window: Window::new(),
            router: Router::new(),
            life: 0,
            incarnation: 0,
            answered: Seq(0),
            changes: Changes::default(),
            leased_until: None,
            heard: 0,
            silent: false,
            arrivals: 0,
        }
    }
}

impl Inner {
    /// The server has said something.
    pub(super) fn hear(&mut self) {
        self.heard += 1;
        self.silent = false;
    }

    pub(super) fn fill(
        &mut self,
        cred: &Cred,
        route: Route,
        request: Request,
        stand: Stand,
    ) -> Key {
        self.arrivals += 1;
        let arrival = self.arrivals;
        // The way is of no use without a version.
        let stand = match stand.is_none() {
            true => Stand { held: stand.held, ..Stand::NONE },
            false => stand,
        };
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.state = State::Queued;
            slot.request = request;
            slot.cred.uid = cred.uid;
            slot.cred.gid = cred.gid;
            slot.cred.groups.clear();
            slot.cred.groups.extend_from_slice(&cred.groups);
            slot.route = route;
            slot.stand = stand;
            slot.arrival = arrival;
            slot.life = self.life;
            return Key { index, generation: slot.generation };
        }
        let index = u32::try_from(self.slots.len()).ok().filter(|index| index >> INDEX_BITS == 0);
        let index = index.expect("fewer than 16 million calls at a time fit in memory");
        self.slots.push(Slot {
            generation: 0,
            state: State::Queued,
            request,
            cred: cred.clone(),
            route,
            stand,
            seq: Seq(0),
            life: self.life,
            attempts: 0,
            unsure: false,
            met_shards: false,
            arrival,
            waker: None,
        });
        Key { index, generation: 0 }
    }

    pub(super) fn slot(&mut self, key: Key) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(key.index as usize)?;
        (slot.generation == key.generation).then_some(slot)
    }

    pub(super) fn held(&mut self, key: Key) -> &mut Slot {
        self.slot(key).expect("a slot is freed by its ticket only")
    }

    pub(super) fn release(&mut self, key: Key) {
        let window_seq = {
            let life = self.life;
            let slot = self.held(key);
            slot.generation = slot.generation.wrapping_add(1);
            slot.state = State::Free;
            slot.request = Request::Ping;
            slot.attempts = 0;
            slot.unsure = false;
            slot.waker = None;
            let seq = mem::take(&mut slot.seq);
            (seq != Seq(0) && slot.life == life).then_some(seq)
        };
        if let Some(seq) = window_seq {
            self.window.finish(seq);
        }
        self.free.push(key.index);
    }

    /// Sends a call, or keeps it until it can be sent; whom to wake.
    pub(super) fn enqueue(&mut self, key: Key, counters: &Counters) -> Option<Waker> {
        let life = self.life;
        let ended = match &self.link {
            Link::Ended(error) => Some(error.clone()),
            Link::Down | Link::Up => None,
        };
        let (up, left) = (matches!(self.link, Link::Up), self.left);
        let slot = self.held(key);
        slot.state = State::Queued;
        if let Some(server) = left {
            return slot.leaves(server);
        }
        if slot.life != life {
            let may_have_happened = slot.seq != Seq(0) && slot.unsure;
            if may_have_happened || of_open_file(&slot.request) {
                return slot.fail(Error::SessionLost);
            }
            slot.seq = Seq(0);
            slot.life = life;
        }
        if let Some(error) = ended {
            return slot.fail(error);
        }
        if up {
            return self.send(key, counters);
        }
        self.queued.push_back(key);
        None
    }

    /// Encodes a call's request, unless the window is full; whom to wake.
    fn send(&mut self, key: Key, counters: &Counters) -> Option<Waker> {
        let slot = &mut self.slots[key.index as usize];
        if slot.seq == Seq(0) && slot.request.mutates() {
            let Some(seq) = self.window.take() else {
                self.queued.push_back(key);
                return None;
            };
            (slot.seq, slot.met_shards) = (seq, false);
        }
        slot.met_shards |= self.has_shards;
        let place = self.router.place(slot.route);
        let first = self.out.is_empty();
        let put = put_request(
            &mut self.out,
            key.call(),
            place,
            slot.seq,
            self.window.unanswered(),
            &slot.stand,
            &slot.cred,
            &slot.request,
        );
        if !put {
            return slot.fail(Error::Fs(FsError::TooBig));
        }
        let counter = if slot.attempts == 0 { &counters.requests } else { &counters.retries };
        counter.fetch_add(1, Ordering::Relaxed);
        slot.attempts = slot.attempts.saturating_add(1);
        slot.state = State::Sent;
        if first { self.pump.take() } else { None }
    }

    /// Sends what waits for room in the window.
    pub(super) fn send_queued(&mut self, counters: &Counters) -> Vec<Waker> {
        let mut wake = Vec::new();
        if !matches!(self.link, Link::Up) {
            return wake;
        }
        for _ in 0..self.queued.len() {
            let Some(key) = self.queued.pop_front() else { break };
            if !self.slot(key).is_some_and(|slot| matches!(slot.state, State::Queued)) {
                continue;
            }
            wake.extend(self.send(key, counters));
            if self.slot(key).is_some_and(|slot| matches!(slot.state, State::Queued)) {
                // The window is full again: it went to the back, where it is first in turn.
                self.queued.rotate_right(1);
                break;
            }
        }
        wake
    }

    pub(super) fn deliver(&mut self, header: ReplyHeader, answer: Answer) -> Option<Waker> {
        let mask = (1 << INDEX_BITS) - 1;
        let index = u32::try_from(header.call & mask).ok()?;
        let generation = u32::try_from(header.call >> INDEX_BITS).ok()?;
        let (incarnation, life) = (self.incarnation, self.life);
        let slot = self.slot(Key { index, generation })?;
        if !matches!(slot.state, State::Sent) {
            return None;
        }
        let (last, done) = match &answer {
            Answer::Done(_) | Answer::Noted(_) | Answer::Granted(_) => (true, true),
            Answer::Failed(_) | Answer::Refused(_) => (true, false),
            Answer::Retry(_) | Answer::Halted => (false, false),
        };
        let version = header.cache_version;
        slot.state = State::Answered(Answered { answer, version, incarnation, life });
        let waker = slot.waker.take();
        if last && slot.seq != Seq(0) && slot.life == life {
            let seq = mem::take(&mut slot.seq);
            self.window.finish(seq);
            if done {
                self.answered = seq;
                self.changes.succeeded();
            }
        }
        waker
    }

    /// Every call without an answer: numbered ones first, in order, then as they came.
    pub(super) fn waiting_in_order(&self) -> Vec<Key> {
        let waiting = self.slots.iter().enumerate();
        let mut waiting: Vec<(bool, Seq, u64, Key)> = waiting
            .filter(|(_, slot)| matches!(slot.state, State::Queued | State::Sent))
            .map(|(index, slot)| {
                let index = u32::try_from(index).expect("slots are counted in 24 bits");
                let key = Key { index, generation: slot.generation };
                (slot.seq == Seq(0), slot.seq, slot.arrival, key)
            })
            .collect();
        waiting.sort_unstable_by_key(|(unnumbered, seq, arrival, _)| (*unnumbered, *seq, *arrival));
        waiting.into_iter().map(|(_, _, _, key)| key).collect()
    }

    pub(super) fn end_all(&mut self, error: &Error) -> Vec<Waker> {
        let waiting =
            self.slots.iter_mut().filter(|slot| matches!(slot.state, State::Queued | State::Sent));
        waiting.filter_map(|slot| slot.fail(error.clone())).collect()
    }

    /// Whether the server has shards, by a newer map. If so, it may have them for longer.
    pub(super) fn takes_shards(&mut self, has_shards: bool) {
        self.has_shards = has_shards;
        if has_shards {
            self.slots.iter_mut().for_each(|slot| slot.met_shards = true);
        }
    }

    /// The server has left, and serves nobody.
    pub(super) fn leave(&mut self, server: u16) -> Vec<Waker> {
        self.left = Some(server);
        self.link = Link::Ended(Error::Closed);
        let waiting =
            self.slots.iter_mut().filter(|slot| matches!(slot.state, State::Queued | State::Sent));
        let wakers = waiting.filter_map(|slot| {
            slot.unsure |= matches!(slot.state, State::Sent);
            slot.leaves(server)
        });
        wakers.collect()
    }

    pub(super) fn watch(&mut self, cx: &Context<'_>) {
        match &mut self.pump {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.pump = Some(cx.waker().clone()),
        }
    }
}

impl Slot {
    fn fail(&mut self, error: Error) -> Option<Waker> {
        self.state = State::Failed(error);
        self.waker.take()
    }

    /// The server has left: the newest map says where to ask, if nothing has happened there.
    ///
    /// Race: an attempt may have happened, before its shards left it, whose answer was lost. The
    /// server has stayed for the time of a lease, so a client that it had a session of has come
    /// again, and has its answer. By the time that a map gives it no shards it has stopped: what
    /// was sent to it since has not happened, if no later map gave it some.
    fn leaves(&mut self, server: u16) -> Option<Waker> {
        if self.seq != Seq(0) && self.unsure && self.met_shards {
            return self.fail(Error::SessionLost);
        }
        let answer = match (&self.route, &self.request) {
            // The path is resolved anew.
            (Route::Server(_), Request::Speculate(_)) => Answer::Retry(Retry::StaleDir),
            (Route::Server(_), _) => {
                let reason = format!("server {server} has left the cluster");
                return self.fail(Error::Refused(reason));
            }
            _ => Answer::Retry(Retry::Busy),
        };
        let answered = Answered { answer, version: 0, incarnation: 0, life: self.life };
        self.state = State::Answered(answered);
        self.waker.take()
    }

    /// Whether it must be seen through even when its caller does not wait for it.
    pub(super) fn binds(&self) -> bool {
        let opens = matches!(self.request, Request::Open(_));
        self.attempts > 0 && (opens || self.request.mutates())
    }
}

/// Whether a request is about what the session has open, and means nothing to another one.
fn of_open_file(request: &Request) -> bool {
    matches!(
        request,
        Request::Write(_)
            | Request::Allocate(_)
            | Request::Seek(_)
            | Request::BlockMap(_)
            | Request::BlockPut(_)
            | Request::BlockGet(_)
            | Request::BlockDrop(_)
            | Request::SignBlocks(_)
            | Request::Release(_)
            | Request::Lock(_)
            | Request::LockTest(_)
            | Request::LockCancel(_)
    )
}

/// Appends a request frame: a [`wire::RequestHeader`] and the request, without making a header
/// first. `false` when it is too long to send.
#[expect(clippy::too_many_arguments, reason = "they are the fields of a header")]
pub(super) fn put_request(
    out: &mut Vec<u8>,
    call: u64,
    place: Place,
    seq: Seq,
    unanswered: Seq,
    stand: &Stand,
    cred: &Cred,
    request: &Request,
) -> bool {
    wire::frame::try_put_frame(out, |out| {
        call.encode(out);
        place.shard.encode(out);
        place.epoch.encode(out);
        seq.encode(out);
        unanswered.encode(out);
        stand.encode(out);
        cred.encode(out);
        request.encode(out);
    })
}
