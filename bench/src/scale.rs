//! Needs of file systems of a given size, computed from measurements of small ones.
//!
//! `bench scale` measures the [`Constants`] and writes them; the page `docs/SCALE.md` is [`page`]
//! of them. Nothing is measured here.
//!
//! The computation is linear: twice the files need twice the disk and, at the load that is assumed
//! to go with files, twice the CPU. What does not grow so is named as a limit, and the page says at
//! how many files each limit is reached.

mod page;

use base::limits::SHARDS_MAX;
use serde::{Deserialize, Serialize};

pub use page::page;

/// Measured constants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Constants {
    /// Files of the server that was filled.
    pub files: u64,
    /// Metadata on disk for a file, with its part of a directory, not yet compacted.
    pub bytes_per_file: f64,
    /// Memory of a server that has just started with nothing, and of one with [`Constants::files`].
    pub resident_bytes: [f64; 2],
    /// Seconds until a server serves that was killed: with nothing, and with [`Constants::files`].
    pub start_seconds: [f64; 2],
    /// Servers of the two clusters.
    pub servers: [u16; 2],
    /// CPU microseconds of all servers of the larger cluster, for one of each operation.
    pub cpu: Cpu,
    /// CPU microseconds of the coordinator for the rename of a directory, on either cluster.
    pub coordinator_cpu_us: [f64; 2],
    /// CPU microseconds a second of the coordinator of either cluster without any requests.
    pub coordinator_idle_us: [f64; 2],
    /// CPU microseconds of all servers for a name that moves to another partition when a directory
    /// splits.
    pub split_cpu_us_per_name: f64,
    /// Names that moved for each name that was made, in the directory that was measured.
    pub names_moved_per_create: f64,
}

/// CPU microseconds of all servers for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// A file is opened and closed.
    pub open: f64,
    /// A file or directory is looked at.
    pub stat: f64,
    /// An empty file is made.
    pub create: f64,
    /// A file is removed.
    pub unlink: f64,
    /// A file gets another name; half of them in another directory.
    pub rename: f64,
    /// A file gets another mode.
    pub chmod: f64,
    /// A directory of twenty files is listed.
    pub list: f64,
    /// A directory is made.
    pub mkdir: f64,
    /// A directory is removed.
    pub rmdir: f64,
    /// A directory gets another name.
    pub rename_dir: f64,
}

impl Cpu {
    /// For an operation of the mix of InfiniFS table 1, in which an open and its close are two.
    #[must_use]
    pub fn of_mix(&self) -> f64 {
        let file = 0.549 / 2.0 * self.open
            + 0.129 * self.stat
            + 0.100 * self.create
            + 0.124 * self.unlink
            + 0.097 * self.rename
            + 0.001 * self.chmod;
        let directory =
            0.933 * self.list + 0.066 * self.stat + 0.001 * self.mkdir + 0.001 * self.rmdir;
        0.958 * file + 0.042 * directory + RENAMES_PART * self.rename_dir
    }
}

/// Share of all operations that rename a directory or change its permissions (InfiniFS §2.3).
pub const RENAMES_PART: f64 = 0.000_083;
/// Operations a second for a file: InfiniFS §5.4 has 100 billion files and about 4 million
/// operations a second.
pub const LOAD_PER_FILE: f64 = 4e6 / 1e11;
/// Files of a directory.
pub const FILES_OF_DIRECTORY: u64 = 20;
/// A server: bytes of its disk that metadata may take, its memory, its cores, and what part of them
/// is used.
pub const DISK_BYTES: f64 = 2e12;
/// See [`DISK_BYTES`].
pub const MEMORY_BYTES: f64 = 64e9;
/// See [`DISK_BYTES`].
pub const CORES: f64 = 8.0;
/// See [`DISK_BYTES`].
pub const CORES_USED: f64 = 0.5;
/// Bytes of filters and indexes for a file, which has one record: about half of them are of
/// filters.
pub const INDEX_BYTES_PER_FILE: f64 = 2.5;
/// Events of the invalidation list (`meta`), each with an id, its mark and its place.
pub const EVENTS_MAX: f64 = 10_000.0;
/// Bytes of one.
pub const EVENT_BYTES: f64 = 32.0;
/// Bytes that a client's cache takes for a directory, next to its name.
pub const CACHED_BYTES: f64 = 460.0;
/// Shards of a file system that was formatted as usual.
pub const SHARDS_USUAL: u16 = 1024;
/// Longest acceptable wait for a server to start again. A client that waits longer counts as not
/// served.
pub const START_SECONDS_MAX: f64 = 60.0;
/// Clients with a session at each server; a server opens no more than the second number (`serve
/// --sessions-max`).
pub const CLIENTS: f64 = 2048.0;
/// See [`CLIENTS`].
pub const SESSIONS_MAX: f64 = 65_536.0;

/// Needs of a file system of some size.
#[derive(Debug, Clone, PartialEq)]
pub struct Needs {
    /// Number of files.
    pub files: f64,
    /// Operations a second.
    pub operations: f64,
    /// Bytes of metadata.
    pub store_bytes: f64,
    /// Servers that its metadata needs, and that its operations need.
    pub servers_by: [f64; 2],
    /// Servers it needs: the most of those.
    pub servers: f64,
    /// Memory that a server needs to keep filters and indexes of all its tables.
    pub memory_bytes: f64,
    /// Seconds until a killed server serves again.
    pub start_seconds: f64,
    /// Renames of directories a second.
    pub renames: f64,
    /// The part of one core of the coordinator that they take, with its heartbeats.
    pub coordinator: f64,
    /// Seconds that the invalidation list reaches back.
    pub list_seconds: f64,
    /// CPU cores of all servers for splits, where all creates are in directories that grow.
    pub split_cores: f64,
}

/// Something that does not grow with servers: reached where its part comes to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// Resource that is full.
    pub what: &'static str,
    /// Part of the resource that is taken.
    pub part: f64,
}

impl Constants {
    /// Returns the needs of a file system with this number of files.
    #[must_use]
    pub fn needs(&self, files: f64) -> Needs {
        let operations = files * LOAD_PER_FILE;
        let store_bytes = files * self.bytes_per_file;
        let by_disk = (store_bytes / DISK_BYTES).ceil().max(1.0);
        let cores = operations * self.cpu.of_mix() / 1e6;
        let by_cpu = (cores / (CORES * CORES_USED)).ceil().max(1.0);
        let servers = by_disk.max(by_cpu);
        let renames = operations * RENAMES_PART;
        let on = |of: [f64; 2]| self.by_servers(of, servers);
        let creates = operations * 0.958 * 0.100;
        let of_file = |[nothing, full]: [f64; 2]| (full - nothing).max(0.0) / float(self.files);
        let on_server = files / servers;
        Needs {
            files,
            operations,
            store_bytes,
            servers_by: [by_disk, by_cpu],
            servers,
            memory_bytes: self.resident_bytes[1] + INDEX_BYTES_PER_FILE * on_server,
            start_seconds: self.start_seconds[0] + of_file(self.start_seconds) * on_server,
            renames,
            coordinator: (renames * on(self.coordinator_cpu_us) + on(self.coordinator_idle_us))
                / 1e6,
            list_seconds: EVENTS_MAX / renames.max(1e-9),
            split_cores: creates * self.names_moved_per_create * self.split_cpu_us_per_name / 1e6,
        }
    }

    /// Extrapolates a value that was measured with two numbers of servers to another number of
    /// servers. The result is on the line through both, and no less than nothing.
    fn by_servers(&self, [few, many]: [f64; 2], servers: f64) -> f64 {
        let [from, to] = self.servers.map(f64::from);
        let each = if to > from { (many - few).max(0.0) / (to - from) } else { 0.0 };
        many.max(few) + each * (servers - to).max(0.0)
    }

    /// Returns all limits, with the part of them that so many files take.
    #[must_use]
    pub fn limits(&self, files: f64) -> Vec<Limit> {
        let needs = self.needs(files);
        let limit = |what, part| Limit { what, part };
        vec![
            limit("one core of the coordinator", needs.coordinator),
            limit(
                "a shard for each server, as formatted (1,024)",
                needs.servers / f64::from(SHARDS_USUAL),
            ),
            limit(
                "a shard for each server, at most (4,096)",
                needs.servers / f64::from(SHARDS_MAX),
            ),
            limit("memory for filters and indexes", needs.memory_bytes / MEMORY_BYTES),
            limit("start of a killed server within 60 s", needs.start_seconds / START_SECONDS_MAX),
            limit("the invalidation list reaches back a second", 1.0 / needs.list_seconds),
            limit("sessions of a server", CLIENTS / SESSIONS_MAX),
        ]
    }

    /// At how many files a limit is reached, of those between a million and 10^15, by its place in
    /// [`Constants::limits`].
    #[must_use]
    pub fn reached(&self, limit: usize) -> Option<f64> {
        let sizes = (600..=1500).map(|exponent| 10_f64.powf(f64::from(exponent) / 100.0));
        let is_full = |files: &f64| self.limits(*files).get(limit).is_some_and(|of| of.part >= 1.0);
        sizes.into_iter().find(is_full)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of files have no 53 significant bits")]
fn float(count: u64) -> f64 {
    count.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn constants() -> Constants {
        let cpu = Cpu {
            open: 20.0,
            stat: 10.0,
            create: 20.0,
            unlink: 20.0,
            rename: 60.0,
            chmod: 20.0,
            list: 20.0,
            mkdir: 60.0,
            rmdir: 60.0,
            rename_dir: 400.0,
        };
        Constants {
            files: 1_000_000,
            bytes_per_file: 40.0,
            resident_bytes: [50e6, 120e6],
            start_seconds: [0.1, 0.2],
            servers: [2, 8],
            cpu,
            coordinator_cpu_us: [100.0, 160.0],
            coordinator_idle_us: [200.0, 800.0],
            split_cpu_us_per_name: 10.0,
            names_moved_per_create: 0.2,
        }
    }

    #[test]
    fn the_mix_weighs_operations_as_the_table_does() {
        let one = Cpu {
            open: 2.0,
            stat: 1.0,
            create: 1.0,
            unlink: 1.0,
            rename: 1.0,
            chmod: 1.0,
            list: 1.0,
            mkdir: 1.0,
            rmdir: 1.0,
            rename_dir: 0.0,
        };
        assert!((one.of_mix() - 1.0).abs() < 0.001, "{}", one.of_mix());
    }

    #[test]
    fn needs_grow_with_files_and_are_met_by_servers() {
        let constants = constants();
        let needs = constants.needs(1e11);
        assert!((needs.store_bytes - 4e12).abs() < 1e6);
        assert!((needs.operations - 4e6).abs() < 1e-6 && (needs.renames - 332.0).abs() < 1e-6);
        assert!((needs.servers_by[0] - 2.0).abs() < 1e-9);
        assert!((needs.servers_by[1] - (4.0 * constants.cpu.of_mix() / 4.0).ceil()).abs() < 1e-9);
        let small = constants.needs(1e9);
        assert!((small.servers - 1.0).abs() < 1e-9 && small.coordinator < needs.coordinator);
    }

    #[test]
    fn what_was_measured_on_two_clusters_is_on_a_line() {
        let constants = constants();
        let on = |servers| constants.by_servers([100.0, 160.0], servers);
        assert!((on(8.0) - 160.0).abs() < 1e-9 && (on(18.0) - 260.0).abs() < 1e-9);
        // Fewer servers than were tried do not lower the cost, nor does a measurement that falls by
        // chance.
        assert!((on(1.0) - 160.0).abs() < 1e-9);
        assert!((constants.by_servers([160.0, 100.0], 100.0) - 160.0).abs() < 1e-9);
    }

    #[test]
    fn a_limit_is_reached_where_its_part_is_one() {
        let constants = constants();
        for (at, limit) in constants.limits(1e9).iter().enumerate() {
            let Some(files) = constants.reached(at) else { continue };
            assert!(constants.limits(files)[at].part >= 1.0, "{}", limit.what);
            assert!(constants.limits(files / 1.03)[at].part < 1.0, "{}", limit.what);
        }
        assert!(constants.reached(0).is_some(), "the coordinator is one process");
    }
}
