//! Names of directories that were there before the region: a name that is not among them is not
//! there, and need not be looked for.
//!
//! A program that makes many files in such a directory asks for many names that are not there. When
//! some looks have found nothing, the directory is listed, and for a while its names answer.
//!
//! Invariant (R8): a name of which this says that it is not there was not below when the listing
//! began, and nothing that the region has put there since was forgotten.

use base::{EntryName, HashSet, Ino, Time};

use crate::below::Listed;

/// Directories of which this is known, the latest ones.
const DIRS_MAX: usize = 32;
/// Most names of a directory; one that has more is not listed for them.
pub(crate) const NAMES_MAX: usize = 16_384;
/// Looks without success after which a directory is listed.
const MISSES: usize = 4;
/// Names whose listing takes about as long as a look.
const NAMES_A_LOOK: usize = 64;

#[derive(Default)]
pub(crate) struct Absences {
    /// The latest ones last.
    dirs: Vec<(Ino, Known)>,
    /// How often names of any directory were forgotten.
    forgotten: u64,
}

struct Known {
    /// The names, and until when they are believed.
    names: Option<(HashSet<EntryName>, Time)>,
    /// Looks that have found nothing since the last listing.
    misses: usize,
    /// With so many the directory is listed.
    due: usize,
}

impl Absences {
    /// Whether nothing is there under a name, as far as is known.
    pub(crate) fn have_none(&self, dir: Ino, name: &EntryName, now: Time) -> bool {
        self.get(dir)
            .and_then(|known| known.names.as_ref())
            .is_some_and(|(names, until)| now < *until && !names.contains(name))
    }

    /// Whether a directory should be listed before the next look in it.
    pub(crate) fn is_due(&self, dir: Ino) -> bool {
        self.get(dir).is_some_and(|known| known.misses >= known.due)
    }

    /// Notes that a look in a directory has found nothing.
    pub(crate) fn missed(&mut self, dir: Ino) {
        self.known(dir).misses += 1;
    }

    /// A mark of the moment, before a listing.
    pub(crate) fn begin(&self) -> u64 {
        self.forgotten
    }

    /// Takes in a listing that was begun at a mark. `None`: there is none, or it has too many names.
    ///
    /// Race: what the region has made below since then may not be in the listing. Its entry says that
    /// it is there, unless that was forgotten meanwhile.
    pub(crate) fn learn(
        &mut self,
        dir: Ino,
        (listed, begun): (Option<&[Listed]>, u64),
        until: Time,
    ) {
        let is_right = begun == self.forgotten;
        let known = self.known(dir);
        known.misses = 0;
        let listed = listed.filter(|listed| listed.len() <= NAMES_MAX);
        known.due = listed.map_or(usize::MAX, |listed| MISSES + listed.len() / NAMES_A_LOOK);
        known.names = listed
            .filter(|_| is_right)
            .map(|listed| (listed.iter().map(|listed| listed.name.clone()).collect(), until));
    }

    /// Forgets the names of a directory: one of something that the region has put there may be among
    /// those that it lacks.
    pub(crate) fn forget_names(&mut self, dir: Ino) {
        self.forgotten += 1;
        if let Some((_, known)) = self.dirs.iter_mut().find(|(known, _)| *known == dir) {
            known.names = None;
        }
    }

    /// Forgets a directory, whose number may come to be another one's.
    pub(crate) fn forget(&mut self, dir: Ino) {
        self.forgotten += 1;
        self.dirs.retain(|(known, _)| *known != dir);
    }

    fn get(&self, dir: Ino) -> Option<&Known> {
        self.dirs.iter().find(|(known, _)| *known == dir).map(|(_, known)| known)
    }

    fn known(&mut self, dir: Ino) -> &mut Known {
        let found = self.dirs.iter().position(|(known, _)| *known == dir);
        let new = || (dir, Known { names: None, misses: 0, due: MISSES });
        let entry = found.map_or_else(new, |at| self.dirs.remove(at));
        if self.dirs.len() == DIRS_MAX {
            self.dirs.remove(0);
        }
        self.dirs.push(entry);
        &mut self.dirs.last_mut().expect("it was pushed").1
    }
}
