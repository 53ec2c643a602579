//! The words every part of Pando shares: ids, names, attributes, access checks, errors, placement.
//!
//! Everything here is a value or a pure function. Nothing in this crate reads a clock, draws a
//! random number, touches a file or opens a socket; those come in through the traits of [`clock`].
#![warn(missing_docs)]

pub mod access;
pub mod account;
pub mod acl;
pub mod attr;
pub mod clock;
pub mod codec;
pub mod error;
pub mod hash;
pub mod id;
pub mod layout;
pub mod limits;
pub mod locks;
pub mod name;
pub mod permissions;
pub mod placement;
pub mod preload;
pub mod search;

pub use access::{Access, Cred};
pub use account::Account;
pub use acl::{Acl, AclKind};
pub use attr::{Attr, FileKind, SetAttr, SetTime, Time};
pub use clock::{Backoff, Clock, Random};
pub use codec::{Decode, DecodeError, Encode, Reader, Tagged};
pub use error::FsError;
pub use hash::{HashKey, HashMap, HashSet, IdHash};
pub use id::{BlockId, DirId, Epoch, Ino, NameVersion, Seq, SessionId, ShardId};
pub use layout::{Layout, Moving, Pair, Splits, Spread, Subsets, Transfer};
pub use locks::{ByteRange, LockKind, LockMode, LockOwner};
pub use name::{EntryName, NameError};
pub use placement::{ClusterMap, Level, Locality, Placement, Predicted};
pub use search::SearchClass;
