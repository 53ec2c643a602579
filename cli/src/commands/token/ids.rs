//! Options of `pando token create` that squash and map ids, and how a token's are shown.

use clap::ValueEnum;
use serde::Serialize;
use wire::{ANONYMOUS, IdMapping, IdRange, Squash};

use crate::failure;

/// Most ranges of one map, as in a user namespace of Linux.
const RANGES_MAX: usize = 340;

/// The users as whom requests act, and the owners that clients are shown.
#[derive(Debug, clap::Args)]
pub(super) struct IdArgs {
    /// Have requests of the superuser, or of everybody, act as the anonymous user. The servers
    /// check all permissions then, whatever the kernel of a mount has checked.
    #[arg(long, value_enum, value_name = "root|all", conflicts_with = "uid")]
    squash: Option<Squashed>,
    /// The anonymous user [default: 65534].
    #[arg(long, value_name = "UID")]
    anon_uid: Option<u32>,
    /// The anonymous group [default: 65534].
    #[arg(long, value_name = "GID")]
    anon_gid: Option<u32>,
    /// Let user OUTSIDE of clients be user INSIDE of the file system, and COUNT users from there
    /// on; may be given several times. All other users act as the anonymous one, and files of
    /// others are shown as its files.
    #[arg(
        long, value_name = "OUTSIDE:INSIDE[:COUNT]", value_parser = range, conflicts_with = "uid"
    )]
    map_uid: Vec<IdRange>,
    /// Like --map-uid, for groups.
    #[arg(
        long, value_name = "OUTSIDE:INSIDE[:COUNT]", value_parser = range, conflicts_with = "uid"
    )]
    map_gid: Vec<IdRange>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Squashed {
    /// User 0 and group 0.
    Root,
    /// All users and groups.
    All,
}

impl IdArgs {
    /// The mapping that was asked for, if any.
    pub(super) fn mapping(&self) -> anyhow::Result<Option<IdMapping>> {
        let squash = match self.squash {
            None => Squash::Nobody,
            Some(Squashed::Root) => Squash::Root,
            Some(Squashed::All) => Squash::All,
        };
        for (option, map) in [("--map-uid", &self.map_uid), ("--map-gid", &self.map_gid)] {
            are_apart(map).map_err(|why| failure::usage(format!("{option}: {why}")))?;
        }
        let ids = IdMapping {
            squash,
            anonymous_uid: self.anon_uid.unwrap_or(ANONYMOUS),
            anonymous_gid: self.anon_gid.unwrap_or(ANONYMOUS),
            uids: self.map_uid.clone(),
            gids: self.map_gid.clone(),
        };
        if squash != Squash::Nobody || ids.maps() {
            are_nobody(&ids).map_err(failure::usage)?;
            return Ok(Some(ids));
        }
        match self.anon_uid.or(self.anon_gid) {
            None => Ok(None),
            Some(_) => Err(failure::usage(
                "--anon-uid and --anon-gid need --squash, --map-uid or --map-gid",
            )),
        }
    }
}

/// Checks that the anonymous user and group are nobody else.
fn are_nobody(ids: &IdMapping) -> Result<(), String> {
    for (option, id, map) in
        [("--anon-uid", ids.anonymous_uid, &ids.uids), ("--anon-gid", ids.anonymous_gid, &ids.gids)]
    {
        if id == 0 && ids.squash != Squash::All {
            return Err(format!("{option} 0 would make everybody root who is nobody here"));
        }
        let is_another = map.iter().any(|range| {
            let at = id.checked_sub(range.outside).filter(|at| *at < range.count);
            at.is_some_and(|at| range.inside.checked_add(at) != Some(id))
        });
        if is_another {
            return Err(format!(
                "{id}, as which ids of no range are shown, is in a range: choose another with {option}"
            ));
        }
    }
    Ok(())
}

/// Checks that no id stands for two, and no two for one.
fn are_apart(map: &[IdRange]) -> Result<(), String> {
    if map.len() > RANGES_MAX {
        return Err(format!("at most {RANGES_MAX} ranges"));
    }
    for (side, of) in [
        ("outside", (|range| range.outside) as fn(&IdRange) -> u32),
        ("inside", |range| range.inside),
    ] {
        let mut ends: Vec<_> = map
            .iter()
            .map(|range| (of(range), u64::from(of(range)) + u64::from(range.count)))
            .collect();
        ends.sort_unstable();
        if let Some(two) = ends.windows(2).find(|two| two[0].1 > u64::from(two[1].0)) {
            return Err(format!("id {} {side} is in two ranges", two[1].0));
        }
    }
    Ok(())
}

fn range(text: &str) -> Result<IdRange, String> {
    let parts: Vec<_> = text.split(':').map(str::parse::<u32>).collect();
    let (outside, inside, count) = match &parts[..] {
        [Ok(outside), Ok(inside)] => (*outside, *inside, 1),
        [Ok(outside), Ok(inside), Ok(count)] => (*outside, *inside, *count),
        _ => return Err("must be OUTSIDE:INSIDE or OUTSIDE:INSIDE:COUNT, three numbers".into()),
    };
    // The greatest number means "no id" to the kernel.
    let fits = |first: u32| u64::from(first) + u64::from(count) <= u64::from(u32::MAX);
    match count {
        0 => Err("COUNT must be at least 1".into()),
        _ if !fits(outside) || !fits(inside) => Err("ids end at 4294967294".into()),
        _ => Ok(IdRange { outside, inside, count }),
    }
}

/// The part of a token that says how ids are squashed and mapped.
#[derive(Serialize)]
pub(super) struct ShownIds {
    /// The callers that act as the anonymous user: `root`, `all`, or none.
    squash: Option<&'static str>,
    anon_uid: u32,
    anon_gid: u32,
    /// Ranges as `--map-uid` takes them.
    map_uid: Vec<String>,
    map_gid: Vec<String>,
}

impl ShownIds {
    pub(super) fn of(ids: &IdMapping) -> ShownIds {
        let text = |range: &IdRange| {
            let IdRange { outside, inside, count } = range;
            format!("{outside}:{inside}:{count}")
        };
        ShownIds {
            squash: match ids.squash {
                Squash::Nobody => None,
                Squash::Root => Some("root"),
                Squash::All => Some("all"),
            },
            anon_uid: ids.anonymous_uid,
            anon_gid: ids.anonymous_gid,
            map_uid: ids.uids.iter().map(text).collect(),
            map_gid: ids.gids.iter().map(text).collect(),
        }
    }

    /// Names and values for people to read.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let anonymous = format!("user {}, group {}", self.anon_uid, self.anon_gid);
        let mut rows = vec![
            ("squashed", self.squash.unwrap_or("nobody").to_owned()),
            ("anonymous", anonymous),
        ];
        for (name, map) in [("user map", &self.map_uid), ("group map", &self.map_gid)] {
            if !map.is_empty() {
                rows.push((name, map.join(" ")));
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_two_ids_and_perhaps_a_count() {
        let is = |outside, inside, count| Ok(IdRange { outside, inside, count });
        assert_eq!(range("1000:5000"), is(1000, 5000, 1));
        assert_eq!(range("0:100000:65536"), is(0, 100_000, 65536));
        assert_eq!(range("4294967294:0"), is(u32::MAX - 1, 0, 1));
        for text in ["", "1", "1:2:3:4", "a:b", "1:2:0", "4294967295:0", "0:4294967290:6", "-1:1"] {
            assert!(range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_that_share_an_id_are_refused() {
        let map =
            |texts: &[&str]| texts.iter().map(|text| range(text).unwrap()).collect::<Vec<_>>();
        assert_eq!(are_apart(&map(&["10:100:5", "0:0:5", "15:105:5"])), Ok(()));
        assert!(are_apart(&map(&["10:100:5", "14:200"])).unwrap_err().contains("id 14 outside"));
        assert!(are_apart(&map(&["10:100:5", "20:104"])).unwrap_err().contains("id 104 inside"));
    }
}
