//! Search classes against what servers check with, in a small world that is looked at completely.

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::{Access, FileKind, Ino, acl::permits_with};

/// Users 1 and 2 own things or are named, 4 is never mentioned; so are groups 0 and 10 to 12, and
/// 13 never.
fn creds() -> Vec<Cred> {
    let gids = [0, 10, 11, 12, 13];
    let member = |set: u32| gids.into_iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1);
    let groups: Vec<Vec<u32>> =
        (1..32).map(|set| member(set).map(|(_, gid)| gid).collect()).collect();
    let of = |uid| {
        groups.iter().map(move |groups| Cred { uid, gid: groups[0], groups: groups[1..].to_vec() })
    };
    [0, 1, 2, 4].into_iter().flat_map(of).collect()
}

/// An ACL of entries `(tag, permissions, id)`.
fn acl(entries: &[(u16, u16, u32)]) -> Acl {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    Acl::parse(&bytes).unwrap().unwrap()
}

fn attr(mode: u32, uid: u32, gid: u32) -> Attr {
    Attr { mode, uid, gid, ..Attr::blank(Ino(2), FileKind::Directory) }
}

/// Every attribute and ACL of the small world.
fn world() -> Vec<(Attr, Option<Acl>)> {
    let mut all = Vec::new();
    for (uid, gid) in [(0, 10), (1, 0), (1, 10), (2, 10), (2, 12)] {
        all.extend((0..0o1000).map(|mode| (attr(mode, uid, gid), None)));
    }
    let named = |tag, ids: [u32; 2], choice: u16| {
        let chosen = ids.into_iter().zip([choice % 3, choice / 3]);
        chosen.filter(|(_, perm)| *perm < 2).map(move |(id, perm)| (tag, perm | 4, id))
    };
    let owners = [(1, 10), (2, 12)];
    for ((uid, gid), users, groups, mask) in owners.into_iter().flat_map(|owner| {
        (0..9).flat_map(move |users| {
            (0..9).flat_map(move |groups| [0, 1, 4, 5].map(|mask| (owner, users, groups, mask)))
        })
    }) {
        for bits in 0..8_u16 {
            let mut entries = vec![(1, bits & 1, u32::MAX)];
            entries.extend(named(2, [1, 2], users));
            entries.push((4, bits >> 1 & 1, u32::MAX));
            entries.extend(named(8, [10, 11], groups));
            entries.extend([(16, mask, u32::MAX), (32, bits >> 2, u32::MAX)]);
            let acl = acl(&entries);
            all.push((attr(acl.in_mode(0), uid, gid), Some(acl)));
        }
    }
    all
}

/// The users of `creds` that a class grants, as bits.
fn granted(creds: &[Cred], grants: impl Fn(&Cred) -> bool) -> u128 {
    creds.iter().enumerate().fold(0, |set, (at, cred)| set | u128::from(grants(cred)) << at)
}

#[test]
fn a_class_grants_what_servers_permit() {
    let creds = creds();
    for (attr, acl) in world() {
        let class = SearchClass::of(&attr, acl.as_ref());
        let permitted = granted(&creds, |cred| {
            permits_with(&attr, acl.as_ref(), cred, Access::EXECUTE).is_ok()
        });
        assert_eq!(granted(&creds, |cred| class.grants(cred)), permitted, "{attr:?} {acl:?}");
    }
}

#[test]
fn covers_is_exact_for_all_pairs_of_classes_and_floors() {
    let creds = creds();
    let mut classes: BTreeSet<SearchClass> = BTreeSet::from([SearchClass::Nothing]);
    classes.extend(world().iter().map(|(attr, acl)| SearchClass::of(attr, acl.as_ref())));
    let floors: Vec<SearchClass> = classes.iter().map(SearchClass::floor).collect();
    classes.extend(floors);
    let sets: Vec<(&SearchClass, u128)> =
        classes.iter().map(|class| (class, granted(&creds, |cred| class.grants(cred)))).collect();
    assert!(sets.len() > 250, "{}", sets.len());
    let mut covered = 0;
    for (class, has) in &sets {
        for (floor, asks) in &sets {
            let covers = class.covers(floor);
            assert_eq!(covers, asks & !has == 0, "{class:?} {floor:?}");
            covered += usize::from(covers);
        }
    }
    assert!(covered > 10 * sets.len(), "{covered}");
}

#[test]
fn a_class_covers_its_floor_and_the_floor_leaves_the_owner_out() {
    for (attr, acl) in world() {
        let class = SearchClass::of(&attr, acl.as_ref());
        let floor = class.floor();
        assert!(class.covers(&floor), "{class:?}");
        assert_eq!(floor.floor(), floor);
        // Two owners of one shared directory have one floor, unless nobody but the owner is in.
        if acl.is_none() && attr.mode & 0o110 == 0o110 && attr.uid != 0 {
            let other = SearchClass::of(&Attr { uid: 77, ..attr }, None);
            assert_eq!(floor, other.floor(), "{class:?}");
            assert!(
                !floor.grants(&Cred { uid: attr.uid, gid: 99, groups: Vec::new() })
                    || attr.mode & 1 == 1,
                "{floor:?}"
            );
        }
    }
}

#[test]
fn equal_rights_have_one_class() {
    let of = |mode, uid, gid| SearchClass::of_mode(mode, uid, gid);
    assert_eq!(of(0o755, 7, 8), SearchClass::All);
    assert_eq!(of(0o700, 0, 8), SearchClass::Nothing);
    assert_eq!(of(0o700, 7, 8), of(0o2700, 7, 9));
    assert_eq!(of(0o750, 0, 8), of(0o750, 7, 8).floor());
    assert_eq!(of(0o011, 7, 8), of(0o077, 7, 9));
    assert_ne!(of(0o750, 7, 8), of(0o750, 7, 9));
    assert_eq!(of(0o644, 7, 8), SearchClass::Nothing);
}

#[test]
fn a_mask_without_x_is_no_empty_mask_and_an_empty_one_leaves_it_to_the_mode() {
    // Others may search; users 2 and members of group 11 are named.
    let of = |mask| {
        let all = u32::MAX;
        let named =
            [(1, 7, all), (2, 7, 2), (4, 7, all), (8, 7, 11), (16, mask, all), (32, 1, all)];
        let acl = acl(&named);
        SearchClass::of(&attr(acl.in_mode(0), 1, 10), Some(&acl))
    };
    let granted = |mask, uid, gid| of(mask).grants(&Cred { uid, gid, groups: Vec::new() });
    let named = [(2, 13), (4, 11), (4, 10)];
    assert_eq!(named.map(|(uid, gid)| granted(0o4, uid, gid)), [false, false, false]);
    assert_eq!(named.map(|(uid, gid)| granted(0o0, uid, gid)), [true, true, false]);
    assert_eq!(named.map(|(uid, gid)| granted(0o5, uid, gid)), [true, true, true]);
    assert!([0o0, 0o4, 0o5].into_iter().all(|mask| granted(mask, 4, 13) && granted(mask, 1, 13)));
}

#[test]
fn an_acl_of_too_many_names_grants_nobody() {
    let with = |users: u16| {
        let mut entries = vec![(1, 7, u32::MAX)];
        entries.extend((0..users).map(|user| (2, 5, 1000 + u32::from(user))));
        entries.extend([(4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]);
        let acl = acl(&entries);
        SearchClass::of(&attr(acl.in_mode(0), 1, 10), Some(&acl))
    };
    assert_eq!(with(31).names(), 33);
    assert_eq!(with(32), SearchClass::Nothing);
}

fn decision() -> impl Strategy<Value = Decision> {
    (0..5_u32, any::<bool>()).prop_map(|(id, grants)| Decision { id, grants })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        owner in prop::option::of(decision()),
        users in prop::collection::vec(decision(), 0..5),
        groups in prop::collection::vec(decision(), 0..5),
        others: bool,
    ) {
        let class = SearchClass::new(owner, users, groups, others);
        prop_assert_eq!(SearchClass::from_bytes(&class.to_vec().into()), Ok(class));
    }

    #[test]
    fn bytes_that_are_no_normal_form_are_refused(bytes: Vec<u8>) {
        let mut bytes = bytes;
        bytes.insert(0, 3);
        if let Ok(class) = SearchClass::from_bytes(&bytes.clone().into()) {
            prop_assert_eq!(class.to_vec(), bytes);
        }
    }
}

#[test]
fn known_classes_have_known_bytes() {
    let bytes = |class: SearchClass| class.to_vec();
    assert_eq!(bytes(SearchClass::Nothing), [1]);
    assert_eq!(bytes(SearchClass::All), [2]);
    assert_eq!(bytes(SearchClass::of_mode(0o750, 7, 8)), [3, 1, 7, 1, 0, 1, 8, 1, 0]);
    let all_but_a_group = SearchClass::of_mode(0o705, 0, 8);
    assert_eq!(bytes(all_but_a_group), [3, 0, 0, 1, 8, 0, 1]);
    let abnormal = Bytes::from_static(&[3, 1, 7, 1, 0, 0, 1]);
    assert!(SearchClass::from_bytes(&abnormal).is_err(), "all, written as a list");
}
