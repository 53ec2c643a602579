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
    path::Path,
};

use crate::harness::{Mounted, mount_new, until};

/// `struct file_handle` with room for its bytes.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

fn handle_of(path: &Path) -> Handle {
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
            0,
        )
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    handle
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

/// Makes the kernel forget every node that nobody uses.
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
    // What was forgotten is looked up by its number: no name is asked for.
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
