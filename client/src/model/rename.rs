//! `rename`: move an entry, replace one by another, or let two change places.
//!
//! POSIX: rename(2). The order of errors is that of Linux' `do_renameat2` and `vfs_rename`.

use base::{Access, EntryName, FsError, Ino};
use wire::{DirRef, RenameMode, Renamed};

use super::{State, who::Who};

type Result<T> = std::result::Result<T, FsError>;

/// A rename whose names have been looked up.
struct Move {
    from: Ino,
    to: Ino,
    source: Ino,
    target: Option<Ino>,
    exchange: bool,
}

impl State {
    pub(super) fn rename(
        &mut self,
        who: Who<'_>,
        (from_dir, from_name): (&DirRef, &EntryName),
        (to_dir, to_name): (&DirRef, &EntryName),
        mode: RenameMode,
    ) -> Result<Renamed> {
        let (from, to) = (self.dir(from_dir)?, self.dir(to_dir)?);
        self.may(who, from, Access::EXECUTE)?;
        self.may(who, to, Access::EXECUTE)?;
        let source = self.child(from, from_name).ok_or(FsError::NotFound)?;
        let target = self.child(to, to_name);
        match mode {
            RenameMode::NoReplace if target.is_some() => return Err(FsError::Exists),
            RenameMode::Exchange if target.is_none() => return Err(FsError::NotFound),
            RenameMode::Replace | RenameMode::NoReplace | RenameMode::Exchange => {}
        }
        let exchange = mode == RenameMode::Exchange;
        let moved = Move { from, to, source, target, exchange };
        self.keeps_a_tree(&moved)?;
        if target == Some(source) {
            return Ok(Renamed { moved: source, replaced_dir: None });
        }
        self.may_move(who, &moved)?;
        if let Some(target) = target.filter(|target| !exchange && self.is_dir(*target))
            && !self.directory(target).entries.is_empty()
        {
            return Err(FsError::NotEmpty);
        }

        let replaced_dir = target.filter(|target| !exchange && self.is_dir(*target));
        let now = self.now();
        self.take_name(from, from_name, now);
        if let Some(target) = target {
            self.take_name(to, to_name, now);
            if exchange {
                self.put_name(from, from_name, target, now);
                self.inode_mut(target).attr.ctime = now;
            } else {
                self.drop_link(target, now);
            }
        }
        self.put_name(to, to_name, source, now);
        self.inode_mut(source).attr.ctime = now;
        Ok(Renamed { moved: source, replaced_dir })
    }

    /// Neither end may lie below the other.
    fn keeps_a_tree(&self, moved: &Move) -> Result<()> {
        if self.is_within(moved.to, moved.source) {
            return Err(FsError::Invalid);
        }
        if moved.target.is_some_and(|target| self.is_within(moved.from, target)) {
            return Err(if moved.exchange { FsError::Invalid } else { FsError::NotEmpty });
        }
        Ok(())
    }

    fn may_move(&self, who: Who<'_>, moved: &Move) -> Result<()> {
        let source_is_dir = self.is_dir(moved.source);
        self.may_delete(who, moved.from, moved.source, source_is_dir)?;
        match moved.target {
            None => self.may(who, moved.to, Access::CHANGE)?,
            Some(target) if moved.exchange => {
                self.may_delete(who, moved.to, target, self.is_dir(target))?;
            }
            Some(target) => self.may_delete(who, moved.to, target, source_is_dir)?,
        }
        // A directory that gets another parent has its `..` changed: that is a write to it.
        let both = [Some(moved.source), moved.target.filter(|_| moved.exchange)];
        for ino in both.into_iter().flatten() {
            if moved.from != moved.to && self.is_dir(ino) {
                self.may(who, ino, Access::WRITE)?;
            }
        }
        Ok(())
    }

    /// Whether directory `dir` is `above`, or somewhere below it.
    fn is_within(&self, dir: Ino, above: Ino) -> bool {
        let mut at = dir;
        while at != above && at != Ino::ROOT {
            at = self.directory(at).parent;
        }
        at == above
    }
}
