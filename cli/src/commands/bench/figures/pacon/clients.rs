//! Clients of a measurement: threads, each with one operation under way.

use std::{thread, time::Duration};

use super::super::load::float;

/// Measurements of operations.
pub(super) struct Took {
    operations: usize,
    elapsed: Duration,
    cpu: Duration,
}

impl Took {
    /// Measures operations that `act` does all of.
    pub(super) fn of(
        operations: usize,
        act: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Took> {
        let (start, cpu) = (bench::monotonic(), bench::process_cpu());
        act()?;
        Ok(Took {
            operations,
            elapsed: bench::monotonic().saturating_sub(start),
            cpu: bench::process_cpu().saturating_sub(cpu),
        })
    }

    pub(super) fn per_second(&self) -> f64 {
        float(self.operations) / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// CPU time of this process for an operation, in microseconds.
    pub(super) fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / float(self.operations.max(1))
    }
}

/// Has so many clients do so many operations in all, or a few more so that all do as many.
pub(super) fn run(
    clients: usize,
    operations: usize,
    act: &(dyn Fn(usize, usize) -> anyhow::Result<()> + Sync),
) -> anyhow::Result<Took> {
    let each = operations.div_ceil(clients);
    Took::of(each * clients, || {
        thread::scope(|scope| {
            let work = |client| move || (0..each).try_for_each(|number| act(client, number));
            let threads: Vec<_> = (0..clients).map(|client| scope.spawn(work(client))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
        })
    })
}
