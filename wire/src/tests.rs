//! Golden bytes of everything that two processes tell each other, and damage to them.
//!
//! Numbers are of different lengths and all different, so that no two fields could change places
//! unseen.

mod golden;
mod observe;
mod peers;
mod replies;
mod requests;
mod values;

use std::path::Path;

use base::{
    Decode as _, Encode as _, FileKind, FsError, Locality, LockKind, LockMode, Reader, SetTime,
    Spread, Time,
};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use self::golden::{Case, Variants, all, variants};
use crate::{
    ANONYMOUS, Admission, AllocateMode, Answer, BalanceMode, Change, CountWhat, DelegatedEntry,
    DumpStage, Fingerprint, HeldReply, HeldRequest, IdMapping, IdRange, KeysChange, Mend,
    MoveStage, NodeRef, OpenState, Outcome, PeerWrite, RenameMode, Reply, ReplyHeader, Request,
    RequestHeader, Retry, Room, Scope, SeekTo, SignFor, SliceSource, Squash, Stands, Token, Vote,
    XattrMode, frame,
};

variants!(FileKind { File, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice });
variants!(FsError {
    NotPermitted,
    NotFound,
    Io,
    NoSuchDevice,
    TooBig,
    BadHandle,
    TryAgain,
    Denied,
    Busy,
    Exists,
    CrossDevice,
    NotDirectory,
    IsDirectory,
    Invalid,
    TextBusy,
    FileTooBig,
    NoSpace,
    ReadOnly,
    TooManyLinks,
    Range,
    NameTooLong,
    NotEmpty,
    Loop,
    NoData,
    Overflow,
    NotSupported,
    Stale,
    QuotaExceeded,
    Interrupted,
    TimedOut,
    Deadlock,
    NoLocks,
});
variants!(LockKind { Range, Whole });
variants!(LockMode { Shared, Exclusive });
variants!(Locality { Directory, Subtree, Hybrid });
variants!(Spread { None, Extendible, Subsets });
variants!(SetTime { Now, At });
variants!(NodeRef { Dir, File });
variants!(DumpStage { Gather, Pause, Settle, Take, Resume });
variants!(MoveStage {
    Plan,
    Stop,
    Take,
    Commit,
    Over,
    Ahead,
    Copied,
    Loads,
    Adopt,
    Leave,
    Charges,
    Mode,
    Looked,
    Busy
});
variants!(RenameMode { Replace, NoReplace, Exchange });
variants!(XattrMode { Set, Create, Replace, SetClearSetgid });
variants!(Mend { Found, Links, Quota });
variants!(BalanceMode { Off, Advise, On });
variants!(AllocateMode { Grow, Keep, Zero, ZeroWithin });
variants!(SeekTo { Data, Hole });
variants!(Scope { Files, Pages });
variants!(Squash { Nobody, Root, All });
variants!(HeldRequest { Create, Write, Setattr, Unlink });
variants!(HeldReply { Made, Written, Attr });
variants!(DelegatedEntry { File, Dir, Link });
variants!(KeysChange { Show, Rotate, Retire, Revoke });
variants!(Change { Created, Linked, Removed, MovedFrom, MovedTo, Attributes, Written });
variants!(SignFor { Get, Put });
variants!(SliceSource { Embedded, Block, Zeros });
variants!(OpenState { Inline, Blocks, Withheld });
variants!(Request {
    Hello,
    Ping,
    Bye,
    Claim,
    Statfs,
    Sync,
    Recalls,
    Return,
    ReserveInos,
    Apply,
    Delegate,
    Lookup,
    Walk,
    WalkTo,
    Getattr,
    Setattr,
    Create,
    Tmpfile,
    Search,
    Watch,
    Mkdir,
    Symlink,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Readdir,
    Readlink,
    Open,
    Release,
    Write,
    BlockMap,
    BlockPut,
    BlockGet,
    BlockDrop,
    SignBlocks,
    Allocate,
    Seek,
    Setxattr,
    Xattrs,
    Removexattr,
    Status,
    FsckStart,
    Repair,
    FsckPoll,
    FsckNames,
    FsckFixes,
    FsckInos,
    FsckMend,
    FsckQuotas,
    Info,
    Accounts,
    Lock,
    LockTest,
    LockCancel,
    LockClaim,
    Load,
    Slow,
    Sessions,
    Opens,
    Evict,
    Locks,
    Standing,
    Keys,
    SignToken,
    DumpStart,
    DumpNext,
    DumpStep,
    Move,
    PeerHello,
    PeerRead,
    Prepare,
    Decide,
    AskOutcome,
    Join,
    Heartbeat,
    Announce,
    Cluster,
    Speculate,
    HandoffBegin,
    HandoffPut,
    LayoutLearnt,
    Born,
    AskBirths,
    HurryBirths,
    Count,
    AskRoom,
    GiveRoom,
    AskOver,
    ShardPull,
    ShardBlock,
    SettleBirths,
});
variants!(Reply {
    Nothing,
    Welcome,
    Entry,
    Walked,
    Attr,
    Created,
    Ino,
    Page,
    Opened,
    Written,
    BlockMapped,
    Data,
    SignedBlocks,
    Statfs,
    Xattrs,
    Status,
    Job,
    Fsck,
    Lines,
    FsckNames,
    FsckFixes,
    FsckInos,
    Mended,
    Share,
    FsckQuotas,
    Accounts,
    Lock,
    Renamed,
    Offset,
    Searched,
    Watched,
    Load,
    Slow,
    Sessions,
    Opens,
    Locks,
    Standing,
    Keys,
    Signed,
    Recalled,
    Inos,
    Applied,
    Delegated,
    DumpStarted,
    DumpPage,
    Plan,
    Loads,
    Values,
    Vote,
    Outcome,
    Joined,
    Lease,
    Cluster,
    Guessed,
    Challenge,
    Taken,
    Layout,
    Births,
    Born,
    Counted,
    Room,
    Gave,
    Over,
    ShardPage,
});
variants!(Answer { Done, Failed, Retry, Halted, Refused, Noted, Granted });
variants!(Retry {
    NoSession,
    Busy,
    Moved,
    StaleCache,
    StaleDir,
    Coordinate,
    AtBirth,
    StaleLayout,
    Away,
    NotHeld,
});
variants!(Stands { Whole, Stable });
variants!(Admission { Admitted, Waits, Ended, Left });
variants!(Vote { Prepared, Busy, Changed });
variants!(Outcome { Committed, Aborted, Pending });
variants!(PeerWrite { Put, Delete, Patch });
variants!(CountWhat { Share, Names, Slots });
variants!(Room { Allowed, Full, Unknown });

/// The enums that stand inside messages.
fn parts() -> Vec<Case> {
    let kinds = [
        FileKind::File,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ];
    [
        all(kinds, Case::of),
        all(values::errors(), Case::of),
        all([LockKind::Range, LockKind::Whole], Case::of),
        all([LockMode::Shared, LockMode::Exclusive], Case::of),
        all([Locality::Directory, Locality::Subtree, Locality::Hybrid], Case::of),
        all([Spread::None, Spread::Extendible, Spread::Subsets], Case::of),
        all([SetTime::Now, SetTime::At(values::time(1))], Case::of),
        all([NodeRef::Dir(values::dir()), NodeRef::File(values::file())], Case::of),
        all([RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange], Case::of),
        all(
            [
                DumpStage::Gather,
                DumpStage::Pause,
                DumpStage::Settle,
                DumpStage::Take,
                DumpStage::Resume,
            ],
            Case::of,
        ),
        all(requests::moves(), Case::of),
        all(requests::mends(), Case::of),
        all(peers::counts(), Case::of),
        all(peers::rooms(), Case::of),
        all(
            [XattrMode::Set, XattrMode::Create, XattrMode::Replace, XattrMode::SetClearSetgid],
            Case::of,
        ),
        all([BalanceMode::Off, BalanceMode::Advise, BalanceMode::On], Case::of),
        all(
            [AllocateMode::Grow, AllocateMode::Keep, AllocateMode::Zero, AllocateMode::ZeroWithin],
            Case::of,
        ),
        all([SeekTo::Data, SeekTo::Hole], Case::of),
        all([Scope::Files, Scope::Pages], Case::of),
        all([Squash::Nobody, Squash::Root, Squash::All], Case::of),
        all(requests::held(), Case::of),
        all(replies::held(), Case::of),
        all(replies::delegated(), Case::of),
        all(observe::key_changes(), Case::of),
        all(replies::changes(), Case::of),
        all([SignFor::Get, SignFor::Put], Case::of),
        all(values::slices().map(|slice| slice.source), Case::of),
        all(values::open_states(), Case::of),
        all(peers::stands(), Case::of),
        all(peers::votes(), Case::of),
        all(peers::admissions(), Case::of),
        all(peers::outcomes(), Case::of),
        all(peers::writes(), Case::of),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A token as text, under a key that is no secret.
fn tokens() -> Vec<Case> {
    const KEY: &[u8] = b"golden key";
    const NOW: Time = Time { sec: 1, nsec: 0 };
    let bound = Token {
        id: 0x1234_5678_9abc_def0,
        key: 3,
        scope: Scope::Pages,
        authority: Some(Fingerprint([7; 32])),
        path: "/a/b".into(),
        uid: Some(1000),
        gids: vec![1001, 27],
        read_only: true,
        expires: Some(Time { sec: 2_000_000_000, nsec: 5 }),
        ids: None,
    };
    let ids = IdMapping {
        squash: Squash::Root,
        anonymous_uid: ANONYMOUS,
        anonymous_gid: 65535,
        uids: vec![
            IdRange { outside: 1000, inside: 5000, count: 10 },
            IdRange { outside: 70000, inside: 1, count: 1 },
        ],
        gids: vec![IdRange { outside: 100, inside: 0, count: 300 }],
    };
    let mapped = Token { ids: Some(ids), scope: Scope::Files, ..bound.clone() };
    let case = |name: &str, token: Token| {
        let text = token.sign(KEY);
        Case::new(name, token, text, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let read = Token::verify(&text, KEY, NOW).ok();
            // A person may look at what a server would refuse.
            let seen = Token::unverified(&text).ok();
            read.filter(|read| Some(read) == seen.as_ref())
        })
    };
    vec![
        case("token.administrator", Token::administrator()),
        case("token.bound", bound),
        case("token.mapped", mapped),
    ]
}

/// The bytes that a connection begins with, and one frame each way.
fn frames() -> Vec<Case> {
    let opening = Case::new("opening", true, frame::opening(), |bytes| {
        frame::take_opening(&mut BytesMut::from(&bytes[..])).ok()
    });
    let header = values::request_header();
    let request = Request::Lookup(values::lookup());
    let mut sent = Vec::new();
    frame::put_frame(&mut sent, |out| {
        header.encode(out);
        request.encode(out);
    });
    let request = Case::new("frame.request", (header, request), sent, |bytes| {
        let frame = frame::take_frame(&mut BytesMut::from(&bytes[..])).ok()??;
        let mut reader = Reader::new(&frame);
        let read = (RequestHeader::decode(&mut reader), Request::decode(&mut reader));
        Some((read.0.ok()?, read.1.ok()?))
    });
    let header = ReplyHeader { call: 300, cache_version: 70_000 };
    let answer = Answer::Done(Reply::Entry(values::entry()));
    let mut sent = Vec::new();
    frame::put_frame(&mut sent, |out| {
        header.encode(out);
        answer.encode(out);
    });
    let reply = Case::new("frame.reply", (header, answer), sent, |bytes| {
        let frame = frame::take_frame(&mut BytesMut::from(&bytes[..])).ok()??;
        let mut reader = Reader::new(&frame);
        let read = (ReplyHeader::decode(&mut reader), Answer::decode(&mut reader));
        Some((read.0.ok()?, read.1.ok()?))
    });
    vec![opening, request, reply]
}

fn cases() -> Vec<Case> {
    [
        frames(),
        tokens(),
        vec![
            Case::of("RequestHeader", values::request_header()),
            Case::of("RequestHeader.held", values::held_header()),
        ],
        vec![Case::of("ReplyHeader", ReplyHeader { call: 300, cache_version: 70_000 })],
        all(requests::all(), Case::of),
        all(replies::answers(), Case::of),
        all(replies::retries(), Case::of),
        all(replies::all(), Case::of),
        parts(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[test]
fn messages_frames_and_tokens_are_the_golden_ones() {
    golden::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden.txt"), &cases());
}

#[test]
fn golden_lines_are_added_and_never_changed() {
    let case = |name: &str| Case::new(name, 7, [7], |bytes| bytes.first().copied());
    let cases = ["first", "new", "last"].map(case);
    assert_eq!(
        golden::with_missing("first 05\nlast 07\ngone 01\n", &cases),
        "first 05\nnew 07\nlast 07\ngone 01\n"
    );
}

#[test]
fn every_enum_of_this_crate_has_golden_bytes() {
    let cases = cases();
    let subjects = golden::subjects(&cases);
    let sources = golden::sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let enums: Vec<&str> =
        sources.iter().flat_map(|text| golden::words_after(text, "    pub enum ")).collect();
    assert!(enums.contains(&"Request"), "the search finds what it should");
    for name in enums {
        assert!(subjects.contains(&name), "{name} has no golden bytes");
    }
}

#[test]
fn the_page_names_every_message_with_its_tag() {
    fn rows<T: Variants + base::Encode>(values: &[T]) -> Vec<String> {
        let row = |value: &T| format!("\n| {} | `{}` |", value.to_vec()[0], value.variant());
        values.iter().map(row).collect()
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/BYTES.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (replies, answers) = (rows(&replies::all()), rows(&replies::answers()));
    for row in [rows(&requests::all()), replies, answers, rows(&replies::retries())].concat() {
        assert!(page.contains(&row), "docs/BYTES.md has no row {row}");
    }
}

#[test]
fn a_message_with_a_damaged_byte_is_read_or_refused_without_a_panic() {
    golden::damage_each_byte(&cases());
}

proptest! {
    #[test]
    fn a_damaged_message_is_read_or_refused_without_a_panic(edits in golden::edits()) {
        golden::damage(&cases(), &edits);
    }

    #[test]
    fn bytes_that_are_no_message_are_read_or_refused_without_a_panic(bytes: Vec<u8>) {
        let bytes = Bytes::from(bytes);
        let _ = Request::from_bytes(&bytes);
        let _ = Answer::from_bytes(&bytes);
        let _ = RequestHeader::from_bytes(&bytes);
        let _ = ReplyHeader::from_bytes(&bytes);
    }
}
