//! Listings: pages of a directory's entries, and the attributes of those that another server has.
//!
//! A directory of one partition is listed page by page. Of one that is divided several partitions
//! are read at once, and put together in the order of positions (`divided::merge`).

use std::{pin::Pin, time::Duration};

use base::{Attr, Backoff, Cred, FileKind, Ino, Layout};
use futures::{FutureExt as _, StreamExt as _, future::join_all, stream::FuturesUnordered};
use tokio::time::{sleep, timeout};
use wire::{DirRef, NodeRef, Readdir, ReaddirEntry, ReaddirPage, Reply, Request, Stand};

use crate::{
    AccessTimes, Client, FileSystem as _, Result,
    call::{BUSY_PAUSE_FIRST, BUSY_PAUSE_MAX},
    divided::merge::{Ahead, Ask, Merge},
    done::Failure,
    error::unexpected,
    route::Route,
};

/// Number of partitions that are read at once.
pub(crate) const PARTITIONS_AT_ONCE: usize = 4;
/// Least number of entries to ask of a partition, where several are merged.
const PART_ENTRIES_MIN: u32 = 16;
/// Maximum wait for attributes that other servers have.
const COMPLETE_WITHIN: Duration = Duration::from_millis(250);

type Answer = (Ask, Result<ReaddirPage, Failure>);
type Sent = FuturesUnordered<Pin<Box<dyn Future<Output = Answer> + Send>>>;

/// A listing under way.
pub(crate) struct Listing {
    client: Client,
    cred: Cred,
    dir: DirRef,
    plus: bool,
    /// See [`wire::RequestHeader`]; nothing once a server has answered.
    stand: Stand,
    /// Everything up to here was returned.
    after: u64,
    end: bool,
    /// Attributes of the directory, as in the last page that arrived.
    attr: Attr,
    parent_ino: Ino,
    /// Once it is known that the directory has several partitions.
    divided: Option<Divided>,
}

struct Divided {
    merge: Merge,
    sent: Sent,
    pauses: Backoff,
}

impl Listing {
    /// A listing that goes on after a position.
    pub(crate) fn new(
        client: &Client,
        cred: &Cred,
        dir: &DirRef,
        plus: bool,
        (after, stand): (u64, Stand),
    ) -> Listing {
        let divided = client.core.layouts.get(dir).map(|layout| Divided::new(after, layout));
        Listing {
            client: client.clone(),
            cred: cred.clone(),
            dir: *dir,
            plus,
            stand,
            after,
            end: false,
            attr: Attr::blank(dir.ino, FileKind::Directory),
            parent_ino: dir.ino,
            divided,
        }
    }

    /// Returns the next entries, about `max` of them; none at the end only.
    pub(crate) async fn next(
        &mut self,
        max: u32,
        ahead: Ahead,
    ) -> Result<Vec<ReaddirEntry>, Failure> {
        while !self.end {
            let entries = match &self.divided {
                Some(_) => self.next_of_all(max, ahead).await?,
                None => self.next_page(max).await?,
            };
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
        Ok(Vec::new())
    }

    /// The next page of a directory that has one partition, as far as is known.
    async fn next_page(&mut self, max: u32) -> Result<Vec<ReaddirEntry>, Failure> {
        let (route, after) = (Route::Home(self.dir.home), self.after);
        let request = Readdir { dir: self.dir, after, entries_max: max, plus: self.plus };
        match self.client.page_of(&self.cred, route, request, self.stand.clone()).await {
            Ok(page) if page.layout.is_none() => {
                (self.end, self.after) = (page.end, page.reach);
                self.note(&page);
                Ok(page.entries)
            }
            page => {
                self.divided = Some(Divided::new(after, Layout::Whole));
                self.arrived((Ask { partition: 0, after }, page))?;
                Ok(Vec::new())
            }
        }
    }

    async fn next_of_all(&mut self, max: u32, ahead: Ahead) -> Result<Vec<ReaddirEntry>, Failure> {
        loop {
            let Some(divided) = &mut self.divided else { return Ok(Vec::new()) };
            if let Some(entries) = divided.merge.next(size(max)) {
                self.after = divided.merge.after();
                self.end = divided.merge.is_at_end();
                return Ok(entries);
            }
            if divided.merge.must_wait() {
                sleep(divided.pauses.draw(self.client.core.config.random.as_ref())).await;
            }
            if let Some(answer) = self.ask(max, ahead).next().await {
                self.arrived(answer)?;
            }
        }
    }

    /// Asks for what comes after what was returned, and takes in what has arrived.
    pub(crate) fn go_ahead(&mut self, max: u32, ahead: Ahead) -> Result<(), Failure> {
        // Requests that were polled once are on their way.
        while self.divided.is_some()
            && !self.end
            && let Some(Some(answer)) = self.ask(max, ahead).next().now_or_never()
        {
            self.arrived(answer)?;
        }
        Ok(())
    }

    /// Asks for all that is wanted now; what is on its way.
    fn ask(&mut self, max: u32, ahead: Ahead) -> &mut Sent {
        let divided = self.divided.get_or_insert_with(|| Divided::new(self.after, Layout::Whole));
        let width = u32::try_from(divided.merge.width()).unwrap_or(u32::MAX);
        let ahead_max = u32::try_from(ahead.entries).unwrap_or(u32::MAX);
        let of_all = max.saturating_mul(2).max(ahead_max / 2);
        let part = (of_all / width.max(1)).max(PART_ENTRIES_MIN);
        let entries_max = if width > 1 { part } else { max };
        for ask in divided.merge.wants(ahead) {
            let (client, cred, stand) =
                (self.client.clone(), self.cred.clone(), self.stand.clone());
            let route = Route::Partition(self.dir.home, ask.partition);
            let request = Readdir { dir: self.dir, after: ask.after, entries_max, plus: self.plus };
            divided.sent.push(Box::pin(async move {
                (ask, client.page_of(&cred, route, request, stand).await)
            }));
        }
        &mut divided.sent
    }

    fn arrived(&mut self, (ask, page): Answer) -> Result<(), Failure> {
        if let Ok(page) = &page {
            self.client.core.layouts.learn(&self.dir, page.layout.as_ref());
            self.note(page);
        }
        let Some(divided) = &mut self.divided else { return Ok(()) };
        match page {
            // A page must make progress.
            Ok(page) if page.reach <= ask.after => return Err(unexpected().into()),
            Ok(page) => divided.merge.take(ask, page),
            Err(Failure::StaleLayout(news)) => divided.merge.correct(ask, &news),
            // By which path the directory was found does not matter any more.
            Err(Failure::StaleCache) if self.stand.is_none() => divided.merge.lose(ask),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// The server says that the directory is what it was found as.
    fn note(&mut self, page: &ReaddirPage) {
        (self.attr, self.parent_ino) = (page.attr, page.parent_ino);
        self.stand = Stand::NONE;
    }

    /// The whole directory's attributes.
    async fn attributes(&mut self) -> Result<Attr, Failure> {
        if self.divided.is_none() {
            return Ok(self.attr);
        }
        let node = NodeRef::Dir(self.dir);
        let (attr, _) = self.client.core.attributes_of(&self.cred, &node, &Stand::NONE).await?;
        Ok(attr)
    }

    /// A listing counts as read when its beginning is: the access time is brought up to date in the
    /// background.
    pub(crate) fn touch_later(&self) {
        let (client, cred, dir) = (self.client.clone(), self.cred.clone(), self.dir);
        if self.divided.is_none() {
            return client.touch_later(&cred, NodeRef::Dir(dir), &self.attr);
        }
        if client.read_only() || client.core.config.access_times == AccessTimes::Never {
            return;
        }
        let core = self.client.core.clone();
        core.spawn(async move {
            let node = NodeRef::Dir(dir);
            if let Ok((attr, _)) = client.core.attributes_of(&cred, &node, &Stand::NONE).await {
                client.touch_later(&cred, node, &attr);
            }
        });
    }
}

fn size(entries: u32) -> usize {
    usize::try_from(entries).unwrap_or(usize::MAX)
}

impl Divided {
    fn new(after: u64, layout: Layout) -> Divided {
        Divided {
            merge: Merge::new(after, layout),
            sent: FuturesUnordered::new(),
            pauses: Backoff::new(BUSY_PAUSE_FIRST, BUSY_PAUSE_MAX),
        }
    }
}

impl Client {
    /// A page (after a position, of so many entries, with attributes or not) as the directory's own
    /// servers know it: of directories elsewhere it has not all attributes. It is empty at the end
    /// only. `stand`: see [`wire::RequestHeader`].
    pub(crate) async fn page(
        &self,
        cred: &Cred,
        dir: &DirRef,
        (after, entries_max, plus): (u64, u32, bool),
        stand: Stand,
    ) -> Result<ReaddirPage, Failure> {
        let mut listing = Listing::new(self, cred, dir, plus, (after, stand));
        let mut ahead = Ahead { partitions: 1, entries: 0 };
        let mut entries = listing.next(entries_max, ahead).await?;
        // A page of one partition may have few entries only because the partition ends there.
        while listing.divided.is_some() && !listing.end && entries.len() < size(entries_max) {
            ahead.entries = size(entries_max) - entries.len();
            ahead.partitions = PARTITIONS_AT_ONCE;
            let more = u32::try_from(ahead.entries).unwrap_or(u32::MAX);
            entries.extend(listing.next(more, ahead).await?);
        }
        if after == 0 {
            listing.attr = listing.attributes().await?;
            self.touch_later(cred, NodeRef::Dir(*dir), &listing.attr);
        }
        let Listing { after: reach, end, attr, parent_ino, .. } = listing;
        Ok(ReaddirPage { entries, end, attr, parent_ino, reach, layout: None })
    }

    /// A page of the partition that `route` leads to.
    async fn page_of(
        &self,
        cred: &Cred,
        route: Route,
        request: Readdir,
        stand: Stand,
    ) -> Result<ReaddirPage, Failure> {
        let (stamp, dir) = (self.core.files.stamp(), request.dir);
        let done = self.core.call(cred, route, Request::Readdir(request), stand).await?;
        let Reply::Page(mut page) = done.reply else { return Err(unexpected().into()) };
        // The root has no parent for this client, though it may be a part of a larger tree.
        if dir.same(&self.root().0) {
            page.parent_ino = dir.ino;
        }
        for entry in page.entries.iter_mut().filter_map(|entry| entry.entry.as_mut()) {
            if entry.attr.kind == FileKind::File {
                entry.attr = self.core.files.seen(entry.attr, stamp);
            }
        }
        Ok(page)
    }

    /// Asks all servers at once for the attributes that a page lacks. What was removed meanwhile
    /// gets none, nor what a server has that is silent.
    pub(crate) async fn complete_all(
        &self,
        cred: &Cred,
        dir: &DirRef,
        page: &mut ReaddirPage,
    ) -> Result<()> {
        let lacking = page.entries.iter_mut().filter_map(|listed| {
            let partly = listed.entry.as_ref().filter(|entry| !entry.whole)?;
            let node = partly.node(dir, &listed.name);
            Some((&mut listed.entry, node))
        });
        let asked = lacking.map(|(shown, node)| async move {
            let Some(entry) = shown.as_mut() else { return Ok(()) };
            match timeout(COMPLETE_WITHIN, self.complete(cred, entry, &node)).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(Failure::Error(error))) => Err(error),
                Err(_)
                | Ok(Err(
                    Failure::StaleDir
                    | Failure::StaleCache
                    | Failure::StaleLayout(_)
                    | Failure::NotHeld,
                )) => {
                    *shown = None;
                    Ok(())
                }
            }
        });
        join_all(asked).await.into_iter().collect()
    }
}
