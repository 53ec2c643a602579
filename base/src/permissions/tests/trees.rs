//! Random trees and changes: a table never grants what the unmerged tree does not.

use super::{
    world::{World, creds},
    *,
};
use crate::Acl;

const MODES: [u32; 10] = [0o755, 0o700, 0o750, 0o711, 0o2775, 0o2770, 0o000, 0o705, 0o011, 0o710];

/// Access or default ACLs; one has a mask without x.
fn acl(choice: u8) -> Option<Acl> {
    let entries: &[(u16, u16, u32)] = match choice % 6 {
        0 | 1 => return None,
        2 => &[(1, 7, 0), (2, 7, 2), (4, 0, 0), (16, 7, 0), (32, 0, 0)],
        3 => &[(1, 7, 0), (2, 7, 2), (4, 5, 0), (16, 4, 0), (32, 1, 0)],
        4 => &[(1, 7, 0), (4, 5, 0), (8, 5, 11), (16, 5, 0), (32, 0, 0)],
        _ => &[(1, 7, 0), (2, 0, 3), (4, 5, 0), (16, 7, 0), (32, 5, 0)],
    };
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        let id = if matches!(tag, 2 | 8) { *id } else { u32::MAX };
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    Acl::parse(&bytes).unwrap()
}

fn short_name(choice: u8) -> EntryName {
    name(["a", "b", "c"][usize::from(choice % 3)])
}

/// Every path of the three names, to depth 3.
fn paths() -> Vec<Vec<EntryName>> {
    let mut all = vec![Vec::new()];
    for at in 0..13 {
        for choice in 0..3 {
            let mut path: Vec<EntryName> = Vec::clone(&all[at]);
            path.push(short_name(choice));
            all.push(path);
        }
    }
    all
}

#[derive(Debug, Clone, Copy)]
struct Change {
    kind: u8,
    dir: u8,
    other: u8,
    choice: u8,
    aborts: bool,
    /// How much of what is open advances afterwards.
    after: After,
}

#[derive(Debug, Clone, Copy)]
enum After {
    Nothing,
    Some(u8),
    All,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let after =
        prop_oneof![Just(After::Nothing), (1..4_u8).prop_map(After::Some), Just(After::All),];
    let change = (any::<[u8; 4]>(), 0..8_u8, after).prop_map(|(drawn, abort, after)| {
        let [kind, dir, other, choice] = drawn;
        Change { kind, dir, other, choice, aborts: abort == 0, after }
    });
    prop::collection::vec(change, 1..90)
}

fn apply(world: &mut World, change: Change) {
    let ids: Vec<DirId> = world.dirs.keys().copied().collect();
    let pick = |choice: u8| ids[usize::from(choice) % ids.len()];
    let (dir, other) = (pick(change.dir), pick(change.other));
    let Change { kind, choice, aborts, .. } = change;
    let mode = MODES[usize::from(choice) % MODES.len()];
    let creds = creds();
    let cred = &creds[usize::from(change.other) % creds.len()];
    match kind % 16 {
        0..=4 => world.mkdir(dir, &short_name(choice / 16), cred, mode),
        5 => world.set(dir, aborts, |dir| {
            dir.attr.mode = mode;
            if let Some(acl) = &mut dir.acl {
                acl.follow_mode(mode);
            }
        }),
        6 => world.set(dir, aborts, |dir| {
            (dir.attr.uid, dir.attr.gid) = (cred.uid, cred.gid);
        }),
        7 => world.set(dir, aborts, |dir| {
            dir.acl = acl(choice);
            if let Some(acl) = &dir.acl {
                dir.attr.mode = acl.in_mode(dir.attr.mode);
            }
        }),
        8 => world.set_default(dir, acl(choice)),
        9 | 10 => world.rename(dir, other, &short_name(choice), aborts),
        11 => world.exchange(dir, other, aborts),
        12..=14 => world.rmdir(dir, aborts),
        _ => {
            let path = world.path(dir);
            world.walk_slowly(&path, cred);
        }
    }
}

fn look_up(table: &PermissionTable, names: &[EntryName], cred: &Cred) -> Result<Granted, Unknown> {
    table.look_up(&Walk { hash: &HASH, names, cred: Some(cred), unchecked: 0 })
}

/// The unmerged tree grants each path that the table grants and the target's record proves.
fn is_sound(world: &World, paths: &[Vec<EntryName>]) -> Result<(), TestCaseError> {
    for cred in creds() {
        for path in paths {
            if let Ok(found) = look_up(&world.table, path, &cred)
                && world.target_accepts(&found, path)
            {
                prop_assert_eq!(world.walk(path, &cred), Some(found.id()), "{:?} {:?}", path, cred);
            }
        }
    }
    Ok(())
}

/// The table says all that listings say, and use makes known all that the tree grants.
fn is_complete(mut world: World) -> Result<(), TestCaseError> {
    world.settle();
    world.check();
    for backwards in [false, true] {
        prop_assert_eq!(world.table.entries(), world.rebuilt(backwards).entries());
    }
    let paths: Vec<(DirId, Vec<EntryName>)> =
        world.dirs.keys().map(|id| (*id, world.path(*id))).collect();
    for cred in creds() {
        for (id, path) in &paths {
            let said = look_up(&world.table, path, &cred);
            match said.map(|found| found.id()).map_err(|unknown| unknown.why) {
                Ok(found) => prop_assert!(world.known(path, &cred) && found == *id),
                Err(UnknownWhy::NotGranted) => prop_assert!(!world.known(path, &cred)),
                Err(why) => prop_assert!(false, "{:?} {:?}", path, why),
            }
            if world.walk(path, &cred).is_some() {
                world.walk_slowly(path, &cred);
                world.settle();
                let found = look_up(&world.table, path, &cred);
                prop_assert_eq!(found.map(|found| found.id()), Ok(*id));
            }
        }
    }
    prop_assert_eq!(world.table.entries(), world.rebuilt(false).entries());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, ..ProptestConfig::default() })]

    #[test]
    fn a_table_grants_no_more_than_the_tree_and_knows_all_that_is_listed(
        root in prop::sample::select(vec![0o755, 0o755, 0o700, 0o750]),
        changes in changes(),
    ) {
        let (mut world, paths) = (World::new(root), paths());
        for change in changes {
            apply(&mut world, change);
            is_sound(&world, &paths)?;
            match change.after {
                After::Nothing => {}
                After::Some(steps) => (0..steps).for_each(|step| {
                    world.advance(usize::from(change.choice.wrapping_mul(step)));
                }),
                After::All => world.settle(),
            }
            is_sound(&world, &paths)?;
        }
        is_complete(world)?;
    }
}
