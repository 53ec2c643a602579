//! An S3 store on loopback with one bucket, `bucket`, in a directory; prints its address. For the
//! POSIX suites (`cargo xtask matrix`), which run it and kill it.
//!
//! Its keys are `id` and `secret`. It never ends by itself.
#![expect(clippy::print_stdout, reason = "its address is what it says")]

use std::{fs, path::PathBuf};

use anyhow::Context as _;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let root = PathBuf::from(std::env::args().nth(1).context("usage: s3_stand_in DIR")?);
    fs::create_dir_all(root.join("bucket"))?;
    let store = s3s_fs::FileSystem::new(&root).map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let mut service = S3ServiceBuilder::new(store);
    service.set_auth(SimpleAuth::from_single("id", "secret"));
    let service = service.build();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    loop {
        let (socket, _) = listener.accept().await?;
        let service = service.clone();
        tokio::spawn(async move {
            let builder = Builder::new(TokioExecutor::new());
            // The client sees the end of its connection.
            let _ = builder.serve_connection(TokioIo::new(socket), service).await;
        });
    }
}
