//! Tokens that are taken back, and the keys that sign them.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use base::FsError;
use client::{Client, Config, Error};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    cluster::Forming,
    harness::{Data, fail, folder, pause, succeed, text},
};

/// The longest time that anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("it can be made").block_on(Box::pin(work))
}

async fn connect(server: &str, token: &Path) -> Client {
    let token = fs::read_to_string(token).expect("the test wrote it");
    let config = Config::new(vec![server.to_owned()], token.trim());
    Box::pin(Client::connect(config)).await.expect("the token is good")
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&succeed(&[args, &["--json"]].concat())).expect("it is JSON")
}

fn id_of(token: &Path) -> String {
    json(&["token", "show", text(token)])["id"].as_str().expect("it has an id").to_owned()
}

/// Makes a token at a server.
fn made_at(server: &str, admin: &Path, to: PathBuf, limits: &[&str]) -> PathBuf {
    let create = ["token", "create", server, "--token", text(admin)];
    fs::write(&to, succeed(&[&create, limits].concat())).expect("the folder is ours");
    to
}

fn states(server: &str, admin: &Path) -> Vec<String> {
    let keys = json(&["keys", "list", server, "--token", text(admin)]);
    let state = |key: &Value| key["state"].as_str().expect("it has a state").to_owned();
    keys.as_array().expect("it is a list").iter().map(state).collect()
}

#[test]
fn a_token_is_revoked_by_file_and_by_id_and_its_sessions_end() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let (address, admin) = (server.address(), data.admin_token());
    let admin_args = ["--token", text(&admin)];
    for by_file in [true, false] {
        let token = data.token(if by_file { &["--path", "/"] } else { &["--expires", "1h"] });
        let id = id_of(&token);
        on_a_runtime(async {
            let client = connect(address, &token).await;
            client.mkdir(format!("/{by_file}"), 0o755).await.unwrap();
            let used =
                json(&[&["token", "list", address], &admin_args[..]].concat())["used"].clone();
            let of = |row: &&Value| row["id"] == id.as_str();
            let row = used.as_array().unwrap().iter().find(of).expect("it is in use").clone();
            assert_eq!((&row["sessions"], &row["key"]), (&1.into(), &0.into()));
            let which = if by_file { text(&token) } else { &id };
            let revoke = [&["token", "revoke", address, which], &admin_args[..]].concat();
            let said = succeed(&revoke);
            assert!(said.contains(&id), "{said}");
            let revoked = Err(Error::Refused("token revoked".to_owned()));
            assert_eq!(client.stat("/").await.map(drop), revoked);
            succeed(&revoke);
        });
        let said = fail(1, &["status", address, "--token", text(&token)]);
        assert!(said.contains("token revoked"), "{said}");
        let revoked =
            json(&[&["token", "list", address], &admin_args[..]].concat())["revoked"].clone();
        let ends = revoked.as_array().unwrap().iter().find(|row| row["id"] == id.as_str());
        assert_eq!(ends.expect("it is listed")["expires"].is_null(), by_file);
    }
    let list = succeed(&[&["token", "list", address], &admin_args[..]].concat());
    assert!(list.contains("revoked") && list.contains(&id_of(&admin)), "{list}");

    // A command revokes its own token only when that is confirmed.
    let own = ["token", "revoke", address, text(&admin), "--token", text(&admin)];
    let said = fail(1, &own);
    assert!(said.contains("--yes confirms"), "{said}");
    succeed(&["status", address, "--token", text(&admin)]);
    succeed(&[&own[..], &["--yes"]].concat());
    let said = fail(1, &["status", address, "--token", text(&admin)]);
    assert!(said.contains("token revoked"), "{said}");
    assert_eq!(server.stop(), Some(0));

    // The list outlives the server.
    let server = data.serve(&[]);
    let said = fail(1, &["status", server.address(), "--token", text(&admin)]);
    assert!(said.contains("token revoked"), "{said}");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn keys_are_rotated_and_retired_and_tokens_made_online_and_offline() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let (address, admin, files) = (server.address(), data.admin_token(), folder());
    let old = data.token(&["--ro"]);
    let said = fail(1, &["keys", "retire", address, "0", "--token", text(&admin), "--yes"]);
    assert!(said.contains("key 0 signs new tokens"), "{said}");
    assert!(!data.path().join("newest.key").exists());
    let said = succeed(&["keys", "rotate", address, "--token", text(&admin)]);
    assert!(said.contains("key 1 signs"), "{said}");
    assert_eq!(states(address, &admin), ["good", "signs"]);

    // New tokens are of the new key, wherever they are made, and old ones are good.
    let online = made_at(address, &admin, files.path().join("online"), &[]);
    let limited = made_at(address, &online, files.path().join("limited"), &["--uid", "7"]);
    assert_eq!(json(&["token", "show", text(&limited)])["uid"], 7);
    let began = Instant::now();
    while !data.path().join("newest.key").exists() {
        assert!(began.elapsed() < PATIENCE, "the server does not keep its newest key");
        pause(Duration::from_millis(10));
    }
    let offline = data.token(&[]);
    for token in [&online, &limited, &offline] {
        assert_eq!(json(&["token", "show", text(token)])["key"], 1);
    }
    on_a_runtime(async {
        let (client, newer) = (connect(address, &old).await, connect(address, &offline).await);
        client.stat("/").await.unwrap();

        let retire = ["keys", "retire", address, "0", "--token"];
        let said = fail(1, &[&retire[..], &[text(&admin)]].concat());
        assert!(said.contains("use a token of key 1"), "{said}");
        let said = succeed(&[&retire[..], &[text(&online)]].concat());
        assert!(said.contains("key 0 is retired"), "{said}");
        let refused = client.stat("/").await.map(drop).unwrap_err();
        assert!(refused.to_string().contains("token of a retired key"), "{refused}");
        newer.stat("/").await.unwrap();
    });
    for token in [&old, &admin] {
        let said = fail(1, &["status", address, "--token", text(token)]);
        assert!(said.contains("`pando token create` makes a new one"), "{said}");
    }
    assert_eq!(states(address, &online), ["retired", "signs"]);
    assert_eq!(server.stop(), Some(0));

    // All of it outlives the server, and who has no token left makes one offline.
    let server = data.serve(&[]);
    let offline = data.token(&["--expires", "1h"]);
    assert_eq!(states(server.address(), &offline), ["retired", "signs"]);
    fail(1, &["status", server.address(), "--token", text(&admin)]);
    let said = fail(1, &["keys", "list", server.address(), "--token", text(&limited)]);
    assert!(said.contains("needs an administrator's token"), "{said}");
    succeed(&["fsck", server.address(), "--token", text(&offline)]);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_revoked_token_ends_at_all_servers_of_a_cluster() {
    let forming = Forming::of("2");
    let joined = forming.join("b");
    forming.until_sound();
    let (address, admin, files) = (&forming.address, &forming.token, folder());
    let admin_args = ["--token", text(admin)];
    // The server that has joined sends who wants a change to the coordinator.
    let rotate = [&["keys", "rotate", joined.address()], &admin_args[..]].concat();
    assert!(succeed(&rotate).contains("key 1 signs"));
    on_a_runtime(async {
        // A new key is good at both servers at once: the other one waits for its lease.
        let token = made_at(address, admin, files.path().join("new"), &[]);
        let client = connect(address, &token).await;
        let dirs: Vec<String> = (0..16).map(|number| format!("/d{number}")).collect();
        for dir in &dirs {
            client.mkdir(dir, 0o755).await.unwrap();
            client.write(format!("{dir}/f"), b"x").await.unwrap();
        }
        let sessions = json(&[&["sessions", address], &admin_args[..]].concat());
        let servers: Vec<&Value> =
            sessions.as_array().unwrap().iter().map(|row| &row["server"]).collect();
        assert!(servers.contains(&&0.into()) && servers.contains(&&1.into()), "{servers:?}");

        let revoke = [&["token", "revoke", joined.address(), text(&token)], &admin_args[..]];
        succeed(&revoke.concat());
        let began = Instant::now();
        for dir in &dirs {
            loop {
                match client.create(format!("{dir}/new"), 0o644).await.map(drop) {
                    Err(Error::Refused(reason)) => {
                        assert_eq!(reason, "token revoked");
                        break;
                    }
                    Ok(_) | Err(Error::Fs(FsError::Exists)) => {}
                    other => panic!("{other:?}"),
                }
                assert!(began.elapsed() < PATIENCE, "{dir} is still served");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    assert_eq!(joined.stop(), Some(0));
    assert_eq!(forming.coordinator.stop(), Some(0));
}
