//! Contents in an S3 store: the server tells clients how to reach it, and they do.

use std::{fs, net::SocketAddr, path::Path};

use client::{Client, Config};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use tokio::net::TcpListener;

use crate::harness::{Data, Running, folder, pando, run, stderr, text};

/// An S3 server with one bucket, on loopback.
async fn store(root: &Path) -> SocketAddr {
    fs::create_dir(root.join("bucket")).unwrap();
    let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(root).unwrap());
    service.set_auth(SimpleAuth::from_single("id", "secret"));
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

fn objects(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { objects(&entry.path()) } else { 1 }).sum()
}

#[test]
fn clients_keep_contents_in_the_store_that_the_server_names() {
    let bucket = folder();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let endpoint = runtime.block_on(store(bucket.path()));
    let data = Data { folder: folder() };
    let url = format!("s3://bucket/prefix?endpoint=http://{endpoint}&allow_http=true&region=here");
    let data_dir = data.path();
    let formatted = run(&["format", "--data", text(&data_dir), "--blocks", &url]);
    assert!(formatted.status.success(), "{}", stderr(&formatted));

    let mut command = pando(&["serve", "--listen", "127.0.0.1:0", "--http", "off", "--data"]);
    command.arg(&data_dir);
    command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "secret");
    let server = Running::start(command, "serving ");
    let token = fs::read_to_string(data.admin_token()).unwrap();
    let config = || Config::new(vec![server.address().to_owned()], token.trim());
    let contents: Vec<u8> = (0..5_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
    runtime.block_on(Box::pin(async {
        let writer = Box::pin(Client::connect(config())).await.unwrap();
        writer.write("/big", &contents).await.unwrap();
        writer.close().await.unwrap();
        let reader = Box::pin(Client::connect(config())).await.unwrap();
        assert!(reader.read("/big").await.unwrap() == contents);
        reader.close().await.unwrap();
    }));
    assert!(objects(&bucket.path().join("bucket/prefix")) >= 2, "an object for each block");
    assert_eq!(server.stop(), Some(0));
}
