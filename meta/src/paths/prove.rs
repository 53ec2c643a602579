//! Paths as they are known here, checked from their end up (Duplex §III-A).
//!
//! A path is so, and its user may walk it, if its last directory is there and each directory above
//! is the one that the record below names, under the name of the path, and grants search. Each of
//! these facts has held since it was read, or a server with a lease would have been told. So
//! together they hold at the moment of the check.

use base::{Cred, EntryName};
use wire::DirRef;

use super::{At, Paths};
use crate::{invalidation::Invalidations, record::Access};

/// Knowledge of a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The path is so, and its user may walk it: its directories, the first at the top.
    Granted(Vec<Access>),
    /// This directory is not known; so many of the path's names lead to it.
    Lacks(At, usize),
    /// The path is not so, or its user may not walk it, as far as is known.
    No,
}

impl Paths {
    /// Checks that `names` lead from `top` to `end`, and that `cred` may search all directories but
    /// `end`, `top` included. No `cred`: a session whose kernel checks that.
    pub(crate) fn prove(
        &self,
        top: &DirRef,
        names: &[EntryName],
        end: At,
        cred: Option<&Cred>,
        moved: &Invalidations,
    ) -> Known {
        let inner = self.read(moved);
        let (mut at, mut above) = (end, Vec::with_capacity(names.len()));
        let mut used = Vec::new();
        let mut known = Known::No;
        for depth in (0..=names.len()).rev() {
            let Some((up, is_old)) = inner.find(at.id, at.ino) else {
                known = Known::Lacks(at, depth);
                break;
            };
            used.extend(is_old.then_some(at.id));
            let searched = depth < names.len();
            if searched && cred.is_some_and(|cred| !up.class.grants(cred)) {
                break;
            }
            if depth == 0 {
                if at.is((top.id, top.ino)) {
                    above.reverse();
                    known = Known::Granted(above);
                }
                break;
            }
            if up.name.as_ref() != Some(&names[depth - 1]) {
                break;
            }
            let At { id, ino, home } = at;
            above.push(Access { id, ino, home, mode: up.mode, uid: up.uid, gid: up.gid });
            at = At::above(up);
        }
        drop(inner);
        self.keep(used);
        known
    }
}

#[cfg(test)]
mod tests {
    use base::{DirId, Ino, SearchClass};

    use super::*;
    use crate::paths::Up;

    const TOP: DirRef = DirRef { id: DirId(500), ino: Ino(50), home: DirId(500), ticket: 0 };

    fn name(number: u128) -> EntryName {
        EntryName::new(format!("n{number}").as_bytes()).unwrap()
    }

    fn at(number: u128) -> At {
        let id = DirId(number);
        At { id, ino: Ino(u64::try_from(number / 10).unwrap()), home: id }
    }

    fn up(number: u128, mode: u32) -> Up {
        let parent = at(number - 10);
        Up {
            parent: parent.id,
            parent_ino: parent.ino,
            parent_home: parent.home,
            name: Some(name(number)),
            class: SearchClass::of_mode(mode, 7, 8),
            mode,
            uid: 7,
            gid: 8,
        }
    }

    /// Knows directories 500 to 540, each below the one before.
    fn known() -> (Paths, Invalidations) {
        let (paths, moved) = (Paths::default(), Invalidations::new(7));
        for number in [500, 510, 520, 530, 540] {
            learn(&paths, &moved, number, up(number, 0o755));
        }
        (paths, moved)
    }

    fn learn(paths: &Paths, moved: &Invalidations, number: u128, up: Up) {
        let At { id, ino, .. } = at(number);
        paths.learn((id, ino, up), moved.version(), moved);
    }

    fn user(uid: u32) -> Cred {
        Cred { uid, gid: uid, groups: Vec::new() }
    }

    #[test]
    fn a_path_that_is_known_is_granted_with_its_directories() {
        let (paths, moved) = known();
        let names = [510, 520, 530].map(name);
        let Known::Granted(way) = paths.prove(&TOP, &names, at(530), Some(&user(1)), &moved) else {
            panic!("it is known");
        };
        let dirs: Vec<_> = way.iter().map(|dir| (dir.id, dir.ino, dir.mode)).collect();
        let expected = [510, 520, 530].map(|number| (at(number).id, at(number).ino, 0o755));
        assert_eq!(dirs, expected);
    }

    #[test]
    fn a_path_with_another_name_or_from_elsewhere_is_not_so() {
        let (paths, moved) = known();
        let prove = |top: &DirRef, names: &[EntryName]| {
            paths.prove(top, names, at(530), Some(&user(1)), &moved)
        };
        assert_eq!(prove(&TOP, &[510, 521, 530].map(name)), Known::No);
        assert_eq!(prove(&TOP, &[520, 530].map(name)), Known::No);
        let again = DirRef { ino: Ino(51), ..TOP };
        assert_eq!(prove(&again, &[510, 520, 530].map(name)), Known::No);
        let longer = [490, 500, 510, 520, 530].map(name);
        assert!(matches!(prove(&TOP, &longer), Known::Lacks(_, 1)));
    }

    #[test]
    fn each_directory_but_the_last_must_grant_search() {
        for strict in [500, 510, 520, 530] {
            let (paths, moved) = known();
            learn(&paths, &moved, strict, up(strict, 0o700));
            let names = [510, 520, 530].map(name);
            let granted = |cred: Option<Cred>| {
                let known = paths.prove(&TOP, &names, at(530), cred.as_ref(), &moved);
                matches!(known, Known::Granted(_))
            };
            assert_eq!(granted(Some(user(1))), strict == 530, "{strict}");
            assert!(granted(Some(user(7))) && granted(Some(Cred::ROOT)) && granted(None));
        }
    }

    #[test]
    fn what_is_not_known_is_named() {
        let (paths, moved) = known();
        let names = [510, 520, 530].map(name);
        let prove = || paths.prove(&TOP, &names, at(530), Some(&user(1)), &moved);
        moved.add(&[at(520).id]);
        assert_eq!(prove(), Known::Lacks(at(520), 2));
        // Another directory was made where one was removed, which nobody is told of.
        let later = Up { parent_ino: Ino(99), ..up(520, 0o755) };
        learn(&paths, &moved, 520, later);
        assert_eq!(prove(), Known::Lacks(At { ino: Ino(99), ..at(510) }, 1));
        learn(&paths, &moved, 520, up(520, 0o755));
        moved.add(&[at(500).id]);
        assert_eq!(prove(), Known::Lacks(at(500), 0));
    }
}
