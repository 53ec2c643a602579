//! Counters of a server's work since its start. `--http`, `status` and tests read them; they decide
//! nothing.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the start.
        #[derive(Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            /// The names and values of all counters.
            pub(crate) fn list(&self) -> Vec<(String, u64)> {
                vec![$((stringify!($name).to_owned(), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Connections accepted.
    connections,
    /// Connections that were told to wait because there were too many.
    connections_refused,
    /// Requests read.
    requests,
    /// Engine writes; requests over groups is the size of a group.
    groups,
    /// Mutating requests that were asked again and got their stored answer.
    duplicates_suppressed,
    /// Paths that were looked up here as a whole.
    fast_paths,
    /// Paths that a client wanted looked up here as a whole, and that are not known here to be so
    /// and allowed.
    slow_paths,
    /// Rounds in which directories of other servers were read for such paths.
    fast_path_reads,
    /// Requests refused because another core held a lock, and run again.
    lock_conflicts,
    /// Directories that were taken back from sessions that did not give them back.
    delegations_revoked,
    /// Leases of this server that ended before the coordinator gave it another one.
    leases_ended,
    /// Transactions over several servers that this one has begun.
    transactions_begun,
    /// Transactions of this server that were not committed.
    transactions_aborted,
    /// Transactions of other servers that were prepared here, and ended when this server asked for
    /// their outcome.
    transactions_recovered,
    /// Transactions over several servers that met another one, or a changed record, and began anew.
    transactions_repeated,
    /// Handoffs of names that this server began as their source.
    handoffs_begun,
    /// Handoffs whose names have moved.
    handoffs_done,
    /// Names that have moved away.
    handoff_names,
    /// Files whose inode has left its entry, so that the name can move.
    handoff_inodes_left,
    /// Requests that waited because names changed faster than they could be sent.
    handoff_slowed,
    /// Requests of clients that waited for names to move.
    handoff_waited,
    /// Requests of clients that waited for names to move for more than 20 ms.
    handoff_waited_long,
    /// Syncs of the engine.
    syncs,
    /// Sessions opened.
    sessions_opened,
    /// Sessions resumed.
    sessions_resumed,
    /// Sessions ended by their lease.
    sessions_expired,
    /// Sessions ended by administrators.
    sessions_evicted,
    /// Hellos that were told to wait because there were too many sessions.
    sessions_refused,
    /// Sessions resumed whose client had answers that a power cut has taken back.
    sessions_set_back,
    /// Look-ups, walks included.
    lookup,
    /// Questions for changes, of who watches a directory.
    watch,
    /// stat by handle.
    getattr,
    /// chmod, chown, utimes, truncate.
    setattr,
    /// Files made.
    create,
    /// Directories made.
    mkdir,
    /// Symbolic links made.
    symlink,
    /// Hard links made.
    link,
    /// Names removed.
    unlink,
    /// Directories removed.
    rmdir,
    /// Renames.
    rename,
    /// Pages of listings.
    readdir,
    /// Opens.
    open,
    /// Writes of contents.
    write,
    /// Look-ups of blocks.
    block_map,
    /// Extended attributes read or changed.
    xattr,
    /// Locks taken, changed and given back.
    lock,
    /// Blocks stored through the server.
    block_put,
    /// Blocks read through the server.
    block_get,
    /// Questions for addresses of blocks in a shared store.
    block_sign,
    /// Puts and gets of blocks that failed.
    block_failures,
    /// Blocks that were not found; a client with an older map asks for one that was replaced.
    blocks_missed,
    /// Blocks deleted in the background.
    blocks_deleted,
    /// Chunks rewritten in the background.
    chunks_compacted,
    /// Inodes removed in the background.
    inodes_reclaimed,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        Counters::add_many(counter, 1);
    }

    /// Adds `many` to a counter.
    pub(crate) fn add_many(counter: &AtomicU64, many: u64) {
        counter.fetch_add(many, Ordering::Relaxed);
    }
}
