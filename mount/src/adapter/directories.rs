//! Open directories.

use base::{Cred, FileKind, Ino};
use client::FileSystem;
use fuse::{DirPage, DirPlusPage, Errno, NodeId};
use std::sync::atomic::Ordering;
use tokio::time::Instant;
use wire::ReaddirEntry;

use super::{Adapter, names::found};
use crate::{
    answer::{Answer, Found, Outcome},
    convert::Failed,
    listing::{AFTER_DOT, AFTER_DOTDOT, Ahead, Place},
};

/// The least that an entry takes in the kernel's buffer, in bytes.
const ENTRY_BYTES: u32 = 32;
const ENTRY_PLUS_BYTES: u32 = 160;

/// A buffer of the kernel's that is being filled.
enum Page {
    Names(DirPage),
    Plus(DirPlusPage, Vec<Found>),
}

impl Page {
    fn plus(&self) -> bool {
        matches!(self, Page::Plus(..))
    }

    fn is_empty(&self) -> bool {
        match self {
            Page::Names(page) => page.is_empty(),
            Page::Plus(page, _) => page.is_empty(),
        }
    }

    /// Adds a name without attributes; false when it does not fit.
    fn push(&mut self, ino: Ino, kind: Option<FileKind>, next: u64, name: &[u8]) -> bool {
        // An unknown kind is `DT_UNKNOWN`.
        let mode = kind.map_or(0, FileKind::mode_bits);
        match self {
            Page::Names(page) => page.push(ino.0, mode, next, name),
            Page::Plus(page, _) => page.push_plain(ino.0, mode, next, name),
        }
    }
}

impl<S: FileSystem> Adapter<S> {
    pub(super) fn opendir(&self, node: NodeId) -> Outcome {
        let dir = self.nodes.lock().dir(node)?;
        Ok(Answer::OpenedDir(self.listings.lock().open(dir)))
    }

    pub(super) fn releasedir(&self, handle: u64) -> Outcome {
        self.listings.lock().close(handle);
        Ok(Answer::Done)
    }

    pub(super) async fn readdir(
        &self,
        cred: &Cred,
        handle: u64,
        cookie: u64,
        size: u32,
    ) -> Outcome {
        let page = Page::Names(DirPage::new(size));
        self.list(cred, handle, cookie, page, size / ENTRY_BYTES).await
    }

    pub(super) async fn readdirplus(
        &self,
        cred: &Cred,
        handle: u64,
        cookie: u64,
        size: u32,
    ) -> Outcome {
        let page = Page::Plus(DirPlusPage::new(size), Vec::new());
        self.list(cred, handle, cookie, page, size / ENTRY_PLUS_BYTES).await
    }

    /// Fills the kernel's buffer with what comes after `cookie`, from one page of the file system;
    /// nothing only at the end.
    async fn list(
        &self,
        cred: &Cred,
        handle: u64,
        mut cookie: u64,
        mut page: Page,
        entries_max: u32,
    ) -> Outcome {
        loop {
            let place = self.listings.lock().get(handle)?.place(cookie)?;
            let ahead = match self.kept(handle, cookie, &place, page.plus())? {
                Some(ahead) => ahead,
                None => self.fetch(cred, handle, &place, page.plus(), entries_max.max(1)).await?,
            };
            let offered = self.fill(&mut page, handle, cookie, &place, &ahead)?;
            if offered && page.is_empty() {
                return Err(Failed(Errno::INVAL));
            }
            let more = ahead.page.entries.last().map(|last| last.pos);
            let ended = ahead.page.end || !page.is_empty();
            self.listings.lock().get(handle)?.keep(ahead);
            match more {
                Some(pos) if !ended => cookie = pos,
                Some(_) | None => break,
            }
        }
        Ok(match page {
            Page::Names(page) => Answer::Dir(page),
            Page::Plus(page, found) => Answer::DirPlus(page, found),
        })
    }

    /// The page that was read ahead, if the listing goes on in it. One that begins anew is read
    /// anew.
    fn kept(
        &self,
        handle: u64,
        cookie: u64,
        place: &Place,
        plus: bool,
    ) -> Result<Option<Ahead>, Failed> {
        let mut listings = self.listings.lock();
        let Some(ahead) = listings.get(handle)?.take_ahead() else { return Ok(None) };
        let fresh =
            !plus || ahead.is_believed(self.changes.load(Ordering::Acquire), self.manners.attr);
        let goes_on = cookie > AFTER_DOTDOT && ahead.from(place).is_some();
        Ok(Some(ahead).filter(|_| fresh && goes_on))
    }

    async fn fetch(
        &self,
        cred: &Cred,
        handle: u64,
        place: &Place,
        plus: bool,
        entries_max: u32,
    ) -> Result<Ahead, Failed> {
        let dir = self.listings.lock().get(handle)?.dir;
        let (after, asked, changes) =
            (place.after(), Instant::now(), self.changes.load(Ordering::Acquire));
        // Listing a directory brings its access time up to date.
        let id = self.nodes.lock().id(dir.ino);
        self.nodes.lock().alters(id);
        let page = self.fs.readdir(cred, &dir, after, entries_max, plus).await;
        self.nodes.lock().alters(id);
        let page = page?;
        Ok(Ahead { after, page, plus, asked, changes })
    }

    /// Puts what fits into the kernel's buffer; whether there was anything to put.
    fn fill(
        &self,
        page: &mut Page,
        handle: u64,
        cookie: u64,
        place: &Place,
        ahead: &Ahead,
    ) -> Result<bool, Failed> {
        let mut listings = self.listings.lock();
        let listing = listings.get(handle)?;
        let (ino, up) = (ahead.page.attr.ino, self.parent(ahead));
        let dots = [(0, AFTER_DOT, &b"."[..], ino), (AFTER_DOT, AFTER_DOTDOT, b"..", up)];
        for (at, next, name, ino) in dots {
            if cookie <= at && !page.push(ino, Some(FileKind::Directory), next, name) {
                return Ok(true);
            }
        }
        let entries = ahead.from(place).unwrap_or_default();
        for (index, entry) in entries.iter().enumerate() {
            let next = listing.cookie(entry, entries.get(index + 1));
            if !self.push(page, listing.dir, entry, next, ahead) {
                break;
            }
        }
        Ok(cookie < AFTER_DOTDOT || !entries.is_empty())
    }

    fn push(
        &self,
        page: &mut Page,
        dir: wire::DirRef,
        listed: &ReaddirEntry,
        next: u64,
        ahead: &Ahead,
    ) -> bool {
        if let (Page::Plus(page, told), Some(entry)) = (&mut *page, &listed.entry) {
            let id = self.nodes.lock().id(entry.attr.ino);
            let age = ahead.asked.elapsed();
            let shown = self.entry_of(id, &entry.attr, age);
            let fits = page.push(&shown, next, listed.name.as_bytes());
            told.extend(fits.then(|| found(&dir, &listed.name, entry, age)));
            return fits;
        }
        page.push(listed.ino, listed.kind, next, listed.name.as_bytes())
    }

    /// The inode number of `..`; the mount's root has nothing above it.
    fn parent(&self, ahead: &Ahead) -> Ino {
        let (ino, parent) = (ahead.page.attr.ino, ahead.page.parent_ino);
        if self.nodes.lock().id(ino) == NodeId::ROOT { ino } else { parent }
    }
}
