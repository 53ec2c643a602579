//! POSIX ACLs as programs set and show them, compared with another file system of Linux (tmpfs).

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

use crate::harness::{Way, mount, mount_new, new_model, on_each};

/// Functions common to all scripts: `as UID GID command...`, `may UID GID file...`, and `show`.
const WORDS: &str = r#"
umask 027
as() { uid=$1 gid=$2; shift 2; setpriv --reuid="$uid" --regid="$gid" --clear-groups -- "$@" 2>/dev/null; }
may() {
    uid=$1 gid=$2; shift 2
    for file; do
        for what in r w x; do
            as "$uid" "$gid" test "-$what" "$file" && echo "$uid:$gid may $what $file"
        done
        as "$uid" "$gid" sh -c 'exec 3<"$1"' sh "$file" && echo "$uid:$gid opens $file"
    done
    return 0
}
show() {
    find . ! -type l ! -name . | LC_ALL=C sort | while read -r file; do
        getfacl -n -p "$file"
        ls -dn "$file" | cut -d' ' -f1
    done
}
"#;

fn run(dir: &Path, script: &str) -> String {
    let output = Command::new("sh")
        .args(["-c", &format!("{WORDS}\n{script}")])
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    format!("{}{}{}", text(output.stdout), text(output.stderr), output.status)
}

/// Runs a script on the mount and on tmpfs, which must look the same.
fn is_as_on_linux(script: &str) {
    let linux = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::set_permissions(linux.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let expected = run(linux.path(), script);
    assert!(expected.contains("user:1000:"), "{expected}");
    // Without setpriv(1) every access is denied, on either side.
    assert!(!script.contains("may ") || expected.contains(" may "), "{expected}");
    on_each(|mounted| assert_eq!(run(mounted.root(), script), expected));
}

#[test]
fn acls_are_inherited_masked_and_copied_as_on_linux() {
    is_as_on_linux(
        r#"
        mkdir d
        setfacl -m u:1000:rwx,g:2000:rx d
        setfacl -d -m u:1000:rwx,g:2000:rx,o::r d
        touch d/f; mkdir d/sub; touch d/sub/g; mkfifo d/p; ln -s f d/l
        mknod d/null c 1 3
        (umask 0; touch d/open; mkdir -m 1777 d/tmp)
        chmod 2750 d/sub; mkdir d/sub/deep
        chmod 604 d/f
        setfacl -m m::r d/sub/g
        setfacl -x u:1000 d/sub
        setfacl -k d/sub/deep
        setfacl -b d/p; setfacl -b d/p
        setfacl -d -m u:1000:rx d/f || echo refused
        cp -a d e
        mv d/open d/sub/moved
        show
        "#,
    );
}

#[test]
fn acls_are_enforced_as_on_linux() {
    is_as_on_linux(
        r#"
        for mask in rwx rx r -; do
            mkdir "d$mask"; echo x > "d$mask/f"
            setfacl -m "u:1000:rwx,u:1001:r,g:2000:rwx,g:2001:x,m::$mask" "d$mask"
            setfacl -m "u:1000:r,u:1001:-,g:2000:w,o::r,m::$mask" "d$mask/f"
            chown 1005:2005 "d$mask/f"
            for who in "1000 1" "1001 2000" "1002 2000" "1002 2001" "1002 0" "1002 1" "1005 1" "1006 2005"; do
                may $who "d$mask" "d$mask/f"
            done
            as 1000 1 touch "d$mask/new" && echo made
            as 1001 1 touch "d$mask/other" && echo made
        done
        show
        "#,
    );
}

#[test]
fn who_is_not_of_the_group_loses_set_group_id_with_an_acl() {
    is_as_on_linux(
        r#"
        touch f g; mkdir d
        chown 1000:3000 f g d; chmod 2775 f g d
        as 1000 1000 setfacl -m u:1000:rx f && echo set
        as 1000 3000 setfacl -m u:1000:rx g && echo set
        as 1000 1000 setfacl -d -m u:1000:rx d && echo set
        as 1001 1001 setfacl -m u:1001:rwx f || echo refused
        as 1001 1001 setfacl -b d || echo refused
        show
        "#,
    );
}

#[test]
fn an_acl_that_another_client_sets_holds_here() {
    let mounted = mount(&new_model(), &Way::uncached());
    let other = mount(&mounted.model, &Way::uncached());
    run(mounted.root(), "mkdir -m 755 d; echo x > d/f; chmod 644 d/f; may 1000 1 d d/f");
    let all = run(mounted.root(), "may 1000 1 d/f");
    assert!(all.contains("1000:1 opens d/f"), "{all}");
    assert!(run(other.root(), "setfacl -m u:1000:- d").ends_with("exit status: 0"));
    let none = run(mounted.root(), "may 1000 1 d/f");
    assert!(!none.contains("opens"), "{none}");
    other.unmount();
    mounted.unmount();
}

#[test]
fn files_without_acls_cost_no_question() {
    let mounted = mount_new();
    fs::create_dir(mounted.path("d")).unwrap();
    fs::write(mounted.path("d/f"), b"x").unwrap();
    fs::set_permissions(mounted.path("d/f"), fs::Permissions::from_mode(0o664)).unwrap();
    run(mounted.root(), "may 1000 1 d d/f; ls -l d; getfacl -n -p d d/f");
    let asked = mounted.seen.count("xattrs");
    run(mounted.root(), "setfacl -m u:1000:rx d; may 1000 1 d");
    assert!(mounted.seen.count("xattrs") > asked);
    // `ls` and `getfacl` look for other attributes too; the kernel's questions are answered here.
    assert_eq!(mounted.seen.count("setxattr"), 1);
    mounted.unmount();
}
