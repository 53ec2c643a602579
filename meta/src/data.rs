//! Requests that wait: for blocks, for stable storage, for a check, for a dump. They run beside the groups.

use std::sync::Arc;

use base::FsError;
use store::BlocksError;
use wire::{Answer, BlockGet, BlockPut, DumpStage, Reply, ReplyHeader, Request, Retry};

use crate::{
    bugs::Bug,
    driver::{Incoming, Task, answer_of},
    dump,
    error::{Fault, Result, describe},
    file_locks::Turn,
    fsck,
    observe::Waiting,
    ops::blocks::part_ticket,
    server::{Counters, Shared},
    session::Session,
};

/// The task for a request that waits; `None` for all others.
pub(crate) fn task(
    shared: &Arc<Shared>,
    session: &Session,
    incoming: &Incoming,
    reply: ReplyHeader,
) -> Option<Result<Task>> {
    if !waits(&incoming.request) {
        return None;
    }
    // What let a lock be taken at once may not be written yet.
    let after_write = matches!(
        incoming.request,
        Request::Sync | Request::Lock(_) | Request::DumpStart | Request::DumpStep(_)
    );
    let shared = shared.clone();
    let (connection, moving) = (incoming.connection.clone(), incoming.connection.clone());
    let waiting = Waiting::new(&shared.observed, session, incoming);
    let observer = shared.clone();
    let answer = move |result: std::result::Result<Reply, Answer>| {
        let answer = result.map_or_else(|answer| answer, Answer::Done);
        observer.observed.core(connection.core()).waited(&observer.observed, waiting, &answer);
        connection.reply_now(reply, &answer);
    };
    let future: std::pin::Pin<Box<dyn Future<Output = ()>>> = match &incoming.request {
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
            match crate::ops::lock::wait(&shared, session, lock) {
                Err(fault) => return Some(Err(fault)),
                Ok(Turn::Now) => Box::pin(async move {
                    shared.until_told().await;
                    answer(Ok(Reply::Nothing));
                }),
                Ok(Turn::Later(told)) => Box::pin(async move {
                    let told = told.await;
                    // Who had it before may come back after a power cut.
                    shared.until_told().await;
                    answer(match told {
                        Ok(Ok(())) => Ok(Reply::Nothing),
                        Ok(Err(error)) => Err(Answer::Failed(error)),
                        // Its session has ended.
                        Err(_) => Err(Answer::Retry(Retry::NoSession)),
                    });
                }),
            }
        }
        Request::DumpStart if shared.cluster.is_some() => {
            // It would be a copy of one server's part.
            let text = "all servers of a cluster are dumped together";
            return Some(Err(Fault::Refused(text.into())));
        }
        Request::DumpStart => Box::pin(async move {
            // The group is written: all that was answered is in it.
            match dump::start(&shared, shared.random.next()) {
                Ok(started) => {
                    let number = started.dump;
                    answer(Ok(Reply::DumpStarted(started)));
                    dump::watch(&shared, number).await;
                }
                Err(fault) => answer(Err(answer_of(&shared, fault))),
            }
        }),
        Request::DumpStep(step) => {
            let step = *step;
            Box::pin(async move {
                let done = dump::pause::step(&shared, step).await;
                answer(done.map_err(|fault| answer_of(&shared, fault)));
                dump::pause::watch(&shared, step.dump).await;
                if step.stage == DumpStage::Take {
                    dump::watch(&shared, step.dump).await;
                }
            })
        }
        Request::DumpNext(req) => {
            let req = req.clone();
            Box::pin(async move {
                let page = dump::next(&shared, req).await.map(Reply::DumpPage);
                answer(page.map_err(|fault| answer_of(&shared, fault)));
            })
        }
        Request::BlockPut(put) => {
            if let Err(fault) = may_put(session, put) {
                return Some(Err(fault));
            }
            let (put, bytes) = (put.clone(), put.data.len());
            moving.begin_block(bytes);
            Box::pin(async move {
                Counters::add(&shared.counters.block_put);
                shared.room.wrote(put.data.len(), shared.engine.as_ref());
                let result = shared.blocks.put(put.block, put.data).await;
                moving.end_block(bytes);
                answer(result.map(|()| Reply::Nothing).map_err(|error| refuse(&error)));
            })
        }
        Request::BlockGet(get) => {
            if let Err(fault) = may_get(session, get) {
                return Some(Err(fault));
            }
            let (get, bytes) = (get.clone(), get.len as usize);
            moving.begin_block(bytes);
            Box::pin(async move {
                Counters::add(&shared.counters.block_get);
                let range = get.part.offset..get.part.offset.saturating_add(get.len);
                let result = shared.blocks.get(get.part.block, get.part.block_bytes, range).await;
                moving.end_block(bytes);
                answer(result.map(Reply::Data).map_err(|error| refuse(&error)));
            })
        }
        _ => return None,
    };
    Some(Ok(Task { future, after_write }))
}

/// A check, with or without repair: it is answered with its number, and goes on.
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
            | Request::BlockPut(_)
            | Request::BlockGet(_)
            | Request::Lock(_)
    )
}

/// A session puts only blocks of its own.
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

/// A session gets only blocks that it was told of.
fn may_get(session: &Session, get: &BlockGet) -> Result<()> {
    let own = get.part.block.session() == session.id;
    if session.standing().trusted || own || get.part.ticket == part_ticket(session, get.part.block)
    {
        Ok(())
    } else {
        Err(FsError::Denied.into())
    }
}

fn refuse(error: &BlocksError) -> Answer {
    match error {
        // It was replaced while the client read it: the client asks where the contents are now.
        BlocksError::Missing { .. } => Answer::Retry(Retry::StaleDir),
        BlocksError::Full(_) => Answer::Failed(FsError::NoSpace),
        BlocksError::Bounds { .. } => Answer::Failed(FsError::Invalid),
        other => {
            tracing::error!(error = describe(other), "a block cannot be read or written");
            Answer::Failed(FsError::Io)
        }
    }
}
