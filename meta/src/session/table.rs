//! The sessions of a server.

use std::sync::Arc;

use base::{HashMap, SessionId};
use parking_lot::Mutex;

use super::Session;
use crate::{
    changes::Facts,
    file_locks::FileLocks,
    follow::{Follower, Write},
};

/// The sessions, by their numbers.
pub(crate) type Sessions = Mutex<HashMap<SessionId, Arc<Session>>>;

/// Forgets sessions whose end is written, and gives their file locks to others.
pub(crate) struct Ends {
    sessions: Arc<Sessions>,
    file_locks: Arc<FileLocks>,
}

impl Ends {
    pub(crate) fn new(sessions: Arc<Sessions>, file_locks: Arc<FileLocks>) -> Ends {
        Ends { sessions, file_locks }
    }
}

impl Follower for Ends {
    fn written(&mut self, facts: &mut Facts, write: Write) {
        if write.is_halted {
            return;
        }
        for session in facts.forgotten.drain(..) {
            self.sessions.lock().remove(&session);
            facts.let_in.extend(self.file_locks.end_session(session));
        }
    }
}
