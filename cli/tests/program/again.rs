//! Starting again: what a data directory keeps of the last start, and what is left of a command
//! that was interrupted or refused.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use crate::{
    cluster::{FREE, Forming, formatted, join, until_sound},
    harness::{Data, Running, fail, folder, pando, pause, run, stderr, succeed, text},
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
    let forming = Forming::with(&["--servers", "2", "--shards", "2"]);
    let second = forming.join("second");
    forming.until_sound();
    let folder = folder();
    let full = "there are as many as shards";
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

/// Starts a server with `--data` alone.
fn serve_again(data: &Path) -> Running {
    Running::start(pando(&["serve", "--data", text(data)]), "serving ")
}

#[test]
fn the_addresses_of_the_last_start_are_kept() {
    let data = Data::formatted();
    let path = data.path();
    let kept = || -> Value {
        serde_json::from_slice(&fs::read(path.join("serve.json")).unwrap()).unwrap()
    };
    // Any address but that of the default.
    let first = data.serve(&["--listen", "127.0.0.2:0", "--http", "127.0.0.2:0"]);
    let (address, page) = (first.address().to_owned(), first.http().to_owned());
    assert_eq!(first.stop(), Some(0));
    let fixed = data.serve(&["--listen", &address, "--http", &page]);
    assert_eq!(fixed.stop(), Some(0));
    let again = serve_again(&path);
    assert_eq!((again.address(), again.http()), (&address[..], &page[..]));
    // The address is taken: the error says where it comes from.
    let taken = Data::formatted();
    fs::copy(path.join("serve.json"), taken.path().join("serve.json")).unwrap();
    let said = fail(1, &["serve", "--data", text(&taken.path())]);
    let wanted = format!(
        "cannot listen on {address}, the address of the last start (--listen and --http name others)"
    );
    assert!(said.contains(&wanted), "{said}");
    assert_eq!(again.stop(), Some(0));
    // A start that fails changes nothing, and one that serves keeps what it is told.
    let before = kept();
    let said = fail(1, &["serve", "--data", text(&path), "--listen", "203.0.113.1:1"]);
    assert!(said.contains("cannot listen on"), "{said}");
    assert_eq!(kept(), before);
    let open = data.serve(&["--listen", "0.0.0.0:0", "--http", "off", "--insecure"]);
    assert_eq!(open.stop(), Some(0));
    assert_eq!(kept()["listen"], serde_json::json!({"address": "0.0.0.0:0", "insecure": true}));
    let open = serve_again(&path);
    assert!(open.address().starts_with("0.0.0.0:") && !open.said.contains("page"), "{}", open.said);
    assert_eq!(open.stop(), Some(0));
    // Consent is for the address that it was given with, and so is its opposite.
    let tls = Running::start(pando(&["serve", "--data", text(&path), "--tls"]), "serving ");
    assert_eq!(tls.stop(), Some(0));
    assert_eq!(kept()["listen"]["insecure"], false);
    assert_eq!(kept()["tls"], true);
    let tls = data.serve(&["--listen", "0.0.0.0:0"]);
    assert!(tls.said.contains("status page https://"), "the same address again: {}", tls.said);
    assert_eq!(tls.stop(), Some(0));
    assert_eq!(data.serve(&["--listen", "127.0.0.2:0"]).stop(), Some(0));
    assert_eq!(kept().get("tls"), None);
    // A file that cannot be read is named, with the remedy.
    fs::write(path.join("serve.json"), "{").unwrap();
    let said = fail(1, &["serve", "--data", text(&path)]);
    assert!(
        said.contains("serve.json; remove it, and give --listen, --http and the other options"),
        "{said}"
    );
}

#[test]
fn the_coordinator_is_known_by_its_directory() {
    let data = formatted("2");
    let path = data.path();
    let serve = ["serve", "--data", text(&path), "--cluster-lease", "500ms"];
    let coordinator = Running::start(pando(&[&serve[..], &FREE].concat()), "serving ");
    let token = data.admin_token();
    let status = run(&["status", coordinator.address(), "--token", text(&token), "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["role"], "coordinator");
    let second = data.folder.path().join("second");
    let joined = pando(&join(&second, coordinator.address(), &token));
    let joined = Running::start(joined, "serving ");
    let address = coordinator.address().to_owned();
    assert_eq!((joined.stop(), coordinator.stop()), (Some(0), Some(0)));
    assert_eq!(data.serve(&["--listen", &address, "--http", "off"]).stop(), Some(0));
    // Both come back with the directory alone.
    let (coordinator, member) = (serve_again(&path), serve_again(&second));
    until_sound(&address, &token);
    let status = run(&["status", &address, "--token", text(&token), "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let left = status["lease_ms"].as_u64().unwrap();
    assert!((1..=500).contains(&left), "the lease is what it was at the first start: {left} ms");
    assert_eq!((member.stop(), coordinator.stop()), (Some(0), Some(0)));
    // An option that contradicts the directory is refused.
    let said = fail(2, &["serve", "--data", text(&second), "--coordinator"]);
    assert!(said.contains("that of server 1 of a cluster, and not of its coordinator"), "{said}");
}
