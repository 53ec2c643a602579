//! Values of the records, every variant of them.

use base::{
    BlockId, ClusterMap, DirId, EntryName, Epoch, FileKind, HashKey, Ino, Layout, Level, Locality,
    Moving, NameVersion, Pair, SearchClass, ShardId, Spread, Subsets, Time, permissions::Listing,
};
use bytes::Bytes;
use wire::{BlockPart, Slice, SliceSource};

use crate::cluster::member::{LastServed, Member, Served};
use crate::coordinator::generations::{Generation, Generations};
use crate::coordinator::roster::{Enrolled, Roster};
use crate::keys::ring::{KeyRing, RevokedToken, SigningKey};
use crate::record::{
    Access, Config, Content, ContentState, Contents, EntryRecord, InTrash, InlineMax, Inode,
    Location, Placing, Policy, QuotaId, QuotaRecord, QuotaState, Slot, StoredListing, Times, Trash,
    UNLIMITED, XattrSet, Xattrs,
    system::{Origin, StoredAnswers},
};
use crate::upgrade::OldConfig;

/// A key ring with a key and a revoked token.
pub(super) fn key_ring() -> KeyRing {
    let secret = wire::Secret(Bytes::from_static(b"\x01 the secret of a signing key \x02"));
    let keys = vec![SigningKey { number: 300, secret, made: time(9) }];
    let (id, expires) = (0x1234_5678_9abc_def1, Some(time(10)));
    let revoked = vec![RevokedToken { id, expires, key_first: 70_001, key_last: 70_002 }];
    KeyRing { version: 0x1234_5678_9abc_def0, newest: 300, root_retired: true, keys, revoked }
}

fn name(text: &str) -> EntryName {
    EntryName::new(text.as_bytes()).unwrap()
}

pub(super) fn time(sec: i64) -> Time {
    Time { sec: 1_700_000_000 + sec, nsec: 999_999_999 }
}

/// Times that differ in every way: each flag alone, all of them, and none.
pub(super) fn times() -> impl Iterator<Item = (String, Times)> {
    let all = [
        ("all_equal", [1, 1, 1, 1]),
        ("atime_is_mtime", [1, 1, 2, 3]),
        ("mtime_is_ctime", [1, 2, 2, 3]),
        ("ctime_is_btime", [1, 2, 3, 3]),
        ("all_differ", [1, 2, 3, 4]),
    ];
    all.into_iter().map(|(name, sec)| {
        let [atime, mtime, ctime, btime] = sec.map(time);
        (format!("Times.{name}"), Times { atime, mtime, ctime, btime })
    })
}

pub(super) fn xattrs() -> XattrSet {
    let pair = |name: &'static str, value: &'static [u8]| {
        (Bytes::from_static(name.as_bytes()), Bytes::from_static(value))
    };
    XattrSet { list: vec![pair("user.a", b"\0one"), pair("user.b", b"")] }
}

pub(super) fn contents() -> [Contents; 4] {
    [
        Contents::Inline(Bytes::from_static(b"whole file")),
        Contents::Blocks,
        Contents::Target(Bytes::from_static(b"../to")),
        Contents::Device(0x0103),
    ]
}

fn inode(kind: FileKind, contents: Contents) -> Inode {
    Inode {
        ino: Ino::new(ShardId(4), 300),
        kind,
        mode: 0o4755,
        uid: 1000,
        gid: 1001,
        nlink: 2,
        size: 5_000_000_000,
        allocated: 4_194_304,
        times: Times { atime: time(1), mtime: time(2), ctime: time(2), btime: time(0) },
        moved: true,
        xattrs: Xattrs::Spilled,
        contents,
        quota: QuotaId::NONE,
        inline_max: InlineMax::NONE,
        in_trash: InTrash(false),
    }
}

/// A small file with one name, as most are, and a node of every other kind.
pub(super) fn entries() -> Vec<EntryRecord> {
    let [inline, blocks, target, device] = contents();
    let small = Inode {
        mode: 0o644,
        nlink: 1,
        size: 10,
        allocated: 0,
        times: Times::born(time(0)),
        moved: false,
        xattrs: Xattrs::NONE,
        ..inode(FileKind::File, inline)
    };
    let marked = Inode { xattrs: Xattrs::Embedded(xattrs()), ..small.clone() };
    let charged = Inode { quota: quota(), ..small.clone() };
    let limited = Inode { inline_max: InlineMax(Some(100)), ..charged.clone() };
    let removed = Inode { in_trash: InTrash(true), ..limited.clone() };
    let access = Access {
        id: DirId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
        ino: Ino::new(ShardId(3), 77),
        home: DirId(0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20),
        mode: 0o1777,
        uid: 1000,
        gid: 1001,
    };
    vec![
        EntryRecord::Node(small),
        EntryRecord::Node(marked),
        EntryRecord::Node(inode(FileKind::File, blocks)),
        EntryRecord::Node(inode(FileKind::Symlink, target)),
        EntryRecord::Node(inode(FileKind::BlockDevice, device)),
        EntryRecord::Dir(access),
        EntryRecord::Link(Ino::new(ShardId(4), 300)),
        EntryRecord::Node(charged),
        EntryRecord::Node(limited),
        EntryRecord::Node(removed),
    ]
}

pub(super) fn place() -> Location {
    Location {
        dir: DirId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
        home: DirId(0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20),
        name: name("elsewhere"),
    }
}

pub(super) fn slots() -> [Slot; 2] {
    [Slot::Inode(inode(FileKind::File, Contents::Blocks)), Slot::Moved(place())]
}

pub(super) fn content() -> Content {
    Content {
        state: ContentState::Live,
        confirmed: false,
        ino: Ino::new(ShardId(3), 77),
        birth_parent: DirId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
        birth_name: Some(name("born")),
        birth_version: NameVersion(2),
        home: DirId(0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20),
        layout: Layout::Whole,
        parent: DirId(0x2122_2324_2526_2728_292a_2b2c_2d2e_2f30),
        parent_ino: Ino::new(ShardId(5), 78),
        parent_home: DirId(0x3132_3334_3536_3738_393a_3b3c_3d3e_3f40),
        name: Some(name("now")),
        mode: 0o2755,
        uid: 1000,
        gid: 1001,
        times: Times { atime: time(1), mtime: time(2), ctime: time(3), btime: time(0) },
        entries: 1_000_000,
        subdirs: 300,
        xattrs: Xattrs::Embedded(xattrs()),
        quota: QuotaId::NONE,
        policy: Policy::NONE,
        placing: Placing::NONE,
        listing: StoredListing::default(),
    }
}

/// A directory above the boundary, and one at it that was born in a home of others.
pub(super) fn placed() -> [Content; 2] {
    let with = |level, placing| Content {
        birth_version: NameVersion::first(level),
        placing,
        ..listed()[2].clone()
    };
    let birth_home = Some(DirId(0x4142_4344_4546_4748_494a_4b4c_4d4e_4f50));
    [
        with(Level::Above, Placing { levels: Some(2), birth_home: None }),
        with(Level::Boundary, Placing { levels: None, birth_home }),
    ]
}

/// The root: it was born nowhere and has no name.
pub(super) fn root() -> Content {
    Content {
        confirmed: true,
        ino: Ino::ROOT,
        birth_parent: DirId::ROOT,
        birth_name: None,
        birth_version: NameVersion(0),
        home: DirId::ROOT,
        parent: DirId::ROOT,
        parent_ino: Ino::ROOT,
        parent_home: DirId::ROOT,
        name: None,
        times: Times::born(time(0)),
        xattrs: Xattrs::NONE,
        ..content()
    }
}

pub(super) fn answers() -> StoredAnswers {
    let answers = [(70_002, &b"later"[..]), (70_001, b"")];
    let answers = answers.map(|(seq, answer)| (base::Seq(seq), Bytes::from_static(answer)));
    StoredAnswers { settled: base::Seq(300), answers: answers.into() }
}

/// A directory without a bound that is listed, and two with one that a group and that everybody is
/// granted.
pub(super) fn listed() -> [Content; 3] {
    let with = |below, listed| {
        let listing = StoredListing(Listing { below, listed });
        Content { listing, ..divided()[2].clone() }
    };
    [
        with(SearchClass::Nothing, true),
        with(SearchClass::of_mode(0o750, 1000, 1001), true),
        with(SearchClass::All, false),
    ]
}

/// Blocks in records carry no ticket: that is of a session.
pub(super) fn slices() -> Vec<Slice> {
    let embedded = SliceSource::Embedded(Bytes::from_static(b"bytes"));
    let part =
        BlockPart { block: BlockId(9 << 64 | 4), block_bytes: 70_000, offset: 4096, ticket: 0 };
    vec![
        Slice { start: 300, len: 5, source: embedded },
        Slice { start: 0, len: 65_536, source: SliceSource::Block(part) },
        Slice { start: 4_000_000, len: 1, source: SliceSource::Zeros },
    ]
}

/// An accounting root.
pub(super) fn quota() -> QuotaId {
    QuotaId(Ino::new(ShardId(6), 79))
}

/// A directory that is charged to an accounting root.
pub(super) fn charged() -> Content {
    Content { quota: quota(), ..content() }
}

/// A directory that was divided from the start; one that is charged to a quota as well; and one
/// that also limits inline contents.
pub(super) fn divided() -> [Content; 3] {
    let policy = Policy {
        spread: Some(Spread::Subsets),
        large_dir: 3,
        inherit: true,
        split_threshold: 70_006,
        inline_max: InlineMax::NONE,
    };
    let layout = Layout::Subsets(Subsets::started(1, 3));
    let limited = Policy { inline_max: InlineMax(Some(300)), ..policy };
    let divided = Content { policy, layout, ..content() };
    let charged = Content { quota: quota(), ..divided.clone() };
    [divided, charged.clone(), Content { policy: limited, ..charged }]
}

/// An accounting root in each of its states.
pub(super) fn quotas() -> [QuotaRecord; 4] {
    let states = [QuotaState::Counting, QuotaState::Active, QuotaState::Removing, QuotaState::Gone];
    states.map(|state| QuotaRecord {
        state,
        dir: DirId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
        home: DirId(0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20),
        parent: Ino::new(ShardId(7), 80),
        bytes_max: Some(UNLIMITED),
        entries_max: None,
    })
}

pub(super) fn config() -> Config {
    Config {
        name: "pando".into(),
        uuid: 0x2122_2324_2526_2728_292a_2b2c_2d2e_2f30,
        shards: 64,
        lanes: 16,
        hash_key: HashKey::new(1, u64::MAX),
        locality: Locality::Subtree,
        inline_bytes_max: 4096,
        blocks: "s3://bucket/prefix".into(),
        signing_key: Bytes::from_static(b"golden key"),
        created: time(6),
    }
}

/// [`config`] as it was stored before version 12 of the data directory.
pub(super) fn old_config() -> OldConfig {
    let Config { name, uuid, shards, hash_key, locality, inline_bytes_max, .. } = config();
    let Config { blocks, signing_key, created, .. } = config();
    let HashKey { k0, k1, .. } = hash_key;
    OldConfig {
        name,
        uuid,
        shards,
        k0,
        k1,
        locality,
        inline_bytes_max,
        blocks,
        signing_key,
        created,
    }
}

pub(super) fn trash() -> Trash {
    Trash { days: 300, dir: DirId(7 << 64 | 9), home: DirId(11), ino: Ino(70_001) }
}

pub(super) fn origin() -> Origin {
    let name = EntryName::new(b"name").unwrap();
    let (dir, home, ino) = (DirId(7 << 64 | 9), DirId(11), Ino(70_001));
    Origin { dir, home, ino, name, path: "/a/name".into(), removed: time(9) }
}

pub(super) fn prepared() -> crate::transact::PreparedRecord {
    let key = |text: &'static str| Bytes::from_static(text.as_bytes());
    let write = wire::PeerWrite::Put((key("put"), key("value")));
    crate::transact::PreparedRecord {
        stands: vec![key("stands")],
        writes: vec![write, wire::PeerWrite::Delete(key("removed"))],
        born: None,
        others: crate::transact::Others::default(),
    }
}

pub(super) fn prepared_birth() -> crate::transact::PreparedRecord {
    let born = Some(Bytes::from_static(b"key"));
    let (stands, writes, others) = (Vec::new(), Vec::new(), crate::transact::Others::default());
    crate::transact::PreparedRecord { stands, writes, born, others }
}

pub(super) fn prepared_by_several() -> crate::transact::PreparedRecord {
    crate::transact::PreparedRecord { others: crate::transact::Others(vec![2, 300]), ..prepared() }
}

pub(super) fn committed_birth() -> crate::transact::CommittedRecord {
    let text = |text: &'static str| Bytes::from_static(text.as_bytes());
    let (name, key, content) = (text("entry"), text("key"), text("content"));
    let born = Some(crate::transact::Child { name, key, content });
    crate::transact::CommittedRecord { participants: vec![300], born }
}

pub(super) fn member() -> Member {
    let servers = vec!["a:1".into(), "bc:2".into()];
    let map = ClusterMap { epoch: Epoch(70_001), servers, shards: vec![0, 1, 300] };
    let member = 0x4142_4344_4546_4748;
    Member { server: 300, servers: 400, member, map, last: LastServed::default() }
}

pub(super) fn served() -> Member {
    let follows = wire::Term { number: 70_003, run: 70_004 };
    let last = LastServed(Served {
        generation: 70_005,
        follows,
        follows_at: 70_006,
        unchecked: true,
        refused_at: 70_008,
    });
    Member { last, ..member() }
}

pub(super) fn roster() -> Roster {
    let member = Enrolled { member: 0x5152_5354, address: "a:1".into(), heard: true };
    let generations = Generations::default();
    Roster { members: vec![member], versions_end: 70_002, lease_ms: 3000, generations }
}

pub(super) fn roster_of_generations() -> Roster {
    let text = |text: &'static str| Bytes::from_static(text.as_bytes());
    let newest = Generation {
        number: 70_005,
        run: 70_006,
        place: text("boot 1 2"),
        home: text("machine 2"),
        alone_ms: 600_000,
        position: 70_007,
        confirmed: 70_004,
        resigned: true,
        restored_in: 70_003,
    };
    Roster { generations: Generations(vec![newest]), ..roster() }
}

pub(super) fn of_last() -> Moving {
    Moving::Subset((2, 5))
}

pub(super) fn of_a_pair() -> Moving {
    Moving::Pair(Pair { lower: 2, upper: 6, few: 5, many: 300 })
}

pub(super) fn receiving(moving: Moving) -> crate::handoff::HandoffRecord {
    crate::handoff::HandoffRecord::Receiving(crate::handoff::Receiving {
        txn: wire::TxnId { server: 3, run: 0x1111_2222_3333_4444, number: 70_000 },
        ino: Ino(0x0001_0203_0405_0607),
        source: 1,
        moving,
    })
}
