//! The crate against the real kernel, over io_uring: all that `mounted` tests over `/dev/fuse`, and
//! what only io_uring does.
//!
//! Needs Linux 6.14, and the right to set its module parameter; without them these tests fail, they
//! are not skipped.

mod mounted;
