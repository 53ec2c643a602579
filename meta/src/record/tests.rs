//! Golden bytes of every key and record, and damage to them.
//!
//! Numbers are of different lengths and all different, so that no two fields could change places
//! unseen.

#[path = "../../../wire/src/tests/golden.rs"]
mod golden;
mod values;

use std::{fmt::Debug, path::Path};

use base::{BlockId, DirId, EntryName, HashKey, Ino, SessionId, ShardId};
use proptest::prelude::*;

use self::golden::{Case, Variants, all, variants};
use super::{
    ChunkRecord, ContentState, Contents, EntryRecord, Key, Lived, QuotaState, ReclaimKind, Record,
    RenameList, SessionRecord, Settings, Slot, Tail, TrashSetting, Usage, Xattrs,
    key::{self, Part, UsagePart},
    system::{Reclaim, Reserved, StoredAnswers},
};
use crate::coordinator::balance::Balancing;
use crate::delegations::DelegationRecord;
use crate::feed::{Event, FeedState, Logged, Past};
use crate::handoff::HandoffRecord;
use crate::quota::{Root, Roots, Told};
use crate::transact::{CommittedRecord, EndedRecord};
use crate::unsynced::Unsynced;
use crate::{
    dump::{FirstHeader, Frame, Header, Trailer},
    reclaim::notes::{Garbage, HeldFor},
};

variants!(Part { Main, RenameList, Xattrs, Origin });
variants!(ContentState { Pending, Live, Removing, Merged });
variants!(EntryRecord { Node, Dir, Link });
variants!(Slot { Inode, Moved });
variants!(Xattrs { Embedded, Spilled, Split });
variants!(Contents { Inline, Blocks, Target, Device });
variants!(ReclaimKind { Orphan, Contents, Unnamed, Rest });
variants!(Frame { FirstHeader, Records, Block, Trailer, Header });
variants!(HandoffRecord { Receiving, Given, Sweeping });
variants!(Logged { Event, Past });
variants!(QuotaState { Counting, Active, Removing, Gone });

/// A record with its version, as it is stored.
fn record<T: Record + PartialEq + Debug + 'static>(name: impl Into<String>, value: T) -> Case {
    let bytes = value.to_record();
    Case::new(name, value, bytes, |bytes| T::from_record(bytes).ok())
}

/// A key, and the value that must be found in it again.
fn key<T: PartialEq + 'static>(
    name: &str,
    key: Key,
    value: T,
    parse: impl Fn(&[u8]) -> Option<T> + 'static,
) -> Case {
    Case::new(name, value, key.to_vec(), move |bytes| parse(bytes))
}

/// A key that tells nothing but its kind.
fn bare(name: &str, bytes: Key) -> Case {
    key(name, bytes.clone(), bytes.to_vec(), |bytes| Some(bytes.to_vec()))
}

fn keys() -> Vec<Case> {
    const SHARD: ShardId = ShardId(0x0102);
    const DIR: DirId = DirId(0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20);
    const POS: u64 = 0x2122_2324_2526_2728;
    let name = EntryName::new("n\u{e4}me".as_bytes()).unwrap();
    let ino = Ino::new(SHARD, 0x3132_3334);
    let (session, block) = (SessionId(0x4142), BlockId::new(SessionId(0x4142), 0x51));

    let txn = wire::TxnId { server: 0x6162, run: 0x6364_6566, number: 0x6768 };

    let named = |part: Part| {
        let (key, value) = (key::name(SHARD, DIR, POS, &name, part), name.clone());
        self::key(&format!("N.{}", part.variant()), key, (DIR, POS, value, part as u8), |bytes| {
            let (pos, name, part) = key::parse_name(bytes)?;
            Some((key::parse_dir(bytes)?, pos, EntryName::new(name).ok()?, part))
        })
    };
    // A rename list belongs to a name, so neither of these has that part.
    let content = |part: Part| {
        let key = key::content(SHARD, DIR, 0x0304, part);
        self::key(&format!("D.{}", part.variant()), key, DIR, key::parse_dir)
    };
    let inode = |part: Part| {
        let key = key::inode(ino, part);
        self::key(&format!("I.{}", part.variant()), key, ino, key::parse_ino)
    };
    let usage = |name: &str, part: UsagePart| {
        let key = key::usage(values::quota(), part);
        self::key(&format!("A.{name}"), key, (values::quota(), part), key::parse_usage)
    };
    vec![
        named(Part::Main),
        named(Part::RenameList),
        named(Part::Xattrs),
        named(Part::Origin),
        content(Part::Main),
        content(Part::Xattrs),
        inode(Part::Main),
        inode(Part::Xattrs),
        key("B", key::chunk(ino, 0x0506_0708), (ino, 0x0506_0708), key::parse_chunk),
        key("R", key::reclaim(ino), ino, key::parse_ino),
        key("T", key::tail(ino), ino, key::parse_ino),
        key("G", key::garbage(SHARD, block), block, key::parse_garbage),
        key("U", key::unsynced(SHARD, block), block, key::parse_garbage),
        bare("Q", key::answer(session, 0x0fff)),
        bare("C", key::counter(SHARD)),
        key("o", key::open(ino), ino, key::parse_open),
        key("h", key::opener(ino, (session, 0x0708)), (ino, (session, 0x0708)), key::parse_opener),
        key("u", key::charged(SHARD.0, values::quota()), values::quota(), key::parse_charged),
        key("P", key::prepared(txn), txn, key::parse_transaction),
        key("X", key::committed(txn), txn, key::parse_transaction),
        key("E", key::ended(txn), txn, key::parse_transaction),
        key("H", key::handoff(SHARD, DIR, 0x0607), (DIR, 0x0607), key::parse_handoff),
        bare("M", key::member()),
        bare("M.roster", key::roster()),
        bare("M.lived", key::lived()),
        bare("M.balancing", key::balancing()),
        key("S", key::session(session), session, key::parse_session),
        bare("W", key::feed()),
        key("W.event", key::feed_event(0x7172_7374_7576), 0x7172_7374_7576, key::parse_feed_event),
        key("V", key::past(SHARD, DIR, ino), (DIR, ino), key::parse_past),
        bare("F", key::config()),
        bare("O", key::settings()),
        bare("K", key::key_ring()),
        key("L", key::delegation(DIR), DIR, key::parse_delegation),
        usage("root", UsagePart::Root),
        usage("core", UsagePart::Core(0x0607)),
    ]
}

fn parts() -> Vec<Case> {
    let part = |name, part: Part| {
        Case::new(name, vec![part as u8], vec![part as u8], |bytes| Some(bytes.to_vec()))
    };
    let states =
        [ContentState::Pending, ContentState::Live, ContentState::Removing, ContentState::Merged];
    [
        all([Part::Main, Part::RenameList, Part::Xattrs, Part::Origin], part),
        all(states, Case::of),
        all(
            [
                ReclaimKind::Orphan,
                ReclaimKind::Contents,
                ReclaimKind::Unnamed,
                ReclaimKind::Rest(70_001),
            ],
            Case::of,
        ),
        all(values::quotas().map(|quota| quota.state), Case::of),
        all(values::contents(), Case::of),
        all(
            [Xattrs::Embedded(values::xattrs()), Xattrs::Spilled, Xattrs::Split(values::xattrs())],
            Case::of,
        ),
    ]
    .into_iter()
    .flatten()
    .chain(values::times().map(|(name, times)| Case::of(name, times)))
    .collect()
}

fn records() -> Vec<Case> {
    let reclaim = |name, kind| record(format!("Reclaim.{name}"), Reclaim { kind });
    let quota = |at: usize, name| record(format!("QuotaRecord.{name}"), values::quotas()[at]);
    let client = "host:mnt".to_owned();
    let opened = values::time(5);
    vec![
        record("Content", values::content()),
        record("Content.root", values::root()),
        record("Content.charged", values::charged()),
        record("Content.divided", values::divided()[0].clone()),
        record("Content.divided_and_charged", values::divided()[1].clone()),
        record("Content.limited", values::divided()[2].clone()),
        record("Content.listed", values::listed()[0].clone()),
        record("Content.listed_and_bound", values::listed()[1].clone()),
        record("Content.bound", values::listed()[2].clone()),
        record("Content.above_the_boundary", values::placed()[0].clone()),
        record("Content.at_the_boundary", values::placed()[1].clone()),
        record("Settings", Settings { inline_bytes_max: 300, trash: TrashSetting::default() }),
        record(
            "Settings.trash",
            Settings { inline_bytes_max: 300, trash: TrashSetting(Some(values::trash())) },
        ),
        record("KeyRing", values::key_ring()),
        record("DelegationRecord", DelegationRecord { session: SessionId(0x0102_0304_0506_0708) }),
        record("Origin", values::origin()),
        record("Usage", Usage { bytes: -70_001, entries: 70_002 }),
        record(
            "RenameList",
            RenameList { versions: vec![base::NameVersion(0), base::NameVersion(300)] },
        ),
        record("XattrSet", values::xattrs()),
        record("ChunkRecord", ChunkRecord { slices: values::slices() }),
        record("Config", values::config()),
        record("OldConfig", values::old_config()),
        record("SessionRecord", SessionRecord { secret: 0x1234_5678_9abc_def0, client, opened }),
        reclaim("orphan", ReclaimKind::Orphan),
        reclaim("contents", ReclaimKind::Contents),
        reclaim("unnamed", ReclaimKind::Unnamed),
        reclaim("rest", ReclaimKind::Rest(70_001)),
        record("Tail.slot", Tail { first: 70_002, place: None }),
        record("Tail.entry", Tail { first: 70_003, place: Some(values::place()) }),
        record(
            "Told",
            Told { record: Some(values::quotas()[1]), usage: Usage { bytes: 70_001, entries: -2 } },
        ),
        record(
            "Roots",
            Roots {
                version: 70_002,
                roots: vec![Root { id: values::quota().0, record: values::quotas()[0] }],
            },
        ),
        quota(0, "counting"),
        quota(1, "active"),
        quota(2, "removing"),
        quota(3, "gone"),
        record("Garbage", Garbage::default()),
        record("Garbage.held", Garbage { held_for: HeldFor(Some(70_001)) }),
        record("Unsynced", Unsynced { bytes: 70_000 }),
        record("Reserved", Reserved { end: 1 << 20 }),
        record("PreparedRecord", values::prepared()),
        record("PreparedRecord.birth", values::prepared_birth()),
        record("PreparedRecord.several", values::prepared_by_several()),
        record("EndedRecord.committed", EndedRecord::Committed),
        record("EndedRecord.refused", EndedRecord::Refused),
        record("CommittedRecord.birth", values::committed_birth()),
        record("CommittedRecord", CommittedRecord { participants: vec![1, 300], born: None }),
        record("HandoffRecord.receiving", values::receiving(values::of_last())),
        record("HandoffRecord.receiving.pair", values::receiving(values::of_a_pair())),
        record("HandoffRecord.given", HandoffRecord::Given(Ino(70_004))),
        record("HandoffRecord.sweeping", HandoffRecord::Sweeping(Ino(70_005))),
        record(
            "FeedState",
            FeedState {
                run: 70_001,
                until: values::time(6),
                pruned: 1 << 40,
                count: 300,
                whole: 1 << 41,
            },
        ),
        record("Member", values::member()),
        record("Member.generation", values::served()),
        record("Roster", values::roster()),
        record("Roster.generations", values::roster_of_generations()),
        record("Balancing", Balancing { mode: Some(wire::BalanceMode::On), drained: vec![2, 3] }),
        record("Lived", Lived { sec: 1_700_000_000 }),
        record("StoredAnswers", values::answers()),
    ]
}

/// Records of the change feed.
fn logged() -> [Logged; 3] {
    let (dir, home, dir_ino) = (DirId(300), DirId(301), Ino::new(ShardId(3), 77));
    let (ino, time) = (Ino::new(ShardId(4), 300), values::time(8));
    let event = Event {
        change: wire::Change::MovedTo,
        time,
        dir,
        dir_ino,
        dir_home: home,
        name: Some(EntryName::new(b"name").unwrap()),
        ino,
        kind: Some(base::FileKind::Symlink),
    };
    let of_directory =
        Event { change: wire::Change::Attributes, name: None, kind: None, ..event.clone() };
    let past = Past { dir, ino: dir_ino, home, time };
    [Logged::Event(event), Logged::Event(of_directory), Logged::Past(past)]
}

/// The frames of a dump.
fn frames() -> [Frame; 5] {
    let bytes = bytes::Bytes::from_static;
    let header = Header::of(&values::config(), values::time(7));
    let (name, blocks) = (header.name.clone(), header.blocks.clone());
    let Header { uuid, shards, hash_key, locality, inline_bytes_max, created, taken, .. } = header;
    let HashKey { k0, k1, .. } = hash_key;
    let first = FirstHeader {
        name,
        uuid,
        shards,
        k0,
        k1,
        locality,
        inline_bytes_max,
        blocks,
        created,
        taken,
    };
    [
        Frame::FirstHeader(first),
        Frame::Header(header),
        Frame::Records(vec![(bytes(b"key"), bytes(b"value"))]),
        Frame::Block((BlockId::new(SessionId(0x4142), 0x51), bytes(b"block"))),
        Frame::Trailer(Trailer { frames: 300, records: 70_001, blocks: 5 }),
    ]
}

fn cases() -> Vec<Case> {
    let entries = all(values::entries(), record);
    let (slots, logged) = (all(values::slots(), record), all(logged(), record));
    [keys(), entries, slots, logged, records(), parts(), all(frames(), Case::of)]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn keys_and_records_are_the_golden_ones() {
    golden::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden.txt"), &cases());
}

#[test]
fn every_kind_of_key_has_golden_bytes() {
    let keys = keys();
    let golden = golden::subjects(&keys);
    let kinds = golden::words_after(include_str!("key.rs"), "b'");
    assert!(kinds.contains(&"N"), "the search finds what it should");
    for kind in kinds {
        assert!(golden.contains(&kind), "keys {kind} have no golden bytes");
    }
}

#[test]
fn every_record_has_golden_bytes() {
    let cases = cases();
    let subjects = golden::subjects(&cases);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = golden::sources(&source);
    sources.extend(golden::sources(&source.join("record")));
    let records: Vec<&str> =
        sources.iter().flat_map(|text| golden::words_after(text, "Record for ")).collect();
    assert!(records.contains(&"Content"), "the search finds what it should");
    for name in records {
        assert!(subjects.contains(&name), "{name} has no golden bytes");
    }
}

#[test]
fn a_record_or_key_with_a_damaged_byte_is_read_or_refused_without_a_panic() {
    golden::damage_each_byte(&cases());
}

#[test]
fn a_record_with_one_answer_of_before_is_read() {
    let before = bytes::Bytes::from_static(b"\x01\xf1\xa2\x04\x02\x02\x02");
    let answer = bytes::Bytes::from_static(&[2, 2]);
    let stored =
        StoredAnswers { settled: base::Seq(0), answers: vec![(base::Seq(70_001), answer)] };
    assert_eq!(StoredAnswers::from_record(&before), Ok(stored));
}

#[test]
fn answers_that_are_bytes_make_the_same_record() {
    let answers = values::answers();
    let mut record = Vec::new();
    StoredAnswers::begin_record(answers.settled, &mut record);
    for (seq, answer) in &answers.answers {
        StoredAnswers::encode_answer(*seq, answer, &mut record);
    }
    assert_eq!(record, answers.to_record());
    assert_eq!(answers.newest(), base::Seq(70_002));
}

#[test]
fn times_of_a_directory_go_back_only_where_that_is_meant() {
    let (time, was) = (values::time, values::content());
    let [earlier, later] = [0, 9].map(|secs| wire::ContentPatch {
        stable: None,
        entries: 1,
        subdirs: 0,
        mtime: Some(time(secs)),
        ctime: Some(time(secs)),
        exact: false,
    });
    // All names of a partition arrive, and a file was made here since the record was read.
    let layout = base::Layout::Extendible(base::Splits::started(1, 4));
    let come = super::Content { layout: layout.clone(), ..was.clone() };
    let times = |patch: &wire::ContentPatch, stable: Option<super::Content>| {
        let mut is = was.clone();
        is.apply(patch, stable);
        (is.times.mtime, is.times.ctime, is.layout)
    };
    let (mtime, ctime) = (was.times.mtime, was.times.ctime);
    assert_eq!(times(&earlier, Some(come.clone())), (mtime, ctime, layout.clone()));
    assert_eq!(times(&later, Some(come.clone())), (time(9), time(9), layout.clone()));
    assert_eq!(times(&earlier, None), (mtime, ctime, was.layout.clone()));
    let exact = wire::ContentPatch { exact: true, ..earlier };
    assert_eq!(times(&exact, Some(come)), (time(0), time(0), layout));
}

#[test]
fn a_record_of_another_version_is_refused() {
    let mut bytes = Reserved { end: 7 }.to_record().to_vec();
    bytes[0] += 1;
    assert!(Reserved::from_record(&bytes.into()).is_err());
}

proptest! {
    #[test]
    fn a_damaged_record_or_key_is_read_or_refused_without_a_panic(edits in golden::edits()) {
        golden::damage(&cases(), &edits);
    }
}
