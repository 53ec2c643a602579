//! The hooks: what was executed, and for whom.
//!
//! * [`change`] and [`held_change`] tell of a change that commits with its group.
//! * [`verdict`] tells of any other request that was executed: one that changes nothing, or failed.
//! * [`hello`] and [`ended`] tell of sessions.
//!
//! Always true: a request that was executed has one line, if it is told at all. Its repeated runs
//! have none, as only the last one commits or is answered; nor has a repetition that gets the stored
//! answer, nor a request that must be asked again.

use std::rc::Rc;

use base::{Attr, Cred, EntryName, FsError, Ino, SetAttr, Tagged as _};
use wire::{
    DirRef, HeldChange, HeldReply, HeldRequest, Hello, KeysChange, NodeRef, Reply, Request, Scope,
    SetXattr, SignToken, Squash, Token,
};

use super::{
    AuditQueue, AuditWhat, Lines, Memory, Text,
    class::{self, Class},
    dirs::Dir,
    paths::find,
};
use crate::{
    error::{Fault, Result},
    incoming::Incoming,
    observe::{Verdict, name_of},
    serve::connection::Connection,
    server::Shared,
    session::Session,
    txn::{Caller, CommitGroup, Txn},
};

/// Most bytes of a setting that a line shows.
const SETTING_BYTES_MAX: usize = 128;

/// The part of each line of a connection that says whose session it is, without the braces.
pub(crate) fn session_of(session: &Session, token: &Token, connection: &Connection) -> Vec<u8> {
    let mut out = Vec::new();
    let mut text = Text(&mut out);
    text.plain("session", &session.id.to_string());
    match connection.address() {
        Some(address) => text.plain("address", &address.to_string()),
        None if connection.is_near() => text.plain("address", "mount of this process"),
        None => {}
    }
    token_of(&mut text, token);
    out
}

/// The marks of a token: what tells it from others, and whom it lets act. Never what it is made of.
fn token_of(text: &mut Text<'_>, token: &Token) {
    text.id("token", token.id);
    text.text("token_path", &token.path);
    text.number_if("token_uid", token.uid);
}

/// A line that is being made.
struct Line<'a> {
    queue: &'a AuditQueue,
    memory: &'a mut Memory,
}

impl Line<'_> {
    /// Adds a line: the time, the operation, how it ended, and what `fill` adds.
    fn add(
        self,
        lines: &mut Lines,
        (operation, result): (&str, &str),
        fill: impl FnOnce(&mut Text<'_>),
    ) {
        let out = &mut lines.text;
        out.extend_from_slice(b"{\"time\":\"");
        let Memory { moment, now, .. } = self.memory;
        moment.put(out, *now);
        out.push(b'"');
        let mut text = Text(out);
        text.number("server", self.queue.server().into());
        text.plain("op", operation);
        text.plain("result", result);
        fill(&mut text);
        out.extend_from_slice(b"}\n");
        lines.count += 1;
    }
}

/// Adds whom a request acts for.
fn caller(text: &mut Text<'_>, connection: &Connection, cred: &Cred, asked_as: Option<(u32, u32)>) {
    text.0.extend_from_slice(&connection.audited());
    text.number("uid", cred.uid.into());
    text.number("gid", cred.gid.into());
    if let Some((uid, gid)) = asked_as {
        text.number("client_uid", uid.into());
        text.number("client_gid", gid.into());
    }
}

/// The directories that a request names.
type Paths = [Option<Rc<Dir>>; 2];

fn paths_of(txn: &mut Txn<'_>, dirs: [Option<&DirRef>; 2]) -> Paths {
    dirs.map(|dir| dir.map(|dir| find(txn, dir)))
}

/// Tells of a change that is about to commit.
pub(crate) fn change(txn: &mut Txn<'_>, incoming: &Incoming, done: &Reply) {
    let Some(queue) = queue_of(txn.shared, |what| what.changes || what.administration) else {
        return;
    };
    let request = &incoming.request;
    let wants = match class::of(request) {
        Class::Change => queue.what().changes,
        Class::Administration => queue.what().administration,
        Class::Silent | Class::Session | Class::Open | Class::Read => false,
    };
    if !wants || matches!(done, Reply::Created(created) if created.existed) {
        return;
    }
    let paths = paths_of(txn, dirs_of(request));
    let (memory, lines) = txn.audit();
    let name = operation(request);
    Line { queue, memory }.add(lines, (name, "ok"), |text| {
        caller(text, &incoming.connection, &incoming.header.cred, incoming.asked_as);
        describe(text, request, &paths);
        answer(text, request, done);
    });
}

/// Tells of one of several changes in a directory that the session holds.
pub(crate) fn held_change(
    txn: &mut Txn<'_>,
    incoming: &Incoming,
    change: &HeldChange,
    done: &HeldReply,
) {
    let Some(queue) = queue_of(txn.shared, |what| what.changes) else { return };
    let request = &change.request;
    if matches!(request, HeldRequest::Setattr(req) if req.set.access_only) {
        return;
    }
    let paths = paths_of(txn, [Some(request.dir()), None]);
    let (memory, lines) = txn.audit();
    let (name, attr) = match request {
        HeldRequest::Create(_) => ("create", attr_of(done)),
        HeldRequest::Write(_) => ("write", attr_of(done)),
        HeldRequest::Setattr(_) => ("setattr", attr_of(done)),
        HeldRequest::Unlink(_) => ("unlink", attr_of(done)),
    };
    Line { queue, memory }.add(lines, (name, "ok"), |text| {
        caller(text, &incoming.connection, &change.cred, None);
        match request {
            HeldRequest::Create(req) => {
                named(text, &req.dir, Some(&req.name), &paths);
                made(text, attr);
            }
            HeldRequest::Write(req) => {
                named(text, &req.file.dir, Some(&req.file.name), &paths);
                ino(text, req.file.ino);
                text.number("size", attr.size);
                req.set.iter().for_each(|set| attributes(text, set));
            }
            HeldRequest::Setattr(req) => {
                node(text, &req.node, &paths);
                attributes(text, &req.set);
            }
            HeldRequest::Unlink(req) => {
                named(text, &req.dir, Some(&req.name), &paths);
                ino(text, attr.ino);
            }
        }
    });
}

fn attr_of(done: &HeldReply) -> &Attr {
    match done {
        HeldReply::Made(made) => &made.attr,
        HeldReply::Written(written) => &written.attr,
        HeldReply::Attr(attr) => attr,
    }
}

/// Tells of a request that was executed, unless it is a change that was made: [`change`] does that.
pub(crate) fn verdict(
    shared: &Shared,
    group: &mut CommitGroup,
    incoming: &Incoming,
    verdict: Verdict,
) {
    let Some(queue) = queue_of(shared, |_| true) else { return };
    let what = queue.what();
    let request = &incoming.request;
    let class = class::of(request);
    let (wants, result) = match verdict {
        _ if matches!(request, Request::Hello(_)) => return,
        Verdict::Done if request.mutates() => return,
        Verdict::Done => (tells_done(what, class), "ok"),
        Verdict::Failed(error @ (FsError::Denied | FsError::NotPermitted | FsError::ReadOnly)) => {
            (what.refusals && class != Class::Silent, error.name())
        }
        Verdict::Failed(error) => {
            (what.failures && matches!(class, Class::Change | Class::Administration), error.name())
        }
        Verdict::Refused => (what.refusals, "refused"),
        Verdict::Retry | Verdict::Halted | Verdict::Repeated => return,
    };
    if !wants || incoming.connection.peer().is_some() {
        return;
    }
    let is_stranger = incoming.connection.session().is_none();
    let others = if is_stranger { queue.stranger_is_due() } else { Some(0) };
    let Some(others) = others else { return };
    let now = group.audit.now;
    let mut txn = Txn::new(shared, group, Caller::SERVER, now);
    let paths = paths_of(&mut txn, dirs_of(request));
    drop(txn);
    let mut lines = Lines::default();
    let line = Line { queue, memory: &mut group.audit };
    line.add(&mut lines, (operation(request), result), |text| {
        caller(text, &incoming.connection, &incoming.header.cred, incoming.asked_as);
        describe(text, request, &paths);
        text.number_if("others", Some(others).filter(|others| *others > 0));
    });
    queue.push(group.core, &lines);
}

fn tells_done(what: AuditWhat, class: Class) -> bool {
    match class {
        Class::Silent | Class::Change => false,
        Class::Session => what.sessions,
        Class::Administration => what.administration,
        Class::Open => what.opens,
        Class::Read => what.reads,
    }
}

/// Tells of an administrator's act that has begun, and takes its time.
pub(crate) fn begun(shared: &Shared, group: &mut CommitGroup, incoming: &Incoming) {
    if class::of(&incoming.request) == Class::Administration {
        verdict(shared, group, incoming, Verdict::Done);
    }
}

/// Tells of a session that was opened or resumed, or not. Strangers are told of ten times a second
/// at most, so that they do not push everything else out of the log.
pub(crate) fn hello(
    shared: &Shared,
    group: &mut CommitGroup,
    connection: &Connection,
    (hello, done): (&Hello, &Result<Reply>),
) {
    let Some(queue) = queue_of(shared, |what| what.sessions || what.refusals) else { return };
    let mut lines = Lines::default();
    let line = Line { queue, memory: &mut group.audit };
    let client = &hello.client[..hello.client.floor_char_boundary(256)];
    match done {
        Ok(_) if queue.what().sessions => line.add(&mut lines, ("hello", "ok"), |text| {
            text.0.extend_from_slice(&connection.audited());
            text.text("client", client);
            text.flag_if("resumed", hello.resume.is_some());
        }),
        Err(Fault::Refused(reason)) if queue.what().refusals => {
            let Some(others) = queue.stranger_is_due() else { return };
            line.add(&mut lines, ("hello", "refused"), |text| {
                if let Some(address) = connection.address() {
                    text.plain("address", &address.to_string());
                }
                text.text("client", client);
                text.text("reason", reason);
                text.number_if("others", Some(others).filter(|others| *others > 0));
            });
        }
        Ok(_) | Err(_) => {}
    }
    queue.push(group.core, &lines);
}

/// Tells of a session that the server ends.
pub(crate) fn ended(txn: &mut Txn<'_>, (session, token): (&Session, Option<&Token>), reason: &str) {
    let Some(queue) = queue_of(txn.shared, |what| what.sessions) else { return };
    // The step may be executed again.
    let mut lines = std::mem::take(&mut txn.facts.audit);
    let line = Line { queue, memory: txn.audit_memory() };
    line.add(&mut lines, ("session_end", "ok"), |text| {
        text.plain("session", &session.id.to_string());
        if let Some(token) = token {
            token_of(text, token);
        }
        text.text("client", &session.client);
        text.text("reason", reason);
    });
    txn.facts.audit = lines;
}

fn queue_of(shared: &Shared, wants: impl FnOnce(AuditWhat) -> bool) -> Option<&AuditQueue> {
    shared
        .options
        .audit
        .as_deref()
        .map(|audit| &**audit.queue())
        .filter(|queue| wants(queue.what()))
}

/// The name of a request's kind, as in metrics.
fn operation(request: &Request) -> &'static str {
    static NAMES: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();
    let names = NAMES.get_or_init(|| (0..=u8::MAX).map(name_of).collect());
    &names[usize::from(request.tag())]
}

/// The directories that a request names; the second is that of a new name.
fn dirs_of(request: &Request) -> [Option<&DirRef>; 2] {
    let second = match request {
        Request::Rename(req) => Some(&req.to_dir),
        Request::Link(req) => match &req.target {
            NodeRef::File(file) => Some(&file.dir),
            NodeRef::Dir(_) => None,
        },
        _ => None,
    };
    [request.kind().about, second]
}

/// Adds what a request says of its subject.
fn describe(text: &mut Text<'_>, request: &Request, paths: &Paths) {
    match request {
        Request::Create(req) => {
            named(text, &req.dir, Some(&req.name), paths);
            text.plain("kind", kind_of(req.kind));
        }
        Request::Tmpfile(req) => named(text, &req.dir, None, paths),
        Request::Mkdir(req) => named(text, &req.dir, Some(&req.name), paths),
        Request::Symlink(req) => named(text, &req.dir, Some(&req.name), paths),
        Request::Unlink(req) => named(text, &req.dir, Some(&req.name), paths),
        Request::Rmdir(req) => named(text, &req.dir, Some(&req.name), paths),
        Request::Lookup(req) => named(text, &req.dir, Some(&req.name), paths),
        Request::Walk(req) => named(text, &req.from, req.names.first(), paths),
        Request::WalkTo(req) => named(text, &req.from, req.names.first(), paths),
        Request::Link(req) => {
            named(text, &req.dir, Some(&req.name), paths);
            ino(text, req.target.ino());
            if let NodeRef::File(file) = &req.target {
                other(text, ["of_dir", "of_dir_ino", "of_name"], (&file.dir, &file.name), paths);
            }
        }
        Request::Rename(req) => {
            named(text, &req.from_dir, Some(&req.from_name), paths);
            let keys = ["to_dir", "to_dir_ino", "to_name"];
            other(text, keys, (&req.to_dir, &req.to_name), paths);
        }
        Request::Setattr(req) => {
            node(text, &req.node, paths);
            attributes(text, &req.set);
        }
        Request::Write(req) => {
            file(text, &req.file, paths);
            req.set.iter().for_each(|set| attributes(text, set));
        }
        Request::Allocate(req) => file(text, &req.file, paths),
        Request::BlockMap(req) => file(text, &req.file, paths),
        Request::Seek(req) => file(text, &req.file, paths),
        Request::Open(req) => {
            file(text, &req.file, paths);
            text.number("access", req.access.into());
        }
        Request::Setxattr(req) => {
            node(text, &req.node, paths);
            xattr(text, req);
        }
        Request::Removexattr(req) => {
            node(text, &req.node, paths);
            text.bytes("xattr", &req.name);
        }
        Request::Getattr(req) | Request::Readlink(req) | Request::Xattrs(req) => {
            node(text, &req.node, paths);
        }
        Request::Info(req) => node(text, &req.node, paths),
        Request::Readdir(req) => named(text, &req.dir, None, paths),
        Request::Watch(req) => named(text, &req.dir, None, paths),
        Request::Delegate(req) => named(text, &req.dir, None, paths),
        Request::Search(req) => ino(text, req.ino),
        Request::Evict(req) => text.plain("evicted", &req.session.to_string()),
        Request::Keys(change) => keys(text, change),
        Request::SignToken(SignToken { token }) => signed(text, token),
        Request::FsckStart(req) => text.flag_if("gc", req.gc),
        Request::Repair(req) => {
            text.flag_if("gc", req.gc);
            text.flag_if("discard_lost", req.discard_lost);
        }
        Request::DumpStep(req) => text.number("step", req.stage.tag().into()),
        Request::Move(req) => text.number("step", req.stage.tag().into()),
        Request::Join(req) => text.text("joined", &req.address),
        // The others name no more than a session, or numbers of it.
        _ => {}
    }
}

/// Adds what the answer to a change says: the number of what was made or removed.
fn answer(text: &mut Text<'_>, request: &Request, done: &Reply) {
    match (request, done) {
        (_, Reply::Created(created)) => made(text, &created.entry.attr),
        (Request::Mkdir(_) | Request::Symlink(_), Reply::Entry(entry)) => made(text, &entry.attr),
        (Request::Unlink(_), Reply::Attr(attr)) => ino(text, attr.ino),
        (_, Reply::Ino(removed)) => ino(text, *removed),
        (_, Reply::Renamed(renamed)) => ino(text, renamed.moved),
        (_, Reply::Written(written)) => text.number("size", written.attr.size),
        _ => {}
    }
}

fn made(text: &mut Text<'_>, attr: &Attr) {
    ino(text, attr.ino);
    text.mode("mode", attr.mode);
}

fn ino(text: &mut Text<'_>, number: Ino) {
    text.number("ino", number.0);
}

fn named(text: &mut Text<'_>, dir: &DirRef, name: Option<&EntryName>, paths: &Paths) {
    match &paths[0] {
        Some(known) => text.0.extend_from_slice(&known.fields),
        None => text.number("dir_ino", dir.ino.0),
    }
    if let Some(name) = name {
        text.bytes("name", name.as_bytes());
    }
}

/// Adds the second name of a request.
fn other(
    text: &mut Text<'_>,
    [dir_key, ino_key, name_key]: [&str; 3],
    (dir, name): (&DirRef, &EntryName),
    paths: &Paths,
) {
    if let Some(path) = paths[1].as_ref().and_then(|known| known.path.as_ref()) {
        text.bytes(dir_key, path);
    }
    text.number(ino_key, dir.ino.0);
    text.bytes(name_key, name.as_bytes());
}

fn file(text: &mut Text<'_>, file: &wire::FileRef, paths: &Paths) {
    named(text, &file.dir, Some(&file.name), paths);
    ino(text, file.ino);
}

fn node(text: &mut Text<'_>, node: &NodeRef, paths: &Paths) {
    match node {
        NodeRef::Dir(dir) => named(text, dir, None, paths),
        NodeRef::File(of) => file(text, of, paths),
    }
}

fn attributes(text: &mut Text<'_>, set: &SetAttr) {
    if let Some(mode) = set.mode {
        text.mode("mode", mode);
    }
    text.number_if("set_uid", set.uid);
    text.number_if("set_gid", set.gid);
    text.number_if("size", set.size);
    text.flag_if("times", set.atime.is_some() || set.mtime.is_some());
}

/// Values of attributes may be secrets of programs. Settings of the file system are none.
fn xattr(text: &mut Text<'_>, req: &SetXattr) {
    text.bytes("xattr", &req.name);
    if req.name.starts_with(b"pando.") && req.value.len() <= SETTING_BYTES_MAX {
        text.bytes("value", &req.value);
    }
}

fn keys(text: &mut Text<'_>, change: &KeysChange) {
    match change {
        KeysChange::Show => {}
        KeysChange::Rotate(newest) => {
            text.plain("keys", "rotate");
            text.number("key", u64::from(*newest) + 1);
        }
        KeysChange::Retire(key) => {
            text.plain("keys", "retire");
            text.number("key", (*key).into());
        }
        KeysChange::Revoke(token) => {
            text.plain("keys", "revoke");
            text.id("revoked", token.id);
        }
    }
}

/// Adds what a new token allows.
fn signed(text: &mut Text<'_>, token: &Token) {
    text.id("new_token", token.id);
    text.text("new_path", &token.path);
    text.number_if("new_uid", token.uid);
    text.flag_if("new_read_only", token.read_only);
    text.flag_if("new_pages", token.scope == Scope::Pages);
    if let Some(ids) = &token.ids {
        match ids.squash {
            Squash::Nobody => {}
            Squash::Root => text.plain("new_squash", "root"),
            Squash::All => text.plain("new_squash", "all"),
        }
        text.flag_if("new_maps_ids", ids.maps());
    }
    if let Some(end) = token.expires {
        text.plain("new_expires", &super::moment(end));
    }
}

fn kind_of(kind: base::FileKind) -> &'static str {
    match kind {
        base::FileKind::File => "file",
        base::FileKind::Directory => "directory",
        base::FileKind::Symlink => "symlink",
        base::FileKind::Fifo => "fifo",
        base::FileKind::Socket => "socket",
        base::FileKind::CharDevice => "char_device",
        base::FileKind::BlockDevice => "block_device",
    }
}
