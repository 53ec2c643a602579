//! Programs in Go of others and our own, for tests that ask Pando with them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::harness::stderr;

/// A program of a Go module, built with its caches in the target folder and without the network;
/// `None` without Go or without the modules, which is said. `module` is a folder, from the folder of
/// this crate.
pub(crate) fn built(module: &str, package: &str, name: &str) -> Option<PathBuf> {
    let there = Command::new("go").arg("version").output().is_ok_and(|ran| ran.status.success());
    if !there {
        eprintln!("skipped: go version does not run; see scripts/deps");
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../go");
    fs::create_dir_all(&folder).unwrap();
    let folder = folder.canonicalize().unwrap();
    let program = folder.join(name);
    let mut build = Command::new("go");
    build.args(["build", "-mod=readonly", "-o"]).arg(&program).arg(package);
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(module));
    build.env("GOCACHE", folder.join("cache")).env("GOMODCACHE", folder.join("modules"));
    build.env("GOFLAGS", "-modcacherw").env("GOPROXY", "off").env("GOTOOLCHAIN", "local");
    let output = build.output().unwrap();
    let said = stderr(&output);
    if said.contains("GOPROXY=off") || said.contains("GOTOOLCHAIN=local") {
        eprintln!("skipped: {module} has no modules here, or needs a newer Go; see scripts/deps");
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(program)
}
