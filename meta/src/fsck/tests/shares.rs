//! Directories in several partitions: sound ones are found sound, and each kind of damage is found
//! and repaired.

use base::{Layout, Splits, Subsets};
use wire::DirRef;

use super::*;

/// Parts of the partitions' names: with eight shards all have some.
const PARTITIONS: u16 = 5;

fn layouts() -> [Layout; 2] {
    [
        Layout::Extendible(Splits::started(1, PARTITIONS)),
        Layout::Subsets(Subsets::started(1, PARTITIONS)),
    ]
}

/// Divides a directory, as if its names had been made that way. Inodes of files stay where they
/// were born.
fn divide(damage: &Damage<'_>, dir: &DirRef, layout: &Layout) {
    let (shards, key) = (damage.shards(), damage.content_key(dir.id));
    let mut counts = vec![(0u64, 0u32); usize::from(shards)];
    for (key, value) in damage.names(dir) {
        let (pos, _, part) = key::parse_name(&key).unwrap();
        if part != Part::Main as u8 {
            continue;
        }
        let partition = layout.partition(pos);
        let count = &mut counts[usize::from(partition)];
        count.0 += 1;
        damage.delete(&key);
        let entry = match EntryRecord::from_record(&value).unwrap() {
            EntryRecord::Node(mut inode) => {
                inode.moved = false;
                let ino = inode.ino;
                damage.put(&key::inode(ino, Part::Main), &Slot::Inode(inode));
                let beside = [&key[..key.len() - 1], &[Part::Xattrs as u8]].concat();
                if damage.0.engine.get(&beside).unwrap().is_some() {
                    let xattrs = damage.take(&beside);
                    damage.put_bytes(&key::inode(ino, Part::Xattrs), &xattrs);
                }
                EntryRecord::Link(ino)
            }
            entry => entry,
        };
        count.1 += u32::from(matches!(entry, EntryRecord::Dir(_)));
        let mut moved = key.clone();
        moved[..2].copy_from_slice(&shard_of(dir.home, partition, shards).0.to_be_bytes());
        damage.put(&moved, &entry);
    }
    damage.change(&key, |master: &mut Content| {
        master.layout = layout.clone();
        let mut rest = layout.active();
        rest.next();
        for partition in rest {
            let (entries, subdirs) = counts[usize::from(partition)];
            let share = Content { entries, subdirs, ..master.share() };
            damage.put(&damage.share_key(dir, partition), &share);
        }
        (master.entries, master.subdirs) = counts[0];
    });
}

impl Damage<'_> {
    fn share_key(&self, dir: &DirRef, partition: u16) -> Key {
        key::content(shard_of(dir.home, partition, self.shards()), dir.id, partition, Part::Main)
    }

    /// All records of a directory's names, wherever they are.
    fn names(&self, dir: &DirRef) -> Vec<(Key, Bytes)> {
        let mut found = Vec::new();
        for shard in (0..self.shards()).map(ShardId) {
            let prefix = key::names(shard, dir.id);
            let take = &mut |key: &[u8], value: &[u8]| {
                found.push((Key::from_slice(key), Bytes::copy_from_slice(value)));
                std::ops::ControlFlow::Continue(())
            };
            self.0.engine.scan(&prefix, &key::end_of(&prefix), take).unwrap();
        }
        found
    }

    /// The entry of a name and its partition.
    fn entry_of(&self, dir: &DirRef, layout: &Layout, text: &str) -> (Key, u16) {
        let mut key = self.name_key(dir.id, text, Part::Main);
        let partition = layout.partition(key::parse_name(&key).unwrap().0);
        key[..2].copy_from_slice(&self.share_key(dir, partition)[..2]);
        (key, partition)
    }
}

/// Like [`finds`], in a tree whose directory `/a` is divided, with each layout.
fn finds_divided(words: &[&str], hurt: impl Fn(&Damage<'_>, &Tree, &Layout)) {
    for layout in layouts() {
        in_damaged_world(async |world| {
            let mut tree = plant(world).await;
            divide(&Damage(world), &tree.a, &layout);
            world.server.shared.record_cache.clear();
            assert_eq!(tree.client.fsck(false).await.findings, Vec::<String>::new());
            let before = world_names(world, &tree.a);
            hurt(&Damage(world), &tree, &layout);
            world.server.shared.record_cache.clear();
            let findings = tree.client.fsck(false).await.findings;
            for words in words {
                let found = findings.iter().any(|finding| finding.contains(words));
                assert!(found, "{words:?} is not among {findings:#?}");
            }
            mends(&mut tree.client).await;
            assert_eq!(world_names(world, &tree.a), before, "no name is lost");
        });
    }
}

/// The entries of a directory, in their order.
fn world_names(world: &World, dir: &DirRef) -> Vec<Vec<u8>> {
    let all = Damage(world).names(dir);
    let entry = |(key, _): &(Key, Bytes)| {
        let (_, name, part) = key::parse_name(key).unwrap();
        (part == Part::Main as u8).then(|| name.to_vec())
    };
    let mut names: Vec<_> = all.iter().filter_map(entry).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_partition_that_is_gone_is_made_again() {
    finds_divided(&["partition 3 of /a is not there"], |damage, tree, _| {
        damage.delete(&damage.share_key(&tree.a, 3));
    });
    finds_divided(&["has entries but is not there"], |damage, tree, layout| {
        let (key, partition) = damage.entry_of(&tree.a, layout, "sub");
        if partition == 0 {
            // Any other partition with names will do as well.
            damage.delete(&key);
            damage.put_bytes(&key, b"\x01junk");
        }
        let with_names = ["sub", "file", "big", "spilled", "l2", "moved"].map(|name| {
            let (_, partition) = damage.entry_of(&tree.a, layout, name);
            partition
        });
        let partition = with_names.into_iter().find(|partition| *partition > 0).unwrap();
        damage.delete(&damage.share_key(&tree.a, partition));
    });
}

#[test]
fn a_master_that_is_gone_is_made_of_its_partitions() {
    finds_divided(&["/a has no content record", "but its directory is not"], |damage, tree, _| {
        damage.delete(&damage.content_key(tree.a.id));
    });
    for layout in layouts() {
        in_damaged_world(async |world| {
            let mut tree = plant(world).await;
            divide(&Damage(world), &tree.a, &layout);
            let key = Damage(world).content_key(tree.a.id);
            Damage(world).delete(&key);
            world.server.shared.record_cache.clear();
            mends(&mut tree.client).await;
            let master = world.engine.get(&key).unwrap().unwrap();
            let listing = Content::from_record(&master).unwrap().listing.0;
            // Whether the directory was listed its partitions do not know.
            assert_eq!((listing.below, listing.listed), (SearchClass::All, true));
        });
    }
}

#[test]
fn a_partition_says_what_its_master_says() {
    finds_divided(&["partition 2 of /a has another mode"], |damage, tree, _| {
        damage.change(&damage.share_key(&tree.a, 2), |share: &mut Content| share.mode ^= 1);
    });
    finds_divided(&["partition 2 of /a has another layout"], |damage, tree, layout| {
        let other = layouts().into_iter().find(|other| other != layout).unwrap();
        damage.change(&damage.share_key(&tree.a, 2), |share: &mut Content| share.layout = other);
    });
    finds_divided(&["partition 2 of /a is Pending"], |damage, tree, _| {
        damage.change(&damage.share_key(&tree.a, 2), |share: &mut Content| {
            share.state = ContentState::Pending;
        });
    });
    finds_divided(&["partition 2 of /a has what only"], |damage, tree, _| {
        damage.change(&damage.share_key(&tree.a, 2), |share: &mut Content| {
            share.xattrs = Xattrs::Spilled;
        });
    });
    finds_divided(&["partition 2 of /a is of another directory"], |damage, tree, _| {
        damage.change(&damage.share_key(&tree.a, 2), |share: &mut Content| {
            share.ino = tree.sub.ino;
        });
    });
}

#[test]
fn partitions_that_should_not_be_there_go() {
    finds_divided(&["partition 6 of /a is none of its directory's"], |damage, tree, _| {
        let stored = damage.0.engine.get(&damage.share_key(&tree.a, 2)).unwrap().unwrap();
        let share = Content { entries: 0, subdirs: 0, ..Content::from_record(&stored).unwrap() };
        damage.put(&damage.share_key(&tree.a, 6), &share);
    });
    finds_divided(&["partition 2 of /a is on the wrong shard"], |damage, tree, _| {
        let stored = damage.0.engine.get(&damage.share_key(&tree.a, 2)).unwrap().unwrap();
        let shard = key::shard_of(&damage.share_key(&tree.a, 7));
        damage.put_bytes(&key::content(shard, tree.a.id, 2, Part::Main), &stored);
    });
    finds_divided(&["a part of no known kind: part=2"], |damage, tree, _| {
        let mut key = damage.share_key(&tree.a, 2);
        *key.last_mut().unwrap() = Part::Xattrs as u8;
        damage.put_bytes(&key, b"\x01\x00");
    });
}

#[test]
fn each_partition_counts_its_names() {
    finds_divided(&["counts 8 entries"], |damage, tree, layout| {
        let partition = layout.active().last().unwrap();
        damage.change(&damage.share_key(&tree.a, partition), |share: &mut Content| {
            share.entries = 8;
        });
    });
}

#[test]
fn names_in_the_wrong_partition_go_to_theirs() {
    for name in ["sub", "file", "spilled", "l2"] {
        finds_divided(&[&format!("/a/{name} stands in partition")], |damage, tree, layout| {
            let (key, partition) = damage.entry_of(&tree.a, layout, name);
            let mut wrong = key.clone();
            let other = (partition + 1) % PARTITIONS;
            wrong[..2].copy_from_slice(&damage.share_key(&tree.a, other)[..2]);
            let entry = damage.take(&key);
            damage.put_bytes(&wrong, &entry);
        });
    }
}

#[test]
fn rename_lists_stay_with_the_master() {
    finds_divided(&["is not where the master of its directory is"], |damage, tree, _| {
        let mut key = damage.name_key(tree.a.id, "sub", Part::RenameList);
        key[..2].copy_from_slice(&damage.share_key(&tree.a, 3)[..2]);
        let list = RenameList { versions: vec![NameVersion(7)] };
        damage.put(&key, &list);
    });
}
