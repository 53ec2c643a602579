//! Tests of the operations as clients see them: each test shows one rule, over a connection.

mod access;
pub(crate) mod client;
mod contents;
mod cores;
mod cost;
mod damage;
mod dump;
mod ends;
mod huge;
mod link;
mod locks;
mod names;
mod parked;
mod quotas;
mod rename;
mod rights;
mod room;
mod search;
mod session_ends;
mod sessions;
mod shares;
mod speculate;
mod switched;
mod trash;
mod unheard;
mod unnamed;
pub(crate) mod world;
