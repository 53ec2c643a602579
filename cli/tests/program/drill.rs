//! An operator's drill: something goes wrong, and the first command that an operator would try
//! names the cause.

use std::{fs, path::Path, time::Duration};

use rustix::process::Signal;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    cluster::Forming,
    harness::{Data, Running, fail, folder, pause, run, stderr, succeed, text},
    mounted::Mountpoint,
};

/// The first line of `pando status`, and its exit code.
fn state(server: &str, token: &Path) -> (String, Option<i32>) {
    let output = run(&["status", server, "--token", text(token)]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let first = said.lines().next().map_or_else(|| stderr(&output), str::to_owned);
    (first, output.status.code())
}

/// Waits until the first line of `pando status` says this, with the exit code that something is
/// wrong has.
fn until_status_says(server: &str, token: &Path, words: &[&str]) {
    let began = Instant::now();
    loop {
        let (said, code) = state(server, token);
        if words.iter().all(|word| said.contains(word)) {
            assert_eq!(code, Some(3), "{said}");
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(15), "{words:?}: {said}");
        pause(Duration::from_millis(100));
    }
}

#[test]
fn after_a_kill_and_a_cut_status_names_the_server_that_is_missing() {
    let forming = Forming::of("3");
    let (second, third) = (forming.join("second"), forming.join("third"));
    forming.until_sound();
    let (address, token) = (&forming.address, &forming.token);
    assert_eq!(state(address, token).1, Some(0));
    // Killed.
    third.signal(Signal::KILL);
    let lost = format!("server 2 at {} has no lease", third.address());
    until_status_says(address, token, &[&lost]);
    // Cut off: it is there, and says nothing.
    second.signal(Signal::STOP);
    until_status_says(address, token, &[&format!("server 1 at {}", second.address()), &lost]);
    second.signal(Signal::CONT);
    // The coordinator is cut off: another one is asked.
    forming.coordinator.signal(Signal::STOP);
    let coordinator = format!("the coordinator at {address} does not answer");
    until_status_says(second.address(), token, &["NOT SERVING", &coordinator]);
    forming.coordinator.signal(Signal::CONT);
}

#[test]
fn a_full_disk_an_expired_token_and_mistakes_are_named_by_the_first_command() {
    let data = Data::formatted();
    let brief = data.token(&["--expires", "1s"]);
    let server = data.serve(&["--reserve", "1000000G"]);
    let token = data.admin_token();
    let address = server.address();
    let with = |args: &[&str], token: &Path| fail(1, &[args, &["--token", text(token)]].concat());
    // Full.
    until_status_says(address, &token, &["writes are refused: the disk is nearly full"]);
    // Expired.
    pause(Duration::from_secs(2));
    let said = with(&["status", address], &brief);
    assert!(said.contains("expired") || said.contains("has ended"), "{said}");
    let mount = Mountpoint::new(data.folder.path());
    let said = with(&["mount", address, text(&mount.0)], &brief);
    assert!(said.contains("expired") || said.contains("has ended"), "{said}");
    // Mistyped: the port, the token, the address, a setting, the command.
    let said = with(&["status", server.http()], &token);
    assert!(said.contains("is it the address of a status page?"), "{said}");
    let other = Data::formatted();
    let said = with(&["status", address], &other.admin_token());
    assert!(said.contains("token of another file system, or altered"), "{said}");
    let said = with(&["sessions", "127.0.0.1:1"], &token);
    assert!(said.contains("127.0.0.1:1 cannot be reached: Connection refused"), "{said}");
    let said = with(&["set", address, "trash_day=3"], &token);
    assert!(said.contains("there is no setting trash_day; known are "), "{said}");
    let output = run(&["stauts", address]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("similar subcommand exists: 'status'"), "{output:?}");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn an_inode_is_found_by_its_number_as_far_as_the_token_lets_one_see() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let path = folder.path().join("data");
    let running = crate::mounted::up(&path, &mount);
    let (token, address) = (path.join("admin.token"), running.address());
    fs::create_dir_all(mount.0.join("a/b")).unwrap();
    fs::create_dir_all(mount.0.join("c")).unwrap();
    fs::write(mount.0.join("a/b/file"), "x").unwrap();
    fs::hard_link(mount.0.join("a/b/file"), mount.0.join("c/link")).unwrap();
    let number = |path: &str| {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(mount.0.join(path)).unwrap().ino().to_string()
    };
    let info = |inode: &str, token: &Path| -> Value {
        let args = ["info", address, "--inode", inode, "--json", "--token", text(token)];
        serde_json::from_str(&succeed(&args)).unwrap()
    };
    let found = info(&number("c/link"), &token);
    assert_eq!(found["paths"], serde_json::json!(["/a/b/file", "/c/link"]));
    assert_eq!((&found["kind"], &found["ino"]), (&"file".into(), &number("c/link").into()));
    assert_eq!(info(&number("a/b"), &token)["paths"], serde_json::json!(["/a/b"]));
    let of_c = succeed(&["token", "create", "--data", text(&path), "--path", "/c"]);
    let limited = folder.path().join("of_c");
    fs::write(&limited, of_c).unwrap();
    assert_eq!(info(&number("c/link"), &limited)["paths"], serde_json::json!(["/link"]));
    for (inode, token) in [("123456789", &token), (&number("a/b"), &limited)] {
        let said = fail(1, &["info", address, "--inode", inode, "--token", text(token)]);
        assert!(said.contains(&format!("inode {inode} has no name")), "{said}");
    }
    assert_eq!(running.stop(), Some(0));
}

#[test]
fn top_and_profile_of_a_cluster_are_of_all_servers_and_say_so() {
    let forming = Forming::of("3");
    let (_second, third) = (forming.join("second"), forming.join("third"));
    forming.until_sound();
    let token = text(&forming.token);
    let ask = |command: &str, more: &[&str]| {
        run(&[&[command, &forming.address, "--token", token], more].concat())
    };
    let said = |command: &str, more: &[&str]| {
        let output = ask(command, more);
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let once = ["--once", "--interval", "200ms"];
    let shown = said("top", &once);
    assert!(shown.starts_with("all 3 servers\n"), "{shown}");
    assert!(!shown.contains("(0)"), "{shown}");
    let of_one = said("top", &[&once[..], &["--server", "1"]].concat());
    assert!(of_one.starts_with("server 1 of 3\n"), "{of_one}");
    let of_one: Value =
        serde_json::from_str(&said("profile", &["--server", "2", "--json"])).unwrap();
    assert_eq!((&of_one["servers"], &of_one["servers_of"]), (&serde_json::json!([2]), &3.into()));
    assert!(said("profile", &[]).starts_with("all 3 servers\n"));
    assert_eq!(ask("top", &["--server", "3"]).status.code(), Some(2));
    // Without one of them the others are shown, and it is said.
    third.signal(Signal::KILL);
    let shown = said("top", &once);
    assert!(shown.starts_with("servers 0 and 1 of 3\n"), "{shown}");
    let output = ask("profile", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no answer from server 2"), "{}", stderr(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.starts_with("servers 0 and 1 of 3\n"), "{printed}");
}

#[test]
fn root_sees_the_space_of_a_mount_that_is_another_users_and_mount_says_whose_it_is() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let token = data.token(&["--uid", "1000"]);
    let mount = Mountpoint::new(data.folder.path());
    let mut args = vec!["mount", server.address(), text(&mount.0), "--foreground", "--token"];
    args.push(text(&token));
    let start = |args: &[&str]| Running::start(crate::harness::pando(args), "mounted at ");
    let mounted = start(&args);
    assert!(
        mounted.said.contains("nobody can use it: the token is user 1000's"),
        "{}",
        mounted.said
    );
    assert_eq!(mounted.stop(), Some(0));
    args.extend(["-o", "allow_other"]);
    let mounted = start(&args);
    assert!(mounted.said.ends_with(", only user 1000 can use it\n"), "{}", mounted.said);
    // A monitoring agent's `df` asks in this way.
    let space = rustix::fs::statvfs(&mount.0).unwrap();
    assert!(space.f_blocks > 0 && space.f_files > 0);
    assert!(fs::read_dir(&mount.0).is_err(), "root is not user 1000");
    assert_eq!(mounted.stop(), Some(0));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_check_ends_with_the_name_of_the_server_that_is_dead() {
    let forming = Forming::of("3");
    let (_second, third) = (forming.join("second"), forming.join("third"));
    forming.until_sound();
    let fsck = ["fsck", &forming.address, "--token", text(&forming.token)];
    succeed(&fsck);
    third.signal(Signal::KILL);
    let began = Instant::now();
    let said = fail(8, &fsck);
    let named = format!("server 2 at {} does not answer", third.address());
    assert!(said.contains(&named), "{said}");
    let took = began.elapsed().as_secs();
    assert!((14..25).contains(&took), "{took} s");
}
