//! Contents in an S3 store: how each process reaches it, and that only the server has its keys.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use base::{Cred, FsError};
use client::{Client, Config, Error};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use parking_lot::Mutex;
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::harness::{Data, Running, fail, folder, pando, run, stderr, succeed, text};

/// The secret key of the store; no other bytes of these tests contain it.
const SECRET: &str = "known-to-the-server-alone";
/// Contents of several blocks.
const BIG_BYTES: u32 = 5_000_000;

/// An S3 server with one bucket, on loopback.
async fn store(root: &Path) -> SocketAddr {
    fs::create_dir(root.join("bucket")).unwrap();
    let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(root).unwrap());
    service.set_auth(SimpleAuth::from_single("id", SECRET));
    let service = service.build();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let builder = Builder::new(TokioExecutor::new());
                builder.serve_connection(TokioIo::new(socket), service).await
            });
        }
    });
    address
}

/// All files below a folder.
fn objects(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let below = entries.map(|entry| entry.path());
    below.flat_map(|path| if path.is_dir() { objects(&path) } else { vec![path] }).collect()
}

/// A server that keeps contents in a store on loopback.
struct Stored {
    bucket: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    data: Data,
    server: Running,
}

impl Stored {
    fn start() -> Stored {
        let bucket = folder();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let endpoint = runtime.block_on(store(bucket.path()));
        let data = Data { folder: folder() };
        let url =
            format!("s3://bucket/prefix?endpoint=http://{endpoint}&allow_http=true&region=here");
        let data_dir = data.path();
        let formatted = run(&["format", "--data", text(&data_dir), "--blocks", &url]);
        assert!(formatted.status.success(), "{}", stderr(&formatted));

        let mut command = pando(&["serve", "--listen", "127.0.0.1:0", "--http", "off", "--data"]);
        command.arg(&data_dir);
        command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", SECRET);
        let server = Running::start(command, "serving ");
        Stored { bucket, runtime, data, server }
    }

    fn admin_token(&self) -> String {
        fs::read_to_string(self.data.admin_token()).unwrap().trim().to_owned()
    }

    /// A token with these options of `pando token create`.
    fn token(&self, options: &[&str]) -> String {
        let data = self.data.path();
        let made = [&["token", "create", "--data", text(&data)], options].concat();
        succeed(&made).trim().to_owned()
    }

    fn objects(&self) -> Vec<PathBuf> {
        objects(&self.bucket.path().join("bucket/prefix"))
    }

    fn connect(&self, address: &str, token: &str) -> Client {
        let config = Config::new(vec![address.to_owned()], token);
        self.runtime.block_on(Box::pin(Client::connect(config))).unwrap()
    }
}

impl Stored {
    /// Questions for addresses, and blocks that went through the server, one way and the other.
    async fn counted(&self, admin: &Client) -> [u64; 3] {
        let counters = admin.status().await.unwrap().counters;
        let count = |name| counters.iter().find(|(other, _)| other == name).expect("a counter").1;
        ["block_sign", "block_put", "block_get"].map(count)
    }
}

fn contents() -> Vec<u8> {
    (0..BIG_BYTES).map(|n| n.to_le_bytes()[n as usize % 3]).collect()
}

/// Passes connections on to a server; returns where it listens, and all that the server has said.
async fn overheard(server: String) -> (String, Arc<Mutex<Vec<u8>>>) {
    let heard: Arc<Mutex<Vec<u8>>> = Arc::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let said = Arc::clone(&heard);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut from, mut to) = client.into_split();
            let (mut says, mut hears) = TcpStream::connect(&server).await.unwrap().into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from, &mut hears).await });
            let said = Arc::clone(&said);
            tokio::spawn(async move {
                let mut some = vec![0; 1 << 16];
                while let Ok(len @ 1..) = says.read(&mut some).await {
                    said.lock().extend_from_slice(&some[..len]);
                    if to.write_all(&some[..len]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (address, heard)
}

fn has(bytes: &[u8], wanted: &str) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted.as_bytes())
}

#[test]
fn contents_are_kept_in_the_store_that_the_server_names() {
    let stored = Stored::start();
    let (address, token) = (stored.server.address(), stored.admin_token());
    let writer = stored.connect(address, &token);
    let reader = stored.connect(address, &token);
    stored.runtime.block_on(async {
        writer.write("/big", &contents()).await.unwrap();
        writer.close().await.unwrap();
        assert!(reader.read("/big").await.unwrap() == contents());
        let [signed, put, got] = stored.counted(&reader).await;
        assert_eq!((put, got), (0, 0), "they reach the store themselves");
        assert_eq!(signed, 2, "one question for many blocks, to put and to get");
        reader.close().await.unwrap();
    });
    assert!(stored.objects().len() >= 2, "an object for each block");
    assert_eq!(stored.server.stop(), Some(0));
}

#[test]
fn an_address_with_keys_is_refused() {
    let data = folder();
    let data = data.path().join("data");
    for option in ["secret_access_key", "aws_secret_access_key", "AWS_SESSION_TOKEN"] {
        let url = format!("s3://bucket/prefix?region=here&{option}={SECRET}");
        let said = fail(2, &["format", "--data", text(&data), "--blocks", &url]);
        assert!(said.contains("must not hold keys") && !said.contains(SECRET), "{said}");
        assert!(!data.exists());
    }
}

#[test]
fn no_client_hears_the_keys_of_the_store() {
    let stored = Stored::start();
    let (address, heard) = stored.runtime.block_on(overheard(stored.server.address().to_owned()));
    let admin = stored.connect(&address, &stored.admin_token());
    stored.runtime.block_on(async {
        admin.mkdir("/mine", 0o777).await.unwrap();
        admin.write("/mine/big", &contents()).await.unwrap();
        admin.status().await.unwrap();
        admin.close().await.unwrap();
    });
    let watcher = stored.connect(stored.server.address(), &stored.admin_token());
    let tokens: [(&[&str], Cred); 5] = [
        (&[], Cred::ROOT),
        (&["--ro"], Cred::ROOT),
        (&["--path", "/mine"], Cred::ROOT),
        (&["--uid", "7"], Cred { uid: 7, gid: 7, groups: Vec::new() }),
        (&["--path", "/mine", "--uid", "7", "--ro"], Cred { uid: 7, gid: 7, groups: Vec::new() }),
    ];
    for (number, (options, cred)) in tokens.into_iter().enumerate() {
        heard.lock().clear();
        let before = stored.runtime.block_on(stored.counted(&watcher));
        let client = stored.connect(&address, &stored.token(options)).as_user(cred);
        let here = if options.contains(&"--path") { "" } else { "/mine" };
        let new = format!("{here}/new{number}");
        stored.runtime.block_on(async {
            let read = client.read(format!("{here}/big")).await;
            assert!(read.unwrap() == contents(), "{options:?}");
            let written = client.write(&new, &contents()).await;
            if options.contains(&"--ro") {
                assert!(matches!(written, Err(Error::Fs(FsError::ReadOnly))), "{written:?}");
            } else {
                written.unwrap();
                assert!(client.read(&new).await.unwrap() == contents());
            }
            client.close().await.unwrap();
        });
        let counts = stored.runtime.block_on(stored.counted(&watcher));
        let more: Vec<u64> = counts.iter().zip(before).map(|(now, before)| now - before).collect();
        if options.is_empty() {
            assert!(more[0] > 0 && more[1..] == [0, 0], "{more:?}");
        } else {
            assert!(more[0] == 0 && more[2] > 0, "{options:?}: {more:?}");
            assert_eq!(more[1] > 0, !options.contains(&"--ro"), "{options:?}: {more:?}");
        }
        let heard = heard.lock();
        assert!(heard.len() > 100, "{options:?}: the server was overheard");
        assert!(!has(&heard, SECRET), "{options:?}: the secret key was on the wire");
    }
    assert_eq!(stored.server.stop(), Some(0));
}
