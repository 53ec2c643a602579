//! Rules of the model: namespace.

use super::*;

#[test]
fn a_look_up_needs_permission_to_search() {
    let fs = Fs::new();
    fs.mkdir("d", 0o666).unwrap();
    fs.create("d/f", 0o644).unwrap();
    assert_eq!(fs.by(&user(5, &[])).lookup("d/f"), Err(FsError::Denied));
    assert_eq!(fs.by(&user(5, &[])).lookup("g"), Err(FsError::NotFound));
    assert!(fs.trusted(&user(5, &[])).lookup("d/f").is_ok());
}

#[test]
fn a_taken_name_is_refused_before_a_missing_permission() {
    let fs = Fs::new();
    fs.create("f", 0o644).unwrap();
    let other = fs.by(&user(5, &[]));
    assert_eq!(other.create("f", 0o644), Err(FsError::Exists));
    assert_eq!(other.mkdir("f", 0o755), Err(FsError::Exists));
    assert_eq!(other.link("f", "f"), Err(FsError::Exists));
    assert_eq!(other.mkdir("g", 0o755), Err(FsError::Denied));
}

#[test]
fn create_finds_what_is_there_unless_it_is_exclusive() {
    let fs = Fs::new();
    fs.mkdir("d", 0o755).unwrap();
    let new = New { kind: FileKind::File, mode: 0o600, rdev: 0 };
    let (root, last) = fs.at("d");
    let made = done(fs.model.create(&user(5, &[]), &root, &last, new, false, true)).unwrap();
    assert!(made.existed && made.handle.is_none() && made.entry.dir.is_some());
}

#[test]
fn create_makes_anything_but_directories_and_symlinks() {
    let fs = Fs::new();
    for kind in [FileKind::Directory, FileKind::Symlink] {
        assert_eq!(fs.make("x", kind, 0o644, false).unwrap_err(), FsError::Invalid);
    }
    assert_eq!(fs.make("p", FileKind::Fifo, 0o644, false).unwrap().entry.attr.rdev, 0);
    assert_eq!(fs.make("c", FileKind::CharDevice, 0o644, false).unwrap().entry.attr.rdev, 7);
}

#[test]
fn only_the_superuser_makes_devices() {
    let fs = Fs::new();
    fs.chmod("", 0o777).unwrap();
    let other = fs.by(&user(5, &[]));
    let denied = other.make("c", FileKind::BlockDevice, 0o644, false).unwrap_err();
    assert_eq!(denied, FsError::NotPermitted);
    assert!(other.make("p", FileKind::Fifo, 0o644, false).is_ok());
}

#[test]
fn a_setgid_directory_gives_its_group_and_subdirectories_its_bit() {
    let fs = Fs::new();
    fs.mkdir("d", 0o777).unwrap();
    fs.chown("d", 0, 30).unwrap();
    fs.chmod("d", 0o2777).unwrap();
    let other = fs.by(&user(5, &[]));
    let (file, dir) = (other.create("d/f", 0o644).unwrap(), other.mkdir("d/s", 0o755).unwrap());
    assert_eq!((file.gid, file.mode), (30, 0o644));
    assert_eq!((dir.gid, dir.mode), (30, 0o2755));
    assert_eq!(other.symlink("d/l", b"x").unwrap().attr.gid, 30);
}

#[test]
fn a_setgid_program_loses_the_bit_when_its_maker_is_not_in_the_group() {
    let fs = Fs::new();
    fs.mkdir("d", 0o777).unwrap();
    fs.chown("d", 0, 30).unwrap();
    fs.chmod("d", 0o2777).unwrap();
    assert_eq!(fs.by(&user(5, &[])).create("d/a", 0o2755).unwrap().mode, 0o755);
    assert_eq!(fs.by(&user(5, &[])).create("d/b", 0o2644).unwrap().mode, 0o2644);
    assert_eq!(fs.by(&user(5, &[30])).create("d/c", 0o2755).unwrap().mode, 0o2755);
    assert_eq!(fs.create("d/d", 0o2755).unwrap().mode, 0o2755);
}

#[test]
fn mkdir_takes_no_set_id_bits() {
    let fs = Fs::new();
    assert_eq!(fs.mkdir("d", 0o7755).unwrap().mode, 0o1755);
}

#[test]
fn each_subdirectory_is_a_link_to_its_parent() {
    let fs = Fs::new();
    assert_eq!(fs.mkdir("d", 0o755).unwrap().nlink, 2);
    fs.mkdir("d/s", 0o755).unwrap();
    fs.create("d/f", 0o644).unwrap();
    assert_eq!((fs.stat("d").nlink, fs.stat("d").size), (3, 2));
    fs.rmdir("d/s").unwrap();
    assert_eq!((fs.stat("d").nlink, fs.stat("d").size), (2, 1));
}

#[test]
fn what_changes_entries_changes_the_times_of_the_directory() {
    let fs = Fs::new();
    fs.mkdir("d", 0o755).unwrap();
    fs.create("f", 0o644).unwrap();
    let steps: [&dyn Fn(); 6] = [
        &|| assert!(fs.create("d/f", 0o644).is_ok()),
        &|| assert!(fs.mkdir("d/s", 0o755).is_ok()),
        &|| assert!(fs.symlink("d/l", b"x").is_ok()),
        &|| assert!(fs.link("f", "d/h").is_ok()),
        &|| assert!(fs.unlink("d/h").is_ok()),
        &|| assert!(fs.rmdir("d/s").is_ok()),
    ];
    for step in steps {
        let before = fs.stat("d");
        step();
        let after = fs.stat("d");
        assert!(after.mtime > before.mtime && after.ctime == after.mtime);
        assert_eq!(after.atime, before.atime);
    }
}

#[test]
fn link_and_unlink_change_the_ctime_of_the_file_only() {
    let fs = Fs::new();
    let made = fs.create("f", 0o644).unwrap();
    let linked = fs.link("f", "g").unwrap().attr;
    assert_eq!((linked.ino, linked.nlink, linked.mtime), (made.ino, 2, made.mtime));
    assert!(linked.ctime > made.ctime);
    let left = fs.unlink("f").unwrap();
    assert_eq!((left.nlink, left.mtime), (1, made.mtime));
    assert!(left.ctime > linked.ctime);
}

#[test]
fn a_directory_is_not_linked() {
    let fs = Fs::new();
    fs.mkdir("d", 0o755).unwrap();
    assert_eq!(fs.link("d", "e"), Err(FsError::NotPermitted));
}

#[test]
fn a_file_without_a_name_is_not_linked() {
    let fs = Fs::new();
    fs.opened("f");
    let node = fs.node("f");
    fs.unlink("f").unwrap();
    assert_eq!(fs.link_node(&node, "g"), Err(FsError::NotFound));
}

#[test]
fn a_file_has_no_more_names_than_the_limit() {
    let fs = Fs::new();
    fs.create("f", 0o644).unwrap();
    let (node, root) = (fs.node("f"), fs.model.root().0);
    for i in 1..65_000 {
        done(fs.model.link(&Cred::ROOT, &node, &root, &name(&i.to_string()))).unwrap();
    }
    assert_eq!(fs.link("f", "one more"), Err(FsError::TooManyLinks));
}

#[test]
fn unlink_refuses_directories_and_rmdir_everything_else() {
    let fs = Fs::new();
    fs.mkdir("d", 0o755).unwrap();
    fs.create("f", 0o644).unwrap();
    assert_eq!(fs.unlink("d"), Err(FsError::IsDirectory));
    assert_eq!(fs.rmdir("f"), Err(FsError::NotDirectory));
    assert_eq!(fs.rmdir("x"), Err(FsError::NotFound));
}

#[test]
fn only_an_empty_directory_is_removed() {
    let fs = Fs::new();
    fs.mkdir("d", 0o755).unwrap();
    fs.create("d/f", 0o644).unwrap();
    assert_eq!(fs.rmdir("d"), Err(FsError::NotEmpty));
    fs.unlink("d/f").unwrap();
    assert!(fs.rmdir("d").is_ok());
}

#[test]
fn a_sticky_directory_keeps_what_belongs_to_others() {
    let fs = Fs::new();
    fs.mkdir("t", 0o777).unwrap();
    fs.chmod("t", 0o1777).unwrap();
    fs.by(&user(5, &[])).create("t/f", 0o666).unwrap();
    fs.by(&user(5, &[])).mkdir("t/d", 0o777).unwrap();
    let other = fs.by(&user(6, &[]));
    assert_eq!(other.unlink("t/f"), Err(FsError::NotPermitted));
    assert_eq!(other.unlink("t/d"), Err(FsError::NotPermitted));
    assert_eq!(other.rename("t/f", "t/g"), Err(FsError::NotPermitted));
    assert!(fs.by(&user(5, &[])).unlink("t/f").is_ok());
}

#[test]
fn nothing_is_found_or_made_in_a_removed_directory() {
    let fs = Fs::new();
    fs.mkdir("d", 0o755).unwrap();
    let gone = fs.dir("d");
    fs.rmdir("d").unwrap();
    fs.mkdir("d", 0o755).unwrap();
    assert_eq!(fs.dir("d").id, gone.id);
    let root = &Cred::ROOT;
    let missing = Err(FsError::Stale);
    assert_eq!(fs.outcome(done(fs.model.lookup(root, &gone, &name("x")))), missing);
    assert_eq!(fs.outcome(done(fs.model.mkdir(root, &gone, &name("x"), 0o755))), missing);
    assert!(done(fs.model.readdir(root, &gone, 0, 10, false)).is_err());
    let stat = fs.outcome(done(fs.model.getattr(root, &NodeRef::Dir(gone))));
    assert_eq!(stat, Err(FsError::Stale));
}

#[test]
fn an_id_is_not_given_twice_while_its_directory_lives_elsewhere() {
    let fs = Fs::new();
    fs.mkdir("a", 0o755).unwrap();
    fs.rename("a", "b").unwrap();
    fs.mkdir("a", 0o755).unwrap();
    let root = DirId::ROOT;
    assert_eq!(fs.dir("b").id, KEY.dir_id(root, &name("a"), base::NameVersion(0)));
    assert_eq!(fs.dir("a").id, KEY.dir_id(root, &name("a"), base::NameVersion(1)));
}

#[test]
fn a_symlink_has_a_target_of_1_to_4095_bytes() {
    let fs = Fs::new();
    assert_eq!(fs.symlink("l", b""), Err(FsError::NotFound));
    assert_eq!(fs.symlink("l", &[b'x'; 4096]), Err(FsError::NameTooLong));
    assert_eq!(fs.symlink("l", b"a\0"), Err(FsError::Invalid));
    let made = fs.symlink("l", &[b'x'; 4095]).unwrap();
    assert_eq!((made.attr.size, made.attr.mode), (4095, 0o777));
    fs.create("f", 0o644).unwrap();
    assert_eq!(done(fs.model.readlink(&Cred::ROOT, &fs.file("l"))).unwrap(), made.target.unwrap());
    let refused = fs.outcome(done(fs.model.readlink(&Cred::ROOT, &fs.file("f"))));
    assert_eq!(refused, Err(FsError::Invalid));
}

#[test]
fn pages_of_a_listing_join_in_the_order_of_positions() {
    let fs = Fs::new();
    fs.mkdir("d", 0o755).unwrap();
    for i in 0..50 {
        fs.create(&format!("d/{i}"), 0o644).unwrap();
    }
    let (dir, mut after, mut seen) = (fs.dir("d"), 0, Vec::new());
    loop {
        let page = done(fs.model.readdir(&Cred::ROOT, &dir, after, 7, true)).unwrap();
        assert_eq!(page.parent_ino, Ino::ROOT);
        seen.extend(page.entries.iter().map(|entry| (entry.pos, entry.name.clone())));
        assert!(page.entries.iter().all(|entry| entry.pos == KEY.pos(&entry.name)));
        if page.end {
            break;
        }
        assert!(page.entries.len() >= 7);
        after = page.entries.last().unwrap().pos;
    }
    assert_eq!(seen.len(), 50);
    assert!(seen.is_sorted());
}

#[test]
fn a_listing_needs_permission_to_read_and_its_attributes_to_search() {
    let fs = Fs::new();
    fs.mkdir("d", 0o744).unwrap();
    fs.mkdir("e", 0o711).unwrap();
    fs.create("d/f", 0o644).unwrap();
    let other = user(5, &[]);
    let page = done(fs.model.readdir(&other, &fs.dir("d"), 0, 9, true)).unwrap();
    assert!(page.entries[0].entry.is_none());
    let denied = fs.outcome(done(fs.model.readdir(&other, &fs.dir("e"), 0, 9, false)));
    assert_eq!(denied, Err(FsError::Denied));
}
