//! Paths that are not cached, over the servers of a cluster, which follow a script: the fast path,
//! and guesses.

use std::time::Duration;

use base::{FileKind, FsError, Ino, NameVersion};
use client::{Client, Config, Resolution};
use wire::{
    Answer, CacheEvents, DirRef, Entry, Guess, Guessed, NodeRef, Reply, Request, Retry, Walked,
    Welcome, way_mark,
};

use crate::{
    cluster::{
        ONE, SHARDS, TWO, World, attr_of, connect, connect_with, dir_on, go, mkdir, welcome_of,
    },
    script::{Peer, attr, config_of, dir, name},
};

/// The directory `text` in `parent` as it is predicted.
fn born_in(parent: &DirRef, text: &str) -> DirRef {
    let id = welcome_of(0).fs.hash_key.dir_id(parent.id, &name(text), NameVersion(0));
    DirRef { id, home: id, ino: Ino(1000 + u64::try_from(id.0 % 1000).unwrap()), ticket: 0 }
}

pub(super) fn found(dir: &DirRef, whole: bool) -> Entry {
    let attr = base::Attr { ino: dir.ino, ..attr(1, FileKind::Directory) };
    Entry { attr, dir: Some(*dir), target: None, whole }
}

/// The directories of a path as servers have them, and what is in each.
#[derive(Clone, Default)]
struct Tree(Vec<(DirRef, Vec<(&'static str, Entry)>)>);

impl Tree {
    /// The answer to a guess from a server that has the whole tree.
    fn guessed(&self, guess: &Guess) -> Guessed {
        let Some((dir, entries)) = self.0.iter().find(|(dir, _)| dir.id == guess.dir) else {
            return Guessed { dir: None, entry: None, error: None, layout: None };
        };
        let Some(wanted) = &guess.name else {
            return Guessed {
                dir: Some(dir.ino),
                entry: Some(found(dir, true)),
                error: None,
                layout: None,
            };
        };
        let entry = entries.iter().find(|(text, _)| name(text) == *wanted);
        let entry = entry.map(|(_, entry)| entry.clone());
        let error = entry.is_none().then_some(FsError::NotFound);
        Guessed { dir: Some(dir.ino), entry, error, layout: None }
    }
}

/// Answers one request of guesses. Returns the number of its guesses.
async fn answer_guesses(peer: &mut Peer, tree: &Tree, version: u64) -> usize {
    let (header, request) = peer.next().await;
    let Request::Speculate(speculate) = request else { panic!("{request:?}") };
    let answers: Vec<Guessed> = speculate.guesses.iter().map(|guess| tree.guessed(guess)).collect();
    let count = answers.len();
    peer.answer_at(&header, version, Answer::Done(Reply::Guessed(answers))).await;
    count
}

/// The tree with `/a/b/c/d`, and the path's end.
fn deep_tree() -> (Tree, DirRef) {
    let mut tree = Tree::default();
    let mut at = dir(1);
    for text in ["a", "b", "c", "d"] {
        let below = born_in(&at, text);
        tree.0.push((at, vec![(text, found(&below, false))]));
        at = below;
    }
    tree.0.push((at, Vec::new()));
    (tree, at)
}

#[tokio::test(start_paused = true)]
async fn a_cold_path_over_all_servers_is_one_message_to_each() {
    let World { client, mut servers, mut first } = connect().await;
    let (tree, end) = deep_tree();
    let task = go(&client, async move |client| client.stat("/a/b/c/d").await);
    let mut guesses = answer_guesses(&mut first, &tree, 1).await;
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    guesses += answer_guesses(&mut second, &tree, 1).await;
    assert_eq!(guesses, 5, "one for each name, and one for the end itself");
    assert_eq!(task.await.unwrap().unwrap().ino, end.ino);
    assert_eq!(client.requests_by_server(), [1, 1]);
    let stats = client.stats();
    assert_eq!((stats.resolutions, stats.speculations, stats.mispredictions), (1, 1, 0));

    // Everything is cached now, so only the server of the directory's group is asked.
    let task = go(&client, async move |client| client.stat("/a/b/c/d").await);
    let peer = if shard_is_first(&end) { &mut first } else { &mut second };
    let (header, request) = peer.next().await;
    let Request::Getattr(asked) = request else { panic!("{request:?}") };
    assert_eq!((asked.node, header.stand.version), (NodeRef::Dir(end), 1));
    peer.answer(&header, attr_of(end.ino)).await;
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_whole_path_is_asked_of_the_server_of_its_last_directory_and_guessed_if_that_says_nothing()
 {
    let change = |config| Config { resolution: Resolution::Auto, access_cache_bytes: 0, ..config };
    let World { client, mut servers, mut first } = connect_with(change).await;
    let (tree, end) = deep_tree();
    let last = tree.0[3].0;
    let look = || go(&client, async move |client| client.stat("/a/b/c/d").await);
    let task = look();
    let mut second = match shard_is_first(&last) {
        true => None,
        false => Some(servers[1].welcome(welcome_of(1)).await.0),
    };
    let (header, request) = second.as_mut().unwrap_or(&mut first).next().await;
    let Request::WalkTo(asked) = request else { panic!("{request:?}") };
    assert_eq!(asked.names, ["a", "b", "c"].map(name));
    assert_eq!((asked.end.dir, asked.end.name), (last.id, Some(name("d"))));
    let nothing = Walked { entries: Vec::new(), error: None };
    let peer = second.as_mut().unwrap_or(&mut first);
    peer.answer(&header, Answer::Done(Reply::Walked(nothing))).await;
    let mut guesses = answer_guesses(&mut first, &tree, 1).await;
    let mut second = match second {
        Some(second) => second,
        None => servers[1].welcome(welcome_of(1)).await.0,
    };
    guesses += answer_guesses(&mut second, &tree, 1).await;
    assert_eq!((task.await.unwrap().unwrap().ino, guesses), (end.ino, 5));
    // For a second the directory is not looked for in this way.
    let task = look();
    answer_guesses(&mut first, &tree, 1).await;
    answer_guesses(&mut second, &tree, 1).await;
    task.await.unwrap().unwrap();
    assert_eq!((client.stats().fast_paths, client.stats().slow_paths), (0, 1));
    tokio::time::advance(Duration::from_secs(1)).await;
    let task = look();
    let peer = if shard_is_first(&last) { &mut first } else { &mut second };
    let (header, request) = peer.next().await;
    assert!(matches!(request, Request::WalkTo(_)), "{request:?}");
    let way = ["a", "b", "c", "d"].iter().zip(&tree.0);
    let entries = way.map(|(text, (_, entries))| {
        let (found, entry) = &entries[0];
        assert_eq!(found, text);
        entry.clone()
    });
    let walked = Walked { entries: entries.collect(), error: None };
    peer.answer(&header, Answer::Done(Reply::Walked(walked))).await;
    answer_end(&mut first, &mut second, &end).await;
    assert_eq!(task.await.unwrap().unwrap().ino, end.ino);
    assert_eq!((client.stats().fast_paths, client.stats().slow_paths), (1, 1));
}

/// Answers the question for the attributes of the directory at the end of a path.
async fn answer_end(first: &mut Peer, second: &mut Peer, end: &DirRef) {
    let peer = if shard_is_first(end) { first } else { second };
    let (header, request) = peer.next().await;
    assert!(matches!(request, Request::Getattr(_)), "{request:?}");
    peer.answer(&header, attr_of(end.ino)).await;
}

fn shard_is_first(dir: &DirRef) -> bool {
    base::placement::shard_of(dir.home, 0, SHARDS).0.is_multiple_of(2)
}

#[tokio::test(start_paused = true)]
async fn from_a_directory_that_is_not_as_predicted_on_it_is_guessed_anew() {
    let change = |config| Config { access_cache_bytes: 0, ..config };
    let World { client, mut servers, mut first } = connect_with(change).await;
    mkdir(&client, dir_on(1), "x");
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    second.next().await;
    let (mut tree, end) = deep_tree();
    // The directory at `b` was born elsewhere.
    let moved = DirRef { id: dir_on(0).id, ..dir_on(0) };
    tree.0[1].1[0].1 = found(&moved, false);
    let below = born_in(&moved, "c");
    tree.0[2] = (moved, vec![("c", found(&below, false))]);
    let last = born_in(&below, "d");
    tree.0[3] = (below, vec![("d", found(&last, false))]);
    tree.0[4] = (last, Vec::new());
    assert_ne!(last.id, end.id);
    for rounds in [2, 3] {
        let mut task = go(&client, async move |client| client.stat("/a/b/c/d").await);
        let attr = loop {
            tokio::select! {
                ended = &mut task => break ended.unwrap().unwrap(),
                _ = answer_guesses(&mut first, &tree, 1) => {}
                _ = answer_guesses(&mut second, &tree, 1) => {}
            }
        };
        assert_eq!(attr.ino, last.ino);
        // The second time the client knows the move, though nothing is cached.
        assert_eq!((client.stats().speculations, client.stats().mispredictions), (rounds, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn servers_that_are_not_of_one_version_are_asked_again_on_the_lowest() {
    let World { client, mut servers, mut first } = connect().await;
    mkdir(&client, dir_on(1), "x");
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    second.next().await;
    let (tree, end) = deep_tree();
    let mut way: Vec<_> = tree.0.iter().map(|(dir, _)| way_mark(dir.id)).collect();
    way.sort_unstable();
    let task = go(&client, async move |client| client.stat("/a/b/c/d").await);
    answer_guesses(&mut first, &tree, 7).await;
    answer_guesses(&mut second, &tree, 5).await;
    // Events elsewhere that came meanwhile hinder no request now.
    for (peer, version) in [(&mut first, 9), (&mut second, 8)] {
        let (header, request) = peer.next().await;
        let Request::Speculate(speculate) = request else { panic!("{request:?}") };
        assert_eq!(header.stand.version, 5);
        let mut marks = header.stand.way.to_vec();
        marks.sort_unstable();
        marks.dedup();
        assert_eq!(marks, way, "all that is predicted is on the way");
        let answers = speculate.guesses.iter().map(|guess| tree.guessed(guess)).collect();
        peer.answer_at(&header, version, Answer::Done(Reply::Guessed(answers))).await;
    }
    assert_eq!(task.await.unwrap().unwrap().ino, end.ino);
    assert_eq!(client.stats().speculations, 2);

    // The result is as old as the lowest version of the answers.
    let task = go(&client, async move |client| client.stat("/a/b/c/d").await);
    let peer = if shard_is_first(&end) { &mut first } else { &mut second };
    let (header, _) = peer.next().await;
    assert!(header.stand.version <= 8 && header.stand.version > 0, "{:?}", header.stand);
    peer.answer(&header, attr_of(end.ino)).await;
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_path_that_is_moved_between_two_rounds_is_resolved_anew() {
    let World { client, mut servers, mut first } = connect().await;
    mkdir(&client, dir_on(1), "x");
    let (mut second, _) = servers[1].welcome(welcome_of(1)).await;
    second.next().await;
    let (tree, end) = deep_tree();
    let task = go(&client, async move |client| client.stat("/a/b/c/d").await);
    answer_guesses(&mut first, &tree, 7).await;
    answer_guesses(&mut second, &tree, 5).await;
    let (header, _) = first.next().await;
    let events = CacheEvents { version: 8, reset: false, dirs: vec![tree.0[1].0.id] };
    first.answer_at(&header, 8, Answer::Retry(Retry::StaleCache(events))).await;
    answer_guesses(&mut second, &tree, 8).await;
    answer_guesses(&mut first, &tree, 8).await;
    answer_guesses(&mut second, &tree, 8).await;
    assert_eq!(task.await.unwrap().unwrap().ino, end.ino);
}

#[tokio::test(start_paused = true)]
async fn who_must_prove_walks_or_wants_to_walk_does_not_guess() {
    let (config, mut servers) = config_of(&[ONE, TWO]);
    let proving = Welcome { trusted: false, ..welcome_of(0) };
    let (client, (first, _)) = tokio::join!(Client::connect(config), servers[0].welcome(proving));
    let walking = |config| Config { resolution: Resolution::Sequential, ..config };
    let other = connect_with(walking).await;
    for (client, mut first) in [(client.unwrap(), first), (other.client, other.first)] {
        go(&client, async move |client| client.stat("/a/b").await);
        let (_, request) = first.next().await;
        assert!(matches!(request, Request::Walk(_)), "{request:?}");
    }
}
