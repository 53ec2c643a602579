//! The native client: path resolution, routing, handles, file contents.
#![warn(missing_docs)]

mod cache;
mod call;
mod channel;
mod client;
mod connection;
mod contents;
mod core;
mod dial;
mod error;
mod file;
mod filesystem;
mod fs;
mod handles;
pub mod model;
mod path;
mod resolve;
mod route;
mod session;
mod system;
mod window;

pub use channel::Stats;
pub use client::Client;
pub use core::Config;
pub use dial::{Dial, Stream, Tcp};
pub use error::{Error, Result};
pub use file::{File, OpenOptions};
pub use filesystem::{FileSystem, Handle, Made, New};
pub use fs::ReadDir;
pub use system::{SystemClock, SystemRandom};
