//! Look-ups of whole paths at one server: that of the directory where the path ends.
//!
//! `resolve` calls it where the cache ends, when there are several servers. The id of that directory
//! is predicted, as for a guess, and its server checks the way there with what it keeps of the
//! directories above. A path on which a directory was moved, or which leads through a symbolic link,
//! is not found so; then the caller goes on without.
//!
//! Paper: Duplex §III-A, with the permissions at the server of the target.

use std::time::Duration;

use base::{Cred, EntryName, FsError, Predicted};
use tokio::time::timeout;
use wire::{DirRef, Guess, Reply, Request, Stand, WalkTo, Walked};

use crate::{
    core::{Core, Resolution},
    done::Failure,
    route::Route,
};

/// Longest wait for the server: without its answer the path may lead elsewhere.
const PATIENCE: Duration = Duration::from_secs(1);

impl Core {
    /// Walks down from `from` by one request. `ends`: the last name may be anything, and otherwise
    /// is a directory. `None`: the server does not find the path so, or the caller is better off
    /// with a look-up.
    pub(crate) async fn walk_to(
        &self,
        cred: &Cred,
        from: DirRef,
        names: &[EntryName],
        stand: &Stand,
        ends: bool,
    ) -> Result<Option<(Walked, u64)>, Failure> {
        let asks = self.channels.are_several() && self.config.resolution == Resolution::Auto;
        if !asks || names.len() < 2 {
            return Ok(None);
        }
        let (way, last) = match names.split_last() {
            Some((last, way)) if ends => (way, Some(last)),
            Some(_) | None => (names, None),
        };
        let Predicted { id: dir, home, .. } = {
            let learnt = self.learnt.lock();
            let child = |above, name| self.predict_child(&learnt, above, name);
            way.iter().fold(Predicted::known(from.id, from.home), child)
        };
        if self.slow.lock().has(dir) {
            return Ok(None);
        }
        let pos = |name| self.layouts.guess(dir, || self.welcome().fs.hash_key.pos(name));
        let partition = last.map_or(0, pos);
        let end = Guess { dir, home, partition, name: last.cloned() };
        let route = Route::Partition(home, partition);
        // A server that is away need not be one of those that have the path, if it was renamed.
        if self.channels.is_away(self.channels.of(route).server) {
            return Ok(None);
        }
        let request = Request::WalkTo(WalkTo { from, names: way.to_vec(), end });
        let asked = timeout(PATIENCE, self.call(cred, route, request, stand.clone()));
        let Ok(done) = asked.await else {
            self.slow.lock().note(dir);
            return Ok(None);
        };
        let done = done.inspect_err(|failure| self.forget_if_stale(failure, &from))?;
        let Reply::Walked(walked) = done.reply else { return Err(FsError::Io.into()) };
        let found = !walked.entries.is_empty() || walked.error.is_some();
        self.counters.asked_at_end(found);
        if !found {
            self.slow.lock().note(dir);
        }
        if !found && partition > 0 {
            // The master knows more.
            self.layouts.forget(dir);
        }
        Ok(found.then_some((walked, done.version)))
    }
}
