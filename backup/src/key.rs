//! The backup key: 32 secret bytes, from which each object's own key is derived.

use std::fmt;

use ring::{
    aead::{AES_256_GCM, LessSafeKey, UnboundKey},
    hkdf::{HKDF_SHA256, KeyType, Salt},
};

use crate::seal::SALT_BYTES;

const OBJECT: &[u8] = b"pando backup object";
const ID: &[u8] = b"pando backup key id";
const TEXT: &str = "pando-backup-key-1:";

/// Number of bytes of a key's id.
pub(crate) const ID_BYTES: usize = 8;

/// The key of a backup. Without it nothing can be restored.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

struct Bytes<const N: usize>;

impl<const N: usize> KeyType for Bytes<N> {
    fn len(&self) -> usize {
        N
    }
}

impl Key {
    /// A key of these secret bytes.
    #[must_use]
    pub fn new(secret: [u8; 32]) -> Key {
        Key(secret)
    }

    /// The key as a line of text, for a file that its owner keeps.
    #[must_use]
    pub fn to_text(&self) -> String {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{TEXT}{hex}\n")
    }

    /// Reads [`Key::to_text`]; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Key> {
        let hex = text.trim().strip_prefix(TEXT)?;
        if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut secret = [0; 32];
        for (byte, digits) in secret.iter_mut().zip(0..) {
            *byte = u8::from_str_radix(hex.get(2 * digits..2 * digits + 2)?, 16).ok()?;
        }
        Some(Key(secret))
    }

    /// A short name of the key, which reveals nothing of it.
    #[must_use]
    pub fn id(&self) -> String {
        hex(&self.id_bytes())
    }

    pub(crate) fn id_bytes(&self) -> [u8; ID_BYTES] {
        let mut id = [0; ID_BYTES];
        Salt::new(HKDF_SHA256, &[])
            .extract(&self.0)
            .expand(&[ID], Bytes::<ID_BYTES>)
            .and_then(|okm| okm.fill(&mut id))
            .expect("eight bytes are within what HKDF gives");
        id
    }

    /// The key of the object with this salt.
    pub(crate) fn of_object(&self, salt: &[u8; SALT_BYTES]) -> LessSafeKey {
        let derived = Salt::new(HKDF_SHA256, salt).extract(&self.0);
        let okm = derived.expand(&[OBJECT], &AES_256_GCM);
        LessSafeKey::new(UnboundKey::from(okm.expect("a key is within what HKDF gives")))
    }
}

/// Shows the id only.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id())
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
