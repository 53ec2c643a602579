//! Values that messages are made of.

use base::{
    Attr, BlockId, Cred, DirId, EntryName, Epoch, FileKind, FsError, Ino, Seq, ShardId, Time,
};
use bytes::Bytes;
use smallvec::smallvec;

use crate::{
    BlockPart, ChunkSlices, DirRef, Entry, FileRef, Held, Lookup, OpenState, RequestHeader, Slice,
    SliceSource, Stand,
};

pub(super) fn name(text: &str) -> EntryName {
    EntryName::new(text.as_bytes()).unwrap()
}

pub(super) fn time(sec: i64) -> Time {
    Time { sec: 1_700_000_000 + sec, nsec: 999_999_999 }
}

pub(super) fn dir() -> DirRef {
    DirRef {
        id: DirId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
        ino: Ino::new(ShardId(3), 77),
        home: DirId(0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20),
        ticket: u64::MAX - 1,
    }
}

pub(super) fn file() -> FileRef {
    FileRef { dir: dir(), name: name("file"), ino: Ino::new(ShardId(4), 300) }
}

pub(super) fn attr() -> Attr {
    Attr {
        ino: Ino::new(ShardId(4), 300),
        kind: FileKind::File,
        mode: 0o4755,
        nlink: 2,
        uid: 1000,
        gid: 1001,
        rdev: 0x0801,
        size: 5_000_000_000,
        allocated: 4_194_304,
        atime: Time { sec: -1, nsec: 1 },
        mtime: time(2),
        ctime: time(3),
        btime: time(4),
    }
}

/// A directory; a symbolic link has a target in its place.
pub(super) fn entry() -> Entry {
    Entry {
        attr: Attr { kind: FileKind::Directory, ..attr() },
        dir: Some(dir()),
        target: Some(Bytes::from_static(b"../to")),
        whole: true,
    }
}

pub(super) fn part() -> BlockPart {
    BlockPart {
        block: BlockId(9 << 64 | 4),
        block_bytes: 70_000,
        offset: 4096,
        ticket: 0xdead_beef,
    }
}

pub(super) fn slices() -> [Slice; 3] {
    let embedded = SliceSource::Embedded(Bytes::from_static(b"bytes"));
    [
        Slice { start: 300, len: 5, source: embedded },
        Slice { start: 0, len: 65_536, source: SliceSource::Block(part()) },
        Slice { start: 4_000_000, len: 1, source: SliceSource::Zeros },
    ]
}

pub(super) fn chunk() -> ChunkSlices {
    ChunkSlices { chunk: 1200, slices: slices().to_vec() }
}

pub(super) fn open_states() -> [OpenState; 3] {
    let inline = OpenState::Inline(Bytes::from_static(b"whole file"));
    [inline, OpenState::Blocks(chunk()), OpenState::Withheld]
}

pub(super) fn cred() -> Cred {
    Cred { uid: 1000, gid: 1001, groups: vec![4, 27, 100_000] }
}

pub(super) fn lookup() -> Lookup {
    Lookup { dir: dir(), name: name("n\u{e4}me") }
}

pub(super) fn request_header() -> RequestHeader {
    RequestHeader {
        call: 300,
        shard: ShardId(4095),
        epoch: Epoch(2),
        seq: Seq(70_001),
        unanswered: Seq(69_999),
        stand: Stand { version: 12, way: smallvec![7, 0xfff_ffff], held: None },
        cred: cred(),
    }
}

pub(super) fn held_header() -> RequestHeader {
    let held = Held { dir: Some(dir().id), at: Some(time(5)), ino: Some(dir().ino), wants: true };
    RequestHeader { stand: Stand::on(held), ..request_header() }
}

pub(super) fn errors() -> Vec<FsError> {
    use FsError as E;
    vec![
        E::NotPermitted,
        E::NotFound,
        E::Io,
        E::NoSuchDevice,
        E::TooBig,
        E::BadHandle,
        E::TryAgain,
        E::Denied,
        E::Busy,
        E::Exists,
        E::CrossDevice,
        E::NotDirectory,
        E::IsDirectory,
        E::Invalid,
        E::TextBusy,
        E::FileTooBig,
        E::NoSpace,
        E::ReadOnly,
        E::TooManyLinks,
        E::Range,
        E::NameTooLong,
        E::NotEmpty,
        E::Loop,
        E::NoData,
        E::Overflow,
        E::NotSupported,
        E::Stale,
        E::QuotaExceeded,
        E::Interrupted,
        E::TimedOut,
        E::Deadlock,
        E::NoLocks,
    ]
}
