//! The choice of shards that move, so that every server has its share; and the maps of after a move.
//! Pure.
//!
//! No shard moves more than it must: a server that has too many gives up the last of them.

use std::collections::{BTreeMap, BTreeSet};

use base::{ClusterMap, ShardId};
use wire::ShardMove;

use crate::record::{QuotaId, Usage};

/// A change of the map that several servers prepare.
pub(crate) struct Plan {
    pub(crate) number: u64,
    pub(crate) change: Change,
    /// The servers that take part, each with the number of its process.
    pub(crate) runs: Vec<(u16, u64)>,
    /// The servers that have no shards then, if the plan gives all others their share.
    pub(crate) drains: Option<Vec<u16>>,
}

/// A change of the map.
pub(crate) enum Change {
    /// Shards move.
    Shards(Vec<ShardMove>),
    /// A server that has no shards leaves.
    Leave(Leave),
}

/// A server that leaves.
pub(crate) struct Leave {
    pub(crate) server: u16,
    /// The sums that it has charged to quotas, once they are known.
    pub(crate) charges: Option<BTreeMap<QuotaId, Usage>>,
}

/// The moves after which the servers in `leave` have no shards and the others equally many, but for
/// one. None if every server has to leave.
pub(crate) fn plan(map: &ClusterMap, leave: &[u16]) -> Vec<ShardMove> {
    let servers = u16::try_from(map.servers.len()).unwrap_or(u16::MAX);
    let stay: Vec<u16> = map.members().filter(|server| !leave.contains(server)).collect();
    if stay.is_empty() {
        return Vec::new();
    }
    let of = |server: u16| -> Vec<ShardId> {
        let owners = (0..).map(ShardId).zip(&map.shards);
        owners.filter(|(_, owner)| **owner == server).map(|(shard, _)| shard).collect()
    };
    let mut has: Vec<(u16, usize)> =
        stay.iter().map(|server| (*server, of(*server).len())).collect();
    // Servers that have most keep one more than the others, so that fewer move.
    has.sort_by_key(|(server, count)| (std::cmp::Reverse(*count), *server));
    let (share, more) = (map.shards.len() / stay.len(), map.shards.len() % stay.len());
    let mut spare: Vec<(ShardId, u16)> = Vec::new();
    for server in (0..servers).filter(|server| leave.contains(server)) {
        spare.extend(of(server).into_iter().map(|shard| (shard, server)));
    }
    let mut lacks: Vec<(u16, usize)> = Vec::new();
    for (at, (server, count)) in has.into_iter().enumerate() {
        let due = share + usize::from(at < more);
        let shards = of(server);
        spare.extend(shards.iter().skip(due).map(|shard| (*shard, server)));
        if count < due {
            lacks.push((server, due - count));
        }
    }
    spare.sort_unstable();
    let mut moves = Vec::with_capacity(spare.len());
    // In turn, so that neighbours, which have the partitions of a directory, are not together.
    let mut spare = spare.into_iter();
    while !lacks.is_empty() {
        for (to, count) in &mut lacks {
            let Some((shard, from)) = spare.next() else { return moves };
            moves.push(ShardMove { shard, from, to: *to });
            *count -= 1;
        }
        lacks.retain(|(_, count)| *count > 0);
    }
    moves
}

/// Whether shards could move so: each is where its move begins, and goes to a server that there is.
pub(crate) fn is_possible(map: &ClusterMap, moves: &[ShardMove]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for it in moves {
        if map.server_of(it.shard) != Some(it.from) {
            return Err(format!("shard {} is not at server {} any more", it.shard.0, it.from));
        }
        if map.address(it.to).is_none() || it.to == it.from {
            return Err(format!("shard {} cannot go to server {}", it.shard.0, it.to));
        }
        if !seen.insert(it.shard) {
            return Err(format!("shard {} would move twice", it.shard.0));
        }
    }
    Ok(())
}

/// The map after these moves; `None` if a shard is no longer where it moves from.
pub(crate) fn moved(map: &ClusterMap, moves: &[ShardMove]) -> Option<ClusterMap> {
    let mut next = map.clone();
    next.epoch = map.epoch.after_move();
    for ShardMove { shard, from, to } in moves {
        let owner = next.shards.get_mut(usize::from(shard.0)).filter(|owner| **owner == *from)?;
        *owner = *to;
    }
    Some(next)
}

/// The map after a server has left; `None` if it has shards, or is not there.
pub(crate) fn without(map: &ClusterMap, server: u16) -> Option<ClusterMap> {
    map.address(server)?;
    if map.shards.contains(&server) {
        return None;
    }
    let mut next = map.clone();
    next.epoch = map.epoch.after_move();
    next.servers.get_mut(usize::from(server))?.clear();
    Some(next)
}

#[cfg(test)]
mod tests {
    use base::Epoch;
    use proptest::prelude::*;

    use super::*;

    fn map(servers: u16, shards: &[u16]) -> ClusterMap {
        let servers = (0..servers).map(|server| format!("s{server}:1")).collect();
        ClusterMap { epoch: Epoch(7), servers, shards: shards.to_vec() }
    }

    fn counts(map: &ClusterMap) -> Vec<usize> {
        let of = |server: usize| map.shards.iter().filter(|it| usize::from(**it) == server).count();
        (0..map.servers.len()).map(of).collect()
    }

    #[test]
    fn a_new_server_gets_its_share_and_nothing_else_moves() {
        let dealt: Vec<u16> = (0..1024).map(|shard| shard % 4).collect();
        let before = map(5, &dealt);
        let moves = plan(&before, &[]);
        assert_eq!(moves.len(), 204);
        assert!(moves.iter().all(|it| it.to == 4));
        let after = moved(&before, &moves).unwrap();
        assert_eq!((after.epoch, counts(&after)), (Epoch(1 << 32), vec![205, 205, 205, 205, 204]));
        assert_eq!(plan(&after, &[]), []);
        assert_eq!(moved(&after, &moves), None, "they have moved");
    }

    #[test]
    fn the_last_servers_take_what_the_others_leave() {
        let before = map(3, &[0, 1, 2, 0, 1, 2]);
        let after = moved(&before, &plan(&before, &[0, 2])).unwrap();
        assert_eq!(after.shards, [1; 6]);
        assert_eq!(plan(&before, &[0, 1, 2]), []);
    }

    #[test]
    fn a_server_that_has_left_gets_no_shards() {
        let before = map(3, &[0, 0, 2, 2, 2, 2]);
        assert_eq!(without(&before, 2), None, "it has shards");
        let after = without(&before, 1).unwrap();
        assert_eq!((after.epoch, after.has_left(1)), (Epoch(1 << 32), true));
        assert_eq!((without(&after, 1), without(&after, 7)), (None, None));
        let even = moved(&after, &plan(&after, &[])).unwrap();
        assert_eq!(counts(&even), [3, 0, 3]);
        let to_it = ShardMove { shard: ShardId(0), from: 0, to: 1 };
        assert!(is_possible(&before, &[to_it]).is_ok() && is_possible(&after, &[to_it]).is_err());
    }

    proptest! {
        #[test]
        fn every_plan_evens_out_and_moves_no_more_than_it_must(
            (servers, shards, leave) in (1u16..9).prop_flat_map(|servers| {
                let shards = prop::collection::vec(0..servers, 1..100);
                (Just(servers), shards, prop::collection::vec(0..servers, 0..4))
            })
        ) {
            let before = map(servers, &shards);
            let moves = plan(&before, &leave);
            let after = moved(&before, &moves).unwrap();
            let has = counts(&after);
            let stay: Vec<u16> = (0..servers).filter(|server| !leave.contains(server)).collect();
            prop_assume!(!stay.is_empty());
            for server in 0..servers {
                let has = has[usize::from(server)];
                if leave.contains(&server) {
                    prop_assert_eq!(has, 0);
                } else {
                    let share = shards.len() / stay.len();
                    prop_assert!((share..=share + 1).contains(&has));
                }
            }
            let (were, are) = (counts(&before), counts(&after));
            let needed: usize = were.iter().zip(&are).map(|(were, are)| were.saturating_sub(*are)).sum();
            prop_assert_eq!(moves.len(), needed);
            prop_assert_eq!(plan(&after, &leave), []);
        }
    }
}
