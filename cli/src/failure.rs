//! End of the program by an error: one line on stderr, and an exit code.

use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// The command line asks for something that cannot be, in words; clap could not see it.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error of the command line.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// Exit code of a command that worked and whose answer is no.
pub(crate) fn failed() -> ExitCode {
    ExitCode::from(FAILED)
}

/// Writes the error with its causes and says how the program ends.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        // The reader of our output has seen enough, as `head` does.
        return ExitCode::SUCCESS;
    }
    let line = format!("{error:#}").replace('\n', " ");
    // Without stderr there is no place to report to.
    let _ = writeln!(io::stderr(), "pando: {line}");
    if error.is::<Usage>() { ExitCode::from(USAGE) } else { failed() }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.downcast_ref::<crate::output::Lost>().is_some_and(|lost| broken(&lost.0))
}
