//! Fuzz targets: damaged records, and clients that send arbitrary bytes.
//!
//! `fuzz/` runs them under a fuzzer (feature `fuzzing`), the tests below over its corpus.

use std::{fmt::Debug, sync::Arc};

use base::{Clock, Cred, Decode as _, Epoch, Ino, Locality, Random, Seq, Time};
use bytes::{Bytes, BytesMut};
use store::{Blocks, MemoryEngine};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wire::{
    Answer, DirRef, FileRef, HeldRequest, Hello, NodeRef, Reply, ReplyHeader, Request,
    RequestHeader, Slice, SliceSource, Token, frame,
};

use crate::{
    FormatOptions, Server, ServerOptions, format,
    record::{
        ChunkRecord, Config, Content, EntryRecord, Reclaim, Record, RenameList, SessionRecord,
        Slot, Tail, chunk::is_sound, inode::XattrSet, key, system::Reserved, system::StoredAnswers,
    },
};

const SIGNING_KEY: &[u8] = b"a signing key that fuzzers know.";
/// More requests than this find nothing new.
const REQUESTS_MAX: usize = 64;

/// Reads a stored value and a stored key.
pub fn record(bytes: &[u8]) {
    reads_back::<Content>(bytes);
    reads_back::<EntryRecord>(bytes);
    reads_back::<RenameList>(bytes);
    reads_back::<Slot>(bytes);
    reads_back::<XattrSet>(bytes);
    reads_back::<Config>(bytes);
    reads_back::<SessionRecord>(bytes);
    reads_back::<Reclaim>(bytes);
    reads_back::<Tail>(bytes);
    reads_back::<Reserved>(bytes);
    reads_back::<StoredAnswers>(bytes);
    if let Some(chunk) = reads_back::<ChunkRecord>(bytes) {
        use_chunk(chunk);
    }
    let _ = (key::parse_name(bytes), key::parse_dir(bytes), key::parse_chunk(bytes));
    let _ = (key::parse_ino(bytes), key::parse_garbage(bytes), key::parse_session(bytes));
    let _ = key::parse_answer(bytes);
}

fn reads_back<R: Record + PartialEq + Debug>(bytes: &[u8]) -> Option<R> {
    let value = R::from_record(&Bytes::copy_from_slice(bytes)).ok()?;
    assert_eq!(R::from_record(&value.to_record()).as_ref(), Ok(&value));
    Some(value)
}

/// Paints over and cuts a chunk that was accepted, which must stay sound.
fn use_chunk(mut chunk: ChunkRecord) {
    assert!(chunk.allocated() <= u64::from(base::limits::CHUNK_BYTES));
    chunk.paint([Slice { start: 1, len: 4096, source: SliceSource::Zeros }].into_iter());
    assert!(chunk.slices.iter().all(is_sound));
    chunk.truncate(2048);
    assert!(chunk.slices.iter().all(is_sound));
    assert!(chunk.segments().iter().all(|(start, end, _)| start < end && *end <= 2048));
}

/// A client that sends anything once it has introduced itself: frames of any bytes, and requests
/// aimed at what exists. The server answers every request or ends the connection, and never halts.
pub fn server(bytes: &[u8]) {
    done_of(bytes);
}

/// Number of requests of a talk that were done.
fn done_of(bytes: &[u8]) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime without IO needs nothing");
    tokio::task::LocalSet::new().block_on(&runtime, talk(bytes))
}

async fn talk(bytes: &[u8]) -> usize {
    let server = serve_nothing();
    let core = server.core(0);
    let executor = core.clone();
    let executing = tokio::task::spawn_local(async move { executor.run().await });
    // The first request that watches waits for this.
    let feeding = tokio::task::spawn_local(crate::feed::run::run(core.clone()));
    let mut client = Client::connect(&core).await;
    let (mut rest, mut done) = (bytes, 0);
    for _ in 0..REQUESTS_MAX {
        let Some((len, after)) = rest.split_first() else { break };
        let (message, after) = after.split_at(after.len().min(usize::from(*len)));
        rest = after;
        match Request::from_bytes(&Bytes::copy_from_slice(message)) {
            // Stable storage is for the background, which does not run; news of directories would
            // be waited for; and these requests would end the talk.
            Ok(
                Request::Sync
                | Request::Recalls
                | Request::DumpStart
                | Request::Bye
                | Request::Hello(_),
            ) => {}
            Ok(mut request) => {
                client.aim(&mut request);
                let Some(answer) = client.ask(request).await else { break };
                done += usize::from(matches!(answer, Answer::Done(_)));
            }
            Err(_) => {
                client.stream.write_all(message).await.expect("there is room for it");
                break;
            }
        }
    }
    client.stream.shutdown().await.expect("it is in memory");
    let mut left = Vec::new();
    client.stream.read_to_end(&mut left).await.expect("it is in memory");
    executing.abort();
    feeding.abort();
    assert!(!server.shared.is_halted(), "a client has halted the server");
    done
}

struct Client {
    stream: tokio::io::DuplexStream,
    inbox: BytesMut,
    seq: u64,
    /// Files made so far.
    files: Vec<FileRef>,
    dirs: Vec<DirRef>,
}

impl Client {
    async fn connect(core: &crate::Core) -> Client {
        let (stream, theirs) = tokio::io::duplex(16 << 20);
        let core = core.clone();
        tokio::task::spawn_local(async move { core.serve(theirs).await });
        let root = DirRef::ROOT;
        let inbox = BytesMut::new();
        let mut client = Client { stream, inbox, seq: 0, files: Vec::new(), dirs: vec![root] };
        client.stream.write_all(&frame::opening()).await.expect("there is room for it");
        let token = Token::administrator().sign(SIGNING_KEY);
        let hello = Hello { token, client: "fuzz".into(), resume: None, kernel_checks: false };
        let answer = client.ask(Request::Hello(hello)).await;
        assert!(matches!(answer, Some(Answer::Done(Reply::Welcome(_)))), "{answer:?}");
        client
    }

    /// Sends a request; returns the answer, or `None` when the server has ended the connection.
    async fn ask(&mut self, request: Request) -> Option<Answer> {
        self.seq += u64::from(request.mutates());
        let seq = if request.mutates() { Seq(self.seq) } else { Seq(0) };
        let header = RequestHeader {
            epoch: Epoch(u64::MAX),
            seq,
            unanswered: Seq(self.seq),
            cred: Cred::ROOT,
            ..RequestHeader::bare(1)
        };
        let mut out = Vec::new();
        assert!(header.put(&request, &mut out), "inputs are short");
        self.stream.write_all(&out).await.expect("there is room for it");
        let bytes = loop {
            if let Some(bytes) = frame::take_frame(&mut self.inbox).expect("servers send frames") {
                break bytes;
            }
            if self.stream.read_buf(&mut self.inbox).await.expect("it is in memory") == 0 {
                return None;
            }
        };
        let (_, answer) = ReplyHeader::take(&bytes).expect("servers send answers");
        self.learn(&request, &answer);
        Some(answer)
    }

    fn learn(&mut self, request: &Request, answer: &Answer) {
        match (request, answer) {
            (Request::Create(made), Answer::Done(Reply::Created(created))) => {
                let (dir, name) = (made.dir, made.name.clone());
                self.files.push(FileRef { dir, name, ino: created.entry.attr.ino });
            }
            (Request::Tmpfile(made), Answer::Done(Reply::Created(created))) => {
                self.files.push(FileRef::unnamed(made.dir, created.entry.attr.ino));
            }
            (Request::Mkdir(_), Answer::Done(Reply::Entry(entry))) => self.dirs.extend(entry.dir),
            _ => {}
        }
    }

    /// Makes a request name existing things: no fuzzer guesses their numbers.
    fn aim(&self, request: &mut Request) {
        match request {
            Request::Lookup(req) => self.aim_dir(&mut req.dir),
            Request::Walk(req) => self.aim_dir(&mut req.from),
            Request::WalkTo(req) => self.aim_dir(&mut req.from),
            Request::Create(req) => self.aim_dir(&mut req.dir),
            Request::Tmpfile(req) => self.aim_dir(&mut req.dir),
            Request::Mkdir(req) => self.aim_dir(&mut req.dir),
            Request::Symlink(req) => self.aim_dir(&mut req.dir),
            Request::Link(req) => {
                self.aim_node(&mut req.target);
                self.aim_dir(&mut req.dir);
            }
            Request::Unlink(req) => self.aim_dir(&mut req.dir),
            Request::Rmdir(req) => self.aim_dir(&mut req.dir),
            Request::Rename(req) => {
                self.aim_dir(&mut req.from_dir);
                self.aim_dir(&mut req.to_dir);
            }
            Request::Readdir(req) => self.aim_dir(&mut req.dir),
            Request::Delegate(req) => self.aim_dir(&mut req.dir),
            Request::Search(req) => {
                self.aim_dir(&mut req.dir);
                self.aim_ino(&mut req.ino);
            }
            Request::Watch(req) => {
                self.aim_dir(&mut req.dir);
                // A change may never come.
                req.wait = false;
            }
            Request::Getattr(req) | Request::Readlink(req) | Request::Xattrs(req) => {
                self.aim_node(&mut req.node);
            }
            Request::Setattr(req) => self.aim_node(&mut req.node),
            Request::Setxattr(req) => self.aim_node(&mut req.node),
            Request::Removexattr(req) => self.aim_node(&mut req.node),
            Request::Info(req) => self.aim_node(&mut req.node),
            Request::Open(req) => self.aim_file(&mut req.file),
            Request::Write(req) => self.aim_file(&mut req.file),
            Request::Apply(req) => {
                self.aim_dir(&mut req.dir);
                req.changes.iter_mut().for_each(|change| self.aim_held(&mut change.request));
            }
            Request::BlockMap(req) => self.aim_file(&mut req.file),
            Request::Allocate(req) => self.aim_file(&mut req.file),
            Request::Seek(req) => self.aim_file(&mut req.file),
            Request::Release(req) => req.files.iter_mut().for_each(|(ino, _)| self.aim_ino(ino)),
            Request::Claim(req) => req.files.iter_mut().for_each(|f| self.aim_file(&mut f.file)),
            Request::LockTest(req) => self.aim_ino(&mut req.ino),
            Request::Lock(req) => {
                self.aim_ino(&mut req.ino);
                // No other request would give the lock back.
                req.wait = false;
            }
            Request::LockClaim(req) => {
                req.locks.iter_mut().for_each(|lock| self.aim_ino(&mut lock.ino));
            }
            Request::Hello(_)
            | Request::Standing(_)
            | Request::Ping
            | Request::Bye
            | Request::Statfs
            | Request::Sync
            | Request::Recalls
            | Request::Return(_)
            | Request::ReserveInos(_)
            | Request::BlockPut(_)
            | Request::BlockGet(_)
            | Request::BlockDrop(_)
            | Request::SignBlocks(_)
            | Request::Status
            | Request::FsckStart(_)
            | Request::Repair(_)
            | Request::FsckPoll(_)
            | Request::FsckNames(_)
            | Request::FsckQuotas(_)
            | Request::Accounts(_)
            | Request::FsckFixes(_)
            | Request::FsckInos(_)
            | Request::FsckMend(_)
            | Request::LockCancel(_)
            | Request::Load
            | Request::Slow(_)
            | Request::Sessions
            | Request::Opens(_)
            | Request::Evict(_)
            | Request::Keys(_)
            | Request::SignToken(_)
            | Request::Locks(_)
            | Request::DumpStart
            | Request::PeerHello(_)
            | Request::PeerRead(_)
            | Request::Prepare(_)
            | Request::Decide(_)
            | Request::AskOutcome(_)
            | Request::AskOver(_)
            | Request::Join(_)
            | Request::Heartbeat(_)
            | Request::Announce(_)
            | Request::HandoffBegin(_)
            | Request::HandoffPut(_)
            | Request::LayoutLearnt(_)
            | Request::Born(_)
            | Request::AskBirths
            | Request::SettleBirths
            | Request::Count(_)
            | Request::AskRoom(_)
            | Request::GiveRoom(_)
            | Request::HurryBirths(_)
            | Request::Cluster
            | Request::Speculate(_)
            | Request::DumpNext(_)
            | Request::DumpStep(_)
            | Request::Move(_)
            | Request::ShardPull(_)
            | Request::ShardBlock(_) => {}
        }
    }

    fn aim_held(&self, request: &mut HeldRequest) {
        match request {
            HeldRequest::Create(req) => self.aim_dir(&mut req.dir),
            HeldRequest::Write(req) => self.aim_file(&mut req.file),
            HeldRequest::Setattr(req) => self.aim_node(&mut req.node),
            HeldRequest::Unlink(req) => self.aim_dir(&mut req.dir),
        }
    }

    fn aim_dir(&self, dir: &mut DirRef) {
        if let Some(there) = pick(&self.dirs, dir.ino) {
            *dir = *there;
        }
    }

    fn aim_ino(&self, ino: &mut Ino) {
        if let Some(there) = pick(&self.files, *ino) {
            *ino = there.ino;
        }
    }

    fn aim_file(&self, file: &mut FileRef) {
        match pick(&self.files, file.ino) {
            Some(there) => *file = there.clone(),
            None => self.aim_dir(&mut file.dir),
        }
    }

    fn aim_node(&self, node: &mut NodeRef) {
        match node {
            NodeRef::Dir(dir) => self.aim_dir(dir),
            NodeRef::File(file) => self.aim_file(file),
        }
    }
}

/// Picks an existing thing by the lowest byte of a number. The highest byte picks none, so that a
/// request can name what does not exist.
fn pick<T>(there: &[T], ino: Ino) -> Option<&T> {
    match usize::from(ino.0.to_le_bytes()[0]) {
        0xff => None,
        byte => there.get(byte % there.len().max(1)),
    }
}

/// A server of an empty file system in memory.
fn serve_nothing() -> Server {
    let engine = Arc::new(MemoryEngine::default());
    let (clock, random) = (Arc::new(Still), Arc::new(Counted::default()));
    let options = FormatOptions {
        name: "fuzz".into(),
        shards: 2,
        lanes: 16,
        servers: 1,
        locality: Locality::Directory,
        inline_bytes_max: 4096,
        blocks: "memory".into(),
        signing_key: SIGNING_KEY.to_vec(),
    };
    format(engine.as_ref(), &options, clock.as_ref(), random.as_ref()).expect("it is empty");
    let options = ServerOptions::simulated("memory:1");
    Server::open(engine, Blocks::memory(), options, clock, random).expect("it was just formatted")
}

struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time { sec: 1_000_000, nsec: 0 }
    }
}

#[derive(Default)]
struct Counted(std::sync::atomic::AtomicU64);

impl Random for Counted {
    fn next(&self) -> u64 {
        let count = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        count.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

#[cfg(test)]
#[path = "../../fuzz/mutate.rs"]
mod mutate;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn golden(file: &str, subject: &str) -> Vec<Vec<u8>> {
        mutate::golden(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file), subject)
    }

    #[test]
    fn no_record_makes_a_panic() {
        mutate::run("record", golden("testdata/golden.txt", ""), 20_000, record);
    }

    /// A script of requests, each with its length before it.
    fn script(requests: &[Vec<u8>]) -> Vec<u8> {
        let short =
            requests.iter().filter_map(|bytes| Some((u8::try_from(bytes.len()).ok()?, bytes)));
        short.flat_map(|(len, bytes)| [&[len], &bytes[..]].concat()).collect()
    }

    #[test]
    fn no_client_halts_a_server() {
        let requests = golden("../wire/testdata/golden.txt", "Request::");
        let making = ["Create", "Mkdir", "Create", "Write", "Open", "Setattr"];
        let making = making
            .iter()
            .flat_map(|name| golden("../wire/testdata/golden.txt", &format!("Request::{name}")));
        let making: Vec<_> = making.collect();
        let all = script(&[&making[..], &requests[..]].concat());
        assert!(done_of(&script(&making)) > 3, "the seed does little");
        mutate::run("server", vec![all, script(&requests), script(&making)], 5000, server);
    }
}
