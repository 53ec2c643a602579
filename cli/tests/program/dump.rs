//! `pando dump` and `pando load`.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};

use crate::{
    harness::{fail, folder, pando, run, stderr, succeed, text},
    mounted::{Mountpoint, dev, up},
};

/// Names, attributes and contents below a directory, as text.
fn listing(top: &Path) -> String {
    let script = "find . -printf '%p %y %m %U %G %n %s %T@ %l\\n' | sort; \
                  find . -type f | sort | xargs -r -d '\\n' cat | cksum";
    let output = Command::new("sh").arg("-c").arg(script).current_dir(top).output();
    let output = output.expect("there is a shell");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("names of tests are text")
}

#[test]
fn a_dump_with_contents_is_loaded_into_an_equal_file_system() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let data = folder.path().join("data");
    let running = up(&data, &mount);
    let at = |path: &str| mount.0.join(path);
    fs::create_dir_all(at("a/b")).unwrap();
    fs::write(at("a/small"), "small").unwrap();
    fs::write(at("a/b/large"), [b'x'; 200_000]).unwrap();
    assert!(Command::new("mkfifo").arg(at("a/fifo")).status().unwrap().success());
    fs::hard_link(at("a/small"), at("a/b/second")).unwrap();
    std::os::unix::fs::symlink("a/b", at("link")).unwrap();
    let file = folder.path().join("dump");
    let token = data.join("admin.token");
    fs::File::open(&mount.0).unwrap().sync_all().unwrap();
    let dump = ["dump", running.address(), text(&file), "--token", text(&token)];
    let said = succeed(&dump);
    assert!(said.ends_with(" and the contents of 1 blocks\n"), "{said}");
    let before = listing(&mount.0);
    assert_eq!(running.stop(), Some(0));

    let copy = folder.path().join("copy");
    let said = succeed(&["load", "--data", text(&copy), text(&file)]);
    assert!(said.contains("loaded data in") && said.contains(", 1 blocks"), "{said}");
    let again = up(&copy, &mount);
    assert_eq!(listing(&mount.0), before);
    assert_eq!(fs::metadata(at("a/small")).unwrap().nlink(), 2);
    succeed(&["fsck", again.address(), "--token", text(&copy.join("admin.token"))]);
    assert_eq!(again.stop(), Some(0));

    // A dump that is cut off or changed loads nothing, and nothing is overwritten.
    let bytes = fs::read(&file).unwrap();
    let load = |name: &str, bytes: &[u8]| {
        let (file, to) = (folder.path().join(name), folder.path().join(format!("{name}.data")));
        fs::write(&file, bytes).unwrap();
        let said = fail(1, &["load", "--data", text(&to), text(&file)]);
        assert!(!to.join("pando.json").exists());
        said
    };
    for end in [bytes.len() - 1, bytes.len() / 2, 100] {
        assert!(load("cut", &bytes[..end]).contains("cut off"));
    }
    let longer = [&bytes[..], b"more"].concat();
    assert!(load("longer", &longer).contains("bytes follow its end"));
    let mut changed = bytes.clone();
    changed[bytes.len() / 2] ^= 1;
    assert!(load("changed", &changed).contains("damaged"));
    let mut newer = bytes;
    newer[10] = 4;
    assert!(load("newer", &newer).contains("has version 4, this program knows 1 to 3"));
    assert!(load("other", b"something else").contains("not a dump of pando"));
    let said = fail(1, &["load", "--data", text(&copy), text(&file)]);
    assert!(said.contains("holds a file system already"), "{said}");
}

#[test]
fn a_dump_of_a_cluster_is_loaded_into_one_server_and_into_others() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let at = |path: &str| mount.0.join(path);
    let three = folder.path().join("three");
    let (running, addresses) = dev(&three, "3", &mount);
    fs::create_dir_all(at("a/b/c/d")).unwrap();
    for file in 0..40 {
        fs::create_dir(at(&format!("a/{file}"))).unwrap();
        fs::write(at(&format!("a/{file}/small")), format!("small {file}")).unwrap();
        fs::write(at(&format!("a/b/{file}")), vec![file; 20_000]).unwrap();
        fs::hard_link(at(&format!("a/{file}/small")), at(&format!("a/b/c/link {file}"))).unwrap();
    }
    fs::create_dir(at("divided")).unwrap();
    succeed(&["set", text(&at("divided")), "large_dir=5"]);
    for file in 0..40 {
        fs::write(at(&format!("divided/{file}")), "one of many").unwrap();
    }
    fs::rename(at("a/b/7"), at("a/7/moved")).unwrap();
    fs::rename(at("a/b/c"), at("a/9/moved")).unwrap();
    std::os::unix::fs::symlink("a/b", at("link")).unwrap();
    fs::File::open(&mount.0).unwrap().sync_all().unwrap();
    let (file, token) = (folder.path().join("dump"), three.join("admin.token"));
    // Any of the servers will do.
    let last = addresses.rsplit(',').next().unwrap();
    let said = succeed(&["dump", last, text(&file), "--token", text(&token), "--contents"]);
    assert!(said.contains("the contents of 40 blocks; changes waited for "), "{said}");
    let before = listing(&mount.0);
    assert_eq!(running.stop(), Some(0));

    let one = folder.path().join("one");
    let said = succeed(&["load", "--data", text(&one), text(&file)]);
    assert!(said.contains("loaded three in") && said.contains(", 40 blocks"), "{said}");
    let running = up(&one, &mount);
    assert_eq!(listing(&mount.0), before);
    let token = one.join("admin.token");
    succeed(&["fsck", running.address(), "--token", text(&token)]);
    // The way back.
    let again = folder.path().join("again");
    let dump = ["dump", running.address(), text(&again), "--token", text(&token), "--contents"];
    succeed(&dump);
    assert_eq!(running.stop(), Some(0));

    for (file, servers) in [(&file, "4"), (&again, "2")] {
        let dir = folder.path().join(servers);
        // One that was interrupted when some servers were finished is done again.
        let remains = dir.join("server-1");
        fs::create_dir_all(dir.join("server-0")).unwrap();
        fs::create_dir_all(&remains).unwrap();
        fs::write(dir.join("server-0/formatting"), "").unwrap();
        fs::write(remains.join("pando.json"), "{}").unwrap();
        fs::write(remains.join("signing.key"), "of before").unwrap();
        let load = ["load", "--data", text(&dir), "--servers", servers, text(file)];
        let said = succeed(&load);
        assert!(said.contains(&format!("for {servers} servers: ")), "{said}");
        let said = fail(1, &load);
        assert!(said.contains("holds a file system already"), "{said}");
        let (running, addresses) = dev(&dir, servers, &mount);
        assert_eq!(listing(&mount.0), before, "{servers} servers");
        let token = dir.join("admin.token");
        succeed(&["fsck", &addresses, "--token", text(&token)]);
        fs::create_dir(at("new")).unwrap();
        fs::rename(at("a"), at("new/a")).unwrap();
        succeed(&["fsck", &addresses, "--token", text(&token)]);
        assert_eq!(running.stop(), Some(0));
    }
    let said = fail(
        1,
        &["load", "--data", text(&folder.path().join("many")), "--servers", "1025", text(&file)],
    );
    assert!(said.contains("1024 shards") && !folder.path().join("many").exists(), "{said}");
}

#[test]
fn what_one_server_had_is_loaded_for_several_with_its_limits() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let data = folder.path().join("data");
    let running = up(&data, &mount);
    let at = |path: &str| mount.0.join(path);
    fs::create_dir_all(at("a/limited/b")).unwrap();
    succeed(&["set", text(&at("a/limited")), "quota.bytes=1M", "quota.entries=500"]);
    fs::write(at("a/limited/b/file"), [b'x'; 20_000]).unwrap();
    succeed(&["set", text(&mount.0), "trash_days=3"]);
    for file in 0..40 {
        fs::write(at(&format!("a/{file}")), format!("removed {file}")).unwrap();
    }
    // A file that a mount has made and removed before it told the server was never there.
    fs::File::open(&mount.0).unwrap().sync_all().unwrap();
    for file in 0..40 {
        fs::remove_file(at(&format!("a/{file}"))).unwrap();
    }
    fs::File::open(&mount.0).unwrap().sync_all().unwrap();
    let (file, token) = (folder.path().join("dump"), data.join("admin.token"));
    succeed(&["dump", running.address(), text(&file), "--token", text(&token), "--contents"]);
    let before = listing(&mount.0);
    assert_eq!(running.stop(), Some(0));

    let two = folder.path().join("two");
    succeed(&["load", "--data", text(&two), "--servers", "2", text(&file)]);
    let (running, addresses) = dev(&two, "2", &mount);
    assert_eq!(listing(&mount.0), before);
    succeed(&["fsck", &addresses, "--token", text(&two.join("admin.token"))]);
    let hours = fs::read_dir(at(".trash")).unwrap();
    let removed = hours.flat_map(|hour| fs::read_dir(hour.unwrap().path()).unwrap());
    let mut removed: Vec<_> =
        removed.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    removed.sort_unstable();
    let mut expected: Vec<_> = (0..40).map(|file| format!("removed {file}")).collect();
    expected.sort_unstable();
    assert_eq!(removed, expected);
    let mut more = fs::File::create(at("a/limited/more")).unwrap();
    let exceeds = more.write_all(&vec![b'x'; 2_000_000]).and_then(|()| more.sync_all());
    assert_eq!(exceeds.unwrap_err().raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
    drop(more);
    assert_eq!(running.stop(), Some(0));
}

#[test]
fn a_dump_says_what_is_in_it_and_replaces_no_file_unasked() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let data = folder.path().join("data");
    let running = up(&data, &mount);
    fs::write(mount.0.join("large"), [b'x'; 200_000]).unwrap();
    fs::File::open(&mount.0).unwrap().sync_all().unwrap();
    let (file, token) = (folder.path().join("dump"), data.join("admin.token"));
    let dump = ["dump", running.address(), text(&file), "--token", text(&token)];
    succeed(&dump);
    let whole = fs::read(&file).unwrap();
    assert!(whole.len() > 200_000);
    for more in [&[][..], &["--metadata-only"]] {
        let said = fail(1, &[&dump[..], more].concat());
        assert!(said.contains("exists; --force replaces it"), "{said}");
        assert!(fs::read(&file).unwrap() == whole);
    }
    let both = run(&[&dump[..], &["--contents", "--metadata-only"]].concat());
    assert_eq!(both.status.code(), Some(2));
    let said = succeed(&[&dump[..], &["--metadata-only", "--force"]].concat());
    assert!(said.ends_with("; the contents of 1 blocks are NOT in it\n"), "{said}");
    assert!(fs::metadata(&file).unwrap().len() < 100_000);
    // Stdout gets the dump alone.
    let output = run(&["dump", running.address(), "-", "--token", text(&token)]);
    assert!(output.status.success() && output.stdout.starts_with(b"PANDODUMP"));
    assert!(stderr(&output).ends_with(" and the contents of 1 blocks\n"), "{}", stderr(&output));
    assert_eq!(running.stop(), Some(0));
}

#[test]
fn a_dump_that_is_interrupted_leaves_nothing_here_nor_at_the_server() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let data = folder.path().join("data");
    let running = up(&data, &mount);
    for file in ["1", "2", "3", "4"] {
        fs::write(mount.0.join(file), vec![b'x'; 2_000_000]).unwrap();
    }
    let token = data.join("admin.token");
    // The test reads only the beginning of the dump, so the dump does not come to its end.
    let (file, part) = (folder.path().join("dump"), folder.path().join("dump.part"));
    assert!(Command::new("mkfifo").arg(&part).status().unwrap().success());
    let mut held = fs::OpenOptions::new().read(true).write(true).open(&part).unwrap();
    let dump = |file: &Path| {
        ["dump", running.address(), text(file), "--token", text(&token)].map(str::to_owned)
    };
    let args = dump(&file);
    let mut dumping =
        pando(&args.each_ref().map(String::as_str)).stderr(Stdio::piped()).spawn().unwrap();
    held.read_exact(&mut [0; 10]).unwrap();
    let other = folder.path().join("other");
    let args = dump(&other);
    let said = fail(1, &args.each_ref().map(String::as_str));
    assert!(said.contains("another dump is running"), "{said}");
    let pid = Pid::from_raw(i32::try_from(dumping.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    // The program waits in a write, and sees the signal when it asks for the next contents.
    let mut drain = Command::new("cat").stdin(held).stdout(Stdio::null()).spawn().unwrap();
    let ended = dumping.wait().unwrap();
    drain.kill().unwrap();
    drain.wait().unwrap();
    assert_eq!(ended.code(), Some(1));
    let mut said = String::new();
    dumping.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said.lines().last(), Some("pando: interrupted"));
    assert!(!part.exists() && !file.exists());
    // The next dump can be made at once.
    succeed(&args.each_ref().map(String::as_str));
    assert_eq!(running.stop(), Some(0));
}
