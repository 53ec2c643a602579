//! Tests of requests, word for word, to a scripted server.

use std::time::Duration;

use base::{
    ClusterMap, Cred, DirId, EntryName, Epoch, FileKind, FsError, Ino, Seq, SessionId, SetAttr,
    limits::REQUESTS_IN_FLIGHT_MAX,
};
use bytes::Bytes;
use client::{Client, Error, File, FileSystem};
use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::{
    io::AsyncReadExt as _,
    task::JoinHandle,
    time::{Instant, sleep},
};
use wire::{
    Answer, CacheEvents, Created, Entry, NodeRef, OpenState, Opened, Reply, Request, Resume, Retry,
    Stand, Written, frame::take_frame,
};

use crate::script::{LEASE_MS, Peer, Server, attr, config, dir, entry_of_dir, name, welcome};

async fn connect() -> (Client, Server, Peer) {
    let (config, mut server) = config();
    let (client, (peer, hello)) =
        tokio::join!(Client::connect(config), server.welcome(welcome(5, 1)));
    assert_eq!(hello.resume, None);
    (client.unwrap(), server, peer)
}

fn mkdir(client: &Client, text: &str) -> JoinHandle<client::Result<Entry>> {
    let (client, name) = (client.clone(), name(text));
    tokio::spawn(
        async move { FileSystem::mkdir(&client, &Cred::ROOT, &dir(1), &name, 0o755).await },
    )
}

#[tokio::test(start_paused = true)]
async fn unanswered_changes_are_sent_again_in_order_with_their_numbers() {
    let (client, mut server, mut peer) = connect().await;
    let tasks: Vec<_> = (0..5).map(|i| mkdir(&client, &i.to_string())).collect();
    let mut sent = Vec::new();
    for _ in 0..5 {
        sent.push(peer.next().await);
    }
    let seqs: Vec<Seq> = sent.iter().map(|(header, _)| header.seq).collect();
    assert_eq!(seqs, (1..=5).map(Seq).collect::<Vec<_>>());
    for index in [3, 0] {
        peer.answer(&sent[index].0, entry_of_dir(300)).await;
    }
    sleep(Duration::from_millis(1)).await;
    drop(peer);

    let (mut peer, hello) = server.welcome(welcome(5, 1)).await;
    // The client reports the last answer, not the highest answered number.
    let resume =
        Resume { session: SessionId(5), secret: 99, answered: Seq(1), root: dir(1), proof: 7 };
    assert_eq!(hello.resume, Some(resume));
    for index in [1, 2, 4] {
        let (header, request) = peer.next().await;
        assert_eq!((header.seq, &request), (sent[index].0.seq, &sent[index].1));
        assert_eq!(header.unanswered, Seq(2));
        peer.answer(&header, entry_of_dir(300)).await;
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let stats = client.stats();
    assert_eq!((stats.requests, stats.retries, stats.reconnects), (5, 3, 1));
}

#[tokio::test(start_paused = true)]
async fn no_more_changes_are_under_way_than_the_server_keeps_answers() {
    let (client, _server, mut peer) = connect().await;
    let max = usize::try_from(REQUESTS_IN_FLIGHT_MAX).unwrap();
    let names: Vec<EntryName> = (0..max + 10).map(|i| name(&i.to_string())).collect();
    let (cred, root) = (Cred::ROOT, dir(1));
    let mkdir = |name| FileSystem::mkdir(&client, &cred, &root, name, 0o755);
    let all = names.iter().map(mkdir);
    let mut all: FuturesUnordered<_> = all.collect();
    let script = async {
        let mut sent = Vec::new();
        while let Some((header, _)) = peer.next_soon().await {
            sent.push(header);
        }
        assert_eq!(sent.len(), max);
        // The lowest one holds the window.
        peer.answer(&sent[1], entry_of_dir(300)).await;
        assert!(peer.next_soon().await.is_none());
        peer.answer(&sent[0], entry_of_dir(300)).await;
        for seq in [max + 1, max + 2] {
            let (header, _) = peer.next_soon().await.unwrap();
            assert_eq!((header.seq.0, header.unanswered), (seq as u64, Seq(3)));
        }
        assert!(peer.next_soon().await.is_none());
    };
    let answered = async {
        let mut answered = 0;
        while all.next().await.is_some() {
            answered += 1;
            if answered == 2 {
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = script => {}
        () = answered => panic!("not all were answered"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_passes_is_waited_out_with_the_same_number() {
    let (client, mut server, mut peer) = connect().await;
    let task = mkdir(&client, "a");
    let (header, request) = peer.next().await;
    peer.answer(&header, Answer::Retry(Retry::Busy)).await;
    let (again, same) = peer.next().await;
    assert_eq!((again.seq, &same), (header.seq, &request));

    let map = ClusterMap { epoch: Epoch(9), ..ClusterMap::single("script:1", 4) };
    peer.answer(&again, Answer::Retry(Retry::Moved(map))).await;
    let (again, _) = peer.next().await;
    assert_eq!((again.seq, again.epoch), (header.seq, Epoch(9)));

    peer.answer(&again, Answer::Halted).await;
    let (mut peer, hello) = server.welcome(welcome(5, 1)).await;
    assert!(hello.resume.is_some());
    let (again, _) = peer.next().await;
    assert_eq!(again.seq, header.seq);

    peer.answer(&again, Answer::Retry(Retry::NoSession)).await;
    let (mut peer, hello) = server.welcome(welcome(5, 1)).await;
    assert!(hello.resume.is_some());
    let (again, _) = peer.next().await;
    assert_eq!(again.seq, header.seq);
    peer.answer(&again, Answer::Failed(FsError::Exists)).await;
    assert_eq!(task.await.unwrap().map(|_| ()), Err(Error::Fs(FsError::Exists)));
}

#[tokio::test(start_paused = true)]
async fn open_files_are_claimed_before_anything_else_is_sent() {
    let (client, mut server, mut peer) = connect().await;
    let (file, number) = create(&client, &mut peer).await;
    let task = mkdir(&client, "a");
    let (mkdir_header, _) = peer.next().await;
    drop(peer);

    let (mut peer, _) = server.welcome(welcome(5, 2)).await;
    let (header, request) = peer.next().await;
    let Request::Claim(claim) = request else { panic!("{request:?}") };
    assert!(claim.last && claim.files.len() == 1);
    let claimed = &claim.files[0];
    assert_eq!((claimed.file.ino, claimed.proof), (Ino(7), 1234));
    assert_eq!(Some(claimed.number), number);
    assert!(peer.next_soon().await.is_none());
    peer.answer(&header, Answer::Done(Reply::Nothing)).await;
    let (header, _) = peer.next().await;
    assert_eq!(header.seq, mkdir_header.seq);
    peer.answer(&header, entry_of_dir(300)).await;
    task.await.unwrap().unwrap();
    drop(file);
}

/// Opens a new file. Returns the number of the open, too.
async fn create(client: &Client, peer: &mut Peer) -> (File, Option<u64>) {
    let opening = {
        let client = client.clone();
        tokio::spawn(async move { client.create("/f", 0o644).await })
    };
    let (header, Request::Create(create)) = peer.next().await else { panic!("a create") };
    let opened = Opened {
        attr: attr(7, FileKind::File),
        contents: OpenState::Inline(Bytes::new()),
        proof: 1234,
    };
    let entry = Entry { attr: attr(7, FileKind::File), dir: None, target: None, whole: true };
    let created = Created { entry, existed: false, opened: Some(opened) };
    peer.answer(&header, Answer::Done(Reply::Created(created))).await;
    (opening.await.unwrap().unwrap(), create.open)
}

#[tokio::test(start_paused = true)]
async fn a_change_of_attributes_that_went_with_a_write_is_not_made_again_in_another_session() {
    for is_lost in [false, true] {
        let (client, mut server, mut peer) = connect().await;
        let (file, _) = create(&client, &mut peer).await;
        file.write_at(0, b"new").await.unwrap();
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let (asking, node) = (client.clone(), file.node());
        let changed = tokio::spawn(async move { asking.setattr(&Cred::ROOT, &node, set).await });
        let (sent, Request::Write(write)) = peer.next().await else { panic!("a write") };
        assert_eq!(write.set, Some(set));
        drop(peer);
        if is_lost {
            // Whether both were done before the session ended is not known.
            let (mut peer, _) = server.welcome(welcome(6, 1)).await;
            assert_eq!(changed.await.unwrap(), Err(Error::SessionLost));
            assert_eq!(file.sync_all().await, Err(Error::SessionLost));
            let next = peer.next_soon().await;
            let again = next
                .filter(|(_, request)| matches!(request, Request::Write(_) | Request::Setattr(_)));
            assert_eq!(again, None, "others may have changed the file since");
        } else {
            let (mut peer, _) = server.welcome(welcome(5, 1)).await;
            let (header, again) = peer.next().await;
            assert_eq!((header.seq, &again), (sent.seq, &Request::Write(write)));
            let attr = attr(7, FileKind::File);
            peer.answer(&header, Answer::Done(Reply::Written(Written { attr }))).await;
            assert_eq!(changed.await.unwrap(), Ok(attr));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_session_fails_what_may_have_happened_and_asks_the_rest() {
    let (client, mut server, mut peer) = connect().await;
    let sent = mkdir(&client, "sent");
    peer.next().await;
    drop(peer);
    sleep(Duration::from_millis(1)).await;
    let unsent = mkdir(&client, "unsent");
    let stat = {
        let client = client.clone();
        tokio::spawn(async move { client.getattr(&Cred::ROOT, &NodeRef::Dir(dir(1))).await })
    };
    let (mut peer, _) = server.welcome(welcome(6, 1)).await;
    assert_eq!(sent.await.unwrap().map(|_| ()), Err(Error::SessionLost));
    for _ in 0..2 {
        let (header, request) = peer.next().await;
        match request {
            Request::Mkdir(mkdir) => {
                assert_eq!((header.seq, mkdir.name), (Seq(1), name("unsent")));
                peer.answer(&header, entry_of_dir(300)).await;
            }
            Request::Getattr(_) => {
                let root = attr(1, FileKind::Directory);
                peer.answer(&header, Answer::Done(Reply::Attr(root))).await;
            }
            other => panic!("{other:?}"),
        }
    }
    unsent.await.unwrap().unwrap();
    stat.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_outdated_path_is_resolved_again_and_a_current_one_is_not() {
    let (client, _server, mut peer) = connect().await;
    let make = |path: &'static str| {
        let client = client.clone();
        tokio::spawn(async move { client.mkdir(path, 0o755).await })
    };
    let task = make("/a/b");
    let (header, request) = peer.next().await;
    assert!(matches!(request, Request::Lookup(_)), "{request:?}");
    assert_eq!(header.stand, Stand::NONE, "nothing is cached yet");
    peer.answer_at(&header, 10, entry_of_dir(300)).await;
    let (header, _) = peer.next().await;
    assert_eq!(header.stand.version, 10);
    peer.answer_at(&header, 10, entry_of_dir(301)).await;
    task.await.unwrap().unwrap();

    let task = make("/a/c");
    let (header, Request::Mkdir(mkdir)) = peer.next().await else { panic!("a was cached") };
    // The root, which permits the walk, was seen when the session was opened.
    assert_eq!((header.stand.version, mkdir.dir), (1, dir(300)));
    let events = CacheEvents { version: 12, reset: false, dirs: vec![DirId(300)] };
    peer.answer_at(&header, 12, Answer::Retry(Retry::StaleCache(events))).await;
    let (header, request) = peer.next().await;
    assert!(matches!(request, Request::Lookup(_)), "{request:?}");
    peer.answer_at(&header, 12, entry_of_dir(400)).await;
    let (header, Request::Mkdir(mkdir)) = peer.next().await else { panic!("a mkdir") };
    assert_eq!((header.stand.version, mkdir.dir), (12, dir(400)));
    // The outdated one had a number, and has its answer.
    assert_eq!((header.seq, header.unanswered), (Seq(3), Seq(3)));
    peer.answer_at(&header, 12, Answer::Retry(Retry::StaleDir)).await;
    let (header, _) = peer.next().await;
    peer.answer_at(&header, 12, Answer::Failed(FsError::NotFound)).await;
    assert_eq!(task.await.unwrap(), Err(Error::Fs(FsError::NotFound)));
}

#[tokio::test(start_paused = true)]
async fn a_cold_path_of_any_depth_takes_one_request() {
    let (client, _server, mut peer) = connect().await;
    let task = {
        let client = client.clone();
        tokio::spawn(async move { client.stat("/a/b/c/d/e").await })
    };
    let (header, request) = peer.next().await;
    let Request::Walk(walk) = request else { panic!("{request:?}") };
    assert_eq!(walk.names.len(), 5);
    let entries = (300..305).map(|id| match entry_of_dir(id) {
        Answer::Done(Reply::Entry(entry)) => entry,
        other => panic!("{other:?}"),
    });
    let walked = wire::Walked { entries: entries.collect(), error: None };
    peer.answer(&header, Answer::Done(Reply::Walked(walked))).await;
    assert_eq!(task.await.unwrap().unwrap().ino, Ino(304));
    assert_eq!(client.stats().requests, 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_does_not_hold_the_window_nor_confuse_the_next() {
    let (client, _server, mut peer) = connect().await;
    // A call that is dropped before there is a connection never happened.
    sleep(Duration::from_millis(1)).await;
    {
        let (cred, node) = (Cred::ROOT, NodeRef::Dir(dir(1)));
        let mut stat = Box::pin(client.getattr(&cred, &node));
        assert!(stat.as_mut().now_or_never().is_none());
        let name = name("dropped");
        let root = dir(1);
        let mut change = Box::pin(FileSystem::mkdir(&client, &cred, &root, &name, 0o755));
        assert!(change.as_mut().now_or_never().is_none());
    }
    let (dropped, _) = peer.next().await;
    let (change, request) = peer.next().await;
    assert!(matches!(request, Request::Mkdir(_)), "{request:?}");
    let task = mkdir(&client, "next");
    let (next, _) = peer.next().await;
    assert_ne!(next.call, dropped.call);
    peer.answer(&dropped, Answer::Failed(FsError::Io)).await;
    // The call's caller has gone; the client still waits for its answer.
    peer.answer(&change, Answer::Retry(Retry::Busy)).await;
    let (again, _) = peer.next().await;
    assert_eq!((again.seq, again.unanswered), (Seq(1), Seq(1)));
    peer.answer(&again, entry_of_dir(300)).await;
    peer.answer(&next, entry_of_dir(301)).await;
    task.await.unwrap().unwrap();
    mkdir(&client, "last");
    assert_eq!(peer.next().await.0.unanswered, Seq(3));
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_given_up_after_a_lease_and_an_idle_one_is_pinged() {
    let (client, mut server, mut peer) = connect().await;
    let start = Instant::now();
    let (header, request) = peer.next().await;
    assert_eq!(request, Request::Ping);
    assert_eq!(start.elapsed(), Duration::from_millis(LEASE_MS / 3));
    peer.answer(&header, Answer::Done(Reply::Nothing)).await;
    let task = mkdir(&client, "a");
    let ended = peer.ended();
    ended.await;
    assert!(start.elapsed() <= Duration::from_millis(LEASE_MS * 5 / 3));
    let (mut peer, _) = server.welcome(welcome(5, 1)).await;
    let (header, _) = peer.next().await;
    peer.answer(&header, entry_of_dir(300)).await;
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_leads_nowhere_costs_a_third_of_a_lease() {
    let short = |incarnation| wire::Welcome { lease_ms: 3000, ..welcome(5, incarnation) };
    let (config, mut server) = config();
    let (client, (peer, _)) = tokio::join!(Client::connect(config), server.welcome(short(1)));
    let client = client.unwrap();
    let task = mkdir(&client, "a");
    drop(peer);
    let start = Instant::now();
    // The machine takes the connection, and is gone; then it is back for a moment only.
    let (mut unheard, again) = (server.accept().await, server.accept());
    assert!(matches!(unheard.next().await.1, Request::Hello(_)));
    drop(again.await);
    let (mut peer, _) = server.welcome(short(2)).await;
    assert!(matches!(peer.next().await.1, Request::Claim(_)));
    assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
    // Nor does one that is lost while files are claimed take longer.
    let (mut peer, _) = server.welcome(short(1)).await;
    assert!(start.elapsed() < Duration::from_millis(3000), "{:?}", start.elapsed());
    let (header, _) = peer.next().await;
    peer.answer(&header, entry_of_dir(300)).await;
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_in_the_servers_words() {
    let refused = |reason: &str| Answer::Refused(reason.to_owned());
    let (config, mut server) = config();
    let script = async {
        let mut peer = server.accept().await;
        let (header, _) = peer.next().await;
        peer.answer(&header, refused("not you")).await;
    };
    let (client, ()) = tokio::join!(Client::connect(config), script);
    assert_eq!(client.map(|_| ()), Err(Error::Refused("not you".into())));

    let (client, mut server, mut peer) = connect().await;
    let task = mkdir(&client, "a");
    peer.next().await;
    drop(peer);
    let mut peer = server.accept().await;
    let (header, _) = peer.next().await;
    peer.answer(&header, refused("token expired")).await;
    let error = Err(Error::TokenExpired);
    assert_eq!(task.await.unwrap().map(|_| ()), error);
    assert_eq!(client.stat("/").await.map(|_| ()), error);
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_at_the_same_time_is_written_at_once() {
    let (client, _server, mut peer) = connect().await;
    let tasks: Vec<_> = (0..100).map(|i| mkdir(&client, &i.to_string())).collect();
    peer.buffer.reserve(1 << 20);
    peer.stream.read_buf(&mut peer.buffer).await.unwrap();
    let mut frames = 0;
    while take_frame(&mut peer.buffer).unwrap().is_some() {
        frames += 1;
    }
    assert_eq!(frames, 100);
    drop(tasks);
}

#[test]
fn a_client_is_used_from_many_threads() {
    fn shared<T: Send + Sync + Clone + 'static>() {}
    fn sent<T: Send>(_: T) {}
    shared::<Client>();
    let futures = |client: Client| {
        sent(async move {
            let file = client.create("/f", 0o644).await?;
            file.write_at(0, b"x").await?;
            file.sync_all().await?;
            client.rename("/f", "/g").await?;
            client.read_dir("/").await?.all().await?;
            client.stat("/g").await
        });
    };
    let _ = futures;
}
