//! Trees of directories and files, and file systems that place them in one way or another.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail, ensure};
use base::{DirId, EntryName, Level, Locality, NameVersion, placement::shard_of};
use client::Client;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use wire::{BalanceMode, DirRef, NodeRef, XattrMode};

use super::super::{
    load::{self, Op},
    site::{Shape, Site},
};

/// Name of the tree with ten directories in each.
pub(super) const TEN_ARY: &str = "10-ary tree";
/// Default of `pando format`.
const SHARDS: u16 = 1024;
/// The setting of a directory that says where what is made in it goes.
const LOCALITY: &str = "pando.locality";
/// Makes under way.
const UNDER_WAY: usize = 128;

/// A way to place directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placed {
    /// Each directory by a hash of its own.
    Hashed,
    /// Top directories with all that is below them, dealt out to the servers in turn.
    Static,
    /// The same, and they move by load.
    Dynamic,
    /// Hashed above the boundary, with their parents below it; what is below moves by load.
    Hybrid,
}

impl Placed {
    pub(super) const ALL: [Placed; 4] =
        [Placed::Hybrid, Placed::Hashed, Placed::Static, Placed::Dynamic];

    pub(super) fn name(self) -> &'static str {
        match self {
            Placed::Hashed => "hash",
            Placed::Static => "static subtrees",
            Placed::Dynamic => "dynamic subtrees",
            Placed::Hybrid => "hybrid",
        }
    }

    pub(super) fn shape<'a>(self, servers: u16) -> Shape<'a> {
        let locality = match self {
            Placed::Hashed => "directory",
            Placed::Static | Placed::Dynamic | Placed::Hybrid => "hybrid",
        };
        Shape { locality, ..Shape::of(servers) }
    }

    /// Whether whole subtrees are on one server.
    fn by_subtree(self) -> bool {
        matches!(self, Placed::Static | Placed::Dynamic)
    }

    /// Whether shards move by load.
    pub(super) fn moves(self) -> bool {
        matches!(self, Placed::Dynamic | Placed::Hybrid)
    }

    /// Sets what is not said at format. Nothing moves unless an experiment says so.
    pub(super) async fn prepare(self, client: &Client) -> anyhow::Result<()> {
        if client.servers() > 1 {
            client.set_balance_mode(BalanceMode::Off).await.context("nothing is to move")?;
        }
        if self.by_subtree() {
            let set = client.set_xattr("/", LOCALITY, b"hybrid:1", XattrMode::Set);
            set.await.context("setting the locality of the root")?;
        }
        Ok(())
    }
}

/// A directory of a tree.
pub(super) struct Directory {
    /// The place in the list of the directory above it, unless that is the root.
    parent: Option<usize>,
    /// The top directory above it, or itself, counted from 0.
    pub(super) top: usize,
    depth: usize,
    pub(super) files: u32,
    pub(super) path: String,
}

/// Directories, each after the one above it.
pub(super) struct Tree {
    pub(super) name: &'static str,
    pub(super) directories: Vec<Directory>,
    pub(super) tops: usize,
}

impl Tree {
    /// Ten directories in each, all with as many files.
    pub(super) fn ten_ary(directories: usize, files: u32) -> Tree {
        let each = per(files, directories);
        Tree::grown(TEN_ARY, directories, |number| ((number >= 10).then(|| number / 10 - 1), each))
    }

    /// A hundred subtrees, whose directories are as many as Zipf's law says; ten in each.
    pub(super) fn zipf(directories: usize, files: u32) -> Tree {
        const TOPS: usize = 100;
        let each = per(files, directories);
        let shares = zipf(TOPS);
        // Directories of each subtree, and how many more are owed to each.
        let mut of: Vec<Vec<usize>> = (0..TOPS).map(|top| vec![top]).collect();
        let further = directories.saturating_sub(TOPS);
        let mut owed: Vec<f64> = shares.iter().map(|share| share * load::float(further)).collect();
        Tree::grown("100 subtrees by Zipf", directories.max(TOPS), |number| {
            if number < TOPS {
                return (None, each);
            }
            let most = (0..TOPS).max_by(|one, other| owed[*one].total_cmp(&owed[*other]));
            let top = most.unwrap_or(0);
            owed[top] -= 1.0;
            let own = &mut of[top];
            let parent = own[(own.len() - 1) / 10];
            own.push(number);
            (Some(parent), each)
        })
    }

    fn grown(
        name: &'static str,
        count: usize,
        mut of: impl FnMut(usize) -> (Option<usize>, u32),
    ) -> Tree {
        let mut directories: Vec<Directory> = Vec::with_capacity(count);
        let mut tops = 0;
        for number in 0..count {
            let (parent, files) = of(number);
            let (top, depth) = match parent {
                Some(parent) => (directories[parent].top, directories[parent].depth + 1),
                None => {
                    tops += 1;
                    (tops - 1, 0)
                }
            };
            directories.push(Directory { parent, top, depth, files, path: String::new() });
        }
        Tree { name, directories, tops }
    }

    /// Names the directories. Top ones get names by which they are dealt out to the servers in
    /// turn, if they are placed at the boundary; to others the names make no difference.
    fn call(&mut self, client: &Client, servers: u16) {
        let key = client.fs_info().hash_key;
        for number in 0..self.directories.len() {
            let of = &self.directories[number];
            self.directories[number].path = match of.parent {
                Some(parent) => format!("{}/d{number}", self.directories[parent].path),
                None => {
                    let wanted = of.top % usize::from(servers);
                    let names = (0u32..).map(|draw| format!("t{number}-{draw}"));
                    let fits = |name: &String| {
                        let name = EntryName::new(name.as_bytes()).expect("a name");
                        let version = NameVersion::first(Level::Boundary);
                        let id = key.dir_id(DirId::ROOT, &name, version);
                        let home = Locality::Hybrid.home(id, version, DirId::ROOT);
                        usize::from(shard_of(home, 0, SHARDS).0 % servers) == wanted
                    };
                    let name =
                        names.into_iter().find(fits).expect("one name in as many as servers");
                    format!("/{name}")
                }
            };
        }
    }
}

/// Parts of a whole by Zipf's law, the largest first.
pub(super) fn zipf(count: usize) -> Vec<f64> {
    let weights: Vec<f64> = (1..=count).map(|rank| 1.0 / load::float(rank)).collect();
    let all: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / all).collect()
}

fn per(files: u32, directories: usize) -> u32 {
    files / u32::try_from(directories.max(1)).unwrap_or(u32::MAX)
}

/// A tree in a file system.
pub(super) struct Filled {
    pub(super) site: Site,
    pub(super) maker: Client,
    pub(super) tree: Tree,
    /// The directories, in the order of the tree.
    pub(super) dirs: Vec<DirRef>,
}

impl Filled {
    pub(super) async fn make(
        directory: Option<&std::path::Path>,
        placed: Placed,
        servers: u16,
        mut tree: Tree,
    ) -> anyhow::Result<Filled> {
        let site = Site::start(directory, placed.shape(servers))?;
        let maker = site.client(|_| {}).await?;
        placed.prepare(&maker).await?;
        tree.call(&maker, servers);
        let deepest = tree.directories.iter().map(|of| of.depth).max().unwrap_or(0);
        for depth in 0..=deepest {
            let level = tree.directories.iter().filter(|of| of.depth == depth);
            let paths: Vec<_> = level.map(|of| of.path.clone()).collect();
            load::mkdirs(&maker, &paths).await?;
            if depth == 0 && placed.by_subtree() {
                for path in &paths {
                    let set = maker.set_xattr(path, LOCALITY, b"subtree", XattrMode::Set);
                    set.await.with_context(|| format!("setting the locality of {path}"))?;
                }
            }
        }
        let mut dirs = Vec::with_capacity(tree.directories.len());
        for of in &tree.directories {
            let NodeRef::Dir(dir) = maker.resolve(&of.path).await? else {
                bail!("{} is no directory", of.path);
            };
            dirs.push(dir);
        }
        let tops: Vec<_> =
            tree.directories.iter().zip(&dirs).filter(|(of, _)| of.depth == 0).collect();
        let strays =
            tree.directories.iter().zip(&dirs).filter(|(of, dir)| dir.home != tops[of.top].1.home);
        ensure!(!placed.by_subtree() || strays.count() == 0, "a subtree is not in one place");
        let files = tree
            .directories
            .iter()
            .flat_map(|of| (0..of.files).map(move |number| format!("{}/f{number}", of.path)));
        let made = files.map(|path| {
            let maker = maker.clone();
            Box::pin(
                async move { load::once(&maker, &Op::Create, &path).await.with_context(|| path) },
            )
        });
        stream::iter(made).buffer_unordered(UNDER_WAY).try_collect::<()>().await?;
        Ok(Filled { site, maker, tree, dirs })
    }

    /// Number of entries of each server.
    pub(super) async fn entries(&self) -> anyhow::Result<Vec<u64>> {
        let (servers, loads) = self.maker.shard_loads().await.context("whose shards are whose")?;
        let owners: BTreeMap<_, _> = loads.iter().map(|load| (load.shard, load.server)).collect();
        let mut entries = vec![0; usize::from(servers)];
        let mut add = |home, count| {
            if let Some(owner) = owners.get(&shard_of(home, 0, SHARDS)) {
                entries[usize::from(*owner)] += count;
            }
        };
        for (of, dir) in self.tree.directories.iter().zip(&self.dirs) {
            add(of.parent.map_or(DirId::ROOT, |parent| self.dirs[parent].home), 1);
            add(dir.home, u64::from(of.files));
        }
        Ok(entries)
    }
}
