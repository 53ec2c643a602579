//! A check of a cluster finds what is wrong between its servers, names it, and repairs it.
//!
//! Each test begins with a sound cluster, on which nothing is found, and ends with one; but for those that say what is not repaired.
#![expect(clippy::unwrap_used, clippy::panic, reason = "all of this is tests")]

use std::{ops::ControlFlow, time::Duration};

use base::{BlockId, Cred, Encode as _, Locality, SessionId, placement::shard_of};
use client::{Client, FileSystem as _, Fsck, Result};
use futures::StreamExt as _;
use lab::sim::{plan::Plan, trace::Trace, world::World};
use store::{Batch, Engine as _};
use tokio::task::LocalSet;
use wire::{DirRef, XattrMode};

const SERVERS: u16 = 3;
/// Bytes of an `N` key before the directory.
const KIND: usize = 2;

struct Cluster {
    world: World,
    shards: u16,
}

type Record = (Vec<u8>, Vec<u8>);

/// Runs a test on a tree over three servers: `/d0` to `/d5`, `/p/q/r`, where `q` was born as `/q`, and `/file`, linked into each of
/// `/d0` to `/d5`.
fn on_a_cluster(test: impl AsyncFnOnce(&Cluster, &Client)) {
    with_cluster(async |cluster, client| {
        test(cluster, client).await;
        let found = findings(&cluster.world, client).await;
        assert_ne!(found, [""; 0]);
        let repaired = repair(&cluster.world, client).await;
        let (repaired, wrong): (Vec<_>, Vec<_>) =
            repaired.into_iter().partition(|line| line.starts_with("repaired: "));
        assert_eq!(wrong, [""; 0], "after {repaired:#?} of {found:#?}");
        assert_ne!(repaired, [""; 0]);
        assert_eq!(findings(&cluster.world, client).await, [""; 0]);
        assert_eq!(repair(&cluster.world, client).await, [""; 0]);
    });
}

/// As [`on_a_cluster`], of what is not repaired.
fn with_cluster(test: impl AsyncFnOnce(&Cluster, &Client)) {
    in_world(plan(1), test);
}

/// A world in which nothing divides what is damaged.
fn plan(seed: u64) -> Plan {
    Plan { split_threshold: u64::MAX, ..Plan::draw(seed, SERVERS) }
}

fn in_world(plan: Plan, test: impl AsyncFnOnce(&Cluster, &Client)) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let shards = plan.shards;
        let world = World::new(plan, None, &Trace::new(false)).unwrap();
        world.form().await.unwrap();
        let machine = world.connect("plants").await.unwrap();
        let client = &machine.client;
        client.write("/file", b"contents").await.unwrap();
        for dir in 0..6 {
            client.mkdir(format!("/d{dir}"), 0o755).await.unwrap();
            client.link("/file", format!("/d{dir}/link")).await.unwrap();
        }
        client.mkdir("/p", 0o755).await.unwrap();
        client.mkdir("/q", 0o755).await.unwrap();
        client.rename("/q", "/p/q").await.unwrap();
        client.mkdir("/p/q/r", 0o755).await.unwrap();
        client.sync().await.unwrap();
        world.wait(Duration::from_secs(5)).await;
        assert_eq!(findings(&world, client).await, [""; 0]);
        test(&Cluster { world: world.clone(), shards }, client).await;
    });
}

/// What a check says.
async fn findings(world: &World, client: &Client) -> Vec<String> {
    followed(world, client, client.fsck_start_everywhere(false).await.unwrap()).await
}

/// What a check says that repairs.
async fn repair(world: &World, client: &Client) -> Vec<String> {
    followed(world, client, client.repair_start_everywhere(false, false).await.unwrap()).await
}

async fn followed(world: &World, client: &Client, check: Fsck) -> Vec<String> {
    try_follow(world, client, check).await.unwrap()
}

async fn try_follow(world: &World, client: &Client, mut check: Fsck) -> Result<Vec<String>> {
    loop {
        let progress = check.poll(client, false).await?;
        if progress.done {
            return Ok(progress.findings);
        }
        world.wait(Duration::from_millis(50)).await;
    }
}

/// As [`repair`], where another may be under way.
async fn try_repair(world: &World, client: &Client) -> Result<Vec<String>> {
    try_follow(world, client, client.repair_start_everywhere(false, false).await?).await
}

impl Cluster {
    fn host(&self, shard: u16) -> usize {
        usize::from(shard % SERVERS)
    }

    /// The records of a kind on a shard of a directory.
    fn of_dir(&self, kind: u8, dir: &DirRef) -> Vec<Record> {
        let shard = shard_of(dir.home, 0, self.shards).0;
        let prefix = [&shard.to_be_bytes()[..], &[kind], &dir.id.0.to_be_bytes()].concat();
        let (mut found, mut end) = (Vec::new(), prefix.clone());
        end.extend([u8::MAX; 8]);
        let mut take = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        self.world.hosts()[self.host(shard)].engine().scan(&prefix, &end, &mut take).unwrap();
        found
    }

    /// The entry of a name.
    fn entry(&self, dir: &DirRef, name: &str) -> Record {
        let end = [name.as_bytes(), &[0, 0]].concat();
        let mut all = self.of_dir(b'N', dir).into_iter();
        all.find(|(key, _)| key.ends_with(&end)).unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut Batch), key: &[u8]) {
        let shard = u16::from_be_bytes([key[0], key[1]]);
        let host = &self.world.hosts()[self.host(shard)];
        let mut batch = Batch::default();
        change(&mut batch);
        host.engine().write(batch).unwrap();
        host.engine().sync().unwrap();
        // What it remembers of that goes with it.
        host.kill();
        host.start().unwrap();
    }

    fn delete(&self, key: &[u8]) {
        self.change(|batch| batch.delete(key), key);
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        self.change(|batch| batch.put(key, value), key);
    }

    /// Writes behind the back of a server, which goes on.
    fn slip(&self, host: usize, key: &[u8], value: &[u8]) {
        let mut batch = Batch::default();
        batch.put(key, value);
        self.world.hosts()[host].engine().write(batch).unwrap();
    }

    fn get(&self, host: usize, key: &[u8]) -> Option<Vec<u8>> {
        Some(self.world.hosts()[host].engine().get(key).unwrap()?.to_vec())
    }

    /// What is wrong stays so, and this is said of it.
    async fn stays(&self, client: &Client, what: &str) {
        for _ in 0..2 {
            let found = repair(&self.world, client).await;
            assert!(found.iter().any(|line| line.contains(what)), "{what}: {found:#?}");
            assert!(!found.iter().any(|line| line.starts_with("repaired: ")), "{found:#?}");
        }
    }

    async fn finds(&self, client: &Client, what: &str) {
        let found = findings(&self.world, client).await;
        assert!(found.iter().any(|line| line.contains(what)), "{what}: {found:#?}");
    }
}

async fn dir(client: &Client, from: &DirRef, name: &str) -> DirRef {
    let name = base::EntryName::new(name.as_bytes()).unwrap();
    client.lookup(&Cred::ROOT, from, &name).await.unwrap().dir.unwrap()
}

/// A directory of the root that another server has, and its name.
async fn elsewhere(cluster: &Cluster, client: &Client) -> (DirRef, String) {
    let root = client.root().0;
    let host = |dir: &DirRef| cluster.host(shard_of(dir.home, 0, cluster.shards).0);
    for number in 0..6 {
        let name = format!("d{number}");
        let found = dir(client, &root, &name).await;
        if host(&found) != host(&root) {
            return (found, name);
        }
    }
    panic!("all directories are on one server");
}

#[test]
fn what_nothing_leads_to_goes_to_the_partition_that_has_its_name() {
    on_a_cluster(async |cluster, client| {
        let root = client.root().0;
        client.mkdir("/lost+found", 0o700).await.unwrap();
        let set = client.set_xattr("/lost+found", "pando.large_dir", b"3", XattrMode::Set);
        set.await.unwrap();
        for number in 0..6 {
            client.write(format!("/first{number}"), b"contents").await.unwrap();
            client.link(format!("/first{number}"), format!("/second{number}")).await.unwrap();
        }
        client.sync().await.unwrap();
        for name in (0..6).flat_map(|number| ["first", "second"].map(|at| format!("{at}{number}")))
        {
            cluster.delete(&cluster.entry(&root, &name).0);
        }
        let found = repair(&cluster.world, client).await;
        assert!(found.iter().all(|line| line.starts_with("repaired: ")), "{found:#?}");
        let listed = client.read_dir("/lost+found").await.unwrap().all().await.unwrap();
        assert_eq!(listed.len(), 6);
        for entry in listed {
            let read = client.read(format!("/lost+found/{}", entry.name)).await.unwrap();
            assert_eq!(&read[..], b"contents");
        }
        // What is left to find for the check behind this.
        let (key, _) = cluster.entry(&root, "p");
        cluster.delete(&key);
    });
}

#[test]
fn a_directory_without_contents_on_another_server_is_found() {
    on_a_cluster(async |cluster, client| {
        let (lost, name) = elsewhere(cluster, client).await;
        let (key, _) = cluster.of_dir(b'D', &lost).remove(0);
        cluster.delete(&key);
        cluster.finds(client, &format!("/{name} has no content record")).await;
    });
}

#[test]
fn a_directory_without_its_entry_on_another_server_is_found() {
    on_a_cluster(async |cluster, client| {
        let (_, name) = elsewhere(cluster, client).await;
        let (key, _) = cluster.entry(&client.root().0, &name);
        cluster.delete(&key);
        cluster.finds(client, &format!("/{name} is not there, but its contents are")).await;
    });
}

#[test]
fn a_directory_that_is_entered_twice_is_found() {
    on_a_cluster(async |cluster, client| {
        let (_, name) = elsewhere(cluster, client).await;
        let (key, value) = cluster.entry(&client.root().0, &name);
        let end = key.len() - name.len() - 2;
        cluster.put(&[&key[..end], b"twice\0\0"].concat(), &value);
        cluster.finds(client, "/twice is the directory that is at ").await;
    });
}

#[test]
fn an_inode_whose_names_are_on_other_servers_counts_them() {
    on_a_cluster(async |cluster, client| {
        let (dir, _) = elsewhere(cluster, client).await;
        let (key, _) = cluster.entry(&dir, "link");
        cluster.delete(&key);
        cluster.finds(client, "counts 7 names, but all servers together have 6").await;
    });
}

#[test]
fn a_record_of_a_shard_that_another_server_has_is_found_and_stays() {
    with_cluster(async |cluster, client| {
        let (dir, _) = elsewhere(cluster, client).await;
        let (key, value) = cluster.of_dir(b'D', &dir).remove(0);
        let here = cluster.host(u16::from_be_bytes([key[0], key[1]]));
        cluster.slip((here + 1) % usize::from(SERVERS), &key, &value);
        cluster.finds(client, "a record of a shard that another server has").await;
        cluster.stays(client, "a record of a shard that another server has").await;
    });
}

#[test]
fn a_loop_that_nothing_leads_to_is_found() {
    on_a_cluster(async |cluster, client| {
        let p = dir(client, &client.root().0, "p").await;
        let q = dir(client, &p, "q").await;
        let r = dir(client, &q, "r").await;
        // `q` is in `r`, which is in `q`.
        let (key, entry) = cluster.entry(&p, "q");
        let shard = shard_of(r.home, 0, cluster.shards).0.to_be_bytes();
        let rest = &key[KIND + 1 + 16..];
        cluster.delete(&key);
        cluster.put(&[&shard[..], b"N", &r.id.0.to_be_bytes(), rest].concat(), &entry);
        let (key, content) = cluster.of_dir(b'D', &q).remove(0);
        let pointer = |dir: &DirRef| {
            let mut bytes = Vec::new();
            (dir.id, dir.ino).encode(&mut bytes);
            dir.home.encode(&mut bytes);
            bytes
        };
        let (from, to) = (pointer(&p), pointer(&r));
        let at = content.windows(from.len()).position(|bytes| bytes == from).unwrap();
        let content = [&content[..at], &to, &content[at + from.len()..]].concat();
        cluster.put(&key, &content);
        cluster.finds(client, &format!("directory {} is in a loop", q.id)).await;
    });
}

#[test]
fn a_directory_whose_parent_is_gone_is_in_lost_and_found_with_all_below_it() {
    on_a_cluster(async |cluster, client| {
        // Contents and all entries of the directory that `q` is in are gone.
        let p = dir(client, &client.root().0, "p").await;
        let (key, _) = cluster.entry(&client.root().0, "p");
        cluster.delete(&key);
        let (key, _) = cluster.of_dir(b'D', &p).remove(0);
        cluster.delete(&key);
        let (key, _) = cluster.entry(&p, "q");
        cluster.delete(&key);
        cluster.finds(client, "is in a directory that is not there").await;
        let repaired = repair(&cluster.world, client).await;
        assert!(repaired.iter().all(|line| line.starts_with("repaired: ")), "{repaired:#?}");
        let found = client.read_dir("/lost+found").await.unwrap().all().await.unwrap();
        let mut below = Vec::new();
        for entry in found {
            let name = String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
            below.extend(client.stat(format!("/lost+found/{name}/r")).await.ok());
        }
        assert_eq!(below.len(), 1, "{repaired:#?}");
        // So that there is something to repair.
        let (key, _) = cluster.entry(&dir(client, &client.root().0, "d0").await, "link");
        cluster.delete(&key);
    });
}

#[test]
fn names_that_lead_to_no_inode_are_removed() {
    on_a_cluster(async |cluster, client| {
        let ino = client.stat("/file").await.unwrap().ino;
        let key = [&ino.shard().0.to_be_bytes()[..], b"I", &ino.0.to_be_bytes(), &[0]].concat();
        cluster.delete(&key);
        cluster.finds(client, &format!("leads to inode {ino}, which is not in its slot")).await;
    });
}

#[test]
fn an_inode_without_any_name_gets_one() {
    on_a_cluster(async |cluster, client| {
        let ino = client.stat("/file").await.unwrap().ino;
        for number in 0..6 {
            let holder = dir(client, &client.root().0, &format!("d{number}")).await;
            let (key, _) = cluster.entry(&holder, "link");
            cluster.delete(&key);
        }
        let (key, _) = cluster.entry(&client.root().0, "file");
        cluster.delete(&key);
        cluster.finds(client, "counts 7 names, but all servers together have 0").await;
        repair(&cluster.world, client).await;
        let saved = client.read(format!("/lost+found/{}", ino.0)).await.unwrap();
        assert_eq!(&saved[..], b"contents");
        let (key, _) = cluster.entry(&client.root().0, "d0");
        cluster.delete(&key);
    });
}

#[test]
fn an_entry_that_repeats_another_mode_gets_the_right_one() {
    on_a_cluster(async |cluster, client| {
        let (found, name) = elsewhere(cluster, client).await;
        let (key, content) = cluster.of_dir(b'D', &found).remove(0);
        let (mut was, mut new) = (Vec::new(), Vec::new());
        0o755u32.encode(&mut was);
        0o700u32.encode(&mut new);
        let at = content.windows(was.len()).position(|bytes| bytes == was).unwrap();
        let content = [&content[..at], &new, &content[at + was.len()..]].concat();
        cluster.put(&key, &content);
        cluster.finds(client, &format!("/{name}: its entry has another mode, owner or home")).await;
    });
}

#[test]
fn a_directory_that_was_moved_is_known_where_it_was_born() {
    on_a_cluster(async |cluster, client| {
        let q = [b"q", &[0, 1][..]].concat();
        let all = cluster.of_dir(b'N', &client.root().0).into_iter();
        let (key, _) = all.into_iter().find(|(key, _)| key.ends_with(&q)).unwrap();
        cluster.delete(&key);
        cluster.finds(client, "was moved and its birth place does not know").await;
    });
}

#[test]
fn inode_numbers_that_two_servers_use_are_found_and_stay() {
    with_cluster(async |cluster, client| {
        let (found, name) = elsewhere(cluster, client).await;
        let host = cluster.host(shard_of(found.home, 0, cluster.shards).0);
        let mut taken = None;
        for path in ["/file", "/p", "/q", "/d0", "/d1", "/d2", "/d3", "/d4", "/d5"] {
            let Ok(attr) = client.stat(path).await else { continue };
            let other = if attr.kind == base::FileKind::Directory {
                let there = dir(client, &client.root().0, &path[1..]).await;
                cluster.host(shard_of(there.home, 0, cluster.shards).0)
            } else {
                cluster.host(attr.ino.shard().0)
            };
            taken = taken.or((other != host).then_some(attr.ino));
        }
        let (mut was, mut new) = (Vec::new(), Vec::new());
        found.ino.encode(&mut was);
        let taken = taken.unwrap();
        taken.encode(&mut new);
        let records =
            [cluster.of_dir(b'D', &found).remove(0), cluster.entry(&client.root().0, &name)];
        for (key, record) in records {
            let at = record.windows(was.len()).position(|bytes| bytes == was).unwrap();
            cluster.put(&key, &[&record[..at], &new, &record[at + was.len()..]].concat());
        }
        let line = format!("inode number {taken} is used on several servers: ");
        cluster.finds(client, &line).await;
        cluster.stays(client, &line).await;
    });
}

/// The key of a transaction that is prepared.
fn prepared(server: u16) -> Vec<u8> {
    let number = 12345u64;
    [&[0, 0, b'P'][..], &server.to_be_bytes(), &77u64.to_be_bytes(), &number.to_be_bytes()].concat()
}

/// A prepared record that would put `value` under `key`.
fn would_put(version: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut record = vec![version];
    Vec::<bytes::Bytes>::new().encode(&mut record);
    let put = wire::PeerWrite::Put((key.to_vec().into(), value.to_vec().into()));
    vec![put].encode(&mut record);
    None::<bytes::Bytes>.encode(&mut record);
    record
}

#[test]
fn a_transaction_that_stays_prepared_ends_as_its_initiator_says() {
    on_a_cluster(async |cluster, client| {
        let (found, _) = elsewhere(cluster, client).await;
        let (key, value) = cluster.entry(&found, "link");
        let host = cluster.host(u16::from_be_bytes([key[0], key[1]]));
        let end = key.len() - "link".len() - 2;
        let new = [&key[..end], b"new\0\0"].concat();
        let initiator = u16::try_from((host + 1) % usize::from(SERVERS)).unwrap();
        cluster.slip(host, &prepared(initiator), &would_put(value[0], &new, &value));
        cluster.finds(client, "stays prepared, which says that it is aborted").await;
        assert_eq!(cluster.get(host, &new), None);
    });
}

#[test]
fn a_transaction_that_is_committed_elsewhere_is_applied() {
    on_a_cluster(async |cluster, client| {
        let (found, name) = elsewhere(cluster, client).await;
        let (key, value) = cluster.entry(&found, "link");
        let host = cluster.host(u16::from_be_bytes([key[0], key[1]]));
        let initiator = (host + 1) % usize::from(SERVERS);
        // It is to put back what is taken away here.
        cluster.delete(&key);
        let id = prepared(u16::try_from(initiator).unwrap());
        cluster.slip(host, &id, &would_put(value[0], &key, &value));
        let mut committed = id.clone();
        committed[2] = b'X';
        let mut record = vec![value[0]];
        vec![u16::try_from(host).unwrap()].encode(&mut record);
        None::<bytes::Bytes>.encode(&mut record);
        cluster.slip(initiator, &committed, &record);
        cluster.finds(client, "stays prepared, which says that it is committed").await;
        let repaired = repair(&cluster.world, client).await;
        assert!(repaired.iter().all(|line| line.starts_with("repaired: ")), "{repaired:#?}");
        assert_eq!(client.stat(format!("/{name}/link")).await.unwrap().nlink, 7);
        cluster.delete(&key);
    });
}

#[test]
fn a_transaction_that_nobody_can_have_begun_stays() {
    with_cluster(async |cluster, client| {
        let (found, _) = elsewhere(cluster, client).await;
        let (key, value) = cluster.entry(&found, "link");
        let host = cluster.host(u16::from_be_bytes([key[0], key[1]]));
        cluster.slip(host, &prepared(SERVERS + 4), &would_put(value[0], b"\0\0Nnone", b""));
        cluster.stays(client, "stays prepared, and no other server can have begun it").await;
    });
}

/// Worlds that are used while they are checked.
const BUSY: u64 = 60;

#[test]
fn what_is_not_damaged_stays_as_it_is_while_it_is_used() {
    for seed in 1..=BUSY {
        in_world(plan(seed), what_is_used_stays);
    }
}

async fn what_is_used_stays(cluster: &Cluster, client: &Client) {
    let machine = cluster.world.connect("busy").await.unwrap();
    // A name that goes round is seen by none of the servers, or by two.
    client.link("/file", "/d0/round").await.unwrap();
    let busy = async {
        for round in 0.. {
            let (from, to) = (round % 6, (round + 1) % 6);
            let client = &machine.client;
            client.mkdir(format!("/d{from}/dir"), 0o755).await.unwrap();
            client.rename(format!("/d{from}/dir"), format!("/d{to}/moved")).await.unwrap();
            client.link("/file", format!("/d{to}/moved/other")).await.unwrap();
            client.write(format!("/d{from}/plain"), b"contents").await.unwrap();
            client.rename(format!("/d{from}/plain"), format!("/d{to}/plain")).await.unwrap();
            client.rename(format!("/d{from}/round"), format!("/d{to}/round")).await.unwrap();
            client.chmod(format!("/d{from}"), 0o700 | (round % 8)).await.unwrap();
            client.unlink(format!("/d{to}/moved/other")).await.unwrap();
            client.rmdir(format!("/d{to}/moved")).await.unwrap();
            client.unlink(format!("/d{to}/plain")).await.unwrap();
        }
    };
    tokio::select! {
        () = busy => unreachable!("it goes on and on"),
        () = async {
            for _ in 0..3 {
                assert_eq!(repair(&cluster.world, client).await, [""; 0]);
            }
        } => {}
    }
    machine.close().await.unwrap();
}

#[test]
fn repairs_that_get_in_each_others_way_end_and_leave_the_rest_to_the_next() {
    with_cluster(async |cluster, client| {
        cluster.damage(7);
        let machine = cluster.world.connect("other").await.unwrap();
        let world = &cluster.world;
        for _ in 0..3 {
            // One of them may hear that there is another.
            let both = (try_repair(world, client), try_repair(world, &machine.client));
            let _ = tokio::join!(both.0, both.1);
        }
        machine.close().await.unwrap();
        // A server may still be at the check that was given up.
        while try_repair(world, client).await.is_err() {
            world.wait(Duration::from_millis(50)).await;
        }
        assert_eq!(findings(world, client).await, [""; 0]);
    });
}

/// Records that are damaged by a test at random.
const DAMAGED: u64 = 5;

#[test]
fn whatever_is_damaged_is_repaired() {
    for seed in 0..60 {
        let locality = if seed % 2 == 0 { Locality::Directory } else { Locality::Subtree };
        let plan = Plan { shards: 8, locality, ..plan(1) };
        in_world(plan, async |cluster, client| {
            let damage = cluster.damage(seed);
            assert_ne!(findings(&cluster.world, client).await, [""; 0], "{seed}: {damage:?}");
            let repairing = repair(&cluster.world, client);
            let repaired = tokio::time::timeout(Duration::from_secs(3600), repairing).await;
            let repaired = repaired.unwrap_or_else(|_| panic!("{seed}: {damage:?} takes for ever"));
            let wrong: Vec<_> =
                repaired.iter().filter(|line| !line.starts_with("repaired: ")).collect();
            assert_eq!(wrong, [""; 0], "{seed}: {damage:?}");
            assert_eq!(findings(&cluster.world, client).await, [""; 0], "{seed}: {damage:?}");
        });
    }
}

/// As [`on_a_cluster`], with a directory `/wide` in three partitions, each on another server, with twelve names and the
/// thirteenth for a directory. None of them is lost.
fn on_a_divided_cluster(test: impl AsyncFn(&Cluster, &Client, &DirRef)) {
    for spread in ["extendible", "subsets"] {
        on_a_cluster(async |cluster, client| {
            client.mkdir("/wide", 0o755).await.unwrap();
            for (name, value) in [("pando.spread", spread), ("pando.large_dir", "3")] {
                client.set_xattr("/wide", name, value.as_bytes(), XattrMode::Set).await.unwrap();
            }
            for number in 0..12 {
                client.write(format!("/wide/{number}"), b"contents").await.unwrap();
            }
            client.mkdir("/wide/dir", 0o755).await.unwrap();
            client.sync().await.unwrap();
            cluster.world.wait(Duration::from_secs(5)).await;
            assert_eq!(findings(&cluster.world, client).await, [""; 0]);
            let wide = dir(client, &client.root().0, "wide").await;
            test(cluster, client, &wide).await;
            let repaired = repair(&cluster.world, client).await;
            assert!(repaired.iter().all(|line| line.starts_with("repaired: ")), "{repaired:#?}");
            assert_eq!(client.stat("/wide").await.unwrap().size, 13);
            for number in 0..12 {
                let contents = client.read(format!("/wide/{number}")).await.unwrap();
                assert_eq!(contents[..], b"contents"[..], "{number}");
            }
            assert_eq!(client.stat("/wide/dir").await.unwrap().nlink, 2);
            // There must be something to repair, for the harness.
            let (lost, _) = elsewhere(cluster, client).await;
            cluster.delete(&cluster.of_dir(b'D', &lost).remove(0).0);
        });
    }
}

impl Cluster {
    /// The record of a partition.
    fn share(&self, dir: &DirRef, partition: u16) -> Record {
        let shard = shard_of(dir.home, partition, self.shards).0;
        let id = dir.id.0.to_be_bytes();
        let key = [&shard.to_be_bytes()[..], b"D", &id, &partition.to_be_bytes(), &[0]].concat();
        let value = self.get(self.host(shard), &key).unwrap();
        (key, value)
    }
}

#[test]
fn a_partition_that_is_gone_from_its_server_is_made_again() {
    on_a_divided_cluster(async |cluster, client, wide| {
        cluster.delete(&cluster.share(wide, 1).0);
        let found = findings(&cluster.world, client).await;
        let line = format!("partition 1 of directory {} is not there", wide.id);
        assert!(found.iter().any(|found| found.contains(&line)), "{found:#?}");
    });
}

#[test]
fn a_master_that_is_gone_from_its_server_is_made_of_a_partition_on_another() {
    on_a_divided_cluster(async |cluster, client, wide| {
        cluster.delete(&cluster.share(wide, 0).0);
        cluster.finds(client, "is there, but its directory is not").await;
    });
}

#[test]
fn a_name_in_the_partition_of_another_server_goes_to_its_own() {
    for name in ["0", "dir"] {
        on_a_divided_cluster(async |cluster, client, wide| {
            let end = [name.as_bytes(), &[0, 0]].concat();
            let shards =
                [0, 1, 2].map(|partition| shard_of(wide.home, partition, cluster.shards).0);
            let here = |shard: u16| {
                let prefix = [&shard.to_be_bytes()[..], b"N", &wide.id.0.to_be_bytes()].concat();
                let mut found = None;
                let mut take = |key: &[u8], value: &[u8]| {
                    if key.starts_with(&prefix) && key.ends_with(&end) {
                        found = Some((key.to_vec(), value.to_vec()));
                    }
                    ControlFlow::Continue(())
                };
                let engine = cluster.world.hosts()[cluster.host(shard)].engine();
                engine.scan(&[], &[u8::MAX; 8], &mut take).unwrap();
                found
            };
            let (key, value) = shards.into_iter().find_map(here).unwrap();
            let other = shards.iter().find(|shard| key[..2] != shard.to_be_bytes()).unwrap();
            cluster.delete(&key);
            cluster.put(&[&other.to_be_bytes()[..], &key[2..]].concat(), &value);
            cluster.finds(client, "but belongs to partition").await;
        });
    }
}

impl Cluster {
    /// Removes some records of the tree, or cuts them to half, and starts all servers again. What it did.
    fn damage(&self, seed: u64) -> Vec<(&'static str, String)> {
        let random = self.world.random(&format!("damage {seed}"));
        let mut all = Vec::new();
        for (host, machine) in self.world.hosts().iter().enumerate() {
            let mut take = |key: &[u8], value: &[u8]| {
                if matches!(key[KIND], b'N' | b'D' | b'I') {
                    all.push((host, key.to_vec(), value[..value.len() / 2].to_vec()));
                }
                ControlFlow::Continue(())
            };
            machine.engine().scan(&[], &[u8::MAX; 8], &mut take).unwrap();
        }
        let mut damage = Vec::new();
        for _ in 0..DAMAGED {
            let at = random.within(0..u64::try_from(all.len()).unwrap());
            let (host, key, half) = all.swap_remove(usize::try_from(at).unwrap());
            let mut batch = Batch::default();
            if random.one_in(3) {
                batch.put(&key, &half);
                damage.push(("cut", key.escape_ascii().to_string()));
            } else {
                batch.delete(&key);
                damage.push(("removed", key.escape_ascii().to_string()));
            }
            self.world.hosts()[host].engine().write(batch).unwrap();
        }
        for host in self.world.hosts() {
            host.engine().sync().unwrap();
            host.kill();
            host.start().unwrap();
        }
        damage
    }
}

/// Blocks that are stored where `server` stores them, of a session that nobody has.
async fn leave_blocks(cluster: &Cluster, server: usize, count: u64) {
    let host = &cluster.world.hosts()[server];
    for number in 0..count {
        let block = BlockId::new(SessionId(0xdead), number);
        host.blocks().put(block, vec![1; 100].into()).await.unwrap();
    }
}

async fn blocks_at(cluster: &Cluster, server: usize) -> u64 {
    cluster.world.hosts()[server].blocks().list().count().await.try_into().unwrap()
}

/// What a check says that removes blocks, with how many nothing named, and how many it removed.
async fn collect(cluster: &Cluster, client: &Client) -> (Vec<String>, u64, u64) {
    let mut check = client.fsck_start_everywhere(true).await.unwrap();
    loop {
        let progress = check.poll(client, false).await.unwrap();
        if progress.done {
            let count = |name: &str| progress.counts.iter().find(|(other, _)| other == name);
            let count = |name: &str| count(name).unwrap().1;
            let counted = (count("blocks_unreferenced"), count("blocks_removed"));
            return (progress.findings, counted.0, counted.1);
        }
        cluster.world.wait(Duration::from_millis(50)).await;
    }
}

#[test]
fn each_server_removes_the_blocks_that_nothing_names_and_no_others() {
    with_cluster(async |cluster, client| {
        // Files of all servers, which are then in directories of others.
        let contents = |file: u8| vec![file; 100_000];
        for file in 0..12u8 {
            client.write(format!("/d{}/file{file}", file % 6), &contents(file)).await.unwrap();
        }
        for file in 0..12u8 {
            let (from, to) = (file % 6, (file + 1) % 6);
            let name = |dir| format!("/d{dir}/file{file}");
            client.rename(name(from), name(to)).await.unwrap();
        }
        client.sync().await.unwrap();
        let mut before = Vec::new();
        for server in 0..usize::from(SERVERS) {
            before.push(blocks_at(cluster, server).await);
            leave_blocks(cluster, server, 3).await;
        }
        assert!(before.iter().all(|count| *count > 0), "{before:?}");
        assert_eq!(collect(cluster, client).await, (vec![], 9, 9));
        assert_eq!(collect(cluster, client).await, (vec![], 0, 0));
        for (server, before) in before.into_iter().enumerate() {
            assert_eq!(blocks_at(cluster, server).await, before);
        }
        let other = cluster.world.connect("other").await.unwrap();
        for file in 0..12u8 {
            let path = format!("/d{}/file{file}", (file + 1) % 6);
            assert_eq!(other.client.read(path).await.unwrap(), contents(file));
        }
    });
}

#[test]
fn what_is_written_while_blocks_are_removed_stays() {
    with_cluster(async |cluster, client| {
        let writer = cluster.world.connect("writer").await.unwrap();
        let mut files = Vec::new();
        for file in 0..6u8 {
            let (path, old, new) =
                (format!("/d{file}/file"), vec![file; 50_000], vec![file + 100; 70_000]);
            writer.client.write(&path, &old).await.unwrap();
            files.push((path, new));
        }
        let writes = async {
            for (path, new) in &files {
                writer.client.write(path, new).await.unwrap();
                cluster.world.wait(Duration::from_millis(30)).await;
            }
        };
        let collects = async {
            for server in 0..usize::from(SERVERS) {
                leave_blocks(cluster, server, 20).await;
            }
            for _ in 0..3 {
                let (found, ..) = collect(cluster, client).await;
                assert_eq!(found, [""; 0]);
            }
        };
        futures::future::join(writes, collects).await;
        writer.client.sync().await.unwrap();
        for (path, new) in &files {
            assert_eq!(client.read(path).await.unwrap(), *new);
        }
        assert_eq!(collect(cluster, client).await.0, [""; 0]);
        for (path, new) in &files {
            assert_eq!(client.read(path).await.unwrap(), *new);
        }
    });
}

#[test]
fn nothing_is_removed_where_it_cannot_be_read_what_is_named() {
    with_cluster(async |cluster, client| {
        for dir in 0..6 {
            client.write(format!("/d{dir}/file"), &vec![1; 50_000]).await.unwrap();
        }
        client.sync().await.unwrap();
        let mut damaged = None;
        let mut take = |key: &[u8], value: &[u8]| {
            if key[KIND] == b'B' {
                damaged = Some((key.to_vec(), value.to_vec()));
            }
            ControlFlow::Continue(())
        };
        cluster.world.hosts()[1].engine().scan(&[], &[u8::MAX; 8], &mut take).unwrap();
        let (key, value) = damaged.unwrap();
        for server in 0..usize::from(SERVERS) {
            leave_blocks(cluster, server, 2).await;
        }
        let before = blocks_at(cluster, 1).await;
        cluster.put(&key, &value[..value.len() / 2]);
        let (found, _, removed) = collect(cluster, client).await;
        let says =
            |line: &String| line.contains("server 1") && line.contains("no block is removed");
        assert!(found.iter().any(says), "{found:#?}");
        assert_eq!((removed, blocks_at(cluster, 1).await), (4, before), "the others are sound");
        cluster.put(&key, &value);
        assert_eq!(collect(cluster, client).await, (vec![], 2, 2));
    });
}

#[test]
fn blocks_are_removed_after_repairs_when_that_is_asked() {
    with_cluster(async |cluster, client| {
        leave_blocks(cluster, 2, 5).await;
        let dir = dir(client, &client.root().0, "d3").await;
        cluster.delete(&cluster.entry(&dir, "link").0);
        let check = client.repair_start_everywhere(true, false).await.unwrap();
        let lines = followed(&cluster.world, client, check).await;
        assert!(lines.iter().all(|line| line.starts_with("repaired: ")), "{lines:#?}");
        assert!(!lines.is_empty());
        assert_eq!(blocks_at(cluster, 2).await, 0);
        assert_eq!(findings(&cluster.world, client).await, [""; 0]);
    });
}
