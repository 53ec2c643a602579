//! The targets, one after the other: what each says, and what was measured for it.

use bench::report::{Against, Floors, Goal, Line, TargetRow};
use serde_json::Value;

use super::{MOUNT_OFF, NATIVE_1, NATIVE_16, NATIVE_128, Others, Scale, UP_OFF, site::MEMORY};

const MB: f64 = 1e6;
/// Memory of the server, which may exceed its budget by a twentieth, in MB.
const MEMORY_MB_MAX: f64 = 1.05 * 1_073.741_824;

/// All targets that were measured.
pub(super) fn all(scale: &Scale, lines: &[Line], others: &Others) -> Vec<TargetRow> {
    let results = Results { lines, floors: Floors::of(lines) };
    let mut rows = results.native();
    rows.extend(results.mounted());
    rows.extend(others.rows(scale));
    rows
}

struct Results<'a> {
    lines: &'a [Line],
    floors: Floors,
}

impl Results<'_> {
    /// A figure of each iteration of a phase.
    fn values(&self, run: &str, phase: &str, value: fn(&bench::Row) -> Option<f64>) -> Vec<f64> {
        let rows = self.lines.iter().filter_map(|line| match line {
            Line::Run(found) if found.run == run && found.row.phase == phase => Some(&found.row),
            Line::Run(_) | Line::Floor(_) | Line::Target(_) => None,
        });
        rows.filter_map(value).collect()
    }

    fn rates(&self, run: &str, phase: &str) -> Vec<f64> {
        self.values(run, phase, |row| Some(row.ops_per_s))
    }

    fn native(&self) -> Vec<TargetRow> {
        let one = "pando bench md HOST:PORT --ranks 1 --in-flight 128 --connections 1";
        let many = "pando bench md HOST:PORT --ranks 1 --in-flight 128 --connections 16";
        let alone = "pando bench md HOST:PORT --ranks 1";
        let rate = |target: &str, run: &str, phase: &str, goal: f64, command: &str| {
            let floor = self.floors.beside(run, phase);
            TargetRow::of(
                target,
                ("/s", Goal::AtLeast(goal)),
                self.rates(run, phase),
                floor,
                command,
            )
        };
        let cpu = |target: &str, phase: &str, times: f64| {
            let values = self.values(NATIVE_128, phase, |row| row.server_cpu_us_per_op);
            let floor = self.floors.server_cpu_us("echo_128", phase);
            TargetRow::of(target, ("µs", Goal::Times(Against::Floor, times)), values, floor, one)
        };
        let median = |target: &str, phase: &str| {
            let values = self.values(NATIVE_1, phase, |row| Some(row.p50_us));
            let floor = self.floors.p50_us("echo_1");
            TargetRow::of(target, ("µs", Goal::Times(Against::Floor, 1.5)), values, floor, alone)
        };
        let rows = [
            rate("native creates, one connection", NATIVE_128, "file_create", 120_000.0, one),
            rate("native creates, 16 connections", NATIVE_16, "file_create", 90_000.0, many),
            rate("native stats, one connection", NATIVE_128, "file_stat", 350_000.0, one),
            rate("native unlinks, one connection", NATIVE_128, "file_remove", 110_000.0, one),
            cpu("server CPU of a create", "file_create", 2.5),
            cpu("server CPU of a stat", "file_stat", 2.0),
            median("median of a create, one in flight", "file_create"),
            median("median of a stat, one in flight", "file_stat"),
        ];
        rows.into_iter().flatten().collect()
    }

    fn mounted(&self) -> Vec<TargetRow> {
        let rate = |target: &str, run: &str, phase: &str, part: f64| {
            let floor = self.floors.beside(run, phase);
            let command = "pando bench md MOUNT, mounted with -o attr_timeout=0,entry_timeout=0";
            TargetRow::of(
                target,
                ("/s", Goal::PartOf(Against::Floor, part)),
                self.rates(run, phase),
                floor,
                command,
            )
        };
        let rows = [
            rate("mount of `up`: stats, caches off", UP_OFF, "file_stat", 0.6),
            rate("mount of `up`: create and close", UP_OFF, "file_create", 0.5),
            rate("mount beside a server: stats, caches off", MOUNT_OFF, "file_stat", 0.6),
            rate("mount beside a server: create and close", MOUNT_OFF, "file_create", 0.5),
        ];
        rows.into_iter().flatten().collect()
    }
}

impl Others {
    fn rows(&self, scale: &Scale) -> Vec<TargetRow> {
        let number = |object: &Value, field: &str| -> Vec<f64> {
            object[field].as_f64().into_iter().collect()
        };
        let io = |target: &str, field: &str| {
            let floor = self.io["local"][field].as_f64();
            let command = format!("pando bench io MOUNT --size {}", scale.io);
            TargetRow::of(
                target,
                ("MB/s", Goal::PartOf(Against::Floor, 0.5)),
                number(&self.io["target"], field),
                floor,
                &command,
            )
        };
        let list = format!("pando bench list MOUNT --entries {}", scale.entries);
        let fill = format!("pando bench fill HOST:PORT --files {}", scale.fill);
        let listed = (self.list["resident_bytes_listed_peak"].as_f64())
            .zip(self.list["resident_bytes_before"].as_f64());
        let grown = listed.map(|(peak, before)| (peak - before) / MB);
        let memory = number(&self.fill, "server_resident_bytes").iter().map(|b| b / MB).collect();
        let rows = [
            io("mount: sequential write with fsync", "write_mb_per_s"),
            io("mount: cold sequential read", "read_mb_per_s"),
            TargetRow::of(
                &format!("list a directory of {} entries", scale.entries),
                ("s", Goal::Below(3.0)),
                number(&self.list, "list_seconds"),
                None,
                &list,
            ),
            TargetRow::of(
                "memory that the mount grows by at most while it lists",
                ("MB", Goal::Below(16.0)),
                grown.into_iter().collect(),
                None,
                &list,
            ),
            TargetRow::of(
                &format!("memory of a server with {} new files, --memory {MEMORY}", scale.fill),
                ("MB", Goal::Below(MEMORY_MB_MAX)),
                memory,
                None,
                &fill,
            ),
            TargetRow::of(
                "disk for each file, not yet compacted",
                ("B", Goal::Below(150.0)),
                number(&self.fill, "store_bytes_per_file"),
                None,
                &fill,
            ),
            TargetRow::of(
                &format!("start after a kill with {} files", scale.fill),
                ("s", Goal::Below(2.0)),
                vec![self.start],
                None,
                "pando serve --data DIR, after kill -9",
            ),
        ];
        rows.into_iter().flatten().collect()
    }
}
