//! Requests that wait: for locks, blocks, stable storage, a check or a dump. Their tasks run beside
//! the groups.

use std::{pin::Pin, sync::Arc, time::Duration};

use base::{BlockId, FsError, Tagged as _};
use futures::{FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream};
use store::{BlocksError, Compression, SignedFor};
use wire::{
    Answer, BlockGet, BlockPut, DumpStage, Reply, ReplyHeader, Request, Retry, SignBlocks, SignFor,
    SignedBlocks, Write,
};

use crate::{
    brought::Brought,
    bugs::Bug,
    dump,
    error::{Fault, Result, describe},
    file_locks::{Told, Turn},
    fsck,
    incoming::Incoming,
    moves,
    observe::{Note, Verdict, Waiting},
    ops::blocks::part_ticket,
    record::chunk::embedded_bytes,
    serve::connection::Connection,
    server::{Counters, Shared},
    session::Session,
    txn::CommitGroup,
    wait::{AtCore, Wait, WaitApart},
};

/// Time for which an address of a block is valid.
const SIGNED_FOR: Duration = Duration::from_secs(60);
/// Most addresses in one answer.
const SIGNED_MAX: u32 = 64;

/// Most blocks of a write that are being stored at a time.
const PUTS_IN_FLIGHT: usize = 4;

/// Work that waits.
pub(crate) struct Task {
    pub(crate) future: Pin<Box<dyn Future<Output = ()>>>,
    /// Whether the group must be written before the task starts.
    pub(crate) after_write: bool,
}

/// The task for a request that waits; `None` for all others.
pub(crate) fn task(
    shared: &Arc<Shared>,
    group: &mut CommitGroup,
    session: &Arc<Session>,
    incoming: &Incoming,
    reply: ReplyHeader,
) -> Option<Result<Task>> {
    if !waits(&incoming.request) {
        return None;
    }
    if !incoming.connection.may_wait() {
        return Some(Err(Fault::Retry(Retry::Busy)));
    }
    // The change that lets a lock be taken at once may not be written yet.
    let after_write = matches!(
        incoming.request,
        Request::Sync
            | Request::Lock(_)
            | Request::DumpStart
            | Request::DumpStep(_)
            | Request::Move(_)
    );
    let shared = shared.clone();
    let (connection, moving) = (incoming.connection.clone(), incoming.connection.clone());
    let now = shared.observed.now();
    let waiting = Waiting::of(Note {
        kind: incoming.request.tag(),
        verdict: Verdict::Done,
        session: session.id,
        call: incoming.header.call,
        subject: None,
        arrived: incoming.arrived,
        begun: now,
        ended: now,
    });
    let observer = shared.clone();
    let answer = move |result: std::result::Result<Reply, Answer>| {
        let answer = result.map_or_else(|answer| answer, Answer::Done);
        observer.observed.core(connection.core()).waited(&observer.observed, waiting, &answer);
        if observer.is_late() {
            return connection.close();
        }
        connection.reply_now(reply, &answer);
    };
    let future: Pin<Box<dyn Future<Output = ()>>> = match &incoming.request {
        Request::Sync => Box::pin(async move {
            if !shared.bugs.has(Bug::SyncNotAwaited) {
                shared.until_stable().await;
            }
            answer(Ok(Reply::Nothing));
        }),
        Request::FsckStart(wire::FsckStart { gc }) => {
            return Some(check(&shared, fsck::Aim::Find { gc: *gc }, answer));
        }
        Request::Repair(wire::Repair { gc, discard_lost }) => {
            let aim = fsck::Aim::Repair { gc: *gc, discard_lost: *discard_lost };
            return Some(check(&shared, aim, answer));
        }
        Request::Lock(lock) if lock.wait && lock.mode.is_some() => {
            Counters::add(&shared.counters.lock);
            match crate::ops::lock::wait(&shared, group, session, lock) {
                Err(fault) => return Some(Err(fault)),
                Ok(Turn::Now) => Box::pin(async move {
                    shared.until_told().await;
                    answer(Ok(Reply::Nothing));
                }),
                Ok(Turn::Later(told)) => Box::pin(async move {
                    let told = told.await;
                    // Wait until it is stable that the lock was free: after a power cut its former
                    // owner may come back.
                    shared.until_told().await;
                    answer(match told {
                        Ok(Told::Granted) => Ok(Reply::Nothing),
                        Ok(Told::Cancelled) => Err(Answer::Failed(FsError::Interrupted)),
                        Ok(Told::AskedAgain) => Err(Answer::Retry(Retry::Busy)),
                        // The session has ended.
                        Err(_) => Err(Answer::Retry(Retry::NoSession)),
                    });
                }),
            }
        }
        Request::DumpStart if shared.cluster.is_some() => {
            // One server's dump would hold only that server's part of the file system.
            let text = "all servers of a cluster are dumped together";
            return Some(Err(Fault::Refused(text.into())));
        }
        Request::DumpStart => Box::pin(async move {
            shared.delegations.gather().await;
            // The group is written: all that was answered is in it.
            match dump::start(&shared, shared.random.next()) {
                Ok(started) => {
                    let number = started.dump;
                    answer(Ok(Reply::DumpStarted(started)));
                    dump::watch(&shared, number).await;
                }
                Err(fault) => answer(Err(fault.answer(&shared))),
            }
        }),
        Request::DumpStep(step) => {
            let step = *step;
            Box::pin(async move {
                let done = dump::pause::step(&shared, step).await;
                answer(done.map_err(|fault| fault.answer(&shared)));
                dump::pause::watch(&shared, step.dump).await;
                if step.stage == DumpStage::Take {
                    dump::watch(&shared, step.dump).await;
                }
            })
        }
        Request::Move(step) => {
            let step = step.clone();
            Box::pin(async move {
                let done = moves::step(&shared, step).await;
                answer(done.map_err(|fault| fault.answer(&shared)));
                moves::watch(&shared).await;
            })
        }
        Request::DumpNext(req) => {
            let req = req.clone();
            Box::pin(async move {
                let page = dump::next(&shared, req).await.map(Reply::DumpPage);
                answer(page.map_err(|fault| fault.answer(&shared)));
            })
        }
        Request::BlockPut(put) => {
            if let Err(fault) =
                may_put(session, put).and_then(|()| begin_put(&shared, session, put))
            {
                return Some(Err(fault));
            }
            let (put, bytes, session) = (put.clone(), put.data.len(), Arc::clone(session));
            moving.begin_block(bytes);
            Box::pin(async move {
                let stored = store(&shared, &session, put).await;
                moving.end_block(bytes);
                answer(stored.map(|()| Reply::Nothing).map_err(|error| refuse(&error)));
            })
        }
        Request::BlockGet(get) => {
            if let Err(fault) = may_get(session, get) {
                return Some(Err(fault));
            }
            let (get, bytes, session) = (get.clone(), get.len as usize, Arc::clone(session));
            moving.begin_block(bytes);
            Box::pin(async move {
                Counters::add(&shared.counters.block_get);
                let range = get.part.offset..get.part.offset.saturating_add(get.len);
                let block = get.part.block;
                let result = shared.blocks.get(block, get.part.block_bytes, range).await;
                let of = ("get", block);
                let asks_again = shared.block_store.note(&shared.counters, &session, of, &result);
                moving.end_block(bytes);
                answer(result.map(Reply::Data).map_err(|error| {
                    // The block was replaced while the client read it, or was lost with the
                    // records that named it: the client asks where the contents are now.
                    if asks_again { Answer::Retry(Retry::StaleDir) } else { refuse(&error) }
                }));
            })
        }
        Request::SignBlocks(sign) => {
            if let Err(fault) = may_sign(&shared, session, sign) {
                return Some(Err(fault));
            }
            let sign = sign.clone();
            Box::pin(async move {
                Counters::add(&shared.counters.block_sign);
                answer(addresses(&shared, &sign).await.map(Reply::SignedBlocks));
            })
        }
        _ => return None,
    };
    Some(Ok(Task { future, after_write }))
}

/// Starts a check, with or without repair. The answer is its number; the check itself goes on.
fn check(
    shared: &Arc<Shared>,
    aim: fsck::Aim,
    answer: impl FnOnce(std::result::Result<Reply, Answer>) + 'static,
) -> Result<Task> {
    let check = fsck::start(shared, aim)?;
    let future = Box::pin(async move {
        answer(Ok(Reply::Job(check.number)));
        check.run().await;
    });
    Ok(Task { future, after_write: false })
}

/// Whether a request is answered by a task.
fn waits(request: &Request) -> bool {
    matches!(
        request,
        Request::Sync
            | Request::FsckStart(_)
            | Request::Repair(_)
            | Request::DumpStart
            | Request::DumpNext(_)
            | Request::DumpStep(_)
            | Request::Move(_)
            | Request::BlockPut(_)
            | Request::BlockGet(_)
            | Request::SignBlocks(_)
            | Request::Lock(_)
    )
}

/// Checks that a session puts only blocks of its own.
fn may_put(session: &Session, put: &BlockPut) -> Result<()> {
    if session.read_only() {
        return Err(FsError::ReadOnly.into());
    }
    if put.block.session() != session.id {
        return Err(FsError::NotPermitted.into());
    }
    if put.data.is_empty() || put.data.len() > base::limits::CHUNK_BYTES as usize {
        return Err(FsError::Invalid.into());
    }
    Ok(())
}

/// Refuses a put while the session has too many stored bytes that no file names. Its writes name
/// them, or it gives them up.
fn begin_put(shared: &Shared, session: &Session, put: &BlockPut) -> Result<()> {
    let bytes = u32::try_from(put.data.len()).map_err(|_| FsError::Invalid)?;
    let bytes_max = shared.options.limits.unnamed_bytes_max;
    if session.unnamed.lock().begin(put.block, bytes, bytes_max) {
        return Ok(());
    }
    Err(Fault::Retry(Retry::Busy))
}

/// Stores a block whose put has begun.
async fn store(
    shared: &Shared,
    session: &Session,
    put: BlockPut,
) -> std::result::Result<(), BlocksError> {
    let BlockPut { block, data } = put;
    let bytes = data.len();
    Counters::add(&shared.counters.block_put);
    shared.space_guard.wrote(bytes, shared.engine.as_ref());
    let result = shared.blocks.put(block, data).await;
    shared.block_store.note(&shared.counters, session, ("put", block), &result);
    let made = matches!(result, Ok(true));
    let made = made.then(|| u32::try_from(bytes).expect("a block's length"));
    if session.unnamed.lock().end(block, made) {
        shared.backlog.discard(vec![block]);
    }
    result.map(drop)
}

/// Checks that the blocks that a write brings are stored; otherwise the write waits for that. The
/// caller has checked everything else that needs no block.
pub(crate) fn are_stored(write: &Write, brought: Brought) -> Result<()> {
    match brought {
        _ if write.blocks.is_empty() => Ok(()),
        Brought::Unstored => {
            let bytes = carried_bytes(write);
            Err(Fault::Wait(Wait::Apart(Box::new(BlocksFirst { bytes }))))
        }
        Brought::Stored => Ok(()),
        Brought::Failed(error) => Err(error.into()),
        Brought::TooMany => Err(Fault::Retry(Retry::Busy)),
    }
}

/// A write waits until the blocks that it brings are stored.
#[derive(Debug)]
struct BlocksFirst {
    /// Number of bytes of contents that the request carries. It is kept meanwhile.
    bytes: usize,
}

impl WaitApart for BlocksFirst {
    fn begin(&self, of: &Incoming) {
        of.connection.begin_block(self.bytes);
    }

    fn over<'a>(&'a self, at: AtCore<'a>, of: Option<&'a Incoming>) -> LocalBoxFuture<'a, ()> {
        async move {
            let Some(incoming) = of else { return };
            let connection = &incoming.connection;
            if let Request::Write(write) = &incoming.request
                && let Some(session) = connection.session()
            {
                let puts = &write.blocks;
                let puts = puts.iter().map(|put| bring(at.shared, connection, &session, put));
                // Each put is seen to its end, also beside one that fails.
                let ended: Vec<_> =
                    stream::iter(puts).buffer_unordered(PUTS_IN_FLIGHT).collect().await;
                let failed = ended.into_iter().find(|brought| *brought != Brought::Stored);
                incoming.brought.set(failed.unwrap_or(Brought::Stored));
            }
            connection.end_block(self.bytes);
        }
        .boxed_local()
    }

    fn changes_records(&self) -> bool {
        false
    }
}

/// Number of bytes of contents that a write carries, in blocks or embedded.
fn carried_bytes(write: &Write) -> usize {
    let blocks: usize = write.blocks.iter().map(|put| put.data.len()).sum();
    let embedded = write.chunks.iter().map(|chunk| embedded_bytes(&chunk.slices));
    blocks + embedded.sum::<usize>()
}

async fn bring(
    shared: &Shared,
    connection: &Connection,
    session: &Session,
    put: &BlockPut,
) -> Brought {
    if connection.is_closed() {
        return Brought::TooMany;
    }
    match may_put(session, put).and_then(|()| begin_put(shared, session, put)) {
        Ok(()) => {}
        Err(Fault::Answer(error)) => return Brought::Failed(error),
        Err(_) => return Brought::TooMany,
    }
    match store(shared, session, put.clone()).await.map_err(|error| refuse(&error)) {
        Ok(()) => Brought::Stored,
        Err(Answer::Failed(error)) => Brought::Failed(error),
        Err(_) => Brought::TooMany,
    }
}

/// Checks that a session gets only blocks that it was told of.
fn may_get(session: &Session, get: &BlockGet) -> Result<()> {
    let own = get.part.block.session() == session.id;
    if session.standing().trusted || own || get.part.ticket == part_ticket(session, get.part.block)
    {
        Ok(())
    } else {
        Err(FsError::Denied.into())
    }
}

/// Checks that a session may reach the store itself: it must be allowed to read and write
/// everything. It puts only blocks of its own, each under its one name.
fn may_sign(shared: &Shared, session: &Session, sign: &SignBlocks) -> Result<()> {
    if !session.administers() || !shared.blocks.signs() {
        return Err(FsError::NotPermitted.into());
    }
    let packs = shared.blocks.compression() != Compression::None;
    let puts = sign.access == SignFor::Put;
    if puts && (sign.first.session() != session.id || sign.packed != packs) {
        return Err(FsError::NotPermitted.into());
    }
    Ok(())
}

/// Addresses of blocks, good for [`SIGNED_FOR`].
async fn addresses(
    shared: &Shared,
    sign: &SignBlocks,
) -> std::result::Result<SignedBlocks, Answer> {
    let access = match sign.access {
        SignFor::Get => SignedFor::Get,
        SignFor::Put => SignedFor::Put,
    };
    let mut urls = Vec::new();
    for more in 0..u64::from(sign.count.clamp(1, SIGNED_MAX)) {
        let counter = sign.first.counter().checked_add(more);
        let counter = counter.ok_or(Answer::Failed(FsError::Invalid))?;
        let block = BlockId::new(sign.first.session(), counter);
        let url = shared.blocks.sign(block, sign.packed, access, SIGNED_FOR).await;
        let url = url.map_err(|error| {
            tracing::error!(%block, error = describe(&error), "cannot sign the address of a block");
            refuse(&error)
        })?;
        urls.push(url.ok_or(Answer::Failed(FsError::NotPermitted))?);
    }
    let valid_ms = u64::try_from(SIGNED_FOR.as_millis()).unwrap_or(u64::MAX);
    Ok(SignedBlocks { urls, valid_ms })
}

fn refuse(error: &BlocksError) -> Answer {
    match error {
        BlocksError::Full(_) => Answer::Failed(FsError::NoSpace),
        BlocksError::Bounds { .. } => Answer::Failed(FsError::Invalid),
        // The stored block stays as it is: a file may name it already.
        BlocksError::Exists { .. } => Answer::Failed(FsError::Exists),
        BlocksError::Missing { .. }
        | BlocksError::Corrupt { .. }
        | BlocksError::Refused(_)
        | BlocksError::Config { .. }
        | BlocksError::Store(_)
        | BlocksError::Io(_) => Answer::Failed(FsError::Io),
    }
}
