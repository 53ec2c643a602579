//! The native client: path resolution, routing, handles, file contents.
#![warn(missing_docs)]

mod error;
mod filesystem;
pub mod model;

pub use error::{Error, Result};
pub use filesystem::{FileSystem, Handle, Made, New};
