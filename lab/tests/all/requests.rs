//! Number of requests of each operation by path, and of servers that it touches, in a cluster of
//! four.
//!
//! The path is twenty directories deep, and goes over all servers. A warm client has walked it
//! before, a cold one is new; both have a session at every server. Questions between servers for an
//! operation count as well: a server is touched if it executes anything for the operation.

use std::{pin::Pin, time::Duration};

use base::{Locality, placement::shard_of};
use client::{Client, New};
use lab::sim::{
    plan::Plan,
    play::test_in,
    world::{Machine, World},
};
use wire::{Load, NodeRef, XattrMode};

const SERVERS: u16 = 4;
const DEPTH: usize = 20;

/// Runs a test in a world in which nothing goes wrong, and directories are homed by the rule of
/// `InfiniFS`. Clients send no requests just to keep their leases meanwhile.
fn in_cluster(test: impl AsyncFnOnce(&World)) {
    in_cluster_with(true, test);
}

/// Runs a test as [`in_cluster`] does, whose clients use fast paths or guess.
fn in_cluster_with(fast_paths: bool, test: impl AsyncFnOnce(&World)) {
    let long = Duration::from_secs(1000);
    let plan = Plan {
        fast_paths,
        shards: 64,
        locality: Locality::Directory,
        access_cache: true,
        inline_bytes_max: 4096,
        lease: long,
        server_lease: long,
        split_threshold: u64::MAX,
        ..Plan::draw(1, SERVERS)
    };
    test_in(plan, test);
}

/// Cost of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    /// Number of requests of the client.
    requests: u64,
    /// Number of servers that the client asks.
    asked: usize,
    /// Number of servers that execute anything for the operation.
    touched: usize,
}

async fn cost<T>(
    world: &World,
    client: &Client,
    operation: impl Future<Output = client::Result<T>>,
) -> Cost {
    let executed = || world.hosts().iter().map(|host| host.counter("requests")).collect::<Vec<_>>();
    let more = |after: &[u64], before: &[u64]| -> Vec<u64> {
        after.iter().zip(before).map(|(after, before)| after - before).collect()
    };
    // Work left by earlier operations goes first.
    world.wait(Duration::from_secs(1)).await;
    let (before, executed_before) = (client.requests_by_server(), executed());
    operation.await.unwrap();
    let requests = more(&client.requests_by_server(), &before);
    // Participants hear the outcome.
    world.wait(Duration::from_secs(1)).await;
    let touched = more(&executed(), &executed_before);
    let any = |counts: &[u64]| counts.iter().filter(|count| **count > 0).count();
    Cost { requests: requests.iter().sum(), asked: any(&requests), touched: any(&touched) }
}

/// A deep directory, and directories in it that other servers have.
struct Deep {
    path: String,
    elsewhere: Vec<String>,
}

async fn make_deep(world: &World) -> Deep {
    let machine = world.connect("maker").await.unwrap();
    let client = &machine.client;
    let path: String = (0..DEPTH).map(|depth| format!("/d{depth}")).collect();
    client.create_dir_all(&path, 0o755).await.unwrap();
    for name in ["f", "g", "h", "many"] {
        client.write(format!("{path}/{name}"), b"x").await.unwrap();
    }
    client.link(format!("{path}/many"), format!("{path}/again")).await.unwrap();
    client.symlink("f", format!("{path}/symlink")).await.unwrap();
    let here = server_of(client, &path, world).await;
    let mut elsewhere = Vec::new();
    for number in 0..16 {
        let dir = format!("{path}/sub{number}");
        client.mkdir(&dir, 0o755).await.unwrap();
        if server_of(client, &dir, world).await != here {
            elsewhere.push(dir);
        }
    }
    machine.close().await.unwrap();
    Deep { path, elsewhere }
}

/// A client with a session at every server that knows of no directory.
async fn newcomer(world: &World) -> Machine {
    let machine = world.connect("newcomer").await.unwrap();
    // Each lookup finds nothing, but the client asks everywhere.
    for number in 0..64 {
        drop(machine.client.stat(format!("/nothing/{number}")).await);
    }
    machine
}

/// The server of a directory.
async fn server_of(client: &Client, path: &str, world: &World) -> u16 {
    match client.resolve(path).await.unwrap() {
        NodeRef::Dir(dir) => shard_of(dir.home, 0, world.plan().shards).0 % SERVERS,
        NodeRef::File(_) => unreachable!("it is a directory"),
    }
}

type Operation<'a> = Pin<Box<dyn Future<Output = client::Result<()>> + 'a>>;

/// An operation in the deep directory, in which the earlier ones were done.
fn operation<'a>(client: &'a Client, deep: &'a Deep, name: &str) -> Operation<'a> {
    let Deep { path: at, elsewhere } = deep;
    let [sub, gone, moves, mode, ..] = &elsewhere[..] else { unreachable!("there are sixteen") };
    let in_it = move |name: &str| format!("{at}/{name}");
    let new = New { kind: base::FileKind::File, mode: 0o644, rdev: 0 };
    macro_rules! done {
        ($done:expr) => {
            Box::pin(async move { $done.await.map(drop) })
        };
    }
    match name {
        "create a file" => done!(client.mknod(in_it("new"), new)),
        "stat a file" => done!(client.stat(in_it("new"))),
        "stat a directory" => done!(client.stat(sub)),
        "list a directory" => done!(async { client.read_dir(at).await?.all().await }),
        "open a file" => done!(async { client.open(in_it("f")).await.map(std::mem::forget) }),
        "read a small file" => done!(client.read(in_it("f"))),
        "write a small file" => done!(client.write(in_it("f"), b"other")),
        "chmod a file" => done!(client.chmod(in_it("f"), 0o600)),
        "truncate a file" => done!(client.truncate(in_it("f"), 1)),
        "set an attribute" => done!(client.set_xattr(in_it("f"), "user.a", b"b", XattrMode::Set)),
        "list attributes" => done!(client.list_xattrs(in_it("f"))),
        "make a symbolic link" => done!(client.symlink("f", in_it("other symlink"))),
        "read a symbolic link" => done!(client.readlink(in_it("symlink"))),
        "rename a file within its directory" => done!(client.rename(in_it("g"), in_it("g2"))),
        "rename a file to another directory" => {
            done!(client.rename(in_it("h"), format!("{sub}/h")))
        }
        "stat that file" => done!(client.stat(format!("{sub}/h"))),
        "link a file" => done!(client.link(in_it("f"), in_it("f2"))),
        "link a file into another directory" => done!(client.link(in_it("f"), format!("{sub}/f"))),
        "stat a file with several names" => done!(client.stat(in_it("many"))),
        "unlink one of several names" => done!(client.unlink(in_it("again"))),
        "unlink one that is elsewhere" => done!(client.unlink(format!("{sub}/f"))),
        "unlink a file" => done!(client.unlink(in_it("new"))),
        "make a directory" => done!(client.mkdir(in_it("newer"), 0o755)),
        "remove a directory" => done!(client.rmdir(gone)),
        "rename a directory" => done!(client.rename(moves, format!("{sub}/moved"))),
        "chmod a directory" => done!(client.chmod(mode, 0o700)),
        other => unreachable!("{other} is no operation"),
    }
}

/// Cost of each operation: requests, servers that the client asks, and servers that do anything for
/// it.
type Table = [(&'static str, u64, usize, usize)];

/// With a warm cache each operation is one request to one server, with exceptions:
/// - two requests where a file is found by its name, and then named by its inode: to open it, to
///   change or list its attributes, to link it; and four to replace its contents;
/// - where a name or a directory is made or removed on another server than the one that is asked,
///   that server prepares it;
/// - the contents of a file that was moved stay on the server of its birth, which the server of its
///   name asks;
/// - a directory that moves, or whose permissions change, is announced to all servers.
const WARM: &Table = &[
    ("create a file", 1, 1, 1),
    ("stat a file", 1, 1, 1),
    ("stat a directory", 1, 1, 1),
    ("list a directory", 1, 1, 1),
    ("open a file", 2, 1, 1),
    ("read a small file", 2, 1, 1),
    ("write a small file", 4, 1, 1),
    ("chmod a file", 2, 1, 1),
    ("truncate a file", 2, 1, 1),
    ("set an attribute", 2, 1, 1),
    ("list attributes", 2, 1, 1),
    ("make a symbolic link", 1, 1, 1),
    ("read a symbolic link", 1, 1, 1),
    ("rename a file within its directory", 1, 1, 1),
    ("rename a file to another directory", 1, 1, 2),
    ("stat that file", 1, 1, 2),
    ("link a file", 2, 1, 1),
    ("link a file into another directory", 2, 2, 2),
    ("stat a file with several names", 1, 1, 1),
    ("unlink one of several names", 1, 1, 1),
    ("unlink one that is elsewhere", 1, 1, 2),
    ("unlink a file", 1, 1, 1),
    ("make a directory", 1, 1, 2),
    ("remove a directory", 1, 1, 2),
    ("rename a directory", 1, 1, 4),
    ("chmod a directory", 2, 1, 4),
];

/// Cold, one message to the server of the last directory finds the whole path. That server asks
/// others only where it lacks a directory on the way. A stat, or another operation that the walk
/// itself answers, costs no more. An operation by name, or on what was found, costs one request
/// more, as does a second path; and so do the attributes of a directory, which are elsewhere.
const COLD: &Table = &[
    ("create a file", 2, 1, 4),
    ("stat a file", 1, 1, 1),
    ("stat a directory", 2, 2, 2),
    ("list a directory", 2, 1, 1),
    ("open a file", 2, 1, 1),
    ("read a small file", 2, 1, 1),
    ("write a small file", 5, 1, 1),
    ("chmod a file", 2, 1, 1),
    ("truncate a file", 2, 1, 1),
    ("set an attribute", 2, 1, 1),
    ("list attributes", 2, 1, 1),
    ("make a symbolic link", 2, 1, 1),
    ("read a symbolic link", 1, 1, 1),
    ("rename a file within its directory", 2, 1, 1),
    ("rename a file to another directory", 3, 1, 2),
    ("stat that file", 1, 1, 4),
    ("link a file", 2, 1, 1),
    ("link a file into another directory", 3, 2, 2),
    ("stat a file with several names", 1, 1, 1),
    ("unlink one of several names", 2, 1, 1),
    ("unlink one that is elsewhere", 2, 1, 2),
    ("unlink a file", 2, 1, 1),
    ("make a directory", 2, 1, 2),
    ("remove a directory", 2, 1, 2),
    ("rename a directory", 3, 1, 4),
    ("chmod a directory", 2, 1, 4),
];

#[test]
fn what_each_operation_costs_with_a_warm_cache() {
    in_cluster(async |world| {
        let deep = make_deep(world).await;
        let machine = newcomer(world).await;
        let client = &machine.client;
        let mut found = Vec::new();
        for (name, ..) in WARM {
            // Changes of a directory on the way made the client drop it.
            for dir in &deep.elsewhere {
                drop(client.stat(dir).await);
            }
            let cost = cost(world, client, operation(client, &deep, name)).await;
            found.push((*name, cost.requests, cost.asked, cost.touched));
        }
        assert_eq!(found, WARM, "{}", shown(&found));
        machine.close().await.unwrap();
    });
}

#[test]
fn what_each_operation_costs_when_nothing_is_known() {
    in_cluster(async |world| {
        let deep = make_deep(world).await;
        let mut found = Vec::new();
        for (name, ..) in COLD {
            let machine = newcomer(world).await;
            let client = &machine.client;
            let cost = cost(world, client, operation(client, &deep, name)).await;
            found.push((*name, cost.requests, cost.asked, cost.touched));
            machine.close().await.unwrap();
        }
        assert_eq!(found, COLD, "{}", shown(&found));
    });
}

fn shown(table: &Table) -> String {
    table.iter().map(|row| format!("    {row:?},\n")).collect()
}

#[test]
fn a_move_of_a_directory_has_parts_at_the_coordinator() {
    in_cluster(async |world| {
        let deep = make_deep(world).await;
        let machine = newcomer(world).await;
        let client = &machine.client;
        operation(client, &deep, "rename a directory").await.unwrap();
        world.wait(Duration::from_secs(1)).await;
        let loads = client.loads().await.unwrap();
        let moves = |load: &Load| -> Vec<(String, u64)> {
            let parts = load.distributions.iter().filter_map(|(name, part)| {
                let part_name = name.strip_prefix("transaction.move.")?;
                assert_eq!(part.buckets.iter().sum::<u64>(), 1, "{name}");
                Some((part_name.to_owned(), part.sum))
            });
            parts.collect()
        };
        let parts = moves(&loads[0]);
        let names: Vec<_> = parts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["again", "read", "prepare", "announce", "commit", "sync", "tell"]);
        // Messages to others take time, even here.
        for (name, nanos) in &parts {
            let far = ["read", "prepare", "announce", "tell"].contains(&name.as_str());
            assert!(*nanos > 0 || !far, "{parts:?}");
        }
        assert!(loads[1..].iter().all(|load| moves(load).is_empty()));
        machine.close().await.unwrap();
    });
}

#[test]
fn a_directory_of_another_server_that_was_met_before_is_read_only_when_it_has_changed() {
    in_cluster(async |world| {
        let Deep { path, elsewhere } = make_deep(world).await;
        let machine = newcomer(world).await;
        let client = &machine.client;
        // A server that has nothing of what is above the directories.
        let to = &elsewhere[1];
        client.write(format!("{to}/taken"), b"x").await.unwrap();
        let server = usize::from(server_of(client, to, world).await);
        // Numbers of requests to the other server to read, and to prepare.
        let asked = async || {
            let load = client.loads().await.unwrap().swap_remove(server);
            ["peer_read", "prepare"].map(|name| {
                let operation = load.operations.iter().find(|operation| operation.name == name);
                let outcomes = operation.map_or(&[][..], |operation| &operation.outcomes);
                outcomes.iter().map(|(_, times)| times).sum::<u64>()
            })
        };
        let rename = async |name: &str, new: &str| {
            client.write(format!("{path}/{name}"), b"x").await.unwrap();
            world.wait(Duration::from_secs(1)).await;
            let before = asked().await;
            client.rename(format!("{path}/{name}"), format!("{to}/{new}")).await.unwrap();
            let after = asked().await;
            (after[0] - before[0], after[1] - before[1])
        };
        assert_eq!(rename("a", "a").await, (1, 1));
        assert_eq!(rename("b", "b").await, (0, 1));
        assert_eq!(rename("c", "taken").await, (2, 2), "the name is not free");
        assert_eq!(rename("d", "d").await, (1, 1));
        assert_eq!(rename("e", "e").await, (0, 1));
        client.chmod(to, 0o700).await.unwrap();
        assert_eq!(rename("s", "s").await, (1, 2), "the directory is not what it was");
        assert_eq!(rename("t", "t").await, (0, 1));
        assert_eq!(client.read_dir(to).await.unwrap().all().await.unwrap().len(), 7);
        machine.close().await.unwrap();
    });
}

#[test]
fn a_cold_path_is_one_message_to_one_server() {
    in_cluster(async |world| {
        let path = make_deep(world).await.path;
        let first = world.connect("first").await.unwrap();
        let Cost { requests, touched, .. } =
            cost(world, &first.client, first.client.stat(format!("{path}/f"))).await;
        assert!(requests == 1 && touched > 1, "its server asks others for what it lacks");
        first.close().await.unwrap();
        for name in ["f", "g", "nothing"] {
            let machine = world.connect("cold").await.unwrap();
            let client = &machine.client;
            let look = async { Ok(client.stat(format!("{path}/{name}")).await.is_ok()) };
            let Cost { requests, asked, touched } = cost(world, client, look).await;
            assert_eq!((requests, asked, touched), (1, 1, 1), "{name}");
            let stats = client.stats();
            assert_eq!((stats.fast_paths, stats.slow_paths, stats.speculations), (1, 0, 0));
            machine.close().await.unwrap();
        }
        // The attributes of a directory are at its own server.
        let machine = world.connect("cold").await.unwrap();
        let stat = machine.client.stat(&path);
        assert!(cost(world, &machine.client, stat).await.requests <= 2);
        machine.close().await.unwrap();
    });
}

#[test]
fn without_fast_paths_a_cold_path_is_one_round_of_a_message_to_each_server() {
    in_cluster_with(false, async |world| {
        let path = make_deep(world).await.path;
        for path in [format!("{path}/f"), path] {
            let machine = world.connect("cold").await.unwrap();
            let client = &machine.client;
            let Cost { requests, asked, .. } = cost(world, client, client.stat(&path)).await;
            assert_eq!((requests, asked), (u64::from(SERVERS), usize::from(SERVERS)));
            let stats = client.stats();
            assert_eq!((stats.speculations, stats.mispredictions), (1, 0));
            machine.close().await.unwrap();
        }
    });
}

#[test]
fn a_directory_that_was_moved_takes_one_round_more() {
    in_cluster_with(false, async |world| {
        let path = make_deep(world).await.path;
        let mover = world.connect("mover").await.unwrap();
        mover.client.rename("/d0/d1", "/d0/moved").await.unwrap();
        mover.close().await.unwrap();
        let machine = world.connect("cold").await.unwrap();
        let client = &machine.client;
        client.stat(path.replace("/d1/", "/moved/")).await.unwrap();
        let stats = client.stats();
        assert_eq!((stats.speculations, stats.mispredictions), (2, 1));
        machine.close().await.unwrap();
    });
}
