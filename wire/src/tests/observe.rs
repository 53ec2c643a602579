//! A value of every request and reply of [`crate::observe`].

use base::{ByteRange, DirId, Ino, LockKind, LockMode, SessionId, Time};

use crate::{
    AskStanding, BusyDirectory, BusySession, Distribution, Evict, KeyShown, KeysChange, KeysShown,
    Load, LockEntry, LockPage, LocksQuery, OpenFile, OpenPage, OpensQuery, Operation, Reply,
    Request, Revoke, RevokedShown, SessionDetail, SignToken, SlowLog, SlowOperation, SlowQuery,
    Standing, Token, TokenShown,
};

pub(super) fn requests() -> Vec<Request> {
    vec![
        Request::Load,
        Request::Slow(SlowQuery { threshold_us: Some(20_000), after: 300 }),
        Request::Slow(SlowQuery { threshold_us: None, after: 0 }),
        Request::Sessions,
        Request::Opens(OpensQuery { after: Ino(1), session: Some(SessionId(9)), max: 1000 }),
        Request::Evict(Evict { session: SessionId(9) }),
        Request::Locks(LocksQuery {
            after: Ino(1),
            session: Some(SessionId(9)),
            ino: Some(Ino(300)),
            max: 1000,
        }),
        Request::Locks(LocksQuery { after: Ino(0), session: None, ino: None, max: 7 }),
        Request::Standing(AskStanding { token: "pando1.00".into() }),
        Request::Keys(KeysChange::Show),
        Request::SignToken(SignToken { token: Token::administrator() }),
    ]
}

pub(super) fn key_changes() -> Vec<KeysChange> {
    let expires = Some(Time { sec: 2_000_000_000, nsec: 5 });
    vec![
        KeysChange::Show,
        KeysChange::Rotate(300),
        KeysChange::Retire(70_000),
        KeysChange::Revoke(Revoke { id: 0x1234_5678_9abc_def0, key: Some(301), expires }),
    ]
}

pub(super) fn replies() -> Vec<Reply> {
    vec![
        Reply::Load(load()),
        Reply::Slow(slow()),
        sessions(),
        opens(),
        locks(),
        standing(),
        keys(),
        Reply::Signed("pando2.00".into()),
    ]
}

fn load() -> Load {
    Load {
        at_us: 86_400_000_000,
        operations: vec![Operation {
            name: "create".into(),
            outcomes: vec![("done".into(), 300), ("failed".into(), 2)],
            latency: Distribution { unit: 1000, buckets: vec![0, 1, 301], sum: 70_000 },
            stages: vec![("queue".into(), 20), ("execute".into(), 5000)],
        }],
        distributions: vec![(
            "group_requests".into(),
            Distribution { unit: 1, buckets: vec![4, 300], sum: 604 },
        )],
        gauges: vec![("sync_waiters".into(), 3)],
        counters: vec![("received_bytes".into(), 1 << 33)],
        busy_sessions: vec![BusySession {
            session: SessionId(9),
            client: "host:mnt".into(),
            milli_rate: 1_500_000,
        }],
        busy_directories: vec![BusyDirectory {
            dir: DirId(7),
            path: "/a".into(),
            milli_rate: 1200,
        }],
    }
}

fn slow() -> SlowLog {
    SlowLog {
        threshold_us: 100_000,
        at_us: 86_400_000_000,
        total: 301,
        operations: vec![SlowOperation {
            number: 301,
            name: "readdir".into(),
            outcome: "done".into(),
            at_us: 86_300_000_000,
            group_requests: 17,
            client: "host:mnt".into(),
            directory: "/a".into(),
            stages: vec![("execute".into(), 120_000_000)],
        }],
    }
}

fn standing() -> Reply {
    Reply::Standing(Standing {
        name: "pando".into(),
        server: 1,
        servers: 3,
        heard: Some(2),
        coordinator: "a:7420".into(),
        uptime_ms: 70_000,
        lease_ms: 0,
        without_lease_ms: Some(12_345),
        alone_ms: 587_655,
        ready: false,
        unready: "no lease".into(),
        problems: vec!["no lease".into(), "the disk is nearly full".into()],
    })
}

fn sessions() -> Reply {
    Reply::Sessions(vec![SessionDetail {
        session: SessionId(9),
        client: "host:mnt".into(),
        idle_ms: 1200,
        open_files: 300,
        locks_held: 301,
        locks_waiting: 2,
        path: Some("/a".into()),
        uid: Some(1000),
        read_only: true,
        token: Some(TokenShown { id: 1 << 63, key: 302, expires: Some(Time { sec: 7, nsec: 8 }) }),
    }])
}

fn keys() -> Reply {
    Reply::Keys(KeysShown {
        newest: 303,
        keys: vec![KeyShown { key: 300, made: Time { sec: 70_001, nsec: 9 } }],
        revoked: vec![RevokedShown { id: 1 << 62, expires: Some(Time { sec: 70_002, nsec: 10 }) }],
    })
}

fn opens() -> Reply {
    let (ino, path) = (Ino(300), "/a/b".into());
    let file = OpenFile { ino, session: SessionId(9), read: true, write: false, path };
    Reply::Opens(OpenPage { files: vec![file], end: true })
}

fn locks() -> Reply {
    let lock = LockEntry {
        ino: Ino(300),
        path: "/a/b".into(),
        kind: LockKind::Range,
        range: ByteRange { first: 5, last: 70_000 },
        mode: LockMode::Exclusive,
        session: SessionId(9),
        owner: 1 << 40,
        pid: 4321,
        waiting_us: Some(1_500_000),
    };
    let held = LockEntry { mode: LockMode::Shared, waiting_us: None, ..lock.clone() };
    Reply::Locks(LockPage { locks: vec![held, lock], end: false })
}
