//! The FUSE mount: kernel calls in, [`client::FileSystem`] calls out, errno back.
//!
//! `pando mount` calls [`run`] on a single-threaded runtime, within a `LocalSet`; from then on the
//! file system is in the tree of the machine until it is unmounted. The mount knows nothing of what
//! is behind the trait: it is tested over the model and over a client of a server, both in memory.
//!
//! What it leaves to others:
//!
//! * Permissions are the kernel's (`default_permissions`), so the client's session must be one that
//!   leaves them to it; or the server's, where [`Options::kernel_checks`] is off. Requests carry the
//!   caller's user and group, for what is made.
//! * Locks of directories are the kernel's, which asks nobody for them. Those of files are the file
//!   system's.
//! * The set-id bits that a write or truncation takes away are the file system's (`clear_set_id`):
//!   the kernel says when.
//! * Nothing is written back late by the kernel: every write arrives here before it returns. After
//!   one that is to be stable (`O_SYNC`, a mount with `sync`) it asks for an fsync by itself.
//!
//! Caches of the kernel: names and attributes for [`Options::entry_timeout`] and
//! [`Options::attr_timeout`]; a name that is not there is never cached. Contents are close-to-open:
//! an open keeps the pages of a file only if its times and size are those of the open that filled
//! them, and makes the kernel forget attributes that are older than what the open found. An open to
//! append goes to the end that the file has then.
//!
//! ESTALE is no answer that programs see of a path: the kernel then looks the path up again, and
//! what is gone again by then is not there (`walks`).
#![warn(missing_docs)]

mod adapter;
mod answer;
mod convert;
mod counts;
mod killed;
mod listing;
mod mounted;
mod nodes;
mod options;
mod serve;
mod walks;

pub use fuse::{Ended, IoUring, Unmount};

pub use crate::{
    mounted::{Beside, Error, Mounted, run, unmount},
    options::{OptionError, Options, Synchronous, split},
};
