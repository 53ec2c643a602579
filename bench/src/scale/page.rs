//! The page about it: tables and sentences, all of them from the constants.

use super::{
    CACHED_BYTES, CLIENTS, CORES, CORES_USED, Constants, DISK_BYTES, EVENT_BYTES, EVENTS_MAX,
    FILES_OF_DIRECTORY, MEMORY_BYTES, Needs, float,
};
use crate::report::figure;

const SIZES: [f64; 3] = [1e9, 1e10, 1e11];

/// The page, for constants that came as `source` says, a sentence.
#[must_use]
pub fn page(constants: &Constants, source: &str) -> String {
    let mut text = format!(
        "# Scale\n\n\
         What 10^9, 10^10 and 10^11 files need, and where the design would break first. `pando \
         bench scale --page` computes this page from what `pando bench scale --out DIR` measured \
         ([figures/scale.json](figures/scale.json)); nothing here was seen at these sizes. \
         {source}\n\n"
    );
    text += &assumed();
    text += &measured(constants);
    text += &needed(constants);
    text + &breaks(constants)
}

fn assumed() -> String {
    format!(
        "## What is assumed\n\n\
         - Files are in directories of {FILES_OF_DIRECTORY}, and empty or with contents in blocks \
         elsewhere: only metadata is counted.\n\
         - The load grows with the files: 4 million operations a second for 10^11 files, as \
         InfiniFS has them (§5.4), in the mix of its table 1, with 0.0083 % renames of directories \
         and changes of their permissions.\n\
         - A server has {} TB of disk for metadata, {} GB of memory and {CORES} cores like the one \
         that was measured, {} % of which are used.\n\
         - Needs grow in proportion to files. The CPU of the coordinator for a rename is on a line \
         through two cluster sizes, since each server is told.\n\n",
        figure(DISK_BYTES / 1e12),
        figure(MEMORY_BYTES / 1e9),
        figure(CORES_USED * 100.0),
    )
}

fn measured(constants: &Constants) -> String {
    let Constants { files, servers: [few, many], cpu, .. } = constants;
    let mb = |bytes: f64| figure(bytes / 1e6);
    let rows = [
        (
            "metadata on disk for a file, not yet compacted, bytes".to_owned(),
            figure(constants.bytes_per_file),
        ),
        (
            format!(
                "memory of a server with nothing, and with {} files, MB",
                figure(float(*files))
            ),
            constants.resident_bytes.map(mb).join(", "),
        ),
        (
            "start of a killed server with as many, s".to_owned(),
            constants.start_seconds.map(figure).join(", "),
        ),
        (format!("CPU of {many} servers for an operation of the mix, µs"), figure(cpu.of_mix())),
        (
            "the same for open and close, stat, create, unlink".to_owned(),
            [cpu.open, cpu.stat, cpu.create, cpu.unlink].map(figure).join(", "),
        ),
        (
            "the same for a file's rename, mkdir, rmdir, a directory's rename".to_owned(),
            [cpu.rename, cpu.mkdir, cpu.rmdir, cpu.rename_dir].map(figure).join(", "),
        ),
        (
            format!("CPU of the coordinator for that, of {few} and {many} servers, µs"),
            constants.coordinator_cpu_us.map(figure).join(", "),
        ),
        (
            format!("CPU of an idle coordinator of {few} and {many} servers, µs a second"),
            constants.coordinator_idle_us.map(figure).join(", "),
        ),
        (
            "CPU of a name that moves in a split, µs".to_owned(),
            figure(constants.split_cpu_us_per_name),
        ),
        (
            "names that moved for each that was made".to_owned(),
            figure(constants.names_moved_per_create),
        ),
    ];
    let rows: String = rows.iter().map(|(what, value)| format!("| {what} | {value} |\n")).collect();
    format!("## What was measured\n\n| constant | value |\n|---|---|\n{rows}\n")
}

fn needed(constants: &Constants) -> String {
    type Row = (&'static str, fn(&Needs) -> f64);
    let rows: [Row; 12] = [
        ("operations/s", |needs| needs.operations),
        ("metadata, GB", |needs| needs.store_bytes / 1e9),
        ("servers that the metadata needs", |needs| needs.servers_by[0]),
        ("servers that the operations need", |needs| needs.servers_by[1]),
        ("**servers**", |needs| needs.servers),
        ("files of a server, millions", |needs| needs.files / needs.servers / 1e6),
        ("memory of a server that keeps all filters and indexes, GB", |needs| {
            needs.memory_bytes / 1e9
        }),
        ("start of a killed server, s", |needs| needs.start_seconds),
        ("renames of directories/s", |needs| needs.renames),
        ("of the coordinator's core, %", |needs| needs.coordinator * 100.0),
        ("the invalidation list reaches back, s", |needs| needs.list_seconds),
        ("cores of all servers for splits, if all creates are in growing directories", |needs| {
            needs.split_cores
        }),
    ];
    let mut text =
        "## What is needed\n\n| files | 10^9 | 10^10 | 10^11 |\n|---|---|---|---|\n".to_owned();
    for (what, of) in rows {
        let values = SIZES.map(|files| figure(of(&constants.needs(files))));
        text += &format!("| {what} | {} |\n", values.join(" | "));
    }
    text += &format!(
        "\n\
         The state of lazy invalidation does not grow with files: a server's list has {} events of \
         {EVENT_BYTES} bytes at most ({} KB), and a client's cache takes {CACHED_BYTES} bytes for \
         a directory that it uses. A client that says nothing for longer than the list reaches \
         back drops its cache once. {} clients have a session with each server.\n\n",
        figure(EVENTS_MAX),
        figure(EVENTS_MAX * EVENT_BYTES / 1e3),
        figure(CLIENTS),
    );
    text
}

fn breaks(constants: &Constants) -> String {
    let largest = constants.limits(SIZES[2]);
    let mut rows: Vec<_> =
        (0..).zip(&largest).map(|(at, limit)| (constants.reached(at), limit)).collect();
    rows.sort_by(|(one, a), (other, b)| {
        let files = |reached: &Option<f64>| reached.unwrap_or(f64::INFINITY);
        files(one).total_cmp(&files(other)).then(b.part.total_cmp(&a.part))
    });
    let first = match rows.first() {
        Some((Some(files), limit)) => {
            format!("First comes: **{}**, at {}.", limit.what, power(*files))
        }
        Some((None, _)) | None => "None of these is reached below 10^15 files.".to_owned(),
    };
    let mut text = format!(
        "## Where it breaks first\n\n\
         What does not grow with servers, by the number of files at which it is full. {first}\n\n\
         | limit | taken at 10^11 files, % | full at |\n|---|---|---|\n"
    );
    for (reached, limit) in rows {
        let at = reached.map_or_else(|| "not below 10^15".to_owned(), power);
        text += &format!("| {} | {} | {at} |\n", limit.what, figure(limit.part * 100.0));
    }
    text += "\n\
             Not in this table, because no number of files reaches it: servers cannot be added to \
             a file system, so it is formatted for the servers it will need; and when the \
             coordinator is away for longer than a lease, clients that stand on cached paths wait \
             for it, however many servers there are.\n";
    text
}

/// Formats a number of files as a power of ten.
fn power(files: f64) -> String {
    let exponent = files.log10().floor();
    format!("{:.1}·10^{exponent:.0} files", files / 10_f64.powf(exponent))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::constants, *};

    #[test]
    fn the_page_says_what_breaks_first() {
        let page = page(&constants(), "By hand.");
        assert!(page.contains("By hand.") && page.contains("| **servers** |"), "{page}");
        let first = page.split_once("First comes: **").unwrap().1;
        assert!(first.contains("10^"), "{first}");
        for line in page.lines().filter(|line| line.starts_with('|')) {
            assert!(!line.contains("NaN") && !line.contains("inf"), "{line}");
        }
    }

    #[test]
    fn files_are_told_in_powers_of_ten() {
        assert_eq!(power(3.2e11), "3.2·10^11 files");
        assert_eq!(power(1e9), "1.0·10^9 files");
    }
}
