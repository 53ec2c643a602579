//! The journal of one member in an object store: the log of its engine, as numbered segments.
//!
//! [`take_over`] makes a process the journal's owner, by a [`fence`] at the end of the chain;
//! [`Writer::append`] adds segments, [`Reader`] reads them, a [`Follower`] applies them and sees when
//! the owner's lease ends, [`Journal::collect`] removes old ones, [`Journal::verify`] has all of them
//! read, and [`check`] tests whether a store can hold a journal at all. Whoever serves the member, or
//! stands by, calls these; the crate `backup` makes the bases that a journal begins with.
//!
//! The crate does not know what is in a batch, opens no engine, reads no clock and no environment,
//! and starts no thread. Limits of time come in as durations; [`tokio::time`] counts them.
//!
//! Always true, of a store that keeps conditions:
//!
//! - J1: segments are only ever created. Any result of a put but success is unknown, and the id of
//!   the segment that is there decides.
//! - J2: the chain is dense, each segment names the one before, generations do not fall, and
//!   segment n+1 is put only after n is known to be stored.
//! - J3: a fence counts only when the segment before is still there afterwards, and no base lies
//!   beyond.
//! - J4: conditional puts are tested before they are trusted.
//! - A process takes over from another unasked only when the lease of that one has ended ([`Tenure`],
//!   [`Vigil`]).
//! - Only segments below the older of two complete bases of one generation are removed, in rising
//!   order, and never the last one.

#![warn(missing_docs)]

mod bugs;
mod chain;
mod collect;
mod conditional;
mod error;
mod fence;
mod follow;
mod lease;
mod note;
mod place;
mod put;
mod reader;
mod segment;
mod status;
mod takeover;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

pub use chain::{End, Owner, Replica};
pub use collect::Swept;
pub use conditional::{check, time_put};
pub use error::{Error, Failure, Fault, Result};
pub use fence::{Known, Taken, fence};
pub use follow::{Followed, Follower};
pub use lease::{Tenure, Verdict, Vigil};
pub use note::Note;
pub use place::Journal;
pub use put::{Times, Trouble};
pub use reader::Reader;
pub use segment::{Covered, Header, Lease, RECORDS_BYTES_MAX, Record, Segment};
pub use status::WriterStatus;
pub use takeover::{Claim, Data, TakenOver, leave, missing, own, take_over};
pub use verify::Verified;
pub use writer::{Appended, SEGMENT_BYTES, Writer};
