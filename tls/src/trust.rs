//! Trust: which servers a client takes for those of its file system.

use std::{path::Path, sync::Arc};

use rustls::{
    CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use sha2::{Digest as _, Sha256};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::{Error, PROVIDER, identity, names};

/// The authority that must have signed a server's certificate.
#[derive(Debug, Clone)]
pub enum Trust {
    /// The file system's own authority, by its fingerprint. The certificate must be that of a
    /// server, wherever it is.
    Authority([u8; 32]),
    /// Authorities that the user has given. The certificate must be for the host in the address.
    Roots(Arc<RootCertStore>),
}

impl Trust {
    /// Reads the certificates of authorities from a PEM file.
    ///
    /// # Errors
    /// When the file cannot be read, or holds none.
    pub fn read(file: &Path) -> Result<Trust, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in identity::read_certificates(file)? {
            roots.add(certificate).map_err(|error| Error::File {
                file: file.to_owned(),
                reason: format!("holds a certificate that is no authority's: {error}"),
            })?;
        }
        Ok(Trust::Roots(Arc::new(roots)))
    }

    /// The number of the server that a certificate names; `None`: no name tells, as with
    /// certificates of other authorities.
    pub(crate) fn server(&self, certificate: &CertificateDer<'_>) -> Option<u16> {
        match self {
            Trust::Authority(_) => {
                let certificate = EndEntityCert::try_from(certificate).ok()?;
                certificate.valid_dns_names().find_map(names::server_of)
            }
            Trust::Roots(_) => None,
        }
    }

    pub(crate) fn verifier(&self) -> Result<Arc<dyn ServerCertVerifier>, Error> {
        Ok(match self {
            Trust::Authority(fingerprint) => Arc::new(Pinned {
                fingerprint: *fingerprint,
                algorithms: PROVIDER.signature_verification_algorithms,
            }),
            Trust::Roots(roots) => {
                let builder = WebPkiServerVerifier::builder_with_provider(
                    Arc::clone(roots),
                    Arc::clone(&PROVIDER),
                );
                builder.build().map_err(|error| Error::Issue(error.to_string()))?
            }
        })
    }
}

/// Accepts the servers of one file system: their authority comes with the certificate, and is known
/// by its key.
#[derive(Debug)]
struct Pinned {
    fingerprint: [u8; 32],
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    fn is_authority(&self, certificate: &CertificateDer<'_>) -> bool {
        EndEntityCert::try_from(certificate).is_ok_and(|certificate| {
            let key = Sha256::digest(certificate.subject_public_key_info());
            <[u8; 32]>::from(key) == self.fingerprint
        })
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let stranger = || rustls::Error::from(CertificateError::UnknownIssuer);
        let mut sent = intermediates.iter();
        let authority = sent.find(|sent| self.is_authority(sent)).ok_or_else(stranger)?;
        let anchors = [anchor_from_trusted_cert(authority).map_err(|_| stranger())?];
        let certificate = EndEntityCert::try_from(end_entity).map_err(|_| stranger())?;
        let verified = certificate.verify_for_usage(
            self.algorithms.all,
            &anchors,
            &[],
            now,
            KeyUsage::server_auth(),
            None,
            None,
        );
        match verified {
            Ok(_) => {}
            Err(webpki::Error::CertExpired { .. }) => return Err(CertificateError::Expired.into()),
            Err(webpki::Error::CertNotValidYet { .. }) => {
                return Err(CertificateError::NotValidYet.into());
            }
            Err(_) => return Err(stranger()),
        }
        if certificate.valid_dns_names().any(|name| names::server_of(name).is_some()) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
