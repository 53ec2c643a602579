//! Sessions: connected clients, their rights, and the answers they were given.
//!
//! A session outlives its connections and a restart of the server: its record and its stored
//! answers are in the store. Requests of a session may come over several connections and cores.
//!
//! Exactly once: the answer to a mutating request is stored with its effect, and remembered here
//! until the client says that it has it. A number that is asked again gets that answer.
//!
//! A session proves with tickets what it was shown or has opened. The tickets' key is made of the
//! session and of what its token allows. So tickets earned with one token are worth nothing with
//! another, and a session goes on only with a token of the same rights. A token may be renewed, as
//! its expiry is no part of the key.
//!
//! A session is in use while a group of any core holds a request of it that is not written yet
//! ([`Session::enter`] to [`Session::leave`]). Its end first lets no request in any more, then
//! waits until no group is inside, and only then removes what the session has; so nothing of it can
//! come after its end. No core waits for that with a group of its own, so there is no deadlock.

mod answers;
pub(crate) mod in_use;
pub(crate) mod table;
pub(crate) mod unheard;

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use base::{Cred, DirId, Encode as _, FsError, HashKey, Ino, Seq, SessionId, Time};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use wire::{DirRef, Token, TokenError};

pub(crate) use self::answers::{Seen, Spent, settled_by};
use self::{
    answers::{Answers, Records, Slot},
    unheard::Unheard,
};
use crate::{keys::Keys, record::system::StoredAnswers, tokens::Share, unnamed::Unnamed};

/// A client's session at this server.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) secret: u64,
    pub(crate) client: String,
    /// Key of the session's tickets. After a restart it is unknown until the client is back with
    /// its token.
    key: OnceLock<HashKey>,
    state: Mutex<State>,
    /// Whether `State::unheard` has any: most sessions never do, and every request asks.
    any_unheard: AtomicBool,
    /// The session's share of its token; unset until the token was shown.
    share: OnceLock<Share>,
    /// Number of groups that hold requests of the session.
    uses: AtomicUsize,
    /// Whether no request is let in any more. Set under the lock of the state.
    ending: AtomicBool,
    unused: Condvar,
    connections: AtomicUsize,
    /// Whether the session stores blocks past the server.
    reaches_store: AtomicBool,
    /// Blocks that the session has put here and not named.
    pub(crate) unnamed: Mutex<Unnamed>,
}

struct State {
    /// The token of the latest Hello; `None` after a restart, until the client is back.
    rights: Option<Rights>,
    /// Number of changes of the key ring ([`Keys::changes`]) at which the token was last checked;
    /// 0: never.
    checked_at: u64,
    /// The fault that this check has found.
    unfit: Option<TokenError>,
    /// The moment from which the session's lease is counted.
    heard: tokio::time::Instant,
    /// Whether files from before the restart may be open in the session, and its client has not
    /// claimed them.
    owes_claims: bool,
    /// Whether the answers from before the restart were taken in.
    restored: bool,
    answers: Answers,
    records: Records,
    /// Opens from before the restart whose answers the client may not have.
    unheard: Vec<Unheard>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("Session").field(&self.id).finish()
    }
}

/// Rights shown by the latest Hello.
#[derive(Clone)]
pub(crate) struct Rights {
    pub(crate) token: Token,
    pub(crate) kernel_checks: bool,
    /// The directory that is the root of the session.
    pub(crate) root: DirRef,
    /// Whether the client is in the server's process, which no key ring keeps out.
    pub(crate) is_near: bool,
}

/// The reason why a session may not do something.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// No client has shown a token since the server started.
    Unknown,
    /// The token is good no more.
    Ended(TokenError),
    Forbidden(FsError),
}

/// A session's standing as one request finds it: what it may do without further proof.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    /// See [`Token::trusted`].
    pub(crate) trusted: bool,
    /// Whether the server checks permissions, or the client's kernel has.
    pub(crate) checks: bool,
    /// The directory that the session is confined to, if its token names one.
    pub(crate) within: Option<(DirId, Ino)>,
}

impl Standing {
    /// Standing of the server itself.
    pub(crate) const SERVER: Standing = Standing { trusted: true, checks: false, within: None };
    /// Standing of a session without a token.
    const NONE: Standing = Standing { trusted: false, checks: true, within: None };

    /// User that an open for `uid` belongs to. Where the client's kernel checks permissions, all
    /// opens belong to the session, as user 0.
    pub(crate) fn opener(self, uid: u32) -> u32 {
        if self.checks { uid } else { 0 }
    }

    fn of(rights: &Rights) -> Standing {
        let checks = !rights.kernel_checks || rights.token.is_checked();
        let within = (rights.token.path != "/").then_some((rights.root.id, rights.root.ino));
        Standing { trusted: rights.token.trusted(), checks, within }
    }
}

impl Session {
    pub(crate) fn new(id: SessionId, secret: u64, client: String) -> Session {
        let state = State {
            rights: None,
            checked_at: 0,
            unfit: None,
            restored: false,
            heard: tokio::time::Instant::now(),
            owes_claims: false,
            answers: Answers::new(),
            records: Records::default(),
            unheard: Vec::new(),
        };
        let (key, share) = (OnceLock::new(), OnceLock::new());
        let (state, any_unheard) = (Mutex::new(state), AtomicBool::new(false));
        let (uses, ending, unused) = (AtomicUsize::new(0), AtomicBool::new(false), Condvar::new());
        let connections = AtomicUsize::new(0);
        Session {
            id,
            secret,
            client,
            key,
            state,
            any_unheard,
            share,
            uses,
            ending,
            unused,
            connections,
            reaches_store: AtomicBool::new(false),
            unnamed: Mutex::default(),
        }
    }

    /// Whether a client that comes back shows a token with the rights that opened the session, and
    /// the `proof` that it was given of the session and its root.
    pub(crate) fn is_of(
        &self,
        signing_key: &[u8],
        token: &Token,
        root: &DirRef,
        proof: u64,
    ) -> bool {
        let key = ticket_key(signing_key, self.id, self.secret, token);
        let known = self.key.get().is_none_or(|known| *known == key);
        if !known || proof_by(key, root) != proof {
            return false;
        }
        // Race: another connection may have set the key since; then it was proven to be the same.
        self.key.get_or_init(|| key);
        true
    }

    /// Sets the ticket key for the token that opens the session.
    pub(crate) fn opens_with(&self, signing_key: &[u8], token: &Token) {
        self.key.get_or_init(|| ticket_key(signing_key, self.id, self.secret, token));
    }

    /// Gives the session a share of its token, if it has none.
    pub(crate) fn shares(&self, share: impl FnOnce() -> Share) {
        self.share.get_or_init(share);
    }

    /// Number of connections of the session.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a connection that `joins` the session, or leaves it.
    pub(crate) fn count_connection(&self, joins: bool) {
        if joins {
            self.connections.fetch_add(1, Ordering::Relaxed);
        } else {
            self.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Lets a connection join the session; `false` if the session is ending.
    pub(crate) fn join(&self, rights: Rights) -> bool {
        let mut state = self.state.lock();
        if self.ending.load(Ordering::SeqCst) {
            return false;
        }
        let returns = state.rights.replace(rights).is_none();
        state.checked_at = 0;
        if returns || !state.owes_claims {
            state.heard = tokio::time::Instant::now();
        }
        true
    }

    /// Notes that a group is about to execute a request of the session; `false` if the session is
    /// ending.
    pub(crate) fn enter(&self) -> bool {
        // Race: either side writes first and reads then, so at least one of them sees the other.
        self.uses.fetch_add(1, Ordering::SeqCst);
        let enters = !self.ending.load(Ordering::SeqCst);
        if !enters {
            self.leave();
        }
        enters
    }

    /// Notes that a group that held requests of the session is written.
    pub(crate) fn leave(&self) {
        let last = self.uses.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.ending.load(Ordering::SeqCst) {
            // A waiting thread has not looked yet, or waits already.
            drop(self.state.lock());
            self.unused.notify_all();
        }
    }

    /// Lets no request in any more; `true` when no group is inside.
    pub(crate) fn begin_end(&self) -> bool {
        let state = self.state.lock();
        self.ending.store(true, Ordering::SeqCst);
        drop(state);
        self.uses.load(Ordering::SeqCst) == 0
    }

    /// Ends the session if nothing was heard of it for longer than `lease`, its token is good no
    /// more at `now`, or its end has begun; `false` if it goes on. An ending session lets no
    /// request in any more.
    pub(crate) fn begin_end_if_over(&self, lease: Duration, now: Time, keys: &Keys) -> bool {
        let mut state = self.state.lock();
        let over = state.heard.elapsed() > lease || state.token_ended(now, keys).is_some();
        let ends = self.ending.load(Ordering::SeqCst) || over;
        self.ending.store(ends, Ordering::SeqCst);
        ends
    }

    /// Blocks this thread until no group is inside. The caller holds no group.
    fn wait_until_unused(&self) {
        let mut state = self.state.lock();
        while self.uses.load(Ordering::SeqCst) > 0 {
            self.unused.wait(&mut state);
        }
    }

    /// Notes that the client stores blocks past the server: in a shared store, under signed
    /// addresses, or in the same process.
    pub(crate) fn reach_store(&self) {
        self.reaches_store.store(true, Ordering::Relaxed);
    }

    /// Whether blocks of the session may be stored without the server's knowledge.
    pub(crate) fn reaches_store(&self) -> bool {
        self.reaches_store.load(Ordering::Relaxed)
    }

    /// Whether no client has come back to the session since the server started.
    pub(crate) fn returns_after_restart(&self) -> bool {
        self.state.lock().rights.is_none()
    }

    /// Ends the session: a client that still has it must open another.
    pub(crate) fn end(&self) {
        self.state.lock().rights = None;
    }

    /// Extends the lease, as the session was heard of. Before its claims are in, its lease is not
    /// extended: all others wait for them.
    pub(crate) fn heard(&self) {
        let mut state = self.state.lock();
        if !state.owes_claims {
            state.heard = tokio::time::Instant::now();
        }
    }

    /// Begins the lease anew, as the session could not be heard of.
    pub(crate) fn begin_lease(&self) {
        self.state.lock().heard = tokio::time::Instant::now();
    }

    /// Notes that the session is from before the server's start. When its client is back it has one
    /// lease to claim what it had open.
    pub(crate) fn awaits_claims(&self) {
        self.state.lock().owes_claims = true;
    }

    /// Notes that the client has claimed all that it had open.
    pub(crate) fn has_claimed(&self) {
        self.state.lock().owes_claims = false;
        self.begin_lease();
    }

    /// Time since the session was last heard of.
    pub(crate) fn idle(&self) -> Duration {
        self.state.lock().heard.elapsed()
    }

    /// The reason why the token is good no more, if it is not: the session is over with it.
    pub(crate) fn token_ended(&self, now: Time, keys: &Keys) -> Option<TokenError> {
        self.state.lock().token_ended(now, keys)
    }

    /// Whether the session may do this now, and as the user `acts_as` if it acts as one. Returns
    /// its standing.
    pub(crate) fn admit(
        &self,
        acts_as: Option<&Cred>,
        mutates: bool,
        now: Time,
        keys: &Keys,
    ) -> Result<Standing, Unfit> {
        let mut state = self.state.lock();
        if let Some(error) = state.token_ended(now, keys) {
            return Err(Unfit::Ended(error));
        }
        let rights = state.rights.as_ref().ok_or(Unfit::Unknown)?;
        acts_as.map_or(Ok(()), |cred| rights.token.may_act_as(cred)).map_err(Unfit::Forbidden)?;
        if mutates && rights.token.read_only {
            return Err(Unfit::Forbidden(FsError::ReadOnly));
        }
        Ok(Standing::of(rights))
    }

    fn with_rights<T>(&self, ask: impl FnOnce(&Rights) -> T, otherwise: T) -> T {
        self.state.lock().rights.as_ref().map_or(otherwise, ask)
    }

    /// The session's standing now.
    pub(crate) fn standing(&self) -> Standing {
        self.with_rights(Standing::of, Standing::NONE)
    }

    /// Whether the session may change anything at all.
    pub(crate) fn read_only(&self) -> bool {
        self.with_rights(|rights| rights.token.read_only, true)
    }

    /// Whether the session may ask for what only administrators may.
    pub(crate) fn administers(&self) -> bool {
        self.with_rights(|rights| rights.token.administers(), false)
    }

    /// Token of the latest Hello; `None` while no client has come back since the server started.
    pub(crate) fn token(&self) -> Option<Token> {
        self.state.lock().rights.as_ref().map(|rights| rights.token.clone())
    }

    /// Proof that this session was shown something.
    pub(crate) fn ticket(&self, parts: &[u64]) -> u64 {
        self.key.get().expect("nobody asks before its token was shown").mac(parts)
    }

    /// Proof for every server with the file system's key: the session was opened at one of them
    /// with these rights, and has this root.
    pub(crate) fn proof(&self, root: &DirRef) -> u64 {
        proof_by(*self.key.get().expect("it was opened with a token"), root)
    }

    /// Notes that request `seq` is about to be executed, unless it was before.
    pub(crate) fn begin(&self, seq: Seq, unanswered: Seq) -> Result<Seen, Spent> {
        let answers = &mut self.state.lock().answers;
        answers.forget_before(unanswered.0.min(seq.0));
        answers.begin(seq.0)
    }

    /// The slot for a record with answers up to `last`, which is about to be written, and the number
    /// below which the client needs no answer any more.
    pub(crate) fn slot_for(&self, last: Seq) -> (u16, Seq) {
        let State { answers, records, .. } = &mut *self.state.lock();
        let first = answers.first();
        (records.take(last, first), Seq(first))
    }

    /// Notes that the record with this slot is written.
    pub(crate) fn stored(&self, slot: u16) {
        self.state.lock().records.written(slot);
    }

    /// Keeps the answer to `seq`.
    pub(crate) fn answered(&self, seq: Seq, answer: Bytes) {
        self.state.lock().answers.set(seq.0, Slot::Answered(answer));
    }

    /// Notes that nothing happened to `seq`: it may come again.
    pub(crate) fn not_executed(&self, seq: Seq) {
        self.state.lock().answers.set(seq.0, Slot::Unseen);
    }

    /// Whether the answer to `seq`, which the client has had, is one of this server.
    pub(crate) fn knows(&self, seq: Seq) -> bool {
        self.state.lock().answers.knows(seq.0)
    }

    /// Takes in the answers that were stored before a restart, by the slots of their records.
    ///
    /// Race: two connections may come back at the same time. The second one finds this done, and
    /// must not undo what was answered since.
    pub(crate) fn restore(&self, stored: Vec<(u16, StoredAnswers)>, unheard: Vec<Unheard>) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.restored, true) {
            return;
        }
        self.any_unheard.store(!unheard.is_empty(), Ordering::Release);
        state.unheard = unheard;
        state.records = Records::of(&stored);
        state.answers.restore(stored);
    }
}

impl Session {
    /// Keeps those of the unheard opens that `keep` selects.
    pub(crate) fn keep_unheard(&self, keep: impl FnMut(&Unheard) -> bool) {
        if self.any_unheard.load(Ordering::Acquire) {
            let unheard = &mut self.state.lock().unheard;
            unheard.retain(keep);
            self.any_unheard.store(!unheard.is_empty(), Ordering::Release);
        }
    }
}

impl State {
    /// The reason why the token is good no more. The key ring is asked once after each of its
    /// changes.
    fn token_ended(&mut self, now: Time, keys: &Keys) -> Option<TokenError> {
        let Rights { token, is_near, .. } = self.rights.as_ref()?;
        let changes = keys.changes();
        if self.checked_at != changes {
            self.unfit = keys.check(token).err().filter(|_| !is_near);
            self.checked_at = changes;
        }
        self.unfit.or(token.expired(now).then_some(TokenError::Expired))
    }
}

/// See [`Session::proof`].
fn proof_by(key: HashKey, root: &DirRef) -> u64 {
    let [high, low] = halves(root.id.0);
    let [home_high, home_low] = halves(root.home.0);
    let of = u64::from_le_bytes(*b"session ");
    key.mac(&[of, high, low, root.ino.0, home_high, home_low])
}

/// Makes the key of a session's tickets. The client knows its id, its secret and its rights, so the
/// server adds its own key.
fn ticket_key(signing_key: &[u8], id: SessionId, secret: u64, token: &Token) -> HashKey {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let mut words: Vec<u64> = signing_key.chunks(8).map(word).collect();
    // A renewed token has another number, another end, and perhaps another key.
    let rights = Token { id: 0, key: 0, expires: None, authority: None, ..token.clone() }.to_vec();
    // Zeros fill the last word: the length says how many.
    words.push(rights.len() as u64);
    words.extend(rights.chunks(8).map(word));
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    let server = HashKey::new(word(0), word(1));
    let half = |which: u64| {
        let parts = [&[u64::from_le_bytes(*b"tickets "), which, id.0, secret], &words[..]].concat();
        server.mac(&parts)
    };
    HashKey::new(half(0), half(1))
}

/// A 128-bit number as parts of a ticket.
pub(crate) fn halves(value: u128) -> [u64; 2] {
    let low = u64::try_from(value & u128::from(u64::MAX)).expect("masked");
    [u64::try_from(value >> 64).expect("64 bits are left"), low]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bugs::Planted, keys::ring::KeyRing};

    fn session() -> Session {
        let session = Session::new(SessionId(1), 2, "test".into());
        session.opens_with(b"signing key", &Token::administrator());
        session
    }

    fn begin(session: &Session, seq: u64, unanswered: u64) -> Seen {
        session.begin(Seq(seq), Seq(unanswered)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_checked_again_when_the_key_ring_has_changed() {
        let (session, now) = (session(), Time { sec: 7, nsec: 0 });
        let keys = Keys::new(Bytes::from_static(b"key"), KeyRing::default(), Planted::default());
        let rights = |id, is_near| Rights {
            token: Token { id, ..Token::administrator() },
            kernel_checks: false,
            root: DirRef::ROOT,
            is_near,
        };
        let ended = || match session.admit(None, false, now, &keys) {
            Ok(_) => None,
            Err(Unfit::Ended(error)) => Some(error),
            Err(other) => panic!("{other:?}"),
        };
        assert!(session.join(rights(5, false)));
        assert_eq!(ended(), None);
        let mut ring = KeyRing::default();
        ring.revoke(&wire::Revoke { id: 5, key: None, expires: None }, now).unwrap();
        keys.set(ring);
        assert_eq!(ended(), Some(TokenError::Revoked));
        // The token of the latest hello counts.
        assert!(session.join(rights(6, false)));
        assert_eq!(ended(), None);
        assert!(session.join(rights(5, true)));
        assert_eq!(ended(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_comes_into_a_session_that_ends() {
        let session = session();
        let token = Token::administrator;
        let rights =
            || Rights { token: token(), kernel_checks: false, root: DirRef::ROOT, is_near: false };
        let keys = Keys::new(Bytes::from_static(b"key"), KeyRing::default(), Planted::default());
        assert!(session.join(rights()) && session.enter());
        let (lease, now) = (Duration::from_secs(9), Time::default());
        assert!(!session.begin_end_if_over(lease, now, &keys), "it was heard of");
        assert!(!session.begin_end(), "somebody is inside");
        assert!(!session.enter() && !session.join(rights()));
        session.leave();
        session.wait_until_unused();
        assert!(session.begin_end() && session.begin_end_if_over(lease, now, &keys));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_restored_once() {
        let session = session();
        let nine = || StoredAnswers {
            settled: Seq(1),
            answers: vec![(Seq(9), Bytes::from_static(b"nine"))],
        };
        session.restore(vec![(0, nine())], Vec::new());
        assert!(matches!(begin(&session, 10, 10), Seen::New));
        session.answered(Seq(10), Bytes::from_static(b"ten"));
        session.restore(vec![(0, nine())], Vec::new());
        assert!(matches!(begin(&session, 10, 10), Seen::Answered(answer) if answer == "ten"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_cannot_make_its_own_tickets() {
        let session = session();
        let guess = HashKey::new(session.secret, session.id.0);
        assert_ne!(session.ticket(&[1, 2]), guess.mac(&[1, 2]));
        let elsewhere = Session::new(session.id, session.secret, String::new());
        elsewhere.opens_with(b"another key", &Token::administrator());
        assert_ne!(session.ticket(&[1, 2]), elsewhere.ticket(&[1, 2]));
    }

    #[tokio::test(start_paused = true)]
    async fn tickets_are_those_of_one_session_with_the_rights_of_one_token() {
        let session = session();
        let again = || Session::new(session.id, session.secret, String::new());
        let token = Token::administrator();
        let back = again();
        let proof = session.proof(&DirRef::ROOT);
        assert!(back.is_of(b"signing key", &token, &DirRef::ROOT, proof), "after a restart");
        assert_eq!(session.ticket(&[1, 2]), back.ticket(&[1, 2]), "tickets survive it");
        let renewed = Token { expires: Some(Time::default()), ..token.clone() };
        assert!(back.is_of(b"signing key", &renewed, &DirRef::ROOT, proof));
        let elsewhere = DirRef { id: DirId(9), ..DirRef::ROOT };
        for (token, root, proof) in [
            (Token { path: "/a".into(), ..token.clone() }, DirRef::ROOT, proof),
            (Token { uid: Some(0), ..token.clone() }, DirRef::ROOT, proof),
            (Token { gids: vec![0], ..token.clone() }, DirRef::ROOT, proof),
            (Token { read_only: true, ..token.clone() }, DirRef::ROOT, proof),
            (token.clone(), elsewhere, proof),
            (token.clone(), DirRef { ino: Ino(9), ..DirRef::ROOT }, proof),
            (token.clone(), DirRef::ROOT, proof ^ 1),
        ] {
            assert!(!again().is_of(b"signing key", &token, &root, proof), "{token:?}");
            assert!(!back.is_of(b"signing key", &token, &root, proof), "{token:?}");
            let other = again();
            other.opens_with(b"signing key", &token);
            let same = token == Token::administrator();
            assert_eq!(other.ticket(&[1, 2]) == session.ticket(&[1, 2]), same);
        }
    }
}
