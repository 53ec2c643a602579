//! Reasons why a connection is not made, with what to do about each.

use std::{io, path::PathBuf};

/// Reason why there is no TLS connection, or no certificate.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The certificate's time is over.
    #[error(
        "the server's certificate has expired: check the clocks of both machines, or renew a \
         certificate of your own"
    )]
    Expired,
    /// The certificate's time has not begun.
    #[error(
        "the server's certificate is not valid yet: the clock of one of both machines is wrong"
    )]
    NotYet,
    /// Another authority has signed the certificate.
    #[error(
        "the server is not one of the file system: another authority certifies it. Is the address \
         right, and the token? Servers with certificates of your own need --tls-ca"
    )]
    Stranger,
    /// The certificate cannot be used for another reason.
    #[error("the server's certificate cannot be used: {0}")]
    Unfit(rustls::Error),
    /// The caller has asked for something that is no host.
    #[error("{0:?} is neither a host's name nor an address")]
    Host(String),
    /// The certificate is for other names.
    #[error("the server's certificate is for {found}, not for {wanted}")]
    OtherName {
        /// Names of the certificate.
        found: String,
        /// The name that the caller has asked for.
        wanted: String,
    },
    /// The other end does not speak TLS.
    #[error("no TLS is spoken there: the server is an older one, or listens without encryption")]
    NoTls,
    /// The other end has refused this end.
    #[error("TLS failed: {0}")]
    Failed(#[from] rustls::Error),
    /// The other end was silent for too long.
    #[error("the TLS handshake was not finished in time")]
    Slow,
    /// The connection ended.
    #[error("the connection ended in the TLS handshake, as with servers without TLS: {0}")]
    Ended(String),
    /// A certificate, or a key, in a file cannot be used.
    #[error("{file}: {reason}")]
    File {
        /// The file.
        file: PathBuf,
        /// The fault of the file.
        reason: String,
    },
    /// No certificate can be made.
    #[error("no certificate can be made: {0}")]
    Issue(String),
}

impl Error {
    /// The reason behind an error of the stream.
    pub(crate) fn of(error: &io::Error) -> Error {
        let inner = error.get_ref();
        if let Some(error) = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            return Error::of_tls(error);
        }
        Error::Ended(error.to_string())
    }

    fn of_tls(error: &rustls::Error) -> Error {
        use rustls::{CertificateError as Certificate, InvalidMessage};
        match error {
            rustls::Error::InvalidCertificate(certificate) => match certificate {
                Certificate::Expired | Certificate::ExpiredContext { .. } => Error::Expired,
                Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => Error::NotYet,
                Certificate::UnknownIssuer | Certificate::BadSignature => Error::Stranger,
                Certificate::NotValidForNameContext { expected, presented } => Error::OtherName {
                    found: presented.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", "),
                    wanted: expected.to_str().into_owned(),
                },
                _ => Error::Unfit(error.clone()),
            },
            rustls::Error::InvalidMessage(
                InvalidMessage::InvalidContentType
                | InvalidMessage::UnknownProtocolVersion
                | InvalidMessage::MessageTooLarge
                | InvalidMessage::InvalidEmptyPayload,
            ) => Error::NoTls,
            _ => Error::Failed(error.clone()),
        }
    }
}

/// A name without the kind that the library writes before it: `DnsName("host")`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.map_or(name, |inner| inner.trim_matches('"'))
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Slow => io::ErrorKind::TimedOut,
            Error::Ended(_) => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}
