//! Everything that must hold before a change is taken, cheapest first.
//!
//! `make test` calls this. Stops at the first step that fails; the last line is always the sum of
//! all test results. One profile builds everything, so that nothing is compiled twice.

use std::{
    env, fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::Context as _;

use crate::{
    layers,
    step::{self, Counts, say, timed},
    tidy, tools,
};

const MINUTE: Duration = Duration::from_secs(60);

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
    let tests = [
        "test",
        "--locked",
        "--workspace",
        "--no-fail-fast",
        "--lib",
        "--bins",
        "--tests",
        "--examples",
    ];
    // A limit of its own for each: a slow machine compiles for as long as the tests take.
    let compile = [&tests[..], &["--no-run"]].concat();
    timed("test programs", || step::run(cargo(root).args(compile), 30 * MINUTE, counts))?;
    timed("tests", || step::run(as_root(cargo(root).args(tests))?, 45 * MINUTE, counts))?;
    let docs = ["test", "--locked", "--workspace", "--no-fail-fast", "--doc"];
    timed("doc tests", || step::run(cargo(root).args(docs), 10 * MINUTE, counts))?;
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
