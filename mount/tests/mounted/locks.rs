//! flock and fcntl between programs of one mount and of two.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, Write as _},
    path::Path,
};

use rustix::{
    fs::{FlockOperation, fcntl_lock, flock},
    io::Errno,
    process::{Pid, Signal, kill_process},
};

use crate::harness::{Mounted, Way, mount, new_model, start_role, until};

const TRY_ALONE: FlockOperation = FlockOperation::NonBlockingLockExclusive;
const TRY_SHARED: FlockOperation = FlockOperation::NonBlockingLockShared;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Two mounts of one file system that has a file.
fn two_mounts(way: &Way) -> (Mounted, Mounted) {
    let model = new_model();
    let mounts = (mount(&model, way), mount(&model, way));
    fs::write(mounts.0.path("file"), b"first").unwrap();
    mounts
}

/// Takes a lock, and keeps it until it is killed; `child_role` runs it.
pub(crate) fn hold(path: &Path, alone: fn(&File) -> rustix::io::Result<()>) {
    let file = open(path);
    alone(&file).unwrap();
    fs::write(path.with_extension("held"), b"").unwrap();
    if path.with_extension("go").exists() {
        return;
    }
    loop {
        std::thread::park();
    }
}

pub(crate) fn flock_alone(file: &File) -> rustix::io::Result<()> {
    flock(file, FlockOperation::LockExclusive)
}

pub(crate) fn fcntl_alone(file: &File) -> rustix::io::Result<()> {
    fcntl_lock(file, FlockOperation::LockExclusive)
}

#[test]
fn flock_holds_between_open_files_and_between_mounts() {
    let (one, two) = two_mounts(&Way::default());
    let [file, again] = [open(&one.path("file")), open(&one.path("file"))];
    let other = open(&two.path("file"));
    flock(&file, TRY_ALONE).unwrap();
    for shut_out in [&again, &other] {
        assert_eq!(flock(shut_out, TRY_SHARED), Err(Errno::WOULDBLOCK));
    }
    flock(&file, TRY_SHARED).unwrap();
    flock(&other, TRY_SHARED).unwrap();
    assert_eq!(flock(&file, TRY_ALONE), Err(Errno::WOULDBLOCK));
    // The copy of a descriptor keeps the lock, the last close ends it.
    let copy = other.try_clone().unwrap();
    drop(other);
    assert_eq!(flock(&again, TRY_ALONE), Err(Errno::WOULDBLOCK));
    drop((copy, file));
    until("the lock is free", || flock(&again, TRY_ALONE).is_ok());
    drop(again);
    one.unmount();
    two.unmount();
}

#[test]
fn fcntl_locks_hold_between_mounts_and_end_with_any_close_by_their_process() {
    let (one, two) = two_mounts(&Way::default());
    let [file, again] = [open(&one.path("file")), open(&one.path("file"))];
    let other = open(&two.path("file"));
    fcntl_lock(&file, TRY_ALONE).unwrap();
    fcntl_lock(&again, TRY_ALONE).expect("it is the process's own");
    assert_eq!(fcntl_lock(&other, TRY_SHARED), Err(Errno::AGAIN));
    flock(&other, TRY_ALONE).expect("the families do not meet");
    drop(again);
    fcntl_lock(&other, TRY_ALONE).unwrap();
    fcntl_lock(&other, FlockOperation::Unlock).unwrap();
    fcntl_lock(&file, TRY_ALONE).unwrap();
    drop((file, other));
    one.unmount();
    two.unmount();
}

#[test]
fn the_locks_of_a_killed_process_are_free() {
    let (one, two) = two_mounts(&Way::default());
    let other = open(&two.path("file"));
    for role in ["flock", "fcntl"] {
        let holder = start_role(role, &one.path("file"));
        until("it is locked", || {
            two.path("file.held").exists() || two.path("file").with_extension("held").exists()
        });
        let lock = if role == "flock" { flock::<&File> } else { fcntl_lock::<&File> };
        assert!(lock(&other, TRY_ALONE).is_err(), "{role}");
        assert!(!holder.kill().success());
        // The request waits in the file system for as long as that takes.
        lock(&other, FlockOperation::LockExclusive).unwrap();
        lock(&other, FlockOperation::Unlock).unwrap();
        fs::remove_file(two.path("file").with_extension("held")).unwrap();
    }
    drop(other);
    one.unmount();
    two.unmount();
}

#[test]
fn who_waits_for_a_lock_can_be_stopped_continued_and_ended_by_signals() {
    let (one, two) = two_mounts(&Way::default());
    let file = open(&two.path("file"));
    for (role, alone) in [("flock", flock_alone as fn(&File) -> _), ("fcntl", fcntl_alone)] {
        alone(&file).unwrap();
        let waiting = one.seen.count("lock_wait");
        let mut waits = start_role(role, &one.path("file"));
        until("it waits", || one.seen.count("lock_wait") > waiting);
        kill_process(pid(&waits), Signal::INT).unwrap();
        assert!(!waits.end().success(), "{role}");

        fs::write(two.path("file").with_extension("go"), b"").unwrap();
        let waiting = one.seen.count("lock_wait");
        let mut waits = start_role(role, &one.path("file"));
        until("it waits", || one.seen.count("lock_wait") > waiting);
        // To be stopped ends the call, which is made again when the program goes on.
        kill_process(pid(&waits), Signal::STOP).unwrap();
        until("it is stopped", || is_stopped(waits.pid()));
        kill_process(pid(&waits), Signal::CONT).unwrap();
        until("it waits again", || one.seen.count("lock_wait") > waiting + 1);
        assert!(waits.is_running());
        let unlock = if role == "flock" { flock::<&File> } else { fcntl_lock::<&File> };
        unlock(&file, FlockOperation::Unlock).unwrap();
        assert!(waits.end().success(), "{role}");
        for left in ["go", "held"] {
            fs::remove_file(two.path("file").with_extension(left)).unwrap();
        }
    }
    drop(file);
    one.unmount();
    two.unmount();
}

fn pid(role: &crate::harness::Role) -> Pid {
    Pid::from_raw(role.pid().try_into().unwrap()).unwrap()
}

fn is_stopped(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap().contains("State:\tT")
}

#[test]
fn who_has_a_lock_reads_what_was_written_on_another_mount_whatever_is_cached() {
    let (one, two) = two_mounts(&Way::cached());
    let (mut file, mut other) = (open(&one.path("file")), open(&two.path("file")));
    let mut text = String::new();
    other.read_to_string(&mut text).unwrap();
    assert_eq!(text, "first");
    flock(&file, TRY_ALONE).unwrap();
    file.write_all(b"second, longer").unwrap();
    flock(&file, FlockOperation::Unlock).unwrap();
    flock(&other, TRY_SHARED).unwrap();
    other.rewind().unwrap();
    text.clear();
    other.read_to_string(&mut text).unwrap();
    assert_eq!(text, "second, longer");
    drop((file, other));
    one.unmount();
    two.unmount();
}
