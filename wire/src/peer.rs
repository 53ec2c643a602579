//! Requests between servers: transactions over several of them, and the coordinator's cluster map,
//! leases and invalidation log.
//!
//! A connection that begins with [`PeerHello`] is a server's: it has no session, and takes only
//! these requests. Every request here may be repeated when an answer was lost, and then changes
//! nothing.
//!
//! Paper: InfiniFS §4.1, §4.2; DESIGN, *Transactions* and *The coordinator*.

use base::{ClusterMap, DirId, Epoch, FsError, Ino, Layout, SessionId, Time, codec};
use bytes::Bytes;

use crate::{
    keys::Secret,
    moves::BalanceStatus,
    node::{Entry, Guess},
    request::CacheEvents,
};

codec! {
    /// The first request on a connection between two servers of one cluster. Without a proof it
    /// asks for a challenge, a number that is good for one proof on this connection. Answer to a
    /// proof: nothing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct PeerHello {
        /// Number of the asking server in the cluster map.
        pub from: u16,
        /// Number of the run of that server.
        pub run: u64,
        /// Generation of that server; 0: it has none yet, and may only ask for one.
        pub generation: u64,
        /// Newest generation of the asked server that the asking one knows; 0: none.
        pub knows: u64,
        /// Address of the asking server (`HOST:PORT`), where it may be another one than the asked
        /// server knows; else empty.
        pub address: String,
        /// HMAC-SHA-256, under the file system's signing key, of [`PeerHello::proven`]; or nothing.
        pub proof: Bytes,
    }
}

codec! {
    /// Answer to a [`PeerHello`] without a proof.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Challenge {
        /// The number that the proof must be about.
        pub number: u128,
        /// Generation of the answering server; 0: it has none yet.
        pub generation: u64,
        /// Newest generation of the asking server that the answering one knows; 0: none.
        pub knows: u64,
    }
}

codec! {
    /// Id of a transaction over several servers. No two attempts have the same.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub struct TxnId {
        /// Number of the server that initiated the transaction.
        pub server: u16,
        /// Number of the run of that server.
        pub run: u64,
        /// Number of the transaction in that run.
        pub number: u64,
    }
}

codec! {
    /// Reads these keys; waits for a moment while one of them is prepared to change. Answer: a
    /// value or nothing for each, in order; or [`Vote::Busy`], if some were to be held and another
    /// transaction was in the way.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct PeerRead {
        /// Encoded keys of the store, all of shards of the server that is asked.
        pub keys: Vec<Bytes>,
        /// Expected inode numbers of the directories, for keys of content records; 0: any inode, as
        /// for keys beyond the end of the list.
        pub inos: Vec<Ino>,
        /// Hides some of these records from others from now on. The server does not wait then.
        pub hold: Option<Hold>,
        /// Tells of a directory whose entry may still be lost as if it were not there.
        pub confirmed: bool,
        /// The session whose change the records are read for, if it keeps what it holds: no such
        /// directory is recalled.
        pub session: Option<SessionId>,
    }
}

codec! {
    /// Records that are held for a transaction before it is prepared, until it is, until it ends,
    /// or until the server restarts.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Hold {
        /// Id of the transaction.
        pub txn: TxnId,
        /// Number of keys to hold, the first ones of the list.
        pub keys: u16,
    }
}

codec! {
    /// The part of a record that a transaction stands on.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Stands {
        /// The whole record: it must be unchanged.
        Whole = 1,
        /// A content record except its times and counts, which others may change meanwhile.
        Stable = 2,
    }
}

codec! {
    /// A record that a transaction has read from another server.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Expected {
        /// Encoded key of the record.
        pub key: Bytes,
        /// The record as it was read; `None`: there was none.
        pub was: Option<Bytes>,
        /// The part that must be unchanged.
        pub stands: Stands,
    }
}

codec! {
    /// A change of a content record that commutes with changes of others: the last one decides the
    /// times, counts are added.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ContentPatch {
        /// A content record to take everything but times and counts from; `None`: keep the present
        /// one.
        pub stable: Option<Bytes>,
        /// Number of entries added; negative: removed.
        pub entries: i64,
        /// Number of directories among them.
        pub subdirs: i64,
        /// When the change was made: the modification time afterwards, unless the record was
        /// changed later; then the least one.
        pub mtime: Option<Time>,
        /// Least change time of the record afterwards.
        pub ctime: Option<Time>,
        /// Whether to set these times even if the record has later ones.
        pub exact: bool,
    }
}

codec! {
    /// A change that a transaction makes at another server.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum PeerWrite {
        /// Put a record: key and value.
        Put((Bytes, Bytes)) = 1,
        /// Remove a record.
        Delete(Bytes) = 2,
        /// Change a content record.
        Patch((Bytes, ContentPatch)) = 3,
    }
}

codec! {
    /// Prepares a transaction: the server keeps its expectations and changes until the outcome is
    /// known. Answer: [`Vote`], after these are on stable storage, or before, if the transaction is
    /// an early mkdir.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Prepare {
        /// Id of the transaction.
        pub txn: TxnId,
        /// Records that must be unchanged.
        pub expects: Vec<Expected>,
        /// Changes to make, if the transaction commits.
        pub writes: Vec<PeerWrite>,
        /// Whether the only change outside the initiator is one new content record, here: [`Born`]
        /// says when its entry is written.
        pub early_mkdir: bool,
        /// Whether to refuse the transaction unless the records of its [`Hold`] are held.
        pub held: bool,
        /// Numbers of the other servers that are asked to prepare a part of the transaction.
        pub others: Vec<u16>,
        /// The session that has asked for the transaction, if it keeps what it holds, as for
        /// [`PeerRead::session`].
        pub session: Option<SessionId>,
    }
}

codec! {
    /// A participant's answer to [`Prepare`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Vote {
        /// The transaction is prepared, and stays so until its outcome is told.
        Prepared = 1,
        /// Another transaction is in the way. Nothing was kept.
        Busy = 2,
        /// A record is not as the transaction expected. Nothing was kept.
        Changed = 3,
    }
}

codec! {
    /// Tells how a transaction ended. Answer: nothing, when the outcome is applied and on stable
    /// storage.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Decide {
        /// Id of the transaction.
        pub txn: TxnId,
        /// Whether the transaction commits.
        pub commit: bool,
    }
}

codec! {
    /// Asks how a transaction ended. Answer: [`Outcome`], as the initiator or a participant says.
    /// The coordinator is also asked for the answer of another server, and asks that server.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AskOutcome {
        /// Id of the transaction.
        pub txn: TxnId,
        /// Number of the server whose answer is wanted: the initiator, or a participant.
        pub of: u16,
    }
}

codec! {
    /// Asks which of these transactions of the asked server are over. Answer: those that are not
    /// under way and, if committed, are applied by all participants: no server asks any more how
    /// they ended.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct AskOver {
        /// Transactions whose outcome the asking server remembers.
        pub txns: Vec<TxnId>,
    }
}

codec! {
    /// Announces directories whose entries the asking server has, and whose content records it had
    /// prepared here ([`Prepare`]). Answer: nothing; for confirmed ones, when the confirmation is
    /// on stable storage.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Born {
        /// Ids of the transactions that made the directories.
        pub txns: Vec<TxnId>,
        /// Whether the entries, and all that they depend on, are on stable storage; otherwise they
        /// are only written.
        pub confirmed: bool,
    }
}

codec! {
    /// Asks for directories whose entries the asked server has, because a request waits for them.
    /// Answer: those that are born; they will be confirmed as soon as possible.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct HurryBirths {
        /// Ids of the transactions that make the directories.
        pub txns: Vec<TxnId>,
    }
}

codec! {
    /// A directory whose entry is written and not yet confirmed.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Birth {
        /// Id of the transaction that made the directory.
        pub txn: TxnId,
        /// Encoded key of the content record.
        pub key: Bytes,
        /// Value of the content record as it was made.
        pub content: Bytes,
    }
}

codec! {
    /// The end of a transaction, as its initiator or a participant knows it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Outcome {
        /// The transaction happened.
        Committed = 1,
        /// The transaction did not happen and never will: its initiator does not know it (presumed
        /// abort), or a participant has not prepared it and never will.
        Aborted = 2,
        /// The transaction is under way, or prepared and its outcome unknown: ask again.
        Pending = 3,
    }
}

codec! {
    /// Joins a server to a cluster. An administrator's session sends this, since the server has no
    /// key yet. Answer: [`Joined`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Join {
        /// Address at which clients and servers reach the server (`HOST:PORT`).
        pub address: String,
        /// Random number of the server's data directory: a repeated request with it gets the same
        /// answer.
        pub member: u64,
    }
}

codec! {
    /// A server belongs to the cluster.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Joined {
        /// Number of the server in the map.
        pub server: u16,
        /// The record that says what the file system is, with its keys, as every server stores it.
        pub config: Bytes,
        /// Whether all shards have a server by now, so that this one has none before some move to it.
        pub is_dealt: bool,
    }
}

codec! {
    /// Tells the coordinator that a server is up, and asks for its lease. Answer: [`Lease`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Heartbeat {
        /// Address of the server (`HOST:PORT`).
        pub address: String,
        /// Epoch of the newest map that the server has; 0: none.
        pub epoch: Epoch,
        /// Version of the server's invalidation list; 0: none.
        pub version: u64,
        /// Number of requests since the server started, for balance.
        pub requests: u64,
        /// The file system's settings, as the server stores them.
        pub settings: Bytes,
        /// Version of the key ring that the server has; 0: the ring of a new file system.
        pub keys: u64,
        /// Version of the accounting roots that the server has; 0: none.
        pub roots: u64,
        /// Transactions of others whose outcome the server has lacked for long, if there are any.
        pub in_doubt: Option<InDoubt>,
        /// Whether the server answers only when an operation is on stable storage.
        pub strict: bool,
        /// Whether everything that the server had answered in earlier runs is still there. Counts
        /// only while `version` is 0.
        pub kept_all: bool,
        /// The process that asks.
        pub life: Life,
    }
}

codec! {
    /// A process of a server, as the coordinator must know it to give it a generation.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Life {
        /// Generation that this run was given; 0: none yet, this heartbeat asks for one.
        pub generation: u64,
        /// Newest generation in the server's data directory.
        pub stored: u64,
        /// Name of the machine's boot and of the data directory; empty: unknown. The lock on a
        /// directory lets only one process have a place.
        pub place: Bytes,
        /// Name of the machine and of the data directory on it, which a boot leaves; empty:
        /// unknown.
        pub home: Bytes,
        /// Position of the store up to which everything is on stable storage.
        pub position: u64,
        /// How long the server serves without a lease, in milliseconds.
        pub alone_ms: u64,
        /// The operator's word that the machine of the generation before is off.
        pub replaces: bool,
        /// The operator's word that the directory is an old copy, and the only one left.
        pub restored: bool,
        /// Whether the directory is an old copy that no check has looked at yet.
        pub unchecked: bool,
        /// Whether the server has stopped: nothing is served any more under its lease.
        pub resigns: bool,
        /// The coordinator that the server keeps to.
        pub follows: Term,
        /// Position up to which that one's directory has everything on stable storage, as far as
        /// the server knows.
        pub follows_at: u64,
    }
}

codec! {
    /// A run of the coordinator.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Term {
        /// Generation of the coordinator's server; 0: no coordinator is known.
        pub number: u64,
        /// Number of its run.
        pub run: u64,
    }
}

codec! {
    /// Whether a process of a server may serve.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Admission {
        /// The process is the only one of its server, with this generation.
        Admitted(u64) = 1,
        /// The process of the generation before may serve for so many milliseconds. Ask again.
        Waits(u64) = 2,
        /// The process must end, for this reason.
        Ended(String) = 3,
        /// The server has left the cluster: the process ends, and its directory is not needed.
        Left = 4,
    }
}

codec! {
    /// Transactions over several servers that a server has prepared, and whose outcome it has
    /// lacked for a second or more.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct InDoubt {
        /// Number of these transactions.
        pub count: u64,
        /// Milliseconds since the oldest of them was prepared.
        pub oldest_ms: u64,
        /// Number of the server that initiated the oldest.
        pub server: u16,
    }
}

codec! {
    /// Permission to serve for a while.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Lease {
        /// Length of the lease in milliseconds, from when it was asked for. 0: the cluster is not
        /// complete yet.
        pub ms: u64,
        /// The map, if it is newer than the server's.
        pub map: Option<ClusterMap>,
        /// Events that the server must apply before it serves; with `reset` its list begins anew at
        /// that version.
        pub events: CacheEvents,
        /// The settings of the file system, if the server's differ.
        pub settings: Option<Bytes>,
        /// The key ring, if the server's version differs.
        pub keys: Option<Secret>,
        /// The accounting roots, if the server's version differs.
        pub roots: Option<Bytes>,
        /// Whether the process that asked may serve. If not, only the coordinator is named besides.
        pub admission: Admission,
        /// The coordinator that answers.
        pub coordinator: Term,
        /// Position up to which the coordinator's directory has everything on stable storage.
        pub position: u64,
        /// Newest generation of each server.
        pub generations: Vec<u64>,
        /// Milliseconds since the coordinator last answered this run; 0: this is the first answer.
        pub since_ms: u64,
    }
}

codec! {
    /// Announces directories that are about to move or to change permissions. Answer: nothing, when
    /// the list has them.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Announce {
        /// Version of the list before the first of them.
        pub after: u64,
        /// Ids of the directories, one for each version after `after`.
        pub dirs: Vec<DirId>,
    }
}

codec! {
    /// Look-ups of one path, as many as one server can answer. Only trusted sessions may guess.
    /// Answer: a [`Guessed`] for each.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Speculate {
        /// The guesses, in the order of the path.
        pub guesses: Vec<Guess>,
    }
}

codec! {
    /// The result of a [`Guess`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Guessed {
        /// Inode number of the directory that has this id; `None`: this server has none.
        pub dir: Option<Ino>,
        /// The entry found; the directory's own where no name was asked for.
        pub entry: Option<Entry>,
        /// The reason why there is no entry.
        pub error: Option<FsError>,
        /// How the directory is divided, if the asked partition does not have the name. The server
        /// looked nothing up then.
        pub layout: Option<Layout>,
    }
}

codec! {
    /// A server, as the coordinator sees it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ServerStatus {
        /// Number of the server in the map.
        pub server: u16,
        /// Address of the server (`HOST:PORT`).
        pub address: String,
        /// Number of shards that the server has.
        pub shards: u16,
        /// Milliseconds left of the server's lease; 0: none.
        pub lease_ms: u64,
        /// Version of the server's invalidation list.
        pub version: u64,
        /// Number of requests since the server started.
        pub requests: u64,
        /// Transactions whose outcome the server lacked at its last heartbeat.
        pub in_doubt: Option<InDoubt>,
    }
}

codec! {
    /// The cluster, as its coordinator sees it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ClusterStatus {
        /// Number of servers that the cluster was formatted for.
        pub servers_expected: u16,
        /// The servers of the cluster.
        pub servers: Vec<ServerStatus>,
        /// Epoch of the map.
        pub epoch: Epoch,
        /// Version of the invalidation log.
        pub version: u64,
        /// Number of renames and permission changes of directories under way.
        pub renames: u64,
        /// Problems, in words for people.
        pub problems: Vec<String>,
        /// How evenly the servers are loaded, and what is done about it.
        pub balance: BalanceStatus,
    }
}

impl PeerHello {
    /// Returns the bytes of which [`PeerHello::proof`] is the HMAC, for server `to` with its answer
    /// `challenge`.
    #[must_use]
    pub fn proven(&self, uuid: u128, to: u16, challenge: u128) -> Vec<u8> {
        let mut text = b"pando peer".to_vec();
        text.extend_from_slice(&uuid.to_le_bytes());
        text.extend_from_slice(&self.from.to_le_bytes());
        text.extend_from_slice(&self.run.to_le_bytes());
        text.extend_from_slice(&self.generation.to_le_bytes());
        text.extend_from_slice(&self.knows.to_le_bytes());
        text.extend_from_slice(&to.to_le_bytes());
        text.extend_from_slice(&challenge.to_le_bytes());
        text.extend_from_slice(&(self.address.len() as u64).to_le_bytes());
        text.extend_from_slice(self.address.as_bytes());
        text
    }
}
