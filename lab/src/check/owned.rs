//! "An entry is owned by exactly one shard", and nothing is stored that belongs to nothing.
//!
//! Each server has the records of its own shards only. The names of a directory are on the shard of
//! one of its partitions, each once. No transaction is left open. Whether that partition is the
//! right one is checked by the fsck of all servers merged into one. This check reads the keys of
//! stopped servers, which are `shard · kind · …` (`docs/BYTES.md`), and compares them with a walk
//! of the tree. All clients have closed their sessions, so no session, stored answer, orphan or
//! note of work may be left.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use anyhow::{Context as _, ensure};
use base::Ino;
use store::{Engine, MemoryEngine};

use super::tree::Tree;

/// Bytes of an `N` key before the name: shard, kind, directory, position.
const NAME_START: usize = 2 + 1 + 16 + 8;

/// The facts read from the keys of all servers.
#[derive(Debug, Default)]
struct Keys {
    kinds: BTreeMap<char, u64>,
    /// Directory and name of each entry.
    names: BTreeSet<(Vec<u8>, Vec<u8>)>,
    /// The shard of each directory's master.
    masters: BTreeMap<Vec<u8>, u16>,
    /// The partitions of directories, by their shards.
    shares: BTreeMap<(Vec<u8>, u16), u16>,
    /// Directories, with the shards that have names of theirs.
    named: BTreeSet<(Vec<u8>, u16)>,
    slots: BTreeSet<Ino>,
    chunked: BTreeSet<Ino>,
}

/// Record kinds that belong to unfinished work, with their names.
const NOTES: [(char, &str); 8] = [
    ('Q', "stored answers"),
    ('S', "sessions"),
    ('R', "inodes to reclaim"),
    ('G', "blocks to delete"),
    ('P', "prepared transactions"),
    ('H', "handoffs"),
    ('X', "commits that somebody may not know"),
    ('E', "ends of transactions that nobody asks for"),
];

/// First bytes of keys of notes of work, and of those of the server itself (`docs/BYTES.md`).
const WORK: [u8; 2] = [0xff, 0xfe];
const SERVERS_OWN: [u8; 2] = [0xff, 0xff];

/// Whether a handoff or a transaction is under way.
///
/// # Errors
/// When an engine cannot be read.
pub fn is_at_work(engine: &MemoryEngine) -> store::Result<bool> {
    let mut found = false;
    engine.scan(&[], &[u8::MAX; 16], &mut |key, _| {
        found = matches!(key.get(2), Some(b'H' | b'P' | b'X' | b'E'));
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}

/// Compares the records of all servers with the tree.
///
/// # Errors
/// Returns the first violation.
pub fn check(engines: &[&MemoryEngine], shards: u16, tree: &Tree) -> anyhow::Result<()> {
    let mut keys = Keys::default();
    for (server, engine) in engines.iter().enumerate() {
        let owns = |shard: u16| usize::from(shard) % engines.len() == server;
        read(engine, shards, &mut keys, &owns).with_context(|| format!("server {server}"))?;
    }
    for (kind, what) in NOTES {
        let left = keys.kinds.get(&kind).copied().unwrap_or(0);
        ensure!(left == 0, "{left} {what} are left");
    }
    ensure!(
        keys.names.len() as u64 == tree.names,
        "{} entries are stored, {} are in the tree",
        keys.names.len(),
        tree.names
    );
    ensure!(
        keys.masters.len() as u64 == tree.dirs,
        "{} directories are stored, {} are in the tree",
        keys.masters.len(),
        tree.dirs
    );
    for ((dir, shard), partition) in &keys.shares {
        let master = keys.masters.get(dir).with_context(|| format!("no master: {dir:x?}"))?;
        ensure!(
            (master + partition) % shards == *shard,
            "partition {partition} of {dir:x?} is on shard {shard}, the master on {master}"
        );
    }
    for (dir, shard) in &keys.named {
        let there = keys.shares.contains_key(&(dir.clone(), *shard));
        ensure!(there, "names of {dir:x?} are on shard {shard}, and no partition of it is");
    }
    for ino in keys.slots.iter().chain(&keys.chunked) {
        ensure!(
            tree.inodes.contains_key(ino),
            "something is stored of {ino}, which is not in the tree"
        );
    }
    Ok(())
}

fn read(
    engine: &MemoryEngine,
    shards: u16,
    keys: &mut Keys,
    owns: &dyn Fn(u16) -> bool,
) -> anyhow::Result<()> {
    let mut wrong = Ok(());
    engine.scan(&[], &[u8::MAX; 16], &mut |key, _| {
        wrong = keys.take(key, shards, owns).with_context(|| format!("key {}", key.escape_ascii()));
        if wrong.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    wrong
}

impl Keys {
    fn take(&mut self, key: &[u8], shards: u16, owns: &dyn Fn(u16) -> bool) -> anyhow::Result<()> {
        let (zone, rest) = key.split_first_chunk::<2>().context("short")?;
        let (kind, rest) = rest.split_first().context("short")?;
        let kind = char::from(*kind);
        *self.kinds.entry(kind).or_default() += 1;
        let part = key.last().copied().unwrap_or(0);
        let (shard, rest) = match *zone {
            SERVERS_OWN => return Ok(()),
            WORK => rest.split_first_chunk::<2>().context("short")?,
            _ => (zone, rest),
        };
        let shard = u16::from_be_bytes(*shard);
        ensure!(shard < shards, "of a shard that is not there");
        ensure!(owns(shard), "of a shard that another server has");
        match kind {
            'N' if part == 0 => {
                let dir = rest.get(..16).context("short")?.to_vec();
                let name = key.get(NAME_START..key.len() - 2).context("short")?.to_vec();
                self.named.insert((dir.clone(), shard));
                ensure!(self.names.insert((dir, name)), "a name that is stored twice");
            }
            'D' if part == 0 => {
                let (dir, partition) = rest.split_first_chunk::<16>().context("short")?;
                let partition = partition.first_chunk::<2>().context("short")?;
                let (dir, partition) = (dir.to_vec(), u16::from_be_bytes(*partition));
                if partition == 0 {
                    let before = self.masters.insert(dir.clone(), shard);
                    ensure!(before.is_none(), "a directory that is stored twice");
                }
                let before = self.shares.insert((dir, shard), partition);
                ensure!(before.is_none(), "two partitions of a directory on a shard");
            }
            'I' => drop(self.slots.insert(ino(rest)?)),
            'B' => drop(self.chunked.insert(ino(rest)?)),
            'W' => ensure!(shard == 0 && matches!(rest.len(), 0 | 8), "no change of the feed"),
            'L' => ensure!(shard == 0 && rest.len() == 16, "no delegation"),
            'N' | 'D' | 'R' | 'G' | 'Q' | 'C' | 'S' | 'F' | 'O' | 'M' | 'P' | 'X' | 'H' | 'A'
            | 'V' => {}
            _ => anyhow::bail!("of a kind that is not known"),
        }
        Ok(())
    }
}

fn ino(rest: &[u8]) -> anyhow::Result<Ino> {
    Ok(Ino(u64::from_be_bytes(*rest.first_chunk::<8>().context("short")?)))
}
