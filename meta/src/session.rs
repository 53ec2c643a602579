//! Sessions: who is connected, what they may do, and what was answered to them.
//!
//! A session outlives its connections and a restart of the server: its record and its stored answers are in
//! the store. Requests of a session may come over several connections and cores.
//!
//! Exactly once: the answer to a mutating request is stored with its effect, and remembered here until the
//! client says that it has it. A number that is asked again gets that answer.
//!
//! A session's life: it is in use while a group of any core holds a request of it that is not written yet
//! ([`Session::enter`] to [`Session::leave`]). Whoever ends it first lets nobody in any more, then waits until
//! nobody is inside, and only then removes what it has; so nothing of it can come after its end. Nobody waits for
//! that with a group of its own, so nobody waits for somebody who waits.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use base::{BlockId, Cred, FsError, HashKey, Seq, SessionId, Time, limits::REQUESTS_IN_FLIGHT_MAX};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use wire::Token;

use crate::{
    error::{Fault, Result},
    unheard::Unheard,
};

/// One session.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) secret: u64,
    pub(crate) client: String,
    key: HashKey,
    state: Mutex<State>,
    /// Whether `State::unheard` has any: most sessions never do, and every request asks.
    any_unheard: AtomicBool,
    /// Groups that hold requests of it.
    uses: AtomicUsize,
    /// Nobody is let in any more. Set under the lock of the state.
    ending: AtomicBool,
    unused: Condvar,
    connections: AtomicUsize,
    /// Blocks of the session before this number may have been stored before the server started, and be lost.
    suspect_blocks: AtomicU64,
}

struct State {
    /// The token of the latest Hello; `None` after a restart, until the client is back.
    rights: Option<Rights>,
    heard: tokio::time::Instant,
    /// The answers of before the restart were taken in.
    restored: bool,
    answers: Answers,
    /// Opens of before the restart whose answers the client may not have.
    unheard: Vec<Unheard>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("Session").field(&self.id).finish()
    }
}

/// What the latest Hello showed.
#[derive(Clone)]
pub(crate) struct Rights {
    pub(crate) token: Token,
    pub(crate) kernel_checks: bool,
}

/// What a session may do without more ado, as one request finds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    /// See [`Token::trusted`].
    pub(crate) trusted: bool,
    /// Whether the server checks permissions, or the client's kernel has.
    pub(crate) checks: bool,
}

impl Standing {
    /// Of the server itself.
    pub(crate) const SERVER: Standing = Standing { trusted: true, checks: false };
    /// Of nobody.
    const NONE: Standing = Standing { trusted: false, checks: true };

    /// Whose an open is that `uid` asks for: where the kernel checks, it is the session's, whoever asks.
    pub(crate) fn opener(self, uid: u32) -> u32 {
        if self.checks { uid } else { 0 }
    }

    fn of(rights: &Rights) -> Standing {
        let checks = !rights.kernel_checks || rights.token.uid.is_some();
        Standing { trusted: rights.token.trusted(), checks }
    }
}

/// Answers to mutating requests that the client may still ask for.
#[derive(Default)]
struct Answers {
    /// The number of the first slot: the lowest that the client has no answer to.
    first: u64,
    slots: VecDeque<Slot>,
}

#[derive(Clone, Default)]
enum Slot {
    #[default]
    Unseen,
    Executing,
    Answered(Bytes),
}

/// What is known of a mutating request before it is executed.
pub(crate) enum Seen {
    /// It is new: execute it.
    New,
    /// This was the answer.
    Answered(Bytes),
    /// It is being executed, or its client has had the answer: it is an echo of an older connection.
    Echo,
}

impl Session {
    pub(crate) fn new(signing_key: &[u8], id: SessionId, secret: u64, client: String) -> Session {
        let state = State {
            rights: None,
            restored: false,
            heard: tokio::time::Instant::now(),
            answers: Answers { first: 1, slots: VecDeque::new() },
            unheard: Vec::new(),
        };
        let key = ticket_key(signing_key, id, secret);
        let (state, any_unheard) = (Mutex::new(state), AtomicBool::new(false));
        let (uses, ending, unused) = (AtomicUsize::new(0), AtomicBool::new(false), Condvar::new());
        let (connections, suspect_blocks) = (AtomicUsize::new(0), AtomicU64::new(0));
        Session {
            id,
            secret,
            client,
            key,
            state,
            any_unheard,
            uses,
            ending,
            unused,
            connections,
            suspect_blocks,
        }
    }

    /// How many connections it has.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// A connection belongs to it from now on, or does no more.
    pub(crate) fn count_connection(&self, joins: bool) {
        if joins {
            self.connections.fetch_add(1, Ordering::Relaxed);
        } else {
            self.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A connection joins the session; `false`: it is ending.
    pub(crate) fn join(&self, rights: Rights) -> bool {
        let mut state = self.state.lock();
        if self.ending.load(Ordering::SeqCst) {
            return false;
        }
        state.rights = Some(rights);
        state.heard = tokio::time::Instant::now();
        true
    }

    /// A group is about to execute a request of it; `false`: it is ending.
    pub(crate) fn enter(&self) -> bool {
        // Race: either side writes first and reads then, so at least one of them sees the other.
        self.uses.fetch_add(1, Ordering::SeqCst);
        let enters = !self.ending.load(Ordering::SeqCst);
        if !enters {
            self.leave();
        }
        enters
    }

    /// A group that held requests of it is written.
    pub(crate) fn leave(&self) {
        let last = self.uses.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.ending.load(Ordering::SeqCst) {
            // Whoever waits has not looked yet, or waits already.
            drop(self.state.lock());
            self.unused.notify_all();
        }
    }

    /// Lets nobody in any more; `true` when nobody is inside.
    pub(crate) fn begin_end(&self) -> bool {
        let state = self.state.lock();
        self.ending.store(true, Ordering::SeqCst);
        drop(state);
        self.uses.load(Ordering::SeqCst) == 0
    }

    /// Lets nobody in any more if nothing was heard of it for longer than `lease`, or its end had begun before;
    /// `false`: it goes on.
    pub(crate) fn begin_end_if_idle(&self, lease: Duration) -> bool {
        let state = self.state.lock();
        let ends = self.ending.load(Ordering::SeqCst) || state.heard.elapsed() > lease;
        self.ending.store(ends, Ordering::SeqCst);
        ends
    }

    /// Blocks this thread until nobody is inside. The caller holds no group.
    pub(crate) fn wait_until_unused(&self) {
        let mut state = self.state.lock();
        while self.uses.load(Ordering::SeqCst) > 0 {
            self.unused.wait(&mut state);
        }
    }

    /// The client came back when it had stored the blocks before this number.
    pub(crate) fn suspect_blocks(&self, before: u64) {
        self.suspect_blocks.store(before, Ordering::Relaxed);
    }

    /// Whether a block of the session may have been stored before the server started.
    pub(crate) fn suspects(&self, block: BlockId) -> bool {
        block.counter() < self.suspect_blocks.load(Ordering::Relaxed)
    }

    /// Whether nobody has come back to it since the server started.
    pub(crate) fn returns_after_restart(&self) -> bool {
        self.state.lock().rights.is_none()
    }

    /// The session is over: whoever still has it must open another.
    pub(crate) fn end(&self) {
        self.state.lock().rights = None;
    }

    /// The session was heard of.
    pub(crate) fn heard(&self) {
        self.state.lock().heard = tokio::time::Instant::now();
    }

    /// For how long nothing was heard.
    pub(crate) fn idle(&self) -> Duration {
        self.state.lock().heard.elapsed()
    }

    /// Whether the session may do this now, and as this user if it acts as one; how it stands.
    pub(crate) fn admit(
        &self,
        acts_as: Option<&Cred>,
        mutates: bool,
        now: Time,
    ) -> Result<Standing> {
        let state = self.state.lock();
        let rights = state.rights.as_ref().ok_or(Fault::Retry(wire::Retry::NoSession))?;
        if rights.token.expired(now) {
            return Err(Fault::Refused(wire::TokenError::Expired.to_string()));
        }
        acts_as.map_or(Ok(()), |cred| rights.token.may_act_as(cred))?;
        if mutates && rights.token.read_only {
            return Err(FsError::ReadOnly.into());
        }
        Ok(Standing::of(rights))
    }

    fn with_rights<T>(&self, ask: impl FnOnce(&Rights) -> T, otherwise: T) -> T {
        self.state.lock().rights.as_ref().map_or(otherwise, ask)
    }

    /// How the session stands now.
    pub(crate) fn standing(&self) -> Standing {
        self.with_rights(Standing::of, Standing::NONE)
    }

    /// Whether the session may change anything at all.
    pub(crate) fn read_only(&self) -> bool {
        self.with_rights(|rights| rights.token.read_only, true)
    }

    /// Whether the session may ask for what administrators ask.
    pub(crate) fn administers(&self) -> bool {
        self.with_rights(|rights| rights.token.administers(), false)
    }

    /// The token of its latest Hello; `None` while nobody has come back to it since the server started.
    pub(crate) fn token(&self) -> Option<Token> {
        self.state.lock().rights.as_ref().map(|rights| rights.token.clone())
    }

    /// Proof that this session was shown something.
    pub(crate) fn ticket(&self, parts: &[u64]) -> u64 {
        self.key.mac(parts)
    }

    /// Proof, for every server with the file system's key, that the session was opened at one of them.
    pub(crate) fn proof(&self) -> u64 {
        self.ticket(&[u64::from_le_bytes(*b"session ")])
    }

    /// Notes that request `seq` is about to be executed, unless it was before.
    pub(crate) fn begin(&self, seq: Seq, unanswered: Seq) -> Result<Seen> {
        let mut state = self.state.lock();
        state.answers.forget_before(unanswered.0.min(seq.0));
        state.answers.begin(seq.0)
    }

    /// Keeps the answer to `seq`.
    pub(crate) fn answered(&self, seq: Seq, answer: Bytes) {
        let mut state = self.state.lock();
        if let Some(slot) = state.answers.slot(seq.0) {
            *slot = Slot::Answered(answer);
        }
    }

    /// Nothing happened to `seq`: it may come again.
    pub(crate) fn not_executed(&self, seq: Seq) {
        let mut state = self.state.lock();
        if let Some(slot) = state.answers.slot(seq.0) {
            *slot = Slot::Unseen;
        }
    }

    /// Takes in the answers that were stored before a restart.
    ///
    /// Race: two connections may come back at the same time; the second one finds it done, and what was
    /// answered since must stay.
    pub(crate) fn restore(&self, mut stored: Vec<(Seq, Bytes)>, unheard: Vec<Unheard>) {
        stored.sort_unstable_by_key(|(seq, _)| *seq);
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.restored, true) {
            return;
        }
        self.any_unheard.store(!unheard.is_empty(), Ordering::Release);
        state.unheard = unheard;
        let Some((newest, _)) = stored.last() else { return };
        state.answers.first = newest.0.saturating_sub(REQUESTS_IN_FLIGHT_MAX - 1).max(1);
        for (seq, answer) in stored {
            if let Some(slot) = state.answers.slot(seq.0) {
                *slot = Slot::Answered(answer);
            }
        }
    }
}

impl Session {
    /// Keeps, of the opens that the client may not know of, those that `keep` says.
    pub(crate) fn keep_unheard(&self, keep: impl FnMut(&Unheard) -> bool) {
        if self.any_unheard.load(Ordering::Acquire) {
            let unheard = &mut self.state.lock().unheard;
            unheard.retain(keep);
            self.any_unheard.store(!unheard.is_empty(), Ordering::Release);
        }
    }
}

/// The key of a session's tickets. The client knows its id and its secret, so the server adds its own.
fn ticket_key(signing_key: &[u8], id: SessionId, secret: u64) -> HashKey {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let words: Vec<u64> = signing_key.chunks(8).map(word).collect();
    let server = HashKey {
        k0: words.first().copied().unwrap_or_default(),
        k1: words.get(1).copied().unwrap_or_default(),
    };
    let half = |which: u64| {
        let parts = [&[u64::from_le_bytes(*b"tickets "), which, id.0, secret], &words[..]].concat();
        server.mac(&parts)
    };
    HashKey { k0: half(0), k1: half(1) }
}

impl Answers {
    fn forget_before(&mut self, unanswered: u64) {
        while self.first < unanswered {
            self.first += 1;
            if self.slots.pop_front().is_none() {
                self.first = unanswered;
            }
        }
    }

    fn slot(&mut self, seq: u64) -> Option<&mut Slot> {
        let index = seq.checked_sub(self.first).filter(|index| *index < REQUESTS_IN_FLIGHT_MAX)?;
        let index = usize::try_from(index).ok()?;
        if self.slots.len() <= index {
            self.slots.resize(index + 1, Slot::Unseen);
        }
        self.slots.get_mut(index)
    }

    fn begin(&mut self, seq: u64) -> Result<Seen> {
        if seq < self.first {
            return Ok(Seen::Echo);
        }
        let too_far = "more requests in flight than a session may have";
        let slot = self.slot(seq).ok_or_else(|| Fault::Refused(too_far.to_owned()))?;
        Ok(match slot {
            Slot::Unseen => {
                *slot = Slot::Executing;
                Seen::New
            }
            Slot::Executing => Seen::Echo,
            Slot::Answered(answer) => Seen::Answered(answer.clone()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        Session::new(b"signing key", SessionId(1), 2, "test".into())
    }

    fn begin(session: &Session, seq: u64, unanswered: u64) -> Seen {
        session.begin(Seq(seq), Seq(unanswered)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_number_that_is_asked_again_gets_its_answer() {
        let session = session();
        assert!(matches!(begin(&session, 1, 1), Seen::New));
        assert!(matches!(begin(&session, 1, 1), Seen::Echo));
        session.answered(Seq(1), Bytes::from_static(b"one"));
        assert!(matches!(begin(&session, 1, 1), Seen::Answered(answer) if answer == "one"));
        assert!(matches!(begin(&session, 2, 2), Seen::New));
        assert!(matches!(begin(&session, 1, 1), Seen::Echo));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_comes_into_a_session_that_ends() {
        let session = session();
        let rights = || Rights { token: Token::administrator(), kernel_checks: false };
        assert!(session.join(rights()) && session.enter());
        let lease = Duration::from_secs(9);
        assert!(!session.begin_end_if_idle(lease), "it was heard of");
        assert!(!session.begin_end(), "somebody is inside");
        assert!(!session.enter() && !session.join(rights()));
        session.leave();
        session.wait_until_unused();
        assert!(session.begin_end() && session.begin_end_if_idle(lease));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_keeps_to_its_window() {
        let session = session();
        let beyond = Seq(REQUESTS_IN_FLIGHT_MAX + 1);
        assert!(matches!(session.begin(beyond, Seq(1)), Err(Fault::Refused(_))));
        assert!(matches!(begin(&session, beyond.0, 2), Seen::New));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_survive_a_restart() {
        let session = session();
        session.restore(
            vec![(Seq(9), Bytes::from_static(b"nine")), (Seq(7), Bytes::new())],
            Vec::new(),
        );
        assert!(matches!(begin(&session, 9, 7), Seen::Answered(answer) if answer == "nine"));
        assert!(matches!(begin(&session, 8, 7), Seen::New));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_restored_once() {
        let session = session();
        session.restore(vec![(Seq(9), Bytes::from_static(b"nine"))], Vec::new());
        assert!(matches!(begin(&session, 10, 10), Seen::New));
        session.answered(Seq(10), Bytes::from_static(b"ten"));
        session.restore(vec![(Seq(9), Bytes::from_static(b"nine"))], Vec::new());
        assert!(matches!(begin(&session, 10, 10), Seen::Answered(answer) if answer == "ten"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_cannot_make_its_own_tickets() {
        let session = session();
        let guess = HashKey { k0: session.secret, k1: session.id.0 };
        assert_ne!(session.ticket(&[1, 2]), guess.mac(&[1, 2]));
        let elsewhere = Session::new(b"another key", session.id, session.secret, String::new());
        assert_ne!(session.ticket(&[1, 2]), elsewhere.ticket(&[1, 2]));
        let again = Session::new(b"signing key", session.id, session.secret, String::new());
        assert_eq!(session.ticket(&[1, 2]), again.ticket(&[1, 2]), "tickets survive a restart");
    }
}
