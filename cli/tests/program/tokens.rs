//! Rights of a token, from its making to the server's refusal.

use std::{fs, path::Path, time::Duration};

use base::{Cred, FsError};
use client::{Client, Config, Error};

use crate::harness::{Data, Running, fail, pando, pause, run, stderr, succeed, text};

const MINE: Cred = Cred { uid: 7, gid: 7, groups: Vec::new() };

fn config(server: &Running, token: &Path) -> Config {
    let token = fs::read_to_string(token).expect("the test wrote it");
    Config::new(vec![server.address().to_owned()], token.trim())
}

/// Runs a test's part that talks to the server.
fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("it can be made").block_on(Box::pin(work))
}

async fn connect(config: Config) -> Client {
    Box::pin(Client::connect(config)).await.expect("the token is good")
}

/// A server with `/a/file` of user 7 and `/b`, and its data.
fn with_two_trees() -> (Data, Running) {
    let data = Data::formatted();
    let server = data.serve(&[]);
    on_a_runtime(async {
        let admin = connect(config(&server, &data.admin_token())).await;
        admin.mkdir("/a", 0o777).await.unwrap();
        admin.mkdir("/b", 0o777).await.unwrap();
        admin.write("/a/file", b"inside").await.unwrap();
        admin.write("/b/secret", b"outside").await.unwrap();
        admin.chown("/a/file", Some(7), Some(7)).await.unwrap();
        admin.close().await.unwrap();
    });
    (data, server)
}

#[test]
fn nothing_is_served_without_a_valid_token() {
    let data = Data::formatted();
    let other = Data::formatted();
    let server = data.serve(&[]);
    let said = fail(1, &["status", server.address()]);
    assert!(said.contains("no token"), "{said}");
    let status = |token: &Path| fail(1, &["status", server.address(), "--token", text(token)]);
    let said = status(&other.admin_token());
    assert!(said.contains("token of another file system, or altered"), "{said}");
    let forged = data.folder.path().join("forged");
    fs::write(&forged, "pando2.00").unwrap();
    assert!(status(&forged).contains("malformed token"));
    fs::write(&forged, "").unwrap();
    assert!(status(&forged).contains("malformed token"));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_token_is_found_in_its_three_places_in_their_order() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let home = data.folder.path().join("home");
    fs::create_dir_all(home.join(".config/pando")).unwrap();
    fs::copy(data.admin_token(), home.join(".config/pando/token")).unwrap();
    let status = |environment: Option<&Path>, option: Option<&Path>| {
        let mut command = pando(&["status", server.address()]);
        command.env("HOME", &home);
        if let Some(file) = environment {
            command.env("PANDO_TOKEN_FILE", file);
        }
        if let Some(file) = option {
            command.arg("--token").arg(file);
        }
        command.output().expect("it can be started").status.success()
    };
    let (good, bad) = (data.admin_token(), data.path().join("pando.json"));
    assert!(status(None, None));
    assert!(!status(Some(&bad), None));
    assert!(status(Some(&bad), Some(&good)));
    assert!(!status(Some(&good), Some(&bad)));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_token_for_a_path_shows_nothing_else() {
    let (data, server) = with_two_trees();
    let token = data.token(&["--path", "/a"]);
    on_a_runtime(async {
        let client = connect(config(&server, &token)).await;
        assert_eq!(&client.read("/file").await.unwrap()[..], b"inside");
        assert_eq!(client.stat("/b").await, Err(Error::Fs(FsError::NotFound)));
        assert_eq!(client.read("/../b/secret").await, Err(Error::Fs(FsError::NotFound)));
        client.write("/new", b"made").await.unwrap();
        client.close().await.unwrap();
        let admin = connect(config(&server, &data.admin_token())).await;
        assert_eq!(&admin.read("/a/new").await.unwrap()[..], b"made");
        admin.close().await.unwrap();
    });
    let said = fail(1, &["status", server.address(), "--token", text(&token)]);
    assert!(said.contains("needs an administrator's token"), "{said}");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_token_for_a_user_acts_as_no_other() {
    let (data, server) = with_two_trees();
    let token = data.token(&["--uid", "7"]);
    on_a_runtime(async {
        let root = connect(config(&server, &token)).await;
        assert_eq!(root.read("/a/file").await, Err(Error::Fs(FsError::NotPermitted)));
        let client = root.as_user(MINE);
        assert_eq!(&client.read("/a/file").await.unwrap()[..], b"inside");
        let refused = client.chmod("/b/secret", 0o777).await.map(drop);
        assert_eq!(refused, Err(Error::Fs(FsError::NotPermitted)));
        client.close().await.unwrap();
    });
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_read_only_token_changes_nothing() {
    let (data, server) = with_two_trees();
    let token = data.token(&["--ro"]);
    on_a_runtime(async {
        let client = connect(config(&server, &token)).await;
        assert!(client.read_only());
        assert_eq!(&client.read("/a/file").await.unwrap()[..], b"inside");
        let refused = Error::Fs(FsError::ReadOnly);
        assert_eq!(client.mkdir("/c", 0o755).await.unwrap_err(), refused);
        assert_eq!(client.unlink("/a/file").await.unwrap_err(), refused);
        client.close().await.unwrap();
    });
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_token_ends_when_it_says() {
    let (data, server) = with_two_trees();
    let token = data.token(&["--expires", "2s"]);
    let status = ["status", server.address(), "--token", text(&token)];
    let early = run(&status);
    pause(Duration::from_millis(2100));
    assert!(early.status.success(), "{}", stderr(&early));
    let said = fail(1, &status);
    assert!(said.contains("token expired"), "{said}");
    assert!(succeed(&["token", "show", text(&token)]).contains("(it has ended)"));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_session_ends_with_its_token() {
    let (data, server) = with_two_trees();
    let token = data.token(&["--expires", "2s"]);
    on_a_runtime(async {
        let client = connect(config(&server, &token)).await;
        assert!(client.stat("/a").await.is_ok());
        tokio::time::sleep(Duration::from_millis(2100)).await;
        let late = tokio::time::timeout(Duration::from_secs(10), client.stat("/a")).await;
        assert_eq!(late.expect("it is told at once"), Err(Error::TokenExpired));
    });
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_token_shows_what_it_says() {
    let data = Data::formatted();
    let token = data.token(&["--path", "/a//b/", "--uid", "5", "--gid", "6", "--gid", "7", "--ro"]);
    let mut shown: serde_json::Value =
        serde_json::from_str(&succeed(&["token", "show", "--json", text(&token)])).unwrap();
    let id = shown["id"].take();
    assert!(id.as_str().is_some_and(|id| id.len() == 16), "{id}");
    let authority = shown["authority"].take();
    assert!(authority.as_str().is_some_and(|authority| authority.len() == 64), "{authority}");
    let expected = serde_json::json!({
        "id": null, "key": 0, "scope": "files", "authority": null,
        "path": "/a/b", "uid": 5, "gids": [6, 7], "read_only": true, "ids": null, "expires": null,
        "expired": false
    });
    assert_eq!(shown, expected);
}
