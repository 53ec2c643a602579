//! `pando format`, and what it leaves.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::harness::{Data, fail, folder, run, stderr, succeed, text};

#[test]
fn secrets_are_readable_by_their_owner_only() {
    let data = Data::formatted();
    let mode = |name: &str| {
        let metadata = fs::metadata(data.path().join(name)).expect("format makes it");
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(mode(""), 0o700);
    assert_eq!(mode("signing.key"), 0o600);
    assert_eq!(mode("admin.token"), 0o600);
    assert_eq!(fs::read(data.path().join("signing.key")).unwrap().len(), 32);
}

#[test]
fn a_second_format_is_refused_and_changes_nothing() {
    let data = Data::formatted();
    let files = ["pando.json", "signing.key", "admin.token"].map(|name| data.path().join(name));
    let read = || files.each_ref().map(|file| fs::read(file).unwrap());
    let before = read();
    let said = fail(1, &["format", "--data", text(&data.path())]);
    assert!(said.contains("holds a file system already"), "{said}");
    assert_eq!(read(), before);
}

#[test]
fn a_size_is_taken_with_a_unit() {
    let folder = folder();
    let data = folder.path().join("data");
    let format = ["format", "--data", text(&data), "--inline-max"];
    let refused = run(&[&format[..], &["65K"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("must be 0 to 65536 bytes"), "{}", stderr(&refused));
    succeed(&[&format[..], &["1K"]].concat());
    let data = Data { folder };
    let server = data.serve(&[]);
    let token = data.admin_token();
    let shown = succeed(&["get", server.address(), "inline_max", "--token", text(&token)]);
    assert_eq!(shown, "inline_max  1024\n");
}

#[test]
fn a_directory_with_other_things_is_refused() {
    let folder = folder();
    fs::write(folder.path().join("thesis.txt"), "precious").unwrap();
    let said = fail(1, &["format", "--data", text(folder.path())]);
    assert!(said.contains("is not empty: it holds thesis.txt"), "{said}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_format_that_was_interrupted_is_begun_anew() {
    let data = Data::formatted();
    // The state is that of just before the last step.
    fs::rename(data.path().join("pando.json"), data.path().join("formatting")).unwrap();
    let key = fs::read(data.path().join("signing.key")).unwrap();
    let said = fail(1, &["serve", "--data", text(&data.path()), "--listen", "127.0.0.1:0"]);
    let path = data.path();
    let path = text(&path);
    let wanted =
        format!("making a file system in {path} was interrupted: make it again, or remove {path}");
    assert!(said.contains(&wanted), "{said}");
    succeed(&["format", "--data", text(&data.path())]);
    assert_ne!(fs::read(data.path().join("signing.key")).unwrap(), key);
    assert!(data.serve(&[]).stop() == Some(0));
}

#[test]
fn a_newer_on_disk_version_is_refused() {
    let data = Data::formatted();
    let about = data.path().join("pando.json");
    let other = fs::read_to_string(&about).unwrap().replace("\"version\": 22", "\"version\": 24");
    fs::write(&about, other).unwrap();
    let said = fail(1, &["serve", "--data", text(&data.path()), "--listen", "127.0.0.1:0"]);
    assert!(said.contains("on-disk version 24, this program knows 1 to 23"), "{said}");
}

#[test]
fn blocks_go_where_they_are_told_to() {
    let folder = folder();
    let (data, blocks) = (folder.path().join("data"), folder.path().join("elsewhere"));
    succeed(&["format", "--data", text(&data), "--blocks", text(&blocks), "--shards", "1"]);
    assert!(blocks.is_dir() && !data.join("blocks").exists());
    let said = fail(2, &["format", "--data", text(&data), "--blocks", "ftp://host"]);
    assert!(said.contains("neither a directory"), "{said}");
}
