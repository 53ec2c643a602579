//! Sealed objects: bytes encrypted and authenticated with AES-256-GCM, in chunks.
//!
//! Persisted: an object is a header, and then chunks of 1 MiB, the last one shorter or empty.
//!
//! ```text
//! header  16 bytes  what the object is: "pando backup 1", a newline, 0, or "pando journal 1",
//!                   a newline
//!          8 bytes  id of the backup key
//!         16 bytes  salt, random for each object
//! chunk    n bytes  encrypted
//!         16 bytes  tag
//! ```
//!
//! Each object has a key of its own: HKDF-SHA256 of the backup key with the salt. A chunk's nonce is
//! its number (8 bytes BE), three zeros, and 1 for the last chunk or 0. The authenticated data are
//! the header and the object's name below the prefix of the backup. So a chunk that is changed,
//! moved, left out, or in an object of another name does not open, and neither does an object that
//! ends early.

use bytes::{Bytes, BytesMut};
use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};

use crate::{
    Error, Key, Result,
    key::{ID_BYTES, hex},
};

/// Number of bytes of a salt.
pub const SALT_BYTES: usize = 16;
/// Bytes of a chunk before it is sealed.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;
const TAG_BYTES: usize = 16;
const SEALED_CHUNK_BYTES: usize = CHUNK_BYTES + TAG_BYTES;
const MAGIC_BYTES: usize = 16;
const HEADER_BYTES: usize = MAGIC_BYTES + ID_BYTES + SALT_BYTES;

/// The kind of an object, which the seal authenticates: none is taken for one of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file or a manifest of a backup.
    Backup,
    /// A segment of a journal.
    Segment,
}

impl Kind {
    fn magic(self) -> [u8; MAGIC_BYTES] {
        match self {
            Kind::Backup => *b"pando backup 1\n\0",
            Kind::Segment => *b"pando journal 1\n",
        }
    }
}

/// Length of the object that holds so many bytes.
#[must_use]
pub fn sealed_bytes(bytes: u64) -> u64 {
    let chunks = bytes.div_ceil(CHUNK_BYTES as u64).max(1);
    HEADER_BYTES as u64 + bytes + chunks * TAG_BYTES as u64
}

/// State shared by sealing and opening: the object's key, its name, and the chunk's number.
struct Chunks {
    key: LessSafeKey,
    authenticated: Vec<u8>,
    number: u64,
}

impl Chunks {
    fn new(key: &Key, name: &str, header: &[u8], salt: &[u8; SALT_BYTES]) -> Chunks {
        let authenticated = [header, name.as_bytes()].concat();
        Chunks { key: key.of_object(salt), authenticated, number: 0 }
    }

    fn next(&mut self, last: bool) -> (Nonce, Aad<&[u8]>) {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.number.to_be_bytes());
        nonce[NONCE_LEN - 1] = u8::from(last);
        self.number += 1;
        (Nonce::assume_unique_for_key(nonce), Aad::from(&self.authenticated))
    }
}

/// Seals one object.
pub(crate) struct Sealer(Chunks);

impl Sealer {
    /// Begins the object of this name. The salt must be random and new. Returns the header, too.
    pub(crate) fn new(key: &Key, name: &str, salt: [u8; SALT_BYTES]) -> (Sealer, Bytes) {
        Sealer::of(Kind::Backup, key, name, salt)
    }

    fn of(kind: Kind, key: &Key, name: &str, salt: [u8; SALT_BYTES]) -> (Sealer, Bytes) {
        let header = [&kind.magic()[..], &key.id_bytes(), &salt].concat();
        (Sealer(Chunks::new(key, name, &header, &salt)), header.into())
    }

    /// Seals the next chunk: [`CHUNK_BYTES`] unless it is the last one.
    pub(crate) fn seal(&mut self, mut chunk: Vec<u8>, last: bool) -> Bytes {
        debug_assert!(last || chunk.len() == CHUNK_BYTES, "only the last chunk is short");
        let Chunks { key, .. } = &self.0;
        let key = key.clone();
        let (nonce, authenticated) = self.0.next(last);
        key.seal_in_place_append_tag(nonce, authenticated, &mut chunk)
            .expect("a chunk is far shorter than what the cipher takes");
        chunk.into()
    }

    /// Seals a small object at once.
    pub(crate) fn seal_all(key: &Key, name: &str, salt: [u8; SALT_BYTES], bytes: &[u8]) -> Bytes {
        seal(Kind::Backup, key, name, salt, bytes)
    }
}

/// Seals a small object of any kind at once. The salt must be random and new.
#[must_use]
pub fn seal(kind: Kind, key: &Key, name: &str, salt: [u8; SALT_BYTES], bytes: &[u8]) -> Bytes {
    let (mut sealer, header) = Sealer::of(kind, key, name, salt);
    let mut sealed = BytesMut::from(&header[..]);
    let mut rest = bytes;
    while rest.len() > CHUNK_BYTES {
        let (chunk, after) = rest.split_at(CHUNK_BYTES);
        sealed.extend_from_slice(&sealer.seal(chunk.to_vec(), false));
        rest = after;
    }
    sealed.extend_from_slice(&sealer.seal(rest.to_vec(), true));
    sealed.freeze()
}

/// Opens a small object of a kind at once.
///
/// # Errors
/// [`Error::Altered`] or [`Error::OtherKey`].
pub fn open(kind: Kind, key: &Key, name: &str, sealed: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut opener = Opener { kind, ..Opener::new(key, name) };
    let mut out = |chunk: &[u8]| {
        bytes.extend_from_slice(chunk);
        Ok(())
    };
    opener.take(sealed, &mut out)?;
    opener.end(&mut out)?;
    Ok(bytes)
}

/// Opens one object, whose bytes come in pieces of any length.
pub(crate) struct Opener {
    kind: Kind,
    key: Key,
    name: String,
    chunks: Option<Chunks>,
    buffer: BytesMut,
}

impl Opener {
    pub(crate) fn new(key: &Key, name: &str) -> Opener {
        let (key, name) = (key.clone(), name.to_owned());
        Opener { kind: Kind::Backup, key, name, chunks: None, buffer: BytesMut::new() }
    }

    /// Takes the next bytes of the object, and calls `out` with each chunk that they complete.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        out: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.chunks.is_none() && self.buffer.len() >= HEADER_BYTES {
            self.chunks = Some(self.read_header()?);
        }
        // Whether a chunk is the last one is known once a byte follows, or none does.
        while self.chunks.is_some() && self.buffer.len() > SEALED_CHUNK_BYTES {
            let chunk = self.buffer.split_to(SEALED_CHUNK_BYTES);
            self.open(chunk, false, out)?;
        }
        Ok(())
    }

    /// Opens what is left as the last chunk.
    pub(crate) fn end(mut self, out: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let last = std::mem::take(&mut self.buffer);
        self.open(last, true, out)
    }

    fn read_header(&mut self) -> Result<Chunks> {
        let header = self.buffer.split_to(HEADER_BYTES);
        let (magic, rest) = header.split_at(MAGIC_BYTES);
        let (id, salt) = rest.split_at(ID_BYTES);
        let altered = || Error::Altered(self.name.clone());
        if magic != self.kind.magic() {
            return Err(altered());
        }
        if id != self.key.id_bytes() {
            let (name, given) = (self.name.clone(), self.key.id());
            return Err(Error::OtherKey { name, found: hex(id), given });
        }
        let salt = salt.try_into().map_err(|_| altered())?;
        Ok(Chunks::new(&self.key, &self.name, &header, &salt))
    }

    fn open(
        &mut self,
        mut chunk: BytesMut,
        last: bool,
        out: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let altered = || Error::Altered(self.name.clone());
        let chunks = self.chunks.as_mut().ok_or_else(altered)?;
        let key = chunks.key.clone();
        let (nonce, authenticated) = chunks.next(last);
        let opened = key.open_in_place(nonce, authenticated, &mut chunk).map_err(|_| altered())?;
        out(opened)
    }

    /// Opens a small object at once.
    pub(crate) fn open_all(key: &Key, name: &str, sealed: &[u8]) -> Result<Vec<u8>> {
        open(Kind::Backup, key, name, sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "uuid/history/objects/1";

    fn key() -> Key {
        Key::new([7; 32])
    }

    fn opened(name: &str, sealed: &[u8]) -> Result<Vec<u8>> {
        Opener::open_all(&key(), name, sealed)
    }

    #[test]
    fn a_sealed_object_never_changes_its_bytes() {
        let sealed = Sealer::seal_all(&key(), NAME, [9; SALT_BYTES], b"pando");
        assert_eq!(
            hex(&sealed),
            concat!(
                "70616e646f206261636b757020310a00",
                "a5141a6558d937ce",
                "09090909090909090909090909090909",
                "cc811c025d05bc9f6e9f60cee9b8141e7b831f1739"
            )
        );
        assert_eq!(opened(NAME, &sealed).unwrap(), b"pando");
    }

    #[test]
    fn objects_of_all_lengths_open_to_what_was_sealed() {
        for len in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES] {
            let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
            let sealed = Sealer::seal_all(&key(), NAME, [1; SALT_BYTES], &bytes);
            assert_eq!(sealed.len() as u64, sealed_bytes(len as u64), "{len}");
            assert!(opened(NAME, &sealed).unwrap() == bytes, "{len}");
        }
    }

    #[test]
    fn an_object_that_is_cut_off_anywhere_does_not_open() {
        let sealed = Sealer::seal_all(&key(), NAME, [1; SALT_BYTES], &vec![5; 2 * CHUNK_BYTES + 3]);
        let chunk = |number: usize| HEADER_BYTES + number * SEALED_CHUNK_BYTES;
        for len in [0, 3, HEADER_BYTES, chunk(1), chunk(1) + 1, chunk(2), sealed.len() - 1] {
            let opened = opened(NAME, &sealed[..len]);
            assert!(matches!(opened, Err(Error::Altered(_))), "{len}");
        }
    }

    #[test]
    fn chunks_that_changed_places_or_came_from_elsewhere_do_not_open() {
        let sealed = Sealer::seal_all(&key(), NAME, [1; SALT_BYTES], &vec![5; 2 * CHUNK_BYTES + 3]);
        let chunk = |number: usize| HEADER_BYTES + number * SEALED_CHUNK_BYTES;
        let (first, second) = (&sealed[chunk(0)..chunk(1)], &sealed[chunk(1)..chunk(2)]);
        let swapped = [&sealed[..chunk(0)], second, first, &sealed[chunk(2)..]].concat();
        assert!(matches!(opened(NAME, &swapped), Err(Error::Altered(_))));
        let shorter = [&sealed[..chunk(0)], first, &sealed[chunk(2)..]].concat();
        assert!(matches!(opened(NAME, &shorter), Err(Error::Altered(_))));
        let longer = [&sealed[..], b"x"].concat();
        assert!(matches!(opened(NAME, &longer), Err(Error::Altered(_))));
    }

    #[test]
    fn every_changed_byte_is_found() {
        let sealed = Sealer::seal_all(&key(), NAME, [1; SALT_BYTES], b"some contents");
        for at in 0..sealed.len() {
            let mut changed = sealed.to_vec();
            changed[at] ^= 1;
            assert!(opened(NAME, &changed).is_err(), "{at}");
        }
    }

    #[test]
    fn an_object_opens_under_its_own_name_and_key_only() {
        let sealed = Sealer::seal_all(&key(), NAME, [1; SALT_BYTES], b"some contents");
        assert!(matches!(opened("uuid/history/objects/2", &sealed), Err(Error::Altered(_))));
        let other = Opener::open_all(&Key::new([8; 32]), NAME, &sealed);
        assert!(matches!(other, Err(Error::OtherKey { .. })));
    }

    #[test]
    fn an_object_opens_as_what_it_was_sealed_only() {
        let sealed = seal(Kind::Segment, &key(), NAME, [1; SALT_BYTES], b"x");
        assert_eq!(open(Kind::Segment, &key(), NAME, &sealed).unwrap(), b"x");
        assert!(matches!(opened(NAME, &sealed), Err(Error::Altered(_))));
        let mut turned = sealed.to_vec();
        turned[..MAGIC_BYTES].copy_from_slice(&Kind::Backup.magic());
        assert!(matches!(opened(NAME, &turned), Err(Error::Altered(_))));
    }

    #[test]
    fn a_key_is_read_from_its_text_and_nothing_else() {
        assert_eq!(Key::parse(&key().to_text()), Some(key()));
        let text = key().to_text();
        for wrong in ["", "pando-backup-key-1:07", &text[1..], &text[..text.len() - 2]] {
            assert_eq!(Key::parse(wrong), None, "{wrong}");
        }
        assert!(!format!("{:?}", key()).contains("0707"));
    }
}
