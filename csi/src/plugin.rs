//! The state that all calls share: the session, the volumes that are busy, and how mounts are made.

use std::{path::PathBuf, sync::Arc};

use base::{EntryName, Random};
use client::Config;

use crate::{
    error::Answer, fs::Fs, health::Asked, mounter::Mounter, record::Records, session::OwnSession,
    turn::Turns, volume::VolumeId,
};

/// The calls that a plugin answers, besides those that ask who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    /// Making, removing and listing volumes.
    pub controller: bool,
    /// Mounting them here.
    pub node: bool,
}

/// The operator's wishes.
#[derive(Debug, Clone)]
pub struct PluginOptions {
    /// Name of the driver, as a StorageClass has it.
    pub driver: String,
    /// Name of this node.
    pub node: String,
    /// The directory that has the volumes: an absolute path.
    pub root: String,
    /// Folder of the records of mounts. What is in it must not outlive a start of the machine.
    pub records: PathBuf,
    /// The calls that are answered.
    pub roles: Roles,
}

/// The plugin.
pub struct Plugin {
    pub(crate) options: PluginOptions,
    pub(crate) root: Vec<EntryName>,
    pub(crate) session: OwnSession,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) mounter: Arc<dyn Mounter>,
    pub(crate) records: Records,
    pub(crate) turns: Turns,
    pub(crate) asked: Asked,
}

impl Plugin {
    /// A plugin whose session is opened by the first call that needs it.
    ///
    /// # Errors
    /// When the root is no path.
    pub fn new(
        options: PluginOptions,
        config: Config,
        mounter: Arc<dyn Mounter>,
    ) -> Result<Plugin, String> {
        let parts = options.root.split('/').filter(|part| !part.is_empty());
        let root = parts.map(|part| {
            let name = EntryName::new(part.as_bytes()).ok().filter(|_| part != "." && part != "..");
            name.ok_or_else(|| format!("{} is no path of a directory", options.root))
        });
        Ok(Plugin {
            root: root.collect::<Result<_, _>>()?,
            records: Records::new(options.records.clone()),
            random: Arc::clone(&config.random),
            session: OwnSession::new(config),
            mounter,
            turns: Turns::default(),
            asked: Asked::default(),
            options,
        })
    }

    /// The file system.
    pub(crate) async fn fs(&self) -> Answer<Fs> {
        Box::pin(self.session.fs()).await
    }

    /// Path of a volume's directory in the file system.
    pub(crate) fn path(&self, volume: &VolumeId) -> String {
        let root = self.options.root.split('/').filter(|part| !part.is_empty());
        root.chain(volume.text().split('/')).map(|part| format!("/{part}")).collect()
    }
}
