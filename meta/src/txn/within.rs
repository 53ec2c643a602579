//! Who may not leave a directory: whether what a session names is below the root of its token.
//!
//! That it was shown a directory says that this was below its root once. It may have been moved away since, and everything
//! below it with it; so the way up from it is looked at each time. As a rule it is known (`paths`); what is not is read,
//! one directory after the other, also from other servers.
//!
//! Cost: nothing where the token names the whole tree. Otherwise one read for each directory of the way that is not known:
//! the first time on this server, and when it was moved. A move of another directory costs nothing.

use base::{DirId, Ino};
use wire::{DirRef, Retry};

use super::{Steps, Txn};
use crate::{
    error::{Fault, Result},
    paths::{At, Up},
};

/// So many directories below its root a session may go at most: a way is climbed under the lock of what is known of all.
const DEPTH_MAX: u32 = 4096;

impl Txn<'_> {
    /// Refuses a directory that is not in the subtree of this session, as one that is gone.
    pub(super) fn stays_within(&self, dir: &DirRef) -> Result<()> {
        let Some(top) = self.caller.standing.within else { return Ok(()) };
        let from = At { id: dir.id, ino: dir.ino, home: dir.home };
        let is_within = match self.shared.cluster {
            // Another core may be moving what is read.
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
                // What was read of several servers, or while another core moves it, need not be of one moment.
                return match self.shared.cluster.is_none() || self.tears() {
                    true => Err(Fault::Retry(Retry::Busy)),
                    false => Ok(false),
                };
            };
            known.learn((at.id, at.ino, Up::of(&content)), version, moved);
            from = At::above(&Up::of(&content));
            steps.step(from.id)?;
        }
    }
}
