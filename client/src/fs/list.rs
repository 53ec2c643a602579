//! Listing a directory by its path.
//!
//! Pages are asked for one at a time, when the one before it is used up; what is listed is not remembered.

use std::path::Path;

use wire::{DirRef, ReaddirEntry, ReaddirPage};

use super::{Tries, bytes_of};
use crate::{Client, Result, call::Failure};

const LISTED_ENTRIES: u32 = 1000;

/// The entries of a directory, page by page.
pub struct ReadDir {
    client: Client,
    dir: DirRef,
    page: std::vec::IntoIter<ReaddirEntry>,
    after: u64,
    end: bool,
}

impl ReadDir {
    /// The next entry, without `.` and `..`; `None` at the end. What is made or removed meanwhile may be
    /// there or not; everything else is there exactly once.
    ///
    /// # Errors
    /// `Stale` when the directory was removed meanwhile.
    pub async fn next(&mut self) -> Result<Option<ReaddirEntry>> {
        loop {
            if let Some(entry) = self.page.next() {
                self.after = entry.pos;
                return Ok(Some(entry));
            }
            if self.end {
                return Ok(None);
            }
            let page = self.client.list(&self.dir, self.after, 0).await;
            let page = page.map_err(Failure::by_handle)?;
            self.end = page.end;
            self.page = page.entries.into_iter();
        }
    }

    /// All entries that are left.
    ///
    /// # Errors
    /// As [`ReadDir::next`].
    pub async fn all(mut self) -> Result<Vec<ReaddirEntry>> {
        let mut all = Vec::new();
        while let Some(entry) = self.next().await? {
            all.push(entry);
        }
        Ok(all)
    }
}

impl Client {
    /// Lists a directory.
    ///
    /// # Errors
    /// As `opendir(3)`.
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let (path, mut tries) = (bytes_of(path.as_ref()), Tries::new());
        loop {
            let (dir, stand) = match self.core.resolve_dir(&self.cred, path).await {
                Ok(found) => found,
                Err(failure) => {
                    tries.again(&self.core, failure).await?;
                    continue;
                }
            };
            match self.list(&dir, 0, stand).await {
                Ok(page) => {
                    let (end, page) = (page.end, page.entries.into_iter());
                    return Ok(ReadDir { client: self.clone(), dir, page, after: 0, end });
                }
                // It was replaced since we found it.
                Err(failure) => {
                    self.core.forget_if_stale(&failure, &dir);
                    tries.again(&self.core, failure).await?;
                }
            }
        }
    }

    async fn list(&self, dir: &DirRef, after: u64, stand: u64) -> Result<ReaddirPage, Failure> {
        let mut page = self.page(&self.cred, dir, (after, LISTED_ENTRIES, true), stand).await?;
        // Who wants the attributes of a directory elsewhere asks for them.
        for listed in &mut page.entries {
            listed.entry.take_if(|entry| !entry.whole);
        }
        Ok(page)
    }
}
