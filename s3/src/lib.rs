//! The S3 gateway: a bucket is a directory, a key is a path, an object is a file.
//!
//! Crate `s3s` speaks HTTP and checks signatures; [`Gateway`] is its `S3`, over one
//! [`client::Client`] for each access key. `pando s3` makes both and hands in the listening socket,
//! the clock and the randomness.
//!
//! Invariant: an object is whole or not there. Contents are written to a file in a hidden directory
//! of the bucket (`staging`), made stable, and renamed over the name.
//!
//! Invariant: no key leaves its bucket. Keys are walked component by component and by handle, each
//! component is a plain name, and a symbolic link is no directory (`tree`).

mod account;
mod clean;
mod commit;
mod conditions;
mod error;
mod etags;
mod fs;
mod gateway;
mod impatient;
mod key;
mod keys_file;
mod list;
mod metadata;
mod multipart;
mod read;
mod serve;
mod service;
mod staging;
mod tree;
mod walk;
mod write;

pub use account::{Account, Session, connect};
pub use gateway::{Gateway, Settings};
pub use keys_file::{KeyLine, KeysError, parse as parse_keys};
pub use serve::serve;
