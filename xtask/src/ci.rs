//! Everything that must hold before a change is taken, cheapest first.
//!
//! `make test` calls this. Stops at the first step that fails; the last lines are always the failed
//! tests and the sum of all test results. One profile builds everything, so that nothing is compiled
//! twice.

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::{
    layers, python,
    step::{self, Counts, say, timed},
    tidy, tools,
};

const MINUTE: Duration = Duration::from_secs(60);

/// The test program of the simulated worlds (and a short one of the client's).
const WORLDS: &str = "all";

/// Runs all steps and prints how they went.
pub(crate) fn run(root: &Path) -> ExitCode {
    let start = step::now();
    let mut counts = Counts::default();
    let result = steps(root, &mut counts);
    if result.is_err() && counts.failed == 0 {
        // A step that is no test binary failed.
        counts.failed += 1;
    }
    say(&format!("all steps took {:.1} min", start.elapsed().as_secs_f64() / 60.0));
    if let Err(error) = &result {
        say(&format!("error: {error:#}"));
    }
    counts.failures.iter().for_each(|line| say(line));
    say(&format!("{} passed, {} failed", counts.passed, counts.failed));
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn steps(root: &Path, counts: &mut Counts) -> anyhow::Result<()> {
    timed("format", || step::run(cargo(root).args(["fmt", "--all", "--check"]), MINUTE, counts))?;
    timed("tidy", || tidy::run(root))?;
    timed("layers", || layers::run(root))?;
    let clippy = ["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"];
    timed("clippy", || step::run(cargo(root).args(clippy), 30 * MINUTE, counts))?;
    // Other members of the workspace turn on features that the shipped program does not have, such
    // as planted bugs: it must compile without them, too.
    let shipped = ["clippy", "--locked", "--workspace", "--exclude", "lab", "--lib", "--bins"];
    let shipped = [&shipped[..], &["--", "-D", "warnings"]].concat();
    timed("program alone", || step::run(cargo(root).args(shipped), 10 * MINUTE, counts))?;
    let fuzz =
        ["check", "--locked", "--target-dir", "target", "--manifest-path", "fuzz/Cargo.toml"];
    timed("fuzz targets", || step::run(as_in_workspace(root).args(fuzz), 10 * MINUTE, counts))?;
    let build = ["build", "--locked", "--workspace", "--bins", "--example", "s3_stand_in"];
    timed("build", || step::run(cargo(root).args(build), 30 * MINUTE, counts))?;
    let tests = ["test", "--locked", "--workspace", "--no-fail-fast"];
    let (programs, worlds) = lanes(root)?;
    // Tests would wait for these, and their time is counted.
    let mut packagers = Command::new("scripts/package");
    packagers.current_dir(root).arg("--tools");
    timed("packagers", || step::run(&mut packagers, 15 * MINUTE, counts))?;
    // A limit of its own for each: a slow machine compiles for as long as the tests take.
    let mut compile = cargo(root);
    compile.args(tests).args(&programs).args(&worlds).arg("--no-run");
    timed("test programs", || step::run(&mut compile, 30 * MINUTE, counts))?;
    let mut busy = after_others(root);
    let busy = as_root(busy.args(tests).args(&worlds))?;
    timed("tests, worlds beside", || {
        step::beside(busy, 45 * MINUTE, counts, |counts| {
            let mut waiting = cargo(root);
            let waiting = as_root(waiting.args(tests).args(&programs))?;
            timed("tests", || step::run(waiting, 45 * MINUTE, counts))?;
            let docs = [&tests[..], &["--doc"]].concat();
            timed("doc tests", || step::run(cargo(root).args(docs), 10 * MINUTE, counts))?;
            timed("python", || python::run(root, cargo(root), counts))?;
            suites(root, counts)
        })
    })
}

/// Runs the POSIX suites, and a build, on mounts.
fn suites(root: &Path, counts: &mut Counts) -> anyhow::Result<()> {
    timed("suites", || {
        tools::ensure(root, &tools::PJDFSTEST).and(tools::ensure(root, &tools::FSX))
    })?;
    for suite in ["matrix", "build-on-mount"] {
        timed(suite, || step::run(&mut xtask_as_root(suite)?, 15 * MINUTE, counts))?;
        counts.passed += 1;
    }
    Ok(())
}

fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    cargo
}

/// Cargo that leaves processors to the rest of the machine where both want them: tests of real
/// programs have deadlines, worlds have clocks of their own.
fn after_others(root: &Path) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "10"]).arg(cargo(root).get_program()).current_dir(root);
    nice
}

/// The arguments of `cargo test` for two runs at once: for tests of real programs, which mostly wait,
/// and for the simulated worlds ([`WORLDS`]), which only compute.
fn lanes(root: &Path) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let output = cargo(root)
        .args(["metadata", "--locked", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let mut programs = ["--lib", "--bins", "--examples"].map(str::to_owned).to_vec();
    let tests = test_targets(&metadata);
    ensure!(tests.contains(WORLDS), "no test program is named {WORLDS}");
    for name in tests.into_iter().filter(|name| *name != WORLDS) {
        programs.extend(["--test".to_owned(), name.to_owned()]);
    }
    Ok((programs, vec!["--test".to_owned(), WORLDS.to_owned()]))
}

fn each(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The names of all test programs, from what `cargo metadata` tells.
fn test_targets(metadata: &Value) -> BTreeSet<&str> {
    each(&metadata["packages"])
        .iter()
        .flat_map(|package| each(&package["targets"]))
        .filter(|target| each(&target["kind"]).iter().any(|kind| kind == "test"))
        .filter_map(|target| target["name"].as_str())
        .collect()
}

/// Cargo for a check of the fuzz targets. It takes the profile of the workspace, whose crates are
/// compiled already. A check links nothing, so libFuzzer itself is not compiled.
fn as_in_workspace(root: &Path) -> Command {
    let mut cargo = cargo(root);
    cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
    // No variable says this.
    cargo.args(["--config", "profile.dev.package.\"*\".debug=false"]);
    cargo.env("CUSTOM_LIBFUZZER_PATH", root.join("target/libfuzzer.a"));
    cargo
}

/// Lets cargo start test binaries with sudo where the caller is not root: mounted tests need it.
fn as_root(cargo: &mut Command) -> anyhow::Result<&mut Command> {
    if is_root()? {
        return Ok(cargo);
    }
    let host = format!("{}-unknown-linux-gnu", env::consts::ARCH).to_uppercase().replace('-', "_");
    Ok(cargo.env(format!("CARGO_TARGET_{host}_RUNNER"), "sudo --preserve-env"))
}

/// This program again, for a suite that must be root; environment and tools stay the caller's.
fn xtask_as_root(suite: &str) -> anyhow::Result<Command> {
    // The build step may have replaced this program; then the kernel adds a word to the path of the
    // old one.
    let this = env::current_exe().context("this program has a path")?;
    let this = this.to_str().context("this program's path is text")?.trim_end_matches(" (deleted)");
    let mut command = if is_root()? {
        Command::new(this)
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["--preserve-env", "env"]);
        for name in ["HOME", "PATH", "XDG_CACHE_HOME"] {
            if let Ok(value) = env::var(name) {
                sudo.arg(format!("{name}={value}"));
            }
        }
        sudo.arg(this);
        sudo
    };
    command.arg(suite);
    Ok(command)
}

fn is_root() -> anyhow::Result<bool> {
    Ok(fs::metadata("/proc/self").context("/proc is needed")?.uid() == 0)
}
