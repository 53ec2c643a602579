//! Requests of administrators: `load`, `slow`, `sessions`, `opens`, `locks`; and `evict`, which
//! ends a session.
//!
//! Cost: none of them reads the engine, but for the paths of what is shown.

use std::{sync::atomic::Ordering, time::Duration};

use base::{Access, DirId, FsError, Ino, SessionId, Time, locks::LockHeld};
use wire::{
    AskStanding, BusyDirectory, BusySession, Evict, Load, LockEntry, LockPage, LocksQuery,
    OpenPage, OpensQuery, SessionDetail, SlowLog, SlowOperation, SlowQuery, Standing, Token,
    TokenShown,
};

use super::info;
use crate::{
    error::{Fault, Result},
    file_locks::Shown,
    observe::{self, Stages, Subject},
    record::{Content, EntryRecord, Location, Slot, key, key::Part},
    server::{Counters, Shared},
    txn::{Dir, Txn, sessions},
};

/// Most inodes on one page.
const OPENS_MAX: usize = 10_000;

/// Tells how the server stands. An administrator may ask without a session: the request is for when
/// something is wrong.
pub(crate) fn standing(shared: &Shared, req: &AskStanding, now: Time) -> Result<Standing> {
    let token = Token::verify(&req.token, &*shared.keys.get(), now).map_err(|error| {
        shared.refusals.note("asks how the server stands", &error.to_string());
        Fault::Refused(error.to_string())
    })?;
    if token.administers() {
        Ok(shared.standing())
    } else {
        Err(Fault::Refused("this request needs an administrator's token".into()))
    }
}

/// The busy directories, with their paths.
pub(crate) fn load(txn: &Txn<'_>) -> Load {
    let shared = txn.shared;
    let (sessions, subjects) = observe::busy(shared);
    let mut load = observe::load(shared);
    load.busy_sessions = sessions
        .into_iter()
        .map(|(session, milli_rate)| BusySession {
            session,
            client: client(txn, session),
            milli_rate,
        })
        .collect();
    load.busy_directories = subjects
        .into_iter()
        .map(|(subject, milli_rate)| BusyDirectory {
            dir: subject.0,
            path: path_of(txn, subject),
            milli_rate,
        })
        .collect();
    load
}

pub(crate) fn slow(txn: &Txn<'_>, req: SlowQuery) -> SlowLog {
    let observed = &txn.shared.observed;
    if let Some(us) = req.threshold_us {
        observed.keep_slower_than(us);
    }
    let (kept, total) = observed.slow.after(req.after);
    let operations = kept.into_iter().map(|slow| SlowOperation {
        number: slow.number,
        name: observe::name_of(slow.kind),
        outcome: slow.verdict.name().to_owned(),
        at_us: slow.answered.0 / 1000,
        group_requests: u64::try_from(slow.group).unwrap_or(u64::MAX),
        client: client(txn, slow.session),
        directory: slow.subject.map_or_else(String::new, |subject| path_of(txn, subject)),
        stages: observe::named(Stages::NAMES, slow.stages.values()),
    });
    SlowLog {
        threshold_us: observed.slower_than_us(),
        at_us: observed.now().0 / 1000,
        total,
        operations: operations.collect(),
    }
}

pub(crate) fn sessions(txn: &Txn<'_>) -> Vec<SessionDetail> {
    let shared = txn.shared;
    let locks = shared.file_locks.by_session();
    let sessions = shared.sessions.lock();
    let mut sessions: Vec<_> = sessions
        .values()
        .map(|session| {
            let token = session.token();
            SessionDetail {
                session: session.id,
                client: session.client.clone(),
                idle_ms: u64::try_from(session.idle().as_millis()).unwrap_or(u64::MAX),
                open_files: shared.opens.count(session.id),
                locks_held: locks.get(&session.id).map_or(0, |(held, _)| *held),
                locks_waiting: locks.get(&session.id).map_or(0, |(_, waiting)| *waiting),
                uid: token.as_ref().and_then(|token| token.uid),
                read_only: token.as_ref().is_some_and(|token| token.read_only),
                token: token.as_ref().map(|token| TokenShown {
                    id: token.id,
                    key: token.key,
                    expires: token.expires,
                }),
                path: token.map(|token| token.path),
            }
        })
        .collect();
    sessions.sort_unstable_by_key(|detail| detail.session);
    sessions
}

pub(crate) fn opens(txn: &Txn<'_>, req: OpensQuery) -> OpenPage {
    let max = usize::try_from(req.max).unwrap_or(OPENS_MAX).clamp(1, OPENS_MAX);
    let (found, end) = txn.shared.opens.list(req.after, req.session, max);
    let file = |(ino, session, access): (Ino, SessionId, Access)| wire::OpenFile {
        ino,
        session,
        read: access.includes(Access::READ),
        write: access.includes(Access::WRITE),
        path: file_path(txn, ino),
    };
    OpenPage { files: found.into_iter().map(file).collect(), end }
}

pub(crate) fn locks(txn: &Txn<'_>, req: LocksQuery) -> LockPage {
    let max = usize::try_from(req.max).unwrap_or(OPENS_MAX).clamp(1, OPENS_MAX);
    let (found, end) = txn.shared.file_locks.list(req.after, req.session, req.ino, max);
    let mut latest = (Ino(0), String::new());
    let lock = |shown: Shown| {
        let (ino, kind) = shown.file;
        if latest.0 != ino {
            latest = (ino, file_path(txn, ino));
        }
        let LockHeld { owner, pid, range, mode } = shown.lock;
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (path, waiting_us) = (latest.1.clone(), shown.waiting.map(micros));
        let (session, owner) = (owner.session, owner.owner);
        LockEntry { ino, path, kind, range, mode, session, owner, pid, waiting_us }
    };
    LockPage { locks: found.into_iter().map(lock).collect(), end }
}

/// Ends a session as its lease would.
///
/// Race: a client may come to this server because another one vouched for the session. Either the
/// session is found here, or the client's request sees that an eviction was asked for, and looks
/// again.
pub(crate) fn evict(txn: &mut Txn<'_>, req: Evict) -> Result<()> {
    txn.shared.evictions.fetch_add(1, Ordering::SeqCst);
    let session = txn.shared.session(req.session).ok_or(FsError::NotFound)?;
    // Logged before the wait for the session's requests.
    tracing::warn!(session = %session.id, client = session.client, "session evicted");
    sessions::forget_session(txn, session.id)?;
    Counters::add(&txn.shared.counters.sessions_evicted);
    Ok(())
}

/// The name that a session's client gave; empty when the session has ended.
fn client(txn: &Txn<'_>, session: SessionId) -> String {
    txn.shared.session(session).map_or_else(String::new, |session| session.client.clone())
}

/// The path of an open file; empty when it has no name, or its name is not known.
fn file_path(txn: &Txn<'_>, ino: Ino) -> String {
    txn.shared.opens.name(ino).and_then(|name| find_file(txn, ino, name)).unwrap_or_default()
}

fn find_file(txn: &Txn<'_>, ino: Ino, was: Location) -> Option<String> {
    let at = match txn.get::<Slot>(&key::inode(ino, Part::Main)).ok()? {
        Some(Slot::Moved(at)) => at,
        Some(Slot::Inode(_)) | None => was,
    };
    let stands = |shard| {
        let entry = txn.get::<EntryRecord>(&txn.key_on(shard, at.dir, &at.name, Part::Main));
        matches!(entry, Ok(Some(entry)) if entry.ino() == ino)
    };
    // The entry is on the inode's shard, or on the shard of its directory's master, unless it was
    // moved between partitions.
    if ![ino.shard(), txn.shard(at.home)].into_iter().any(stands) {
        return None;
    }
    let dir = path_of(txn, (at.dir, at.home));
    let above = dir.strip_suffix('/').unwrap_or(&dir);
    (!dir.is_empty()).then(|| format!("{above}/{}", at.name))
}

/// The path of a directory; empty when it is gone.
fn path_of(txn: &Txn<'_>, (id, home): Subject) -> String {
    if id == DirId::ROOT {
        return "/".to_owned();
    }
    let content = txn.get::<Content>(&txn.content_key(home, id));
    let Ok(Some(content)) = content else { return String::new() };
    info::path(txn, &Dir::master(id, content)).unwrap_or_default()
}
