//! Two cores of one server, each on its own thread, in the same directories: everything stays
//! exact.

use std::sync::{
    Barrier,
    atomic::{AtomicBool, Ordering},
};

use base::{ByteRange, Ino, LockKind, LockMode, SetAttr};
use wire::{
    Answer, Create, DirRef, Entry, Link, Lock, Mkdir, NodeRef, Release, Rename, RenameMode, Reply,
    Request, Retry, Rmdir, SetXattr, Setattr, Stand, Unlink, XattrMode,
};

use super::{
    client::{Client, name},
    world::{Hold, Setup, World, in_world_of, on_core},
};

/// Runs `act` on two cores at the same time. Returns both results.
pub(super) fn on_two_cores<T: Send>(
    world: &World,
    act: impl AsyncFn(usize, &mut Client) -> T + Sync,
) -> [T; 2] {
    let (act, both) = (&act, &Barrier::new(2));
    let run = |index: usize| {
        let parts = world.parts();
        move || {
            let mut result = None;
            on_core(parts, index, async |world| {
                let mut client = world.client().await;
                both.wait();
                result = Some(act(index, &mut client).await);
            });
            result.expect("it ran")
        }
    };
    std::thread::scope(|scope| {
        let threads = [scope.spawn(run(1)), scope.spawn(run(2))];
        threads.map(|thread| thread.join().unwrap())
    })
}

fn in_wide_world(test: impl AsyncFnOnce(&mut World)) {
    in_world_of(Setup { cores: 3, ..Setup::default() }, test);
}

/// Asks until the answer is not `Busy`: another core may have been in the way.
async fn insist(client: &mut Client, request: &Request) -> Answer {
    loop {
        match client.ask(request.clone()).await {
            Answer::Retry(Retry::Busy) => {}
            answer => return answer,
        }
    }
}

/// The next of a sequence of random numbers; its upper half is good.
pub(super) fn next(random: u64) -> u64 {
    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1)
}

fn create(dir: DirRef, text: &str) -> Request {
    let kind = base::FileKind::File;
    Request::Create(Create {
        dir,
        name: name(text),
        kind,
        mode: 0o644,
        rdev: 0,
        exclusive: true,
        open: None,
    })
}

#[test]
fn of_two_creates_and_of_two_unlinks_of_a_name_one_succeeds() {
    in_wide_world(async |world| {
        let mut client = world.client().await;
        let dir = client.mkdir(&client.root.clone(), "d").await.unwrap();
        let names: Vec<String> = (0..400).map(|index| format!("f{index}")).collect();
        // Where one core is not scheduled while the other works, they are not at work together. In
        // every second round they wait for each other before each name: then the one that comes
        // last goes on at once, and is the first at the next name.
        let (mut together, step) = (false, &Barrier::new(2));
        for round in 0..20 {
            let in_step = || {
                if round % 2 == 1 {
                    step.wait();
                }
            };
            let made = on_two_cores(world, async |_, client| {
                let mut made = 0;
                for text in &names {
                    in_step();
                    let answer = insist(client, &create(dir, text)).await;
                    made += usize::from(matches!(answer, Answer::Done(_)));
                }
                made
            });
            assert_eq!(made[0] + made[1], 400);
            assert_eq!(client.stat(&dir).await.unwrap().size, 400);
            let removed = on_two_cores(world, async |_, client| {
                let mut removed = 0;
                for text in &names {
                    in_step();
                    let unlink = Request::Unlink(Unlink { dir, name: name(text) });
                    removed +=
                        usize::from(matches!(insist(client, &unlink).await, Answer::Done(_)));
                }
                removed
            });
            assert_eq!(removed[0] + removed[1], 400);
            assert_eq!(client.stat(&dir).await.unwrap().size, 0);
            together |= made[0] > 0 && made[1] > 0 && removed[0] > 0 && removed[1] > 0;
            if together {
                break;
            }
        }
        assert!(together, "one core always came after the other");
    });
}

#[test]
fn concurrent_renames_lose_no_file_and_double_none() {
    in_wide_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dirs =
            [client.mkdir(&root, "a").await.unwrap(), client.mkdir(&root, "b").await.unwrap()];
        let mut inos = Vec::new();
        for index in 0..8 {
            inos.push(
                client.create(&dirs[index % 2], &format!("f{}", index / 2)).await.unwrap().ino,
            );
        }
        let moved = on_two_cores(world, async |core, client| {
            let mut random = core as u64;
            let mut draw = |below: u64| {
                random = next(random);
                usize::try_from((random >> 33) % below).unwrap()
            };
            let mut moved = 0;
            for _ in 0..1500 {
                let mode = [RenameMode::NoReplace, RenameMode::Exchange][draw(2)];
                let rename = Rename {
                    from_dir: dirs[draw(2)],
                    from_name: name(&format!("f{}", draw(6))),
                    to_dir: dirs[draw(2)],
                    to_name: name(&format!("f{}", draw(6))),
                    mode,
                };
                let answer = insist(client, &Request::Rename(rename)).await;
                moved += usize::from(matches!(answer, Answer::Done(_)));
            }
            moved
        });
        assert!(moved[0] > 100 && moved[1] > 100);
        let mut found = Vec::new();
        for dir in &dirs {
            let page = client.page(dir, 0, 100).await.unwrap();
            found.extend(page.entries.iter().map(|entry| entry.ino));
        }
        found.sort_unstable();
        inos.sort_unstable();
        assert_eq!(found, inos);
    });
}

#[test]
fn concurrent_renames_of_directories_make_no_loop() {
    in_wide_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let mut dirs = vec![root];
        for index in 0..6 {
            dirs.push(client.mkdir(&root, &format!("d{index}")).await.unwrap());
        }
        let moved = on_two_cores(world, async |core, client| {
            let mut random = core as u64;
            let mut draw = |below: u64| {
                random = next(random);
                usize::try_from((random >> 33) % below).unwrap()
            };
            let mut moved = 0;
            for _ in 0..1500 {
                let text = name(&format!("d{}", draw(6)));
                let (from_dir, to_dir) = (dirs[draw(7)], dirs[draw(7)]);
                let (from_name, to_name) = (text.clone(), text);
                let mode = RenameMode::NoReplace;
                let rename = Rename { from_dir, from_name, to_dir, to_name, mode };
                let answer = insist(client, &Request::Rename(rename)).await;
                moved += usize::from(matches!(answer, Answer::Done(_)));
            }
            moved
        });
        assert!(moved[0] + moved[1] > 50, "{moved:?}");
    });
}

#[test]
fn whatever_two_cores_do_leaves_nothing_to_find() {
    for seed in 0..6 {
        in_wide_world(async |world| {
            let mut client = world.client().await;
            let root = client.root;
            let mut dirs = vec![root];
            for index in 0..3 {
                dirs.push(client.mkdir(&root, &format!("n{index}")).await.unwrap());
            }
            let done = on_two_cores(world, async |core, client| {
                let mut random = seed * 2 + core as u64;
                let mut done = 0;
                for _ in 0..700 {
                    let mut draw = |below: u64| {
                        random = next(random);
                        usize::try_from((random >> 33) % below).unwrap()
                    };
                    let picks = [draw(12), draw(4), draw(4), draw(4), draw(4), draw(2)];
                    done += usize::from(random_act(client, &dirs, picks).await);
                }
                done
            });
            assert!(done[0] > 100 && done[1] > 100, "{done:?}");
        });
    }
}

fn move_to_root(root: DirRef, from: &str, to: &str) -> Request {
    let (from_dir, to_dir, mode) = (root, root, RenameMode::NoReplace);
    let (from_name, to_name) = (name(from), name(to));
    Request::Rename(Rename { from_dir, from_name, to_dir, to_name, mode })
}

/// Runs clients on two cores, both of which know `/a` and `/a/b`. The next write of the first is
/// held up, and the second goes on when it is.
fn while_a_write_is_held<T: Send>(
    hold: Hold,
    first: impl AsyncFn(&mut Client, DirRef) -> T + Sync,
    second: impl AsyncFn(&mut Client, DirRef) -> T + Sync,
) -> [T; 2] {
    let mut done = None;
    let setup = Setup { cores: 3, background: false, ..Setup::default() };
    in_world_of(setup, async |world| {
        let mut client = world.client().await;
        let a = client.mkdir(&client.root.clone(), "a").await.unwrap();
        let b = client.mkdir(&a, "b").await.unwrap();
        let (engine, both) = (world.engine.clone(), Barrier::new(2));
        done = Some(on_two_cores(world, async |core, client| {
            client.stat(&b).await.unwrap();
            client.goes_by(&[&client.root.clone(), &a, &b]);
            both.wait();
            if core == 1 {
                engine.hold_next_write(hold);
                return first(client, b).await;
            }
            engine.until_held();
            let done = second(client, b).await;
            engine.go_on();
            done
        }));
    });
    done.expect("both have run")
}

#[test]
fn what_was_checked_on_an_old_path_is_there_before_the_path_has_changed() {
    let create_by_path = async |client: &mut Client, b: DirRef| {
        matches!(client.ask(create(b, "f")).await, Answer::Done(_))
    };
    for change in [
        |root: DirRef, _| move_to_root(root, "a", "z"),
        |_, b| {
            let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            Request::Setattr(Setattr { node: NodeRef::Dir(b), set })
        },
    ] {
        let change_and_look = async |client: &mut Client, b: DirRef| {
            client.stands_on = Stand::NONE;
            let answer = client.ask(change(client.root, b)).await;
            assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
            client.page(&b, 0, 100).await.unwrap().entries.len() == 1
        };
        let [created, seen] = while_a_write_is_held(Hold::Before, create_by_path, change_and_look);
        assert_eq!(created, seen, "it came where it was not named");
    }
}

#[test]
fn who_has_seen_a_directory_in_its_new_place_is_not_followed_by_who_goes_by_the_old() {
    let rename = async |client: &mut Client, _: DirRef| {
        let answer = client.ask(move_to_root(client.root, "a", "z")).await;
        matches!(answer, Answer::Done(_))
    };
    let look_and_create_by_path = async |client: &mut Client, b: DirRef| {
        let known = std::mem::replace(&mut client.stands_on, Stand::NONE);
        let moved = client.try_lookup(&client.root.clone(), "z").await.is_some();
        client.stands_on = known;
        let answer = client.ask(create(b, "f")).await;
        let stale = matches!(answer, Answer::Retry(Retry::StaleCache(_)));
        assert!(stale || matches!(answer, Answer::Done(_)), "{answer:?}");
        moved == stale
    };
    let done = while_a_write_is_held(Hold::After, rename, look_and_create_by_path);
    assert_eq!(done, [true, true]);
}

#[test]
fn a_close_and_a_lock_wait_for_what_another_core_does_with_the_file() {
    for ask in [
        |ino| Request::Release(Release { files: vec![(ino, 1)] }),
        |ino| Request::Lock(lock(ino, false)),
        |ino| Request::Lock(lock(ino, true)),
    ] {
        let setup = Setup { cores: 3, background: false, ..Setup::default() };
        in_world_of(setup, async |world| {
            let mut client = world.client().await;
            let root = client.root;
            let file = client.create(&root, "f").await.unwrap();
            let (engine, both) = (world.engine.clone(), Barrier::new(2));
            on_two_cores(world, async |core, client| {
                client.open_file(&file).await.unwrap();
                both.wait();
                if core == 1 {
                    engine.hold_next_write(Hold::Before);
                    client.chmod(&file, 0o600).await.unwrap();
                } else {
                    engine.until_held();
                    let answer = client.ask(ask(file.ino)).await;
                    assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
                    assert!(!engine.is_held(), "it did not wait for the other core");
                }
            });
        });
    }
}

fn lock(ino: Ino, wait: bool) -> Lock {
    Lock {
        ino,
        kind: LockKind::Whole,
        owner: 1,
        pid: 1,
        range: ByteRange::ALL,
        mode: Some(LockMode::Exclusive),
        wait,
        number: 1,
        settled: 1,
    }
}

/// Notes at its end, however it comes, that there is nothing more to wait for.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_check_of_what_another_core_is_changing_finds_nothing() {
    let setup = Setup { cores: 3, background: false, ..Setup::default() };
    in_world_of(setup, async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let mut dirs = vec![root];
        for index in 0..3 {
            dirs.push(client.mkdir(&root, &format!("n{index}")).await.unwrap());
        }
        let changes_end = AtomicBool::new(false);
        let done = on_two_cores(world, async |core, client| {
            let mut done = 0;
            if core == 2 {
                while !changes_end.load(Ordering::Acquire) {
                    let progress = client.fsck(true).await;
                    assert_eq!(progress.findings, Vec::<String>::new());
                    done += 1;
                }
                return done;
            }
            let _ends = Ends(&changes_end);
            let mut random = 5;
            for _ in 0..4000 {
                let mut draw = |below: u64| {
                    random = next(random);
                    usize::try_from((random >> 33) % below).unwrap()
                };
                let picks = [draw(12), draw(4), draw(4), draw(4), draw(4), draw(2)];
                done += usize::from(random_act(client, &dirs, picks).await);
            }
            done
        });
        assert!(done[0] > 1000 && done[1] > 5, "{done:?}");
        assert!(world.counter("blocks_deleted") > 10);
    });
}

/// Makes one random change in a small shared tree. Returns whether it was made.
pub(super) async fn random_act(client: &mut Client, dirs: &[DirRef], picks: [usize; 6]) -> bool {
    let [what, d1, n1, d2, n2, exchange] = picks;
    let names = ["n0", "n1", "n2", "n3"];
    let (dir, text, to_dir, to) = (dirs[d1], names[n1], dirs[d2], name(names[n2]));
    let found = client.try_lookup(&dir, text).await;
    let node = |entry: &Entry| entry.node(&dir, &name(text));
    let request = match (what, found) {
        (0 | 1, _) => create(dir, text),
        (2, _) => Request::Mkdir(Mkdir { dir, name: name(text), mode: 0o755 }),
        (3, _) => Request::Unlink(Unlink { dir, name: name(text) }),
        (4, _) => Request::Rmdir(Rmdir { dir, name: name(text) }),
        (5..=7, _) => {
            let mode = [RenameMode::Replace, RenameMode::Exchange][exchange];
            let (from_dir, from_name) = (dir, name(text));
            Request::Rename(Rename { from_dir, from_name, to_dir, to_name: to, mode })
        }
        (_, None) => return false,
        (8, Some(entry)) => Request::Link(Link { target: node(&entry), dir: to_dir, name: to }),
        (9, Some(entry)) => {
            let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            Request::Setattr(Setattr { node: node(&entry), set })
        }
        (10, Some(entry)) => {
            let (name, value) = ("user.x".into(), vec![1; 600 * exchange].into());
            Request::Setxattr(SetXattr { node: node(&entry), name, value, mode: XattrMode::Set })
        }
        (_, Some(entry)) => match node(&entry) {
            NodeRef::Dir(_) => return false,
            NodeRef::File(file) => {
                return write(client, &file, exchange).await;
            }
        },
    };
    matches!(client.ask(request).await, Answer::Done(_))
}

async fn write(client: &mut Client, file: &wire::FileRef, big: usize) -> bool {
    let data = vec![7; 10 + big * 5000];
    let block = client.next_block();
    let part = wire::BlockPart { block, block_bytes: 5010, offset: 0, ticket: 0 };
    let source = match big {
        0 => wire::SliceSource::Embedded(data.clone().into()),
        _ => {
            client.put_block(block, &data).await.unwrap();
            wire::SliceSource::Block(part)
        }
    };
    let len = u32::try_from(data.len()).unwrap();
    let chunks =
        vec![wire::ChunkSlices { chunk: 0, slices: vec![wire::Slice { start: 0, len, source }] }];
    let end = u64::from(len);
    let write = wire::Write {
        file: file.clone(),
        chunks,
        end,
        at: None,
        clear_set_id: false,
        set: None,
        blocks: Vec::new(),
    };
    matches!(client.ask(Request::Write(write)).await, Answer::Done(Reply::Written(_)))
}
