//! Starting again after a command that was interrupted or refused.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    cluster::{Forming, join},
    harness::{Data, fail, folder, pando, pause, run, stderr, succeed, text},
};

/// Starts `pando load`, and kills it when it has begun and read a part of the dump.
fn interrupted_load(dump: &Path, data: &Path) {
    let mut load = pando(&["load", "--data", text(data), "-"]);
    let mut load: Child = load.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let dump = fs::read(dump).unwrap();
    load.stdin.as_mut().unwrap().write_all(&dump[..dump.len() - 20]).unwrap();
    let began = Instant::now();
    while !data.join("meta").exists() {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not begin");
        pause(Duration::from_millis(10));
    }
    load.kill().unwrap();
    load.wait().unwrap();
}

#[test]
fn after_an_interrupted_load_each_command_says_so_and_load_begins_anew() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let (token, dump) = (data.admin_token(), data.folder.path().join("dump"));
    succeed(&["dump", server.address(), text(&dump), "--token", text(&token)]);
    assert_eq!(server.stop(), Some(0));

    let folder = folder();
    let loaded = folder.path().join("loaded");
    interrupted_load(&dump, &loaded);
    let path = text(&loaded);
    let wanted =
        format!("a load in {path} was interrupted: run `pando load` again, or remove {path}");
    let mountpoint = folder.path().join("mnt");
    for command in [
        &["serve", "--data", path, "--listen", "127.0.0.1:0"][..],
        &["format", "--data", path],
        &["token", "create", "--data", path],
        &["up", "--data", path, "--mount", text(&mountpoint)],
    ] {
        let said = fail(1, command);
        assert!(said.contains(&wanted), "{command:?}: {said}");
    }
    let output = run(&["load", "--data", path, text(&dump)]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("removing what an interrupted load left"), "{said}");
    let loaded = Data { folder: tempfile::TempDir::with_prefix("pando-cli.").unwrap() };
    fs::rename(path, loaded.path()).unwrap();
    assert_eq!(loaded.serve(&[]).stop(), Some(0));
}

#[test]
fn a_load_that_is_still_running_is_not_called_interrupted() {
    let folder = folder();
    let data = folder.path().join("data");
    let formatted = Data::formatted();
    let server = formatted.serve(&[]);
    let (token, dump) = (formatted.admin_token(), folder.path().join("dump"));
    succeed(&["dump", server.address(), text(&dump), "--token", text(&token)]);
    let mut load = pando(&["load", "--data", text(&data), "-"]);
    let mut load = load.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let dump = fs::read(&dump).unwrap();
    load.stdin.as_mut().unwrap().write_all(&dump[..dump.len() - 20]).unwrap();
    let began = Instant::now();
    while !data.join("meta").exists() {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not begin");
        pause(Duration::from_millis(10));
    }
    let said = fail(1, &["serve", "--data", text(&data), "--listen", "127.0.0.1:0"]);
    assert!(said.contains("is in use by another pando process"), "{said}");
    load.stdin.as_mut().unwrap().write_all(&dump[dump.len() - 20..]).unwrap();
    drop(load.stdin.take());
    assert!(load.wait().unwrap().success());
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_join_that_is_refused_leaves_nothing_behind() {
    let forming = Forming::of("2");
    let second = forming.join("second");
    let folder = folder();
    let full = "all of the 2 servers";
    // A directory that was missing is missing again.
    let missing = folder.path().join("missing");
    let said = fail(1, &join(&missing, &forming.address, &forming.token));
    assert!(said.contains(full) && !missing.exists(), "{said}");
    // One that was empty is empty again.
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let said = fail(1, &join(&empty, &forming.address, &forming.token));
    assert!(said.contains(full), "{said}");
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
    // The same, where the token is refused.
    let other = Data::formatted();
    let said = fail(1, &join(&empty, &forming.address, &other.admin_token()));
    assert!(said.contains("token of another file system"), "{said}");
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
    // A number that was drawn for another coordinator stays: its answer is not known.
    let output = run(&join(&empty, "127.0.0.1:1", &forming.token));
    assert!(!output.status.success());
    let member = fs::read(empty.join("member")).unwrap();
    let said = fail(1, &join(&empty, &forming.address, &forming.token));
    assert!(said.contains(full), "{said}");
    assert_eq!(fs::read(empty.join("member")).unwrap(), member);
    let path = text(&empty);
    let said = fail(1, &["format", "--data", path]);
    let wanted = format!(
        "a join in {path} was interrupted: run `pando serve --join` again, or remove {path}"
    );
    assert!(said.contains(&wanted), "{said}");
    assert_eq!(second.stop(), Some(0));
}
