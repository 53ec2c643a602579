//! A segment: some records of the engine's log, in one object.
//!
//! Persisted: bytes that [`backup::seal`] seals as [`Kind::Segment`](backup::seal::Kind), under
//! the name of [`Names::segment`](backup::Names::segment), which is authenticated. Numbers are
//! big-endian.
//!
//! ```text
//!  4  version: 2
//! 16  id of the file system
//!  8  id of the history
//!  4  number of the member
//!  8  generation
//!  8  run
//!  8  number of the segment, from 1
//! 16  random id of the segment
//! 16  id of the segment before, 0 for the first
//!  8  first sequence number
//!  8  last sequence number; an empty segment has first = last + 1
//!  8  number of the newest complete base when the segment was written, 0 for none
//!  8  last sequence number that this base covers
//!  4  lease of the process in milliseconds, 0 for none
//!  1  1 if the process has resigned, else 0
//!  2  length of the address
//!  n  the address at which the process serves, in UTF-8; empty in a fence
//!  4  number of records
//!  4  length of the records
//!  n  the records, as one block of LZ4
//! ```
//!
//! A record is its sequence number (8), the count of numbers that it has (4), the length of its
//! batch (4), and the batch. Records of a segment follow each other without a gap.
//!
//! A segment of version 1 has no lease, no resignation and no address.
//!
//! Always true of a segment that was read: its records are within its bounds, and no length in it
//! was trusted before it was compared with [`RECORDS_BYTES_MAX`] and with what is there.

use bytes::{Buf as _, BufMut as _, Bytes};

/// Version of segments.
const VERSION: u32 = 2;
/// The version before leases.
const VERSION_WITHOUT_LEASE: u32 = 1;
/// Length of the records of a segment, before they are compressed.
pub const RECORDS_BYTES_MAX: usize = 32 << 20;
const IDS_BYTES: usize = 4 + 16 + 8 + 4 + 8 + 8 + 8 + 16 + 16 + 8 + 8 + 8 + 8;
const LEASE_BYTES: usize = 4 + 1 + 2;
const LENGTHS_BYTES: usize = 4 + 4;
const RECORD_HEADER_BYTES: usize = 8 + 4 + 4;
/// A longer address is cut off: who reads it only shows it.
const ADDRESS_BYTES_MAX: usize = 300;
/// Length of a segment without records and without an address: LZ4 has one byte for nothing.
pub(crate) const FENCE_BYTES: usize = IDS_BYTES + LEASE_BYTES + LENGTHS_BYTES + 1;

/// One record of the engine's log: a batch, or several that the engine merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Sequence number of the first change in the batch.
    pub sequence: u64,
    /// Number of sequence numbers that the batch has, at least 1.
    pub count: u32,
    /// The batch.
    pub batch: Bytes,
}

impl Record {
    /// The last sequence number of the record.
    #[must_use]
    pub fn last(&self) -> u64 {
        (self.sequence + u64::from(self.count)).saturating_sub(1)
    }

    /// Length of the record in a segment, before compression: for callers that fill segments.
    #[must_use]
    pub fn bytes(&self) -> usize {
        RECORD_HEADER_BYTES + self.batch.len()
    }
}

/// A base as a segment names it: its number, and the last sequence number that it covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    /// Number of the base, 0 for none.
    pub base: u64,
    /// Last sequence number that the base covers.
    pub position: u64,
}

/// The time for which the process that wrote a segment may serve, from when it began to put it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Milliseconds; 0: the process serves whatever the journal does, and nobody may take over from
    /// it unasked.
    pub millis: u32,
    /// The process serves no more: the lease has ended.
    pub resigned: bool,
    /// Where the process serves, for people; empty where it is not said.
    pub address: String,
}

/// All of a segment but its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Id of the file system.
    pub uuid: u128,
    /// Id of the history.
    pub history: u64,
    /// Number of the member.
    pub member: u32,
    /// Generation of the member's process.
    pub generation: u64,
    /// Run of the process.
    pub run: u64,
    /// Number of the segment, from 1.
    pub number: u64,
    /// Random id of the segment.
    pub id: u128,
    /// Id of the segment before, 0 for the first.
    pub before: u128,
    /// First sequence number; that after `last` in a segment without records.
    pub first: u64,
    /// Last sequence number of the journal up to and with this segment.
    pub last: u64,
    /// The newest complete base when the segment was written.
    pub covered: Covered,
    /// For how long the process may serve.
    pub lease: Lease,
}

impl Header {
    /// Whether the segment has no records, as a fence or a renewal of a lease.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first > self.last
    }
}

/// A segment that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// All but the records.
    pub header: Header,
    /// The records, rising and without a gap.
    pub records: Vec<Record>,
    /// Length of the object.
    pub stored_bytes: u64,
}

impl Segment {
    /// The records that have numbers beyond `position`.
    pub fn beyond(&self, position: u64) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| record.last() > position)
    }
}

/// Length of a segment's bytes when nothing in it can be compressed.
pub(crate) fn bytes_max() -> usize {
    let records = lz4_flex::block::get_maximum_output_size(RECORDS_BYTES_MAX);
    FENCE_BYTES + ADDRESS_BYTES_MAX + records
}

/// Writes a segment. The records fit the header, and are at most [`RECORDS_BYTES_MAX`] long.
pub(crate) fn encode(header: &Header, records: &[Record]) -> Vec<u8> {
    let len: usize = records.iter().map(Record::bytes).sum();
    let mut plain = Vec::with_capacity(len);
    for record in records {
        plain.put_u64(record.sequence);
        plain.put_u32(record.count);
        plain.put_u32(u32::try_from(record.batch.len()).expect("a batch is shorter than 32 MiB"));
        plain.put_slice(&record.batch);
    }
    let packed = lz4_flex::block::compress(&plain);
    let address = cut_off(&header.lease.address);
    let mut out = Vec::with_capacity(FENCE_BYTES + address.len() + packed.len());
    out.put_u32(VERSION);
    out.put_u128(header.uuid);
    out.put_u64(header.history);
    out.put_u32(header.member);
    out.put_u64(header.generation);
    out.put_u64(header.run);
    out.put_u64(header.number);
    out.put_u128(header.id);
    out.put_u128(header.before);
    out.put_u64(header.first);
    out.put_u64(header.last);
    out.put_u64(header.covered.base);
    out.put_u64(header.covered.position);
    out.put_u32(header.lease.millis);
    out.put_u8(header.lease.resigned.into());
    out.put_u16(u16::try_from(address.len()).expect("addresses are cut off"));
    out.put_slice(address.as_bytes());
    out.put_u32(u32::try_from(records.len()).expect("records of 32 MiB are fewer"));
    out.put_u32(u32::try_from(plain.len()).expect("records are at most 32 MiB"));
    out.put_slice(&packed);
    out
}

/// An address, if it is not too long.
fn cut_off(address: &str) -> &str {
    let mut end = address.len().min(ADDRESS_BYTES_MAX);
    while !address.is_char_boundary(end) {
        end -= 1;
    }
    &address[..end]
}

/// Reads a segment; the error says what is wrong with its bytes.
pub(crate) fn decode(bytes: &[u8]) -> Result<(Header, Vec<Record>), String> {
    let mut input = bytes;
    let cut = || "its header is cut off".to_owned();
    let version = input.try_get_u32().map_err(|_| cut())?;
    if version != VERSION && version != VERSION_WITHOUT_LEASE {
        return Err(format!("its version is {version}, this program knows {VERSION}"));
    }
    if bytes.len() < IDS_BYTES {
        return Err(cut());
    }
    let mut header = Header {
        uuid: input.get_u128(),
        history: input.get_u64(),
        member: input.get_u32(),
        generation: input.get_u64(),
        run: input.get_u64(),
        number: input.get_u64(),
        id: input.get_u128(),
        before: input.get_u128(),
        first: input.get_u64(),
        last: input.get_u64(),
        covered: Covered { base: input.get_u64(), position: input.get_u64() },
        lease: Lease::default(),
    };
    if version == VERSION {
        header.lease = lease(&mut input).ok_or_else(cut)??;
    }
    if input.len() < LENGTHS_BYTES {
        return Err(cut());
    }
    let (count, len) = (input.get_u32() as usize, input.get_u32() as usize);
    if len > RECORDS_BYTES_MAX || count > len / RECORD_HEADER_BYTES {
        return Err(format!("it says that {count} records have {len} bytes"));
    }
    let mut plain = vec![0; len];
    let written = lz4_flex::block::decompress_into(input, &mut plain);
    if written.as_ref().ok() != Some(&len) {
        return Err("its records cannot be decompressed".to_owned());
    }
    let records = records(plain.into(), count)?;
    let bounds = match (records.first(), records.last()) {
        (Some(first), Some(last)) => (first.sequence, last.last()),
        _ => (header.last.saturating_add(1), header.last),
    };
    if header.first == 0 || bounds != (header.first, header.last) {
        return Err("its records are not those that its header names".to_owned());
    }
    Ok((header, records))
}

/// Reads a lease; `None` where the bytes end too early.
fn lease(input: &mut &[u8]) -> Option<Result<Lease, String>> {
    let millis = input.try_get_u32().ok()?;
    let resigned = input.try_get_u8().ok()?;
    let len = usize::from(input.try_get_u16().ok()?);
    let address = input.split_off(..len)?;
    let lease = match (resigned, str::from_utf8(address)) {
        (0 | 1, Ok(address)) => {
            Ok(Lease { millis, resigned: resigned == 1, address: address.to_owned() })
        }
        _ => Err("its lease is not one".to_owned()),
    };
    Some(lease)
}

fn records(mut plain: Bytes, count: usize) -> Result<Vec<Record>, String> {
    let mut records = Vec::<Record>::with_capacity(count);
    for _ in 0..count {
        if plain.len() < RECORD_HEADER_BYTES {
            return Err("a record is cut off".to_owned());
        }
        let (sequence, count, len) = (plain.get_u64(), plain.get_u32(), plain.get_u32() as usize);
        if len > plain.len() {
            return Err("a record is cut off".to_owned());
        }
        let fits = records.last().is_none_or(|before| before.last() + 1 == sequence);
        if !fits || count == 0 || sequence.checked_add(u64::from(count)).is_none() {
            return Err(format!("record {sequence} does not follow the one before"));
        }
        records.push(Record { sequence, count, batch: plain.split_to(len) });
    }
    if plain.is_empty() { Ok(records) } else { Err("bytes follow its records".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            uuid: 0x0102,
            history: 3,
            member: 4,
            generation: 5,
            run: 6,
            number: 7,
            id: 8,
            before: 9,
            first: 10,
            last: 12,
            covered: Covered { base: 13, position: 9 },
            lease: Lease { millis: 9000, resigned: true, address: "a:1".to_owned() },
        }
    }

    fn some() -> Vec<Record> {
        let record =
            |sequence, count, batch| Record { sequence, count, batch: Bytes::from_static(batch) };
        vec![record(10, 2, b"pando"), record(12, 1, b"")]
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_segment_never_changes_its_bytes() {
        let golden = concat!(
            "00000002",
            "00000000000000000000000000000102",
            "0000000000000003",
            "00000004",
            "0000000000000005",
            "0000000000000006",
            "0000000000000007",
            "00000000000000000000000000000008",
            "00000000000000000000000000000009",
            "000000000000000a",
            "000000000000000c",
            "000000000000000d",
            "0000000000000009",
            "00002328",
            "01",
            "0003",
            "613a31",
            "00000002",
            "00000025",
        );
        let bytes = encode(&header(), &some());
        assert_eq!(hex(&bytes[..RECORDS_AT]), golden);
        assert_eq!(hex(&bytes[RECORDS_AT..]), RECORDS);
        assert_eq!(decode(&bytes), Ok((header(), some())));
    }

    /// Where the records of [`header`] begin.
    const RECORDS_AT: usize = FENCE_BYTES - 1 + "a:1".len();

    #[test]
    fn a_segment_from_before_leases_has_none() {
        let bytes = encode(&header(), &some());
        let lease = IDS_BYTES..RECORDS_AT - LENGTHS_BYTES;
        let mut old = [&bytes[..lease.start], &bytes[lease.end..]].concat();
        old[3] = 1;
        let header = Header { lease: Lease::default(), ..header() };
        assert_eq!(decode(&old), Ok((header, some())));
    }

    #[test]
    fn an_address_that_is_too_long_is_cut_off() {
        let long = |address: &str| {
            let lease = Lease { address: address.to_owned(), ..Lease::default() };
            let bytes = encode(&Header { lease, ..header() }, &some());
            decode(&bytes).unwrap().0.lease.address
        };
        assert_eq!(long(&"a".repeat(299)), "a".repeat(299));
        assert_eq!(long(&"a".repeat(70_000)), "a".repeat(300));
        assert_eq!(long(&"\u{20ac}".repeat(101)), "\u{20ac}".repeat(100));
    }

    const RECORDS: &str = "12000100e20a000000020000000570616e646f1400a0000c0000000100000000";

    #[test]
    fn an_empty_segment_is_read_as_it_was_written() {
        let header = Header { first: 13, last: 12, ..header() };
        assert!(header.is_empty());
        assert_eq!(decode(&encode(&header, &[])), Ok((header, Vec::new())));
    }

    #[test]
    fn segments_that_are_cut_off_or_longer_are_refused() {
        let bytes = encode(&header(), &some());
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "{len}");
        }
        assert!(decode(&[&bytes[..], b"x"].concat()).is_err());
    }

    #[test]
    fn hostile_lengths_are_refused_before_memory_is_taken() {
        let bytes = encode(&header(), &some());
        for (at, what) in [(RECORDS_AT - 8, "count"), (RECORDS_AT - 4, "length")] {
            for value in [0, 1, u32::MAX, (32 << 20) + 1] {
                let mut wrong = bytes.clone();
                wrong[at..at + 4].copy_from_slice(&value.to_be_bytes());
                assert!(decode(&wrong).is_err(), "{what} {value}");
            }
        }
    }

    #[test]
    fn no_changed_byte_makes_the_decoder_panic() {
        let bytes = encode(&header(), &some());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                let _ = decode(&changed);
            }
        }
    }

    #[test]
    fn records_that_do_not_follow_each_other_are_refused() {
        let mut gap = some();
        gap[1].sequence = 13;
        assert!(decode(&encode(&Header { last: 13, ..header() }, &gap)).is_err());
        let mut none = some();
        none[1].count = 0;
        assert!(decode(&encode(&Header { last: 11, ..header() }, &none)).is_err());
        assert!(decode(&encode(&Header { first: 9, ..header() }, &some())).is_err());
    }

    #[test]
    fn another_version_is_refused() {
        let mut bytes = encode(&header(), &some());
        bytes[3] = 3;
        assert!(decode(&bytes).unwrap_err().contains("its version is 3"));
    }
}
