//! A client that does one thing at a time, states each request in one line, and hides nothing.

mod attributes;
mod contents;
mod names;

use base::{Attr, Cred, EntryName, Epoch, FileKind, FsError, Ino, Seq, ShardId};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use wire::{
    Answer, DirRef, FileRef, FsckPoll, FsckProgress, FsckStart, Hello, NodeRef, Noted, Reply,
    ReplyHeader, Request, RequestHeader, Resume, Stand, Token, Welcome, frame, way_mark,
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
    pub(crate) stands_on: Stand,
    /// The header of the latest reply.
    pub(crate) latest: ReplyHeader,
    pub(crate) seq: Seq,
    /// The shard that requests are addressed to.
    pub(crate) shard: ShardId,
    /// The last change that succeeded.
    pub(crate) answered: Seq,
    calls: u64,
    opens: u64,
    blocks: u64,
    token: String,
    kernel_checks: bool,
    /// The facts that came with the latest answer.
    pub(crate) noted: Option<Noted>,
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
    /// Opens a session; returns the words of the refusal otherwise.
    pub(crate) async fn open(
        world: &mut World,
        token: &Token,
        kernel_checks: bool,
    ) -> std::result::Result<Client, String> {
        Client::open_signed(world, World::sign(token), kernel_checks).await
    }

    /// Like [`Client::open`], with the text of a token.
    pub(crate) async fn open_signed(
        world: &mut World,
        token: String,
        kernel_checks: bool,
    ) -> std::result::Result<Client, String> {
        let stream = world.connect();
        Client::open_over(world, stream, token, kernel_checks).await
    }

    /// Like [`Client::open`], for a client in the server's process.
    pub(crate) async fn open_near(
        world: &mut World,
        token: &Token,
    ) -> std::result::Result<Client, String> {
        let stream = world.connect_near();
        Client::open_over(world, stream, World::sign(token), true).await
    }

    async fn open_over(
        world: &World,
        mut stream: DuplexStream,
        token: String,
        kernel_checks: bool,
    ) -> std::result::Result<Client, String> {
        stream.write_all(&frame::opening()).await.unwrap();
        let attr = Attr::blank(Ino(0), FileKind::Directory);
        let root = DirRef { id: base::DirId(0), ino: Ino(0), home: base::DirId(0), ticket: 0 };
        let welcome = Welcome {
            session: base::SessionId(0),
            secret: 0,
            incarnation: 0,
            lease_ms: 0,
            commit_ms: 0,
            fs: world.server.shared.fs_info(),
            map: world.server.shared.map(),
            root,
            root_attr: attr,
            read_only: false,
            trusted: false,
            forgot: false,
            opened: true,
            proof: 0,
            direct: None,
        };
        let mut client = Client {
            stream,
            inbox: BytesMut::new(),
            welcome,
            root,
            cred: Cred::ROOT,
            stands_on: Stand::NONE,
            latest: ReplyHeader { call: 0, cache_version: 0 },
            seq: Seq(0),
            shard: ShardId(3),
            answered: Seq(0),
            calls: 0,
            opens: 0,
            blocks: 0,
            token,
            kernel_checks,
            noted: None,
        };
        client.hello(None).await?;
        Ok(client)
    }

    async fn greet(world: &mut World) -> DuplexStream {
        let mut stream = world.connect();
        stream.write_all(&frame::opening()).await.unwrap();
        stream
    }

    /// The claim to a session with which this client resumes it.
    pub(crate) fn resume_of(&self, session: base::SessionId) -> Resume {
        Resume {
            session,
            secret: self.welcome.secret,
            answered: self.answered,
            root: self.welcome.root,
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

    /// Resumes the session over a new connection.
    pub(crate) async fn resume(&mut self, world: &mut World) {
        self.stream = Client::greet(world).await;
        self.inbox.clear();
        let before = self.welcome.session;
        self.hello(Some(self.resume_of(before))).await.unwrap();
        assert_eq!(self.welcome.session, before, "the session has ended");
    }

    /// Resumes the session with another token; returns the words of the refusal otherwise.
    pub(crate) async fn resume_with(
        &mut self,
        world: &mut World,
        token: &Token,
    ) -> std::result::Result<(), String> {
        self.resume_signed(world, World::sign(token)).await
    }

    /// Like [`Client::resume_with`], with the text of a token.
    pub(crate) async fn resume_signed(
        &mut self,
        world: &mut World,
        token: String,
    ) -> std::result::Result<(), String> {
        self.token = token;
        self.stream = Client::greet(world).await;
        self.inbox.clear();
        let before = self.welcome.session;
        self.hello(Some(self.resume_of(before))).await
    }

    /// Like [`Client::resume`], but opens another session if the old one has ended. Returns whether
    /// the old one was resumed.
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
            shard: self.shard,
            epoch: Epoch(1),
            seq,
            unanswered,
            stand: self.stands_on.clone(),
            cred: self.cred.clone(),
            ..RequestHeader::bare(self.calls)
        };
        let mut out = Vec::new();
        assert!(header.put(request, &mut out));
        self.send_bytes(&out).await;
    }

    /// Lets the next requests stand on the latest reply, if that was found through these
    /// directories.
    pub(crate) fn goes_by(&mut self, way: &[&DirRef]) {
        let way = way.iter().map(|dir| way_mark(dir.id)).collect();
        self.stands_on = Stand { version: self.latest.cache_version, way, held: None };
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        self.try_send_bytes(bytes).await.unwrap();
    }

    /// Like [`Client::send_bytes`], on a connection that the server may have ended.
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
                let (header, answer) = ReplyHeader::take(&bytes).unwrap();
                self.latest = header;
                self.noted = None;
                let Answer::Noted(noted) = answer else { return Some(answer) };
                let answer = Answer::Done(noted.reply.clone());
                self.noted = Some(noted);
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

    /// Checks the whole file system.
    pub(crate) async fn fsck(&mut self, gc: bool) -> FsckProgress {
        self.follow(Request::FsckStart(FsckStart { gc })).await
    }

    /// Checks the whole file system, and repairs what is found.
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

    /// Tells the server after a restart that no file was open.
    pub(crate) async fn claim_nothing(&mut self) {
        let claim = wire::Claim { files: Vec::new(), last: true };
        self.get(Request::Claim(claim)).await.unwrap();
    }

    /// Ends the session.
    pub(crate) async fn bye(&mut self) {
        self.get(Request::Bye).await.unwrap();
    }
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
