//! Watching a directory of one server: what is told, and to whom.

use std::{cell::RefCell, rc::Rc, time::Duration};

use base::{Cred, FsError};
use client::{Change, Client, Error, News, OpenOptions, Position, Watch, WatchOptions};
use wire::{Token, XattrMode};

use crate::world::{FEED_EVENTS_MAX, World};

/// A change and its path, in short.
type Told = (Change, String);

fn told(change: Change, path: &str) -> Told {
    (change, path.to_owned())
}

async fn watch(client: &Client, path: &str) -> Watch {
    client.watch(path, WatchOptions::default()).await.unwrap()
}

/// All that has happened since a position.
async fn since(client: &Client, path: &str, position: &Position) -> Vec<News> {
    let options =
        WatchOptions { since: Some(position.clone()), follow: false, ..WatchOptions::default() };
    let mut watch = client.watch(path, options).await.unwrap();
    let mut all = Vec::new();
    while let Some(news) = watch.next().await {
        all.push(news.unwrap());
    }
    all
}

fn changes(news: Vec<News>) -> Vec<Told> {
    let change = |news| match news {
        News::Change(change) => (change.change, change.path.to_str().unwrap().to_owned()),
        News::Gap { .. } => panic!("a gap"),
    };
    news.into_iter().map(change).collect()
}

async fn changes_since(client: &Client, path: &str, position: &Position) -> Vec<Told> {
    changes(since(client, path, position).await)
}

/// All that a watch tells from now on, as it tells it.
fn collected(mut watch: Watch) -> Rc<RefCell<Vec<News>>> {
    let all = Rc::new(RefCell::new(Vec::new()));
    let told = Rc::clone(&all);
    tokio::task::spawn_local(async move {
        while let Some(news) = watch.next().await {
            told.borrow_mut().push(news.unwrap());
        }
    });
    all
}

/// Lets the server and the clients do what they do by themselves.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_done_below_a_directory_is_told_in_order() {
    use Change::{Attributes, Created, Linked, MovedFrom, MovedTo, Removed, Written};
    World::run(async |world| {
        let (client, watcher) = (world.client().await, world.client().await);
        client.create_dir_all("/w/old", 0o755).await.unwrap();
        client.create_dir_all("/other", 0o755).await.unwrap();
        let watch = watch(&watcher, "/w").await;
        let begin = watch.position().clone();
        let all = collected(watch);

        client.mkdir("/w/a", 0o755).await.unwrap();
        client.write("/w/a/file", b"some bytes").await.unwrap();
        settle().await;
        client.symlink("file", "/w/a/sym").await.unwrap();
        client.chmod("/w/a/file", 0o600).await.unwrap();
        client.link("/w/a/file", "/w/second").await.unwrap();
        client.chmod("/w/second", 0o644).await.unwrap();
        client.rename("/w/a/sym", "/w/old/sym").await.unwrap();
        settle().await;
        client.rename("/w/a", "/w/b").await.unwrap();
        client.chmod("/w/b", 0o700).await.unwrap();
        client.write("/other/file", b"nobody watches").await.unwrap();
        client.rename("/other/file", "/w/in").await.unwrap();
        client.rename("/w/in", "/other/out").await.unwrap();
        client.unlink("/w/b/file").await.unwrap();
        client.rmdir("/w/b").await.unwrap();
        client.write("/w/new", b"instead").await.unwrap();
        client.rename("/w/new", "/w/second").await.unwrap();
        settle().await;

        let expected = [
            told(Created, "a"),
            told(Created, "a/file"),
            told(Written, "a/file"),
            told(Created, "a/sym"),
            told(Attributes, "a/file"),
            told(Linked, "second"),
            told(Attributes, "second"),
            told(MovedFrom, "a/sym"),
            told(MovedTo, "old/sym"),
            told(MovedFrom, "a"),
            told(MovedTo, "b"),
            told(Attributes, "b"),
            told(MovedTo, "in"),
            told(MovedFrom, "in"),
            told(Removed, "b/file"),
            told(Removed, "b"),
            told(Created, "new"),
            told(Removed, "second"),
            told(MovedFrom, "new"),
            told(MovedTo, "second"),
            // The client tells of a close when it has something else to tell.
            told(Written, "second"),
        ];
        assert_eq!(changes(all.take()), expected);

        // From a position on, the same is told once more, with the paths of now; of what is gone,
        // with those it had.
        let later = changes_since(&watcher, "/w", &begin).await;
        let now = |(change, path): &Told| (*change, path.replace("a/", "b/"));
        assert_eq!(later, expected.iter().map(now).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_tree_that_is_gone_is_told_with_its_paths() {
    World::run(async |world| {
        let client = world.client().await;
        client.create_dir_all("/w/a/b/c", 0o755).await.unwrap();
        client.write("/w/a/b/c/file", b"x").await.unwrap();
        settle().await;
        let position = watch(&client, "/w").await.position().clone();
        client.unlink("/w/a/b/c/file").await.unwrap();
        for dir in ["/w/a/b/c", "/w/a/b", "/w/a"] {
            client.rmdir(dir).await.unwrap();
        }
        // Another one in its place.
        client.create_dir_all("/w/a/b", 0o755).await.unwrap();
        let expected = [
            told(Change::Removed, "a/b/c/file"),
            told(Change::Removed, "a/b/c"),
            told(Change::Removed, "a/b"),
            told(Change::Removed, "a"),
            told(Change::Created, "a"),
            told(Change::Created, "a/b"),
        ];
        assert_eq!(changes_since(&client, "/w", &position).await, expected);
        // The directory that is watched may go as well, and with it the watch.
        let mut watch = watch(&client, "/w").await;
        for dir in ["/w/a/b", "/w/a", "/w"] {
            client.rmdir(dir).await.unwrap();
        }
        for path in ["a/b", "a", ""] {
            let news = watch.next().await.unwrap().unwrap();
            assert_eq!(news.is_end(), path.is_empty());
            assert_eq!(changes(vec![news]), [told(Change::Removed, path)]);
        }
        assert_eq!(watch.next().await, None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_after_a_restart_and_is_told_when_that_cannot_be_whole() {
    World::run(async |world| {
        let (client, watcher) = (world.client().await, world.client().await);
        client.mkdir("/w", 0o755).await.unwrap();
        let watch = watch(&watcher, "/w").await;
        let begin = watch.position().clone();
        let all = collected(watch);
        client.mkdir("/w/a", 0o755).await.unwrap();
        client.sync().await.unwrap();
        // The end of a process takes nothing back.
        world.kill();
        world.start();
        client.mkdir("/w/b", 0o755).await.unwrap();
        settle().await;
        let both = [told(Change::Created, "a"), told(Change::Created, "b")];
        assert_eq!(changes(all.take()), both);
        assert_eq!(changes_since(&watcher, "/w", &begin).await, both);
        client.sync().await.unwrap();

        // A power failure takes back what was told.
        client.mkdir("/w/c", 0o755).await.unwrap();
        let is_told = async || {
            for _ in 0..60_000 {
                if !all.borrow().is_empty() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            panic!("nothing is told");
        };
        is_told().await;
        assert_eq!(changes(all.take()), [told(Change::Created, "c")]);
        world.power_cut();
        world.start();
        is_told().await;
        assert_eq!(all.take(), [News::Gap { server: 0 }]);
        client.mkdir("/w/d", 0o755).await.unwrap();
        is_told().await;
        assert_eq!(changes(all.take()), [told(Change::Created, "d")]);
        // Changes that were not taken back are there for others.
        let all = changes_since(&watcher, "/w", &begin).await;
        assert_eq!(all, [&both[..], &[told(Change::Created, "d")]].concat());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_position_is_too_old_when_nobody_has_watched_for_longer_than_it_was_kept() {
    World::run(async |world| {
        let client = world.client().await;
        client.mkdir("/w", 0o755).await.unwrap();
        let begin = watch(&client, "/w").await.position().clone();
        client.mkdir("/w/a", 0o755).await.unwrap();
        world.clock.forward(Duration::from_secs(3000));
        settle().await;
        assert_eq!(changes_since(&client, "/w", &begin).await, [told(Change::Created, "a")]);
        world.clock.forward(Duration::from_secs(4000));
        settle().await;
        client.mkdir("/w/b", 0o755).await.unwrap();
        assert_eq!(since(&client, "/w", &begin).await, [News::Gap { server: 0 }]);
        // Also when the server was away meanwhile.
        let begin = watch(&client, "/w").await.position().clone();
        world.kill();
        world.clock.forward(Duration::from_secs(4000));
        world.start();
        assert_eq!(since(&client, "/w", &begin).await, [News::Gap { server: 0 }]);
        let elsewhere: Position = "w1.1.0".parse().unwrap();
        let options = WatchOptions { since: Some(elsewhere), ..WatchOptions::default() };
        let other = client.watch("/w", options).await;
        assert_eq!(other.err(), Some(Error::Fs(FsError::Invalid)));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_told_what_his_token_does_not_let_him_list() {
    World::run(async |world| {
        let client = world.client().await;
        client.create_dir_all("/w/open/below", 0o755).await.unwrap();
        client.create_dir_all("/w/private/below", 0o755).await.unwrap();
        client.create_dir_all("/elsewhere", 0o755).await.unwrap();
        client.chmod("/w/private", 0o700).await.unwrap();
        // One may go through it, but not list it.
        client.create_dir_all("/w/passage/below", 0o755).await.unwrap();
        client.chmod("/w/passage", 0o711).await.unwrap();
        let position = watch(&client, "/").await.position().clone();
        for dir in ["open", "private", "passage"] {
            client.mkdir(format!("/w/{dir}/made"), 0o755).await.unwrap();
            client.mkdir(format!("/w/{dir}/below/made"), 0o755).await.unwrap();
        }
        client.mkdir("/elsewhere/made", 0o755).await.unwrap();

        let user = Cred { uid: 1000, gid: 1000, groups: Vec::new() };
        let seen =
            |dirs: &[&str]| dirs.iter().map(|dir| told(Change::Created, dir)).collect::<Vec<_>>();
        // A name is told to those who may list its directory.
        let below = ["open/made", "open/below/made"];
        let bound = Token { uid: Some(1000), gids: vec![1000], ..Token::administrator() };
        for config in [world.config(), world.config_with(&bound)] {
            let them = Client::connect(client::Config { cred: user.clone(), ..config });
            let them = them.await.unwrap();
            assert_eq!(changes_since(&them, "/w", &position).await, seen(&below));
            let denied = them.watch("/w/private", WatchOptions::default()).await;
            assert_eq!(denied.err(), Some(Error::Fs(FsError::Denied)));
            let denied = them.watch("/w/passage", WatchOptions::default()).await;
            assert_eq!(denied.err(), Some(Error::Fs(FsError::Denied)));
        }
        let confined = Token { path: "/w".into(), ..Token::administrator() };
        let them = Client::connect(world.config_with(&confined)).await.unwrap();
        let all = [
            "open/made",
            "open/below/made",
            "private/made",
            "private/below/made",
            "passage/made",
            "passage/below/made",
        ];
        assert_eq!(changes_since(&them, "/", &position).await, seen(&all));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_written_is_told_when_it_is_closed_or_its_session_ends() {
    World::run(async |world| {
        let client = world.client().await;
        client.mkdir("/w", 0o755).await.unwrap();
        let all = collected(watch(&client, "/w").await);
        let writer = world.client().await;
        let file = writer.open_with("/w/one", OpenOptions::both().create(0o644)).await.unwrap();
        for at in 0..4 {
            file.write_at(at * 70_000, &[7; 70_000]).await.unwrap();
            file.sync_all().await.unwrap();
        }
        settle().await;
        assert_eq!(changes(all.take()), [told(Change::Created, "one")]);
        // The claim of the open file says where it is.
        world.kill();
        world.start();
        client.rename("/w/one", "/w/two").await.unwrap();
        file.close().await.unwrap();
        settle().await;
        let moved = [told(Change::MovedFrom, "one"), told(Change::MovedTo, "two")];
        let closed = [&moved[..], &[told(Change::Written, "two")]].concat();
        assert_eq!(changes(all.take()), closed);

        let file = writer.open_with("/w/two", OpenOptions::both()).await.unwrap();
        file.write_at(0, b"once more").await.unwrap();
        file.sync_all().await.unwrap();
        settle().await;
        assert_eq!(changes(all.take()), []);
        drop(file);
        writer.close().await.unwrap();
        settle().await;
        assert_eq!(changes(all.take()), [told(Change::Written, "two")]);
        // One that is removed before it is closed is told as removed, and no more.
        let writer = world.client().await;
        let file = writer.open_with("/w/gone", OpenOptions::both().create(0o644)).await.unwrap();
        file.write_at(0, b"once more").await.unwrap();
        file.sync_all().await.unwrap();
        client.unlink("/w/gone").await.unwrap();
        file.close().await.unwrap();
        settle().await;
        let gone = [told(Change::Created, "gone"), told(Change::Removed, "gone")];
        assert_eq!(changes(all.take()), gone);
        // A file that was only read was not written.
        client.read("/w/two").await.unwrap();
        settle().await;
        assert_eq!(changes(all.take()), []);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_goes_to_the_trash_is_told_as_removed() {
    World::run(async |world| {
        let client = world.client().await;
        client.set_xattr("/", "pando.trash_days", b"1", XattrMode::Set).await.unwrap();
        client.create_dir_all("/w/a/b", 0o755).await.unwrap();
        client.write("/w/a/b/file", b"x").await.unwrap();
        settle().await;
        let position = watch(&client, "/w").await.position().clone();
        client.unlink("/w/a/b/file").await.unwrap();
        client.rmdir("/w/a/b").await.unwrap();
        client.rmdir("/w/a").await.unwrap();
        let removed = |above: &str| {
            let all = ["a/b/file", "a/b", "a"].map(|path| format!("{above}{path}"));
            all.map(|path| told(Change::Removed, &path))
        };
        assert_eq!(changes_since(&client, "/w", &position).await, removed(""));
        assert_eq!(changes_since(&client, "/", &position).await, removed("w/"));
        let trash = changes_since(&client, "/.trash", &position).await;
        let arrived: Vec<_> = trash.iter().filter(|told| told.0 == Change::MovedTo).collect();
        let arrived = arrived.iter().filter(|told| told.1.contains('/')).count();
        assert_eq!(arrived, 3, "{trash:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_oldest_changes_are_forgotten_and_that_is_told() {
    World::run(async |world| {
        let client = world.client().await;
        client.mkdir("/w", 0o755).await.unwrap();
        let begin = watch(&client, "/w").await.position().clone();
        let all = collected(watch(&client, "/w").await);
        // Each is made and removed: a change each, and the directory that is kept.
        let most = usize::try_from(FEED_EVENTS_MAX).unwrap();
        for _ in 0..most {
            client.mkdir("/w/a", 0o755).await.unwrap();
            client.rmdir("/w/a").await.unwrap();
        }
        settle().await;
        assert_eq!(changes(all.take()).len(), 2 * most, "who is there is told of all");
        assert_eq!(since(&client, "/w", &begin).await, [News::Gap { server: 0 }]);

        let position = watch(&client, "/w").await.position().clone();
        for number in 0..most / 2 {
            client.mkdir(format!("/w/{number}"), 0o755).await.unwrap();
        }
        settle().await;
        assert_eq!(changes_since(&client, "/w", &position).await.len(), most / 2);
    })
    .await;
}
