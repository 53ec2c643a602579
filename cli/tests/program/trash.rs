//! Removed, and put back.

use std::{fs, path::Path, process::Command};

use crate::{
    harness::{fail, folder, run, succeed, text},
    mounted::{Mountpoint, up},
};

fn sh(dir: &Path, script: &str) -> String {
    let output = Command::new("sh").arg("-c").arg(script).current_dir(dir).output();
    let output = output.expect("there is a shell");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_tree_that_was_removed_is_put_back_by_its_path() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let data = folder.path().join("data");
    let running = up(&data, &mount);
    let token = data.join("admin.token");
    let restore = |what: &[&str]| {
        let all = ["restore", running.address(), "--token", text(&token)];
        run(&[&all[..], what].concat())
    };
    let none = fail(1, &["restore", running.address(), "--token", text(&token), "--list"]);
    assert!(none.contains("there is no trash"), "{none}");
    succeed(&["set", text(&mount.0), "trash_days=7"]);
    assert!(succeed(&["get", text(&mount.0), "trash_days"]).contains('7'));

    let at = |path: &str| mount.0.join(path);
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::write(at("a/b/file"), "small").unwrap();
    fs::write(at("a/b/c/large"), [b'x'; 200_000]).unwrap();
    std::os::unix::fs::symlink("file", at("a/b/link")).unwrap();
    fs::write(at("other"), "other").unwrap();
    let listing = "find a -printf '%p %i %m %s %T@ %l\\n' | sort; cat a/b/file; cksum <a/b/c/large";
    let before = sh(&mount.0, listing);
    let files = fs::read_dir(&mount.0).unwrap().count();
    fs::remove_dir_all(at("a")).unwrap();
    fs::remove_file(at("other")).unwrap();
    assert_eq!(fs::read_dir(&mount.0).unwrap().count(), files - 2);
    assert!(at(".trash").is_dir());

    let listed = String::from_utf8(restore(&["--list"]).stdout).unwrap();
    for path in ["/a", "/a/b", "/a/b/c", "/a/b/file", "/a/b/link", "/a/b/c/large", "/other"] {
        assert!(listed.lines().any(|line| line.ends_with(&format!("  {path}"))), "{listed}");
    }
    let output = restore(&["/a"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.ends_with("6 restored, 0 left in the trash\n"), "{said}");
    // Times of directories are those of the restoration; all else is as it was.
    let files_of = |text: &str| {
        let is_kept =
            |line: &&str| !["a ", "a/b ", "a/b/c "].iter().any(|dir| line.starts_with(dir));
        text.lines().filter(is_kept).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(files_of(&sh(&mount.0, listing)), files_of(&before));
    let inos = "find a -type d -printf '%p %i %m\\n' | sort";
    assert_eq!(sh(&mount.0, inos).lines().count(), 3);

    // What would replace something stays.
    fs::write(at("other"), "another").unwrap();
    let output = restore(&["/other"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_to_string(at("other")).unwrap(), "another");
    fs::remove_file(at("other")).unwrap();
    assert_eq!(restore(&["/other"]).status.code(), Some(1));
    assert_eq!(fs::read_to_string(at("other")).unwrap(), "another");
    assert_eq!(restore(&["/nothing"]).status.code(), Some(1));
    succeed(&["fsck", running.address(), "--token", text(&token)]);
    assert_eq!(running.stop(), Some(0));
}
