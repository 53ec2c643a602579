//! A value of every request and reply of [`crate::observe`].

use base::{DirId, Ino, SessionId};

use crate::{
    BusyDirectory, BusySession, Distribution, Evict, Load, OpenFile, OpenPage, OpensQuery,
    Operation, Reply, Request, SessionDetail, SlowLog, SlowOperation, SlowQuery,
};

pub(super) fn requests() -> Vec<Request> {
    vec![
        Request::Load,
        Request::Slow(SlowQuery { threshold_us: Some(20_000), after: 300 }),
        Request::Slow(SlowQuery { threshold_us: None, after: 0 }),
        Request::Sessions,
        Request::Opens(OpensQuery { after: Ino(1), session: Some(SessionId(9)), max: 1000 }),
        Request::Evict(Evict { session: SessionId(9) }),
    ]
}

pub(super) fn replies() -> Vec<Reply> {
    vec![Reply::Load(load()), Reply::Slow(slow()), sessions(), opens()]
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

fn sessions() -> Reply {
    Reply::Sessions(vec![SessionDetail {
        session: SessionId(9),
        client: "host:mnt".into(),
        idle_ms: 1200,
        open_files: 300,
        path: Some("/a".into()),
        uid: Some(1000),
        read_only: true,
    }])
}

fn opens() -> Reply {
    let file = OpenFile { ino: Ino(300), session: SessionId(9), read: true, write: false };
    Reply::Opens(OpenPage { files: vec![file], end: true })
}
