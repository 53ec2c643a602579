//! A file system whose contents are stored compressed.

use std::{fs, path::Path};

use crate::{
    harness::{folder, run, succeed, text},
    mounted::{Mountpoint, up},
};

/// Disk space of the files below a directory.
fn bytes_below(top: &Path) -> u64 {
    let entries = fs::read_dir(top).unwrap().map(|entry| entry.unwrap());
    let of = |entry: fs::DirEntry| {
        let about = entry.metadata().unwrap();
        if about.is_dir() { bytes_below(&entry.path()) } else { about.len() }
    };
    entries.map(of).sum()
}

#[test]
fn contents_are_stored_compressed_and_read_as_they_were() {
    for how in ["lz4", "zstd"] {
        let folder = folder();
        let mount = Mountpoint::new(folder.path());
        let data = folder.path().join("data");
        succeed(&["format", "--data", text(&data), "--compression", how]);
        let running = up(&data, &mount);
        let prose = "all work and no play makes a dull file\n".repeat(100_000);
        let at = |name: &str| mount.0.join(name);
        fs::write(at("prose"), &prose).unwrap();
        fs::File::open(at("prose")).unwrap().sync_all().unwrap();
        assert!(bytes_below(&data.join("blocks")) < 1_000_000);
        assert!(succeed(&["get", text(&mount.0), "compression"]).contains(how));
        let token = data.join("admin.token");
        let status = succeed(&["status", running.address(), "--token", text(&token)]);
        assert!(status.contains(&format!("compressed={how}")), "{status}");
        assert_eq!(running.stop(), Some(0));

        let running = up(&data, &mount);
        assert_eq!(fs::read_to_string(at("prose")).unwrap(), prose);
        succeed(&["fsck", running.address(), "--token", text(&token)]);
        fs::remove_file(at("prose")).unwrap();
        assert_eq!(running.stop(), Some(0));
    }
    let folder = folder();
    let data = folder.path().join("data");
    let refused = run(&["format", "--data", text(&data), "--compression", "gzip"]);
    assert_eq!(refused.status.code(), Some(2));
}
