//! Programs that reach the region beside the mount, by the library that is preloaded into them.
//!
//! The library asks for simple operations on small files by path, each with one message
//! ([`base::preload`]). An operation runs on the table as those of the mount do, so both see one
//! file system at once. Whatever is not simple is answered with [`ASK_MOUNT`], and the library does
//! it through the mount: links and `..` in a path, rights that the owner's bits do not give, large
//! files, directories' names, and all that only the file system below can make right.
//!
//! The kernel may have cached whatever a mount was told of ([`Node::shown`]), so that is changed and
//! read through the mount alone. Directories are excepted: their names are not cached where they are
//! absent, and of their times the kernel is told that they have changed.
//!
//! Invariants: no program gets more by this than the kernel would give it through the mount; and
//! what a kernel may have cached is as it believes.
//!
//! [`Node::shown`]: crate::table::Node::shown

mod session;
#[cfg(test)]
mod tests;
mod walk;

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use base::{
    HashMap, Ino,
    preload::{ASK_BYTES, ASK_MOUNT, Answer, Ask, Kind, TOKEN_BYTES, VERSION, message_bytes},
};
use bytes::{Buf as _, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use self::session::Session;
use crate::Region;

/// Bytes that are read at once.
const READ_BYTES: usize = 8 << 10;

/// Has the kernel drop the attributes that it has of a directory.
pub type Tell = Arc<dyn Fn(Ino) + Send + Sync>;

/// A process at the other end of a connection, as the kernel tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The process.
    pub pid: u32,
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// The programs of a region that use it by the library. A clone is the same.
#[derive(Clone)]
pub struct Programs(Arc<Shared>);

struct Shared {
    region: Region,
    tell: Tell,
    /// The processes, by their number and one that they have chosen: a process may have several
    /// connections.
    sessions: Mutex<HashMap<(u32, u64), Weak<Session>>>,
    /// Whether the mount alone shows what is there: something is mounted in the region.
    is_covered: AtomicBool,
    /// Whether the kernel is to see all changes, as somebody watches.
    is_watched: AtomicBool,
}

impl Programs {
    /// The programs of a region that is in this process. `tell` has the kernel drop the attributes
    /// of a directory, and is called on the thread that serves programs. Whoever has the `token` is
    /// one of them.
    ///
    /// # Panics
    /// If the token is none, or the region has programs already.
    #[must_use]
    pub fn new(region: Region, token: String, tell: Tell) -> Programs {
        assert_eq!(token.len(), TOKEN_BYTES, "a token");
        region.0.token.set(token).expect("a region has its programs once");
        let (is_covered, is_watched) = <(AtomicBool, AtomicBool)>::default();
        let sessions = Mutex::default();
        Programs(Arc::new(Shared { region, tell, sessions, is_covered, is_watched }))
    }

    /// How many processes use the library at this moment.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.0.sessions.lock().len()
    }

    /// How many files processes have open beside the mount that they have written to.
    #[must_use]
    pub fn written_files(&self) -> usize {
        let sessions: Vec<_> = self.0.sessions.lock().values().filter_map(Weak::upgrade).collect();
        sessions.iter().map(|session| session.written_files()).sum()
    }

    /// Answers a process until its connection ends. What it had open is closed with its last one.
    pub async fn serve(&self, peer: Peer, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        let mut out = Vec::new();
        let mut session = None;
        loop {
            loop {
                let total = match buffer.first_chunk() {
                    None => break,
                    Some(first) => match message_bytes(*first, ASK_BYTES) {
                        Some(total) => total,
                        None => return,
                    },
                };
                if buffer.len() < total {
                    buffer.reserve(total - buffer.len());
                    break;
                }
                let Some(ask) = buffer.first_chunk().and_then(Ask::parse) else { return };
                let body = &buffer[ASK_BYTES..total];
                match (&session, ask.kind) {
                    (None, Kind::Hello) if ask.offset == VERSION && self.is_token(body) => {
                        session = Some(self.session(peer, ask.at));
                        out.extend_from_slice(&Answer::default().header(0));
                    }
                    (None, _) | (Some(_), Kind::Hello) => return,
                    (Some(_), Kind::Watch) => {
                        self.0.is_watched.store(true, Ordering::Relaxed);
                        out.extend_from_slice(&Answer::default().header(0));
                    }
                    (Some(_), kind) if self.is_for_mount(kind) => {
                        out.extend_from_slice(&MOUNT.header(0));
                    }
                    (Some(session), _) => session.run(&ask, body, &mut out).await,
                }
                buffer.advance(total);
            }
            if !out.is_empty() {
                if stream.write_all(&out).await.is_err() {
                    return;
                }
                out.clear();
            }
            buffer.reserve(READ_BYTES);
            match stream.read_buf(&mut buffer).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }

    /// Has programs use the mount alone from now on, or the messages again: what they see by these
    /// would not be what the mount shows.
    pub fn use_mount(&self, alone: bool) {
        self.0.is_covered.store(alone, Ordering::Relaxed);
    }

    /// Whether an operation is the mount's, whatever it is about.
    fn is_for_mount(&self, kind: Kind) -> bool {
        let is_covered = self.0.is_covered.load(Ordering::Relaxed);
        let is_watched = self.0.is_watched.load(Ordering::Relaxed);
        match kind {
            Kind::Hello | Kind::Close | Kind::Read | Kind::Sync | Kind::Watch => false,
            Kind::Write => is_watched,
            Kind::Stat | Kind::Access | Kind::Readlink => is_covered,
            Kind::Open | Kind::Mkdir | Kind::Unlink | Kind::Symlink | Kind::Set => {
                is_covered || is_watched
            }
        }
    }

    fn is_token(&self, body: &[u8]) -> bool {
        self.0.region.0.token.get().is_some_and(|token| token.as_bytes() == body)
    }

    /// The session of a process, which all its connections share.
    fn session(&self, peer: Peer, number: u64) -> Arc<Session> {
        // Dropped with the list free: its end needs it.
        let known;
        let mut sessions = self.0.sessions.lock();
        known = sessions.get(&(peer.pid, number)).and_then(Weak::upgrade);
        if let Some(session) = &known
            && session.peer == peer
        {
            return Arc::clone(session);
        }
        let end = Ending { programs: Arc::downgrade(&self.0), key: (peer.pid, number) };
        let session =
            Arc::new(Session::new(self.0.region.clone(), peer, Arc::clone(&self.0.tell), end));
        sessions.insert((peer.pid, number), Arc::downgrade(&session));
        session
    }
}

/// Takes a session out of the list when it ends.
struct Ending {
    programs: Weak<Shared>,
    key: (u32, u64),
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(programs) = self.programs.upgrade() else { return };
        let mut sessions = programs.sessions.lock();
        // Another one may have its place by now.
        if sessions.get(&self.key).is_some_and(|session| session.strong_count() == 0) {
            sessions.remove(&self.key);
        }
    }
}

/// The answer that the mount is to be asked.
const MOUNT: Answer = Answer { status: ASK_MOUNT, value: 0, stat: base::preload::Stat::NOTHING };
