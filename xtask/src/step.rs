//! One step of a run: a command with a name, a deadline and a duration.
//!
//! `ci` calls this for every check that is a process. A step past its deadline is killed together
//! with all that it started, so a mount that hangs fails the run and never holds it up.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail, ensure};

/// Lines kept of what a failed test said when it panicked.
const LINES_OF_A_PANIC: usize = 4;

/// Results of test binaries, summed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// The failed tests by name, and the first lines of what each said when it panicked. Whoever
    /// sees only the end of a long output finds here which tests failed, and why.
    pub(crate) failures: Vec<String>,
    /// Lines still to be kept of a panic.
    of_panic: usize,
}

impl Counts {
    /// Keeps a line if it names a failed test or is the beginning of what one said.
    fn keep_failure(&mut self, line: &str) {
        let of_test = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = of_test.or_else(|| line.strip_prefix("FAILED ")) {
            self.failures.push(format!("failed: {name}"));
            self.of_panic = 0;
        } else if !self.failures.is_empty() && line.contains("panicked at") {
            self.of_panic = LINES_OF_A_PANIC;
        }
        if self.of_panic > 0 {
            self.failures.push(format!("  {line}"));
            self.of_panic -= 1;
        }
    }

    /// Adds what a line like `test result: ok. 3 passed; 0 failed; …` of cargo reports, or one like
    /// `1 failed, 3 passed in 2.10s` of pytest; other lines add nothing.
    pub(crate) fn add_line(&mut self, line: &str) {
        self.keep_failure(line);
        let cargo = line.trim().strip_prefix("test result:");
        let pytest = || line.rsplit_once(" in ").filter(|(_, took)| took.ends_with('s'));
        let Some(results) = cargo.or_else(|| Some(pytest()?.0)) else { return };
        for (number, what) in results
            .split([';', '.', ','])
            .filter_map(|part| part.trim().split_once(' '))
            .filter_map(|(number, what)| Some((number.parse::<u64>().ok()?, what)))
        {
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                _ => {}
            }
        }
    }
}

/// Says what begins, runs it, and says how long it took.
pub(crate) fn timed<T>(name: &str, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    say(&format!("==> {name}"));
    let start = now();
    let result = work();
    let seconds = start.elapsed().as_secs_f64();
    let outcome = if result.is_ok() { "ok" } else { "FAILED" };
    say(&format!("<== {name}: {outcome} in {seconds:.1} s"));
    result.with_context(|| format!("{name} failed"))
}

/// Runs a command to its end, shows its output, and counts the test results in it.
pub(crate) fn run(
    command: &mut Command,
    deadline: Duration,
    counts: &mut Counts,
) -> anyhow::Result<()> {
    follow(command, deadline, |line| {
        say(line);
        counts.add_line(line);
    })
}

/// Does `work` while a command runs, and counts the test results of both. The output of the command
/// is kept back until the work is done, so that lines of the two do not mix.
pub(crate) fn beside(
    command: &mut Command,
    deadline: Duration,
    counts: &mut Counts,
    work: impl FnOnce(&mut Counts) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut kept = Vec::new();
    let (worked, ran) = thread::scope(|scope| {
        let kept = &mut kept;
        let runs = scope.spawn(|| follow(command, deadline, |line| kept.push(line.to_owned())));
        (work(counts), runs.join())
    });
    for line in kept {
        say(&line);
        counts.add_line(&line);
    }
    worked?;
    ran.unwrap_or_else(|_| Err(anyhow!("the thread beside has panicked")))
}

/// Runs a command to its end and hands on each line of its output.
fn follow(
    command: &mut Command,
    deadline: Duration,
    mut each: impl FnMut(&str),
) -> anyhow::Result<()> {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {shown}"))?;
    let output = child.stdout.take().context("stdout is piped above")?;
    let (done, wait) = mpsc::channel::<()>();
    let pid = child.id();
    let late = thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let late = wait.recv_timeout(deadline) == Err(mpsc::RecvTimeoutError::Timeout);
            if late {
                kill_tree(pid);
            }
            late
        });
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            each(&String::from_utf8_lossy(&line));
        }
        drop(done);
        watch.join()
    });
    let status = child.wait()?;
    ensure!(matches!(late, Ok(false)), "no end after {} s: {shown}", deadline.as_secs());
    ensure!(status.success(), "{status}: {shown}");
    Ok(())
}

/// Waits for a child, or kills it and all it started when the deadline has passed.
pub(crate) fn wait(child: &mut Child, deadline: Duration) -> anyhow::Result<()> {
    let start = now();
    loop {
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "ended with {status}");
            return Ok(());
        }
        if start.elapsed() > deadline {
            kill_tree(child.id());
            child.wait()?;
            bail!("no end after {} s", deadline.as_secs());
        }
        pause();
    }
}

/// Sends SIGKILL to a process and to all its descendants, parents first.
fn kill_tree(pid: u32) {
    let children = children(pid);
    signal(pid, "KILL");
    children.into_iter().for_each(kill_tree);
}

fn children(parent: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| parent_of(*pid) == Some(parent))
        .collect()
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name, in parentheses, may hold anything.
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(1)?.parse().ok()
}

/// Sends a signal; a process that has ended already is no error.
pub(crate) fn signal(pid: u32, name: &str) {
    // The shell's own `kill`; the program of that name is not part of a small system.
    let command = format!("kill -s {name} {pid}");
    let sent = Command::new("sh").args(["-c", &command]).stderr(Stdio::null()).status();
    if let Err(error) = sent {
        say(&format!("cannot send a signal: {error}"));
    }
}

/// Prints one line. A reader that went away is no reason to stop.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}

/// The time, for durations and deadlines of real processes.
#[expect(clippy::disallowed_methods, reason = "xtask drives real processes; no simulation runs it")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A short wait between two looks at a process or at the mount table.
#[expect(clippy::disallowed_methods, reason = "xtask drives real processes; no simulation runs it")]
pub(crate) fn pause() {
    thread::sleep(Duration::from_millis(50));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_over_test_binaries() {
        let mut counts = Counts::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; \
             finished in 1.25s",
            "1 failed, 20 passed, 5 warnings in 4.61s",
            "tests passed in 3s",
        ] {
            counts.add_line(line);
        }
        assert_eq!((counts.passed, counts.failed), (27, 3));
        assert_eq!(counts.failures, [""; 0]);
    }

    #[test]
    fn failed_tests_are_named_at_the_end_with_what_they_said() {
        let mut counts = Counts::default();
        for line in [
            "test links::one ... ok",
            "thread 'links::of_a_process' panicked at elsewhere.rs:1:1:",
            "---- links::two stdout ----",
            "a line that the test printed",
            "",
            "thread 'links::two' (17) panicked at links.rs:1:2:",
            "assertion failed",
            "  left: 1",
            " right: 2",
            "note: run with `RUST_BACKTRACE=1`",
            "---- links::three stdout ----",
            "thread 'links::three' (18) panicked at links.rs:3:4:",
            "FAILED tests/test_fs.py::test_four - AssertionError: no",
        ] {
            counts.add_line(line);
        }
        let named = [
            "failed: links::two",
            "  thread 'links::two' (17) panicked at links.rs:1:2:",
            "  assertion failed",
            "    left: 1",
            "   right: 2",
            "failed: links::three",
            "  thread 'links::three' (18) panicked at links.rs:3:4:",
            "failed: tests/test_fs.py::test_four - AssertionError: no",
        ];
        assert_eq!(counts.failures, named);
    }

    #[test]
    fn a_command_past_its_deadline_is_killed_with_its_children() {
        let start = now();
        let mut counts = Counts::default();
        let result = run(
            Command::new("sh").args(["-c", "sleep 60 & sleep 60"]),
            Duration::from_millis(100),
            &mut counts,
        );
        assert!(result.is_err_and(|error| error.to_string().contains("no end after")));
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn work_beside_a_command_counts_with_it() {
        let shell = |script| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let minute = Duration::from_secs(60);
        let (one, two) =
            ("echo 'test result: ok. 3 passed; 0 failed'", "echo 'test result: ok. 4 passed'");
        let both = |first, second, counts: &mut Counts| {
            beside(&mut shell(first), minute, counts, |counts| {
                run(&mut shell(second), minute, counts)
            })
        };
        let mut counts = Counts::default();
        both(one, two, &mut counts).unwrap();
        assert_eq!((counts.passed, counts.failed), (7, 0));
        assert!(both(one, "exit 1", &mut counts).is_err());
        assert!(both("exit 1", two, &mut counts).is_err());
        assert_eq!((counts.passed, counts.failed), (14, 0));
    }

    #[test]
    fn a_command_that_fails_is_an_error() {
        let mut counts = Counts::default();
        assert!(run(&mut Command::new("false"), Duration::from_secs(60), &mut counts).is_err());
        assert!(run(&mut Command::new("true"), Duration::from_secs(60), &mut counts).is_ok());
    }
}
