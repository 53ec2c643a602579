//! The table of layers (STYLE.md §3), compared with what the crates really depend on.
//!
//! A crate may be missing, because crates are born with their first real file. A crate that is
//! there must be in the table, and must use only what the table grants it.

use std::{path::Path, process::Command};

use anyhow::{Context as _, ensure};
use serde_json::Value;

/// One row: a crate, its layer, and the crates of ours that it may use.
struct Row {
    layer: u8,
    name: &'static str,
    uses: &'static [&'static str],
}

const fn row(layer: u8, name: &'static str, uses: &'static [&'static str]) -> Row {
    Row { layer, name, uses }
}

/// Everything a process is put together from: layers 0 to 3.
const ROLES: &[&str] = &[
    "base",
    "fuse",
    "tls",
    "wire",
    "store",
    "backup",
    "journal",
    "meta",
    "coordinator",
    "client",
    "region",
    "mount",
    "s3",
    "csi",
    "bench",
];

const TABLE: &[Row] = &[
    row(0, "base", &[]),
    row(0, "fuse", &[]),
    row(0, "tls", &[]),
    row(1, "wire", &["base"]),
    row(1, "store", &["base"]),
    row(2, "backup", &["base", "store"]),
    row(3, "journal", &["base", "store", "backup"]),
    row(2, "meta", &["base", "wire", "store"]),
    row(2, "coordinator", &["base", "wire", "store"]),
    row(2, "client", &["base", "tls", "wire", "store"]),
    row(3, "region", &["base", "tls", "wire", "client"]),
    row(3, "mount", &["base", "wire", "fuse", "client"]),
    row(3, "s3", &["base", "wire", "client"]),
    row(3, "csi", &["base", "wire", "client"]),
    row(3, "bench", &["base", "fuse", "wire", "store", "client"]),
    row(3, "capi", &["base", "wire", "client"]),
    row(3, "preload", &["base"]),
    row(4, "cli", ROLES),
    row(4, "lab", ROLES),
];

/// Members that are no part of what is delivered; they use none of our crates.
const OUTSIDE: &[&str] = &["xtask"];

/// Crates that the tests of a crate use beyond its row: the examples of `client` run, so they need
/// a server, and the tests of `mount` run over one; `cli` runs programs in C.
const TESTS: &[(&str, &str)] = &[
    ("client", "meta"),
    ("mount", "meta"),
    ("mount", "store"),
    ("cli", "capi"),
    ("cli", "preload"),
];

/// A crate of the workspace and the crates of the workspace that it depends on, tests included.
struct Crate {
    name: String,
    uses: Vec<String>,
}

/// Fails with a list of everything that the table does not allow.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let problems = problems(&crates(root)?);
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

fn crates(root: &Path) -> anyhow::Result<Vec<Crate>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("metadata lists packages")?;
    packages.iter().map(parse).collect()
}

fn parse(package: &Value) -> anyhow::Result<Crate> {
    let name = package["name"].as_str().context("a package has a name")?.to_owned();
    let dependencies = package["dependencies"].as_array().context("a package has dependencies")?;
    // Only our own crates are found by a path.
    let ours = dependencies.iter().filter(|dependency| dependency["path"].is_string());
    let uses = ours.filter_map(|dependency| {
        let used = dependency["name"].as_str()?;
        let in_tests = dependency["kind"] == "dev" && TESTS.contains(&(&name, used));
        (used != name && !in_tests).then(|| used.to_owned())
    });
    Ok(Crate { uses: uses.collect(), name })
}

fn problems(crates: &[Crate]) -> Vec<String> {
    let mut problems = Vec::new();
    for found in crates {
        let (layer, allowed) = match TABLE.iter().find(|row| row.name == found.name) {
            Some(row) => (format!("layer {}", row.layer), row.uses),
            None if OUTSIDE.contains(&found.name.as_str()) => ("no layer".to_owned(), &[][..]),
            None => {
                problems.push(format!("{} is in no layer of xtask/src/layers.rs", found.name));
                continue;
            }
        };
        let refused = found.uses.iter().filter(|used| !allowed.contains(&used.as_str()));
        problems
            .extend(refused.map(|used| format!("{} ({layer}) must not use {used}", found.name)));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_agrees_with_the_workspace() {
        let root = crate::workspace_root().expect("the workspace has a folder");
        run(root).expect("layers hold");
    }

    #[test]
    fn a_row_uses_lower_layers_only() {
        for row in TABLE {
            for used in row.uses {
                let below = TABLE.iter().find(|other| other.name == *used).expect("uses are rows");
                assert!(below.layer < row.layer, "{} uses {}", row.name, below.name);
            }
        }
    }

    #[test]
    fn a_crate_outside_the_table_and_a_use_upwards_are_found() {
        let crates = [
            Crate { name: "wire".into(), uses: vec!["base".into(), "store".into()] },
            Crate { name: "leaf".into(), uses: vec![] },
            Crate { name: "xtask".into(), uses: vec!["base".into()] },
        ];
        assert_eq!(
            problems(&crates),
            [
                "wire (layer 1) must not use store",
                "leaf is in no layer of xtask/src/layers.rs",
                "xtask (no layer) must not use base",
            ]
        );
    }
}
