//! Influences of a machine: the umask, another user, other mounts.

use std::{env, process::Command};

use base::FsError;

use super::*;

/// Set in processes that a test here starts, to what they are for.
const INNER: &str = "PANDO_TEST_BELOW_INNER";

/// Runs tests of this program again, behind a command that takes a program and arguments.
fn again(inner: &str, before: &[&str], tests: &[&str]) -> bool {
    let program = env::current_exe().unwrap();
    let mut command = Command::new(before[0]);
    command.args(&before[1..]).arg(program).args(tests).env(INNER, inner);
    let Ok(output) = command.output() else { return false };
    let text = String::from_utf8_lossy(&output.stdout);
    // The command may not be allowed here; once tests run, they must succeed.
    let ran = text.contains("running ");
    assert!(!ran || output.status.success(), "{before:?}: {text}");
    ran
}

#[test]
fn everything_again_with_a_umask_that_forbids_all() {
    if env::var_os(INNER).is_none() {
        let shell = ["sh", "-c", "umask 077; exec \"$0\" \"$@\""];
        assert!(again("umask", &shell, &["below::tests::", "--skip", "random"]));
    }
}

#[test]
fn everything_again_as_a_user() {
    if env::var_os(INNER).is_none() && is_root() {
        let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        again("user", &user, &["below::tests::", "--skip", "random"]);
    }
}

#[test]
fn other_mounts_are_not_entered_and_one_above_does_not_show() {
    if env::var_os(INNER).is_none() {
        let name = "below::tests::again::inner_mounts";
        again("mounts", &["unshare", "--mount", "--propagation", "private"], &["--exact", name]);
    }
}

#[test]
fn inner_mounts() {
    if env::var_os(INNER).is_none_or(|inner| inner != "mounts") {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let below = Mounted::open(outside.path()).unwrap();
    dir(&below, "m");
    dir(&below, "d");
    file(&below, "d/f", "ours");
    let mount = |at: &std::path::Path| {
        let args = ["-t", "tmpfs", "-o", "size=1m", "none"];
        Command::new("mount").args(args).arg(at).status().unwrap().success()
    };
    assert!(mount(&outside.path().join("m")));
    std::fs::write(outside.path().join("m/f"), "theirs").unwrap();
    let (at, crosses) = (path("m/f"), Err(FsError::CrossDevice));
    assert_eq!(below.look(&at), Err(FsError::CrossDevice));
    assert_eq!(below.look(&path("m")), Err(FsError::CrossDevice));
    assert_eq!(below.list(&path("m"), usize::MAX), Err(FsError::CrossDevice));
    assert_eq!(below.unlink(&at), crosses);
    assert_eq!(below.rename(&at, &path("g"), wire::RenameMode::Replace), crosses);
    assert_eq!(below.rmdir(&path("m")), Err(FsError::Busy));
    assert!(mount(outside.path()));
    assert!(std::fs::read_dir(outside.path()).unwrap().next().is_none(), "it is covered");
    std::fs::create_dir(outside.path().join("small")).unwrap();
    assert!(mount(&outside.path().join("small")));
    assert_eq!(text(&below, "d/f"), "ours");
    assert_eq!(names(&below, ""), ["d", "m"]);
    let open = below.open(&path("d/f")).unwrap();
    open.write_at(0, b"x").unwrap();
    file(&below, "new", "");
    below.unnamed(&Path::root(), &meta(0o600)).unwrap().1.link(&path("named")).unwrap();
    below.sync_all().unwrap();
    let small = Mounted::open(&outside.path().join("small")).unwrap();
    let half = Arc::new(vec![1; 600 << 10]);
    small.make(&path("f"), &New::File(half.clone()), &meta(0o644)).unwrap();
    let made = small.make(&path("g"), &New::File(half), &meta(0o644));
    assert_eq!((made, names(&small, "")), (Err(FsError::NoSpace), vec!["f".to_owned()]));
    drop(small);
    for at in ["small", "", "m"].map(|at| outside.path().join(at)) {
        assert!(Command::new("umount").arg(at).status().unwrap().success());
    }
    assert_eq!(std::fs::read_to_string(outside.path().join("d/f")).unwrap(), "xurs");
    assert!(outside.path().join("named").exists());
}

#[test]
fn what_is_no_directory_is_not_opened() {
    use crate::OpenError;
    let outside = tempfile::tempdir().unwrap();
    let at = outside.path().join("f");
    assert!(matches!(Mounted::open(&at), Err(OpenError::NotThere { .. })));
    std::fs::write(&at, "").unwrap();
    assert!(matches!(Mounted::open(&at), Err(OpenError::NotDirectory { .. })));
}
