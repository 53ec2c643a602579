//! File handles (`name_to_handle_at`), which NFS servers and backups keep for long.
#![expect(unsafe_code, reason = "these calls are not in rustix")]

use std::{
    ffi::CString,
    fs::{self, File},
    io::{self, Read as _},
    os::{
        fd::{AsRawFd as _, FromRawFd as _},
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use crate::harness::{Mounted, Way, mount, mount_new, new_model, until};

/// `struct file_handle` with room for its bytes.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

fn handle_of(path: &Path) -> Handle {
    handle_with(path, 0).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A handle that leads to the path as well: its type says so since Linux 6.13.
fn connectable(path: &Path) -> Handle {
    const AT_HANDLE_CONNECTABLE: i32 = 2;
    handle_with(path, AT_HANDLE_CONNECTABLE).expect("Linux 6.13")
}

fn handle_with(path: &Path, flags: i32) -> io::Result<Handle> {
    let mut handle = Handle { bytes: 128, kind: 0, handle: [0; 128] };
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut mount = 0;
    // SAFETY: the path ends with NUL, and the handle has the room that it says.
    let done = unsafe {
        libc::name_to_handle_at(
            libc::AT_FDCWD,
            path.as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount,
            flags,
        )
    };
    if done == 0 { Ok(handle) } else { Err(io::Error::last_os_error()) }
}

fn open(mounted: &Mounted, handle: &mut Handle) -> io::Result<File> {
    let root = File::open(mounted.root()).unwrap();
    // SAFETY: the handle is as the kernel filled it, and the descriptor, if there is one, is ours.
    unsafe {
        let fd = libc::open_by_handle_at(
            root.as_raw_fd(),
            (handle as *mut Handle).cast(),
            libc::O_RDONLY,
        );
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(File::from_raw_fd(fd)) }
    }
}

/// Makes the kernel forget every node that no process uses.
fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

#[test]
fn a_handle_survives_that_the_kernel_forgets_its_file_and_not_that_it_is_removed() {
    let mounted = mount_new();
    fs::create_dir_all(mounted.path("a/b")).unwrap();
    fs::write(mounted.path("a/b/file"), b"contents").unwrap();
    let ino = fs::metadata(mounted.path("a/b")).unwrap().ino();
    let (mut file, mut dir) =
        (handle_of(&mounted.path("a/b/file")), handle_of(&mounted.path("a/b")));
    // Forgotten files are looked up by number: no name is asked for.
    until("the kernel has forgotten the file", || {
        drop_caches();
        let asked = mounted.seen.count("getattr");
        let mut text = String::new();
        open(&mounted, &mut file).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "contents");
        mounted.seen.count("getattr") > asked
    });
    drop_caches();
    assert_eq!(open(&mounted, &mut dir).unwrap().metadata().unwrap().ino(), ino);
    fs::remove_file(mounted.path("a/b/file")).unwrap();
    for _ in 0..2 {
        let gone = open(&mounted, &mut file).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ESTALE));
        drop_caches();
    }
    mounted.unmount();
}

/// Where an open file is, as the kernel knows it.
fn path_of(file: &File) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

#[test]
fn a_handle_holds_when_the_file_system_is_mounted_again() {
    let model = new_model();
    let mounted = mount(&model, &Way::default());
    fs::create_dir_all(mounted.path("a/b")).unwrap();
    for name in ["a/b/embedded", "a/b/linked", "a/moved"] {
        fs::write(mounted.path(name), name).unwrap();
    }
    fs::hard_link(mounted.path("a/b/linked"), mounted.path("link")).unwrap();
    fs::rename(mounted.path("a/moved"), mounted.path("a/b/moved")).unwrap();
    fs::write(mounted.path("gone"), "").unwrap();
    let files = ["a/b/embedded", "link", "a/b/moved"];
    let mut plain = files.map(|name| handle_of(&mounted.path(name)));
    let mut connected = files.map(|name| connectable(&mounted.path(name)));
    let mut dirs = ["a", "a/b", ""]
        .map(|name| (name, handle_of(&mounted.path(name)), connectable(&mounted.path(name))));
    let mut gone = handle_of(&mounted.path("gone"));
    fs::remove_file(mounted.path("gone")).unwrap();
    mounted.unmount();

    let mounted = mount(&model, &Way::default());
    for (name, plain, connected) in &mut dirs {
        for handle in [plain, connected] {
            let dir = open(&mounted, handle).unwrap();
            assert_eq!(path_of(&dir), mounted.path(name).canonicalize().unwrap());
            drop_caches();
        }
    }
    for (name, contents) in [(0, "a/b/embedded"), (1, "a/b/linked"), (2, "a/moved")] {
        drop_caches();
        let (plain, connected) = (&mut plain[name], &mut connected[name]);
        let mut text = String::new();
        open(&mounted, plain).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, contents);
        drop_caches();
        let file = open(&mounted, connected).unwrap();
        assert_eq!(path_of(&file), mounted.path(files[name]));
        assert_eq!(file.metadata().unwrap().len(), contents.len() as u64);
    }
    assert!(mounted.seen.count("search") > 0, "nothing of them was known before");
    assert_eq!(open(&mounted, &mut gone).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    mounted.unmount();
}
