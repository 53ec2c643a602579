//! What one server of a cluster decides for all of them: the coordinator, which is the owner of shard 0.
//!
//! It is called by `driver` and by the initiators of renames and permission changes of directories. Its decisions are
//! pure, with their IO beside them.

#[cfg_attr(not(test), allow(dead_code, reason = "renames over several servers are what calls it"))]
pub(crate) mod graph;
