//! Connections to the region's process. Each carries one ask at a time.
//!
//! A thread takes a connection that is free, and a signal handler that interrupts it another one, so
//! nobody waits for itself. They have high numbers, which programs seldom use for something else.

use std::{
    ffi::c_int,
    sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
};

use base::preload::{ANSWER_BYTES, ASK_BYTES, Answer, Ask, Kind, VERSION, message_bytes};
use libc::iovec;

use crate::{raw, site};

/// Connections of a process. Threads beyond that wait for one.
const CONNECTIONS: usize = 32;
/// Handles that are closed with the next ask.
const CLOSES: usize = 16;
/// How far below the largest number descriptors of ours begin.
const FROM_TOP: u64 = 64;
/// Programs that raise their limit do not find ours in the middle.
const TOP: u64 = 1024;
/// How often a thread looks for a connection that is free.
const TURNS_MAX: usize = 100_000;
/// Most buffers of a body.
pub(crate) const PARTS_MAX: usize = 16;

struct Connection {
    is_taken: AtomicBool,
    /// The socket; -1: there is none.
    fd: AtomicI32,
}

static CONNECTED: [Connection; CONNECTIONS] =
    [const { Connection { is_taken: AtomicBool::new(false), fd: AtomicI32::new(-1) } };
        CONNECTIONS];

/// Handles to be closed; 0: none.
static CLOSED: [AtomicU64; CLOSES] = [const { AtomicU64::new(0) }; CLOSES];

/// The descriptor of which virtual ones are copies; -1: there is none yet.
static BASE: AtomicI32 = AtomicI32::new(-1);

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The region has gone, or refuses this process.
    Gone,
    /// A buffer of the program's cannot be used (EFAULT).
    Fault,
}

/// A connection that is this thread's.
struct Taken(&'static Connection);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}

/// Takes a connection that is free. Where jumps out of signal handlers have left none, there is none.
fn take() -> Option<Taken> {
    for _ in 0..TURNS_MAX {
        if let Some(taken) = CONNECTED.iter().find_map(Connection::take) {
            return Some(taken);
        }
        raw::sched_yield();
    }
    None
}

impl Connection {
    fn take(&'static self) -> Option<Taken> {
        let is_free =
            !self.is_taken.load(Ordering::Relaxed) && !self.is_taken.swap(true, Ordering::Acquire);
        is_free.then(|| Taken(self))
    }
}

/// A buffer to be sent.
pub(crate) fn part(bytes: &[u8]) -> iovec {
    iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// Sends an ask whose body is these buffers, and waits for its answer; the body of that is put into
/// `to`, and the number of its bytes is told.
pub(crate) fn ask(ask: &Ask, body: &[iovec], to: &mut [u8]) -> Result<(Answer, usize), Lost> {
    let taken = take().ok_or(Lost::Gone)?;
    let mut fd = taken.0.fd.load(Ordering::Relaxed);
    if fd == -1 {
        fd = connect()?;
        taken.0.fd.store(fd, Ordering::Relaxed);
    }
    let exchanged = exchange(fd, ask, body, to);
    if exchanged == Err(Lost::Gone) {
        taken.0.fd.store(-1, Ordering::Relaxed);
        raw::close(fd);
    }
    exchanged
}

/// An ask with one buffer, and no body of an answer.
pub(crate) fn ask_of(asked: &Ask, body: &[u8]) -> Result<Answer, Lost> {
    ask(asked, &[part(body)], &mut []).map(|(answer, _)| answer)
}

/// Closes a handle with the next ask.
pub(crate) fn close_later(handle: u64) {
    for closed in &CLOSED {
        let put = closed.compare_exchange(0, handle, Ordering::Relaxed, Ordering::Relaxed);
        if put.is_ok() {
            return;
        }
    }
    // There are enough: a question that changes nothing takes them along.
    let mut asked = Ask::new(Kind::Stat);
    asked.flags = base::preload::flag::HANDLE;
    asked.at = handle;
    if ask_of(&asked, &[]).is_ok() {
        close_later(handle);
    }
}

fn connect() -> Result<c_int, Lost> {
    let fd = raw::socket().map_err(|_| Lost::Gone)?;
    let connected = loop {
        match raw::connect(fd, site::socket()) {
            Err(libc::EINTR) => {}
            connected => break connected,
        }
    };
    let mut hello = Ask::new(Kind::Hello);
    (hello.at, hello.offset) = (site::number(), VERSION);
    let answer = match connected {
        Ok(_) => exchange_only(fd, &hello, &[], &[part(site::token())], &mut []),
        Err(_) => Err(Lost::Gone),
    };
    let high = match answer {
        Ok((Answer { status: 0, .. }, _)) => high(fd),
        Ok(_) | Err(_) => Err(Lost::Gone),
    };
    raw::close(fd);
    high
}

/// A copy of a descriptor with a high number.
fn high(fd: c_int) -> Result<c_int, Lost> {
    let least = raw::descriptors_max().min(TOP).saturating_sub(FROM_TOP);
    raw::fcntl(fd, libc::F_DUPFD_CLOEXEC, usize::try_from(least).unwrap_or(0))
        .map_err(|_| Lost::Gone)
}

fn exchange(fd: c_int, ask: &Ask, body: &[iovec], to: &mut [u8]) -> Result<(Answer, usize), Lost> {
    let closes = Closes::take();
    let exchanged = exchange_only(fd, ask, closes.headers(), body, to);
    if exchanged == Err(Lost::Fault) && !body.is_empty() {
        // The program's buffer was looked at before anything was sent.
        for handle in &closes.handles[..closes.count] {
            close_later(*handle);
        }
    }
    exchanged
}

/// Closes a handle at once, without waiting: somebody may ask what is open.
pub(crate) fn close_now(handle: u64) {
    close_later(handle);
    let Some(taken) = take() else { return };
    let fd = taken.0.fd.load(Ordering::Relaxed);
    // Without a connection the handle has gone with the last one, or is closed with the next ask.
    if fd == -1 {
        return;
    }
    let closes = Closes::take();
    let mut parts = [part(closes.headers())];
    if all(&mut parts, |parts| raw::send(fd, parts)).is_err() {
        taken.0.fd.store(-1, Ordering::Relaxed);
        raw::close(fd);
    }
}

/// Handles that are being closed, as messages.
struct Closes {
    headers: [u8; CLOSES * ASK_BYTES],
    handles: [u64; CLOSES],
    count: usize,
}

impl Closes {
    /// All that are to be closed.
    fn take() -> Closes {
        let mut closes =
            Closes { headers: [0; CLOSES * ASK_BYTES], handles: [0; CLOSES], count: 0 };
        for closed in &CLOSED {
            if closed.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let handle = closed.swap(0, Ordering::Relaxed);
            if handle != 0 {
                let mut close = Ask::new(Kind::Close);
                close.at = handle;
                let at = closes.count * ASK_BYTES;
                closes.headers[at..at + ASK_BYTES].copy_from_slice(&close.header(0));
                closes.handles[closes.count] = handle;
                closes.count += 1;
            }
        }
        closes
    }

    fn headers(&self) -> &[u8] {
        &self.headers[..self.count * ASK_BYTES]
    }
}

fn exchange_only(
    fd: c_int,
    ask: &Ask,
    before: &[u8],
    body: &[iovec],
    to: &mut [u8],
) -> Result<(Answer, usize), Lost> {
    let header = ask.header(body.iter().map(|part| part.iov_len).sum());
    let empty = part(&[]);
    let mut parts = [empty; PARTS_MAX + 2];
    (parts[0], parts[1]) = (part(before), part(&header));
    parts[2..2 + body.len()].copy_from_slice(body);
    all(&mut parts[..2 + body.len()], |parts| raw::send(fd, parts))?;
    receive(fd, to)
}

/// Receives an answer.
fn receive(fd: c_int, to: &mut [u8]) -> Result<(Answer, usize), Lost> {
    let mut header = [0; ANSWER_BYTES];
    let mut got = 0;
    // Most answers come at once, and whole. A body that cannot be put where it is to go must not keep
    // its header.
    let mut together = to.len();
    while got < ANSWER_BYTES {
        let rest = &mut header[got..];
        let here = iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let mut parts = [here, iovec { iov_base: to.as_mut_ptr().cast(), iov_len: together }];
        match some(|| raw::receive(fd, &mut parts)) {
            Ok(moved) => got += moved,
            Err(Lost::Fault) if together > 0 => together = 0,
            Err(lost) => return Err(lost),
        }
    }
    let first = [header[0], header[1], header[2], header[3]];
    let total = message_bytes(first, ANSWER_BYTES).ok_or(Lost::Gone)?;
    let len = total - ANSWER_BYTES;
    let here = got - ANSWER_BYTES;
    if len > to.len() || here > len {
        return Err(Lost::Gone);
    }
    let mut rest = len - here;
    while rest > 0 {
        let left = &mut to[len - rest..len];
        let mut parts = [iovec { iov_base: left.as_mut_ptr().cast(), iov_len: left.len() }];
        match some(|| raw::receive(fd, &mut parts)) {
            Ok(got) => rest -= got,
            Err(Lost::Gone) => return Err(Lost::Gone),
            Err(Lost::Fault) => {
                skip(fd, rest)?;
                return Err(Lost::Fault);
            }
        }
    }
    Ok((Answer::parse(&header), len))
}

/// Receives bytes that nobody can be given.
fn skip(fd: c_int, mut rest: usize) -> Result<(), Lost> {
    let mut bytes = [0; 512];
    while rest > 0 {
        let len = rest.min(bytes.len());
        let mut parts = [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len }];
        rest -= some(|| raw::receive(fd, &mut parts))?;
    }
    Ok(())
}

/// Moves some bytes, and at least one.
fn some(mut move_some: impl FnMut() -> raw::Result<usize>) -> Result<usize, Lost> {
    loop {
        match move_some() {
            Ok(0) => return Err(Lost::Gone),
            Ok(moved) => return Ok(moved),
            Err(libc::EINTR) => {}
            Err(libc::EFAULT) => return Err(Lost::Fault),
            Err(_) => return Err(Lost::Gone),
        }
    }
}

/// Moves all bytes of these buffers.
fn all(
    mut parts: &mut [iovec],
    move_some: impl Fn(&mut [iovec]) -> raw::Result<usize>,
) -> Result<(), Lost> {
    let mut is_begun = false;
    loop {
        let done = parts.iter().take_while(|part| part.iov_len == 0).count();
        parts = &mut parts[done..];
        if parts.is_empty() {
            return Ok(());
        }
        // After half a message there can be no other one.
        let mut moved =
            some(|| move_some(parts)).map_err(|lost| if is_begun { Lost::Gone } else { lost })?;
        is_begun = true;
        for part in &mut *parts {
            let here = moved.min(part.iov_len);
            // SAFETY: within the buffer, or at its end.
            part.iov_base = unsafe { part.iov_base.byte_add(here) };
            part.iov_len -= here;
            moved -= here;
        }
    }
}

/// A new descriptor that stands for a virtual one: the least number that is free.
pub(crate) fn placeholder(is_inherited: bool) -> raw::Result<c_int> {
    let mut base = BASE.load(Ordering::Relaxed);
    if base == -1 {
        let path = &site::socket().sun_path;
        // SAFETY: characters are bytes, and there is a NUL: the path is shorter than its place.
        let path = unsafe { std::slice::from_raw_parts(path.as_ptr().cast::<u8>(), path.len()) };
        let opened = raw::open(path, libc::O_PATH | libc::O_CLOEXEC)?;
        let moved = high(opened);
        raw::close(opened);
        base = moved.map_err(|_| libc::EMFILE)?;
        if let Err(there) = BASE.compare_exchange(-1, base, Ordering::Relaxed, Ordering::Relaxed) {
            raw::close(base);
            base = there;
        }
    }
    let command = if is_inherited { libc::F_DUPFD } else { libc::F_DUPFD_CLOEXEC };
    raw::fcntl(base, command, 0)
}

/// Whether a descriptor is one that the program does not know.
pub(crate) fn is_ours(fd: c_int) -> bool {
    fd > 2
        && (BASE.load(Ordering::Relaxed) == fd
            || CONNECTED.iter().any(|connection| connection.fd.load(Ordering::Relaxed) == fd))
}

/// Whether numbers of this range are of connections, and none outside can be had.
pub(crate) fn are_in(first: u32, last: u32) -> bool {
    let is_in = |fd: c_int| u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd));
    CONNECTED.iter().any(|connection| is_in(connection.fd.load(Ordering::Relaxed)))
}

/// The program is about to use numbers of this range for something else: connections go on under
/// other numbers, if there are.
pub(crate) fn give(first: u32, last: u32) {
    let is_in = |fd: c_int| u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd));
    for connection in &CONNECTED {
        if !is_in(connection.fd.load(Ordering::Relaxed)) {
            continue;
        }
        // A thread that waits for its answer has a moment for that.
        let taken = (0..TURNS_MAX / 100).find_map(|_| {
            let taken = connection.take();
            if taken.is_none() {
                raw::sched_yield();
            }
            taken
        });
        let fd = connection.fd.load(Ordering::Relaxed);
        if fd != -1 {
            let copy = high(fd).ok().filter(|copy| {
                !is_in(*copy) || {
                    raw::close(*copy);
                    false
                }
            });
            connection.fd.store(copy.unwrap_or(-1), Ordering::Relaxed);
        }
        drop(taken);
    }
    if is_in(BASE.load(Ordering::Relaxed)) {
        BASE.store(-1, Ordering::Relaxed);
    }
}

/// Forgets the connections of the process of which this one is a copy.
pub(crate) fn forget() {
    for connection in &CONNECTED {
        let fd = connection.fd.swap(-1, Ordering::Relaxed);
        if fd != -1 {
            raw::close(fd);
        }
        connection.is_taken.store(false, Ordering::Relaxed);
    }
    for closed in &CLOSED {
        closed.store(0, Ordering::Relaxed);
    }
}
