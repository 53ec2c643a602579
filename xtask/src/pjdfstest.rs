//! The `pjdfstest` suite: what POSIX asks of system calls, one result for each of its tests.
//!
//! `ci` and `cargo xtask pjdfstest` call this. Every feature of the suite is switched on,
//! remounting and the second file system too, so that nothing is skipped for lack of asking. The
//! results must equal testdata/posix/pjdfstest.txt; whatever is not a pass there has its reason in
//! docs/POSIX.md.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};

use crate::{
    step::{self, say},
    tools,
};

const DEADLINE: Duration = Duration::from_secs(600);
const EXPECTED: &str = "testdata/posix/pjdfstest.txt";

/// The second file system, for tests across two: memory, mounted everywhere on Linux.
const SECOND: &str = "/dev/shm";

/// Test name to `pass`, `fail` or `skip`.
type Results = BTreeMap<String, &'static str>;

/// The two parts of a run. The suite leaves files open for writing, and a file system with such
/// files cannot be remounted read-only; so the tests that remount have a process of their own.
const PARTS: [Part; 2] =
    [Part { pattern: None, remounts: false }, Part { pattern: Some("erofs"), remounts: true }];

struct Part {
    /// Only tests whose name holds this.
    pattern: Option<&'static str>,
    remounts: bool,
}

/// Runs the suite in a directory; compares with the committed list, or writes it.
pub(crate) fn run(root: &Path, dir: &Path, bless: bool) -> anyhow::Result<()> {
    ensure!(fs::metadata("/proc/self")?.uid() == 0, "pjdfstest changes users and needs root");
    let program = tools::ensure(root, &tools::PJDFSTEST)?;
    let outputs = PARTS.iter().map(|part| output_of(&program, dir, part));
    let outputs = outputs.collect::<anyhow::Result<Vec<String>>>()?;
    // The later part has the last word about tests that are in both.
    let results: Results = outputs.iter().flat_map(|output| parse(output)).collect();
    say(&summary(&results));

    let expected = root.join(EXPECTED);
    if bless {
        fs::write(&expected, render(&results))?;
        say(&format!("written: {EXPECTED}"));
        return Ok(());
    }
    let listed = fs::read_to_string(&expected).with_context(|| EXPECTED.to_owned())?;
    let differences = differences(&listed, &results);
    let names: Vec<&str> = differences.iter().map(|(name, _)| name.as_str()).collect();
    outputs.iter().flat_map(|output| details(output, &names)).for_each(say);
    let lines: Vec<&str> = differences.iter().map(|(_, line)| line.as_str()).collect();
    ensure!(
        lines.is_empty(),
        "{} results differ from {EXPECTED} (- listed, + found):\n{}",
        lines.len(),
        lines.join("\n")
    );
    Ok(())
}

/// The suite's output, whatever its tests say.
fn output_of(program: &Path, dir: &Path, part: &Part) -> anyhow::Result<String> {
    let second = tempfile::Builder::new().prefix("pando-second.").tempdir_in(SECOND)?;
    fs::set_permissions(second.path(), fs::Permissions::from_mode(0o777))?;
    let (one, other) = (fs::metadata(dir)?.dev(), fs::metadata(second.path())?.dev());
    ensure!(one != other, "{} is on the file system of {SECOND}", dir.display());

    let work = tempfile::tempdir()?;
    let config = work.path().join("pjdfstest.toml");
    fs::write(&config, configuration(second.path(), part.remounts))?;
    let path = with_plain_mount(work.path())?;
    let log = work.path().join("output");
    let mut child = Command::new(program)
        .arg("--configuration-file")
        .arg(&config)
        .arg("--path")
        .arg(dir)
        .args(part.pattern)
        .env("PATH", path)
        .env("NO_COLOR", "1")
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(fs::File::create(&log)?)
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    // The suite's exit status only repeats that a test failed; the list decides about that.
    let ended = step::wait(&mut child, DEADLINE);
    let output = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let complete = output.contains("Summary: ");
    ensure!(complete, "pjdfstest did not come to its end ({ended:?}):\n{output}");
    Ok(output)
}

/// Every feature there is, also those whose tests exist on other systems only.
fn configuration(second: &Path, remounts: bool) -> String {
    format!(
        "[features]\n\
         chflags = {{}}\n\
         chflags_sf_snapshot = {{}}\n\
         nfsv4_acls = {{}}\n\
         posix_fallocate = {{}}\n\
         rename_ctime = {{}}\n\
         stat_st_birthtime = {{}}\n\
         utime_now = {{}}\n\
         utimensat = {{}}\n\
         secondary_fs = \"{}\"\n\
         [settings]\n\
         naptime = 0.01\n\
         allow_remount = {remounts}\n\
         [dummy_auth]\n\
         entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n",
        second.display()
    )
}

/// A search path whose `mount` never calls a helper program. The suite remounts with `mount -o
/// remount,ro`; for a FUSE file system that would start its daemon anew in place of changing a
/// flag.
fn with_plain_mount(work: &Path) -> anyhow::Result<std::ffi::OsString> {
    let bin = work.join("bin");
    fs::create_dir(&bin)?;
    let mount = bin.join("mount");
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    let real =
        std::env::split_paths(&search).map(|dir| dir.join("mount")).find(|path| path.exists());
    let real = real.context("mount is not in PATH")?;
    fs::write(&mount, format!("#!/bin/sh\nexec {} --internal-only \"$@\"\n", real.display()))?;
    fs::set_permissions(&mount, fs::Permissions::from_mode(0o755))?;
    Ok(std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&search)))?)
}

/// A result is a line of a name and a word; all other lines are details.
fn parse(output: &str) -> Results {
    let mut results = Results::new();
    for line in output.lines() {
        let Some((name, word)) = line.split_once(' ') else { continue };
        let result = match word.trim() {
            "ok" => "pass",
            "FAILED" => "fail",
            "skipped" => "skip",
            _ => continue,
        };
        if name.contains("::") {
            results.insert(name.to_owned(), result);
        }
    }
    results
}

/// The lines about the given tests: their names, and what they said.
fn details<'a>(output: &'a str, names: &[&str]) -> Vec<&'a str> {
    let mut wanted = false;
    let about = output.lines().filter(|line| {
        if !line.starts_with('\t') {
            wanted = line.split_once(' ').is_some_and(|(name, _)| names.contains(&name));
        }
        wanted
    });
    about.collect()
}

fn render(results: &Results) -> String {
    results.iter().map(|(name, result)| format!("{name} {result}\n")).collect()
}

fn summary(results: &Results) -> String {
    let count = |wanted: &str| results.values().filter(|result| **result == wanted).count();
    let (passed, failed, skipped) = (count("pass"), count("fail"), count("skip"));
    format!("pjdfstest: {passed} passed, {failed} failed, {skipped} skipped of {}", results.len())
}

/// The tests whose result is not the listed one, each with a line, `-` listed and `+` found.
fn differences(listed: &str, found: &Results) -> Vec<(String, String)> {
    let listed: BTreeMap<&str, &str> =
        listed.lines().filter_map(|line| line.split_once(' ')).collect();
    let names: BTreeSet<&str> =
        listed.keys().copied().chain(found.keys().map(String::as_str)).collect();
    let differ = names.into_iter().filter_map(|name| {
        let was = listed.get(name).copied().unwrap_or("missing");
        let is = found.get(name).copied().unwrap_or("missing");
        (was != is).then(|| (name.to_owned(), format!("{name}: -{was} +{is}")))
    });
    differ.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "unlink::remove_type::symlink                                  ok\n\
                          open::erofs_named                                         FAILED\n\
                          \tcalled `Result::unwrap()` on an `Err` value: a b::c ok\n\
                          chflags::eperm                                           skipped\n\
                          \trequires features: chflags\n\
                          \n\
                          Summary: 1 failed, 1 skipped, 1 passed, 0 expected failures, 3 total\n";

    #[test]
    fn results_are_read_sorted_and_details_left_out() {
        let rendered = render(&parse(OUTPUT));
        assert_eq!(
            rendered,
            "chflags::eperm skip\nopen::erofs_named fail\nunlink::remove_type::symlink pass\n"
        );
    }

    #[test]
    fn details_are_of_the_tests_asked_for() {
        let lines = details(OUTPUT, &["open::erofs_named"]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[1].starts_with("\tcalled"));
    }

    #[test]
    fn each_difference_is_named_in_both_directions() {
        let listed = "chflags::eperm skip\nopen::erofs_named pass\nrmdir::gone pass\n";
        let lines: Vec<String> =
            differences(listed, &parse(OUTPUT)).into_iter().map(|(_, line)| line).collect();
        assert_eq!(
            lines,
            [
                "open::erofs_named: -pass +fail",
                "rmdir::gone: -pass +missing",
                "unlink::remove_type::symlink: -missing +pass",
            ]
        );
        assert!(differences(&render(&parse(OUTPUT)), &parse(OUTPUT)).is_empty());
    }
}
