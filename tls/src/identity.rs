//! The certificate and the key with which a server proves what it is.

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use x509_cert::{Certificate, der::Decode as _};

use crate::{Error, PROVIDER};

/// A server's certificate with its key.
#[derive(Debug, Clone)]
pub struct Identity {
    pub(crate) certified: Arc<CertifiedKey>,
    pub(crate) ends: SystemTime,
}

impl Identity {
    pub(crate) fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        ends: SystemTime,
    ) -> Result<Identity, Error> {
        let key = PROVIDER.key_provider.load_private_key(key)?;
        let certified = CertifiedKey::new(chain, key);
        certified.keys_match()?;
        Ok(Identity { certified: Arc::new(certified), ends })
    }

    /// Reads a certificate, with those of its authorities after it, and its key from PEM files.
    ///
    /// # Errors
    /// When a file cannot be read, holds something else, or the two do not fit.
    pub fn read(certificate: &Path, key: &Path) -> Result<Identity, Error> {
        let wrong = |file: &Path, reason: String| Error::File { file: file.to_owned(), reason };
        let chain = read_certificates(certificate)?;
        let first = chain.first().expect("there is at least one");
        let ends = ends(first).map_err(|reason| wrong(certificate, reason))?;
        let text = fs::read(key).map_err(|error| wrong(key, error.to_string()))?;
        let private = PrivateKeyDer::from_pem_slice(&text)
            .map_err(|error| wrong(key, format!("holds no private key in PEM: {error}")))?;
        Identity::new(chain, private, ends).map_err(|error| {
            let certificate = certificate.display();
            wrong(key, format!("is not the key of {certificate}, or not one for TLS: {error}"))
        })
    }

    /// Time at which the certificate expires.
    #[must_use]
    pub fn ends(&self) -> SystemTime {
        self.ends
    }

    /// Time until the certificate expires; zero once it has.
    #[must_use]
    pub fn left(&self, now: SystemTime) -> Duration {
        self.ends.duration_since(now).unwrap_or_default()
    }
}

/// Reads the certificates in a PEM file, of which there is at least one.
pub(crate) fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let wrong = |reason: String| Error::File { file: file.to_owned(), reason };
    let text = fs::read(file).map_err(|error| wrong(error.to_string()))?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(format!("holds a damaged certificate: {error}")))?;
    if chain.is_empty() {
        return Err(wrong("holds no certificate in PEM".into()));
    }
    Ok(chain)
}

fn ends(certificate: &CertificateDer<'_>) -> Result<SystemTime, String> {
    let certificate = Certificate::from_der(certificate)
        .map_err(|error| format!("holds a damaged certificate: {error}"))?;
    let since = certificate.tbs_certificate().validity().not_after.to_unix_duration();
    Ok(SystemTime::UNIX_EPOCH + since)
}
