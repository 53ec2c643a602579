//! Tokens that squash and map ids: by our own client, through a mount, and on several servers.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
};

use base::{Cred, FsError};
use client::{Client, Config, Error};

use crate::{
    harness::{Data, Running, fail, folder, pando, run, stderr, succeed, text, unmount},
    mounted::Mountpoint,
};

const ANONYMOUS: u32 = 65534;
/// Users and groups 0 to 9 of clients are 5000 to 5009 of the file system.
const MAPPED: [&str; 4] = ["--map-uid", "0:5000:10", "--map-gid", "0:5000:10"];

fn user(uid: u32) -> Cred {
    Cred { uid, gid: uid, groups: Vec::new() }
}

fn config(address: &str, token: &Path) -> Config {
    let token = fs::read_to_string(token).expect("the test wrote it");
    Config::new(vec![address.to_owned()], token.trim())
}

async fn connect(address: &str, token: &Path) -> Client {
    Box::pin(Client::connect(config(address, token))).await.expect("the token is good")
}

/// Runs a test's part that talks to the server.
fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("it can be made").block_on(Box::pin(work))
}

/// A file system, of one server or three.
struct Site {
    _running: Running,
    folder: tempfile::TempDir,
    data: PathBuf,
    address: String,
}

impl Site {
    fn alone() -> Site {
        let data = Data::formatted();
        let running = data.serve(&[]);
        let (path, address) = (data.path(), running.address().to_owned());
        Site { _running: running, folder: data.folder, data: path, address }
    }

    fn of_three() -> Site {
        let folder = folder();
        let dir = folder.path().join("dev");
        let args = ["dev", "--dir", text(&dir), "--servers", "3", "--listen", "127.0.0.1:0"];
        let running = Running::start(pando(&args), "serving ");
        let first = running.said.lines().find(|line| line.starts_with("server 0 at ")).unwrap();
        let address = first.split(" at ").nth(1).unwrap().split(',').next().unwrap().to_owned();
        Site { _running: running, folder, data: dir.join("server-0"), address }
    }

    fn token(&self, limits: &[&str]) -> PathBuf {
        let token = succeed(&[&["token", "create", "--data", text(&self.data)], limits].concat());
        let file = self.folder.path().join(format!("token{}", limits.concat()));
        fs::write(&file, token).unwrap();
        file
    }

    async fn admin(&self) -> Client {
        connect(&self.address, &self.data.join("admin.token")).await
    }

    /// A mount with a token, which all users of this machine reach.
    fn mount(&self, token: &Path) -> Mounted {
        fs::set_permissions(self.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let at = self.folder.path().join(token.file_name().unwrap().to_str().unwrap());
        let at = Mountpoint::new(&at.with_extension("mounted"));
        let token = ["--token", text(token), "--log", "none", "-o", "allow_other"];
        succeed(&[&["mount", &self.address, text(&at.0)], &token[..]].concat());
        Mounted(at)
    }
}

/// A mount, until the end of the test.
struct Mounted(Mountpoint);

impl Mounted {
    fn path(&self, name: &str) -> PathBuf {
        self.0.0.join(name)
    }

    fn ends(self) {
        unmount(&self.0.0);
    }
}

/// Runs a shell's line in a directory as a user; whether it succeeds.
fn as_user(uid: u32, dir: &Path, line: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(dir).uid(uid).gid(uid);
    shell.output().expect("there is a shell").status.success()
}

/// Makes `/open`, which everybody may change, and in it `theirs`, which only user 7 may read.
async fn with_a_file_of_another(site: &Site) -> Client {
    let admin = site.admin().await;
    admin.mkdir("/open", 0o777).await.unwrap();
    admin.chmod("/open", 0o777).await.unwrap();
    admin.mkdir("/open/closed", 0o700).await.unwrap();
    admin.write("/open/closed/inside", b"inside").await.unwrap();
    admin.write("/open/theirs", b"theirs").await.unwrap();
    admin.chmod("/open/theirs", 0o600).await.unwrap();
    admin.chown("/open/theirs", Some(7), Some(7)).await.unwrap();
    admin
}

async fn owners(client: &Client, path: &str) -> (u32, u32) {
    let attr = client.stat(path).await.unwrap();
    (attr.uid, attr.gid)
}

#[test]
fn root_of_a_squashing_token_is_nobody_for_our_client_on_one_server_and_on_three() {
    for site in [Site::alone(), Site::of_three()] {
        let root_only = site.token(&["--squash", "root"]);
        let all = site.token(&["--squash", "all", "--anon-uid", "70", "--anon-gid", "71"]);
        on_a_runtime(async {
            let admin = with_a_file_of_another(&site).await;
            let denied = || Err(Error::Fs(FsError::Denied));
            let forbidden = || Err(Error::Fs(FsError::NotPermitted));
            for (token, anonymous) in [(&root_only, (ANONYMOUS, ANONYMOUS)), (&all, (70, 71))] {
                let client = connect(&site.address, token).await;
                assert_eq!(client.read("/open/theirs").await.map(drop), denied());
                assert_eq!(client.read("/open/closed/inside").await.map(drop), denied());
                assert_eq!(client.chmod("/open/theirs", 0o666).await.map(drop), forbidden());
                client.write("/open/mine", b"mine").await.unwrap();
                client.mkdir("/open/dir", 0o700).await.unwrap();
                client.write("/open/dir/deep", b"deep").await.unwrap();
                for path in ["/open/mine", "/open/dir", "/open/dir/deep"] {
                    assert_eq!(owners(&admin, path).await, anonymous, "{path}");
                    assert_eq!(owners(&client, path).await, anonymous, "{path}");
                }
                assert_eq!(client.status().await.map(drop), forbidden());
                let renamed = client.rename("/open/dir", "/open/closed/dir").await;
                assert_eq!(renamed.map(drop), denied());
                client.rename("/open/mine", "/open/dir/mine").await.unwrap();
                client.unlink("/open/dir/mine").await.unwrap();
                client.unlink("/open/dir/deep").await.unwrap();
                client.rmdir("/open/dir").await.unwrap();

                let seven = client.as_user(user(7));
                let read = seven.read("/open/theirs").await.map(|bytes| bytes.to_vec());
                match anonymous.0 {
                    ANONYMOUS => assert_eq!(read, Ok(b"theirs".to_vec())),
                    _ => assert_eq!(read.map(drop), denied()),
                }
                client.close().await.unwrap();
            }
            admin.close().await.unwrap();
        });
    }
}

#[test]
fn ids_are_mapped_for_our_client_on_one_server_and_on_three() {
    for site in [Site::alone(), Site::of_three()] {
        let token = site.token(&MAPPED);
        on_a_runtime(async {
            let admin = with_a_file_of_another(&site).await;
            let client = connect(&site.address, &token).await;
            assert_eq!(owners(&client, "/open").await, (ANONYMOUS, ANONYMOUS));
            client.mkdir("/open/dir", 0o755).await.unwrap();
            let three = client.as_user(user(3));
            three.write("/open/file", b"three").await.unwrap();
            assert_eq!(owners(&admin, "/open/dir").await, (5000, 5000));
            assert_eq!(owners(&admin, "/open/file").await, (5003, 5003));
            assert_eq!(owners(&client, "/open/file").await, (3, 3));
            let mut listing = three.read_dir("/open").await.unwrap();
            let mut listed = Vec::new();
            while let Some(entry) = listing.next().await.unwrap() {
                listed.push(entry.name.to_string());
            }
            assert!(listed.contains(&"file".to_owned()), "{listed:?}");
            // The superuser outside is an ordinary user inside.
            let denied = Err(Error::Fs(FsError::NotPermitted));
            assert_eq!(client.chmod("/open/file", 0o666).await.map(drop), denied);
            for uid in [10, 5003, ANONYMOUS] {
                let named = three.chown("/open/file", Some(uid), None).await.map(drop);
                assert_eq!(named, Err(Error::Fs(FsError::Invalid)), "{uid}");
            }
            // Files move between servers and keep their owners.
            three.rename("/open/file", "/open/other name").await.unwrap();
            assert_eq!(owners(&three, "/open/other name").await, (3, 3));
            client.close().await.unwrap();
            admin.close().await.unwrap();
        });
    }
}

#[test]
fn root_of_a_mount_with_a_squashing_token_is_nobody() {
    let site = Site::alone();
    on_a_runtime(async { with_a_file_of_another(&site).await.close().await.unwrap() });
    let mount = site.mount(&site.token(&["--squash", "root"]));
    let (open, theirs) = (mount.path("open"), mount.path("open/theirs"));
    let kind = |result: std::io::Result<()>| result.map_err(|error| error.kind());
    let denied = Err(std::io::ErrorKind::PermissionDenied);
    assert_eq!(kind(fs::read(&theirs).map(drop)), denied);
    assert_eq!(kind(fs::set_permissions(&theirs, fs::Permissions::from_mode(0o666))), denied);
    assert_eq!(kind(chown(&theirs, Some(0), Some(0))), denied);
    assert_eq!(kind(fs::read(mount.path("open/closed/inside")).map(drop)), denied);
    fs::write(open.join("mine"), "mine").unwrap();
    fs::create_dir(open.join("dir")).unwrap();
    for name in ["mine", "dir"] {
        let made = fs::metadata(open.join(name)).unwrap();
        assert_eq!((made.uid(), made.gid()), (ANONYMOUS, ANONYMOUS), "{name}");
    }
    assert_eq!(fs::read(open.join("mine")).unwrap(), b"mine");
    // Another user is who it is, whatever of its file is in the kernel's cache.
    assert!(as_user(7, &open, "grep -q theirs theirs"));
    assert_eq!(kind(fs::read(&theirs).map(drop)), denied);
    assert!(!as_user(8, &open, "cat theirs"));
    assert!(as_user(8, &open, "echo eight > eight"));
    assert_eq!(fs::metadata(open.join("eight")).unwrap().uid(), 8);
    mount.ends();
}

#[test]
fn all_users_of_a_mount_are_one_whom_its_token_squashes() {
    let site = Site::alone();
    on_a_runtime(async { with_a_file_of_another(&site).await.close().await.unwrap() });
    let mount = site.mount(&site.token(&["--squash", "all", "--anon-uid", "70"]));
    let open = mount.path("open");
    assert!(as_user(8, &open, "umask 077; echo eight > file; mkdir dir"));
    // Files of one are everybody's here, though modes say otherwise to the kernel.
    assert!(as_user(9, &open, "grep -q eight file && echo nine >> file"));
    assert!(as_user(9, &open, "echo nine > dir/file && chmod 640 file"));
    assert!(!as_user(7, &open, "cat theirs"));
    assert!(!as_user(9, &open, "chown 9 file"));
    assert_eq!(fs::read_to_string(mount.path("open/file")).unwrap(), "eight\nnine\n");
    on_a_runtime(async {
        let admin = site.admin().await;
        for path in ["/open/file", "/open/dir", "/open/dir/file"] {
            assert_eq!(owners(&admin, path).await, (70, ANONYMOUS), "{path}");
        }
        assert_eq!(admin.stat("/open/file").await.unwrap().mode & 0o777, 0o640);
        admin.close().await.unwrap();
    });
    mount.ends();
}

#[test]
fn a_mount_shows_ids_by_the_map_of_its_token_and_takes_them_so() {
    let site = Site::alone();
    on_a_runtime(async { with_a_file_of_another(&site).await.close().await.unwrap() });
    let mount = site.mount(&site.token(&MAPPED));
    let file = mount.path("open/file");
    fs::write(&file, "by root").unwrap();
    let seen = |path: &Path| {
        let made = fs::metadata(path).unwrap();
        (made.uid(), made.gid())
    };
    assert_eq!(seen(&file), (0, 0));
    assert_eq!(seen(&mount.path("open/theirs")), (ANONYMOUS, ANONYMOUS));
    chown(&file, None, Some(0)).unwrap();
    // The superuser outside is none inside, and gives nothing away.
    let given = chown(&file, Some(3), None).unwrap_err();
    assert_eq!(given.kind(), std::io::ErrorKind::PermissionDenied);
    let unmapped = chown(&file, Some(77), None).unwrap_err();
    assert_eq!(unmapped.kind(), std::io::ErrorKind::InvalidInput);
    assert!(as_user(4, &mount.path("open"), "echo four > four"));
    let listed = Command::new("ls").arg("-ln").arg(mount.path("open")).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let line = listed.lines().find(|line| line.ends_with(" four")).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>()[2..4], ["4", "4"], "{listed}");

    let named = |uid: u32| {
        let mut acl = vec![2, 0, 0, 0];
        for (tag, perm, id) in [
            (1u16, 6u16, u32::MAX),
            (2, 4, uid),
            (4, 0, u32::MAX),
            (0x10, 4, u32::MAX),
            (0x20, 0, u32::MAX),
        ] {
            acl.extend(tag.to_le_bytes());
            acl.extend(perm.to_le_bytes());
            acl.extend(id.to_le_bytes());
        }
        acl
    };
    let (name, flags) = ("system.posix_acl_access", rustix::fs::XattrFlags::empty());
    rustix::fs::setxattr(&file, name, &named(4), flags).unwrap();
    let refused = rustix::fs::setxattr(&file, name, &named(77), flags);
    assert_eq!(refused, Err(rustix::io::Errno::INVAL));
    let mut shown = [0; 100];
    let bytes = rustix::fs::getxattr(&file, name, &mut shown[..]).unwrap();
    assert_eq!(shown[..bytes], named(4));
    assert!(as_user(4, &mount.path("open"), "cat file"));
    assert!(!as_user(5, &mount.path("open"), "cat file"));
    on_a_runtime(async {
        let admin = site.admin().await;
        assert_eq!(owners(&admin, "/open/file").await, (5000, 5000));
        assert_eq!(owners(&admin, "/open/four").await, (5004, 5004));
        admin.close().await.unwrap();
    });
    mount.ends();
}

#[test]
fn a_token_says_whom_it_squashes_and_cannot_be_altered() {
    let site = Site::alone();
    let limits = ["--squash", "root", "--map-uid", "1000:5000:10", "--map-uid", "7:8"];
    let token = site.token(&limits);
    let shown: serde_json::Value =
        serde_json::from_str(&succeed(&["token", "show", "--json", text(&token)])).unwrap();
    let expected = serde_json::json!({
        "squash": "root", "anon_uid": ANONYMOUS, "anon_gid": ANONYMOUS,
        "map_uid": ["1000:5000:10", "7:8:1"], "map_gid": [],
    });
    assert_eq!(shown["ids"], expected);
    let said = succeed(&["token", "show", text(&token)]);
    assert!(said.contains("user map") && said.contains("1000:5000:10 7:8:1"), "{said}");

    let signed = fs::read_to_string(&token).unwrap();
    let status = |signed: String| {
        let forged = site.folder.path().join("forged");
        fs::write(&forged, signed).unwrap();
        let client = on_a_runtime(Box::pin(Client::connect(config(&site.address, &forged))));
        client.map(drop)
    };
    assert!(status(signed.clone()).is_ok());
    let hex = "pando2.".len();
    for at in [hex + 26, hex + 40, signed.trim().len() - 70, signed.trim().len() - 1] {
        let mut altered = signed.clone().into_bytes();
        altered[at] = if altered[at] == b'0' { b'1' } else { b'0' };
        let refused = status(String::from_utf8(altered).unwrap()).unwrap_err();
        assert!(matches!(refused, Error::Refused(_)), "{refused:?}");
    }
    let create = |limits: &[&str]| {
        let data = text(&site.data);
        fail(2, &[&["token", "create", "--data", data], limits].concat())
    };
    assert!(create(&["--anon-uid", "5"]).contains("need --squash"));
    assert!(create(&["--map-uid", "1:2:3", "--map-uid", "3:9"]).contains("id 3 outside"));
    for limits in [
        &["--squash", "some"][..],
        &["--squash", "root", "--uid", "7"],
        &["--squash", "root", "--pages"],
        &["--map-gid", "1:2:0"],
    ] {
        let output = run(&[&["token", "create", "--data", text(&site.data)], limits].concat());
        assert_eq!(output.status.code(), Some(2), "{limits:?}: {}", stderr(&output));
    }
}
