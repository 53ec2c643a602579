//! A directory in five partitions on three servers, as its clients meet it: which servers they ask,
//! and what listings and attributes show.

use std::{cell::Cell, time::Duration};

use anyhow::bail;
use base::{Cred, EntryName, FileKind, FsError, Layout, Splits, Subsets};
use client::{Client, Error, FileSystem as _};
use lab::{
    check::planted::{self, Pin},
    sim::{
        plan::{Plan, Weather},
        play::{in_world, test_in},
        world::{Machine, World},
    },
};
use meta::Bug;
use wire::{DirRef, NodeRef, RenameMode, XattrMode};

const SERVERS: u16 = 3;
const PARTITIONS: u16 = 5;
/// Number of names in the directory: every tenth is a directory, too.
const NAMES: u64 = 60;

#[derive(Debug, Clone, Copy)]
enum Spread {
    Extendible,
    Subsets,
}

impl Spread {
    fn name(self) -> &'static str {
        match self {
            Spread::Extendible => "extendible",
            Spread::Subsets => "subsets",
        }
    }

    fn layout(self, partitions: u16) -> Layout {
        match self {
            Spread::Extendible => Layout::Extendible(Splits::started(1, partitions)),
            Spread::Subsets => Layout::Subsets(Subsets::started(1, partitions)),
        }
    }
}

/// A directory `/d` in five partitions, and the client that has made it.
struct Divided {
    world: World,
    maker: Machine,
    dir: DirRef,
    spread: Spread,
}

/// Runs a test with both spreads; nothing goes wrong.
fn with_both(test: impl AsyncFn(&Divided)) {
    for spread in [Spread::Extendible, Spread::Subsets] {
        let long = Duration::from_secs(1000);
        let plan = Plan {
            shards: 16,
            access_cache: true,
            inline_bytes_max: 4096,
            lease: long,
            server_lease: long,
            split_threshold: u64::MAX,
            ..Plan::draw(1, SERVERS)
        };
        test_in(plan, async |world| {
            let maker = world.connect("maker").await.unwrap();
            maker.client.mkdir("/d", 0o755).await.unwrap();
            divide(&maker.client, spread, PARTITIONS).await;
            let NodeRef::Dir(dir) = maker.client.resolve("/d").await.unwrap() else {
                panic!("it is a directory")
            };
            let divided = Divided { world: world.clone(), maker, dir, spread };
            test(&divided).await;
            divided.maker.close().await.unwrap();
        });
    }
}

async fn divide(client: &Client, spread: Spread, partitions: u16) {
    let partitions = partitions.to_string();
    for (name, value) in [("pando.spread", spread.name()), ("pando.large_dir", &partitions)] {
        client.set_xattr("/d", name, value.as_bytes(), XattrMode::Set).await.unwrap();
    }
}

impl Divided {
    async fn fill(&self) {
        for number in 0..NAMES {
            let path = format!("/d/{number}");
            match number % 10 {
                0 => self.maker.client.mkdir(path, 0o755).await.map(drop).unwrap(),
                _ => self.maker.client.write(path, b"contents").await.unwrap(),
            }
        }
    }

    async fn newcomer(&self) -> Machine {
        self.world.connect("newcomer").await.unwrap()
    }

    fn partition(&self, name: &str) -> u16 {
        let name = EntryName::new(name.as_bytes()).unwrap();
        self.spread.layout(PARTITIONS).partition(self.maker.client.fs_info().hash_key.pos(&name))
    }

    /// Names that belong to a partition.
    fn names_of(&self, partition: u16) -> impl Iterator<Item = String> {
        let all = (0..).map(|number| format!("name {number}"));
        all.filter(move |name| self.partition(name) == partition)
    }
}

#[test]
fn pages_of_three_over_five_partitions_are_the_whole_listing_once() {
    with_both(async |divided| {
        divided.fill().await;
        let newcomer = divided.newcomer().await;
        for client in [&divided.maker.client, &newcomer.client] {
            let (mut listed, mut after) = (Vec::new(), 0);
            loop {
                let page = client.readdir(&Cred::ROOT, &divided.dir, after, 3, true).await.unwrap();
                assert_eq!(page.parent_ino, base::Ino::ROOT);
                assert!(page.entries.iter().all(|entry| entry.entry.as_ref().unwrap().whole));
                after = page.entries.last().map_or(after, |entry| entry.pos);
                listed.extend(page.entries);
                if page.end {
                    break;
                }
            }
            assert!(listed.is_sorted_by_key(|entry| entry.pos));
            let mut numbers: Vec<u64> =
                listed.iter().map(|entry| entry.name.to_string().parse().unwrap()).collect();
            let all = client.read_dir("/d").await.unwrap().all().await.unwrap();
            assert!(all.iter().map(|entry| &entry.name).eq(listed.iter().map(|entry| &entry.name)));
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..NAMES), "each once");
        }
        newcomer.close().await.unwrap();
    });
}

#[test]
fn who_knows_nothing_of_the_partitions_asks_one_wrong_one() {
    with_both(async |divided| {
        let newcomer = divided.newcomer().await;
        let client = &newcomer.client;
        for partition in (0..PARTITIONS).rev() {
            for name in divided.names_of(partition).take(3) {
                client.write(format!("/d/{name}"), b"x").await.unwrap();
                client.stat(format!("/d/{name}")).await.unwrap();
                client.rename(format!("/d/{name}"), format!("/d/{name}!")).await.unwrap();
                client.unlink(format!("/d/{name}!")).await.unwrap();
            }
        }
        let stats = client.stats();
        assert!(stats.wrong_partitions <= 1, "{stats:?}");
        assert!(stats.probes[0] > 40, "{stats:?}");
        assert_eq!(stats.probes[2..], [0, 0]);
        newcomer.close().await.unwrap();
    });
}

#[test]
fn who_knows_older_partitions_is_corrected() {
    with_both(async |divided| {
        let newcomer = divided.newcomer().await;
        let client = &newcomer.client;
        let mut names: Vec<String> = Vec::new();
        for partition in 0..PARTITIONS {
            names.extend(divided.names_of(partition).take(3));
        }
        // The client learns of five partitions, then two, and then eight.
        for partitions in [PARTITIONS, 2, 8] {
            divide(&divided.maker.client, divided.spread, partitions).await;
            let before = client.stats();
            for name in &names {
                client.write(format!("/d/{name}"), b"x").await.unwrap();
            }
            let attr = client.stat("/d").await.unwrap();
            assert_eq!(attr.size, names.len() as u64, "{partitions} partitions");
            let after = client.stats();
            assert_eq!(after.probes[3], 0, "{after:?}");
            let wrong = after.wrong_partitions - before.wrong_partitions;
            assert!(wrong <= 4, "{partitions} partitions: {wrong} of {}", names.len());
            for name in &names {
                client.unlink(format!("/d/{name}")).await.unwrap();
            }
        }
        newcomer.close().await.unwrap();
    });
}

#[test]
fn attributes_are_those_of_all_partitions() {
    with_both(async |divided| {
        divided.fill().await;
        let newcomer = divided.newcomer().await;
        let dirs = NAMES / 10;
        for client in [&divided.maker.client, &newcomer.client] {
            let attr = client.stat("/d").await.unwrap();
            assert_eq!((attr.kind, attr.size), (FileKind::Directory, NAMES));
            assert_eq!(u64::from(attr.nlink), 2 + dirs);
            let listed = client.read_dir("/").await.unwrap().all().await.unwrap();
            assert_eq!(listed.len(), 1);
            // A change of one partition changes the times of the directory.
            for partition in 0..PARTITIONS {
                let name = divided.names_of(partition).next().unwrap();
                let before = client.stat("/d").await.unwrap();
                divided.world.wait(Duration::from_millis(10)).await;
                client.write(format!("/d/{name}"), b"x").await.unwrap();
                let made = client.stat("/d").await.unwrap();
                assert!(made.mtime > before.mtime && made.ctime > before.ctime);
                assert_eq!(made.size, before.size + 1);
                client.unlink(format!("/d/{name}")).await.unwrap();
            }
            let changed = client.chmod("/d", 0o700).await.unwrap();
            assert_eq!((changed.size, changed.mode & 0o777), (NAMES, 0o700));
            let attr = client.stat("/d").await.unwrap();
            assert_eq!((attr.size, attr.mode & 0o777), (NAMES, 0o700));
        }
        newcomer.close().await.unwrap();
    });
}

#[test]
fn paths_through_partitions_that_are_known_are_one_round_of_guesses() {
    with_both(async |divided| {
        let client = &divided.maker.client;
        client.set_xattr("/d", "pando.inherit", b"yes", XattrMode::Set).await.unwrap();
        for dir in ["a", "b", "c"] {
            client.mkdir(format!("/d/{dir}"), 0o755).await.unwrap();
            let lines = client.info(format!("/d/{dir}")).await.unwrap();
            assert!(lines.contains(&("large_dir".to_owned(), PARTITIONS.to_string())), "{lines:?}");
            for name in 0..10 {
                client.write(format!("/d/{dir}/{name}"), b"x").await.unwrap();
            }
        }
        let newcomer = divided.newcomer().await;
        let client = &newcomer.client;
        for (dir, round) in ["a", "b", "c"].into_iter().flat_map(|dir| [(dir, 0), (dir, 1)]) {
            let before = client.stats();
            for name in 0..10 {
                assert_eq!(client.stat(format!("/d/{dir}/{name}")).await.unwrap().size, 1);
            }
            let wrong = client.stats().wrong_partitions - before.wrong_partitions;
            assert!(wrong <= if round == 0 { 3 } else { 0 }, "{dir}: {wrong}");
        }
        newcomer.close().await.unwrap();
    });
}

#[test]
fn a_directory_is_divided_before_anything_is_in_it() {
    with_both(async |divided| {
        let client = &divided.maker.client;
        let set = async |name: &str, value: &str| {
            client.set_xattr("/d", name, value.as_bytes(), XattrMode::Set).await
        };
        assert_eq!(set("pando.large_dir", "17").await, Err(FsError::Invalid.into()));
        assert_eq!(set("pando.spread", "wide").await, Err(FsError::Invalid.into()));
        let name = divided.names_of(PARTITIONS - 1).next().unwrap();
        client.write(format!("/d/{name}"), b"x").await.unwrap();
        assert_eq!(set("pando.large_dir", "3").await, Err(FsError::NotEmpty.into()));
        assert_eq!(set("pando.large_dir", "5").await, Ok(()));
        assert_eq!(set("pando.inherit", "yes").await, Ok(()));
        client.unlink(format!("/d/{name}")).await.unwrap();
        assert_eq!(set("pando.large_dir", "none").await, Ok(()));
        client.write(format!("/d/{name}"), b"x").await.unwrap();
        assert_eq!(client.stat("/d").await.unwrap().size, 1);
    });
}

#[test]
fn what_is_said_of_contents_is_said_to_all_partitions() {
    with_both(async |divided| {
        let client = &divided.maker.client;
        let set = async |name: &str, value: &str| {
            client.set_xattr("/d", name, value.as_bytes(), XattrMode::Set).await
        };
        set("pando.inline_max", "100").await.unwrap();
        set("pando.inherit", "yes").await.unwrap();
        client.mkdir("/d/below", 0o755).await.unwrap();
        let mut paths = vec!["/d/below/file".to_owned()];
        paths.extend(
            (0..PARTITIONS)
                .map(|partition| format!("/d/{}", divided.names_of(partition).next().unwrap())),
        );
        for path in &paths {
            for (bytes, inline) in [(100, true), (101, false)] {
                client.write(path, &vec![7; bytes]).await.unwrap();
                let lines = client.info(path).await.unwrap();
                let is_inline = lines.iter().any(|(_, value)| value.starts_with("inline"));
                assert_eq!(is_inline, inline, "{path}: {lines:?}");
                assert_eq!(client.read(path).await.unwrap(), vec![7; bytes]);
            }
        }
    });
}

#[test]
fn who_may_not_write_to_a_directory_renames_it_from_one_partition_to_another() {
    with_both(async |divided| {
        let root = &divided.maker.client;
        root.chmod("/d", 0o777).await.unwrap();
        let user = root.as_user(Cred { uid: 100, gid: 100, groups: Vec::new() });
        let [from, to] = [0, PARTITIONS - 1].map(|at| divided.names_of(at).next().unwrap());
        let (old, new) = (format!("/d/{from}"), format!("/d/{to}"));
        root.mkdir(&old, 0o755).await.unwrap();
        user.rename(&old, &new).await.unwrap();
        assert_eq!(root.stat(&old).await, Err(FsError::NotFound.into()));
        assert_eq!(root.stat("/d").await.unwrap().nlink, 3);
        // With another parent the directory would have another `..`, and that is a change of
        // itself.
        root.mkdir("/other", 0o777).await.unwrap();
        root.chmod("/other", 0o777).await.unwrap();
        assert_eq!(user.rename(&new, "/other/a").await, Err(FsError::Denied.into()));
    });
}

#[test]
fn what_is_made_while_a_directory_is_divided_anew_is_in_its_partition() {
    with_both(async |divided| {
        let (client, other) = (&divided.maker.client, divided.newcomer().await);
        for round in 0..150 {
            let path = format!("/d/{round}");
            let partitions: &[u8] = if round % 2 == 0 { b"3" } else { b"5" };
            let set = client.set_xattr("/d", "pando.large_dir", partitions, XattrMode::Set);
            let late = Duration::from_millis(round % 9);
            let make = async {
                divided.world.wait(late).await;
                other.client.mkdir(&path, 0o755).await
            };
            let (set, made) = futures::join!(set, make);
            assert!(matches!(set, Ok(()) | Err(Error::Fs(FsError::NotEmpty))), "{set:?}");
            made.unwrap();
            client.stat(&path).await.unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(client.stat("/d").await.unwrap().size, 1);
            other.client.rmdir(&path).await.unwrap();
        }
        other.close().await.unwrap();
    });
}

#[test]
fn a_directory_is_removed_when_no_partition_has_a_name() {
    with_both(async |divided| {
        let client = &divided.maker.client;
        for partition in 0..PARTITIONS {
            let name = divided.names_of(partition).next().unwrap();
            client.write(format!("/d/{name}"), b"x").await.unwrap();
            assert_eq!(client.rmdir("/d").await, Err(FsError::NotEmpty.into()));
            client.unlink(format!("/d/{name}")).await.unwrap();
        }
        let newcomer = divided.newcomer().await;
        newcomer.client.rmdir("/d").await.unwrap();
        for partition in 0..PARTITIONS {
            let name = divided.names_of(partition).next().unwrap();
            let made = client.write(format!("/d/{name}"), b"x").await;
            assert_eq!(made, Err(FsError::NotFound.into()));
        }
        // A new directory of the same name is another one: nothing is left, and nothing known of
        // the first is believed.
        newcomer.client.mkdir("/d", 0o755).await.unwrap();
        for partition in 0..PARTITIONS {
            let name = divided.names_of(partition).next().unwrap();
            client.write(format!("/d/{name}"), b"x").await.unwrap();
        }
        let attr = client.stat("/d").await.unwrap();
        assert_eq!(attr.size, u64::from(PARTITIONS));
        let listed = client.read_dir("/d").await.unwrap().all().await.unwrap();
        assert_eq!(listed.len(), usize::from(PARTITIONS));
        newcomer.close().await.unwrap();
    });
}

#[test]
fn files_are_found_under_their_names_in_every_partition() {
    with_both(async |divided| {
        let client = &divided.maker.client;
        let newcomer = divided.newcomer().await;
        client.mkdir("/elsewhere", 0o755).await.unwrap();
        for (from, to) in
            (0..PARTITIONS).flat_map(|from| [(from, 0), (from, PARTITIONS - 1), (from, from)])
        {
            let old = format!("/d/{}", divided.names_of(from).next().unwrap());
            let new = format!("/d/{}", divided.names_of(to).nth(1).unwrap());
            client.write(&old, b"first").await.unwrap();
            client.link(&old, "/elsewhere/link").await.unwrap();
            client.rename(&old, &new).await.unwrap();
            for client in [client, &newcomer.client] {
                assert_eq!(&client.read(&new).await.unwrap()[..], b"first");
                assert_eq!(client.stat(&new).await.unwrap().nlink, 2);
                assert_eq!(client.stat(&old).await, Err(FsError::NotFound.into()));
            }
            newcomer.client.write(&new, b"second").await.unwrap();
            client.unlink(&new).await.unwrap();
            client.rename("/elsewhere/link", &old).await.unwrap();
            assert_eq!(&newcomer.client.read(&old).await.unwrap()[..], b"second");
            newcomer.client.unlink(&old).await.unwrap();
        }
        assert_eq!(client.stat("/d").await.unwrap().size, 0);
        newcomer.close().await.unwrap();
    });
}

/// Moves a file to and fro between two names of a divided directory, by two clients. Fails at a
/// refusal that was never right, as the file always had one of the names.
fn refused(seed: u64, bug: Option<Bug>) -> anyhow::Result<()> {
    let drawn = Plan::draw(seed, SERVERS);
    let plan = Plan {
        shards: 16,
        power_cuts: false,
        split_threshold: u64::MAX,
        lease: Duration::from_secs(1000),
        server_lease: Duration::from_secs(1000),
        weather: Weather { delay_ms_max: 6, stall_one_in: 1000, ..drawn.weather },
        ..drawn
    };
    in_world(plan, bug, Duration::from_secs(3600), async |world| {
        let (mover, other) =
            (world.connect("mover").await.unwrap(), world.connect("other").await.unwrap());
        mover.client.mkdir("/d", 0o755).await.unwrap();
        divide(&mover.client, Spread::Extendible, PARTITIONS).await;
        let names: Vec<[String; 2]> =
            (0..4).map(|pair| [format!("/d/{pair}-b"), format!("/d/{pair}-c")]).collect();
        let mut wrong = None;
        for [b, c] in &names {
            mover.client.write(b, b"").await.unwrap();
            let ends = Cell::new(false);
            let moves = async {
                for _ in 0..20 {
                    for (from, to) in [(b, c), (c, b)] {
                        let moved = mover.client.rename(from, to).await;
                        assert!(matches!(moved, Ok(()) | Err(Error::Fs(FsError::NotFound))));
                    }
                }
                ends.set(true);
            };
            let others = async {
                while !ends.get() {
                    let kept = other.client.rename_with(b, c, RenameMode::NoReplace).await;
                    match kept {
                        Ok(()) | Err(Error::Fs(FsError::NotFound)) => {}
                        Err(Error::Fs(error)) => wrong = Some(error),
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            futures::join!(moves, others);
        }
        mover.close().await.unwrap();
        other.close().await.unwrap();
        wrong.map_or(Ok(()), |error| bail!("refused with {error:?}"))
    })
}

#[test]
fn a_refusal_is_of_what_was_there_at_one_moment() {
    // The other name was free as long as this one existed.
    let pin = Pin { seed: None, word: "refused with Exists", seeds: 0..20 };
    let found =
        planted::find(&pin, |seed, planted| refused(seed, planted.then_some(Bug::RefusedUnseen)));
    found.unwrap();
    for seed in 0..20 {
        refused(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
    }
}
