//! Golden bytes of every answer, as they reach the other end of the descriptor.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::*;
use crate::types::{LockType, NodeId};

/// A reply to request 0x0102, sent by `send`; gives back the body after the header is checked.
fn sent(opcode: u32, send: impl FnOnce(Reply)) -> (i32, Vec<u8>) {
    let (ours, theirs) = socket();
    let channel = Arc::new(Channel::new(ours));
    let reader = channel.shared.interrupts.reader();
    send(Reply::new(&channel, Unique(0x0102), opcode, reader, None));
    let bytes = receive(&theirs);
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(usize::try_from(word(0)).unwrap(), bytes.len(), "the length counts all");
    assert_eq!(bytes[8..16], 0x0102_u64.to_ne_bytes());
    (word(4).cast_signed(), bytes[16..].to_vec())
}

fn socket() -> (OwnedFd, OwnedFd) {
    let kind = SocketType::SEQPACKET;
    rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

fn receive(socket: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 16];
    let (len, _) = rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT).unwrap();
    bytes.truncate(len);
    bytes
}

/// The body of a successful answer.
fn body(send: impl FnOnce(Reply)) -> Vec<u8> {
    let (error, body) = sent(1, send);
    assert_eq!(error, 0);
    body
}

/// Fields in the kernel's order.
#[derive(Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn u32s(mut self, values: &[u32]) -> Self {
        values.iter().for_each(|value| self.0.extend(value.to_ne_bytes()));
        self
    }

    fn u64s(mut self, values: &[u64]) -> Self {
        values.iter().for_each(|value| self.0.extend(value.to_ne_bytes()));
        self
    }
}

const ATTR: Attr = Attr {
    ino: 5,
    size: 1000,
    blocks: 8,
    atime: Timespec { secs: -1, nanos: 21 },
    mtime: Timespec { secs: 2, nanos: 22 },
    ctime: Timespec { secs: 3, nanos: 23 },
    mode: 0o100_644,
    nlink: 1,
    uid: 1000,
    gid: 100,
    // Major 8, minor 0x101 as the kernel packs them.
    rdev: 0x0010_0801,
    blksize: 4096,
};

const ENTRY: Entry = Entry {
    node: NodeId(77),
    generation: 6,
    attr: ATTR,
    entry_ttl: Duration::new(10, 30),
    attr_ttl: Duration::new(20, 40),
};

fn raw_attr(raw: Raw) -> Raw {
    let raw = raw.u64s(&[5, 1000, 8, u64::MAX, 2, 3]).u32s(&[21, 22, 23]);
    raw.u32s(&[0o100_644, 1, 1000, 100, 0x0010_0801, 4096, 0])
}

fn raw_entry() -> Raw {
    raw_attr(Raw::default().u64s(&[77, 6, 10, 20]).u32s(&[30, 40]))
}

#[test]
fn errors_and_plain_success() {
    assert_eq!(sent(1, |reply| reply.error(Errno::NOENT)), (-2, vec![]));
    assert_eq!(sent(1, Reply::ok), (0, vec![]));
}

#[test]
fn a_reply_that_is_dropped_says_eio() {
    assert_eq!(sent(1, drop), (-5, vec![]));
}

#[test]
fn entries_and_attributes() {
    assert_eq!(body(|reply| reply.entry(&ENTRY)), raw_entry().0);
    let negative = Raw::default().u64s(&[0, 0, 7, 0]).u32s(&[9, 0]).0;
    let sent = body(|reply| reply.negative(Duration::new(7, 9)));
    assert_eq!((&sent[..40], sent[40..].iter().any(|&byte| byte != 0)), (&negative[..], false));
    let attr = raw_attr(Raw::default().u64s(&[20]).u32s(&[40, 0]));
    assert_eq!(body(|reply| reply.attr(&ATTR, ENTRY.attr_ttl)), attr.0);
}

#[test]
fn statx_has_btime_and_the_device_split() {
    let extra = StatxExtra {
        btime: Some(Timespec { secs: 4, nanos: 24 }),
        attributes: 0x10,
        attributes_mask: 0x30,
    };
    let time = |raw: Raw, secs, nanos| raw.u64s(&[secs]).u32s(&[nanos, 0]);
    let mut raw = Raw::default().u64s(&[20]).u32s(&[40, 0]).u64s(&[0, 0]);
    raw = raw.u32s(&[0xfff, 4096]).u64s(&[0x10]).u32s(&[1, 1000, 100, 0o100_644]);
    raw = raw.u64s(&[5, 1000, 8, 0x30]);
    for (secs, nanos) in [(u64::MAX, 21), (4, 24), (3, 23), (2, 22)] {
        raw = time(raw, secs, nanos);
    }
    raw = raw.u32s(&[8, 0x101, 0, 0]).u64s(&[0; 14]);
    assert_eq!(body(|reply| reply.statx(&ATTR, &extra, ENTRY.attr_ttl)), raw.0);
}

#[test]
fn opened_and_created() {
    let flags = OpenFlags::KEEP_CACHE | OpenFlags::NOFLUSH | OpenFlags::PARALLEL_DIRECT_WRITES;
    let open = |raw: Raw| raw.u64s(&[9]).u32s(&[0x62, 0]);
    assert_eq!(body(|reply| reply.opened(Handle(9), flags)), open(Raw::default()).0);
    assert_eq!(body(|reply| reply.created(&ENTRY, Handle(9), flags)), open(raw_entry()).0);
}

#[test]
fn data_is_sent_as_it_is_whole_or_in_parts() {
    assert_eq!(body(|reply| reply.data(b"abc")), b"abc");
    assert_eq!(body(|reply| reply.data_parts(&[b"a", b"", b"bc", b"d"])), b"abcd");
    assert_eq!(body(|reply| reply.data_parts(&[b"a", b"b"])), b"ab");
    assert_eq!(body(|reply| reply.data_parts(&[])), b"");
}

#[test]
fn numbers() {
    assert_eq!(body(|reply| reply.written(3)), Raw::default().u32s(&[3, 0]).0);
    assert_eq!(body(|reply| reply.xattr_size(3)), Raw::default().u32s(&[3, 0]).0);
    assert_eq!(body(|reply| reply.offset(3)), Raw::default().u64s(&[3]).0);
    assert_eq!(body(|reply| reply.bmap(3)), Raw::default().u64s(&[3]).0);
    assert_eq!(body(|reply| reply.poll(3)), Raw::default().u32s(&[3, 0]).0);
    let ioctl = Raw::default().u32s(&[u32::MAX, 0, 0, 0, 7]).0;
    assert_eq!(body(|reply| reply.ioctl(-1, &7_u32.to_ne_bytes())), ioctl);
    // The older operation counts in 32 bits, the newer in 64.
    let copied = |opcode| sent(opcode, |reply| reply.copied(1 << 20)).1;
    assert_eq!(copied(opcode::COPY_FILE_RANGE), Raw::default().u32s(&[1 << 20, 0]).0);
    assert_eq!(copied(opcode::COPY_FILE_RANGE_64), Raw::default().u64s(&[1 << 20]).0);
}

#[test]
fn locks_and_statfs() {
    let lock = FileLock { start: 1, end: 2, kind: LockType::Unlock, pid: 3 };
    assert_eq!(body(|reply| reply.lock(&lock)), Raw::default().u64s(&[1, 2]).u32s(&[2, 3]).0);
    let statfs = StatFs {
        blocks: 1,
        bfree: 2,
        bavail: 3,
        files: 4,
        ffree: 5,
        bsize: 6,
        namelen: 7,
        frsize: 8,
    };
    let raw = Raw::default().u64s(&[1, 2, 3, 4, 5]).u32s(&[6, 7, 8, 0]).u32s(&[0; 6]);
    assert_eq!(body(|reply| reply.statfs(&statfs)), raw.0);
}

#[test]
fn a_page_holds_whole_entries_up_to_its_size() {
    let mut page = DirPage::new(70);
    assert!(page.push(5, 0o040_755, 3, b"abcdefgh"));
    assert!(page.push(6, 0o100_644, 4, b"x"));
    assert!(!page.push(7, 0o100_644, 5, b"y"), "64 bytes of 70 are taken");

    let mut raw = Raw::default().u64s(&[5, 3]).u32s(&[8, 4]);
    raw.0.extend(b"abcdefgh");
    let mut raw = raw.u64s(&[6, 4]).u32s(&[1, 8]);
    raw.0.extend(b"x\0\0\0\0\0\0\0");
    assert_eq!(body(|reply| reply.dir(&page)), raw.0);
}

#[test]
fn a_page_with_look_ups_puts_the_entry_before_the_name() {
    let mut page = DirPlusPage::new(400);
    assert!(page.push_plain(1, 0o040_755, 1, b"."));
    assert!(page.push(&ENTRY, 9, b"x"));
    assert!(!page.push(&ENTRY, 10, b"y"));

    let mut raw = Raw(vec![0; 128]).u64s(&[1, 1]).u32s(&[1, 4]);
    raw.0.extend(b".\0\0\0\0\0\0\0");
    raw.0.extend(raw_entry().0);
    let mut raw = raw.u64s(&[5, 9]).u32s(&[1, 8]);
    raw.0.extend(b"x\0\0\0\0\0\0\0");
    assert_eq!(body(|reply| reply.dir_plus(&page)), raw.0);
}
