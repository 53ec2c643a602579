//! Programs that reach their region by the preloaded library, beside its mount.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use tempfile::TempDir;

use crate::{
    harness::{fail, folder, pause, stderr, succeed, text},
    region::{Up, first_line, library, region, sh, tree, went_well},
};

/// A program in C of this crate: `library` makes calls of all kinds in a directory and prints what
/// they return, and `rates` has processes make, look at and remove files.
fn compiled(name: &str, folder: &Path, options: &[&str]) -> PathBuf {
    let program = folder.join(name);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/tests/c");
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", "-O1"]).args(options);
    command.arg("-o").arg(&program).arg(sources.join(format!("{name}.c")));
    let compiled = command.output().unwrap();
    assert!(compiled.status.success(), "{}", stderr(&compiled));
    program
}

/// A folder that all users can reach, with the program and its library.
fn reachable() -> (TempDir, PathBuf) {
    let folder = folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("pando");
    fs::copy(env!("CARGO_BIN_EXE_pando"), &program).unwrap();
    fs::copy(library(), folder.path().join("libpando_region.so")).unwrap();
    (folder, program)
}

fn printed(output: Output) -> String {
    assert!(output.status.success(), "{:?}: {}", output.status, stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the program of calls as a user: in a directory, and in regions without and with the library.
fn has_the_same_results(user: &[&str]) {
    let (folder, pando) = reachable();
    let calls = compiled("library", folder.path(), &[]);
    let [plain, without, with] = ["plain", "without", "with"].map(|name| {
        let dir = folder.path().join(name);
        fs::create_dir(&dir).unwrap();
        if !user.is_empty() {
            std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).unwrap();
        }
        dir
    });
    let run = |words: &[&str]| {
        let words = [user, words].concat();
        let mut command = Command::new(words[0]);
        printed(command.args(&words[1..]).env("HOME", "/nonexistent").output().unwrap())
    };
    let (pando, calls) = (text(&pando), text(&calls));
    let expected = run(&[calls, text(&plain)]);
    assert!(expected.lines().count() > 1000, "{expected}");
    let in_region = |dir: &Path, library: &str, words: &[&str]| {
        let args = ["region", "run", text(dir), "--library", library, "--verify", "full", "--"];
        run(&[&[pando][..], &args, &[calls, text(dir)], words].concat())
    };
    let differ = |said: &str| {
        let pairs = expected.lines().zip(said.lines());
        let mut others = pairs.filter(|(one, other)| one != other);
        others.next().map(|(one, other)| format!("{one}\n{other}"))
    };
    let said = in_region(&without, "off", &[]);
    assert!(said == expected, "by the mount: {:?}", differ(&said));
    // The second word has the program check that it uses the library.
    let said = in_region(&with, "on", &["library"]);
    assert!(said == expected, "by the library: {:?}", differ(&said));
}

#[test]
fn calls_have_the_same_results_by_the_library_as_by_the_mount_and_without_a_region() {
    has_the_same_results(&[]);
}

#[test]
fn calls_of_a_user_who_is_not_root_have_the_same_results_too() {
    let device = fs::metadata("/dev/fuse").expect("these tests mount");
    if device.permissions().mode() & 0o006 != 0o006 {
        eprintln!("skipped: other users may not open /dev/fuse on this machine");
        return;
    }
    has_the_same_results(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
}

#[test]
fn trees_that_programs_make_are_the_same_by_the_library_and_by_the_mount() {
    let folder = folder();
    let made = "
        mkdir -p from/a/b; umask 027
        for i in $(seq 60); do
            echo $i > from/a/f$i; head -c $((i * 200)) /dev/zero > from/a/b/g$i
        done
        ln -s ../a from/a/l; chmod 4711 from/a/f1; ln from/a/f2 from/h; touch -d 2001-02-03 from/a/f3
        cp -a from copied; tar cf t.tar from; mkdir un; tar xf t.tar -C un; rm -r from/a/b
        mv un/from/a un/moved; sed -i s/1/one/ un/moved/f1*; cat un/moved/f* | tee all > again
        python3 -c 'import os; f = open(\"py\", \"w\"); f.write(\"x\" * 5000); f.close()
os.rename(\"py\", \"p\")'
        install -m 444 all read-only; cp -r copied/a/f4 deep; find . -newer all | sort > newer
        truncate -s 100 all; dd if=again of=dd bs=7 count=3 conv=notrunc 2>&1; rm newer t.tar";
    let [without, with] = ["off", "on"].map(|library| {
        let dir = folder.path().join(library);
        fs::create_dir(&dir).unwrap();
        went_well(&region(&dir, &["--library", library], made));
        // All are dated by the clock, but for those that were given times.
        let shown = tree(&dir);
        let undated = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
            [path, kind, mode, user, group, names, time, ..] if kind.len() == 1 => {
                let dated = time.starts_with("9811") || time.starts_with("9812");
                format!("{path} {kind} {mode} {user} {group} {names} {dated}")
            }
            _ => line.to_owned(),
        };
        shown.lines().map(undated).collect::<Vec<_>>()
    });
    assert_eq!(without, with);
    assert!(with.len() > 500, "{}", with.len());
}

#[test]
fn programs_with_the_library_are_counted_and_others_meet_the_mount() {
    let folder = folder();
    let dir = folder.path().join("d");
    fs::create_dir(&dir).unwrap();
    let up = Up::with(&dir, &["--library", "on"]);
    let mut program = up.exec("echo x > new; echo ready; read go || test -e other");
    assert_eq!(first_line(&mut program), "ready\n");
    assert_eq!(up.status()["processes"], 1);
    // One that has no library sees what it does, and is seen.
    assert_eq!(up.sh("env -u LD_PRELOAD sh -c 'cat new; echo y > other'"), "x\n");
    drop(program.stdin.take());
    let ended = program.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", stderr(&ended));
    while up.status()["processes"] != 0 {
        pause(Duration::from_millis(20));
    }
    went_well(&up.end(&[]));

    let up = Up::with(&dir, &["--library", "off"]);
    assert_eq!(up.sh("echo \"$LD_PRELOAD$PANDO_REGION\""), "\n");
    went_well(&up.end(&[]));
    let args = ["region", "run", text(&dir), "--library", "on", "-o", "ro", "--", "true"];
    let said = fail(1, &args);
    assert!(said.contains("programs cannot use the library: the mount is for reading"), "{said}");
    succeed(&["region", "run", text(&dir), "-o", "ro", "--", "true"]);
}

#[test]
fn programs_that_are_left_running_lose_the_region_and_what_was_answered_is_below() {
    let folder = folder();
    let dir = folder.path().join("d");
    fs::create_dir(&dir).unwrap();
    // The loop goes on until it is told that there is no region.
    let script = "
        (i=0; while echo x > f$i 2>/dev/null; do i=$((i + 1)); done; echo $i > ../last) > /dev/null &
        while test ! -e f100; do :; done";
    went_well(&region(&dir, &["--library", "on"], script));
    while fs::read_to_string(folder.path().join("last")).is_ok_and(|last| last.is_empty()) {
        pause(Duration::from_millis(20));
    }
    let made: usize = sh(&dir, "ls | wc -l").trim().parse().unwrap();
    assert!(made > 100, "{made}");
}

#[test]
fn what_is_mounted_in_a_region_is_seen_by_its_programs() {
    let folder = folder();
    let dir = folder.path().join("d");
    fs::create_dir(&dir).unwrap();
    let up = Up::with(&dir, &["--library", "on"]);
    let script = "mkdir sub; mount -t tmpfs t sub; sleep 1; echo x > sub/f; cat sub/f; umount sub
        sleep 1; ls sub; echo y > sub/g; cat sub/g";
    assert_eq!(up.sh(script), "x\ny\n");
    went_well(&up.end(&[]));
    assert_eq!(sh(&dir, "cd sub; ls"), "g\n");
}

#[test]
fn a_program_that_watches_a_directory_hears_of_what_others_make() {
    let folder = folder();
    let dir = folder.path().join("d");
    fs::create_dir(&dir).unwrap();
    let up = Up::with(&dir, &["--library", "on"]);
    let watches = "
import ctypes, os
c = ctypes.CDLL(None)
fd = c.inotify_init()
assert c.inotify_add_watch(fd, b'.', 0x100) > 0
print('ready', flush=True)
print(os.read(fd, 4096)[16:].rstrip(b'\\0'))";
    let mut program = up.exec(&format!("timeout 30 python3 -c \"{watches}\""));
    assert_eq!(first_line(&mut program), "ready\n");
    up.sh("echo x > new");
    let ended = program.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", stderr(&ended));
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "b'new'\n");
    went_well(&up.end(&[]));
}

#[test]
fn processes_work_side_by_side_also_with_address_sanitizer() {
    let folder = folder();
    for (name, options) in [("plain", &[][..]), ("sanitized", &["-fsanitize=address"])] {
        let dir = folder.path().join(name);
        fs::create_dir(&dir).unwrap();
        let rates = compiled("rates", folder.path(), options);
        let script = format!("{} 4 50 . write; ls d3 | wc -l", text(&rates));
        let output = region(&dir, &["--library", "on"], &script);
        went_well(&output);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let phases: Vec<_> = said.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(phases, ["create", "stat", "unlink", "0"], "{said}");
    }
}

#[test]
fn a_region_does_not_end_under_a_program_that_writes_and_is_not_counted() {
    let folder = folder();
    let dir = folder.path().join("d");
    fs::create_dir(&dir).unwrap();
    let up = Up::with(&dir, &["--library", "on"]);
    // By its descriptors a program is counted, and this one closes all that it was given.
    let daemon = "
import os, time
os.closerange(3, 256)
f = os.open('log', os.O_CREAT | os.O_WRONLY, 0o644)
os.write(f, b'one')
open('ready', 'w').close()
while os.path.exists('go'):
    time.sleep(0.02)
os.write(f, b'two')
os.close(f)
while os.path.exists('stay'):
    time.sleep(0.02)";
    fs::write(folder.path().join("daemon.py"), daemon).unwrap();
    up.sh("touch go stay; python3 ../daemon.py < /dev/null > /dev/null 2>&1 &
        until test -e ready; do sleep 0.02; done");
    let end = ["region", "end", text(&dir)];
    let said = fail(1, &end);
    assert!(said.contains("programs use the region: they write to 1 files of it"), "{said}");
    up.sh("rm go; until grep -q onetwo log; do sleep 0.02; done; rm stay");
    while !up.end(&[]).status.success() {
        pause(Duration::from_millis(20));
    }
    assert_eq!(sh(&dir, "cat log; ls"), "onetwolog\nready\n");
}
