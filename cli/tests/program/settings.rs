//! `pando set` and `pando get`, and quotas as a mount shows them.

use std::fs;

use rustix::io::Errno;

use crate::{
    harness::{Data, Running, fail, folder, pando, succeed, text},
    mounted::{Mountpoint, dev, up},
};

#[test]
fn settings_are_changed_and_shown_at_a_server() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let token = data.admin_token();
    let with = |args: &[&str]| -> Vec<String> {
        [args, &["--token", text(&token)]].concat().iter().map(ToString::to_string).collect()
    };
    let run = |args: &[&str]| {
        let args = with(args);
        succeed(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let wrong = |args: &[&str]| {
        let args = with(args);
        fail(1, &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let address = server.address();
    run(&["set", address, "inline_max=1K", "quota.entries=1000"]);
    let shown = run(&["get", address, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["inline_max"], 1024);
    assert_eq!(shown["quota.entries"], 1000);
    assert_eq!(shown["quota.state"], "active");
    assert_eq!(shown["used.entries"], 1);
    for (setting, rule) in [
        ("nothing=1", "there is no setting nothing; known are inherit, "),
        ("inline_max=1G", "allowed: 0 to 64K"),
        ("quota.bytes=1X", "X is not a unit; use K, M, G or T"),
        ("trash_days=100000", "allowed: 0 to 36500"),
        ("spread=subsets", "spread needs several servers: one server divides no directory"),
    ] {
        let said = wrong(&["set", address, setting]);
        assert!(said.contains(rule), "{setting}: {said}");
    }
    // If one of several settings cannot be set, none is.
    wrong(&["set", address, "inline_max=2K", "quota.bytes=1X"]);
    assert!(run(&["get", address, "inline_max"]).contains("1024"));
    let said = wrong(&["set", text(data.folder.path()), "quota.bytes=1M"]);
    assert!(said.contains("is not on a mount of pando"), "{said}");
    let sessions = run(&["sessions", address]);
    assert!(!sessions.contains("pando set"), "who was refused has left: {sessions}");
    let user = data.token(&["--uid", "1000"]);
    let said = fail(1, &["set", address, "quota.bytes=1", "--token", text(&user)]);
    assert!(said.contains("only root with an administrator's token"), "{said}");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_mount_refuses_what_exceeds_a_quota_and_du_asks_the_server() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let running = up(&folder.path().join("data"), &mount);
    refuses_what_exceeds_a_quota(&mount);
    assert_eq!(running.stop(), Some(0));
}

#[test]
fn a_mount_of_several_servers_refuses_what_exceeds_a_quota() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let (running, addresses) = dev(&folder.path().join("dev"), "3", &mount);
    refuses_what_exceeds_a_quota(&mount);
    // Files go to one server, directories to any of them; all makers together stay within the
    // limit.
    let full = &mount.0.join("full");
    fs::create_dir(full).unwrap();
    succeed(&["set", text(full), "quota.entries=101"]);
    let made: usize = std::thread::scope(|scope| {
        let make = |maker: u32| {
            let path = move |number: u32| full.join(format!("{maker}-{number}"));
            (0..100).take_while(|number| fs::create_dir(path(*number)).is_ok()).count()
        };
        let makers: Vec<_> = (0..4).map(|maker| scope.spawn(move || make(maker))).collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).sum()
    });
    assert_eq!((made, fs::read_dir(full).unwrap().count()), (100, 100));
    fs::remove_dir(full.join("0-0")).unwrap();
    fs::create_dir(full.join("again")).unwrap();
    let over = fs::create_dir(full.join("over")).unwrap_err();
    assert_eq!(over.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
    let token = folder.path().join("dev/admin.token");
    succeed(&["fsck", &addresses, "--token", text(&token)]);
    assert_eq!(running.stop(), Some(0));
}

fn refuses_what_exceeds_a_quota(mount: &Mountpoint) {
    let dir = mount.0.join("project");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("early"), [1; 100_000]).unwrap();
    let said = fail(1, &["set", text(&dir.join("early")), "quota.bytes=1M"]);
    assert!(said.contains("settings belong to directories, and this is not a directory"), "{said}");
    let said = fail(1, &["set", text(&dir), "trash_days=3"]);
    assert!(
        said.contains("this setting belongs to the whole file system: set it on the root"),
        "{said}"
    );
    succeed(&["set", text(&dir), "quota.bytes=200K", "quota.entries=4"]);
    let counted: serde_json::Value =
        serde_json::from_str(&succeed(&["du", "--json", text(&dir)])).unwrap();
    assert_eq!((&counted["bytes_allocated"], &counted["entries"]), (&100_000.into(), &2.into()));
    let walked: serde_json::Value =
        serde_json::from_str(&succeed(&["du", "--walk", "--json", text(&dir)])).unwrap();
    assert_eq!((&walked["files"], &walked["directories"]), (&1.into(), &1.into()));
    let exceeds = Some(Errno::DQUOT.raw_os_error());
    fs::write(dir.join("small"), [1; 10]).unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    let refused = fs::write(dir.join("more"), b"").map_err(|error| error.raw_os_error());
    assert_eq!(refused, Err(exceeds), "{}", succeed(&["info", text(&dir)]));
    // A write that does not fit fails at the `fsync` at the latest.
    let file = fs::File::options().append(true).open(dir.join("small")).unwrap();
    let written = std::io::Write::write_all(&mut &file, &[2; 200_000]);
    let told = written.and_then(|()| file.sync_all()).unwrap_err();
    assert_eq!(told.raw_os_error(), exceeds);
    drop(file);
    succeed(&["set", text(&dir), "quota.bytes=none", "quota.entries=none"]);
    fs::write(dir.join("more"), [1; 300_000]).unwrap();
    assert!(succeed(&["get", text(&dir)]).is_empty());
}

#[test]
fn several_servers_count_what_is_below_a_directory_and_du_adds_it_up() {
    let folder = folder();
    let (dir, mount) = (folder.path().join("dev"), Mountpoint::new(folder.path()));
    let mut command = pando(&["dev", "--servers", "3", "--listen", "127.0.0.1:0", "--dir"]);
    command.arg(&dir).arg("--mount").arg(&mount.0);
    let running = Running::start(command, "serving ");
    let project = mount.0.join("project");
    let make = |round: u32| {
        for number in 0..10 {
            let dir = project.join(format!("{round}/{number}/below"));
            fs::create_dir_all(&dir).unwrap();
            // Whole blocks of 512 bytes, by which a walk counts.
            fs::write(dir.join("file"), [1; 10_240]).unwrap();
            fs::rename(dir.join("file"), project.join(format!("{round}-{number}"))).unwrap();
        }
    };
    let json =
        |args: &[&str]| -> serde_json::Value { serde_json::from_str(&succeed(args)).unwrap() };
    make(0);
    succeed(&["set", text(&project), "quota.bytes=unlimited"]);
    make(1);
    let counted = json(&["du", "--json", text(&project)]);
    let walked = json(&["du", "--walk", "--json", text(&project)]);
    assert_eq!(counted["bytes_allocated"], walked["bytes_allocated"]);
    let number = |name: &str| walked[name].as_u64().unwrap();
    assert_eq!(counted["entries"], number("files") + number("directories"));
    assert_eq!((number("files"), number("directories")), (20, 43));
    let shown = json(&["get", "--json", text(&project)]);
    assert_eq!((&shown["quota.state"], &shown["used.entries"]), (&"active".into(), &63.into()));
    succeed(&["set", text(&project), "quota.bytes=none"]);
    assert!(succeed(&["get", text(&project)]).is_empty());
    assert_eq!(running.stop(), Some(0));
}
