//! The cached directories of the path that led to a request (InfiniFS §3.4, lazy invalidation).

use base::{Decode, DecodeError, DirId, Encode, Reader};
use smallvec::SmallVec;

use crate::delegation::Held;

/// The directories that a path went through, by [`way_mark`].
pub type Way = SmallVec<[u32; 8]>;

/// The part of its client's cache that a request stands on.
#[derive(Debug, PartialEq, Eq)]
pub struct Stand {
    /// Version of the invalidation list since which the cached directories are unchanged; 0 for
    /// requests that stand on no cache, and for requests by handle.
    pub version: u64,
    /// Marks of the directories that the path went through: only events of these since `version`
    /// make the request stale. Empty: any event does.
    pub way: Way,
    /// The delegation that the request stands on, or asks for. Such a request stands on no cache.
    pub held: Option<Held>,
}

/// The version in the bytes of a stand on a delegation, which follows in place of the marks.
const HELD: u64 = u64::MAX;

impl Encode for Stand {
    fn encode(&self, out: &mut Vec<u8>) {
        if let Some(held) = &self.held {
            HELD.encode(out);
            held.encode(out);
        } else {
            self.version.encode(out);
            self.way.encode(out);
        }
    }
}

impl Decode for Stand {
    fn decode(input: &mut Reader<'_>) -> Result<Stand, DecodeError> {
        let version = u64::decode(input)?;
        if version == HELD {
            return Ok(Stand { held: Some(Held::decode(input)?), ..Stand::NONE });
        }
        Ok(Stand { version, way: Way::decode(input)?, held: None })
    }
}

impl Clone for Stand {
    /// Copies the marks at once, which `SmallVec::clone` does one by one: each request by path has
    /// a clone.
    fn clone(&self) -> Stand {
        Stand { version: self.version, way: Way::from_slice(&self.way), held: self.held }
    }
}

impl Stand {
    /// A stand on no cached directory.
    pub const NONE: Stand = Stand { version: 0, way: Way::new_const(), held: None };

    /// A stand on a delegation.
    #[must_use]
    pub fn on(held: Held) -> Stand {
        Stand { held: Some(held), ..Stand::NONE }
    }

    /// Adds cached directories of version `version` to the stand.
    pub fn is_since(&mut self, version: u64) {
        self.version = match (self.version, version) {
            (0, other) | (other, 0) => other,
            (one, other) => one.min(other),
        };
    }

    /// Adds a directory that the path went through. One that it goes through again, as after `..`
    /// or a symbolic link, is marked once.
    pub fn mark(&mut self, dir: DirId) {
        self.add_mark(way_mark(dir));
    }

    /// Adds the stand `other` to this one.
    pub fn add(&mut self, other: &Stand) {
        self.is_since(other.version);
        other.way.iter().for_each(|mark| self.add_mark(*mark));
    }

    fn add_mark(&mut self, mark: u32) {
        if !self.way.contains(&mark) {
            self.way.push(mark);
        }
    }

    /// Whether the request stands on no cached directory.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.version == 0
    }
}

/// Mark of a directory on a path: the low 28 bits of its id, which take four bytes. Two directories
/// may share a mark; then a path counts as changed that has not.
#[must_use]
pub fn way_mark(dir: DirId) -> u32 {
    u32::try_from(dir.0 & 0xfff_ffff).expect("28 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand(version: u64, dirs: impl IntoIterator<Item = u128>) -> Stand {
        let mut stand = Stand { version, ..Stand::NONE };
        dirs.into_iter().for_each(|dir| stand.mark(DirId(dir)));
        stand
    }

    #[test]
    fn a_directory_that_a_path_goes_through_often_is_marked_once() {
        let mut one = stand(8, (0..3000).map(|step| step % 7));
        assert_eq!(one.way[..], [0, 1, 2, 3, 4, 5, 6]);
        one.add(&stand(7, [0, 1, 9]));
        assert_eq!((one.version, one.way[7..].to_vec()), (7, vec![9]));
    }
}
