//! `--audit FILE`: who did what, as lines of JSON.
//!
//! `meta::audit` makes the lines, and a thread writes them here. A file that is full becomes
//! `FILE.1`, the one before `FILE.2`, and so on. Whoever else moves or removes the file is followed
//! within a second: a new one is begun.
//!
//! Always true: a file has whole lines only, but for the last one of a process that was killed; a
//! later process begins on a new line. A write that fails is tried again from the byte where it
//! stopped. Meanwhile the queue fills, and what does not fit is counted and told in a line of its
//! own.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context as _;
use base::Clock as _;
use client::SystemClock;
use meta::audit::{AuditQueue, AuditWhat, Taken, Text, moment};
use parking_lot::Mutex;

use crate::values;

/// Pause between two tries to write.
const AGAIN: Duration = Duration::from_millis(500);
/// Bytes of a buffer that is kept when it is empty.
const BUFFER_BYTES_KEPT: usize = 1 << 20;
/// Smallest size at which a file is rotated.
const SIZE_MIN: u64 = 4 << 10;

/// Whether, where and of what to write an audit log.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AuditArgs {
    /// Write who did what to this file, a JSON object a line. Each server needs a file of its own.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// Classes that the audit log has, separated by commas: `changes` that were made, `failures` of
    /// changes, `refusals` (EACCES, EPERM, EROFS, bad tokens), `sessions`, `admin`, `opens` of
    /// files, `reads` (everything else), or `all`.
    #[arg(
        long, default_value = "changes,refusals,sessions,admin", value_name = "WHAT,...",
        requires = "audit", value_parser = what
    )]
    audit_what: AuditWhat,
    /// Rotate the audit log at this size, at least 4KiB.
    #[arg(
        long, default_value = "100MiB", value_name = "SIZE", requires = "audit",
        value_parser = size
    )]
    audit_size: u64,
    /// Keep this many rotated files, FILE.1 being the newest.
    #[arg(long, default_value_t = 10, value_name = "N", requires = "audit")]
    audit_keep: u32,
}

/// Parses classes of requests, for clap.
fn what(text: &str) -> Result<AuditWhat, String> {
    let mut what = AuditWhat::NOTHING;
    for part in text.split(',') {
        match part {
            "changes" => what.changes = true,
            "failures" => what.failures = true,
            "refusals" => what.refusals = true,
            "sessions" => what.sessions = true,
            "admin" => what.administration = true,
            "opens" => what.opens = true,
            "reads" => what.reads = true,
            "all" => what = AuditWhat::ALL,
            other => {
                return Err(format!(
                    "{other:?} is none of changes, failures, refusals, sessions, admin, opens, \
                     reads and all"
                ));
            }
        }
    }
    Ok(what)
}

fn size(text: &str) -> Result<u64, String> {
    match values::size(text)? {
        bytes if bytes >= SIZE_MIN => Ok(bytes),
        _ => Err("must be at least 4KiB".to_owned()),
    }
}

/// Where and of what an audit log is written.
#[derive(Debug, Clone)]
pub(crate) struct AuditOptions {
    path: PathBuf,
    what: AuditWhat,
    bytes_max: u64,
    keep: u32,
}

impl AuditArgs {
    /// The log that was asked for, if any.
    pub(crate) fn options(&self) -> Option<AuditOptions> {
        let path = self.audit.clone()?;
        let AuditArgs { audit_what: what, audit_size: bytes_max, audit_keep: keep, .. } = *self;
        Some(AuditOptions { path, what, bytes_max, keep })
    }
}

/// The audit log of a server.
pub(crate) struct AuditLog {
    path: PathBuf,
    queue: Arc<AuditQueue>,
    lines: AtomicU64,
    bytes: AtomicU64,
    works: AtomicBool,
    /// The fault of the last try to write.
    fault: Mutex<Option<String>>,
}

/// The thread that writes it. Dropping it ends the log, when all lines are written.
pub(crate) struct Writing {
    log: Arc<AuditLog>,
    thread: Option<thread::JoinHandle<()>>,
}

impl AuditLog {
    /// Opens the log of a server with so many cores, and begins to write it.
    ///
    /// # Errors
    /// When the file cannot be opened: a server that is to be audited does not serve without.
    pub(crate) fn start(
        options: &AuditOptions,
        (server, cores): (u16, usize),
    ) -> anyhow::Result<Writing> {
        let AuditOptions { path, what, bytes_max, keep } = options.clone();
        let path = std::path::absolute(path)?;
        let files = Files::open(path.clone(), bytes_max, keep);
        let files = files.with_context(|| format!("cannot write {}", path.display()))?;
        let log = Arc::new(AuditLog {
            path,
            queue: Arc::new(AuditQueue::new(server, what, cores)),
            lines: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            works: AtomicBool::new(true),
            fault: Mutex::new(None),
        });
        let writer = log.clone();
        let thread = thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || writer.write(files))
            .context("cannot start a thread")?;
        Ok(Writing { log, thread: Some(thread) })
    }

    /// Writes what comes, until the queue has ended.
    fn write(&self, mut files: Files) {
        let mut text = Vec::new();
        loop {
            text.clear();
            if text.capacity() > BUFFER_BYTES_KEPT {
                text.shrink_to(BUFFER_BYTES_KEPT);
            }
            let taken = self.queue.take(&mut text);
            self.tell_lost(&mut text, taken);
            self.write_all(&mut files, &text);
            self.lines.fetch_add(taken.lines, Ordering::Relaxed);
            if taken.is_last {
                // Lines outlive the process anyway, and are seldom worth an error here.
                let _ = files.file.sync_all();
                return;
            }
        }
    }

    fn tell_lost(&self, text: &mut Vec<u8>, taken: Taken) {
        if taken.lost == 0 {
            return;
        }
        text.extend_from_slice(b"{\"time\":\"");
        text.extend_from_slice(moment(SystemClock.now()).as_bytes());
        text.push(b'"');
        let mut line = Text(text);
        line.number("server", self.queue.server().into());
        line.number("lost", taken.lost);
        text.extend_from_slice(b"}\n");
        tracing::error!(lost = taken.lost, "lines of the audit log are lost: it is behind");
    }

    /// Writes lines; where that fails, again and again. At the end of the server the last try
    /// counts.
    fn write_all(&self, files: &mut Files, text: &[u8]) {
        let mut left = text;
        while !left.is_empty() {
            match files.write(left) {
                Ok(written) => {
                    self.bytes.fetch_add(u64::try_from(written).unwrap_or(0), Ordering::Relaxed);
                    left = &left[written..];
                    self.heals();
                }
                Err(error) => {
                    self.fails(&error);
                    let is_over = self.queue.pause(AGAIN);
                    if is_over {
                        let lines = left.iter().filter(|byte| **byte == b'\n').count();
                        tracing::error!(lines, "the last lines of the audit log are lost");
                        return;
                    }
                }
            }
        }
    }

    fn fails(&self, error: &io::Error) {
        if self.works.swap(false, Ordering::Relaxed) {
            let path = self.path.display();
            tracing::error!(%path, %error, "the audit log cannot be written; lines wait");
        }
        *self.fault.lock() = Some(error.to_string());
    }

    fn heals(&self) {
        if !self.works.swap(true, Ordering::Relaxed) {
            *self.fault.lock() = None;
            tracing::warn!(path = %self.path.display(), "the audit log is written again");
        }
    }
}

impl meta::Beside for AuditLog {
    fn problem(&self) -> Option<String> {
        let fault = self.fault.lock();
        fault.as_ref().map(|why| format!("the audit log cannot be written: {why}"))
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        vec![
            ("audit", u64::from(self.works.load(Ordering::Relaxed))),
            ("audit_lines", count(&self.lines)),
            ("audit_bytes", count(&self.bytes)),
            ("audit_lost", self.queue.lost()),
        ]
    }
}

impl meta::Audit for AuditLog {
    fn queue(&self) -> &Arc<AuditQueue> {
        &self.queue
    }
}

impl Writing {
    /// The log, for the server.
    pub(crate) fn log(&self) -> Arc<AuditLog> {
        self.log.clone()
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.log.queue.end();
        if let Some(thread) = self.thread.take() {
            // A panic was logged.
            let _ = thread.join();
        }
    }
}

/// The file of the log, and those that it has become.
struct Files {
    path: PathBuf,
    bytes_max: u64,
    keep: u32,
    file: File,
    bytes: u64,
    /// Whether the last byte written ends a line.
    is_whole: bool,
    /// Whether it was told that files cannot be rotated.
    is_stuck: bool,
}

impl Files {
    fn open(path: PathBuf, bytes_max: u64, keep: u32) -> io::Result<Files> {
        let (file, bytes) = append_to(&path)?;
        Ok(Files { path, bytes_max, keep, file, bytes, is_whole: true, is_stuck: false })
    }

    /// Writes some of these lines; returns how many bytes. Between two lines the file is rotated
    /// where it is full.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.is_whole {
            self.follow()?;
            if self.bytes >= self.bytes_max && self.file.metadata()?.is_file() {
                self.rotate()?;
            }
        }
        // A file ends with the line that fills it.
        let room = usize::try_from(self.bytes_max.saturating_sub(self.bytes)).unwrap_or(usize::MAX);
        let end = text.iter().skip(room.max(1) - 1).position(|byte| *byte == b'\n');
        let end = end.map_or(text.len(), |at| room.max(1) + at);
        let written = self.file.write(&text[..end.min(text.len())])?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.bytes += u64::try_from(written).unwrap_or(0);
        self.is_whole = text[written - 1] == b'\n';
        Ok(written)
    }

    /// Begins another file if this one was moved or removed.
    fn follow(&mut self) -> io::Result<()> {
        let own = self.file.metadata()?;
        let is_there = match fs::metadata(&self.path) {
            Ok(there) => (there.dev(), there.ino()) == (own.dev(), own.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if !is_there {
            (self.file, self.bytes) = append_to(&self.path)?;
        } else if own.len() < self.bytes {
            // Somebody has cut it.
            self.bytes = own.len();
        }
        Ok(())
    }

    /// Gives each file the next number, and begins another one. Where that fails, the log goes on
    /// in the file that is full.
    fn rotate(&mut self) -> io::Result<()> {
        let numbered = |number: u32| {
            let mut path = self.path.clone().into_os_string();
            path.push(format!(".{number}"));
            PathBuf::from(path)
        };
        let moved = || {
            for number in (1..self.keep).rev() {
                rename_if_there(&numbered(number), &numbered(number + 1))?;
            }
            match self.keep {
                0 => fs::remove_file(&self.path),
                _ => rename_if_there(&self.path, &numbered(1)),
            }
        };
        match moved() {
            Ok(()) => {
                self.is_stuck = false;
                (self.file, self.bytes) = append_to(&self.path)?;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_stuck, true) {
                    let path = self.path.display();
                    tracing::error!(%path, %error, "the audit log cannot be rotated, and grows");
                }
            }
        }
        Ok(())
    }
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Opens a file at its end, and ends a line that a process has left unfinished. Only the server's
/// user reads it.
fn append_to(path: &Path) -> io::Result<(File, u64)> {
    let mut file =
        OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    // A pipe that nobody reads would hold up the end of the server.
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut bytes = file.metadata()?.len();
    if bytes > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            bytes += 1;
        }
    }
    Ok((file, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_default()
    }

    fn files(folder: &Path, bytes_max: u64, keep: u32) -> Files {
        Files::open(folder.join("log"), bytes_max, keep).unwrap()
    }

    fn write_all(files: &mut Files, mut text: &[u8]) {
        while !text.is_empty() {
            let written = files.write(text).unwrap();
            text = &text[written..];
        }
    }

    #[test]
    fn a_file_that_is_full_is_kept_under_a_number_and_so_many_are() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files(folder.path(), 10, 2);
        for line in 0..7 {
            write_all(&mut files, format!("line {line}\n").as_bytes());
        }
        let at = |name: &str| read(&folder.path().join(name));
        assert_eq!(at("log"), "line 6\n");
        assert_eq!(at("log.1"), "line 4\nline 5\n");
        assert_eq!(at("log.2"), "line 2\nline 3\n");
        assert!(!folder.path().join("log.3").exists());
    }

    #[test]
    fn lines_that_come_together_are_divided_between_files_and_never_torn() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files(folder.path(), 20, 100);
        let text: String = (0..50).map(|line| format!("{line:04}\n")).collect();
        write_all(&mut files, text.as_bytes());
        write_all(&mut files, b"a line that is longer than a file may be\nlast\n");
        let mut names: Vec<_> = (1..100).map(|number| format!("log.{number}")).collect();
        names.reverse();
        names.push("log".into());
        let all: Vec<_> = names.iter().map(|name| read(&folder.path().join(name))).collect();
        assert!(all.iter().all(|file| file.is_empty() || file.ends_with('\n')));
        let longest = "a line that is longer than a file may be\nlast\n";
        assert_eq!(all.concat(), text + longest);
    }

    #[test]
    fn none_is_kept_where_none_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files(folder.path(), 1, 0);
        write_all(&mut files, b"one\ntwo\nthree\n");
        assert_eq!(read(&folder.path().join("log")), "three\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_later_process_begins_on_a_line_of_its_own_and_knows_the_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "whole\nto").unwrap();
        let mut files = files(folder.path(), 12, 1);
        write_all(&mut files, b"new\nnewer\n");
        assert_eq!(read(&folder.path().join("log.1")), "whole\nto\nnew\n");
        assert_eq!(read(&path), "newer\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_somebody_has_moved_or_cut_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("log"), folder.path().join("moved"));
        let mut files = files(folder.path(), 1 << 20, 1);
        write_all(&mut files, b"one\n");
        fs::rename(&path, &moved).unwrap();
        write_all(&mut files, b"two\n");
        fs::remove_file(&path).unwrap();
        write_all(&mut files, b"three\n");
        assert_eq!((read(&moved).as_str(), read(&path).as_str()), ("one\n", "three\n"));
        fs::write(&path, "").unwrap();
        write_all(&mut files, b"four\n");
        assert_eq!((read(&path).as_str(), files.bytes), ("four\n", 5));
    }

    #[test]
    fn what_is_told_is_chosen_by_name() {
        assert_eq!(what("changes,refusals,sessions,admin"), Ok(AuditWhat::default()));
        assert_eq!(what("all"), Ok(AuditWhat::ALL));
        assert_eq!(what("opens"), Ok(AuditWhat { opens: true, ..AuditWhat::NOTHING }));
        assert!(what("").is_err() && what("changes,everything").is_err());
        assert!(size("1KiB").is_err() && size("4KiB").is_ok());
    }
}
