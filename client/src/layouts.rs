//! How directories of several partitions are divided, as far as servers have said, and which
//! partition a request is for.
//!
//! A request about a name goes to the partition that has the name. What a client knows of that may
//! be old: then the server answers what it knows itself, and the request is sent anew (`call`). It
//! is a hint only, and nobody has to tell a client when it changes. What turns out to be of no use
//! is forgotten: the directory's first partition, the master, is always there to be asked.
//!
//! Hardly any directory has several partitions; as long as none was met, nothing is looked up.
//!
//! Paper: SFS §3.4.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
};

use base::{DirId, HashKey, HashMap, Ino, Layout};
use parking_lot::Mutex;
use wire::{DirRef, LayoutNews, Request};

use crate::inode_routes;

/// Maximum number of remembered directories; the oldest is forgotten.
const DIRS_MAX: usize = 4096;

/// Layouts of directories, as this client has learnt them.
#[derive(Debug, Default)]
pub(crate) struct Layouts {
    /// Whether any layout was ever learnt.
    any: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    by_dir: HashMap<DirId, (Ino, Layout)>,
    /// In the order in which they were learnt; some may be forgotten.
    order: VecDeque<DirId>,
}

/// The next partition for a request, after a partition that does not have its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Correction {
    pub(crate) partition: u16,
    /// Whether to wait before the next try: the request has just been at this partition, so a
    /// server must catch up first.
    pub(crate) wait: bool,
}

impl Layouts {
    /// Returns whether no layout was ever learnt.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// The partition that has what stands at a position, if the directory is known to have several.
    pub(crate) fn partition(&self, dir: &DirRef, pos: u64) -> Option<u16> {
        let known = self.known.lock();
        let (ino, layout) = known.by_dir.get(&dir.id)?;
        (*ino == dir.ino).then(|| layout.partition(pos))
    }

    /// The partition that may have what stands at a position, if the id is that of a directory.
    pub(crate) fn guess(&self, dir: DirId, pos: impl FnOnce() -> u64) -> u16 {
        if self.is_empty() {
            return 0;
        }
        let known = self.known.lock();
        known.by_dir.get(&dir).map_or(0, |(_, layout)| layout.partition(pos()))
    }

    /// How a directory is divided, if it is known to be.
    pub(crate) fn get(&self, dir: &DirRef) -> Option<Layout> {
        if self.is_empty() {
            return None;
        }
        let known = self.known.lock();
        let (ino, layout) = known.by_dir.get(&dir.id)?;
        (*ino == dir.ino).then(|| layout.clone())
    }

    /// Takes in what a partition said of itself; `None`: it has everything.
    pub(crate) fn learn(&self, dir: &DirRef, layout: Option<&Layout>) {
        match layout {
            Some(layout) => {
                self.any.store(true, Ordering::Relaxed);
                self.known.lock().learn(dir.id, dir.ino, layout);
            }
            None => self.forget(dir.id),
        }
    }

    /// Forgets how a directory is divided.
    pub(crate) fn forget(&self, dir: DirId) {
        if !self.is_empty() {
            self.known.lock().forget(dir);
        }
    }

    /// Takes in what the server of partition `asked` says, who does not have what stands at `pos`.
    ///
    /// Where this client knows as much, and would go to the same partition again, it knows of
    /// something that never was: a server may have told of it, and lost it with its power. No later
    /// news could correct that. So it is forgotten, and the master asked.
    pub(crate) fn correct(&self, news: &LayoutNews, pos: u64, asked: u16) -> Correction {
        self.any.store(true, Ordering::Relaxed);
        let mut known = self.known.lock();
        let partition = match &news.layout {
            Some(layout) => known.learn(news.dir, news.ino, layout).partition(pos),
            None => asked,
        };
        if partition != asked {
            return Correction { partition, wait: false };
        }
        known.forget(news.dir);
        Correction { partition: 0, wait: asked == 0 }
    }
}

impl Known {
    fn learn(&mut self, dir: DirId, ino: Ino, layout: &Layout) -> &Layout {
        if !self.by_dir.contains_key(&dir) {
            self.order.push_back(dir);
        }
        while self.order.len() > DIRS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_dir.remove(&oldest);
        }
        let (known, ours) = self.by_dir.entry(dir).or_insert_with(|| (ino, layout.clone()));
        if *known == ino {
            ours.learn(layout);
        } else {
            (*known, *ours) = (ino, layout.clone());
        }
        ours
    }

    fn forget(&mut self, dir: DirId) {
        if self.by_dir.remove(&dir).is_some() {
            self.order.retain(|known| *known != dir);
        }
    }
}

/// The directory of the name that a request is sent for, and the name's position there.
pub(crate) fn named_dir(request: &mut Request, key: &HashKey) -> Option<(DirRef, u64)> {
    let (dir, name) = match request {
        Request::Lookup(req) => (req.dir, &req.name),
        Request::Walk(req) => (req.from, req.names.first()?),
        Request::Create(req) => (req.dir, &req.name),
        Request::Mkdir(req) => (req.dir, &req.name),
        Request::Symlink(req) => (req.dir, &req.name),
        Request::Link(req) => (req.dir, &req.name),
        Request::Unlink(req) => (req.dir, &req.name),
        Request::Rmdir(req) => (req.dir, &req.name),
        Request::Rename(req) => (req.from_dir, &req.from_name),
        request => {
            let file = inode_routes::file_of(request)?;
            (file.dir, &file.name)
        }
    };
    Some((dir, key.pos(name)))
}

#[cfg(test)]
mod tests {
    use base::Splits;

    use super::*;

    const DIR: DirRef = DirRef { id: DirId(7), ino: Ino(70), home: DirId(7), ticket: 0 };

    fn split(partitions: u16) -> Layout {
        Layout::Extendible(Splits::started(1, partitions))
    }

    fn news(layout: Option<Layout>) -> LayoutNews {
        LayoutNews { dir: DIR.id, ino: DIR.ino, layout }
    }

    /// A position in this partition of four, and in partition 1 of two if it is odd.
    fn pos_in(partition: u16) -> u64 {
        (1..).map(|top| top << 56).find(|pos| split(4).partition(*pos) == partition).unwrap()
    }

    #[test]
    fn news_lead_to_the_partition_that_has_the_name() {
        let layouts = Layouts::default();
        assert_eq!(layouts.partition(&DIR, pos_in(3)), None);
        let to = layouts.correct(&news(Some(split(2))), pos_in(3), 0);
        assert_eq!(to, Correction { partition: 1, wait: false });
        let to = layouts.correct(&news(Some(split(4))), pos_in(3), 1);
        assert_eq!(to, Correction { partition: 3, wait: false });
        assert_eq!(layouts.partition(&DIR, pos_in(2)), Some(2));
        let another = DirRef { ino: Ino(71), ..DIR };
        assert_eq!(layouts.partition(&another, pos_in(2)), None, "it is another directory");
    }

    #[test]
    fn who_asked_by_an_older_layout_goes_by_what_was_learnt_meanwhile() {
        let layouts = Layouts::default();
        layouts.correct(&news(Some(split(4))), pos_in(3), 0);
        let to = layouts.correct(&news(Some(split(2))), pos_in(3), 1);
        assert_eq!(to, Correction { partition: 3, wait: false });
    }

    #[test]
    fn a_partition_that_never_was_is_forgotten_and_the_master_asked() {
        let layouts = Layouts::default();
        layouts.correct(&news(Some(split(4))), pos_in(3), 0);
        let to = layouts.correct(&news(Some(split(2))), pos_in(3), 3);
        assert_eq!(to, Correction { partition: 0, wait: false });
        assert_eq!(layouts.partition(&DIR, pos_in(3)), None);
        let to = layouts.correct(&news(Some(split(2))), pos_in(3), 0);
        assert_eq!(to, Correction { partition: 1, wait: false });
    }

    #[test]
    fn where_there_is_no_partition_the_master_is_asked_and_asked_again_later() {
        let layouts = Layouts::default();
        layouts.correct(&news(Some(split(4))), pos_in(3), 0);
        let to = layouts.correct(&news(None), pos_in(3), 3);
        assert_eq!(to, Correction { partition: 0, wait: false });
        assert_eq!(layouts.partition(&DIR, pos_in(3)), None);
        let to = layouts.correct(&news(None), pos_in(3), 0);
        assert_eq!(to, Correction { partition: 0, wait: true });
    }

    #[test]
    fn what_was_learnt_first_is_forgotten_first() {
        let layouts = Layouts::default();
        let at = |id: u128| DirRef { id: DirId(id), ..DIR };
        for id in 0..=DIRS_MAX as u128 {
            layouts.correct(&LayoutNews { dir: DirId(id), ..news(Some(split(2))) }, pos_in(1), 0);
        }
        assert_eq!(layouts.partition(&at(0), pos_in(1)), None);
        assert_eq!(layouts.partition(&at(1), pos_in(1)), Some(1));
    }
}
