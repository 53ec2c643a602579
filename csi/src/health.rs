//! Whether a place of a volume works, and how much is used there.

use std::{
    collections::BTreeSet,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::{fs::StatVfs, io::Errno};
use tokio::{task::spawn_blocking, time::timeout};

/// Time that a mount has to answer; a server that is away takes longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The answer of a place of a volume.
pub(crate) enum PlaceState {
    /// The mount works.
    Works(Box<StatVfs>),
    /// The process of the mount has ended.
    Dead,
    /// No answer, since no server gives one.
    Silent,
    /// Another error.
    Failed(Errno),
}

/// Places that were asked and have not answered: a thread waits for each, so none is asked twice.
#[derive(Clone, Default)]
pub(crate) struct Asked {
    places: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Asked {
    /// Asks a place.
    pub(crate) async fn ask(&self, path: &Path) -> PlaceState {
        if !self.places.lock().insert(path.to_owned()) {
            return PlaceState::Silent;
        }
        let (places, asked) = (Arc::clone(&self.places), path.to_owned());
        let answer = spawn_blocking(move || {
            let answer = rustix::fs::statvfs(asked.as_os_str().as_bytes());
            places.lock().remove(&asked);
            answer
        });
        match timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(Ok(found))) => PlaceState::Works(Box::new(found)),
            Ok(Ok(Err(Errno::NOTCONN | Errno::CONNABORTED))) => PlaceState::Dead,
            Ok(Ok(Err(errno))) => PlaceState::Failed(errno),
            Ok(Err(_)) => PlaceState::Failed(Errno::IO),
            Err(_) => PlaceState::Silent,
        }
    }
}
