//! Random calls to both file systems have equal answers and leave equal trees.

use std::collections::BTreeMap;

use base::{Attr, FileKind, FsError};
use wire::{AllocateMode, RenameMode, XattrMode};

use super::*;
use crate::Contents;

const WORLDS: u64 = 200;
const CALLS: u32 = 250;

/// Random numbers (xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.roll(all.len() as u64)).unwrap()]
    }

    fn path(&mut self) -> Path {
        let depth = self.one_of(&[0, 1, 1, 1, 1, 2, 2, 2, 2, 3]);
        let names: Vec<&str> = (0..depth).map(|_| self.one_of(&["a", "b", "c"])).collect();
        path(names.join("/"))
    }

    fn bytes(&mut self) -> Arc<Vec<u8>> {
        let byte = u8::try_from(self.roll(256)).unwrap();
        let len = self.one_of(&[0, 1, 100, 4095, 4096, 4097, 10_000]);
        Arc::new((0..len).map(|at| byte.wrapping_add(u8::try_from(at % 251).unwrap())).collect())
    }

    fn mode(&mut self) -> u32 {
        self.one_of(&[0o644, 0o755, 0o600, 0o444, 0, 0o4755, 0o2755, 0o1777])
    }
}

/// The attributes that must be equal. Times are those of different clocks; a directory's size and
/// number of names are the file system's own.
type Same = (FileKind, u32, u32, u64, (u32, u32), bool);

fn same(attr: Attr) -> Same {
    let is_dir = attr.kind == FileKind::Directory;
    let (nlink, size) = if is_dir { (0, 0) } else { (attr.nlink, attr.size) };
    (attr.kind, attr.mode, nlink, size, (attr.uid, attr.gid), attr.mtime == time(12))
}

fn found(found: Found) -> (Same, bool) {
    let (kind, mode, nlink, size, owner, _) = same(found.attr);
    ((kind, mode, nlink, size, owner, false), found.default_acl)
}

/// Attributes, contents and extended attributes of each path.
type Tree = BTreeMap<Path, (Same, String, Vec<(bytes::Bytes, bytes::Bytes)>)>;

fn tree(below: &dyn Below) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![Path::root()];
    while let Some(at) = todo.pop() {
        let attr = below.look(&at).unwrap().unwrap().attr;
        let bytes = match attr.kind {
            FileKind::File => below.read(&at, usize::MAX).unwrap(),
            FileKind::Symlink => below.target(&at).unwrap().to_vec(),
            FileKind::Directory => {
                todo.extend(
                    below.list(&at, usize::MAX).unwrap().iter().map(|entry| at.child(&entry.name)),
                );
                Vec::new()
            }
            _ => Vec::new(),
        };
        let mut xattrs = below.xattrs(&at).unwrap();
        xattrs.sort();
        tree.insert(at, (same(attr), in_runs(&bytes), xattrs));
    }
    tree
}

/// Bytes as the runs in which each is one more than the last, or each is zero: these are short.
fn in_runs(bytes: &[u8]) -> String {
    let runs = bytes.chunk_by(|one, two| one.wrapping_add(1) == *two || (*one, *two) == (0, 0));
    runs.map(|run| format!("{}..{},{} ", run[0], run[run.len() - 1], run.len())).collect()
}

/// One file system, and what is open in it.
struct World<'a> {
    below: &'a dyn Below,
    open: Vec<Arc<dyn Contents>>,
}

/// A call's answer, for comparison.
type Answer = Result<String, FsError>;

fn told<T: std::fmt::Debug>(result: crate::below::Result<T>) -> Answer {
    result.map(|value| format!("{value:?}"))
}

/// Makes one call, the same for equal dice.
fn call(world: &mut World<'_>, dice: &mut Dice) -> (String, Answer) {
    let below = world.below;
    let (at, to) = (dice.path(), dice.path());
    let which = dice.roll(18);
    let said = format!("{which} {at} {to}");
    let answer = match which {
        0 | 1 => told(below.make(&at, &New::File(dice.bytes()), &meta(dice.mode())).map(found)),
        2 | 3 => told(below.make(&at, &New::Directory, &meta(dice.mode())).map(found)),
        4 => told(below.make(&at, &New::Symlink("a/b".into()), &meta(0o777)).map(found)),
        5 => told(below.make(&at, &New::Special(FileKind::Fifo, 0), &meta(dice.mode())).map(found)),
        6 => told(below.unlink(&at)),
        7 => told(below.rmdir(&at)),
        8 | 9 => {
            let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            told(below.rename(&at, &to, dice.one_of(&modes)))
        }
        10 => told(below.link(&at, &to)),
        11 => {
            let change = Change {
                contents: (dice.roll(2) == 0).then(|| dice.bytes()),
                mode: (dice.roll(2) == 0).then(|| dice.mode()),
                owner: None,
                times: (dice.roll(2) == 0).then(|| (time(11), time(12))),
            };
            told(below.set(&at, &change).map(found))
        }
        12 => {
            let name = dice.one_of(&[&b"user.a"[..], b"user.b", b"user.c"]);
            let modes = [XattrMode::Set, XattrMode::Create, XattrMode::Replace];
            told(below.set_xattr(&at, name, b"value", dice.one_of(&modes)))
        }
        13 => told(below.remove_xattr(&at, dice.one_of(&[&b"user.a"[..], b"user.b"]))),
        14 => told(below.look(&at).map(|there| there.map(found))),
        15 => told(below.open(&at).map(|open| world.open.push(open))),
        16 => told(below.unnamed(&at, &meta(dice.mode())).map(|(there, open)| {
            world.open.push(open);
            found(there)
        })),
        _ => on_open(world, dice, &to),
    };
    (said, answer)
}

fn on_open(world: &mut World<'_>, dice: &mut Dice, to: &Path) -> Answer {
    if world.open.is_empty() {
        return told(Ok(()));
    }
    let at = usize::try_from(dice.roll(world.open.len() as u64)).unwrap();
    let open = &world.open[at];
    let offset = dice.one_of(&[0, 1, 4095, 4096, 9000]);
    match dice.roll(7) {
        0 => told(open.write_at(offset, &dice.bytes())),
        1 => told(open.read_at(offset, 5000).map(|bytes| in_runs(&bytes))),
        2 => told(open.truncate(offset)),
        3 => {
            use AllocateMode::{Grow, Keep, Zero, ZeroWithin};
            told(open.allocate(offset, 3000, dice.one_of(&[Grow, Keep, Zero, ZeroWithin])))
        }
        4 => told(open.link(to)),
        5 => told(open.attr().map(|attr| found(Found { attr, default_acl: false }))),
        _ => {
            world.open.swap_remove(at);
            told(Ok(()))
        }
    }
}

#[test]
fn random_calls_have_equal_answers() {
    for seed in 1..=WORLDS {
        let memory = memory();
        let outside = tempfile::tempdir().unwrap();
        let mounted = Mounted::open(outside.path()).unwrap();
        let root = Change { owner: Some((meta(0).uid, meta(0).gid)), ..mode(0o755) };
        let mut worlds = [&memory as &dyn Below, &mounted].map(|below| {
            below.set(&Path::root(), &root).unwrap();
            World { below, open: Vec::new() }
        });
        let mut log = Vec::new();
        for number in 0..CALLS {
            let [(said, one), (_, other)] = worlds.each_mut().map(|world| {
                let begin = (seed << 32 | u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                call(world, &mut Dice(begin))
            });
            log.push(format!("{said}: {one:?}"));
            assert_eq!(one, other, "seed={seed}\n{}", log.join("\n"));
        }
        memory.check();
        let (one, other) = (tree(&memory), tree(&mounted));
        let differs = one.iter().zip(&other).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed={seed}\n{}", log.join("\n"));
        assert_eq!((one.len(), one.len()), (other.len(), memory.tree().len()), "seed={seed}");
        drop(worlds);
        memory.check();
    }
}
