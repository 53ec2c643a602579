//! State that callers and the connection to one server share: the waiting calls, and the bytes to
//! send.
//!
//! A call takes a slot, its request is encoded straight into the shared buffer, and its caller
//! waits for the slot to be answered. Slots outlive connections: when one breaks, every call
//! without an answer waits in its slot and is sent again on the next, in the order of its number,
//! so callers never see a connection come or go. `call` decides what an answer means; `connection`
//! moves the bytes; `session` says when there is a connection; `channels` has the channels to all
//! servers.
//!
//! * `slots`: the life of a call. `ticket`: its caller's hold on it. `stable`: which changes a
//!   power cut may take.
//!
//! Invariants: a slot is sent at most once on one connection. A mutating request keeps its number
//! through all its attempts within one session. Nothing here waits or calls out while the lock is
//! held; wakers are woken after it is released.

mod slots;
mod stable;
mod ticket;

use std::{
    mem,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Waker},
    time::Duration,
};

use base::{ClusterMap, Cred, Ino, Seq};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use wire::{Answer, ReplyHeader, Request, Stand, Statfs};

use self::slots::{INDEX_BITS, Inner, Link, State, put_request};
pub(crate) use self::ticket::Ticket;
use crate::{Error, route::Route, window::Window};

/// The call number of frames that no caller waits for, such as `Ping`.
pub(crate) const NOBODY: u64 = u64::MAX;
/// The call number of `Bye`.
pub(crate) const BYE: u64 = u64::MAX - 1;
/// The call number of a `Ping` that is sent to see whether the server is there.
const PROBE: u64 = u64::MAX - 2;
/// A server that is waited for is silent when nothing was heard of it for twice as long.
const SILENCE_HALF: Duration = Duration::from_millis(250);
/// A buffer that has grown beyond this is given back once it is written.
const BUFFER_BYTES_KEPT: usize = 1 << 20;

/// Interval at which a server that must be up is asked whether it is.
const PRESENCE_INTERVAL: Duration = Duration::from_millis(500);

/// Number of wrong partitions, per call, that the counters tell apart.
pub(crate) const PROBES_COUNTED: usize = 4;

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
    /// Sessions that a server had ended when the client came back to it.
    pub sessions_lost: u64,
    /// Paths that were resolved, again where one had changed.
    pub resolutions: u64,
    /// Rounds of guesses.
    pub speculations: u64,
    /// Directories whose id was not the predicted one.
    pub mispredictions: u64,
    /// Requests that were refused because they stood on an outdated cache.
    pub stale_caches: u64,
    /// Paths that the server of their last directory looked up alone.
    pub fast_paths: u64,
    /// Paths that such a server was asked for and did not find so: they were resolved otherwise.
    pub slow_paths: u64,
    /// Requests that were sent to a partition of a directory that does not have what they are
    /// about.
    pub wrong_partitions: u64,
    /// Calls in directories of several partitions, by how many wrong ones each was sent to: none,
    /// one, two, more.
    pub probes: [u64; PROBES_COUNTED],
}

impl Stats {
    /// Returns the sum of both counts.
    #[must_use]
    pub(crate) fn and(self, other: Stats) -> Stats {
        Stats {
            requests: self.requests + other.requests,
            retries: self.retries + other.retries,
            reconnects: self.reconnects + other.reconnects,
            losses: self.losses + other.losses,
            sessions_lost: self.sessions_lost + other.sessions_lost,
            ..self
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    retries: AtomicU64,
    reconnects: AtomicU64,
    losses: AtomicU64,
    sessions_lost: AtomicU64,
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
    pub(crate) incarnation: u64,
    /// Whether this is another session than before: calls under way in the old one are lost.
    pub(crate) lost: bool,
    /// The server has lost changes that were answered.
    pub(crate) forgot: bool,
    /// The commit interval of the server, where it is one of several.
    pub(crate) commit_interval: Option<Duration>,
}

/// Next task of the connection.
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
    /// The server's position in the cluster map.
    pub(crate) server: u16,
    inner: Mutex<Inner>,
    counters: Counters,
    ended: Notify,
    /// The space and inodes that the server told of last.
    pub(crate) statfs: Mutex<Option<Statfs>>,
    /// The server is somewhere else now, or the client was closed: an attempt to connect is not
    /// waited for.
    pub(crate) moved: Notify,
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

impl Channel {
    /// An empty channel to the server at this position of the map.
    pub(crate) fn new(server: u16) -> Channel {
        Channel {
            server,
            inner: Mutex::new(Inner::new()),
            counters: Counters::default(),
            ended: Notify::new(),
            statfs: Mutex::new(None),
            moved: Notify::new(),
        }
    }

    /// Starts a call: the request is sent now, or as soon as there is a connection.
    pub(crate) fn begin(
        &self,
        cred: &Cred,
        route: Route,
        request: Request,
        stand: Stand,
    ) -> Ticket<'_> {
        let mut inner = self.inner.lock();
        let key = inner.fill(cred, route, request, stand);
        let wake = inner.enqueue(key, &self.counters);
        drop(inner);
        wake_all(wake);
        Ticket { channel: self, key }
    }

    /// Takes over a call whose caller went away.
    pub(crate) fn adopt(&self, key: Key) -> Ticket<'_> {
        Ticket { channel: self, key }
    }

    /// Takes in a newer map.
    pub(crate) fn learn(&self, map: &ClusterMap) {
        let mut inner = self.inner.lock();
        if inner.router.learn(map) {
            inner.takes_shards(map.shards.contains(&self.server));
        }
    }

    /// The run of the server that the last connection was to; 0 before the first.
    pub(crate) fn incarnation(&self) -> u64 {
        self.inner.lock().incarnation
    }

    /// Whether there is a connection.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.inner.lock().link, Link::Up)
    }

    /// Gives up the connection, or the attempt to have one, because the server is somewhere else
    /// now.
    pub(crate) fn redial(&self) {
        let mut inner = self.inner.lock();
        if !matches!(inner.link, Link::Up) {
            self.moved.notify_one();
        } else if inner.order == Order::Send {
            inner.order = Order::Reopen;
            let pump = inner.pump.take();
            drop(inner);
            wake_all(pump);
        }
    }

    /// How many changes have succeeded, if no sync has made all of them stable.
    pub(crate) fn unsynced(&self) -> Option<u64> {
        self.inner.lock().changes.unsynced()
    }

    /// Whether some changes that have succeeded are not taken to be stable.
    pub(crate) fn any_unstable(&self) -> bool {
        self.inner.lock().changes.any_unstable()
    }

    /// A sync has made changes up to this count stable.
    pub(crate) fn synced(&self, changes: u64) {
        self.inner.lock().changes.are_synced(changes);
    }

    /// The server has changed these files and directories together with other servers.
    pub(crate) fn shares(&self, inos: &[Ino]) {
        self.inner.lock().changes.share(inos);
    }

    /// Whether the server has changed one of these together with other servers, and may lose that
    /// change.
    pub(crate) fn may_lose_of(&self, inos: &[Ino]) -> bool {
        self.inner.lock().changes.shares(inos)
    }

    /// All that this client did before `stamp` is stable at the server.
    pub(crate) fn is_stable_to(&self, stamp: u64) {
        self.inner.lock().changes.is_stable_to(stamp);
    }

    /// The highest count that [`Channel::is_stable_to`] was told.
    pub(crate) fn stable_to(&self) -> u64 {
        self.inner.lock().changes.stamp()
    }

    /// The server has heard of this client at `asked`, or later, and keeps its session for `lease`
    /// from then.
    pub(crate) fn extend_lease(&self, asked: Instant, lease: Duration) {
        // The clocks of two machines do not run equally fast.
        let until = asked + lease - lease / 8;
        let mut inner = self.inner.lock();
        inner.leased_until = inner.leased_until.max(Some(until));
    }

    /// Whether the server still keeps the session for certain, if it ever did.
    pub(crate) fn is_leased(&self, now: Instant) -> bool {
        self.inner.lock().leased_until.is_none_or(|until| now < until)
    }

    /// Returns when the server is silent: at once, if it was when it was last waited for and was
    /// not heard of since. A server that works on something for long is not silent.
    pub(crate) async fn silence(&self) {
        let mut heard = self.inner.lock().heard;
        let mut asked = false;
        while !self.inner.lock().silent {
            if asked {
                self.probe();
            }
            sleep(SILENCE_HALF).await;
            let mut inner = self.inner.lock();
            inner.silent |= asked && inner.heard == heard;
            // The server is asked only when it has said nothing by itself.
            asked = inner.heard == heard;
            heard = inner.heard;
        }
    }

    /// Returns when the server was silent for `patience`, although it was asked.
    pub(crate) async fn gone(&self, patience: Duration) {
        let (mut heard, mut since) = (self.inner.lock().heard, Instant::now());
        while since.elapsed() < patience {
            sleep(PRESENCE_INTERVAL).await;
            self.probe();
            let now = self.inner.lock().heard;
            if now != heard {
                (heard, since) = (now, Instant::now());
            }
        }
    }

    /// Asks the server whether it is there, if there is a connection.
    fn probe(&self) {
        let mut inner = self.inner.lock();
        if !matches!(inner.link, Link::Up) {
            return;
        }
        put_unheard(&mut inner, self.server, PROBE, &Request::Ping);
        let pump = inner.pump.take();
        drop(inner);
        wake_all(pump);
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
            sessions_lost: self.counters.sessions_lost.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }

    /// Asks the connection to end, now or as soon as there is one.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.order = Order::Close;
        let pump = inner.pump.take();
        drop(inner);
        wake_all(pump);
        self.moved.notify_one();
    }

    /// The server has left the cluster: what waits for it is asked elsewhere, or fails.
    pub(crate) fn leave(&self) {
        let mut inner = self.inner.lock();
        if inner.left.is_some() {
            return;
        }
        inner.order = Order::Close;
        let wakers = inner.leave(self.server);
        let pump = inner.pump.take();
        drop(inner);
        wake_all(wakers);
        wake_all(pump);
        self.moved.notify_one();
        self.ended.notify_waiters();
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
        if inner.left.is_some() {
            return;
        }
        if inner.incarnation != 0 {
            self.counters.reconnects.fetch_add(1, Ordering::Relaxed);
        }
        if attach.lost {
            self.counters.sessions_lost.fetch_add(1, Ordering::Relaxed);
            inner.life += 1;
            inner.window = Window::new();
        }
        if attach.forgot {
            self.counters.losses.fetch_add(1, Ordering::Relaxed);
        }
        if attach.lost || attach.forgot {
            inner.answered = Seq(0);
        }
        let another = inner.incarnation != attach.incarnation;
        inner.changes.connected(another, attach.commit_interval);
        inner.hear();
        inner.incarnation = attach.incarnation;
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
        if inner.left.is_some() {
            return;
        }
        inner.link = Link::Down;
        inner.out.clear();
        for slot in &mut inner.slots {
            if matches!(slot.state, State::Sent) {
                slot.state = State::Queued;
                slot.unsure = true;
            }
        }
    }

    /// Swaps what was gathered into `taken`, which is empty, and says what to do with it. With
    /// nothing to do, `cx` is woken when there is.
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

    /// Whether calls were sent that have no answer yet.
    pub(crate) fn has_sent(&self) -> bool {
        let inner = self.inner.lock();
        inner.slots.iter().any(|slot| matches!(slot.state, State::Sent))
    }

    /// Appends a request whose answer no caller waits for.
    pub(crate) fn put_unheard(&self, call: u64, request: &Request) {
        put_unheard(&mut self.inner.lock(), self.server, call, request);
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
        let any = !replies.is_empty();
        // A server that has halted answers, and what it had not synced is lost.
        let serves = any && !replies.iter().any(|(_, answer)| matches!(answer, Answer::Halted));
        for (header, answer) in replies.drain(..) {
            wakers.extend(inner.deliver(header, answer));
        }
        if any {
            inner.hear();
        }
        if serves {
            inner.changes.heard(Instant::now);
        }
        wakers.extend(inner.send_queued(&self.counters));
        drop(inner);
        for waker in wakers.drain(..) {
            waker.wake();
        }
    }
}

fn put_unheard(inner: &mut Inner, server: u16, call: u64, request: &Request) {
    let place = inner.router.place(Route::Server(server));
    let unanswered = inner.window.unanswered();
    let cred = Cred::default();
    let put =
        put_request(&mut inner.out, call, place, Seq(0), unanswered, &Stand::NONE, &cred, request);
    debug_assert!(put, "it is a few bytes");
}

fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        waker.wake();
    }
}
