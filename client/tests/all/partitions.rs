//! Tests of requests to scripted servers that have partitions of one directory.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use base::{
    Attr, ClusterMap, Cred, EntryName, Epoch, FileKind, HashKey, Ino, Layout, Seq, ShardId, Splits,
    Subsets, Time, layout::POS_MAX, placement::shard_of,
};
use client::{Client, FileSystem};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use wire::{
    Answer, DirRef, Entry, FileRef, LayoutNews, NodeRef, Readdir, ReaddirEntry, ReaddirPage, Reply,
    Request, RequestHeader, Retry, ShareStat, Welcome,
};

use crate::script::{Peer, attr, config_of, dir, entry_of_dir, name, welcome};

const SHARDS: u16 = 4;
const KEY: HashKey = HashKey::new(1, 2);

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

    // A request that names a file by its name goes the same way.
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

/// A directory with names, and what each partition says of how it is divided.
struct Directory {
    names: BTreeMap<u64, EntryName>,
    views: Vec<Layout>,
}

impl Directory {
    fn new(layout: &Layout, names: u32) -> Directory {
        let names = (0..names).map(|number| name(&format!("file {number}")));
        let names = names.map(|name| (KEY.pos(&name), name)).collect();
        Directory { names, views: vec![layout.clone(); usize::from(SHARDS)] }
    }

    fn answer(&self, header: &RequestHeader, request: &Request) -> Answer {
        let partition = (0..SHARDS).find(|partition| shard(*partition) == header.shard).unwrap();
        let own = &self.views[usize::from(partition)];
        match request {
            Request::Readdir(req) => self.page(partition, own, req),
            Request::Getattr(_) if !own.is_active(partition) => stale(Some(own.clone())),
            Request::Getattr(_) => {
                let mine = self.names.keys().filter(|pos| own.partition(**pos) == partition);
                let ctime = Time { sec: i64::from(partition), nsec: 0 };
                let size = mine.count() as u64;
                let attr = Attr { size, ctime, ..attr(divided().ino.0, FileKind::Directory) };
                Answer::Done(Reply::Share(ShareStat { attr, layout: own.clone() }))
            }
            Request::Setattr(_) => Answer::Done(Reply::Attr(attr(1, FileKind::Directory))),
            other => panic!("{other:?}"),
        }
    }

    fn page(&self, partition: u16, own: &Layout, req: &Readdir) -> Answer {
        let first = req.after + 1;
        let has_some = if own.scatters() {
            own.is_active(partition)
        } else {
            own.partition(first) == partition
        };
        if !has_some {
            return stale(Some(own.clone()));
        }
        let mine = self.names.range(first..).filter(|(pos, _)| own.partition(**pos) == partition);
        let entries = mine.map(|(pos, name)| ReaddirEntry {
            pos: *pos,
            name: name.clone(),
            ino: Ino(9),
            kind: Some(FileKind::File),
            entry: None,
        });
        let mut entries: Vec<ReaddirEntry> = entries.collect();
        let max = usize::try_from(req.entries_max).unwrap();
        let mut reach = own.reach(first);
        if entries.len() > max {
            entries.truncate(max);
            reach = entries[max - 1].pos;
        }
        Answer::Done(Reply::Page(ReaddirPage {
            entries,
            end: reach == POS_MAX,
            attr: attr(divided().ino.0, FileKind::Directory),
            parent_ino: Ino(1),
            reach,
            layout: Some(own.clone()),
        }))
    }
}

/// Answers by the directory until the client hangs up.
fn serve(mut peer: Peer, directory: &Arc<Directory>) -> JoinHandle<()> {
    let directory = Arc::clone(directory);
    tokio::spawn(async move {
        loop {
            let (header, request) = peer.next().await;
            peer.answer(&header, directory.answer(&header, &request)).await;
        }
    })
}

async fn with_servers<F: Future>(directory: Directory, run: impl FnOnce(Client) -> F) -> F::Output {
    let World { client, first, second } = connect().await;
    let directory = Arc::new(directory);
    let servers = [serve(first, &directory), serve(second, &directory)];
    let done = run(client).await;
    servers.iter().for_each(JoinHandle::abort);
    done
}

#[tokio::test(start_paused = true)]
async fn pages_of_all_partitions_join_in_the_order_of_positions() {
    let spread = [split(1), split(4), Layout::Subsets(Subsets::started(1, 4))];
    for (layout, max) in spread.iter().flat_map(|layout| [(layout, 3), (layout, 40)]) {
        let directory = Directory::new(layout, 60);
        let expected: Vec<EntryName> = directory.names.values().cloned().collect();
        with_servers(directory, |client| async move {
            let (dir, mut listed, mut after) = (divided(), Vec::new(), 0);
            loop {
                let page = client.readdir(&Cred::ROOT, &dir, after, max, false).await.unwrap();
                assert_eq!(page.attr.size, if after == 0 { 60 } else { page.attr.size });
                assert!(page.end || page.entries.len() >= 3);
                listed.extend(page.entries.iter().map(|entry| entry.name.clone()));
                after = page.entries.last().map_or(after, |entry| entry.pos);
                if page.end {
                    break;
                }
            }
            assert_eq!(listed, expected, "{layout:?}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_attributes_of_a_directory_are_those_of_all_partitions() {
    // The master has not heard that partition 1 has split: it need not.
    let mut directory = Directory::new(&split(2), 60);
    (directory.views[1], directory.views[3]) = (after(1, 3), after(1, 3));
    let attr = with_servers(directory, |client| async move {
        let node = NodeRef::Dir(divided());
        let first = client.getattr(&Cred::ROOT, &node).await.unwrap();
        assert_eq!(client.getattr(&Cred::ROOT, &node).await.unwrap(), first);
        first
    });
    let attr = attr.await;
    assert_eq!((attr.size, attr.ctime.sec), (60, 3));
}

/// Two partitions, of which one has split once more.
fn after(source: u16, target: u16) -> Layout {
    split(2).after(base::Transfer { source, target }).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_sync_of_a_directory_waits_for_partitions_that_this_client_has_not_met() {
    let World { client, mut first, mut second } = connect().await;
    let directory = Arc::new(Directory::new(&split(2), 10));
    let synced = tokio::spawn({
        let client = client.clone();
        async move { client.sync_dir(&divided()).await }
    });
    let of_first = Arc::clone(&directory);
    tokio::spawn(async move {
        loop {
            let (header, request) = first.next().await;
            let answer = match request {
                Request::Sync => Answer::Done(Reply::Nothing),
                request => of_first.answer(&header, &request),
            };
            first.answer(&header, answer).await;
        }
    });
    // The second one syncs for long, and says nothing meanwhile.
    let (until, mut syncs) = (Instant::now() + Duration::from_secs(8), Vec::new());
    while let Ok((header, request)) = timeout_at(until, second.next()).await {
        match request {
            Request::Sync => syncs.push(header),
            Request::Ping => {}
            request => {
                let answer = directory.answer(&header, &request);
                second.answer(&header, answer).await;
            }
        }
    }
    assert!(!synced.is_finished());
    for header in syncs {
        second.answer(&header, Answer::Done(Reply::Nothing)).await;
    }
    synced.await.unwrap().unwrap();
}
