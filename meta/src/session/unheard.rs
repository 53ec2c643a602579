//! Opens that a session's client may not know of, as the session keeps them ([`crate::unheard`]).

use base::{Access, Ino, Seq};

/// An open that a stored answer reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unheard {
    pub(crate) seq: Seq,
    pub(crate) ino: Ino,
    /// User that made the file.
    pub(crate) uid: u32,
    pub(crate) access: Access,
}
