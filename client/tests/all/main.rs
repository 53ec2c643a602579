//! Tests of the client: against a server in memory (`world`), or against servers that follow a
//! script (`script`).
//!
//! All of them are one program, so that the code of the server is compiled for them once.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod acl;
mod cluster;
mod contents;
mod guesses;
mod locks;
mod namespace;
mod partitions;
mod protocol;
mod ranges;
mod recovery;
mod script;
mod sending;
mod unnamed;
mod users;
mod watch;
mod world;
