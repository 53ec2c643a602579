//! The functions whose places this library takes.
//!
//! Each of them asks the region where it can, and else the one whose place it is.

mod attributes;
mod contents;
mod descriptors;
mod names;
mod open;
mod rest;
mod stat;

pub(crate) use self::rest::rest;
