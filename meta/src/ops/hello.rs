//! `hello`: open a session, or go on with one.

use std::{
    rc::Rc,
    sync::{Arc, atomic::Ordering},
};

use base::{Attr, Cred, DirId, EntryName, Ino, SessionId, Time};
use wire::{DirRef, Entry, Hello, Lookup, Reply, Resume, Retry, Token, TokenError, Welcome};

use super::lookup;
use crate::{
    audit,
    error::{Fault, Result},
    format::root_content,
    millis::millis,
    quota::grant::GrantState,
    record::{SessionRecord, key},
    serve::connection::Connection,
    server::{Counters, Shared},
    session::{Rights, Session},
    space_guard::Level,
    tokens::Share,
    txn::{Caller, CommitGroup, Remote, Txn},
    unheard,
};

/// Most bytes of a client's name, which is for people to read; a longer one is cut.
const CLIENT_BYTES_MAX: usize = 1024;
/// Most connections of one session at a time, but for a few more that come on several cores at
/// once.
const CONNECTIONS_A_SESSION_MAX: usize = 64;

pub(crate) fn run(
    shared: &Arc<Shared>,
    group: &mut CommitGroup,
    connection: &Rc<Connection>,
    hello: &Hello,
    now: Time,
    way: &mut Option<Box<Remote>>,
) -> Result<Reply> {
    let token = verify(shared, connection, hello, now)?;
    if !token.opens_sessions() {
        return Err(Fault::Refused("this token is for status pages, not for files".into()));
    }
    if !connection.may_join(token.ids.as_ref()) {
        let other = "the connection has a session with other ids: open another connection";
        return Err(Fault::Refused(other.to_owned()));
    }
    if hello.resume.is_none() {
        may_begin(shared, &token)?;
    }
    let here = hello.resume.and_then(|past| shared.session(past.session));
    let evictions = shared.evictions.load(Ordering::SeqCst);
    let found = match &hello.resume {
        Some(_) if here.is_some() && !shared.begins_sessions() => None,
        past => root_of(shared, group, (&token, past.as_ref(), evictions), now, way)?,
    };
    let resumed = match (&hello.resume, &here) {
        (Some(past), Some(session)) => resume(shared, session, past, &token, now)?,
        (Some(_) | None, _) => None,
    };
    if let Some(session) = &resumed {
        has_place(shared, connection, session)?;
    }
    if let (Some(_), Some(past), Some((root, _))) = (&resumed, &hello.resume, &found) {
        is_still(root, past, &token)?;
    }
    // Where the root was not looked for, it is the one that the client resumes with, or that of the
    // whole tree.
    let (root, root_attr) = found.unwrap_or_else(|| {
        let root = hello.resume.map_or(DirRef::ROOT, |past| past.root);
        (root, root_content(now).attr())
    });
    let rights = Rights {
        token: token.clone(),
        kernel_checks: hello.kernel_checks,
        root,
        is_near: connection.is_near(),
    };
    // Race: the session may have begun to end since the look-up, and is none any more then.
    let resumed = resumed.filter(|session| session.join(rights.clone()));
    let is_new = resumed.is_none();
    let forgot = match (&resumed, &hello.resume) {
        (Some(session), Some(past)) => !session.knows(past.answered),
        (Some(_) | None, _) => false,
    };
    if forgot {
        Counters::add(&shared.counters.sessions_set_back);
    }
    if is_new {
        has_room_for_another(shared, hello)?;
        has_place_for_another(shared, hello)?;
    }
    let share = if is_new { Some(share_for_another(shared, hello, &token)?) } else { None };
    let session = match resumed {
        Some(session) => session,
        None => open(shared, hello, &token, &root, here.is_some())?,
    };
    session.shares(|| share.unwrap_or_else(|| shared.tokens.share(&token)));
    let direct = direct(shared, &token);
    if direct.is_some() || connection.is_near() {
        session.reach_store();
    }
    if is_new {
        session.join(rights);
        // An end of this session waits until its record is written.
        group.enter(&session);
        let mut sessions = shared.sessions.lock();
        // Race: what another server said of the session is void if it was evicted since, and this
        // server did not find it; or another core has opened it as well. Nobody can have evicted a
        // session with a new number.
        let taken_over = hello.resume.is_some_and(|past| past.session == session.id);
        let overtaken = taken_over && shared.evictions.load(Ordering::SeqCst) != evictions;
        if overtaken || sessions.contains_key(&session.id) {
            return Err(Fault::Retry(Retry::Busy));
        }
        sessions.insert(session.id, session.clone());
    }
    let welcome = {
        let standing = session.standing();
        let caller = Caller {
            cred: &Cred::ROOT,
            session: Some(&session),
            standing,
            grant_state: GrantState::MayNotAsk,
        };
        let mut txn = Txn::new(shared, group, caller, now);
        let root = txn.dir_ref(root.id, root.ino, root.home);
        let welcome = Welcome {
            session: session.id,
            secret: session.secret,
            incarnation: shared.incarnation,
            lease_ms: millis(shared.options.lease),
            commit_ms: millis(shared.options.commit_interval),
            fs: shared.fs_info(),
            map: shared.map(),
            root,
            root_attr,
            read_only: token.read_only,
            trusted: token.trusted(),
            forgot,
            opened: is_new,
            proof: session.proof(&root),
            direct,
        };
        if is_new {
            let (secret, client) = (session.secret, session.client.clone());
            let record = SessionRecord { secret, client, opened: now };
            txn.put(key::session(session.id), &record);
        }
        txn.commit();
        welcome
    };
    let counter =
        if is_new { &shared.counters.sessions_opened } else { &shared.counters.sessions_resumed };
    Counters::add(counter);
    let what = if is_new { "opened" } else { "resumed" };
    tracing::info!(
        session = %session.id,
        client = session.client,
        path = token.path,
        uid = token.uid,
        read_only = token.read_only,
        "session {what}"
    );
    if shared.options.audit.is_some() {
        connection.is_audited_as(audit::note::session_of(&session, &token, connection));
    }
    connection.join(session, token.ids);
    Ok(Reply::Welcome(welcome))
}

/// Reads and checks the client's token. A client in the server's process has the root key, and uses
/// it whether that is retired or not.
fn verify(shared: &Shared, connection: &Connection, hello: &Hello, now: Time) -> Result<Token> {
    let verified = if connection.is_near() {
        Token::verify(&hello.token, &shared.config.signing_key[..], now)
    } else {
        Token::verify(&hello.token, &*shared.keys.get(), now)
    };
    let error = match verified {
        Ok(token) => return Ok(token),
        Err(error) => error,
    };
    // A new key is in force at the coordinator first, and here with the next lease. Nobody vouches
    // for the number yet, so a stranger is told nothing else.
    if let (TokenError::UnknownKey, Some(cluster)) = (error, &shared.cluster)
        && !cluster.coordinates()
        && let Ok(token) = Token::unverified(&hello.token)
        && shared.keys.may_come(token.key, cluster.options.lease)
    {
        return Err(Fault::Retry(Retry::Busy));
    }
    shared.refusals.note(&shown(&hello.client), &error.to_string());
    Err(Fault::Refused(error.to_string()))
}

/// How new blocks are compressed by a session that may reach a shared store itself. Such a session
/// must be allowed to read and write everything: an address knows no permissions.
fn direct(shared: &Shared, token: &Token) -> Option<String> {
    let may = token.administers() && shared.blocks.signs();
    may.then(|| shared.blocks.compression().to_string())
}

/// Checks that a session may begin at this server: the coordinator begins all sessions.
fn may_begin(shared: &Shared, token: &Token) -> Result<()> {
    let Some(cluster) = &shared.cluster else { return Ok(()) };
    let map = cluster.map();
    if map.servers.is_empty() && !token.administers() {
        return Err(Fault::Retry(Retry::Busy));
    }
    if !map.servers.is_empty() && !cluster.coordinates() {
        return Err(Fault::Retry(Retry::Moved((*map).clone())));
    }
    Ok(())
}

/// Whether another connection may join a session.
fn has_place(shared: &Shared, connection: &Connection, session: &Session) -> Result<()> {
    let again = connection.session_id() == session.id;
    if again || session.connections() < CONNECTIONS_A_SESSION_MAX {
        return Ok(());
    }
    tracing::warn!(session = %session.id, client = session.client, "too many connections of one session");
    Counters::add(&shared.counters.connections_refused);
    Err(Fault::Retry(Retry::Busy))
}

/// Whether the disk has room for the record of another session. A client that has a session at
/// another server, or had one here, waits for room: it goes on with other servers meanwhile, and
/// would end if it were refused.
fn has_room_for_another(shared: &Shared, hello: &Hello) -> Result<()> {
    match shared.space_guard.has(Level::Low) {
        Err(_) if hello.resume.is_some() => Err(Fault::Retry(Retry::Busy)),
        has => has.map_err(Fault::from),
    }
}

/// Whether another session may be opened.
fn has_place_for_another(shared: &Shared, hello: &Hello) -> Result<()> {
    let max = shared.options.limits.sessions_max;
    if shared.sessions.lock().len() < max {
        return Ok(());
    }
    Counters::add(&shared.counters.sessions_refused);
    tracing::error!(
        max,
        client = shown(&hello.client),
        "no more sessions are opened: --sessions-max"
    );
    Err(Fault::Retry(Retry::Busy))
}

/// The part of a token for one more session; refused when there are too many. Administrators are
/// let in: they see to it that there are fewer.
fn share_for_another(shared: &Shared, hello: &Hello, token: &Token) -> Result<Share> {
    let max = shared.options.limits.sessions_a_token_max;
    let max = if token.administers() { usize::MAX } else { max };
    if let Some(share) = shared.tokens.share_of(token, max) {
        return Ok(share);
    }
    Counters::add(&shared.counters.sessions_refused);
    tracing::error!(
        max,
        client = shown(&hello.client),
        path = token.path,
        "no more sessions are opened with one token: --sessions-per-token"
    );
    Err(Fault::Retry(Retry::Busy))
}

/// The part of a client's name that is kept.
fn shown(client: &str) -> String {
    client[..client.floor_char_boundary(CLIENT_BYTES_MAX)].to_owned()
}

/// The session of this server that the client resumes, unless it has ended.
fn resume(
    shared: &Shared,
    session: &Arc<Session>,
    past: &Resume,
    token: &Token,
    now: Time,
) -> Result<Option<Arc<Session>>> {
    if session.secret != past.secret {
        return Ok(None);
    }
    if !session.is_of(&shared.config.signing_key, token, &past.root, past.proof) {
        let other = "the session was opened with a token of other rights: open another one";
        return Err(Fault::Refused(other.to_owned()));
    }
    if session.token_ended(now, &shared.keys).is_some() {
        return Ok(None);
    }
    if session.returns_after_restart() {
        let stored = shared.stored_answers(past.session)?;
        let proven = |ino, uid, proof| super::open::proven_access(session, ino, uid, proof);
        let unheard = unheard::among(&stored, proven);
        session.restore(stored, unheard);
    }
    Ok(Some(session.clone()))
}

/// Refuses to resume a session with another root directory than it has elsewhere.
fn is_still(root: &DirRef, past: &Resume, token: &Token) -> Result<()> {
    if root.same(&past.root) {
        return Ok(());
    }
    let other = format!("another directory than at first is at the token's path {}", token.path);
    Err(Fault::Refused(other))
}

/// Opens a session that this server does not have. `was_here`: the one to resume was here just now.
fn open(
    shared: &Shared,
    hello: &Hello,
    token: &Token,
    root: &DirRef,
    was_here: bool,
) -> Result<Arc<Session>> {
    let signing_key = &shared.config.signing_key;
    let client = shown(&hello.client);
    if let (Some(past), Some(_)) = (&hello.resume, &shared.cluster) {
        // Another server knows the session, or this one did.
        let known = Session::new(past.session, past.secret, client.clone());
        if known.is_of(signing_key, token, &past.root, past.proof) {
            // Race: the session's end may not be written yet, or another core opens it just now.
            if was_here || shared.session(past.session).is_some() {
                return Err(Fault::Retry(Retry::Busy));
            }
            is_still(root, past, token)?;
            return Ok(Arc::new(known));
        }
        may_begin(shared, token)?;
    }
    let id = loop {
        let id = SessionId(shared.random.next());
        if id.0 != 0 && shared.session(id).is_none() {
            break id;
        }
    };
    let session = Session::new(id, shared.random.next(), client);
    session.opens_with(signing_key, token);
    Ok(Arc::new(session))
}

/// The directory that a token makes the root.
type Root = (DirRef, Attr);

/// Finds the directory at the token's path. `None` where no search is needed: the whole tree is the
/// root; or the client resumes a session with a proof of its root, and the server that begins
/// sessions has that session still. Where the way leads over other servers, `way` has what is known
/// of them, and [`Fault::Remote`] asks for more; nothing has happened then. Knowledge from before
/// the latest of `evictions` is not used.
fn root_of(
    shared: &Shared,
    group: &mut CommitGroup,
    (token, past, evictions): (&Token, Option<&Resume>, u64),
    now: Time,
    way: &mut Option<Box<Remote>>,
) -> Result<Option<Root>> {
    let begins_here = shared.begins_sessions();
    if !begins_here && token.path == "/" {
        return Ok(None);
    }
    let mut txn = Txn::new(shared, group, Caller::SERVER, now);
    if let Some(mut known) = way.take() {
        if known.evictions == evictions {
            known.begin()
        } else {
            known.forget()
        }
        txn = txn.knowing(known, None);
    }
    let found = match past {
        Some(past) if !begins_here => match txn.has_begun(past.session) {
            Ok(true) => Ok(None),
            Ok(false) => walk_to(&mut txn, token).map(Some),
            Err(fault) => Err(fault),
        },
        Some(_) | None => walk_to(&mut txn, token).map(Some),
    };
    let is_torn = matches!(found, Err(Fault::Retry(Retry::Busy))) && txn.is_torn();
    if is_torn || matches!(found, Err(Fault::Remote)) {
        *way = txn.take_remote();
        way.iter_mut().for_each(|known| known.evictions = evictions);
        // Records that do not fit together are read anew.
        return Err(Fault::Remote);
    }
    found
}

fn walk_to(txn: &mut Txn<'_>, token: &Token) -> Result<Root> {
    let missing = || Fault::Refused(format!("the token's path {} is no directory", token.path));
    let mut at = txn.dir_ref(DirId::ROOT, Ino::ROOT, DirId::ROOT);
    for part in token.path.split('/').filter(|part| !part.is_empty()) {
        let name = EntryName::new(part.as_bytes()).map_err(|_| missing())?;
        match lookup::run(txn, &Lookup { dir: at, name }) {
            Ok(Entry { dir: Some(dir), .. }) => at = dir,
            Ok(_) | Err(Fault::Answer(_)) => return Err(missing()),
            Err(fault) => return Err(fault),
        }
    }
    let attr = match txn.master(&at) {
        Ok(root) => root.attr(),
        Err(fault @ (Fault::Remote | Fault::Wait(_))) => return Err(fault),
        // The root's record is damaged, and administrators are the ones to repair it.
        Err(_) if token.administers() => root_content(txn.now).attr(),
        Err(fault) => return Err(fault),
    };
    Ok((at, attr))
}
