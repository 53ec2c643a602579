//! Sessions that may not leave a directory: checks that a directory that a request names is below
//! the root of the token.
//!
//! A session that was shown a directory shows by that only that it was below the root once. The
//! directory, or one above it, may have been moved away since. So the way up from it is looked at
//! each time. Usually it is known (`paths`); otherwise it is read, one directory after the other,
//! also from other servers.
//!
//! Cost: nothing where the token names the whole tree. Otherwise one read for each directory of the
//! way that is not known: the first time on this server, and after it was moved. A move of another
//! directory costs nothing.

use base::{DirId, Ino};
use wire::{DirRef, Retry};

use super::Txn;
use crate::{
    bugs::Bug,
    error::{Fault, Result},
    paths::{At, Steps, Up},
    record::Content,
};

/// Most directories between a directory and the session's root: a way is climbed under the lock of
/// all known ways.
const DEPTH_MAX: u32 = 4096;

impl Txn<'_> {
    /// Remembers the way up from a directory, and who may search it, as it was read at this version of
    /// the list of moves ([`Txn::glance`]).
    ///
    /// Race: a transaction that moves the directory, or changes its permissions, has told everybody,
    /// and reads what it changes as it was before.
    pub(crate) fn learn_way(&self, at: At, content: &Content, version: u64) {
        if self.own.is_none() || self.shared.bugs.has(Bug::OwnMoveLearnt) {
            let moved = &self.shared.invalidations;
            self.shared.paths.learn((at.id, at.ino, Up::of(content)), version, moved);
        }
    }

    /// Refuses a directory that is not in the subtree of this session, like one that is gone.
    pub(super) fn stays_within(&self, dir: &DirRef) -> Result<()> {
        let Some(top) = self.caller.standing.within else { return Ok(()) };
        let from = At { id: dir.id, ino: dir.ino, home: dir.home };
        let is_within = match self.shared.cluster {
            // Another core may be moving a directory on the way.
            None => self.settled(|txn| txn.climbs(from, top))?,
            Some(_) => self.climbs(from, top)?,
        };
        if is_within { Ok(()) } else { Err(Fault::Retry(Retry::StaleDir)) }
    }

    fn climbs(&self, dir: At, top: (DirId, Ino)) -> Result<bool> {
        let (known, moved) = (&self.shared.paths, &self.shared.invalidations);
        let (mut from, mut steps) = (dir, Steps::bounded(dir.id, DEPTH_MAX));
        loop {
            let at = known.climb(from, top, &mut steps, moved)?;
            if at.is(top) || at.id == DirId::ROOT {
                return Ok(at.is(top));
            }
            let key = self.content_key(at.home, at.id);
            self.means(&key, at.ino);
            let (content, version) = self.glance(&key)?;
            let Some(content) = content.filter(|content| content.ino == at.ino) else {
                if at == dir {
                    return Err(self.no_dir(self.shard(at.home), at.ino));
                }
                // Records of several servers, or of a directory that another core moves, need not
                // be of one moment.
                return match self.shared.cluster.is_none() || self.mark_torn() {
                    true => Err(Fault::Retry(Retry::Busy)),
                    false => Ok(false),
                };
            };
            self.learn_way(at, &content, version);
            from = At::above(&Up::of(&content));
            steps.step(from.id)?;
        }
    }
}
