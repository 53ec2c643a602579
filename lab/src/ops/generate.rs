//! How operations are drawn. Simpler values come first, because shrinking goes towards them.

use base::{
    AclKind, EntryName, FileKind, SetTime, Time,
    acl::with_umask,
    limits::{CHUNK_BYTES, FILE_BYTES_MAX, NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX},
};
use bytes::Bytes;
use proptest::{collection::vec, option, prelude::*, sample::select};
use wire::{AllocateMode, RenameMode, SeekTo, XattrMode};

use super::{DIRS, HANDLES, NODES, Op, OpenFor, Place, Step, User};

/// Sequences of up to `steps_max` operations by `clients` clients.
pub fn steps(clients: usize, steps_max: usize) -> impl Strategy<Value = Vec<Step>> {
    let user = prop_oneof![3 => Just(User::Root), 3 => Just(User::Ann), 2 => Just(User::Bob)];
    let step = (0..clients, user, op());
    vec(step.prop_map(|(client, user, op)| Step { client, user, op }), 1..=steps_max)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![5 => names(), 4 => nodes(), 3 => contents(), 2 => xattrs()]
}

/// Operations on names.
fn names() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![
        8 => Just(FileKind::File),
        1 => Just(FileKind::Fifo),
        1 => Just(FileKind::CharDevice),
    ];
    let rename = select(vec![
        RenameMode::Replace,
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ]);
    prop_oneof![
        3 => (place(), kind, mode(), any::<bool>(), option::weighted(0.7, 0..HANDLES), 0..NODES).prop_map(
            |(at, kind, mode, exclusive, open, into)| {
                let open = open.filter(|_| kind == FileKind::File);
                Op::Create { at, kind, mode, exclusive, open, into }
            }
        ),
        1 => (0..DIRS, mode(), any::<bool>(), 0..HANDLES, 0..NODES).prop_map(
            |(dir, mode, linkable, open, into)| Op::Tmpfile { dir, mode, linkable, open, into }
        ),
        4 => (place(), mode(), 0..NODES).prop_map(|(at, mode, into)| Op::Mkdir { at, mode, into }),
        3 => (place(), 0..NODES).prop_map(|(at, into)| Op::Lookup { at, into }),
        1 => (place(), target(), 0..NODES)
            .prop_map(|(at, target, into)| Op::Symlink { at, target, into }),
        2 => (0..NODES, place(), 0..NODES).prop_map(|(node, at, into)| Op::Link { node, at, into }),
        2 => place().prop_map(|at| Op::Unlink { at }),
        2 => place().prop_map(|at| Op::Rmdir { at }),
        5 => (place(), place(), rename).prop_map(|(from, to, mode)| Op::Rename { from, to, mode }),
        3 => (0..DIRS, any::<bool>()).prop_map(|(dir, plus)| Op::List { dir, plus }),
    ]
}

/// Operations on nodes in slots.
fn nodes() -> impl Strategy<Value = Op> {
    let uid = option::of(select(vec![0, 100, 200]));
    let gid = option::of(select(vec![0, 100, 200, 300]));
    prop_oneof![
        3 => (0..NODES).prop_map(|node| Op::Getattr { node }),
        3 => (0..NODES, mode()).prop_map(|(node, mode)| Op::Chmod { node, mode }),
        2 => (0..NODES, uid, gid).prop_map(|(node, uid, gid)| Op::Chown { node, uid, gid }),
        2 => (0..NODES, time(), time())
            .prop_map(|(node, atime, mtime)| Op::Utimes { node, atime, mtime }),
        1 => (0..NODES, 0..2_000_000i64).prop_map(|(node, sec)| Op::Accessed { node, sec }),
        2 => (0..NODES, size(), any::<bool>())
            .prop_map(|(node, size, clear_set_id)| Op::Truncate { node, size, clear_set_id }),
        1 => (0..NODES).prop_map(|node| Op::Readlink { node }),
        1 => Just(Op::Sync),
    ]
}

fn contents() -> impl Strategy<Value = Op> {
    let access =
        select(vec![OpenFor::Both, OpenFor::Both, OpenFor::Read, OpenFor::Write, OpenFor::Nothing]);
    prop_oneof![
        3 => (0..NODES, access, 0..HANDLES)
            .prop_map(|(node, access, into)| Op::Open { node, access, into }),
        3 => (0..HANDLES, size(), length())
            .prop_map(|(handle, offset, len)| Op::Read { handle, offset, len }),
        4 => (0..HANDLES, size(), length(), any::<u8>(), any::<bool>()).prop_map(
            |(handle, offset, len, seed, clear_set_id)| {
                Op::Write { handle, offset, len, seed, clear_set_id }
            }
        ),
        1 => (0..HANDLES, any::<bool>()).prop_map(|(handle, fsync)| Op::Close { handle, fsync }),
        3 => ranges(),
    ]
}

fn ranges() -> impl Strategy<Value = Op> {
    let mode = select(vec![
        AllocateMode::ZeroWithin,
        AllocateMode::ZeroWithin,
        AllocateMode::Zero,
        AllocateMode::Grow,
        AllocateMode::Keep,
    ]);
    let len = prop_oneof![6 => 0..9_000u64, 2 => 1..3 * u64::from(CHUNK_BYTES)];
    let to = select(vec![SeekTo::Data, SeekTo::Hole]);
    prop_oneof![
        4 => (0..HANDLES, size(), len, mode)
            .prop_map(|(handle, offset, len, mode)| Op::Allocate { handle, offset, len, mode }),
        2 => (0..HANDLES, size(), to)
            .prop_map(|(handle, offset, to)| Op::Seek { handle, offset, to }),
        2 => (0..HANDLES, 0..HANDLES, size(), size(), 0..50_000u64).prop_map(
            |(from, to, offset, to_offset, len)| Op::CopyRange { from, to, offset, to_offset, len }
        ),
    ]
}

fn xattrs() -> impl Strategy<Value = Op> {
    let name = || {
        let names = ["user.a", "user.b", "trusted.a", "security.a", "system.a", "other.a", "user."];
        select(names.to_vec())
    };
    let len = prop_oneof![4 => 0..100usize, 2 => 400..700usize, 1 => limit(XATTR_VALUE_BYTES_MAX)];
    let mode = select(vec![XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
    prop_oneof![
        2 => (0..NODES).prop_map(|node| Op::Xattrs { node }),
        3 => (0..NODES, name(), len, mode)
            .prop_map(|(node, name, len, mode)| Op::Setxattr { node, name, len, mode }),
        1 => (0..NODES, name()).prop_map(|(node, name)| Op::Removexattr { node, name }),
        6 => (0..NODES, any::<bool>(), option::weighted(0.9, acl()), any::<bool>()).prop_map(
            |(node, default, acl, clear)| {
                let kind = if default { AclKind::Default } else { AclKind::Access };
                let mode = if clear { XattrMode::SetClearSetgid } else { XattrMode::Set };
                Op::SetAcl { node, kind, acl, mode }
            }
        ),
    ]
}

/// ACLs that name the existing users and groups; now and then one that is not valid.
fn acl() -> impl Strategy<Value = Bytes> {
    let perm = || 0..8u16;
    let users = option::of((select(vec![100, 200]), perm()));
    let groups = vec((select(vec![100, 200, 300]), perm()), 0..3);
    let parts = (perm(), users, perm(), groups, option::weighted(0.9, perm()), perm());
    parts.prop_map(|(owner, user, group, groups, mask, other)| {
        let mut entries = vec![(1u16, owner, u32::MAX)];
        entries.extend(user.map(|(id, perm)| (2, perm, id)));
        entries.push((4, group, u32::MAX));
        entries.extend(groups.into_iter().map(|(id, perm)| (8, perm, id)));
        entries.extend(mask.map(|perm| (16, perm, u32::MAX)));
        entries.push((32, other, u32::MAX));
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(perm.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes.into()
    })
}

fn place() -> impl Strategy<Value = Place> {
    let short = select(vec!["a", "b", "c"]).prop_map(|name| name.as_bytes().to_vec());
    let odd = select(vec![vec![0xff, b'\n', 1], vec![b'x'; NAME_BYTES_MAX]]);
    let name = prop_oneof![15 => short, 1 => odd];
    let name = name.prop_map(|bytes| EntryName::new(&bytes).expect("these are names"));
    (0..DIRS, name).prop_map(|(dir, name)| Place { dir, name })
}

fn mode() -> impl Strategy<Value = u32> {
    select(vec![
        with_umask(0o777, 0o027),
        0o777,
        0o755,
        0o644,
        0o700,
        0o070,
        0o007,
        0,
        0o2775,
        0o2745,
        0o1777,
        0o4755,
        0o6711,
        0o3777,
    ])
}

fn time() -> impl Strategy<Value = Option<SetTime>> {
    let at = (-10..2_000_000i64, 0..1_000_000_000u32).prop_map(|(sec, nsec)| Time { sec, nsec });
    option::of(prop_oneof![1 => Just(SetTime::Now), 1 => at.prop_map(SetTime::At)])
}

fn target() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        8 => Just(Bytes::from_static(b"a/b")),
        1 => select(vec![&b""[..], b"a\0", &[b'x'; 4095], &[b'x'; 4096]]).prop_map(Bytes::from_static),
    ]
}

/// Sizes and offsets: around zero, around the ends of small contents and of chunks, and at the
/// maximum file size.
fn size() -> impl Strategy<Value = u64> {
    let near = |middle: u64| middle - 40..middle + 40;
    prop_oneof![
        3 => 0..40u64,
        2 => near(4096),
        3 => 0..20_000u64,
        2 => near(u64::from(CHUNK_BYTES)),
        1 => near(3 * u64::from(CHUNK_BYTES)),
        1 => near(FILE_BYTES_MAX),
    ]
}

/// Length of a read or write: mostly one that fits into a request, sometimes one that needs a
/// block.
fn length() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..9_000u32, 1 => 60_000..300_000u32]
}

fn limit(max: usize) -> impl Strategy<Value = usize> {
    max - 1..=max + 1
}
