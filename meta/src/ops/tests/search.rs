//! Searches for an inode number of which nothing else is known.

use base::{Cred, FsError, Ino, ShardId, limits::SHARDS_MAX};
use bytes::Bytes;
use wire::{Getattr, NodeRef, Reply, Request, Search, Searched, Token};

use super::{
    client::{Client, user},
    world::in_world,
};

/// The node that has a number, and how many requests it took to find it.
async fn search(client: &mut Client, ino: Ino) -> Result<(NodeRef, usize), FsError> {
    let (dir, mut from) = (client.root, Bytes::new());
    for asked in 1.. {
        match client.get(Request::Search(Search { dir, ino, from })).await? {
            Reply::Searched(Searched { node: Some(node), .. }) => return Ok((node, asked)),
            Reply::Searched(Searched { next: Some(next), .. }) => from = next,
            other => panic!("{other:?}"),
        }
    }
    unreachable!("a shard has an end")
}

#[test]
fn what_has_a_number_is_found_wherever_it_is() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let other = client.mkdir(&root, "other").await.unwrap();
        let below = client.mkdir(&dir, "below").await.unwrap();
        let embedded = client.create(&below, "embedded").await.unwrap();
        let linked = client.create(&dir, "linked").await.unwrap();
        client.link(&linked, &other, "again").await.unwrap();
        let moved = client.create(&dir, "moved").await.unwrap();
        client.rename((&dir, "moved"), (&other, "new name")).await.unwrap();
        client.rename((&root, "d"), (&other, "d")).await.unwrap();
        let mut all = vec![moved.ino, linked.ino, embedded.ino, below.ino, other.ino, dir.ino];
        // One request does not look at so many records.
        let mut asked_most = 0;
        for number in 0..5000 {
            let file = client.create(&below, &format!("file {number}")).await.unwrap();
            all.extend((number % 500 == 0).then_some(file.ino));
        }
        for ino in all {
            let (node, asked) = search(&mut client, ino).await.unwrap();
            asked_most = asked_most.max(asked);
            let attr = match client.get(Request::Getattr(Getattr { node })).await.unwrap() {
                Reply::Attr(attr) => attr,
                other => panic!("{other:?}"),
            };
            assert_eq!(attr.ino, ino);
        }
        assert!(asked_most > 1, "one page was enough");

        client.unlink(&below, "embedded").await.unwrap();
        let nowhere = Ino::new(ShardId(SHARDS_MAX - 1), 7);
        for gone in [embedded.ino, Ino::new(embedded.ino.shard(), 1 << 40), nowhere] {
            assert_eq!(search(&mut client, gone).await, Err(FsError::Stale));
        }
    });
}

#[test]
fn who_must_prove_a_walk_finds_nothing_by_its_number() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let file = client.create(&dir, "f").await.unwrap();
        assert!(search(&mut client, file.ino).await.is_ok());
        client.cred = user(7);
        for ino in [file.ino, dir.ino] {
            assert_eq!(search(&mut client, ino).await, Err(FsError::Stale));
        }
        let limited = [
            (Token { path: "/d".into(), ..Token::administrator() }, Cred::ROOT),
            (Token { uid: Some(7), gids: vec![7], ..Token::administrator() }, user(7)),
        ];
        for (token, cred) in limited {
            let mut client = world.client_with(&token).await;
            client.cred = cred;
            assert_eq!(search(&mut client, file.ino).await, Err(FsError::Stale), "{token:?}");
        }
    });
}
