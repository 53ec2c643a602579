//! Rules of the model: contents.

use base::limits::FILE_BYTES_MAX;

use super::*;

fn put(fs: &Fs, handle: Handle, offset: u64, data: &[u8]) -> std::result::Result<(), FsError> {
    fs.outcome(done(fs.model.write(handle, offset, Bytes::copy_from_slice(data), false)))
}

fn get(fs: &Fs, handle: Handle, offset: u64, len: u32) -> std::result::Result<Bytes, FsError> {
    fs.outcome(done(fs.model.read(handle, offset, len)))
}

#[test]
fn what_was_never_written_is_zeros_in_pages_of_any_size() {
    for page_bytes in [1, 3, 4096] {
        let clock = Arc::new(Steps(AtomicI64::new(1)));
        let model = Model::with_pages(clock, KEY, false, page_bytes);
        let fs = Fs { model, cred: Cred::ROOT };
        let handle = fs.opened("f");
        put(&fs, handle, 7, b"abcdef").unwrap();
        put(&fs, handle, 9, b"X").unwrap();
        assert_eq!(get(&fs, handle, 5, 100).unwrap(), &b"\0\0abXdef"[..]);
        assert_eq!(get(&fs, handle, 13, 100).unwrap(), Bytes::new());
        assert_eq!(fs.stat("f").size, 13);
    }
}

#[test]
fn what_was_cut_off_comes_back_as_zeros() {
    let fs = Fs::new();
    let handle = fs.opened("f");
    put(&fs, handle, 0, b"abcdef").unwrap();
    for size in [2, 4] {
        fs.setattr("f", SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    }
    assert_eq!(get(&fs, handle, 0, 9).unwrap(), &b"ab\0\0"[..]);
}

#[test]
fn a_write_ends_at_the_largest_file_size() {
    let fs = Fs::new();
    let handle = fs.opened("f");
    assert_eq!(put(&fs, handle, FILE_BYTES_MAX - 1, b"ab"), Err(FsError::FileTooBig));
    assert_eq!(put(&fs, handle, u64::MAX, b"ab"), Err(FsError::FileTooBig));
    assert_eq!(put(&fs, handle, FILE_BYTES_MAX - 2, b"ab"), Ok(()));
    assert_eq!(fs.stat("f").size, FILE_BYTES_MAX);
}

#[test]
fn a_write_changes_mtime_and_ctime_and_clears_set_id_bits_on_demand() {
    let fs = Fs::new();
    let handle = fs.opened("f");
    fs.chmod("f", 0o6755).unwrap();
    let before = fs.stat("f");
    put(&fs, handle, 0, b"").unwrap();
    assert_eq!(fs.stat("f"), before);
    put(&fs, handle, 0, b"x").unwrap();
    let after = fs.stat("f");
    assert!(after.mtime > before.mtime && after.ctime == after.mtime);
    assert_eq!((after.mode, after.atime), (0o6755, before.atime));
    done(fs.model.write(handle, 0, Bytes::from_static(b"y"), true)).unwrap();
    assert_eq!(fs.stat("f").mode, 0o755);
}

#[test]
fn a_removed_file_lives_until_its_last_handle_is_closed() {
    let fs = Fs::new();
    let first = fs.opened("f");
    let second = done(fs.model.open(&Cred::ROOT, &fs.file("f"), Some(Access::READ))).unwrap();
    let node = fs.node("f");
    assert_eq!(fs.unlink("f").unwrap().nlink, 0);
    put(&fs, first, 0, b"still").unwrap();
    done(fs.model.release(first)).unwrap();
    assert_eq!(get(&fs, second, 0, 9).unwrap(), &b"still"[..]);
    assert!(done(fs.model.getattr(&Cred::ROOT, &node)).is_ok());
    done(fs.model.release(second)).unwrap();
    let gone = fs.outcome(done(fs.model.getattr(&Cred::ROOT, &node)));
    assert_eq!(gone, Err(FsError::Stale));
}

#[test]
fn a_moved_file_is_found_by_its_old_name_and_number() {
    let fs = Fs::new();
    fs.create("a", 0o644).unwrap();
    let file = fs.file("a");
    fs.rename("a", "b").unwrap();
    assert!(done(fs.model.open(&Cred::ROOT, &file, Some(Access::READ))).is_ok());
}

#[test]
fn open_checks_permission_unless_the_kernel_did() {
    let fs = Fs::new();
    fs.create("f", 0o640).unwrap();
    let (file, other) = (fs.file("f"), user(5, &[]));
    let open = |model: &Model, access| fs.outcome(done(model.open(&other, &file, access)));
    assert_eq!(open(&fs.model, Some(Access::READ)), Err(FsError::Denied));
    assert!(open(&fs.model, None).is_ok());
    assert!(open(&fs.model.client(true), Some(Access::READ)).is_ok());
}

#[test]
fn a_handle_does_what_it_was_opened_for() {
    let fs = Fs::new();
    fs.create("f", 0o644).unwrap();
    let file = fs.file("f");
    let open = |access| done(fs.model.open(&Cred::ROOT, &file, access)).unwrap();
    let (reader, writer) = (open(Some(Access::READ)), open(Some(Access::WRITE)));
    assert_eq!(put(&fs, reader, 0, b"x"), Err(FsError::BadHandle));
    assert_eq!(get(&fs, writer, 0, 1), Err(FsError::BadHandle));
    assert_eq!(get(&fs, open(None), 0, 1), Err(FsError::BadHandle));
    assert_eq!(put(&fs, writer, 0, b"x"), Ok(()));
    assert_eq!(get(&fs, reader, 0, 1).unwrap(), &b"x"[..]);
}

#[test]
fn only_files_are_opened() {
    let fs = Fs::new();
    fs.symlink("l", b"x").unwrap();
    fs.make("p", FileKind::Fifo, 0o644, false).unwrap();
    for (path, error) in [("l", FsError::Loop), ("p", FsError::NoSuchDevice)] {
        let open = done(fs.model.open(&Cred::ROOT, &fs.file(path), None));
        assert_eq!(fs.outcome(open), Err(error));
    }
}

#[test]
fn a_closed_handle_is_a_bad_one() {
    let fs = Fs::new();
    let handle = fs.opened("f");
    done(fs.model.release(handle)).unwrap();
    assert_eq!(get(&fs, handle, 0, 1), Err(FsError::BadHandle));
    assert_eq!(fs.outcome(done(fs.model.flush(handle))), Err(FsError::BadHandle));
    assert_eq!(fs.outcome(done(fs.model.release(handle))), Err(FsError::BadHandle));
}

#[test]
fn one_call_copies_up_to_64_mib() {
    let fs = Fs::new();
    let (from, to) = (fs.opened("from"), fs.opened("to"));
    fs.setattr("from", SetAttr { size: Some((64 << 20) + 9), ..SetAttr::default() }).unwrap();
    let copy = |at| done(fs.model.copy_range((from, at), (to, at), u64::MAX, false)).unwrap();
    assert_eq!(copy(0), 67_108_864);
    assert_eq!(fs.stat("to").size, 67_108_864);
    assert_eq!((copy(67_108_864), copy(67_108_873)), (9, 0));
}
