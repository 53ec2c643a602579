//! POSIX ACLs and the extended attributes of each namespace, for users whom the server checks.

use base::{
    Cred, FsError,
    acl::{ACCESS, DEFAULT, with_umask},
    attr::{MODE_ACL, MODE_BITS, MODE_SETGID},
};
use client::{Client, OpenOptions, Result};
use wire::XattrMode;

use crate::world::{World, fs};

const OWNER: u16 = 1;
const USER: u16 = 2;
const GROUP: u16 = 4;
const NAMED_GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        let named = [USER, NAMED_GROUP].contains(tag);
        bytes.extend(if named { *id } else { u32::MAX }.to_le_bytes());
    }
    bytes
}

fn user(root: &Client, uid: u32, gid: u32) -> Client {
    root.as_user(Cred { uid, gid, groups: Vec::new() })
}

async fn set(client: &Client, path: &str, name: &[u8], value: &[u8]) -> Result<()> {
    let name = std::str::from_utf8(name).unwrap();
    client.set_xattr(path, name, value, XattrMode::Set).await
}

async fn get(client: &Client, path: &str, name: &[u8]) -> Result<Vec<u8>> {
    Ok(client.get_xattr(path, std::str::from_utf8(name).unwrap()).await?.to_vec())
}

/// Owner `perm`, user 5 `named`, nobody else anything, and everything within the mask.
fn for_five(owner: u16, named: u16) -> Vec<u8> {
    acl(&[(OWNER, owner, 0), (USER, named, 5), (GROUP, 0, 0), (MASK, 7, 0), (OTHER, 0, 0)])
}

#[tokio::test(start_paused = true)]
async fn an_acl_decides_who_reads_writes_and_walks() {
    World::run(async |world| {
        let root = world.client().await;
        let (five, six) = (user(&root, 5, 50), user(&root, 6, 60));
        root.mkdir("/d", 0o700).await.unwrap();
        root.write("/d/f", b"x").await.unwrap();
        root.chmod("/d/f", 0o600).await.unwrap();
        assert_eq!(fs(five.stat("/d/f").await), FsError::Denied);
        set(&root, "/d", ACCESS, &for_five(7, 1)).await.unwrap();
        assert_eq!(five.stat("/d/f").await.unwrap().size, 1);
        assert_eq!(fs(six.stat("/d/f").await), FsError::Denied);
        assert_eq!(fs(five.read("/d/f").await), FsError::Denied);
        set(&root, "/d/f", ACCESS, &for_five(6, 4)).await.unwrap();
        assert_eq!(five.read("/d/f").await.unwrap(), &b"x"[..]);
        assert_eq!(fs(five.write("/d/f", b"y").await), FsError::Denied);
        assert_eq!(fs(five.write("/d/new", b"y").await), FsError::Denied);
        set(&root, "/d", ACCESS, &for_five(7, 7)).await.unwrap();
        five.write("/d/new", b"y").await.unwrap();
        five.unlink("/d/f").await.unwrap();
        assert!(five.stat("/d/new/../new").await.is_err());
        assert_eq!(five.stat("/d/../d/new").await.unwrap().uid, 5);
        assert_eq!(fs(six.stat("/d/../d").await), FsError::Denied);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_acl_holds_at_once_for_those_who_have_cached_the_path() {
    World::run(async |world| {
        let root = world.client().await;
        let other = world.client().await;
        let five = user(&other, 5, 50);
        root.mkdir("/d", 0o755).await.unwrap();
        root.write("/d/f", b"x").await.unwrap();
        assert!(five.stat("/d/f").await.is_ok());
        let none = for_five(7, 0);
        set(&root, "/d", ACCESS, &none).await.unwrap();
        assert_eq!(fs(five.stat("/d/f").await), FsError::Denied);
        assert!(other.stat("/d/f").await.is_ok(), "the superuser still walks");
        root.remove_xattr("/d", std::str::from_utf8(ACCESS).unwrap()).await.unwrap();
        // The group has now the permissions that the mask allowed.
        root.chmod("/d", 0o755).await.unwrap();
        assert!(five.stat("/d/f").await.is_ok());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn mode_and_acl_follow_each_other() {
    World::run(async |world| {
        let root = world.client().await;
        root.write("/f", b"").await.unwrap();
        let mask = |mask| {
            acl(&[(OWNER, 6, 0), (USER, 7, 5), (GROUP, 5, 0), (MASK, mask, 0), (OTHER, 1, 0)])
        };
        set(&root, "/f", ACCESS, &mask(6)).await.unwrap();
        assert_eq!(root.stat("/f").await.unwrap().mode, 0o661 | MODE_ACL);
        assert_eq!(get(&root, "/f", ACCESS).await.unwrap(), mask(6));
        root.chmod("/f", 0o4641).await.unwrap();
        assert_eq!(root.stat("/f").await.unwrap().mode, 0o4641 | MODE_ACL);
        assert_eq!(get(&root, "/f", ACCESS).await.unwrap(), mask(4));
        // One that says no more than a mode is none.
        let plain = acl(&[(OWNER, 7, 0), (GROUP, 1, 0), (OTHER, 4, 0)]);
        set(&root, "/f", ACCESS, &plain).await.unwrap();
        assert_eq!(root.stat("/f").await.unwrap().mode, 0o4714);
        assert_eq!(fs(get(&root, "/f", ACCESS).await), FsError::NoData);
        root.remove_xattr("/f", std::str::from_utf8(ACCESS).unwrap()).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_made_in_a_directory_inherits_its_default_acl() {
    World::run(async |world| {
        let root = world.client().await;
        root.mkdir("/d", 0o755).await.unwrap();
        let default =
            acl(&[(OWNER, 7, 0), (USER, 6, 5), (GROUP, 5, 0), (MASK, 7, 0), (OTHER, 5, 0)]);
        set(&root, "/d", DEFAULT, &default).await.unwrap();
        assert_eq!(fs(get(&root, "/d", ACCESS).await), FsError::NoData);
        let made = |perms: [u16; 5]| {
            let [owner, user, group, mask, other] = perms;
            acl(&[
                (OWNER, owner, 0),
                (USER, user, 5),
                (GROUP, group, 0),
                (MASK, mask, 0),
                (OTHER, other, 0),
            ])
        };
        // The umask has no part in it.
        let file = OpenOptions::writing().create(with_umask(0o666, 0o077));
        root.open_with("/d/f", file).await.unwrap().close().await.unwrap();
        assert_eq!(root.stat("/d/f").await.unwrap().mode & MODE_BITS, 0o664);
        assert_eq!(get(&root, "/d/f", ACCESS).await.unwrap(), made([6, 6, 5, 6, 4]));
        assert_eq!(fs(get(&root, "/d/f", DEFAULT).await), FsError::NoData);
        root.mkdir("/d/sub", with_umask(0o750, 0o077)).await.unwrap();
        assert_eq!(get(&root, "/d/sub", ACCESS).await.unwrap(), made([7, 6, 5, 5, 0]));
        assert_eq!(get(&root, "/d/sub", DEFAULT).await.unwrap(), default);
        assert!(user(&root, 5, 50).read("/d/f").await.is_ok());
        // Without one it has.
        root.mkdir("/plain", with_umask(0o777, 0o027)).await.unwrap();
        assert_eq!(root.stat("/plain").await.unwrap().mode, 0o750);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn only_the_owner_sets_an_acl_and_only_a_valid_one() {
    World::run(async |world| {
        let root = world.client().await;
        let five = user(&root, 5, 50);
        root.mkdir("/d", 0o777).await.unwrap();
        root.write("/f", b"").await.unwrap();
        root.symlink("f", "/l").await.unwrap();
        let good = for_five(7, 7);
        assert_eq!(fs(set(&five, "/f", ACCESS, &good).await), FsError::NotPermitted);
        assert_eq!(fs(set(&five, "/d", DEFAULT, &good).await), FsError::NotPermitted);
        assert_eq!(fs(set(&root, "/f", DEFAULT, &good).await), FsError::Denied);
        assert_eq!(fs(set(&root, "/f", ACCESS, &good[..11]).await), FsError::Invalid);
        let no_mask = acl(&[(OWNER, 7, 0), (USER, 7, 5), (GROUP, 0, 0), (OTHER, 0, 0)]);
        assert_eq!(fs(set(&root, "/f", ACCESS, &no_mask).await), FsError::Invalid);
        // A caller outside the group loses the bit that gives the group's rights away.
        five.write("/d/own", b"").await.unwrap();
        root.chown("/d/own", None, Some(77)).await.unwrap();
        root.chmod("/d/own", 0o2770).await.unwrap();
        set(&five, "/d/own", ACCESS, &good).await.unwrap();
        assert_eq!(root.stat("/d/own").await.unwrap().mode & MODE_SETGID, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_acl_stays_in_reach_beside_many_other_attributes_and_through_a_rename() {
    World::run(async |world| {
        let root = world.client().await;
        let five = user(&root, 5, 50);
        for path in ["/d", "/d/e"] {
            root.mkdir(path, 0o700).await.unwrap();
            set(&root, path, b"user.large", &[1; 5000]).await.unwrap();
            set(&root, path, ACCESS, &for_five(7, 7)).await.unwrap();
        }
        five.write("/d/e/f", b"x").await.unwrap();
        set(&root, "/d/e/f", ACCESS, &for_five(6, 0)).await.unwrap();
        set(&root, "/d/e/f", b"trusted.large", &[2; 60_000]).await.unwrap();
        root.rename("/d/e/f", "/d/g").await.unwrap();
        root.link("/d/g", "/d/h").await.unwrap();
        root.rename("/d/e", "/d/i").await.unwrap();
        assert_eq!(get(&root, "/d/h", ACCESS).await.unwrap(), for_five(6, 0));
        assert_eq!(get(&root, "/d/h", b"trusted.large").await.unwrap(), [2; 60_000]);
        assert_eq!(get(&five, "/d/i", b"user.large").await.unwrap(), [1; 5000]);
        five.mkdir("/d/i/j", 0o700).await.unwrap();
        root.remove_xattr("/d/i", "user.large").await.unwrap();
        assert_eq!(five.stat("/d/i/j").await.unwrap().uid, 5);
        five.rmdir("/d/i/j").await.unwrap();
        root.rmdir("/d/i").await.unwrap();
        let job = root.fsck_start(false).await.unwrap();
        let progress = loop {
            let progress = root.fsck_poll(job, false).await.unwrap();
            if progress.done {
                break progress;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(progress.findings, Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn each_namespace_has_its_readers_and_writers() {
    World::run(async |world| {
        let root = world.client().await;
        let five = user(&root, 5, 50);
        root.write("/f", b"").await.unwrap();
        root.chmod("/f", 0o604).await.unwrap();
        for name in ["user.a", "trusted.a", "security.a", "system.a"] {
            root.set_xattr("/f", name, b"1", XattrMode::Create).await.unwrap();
            let refused = fs(five.set_xattr("/f", name, b"2", XattrMode::Set).await);
            let expected = if name == "user.a" { FsError::Denied } else { FsError::NotPermitted };
            assert_eq!(refused, expected, "{name}");
        }
        let seen = async || -> Vec<String> {
            let all = five.list_xattrs("/f").await.unwrap();
            all.into_iter().map(|(name, _)| String::from_utf8(name.to_vec()).unwrap()).collect()
        };
        assert_eq!(seen().await, ["security.a", "system.a", "user.a"]);
        root.chmod("/f", 0o600).await.unwrap();
        assert_eq!(seen().await, ["security.a", "system.a"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn names_values_and_lists_are_as_long_as_on_linux() {
    World::run(async |world| {
        let root = world.client().await;
        root.write("/f", b"").await.unwrap();
        let set = async |name: &str, len: usize| {
            root.set_xattr("/f", name, &vec![7; len], XattrMode::Set).await
        };
        let name = |len: usize| format!("user.{}", "n".repeat(len - 5));
        set(&name(255), 1).await.unwrap();
        assert_eq!(fs(set(&name(256), 1).await), FsError::Range);
        set("user.v", 65_536).await.unwrap();
        assert_eq!(fs(set("user.v", 65_537).await), FsError::TooBig);
        // 65,536 bytes of names can be listed, with a NUL after each.
        root.remove_xattr("/f", "user.v").await.unwrap();
        for number in 1..256 {
            set(&format!("user.{number:03}{}", "n".repeat(247)), 0).await.unwrap();
        }
        assert_eq!(fs(set("user.one-more", 0).await), FsError::NoSpace);
        assert_eq!(root.list_xattrs("/f").await.unwrap().len(), 256);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn all_attributes_of_a_file_take_up_to_256_kib_together() {
    World::run(async |world| {
        let root = world.client().await;
        root.write("/f", b"").await.unwrap();
        let set = async |name: &str, len: usize| {
            root.set_xattr("/f", name, &vec![7; len], XattrMode::Set).await
        };
        // Each of the four takes 6 bytes for its name, and 8 besides: all 262,144.
        for name in ["user.a", "user.b", "user.c", "user.d"] {
            set(name, 65_522).await.unwrap();
        }
        assert_eq!(fs(set("user.d", 65_523).await), FsError::NoSpace);
        assert_eq!(fs(set("user.e", 0).await), FsError::NoSpace);
        assert_eq!(root.get_xattr("/f", "user.d").await.unwrap(), vec![7; 65_522]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_capability_goes_with_every_change_of_the_file() {
    World::run(async |world| {
        let root = world.client().await;
        root.write("/f", &[1; 100]).await.unwrap();
        let file = root.open_with("/f", OpenOptions::both()).await.unwrap();
        let has = async || root.get_xattr("/f", "security.capability").await.is_ok();
        for (change, large) in (0..4).flat_map(|change| [(change, false), (change, true)]) {
            let rest = vec![7; if large { 5000 } else { 1 }];
            root.set_xattr("/f", "user.rest", &rest, XattrMode::Set).await.unwrap();
            root.set_xattr("/f", "security.capability", b"cap", XattrMode::Set).await.unwrap();
            assert!(has().await);
            match change {
                0 => file.write_at(5, b"x").await.unwrap(),
                1 => file.set_len(50).await.unwrap(),
                2 => drop(root.chown("/f", Some(0), None).await.unwrap()),
                _ => file.allocate(5, 5, wire::AllocateMode::Zero).await.unwrap(),
            }
            file.flush().await.unwrap();
            assert!(!has().await, "change={change} large={large}");
            assert_eq!(root.get_xattr("/f", "user.rest").await.unwrap(), rest);
        }
    })
    .await;
}
