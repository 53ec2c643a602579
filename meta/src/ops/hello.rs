//! `hello`: open a session, or go on with one.

use std::{rc::Rc, sync::Arc};

use base::{Cred, DirId, EntryName, Ino, SessionId, Time};
use wire::{Entry, Hello, Lookup, Reply, Token, Welcome};

use super::lookup;
use crate::{
    error::{Fault, Result},
    record::{SessionRecord, key},
    room::Level,
    serve::Connection,
    server::{Counters, Shared},
    session::{Rights, Session},
    txn::{Caller, Group, Txn},
    unheard,
};

pub(crate) fn run(
    shared: &Arc<Shared>,
    group: &mut Group,
    connection: &Rc<Connection>,
    hello: &Hello,
    now: Time,
) -> Result<Reply> {
    let token = Token::verify(&hello.token, &shared.config.signing_key, now)
        .map_err(|error| Fault::Refused(error.to_string()))?;
    let rights = Rights { token: token.clone(), kernel_checks: hello.kernel_checks };
    let resumed = match hello.resume {
        Some((id, secret)) => resume(shared, id, secret)?,
        None => None,
    };
    // Race: it may have begun to end since we looked, and is no session any more then.
    let resumed = resumed.filter(|session| session.join(rights.clone()));
    let is_new = resumed.is_none();
    if is_new {
        shared.room.has(Level::Low)?;
    }
    let session = resumed.unwrap_or_else(|| open(shared, hello));
    let welcome = {
        let root = root_of(shared, group, &token, now)?;
        if is_new {
            session.join(rights);
        }
        let standing = session.standing();
        let caller = Caller { cred: &Cred::ROOT, session: Some(&session), standing };
        let mut txn = Txn::new(shared, group, caller, now);
        let (id, ino, home) = (root.0, root.1, root.2);
        let welcome = Welcome {
            session: session.id,
            secret: session.secret,
            incarnation: shared.incarnation,
            lease_ms: u64::try_from(shared.options.lease.as_millis()).unwrap_or(u64::MAX),
            fs: shared.fs_info(),
            map: shared.map.clone(),
            root: txn.dir_ref(id, ino, home),
            root_attr: root.3,
            read_only: token.read_only,
            trusted: token.trusted(),
        };
        if is_new {
            let record =
                SessionRecord { secret: session.secret, client: hello.client.clone(), opened: now };
            txn.put(key::session(session.id), &record);
        }
        txn.commit();
        welcome
    };
    let counter =
        if is_new { &shared.counters.sessions_opened } else { &shared.counters.sessions_resumed };
    Counters::add(counter);
    if is_new {
        shared.sessions.lock().insert(session.id, session.clone());
    }
    connection.join(session);
    Ok(Reply::Welcome(welcome))
}

/// The session to go on with, unless it has ended.
fn resume(shared: &Shared, id: SessionId, secret: u64) -> Result<Option<Arc<Session>>> {
    let Some(session) = shared.session(id).filter(|session| session.secret == secret) else {
        return Ok(None);
    };
    if session.returns_after_restart() {
        let stored = shared.stored_answers(id)?;
        let proven = |ino, proof| super::open::proven_access(&session, ino, proof);
        let unheard = unheard::among(&stored, proven);
        session.restore(stored, unheard);
    }
    Ok(Some(session))
}

fn open(shared: &Shared, hello: &Hello) -> Arc<Session> {
    let id = loop {
        let id = SessionId(shared.random.next());
        if id.0 != 0 && shared.session(id).is_none() {
            break id;
        }
    };
    let signing_key = &shared.config.signing_key;
    Arc::new(Session::new(signing_key, id, shared.random.next(), hello.client.clone()))
}

/// The directory that a token makes the root.
fn root_of(
    shared: &Shared,
    group: &mut Group,
    token: &Token,
    now: Time,
) -> Result<(DirId, Ino, DirId, base::Attr)> {
    let mut txn = Txn::new(shared, group, Caller::SERVER, now);
    let mut at = txn.dir_ref(DirId::ROOT, Ino::ROOT, DirId::ROOT);
    let mut attr = txn.dir(&at)?.attr();
    for part in token.path.split('/').filter(|part| !part.is_empty()) {
        let missing = || Fault::Refused(format!("the token's path {} is no directory", token.path));
        let name = EntryName::new(part.as_bytes()).map_err(|_| missing())?;
        match lookup::run(&mut txn, &Lookup { dir: at, name }) {
            Ok(Entry { dir: Some(dir), attr: found, .. }) => (at, attr) = (dir, found),
            Ok(_) | Err(Fault::Answer(_)) => return Err(missing()),
            Err(fault) => return Err(fault),
        }
    }
    Ok((at.id, at.ino, at.home, attr))
}
