//! Open directories: cookies, and the page that was read ahead.
//!
//! The cookie of an entry is its position, so it stays right whatever is made or removed and
//! however long a program keeps it; `.` and `..` have 1 and 2. Positions are hashes: should two
//! names of one directory have the same one, a cookie between them is one of the few numbers below
//! the first position, remembered for as long as the directory is open. Entries of one position
//! come in the order of their names.
//!
//! What did not fit in the kernel's buffer is kept and given next, if the kernel goes on from
//! there. Names may be as old as the listing. Attributes may not: they are given along only while
//! nothing was changed through this mount since they were read, and for what is left of the time
//! the kernel may believe them; otherwise the page is read again.

use std::time::Duration;

use base::{EntryName, HashMap, hash::POS_MIN};
use fuse::Errno;
use tokio::time::Instant;
use wire::{DirRef, ReaddirEntry, ReaddirPage};

use crate::convert::Failed;

/// The cookie after `.`.
pub(crate) const AFTER_DOT: u64 = 1;
/// The cookie after `..`.
pub(crate) const AFTER_DOTDOT: u64 = 2;
/// The first cookie between two entries of one position.
const BETWEEN_FIRST: u64 = 3;
/// How many of them there are; the oldest is used again.
const BETWEEN_MAX: usize = 13;
const _: () = assert!(BETWEEN_FIRST + BETWEEN_MAX as u64 == POS_MIN);

/// All open directories of the mount.
#[derive(Default)]
pub(crate) struct Listings {
    open: HashMap<u64, Listing>,
    last: u64,
}

/// One open directory.
pub(crate) struct Listing {
    pub(crate) dir: DirRef,
    ahead: Option<Ahead>,
    between: Vec<Place>,
    between_next: usize,
}

/// A page that was read.
pub(crate) struct Ahead {
    /// The page holds every entry after this position, up to its last one.
    pub(crate) after: u64,
    pub(crate) page: ReaddirPage,
    pub(crate) plus: bool,
    /// When it was asked for, and the mount's count of changes then.
    pub(crate) asked: Instant,
    pub(crate) changes: u64,
}

/// Where a listing goes on: after all of a position, or after one name of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pos: u64,
    name: Option<EntryName>,
}

impl Listings {
    pub(crate) fn open(&mut self, dir: DirRef) -> u64 {
        self.last += 1;
        let listing = Listing { dir, ahead: None, between: Vec::new(), between_next: 0 };
        self.open.insert(self.last, listing);
        self.last
    }

    pub(crate) fn close(&mut self, handle: u64) {
        self.open.remove(&handle);
    }

    pub(crate) fn get(&mut self, handle: u64) -> Result<&mut Listing, Failed> {
        self.open.get_mut(&handle).ok_or(Failed(Errno::BADF))
    }
}

impl Listing {
    /// Where the listing goes on after `cookie`.
    pub(crate) fn place(&self, cookie: u64) -> Result<Place, Failed> {
        if cookie >= POS_MIN {
            return Ok(Place { pos: cookie, name: None });
        }
        let Some(index) = cookie.checked_sub(BETWEEN_FIRST) else {
            return Ok(Place { pos: 0, name: None });
        };
        let index = usize::try_from(index).expect("less than the first position");
        self.between.get(index).cloned().ok_or(Failed(Errno::INVAL))
    }

    /// The cookie after `entry`, when `next` comes next.
    pub(crate) fn cookie(&mut self, entry: &ReaddirEntry, next: Option<&ReaddirEntry>) -> u64 {
        if next.is_none_or(|next| next.pos != entry.pos) {
            return entry.pos;
        }
        let place = Place { pos: entry.pos, name: Some(entry.name.clone()) };
        let index = match self.between.iter().position(|known| *known == place) {
            Some(index) => index,
            None => self.remember(place),
        };
        BETWEEN_FIRST + index as u64
    }

    fn remember(&mut self, place: Place) -> usize {
        if self.between.len() < BETWEEN_MAX {
            self.between.push(place);
            return self.between.len() - 1;
        }
        let index = self.between_next;
        self.between[index] = place;
        self.between_next = (index + 1) % BETWEEN_MAX;
        index
    }

    /// Takes out the page that was read ahead.
    pub(crate) fn take_ahead(&mut self) -> Option<Ahead> {
        self.ahead.take()
    }

    /// Keeps a page for the next call.
    pub(crate) fn keep(&mut self, ahead: Ahead) {
        self.ahead = Some(ahead);
    }
}

impl Place {
    /// The position after which a page must begin to hold what comes next.
    pub(crate) fn after(&self) -> u64 {
        if self.name.is_some() { self.pos - 1 } else { self.pos }
    }

    fn precedes(&self, entry: &ReaddirEntry) -> bool {
        match &self.name {
            None => entry.pos > self.pos,
            Some(name) => (entry.pos, &entry.name) > (self.pos, name),
        }
    }
}

impl Ahead {
    /// The entries from `place` on, if the page holds the first of them or is known to be the last
    /// page.
    pub(crate) fn from(&self, place: &Place) -> Option<&[ReaddirEntry]> {
        if place.after() < self.after {
            return None;
        }
        let entries = &self.page.entries;
        let rest = &entries[entries.partition_point(|entry| !place.precedes(entry))..];
        (!rest.is_empty() || self.page.end).then_some(rest)
    }

    /// Whether the attributes may still be given to the kernel, which then believes them for the
    /// rest of `timeout`.
    pub(crate) fn is_believed(&self, changes: u64, timeout: Duration) -> bool {
        self.plus && self.changes == changes && self.asked.elapsed() < timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Attr, DirId, FileKind, Ino};

    fn entry(pos: u64, name: &str) -> ReaddirEntry {
        let name = EntryName::new(name.as_bytes()).unwrap();
        ReaddirEntry { pos, name, ino: Ino(9), kind: Some(FileKind::File), entry: None }
    }

    fn ahead(after: u64, entries: Vec<ReaddirEntry>, end: bool) -> Ahead {
        let attr = Attr { mode: 0o755, ..Attr::blank(Ino(1), FileKind::Directory) };
        let page = ReaddirPage { entries, end, attr, parent_ino: Ino(1), reach: 0, layout: None };
        Ahead { after, page, plus: true, asked: Instant::now(), changes: 0 }
    }

    fn listing() -> (Listings, u64) {
        let mut listings = Listings::default();
        let dir = DirRef { id: DirId(1), ino: Ino(1), home: DirId(1), ticket: 0 };
        let handle = listings.open(dir);
        (listings, handle)
    }

    fn names(entries: Option<&[ReaddirEntry]>) -> Option<Vec<String>> {
        Some(entries?.iter().map(|entry| entry.name.to_string()).collect())
    }

    #[test]
    fn a_page_goes_on_only_where_it_is_known_to() {
        let (mut listings, handle) = listing();
        let listing = listings.get(handle).unwrap();
        let page = ahead(20, vec![entry(30, "a"), entry(40, "b")], false);
        let from = |cookie| names(page.from(&listing.place(cookie).unwrap()));
        assert_eq!(from(AFTER_DOTDOT), None);
        assert_eq!(from(20), Some(vec!["a".into(), "b".into()]));
        assert_eq!(from(35), Some(vec!["b".into()]));
        assert_eq!(from(40), None);
        let page = Ahead { page: ReaddirPage { end: true, ..page.page }, ..page };
        assert_eq!(names(page.from(&listing.place(40).unwrap())), Some(vec![]));
    }

    #[test]
    fn names_of_one_position_are_told_apart() {
        let (mut listings, handle) = listing();
        let listing = listings.get(handle).unwrap();
        let run = vec![entry(30, "a"), entry(30, "b"), entry(30, "c"), entry(31, "d")];
        let cookies: Vec<u64> =
            (0..4).map(|index| listing.cookie(&run[index], run.get(index + 1))).collect();
        assert_eq!(cookies, [3, 4, 30, 31]);
        assert_eq!(listing.cookie(&run[0], run.get(1)), 3);
        let page = ahead(29, run, true);
        let place = listing.place(3).unwrap();
        assert_eq!(place.after(), 29);
        assert_eq!(names(page.from(&place)), Some(vec!["b".into(), "c".into(), "d".into()]));
        assert_eq!(names(page.from(&listing.place(30).unwrap())), Some(vec!["d".into()]));
        assert_eq!(listing.place(9), Err(Failed(Errno::INVAL)));
    }

    #[tokio::test(start_paused = true)]
    async fn attributes_are_believed_no_longer_than_the_kernel_may() {
        let page = ahead(0, Vec::new(), true);
        let second = Duration::from_secs(1);
        assert!(page.is_believed(0, second));
        assert!(!page.is_believed(1, second), "something was changed");
        assert!(!page.is_believed(0, Duration::ZERO));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(page.is_believed(0, second));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!page.is_believed(0, second));
    }
}
