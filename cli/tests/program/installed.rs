//! Files that `make install` installs, and mount(8) and /etc/fstab through them.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    path::Path,
    process::Command,
    time::Duration,
};

use crate::harness::{Data, Running, folder, pando, succeed, text, unmount};

/// `make install` into `root`, without the build.
fn install(root: &Path, args: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/install");
    let program = pando(&[]).get_program().to_owned();
    let mut command = Command::new(script);
    command.args(args).env("DESTDIR", root).env("PANDO", program).env("PREFIX", "/usr");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn make_install_brings_all_that_a_machine_needs_and_uninstall_takes_it_away() {
    let root = folder();
    install(root.path(), &[]);
    let there = |path: &str| root.path().join(path);
    for path in [
        "usr/bin/pando",
        "usr/share/man/man1/pando.1",
        "usr/share/man/man1/pando-mount.1",
        "usr/share/man/man8/mount.fuse.pando.8",
        "usr/lib/systemd/system/pando-server.service",
        "usr/lib/systemd/system/pando-mount@.service",
        "usr/lib/sysusers.d/pando.conf",
        "usr/share/bash-completion/completions/pando",
        "usr/share/zsh/site-functions/_pando",
        "usr/share/fish/vendor_completions.d/pando.fish",
    ] {
        assert!(fs::metadata(there(path)).unwrap().len() > 100, "{path}");
    }
    let helper = fs::read_link(there("sbin/mount.fuse.pando")).unwrap();
    assert_eq!(helper, Path::new("/usr/bin/pando"));
    let unit = fs::read_to_string(there("usr/lib/systemd/system/pando-server.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/pando serve"), "{unit}");
    let page = fs::read_to_string(there("usr/share/man/man1/pando-mount.1")).unwrap();
    assert!(page.contains("attr_timeout"), "{page}");
    let bash = there("usr/share/bash-completion/completions/pando");
    assert!(Command::new("bash").arg("-n").arg(bash).status().unwrap().success());

    install(root.path(), &["--remove"]);
    let left = Command::new("find").arg(root.path()).args(["-not", "-type", "d"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
}

/// The value of a unit's setting.
fn setting<'a>(unit: &'a str, name: &str) -> &'a str {
    let mut values = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.next().unwrap_or_else(|| panic!("no {name} in {unit}"))
}

#[test]
fn the_units_start_what_format_has_made_and_systemd_reads_them() {
    let root = folder();
    install(root.path(), &[]);
    let units = root.path().join("usr/lib/systemd/system");
    let server = units.join("pando-server.service");
    let unit = fs::read_to_string(&server).unwrap();
    // The data directory of the unit, as `pando format` leaves it.
    let served = setting(&unit, "ExecStart").split_once("--data ").unwrap().1;
    let served = Path::new(served.split(' ').next().unwrap());
    let condition = Path::new(setting(&unit, "ConditionPathExists"));
    let condition = condition.strip_prefix(served).expect("it is in the data directory");
    let data = Data::formatted();
    assert!(data.path().join(condition).exists(), "{}", condition.display());
    let user = setting(&unit, "User");
    let users = fs::read_to_string(root.path().join("usr/lib/sysusers.d/pando.conf")).unwrap();
    assert!(users.lines().any(|line| line.starts_with(&format!("u {user} -"))), "{users}");
    let state = Path::new("/var/lib").join(setting(&unit, "StateDirectory"));
    assert_eq!(state, served, "the user gets what it serves");

    // The check is that of systemd itself, with the program where it is.
    let mounted = units.join("pando-mount@srv-data.service");
    fs::copy(units.join("pando-mount@.service"), &mounted).unwrap();
    let program = format!("{}/usr/bin", text(root.path()));
    for unit in [&server, &mounted] {
        let with = fs::read_to_string(unit).unwrap().replace("/usr/bin", &program);
        fs::write(unit, with).unwrap();
    }
    let analyze = |args: &[&str], units: &[&Path]| {
        let output = Command::new("systemd-analyze").args(args).args(units).output();
        let output = output.expect("systemd-analyze is installed by scripts/deps");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.is_empty(), "{args:?}: {said}");
    };
    analyze(&["verify", "--man=no"], &[&server, &mounted]);
    // In tenths: a service without any restriction has 96.
    analyze(&["security", "--no-pager", "--offline=true", "--threshold=20"], &[&server]);
}

#[test]
fn the_installed_server_needs_no_rights_and_tells_systemd_when_it_listens() {
    const NOBODY: &str = "65534";
    let root = folder();
    install(root.path(), &[]);
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(root.path(), open).unwrap();
    let data = root.path().join("data");
    succeed(&["format", "--data", text(&data)]);
    let ours = Command::new("chown").args(["-R", NOBODY]).arg(&data).status().unwrap();
    assert!(ours.success());
    let socket = root.path().join("notify");
    let systemd = UnixDatagram::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();

    let unit = root.path().join("usr/lib/systemd/system/pando-server.service");
    let unit = fs::read_to_string(unit).unwrap();
    assert_eq!((setting(&unit, "Type"), setting(&unit, "CapabilityBoundingSet")), ("notify", ""));
    let start = setting(&unit, "ExecStart").replace("/var/lib/pando", text(&data));
    let start = start.replace("/usr/bin", text(&root.path().join("usr/bin")));
    let mut server = Command::new("setpriv");
    server.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"]);
    server.args(["--bounding-set=-all", "--inh-caps=-all"]);
    server.args(start.split(' ').filter(|word| !word.starts_with('$')));
    server.args(["--listen", "127.0.0.1:0", "--http", "off"]).env("NOTIFY_SOCKET", &socket);
    let server = Running::start(server, "serving ");
    systemd.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut said = [0; 64];
    let length = systemd.recv(&mut said).expect("it says when it listens");
    assert_eq!(&said[..length], b"READY=1");

    let token = data.join("admin.token");
    let bench = ["bench", "md", server.address(), "--files", "20", "--token", text(&token)];
    succeed(&bench);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_mount_tells_systemd_when_it_is_mounted() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let mnt = data.folder.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    let socket = data.folder.path().join("notify");
    let systemd = UnixDatagram::bind(&socket).unwrap();
    let token = data.admin_token();
    let args = ["mount", server.address(), text(&mnt), "--foreground", "--token", text(&token)];
    let mut mount = pando(&[&args[..], &["--quiet"]].concat());
    mount.env("NOTIFY_SOCKET", &socket);
    let mut mount = mount.spawn().unwrap();
    systemd.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let told = systemd.recv(&mut [0; 64]);
    let wrote = fs::write(mnt.join("file"), "there at once");
    let served = server.address().to_owned();
    let said = succeed(&["sessions", &served, "--token", text(&token)]);
    unmount(&mnt);
    assert!(mount.wait().unwrap().success());
    told.expect("it says when it is mounted");
    wrote.unwrap();
    assert!(said.contains(&format!("mounted at {}", text(&mnt))), "{said}");
    assert_eq!(server.stop(), Some(0));
}

/// Runs a script in a mount namespace of its own, where /sbin has our helpers and nothing else.
fn with_helpers(data: &Data, server: &Running, script: &str) -> String {
    let root = folder();
    let sbin = root.path().join("sbin");
    fs::create_dir(&sbin).unwrap();
    for name in ["mount.fuse.pando", "umount.fuse.pando"] {
        std::os::unix::fs::symlink(pando(&[]).get_program(), sbin.join(name)).unwrap();
    }
    let mnt = root.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    let script = format!("set -e\nmount --bind {} /sbin\n{script}", text(&sbin));
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", &script]).env("MNT", &mnt);
    command.env("SERVER", server.address()).env("TOKEN", data.admin_token());
    command.env("FSTAB", root.path().join("fstab"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{wrong}");
    said
}

#[test]
fn mount_8_mounts_remounts_and_unmounts() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let said = with_helpers(
        &data,
        &server,
        r#"
        mount -t fuse.pando $SERVER "$MNT" -o "token=$TOKEN,entry_timeout=0"
        echo kept >"$MNT/file"
        findmnt --noheadings --output SOURCE,FSTYPE "$MNT"
        awk -v mnt="$MNT" '$2 == mnt { print $1 }' /proc/self/mounts
        mount -o remount,ro "$MNT"
        ! touch "$MNT/other" 2>/dev/null
        mount -o remount,rw "$MNT"
        touch "$MNT/other"
        findmnt --noheadings --output SOURCE,FSTYPE "$MNT"
        umount "$MNT"
        mount -t fuse.pando $SERVER "$MNT" -o "token=$TOKEN,ro"
        cat "$MNT/file"
        ! touch "$MNT/third" 2>/dev/null
        umount $SERVER
        ! findmnt "$MNT"
        "#,
    );
    let (source, address) = (format!("{} fuse.pando", server.address()), server.address());
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines, [&source, address, &source, "kept"]);
}

#[test]
fn what_root_mounts_by_mount_8_has_set_id_bits_and_devices_unless_it_says_otherwise() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let said = with_helpers(
        &data,
        &server,
        r#"
        chmod 755 "$(dirname "$MNT")"
        try() {
            mount -t fuse.pando $SERVER "$MNT" -o "token=$TOKEN,$1"
            chmod 4755 "$MNT/id"
            setpriv --reuid 1000 --clear-groups "$MNT/id" -u
            (: <"$MNT/null") 2>/dev/null && echo opened || echo closed
            umount "$MNT"
        }
        mount -t fuse.pando $SERVER "$MNT" -o "token=$TOKEN"
        cp "$(command -v id)" "$MNT/id"
        mknod "$MNT/null" c 1 3
        chmod 666 "$MNT/null"
        umount "$MNT"
        try dev,suid
        try nodev,nosuid
        try defaults
        "#,
    );
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines, ["0", "opened", "1000", "closed", "0", "opened"]);
}

#[test]
fn what_is_bound_to_another_place_can_be_unmounted_there_alone() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let said = with_helpers(
        &data,
        &server,
        r#"
        mount -t fuse.pando $SERVER "$MNT" -o "token=$TOKEN"
        echo kept >"$MNT/file"
        mkdir "$MNT/dir" "$MNT.dir"
        touch "$MNT.file"
        mount --bind "$MNT/file" "$MNT.file"
        mount --bind "$MNT/dir" "$MNT.dir"
        cat "$MNT.file"
        timeout 20 umount "$MNT.file"
        cat "$MNT/file"
        # What is bound is served on when the mount itself is gone.
        timeout 20 umount "$MNT"
        echo below >"$MNT.dir/below"
        cat "$MNT.dir/below"
        timeout 20 umount "$MNT.dir"
        mount -t fuse.pando $SERVER "$MNT" -o "token=$TOKEN"
        cat "$MNT/dir/below"
        umount "$MNT"
        "#,
    );
    assert_eq!(said.lines().collect::<Vec<_>>(), ["kept", "kept", "below", "below"]);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn mount_a_mounts_what_fstab_has_once() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let said = with_helpers(
        &data,
        &server,
        r#"
        options="_netdev,nofail,x-systemd.automount,x-systemd.mount-timeout=30s,token=$TOKEN"
        echo "$SERVER $MNT fuse.pando $options 0 0" >"$FSTAB"
        for time in first second; do mount --fstab "$FSTAB" --all; done
        mount --fstab "$FSTAB" --all --test-opts _netdev
        findmnt --noheadings --raw --output SOURCE,TARGET "$MNT"
        echo kept >"$MNT/file"
        cat "$MNT/file"
        umount "$MNT"
        ! findmnt "$MNT"
        "#,
    );
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].starts_with(&format!("{} ", server.address())), "{said}");
    assert_eq!(lines[1], "kept");
}

#[test]
fn fstab_mounts_and_a_dead_mount_is_mounted_anew() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let said = with_helpers(
        &data,
        &server,
        r#"
        echo "$SERVER $MNT fuse.pando rw,_netdev,nofail,x-systemd.automount,token=$TOKEN 0 0" >"$FSTAB"
        mount --fstab "$FSTAB" "$MNT"
        mkdir "$MNT/dir"
        # What serves the mount dies.
        for process in $(pgrep -f "mount.*$MNT.*--daemon"); do kill -s KILL "$process"; done
        until ! stat "$MNT" >/dev/null 2>&1; do :; done
        mount --fstab "$FSTAB" "$MNT"
        ls "$MNT"
        umount "$MNT"
        "#,
    );
    assert_eq!(said, "dir\n");
}

#[test]
fn mount_8_takes_the_options_of_administrators_and_refuses_others_by_name() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let said = with_helpers(
        &data,
        &server,
        r#"
        options() { findmnt --noheadings --output OPTIONS "$MNT" | tr , '\n'; }
        shown() { options | grep -xE "$1" | sort | tr '\n' ' '; echo; }
        all="$(echo _netdev,nofail,x-systemd.automount,X-a=b,noauto,users,comment=x),token=$TOKEN"
        mount -t fuse.pando $SERVER "$MNT" -o "$all,noexec,nosuid,nodev,noatime,sync,context=a:b:c"
        shown 'noexec|nosuid|nodev|noatime|sync|rw'
        cp /bin/true "$MNT/true"
        ! "$MNT/true" 2>/dev/null
        umount "$MNT"
        mount -t fuse.pando $SERVER "$MNT" -o "$all,defaults,exec,suid,dev,strictatime,dirsync,async"
        shown 'noexec|nosuid|nodev|relatime|sync|dirsync|rw'
        "$MNT/true" && echo executed
        umount "$MNT"
        echo "$SERVER $MNT fuse.pando noauto,users,exec,ro,_netdev,nofail,token=$TOKEN 0 0" >"$FSTAB"
        mount --fstab "$FSTAB" "$MNT"
        shown 'noexec|nosuid|nodev|ro|rw'
        umount "$MNT"
        for wrong in quick size=1 nodiratime; do
            ! mount -t fuse.pando $SERVER "$MNT" -o "token=$TOKEN,$wrong" 2>&1
        done
        "#,
    );
    let lines: Vec<_> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(
        lines[..4],
        ["noatime nodev noexec nosuid rw sync", "dirsync rw", "executed", "nodev nosuid ro"]
    );
    let refused = lines[4..].join("\n");
    for wrong in ["quick", "size=1", "nodiratime"] {
        assert!(refused.contains(&format!("unknown mount option: {wrong}")), "{refused}");
    }
}
