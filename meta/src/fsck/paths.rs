//! Paths for findings: the name of an inode, which only a search of all names can tell.
//!
//! A check calls this when contents are lost, since an operator wants to know which files to
//! restore. It reads the names of this server once, and then the directories above them, also on
//! other servers.
//!
//! For an inode with several names one is reported. An inode whose names are all on other servers
//! has no path here.

use std::{ops::ControlFlow, sync::Arc};

use base::{DirId, EntryName, HashMap, HashSet, Ino, ShardId};
use bytes::Bytes;

use super::{across::Across, report::Report};
use crate::{
    error::describe,
    record::{Content, EntryRecord, Key, Record as _, key, key::Part},
    server::Shared,
};

/// Longer paths are not reported whole.
const DEPTH_MAX: usize = 100;

type Result<T> = std::result::Result<T, String>;

/// A directory and how it is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dir {
    id: DirId,
    home: DirId,
}

/// A name in a directory.
struct Named {
    dir: Dir,
    name: EntryName,
}

/// Directories with their names and parents; `None` where these cannot be read.
type Ways = HashMap<DirId, Option<Named>>;

/// Paths of these inodes, as far as they have names here.
pub(super) async fn of(
    shared: &Arc<Shared>,
    report: &Report,
    inos: HashSet<Ino>,
) -> Result<HashMap<Ino, String>> {
    let searching = Arc::clone(shared);
    let searched = shared.options.offload.run(move || search(&searching, &inos));
    let names = searched.await.map_err(|error| describe(&error))?;
    let ways = climb(shared, report, names.values().map(|named| named.dir).collect()).await;
    Ok(names.iter().map(|(ino, named)| (*ino, path(named, &ways))).collect())
}

/// Reads all names of this server.
fn search(shared: &Shared, inos: &HashSet<Ino>) -> store::Result<HashMap<Ino, Named>> {
    let (snapshot, mut found) = (shared.engine.snapshot(), HashMap::default());
    for shard in (0..shared.config.shards).map(ShardId) {
        let (mut here, names) = (HashMap::default(), key::kind(shard, b'N'));
        snapshot.scan(&names, &key::end_of(&names), &mut |at, value| {
            if here.len() + found.len() >= inos.len() {
                return ControlFlow::Break(());
            }
            let named = inode_at(at, value).filter(|(ino, _)| inos.contains(ino));
            here.extend(named.filter(|(ino, _)| !found.contains_key(ino)));
            ControlFlow::Continue(())
        })?;
        for (ino, (dir, name)) in here {
            // Each partition of a directory records the home of the whole directory.
            let (mut home, parts) = (dir, key::shares(shard, dir));
            snapshot.scan(&parts, &key::end_of(&parts), &mut |at, value| {
                let content = if key::is_content(at) { content(value) } else { None };
                home = content.as_ref().map_or(home, |content| content.home);
                if content.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            found.insert(ino, Named { dir: Dir { id: dir, home }, name });
        }
    }
    Ok(found)
}

/// The inode of a name's record, with the directory of the name.
fn inode_at(at: &[u8], value: &[u8]) -> Option<(Ino, (DirId, EntryName))> {
    let (_, name, part) = key::parse_name(at)?;
    if part != Part::Main as u8 {
        return None;
    }
    let ino = match EntryRecord::from_record(&Bytes::copy_from_slice(value)).ok()? {
        EntryRecord::Node(inode) => inode.ino,
        EntryRecord::Link(ino) => ino,
        EntryRecord::Dir(_) => return None,
    };
    Some((ino, (key::parse_dir(at)?, EntryName::new(name).ok()?)))
}

fn content(value: &[u8]) -> Option<Content> {
    Content::from_record(&Bytes::copy_from_slice(value)).ok()
}

/// Reads the names and parents of directories, and of those above them, up to the root.
async fn climb(shared: &Arc<Shared>, report: &Report, mut dirs: Vec<Dir>) -> Ways {
    let mut ways = Ways::default();
    for _ in 0..DEPTH_MAX {
        dirs.retain(|dir| dir.id != DirId::ROOT && ways.insert(dir.id, None).is_none());
        if dirs.is_empty() {
            break;
        }
        let at = |dir: &Dir| {
            let shard = shared.config.placement().shard_of(dir.home, 0);
            key::content(shard, dir.id, 0, Part::Main)
        };
        // Directories that cannot be read have no path, and are reported without one.
        let Ok(read) = read(shared, report, dirs.iter().map(at)).await else { break };
        let mut above = Vec::new();
        for dir in &dirs {
            let value = read.get(&at(dir)).and_then(Option::as_ref);
            let Some(content) = value.and_then(|value| content(value)) else { continue };
            let parent = Dir { id: content.parent, home: content.parent_home };
            above.push(parent);
            let name = content.name.map(|name| Named { dir: parent, name });
            ways.insert(dir.id, name);
        }
        dirs = above;
    }
    ways
}

async fn read(
    shared: &Arc<Shared>,
    report: &Report,
    keys: impl Iterator<Item = Key>,
) -> Result<HashMap<Key, Option<Bytes>>> {
    if let Some(cluster) = &shared.cluster {
        return Across::new(shared, cluster, report).read(keys).await;
    }
    let (shared, keys) = (Arc::clone(shared), keys.collect::<Vec<Key>>());
    let offload = Arc::clone(&shared);
    let read = offload.options.offload.run(move || {
        let read = |key: Key| Ok((key.clone(), shared.engine.get(&key)?));
        keys.into_iter().map(read).collect::<store::Result<HashMap<_, _>>>()
    });
    read.await.map_err(|error| describe(&error))
}

fn path(named: &Named, ways: &Ways) -> String {
    let mut names = vec![named.name.to_string()];
    let mut dir = named.dir;
    while dir.id != DirId::ROOT {
        let up = ways.get(&dir.id).and_then(Option::as_ref).filter(|_| names.len() < DEPTH_MAX);
        let Some(up) = up else {
            names.push(format!("(directory {})", dir.id));
            break;
        };
        names.push(up.name.to_string());
        dir = up.dir;
    }
    names.reverse();
    format!("/{}", names.join("/"))
}
