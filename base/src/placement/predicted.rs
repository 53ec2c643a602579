//! Where a directory should be, going by its path: what clients send requests by, and what servers
//! read ahead. Whoever predicts wrongly is told the true place by the entry.
//!
//! Paper: InfiniFS §3.3, predictable ids; HSM² §3.2, places computed by the client.

use super::{Level, Locality};
use crate::{
    hash::HashKey,
    id::{DirId, NameVersion},
    limits::HYBRID_LEVELS,
    name::EntryName,
};

/// A directory as it is, or is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predicted {
    /// The directory's id.
    pub id: DirId,
    /// The id by which it is placed.
    pub home: DirId,
    /// How many levels below it are above the boundary or at it.
    levels: u8,
}

impl Predicted {
    /// A directory that is known. Its children are predicted as if it were one that nothing was set
    /// for.
    #[must_use]
    pub fn known(id: DirId, home: DirId) -> Predicted {
        let levels = match id {
            DirId::ROOT => HYBRID_LEVELS,
            _ if id == home => 1,
            _ => 0,
        };
        Predicted { id, home, levels }
    }

    /// The level that directories made in it should have.
    #[must_use]
    pub fn level_below(self, locality: Locality) -> Level {
        match locality {
            Locality::Hybrid => Level::below(self.levels),
            Locality::Directory | Locality::Subtree => Level::Below,
        }
    }

    /// The directory that was born as `name` in it.
    #[must_use]
    pub fn child(self, locality: Locality, key: &HashKey, name: &EntryName) -> Predicted {
        self.child_of(self.level_below(locality), locality, key, name)
    }

    /// The directory of this level that was born as `name` in it.
    #[must_use]
    pub fn child_of(
        self,
        level: Level,
        locality: Locality,
        key: &HashKey,
        name: &EntryName,
    ) -> Predicted {
        let version = NameVersion::first(level);
        let id = key.dir_id(self.id, name, version);
        let levels = match level {
            Level::Above => Level::left(self.levels),
            Level::Boundary | Level::Below => 0,
        };
        Predicted { id, home: locality.home(id, version, self.home), levels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_crosses_the_boundary_once() {
        let key = HashKey::new(3, 4);
        let names = ["a", "b", "c", "d"].map(|name| EntryName::new(name.as_bytes()).unwrap());
        let root = Predicted::known(DirId::ROOT, DirId::ROOT);
        let way = |locality| {
            let mut at = root;
            names.each_ref().map(|name| {
                at = at.child(locality, &key, name);
                at
            })
        };
        let [a, b, c, d] = way(Locality::Hybrid);
        assert_eq!((a.home, b.home), (a.id, b.id.as_boundary()));
        assert_eq!((c.home, d.home), (b.home, b.home));
        assert!(way(Locality::Directory).iter().all(|at| at.home == at.id));
        assert!(way(Locality::Subtree).iter().all(|at| at.home == DirId::ROOT));
        // From the middle of the path it goes on alike.
        let from_b = Predicted::known(a.id, a.home).child(Locality::Hybrid, &key, &names[1]);
        assert_eq!(from_b, b);
        let from_c = Predicted::known(b.id, b.home).child(Locality::Hybrid, &key, &names[2]);
        assert_eq!(from_c, c);
    }
}
