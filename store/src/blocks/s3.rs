//! Blocks in a bucket of an S3 store.

use std::{sync::Arc, time::Duration};

use object_store::{
    ClientConfigKey, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut},
    signer::Signer,
};

use super::{Blocks, BlocksConfig, BlocksError};

/// Opens `bucket/prefix?option=value&...` for blocks. Nothing is sent yet.
pub(super) fn open(config: &BlocksConfig, place: &str) -> Result<Blocks, BlocksError> {
    let (builder, bucket, prefix) = builder(config, place)?;
    let mut headers = HEADERS.iter().filter_map(|option| option.parse().ok());
    let needs_headers = headers.any(|option: AmazonS3ConfigKey| {
        let value = builder.get_config_value(&option);
        value.is_some_and(|value| !matches!(&*value, "" | "false"))
    });
    let objects = build(config, builder, bucket)?;
    let signer = (!needs_headers).then(|| Arc::clone(&objects) as Arc<dyn Signer>);
    Ok(Blocks { signer, ..Blocks::over(objects, &prefix) })
}

/// Opens the same for other objects, and returns the prefix of their names. Nothing is sent yet.
/// `once`: how long a request may take, where none is repeated.
pub(super) fn connect(
    config: &BlocksConfig,
    place: &str,
    once: Option<Duration>,
) -> Result<(Arc<AmazonS3>, String), BlocksError> {
    let (mut builder, bucket, prefix) = builder(config, place)?;
    if let Some(timeout) = once {
        let timeout = format!("{}ms", timeout.as_millis().max(1));
        builder = builder.with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), timeout);
    }
    // The caller tries again by itself, and wants to know soon that a store is away.
    let max_retries = if once.is_some() { 0 } else { 2 };
    let retry = RetryConfig { max_retries, ..RetryConfig::default() };
    Ok((build(config, builder.with_retry(retry), bucket)?, prefix))
}

fn build(
    config: &BlocksConfig,
    builder: AmazonS3Builder,
    bucket: &str,
) -> Result<Arc<AmazonS3>, BlocksError> {
    let objects = builder.with_bucket_name(bucket).build();
    Ok(Arc::new(objects.map_err(|error| config.refused(error.to_string()))?))
}

/// The options of a store, the name of its bucket, and the prefix.
fn builder<'a>(
    config: &BlocksConfig,
    place: &'a str,
) -> Result<(AmazonS3Builder, &'a str, String), BlocksError> {
    let (place, query) = place.split_once('?').unwrap_or((place, ""));
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if bucket.is_empty() {
        return Err(config.refused("it names no bucket"));
    }
    choose_cryptography();

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
    // A conditional put is the only way to put a block only where there is none.
    let conditional = builder.get_config_value(&AmazonS3ConfigKey::ConditionalPut);
    if conditional.is_some_and(|how| how == S3ConditionalPut::Disabled.to_string()) {
        return Err(
            config.refused("blocks are put only where there are none: conditional_put must be on")
        );
    }
    Ok((builder, bucket, prefix_of(prefix)))
}

/// Someone else may have chosen a provider of cryptography for the process; theirs is fine.
pub(super) fn choose_cryptography() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Options by which each request has headers that an address does not have: with one of them
/// nothing is signed for others.
const HEADERS: [&str; 6] = [
    "aws_server_side_encryption",
    "aws_sse_kms_key_id",
    "aws_sse_bucket_key_enabled",
    "aws_sse_customer_key_base64",
    "aws_checksum_algorithm",
    "aws_request_payer",
];

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
    use crate::blocks::{Compression, SignedFor, SignedUrls, tests::behaves};
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

    /// Signs whatever is asked for, as long as `open` says so.
    #[derive(Debug)]
    struct Signing {
        keys: BlocksConfig,
        access: Vec<SignedFor>,
    }

    impl SignedUrls for Signing {
        fn url(&self, id: BlockId, packed: bool, access: SignedFor) -> Option<String> {
            let sign = async {
                let blocks = Blocks::open(&self.keys).unwrap();
                blocks.sign(id, packed, access, Duration::from_secs(60)).await.unwrap()
            };
            let found = self.access.contains(&access);
            // Keys that are options are at hand: it waits for nothing.
            found.then(|| futures::executor::block_on(sign).expect("it has keys"))
        }
    }

    #[tokio::test]
    async fn under_signed_addresses_blocks_are_got_and_put_where_there_are_none() {
        for how in [Compression::None, Compression::Zstd] {
            let root = tempfile::tempdir().unwrap();
            let endpoint = server(root.path()).await;
            let keys = BlocksConfig { compression: how, ..config(&endpoint, "secret") };
            let owner = Blocks::open(&keys).unwrap();
            assert!(owner.signs());
            let both = vec![SignedFor::Get, SignedFor::Put];
            let client = Blocks::signed(Arc::new(Signing { keys, access: both }), how).unwrap();
            let (id, data) = (BlockId(77), Bytes::from(vec![7; 200_000]));
            let missing = client.get(id, 200_000, 0..10).await;
            assert!(matches!(missing, Err(BlocksError::Missing { .. })), "{missing:?}");
            assert!(client.put(id, data.clone()).await.unwrap());
            assert!(!client.put(id, data.clone()).await.unwrap(), "once more, as after an error");
            let other = client.put(id, Bytes::from(vec![8; 200_000])).await;
            assert!(matches!(other, Err(BlocksError::Exists { .. })), "{other:?}");
            for range in [0..200_000, 70_000..70_010] {
                let expected = data.slice(range.start as usize..range.end as usize);
                assert_eq!(client.get(id, 200_000, range.clone()).await.unwrap(), expected);
                assert_eq!(owner.get(id, 200_000, range).await.unwrap(), expected);
            }
            assert!(client.delete(id).await.is_err());
            assert!(owner.get(id, 200_000, 0..1).await.is_ok());
        }
    }

    #[tokio::test]
    async fn without_an_address_nothing_is_reached() {
        let root = tempfile::tempdir().unwrap();
        let endpoint = server(root.path()).await;
        let keys = config(&endpoint, "secret");
        Blocks::open(&keys).unwrap().put(BlockId(1), Bytes::from_static(b"pando")).await.unwrap();
        let get = Signing { keys, access: vec![SignedFor::Get] };
        let client = Blocks::signed(Arc::new(get), Compression::None).unwrap();
        assert_eq!(&client.get(BlockId(1), 5, 0..5).await.unwrap()[..], b"pando");
        assert!(client.put(BlockId(2), Bytes::from_static(b"x")).await.is_err());
    }

    /// An address is good for nothing but what it was signed for.
    #[tokio::test]
    async fn an_address_is_good_for_one_block_and_one_kind_of_request() {
        let root = tempfile::tempdir().unwrap();
        let endpoint = server(root.path()).await;
        let owner = Blocks::open(&config(&endpoint, "secret")).unwrap();
        let minute = Duration::from_secs(60);
        let sign = async |id, access| {
            owner.sign(BlockId(id), false, access, minute).await.unwrap().unwrap()
        };
        let (put, get) = (sign(1, SignedFor::Put).await, sign(1, SignedFor::Get).await);
        assert!(!put.contains("secret") && !get.contains("secret"));
        let http = reqwest::Client::new();
        let only_new = ("if-none-match", "*");
        let send = async |request: reqwest::RequestBuilder| request.send().await.unwrap().status();
        assert!(!send(http.put(&put).body("any")).await.is_success(), "it may only be new");
        assert!(!send(http.delete(&put)).await.is_success());
        assert!(!send(http.get(&put)).await.is_success());
        let elsewhere = put.replacen(&format!("{:032x}", 1), &format!("{:032x}", 2), 1);
        let other = http.put(&elsewhere).header(only_new.0, only_new.1).body("any");
        assert!(!send(other).await.is_success());
        let longer = put.replacen("X-Amz-Expires=60", "X-Amz-Expires=6000", 1);
        assert_ne!(longer, put);
        let later = http.put(&longer).header(only_new.0, only_new.1).body("any");
        assert!(!send(later).await.is_success());
        let new = || http.put(&put).header(only_new.0, only_new.1);
        assert!(send(new().body("one")).await.is_success());
        assert_eq!(send(new().body("two")).await, 412);
        assert!(
            !send(http.put(&get).header(only_new.0, only_new.1).body("three")).await.is_success()
        );
        assert_eq!(http.get(&get).send().await.unwrap().text().await.unwrap(), "one");
    }

    #[test]
    fn nothing_is_signed_where_requests_need_headers_of_their_own() {
        let signs = |option: &str| {
            let url =
                format!("s3://bucket/here?region=r&access_key_id=id&secret_access_key=x{option}");
            Blocks::open(&BlocksConfig::new(url)).unwrap().signs()
        };
        assert!(signs(""));
        assert!(!signs("&aws_server_side_encryption=AES256"));
        assert!(!signs("&checksum_algorithm=sha256"));
    }

    #[test]
    fn unknown_options_and_missing_buckets_are_told() {
        for url in
            ["s3://", "s3:///prefix", "s3://b?colour=blue", "s3://b?conditional_put=disabled"]
        {
            let opened = Blocks::open(&BlocksConfig::new(url));
            assert!(matches!(opened, Err(BlocksError::Config { .. })), "{url}");
        }
    }
}
