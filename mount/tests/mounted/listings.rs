//! Listings, with the small buffers and the jumps that programs make.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    mem::MaybeUninit,
    os::unix::fs::MetadataExt,
};

use rustix::fs::{FileType, RawDir, SeekFrom, seek};

use crate::harness::{Mounted, Way, mount, mount_new, new_model};

/// One entry as getdents(2) gives it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    name: String,
    ino: u64,
    /// Where the listing goes on after it.
    cookie: u64,
    is_dir: bool,
}

/// One getdents(2) with a buffer of so many bytes; nothing at the end.
fn some_entries(dir: &File, buffer_bytes: usize) -> Vec<Listed> {
    let mut buffer = vec![MaybeUninit::uninit(); buffer_bytes];
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut listed = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.unwrap();
        listed.push(Listed {
            name: entry.file_name().to_str().unwrap().to_owned(),
            ino: entry.ino(),
            cookie: entry.next_entry_cookie(),
            is_dir: entry.file_type() == FileType::Directory,
        });
        if entries.is_buffer_empty() {
            break;
        }
    }
    listed
}

fn rest(dir: &File, buffer_bytes: usize) -> Vec<Listed> {
    let mut all = Vec::new();
    loop {
        let some = some_entries(dir, buffer_bytes);
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

fn fill(mounted: &Mounted, count: usize) -> BTreeSet<String> {
    fs::create_dir(mounted.path("dir")).unwrap();
    let names = (0..count).map(|number| {
        let name = format!("{number}-{}", "n".repeat(number % 60));
        File::create_new(mounted.path("dir").join(&name)).unwrap();
        name
    });
    names.collect()
}

fn names(listed: &[Listed]) -> BTreeSet<String> {
    let names: BTreeSet<String> = listed.iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(names.len(), listed.len(), "no name comes twice");
    names
}

/// With `.` and `..`.
fn with_dots(names: &BTreeSet<String>) -> BTreeSet<String> {
    names.iter().cloned().chain([".".to_owned(), "..".to_owned()]).collect()
}

/// All positions different, and some names with the same one; answers at once and late.
fn ways(position_bits: u32) -> [Way; 4] {
    [
        Way::default(),
        Way { position_bits, ..Way::default() },
        Way { position_bits, ..Way::late() },
        Way { position_bits, ..Way::uncached() },
    ]
}

#[test]
fn a_listing_of_3000_entries_is_complete_whatever_the_buffer() {
    for way in ways(18) {
        let mounted = mount(&new_model(), &way);
        let expected = with_dots(&fill(&mounted, 3000));
        for buffer_bytes in [300, 4096, 32_768, 1 << 20] {
            let dir = File::open(mounted.path("dir")).unwrap();
            assert!(names(&rest(&dir, buffer_bytes)) == expected, "{way:?} {buffer_bytes}");
        }
    }
}

#[test]
fn a_listing_has_each_name_that_stays_once_while_others_come_and_go() {
    for way in ways(18) {
        let mounted = mount(&new_model(), &way);
        let made = fill(&mounted, 3000);
        let (go, stay): (BTreeSet<_>, BTreeSet<_>) =
            made.into_iter().partition(|name| name.starts_with('1'));
        let mut going = go.iter();
        let dir = File::open(mounted.path("dir")).unwrap();
        let mut listed = Vec::new();
        for round in 0.. {
            let some = some_entries(&dir, 700);
            if some.is_empty() {
                break;
            }
            listed.extend(some);
            for name in going.by_ref().take(9) {
                fs::remove_file(mounted.path("dir").join(name)).unwrap();
            }
            File::create_new(mounted.path("dir").join(format!("new-{round}"))).unwrap();
        }
        let listed = names(&listed);
        assert!(stay.is_subset(&listed));
        assert!(listed.len() > stay.len());
        assert!(going.next().is_none(), "everything was removed during the listing");
    }
}

#[test]
fn removing_all_that_is_listed_leaves_nothing() {
    for way in ways(18) {
        let mounted = mount(&new_model(), &way);
        fill(&mounted, 1000);
        fs::remove_dir_all(mounted.path("dir")).unwrap();
        assert_eq!(fs::read_dir(mounted.root()).unwrap().count(), 0);
        mounted.unmount();
    }
}

#[test]
fn a_listing_goes_on_from_any_cookie() {
    for way in ways(14) {
        let mounted = mount(&new_model(), &way);
        let expected = with_dots(&fill(&mounted, 400));
        let dir = File::open(mounted.path("dir")).unwrap();
        let all = rest(&dir, 8192);
        assert!(names(&all) == expected);
        assert_eq!((all[0].name.as_str(), all[1].name.as_str()), (".", ".."));
        assert_eq!((all[0].cookie, all[1].cookie), (1, 2));
        let within = (0..all.len()).filter(|index| (3..16).contains(&all[*index].cookie));
        let within: Vec<usize> = within.collect();
        assert_eq!(within.is_empty(), way.position_bits == 63);
        let jumps = (0..all.len()).rev().step_by(7).chain([0, 1, 2, all.len() - 1]);
        for index in jumps.chain(within) {
            seek(&dir, SeekFrom::Start(all[index].cookie)).unwrap();
            let left: Vec<String> = rest(&dir, 900).into_iter().map(|entry| entry.name).collect();
            let due: Vec<String> =
                all[index + 1..].iter().map(|entry| entry.name.clone()).collect();
            assert!(left == due, "after {index}: {} and not {}", left.len(), due.len());
        }
    }
}

#[test]
fn a_listing_that_begins_anew_shows_what_is_there_now() {
    for way in ways(18) {
        let mounted = mount(&new_model(), &way);
        let mut expected = fill(&mounted, 100);
        let dir = File::open(mounted.path("dir")).unwrap();
        rest(&dir, 4096);
        let removed = expected.pop_first().unwrap();
        fs::remove_file(mounted.path("dir").join(removed)).unwrap();
        File::create_new(mounted.path("dir/new")).unwrap();
        expected.insert("new".to_owned());
        seek(&dir, SeekFrom::Start(0)).unwrap();
        assert!(names(&rest(&dir, 4096)) == with_dots(&expected));
    }
}

#[test]
fn entries_have_the_number_and_kind_that_stat_shows() {
    let mounted = mount_new();
    fs::create_dir(mounted.path("dir")).unwrap();
    fs::create_dir(mounted.path("dir/below")).unwrap();
    fs::write(mounted.path("dir/file"), b"").unwrap();
    let ino = |path: &str| fs::metadata(mounted.path(path)).unwrap().ino();
    let listed = rest(&File::open(mounted.path("dir")).unwrap(), 4096);
    let found: BTreeMap<&str, (u64, bool)> =
        listed.iter().map(|entry| (entry.name.as_str(), (entry.ino, entry.is_dir))).collect();
    let expected = BTreeMap::from([
        (".", (ino("dir"), true)),
        ("..", (1, true)),
        ("below", (ino("dir/below"), true)),
        ("file", (ino("dir/file"), false)),
    ]);
    assert_eq!(found, expected);
    let root = rest(&File::open(mounted.root()).unwrap(), 4096);
    assert!(root[..2].iter().all(|entry| entry.ino == 1 && entry.is_dir));
}

#[test]
fn two_listings_of_one_directory_do_not_disturb_each_other() {
    let mounted = mount_new();
    let expected = with_dots(&fill(&mounted, 300));
    let (one, two) =
        (File::open(mounted.path("dir")).unwrap(), File::open(mounted.path("dir")).unwrap());
    let (mut of_one, mut of_two) = (Vec::new(), Vec::new());
    loop {
        let (some, others) = (some_entries(&one, 500), some_entries(&two, 1300));
        if some.is_empty() && others.is_empty() {
            break;
        }
        of_one.extend(some);
        of_two.extend(others);
    }
    assert!(names(&of_one) == expected && names(&of_two) == expected);
}

#[test]
fn names_that_did_not_fit_are_not_read_again() {
    let mounted = mount(&new_model(), &Way::cached());
    fill(&mounted, 2000);
    let before = mounted.seen.count("readdir") + mounted.seen.count("readdirplus");
    rest(&File::open(mounted.path("dir")).unwrap(), 32_768);
    let asked = mounted.seen.count("readdir") + mounted.seen.count("readdirplus") - before;
    assert!(asked <= 12, "2000 entries took {asked} pages");
}
