//! Listings: of one directory, and of a whole tree with many directories at a time.

use std::{mem::ManuallyDrop, os::unix::ffi::OsStrExt as _, path::PathBuf, sync::Arc};

use client::{Client, ReadDir};
use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use pyo3::prelude::*;
use tokio::sync::Mutex;
use wire::ReaddirEntry;

use crate::{driver::Driver, errors::bad_handle};

/// The most entries of a page.
const PAGE: usize = 4096;

/// Directories of a tree that are listed at the same time.
const AT_ONCE: usize = 64;

/// Some entries of a directory, or why it could not be listed.
pub(crate) struct Page {
    pub(crate) dir: PathBuf,
    pub(crate) entries: client::Result<Vec<ReaddirEntry>>,
}

/// The rest of a listing.
pub(crate) struct Pages {
    client: Client,
    /// Directories below are listed, too.
    is_deep: bool,
    waiting: Vec<PathBuf>,
    listing: FuturesUnordered<BoxFuture<'static, (Page, Option<ReadDir>)>>,
}

impl Pages {
    /// A listing of `dir`, which is opened: it is there, and may be listed.
    pub(crate) async fn open(client: Client, dir: PathBuf, is_deep: bool) -> client::Result<Pages> {
        let opened = client.read_dir(&dir).await?;
        let listing = FuturesUnordered::new();
        listing.push(next(dir, opened));
        Ok(Pages { client, is_deep, waiting: Vec::new(), listing })
    }

    /// The next entries, of whichever directory answers first; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Page> {
        while self.listing.len() < AT_ONCE
            && let Some(dir) = self.waiting.pop()
        {
            self.listing.push(Box::pin(open(self.client.clone(), dir)));
        }
        let (page, rest) = self.listing.next().await?;
        if let Some(rest) = rest {
            self.listing.push(next(page.dir.clone(), rest));
        }
        if self.is_deep
            && let Ok(entries) = &page.entries
        {
            let dirs = entries.iter().filter(|entry| entry.is_dir());
            let below =
                dirs.map(|entry| page.dir.join(std::ffi::OsStr::from_bytes(entry.name.as_bytes())));
            self.waiting.extend(below);
        }
        Some(page)
    }
}

async fn open(client: Client, dir: PathBuf) -> (Page, Option<ReadDir>) {
    match client.read_dir(&dir).await {
        Ok(opened) => next(dir, opened).await,
        Err(error) => (Page { dir, entries: Err(error) }, None),
    }
}

/// The next page of a directory, and what is left behind it.
fn next(dir: PathBuf, mut opened: ReadDir) -> BoxFuture<'static, (Page, Option<ReadDir>)> {
    Box::pin(async move {
        let mut entries = Vec::new();
        while entries.len() < PAGE {
            match opened.next().await {
                Ok(Some(entry)) => entries.push(entry),
                Ok(None) => return (Page { dir, entries: Ok(entries) }, None),
                Err(error) => return (Page { dir, entries: Err(error) }, None),
            }
        }
        (Page { dir, entries: Ok(entries) }, Some(opened))
    })
}

/// An open listing.
#[pyclass(frozen, module = "pando", name = "Listing")]
pub(crate) struct Listing {
    pages: ManuallyDrop<Arc<Mutex<Pages>>>,
    driver: &'static Driver,
}

impl Listing {
    pub(crate) fn new(pages: Pages, driver: &'static Driver) -> Listing {
        Listing { pages: ManuallyDrop::new(Arc::new(Mutex::new(pages))), driver }
    }

    /// The rest of it, for an operation.
    pub(crate) fn pages(&self, py: Python<'_>) -> PyResult<Arc<Mutex<Pages>>> {
        if self.driver.is_here() { Ok(Arc::clone(&self.pages)) } else { Err(bad_handle(py)) }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        if self.driver.is_here() {
            #[expect(unsafe_code, reason = "a listing of the parent of a fork is not dropped")]
            // SAFETY: `self` is dropped, so nobody uses the field any more.
            let pages = unsafe { ManuallyDrop::take(&mut self.pages) };
            self.driver.drop(pages);
        }
    }
}
