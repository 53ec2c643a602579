//! A client against the servers of a cluster, which follow a script.

use std::{sync::Arc, time::Duration};

use base::{
    Access, ByteRange, ClusterMap, Cred, Epoch, FileKind, FsError, Ino, LockKind, LockMode, Seq,
    SessionId, SetAttr, ShardId,
};
use bytes::Bytes;
use client::{Client, Config, Error, FileLock, FileSystem, Resolution};
use tokio::{task::JoinHandle, time::Instant};
use wire::{
    Answer, DirRef, Entry, FileRef, NodeRef, OpenState, Opened, Reply, Request, Resume, Retry,
    Stand, Statfs, Welcome,
};

use crate::{
    guesses::found,
    script::{Peer, Seconds, Server, attr, config_of, dir, entry_of_dir, name, welcome},
};

pub(super) const ONE: &str = "one:1";
pub(super) const TWO: &str = "two:1";
pub(super) const SHARDS: u16 = 4;

fn map(epoch: u64, addresses: &[&str]) -> ClusterMap {
    ClusterMap {
        epoch: Epoch(epoch),
        servers: addresses.iter().map(|address| (*address).to_owned()).collect(),
        shards: (0..SHARDS).map(|shard| shard % 2).collect(),
    }
}

pub(super) fn welcome_of(server: u64) -> Welcome {
    Welcome { map: map(1, &[ONE, TWO]), opened: true, ..welcome(5, 10 + server) }
}

/// A directory whose group is on the server at this position of the map.
pub(super) fn dir_on(server: u16) -> DirRef {
    let on = |dir: &DirRef| base::placement::shard_of(dir.home, 0, SHARDS).0 % 2 == server;
    (300..).map(dir).find(on).unwrap()
}

pub(super) struct World {
    pub(super) client: Client,
    pub(super) servers: Vec<Server>,
    pub(super) first: Peer,
}

pub(super) async fn connect() -> World {
    connect_with(|config| config).await
}

pub(super) async fn connect_with(change: impl FnOnce(Config) -> Config) -> World {
    let (config, mut servers) = config_of(&[ONE, TWO]);
    // Most of these servers are asked for guesses.
    let config = Config { resolution: Resolution::Speculative, ..config };
    let (client, (first, hello)) =
        tokio::join!(Client::connect(change(config)), servers[0].welcome(welcome_of(0)));
    assert_eq!(hello.resume, None);
    World { client: client.unwrap(), servers, first }
}

pub(super) fn go<F>(client: &Client, what: impl FnOnce(Client) -> F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(what(client.clone()))
}

pub(super) fn mkdir(client: &Client, dir: DirRef, text: &str) -> JoinHandle<client::Result<Entry>> {
    let name = name(text);
    go(client, async move |client| {
        FileSystem::mkdir(&client, &Cred::ROOT, &dir, &name, 0o755).await
    })
}

fn stat(client: &Client, node: NodeRef) -> JoinHandle<client::Result<base::Attr>> {
    go(client, async move |client| client.getattr(&Cred::ROOT, &node).await)
}

pub(super) fn attr_of(ino: Ino) -> Answer {
    Answer::Done(Reply::Attr(base::Attr { ino, ..attr(1, FileKind::File) }))
}

fn born_on(shard: u16, dir: DirRef) -> FileRef {
    FileRef { dir, name: name("f"), ino: Ino::new(ShardId(shard), 7) }
}

#[tokio::test(start_paused = true)]
async fn each_server_gets_what_is_its_own_and_is_joined_by_proof_when_it_is_needed() {
    let World { client, mut servers, mut first } = connect().await;
    let task = mkdir(&client, dir_on(1), "a");
    let (mut second, hello) = servers[1].welcome(welcome_of(1)).await;
    let resume =
        Resume { session: SessionId(5), secret: 99, answered: Seq(0), root: dir(1), proof: 7 };
    assert_eq!(hello.resume, Some(resume));
    let (header, request) = second.next().await;
    assert!(matches!(request, Request::Mkdir(_)), "{request:?}");
    assert_eq!((header.shard.0 % 2, header.epoch, header.seq), (1, Epoch(1), Seq(1)));
    second.answer(&header, entry_of_dir(400)).await;
    task.await.unwrap().unwrap();

    // Requests are numbered for each server on its own.
    let task = mkdir(&client, dir_on(0), "a");
    let (header, _) = first.next().await;
    assert_eq!((header.shard.0 % 2, header.seq), (0, Seq(1)));
    first.answer(&header, entry_of_dir(401)).await;
    task.await.unwrap().unwrap();
    assert_eq!(client.requests_by_server(), [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_server_is_dialled_where_the_newest_map_says() {
    let (config, mut servers) = config_of(&[ONE, TWO, "two:2"]);
    let (client, (mut first, _)) =
        tokio::join!(Client::connect(config), servers[0].welcome(welcome_of(0)));
    let client = client.unwrap();
    let waiting = mkdir(&client, dir_on(1), "a");
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    let (sent, _) = second.next().await;

    let task = mkdir(&client, dir_on(0), "b");
    let (header, _) = first.next().await;
    let newer = map(2, &[ONE, "two:2"]);
    first.answer(&header, Answer::Retry(Retry::Moved(newer))).await;
    let (again, _) = first.next().await;
    assert_eq!((again.epoch, again.seq), (Epoch(2), header.seq));
    first.answer(&again, entry_of_dir(401)).await;
    task.await.unwrap().unwrap();

    second.ended().await;
    let there = Welcome { map: map(2, &[ONE, "two:2"]), opened: false, ..welcome_of(1) };
    let (mut second, _) = servers[2].welcome(there).await;
    let (again, _) = second.next().await;
    assert_eq!((again.epoch, again.seq), (Epoch(2), sent.seq));
    second.answer(&again, entry_of_dir(400)).await;
    waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_reached_is_asked_for_at_another() {
    let (config, mut servers) = config_of(&[ONE, TWO, "two:2"]);
    drop(servers.remove(1));
    let (client, (mut first, _)) =
        tokio::join!(Client::connect(config), servers[0].welcome(welcome_of(0)));
    let task = mkdir(&client.unwrap(), dir_on(1), "a");
    let (header, _) = first.next().await;
    assert_eq!(header.shard, ShardId::SERVER);
    first.answer(&header, Answer::Retry(Retry::Moved(map(2, &[ONE, "two:2"])))).await;
    let there = Welcome { map: map(2, &[ONE, "two:2"]), ..welcome_of(1) };
    let (mut second, _) = servers[1].welcome(there).await;
    let (header, _) = second.next().await;
    second.answer(&header, entry_of_dir(400)).await;
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn servers_that_are_all_elsewhere_are_found_where_the_program_said() {
    const NAME: &str = "name:1";
    // The name leads to the first server first, and to the second when both have moved.
    let (mut config, mut servers) = config_of(&[ONE, TWO, NAME, "one:2", "two:2"]);
    config.addresses = vec![NAME.to_owned()];
    let (client, (first, _)) =
        tokio::join!(Client::connect(config), servers[2].welcome(welcome_of(0)));
    let client = client.unwrap();
    let waiting = mkdir(&client, dir_on(1), "a");
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    let (sent, _) = second.next().await;
    drop((first, second));
    servers.drain(..2).for_each(drop);
    let [name, one, two] = &mut servers[..] else { panic!("three are left") };

    let mut asked = name.accept().await;
    let (header, Request::Hello(hello)) = asked.next().await else { panic!("a hello") };
    assert_eq!(hello.resume, None);
    let newer = map(2, &["one:2", "two:2"]);
    asked.answer(&header, Answer::Retry(Retry::Moved(newer.clone()))).await;
    let there = Welcome { map: newer, opened: false, ..welcome_of(1) };
    let (mut second, hello) = two.welcome(there.clone()).await;
    assert_eq!(hello.resume.unwrap().session, SessionId(5));
    let (again, _) = second.next().await;
    assert_eq!((again.epoch, again.seq), (Epoch(2), sent.seq));
    second.answer(&again, entry_of_dir(400)).await;
    waiting.await.unwrap().unwrap();

    let task = mkdir(&client, dir_on(0), "b");
    let (mut first, _) = one.welcome(Welcome { incarnation: 10, ..there }).await;
    let (header, _) = first.next().await;
    first.answer(&header, entry_of_dir(401)).await;
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_file_at_birth_is_asked_for_there_until_that_is_wrong() {
    let World { client, mut servers, mut first } = connect().await;
    let file = born_on(1, dir_on(0));
    let node = NodeRef::File(file.clone());
    let task = stat(&client, node.clone());
    let (header, _) = first.next().await;
    first.answer(&header, Answer::Retry(Retry::AtBirth(77))).await;
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    for task in [task, stat(&client, node.clone())] {
        let (header, Request::Getattr(asked)) = second.next().await else { panic!("a getattr") };
        let NodeRef::File(asked) = asked.node else { panic!("of a file") };
        assert_eq!((header.shard, asked.dir.ticket), (ShardId(1), 77));
        second.answer(&header, attr_of(file.ino)).await;
        assert_eq!(task.await.unwrap().unwrap().ino, file.ino);
    }
    let task = stat(&client, node.clone());
    let (header, _) = second.next().await;
    second.answer(&header, Answer::Retry(Retry::StaleDir)).await;
    let (header, Request::Getattr(asked)) = first.next().await else { panic!("a getattr") };
    assert_eq!(asked.node, node);
    first.answer(&header, attr_of(file.ino)).await;
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_only_the_coordinator_does_is_sent_there_with_a_number_of_its_own() {
    let World { client, mut servers, mut first } = connect().await;
    let from = dir_on(1);
    let rename = go(&client, async move |client| {
        let (old, new) = (name("old"), name("new"));
        let mode = wire::RenameMode::Replace;
        FileSystem::rename(&client, &Cred::ROOT, (&from, &old), (&from, &new), mode).await
    });
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    let (header, _) = second.next().await;
    second.answer(&header, Answer::Retry(Retry::Coordinate)).await;
    let (header, request) = first.next().await;
    assert!(matches!(request, Request::Rename(_)), "{request:?}");
    assert_eq!((header.shard, header.seq), (ShardId::SERVER, Seq(1)));
    let renamed = wire::Renamed { moved: Ino(9), replaced_dir: None };
    first.answer(&header, Answer::Done(Reply::Renamed(renamed))).await;
    rename.await.unwrap().unwrap();
    // The request with number 1 at the second server is done.
    mkdir(&client, from, "a");
    let (header, _) = second.next().await;
    assert_eq!((header.seq, header.unanswered), (Seq(2), Seq(2)));

    // The client knows beforehand that a change of a directory's permissions goes to the
    // coordinator.
    go(&client, async move |client| {
        let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        client.setattr(&Cred::ROOT, &NodeRef::Dir(from), set).await
    });
    let (header, request) = first.next().await;
    assert!(matches!(request, Request::Setattr(_)), "{request:?}");
    assert_eq!((header.shard, header.seq), (ShardId::SERVER, Seq(2)));

    // The owner may be the present one: only the server of the directory knows.
    go(&client, async move |client| {
        let set = SetAttr { uid: Some(0), gid: Some(0), ..SetAttr::default() };
        client.setattr(&Cred::ROOT, &NodeRef::Dir(from), set).await
    });
    let (header, request) = second.next().await;
    assert!(matches!(request, Request::Setattr(_)), "{request:?}");
    assert_eq!(header.shard.0 % 2, 1);
}

/// Opens a file that was born on `shard`, whose server is `peer`.
async fn open(client: &Client, peer: &mut Peer, shard: u16) -> client::Handle {
    open_as(client, peer, born_on(shard, dir_on(0)), Cred::ROOT).await
}

/// Opens a file like [`open`], as a user who may write to it.
async fn open_as(client: &Client, peer: &mut Peer, file: FileRef, cred: Cred) -> client::Handle {
    let ino = file.ino;
    let task = go(client, async move |client| {
        let access = Access::READ.and(Access::WRITE);
        FileSystem::open(&client, &cred, &file, Some(access)).await
    });
    let (header, request) = peer.next().await;
    assert!(matches!(request, Request::Open(_)), "{request:?}");
    let opened = Opened {
        attr: base::Attr { ino, ..attr(1, FileKind::File) },
        contents: OpenState::Inline(Bytes::new()),
        proof: 1,
    };
    peer.answer(&header, Answer::Done(Reply::Opened(opened))).await;
    task.await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_at_one_server_is_kept_at_the_others() {
    let World { client, mut servers, mut first } = connect().await;
    let mine = open(&client, &mut first, 0).await;
    mkdir(&client, dir_on(1), "a");
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    second.next().await;
    let theirs = open(&client, &mut second, 1).await;
    drop(second);
    let (mut second, hello) = servers[1].welcome(welcome_of(7)).await;
    assert!(hello.resume.is_some());
    // After a round trip the client has taken in what the server lost.
    let task = stat(&client, NodeRef::Dir(dir_on(1)));
    let (header, _) = second.next().await;
    second.answer(&header, attr_of(Ino(300))).await;
    task.await.unwrap().unwrap();
    assert_eq!(FileSystem::read(&client, theirs, 0, 1).await, Err(Error::SessionLost));
    assert_eq!(FileSystem::read(&client, mine, 0, 1).await.unwrap(), Bytes::new());
    assert_eq!(client.stats().losses, 0, "nothing that was answered");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_restarts_is_told_of_its_own_files_only() {
    let World { client, mut servers, mut first } = connect().await;
    open(&client, &mut first, 0).await;
    mkdir(&client, dir_on(1), "a");
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    second.next().await;
    open(&client, &mut second, 1).await;
    drop(second);
    let (mut second, _) = servers[1].welcome(Welcome { opened: false, ..welcome_of(7) }).await;
    let (_, Request::Claim(claim)) = second.next().await else { panic!("a claim") };
    let claimed: Vec<Ino> = claim.files.iter().map(|file| file.file.ino).collect();
    assert_eq!(claimed, [Ino::new(ShardId(1), 7)]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_restarts_before_it_was_heard_is_told_that_nothing_is_open_there() {
    let World { client, mut servers, .. } = connect().await;
    mkdir(&client, dir_on(1), "a");
    // The server has opened the session, and its answer is lost.
    let mut second = servers[1].accept().await;
    second.next().await;
    drop(second);
    let (mut second, _) = servers[1].welcome(Welcome { opened: false, ..welcome_of(7) }).await;
    let (_, request) = second.next().await;
    let Request::Claim(claim) = request else { panic!("{request:?}") };
    assert!(claim.last && claim.files.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_sync_asks_the_servers_where_something_has_changed() {
    let World { client, mut servers, mut first } = connect().await;
    let made = mkdir(&client, dir_on(1), "a");
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    let (header, _) = second.next().await;
    second.answer(&header, entry_of_dir(400)).await;
    made.await.unwrap().unwrap();
    let task = go(&client, async move |client| FileSystem::sync(&client).await);
    let (header, request) = second.next().await;
    assert_eq!(request, Request::Sync);
    second.answer(&header, Answer::Done(Reply::Nothing)).await;
    task.await.unwrap().unwrap();
    FileSystem::sync(&client).await.unwrap();
    assert!(first.next_soon().await.is_none());
}

/// Answers a sync.
async fn answer_sync(peer: &mut Peer) {
    let (header, request) = peer.next().await;
    assert_eq!(request, Request::Sync);
    peer.answer(&header, Answer::Done(Reply::Nothing)).await;
}

/// Makes a directory on the second server, which answers.
async fn change_second(client: &Client, second: &mut Peer) {
    let made = mkdir(client, dir_on(1), "a");
    let (header, request) = second.next().await;
    assert!(matches!(request, Request::Mkdir(_)), "{request:?}");
    second.answer(&header, entry_of_dir(400)).await;
    made.await.unwrap().unwrap();
}

fn fsync(client: &Client, handle: client::Handle) -> JoinHandle<client::Result<()>> {
    go(client, async move |client| client.fsync(handle).await)
}

/// The second server, joined, and a file that is open on the first one.
async fn with_second(world: &mut World) -> (Peer, client::Handle) {
    let made = mkdir(&world.client, dir_on(1), "first");
    let (mut second, _) = world.servers[1].welcome(welcome_of(1)).await;
    let (header, _) = second.next().await;
    second.answer(&header, entry_of_dir(399)).await;
    made.await.unwrap().unwrap();
    let handle = open(&world.client, &mut world.first, 0).await;
    (second, handle)
}

#[tokio::test(start_paused = true)]
async fn a_sync_of_a_file_does_not_wait_long_for_a_silent_server_without_a_part_of_it() {
    let mut world = connect().await;
    let (mut second, handle) = with_second(&mut world).await;
    let World { client, mut first, .. } = world;
    for expected in [500, 0] {
        let began = Instant::now();
        let task = fsync(&client, handle);
        answer_sync(&mut first).await;
        task.await.unwrap().unwrap();
        assert_eq!(began.elapsed().as_millis(), expected);
    }
    // The second server was asked to sync, and then whether it is there.
    let (header, request) = second.next().await;
    assert_eq!(request, Request::Sync);
    second.answer(&header, Answer::Done(Reply::Nothing)).await;
    assert_eq!(second.next().await.1, Request::Ping);
    tokio::task::yield_now().await;
    // Now that it was heard of, it is waited for.
    let task = fsync(&client, handle);
    answer_sync(&mut first).await;
    let (header, request) = second.next().await;
    assert_eq!(request, Request::Sync);
    assert!(!task.is_finished());
    second.answer(&header, Answer::Done(Reply::Nothing)).await;
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sync_of_a_file_waits_for_a_server_that_syncs_for_long() {
    let mut world = connect().await;
    let (mut second, handle) = with_second(&mut world).await;
    let World { client, mut first, .. } = world;
    let task = fsync(&client, handle);
    answer_sync(&mut first).await;
    let (sync, request) = second.next().await;
    assert_eq!(request, Request::Sync);
    for _ in 0..4 {
        let (ping, request) = second.next().await;
        assert_eq!(request, Request::Ping);
        second.answer(&ping, Answer::Done(Reply::Nothing)).await;
        assert!(!task.is_finished());
    }
    second.answer(&sync, Answer::Done(Reply::Nothing)).await;
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sync_of_a_file_waits_for_the_server_that_has_moved_it() {
    let mut world = connect().await;
    let (mut second, handle) = with_second(&mut world).await;
    let World { client, mut first, .. } = world;
    let moved = born_on(0, dir_on(0)).ino;
    let rename = go(&client, async move |client| {
        let (from, to) = ((dir_on(1), name("old")), (dir_on(0), name("f")));
        let mode = wire::RenameMode::Replace;
        FileSystem::rename(&client, &Cred::ROOT, (&from.0, &from.1), (&to.0, &to.1), mode).await
    });
    let (header, _) = second.next().await;
    let renamed = wire::Renamed { moved, replaced_dir: None };
    second.answer(&header, Answer::Done(Reply::Renamed(renamed))).await;
    rename.await.unwrap().unwrap();
    let of_dir = go(&client, async move |client| client.sync_dir(&dir_on(0)).await);
    answer_sync(&mut first).await;
    // The directory has no other partition.
    let (header, request) = first.next().await;
    assert!(matches!(request, Request::Getattr(_)), "{request:?}");
    first.answer(&header, attr_of(dir_on(0).ino)).await;
    let task = fsync(&client, handle);
    answer_sync(&mut first).await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(!task.is_finished() && !of_dir.is_finished());
    answer_sync(&mut second).await;
    answer_sync(&mut second).await;
    task.await.unwrap().unwrap();
    of_dir.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sync_of_everything_waits_for_a_silent_server_whose_changes_may_be_lost() {
    let mut world = connect().await;
    let (mut second, _) = with_second(&mut world).await;
    let task = go(&world.client, async move |client| FileSystem::sync(&client).await);
    let (header, request) = second.next().await;
    assert_eq!(request, Request::Sync);
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(!task.is_finished());
    second.answer(&header, Answer::Done(Reply::Nothing)).await;
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sync_of_a_file_asks_nobody_who_is_heard_of_long_after_its_changes() {
    let mut world = connect().await;
    let (mut second, handle) = with_second(&mut world).await;
    let World { client, mut first, .. } = world;
    // The one that is heard of late is not that old itself.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let task = stat(&client, NodeRef::Dir(dir_on(1)));
        let (header, _) = second.next().await;
        second.answer(&header, attr_of(Ino(300))).await;
        task.await.unwrap().unwrap();
    }
    let task = fsync(&client, handle);
    answer_sync(&mut first).await;
    task.await.unwrap().unwrap();
    assert!(second.next_soon().await.is_none());
    // The server's disk may be slow: only its own answer makes all stable.
    let task = go(&client, async move |client| FileSystem::sync(&client).await);
    answer_sync(&mut second).await;
    task.await.unwrap().unwrap();
    change_second(&client, &mut second).await;
    let task = go(&client, async move |client| FileSystem::sync(&client).await);
    answer_sync(&mut second).await;
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_space_of_a_silent_server_is_what_it_told_last() {
    let mut world = connect().await;
    let (mut second, _) = with_second(&mut world).await;
    let World { client, mut first, .. } = world;
    let statfs =
        |count| Statfs { bytes: count, bytes_free: count, files: count, files_free: count };
    let ask = |client: &Client| go(client, async move |client| FileSystem::statfs(&client).await);
    for (told, sum, takes) in [(Some(2), 12, 0), (None, 12, 500), (None, 12, 0)] {
        let began = Instant::now();
        let task = ask(&client);
        let (header, request) = first.next().await;
        assert_eq!(request, Request::Statfs);
        first.answer(&header, Answer::Done(Reply::Statfs(statfs(10)))).await;
        if let Some(told) = told {
            let (header, _) = second.next().await;
            second.answer(&header, Answer::Done(Reply::Statfs(statfs(told)))).await;
        }
        assert_eq!(task.await.unwrap().unwrap(), statfs(sum));
        assert_eq!(began.elapsed().as_millis(), takes);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_may_not_serve_is_asked_again_each_second_at_last() {
    let World { client, mut first, .. } = connect().await;
    let task = mkdir(&client, dir_on(0), "a");
    let mut pauses = Vec::new();
    for _ in 0..16 {
        let asked = Instant::now();
        let (header, _) = first.next().await;
        pauses.push(asked.elapsed());
        first.answer(&header, Answer::Retry(Retry::Away)).await;
    }
    assert!(pauses[1] < Duration::from_millis(2), "{pauses:?}");
    let last = &pauses[12..];
    let in_time = |pause: &Duration| (500..=1000).contains(&pause.as_millis());
    assert!(last.iter().all(in_time), "{pauses:?}");
    assert!(last.iter().any(|pause| *pause != last[0]), "{pauses:?}");
    let (header, _) = first.next().await;
    first.answer(&header, entry_of_dir(400)).await;
    task.await.unwrap().unwrap();
}

async fn answer_ping(peer: &mut Peer) {
    let (header, request) = peer.next().await;
    assert_eq!(request, Request::Ping);
    peer.answer(&header, Answer::Done(Reply::Nothing)).await;
}

#[tokio::test(start_paused = true)]
async fn who_does_not_reach_the_server_of_a_lock_writes_on_no_other() {
    let World { client, mut servers, mut first } = connect().await;
    mkdir(&client, dir_on(1), "a");
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    second.next().await;
    let locked = open(&client, &mut second, 1).await;
    let data = open(&client, &mut first, 0).await;
    let file = |number| FileRef { ino: Ino::new(ShardId(0), number), ..born_on(0, dir_on(0)) };
    let user = Cred { uid: 7, ..Cred::default() };
    let other = open_as(&client, &mut first, file(70), user).await;
    let lock = go(&client, async move |client| {
        let (kind, mode) = (LockKind::Whole, LockMode::Exclusive);
        let lock = FileLock { kind, mode, range: ByteRange::ALL, pid: 1 };
        FileSystem::lock(&client, locked, 1, lock).await
    });
    let (header, request) = second.next().await;
    assert!(matches!(request, Request::Lock(_)), "{request:?}");
    second.answer(&header, Answer::Done(Reply::Nothing)).await;
    lock.await.unwrap().unwrap();

    let write = async |handle| {
        let bytes = Bytes::from_static(b"x");
        FileSystem::write(&client, handle, 0, bytes, false).await
    };
    // While the server answers, the lock is held.
    for _ in 0..5 {
        answer_ping(&mut second).await;
        answer_ping(&mut first).await;
        assert_eq!(write(data).await, Ok(()));
        let (header, request) = first.next().await;
        assert!(matches!(request, Request::Write(_)), "{request:?}");
        let written = wire::Written { attr: attr(7, FileKind::File) };
        first.answer(&header, Answer::Done(Reply::Written(written))).await;
    }
    let silent = Instant::now();
    answer_ping(&mut first).await;
    answer_ping(&mut first).await;
    assert_eq!(write(data).await, Ok(()), "{:?}", silent.elapsed());
    tokio::time::sleep_until(silent + Duration::from_secs(27)).await;
    assert_eq!(write(data).await, Err(Error::Fs(FsError::Io)));
    assert_eq!(write(other).await, Ok(()), "he holds nothing there");
    // No other session may have the lock yet: this one was silent, and is not lost.
    answer_ping(&mut second).await;
    tokio::task::yield_now().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(write(data).await, Ok(()));

    // Another session may have the lock, once this one is lost.
    drop(second);
    servers[1].welcome(welcome_of(1)).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(write(data).await, Err(Error::SessionLost));
    assert_eq!(write(other).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn space_is_that_of_all_servers() {
    let World { client, mut servers, mut first } = connect().await;
    let task = go(&client, async move |client| FileSystem::statfs(&client).await);
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    for peer in [&mut first, &mut second] {
        let (header, request) = peer.next().await;
        assert_eq!(request, Request::Statfs);
        let statfs = Statfs { bytes: 10, bytes_free: 5, files: 2, files_free: 3 };
        peer.answer(&header, Answer::Done(Reply::Statfs(statfs))).await;
    }
    let all = Statfs { bytes: 20, bytes_free: 10, files: 4, files_free: 6 };
    assert_eq!(task.await.unwrap().unwrap(), all);
}

#[tokio::test(start_paused = true)]
async fn attributes_that_are_elsewhere_are_asked_for_there() {
    let World { client, mut servers, mut first } = connect().await;
    let found = dir_on(1);
    let task =
        go(&client, async move |client| client.lookup(&Cred::ROOT, &dir_on(0), &name("d")).await);
    let partly = Entry {
        attr: base::Attr { ino: found.ino, ..attr(1, FileKind::Directory) },
        dir: Some(found),
        target: None,
        whole: false,
    };
    let partly = Answer::Done(Reply::Entry(partly));
    let (header, _) = first.next().await;
    first.answer(&header, partly.clone()).await;
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    let (header, request) = second.next().await;
    assert!(matches!(request, Request::Getattr(_)), "{request:?}");
    // The directory was removed just then: the name is looked up again.
    second.answer(&header, Answer::Retry(Retry::StaleDir)).await;
    let (header, request) = first.next().await;
    assert!(matches!(request, Request::Lookup(_)), "{request:?}");
    first.answer(&header, partly).await;
    let (header, _) = second.next().await;
    let whole = base::Attr { ino: found.ino, nlink: 77, ..attr(1, FileKind::Directory) };
    second.answer(&header, Answer::Done(Reply::Attr(whole))).await;
    assert_eq!(task.await.unwrap().unwrap().attr.nlink, 77);
}

#[tokio::test(start_paused = true)]
async fn what_is_cached_outlives_the_restart_of_a_server() {
    let walking = |config| Config { resolution: Resolution::Sequential, ..config };
    let World { client, mut servers, mut first } = connect_with(walking).await;
    let below = dir_on(0);
    let look = |client: &Client| go(client, async move |client| client.stat("/a/b").await);
    let task = look(&client);
    let (header, request) = first.next().await;
    let Request::Walk(_) = request else { panic!("{request:?}") };
    let a = Entry {
        attr: base::Attr { ino: below.ino, ..attr(1, FileKind::Directory) },
        dir: Some(below),
        target: None,
        whole: true,
    };
    let walked = wire::Walked { entries: vec![a], error: Some(FsError::NotFound) };
    first.answer(&header, Answer::Done(Reply::Walked(walked))).await;
    assert_eq!(task.await.unwrap(), Err(Error::Fs(FsError::NotFound)));
    drop(first);
    let (mut first, _) = servers[0].welcome(Welcome { opened: false, ..welcome_of(9) }).await;
    let (header, request) = first.next().await;
    assert!(matches!(request, Request::Claim(_)), "{request:?}");
    first.answer(&header, Answer::Done(Reply::Nothing)).await;
    look(&client);
    let (header, request) = first.next().await;
    let Request::Lookup(lookup) = request else { panic!("{request:?}") };
    assert_eq!((lookup.dir, header.stand.version), (below, 1));
}

#[tokio::test(start_paused = true)]
async fn with_a_lease_paths_are_believed_without_validation_until_it_ends() {
    let lease = Some(Duration::from_secs(1));
    let clock = Arc::new(Seconds::default());
    let its = clock.clone();
    let resolution = Resolution::Sequential;
    let change = |config| Config { cache_lease: lease, resolution, clock: its, ..config };
    let World { client, mut first, .. } = connect_with(change).await;
    let below = dir_on(0);
    let look = |client: &Client| go(client, async move |client| client.stat("/a/b").await);
    let task = look(&client);
    let (header, _) = first.next().await;
    let walked =
        wire::Walked { entries: vec![found(&below, true)], error: Some(FsError::NotFound) };
    first.answer_at(&header, 5, Answer::Done(Reply::Walked(walked))).await;
    assert!(task.await.unwrap().is_err());
    look(&client);
    let (header, request) = first.next().await;
    assert!(matches!(request, Request::Lookup(_)), "{request:?}");
    assert_eq!(header.stand, Stand::NONE);
    // When the lease has ended the root and the path are asked for again.
    clock.set(2);
    look(&client);
    let (header, request) = first.next().await;
    assert!(matches!(request, Request::Getattr(_)), "{request:?}");
    let root = base::Attr { ino: Ino(1), ..attr(1, FileKind::Directory) };
    first.answer_at(&header, 5, Answer::Done(Reply::Attr(root))).await;
    let (_, request) = first.next().await;
    assert!(matches!(request, Request::Walk(_)), "{request:?}");
}
