//! Threads that take requests over io_uring, one for each CPU.
//!
//! The kernel puts a request into the queue of its caller's CPU. A thread that stays on that CPU is
//! woken there, which costs a tenth of waking another CPU, and the caller's memory is still warm.
//! The session's own thread serves the queues of CPUs on which this process may not run, reads
//! `/dev/fuse`, and does whatever else its runtime has to do.

use std::{future::pending, io, mem, thread};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::{
    runtime::Builder,
    sync::{mpsc, oneshot},
    task::LocalSet,
};

use super::{
    Handler, Session, SessionError,
    desk::Desk,
    policy::{self, Courtesy},
};
use crate::{
    init::{Capabilities, IoUring},
    ring::{IoUringError, Prepared, Ring},
    sys::{self, Policy},
};

/// The queue of one CPU, in the hands of the thread that serves it.
#[derive(Debug)]
pub struct Worker {
    desk: Desk,
    ring: Ring,
    courtesy: Option<Courtesy>,
}

impl Worker {
    /// Serves until the file system is unmounted.
    ///
    /// # Errors
    /// When the kernel refuses to go on.
    pub async fn run(self, handler: &impl Handler) -> Result<(), SessionError> {
        self.desk.over_ring(self.ring, None, self.courtesy, handler).await.map(drop)
    }
}

/// The workers of a session.
#[derive(Debug, Default)]
pub(super) struct Workers {
    prepared: Vec<(u16, Prepared)>,
    io_uring: IoUring,
    started: bool,
    /// How each thread that was started has ended, and the threads.
    ends: Option<mpsc::UnboundedReceiver<Result<(), SessionError>>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Workers {
    pub(super) fn new(prepared: Vec<(u16, Prepared)>, io_uring: IoUring) -> Workers {
        Workers { prepared, io_uring, ..Workers::default() }
    }

    /// Whether there are none that wait to be started.
    pub(super) fn are_started(&self) -> bool {
        self.prepared.is_empty()
    }

    /// Whether some were started.
    pub(super) fn are_any(&self) -> bool {
        self.started
    }

    /// Takes what tells how they end.
    pub(super) fn ends(&mut self) -> Ends {
        Ends { told: self.ends.take(), threads: mem::take(&mut self.threads) }
    }
}

/// The ends of threads.
pub(super) struct Ends {
    told: Option<mpsc::UnboundedReceiver<Result<(), SessionError>>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Ends {
    /// Returns when one has failed.
    pub(super) async fn failed(&mut self) -> SessionError {
        match self.next_failed().await {
            Some(error) => error,
            None => pending().await,
        }
    }

    /// Waits until all have ended, and nothing of them is left. One that has failed is not waited
    /// for.
    pub(super) async fn all(mut self) -> Result<(), SessionError> {
        if let Some(error) = self.next_failed().await {
            return Err(error);
        }
        // Each has told so as its last act.
        self.threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| panicked()))
    }

    async fn next_failed(&mut self) -> Option<SessionError> {
        while let Some(end) = self.told.as_mut()?.recv().await {
            if let Err(error) = end {
                return Some(error);
            }
        }
        None
    }
}

impl Session {
    /// Starts the threads of [`Threads::EachCpu`](crate::Threads::EachCpu), named `NAME-CPU`: each
    /// calls `serve` on its CPU, within a runtime and a `LocalSet` of its own, and ends with it.
    /// `serve` has to [run](Worker::run) the worker. The kernel holds back all requests until then.
    ///
    /// # Errors
    /// When there are no threads, or [`IoUring::On`] was asked for and the kernel refuses a queue.
    /// With [`IoUring::Auto`] requests come over `/dev/fuse` then.
    pub async fn start_workers<F>(
        &mut self,
        name: &str,
        serve: impl Fn(Worker) -> F + Clone + Send + 'static,
    ) -> Result<(), SessionError>
    where
        F: Future<Output = Result<(), SessionError>>,
    {
        let all = mem::take(&mut self.workers.prepared);
        if all.is_empty() {
            return Ok(());
        }
        let (end, ends) = mpsc::unbounded_channel();
        let mut started = Vec::new();
        let polite = policy::is_allowed();
        for (cpu, prepared) in all {
            let desk = Desk::new(&self.desk.channel, &self.desk.pool, self.desk.negotiated);
            let (serve, end, (tell, told)) = (serve.clone(), End(end.clone()), oneshot::channel());
            started.push(told);
            let thread = thread::Builder::new().name(format!("{name}-{cpu}"));
            let work = move || work((cpu, polite), prepared, desk, &serve, end, tell);
            self.workers.threads.push(thread.spawn(work).map_err(SessionError::Thread)?);
        }
        self.workers.ends = Some(ends);
        for told in started {
            let refused = match told.await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error,
                Err(_) => {
                    let failed = self.workers.ends().next_failed().await;
                    return Err(failed.unwrap_or_else(panicked));
                }
            };
            if self.workers.io_uring == IoUring::On || !refused.lets_device() {
                return Err(SessionError::IoUring(refused));
            }
            self.desk.negotiated.capabilities.remove(Capabilities::OVER_IO_URING);
            self.without_ring.get_or_insert(refused);
        }
        self.workers.started = self.without_ring.is_none();
        Ok(())
    }
}

/// Tells how a thread has ended, also by a panic.
struct End(mpsc::UnboundedSender<Result<(), SessionError>>);

impl End {
    /// Without a receiver the session has ended.
    fn tell(&self, ended: Result<(), SessionError>) {
        let _ = self.0.send(ended);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if thread::panicking() {
            self.tell(Err(panicked()));
        }
    }
}

/// The whole life of a worker's thread.
fn work<F>(
    (cpu, polite): (u16, bool),
    prepared: Prepared,
    desk: Desk,
    serve: &impl Fn(Worker) -> F,
    end: End,
    tell: oneshot::Sender<Result<(), IoUringError>>,
) where
    F: Future<Output = Result<(), SessionError>>,
{
    let all = sched_getaffinity(None);
    stay_on(cpu);
    let mut builder = Builder::new_current_thread();
    // Threads that block for this one inherit what it is, and are to be ordinary ones.
    builder.enable_all().on_thread_start(move || {
        let _ = all.as_ref().map(|cpus| sched_setaffinity(None, cpus));
        let _ = sys::set_policy(Policy::Normal);
    });
    let runtime = match builder.build() {
        Ok(runtime) => runtime,
        Err(error) => return end.tell(Err(SessionError::Thread(error))),
    };
    // After a panic this tells before the runtime is dropped, which may wait.
    let end = end;
    let served = LocalSet::new().block_on(&runtime, async {
        let (started, ring) = match prepared.start() {
            Ok(ring) => (Ok(()), Some(ring)),
            Err(error) => (Err(error), None),
        };
        // Without a receiver the session has failed, and the kernel takes all back.
        let _ = tell.send(started);
        match ring {
            Some(ring) => {
                let courtesy = if polite { Courtesy::new() } else { None };
                serve(Worker { desk, ring, courtesy }).await
            }
            None => Ok(()),
        }
    });
    // Threads that block for the runtime are not waited for, as the session waits for this one.
    runtime.shutdown_background();
    end.tell(served);
}

fn panicked() -> SessionError {
    SessionError::Thread(io::Error::other("a thread that serves the mount panicked"))
}

/// Keeps this thread on one CPU. Where that is refused, requests only cost more.
fn stay_on(cpu: u16) {
    let mut cpus = CpuSet::new();
    cpus.set(usize::from(cpu));
    if let Err(errno) = sched_setaffinity(None, &cpus) {
        tracing::debug!(cpu, %errno, "a thread of the mount stays on no CPU");
    }
}
