//! Backups of one server's metadata in an object store.
//!
//! A *base* is a copy of the server's tables and logs at one moment, with the few small files that
//! a start needs. `cli` hands over a folder with a checkpoint; this crate uploads the files that
//! the store lacks, and then a manifest that names all of them. It also lists, checks and restores
//! bases, and removes old ones.
//!
//! The crate does not know what is in a file, opens no engine, reads no clock and starts no thread.
//!
//! Always true: a base counts only with all its objects; every object is encrypted, and is
//! authenticated together with its name ([`seal`]); an object that a kept manifest names is never
//! deleted; only the store's own times decide that an unnamed object is old enough to go.

#![warn(missing_docs)]

mod error;
mod forget;
mod key;
mod manifest;
mod place;
mod reader;
mod retention;
pub mod seal;
#[cfg(test)]
mod tests;
mod writer;

pub use error::{Candidate, Error, Result, in_short};
pub use forget::Forgotten;
pub use key::Key;
pub use manifest::{File, Manifest};
pub use place::{Listed, Names, Place};
pub use reader::{Base, Progress, Wanted};
pub use writer::{Collected, History, Made, Moment, Noted};
