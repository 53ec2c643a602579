//! Rules of the model: xattrs.

use base::limits::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};

use super::*;

fn remove(fs: &Fs, path: &str, name: &str) -> std::result::Result<(), FsError> {
    let name = Bytes::copy_from_slice(name.as_bytes());
    fs.outcome(done(fs.model.removexattr(&fs.cred, &fs.node(path), name)))
}

fn list(fs: &Fs, path: &str) -> std::result::Result<Vec<String>, FsError> {
    let all = fs.outcome(done(fs.model.xattrs(&fs.cred, &fs.node(path))))?;
    Ok(all.into_iter().map(|(name, _)| String::from_utf8(name.to_vec()).unwrap()).collect())
}

#[test]
fn an_attribute_is_made_replaced_and_removed() {
    let fs = Fs::new();
    let made = fs.create("f", 0o644).unwrap();
    assert_eq!(fs.setxattr("f", "user.a", b"1", XattrMode::Replace), Err(FsError::NoData));
    assert_eq!(fs.setxattr("f", "user.a", b"1", XattrMode::Create), Ok(()));
    assert_eq!(fs.setxattr("f", "user.a", b"2", XattrMode::Create), Err(FsError::Exists));
    assert_eq!(fs.setxattr("f", "user.a", b"", XattrMode::Set), Ok(()));
    assert!(fs.stat("f").ctime > made.ctime);
    assert_eq!(list(&fs, "f").unwrap(), ["user.a"]);
    assert_eq!(remove(&fs, "f", "user.a"), Ok(()));
    assert_eq!(remove(&fs, "f", "user.a"), Err(FsError::NoData));
}

#[test]
fn names_values_and_their_sum_have_limits() {
    let fs = Fs::new();
    fs.create("f", 0o644).unwrap();
    let (long, value) = (format!("user.{}", "x".repeat(250)), vec![7; XATTR_VALUE_BYTES_MAX]);
    assert_eq!(long.len(), XATTR_NAME_BYTES_MAX);
    let set = |name: &str, value: &[u8]| fs.setxattr("f", name, value, XattrMode::Set);
    assert_eq!(set(&long, b""), Ok(()));
    assert_eq!(set(&format!("{long}x"), b""), Err(FsError::Range));
    assert_eq!(set("", b""), Err(FsError::Range));
    assert_eq!(set("user.", b""), Err(FsError::Invalid));
    assert_eq!(set("user.a", &[value.clone(), vec![7]].concat()), Err(FsError::TooBig));
    for name in ["user.a", "user.b", "user.c"] {
        assert_eq!(set(name, &value), Ok(()));
    }
    assert_eq!(set("user.d", &value), Err(FsError::NoSpace));
}

#[test]
fn four_namespaces_are_known() {
    let fs = Fs::new();
    fs.create("f", 0o644).unwrap();
    for name in ["user.a", "trusted.a", "security.a", "system.a"] {
        assert_eq!(fs.setxattr("f", name, b"1", XattrMode::Set), Ok(()));
    }
    for name in ["a", "other.a", "USER.a"] {
        let refused = fs.setxattr("f", name, b"1", XattrMode::Set);
        assert_eq!(refused, Err(FsError::NotSupported));
    }
}

#[test]
fn user_attributes_are_for_files_and_directories() {
    let fs = Fs::new();
    fs.symlink("l", b"x").unwrap();
    fs.mkdir("d", 0o755).unwrap();
    let refused = fs.setxattr("l", "user.a", b"1", XattrMode::Set);
    assert_eq!(refused, Err(FsError::NotPermitted));
    assert_eq!(fs.setxattr("l", "trusted.a", b"1", XattrMode::Set), Ok(()));
    assert_eq!(fs.setxattr("d", "user.a", b"1", XattrMode::Set), Ok(()));
}

#[test]
fn each_namespace_has_its_own_permission() {
    let fs = Fs::new();
    fs.create("f", 0o666).unwrap();
    fs.mkdir("t", 0o777).unwrap();
    fs.chmod("t", 0o1777).unwrap();
    let other = fs.by(&user(5, &[]));
    let set = |path: &str, name: &str| other.setxattr(path, name, b"1", XattrMode::Set);
    assert_eq!(set("f", "user.a"), Ok(()));
    for name in ["trusted.a", "security.a", "system.a"] {
        assert_eq!(set("f", name), Err(FsError::NotPermitted));
    }
    assert_eq!(set("t", "user.a"), Err(FsError::NotPermitted));
    fs.chmod("f", 0o644).unwrap();
    assert_eq!(set("f", "user.b"), Err(FsError::Denied));
    assert_eq!(remove(&other, "f", "user.a"), Err(FsError::Denied));
}

#[test]
fn what_may_not_be_read_is_hidden() {
    let fs = Fs::new();
    fs.create("f", 0o644).unwrap();
    for name in ["user.a", "trusted.a", "security.a"] {
        fs.setxattr("f", name, b"1", XattrMode::Set).unwrap();
    }
    let other = fs.by(&user(5, &[]));
    assert_eq!(list(&other, "f").unwrap(), ["security.a", "user.a"]);
    fs.chmod("f", 0o600).unwrap();
    assert_eq!(list(&other, "f").unwrap(), ["security.a"]);
    assert_eq!(list(&fs, "f").unwrap(), ["security.a", "trusted.a", "user.a"]);
}
