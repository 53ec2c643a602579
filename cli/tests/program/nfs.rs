//! A mount that is exported by NFS: nfs-ganesha (FSAL_VFS) over a real server, asked by libnfs.
//!
//! The configuration is that of `contrib/nfs`. Where the programs of others are missing these tests
//! say that they are skipped.

mod exported;

use std::{
    collections::BTreeSet,
    fs::{self, DirEntry, File},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
    time::Duration,
};

use base::{ByteRange, LockMode};
use client::{Client, Config, OpenOptions};
use rustix::mount::MountFlags;
use serde_json::Value;

use crate::{
    harness::{pause, succeed, text},
    mounted::Mountpoint,
};
use exported::{Exported, Nfs};

/// Asks again until the answer is the one wanted.
fn until<T: PartialEq + std::fmt::Debug>(wanted: T, mut ask: impl FnMut() -> T) {
    let mut answer = ask();
    for _ in 0..1200 {
        if answer == wanted {
            return;
        }
        pause(Duration::from_millis(20));
        answer = ask();
    }
    assert_eq!(answer, wanted);
}

/// The names in a directory of the mount, in order.
fn names_in(dir: &Path) -> Vec<String> {
    let name = |found: DirEntry| found.file_name().into_string().unwrap();
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|found| name(found.unwrap())).collect();
    names.sort_unstable();
    names
}

/// A fact of the line that `stat` answers with.
fn fact<'a>(line: &'a str, name: &str) -> &'a str {
    let mut facts = line.split_whitespace().filter_map(|fact| fact.split_once('='));
    facts.find(|(found, _)| *found == name).unwrap_or_else(|| panic!("{name}: {line}")).1
}

#[test]
fn clients_of_nfs_see_and_change_what_the_mount_has() {
    let Some(exported) = Exported::with(&[("Root_Squash", "No_Root_Squash")]) else { return };
    let mut nfs = exported.client();
    nfs.ok("mkdir /d");
    nfs.ok("put /d/file contents");
    assert_eq!(nfs.ok("get /d/file"), "contents");
    assert_eq!(fs::read(exported.path("d/file")).unwrap(), b"contents");
    nfs.ok("chmod /d/file 640");
    nfs.ok("chown /d/file 1000 1001");
    nfs.ok("truncate /d/file 3");
    nfs.ok("touch /d/file 1234567");
    nfs.ok("link /d/file /d/second");
    nfs.ok("symlink second /d/symbolic");
    assert_eq!(nfs.ok("readlink /d/symbolic"), "second");
    let (told, seen) = (nfs.ok("stat /d/file"), fs::metadata(exported.path("d/file")).unwrap());
    let seen = format!(
        "ino={} mode={:o} links={} uid={} gid={} size={} mtime={}",
        seen.ino(),
        seen.mode(),
        seen.nlink(),
        seen.uid(),
        seen.gid(),
        seen.len(),
        seen.mtime()
    );
    assert_eq!(told, seen);
    assert!(seen.ends_with("mode=100640 links=2 uid=1000 gid=1001 size=3 mtime=1234567"), "{seen}");
    assert_eq!(nfs.ask("mkdir /d"), "error EEXIST");
    assert_eq!(nfs.ask("get /d/none"), "error ENOENT");
    assert_eq!(nfs.ask("rmdir /d"), "error ENOTEMPTY");
    nfs.ok("rename /d/file /moved");
    nfs.ok("rename /moved /d/symbolic");
    assert_eq!(nfs.list("/d"), ["second", "symbolic"]);
    nfs.ok("unlink /d/second");
    nfs.ok("unlink /d/symbolic");
    nfs.ok("rmdir /d");
    assert_eq!(fs::read_dir(&exported.mount.0).unwrap().count(), 0);
    exported.stop();
}

#[test]
fn clients_of_nfs_see_at_once_what_changes_on_the_mount() {
    let Some(exported) = Exported::with(&[("Root_Squash", "No_Root_Squash")]) else { return };
    let mut nfs = exported.client();
    nfs.ok("mkdir /d");
    nfs.ok("put /d/a one");
    assert_eq!(nfs.list("/d"), ["a"]);
    assert_eq!(fact(&nfs.ok("stat /d/a"), "size"), "3");
    fs::write(exported.path("d/a"), "longer").unwrap();
    fs::write(exported.path("d/b"), "").unwrap();
    assert_eq!(fact(&nfs.ok("stat /d/a"), "size"), "6");
    assert_eq!(nfs.ok("get /d/a"), "longer");
    assert_eq!(nfs.list("/d"), ["a", "b"]);
    fs::rename(exported.path("d/b"), exported.path("d/c")).unwrap();
    fs::remove_file(exported.path("d/a")).unwrap();
    symlink("c", exported.path("d/e")).unwrap();
    assert_eq!(nfs.list("/d"), ["c", "e"]);
    assert_eq!(nfs.ask("stat /d/a"), "error ENOENT");
    // Another client's changes are seen as soon as the mount sees them.
    as_admin(&exported, async |client| {
        client.write("/d/c", b"elsewhere").await.unwrap();
        client.write("/d/f", b"").await.unwrap();
    });
    let (wanted, dir) = (["c", "e", "f"].map(str::to_owned).to_vec(), exported.path("d"));
    until((wanted.clone(), wanted), || (nfs.list("/d"), names_in(&dir)));
    until("elsewhere".to_owned(), || nfs.ok("get /d/c"));
    exported.stop();
}

fn as_admin(exported: &Exported, act: impl AsyncFnOnce(&Client)) {
    let token = fs::read_to_string(exported.data.admin_token()).unwrap();
    let config = Config::new(vec![exported.address.clone()], token.trim());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(Box::pin(async {
        let client = Box::pin(Client::connect(config)).await.unwrap();
        act(&client).await;
        client.close().await.unwrap();
    }));
}

#[test]
fn users_of_nfs_may_do_what_they_may_on_the_mount_and_root_is_nobody() {
    let Some(exported) = Exported::start() else { return };
    let mode = |path: &str, mode| {
        fs::create_dir(exported.path(path)).unwrap();
        fs::set_permissions(exported.path(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("private", 0o700);
    mode("shared", 0o1777);
    let (mut user, mut root) = (exported.client_of(1000), exported.client());
    for nfs in [&mut user, &mut root] {
        assert_eq!(nfs.ask("put /private/file x"), "error EACCES");
        assert_eq!(nfs.ask("list /private"), "error EACCES");
    }
    user.ok("put /shared/users x");
    root.ok("put /shared/roots x");
    assert_eq!(user.ask("get /shared/roots"), "error EACCES");
    assert_eq!(user.ask("unlink /shared/roots"), "error EPERM");
    let owner = |path| {
        let told = fs::metadata(exported.path(path)).unwrap();
        (told.uid(), told.gid())
    };
    assert_eq!(owner("shared/users"), (1000, 1000));
    assert_eq!(owner("shared/roots"), (65534, 65534));
    exported.stop();
}

/// One page of a listing by handle: whether it is the last, where it ends, and its names.
fn page(nfs: &mut Nfs, dir: &str, cookie: &str, names: &mut Vec<String>) -> (bool, String) {
    let answer = nfs.ok(&format!("h_list {dir} {cookie} 8192"));
    let mut words = answer.split_whitespace();
    let (end, cookie) = (words.next() == Some("end"), words.next().unwrap().to_owned());
    names.extend(words.map(str::to_owned));
    (end, cookie)
}

#[test]
fn a_large_directory_is_listed_once_over_nfs_also_when_it_is_mounted_again_meanwhile() {
    const NAMES: usize = 5_000;
    let Some(mut exported) = Exported::start() else { return };
    fs::create_dir(exported.path("large")).unwrap();
    let all: BTreeSet<String> = (0..NAMES).map(|n| format!("name-{n}")).collect();
    for name in &all {
        File::create(exported.path("large").join(name)).unwrap();
    }
    let mut nfs = exported.client_of(1000);
    assert_eq!(nfs.list("/large"), all.iter().cloned().collect::<Vec<_>>());
    let dir = nfs.ok("handle /large");
    let (mut names, mut cookie, mut pages) = (Vec::new(), "0".to_owned(), 0);
    loop {
        let (end, next) = page(&mut nfs, &dir, &cookie, &mut names);
        pages += 1;
        if end {
            break;
        }
        assert_ne!(cookie, next);
        cookie = next;
        if pages == 5 {
            exported.kill_ganesha();
            exported.unmount();
            exported.mount();
            exported.export();
            nfs = exported.client_of(1000);
        }
    }
    assert!(pages > 10, "{pages}");
    assert_eq!(names.len(), NAMES, "no name comes twice");
    assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), all);
    exported.stop();
}

/// Takes the number of a device that a mount had, so that the next mount has another one.
fn take(exported: &Exported, device: u64) -> Vec<Mountpoint> {
    let mut taken = Vec::new();
    loop {
        let place = exported.data.folder.path().join(format!("taken-{}", taken.len()));
        fs::create_dir(&place).unwrap();
        rustix::mount::mount("none", &place, "tmpfs", MountFlags::empty(), None).unwrap();
        let got = fs::metadata(&place).unwrap().dev();
        taken.push(Mountpoint(place));
        // Linux gives the lowest number that is free: a higher one says that others have taken it.
        if got >= device {
            return taken;
        }
    }
}

/// Mounts again, on another device.
fn mount_elsewhere(exported: &mut Exported) -> Vec<Mountpoint> {
    let device = fs::metadata(&exported.mount.0).unwrap().dev();
    exported.kill_ganesha();
    exported.unmount();
    let taken = take(exported, device);
    exported.mount();
    assert_ne!(fs::metadata(&exported.mount.0).unwrap().dev(), device);
    exported.export();
    taken
}

#[test]
fn handles_of_nfs_hold_when_the_file_system_is_mounted_again() {
    let Some(mut exported) = Exported::with(&[("Root_Squash", "No_Root_Squash")]) else { return };
    let mut nfs = exported.client();
    nfs.ok("mkdir /d");
    for name in ["file", "moved", "removed"] {
        nfs.ok(&format!("put /d/{name} {name}"));
    }
    let [file, moved, removed, dir] =
        ["d/file", "d/moved", "d/removed", "d"].map(|path| nfs.ok(&format!("handle /{path}")));
    nfs.ok("rename /d/moved /elsewhere");
    nfs.ok("unlink /d/removed");
    // Until ganesha ends it may have the file open still, and then serves it.
    let taken = mount_elsewhere(&mut exported);
    let mut nfs = exported.client();
    assert_eq!(nfs.ok(&format!("h_read {file}")), "file");
    assert_eq!(nfs.ok(&format!("h_read {moved}")), "moved");
    assert_eq!(nfs.ask(&format!("h_read {removed}")), "error NFS4ERR_STALE");
    assert!(page(&mut nfs, &dir, "0", &mut Vec::new()).0, "one page is all");
    nfs.ok(&format!("h_write {file} FILE"));
    assert_eq!(fs::read(exported.path("d/file")).unwrap(), b"FILE");
    drop(taken);
    exported.stop();
}

#[test]
fn without_its_library_ganesha_loses_handles_with_the_number_of_the_device() {
    let Some(mut exported) = Exported::start() else { return };
    exported.with_fsid = false;
    exported.kill_ganesha();
    exported.export();
    fs::write(exported.path("file"), "file").unwrap();
    let mut nfs = exported.client();
    let file = nfs.ok("handle /file");
    assert_eq!(nfs.ok(&format!("h_read {file}")), "file");
    let taken = mount_elsewhere(&mut exported);
    let mut nfs = exported.client();
    assert_eq!(nfs.ask(&format!("h_read {file}")), "error NFS4ERR_STALE");
    assert_eq!(nfs.ok("get /file"), "file");
    drop(taken);
    exported.stop();
}

#[test]
fn an_open_file_of_nfs_goes_on_when_the_server_is_killed_and_started_again() {
    let Some(mut exported) = Exported::with(&[("Root_Squash", "No_Root_Squash")]) else { return };
    let mut nfs = exported.client();
    nfs.ok("open 0 /file");
    nfs.ok("write 0 0 before");
    nfs.ok("lock 0 0 6");
    let file = nfs.ok("handle /file");
    exported.kill_server();
    exported.serve();
    nfs.ok("write 0 6 -after");
    nfs.ok("sync 0");
    assert_eq!(nfs.ok("read 0"), "before-after");
    assert_eq!(nfs.ok(&format!("h_read {file}")), "before-after");
    // libnfs miscounts its opens after a lock, so another client makes the file.
    exported.client().ok("put /other x");
    assert_eq!(exported.client().list("/"), ["file", "other"]);
    // The lock is still held.
    as_admin(&exported, async |client| {
        let file = client.open_with("/file", OpenOptions::both()).await.unwrap();
        let first = ByteRange { first: 0, last: 0 };
        assert!(file.try_lock_range(first, LockMode::Exclusive).await.is_err());
    });
    nfs.ok("unlock 0 0 6");
    exported.stop();
}

fn locks(exported: &Exported) -> Vec<Value> {
    let token = exported.data.admin_token();
    let said = succeed(&["locks", &exported.address, "--token", text(&token), "--json"]);
    serde_json::from_str(&said).unwrap()
}

#[test]
fn locks_of_nfs_are_locks_of_the_file_system() {
    let Some(mut exported) = Exported::with(&[("Root_Squash", "No_Root_Squash")]) else { return };
    let [mut first, mut second, mut refused_one] = [(); 3].map(|()| exported.client());
    for nfs in [&mut first, &mut second, &mut refused_one] {
        nfs.ok("open 0 /file");
    }
    first.ok("lock 0 0 10");
    second.ok("lock 0 10 10");
    let refused = |answer: &str| assert!(answer.contains("NFS4ERR_DENIED"), "{answer}");
    refused(&refused_one.ask("lock 0 5 10"));
    let held = locks(&exported);
    assert_eq!(held.iter().filter(|lock| lock["path"] == "/file").count(), 2, "{held:#?}");
    as_admin(&exported, async |client| {
        let file = client.open_with("/file", OpenOptions::both()).await.unwrap();
        let range = |first, last| ByteRange { first, last };
        assert!(file.try_lock_range(range(19, 19), LockMode::Shared).await.is_err());
        file.try_lock_range(range(20, 29), LockMode::Exclusive).await.unwrap();
        refused(&first.ask("lock 0 25 1"));
        file.close().await.unwrap();
    });
    second.ok("unlock 0 10 10");
    until(1, || locks(&exported).len());
    // A killed ganesha leaves nothing locked.
    exported.kill_ganesha();
    until(vec![], || locks(&exported));
    exported.stop();
}

#[test]
fn a_crash_of_the_exporting_machine_takes_nothing_that_clients_of_nfs_have_synced() {
    let Some(mut exported) = Exported::with(&[("Root_Squash", "No_Root_Squash")]) else { return };
    let mut nfs = exported.client();
    nfs.ok("mkdir /d");
    nfs.ok("open 0 /d/file");
    nfs.ok("write 0 0 synced");
    nfs.ok("sync 0");
    nfs.ok("rename /d/file /d/renamed");
    nfs.ok("mkdir /d/late");
    let file = nfs.ok("handle /d/renamed");
    exported.kill_mount();
    // While ganesha runs on without its mount, clients get errors and nothing that is untrue.
    assert_eq!(nfs.ask("get /d/renamed"), "error EIO");
    exported.kill_ganesha();
    exported.mount();
    exported.export();
    let mut nfs = exported.client();
    assert_eq!(nfs.list("/d"), ["late", "renamed"]);
    assert_eq!(nfs.ok(&format!("h_read {file}")), "synced");
    exported.stop();
}
