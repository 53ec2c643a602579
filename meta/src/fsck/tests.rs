//! Each kind of damage is found and named, and nothing else is.

mod jobs;
mod random;
mod repaired;
mod shares;

use base::{DirId, Ino, NameVersion, SearchClass, SessionId, ShardId, placement::shard_of};
use bytes::Bytes;
use store::{Batch, Engine as _};
use wire::{DirRef, FileRef};

use crate::{
    ops::tests::{
        client::{Client, name},
        world::{World, in_damaged_world},
    },
    record::{
        ChunkRecord, Content, ContentState, Contents, EntryRecord, Key, Location, QuotaId,
        QuotaRecord, QuotaState, Reclaim, ReclaimKind, Record, RenameList, Slot, Usage, Xattrs,
        key,
        key::{Part, UsagePart},
        system::{Reserved, StoredAnswers},
    },
};

/// A tree with one of everything, and the client that made it.
struct Tree {
    client: Client,
    root: DirRef,
    a: DirRef,
    /// Born as `/sub`, lives at `/a/sub`.
    sub: DirRef,
    file: FileRef,
    big: FileRef,
    spilled: FileRef,
    /// Names `/l1` and `/a/l2`.
    linked: FileRef,
    /// Born as `/moved`, lives at `/a/moved`.
    moved: FileRef,
    orphan: FileRef,
}

async fn plant(world: &mut World) -> Tree {
    let mut client = world.client().await;
    let root = client.root;
    let a = client.mkdir(&root, "a").await.unwrap();
    let sub = client.mkdir(&root, "sub").await.unwrap();
    client.rename((&root, "sub"), (&a, "sub")).await.unwrap();
    client.set_xattr(&sub, "user.big", &[1; 2000]).await.unwrap();
    let file = client.create(&a, "file").await.unwrap();
    client.write(&file, 0, b"inline").await.unwrap();
    let big = client.create(&a, "big").await.unwrap();
    client.write_blocks(&big, 0, &[1; 9000]).await.unwrap();
    let spilled = client.create(&a, "spilled").await.unwrap();
    client.set_xattr(&spilled, "user.big", &[1; 2000]).await.unwrap();
    let linked = client.create(&root, "l1").await.unwrap();
    client.link(&linked, &a, "l2").await.unwrap();
    client.set_xattr(&linked, "user.big", &[1; 2000]).await.unwrap();
    client.create(&root, "moved").await.unwrap();
    let moved = client.lookup(&root, "moved").await.unwrap().attr.ino;
    client.rename((&root, "moved"), (&a, "moved")).await.unwrap();
    let moved = FileRef { dir: a, name: name("moved"), ino: moved };
    let orphan = client.create(&root, "orphan").await.unwrap();
    client.open_file(&orphan).await.unwrap();
    client.unlink(&root, "orphan").await.unwrap();
    Tree { client, root, a, sub, file, big, spilled, linked, moved, orphan }
}

/// The engine's records, to be damaged.
struct Damage<'w>(&'w World);

impl Damage<'_> {
    fn shards(&self) -> u16 {
        self.0.server.shared.config.shards
    }

    fn name_key(&self, dir: DirId, text: &str, part: Part) -> Key {
        let name = name(text);
        let pos = self.0.server.shared.config.hash_key.pos(&name);
        key::name(shard_of(dir, 0, self.shards()), dir, pos, &name, part)
    }

    fn content_key(&self, dir: DirId) -> Key {
        key::content(shard_of(dir, 0, self.shards()), dir, 0, Part::Main)
    }

    fn change<R: Record>(&self, key: &[u8], change: impl FnOnce(&mut R)) {
        let stored = self.0.engine.get(key).unwrap().expect("there is such a record");
        let mut record = R::from_record(&stored).unwrap();
        change(&mut record);
        self.put(key, &record);
    }

    fn put<R: Record>(&self, key: &[u8], record: &R) {
        self.put_bytes(key, &record.to_record());
    }

    fn put_bytes(&self, key: &[u8], bytes: &[u8]) {
        let mut batch = Batch::new();
        batch.put(key, bytes);
        self.0.engine.write(batch).unwrap();
    }

    fn delete(&self, key: &[u8]) {
        assert!(self.0.engine.get(key).unwrap().is_some());
        let mut batch = Batch::new();
        batch.delete(key);
        self.0.engine.write(batch).unwrap();
    }

    fn take(&self, key: &[u8]) -> Bytes {
        let bytes = self.0.engine.get(key).unwrap().unwrap();
        self.delete(key);
        bytes
    }

    fn content(&self, dir: &DirRef, change: impl FnOnce(&mut Content)) {
        self.change(&self.content_key(dir.id), change);
    }

    fn inode(&self, dir: &DirRef, text: &str, change: impl FnOnce(&mut crate::record::Inode)) {
        self.change(
            &self.name_key(dir.id, text, Part::Main),
            |entry: &mut EntryRecord| match entry {
                EntryRecord::Node(inode) => change(inode),
                EntryRecord::Dir(_) | EntryRecord::Link(_) => panic!("no inode"),
            },
        );
    }

    fn chunk(&self, file: &FileRef, change: impl FnOnce(&mut ChunkRecord)) {
        self.change(&key::chunk(file.ino, 0), change);
    }
}

/// Damages a new tree and expects a finding with each of these words (`…` stands for any others)
/// and no further finding; then repairs it, and expects no findings.
fn finds(words: &[&str], damage: impl Fn(&Damage<'_>, &Tree)) {
    in_damaged_world(async |world| {
        let mut tree = found(world, words, damage).await;
        mends(&mut tree.client).await;
    });
}

/// Like [`finds`]; the server is restarted after the damage, as it may have the record in memory.
fn finds_at_start(words: &[&str], damage: impl Fn(&Damage<'_>, &Tree)) {
    in_damaged_world(async |world| {
        let mut tree = found(world, words, damage).await;
        world.restart().await;
        tree.client.resume(world).await;
        tree.client.claim_nothing().await;
        mends(&mut tree.client).await;
        world.restart().await;
        assert_eq!(world.findings().await, Vec::<String>::new());
    });
}

/// Like [`finds`], for damage that is not repaired.
fn only_finds(words: &[&str], damage: impl Fn(&Damage<'_>, &Tree)) {
    in_damaged_world(async |world| {
        found(world, words, damage).await;
    });
}

async fn found(world: &mut World, words: &[&str], damage: impl Fn(&Damage<'_>, &Tree)) -> Tree {
    let mut tree = plant(world).await;
    assert_eq!(tree.client.fsck(false).await.findings, Vec::<String>::new());
    damage(&Damage(world), &tree);
    world.server.shared.record_cache.clear();
    let mut findings = tree.client.fsck(false).await.findings;
    for words in words {
        let is_it = |finding: &String| words.split('…').all(|part| finding.contains(part));
        let found = findings.iter().position(is_it);
        let found = found.unwrap_or_else(|| panic!("{words:?} is not among {findings:#?}"));
        findings.remove(found);
    }
    // Records that cannot be read any more count for nobody.
    findings.retain(|finding| !finding.contains("quota of user") && !finding.contains("of group"));
    assert_eq!(findings, [""; 0], "beside {words:?}");
    tree
}

/// Repairs everything: a second check finds nothing, and a second repair does nothing. Without
/// leave to discard, only lost contents may remain as findings.
async fn mends(client: &mut Client) {
    let kept = client.repair(false).await;
    let is_repaired = |line: &&String| line.starts_with("repaired: ");
    let left: Vec<_> = kept.findings.iter().filter(|line| !is_repaired(line)).collect();
    assert!(left.iter().all(|line| line.contains("chunk ")), "{kept:#?}");
    assert_eq!(kept.findings_total, left.len() as u64);
    if !left.is_empty() {
        let discarded = client.repair(true).await;
        assert!(discarded.findings.iter().all(|line| is_repaired(&line)), "{discarded:#?}");
        assert_eq!(discarded.findings_total, 0);
    }
    assert_eq!(client.fsck(false).await.findings, Vec::<String>::new(), "after {kept:#?}");
    assert_eq!(client.repair(true).await.findings, Vec::<String>::new());
}

#[test]
fn damaged_records_are_found() {
    finds(&["/a/file is damaged"], |damage, tree| {
        damage.put_bytes(&damage.name_key(tree.a.id, "file", Part::Main), b"\x01junk");
    });
    finds(
        &[
            "the content record of directory",
            "the content record of directory",
            "the rename list of /sub has version 0, which lives nowhere else",
            "the content record of /a/sub is damaged",
            "/a/sub has no content record",
            ": extended attributes of nothing",
        ],
        |damage, tree| damage.put_bytes(&damage.content_key(tree.sub.id), b"\x02"),
    );
    finds(
        &[
            "the slot of inode … is damaged",
            "the slot of inode … is damaged",
            "the slot of inode … is damaged",
            "inode …: extended attributes of nothing",
            "/l1 leads to inode …, which is not in its slot",
            "/a/l2 leads to inode …, which is not in its slot",
        ],
        |damage, tree| damage.put_bytes(&key::inode(tree.linked.ino, Part::Main), b""),
    );
    finds(&["chunk 0 of inode", "/a/big counts 9000 bytes, but has 0"], |damage, tree| {
        damage.put_bytes(&key::chunk(tree.big.ino, 0), b"\x01\xff");
    });
    finds(&["stored answer"], |damage, tree| {
        damage.put_bytes(&key::answer(tree.client.welcome.session, 0), b"\x01");
    });
    finds(&["holds no answer to request"], |damage, tree| {
        let key = key::answer(tree.client.welcome.session, 0);
        damage.change(&key, |stored: &mut StoredAnswers| stored.answers[0].1 = Bytes::new());
    });
    finds(&["note to reclaim inode"], |damage, tree| {
        damage.put_bytes(&key::reclaim(tree.orphan.ino), b"\x01\x09");
    });
    finds(&["extended attributes of /a/spilled"], |damage, tree| {
        damage.put_bytes(&damage.name_key(tree.a.id, "spilled", Part::Xattrs), b"\x01\xff");
    });
    finds(&["of no known kind", "of no known kind", "of no known kind"], |damage, _| {
        damage.put_bytes(b"\0\0Zjunk", b"");
        damage.put_bytes(b"\x01\0N", b"");
        damage.put_bytes(b"x", b"");
    });
    finds(&["the session record"], |damage, _| {
        damage.put_bytes(&key::session(SessionId(5)), b"\x01");
    });
    finds(&["garbage record"], |damage, _| {
        damage.put_bytes(&key::garbage(ShardId(0), base::BlockId(7)), b"\x01\x01");
    });
}

#[test]
fn names_out_of_place_are_found() {
    finds(&["at the position of another name"], |damage, tree| {
        let key = damage.name_key(tree.a.id, "file", Part::Main);
        let entry = damage.take(&key);
        let shard = shard_of(tree.a.id, 0, damage.shards());
        damage.put_bytes(&key::name(shard, tree.a.id, 77, &name("file"), Part::Main), &entry);
    });
    let elsewhere = [
        "has entries but is not there",
        "counts 6 entries",
        "/a/file was born on shard … and left no word there",
    ];
    finds(&elsewhere, |damage, tree| {
        let key = damage.name_key(tree.a.id, "file", Part::Main);
        let entry = damage.take(&key);
        let shard = ShardId((shard_of(tree.a.id, 0, damage.shards()).0 + 1) % damage.shards());
        let pos = damage.0.server.shared.config.hash_key.pos(&name("file"));
        damage.put_bytes(&key::name(shard, tree.a.id, pos, &name("file"), Part::Main), &entry);
    });
    finds(&["a part of no known kind: part=9"], |damage, tree| {
        let mut key = damage.name_key(tree.a.id, "file", Part::Main);
        *key.last_mut().unwrap() = 9;
        damage.put_bytes(&key, b"");
    });
    finds(&["is no name"], |damage, tree| {
        let mut key = damage.name_key(tree.a.id, "file", Part::Main);
        let slash = key.len() - 4;
        key[slash] = b'/';
        damage.put_bytes(&key, b"");
    });
    finds(&["/a counts 6 entries and 1 directories, but has 5 and 1"], |damage, tree| {
        damage.delete(&damage.name_key(tree.a.id, "file", Part::Main));
    });
    finds(&["/a/sub counts 1 entries, but has none"], |damage, tree| {
        damage.content(&tree.sub, |content| content.entries = 1);
    });
    finds(&["/ counts 2 entries and 2 directories"], |damage, tree| {
        damage.content(&tree.root, |content| content.subdirs = 2);
    });
}

#[test]
fn a_tree_that_is_none_is_found() {
    finds(
        &[
            "/a has no content record",
            "has entries but is not there",
            "directory that is not there",
        ],
        |damage, tree| damage.delete(&damage.content_key(tree.a.id)),
    );
    finds(
        &["/a/sub is not there, but its contents are", "counts 6 entries and 1"],
        |damage, tree| {
            damage.delete(&damage.name_key(tree.a.id, "sub", Part::Main));
        },
    );
    finds(&["its entry has another mode"], |damage, tree| {
        damage.content(&tree.a, |content| content.mode = 0o777);
    });
    finds(
        &[
            "/a has no content record",
            "is not there, but its contents are",
            "/a/moved: inode number … is used twice",
            "/a/sub is in a directory that is not there",
        ],
        |damage, tree| damage.content(&tree.a, |content| content.ino.0 += 5),
    );
    finds(&["/a grants less than its bound and is not listed"], |damage, tree| {
        damage.content(&tree.a, |content| content.mode = 0o700);
        let key = damage.name_key(tree.root.id, "a", Part::Main);
        damage.change(&key, |entry: &mut EntryRecord| match entry {
            EntryRecord::Dir(access) => access.mode = 0o700,
            EntryRecord::Node(_) | EntryRecord::Link(_) => panic!("no directory"),
        });
    });
    finds(&["/a/sub is not where it is looked for by its name"], |damage, tree| {
        damage.content(&tree.sub, |content| content.listing.0.listed = false);
    });
    finds(&["the root directory has a bound, and is not listed"], |damage, tree| {
        damage.content(&tree.root, |content| content.listing.0.listed = false);
    });
    let bound = "/a has a bound that grants less than the one above it, and is not listed";
    finds(&[bound], |damage, tree| {
        damage.content(&tree.a, |content| {
            let listing = &mut content.listing.0;
            (listing.below, listing.listed) = (SearchClass::Nothing, false);
        });
    });
    finds(&["/a is Pending"], |damage, tree| {
        damage.content(&tree.a, |content| content.state = ContentState::Pending);
    });
    finds(&["/again is the directory that is at /a", "/ counts"], |damage, tree| {
        let entry =
            damage.0.engine.get(&damage.name_key(tree.root.id, "a", Part::Main)).unwrap().unwrap();
        damage.put_bytes(&damage.name_key(tree.root.id, "again", Part::Main), &entry);
    });
    let round = [
        "/a/sub is in a loop",
        "/sub/a is in a loop",
        "has another mode, owner or home",
        "was moved and its birth place does not know",
    ];
    finds(&round, |damage, tree| {
        // `a` is in `sub`, which is in `a`.
        let entry = damage.take(&damage.name_key(tree.root.id, "a", Part::Main));
        damage.put_bytes(&damage.name_key(tree.sub.id, "a", Part::Main), &entry);
        damage.content(&tree.sub, |content| (content.entries, content.subdirs) = (1, 1));
        damage.content(&tree.root, |content| (content.entries, content.subdirs) = (1, 0));
        damage.content(&tree.a, |content| {
            (content.parent, content.parent_ino) = (tree.sub.id, tree.sub.ino);
            content.parent_home = tree.sub.home;
            content.listing.0.listed = true;
            content.mode = 0o700;
        });
    });
    let rootless = ["the root directory is not there", "/a is in a directory that is not there"];
    finds(&rootless, |damage, tree| {
        damage.content(&tree.root, |content| content.ino.0 = 9);
    });
}

#[test]
fn births_and_moves_that_do_not_agree_are_found() {
    finds(&["its birth place does not know"], |damage, tree| {
        damage.delete(&damage.name_key(tree.root.id, "sub", Part::RenameList));
    });
    finds(&["version 1, which lives nowhere else"], |damage, tree| {
        let key = damage.name_key(tree.root.id, "sub", Part::RenameList);
        damage.change(&key, |list: &mut RenameList| list.versions.push(NameVersion(1)));
    });
    finds(&["version 0 twice"], |damage, tree| {
        let key = damage.name_key(tree.root.id, "sub", Part::RenameList);
        damage.change(&key, |list: &mut RenameList| list.versions.push(NameVersion(0)));
    });
    finds(&["the rename list of /file is empty"], |damage, tree| {
        let key = damage.name_key(tree.root.id, "file", Part::RenameList);
        damage.put(&key, &RenameList::default());
    });
    finds(&["lives nowhere else"], |damage, tree| {
        let key = damage.name_key(tree.root.id, "a", Part::RenameList);
        damage.put(&key, &RenameList { versions: vec![NameVersion(0)] });
    });
    let elsewhere =
        ["has an id that is not that of its birth", "/a is not where it is looked for by its name"];
    finds(&elsewhere, |damage, tree| {
        damage.content(&tree.a, |content| content.birth_version = NameVersion(3));
    });
    finds(&["was moved and left no word"], |damage, tree| {
        damage.delete(&key::inode(tree.moved.ino, Part::Main));
    });
    finds(&["/a/moved is looked for at /nowhere", "is said to be at /nowhere"], |damage, tree| {
        let at = Location { dir: tree.root.id, home: tree.root.home, name: name("nowhere") };
        damage.put(&key::inode(tree.moved.ino, Part::Main), &Slot::Moved(at));
    });
    finds(&["is said to be at /a/moved"], |damage, tree| {
        damage.inode(&tree.a, "moved", |inode| inode.moved = false);
    });
    finds(&["was born on shard … and left no word there"], |damage, tree| {
        damage.inode(&tree.a, "file", |inode| inode.ino = Ino::new(ShardId(5), 9));
    });
}

#[test]
fn links_that_do_not_agree_are_found() {
    let slotless =
        ["/l1 leads to inode", "/a/l2 leads to inode", "inode …: extended attributes of nothing"];
    finds(&slotless, |damage, tree| {
        damage.delete(&key::inode(tree.linked.ino, Part::Main));
    });
    finds(&["counts 3 names, but has 2"], |damage, tree| {
        damage.change(&key::inode(tree.linked.ino, Part::Main), |slot: &mut Slot| match slot {
            Slot::Inode(inode) => inode.nlink = 3,
            Slot::Moved(_) => panic!("not linked"),
        });
    });
    finds(&["counts 2 names, but has 1", "counts 6 entries"], |damage, tree| {
        damage.delete(&damage.name_key(tree.a.id, "l2", Part::Main));
    });
    finds(&["/a/file has one name but counts 2"], |damage, tree| {
        damage.inode(&tree.a, "file", |inode| inode.nlink = 2);
    });
    finds(&["has no name, and nothing will reclaim it"], |damage, tree| {
        damage.delete(&key::reclaim(tree.orphan.ino));
    });
    finds(&["but it is no orphan"], |damage, tree| {
        damage.put(&key::reclaim(tree.linked.ino), &Reclaim { kind: ReclaimKind::Orphan });
    });
    finds(&["its contents are noted to be reclaimed"], |damage, tree| {
        damage.put(&key::reclaim(tree.big.ino), &Reclaim { kind: ReclaimKind::Contents });
    });
}

#[test]
fn inode_numbers_that_were_not_given_out_once_are_found() {
    finds(&["is used twice"], |damage, tree| {
        damage.inode(&tree.a, "file", |inode| inode.ino = tree.spilled.ino);
    });
    finds(&["was never given out"], |damage, tree| {
        let shard = tree.file.ino.shard();
        damage.inode(&tree.a, "file", |inode| inode.ino = Ino::new(shard, 1 << 40));
    });
    finds(&["was never given out"; 7], |damage, tree| {
        let shard = tree.file.ino.shard();
        damage.put(&key::counter(shard), &Reserved { end: 2 });
    });
    finds(&["nothing says which inode numbers are reserved"], |damage, _| {
        damage.delete(&key::counter(ShardId(7)));
    });
}

#[test]
fn extended_attributes_out_of_place_are_found() {
    finds(&["/a/spilled: its extended attributes are missing"], |damage, tree| {
        damage.delete(&damage.name_key(tree.a.id, "spilled", Part::Xattrs));
    });
    finds(&["/a/sub: its extended attributes are missing"], |damage, tree| {
        let shard = shard_of(tree.sub.id, 0, damage.shards());
        damage.delete(&key::content(shard, tree.sub.id, 0, Part::Xattrs));
    });
    finds(&["its extended attributes are missing"], |damage, tree| {
        damage.delete(&key::inode(tree.linked.ino, Part::Xattrs));
    });
    finds(&["/a/spilled: extended attributes of nothing"], |damage, tree| {
        damage.inode(&tree.a, "spilled", |inode| inode.xattrs = Xattrs::NONE);
    });
    finds(&["/a/ghost: extended attributes of nothing"], |damage, tree| {
        let bytes = damage.0.engine.get(&damage.name_key(tree.a.id, "spilled", Part::Xattrs));
        let ghost = damage.name_key(tree.a.id, "ghost", Part::Xattrs);
        damage.put_bytes(&ghost, &bytes.unwrap().unwrap());
    });
    finds(&["extended attributes of nothing"], |damage, tree| {
        damage.content(&tree.sub, |content| content.xattrs = Xattrs::NONE);
    });
}

#[test]
fn contents_that_do_not_fit_their_file_are_found() {
    finds(&["/a/file is damaged"], |damage, tree| {
        damage.inode(&tree.a, "file", |inode| inode.size = 99);
    });
    finds(&["/a/file is damaged"], |damage, tree| {
        damage.inode(&tree.a, "file", |inode| inode.kind = base::FileKind::Symlink);
    });
    finds(&["its mode or its count of bytes is impossible"], |damage, tree| {
        damage.inode(&tree.a, "file", |inode| inode.mode |= 1 << 12);
    });
    finds(&["belongs to no file"], |damage, tree| {
        damage.inode(&tree.a, "big", |inode| {
            (inode.contents, inode.size, inode.allocated) = (Contents::Inline(Bytes::new()), 0, 0);
        });
    });
    finds(&["/a/big: chunk 0 of inode", "counts 9000 bytes, but has 0"], |damage, tree| {
        damage.inode(&tree.a, "big", |inode| inode.size = 8999);
    });
    let nothing = "/a/big counts 9000 bytes, but has 0";
    finds(&["chunk 0 of inode … is damaged", nothing], |damage, tree| {
        damage.chunk(&tree.big, |chunk| chunk.slices[0].len = 9001);
    });
    finds(&["chunk 0 of inode … is empty", nothing], |damage, tree| {
        damage.chunk(&tree.big, |chunk| chunk.slices.clear());
    });
    finds(&["/a/big counts 9000 bytes, but has 8000"], |damage, tree| {
        damage.chunk(&tree.big, |chunk| chunk.slices[0].len = 8000);
    });
}

/// Makes `/a/sub` an accounting root that has charged what it should.
fn charge(damage: &Damage<'_>, tree: &Tree) -> QuotaId {
    let id = QuotaId(tree.sub.ino);
    let record = QuotaRecord {
        state: QuotaState::Active,
        dir: tree.sub.id,
        home: tree.sub.id,
        parent: Ino(0),
        bytes_max: Some(1000),
        entries_max: None,
    };
    damage.put(&key::usage(id, UsagePart::Root), &record);
    damage.put(&key::usage(id, UsagePart::Core(1)), &Usage { entries: 1, bytes: 0 });
    damage.content(&tree.sub, |content| content.quota = id);
    id
}

#[test]
fn quotas_that_do_not_fit_what_is_below_them_are_found() {
    finds_at_start(&["counts 3 entries and 5 bytes, but has 1 and 0"], |damage, tree| {
        let id = charge(damage, tree);
        damage.put(&key::usage(id, UsagePart::Core(0)), &Usage { entries: 2, bytes: 5 });
    });
    finds_at_start(
        &["/a/file is charged to another", "counts 1 entries and 0 bytes, but has 2 and 6"],
        {
            |damage, tree| {
                let id = charge(damage, tree);
                damage.inode(&tree.a, "file", |inode| inode.quota = id);
            }
        },
    );
    let charged = ["/a", "/a/moved", "/a/file", "/a/big", "/a/spilled"];
    let mut charged = charged.map(|path| format!("{path} is charged to another quota")).to_vec();
    charged.push("but has 2 and 0".to_owned());
    let charged: Vec<&str> = charged.iter().map(String::as_str).collect();
    finds_at_start(&charged, |damage, tree| {
        let id = charge(damage, tree);
        damage.content(&tree.a, |content| content.quota = id);
    });
    let strange = [
        "the quota of directory inode … is not there",
        "the quota of directory inode … is not there",
        "/a/file is charged to another quota than its directory",
    ];
    finds(&strange, |damage, tree| {
        damage.inode(&tree.a, "file", |inode| inode.quota = QuotaId(Ino(0x99)));
    });
    let unknown = "the quota of directory inode … is not there";
    finds(&["of no known kind", "is damaged", unknown, unknown], |damage, tree| {
        let id = charge(damage, tree);
        damage.put_bytes(&key::usage(id, UsagePart::Root), b"\x01");
        let mut key = key::usage(id, UsagePart::Root);
        key[1] ^= 1;
        damage.put_bytes(&key, b"");
    });
}
