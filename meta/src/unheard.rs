//! Opens that a client may not know of: it asked for a file to be made and opened, and the server restarted
//! before the answer was heard.
//!
//! The answer was stored, and the client will ask for it again; but the open was in memory, and a client
//! claims only what it knows to be open. So when it has claimed, the files of such answers are opened for
//! it, with a number older than all. Its question makes the open its own; that it does not ask any more says
//! that it had the answer, and has closed the file or opened it anew.

use base::{Access, Decode as _, Ino, Seq};
use bytes::Bytes;
use wire::{Answer, Reply, Request};

use crate::{
    server::Shared,
    session::{Session, Standing},
};

/// Older than every number that a client gives an open.
const OLDEST: u64 = 0;

/// A file that an answer says to be open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unheard {
    pub(crate) seq: Seq,
    ino: Ino,
    /// Who made it.
    uid: u32,
    access: Access,
}

impl Unheard {
    /// `standing` is the session's, asked before: who looks through these has locked it.
    fn open(self, shared: &Shared, session: &Session, standing: Standing, number: u64) {
        let opener = (session.id, standing.opener(self.uid));
        shared.opens.open(self.ino, opener, number, self.access);
    }
}

/// The opens among stored answers; `proven` says what a proof proves.
pub(crate) fn among(
    stored: &[(Seq, Bytes)],
    proven: impl Fn(Ino, u32, u64) -> Option<Access>,
) -> Vec<Unheard> {
    let opens = stored.iter().filter_map(|(seq, answer)| {
        let Ok(Answer::Done(Reply::Created(created))) = Answer::from_bytes(answer) else {
            return None;
        };
        let base::Attr { ino, uid, .. } = created.entry.attr;
        let access = proven(ino, uid, created.opened?.proof)?;
        Some(Unheard { seq: *seq, ino, uid, access })
    });
    opens.collect()
}

/// The client has claimed what it knows to be open: the rest is opened for it.
pub(crate) fn claimed(shared: &Shared, session: &Session) {
    let standing = session.standing();
    session.keep_unheard(|unheard| {
        let known = shared.opens.access(unheard.ino, session.id).is_some();
        if !known {
            unheard.open(shared, session, standing, OLDEST);
        }
        !known
    });
}

/// The client asks for the answer to `seq` again: the open is its own from now on.
pub(crate) fn asked(shared: &Shared, session: &Session, seq: Seq, request: &Request) {
    let number = match request {
        Request::Create(create) => create.open.unwrap_or(OLDEST),
        Request::Tmpfile(made) => made.number,
        _ => return,
    };
    let standing = session.standing();
    session.keep_unheard(|unheard| {
        if unheard.seq == seq {
            unheard.open(shared, session, standing, number);
        }
        unheard.seq != seq
    });
}

/// The client has the answers to everything before `unanswered`.
pub(crate) fn heard(shared: &Shared, session: &Session, unanswered: Seq) {
    session.keep_unheard(|unheard| {
        let keep = unheard.seq >= unanswered;
        if !keep && shared.opens.release(unheard.ino, session.id, OLDEST) {
            shared.backlog.closed(unheard.ino);
        }
        keep
    });
}
