//! A data directory of an earlier on-disk version is served by this program, and by an earlier one
//! no more.
//!
//! `version-1.tar.gz` was made by the last program that wrote version 1: a small file with two
//! names, one in blocks with an extended attribute, a symbolic link, a pipe, a directory and a file
//! that were moved. `version-1.dump.gz` is a dump of two servers by the last program in which all
//! keys began with their shard.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
    process::Command,
};

use crate::{
    harness::{Running, folder, pando, succeed, text},
    mounted::{Mountpoint, dev, up},
};

fn unpack(archive: &str, to: &Path) {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program").join(archive);
    fs::create_dir(to).unwrap();
    let status = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(to).status();
    assert!(status.expect("there is a tar").success());
}

fn version(data: &Path) -> serde_json::Value {
    let about = fs::read_to_string(data.join("pando.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&about).unwrap()["version"].clone()
}

#[test]
fn a_data_directory_of_version_1_is_upgraded_and_loses_nothing() {
    let folder = folder();
    let (data, mount) = (folder.path().join("data"), Mountpoint::new(folder.path()));
    unpack("version-1.tar.gz", &data);
    assert_eq!(version(&data), 1);
    let running = up(&data, &mount);
    assert_eq!(version(&data), 22);
    let at = |path: &str| mount.0.join(path);
    assert_eq!(fs::read(at("a/b/second")).unwrap(), b"hello\n");
    assert_eq!(fs::metadata(at("a/small")).unwrap().nlink(), 2);
    assert_eq!(fs::read(at("a/b/large")).unwrap(), [b'x'; 20_000]);
    let mut note = [0; 16];
    let len = rustix::fs::lgetxattr(at("a/b/large"), "user.note", &mut note[..]).unwrap();
    assert_eq!(&note[..len], b"kept");
    assert_eq!(fs::read_link(at("a/link")).unwrap(), Path::new("../c"));
    assert!(fs::metadata(at("c/pipe")).unwrap().file_type().is_fifo());
    assert!(fs::metadata(at("c/moved")).unwrap().is_dir());
    assert_eq!(fs::read(at("c/x")).unwrap(), b"m\n");
    // Features of version 2 work on records of version 1.
    succeed(&["set", text(&at("a")), "quota.bytes=1M"]);
    fs::write(at("a/new"), b"new").unwrap();
    // The token of before is replaced by one that a server takes.
    let token = data.join("admin.token");
    succeed(&["fsck", running.address(), "--token", text(&token)]);
    assert!(succeed(&["token", "show", text(&token)]).contains("authority  "));
    assert_eq!(running.stop(), Some(0));
}

#[test]
fn directories_of_a_cluster_are_upgraded_to_its_newest_version() {
    let folder = folder();
    let dir = folder.path().join("dev");
    let args = ["dev", "--dir", text(&dir), "--servers", "2", "--listen", "127.0.0.1:0"];
    let serves = || Running::start(pando(&args), "serving ");
    let running = serves();
    assert_eq!(running.stop(), Some(0));
    let servers = [0, 1].map(|server| dir.join(format!("server-{server}")));
    for server in &servers {
        assert_eq!(version(server), 23);
        // The last program that knew only version 4 wrote the file so; older records are read as
        // they are.
        let about = server.join("pando.json");
        let text = fs::read_to_string(&about).unwrap();
        fs::write(&about, text.replace("\"version\": 23", "\"version\": 4")).unwrap();
        assert_eq!(version(server), 4);
    }
    let running = serves();
    for server in &servers {
        assert_eq!(version(server), 23);
    }
    let first = running.said.lines().find(|line| line.starts_with("server 0 at ")).unwrap();
    let address = first.split(" at ").nth(1).unwrap().split(',').next().unwrap();
    succeed(&["fsck", address, "--token", text(&servers[0].join("admin.token"))]);
    assert_eq!(running.stop(), Some(0));
}

/// Checks what the dump has.
fn has_all(root: &Path) {
    let at = |path: &str| root.join(path);
    let read = |path: &str| fs::read_to_string(at(path)).unwrap();
    assert_eq!(read("a/b/second"), "hello\n");
    assert_eq!(fs::metadata(at("a/b/second")).unwrap().nlink(), 1);
    assert_eq!(fs::read(at("a/b/large")).unwrap(), [b'x'; 20_000]);
    let mut note = [0; 16];
    let len = rustix::fs::lgetxattr(at("a/b/large"), "user.note", &mut note[..]).unwrap();
    assert_eq!(&note[..len], b"kept");
    assert_eq!(fs::read_link(at("a/link")).unwrap(), Path::new("../c"));
    let files = ["c/d2/f", "c/d2/g", "a/d3/f", "c/d4/f", "c/d6/f"].map(read);
    assert_eq!(files, ["2\n", "1\n", "3\n", "4\n", "6\n"]);
}

#[test]
fn a_dump_whose_keys_began_with_their_shard_is_loaded_for_one_server_and_for_several() {
    let folder = folder();
    let file = folder.path().join("dump");
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program/version-1.dump.gz");
    let unpacked = Command::new("gzip").arg("-cd").arg(packed).output().expect("there is a gzip");
    fs::write(&file, unpacked.stdout).unwrap();
    for servers in ["1", "3"] {
        let of = folder.path().join(servers);
        fs::create_dir(&of).unwrap();
        let (dir, mount) = (of.join("data"), Mountpoint::new(&of));
        succeed(&["load", "--data", text(&dir), "--servers", servers, text(&file)]);
        let (running, addresses) = if servers == "1" {
            let running = up(&dir, &mount);
            let address = running.address().to_owned();
            (running, address)
        } else {
            dev(&dir, servers, &mount)
        };
        has_all(&mount.0);
        let token = dir.join("admin.token");
        succeed(&["fsck", &addresses, "--token", text(&token)]);
        fs::write(mount.0.join("c/new"), b"new").unwrap();
        fs::rename(mount.0.join("a"), mount.0.join("c/a")).unwrap();
        succeed(&["fsck", &addresses, "--token", text(&token)]);
        assert_eq!(running.stop(), Some(0));
    }
}
