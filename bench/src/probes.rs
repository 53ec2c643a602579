//! Requests to wrong partitions by clients with old layouts: by the functions that divide
//! directories, without any server.
//!
//! `bench figures` calls it for more clients and names than a machine of two cores would serve in
//! minutes. Clients make names in one directory, in turn. A partition that is too large transfers
//! names at once; who makes a transfer tells the master, and hears of the others'. No client is
//! told of anything but when it asks the wrong partition.
//!
//! Paper: SFS §4.4, figure 7.

use base::{Layout, Splits, Spread, Subsets, Transfer, layout::POS_MAX};

/// Clients that make the names.
#[derive(Debug, Clone, Copy)]
pub struct Crowd {
    /// Number of clients.
    pub clients: u32,
    /// Number of names that they make altogether.
    pub names: u64,
    /// A partition is to have no more names than this.
    pub threshold: u64,
    /// There are never more partitions.
    pub shards: u16,
}

/// Counts of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probes {
    /// Requests that came to the wrong partition.
    pub wrong: u64,
    /// Names, by how many wrong partitions were asked for one before the right one.
    pub in_a_row: Vec<u64>,
    /// Wrong requests of one client, at most.
    pub of_a_client_max: u64,
    /// Wrong requests by the number of names that their client had made, over all clients.
    pub by_turn: Vec<u64>,
    /// Number of names that each partition has in the end.
    pub held: Vec<u64>,
}

/// A directory, and what each of its partitions knows. Names lie evenly, so that it is not kept
/// which there are.
struct Directory {
    views: Vec<Layout>,
    held: Vec<u64>,
    crowd: Crowd,
    total: u64,
    truth: Layout,
}

impl Directory {
    fn new(crowd: Crowd, spread: Spread) -> Directory {
        let truth = match spread {
            Spread::None => Layout::Whole,
            Spread::Extendible => Layout::Extendible(Splits::new(1)),
            Spread::Subsets => Layout::Subsets(Subsets::new(1)),
        };
        Directory { views: vec![truth.clone()], held: vec![0], crowd, total: 0, truth }
    }

    /// The partition that has `pos`, as a client finds it that knows `layout`, and how many wrong
    /// ones it asks before.
    fn find(&self, layout: &mut Layout, pos: u64) -> (u16, usize) {
        let mut wrong = 0;
        loop {
            let asked = layout.partition(pos);
            let view = &self.views[usize::from(asked)];
            if view.partition(pos) == asked {
                return (asked, wrong);
            }
            layout.learn(view);
            wrong += 1;
        }
    }

    fn make(&mut self, partition: u16) {
        let at = usize::from(partition);
        self.held[at] += 1;
        self.total += 1;
        match &self.views[at] {
            Layout::Whole => {}
            Layout::Extendible(splits) if self.held[at] > self.crowd.threshold => {
                if let Some(transfer) = splits.split(partition, self.crowd.shards) {
                    self.transfer(transfer, |had| had / 2);
                }
            }
            Layout::Extendible(_) => {}
            Layout::Subsets(_) => self.grow(),
        }
    }

    /// The master begins to have more subsets when the size asks for it.
    fn grow(&mut self) {
        let Layout::Subsets(subsets) = &self.truth else { return };
        let count = subsets.goal();
        let wanted = Subsets::wanted(count, self.total, self.crowd.threshold, 1);
        let Some(begun) = subsets.begin(wanted, self.crowd.shards) else { return };
        self.truth = Layout::Subsets(begun.clone());
        for source in 0..count {
            self.views[usize::from(source)].learn(&Layout::Subsets(begun.clone()));
            // Each subset has the same in the end.
            for (transfer, left) in
                begun.transfers_of(source).zip((1..=u64::from(begun.goal())).rev())
            {
                self.transfer(transfer, |had| had / left);
            }
        }
    }

    fn transfer(&mut self, transfer: Transfer, part: impl Fn(u64) -> u64) {
        let (source, target) = (usize::from(transfer.source), usize::from(transfer.target));
        if self.views.len() <= target {
            self.views.resize(target + 1, Layout::Whole);
            self.held.resize(target + 1, 0);
        }
        let mut both = self.views[source].clone();
        both.learn(&self.views[target]);
        let after = both.after(transfer).expect("it is the next transfer of its source");
        self.truth.learn(&after);
        // The master is told, and answers with what it knows of others.
        let mut master = self.views[0].clone();
        master.learn(&after);
        self.views[0] = master.clone();
        self.views[source] = master.clone();
        self.views[target] = master;
        let moved = part(self.held[source]);
        self.held[source] -= moved;
        self.held[target] += moved;
    }
}

/// Where names lie: they are drawn one after the other, the same ones each time.
struct Draw(u64);

impl Draw {
    fn pos(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) & POS_MAX
    }
}

/// Lets the crowd make its names. With the same `seed` they are the same ones.
///
/// # Panics
/// When there are no clients.
#[must_use]
pub fn probe(crowd: Crowd, spread: Spread, seed: u64) -> Probes {
    assert!(crowd.clients > 0, "somebody makes the names");
    let mut directory = Directory::new(crowd, spread);
    // At first a client knows the layout in the parent's entry: one partition.
    let mut clients = vec![(Layout::Whole, 0u64); usize::try_from(crowd.clients).expect("32 bits")];
    let mut probes = Probes::default();
    let mut draw = Draw(seed);
    let mut made = 0;
    while made < crowd.names {
        let mut of_turn = 0;
        for (layout, wrong) in &mut clients {
            if made == crowd.names {
                break;
            }
            made += 1;
            let (partition, in_a_row) = directory.find(layout, draw.pos());
            directory.make(partition);
            if probes.in_a_row.len() <= in_a_row {
                probes.in_a_row.resize(in_a_row + 1, 0);
            }
            probes.in_a_row[in_a_row] += 1;
            let in_a_row = u64::try_from(in_a_row).unwrap_or(u64::MAX);
            *wrong += in_a_row;
            of_turn += in_a_row;
        }
        probes.wrong += of_turn;
        probes.by_turn.push(of_turn);
    }
    probes.of_a_client_max = clients.iter().map(|(_, wrong)| *wrong).max().unwrap_or(0);
    probes.held = directory.held;
    probes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardly_any_request_is_addressed_wrongly() {
        let crowd = Crowd { clients: 64, names: 400_000, threshold: 2000, shards: 16 };
        for spread in [Spread::Extendible, Spread::Subsets] {
            let probes = probe(crowd, spread, 1);
            assert_eq!(probes.held.len(), 16);
            assert_eq!(probes.held.iter().sum::<u64>(), crowd.names);
            assert!(probes.wrong * 100 < crowd.names, "{probes:?}");
            assert!(probes.in_a_row.len() <= 1 + 2, "{:?}", probes.in_a_row);
            assert_eq!(probes.in_a_row.iter().sum::<u64>(), crowd.names);
            assert_eq!(probes.by_turn.len(), 400_000 / 64);
            assert_eq!(probes.by_turn.iter().sum::<u64>(), probes.wrong);
            assert_eq!(probe(crowd, spread, 1), probes, "it is the same each time");
        }
        assert_eq!(probe(crowd, Spread::None, 1).wrong, 0);
    }
}
