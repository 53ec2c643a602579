//! Directories whose predicted ids collide, because ids have only six bits: they get another
//! version of their name, and are found as if they had been renamed.

use std::collections::{BTreeMap, BTreeSet};

use base::{DirId, EntryName, FsError, Locality, NameVersion};
use client::Client;
use lab::{
    check,
    sim::{plan::Plan, play::test_in, world::World},
};
use wire::{NodeRef, RenameMode};

/// Number of bits of an id: there are 64 ids besides the root's.
const ID_BITS: u8 = 6;

/// The world of a test, and every directory in it, with the contents of its file `who`.
struct Tree {
    world: World,
    dirs: BTreeMap<String, String>,
    made: u32,
}

/// Runs a test on one server and on three, with directories homed by themselves or by subtree, with
/// an access cache and without.
fn everywhere(test: impl AsyncFn(&mut Tree, &Client)) {
    for (servers, locality, access_cache) in [
        (1, Locality::Directory, true),
        (1, Locality::Subtree, true),
        (3, Locality::Directory, true),
        (3, Locality::Directory, false),
        (3, Locality::Subtree, true),
    ] {
        let plan = Plan {
            shards: 16,
            locality,
            access_cache,
            id_bits: Some(ID_BITS),
            split_threshold: u64::MAX,
            ..Plan::draw(1, servers)
        };
        test_in(plan, async |world| {
            let machine = world.connect("maker").await.unwrap();
            let mut tree = Tree { world: world.clone(), dirs: BTreeMap::new(), made: 0 };
            for top in 0..5 {
                tree.make(&machine.client, &format!("/t{top}")).await;
                for sub in 0..7 {
                    tree.make(&machine.client, &format!("/t{top}/s{sub}")).await;
                }
            }
            tree.holds(&machine.client).await;
            test(&mut tree, &machine.client).await;
            tree.holds(&machine.client).await;
            machine.close().await.unwrap();
        });
    }
}

impl Tree {
    async fn make(&mut self, client: &Client, path: &str) {
        client.mkdir(path, 0o755).await.unwrap();
        let who = format!("the {}. directory", self.made);
        client.write(format!("{path}/who"), who.as_bytes()).await.unwrap();
        self.made += 1;
        self.dirs.insert(path.to_owned(), who);
    }

    async fn remove(&mut self, client: &Client, path: &str) {
        client.unlink(format!("{path}/who")).await.unwrap();
        client.rmdir(path).await.unwrap();
        self.dirs.remove(path);
    }

    async fn rename(&mut self, client: &Client, from: &str, to: &str) {
        client.rename(from, to).await.unwrap();
        self.moved(from, to);
    }

    fn moved(&mut self, from: &str, to: &str) {
        let dirs = std::mem::take(&mut self.dirs).into_iter().map(|(path, who)| {
            let below =
                path.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with('/'));
            let path = below.map_or(path.clone(), |rest| format!("{to}{rest}"));
            (path, who)
        });
        self.dirs = dirs.collect();
    }

    /// Checks that everything is in its place, for a client that knows the tree, for a new one, and
    /// for a check.
    async fn holds(&self, knows: &Client) {
        let machine = self.world.connect("cold").await.unwrap();
        for client in [knows, &machine.client] {
            for (path, who) in &self.dirs {
                let found = client.read(format!("{path}/who")).await.unwrap();
                assert_eq!(&found[..], who.as_bytes(), "{path}");
                let stat = client.stat(path).await.unwrap();
                assert_eq!(stat.kind, base::FileKind::Directory);
                let nothing = client.stat(format!("{path}/nothing")).await;
                assert_eq!(nothing, Err(FsError::NotFound.into()), "{path}");
            }
        }
        machine.close().await.unwrap();
        check::fsck(&self.world, knows).await.unwrap();
    }

    /// The id of each directory, and whether it is the predicted one.
    async fn ids(&self, client: &Client) -> BTreeMap<String, (DirId, bool)> {
        let key = client.fs_info().hash_key;
        let mut ids = BTreeMap::new();
        for path in self.dirs.keys() {
            let (above, name) = path.rsplit_once('/').unwrap();
            let id = id_of(client, path).await;
            let parent = if above.is_empty() { DirId::ROOT } else { id_of(client, above).await };
            let name = EntryName::new(name.as_bytes()).unwrap();
            ids.insert(path.clone(), (id, id == key.dir_id(parent, &name, NameVersion(0))));
        }
        ids
    }
}

async fn id_of(client: &Client, path: &str) -> DirId {
    match client.resolve(path).await.unwrap() {
        NodeRef::Dir(dir) => dir.id,
        NodeRef::File(_) => panic!("{path} is no directory"),
    }
}

#[test]
fn directories_whose_ids_collide_are_made_under_another_version_of_their_names() {
    everywhere(async |tree, client| {
        let ids = tree.ids(client).await;
        let different: BTreeSet<DirId> = ids.values().map(|(id, _)| *id).collect();
        assert_eq!(different.len(), tree.dirs.len());
        let collided = ids.values().filter(|(_, predicted)| !predicted).count();
        assert!((5..tree.dirs.len()).contains(&collided), "{collided}");
    });
}

#[test]
fn a_prediction_that_meets_another_directory_is_noticed_and_learnt() {
    everywhere(async |tree, client| {
        if tree.world.plan().servers == 1 {
            // With one server no client predicts anything.
            return;
        }
        let ids = tree.ids(client).await;
        let mut mispredicted = 0;
        for (path, _) in ids.iter().filter(|(_, (_, predicted))| !predicted) {
            let machine = tree.world.connect("cold").await.unwrap();
            let cold = &machine.client;
            let found = cold.read(format!("{path}/who")).await.unwrap();
            assert_eq!(&found[..], tree.dirs[path].as_bytes());
            let first = cold.stats().mispredictions;
            mispredicted += first;
            cold.stat(format!("{path}/who")).await.unwrap();
            assert_eq!(cold.stats().mispredictions, first, "{path} was learnt");
            machine.close().await.unwrap();
        }
        assert!(mispredicted > 0);
    });
}

#[test]
fn directories_with_colliding_ids_are_moved_replaced_and_made_again() {
    everywhere(async |tree, client| {
        for sub in 0..7 {
            tree.rename(client, &format!("/t0/s{sub}"), &format!("/t1/from0-{sub}")).await;
        }
        tree.holds(client).await;
        // Make directories under the names of those that live elsewhere.
        for sub in 0..7 {
            tree.make(client, &format!("/t0/s{sub}")).await;
        }
        tree.holds(client).await;
        for sub in 0..7 {
            tree.remove(client, &format!("/t0/s{sub}")).await;
            tree.remove(client, &format!("/t2/s{sub}")).await;
        }
        tree.holds(client).await;
        for sub in 0..7 {
            tree.make(client, &format!("/t2/s{sub}")).await;
            tree.rename(client, &format!("/t1/from0-{sub}"), &format!("/t0/s{sub}")).await;
        }
        tree.holds(client).await;
        client.rename_with("/t3", "/t4", RenameMode::Exchange).await.unwrap();
        tree.moved("/t3", "/exchanged");
        tree.moved("/t4", "/t3");
        tree.moved("/exchanged", "/t4");
        tree.rename(client, "/t4", "/t3/s0/t4").await;
        tree.holds(client).await;
        client.unlink("/t0/s1/who").await.unwrap();
        // Rename over an empty directory.
        tree.dirs.remove("/t0/s1");
        tree.rename(client, "/t0/s2", "/t0/s1").await;
    });
}
