//! A value of every request, and of both forms where a field may be missing.

use base::{
    ByteRange, DirId, FileKind, LockKind, LockMode, Seq, SessionId, SetAttr, SetTime, ShardId,
};
use bytes::Bytes;

use super::values::{chunk, dir, file, lookup, name, part, time};
use crate::{
    Allocate, AllocateMode, Apply, BalanceLook, BalanceMode, BlockDrop, BlockGet, BlockMap,
    BlockPut, Claim, ClaimedFile, ClaimedLock, Create, Delegate, DumpStage, DumpStep, FsckPoll,
    FsckStart, Getattr, Guess, HeldChange, HeldRequest, Hello, Info, Link, Lock, LockCancel,
    LockClaim, LockTest, Mkdir, MoveStage, MoveStep, NodeRef, Open, Readdir, Release, Removexattr,
    Rename, RenameMode, Repair, Request, ReserveInos, Resume, Return, Rmdir, Search, Seek, SeekTo,
    SetXattr, Setattr, ShardMove, ShardsFrom, SignBlocks, SignFor, Symlink, Tmpfile, Unlink, Walk,
    WalkTo, Watch, Write, XattrMode,
};

pub(super) fn all() -> Vec<Request> {
    [
        sessions(),
        names(),
        contents(),
        others(),
        super::observe::requests(),
        super::peers::requests(),
    ]
    .concat()
}

fn node() -> NodeRef {
    NodeRef::File(file())
}

fn sessions() -> Vec<Request> {
    let hello = Hello {
        token: "pando1.00".into(),
        client: "host:mnt".into(),
        resume: None,
        kernel_checks: true,
    };
    let resume = Resume {
        session: SessionId(9),
        secret: 0x1234_5678_9abc_def0,
        answered: Seq(300),
        root: dir(),
        proof: 0x5555_4444_3333_2222,
    };
    let again = Hello { resume: Some(resume), ..hello.clone() };
    let claimed = ClaimedFile { file: file(), number: 5, proof: 300 };
    vec![
        Request::Hello(hello),
        Request::Hello(again),
        Request::Ping,
        Request::Bye,
        Request::Claim(Claim { files: vec![claimed], last: true }),
        Request::Statfs,
        Request::Sync,
        Request::Recalls,
        Request::Return(Return { dirs: vec![dir().id, dir().home] }),
        Request::ReserveInos(ReserveInos { dir: dir().id, shard: ShardId(4095), count: 300 }),
        Request::Apply(Apply { dir: dir(), changes: held_changes() }),
        Request::Delegate(Delegate { dir: dir(), after: 300, names_max: 128 }),
    ]
}

pub(super) fn held() -> impl Iterator<Item = HeldRequest> {
    held_changes().into_iter().map(|change| change.request)
}

fn held_changes() -> Vec<HeldChange> {
    let cred = base::Cred { uid: 1000, gid: 1001, groups: vec![7] };
    let create = Create {
        dir: dir(),
        name: file().name,
        kind: FileKind::File,
        mode: 0o640,
        rdev: 0,
        exclusive: true,
        open: Some(300),
    };
    let write = Write {
        file: file(),
        chunks: Vec::new(),
        end: 7,
        at: Some(time(1)),
        clear_set_id: false,
        set: None,
        blocks: Vec::new(),
    };
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let node = NodeRef::File(file());
    let of = |ino, request| HeldChange { cred: cred.clone(), at: time(2), ino, request };
    vec![
        of(Some(file().ino), HeldRequest::Create(create)),
        of(None, HeldRequest::Write(write)),
        of(None, HeldRequest::Setattr(Setattr { node, set })),
        of(None, HeldRequest::Unlink(Unlink { dir: dir(), name: file().name })),
    ]
}

fn names() -> Vec<Request> {
    let set = SetAttr {
        mode: Some(0o600),
        uid: Some(1000),
        gid: Some(1001),
        size: Some(5_000_000_000),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(time(1))),
        clear_set_id: true,
        access_only: false,
    };
    let set_nothing = SetAttr {
        mode: None,
        uid: None,
        gid: None,
        size: None,
        atime: None,
        mtime: None,
        clear_set_id: false,
        access_only: true,
    };
    let create = Create {
        dir: dir(),
        name: name("new"),
        kind: FileKind::CharDevice,
        mode: 0o640,
        rdev: 0x0103,
        exclusive: true,
        open: None,
    };
    let create_open =
        Create { kind: FileKind::File, rdev: 0, exclusive: false, open: Some(6), ..create.clone() };
    vec![
        Request::Lookup(lookup()),
        Request::Walk(Walk { from: dir(), names: vec![name("a"), name("b")] }),
        Request::WalkTo(WalkTo {
            from: dir(),
            names: vec![name("a"), name("b")],
            end: Guess { dir: DirId(11), home: DirId(12), partition: 3, name: Some(name("c")) },
        }),
        Request::Getattr(Getattr { node: NodeRef::Dir(dir()) }),
        Request::Getattr(Getattr { node: node() }),
        Request::Setattr(Setattr { node: node(), set }),
        Request::Setattr(Setattr { node: node(), set: set_nothing }),
        Request::Create(create),
        Request::Create(create_open),
        Request::Tmpfile(Tmpfile { dir: dir(), mode: 0o600, linkable: true, number: 7 }),
        Request::Mkdir(Mkdir { dir: dir(), name: name("sub"), mode: 0o1777 }),
        Request::Symlink(Symlink {
            dir: dir(),
            name: name("sym"),
            target: Bytes::from_static(b"../to"),
        }),
        Request::Link(Link { target: node(), dir: dir(), name: name("second") }),
        Request::Unlink(Unlink { dir: dir(), name: name("gone") }),
        Request::Rmdir(Rmdir { dir: dir(), name: name("empty") }),
        Request::Rename(Rename {
            from_dir: dir(),
            from_name: name("old"),
            to_dir: crate::DirRef { ticket: 0, ..dir() },
            to_name: name("newer"),
            mode: RenameMode::NoReplace,
        }),
        Request::Readdir(Readdir {
            dir: dir(),
            after: u64::MAX >> 1,
            entries_max: 512,
            plus: true,
        }),
        Request::Readlink(Getattr { node: node() }),
        Request::Watch(Watch { dir: dir(), since: None, max: 300, wait: false, keep_secs: 0 }),
        Request::Watch(Watch {
            dir: dir(),
            since: Some(1 << 40),
            max: 1024,
            wait: true,
            keep_secs: 86_400,
        }),
    ]
}

fn contents() -> Vec<Request> {
    let write = Write {
        file: file(),
        chunks: vec![chunk()],
        end: 5_000_000_000,
        at: None,
        clear_set_id: false,
        set: None,
        blocks: Vec::new(),
    };
    let write_at = Write { at: Some(time(9)), clear_set_id: true, ..write.clone() };
    let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    let block = BlockPut { block: part().block, data: Bytes::from_static(b"block") };
    let write_set = Write { set: Some(set), blocks: vec![block], ..write.clone() };
    vec![
        Request::Open(Open { file: file(), number: 7, access: 6 }),
        Request::Release(Release { files: vec![(file().ino, 7), (dir().ino, 300)] }),
        Request::Write(write),
        Request::Write(write_at),
        Request::Write(write_set),
        Request::BlockMap(BlockMap { file: file(), first: 3, count: 64 }),
        Request::BlockPut(BlockPut { block: part().block, data: Bytes::from_static(b"block") }),
        Request::BlockGet(BlockGet { part: part(), len: 1000 }),
        Request::BlockDrop(BlockDrop { blocks: vec![part().block] }),
        Request::SignBlocks(SignBlocks {
            access: SignFor::Put,
            first: part().block,
            count: 300,
            packed: true,
        }),
        Request::Allocate(Allocate {
            file: file(),
            offset: 300,
            len: 1 << 40,
            mode: AllocateMode::ZeroWithin,
            clear_set_id: true,
        }),
        Request::Seek(Seek { file: file(), offset: 1 << 40, to: SeekTo::Hole }),
        Request::Search(Search { dir: dir(), ino: file().ino, from: Bytes::from_static(b"N") }),
    ]
}

pub(super) fn mends() -> [crate::Mend; 3] {
    let (ino, changed) = (base::Ino(77), time(1));
    let links = crate::MendLinks { ino, found: 3, counted: 2, changed };
    let quota = crate::MendQuota { root: base::Ino(79), lacks: (-3, 4096) };
    [crate::Mend::Found("what".into()), crate::Mend::Links(links), crate::Mend::Quota(quota)]
}

fn others() -> Vec<Request> {
    let [found, links, quota] = mends();
    let xattr = Bytes::from_static(b"user.key");
    let (mode, range) = (LockMode::Exclusive, ByteRange { first: 5, last: ByteRange::END });
    let lock = Lock {
        ino: file().ino,
        kind: LockKind::Range,
        owner: 0x1234_5678_9abc_def1,
        pid: 4000,
        range,
        mode: Some(mode),
        wait: true,
        number: 301,
        settled: 299,
    };
    let Lock { ino, kind, owner, pid, .. } = lock;
    let claimed = ClaimedLock { ino, kind, owner, pid, range, mode: LockMode::Shared };
    vec![
        Request::Setxattr(SetXattr {
            node: node(),
            name: xattr.clone(),
            value: Bytes::from_static(b"\0value"),
            mode: XattrMode::Replace,
        }),
        Request::Xattrs(Getattr { node: node() }),
        Request::Removexattr(Removexattr { node: node(), name: xattr }),
        Request::Status,
        Request::FsckStart(FsckStart { gc: true }),
        Request::Repair(Repair { gc: true, discard_lost: false }),
        Request::FsckPoll(FsckPoll { job: 300, cancel: true }),
        Request::FsckNames(crate::FsckNames { job: 300, after: base::Ino(77) }),
        Request::FsckFixes(crate::FsckFixes { job: 300, turn: 2, from: 1000 }),
        Request::FsckInos(crate::FsckInos { job: 300, from: 9 }),
        Request::FsckMend(crate::FsckMend { mend: found, discard_lost: true, jobs: vec![3, 300] }),
        Request::FsckMend(crate::FsckMend { mend: links, discard_lost: false, jobs: vec![] }),
        Request::FsckMend(crate::FsckMend { mend: quota, discard_lost: false, jobs: vec![4] }),
        Request::FsckQuotas(crate::FsckQuotas { job: 300 }),
        Request::Info(Info { node: node() }),
        Request::Accounts(crate::Accounts { after: base::Account::User(300).number() }),
        Request::DumpStart,
        Request::DumpNext(crate::DumpNext {
            dump: 300,
            from: Bytes::from_static(b"\0\x01Nkey"),
            end: true,
        }),
        Request::DumpStep(DumpStep { dump: 300, stage: DumpStage::Settle }),
        Request::Move(MoveStep { plan: 300, stage: MoveStage::Commit }),
        Request::Lock(lock),
        Request::Lock(Lock { mode: None, wait: false, kind: LockKind::Whole, ..lock }),
        Request::LockTest(LockTest { ino: lock.ino, kind: lock.kind, owner: 9, range, mode }),
        Request::LockCancel(LockCancel { number: 300, settled: 7 }),
        Request::LockClaim(LockClaim { locks: vec![claimed], settled: 7 }),
    ]
}

/// A look at the load of shards.
pub(super) fn look() -> BalanceLook {
    BalanceLook {
        requests: 1300,
        stored: 1002,
        moves: vec![ShardMove { shard: ShardId(300), from: 2, to: 3 }],
        moved: true,
        because: "even".into(),
    }
}

/// Every step of a move.
pub(super) fn moves() -> Vec<MoveStage> {
    let from = ShardsFrom { server: 2, shards: vec![ShardId(5), ShardId(300)] };
    let plan = MoveStage::Plan(vec![2, 3]);
    let adopt = MoveStage::Adopt(vec![ShardMove { shard: ShardId(300), from: 2, to: 3 }]);
    let (take, ahead) = (MoveStage::Take(from.clone()), MoveStage::Ahead(from));
    vec![
        plan,
        MoveStage::Stop,
        take,
        MoveStage::Commit,
        MoveStage::Over,
        ahead,
        MoveStage::Copied,
        MoveStage::Loads,
        adopt,
        MoveStage::Leave(3),
        MoveStage::Charges(3),
        MoveStage::Mode(BalanceMode::On),
        MoveStage::Looked(look()),
        MoveStage::Busy,
    ]
}
