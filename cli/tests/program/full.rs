//! A full disk: a small one in memory, which only root can mount.

use std::{
    cell::Cell,
    fs,
    io::Write as _,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use base::FsError;
use client::{Client, Config, Error};
use rustix::{
    fs::{FallocateFlags, XattrFlags},
    io::Errno,
};
use wire::XattrMode;

use crate::{
    cluster::{Forming, join},
    harness::{Data, Running, pando, pause, succeed, text, unmount},
    mounted::Mountpoint,
    serve::get,
};

/// A disk of its own for data directories; it goes with the test.
struct Disk {
    data: Data,
    path: PathBuf,
}

impl Disk {
    /// A disk with a data directory.
    fn new(size: &str) -> Disk {
        let disk = Disk::empty(size);
        succeed(&["format", "--data", text(&disk.data.path())]);
        disk
    }

    fn empty(size: &str) -> Disk {
        let folder = crate::harness::folder();
        let path = folder.path().to_owned();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "pando-test"]).arg(&path);
        let mounted = mount.output().expect("mount(8) can be started");
        let said = String::from_utf8_lossy(&mounted.stderr);
        assert!(mounted.status.success(), "this test mounts a tmpfs, as root: {said}");
        Disk { data: Data { folder }, path }
    }

    /// Takes room until `left` bytes are free, as another program would.
    fn fill_to(&self, left: u64) -> PathBuf {
        let path = self.path.join("another program's");
        let file = fs::File::create(&path).expect("an empty file takes no room");
        let disk = rustix::fs::statvfs(&self.path).expect("it is mounted");
        let taken = (disk.f_bavail * disk.f_frsize).checked_sub(left).expect("there is more");
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, taken).expect("there is room");
        path
    }

    /// Takes all the room that is left, as another program would.
    fn fill(&self) -> PathBuf {
        let file = self.path.join("another program's");
        let mut out = fs::File::create(&file).expect("an empty file takes no room");
        while out.write_all(&[7; 1 << 16]).is_ok() {}
        while out.write_all(&[7; 512]).is_ok() {}
        file
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A test that failed may have left its server behind.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it can be made")
}

async fn connect(server: &str, token: &Path) -> Client {
    let token = fs::read_to_string(token).expect("the data directory is ours");
    let config = Config::new(vec![server.to_owned()], token.trim());
    Box::pin(Client::connect(config)).await.expect("the token is good")
}

fn assert_sound(server: &Running, disk: &Disk) {
    let token = disk.data.admin_token();
    succeed(&["fsck", server.address(), "--token", text(&token)]);
}

const FULL: Error = Error::Fs(FsError::NoSpace);

#[test]
fn a_full_disk_refuses_writes_while_reads_removals_and_restarts_work() {
    let disk = Disk::new("128m");
    let server = disk.data.serve(&["--reserve", "32MiB"]);
    let contents = |number: usize| vec![u8::try_from(number % 251).expect("small"); 1 << 20];
    let runtime = runtime();
    let (client, written) = runtime.block_on(async {
        let client = connect(server.address(), &disk.data.admin_token()).await;
        let mut written = 0;
        let refused = loop {
            match client.write(&format!("/{written}"), &contents(written)).await {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
            assert!(written < 128, "the disk has no more");
        };
        assert_eq!(refused, FULL);
        assert!(written > 40, "{written}");
        assert_eq!(client.mkdir("/new", 0o755).await.unwrap_err(), FULL);
        let ready = get(server.http(), "/readyz");
        assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
        assert!(
            ready.ends_with("ok, but writes are refused: the disk is nearly full\n"),
            "{ready}"
        );
        assert!(get(server.http(), "/metrics").contains("\npando_writable 0\n"));
        for number in 0..written {
            assert!(client.read(&format!("/{number}")).await.unwrap() == contents(number));
        }
        client.unlink("/0").await.unwrap();
        (client, written)
    });
    let address = server.address().to_owned();
    assert_eq!(server.stop(), Some(0));
    let server = disk.data.serve(&["--reserve", "32MiB", "--listen", &address]);
    runtime.block_on(async {
        for number in 1..written {
            assert!(client.read(&format!("/{number}")).await.unwrap() == contents(number));
        }
        for number in 1..written / 2 {
            client.unlink(&format!("/{number}")).await.unwrap();
        }
        let mut tries = 0;
        while client.write("/again", &contents(1)).await == Err(FULL) {
            tries += 1;
            assert!(tries < 600, "writes never resume");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        client.close().await.unwrap();
    });
    assert_sound(&server, &disk);
    assert_eq!(server.stop(), Some(0));
}

/// The engine's log takes some 35 MiB ahead: this is more.
const FILES: u32 = 700;

/// Bytes that no compression makes smaller.
fn large(number: u32) -> Vec<u8> {
    let mut random = u64::from(number) + 1;
    let next = |_| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 56).to_le_bytes()[0]
    };
    (0..60_000).map(next).collect()
}

#[test]
fn a_server_whose_disk_another_program_fills_waits_and_loses_nothing() {
    let disk = Disk::new("192m");
    let server = disk.data.serve(&["--reserve", "0"]);
    let (address, token) = (server.address().to_owned(), disk.data.admin_token());
    let folder = crate::harness::folder();
    let copy = folder.path().join("token");
    fs::copy(&token, &copy).unwrap();
    let filler = disk.fill();
    let work = || {
        runtime().block_on(async {
            let client = connect(&address, &copy).await;
            for number in 0..FILES {
                let path = format!("/{number}");
                client.write(&path, b"x").await.unwrap();
                client.set_xattr(&path, "user.x", &large(number), XattrMode::Set).await.unwrap();
            }
            client.close().await.unwrap();
        });
    };
    std::thread::scope(|scope| {
        let worker = scope.spawn(work);
        let mut tries = 0;
        while TcpStream::connect(&address).is_ok() {
            tries += 1;
            assert!(tries < 600, "the server never meets the full disk");
            pause(Duration::from_millis(50));
        }
        fs::remove_file(filler).unwrap();
        worker.join().unwrap();
    });
    runtime().block_on(async {
        let client = connect(&address, &token).await;
        for number in 0..FILES {
            let value = client.get_xattr(&format!("/{number}"), "user.x").await.unwrap();
            assert!(value == large(number), "{number}");
        }
        client.close().await.unwrap();
    });
    assert_sound(&server, &disk);
    assert_eq!(server.stop(), Some(0));
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let mut tries = 0;
    while !is_so() {
        tries += 1;
        assert!(tries < 600, "{what}");
        pause(Duration::from_millis(50));
    }
}

/// Checks that something was refused because the disk is nearly full.
fn assert_full<T: std::fmt::Debug>(done: std::io::Result<T>, what: &str) {
    let refused = done.expect_err(what).raw_os_error();
    assert_eq!(refused, Some(Errno::NOSPC.raw_os_error()), "{what}");
}

/// Programs work on a mount while the disk of its server is nearly full.
fn programs_on_a_mount_meet_a_full_disk(args: &[&str], keeps_trash: bool) {
    let disk = Disk::new("128m");
    let server = disk.data.serve(&[&["--reserve", "32MiB"], args].concat());
    let (address, token) = (server.address().to_owned(), disk.data.admin_token());
    let folder = crate::harness::folder();
    let mount = Mountpoint::new(folder.path());
    succeed(&["mount", &address, text(&mount.0), "--token", text(&token)]);
    if keeps_trash {
        succeed(&["set", &address, "trash_days=7", "--token", text(&token)]);
    }
    let at = |name: u32| mount.0.join(name.to_string());
    for number in 0..5 {
        fs::write(at(number), large(number)).unwrap();
    }
    let log = fs::File::create(mount.0.join("log")).unwrap();
    (&log).write_all(b"answered").unwrap();
    log.sync_all().unwrap();

    let filler = disk.fill_to(20 << 20);
    until("the server never sees that its disk is nearly full", || {
        get(server.http(), "/metrics").contains("\npando_writable 0\n")
    });
    // Contents that were held back are told of by `fsync`, and by `close`.
    let written = (&log).write_all(b", and more").and_then(|()| log.sync_all());
    assert_full(written, "an append");
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", "bs=64k", "count=3", "conv=notrunc", "status=none"]);
    let written = dd.arg(format!("of={}", text(&at(1)))).output().expect("there is dd(1)");
    let said = String::from_utf8_lossy(&written.stderr);
    assert!(!written.status.success() && said.contains("No space left on device"), "{said}");
    assert_full(fs::write(at(100), b"x"), "a file");
    assert_full(fs::create_dir(at(101)), "a directory");
    assert_full(std::os::unix::fs::symlink("x", at(102)), "a symlink");
    assert_full(fs::hard_link(at(0), at(103)), "a link");
    let set = rustix::fs::setxattr(at(0), "user.x", b"x", XattrFlags::empty());
    assert_full(set.map_err(Into::into), "an attribute");

    for number in [0, 2, 3, 4] {
        assert!(fs::read(at(number)).unwrap() == large(number), "{number}");
    }
    fs::rename(at(2), at(200)).unwrap();
    fs::File::options().write(true).open(at(3)).unwrap().set_len(1000).unwrap();
    fs::remove_file(at(4)).unwrap();
    if keeps_trash {
        let list = ["restore", &address, "--token", text(&token), "--list"];
        let thrown = succeed(&list);
        assert!(thrown.lines().any(|line| line.ends_with("/4")), "{thrown}");
    }

    fs::remove_file(filler).unwrap();
    until("writes never resume", || fs::write(at(100), b"x").is_ok());
    (&log).write_all(b", and again").and_then(|()| log.sync_all()).unwrap();
    drop(log);
    unmount(&mount.0);
    runtime().block_on(async {
        let client = connect(&address, &token).await;
        let log = client.read("/log").await.unwrap();
        assert!(log.starts_with(b"answered") && log.ends_with(b", and again"), "{log:?}");
        for (name, number) in [("0", 0), ("1", 1), ("200", 2)] {
            assert!(client.read(&format!("/{name}")).await.unwrap() == large(number), "{name}");
        }
        assert!(client.read("/3").await.unwrap() == large(3)[..1000]);
        let names = client.read_dir("/").await.unwrap().all().await.unwrap();
        let mut names: Vec<_> = names.iter().map(|entry| entry.name.to_string()).collect();
        names.retain(|name| name != ".trash");
        names.sort();
        assert_eq!(names, ["0", "1", "100", "200", "3", "log"]);
        client.close().await.unwrap();
    });
    assert_sound(&server, &disk);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_mount_tells_of_a_full_disk_and_loses_nothing_that_was_answered() {
    programs_on_a_mount_meet_a_full_disk(&[], true);
}

#[test]
fn a_mount_of_a_strict_server_tells_of_a_full_disk_too() {
    programs_on_a_mount_meet_a_full_disk(&["--durability", "strict"], false);
}

#[test]
fn a_mount_of_two_servers_goes_on_beside_the_full_disk_of_one() {
    let (forming, disk) = (Forming::of("2"), Disk::empty("128m"));
    let mut second = pando(&join(&disk.data.path(), &forming.address, &forming.token));
    second.args(["--reserve", "32MiB"]);
    let second = Running::start(second, "serving ");
    forming.until_sound();
    let folder = crate::harness::folder();
    let mount = Mountpoint::new(folder.path());
    succeed(&["mount", &forming.address, text(&mount.0), "--token", text(&forming.token)]);
    let at = |dir: u32, name: &str| mount.0.join(dir.to_string()).join(name);
    // Directories are on both servers.
    for dir in 0..16 {
        fs::create_dir(at(dir, "")).unwrap();
        fs::write(at(dir, "kept"), large(dir)).unwrap();
    }

    let filler = disk.fill_to(20 << 20);
    let files = Cell::new(0);
    let create = |dir: u32| {
        files.set(files.get() + 1);
        let made = fs::File::create_new(at(dir, &format!("new{}", files.get())))?;
        // The mount may have answered for the server, which says so only then.
        made.sync_all()
    };
    until("no server ever says that its disk is full", || (0..16).any(|dir| create(dir).is_err()));
    let (full, fine): (Vec<u32>, Vec<u32>) = (0..16).partition(|dir| create(*dir).is_err());
    assert!(!fine.is_empty(), "both servers are full");
    for dir in &full {
        assert_full(create(*dir), "a file");
        // The names are on the full server, wherever the other file is.
        assert_full(fs::hard_link(at(fine[0], "kept"), at(*dir, "link")), "a link");
        assert!(fs::read(at(*dir, "kept")).unwrap() == large(*dir), "{dir}");
        fs::rename(at(*dir, "kept"), at(*dir, "moved")).unwrap();
    }
    for dir in &fine {
        fs::write(at(*dir, "more"), large(*dir)).unwrap();
    }
    // A directory is placed on either server; one that is refused is not there.
    let made: Vec<bool> = (100..116).map(|dir| fs::create_dir(at(dir, "")).is_ok()).collect();
    assert!(made.contains(&true) && made.contains(&false), "{made:?}");
    for (dir, made) in (100..).zip(&made) {
        assert_eq!(fs::exists(at(dir, "")).unwrap(), *made, "{dir}");
    }
    fs::remove_file(at(full[0], "moved")).unwrap();

    fs::remove_file(filler).unwrap();
    until("writes never resume", || full.iter().all(|dir| create(*dir).is_ok()));
    for dir in &full[1..] {
        assert!(fs::read(at(*dir, "moved")).unwrap() == large(*dir), "{dir}");
    }
    unmount(&mount.0);
    succeed(&["fsck", &forming.address, "--token", text(&forming.token)]);
    assert_eq!((second.stop(), forming.coordinator.stop()), (Some(0), Some(0)));
}
