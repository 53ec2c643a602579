//! Requests that wait for the outcome of a prepared transaction, and numbers whose requests were
//! sent elsewhere.

use base::{FileKind, Seq};
use wire::{Answer, Create, Hello, Reply, Request, Retry, Token, TxnId};

use super::{
    client::{Client, name},
    world::{World, in_world},
};
use crate::{
    record::{Key, key, key::Part},
    serve::connection::WAITING_MAX,
    transact::locks::Mode,
};

const TXN: TxnId = TxnId { server: 1, run: 1, number: 1 };

fn create(client: &Client) -> Request {
    let (dir, name) = (client.root, name("f"));
    Request::Create(Create {
        dir,
        name,
        kind: FileKind::File,
        mode: 0o600,
        rdev: 0,
        exclusive: true,
        open: None,
    })
}

/// Prepares a transaction that changes the name.
fn prepare(world: &World, client: &Client) {
    let (shared, name, root) = (&world.server.shared, name("f"), client.root);
    let shard = base::placement::shard_of(root.home, 0, shared.config.shards);
    let pos = shared.config.hash_key.pos(&name);
    let key: Key = key::name(shard, root.id, pos, &name, Part::Main);
    assert!(shared.prepared.take(TXN, vec![(key, Mode::Exclusive)]));
}

#[test]
fn what_waits_is_dropped_when_nobody_hears_its_answer() {
    in_world(async |world| {
        let (mut client, mut other) = (world.client().await, world.client().await);
        prepare(world, &client);
        let request = create(&client);
        client.send(Seq(1), Seq(1), &request).await;
        world.settle().await;
        drop(client);
        world.settle().await;
        world.server.shared.prepared.free(TXN);
        world.settle().await;
        let root = other.root;
        assert!(other.lookup(&root, "f").await.is_err());
    });
}

#[test]
fn what_waits_is_not_executed_for_another_session() {
    in_world(async |world| {
        let mut client = world.client().await;
        prepare(world, &client);
        let request = create(&client);
        client.send(Seq(1), Seq(1), &request).await;
        world.settle().await;
        let hello = Hello {
            token: World::sign(&Token::administrator()),
            client: "another".into(),
            resume: None,
            kernel_checks: false,
        };
        let greeted = client.ask(Request::Hello(hello)).await;
        assert!(matches!(greeted, Answer::Done(Reply::Welcome(_))), "{greeted:?}");
        world.server.shared.prepared.free(TXN);
        assert_eq!(client.receive().await, Answer::Retry(Retry::NoSession));
        let root = client.root;
        assert!(client.lookup(&root, "f").await.is_err());
    });
}

#[test]
fn a_number_whose_request_was_sent_elsewhere_is_used_up() {
    in_world(async |world| {
        let mut client = world.client().await;
        let gone = client.mkdir(&client.root.clone(), "d").await.unwrap();
        let root = client.root;
        client.rmdir(&root, "d").await.unwrap();
        let number = client.seq.next();
        let mut request = create(&client);
        if let Request::Create(create) = &mut request {
            create.dir = gone;
        }
        let refused = client.ask_as(number, number, request).await;
        assert_eq!(refused, Answer::Retry(Retry::StaleDir));
        let request = create(&client);
        assert_eq!(client.ask_as(number, number, request).await, refused);
        assert!(client.lookup(&root, "f").await.is_err());
        client.seq = number;
        client.create(&root, "f").await.unwrap();
    });
}

#[test]
fn so_many_changes_of_a_connection_wait_for_a_pause_and_no_more() {
    in_world(async |world| {
        let mut client = world.client().await;
        let pauses = &world.server.shared.pauses;
        pauses.begin(7).unwrap();
        pauses.hold(7).unwrap();
        let request = create(&client);
        for _ in 0..=WAITING_MAX {
            client.send(Seq(1), Seq(1), &request).await;
        }
        assert_eq!(client.receive().await, Answer::Retry(Retry::Busy));
        let lookup = client.lookup(&client.root.clone(), "f").await;
        assert!(lookup.is_err(), "what changes nothing is answered");
        assert!(pauses.end(7));
        for _ in 0..WAITING_MAX {
            // The first is executed; the others are repetitions of it.
            let answer = client.receive().await;
            let right =
                matches!(answer, Answer::Done(Reply::Created(_)) | Answer::Retry(Retry::Busy));
            assert!(right, "{answer:?}");
        }
        let created = client.ask_as(Seq(1), Seq(1), request).await;
        assert!(matches!(created, Answer::Done(Reply::Created(_))), "{created:?}");
    });
}
