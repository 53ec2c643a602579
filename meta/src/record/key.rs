//! Keys, big-endian, so that byte order is the order we list in. There are three zones.
//!
//! The first has what users have, by shard: `shard · kind · …`.
//!
//! | kind | after it | value |
//! |---|---|---|
//! | `N` | dir id, pos, name, 0, part | a part of a name: entry, rename list, spilled xattrs |
//! | `D` | dir id, partition, part | content record, spilled xattrs |
//! | `I` | ino, part | an inode that is not embedded, or where it is now; spilled xattrs |
//! | `B` | ino, chunk | the slices of a chunk |
//!
//! The second has the shards' counters, and notes of work that is left: `0xfffe · kind · shard · …`.
//! A server that starts reads each kind in one scan, however many shards there are.
//!
//! | kind | after it | value |
//! |---|---|---|
//! | `C` | | inode numbers reserved on this shard, at its owner only |
//! | `R` | ino | an inode to reclaim |
//! | `T` | ino | contents that a file was cut by and that are not removed yet |
//! | `G` | block | a block to delete |
//! | `U` | block | a block that may not be stable |
//! | `H` | dir id, partition | a handoff that is not over for this partition |
//! | `V` | dir id, ino | a directory as it was when it was removed, for the change feed |
//!
//! The third has what the server itself has, and stays with it: `0xffff · kind · …`.
//!
//! | kind | after it | value |
//! |---|---|---|
//! | `S` | session | a session |
//! | `Q` | session, slot | stored answers of one group |
//! | `F` | | the file system's configuration |
//! | `O` | | settings made since the format |
//! | `K` | | signing keys and revoked tokens |
//! | `M` | nothing, or 1 to 3 | the server's record of its cluster; the coordinator's; trash; balance |
//! | `P` | transaction | its prepared part here |
//! | `X` | transaction | it is committed; its participants |
//! | `E` | transaction | how it ended here, for its other participants |
//! | `W` | nothing, or a position | the state of the change feed; a change in it |
//! | `A` | ino, part | a quota's root; the charges of a core to it |
//! | `L` | dir id | the session that holds a directory of this server |
//!
//! In a cluster each server has its own `A` records of any root. Nothing is stored under `h` (had
//! open by one), `o` (open) and `u` (charged): by these keys, of the first zone, servers ask each
//! other.

use base::{BlockId, DirId, EntryName, Ino, SessionId, ShardId, layout::POS_MAX};
use smallvec::SmallVec;
use wire::TxnId;

use super::QuotaId;

/// A key; names of ordinary length need no allocation.
pub(crate) type Key = SmallVec<[u8; INLINE_BYTES]>;

/// Bytes of the longest key that needs no allocation.
const INLINE_BYTES: usize = 72;

/// The part of a name, directory or inode that a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// The entry, content record or inode itself.
    Main = 0,
    /// Versions born under a name that live elsewhere.
    RenameList = 1,
    /// Extended attributes that did not fit into the record.
    Xattrs = 2,
    /// The place from which something in the trash was removed.
    Origin = 3,
}

/// Number of bytes of an `N` key before the position.
const ENTRY_PREFIX_BYTES: usize = 2 + 1 + 16;
/// First bytes of the second zone: no shard has this number.
const WORK: [u8; 2] = [0xff, 0xfe];
/// First bytes of the third zone.
const OWN: [u8; 2] = [0xff, 0xff];

/// A key of these parts. Inlined, so that parts whose length is fixed are stored without a call.
#[inline(always)]
fn joined<const N: usize>(parts: [&[u8]; N]) -> Key {
    let mut bytes = [0; INLINE_BYTES];
    let mut len = 0;
    for part in parts {
        match bytes.get_mut(len..len + part.len()) {
            Some(room) => room.copy_from_slice(part),
            None => return parts.concat().into(),
        }
        len += part.len();
    }
    Key::from_buf_and_len(bytes, len)
}

fn start(shard: ShardId, kind: u8) -> Key {
    joined([&shard.0.to_be_bytes(), &[kind]])
}

/// The prefix of a shard's keys of one kind in the second zone.
pub(crate) fn work(shard: ShardId, kind: u8) -> Key {
    joined([&WORK, &[kind], &shard.0.to_be_bytes()])
}

/// The prefix of the keys of one kind in the second zone, of all shards that the server has.
pub(crate) fn works(kind: u8) -> Key {
    joined([&WORK, &[kind]])
}

/// The prefix of the keys of one kind in the third zone.
pub(crate) fn own(kind: u8) -> Key {
    joined([&OWN, &[kind]])
}

/// The part of a key after its kind, and after its shard.
fn rest(key: &[u8]) -> Option<&[u8]> {
    key.get(if key.starts_with(&WORK) { 5 } else { 3 }..)
}

/// The prefix of all names of a directory.
pub(crate) fn names(shard: ShardId, dir: DirId) -> Key {
    joined([&shard.0.to_be_bytes(), b"N", &dir.0.to_be_bytes()])
}

/// The start of a directory's names from position `pos` on.
pub(crate) fn names_from(shard: ShardId, dir: DirId, pos: u64) -> Key {
    joined([&shard.0.to_be_bytes(), b"N", &dir.0.to_be_bytes(), &pos.to_be_bytes()])
}

/// The key after all names of a directory up to position `pos`.
pub(crate) fn names_to(shard: ShardId, dir: DirId, pos: u64) -> Key {
    match pos.checked_add(1) {
        Some(after) if after <= POS_MAX => names_from(shard, dir, after),
        Some(_) | None => end_of(&names(shard, dir)),
    }
}

/// The key of one part of a name.
pub(crate) fn name(shard: ShardId, dir: DirId, pos: u64, name: &EntryName, part: Part) -> Key {
    let (shard, dir, pos) = (shard.0.to_be_bytes(), dir.0.to_be_bytes(), pos.to_be_bytes());
    joined([&shard, b"N", &dir, &pos, name.as_bytes(), &[0, part as u8]])
}

/// Whether this is an `N` key.
pub(crate) fn is_name(key: &[u8]) -> bool {
    key.get(2) == Some(&b'N')
}

/// The position, name and part in an `N` key.
pub(crate) fn parse_name(key: &[u8]) -> Option<(u64, &[u8], u8)> {
    let (pos, rest) = key.get(ENTRY_PREFIX_BYTES..)?.split_first_chunk::<8>()?;
    let (name_and_zero, part) = rest.split_at_checked(rest.len().checked_sub(1)?)?;
    let (zero, name) = name_and_zero.split_last()?;
    (*zero == 0).then_some((u64::from_be_bytes(*pos), name, part[0]))
}

/// Whether this is the key of an entry, and not of another part of a name.
pub(crate) fn is_entry(key: &[u8]) -> bool {
    is_name(key) && parse_name(key).is_some_and(|(_, _, part)| part == Part::Main as u8)
}

/// The position in an `N` key that goes along when its name moves to another partition. Rename
/// lists do not move: the master has those of all names.
pub(crate) fn parse_moving(key: &[u8]) -> Option<u64> {
    let (pos, _, part) = parse_name(key)?;
    (part != Part::RenameList as u8).then_some(pos)
}

/// The directory in an `N`, `D`, `H`, `L` or `V` key.
pub(crate) fn parse_dir(key: &[u8]) -> Option<DirId> {
    Some(DirId(u128::from_be_bytes(*rest(key)?.first_chunk::<16>()?)))
}

/// The key of a content record or of its spilled xattrs.
pub(crate) fn content(shard: ShardId, dir: DirId, partition: u16, part: Part) -> Key {
    let (shard, dir) = (shard.0.to_be_bytes(), dir.0.to_be_bytes());
    joined([&shard, b"D", &dir, &partition.to_be_bytes(), &[part as u8]])
}

/// The prefix of all content records of a directory on a shard, and of their spilled xattrs.
pub(crate) fn shares(shard: ShardId, dir: DirId) -> Key {
    joined([&shard.0.to_be_bytes(), b"D", &dir.0.to_be_bytes()])
}

/// The partition and the part in a `D` key.
pub(crate) fn parse_share(key: &[u8]) -> Option<(u16, u8)> {
    match key.get(ENTRY_PREFIX_BYTES..)? {
        [high, low, part] => Some((u16::from_be_bytes([*high, *low]), *part)),
        _ => None,
    }
}

/// The key of a partition's handoff that is not over.
pub(crate) fn handoff(shard: ShardId, dir: DirId, partition: u16) -> Key {
    let (shard, dir) = (shard.0.to_be_bytes(), dir.0.to_be_bytes());
    joined([&WORK, b"H", &shard, &dir, &partition.to_be_bytes()])
}

/// The directory and the partition in an `H` key.
pub(crate) fn parse_handoff(key: &[u8]) -> Option<(DirId, u16)> {
    let partition = u16::from_be_bytes(rest(key)?.get(16..)?.try_into().ok()?);
    parse_dir(key).map(|dir| (dir, partition))
}

/// Whether this is the key of a content record itself.
pub(crate) fn is_content(key: &[u8]) -> bool {
    key.get(2) == Some(&b'D') && key.last() == Some(&(Part::Main as u8))
}

/// The key of an inode slot or of its spilled xattrs.
pub(crate) fn inode(ino: Ino, part: Part) -> Key {
    joined([&ino.shard().0.to_be_bytes(), b"I", &ino.0.to_be_bytes(), &[part as u8]])
}

/// The prefix of all chunks of an inode.
pub(crate) fn chunks(ino: Ino) -> Key {
    joined([&ino.shard().0.to_be_bytes(), b"B", &ino.0.to_be_bytes()])
}

/// The key of one chunk.
pub(crate) fn chunk(ino: Ino, chunk: u32) -> Key {
    joined([&ino.shard().0.to_be_bytes(), b"B", &ino.0.to_be_bytes(), &chunk.to_be_bytes()])
}

/// The inode and chunk in a `B` key.
pub(crate) fn parse_chunk(key: &[u8]) -> Option<(Ino, u32)> {
    let (ino, rest) = key.get(3..)?.split_first_chunk::<8>()?;
    Some((Ino(u64::from_be_bytes(*ino)), u32::from_be_bytes(rest.try_into().ok()?)))
}

/// The inode in an `I`, `B`, `R` or `T` key.
pub(crate) fn parse_ino(key: &[u8]) -> Option<Ino> {
    Some(Ino(u64::from_be_bytes(*rest(key)?.first_chunk::<8>()?)))
}

/// The key of an inode to reclaim.
pub(crate) fn reclaim(ino: Ino) -> Key {
    joined([&WORK, b"R", &ino.shard().0.to_be_bytes(), &ino.0.to_be_bytes()])
}

/// The key of the contents that a file was cut by and that are not removed yet.
pub(crate) fn tail(ino: Ino) -> Key {
    joined([&WORK, b"T", &ino.shard().0.to_be_bytes(), &ino.0.to_be_bytes()])
}

/// The prefix of a shard's notes of contents that files were cut by.
pub(crate) fn tails(shard: ShardId) -> Key {
    work(shard, b'T')
}

/// The key of a block to delete, on the shard of the inode it belonged to.
pub(crate) fn garbage(shard: ShardId, block: BlockId) -> Key {
    joined([&WORK, b"G", &shard.0.to_be_bytes(), &block.0.to_be_bytes()])
}

/// The key of a block that may not be stable, on the shard of the inode that names it.
pub(crate) fn unsynced(shard: ShardId, block: BlockId) -> Key {
    joined([&WORK, b"U", &shard.0.to_be_bytes(), &block.0.to_be_bytes()])
}

/// The kind and the block of a `G` or `U` key; `None` for any other.
pub(crate) fn block_noted(key: &[u8]) -> Option<(u8, BlockId)> {
    let kind = *key.get(2)?;
    matches!(kind, b'G' | b'U').then_some(())?;
    parse_garbage(key).map(|block| (kind, block))
}

/// The block in a `G` or `U` key.
pub(crate) fn parse_garbage(key: &[u8]) -> Option<BlockId> {
    Some(BlockId(u128::from_be_bytes(rest(key)?.try_into().ok()?)))
}

/// The prefix of all stored answers of a session.
pub(crate) fn answers(session: SessionId) -> Key {
    joined([&OWN, b"Q", &session.0.to_be_bytes()])
}

/// The key of one record of stored answers.
pub(crate) fn answer(session: SessionId, slot: u16) -> Key {
    joined([&OWN, b"Q", &session.0.to_be_bytes(), &slot.to_be_bytes()])
}

/// The slot in a `Q` key.
pub(crate) fn parse_answer(key: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(key.get(11..)?.try_into().ok()?))
}

/// The key of a shard's reserved inode numbers.
pub(crate) fn counter(shard: ShardId) -> Key {
    work(shard, b'C')
}

/// The key of a session.
pub(crate) fn session(session: SessionId) -> Key {
    joined([&OWN, b"S", &session.0.to_be_bytes()])
}

/// The session in an `S` key.
pub(crate) fn parse_session(key: &[u8]) -> Option<SessionId> {
    Some(SessionId(u64::from_be_bytes(key.get(3..)?.try_into().ok()?)))
}

/// The key of the configuration.
pub(crate) fn config() -> Key {
    own(b'F')
}

/// The key by which servers ask each other whether an inode is open. Nothing is stored under it.
pub(crate) fn open(ino: Ino) -> Key {
    joined([&ino.shard().0.to_be_bytes(), b"o", &ino.0.to_be_bytes()])
}

/// The inode in the key by which servers ask whether it is open.
pub(crate) fn parse_open(key: &[u8]) -> Option<Ino> {
    (key.get(2) == Some(&b'o')).then(|| parse_ino(key))?
}

/// The key by which servers ask whether a user of a session has an inode open. Nothing is stored
/// under it.
pub(crate) fn opener(ino: Ino, (session, user): (SessionId, u32)) -> Key {
    let (shard, ino) = (ino.shard().0.to_be_bytes(), ino.0.to_be_bytes());
    joined([&shard, b"h", &ino, &session.0.to_be_bytes(), &user.to_be_bytes()])
}

/// The inode, session and user in the key by which servers ask whether one has the other open.
pub(crate) fn parse_opener(key: &[u8]) -> Option<(Ino, (SessionId, u32))> {
    let rest = (key.get(2) == Some(&b'h')).then(|| key.get(3..))??;
    let (ino, rest) = rest.split_first_chunk::<8>()?;
    let (session, user) = rest.split_first_chunk::<8>()?;
    let user = u32::from_be_bytes(user.try_into().ok()?);
    Some((Ino(u64::from_be_bytes(*ino)), (SessionId(u64::from_be_bytes(*session)), user)))
}

/// The key by which servers ask what another one, which may have no shard, has charged to an
/// accounting root. Nothing is stored under it.
pub(crate) fn charged(server: u16, id: QuotaId) -> Key {
    joined([&ShardId::of_server(server).0.to_be_bytes(), b"u", &id.0.0.to_be_bytes()])
}

/// The accounting root in the key by which servers ask what is charged to it.
pub(crate) fn parse_charged(key: &[u8]) -> Option<QuotaId> {
    (key.get(2) == Some(&b'u')).then(|| parse_ino(key).map(QuotaId))?
}

/// The key of a transaction that was prepared here.
pub(crate) fn prepared(txn: TxnId) -> Key {
    transaction(b'P', txn)
}

/// The key of a transaction that was committed here, and whose participants do not all know it yet.
pub(crate) fn committed(txn: TxnId) -> Key {
    transaction(b'X', txn)
}

/// The key of a transaction that has ended here, and may not have elsewhere.
pub(crate) fn ended(txn: TxnId) -> Key {
    transaction(b'E', txn)
}

fn transaction(kind: u8, txn: TxnId) -> Key {
    let (server, run) = (txn.server.to_be_bytes(), txn.run.to_be_bytes());
    joined([&OWN, &[kind], &server, &run, &txn.number.to_be_bytes()])
}

/// The transaction in a `P`, `X` or `E` key.
pub(crate) fn parse_transaction(key: &[u8]) -> Option<TxnId> {
    let (server, rest) = key.get(3..)?.split_first_chunk::<2>()?;
    let (run, rest) = rest.split_first_chunk::<8>()?;
    let number = u64::from_be_bytes(rest.try_into().ok()?);
    let (server, run) = (u16::from_be_bytes(*server), u64::from_be_bytes(*run));
    Some(TxnId { server, run, number })
}

/// The key of the server's record of its cluster.
pub(crate) fn member() -> Key {
    own(b'M')
}

/// The key of the coordinator's record of all servers.
pub(crate) fn roster() -> Key {
    joined([&OWN, b"M", &[1]])
}

/// The key of the time by which the server empties its trash.
pub(crate) fn lived() -> Key {
    joined([&OWN, b"M", &[2]])
}

/// The key of what the coordinator does about the load of shards.
pub(crate) fn balancing() -> Key {
    joined([&OWN, b"M", &[3]])
}

/// The key of the state of the server's change feed.
pub(crate) fn feed() -> Key {
    own(b'W')
}

/// The key of a change in the server's change feed.
pub(crate) fn feed_event(position: u64) -> Key {
    joined([&OWN, b"W", &position.to_be_bytes()])
}

/// The position in the key of a change in the feed.
pub(crate) fn parse_feed_event(key: &[u8]) -> Option<u64> {
    let position = (key.get(2) == Some(&b'W')).then(|| key.get(3..))??;
    Some(u64::from_be_bytes(position.try_into().ok()?))
}

/// The key of a directory as it was when it was removed, on the shard of its master.
pub(crate) fn past(shard: ShardId, dir: DirId, ino: Ino) -> Key {
    let (shard, dir) = (shard.0.to_be_bytes(), dir.0.to_be_bytes());
    joined([&WORK, b"V", &shard, &dir, &ino.0.to_be_bytes()])
}

/// The directory in a `V` key.
#[cfg(test)]
pub(crate) fn parse_past(key: &[u8]) -> Option<(DirId, Ino)> {
    let ino = u64::from_be_bytes(rest(key)?.get(16..)?.try_into().ok()?);
    (key.get(2) == Some(&b'V')).then(|| parse_dir(key))?.map(|dir| (dir, Ino(ino)))
}

/// A zone of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Zone {
    /// Records of users, by shard.
    Users,
    /// Counters of shards, and notes of work that is left.
    Work,
    /// Records of the server itself.
    Server,
}

/// The zone and the shard of a key, whose kind then is its third byte; `None` if it is too short.
pub(crate) fn zone(key: &[u8]) -> Option<(Zone, ShardId)> {
    key.get(2)?;
    let zone = match *key.first_chunk()? {
        WORK => Zone::Work,
        OWN => Zone::Server,
        _ => Zone::Users,
    };
    let whole = zone != Zone::Work || key.len() >= 5;
    whole.then(|| (zone, shard_of(key)))
}

/// Like [`zone`], for a file system of so many shards: `None` also for a key of another shard.
pub(crate) fn zone_among(key: &[u8], shards: u16) -> Option<(Zone, ShardId)> {
    zone(key).filter(|(zone, shard)| *zone == Zone::Server || shard.0 < shards)
}

/// The shard of a key. [`ShardId::SERVER`] if it is of the server itself.
///
/// # Panics
/// When `key` is shorter than its zone's shortest.
pub(crate) fn shard_of(key: &[u8]) -> ShardId {
    let at = if key.starts_with(&WORK) { &key[3..] } else { key };
    let shard = at.first_chunk::<2>().expect("every key has its shard or its server");
    ShardId(u16::from_be_bytes(*shard))
}

/// The prefix of all keys in the second zone.
pub(crate) fn all_work() -> Key {
    Key::from_slice(&WORK)
}

/// The key that is there while records of shards may be here that are another server's. Keys of
/// those that are kept aside begin with it.
pub(crate) fn elsewhere() -> Key {
    own(b'V')
}

/// The prefix of all keys of records that are kept aside.
pub(crate) fn all_aside() -> Key {
    joined([&OWN, b"V", &[1]])
}

/// The key under which a record is kept aside.
pub(crate) fn aside(of: &[u8]) -> Key {
    joined([&OWN, b"V", &[1], of])
}

/// The key of the record that is kept aside under this one.
pub(crate) fn of_aside(key: &[u8]) -> &[u8] {
    &key[4..]
}

/// The key of the settings made since the format.
pub(crate) fn settings() -> Key {
    own(b'O')
}

/// The key of the key ring.
pub(crate) fn key_ring() -> Key {
    own(b'K')
}

/// The prefix of all delegations.
pub(crate) fn delegations() -> Key {
    own(b'L')
}

/// The key of a directory's delegation.
pub(crate) fn delegation(dir: DirId) -> Key {
    joined([&OWN, b"L", &dir.0.to_be_bytes()])
}

/// The directory in the key of a delegation.
pub(crate) fn parse_delegation(key: &[u8]) -> Option<DirId> {
    (key.get(2) == Some(&b'L')).then(|| parse_dir(key))?
}

/// The directory of a key that a delegation covers: its content records, and its names.
pub(crate) fn parse_covered(key: &[u8]) -> Option<DirId> {
    matches!(key.get(2), Some(b'N' | b'D')).then(|| parse_dir(key))?
}

/// The kind of an accounting root's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UsagePart {
    /// The root itself: 0.
    Root,
    /// The charges of one core: the core's number and 1.
    Core(u16),
}

/// The key of a record of an accounting root.
pub(crate) fn usage(id: QuotaId, part: UsagePart) -> Key {
    let part = match part {
        UsagePart::Root => 0,
        UsagePart::Core(core) => core.saturating_add(1),
    };
    joined([&OWN, b"A", &id.0.0.to_be_bytes(), &part.to_be_bytes()])
}

/// The accounting root and the part in an `A` key.
pub(crate) fn parse_usage(key: &[u8]) -> Option<(QuotaId, UsagePart)> {
    let (ino, rest) = key.get(3..)?.split_first_chunk::<8>()?;
    let part = u16::from_be_bytes(rest.try_into().ok()?);
    let part = part.checked_sub(1).map_or(UsagePart::Root, UsagePart::Core);
    Some((QuotaId(Ino(u64::from_be_bytes(*ino))), part))
}

/// The prefix of a shard's keys in the first zone.
pub(crate) fn shard(shard: ShardId) -> Key {
    Key::from_slice(&shard.0.to_be_bytes())
}

/// The prefix of a shard's keys of one kind: `N`, `D`, `I` or `B`.
pub(crate) fn kind(shard: ShardId, kind: u8) -> Key {
    start(shard, kind)
}

/// The first key after all that start with `prefix`.
pub(crate) fn end_of(prefix: &[u8]) -> Key {
    let mut end = Key::from_slice(prefix);
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // No kind is a byte 0xff.
    Key::from_slice(&[u8::MAX; 8])
}
