//! The operations by path, against a server in memory.

use std::time::Duration;

use base::{Cred, FileKind, FsError, SetTime, Time};
use client::{Client, Config, Error, OpenOptions, Resolution};
use wire::{RenameMode, Token, XattrMode};

use crate::world::{World, fs};

#[tokio::test(start_paused = true)]
async fn what_is_made_is_found_by_its_path() {
    World::run(async |world| {
        let client = world.client().await;
        client.create_dir_all("/a/b/c", 0o755).await.unwrap();
        client.create_dir_all("/a/b/c/", 0o755).await.unwrap();
        client.write("/a/b/c/file", b"hello").await.unwrap();
        assert_eq!(client.stat("/a/b/c/file").await.unwrap().size, 5);
        assert_eq!(client.read("/a/b/../b/./c/file").await.unwrap(), &b"hello"[..]);
        assert_eq!(client.stat("/a//b/c/..").await.unwrap(), client.stat("a/b").await.unwrap());
        assert_eq!(client.stat("/../..").await.unwrap(), client.stat("/").await.unwrap());
        assert_eq!(fs(client.stat("/a/x/c").await), FsError::NotFound);
        assert_eq!(fs(client.stat("/a/b/c/file/").await), FsError::NotDirectory);
        assert_eq!(fs(client.stat("/a/b/c/file/x").await), FsError::NotDirectory);
        let names = client.read_dir("/a/b/c").await.unwrap().all().await.unwrap();
        assert_eq!(names.len(), 1);
        assert_eq!(names[0].name.as_bytes(), b"file");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_symbolic_link_at_the_end_of_a_cached_path_is_looked_up_once() {
    World::run(async |world| {
        let client = world.client().await;
        client.create_dir_all("/a/b", 0o755).await.unwrap();
        client.write("/a/b/f", b"x").await.unwrap();
        client.symlink("b/f", "/a/l").await.unwrap();
        client.stat("/a/b/f").await.unwrap();
        let before = client.stats();
        assert_eq!(client.stat("/a/l").await.unwrap().size, 1);
        let after = client.stats();
        assert_eq!(after.requests - before.requests, 2, "the link, and what it names");
        assert_eq!(after.resolutions - before.resolutions, 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn symbolic_links_are_followed_where_posix_says() {
    World::run(async |world| {
        let client = world.client().await;
        client.create_dir_all("/a/b", 0o755).await.unwrap();
        client.symlink("a", "/l").await.unwrap();
        client.symlink("/l/b", "/a/m").await.unwrap();
        client.write("/a/m/file", b"x").await.unwrap();
        assert_eq!(client.stat("/a/b/file").await.unwrap().size, 1);
        assert_eq!(client.lstat("/l").await.unwrap().kind, FileKind::Symlink);
        assert_eq!(client.lstat("/l/").await.unwrap().kind, FileKind::Directory);
        assert_eq!(client.readlink("/a/m").await.unwrap(), &b"/l/b"[..]);
        assert_eq!(client.stat("/l/m/../b/file").await.unwrap().size, 1);
        client.symlink("round", "/round").await.unwrap();
        assert_eq!(fs(client.stat("/round").await), FsError::Loop);
        assert_eq!(fs(client.open("/round").await.map(|_| ())), FsError::Loop);
        // A file is made where a link points.
        client.symlink("b/new", "/a/n").await.unwrap();
        client.create("/a/n", 0o600).await.unwrap().close().await.unwrap();
        assert_eq!(client.stat("/a/b/new").await.unwrap().mode, 0o600);
        let exclusive = OpenOptions::both().create_new(0o600);
        assert_eq!(fs(client.open_with("/a/n", exclusive).await.map(|_| ())), FsError::Exists);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn odd_ends_of_paths_are_refused_as_linux_does() {
    World::run(async |world| {
        let client = world.client().await;
        client.create_dir_all("/d/e", 0o755).await.unwrap();
        client.write("/f", b"").await.unwrap();
        assert_eq!(fs(client.mkdir("/", 0o755).await), FsError::Exists);
        assert_eq!(fs(client.mkdir("/d/.", 0o755).await), FsError::Exists);
        client.mkdir("/d/g/", 0o755).await.unwrap();
        assert_eq!(fs(client.rmdir("/d/.").await), FsError::Invalid);
        assert_eq!(fs(client.rmdir("/d/e/..").await), FsError::NotEmpty);
        assert_eq!(fs(client.rmdir("/").await), FsError::Busy);
        assert_eq!(fs(client.rmdir("/f/").await), FsError::NotDirectory);
        assert_eq!(fs(client.unlink("/d").await), FsError::IsDirectory);
        assert_eq!(fs(client.unlink("/d/").await), FsError::IsDirectory);
        assert_eq!(fs(client.unlink("/f/").await), FsError::NotDirectory);
        assert_eq!(fs(client.symlink("x", "/new/").await), FsError::NotFound);
        assert_eq!(fs(client.create("/new/", 0o600).await.map(|_| ())), FsError::IsDirectory);
        assert_eq!(fs(client.rename("/f", "/new/").await), FsError::NotDirectory);
        assert_eq!(fs(client.rename("/d/.", "/x").await), FsError::Busy);
        client.rename("/d/", "/h/").await.unwrap();
        assert_eq!(fs(client.stat("").await), FsError::NotFound);
        assert_eq!(fs(client.stat("x".repeat(256)).await), FsError::NameTooLong);
        assert_eq!(fs(client.stat("/x".repeat(2048)).await), FsError::NameTooLong);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn attributes_and_their_extensions_are_kept() {
    World::run(async |world| {
        let client = world.client().await;
        client.write("/f", b"12345").await.unwrap();
        assert_eq!(client.chmod("/f", 0o640).await.unwrap().mode, 0o640);
        assert_eq!(client.chown("/f", Some(7), None).await.unwrap().uid, 7);
        let at = Time { sec: 5, nsec: 6 };
        assert_eq!(client.utimes("/f", None, Some(SetTime::At(at))).await.unwrap().mtime, at);
        assert_eq!(client.truncate("/f", 2).await.unwrap().size, 2);
        assert_eq!(client.read("/f").await.unwrap(), &b"12"[..]);
        client.set_xattr("/f", "user.a", b"1", XattrMode::Create).await.unwrap();
        assert_eq!(client.get_xattr("/f", "user.a").await.unwrap(), &b"1"[..]);
        client.remove_xattr("/f", "user.a").await.unwrap();
        assert_eq!(fs(client.get_xattr("/f", "user.a").await), FsError::NoData);
        client.link("/f", "/g").await.unwrap();
        assert_eq!(client.stat("/g").await.unwrap().nlink, 2);
        client.mkdir("/d", 0o755).await.unwrap();
        client.rename_with("/d", "/g", RenameMode::Exchange).await.unwrap();
        assert_eq!(client.stat("/g").await.unwrap().kind, FileKind::Directory);
        assert!(client.statfs().await.unwrap().bytes > 0);
        assert!(!client.info("/f").await.unwrap().is_empty());
        client.sync().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_cached_path_is_never_believed_after_it_has_changed() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        one.create_dir_all("/a/b/c", 0o755).await.unwrap();
        one.write("/a/b/c/f", b"1").await.unwrap();
        two.rename("/a/b", "/a/x").await.unwrap();
        assert_eq!(fs(one.stat("/a/b/c/f").await), FsError::NotFound);
        assert_eq!(fs(one.write("/a/b/c/g", b"").await), FsError::NotFound);
        assert_eq!(one.stat("/a/x/c/f").await.unwrap().size, 1);
        two.create_dir_all("/a/b/c", 0o755).await.unwrap();
        one.write("/a/b/c/g", b"22").await.unwrap();
        assert_eq!(two.stat("/a/b/c/g").await.unwrap().size, 2);
        // Removed, and made again in the same place.
        two.unlink("/a/b/c/g").await.unwrap();
        two.rmdir("/a/b/c").await.unwrap();
        two.mkdir("/a/b/c", 0o755).await.unwrap();
        one.mkdir("/a/b/c/d", 0o755).await.unwrap();
        assert!(two.stat("/a/b/c/d").await.is_ok());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn permissions_hold_on_cached_paths_too() {
    World::run(async |world| {
        let root = world.client().await;
        let ann = root.as_user(Cred { uid: 100, gid: 100, groups: Vec::new() });
        root.create_dir_all("/a/b", 0o755).await.unwrap();
        root.write("/a/b/f", b"1").await.unwrap();
        root.chmod("/a", 0o700).await.unwrap();
        assert!(root.stat("/a/b/f").await.is_ok());
        assert_eq!(fs(ann.stat("/a/b/f").await), FsError::Denied);
        let other = world.client().await;
        other.chmod("/a", 0o711).await.unwrap();
        assert!(ann.stat("/a/b/f").await.is_ok(), "what the cache forbids is asked again");
        assert_eq!(fs(ann.write("/a/b/g", b"").await), FsError::Denied);
        other.chmod("/a", 0o700).await.unwrap();
        assert_eq!(fs(ann.stat("/a/b/f").await), FsError::Denied);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_token_for_a_subtree_sees_it_as_the_root() {
    World::run(async |world| {
        let admin = world.client().await;
        admin.create_dir_all("/a/b", 0o777).await.unwrap();
        admin.write("/a/b/f", b"1").await.unwrap();
        let token =
            Token { path: "/a".into(), uid: Some(7), gids: vec![7], ..Token::administrator() };
        let cred = Cred { uid: 7, gid: 7, groups: Vec::new() };
        let limited = Config { cred, ..world.config_with(&token) };
        let client = Client::connect(limited.clone()).await.unwrap();
        assert_eq!(client.stat("/b/f").await.unwrap().size, 1);
        assert_eq!(fs(client.stat("/a").await), FsError::NotFound);
        assert_eq!(client.stat("/../..").await.unwrap().ino, admin.stat("/a").await.unwrap().ino);
        client.write("/b/g", b"22").await.unwrap();
        assert_eq!(client.read("/b/g").await.unwrap(), &b"22"[..]);
        let big = vec![5; 100_000];
        client.write("/b/h", &big).await.unwrap();
        assert_eq!(client.read("/b/h").await.unwrap(), big);
        assert_eq!(fs(client.as_user(Cred::ROOT).stat("/b/f").await), FsError::NotPermitted);
        assert_eq!(admin.stat("/a/b/g").await.unwrap().uid, 7);

        let wrong = Config { token: "pando2.00".into(), ..limited };
        assert!(matches!(Client::connect(wrong).await, Err(Error::Refused(_))));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_open_file_that_left_the_subtree_of_a_token_is_told_to_be_stale_soon() {
    World::run(async |world| {
        let admin = world.client().await;
        admin.create_dir_all("/a", 0o777).await.unwrap();
        admin.write("/a/f", b"1").await.unwrap();
        let token = Token { path: "/a".into(), ..Token::administrator() };
        let client = Client::connect(world.config_with(&token)).await.unwrap();
        let file = client.open("/f").await.unwrap();
        admin.rename("/a/f", "/f").await.unwrap();
        let began = tokio::time::Instant::now();
        assert_eq!(fs(file.link("/back").await), FsError::Stale);
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_the_cache_everything_is_as_with_it() {
    World::run(async |world| {
        let config = Config { access_cache_bytes: 0, read_cache_bytes: 0, ..world.config() };
        let client = Client::connect(config).await.unwrap();
        client.create_dir_all("/a/b/c", 0o755).await.unwrap();
        client.write("/a/b/c/f", &[1; 200_000]).await.unwrap();
        assert_eq!(client.read("/a/b/c/f").await.unwrap().len(), 200_000);
        client.rename("/a/b", "/b").await.unwrap();
        assert_eq!(client.stat("/b/c/f").await.unwrap().size, 200_000);
        assert_eq!(client.stat("/b/c/../../b/c/f").await.unwrap().size, 200_000);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn many_tasks_share_a_client() {
    World::run(async |world| {
        let client = world.client().await;
        client.mkdir("/d", 0o755).await.unwrap();
        let tasks: Vec<_> = (0..500)
            .map(|i| {
                let client = client.clone();
                tokio::spawn(async move { client.write(format!("/d/{i}"), &[1; 10]).await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let all = client.read_dir("/d").await.unwrap().all().await.unwrap();
        assert_eq!(all.len(), 500);
        assert!(all.iter().all(|entry| entry.entry.as_ref().unwrap().attr.size == 10));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_takes_the_target_of_a_link_of_1_to_4095_bytes() {
    World::run(async |world| {
        let client = world.client().await;
        let longest = "x".repeat(4095);
        client.symlink(&longest, "/longest").await.unwrap();
        assert_eq!(client.readlink("/longest").await.unwrap(), longest.as_bytes());
        let longer = "x".repeat(4096);
        assert_eq!(fs(client.symlink(&longer, "/longer").await), FsError::NameTooLong);
        assert_eq!(fs(client.symlink("", "/empty").await), FsError::NotFound);
        assert_eq!(client.read_dir("/").await.unwrap().all().await.unwrap().len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_path_leads_through_40_symbolic_links_and_no_more() {
    World::run(async |world| {
        for resolution in [Resolution::Speculative, Resolution::Sequential] {
            let config = Config { resolution, ..world.config() };
            let client = Client::connect(config).await.unwrap();
            let top = format!("/{resolution:?}");
            client.create_dir_all(format!("{top}/0"), 0o755).await.unwrap();
            client.write(format!("{top}/0/file"), b"x").await.unwrap();
            for link in 1..=41 {
                let target = (link - 1).to_string();
                client.symlink(&target, format!("{top}/{link}")).await.unwrap();
            }
            assert_eq!(client.stat(format!("{top}/40/file")).await.unwrap().size, 1);
            assert_eq!(fs(client.stat(format!("{top}/41/file")).await), FsError::Loop);
            // Links that the last name of a path leads to count as well.
            client.symlink("0/file", format!("{top}/f1")).await.unwrap();
            for link in 2..=41 {
                let target = format!("f{}", link - 1);
                client.symlink(&target, format!("{top}/f{link}")).await.unwrap();
            }
            client.open(format!("{top}/f40")).await.unwrap().close().await.unwrap();
            let refused = client.open(format!("{top}/f41")).await.map(|_| ());
            assert_eq!(fs(refused), FsError::Loop);
            client.close().await.unwrap();
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_no_frame_holds_is_an_error_and_nothing_worse() {
    World::run(async |world| {
        let client = world.client().await;
        let target = "x".repeat(base::limits::FRAME_BYTES_MAX);
        assert_eq!(fs(client.symlink(&target, "/link").await), FsError::TooBig);
        client.mkdir("/d", 0o755).await.unwrap();
        world.kill();
        let late = tokio::spawn({
            let client = client.clone();
            async move { client.symlink(&target, "/link").await }
        });
        tokio::task::yield_now().await;
        world.start();
        assert_eq!(fs(late.await.unwrap()), FsError::TooBig);
        client.rmdir("/d").await.unwrap();
    })
    .await;
}
