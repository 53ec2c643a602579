//! Connections to other servers: the requests that this server asks.
//!
//! Each core has its own connections, one to each server, made when needed. Requests are sent in
//! the order in which they were asked, and the other end takes them in that order. When a
//! connection breaks, or its other end is silent for too long, all requests that wait on it are
//! lost: they may have happened or not. So only requests that may be asked twice go this way, and
//! the caller decides whether to ask again. An error of the other server is no loss: the same
//! request would fail again.

mod open;

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use base::{FsError, HashMap};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, split},
    sync::{Notify, oneshot},
    time::{Instant, timeout},
};
use wire::{Answer, FrameError, Reply, ReplyHeader, Request, RequestHeader, frame};

pub(crate) use open::Open;

use crate::server::Shared;

/// Longest time to reach a server.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Period of pings to the other end while a request waits.
const PING_PERIOD: Duration = Duration::from_millis(500);
/// Silence after which the other end is given up.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Pause between a failed attempt to connect and the next one.
const REDIAL_PAUSE: Duration = Duration::from_millis(20);

/// The reason why there is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The request may have happened or not. It may be asked again.
    Lost,
    /// The other server cannot do it, or cannot be asked: the same request ends the same way.
    Failed(FsError),
}

type Answered = Result<Reply, Unanswered>;

/// The connections of one core.
pub(crate) struct Peers {
    shared: Arc<Shared>,
    links: RefCell<HashMap<u16, Rc<Link>>>,
}

/// The connection to one server.
#[derive(Default)]
struct Link {
    out: RefCell<Vec<u8>>,
    waiting: RefCell<HashMap<u64, oneshot::Sender<Answered>>>,
    calls: Cell<u64>,
    wake: Notify,
    running: Cell<bool>,
    failed: Cell<Option<Instant>>,
}

impl Peers {
    pub(crate) fn new(shared: Arc<Shared>) -> Peers {
        Peers { shared, links: RefCell::default() }
    }

    /// Asks `server`, which is not this one. When this returns, the request is queued after all
    /// earlier ones; the future it returns waits for the answer.
    pub(crate) fn ask(
        &self,
        server: u16,
        request: &Request,
    ) -> impl Future<Output = Answered> + use<> {
        let link = Rc::clone(self.links.borrow_mut().entry(server).or_default());
        let (sender, answer) = oneshot::channel();
        let call = link.next_call();
        if put_request(&mut link.out.borrow_mut(), call, request) {
            link.waiting.borrow_mut().insert(call, sender);
            link.wake.notify_one();
            if !link.running.replace(true) {
                tokio::task::spawn_local(run(Arc::clone(&self.shared), server, link));
            }
        } else {
            // The receiver is read below.
            let _ = sender.send(Err(Unanswered::Failed(FsError::Io)));
        }
        async move { answer.await.unwrap_or(Err(Unanswered::Lost)) }
    }

    /// Number of requests that a server has not answered, whether or not anybody waits for them.
    #[cfg(test)]
    pub(crate) fn unanswered(&self, server: u16) -> usize {
        self.links.borrow().get(&server).map_or(0, |link| link.waiting.borrow().len())
    }
}

impl Link {
    fn next_call(&self) -> u64 {
        self.calls.set(self.calls.get() + 1);
        self.calls.get()
    }
}

/// Appends a request. Returns `false` when it is too long.
fn put_request(out: &mut Vec<u8>, call: u64, request: &Request) -> bool {
    let put = RequestHeader::bare(call).put(request, out);
    if !put {
        tracing::error!("a request to another server is too long to send");
    }
    put
}

/// Keeps a connection open until it fails or its server is silent.
async fn run(shared: Arc<Shared>, server: u16, link: Rc<Link>) {
    if let Some(failed) = link.failed.take() {
        tokio::time::sleep_until(failed + REDIAL_PAUSE).await;
    }
    if let Err(error) = connected(&shared, server, &link).await {
        tracing::debug!(server, %error, "the way to another server is lost");
    }
    link.failed.set(Some(Instant::now()));
    link.out.borrow_mut().clear();
    link.running.set(false);
    // The waiting tasks see that their senders are dropped.
    link.waiting.borrow_mut().clear();
}

async fn connected(shared: &Shared, server: u16, link: &Link) -> io::Result<()> {
    let Some(cluster) = &shared.cluster else { return Ok(()) };
    let given = timeout(DIAL_TIMEOUT, cluster.own.until_given());
    given.await.map_err(|_| io::ErrorKind::NotConnected)?;
    let address = cluster.address(server).ok_or(io::ErrorKind::NotFound)?;
    let connecting = Open::connect(shared, cluster, server, &address);
    let open = timeout(DIAL_TIMEOUT, connecting).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let generation = open.generation;
    let is_newest = || !cluster.own.outdates(server, generation, shared.bugs);
    talk(link, open, &Request::PeerHello(cluster.hello(server, &shared.options.address)), is_newest)
        .await
}

/// Sends requests and hands answers on, until the connection ends, or its other end is outdated.
async fn talk(
    link: &Link,
    open: Open,
    ping: &Request,
    is_newest: impl Fn() -> bool,
) -> io::Result<()> {
    let (stream, mut inbox) = open.into_parts();
    let (mut read, mut write) = split(stream);
    let heard = Cell::new(Instant::now());
    let reading = async {
        loop {
            inbox.reserve(16 << 10);
            if read.read_buf(&mut inbox).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            heard.set(Instant::now());
            if !is_newest() {
                return Err(io::Error::other("a newer process of the server has begun"));
            }
            while let Some(bytes) = frame::take_frame(&mut inbox).map_err(nonsense)? {
                take_answer(link, &bytes).map_err(nonsense)?;
            }
        }
    };
    let writing = async {
        loop {
            let out = std::mem::take(&mut *link.out.borrow_mut());
            if out.is_empty() {
                link.wake.notified().await;
                continue;
            }
            write.write_all(&out).await?;
            write.flush().await?;
        }
    };
    let watching = async {
        loop {
            tokio::time::sleep(PING_PERIOD).await;
            if link.waiting.borrow().is_empty() {
                heard.set(Instant::now());
            } else if heard.get().elapsed() > SILENCE_MAX {
                return Err::<(), _>(io::Error::from(io::ErrorKind::TimedOut));
            } else {
                put_request(&mut link.out.borrow_mut(), 0, ping);
                link.wake.notify_one();
            }
        }
    };
    tokio::select! {
        biased;
        ended = reading => ended,
        ended = writing => ended,
        ended = watching => ended,
    }
}

fn nonsense(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn take_answer(link: &Link, bytes: &bytes::Bytes) -> Result<(), FrameError> {
    let (header, answer) = ReplyHeader::take(bytes)?;
    let waiting = link.waiting.borrow_mut().remove(&header.call);
    let answered = match answer {
        Answer::Done(reply) => Ok(reply),
        Answer::Failed(error) => Err(Unanswered::Failed(error)),
        Answer::Refused(reason) => {
            tracing::error!(reason, "another server refuses this one");
            Err(Unanswered::Lost)
        }
        Answer::Retry(_) | Answer::Halted | Answer::Noted(_) | Answer::Granted(_) => {
            Err(Unanswered::Lost)
        }
    };
    if let Some(waiting) = waiting {
        // The task that asked may have gone.
        let _ = waiting.send(answered);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use base::ShardId;
    use bytes::Bytes;
    use store::{Batch, Engine as _};
    use wire::{Expected, PeerRead, Prepare, Stands, TxnId};

    use super::*;
    use crate::{
        coordinator::tests::several::in_cluster,
        record::{key, key::Part},
    };

    #[test]
    fn what_cannot_be_asked_or_done_is_an_error_and_no_loss() {
        in_cluster(async |three| {
            let failed = Err(Unanswered::Failed(FsError::Io));
            let peers = &three.node(1).core.inner.peers;
            let long = PeerRead {
                keys: vec![Bytes::from(vec![0; 1 << 20]); 9],
                inos: Vec::new(),
                hold: None,
                confirmed: false,
                session: None,
            };
            assert_eq!(peers.ask(0, &Request::PeerRead(long)).await, failed);

            let damaged = key::content(ShardId(0), base::DirId(77), 0, Part::Main);
            let mut batch = Batch::default();
            batch.put(&damaged, b"junk");
            three.engines[0].write(batch).unwrap();
            let at = Bytes::copy_from_slice(&damaged);
            let was = Some(Bytes::from_static(b"other"));
            let expects = vec![Expected { key: at.clone(), was, stands: Stands::Stable }];
            let txn = TxnId { server: 1, run: 1, number: 1 };
            let prepare = Prepare {
                txn,
                expects,
                writes: Vec::new(),
                early_mkdir: false,
                held: false,
                others: vec![],
                session: None,
            };
            assert_eq!(peers.ask(0, &Request::Prepare(prepare)).await, failed);

            let read = PeerRead {
                keys: vec![at],
                inos: Vec::new(),
                hold: None,
                confirmed: false,
                session: None,
            };
            let there = Reply::Values(vec![Some(Bytes::from_static(b"junk"))]);
            assert_eq!(peers.ask(0, &Request::PeerRead(read)).await, Ok(there));
        });
    }
}
