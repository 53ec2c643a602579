//! The permission tree of Duplex, as a table: who may walk to a directory, without asking the
//! servers on the way.
//!
//! A holder of a [`PermissionTable`] answers for a path at once: *granted*, with the id of its
//! directory, or *unknown*. Unknown takes the walk from server to server, which alone tells errors.
//! A table knows less than the records, never more; only granting too much would be a fault.
//!
//! The table holds exceptions. A directory without an entry is where it was born, so its id is the
//! one that clients predict, and grants at least the bound `below` of the nearest entry above it.
//! [`Listing`] says which directories need an entry, and which keys a change must fence before it
//! commits; [`Fences`] decides when a key's value is known again.
//!
//! Called by metadata servers and their coordinator. Nothing here sends, waits or reads a clock.
//!
//! Deviations from the design, with reasons:
//! - Places are chosen by a secret of the process ([`PermissionTable::new`]). With bits of the key
//!   itself, users who know the file system's hash key could build long runs.
//! - The table is cut into segments that grow on their own, so it never stops to grow as a whole.
//! - A key that is fenced without having had an entry has a kind of its own, *unset*.
//! - A table that is full forgets all by itself, and answers *unknown* until it is built again. So
//!   no caller can go on with a table in which one fence is missing.
//! - During a build the table itself remembers which keys had an event, and does not let records
//!   overwrite them.
//! - A listed directory whose home is not its id is kept as *elsewhere*, so that a granted path has
//!   a home whenever it is not the one that is predicted.
//!
//! Paper: Duplex §III-B (permission tree and merging).

mod classes;
mod fences;
mod listing;
mod slots;
mod table;
#[cfg(test)]
mod tests;

pub use fences::{FenceToken, Fences, Question};
pub use listing::{Keys, Listed, Listing, Position};
pub use table::{
    Full, Granted, ListedDir, PermissionTable, PlacedDir, Published, Step, TableSize, Unknown,
    UnknownWhy, Walk,
};
