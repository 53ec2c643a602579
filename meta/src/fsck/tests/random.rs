//! Random operations and crashes leave nothing to find.

use proptest::{collection::vec, prelude::*};
use wire::{DirRef, FileRef, Reply, Request};

use crate::ops::tests::{
    client::{Client, name},
    world::{Setup, World, in_world_of},
};

#[derive(Debug, Clone)]
enum Act {
    Mkdir(usize, usize),
    Create(usize, usize),
    Symlink(usize, usize),
    Link(usize, usize, usize, usize),
    Unlink(usize, usize),
    Rmdir(usize, usize),
    Rename(usize, usize, usize, usize, bool),
    Write(usize, usize, u64, usize, bool),
    Truncate(usize, usize, u64),
    Xattr(usize, usize, usize),
    Chown(usize, usize, u32),
    Open(usize, usize),
    Close,
    Restart,
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn act() -> impl Strategy<Value = Act> {
    let (dir, name) = (0..6_usize, 0..NAMES.len());
    let at = (dir, name);
    prop_oneof![
        4 => at.clone().prop_map(|(d, n)| Act::Mkdir(d, n)),
        4 => at.clone().prop_map(|(d, n)| Act::Create(d, n)),
        1 => at.clone().prop_map(|(d, n)| Act::Symlink(d, n)),
        4 => (at.clone(), at.clone()).prop_map(|((d, n), (e, m))| Act::Link(d, n, e, m)),
        3 => at.clone().prop_map(|(d, n)| Act::Unlink(d, n)),
        2 => at.clone().prop_map(|(d, n)| Act::Rmdir(d, n)),
        10 => (at.clone(), at.clone(), any::<bool>())
            .prop_map(|((d, n), (e, m), exchange)| Act::Rename(d, n, e, m, exchange)),
        4 => (at.clone(), 0..200_u64, 1..200_usize, any::<bool>())
            .prop_map(|((d, n), at, len, blocks)| Act::Write(d, n, at, len, blocks)),
        2 => (at.clone(), 0..200_u64).prop_map(|((d, n), size)| Act::Truncate(d, n, size)),
        3 => (at.clone(), prop_oneof![Just(10_usize), Just(600)])
            .prop_map(|((d, n), len)| Act::Xattr(d, n, len)),
        1 => (at.clone(), 0..3_u32).prop_map(|((d, n), uid)| Act::Chown(d, n, uid)),
        2 => at.prop_map(|(d, n)| Act::Open(d, n)),
        1 => Just(Act::Close),
        1 => Just(Act::Restart),
    ]
}

/// Performs an operation if possible; a refusal is fine as well.
async fn perform(world: &mut World, client: &mut Client, dirs: &mut Vec<DirRef>, act: &Act) {
    let at = |index: &usize| dirs[index % dirs.len()];
    macro_rules! file {
        ($dir:expr, $name:expr) => {{
            let dir = at($dir);
            match client.try_lookup(&dir, NAMES[*$name]).await {
                Some(entry) if entry.dir.is_none() => {
                    FileRef { dir, name: name(NAMES[*$name]), ino: entry.attr.ino }
                }
                _ => return,
            }
        }};
    }
    match act {
        Act::Mkdir(dir, name) => {
            let dir = at(dir);
            if let Ok(Reply::Entry(entry)) = client
                .attempt(Request::Mkdir(wire::Mkdir {
                    dir,
                    name: self::name(NAMES[*name]),
                    mode: 0o755,
                }))
                .await
            {
                dirs.push(entry.dir.unwrap());
            }
        }
        Act::Create(dir, name) => {
            let create = wire::Create {
                dir: at(dir),
                name: self::name(NAMES[*name]),
                kind: base::FileKind::File,
                mode: 0o644,
                rdev: 0,
                exclusive: true,
                open: None,
            };
            let _ = client.attempt(Request::Create(create)).await;
        }
        Act::Symlink(dir, name) => {
            let (dir, name) = (at(dir), self::name(NAMES[*name]));
            let _ = client
                .attempt(Request::Symlink(wire::Symlink { dir, name, target: "x".into() }))
                .await;
        }
        Act::Link(dir, name, to, new) => {
            let target = wire::NodeRef::File(file!(dir, name));
            let link = wire::Link { target, dir: at(to), name: self::name(NAMES[*new]) };
            let _ = client.attempt(Request::Link(link)).await;
        }
        Act::Unlink(dir, name) => {
            let unlink = wire::Unlink { dir: at(dir), name: self::name(NAMES[*name]) };
            let _ = client.attempt(Request::Unlink(unlink)).await;
        }
        Act::Rmdir(dir, name) => {
            let rmdir = wire::Rmdir { dir: at(dir), name: self::name(NAMES[*name]) };
            let _ = client.attempt(Request::Rmdir(rmdir)).await;
        }
        Act::Rename(dir, name, to, new, exchange) => {
            let mode =
                if *exchange { wire::RenameMode::Exchange } else { wire::RenameMode::Replace };
            let rename = wire::Rename {
                from_dir: at(dir),
                from_name: self::name(NAMES[*name]),
                to_dir: at(to),
                to_name: self::name(NAMES[*new]),
                mode,
            };
            let _ = client.attempt(Request::Rename(rename)).await;
        }
        Act::Write(dir, name, at_byte, len, blocks) => {
            let file = file!(dir, name);
            let data = vec![1; *len];
            let _ = match blocks {
                true => client.write_blocks(&file, *at_byte, &data).await,
                false => client.write(&file, *at_byte, &data).await,
            };
        }
        Act::Truncate(dir, name, size) => {
            let file = file!(dir, name);
            let _ = client.truncate(&file, *size).await;
        }
        Act::Xattr(dir, name, len) => {
            let dir = at(dir);
            let Some(entry) = client.try_lookup(&dir, NAMES[*name]).await else { return };
            let node = entry.node(&dir, &self::name(NAMES[*name]));
            let set = wire::SetXattr {
                node,
                name: "trusted.x".into(),
                value: vec![1; *len].into(),
                mode: wire::XattrMode::Set,
            };
            let _ = client.attempt(Request::Setxattr(set)).await;
        }
        Act::Chown(dir, name, uid) => {
            let dir = at(dir);
            let Some(entry) = client.try_lookup(&dir, NAMES[*name]).await else { return };
            let node = entry.node(&dir, &self::name(NAMES[*name]));
            let set = base::SetAttr { uid: Some(*uid), ..base::SetAttr::default() };
            let _ = client.attempt(Request::Setattr(wire::Setattr { node, set })).await;
        }
        Act::Open(dir, name) => {
            let file = file!(dir, name);
            let _ = client.open_file(&file).await;
        }
        Act::Close => {
            client.bye().await;
            *client = world.client().await;
        }
        Act::Restart => {
            world.restart().await;
            client.resume(world).await;
            client.claim_nothing().await;
        }
    }
}

fn survives(setup: Setup, acts: &[Act]) {
    in_world_of(setup, async |world| {
        let mut client = world.client().await;
        let mut dirs = vec![client.root];
        for (index, act) in acts.iter().enumerate() {
            perform(world, &mut client, &mut dirs, act).await;
            if index % 10 == 0 {
                let findings = world.findings().await;
                assert!(findings.is_empty(), "after {index}, {act:?}: {findings:#?}");
            }
        }
        client.bye().await;
        world.settle().await;
    });
}

/// Damage to a record.
#[derive(Debug, Clone, Copy)]
enum Blow {
    Lost,
    Junk,
    /// One byte has another value.
    Changed(usize, u8),
}

fn blow() -> impl Strategy<Value = (usize, Blow)> {
    let changed = (0..100_usize, 1..=u8::MAX).prop_map(|(at, by)| Blow::Changed(at, by));
    (any::<usize>(), prop_oneof![2 => Just(Blow::Lost), 1 => Just(Blow::Junk), 3 => changed])
}

/// Damages files, directories and their contents; not the records that a server needs to start, nor
/// those of the check's own session.
fn damage(world: &World, blows: &[(usize, Blow)]) {
    let mut records = Vec::new();
    let visit = &mut |key: &[u8], value: &[u8]| {
        if matches!(key[2], b'N' | b'D' | b'I' | b'B' | b'R' | b'G') {
            records.push((key.to_vec(), value.to_vec()));
        }
        std::ops::ControlFlow::Continue(())
    };
    store::Engine::scan(world.engine.as_ref(), &[], &[u8::MAX; 8], visit).unwrap();
    let mut batch = store::Batch::new();
    for (which, blow) in blows {
        let count = records.len();
        let (key, value) = &mut records[which % count];
        match blow {
            Blow::Lost => batch.delete(key),
            Blow::Junk => batch.put(key, b"\x01junk"),
            Blow::Changed(at, by) => {
                if let Some(byte) =
                    value.len().checked_sub(1).map(|last| &mut value[*at % (last + 1)])
                {
                    *byte ^= by;
                }
                batch.put(key, value);
            }
        }
    }
    store::Engine::write(world.engine.as_ref(), batch).unwrap();
    world.server.shared.record_cache.clear();
}

/// Whether two things claim what a finding is about. It is given to neither, and what depends on it
/// waits.
fn is_of_two(finding: &str) -> bool {
    finding.contains("is named twice") || finding.contains("is used twice")
}

fn is_mended(setup: Setup, acts: &[Act], blows: &[(usize, Blow)]) {
    crate::ops::tests::world::in_damaged_world_of(setup, async |world| {
        let mut client = world.client().await;
        let mut dirs = vec![client.root];
        for act in acts {
            perform(world, &mut client, &mut dirs, act).await;
        }
        client.bye().await;
        world.settle().await;
        damage(world, blows);
        let mut client = world.client().await;
        let repaired = client.repair(true).await;
        world.settle().await;
        let left = client.fsck(false).await.findings;
        assert!(left.iter().all(|left| is_of_two(left)), "{left:#?} after {repaired:#?}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn whatever_is_damaged_is_repaired(acts in vec(act(), 10..60), blows in vec(blow(), 1..5)) {
        is_mended(Setup { inline_bytes_max: 64, ..Setup::default() }, &acts, &blows);
    }

    #[test]
    fn so_it_is_when_homes_are_subtrees(acts in vec(act(), 10..60), blows in vec(blow(), 1..5)) {
        let locality = base::Locality::Subtree;
        let setup = Setup { inline_bytes_max: 64, locality, shards: 3, ..Setup::default() };
        is_mended(setup, &acts, &blows);
    }

    #[test]
    fn whatever_is_done_leaves_nothing_to_find(acts in vec(act(), 1..80)) {
        survives(Setup { inline_bytes_max: 64, ..Setup::default() }, &acts);
    }

    #[test]
    fn nor_does_it_when_homes_are_subtrees(acts in vec(act(), 1..80)) {
        let locality = base::Locality::Subtree;
        survives(Setup { inline_bytes_max: 64, locality, shards: 3, ..Setup::default() }, &acts);
    }
}
