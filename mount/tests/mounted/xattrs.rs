//! Extended attributes.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt};

use rustix::{
    fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr},
    io::Errno,
};

use crate::harness::{
    Way, as_user, can_be_offered, mount, mount_new, mount_server, new_model, on_each, until,
};

#[test]
fn an_xattr_is_kept_listed_and_removed() {
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"").unwrap();
        let set = |value: &[u8], flags| setxattr(&path, "user.a", value, flags);
        let mut buffer = vec![0; 65_536];
        assert_eq!(getxattr(&path, "user.a", &mut buffer), Err(Errno::NODATA));
        assert_eq!(set(b"0", XattrFlags::REPLACE), Err(Errno::NODATA));
        set(b"1", XattrFlags::CREATE).unwrap();
        assert_eq!(set(b"2", XattrFlags::CREATE), Err(Errno::EXIST));
        let large: Vec<u8> = (0..65_536_u32).map(|at| at.to_le_bytes()[0]).collect();
        set(&large, XattrFlags::empty()).unwrap();
        assert_eq!(getxattr(&path, "user.a", &mut buffer), Ok(65_536));
        assert!(buffer == large);
        assert_eq!(rustix::fs::getxattr_query(&path, "user.a"), Ok(65_536));
        assert_eq!(getxattr(&path, "user.a", &mut [0; 9]), Err(Errno::RANGE));

        setxattr(&path, "user.b", b"", XattrFlags::empty()).unwrap();
        assert_eq!(getxattr(&path, "user.b", &mut buffer), Ok(0));
        let len = listxattr(&path, &mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"user.a\0user.b\0");
        assert_eq!(rustix::fs::listxattr_query(&path), Ok(len));
        assert_eq!(listxattr(&path, &mut [0; 3]), Err(Errno::RANGE));
        removexattr(&path, "user.a").unwrap();
        assert_eq!(removexattr(&path, "user.a"), Err(Errno::NODATA));
    });
}

#[test]
fn directories_and_links_have_xattrs_of_their_own() {
    on_each(|mounted| {
        let (dir, link) = (mounted.path("dir"), mounted.path("link"));
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::symlink("dir", &link).unwrap();
        setxattr(&dir, "user.x", b"of the directory", XattrFlags::empty()).unwrap();
        rustix::fs::lsetxattr(&link, "trusted.x", b"of the link", XattrFlags::empty()).unwrap();
        let mut buffer = [0; 64];
        let len = rustix::fs::lgetxattr(&link, "trusted.x", &mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"of the link");
        assert_eq!(getxattr(&link, "trusted.x", &mut buffer), Err(Errno::NODATA));
        let on_link = rustix::fs::lsetxattr(&link, "user.x", b"", XattrFlags::empty());
        assert_eq!(on_link, Err(Errno::PERM));
    });
}

#[test]
fn a_namespace_that_there_is_not_is_refused() {
    on_each(|mounted| {
        let path = mounted.path("dir");
        fs::create_dir(&path).unwrap();
        let unknown = setxattr(&path, "other.x", b"", XattrFlags::empty());
        assert_eq!(unknown, Err(Errno::OPNOTSUPP));
    });
}

#[test]
fn trusted_attributes_are_seen_by_the_superuser_only() {
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"").unwrap();
        setxattr(&path, "trusted.x", b"1", XattrFlags::empty()).unwrap();
        setxattr(&path, "user.x", b"1", XattrFlags::empty()).unwrap();
        let mut buffer = [0; 64];
        let len = listxattr(&path, &mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"trusted.x\0user.x\0");
        as_user(1000, &[1000], || {
            let mut buffer = [0; 64];
            let len = listxattr(&path, &mut buffer).unwrap();
            assert_eq!(&buffer[..len], b"user.x\0");
            assert_eq!(getxattr(&path, "trusted.x", &mut buffer), Err(Errno::NODATA));
            let set = setxattr(&path, "trusted.x", b"2", XattrFlags::empty());
            assert_eq!(set, Err(Errno::PERM));
        });
    });
}

#[test]
fn info_is_an_xattr_that_is_not_listed() {
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"").unwrap();
        for path in [path.as_path(), mounted.root()] {
            let mut buffer = [0; 1024];
            let len = getxattr(path, "pando.info", &mut buffer).unwrap();
            let info: serde_json::Value = serde_json::from_slice(&buffer[..len]).unwrap();
            let ino = fs::metadata(path).unwrap().ino().to_string();
            assert_eq!(info["ino"], ino);
            assert!(buffer.starts_with(br#"{"kind":"#), "the lines keep their order");
            assert_eq!(rustix::fs::listxattr_query(path), Ok(0));
        }
    });
}

#[test]
fn a_mount_tells_how_requests_come() {
    let mut ways = vec![(off(), "/dev/fuse")];
    if can_be_offered() {
        ways.push((Way::over_ring(), "io_uring"));
    }
    for (way, expected) in ways {
        let mounted = mount(&new_model(), &way);
        let mut buffer = [0; 64];
        let len = getxattr(mounted.root(), "pando.transport", &mut buffer).unwrap();
        assert_eq!(&buffer[..len], expected.as_bytes());
        mounted.unmount();
    }
}

fn off() -> Way {
    let mut way = Way::default();
    way.options.io_uring = mount::IoUring::Off;
    way
}

#[test]
fn requests_of_the_kernel_are_counted_by_kind() {
    on_each(|mounted| {
        let counted = || {
            let mut buffer = [0; 1024];
            let len = getxattr(mounted.root(), "pando.requests", &mut buffer).unwrap();
            let counts: BTreeMap<String, u64> = serde_json::from_slice(&buffer[..len]).unwrap();
            move |kind: &str| counts.get(kind).copied().unwrap_or_default()
        };
        let before = counted();
        for number in 0..10 {
            fs::create_dir(mounted.path(&format!("dir-{number}"))).unwrap();
        }
        fs::remove_dir(mounted.path("dir-3")).unwrap();
        let after = counted();
        let grown = ["MKDIR", "RMDIR", "CREATE"].map(|kind| after(kind) - before(kind));
        assert_eq!(grown, [10, 1, 0]);
        assert!(after("LOOKUP") >= before("LOOKUP") + 10 && after("GETXATTR") >= 2);
        assert_eq!(rustix::fs::listxattr_query(mounted.root()), Ok(0), "the count is not listed");
    });
}

#[test]
fn writing_a_new_file_asks_for_no_xattrs() {
    let mounted = mount_new();
    for number in 0..10 {
        fs::write(mounted.path(&number.to_string()), b"contents").unwrap();
    }
    assert_eq!(mounted.seen.count("xattrs"), 0);
}

#[test]
fn a_capability_that_another_client_gave_is_lost_with_a_write() {
    let mounted = mount(&new_model(), &Way::uncached());
    let path = mounted.path("file");
    fs::write(&path, b"program").unwrap();
    let other = mount(&mounted.model, &Way::uncached());
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let name = "security.capability";
    setxattr(other.path("file"), name, &capability, XattrFlags::empty()).unwrap();
    assert_eq!(getxattr(&path, name, &mut [0; 64]), Ok(20));
    fs::write(&path, b"changed").unwrap();
    assert_eq!(getxattr(&path, name, &mut [0; 64]), Err(Errno::NODATA));
}

#[test]
fn a_file_without_attributes_is_not_asked_for_them() {
    for mounted in [mount(&new_model(), &Way::cached()), mount_server(&Way::cached())] {
        let path = mounted.path("file");
        let mut file = fs::File::create(&path).unwrap();
        std::io::Write::write_all(&mut file, b"contents").unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        std::os::unix::fs::fchown(&file, Some(7), Some(8)).unwrap();
        drop(file);
        assert_eq!(rustix::fs::listxattr_query(&path), Ok(0));
        assert_eq!(getxattr(&path, "user.one", &mut [0; 64]), Err(Errno::NODATA));
        assert_eq!(mounted.seen.count("xattrs"), 0);
        setxattr(&path, "user.one", b"1", XattrFlags::empty()).unwrap();
        assert_eq!(getxattr(&path, "user.one", &mut [0; 64]), Ok(1));
        assert_eq!(rustix::fs::listxattr_query(&path), Ok("user.one".len() + 1));
        removexattr(&path, "user.one").unwrap();
        assert_eq!(getxattr(&path, "user.one", &mut [0; 64]), Err(Errno::NODATA));
        assert_eq!(rustix::fs::listxattr_query(&path), Ok(0));
        mounted.unmount();
    }
}

#[test]
fn an_attribute_that_another_client_sets_is_seen_with_the_next_attributes_of_the_file() {
    let mounted = mount(&new_model(), &Way::cached());
    let path = mounted.path("file");
    let file = fs::File::create(&path).unwrap();
    let other = mount(&mounted.model, &Way::uncached());
    let get = |path: &std::path::Path, name| getxattr(path, name, &mut [0; 64]);
    assert_eq!(get(&path, "user.one"), Err(Errno::NODATA));
    setxattr(other.path("file"), "user.one", b"1", XattrFlags::empty()).unwrap();
    assert_eq!(get(&other.path("file"), "user.one"), Ok(1), "with timeouts of zero at once");
    // A change of our own tells what has come between.
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(get(&path, "user.one"), Ok(1));
    // An open sees it, and a lock.
    for (name, lock) in [("opened", false), ("locked", true)] {
        let path = mounted.path(name);
        let file = fs::File::create(&path).unwrap();
        assert_eq!(get(&path, "user.one"), Err(Errno::NODATA));
        setxattr(other.path(name), "user.one", b"1", XattrFlags::empty()).unwrap();
        if lock {
            rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        } else {
            fs::File::open(&path).unwrap();
        }
        assert_eq!(get(&path, "user.one"), Ok(1), "{name}");
    }

    let third = mount(&mounted.model, &Way::default());
    assert_eq!(get(&third.path("file"), "user.one"), Ok(1));
    removexattr(third.path("file"), "user.one").unwrap();
    fs::write(third.path("second"), b"").unwrap();
    assert_eq!(rustix::fs::listxattr_query(third.path("second")), Ok(0));
    setxattr(other.path("second"), "user.two", b"22", XattrFlags::empty()).unwrap();
    until("the second is over", || get(&third.path("second"), "user.two") == Ok(2));
}
