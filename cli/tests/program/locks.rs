//! `pando locks`: holders of locks, and sessions that wait for them.

use base::{ByteRange, LockMode};
use client::{Client, Config, OpenOptions};
use serde_json::Value;

use crate::{
    harness::{Data, Running, fail, pause, succeed, text},
    serve::get,
};

async fn connect(data: &Data, server: &Running, name: &str) -> Client {
    let token = std::fs::read_to_string(data.admin_token()).unwrap();
    let mut config = Config::new(vec![server.address().to_owned()], token.trim());
    config.client_name = name.to_owned();
    Box::pin(Client::connect(config)).await.unwrap()
}

fn ask(data: &Data, server: &Running, command: &str, more: &[&str]) -> Vec<Value> {
    let token = data.admin_token();
    let all = [command, server.address(), "--token", text(&token), "--json"];
    serde_json::from_str(&succeed(&[&all[..], more].concat())).unwrap()
}

fn metric(server: &Running, name: &str) -> f64 {
    let metrics = get(server.http(), "/metrics");
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name}: {metrics}")).parse().unwrap()
}

/// Returns the list of locks, once a session waits.
fn with_one_waiting(data: &Data, server: &Running) -> Vec<Value> {
    for _ in 0..1200 {
        let listed = ask(data, server, "locks", &[]);
        if listed.iter().any(|lock| !lock["waiting_ms"].is_null()) {
            return listed;
        }
        pause(std::time::Duration::from_millis(20));
    }
    panic!("nobody waits");
}

#[test]
fn locks_are_listed_with_who_holds_them_and_who_waits() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let part = ByteRange { first: 5, last: 9 };
    let (holds, waits, other) = runtime.block_on(async {
        let holds = connect(&data, &server, "holds:/mnt").await;
        let waits = connect(&data, &server, "waits:/mnt").await;
        holds.mkdir("/d", 0o755).await.unwrap();
        let options = OpenOptions::both().create(0o644);
        let first = holds.open_with("/d/file", options).await.unwrap();
        first.lock_range(part, LockMode::Exclusive).await.unwrap();
        let other = holds.open_with("/other", options).await.unwrap();
        other.lock(LockMode::Shared).await.unwrap();
        let second = waits.open_with("/d/file", OpenOptions::both()).await.unwrap();
        assert!(second.try_lock_range(part, LockMode::Shared).await.is_err());
        ((holds, first), (waits, second), other)
    });
    let waiter = runtime.spawn(async move {
        let (client, file) = waits;
        file.lock_range(part, LockMode::Shared).await.unwrap();
        (client, file)
    });
    let listed = with_one_waiting(&data, &server);
    let of_file: Vec<_> = listed.iter().filter(|lock| lock["path"] == "/d/file").collect();
    assert_eq!((listed.len(), of_file.len()), (3, 2), "{listed:#?}");
    let (held, waiting) = (of_file[0], of_file[1]);
    let pid = std::process::id();
    assert_eq!((&held["client"], &held["pid"]), (&"holds:/mnt".into(), &pid.into()));
    assert_eq!((&held["first"], &held["last"]), (&5.into(), &9.into()));
    assert_eq!((&held["mode"], &held["kind"]), (&"exclusive".into(), &"range".into()));
    assert!(held["waiting_ms"].is_null() && waiting["client"] == "waits:/mnt");
    let whole = listed.iter().find(|lock| lock["path"] == "/other").expect("it is listed");
    assert_eq!((&whole["kind"], &whole["last"]), (&"whole".into(), &Value::Null));

    assert_eq!(ask(&data, &server, "locks", &["--path", "/d/file"]).len(), 2);
    assert_eq!(ask(&data, &server, "locks", &["--path", "/d"]).len(), 0);
    let waiting_only = ask(&data, &server, "locks", &["--waiting"]);
    assert_eq!((waiting_only.len(), &waiting_only[0]["client"]), (1, &"waits:/mnt".into()));
    let id = held["session"].as_str().unwrap();
    assert_eq!(ask(&data, &server, "locks", &["--session", id]).len(), 2);
    let token = data.admin_token();
    let locks = ["locks", server.address(), "--token", text(&token)];
    let shown = succeed(&locks);
    for part in ["STATE", "held", "waits", "5-9", "all", "/d/file", "holds:/mnt"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(fail(1, &[&locks[..], &["--path", "/none"]].concat()).contains("/none"));
    let sessions = ask(&data, &server, "sessions", &[]);
    let ours = sessions.iter().find(|row| row["client"] == "holds:/mnt").unwrap();
    assert_eq!((&ours["locks_held"], &ours["locks_waiting"]), (&2.into(), &0.into()));
    let opens = ask(&data, &server, "opens", &[]);
    assert!(opens.iter().any(|row| row["path"] == "/d/file"), "{opens:?}");
    let gauges = ["pando_files_locked", "pando_locks_held", "pando_locks_waiting"];
    assert_eq!(gauges.map(|name| metric(&server, name)), [2.0, 2.0, 1.0]);
    assert_eq!(metric(&server, "pando_locks_refused_total"), 1.0);

    // The waiting session gets the lock when the session that holds it is ended.
    succeed(&["sessions", server.address(), "--token", text(&token), "--evict", id]);
    let waits = runtime.block_on(waiter).unwrap();
    let listed = ask(&data, &server, "locks", &[]);
    assert!(listed.iter().all(|lock| lock["client"] == "waits:/mnt"), "{listed:?}");
    assert_eq!(metric(&server, "pando_lock_wait_seconds_count"), 1.0);
    assert_eq!(metric(&server, "pando_locks_granted_total"), 3.0);
    runtime.block_on(async { drop((holds, waits, other)) });
    assert_eq!(server.stop(), Some(0));
}
