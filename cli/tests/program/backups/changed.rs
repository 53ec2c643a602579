//! Backups whose place, key or history is not the one that it was, and files that are not there.

use std::{fs, path::Path, time::Duration};

use super::{
    as_admin, make_tree, newest, objects, start, status, until, until_current, until_failing,
};
use crate::harness::{Data, Running, folder, pause, run, stderr, succeed, text};

/// Waits until the backup fails for a reason.
fn until_it_fails(server: &Running, data: &Path, reason: &str) {
    until(server, data, reason, |code, status| {
        let problem = status["problems"][0].as_str().unwrap_or_default();
        code == 3 && problem.contains("the backup to") && problem.contains(reason)
    });
}

fn with_shared_blocks() -> (Data, std::path::PathBuf) {
    let data = Data { folder: folder() };
    let blocks = data.folder.path().join("contents");
    succeed(&["format", "--data", text(&data.path()), "--blocks", text(&blocks)]);
    (data, blocks)
}

/// Writes a large file, and removes it when a base names its blocks.
fn write_and_remove(server: &Running, data: &Path) {
    let contents = vec![7; 300_000];
    as_admin(server, data, async |client| client.write("/big", &contents).await.unwrap());
    until_current(server, data);
    as_admin(server, data, async |client| client.unlink("/big").await.unwrap());
}

#[test]
fn a_place_that_is_not_mounted_is_missed_and_the_server_serves() {
    let data = Data::formatted();
    let mount = data.folder.path().join("mount");
    let (place, away) = (mount.join("backups"), data.folder.path().join("away"));
    let server = start(&data.path(), &["--backup", text(&place), "--backup-every", "1s"]);
    until_current(&server, &data.path());
    assert_eq!(server.stop(), Some(0));

    fs::rename(&mount, &away).unwrap();
    let server = start(&data.path(), &[]);
    make_tree(&server, &data.path(), 0);
    until_it_fails(&server, &data.path(), "is it mounted?");
    assert!(!mount.exists());
    // The directory that is seen where nothing is mounted.
    fs::create_dir_all(&place).unwrap();
    until_it_fails(&server, &data.path(), "none of the bases of this data directory");
    assert!(objects(&mount).is_empty());
    fs::remove_dir_all(&mount).unwrap();
    fs::rename(&away, &mount).unwrap();
    until_current(&server, &data.path());
    assert_eq!(server.stop(), Some(0));

    // Files that cannot be read are told, too.
    for (file, reason) in [("backup.key", "holds no backup key"), ("backup.json", "remove it")] {
        let file = data.path().join(file);
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, "junk").unwrap();
        let server = start(&data.path(), &[]);
        until_it_fails(&server, &data.path(), reason);
        fs::write(&file, bytes).unwrap();
        until_current(&server, &data.path());
        assert_eq!(server.stop(), Some(0));
    }
}

#[test]
fn contents_that_bases_of_another_place_name_stay_after_the_change() {
    let (data, blocks) = with_shared_blocks();
    let [first, second] = ["first", "second"].map(|name| data.folder.path().join(name));
    let server = start(&data.path(), &["--backup", text(&first), "--backup-every", "1s"]);
    write_and_remove(&server, &data.path());
    until_current(&server, &data.path());
    assert_eq!(server.stop(), Some(0));
    let stored = objects(&blocks).len();
    assert!(stored > 0);

    let server = start(&data.path(), &["--backup", text(&second)]);
    until_current(&server, &data.path());
    make_tree(&server, &data.path(), 0);
    until_current(&server, &data.path());
    assert_eq!(objects(&blocks).len(), stored);
    assert_eq!(server.stop(), Some(0));
    // A new key begins a new history at the same address.
    fs::remove_file(data.path().join("backup.key")).unwrap();
    let server = start(&data.path(), &[]);
    until_current(&server, &data.path());
    assert_eq!(objects(&blocks).len(), stored);
    assert_eq!(server.stop(), Some(0));
    // A directory that has lost its note knows the numbers by the marks of blocks.
    fs::remove_file(data.path().join("backup.json")).unwrap();
    let server = start(&data.path(), &[]);
    until_current(&server, &data.path());
    assert_eq!(objects(&blocks).len(), stored);
    assert_eq!(server.stop(), Some(0));

    let server = start(&data.path(), &["--backup-keep", "0s"]);
    for round in 0.. {
        if objects(&blocks).is_empty() {
            break;
        }
        assert!(round < 20, "they are never deleted");
        make_tree(&server, &data.path(), 1 + round);
        until_current(&server, &data.path());
    }
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn contents_of_expired_bases_go_where_nothing_changes() {
    let (data, blocks) = with_shared_blocks();
    let place = data.folder.path().join("store");
    let options = ["--backup", text(&place), "--backup-every", "1s", "--backup-keep", "0s"];
    let server = start(&data.path(), &options);
    write_and_remove(&server, &data.path());
    // No client connects from now on.
    for _ in 0..600 {
        if objects(&blocks).is_empty() {
            break;
        }
        pause(Duration::from_millis(50));
    }
    assert!(objects(&blocks).is_empty(), "they are never deleted");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_directory_without_its_token_is_backed_up_and_restored() {
    let data = Data::formatted();
    let (place, to) = (data.folder.path().join("store"), data.folder.path().join("to"));
    fs::rename(data.admin_token(), data.folder.path().join("token")).unwrap();
    succeed(&["backup", "now", "--data", text(&data.path()), "--to", text(&place)]);
    let key = data.path().join("backup.key");
    let restore = ["backup", "restore", "--from", text(&place), "--key", text(&key)];
    succeed(&[&restore[..], &["--data", text(&to)]].concat());
    assert!(!to.join("admin.token").exists());
    fs::rename(data.folder.path().join("token"), to.join("admin.token")).unwrap();
    let server = start(&to, &[]);
    assert_eq!(status(&server, &to).0, 0);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_copy_that_a_crash_has_left_goes_at_the_next_start() {
    let data = Data::formatted();
    let copy = data.path().join("backup-copy");
    fs::create_dir(&copy).unwrap();
    fs::write(copy.join("000001.sst"), "a table").unwrap();
    let server = start(&data.path(), &[]);
    assert!(!copy.exists());
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_base_elsewhere_leaves_the_history_of_the_server_as_it_is() {
    let data = Data::formatted();
    let [first, second] = ["first", "second"].map(|name| data.folder.path().join(name));
    let server = start(&data.path(), &["--backup", text(&first), "--backup-every", "1s"]);
    until_current(&server, &data.path());
    assert_eq!(server.stop(), Some(0));
    let path = data.path();
    let now = ["backup", "now", "--data", text(&path), "--to", text(&second)];
    let (one, two) = (succeed(&now), succeed(&now));
    assert!(one.contains("made base") && two.contains("made base"), "{one} {two}");
    let server = start(&data.path(), &[]);
    until_current(&server, &data.path());
    assert!(newest(&status(&server, &data.path()).1) > 2);
    let key = data.path().join("backup.key");
    for place in [&first, &second] {
        let check = run(&["backup", "check", "--from", text(place), "--key", text(&key)]);
        assert!(check.status.success(), "{}", stderr(&check));
    }
    fs::rename(&first, data.folder.path().join("away")).unwrap();
    until_failing(&server, &data.path());
    assert_eq!(server.stop(), Some(0));
}
