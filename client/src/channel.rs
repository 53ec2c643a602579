//! What callers and the connection to a server share: the calls that wait, and the bytes to send.
//!
//! A call takes a slot, its request is encoded straight into the shared buffer, and its caller waits for
//! the slot to be answered. Slots outlive connections: when one breaks, every call without an answer waits
//! in its slot and is sent again on the next, in the order of its number, so callers never see a
//! connection come or go. `call` decides what an answer means; `connection` moves the bytes; `session`
//! says when there is a connection.
//!
//! A slot: `Queued` → `Sent` → `Answered` → `Held` (its caller has taken the answer) → free, or `Queued`
//! again when the answer was to ask again.
//!
//! Invariants: a slot is sent at most once on one connection. A mutating request keeps its number through
//! all its attempts within one session. Nothing here waits or calls out while the lock is held; wakers
//! are woken after it is released.

use std::{
    collections::VecDeque,
    mem,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, Waker},
};

use base::{ClusterMap, Cred, DirId, Encode as _, FsError, Seq};
use parking_lot::Mutex;
use tokio::sync::Notify;
use wire::{Answer, ReplyHeader, Request};

use crate::{
    Error,
    route::{Place, Router},
    window::Window,
};

/// The call number of frames that no caller waits for, such as `Ping`.
pub(crate) const NOBODY: u64 = u64::MAX;
/// The call number of `Bye`.
pub(crate) const BYE: u64 = u64::MAX - 1;
const INDEX_BITS: u32 = 24;
/// A buffer that has grown beyond this is given back once it is written.
const BUFFER_BYTES_KEPT: usize = 1 << 20;

/// Counts since the client was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Requests that were sent for the first time.
    pub requests: u64,
    /// Requests that were sent again.
    pub retries: u64,
    /// Connections that replaced a lost one.
    pub reconnects: u64,
    /// How often changes were lost that had been answered.
    pub losses: u64,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    retries: AtomicU64,
    reconnects: AtomicU64,
    losses: AtomicU64,
}

/// An answer, and what came with it.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) answer: Answer,
    /// The version of the server's invalidation list.
    pub(crate) version: u64,
    /// The run of the server that answered.
    pub(crate) incarnation: u64,
    /// The session in which it was answered, counted from 0.
    pub(crate) life: u64,
}

/// A new connection, as the session opened it.
#[derive(Debug)]
pub(crate) struct Attach {
    pub(crate) map: ClusterMap,
    pub(crate) incarnation: u64,
    /// It is another session than before: what was under way in the old one is lost.
    pub(crate) lost: bool,
    /// The server has lost changes that were answered.
    pub(crate) forgot: bool,
}

/// What the connection has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Send what was gathered.
    Send,
    /// Send what was gathered and end: the client was closed.
    Close,
    /// Give this connection up and open another.
    Reopen,
}

/// The shared state of all calls to one server.
pub(crate) struct Channel {
    inner: Mutex<Inner>,
    counters: Counters,
    ended: Notify,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    fn call(self) -> u64 {
        u64::from(self.generation) << INDEX_BITS | u64::from(self.index)
    }
}

enum Link {
    Down,
    Up,
    Ended(Error),
}

struct Inner {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Calls that wait for a connection, or for room in the window.
    queued: VecDeque<Key>,
    /// Mutating calls whose callers went away; somebody else must see them through.
    orphans: Vec<Key>,
    out: Vec<u8>,
    link: Link,
    order: Order,
    pump: Option<Waker>,
    window: Window,
    router: Router,
    /// Counts sessions: a number belongs to the session it was taken in.
    life: u64,
    incarnation: u64,
    /// The last change that succeeded in this session, by the order of answers; 0 when there is none.
    answered: Seq,
    arrivals: u64,
}

#[expect(
    clippy::large_enum_variant,
    reason = "slots are reused; a box would be an allocation a call"
)]
enum State {
    Free,
    Queued,
    Sent,
    Answered(Answered),
    Failed(Error),
    Held,
}

struct Slot {
    generation: u32,
    state: State,
    request: Request,
    cred: Cred,
    home: DirId,
    /// Version of the access cache that the request stands on.
    stand: u64,
    /// Zero: no number, or none yet.
    seq: Seq,
    /// The session in which the call began, or took its number.
    life: u64,
    attempts: u32,
    /// An attempt was sent whose answer never came: it may have happened.
    unsure: bool,
    arrival: u64,
    waker: Option<Waker>,
}

impl Channel {
    pub(crate) fn new() -> Channel {
        let inner = Inner {
            slots: Vec::new(),
            free: Vec::new(),
            queued: VecDeque::new(),
            orphans: Vec::new(),
            out: Vec::new(),
            link: Link::Down,
            order: Order::Send,
            pump: None,
            window: Window::new(),
            router: Router::new(),
            life: 0,
            incarnation: 0,
            answered: Seq(0),
            arrivals: 0,
        };
        Channel { inner: Mutex::new(inner), counters: Counters::default(), ended: Notify::new() }
    }

    /// Starts a call: the request is sent now, or as soon as there is a connection.
    pub(crate) fn begin(
        &self,
        cred: &Cred,
        home: DirId,
        request: Request,
        stand: u64,
    ) -> Ticket<'_> {
        let mut inner = self.inner.lock();
        let key = inner.fill(cred, home, request, stand);
        let wake = inner.enqueue(key, &self.counters);
        drop(inner);
        wake_all(wake);
        Ticket { channel: self, key }
    }

    /// Takes over a call whose caller went away.
    pub(crate) fn adopt(&self, key: Key) -> Ticket<'_> {
        Ticket { channel: self, key }
    }

    /// Takes in a newer map; `false` when it was known.
    pub(crate) fn learn(&self, map: ClusterMap) -> bool {
        self.inner.lock().router.learn(map)
    }

    /// The last change that succeeded; 0 when there is none.
    pub(crate) fn answered(&self) -> Seq {
        self.inner.lock().answered
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            requests: self.counters.requests.load(Ordering::Relaxed),
            retries: self.counters.retries.load(Ordering::Relaxed),
            reconnects: self.counters.reconnects.load(Ordering::Relaxed),
            losses: self.counters.losses.load(Ordering::Relaxed),
        }
    }

    /// Asks the connection to end, now or as soon as there is one.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.order = Order::Close;
        let pump = inner.pump.take();
        drop(inner);
        wake_all(pump);
    }

    /// Whether the client was closed.
    pub(crate) fn closing(&self) -> bool {
        self.inner.lock().order == Order::Close
    }

    /// Ends every call, now and later, with `error`.
    pub(crate) fn end(&self, error: &Error) {
        let mut inner = self.inner.lock();
        inner.link = Link::Ended(error.clone());
        let wakers = inner.end_all(error);
        drop(inner);
        wake_all(wakers);
        self.ended.notify_waiters();
    }

    /// Waits until every call has ended for good.
    pub(crate) async fn ended(&self) {
        loop {
            let ended = self.ended.notified();
            if matches!(self.inner.lock().link, Link::Ended(_)) {
                return;
            }
            ended.await;
        }
    }

    /// A connection is there: everything without an answer is sent on it.
    pub(crate) fn attach(&self, attach: Attach) {
        let mut inner = self.inner.lock();
        if inner.incarnation != 0 {
            self.counters.reconnects.fetch_add(1, Ordering::Relaxed);
        }
        if attach.lost {
            inner.life += 1;
            inner.window = Window::new();
        }
        if attach.forgot {
            self.counters.losses.fetch_add(1, Ordering::Relaxed);
        }
        if attach.lost || attach.forgot {
            inner.answered = Seq(0);
        }
        inner.incarnation = attach.incarnation;
        inner.router.learn(attach.map);
        inner.link = Link::Up;
        if inner.order == Order::Reopen {
            inner.order = Order::Send;
        }
        inner.queued.clear();
        inner.out.clear();
        let mut wakers = Vec::new();
        for key in inner.waiting_in_order() {
            wakers.extend(inner.enqueue(key, &self.counters));
        }
        drop(inner);
        wake_all(wakers);
    }

    /// The connection is gone: what was sent on it without an answer may have happened.
    pub(crate) fn detach(&self) {
        let mut inner = self.inner.lock();
        inner.link = Link::Down;
        inner.out.clear();
        for slot in &mut inner.slots {
            if matches!(slot.state, State::Sent) {
                slot.state = State::Queued;
                slot.unsure = true;
            }
        }
    }

    /// Swaps what was gathered into `taken`, which is empty, and says what to do with it. With nothing to
    /// do, `cx` is woken when there is.
    pub(crate) fn take_out(&self, taken: &mut Vec<u8>, cx: &Context<'_>) -> Order {
        let mut inner = self.inner.lock();
        mem::swap(&mut inner.out, taken);
        if inner.out.capacity() > BUFFER_BYTES_KEPT {
            inner.out = Vec::new();
        }
        inner.watch(cx);
        inner.order
    }

    /// Whether there is something to send or to do; `cx` is woken when there is more.
    pub(crate) fn watch_out(&self, cx: &Context<'_>) -> bool {
        let mut inner = self.inner.lock();
        inner.watch(cx);
        !inner.out.is_empty() || inner.order != Order::Send
    }

    /// Appends a request that nobody waits for.
    pub(crate) fn put_unheard(&self, call: u64, request: &Request) {
        let mut inner = self.inner.lock();
        let place = inner.router.place(DirId::ROOT, 0);
        let unanswered = inner.window.unanswered();
        let cred = Cred::default();
        let put = put_request(&mut inner.out, call, place, Seq(0), unanswered, 0, &cred, request);
        debug_assert!(put, "it is a few bytes");
    }

    /// Calls whose callers went away since the last time.
    pub(crate) fn take_orphans(&self) -> Vec<Key> {
        mem::take(&mut self.inner.lock().orphans)
    }

    /// Hands answers to their calls; `wakers` is room to work in, empty before and after.
    pub(crate) fn deliver(
        &self,
        replies: &mut Vec<(ReplyHeader, Answer)>,
        wakers: &mut Vec<Waker>,
    ) {
        let mut inner = self.inner.lock();
        for (header, answer) in replies.drain(..) {
            wakers.extend(inner.deliver(header, answer));
        }
        wakers.extend(inner.send_queued(&self.counters));
        drop(inner);
        for waker in wakers.drain(..) {
            waker.wake();
        }
    }
}

fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        waker.wake();
    }
}

impl Inner {
    fn fill(&mut self, cred: &Cred, home: DirId, request: Request, stand: u64) -> Key {
        self.arrivals += 1;
        let arrival = self.arrivals;
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.state = State::Queued;
            slot.request = request;
            slot.cred.uid = cred.uid;
            slot.cred.gid = cred.gid;
            slot.cred.groups.clear();
            slot.cred.groups.extend_from_slice(&cred.groups);
            slot.home = home;
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
            home,
            stand,
            seq: Seq(0),
            life: self.life,
            attempts: 0,
            unsure: false,
            arrival,
            waker: None,
        });
        Key { index, generation: 0 }
    }

    fn slot(&mut self, key: Key) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(key.index as usize)?;
        (slot.generation == key.generation).then_some(slot)
    }

    fn held(&mut self, key: Key) -> &mut Slot {
        self.slot(key).expect("a slot is freed by its ticket only")
    }

    fn release(&mut self, key: Key) {
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
    fn enqueue(&mut self, key: Key, counters: &Counters) -> Option<Waker> {
        let life = self.life;
        let ended = match &self.link {
            Link::Ended(error) => Some(error.clone()),
            Link::Down | Link::Up => None,
        };
        let up = matches!(self.link, Link::Up);
        let slot = self.held(key);
        slot.state = State::Queued;
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
            slot.seq = seq;
        }
        let place = self.router.place(slot.home, 0);
        let first = self.out.is_empty();
        let put = put_request(
            &mut self.out,
            key.call(),
            place,
            slot.seq,
            self.window.unanswered(),
            slot.stand,
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
    fn send_queued(&mut self, counters: &Counters) -> Vec<Waker> {
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

    fn deliver(&mut self, header: ReplyHeader, answer: Answer) -> Option<Waker> {
        let mask = (1 << INDEX_BITS) - 1;
        let index = u32::try_from(header.call & mask).ok()?;
        let generation = u32::try_from(header.call >> INDEX_BITS).ok()?;
        let (incarnation, life) = (self.incarnation, self.life);
        let slot = self.slot(Key { index, generation })?;
        if !matches!(slot.state, State::Sent) {
            return None;
        }
        let (last, done) = match &answer {
            Answer::Done(_) => (true, true),
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
            }
        }
        waker
    }

    /// Every call without an answer: numbered ones first, in order, then as they came.
    fn waiting_in_order(&self) -> Vec<Key> {
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

    fn end_all(&mut self, error: &Error) -> Vec<Waker> {
        let waiting =
            self.slots.iter_mut().filter(|slot| matches!(slot.state, State::Queued | State::Sent));
        waiting.filter_map(|slot| slot.fail(error.clone())).collect()
    }

    fn watch(&mut self, cx: &Context<'_>) {
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

    /// Whether it must be seen through even when its caller does not wait for it.
    fn binds(&self) -> bool {
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
            | Request::Release(_)
            | Request::Lock(_)
            | Request::LockTest(_)
            | Request::LockCancel(_)
    )
}

/// Appends a request frame: a [`wire::RequestHeader`] and the request, without making a header first. `false`
/// when it is too long to send.
#[expect(clippy::too_many_arguments, reason = "they are the fields of a header")]
fn put_request(
    out: &mut Vec<u8>,
    call: u64,
    place: Place,
    seq: Seq,
    unanswered: Seq,
    stand: u64,
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

/// A caller's hold on its slot. Dropping it ends the call: one that was sent and changes something is
/// handed on as an orphan, any other is forgotten.
pub(crate) struct Ticket<'a> {
    channel: &'a Channel,
    key: Key,
}

impl Ticket<'_> {
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

    /// Asks again on another connection, because this one leads nowhere; `unsure` when it may have happened.
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
