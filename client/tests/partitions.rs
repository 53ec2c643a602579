//! What a client says to servers that have partitions of one directory, and follow a script.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

#[path = "support/script.rs"]
#[allow(dead_code, reason = "each test uses a part of it")]
mod script;

use base::{
    ClusterMap, Cred, EntryName, Epoch, FileKind, HashKey, Ino, Layout, Seq, ShardId, Splits,
    placement::shard_of,
};
use client::{Client, FileSystem};
use script::{Peer, attr, config_of, dir, entry_of_dir, name, welcome};
use tokio::task::JoinHandle;
use wire::{
    Answer, DirRef, Entry, FileRef, LayoutNews, NodeRef, Reply, Request, RequestHeader, Retry,
    Welcome,
};

const SHARDS: u16 = 4;
const KEY: HashKey = HashKey { k0: 1, k1: 2 };

fn welcome_of(server: u64) -> Welcome {
    let servers = vec!["one:1".to_owned(), "two:1".to_owned()];
    let map = ClusterMap { epoch: Epoch(1), servers, shards: vec![0, 1, 0, 1] };
    Welcome { map, opened: true, ..welcome(5, 10 + server) }
}

/// A directory whose even partitions are on the first server and whose odd ones on the second.
fn divided() -> DirRef {
    let on_first = |dir: &DirRef| !on_second(dir);
    (300..).map(dir).find(on_first).unwrap()
}

fn shard(partition: u16) -> ShardId {
    shard_of(divided().home, partition, SHARDS)
}

fn split(partitions: u16) -> Layout {
    Layout::Extendible(Splits::started(1, partitions))
}

/// Names that partition 3 of four has, 1 of two.
fn names() -> impl Iterator<Item = EntryName> {
    let all = (0..).map(|number| name(&format!("n{number}")));
    all.filter(|name| split(4).partition(KEY.pos(name)) == 3)
}

fn stale(layout: Option<Layout>) -> Answer {
    let news = LayoutNews { dir: divided().id, ino: divided().ino, layout };
    Answer::Retry(Retry::StaleLayout(news))
}

struct World {
    client: Client,
    first: Peer,
    second: Peer,
}

/// The client has met both servers, with a request to each.
async fn connect() -> World {
    let (config, mut servers) = config_of(&["one:1", "two:1"]);
    let (client, (mut first, _)) =
        tokio::join!(Client::connect(config), servers[0].welcome(welcome_of(0)));
    let client = client.unwrap();
    let mut seen = mkdir(&client, name("whatever"));
    let (header, _) = first.next().await;
    first.answer(&header, entry_of_dir(400)).await;
    seen.await.unwrap().unwrap();
    let elsewhere = DirRef { home: (300..).map(dir).find(on_second).unwrap().home, ..divided() };
    seen = mkdir_in(&client, elsewhere, name("whatever"));
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    let (header, _) = second.next().await;
    second.answer(&header, entry_of_dir(400)).await;
    seen.await.unwrap().unwrap();
    World { client, first, second }
}

fn on_second(dir: &DirRef) -> bool {
    shard_of(dir.home, 0, SHARDS).0 % 2 == 1
}

fn mkdir(client: &Client, name: EntryName) -> JoinHandle<client::Result<Entry>> {
    mkdir_in(client, divided(), name)
}

fn mkdir_in(client: &Client, dir: DirRef, name: EntryName) -> JoinHandle<client::Result<Entry>> {
    let client = client.clone();
    tokio::spawn(async move { FileSystem::mkdir(&client, &Cred::ROOT, &dir, &name, 0o755).await })
}

/// The next request, which must be a mkdir that means this partition.
async fn mkdir_at(peer: &mut Peer, partition: u16) -> RequestHeader {
    let (header, request) = peer.next().await;
    assert!(matches!(request, Request::Mkdir(_)), "{request:?}");
    assert_eq!(header.shard, shard(partition));
    header
}

#[tokio::test(start_paused = true)]
async fn who_knows_no_layout_is_corrected_once_and_goes_right_from_then_on() {
    let World { client, mut first, mut second } = connect().await;
    let mut names = names();
    let task = mkdir(&client, names.next().unwrap());
    let asked = mkdir_at(&mut first, 0).await;
    first.answer(&asked, stale(Some(split(4)))).await;
    let asked = mkdir_at(&mut second, 3).await;
    second.answer(&asked, entry_of_dir(401)).await;
    task.await.unwrap().unwrap();

    let task = mkdir(&client, names.next().unwrap());
    let asked = mkdir_at(&mut second, 3).await;
    second.answer(&asked, entry_of_dir(402)).await;
    task.await.unwrap().unwrap();

    // What names a file by its name goes the same way.
    let file = FileRef { dir: divided(), name: names.next().unwrap(), ino: Ino::new(shard(3), 7) };
    let node = NodeRef::File(file);
    let task = tokio::spawn({
        let client = client.clone();
        async move { client.getattr(&Cred::ROOT, &node).await }
    });
    let (header, request) = second.next().await;
    assert!(matches!(request, Request::Getattr(_)), "{request:?}");
    assert_eq!(header.shard, shard(3));
    second.answer(&header, Answer::Done(Reply::Attr(attr(7, FileKind::File)))).await;
    task.await.unwrap().unwrap();

    let stats = client.stats();
    assert_eq!((stats.wrong_partitions, stats.probes), (1, [2, 1, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn who_knows_an_older_layout_is_corrected_once_with_another_number() {
    let World { client, mut first, mut second } = connect().await;
    let mut names = names();
    let task = mkdir(&client, names.next().unwrap());
    let asked = mkdir_at(&mut first, 0).await;
    first.answer(&asked, stale(Some(split(2)))).await;
    let asked = mkdir_at(&mut second, 1).await;
    second.answer(&asked, stale(Some(split(4)))).await;
    let again = mkdir_at(&mut second, 3).await;
    assert_eq!(again.seq, Seq(asked.seq.0 + 1), "the other one is finished");
    second.answer(&again, entry_of_dir(401)).await;
    task.await.unwrap().unwrap();
    assert_eq!(client.stats().probes, [0, 0, 1, 0]);

    let task = mkdir(&client, names.next().unwrap());
    let asked = mkdir_at(&mut second, 3).await;
    second.answer(&asked, entry_of_dir(402)).await;
    task.await.unwrap().unwrap();
    assert_eq!(client.stats().probes, [1, 0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn where_there_is_no_such_partition_the_master_is_asked() {
    let World { client, mut first, mut second } = connect().await;
    let mut names = names();
    let task = mkdir(&client, names.next().unwrap());
    let asked = mkdir_at(&mut first, 0).await;
    first.answer(&asked, stale(Some(split(4)))).await;
    let asked = mkdir_at(&mut second, 3).await;
    second.answer(&asked, stale(None)).await;
    let asked = mkdir_at(&mut first, 0).await;
    first.answer(&asked, stale(Some(split(2)))).await;
    let asked = mkdir_at(&mut second, 1).await;
    second.answer(&asked, entry_of_dir(401)).await;
    task.await.unwrap().unwrap();
    assert_eq!((client.stats().wrong_partitions, client.stats().probes), (3, [0, 0, 0, 1]));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_on_its_way_is_asked_again_where_it_was() {
    let World { client, mut first, second } = connect().await;
    let mut names = names();
    let waiting = mkdir(&client, names.next().unwrap());
    let before = mkdir_at(&mut first, 0).await;
    let task = mkdir(&client, names.next().unwrap());
    let asked = mkdir_at(&mut first, 0).await;
    first.answer(&asked, stale(Some(split(4)))).await;
    drop(second);
    task.abort();
    // Whether it has happened only this server knows: what was learnt meanwhile changes nothing.
    first.answer(&before, Answer::Retry(Retry::Busy)).await;
    let again = mkdir_at(&mut first, 0).await;
    assert_eq!(again.seq, before.seq);
    first.answer(&again, entry_of_dir(401)).await;
    waiting.await.unwrap().unwrap();
}
