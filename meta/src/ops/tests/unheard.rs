//! A file that was made and opened just before a restart, whose creator may not have heard of it.

use base::{FileKind, FsError, Seq};
use wire::{Answer, Create, FileRef, Reply, Request};

use super::{
    client::{Client, name},
    world::{World, in_world},
};

/// The number that the client gives the open.
const NUMBER: u64 = 7;

fn create(client: &Client) -> Request {
    Request::Create(Create {
        dir: client.root,
        name: name("f"),
        kind: FileKind::File,
        mode: 0o600,
        rdev: 0,
        exclusive: true,
        open: Some(NUMBER),
    })
}

/// A client that made and opened a file, and came back after a restart; the file; and another
/// client.
async fn made_before_a_restart(world: &mut World) -> (Client, FileRef, Client) {
    let mut client = world.client().await;
    let answer = client.ask_as(Seq(1), Seq(1), create(&client)).await;
    let Answer::Done(Reply::Created(created)) = answer else { panic!("{answer:?}") };
    let file = FileRef { dir: client.root, name: name("f"), ino: created.entry.attr.ino };
    world.restart().await;
    client.resume(world).await;
    client.claim_nothing().await;
    let other = world.client().await;
    (client, file, other)
}

#[test]
fn a_file_whose_creation_is_answered_after_a_restart_is_open() {
    in_world(async |world| {
        let (mut client, file, mut other) = made_before_a_restart(world).await;
        // The file is removed before its creator asks again.
        let root = other.root;
        other.unlink(&root, "f").await.unwrap();
        world.settle().await;
        let again = client.ask_as(Seq(1), Seq(1), create(&client)).await;
        assert!(matches!(again, Answer::Done(Reply::Created(_))));
        client.seq = Seq(1);
        client.truncate(&file, 5).await.unwrap();
        assert_eq!(client.read(&file).await.unwrap(), [0; 5]);
        // The release is not older than the open.
        client.release(file.ino, NUMBER).await;
        world.settle().await;
        assert_eq!(client.read(&file).await, Err(FsError::Stale));
    });
}

#[test]
fn a_file_whose_creation_was_heard_and_that_was_not_claimed_is_closed() {
    in_world(async |world| {
        let (mut client, file, mut other) = made_before_a_restart(world).await;
        // The lowest number without an answer shows that the client has this one.
        client.ask_as(Seq(0), Seq(2), Request::Ping).await;
        let root = other.root;
        other.unlink(&root, "f").await.unwrap();
        world.settle().await;
        client.seq = Seq(1);
        assert_eq!(client.read(&file).await, Err(FsError::Stale));
    });
}
