//! A value of everything that servers say to each other.

use base::{
    ClusterMap, DirId, Epoch, FsError, Ino, Layout, Moving, Pair, SessionId, ShardId, Splits,
    Subsets, Time, Transfer,
};
use bytes::Bytes;

use super::{
    replies::{map, splits},
    requests::look,
    values::{dir, entry, name, part},
};
use crate::{
    Admission, Allowed, Amounts, Announce, AskOutcome, AskOver, AskRoom, BalanceMode,
    BalanceStatus, Birth, Born, CacheEvents, Challenge, ClusterStatus, ContentPatch, Count,
    CountNames, CountShare, CountWhat, Counted, Decide, Expected, Gave, GiveRoom, Guess, Guessed,
    HandoffBegin, HandoffPut, Heartbeat, Hold, HurryBirths, InDoubt, Join, Joined, LayoutLearnt,
    Lease, Life, Outcome, PeerHello, PeerRead, PeerWrite, Prepare, Reply, Request, Room, Secret,
    ServerStatus, ShardBlock, ShardPage, ShardPull, Speculate, Stands, Tally, Term, TxnId, Vote,
};

fn txn() -> TxnId {
    TxnId { server: 3, run: 0x1111_2222_3333_4444, number: 70_000 }
}

fn time(sec: i64) -> Option<Time> {
    Some(Time { sec, nsec: 999_999_999 })
}

pub(super) fn stands() -> Vec<Stands> {
    vec![Stands::Whole, Stands::Stable]
}

pub(super) fn admissions() -> Vec<Admission> {
    let reason = "a newer process has begun".to_owned();
    let ended = Admission::Ended(reason);
    vec![Admission::Admitted(70_005), Admission::Waits(3375), ended, Admission::Left]
}

pub(super) fn votes() -> Vec<Vote> {
    vec![Vote::Prepared, Vote::Busy, Vote::Changed]
}

pub(super) fn outcomes() -> Vec<Outcome> {
    vec![Outcome::Committed, Outcome::Aborted, Outcome::Pending]
}

pub(super) fn writes() -> Vec<PeerWrite> {
    let key = || Bytes::from_static(b"\0\x05Dkey");
    let counts = ContentPatch {
        stable: None,
        entries: -1,
        subdirs: 0,
        mtime: time(1_700_000_000),
        ctime: time(1_700_000_001),
        exact: false,
    };
    let moved = ContentPatch {
        stable: Some(Bytes::from_static(b"a content record")),
        entries: 0,
        subdirs: 300,
        mtime: None,
        ctime: time(-1),
        exact: true,
    };
    vec![
        PeerWrite::Put((key(), Bytes::from_static(b"record"))),
        PeerWrite::Delete(key()),
        PeerWrite::Patch((key(), counts)),
        PeerWrite::Patch((key(), moved)),
    ]
}

pub(super) fn counts() -> Vec<CountWhat> {
    let (from, partition) = (Bytes::from_static(b"\0\x05Nkey"), 6);
    let share = CountShare { dir: dir(), partition };
    vec![
        CountWhat::Share(share.clone()),
        CountWhat::Names(CountNames { share, from }),
        CountWhat::Slots(vec![Ino(77), Ino(78)]),
    ]
}

pub(super) fn rooms() -> Vec<Room> {
    let amounts = Amounts { bytes: i64::MAX, entries: 100 };
    vec![Room::Allowed(Allowed { round: 1 << 60, amounts }), Room::Full, Room::Unknown]
}

/// On the way from five subsets to ten.
fn step() -> Layout {
    let begun = Subsets::started(2, 5).begin(10, 64).expect("five more");
    let transfer = Transfer { source: 3, target: 9 };
    Layout::Subsets(begun.after(transfer).expect("it is one of its transfers"))
}

fn not_given(events: &CacheEvents, admission: Admission) -> Reply {
    Reply::Lease(Lease {
        ms: 0,
        map: None,
        events: events.clone(),
        settings: None,
        keys: None,
        roots: None,
        admission,
        coordinator: Term { number: 70_008, run: 70_009 },
        position: 0,
        generations: Vec::new(),
        since_ms: 0,
    })
}

pub(super) fn requests() -> Vec<Request> {
    let key = || Bytes::from_static(b"\0\x05Nkey");
    let there =
        Expected { key: key(), was: Some(Bytes::from_static(b"was")), stands: Stands::Stable };
    let absent = Expected { key: key(), was: None, stands: Stands::Whole };
    let guess = Guess { dir: dir().id, home: dir().home, partition: 77, name: Some(name("next")) };
    let last = Guess { name: None, ..guess.clone() };
    vec![
        Request::PeerHello(PeerHello {
            from: 2,
            run: 77,
            generation: 70_003,
            knows: 70_004,
            address: "b:7420".to_owned(),
            proof: Bytes::from_static(&[7; 32]),
        }),
        Request::PeerRead(PeerRead {
            keys: vec![key(), key()],
            inos: vec![Ino(0), Ino(77)],
            hold: Some(Hold { txn: txn(), keys: 1 }),
            confirmed: true,
            session: Some(SessionId(5)),
        }),
        Request::Prepare(Prepare {
            txn: txn(),
            expects: vec![there, absent],
            writes: writes(),
            early_mkdir: true,
            held: true,
            others: vec![2, 300],
            session: None,
        }),
        Request::Decide(Decide { txn: txn(), commit: true }),
        Request::AskOutcome(AskOutcome { txn: txn(), of: 300 }),
        Request::Join(Join { address: "127.0.0.1:7421".into(), member: 0x9999_8888_7777_6666 }),
        Request::Heartbeat(Heartbeat {
            address: "127.0.0.1:7421".into(),
            epoch: Epoch(300),
            version: 70_001,
            requests: 5_000_000,
            settings: Bytes::from_static(b"\x01set"),
            keys: 0x1234_5678_9abc_def0,
            roots: 80_001,
            in_doubt: Some(InDoubt { count: 3, oldest_ms: 12_345, server: 2 }),
            strict: true,
            kept_all: true,
            life: Life {
                generation: 70_005,
                stored: 70_006,
                place: Bytes::from_static(b"boot 1 2"),
                home: Bytes::from_static(b"machine 2"),
                position: 70_007,
                alone_ms: 600_000,
                replaces: true,
                restored: false,
                unchecked: true,
                resigns: false,
                follows: Term { number: 70_008, run: 70_009 },
                follows_at: 70_010,
            },
        }),
        Request::Announce(Announce { after: 70_000, dirs: vec![dir().id, DirId(5)] }),
        Request::Cluster,
        Request::Speculate(Speculate { guesses: vec![guess, last] }),
        Request::HandoffBegin(HandoffBegin {
            txn: txn(),
            dir: dir().id,
            ino: dir().ino,
            home: dir().home,
            source: 1,
            target: 5,
            moving: Moving::Range((1 << 61, (1 << 62) - 1)),
        }),
        Request::HandoffBegin(HandoffBegin {
            txn: txn(),
            dir: dir().id,
            ino: dir().ino,
            home: dir().home,
            source: 2,
            target: 6,
            moving: Moving::Pair(Pair { lower: 2, upper: 6, few: 5, many: 10 }),
        }),
        Request::HandoffPut(HandoffPut {
            txn: txn(),
            dir: dir().id,
            home: dir().home,
            target: 5,
            number: 3,
            changes: vec![(key(), Some(Bytes::from_static(b"record"))), (key(), None)],
            stable: true,
        }),
        Request::LayoutLearnt(LayoutLearnt {
            dir: dir().id,
            ino: dir().ino,
            home: dir().home,
            partition: 6,
            layout: Layout::Extendible(Splits::started(1, 2)),
        }),
        Request::LayoutLearnt(LayoutLearnt {
            dir: dir().id,
            ino: dir().ino,
            home: dir().home,
            partition: 6,
            layout: step(),
        }),
        Request::Born(Born { txns: vec![txn()], confirmed: true }),
        Request::AskBirths,
        Request::HurryBirths(HurryBirths { txns: vec![txn(), txn()] }),
        Request::AskRoom(AskRoom {
            root: Ino(70),
            round: 1 << 60,
            used: Amounts { bytes: -4096, entries: -1 },
            more: Amounts { bytes: 0, entries: 2 },
        }),
        Request::GiveRoom(GiveRoom { root: Ino(70), round: 1 << 60 }),
        Request::AskOver(AskOver { txns: vec![txn(), txn()] }),
        Request::ShardPull(ShardPull {
            plan: 300,
            shards: vec![ShardId(5), ShardId(300)],
            from: Bytes::from_static(b"\0\x01Nkey"),
            since: Some(300),
        }),
        Request::ShardBlock(ShardBlock { plan: 300, block: part().block, bytes: 70_000 }),
        Request::SettleBirths,
    ]
    .into_iter()
    .chain(
        counts().into_iter().map(|what| Request::Count(Count { from: Ino(70), to: Ino(71), what })),
    )
    .collect()
}

pub(super) fn replies() -> Vec<Reply> {
    let events = CacheEvents { version: 70_002, reset: false, dirs: vec![dir().id] };
    let map: ClusterMap = map();
    let server = ServerStatus {
        server: 1,
        address: "127.0.0.1:7421".into(),
        shards: 32,
        lease_ms: 2500,
        version: 70_002,
        requests: 9_000_000,
        in_doubt: None,
    };
    let found = Guessed { dir: Some(dir().ino), entry: Some(entry()), error: None, layout: None };
    let missing = Guessed { dir: None, entry: None, error: Some(FsError::NotFound), layout: None };
    let elsewhere =
        Guessed { dir: Some(dir().ino), entry: None, error: None, layout: Some(splits(3)) };
    vec![
        Reply::Values(vec![Some(Bytes::from_static(b"record")), None]),
        Reply::Vote(Vote::Changed),
        Reply::Outcome(Outcome::Pending),
        Reply::Joined(Joined { server: 3, config: Bytes::from_static(b"config"), is_dealt: true }),
        Reply::Lease(Lease {
            ms: 3000,
            map: Some(map),
            events: events.clone(),
            settings: Some(Bytes::from_static(b"\x01set")),
            keys: Some(Secret(Bytes::from_static(b"\x01keys"))),
            roots: Some(Bytes::from_static(b"roots")),
            admission: Admission::Admitted(70_005),
            coordinator: Term { number: 70_008, run: 70_009 },
            position: 70_011,
            generations: vec![70_008, 70_005],
            since_ms: 750,
        }),
        not_given(&events, Admission::Waits(3375)),
        not_given(&events, Admission::Ended("a newer process has begun".into())),
        Reply::Challenge(Challenge {
            number: 0x1234_5678_9abc_def0_0fed_cba9_8765_4321,
            generation: 70_005,
            knows: 70_006,
        }),
        Reply::Cluster(ClusterStatus {
            servers_expected: 4,
            servers: vec![server],
            epoch: Epoch(300),
            version: 70_003,
            renames: 2,
            problems: vec!["server 2 has no lease".into()],
            balance: BalanceStatus {
                mode: BalanceMode::Advise,
                look: Some(look()),
                ago_ms: 300,
                drained: vec![2, 3],
            },
        }),
        Reply::Guessed(vec![found, missing, elsewhere]),
        Reply::Taken(Some(Tally { entries: 4000, subdirs: 3 })),
        Reply::Taken(None),
        Reply::Layout(Layout::Extendible(Splits::started(1, 2))),
        Reply::Births(vec![Birth {
            txn: txn(),
            key: Bytes::from_static(b"\0\x05Dkey"),
            content: Bytes::from_static(b"record"),
        }]),
        Reply::Born(vec![txn()]),
        Reply::Counted(Counted {
            layout: Some(splits(3)),
            is_root: true,
            dirs: vec![dir()],
            slots: vec![Ino(77), Ino(78)],
            next: Some(Bytes::from_static(b"\0\x05Nkey")),
        }),
        Reply::Counted(Counted::default()),
        Reply::Gave(Gave { roots: 1 << 60, used: Amounts { bytes: -4096, entries: -1 } }),
        Reply::Over(vec![txn()]),
        Reply::ShardPage(ShardPage {
            records: vec![(Bytes::from_static(b"\0\x05Nkey"), Bytes::from_static(b"value"))],
            blocks: vec![(part().block, 70_000)],
            next: Some(Bytes::from_static(b"\0\x05Nnext")),
            gone: vec![Bytes::from_static(b"\0\x05Ngone")],
            round: 300,
        }),
    ]
    .into_iter()
    .chain(rooms().into_iter().map(Reply::Room))
    .collect()
}
