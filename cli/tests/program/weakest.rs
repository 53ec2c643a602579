//! Rights of the weakest tokens when their holder does not use our client: every kind of request,
//! as raw bytes over TCP, about objects outside. An object that a token does not allow cannot be
//! had, on one server and on three.
//!
//! One table says what each kind of request must be answered ([`verdict`]): a new kind does not
//! compile without its row, and is sent because the golden bytes of messages have it.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    time::Duration,
};

use base::{
    Account, Cred, Decode as _, EntryName, Epoch, FileKind, FsError, Ino, Seq, SessionId, ShardId,
    placement::shard_of,
};
use bytes::BytesMut;
use wire::{
    Answer, Create, DirRef, FileRef, Getattr, Hello, Link, Lookup, Mkdir, NodeRef, Open, Rename,
    RenameMode, Reply, ReplyHeader, Request, RequestHeader, Resume, Retry, Welcome, frame,
};

use crate::harness::{Data, Running, folder, pando, pause, succeed, text};

/// The user of the weakest tokens, and his group.
const USER: u32 = 7;
/// Stands in every name and in all contents that are outside: no answer has it.
const OUTSIDE: &str = "outside-7f3a";

fn name(text: &str) -> EntryName {
    EntryName::new(text.as_bytes()).unwrap()
}

/// The answer that a request must get from a server if its sender may not do what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The request is about the session alone: the answer concerns no other session.
    Own,
    /// The request names an object outside: it is denied, or not there.
    Outside,
    /// The request needs a proof that this session was never shown or given.
    Unproven,
    /// Administrators ask it.
    Administrators,
    /// Servers ask each other.
    Servers,
}

/// Verdict on each kind of request from a session that may not ask it.
fn verdict(request: &Request) -> Verdict {
    match request {
        Request::Lock(lock) if lock.mode.is_none() => Verdict::Own,
        Request::Ping
        | Request::Bye
        | Request::Statfs
        | Request::Sync
        | Request::Recalls
        | Request::Return(_)
        | Request::ReserveInos(_)
        // Only a mount is given a directory.
        | Request::Delegate(_)
        | Request::Release(_)
        | Request::BlockDrop(_)
        | Request::LockCancel(_)
        | Request::LockClaim(_)
        // Only the accounts of its own user and groups.
        | Request::Accounts(_) => Verdict::Own,
        Request::Hello(_)
        | Request::Standing(_)
        | Request::Claim(_)
        | Request::BlockPut(_)
        | Request::BlockGet(_)
        | Request::SignBlocks(_)
        | Request::Lock(_)
        | Request::LockTest(_)
        // Only who holds a directory may change it so.
        | Request::Apply(_)
        | Request::Speculate(_) => Verdict::Unproven,
        Request::Lookup(_)
        | Request::Walk(_)
        | Request::WalkTo(_)
        | Request::Getattr(_)
        | Request::Setattr(_)
        | Request::Create(_)
        | Request::Mkdir(_)
        | Request::Symlink(_)
        | Request::Link(_)
        | Request::Unlink(_)
        | Request::Rmdir(_)
        | Request::Rename(_)
        | Request::Readdir(_)
        | Request::Readlink(_)
        | Request::Tmpfile(_)
        | Request::Open(_)
        | Request::Write(_)
        | Request::BlockMap(_)
        | Request::Allocate(_)
        | Request::Seek(_)
        | Request::Setxattr(_)
        | Request::Xattrs(_)
        | Request::Removexattr(_)
        | Request::Search(_)
        | Request::Watch(_)
        | Request::Info(_) => Verdict::Outside,
        Request::Status
        | Request::FsckStart(_)
        | Request::FsckPoll(_)
        | Request::FsckNames(_)
        | Request::FsckFixes(_)
        | Request::FsckInos(_)
        | Request::FsckMend(_)
        | Request::FsckQuotas(_)
        | Request::Repair(_)
        | Request::Load
        | Request::Slow(_)
        | Request::Sessions
        | Request::Opens(_)
        | Request::Evict(_)
        | Request::Keys(_)
        | Request::SignToken(_)
        | Request::Locks(_)
        | Request::DumpStart
        | Request::DumpNext(_)
        | Request::DumpStep(_)
        | Request::Move(_)
        | Request::Join(_)
        | Request::Cluster => Verdict::Administrators,
        Request::PeerHello(_)
        | Request::PeerRead(_)
        | Request::Prepare(_)
        | Request::Decide(_)
        | Request::AskOutcome(_)
        | Request::AskOver(_)
        | Request::ShardPull(_)
            | Request::ShardBlock(_)
        | Request::Heartbeat(_)
        | Request::Announce(_)
        | Request::HandoffBegin(_)
        | Request::HandoffPut(_)
        | Request::LayoutLearnt(_)
        | Request::Born(_)
        | Request::AskBirths
        | Request::SettleBirths
        | Request::HurryBirths(_)
        | Request::Count(_)
        | Request::AskRoom(_)
        | Request::GiveRoom(_) => Verdict::Servers,
    }
}

/// Whether an answer is what the table says.
fn is_right(verdict: Verdict, answer: &Answer, read_only: bool) -> bool {
    use FsError::{BadHandle, Denied, Invalid, NotPermitted, ReadOnly, Stale};
    match (verdict, answer) {
        (Verdict::Own, Answer::Done(Reply::Nothing | Reply::Statfs(_))) => true,
        (Verdict::Own, Answer::Done(Reply::Recalled(recalled))) => {
            recalled.dirs.is_empty() && recalled.revoked.is_empty()
        }
        (Verdict::Own, Answer::Done(Reply::Accounts(told))) => told.iter().all(is_of_the_weakest),
        (Verdict::Own, Answer::Retry(Retry::NotHeld)) => true,
        // Whether what is meant is there is not looked at.
        (_, Answer::Failed(ReadOnly)) => read_only,
        (Verdict::Outside, Answer::Failed(Denied | Stale)) => true,
        (Verdict::Outside, Answer::Retry(Retry::StaleDir)) => true,
        (Verdict::Outside, Answer::Done(Reply::Walked(walked))) => {
            walked.entries.is_empty() && matches!(walked.error, Some(Denied | Stale))
        }
        (Verdict::Unproven, Answer::Failed(Denied | NotPermitted | BadHandle | Invalid)) => true,
        (Verdict::Unproven, Answer::Refused(why)) => why.contains("token of an earlier version"),
        // Every session is told whose the shards are.
        (Verdict::Unproven, Answer::Retry(Retry::Moved(_))) => true,
        (Verdict::Administrators, Answer::Failed(NotPermitted)) => true,
        // A server would have to answer the challenge, and cannot.
        (Verdict::Servers, Answer::Done(Reply::Challenge(_))) => true,
        (Verdict::Servers, Answer::Refused(why)) => {
            why.contains("only servers of the cluster") || why.contains("no server of this cluster")
        }
        _ => false,
    }
}

/// Whether an account is one that the weakest sessions of this test may see.
fn is_of_the_weakest(told: &wire::AccountUse) -> bool {
    match Account::of(told.account) {
        Account::User(id) | Account::Group(id) => id == USER,
        Account::Directory(_) => false,
    }
}

/// One request of each variant, as the golden bytes have them.
fn all_requests() -> Vec<Request> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/testdata/golden.txt");
    let text = fs::read_to_string(golden).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("Request::"));
    let requests = lines.map(|line| {
        let hex = line.split_once(' ').unwrap().1.as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        let bytes: Vec<u8> = hex.chunks(2).map(byte).collect();
        Request::from_bytes(&bytes.into()).unwrap()
    });
    requests.collect()
}

/// Has a request that names something name this instead.
fn aim(request: &mut Request, dir: DirRef, file: &FileRef) {
    let node = NodeRef::File(file.clone());
    match request {
        Request::Lookup(req) => (req.dir, req.name) = (dir, file.name.clone()),
        Request::Walk(req) => (req.from, req.names) = (dir, vec![file.name.clone()]),
        Request::WalkTo(req) => {
            (req.from, req.names) = (dir, vec![file.name.clone()]);
            (req.end.dir, req.end.home) = (dir.id, dir.home);
        }
        Request::Getattr(req) | Request::Readlink(req) | Request::Xattrs(req) => req.node = node,
        Request::Setattr(req) => req.node = node,
        Request::Create(req) => req.dir = dir,
        Request::Tmpfile(req) => req.dir = dir,
        Request::Mkdir(req) => req.dir = dir,
        Request::Symlink(req) => req.dir = dir,
        Request::Link(req) => (req.target, req.dir) = (node, dir),
        Request::Unlink(req) => (req.dir, req.name) = (dir, file.name.clone()),
        Request::Rmdir(req) => (req.dir, req.name) = (dir, file.name.clone()),
        Request::Rename(req) => {
            (req.from_dir, req.from_name, req.to_dir) = (dir, file.name.clone(), dir);
        }
        Request::Readdir(req) => (req.dir, req.after) = (dir, 0),
        Request::Open(req) => req.file = file.clone(),
        Request::Write(req) => req.file = file.clone(),
        Request::BlockMap(req) => req.file = file.clone(),
        Request::Allocate(req) => req.file = file.clone(),
        Request::Seek(req) => req.file = file.clone(),
        Request::Setxattr(req) => req.node = node,
        Request::Removexattr(req) => req.node = node,
        Request::Search(req) => req.dir = dir,
        Request::Watch(req) => req.dir = dir,
        Request::Info(req) => req.node = node,
        other => assert_ne!(verdict(other), Verdict::Outside, "it is not aimed: {other:?}"),
    }
}

/// A session that speaks for itself, with a connection to each server.
struct Raw {
    links: Vec<(TcpStream, BytesMut)>,
    welcome: Welcome,
    token: String,
    cred: Cred,
    seq: u64,
    calls: u64,
}

impl Raw {
    /// Opens a session, and joins it at every server.
    fn open(address: &str, token: &Path, cred: Cred) -> Raw {
        let token = fs::read_to_string(token).unwrap().trim().to_owned();
        let mut link = Raw::dial(address);
        let welcome = loop {
            match Raw::hello(&mut link, &token, None) {
                Answer::Done(Reply::Welcome(welcome)) => break welcome,
                Answer::Retry(Retry::Moved(map)) => {
                    link = Raw::dial(&map.servers[0]);
                }
                Answer::Retry(Retry::Busy) => pause(Duration::from_millis(50)),
                other => panic!("{other:?}"),
            }
        };
        let resume = Raw::resume_of(&welcome);
        let mut links = Vec::new();
        for address in &welcome.map.servers {
            let mut link = Raw::dial(address);
            while let answer = Raw::hello(&mut link, &token, Some(resume))
                && !matches!(answer, Answer::Done(_))
            {
                assert_eq!(answer, Answer::Retry(Retry::Busy));
                pause(Duration::from_millis(50));
            }
            links.push(link);
        }
        Raw { links, welcome, token, cred, seq: 0, calls: 0 }
    }

    fn resume_of(welcome: &Welcome) -> Resume {
        let Welcome { session, secret, root, proof, .. } = *welcome;
        Resume { session, secret, answered: Seq(0), root, proof }
    }

    fn dial(address: &str) -> (TcpStream, BytesMut) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&frame::opening()).unwrap();
        (stream, BytesMut::new())
    }

    /// Says Hello as a mount does, whose kernel is said to have checked all.
    fn hello(link: &mut (TcpStream, BytesMut), token: &str, resume: Option<Resume>) -> Answer {
        let (token, client) = (token.to_owned(), "raw".to_owned());
        let hello = Request::Hello(Hello { token, client, resume, kernel_checks: true });
        Raw::exchange(link, &RequestHeader::bare(1), &hello)
    }

    fn exchange(
        (stream, inbox): &mut (TcpStream, BytesMut),
        header: &RequestHeader,
        request: &Request,
    ) -> Answer {
        let mut out = Vec::new();
        assert!(header.put(request, &mut out));
        stream.write_all(&out).unwrap();
        loop {
            if let Some(frame) = frame::take_frame(inbox).unwrap() {
                return ReplyHeader::take(&frame).unwrap().1;
            }
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes).unwrap();
            assert!(read > 0, "the connection ended at {request:?}");
            inbox.extend_from_slice(&bytes[..read]);
        }
    }

    fn shards(&self) -> u16 {
        u16::try_from(self.welcome.map.shards.len()).unwrap()
    }

    /// Asks as often as it is told to wait, and where it is sent.
    fn ask(&mut self, request: &Request) -> Answer {
        let home = request.kind().about.map(|dir| dir.home);
        let mut shard = home.map_or(ShardId::SERVER, |home| shard_of(home, 0, self.shards()));
        for _ in 0..200 {
            match self.ask_at(shard, request) {
                Answer::Retry(Retry::Busy) => pause(Duration::from_millis(20)),
                Answer::Retry(Retry::Coordinate) => shard = ShardId::SERVER,
                answer => return answer,
            }
        }
        panic!("it never ends: {request:?}");
    }

    fn ask_at(&mut self, shard: ShardId, request: &Request) -> Answer {
        let map = &self.welcome.map;
        let server = usize::from(map.server_of(shard).unwrap_or(0));
        self.calls += 1;
        let mut header = RequestHeader {
            shard,
            epoch: Epoch(map.epoch.0),
            cred: self.cred.clone(),
            ..RequestHeader::bare(self.calls)
        };
        if request.mutates() {
            self.seq += 1;
            (header.seq, header.unanswered) = (Seq(self.seq), Seq(self.seq));
        }
        match Raw::exchange(&mut self.links[server], &header, request) {
            // A mount is told of the directories that its request has named, and of no other.
            Answer::Noted(noted) => {
                let named = dirs_of(request);
                let all = noted.dirs.iter().all(|told| named.contains(&told.ino));
                assert!(all, "{noted:?} to {request:?}");
                Answer::Done(noted.reply)
            }
            answer => answer,
        }
    }

    fn done(&mut self, request: &Request) -> Reply {
        match self.ask(request) {
            Answer::Done(reply) => reply,
            other => panic!("{other:?} to {request:?}"),
        }
    }

    fn lookup(&mut self, dir: DirRef, text: &str) -> wire::Entry {
        match self.done(&Request::Lookup(Lookup { dir, name: name(text) })) {
            Reply::Entry(entry) => entry,
            other => panic!("{other:?}"),
        }
    }

    fn dir(&mut self, dir: DirRef, text: &str) -> DirRef {
        self.lookup(dir, text).dir.unwrap()
    }

    fn file(&mut self, dir: DirRef, text: &str) -> FileRef {
        FileRef { dir, name: name(text), ino: self.lookup(dir, text).attr.ino }
    }

    fn mkdir(&mut self, dir: DirRef, text: &str) -> DirRef {
        self.done(&Request::Mkdir(Mkdir { dir, name: name(text), mode: 0o777 }));
        self.dir(dir, text)
    }

    fn create(&mut self, dir: DirRef, text: &str) -> FileRef {
        let (kind, mode) = (FileKind::File, 0o666);
        let create =
            Create { dir, name: name(text), kind, mode, rdev: 0, exclusive: true, open: None };
        self.done(&Request::Create(create));
        self.file(dir, text)
    }

    fn rename(&mut self, from: (DirRef, &str), to: (DirRef, &str)) {
        self.done(&Request::Rename(Rename {
            from_dir: from.0,
            from_name: name(from.1),
            to_dir: to.0,
            to_name: name(to.1),
            mode: RenameMode::Replace,
        }));
    }
}

/// A file system, of one server or three.
struct Site {
    _running: Running,
    _folder: tempfile::TempDir,
    data: PathBuf,
    address: String,
}

impl Site {
    fn alone() -> Site {
        let Data { folder } = Data::formatted();
        let data = Data { folder };
        let running = data.serve(&["--sessions-per-token", "5000"]);
        let (path, address) = (data.path(), running.address().to_owned());
        Site { _running: running, _folder: data.folder, data: path, address }
    }

    fn of_three() -> Site {
        let folder = folder();
        let dir = folder.path().join("dev");
        let args = ["dev", "--dir", text(&dir), "--servers", "3", "--listen", "127.0.0.1:0"];
        let running = Running::start(pando(&args), "serving ");
        let first = running.said.lines().find(|line| line.starts_with("server 0 at ")).unwrap();
        let address = first.split(" at ").nth(1).unwrap().split(',').next().unwrap().to_owned();
        let data = dir.join("server-0");
        Site { _running: running, _folder: folder, data, address }
    }

    fn admin(&self) -> Raw {
        Raw::open(&self.address, &self.data.join("admin.token"), Cred::ROOT)
    }

    fn token(&self, limits: &[&str]) -> PathBuf {
        let token = succeed(&[&["token", "create", "--data", text(&self.data)], limits].concat());
        let file = self._folder.path().join(format!("token{}", limits.concat().replace('/', "_")));
        fs::write(&file, token).unwrap();
        file
    }
}

/// Directories in which a request changes names.
fn dirs_of(request: &Request) -> Vec<Ino> {
    match request {
        Request::Create(req) => vec![req.dir.ino],
        Request::Mkdir(req) => vec![req.dir.ino],
        Request::Symlink(req) => vec![req.dir.ino],
        Request::Link(req) => vec![req.dir.ino],
        Request::Unlink(req) => vec![req.dir.ino],
        Request::Rmdir(req) => vec![req.dir.ino],
        Request::Rename(req) => vec![req.from_dir.ino, req.to_dir.ino],
        _ => Vec::new(),
    }
}

fn on_one_server_and_on_three(test: impl Fn(&Site)) {
    test(&Site::alone());
    test(&Site::of_three());
}

/// The weakest tokens for `/in`, and as whom they act.
fn weakest(site: &Site) -> Vec<(PathBuf, Cred, bool)> {
    let user = Cred { uid: USER, gid: USER, groups: Vec::new() };
    let of_user = ["--path", "/in", "--uid", "7", "--gid", "7"];
    vec![
        (site.token(&[&of_user[..], &["--ro"]].concat()), user.clone(), true),
        (site.token(&of_user), user, false),
        (site.token(&["--path", "/in"]), Cred::ROOT, false),
        (site.token(&["--path", "/in", "--squash", "all"]), Cred::ROOT, false),
        (
            site.token(&["--path", "/in", "--map-uid", "0:7:2000", "--map-gid", "0:7:2000"]),
            Cred::ROOT,
            false,
        ),
    ]
}

#[test]
fn no_kind_of_request_gets_the_holder_of_a_weak_token_out_of_it() {
    on_one_server_and_on_three(|site| {
        let mut admin = site.admin();
        let root = admin.welcome.root;
        let inside = admin.mkdir(root, "in");
        let outside = admin.mkdir(root, &format!("dir-{OUTSIDE}"));
        let deep = admin.mkdir(outside, &format!("deep-{OUTSIDE}"));
        let in_root = admin.create(root, &format!("root-{OUTSIDE}"));
        let secret = admin.create(outside, &format!("file-{OUTSIDE}"));
        let deeper = admin.create(deep, &format!("deep-file-{OUTSIDE}"));
        let leaves = admin.mkdir(inside, "leaves");
        let below = admin.mkdir(leaves, "below");
        let went = admin.create(below, "went");
        let tokens = weakest(site);
        // The sessions are shown a directory that is then moved out of their subtree, with
        // everything in it.
        let mut shown = Vec::new();
        for (token, cred, _) in &tokens {
            let mut raw = Raw::open(&site.address, token, cred.clone());
            let mine = raw.welcome.root;
            let leaves = raw.dir(mine, "leaves");
            let below = raw.dir(leaves, "below");
            raw.file(below, "went");
            shown.push((raw, leaves, below));
        }
        admin.rename((inside, "leaves"), (outside, &format!("left-{OUTSIDE}")));
        let before: Vec<_> =
            [&in_root, &secret, &deeper, &went].map(|file| state(&mut admin, file)).into();
        for ((_, cred, read_only), (raw, leaves, below)) in tokens.iter().zip(&mut shown) {
            let mine = raw.welcome.root;
            assert!(mine.same(&inside));
            let mut targets = Vec::new();
            for ticket in [0, 1, mine.ticket, leaves.ticket, raw.welcome.proof, u64::MAX] {
                for file in [&in_root, &secret, &deeper, &went] {
                    targets.push(FileRef { dir: DirRef { ticket, ..file.dir }, ..file.clone() });
                }
            }
            // A file that was shown once, and a number that was not, in a directory of its own.
            targets.push(FileRef { dir: *below, ..went.clone() });
            targets.push(FileRef { dir: *leaves, ..secret.clone() });
            for target in &targets {
                for mut request in all_requests() {
                    let verdict = verdict(&request);
                    // Requests that name nothing are sent once, and a request that ends the session
                    // never.
                    let again = verdict != Verdict::Outside && target != &targets[0];
                    if again || request == Request::Bye {
                        continue;
                    }
                    aim(&mut request, target.dir, target);
                    let answer = raw.ask(&request);
                    let said = format!("{answer:?}");
                    assert!(
                        is_right(verdict, &answer, *read_only),
                        "{said} to {request:?} of {cred:?}, which is {verdict:?}"
                    );
                    assert!(!said.contains(OUTSIDE), "{said} to {request:?}");
                }
            }
            let link = |target: &FileRef| {
                let target = NodeRef::File(target.clone());
                Request::Link(Link { target, dir: mine, name: name("got") })
            };
            for target in &targets {
                assert!(is_right(Verdict::Outside, &raw.ask(&link(target)), *read_only));
                let pretended = FileRef { dir: mine, ..target.clone() };
                assert!(is_right(Verdict::Outside, &raw.ask(&link(&pretended)), *read_only));
            }
            assert_eq!(raw.ask(&Request::Bye), Answer::Done(Reply::Nothing));
        }
        let after: Vec<_> =
            [&in_root, &secret, &deeper, &went].map(|file| state(&mut admin, file)).into();
        assert_eq!(before, after, "something has changed outside");
    });
}

/// The attributes of a file, as an administrator sees them.
fn state(admin: &mut Raw, file: &FileRef) -> Reply {
    admin.done(&Request::Getattr(Getattr { node: NodeRef::File(file.clone()) }))
}

#[test]
fn a_session_is_had_only_by_who_opened_it_and_with_the_rights_of_its_token() {
    on_one_server_and_on_three(|site| {
        let mut admin = site.admin();
        let root = admin.welcome.root;
        admin.mkdir(root, "in");
        let servers = admin.welcome.map.servers.clone();
        let real = Raw::resume_of(&admin.welcome);
        let tokens = weakest(site);
        for (token, cred, _) in &tokens {
            let own = Raw::open(&site.address, token, cred.clone());
            for address in &servers {
                // An administrator's session, known in whole, in part, or by its number only; then
                // our own with another root or another number.
                let guesses = [
                    real,
                    Resume { proof: own.welcome.proof, ..real },
                    Resume { proof: own.welcome.proof, secret: own.welcome.secret, ..real },
                    Resume { secret: 1, proof: 1, ..real },
                    Resume { root, ..Raw::resume_of(&own.welcome) },
                    Resume { session: SessionId(1), ..Raw::resume_of(&own.welcome) },
                ];
                for resume in guesses {
                    let mut link = Raw::dial(address);
                    match Raw::hello(&mut link, &own.token, Some(resume)) {
                        Answer::Done(Reply::Welcome(welcome)) => {
                            assert_ne!(welcome.session, resume.session, "{resume:?}");
                            assert!(!welcome.trusted && welcome.root.same(&own.welcome.root));
                        }
                        Answer::Refused(why) => assert!(why.contains("other rights"), "{why}"),
                        Answer::Retry(Retry::Moved(_)) => {}
                        other => panic!("{other:?}"),
                    }
                }
                // Attempts to resume its own session with a better token, and to make its own token
                // better.
                for (better, _, _) in tokens.iter().filter(|(other, _, _)| other != token) {
                    let better = fs::read_to_string(better).unwrap();
                    let mut link = Raw::dial(address);
                    let resume = Some(Raw::resume_of(&own.welcome));
                    match Raw::hello(&mut link, better.trim(), resume) {
                        Answer::Refused(why) => assert!(why.contains("other rights"), "{why}"),
                        other => panic!("{other:?}"),
                    }
                }
                let digits: BTreeSet<usize> = (7..own.token.len()).step_by(5).collect();
                for at in digits {
                    let mut forged = own.token.clone().into_bytes();
                    forged[at] = if forged[at] == b'0' { b'1' } else { b'0' };
                    let forged = String::from_utf8(forged).unwrap();
                    let mut link = Raw::dial(address);
                    match Raw::hello(&mut link, &forged, None) {
                        // The key that it names may be too new for this server, which sends it to
                        // the coordinator. There it is refused.
                        Answer::Refused(_) => {}
                        Answer::Retry(Retry::Busy) if *address != servers[0] => {}
                        other => panic!("{other:?} to {forged}"),
                    }
                }
                // Without a Hello there is no session.
                let mut link = Raw::dial(address);
                for request in all_requests() {
                    let answer = Raw::exchange(&mut link, &RequestHeader::bare(1), &request);
                    let refused = matches!(
                        answer,
                        Answer::Retry(Retry::NoSession | Retry::Busy) | Answer::Refused(_)
                    );
                    let challenged = matches!(request, Request::PeerHello(_))
                        && matches!(answer, Answer::Done(Reply::Challenge(_)));
                    assert!(refused || challenged, "{answer:?} to {request:?}");
                }
            }
        }
    });
}

#[test]
fn what_is_open_gets_no_name_in_a_subtree_that_it_has_left_on_any_server() {
    let site = Site::of_three();
    let mut admin = site.admin();
    let root = admin.welcome.root;
    let (inside, outside) = (admin.mkdir(root, "in"), admin.mkdir(root, "out"));
    let token = site.token(&["--path", "/in"]);
    let mut raw = Raw::open(&site.address, &token, Cred::ROOT);
    let mine = raw.welcome.root;
    // The directories lie on several servers.
    let dirs: Vec<_> = (0..6).map(|at| format!("dir{at}")).collect();
    let made: Vec<_> = dirs.iter().map(|text| admin.mkdir(inside, text)).collect();
    let shown: Vec<_> = dirs.iter().map(|text| raw.dir(mine, text)).collect();
    let link = |file: &FileRef, dir: DirRef, to: &str| {
        Request::Link(Link { target: NodeRef::File(file.clone()), dir, name: name(to) })
    };
    for (at, (&from, &dir)) in made.iter().zip(&shown).enumerate() {
        let (left, stayed) = (format!("left{at}"), format!("stayed{at}"));
        let opened = [&left, &stayed].map(|text| {
            let born = admin.create(from, text);
            if at % 2 == 1 {
                // The inode is under no name then.
                admin.done(&link(&born, outside, &format!("{text} too")));
            }
            let file = raw.file(dir, text);
            let number = raw.calls;
            let open = Request::Open(Open { file: file.clone(), number, access: 6 });
            let shard = shard_of(dir.home, 0, raw.shards());
            match raw.ask_at(shard, &open) {
                Answer::Done(Reply::Opened(_)) => {}
                Answer::Retry(Retry::AtBirth(ticket)) => {
                    let file = FileRef { dir: DirRef { ticket, ..dir }, ..file.clone() };
                    let open = Request::Open(Open { file, number, access: 6 });
                    let answer = raw.ask_at(born.ino.shard(), &open);
                    assert!(matches!(answer, Answer::Done(Reply::Opened(_))), "{answer:?}");
                }
                other => panic!("{other:?}"),
            }
            file
        });
        let next = (at + 1) % made.len();
        admin.rename((from, &left), (outside, &left));
        admin.rename((from, &stayed), (made[next], &stayed));
        for (to, &dir) in shown.iter().enumerate() {
            for file in &opened {
                let answer = raw.ask(&link(file, dir, &format!("got{to}")));
                assert!(is_right(Verdict::Outside, &answer, false), "{at} to {to}: {answer:?}");
            }
        }
        let found = raw.file(shown[next], &stayed);
        raw.done(&link(&found, dir, &format!("again{at}")));
    }
}

#[test]
fn a_file_that_was_shown_by_its_number_is_out_of_reach_when_it_has_left() {
    let site = Site::of_three();
    let mut admin = site.admin();
    let root = admin.welcome.root;
    let (inside, outside) = (admin.mkdir(root, "in"), admin.mkdir(root, "out"));
    let token = site.token(&["--path", "/in"]);
    let mut raw = Raw::open(&site.address, &token, Cred::ROOT);
    let mine = raw.welcome.root;
    let mut by_number = 0;
    for at in 0..12 {
        let (one, two) = (format!("one{at}"), format!("two{at}"));
        let (from, to) = (admin.mkdir(inside, &one), admin.mkdir(inside, &two));
        let born = admin.create(from, "f");
        let target = NodeRef::File(born.clone());
        admin.done(&Request::Link(Link { target, dir: to, name: name("g") }));
        let dir = raw.dir(mine, &two);
        let file = FileRef { dir, name: name("g"), ino: born.ino };
        let shard = shard_of(dir.home, 0, raw.shards());
        let getattr = |file| Request::Getattr(Getattr { node: NodeRef::File(file) });
        let Answer::Retry(Retry::AtBirth(ticket)) = raw.ask_at(shard, &getattr(file.clone()))
        else {
            continue;
        };
        by_number += 1;
        let file = FileRef { dir: DirRef { ticket, ..dir }, ..file };
        let mut asks = |what: &str, found: bool| {
            let answer = loop {
                match raw.ask_at(born.ino.shard(), &getattr(file.clone())) {
                    Answer::Retry(Retry::Busy) => pause(Duration::from_millis(20)),
                    answer => break answer,
                }
            };
            match found {
                true => {
                    assert!(matches!(answer, Answer::Done(Reply::Attr(_))), "{what}: {answer:?}")
                }
                false => assert!(is_right(Verdict::Outside, &answer, false), "{what}: {answer:?}"),
            }
        };
        asks("it is there", true);
        // Within the subtree its directory may be anywhere.
        let aside = admin.mkdir(inside, &format!("aside{at}"));
        admin.rename((inside, &two), (aside, "two"));
        asks("its directory was moved", true);
        if at % 2 == 0 {
            admin.rename((to, "g"), (outside, &format!("g{at}")));
            asks("it has left", false);
        } else {
            admin.rename((aside, "two"), (outside, &two));
            asks("its directory has left", false);
        }
    }
    assert!(by_number > 1, "all files are where their names are");
}
