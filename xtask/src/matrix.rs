//! Both POSIX suites on every configuration in which something else happens below the mount.
//!
//! `ci` and `cargo xtask matrix` call this. A new configuration is a row of [`CONFIGURATIONS`] and
//! nothing else. Each row says what it ran and how long that took; one that cannot run fails.

use std::{fs, path::Path};

use anyhow::{Context as _, ensure};

use crate::{
    fsx, pjdfstest, served,
    step::{now, say},
};

/// Servers and mounts of a run.
pub(crate) struct Configuration {
    pub(crate) name: &'static str,
    /// `serve` and `mount`, each a process, in place of `up`.
    pub(crate) apart: bool,
    /// `dev` with four servers and `mount`, and a server is killed every few seconds.
    pub(crate) killed: bool,
    /// Contents are in an S3 store.
    pub(crate) s3: bool,
    /// Options of `format`.
    pub(crate) format: &'static [&'static str],
    /// Options of `up` or `serve`.
    pub(crate) serve: &'static [&'static str],
    /// Options of the mount, where it is a process of its own.
    pub(crate) mount: &'static str,
}

/// Configuration of a new user.
pub(crate) const USUAL: Configuration = Configuration {
    name: "usual",
    apart: false,
    killed: false,
    s3: false,
    format: &[],
    serve: &[],
    mount: "dev,suid,allow_other",
};

const STRICT: &[&str] = &["--durability", "strict"];
const INLINE_OFF: &[&str] = &["--inline-max", "0"];
const ASKS: &str = "dev,suid,allow_other,delegations=off";
const OVER_IO_URING: &str = "dev,suid,allow_other,io_uring=on";
/// The kernel's parameter for mounts over io_uring, which a mount that must have it turns on.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
const COMPRESSED: &[&str] = &["--compression", "zstd"];

/// The rows: each difference alone, and all of them together.
const CONFIGURATIONS: [Configuration; 11] = [
    USUAL,
    Configuration { name: "strict", serve: STRICT, ..USUAL },
    Configuration { name: "serve and mount", apart: true, mount: ASKS, ..USUAL },
    Configuration { name: "delegations", apart: true, ..USUAL },
    Configuration { name: "io_uring", apart: true, mount: OVER_IO_URING, ..USUAL },
    Configuration { name: "blocks in S3", s3: true, ..USUAL },
    Configuration { name: "inline off", format: INLINE_OFF, ..USUAL },
    Configuration { name: "compressed blocks", format: COMPRESSED, ..USUAL },
    Configuration {
        name: "all of these",
        apart: true,
        s3: true,
        format: &["--inline-max", "0", "--compression", "lz4"],
        serve: STRICT,
        ..USUAL
    },
    Configuration { name: "four servers that are killed", killed: true, mount: ASKS, ..USUAL },
    Configuration { name: "four servers that are killed, and delegations", killed: true, ..USUAL },
];

/// Runs the rows whose name holds `part`.
pub(crate) fn run(root: &Path, part: &str) -> anyhow::Result<()> {
    let mut ran = Vec::new();
    for (number, row) in (0_u32..).zip(&CONFIGURATIONS) {
        if !row.name.contains(part) {
            continue;
        }
        let before = fs::read_to_string(PARAMETER).ok();
        if row.mount == OVER_IO_URING && before.is_none() {
            say("NOT TESTED: the kernel has no FUSE over io_uring");
            continue;
        }
        say(&format!("on \"{}\":", row.name));
        let start = now();
        let both = |dir: &Path| {
            pjdfstest::run(root, dir, false)?;
            // Other seeds in each row, and less of what the first has run in full.
            fsx::run(
                root,
                dir,
                if number == 0 { fsx::Part::Full } else { fsx::Part::Short(number) },
            )
        };
        let served = served::on_a_mount(root, row, both).with_context(|| row.name);
        if row.mount == OVER_IO_URING
            && let Some(before) = before
        {
            // Other mounts of the machine are not to learn of ours.
            fs::write(PARAMETER, before.trim())?;
        }
        served?;
        ran.push((row.name, start.elapsed().as_secs_f64()));
    }
    ensure!(!ran.is_empty(), "no configuration is named {part:?}");
    ran.iter().for_each(|(name, seconds)| say(&format!("{name}: both suites in {seconds:.0} s")));
    Ok(())
}
