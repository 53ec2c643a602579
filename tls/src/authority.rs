//! The authority of a file system, derived from its signing key.
//!
//! All servers have the signing key, so all derive the same authority, and each signs a certificate
//! for itself. The key of the authority is that of HKDF (RFC 5869) under a label of its own, so it
//! tells nothing of the signing key and of what else is made from it.

use std::time::{Duration, SystemTime};

use hmac::{Hmac, KeyInit as _, Mac as _};
use p256::pkcs8::EncodePrivateKey as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData as _, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};

use crate::{Error, Identity, Names, names};

/// Salt of the derivation. Persisted, as tokens name the key that follows from it.
const SALT: &[u8] = b"pando certificate authority 1";
/// Validity of a certificate, from when it is issued. Servers issue a new one daily.
const VALID_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time by which a certificate is valid before it is issued: clocks differ.
const VALID_BEFORE: Duration = Duration::from_secs(24 * 3600);

/// The certificate authority of one file system.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    fingerprint: [u8; 32],
}

impl Authority {
    /// Derives the authority of the file system with this signing key.
    ///
    /// # Errors
    /// When the cryptographic library refuses the key.
    pub fn derive(signing_key: &[u8]) -> Result<Authority, Error> {
        let failed = |error: rcgen::Error| Error::Issue(error.to_string());
        let key = key_pair(signing_key)?;
        let fingerprint = Sha256::digest(key.subject_public_key_info()).into();
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name("Pando file system authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(9999, 12, 31);
        let certificate = params.self_signed(&key).map_err(failed)?;
        Ok(Authority {
            pem: certificate.pem(),
            certificate: certificate.into(),
            issuer: Issuer::new(params, key),
            fingerprint,
        })
    }

    /// SHA-256 of the authority's public key, as DER-encoded SubjectPublicKeyInfo.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// The authority's certificate as PEM, for programs that take a file.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Issues a certificate for a server: a week long, from a day before `now`.
    ///
    /// # Errors
    /// When the cryptographic library fails.
    pub fn issue(&self, names: &Names, now: SystemTime) -> Result<Identity, Error> {
        let failed = |error: rcgen::Error| Error::Issue(error.to_string());
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&names::name_of(names.server, &self.fingerprint));
        params.subject_alt_names = names.to_alternatives(&self.fingerprint);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let ends = now + VALID_FOR;
        params.not_before = (now - VALID_BEFORE).into();
        params.not_after = ends.into();
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        let chain = vec![certificate.into(), self.certificate.clone()];
        Identity::new(chain, PrivateKeyDer::Pkcs8(key.serialize_der().into()), ends)
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// The key of the authority. Nearly every string of 32 bytes is a key of P-256; the counter is for
/// the one in four thousand million that is not.
fn key_pair(signing_key: &[u8]) -> Result<KeyPair, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Issue(error.to_string());
    let mac = |key: &[u8], text: &[u8]| -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        mac.update(text);
        mac.finalize().into_bytes().into()
    };
    let extracted = mac(SALT, signing_key);
    let scalars = (0_u8..=u8::MAX).map(|counter| mac(&extracted, &[b'k', counter, 1]));
    let secret = scalars
        .filter_map(|scalar| p256::SecretKey::from_slice(&scalar).ok())
        .next()
        .ok_or_else(|| failed(&"no key follows from the signing key"))?;
    let der = secret.to_pkcs8_der().map_err(|error| failed(&error))?;
    KeyPair::from_pkcs8_der_and_sign_algo(&der.as_bytes().into(), &PKCS_ECDSA_P256_SHA256)
        .map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_derives_the_same_authority() {
        let one = Authority::derive(&[7; 32]).unwrap();
        let other = Authority::derive(&[7; 32]).unwrap();
        assert_eq!(one.fingerprint(), other.fingerprint());
        assert_ne!(one.fingerprint(), Authority::derive(&[8; 32]).unwrap().fingerprint());
        // Persisted: tokens name this fingerprint.
        let golden: String = one.fingerprint().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(golden, "8f18bc26aeeedeb8ef9d55c7974a885d9884a3161b27ee6d1a9121f559434ea1");
    }
}
