//! A session: opened, used through its handle, and ended.

use std::{
    env,
    ffi::{c_char, c_int},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use base::{Cred, acl};
use client::{Client, Config, Connector, Encryption, Tasks, Tcp, Trust};
use wire::Token;

use crate::{
    args::{self, Out},
    driver::Driver,
    error::{Failed, Result, status},
    options::{self, Options, PANDO_TLS_ALWAYS, PANDO_TLS_NEVER},
    table::Table,
    types::pando_fs,
};

/// A token is shorter.
const TOKEN_BYTES_MAX: u64 = 1 << 20;

static SESSIONS: Table<pando_fs, Fs> = Table::new(2);

/// Takes the lock of all handles, for a fork.
pub(crate) fn hold() {
    SESSIONS.hold();
}

/// Gives back what [`hold`] has taken.
pub(crate) fn release() {
    SESSIONS.release();
}

/// A session, as one user.
pub(crate) struct Fs {
    /// Before the driver, on which its tasks run.
    pub(crate) client: Client,
    pub(crate) cred: Cred,
    umask: AtomicU32,
    within: Option<Duration>,
    /// The process that connected.
    pid: u32,
    session: Arc<Session>,
}

/// What all users of a session share.
struct Session {
    driver: Driver,
    /// Number of handles; the session ends with the last one.
    handles: AtomicUsize,
    closed: AtomicBool,
}

impl Fs {
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
        if std::process::id() != self.pid {
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

/// Opens a session at one of `addresses` (HOST:PORT, or several with commas between them) and puts
/// it to `fs`.
///
/// `token_file` is the file with the token; null: the file that the environment's PANDO_TOKEN_FILE
/// names, or else ~/.config/pando/token. `options` may be null. Waits for a server until the
/// time-out for connecting, then -ETIMEDOUT; -EACCES when the servers refuse the token.
///
/// A child of fork(2) cannot use the session: its calls return -EBADF. It connects anew.
#[unsafe(no_mangle)]
pub extern "C" fn pando_connect(
    addresses: *const c_char,
    token_file: *const c_char,
    options: *mut crate::types::pando_options,
    fs: *mut *mut pando_fs,
) -> c_int {
    status(|| {
        crate::fork::prepare();
        let place = Out::new(fs)?;
        place.put(std::ptr::null_mut());
        let addresses = args::text(addresses)?.ok_or_else(|| Failed::invalid("no address"))?;
        let token_file = if token_file.is_null() { None } else { Some(args::path(token_file)?) };
        let session = connect(addresses, token_file, &options::get(options)?)?;
        place.put(handle(session)?);
        Ok(())
    })
}

fn handle(fs: Fs) -> Result<*mut pando_fs> {
    SESSIONS.insert(Arc::new(fs)).ok_or_else(|| Failed::new(libc::EMFILE, "too many sessions"))
}

fn connect(addresses: &str, token_file: Option<&Path>, options: &Options) -> Result<Fs> {
    let addresses = addresses.split(',').map(address).collect::<Result<Vec<_>>>()?;
    let token = read_token(token_file)?;
    let network = network(&token, options)?;
    let driver = Driver::start().map_err(|error| {
        Failed::said(error.raw_os_error().unwrap_or(libc::EAGAIN), format!("no thread: {error}"))
    })?;
    let mut config = Config::new(addresses.clone(), token.as_str());
    config.dial = Arc::new(network);
    config.cred = options.cred.clone().or_else(|| only_user(&token)).unwrap_or(Cred::ROOT);
    config.client_name = client_name(&options.name);
    config.access_cache_bytes = options.access_cache_bytes.unwrap_or(config.access_cache_bytes);
    config.read_cache_bytes = options.read_cache_bytes.unwrap_or(config.read_cache_bytes);
    config.dirty_bytes_max = options.dirty_bytes_max.unwrap_or(config.dirty_bytes_max);
    config.access_times = options.access_times;
    config.tasks = Tasks::InTurns(driver.turns().clone());
    let cred = config.cred.clone();
    let connected = driver.run_within(Some(options.connect_within), Client::connect(config));
    let Ok(client) = connected else {
        let text = format!("no session in time at {}", addresses.join(","));
        return Err(Failed::said(libc::ETIMEDOUT, text));
    };
    Ok(Fs {
        client: client?,
        cred,
        umask: AtomicU32::new(options.umask),
        within: options.within,
        pid: std::process::id(),
        session: Arc::new(Session {
            driver,
            handles: AtomicUsize::new(1),
            closed: AtomicBool::new(false),
        }),
    })
}

fn address(address: &str) -> Result<String> {
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(address.to_owned())
        }
        Some(_) | None => Err(Failed::said(libc::EINVAL, format!("{address:?} is not HOST:PORT"))),
    }
}

fn client_name(name: &str) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = if name.is_empty() { "libpando" } else { name };
    format!("{host} pid {} {name}", std::process::id())
}

/// Reads a token from its file, or from where `pando` looks for one.
fn read_token(file: Option<&Path>) -> Result<String> {
    let file = match (file, env::var_os("PANDO_TOKEN_FILE"), env::var_os("HOME")) {
        (Some(file), ..) => file.to_owned(),
        (None, Some(file), _) => PathBuf::from(file),
        (None, None, Some(home)) => PathBuf::from(home).join(".config/pando/token"),
        (None, None, None) => return Err(Failed::new(libc::ENOENT, "no token file is known")),
    };
    let read = || {
        let mut text = String::new();
        let reader = std::fs::File::open(&file)?;
        std::io::Read::read_to_string(
            &mut std::io::Read::take(reader, TOKEN_BYTES_MAX),
            &mut text,
        )?;
        Ok(text.trim().to_owned())
    };
    read().map_err(|error: std::io::Error| {
        let text = format!("cannot read the token in {}: {error}", file.display());
        Failed::said(error.raw_os_error().unwrap_or(libc::EINVAL), text)
    })
}

/// The only user that a token lets act. `None`: the token is for any user, or invalid, which the
/// server will say.
fn only_user(token: &str) -> Option<Cred> {
    let token = Token::unverified(token).ok()?;
    Some(Cred { uid: token.uid?, gid: *token.gids.first()?, groups: Vec::new() })
}

fn network(token: &str, options: &Options) -> Result<Tcp> {
    if options.tls == PANDO_TLS_NEVER {
        return Ok(Tcp::new(Encryption::Never));
    }
    let refused = |error: &dyn std::fmt::Display| Failed::said(libc::EACCES, error.to_string());
    Token::unverified(token).map_err(|error| refused(&error))?;
    let connector = match &options.ca_file {
        Some(file) => {
            let trust = Trust::read(file).map_err(|error| refused(&error))?;
            Some(Connector::new(trust).map_err(|error| refused(&error))?)
        }
        None => client::connector_of(token),
    };
    if options.tls != PANDO_TLS_ALWAYS {
        return Ok(Tcp::new(Encryption::Elsewhere(connector)));
    }
    let connector = connector
        .ok_or_else(|| Failed::invalid("the token names no authority: give a file with one"))?;
    Ok(Tcp::new(Encryption::Always(connector)))
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
        let cred = options::cred(uid, gid, groups, groups_count)?;
        place.put(handle(Fs {
            client: fs.client.as_user(cred.clone()),
            cred,
            umask: AtomicU32::new(fs.umask.load(Ordering::Relaxed)),
            within: fs.within,
            pid: fs.pid,
            session: Arc::clone(&fs.session),
        })?);
        fs.session.handles.fetch_add(1, Ordering::AcqRel);
        Ok(())
    })
}

/// Sets the permission bits that new files and directories do not get; returns those before.
#[unsafe(no_mangle)]
pub extern "C" fn pando_umask(fs: *mut pando_fs, umask: u32) -> i64 {
    crate::error::guard(|| {
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
