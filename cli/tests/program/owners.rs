//! Quotas of users and groups, as a mount shows them, and `pando quota`.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
    process::{Command, Output},
};

use crate::{
    harness::{fail, folder, run, stderr, succeed, text, unmount},
    mounted::{Mountpoint, dev, up},
};

const USER: u32 = 12_345;
const GROUP: u32 = 12_346;

/// Runs a script as the user, in a directory.
fn as_user(dir: &Path, script: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).uid(USER).gid(GROUP).current_dir(dir);
    shell.output().expect("there is a shell")
}

fn lines(address: &str, token: &Path, args: &[&str]) -> Vec<serde_json::Value> {
    let mut all = vec!["quota", address, "--token", text(token), "--json"];
    all.extend(args);
    serde_json::from_str(&succeed(&all)).unwrap()
}

fn line<'a>(lines: &'a [serde_json::Value], kind: &str, id: u32) -> &'a serde_json::Value {
    let found = lines.iter().find(|line| line["kind"] == kind && line["id"] == id);
    found.unwrap_or_else(|| panic!("no {kind} {id} in {lines:?}"))
}

/// A directory of the user on a mount that others may use.
fn home(folder: &Path, mount: &Mountpoint) -> std::path::PathBuf {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let home = mount.0.join("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(USER), Some(GROUP)).unwrap();
    home
}

#[test]
fn what_users_and_groups_use_is_listed_and_limited() {
    let folder = folder();
    let (data, mount) = (folder.path().join("data"), Mountpoint::new(folder.path()));
    let running = up(&data, &mount);
    let (address, token) = (running.address().to_owned(), data.join("admin.token"));
    let home = home(folder.path(), &mount);
    let made = as_user(&home, "mkdir a && head -c 100000 /dev/zero > a/large && echo x > a/small");
    assert!(made.status.success(), "{}", stderr(&made));
    succeed(&["set", text(&home), "quota.bytes=1G"]);
    let told = lines(&address, &token, &[]);
    let user = line(&told, "user", USER);
    assert_eq!((&user["entries"], &user["bytes"]), (&4.into(), &100_002.into()));
    assert_eq!(line(&told, "group", GROUP)["entries"], 4);
    assert!(told.iter().any(|line| line["kind"] == "directory" && line["name"] == "/home"));
    // The superuser makes room for one more, and the user finds that out.
    let entries = format!("quota.user.{USER}.entries=5");
    succeed(&["set", &address, "--token", text(&token), &entries]);
    let made = as_user(&home, "touch one; touch two; mv one three && touch two");
    let said = stderr(&made);
    assert_eq!(said.matches("Disk quota exceeded").count(), 2, "{said}");
    let bytes = format!("quota.group.{GROUP}.bytes=150K");
    succeed(&["set", &address, "--token", text(&token), &bytes]);
    let made = as_user(&home, "head -c 100000 /dev/zero | dd of=three conv=fsync bs=100000");
    assert!(stderr(&made).contains("Disk quota exceeded"), "{}", stderr(&made));
    let near = lines(&address, &token, &["--over", "60", "--users", "--groups"]);
    assert_eq!(near.len(), 2, "{near:?}");
    assert_eq!(near[0]["entries_max"], 5);
    let shown = succeed(&["quota", &address, "--token", text(&token), "--users"]);
    assert!(shown.starts_with("KIND") && shown.contains("root"), "{shown}");
    // The user sees what is his, and no more.
    let own = folder.path().join("own.token");
    let bound = ["token", "create", "--data", text(&data), "--uid", "12345", "--gid", "12346"];
    fs::write(&own, succeed(&bound)).unwrap();
    let kinds: Vec<_> = lines(&address, &own, &[]).iter().map(|line| line["id"].clone()).collect();
    assert_eq!(kinds, [USER, GROUP]);
    // Wrong settings are refused in words.
    let set = |what: &str| fail(1, &["set", &address, "--token", text(&token), what]);
    assert!(set("quota.user.root.bytes=1G").contains("the superuser and group 0 have no limits"));
    assert!(set("quota.user.no-such-user.bytes=1G").contains("knows no user no-such-user"));
    assert!(set("quota.user.12345.bytes=1X").contains("X is not a unit"));
    let on_directory = fail(1, &["set", text(&home), "quota.user.12345.bytes=1G"]);
    assert!(on_directory.contains("set it on the root"), "{on_directory}");
    let none = format!("quota.user.{USER}.entries=none");
    succeed(&["set", &address, "--token", text(&token), &none]);
    assert!(as_user(&home, "touch two four five").status.success());
    assert!(run(&["fsck", &address, "--token", text(&token)]).status.success());
    assert_eq!(running.stop(), Some(0));
}

#[test]
fn a_users_limit_holds_on_all_servers_together() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let (running, address) = dev(&folder.path().join("dev"), "3", &mount);
    let token = folder.path().join("dev/admin.token");
    // Only root may use the mount of `dev`.
    let others = folder.path().join("others");
    fs::create_dir(&others).unwrap();
    let others = Mountpoint::new(&others);
    let letting_in = ["-o", "allow_other", "--token", text(&token)];
    succeed(&[&["mount", &address, text(&others.0)], &letting_in[..]].concat());
    let home = home(folder.path(), &others);
    let limit = format!("quota.user.{USER}.entries=101");
    succeed(&["set", &address, "--token", text(&token), &limit]);
    let makers =
        "for m in 0 1 2 3; do (for n in $(seq 60); do mkdir $m-$n || exit; done) & done; wait";
    let made = as_user(&home, makers);
    assert!(stderr(&made).contains("Disk quota exceeded"), "{}", stderr(&made));
    // The home itself is one.
    assert_eq!(fs::read_dir(&home).unwrap().count(), 100);
    let told = lines(&address, &token, &["--users"]);
    assert_eq!(line(&told, "user", USER)["entries"], 101);
    let again = as_user(&home, "rmdir 0-1 && mkdir again");
    assert!(again.status.success(), "{}", stderr(&again));
    succeed(&["fsck", &address, "--token", text(&token)]);
    unmount(&others.0);
    assert_eq!(running.stop(), Some(0));
}
