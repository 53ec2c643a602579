//! Locks of open files (fcntl's OFD locks), between open files, processes and mounts; and of
//! directories.
#![expect(unsafe_code, reason = "these calls are not in rustix")]

use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd as _,
    path::Path,
};

use rustix::{
    fs::{FlockOperation, fcntl_lock, flock},
    io::Errno,
};

use crate::harness::{Mounted, Way, mount, new_model, start_role, until};

/// Kind of lock that a call asks for.
#[derive(Clone, Copy)]
enum Want {
    Read,
    Write,
    Nothing,
}

impl Want {
    fn kind(self) -> i16 {
        let kind = match self {
            Want::Read => libc::F_RDLCK,
            Want::Write => libc::F_WRLCK,
            Want::Nothing => libc::F_UNLCK,
        };
        kind.try_into().unwrap()
    }
}

/// An OFD lock call for bytes `from..to`; what the kernel has left of the lock.
fn ofd(file: &File, call: i32, want: Want, from: i64, to: i64) -> Result<libc::flock, Errno> {
    let mut lock = libc::flock {
        l_type: want.kind(),
        l_whence: libc::SEEK_SET.try_into().unwrap(),
        l_start: from,
        l_len: to - from,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the lock lives as long as the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), call, &raw mut lock) };
    if done == 0 {
        return Ok(lock);
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap())
}

fn set(file: &File, want: Want, from: i64, to: i64) -> Result<(), Errno> {
    ofd(file, libc::F_OFD_SETLK, want, from, to).map(drop)
}

/// Returns the range that is in the way of writing.
fn found(file: &File, from: i64, to: i64) -> Option<(i64, i64)> {
    let lock = ofd(file, libc::F_OFD_GETLK, Want::Write, from, to).unwrap();
    (lock.l_type != Want::Nothing.kind()).then_some((lock.l_start, lock.l_start + lock.l_len))
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// Waits for an OFD lock, and says that it has it; `child_role` runs it.
pub(crate) fn wait_for(path: &Path) {
    let file = open(path);
    ofd(&file, libc::F_OFD_SETLKW, Want::Write, 0, 10).unwrap();
    fs::write(path.with_extension("held"), b"").unwrap();
}

fn two_mounts() -> (Mounted, Mounted) {
    let model = new_model();
    let mounts = (mount(&model, &Way::default()), mount(&model, &Way::default()));
    fs::write(mounts.0.path("file"), b"0123456789").unwrap();
    mounts
}

#[test]
fn ofd_locks_hold_between_open_files_of_one_process_and_of_two_mounts() {
    let (one, two) = two_mounts();
    let [file, again] = [open(&one.path("file")), open(&one.path("file"))];
    let other = open(&two.path("file"));
    set(&file, Want::Write, 0, 10).unwrap();
    for shut_out in [&again, &other] {
        assert_eq!(set(shut_out, Want::Read, 5, 6), Err(Errno::AGAIN));
        assert_eq!(found(shut_out, 5, 6), Some((0, 10)));
        set(shut_out, Want::Write, 10, 20).unwrap();
        set(shut_out, Want::Nothing, 10, 20).unwrap();
    }
    assert_eq!(found(&file, 0, 100), None, "nobody is in his own way");
    set(&file, Want::Read, 0, 5).unwrap();
    set(&file, Want::Nothing, 5, 10).unwrap();
    set(&again, Want::Read, 0, 5).unwrap();
    set(&other, Want::Read, 0, 5).unwrap();
    set(&other, Want::Write, 5, 10).unwrap();
    assert_eq!(found(&file, 0, 10), Some((0, 5)));
    drop((file, again, other));
    one.unmount();
    two.unmount();
}

#[test]
fn an_ofd_lock_stays_when_its_process_closes_another_descriptor_and_ends_with_the_last_of_its_own()
{
    let (one, two) = two_mounts();
    let (file, other) = (open(&one.path("file")), open(&two.path("file")));
    set(&file, Want::Write, 0, 10).unwrap();
    drop(open(&one.path("file")));
    drop(fs::read(one.path("file")).unwrap());
    assert_eq!(set(&other, Want::Read, 0, 10), Err(Errno::AGAIN));
    let copy = file.try_clone().unwrap();
    drop(file);
    assert_eq!(set(&other, Want::Read, 0, 10), Err(Errno::AGAIN));
    drop(copy);
    // The kernel reports the last close, and no call waits for that report.
    until("the lock is free", || set(&other, Want::Read, 0, 10).is_ok());
    drop(other);
    one.unmount();
    two.unmount();
}

#[test]
fn ofd_locks_and_those_of_processes_keep_each_other_out() {
    let (one, two) = two_mounts();
    let [file, again] = [open(&one.path("file")), open(&one.path("file"))];
    let other = open(&two.path("file"));
    const TRY: FlockOperation = FlockOperation::NonBlockingLockExclusive;
    set(&file, Want::Write, 0, 10).unwrap();
    assert_eq!(fcntl_lock(&file, TRY), Err(Errno::AGAIN), "the process is another owner");
    assert_eq!(fcntl_lock(&other, TRY), Err(Errno::AGAIN));
    flock(&other, TRY).expect("the families do not meet");
    set(&file, Want::Nothing, 0, 10).unwrap();
    fcntl_lock(&file, TRY).unwrap();
    for shut_out in [&file, &again, &other] {
        assert_eq!(set(shut_out, Want::Read, 0, 1), Err(Errno::AGAIN));
    }
    // Any close by the process ends what the process has, and nothing else.
    set(&again, Want::Read, 0, 1).unwrap_err();
    fcntl_lock(&file, FlockOperation::Unlock).unwrap();
    set(&file, Want::Read, 0, 5).unwrap();
    fcntl_lock(&again, FlockOperation::NonBlockingLockShared).unwrap();
    drop(again);
    assert_eq!(set(&other, Want::Write, 0, 5), Err(Errno::AGAIN));
    set(&other, Want::Write, 5, 10).unwrap();
    drop((file, other));
    one.unmount();
    two.unmount();
}

#[test]
fn who_waits_for_an_ofd_lock_gets_it_when_the_open_file_is_closed() {
    let (one, two) = two_mounts();
    let file = open(&two.path("file"));
    set(&file, Want::Write, 0, 10).unwrap();
    let waiting = one.seen.count("lock_wait");
    let mut waits = start_role("ofd", &one.path("file"));
    until("it waits", || one.seen.count("lock_wait") > waiting);
    assert!(waits.is_running());
    drop(file);
    assert!(waits.end().success());
    assert!(one.path("file.held").exists() || one.path("file").with_extension("held").exists());
    one.unmount();
    two.unmount();
}

/// Linux keeps them itself: FUSE has no lock calls for directories (`fuse_dir_operations`).
#[test]
fn locks_of_directories_hold_within_a_mount_and_are_never_asked_of_the_file_system() {
    let (one, two) = two_mounts();
    fs::create_dir(one.path("dir")).unwrap();
    let [dir, again] = [File::open(one.path("dir")).unwrap(), File::open(one.path("dir")).unwrap()];
    let other = File::open(two.path("dir")).unwrap();
    const TRY: FlockOperation = FlockOperation::NonBlockingLockExclusive;
    flock(&dir, TRY).unwrap();
    assert_eq!(flock(&again, TRY), Err(Errno::WOULDBLOCK));
    flock(&other, TRY).expect("another mount does not learn of it");
    set(&dir, Want::Read, 0, 10).unwrap();
    assert_eq!(set(&again, Want::Write, 0, 10), Err(Errno::BADF), "nobody writes to a directory");
    assert_eq!((one.seen.count("lock"), two.seen.count("lock")), (0, 0));
    drop((dir, again, other));
    one.unmount();
    two.unmount();
}
