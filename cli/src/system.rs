//! The machine's randomness, space and limits: what the layers below are handed as arguments.

use std::path::Path;

use base::Random;
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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

/// Raises the number of open files to what this process may have.
pub(crate) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused we go on with what we have.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
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
