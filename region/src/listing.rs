//! Listings: what is known here, and then the rest of what is below.
//!
//! A name that was made or removed before the listing began is right in it; the whole is no
//! snapshot of one moment. Nothing is committed for a listing.
//!
//! Paper: Pacon §III-D has a barrier for each listing, and reads it below.

use std::{collections::BTreeMap, sync::Arc};

use base::{EntryName, FileKind, FsError, Ino, layout::POS_MAX};
use client::Result;
use wire::{DirRef, ReaddirEntry, ReaddirPage};

use crate::{
    Path, Region,
    below::Listed,
    hidden,
    table::{ABSENT_MS, Due, Slot, Table},
};

/// Listings that are kept for the pages after the first one.
const KEPT_MAX: usize = 32;

/// A name, and what it stood for when the listing began.
#[derive(Debug, Clone)]
struct Name {
    pos: u64,
    name: EntryName,
    ino: Ino,
    kind: Option<FileKind>,
}

/// The latest listings, each in the order of its positions.
#[derive(Default)]
pub(crate) struct Listings {
    kept: Vec<(Ino, Arc<Vec<Name>>)>,
}

impl Listings {
    fn keep(&mut self, dir: Ino, names: Arc<Vec<Name>>) {
        self.kept.retain(|(kept, _)| *kept != dir);
        if self.kept.len() == KEPT_MAX {
            self.kept.remove(0);
        }
        self.kept.push((dir, names));
    }

    fn drop(&mut self, dir: Ino) {
        self.kept.retain(|(kept, _)| *kept != dir);
    }

    fn get(&self, dir: Ino) -> Option<Arc<Vec<Name>>> {
        self.kept.iter().find(|(kept, _)| *kept == dir).map(|(_, names)| Arc::clone(names))
    }
}

impl Region {
    pub(crate) async fn list(
        &self,
        dir: &DirRef,
        after: u64,
        entries_max: u32,
        plus: bool,
    ) -> Result<ReaddirPage> {
        let path = self.run(|table| table.dir_path(dir)).await?;
        let kept = if after == 0 { None } else { self.lock().listings.get(dir.ino) };
        let names = match kept {
            Some(names) => names,
            None => self.begin_listing(dir, &path).await?,
        };
        let page = page(&names, after, entries_max);
        let end = page.last().map_or(after, |last| last.pos);
        let is_end = names.last().is_none_or(|last| last.pos <= end);
        if plus {
            // Names that cannot be looked at are listed all the same.
            drop(self.load_missing(&path, page).await);
        }
        if is_end {
            self.lock().listings.drop(dir.ino);
        }
        self.run(|table| {
            let path = table.dir_path(dir)?;
            let entries = page.iter().filter_map(|name| table.listed(&path, name, plus)).collect();
            let parent_ino = table.above(&path).map_or(Ino::ROOT, |(ino, _)| ino);
            Ok(ReaddirPage {
                entries,
                end: is_end,
                attr: table.show_attr(dir.ino),
                parent_ino,
                reach: if is_end { POS_MAX } else { end },
                layout: None,
            })
        })
        .await
    }

    /// All names in a directory, as they are now.
    async fn begin_listing(&self, dir: &DirRef, path: &Path) -> Result<Arc<Vec<Name>>> {
        let knows_all = self
            .run(|table| {
                let path = table.dir_path(dir)?;
                let node = table.node(dir.ino);
                let directory = node.directory().ok_or(FsError::NotDirectory)?;
                Ok(directory.knows_all() || table.is_not_below(&path))
            })
            .await?;
        let below = if knows_all { Vec::new() } else { self.list_below(dir.ino, path).await? };
        let mut names: Vec<Name> = self
            .run(|table| {
                let path = table.dir_path(dir)?;
                let mut names = BTreeMap::new();
                for listed in &below {
                    if hidden::is_free(dir, &listed.name).is_ok()
                        && table.is_new_to(&path.child(&listed.name))
                    {
                        names.insert(listed.name.clone(), (listed.ino, listed.kind));
                    }
                }
                let known = &table.node(dir.ino).directory().ok_or(FsError::NotDirectory)?.children;
                for name in known {
                    let Ok(Some(ino)) = table.find_held(&path.child(name)) else {
                        continue;
                    };
                    names.insert(name.clone(), (ino, Some(table.node(ino).attr.kind)));
                }
                let key = &self.0.key;
                let name = |(name, (ino, kind))| Name { pos: key.pos(&name), name, ino, kind };
                Ok(names.into_iter().map(name).collect())
            })
            .await?;
        names.sort_by_key(|name| name.pos);
        let names = Arc::new(names);
        self.lock().listings.keep(dir.ino, Arc::clone(&names));
        Ok(names)
    }

    /// Has the table know which names are not in a directory.
    pub(crate) async fn learn_names(&self, path: &Path, due: Due) {
        // Where it is listed already the caller is to look again.
        if self.begin_load(std::slice::from_ref(path)).await {
            drop(self.list_begun(path, due).await);
        }
    }

    async fn list_below(&self, dir: Ino, path: &Path) -> Result<Vec<Listed>> {
        while !self.begin_load(std::slice::from_ref(path)).await {}
        let due = self.lock().absences.whole(dir);
        self.list_begun(path, due).await
    }

    /// Lists a directory, of which that is noted.
    async fn list_begun(&self, path: &Path, due: Due) -> Result<Vec<Listed>> {
        let (asked, until) = (path.clone(), self.lock().now.plus_ms(ABSENT_MS));
        let listed = self.call(move |below| below.list(&asked, due.entries_max())).await;
        let mut table = self.lock();
        self.end_load(&mut table, std::slice::from_ref(path));
        table.counts.loads += 1;
        table.absences.learn(due, listed.as_deref().ok(), until);
        Ok(listed?)
    }

    /// Looks up below what of a page is not known yet.
    async fn load_missing(&self, path: &Path, page: &[Name]) -> Result<()> {
        let missing: Vec<Path> = {
            let table = self.lock();
            let paths = page.iter().map(|name| path.child(&name.name));
            paths.filter(|path| table.is_new_to(path) && !table.loading.contains(path)).collect()
        };
        if missing.is_empty() { Ok(()) } else { self.load(missing).await }
    }
}

/// The names of a page: it ends with a whole run of names at one position.
fn page(names: &[Name], after: u64, entries_max: u32) -> &[Name] {
    let from = names.partition_point(|name| name.pos <= after);
    let count = usize::try_from(entries_max.max(1)).unwrap_or(usize::MAX);
    let mut to = from.saturating_add(count).min(names.len());
    while to > from && to < names.len() && names[to].pos == names[to - 1].pos {
        to += 1;
    }
    &names[from..to]
}

impl Table {
    /// Whether the table does not know what is at a path below, or not any more.
    fn is_new_to(&self, path: &Path) -> bool {
        self.entries.get(path).is_none_or(|entry| self.is_old(path, entry))
    }

    /// Whether a directory was made here and is not below yet.
    fn is_not_below(&self, path: &Path) -> bool {
        let entry = self.entries.get(path);
        entry.and_then(|entry| self.node_of(entry)).is_some_and(|node| node.fresh)
    }

    /// An entry of a page, unless it is gone.
    fn listed(&mut self, path: &Path, name: &Name, plus: bool) -> Option<ReaddirEntry> {
        let Name { pos, name, ino, kind } = name.clone();
        let path = path.child(&name);
        let known = self.entries.get(&path).filter(|_| !self.is_new_to(&path));
        let (ino, kind, entry) = match known.map(|entry| entry.slot) {
            Some(Slot::Node(ino)) => {
                let entry = plus.then(|| self.show(ino));
                (ino, Some(self.node(ino).attr.kind), entry)
            }
            Some(Slot::Absent(_)) => return None,
            None => (ino, kind, None),
        };
        Some(ReaddirEntry { pos, name, ino, kind, entry })
    }
}
