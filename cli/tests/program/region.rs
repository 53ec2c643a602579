//! Programs in a region, over a local disk: they leave what they would have left without one.
//! Needs /dev/fuse and root.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{fail, folder, pando, pause, stderr, succeed, text};

/// The library for programs in regions, which cargo builds for these tests.
pub(crate) fn library() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_pando"));
    program.parent().unwrap().join("deps/libpando_region.so")
}

/// Runs a script of the shell in a region on `dir`, with all compared at the end.
pub(crate) fn region(dir: &Path, options: &[&str], script: &str) -> Output {
    let mut args = vec!["region", "run", text(dir), "--verify", "full", "--json"];
    args.extend(options);
    args.extend(["--", "sh", "-ec", script]);
    pando(&args).current_dir(dir).output().expect("the program can be started")
}

/// Checks that nothing went wrong in a region, by its report.
pub(crate) fn went_well(output: &Output) {
    let said = stderr(output);
    assert!(output.status.success(), "{said}");
    let line = said.lines().find_map(|line| line.strip_prefix("pando: {"));
    let line = line.unwrap_or_else(|| panic!("no report: {said}"));
    let report: Value = serde_json::from_str(&format!("{{{line}")).expect("it prints JSON");
    assert_eq!((&report["failed"], &report["differences"]), (&0.into(), &0.into()), "{said}");
}

/// Waits for the first line that a program prints.
pub(crate) fn first_line(running: &mut Child) -> String {
    let mut line = String::new();
    let out = running.stdout.as_mut().expect("it was asked for");
    BufReader::new(out).read_line(&mut line).unwrap();
    line
}

pub(crate) fn sh(dir: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).current_dir(dir).output();
    let output = output.expect("there is a shell");
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).expect("it prints text")
}

/// Everything in a directory but its own times: kinds, modes, owners, links, sizes, times and sums.
pub(crate) fn tree(dir: &Path) -> String {
    let found = "find . -mindepth 1 -printf '%p %y %m %u %g %n %T@ %l\\n' | sort";
    let sums = "find . -type f -exec sha256sum {} + | sort -k2";
    sh(dir, &format!("{found}; {sums}"))
}

/// A tree of files of many sizes and modes, with links and empty directories.
pub(crate) const MAKES: &str = "
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
    first_line(&mut running);
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
    fs::copy(library(), folder.path().join("libpando_region.so")).unwrap();
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

    // The shell stands in the directory before it is a region, and what it starts works inside.
    let script = format!(
        "{pando} region up . --log none; {pando} region exec . -- sh -c 'echo x > new; rm h'
         test -e new; test ! -e h; {pando} region end . --verify full --json",
        pando = text(&program)
    );
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-ec", &script])
        .current_dir(&dir)
        .env("HOME", "/nonexistent")
        .output()
        .unwrap();
    // The shell itself still sees what is below.
    let said = stderr(&output);
    assert!(!said.contains("differs"), "{said}");
    assert!(dir.join("new").exists() && !dir.join("h").exists(), "{said}");
}

#[test]
fn being_told_to_end_ends_the_program_and_keeps_what_it_did() {
    let folder = folder();
    let script = "echo x > f; echo ready; exec sleep 60";
    let mut command = pando(&["region", "run", text(folder.path()), "--", "sh", "-c", script]);
    let mut running = command.current_dir(folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    first_line(&mut running);
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    let status = running.wait().unwrap();
    assert_eq!(status.code(), Some(143));
    assert_eq!(fs::read_to_string(folder.path().join("f")).unwrap(), "x\n");
}

/// A region that was begun by `up`, and ends with the test.
pub(crate) struct Up(PathBuf);

impl Up {
    pub(crate) fn on(dir: &Path) -> Up {
        Up::with(dir, &[])
    }

    pub(crate) fn with(dir: &Path, options: &[&str]) -> Up {
        let said = succeed(&[&["region", "up", text(dir), "--log", "none"], options].concat());
        assert_eq!(said, format!("region at {}\n", text(dir)));
        Up(dir.to_owned())
    }

    pub(crate) fn status(&self) -> Value {
        let said = succeed(&["region", "status", text(&self.0), "--json"]);
        serde_json::from_str(&said).expect("it prints JSON")
    }

    pub(crate) fn exec(&self, script: &str) -> Child {
        let args = ["region", "exec", text(&self.0), "--", "sh", "-ec", script];
        let mut command = pando(&args);
        command.current_dir(&self.0).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).spawn().expect("the program can be started")
    }

    /// Runs a script of the shell in the region; what it prints.
    pub(crate) fn sh(&self, script: &str) -> String {
        let output = self.exec(script).wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).expect("it prints text")
    }

    pub(crate) fn end(&self, options: &[&str]) -> Output {
        let args =
            [&["region", "end", text(&self.0), "--verify", "full", "--json"], options].concat();
        pando(&args).output().expect("the program can be started")
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // A test that has gone well has ended it.
        let args = ["region", "end", text(&self.0), "--force", "--patience", "1s"];
        drop(pando(&args).output());
    }
}

#[test]
fn programs_enter_a_region_one_after_the_other_and_it_stays_until_it_is_told_to_end() {
    let folder = folder();
    let dir = folder.path().join("d");
    fs::create_dir(&dir).unwrap();
    let up = Up::on(&dir);
    up.sh("mkdir a; echo one > a/f; ln -s f a/l");
    assert_eq!(up.sh("cat a/l; pwd; test $PWD = $(pwd)"), format!("one\n{}\n", text(&dir)));
    succeed(&["region", "flush", text(&dir)]);
    // Others see what is below.
    assert_eq!(fs::read_to_string(dir.join("a/f")).unwrap(), "one\n");
    let status = up.status();
    assert_eq!((&status["dirty"], &status["programs"]), (&0.into(), &0.into()), "{status}");
    assert_eq!(status["dir"], text(&dir));
    let all = succeed(&["region", "status"]);
    assert!(all.contains(&format!("{}: process {}, ", text(&dir), status["pid"])), "{all}");
    up.sh("rm a/f; echo two > a/g");
    went_well(&up.end(&[]));
    assert_eq!(sh(&dir, "ls a; cat a/g"), "g\nl\ntwo\n");
    let none = fail(1, &["region", "status", text(&dir)]);
    assert!(none.contains("no region of this user is on"), "{none}");
    // The directory can be a region again.
    went_well(&region(&dir, &[], "cat a/g"));
}

#[test]
fn a_region_does_not_end_under_its_programs_unless_that_is_forced() {
    let folder = folder();
    let up = Up::on(folder.path());
    // The program is in no folder of the region, and has no file of it open.
    let script = "echo x > f; cd /; echo ready; read line; echo $line > /dev/null; exit 3";
    let begin = || {
        let mut child = up.exec(script);
        assert_eq!(first_line(&mut child), "ready\n");
        child
    };
    let mut running = begin();
    assert_eq!(up.status()["programs"], 1);
    let refused = stderr(&up.end(&[]));
    assert!(refused.contains("programs run that were started in the region: 1"), "{refused}");
    drop(running.stdin.take());
    assert_eq!(running.wait().unwrap().code(), Some(1), "read has met the end");
    // The region notices that a moment later.
    while up.status()["programs"] != 0 {
        pause(Duration::from_millis(5));
    }
    let mut running = begin();
    went_well(&up.end(&["--force"]));
    assert_eq!(fs::read_to_string(folder.path().join("f")).unwrap(), "x\n");
    drop(running.stdin.take());
    running.wait().unwrap();
}

#[test]
fn a_region_that_is_told_to_end_by_a_signal_commits_everything() {
    let folder = folder();
    let mut command = pando(&["region", "up", text(folder.path()), "--foreground", "--verbose"]);
    let mut serving =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started");
    first_line(&mut serving);
    let up = Up(folder.path().to_owned());
    up.sh("mkdir a; for i in $(seq 50); do echo $i > a/$i; done");
    kill_process(Pid::from_child(&serving), Signal::TERM).unwrap();
    let output = serving.wait_with_output().unwrap();
    let said = stderr(&output);
    assert!(output.status.success() && said.contains(" changes: "), "{said}");
    assert_eq!(sh(folder.path(), "ls a | wc -l"), "50\n");
}

#[test]
fn a_region_that_ends_with_its_program_is_looked_at_and_entered_and_not_ended() {
    let folder = folder();
    let mut command =
        pando(&["region", "run", text(folder.path()), "--", "sh", "-c", "echo; read x"]);
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    first_line(&mut running);
    let there = Up(folder.path().to_owned());
    there.sh("echo x > f; cat f");
    assert_eq!(there.status()["refused"], 0);
    let refused = stderr(&there.end(&["--force"]));
    assert!(refused.contains("the region ends with its program"), "{refused}");
    drop(running.stdin.take());
    assert_eq!(running.wait().unwrap().code(), Some(1), "read has met the end");
    assert_eq!(fs::read_to_string(folder.path().join("f")).unwrap(), "x\n");
}

#[test]
fn a_region_whose_process_was_killed_leaves_no_trace_that_is_in_the_way() {
    let folder = folder();
    let up = Up::on(folder.path());
    up.sh("echo x > f; sync f");
    let pid = up.status()["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    while pando(&["region", "status", text(folder.path())]).output().unwrap().status.success() {
        pause(Duration::from_millis(5));
    }
    let none = fail(1, &["region", "exec", text(folder.path()), "--", "true"]);
    assert!(none.contains("no region of this user is on"), "{none}");
    let again = Up::on(folder.path());
    assert_eq!(again.sh("cat f"), "x\n");
    went_well(&again.end(&[]));
}

#[test]
fn a_region_that_is_lost_by_force_answers_no_more_and_has_what_it_answered() {
    let folder = folder();
    let dir = folder.path().join("d");
    fs::create_dir(&dir).unwrap();
    let up = Up::on(&dir);
    // Each line is a change; the count is that of those that were answered.
    let script = "exec 3>> log; echo ready; n=0; while echo x >&3; do n=$((n + 1)); done
        echo $n; echo below > /$OLDPWD/after || true";
    let mut child = up.exec(&format!("cd .; OLDPWD={}; {script}", text(&dir)));
    let mut out = BufReader::new(child.stdout.take().expect("it was asked for"));
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    went_well(&up.end(&["--force"]));
    line.clear();
    out.read_line(&mut line).unwrap();
    child.wait().unwrap();
    let lines: usize = line.trim().parse().expect("it counts");
    assert_eq!(fs::read(dir.join("log")).unwrap().len(), 2 * lines);
    // Nor has the program fallen through.
    assert_eq!(sh(&dir, "ls"), "log\n");
}

#[test]
fn a_directory_that_is_a_region_is_none_a_second_time_from_inside() {
    let folder = folder();
    let up = Up::on(folder.path());
    let again = format!("{} region up . --log none", env!("CARGO_BIN_EXE_pando"));
    let output = up.exec(&format!("{again} 2>&1 || true")).wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("a region is on"), "{said}");
    up.sh("echo x > f");
    went_well(&up.end(&[]));
}

#[test]
fn what_below_refuses_fails_a_flush() {
    let folder = folder();
    let up = Up::on(folder.path());
    let theirs = format!(
        "ls; echo ours > f; nsenter --target {} --mount sh -c 'echo theirs > {}/f'",
        std::process::id(),
        text(folder.path())
    );
    up.sh(&theirs);
    let refused = fail(1, &["region", "flush", text(folder.path())]);
    assert!(refused.contains("what the file system below refuses: 1 paths"), "{refused}");
    assert_eq!(up.end(&[]).status.code(), Some(1));
}
