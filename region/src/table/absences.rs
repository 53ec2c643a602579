//! Names of directories that were there before the region: a name that is not among them is not
//! there, and need not be looked for.
//!
//! A program that makes many files in such a directory asks for many names that are not there. When
//! some looks have found nothing, the directory is listed, and for a while its names answer. A
//! listing never costs more than the looks that have led to it: one of a directory with more names
//! is broken off, and tried again after four times as many looks.
//!
//! Invariant (R8): a name of which this says that it is not there was not below when the listing
//! began, and nothing that the region has put there since was forgotten.

use base::{EntryName, HashMap, HashSet, Ino, Time};

use crate::below::Listed;

/// Directories of which looks are counted.
const DIRS_MAX: usize = 1024;
/// Most names of a directory; one that has more is not listed for them.
const NAMES_MAX: usize = 16_384;
/// Most names of all directories.
const ALL_NAMES_MAX: usize = 65_536;
/// Looks without success after which a directory is listed.
const MISSES: usize = 4;
/// Names whose listing takes about as long as a look.
const NAMES_A_LOOK: usize = 64;

#[derive(Default)]
pub(crate) struct Absences {
    dirs: HashMap<Ino, Known>,
    /// Number of names of all of them.
    names: usize,
    /// How often names of any directory were forgotten.
    forgotten: u64,
    /// Number of uses so far.
    uses: u64,
}

struct Known {
    /// The names, and until when they are believed.
    names: Option<(HashSet<EntryName>, Time)>,
    /// Looks that have found nothing since the last whole listing.
    misses: usize,
    /// With so many the directory is listed.
    due: usize,
    /// The last time that this was changed, as a number of uses.
    used: u64,
}

/// A listing that is to be taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    dir: Ino,
    /// Names that it may have.
    names_max: usize,
    forgotten: u64,
}

impl Due {
    /// Most entries that are to be read: one more than the names that it may have.
    pub(crate) fn entries_max(&self) -> usize {
        self.names_max.saturating_add(1)
    }
}

impl Absences {
    /// Whether nothing is there under a name, as far as is known.
    pub(crate) fn have_none(&self, dir: Ino, name: &EntryName, now: Time) -> bool {
        self.dirs
            .get(&dir)
            .and_then(|known| known.names.as_ref())
            .is_some_and(|(names, until)| now < *until && !names.contains(name))
    }

    /// The listing of a directory that should come before the next look in it.
    pub(crate) fn due(&self, dir: Ino) -> Option<Due> {
        let known = self.dirs.get(&dir).filter(|known| known.misses >= known.due)?;
        let names_max = (known.misses * NAMES_A_LOOK).min(NAMES_MAX);
        Some(Due { dir, names_max, forgotten: self.forgotten })
    }

    /// A listing that is taken anyway.
    pub(crate) fn whole(&self, dir: Ino) -> Due {
        Due { dir, names_max: usize::MAX, forgotten: self.forgotten }
    }

    /// Notes that a look in a directory has found nothing.
    pub(crate) fn missed(&mut self, dir: Ino) {
        self.known(dir).misses += 1;
    }

    /// Takes in a listing, which is believed until a time. `None`: it has failed.
    ///
    /// Race: what the region has made below since it was begun may not be in it. Its entry says that
    /// it is there, unless that was forgotten meanwhile.
    pub(crate) fn learn(&mut self, due: Due, listed: Option<&[Listed]>, until: Time) {
        let Due { dir, names_max, forgotten } = due;
        self.drop_names(dir);
        let is_right = forgotten == self.forgotten;
        let listed = listed.filter(|listed| listed.len() <= names_max.min(NAMES_MAX));
        let known = self.known(dir);
        let Some(listed) = listed else {
            let is_hopeless = names_max >= NAMES_MAX;
            known.due = if is_hopeless { usize::MAX } else { known.due.saturating_mul(4) };
            return;
        };
        known.misses = 0;
        known.due = MISSES + listed.len() / NAMES_A_LOOK;
        if is_right {
            let names: HashSet<_> = listed.iter().map(|listed| listed.name.clone()).collect();
            self.names += names.len();
            self.known(dir).names = Some((names, until));
            self.shrink();
        }
    }

    /// Forgets the names of a directory: one of something that the region has put there may be among
    /// those that it lacks.
    pub(crate) fn forget_names(&mut self, dir: Ino) {
        self.forgotten += 1;
        self.drop_names(dir);
    }

    /// Forgets a directory, whose number may come to be another one's.
    pub(crate) fn forget(&mut self, dir: Ino) {
        self.forget_names(dir);
        self.dirs.remove(&dir);
    }

    fn drop_names(&mut self, dir: Ino) {
        if let Some((names, _)) = self.dirs.get_mut(&dir).and_then(|known| known.names.take()) {
            self.names -= names.len();
        }
    }

    /// Drops names of the directories that were used longest ago, until there are few enough.
    fn shrink(&mut self) {
        while self.names > ALL_NAMES_MAX
            && let Some(dir) = self.oldest(|known| known.names.is_some())
        {
            self.drop_names(dir);
        }
    }

    fn oldest(&self, of: impl Fn(&Known) -> bool) -> Option<Ino> {
        let all = self.dirs.iter().filter(|(_, known)| of(known));
        all.min_by_key(|(_, known)| known.used).map(|(dir, _)| *dir)
    }

    fn known(&mut self, dir: Ino) -> &mut Known {
        self.uses += 1;
        if !self.dirs.contains_key(&dir)
            && self.dirs.len() >= DIRS_MAX
            && let Some(oldest) = self.oldest(|_| true)
        {
            self.drop_names(oldest);
            self.dirs.remove(&oldest);
        }
        let used = self.uses;
        let new = || Known { names: None, misses: 0, due: MISSES, used };
        let known = self.dirs.entry(dir).or_insert_with(new);
        known.used = used;
        known
    }
}
