//! `O_TMPFILE`: files that are made without a name, and get one with linkat.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, linkat},
    io::Errno,
};

use crate::harness::{as_user, mount_new, on_each};

fn unnamed(dir: &Path, more: OFlags, mode: u32) -> rustix::io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | more;
    rustix::fs::open(dir, flags, Mode::from_raw_mode(mode)).map(File::from)
}

/// By the file itself, which needs privilege.
fn link_itself(file: &File, to: &Path) -> rustix::io::Result<()> {
    linkat(file, "", CWD, to, AtFlags::EMPTY_PATH)
}

/// Links a file in the way that `open(2)` recommends for everybody.
fn link_by_proc(file: &File, to: &Path) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, path, CWD, to, AtFlags::SYMLINK_FOLLOW)
}

#[test]
fn o_tmpfile_makes_a_file_without_a_name_that_is_gone_when_it_is_closed() {
    on_each(|mounted| {
        let mut file = unnamed(mounted.root(), OFlags::empty(), 0o640).unwrap();
        file.write_all(b"scratch").unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "scratch");
        file.set_len(3).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!((found.nlink(), found.len(), found.mode() & 0o777), (0, 3, 0o600));
        assert_eq!(fs::read_dir(mounted.root()).unwrap().count(), 0);
        // The unmount checks what is left: no file without a name.
    });
}

#[test]
fn linkat_gives_an_o_tmpfile_its_first_name() {
    on_each(|mounted| {
        let link_with = [link_itself, link_by_proc];
        for (number, link) in link_with.into_iter().enumerate() {
            let path = mounted.path(&format!("f{number}"));
            let mut file = unnamed(mounted.root(), OFlags::empty(), 0o644).unwrap();
            file.write_all(b"complete").unwrap();
            link(&file, &path).unwrap();
            assert_eq!(link(&file, &path), Err(Errno::EXIST));
            assert_eq!(fs::read(&path).unwrap(), b"complete");
            assert_eq!(file.metadata().unwrap().nlink(), 1);
            assert_eq!(fs::metadata(&path).unwrap().ino(), file.metadata().unwrap().ino());
            link(&file, &path.with_extension("again")).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().nlink(), 2);
            file.write_all(b"d").unwrap();
            drop(file);
            assert_eq!(fs::read(path.with_extension("again")).unwrap(), b"completed");
        }
    });
}

#[test]
fn an_exclusive_o_tmpfile_and_one_that_lost_its_name_get_none() {
    on_each(|mounted| {
        let path = mounted.path("f");
        let never = unnamed(mounted.root(), OFlags::EXCL, 0o644).unwrap();
        assert_eq!(link_itself(&never, &path), Err(Errno::NOENT));
        assert_eq!(link_by_proc(&never, &path), Err(Errno::NOENT));
        let once = unnamed(mounted.root(), OFlags::empty(), 0o644).unwrap();
        link_by_proc(&once, &path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(link_by_proc(&once, &path), Err(Errno::NOENT));
        assert!(!path.exists());
    });
}

#[test]
fn o_tmpfile_needs_the_permissions_that_a_name_needs() {
    let mounted = mount_new();
    let (closed, open) = (mounted.path("closed"), mounted.path("open"));
    fs::create_dir(&closed).unwrap();
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
    as_user(1000, &[1000], || {
        assert_eq!(unnamed(&closed, OFlags::empty(), 0o600).unwrap_err(), Errno::ACCESS);
        let file = unnamed(&open, OFlags::empty(), 0o600).unwrap();
        assert_eq!(link_by_proc(&file, &closed.join("f")), Err(Errno::ACCESS));
        link_by_proc(&file, &open.join("f")).unwrap();
    });
    let found = fs::metadata(open.join("f")).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (1000, 1000, 0o600));
    mounted.unmount();
}
