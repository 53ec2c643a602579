//! The memory budget of a server's process: what it is, and how its parts share it.
//!
//! `serve`, `up` and `dev` read `--memory` with this, and a server is opened with what is dealt
//! here. The caches of metadata get what memtables and the rest of the process leave. Nothing here
//! measures or enforces: each cache keeps its own bound.
//!
//! Always true: the parts of a budget add up to it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use meta::MemoryBudget;

use crate::{output, values};

const MIB: u64 = 1 << 20;

/// The least budget: below, memtables are so small that tables are written all the time.
const MIN: u64 = 96 * MIB;
/// The part of the machine that `auto` takes.
const AUTO_SHARE: u64 = 4;
/// Bounds of `auto`. A machine with little memory gives half of it, where that is less than the
/// lower bound.
const AUTO_MIN: u64 = 256 * MIB;
const AUTO_MAX: u64 = 8 << 30;
/// Memory of a process besides caches and memtables, and the part of its budget that comes on top:
/// room for requests, sessions and compaction, and what allocators lose.
const REST: u64 = 40 * MIB;
const REST_SHARE: u64 = 16;
/// The part of the budget that one memtable gets, and its bounds. There are three at most.
const MEMTABLE_SHARE: u64 = 10;
const MEMTABLE_MIN: u64 = 4 * MIB;
const MEMTABLE_MAX: u64 = 64 * MIB;
const MEMTABLES: u64 = 3;
/// Of what is left the block cache gets half of the first bytes, up to this many, and of those
/// beyond a smaller part: it mostly holds indexes and filters, as records are in the record cache.
const BLOCK_CACHE_HALVED: u64 = 128 * MIB;
const BLOCK_CACHE_SHARE: u64 = 4;

/// The value of `--memory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryOption {
    /// A share of the memory that the machine has, or that the process may use of it.
    Auto,
    /// Bytes.
    Bytes(u64),
}

/// Parses `--memory`, for clap.
pub(crate) fn option(text: &str) -> Result<MemoryOption, String> {
    if text == "auto" {
        return Ok(MemoryOption::Auto);
    }
    let bytes = values::size(text).map_err(|error| format!("{error}, or `auto`"))?;
    if bytes < MIN {
        return Err(format!("a server needs {} at least", output::bytes(MIN)));
    }
    Ok(MemoryOption::Bytes(bytes))
}

impl MemoryOption {
    /// The budget of the only server of this machine, in bytes.
    pub(crate) fn bytes(self) -> u64 {
        let machine = machine_bytes(Path::new("/"));
        match self {
            MemoryOption::Auto => auto(machine, 1),
            MemoryOption::Bytes(bytes) => {
                if machine.is_some_and(|machine| machine < bytes) {
                    tracing::warn!(bytes, machine, "--memory is more than the machine has");
                }
                bytes
            }
        }
    }

    /// The option of each of so many servers that share this one on this machine.
    pub(crate) fn share(self, servers: u64) -> Result<u64, String> {
        match self {
            MemoryOption::Auto => Ok(auto(machine_bytes(Path::new("/")), servers)),
            MemoryOption::Bytes(bytes) if bytes / servers >= MIN => Ok(bytes / servers),
            MemoryOption::Bytes(_) => Err(format!(
                "{servers} servers need {} at least: give --memory more, or start fewer servers",
                output::bytes(MIN * servers)
            )),
        }
    }
}

/// The budget of each of so many servers on a machine with this much memory; `None`: the machine
/// does not say.
fn auto(machine: Option<u64>, servers: u64) -> u64 {
    let Some(machine) = machine else { return AUTO_MIN };
    let least = AUTO_MIN.min(machine / 2 / servers);
    (machine / AUTO_SHARE / servers).clamp(least, AUTO_MAX).max(MIN)
}

/// Deals a budget to the parts of a server. With `memtable`, one memtable has that many bytes.
pub(crate) fn deal(process: u64, memtable: Option<u64>) -> MemoryBudget {
    let usual = (process / MEMTABLE_SHARE).clamp(MEMTABLE_MIN, MEMTABLE_MAX);
    let memtables = MEMTABLES * memtable.unwrap_or(usual);
    let caches = process.saturating_sub(REST + process / REST_SHARE + memtables);
    let halved = caches.min(2 * BLOCK_CACHE_HALVED);
    let block_cache = halved / 2 + (caches - halved) / BLOCK_CACHE_SHARE;
    MemoryBudget { process, memtables, block_cache, record_cache: caches - block_cache }
}

/// Bytes of one memtable of a budget.
pub(crate) fn memtable(budget: &MemoryBudget) -> u64 {
    budget.memtables / MEMTABLES
}

/// Memory that the processes of a control group may use together, and that the machine has: the
/// least of them. `root` is where the machine's file systems are mounted.
fn machine_bytes(root: &Path) -> Option<u64> {
    let total = fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| {
        let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    group_limits(root).into_iter().chain(total).min()
}

/// The limits of this process' control groups, of both versions.
fn group_limits(root: &Path) -> Vec<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let (folder, files): (_, &[&str]) = if controllers.is_empty() {
            ("sys/fs/cgroup", &["memory.max", "memory.high"])
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("sys/fs/cgroup/memory", &["memory.limit_in_bytes"])
        } else {
            continue;
        };
        let top = root.join(folder);
        let group = PathBuf::from(group.trim_start_matches('/'));
        // The groups above have limits, too. A container sees its own group on top, whatever path
        // the kernel names.
        for group in group.ancestors() {
            let limit = |file: &&str| {
                let text = fs::read_to_string(top.join(group).join(file)).ok()?;
                text.trim().parse::<u64>().ok()
            };
            limits.extend(files.iter().filter_map(limit));
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_size_or_auto_is_taken_and_too_little_is_refused() {
        assert_eq!(option("auto"), Ok(MemoryOption::Auto));
        assert_eq!(option("256M"), Ok(MemoryOption::Bytes(256 * MIB)));
        assert_eq!(option("8GiB"), Ok(MemoryOption::Bytes(8 * GIB)));
        assert!(option("95MiB").unwrap_err().contains("at least"));
        assert!(option("much").unwrap_err().contains("`auto`"));
    }

    #[test]
    fn auto_is_a_share_of_the_machine_within_bounds() {
        assert_eq!(auto(Some(16 * GIB), 1), 4 * GIB);
        assert_eq!(auto(Some(256 * GIB), 1), AUTO_MAX);
        assert_eq!(auto(Some(768 * MIB), 1), AUTO_MIN);
        assert_eq!(auto(Some(400 * MIB), 1), 200 * MIB);
        assert_eq!(auto(Some(64 * MIB), 1), MIN);
        assert_eq!(auto(None, 1), AUTO_MIN);
    }

    #[test]
    fn servers_of_one_machine_share_its_budget() {
        assert_eq!(auto(Some(16 * GIB), 4), GIB);
        assert_eq!(MemoryOption::Bytes(GIB).share(4), Ok(256 * MIB));
        assert!(MemoryOption::Bytes(GIB).share(11).unwrap_err().contains("1.0 GiB at least"));
    }

    #[test]
    fn the_parts_add_up_and_each_has_something() {
        for process in [MIN, 128 * MIB, 256 * MIB, GIB, 8 * GIB, 1 << 40] {
            let budget = deal(process, None);
            assert!(budget.rest() >= REST, "{budget:?}");
            assert_eq!(
                budget.rest() + budget.record_cache + budget.block_cache + budget.memtables,
                process
            );
            assert!(budget.record_cache >= 8 * MIB && budget.block_cache >= 8 * MIB, "{budget:?}");
            assert!((MEMTABLE_MIN..=MEMTABLE_MAX).contains(&memtable(&budget)), "{budget:?}");
        }
    }

    #[test]
    fn a_memtable_that_was_asked_for_leaves_the_caches_less() {
        let (usual, asked) = (deal(GIB, None), deal(GIB, Some(256 * MIB)));
        assert_eq!(memtable(&asked), 256 * MIB);
        assert!(asked.record_cache < usual.record_cache);
        assert_eq!(deal(MIN, Some(GIB)).record_cache, 0);
    }

    /// A root with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:        1 kB\n");

    #[test]
    fn a_machine_without_limits_has_its_memory() {
        let files = [MEMINFO, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max")];
        assert_eq!(machine_bytes(root(&files).path()), Some(16 * GIB));
        assert_eq!(machine_bytes(root(&[MEMINFO]).path()), Some(16 * GIB));
        assert_eq!(machine_bytes(root(&[]).path()), None);
    }

    #[test]
    fn the_least_limit_of_a_group_and_those_above_counts() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/system.slice/pando.service\n"),
            ("sys/fs/cgroup/system.slice/pando.service/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/system.slice/pando.service/memory.high", "max\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "2147483648\n"),
        ];
        assert_eq!(machine_bytes(root(&files).path()), Some(2 * GIB));
    }

    #[test]
    fn limits_of_version_1_count_also_where_a_container_sees_its_group_on_top() {
        let cgroup = "12:cpu,cpuacct:/docker/1\n7:memory:/docker/1\n0::/docker/1\n";
        let inside = [
            MEMINFO,
            ("proc/self/cgroup", cgroup),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
        ];
        assert_eq!(machine_bytes(root(&inside).path()), Some(GIB));
        let outside = [
            MEMINFO,
            ("proc/self/cgroup", cgroup),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "536870912\n"),
        ];
        assert_eq!(machine_bytes(root(&outside).path()), Some(512 * MIB));
    }
}
