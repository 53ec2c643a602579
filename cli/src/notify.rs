//! Messages to systemd of a unit of `Type=notify`: that the server listens, or the mount is
//! mounted.
//!
//! `serve` and `mount` call it; without `NOTIFY_SOCKET` it does nothing.

use std::{
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

/// Says that the unit has started.
pub(crate) fn ready() {
    tell("READY=1");
}

fn tell(what: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, what) {
        tracing::warn!(%error, socket = %socket.display(), "cannot notify systemd");
    }
}

fn send(socket: &OsStr, what: &str) -> io::Result<()> {
    // A name that begins with `@` is no path.
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_a_path_or_a_name() {
        let name = format!("pando-notify.{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let heard = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "READY=1").unwrap();
        let mut said = [0; 64];
        let length = heard.recv(&mut said).unwrap();
        assert_eq!(&said[..length], b"READY=1");

        let path = std::env::temp_dir().join(&name);
        let heard = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(heard.recv(&mut said).unwrap(), length);
        std::fs::remove_file(&path).unwrap();
        assert!(send(path.as_os_str(), "READY=1").is_err());
    }
}
