//! `pando fsck --repair` on a server whose data directory lost something.

use std::{fs, path::Path};

use crate::{
    harness::{folder, run, text},
    mounted::{Mountpoint, up},
};

/// The files below a directory.
fn files(top: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(top).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn a_lost_block_is_named_and_given_up_only_when_that_is_said() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let data = folder.path().join("data");
    let running = up(&data, &mount);
    let file = mount.0.join("file");
    fs::write(&file, [b'x'; 200_000]).unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let token = data.join("admin.token");
    let fsck = |options: &[&str]| {
        let all = ["fsck", running.address(), "--token", text(&token)];
        let output = run(&[&all[..], options].concat());
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(fsck(&["--repair"]).0, Some(0));
    for block in files(&data.join("blocks")) {
        fs::remove_file(block).unwrap();
    }
    for options in [&[][..], &["--repair"]] {
        let (code, said) = fsck(options);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("wrong: /file: chunk 0 of inode "), "{said}");
        assert!(said.contains("is missing"), "{said}");
    }
    let (code, said) = fsck(&["--repair", "--discard-lost"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("repaired: ") && said.ends_with("all of it is repaired\n"), "{said}");
    let (code, said) = fsck(&["--repair", "--discard-lost"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.ends_with("nothing is wrong\n"), "{said}");
    let output = run(&["fsck", running.address(), "--token", "/nonexistent"]);
    assert_eq!(output.status.code(), Some(8));
}

#[test]
fn all_files_that_have_lost_contents_are_named_when_that_is_asked() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let data = folder.path().join("data");
    let running = up(&data, &mount);
    let dir = mount.0.join("dir");
    fs::create_dir(&dir).unwrap();
    for file in 0..1100 {
        fs::write(dir.join(format!("file{file}")), [b'x'; 20_000]).unwrap();
    }
    fs::File::open(&dir).unwrap().sync_all().unwrap();
    rustix::fs::sync();
    let token = data.join("admin.token");
    let fsck = |options: &[&str]| {
        let all = ["fsck", running.address(), "--token", text(&token)];
        let output = run(&[&all[..], options].concat());
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stdout).unwrap()
    };
    for block in files(&data.join("blocks")) {
        fs::remove_file(block).unwrap();
    }
    let said = fsck(&[]);
    assert!(said.contains("wrong: and 100 more that are not listed"), "{said}");
    let said = fsck(&["--all"]);
    for file in 0..1100 {
        assert!(said.contains(&format!("wrong: /dir/file{file}: chunk 0 of inode ")), "{file}");
    }
    assert!(!said.contains("not listed"), "{said}");
}
