//! Counters of the server, as an administrator sees them.

use std::time::Duration;

use base::{FsError, Ino, SessionId};
use wire::{Answer, Evict, Load, OpenPage, OpensQuery, Reply, Request, SlowLog, SlowQuery, Token};

use crate::{
    Durability,
    ops::tests::{
        client::Client,
        world::{Setup, in_world, in_world_of},
    },
};

async fn load(client: &mut Client) -> Load {
    match client.get(Request::Load).await {
        Ok(Reply::Load(load)) => load,
        other => panic!("{other:?}"),
    }
}

async fn slow(client: &mut Client, threshold_us: Option<u64>) -> SlowLog {
    match client.get(Request::Slow(SlowQuery { threshold_us, after: 0 })).await {
        Ok(Reply::Slow(log)) => log,
        other => panic!("{other:?}"),
    }
}

fn value(pairs: &[(String, u64)], name: &str) -> u64 {
    pairs.iter().find(|(other, _)| other == name).unwrap_or_else(|| panic!("{name}: {pairs:?}")).1
}

fn outcome(load: &Load, operation: &str, outcome: &str) -> u64 {
    let found = load.operations.iter().find(|found| found.name == operation);
    found.map_or(0, |found| value(&found.outcomes, outcome))
}

#[test]
fn operations_are_counted_by_kind_and_outcome() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        client.mkdir(&root, "a").await.unwrap();
        assert_eq!(client.mkdir(&root, "a").await.err(), Some(FsError::Exists));
        let load = load(&mut client).await;
        assert_eq!(outcome(&load, "mkdir", "done"), 1);
        assert_eq!(outcome(&load, "mkdir", "EEXIST"), 1);
        assert_eq!(outcome(&load, "hello", "done"), 1);
        let mkdir = load.operations.iter().find(|found| found.name == "mkdir").unwrap();
        assert_eq!(mkdir.latency.buckets.iter().sum::<u64>(), 2);
        let groups = load.distributions.iter().find(|(name, _)| name == "group_requests").unwrap();
        assert_eq!(groups.1.sum, 3, "hello and two mkdirs are in groups that were written");
        assert_eq!(value(&load.gauges, "connections"), 1);
        assert!(value(&load.counters, "received_bytes") > 0);
        assert!(value(&load.counters, "sent_bytes") > 0);
    });
}

#[test]
fn the_stages_of_an_operation_add_up_to_its_latency() {
    for durability in [Durability::Relaxed, Durability::Strict] {
        in_world_of(Setup { durability, ..Setup::default() }, async |world| {
            let mut client = world.client().await;
            let root = client.root;
            for at in 0..20 {
                client.mkdir(&root, &format!("d{at}")).await.unwrap();
            }
            client.get(Request::Sync).await.unwrap();
            for operation in load(&mut client).await.operations {
                let stages: u64 = operation.stages.iter().map(|(_, nanos)| nanos).sum();
                assert_eq!(stages, operation.latency.sum, "{}", operation.name);
            }
        });
    }
}

#[test]
fn a_slow_operation_is_kept_with_where_the_time_went() {
    // Without the background no task syncs.
    in_world_of(Setup { background: false, ..Setup::default() }, async |world| {
        let mut client = world.client().await;
        let root = client.root;
        assert!(slow(&mut client, Some(10_000)).await.operations.is_empty());
        client.mkdir(&root, "b").await.unwrap();
        client.send(base::Seq(0), client.seq, &Request::Sync).await;
        world.wait(Duration::from_millis(30)).await;
        let core = world.core.clone();
        tokio::task::spawn_local(async move { core.background().await });
        assert_eq!(client.receive().await, Answer::Done(Reply::Nothing));
        let log = slow(&mut client, None).await;
        assert_eq!((log.threshold_us, log.total), (10_000, 1));
        let kept = &log.operations[0];
        assert_eq!((kept.name.as_str(), kept.outcome.as_str()), ("sync", "done"));
        assert!(value(&kept.stages, "sync") >= 30_000_000, "{kept:?}");
        assert_eq!(kept.client, "test");
    });
}

#[test]
fn with_a_threshold_of_0_everything_is_kept_and_only_the_latest_of_it() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        slow(&mut client, Some(0)).await;
        for _ in 0..600 {
            client.lookup(&root, "none").await.unwrap_err();
        }
        let log = slow(&mut client, None).await;
        assert_eq!((log.operations.len(), log.operations.last().unwrap().number), (512, log.total));
        let lookup = &log.operations[0];
        assert_eq!((lookup.name.as_str(), lookup.outcome.as_str()), ("lookup", "ENOENT"));
        assert_eq!(lookup.directory, "/");
    });
}

#[test]
fn busy_directories_are_told_with_their_paths() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let a = client.mkdir(&root, "a").await.unwrap();
        let b = client.mkdir(&a, "b").await.unwrap();
        for _ in 0..200 {
            // A name that does not exist is a request like any other.
            let _ = client.lookup(&b, "none").await;
        }
        world.wait(Duration::from_secs(1)).await;
        let load = load(&mut client).await;
        assert_eq!(load.busy_directories[0].path, "/a/b");
        assert!(load.busy_directories[0].milli_rate > 0);
        assert_eq!(load.busy_sessions[0].client, "test");
    });
}

#[test]
fn open_files_are_listed_page_by_page() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        for name in ["a", "b", "c"] {
            let file = client.create(&root, name).await.unwrap();
            client.open_file(&file).await.unwrap();
        }
        let mut seen = Vec::new();
        let mut after = Ino(0);
        loop {
            let query = OpensQuery { after, session: None, max: 2 };
            let page: OpenPage = match client.get(Request::Opens(query)).await {
                Ok(Reply::Opens(page)) => page,
                other => panic!("{other:?}"),
            };
            seen.extend(page.files.iter().map(|file| file.ino));
            if page.end {
                break;
            }
            after = *seen.last().unwrap();
        }
        assert_eq!(seen.len(), 3);
        let other = OpensQuery { after: Ino(0), session: Some(SessionId(1)), max: 10 };
        match client.get(Request::Opens(other)).await {
            Ok(Reply::Opens(page)) => assert!(page.files.is_empty() && page.end),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn an_evicted_session_is_over_and_what_it_had_open_is_closed() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "a").await.unwrap();
        client.open_file(&file).await.unwrap();
        let session = client.welcome.session;
        let evict = Request::Evict(Evict { session });
        assert_eq!(admin.get(evict.clone()).await.unwrap(), Reply::Nothing);
        assert_eq!(admin.get(evict).await.err(), Some(FsError::NotFound));
        assert!(world.server.status().sessions.iter().all(|other| other.session != session));
        assert_eq!(world.server.shared.opens.inodes(), 0);
    });
}

#[test]
fn only_administrators_look() {
    in_world(async |world| {
        let token = Token { read_only: true, ..Token::administrator() };
        let mut client = world.client_with(&token).await;
        let session = client.welcome.session;
        for request in [
            Request::Load,
            Request::Slow(SlowQuery { threshold_us: None, after: 0 }),
            Request::Sessions,
            Request::Opens(OpensQuery { after: Ino(0), session: None, max: 1 }),
            Request::Evict(Evict { session }),
        ] {
            assert_eq!(client.get(request).await.err(), Some(FsError::NotPermitted));
        }
    });
}
