//! One server's connections to the others: requests that this one asks.
//!
//! Each core has its own, one to each server, made when it is needed. Requests are sent in the order in which they were
//! asked, and the other end takes them in that order. When a connection breaks, or its other end is silent for too
//! long, everything that waits on it is lost: it may have happened or not, so only what may be asked twice goes this
//! way, and who asks decides whether to. What the other server fails at it would fail at again: that is an error, and no
//! loss.

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

/// How long a server may take to be reached.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// While somebody waits, the other end is asked so often whether it is there,
const PING_PERIOD: Duration = Duration::from_millis(500);
/// and is given up when it says nothing for so long.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// After a failed attempt the next one is made so much later.
const REDIAL_PAUSE: Duration = Duration::from_millis(20);

/// Why there is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Nobody knows whether it happened. It may be asked again.
    Lost,
    /// The other server cannot do it, or it cannot be asked: asked again, it ends the same way.
    Failed(FsError),
}

type Answered = Result<Reply, Unanswered>;

/// The connections of one core.
pub(crate) struct Peers {
    shared: Arc<Shared>,
    links: RefCell<HashMap<u16, Rc<Link>>>,
}

/// The way to one server.
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

    /// Asks `server`, which is not this one. The request is on its way, after all that was asked before, when this
    /// returns; what it returns waits for the answer.
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
            // It is listened to below.
            let _ = sender.send(Err(Unanswered::Failed(FsError::Io)));
        }
        async move { answer.await.unwrap_or(Err(Unanswered::Lost)) }
    }

    /// How many requests a server has not answered, whether anybody waits for them or not.
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

/// Appends a request; `false` when it is too long.
fn put_request(out: &mut Vec<u8>, call: u64, request: &Request) -> bool {
    let put = RequestHeader::bare(call).put(request, out);
    if !put {
        tracing::error!("a request to another server is too long to send");
    }
    put
}

/// Keeps the connection for as long as somebody waits on it or it holds.
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
    // Whoever waits hears of it by this.
    link.waiting.borrow_mut().clear();
}

async fn connected(shared: &Shared, server: u16, link: &Link) -> io::Result<()> {
    let Some(cluster) = &shared.cluster else { return Ok(()) };
    let address = cluster.address(server).ok_or(io::ErrorKind::NotFound)?;
    let connecting = Open::connect(shared, cluster, server, &address);
    let open = timeout(DIAL_TIMEOUT, connecting).await.map_err(|_| io::ErrorKind::TimedOut)??;
    talk(link, open, &Request::PeerHello(cluster.hello())).await
}

/// Sends what is asked and hands answers on, until the connection ends.
async fn talk(link: &Link, open: Open, ping: &Request) -> io::Result<()> {
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
        Answer::Retry(_) | Answer::Halted => Err(Unanswered::Lost),
    };
    if let Some(waiting) = waiting {
        // Who asked may not want to know any more.
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
                birth: false,
                held: false,
                others: vec![],
            };
            assert_eq!(peers.ask(0, &Request::Prepare(prepare)).await, failed);

            let read = PeerRead { keys: vec![at], inos: Vec::new(), hold: None };
            let there = Reply::Values(vec![Some(Bytes::from_static(b"junk"))]);
            assert_eq!(peers.ask(0, &Request::PeerRead(read)).await, Ok(there));
        });
    }
}
