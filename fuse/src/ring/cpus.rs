//! The CPUs of this machine, each of which has a queue of the kernel's.

use rustix::thread::{CpuSet, sched_getaffinity};
use std::io;

pub(super) const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Number of CPUs that there can be, which is the number of the kernel's queues.
pub(super) fn possible() -> io::Result<u16> {
    let list = std::fs::read_to_string(POSSIBLE)?;
    count(&list).ok_or_else(|| io::Error::other(format!("no list of CPUs: {list}")))
}

/// The CPUs on which this thread may run, of so many.
pub(super) fn own(cpus: u16) -> Vec<u16> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    let most = usize::from(cpus).min(CpuSet::MAX_CPU);
    (0..cpus).take(most).filter(|cpu| set.is_set(usize::from(*cpu))).collect()
}

/// Counts the CPUs in a list such as `0-3,6`.
fn count(list: &str) -> Option<u16> {
    let mut count = 0_u16;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted() {
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-1\n"), Some(2));
        assert_eq!(count("0-3,6,8-9\n"), Some(7));
        for wrong in ["", "a", "3-1", "0-65535,0-65535", "0-"] {
            assert_eq!(count(wrong), None, "{wrong}");
        }
    }
}
