//! The mounts of this machine: which are ours, which of them are dead, and which process serves
//! them.
//!
//! The kernel's table says what is mounted where, but not which process serves a mount. So the
//! process that mounts keeps a file under `/run/pando`, or the user's own runtime folder. The file
//! is named by the device number of the mount and holds the number of the process, which locks it
//! for as long as it lives. An unmount waits for the lock; a measurement reads the number.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    mem::ManuallyDrop,
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::{DirBuilderExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

/// The type that the kernel's table shows.
const TYPE: &str = "fuse.pando";
/// Time-out of the question whether a mount is dead: a dead mount answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// One of our mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) path: PathBuf,
    /// `MAJOR:MINOR`.
    device: String,
    /// User who mounted it.
    user: u32,
    /// Source of the mount, as the kernel lists it.
    source: String,
}

/// Our mount at exactly this path: the one on top, when there are several.
pub(crate) fn find(path: &Path) -> anyhow::Result<Option<Mount>> {
    let path = resolve(path);
    Ok(all()?.into_iter().rfind(|mount| mount.path == path))
}

/// Our mount that holds the directory `path`, which must be alive.
pub(crate) fn holding(path: &Path) -> anyhow::Result<Option<Mount>> {
    let device =
        fs::metadata(path).with_context(|| format!("cannot use {}", path.display()))?.dev();
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    Ok(all()?.into_iter().rfind(|mount| mount.device == device))
}

/// Whether a mount of ours is still anywhere in the tree: it may be bound to other places, whole or
/// in part.
pub(crate) fn is_left(unmounted: &Mount) -> anyhow::Result<bool> {
    Ok(all()?.iter().any(|mount| mount.device == unmounted.device))
}

/// All mounts of ours, as they stand in the kernel's table.
fn all() -> anyhow::Result<Vec<Mount>> {
    let table = fs::read("/proc/self/mountinfo").context("cannot read the mount table")?;
    Ok(parse(&table))
}

/// The path as the mount table has it. The mount itself may be dead, so only what is above it is
/// looked at.
fn resolve(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            parent.canonicalize().map_or_else(|_| absolute.clone(), |parent| parent.join(name))
        }
        // The root, or a path that ends in `..`.
        _ => absolute.canonicalize().unwrap_or(absolute),
    }
}

fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let text = String::from_utf8_lossy(line);
    let (mount, source) = text.split_once(" - ")?;
    let mut source = source.split(' ');
    if source.next()? != TYPE {
        return None;
    }
    let from = source.next()?.to_owned();
    let options = source.next().unwrap_or_default();
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    let device = mount.split(' ').nth(2)?.to_owned();
    // From the bytes: a path need not be UTF-8.
    let path = unescape(line.split(|byte| *byte == b' ').nth(4)?);
    Some(Mount { path, device, user: user.unwrap_or(0), source: from })
}

/// Whether anything is mounted within a directory, by the kernel's table.
pub(crate) fn are_within(table: &[u8], dir: &[u8]) -> bool {
    let path = |line: &[u8]| line.split(|byte| *byte == b' ').nth(4).map(unescape);
    let is_within = |path: PathBuf| {
        let rest = path.as_os_str().as_bytes().strip_prefix(dir);
        rest.is_some_and(|rest| rest.first() == Some(&b'/'))
    };
    table.split(|byte| *byte == b'\n').filter_map(path).any(is_within)
}

/// Undoes the octal escapes of the kernel.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let escaped = (*byte == b'\\').then(|| text.get(at + 1..at + 4)).flatten();
        let escaped = escaped.and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                at += 4;
            }
            None => {
                bytes.push(*byte);
                at += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

impl Mount {
    /// Whether the kernel lists this as what is mounted.
    pub(crate) fn is_of(&self, source: &str) -> bool {
        self.source == source
    }

    /// Whether no process serves the mount any more: an earlier process was killed. A mount whose
    /// server is away is not dead, and would not answer: the mount is asked only if no process says
    /// that it serves it, and the wait is bounded.
    pub(crate) fn is_dead(&self) -> bool {
        if self.keeper().is_some() {
            return false;
        }
        let (tell, told) = mpsc::channel();
        let path = self.path.clone();
        let asked = thread::Builder::new().spawn(move || {
            // The receiver may have stopped waiting.
            let _ = tell.send(rustix::fs::statfs(&path).err());
        });
        let answer = asked.ok().and_then(|_| told.recv_timeout(ANSWER_TIMEOUT).ok()).flatten();
        matches!(answer, Some(Errno::NOTCONN | Errno::CONNABORTED))
    }

    /// The process that serves it, if it said so and lives; must be found before unmounting.
    pub(crate) fn keeper(&self) -> Option<Keeper> {
        let file = folder(self.user).join(&self.device);
        let file = File::open(file).ok()?;
        // If we get the lock, the process is gone.
        let alive = flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
        alive.then_some(Keeper(file))
    }

    /// Notes the process that serves the mount: the process's file gets another name, which stays
    /// when the mount is gone and its number is used again.
    pub(crate) fn note(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(Keeper(file)) = self.keeper() else { return Ok(None) };
        let folder = folder(self.user);
        let context = || format!("cannot use {}", folder.display());
        let ino = file.metadata().with_context(context)?.ino();
        let note = folder.join(format!("{}.left.{ino}", self.device));
        match fs::hard_link(folder.join(&self.device), &note) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(context);
            }
            Ok(()) | Err(_) => {}
        }
        let noted = fs::metadata(&note).with_context(context)?.ino();
        ensure!(noted == ino, "another process serves the mount");
        Ok(Some(note))
    }

    /// The servers that it says it comes from.
    pub(crate) fn servers(&self) -> Option<Vec<String>> {
        let servers: Vec<_> = self.source.split(',').map(str::to_owned).collect();
        servers.iter().all(|server| server.contains(':')).then_some(servers)
    }
}

/// A process that serves a mount, seen by another.
pub(crate) struct Keeper(File);

impl Keeper {
    /// The number of the process.
    pub(crate) fn process(&mut self) -> Option<u32> {
        let mut text = String::new();
        self.0.read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> anyhow::Result<bool> {
        match flock(&self.0, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
            locked => {
                locked.context("cannot wait for the mount's process")?;
                Ok(true)
            }
        }
    }
}

/// Whether a process that was noted has ended; the note is removed then.
pub(crate) fn noted_has_ended(note: &Path) -> anyhow::Result<bool> {
    let context = || format!("cannot use {}", note.display());
    let file = match File::open(note) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        file => file.with_context(context)?,
    };
    let ended = Keeper(file).has_ended()?;
    if ended {
        fs::remove_file(note).with_context(context)?;
    }
    Ok(ended)
}

/// Says that this process serves a mount, and when this is dropped, that it served one: the lock
/// goes with the process, as what is done after the mount's end, such as stopping a server, is
/// waited for too.
pub(crate) struct Kept {
    file: PathBuf,
    lock: ManuallyDrop<File>,
}

/// Says that this process serves the mount at `path`.
pub(crate) fn keep(path: &Path) -> anyhow::Result<Kept> {
    let mount = find(path)?.with_context(|| format!("{} is not mounted", path.display()))?;
    let folder = own_folder()?;
    claim(&folder, &mount.device).with_context(|| format!("cannot use {}", folder.display()))
}

/// Takes over the file of an earlier mount of this number: the kernel uses a number again when its
/// mount has gone, but the process that served it may still be waiting for its server.
fn claim(folder: &Path, device: &str) -> io::Result<Kept> {
    let (id, file) = (std::process::id(), folder.join(device));
    let new = folder.join(format!("{device}.{id}"));
    let lock = OpenOptions::new().write(true).create(true).truncate(true).open(&new)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    writeln!(&lock, "{id}")?;
    fs::rename(&new, &file)?;
    Ok(Kept { file, lock: ManuallyDrop::new(lock) })
}

impl Drop for Kept {
    fn drop(&mut self) {
        let (found, ours) = (fs::metadata(&self.file), self.lock.metadata());
        if found.is_ok_and(|found| ours.is_ok_and(|ours| ours.ino() == found.ino())) {
            // The lock says it all; a file that is left is replaced.
            let _ = fs::remove_file(&self.file);
        }
    }
}

/// The folder in which the processes of this user keep their files. It is the user's own.
pub(crate) fn own_folder() -> anyhow::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let folder = folder(user);
    let context = || format!("cannot use {}", folder.display());
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(context);
        }
        Ok(()) | Err(_) => {}
    }
    let found = fs::symlink_metadata(&folder).with_context(context)?;
    ensure!(found.is_dir() && found.uid() == user, "{} belongs to another user", folder.display());
    Ok(folder)
}

/// Where the processes of a user keep their files.
fn folder(user: u32) -> PathBuf {
    let run =
        if user == 0 { PathBuf::from("/run") } else { PathBuf::from(format!("/run/user/{user}")) };
    if run.is_dir() { run.join("pando") } else { PathBuf::from(format!("/tmp/pando-{user}")) }
}

/// Prefix of messages: the path as people can read it.
pub(crate) fn shown(path: &Path) -> String {
    String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_mounts_are_found_with_their_true_paths() {
        let table =
            b"36 35 0:31 / /tmp/a\\040b rw,nosuid - fuse.pando h:1,i:2 rw,user_id=7,group_id=0\n\
                      37 35 0:32 / /tmp/c rw shared:1 - tmpfs tmpfs rw\n\
                      38 35 0:33 / /tmp/\xff rw - fuse.pando pando rw\n";
        let found = parse(table);
        assert_eq!(found.len(), 2);
        let first = Mount {
            path: "/tmp/a b".into(),
            device: "0:31".to_owned(),
            user: 7,
            source: "h:1,i:2".to_owned(),
        };
        assert_eq!(found[0], first);
        assert_eq!(first.servers(), Some(vec!["h:1".to_owned(), "i:2".to_owned()]));
        assert_eq!(found[1].servers(), None);
        assert_eq!(found[1].path.as_os_str().as_bytes(), b"/tmp/\xff");
    }

    #[test]
    fn a_number_that_is_used_again_is_kept_by_the_new_process_alone() {
        let folder = std::env::temp_dir().join(format!("pando-mounts.{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let file = folder.join("0:42");
        let old = claim(&folder, "0:42").unwrap();
        let seen_before = File::open(&file).unwrap();
        let new = claim(&folder, "0:42").unwrap();
        let seen = File::open(&file).unwrap();
        assert_ne!(seen.metadata().unwrap().ino(), seen_before.metadata().unwrap().ino());
        let locked = flock(&seen, FlockOperation::NonBlockingLockShared);
        assert_eq!(locked, Err(Errno::WOULDBLOCK));
        drop(old);
        assert!(file.exists(), "the old one leaves what is not its own");
        drop(new);
        assert!(!file.exists());
        fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn a_process_that_was_noted_is_asked_about_when_its_number_is_used_again() {
        let folder = std::env::temp_dir().join(format!("pando-notes.{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let note = folder.join("0:42.left");
        let old = claim(&folder, "0:42").unwrap();
        fs::hard_link(folder.join("0:42"), &note).unwrap();
        let new = claim(&folder, "0:42").unwrap();
        assert!(!noted_has_ended(&note).unwrap() && note.exists());
        let Kept { file, lock } = &old;
        assert!(file.exists());
        flock(&**lock, FlockOperation::Unlock).unwrap();
        assert!(noted_has_ended(&note).unwrap() && !note.exists());
        assert!(noted_has_ended(&note).unwrap(), "what has no note has ended");
        drop((old, new));
        fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn the_kernels_escapes_are_undone() {
        assert_eq!(unescape(b"/a\\040\\134b\\"), PathBuf::from("/a \\b\\"));
    }

    #[test]
    fn what_is_mounted_in_a_directory_is_told_from_what_is_beside_it() {
        let table =
            b"22 1 0:21 / /a\\040b rw - fuse.pando x rw\n23 22 0:22 / /a\\040b/c rw - tmpfs x rw\n";
        for (dir, is_within) in [("/a b", true), ("/a b/c", false), ("/a", false), ("/a b/", false)]
        {
            assert_eq!(are_within(table, dir.as_bytes()), is_within, "{dir}");
        }
    }
}
