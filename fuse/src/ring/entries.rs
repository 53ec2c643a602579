//! The entries of the queues that one thread serves, and how many each queue has.

use rustix::io::Errno;

use super::IoUringError;
use crate::sys::ring::EntryMemory;

/// Entries of a queue at the beginning.
const ENTRIES_MIN: u32 = 8;
/// Entries of a queue at most.
const ENTRIES_MAX: u32 = 4096;
/// Entries that a queue gets in one go at most.
const STEP_MAX: u32 = 64;
/// A queue with fewer free entries gets more.
const FREE_MIN: u32 = 4;
/// The kernel's limit of completions; each entry may have one.
const COMPLETIONS_MAX: u32 = 1 << 16;
/// Payloads of all queues together, at the beginning, in bytes.
const PAYLOADS_MAX: u64 = 64 << 20;
/// The smallest payload, which holds every xattr, and the smallest largest write.
const PAYLOAD_MIN: u32 = 128 << 10;

/// Place of an entry in the table, and its queue.
#[derive(Debug)]
pub(super) struct RingEntry {
    pub(super) memory: EntryMemory,
    pub(super) id: u32,
    pub(super) queue: u16,
    /// The kernel has taken it.
    pub(super) registered: bool,
}

/// One queue of the kernel's.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    /// Number of entries that were made for it.
    entries: u32,
    /// Number of entries that no request has.
    free: u32,
    /// No more can be registered.
    full: bool,
}

/// All entries of some queues.
#[derive(Debug)]
pub(super) struct Entries {
    /// Armed entries, by their ids.
    table: Vec<Option<RingEntry>>,
    armed: usize,
    /// By their numbers; those that others serve have no entries.
    queues: Vec<Queue>,
    entries_max: u32,
    /// Entries to be registered.
    pub(super) fresh: Vec<RingEntry>,
    payload_bytes: usize,
}

impl Entries {
    /// The first entries of the queues `served`, on a machine of `cpus` queues.
    pub(super) fn new(served: &[u16], cpus: u16, max_write: u32) -> Result<Entries, IoUringError> {
        let number = u32::try_from(served.len()).unwrap_or(u32::MAX).max(1);
        let mut entries = Entries {
            table: Vec::new(),
            armed: 0,
            queues: vec![Queue::default(); usize::from(cpus)],
            entries_max: ENTRIES_MAX.min(COMPLETIONS_MAX / number),
            fresh: Vec::new(),
            payload_bytes: payload_bytes(max_write),
        };
        for queue in served {
            entries
                .grow(*queue, ENTRIES_MIN.min(entries.entries_max))
                .map_err(|errno| IoUringError::Memory(errno.into()))?;
        }
        Ok(entries)
    }

    /// The most entries that these queues can have together.
    pub(super) fn most(&self) -> u32 {
        let served = self.queues.iter().filter(|queue| queue.entries > 0).count();
        self.entries_max * u32::try_from(served).unwrap_or(u32::MAX).max(1)
    }

    /// Number of entries that the kernel has.
    pub(super) fn armed(&self) -> usize {
        self.armed
    }

    /// The largest number of pages of a request that fit into a payload.
    pub(super) fn max_pages(&self) -> u16 {
        let pages = self.payload_bytes / rustix::param::page_size();
        u16::try_from(pages).unwrap_or(u16::MAX)
    }

    /// Takes one of the fresh entries of each queue.
    pub(super) fn first_of_each(&mut self) -> Vec<RingEntry> {
        let mut seen = vec![false; self.queues.len()];
        let first =
            |entry: &mut RingEntry| !std::mem::replace(&mut seen[usize::from(entry.queue)], true);
        self.fresh.extract_if(.., first).collect()
    }

    /// The kernel gets an entry.
    pub(super) fn arm(&mut self, entry: RingEntry) {
        self.queues[usize::from(entry.queue)].free += 1;
        self.armed += 1;
        let at = usize::try_from(entry.id).expect("an index");
        self.table[at] = Some(entry);
    }

    /// The kernel gives an entry back; `None` when it did not have that one.
    pub(super) fn take(&mut self, id: u64) -> Option<RingEntry> {
        let at = usize::try_from(id).ok()?;
        let entry = self.table.get_mut(at).and_then(Option::take)?;
        self.armed -= 1;
        self.queues[usize::from(entry.queue)].free -= 1;
        Some(entry)
    }

    /// Makes more entries for a queue that has few free ones.
    pub(super) fn keep_some_free(&mut self, number: u16) {
        let queue = &self.queues[usize::from(number)];
        if queue.free >= FREE_MIN || queue.full {
            return;
        }
        let room = self.entries_max.saturating_sub(queue.entries);
        let step = queue.entries.min(STEP_MAX).min(room);
        let grown = if step == 0 { Err(Errno::NOSPC) } else { self.grow(number, step) };
        if let Err(errno) = grown {
            self.limit(number, errno);
        }
    }

    /// A queue gets no more entries.
    pub(super) fn limit(&mut self, number: u16, errno: Errno) {
        let queue = &mut self.queues[usize::from(number)];
        queue.full = true;
        let entries = queue.entries;
        tracing::warn!(cpu = number, entries, %errno, "a queue of io_uring gets no more entries");
    }

    /// The entries that the kernel has, when it is not known whether it still writes to them.
    pub(super) fn drain_armed(&mut self) -> impl Iterator<Item = RingEntry> + '_ {
        self.table.drain(..).flatten()
    }

    /// Makes more entries for a queue, to be registered.
    fn grow(&mut self, queue: u16, entries: u32) -> Result<(), Errno> {
        for memory in EntryMemory::map(entries, self.payload_bytes)? {
            let id = u32::try_from(self.table.len()).expect("there are 65,536 entries at most");
            self.table.push(None);
            self.fresh.push(RingEntry { memory, id, queue, registered: false });
        }
        let queue = &mut self.queues[usize::from(queue)];
        queue.entries += entries;
        Ok(())
    }
}

/// The largest write, up to `max_write`, with which the first payloads of so many CPUs are not too
/// much memory.
pub(super) fn affordable(max_write: u32, cpus: u16) -> u32 {
    let each = PAYLOADS_MAX / (u64::from(cpus) * u64::from(ENTRIES_MIN));
    let each = u32::try_from(each).unwrap_or(u32::MAX) & !4095;
    max_write.min(each.max(PAYLOAD_MIN))
}

/// Length of a payload: whole pages, for the largest write and the largest xattr.
fn payload_bytes(max_write: u32) -> usize {
    let bytes = usize::try_from(max_write.max(PAYLOAD_MIN)).expect("at most 1 MiB");
    bytes.next_multiple_of(rustix::param::page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_write_shrinks_where_cpus_are_many_and_never_below_128_kib() {
        assert_eq!(affordable(1 << 20, 1), 1 << 20);
        assert_eq!(affordable(1 << 20, 8), 1 << 20);
        assert_eq!(affordable(1 << 20, 16), 512 << 10);
        assert_eq!(affordable(1 << 20, 24), 348_160);
        assert_eq!(affordable(1 << 20, 1024), 128 << 10);
        assert_eq!(affordable(4096, 1024), 4096);
        assert_eq!(payload_bytes(4096), 128 << 10);
        assert_eq!(payload_bytes(1 << 20), 1 << 20);
    }

    #[test]
    fn each_queue_that_is_served_has_entries_and_no_other() {
        let mut entries = Entries::new(&[1, 3], 4, 4096).unwrap();
        assert_eq!(entries.fresh.len(), 2 * usize::try_from(ENTRIES_MIN).unwrap());
        assert_eq!(entries.most(), 2 * ENTRIES_MAX);
        let first: Vec<u16> = entries.first_of_each().iter().map(|entry| entry.queue).collect();
        assert_eq!(first, [1, 3]);
    }
}
