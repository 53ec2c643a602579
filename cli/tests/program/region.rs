//! Programs in a region, over a local disk: they leave what they would have left without one.
//! Needs /dev/fuse and root.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::{Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{fail, folder, pando, stderr, text};

/// Runs a script of the shell in a region on `dir`, with all compared at the end.
fn region(dir: &Path, options: &[&str], script: &str) -> Output {
    let mut args = vec!["region", "run", text(dir), "--verify", "full", "--json"];
    args.extend(options);
    args.extend(["--", "sh", "-ec", script]);
    pando(&args).current_dir(dir).output().expect("the program can be started")
}

/// Checks that nothing went wrong in a region, by its report.
fn went_well(output: &Output) {
    let said = stderr(output);
    assert!(output.status.success(), "{said}");
    let line = said.lines().find_map(|line| line.strip_prefix("pando: {"));
    let line = line.unwrap_or_else(|| panic!("no report: {said}"));
    let report: Value = serde_json::from_str(&format!("{{{line}")).expect("it prints JSON");
    assert_eq!((&report["failed"], &report["differences"]), (&0.into(), &0.into()), "{said}");
}

fn sh(dir: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).current_dir(dir).output();
    let output = output.expect("there is a shell");
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).expect("it prints text")
}

/// Everything in a directory but its own times: kinds, modes, owners, links, sizes, times and sums.
fn tree(dir: &Path) -> String {
    let found = "find . -mindepth 1 -printf '%p %y %m %u %g %n %T@ %l\\n' | sort";
    let sums = "find . -type f -exec sha256sum {} + | sort -k2";
    sh(dir, &format!("{found}; {sums}"))
}

/// A tree of files of many sizes and modes, with links and empty directories.
const MAKES: &str = "
    for d in a a/b a/b/c d; do mkdir $d; for i in 1 2 3 4 5 6 7 8 9; do
        head -c $((i * i * 113)) /dev/zero | tr '\\0' $i > $d/$i; touch -d @17000000$i.5 $d/$i
    done; done
    chmod 600 a/1; chmod 444 a/2; chmod 4755 a/3; chmod 555 d; chmod 1777 a/b
    ln -s ../nowhere a/link; ln a/4 a/b/four; mkfifo a/fifo; mkdir -p e/f/g
    head -c 100000 /dev/zero > large; : > empty
    touch -h -d @1234567890.25 a/link; touch -d @1500000000 e e/f
";

#[test]
fn a_tree_made_in_a_region_is_as_one_made_without() {
    let folder = folder();
    let [source, plain, inside] =
        ["source", "plain", "inside"].map(|name| folder.path().join(name));
    for dir in [&source, &plain, &inside] {
        fs::create_dir(dir).unwrap();
    }
    sh(&source, MAKES);
    sh(&source, "tar cf ../tree.tar .");
    sh(&plain, "tar xpf ../tree.tar");
    let tar = format!("tar xpf {}/tree.tar; cat a/b/9 | cksum", text(folder.path()));
    let output = region(&inside, &[], &tar);
    went_well(&output);
    assert_eq!(tree(&inside), tree(&plain));

    // Copies, moves, removals, and tools that replace files by renaming.
    let works = "
        rm -f a/fifo; cp -a a copy; diff -r --no-dereference a copy; mv copy d2
        mv d2/b d2/moved; rm -r d2/moved/c
        echo more >> a/5; sed -i s/1/one/g a/b/1; truncate -s 7 a/6; truncate -s 50000 a/7
        ln a/8 eight; rm a/8; rmdir e/f/g; mv large big; chmod 700 a/b
        find . -name 9 -delete; test ! -e d/9; test -z \"$(find . -name 9)\"
        touch -d @1600000000 a a/b a/b/c d2 d2/moved e e/f d a/b/1 a/5 a/6 a/7
    ";
    sh(&plain, works);
    went_well(&region(&inside, &[], works));
    assert_eq!(tree(&inside), tree(&plain));
}

#[test]
fn git_works_in_a_region_and_its_repository_is_whole_below() {
    let folder = folder();
    let work = "
        git init -q . ; git config user.name a; git config user.email a@b
        mkdir src; for i in $(seq 40); do echo $i > src/$i; done
        git add -A; git commit -qm one; git mv src/1 src/one; seq 5000 > src/2
        git commit -qam two; git checkout -q -b side HEAD~1; git checkout -q -; git gc -q
        git fsck --strict; test -z \"$(git status --porcelain)\"
    ";
    went_well(&region(folder.path(), &[], work));
    let said =
        sh(folder.path(), "git fsck --strict && git status --porcelain && git log --oneline");
    assert_eq!(said.lines().count(), 2, "{said}");
}

#[test]
fn a_tree_that_is_removed_again_leaves_nothing_below() {
    let folder = folder();
    let work = "mkdir t; for i in $(seq 200); do echo $i > t/$i; done; rm -r t; echo kept > kept";
    went_well(&region(folder.path(), &[], work));
    assert_eq!(sh(folder.path(), "ls -A"), "kept\n");
}

#[test]
fn the_program_s_end_is_the_command_s() {
    let folder = folder();
    assert_eq!(region(folder.path(), &[], "echo x > f; exit 7").status.code(), Some(7));
    assert_eq!(region(folder.path(), &[], "kill -TERM $$").status.code(), Some(143));
    let none = fail(1, &["region", "run", text(folder.path()), "--", "/nonexistent/program"]);
    assert!(none.contains("cannot run /nonexistent/program"), "{none}");
    assert_eq!(fs::read_to_string(folder.path().join("f")).unwrap(), "x\n");
    let file = folder.path().join("f");
    assert!(fail(1, &["region", "run", text(&file), "--", "true"]).contains("not a directory"));
}

#[test]
fn one_directory_has_one_region() {
    let folder = folder();
    let again = format!("{} region run . -- true", env!("CARGO_BIN_EXE_pando"));
    let dir = folder.path().join("d");
    fs::create_dir(&dir).unwrap();
    // Outside its own mount namespace the directory is still the one below.
    let mut running = pando(&["region", "run", text(&dir), "--", "sh", "-c", "echo ready; read x"]);
    let mut running = running.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let out = running.stdout.as_mut().expect("it was asked for");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    let second = Command::new("sh").args(["-c", &again]).current_dir(&dir).output().unwrap();
    drop(running.stdin.take());
    running.wait().unwrap();
    assert!(stderr(&second).contains("a region is on"), "{}", stderr(&second));
    assert_eq!(second.status.code(), Some(1));
}

#[test]
fn a_name_that_somebody_outside_has_taken_is_left_alone_and_named() {
    let folder = folder();
    let dir = folder.path().join("d");
    fs::create_dir_all(dir.join("sub")).unwrap();
    let spill = folder.path().join("spill");
    // The parent of the program's own namespace sees what is below.
    let work = format!(
        "ls sub; echo ours > sub/f; nsenter --target {} --mount sh -c 'echo theirs > {}/sub/f'",
        std::process::id(),
        text(&dir)
    );
    let output = region(&dir, &["--spill", text(&spill)], &work);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("not committed: sub/f: file exists"), "{said}");
    assert_eq!(fs::read_to_string(dir.join("sub/f")).unwrap(), "theirs\n");
    assert_eq!(fs::read_to_string(spill.join("sub/f")).unwrap(), "ours\n");
}

#[test]
fn a_full_disk_refuses_new_files_and_what_has_no_room_is_named() {
    let folder = folder();
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1M", "pando-test", text(&disk)])
        .status();
    assert!(mount.unwrap().success(), "this test mounts a tmpfs, as root");
    let work = "
        i=0; while [ $i -lt 2000 ] && head -c 4000 /dev/zero > f$i; do i=$((i + 1)); done
        [ $i -lt 2000 ] && rm f1 f2 f3
    ";
    let output = region(&disk, &["--patience", "1s"], work);
    let left = sh(&disk, "ls | wc -l");
    sh(folder.path(), "umount disk");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no space left on device"), "{said}");
    assert!(left.trim().parse::<u32>().unwrap() > 100, "{left}");
}

#[test]
fn what_was_synced_outlives_the_region_s_process() {
    let folder = folder();
    let work = "
        mkdir -p a/b; echo synced > a/b/f; sync a/b/f; mkdir c; echo named > c/g; sync c/g c
        kill -KILL $PPID
    ";
    let output = region(folder.path(), &[], work);
    assert_eq!(output.status.code(), None, "it was killed");
    assert_eq!(sh(folder.path(), "cat a/b/f c/g"), "synced\nnamed\n");
}

#[test]
fn a_user_who_is_not_root_works_in_a_region_too() {
    let device = fs::metadata("/dev/fuse").expect("these tests mount");
    if device.mode() & 0o006 != 0o006 {
        eprintln!("skipped: other users may not open /dev/fuse on this machine");
        return;
    }
    let folder = folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = folder.path().join("d");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).unwrap();
    // The program must be one that the user can reach.
    let program = folder.path().join("pando");
    fs::copy(env!("CARGO_BIN_EXE_pando"), &program).unwrap();
    let script =
        "umask 027; mkdir -p a; echo x > a/f; chmod 440 a/f; echo y > g; mv g a/g; ln a/g h";
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", text(&program)])
        .args([
            "region",
            "run",
            text(&dir),
            "--verify",
            "full",
            "--json",
            "--",
            "sh",
            "-ec",
            script,
        ])
        .current_dir(&dir)
        .env("HOME", "/nonexistent")
        .output()
        .unwrap();
    went_well(&output);
    let file = fs::metadata(dir.join("a/f")).unwrap();
    assert_eq!((file.mode() & 0o7777, file.uid(), file.size()), (0o440, 65534, 2));
    assert_eq!(fs::metadata(dir.join("a")).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::metadata(dir.join("h")).unwrap().nlink(), 2);
}

#[test]
fn being_told_to_end_ends_the_program_and_keeps_what_it_did() {
    let folder = folder();
    let script = "echo x > f; echo ready; exec sleep 60";
    let mut command = pando(&["region", "run", text(folder.path()), "--", "sh", "-c", script]);
    let mut running = command.current_dir(folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let out = running.stdout.as_mut().expect("it was asked for");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    let status = running.wait().unwrap();
    assert_eq!(status.code(), Some(143));
    assert_eq!(fs::read_to_string(folder.path().join("f")).unwrap(), "x\n");
}
