//! Clusters that are used while they are checked, and clusters of which records were removed or cut
//! at random.

use std::{ops::ControlFlow, time::Duration};

use base::Locality;
use client::Client;
use lab::sim::plan::Plan;
use store::{Batch, Engine as _};

use super::{Cluster, KIND, findings, in_world, plan, repair, try_repair, with_cluster};

/// Number of worlds that are used while they are checked.
const BUSY: u64 = 60;

#[test]
fn what_is_not_damaged_stays_as_it_is_while_it_is_used() {
    for seed in 1..=BUSY {
        in_world(plan(seed), what_is_used_stays);
    }
}

async fn what_is_used_stays(cluster: &Cluster, client: &Client) {
    let machine = cluster.world.connect("busy").await.unwrap();
    // A name that goes round is seen by no server, or by two.
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
            // One of the two repairs may hear that there is another.
            let both = (try_repair(world, client), try_repair(world, &machine.client));
            let _ = tokio::join!(both.0, both.1);
        }
        machine.close().await.unwrap();
        // A server may still be at the check that was given up.
        let mut tries = 0;
        while try_repair(world, client).await.is_err() {
            tries += 1;
            assert!(tries < 1000, "the check that was given up never ends");
            world.wait(Duration::from_millis(50)).await;
        }
        assert_eq!(findings(world, client).await, [""; 0]);
    });
}

/// Number of records that a test damages at random.
const DAMAGED: u64 = 5;

#[test]
fn whatever_is_damaged_is_repaired() {
    for seed in 0..60 {
        let locality = match seed % 3 {
            0 => Locality::Directory,
            1 => Locality::Subtree,
            _ => Locality::Hybrid,
        };
        let plan = Plan { shards: 8, locality, ..plan(1) };
        in_world(plan, async |cluster, client| {
            cluster.world.trace().expect("run `pando fsck`");
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

impl Cluster {
    /// Removes some records of the tree, or cuts them to half, and restarts all servers. Returns
    /// what it did.
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
