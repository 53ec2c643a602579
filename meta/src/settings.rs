//! The settings of the file system, as all cores of a server see them.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::{
    changes::Facts,
    follow::{Follower, Write},
    record::Settings,
};

/// The settings in memory. The caller of a change stores it.
pub(crate) struct InForce(RwLock<Settings>);

impl InForce {
    pub(crate) fn new(settings: Settings) -> InForce {
        InForce(RwLock::new(settings))
    }

    pub(crate) fn get(&self) -> Settings {
        *self.0.read()
    }

    pub(crate) fn set(&self, settings: Settings) {
        *self.0.write() = settings;
    }
}

/// Puts settings into force that a core has written.
pub(crate) struct Change {
    settings: Arc<InForce>,
}

impl Change {
    pub(crate) fn new(settings: Arc<InForce>) -> Change {
        Change { settings }
    }
}

impl Follower for Change {
    fn written(&mut self, facts: &mut Facts, write: Write) {
        if !write.is_halted
            && let Some(settings) = facts.settings.take()
        {
            self.settings.set(settings);
        }
    }
}
