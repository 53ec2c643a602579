//! A client that does one thing at a time, says what it wants in one line, and hides nothing.

use base::{
    Attr, BlockId, Cred, Decode as _, Encode as _, EntryName, Epoch, FileKind, FsError, Ino,
    Reader, Seq, SetAttr, limits::CHUNK_BYTES,
};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use wire::{
    Answer, BlockGet, BlockMap, BlockPart, BlockPut, ChunkSlices, Create, DirRef, Entry, FileRef,
    FsckPoll, FsckProgress, FsckStart, Getattr, Hello, Link, Lookup, Mkdir, NodeRef, Open, Opened,
    Readdir, ReaddirPage, Release, Removexattr, Rename, RenameMode, Reply, ReplyHeader, Request,
    RequestHeader, Resume, Rmdir, SetXattr, Setattr, Slice, SliceSource, Symlink, Tmpfile, Token,
    Unlink, Welcome, Write, XattrMode, frame,
};

use super::world::World;

pub(crate) type Result<T> = std::result::Result<T, FsError>;

/// A session and its connection.
pub(crate) struct Client {
    stream: DuplexStream,
    inbox: BytesMut,
    pub(crate) welcome: Welcome,
    pub(crate) root: DirRef,
    pub(crate) cred: Cred,
    /// Version of the cache that the next requests stand on; 0 for none.
    pub(crate) stands_on: u64,
    /// The header of the latest reply.
    pub(crate) latest: ReplyHeader,
    pub(crate) seq: Seq,
    /// The last change that succeeded.
    pub(crate) answered: Seq,
    calls: u64,
    opens: u64,
    blocks: u64,
    token: String,
    kernel_checks: bool,
}

/// A name from text.
pub(crate) fn name(text: &str) -> EntryName {
    EntryName::new(text.as_bytes()).unwrap()
}

/// An identity without further groups.
pub(crate) fn user(uid: u32) -> Cred {
    Cred { uid, gid: uid, groups: Vec::new() }
}

impl Client {
    /// Opens a session; the words of the refusal otherwise.
    pub(crate) async fn open(
        world: &mut World,
        token: &Token,
        kernel_checks: bool,
    ) -> std::result::Result<Client, String> {
        let token = World::sign(token);
        let stream = Client::greet(world).await;
        let attr = Attr::blank(Ino(0), FileKind::Directory);
        let root = DirRef { id: base::DirId(0), ino: Ino(0), home: base::DirId(0), ticket: 0 };
        let welcome = Welcome {
            session: base::SessionId(0),
            secret: 0,
            incarnation: 0,
            lease_ms: 0,
            fs: world.server.shared.fs_info(),
            map: world.server.shared.map(),
            root,
            root_attr: attr,
            read_only: false,
            trusted: false,
            forgot: false,
            opened: true,
            proof: 0,
        };
        let mut client = Client {
            stream,
            inbox: BytesMut::new(),
            welcome,
            root,
            cred: Cred::ROOT,
            stands_on: 0,
            latest: ReplyHeader { call: 0, cache_version: 0 },
            seq: Seq(0),
            answered: Seq(0),
            calls: 0,
            opens: 0,
            blocks: 0,
            token,
            kernel_checks,
        };
        client.hello(None).await?;
        Ok(client)
    }

    async fn greet(world: &mut World) -> DuplexStream {
        let mut stream = world.connect();
        stream.write_all(&frame::opening()).await.unwrap();
        stream
    }

    /// What it says when it comes back to a session.
    pub(crate) fn resume_of(&self, session: base::SessionId) -> Resume {
        let blocks = self.blocks + 1;
        Resume {
            session,
            secret: self.welcome.secret,
            answered: self.answered,
            blocks,
            proof: self.welcome.proof,
        }
    }

    async fn hello(&mut self, resume: Option<Resume>) -> std::result::Result<(), String> {
        let hello = Hello {
            token: self.token.clone(),
            client: "test".into(),
            resume,
            kernel_checks: self.kernel_checks,
        };
        match self.ask(Request::Hello(hello)).await {
            Answer::Done(Reply::Welcome(welcome)) => {
                self.root = welcome.root;
                self.welcome = welcome;
                Ok(())
            }
            Answer::Refused(reason) => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    /// Goes on with the session over a new connection.
    pub(crate) async fn resume(&mut self, world: &mut World) {
        self.stream = Client::greet(world).await;
        self.inbox.clear();
        let before = self.welcome.session;
        self.hello(Some(self.resume_of(before))).await.unwrap();
        assert_eq!(self.welcome.session, before, "the session has ended");
    }

    /// As [`Client::resume`], with another session if the old one has ended.
    pub(crate) async fn resume_or_start(&mut self, world: &mut World) -> bool {
        self.stream = Client::greet(world).await;
        self.inbox.clear();
        let before = self.welcome.session;
        self.hello(Some(self.resume_of(before))).await.unwrap();
        !self.welcome.opened
    }

    /// Whether a server that halted says so to a new connection.
    pub(crate) async fn resume_is_halted(&mut self, world: &mut World) -> bool {
        self.stream = Client::greet(world).await;
        self.inbox.clear();
        self.ask(Request::Ping).await == Answer::Halted
    }

    /// Sends a request in the next number, if it needs one.
    pub(crate) async fn ask(&mut self, request: Request) -> Answer {
        let mut seq = Seq(0);
        if request.mutates() {
            self.seq = self.seq.next();
            seq = self.seq;
        }
        self.ask_as(seq, self.seq, request).await
    }

    /// Sends a request with a number of the caller's choice.
    pub(crate) async fn ask_as(&mut self, seq: Seq, unanswered: Seq, request: Request) -> Answer {
        self.send(seq, unanswered, &request).await;
        let answer = self.receive().await;
        if seq != Seq(0) && matches!(answer, Answer::Done(_)) {
            self.answered = seq;
        }
        answer
    }

    pub(crate) async fn send(&mut self, seq: Seq, unanswered: Seq, request: &Request) {
        self.calls += 1;
        let header = RequestHeader {
            call: self.calls,
            shard: base::ShardId(3),
            epoch: Epoch(1),
            seq,
            unanswered,
            cache_version: self.stands_on,
            cred: self.cred.clone(),
        };
        let mut out = Vec::new();
        frame::put_frame(&mut out, |out| {
            header.encode(out);
            request.encode(out);
        });
        self.send_bytes(&out).await;
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        self.try_send_bytes(bytes).await.unwrap();
    }

    /// As [`Client::send_bytes`], on a connection that the server may have ended.
    pub(crate) async fn try_send_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// The next answer; its call is in `latest`.
    pub(crate) async fn receive(&mut self) -> Answer {
        self.try_receive().await.expect("the server answers")
    }

    /// The next answer, unless the connection ends or nothing comes for long.
    pub(crate) async fn try_receive(&mut self) -> Option<Answer> {
        loop {
            if let Some(bytes) = frame::take_frame(&mut self.inbox).unwrap() {
                let mut reader = Reader::new(&bytes);
                self.latest = ReplyHeader::decode(&mut reader).unwrap();
                let answer = Answer::decode(&mut reader).unwrap();
                assert!(reader.is_empty());
                return Some(answer);
            }
            let read = self.stream.read_buf(&mut self.inbox);
            match tokio::time::timeout(std::time::Duration::from_secs(30), read).await {
                Ok(Ok(bytes)) if bytes > 0 => {}
                Ok(Ok(_) | Err(_)) | Err(_) => return None,
            }
        }
    }

    /// The reply, or the errno; anything else ends the test.
    pub(crate) async fn get(&mut self, request: Request) -> Result<Reply> {
        let shown = format!("{request:?}");
        match self.ask(request).await {
            Answer::Done(reply) => Ok(reply),
            Answer::Failed(error) => Err(error),
            other => panic!("{other:?} to {shown:.300}"),
        }
    }

    /// The reply, if there is one.
    pub(crate) async fn attempt(&mut self, request: Request) -> std::result::Result<Reply, Answer> {
        match self.ask(request).await {
            Answer::Done(reply) => Ok(reply),
            other => Err(other),
        }
    }

    /// What stands under a name, if anything does and its directory is still there.
    pub(crate) async fn try_lookup(&mut self, dir: &DirRef, text: &str) -> Option<Entry> {
        let lookup = Request::Lookup(Lookup { dir: *dir, name: name(text) });
        match self.attempt(lookup).await {
            Ok(Reply::Entry(entry)) => Some(entry),
            _ => None,
        }
    }

    async fn entry(&mut self, request: Request) -> Result<Entry> {
        match self.get(request).await? {
            Reply::Entry(entry) => Ok(entry),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn lookup(&mut self, dir: &DirRef, text: &str) -> Result<Entry> {
        self.entry(Request::Lookup(Lookup { dir: *dir, name: name(text) })).await
    }

    pub(crate) async fn mkdir(&mut self, dir: &DirRef, text: &str) -> Result<DirRef> {
        self.mkdir_mode(dir, text, 0o755).await
    }

    pub(crate) async fn mkdir_mode(
        &mut self,
        dir: &DirRef,
        text: &str,
        mode: u32,
    ) -> Result<DirRef> {
        let entry = self.entry(Request::Mkdir(Mkdir { dir: *dir, name: name(text), mode })).await?;
        Ok(entry.dir.unwrap())
    }

    pub(crate) async fn create(&mut self, dir: &DirRef, text: &str) -> Result<FileRef> {
        self.create_mode(dir, text, 0o644).await
    }

    pub(crate) async fn create_mode(
        &mut self,
        dir: &DirRef,
        text: &str,
        mode: u32,
    ) -> Result<FileRef> {
        self.make(dir, text, FileKind::File, mode).await
    }

    pub(crate) async fn make(
        &mut self,
        dir: &DirRef,
        text: &str,
        kind: FileKind,
        mode: u32,
    ) -> Result<FileRef> {
        let create = Create {
            dir: *dir,
            name: name(text),
            kind,
            mode,
            rdev: 0,
            exclusive: true,
            open: None,
        };
        match self.get(Request::Create(create)).await? {
            Reply::Created(created) => {
                Ok(FileRef { dir: *dir, name: name(text), ino: created.entry.attr.ino })
            }
            other => panic!("{other:?}"),
        }
    }

    /// A file without a name, open.
    pub(crate) async fn tmpfile(&mut self, dir: &DirRef, linkable: bool) -> Result<FileRef> {
        self.opens += 1;
        let number = self.opens;
        let made = Tmpfile { dir: *dir, mode: 0o644, linkable, number };
        match self.get(Request::Tmpfile(made)).await? {
            Reply::Created(created) => Ok(FileRef::unnamed(*dir, created.entry.attr.ino)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn symlink(
        &mut self,
        dir: &DirRef,
        text: &str,
        target: &str,
    ) -> Result<FileRef> {
        let target = Bytes::copy_from_slice(target.as_bytes());
        let entry =
            self.entry(Request::Symlink(Symlink { dir: *dir, name: name(text), target })).await?;
        Ok(FileRef { dir: *dir, name: name(text), ino: entry.attr.ino })
    }

    pub(crate) async fn link(
        &mut self,
        file: &FileRef,
        dir: &DirRef,
        text: &str,
    ) -> Result<FileRef> {
        let target = NodeRef::File(file.clone());
        self.entry(Request::Link(Link { target, dir: *dir, name: name(text) })).await?;
        Ok(FileRef { dir: *dir, name: name(text), ino: file.ino })
    }

    pub(crate) async fn unlink(&mut self, dir: &DirRef, text: &str) -> Result<Attr> {
        self.attr(Request::Unlink(Unlink { dir: *dir, name: name(text) })).await
    }

    pub(crate) async fn rmdir(&mut self, dir: &DirRef, text: &str) -> Result<()> {
        self.get(Request::Rmdir(Rmdir { dir: *dir, name: name(text) })).await.map(drop)
    }

    pub(crate) async fn rename(
        &mut self,
        from: (&DirRef, &str),
        to: (&DirRef, &str),
    ) -> Result<()> {
        self.rename_mode(from, to, RenameMode::Replace).await
    }

    pub(crate) async fn exchange(
        &mut self,
        from: (&DirRef, &str),
        to: (&DirRef, &str),
    ) -> Result<()> {
        self.rename_mode(from, to, RenameMode::Exchange).await
    }

    pub(crate) async fn rename_mode(
        &mut self,
        from: (&DirRef, &str),
        to: (&DirRef, &str),
        mode: RenameMode,
    ) -> Result<()> {
        let rename = Rename {
            from_dir: *from.0,
            from_name: name(from.1),
            to_dir: *to.0,
            to_name: name(to.1),
            mode,
            way: Vec::new(),
        };
        self.get(Request::Rename(rename)).await.map(drop)
    }

    async fn attr(&mut self, request: Request) -> Result<Attr> {
        match self.get(request).await? {
            Reply::Attr(attr) => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn stat(&mut self, node: impl Into<Node>) -> Result<Attr> {
        self.attr(Request::Getattr(Getattr { node: node.into().0 })).await
    }

    pub(crate) async fn setattr(&mut self, node: impl Into<Node>, set: SetAttr) -> Result<Attr> {
        self.attr(Request::Setattr(Setattr { node: node.into().0, set })).await
    }

    pub(crate) async fn chmod(&mut self, node: impl Into<Node>, mode: u32) -> Result<Attr> {
        self.setattr(node, SetAttr { mode: Some(mode), ..SetAttr::default() }).await
    }

    pub(crate) async fn chown(
        &mut self,
        node: impl Into<Node>,
        uid: u32,
        gid: u32,
    ) -> Result<Attr> {
        let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        self.setattr(node, set).await
    }

    pub(crate) async fn truncate(&mut self, file: &FileRef, size: u64) -> Result<Attr> {
        self.setattr(file, SetAttr { size: Some(size), ..SetAttr::default() }).await
    }

    pub(crate) async fn page(
        &mut self,
        dir: &DirRef,
        after: u64,
        entries_max: u32,
    ) -> Result<ReaddirPage> {
        let readdir = Readdir { dir: *dir, after, entries_max, plus: true };
        match self.get(Request::Readdir(readdir)).await? {
            Reply::Page(page) => Ok(page),
            other => panic!("{other:?}"),
        }
    }

    /// All names of a directory, sorted.
    pub(crate) async fn names(&mut self, dir: &DirRef) -> Vec<String> {
        let (mut after, mut names) = (0, Vec::new());
        loop {
            let page = self.page(dir, after, 100).await.unwrap();
            names.extend(page.entries.iter().map(|entry| entry.name.to_string()));
            if page.end {
                names.sort_unstable();
                return names;
            }
            after = page.entries.last().unwrap().pos;
        }
    }

    pub(crate) async fn open_file(&mut self, file: &FileRef) -> Result<Opened> {
        self.open_for(file, 6).await
    }

    pub(crate) async fn open_for(&mut self, file: &FileRef, access: u8) -> Result<Opened> {
        self.opens += 1;
        let open = Open { file: file.clone(), number: self.opens, access };
        match self.get(Request::Open(open)).await? {
            Reply::Opened(opened) => Ok(opened),
            other => panic!("{other:?}"),
        }
    }

    /// The number of the latest open.
    pub(crate) fn opened(&self) -> u64 {
        self.opens
    }

    pub(crate) async fn release(&mut self, ino: Ino, number: u64) {
        self.get(Request::Release(Release { files: vec![(ino, number)] })).await.unwrap();
    }

    pub(crate) async fn set_xattr(
        &mut self,
        node: impl Into<Node>,
        text: &str,
        value: &[u8],
    ) -> Result<()> {
        let (name, value) =
            (Bytes::copy_from_slice(text.as_bytes()), Bytes::copy_from_slice(value));
        let set = SetXattr { node: node.into().0, name, value, mode: XattrMode::Set };
        self.get(Request::Setxattr(set)).await.map(drop)
    }

    /// What `pando info` tells.
    pub(crate) async fn info(&mut self, node: impl Into<Node>) -> Vec<(String, String)> {
        match self.get(Request::Info(wire::Info { node: node.into().0 })).await.unwrap() {
            Reply::Lines(lines) => lines,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn remove_xattr(&mut self, node: impl Into<Node>, text: &str) -> Result<()> {
        let name = Bytes::copy_from_slice(text.as_bytes());
        self.get(Request::Removexattr(Removexattr { node: node.into().0, name })).await.map(drop)
    }

    pub(crate) async fn xattrs(&mut self, node: impl Into<Node>) -> Vec<(Bytes, Bytes)> {
        match self.get(Request::Xattrs(Getattr { node: node.into().0 })).await.unwrap() {
            Reply::Xattrs(list) => list,
            other => panic!("{other:?}"),
        }
    }

    /// Writes `data` at `at`, embedded in the request.
    pub(crate) async fn write(&mut self, file: &FileRef, at: u64, data: &[u8]) -> Result<Attr> {
        let mut chunks = Vec::new();
        for (chunk, start, data) in pieces(at, data) {
            let len = u32::try_from(data.len()).unwrap();
            let source = SliceSource::Embedded(Bytes::copy_from_slice(data));
            chunks.push(ChunkSlices { chunk, slices: vec![Slice { start, len, source }] });
        }
        self.write_chunks(file, chunks, at + data.len() as u64).await
    }

    /// Writes `data` at `at` as blocks.
    pub(crate) async fn write_blocks(
        &mut self,
        file: &FileRef,
        at: u64,
        data: &[u8],
    ) -> Result<Attr> {
        let mut chunks = Vec::new();
        for (chunk, start, data) in pieces(at, data) {
            let len = u32::try_from(data.len()).unwrap();
            let block = self.next_block();
            self.put_block(block, data).await?;
            let part = BlockPart { block, block_bytes: len, offset: 0, ticket: 0 };
            let slice = Slice { start, len, source: SliceSource::Block(part) };
            chunks.push(ChunkSlices { chunk, slices: vec![slice] });
        }
        self.write_chunks(file, chunks, at + data.len() as u64).await
    }

    pub(crate) fn next_block(&mut self) -> BlockId {
        self.blocks += 1;
        BlockId::new(self.welcome.session, self.blocks)
    }

    pub(crate) async fn put_block(&mut self, block: BlockId, data: &[u8]) -> Result<()> {
        let data = Bytes::copy_from_slice(data);
        self.get(Request::BlockPut(BlockPut { block, data })).await.map(drop)
    }

    pub(crate) async fn write_chunks(
        &mut self,
        file: &FileRef,
        chunks: Vec<ChunkSlices>,
        end: u64,
    ) -> Result<Attr> {
        let write = Write { file: file.clone(), chunks, end, at: None, clear_set_id: false };
        match self.get(Request::Write(write)).await? {
            Reply::Written(written) => Ok(written.attr),
            other => panic!("{other:?}"),
        }
    }

    /// What a file holds, from its first byte to its last.
    pub(crate) async fn read(&mut self, file: &FileRef) -> Result<Vec<u8>> {
        let (mut first, mut data) = (0, Vec::new());
        loop {
            let map = BlockMap { file: file.clone(), first, count: 64 };
            let Reply::BlockMapped(mapped) = self.get(Request::BlockMap(map)).await? else {
                panic!("not a map");
            };
            data.resize(usize::try_from(mapped.attr.size).unwrap(), 0);
            if let Some(inline) = mapped.inline {
                assert_eq!(inline.len(), data.len());
                return Ok(Vec::from(inline));
            }
            for chunk in &mapped.chunks {
                let start = u64::from(chunk.chunk) * u64::from(CHUNK_BYTES);
                // The oldest first, so that the newest shows.
                for slice in chunk.slices.iter().rev() {
                    let at = usize::try_from(start + u64::from(slice.start)).unwrap();
                    let bytes = self.slice(slice).await?;
                    data[at..at + slice.len as usize].copy_from_slice(&bytes);
                }
            }
            first = mapped.end;
            if u64::from(first) * u64::from(CHUNK_BYTES) >= mapped.attr.size {
                return Ok(data);
            }
        }
    }

    async fn slice(&mut self, slice: &Slice) -> Result<Bytes> {
        match &slice.source {
            SliceSource::Embedded(data) => Ok(data.clone()),
            SliceSource::Zeros => Ok(Bytes::from(vec![0; slice.len as usize])),
            SliceSource::Block(part) => self.get_block(*part, slice.len).await,
        }
    }

    pub(crate) async fn get_block(&mut self, part: BlockPart, len: u32) -> Result<Bytes> {
        match self.get(Request::BlockGet(BlockGet { part, len })).await? {
            Reply::Data(data) => Ok(data),
            other => panic!("{other:?}"),
        }
    }

    /// Checks the whole file system.
    pub(crate) async fn fsck(&mut self, gc: bool) -> FsckProgress {
        self.follow(Request::FsckStart(FsckStart { gc })).await
    }

    /// Checks it, and repairs what is found.
    pub(crate) async fn repair(&mut self, discard_lost: bool) -> FsckProgress {
        self.follow(Request::Repair(wire::Repair { gc: false, discard_lost })).await
    }

    async fn follow(&mut self, start: Request) -> FsckProgress {
        let Reply::Job(job) = self.get(start).await.unwrap() else { panic!("not a job") };
        loop {
            let poll = FsckPoll { job, cancel: false };
            let Reply::Fsck(progress) = self.get(Request::FsckPoll(poll)).await.unwrap() else {
                panic!("not a check");
            };
            if progress.done {
                return progress;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// Says after a restart that nothing was open.
    pub(crate) async fn claim_nothing(&mut self) {
        let claim = wire::Claim { files: Vec::new(), last: true };
        self.get(Request::Claim(claim)).await.unwrap();
    }

    /// Ends the session.
    pub(crate) async fn bye(&mut self) {
        self.get(Request::Bye).await.unwrap();
    }
}

/// The parts of a range that lie in one chunk each: chunk, start within it, bytes.
fn pieces(at: u64, mut data: &[u8]) -> Vec<(u32, u32, &[u8])> {
    let mut pieces = Vec::new();
    let mut at = at;
    while !data.is_empty() {
        let start = u32::try_from(at % u64::from(CHUNK_BYTES)).unwrap();
        let (piece, rest) = data.split_at(data.len().min((CHUNK_BYTES - start) as usize));
        pieces.push((u32::try_from(at / u64::from(CHUNK_BYTES)).unwrap(), start, piece));
        at += piece.len() as u64;
        data = rest;
    }
    pieces
}

/// A directory or a file, named in either way.
pub(crate) struct Node(NodeRef);

impl From<&DirRef> for Node {
    fn from(dir: &DirRef) -> Node {
        Node(NodeRef::Dir(*dir))
    }
}

impl From<&FileRef> for Node {
    fn from(file: &FileRef) -> Node {
        Node(NodeRef::File(file.clone()))
    }
}
