//! What servers say to each other: transactions over several of them, and the coordinator's cluster map, leases and
//! invalidation log.
//!
//! A connection on which [`PeerHello`] came first is a server's: it has no session, and no request but these is
//! taken on it. Everything here may be said again when an answer was lost, and then changes nothing.
//!
//! Paper: InfiniFS §4.1, §4.2; DESIGN, *Transactions* and *The coordinator*.

use base::{ClusterMap, DirId, EntryName, Epoch, FsError, Ino, Layout, Time, codec};
use bytes::Bytes;

use crate::{node::Entry, request::CacheEvents};

codec! {
    /// The first request on a connection between two servers of one cluster; without a proof it asks what that must be
    /// about, and is answered with a number that is good for one proof on this connection. Answer to a proof: nothing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct PeerHello {
        /// The server that asks, as the cluster map counts.
        pub from: u16,
        /// The run of that server.
        pub run: u64,
        /// HMAC-SHA-256, under the file system's signing key, of what [`PeerHello::proven`] says; or nothing.
        pub proof: Bytes,
    }
}

codec! {
    /// A transaction over several servers. No two attempts have the same.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub struct TxnId {
        /// The server that initiated it.
        pub server: u16,
        /// The run of that server.
        pub run: u64,
        /// Its number in that run.
        pub number: u64,
    }
}

codec! {
    /// Read these keys; waits for a moment while one of them is prepared to change. Answer: a value or nothing for each, in
    /// order; or [`Vote::Busy`], if some were to be held and something was in the way.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct PeerRead {
        /// Encoded keys of the store, all of shards of the server that is asked.
        pub keys: Vec<Bytes>,
        /// The inode numbers of the directories that are meant, for those of the keys that are of content records; 0:
        /// whichever is there, as for keys that the list has no place for.
        pub inos: Vec<Ino>,
        /// Some of them are not to be seen by others from now on. Nothing is waited for then.
        pub hold: Option<Hold>,
    }
}

codec! {
    /// What is held for a transaction before it is prepared, until that or its end, or a restart of the server.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Hold {
        /// Which.
        pub txn: TxnId,
        /// So many of the keys, the first ones.
        pub keys: u16,
    }
}

codec! {
    /// How much of a record a transaction stands on.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Stands {
        /// On all of it: it must be what it was.
        Whole = 1,
        /// On a content record but for its times and counts, which others may change meanwhile.
        Stable = 2,
    }
}

codec! {
    /// What a transaction has read of another server.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Expected {
        /// The key.
        pub key: Bytes,
        /// The record as it was read; `None`: there was none.
        pub was: Option<Bytes>,
        /// What must not have changed of it.
        pub stands: Stands,
    }
}

codec! {
    /// A change of a content record that leaves room for the changes of others: times only grow, counts are added.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ContentPatch {
        /// A content record to take everything but times and counts from; `None`: that stays.
        pub stable: Option<Bytes>,
        /// How many entries more, or fewer.
        pub entries: i64,
        /// How many of them are directories.
        pub subdirs: i64,
        /// Its modification time is at least this.
        pub mtime: Option<Time>,
        /// Its change time is at least this.
        pub ctime: Option<Time>,
        /// These are its times, even if it has later ones.
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
    /// Keep what a transaction stands on, and its changes, until its outcome is known. Answer: [`Vote`], after what
    /// was prepared is on stable storage, or before, if it is a birth.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Prepare {
        /// Which.
        pub txn: TxnId,
        /// What must be as it was.
        pub expects: Vec<Expected>,
        /// What changes, if it commits.
        pub writes: Vec<PeerWrite>,
        /// All that it does elsewhere than at its initiator is to make one content record, here, where there is none:
        /// [`Born`] says when it is there.
        pub birth: bool,
        /// It is refused unless what a [`Hold`] was to keep for it is held.
        pub held: bool,
        /// The other servers that are asked to prepare a part of it.
        pub others: Vec<u16>,
    }
}

codec! {
    /// What a participant says to a transaction.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Vote {
        /// It is prepared, and stays so until its outcome is told.
        Prepared = 1,
        /// Another transaction is in the way. Nothing was kept.
        Busy = 2,
        /// Something is not what it was. Nothing was kept.
        Changed = 3,
    }
}

codec! {
    /// How a transaction ended. Answer: nothing, when that is applied and on stable storage.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Decide {
        /// Which.
        pub txn: TxnId,
        /// Whether it happens.
        pub commit: bool,
    }
}

codec! {
    /// How did a transaction end? Answer: [`Outcome`], as the initiator or a participant says. The coordinator is also asked
    /// what another server says, and asks that one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AskOutcome {
        /// Which.
        pub txn: TxnId,
        /// The server that is to say it: the initiator, or a participant.
        pub of: u16,
    }
}

codec! {
    /// Which of these transactions of yours are over? Answer: those that are not under way, and whose participants all have
    /// applied them, if they were committed: nobody asks any more how they ended.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct AskOver {
        /// Some of which the asking server remembers how they ended.
        pub txns: Vec<TxnId>,
    }
}

codec! {
    /// Directories whose entries the asking server has, and whose content records it had prepared here
    /// ([`Prepare`]). Answer: nothing; of those that are confirmed when that is on stable storage.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Born {
        /// The transactions that made them.
        pub txns: Vec<TxnId>,
        /// Their entries are on stable storage, and so is all that these hang on; otherwise they are written.
        pub confirmed: bool,
    }
}

codec! {
    /// Somebody waits for directories whose entries the asked server has. Answer: those that are born; they will be
    /// confirmed as soon as that can be.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct HurryBirths {
        /// The transactions that make them.
        pub txns: Vec<TxnId>,
    }
}

codec! {
    /// A directory whose entry is written, and that is not confirmed yet.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Birth {
        /// What made it.
        pub txn: TxnId,
        /// The key of its content record.
        pub key: Bytes,
        /// The record as it was made.
        pub content: Bytes,
    }
}

codec! {
    /// How a transaction ended, as its initiator or a participant knows.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Outcome {
        /// It happened.
        Committed = 1,
        /// It did not, and never will: its initiator does not know it (presumed abort), or a participant has not prepared
        /// it and never will.
        Aborted = 2,
        /// It is under way, or prepared and no more is known: ask again.
        Pending = 3,
    }
}

codec! {
    /// A server that wants to belong to a cluster. Asked by an administrator's session, since it has no key yet.
    /// Answer: [`Joined`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Join {
        /// Where clients and servers reach it (`HOST:PORT`).
        pub address: String,
        /// A number drawn when its data directory was made: who asks again gets the same answer.
        pub member: u64,
    }
}

codec! {
    /// A server belongs to the cluster.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Joined {
        /// Its number in the map.
        pub server: u16,
        /// The record that says what the file system is, with its keys, as every server stores it.
        pub config: Bytes,
    }
}

codec! {
    /// A server is there, at this address, and asks for its lease. Answer: [`Lease`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Heartbeat {
        /// Where it is reached.
        pub address: String,
        /// The newest map it has; 0: none.
        pub epoch: Epoch,
        /// The version of its invalidation list; 0: none.
        pub version: u64,
        /// Requests since it started, for balance.
        pub requests: u64,
        /// The settings of the file system that it has, as it stores them.
        pub settings: Bytes,
        /// The version of the accounting roots that it has; 0: none.
        pub roots: u64,
        /// The transactions of others whose outcome it has lacked for long, if there are any.
        pub in_doubt: Option<InDoubt>,
        /// It answers when what was done is on stable storage.
        pub strict: bool,
        /// All that it had answered in earlier runs is still there. It counts while `version` is 0.
        pub kept_all: bool,
    }
}

codec! {
    /// Transactions over several servers that a server has prepared, and whose outcome it has lacked for a second or more.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct InDoubt {
        /// How many.
        pub count: u64,
        /// For how long the oldest of them has been prepared, milliseconds.
        pub oldest_ms: u64,
        /// The server that initiated that one.
        pub server: u16,
    }
}

codec! {
    /// Leave to serve for a while.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Lease {
        /// For so long, from when it was asked for; milliseconds. 0: the cluster is not complete yet.
        pub ms: u64,
        /// The map, if it is newer than the server's.
        pub map: Option<ClusterMap>,
        /// What the server must take in before it serves; with `reset` it begins anew at that version.
        pub events: CacheEvents,
        /// The settings of the file system, if they are not those that the server has.
        pub settings: Option<Bytes>,
        /// The accounting roots, if they are of another version.
        pub roots: Option<Bytes>,
    }
}

codec! {
    /// Directories are about to move or to change permissions. Answer: nothing, when the list has them.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Announce {
        /// The version before the first of them.
        pub after: u64,
        /// One for each version from there on.
        pub dirs: Vec<DirId>,
    }
}

codec! {
    /// A look-up in a directory whose id was predicted.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Guess {
        /// The predicted id,
        pub dir: DirId,
        /// and home.
        pub home: DirId,
        /// The partition that is asked.
        pub partition: u16,
        /// What to look up there; `None` asks for the directory itself.
        pub name: Option<EntryName>,
    }
}

codec! {
    /// Look-ups of one path, all that one server has. Only trusted sessions may guess. Answer: a [`Guessed`] for each.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Speculate {
        /// In the order of the path.
        pub guesses: Vec<Guess>,
    }
}

codec! {
    /// What a guess has met.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Guessed {
        /// The inode number of the directory that has this id; `None`: there is none here.
        pub dir: Option<Ino>,
        /// What was found, with the directory's own entry where no name was asked for.
        pub entry: Option<Entry>,
        /// Why nothing was.
        pub error: Option<FsError>,
        /// How the directory is divided, if the partition that was asked does not have the name. Nothing was looked up
        /// then.
        pub layout: Option<Layout>,
    }
}

codec! {
    /// A server, as the coordinator sees it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ServerStatus {
        /// Its number in the map.
        pub server: u16,
        /// Where it is.
        pub address: String,
        /// How many shards it has.
        pub shards: u16,
        /// What is left of its lease, milliseconds; 0: it has none.
        pub lease_ms: u64,
        /// The version its invalidation list has reached.
        pub version: u64,
        /// Requests since it started.
        pub requests: u64,
        /// The transactions whose outcome it lacked, as it said with its last heartbeat.
        pub in_doubt: Option<InDoubt>,
    }
}

codec! {
    /// The cluster, as its coordinator sees it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ClusterStatus {
        /// How many servers it is to have.
        pub servers_expected: u16,
        /// Those it has.
        pub servers: Vec<ServerStatus>,
        /// The version of the map.
        pub epoch: Epoch,
        /// The version of the invalidation log.
        pub version: u64,
        /// Renames and permission changes of directories that are under way.
        pub renames: u64,
        /// What is wrong, for people.
        pub problems: Vec<String>,
    }
}

impl PeerHello {
    /// What [`PeerHello::proof`] is the HMAC of, when it is said to server `to`, which has answered `challenge`.
    #[must_use]
    pub fn proven(&self, uuid: u128, to: u16, challenge: u128) -> Vec<u8> {
        let mut text = b"pando peer".to_vec();
        text.extend_from_slice(&uuid.to_le_bytes());
        text.extend_from_slice(&self.from.to_le_bytes());
        text.extend_from_slice(&self.run.to_le_bytes());
        text.extend_from_slice(&to.to_le_bytes());
        text.extend_from_slice(&challenge.to_le_bytes());
        text
    }
}
