//! Removed, and put back.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use serde_json::Value;

use crate::{
    harness::{Running, fail, folder, pando, pause, run, stderr, succeed, text},
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
    removes_and_puts_back(&mount, running.address(), &data.join("admin.token"));
    assert_eq!(running.stop(), Some(0));
}

#[test]
fn so_is_one_of_several_servers() {
    let folder = folder();
    let (dir, mount) = (folder.path().join("dev"), Mountpoint::new(folder.path()));
    let mut command = pando(&["dev", "--servers", "3", "--listen", "127.0.0.1:0", "--dir"]);
    command.arg(&dir).arg("--mount").arg(&mount.0);
    let running = Running::start(command, "serving ");
    let ready = running.said.lines().last().unwrap();
    let address = ready.split_whitespace().nth(4).unwrap();
    removes_and_puts_back(&mount, address, &dir.join("admin.token"));
    assert_eq!(running.stop(), Some(0));
}

fn removes_and_puts_back(mount: &Mountpoint, address: &str, token: &Path) {
    let restore = |what: &[&str]| {
        let all = ["restore", address, "--token", text(token)];
        run(&[&all[..], what].concat())
    };
    let none = fail(1, &["restore", address, "--token", text(token), "--list"]);
    assert!(
        none.contains("there is no trash: `pando set HOST:PORT trash_days=N` keeps one"),
        "{none}"
    );
    // The mount need not be the administrator's.
    succeed(&["set", address, "trash_days=7", "--token", text(token)]);
    assert!(succeed(&["get", text(&mount.0), "trash_days"]).contains('7'));
    until_all_keep(mount, &restore);

    let at = |path: &str| mount.0.join(path);
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::write(at("a/b/file"), "small").unwrap();
    fs::write(at("a/b/c/large"), [b'x'; 200_000]).unwrap();
    std::os::unix::fs::symlink("file", at("a/b/link")).unwrap();
    fs::write(at("other"), "other").unwrap();
    let listing = "find a -printf '%p %i %m %s %T@ %l\\n' | sort; cat a/b/file; cksum <a/b/c/large";
    let before = sh(&mount.0, listing);
    let files = fs::read_dir(&mount.0).unwrap().count();
    sync(&mount.0);
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

    // An entry that would replace something stays in the trash.
    fs::write(at("other"), "another").unwrap();
    let output = restore(&["/other"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_to_string(at("other")).unwrap(), "another");
    fs::remove_file(at("other")).unwrap();
    assert_eq!(restore(&["/other"]).status.code(), Some(1));
    assert_eq!(fs::read_to_string(at("other")).unwrap(), "another");
    assert_eq!(restore(&["/nothing"]).status.code(), Some(1));
    chooses_among_versions(mount, &restore);
    succeed(&["fsck", address, "--token", text(token)]);
    ends_the_trash_when_that_is_said(address, token);
}

/// Waits until the server knows everything that was done on the mount, and it is stable.
fn sync(path: &Path) {
    fs::File::open(path).unwrap().sync_all().unwrap();
}

/// Any of three versions of a file can be restored.
fn chooses_among_versions(mount: &Mountpoint, restore: &dyn Fn(&[&str]) -> Output) {
    let file = mount.0.join("versions");
    for (version, bytes) in [("one", 1000), ("two", 2100), ("three", 3000)] {
        fs::write(&file, version.repeat(bytes / version.len() + 1)).unwrap();
        std::os::unix::fs::chown(&file, Some(1234), Some(5678)).unwrap();
        sync(&file);
        fs::remove_file(&file).unwrap();
        // Each is removed in another second.
        pause(Duration::from_millis(1100));
    }
    let json = |args: &[&str]| -> Value {
        let output = restore(&[args, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    let listed = json(&["--list", "/versions"]);
    let removed: Vec<_> =
        listed.as_array().unwrap().iter().map(|row| row["removed"].as_str().unwrap()).collect();
    assert!(removed.len() == 3 && removed.is_sorted(), "{listed:#}");
    assert_eq!((&listed[1]["uid"], &listed[1]["gid"]), (&1234.into(), &5678.into()));
    let said = String::from_utf8(restore(&["--list", "/versions"]).stdout).unwrap();
    assert!(said.contains("REMOVED ") && said.contains("1234:5678"), "{said}");
    assert!(removed.iter().all(|time| said.contains(time)) && said.contains("2.0 KiB"), "{said}");

    let second = &removed[1][..19];
    let output = restore(&["--at", second, "/versions", "--quiet"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "1 restored, 0 left in the trash\n");
    assert!(fs::read_to_string(&file).unwrap().starts_with("two"));
    assert_eq!(restore(&["--at", second, "/versions"]).status.code(), Some(1));
    fs::remove_file(&file).unwrap();
    let came = json(&["/versions"]);
    assert_eq!(came["restored"], serde_json::json!(["/versions"]));
    assert_eq!(came["left"].as_array().unwrap().len(), 2, "{came:#}");
    assert_eq!(came["left"][0]["reason"], "the path is taken");
    assert!(fs::read_to_string(&file).unwrap().starts_with("two"), "it was removed last");
    assert_eq!(restore(&["--at", "yesterday", "/versions"]).status.code(), Some(2));
}

fn ends_the_trash_when_that_is_said(address: &str, token: &Path) {
    let set = |args: &[&str]| {
        let all = ["set", address, "trash_days=0", "--token", text(token)];
        run(&[&all[..], args].concat())
    };
    let refused = set(&[]);
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said.contains(
            "entries of the trash will be deleted for good within two hours; --yes confirms"
        ),
        "{said}"
    );
    let days = succeed(&["get", address, "trash_days", "--token", text(token)]);
    assert!(days.contains('7'), "{days}");
    let done = set(&["--yes"]);
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(
        done.status.success() && said.contains("will be deleted for good within two hours"),
        "{said}"
    );
}

/// Other servers have the setting with their next lease.
fn until_all_keep(mount: &Mountpoint, restore: &dyn Fn(&[&str]) -> Output) {
    for round in 0..300 {
        let probes = mount.0.join(format!("probes{round}"));
        for probe in 0..16 {
            let dir = probes.join(probe.to_string());
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("probe"), "x").unwrap();
        }
        // A name that a mount makes and removes before it tells the server is not kept.
        sync(&probes);
        fs::remove_dir_all(&probes).unwrap();
        let listed = String::from_utf8(restore(&["--list"]).stdout).unwrap();
        let probe =
            |line: &&str| line.contains(&format!("/probes{round}/")) && line.ends_with("probe");
        if listed.lines().filter(probe).count() == 16 {
            return;
        }
        pause(Duration::from_millis(100));
    }
    panic!("some servers keep nothing");
}
