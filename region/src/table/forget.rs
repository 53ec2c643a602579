//! Forgetting: what is below as it is here may be looked up there again.
//!
//! Paper: Pacon §III-F evicts one entry of the region's directory after the other. Here files go,
//! wherever they are; directories stay, as programs are in them.

use base::Ino;

use super::{Slot, Table};
use crate::Path;

impl Table {
    /// Brings a table that takes more than nine tenths of its memory down to seven, if what is
    /// committed is enough for that.
    pub(crate) fn forget(&mut self) {
        let max = self.bounds.memory_max;
        if self.memory <= max / 10 * 9 || !self.holds.is_empty() {
            return;
        }
        let goal = max / 10 * 7;
        let mut over = self.memory - goal;
        let mut forgotten: Vec<(Path, Option<Ino>)> = Vec::new();
        for (path, entry) in &self.entries {
            if over == 0 {
                break;
            }
            if entry.committing || self.dirty.contains(path) || self.loading.contains(path) {
                continue;
            }
            let (ino, bytes) = match entry.slot {
                Slot::Absent(_) => (None, 0),
                Slot::Node(ino) => {
                    let node = self.node(ino);
                    let stays = node.opens > 0
                        || node.is_dir()
                        || node.failed.is_some()
                        // Other names of it would then stand for another file.
                        || node.attr.nlink > 1;
                    if stays {
                        continue;
                    }
                    (Some(ino), node.contents_bytes())
                }
            };
            over = over.saturating_sub(super::entry_bytes(path) + bytes);
            forgotten.push((path.clone(), ino));
        }
        for (path, ino) in forgotten {
            self.forget_entry(&path, ino);
        }
    }

    fn forget_entry(&mut self, path: &Path, ino: Option<Ino>) {
        if let Some((dir, name)) = self.above(path) {
            let directory = self.directory_mut(dir);
            directory.children.remove(&name);
            directory.forgot = true;
        }
        self.drop_entry(path);
        if let Some(ino) = ino {
            self.node_mut(ino).path = None;
            self.forget_unused(ino);
        }
    }
}
