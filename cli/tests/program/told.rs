//! When contents fail, or a token ends: what the program gets, and what the logs of those who know
//! say.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use tokio::time::Instant;

use crate::harness::{Data, Running, pando, pause, run, stderr, succeed, text, unmount};

/// Time within which a log has its line.
const PATIENCE: Duration = Duration::from_secs(20);
const EKEYEXPIRED: i32 = 127;

/// A server whose log goes to a file.
fn serve_logged(data: &Data, level: &str) -> (Running, PathBuf) {
    let log = data.folder.path().join("server.log");
    let mut command = pando(&["--log-level", level, "serve", "--http", "off"]);
    command.args(["--listen", "127.0.0.1:0", "--data", text(&data.path())]);
    command.stderr(Stdio::from(File::create(&log).unwrap()));
    (Running::start(command, "serving "), log)
}

/// Waits for a line of a log that has all of `words`.
fn says(log: &Path, words: &[&str]) {
    let began = Instant::now();
    loop {
        let said = fs::read_to_string(log).unwrap_or_default();
        if said.lines().any(|line| words.iter().all(|word| line.contains(word))) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{words:?} is not in {said}");
        pause(Duration::from_millis(20));
    }
}

/// A mount that is taken away with the test, and where it logs unasked.
struct Mount(PathBuf, PathBuf);

impl Mount {
    fn of(data: &Data, server: &Running, token: &Path) -> Mount {
        let at = data.folder.path().join("mnt");
        fs::create_dir_all(&at).unwrap();
        let name = text(&at).trim_start_matches('/').replace('/', "-");
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("logs/{name}.log"));
        succeed(&["mount", server.address(), text(&at), "--token", text(token)]);
        Mount(at, log)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = run(&["umount", "--force", text(&self.0)]);
        let _ = fs::remove_file(&self.1);
    }
}

#[test]
fn a_block_that_is_missing_is_named_by_the_mount_and_by_the_server() {
    let data = Data::formatted();
    let (server, log) = serve_logged(&data, "warn");
    let mount = Mount::of(&data, &server, &data.admin_token());
    fs::write(mount.0.join("file"), vec![7; 300_000]).unwrap();
    File::open(mount.0.join("file")).unwrap().sync_all().unwrap();
    unmount(&mount.0);
    fs::remove_dir_all(data.path().join("blocks/blocks")).unwrap();

    let mount = Mount::of(&data, &server, &data.admin_token());
    let error = fs::read(mount.0.join("file")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    says(&mount.1, &["ERROR", "a block of a file is missing in the block store", "block="]);
    says(&log, &["ERROR", "a block is missing", "block=", "mounted at"]);
    drop(mount);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_block_store_that_fails_is_said_everywhere_until_it_works_again() {
    let data = Data::formatted();
    let (server, log) = serve_logged(&data, "warn");
    let mount = Mount::of(&data, &server, &data.admin_token());
    let (blocks, away) = (data.path().join("blocks"), data.folder.path().join("away"));
    fs::rename(&blocks, &away).unwrap();
    File::create(&blocks).unwrap();

    let written = File::create(mount.0.join("file")).and_then(|mut file| {
        io::Write::write_all(&mut file, &vec![7; 300_000])?;
        // A program that is started has a copy of the descriptor and closes it, which sends what
        // was written and hears of the error. This program is told all the same.
        assert!(Command::new("true").status()?.success());
        file.sync_all()
    });
    assert_eq!(written.unwrap_err().raw_os_error(), Some(5));
    says(&log, &["ERROR", "cannot put a block", "block=", "ot a directory"]);
    let token = data.admin_token();
    let status = || run(&["status", server.address(), "--token", text(&token)]);
    let said = status();
    assert_eq!(said.status.code(), Some(3), "{}", stderr(&said));
    let first = String::from_utf8(said.stdout).unwrap();
    assert!(first.lines().next().unwrap().contains("the block store does not work: "), "{first}");

    fs::remove_file(&blocks).unwrap();
    fs::rename(&away, &blocks).unwrap();
    says(&log, &["WARN", "the block store works again"]);
    assert_eq!(status().status.code(), Some(0));
    fs::write(mount.0.join("file"), vec![7; 300_000]).unwrap();
    drop(mount);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_block_store_that_nobody_answers_for_is_said_at_the_start() {
    let data = Data { folder: crate::harness::folder() };
    // No server listens at this address.
    let url = "s3://foo/bar?endpoint=http://127.0.0.1:1&allow_http=true&region=here";
    succeed(&["format", "--data", text(&data.path()), "--blocks", url]);
    let log = data.folder.path().join("log");
    let mut command = pando(&["serve", "--http", "off", "--listen", "127.0.0.1:0", "--data"]);
    command.arg(data.path()).stderr(Stdio::from(File::create(&log).unwrap()));
    command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "key");
    let server = Running::start(command, "serving ");
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.contains("the block store does not work"), "{said}");
    let status = run(&["status", server.address(), "--token", text(&data.admin_token())]);
    assert_eq!(status.status.code(), Some(3), "{}", stderr(&status));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_token_that_ends_is_told_apart_at_the_mount_and_logged_at_the_server() {
    let data = Data::formatted();
    let (server, log) = serve_logged(&data, "warn");
    let mount = Mount::of(&data, &server, &data.token(&["--expires", "3s"]));
    assert!(fs::metadata(mount.0.join("none")).is_err_and(|e| e.raw_os_error() == Some(2)));
    let began = Instant::now();
    while fs::read_dir(&mount.0).is_ok() {
        assert!(began.elapsed() < PATIENCE, "it still works");
        pause(Duration::from_millis(50));
    }
    let error = fs::read_dir(&mount.0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(EKEYEXPIRED), "{error}");
    says(&mount.1, &["ERROR", "token expired"]);
    says(&log, &["WARN", "its token has expired", "mounted at"]);
    // A client with the expired token is refused, and so is one with a token of another file
    // system.
    let ended = data.token(&["--expires", "3s"]);
    let other = Data::formatted();
    pause(Duration::from_secs(3));
    run(&["status", server.address(), "--token", text(&ended)]);
    says(&log, &["WARN", "a client is refused", "token expired"]);
    pause(Duration::from_secs(1));
    run(&["status", server.address(), "--token", text(&other.admin_token())]);
    says(&log, &["WARN", "a client is refused", "of another file system"]);
    drop(mount);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn the_log_at_info_tells_the_life_of_a_server() {
    let data = Data::formatted();
    let (server, log) = serve_logged(&data, "info");
    succeed(&["status", server.address(), "--token", text(&data.admin_token())]);
    assert_eq!(server.stop(), Some(0));
    let said = fs::read_to_string(&log).unwrap();
    let mut lines = said.lines();
    for words in [
        "what was there before the start is read",
        "serving",
        "session opened",
        "session closed",
        "stopping",
        "stopped: all that was answered is on stable storage",
    ] {
        assert!(lines.any(|line| line.contains(words)), "{words} is not there in turn: {said}");
    }
}
