//! Blocks in a bucket of an S3 store.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

use super::{Blocks, BlocksConfig, BlocksError, Compression};

/// Opens `bucket/prefix?option=value&...`. Nothing is sent yet.
pub(super) fn open(config: &BlocksConfig, place: &str) -> Result<Blocks, BlocksError> {
    let (place, query) = place.split_once('?').unwrap_or((place, ""));
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if bucket.is_empty() {
        return Err(config.refused("it names no bucket"));
    }
    // Someone else may have chosen a provider of cryptography for the process; theirs is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();

    let mut builder = AmazonS3Builder::new();
    for (name, value) in &config.environment {
        if let Some(key) = variable(name) {
            builder = builder.with_config(key, value);
        }
    }
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, "true"));
        builder = builder.with_config(key(config, name)?, value);
    }
    for (name, value) in &config.options {
        builder = builder.with_config(key(config, name)?, value);
    }
    let objects = builder.with_bucket_name(bucket).build();
    let objects = objects.map_err(|error| config.refused(error.to_string()))?;
    Ok(Blocks {
        objects: Arc::new(objects),
        prefix: prefix_of(prefix).into(),
        directory: None,
        compression: Compression::None,
    })
}

fn key(config: &BlocksConfig, name: &str) -> Result<AmazonS3ConfigKey, BlocksError> {
    name.parse().map_err(|_| config.refused(format!("s3 has no option {name}")))
}

fn variable(name: &str) -> Option<AmazonS3ConfigKey> {
    let ours = name.starts_with("AWS_");
    name.to_ascii_lowercase().parse().ok().filter(|_| ours)
}

fn prefix_of(path: &str) -> String {
    match path.trim_matches('/') {
        "" => String::new(),
        path => format!("{path}/"),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use bytes::Bytes;
    use hyper_util::{
        rt::{TokioExecutor, TokioIo},
        server::conn::auto::Builder,
    };
    use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
    use tokio::net::TcpListener;

    use super::*;
    use crate::blocks::tests::behaves;
    use base::BlockId;

    /// An S3 server with one bucket on loopback; returns its address.
    async fn server(root: &Path) -> String {
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
                    let _ = builder.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        format!("http://{address}")
    }

    fn config(endpoint: &str, secret: &str) -> BlocksConfig {
        let url = format!("s3://bucket/some/where?endpoint={endpoint}&allow_http=true&region=here");
        let options = [("access_key_id", "id"), ("secret_access_key", secret)];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
        BlocksConfig {
            url,
            options: options.into(),
            environment: Vec::new(),
            compression: Compression::None,
        }
    }

    #[tokio::test]
    async fn an_s3_store_behaves() {
        let root = tempfile::tempdir().unwrap();
        let endpoint = server(root.path()).await;
        behaves(&Blocks::open(&config(&endpoint, "secret")).unwrap()).await;
    }

    #[tokio::test]
    async fn an_s3_store_that_compresses_behaves() {
        let root = tempfile::tempdir().unwrap();
        let endpoint = server(root.path()).await;
        let config = BlocksConfig { compression: Compression::Zstd, ..config(&endpoint, "secret") };
        let blocks = Blocks::open(&config).unwrap();
        behaves(&blocks).await;
        crate::blocks::tests::compresses(&blocks).await;
    }

    #[tokio::test]
    async fn blocks_are_below_the_prefix_and_damage_is_found() {
        let root = tempfile::tempdir().unwrap();
        let endpoint = server(root.path()).await;
        let blocks = Blocks::open(&config(&endpoint, "secret")).unwrap();
        blocks.put(BlockId(1), Bytes::from_static(b"pando")).await.unwrap();
        let object = crate::blocks::name::path("some/where/", BlockId(1));
        let file = root.path().join("bucket").join(object.as_ref());
        let mut bytes = fs::read(&file).unwrap();
        bytes[2] ^= 1;
        fs::write(&file, &bytes).unwrap();
        let read = blocks.get(BlockId(1), 5, 0..5).await;
        assert!(matches!(read, Err(BlocksError::Corrupt { .. })), "{read:?}");
        fs::write(&file, &bytes[..7]).unwrap();
        let read = blocks.get(BlockId(1), 5, 0..5).await;
        assert!(matches!(read, Err(BlocksError::Corrupt { .. })), "{read:?}");
    }

    #[tokio::test]
    async fn a_wrong_key_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let endpoint = server(root.path()).await;
        let blocks = Blocks::open(&config(&endpoint, "wrong")).unwrap();
        let put = blocks.put(BlockId(1), Bytes::from_static(b"pando")).await;
        assert!(matches!(put, Err(BlocksError::Refused(_))), "{put:?}");
    }

    #[tokio::test]
    async fn keys_come_from_the_environment_when_there_are_no_options() {
        let root = tempfile::tempdir().unwrap();
        let endpoint = server(root.path()).await;
        let mut config = config(&endpoint, "wrong");
        config.options.clear();
        let variables = [
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_PROFILE", "passed over"),
            ("region", "passed over"),
        ];
        config.environment = variables.map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        behaves(&Blocks::open(&config).unwrap()).await;
    }

    #[test]
    fn unknown_options_and_missing_buckets_are_told() {
        for url in ["s3://", "s3:///prefix", "s3://b?colour=blue"] {
            let opened = Blocks::open(&BlocksConfig::new(url));
            assert!(matches!(opened, Err(BlocksError::Config { .. })), "{url}");
        }
    }
}
