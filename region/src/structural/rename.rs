//! rename: below moves, and then the table does.
//!
//! POSIX: rename(2). What may be moved where is decided below; here it is only looked up which
//! nodes move.

use base::{EntryName, FsError, Ino};
use client::Result;
use wire::{DirRef, RenameMode, Renamed};

use crate::{
    Path, Region,
    commit::within,
    table::{Entry, Slot, Table, entry_bytes},
};

impl Region {
    pub(crate) async fn rename_below(
        &self,
        (from_dir, from_name): (&DirRef, &EntryName),
        (to_dir, to_name): (&DirRef, &EntryName),
        mode: RenameMode,
    ) -> Result<Renamed> {
        let (from, to) = self
            .run(|table| {
                let from = table.dir_path(from_dir)?.child(from_name);
                let to = table.dir_path(to_dir)?.child(to_name);
                table.find(&from)?.ok_or(FsError::NotFound)?;
                table.find(&to)?;
                Ok((from, to))
            })
            .await?;
        let scopes = [from.clone(), to.clone()];
        let _held = self.hold(&scopes).await;
        self.still(from_dir.ino, &from)?;
        self.still(to_dir.ino, &to)?;
        self.drain(&scopes, true).await?;
        let source = self.find_now(&from).await?.ok_or(FsError::NotFound)?;
        let target = self.find_now(&to).await?;
        match mode {
            RenameMode::NoReplace if target.is_some() => return Err(FsError::Exists.into()),
            RenameMode::Exchange if target.is_none() => return Err(FsError::NotFound.into()),
            RenameMode::Replace | RenameMode::NoReplace | RenameMode::Exchange => {}
        }
        if target == Some(source) {
            return Ok(Renamed { moved: source, replaced_dir: None });
        }
        {
            // An entry that is not below cannot move there.
            let table = self.lock();
            let failed = scopes.iter().find_map(|scope| within(&table.failed, scope).next());
            if failed.is_some() {
                return Err(FsError::Busy.into());
            }
        }
        let (asked_from, asked_to) = (from.clone(), to.clone());
        self.call(move |below| below.rename(&asked_from, &asked_to, mode)).await?;
        let mut table = self.lock();
        let replaced_dir =
            target.filter(|target| mode != RenameMode::Exchange && table.node(*target).is_dir());
        if mode == RenameMode::Exchange {
            table.move_tree(&from, &Path::aside());
            table.move_tree(&to, &from);
            table.move_tree(&Path::aside(), &to);
        } else {
            if target.is_some() {
                table.take_name(&to);
            }
            table.drop_entry(&to);
            table.move_tree(&from, &to);
            table.settle_from(&from);
        }
        table.answered_below();
        Ok(Renamed { moved: source, replaced_dir })
    }
}

impl Table {
    /// The old path of what has moved away.
    fn settle_from(&mut self, from: &Path) {
        self.put(from.clone(), Slot::Absent(None), false);
        self.sort_out(from);
    }

    /// Moves a node, and everything below it, to another path. All of it is below already.
    fn move_tree(&mut self, from: &Path, to: &Path) {
        let mut moving = vec![from.clone()];
        let mut moved = Vec::new();
        while let Some(path) = moving.pop() {
            let Some(entry) = self.entries.remove(&path) else { continue };
            if let Some(directory) = self.node_of(&entry).and_then(|node| node.directory()) {
                moving.extend(directory.children.iter().map(|name| path.child(name)));
            }
            moved.push((path, entry));
        }
        // Between the two steps of an exchange the tree is in no directory.
        let (old, new) = (self.above(from), self.above(to));
        if let Some((dir, name)) = old {
            let is_dir = moved.first().is_some_and(|(_, entry)| self.is_directory(entry));
            self.count_name(dir, &name, false, is_dir);
        }
        if let Some((dir, name)) = new {
            let is_dir = moved.first().is_some_and(|(_, entry)| self.is_directory(entry));
            self.count_name(dir, &name, true, is_dir);
        }
        let now = self.now;
        for (path, entry) in moved {
            let new = path.moved(from, to);
            if let Slot::Node(ino) = entry.slot {
                let node = self.node_mut(ino);
                if node.path.as_ref() == Some(&path) {
                    node.path = Some(new.clone());
                }
                if path == *from {
                    node.attr.ctime = now;
                }
            }
            self.memory -= entry_bytes(&path);
            // Of what was there before only an absence may be left.
            self.drop_entry(&new);
            self.memory += entry_bytes(&new);
            self.entries.insert(new, entry);
        }
    }

    fn is_directory(&self, entry: &Entry) -> bool {
        self.node_of(entry).is_some_and(|node| node.is_dir())
    }

    /// A name comes into a directory or leaves it.
    fn count_name(&mut self, dir: Ino, name: &EntryName, comes: bool, is_dir: bool) {
        let children = &mut self.directory_mut(dir).children;
        let changed = if comes { children.insert(name.clone()) } else { children.remove(name) };
        let attr = &mut self.node_mut(dir).attr;
        if changed && is_dir && attr.nlink >= 2 {
            attr.nlink = if comes { attr.nlink + 1 } else { (attr.nlink - 1).max(2) };
        }
        self.touch_dir(dir);
    }
}
