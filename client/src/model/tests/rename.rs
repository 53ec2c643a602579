//! Rules of the model: rename.

use super::*;

#[test]
fn rename_replaces_a_file_and_updates_the_ctime_of_both() {
    let fs = Fs::new();
    let made = fs.create("a", 0o644).unwrap();
    fs.opened("b");
    let replaced = fs.node("b");
    assert_eq!(fs.rename("a", "b"), Ok(made.ino));
    let moved = fs.stat("b");
    assert_eq!((moved.ino, moved.mtime), (made.ino, made.mtime));
    assert!(moved.ctime > made.ctime);
    let left = done(fs.model.getattr(&Cred::ROOT, &replaced)).unwrap();
    assert_eq!((left.nlink, left.ctime), (0, moved.ctime));
    assert_eq!(fs.lookup("a"), Err(FsError::NotFound));
}

#[test]
fn rename_between_two_names_of_one_file_does_nothing() {
    let fs = Fs::new();
    fs.create("a", 0o644).unwrap();
    fs.link("a", "b").unwrap();
    let before = (fs.stat("a"), fs.stat(""));
    assert_eq!(fs.by(&user(5, &[])).rename("a", "b"), Ok(before.0.ino));
    assert_eq!((fs.stat("a"), fs.stat("")), before);
}

#[test]
fn rename_over_another_kind_is_refused() {
    let fs = Fs::new();
    fs.mkdir("d", 0o755).unwrap();
    fs.create("f", 0o644).unwrap();
    assert_eq!(fs.rename("f", "d"), Err(FsError::IsDirectory));
    assert_eq!(fs.rename("d", "f"), Err(FsError::NotDirectory));
    assert_eq!(fs.rename("x", "f"), Err(FsError::NotFound));
}

#[test]
fn a_directory_replaces_an_empty_one_only() {
    let fs = Fs::new();
    for path in ["a", "b", "b/c"] {
        fs.mkdir(path, 0o755).unwrap();
    }
    assert_eq!(fs.rename("a", "b"), Err(FsError::NotEmpty));
    assert!(fs.rename("a", "b/c").is_ok());
    assert_eq!((fs.stat("").nlink, fs.stat("b").nlink), (3, 3));
}

#[test]
fn a_directory_does_not_move_into_itself() {
    let fs = Fs::new();
    for path in ["a", "a/b", "a/b/c"] {
        fs.mkdir(path, 0o755).unwrap();
    }
    assert_eq!(fs.rename("a", "a/x"), Err(FsError::Invalid));
    assert_eq!(fs.rename("a", "a/b/c"), Err(FsError::Invalid));
    assert_eq!(fs.rename_as(RenameMode::Exchange, "a", "a/b"), Err(FsError::Invalid));
}

#[test]
fn nothing_replaces_a_directory_above_it() {
    let fs = Fs::new();
    fs.mkdir("a", 0o755).unwrap();
    fs.create("a/f", 0o644).unwrap();
    assert_eq!(fs.rename("a/f", "a"), Err(FsError::NotEmpty));
    assert_eq!(fs.rename_as(RenameMode::Exchange, "a/f", "a"), Err(FsError::Invalid));
}

#[test]
fn no_replace_refuses_a_taken_name() {
    let fs = Fs::new();
    fs.create("a", 0o644).unwrap();
    fs.link("a", "b").unwrap();
    assert_eq!(fs.rename_as(RenameMode::NoReplace, "a", "b"), Err(FsError::Exists));
    assert!(fs.rename_as(RenameMode::NoReplace, "a", "c").is_ok());
}

#[test]
fn exchange_swaps_a_file_and_a_directory() {
    let fs = Fs::new();
    fs.mkdir("d", 0o755).unwrap();
    fs.mkdir("d/s", 0o755).unwrap();
    fs.create("d/s/x", 0o644).unwrap();
    let file = fs.create("f", 0o644).unwrap();
    assert_eq!(fs.rename_as(RenameMode::Exchange, "f", "y"), Err(FsError::NotFound));
    fs.rename_as(RenameMode::Exchange, "f", "d/s").unwrap();
    assert_eq!(fs.stat("d/s").ino, file.ino);
    assert!(fs.lookup("f/x").is_ok());
    assert_eq!((fs.stat("").nlink, fs.stat("d").nlink), (4, 2));
    assert!(fs.stat("f").ctime == fs.stat("d/s").ctime && fs.stat("f").ctime > file.ctime);
}

#[test]
fn rename_changes_the_times_of_both_directories() {
    let fs = Fs::new();
    fs.mkdir("a", 0o755).unwrap();
    fs.mkdir("b", 0o755).unwrap();
    fs.create("a/f", 0o644).unwrap();
    let before = fs.stat("b").ctime.max(fs.stat("a").ctime);
    fs.rename("a/f", "b/f").unwrap();
    for dir in ["a", "b"] {
        assert!(fs.stat(dir).mtime > before && fs.stat(dir).ctime > before);
    }
}

#[test]
fn moving_a_directory_to_another_parent_needs_permission_to_write_to_it() {
    let fs = Fs::new();
    for path in ["a", "b"] {
        fs.mkdir(path, 0o777).unwrap();
        fs.chmod(path, 0o777).unwrap();
    }
    fs.mkdir("a/d", 0o755).unwrap();
    let other = fs.by(&user(5, &[]));
    assert_eq!(other.rename("a/d", "b/d"), Err(FsError::Denied));
    assert!(other.rename("a/d", "a/e").is_ok());
    assert!(fs.trusted(&user(5, &[])).rename("a/e", "b/d").is_ok());
}

#[test]
fn rename_needs_permission_to_write_in_both_directories() {
    let fs = Fs::new();
    fs.mkdir("open", 0o777).unwrap();
    fs.chmod("open", 0o777).unwrap();
    fs.create("open/f", 0o644).unwrap();
    let other = fs.by(&user(5, &[]));
    assert_eq!(other.rename("open/f", "g"), Err(FsError::Denied));
    fs.create("g", 0o644).unwrap();
    assert_eq!(other.rename("g", "open/g"), Err(FsError::Denied));
}
