//! Listing a directory by its path.
//!
//! For a directory of one partition, the next page is asked for when the last one is used up; for a
//! divided directory, before that. Listings are not cached.

use std::path::Path;

use wire::ReaddirEntry;

use super::{Tries, bytes_of};
use crate::{
    Client, Result,
    divided::merge::Ahead,
    done::Failure,
    listing::{Listing, PARTITIONS_AT_ONCE},
};

const LISTED_ENTRIES: u32 = 1000;
const AHEAD: Ahead = Ahead { partitions: PARTITIONS_AT_ONCE, entries: 16_000 };

/// The entries of a directory, page by page.
pub struct ReadDir {
    listing: Listing,
    page: std::vec::IntoIter<ReaddirEntry>,
}

impl ReadDir {
    /// The next entry, without `.` and `..`; `None` at the end. What is made or removed meanwhile
    /// may be there or not; everything else is there exactly once.
    ///
    /// # Errors
    /// `Stale` when the directory was removed meanwhile.
    pub async fn next(&mut self) -> Result<Option<ReaddirEntry>> {
        if let Some(entry) = self.page.next() {
            return Ok(Some(entry));
        }
        self.page = self.more().await.map_err(Failure::by_handle)?.into_iter();
        Ok(self.page.next())
    }

    /// The next entry if it has arrived already; `None`: [`ReadDir::next`] may have to ask for it.
    pub fn next_arrived(&mut self) -> Option<ReaddirEntry> {
        self.page.next()
    }

    async fn more(&mut self) -> Result<Vec<ReaddirEntry>, Failure> {
        let mut entries = self.listing.next(LISTED_ENTRIES, AHEAD).await?;
        self.listing.go_ahead(LISTED_ENTRIES, AHEAD)?;
        // A caller that wants the attributes of a directory elsewhere asks for them.
        for listed in &mut entries {
            listed.entry.take_if(|entry| !entry.whole);
        }
        Ok(entries)
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
            let listing = Listing::new(self, &self.cred, &dir, true, (0, stand));
            let mut listed = ReadDir { listing, page: Vec::new().into_iter() };
            match listed.more().await {
                Ok(page) => {
                    listed.listing.touch_later();
                    return Ok(ReadDir { page: page.into_iter(), ..listed });
                }
                // The directory was replaced since this client found it.
                Err(failure) => {
                    self.core.forget_if_stale(&failure, &dir);
                    tries.again(&self.core, failure).await?;
                }
            }
        }
    }
}
