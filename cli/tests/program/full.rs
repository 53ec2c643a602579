//! A full disk: a small one in memory, which only root can mount.

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use base::FsError;
use client::{Client, Config, Error};
use wire::XattrMode;

use crate::{
    harness::{Data, Running, pause, succeed, text},
    serve::get,
};

/// A disk of its own for a data directory; it goes with the test.
struct Disk {
    data: Data,
    path: PathBuf,
}

impl Disk {
    fn new(size: &str) -> Disk {
        let folder = crate::harness::folder();
        let path = folder.path().to_owned();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "pando-test"]).arg(&path);
        let mounted = mount.output().expect("mount(8) can be started");
        let said = String::from_utf8_lossy(&mounted.stderr);
        assert!(mounted.status.success(), "this test mounts a tmpfs, as root: {said}");
        let data = Data { folder };
        succeed(&["format", "--data", text(&data.path())]);
        Disk { data, path }
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
