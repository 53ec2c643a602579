//! The plugin for Kubernetes: a volume is a directory with a quota, a node mounts it with a token
//! that is good for that directory alone.
//!
//! `pando csi` makes a [`Plugin`] and hands in the listening socket, the configuration of the
//! session, the randomness, and a [`Mounter`], by which mounts are made. Calls come over gRPC as
//! the Container Storage Interface (CSI) has them. The crate knows nothing of Kubernetes itself: no
//! API server, no pod. Nor does it start processes.
//!
//! Invariant: a volume is a directory with a mark (`mark`), which the plugin alone sets. What has
//! no mark is never changed or removed.
//!
//! Invariant: no call leaves the root directory. A volume's id is its path below the root, which is
//! walked name by name and by handle; a symbolic link is no directory (`tree`), and no volume lies
//! within another, so its users cannot redirect the walk.
//!
//! Invariant: each step can be done again. The record of a mount is written before the mount is
//! made (`record`), and removed after it is gone and its process has ended. A mount without a
//! record is left alone.

mod bind;
mod capability;
mod controller;
mod error;
mod fs;
mod health;
mod identity;
mod keeper;
mod limit;
mod list;
mod mark;
mod mounter;
mod node;
mod parameters;
mod plugin;
mod publish;
mod record;
mod recover;
mod remove;
mod serve;
mod session;
mod stage;
mod table;
mod token;
mod tree;
mod turn;
mod volume;

/// The protocols, as their compiler writes them.
#[expect(clippy::allow_attributes_without_reason, unused_qualifications, reason = "generated")]
pub mod proto {
    /// The Container Storage Interface.
    pub mod csi {
        tonic::include_proto!("csi.v1");
    }
    /// Our own: a node plugin and the keeper of its node.
    pub mod keeper {
        tonic::include_proto!("pando.keeper.v1");
    }
}

pub use keeper::{FarKeeper, serve_keeper};
pub use mounter::Mounter;
pub use plugin::{Plugin, PluginOptions, Roles};
pub use serve::serve;
