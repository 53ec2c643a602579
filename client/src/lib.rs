//! The native client: path resolution, routing, handles, file contents.
//!
//! [`Client`] has the operations of a file system by path, and is a [`FileSystem`], the same by
//! handle, for a mount. It is asynchronous, cheap to clone, and used from as many tasks as one
//! likes; what they ask at the same time travels together.
//!
//! ```
//! # #[allow(dead_code, reason = "the examples use a part of it")]
//! # #[path = "../tests/all/world.rs"]
//! # mod world;
//! use client::{Client, Config, Error, OpenOptions};
//! # async fn example(config: Config) -> client::Result<()> {
//! // let config = Config::new(vec!["127.0.0.1:7420".into()], token);
//! let client = Client::connect(config).await?;
//!
//! client.create_dir_all("/results/2024", 0o755).await?;
//! client.write("/results/2024/summary", b"42 of 42").await?;
//! assert_eq!(client.stat("/results/2024/summary").await?.size, 8);
//! assert_eq!(client.read("/results/2024/summary").await?, &b"42 of 42"[..]);
//!
//! // Random access; other clients see what was written after a flush or a close.
//! let file = client.open_with("/results/raw", OpenOptions::both().create(0o644)).await?;
//! file.write_at(1 << 32, b"far away").await?;
//! assert_eq!(file.read_at((1 << 32) + 4, 100).await?, &b"away"[..]);
//! file.sync_all().await?;
//! file.close().await?;
//!
//! // Many at once, over one connection.
//! let made = (0..100).map(|i| {
//!     let client = client.clone();
//!     async move { client.mkdir(format!("/results/{i}"), 0o755).await }
//! });
//! futures::future::try_join_all(made).await?;
//! let mut listing = client.read_dir("/results").await?;
//! let mut directories = 0;
//! while let Some(entry) = listing.next().await? {
//!     directories += u32::from(entry.is_dir());
//! }
//! assert_eq!(directories, 101);
//!
//! // What the file system answers is an `FsError`, one for each errno.
//! let missing = client.stat("/results/2023").await;
//! assert_eq!(missing, Err(Error::Fs(base::FsError::NotFound)));
//! client.close().await
//! # }
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(world::World::run(async |world| example(world.config()).await)).unwrap();
//! ```
#![warn(missing_docs)]

#[cfg(feature = "bugs")]
pub mod bugs;
#[cfg(not(feature = "bugs"))]
mod bugs;
mod cache;
mod call;
mod changed;
mod channel;
mod channels;
mod client;
mod cluster;
mod connection;
mod contents;
mod core;
mod delegated;
mod direct;
mod divided;
mod done;
mod dump;
mod error;
mod everywhere;
mod file;
mod filesystem;
mod fs;
mod fsck;
mod guess;
mod handles;
mod inode_routes;
mod keys;
mod layouts;
mod listing;
mod local_locks;
mod locks;
mod mispredictions;
pub mod model;
mod moves;
mod observe;
mod path;
mod resolve;
mod route;
mod runs;
mod session;
mod stat;
mod system;
mod tcp;
mod turns;
mod walk_to;
mod watch;

mod window;

pub use channel::Stats;
pub use client::Client;
pub use core::{AccessTimes, Config, Resolution, Tasks};
pub use delegated::Delegating;
pub use dump::{Dump, DumpError, Page};
pub use error::{Error, Result};
pub use file::{File, OpenOptions};
pub use filesystem::{COPY_BYTES_MAX, FileLock, FileSystem, Handle, Made, New, Unnamed};
pub use fs::ReadDir;
pub use fsck::Fsck;
pub use local_locks::{LocalLocks, LockTurn};
pub use moves::{MoveError, Moved, balance};
pub use system::{SystemClock, SystemRandom};
pub use tcp::{Encryption, Tcp, connector_of};
pub use tls::{Connector, Trust};
pub use turns::{InTurn, Turn, Turns};
pub use watch::{FileChange, News, NoPosition, Position, Watch, WatchOptions};
pub use wire::{Binding, Change, Dial, Dialled, Stream};
