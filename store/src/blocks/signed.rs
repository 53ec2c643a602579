//! Blocks under signed addresses: a store that is reached without its keys.
//!
//! A process that has the keys signs an address for one block and one kind of request, good for a
//! short time ([`Blocks::sign`]). A process that has only the address sends that request
//! ([`Blocks::signed`]). A put carries `If-None-Match: *`, which is a part of what is signed: so it
//! stores a block where there is none, and never replaces one.
//!
//! The requests are made by the client that [`super::s3`] uses as well, with its handling of
//! errors. That client is set up for a store that asks for no keys; the address is put in last.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use base::BlockId;
use futures::future::BoxFuture;
use object_store::{
    ClientOptions, RetryConfig,
    aws::AmazonS3Builder,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
        HttpService, ReqwestConnector,
    },
    path::Path,
    signer::{HeaderName, HeaderValue, Method, SignedUrlOptions},
};

use super::{Blocks, Compression, Result, SignedFor, SignedUrls, from_listing, name};

/// Placeholder for the address of the store until it is known.
const ENDPOINT: &str = "http://signed.invalid";
const BUCKET: &str = "blocks";
/// How long a request is repeated: the client that was given an address has another way, and the
/// address expires soon.
const PATIENCE: Duration = Duration::from_secs(10);

impl Blocks {
    /// Signs an address under which anybody may get a block, or put it if it is not there, until
    /// `valid` has passed by the clocks of this machine and of the store. `None` when this store
    /// signs nothing.
    ///
    /// Cost: nothing is sent, unless the keys themselves come from elsewhere.
    pub async fn sign(
        &self,
        id: BlockId,
        packed: bool,
        access: SignedFor,
        valid: Duration,
    ) -> Result<Option<String>> {
        let Some(signer) = &self.signer else { return Ok(None) };
        let path = if packed { name::packed } else { name::path }(&self.prefix, id);
        let (method, options) = match access {
            SignedFor::Get => (Method::GET, SignedUrlOptions::new()),
            SignedFor::Put => {
                let only_new =
                    (HeaderName::from_static("if-none-match"), HeaderValue::from_static("*"));
                let options = SignedUrlOptions::new().with_signed_header(only_new.0, only_new.1);
                (Method::PUT, options)
            }
        };
        let url = signer.signed_url_opts(method, &path, valid, &options).await;
        Ok(Some(url.map_err(from_listing)?.into()))
    }

    /// A store that is reached only under the addresses of `urls`. New blocks are compressed as
    /// `compression` says.
    ///
    /// # Errors
    /// When the program cannot speak HTTP.
    pub fn signed(urls: Arc<dyn SignedUrls>, compression: Compression) -> Result<Blocks> {
        super::s3::choose_cryptography();
        let objects = AmazonS3Builder::new()
            .with_http_connector(Connector(urls))
            .with_endpoint(ENDPOINT)
            .with_allow_http(true)
            .with_region("any")
            .with_bucket_name(BUCKET)
            .with_skip_signature(true)
            .with_retry(RetryConfig {
                max_retries: 2,
                retry_timeout: PATIENCE,
                ..Default::default()
            })
            .build()
            .map_err(from_listing)?;
        Ok(Blocks::over(Arc::new(objects), "").compressing(compression))
    }
}

#[derive(Debug)]
struct Connector(Arc<dyn SignedUrls>);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Readdressed { urls: Arc::clone(&self.0), client }))
    }
}

/// Sends requests to their signed addresses.
#[derive(Debug)]
struct Readdressed {
    urls: Arc<dyn SignedUrls>,
    client: HttpClient,
}

impl Readdressed {
    fn url(&self, request: &HttpRequest) -> std::result::Result<String, Unsigned> {
        let path = Path::from_url_path(request.uri().path()).map_err(|_| Unsigned)?;
        let (id, packed) = name::parse(&path).ok_or(Unsigned)?;
        let access = match *request.method() {
            Method::GET => SignedFor::Get,
            Method::PUT => SignedFor::Put,
            _ => return Err(Unsigned),
        };
        self.urls.url(id, packed, access).ok_or(Unsigned)
    }

    async fn send(&self, mut request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let failed = |error: Box<dyn Error + Send + Sync>| {
            HttpError::new_boxed(HttpErrorKind::Unknown, error)
        };
        let url = self.url(&request).map_err(|error| failed(error.into()))?;
        *request.uri_mut() = url.parse().map_err(|_| failed(Unsigned.into()))?;
        self.client.execute(request).await
    }
}

impl HttpService for Readdressed {
    fn call<'a, 'f>(
        &'a self,
        request: HttpRequest,
    ) -> BoxFuture<'f, std::result::Result<HttpResponse, HttpError>>
    where
        'a: 'f,
        Self: 'f,
    {
        Box::pin(self.send(request))
    }
}

/// An error: there is no address for a request.
#[derive(Debug)]
struct Unsigned;

impl fmt::Display for Unsigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no signed address for this request")
    }
}

impl Error for Unsigned {}
