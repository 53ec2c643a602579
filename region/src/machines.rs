//! The machines of a region: one of them, the *lead*, has the region in its memory, and each other
//! one a *front end*, a file system that asks the lead.
//!
//! All programs see one table therefore, and what holds for the programs of one machine holds
//! for those of all: an answered change is seen by every later operation anywhere. A front end
//! caches nothing. Each operation is one message to the lead and one back.
//!
//! Both ends have the region's [`Secret`], which is written where only the region's user reads it
//! ([`Note`]). The connection is encrypted, and each end proves to the other that it has the secret
//! before any other word ([`accept`], [`reach`]).
//!
//! A front end whose connection ends has lost the region: its operations fail, and what its programs
//! had open and locked is free. Everything that it was answered stays. There is no reconnection, so
//! no operation is executed twice.
//!
//! Paper: Pacon §III-A and §III-B, where each machine has a part of the cache.

mod front;
mod hello;
mod lead;
mod message;
mod secret;
#[cfg(test)]
mod tests;

pub use self::{
    front::Front,
    hello::{JoinError, accept, reach},
    lead::{Joined, Lead},
    message::Wish,
    secret::{Machine, Note, NoteError, Secret},
};
