//! Modes, owners, times, extended attributes and ACLs.

use base::{
    FsError,
    attr::{MODE_ACL, MODE_XATTRS},
};
use wire::XattrMode;

use super::*;

/// An ACL with a named user and a mask: `u::rwx,u:7:rwx,g::r-x,m::rwx,o::---`.
fn acl() -> Vec<u8> {
    let mut acl = 2u32.to_le_bytes().to_vec();
    let nobody = u32::MAX;
    for (tag, perm, id) in
        [(1u16, 7u16, nobody), (2, 7, 7), (4, 5, nobody), (16, 7, nobody), (32, 0, nobody)]
    {
        acl.extend(tag.to_le_bytes());
        acl.extend(perm.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    acl
}

fn set_xattr(below: &dyn Below, at: &str, name: &[u8], value: &[u8]) -> crate::below::Result<()> {
    below.set_xattr(&path(at), name, value, XattrMode::Set)
}

#[test]
fn what_is_none_stays() {
    each(|below| {
        let made = below.make(&path("f"), &New::File(contents("abc")), &meta(0o4755)).unwrap();
        let set = |change: Change| below.set(&path("f"), &change).unwrap().attr;
        let change = Change { contents: Some(contents("x")), ..Change::default() };
        let after = set(change);
        assert_eq!((after.mode, after.size, after.ino), (0o4755, 1, made.attr.ino));
        let after = set(Change { times: Some((time(1), time(2))), ..Change::default() });
        assert_eq!((after.mode, after.atime, after.mtime), (0o4755, time(1), time(2)));
        let after = set(mode(0o600));
        assert_eq!((after.mode, after.mtime, after.size), (0o600, time(2), 1));
        let all = Change {
            contents: Some(contents("longer")),
            mode: Some(0o6711),
            owner: Some((after.uid, after.gid)),
            times: Some((time(-3), time(4))),
        };
        let after = set(all);
        assert_eq!((after.mode, after.size), (0o6711, 6));
        assert_eq!((after.atime, after.mtime), (time(-3), time(4)));
        assert_eq!(set(Change::default()), after);
        assert_eq!(text(below, "f"), "longer");
    });
}

#[test]
fn an_owner_is_given_and_the_mode_survives_it() {
    if !is_root() {
        return;
    }
    each(|below| {
        let meta = Meta { uid: 71, gid: 72, ..meta(0o6755) };
        for (at, new) in [("f", New::File(contents("x"))), ("d", New::Directory)] {
            let made = below.make(&path(at), &new, &meta).unwrap().attr;
            assert_eq!((made.uid, made.gid, made.mode), (71, 72, 0o6755));
        }
        let made = below.make(&path("s"), &New::Symlink("x".into()), &meta).unwrap().attr;
        assert_eq!((made.uid, made.gid, made.mtime), (71, 72, meta.mtime));
        let change = Change { owner: Some((5, 6)), ..Change::default() };
        for at in ["f", "d", "s"] {
            let set = below.set(&path(at), &change).unwrap().attr;
            assert_eq!((set.uid, set.gid), (5, 6));
        }
        assert_eq!(look(below, "f").unwrap().attr.mode, 0o6755);
        let nobody = Change { owner: Some((u32::MAX, 6)), ..Change::default() };
        assert_eq!(below.set(&path("f"), &nobody), Err(FsError::Invalid));
    });
}

#[test]
fn a_symbolic_link_has_times_and_no_mode() {
    each(|below| {
        file(below, "f", "");
        let before = look(below, "f");
        symlink(below, "s", "f");
        let change = Change { mode: Some(0), times: Some((time(1), time(2))), ..Change::default() };
        let after = below.set(&path("s"), &change).unwrap().attr;
        assert_eq!((after.atime, after.mtime, after.mode), (time(1), time(2), 0o777));
        assert_eq!(look(below, "f"), before);
    });
}

#[test]
fn a_file_that_its_owner_may_not_write_is_changed_all_the_same() {
    each(|below| {
        below.make(&path("f"), &New::File(contents("abc")), &meta(0o444)).unwrap();
        let change = Change { contents: Some(contents("xy")), ..Change::default() };
        assert_eq!(below.set(&path("f"), &change).unwrap().attr.mode, 0o444);
        assert_eq!(text(below, "f"), "xy");
        let open = below.open(&path("f")).unwrap();
        open.write_at(2, b"z").unwrap();
        assert_eq!((text(below, "f"), open.attr().unwrap().mode), ("xyz".to_owned(), 0o444));
        below.set(&path("f"), &mode(0)).unwrap();
        assert_eq!(text(below, "f"), "xyz");
        below.sync_file(&path("f")).unwrap();
        assert_eq!(look(below, "f").unwrap().attr.mode, 0);
    });
}

#[test]
fn times_of_a_directory_change_with_its_entries() {
    each(|below| {
        let old = Change { times: Some((time(1), time(2))), ..Change::default() };
        let is_new = |at: &str| {
            let was = look(below, at).unwrap().attr.mtime != time(2);
            below.set(&path(at), &old).unwrap();
            was
        };
        dir(below, "d");
        dir(below, "e");
        assert!(is_new("d") && is_new("e"));
        file(below, "d/f", "");
        assert!(is_new("d"));
        below.set(&path("d/f"), &mode(0o600)).unwrap();
        assert!(!is_new("d"));
        below.rename(&path("d/f"), &path("e/f"), wire::RenameMode::Replace).unwrap();
        assert!(is_new("d") && is_new("e"));
        below.unlink(&path("e/f")).unwrap();
        assert!(is_new("e") && !is_new("d"));
    });
}

#[test]
fn extended_attributes_are_set_told_and_removed() {
    each(|below| {
        file(below, "f", "");
        dir(below, "d");
        let at = path("f");
        assert_eq!(below.xattrs(&at), Ok(vec![]));
        set_xattr(below, "f", b"user.a", b"1").unwrap();
        set_xattr(below, "f", b"user.b", b"").unwrap();
        set_xattr(below, "d", b"user.a", b"1").unwrap();
        let mut xattrs = below.xattrs(&at).unwrap();
        xattrs.sort();
        assert_eq!(xattrs, [("user.a".into(), "1".into()), ("user.b".into(), "".into())]);
        assert_eq!(look(below, "f").unwrap().attr.mode, 0o644 | MODE_XATTRS);
        assert_eq!(look(below, "d").unwrap().attr.mode, 0o755, "not of a directory");
        let set = |name: &[u8], mode| below.set_xattr(&at, name, b"2", mode);
        assert_eq!(set(b"user.a", XattrMode::Create), Err(FsError::Exists));
        assert_eq!(set(b"user.c", XattrMode::Replace), Err(FsError::NoData));
        assert_eq!(set(b"user.", XattrMode::Set), Err(FsError::Invalid));
        assert_eq!(set(b"other.x", XattrMode::Set), Err(FsError::NotSupported));
        assert_eq!(below.remove_xattr(&at, b"user.c"), Err(FsError::NoData));
        set(b"user.a", XattrMode::Replace).unwrap();
        below.remove_xattr(&at, b"user.b").unwrap();
        assert_eq!(below.xattrs(&at), Ok(vec![("user.a".into(), "2".into())]));
        let open = below.open(&at).unwrap();
        assert_eq!(open.attr().unwrap().mode, 0o644 | MODE_XATTRS);
        below.remove_xattr(&at, b"user.a").unwrap();
        assert_eq!(look(below, "f").unwrap().attr.mode, 0o644);
        let value = vec![7; 3000];
        set_xattr(below, "f", b"user.large", &value).unwrap();
        assert_eq!(below.xattrs(&at), Ok(vec![("user.large".into(), value.into())]));
    });
}

#[test]
fn a_symbolic_link_has_no_attributes_of_users_or_acls() {
    each(|below| {
        file(below, "f", "");
        symlink(below, "s", "f");
        assert_eq!(set_xattr(below, "s", b"user.a", b"1"), Err(FsError::NotPermitted));
        let set = set_xattr(below, "s", base::acl::ACCESS, &acl());
        assert_eq!(set, Err(FsError::NotSupported));
        assert_eq!(below.xattrs(&path("s")), Ok(vec![]));
        assert_eq!(below.xattrs(&path("f")), Ok(vec![]), "none went through it");
    });
}

#[test]
fn an_acl_shows_in_the_mode_and_follows_it() {
    each(|below| {
        file(below, "f", "");
        set_xattr(below, "f", base::acl::ACCESS, &acl()).unwrap();
        let found = look(below, "f").unwrap();
        assert_eq!((found.attr.mode, found.default_acl), (0o770 | MODE_ACL, false));
        let set = below.set(&path("f"), &mode(0o640)).unwrap();
        assert_eq!(set.attr.mode, 0o640 | MODE_ACL);
        let change = Change { contents: Some(contents("x")), ..Change::default() };
        assert_eq!(below.set(&path("f"), &change).unwrap().attr.mode, 0o640 | MODE_ACL);
        below.remove_xattr(&path("f"), base::acl::ACCESS).unwrap();
        assert_eq!(look(below, "f").unwrap().attr.mode & MODE_ACL, 0);
        let set = set_xattr(below, "f", base::acl::DEFAULT, &acl());
        assert_eq!(set, Err(FsError::Denied));
        assert_eq!(set_xattr(below, "f", base::acl::ACCESS, b"123"), Err(FsError::Invalid));
    });
}

#[test]
fn what_is_made_below_a_default_acl_has_what_it_makes_of_the_mode() {
    each(|below| {
        dir(below, "d");
        set_xattr(below, "d", base::acl::DEFAULT, &acl()).unwrap();
        let found = look(below, "d").unwrap();
        assert_eq!((found.attr.mode, found.default_acl), (0o755 | MODE_ACL, true));
        for (mode, wanted) in [(0o666, 0o660), (0o640, 0o640), (0o444, 0o440), (0o4777, 0o4770)] {
            let at = path(format!("d/{mode:o}"));
            let made = below.make(&at, &New::File(contents("x")), &meta(mode)).unwrap();
            assert_eq!(made.attr.mode, wanted | MODE_ACL, "{mode:o}");
            let (unnamed, _open) = below.unnamed(&path("d"), &meta(mode)).unwrap();
            assert_eq!(unnamed.attr.mode, wanted | MODE_ACL, "{mode:o}");
        }
        let made = below.make(&path("d/e"), &New::Directory, &meta(0o057)).unwrap();
        assert_eq!((made.attr.mode, made.default_acl), (0o750 | MODE_ACL, true));
        assert_eq!(symlink(below, "d/s", "x").attr.mode, 0o777);
    });
}
