//! While a server is away for longer than a lease, the others answer: stats of their open files,
//! and, while the coordinator is there, creations by path.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, ensure};
use base::placement::shard_of;
use client::{Client, File, OpenOptions};
use tokio::time::timeout;
use wire::NodeRef;

use crate::sim::{server::Host, world::World};

/// The workload ends when servers have been away this often.
const SPELLS: u64 = 3;
/// Time limit of a request. A server that has not answered within it is asked again later.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of directories made to find one on each server.
const DIRS_MAX: u64 = 60;

/// A directory on a server, and a file in it that stays open.
struct Dir {
    server: usize,
    path: String,
    file: File,
}

pub(super) async fn set_up(
    world: &World,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let machine = world.connect("beside").await?;
    let dirs = make_dirs(world, &machine.client).await?;
    ensure!(dirs.len() > 1, "all directories are on one server");
    let (world, random) = (world.clone(), world.random("beside"));
    Ok(async move {
        let (mut asked, mut answered) = (BTreeSet::new(), BTreeSet::new());
        for number in 0.. {
            let spell = world.happened().away;
            if spell >= SPELLS {
                break;
            }
            world.wait(random.ms(5..60)).await;
            let Some(away) = world.hosts().iter().position(Host::is_away) else { continue };
            let dir = &dirs[random.index(dirs.len())];
            if dir.server == away {
                continue;
            }
            let spell = world.happened().away;
            asked.insert((spell, dir.server));
            let by_path = away != 0 && random.one_in(2);
            let look = async {
                if by_path {
                    let options = OpenOptions::writing().create_new(0o644);
                    let made = machine.client.open_with(format!("{}/{number}", dir.path), options);
                    made.await?.close().await
                } else {
                    dir.file.metadata().await.map(drop)
                }
            };
            // A request that was given up may have been done all the same.
            let Ok(looked) = timeout(PATIENCE, look).await else { continue };
            looked.with_context(|| format!("{} beside server {away}", dir.path))?;
            if world.hosts()[away].is_away() && world.happened().away == spell {
                answered.insert((spell, dir.server));
            }
        }
        world.count(|counts| {
            counts.beside_asked += asked.len() as u64;
            counts.beside_answered += answered.len() as u64;
        });
        for dir in dirs {
            dir.file.close().await?;
        }
        machine.close().await
    })
}

/// Makes a directory on each server, as far as [`DIRS_MAX`] names allow.
async fn make_dirs(world: &World, client: &Client) -> anyhow::Result<Vec<Dir>> {
    let plan = world.plan();
    let mut dirs: Vec<Dir> = Vec::new();
    for number in 0..DIRS_MAX {
        let path = format!("/beside {number}");
        client.mkdir(&path, 0o755).await?;
        let NodeRef::Dir(dir) = client.resolve(&path).await? else { continue };
        let server = usize::from(shard_of(dir.home, 0, plan.shards).0 % plan.servers);
        if dirs.iter().all(|dir| dir.server != server) {
            let file = format!("{path}/open");
            let file = client.open_with(file, OpenOptions::writing().create_new(0o644)).await?;
            dirs.push(Dir { server, path, file });
        }
        if dirs.len() == usize::from(plan.servers) {
            break;
        }
    }
    Ok(dirs)
}
