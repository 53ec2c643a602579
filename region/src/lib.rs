//! A consistent region: a directory of any file system, in the memory of the node that works in it.
//!
//! A job that makes many small files takes a directory as its region. Its programs see one file
//! system, strongly consistent, at the speed of memory; the file system below gets the changes
//! later, each path as it is by then. At the end everything is below, and [`Region::finish`] and
//! [`Region::verify`] show it. `pando region run` calls this, with a mount above and [`Mounted`]
//! below.
//!
//! Paper: Pacon. What it calls the primary copy is `table`, its commit queue `commit`, its barrier
//! `structural`, and its eviction `table/forget`.
//!
//! Always true:
//!
//! * **R1** Only the region's own calls touch its paths below: loads, commits, and operations that
//!   hold the path.
//! * **R3** An entry is dirty exactly if below may differ.
//! * **R4** No commit makes below older than an earlier one of its path.
//! * **R5** A child is below only if the directory above is.
//! * **R6** No entry lives in a directory that was removed.
//! * **R7** A held path executes no request, and has nothing dirty when below is called.
//! * **R8** Absence is told only from below, or of a directory that was made here and of which
//!   nothing was forgotten.
//! * **R9** A load replaces no dirty entry.
//! * **R11** Nothing dirty, open or held is forgotten.
//! * **R13** A name that the region did not know is never taken, overwritten or removed.
//! * **R14** After the end below equals the region, but for what it refuses.
#![warn(missing_docs)]

mod below;
mod commit;
mod contents;
mod counts;
mod filesystem;
mod finish;
mod hidden;
mod holds;
mod listing;
mod locks;
mod machines;
mod names;
mod path;
mod programs;
mod region;
mod structural;
mod table;
#[cfg(test)]
mod tests;

pub use crate::{
    below::{
        Below, Call, Change, Contents, Found, Listed, Memory, Meta, Mounted, New, OpenError,
        Result as BelowResult,
    },
    counts::Counts,
    finish::{Difference, Report, Verify},
    machines::{
        Front, JoinError, Joined, Lead, Machine, Note, NoteError, Secret, Wish, accept, reach,
    },
    path::Path,
    programs::{Peer, Programs, Tell},
    region::{Calls, Progress, Region, Settings},
};
