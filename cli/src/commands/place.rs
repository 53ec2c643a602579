//! A file or directory, however it is reached: on a mount, or at a server. `set`, `get` and `info`
//! are told one.

use std::{collections::BTreeMap, ffi::OsStr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use client::Client;
use rustix::fs::{XattrFlags, lsetxattr};
use tokio::runtime::Runtime;
use wire::XattrMode;

use super::info;
use crate::{
    connect::{self, Servers, TokenArgs},
    failure::usage,
};

/// Names and values, as text.
pub(super) type Facts = BTreeMap<String, String>;

/// Object of a command: a path on a mount, or one at a server.
pub(super) enum Place {
    Mounted(PathBuf),
    Served(Served),
}

/// A path at a server.
pub(super) struct Served {
    pub(super) runtime: Runtime,
    pub(super) client: Client,
    pub(super) path: String,
}

impl Place {
    /// Opens a place: an existing path is on a mount, anything else is HOST:PORT or HOST:PORT/PATH.
    /// `purpose` is shown with the session.
    pub(super) fn open(place: &OsStr, token: &TokenArgs, purpose: &str) -> anyhow::Result<Place> {
        let path = PathBuf::from(place);
        if path.symlink_metadata().is_ok() {
            return Ok(Place::Mounted(path));
        }
        let text = place.to_string_lossy();
        let (servers, path) = match text.split_once('/') {
            Some((servers, path)) => (servers, format!("/{path}")),
            None => (&*text, "/".to_owned()),
        };
        let Ok(Servers(servers)) = connect::servers(servers) else {
            return Err(usage(format!("{text} is neither an existing path nor HOST:PORT")));
        };
        let config = connect::config(servers, token.read()?, purpose);
        let runtime = connect::runtime()?;
        let client = runtime.block_on(connect::connect(config))?;
        Ok(Place::Served(Served { runtime, client, path }))
    }

    /// Returns the server's facts about the place.
    pub(super) fn facts(&self) -> anyhow::Result<Facts> {
        match self {
            Place::Mounted(path) => {
                let facts = info::facts(path)?.into_iter();
                Ok(facts.map(|(key, value)| (key, info::text(&value))).collect())
            }
            Place::Served(Served { runtime, client, path }) => {
                let lines = runtime.block_on(client.info(path));
                Ok(lines.with_context(|| format!("cannot ask about {path}"))?.into_iter().collect())
            }
        }
    }

    /// Sets an extended attribute; otherwise the errno, or why that cannot be known.
    pub(super) fn set_xattr(&self, name: &str, value: &str) -> anyhow::Result<Result<(), i32>> {
        match self {
            Place::Mounted(path) => {
                let set = lsetxattr(path, name, value.as_bytes(), XattrFlags::empty());
                Ok(set.map_err(rustix::io::Errno::raw_os_error))
            }
            Place::Served(Served { runtime, client, path }) => {
                let set = client.set_xattr(path, name, value.as_bytes(), XattrMode::Set);
                match runtime.block_on(set) {
                    Err(client::Error::Fs(error)) => Ok(Err(error.errno())),
                    other => Ok(Ok(other?)),
                }
            }
        }
    }

    /// Lets the server work on.
    #[expect(clippy::disallowed_methods, reason = "a command waits for a server")]
    pub(super) fn pause(&self, time: Duration) {
        match self {
            Place::Mounted(_) => std::thread::sleep(time),
            Place::Served(Served { runtime, .. }) => {
                // The timer needs the runtime when it is made.
                runtime.block_on(async { tokio::time::sleep(time).await });
            }
        }
    }

    /// Ends the session, if there is one, when something was done or has failed.
    pub(super) fn close<T>(self, done: anyhow::Result<T>) -> anyhow::Result<T> {
        match self {
            Place::Mounted(_) => done,
            Place::Served(Served { runtime, client, .. }) => {
                runtime.block_on(connect::close(&client, done))
            }
        }
    }
}
