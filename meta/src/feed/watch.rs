//! `watch`: what has changed below a directory since a position.
//!
//! The changes are read from the feed, and the path of each is climbed to the directory that is
//! watched, all at a time, a step in each round: so the directories that other servers have cost a
//! message a round. A change whose path does not lead there is left out, and so is one whose path
//! has a name in a directory that the caller may not list. A directory that has been removed since
//! is kept as it was. The changes from one on whose way is not known, as a server is away, are told
//! when it is back.
//!
//! Cost: a scan of at most [`SCANNED_MAX`] records; a read for each directory on the paths that is
//! not known.

use std::{ops::ControlFlow, time::Duration};

use base::{Access, DirId, EntryName, HashMap, HashSet, Ino, Time};
use bytes::Bytes;
use futures::future::{FutureExt as _, LocalBoxFuture};
use tokio::time::{sleep, timeout};
use wire::{DirRef, Retry, Watch, WatchEvent, Watched};

use super::{Event, Logged, Reach};
use crate::{
    error::{Fault, Result},
    incoming::Incoming,
    paths::{At, Up},
    record::{Content, Key, Record as _, key},
    space_guard::Level,
    txn::Txn,
    wait::{AtCore, Wait, WaitApart},
};

/// Most records of the feed that one request looks at.
const SCANNED_MAX: usize = 1024;
/// Most bytes of paths in an answer, but for its last one.
const PATHS_BYTES_MAX: usize = 256 << 10;
/// Most directories between a change and the directory that is watched.
const DEPTH_MAX: usize = 4096;
/// Most directories that one request looks at, but for those of its last round: twice as many as
/// one change may need.
const MET_MAX: usize = 2 * DEPTH_MAX;
/// The time for which changes are recorded after a request, at least and at most. A session that
/// may not see the whole tree gets no more than the middle one.
const KEEP_SECS_MIN: u32 = 60;
const KEEP_SECS_CONFINED_MAX: u32 = 3600;
const KEEP_SECS_MAX: u32 = 7 * 24 * 3600;
/// The time for which a request waits on after a change, so that it tells of several.
const GATHER: Duration = Duration::from_millis(10);
/// Most requests that wait at a time, as all are executed after each change. Others are answered
/// that there is none.
const WAITING_MAX: usize = 1024;
/// The longest wait of a request: nobody may be there any more to take its answer.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The time after which a request that waits is looked at.
const LOOK_AFTER: Duration = Duration::from_secs(5);

pub(crate) fn run(txn: &mut Txn<'_>, req: &Watch) -> Result<Watched> {
    txn.asks_anywhere();
    permits(txn, &req.dir)?;
    let feed = &txn.shared.feed;
    let longest = if txn.trusts() { KEEP_SECS_MAX } else { KEEP_SECS_CONFINED_MAX };
    feed.watched(txn.now, req.keep_secs.clamp(KEEP_SECS_MIN, longest));
    if !feed.is_open() {
        // To switch it on takes a write.
        txn.shared.space_guard.has(Level::Low)?;
        return Err(News::Begins.into());
    }
    let told = feed.told();
    let Some(since) = req.since else {
        return Ok(Watched { events: Vec::new(), next: told, gap: false });
    };
    let is_whole = match feed.reach(since) {
        Reach::Whole => true,
        Reach::Gap => false,
        Reach::IfKept => txn.shared.engine.get(&key::feed_event(since))?.is_some(),
    };
    if !is_whole {
        return Ok(Watched { events: Vec::new(), next: told, gap: true });
    }
    let may_wait = !txn.has_waited(WAIT_MAX) && feed.told.receiver_count() < WAITING_MAX;
    if since >= told && req.wait && may_wait {
        return Err(News::After(since).into());
    }
    let Scanned { events, next } = scan(txn, since, told)?;
    // Race: the oldest changes may have been removed meanwhile.
    if feed.reach(since) == Reach::Gap {
        return Ok(Watched { events: Vec::new(), next: told, gap: true });
    }
    let mut climb = Climb::new(txn, req.dir);
    climb.climb(events.iter().map(|(_, event)| event))?;
    if let Some((_, first)) = events.first()
        && matches!(climb.way(first), Way::Unknown)
    {
        // The others' ways were too long for this one.
        climb.met.clear();
        climb.climb(std::iter::once(first))?;
    }
    let max = usize::from(req.max.max(1)).min(SCANNED_MAX);
    let mut page = Watched { events: Vec::new(), next, gap: false };
    let (mut bytes, mut before) = (0, since);
    for (position, event) in &events {
        if page.events.len() == max || bytes > PATHS_BYTES_MAX {
            page.next = before;
            break;
        }
        match climb.way(event) {
            Way::Path(path) => {
                bytes += path.len();
                let Event { change, ino, kind, time, .. } = *event;
                let (position, path) = (*position, path.into());
                page.events.push(WatchEvent { position, change, path, ino, kind, time });
            }
            Way::Hidden => {}
            Way::Lost => page.gap = true,
            Way::Unknown if before == since => return Err(Fault::Retry(Retry::Away)),
            Way::Unknown => {
                page.next = before;
                break;
            }
        }
        before = *position;
    }
    Ok(page)
}

/// Checks that the caller may list the directory that is watched. Who may see everything needs no
/// proof: the server of the directory may be away.
fn permits(txn: &Txn<'_>, dir: &DirRef) -> Result<()> {
    if txn.trusts() && !is_checked(txn) {
        return Ok(());
    }
    let dir = txn.master(dir)?;
    txn.dir_permits(&dir, Access::READ)?;
    txn.dir_permits(&dir, Access::EXECUTE)
}

/// Whether the caller's permissions matter.
fn is_checked(txn: &Txn<'_>) -> bool {
    txn.checks() && !txn.caller.cred.is_root()
}

/// News that an operation waits for.
#[derive(Debug)]
enum News {
    /// The feed is switched on.
    Begins,
    /// There are changes after this position.
    After(u64),
}

impl From<News> for Fault {
    fn from(news: News) -> Fault {
        Fault::Wait(Wait::Apart(Box::new(news)))
    }
}

impl WaitApart for News {
    fn begin(&self, of: &Incoming) {
        of.waits_since();
    }

    fn over<'a>(&'a self, at: AtCore<'a>, _of: Option<&'a Incoming>) -> LocalBoxFuture<'a, ()> {
        let feed = &at.shared.feed;
        async move {
            let mut told = feed.told.subscribe();
            if matches!(self, News::Begins) {
                feed.wanted.notify_one();
            }
            let is_over = match self {
                News::Begins => feed.is_open(),
                News::After(since) => *told.borrow_and_update() != *since || !feed.is_open(),
            };
            if !is_over && timeout(LOOK_AFTER, told.changed()).await.is_err() {
                return;
            }
            if matches!(self, News::After(_)) {
                sleep(GATHER).await;
            }
        }
        .boxed_local()
    }

    fn is_asked_for(&self) -> bool {
        true
    }

    fn changes_records(&self) -> bool {
        false
    }
}

/// Changes that were read from the feed.
struct Scanned {
    events: Vec<(u64, Event)>,
    /// The position up to which they were read.
    next: u64,
}

fn scan(txn: &Txn<'_>, since: u64, told: u64) -> Result<Scanned> {
    let (from, to) = (key::feed_event(since + 1), key::feed_event(told + 1));
    let (mut records, mut next) = (Vec::new(), told);
    txn.shared.engine.scan(&from, &to, &mut |at, value| {
        let Some(position) = key::parse_feed_event(at) else { return ControlFlow::Continue(()) };
        records.push((position, Bytes::copy_from_slice(value)));
        if records.len() < SCANNED_MAX {
            return ControlFlow::Continue(());
        }
        next = position;
        ControlFlow::Break(())
    })?;
    let mut events = Vec::new();
    for (position, value) in records {
        match Logged::from_record(&value)? {
            Logged::Event(event) => events.push((position, event)),
            Logged::Past(_) => {}
        }
    }
    Ok(Scanned { events, next })
}

/// A directory as the climb meets it: as it is, or as it was when it was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Met {
    id: DirId,
    ino: Ino,
    is_past: bool,
}

/// A directory that is looked for, at the time of a change.
#[derive(Clone, Copy)]
struct Sought {
    at: At,
    time: Time,
}

/// A directory on the way.
struct Step {
    name: Option<EntryName>,
    /// Whether the caller may list and search it.
    is_open: bool,
    above: Above,
}

/// The directory above one on the way.
#[derive(Clone, Copy)]
enum Above {
    /// The directory that is watched.
    Top,
    /// Another one, which has been met or will be.
    Dir(Sought),
    /// One from which no way leads to the directory that is watched.
    Outside,
}

/// How the way up from a change ends.
enum Way {
    /// At the directory that is watched: the path from there.
    Path(Vec<u8>),
    /// Elsewhere, or the caller may not see it.
    Hidden,
    /// At a directory of which nothing is left.
    Lost,
    /// At a directory whose server does not answer, or that was not climbed to yet.
    Unknown,
}

/// The climb from directories to the one that is watched. Each directory is read once.
struct Climb<'a, 'b> {
    txn: &'a Txn<'b>,
    top: DirRef,
    /// The trash, whose contents belong to no other directory.
    trash: Option<DirId>,
    /// The directories as they were when they were removed, of those that were asked for.
    past: HashMap<(DirId, Ino), Option<Content>>,
    /// The directories that were met; `None`: nothing is left of it.
    met: HashMap<Met, Option<Step>>,
    /// The directories whose servers do not answer.
    untold: HashSet<(DirId, Ino)>,
}

impl<'a, 'b> Climb<'a, 'b> {
    fn new(txn: &'a Txn<'b>, top: DirRef) -> Climb<'a, 'b> {
        let trash = txn.settings().trash.0.map(|trash| trash.dir).filter(|dir| *dir != top.id);
        let (past, met, untold) = (HashMap::default(), HashMap::default(), HashSet::default());
        Climb { txn, top, trash, past, met, untold }
    }

    fn is_top(&self, at: &At) -> bool {
        at.is((self.top.id, self.top.ino))
    }

    /// Whether no way leads on from a directory.
    fn is_outside(&self, at: &At) -> bool {
        at.id == DirId::ROOT || self.trash == Some(at.id)
    }

    /// Reads the directories on the ways up from the changes, all of a level in one round, as long
    /// as they are few enough.
    fn climb<'c>(&mut self, events: impl Iterator<Item = &'c Event>) -> Result<()> {
        let start = |event: &Event| {
            let at = At { id: event.dir, ino: event.dir_ino, home: event.dir_home };
            Sought { at, time: event.time }
        };
        let mut here: Vec<Sought> = events.map(start).collect();
        while !here.is_empty() && self.met.len() <= MET_MAX {
            here.retain(|sought| {
                let at = &sought.at;
                !self.is_top(at) && !self.is_outside(at) && !self.untold.contains(&at.key())
            });
            self.read_past(&here)?;
            let mut unread: HashMap<Met, Sought> = HashMap::default();
            for sought in &here {
                let met = self.of(sought);
                if !self.met.contains_key(&met) {
                    unread.entry(met).or_insert(*sought);
                }
            }
            self.read(&unread)?;
            let above = unread.keys().filter_map(|met| self.met.get(met)?.as_ref());
            here = above
                .filter_map(|step| match step.above {
                    Above::Dir(sought) => Some(sought),
                    Above::Top | Above::Outside => None,
                })
                .collect();
        }
        Ok(())
    }

    /// The directory that was meant at the time of a change. On a single server a directory that was
    /// removed may be in the trash as well.
    fn of(&self, sought: &Sought) -> Met {
        let Sought { at, time } = sought;
        let past = self.past.get(&at.key()).and_then(Option::as_ref);
        let is_past = past.is_some_and(|past| *time <= past.times.ctime);
        Met { id: at.id, ino: at.ino, is_past }
    }

    /// Reads which of the directories were removed: of a single server of all, as what was removed
    /// may be in the trash. On several servers a directory that is there was not.
    fn read_past(&mut self, here: &[Sought]) -> Result<()> {
        if self.txn.shared.cluster.is_some() {
            return Ok(());
        }
        for Sought { at, .. } in here {
            if !self.past.contains_key(&at.key()) {
                let past = self.past_of(at)?;
                self.past.insert(at.key(), past);
            }
        }
        Ok(())
    }

    fn past_key(&self, at: &At) -> Key {
        key::past(self.txn.shard(at.home), at.id, at.ino)
    }

    fn past_of(&self, at: &At) -> Result<Option<Content>> {
        let past = self.txn.glance_at(&self.past_key(at))?;
        Ok(past.map(|bytes| Content::from_record(&bytes)).transpose()?)
    }

    fn read(&mut self, unread: &HashMap<Met, Sought>) -> Result<()> {
        let (mut wanted, mut gone) = (Vec::new(), Vec::new());
        for (met, sought) in unread {
            let past = self.past.get(&sought.at.key()).and_then(Option::clone);
            match (met.is_past, past, self.known(&sought.at)) {
                (true, Some(past), _) => self.meet(*met, sought, &past),
                (_, _, Some(up)) => self.meet_known(*met, sought, up),
                _ => wanted.push((*met, *sought)),
            }
        }
        let records: Vec<Key> = wanted.iter().map(|(_, sought)| self.record_of(sought)).collect();
        let pairs = wanted.iter().zip(&records);
        pairs.for_each(|((_, sought), key)| self.txn.means(key, sought.at.ino));
        self.txn.want_if_told(&records)?;
        for ((met, sought), key) in wanted.iter().zip(&records) {
            match self.content(&sought.at, key)? {
                Looked::Found(content) => self.meet(*met, sought, &content),
                Looked::Gone => gone.push((*met, *sought)),
                Looked::Untold => drop(self.untold.insert(sought.at.key())),
            }
        }
        // A directory that is gone may be kept as it was, beside where it would be.
        let records: Vec<Key> = gone.iter().map(|(_, sought)| self.past_key(&sought.at)).collect();
        self.txn.want_if_told(&records)?;
        for ((met, sought), key) in gone.iter().zip(&records) {
            if self.txn.is_silent_about(key) {
                self.untold.insert(sought.at.key());
                continue;
            }
            match self.past_of(&sought.at)? {
                Some(past) => self.meet(*met, sought, &past),
                None => drop(self.met.insert(*met, None)),
            }
        }
        Ok(())
    }

    fn record_of(&self, sought: &Sought) -> Key {
        self.txn.content_key(sought.at.home, sought.at.id)
    }

    /// The way up from a directory, if it is remembered and all that is needed.
    fn known(&self, at: &At) -> Option<Up> {
        if is_checked(self.txn) {
            return None;
        }
        self.txn.shared.paths.get(at.id, at.ino, &self.txn.shared.invalidations)
    }

    fn content(&self, at: &At, key: &[u8]) -> Result<Looked> {
        if self.txn.is_silent_about(key) {
            return Ok(Looked::Untold);
        }
        let of_it = |content: Option<Content>| match content {
            Some(content) if content.ino == at.ino => Looked::Found(Box::new(content)),
            Some(_) | None => Looked::Gone,
        };
        if self.txn.is_here(key) && self.txn.is_in_doubt(key) {
            // An initiator may be away. Either place is right, and neither is remembered.
            return Ok(of_it(self.txn.left_content(key)?));
        }
        let (content, version) = self.txn.glance(key)?;
        let looked = of_it(content);
        if let Looked::Found(content) = &looked {
            self.txn.learn_way(*at, content, version);
        }
        Ok(looked)
    }

    fn meet(&mut self, met: Met, sought: &Sought, content: &Content) {
        let may = |want| content.permits(self.txn.caller.cred, want).is_ok();
        let is_open = !is_checked(self.txn) || (may(Access::READ) && may(Access::EXECUTE));
        let above = self.above(&Up::of(content), sought.time);
        self.met.insert(met, Some(Step { name: content.name.clone(), is_open, above }));
    }

    fn meet_known(&mut self, met: Met, sought: &Sought, up: Up) {
        let above = self.above(&up, sought.time);
        self.met.insert(met, Some(Step { name: up.name, is_open: true, above }));
    }

    fn above(&self, up: &Up, time: Time) -> Above {
        let at = At::above(up);
        match () {
            () if self.is_top(&at) => Above::Top,
            () if self.is_outside(&at) => Above::Outside,
            () => Above::Dir(Sought { at, time }),
        }
    }

    /// The way up from a change to the directory that is watched.
    fn way(&self, event: &Event) -> Way {
        // A change of the directory that is watched itself is one of a name in another one.
        if event.ino == self.top.ino && event.name.is_some() {
            return Way::Path(Vec::new());
        }
        let mut at = At { id: event.dir, ino: event.dir_ino, home: event.dir_home };
        let mut names: Vec<&EntryName> = event.name.iter().collect();
        let mut is_named = event.name.is_some();
        for _ in 0..DEPTH_MAX {
            if self.is_top(&at) {
                let names: Vec<_> = names.iter().rev().map(|name| name.as_bytes()).collect();
                return Way::Path(names.join(&b'/'));
            }
            if self.is_outside(&at) {
                return Way::Hidden;
            }
            let step = match self.met.get(&self.of(&Sought { at, time: event.time })) {
                Some(Some(step)) => step,
                Some(None) => return Way::Lost,
                None => return Way::Unknown,
            };
            // A directory whose name is told, and not that of anything in it, need not be open.
            if is_named && !step.is_open {
                return Way::Hidden;
            }
            is_named = true;
            names.extend(&step.name);
            at = match step.above {
                Above::Top => At { id: self.top.id, ino: self.top.ino, home: self.top.home },
                Above::Dir(sought) => sought.at,
                Above::Outside => return Way::Hidden,
            };
        }
        Way::Hidden
    }
}

/// How a look at a directory ended.
enum Looked {
    Found(Box<Content>),
    Gone,
    /// The server of the directory does not answer.
    Untold,
}
