//! Settings, and quotas on directories. After every test a check compares what each quota has
//! charged with a walk over all records.

use base::{FsError, SetAttr};
use wire::{Allocate, AllocateMode, DirRef, RenameMode, Request, Token};

use super::{
    client::{Client, user},
    cores::{next, on_two_cores, random_act},
    world::{Setup, World, in_world, in_world_of},
};

const BYTES: &str = "pando.quota.bytes";
const ENTRIES: &str = "pando.quota.entries";

/// The use below an accounting root: entries and bytes.
async fn used(client: &mut Client, dir: &DirRef) -> (u64, u64) {
    let lines = client.info(dir).await;
    let number = |name: &str| {
        let line = lines.iter().find(|(found, _)| found == name);
        line.unwrap_or_else(|| panic!("no {name} in {lines:?}")).1.parse().unwrap()
    };
    (number("used.entries"), number("used.bytes"))
}

/// Sets a limit, and waits until it holds.
async fn limit(world: &World, client: &mut Client, dir: &DirRef, what: &str, max: &str) {
    client.set_xattr(dir, what, max.as_bytes()).await.unwrap();
    world.settle().await;
    let lines = client.info(dir).await;
    let active = lines.iter().any(|(name, value)| name == "quota.state" && value == "active");
    assert!(active, "{lines:?}");
}

#[test]
fn a_quota_counts_every_inode_and_byte_below_its_directory() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        limit(world, &mut client, &dir, BYTES, "unlimited").await;
        assert_eq!(used(&mut client, &dir).await, (1, 0));
        let sub = client.mkdir(&dir, "sub").await.unwrap();
        let small = client.create(&sub, "small").await.unwrap();
        client.write(&small, 0, b"12345").await.unwrap();
        let large = client.create(&dir, "large").await.unwrap();
        client.write_blocks(&large, 0, &[1; 9000]).await.unwrap();
        client.symlink(&dir, "s", "target").await.unwrap();
        assert_eq!(used(&mut client, &dir).await, (5, 9005));
        client.write_blocks(&large, 4000, &[2; 9000]).await.unwrap();
        assert_eq!(used(&mut client, &dir).await, (5, 13_005));
        client.truncate(&large, 100).await.unwrap();
        client.link(&small, &dir, "again").await.unwrap();
        assert_eq!(used(&mut client, &dir).await, (5, 105));
        client.unlink(&sub, "small").await.unwrap();
        client.unlink(&dir, "large").await.unwrap();
        client.rmdir(&dir, "sub").await.unwrap();
        assert_eq!(used(&mut client, &dir).await, (3, 5));
        client.unlink(&dir, "again").await.unwrap();
        client.unlink(&dir, "s").await.unwrap();
        assert_eq!(used(&mut client, &dir).await, (1, 0));
    });
}

#[test]
fn what_exceeds_a_quota_is_refused_and_changes_nothing() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        limit(world, &mut client, &dir, ENTRIES, "3").await;
        limit(world, &mut client, &dir, BYTES, "1K").await;
        let file = client.create(&dir, "a").await.unwrap();
        client.mkdir(&dir, "b").await.unwrap();
        let full = Some(FsError::QuotaExceeded);
        assert_eq!(client.create(&dir, "c").await.err(), full);
        assert_eq!(client.mkdir(&dir, "c").await.err(), full);
        assert_eq!(client.symlink(&dir, "c", "x").await.err(), full);
        client.create(&root, "outside").await.unwrap();
        assert_eq!(client.rename((&root, "outside"), (&dir, "c")).await.err(), full);
        client.write(&file, 0, &[1; 1024]).await.unwrap();
        assert_eq!(client.write(&file, 1024, &[1]).await.err(), full);
        assert_eq!(client.write_blocks(&file, 0, &[1; 5000]).await.err(), full);
        // A hole takes no room.
        client.truncate(&file, 0).await.unwrap();
        client.write_blocks(&file, 1 << 20, &[1; 1000]).await.unwrap();
        assert_eq!(used(&mut client, &dir).await, (3, 1000));
        assert_eq!(client.names(&dir).await, ["a", "b"]);
        // Where something goes there is room again.
        client.rmdir(&dir, "b").await.unwrap();
        client.create(&dir, "c").await.unwrap();
        limit(world, &mut client, &dir, ENTRIES, "1").await;
        assert_eq!(client.create(&dir, "d").await.err(), full);
        client.rename((&dir, "c"), (&dir, "renamed")).await.unwrap();
        client.unlink(&dir, "renamed").await.unwrap();
    });
}

#[test]
fn an_allocation_of_more_than_a_quota_allows_is_refused_and_takes_nothing() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        limit(world, &mut client, &dir, BYTES, "1M").await;
        let other = client.create(&dir, "other").await.unwrap();
        client.write_blocks(&other, 0, &[1; 9000]).await.unwrap();
        let file = client.create(&dir, "file").await.unwrap();
        let ask = |len| {
            let (file, mode) = (file.clone(), AllocateMode::Grow);
            Request::Allocate(Allocate { file, offset: 0, len, mode, clear_set_id: false })
        };
        let room = (1 << 20) - 9000;
        let refused = client.get(ask(room + 1)).await.unwrap_err();
        assert_eq!(refused, FsError::QuotaExceeded);
        assert_eq!(client.stat(&file).await.unwrap().size, 0);
        client.get(ask(room)).await.unwrap();
        assert_eq!(client.stat(&file).await.unwrap().size, room);
        // The size of the file was not reserved.
        assert_eq!(used(&mut client, &dir).await, (3, 9000));
        client.write_blocks(&other, 9000, &[1; 9000]).await.unwrap();
    });
}

#[test]
fn an_open_file_without_a_name_is_charged_until_it_is_closed() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        limit(world, &mut client, &dir, BYTES, "1M").await;
        let file = client.create(&dir, "f").await.unwrap();
        client.open_file(&file).await.unwrap();
        client.write(&file, 0, b"abc").await.unwrap();
        client.unlink(&dir, "f").await.unwrap();
        assert_eq!(used(&mut client, &dir).await, (2, 3));
        client.release(file.ino, client.opened()).await;
        world.settle().await;
        assert_eq!(used(&mut client, &dir).await, (1, 0));
    });
}

#[test]
fn a_file_made_without_a_name_is_charged_where_it_was_made_until_it_gets_one() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        limit(world, &mut client, &dir, ENTRIES, "2").await;
        let file = client.tmpfile(&dir, true).await.unwrap();
        client.write(&file, 0, b"abc").await.unwrap();
        assert_eq!(used(&mut client, &dir).await, (2, 3));
        assert_eq!(client.tmpfile(&dir, true).await, Err(FsError::QuotaExceeded));
        client.release(file.ino, client.opened()).await;
        world.settle().await;
        assert_eq!(used(&mut client, &dir).await, (1, 0));

        let file = client.tmpfile(&dir, true).await.unwrap();
        client.link(&file, &root, "f").await.unwrap();
        assert_eq!(used(&mut client, &dir).await, (1, 0));
        let file = client.tmpfile(&root, true).await.unwrap();
        client.write(&file, 0, b"abc").await.unwrap();
        let named = client.link(&file, &dir, "g").await.unwrap();
        client.release(file.ino, client.opened()).await;
        world.settle().await;
        assert_eq!(used(&mut client, &dir).await, (2, 3));
        let file = client.tmpfile(&root, true).await.unwrap();
        assert_eq!(client.link(&file, &dir, "h").await.err(), Some(FsError::QuotaExceeded));
        client.unlink(&dir, "g").await.unwrap();
        assert_eq!(used(&mut client, &dir).await, (1, 0));
        assert_eq!(client.stat(&named).await, Err(FsError::Stale));
        client.link(&file, &dir, "h").await.unwrap();
        assert_eq!(used(&mut client, &dir).await, (2, 0));
    });
}

/// Some directories with files in each; how many inodes that makes.
async fn plant(client: &mut Client, top: &DirRef) -> u64 {
    let mut planted = 0;
    for d in 0..3 {
        let dir = client.mkdir(top, &format!("d{d}")).await.unwrap();
        let below = client.mkdir(&dir, "below").await.unwrap();
        planted += 2;
        for f in 0..300 {
            let file = client.create(&dir, &format!("f{f}")).await.unwrap();
            planted += 1;
            if f % 100 == 0 {
                client.write(&file, 0, &[1; 10]).await.unwrap();
                client.link(&file, &below, &format!("l{f}")).await.unwrap();
            }
        }
    }
    planted
}

#[test]
fn a_quota_on_a_full_directory_counts_what_is_there_and_changes_meanwhile() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let planted = plant(&mut client, &dir).await;
        client.set_xattr(&dir, ENTRIES, b"5").await.unwrap();
        // While it counts nothing is refused, and no second one begins.
        client.create(&dir, "early").await.unwrap();
        let other = client.mkdir(&root, "other").await.unwrap();
        let again = client.set_xattr(&other, ENTRIES, b"5").await;
        if again.is_err() {
            assert_eq!(again.err(), Some(FsError::Busy));
        }
        world.settle().await;
        assert_eq!(used(&mut client, &dir).await, (planted + 2, 90));
        assert_eq!(client.create(&dir, "late").await.err(), Some(FsError::QuotaExceeded));
        // Without it everything is released.
        client.set_xattr(&dir, ENTRIES, b"none").await.unwrap();
        world.settle().await;
        assert!(client.info(&dir).await.iter().all(|(name, _)| !name.starts_with("quota")));
        client.create(&dir, "late").await.unwrap();
    });
}

#[test]
fn what_is_counted_survives_restarts_and_crashes_while_counting() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let planted = plant(&mut client, &dir).await;
        client.set_xattr(&dir, BYTES, b"1G").await.unwrap();
        for _ in 0..3 {
            world.restart().await;
            tokio::task::yield_now().await;
        }
        world.settle().await;
        let mut client = world.client().await;
        assert_eq!(used(&mut client, &dir).await, (planted + 1, 90));
        for keep in [1, 4, 9] {
            for index in 0..9 {
                client.create(&dir, &format!("k{keep}.{index}")).await.unwrap();
            }
            world.power_cut(keep).await;
            assert_eq!(world.findings().await, Vec::<String>::new());
            client = world.client().await;
        }
        // A root that is gone is forgotten with the next start.
        let empty = client.mkdir(&root, "empty").await.unwrap();
        limit(world, &mut client, &empty, BYTES, "1G").await;
        client.rmdir(&root, "empty").await.unwrap();
        world.restart().await;
        assert_eq!(world.server.shared.quotas.unfinished(), []);
    });
}

#[test]
fn quotas_nest_and_each_holds() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let outer = client.mkdir(&root, "outer").await.unwrap();
        let inner = client.mkdir(&outer, "inner").await.unwrap();
        client.create(&inner, "f").await.unwrap();
        limit(world, &mut client, &inner, ENTRIES, "10").await;
        // The outer one comes later, and takes in what the inner one has.
        limit(world, &mut client, &outer, ENTRIES, "4").await;
        assert_eq!(used(&mut client, &inner).await, (2, 0));
        assert_eq!(used(&mut client, &outer).await, (3, 0));
        client.create(&inner, "g").await.unwrap();
        assert_eq!(client.create(&inner, "h").await.err(), Some(FsError::QuotaExceeded));
        // The inner use goes with its directory, also into another quota.
        client.rename((&outer, "inner"), (&root, "inner")).await.unwrap();
        assert_eq!(used(&mut client, &outer).await, (1, 0));
        for text in ["h", "i"] {
            client.create(&inner, text).await.unwrap();
        }
        let back = client.rename((&root, "inner"), (&outer, "inner")).await;
        assert_eq!(back.err(), Some(FsError::QuotaExceeded));
        client.set_xattr(&inner, ENTRIES, b"none").await.unwrap();
        world.settle().await;
        client.set_xattr(&outer, ENTRIES, b"none").await.unwrap();
        world.settle().await;
    });
}

#[test]
fn a_file_is_recharged_when_it_is_moved_and_a_full_directory_is_not_moved() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let (a, b) =
            (client.mkdir(&root, "a").await.unwrap(), client.mkdir(&root, "b").await.unwrap());
        limit(world, &mut client, &a, BYTES, "1G").await;
        limit(world, &mut client, &b, BYTES, "1G").await;
        let file = client.create(&a, "f").await.unwrap();
        client.write(&file, 0, &[1; 100]).await.unwrap();
        client.create(&b, "g").await.unwrap();
        client.rename((&a, "f"), (&b, "f")).await.unwrap();
        assert_eq!(used(&mut client, &a).await, (1, 0));
        assert_eq!(used(&mut client, &b).await, (3, 100));
        client.mkdir(&a, "empty").await.unwrap();
        let full = client.mkdir(&a, "full").await.unwrap();
        client.create(&full, "x").await.unwrap();
        let moved = client.rename((&a, "full"), (&b, "full")).await;
        assert_eq!(moved.err(), Some(FsError::CrossDevice));
        client.rename((&a, "full"), (&a, "other")).await.unwrap();
        client.rename_mode((&a, "empty"), (&b, "g"), RenameMode::Exchange).await.unwrap();
        assert_eq!(used(&mut client, &a).await, (4, 0));
        assert_eq!(used(&mut client, &b).await, (3, 100));
    });
}

#[test]
fn a_file_counts_where_it_is_moved_to_wherever_its_inode_is() {
    for days in ["0", "1"] {
        in_world(async |world| {
            let mut client = world.client().await;
            let root = client.root;
            client.set_xattr(&root, "pando.trash_days", days.as_bytes()).await.unwrap();
            let limited = client.mkdir(&root, "limited").await.unwrap();
            limit(world, &mut client, &limited, ENTRIES, "2").await;
            for index in 0..6 {
                let name = format!("f{index}");
                let dir = client.mkdir(&root, &format!("d{index}")).await.unwrap();
                client.create(&root, &name).await.unwrap();
                // From the second directory on its inode stays where it was born.
                client.rename((&root, &name), (&dir, &name)).await.unwrap();
                client.rename((&dir, &name), (&limited, &name)).await.unwrap();
                assert_eq!(used(&mut client, &limited).await, (2, 0));
                client.create(&dir, "more").await.unwrap();
                let over = client.rename((&dir, "more"), (&limited, "more")).await;
                assert_eq!(over, Err(FsError::QuotaExceeded));
                client.unlink(&limited, &name).await.unwrap();
                world.settle().await;
                assert_eq!(used(&mut client, &limited).await, (1, 0));
            }
        });
    }
}

#[test]
fn only_root_with_an_administrators_token_changes_settings() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let file = client.create(&root, "f").await.unwrap();
        assert_eq!(client.set_xattr(&dir, "pando.none", b"1").await, Err(FsError::NotSupported));
        assert_eq!(client.set_xattr(&dir, BYTES, b"much").await, Err(FsError::Invalid));
        assert_eq!(client.set_xattr(&file, BYTES, b"1").await, Err(FsError::Invalid));
        client.cred = user(1000);
        assert_eq!(client.set_xattr(&dir, BYTES, b"1").await, Err(FsError::NotPermitted));
        let token = Token { path: "/d".into(), ..Token::administrator() };
        let mut other = world.client_with(&token).await;
        let below = other.root;
        assert_eq!(other.set_xattr(&below, BYTES, b"1").await, Err(FsError::NotPermitted));
    });
}

#[test]
fn how_much_stays_inline_can_be_changed_later() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let before = client.create(&root, "before").await.unwrap();
        client.write(&before, 0, &[1; 100]).await.unwrap();
        let dir = client.mkdir(&root, "d").await.unwrap();
        assert_eq!(client.set_xattr(&dir, "pando.inline_max", b"8K").await, Err(FsError::Invalid));
        assert_eq!(client.set_xattr(&root, "pando.inline_max", b"1T").await, Err(FsError::Invalid));
        client.set_xattr(&root, "pando.inline_max", b"0").await.unwrap();
        world.restart().await;
        let mut client = world.client().await;
        assert_eq!(client.welcome.fs.inline_bytes_max, 0);
        let shown = client.info(&root).await;
        assert!(shown.contains(&("inline_max".to_owned(), "0".to_owned())));
        let after = client.create(&root, "after").await.unwrap();
        client.write(&after, 0, &[2; 100]).await.unwrap();
        let is_inline = |lines: Vec<(String, String)>| {
            lines.iter().any(|(_, value)| value.starts_with("inline"))
        };
        assert!(is_inline(client.info(&before).await));
        assert!(!is_inline(client.info(&after).await));
        assert_eq!(client.read(&after).await.unwrap(), [2; 100]);
        client.remove_xattr(&root, "pando.inline_max").await.unwrap();
        let shown = client.info(&root).await;
        assert!(shown.contains(&("inline_max".to_owned(), "4096".to_owned())));
    });
}

#[test]
fn how_much_stays_inline_can_be_said_of_a_directory() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let before = client.create(&dir, "before").await.unwrap();
        client.set_xattr(&dir, "pando.inline_max", b"100").await.unwrap();
        client.set_xattr(&dir, "pando.inherit", b"yes").await.unwrap();
        let below = client.mkdir(&dir, "below").await.unwrap();
        let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        for dir in [&dir, &below] {
            let shown = client.info(dir).await;
            assert!(shown.contains(&of("inline_max", "100")), "{shown:?}");
            assert!(shown.contains(&of("inherit", "yes")), "{shown:?}");
            assert!(!shown.iter().any(|(name, _)| name == "spread"), "{shown:?}");
        }
        let is_inline = |lines: Vec<(String, String)>| {
            lines.iter().any(|(_, value)| value.starts_with("inline"))
        };
        // A file keeps what was said when it was made, wherever it goes.
        let within = client.create(&below, "within").await.unwrap();
        let beyond = client.create(&below, "beyond").await.unwrap();
        client.rename((&below, "beyond"), (&root, "beyond")).await.unwrap();
        world.restart().await;
        let mut client = world.client().await;
        for (file, bytes, inline) in
            [(before, 101, true), (within, 100, true), (beyond, 101, false)]
        {
            client.write(&file, 0, &vec![1; bytes]).await.unwrap();
            assert_eq!(is_inline(client.info(&file).await), inline, "{file:?}");
            assert_eq!(client.read(&file).await.unwrap(), vec![1; bytes]);
            client.truncate(&file, 0).await.unwrap();
            client.truncate(&file, bytes as u64).await.unwrap();
            assert_eq!(is_inline(client.info(&file).await), inline, "{file:?}");
        }
        client.remove_xattr(&dir, "pando.inline_max").await.unwrap();
        client.set_xattr(&below, "pando.inline_max", b"none").await.unwrap();
        for dir in [&dir, &below] {
            assert!(!client.info(dir).await.iter().any(|(name, _)| name == "inline_max"));
        }
    });
}

#[test]
fn whatever_two_cores_do_below_quotas_is_counted_exactly() {
    for seed in 0..4 {
        in_world_of(Setup { cores: 3, ..Setup::default() }, async |world| {
            let mut client = world.client().await;
            let root = client.root;
            let mut dirs = vec![root];
            for index in 0..3 {
                dirs.push(client.mkdir(&root, &format!("n{index}")).await.unwrap());
            }
            let done = on_two_cores(world, async |core, client| {
                let mut random = seed * 2 + core as u64;
                let mut done = 0;
                for round in 0..700 {
                    let mut draw = |below: u64| {
                        random = next(random);
                        usize::try_from((random >> 33) % below).unwrap()
                    };
                    if round % 40 == 5 {
                        let limits = ["7", "none", "unlimited", "12"];
                        let (dir, max) = (dirs[draw(4)], limits[draw(4)]);
                        let name = [ENTRIES, BYTES][draw(2)];
                        // Another count may be under way, or the directory gone.
                        let set = wire::SetXattr {
                            node: wire::NodeRef::Dir(dir),
                            name: name.into(),
                            value: max.into(),
                            mode: wire::XattrMode::Set,
                        };
                        client.ask(Request::Setxattr(set)).await;
                    }
                    let picks = [draw(12), draw(4), draw(4), draw(4), draw(4), draw(2)];
                    done += usize::from(random_act(client, &dirs, picks).await);
                }
                done
            });
            assert!(done[0] > 50 && done[1] > 50, "{done:?}");
            world.settle().await;
            assert_eq!(world.findings().await, Vec::<String>::new());
            // The quotas in memory equal the stored ones.
            let shared = &world.server.shared;
            let again = crate::quota::Quotas::load(shared.engine.as_ref(), false);
            let again = again.unwrap();
            for dir in &dirs {
                let id = crate::record::QuotaId(dir.ino);
                let seen = shared.quotas.get(id).filter(|seen| !seen.is_gone());
                assert_eq!(seen, again.get(id).filter(|seen| !seen.is_gone()));
            }
        });
    }
}

/// The results that one core saw.
#[derive(Default)]
struct Tally {
    refused: usize,
    entries_most: i64,
    bytes_most: i64,
}

#[test]
fn limits_are_passed_at_no_moment_whatever_two_cores_do() {
    const ENTRIES_MAX: i64 = 9;
    const BYTES_MAX: i64 = 8000;
    let (mut entries_most, mut bytes_most) = (0, 0);
    for seed in 0..4 {
        in_world_of(Setup { cores: 3, ..Setup::default() }, async |world| {
            let mut client = world.client().await;
            let top = client.root;
            let top = client.mkdir(&top, "top").await.unwrap();
            let mut dirs = vec![top];
            for index in 0..3 {
                dirs.push(client.mkdir(&top, &format!("n{index}")).await.unwrap());
            }
            limit(world, &mut client, &top, ENTRIES, &ENTRIES_MAX.to_string()).await;
            limit(world, &mut client, &top, BYTES, &BYTES_MAX.to_string()).await;
            let shared = std::sync::Arc::clone(&world.server.shared);
            let id = crate::record::QuotaId(top.ino);
            let [one, other] = on_two_cores(world, async |core, client| {
                let mut random = seed * 2 + core as u64;
                let mut tally = Tally::default();
                for _ in 0..700 {
                    let mut draw = |below: u64| {
                        random = next(random);
                        usize::try_from((random >> 33) % below).unwrap()
                    };
                    let picks = [draw(12), draw(4), draw(4), draw(4), draw(4), draw(2)];
                    tally.refused += usize::from(!random_act(client, &dirs, picks).await);
                    // The other core is in the middle of something.
                    let used = shared.quotas.get(id).expect("it stays").total;
                    assert!(used.entries <= ENTRIES_MAX && used.bytes <= BYTES_MAX, "{used:?}");
                    tally.entries_most = tally.entries_most.max(used.entries);
                    tally.bytes_most = tally.bytes_most.max(used.bytes);
                }
                tally
            });
            assert!(one.refused > 50 && other.refused > 50);
            for tally in [one, other] {
                entries_most = tally.entries_most.max(entries_most);
                bytes_most = tally.bytes_most.max(bytes_most);
            }
            world.settle().await;
            let (entries, bytes) = used(&mut client, &top).await;
            assert!(entries <= 9 && bytes <= 8000, "{entries} entries with {bytes} bytes");
        });
    }
    // A file has ten bytes, or 5010, and no two of these are there.
    assert_eq!(entries_most, ENTRIES_MAX);
    assert!(bytes_most >= 5010, "{bytes_most}");
}

#[test]
fn attributes_of_what_a_quota_counts_stay_what_they_are() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let file = client.create(&dir, "f").await.unwrap();
        client.set_xattr(&file, "user.large", &[7; 3000]).await.unwrap();
        client.setattr(&file, SetAttr { mode: Some(0o600), ..SetAttr::default() }).await.unwrap();
        let before = (client.stat(&dir).await.unwrap(), client.stat(&file).await.unwrap());
        world.tick();
        limit(world, &mut client, &dir, BYTES, "1G").await;
        assert_eq!((client.stat(&dir).await.unwrap(), client.stat(&file).await.unwrap()), before);
        assert_eq!(client.xattrs(&file).await.len(), 1);
        assert_eq!(client.xattrs(&dir).await, []);
    });
}
