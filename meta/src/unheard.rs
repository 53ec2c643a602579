//! Opens that a client may not know of: it asked for a file to be made and opened, and the server
//! restarted before the client got the answer.
//!
//! The answer was stored, and the client will ask for it again. But the open was in memory, and a
//! client claims only what it knows to be open. So when the client has claimed, the files of such
//! answers are opened for it, with a number older than all others. When it asks for the answer
//! again, the open becomes its own. When it shows that it had the answer, it has closed the file or
//! opened it anew, and the open ends.

use base::{Access, Decode as _, Ino, Seq};
use wire::{Answer, Applied, Created, HeldMade, HeldReply, HeldRequest, Reply, Request};

use crate::{
    record::system::StoredAnswers,
    server::Shared,
    session::{self, Session, Standing, unheard::Unheard},
};

/// Number older than all that clients give their opens.
const OLDEST: u64 = 0;

/// Opens the file. `standing` is the session's, passed in because the caller holds the session's
/// lock.
fn open(of: Unheard, shared: &Shared, session: &Session, standing: Standing, number: u64) {
    let opener = (session.id, standing.opener(of.uid));
    shared.opens.open(of.ino, opener, number, of.access);
}

/// The opens among stored answers. `proven` returns the access that a proof proves.
pub(crate) fn among(
    stored: &[(u16, StoredAnswers)],
    proven: impl Fn(Ino, u32, u64) -> Option<Access>,
) -> Vec<Unheard> {
    let settled = session::settled_by(stored);
    let answers = stored.iter().flat_map(|(_, stored)| &stored.answers);
    let answers = answers.filter(|(seq, _)| *seq >= settled);
    let opens = answers.flat_map(|(seq, answer)| {
        let made = match Answer::from_bytes(answer) {
            Ok(Answer::Done(Reply::Created(Created { entry, opened, .. }))) => {
                vec![HeldMade { attr: entry.attr, proof: opened.map(|opened| opened.proof) }]
            }
            Ok(Answer::Done(Reply::Applied(applied))) => made(applied).collect(),
            Ok(_) | Err(_) => Vec::new(),
        };
        made.into_iter().map(|made| (*seq, made))
    });
    let opens = opens.filter_map(|(seq, HeldMade { attr, proof })| {
        let access = proven(attr.ino, attr.uid, proof?)?;
        Some(Unheard { seq, ino: attr.ino, uid: attr.uid, access })
    });
    opens.collect()
}

/// The files that several changes have made.
fn made(applied: Applied) -> impl Iterator<Item = HeldMade> {
    applied.done.into_iter().filter_map(|reply| match reply {
        HeldReply::Made(made) => Some(made),
        HeldReply::Written(_) | HeldReply::Attr(_) => None,
    })
}

/// The number under which a request opens a file that it makes.
fn number_of(request: &Request, ino: Ino) -> Option<u64> {
    match request {
        Request::Create(create) => Some(create.open.unwrap_or(OLDEST)),
        Request::Tmpfile(made) => Some(made.number),
        Request::Apply(apply) => {
            let made = apply.changes.iter().find(|change| change.ino == Some(ino));
            made.and_then(|change| match &change.request {
                HeldRequest::Create(create) => Some(create.open.unwrap_or(OLDEST)),
                HeldRequest::Write(_) | HeldRequest::Setattr(_) | HeldRequest::Unlink(_) => None,
            })
        }
        _ => None,
    }
}

/// Opens for the client what it has not claimed, after it has claimed all it knows to be open.
pub(crate) fn claimed(shared: &Shared, session: &Session) {
    let standing = session.standing();
    session.keep_unheard(|unheard| {
        let known = shared.opens.access(unheard.ino, session.id).is_some();
        if !known {
            open(*unheard, shared, session, standing, OLDEST);
        }
        !known
    });
}

/// Gives an open to the client, which asks for the answer to `seq` again.
pub(crate) fn asked(shared: &Shared, session: &Session, seq: Seq, request: &Request) {
    let standing = session.standing();
    session.keep_unheard(|unheard| {
        if unheard.seq == seq
            && let Some(number) = number_of(request, unheard.ino)
        {
            open(*unheard, shared, session, standing, number);
        }
        unheard.seq != seq
    });
}

/// Ends the opens of answers before `unanswered`: the client has had those answers.
pub(crate) fn heard(shared: &Shared, session: &Session, unanswered: Seq) {
    session.keep_unheard(|unheard| {
        let keep = unheard.seq >= unanswered;
        if !keep && shared.opens.release(unheard.ino, session.id, OLDEST) {
            shared.backlog.closed(unheard.ino);
        }
        keep
    });
}
