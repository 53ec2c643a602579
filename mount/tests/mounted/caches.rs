//! Changes of one mount as another one sees them.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Seek, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
};

use base::{Cred, EntryName, FileKind};
use bytes::Bytes;
use client::{FileSystem, New, model::Model};
use futures::executor::block_on;

use crate::harness::{Mounted, Way, mount, new_model};

/// Makes a file in the root, as another client does.
pub(crate) fn make(model: &Model, name: &str, contents: &'static [u8]) {
    block_on(async {
        let (root, _) = model.root();
        let name = EntryName::new(name.as_bytes()).unwrap();
        let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
        let made = model.create(&Cred::ROOT, &root, &name, new, true, true).await.unwrap();
        let handle = made.handle.unwrap();
        model.write(handle, 0, Bytes::from_static(contents), false).await.unwrap();
        model.release(handle).await.unwrap();
    });
}

fn two(way: &Way) -> (Mounted, Mounted) {
    let model = new_model();
    (mount(&model, way), mount(&model, way))
}

#[test]
fn with_timeouts_of_zero_every_change_is_seen_at_once() {
    for late in [false, true] {
        let (one, two) = two(&Way { late, ..Way::uncached() });
        for round in 0..20 {
            fs::write(one.path("file"), vec![b'x'; round * 10]).unwrap();
            assert_eq!(fs::metadata(two.path("file")).unwrap().len(), round as u64 * 10);
            assert_eq!(fs::read(two.path("file")).unwrap().len(), round * 10);
            let mode = 0o600 | u32::try_from(round).unwrap();
            fs::set_permissions(two.path("file"), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(fs::metadata(one.path("file")).unwrap().mode() & 0o777, mode);
            fs::rename(two.path("file"), two.path("moved")).unwrap();
            assert_eq!(fs::metadata(one.path("file")).unwrap_err().kind(), ErrorKind::NotFound);
            fs::create_dir(one.path("dir")).unwrap();
            fs::rename(one.path("moved"), one.path("dir/file")).unwrap();
            assert!(fs::metadata(two.path("moved")).is_err());
            fs::rename(two.path("dir/file"), two.path("file")).unwrap();
            assert_eq!(fs::read_dir(one.path("dir")).unwrap().count(), 0);
            fs::remove_dir(two.path("dir")).unwrap();
            assert!(fs::metadata(one.path("dir")).is_err());
        }
        one.unmount();
        two.unmount();
    }
}

#[test]
fn contents_are_close_to_open_whatever_the_kernel_may_believe() {
    for way in [Way::cached(), Way::default(), Way { late: true, ..Way::cached() }] {
        let (one, two) = two(&way);
        fs::write(one.path("file"), b"first").unwrap();
        assert_eq!(fs::read(two.path("file")).unwrap(), b"first");
        // Shorter, longer, and of the same length; nothing has timed out in between.
        for text in ["1st", "second and longer", "SECOND AND LONGER", ""] {
            fs::write(one.path("file"), text).unwrap();
            assert_eq!(fs::read_to_string(two.path("file")).unwrap(), text);
            let mut open = File::open(two.path("file")).unwrap();
            assert_eq!(open.metadata().unwrap().len(), text.len() as u64);
            let mut again = String::new();
            open.read_to_string(&mut again).unwrap();
            assert_eq!(again, text);
        }
        one.unmount();
        two.unmount();
    }
}

#[test]
fn an_append_after_an_open_goes_to_the_end_that_others_have_made() {
    for way in [Way::cached(), Way::default(), Way { late: true, ..Way::cached() }] {
        let (one, two) = two(&way);
        let append = |mounted: &Mounted, text: &str| {
            let path = mounted.path("log");
            let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        let mut expected = String::new();
        for (round, mounted) in [&one, &two, &one, &one, &two, &two, &one].iter().enumerate() {
            let text = format!("{round}:{} ", "x".repeat(round));
            append(mounted, &text);
            expected.push_str(&text);
        }
        assert_eq!(fs::read_to_string(one.path("log")).unwrap(), expected);
        // Shorter again.
        fs::write(one.path("log"), b"new ").unwrap();
        append(&two, "end");
        assert_eq!(fs::read_to_string(one.path("log")).unwrap(), "new end");
        one.unmount();
        two.unmount();
    }
}

#[test]
fn an_append_by_one_mount_alone_looks_nothing_up_again() {
    let mounted = mount(&new_model(), &Way::cached());
    for round in 0..10 {
        let path = mounted.path("log");
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(b"line\n").unwrap();
        assert_eq!(mounted.seen.count("lookup"), 1);
        assert_eq!(mounted.seen.count("open"), round);
    }
}

#[test]
fn a_file_opened_anew_through_proc_is_as_it_is_now() {
    use std::os::fd::AsRawFd;
    let (one, two) = two(&Way::cached());
    fs::write(one.path("log"), b"one ").unwrap();
    let held = File::open(two.path("log")).unwrap();
    fs::write(one.path("log"), b"one more ").unwrap();
    let again = format!("/proc/self/fd/{}", held.as_raw_fd());
    assert_eq!(fs::read(&again).unwrap(), b"one more ");
    fs::write(one.path("log"), b"one more and more ").unwrap();
    drop(OpenOptions::new().append(true).open(&again).unwrap());
    assert_eq!(fs::read(&again).unwrap(), b"one more and more ");
}

#[test]
fn pages_of_a_file_that_has_not_changed_are_kept_from_open_to_open() {
    for way in [Way::cached(), Way::late()] {
        let mounted = mount(&new_model(), &way);
        fs::write(mounted.path("file"), b"contents").unwrap();
        assert_eq!(fs::read(mounted.path("file")).unwrap(), b"contents");
        let reads = mounted.seen.count("read");
        for _ in 0..5 {
            assert_eq!(fs::read(mounted.path("file")).unwrap(), b"contents");
        }
        assert_eq!(mounted.seen.count("read"), reads);
        mounted.unmount();
    }
}

#[test]
fn two_handles_of_one_mount_see_each_others_writes() {
    let mounted = mount(&new_model(), &Way::cached());
    let path = mounted.path("file");
    fs::write(&path, b"....").unwrap();
    let (one, mut two) =
        (OpenOptions::new().write(true).open(&path).unwrap(), File::open(&path).unwrap());
    let mut text = String::new();
    for (at, expected) in ["x...", "xx..", "xxx."].iter().enumerate() {
        one.write_all_at(b"x", at as u64).unwrap();
        two.rewind().unwrap();
        text.clear();
        two.read_to_string(&mut text).unwrap();
        assert_eq!(text, *expected);
    }
}

#[test]
fn a_file_renamed_by_another_client_stays_open_and_is_found_by_its_new_name() {
    for way in [Way::uncached(), Way::cached()] {
        let (one, two) = two(&way);
        fs::write(one.path("old"), b"contents").unwrap();
        let mut file = OpenOptions::new().read(true).write(true).open(one.path("old")).unwrap();
        fs::rename(two.path("old"), two.path("new")).unwrap();
        file.write_all(b"CON").unwrap();
        file.set_len(6).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 6);
        assert_eq!(fs::read(one.path("new")).unwrap(), b"CONten");
        let ino = file.metadata().unwrap().ino();
        assert_eq!(fs::metadata(one.path("new")).unwrap().ino(), ino);
    }
}

#[test]
fn a_file_removed_by_another_client_stays_for_whoever_has_it_open() {
    let (one, two) = two(&Way::uncached());
    fs::write(one.path("file"), b"contents").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(one.path("file")).unwrap();
    fs::remove_file(two.path("file")).unwrap();
    file.write_all_at(b"!", 8).unwrap();
    let mut bytes = [0; 9];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"contents!");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert!(fs::metadata(one.path("file")).is_err());
}

#[test]
fn a_listing_brings_attributes_along_that_are_not_asked_for_again() {
    let mounted = mount(&new_model(), &Way::cached());
    for number in 0..500 {
        make(&mounted.model, &format!("file-{number}"), b"x");
    }
    let asked = || mounted.seen.count("lookup") + mounted.seen.count("getattr");
    let before = asked();
    let entries = fs::read_dir(mounted.root()).unwrap().map(|entry| entry.unwrap());
    // std would use statx(2), which always asks for the time of birth.
    let stat = |path| rustix::fs::stat(path).unwrap();
    assert_eq!(entries.filter(|entry| stat(entry.path()).st_size == 1).count(), 500);
    assert!(mounted.seen.count("readdirplus") > 1);
    assert!(asked() - before < 10, "asked {} times", asked() - before);
}

#[test]
fn a_listing_never_undoes_what_the_kernel_knows() {
    let mounted = mount(&new_model(), &Way::cached());
    for number in 0..500 {
        make(&mounted.model, &format!("file-{number}"), b"x");
    }
    // Each file grows after the page with its old attributes may have been read ahead.
    for entry in fs::read_dir(mounted.root()).unwrap() {
        let path = entry.unwrap().path();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"yz").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 3);
    }
    for entry in fs::read_dir(mounted.root()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().len(), 3);
        assert_eq!(fs::read(entry.path()).unwrap(), b"xyz");
    }
}
