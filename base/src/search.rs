//! Search classes: the part of a directory's access rules that search permission depends on.
//!
//! A search class is made from the attributes and the access ACL of a directory. Permission tables
//! ([`permissions`](crate::permissions)) keep classes in place of attributes, and directory records
//! store one as the bound of everything below. Nothing here decides about reading or writing.
//!
//! A class is a list of decisions, as POSIX makes them: the owner, then named users, then groups,
//! then all others. One form serves modes, ACLs and floors, so [`SearchClass::covers`] compares any
//! two classes, and does so exactly. The design had three separate forms and a comparison that may
//! miss pairs; each missed pair would cost an entry in every table and a fence.
//!
//! Invariant: a class is in its normal form. Decisions that change nothing are left out, among them
//! all about the superuser, whom no class holds back. A directory of root with mode 0750 has
//! therefore the class of its group, and one with mode 0755 has [`SearchClass::All`].
//!
//! POSIX: file access permissions; draft 1003.1e for ACLs. `acl::permits_with` is what servers
//! check with; the tests compare each class with it.

#[cfg(test)]
mod tests;

use crate::{
    Acl, Attr, Cred, Decode, DecodeError, Encode, Reader,
    acl::{self, Party},
    codec,
    codec::Element,
    limits::SEARCH_NAMES_MAX,
};

/// The x bits of a mode: owner, group, others.
const OWNER_X: u32 = 0o100;
const GROUP_X: u32 = 0o010;
const OTHER_X: u32 = 0o001;

codec! {
    /// The users and groups that may search a directory.
    ///
    /// The superuser may always, also where the class is `Nothing`.
    #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
    pub enum SearchClass {
        /// The superuser alone, or a class too large to be kept.
        Nothing = 1,
        /// Every user.
        All = 2,
        /// Some users, by a list of decisions.
        Some(SearchRules) = 3,
    }
}

/// A list of decisions: the first one that is about a user decides.
///
/// Built by [`SearchClass`] alone, which keeps the normal form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SearchRules {
    /// The owner, unless the class does not distinguish it.
    owner: Option<Decision>,
    /// Named users other than the owner, by id, each once.
    users: Box<[Decision]>,
    /// Groups, by id, each once. A member of one that grants is granted; a member only of groups
    /// that do not is not.
    groups: Box<[Decision]>,
    /// Whether users without any decision above are granted.
    others: bool,
}

codec! {
    /// One decision of a list.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Decision {
        /// User or group id.
        pub id: u32,
        /// Whether it grants.
        pub grants: bool,
    }
}

impl SearchClass {
    /// The class of a directory with these attributes and this access ACL.
    ///
    /// Linux: where the group's bits of the mode are empty (they are the mask of an ACL) the mode
    /// decides. A mask without x, such as `r--`, is not empty: it takes x from named users and
    /// groups, and they do not pass as others.
    #[must_use]
    pub fn of(attr: &Attr, acl: Option<&Acl>) -> SearchClass {
        match acl {
            Some(acl) if acl::acl_decides(attr) => {
                let (mut users, mut groups, mut others) = (Vec::new(), Vec::new(), false);
                for (party, grants) in acl.searchers() {
                    match party {
                        Party::User(id) => users.push(Decision { id, grants }),
                        Party::Group(id) => groups.push(Decision { id, grants }),
                        Party::OwningGroup => groups.push(Decision { id: attr.gid, grants }),
                        Party::Others => others = grants,
                    }
                }
                let owner = Decision { id: attr.uid, grants: attr.mode & OWNER_X != 0 };
                SearchClass::new(Some(owner), users, groups, others)
            }
            Some(_) | None => SearchClass::of_mode(attr.mode, attr.uid, attr.gid),
        }
    }

    /// The class of a directory without an ACL. `mode` may have further bits.
    #[must_use]
    pub fn of_mode(mode: u32, uid: u32, gid: u32) -> SearchClass {
        let owner = Decision { id: uid, grants: mode & OWNER_X != 0 };
        let group = Decision { id: gid, grants: mode & GROUP_X != 0 };
        SearchClass::new(Some(owner), Vec::new(), vec![group], mode & OTHER_X != 0)
    }

    /// The normal form of these decisions. Of several for one user the first counts.
    fn new(
        owner: Option<Decision>,
        mut users: Vec<Decision>,
        mut groups: Vec<Decision>,
        others: bool,
    ) -> SearchClass {
        let mut owner = owner.filter(|owner| owner.id != Cred::ROOT.uid);
        users.retain(|user| {
            user.id != Cred::ROOT.uid && owner.is_none_or(|owner| owner.id != user.id)
        });
        users.sort_by_key(|user| user.id);
        users.dedup_by_key(|user| user.id);
        // Of several entries for one group any may grant.
        groups.sort_by_key(|group| (group.id, !group.grants));
        groups.dedup_by_key(|group| group.id);
        // Groups matter where a member fares better than others, or worse. A member of two groups
        // with different decisions is granted, so where others are granted each group counts.
        if groups.iter().all(|group| group.grants == others) {
            groups.clear();
        } else if !others {
            groups.retain(|group| group.grants);
        }
        if groups.is_empty() {
            users.retain(|user| user.grants != others);
            owner = owner.filter(|owner| owner.grants != others);
        }
        if users.len() + groups.len() > SEARCH_NAMES_MAX {
            return SearchClass::Nothing;
        }
        match (owner, users.is_empty() && groups.is_empty(), others) {
            (None, true, true) => SearchClass::All,
            (None, true, false) => SearchClass::Nothing,
            (owner, _, others) => SearchClass::Some(SearchRules {
                owner,
                users: users.into(),
                groups: groups.into(),
                others,
            }),
        }
    }

    /// Whether `cred` may search.
    #[must_use]
    pub fn grants(&self, cred: &Cred) -> bool {
        cred.is_root()
            || match self {
                SearchClass::Nothing => false,
                SearchClass::All => true,
                SearchClass::Some(rules) => rules.grants(cred),
            }
    }

    /// The bound for what is made below a directory of this class: directories that grant it need
    /// no entry of their own.
    ///
    /// The class without its owner, where the owner is granted, so that a shared tree of many
    /// owners has one floor; the owner, where nobody else is granted; `Nothing`, where the owner is
    /// not granted. Each class covers its floor, and a floor is its own floor.
    #[must_use]
    pub fn floor(&self) -> SearchClass {
        let SearchClass::Some(rules) = self else { return self.clone() };
        let Some(owner) = rules.owner else { return self.clone() };
        if !owner.grants {
            return SearchClass::Nothing;
        }
        match SearchClass::new(None, rules.users.to_vec(), rules.groups.to_vec(), rules.others) {
            SearchClass::Nothing => SearchClass::new(Some(owner), Vec::new(), Vec::new(), false),
            rest @ (SearchClass::All | SearchClass::Some(_)) => rest,
        }
    }

    /// Whether each user that `floor` grants is granted by this class. `floor` may be any class.
    ///
    /// Cost: linear in the names of both, which are at most [`SEARCH_NAMES_MAX`] each.
    #[must_use]
    pub fn covers(&self, floor: &SearchClass) -> bool {
        match (self, floor) {
            (SearchClass::All, _) | (_, SearchClass::Nothing) => true,
            // A class in normal form that is not `All` leaves somebody out, and one that is not
            // `Nothing` grants somebody.
            (SearchClass::Nothing, _) | (SearchClass::Some(_), SearchClass::All) => false,
            (SearchClass::Some(class), SearchClass::Some(floor)) => class.covers(floor),
        }
    }

    /// Number of users and groups that the class names, its owner included.
    #[must_use]
    pub fn names(&self) -> usize {
        match self {
            SearchClass::Nothing | SearchClass::All => 0,
            SearchClass::Some(rules) => {
                usize::from(rules.owner.is_some()) + rules.users.len() + rules.groups.len()
            }
        }
    }
}

/// Decision about one user, before its groups are known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ForUser {
    Decided(bool),
    ByGroups,
}

impl SearchRules {
    fn grants(&self, cred: &Cred) -> bool {
        match self.for_user(cred.uid) {
            ForUser::Decided(grants) => grants,
            ForUser::ByGroups => {
                let mut member = false;
                for group in self.groups.iter().filter(|group| cred.in_group(group.id)) {
                    if group.grants {
                        return true;
                    }
                    member = true;
                }
                !member && self.others
            }
        }
    }

    fn for_user(&self, uid: u32) -> ForUser {
        if let Some(owner) = self.owner.filter(|owner| owner.id == uid) {
            return ForUser::Decided(owner.grants);
        }
        match self.users.binary_search_by_key(&uid, |user| user.id) {
            Ok(at) => ForUser::Decided(self.users[at].grants),
            Err(_) => ForUser::ByGroups,
        }
    }

    /// Searches for a user that `floor` grants and this list does not. Users that no list names all
    /// fare alike, and of groups only those that a list names matter.
    fn covers(&self, floor: &SearchRules) -> bool {
        let unnamed = self.covers_for(floor, ForUser::ByGroups, ForUser::ByGroups);
        let uids = |rules: &SearchRules| {
            rules.owner.iter().chain(&rules.users).map(|user| user.id).collect::<Vec<_>>()
        };
        unnamed
            && uids(self)
                .into_iter()
                .chain(uids(floor))
                .all(|uid| self.covers_for(floor, self.for_user(uid), floor.for_user(uid)))
    }

    /// The same for one user, whatever its groups are.
    fn covers_for(&self, floor: &SearchRules, own: ForUser, below: ForUser) -> bool {
        match (own, below) {
            (ForUser::Decided(true), _) | (_, ForUser::Decided(false)) => true,
            (ForUser::Decided(false), ForUser::Decided(true)) => false,
            (ForUser::Decided(false), ForUser::ByGroups) => !floor.grants_somebody(),
            (ForUser::ByGroups, ForUser::Decided(true)) => !self.refuses_somebody(|_| true),
            (ForUser::ByGroups, ForUser::ByGroups) => {
                // Refused here and granted there, as a member of a group that grants there ...
                let by_group = floor
                    .groups
                    .iter()
                    .any(|group| group.grants && self.decision(group.id) != Some(true))
                    && self.refuses_somebody(|_| true);
                // ... or of no group that the floor knows, as one of its others.
                let as_other =
                    floor.others && self.refuses_somebody(|id| floor.decision(id).is_none());
                !by_group && !as_other
            }
        }
    }

    fn grants_somebody(&self) -> bool {
        self.others || self.groups.iter().any(|group| group.grants)
    }

    /// Whether a user is refused by its groups, where it may be in those of which `may` says so and
    /// in any that no list names.
    fn refuses_somebody(&self, may: impl Fn(u32) -> bool) -> bool {
        !self.others || self.groups.iter().any(|group| !group.grants && may(group.id))
    }

    fn decision(&self, gid: u32) -> Option<bool> {
        let at = self.groups.binary_search_by_key(&gid, |group| group.id);
        at.ok().map(|at| self.groups[at].grants)
    }
}

impl Element for SearchRules {}

impl Encode for SearchRules {
    fn encode(&self, out: &mut Vec<u8>) {
        self.owner.encode(out);
        self.users.to_vec().encode(out);
        self.groups.to_vec().encode(out);
        self.others.encode(out);
    }
}

impl Decode for SearchRules {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let read = SearchRules {
            owner: Option::decode(input)?,
            users: Vec::decode(input)?.into(),
            groups: Vec::decode(input)?.into(),
            others: bool::decode(input)?,
        };
        // Equal classes have equal bytes, and no other bytes are a class.
        let normal =
            SearchClass::new(read.owner, read.users.to_vec(), read.groups.to_vec(), read.others);
        match normal {
            SearchClass::Some(normal) if normal == read => Ok(normal),
            _ => Err(DecodeError::Invalid("search class")),
        }
    }
}
