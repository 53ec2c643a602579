//! Tells the program which commit it is built from.
//!
//! Only for release builds: a debug build is made many times between two commits, and would be
//! linked anew after each commit for the sake of one line of `pando version`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("PROFILE").as_deref() != Ok("release") {
        return;
    }
    for path in ["../.git/HEAD", "../.git/index", "../.git/logs/HEAD"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let revision = git(&["rev-parse", "--short=12", "HEAD"]);
    let Some(revision) = revision.filter(|revision| !revision.is_empty()) else { return };
    println!("cargo::rustc-env=PANDO_REVISION={revision}");
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
