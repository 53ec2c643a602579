//! Rules of the model: attributes.

use base::{SetTime, limits::FILE_BYTES_MAX};

use super::*;

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

fn times(atime: Option<SetTime>, mtime: Option<SetTime>) -> SetAttr {
    SetAttr { atime, mtime, ..SetAttr::default() }
}

/// A file of user 5 in a world that anybody may write to.
fn owned(mode: u32) -> (Fs, Fs, Fs) {
    let fs = Fs::new();
    fs.chmod("", 0o777).unwrap();
    let (owner, other) = (fs.by(&user(5, &[20])), fs.by(&user(6, &[])));
    owner.create("f", mode).unwrap();
    (fs, owner, other)
}

#[test]
fn only_the_owner_changes_a_mode() {
    let (fs, owner, other) = owned(0o666);
    let before = fs.stat("f");
    assert_eq!(other.chmod("f", 0o600), Err(FsError::NotPermitted));
    assert!(owner.chmod("f", 0o100_601).is_ok());
    let after = fs.stat("f");
    assert_eq!((after.mode, after.mtime), (0o601, before.mtime));
    assert!(after.ctime > before.ctime);
}

#[test]
fn a_symlink_has_no_mode_to_change() {
    let fs = Fs::new();
    fs.symlink("l", b"x").unwrap();
    assert_eq!(fs.chmod("l", 0o600), Err(FsError::NotSupported));
}

#[test]
fn setgid_on_a_file_of_a_foreign_group_is_dropped() {
    let (fs, owner, _) = owned(0o755);
    fs.chown("f", 5, 99).unwrap();
    assert_eq!(owner.chmod("f", 0o2755).unwrap().mode, 0o755);
    assert_eq!(fs.chmod("f", 0o2755).unwrap().mode, 0o2755);
}

#[test]
fn only_the_superuser_gives_files_away() {
    let (fs, owner, other) = owned(0o644);
    assert_eq!(owner.chown("f", 6, 5), Err(FsError::NotPermitted));
    assert_eq!(other.chown("f", 5, 6), Err(FsError::NotPermitted));
    assert!(owner.chown("f", 5, 20).is_ok());
    assert_eq!(owner.chown("f", 5, 21), Err(FsError::NotPermitted));
    assert_eq!(fs.chown("f", 6, 21).unwrap().uid, 6);
}

#[test]
fn chown_clears_set_id_bits_of_what_is_no_directory() {
    let fs = Fs::new();
    for (mode, left) in [(0o6755, 0o755), (0o6745, 0o2745), (0o7777, 0o1777)] {
        fs.create("f", mode).unwrap();
        assert_eq!(fs.chown("f", 1, 1).unwrap().mode, left);
        fs.unlink("f").unwrap();
    }
    fs.mkdir("d", 0o755).unwrap();
    fs.chmod("d", 0o6755).unwrap();
    assert_eq!(fs.chown("d", 1, 1).unwrap().mode, 0o6755);
}

#[test]
fn whoever_may_write_may_set_the_times_to_now() {
    let (fs, owner, other) = owned(0o646);
    let (now, then) = (SetTime::Now, SetTime::At(Time { sec: -5, nsec: 9 }));
    assert!(other.setattr("f", times(Some(now), Some(now))).is_ok());
    for set in [times(Some(now), None), times(Some(then), Some(now)), times(None, Some(then))] {
        assert_eq!(other.setattr("f", set), Err(FsError::NotPermitted));
        assert!(owner.setattr("f", set).is_ok());
    }
    assert_eq!(fs.stat("f").mtime, Time { sec: -5, nsec: 9 });
    owner.chmod("f", 0o644).unwrap();
    assert_eq!(other.setattr("f", times(Some(now), Some(now))), Err(FsError::Denied));
}

#[test]
fn a_read_moves_the_access_time_forward_only_and_leaves_ctime() {
    let fs = Fs::new();
    fs.create("f", 0o644).unwrap();
    let before = fs.stat("f");
    let read = |sec| SetAttr {
        access_only: true,
        ..times(Some(SetTime::At(Time { sec, nsec: 0 })), None)
    };
    assert_eq!(fs.setattr("f", read(0)), Ok(before));
    let later = before.atime.sec + 100;
    let after = fs.setattr("f", read(later)).unwrap();
    assert_eq!((after.atime.sec, after.ctime), (later, before.ctime));
}

#[test]
fn only_files_that_may_be_written_are_truncated() {
    let (fs, owner, other) = owned(0o644);
    fs.make("p", FileKind::Fifo, 0o666, false).unwrap();
    assert_eq!(other.setattr("f", size(1)), Err(FsError::Denied));
    assert_eq!(owner.setattr("", size(1)), Err(FsError::IsDirectory));
    assert_eq!(owner.setattr("p", size(1)), Err(FsError::Invalid));
    assert_eq!(owner.setattr("f", size(FILE_BYTES_MAX + 1)), Err(FsError::FileTooBig));
    let after = owner.setattr("f", size(FILE_BYTES_MAX)).unwrap();
    assert_eq!((after.size, after.mtime), (FILE_BYTES_MAX, after.ctime));
    assert!(after.mtime > after.btime);
}

#[test]
fn set_id_bits_are_cleared_on_demand() {
    let (_, owner, _) = owned(0o6755);
    let set = SetAttr { clear_set_id: true, ..size(3) };
    assert_eq!(owner.setattr("f", set).unwrap().mode, 0o755);
}

#[test]
fn nothing_to_set_changes_nothing() {
    let fs = Fs::new();
    fs.create("f", 0o644).unwrap();
    let before = fs.stat("f");
    assert_eq!(fs.setattr("f", SetAttr::default()), Ok(before));
}

#[test]
fn whoever_has_a_file_open_for_writing_truncates_it_whatever_its_mode() {
    let (fs, owner, _) = owned(0o644);
    let open = |access| done(owner.model.open(&owner.cred, &owner.file("f"), access)).unwrap();
    let (reader, writer) = (open(Some(Access::READ)), open(Some(Access::WRITE)));
    owner.chmod("f", 0o444).unwrap();
    assert!(owner.setattr("f", size(1)).is_ok());
    let stranger = Fs { model: fs.model.client(false), cred: owner.cred.clone() };
    assert_eq!(stranger.setattr("f", size(1)), Err(FsError::Denied));
    done(owner.model.release(writer)).unwrap();
    assert!(owner.setattr("f", size(1)).is_ok(), "until the client has closed all it has");
    done(owner.model.release(reader)).unwrap();
    assert_eq!(owner.setattr("f", size(1)), Err(FsError::Denied));
}

#[test]
fn a_read_brings_the_access_time_up_to_date_once_after_a_change() {
    let fs = Fs::new();
    let handle = fs.opened("f");
    let read = |len| done(fs.model.read(handle, 0, len)).unwrap();
    let made = fs.stat("f");
    read(0);
    assert_eq!(fs.stat("f"), made);
    read(1);
    let first = fs.stat("f");
    assert!(first.atime > made.atime && first.ctime == made.ctime);
    read(1);
    assert_eq!(fs.stat("f"), first);
    fs.chmod("f", 0o600).unwrap();
    read(1);
    assert!(fs.stat("f").atime > first.atime);
}

#[test]
fn a_file_is_reached_through_a_directory_that_may_be_searched_unless_it_is_open() {
    let fs = Fs::new();
    fs.mkdir("d", 0o755).unwrap();
    fs.create("d/f", 0o644).unwrap();
    let other = user(7, &[]);
    let stat = |fs: &Fs, node| fs.outcome(done(fs.model.getattr(&other, node)));
    let node = fs.node("d/f");
    fs.chmod("d", 0o700).unwrap();
    assert_eq!(stat(&fs, &node), Err(FsError::Denied));
    assert!(stat(&fs.trusted(&other), &node).is_ok());
    let roots = done(fs.model.open(&Cred::ROOT, &fs.file("d/f"), None)).unwrap();
    assert_eq!(stat(&fs, &node), Err(FsError::Denied), "another user has it open");
    fs.chmod("d", 0o755).unwrap();
    let handle = done(fs.model.open(&other, &fs.file("d/f"), None)).unwrap();
    fs.chmod("d", 0o700).unwrap();
    assert!(stat(&fs, &node).is_ok());
    done(fs.model.release(handle)).unwrap();
    done(fs.model.release(roots)).unwrap();
    assert_eq!(stat(&fs, &node), Err(FsError::Denied));
}
