//! Operations that wait for a server that is away, and programs that are killed meanwhile.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{
    Mounted, Way, can_be_offered, mount, mount_new, new_model, start_role, until,
};

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// Starts a program that then waits in `op`.
fn blocked(mounted: &Mounted, op: &'static str, role: &str, name: &str) -> crate::harness::Role {
    let before = mounted.seen.count(op);
    mounted.seen.hold(op);
    let role = start_role(role, &mounted.path(name));
    until("the operation is under way", || mounted.seen.count(op) > before);
    role
}

#[test]
fn a_program_that_waits_can_be_killed_and_others_go_on() {
    let mounted = mount(&new_model(), &Way::uncached());
    fs::write(mounted.path("file"), b"contents").unwrap();
    for (op, role) in [("lookup", "stat"), ("open", "read"), ("read", "read"), ("flush", "read")] {
        fs::write(mounted.path("file"), b"contents").unwrap();
        let mut waits = blocked(&mounted, op, role, "file");
        assert!(fs::metadata(mounted.root()).is_ok(), "the mount serves others");
        assert!(waits.is_running());
        assert!(!waits.kill().success(), "{op}");
        mounted.seen.release();
    }
    mounted.unmount();
}

#[test]
fn what_a_killed_program_asked_for_still_happens_and_leaves_nothing_open() {
    let mounted = mount_new();
    blocked(&mounted, "mkdir", "mkdir", "dir").kill();
    assert!(fs::metadata(mounted.path("dir")).is_err());
    mounted.seen.release();
    until("the directory is made", || fs::metadata(mounted.path("dir")).is_ok());

    fs::write(mounted.path("file"), b"contents").unwrap();
    until("written and closed", || mounted.seen.count("release") == mounted.seen.count("create"));
    let released = mounted.seen.count("release");
    blocked(&mounted, "open", "read", "file").kill();
    mounted.seen.release();
    until("what was opened for nobody is released", || mounted.seen.count("release") > released);
    mounted.unmount();
}

#[test]
fn a_signal_that_does_not_end_a_program_does_not_end_its_operation() {
    let mounted = mount_new();
    let mut waits = blocked(&mounted, "mkdir", "mkdir", "dir");
    for harmless in [Signal::CONT, Signal::WINCH, Signal::CHILD] {
        signal(waits.pid(), harmless);
    }
    assert!(waits.is_running());
    mounted.seen.release();
    assert!(waits.end().success(), "mkdir saw no EINTR");
    assert!(fs::metadata(mounted.path("dir")).is_ok());

    // A kill is noticed also when it is not the first signal.
    let waits = blocked(&mounted, "mkdir", "mkdir", "other");
    signal(waits.pid(), Signal::CONT);
    assert!(!waits.kill().success());
}

#[test]
fn a_program_can_be_ended_by_an_interrupt_from_the_keyboard() {
    let mounted = mount_new();
    let mut waits = blocked(&mounted, "mkdir", "mkdir", "dir");
    signal(waits.pid(), Signal::INT);
    assert!(!waits.end().success());
}

#[test]
fn a_program_can_be_killed_of_whose_signal_the_kernel_does_not_tell() {
    if !can_be_offered() {
        return;
    }
    let mut way = Way::uncached();
    way.options.io_uring = mount::IoUring::On;
    let mounted = mount(&new_model(), &way);
    fs::write(mounted.path("file"), b"contents").unwrap();
    mounted.seen.hold("open");
    mounted.seen.block("lookup");
    let (lookups, opens) = (mounted.seen.count("lookup"), mounted.seen.count("open"));
    let child = start_role("read", &mounted.path("file"));
    until("the name is looked up", || mounted.seen.count("lookup") > lookups);
    // Killed during the look-up, which is answered all the same. The open follows in the same call,
    // and the kernel does not tell that it is interrupted already.
    assert!(!child.kill().success());
    assert_eq!(mounted.seen.count("open"), opens + 1);
    mounted.seen.release();
    mounted.unmount();
}
