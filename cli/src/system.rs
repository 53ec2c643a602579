//! The machine's randomness, space and limits: what the layers below are handed as arguments.

use std::{fs, path::Path, time::Duration};

use base::Random;
use parking_lot::Mutex;
use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    time::{ClockId, clock_gettime},
};

/// Random numbers of the operating system, fit for secrets, drawn a page at a time.
#[derive(Default)]
pub(crate) struct SystemRandom(Mutex<Vec<u8>>);

impl Random for SystemRandom {
    fn next(&self) -> u64 {
        const BYTES: usize = size_of::<u64>();
        let mut drawn = self.0.lock();
        if drawn.len() < BYTES {
            *drawn = secret::<512>().to_vec();
        }
        let rest = drawn.len() - BYTES;
        let number = drawn.split_off(rest);
        number.into_iter().fold(0, |number, byte| number << 8 | u64::from(byte))
    }
}

/// Secret bytes.
pub(crate) fn secret<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("Linux gives random bytes once it has booted");
    bytes
}

/// Name of this machine, for people and for other machines.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Raises the number of open files to what this process may have; what it is then.
pub(crate) fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // If the call is refused, the process goes on with its present limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Total and free bytes of the file system that holds `path`; zeros when it does not say.
pub(crate) fn space(path: &Path) -> (u64, u64) {
    rustix::fs::statvfs(path)
        .map(|stat| {
            (
                stat.f_frsize.saturating_mul(stat.f_blocks),
                stat.f_frsize.saturating_mul(stat.f_bavail),
            )
        })
        .unwrap_or_default()
}

/// The time since the machine was started, while it slept included.
pub(crate) fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// A name of the run of this machine's kernel; `None` where it does not say.
pub(crate) fn boot() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// A name of this machine, which each has of its own; `None` where it has none.
pub(crate) fn machine() -> Option<String> {
    let id = fs::read_to_string("/etc/machine-id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Resources of the machine that this process uses.
pub(crate) fn process_status() -> wire::ProcessStatus {
    let cpu = Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default();
    let id = std::process::id();
    wire::ProcessStatus {
        id,
        cpu_micros: u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX),
        resident_bytes: memory(id).map_or(0, |memory| memory.resident),
    }
}

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) resident: u64,
    /// The most so far. The kernel keeps it less exactly than it tells what is resident now, so it
    /// can be less than an earlier reading had, but not than its own.
    pub(crate) peak: u64,
}

/// Returns the memory of a process of this machine, when it may be asked.
pub(crate) fn memory(process: u32) -> Option<Memory> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let bytes = |field: &str| {
        let kib = status.lines().find_map(|line| line.strip_prefix(field))?;
        kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(Memory { resident: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
}

/// Lets the peak of a process' memory begin anew from what it occupies now, when the kernel permits
/// that.
pub(crate) fn forget_peak(process: u32) {
    // Otherwise the peak is that of a longer time, which is no less.
    let _ = fs::write(format!("/proc/{process}/clear_refs"), "5");
}

/// CPU time that a process of this machine has used, when it may be asked; in steps of a hundredth
/// of a second.
pub(crate) fn process_cpu(process: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name before the last bracket can be anything; user and system time are fields 14 and 15.
    let mut times = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: u64 = times.next()?.parse().ok()?;
    let ticks = ticks + times.next()?.parse::<u64>().ok()?;
    Duration::from_micros(ticks.checked_mul(1_000_000)?)
        .checked_div(u32::try_from(rustix::param::clock_ticks_per_second()).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_that_is_forgotten_begins_anew() {
        let me = std::process::id();
        let bytes = vec![1_u8; 64 << 20];
        assert!(bytes.iter().all(|byte| *byte == 1));
        drop(bytes);
        let before = memory(me).unwrap();
        forget_peak(me);
        let after = memory(me).unwrap();
        assert!(after.peak + (32 << 20) < before.peak, "{} {}", after.peak, before.peak);
    }

    #[test]
    fn a_process_is_seen_alike_from_inside_and_outside() {
        let inside = process_status();
        let outside = process_cpu(inside.id).unwrap();
        // The clock from outside goes in ticks.
        assert!(
            outside <= Duration::from_micros(process_status().cpu_micros) + Duration::from_secs(1)
        );
        let memory = memory(inside.id).unwrap();
        assert!(inside.resident_bytes > 0 && memory.resident > 0);
        assert!(memory.peak >= memory.resident);
        assert_eq!(process_cpu(u32::MAX), None);
    }
}
