//! A session: used through its handle, and ended.

use std::{
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use base::{Cred, acl};
use client::Client;

use crate::{
    args::Out,
    driver::Driver,
    error::{Failed, Result, guard, status},
    options::{self, Options},
    table::{FORKS, Table},
    types::pando_fs,
};

static SESSIONS: Table<pando_fs, Fs> = Table::new(2);

/// Takes the lock of all handles, for a fork.
pub(crate) fn hold() {
    SESSIONS.hold();
}

/// Gives back what [`hold`] has taken.
pub(crate) fn release() {
    SESSIONS.release();
}

/// Makes the lock anew, in a child.
pub(crate) fn renew() {
    SESSIONS.renew();
}

/// A session, as one user.
pub(crate) struct Fs {
    /// Before the driver, on which its tasks run.
    pub(crate) client: Client,
    pub(crate) cred: Cred,
    umask: AtomicU32,
    within: Option<Duration>,
    /// The process that connected, see [`FORKS`].
    forks: u32,
    session: Arc<Session>,
}

/// The part of a session that all its users share.
struct Session {
    driver: Driver,
    /// Number of handles; the session ends with the last one.
    handles: AtomicUsize,
    closed: AtomicBool,
}

impl Fs {
    /// A session that was opened with a client of `driver`.
    pub(crate) fn new(client: Client, cred: Cred, driver: Driver, options: &Options) -> Fs {
        Fs {
            client,
            cred,
            umask: AtomicU32::new(options.umask),
            within: options.within,
            forks: FORKS.load(Ordering::Relaxed),
            session: Arc::new(Session {
                driver,
                handles: AtomicUsize::new(1),
                closed: AtomicBool::new(false),
            }),
        }
    }

    /// Finds the session of a handle.
    pub(crate) fn get(fs: *mut pando_fs) -> Result<Arc<Fs>> {
        if fs.is_null() {
            return Err(Failed::new(libc::EFAULT, "the session is null"));
        }
        let fs = SESSIONS
            .get(fs)
            .ok_or_else(|| Failed::new(libc::EBADF, "this is no session, or it was ended"))?;
        fs.check()?;
        Ok(fs)
    }

    /// Fails where the session is not to be used: it is another process's, or has ended.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_process()?;
        if self.session.closed.load(Ordering::Relaxed) {
            return Err(Failed::new(libc::EBADF, "the session was ended"));
        }
        Ok(())
    }

    pub(crate) fn check_process(&self) -> Result<()> {
        if FORKS.load(Ordering::Relaxed) != self.forks {
            return Err(Failed::new(
                libc::EBADF,
                "the session is one of another process: connect anew after a fork",
            ));
        }
        Ok(())
    }

    pub(crate) fn same_session(one: &Fs, other: &Fs) -> bool {
        Arc::ptr_eq(&one.session, &other.session)
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.session.driver
    }

    /// The longest that an operation may take.
    pub(crate) fn within(&self) -> Option<Duration> {
        self.within
    }

    /// Runs an operation within the time that the program allows.
    pub(crate) fn run<T, E: Into<Failed>>(
        &self,
        operation: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        match self.driver().run_within(self.within, operation) {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err(Failed::new(
                libc::ETIMEDOUT,
                "the operation took longer than its time-out, and may still happen",
            )),
        }
    }

    /// Runs an operation that takes as long as it takes.
    pub(crate) fn run_long<T, E: Into<Failed>>(
        &self,
        operation: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        self.driver().run(operation).map_err(Into::into)
    }

    /// The mode of something new.
    pub(crate) fn new_mode(&self, mode: u32) -> u32 {
        acl::with_umask(mode, self.umask.load(Ordering::Relaxed))
    }
}

/// Calls with a session; a status.
pub(crate) fn with(fs: *mut pando_fs, call: impl FnOnce(&Arc<Fs>) -> Result<()>) -> c_int {
    status(|| call(&Fs::get(fs)?))
}

/// The handle of a session for C.
pub(crate) fn handle(fs: Fs) -> Result<*mut pando_fs> {
    SESSIONS.insert(Arc::new(fs)).ok_or_else(|| Failed::new(libc::EMFILE, "too many sessions"))
}

/// Puts to `other` the same session, acting as another user.
///
/// Each is freed with pando_disconnect(), in any order; the session ends with the last one.
#[unsafe(no_mangle)]
pub extern "C" fn pando_as_user(
    fs: *mut pando_fs,
    uid: u32,
    gid: u32,
    groups: *const u32,
    groups_count: usize,
    other: *mut *mut pando_fs,
) -> c_int {
    with(fs, |fs| {
        let place = Out::new(other)?;
        place.put(std::ptr::null_mut());
        let cred = options::cred(uid, gid, groups, groups_count)?;
        // Race: another thread may end the last other handle, and the session with it.
        let one_more = |handles: usize| if handles == 0 { None } else { Some(handles + 1) };
        let counted =
            fs.session.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        counted.map_err(|_| Failed::new(libc::EBADF, "the session was ended"))?;
        let made = handle(Fs {
            client: fs.client.as_user(cred.clone()),
            cred,
            umask: AtomicU32::new(fs.umask.load(Ordering::Relaxed)),
            within: fs.within,
            forks: fs.forks,
            session: Arc::clone(&fs.session),
        });
        if made.is_err() {
            fs.session.handles.fetch_sub(1, Ordering::AcqRel);
        }
        place.put(made?);
        Ok(())
    })
}

/// Sets the permission bits that new files and directories do not get; returns those before.
#[unsafe(no_mangle)]
pub extern "C" fn pando_umask(fs: *mut pando_fs, umask: u32) -> i64 {
    guard(|| {
        let before = Fs::get(fs)?.umask.swap(umask & 0o777, Ordering::Relaxed);
        Ok(i64::from(before))
    })
}

/// Sends everything that was written, tells the server that the session ends, and frees the handle,
/// also when it returns an error. Calls of other threads that are under way end with an error.
///
/// Files and directories that are still open are to be closed all the same; until then their
/// functions return -EBADF. While there are other handles of the session (see pando_as_user()) only
/// this one is freed.
#[unsafe(no_mangle)]
pub extern "C" fn pando_disconnect(fs: *mut pando_fs) -> c_int {
    status(|| {
        if fs.is_null() {
            return Err(Failed::new(libc::EFAULT, "the session is null"));
        }
        let found = SESSIONS
            .remove(fs)
            .ok_or_else(|| Failed::new(libc::EBADF, "this is no session, or it was ended"))?;
        if let Err(error) = found.check_process() {
            // The parent's threads do not exist here, so nothing of it may be ended or freed.
            std::mem::forget(found);
            return Err(error);
        }
        found.end()
    })
}

impl Fs {
    fn end(&self) -> Result<()> {
        if self.session.handles.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(());
        }
        self.session.closed.store(true, Ordering::Relaxed);
        let closed = self.run(self.client.close());
        self.driver().end_idle();
        closed
    }
}
