//! Partitions of directories: the partition of a name, and whether each share repeats its master.
//!
//! `names`, `dirs` and `files` call this during the walk; `across` and `repair` use the same search
//! over several servers. A directory has its content record on the shard of its master, partition
//! 0, and a share on that of each other partition.
//!
//! Always true: a search for the partition of a position ends, whatever damaged layouts say.

use std::ops::ControlFlow;

use base::{DirId, EntryName, Layout, Locality, Placement, ShardId};

use super::{
    fix::Fix,
    sweep::{Sweep, Where},
};
use crate::placing;
use crate::record::{Config, Content, ContentState, Key, key, key::Part};

/// A search for the partition of a position: from the master, on to whichever partition each one's
/// own layout names.
pub(super) struct Way {
    dir: DirId,
    home: DirId,
    pos: u64,
    partition: u16,
    steps: u16,
}

impl Way {
    /// Begins a search at the master.
    pub(super) fn to(home: DirId, dir: DirId, pos: u64) -> Way {
        Way { dir, home, pos, partition: 0, steps: 0 }
    }

    /// The partition that the search has reached.
    pub(super) fn partition(&self) -> u16 {
        self.partition
    }

    /// Shard of that partition.
    pub(super) fn shard(&self, placement: Placement) -> ShardId {
        placement.shard_of(self.home, self.partition)
    }

    /// Key of the record that says how to go on.
    pub(super) fn key(&self, placement: Placement) -> Key {
        key::content(self.shard(placement), self.dir, self.partition, Part::Main)
    }

    /// Goes on by a partition's record; `true` if the search has arrived. It also has where there
    /// is no record: the name would be there.
    pub(super) fn arrives(&mut self, content: Option<&Content>, shards: u16) -> bool {
        let next = content.map_or(self.partition, |content| content.layout.partition(self.pos));
        if next == self.partition || self.steps >= shards {
            return true;
        }
        self.partition = next;
        self.steps += 1;
        false
    }
}

/// The partitions of a directory that may be on this shard, if the directory has one of the usual
/// homes, or the one that is `known`.
pub(super) fn expected(
    config: &Config,
    shard: ShardId,
    dir: DirId,
    known: Option<DirId>,
) -> impl Iterator<Item = u16> {
    let (placement, shards) = (config.placement(), config.shards);
    placing::usual_homes(placement, dir).chain(known).map(move |home| {
        let first = placement.shard_of(home, 0).0;
        (shard.0 + shards - first) % shards
    })
}

/// Keys of the records on this shard that could say how `dir` is placed: as its master, and as a
/// share. `stored` lists the keys of content records of the directory that are on the shard, where
/// its id does not say which.
pub(super) fn keys_of(
    config: &Config,
    shard: ShardId,
    dir: DirId,
    stored: impl FnOnce() -> Vec<Key>,
) -> Vec<(u16, Key)> {
    if config.locality == Locality::Hybrid {
        let shares = stored().into_iter().filter(|key| key::is_content(key));
        return shares.filter_map(|key| Some((key::parse_share(&key)?.0, key))).collect();
    }
    let key = |partition| (partition, key::content(shard, dir, partition, Part::Main));
    std::iter::once(0).chain(expected(config, shard, dir, None)).map(key).collect()
}

/// Whether two layouts divide a directory in one way, in the same turn. Each share then has what it
/// was told, and no more.
pub(super) fn is_of_one_turn(one: &Layout, other: &Layout) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other) && one.turn() == other.turn()
}

/// How a share differs from its master; `None` if it repeats all that it should. While a counting
/// walk `moves` them to another quota, one may be before the other.
pub(super) fn difference(
    master: &Content,
    partition: u16,
    share: &Content,
    moves: bool,
) -> Option<&'static str> {
    let quota = if moves { master.quota } else { share.quota };
    // Each share knows what it has been told; both together know the layout.
    let mut layout = master.layout.clone();
    layout.learn(&share.layout);
    if master.ino != share.ino {
        Some("is of another directory")
    } else if !is_of_one_turn(&master.layout, &share.layout) {
        Some("has another layout than its directory")
    } else if share.is_live() && !layout.is_active(partition) {
        Some("is none of its directory's")
    } else if master.repeated() != (Content { state: master.state, quota, ..share.repeated() }) {
        Some("has another mode, owner, place, name or quota than its directory")
    } else {
        None
    }
}

impl Sweep<'_> {
    /// The shard of the partition that has a name; `None` if another server has it, or knows of it.
    pub(super) fn shard_of_name(
        &self,
        home: DirId,
        dir: DirId,
        name: &EntryName,
    ) -> Option<ShardId> {
        let mut way = Way::to(home, dir, self.config.hash_key.pos(name));
        loop {
            let key = way.key(self.config.placement());
            if self.is_elsewhere(&key) {
                return None;
            }
            let content: Option<Content> = self.get(&key, || format!("directory {dir}"));
            if way.arrives(content.as_ref(), self.config.shards) {
                return Some(way.shard(self.config.placement()));
            }
        }
    }

    /// The partition of a directory that is on a shard, with its record.
    pub(super) fn share_at(&self, shard: ShardId, dir: DirId) -> Option<(u16, Content)> {
        let what = || format!("the content record of directory {dir}");
        keys_of(self.config, shard, dir, || self.stored(&key::shares(shard, dir)))
            .into_iter()
            .find_map(|(partition, key)| Some((partition, self.get(&key, what)?)))
    }

    /// The keys of records with a prefix, which few have.
    pub(super) fn stored(&self, prefix: &[u8]) -> Vec<Key> {
        let mut found = Vec::new();
        // A store that cannot be read is told of where single records are read.
        let _ = self.snapshot.scan(prefix, &key::end_of(prefix), &mut |key, _| {
            found.push(Key::from_slice(key));
            ControlFlow::Continue(())
        });
        found
    }

    /// Checks a record of a partition other than the master.
    pub(super) fn share(&self, shard: ShardId, (dir, partition): (DirId, u16), share: &Content) {
        let place = Where { id: dir, home: share.home };
        let what = || format!("partition {partition} of {}", self.path(place, None));
        let moving = || self.is_there(&key::handoff(shard, dir, partition));
        if share.state != ContentState::Live && (share.is_live() || !moving()) {
            self.find(format!("{} is {:?}", what(), share.state));
        }
        if self.config.placement().shard_of(share.home, partition) != shard {
            return self.find(format!("{} is on the wrong shard: shard={}", what(), shard.0));
        }
        if !share.is_bare() {
            self.find(format!("{} has what only a directory's master has", what()));
        }
        let key = self.content_key(share.home, dir);
        if self.is_elsewhere(&key) {
            return;
        }
        let master: Option<Content> = self.get(&key, || format!("directory {dir}"));
        // With several servers `across` compares quotas, when it has waited.
        let moves = self.accounts.moving || self.is_one_of_several();
        let wrong = match &master {
            None => Some("is there, but its directory is not"),
            Some(master) => difference(master, partition, share, moves),
        };
        if let Some(wrong) = wrong {
            self.find(format!("{} {wrong}", what()));
        }
    }

    /// Checks that every partition in a master's layout exists.
    pub(super) fn has_shares(&self, dir: DirId, master: &Content) {
        for partition in master.layout.active().filter(|partition| *partition > 0) {
            let shard = self.config.placement().shard_of(master.home, partition);
            let key = key::content(shard, dir, partition, Part::Main);
            if self.is_elsewhere(&key) || self.is_there(&key) {
                continue;
            }
            let place = Where { id: dir, home: master.home };
            let line = format!("partition {partition} of {} is not there", self.path(place, None));
            let main = self.content_key(master.home, dir);
            self.find_to_fix(line, Fix::Look(main));
        }
    }
}
