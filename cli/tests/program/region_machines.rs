//! Regions that several machines use. A machine is a mount namespace with a `/run` of its own, so
//! that it has its own processes of regions; all share the file system below. Needs /dev/fuse, root,
//! unshare and nsenter.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    harness::{fail, folder, pando, pause, stderr, succeed, text},
    region::{MAKES, Up, first_line, sh, tree, went_well},
};

/// Another machine, which has joined the regions on these directories and leaves them with the test.
struct Machine {
    holder: Child,
    joined: Vec<PathBuf>,
}

impl Machine {
    fn new() -> Machine {
        let begins = "mount --make-rprivate /; mount -t tmpfs none /run; echo; exec sleep 600";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", begins]).stdout(Stdio::piped());
        let mut holder = command.spawn().expect("there is unshare");
        first_line(&mut holder);
        Machine { holder, joined: Vec::new() }
    }

    /// One that has joined the region on a directory.
    fn joined(dir: &Path) -> Machine {
        let mut machine = Machine::new();
        let output = machine.pando(&["region", "join", text(dir), "--log", "none"]);
        assert!(output.status.success(), "{}", stderr(&output));
        machine.joined.push(dir.to_owned());
        machine
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--mount"]);
        command.arg(env!("CARGO_BIN_EXE_pando")).args(args);
        command
    }

    fn pando(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("there is nsenter")
    }

    fn exec(&self, dir: &Path, script: &str) -> Child {
        let mut command = self.command(&["region", "exec", text(dir), "--", "sh", "-ec", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("there is nsenter")
    }

    /// Runs a script of the shell in the region on `dir`, in that folder; what it prints.
    fn sh(&self, dir: &Path, script: &str) -> String {
        let child = self.exec(dir, &format!("cd {}; {script}", text(dir)));
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).expect("it prints text")
    }

    fn status(&self, dir: &Path) -> Value {
        let output = self.pando(&["region", "status", text(dir), "--json"]);
        serde_json::from_slice(&output.stdout).expect("it prints JSON")
    }

    /// The process of the region on a directory.
    fn pid(&self, dir: &Path) -> Pid {
        let pid = self.status(dir)["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(Pid::from_raw).expect("it has one")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for dir in &self.joined {
            drop(self.pando(&["region", "end", text(dir), "--force"]));
        }
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}

/// A region on a directory that other machines may join.
fn shared(dir: &Path) -> Up {
    Up::with(dir, &["--listen", "127.0.0.1:0"])
}

fn note(dir: &Path) -> PathBuf {
    dir.join(".pando-region")
}

#[test]
fn the_programs_of_two_machines_work_in_one_file_system() {
    let folder = folder();
    let [source, plain, dir] = ["source", "plain", "inside"].map(|name| folder.path().join(name));
    for dir in [&source, &plain, &dir] {
        fs::create_dir(dir).unwrap();
    }
    sh(&source, MAKES);
    sh(&source, "tar cf ../tree.tar .");
    sh(&plain, "tar xpf ../tree.tar");
    let here = shared(&dir);
    let there = Machine::joined(&dir);
    // Each machine sees at once, and changes, what the other one makes.
    there.sh(&dir, "tar xpf ../tree.tar");
    assert_eq!(here.sh("cat a/b/9 | cksum; ls -a"), sh(&plain, "cat a/b/9 | cksum; ls -a"));
    let works = [
        "rm -f a/fifo; cp -a a copy; mv copy d2; echo more >> a/5",
        "diff -r --no-dereference a/b/c d2/b/c; mv d2/b d2/moved; rm -r d2/moved/c; ln a/8 eight",
        "test $(stat -c %h a/8) = 2; rm a/8; rmdir e/f/g; mv large big; truncate -s 50000 a/7",
        "test $(wc -c < a/7) = 50000; sed -i s/1/one/g a/b/1; find . -name 9 -delete",
        "test ! -e d/9; touch -d @1600000000 a a/b a/b/c d2 d2/moved e e/f d a/b/1 a/5 a/7",
    ];
    for (number, work) in works.iter().enumerate() {
        sh(&plain, work);
        if number % 2 == 0 {
            here.sh(work)
        } else {
            there.sh(&dir, work)
        };
    }
    // Locks hold between machines.
    let mut locks =
        there.exec(&dir, &format!("exec 9> {}/lock; flock 9; echo; read x", text(&dir)));
    first_line(&mut locks);
    here.sh("! flock -n lock true");
    drop(locks.stdin.take());
    locks.wait().unwrap();
    here.sh("flock lock rm lock");
    // Both see how far the region is, and either has everything below.
    let status = here.status();
    assert_eq!(status["machines"].as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!(status["lead"], Value::Null);
    assert!(there.status(&dir)["lead"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(there.pando(&["region", "flush", text(&dir)]).status.success());
    assert_eq!(there.status(&dir)["dirty"], 0);
    went_well(&here.end(&[]));
    assert_eq!(tree(&dir), tree(&plain));
    assert!(!note(&dir).exists());
    let left = stderr(&there.pando(&["region", "status", text(&dir)]));
    assert!(left.contains("no region of this user is on"), "{left}");
}

#[test]
fn a_region_does_not_end_under_the_programs_of_another_machine_unless_that_is_forced() {
    let folder = folder();
    let dir = folder.path();
    let here = shared(dir);
    let (there, idle) = (Machine::joined(dir), Machine::joined(dir));
    let mut running = there.exec(dir, &format!("echo x > {}/f; echo; read x", text(dir)));
    first_line(&mut running);
    let refused = stderr(&here.end(&[]));
    assert!(refused.contains("programs run that were started in the region: 1"), "{refused}");
    assert!(refused.contains("other machines use the region"), "{refused}");
    // The region goes on, on both, and others may come.
    assert_eq!(idle.sh(dir, "cat f"), "x\n", "nobody has left before all could");
    there.sh(dir, "echo y > g");
    assert_eq!(here.sh("cat f g"), "x\ny\n");
    let third = Machine::joined(dir);
    assert_eq!(third.sh(dir, "cat f"), "x\n");
    went_well(&here.end(&["--force"]));
    assert_eq!(sh(dir, "cat f g"), "x\ny\n");
    drop(running.stdin.take());
    running.wait().unwrap();
    // One machine leaves, and the region goes on.
    let again = shared(dir);
    let other = Machine::joined(dir);
    other.sh(dir, "echo z > h");
    let left = other.pando(&["region", "end", text(dir)]);
    let said = String::from_utf8(left.stdout).unwrap();
    assert!(left.status.success() && said.contains("which goes on at 127.0.0.1:"), "{said}");
    assert_eq!(again.sh("cat h"), "z\n");
    went_well(&again.end(&[]));
}

#[test]
fn a_lead_that_is_told_to_end_by_a_signal_has_the_others_leave() {
    let folder = folder();
    let dir = folder.path();
    let options = ["--listen", "127.0.0.1:0", "--foreground", "--verify", "full", "--json"];
    let mut command = pando(&[&["region", "up", text(dir)], &options[..]].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut serving = command.spawn().expect("it can be started");
    first_line(&mut serving);
    let there = Machine::joined(dir);
    there.sh(dir, "mkdir a; for i in $(seq 50); do echo $i > a/$i; done");
    kill_process(Pid::from_child(&serving), Signal::TERM).unwrap();
    went_well(&serving.wait_with_output().unwrap());
    assert_eq!(sh(dir, "ls a | wc -l"), "50\n");
    let left = stderr(&there.pando(&["region", "status", text(dir)]));
    assert!(left.contains("no region of this user is on"), "{left}");
}

#[test]
fn a_machine_that_is_lost_takes_nothing_with_it_that_was_answered() {
    let folder = folder();
    let dir = folder.path();
    let here = shared(dir);
    let there = Machine::joined(dir);
    let holds = format!("exec 9> {}/lock; flock 9; echo said >&9; echo; read x", text(dir));
    let mut running = there.exec(dir, &holds);
    first_line(&mut running);
    here.sh("! flock -n lock true");
    kill_process(there.pid(dir), Signal::KILL).unwrap();
    // Locks of it are free, and its answered changes are there.
    here.sh("flock -w 60 lock cat lock | grep -q said");
    drop(running.stdin.take());
    running.wait().unwrap();
    went_well(&here.end(&[]));
    assert_eq!(sh(dir, "cat lock"), "said\n");
}

#[test]
fn programs_whose_lead_is_lost_are_told_and_the_next_region_takes_its_place() {
    let folder = folder();
    let dir = folder.path();
    let here = shared(dir);
    here.sh("echo x > f; sync f");
    let there = Machine::joined(dir);
    let script = format!(
        "cd {}; echo; read x || true; echo y > f || echo refused; cat f || true",
        text(dir)
    );
    let mut running = there.exec(dir, &script);
    first_line(&mut running);
    let pid = here.status()["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let status = || there.pando(&["region", "status", text(dir)]).status.success();
    while status() {
        pause(Duration::from_millis(5));
    }
    drop(running.stdin.take());
    let output = running.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "refused\n", "{}", stderr(&output));
    // No change fell through, and the note that is left is of nobody.
    assert_eq!(sh(dir, "cat f"), "x\n");
    assert!(note(dir).exists());
    let gone = stderr(&Machine::new().pando(&["region", "join", text(dir)]));
    assert!(gone.contains("cannot join the region of 127.0.0.1:"), "{gone}");
    let again = shared(dir);
    let other = Machine::joined(dir);
    assert_eq!(other.sh(dir, "cat f; ls -A"), "x\nf\n");
    went_well(&again.end(&[]));
}

#[test]
fn a_directory_has_one_region_on_all_machines() {
    let folder = folder();
    let [dir, other] = ["d", "elsewhere"].map(|name| folder.path().join(name));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&other).unwrap();
    let dir = &dir;
    let none = fail(1, &["region", "join", text(dir)]);
    assert!(none.contains("is no region of this user that others may join"), "{none}");
    let here = shared(dir);
    let there = Machine::new();
    // The lock of the first machine is none of a machine far away: the note tells.
    let said: Value = serde_json::from_slice(&fs::read(note(dir)).unwrap()).unwrap();
    let far = |lead: &Value| {
        let machine = serde_json::json!({ "name": "far away", "boot": "another one" });
        serde_json::json!({ "lead": lead, "machine": machine, "secret": said["secret"] })
    };
    fs::copy(note(dir), note(&other)).unwrap();
    fs::write(note(&other), far(&said["lead"]).to_string()).unwrap();
    let second = stderr(&there.pando(&["region", "up", text(&other), "--log", "none"]));
    assert!(second.contains(&format!("a region of {} is on", said["lead"].as_str().unwrap())));
    // Nor is one gone that cannot be reached.
    fs::write(note(&other), far(&"127.0.0.1:1".into()).to_string()).unwrap();
    let second = stderr(&there.pando(&["region", "up", text(&other), "--log", "none"]));
    assert!(second.contains("a region of 127.0.0.1:1 may be, which does not answer"), "{second}");
    assert!(second.contains("remove") && note(&other).exists(), "{second}");
    // A secret that others can read is none.
    fs::set_permissions(note(dir), fs::Permissions::from_mode(0o644)).unwrap();
    let open = stderr(&there.pando(&["region", "join", text(dir)]));
    assert!(open.contains("is not a file that only its user can read"), "{open}");
    fs::set_permissions(note(dir), fs::Permissions::from_mode(0o600)).unwrap();
    // Nor does a wrong one help.
    let text_below = fs::read(note(dir)).unwrap();
    let mut wrong = said.clone();
    wrong["secret"] = "0".repeat(64).into();
    fs::write(note(dir), wrong.to_string()).unwrap();
    let stranger = stderr(&there.pando(&["region", "join", text(dir)]));
    assert!(stranger.contains("cannot join the region of 127.0.0.1:"), "{stranger}");
    assert!(stranger.contains("authority"), "{stranger}");
    fs::write(note(dir), text_below).unwrap();
    went_well(&here.end(&[]));
}

#[test]
fn machines_join_for_as_long_as_a_program_runs() {
    let folder = folder();
    let [dir, pids] = ["d", "pids"].map(|name| folder.path().join(name));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&pids).unwrap();
    let rsh = folder.path().join("reach");
    // A program that the region's process starts is on its machine, where the directory is the region.
    let script = format!(
        "#!/bin/sh\nhost=$1; shift; echo $$ > {}/$host\nexec nsenter --target {} --mount \
         unshare --mount sh -ec 'mount --make-rprivate /; mount -t tmpfs none /run; exec \"$@\"' \
         sh \"$@\"\n",
        text(&pids),
        std::process::id()
    );
    fs::write(&rsh, script).unwrap();
    fs::set_permissions(&rsh, fs::Permissions::from_mode(0o755)).unwrap();
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, "# nodes\nn1 slots=2\nn2\n").unwrap();
    let rank = |node: &str| {
        format!(
            "nsenter --target $(cat {}/{node}) --mount {} region exec {} -- \
             sh -ec 'cd {}; for i in $(seq 40); do echo {node} > {node}.$i; done'",
            text(&pids),
            env!("CARGO_BIN_EXE_pando"),
            text(&dir),
            text(&dir)
        )
    };
    let program = format!("{} & {}; wait; ls | wc -l; cat n1.40 n2.40", rank("n1"), rank("n2"));
    let run = |nodes: &[&str], program: &str| {
        let mut args = vec!["region", "run", text(&dir), "--listen", "127.0.0.1:0"];
        args.extend(["--rsh", text(&rsh), "--verify", "full", "--json"]);
        args.extend(nodes);
        args.extend(["--", "sh", "-ec", program]);
        pando(&args).current_dir(&dir).output().unwrap()
    };
    let output = run(&["--hostfile", text(&hosts)], &program);
    went_well(&output);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "80\nn1\nn2\n");
    assert_eq!(sh(&dir, "ls | wc -l"), "80\n");
    assert!(!note(&dir).exists());
    // A machine that does not come has the program not begin.
    fs::write(&rsh, "#!/bin/sh\necho no such machine >&2; exit 255\n").unwrap();
    let output = run(&["--nodes", "n3"], "echo begun");
    let said = stderr(&output);
    assert!(said.contains("n3 has not joined the region"), "{said}");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]));
    succeed(&["region", "run", text(&dir), "--", "true"]);
}
