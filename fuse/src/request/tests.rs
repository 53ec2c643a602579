//! Golden bytes of every request. The messages are put together field by field as the kernel's
//! header has them, not by way of our own structures.

use super::*;
use crate::types::LockType;

/// A message in the making.
struct Raw {
    opcode: u32,
    extension: Vec<u8>,
    body: Vec<u8>,
}

fn raw(opcode: u32) -> Raw {
    Raw { opcode, extension: Vec::new(), body: Vec::new() }
}

impl Raw {
    fn u32(mut self, value: u32) -> Self {
        self.body.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.body.extend(value.to_ne_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.body.extend(bytes);
        self
    }

    fn name(self, name: &[u8]) -> Self {
        self.bytes(name).bytes(&[0])
    }

    fn message(&self) -> Vec<u8> {
        let len = u32::try_from(40 + self.body.len() + self.extension.len()).unwrap();
        let mut bytes = Vec::new();
        bytes.extend(len.to_ne_bytes());
        bytes.extend(self.opcode.to_ne_bytes());
        bytes.extend(0x0102_u64.to_ne_bytes());
        bytes.extend(77_u64.to_ne_bytes());
        [1000_u32, 100, 4242].iter().for_each(|id| bytes.extend(id.to_ne_bytes()));
        bytes.extend(u16::try_from(self.extension.len() / 8).unwrap().to_ne_bytes());
        bytes.extend([0, 0]);
        bytes.extend(&self.body);
        bytes.extend(&self.extension);
        bytes
    }

    /// The decoded request is handed on, because it borrows.
    fn check(&self, check: impl FnOnce(Request<'_>)) {
        let bytes = Bytes::from(self.message());
        match decode(&bytes, Source::Owned(&bytes)) {
            Ok(Message::Request(request)) => check(request),
            other => panic!("opcode {} gives {other:?}", self.opcode),
        }
    }

    fn is(self, expected: Op<'_>) {
        self.check(|request| assert_eq!(request.op, expected));
    }
}

const FH: Handle = Handle(9);

#[test]
fn the_header_says_who_asks_of_which_node() {
    raw(1).name(b"a").check(|request| {
        let header = request.header;
        assert_eq!((header.unique, header.node), (Unique(0x0102), NodeId(77)));
        assert_eq!((header.uid, header.gid, header.pid), (1000, 100, 4242));
        assert_eq!(request.name(), "LOOKUP");
    });
}

#[test]
fn names() {
    raw(1).name(b"\xff b").is(Op::Lookup { name: b"\xff b" });
    raw(5).is(Op::ReadLink);
    raw(6).name(b"n").name(b"../t").is(Op::Symlink { name: b"n", target: b"../t" });
    raw(8).u32(0o020_644).u32(0x0103).u32(0o22).u32(0).name(b"n").is(Op::MkNod {
        name: b"n",
        mode: 0o020_644,
        rdev: 0x0103,
        umask: 0o22,
    });
    raw(9).u32(0o755).u32(0o27).name(b"n").is(Op::MkDir { name: b"n", mode: 0o755, umask: 0o27 });
    raw(10).name(b"n").is(Op::Unlink { name: b"n" });
    raw(11).name(b"n").is(Op::RmDir { name: b"n" });
    raw(13).u64(5).name(b"n").is(Op::Link { node: NodeId(5), name: b"n" });
    let new_parent = NodeId(6);
    raw(12).u64(6).name(b"a").name(b"b").is(Op::Rename {
        name: b"a",
        new_parent,
        new_name: b"b",
        flags: 0,
    });
    raw(45).u64(6).u32(2).u32(0).name(b"a").name(b"b").is(Op::Rename {
        name: b"a",
        new_parent,
        new_name: b"b",
        flags: 2,
    });
    raw(34).u32(4).u32(0).is(Op::Access { mask: 4 });
    raw(17).is(Op::StatFs);
    raw(50).u64(0).is(Op::SyncFs);
}

#[test]
fn attributes() {
    raw(3).u32(0).u32(0).u64(9).is(Op::GetAttr { fh: None });
    raw(3).u32(1).u32(0).u64(9).is(Op::GetAttr { fh: Some(FH) });
    raw(52).u32(1).u32(0).u64(9).u32(0x2000).u32(0xfff).is(Op::Statx {
        fh: Some(FH),
        flags: 0x2000,
        mask: 0xfff,
    });

    let setattr = |valid: u32| {
        let raw = raw(4).u32(valid).u32(0).u64(9).u64(123).u64(8).u64(u64::MAX).u64(2).u64(3);
        raw.u32(11).u32(12).u32(13).u32(0o100_600).u32(0).u32(1).u32(2).u32(0)
    };
    setattr(0).is(Op::SetAttr(SetAttr::default()));
    setattr(0x0fff).is(Op::SetAttr(SetAttr {
        mode: Some(0o100_600),
        uid: Some(1),
        gid: Some(2),
        size: Some(123),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::Now),
        ctime: Some(Timespec { secs: 3, nanos: 13 }),
        fh: Some(FH),
        lock_owner: Some(LockOwner(8)),
        kill_suidgid: true,
    }));
    setattr(0x30).is(Op::SetAttr(SetAttr {
        atime: Some(SetTime::At(Timespec { secs: -1, nanos: 11 })),
        mtime: Some(SetTime::At(Timespec { secs: 2, nanos: 12 })),
        ..SetAttr::default()
    }));
}

#[test]
fn opening_and_closing() {
    raw(14).u32(0o2).u32(1).is(Op::Open { flags: 2, kill_suidgid: true });
    raw(27).u32(0o200_000).u32(0).is(Op::OpenDir { flags: 0o200_000 });
    raw(35).u32(0o102).u32(0o100_644).u32(0o22).u32(0).name(b"n").is(Op::Create {
        name: b"n",
        mode: 0o100_644,
        umask: 0o22,
        flags: 0o102,
        kill_suidgid: false,
    });
    let tmpfile = raw(51).u32(0o20_200_002).u32(0o100_600).u32(0).u32(0).name(b"/");
    tmpfile.is(Op::TmpFile { mode: 0o100_600, umask: 0, flags: 0o20_200_002 });
    let release = |code, flags: u32| raw(code).u64(9).u32(2).u32(flags).u64(33);
    release(18, 0).is(Op::Release { fh: FH, flags: 2, flush: false, flock_owner: None });
    release(18, 3).is(Op::Release {
        fh: FH,
        flags: 2,
        flush: true,
        flock_owner: Some(LockOwner(33)),
    });
    release(29, 0).is(Op::ReleaseDir { fh: FH, flags: 2 });
    raw(25).u64(9).u32(0).u32(0).u64(33).is(Op::Flush { fh: FH, lock_owner: LockOwner(33) });
    raw(20).u64(9).u32(1).u32(0).is(Op::FSync { fh: FH, datasync: true });
    raw(30).u64(9).u32(0).u32(0).is(Op::FSyncDir { fh: FH, datasync: false });
}

#[test]
fn contents() {
    let read = |code, flags| raw(code).u64(9).u64(4096).u32(512).u32(flags).u64(33).u32(2).u32(0);
    let (fh, offset, size) = (FH, 4096, 512);
    read(15, 0).is(Op::Read { fh, offset, size, flags: 2, lock_owner: None });
    read(15, 2).is(Op::Read { fh, offset, size, flags: 2, lock_owner: Some(LockOwner(33)) });
    read(28, 0).is(Op::ReadDir { fh, offset, size });
    read(44, 0).is(Op::ReadDirPlus { fh, offset, size });

    let write =
        |flags| raw(16).u64(9).u64(4096).u32(5).u32(flags).u64(33).u32(2).u32(0).bytes(b"h\0llo");
    write(0).is(Op::Write {
        fh,
        offset,
        data: b"h\0llo",
        flags: 2,
        lock_owner: None,
        cached: false,
        kill_suidgid: false,
    });
    write(7).is(Op::Write {
        fh,
        offset,
        data: b"h\0llo",
        flags: 2,
        lock_owner: Some(LockOwner(33)),
        cached: true,
        kill_suidgid: true,
    });
    raw(43).u64(9).u64(1).u64(2).u32(3).u32(0).is(Op::FAllocate {
        fh,
        offset: 1,
        length: 2,
        mode: 3,
    });
    raw(46).u64(9).u64(7).u32(4).u32(0).is(Op::LSeek { fh, offset: 7, whence: 4 });
    for code in [47, 53] {
        raw(code).u64(9).u64(1).u64(5).u64(10).u64(2).u64(1 << 40).u64(0).is(Op::CopyFileRange {
            fh_in: fh,
            offset_in: 1,
            node_out: NodeId(5),
            fh_out: Handle(10),
            offset_out: 2,
            len: 1 << 40,
            flags: 0,
        });
    }
    raw(37).u64(3).u32(4096).u32(0).is(Op::BMap { block: 3, blocksize: 4096 });
    raw(39).u64(9).u32(16).u32(0x5401).u64(1).u32(2).u32(60).bytes(b"in").is(Op::Ioctl {
        fh,
        flags: 16,
        cmd: 0x5401,
        arg: 1,
        data: b"in",
        out_size: 60,
    });
    raw(40).u64(9).u64(3).u32(1).u32(5).is(Op::Poll { fh, kh: 3, events: 5, notify: true });
}

#[test]
fn xattrs() {
    let (name, value): (&[u8], &[u8]) = (b"user.a", b"v\0");
    let short = raw(21).u32(2).u32(1).name(name).bytes(value);
    short.is(Op::SetXattr { name, value, flags: 1, acl_kill_sgid: false });
    for (word, acl_kill_sgid) in [(0, false), (1, true)] {
        let long = raw(21).u32(2).u32(1).u32(word).u32(0).name(name).bytes(value);
        long.is(Op::SetXattr { name, value, flags: 1, acl_kill_sgid });
    }
    raw(22).u32(64).u32(0).name(name).is(Op::GetXattr { name, size: 64 });
    raw(23).u32(0).u32(0).is(Op::ListXattr { size: 0 });
    raw(24).name(name).is(Op::RemoveXattr { name });
}

#[test]
fn locks_of_the_two_families_are_told_apart() {
    let raw_lock =
        |code, flags| raw(code).u64(9).u64(33).u64(10).u64(19).u32(1).u32(4242).u32(flags).u32(0);
    let lock = FileLock { start: 10, end: 19, kind: LockType::Write, pid: 4242 };
    let (fh, owner) = (FH, LockOwner(33));
    raw_lock(31, 0).is(Op::GetLk { fh, owner, lock, kind: LockKind::Posix });
    raw_lock(32, 0).is(Op::SetLk { fh, owner, lock, kind: LockKind::Posix, wait: false });
    raw_lock(33, 1).is(Op::SetLk { fh, owner, lock, kind: LockKind::Flock, wait: true });
}

#[test]
fn forgets_come_one_by_one_or_in_batches() {
    let forgets = |raw: Raw| {
        let bytes = Bytes::from(raw.message());
        match decode(&bytes, Source::Owned(&bytes)) {
            Ok(Message::Forget(forgets)) => forgets.collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(forgets(raw(2).u64(3)), [(NodeId(77), 3)]);
    let batch = raw(42).u32(2).u32(0).u64(5).u64(1).u64(6).u64(2);
    assert_eq!(forgets(batch), [(NodeId(5), 1), (NodeId(6), 2)]);
}

#[test]
fn what_the_session_answers_is_told_apart() {
    let nothing = Bytes::new();
    let message = |raw: &Raw| match decode(&raw.message(), Source::Owned(&nothing)) {
        Ok(Message::Interrupt { interrupted }) => format!("interrupt {}", interrupted.0),
        Ok(Message::Init(init)) => format!("init {} {} {:x}", init.major, init.minor, init.flags2),
        Ok(Message::Destroy) => "destroy".into(),
        Ok(Message::NotifyReply) => "notify reply".into(),
        Ok(Message::Unknown) => "unknown".into(),
        other => format!("{other:?}"),
    };
    assert_eq!(message(&raw(36).u64(8)), "interrupt 8");
    let init = raw(26).u32(7).u32(45).u32(1 << 17).u32(u32::MAX);
    assert_eq!(message(&init), "init 7 45 0");
    assert_eq!(message(&init.u32(0xab).bytes(&[0; 44])), "init 7 45 ab");
    assert_eq!(message(&raw(38)), "destroy");
    assert_eq!(message(&raw(41).bytes(&[0; 40])), "notify reply");
    assert_eq!(message(&raw(48).bytes(&[0; 40])), "unknown");
    assert_eq!(message(&raw(4000)), "unknown");
}

#[test]
fn extensions_stand_behind_the_name() {
    let mut mkdir = raw(9).u32(0o755).u32(0).name(b"odd");
    let word = |value: u32| value.to_ne_bytes();
    // One label: header (size 48, 1 label), label (size 3), name, value, padding.
    mkdir.extension.extend([word(48), word(1), word(3), word(0)].concat());
    mkdir.extension.extend(b"security.selinux\0abc\0\0\0\0\0\0\0\0\0\0\0\0");
    // One group: header (size 16, type 32), count, group.
    mkdir.extension.extend([word(16), word(32), word(1), word(500)].concat());
    mkdir.check(|request| {
        assert_eq!(request.op, Op::MkDir { name: b"odd", mode: 0o755, umask: 0 });
        let labels: Vec<_> = request.extensions.security.collect();
        assert_eq!(labels, [SecurityContext { name: c"security.selinux", value: b"abc" }]);
        assert_eq!(request.extensions.groups.collect::<Vec<_>>(), [500]);
    });
}

#[test]
fn a_message_shorter_than_it_says_is_malformed() {
    let nothing = Bytes::new();
    let whole = raw(16).u64(9).u64(0).u32(5).u32(0).u64(0).u32(0).u32(0).bytes(b"hello").message();
    for len in 0..whole.len() {
        assert!(decode(&whole[..len], Source::Owned(&nothing)).is_err(), "{len} bytes");
        let mut cut = whole[..len].to_vec();
        if len >= 40 {
            cut[..4].copy_from_slice(&u32::try_from(len).unwrap().to_ne_bytes());
            assert!(decode(&cut, Source::Owned(&nothing)).is_err(), "{len} bytes that say so");
        }
    }
    let unended = raw(1).bytes(b"name").message();
    assert!(matches!(decode(&unended, Source::Owned(&nothing)), Err(Malformed)));
}

#[test]
fn what_is_kept_outlives_the_request() {
    let data = vec![7; 100_000];
    let bytes = Bytes::from(
        raw(16).u64(9).u64(0).u32(100_000).u32(0).u64(0).u32(0).u32(0).bytes(&data).message(),
    );
    let Ok(Message::Request(request)) = decode(&bytes, Source::Owned(&bytes)) else { panic!() };
    let Op::Write { data: borrowed, .. } = request.op else { panic!() };
    let kept = request.keep(borrowed);
    assert_eq!(kept.as_ptr(), borrowed.as_ptr(), "large data is not copied");
    let owned = request.detach();
    drop(bytes);
    assert_eq!(kept, data);
    assert!(matches!(owned.get().op, Op::Write { data: again, .. } if again == data));
}
