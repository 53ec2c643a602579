//! Programs beside a mount, over a file system in memory.

use std::sync::Arc;

use base::{
    Access, Clock as _, Cred, EntryName, FileKind, HashKey, Ino, SetAttr,
    preload::{ANSWER_BYTES, ASK_MOUNT, Answer, Ask, Kind, VERSION, flag},
};
use bytes::Bytes;
use client::{FileSystem as _, New, SystemClock};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use wire::{DirRef, FileRef, NodeRef};

use super::{Peer, Programs};
use crate::{Calls, Memory, Region, Settings};

const ROOT: Peer = Peer { pid: 7, uid: 0, gid: 0 };
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const USER: Peer = Peer { pid: 8, uid: 1000, gid: 1000 };

/// A region, and the directories of which the kernel was told that they have changed.
struct World {
    region: Region,
    programs: Programs,
    told: Arc<Mutex<Vec<Ino>>>,
}

fn world() -> World {
    let clock = Arc::new(SystemClock);
    let memory = Memory::new(Arc::clone(&clock) as Arc<dyn base::Clock>);
    let key = HashKey::new(1, clock.now().nsec.into());
    let settings = Settings::default();
    let region = Region::new(Arc::new(memory), Calls::Here, settings, clock, key).unwrap();
    let told = Arc::<Mutex<Vec<Ino>>>::default();
    let tells = Arc::clone(&told);
    let programs = Programs::new(
        region.clone(),
        TOKEN.to_owned(),
        Arc::new(move |dir| tells.lock().push(dir)),
    );
    World { region, programs, told }
}

/// A program, and what serves it.
struct Program(DuplexStream);

impl World {
    async fn program(&self, peer: Peer) -> Program {
        let (here, there) = duplex(1 << 20);
        let programs = self.programs.clone();
        tokio::spawn(async move { programs.serve(peer, there).await });
        let mut program = Program(here);
        let mut hello = Ask::new(Kind::Hello);
        (hello.at, hello.offset) = (42, VERSION);
        assert_eq!(program.ask(hello, TOKEN.as_bytes()).await.0.status, 0);
        program
    }

    /// Looks a name up as a mount does.
    async fn look(&self, name: &str) -> Option<wire::Entry> {
        self.region.lookup(&Cred::ROOT, &DirRef::ROOT, &entry(name)).await.ok()
    }
}

impl Program {
    async fn send(&mut self, ask: Ask, body: &[u8]) {
        self.0.write_all(&ask.header(body.len())).await.unwrap();
        self.0.write_all(body).await.unwrap();
    }

    async fn ask(&mut self, ask: Ask, body: &[u8]) -> (Answer, Vec<u8>) {
        self.send(ask, body).await;
        let mut header = [0; ANSWER_BYTES];
        self.0.read_exact(&mut header).await.unwrap();
        let total = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let mut rest = vec![0; total - ANSWER_BYTES];
        self.0.read_exact(&mut rest).await.unwrap();
        (Answer::parse(&header), rest)
    }

    /// Asks of a path from the region's directory.
    async fn at(&mut self, kind: Kind, flags: u16, mode: u32, path: &str) -> Answer {
        let mut ask = Ask::new(kind);
        (ask.flags, ask.mode, ask.at) = (flags, mode, Ino::ROOT.0);
        self.ask(ask, path.as_bytes()).await.0
    }

    async fn create(&mut self, path: &str) -> Answer {
        let flags = flag::CREATE | flag::EXCLUSIVE | flag::WRITE | flag::READ;
        self.at(Kind::Open, flags, 0o644, path).await
    }

    async fn write(&mut self, handle: u64, flags: u16, text: &str) -> Answer {
        let mut ask = Ask::new(Kind::Write);
        (ask.at, ask.flags) = (handle, flags);
        self.ask(ask, text.as_bytes()).await.0
    }

    async fn read(&mut self, handle: u64) -> (i32, Vec<u8>) {
        let mut ask = Ask::new(Kind::Read);
        (ask.at, ask.len) = (handle, 100);
        let (answer, read) = self.ask(ask, b"").await;
        (answer.status, read)
    }
}

fn entry(name: &str) -> EntryName {
    EntryName::new(name.as_bytes()).unwrap()
}

#[tokio::test]
async fn a_program_and_the_mount_see_one_file_system() {
    let world = world();
    let mut program = world.program(ROOT).await;
    assert_eq!(program.at(Kind::Mkdir, 0, 0o755, "d").await.status, 0);
    assert_eq!(program.at(Kind::Mkdir, 0, 0o755, "d").await.status, libc::EEXIST);
    let made = program.create("d/./f").await;
    assert_eq!(made.status, 0);
    assert_eq!(program.write(made.value, 0, "four").await.value, 4);
    assert_eq!(program.write(made.value, flag::APPEND, "teen").await.value, 8);
    assert_eq!(program.read(made.value).await, (0, b"fourteen".to_vec()));
    // A name of the mount's is seen at once, and one that it has removed is not.
    let d = world.look("d").await.unwrap().dir.unwrap();
    let new = New { kind: FileKind::File, mode: 0o600, rdev: 0 };
    world.region.create(&Cred::ROOT, &d, &entry("g"), new, true, false).await.unwrap();
    let found = program.at(Kind::Stat, 0, 0, "d/g").await;
    assert_eq!((found.status, found.stat.mode), (0, 0o100_600));
    world.region.unlink(&Cred::ROOT, &d, &entry("g")).await.unwrap();
    assert_eq!(program.at(Kind::Stat, 0, 0, "d/g").await.status, libc::ENOENT);
    let f = world.region.lookup(&Cred::ROOT, &d, &entry("f")).await.unwrap();
    assert_eq!((f.attr.size, f.attr.ino), (8, Ino(made.stat.ino)));
    world.region.check();
}

#[tokio::test]
async fn what_the_kernel_may_have_cached_is_the_mount_s() {
    let world = world();
    let mut program = world.program(ROOT).await;
    let made = program.create("f").await;
    assert_eq!(program.write(made.value, 0, "x").await.status, 0);
    assert!(world.look("f").await.is_some());
    // From now on the kernel may have pages, attributes and the name.
    assert_eq!(program.write(made.value, 0, "y").await.status, ASK_MOUNT);
    assert_eq!(program.at(Kind::Open, flag::READ, 0, "f").await.status, ASK_MOUNT);
    assert_eq!(program.at(Kind::Set, flag::MODE, 0o600, "f").await.status, ASK_MOUNT);
    assert_eq!(program.at(Kind::Unlink, 0, 0, "f").await.status, ASK_MOUNT);
    // The kernel opens it by its number, whatever its name is.
    let (root, f) = (DirRef::ROOT, entry("f"));
    world.region.unlink(&Cred::ROOT, &root, &f).await.unwrap();
    let hidden = format!(".pando-region-open-{TOKEN}-{}", made.stat.ino);
    let guessed = format!(".pando-region-open-{}-{}", "0".repeat(32), made.stat.ino);
    assert!(world.look(&guessed).await.is_none());
    let found = world.look(&hidden).await.unwrap();
    let file = FileRef { dir: root, name: entry(&hidden), ino: found.attr.ino };
    let opened = world.region.open(&Cred::ROOT, &file, Some(Access::READ)).await.unwrap();
    assert_eq!(world.region.read(opened, 0, 10).await.unwrap(), Bytes::from_static(b"x"));
    // No program makes such a name, and it is gone with the program's last handle.
    let mut close = Ask::new(Kind::Close);
    close.at = made.value;
    program.send(close, b"").await;
    assert_eq!(program.create(&hidden).await.status, ASK_MOUNT);
    assert!(world.look(&hidden).await.is_none());
}

#[tokio::test]
async fn the_kernel_is_told_of_a_directory_whose_names_change_if_it_knows_it() {
    let world = world();
    let mut program = world.program(ROOT).await;
    program.at(Kind::Mkdir, 0, 0o755, "d").await;
    world.told.lock().clear();
    program.create("d/unseen").await;
    assert!(world.told.lock().is_empty());
    let d = world.look("d").await.unwrap();
    program.create("d/one").await;
    program.create("d/two").await;
    assert_eq!(*world.told.lock(), [d.attr.ino], "once is enough until it asks again");
    let dir = NodeRef::Dir(d.dir.unwrap());
    world.region.getattr(&Cred::ROOT, &dir).await.unwrap();
    program.at(Kind::Unlink, 0, 0, "d/one").await;
    assert_eq!(*world.told.lock(), [d.attr.ino; 2]);
    for mode in [0o775, 0o700] {
        // A change through the mount tells the kernel attributes, too.
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        world.region.setattr(&Cred::ROOT, &dir, set).await.unwrap();
        program.create(&format!("d/{mode}")).await;
    }
    assert_eq!(*world.told.lock(), [d.attr.ino; 4]);
}

#[tokio::test]
async fn a_user_gets_what_its_own_bits_give_and_is_sent_to_the_kernel_else() {
    let world = world();
    let mut root = world.program(ROOT).await;
    let mut user = world.program(USER).await;
    root.at(Kind::Mkdir, 0, 0o777, "others").await;
    root.at(Kind::Mkdir, 0, 0o755, "own").await;
    let own = world.look("own").await.unwrap().dir.unwrap();
    let owner = SetAttr { uid: Some(1000), ..SetAttr::default() };
    world.region.setattr(&Cred::ROOT, &NodeRef::Dir(own), owner).await.unwrap();
    // The region's directory is root's: the kernel knows what others may do in it.
    assert_eq!(user.at(Kind::Stat, 0, 0, "own").await.status, ASK_MOUNT);
    let mut ask = Ask::new(Kind::Open);
    (ask.at, ask.mode) = (own.ino.0, 0o644);
    ask.flags = flag::CREATE | flag::WRITE;
    let made = user.ask(ask, b"f").await.0;
    assert_eq!(made.status, 0);
    // Groups and set-id bits are the kernel's to decide.
    let mut set = Ask::new(Kind::Set);
    (set.at, set.flags) = (made.value, flag::HANDLE | flag::GID);
    assert_eq!(user.ask(set, b"").await.0.status, ASK_MOUNT);
    (set.flags, set.mode) = (flag::HANDLE | flag::MODE, 0o4755);
    assert_eq!(user.ask(set, b"").await.0.status, ASK_MOUNT);
    // A handle of another process is none.
    let mut read = Ask::new(Kind::Read);
    (read.at, read.len) = (made.value, 10);
    assert_eq!(root.ask(read, b"").await.0.status, libc::EBADF);
    // One that could not be opened anew is not opened beside the mount.
    ask.mode = 0o444;
    assert_eq!(user.ask(ask, b"g").await.0.status, ASK_MOUNT);
}

#[tokio::test]
async fn what_is_not_simple_is_for_the_mount() {
    let world = world();
    let mut program = world.program(ROOT).await;
    program.at(Kind::Mkdir, 0, 0o755, "d").await;
    let mut link = Ask::new(Kind::Symlink);
    (link.at, link.len, link.mode) = (Ino::ROOT.0, 4, 0o777);
    assert_eq!(program.ask(link, b"linkd").await.0.status, 0);
    for path in ["", ".", "d/", "d/.", "../d", "d/../d", "link/f"] {
        assert_eq!(program.at(Kind::Stat, 0, 0, path).await.status, ASK_MOUNT, "{path:?}");
    }
    assert_eq!(program.at(Kind::Stat, flag::NO_FOLLOW, 0, "link").await.status, 0);
    assert_eq!(program.at(Kind::Open, flag::READ, 0, "link").await.status, ASK_MOUNT);
    assert_eq!(program.at(Kind::Unlink, 0, 0, "d").await.status, ASK_MOUNT);
    assert_eq!(program.at(Kind::Open, flag::READ, 0, "none/f").await.status, libc::ENOENT);
    // A file grows through the mount.
    let made = program.create("f").await;
    let large = "x".repeat(5000);
    assert_eq!(program.write(made.value, 0, &large).await.status, ASK_MOUNT);
    assert_eq!(program.write(made.value, 0, &large[..4096]).await.status, 0);
    assert_eq!(program.write(made.value, flag::APPEND, "x").await.status, ASK_MOUNT);
    let mut unknown = Ask::new(Kind::Stat);
    unknown.at = 12_345;
    assert_eq!(program.ask(unknown, b"f").await.0.status, ASK_MOUNT);
}

#[tokio::test]
async fn what_a_process_has_open_is_closed_with_its_last_connection() {
    let world = world();
    let mut first = world.program(ROOT).await;
    let second = world.program(ROOT).await;
    let made = first.create("f").await;
    assert_eq!(first.at(Kind::Unlink, 0, 0, "f").await.status, 0);
    assert_eq!((world.programs.processes(), world.region.open_handles()), (1, 1));
    assert_eq!(world.programs.written_files(), 0);
    drop(first);
    tokio::task::yield_now().await;
    // The other connection is of the same process.
    let mut second = second;
    assert_eq!(second.write(made.value, 0, "still").await.status, 0);
    assert_eq!(world.programs.written_files(), 1);
    drop(second);
    while world.programs.processes() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.region.open_handles(), 0);
    world.region.check();
}

#[tokio::test]
async fn who_speaks_another_language_is_left() {
    let world = world();
    for first in [0_u32, 63, u32::MAX] {
        let (mut here, there) = duplex(1 << 10);
        here.write_all(&first.to_le_bytes()).await.unwrap();
        world.programs.serve(ROOT, there).await;
    }
    let wrong = [
        (Kind::Hello, VERSION + 1, TOKEN),
        (Kind::Mkdir, VERSION, TOKEN),
        (Kind::Hello, VERSION, "another token"),
    ];
    for (kind, version, token) in wrong {
        let (mut here, there) = duplex(1 << 10);
        let mut ask = Ask::new(kind);
        ask.offset = version;
        here.write_all(&ask.header(token.len())).await.unwrap();
        here.write_all(token.as_bytes()).await.unwrap();
        world.programs.serve(ROOT, there).await;
    }
    assert_eq!(world.programs.processes(), 0);
}

#[tokio::test]
async fn a_region_in_which_something_is_mounted_or_watched_is_used_by_its_mount() {
    let world = world();
    let mut program = world.program(ROOT).await;
    let made = program.create("f").await;
    world.programs.use_mount(true);
    assert_eq!(program.create("g").await.status, ASK_MOUNT);
    assert_eq!(program.at(Kind::Stat, 0, 0, "f").await.status, ASK_MOUNT);
    assert_eq!(program.write(made.value, 0, "its own").await.status, 0);
    world.programs.use_mount(false);
    assert_eq!(program.create("g").await.status, 0);
    assert_eq!(program.ask(Ask::new(Kind::Watch), b"").await.0.status, 0);
    assert_eq!(program.create("h").await.status, ASK_MOUNT);
    assert_eq!(program.write(made.value, 0, "seen").await.status, ASK_MOUNT);
    assert_eq!(program.at(Kind::Stat, 0, 0, "f").await.status, 0);
}
