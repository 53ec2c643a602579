//! The bugs that simulated worlds must find, each with the seed that shows it:
//! `lab/testdata/planted.txt`.
//!
//! `lab/tests/all/simulation.rs` has a test for each of them. `lab planted` runs them all, and with
//! `--pin` writes the table anew.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context as _, bail, ensure};
use meta::Bug;
use parking_lot::Mutex;

use super::{Options, plan::About, run};
use crate::check::planted::{self, Missed, Pin};

const TABLE: &str = include_str!("../../testdata/planted.txt");

/// The kind of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A world of [`Plan::draw`](super::plan::Plan::draw).
    Plain,
    /// A world of [`Plan::draw_crowd`](super::plan::Plan::draw_crowd).
    Crowd,
    /// A plain world that was made [`Plan::full`](super::plan::Plan::full).
    Full,
    /// A world about the change feed.
    Watch,
    /// A world about directories that mounts hold.
    Held,
    /// A world whose machines are lost.
    Lost,
}

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planted {
    /// The bug.
    pub bug: Bug,
    /// Number of servers of the world.
    pub servers: u16,
    /// The kind of the world.
    pub kind: Kind,
    /// The seed that shows the bug.
    pub seed: u64,
    /// The last seed to search, from 1, when the pinned one does not show the bug.
    pub within: u64,
    /// A word that the failure must contain.
    pub word: String,
}

impl Planted {
    fn parse(line: &str) -> anyhow::Result<Planted> {
        let mut rest = line;
        let mut column = || {
            let (word, after) = rest.split_once(' ').context("too few columns")?;
            rest = after.trim_start();
            anyhow::Ok(word)
        };
        let (bug, servers, kind, seed, within) =
            (column()?, column()?, column()?, column()?, column()?);
        let known = Bug::ALL.into_iter().find(|known| format!("{known:?}") == bug);
        let kind = match kind {
            "plain" => Kind::Plain,
            "crowd" => Kind::Crowd,
            "full" => Kind::Full,
            "watch" => Kind::Watch,
            "held" => Kind::Held,
            "lost" => Kind::Lost,
            other => bail!("a world is plain, crowd, full, watch, held or lost, not {other}"),
        };
        ensure!(!rest.is_empty(), "a word of the failure is missing");
        Ok(Planted {
            bug: known.with_context(|| format!("no bug is called {bug}"))?,
            servers: servers.parse()?,
            kind,
            seed: seed.parse()?,
            within: within.parse()?,
            word: rest.to_owned(),
        })
    }

    fn line(&self) -> String {
        let Planted { bug, servers, kind, seed, within, word } = self;
        let kind = match kind {
            Kind::Plain => "plain",
            Kind::Crowd => "crowd",
            Kind::Full => "full",
            Kind::Watch => "watch",
            Kind::Held => "held",
            Kind::Lost => "lost",
        };
        let bug = format!("{bug:?}");
        format!("{bug:<21} {servers} {kind:<5} {seed:<4} {within:<4} {word}")
    }

    /// Runs the pinned world with the bug and without it. Returns the failure with the bug.
    ///
    /// # Errors
    /// When the pinned seed does not show the bug.
    pub fn find(&self) -> Result<String, Missed> {
        let pin = Pin { seed: Some(self.seed), word: &self.word, seeds: 1..self.within + 1 };
        planted::find(&pin, |seed, planted| {
            let bug = planted.then_some(self.bug);
            let servers = Some(self.servers);
            let full = self.kind == Kind::Full;
            let about = match self.kind {
                Kind::Plain | Kind::Full => About::Everything,
                Kind::Crowd => About::Crowd,
                Kind::Watch => About::Watch,
                Kind::Held => About::Delegations,
                Kind::Lost => About::Machines,
            };
            run(seed, Options { bug, servers, about, full, ..Options::default() })?;
            Ok(())
        })
    }
}

/// Reads the table.
///
/// # Errors
/// When a line cannot be read.
pub fn all() -> anyhow::Result<Vec<Planted>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| Planted::parse(line).with_context(|| line.to_owned())).collect()
}

/// Runs each line of the table, on two threads, and passes each result to `tell`. Returns the
/// number of bugs that were missed. With `pin` the table is written with the seeds that show their
/// bugs now.
///
/// # Errors
/// When the table cannot be read or written.
pub fn run_all(
    pin: bool,
    tell: impl Fn(&Planted, &Result<String, Missed>) + Sync,
) -> anyhow::Result<usize> {
    let table = all()?;
    let (next, ended) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(planted) = table.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = planted.find();
            tell(planted, &found);
            ended.lock().push((planted.clone(), found));
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(work);
        work();
    });
    let ended = ended.into_inner();
    if pin {
        write(&ended)?;
    }
    Ok(ended.iter().filter(|(_, found)| found.is_err()).count())
}

fn write(ended: &[(Planted, Result<String, Missed>)]) -> anyhow::Result<()> {
    let mut table = String::new();
    for line in TABLE.lines() {
        let moved = ended.iter().find_map(|(planted, found)| match found {
            Err(Missed::Elsewhere { found, .. }) if planted.line() == line => {
                Some(Planted { seed: *found, ..planted.clone() }.line())
            }
            _ => None,
        });
        table.push_str(moved.as_deref().unwrap_or(line));
        table.push('\n');
    }
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "testdata", "planted.txt"].iter().collect();
    fs::write(&path, table).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_written_as_it_is_read() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        for (line, planted) in lines.zip(all().unwrap()) {
            assert_eq!(planted.line(), line);
        }
    }
}
