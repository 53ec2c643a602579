//! The boundary of hybrid placement: above it directories have places of their own, below it they
//! stay with their parents.
//!
//! Where the boundary is for new directories is said by how many levels below a directory are above
//! it, which is set or inherited, and moves down where much is: a directory made below the boundary
//! starts a subtree of its own if its parent is divided, or if the home of its parent is
//! [full](homes). A directory's level and home never change.
//!
//! Paper: HSM² §3.1. Hybrid placement in a store with one home for each directory, and a boundary
//! that moves, are of our own.

pub(crate) mod homes;

use base::{
    DirId, FsError, Layout, Level, Locality, NameVersion, Placement, ShardId, limits::HYBRID_LEVELS,
};

use crate::{
    error::Result,
    record::{Config, Content, Placing},
    session::Session,
    txn::{Dir, Txn},
};

/// The level of a directory that is made in `parent`.
pub(crate) fn level_of_new(txn: &Txn<'_>, parent: &Content) -> Level {
    if txn.shared.config.locality != Locality::Hybrid {
        return Level::Below;
    }
    match parent.placing.levels {
        Some(levels) => Level::below(levels),
        None if parent.layout != Layout::Whole => Level::Boundary,
        None if txn.shared.homes.is_full(parent.home) => Level::Boundary,
        None => Level::Below,
    }
}

/// How a new directory of this level in `parent` is treated.
pub(crate) fn of_new(config: &Config, parent: (DirId, &Content), level: Level) -> Placing {
    if config.locality != Locality::Hybrid {
        return Placing::NONE;
    }
    let (id, parent) = parent;
    let levels = match (parent.placing.levels, level) {
        (Some(levels), Level::Above) => Some(Level::left(levels)),
        (Some(0), Level::Below) => Some(0),
        (Some(_) | None, _) => None,
    };
    let follows = level == Level::Below || parent.home == id;
    Placing { levels, birth_home: (!follows).then_some(parent.home) }
}

/// The home of the directory in which another one was born.
pub(crate) fn birth_home(config: &Config, child: &Content) -> DirId {
    let Content { home, birth_parent, birth_version, placing, .. } = child;
    let derived =
        if has_own_home(config.placement(), *birth_version) { *birth_parent } else { *home };
    placing.birth_home.unwrap_or(derived)
}

/// Whether a directory of this version of its name has another home than its parent.
pub(crate) fn has_own_home(placement: Placement, version: NameVersion) -> bool {
    match placement.locality {
        Locality::Directory => true,
        Locality::Subtree => false,
        Locality::Hybrid => version.level() != Level::Below,
    }
}

/// The shard of the master of a directory that was born in one whose master is on `parent`.
pub(crate) fn shard_of_born(
    placement: Placement,
    parent: ShardId,
    id: DirId,
    version: NameVersion,
) -> ShardId {
    if has_own_home(placement, version) {
        // The parent's home makes no difference.
        placement.shard_of(placement.home_of(id, version, id), 0)
    } else {
        parent
    }
}

/// The level of the directories that a server makes for itself, whose ids it chooses.
pub(crate) fn level_of_servers(placement: Placement) -> Level {
    match placement.locality {
        Locality::Hybrid => Level::Boundary,
        Locality::Directory | Locality::Subtree => Level::Below,
    }
}

/// The level of a directory that has this home, as far as the home shows it.
pub(crate) fn level_at(placement: Placement, id: DirId, home: DirId) -> Level {
    match placement.locality {
        Locality::Hybrid if home == id => Level::Above,
        Locality::Hybrid if home == id.as_boundary() => Level::Boundary,
        Locality::Hybrid | Locality::Directory | Locality::Subtree => Level::Below,
    }
}

/// Levels that directories may have.
pub(crate) fn levels(placement: Placement) -> impl Iterator<Item = Level> {
    let others = match placement.locality {
        Locality::Hybrid => [Level::Boundary, Level::Above].as_slice(),
        Locality::Directory | Locality::Subtree => [].as_slice(),
    };
    std::iter::once(Level::Below).chain(others.iter().copied())
}

/// How the root is treated where nothing was set.
pub(crate) fn of_root(locality: Locality) -> Placing {
    match locality {
        Locality::Hybrid => Placing { levels: Some(HYBRID_LEVELS), birth_home: None },
        Locality::Directory | Locality::Subtree => Placing::NONE,
    }
}

/// Homes that a directory is likely to have, by its id alone.
pub(crate) fn usual_homes(placement: Placement, id: DirId) -> impl Iterator<Item = DirId> {
    let (usual, other) = match placement.locality {
        Locality::Directory => (id, None),
        Locality::Subtree => (DirId::ROOT, None),
        Locality::Hybrid => (id, Some(id.as_boundary())),
    };
    std::iter::once(usual).chain(other)
}

/// Sets where directories made in a directory get their places from now on; `None` removes it.
pub(crate) fn set(txn: &mut Txn<'_>, mut dir: Dir, value: Option<&[u8]>) -> Result<()> {
    if txn.shared.config.locality != Locality::Hybrid {
        return Err(FsError::NotSupported.into());
    }
    let levels = value.map(parse).transpose()?.flatten();
    if levels == dir.content.placing.levels {
        return Ok(());
    }
    dir.content.placing.levels = levels;
    txn.put_everywhere(&dir)
}

/// Most levels that can be set.
const LEVELS_MAX: u8 = 16;

fn parse(value: &[u8]) -> Result<Option<u8>> {
    Ok(match value.trim_ascii() {
        b"none" => None,
        b"hash" => Some(Level::ALL),
        b"subtree" => Some(0),
        b"hybrid" => Some(HYBRID_LEVELS),
        value => {
            let digits = value.strip_prefix(b"hybrid:");
            let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_digit));
            let digits = digits.and_then(|digits| str::from_utf8(digits).ok());
            let levels = digits.and_then(|digits| digits.parse().ok());
            Some(
                levels
                    .filter(|levels| (1..=LEVELS_MAX).contains(levels))
                    .ok_or(FsError::Invalid)?,
            )
        }
    })
}

/// The words of `set` and `get` for what was set for a directory.
pub(crate) fn word(levels: Option<u8>) -> String {
    match levels {
        None => "none".to_owned(),
        Some(0) => "subtree".to_owned(),
        Some(Level::ALL) => "hash".to_owned(),
        Some(levels) => format!("hybrid:{levels}"),
    }
}

/// The lines that `info` prints.
pub(crate) fn tell(txn: &Txn<'_>, dir: &Dir, line: &mut dyn FnMut(&str, String)) {
    if txn.shared.config.locality != Locality::Hybrid {
        return;
    }
    let Content { home, birth_version, placing, .. } = &dir.content;
    line("locality", word(placing.levels));
    let level = match birth_version.level() {
        _ if dir.id == DirId::ROOT => "above the boundary",
        Level::Above => "above the boundary",
        Level::Boundary => "at the boundary",
        Level::Below => "below the boundary",
    };
    line("level", level.to_owned());
    let placement = txn.shared.config.placement();
    // Only the server of a home counts what it has, and that is nobody's business who may not see all
    // of it.
    let administers = txn.caller.session.is_some_and(Session::administers);
    if administers && txn.has_shard(placement.shard_of(*home, 0)) {
        let homes::Size { dirs, entries } = txn.shared.homes.size(*home);
        line("home.directories", dirs.max(0).to_string());
        line("home.entries", entries.max(0).to_string());
        line("home.full", if txn.shared.homes.is_full(*home) { "yes" } else { "no" }.to_owned());
    }
}
