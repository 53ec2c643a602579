//! How mounts are made: by processes of their own, which `pando csi` starts, or has a keeper start.

use std::path::{Path, PathBuf};

/// Starts and ends mounts of the file system. An error is a text for people.
#[tonic::async_trait]
pub trait Mounter: Send + Sync + 'static {
    /// Checks options as `pando mount -o` takes them.
    ///
    /// # Errors
    /// When one is unknown, with its name.
    fn check(&self, options: &str) -> Result<(), String>;

    /// Mounts with this token, and returns when the mount works. The process of the mount outlives
    /// this one.
    ///
    /// # Errors
    /// When the file system cannot be mounted.
    async fn mount(&self, path: &Path, token: &str, options: &str) -> Result<(), String>;

    /// Unmounts, and returns when everything that was written was sent. Fine when no mount is
    /// there.
    ///
    /// # Errors
    /// When the mount stays, when its process must keep what was written, or when that takes long:
    /// a call must come to its end.
    async fn unmount(&self, path: &Path) -> Result<(), String>;

    /// Notes which process serves the mount at `path`, so that it can be asked about when the mount
    /// is gone; `None` where no process says that it does. For one process the note is the same
    /// each time.
    ///
    /// # Errors
    /// When the note cannot be made.
    fn note(&self, path: &Path) -> Result<Option<PathBuf>, String>;

    /// Whether a process that was noted has ended. The note is removed then.
    ///
    /// # Errors
    /// When the note cannot be used.
    fn has_ended(&self, note: &Path) -> Result<bool, String>;

    /// Whether the process of the mount at `path` has ended and left the mount. Blocks for a second
    /// at most, and asks no server while the process lives.
    fn is_dead(&self, path: &Path) -> bool;
}
