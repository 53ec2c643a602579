//! A value of every reply, answer and retry, and of both forms where a field may be missing.

use base::{
    ClusterMap, Epoch, FileKind, FsError, HashKey, Ino, Layout, Locality, SessionId, ShardId,
    Splits, layout::POS_MAX,
};
use bytes::Bytes;

use super::values::{attr, chunk, dir, entry, name, open_states, part, time};
use crate::{
    Answer, Applied, BlockMapped, CacheEvents, Change, Created, DelegatedEntry, DelegatedFile,
    DelegatedName, DelegatedPage, DumpPage, DumpStarted, Entry, FsInfo, FsckProgress, Grant,
    Granted, HeldMade, HeldReply, InoRange, LayoutNews, LockFound, NodeRef, Noted, Opened,
    ProcessStatus, ReaddirEntry, ReaddirPage, Recalled, Renamed, Reply, Retry, Searched,
    SessionStatus, ShardCounts, ShardMove, ShareStat, SignedBlocks, Statfs, Status, Walked,
    WatchEvent, Watched, Welcome, Written,
};

pub(super) fn all() -> Vec<Reply> {
    let admin = vec![
        status(),
        fsck(),
        fsck_names(),
        fsck_fixes(),
        fsck_quotas(),
        accounts(),
        fsck_inos(),
        Reply::Mended(true),
        Reply::Share(ShareStat { attr: entry().attr, layout: splits(3) }),
        dump_started(),
        dump_page(),
        Reply::Plan(vec![ShardMove { shard: ShardId(300), from: 2, to: 3 }]),
        Reply::Loads(vec![ShardCounts { shard: ShardId(300), requests: 70_000, bytes: 9 }]),
    ];
    let recalled = Recalled { dirs: vec![dir().id], revoked: vec![dir().home], now: time(5) };
    let done = held();
    let named = |entry| DelegatedName { name: name("a"), entry };
    let delegated = DelegatedPage {
        attr: attr(),
        parent_ino: dir().ino,
        is_moved: true,
        is_plain: false,
        names: delegated().into_iter().map(named).collect(),
        reach: Some(300),
    };
    let others = vec![
        Reply::Welcome(welcome()),
        Reply::Recalled(recalled),
        Reply::Inos(inos()),
        Reply::Applied(Applied { done }),
        Reply::Delegated(delegated),
    ];
    [names(), contents(), others, admin, super::observe::replies(), super::peers::replies()]
        .concat()
}

pub(super) fn delegated() -> Vec<DelegatedEntry> {
    let target = Some("../to".into());
    vec![
        DelegatedEntry::File(DelegatedFile { attr: attr(), target, is_plain: true }),
        DelegatedEntry::Dir(dir()),
        DelegatedEntry::Link(dir().ino),
    ]
}

pub(super) fn held() -> Vec<HeldReply> {
    let attr = entry().attr;
    vec![
        HeldReply::Made(HeldMade { attr, proof: Some(77) }),
        HeldReply::Written(Written { attr }),
        HeldReply::Attr(attr),
    ]
}

pub(super) fn answers() -> Vec<Answer> {
    vec![
        Answer::Done(Reply::Nothing),
        Answer::Failed(FsError::NotFound),
        Answer::Retry(Retry::Busy),
        Answer::Halted,
        Answer::Refused("in words".into()),
        Answer::Noted(Noted { dirs: vec![attr(), attr()], reply: Reply::Ino(dir().ino) }),
        Answer::Granted(Granted {
            grant: Grant { inos: inos(), now: time(5), lease_ms: 10_000 },
            noted: Noted { dirs: vec![attr()], reply: Reply::Entry(entry()) },
        }),
    ]
}

pub(super) fn retries() -> Vec<Retry> {
    let events = CacheEvents { version: 70_000, reset: false, dirs: vec![dir().id, dir().home] };
    vec![
        Retry::NoSession,
        Retry::Busy,
        Retry::Moved(map()),
        Retry::StaleCache(events),
        Retry::StaleCache(CacheEvents { version: 3, reset: true, dirs: Vec::new() }),
        Retry::StaleDir,
        Retry::Coordinate,
        Retry::AtBirth(0xdead_beef_0000_0001),
        Retry::StaleLayout(LayoutNews { dir: dir().id, ino: dir().ino, layout: Some(splits(3)) }),
        Retry::StaleLayout(LayoutNews { dir: dir().id, ino: dir().ino, layout: None }),
        Retry::Away,
        Retry::NotHeld,
    ]
}

pub(super) fn map() -> ClusterMap {
    let servers = vec!["127.0.0.1:7420".to_owned(), "[::1]:7420".to_owned()];
    ClusterMap { epoch: Epoch(300), servers, shards: vec![0, 1, 0] }
}

pub(super) fn splits(partitions: u16) -> Layout {
    Layout::Extendible(Splits::started(2, partitions))
}

pub(super) fn changes() -> [Change; 7] {
    [
        Change::Created,
        Change::Linked,
        Change::Removed,
        Change::MovedFrom,
        Change::MovedTo,
        Change::Attributes,
        Change::Written,
    ]
}

fn inos() -> InoRange {
    InoRange { first: dir().ino, count: 32 }
}

fn watched() -> Reply {
    let events = changes().into_iter().zip(300..).map(|(change, position)| WatchEvent {
        position,
        change,
        path: Bytes::from_static(b"a/b"),
        ino: attr().ino,
        kind: (change != Change::Linked).then_some(FileKind::File),
        time: time(5),
    });
    Reply::Watched(Watched { events: events.collect(), next: 1 << 40, gap: true })
}

fn names() -> Vec<Reply> {
    let bare = Entry { attr: attr(), dir: None, target: None, whole: false };
    let opened = || Opened { attr: attr(), contents: crate::OpenState::Withheld, proof: 77 };
    let listed = ReaddirEntry {
        pos: 1 << 62 | 5,
        name: name("listed"),
        ino: attr().ino,
        kind: Some(FileKind::Fifo),
        entry: None,
    };
    let plus = ReaddirEntry { entry: Some(bare.clone()), ..listed.clone() };
    let page = ReaddirPage {
        entries: vec![listed, plus],
        end: true,
        attr: entry().attr,
        parent_ino: Ino::ROOT,
        reach: 1 << 62 | 7,
        layout: Some(splits(5)),
    };
    let whole = ReaddirPage { reach: POS_MAX, layout: None, ..page.clone() };
    vec![
        Reply::Nothing,
        Reply::Entry(entry()),
        Reply::Entry(bare.clone()),
        Reply::Walked(Walked { entries: vec![entry(), bare.clone()], error: None }),
        Reply::Walked(Walked { entries: vec![entry()], error: Some(FsError::Denied) }),
        Reply::Attr(attr()),
        Reply::Created(Created { entry: bare.clone(), existed: false, opened: Some(opened()) }),
        Reply::Created(Created { entry: bare, existed: true, opened: None }),
        Reply::Ino(attr().ino),
        Reply::Page(page),
        Reply::Page(whole),
        Reply::Xattrs(vec![(Bytes::from_static(b"user.key"), Bytes::from_static(b"\0value"))]),
        Reply::Job(300),
        Reply::Lock(None),
        Reply::Renamed(Renamed { moved: attr().ino, replaced_dir: None }),
        Reply::Renamed(Renamed { moved: attr().ino, replaced_dir: Some(dir().ino) }),
        Reply::Lock(Some(LockFound {
            range: base::ByteRange { first: 3, last: 300 },
            mode: base::LockMode::Shared,
            pid: 4001,
        })),
        Reply::Offset(1 << 40),
        watched(),
        Reply::Searched(Searched { node: Some(NodeRef::Dir(dir())), next: None }),
        Reply::Searched(Searched { node: None, next: Some(Bytes::from_static(b"N")) }),
        Reply::Lines(vec![("shard".into(), "3".into()), ("id".into(), "1f".into())]),
    ]
}

fn contents() -> Vec<Reply> {
    let opened = open_states().map(|contents| {
        Reply::Opened(Opened { attr: attr(), contents, proof: 0x1234_5678_9abc_def0 })
    });
    let mapped = BlockMapped { attr: attr(), inline: None, chunks: vec![chunk()], end: 1300 };
    let inline = BlockMapped {
        inline: Some(Bytes::from_static(b"whole file")),
        chunks: Vec::new(),
        ..mapped.clone()
    };
    let mut replies = opened.to_vec();
    replies.extend([
        Reply::Written(Written { attr: attr() }),
        Reply::BlockMapped(mapped),
        Reply::BlockMapped(inline),
        Reply::Data(Bytes::from_static(b"part of a block")),
        Reply::SignedBlocks(SignedBlocks {
            urls: vec!["https://bucket/block?signature".into()],
            valid_ms: 60_000,
        }),
        Reply::Statfs(Statfs { bytes: 1 << 40, bytes_free: 1 << 39, files: 300, files_free: 77 }),
    ]);
    replies
}

fn welcome() -> Welcome {
    Welcome {
        session: SessionId(9),
        secret: 0x1234_5678_9abc_def0,
        incarnation: 0xfedc_ba98_7654_3210,
        lease_ms: 60_000,
        commit_ms: 20,
        fs: FsInfo {
            name: "pando".into(),
            uuid: 0x2122_2324_2526_2728_292a_2b2c_2d2e_2f30,
            hash_key: HashKey::new(1, u64::MAX),
            locality: Locality::Subtree,
            inline_bytes_max: 4096,
        },
        map: map(),
        root: crate::DirRef::ROOT,
        root_attr: entry().attr,
        read_only: true,
        trusted: false,
        forgot: true,
        opened: true,
        proof: 0x5555_4444_3333_2222,
        direct: Some("zstd".into()),
    }
}

fn status() -> Reply {
    let session = SessionStatus {
        session: SessionId(9),
        client: "host:mnt".into(),
        idle_seconds: 12,
        open_files: 300,
    };
    Reply::Status(Status {
        name: "pando".into(),
        uuid: 0x2122_2324_2526_2728_292a_2b2c_2d2e_2f30,
        version: "0.1.0".into(),
        uptime_seconds: 86_400,
        shards: 64,
        durability: "relaxed".into(),
        commit_interval_ms: 100,
        blocks: "blocks".into(),
        sessions: vec![session],
        counters: vec![("create".into(), 500_000)],
        store_bytes: 1 << 33,
        store_records: 3_000_000,
        process: ProcessStatus { id: 4711, cpu_micros: 1 << 34, resident_bytes: 150 << 20 },
    })
}

fn fsck() -> Reply {
    Reply::Fsck(FsckProgress {
        done: false,
        records: 1000,
        records_estimated: 3_000_000,
        counts: vec![("files".into(), 900)],
        findings: vec!["a finding".into()],
        findings_total: 7,
    })
}

fn fsck_names() -> Reply {
    let counted = Some((2, base::Time { sec: 1_700_000_000, nsec: 5 }));
    Reply::FsckNames(vec![
        crate::NamesOf { ino: Ino(77), found: 1, counted },
        crate::NamesOf { ino: Ino(78), found: 3, counted: None },
    ])
}

fn fsck_quotas() -> Reply {
    let quota = crate::QuotaOf { root: Ino(79), charged: (5, 4096), found: (6, -7) };
    Reply::FsckQuotas(vec![quota])
}

fn accounts() -> Reply {
    let used = crate::Amounts { bytes: 70_000, entries: -3 };
    let limits = crate::AccountLimits { bytes_max: Some(80_000), entries_max: None, hold: true };
    let of = |account: base::Account, limits, path: &str| crate::AccountUse {
        account: account.number(),
        used,
        limits,
        path: path.into(),
    };
    Reply::Accounts(vec![
        of(base::Account::Directory(Ino(77)), Some(limits), "/projects"),
        of(base::Account::Group(300), None, ""),
    ])
}

fn fsck_fixes() -> Reply {
    let lines = vec!["a finding".to_owned()];
    Reply::FsckFixes(vec![crate::FsckFix { number: 1000, fix: "what".into(), lines }])
}

fn fsck_inos() -> Reply {
    Reply::FsckInos(vec![crate::InosPage { page: 9, bits: vec![1, 0, 128].into() }])
}

fn dump_started() -> Reply {
    Reply::DumpStarted(DumpStarted {
        dump: 300,
        header: Bytes::from_static(b"header"),
        records_estimated: 3_000_000,
    })
}

fn dump_page() -> Reply {
    Reply::DumpPage(DumpPage {
        records: vec![(Bytes::from_static(b"key"), Bytes::from_static(b"value"))],
        blocks: vec![(part().block, 70_000)],
        next: Some(Bytes::from_static(b"key2")),
    })
}
