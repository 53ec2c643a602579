//! Division of a directory while it grows: by the layouts of a file system, without any server.
//!
//! `bench figures duplex-balance` calls it. Layouts say where each name goes and what moves; what
//! is repeated here is when servers divide a directory (`meta`, handoff), as if a handoff took no
//! time.
//!
//! Always true: each position that was added is held by the partition that the layout names for it.

use base::{DirId, Layout, Spread, Subsets, Transfer, placement::shard_of};

/// When directories are divided, and over what.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// In which way.
    pub spread: Spread,
    /// Number of entries at which a partition is too large.
    pub threshold: u64,
    /// The shards of the file system, at most one for each partition.
    pub shards: u16,
}

/// A directory to which names are added.
#[derive(Debug, Clone)]
pub struct Division {
    rules: Rules,
    layout: Layout,
    /// The positions of the entries of each partition.
    held: Vec<Vec<u64>>,
}

impl Division {
    /// An empty directory, in one partition.
    #[must_use]
    pub fn new(rules: Rules) -> Division {
        Division { rules, layout: Layout::Whole, held: vec![Vec::new()] }
    }

    /// Adds the entry at `pos`, and divides the directory if that is due.
    ///
    /// # Panics
    /// Never: a layout names partitions that are there.
    pub fn add(&mut self, pos: u64) {
        let at = self.layout.partition(pos);
        self.held[usize::from(at)].push(pos);
        if self.is_large(at) {
            match self.rules.spread {
                Spread::None => {}
                Spread::Extendible => self.split(at),
                Spread::Subsets => self.divide_anew(),
            }
        }
    }

    /// Into how many partitions it is divided.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.layout.active().count()
    }

    /// Adds its entries to those of each server; its partitions are placed by `home`, and shards
    /// dealt out to servers as in a cluster that has just been complete.
    ///
    /// # Panics
    /// When there are no servers.
    pub fn count(&self, home: DirId, servers: &mut [u64]) {
        for (partition, held) in (0..).zip(&self.held) {
            let shard = shard_of(home, partition, self.rules.shards);
            servers[usize::from(shard.0) % servers.len()] += held.len() as u64;
        }
    }

    fn is_large(&self, partition: u16) -> bool {
        self.held[usize::from(partition)].len() as u64 >= self.rules.threshold
    }

    /// The partition gives away halves until it is not too large, or there is no shard for another
    /// partition.
    fn split(&mut self, partition: u16) {
        let mut large = vec![partition];
        while let Some(source) = large.pop().filter(|partition| self.is_large(*partition)) {
            let turned = self.layout.turned(Spread::Extendible);
            let layout = turned.unwrap_or_else(|| self.layout.clone());
            let Layout::Extendible(splits) = &layout else { return };
            if let Some(transfer) = splits.split(source, self.rules.shards) {
                self.transfer(&layout, transfer);
                large.extend([transfer.source, transfer.target]);
            }
        }
    }

    /// The master begins one step after the other until there are as many subsets as the size asks
    /// for.
    fn divide_anew(&mut self) {
        let Rules { threshold, shards, .. } = self.rules;
        let entries = self.held.iter().map(|held| held.len() as u64).sum();
        let turned = self.layout.turned(Spread::Subsets);
        let mut layout = turned.unwrap_or_else(|| self.layout.clone());
        while let Layout::Subsets(now) = &layout {
            let wanted = Subsets::wanted(now.count(), entries, threshold, 1);
            let Some(begun) = now.begin(wanted, shards) else { break };
            let transfers: Vec<_> = begun.transfers().collect();
            self.layout = Layout::Subsets(begun);
            for transfer in transfers {
                self.transfer(&self.layout.clone(), transfer);
            }
            layout = self.layout.clone();
        }
    }

    fn transfer(&mut self, layout: &Layout, transfer: Transfer) {
        let (moving, after) = (layout.moving(transfer), layout.after(transfer));
        let (moving, after) = moving.zip(after).expect("it is a transfer of this layout");
        let source = &mut self.held[usize::from(transfer.source)];
        let (goes, stays) = source.drain(..).partition(|pos| moving.contains(*pos));
        *source = stays;
        let target = usize::from(transfer.target);
        if self.held.len() <= target {
            self.held.resize(target + 1, Vec::new());
        }
        let mut goes: Vec<u64> = goes;
        self.held[target].append(&mut goes);
        self.layout = after;
    }
}

#[cfg(test)]
mod tests {
    use base::{EntryName, HashKey};

    use super::*;
    use crate::balance::imbalance;

    fn grown(spread: Spread, entries: u32) -> Division {
        let key = HashKey::new(7, 8);
        let mut division = Division::new(Rules { spread, threshold: 100, shards: 16 });
        for number in 0..entries {
            let name = EntryName::new(format!("file.{number}").as_bytes()).expect("a name");
            division.add(key.pos(&name));
        }
        for (partition, held) in (0..).zip(&division.held) {
            assert!(held.iter().all(|pos| division.layout.partition(*pos) == partition));
        }
        division
    }

    fn servers(division: &Division) -> [u64; 4] {
        let mut servers = [0; 4];
        division.count(DirId(77), &mut servers);
        servers
    }

    #[test]
    fn a_directory_is_divided_by_its_size_and_by_nothing_else() {
        let alone = grown(Spread::None, 1000);
        assert_eq!((alone.partitions(), imbalance(&servers(&alone))), (1, 4.0));
        for (entries, partitions) in [(99, 1), (350, 4), (1000, 11), (4000, 16)] {
            let division = grown(Spread::Subsets, entries);
            // One that is too large by chance comes before the size asks for it.
            assert!(division.partitions().abs_diff(partitions) <= 1, "{entries}");
            assert_eq!(servers(&division).iter().sum::<u64>(), u64::from(entries));
        }
        let division = grown(Spread::Extendible, 4000);
        assert_eq!(division.partitions(), 16, "as many as shards");
        assert!(imbalance(&servers(&division)) < 1.2);
        let division = grown(Spread::Extendible, 1100);
        assert!(division.held.iter().all(|held| held.len() < 100), "there are shards enough");
    }
}
