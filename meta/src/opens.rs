//! The table of open files: which session has which file open.
//!
//! The table is held in memory by the server of the files' names. After a restart it is empty, and
//! the sessions from before claim their opens again. Until all have, or their leases have ended,
//! any file may be open.
//!
//! The access of an open is kept for each user of a session, and lets no other user do anything. A
//! session whose kernel checks permissions is one user, see
//! [`Standing::opener`](crate::session::Standing::opener).

use base::{Access, HashMap, HashSet, Ino, SessionId};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::record::Location;

/// The open files of a server.
#[derive(Default)]
pub(crate) struct Opens {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The sessions that have each open file.
    files: HashMap<Ino, Open>,
    sessions: HashMap<SessionId, HashSet<Ino>>,
    /// Sessions from before the restart that have not claimed yet.
    unclaimed: HashSet<SessionId>,
}

/// An open file.
#[derive(Default)]
struct Open {
    holders: SmallVec<[Holder; 1]>,
    /// A name of the file when it was opened; `None` after a restart.
    name: Option<Location>,
}

/// A session that has a file open.
struct Holder {
    session: SessionId,
    /// Number of the session's latest open of the file.
    latest: u64,
    /// Access of all opens together, for each user that has opened the file.
    users: SmallVec<[(u32, Access); 1]>,
}

impl Holder {
    fn access(&self) -> Access {
        self.users.iter().fold(Access::NONE, |all, (_, access)| all.and(*access))
    }

    /// Adds an open; returns all access that the user has now.
    fn grant(&mut self, user: u32, access: Access) -> Access {
        if let Some((_, granted)) = self.users.iter_mut().find(|(of, _)| *of == user) {
            *granted = granted.and(access);
            return *granted;
        }
        self.users.push((user, access));
        access
    }
}

impl Opens {
    /// Notes that these sessions may still claim.
    pub(crate) fn await_claims(&self, sessions: impl Iterator<Item = SessionId>) {
        self.state.lock().unclaimed.extend(sessions);
    }

    /// Whether some sessions from before the restart may still claim.
    pub(crate) fn awaits_claims(&self) -> bool {
        !self.state.lock().unclaimed.is_empty()
    }

    /// Whether this session may still claim.
    pub(crate) fn awaits_claims_of(&self, session: SessionId) -> bool {
        self.state.lock().unclaimed.contains(&session)
    }

    /// Notes that a session has claimed all it had, or has ended. `true` when it was the last one
    /// waited for.
    pub(crate) fn claimed(&self, session: SessionId) -> bool {
        let mut state = self.state.lock();
        state.unclaimed.remove(&session) && state.unclaimed.is_empty()
    }

    /// Opens `ino` for `access` for a user of `session`, under the session's number for this open.
    /// Returns all access that the user has now.
    pub(crate) fn open(
        &self,
        ino: Ino,
        opener: (SessionId, u32),
        number: u64,
        access: Access,
    ) -> Access {
        self.open_at(ino, None, opener, number, access)
    }

    /// Like [`Opens::open`], under this name.
    pub(crate) fn open_at(
        &self,
        ino: Ino,
        name: Option<Location>,
        (session, user): (SessionId, u32),
        number: u64,
        access: Access,
    ) -> Access {
        let mut state = self.state.lock();
        state.sessions.entry(session).or_default().insert(ino);
        let open = state.files.entry(ino).or_default();
        open.name = name.or(open.name.take());
        let holders = &mut open.holders;
        if let Some(holder) = holders.iter_mut().find(|holder| holder.session == session) {
            holder.latest = holder.latest.max(number);
            return holder.grant(user, access);
        }
        let users = SmallVec::from_buf([(user, access)]);
        holders.push(Holder { session, latest: number, users });
        access
    }

    /// Closes `ino` for `session`, unless the session has opened it again since open `number`.
    /// `true` when no session has it open any more.
    pub(crate) fn release(&self, ino: Ino, session: SessionId, number: u64) -> bool {
        let mut state = self.state.lock();
        let Some(Open { holders, .. }) = state.files.get_mut(&ino) else { return false };
        let before = holders.len();
        holders.retain(|holder| holder.session != session || holder.latest > number);
        if holders.len() == before {
            return false;
        }
        let closed = holders.is_empty();
        if closed {
            state.files.remove(&ino);
        }
        if let Some(inos) = state.sessions.get_mut(&session) {
            inos.remove(&ino);
        }
        closed
    }

    /// Ends a session; returns the files that no session has open any more.
    pub(crate) fn end_session(&self, session: SessionId) -> Vec<Ino> {
        let mut state = self.state.lock();
        let mut inos: Vec<Ino> = state.sessions.remove(&session).into_iter().flatten().collect();
        inos.sort_unstable();
        inos.retain(|ino| {
            let Some(Open { holders, .. }) = state.files.get_mut(ino) else { return false };
            holders.retain(|holder| holder.session != session);
            let closed = holders.is_empty();
            if closed {
                state.files.remove(ino);
            }
            closed
        });
        inos
    }

    /// Access of all users of `session` together to `ino`; `None` if the session does not have it
    /// open.
    pub(crate) fn access(&self, ino: Ino, session: SessionId) -> Option<Access> {
        let state = self.state.lock();
        let open = state.files.get(&ino)?;
        let holder = open.holders.iter().find(|holder| holder.session == session)?;
        Some(holder.access())
    }

    /// Access of one user of `session` to `ino`; `None` if that user does not have it open.
    pub(crate) fn access_of(&self, ino: Ino, session: SessionId, user: u32) -> Option<Access> {
        let state = self.state.lock();
        let open = state.files.get(&ino)?;
        let holder = open.holders.iter().find(|holder| holder.session == session)?;
        holder.users.iter().find(|(of, _)| *of == user).map(|(_, access)| *access)
    }

    /// Whether a session has `ino` open, or may have and not have claimed yet.
    pub(crate) fn maybe_open(&self, ino: Ino) -> bool {
        let state = self.state.lock();
        !state.unclaimed.is_empty() || state.files.contains_key(&ino)
    }

    /// Open files by inode, with their sessions: those after `after`, whole inodes, about `max` of
    /// them, and whether these are the last.
    pub(crate) fn list(
        &self,
        after: Ino,
        session: Option<SessionId>,
        max: usize,
    ) -> (Vec<(Ino, SessionId, Access)>, bool) {
        let state = self.state.lock();
        let wanted = |ino: &&Ino| **ino > after;
        let mut inos: Vec<Ino> = match session {
            Some(session) => {
                let open = state.sessions.get(&session).into_iter().flatten();
                open.filter(wanted).copied().collect()
            }
            None => state.files.keys().filter(wanted).copied().collect(),
        };
        inos.sort_unstable();
        let end = inos.len() <= max;
        inos.truncate(max);
        let mut found = Vec::new();
        for ino in inos {
            let holders = state.files.get(&ino).into_iter().flat_map(|open| &open.holders);
            let of_it =
                holders.filter(|holder| session.is_none_or(|wanted| holder.session == wanted));
            found.extend(of_it.map(|holder| (ino, holder.session, holder.access())));
        }
        (found, end)
    }

    /// A name of an open file when it was opened.
    pub(crate) fn name(&self, ino: Ino) -> Option<Location> {
        self.state.lock().files.get(&ino)?.name.clone()
    }

    /// Number of open inodes.
    pub(crate) fn inodes(&self) -> usize {
        self.state.lock().files.len()
    }

    /// Number of sessions from before the restart that have not claimed yet.
    pub(crate) fn unclaimed(&self) -> usize {
        self.state.lock().unclaimed.len()
    }

    /// Number of files that a session has open.
    pub(crate) fn count(&self, session: SessionId) -> u64 {
        self.state.lock().sessions.get(&session).map_or(0, |inos| inos.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    #[test]
    fn a_file_is_closed_when_its_last_session_closes_it() {
        let opens = Opens::default();
        opens.open(Ino(5), (A, 0), 1, Access::READ);
        opens.open(Ino(5), (B, 0), 1, Access::READ);
        assert!(!opens.release(Ino(5), A, 1));
        assert!(opens.maybe_open(Ino(5)));
        assert_eq!(opens.end_session(B), [Ino(5)]);
        assert!(!opens.maybe_open(Ino(5)));
    }

    #[test]
    fn a_release_older_than_the_latest_open_does_nothing() {
        let opens = Opens::default();
        opens.open(Ino(5), (A, 0), 2, Access::READ);
        assert!(!opens.release(Ino(5), A, 1));
        assert_eq!(opens.access(Ino(5), A), Some(Access::READ));
        assert!(opens.release(Ino(5), A, 2));
    }

    #[test]
    fn what_one_user_has_opened_is_not_open_for_another() {
        let opens = Opens::default();
        let (read, write) = (Access::READ, Access::WRITE);
        assert_eq!(opens.open(Ino(5), (A, 7), 1, read), read);
        assert_eq!(opens.open(Ino(5), (A, 8), 2, write), write);
        assert_eq!(opens.open(Ino(5), (A, 7), 3, Access::NONE), read);
        assert_eq!(opens.access_of(Ino(5), A, 7), Some(read));
        assert_eq!(opens.access_of(Ino(5), A, 9), None);
        assert_eq!(opens.access_of(Ino(5), B, 7), None);
        assert_eq!(opens.access(Ino(5), A), Some(read.and(write)));
    }

    #[test]
    fn until_all_have_claimed_any_file_may_be_open() {
        let opens = Opens::default();
        opens.await_claims([A, B].into_iter());
        assert!(opens.maybe_open(Ino(9)));
        assert!(!opens.claimed(A));
        assert!(opens.claimed(B));
        assert!(!opens.maybe_open(Ino(9)));
    }
}
