//! "Writes resume when there is room": once its disk has room again, each server makes what it
//! refused before.

use anyhow::Context as _;
use base::placement::shard_of;
use client::Client;
use wire::NodeRef;

use crate::sim::world::World;

/// Makes directories, and a file with contents in each, until every server has one of them.
///
/// # Errors
/// When something is refused.
pub async fn check(world: &World, client: &Client) -> anyhow::Result<()> {
    let plan = world.plan();
    client.mkdir(TOP, 0o755).await?;
    let mut left: Vec<u16> = (0..plan.servers).collect();
    for number in 0..DIRS_MAX {
        let dir = format!("{TOP}/{number}");
        client.mkdir(&dir, 0o755).await.with_context(|| format!("mkdir {dir}"))?;
        let file = format!("{dir}/file");
        client.write(&file, &[7; 5000]).await.with_context(|| format!("write {file}"))?;
        if let NodeRef::Dir(dir) = client.resolve(&dir).await? {
            let server = shard_of(dir.home, 0, plan.shards).0 % plan.servers;
            left.retain(|other| *other != server);
        }
        if left.is_empty() {
            break;
        }
    }
    Ok(())
}

const TOP: &str = "/there is room";
/// Maximum number of directories. Where all directories are on one server, the others get none.
const DIRS_MAX: u64 = 40;
