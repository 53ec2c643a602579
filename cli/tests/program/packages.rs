//! The package for Debian: what is in it, and what dpkg does with it in a root of its own.
//!
//! The program under test is packed as it is, compressed little. The root is an overlay of this
//! machine's, in a mount namespace, whose changes are in memory. Off Debian, and where no overlay
//! can be mounted, tests say that they are skipped.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{folder, pando, stderr, text};

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A package of this version in a folder; its path.
fn pack(out: &Path, version: &str) -> PathBuf {
    let mut command = Command::new(workspace().join("scripts/package"));
    command.env("PANDO", pando(&[]).get_program()).env("OUT", out).env("DEB_VERSION", version);
    command.env("FAST", "1");
    let said = succeeded(&command.output().unwrap());
    let packages: Vec<_> = said.lines().collect();
    assert_eq!(packages.len(), 1, "{said}");
    assert!(packages[0].contains(&format!("/pando_{version}_")), "{said}");
    PathBuf::from(packages[0])
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The package that most tests look at, made once.
fn package() -> Option<&'static Path> {
    static PACKAGE: OnceLock<PathBuf> = OnceLock::new();
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        eprintln!("skipped: this machine has no dpkg-deb");
        return None;
    }
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    Some(PACKAGE.get_or_init(|| pack(&out, "0.1.0-1")))
}

/// Answers of dpkg-deb about a package.
fn about(package: &Path, option: &str, args: &[&str]) -> String {
    let mut command = Command::new("dpkg-deb");
    succeeded(&command.arg(option).arg(package).args(args).output().unwrap())
}

/// The files of a package: where they go, with mode, owner and target of a link as tar shows them.
fn files(package: &Path) -> Vec<(String, String)> {
    let listed = about(package, "--contents", &[]);
    let lines = listed.lines().filter(|line| !line.starts_with('d'));
    lines
        .map(|line| {
            let (about, path) = line.split_once(" ./").unwrap();
            let kind = about.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
            (path.to_owned(), kind)
        })
        .collect()
}

/// A package's files in a folder.
fn unpacked(package: &Path) -> TempDir {
    let root = folder();
    about(package, "--extract", &[text(root.path())]);
    root
}

#[test]
fn the_package_has_server_client_units_pages_and_completions() {
    let Some(package) = package() else { return };
    let files = files(package);
    let (plain, link) = ("-rw-r--r-- 0/0", "lrwxrwxrwx 0/0");
    for (path, kind) in [
        ("usr/bin/pando", "-rwxr-xr-x 0/0"),
        ("usr/lib/pando/libpando_region.so", plain),
        ("usr/sbin/mount.fuse.pando -> ../bin/pando", link),
        ("usr/sbin/umount.fuse.pando -> ../bin/pando", link),
        ("usr/lib/systemd/system/pando-server.service", plain),
        ("usr/lib/systemd/system/pando-mount@.service", plain),
        ("usr/lib/sysusers.d/pando.conf", plain),
        ("usr/share/man/man1/pando.1.gz", plain),
        ("usr/share/man/man1/pando-serve.1.gz", plain),
        ("usr/share/man/man8/mount.fuse.pando.8.gz", plain),
        ("usr/share/bash-completion/completions/pando", plain),
        ("usr/share/zsh/vendor-completions/_pando", plain),
        ("usr/share/fish/vendor_completions.d/pando.fish", plain),
        ("usr/share/doc/pando/README.Debian", plain),
        ("usr/share/doc/pando/copyright", plain),
        ("usr/share/doc/pando/changelog.Debian.gz", plain),
        ("usr/share/doc/pando/sbom.cdx.json", plain),
        ("usr/share/doc/pando/sbom-library.cdx.json", plain),
        ("etc/default/pando", plain),
    ] {
        let there = files.iter().find(|(there, _)| there == path);
        assert_eq!(there.map(|(_, kind)| kind.as_str()), Some(kind), "{path}");
    }
    // Data and what an administrator makes are not the package's.
    assert!(!files.iter().any(|(path, _)| path.starts_with("var/") || path.starts_with("etc/p")));
    let ours = |(path, _): &&(String, String)| path.starts_with("usr/share/man/");
    assert!(files.iter().filter(ours).all(|(path, _)| path.ends_with(".gz")));
    // `scripts/install` knows all files but those of Debian: none of them is forgotten here.
    let root = folder();
    let mut install = Command::new(workspace().join("scripts/install"));
    install.env("PANDO", pando(&[]).get_program()).env("LIBPANDO", "/nonexistent");
    install.env("DESTDIR", root.path()).env("PREFIX", "/usr").env("HELPERDIR", "/usr/sbin");
    succeeded(&install.output().unwrap());
    let names = |paths: &mut dyn Iterator<Item = String>| -> BTreeSet<String> {
        paths.map(|path| path.trim_end_matches(".gz").rsplit('/').next().unwrap().into()).collect()
    };
    let mut find = Command::new("find");
    find.arg(root.path()).args(["-not", "-type", "d"]);
    let installed = succeeded(&find.output().unwrap());
    let installed = names(&mut installed.lines().map(str::to_owned));
    let packed = names(&mut files.iter().map(|(path, _)| path.replace(" -> ../bin/pando", "")));
    assert_eq!(installed.difference(&packed).collect::<Vec<_>>(), Vec::<&String>::new());

    let field = |name| about(package, "--field", &[name]).trim().to_owned();
    let needs = field("Depends");
    for needed in ["libc6 (>= ", "libstdc++6 (>= ", "libgcc-s1", "fuse3", "systemd-sysusers"] {
        assert!(needs.contains(needed), "{needed}: {needs}");
    }
    assert_eq!(field("Version"), "0.1.0-1");
    assert_eq!(about(package, "--info", &["conffiles"]), "/etc/default/pando\n");
}

#[test]
fn the_same_program_is_packed_into_the_same_bytes() {
    let Some(package) = package() else { return };
    let other = folder();
    let again = pack(other.path(), "0.1.0-1");
    assert_eq!(package.file_name(), again.file_name());
    let same = fs::read(package).unwrap() == fs::read(&again).unwrap();
    assert!(same, "{} and {} differ", package.display(), again.display());
}

#[test]
fn the_bill_of_materials_names_each_crate_of_the_program() {
    let Some(package) = package() else { return };
    let root = unpacked(package);
    let listed = fs::read(root.path().join("usr/share/doc/pando/sbom.cdx.json")).unwrap();
    let copyright = fs::read_to_string(root.path().join("usr/share/doc/pando/copyright")).unwrap();
    assert!(copyright.contains("sbom.cdx.json"), "{copyright}");
    let listed: Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(
        (&listed["bomFormat"], &listed["specVersion"]),
        (&"CycloneDX".into(), &"1.5".into())
    );
    let components = listed["components"].as_array().unwrap();
    let about = |component: &Value| {
        let [name, version] = ["name", "version"].map(|key| component[key].as_str().unwrap());
        assert!(component["licenses"].as_array().is_some_and(|all| !all.is_empty()), "{name}");
        format!("{name} v{version}")
    };
    let mut named: BTreeSet<_> = components.iter().map(about).collect();
    named.insert(about(&listed["metadata"]["component"]));

    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--offline", "--locked", "--package", "cli", "--edges", "normal"]);
    tree.args(["--prefix", "none", "--format", "{p}"]).current_dir(workspace());
    let linked = succeeded(&tree.output().unwrap());
    // The name and the version; the place of a crate of ours follows.
    let linked: BTreeSet<_> = linked
        .lines()
        .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
        .collect();
    assert!(linked.len() > 100, "{linked:?}");
    assert_eq!(linked.difference(&named).collect::<Vec<_>>(), Vec::<&String>::new());
    // Where it was made does not show.
    let machine = format!("{listed}").contains("/tmp/");
    assert!(!machine);
}

/// A root that is this machine's, for a script; `$ROOT` is its path and `in_root` runs in it. What
/// is changed there is in memory. systemd is one that writes down what is asked of it.
const ROOT: &str = r#"
set -euo pipefail
mount -t tmpfs tmpfs "$FOLDER" || exit 77
ROOT=$FOLDER/root
mkdir "$FOLDER/upper" "$FOLDER/work" "$ROOT"
changes="upperdir=$FOLDER/upper,workdir=$FOLDER/work"
mount -t overlay overlay -o "lowerdir=/,$changes" "$ROOT" || exit 77
mount -t proc proc "$ROOT/proc"
mount --bind /dev "$ROOT/dev"
in_root() { chroot "$ROOT" "$@"; }
fail() { echo "failed: $*" >&2; exit 1; }
there() { for path in "$@"; do [[ -e $ROOT$path ]] || fail "$path is missing"; done; }
gone() { for path in "$@"; do [[ ! -e $ROOT$path ]] || fail "$path is there"; done; }
user() { in_root getent passwd pando >/dev/null; }
dpkg() {
    rm -f "$ROOT/run/asked"
    touch "$ROOT/run/asked"
    in_root dpkg "$@" >"$FOLDER/log" 2>&1 </dev/null || { cat "$FOLDER/log" >&2; fail "dpkg $*"; }
}
asked() { cat "$ROOT/run/asked"; }
# Of this machine nothing of ours is wanted there.
in_root dpkg --purge pando >/dev/null 2>&1 || true
rm -rf "$ROOT"/{etc/default/pando,var/lib/pando,usr/local/bin/pando,etc/systemd/system/pando*}
in_root userdel pando 2>/dev/null || true
# The pages of this machine need no new index.
rm -f "$ROOT/var/lib/man-db/auto-update"
mkdir -p "$ROOT/run/systemd/system"
# Containers forbid dpkg to start anything.
rm -f "$ROOT"/usr/bin/systemctl "$ROOT"/usr/sbin/policy-rc.d
printf '#!/bin/sh\necho "$*" >>/run/asked\n' >"$ROOT/usr/bin/systemctl"
chmod +x "$ROOT/usr/bin/systemctl"
mkdir "$ROOT/packages"
cp "$FIRST" "$ROOT/packages/first.deb"
cp "$SECOND" "$ROOT/packages/second.deb"
"#;

/// Runs a script in such a root, with a package and a newer one; whether it could be made.
fn in_a_root(script: &str, second: &Path) -> bool {
    let Some(first) = package() else { return false };
    let place = folder();
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", &format!("{ROOT}{script}")]);
    command.env("FOLDER", place.path()).env("FIRST", first).env("SECOND", second);
    let output = command.output().unwrap();
    if output.status.code() == Some(77) {
        eprintln!("skipped: no overlay of this machine's root: {}", stderr(&output));
        return false;
    }
    succeeded(&output);
    true
}

#[test]
fn dpkg_installs_upgrades_removes_and_purges_the_package_and_keeps_data() {
    if package().is_none() {
        return;
    }
    let newer = folder();
    let second = pack(newer.path(), "0.2.0-1");
    in_a_root(
        r#"
        # Nothing is started, enabled or formatted.
        dpkg --install /packages/first.deb
        user || fail "there is no user"
        [[ $(in_root pando --version) == "pando "* ]] || fail "the program does not run"
        there /usr/share/man/man1/pando.1.gz /usr/share/man/man8/mount.fuse.pando.8.gz
        there /etc/default/pando
        gone /var/lib/pando /etc/systemd/system/multi-user.target.wants/pando-server.service
        ! asked | grep -E 'start|enable' || fail "a unit was started"
        in_root bash -n /usr/share/bash-completion/completions/pando
        in_root test -x /sbin/mount.fuse.pando
        verify=(systemd-analyze verify --man=no pando-server.service pando-mount@x.service)
        said=$(in_root "${verify[@]}" 2>&1)
        [[ -z $said ]] || fail "systemd-analyze: $said"
        said=$(in_root dpkg --verify pando)
        [[ -z $said ]] || fail "dpkg --verify: $said"

        # An upgrade restarts a server that runs, and keeps what the administrator wrote.
        in_root pando format --data /var/lib/pando >/dev/null
        echo 'PANDO_SERVE_OPTIONS="--memory 1G"' >"$ROOT/etc/default/pando"
        dpkg --install /packages/second.deb
        [[ $(in_root dpkg-query --show --showformat '${Version}' pando) == 0.2.0-1 ]]
        grep -q 'memory 1G' "$ROOT/etc/default/pando" || fail "the settings were lost"
        asked | grep -q 'try-restart pando-server.service' || fail "no restart"
        ! asked | grep -E ' (start|stop|enable)' || fail "more than a restart"
        there /var/lib/pando/pando.json

        # Removed: the server is stopped; settings, data and user stay.
        dpkg --remove pando
        asked | grep -q 'stop pando-server.service' || fail "the server was not stopped"
        gone /usr/bin/pando /usr/sbin/mount.fuse.pando /usr/lib/systemd/system/pando-server.service
        there /etc/default/pando /var/lib/pando/pando.json
        user || fail "the user went"

        # Purged: settings go. Data and their owner stay.
        dpkg --purge pando
        grep -q '/var/lib/pando is not empty' "$FOLDER/log" || fail "the data were not mentioned"
        gone /etc/default/pando /usr/share/doc/pando
        there /var/lib/pando/pando.json /var/lib/pando/signing.key
        user || fail "the user went, and left data"

        # Without data nothing is left.
        rm -r "$ROOT"/var/lib/pando/*
        dpkg --install /packages/first.deb
        dpkg --purge pando
        gone /var/lib/pando /etc/default/pando /usr/bin/pando
        ! user || fail "the user is left"
        "#,
        &second,
    );
}

#[test]
fn a_server_of_the_package_serves_what_its_administrator_formatted() {
    let Some(first) = package() else { return };
    in_a_root(
        r#"
        dpkg --install /packages/first.deb
        in_root pando format --data /var/lib/pando >/dev/null
        # The first start of the unit does this, for StateDirectory=.
        in_root chown -R pando:pando /var/lib/pando
        as=(setpriv --reuid pando --regid pando --clear-groups --no-new-privs --bounding-set=-all)
        serve=(pando serve --data /var/lib/pando --listen 127.0.0.1:0 --http off)
        chroot "$ROOT" "${as[@]}" "${serve[@]}" >"$FOLDER/served" 2>&1 &
        server=$!
        trap 'kill "$server" 2>/dev/null || true' EXIT
        addresses=$ROOT/var/lib/pando/address
        until address=$(sed -n 1p "$addresses" 2>/dev/null) && [[ $address ]]; do
            kill -0 "$server" 2>/dev/null || { cat "$FOLDER/served" >&2; fail "the server ended"; }
        done
        in_root pando bench md "$address" --files 20 --token /var/lib/pando/admin.token >/dev/null
        kill "$server"
        wait "$server"
        "#,
        first,
    );
}

/// The lines of a container file, continued ones joined, without comments.
fn instructions(file: &str) -> Vec<(String, String)> {
    let lines = file.lines().filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let lines = joined.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let (name, rest) = line.split_once(' ').unwrap();
            (name.to_owned(), rest.split_whitespace().collect::<Vec<_>>().join(" "))
        })
        .collect()
}

#[test]
fn the_image_is_of_the_package_and_its_user_is_not_root() {
    let file = workspace().join("contrib/container/Containerfile");
    let file = fs::read_to_string(file).unwrap();
    let lines = instructions(&file);
    let known =
        ["ARG", "FROM", "RUN", "COPY", "USER", "WORKDIR", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"];
    let of = |name: &str| -> Vec<&str> {
        lines.iter().filter(|(other, _)| other == name).map(|(_, rest)| rest.as_str()).collect()
    };
    for (name, rest) in &lines {
        assert!(known.contains(&name.as_str()), "{name} {rest}");
    }
    // A release of Debian, not whichever is the newest.
    assert_eq!(of("ARG"), ["BASE=docker.io/library/debian:12-slim"]);
    assert_eq!(of("FROM"), ["${BASE}"]);
    assert_eq!((of("USER"), lines.last().unwrap().0.as_str()), (vec!["pando"], "CMD"));
    assert_eq!(of("ENTRYPOINT"), [r#"["/usr/bin/pando"]"#]);
    let run = of("RUN");
    let users = run.iter().find(|run| run.contains("useradd")).unwrap();
    assert!(users.contains("--uid 742 "), "{users}");
    for run in run.iter().filter(|run| run.contains("apt-get install")) {
        for part in
            ["apt-get update &&", "--no-install-recommends", "rm -rf /tmp/packages", "--yes"]
        {
            assert!(run.contains(part), "{part}: {run}");
        }
    }
    for run in &run {
        let shell = Command::new("sh").args(["-n", "-c", run]).status().unwrap();
        assert!(shell.success() && !run.contains(';') && !run.contains("sudo"), "{run}");
    }
    // Containers that need root say so; all name one image and call it by arguments alone.
    for name in ["node", "controller"] {
        let manifest = workspace().join(format!("contrib/kubernetes/{name}.yaml"));
        let manifest = fs::read_to_string(manifest).unwrap();
        let containers: Vec<_> = manifest.split("image: pando:latest\n").skip(1).collect();
        assert!(!containers.is_empty(), "{name}");
        for container in containers {
            let container = container.split("image: ").next().unwrap();
            assert!(container.trim_start().starts_with("args:\n"), "{container}");
            assert!(container.contains("runAsUser: 0"), "{container}");
        }
    }
}

/// A program that builds images here, and has the one that ours begins with: nothing is fetched.
fn builder() -> Option<&'static str> {
    let works = |program: &&&str| {
        let mut has = Command::new(program);
        has.args(["inspect", "--type=image", "docker.io/library/debian:12-slim"]);
        has.output().is_ok_and(|output| output.status.success())
    };
    ["podman", "docker", "buildah"].iter().find(works).copied()
}

#[test]
fn the_image_is_built_where_there_is_a_builder() {
    let Some(package) = package() else { return };
    let Some(builder) = builder() else {
        eprintln!("skipped: no podman, docker or buildah here has debian:12-slim");
        return;
    };
    let context = package.parent().unwrap();
    let tag = "pando:test";
    let mut build = Command::new(builder);
    build.args(["build", "--tag", tag, "--file"]);
    build.arg(workspace().join("contrib/container/Containerfile")).arg(context);
    succeeded(&build.output().unwrap());
    if builder != "buildah" {
        let run = |args: &[&str]| {
            let mut run = Command::new(builder);
            succeeded(&run.args(["run", "--rm"]).args(args).output().unwrap())
        };
        assert!(run(&[tag, "--version"]).starts_with("pando "));
        assert_eq!(run(&["--entrypoint", "id", tag, "-un"]), "pando\n");
    }
}
