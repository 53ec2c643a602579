//! The bytes of a dump: frames, each with a checksum, from a header to a trailer.
//!
//! Persisted: described in `docs/BYTES.md`. A dump is written and read once from its beginning to
//! its end, by `cli`. A dump that was cut off anywhere, or changed anywhere, is found out: each
//! frame has a checksum, which covers its place in the stream, and the last frame says how many
//! there were.

use base::{
    BlockId, Decode as _, DecodeError, Encode as _, HashKey, IdHash, Locality, Reader, Time, codec,
};
use bytes::Bytes;

use crate::record::Config;

/// First bytes of a dump: a name, NUL, and the version (u16, little-endian).
///
/// Version 1 was the first. In 2 keys have three zones, and the header says more; in 3 content
/// records may end with a listing.
pub const DUMP_OPENING: [u8; 12] = *b"PANDODUMP\0\x03\0";
/// Maximum length of a frame, in bytes.
pub const DUMP_FRAME_BYTES_MAX: u32 = 16 << 20;

codec! {
    /// The file system that was dumped.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Header {
        /// Name of the file system, for people.
        pub name: String,
        /// Unique id of the file system.
        pub uuid: u128,
        /// Number of shards.
        pub shards: u16,
        /// Layout of the keys.
        pub keys: KeyLayout,
        /// Number of lanes of each shard.
        pub lanes: u8,
        /// Key that places names and directories.
        pub hash_key: HashKey,
        /// Policy for the home of new directories.
        pub locality: Locality,
        /// Contents up to this many bytes are stored in the entry, as formatted.
        pub inline_bytes_max: u32,
        /// URL of the block store, as given to format.
        pub blocks: String,
        /// Time of formatting.
        pub created: Time,
        /// Time of the dump.
        pub taken: Time,
    }
}

codec! {
    /// Layout of the keys of records.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum KeyLayout {
        /// All begin with their shard, as in on-disk versions before 12.
        Shards = 1,
        /// Keys have three zones.
        Zones = 2,
    }
}

codec! {
    /// The file system of which a dump of version 1 was taken; the fields are those of [`Header`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    #[expect(missing_docs, reason = "they are told there")]
    pub struct FirstHeader {
        pub name: String,
        pub uuid: u128,
        pub shards: u16,
        pub k0: u64,
        pub k1: u64,
        pub locality: Locality,
        pub inline_bytes_max: u32,
        pub blocks: String,
        pub created: Time,
        pub taken: Time,
    }
}

impl From<FirstHeader> for Header {
    fn from(first: FirstHeader) -> Header {
        Header {
            name: first.name,
            uuid: first.uuid,
            shards: first.shards,
            keys: KeyLayout::Shards,
            lanes: 1,
            hash_key: HashKey { k0: first.k0, k1: first.k1, ids: IdHash::Sip },
            locality: first.locality,
            inline_bytes_max: first.inline_bytes_max,
            blocks: first.blocks,
            created: first.created,
            taken: first.taken,
        }
    }
}

impl Header {
    pub(crate) fn of(config: &Config, taken: Time) -> Header {
        Header {
            name: config.name.clone(),
            uuid: config.uuid,
            shards: config.shards,
            keys: KeyLayout::Zones,
            lanes: config.lanes,
            hash_key: config.hash_key,
            locality: config.locality,
            inline_bytes_max: config.inline_bytes_max,
            blocks: config.blocks.clone(),
            created: config.created,
            taken,
        }
    }

    /// The bytes of the header, as sent.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        self.to_vec().into()
    }
}

codec! {
    /// Contents of a frame.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Frame {
        /// The first frame of a dump of version 1.
        FirstHeader(FirstHeader) = 1,
        /// Keys and values, the keys ascending from frame to frame.
        Records(Vec<(Bytes, Bytes)>) = 2,
        /// A block that records before it name, and its bytes.
        Block((BlockId, Bytes)) = 3,
        /// The last frame.
        Trailer(Trailer) = 4,
        /// The first frame.
        Header(Header) = 5,
    }
}

codec! {
    /// Totals of a dump.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Trailer {
        /// Number of frames before this one.
        pub frames: u64,
        /// Number of records in all frames.
        pub records: u64,
        /// Number of blocks in all frames.
        pub blocks: u64,
    }
}

/// Frames as they are written or read: their totals, and the checksum so far.
#[derive(Debug, Default)]
pub struct Frames {
    /// Totals that the trailer must have.
    pub seen: Trailer,
    /// CRC-32C of all frames.
    sum: u32,
}

/// Why a frame cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// The checksum differs.
    #[error("the dump is damaged: frame={0}")]
    Checksum(u64),
    /// The contents cannot be decoded.
    #[error("the dump cannot be read: frame={0}: {1}")]
    Decode(u64, DecodeError),
}

impl Frames {
    /// Encodes the next frame: its length, its contents, the checksum of all up to here.
    #[must_use]
    pub fn put(&mut self, frame: &Frame) -> Vec<u8> {
        let mut out = vec![0; 4];
        frame.encode(&mut out);
        let len = u32::try_from(out.len() - 4).expect("a frame is under 4 GiB");
        out[..4].copy_from_slice(&len.to_le_bytes());
        self.add(&out[4..]);
        out.extend_from_slice(&self.sum.to_le_bytes());
        self.count(frame);
        out
    }

    /// Decodes the next frame from `body`, its bytes without length and checksum.
    ///
    /// # Errors
    /// When the bytes were changed, or are no frame.
    pub fn take(&mut self, body: &Bytes, sum: [u8; 4]) -> Result<Frame, DumpError> {
        self.add(body);
        if self.sum.to_le_bytes() != sum {
            return Err(DumpError::Checksum(self.seen.frames));
        }
        let mut reader = Reader::new(body);
        let failed = |error| DumpError::Decode(self.seen.frames, error);
        let frame = Frame::decode(&mut reader).map_err(failed)?;
        if !reader.is_empty() {
            return Err(failed(DecodeError::Trailing));
        }
        self.count(&frame);
        Ok(frame)
    }

    /// The sum covers all frames before, so that none can be left out or change places.
    fn add(&mut self, body: &[u8]) {
        self.sum = crc32c::crc32c_append(self.sum, body);
    }

    fn count(&mut self, frame: &Frame) {
        match frame {
            Frame::Records(records) => self.seen.records += records.len() as u64,
            Frame::Block(_) => self.seen.blocks += 1,
            Frame::Header(_) | Frame::FirstHeader(_) => {}
            Frame::Trailer(_) => return,
        }
        self.seen.frames += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        let record = |key: &'static str| (Bytes::from_static(key.as_bytes()), Bytes::new());
        vec![
            Frame::Records(vec![record("a"), record("b")]),
            Frame::Block((BlockId(7), Bytes::from_static(b"block"))),
            Frame::Trailer(Trailer { frames: 2, records: 2, blocks: 1 }),
        ]
    }

    fn body(frame: &[u8]) -> (Bytes, [u8; 4]) {
        let (body, sum) = frame[4..].split_last_chunk::<4>().unwrap();
        (Bytes::copy_from_slice(body), *sum)
    }

    #[test]
    fn frames_come_back_in_order() {
        let (mut put, mut take) = (Frames::default(), Frames::default());
        for frame in frames() {
            let (body, sum) = body(&put.put(&frame));
            assert_eq!(take.take(&body, sum), Ok(frame));
        }
        assert_eq!(take.seen, Trailer { frames: 2, records: 2, blocks: 1 });
    }

    #[test]
    fn a_frame_that_was_changed_or_left_out_is_found() {
        let mut put = Frames::default();
        let written: Vec<_> = frames().iter().map(|frame| put.put(frame)).collect();
        let (second, sum) = body(&written[1]);
        assert_eq!(Frames::default().take(&second, sum), Err(DumpError::Checksum(0)));
        let (first, sum) = body(&written[0]);
        for at in 0..first.len() {
            let mut changed = first.to_vec();
            changed[at] ^= 1;
            let taken = Frames::default().take(&changed.into(), sum);
            assert_eq!(taken, Err(DumpError::Checksum(0)));
        }
    }
}
