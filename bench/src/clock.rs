//! The clocks of a measurement: they are the machine's, because that is what is measured.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since some fixed moment; all processes of a machine agree on it.
#[must_use]
pub fn monotonic() -> Duration {
    read(ClockId::Monotonic)
}

/// Time that the calling thread spent on a CPU, in the program and in the kernel.
#[must_use]
pub fn thread_cpu() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// Time that all threads of this process spent on CPUs, in the program and in the kernel.
#[must_use]
pub fn process_cpu() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).expect("these clocks begin at zero")
}
