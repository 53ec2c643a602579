//! Meanings of the counters of `pando status`, for `/metrics`. The others are requests of a kind.

/// Names as the server has them.
const COUNTERS: &[(&str, &str)] = &[
    ("connections", "Connections that were accepted."),
    ("connections_refused", "Connections that were told to wait, as there were too many."),
    ("requests", "Requests that were read."),
    ("groups", "Writes to the store; requests share them."),
    ("duplicates_suppressed", "Changes that were asked for again and got their stored answer."),
    ("fast_paths", "Paths that were looked up here as a whole."),
    ("slow_paths", "Paths that could not be looked up here as a whole, and were walked."),
    ("fast_path_reads", "Rounds of reads of other servers' directories for such paths."),
    ("lock_conflicts", "Requests that met a lock of another core, and were run again."),
    ("leases_ended", "Leases of this server that ended before it had the next one."),
    ("transactions_begun", "Transactions over several servers that this server has begun."),
    ("transactions_aborted", "Transactions of this server that were not committed."),
    (
        "transactions_recovered",
        "Transactions of others, prepared here, whose outcome was asked for.",
    ),
    ("transactions_repeated", "Transactions that met another one, or a change, and began anew."),
    ("handoffs_begun", "Handoffs of names to another partition that this server has begun."),
    ("handoffs_done", "Handoffs whose names have moved."),
    ("handoff_names", "Names that have moved away in handoffs."),
    ("handoff_inodes_left", "Files whose inode has left its name, so that the name can move."),
    ("handoff_slowed", "Requests that waited as names changed faster than they could be sent."),
    ("handoff_waited", "Requests of clients that waited for names to move."),
    ("handoff_waited_long", "Requests of clients that waited for names for more than 20 ms."),
    ("syncs", "Syncs of the store."),
    ("sessions_opened", "Sessions that were opened."),
    ("sessions_resumed", "Sessions whose client came back to them."),
    ("sessions_expired", "Sessions that ended as nothing was heard of their client."),
    ("sessions_evicted", "Sessions that an administrator has ended."),
    ("sessions_refused", "Clients that were told to wait, as there were too many sessions."),
    ("sessions_set_back", "Sessions whose client had answers that a power cut has taken."),
    ("blocks_deleted", "Blocks of contents that were deleted in the background."),
    ("chunks_compacted", "Chunks of contents that were rewritten in the background."),
    ("inodes_reclaimed", "Removed inodes whose contents were freed in the background."),
];

/// Returns the meaning of a counter.
pub(super) fn of(counter: &str) -> String {
    let known = COUNTERS.iter().find(|(name, _)| *name == counter);
    known.map_or_else(
        || format!("Requests of the kind `{counter}` that were begun."),
        |(_, help)| (*help).to_owned(),
    )
}
