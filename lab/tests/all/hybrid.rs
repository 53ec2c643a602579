//! Hybrid placement: directories near the root have places of their own, those below stay with their
//! parents, and what is made where much is starts anew.
//!
//! Each test ends with a check of all servers.

use std::time::Duration;

use base::{Level, Locality, NameVersion, Predicted};
use client::{Client, FileSystem as _};
use lab::{
    check,
    sim::{
        plan::Plan,
        play::test_in,
        server::Host,
        world::{Machine, World},
    },
};
use meta::HomeLimits;
use wire::{DirRef, NodeRef, XattrMode};

const SERVERS: u16 = 4;

fn plan() -> Plan {
    Plan {
        shards: 64,
        locality: Locality::Hybrid,
        home: HomeLimits::DEFAULT,
        access_cache: true,
        fast_paths: true,
        inline_bytes_max: 4096,
        // Clients send no requests just to keep their sessions.
        lease: Duration::from_secs(1000),
        split_threshold: u64::MAX,
        trash: false,
        ..Plan::draw(3, SERVERS)
    }
}

fn in_world(plan: Plan, test: impl AsyncFn(&World, &Machine)) {
    test_in(plan, async |world| {
        let maker = world.connect("maker").await.unwrap();
        test(world, &maker).await;
        check::fsck(world, &maker.client).await.unwrap();
        maker.close().await.unwrap();
    });
}

async fn dir(client: &Client, path: &str) -> DirRef {
    match client.resolve(path).await.unwrap() {
        NodeRef::Dir(dir) => dir,
        NodeRef::File(_) => panic!("{path} is no directory"),
    }
}

async fn make(client: &Client, path: &str) -> DirRef {
    client.mkdir(path, 0o755).await.unwrap();
    dir(client, path).await
}

async fn line(client: &Client, path: &str, name: &str) -> String {
    let lines = client.info(path).await.unwrap();
    let found = lines.into_iter().find(|(line, _)| line == name);
    found.unwrap_or_else(|| panic!("{path} has no {name}")).1
}

async fn set(client: &Client, path: &str, value: &str) -> client::Result<()> {
    client.set_xattr(path, "pando.locality", value.as_bytes(), XattrMode::Set).await
}

/// The level of a directory, as its home shows it.
fn level(dir: &DirRef) -> Level {
    match dir.home {
        home if home == dir.id => Level::Above,
        home if home == dir.id.as_boundary() => Level::Boundary,
        _ => Level::Below,
    }
}

#[test]
fn two_levels_are_spread_and_what_is_below_stays_together() {
    in_world(plan(), async |_, maker| {
        let client = &maker.client;
        let (a, b) = (make(client, "/a").await, make(client, "/a/b").await);
        let (c, d) = (make(client, "/a/b/c").await, make(client, "/a/b/c/d").await);
        assert_eq!([a, b, c, d].map(|dir| level(&dir))[..2], [Level::Above, Level::Boundary]);
        assert_eq!((c.home, d.home), (b.home, b.home));
        for (path, said) in
            [("/a", "above"), ("/a/b", "at"), ("/a/b/c", "below"), ("/a/b/c/d", "below")]
        {
            assert_eq!(line(client, path, "level").await, format!("{said} the boundary"));
        }
        // Clients predict as servers do.
        let fs = client.fs_info();
        let root = client.root().0;
        let mut at = Predicted::known(root.id, root.home);
        for (name, found) in ["a", "b", "c", "d"].into_iter().zip([a, b, c, d]) {
            let name = base::EntryName::new(name.as_bytes()).unwrap();
            at = at.child(fs.locality, &fs.hash_key, &name);
            assert_eq!((at.id, at.home), (found.id, found.home), "{name}");
        }
    });
}

#[test]
fn below_the_boundary_one_server_does_everything() {
    in_world(plan(), async |world, maker| {
        let client = &maker.client;
        client.create_dir_all("/a/b/c/d/e", 0o755).await.unwrap();
        let begun = |host: &Host| host.counter("transactions_begun");
        let transactions = || world.hosts().iter().map(begun).sum::<u64>();
        let (before, begun_before) = (client.requests_by_server(), transactions());
        for number in 0..20 {
            let sub = format!("/a/b/c/d/e/sub{number}");
            client.mkdir(&sub, 0o755).await.unwrap();
            client.write(format!("{sub}/file"), b"x").await.unwrap();
        }
        let entries = client.read_dir("/a/b/c/d/e").await.unwrap().all().await.unwrap();
        assert_eq!(entries.len(), 20);
        let after = client.requests_by_server();
        let asked = after.iter().zip(&before).filter(|(after, before)| after > before).count();
        assert_eq!((asked, transactions() - begun_before), (1, 0), "{before:?} {after:?}");
    });
}

#[test]
fn any_path_is_found_with_one_request_and_by_walking_with_few() {
    in_world(plan(), async |world, maker| {
        let path: String = (0..16).map(|at| format!("/d{at}")).collect();
        maker.client.create_dir_all(&path, 0o755).await.unwrap();
        maker.client.write(format!("{path}/file"), b"x").await.unwrap();
        let cold = world.connect_bound("cold", 100).await.unwrap();
        cold.client.stat(format!("{path}/file")).await.unwrap();
        let stats = cold.client.stats();
        assert_eq!((stats.fast_paths, stats.slow_paths), (1, 0));
        assert_eq!(cold.client.requests_by_server().iter().sum::<u64>(), 1);
        cold.close().await.unwrap();
    });
    in_world(Plan { fast_paths: false, ..plan() }, async |world, maker| {
        let path: String = (0..16).map(|at| format!("/d{at}")).collect();
        maker.client.create_dir_all(&path, 0o755).await.unwrap();
        maker.client.write(format!("{path}/file"), b"x").await.unwrap();
        // A client that must prove the walk goes to the servers of the first levels, and then to one.
        let cold = world.connect_bound("cold", 100).await.unwrap();
        cold.client.stat(format!("{path}/file")).await.unwrap();
        assert!(cold.client.requests_by_server().iter().sum::<u64>() <= 3);
        cold.close().await.unwrap();
    });
}

#[test]
fn directories_made_in_a_full_home_start_subtrees_of_their_own() {
    let home = HomeLimits { dirs: 4, entries: 1000 };
    in_world(Plan { home, ..plan() }, async |world, maker| {
        let client = &maker.client;
        client.create_dir_all("/a/b", 0o755).await.unwrap();
        let mut levels = Vec::new();
        for number in 0..8 {
            levels.push(level(&make(client, &format!("/a/b/c{number}")).await));
        }
        let below = levels.iter().take_while(|level| **level == Level::Below).count();
        assert!((3..=4).contains(&below), "{levels:?}");
        assert!(levels[below..].iter().all(|level| *level == Level::Boundary), "{levels:?}");
        assert_eq!(line(client, "/a/b", "home.full").await, "yes");
        // A directory that is made in one of those stays with it.
        let last = dir(client, "/a/b/c7").await;
        assert_eq!(make(client, "/a/b/c7/x").await.home, last.home);

        // A restart forgets the counts, and finds them again.
        world.hosts().iter().for_each(Host::kill);
        world.hosts().iter().for_each(|host| host.start().unwrap());
        world.wait(Duration::from_secs(20)).await;
        assert_eq!(line(client, "/a/b", "home.full").await, "yes");
        assert_eq!(level(&make(client, "/a/b/after").await), Level::Boundary);

        // With half of them gone there is room again, also under a name that was elsewhere.
        for number in 0..below {
            client.rmdir(format!("/a/b/c{number}")).await.unwrap();
        }
        client.rmdir("/a/b/after").await.unwrap();
        let again = make(client, "/a/b/after").await;
        assert_eq!(level(&again), Level::Below);
        client.rename("/a/b/after", "/a/moved").await.unwrap();
        let next = make(client, "/a/b/after").await;
        assert_ne!(next.id, again.id);
        assert_eq!((next.home, dir(client, "/a/moved").await.id), (again.home, again.id));
    });
}

#[test]
fn many_entries_fill_a_home_as_well() {
    let home = HomeLimits { dirs: 1000, entries: 10 };
    in_world(Plan { home, ..plan() }, async |_, maker| {
        let client = &maker.client;
        client.create_dir_all("/a/b", 0o755).await.unwrap();
        assert_eq!(level(&make(client, "/a/b/before").await), Level::Below);
        for number in 0..12 {
            client.write(format!("/a/b/f{number}"), b"").await.unwrap();
        }
        assert_eq!(level(&make(client, "/a/b/after").await), Level::Boundary);
        for number in 0..12 {
            client.unlink(format!("/a/b/f{number}")).await.unwrap();
        }
        assert_eq!(level(&make(client, "/a/b/later").await), Level::Below);
    });
}

#[test]
fn locality_is_set_for_what_is_made_from_then_on() {
    let home = HomeLimits { dirs: 3, entries: 1000 };
    in_world(Plan { home, ..plan() }, async |_, maker| {
        let client = &maker.client;
        assert_eq!(line(client, "/", "locality").await, "hybrid:2");
        client.create_dir_all("/a/b", 0o755).await.unwrap();
        let old = make(client, "/a/b/old").await;
        let levels = async |path: &str| {
            let mut levels = Vec::new();
            let mut at = path.to_owned();
            for name in ["1", "2", "3", "4"] {
                at += "/";
                at += name;
                levels.push(level(&make(client, &at).await));
            }
            levels
        };
        use Level::{Above, Below, Boundary};
        for (value, expected) in [
            ("hash", [Above, Above, Above, Above]),
            ("hybrid:3", [Above, Above, Boundary, Below]),
            ("hybrid", [Above, Boundary, Below, Below]),
            ("hybrid:1", [Boundary, Below, Below, Boundary]),
        ] {
            let path = format!("/a/b/{}", value.replace(':', "-"));
            make(client, &path).await;
            set(client, &path, value).await.unwrap();
            let shown = if value == "hybrid" { "hybrid:2" } else { value };
            assert_eq!(line(client, &path, "locality").await, shown);
            assert_eq!(levels(&path).await, expected, "{value}");
        }
        // A subtree stays together, however much there is.
        make(client, "/a/whole").await;
        set(client, "/a/whole", "subtree").await.unwrap();
        assert_eq!(levels("/a/whole").await, [Below; 4]);
        assert_eq!(levels("/a/whole/1/2").await[1..], [Below; 3]);
        assert_eq!(dir(client, "/a/b/old").await, old, "what exists stays");
        for value in ["", "hash:3", "hybrid:0", "hybrid:17", "hybrid:x", "wide"] {
            assert!(set(client, "/a", value).await.is_err(), "{value}");
        }
        set(client, "/a/whole", "none").await.unwrap();
        assert_eq!(line(client, "/a/whole", "locality").await, "none");
        client.remove_xattr("/", "pando.locality").await.unwrap();
        assert_eq!(level(&make(client, "/with_the_root").await), Below);
    });
    in_world(Plan { locality: Locality::Directory, ..plan() }, async |_, maker| {
        assert!(set(&maker.client, "/", "hash").await.is_err());
    });
}

#[test]
fn a_divided_directory_spreads_the_directories_in_it() {
    in_world(plan(), async |_, maker| {
        let client = &maker.client;
        client.create_dir_all("/a/b/large", 0o755).await.unwrap();
        let set = client.set_xattr("/a/b/large", "pando.large_dir", b"8", XattrMode::Set);
        set.await.unwrap();
        for number in 0..10 {
            let made = make(client, &format!("/a/b/large/{number}")).await;
            assert_eq!(level(&made), Level::Boundary);
            let file = format!("/a/b/large/file{number}");
            client.write(&file, b"x").await.unwrap();
            client.rename(&file, format!("/a/b/large/{number}/file")).await.unwrap();
        }
        client.rename("/a/b/large", "/a/b/moved").await.unwrap();
        assert_eq!(client.read("/a/b/moved/3/file").await.unwrap(), &b"x"[..]);
        for number in 0..10 {
            client.unlink(format!("/a/b/moved/{number}/file")).await.unwrap();
            client.rmdir(format!("/a/b/moved/{number}")).await.unwrap();
        }
        client.rmdir("/a/b/moved").await.unwrap();
    });
}

#[test]
fn a_client_that_was_wrong_about_a_parent_is_right_about_its_other_children() {
    in_world(plan(), async |world, maker| {
        let client = &maker.client;
        make(client, "/a").await;
        set(client, "/a", "hash").await.unwrap();
        for number in 0..3 {
            client.create_dir_all(format!("/a/b/c{number}/d"), 0o755).await.unwrap();
        }
        let cold = world.connect_bound("cold", 100).await.unwrap();
        for number in 0..3 {
            cold.client.stat(format!("/a/b/c{number}/d")).await.unwrap();
        }
        // The client is wrong about /a, then about /a/b, and about nothing more than that.
        let stats = cold.client.stats();
        assert_eq!(stats.fast_paths, 2, "{stats:?}");
        cold.close().await.unwrap();
    });
}

#[test]
fn what_homes_have_is_counted_whoever_changes_it() {
    in_world(Plan { split_threshold: 8, ..plan() }, async |world, maker| {
        let client = &maker.client;
        let tops = ["/a/1", "/a/2", "/b/3", "/b/4"];
        for top in tops {
            client.create_dir_all(format!("{top}/d/e"), 0o755).await.unwrap();
        }
        for (at, top) in tops.into_iter().enumerate() {
            let other = tops[(at + 1) % tops.len()];
            for number in 0..30 {
                client.write(format!("{top}/d/f{number}"), b"x").await.unwrap();
            }
            for number in 0..10 {
                let to = format!("{other}/d/e/{at}-{number}");
                client.rename(format!("{top}/d/f{number}"), to).await.unwrap();
                client.unlink(format!("{top}/d/f{}", number + 10)).await.unwrap();
            }
            let sub = format!("{top}/d/sub");
            client.create_dir_all(format!("{sub}/below"), 0o755).await.unwrap();
            client.rename(&sub, format!("{other}/d/e/sub{at}")).await.unwrap();
            client.rmdir(format!("{other}/d/e/sub{at}/below")).await.unwrap();
            if at % 2 == 0 {
                client.rmdir(format!("{other}/d/e/sub{at}")).await.unwrap();
            }
        }
        world.wait(Duration::from_secs(20)).await;
        let counted = async || {
            let mut counted = Vec::new();
            for top in tops {
                let (dirs, entries) = ("home.directories", "home.entries");
                counted.push((line(client, top, dirs).await, line(client, top, entries).await));
            }
            counted
        };
        let before = counted().await;
        world.hosts().iter().for_each(Host::kill);
        world.hosts().iter().for_each(|host| host.start().unwrap());
        world.wait(Duration::from_secs(20)).await;
        assert_eq!(counted().await, before);
    });
}

#[test]
fn who_may_not_see_all_is_not_told_how_much_there_is() {
    in_world(plan(), async |world, maker| {
        maker.client.create_dir_all("/a/b/c", 0o755).await.unwrap();
        assert_eq!(line(&maker.client, "/a/b/c", "home.directories").await, "2");
        let bound = world.connect_bound("user", 100).await.unwrap();
        let lines = bound.client.info("/a/b/c").await.unwrap();
        assert!(lines.iter().any(|(name, _)| name == "level"), "{lines:?}");
        assert!(!lines.iter().any(|(name, _)| name.starts_with("home.")), "{lines:?}");
        bound.close().await.unwrap();
    });
}

#[test]
fn levels_are_part_of_names_versions() {
    let first = [Level::Below, Level::Boundary, Level::Above].map(NameVersion::first);
    assert_eq!(first.map(NameVersion::level), [Level::Below, Level::Boundary, Level::Above]);
}
