//! A network of a given round trip, on a machine that has none: bytes arrive half of it after they
//! were sent.
//!
//! `bench figures` dials its clients through it, and `serve --rtt` the server's links to others.
//! Each connection has two tasks, one for each direction, where it was dialled. It never changes
//! the order of bytes, and never delivers early. Precise to microseconds where the runtime has the
//! time: a timer of the kernel ends shortly before, and what is left is spun; so it is for
//! measurements, and costs CPU time of the process that dials.
//!
//! With jitter each piece takes longer by a random time of its own, drawn exponentially: most take
//! little, and a few much, as on a network with queues. What was sent before never arrives after
//! what was sent later. The draws are those of a seed: each connection and direction has its own
//! sequence.
//!
//! Always true: no more than [`UNDER_WAY_MAX`] bytes are under way in a direction; then the sender
//! waits.

use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, duplex, split, unix::AsyncFd,
};
use wire::{Dial, Dialled};

use crate::{draws::Draws, monotonic};

/// The most bytes under way in a direction.
const UNDER_WAY_MAX: usize = 4 << 20;
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// Time before a delivery during which the thread waits by spinning: longer than a thread takes to
/// wake up.
const SPIN: Duration = Duration::from_micros(60);

/// Longest delay of a piece, in units of the mean.
const JITTER_TIMES_MAX: f64 = 20.0;

/// A network with a round trip.
pub struct Delayed {
    network: Arc<dyn Dial>,
    each_way: Duration,
    /// The mean of what is added in each direction.
    jitter: Duration,
    seed: u64,
    /// Connections so far.
    dialled: AtomicU64,
}

impl Delayed {
    /// `network`, with connections on which a question and its answer take `round_trip` longer.
    #[must_use]
    pub fn new(network: Arc<dyn Dial>, round_trip: Duration) -> Delayed {
        let (jitter, dialled) = (Duration::ZERO, AtomicU64::new(0));
        Delayed { network, each_way: round_trip / 2, jitter, seed: 0, dialled }
    }

    /// Adds jitter: a question and its answer take `mean` longer on average. The time that each of
    /// them takes is random, drawn from `seed`.
    #[must_use]
    pub fn with_jitter(self, mean: Duration, seed: u64) -> Delayed {
        Delayed { jitter: mean / 2, seed, ..self }
    }
}

/// How long pieces take in one direction of a connection.
struct Way {
    least: Duration,
    jitter: Duration,
    draws: Draws,
}

impl Way {
    /// The next piece's time.
    fn draw(&mut self) -> Duration {
        if self.jitter.is_zero() {
            return self.least;
        }
        self.least + self.jitter.mul_f64((-self.draws.uniform().ln()).min(JITTER_TIMES_MAX))
    }
}

impl Dial for Delayed {
    fn dial<'a>(
        &'a self,
        address: &'a str,
        server: Option<u16>,
    ) -> BoxFuture<'a, io::Result<Dialled>> {
        Box::pin(async move {
            let Dialled { stream, binding } = self.network.dial(address, server).await?;
            if self.each_way.is_zero() && self.jitter.is_zero() {
                return Ok(Dialled { stream, binding });
            }
            let number = self.dialled.fetch_add(1, Ordering::Relaxed);
            let way = |direction: u64| {
                // Sequences of one seed lie far apart.
                let state =
                    self.seed ^ (2 * number + direction).wrapping_mul(0xd1b5_4a32_d192_ed03);
                Way { least: self.each_way, jitter: self.jitter, draws: Draws::of(state) }
            };
            let (near, far) = duplex(READ_BYTES);
            let (sent, received) = split(far);
            let (incoming, outgoing) = split(stream);
            // Both tasks end with the connection: its loss is seen at both ends.
            tokio::spawn(carry(sent, outgoing, way(0)));
            tokio::spawn(carry(incoming, received, way(1)));
            Ok(Dialled { stream: Box::new(near), binding })
        })
    }
}

/// Carries bytes from one end to the other, each so long after it was read as `way` says, in order.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut way: Way,
) -> io::Result<()> {
    let timer = Timer::new()?;
    let mut under_way: VecDeque<(Duration, Vec<u8>)> = VecDeque::new();
    let (mut bytes, mut ended) = (0, false);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let due = under_way.front().map(|(due, _)| *due);
        let reads = !ended && bytes < UNDER_WAY_MAX;
        if due.is_none() && ended {
            return to.shutdown().await;
        }
        tokio::select! {
            biased;
            waited = timer.until(due.unwrap_or_default()), if due.is_some() => {
                waited?;
                if let Some((_, piece)) = under_way.pop_front() {
                    bytes -= piece.len();
                    to.write_all(&piece).await?;
                    to.flush().await?;
                }
            }
            // A connection that was lost has ended, too.
            read = from.read(&mut buffer), if reads => match read.unwrap_or(0) {
                0 => ended = true,
                read => {
                    bytes += read;
                    let before = under_way.back().map_or(Duration::ZERO, |(due, _)| *due);
                    let due = before.max(monotonic() + way.draw());
                    under_way.push_back((due, buffer[..read].to_vec()));
                }
            }
        }
    }
}

/// A timer of the kernel, for less than the milliseconds of the runtime's own.
struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    #[expect(
        deprecated,
        reason = "the other way is unsafe code; an OwnedFd is open as long as it lives"
    )]
    fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Timer(AsyncFd::new(timerfd_create(TimerfdClockId::Monotonic, flags)?)?))
    }

    /// Returns at `due`, by [`monotonic`], or as soon after it as the runtime comes to it.
    async fn until(&self, due: Duration) -> io::Result<()> {
        loop {
            let left = due.saturating_sub(monotonic());
            if left.is_zero() {
                return Ok(());
            }
            if left > SPIN {
                self.sleep(left - SPIN).await?;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn sleep(&self, time: Duration) -> io::Result<()> {
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec::try_from(time).map_err(io::Error::other)?;
        // The call also clears an earlier expiry, if no read took it.
        let armed = Itimerspec { it_interval: never, it_value: value };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &armed)?;
        let mut ready = self.0.readable().await?;
        let mut ends = [0; 8];
        match rustix::io::read(self.0.get_ref(), &mut ends) {
            // Readiness of before: the caller looks at the clock again.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "these are tests")]

    use parking_lot::Mutex;
    use tokio::io::DuplexStream;
    use wire::Stream;

    use super::*;

    /// Hands out the one connection there is.
    struct Pipe(Mutex<Option<DuplexStream>>);

    impl Dial for Pipe {
        fn dial<'a>(&'a self, _: &'a str, _: Option<u16>) -> BoxFuture<'a, io::Result<Dialled>> {
            let stream = self.0.lock().take().unwrap();
            Box::pin(async move { Ok(Dialled::plain(stream)) })
        }
    }

    fn with_connection<F: Future<Output = ()>>(
        round_trip: Duration,
        test: impl FnOnce(Box<dyn Stream>, DuplexStream) -> F,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (here, there) = duplex(READ_BYTES);
            let pipe = Arc::new(Pipe(Mutex::new(Some(here))));
            test(Delayed::new(pipe, round_trip).dial("", None).await.unwrap().stream, there).await;
        });
    }

    /// The bytes of a stream, up to its end.
    async fn read_all(far: &mut DuplexStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        far.read_to_end(&mut bytes).await.unwrap();
        bytes
    }

    #[test]
    fn each_way_takes_at_least_half_of_the_round_trip() {
        let round_trip = Duration::from_micros(400);
        with_connection(round_trip, async |mut near, mut far| {
            for question in 0u8..50 {
                let start = monotonic();
                near.write_all(&[question]).await.unwrap();
                assert_eq!(far.read_u8().await.unwrap(), question);
                assert!(monotonic() - start >= round_trip / 2);
                far.write_all(&[question]).await.unwrap();
                assert_eq!(near.read_u8().await.unwrap(), question);
                assert!(monotonic() - start >= round_trip);
            }
        });
    }

    fn draws(seed: u64) -> Vec<Duration> {
        let jitter = Duration::from_micros(100);
        let mut way = Way { least: Duration::from_micros(50), jitter, draws: Draws::of(seed) };
        (0..20_000).map(|_| way.draw()).collect()
    }

    #[test]
    fn jitter_is_that_of_its_seed_and_has_a_tail() {
        let mut drawn = draws(7);
        assert_eq!(drawn, draws(7));
        assert_ne!(drawn, draws(8));
        let mean = drawn.iter().sum::<Duration>() / 20_000;
        assert!(mean.abs_diff(Duration::from_micros(150)) < Duration::from_micros(5), "{mean:?}");
        drawn.sort_unstable();
        assert!(drawn[0] >= Duration::from_micros(50));
        // Of exponential times the median is 0.69 and the 99th percentile 4.6 times the mean.
        let beyond = |at: usize| drawn[at] - Duration::from_micros(50);
        assert!(beyond(10_000).abs_diff(Duration::from_micros(69)) < Duration::from_micros(5));
        assert!(beyond(19_800).abs_diff(Duration::from_micros(460)) < Duration::from_micros(50));
    }

    #[test]
    fn jitter_keeps_the_order_of_bytes() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (here, mut far) = duplex(READ_BYTES);
            let pipe = Arc::new(Pipe(Mutex::new(Some(here))));
            let network = Delayed::new(pipe, Duration::ZERO);
            let network = network.with_jitter(Duration::from_micros(300), 1);
            let mut near = network.dial("", None).await.unwrap().stream;
            let write = async {
                for number in 0u8..200 {
                    near.write_all(&[number]).await.unwrap();
                    tokio::task::yield_now().await;
                }
                drop(near);
            };
            let ((), bytes) = tokio::join!(write, read_all(&mut far));
            assert!(bytes.into_iter().eq(0u8..200));
        });
    }

    #[test]
    fn bytes_stay_in_order_and_the_last_of_them_arrive() {
        with_connection(Duration::from_micros(100), async |mut near, mut far| {
            let count = 2 * UNDER_WAY_MAX / size_of::<u64>();
            let write = async {
                for number in 0..count {
                    near.write_u64(u64::try_from(number).unwrap()).await.unwrap();
                }
                drop(near);
            };
            let ((), bytes) = tokio::join!(write, read_all(&mut far));
            let numbers = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_be_bytes(*bytes));
            assert!(numbers.eq(0..u64::try_from(count).unwrap()));
        });
    }

    #[test]
    fn the_end_of_the_other_side_is_seen() {
        with_connection(Duration::from_micros(100), async |mut near, mut far| {
            far.write_all(b"last").await.unwrap();
            drop(far);
            let mut bytes = Vec::new();
            near.read_to_end(&mut bytes).await.unwrap();
            assert_eq!(bytes, b"last");
        });
    }
}
