//! Directories that exist: those in which this client works are asked for.
//!
//! Programs that have changed several things in a directory within a second are likely to go on. The
//! directory is asked for with all its names, and held from then on as one that was made here. When
//! somebody else asks for it, it is given back, and not asked for again for a while.
//!
//! Always true: what the names were asked for is all that this client has done in the directory.
//! Each operation that may change something in a directory *is present* there until it has its
//! answer ([`Presence`]). A directory is asked for when nobody is present; who comes then waits. A
//! file that another client has moved there may still be named by its old directory, so files that
//! are changed are noted, too.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base::{DirId, EntryName, HashMap, HashSet, Ino};
use tokio::time::Instant;
use wire::{
    Delegate, DelegatedEntry, DelegatedFile, DelegatedName, DelegatedPage, DirRef, FileRef, Grant,
    Held, NodeRef, RenameMode, Renamed, Reply, Request, Stand,
};

use super::{
    Delegating, FILES_MAX, Table,
    dir::{HeldDir, Item},
    file::Local,
    recalls::Lease,
};
use crate::{
    bugs::{self, Bug},
    done::Done,
    runs::Run,
};

/// Time within which changes in a directory count together.
const COUNTED: Duration = Duration::from_secs(1);
/// Changes in a directory after which it is asked for. If it has too many names then, it is asked
/// for after twice as many.
const CHANGES_MIN: u32 = 2;
/// Names of a directory that are worth reading for each change that was made there.
const NAMES_A_CHANGE: u32 = 64;
/// Time for which a directory is not asked for that somebody else has asked for, at first, and at
/// most.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// Time for which a directory is not asked for that was granted, and given back at once as one of
/// its files was at work, at first, and at most.
const SPOILT_FIRST: Duration = Duration::from_millis(20);
const SPOILT_MAX: Duration = Duration::from_secs(1);
/// Time for which nothing is asked for after an operation whose answer nobody has waited for: it may
/// still be on its way.
const UNANSWERED: Duration = Duration::from_secs(60);
/// Time for which nothing is asked for after the server has refused a directory, at first, and at
/// most.
const REFUSED_FIRST: Duration = Duration::from_millis(10);
const REFUSED_MAX: Duration = Duration::from_secs(1);
/// Most directories of which something is remembered, as a rule.
const VISITS_MAX: usize = 4096;

/// How much this client does in the directories in which it works.
#[derive(Default)]
pub(super) struct Visits {
    dirs: HashMap<DirId, Visit>,
    /// The directories that are being asked for.
    filling: HashMap<DirId, Filling>,
    /// The files that operations are changing, and how many.
    files: HashMap<Ino, u32>,
    /// Time before which no directory is asked for, and for how long that was last.
    refused: Option<(Instant, Duration)>,
    /// Another such time: an operation was given up.
    unanswered: Option<Instant>,
}

/// When a pause from now on ends, and how long it is: twice as long as the one before.
fn doubled(
    before: Option<(Instant, Duration)>,
    first: Duration,
    most: Duration,
    now: Instant,
) -> Option<(Instant, Duration)> {
    let pause = before.map_or(first, |(_, pause)| most.min(pause * 2));
    Some((now + pause, pause))
}

/// A directory in which this client works.
struct Visit {
    /// How many operations are present.
    present: u32,
    /// Changes since `since`.
    changes: u32,
    since: Instant,
    /// The directory is asked for at this many changes.
    enough: u32,
    /// Time before which the directory is not asked for, and for how long that was last, after others
    /// have asked for it.
    pause: Option<(Instant, Duration)>,
    /// The same, after the directory was given back at once.
    spoilt: Option<(Instant, Duration)>,
}

/// A directory that is being asked for.
struct Filling {
    ino: Ino,
    /// Whether its names, or the delegation, may not be what they were.
    is_spoilt: bool,
    /// Files that were changed meanwhile.
    changed: HashSet<Ino>,
}

impl Visits {
    /// The directory, which is remembered from now on.
    fn at(&mut self, dir: DirId, now: Instant) -> &mut Visit {
        if self.dirs.len() >= VISITS_MAX && !self.dirs.contains_key(&dir) {
            self.dirs.retain(|_, visit| visit.present > 0 || visit.is_paused(now));
            if self.dirs.len() >= VISITS_MAX {
                self.dirs.retain(|_, visit| visit.present > 0);
            }
        }
        self.dirs.entry(dir).or_insert(Visit {
            present: 0,
            changes: 0,
            since: now,
            enough: CHANGES_MIN,
            pause: None,
            spoilt: None,
        })
    }

    /// Somebody else has asked for a directory that was held.
    pub(super) fn recalled(&mut self, dir: DirId, now: Instant) {
        let visit = self.at(dir, now);
        let before = visit.pause.filter(|(until, _)| now < *until + PAUSE_MAX);
        visit.pause = doubled(before, PAUSE_FIRST, PAUSE_MAX, now);
    }

    /// The names that are being asked for may not be those of the directory any more.
    pub(super) fn spoil(&mut self, dir: DirId) {
        if let Some(filling) = self.filling.get_mut(&dir) {
            filling.is_spoilt = true;
        }
    }

    /// Like [`Visits::spoil`], of the directory with this inode number.
    pub(super) fn spoil_ino(&mut self, ino: Ino) {
        for filling in self.filling.values_mut().filter(|filling| filling.ino == ino) {
            filling.is_spoilt = true;
        }
    }

    /// Like [`Visits::spoil`], of all.
    pub(super) fn spoil_all(&mut self) {
        self.filling.values_mut().for_each(|filling| filling.is_spoilt = true);
    }

    /// An operation begins to change a file.
    fn begin_file(&mut self, ino: Ino) {
        *self.files.entry(ino).or_default() += 1;
    }

    /// An operation has changed a file.
    fn end_file(&mut self, ino: Ino) {
        for filling in self.filling.values_mut() {
            filling.changed.insert(ino);
        }
        if let Some(count) = self.files.remove(&ino).filter(|count| *count > 1) {
            self.files.insert(ino, count - 1);
        }
    }

    /// Whether what was asked for of a directory, with these files, is still so.
    fn is_as_told(&self, dir: DirId, files: &[(Ino, EntryName)]) -> bool {
        let Some(filling) = self.filling.get(&dir) else { return false };
        let is_changed = |ino| self.files.contains_key(ino) || filling.changed.contains(ino);
        let are_quiet = self.files.is_empty() && filling.changed.is_empty();
        !filling.is_spoilt && (are_quiet || !files.iter().any(|(ino, _)| is_changed(ino)))
    }

    fn are_quiet(&self, now: Instant) -> bool {
        self.refused.is_some_and(|(until, _)| now < until)
            || self.unanswered.is_some_and(|until| now < until)
    }

    /// A directory was granted, and given back at once for a reason of this client's own.
    fn spoilt(&mut self, dir: DirId, now: Instant) {
        let visit = self.at(dir, now);
        visit.spoilt = doubled(visit.spoilt, SPOILT_FIRST, SPOILT_MAX, now);
    }

    /// Whether a directory is being asked for.
    pub(super) fn is_asked_for(&self, dir: DirId) -> bool {
        self.filling.contains_key(&dir)
    }
}

impl Visit {
    fn is_paused(&self, now: Instant) -> bool {
        [self.pause, self.spoilt].into_iter().flatten().any(|(until, _)| now < until)
    }

    fn is_remembered(&self) -> bool {
        self.pause.is_some() || self.spoilt.is_some()
    }

    /// Counts a change.
    fn counts(&mut self, now: Instant) {
        if now.duration_since(self.since) >= COUNTED {
            (self.changes, self.since, self.enough) = (0, now, CHANGES_MIN);
        }
        self.changes = self.changes.saturating_add(1);
    }
}

/// An operation that is present in a directory.
pub(super) struct Presence<'a> {
    at: Option<(&'a Delegating, DirRef)>,
    /// The file that it changes.
    file: Option<Ino>,
    /// Whether it changes something in a directory that is not held.
    counts: bool,
    /// Whether it may move or remove directories, which are not those that it is present in.
    moves: bool,
    is_answered: bool,
}

impl<'a> Presence<'a> {
    fn new(at: Option<(&'a Delegating, DirRef)>) -> Presence<'a> {
        Presence { at, file: None, counts: false, moves: false, is_answered: true }
    }

    /// Does what the operation is about. If that is given up, nobody knows when it has happened.
    pub(super) async fn ask<T>(&mut self, act: impl Future<Output = T>) -> T {
        self.is_answered = false;
        let done = act.await;
        self.is_answered = true;
        done
    }

    /// Notes that the operation may move or remove directories.
    pub(super) fn moves(&mut self) {
        self.moves = true;
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        if let Some((this, dir)) = self.at.take() {
            if let Some(ino) = self.file {
                this.shared.table.lock().visits.end_file(ino);
            }
            this.leaves(&dir, self.counts);
            if !self.is_answered {
                this.is_unanswered(&dir, self.moves);
            }
        }
    }
}

/// A request of a directory that is held, which is on its way.
pub(super) struct Sending {
    this: Delegating,
    dir: DirRef,
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.this.leaves(&self.dir, false);
    }
}

impl Delegating {
    /// Begins an operation that changes something in a directory (`counts`), or opens a file there.
    /// Waits while the directory is being asked for. Also the directory, if it is held.
    pub(super) async fn enter(
        &self,
        dir: &DirRef,
        counts: bool,
    ) -> (Option<Arc<HeldDir>>, Presence<'_>) {
        if !self.shared.on {
            return (None, Presence::new(None));
        }
        let (held, mut presence) = match self.enters(dir) {
            Some(entered) => entered,
            None => self.enters_later(dir).await,
        };
        let held = match held {
            Some(held) => self.is_live(&held).await.then_some(held),
            None => None,
        };
        if held.is_none() && counts {
            presence.counts = true;
            self.touches(dir);
        }
        (held, presence)
    }

    /// An operation is present from now on, unless the directory is being asked for.
    fn enters(&self, dir: &DirRef) -> Option<(Option<Arc<HeldDir>>, Presence<'_>)> {
        let mut table = self.shared.table.lock();
        if table.visits.is_asked_for(dir.id) && !bugs::has(Bug::PresenceIgnored) {
            return None;
        }
        table.visits.at(dir.id, Instant::now()).present += 1;
        let held = table.dirs.get(&dir.id).filter(|held| held.dir.ino == dir.ino).cloned();
        Some((held, Presence::new(Some((self, *dir)))))
    }

    /// Like [`Delegating::enters`], once the directory is not being asked for any more.
    async fn enters_later(&self, dir: &DirRef) -> (Option<Arc<HeldDir>>, Presence<'_>) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(entered) = self.enters(dir) {
                return entered;
            }
            changed.await;
        }
    }

    /// Begins to open a file.
    pub(super) async fn enter_file(&self, file: &FileRef) -> Presence<'_> {
        let (_, presence) = self.enter(&file.dir, false).await;
        self.works_at(presence, file.ino)
    }

    fn works_at<'a>(&'a self, mut presence: Presence<'a>, ino: Ino) -> Presence<'a> {
        if presence.at.is_some() {
            self.shared.table.lock().visits.begin_file(ino);
            presence.file = Some(ino);
        }
        presence
    }

    /// Begins an operation that changes a node, or what a directory says of it.
    pub(super) async fn enter_node(&self, node: &NodeRef) -> Presence<'_> {
        match node {
            NodeRef::Dir(dir) => self.enter(dir, false).await.1,
            NodeRef::File(file) => {
                let (_, presence) = self.enter(&file.dir, true).await;
                self.works_at(presence, file.ino)
            }
        }
    }

    /// Notes what a rename has moved, or replaced: that is not where it was when it was asked for.
    pub(super) fn spoil_moved(&self, renamed: &Renamed, mode: RenameMode) {
        let mut table = self.shared.table.lock();
        if mode == RenameMode::Exchange {
            return table.visits.spoil_all();
        }
        table.visits.spoil_ino(renamed.moved);
        if let Some(ino) = renamed.replaced_dir {
            table.visits.spoil_ino(ino);
        }
    }

    /// Notes that a request of a held directory is on its way.
    pub(super) fn sends(&self, held: &HeldDir) -> Sending {
        self.shared.table.lock().visits.at(held.dir.id, Instant::now()).present += 1;
        Sending { this: self.clone(), dir: held.dir }
    }

    fn leaves(&self, dir: &DirRef, counts: bool) {
        let now = Instant::now();
        let begins = {
            let mut table = self.shared.table.lock();
            let may_ask = counts && self.may_ask(&table, dir, now);
            let visits = &mut table.visits;
            let visit = visits.at(dir.id, now);
            visit.present -= 1;
            if counts {
                visit.counts(now);
            }
            let is_alone = visit.present == 0 || bugs::has(Bug::PresenceIgnored);
            let enough = if self.shared.eager { 1 } else { visit.enough };
            let is_due = counts && visit.changes >= enough && !visit.is_paused(now);
            let changes = if self.shared.eager { u32::MAX } else { visit.changes };
            if !counts && visit.present == 0 && visit.changes == 0 && !visit.is_remembered() {
                visits.dirs.remove(&dir.id);
            }
            let begins = is_alone && is_due && may_ask;
            if begins {
                visits.filling.insert(
                    dir.id,
                    Filling { ino: dir.ino, is_spoilt: false, changed: HashSet::default() },
                );
            }
            begins.then(|| changes.saturating_mul(NAMES_A_CHANGE))
        };
        if let Some(names_max) = begins {
            let (this, dir) = (self.clone(), *dir);
            self.core.spawn(async move { this.fill(&dir, names_max).await });
        }
    }

    /// An operation in a directory was given up: its request may still be on its way, and its
    /// changes are not noted.
    fn is_unanswered(&self, dir: &DirRef, moves: bool) {
        {
            let visits = &mut self.shared.table.lock().visits;
            visits.unanswered = Some(Instant::now() + UNANSWERED);
            visits.spoil_all();
        }
        if moves {
            let this = self.clone();
            return self.core.spawn(async move { this.give_back_everything().await });
        }
        if let Some(held) = self.held_by_ino(dir.ino) {
            self.give_back_soon(&held);
        }
    }

    /// Whether a directory may be asked for now, as far as others are concerned.
    fn may_ask(&self, table: &Table, dir: &DirRef, now: Instant) -> bool {
        // A return that is on its way might give back what is about to be granted.
        let is_returned = table.returns_sent.contains_key(&dir.id)
            || table.returns.values().any(|returns| returns.contains(&dir.id));
        !is_returned
            && !table.visits.are_quiet(now)
            && !table.visits.is_asked_for(dir.id)
            && !table.dirs.contains_key(&dir.id)
            && !table.is_full()
            && !self.shared.stopped.load(Ordering::Acquire)
    }

    /// Asks for a directory, and for its names.
    async fn fill(&self, dir: &DirRef, names_max: u32) {
        let (filled, server) = self.ask_for(dir, names_max).await;
        let now = Instant::now();
        {
            let mut table = self.shared.table.lock();
            table.visits.filling.remove(&dir.id);
            let visit = table.visits.at(dir.id, now);
            match filled {
                Filled::Taken => (visit.changes, visit.spoilt) = (0, None),
                Filled::TooLarge => visit.enough = visit.enough.max(visit.changes) * 2,
                Filled::Away if !self.shared.eager => table.visits.recalled(dir.id, now),
                Filled::Spoilt if !self.shared.eager => table.visits.spoilt(dir.id, now),
                Filled::Refused if !self.shared.eager => {
                    let before = table.visits.refused;
                    table.visits.refused = doubled(before, REFUSED_FIRST, REFUSED_MAX, now);
                }
                Filled::Spoilt | Filled::Away | Filled::Refused => {}
            }
            if filled != Filled::Refused {
                table.visits.refused = None;
            }
            let server = Some(server).filter(|_| matches!(filled, Filled::Spoilt | Filled::Away));
            if let Some(server) = server.filter(|_| !table.dirs.contains_key(&dir.id)) {
                self.queue_return(table, server, dir.id);
            }
        }
        self.shared.changed.notify_waiters();
    }

    /// Asks for the delegation and all pages. Returns how that ended, and which server was asked.
    async fn ask_for(&self, dir: &DirRef, names_max: u32) -> (Filled, u16) {
        let lease = Lease::begins(self.now());
        let (mut first, grant, run) = match self.ask_page(dir, 0, names_max).await {
            Page::Granted(page, grant, run) => (page, grant, run),
            Page::More(_, run) => return (Filled::TooLarge, run.server),
            Page::Refused(run) => return (Filled::Refused, run.server),
            // The server may have granted it before the answer was lost, and refused it then.
            Page::Failed => return (Filled::Away, self.core.channels.of(dir.home.into()).server),
        };
        let server = run.server;
        let mut reach = first.reach;
        while let Some(after) = reach {
            match self.ask_page(dir, after, names_max).await {
                Page::More(page, by) if by == run => {
                    first.names.extend(page.names);
                    reach = page.reach;
                }
                _ => return (Filled::Away, server),
            }
        }
        let lease = lease.of(Duration::from_millis(grant.lease_ms.into()));
        let is_taken = self.take_existing(*dir, first, &grant, (run, lease));
        (if is_taken { Filled::Taken } else { Filled::Spoilt }, server)
    }

    /// Asks for a page of names, and, with the first one, for the delegation.
    async fn ask_page(&self, dir: &DirRef, after: u64, names_max: u32) -> Page {
        let stands = Held { dir: Some(dir.id), at: None, ino: None, wants: false };
        let stand = Stand::on(if after == 0 { Held::WISH } else { stands });
        let request = Request::Delegate(Delegate { dir: *dir, after, names_max });
        match self.core.call(&self.cred, dir.home, request, stand).await {
            Ok(Done { reply: Reply::Delegated(page), grant: Some(grant), run, .. }) => {
                Page::Granted(page, grant, run)
            }
            Ok(Done { reply: Reply::Delegated(page), run, .. }) => Page::More(page, run),
            Ok(Done { run, .. }) => Page::Refused(run),
            Err(error) => {
                tracing::debug!(dir = dir.ino.0, ?error, "a directory was not delegated");
                Page::Failed
            }
        }
    }

    /// Takes in a directory that was granted with these names. Whether it is held then.
    fn take_existing(
        &self,
        dir: DirRef,
        page: DelegatedPage,
        grant: &Grant,
        (run, lease): (Run, Lease),
    ) -> bool {
        let held = HeldDir::new(dir, page.attr, page.parent_ino, grant, run);
        {
            let mut state = held.state.lock();
            (state.is_moved, state.is_plain) = (page.is_moved, page.is_plain);
            for DelegatedName { name, entry } in page.names {
                let item = match entry {
                    DelegatedEntry::File(DelegatedFile { attr, target, is_plain }) => {
                        let local = Local { is_plain, ..Local::of_server(attr, target) };
                        Item::File(Box::new(local))
                    }
                    DelegatedEntry::Dir(dir) => Item::Dir(dir),
                    DelegatedEntry::Link(ino) => Item::Other(ino),
                };
                state.put(self.pos(&name), name, item);
            }
        }
        let places = held.state.lock().places();
        let mut at_work = Vec::new();
        let held = {
            let mut table = self.shared.table.lock();
            if !table.visits.is_as_told(dir.id, &places)
                || lease.is_over(self.now())
                || table.returns_sent.contains_key(&dir.id)
                || table.dirs.contains_key(&dir.id)
                || table.files.len() + places.len() > FILES_MAX
                || table.is_full()
                || self.shared.stopped.load(Ordering::Acquire)
            {
                return false;
            }
            for (ino, name) in &places {
                let Some(file) = self.core.files.state_of(*ino) else { continue };
                let mut file = file.lock();
                if file.is_unmade || (file.opens == 0 && file.is_dirty()) {
                    // The file is closed, and what was written is on its way.
                    return false;
                }
                if let Some(local) = held.state.lock().file(self.pos(name), name, *ino) {
                    local.is_known = false;
                }
                // Others may have written since it was opened.
                file.forget_contents();
                at_work.push((*ino, name.clone()));
            }
            for (ino, name) in places {
                table.files.insert(ino, (dir.id, name));
            }
            self.hold(table, held, (run, lease), grant)
        };
        self.shared.counters.existing.fetch_add(1, Ordering::Relaxed);
        for (ino, name) in at_work {
            self.is_held(&held, &name, ino);
        }
        true
    }
}

/// The answer to a request for names.
enum Page {
    /// The first names, with the delegation.
    Granted(DelegatedPage, Grant, Run),
    /// More names; or, if the first were asked for, none, as there are too many.
    More(DelegatedPage, Run),
    /// The server does not grant the directory, and perhaps no other.
    Refused(Run),
    Failed,
}

/// How asking for a directory has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    Taken,
    /// More names than it is worth now.
    TooLarge,
    /// Something of this client has come in between.
    Spoilt,
    /// Others are at work there, or it is not there any more.
    Away,
    /// The server grants none now, or not this one.
    Refused,
}
