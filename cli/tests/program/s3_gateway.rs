//! `pando s3` as its clients meet it: boto3, s3cmd and rclone, as Debian packages have them.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use client::{Client, Config, OpenOptions};

use crate::harness::{Data, Running, fail, pando, stderr, text};

const PYTHON: &str = "/usr/bin/python3";

/// A server, and a gateway for three keys.
pub(crate) struct Served {
    gateway: Running,
    server: Running,
    data: Data,
}

impl Served {
    pub(crate) fn start() -> Served {
        let data = Data::formatted();
        let server = data.serve(&[]);
        let (writer, reader) = (data.admin_token(), data.token(&["--ro"]));
        let (writer, reader) = (text(&writer), text(&reader));
        let keys = data.folder.path().join("keys");
        let lines = format!(
            "# keys\nwriter secret-of-writer {writer}\nreader secret-of-reader {reader}\n\
             refused secret-of-refused {writer} ro\n"
        );
        fs::write(&keys, lines).unwrap();
        let args = ["s3", server.address(), "--keys", text(&keys), "--listen", "127.0.0.1:0"];
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(fail(1, &args).contains("chmod 600"), "others may read the secrets");
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
        let gateway = Running::start(pando(&args), "serving s3 at ");
        Served { gateway, server, data }
    }

    pub(crate) fn address(&self) -> &str {
        self.gateway.address()
    }

    /// Symbolic links in the bucket `first`, as a mount would make them, and a file that others may
    /// not read.
    fn make_links(&self) {
        self.as_admin(async |client| {
            client.mkdir("/Outside", 0o755).await.unwrap();
            client.write("/Outside/secret", b"secret").await.unwrap();
            client.mkdir("/first", 0o755).await.unwrap();
            client.symlink("../Outside", "/first/link-dir").await.unwrap();
            client.symlink("/Outside/secret", "/first/link").await.unwrap();
            let private = OpenOptions::writing().create_new(0o640);
            client.open_with("/first/private", private).await.unwrap().close().await.unwrap();
        });
    }

    fn as_admin(&self, act: impl AsyncFnOnce(&Client)) {
        let token = fs::read_to_string(self.data.admin_token()).unwrap();
        let config = Config::new(vec![self.server.address().to_owned()], token.trim());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Box::pin(async {
            let client = Client::connect(config).await.unwrap();
            act(&client).await;
            client.close().await.unwrap();
        }));
    }
}

/// Runs a program of others to its end, which must be a good one; what it printed.
pub(crate) fn foreign(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {said}{}", stderr(&output));
    said
}

/// Whether a program is there; says so if it is not.
fn has(program: &str, args: &[&str]) -> bool {
    let there = Command::new(program).args(args).output().is_ok_and(|ran| ran.status.success());
    if !there {
        eprintln!("skipped: {program} {} does not run; see scripts/deps", args.join(" "));
    }
    there
}

fn tree(folder: &Path) -> PathBuf {
    let tree = folder.join("tree");
    fs::create_dir_all(tree.join("a/b c")).unwrap();
    for (name, bytes) in [("empty", 0), ("a/one", 1), ("a/b c/ü", 100_000), ("large", 9_000_000)] {
        let contents: Vec<u8> = (0..bytes).map(|n: u32| n.to_le_bytes()[n as usize % 2]).collect();
        fs::write(tree.join(name), contents).unwrap();
    }
    tree
}

#[test]
fn boto3_finds_what_s3_promises() {
    if !has(PYTHON, &["-c", "import boto3"]) {
        return;
    }
    let served = Served::start();
    served.make_links();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/s3_gateway.py");
    let said = foreign(Command::new(PYTHON).args(["-u", script, served.address()]));
    assert!(said.ends_with("passed cut_uploads\n"), "{said}");
    served.as_admin(async |client| {
        for (path, mode) in [("/first/private", 0o640), ("/first/told", 0o644)] {
            assert_eq!(client.stat(path).await.unwrap().mode & 0o777, mode, "{path}");
        }
    });
    assert_eq!(served.gateway.stop(), Some(0));
}

#[test]
fn s3cmd_puts_syncs_and_removes() {
    if !has("s3cmd", &["--version"]) {
        return;
    }
    let served = Served::start();
    let tree = tree(served.data.folder.path());
    let s3cmd = |args: &[&str]| {
        let host = format!("--host={}", served.address());
        let bucket = format!("--host-bucket={}", served.address());
        let mut command = Command::new("s3cmd");
        command.args(["--no-ssl", "--access_key=writer", "--secret_key=secret-of-writer"]);
        // The program's default region, `US`, is none.
        command.arg("--region=us-east-1");
        command.args(["--config=/dev/null", &host, &bucket, "--multipart-chunk-size-mb=5"]);
        foreign(command.args(args))
    };
    s3cmd(&["mb", "s3://bucket"]);
    let from = format!("{}/", text(&tree));
    s3cmd(&["sync", &from, "s3://bucket/tree/"]);
    let listed = s3cmd(&["ls", "--recursive", "s3://bucket/"]);
    assert_eq!(listed.lines().count(), 4, "{listed}");
    let back = served.data.folder.path().join("back");
    fs::create_dir(&back).unwrap();
    s3cmd(&["sync", "s3://bucket/tree/", &format!("{}/", text(&back))]);
    foreign(Command::new("diff").arg("-r").args([&tree, &back]));
    assert!(!s3cmd(&["sync", "--dry-run", &from, "s3://bucket/tree/"]).contains("upload:"));
    s3cmd(&["del", "--recursive", "--force", "s3://bucket/tree"]);
    s3cmd(&["rb", "s3://bucket"]);
}

#[test]
fn rclone_syncs_a_tree_and_finds_it_the_same() {
    if !has("rclone", &["version"]) {
        return;
    }
    let served = Served::start();
    let tree = tree(served.data.folder.path());
    let rclone = |args: &[&str]| {
        let mut command = Command::new("rclone");
        command.env("RCLONE_CONFIG", "/dev/null").env("RCLONE_CONFIG_GW_TYPE", "s3");
        command.env("RCLONE_CONFIG_GW_PROVIDER", "Other");
        command.env("RCLONE_CONFIG_GW_ACCESS_KEY_ID", "writer");
        command.env("RCLONE_CONFIG_GW_SECRET_ACCESS_KEY", "secret-of-writer");
        command.env("RCLONE_CONFIG_GW_ENDPOINT", format!("http://{}", served.address()));
        command.env("RCLONE_S3_UPLOAD_CUTOFF", "5Mi").env("RCLONE_S3_CHUNK_SIZE", "5Mi");
        command.env("RCLONE_RETRIES", "1").env_remove("AWS_CA_BUNDLE");
        foreign(command.args(args))
    };
    rclone(&["mkdir", "gw:bucket"]);
    rclone(&["sync", text(&tree), "gw:bucket/tree"]);
    rclone(&["check", "--download", text(&tree), "gw:bucket/tree"]);
    rclone(&["check", text(&tree), "gw:bucket/tree"]);
    fs::remove_file(tree.join("a/one")).unwrap();
    rclone(&["sync", text(&tree), "gw:bucket/tree"]);
    assert_eq!(rclone(&["lsf", "-R", "--files-only", "gw:bucket"]).lines().count(), 3);
    rclone(&["copy", "gw:bucket/tree", "gw:bucket/copy"]);
    rclone(&["check", "gw:bucket/tree", "gw:bucket/copy"]);
    rclone(&["purge", "gw:bucket"]);
}

#[test]
fn a_gateway_is_for_this_machine_unless_told_otherwise() {
    let args = ["s3", "127.0.0.1:1", "--listen", "0.0.0.0:0"];
    assert!(fail(2, &args).contains("--listen-in-clear"));
    assert!(fail(2, &args[..2]).contains("no access key"));
}

/// Puts the keys that it is given, and prints the bytes of each or the code of its error.
const PUT_OR_GET: &str = r#"
import sys, boto3
from botocore.config import Config
s3 = boto3.client(
    "s3", endpoint_url=f"http://{sys.argv[1]}", aws_access_key_id="writer",
    aws_secret_access_key="secret-of-writer", region_name="us-east-1",
    config=Config(signature_version="s3v4", s3={"addressing_style": "path"}))
for at in sys.argv[3:]:
    bucket, key = at.split("/", 1)
    try:
        if sys.argv[2] == "put":
            s3.put_object(Bucket=bucket, Key=key, Body=at.encode())
        else:
            print(s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode())
    except s3.exceptions.ClientError as error:
        print(error.response["Error"]["Code"])
"#;

#[test]
fn a_directory_that_a_mount_moves_is_not_taken_for_the_one_before() {
    if !has(PYTHON, &["-c", "import boto3"]) {
        return;
    }
    let served = Served::start();
    let ask = |what: &str, keys: &[&str]| {
        let mut command = Command::new(PYTHON);
        command.args(["-c", PUT_OR_GET, served.address(), what]).args(keys);
        foreign(&mut command)
    };
    served.as_admin(async |client| {
        client.mkdir("/bucket", 0o755).await.unwrap();
    });
    assert_eq!(ask("put", &["bucket/d/e/x", "bucket/d/e/x", "bucket/y"]), "");
    served.as_admin(async |client| {
        client.rename("/bucket/d", "/bucket/moved").await.unwrap();
        client.create_dir_all("/bucket/d/e", 0o755).await.unwrap();
    });
    assert_eq!(ask("get", &["bucket/d/e/x", "bucket/moved/e/x"]), "NoSuchKey\nbucket/d/e/x\n");
    assert_eq!(ask("put", &["bucket/d/e/new"]), "");
    served.as_admin(async |client| {
        assert_eq!(client.read("/bucket/d/e/new").await.unwrap(), &b"bucket/d/e/new"[..]);
        client.rename("/bucket", "/old-bucket").await.unwrap();
        client.mkdir("/bucket", 0o755).await.unwrap();
    });
    assert_eq!(ask("get", &["bucket/y", "old-bucket/y"]), "NoSuchKey\nbucket/y\n");
    assert_eq!(ask("put", &["bucket/y"]), "");
    served.as_admin(async |client| {
        assert_eq!(client.read("/bucket/y").await.unwrap(), &b"bucket/y"[..]);
        client.rename("/bucket", "/gone").await.unwrap();
    });
    assert_eq!(ask("put", &["bucket/z"]), "NoSuchBucket\n");
}
