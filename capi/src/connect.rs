//! Opening a session: servers, token, encryption.

use std::{
    env,
    ffi::{c_char, c_int},
    path::{Path, PathBuf},
    sync::Arc,
};

use base::Cred;
use client::{Client, Config, Connector, Encryption, Tasks, Tcp, Trust};
use wire::Token;

use crate::{
    args::{self, Out},
    driver::Driver,
    error::{Failed, Result, status},
    fork,
    fs::{Fs, handle},
    options::{self, Options, PANDO_TLS_ALWAYS, PANDO_TLS_NEVER},
    types::{pando_fs, pando_options},
};

/// A token is shorter.
const TOKEN_BYTES_MAX: u64 = 1 << 20;

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
    options: *mut pando_options,
    fs: *mut *mut pando_fs,
) -> c_int {
    status(|| {
        fork::prepare()?;
        let place = Out::new(fs)?;
        place.put(std::ptr::null_mut());
        let addresses = args::text(addresses)?.ok_or_else(|| Failed::invalid("no address"))?;
        let token_file = if token_file.is_null() { None } else { Some(args::path(token_file)?) };
        let session = connect(addresses, token_file, &options::get(options)?)?;
        place.put(handle(session)?);
        Ok(())
    })
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
    let client = client?;
    // Servers may join later, from anywhere.
    if options.tls == PANDO_TLS_NEVER {
        driver.is_in_clear();
    }
    Ok(Fs::new(client, cred, driver, options))
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
