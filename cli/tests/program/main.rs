//! The program as a user meets it: the built binary, run and looked at from outside.
//!
//! Every server listens on a free port, and is stopped when its test ends, however it ends.

#![expect(clippy::unwrap_used, clippy::panic, reason = "all of this is tests")]

mod again;
mod audit;
mod backups;
mod bench;
mod c;
mod cluster;
mod compression;
mod connections;
mod copies;
mod crowd;
mod csi;
mod damaged;
mod drill;
mod dump;
mod figures;
mod format;
mod full;
mod go;
mod harness;
mod installed;
mod journal;
mod keys;
mod locks;
mod lost;
mod machines;
mod memory;
mod mounted;
mod moves;
mod nfs;
mod observe;
mod owners;
mod packages;
mod region;
mod region_library;
mod region_machines;
mod repair;
mod s3;
mod s3_gateway;
mod s3_sdk;
mod serve;
mod settings;
mod squash;
mod standby;
mod tls;
mod tokens;
mod told;
mod trash;
mod two_mounts;
mod upgrade;
mod usage;
mod walk;
mod watch;
mod weakest;
