//! Facts that go with answers to a mount: directories as changes of names in them left them.

use base::{Attr, Seq};
use wire::{Answer, DirRef, Mkdir, Request, Token, TxnId};

use super::{
    client::{Client, name},
    world::{World, in_world},
};
use crate::{
    record::{Key, key, key::Part},
    transact::locks::Mode,
};

const TXN: TxnId = TxnId { server: 1, run: 1, number: 1 };

/// A client whose kernel checks permissions.
async fn mount(world: &mut World) -> Client {
    Client::open(world, &Token::administrator(), true).await.unwrap()
}

/// The directories that came with the latest answer.
fn noted(client: &mut Client) -> Vec<Attr> {
    client.noted.take().map_or_else(Vec::new, |noted| noted.dirs)
}

/// Checks that the latest answer told these directories as they are.
async fn tells(client: &mut Client, dirs: &[&DirRef]) {
    let told = noted(client);
    let mut are = Vec::new();
    for dir in dirs {
        are.push(client.stat(*dir).await.unwrap());
    }
    assert_eq!(told, are);
}

#[test]
fn a_change_of_a_name_tells_a_mount_what_it_left_of_the_directory() {
    in_world(async |world| {
        let client = &mut mount(world).await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        tells(client, &[&root]).await;
        let file = client.create(&dir, "f").await.unwrap();
        tells(client, &[&dir]).await;
        client.symlink(&dir, "s", "f").await.unwrap();
        tells(client, &[&dir]).await;
        client.link(&file, &dir, "l").await.unwrap();
        tells(client, &[&dir]).await;
        client.unlink(&dir, "s").await.unwrap();
        tells(client, &[&dir]).await;
        client.rename((&dir, "f"), (&dir, "g")).await.unwrap();
        tells(client, &[&dir]).await;
        client.rename((&dir, "g"), (&root, "g")).await.unwrap();
        tells(client, &[&root, &dir]).await;
        client.exchange((&root, "g"), (&dir, "l")).await.unwrap();
        assert_eq!(noted(client), [], "both names are the same file's");
        client.unlink(&dir, "l").await.unwrap();
        tells(client, &[&dir]).await;
        client.rmdir(&root, "d").await.unwrap();
        tells(client, &[&root]).await;
        client.rmdir(&root, "d").await.unwrap_err();
        assert_eq!(noted(client), []);
        client.lookup(&root, "g").await.unwrap();
        assert_eq!(noted(client), [], "nothing has changed");
    });
}

#[test]
fn only_a_session_whose_kernel_checks_is_told_and_only_once() {
    in_world(async |world| {
        let mut native = world.client().await;
        let root = native.root;
        native.mkdir(&root, "native").await.unwrap();
        assert_eq!(noted(&mut native), []);

        let client = &mut mount(world).await;
        let mkdir = Request::Mkdir(Mkdir { dir: root, name: name("d"), mode: 0o755 });
        let first = client.ask_as(Seq(1), Seq(1), mkdir.clone()).await;
        assert!(matches!(first, Answer::Done(_)), "{first:?}");
        assert_eq!(noted(client).len(), 1);
        native.mkdir(&root, "since").await.unwrap();
        assert_eq!(client.ask_as(Seq(1), Seq(1), mkdir.clone()).await, first);
        assert_eq!(noted(client), [], "it would be old");
        world.restart().await;
        client.resume(world).await;
        assert_eq!(client.ask_as(Seq(1), Seq(1), mkdir).await, first);
        assert_eq!(noted(client), []);
    });
}

#[test]
fn a_directory_that_a_prepared_transaction_is_about_to_change_is_not_told() {
    in_world(async |world| {
        let client = &mut mount(world).await;
        let root = client.root;
        let shared = &world.server.shared;
        let shard = base::placement::shard_of(root.home, 0, shared.config.shards);
        let key: Key = key::content(shard, root.id, 0, Part::Main);
        // Another server may have answered already that there is one entry more.
        assert!(shared.prepared.take(TXN, vec![(key, Mode::Increment)]));
        client.create(&root, "f").await.unwrap();
        assert_eq!(noted(client), []);
        world.server.shared.prepared.free(TXN);
        client.create(&root, "g").await.unwrap();
        tells(client, &[&root]).await;
    });
}
