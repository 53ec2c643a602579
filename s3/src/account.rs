//! An access key, and the session in which its requests are served.
//!
//! A session that was lost is replaced by a new one: the request that noticed fails, and the next
//! one opens it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use client::{Client, Config};
use parking_lot::RwLock;
use s3s::{S3Error, S3ErrorCode, S3Result};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use crate::fs::{Fs, Noted};

/// Time to open a new session while a request waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which requests share the failure of an attempt to open a session.
const FAILURE_SHARED: Duration = Duration::from_secs(2);

/// An access key and its session.
pub struct Account {
    access_key: String,
    pub(crate) secret_key: String,
    /// Whether the gateway refuses changes by this key.
    pub(crate) read_only: bool,
    session: Arc<Session>,
}

/// A session; keys of the same token share it.
pub struct Session {
    config: Config,
    current: RwLock<(Client, Arc<Noted>)>,
    /// The latest failure to open a session, and when that was.
    connecting: Mutex<Option<(Instant, S3ErrorCode)>>,
}

/// Opens the session of a token.
///
/// # Errors
/// As [`Client::connect`].
pub async fn connect(config: Config) -> client::Result<Arc<Session>> {
    let client = Client::connect(config.clone()).await?;
    let current = RwLock::new((client, Arc::default()));
    Ok(Arc::new(Session { config, current, connecting: Mutex::new(None) }))
}

impl Account {
    /// An access key that is served in `session`.
    #[must_use]
    pub fn new(
        access_key: String,
        secret_key: String,
        read_only: bool,
        session: Arc<Session>,
    ) -> Account {
        Account { access_key, secret_key, read_only, session }
    }

    /// The public half of the key.
    #[must_use]
    pub fn access_key(&self) -> &str {
        &self.access_key
    }

    /// The number of the session, the same for keys that share it.
    pub(crate) fn session_id(&self) -> usize {
        Arc::as_ptr(&self.session) as usize
    }

    /// The file system, in a session that is not known to be lost.
    pub(crate) async fn fs(&self) -> S3Result<Fs> {
        let session = &self.session;
        if let Some(fs) = session.alive() {
            return Ok(fs);
        }
        let mut failed = session.connecting.lock().await;
        if let Some(fs) = session.alive() {
            return Ok(fs);
        }
        if let Some((at, code)) = &*failed
            && at.elapsed() < FAILURE_SHARED
        {
            return Err(S3Error::with_message(
                code.clone(),
                "a session with the file system could not be opened",
            ));
        }
        tracing::warn!("the session with the file system was lost; opening another");
        let connecting = Box::pin(Client::connect(session.config.clone()));
        let connected = match timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(client)) => {
                *session.current.write() = (client, Arc::default());
                session.alive().ok_or_else(|| S3ErrorCode::ServiceUnavailable.into())
            }
            Ok(Err(error)) => Err(crate::error::of_object(&error)),
            Err(_) => Err(S3Error::with_message(
                S3ErrorCode::ServiceUnavailable,
                "no server of the file system answers",
            )),
        };
        *failed = connected.as_ref().err().map(|error| (Instant::now(), error.code().clone()));
        connected
    }

    /// Ends the session.
    pub(crate) async fn close(&self) {
        let client = self.session.current.read().0.clone();
        if let Err(error) = client.close().await {
            tracing::warn!(%error, "the session did not end cleanly");
        }
    }
}

impl Session {
    fn alive(&self) -> Option<Fs> {
        let current = self.current.read();
        let (client, noted) = &*current;
        (!noted.lost.load(Ordering::Relaxed))
            .then(|| Fs::new(client.clone(), self.config.cred.clone(), Arc::clone(noted)))
    }
}
