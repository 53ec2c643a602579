//! Listings: pages of a directory's entries, and the attributes of those that another server has.

use base::{Cred, FileKind};
use futures::future::join_all;
use wire::{DirRef, NodeRef, Readdir, ReaddirPage, Reply, Request};

use crate::{Client, FileSystem as _, Result, call::Failure, client::unexpected};

impl Client {
    /// A page (after a position, of so many entries, with attributes or not) as the directory's own server knows it: of
    /// directories elsewhere it has not all attributes. `stand`: see [`wire::RequestHeader`].
    pub(crate) async fn page(
        &self,
        cred: &Cred,
        dir: &DirRef,
        (after, entries_max, plus): (u64, u32, bool),
        stand: u64,
    ) -> Result<ReaddirPage, Failure> {
        let stamp = self.core.files.stamp();
        let request = Request::Readdir(Readdir { dir: *dir, after, entries_max, plus });
        let done = self.core.call(cred, dir.home, request, stand).await?;
        let Reply::Page(mut page) = done.reply else { return Err(unexpected().into()) };
        // Nothing is above the root, though it may be a part of a larger tree.
        if dir.same(&self.root().0) {
            page.parent_ino = dir.ino;
        }
        for entry in page.entries.iter_mut().filter_map(|entry| entry.entry.as_mut()) {
            if entry.attr.kind == FileKind::File {
                entry.attr = self.core.files.seen(entry.attr, stamp);
            }
        }
        if after == 0 {
            self.touch_later(cred, NodeRef::Dir(*dir), &page.attr);
        }
        Ok(page)
    }

    /// Asks all servers at once for the attributes that a page lacks. What was removed meanwhile gets none.
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
            match self.complete(cred, entry, &node).await {
                Ok(()) => Ok(()),
                Err(Failure::Error(error)) => Err(error),
                Err(Failure::StaleDir | Failure::StaleCache) => {
                    *shown = None;
                    Ok(())
                }
            }
        });
        join_all(asked).await.into_iter().collect()
    }
}
