//! The plugin's session with the file system. It is opened by the first call that needs it, and
//! replaced when it was lost: the call that noticed fails, and the next one opens another.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use client::{Client, Config};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};
use tonic::Status;

use crate::{
    error::{Answer, status},
    fs::Fs,
};

/// Time to open a session while a call waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which calls share the failure of an attempt to open a session.
const FAILURE_SHARED: Duration = Duration::from_secs(2);

/// The session of the plugin's own token.
pub(crate) struct OwnSession {
    config: Config,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<(Client, Arc<AtomicBool>)>,
    /// The latest failure to open a session.
    failed: Option<(Instant, Status)>,
}

impl OwnSession {
    pub(crate) fn new(config: Config) -> OwnSession {
        OwnSession { config, state: Mutex::default() }
    }

    /// The text of the plugin's own token.
    pub(crate) fn token(&self) -> &str {
        &self.config.token
    }

    /// The file system, in a session that is not known to be lost.
    pub(crate) async fn fs(&self) -> Answer<Fs> {
        let mut state = self.state.lock().await;
        if let Some((client, lost)) = &state.open
            && !lost.load(Ordering::Relaxed)
        {
            return Ok(Fs::new(client.clone(), Arc::clone(lost)));
        }
        if let Some((at, status)) = &state.failed
            && at.elapsed() < FAILURE_SHARED
        {
            return Err(status.clone());
        }
        let connecting = Box::pin(Client::connect(self.config.clone()));
        let connected = match timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(connected) => connected.map_err(|error| status("open a session", &error)),
            Err(_) => Err(Status::unavailable(format!(
                "no server of the file system answers at {}",
                self.config.addresses.join(",")
            ))),
        };
        match connected {
            Ok(client) => {
                let lost = Arc::default();
                let fs = Fs::new(client.clone(), Arc::clone(&lost));
                *state = State { open: Some((client, lost)), failed: None };
                Ok(fs)
            }
            Err(error) => {
                *state = State { open: None, failed: Some((Instant::now(), error.clone())) };
                Err(error)
            }
        }
    }

    /// Ends the session, if one is open.
    pub(crate) async fn close(&self) {
        if let Some((client, _)) = self.state.lock().await.open.take()
            && let Err(error) = client.close().await
        {
            tracing::warn!(%error, "the session did not end cleanly");
        }
    }
}
