//! Watching a directory: the change feeds of all servers as one stream.
//!
//! Each server is asked for itself, and its changes come in its order. Those of several servers are
//! merged by their times: a change waits for news of the others, but not for long. A server that is
//! away holds nobody up: its changes come when it is back. A [`Position`] has the place in each
//! server's feed, so a program that stores it goes on after a restart with what it has missed.
//!
//! Always true: the position has everything that the stream has given, and nothing after it.

use std::{
    collections::VecDeque,
    ffi::OsStr,
    fmt,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    pin::{Pin, pin},
    str::FromStr,
    task::{Context, Poll, ready},
    time::Duration,
};

use base::{FileKind, FsError, Ino, Time};
use futures::{
    future::{Either, join_all, select},
    stream::{BoxStream, Stream, StreamExt, unfold},
};
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use wire::{Change, DirRef, Reply, Request, Watch as Ask, Watched};

use crate::{Client, Error, Result, error::unexpected, route::Route};

/// Most changes in one answer.
const EVENTS_MAX: u16 = 1024;
/// Most steps that wait for those of other servers, or for their reader.
const QUEUED_MAX: usize = 4096;
/// Between two questions of a watch that follows, unless there is much to tell.
const PACE: Duration = Duration::from_millis(10);
/// Longest wait for an answer of a server among several, where a watch does not follow.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait of a change for older ones of other servers, which tell theirs 10 ms after the first
/// that they have.
const HOLD: Duration = Duration::from_millis(40);
/// Kind of text in which a position is written.
const PREFIX: &str = "w1";

/// The position of a server that has left the cluster: it tells nothing more.
const LEFT: u64 = u64::MAX;

/// How to watch a directory.
#[derive(Debug, Clone)]
pub struct WatchOptions {
    /// Where to begin: after what was seen before this position. `None`: now.
    pub since: Option<Position>,
    /// Whether to wait for what is still to come. Otherwise the stream ends with what has happened.
    pub follow: bool,
    /// The time for which the servers should remember changes once nobody watches any more, so that
    /// a position of now can be gone on from. At least a minute and at most a week; an hour for a
    /// token that may not see the whole tree as any user.
    pub keep: Duration,
}

impl Default for WatchOptions {
    fn default() -> WatchOptions {
        WatchOptions { since: None, follow: true, keep: Duration::from_secs(3600) }
    }
}

/// How far a watch has come: its place in the feed of each server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The file system, by a part of its id: a position means nothing in another one.
    fs: u32,
    /// By server; `None`: the server has not answered yet.
    servers: Vec<Option<u64>>,
}

impl fmt::Display for Position {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{PREFIX}.{:x}", self.fs)?;
        self.servers.iter().try_for_each(|position| match position {
            Some(position) => write!(out, ".{position:x}"),
            None => write!(out, ".-"),
        })
    }
}

/// The text is not a position of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a position of `pando watch`")]
pub struct NoPosition;

impl FromStr for Position {
    type Err = NoPosition;

    fn from_str(text: &str) -> Result<Position, NoPosition> {
        let mut parts = text.split('.');
        if parts.next() != Some(PREFIX) {
            return Err(NoPosition);
        }
        let number = |part: &str| match part.starts_with('+') {
            true => Err(NoPosition),
            false => u64::from_str_radix(part, 16).map_err(|_| NoPosition),
        };
        let fs = u32::try_from(number(parts.next().ok_or(NoPosition)?)?).map_err(|_| NoPosition)?;
        let server = |part: &str| if part == "-" { Ok(None) } else { number(part).map(Some) };
        let servers = parts.map(server).collect::<Result<Vec<_>, _>>()?;
        Ok(Position { fs, servers })
    }
}

/// News of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Something has changed.
    Change(FileChange),
    /// Changes at this server are lost to the watch: the position was too old, a power failure took
    /// back what the watch had told, or the server has left, and may have had more to tell. Look at
    /// everything again; what comes from now on is whole.
    Gap {
        /// Number of the server.
        server: u16,
    },
}

impl News {
    /// Whether the directory that is watched was removed: a watch ends with that.
    #[must_use]
    pub fn is_end(&self) -> bool {
        match self {
            News::Change(change) => {
                change.change == Change::Removed && change.path.as_os_str().is_empty()
            }
            News::Gap { .. } => false,
        }
    }
}

/// A change of a name, or of the node under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Kind of the change.
    pub change: Change,
    /// Path from the directory that is watched; empty: that directory itself.
    pub path: PathBuf,
    /// Inode number of the node: it is the same before and after a rename.
    pub ino: Ino,
    /// Kind of the node; `None`: it has several names, and its kind is not beside them.
    pub kind: Option<FileKind>,
    /// Time of the change, by the clock of its server.
    pub time: Time,
    /// Number of the server.
    pub server: u16,
}

/// One step of one server's feed.
enum Step {
    /// News, and the position after it.
    News(u64, News),
    /// There is nothing before this position.
    Reached(u64),
    /// The server tells nothing more, because of this.
    Failed(Error),
    /// The server has told everything.
    End,
}

impl Step {
    /// The time by which the step is merged with those of others; `None`: it waits for none.
    fn time(&self) -> Option<Time> {
        match self {
            Step::News(_, News::Change(change)) => Some(change.time),
            Step::News(_, News::Gap { .. }) | Step::Reached(_) | Step::Failed(_) | Step::End => {
                None
            }
        }
    }
}

type Feed = BoxStream<'static, Step>;

/// News that a server has told and the watch has not.
#[derive(Default)]
struct Queue {
    /// The steps, with the time at which each arrived.
    steps: VecDeque<(Instant, Step)>,
    /// Whether the server will tell nothing more.
    is_over: bool,
}

impl Queue {
    /// Whether nothing older than what waits here can come of this server.
    fn is_known(&self) -> bool {
        self.is_over || !self.steps.is_empty()
    }
}

/// A stream of changes below a directory. Dropping it ends the watch. It ends by itself after the
/// removal of the directory that is watched.
///
/// The stream yields an error, and goes on with the other servers, where one can tell nothing more:
/// `Stale` when a caller who has to prove what he may see watches a directory that is gone, `Denied`
/// when the caller may not list it any more, and, of a watch that does not follow,
/// [`Error::Silent`] where a server does not answer, or needs another one that does not.
pub struct Watch {
    /// By server, as the queues.
    feeds: Vec<Feed>,
    queues: Vec<Queue>,
    /// The time at which the next change need not wait for other servers any more.
    due: Option<Pin<Box<Sleep>>>,
    position: Position,
    /// Whether the watched directory is gone, which is still to be said, or was.
    is_gone: bool,
    /// The questions to a server that joins meanwhile.
    asks: Asks,
}

/// The questions of a watch to every server.
#[derive(Clone)]
struct Asks {
    client: Client,
    dir: DirRef,
    follow: bool,
    keep_secs: u32,
}

impl Asks {
    /// The feed of a server, not begun yet, from a position on.
    fn of(&self, server: u16, since: Option<u64>, owes_gap: bool) -> Asked {
        let Asks { client, dir, follow, keep_secs } = self.clone();
        Asked {
            client,
            server,
            dir,
            since,
            follow,
            keep_secs,
            told: Vec::new(),
            is_over: false,
            has_little: false,
            target: None,
            owes_gap,
        }
    }
}

fn feed_of(asked: Asked) -> Feed {
    unfold(asked, |mut asked| async move { Some((asked.step().await?, asked)) }).boxed()
}

impl Watch {
    /// How far the stream has come.
    #[must_use]
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// The next news; `None` at the end.
    ///
    /// # Errors
    /// See [`Watch`].
    pub async fn next(&mut self) -> Option<Result<News>> {
        StreamExt::next(self).await
    }

    /// Asks servers that have joined since the watch began. Each may have changed something before.
    fn ask_new(&mut self) {
        let known = u16::try_from(self.feeds.len()).expect("there are fewer servers");
        for server in known..self.asks.client.servers() {
            self.feeds.push(feed_of(self.asks.of(server, None, true)));
            self.queues.push(Queue::default());
            self.position.servers.push(None);
        }
    }

    /// Takes in what the servers have told by now, as far as there is room.
    fn take_in(&mut self, cx: &mut Context<'_>) {
        self.ask_new();
        for (feed, queue) in self.feeds.iter_mut().zip(&mut self.queues) {
            while !queue.is_over && queue.steps.len() < QUEUED_MAX {
                let Poll::Ready(step) = feed.poll_next_unpin(cx) else { break };
                let step = step.unwrap_or(Step::End);
                queue.is_over = matches!(step, Step::End);
                queue.steps.push_back((Instant::now(), step));
            }
        }
    }

    /// The server whose step is next, and when that has arrived if it still waits for others.
    fn first(&self) -> Option<(usize, Option<Instant>)> {
        let heads = self.queues.iter().enumerate();
        let heads = heads.filter_map(|(server, queue)| Some((queue.steps.front()?, server)));
        let ((arrived, step), server) = heads.min_by_key(|((_, step), _)| step.time())?;
        let waits = step.time().is_some() && !self.queues.iter().all(Queue::is_known);
        Some((server, waits.then_some(*arrived)))
    }
}

impl Stream for Watch {
    type Item = Result<News>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<News>>> {
        let this = &mut *self;
        loop {
            if this.is_gone {
                return Poll::Ready(None);
            }
            this.take_in(cx);
            let Some((server, waits_since)) = this.first() else {
                let is_over = this.queues.iter().all(|queue| queue.is_over);
                return if is_over { Poll::Ready(None) } else { Poll::Pending };
            };
            if let Some(arrived) = waits_since {
                let due = this.due.get_or_insert_with(|| Box::pin(sleep_until(arrived + HOLD)));
                ready!(due.as_mut().poll(cx));
            }
            this.due = None;
            let step = this.queues[server].steps.pop_front();
            let (position, news) = match step.map(|(_, step)| step) {
                Some(Step::News(position, news)) => (position, Some(news)),
                Some(Step::Reached(position)) => (position, None),
                Some(Step::Failed(error)) => return Poll::Ready(Some(Err(error))),
                Some(Step::End) | None => continue,
            };
            this.position.servers[server] = Some(position);
            if let Some(news) = news {
                this.is_gone = news.is_end();
                return Poll::Ready(Some(Ok(news)));
            }
        }
    }
}

/// The feed of one server, as a watch asks for it.
struct Asked {
    client: Client,
    server: u16,
    dir: DirRef,
    since: Option<u64>,
    follow: bool,
    keep_secs: u32,
    /// Steps that were told and are not given yet, the last first.
    told: Vec<Step>,
    /// Whether there is nothing more to ask.
    is_over: bool,
    /// Whether the last answer told of few changes.
    has_little: bool,
    /// Position at which a watch that does not follow ends.
    target: Option<u64>,
    /// Whether changes were missed before the first answer, which is still to be told.
    owes_gap: bool,
}

impl Asked {
    async fn ask(&self, since: Option<u64>, wait: bool) -> Result<Watched> {
        let request = Request::Watch(Ask {
            dir: self.dir,
            since,
            max: EVENTS_MAX,
            wait,
            keep_secs: self.keep_secs,
        });
        let core = &self.client.core;
        match core.ask(&self.client.cred, Route::Server(self.server), request).await?.reply {
            Reply::Watched(watched) => Ok(watched),
            _ => Err(unexpected()),
        }
    }

    /// Like [`Asked::ask`], but a server is given up that is silent, or needs one that is.
    async fn ask_now(&self, since: Option<u64>) -> Result<Watched> {
        let channels = &self.client.core.channels;
        let channel = channels.at(self.server);
        let given_up = async {
            match channels.are_several() {
                true => {
                    select(pin!(channel.silence()), pin!(sleep(PATIENCE))).await;
                }
                false => std::future::pending().await,
            }
        };
        match select(pin!(self.ask(since, false)), pin!(given_up)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => {
                let address = channels.address(self.server).unwrap_or_default();
                Err(Error::Silent(self.server, address))
            }
        }
    }

    /// The next step; `None` at the end.
    async fn step(&mut self) -> Option<Step> {
        loop {
            if let Some(step) = self.told.pop() {
                return Some(step);
            }
            if self.is_over {
                return None;
            }
            match self.more().await {
                Ok(watched) => self.take(watched),
                // The server may have told not all that there was.
                Err(_) if self.has_left() => {
                    self.is_over = true;
                    return Some(self.leaves());
                }
                Err(error) => {
                    self.is_over = true;
                    return Some(Step::Failed(error));
                }
            }
        }
    }

    fn has_left(&self) -> bool {
        self.client.core.channels.has_left(self.server)
    }

    fn leaves(&self) -> Step {
        Step::News(LEFT, News::Gap { server: self.server })
    }

    async fn more(&mut self) -> Result<Watched> {
        if self.follow {
            if self.has_little {
                // Others' changes may come all the time.
                sleep(PACE).await;
            }
            return self.ask(self.since, true).await;
        }
        if self.target.is_none() {
            self.target = Some(self.ask_now(None).await?.next);
        }
        self.ask_now(self.since).await
    }

    fn take(&mut self, watched: Watched) {
        let Watched { events, next, gap } = watched;
        let before = self.since.unwrap_or(next);
        self.since = Some(next);
        self.is_over |= self.target.is_some_and(|target| next >= target);
        self.has_little = events.len() < usize::from(EVENTS_MAX) / 2;
        let server = self.server;
        let changes = events.into_iter().map(|event| {
            let path = PathBuf::from(OsStr::from_bytes(&event.path));
            let (change, ino, kind, time) = (event.change, event.ino, event.kind, event.time);
            let change = FileChange { change, path, ino, kind, time, server };
            Step::News(event.position, News::Change(change))
        });
        let gap = gap || std::mem::take(&mut self.owes_gap);
        // With changes that come along, the gap is told anew to who goes on from before them.
        let at = if changes.len() == 0 { next } else { before };
        let gap = gap.then_some(Step::News(at, News::Gap { server }));
        self.told = gap.into_iter().chain(changes).chain([Step::Reached(next)]).collect();
        self.told.reverse();
    }
}

impl Client {
    /// Watches a directory: tells what changes in it and below it, at any client. See
    /// docs/SEMANTICS.md for what is told, and in what order.
    ///
    /// Changes after this returns are told, of all servers that answered; of a server that is away a
    /// gap is told first, when it answers.
    ///
    /// # Errors
    /// Fails as `opendir(3)` does; with `Invalid` when the position is of another file system.
    pub async fn watch(&self, path: impl AsRef<Path>, options: WatchOptions) -> Result<Watch> {
        let dir = match self.resolve(path).await? {
            wire::NodeRef::Dir(dir) => dir,
            wire::NodeRef::File(_) => return Err(FsError::NotDirectory.into()),
        };
        let uuid = self.fs_info().uuid.to_le_bytes();
        let fs = u32::from_le_bytes([uuid[0], uuid[1], uuid[2], uuid[3]]);
        let WatchOptions { since, follow, keep } = options;
        let is_anew = since.is_none();
        let since = since.unwrap_or(Position { fs, servers: Vec::new() });
        let count = usize::from(self.servers());
        if since.fs != fs || since.servers.len() > count {
            return Err(FsError::Invalid.into());
        }
        let mut servers = since.servers;
        servers.resize(count, None);
        let keep_secs = u32::try_from(keep.as_secs()).unwrap_or(u32::MAX);
        let asks = Asks { client: self.clone(), dir, follow, keep_secs };
        // A server without a position was not heard when that was taken.
        let feeds = (0..).zip(&servers).map(|(server, since)| {
            let has_left = self.core.channels.has_left(server);
            let is_missed = since.is_none() || has_left && *since != Some(LEFT);
            asks.of(server, *since, is_missed && !is_anew)
        });
        let begun = join_all(feeds.map(Asked::begun)).await;
        let (mut position, mut feeds) = (Position { fs, servers }, Vec::<Feed>::new());
        for (asked, at) in begun.into_iter().zip(&mut position.servers) {
            let asked = asked?;
            // A gap that is still to be told comes with its position.
            if asked.told.is_empty() {
                *at = asked.since;
            }
            feeds.push(feed_of(asked));
        }
        let queues = std::iter::repeat_with(Queue::default).take(count).collect();
        Ok(Watch { feeds, queues, due: None, position, is_gone: false, asks })
    }
}

impl Asked {
    /// Learns where the feed is now, if it was not known, and if the server answers.
    async fn begun(mut self) -> Result<Asked> {
        if self.has_left() {
            let gap = std::mem::take(&mut self.owes_gap).then(|| self.leaves());
            (self.since, self.is_over) = (Some(LEFT), true);
            self.told = gap.into_iter().collect();
        }
        if self.since.is_some() {
            return Ok(self);
        }
        match self.ask_now(None).await {
            Ok(watched) => {
                self.since = Some(watched.next);
                if std::mem::take(&mut self.owes_gap) {
                    let gap = News::Gap { server: self.server };
                    self.told = vec![Step::News(watched.next, gap)];
                }
            }
            // When it answers, it may have changed something meanwhile.
            Err(Error::Silent(..)) => self.owes_gap = true,
            // There has been no change since the last shard left.
            Err(_) if self.has_left() => return Box::pin(self.begun()).await,
            Err(error) => return Err(error),
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_back_from_its_text() {
        let position = Position { fs: 0xfe, servers: vec![Some(0x7_0000_0001), None, Some(0)] };
        assert_eq!(position.to_string(), "w1.fe.700000001.-.0");
        assert_eq!(position.to_string().parse(), Ok(position));
        for text in ["", "w1", "w1.", "w1.x.0", "w2.fe.0", "w1.fe.zz", "w1.fe.0.", "w1.fe.+1"] {
            assert_eq!(text.parse::<Position>(), Err(NoPosition), "{text}");
        }
    }
}
