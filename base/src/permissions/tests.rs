//! Permission tables: their events and limits, random trees, and all orders of fences and refills.

mod interleavings;
mod trees;
mod world;

use proptest::prelude::*;

use super::*;
use crate::{Cred, Decode as _, DirId, Encode as _, EntryName, HashKey, NameVersion, SearchClass};

const HASH: HashKey = HashKey::new(1, 2);
const SEED: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

fn name(name: &str) -> EntryName {
    EntryName::new(name.as_bytes()).unwrap()
}

fn names(path: &str) -> Vec<EntryName> {
    path.split('/').filter(|part| !part.is_empty()).map(name).collect()
}

fn key(above: DirId, of: &str) -> DirId {
    HASH.dir_id(above, &name(of), NameVersion(0))
}

fn user(uid: u32) -> Cred {
    Cred { uid, gid: 1000, groups: vec![20] }
}

fn placed(id: DirId, own: SearchClass, below: SearchClass) -> PlacedDir {
    PlacedDir { id, home: id, own, below }
}

fn record(key: DirId, dir: PlacedDir) -> ListedDir {
    ListedDir { key, dir, birth: None }
}

fn built(records: &[ListedDir]) -> PermissionTable {
    let mut table = PermissionTable::new(SEED, 1 << 20);
    table.begin_build();
    records.iter().for_each(|record| table.load(record).unwrap());
    table.complete();
    table.check();
    table
}

fn look_up(table: &PermissionTable, path: &str, cred: &Cred) -> Result<Granted, Unknown> {
    let names = names(path);
    table.look_up(&Walk { hash: &HASH, names: &names, cred: Some(cred), unchecked: 0 })
}

fn private(uid: u32) -> SearchClass {
    SearchClass::of_mode(0o700, uid, 1)
}

fn root() -> ListedDir {
    record(DirId::ROOT, placed(DirId::ROOT, SearchClass::All, SearchClass::All))
}

#[test]
fn unlisted_directories_are_at_their_predicted_ids_and_grant_the_bound_above() {
    let home = key(DirId::ROOT, "home");
    let alice = key(home, "alice");
    let table = built(&[root(), record(alice, placed(alice, private(7), private(7)))]);
    let found = look_up(&table, "home/alice/a/b", &user(7)).unwrap();
    assert_eq!(found.id(), key(key(alice, "a"), "b"));
    assert_eq!((found.above(), found.home, found.listed), (key(alice, "a"), None, false));
    assert_eq!(found.path().len(), 5);
    let target = look_up(&table, "home/alice", &user(8)).unwrap();
    assert!(target.id() == alice && target.listed, "the target checks its own rights");
    let denied = Unknown { why: UnknownWhy::NotGranted, known: 2 };
    assert_eq!(look_up(&table, "home/alice/a", &user(8)), Err(denied));
    assert!(look_up(&table, "home/alice/a", &Cred::ROOT).is_ok());
    let names = names("home/alice/a");
    let walk = Walk { hash: &HASH, names: &names, cred: None, unchecked: 0 };
    assert!(table.look_up(&walk).is_ok(), "a kernel checks");
    let bound = Walk { cred: Some(&user(8)), unchecked: 3, ..walk };
    assert!(table.look_up(&bound).is_ok(), "a session whose root is the target");
}

#[test]
fn a_directory_elsewhere_is_found_by_its_id_and_its_birth_place_is_gone() {
    let (born, now) = (key(DirId::ROOT, "old"), key(DirId::ROOT, "new"));
    let dir = PlacedDir { home: DirId(777), ..placed(born, private(7), private(7)) };
    let table = built(&[ListedDir { birth: Some(born), ..record(now, dir) }, root()]);
    let found = look_up(&table, "new", &user(7)).unwrap();
    assert_eq!((found.id(), found.home, found.listed), (born, Some(DirId(777)), true));
    let below = look_up(&table, "new/a/b", &user(7)).unwrap();
    assert_eq!((below.id(), below.home), (key(key(born, "a"), "b"), None));
    let gone = Unknown { why: UnknownWhy::Gone, known: 0 };
    assert_eq!(look_up(&table, "old/a", &user(7)), Err(gone));
}

#[test]
fn a_fenced_key_is_unknown_until_its_value_is_published() {
    let mut table = built(&[root()]);
    let dir = key(DirId::ROOT, "a");
    table.fence(dir).unwrap();
    table.check();
    let fenced = Err(Unknown { why: UnknownWhy::Fenced, known: 0 });
    assert_eq!(look_up(&table, "a/b", &user(7)), fenced);
    assert!(look_up(&table, "b", &user(7)).is_ok());
    let stricter = placed(dir, private(8), private(8));
    table.publish(dir, &Published::Listed(stricter)).unwrap();
    table.check();
    assert_eq!(table.size().classes, 1);
    assert!(look_up(&table, "a/b", &user(8)).is_ok() && look_up(&table, "a/b", &user(7)).is_err());
    table.fence(dir).unwrap();
    assert_eq!(look_up(&table, "a/b", &user(8)), fenced);
    table.publish(dir, &Published::Clear).unwrap();
    table.check();
    assert!(look_up(&table, "a/b", &user(7)).is_ok());
    assert_eq!((table.size().classes, table.size().entries), (0, 1), "unused classes are freed");
}

#[test]
fn records_of_a_build_do_not_overwrite_events() {
    let dir = key(DirId::ROOT, "a");
    let old = record(dir, placed(dir, SearchClass::All, SearchClass::All));
    let birth = key(DirId::ROOT, "b");
    let moved = record(key(DirId::ROOT, "c"), placed(birth, private(7), private(7)));
    let mut table = PermissionTable::new(SEED, 1 << 20);
    table.begin_build();
    table.load(&root()).unwrap();
    table.fence(dir).unwrap();
    table.publish(birth, &Published::Clear).unwrap();
    table.load(&old).unwrap();
    table.load(&ListedDir { birth: Some(birth), ..moved }).unwrap();
    table.load_fenced(key(DirId::ROOT, "d")).unwrap();
    table.load_fenced(birth).unwrap();
    assert_eq!(look_up(&table, "x", &user(7)).unwrap_err().why, UnknownWhy::Incomplete);
    table.complete();
    table.check();
    let why = |path| look_up(&table, path, &user(7)).map_err(|unknown| unknown.why);
    assert_eq!(why("a/x"), Err(UnknownWhy::Fenced));
    assert_eq!(why("d"), Err(UnknownWhy::Fenced));
    assert_eq!(why("b").map(|found| found.id()), Ok(birth));
    assert_eq!(why("c").map(|found| found.id()), Ok(birth));
}

#[test]
fn a_full_table_says_so_forgets_all_and_stays_unknown_until_it_is_built() {
    let mut table = PermissionTable::new(SEED, 64 << 10);
    table.begin_build();
    table.load(&root()).unwrap();
    table.complete();
    assert!(table.lists_by_use());
    let mut by_use = None;
    let full = (1_000..100_000_u32).find(|uid| {
        let dir = DirId(u128::from(*uid) << 64 | u128::from(*uid));
        let listed = Published::Listed(placed(dir, private(*uid), private(*uid)));
        let full = table.publish(dir, &listed).is_err();
        if !table.lists_by_use() && by_use.is_none() {
            by_use = Some(table.size().bytes);
        }
        assert!(full || table.size().bytes <= 64 << 10);
        full
    });
    assert!(full.is_some_and(|uid| uid > 1_150), "{full:?}");
    assert!(by_use.is_some_and(|bytes| bytes > 57 << 10), "{by_use:?}");
    table.check();
    assert_eq!((table.is_complete(), table.size().entries), (false, 0));
    // Events change nothing now: a table with some of them must not answer.
    table.publish(root().key, &Published::Listed(root().dir)).unwrap();
    table.fence(DirId(5000)).unwrap();
    assert_eq!(look_up(&table, "a", &user(7)).unwrap_err().why, UnknownWhy::Incomplete);
    assert_eq!(table.size().entries, 0);
    let again = built(&[root()]);
    assert!(look_up(&again, "a", &user(7)).is_ok());
}

#[test]
fn an_entry_of_a_listed_directory_is_about_70_bytes_as_a_record() {
    let (own, below) = (SearchClass::All, SearchClass::All);
    let dir = PlacedDir { id: DirId(u128::MAX), home: DirId(u128::MAX), own, below };
    let listed = ListedDir { key: DirId(u128::MAX), dir, birth: None };
    assert_eq!(listed.to_vec().len(), 51);
    let elsewhere = ListedDir { birth: Some(DirId(u128::MAX)), ..listed };
    assert_eq!(elsewhere.to_vec().len(), 67);
    assert_eq!(ListedDir::from_bytes(&elsewhere.to_vec().into()), Ok(elsewhere));
}
