//! Balance of entries over servers: by the functions that place directories, without any server.
//!
//! `bench figures` calls it for trees that are larger than what a machine of two cores would fill
//! in minutes. It makes the ids that a file system makes, and maps shards to servers as a cluster
//! does that has just been complete.

use base::{DirId, EntryName, HashKey, Layout, NameVersion, placement::shard_of};

/// A tree like that of mdtest: directories below each other, and as many files in each.
#[derive(Debug, Clone, Copy)]
pub struct Tree {
    /// Directories, the root apart.
    pub directories: u32,
    /// Number of directories that a directory has in it.
    pub branches: u32,
    /// Number of files that a directory has in it.
    pub files: u32,
}

/// Returns the number of entries of each server; directories are placed by their own ids.
///
/// # Panics
/// When there are no servers, or fewer shards than servers.
#[must_use]
pub fn entries(tree: Tree, key: HashKey, shards: u16, servers: u16) -> Vec<u64> {
    assert!(servers > 0 && servers <= shards, "each server has a shard");
    let branches = tree.branches.max(1);
    let mut held = vec![0; usize::from(servers)];
    let mut ids = vec![DirId::ROOT];
    let mut hold = |id: DirId, entries: u64| {
        let shard = shard_of(id, Layout::Whole.partition(0), shards);
        held[usize::from(shard.0 % servers)] += entries;
    };
    for number in 0..tree.directories {
        let parent = ids[usize::try_from(number / branches).expect("of 32 bits")];
        let name = EntryName::new(format!("mdtest_tree.0.{number}").as_bytes()).expect("a name");
        let id = key.dir_id(parent, &name, NameVersion(0));
        hold(parent, 1);
        hold(id, u64::from(tree.files));
        ids.push(id);
    }
    held
}

/// Returns the largest number in relation to the mean; 0 when there is nothing.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts of entries have no 53 significant bits")]
pub fn imbalance(held: &[u64]) -> f64 {
    let total: u64 = held.iter().sum();
    let most = held.iter().copied().max().unwrap_or(0);
    if total == 0 { 0.0 } else { most as f64 * held.len() as f64 / total as f64 }
}

/// Returns the standard deviation in relation to the mean; 0 when there is nothing.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts of entries have no 53 significant bits")]
pub fn deviation(held: &[u64]) -> f64 {
    let mean = held.iter().sum::<u64>() as f64 / held.len() as f64;
    let squares = held.iter().map(|held| (*held as f64 - mean).powi(2)).sum::<f64>();
    if mean > 0.0 { (squares / held.len() as f64).sqrt() / mean } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_entries_are_somewhere_and_nearly_evenly() {
        let tree = Tree { directories: 20_000, branches: 10, files: 20 };
        let held = entries(tree, HashKey::new(1, 2), 64, 32);
        assert_eq!(held.iter().sum::<u64>(), 20_000 * 21);
        assert!(imbalance(&held) < 1.3, "{held:?}");
        assert_eq!(entries(tree, HashKey::new(1, 2), 64, 1), [20_000 * 21]);
    }

    #[test]
    fn imbalance_is_the_most_by_the_mean_and_deviation_by_all() {
        assert!((deviation(&[1, 3]) - 0.5).abs() < 1e-9);
        assert!((deviation(&[0, 0]) - 0.0).abs() < 1e-9);
        assert!((imbalance(&[1, 3]) - 1.5).abs() < 1e-9);
        assert!((imbalance(&[0, 0]) - 0.0).abs() < 1e-9);
    }
}
