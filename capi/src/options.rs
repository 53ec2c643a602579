//! How to connect: a value that a program builds step by step, so that later versions can add to it.

use std::{
    ffi::{c_char, c_int},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use base::Cred;
use client::AccessTimes;
use parking_lot::Mutex;

use crate::{
    args,
    error::{Failed, Result, status},
    table::Table,
    types::pando_options,
};

/// Encrypt connections to other machines, as the token says (the default).
pub const PANDO_TLS_ELSEWHERE: c_int = 0;
/// Encrypt all connections.
pub const PANDO_TLS_ALWAYS: c_int = 1;
/// Encrypt nothing: the token and all data can be read on the way.
pub const PANDO_TLS_NEVER: c_int = 2;

/// A read brings the access time up to date if it is older than the other times, or than a day.
pub const PANDO_ATIME_RELATIVE: c_int = 0;
/// Every read brings the access time up to date.
pub const PANDO_ATIME_ALWAYS: c_int = 1;
/// No read changes the access time.
pub const PANDO_ATIME_NEVER: c_int = 2;

/// Default of pando_options_set_connect_timeout().
const CONNECT_MS: u64 = 10_000;
const UMASK: u32 = 0o022;

static OPTIONS: Table<pando_options, Mutex<Options>> = Table::new(1);

/// Takes the lock of all handles, for a fork.
pub(crate) fn hold() {
    OPTIONS.hold();
}

/// Gives back what [`hold`] has taken.
pub(crate) fn release() {
    OPTIONS.release();
}

/// Makes the lock anew, in a child.
pub(crate) fn renew() {
    OPTIONS.renew();
}

#[derive(Clone)]
pub(crate) struct Options {
    /// `None`: the only user that the token lets act, or else root.
    pub(crate) cred: Option<Cred>,
    pub(crate) umask: u32,
    pub(crate) connect_within: Duration,
    pub(crate) within: Option<Duration>,
    pub(crate) name: String,
    pub(crate) access_cache_bytes: Option<u64>,
    pub(crate) read_cache_bytes: Option<u64>,
    pub(crate) dirty_bytes_max: Option<u64>,
    pub(crate) access_times: AccessTimes,
    pub(crate) tls: c_int,
    pub(crate) ca_file: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cred: None,
            umask: UMASK,
            connect_within: Duration::from_millis(CONNECT_MS),
            within: None,
            name: String::new(),
            access_cache_bytes: None,
            read_cache_bytes: None,
            dirty_bytes_max: None,
            access_times: AccessTimes::Relative,
            tls: PANDO_TLS_ELSEWHERE,
            ca_file: None,
        }
    }
}

/// The options that C has; the default for null.
pub(crate) fn get(options: *mut pando_options) -> Result<Options> {
    if options.is_null() {
        return Ok(Options::default());
    }
    Ok(OPTIONS.get(options).ok_or_else(closed)?.lock().clone())
}

fn closed() -> Failed {
    Failed::new(libc::EBADF, "these are no options, or they were freed")
}

fn set(options: *mut pando_options, change: impl FnOnce(&mut Options) -> Result<()>) -> c_int {
    status(|| {
        if options.is_null() {
            return Err(Failed::new(libc::EFAULT, "the options are null"));
        }
        change(&mut OPTIONS.get(options).ok_or_else(closed)?.lock())
    })
}

/// The most groups of a user: `NGROUPS_MAX` of Linux.
const GROUPS_MAX: usize = 65536;

/// Credentials as C passes them.
pub(crate) fn cred(uid: u32, gid: u32, groups: *const u32, count: usize) -> Result<Cred> {
    if count > GROUPS_MAX {
        return Err(Failed::invalid("nobody is in that many groups"));
    }
    Ok(Cred { uid, gid, groups: args::array(groups, count)?.to_vec() })
}

/// New options, with all defaults; null when there is no memory. Free them with
/// pando_options_free(); pando_connect() keeps nothing of them.
#[unsafe(no_mangle)]
pub extern "C" fn pando_options_new() -> *mut pando_options {
    OPTIONS.insert(Arc::default()).unwrap_or(std::ptr::null_mut())
}

/// Frees options. Null is fine.
#[unsafe(no_mangle)]
pub extern "C" fn pando_options_free(options: *mut pando_options) {
    drop(OPTIONS.remove(options));
}

/// The user for whom files are made and permissions are checked. Without: the only user that the
/// token lets act, or else root.
#[unsafe(no_mangle)]
pub extern "C" fn pando_options_set_user(
    options: *mut pando_options,
    uid: u32,
    gid: u32,
    groups: *const u32,
    groups_count: usize,
) -> c_int {
    set(options, |options| {
        options.cred = Some(cred(uid, gid, groups, groups_count)?);
        Ok(())
    })
}

/// Permission bits that new files and directories do not get (022). The process's own umask does
/// not count, as a library cannot read it safely. In a directory with a default ACL that counts
/// instead.
#[unsafe(no_mangle)]
pub extern "C" fn pando_options_set_umask(options: *mut pando_options, umask: u32) -> c_int {
    set(options, |options| {
        options.umask = umask & 0o777;
        Ok(())
    })
}

/// Milliseconds to wait for a session (10000).
#[unsafe(no_mangle)]
pub extern "C" fn pando_options_set_connect_timeout(
    options: *mut pando_options,
    milliseconds: u64,
) -> c_int {
    set(options, |options| {
        options.connect_within = Duration::from_millis(milliseconds);
        Ok(())
    })
}

/// Milliseconds to wait for each operation, then -ETIMEDOUT; 0 (the default) waits for a server
/// that is away until it is back. An operation that timed out may still happen. Waiting for a lock
/// has no limit.
#[unsafe(no_mangle)]
pub extern "C" fn pando_options_set_timeout(
    options: *mut pando_options,
    milliseconds: u64,
) -> c_int {
    set(options, |options| {
        options.within = (milliseconds > 0).then_some(Duration::from_millis(milliseconds));
        Ok(())
    })
}

/// Name that `pando sessions` shows for this session.
#[unsafe(no_mangle)]
pub extern "C" fn pando_options_set_name(
    options: *mut pando_options,
    name: *const c_char,
) -> c_int {
    set(options, |options| {
        options.name = args::text(name)?.unwrap_or_default().to_owned();
        Ok(())
    })
}

/// Most memory for directories that paths were resolved through, in bytes (64 MiB); 0 keeps none.
#[unsafe(no_mangle)]
pub extern "C" fn pando_options_set_path_cache(options: *mut pando_options, bytes: u64) -> c_int {
    set(options, |options| {
        options.access_cache_bytes = Some(bytes);
        Ok(())
    })
}

/// Most memory for contents that were read, in bytes (32 MiB); 0 keeps none and reads nothing ahead.
#[unsafe(no_mangle)]
pub extern "C" fn pando_options_set_read_cache(options: *mut pando_options, bytes: u64) -> c_int {
    set(options, |options| {
        options.read_cache_bytes = Some(bytes);
        Ok(())
    })
}

/// Most memory for contents that were written and not sent yet, in bytes (64 MiB); writers wait.
#[unsafe(no_mangle)]
pub extern "C" fn pando_options_set_write_buffer(options: *mut pando_options, bytes: u64) -> c_int {
    set(options, |options| {
        if bytes == 0 {
            return Err(Failed::invalid("a write buffer has at least one byte"));
        }
        options.dirty_bytes_max = Some(bytes);
        Ok(())
    })
}

/// When reads bring access times up to date: PANDO_ATIME_RELATIVE, _ALWAYS or _NEVER.
#[unsafe(no_mangle)]
pub extern "C" fn pando_options_set_atime(options: *mut pando_options, when: c_int) -> c_int {
    set(options, |options| {
        options.access_times = match when {
            PANDO_ATIME_RELATIVE => AccessTimes::Relative,
            PANDO_ATIME_ALWAYS => AccessTimes::Always,
            PANDO_ATIME_NEVER => AccessTimes::Never,
            _ => return Err(Failed::invalid("no such rule for access times")),
        };
        Ok(())
    })
}

/// Rule by which connections are encrypted: PANDO_TLS_ELSEWHERE, _ALWAYS or _NEVER. `ca_file` is a PEM file
/// with the authorities that certify the servers, or null for the authority that the token names.
#[unsafe(no_mangle)]
pub extern "C" fn pando_options_set_tls(
    options: *mut pando_options,
    which: c_int,
    ca_file: *const c_char,
) -> c_int {
    set(options, |options| {
        if !(PANDO_TLS_ELSEWHERE..=PANDO_TLS_NEVER).contains(&which) {
            return Err(Failed::invalid("no such rule for encryption"));
        }
        options.tls = which;
        options.ca_file =
            if ca_file.is_null() { None } else { Some(args::path(ca_file)?.to_owned()) };
        Ok(())
    })
}
