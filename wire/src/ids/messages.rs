//! The ids in messages of a session, made those of the inside or the outside.
//!
//! Invariant: every id in a message that a session sends or gets passes through here. The matches
//! name every request and every reply, so that a new one does not compile before it is decided.

use base::{Account, Acl, AclKind, Attr, FsError, Ino, SetAttr};
use bytes::Bytes;

use super::{IdMapping, IdRange, inside, outside};
use crate::{
    Answer, Entry, HeldChange, HeldReply, HeldRequest, Reply, Request, SetXattr, Setattr,
    delegation::DelegatedEntry,
};

impl IdMapping {
    /// Makes the ids that a request names those of the inside. Its credentials are in its header.
    ///
    /// # Errors
    /// `Invalid` for an owner, or somebody in an ACL, that no range of the map has.
    pub fn take_in(&self, request: &mut Request) -> Result<(), FsError> {
        match request {
            Request::Setattr(req) => self.take_in_attr(&mut req.set),
            Request::Write(req) => req.set.as_mut().map_or(Ok(()), |set| self.take_in_attr(set)),
            Request::Setxattr(req) => self.take_in_acl(req),
            Request::Apply(req) => {
                req.changes.iter_mut().try_for_each(|change| self.take_in_change(change))
            }
            Request::Hello(_)
            | Request::Ping
            | Request::Bye
            | Request::Claim(_)
            | Request::Statfs
            | Request::Sync
            | Request::Recalls
            | Request::Return(_)
            | Request::ReserveInos(_)
            | Request::Delegate(_)
            | Request::Lookup(_)
            | Request::Walk(_)
            | Request::WalkTo(_)
            | Request::Getattr(_)
            | Request::Create(_)
            | Request::Mkdir(_)
            | Request::Symlink(_)
            | Request::Link(_)
            | Request::Unlink(_)
            | Request::Rmdir(_)
            | Request::Rename(_)
            | Request::Readdir(_)
            | Request::Readlink(_)
            | Request::Tmpfile(_)
            | Request::Search(_)
            | Request::Watch(_)
            | Request::Open(_)
            | Request::Release(_)
            | Request::BlockMap(_)
            | Request::BlockPut(_)
            | Request::BlockGet(_)
            | Request::Allocate(_)
            | Request::Seek(_)
            | Request::BlockDrop(_)
            | Request::SignBlocks(_)
            | Request::Xattrs(_)
            | Request::Removexattr(_)
            | Request::Status
            | Request::FsckStart(_)
            | Request::FsckPoll(_)
            | Request::Info(_)
            | Request::Repair(_)
            | Request::FsckNames(_)
            | Request::FsckFixes(_)
            | Request::FsckInos(_)
            | Request::FsckMend(_)
            | Request::FsckQuotas(_)
            | Request::Accounts(_)
            | Request::Lock(_)
            | Request::LockTest(_)
            | Request::LockCancel(_)
            | Request::LockClaim(_)
            | Request::Load
            | Request::Slow(_)
            | Request::Sessions
            | Request::Opens(_)
            | Request::Evict(_)
            | Request::Locks(_)
            | Request::Standing(_)
            | Request::Keys(_)
            | Request::SignToken(_)
            | Request::DumpStart
            | Request::DumpNext(_)
            | Request::DumpStep(_)
            | Request::Move(_)
            | Request::ShardPull(_)
            | Request::ShardBlock(_)
            | Request::PeerHello(_)
            | Request::PeerRead(_)
            | Request::Prepare(_)
            | Request::Decide(_)
            | Request::AskOutcome(_)
            | Request::Join(_)
            | Request::Heartbeat(_)
            | Request::Announce(_)
            | Request::Cluster
            | Request::Speculate(_)
            | Request::HandoffBegin(_)
            | Request::HandoffPut(_)
            | Request::LayoutLearnt(_)
            | Request::Born(_)
            | Request::AskBirths
            | Request::SettleBirths
            | Request::HurryBirths(_)
            | Request::Count(_)
            | Request::AskRoom(_)
            | Request::GiveRoom(_)
            | Request::AskOver(_) => Ok(()),
        }
    }

    fn take_in_change(&self, change: &mut HeldChange) -> Result<(), FsError> {
        change.cred = self.acting(&change.cred);
        match &mut change.request {
            HeldRequest::Setattr(Setattr { set, .. }) => self.take_in_attr(set),
            HeldRequest::Write(req) => {
                req.set.as_mut().map_or(Ok(()), |set| self.take_in_attr(set))
            }
            HeldRequest::Create(_) | HeldRequest::Unlink(_) => Ok(()),
        }
    }

    fn take_in_attr(&self, set: &mut SetAttr) -> Result<(), FsError> {
        let named = |map: &[IdRange], id: Option<u32>| {
            id.map(|id| inside(map, id).ok_or(FsError::Invalid)).transpose()
        };
        set.uid = named(&self.uids, set.uid)?;
        set.gid = named(&self.gids, set.gid)?;
        Ok(())
    }

    /// Bytes that are no ACL stay: the operation refuses them.
    fn take_in_acl(&self, req: &mut SetXattr) -> Result<(), FsError> {
        if let (Some(_), Ok(Some(mut acl))) = (AclKind::of(&req.name), Acl::parse(&req.value)) {
            acl.map_ids(
                |uid| inside(&self.uids, uid).ok_or(FsError::Invalid),
                |gid| inside(&self.gids, gid).ok_or(FsError::Invalid),
            )?;
            req.value = acl.to_bytes();
        }
        Ok(())
    }

    /// Makes the ids that an answer names those of the outside.
    pub fn show(&self, answer: &mut Answer) {
        match answer {
            Answer::Done(reply) => self.show_reply(reply),
            Answer::Noted(noted) => {
                noted.dirs.iter_mut().for_each(|attr| self.show_attr(attr));
                self.show_reply(&mut noted.reply);
            }
            Answer::Granted(granted) => {
                granted.noted.dirs.iter_mut().for_each(|attr| self.show_attr(attr));
                self.show_reply(&mut granted.noted.reply);
            }
            Answer::Failed(_) | Answer::Retry(_) | Answer::Halted | Answer::Refused(_) => {}
        }
    }

    fn show_reply(&self, reply: &mut Reply) {
        match reply {
            Reply::Welcome(welcome) => self.show_attr(&mut welcome.root_attr),
            Reply::Entry(entry) => self.show_entry(entry),
            Reply::Walked(walked) => {
                walked.entries.iter_mut().for_each(|entry| self.show_entry(entry));
            }
            Reply::Attr(attr) => self.show_attr(attr),
            Reply::Created(created) => {
                self.show_entry(&mut created.entry);
                created.opened.iter_mut().for_each(|opened| self.show_attr(&mut opened.attr));
            }
            Reply::Page(page) => {
                self.show_attr(&mut page.attr);
                let entries = page.entries.iter_mut().filter_map(|entry| entry.entry.as_mut());
                entries.for_each(|entry| self.show_entry(entry));
            }
            Reply::Opened(opened) => self.show_attr(&mut opened.attr),
            Reply::Written(written) => self.show_attr(&mut written.attr),
            Reply::BlockMapped(mapped) => self.show_attr(&mut mapped.attr),
            Reply::Share(share) => self.show_attr(&mut share.attr),
            Reply::Xattrs(list) => {
                list.iter_mut().for_each(|(name, value)| self.show_acl(name, value));
            }
            Reply::Guessed(guessed) => {
                let entries = guessed.iter_mut().filter_map(|guess| guess.entry.as_mut());
                entries.for_each(|entry| self.show_entry(entry));
            }
            Reply::Applied(applied) => applied.done.iter_mut().for_each(|done| match done {
                HeldReply::Made(made) => self.show_attr(&mut made.attr),
                HeldReply::Written(written) => self.show_attr(&mut written.attr),
                HeldReply::Attr(attr) => self.show_attr(attr),
            }),
            Reply::Delegated(page) => {
                self.show_attr(&mut page.attr);
                for name in &mut page.names {
                    match &mut name.entry {
                        DelegatedEntry::File(file) => self.show_attr(&mut file.attr),
                        DelegatedEntry::Dir(_) | DelegatedEntry::Link(_) => {}
                    }
                }
            }
            Reply::Accounts(accounts) => {
                accounts.iter_mut().for_each(|told| self.show_account(&mut told.account));
            }
            Reply::Nothing
            | Reply::Ino(_)
            | Reply::SignedBlocks(_)
            | Reply::Data(_)
            | Reply::Statfs(_)
            | Reply::Status(_)
            | Reply::Job(_)
            | Reply::Fsck(_)
            | Reply::Lines(_)
            | Reply::FsckNames(_)
            | Reply::FsckFixes(_)
            | Reply::FsckInos(_)
            | Reply::Mended(_)
            | Reply::FsckQuotas(_)
            | Reply::DumpStarted(_)
            | Reply::Plan(_)
            | Reply::Loads(_)
            | Reply::ShardPage(_)
            | Reply::DumpPage(_)
            | Reply::Lock(_)
            | Reply::Renamed(_)
            | Reply::Offset(_)
            | Reply::Searched(_)
            | Reply::Watched(_)
            | Reply::Load(_)
            | Reply::Slow(_)
            | Reply::Sessions(_)
            | Reply::Opens(_)
            | Reply::Locks(_)
            | Reply::Standing(_)
            | Reply::Keys(_)
            | Reply::Signed(_)
            | Reply::Recalled(_)
            | Reply::Inos(_)
            | Reply::Values(_)
            | Reply::Vote(_)
            | Reply::Outcome(_)
            | Reply::Joined(_)
            | Reply::Lease(_)
            | Reply::Cluster(_)
            | Reply::Challenge(_)
            | Reply::Taken(_)
            | Reply::Layout(_)
            | Reply::Births(_)
            | Reply::Born(_)
            | Reply::Counted(_)
            | Reply::Room(_)
            | Reply::Gave(_)
            | Reply::Over(_) => {}
        }
    }

    fn show_entry(&self, entry: &mut Entry) {
        self.show_attr(&mut entry.attr);
    }

    fn show_attr(&self, attr: &mut Attr) {
        attr.uid = outside(&self.uids, attr.uid).unwrap_or(self.anonymous_uid);
        attr.gid = outside(&self.gids, attr.gid).unwrap_or(self.anonymous_gid);
    }

    fn show_account(&self, number: &mut Ino) {
        let shown = match Account::of(*number) {
            Account::User(uid) => {
                Account::User(outside(&self.uids, uid).unwrap_or(self.anonymous_uid))
            }
            Account::Group(gid) => {
                Account::Group(outside(&self.gids, gid).unwrap_or(self.anonymous_gid))
            }
            directory @ Account::Directory(_) => directory,
        };
        *number = shown.number();
    }

    fn show_acl(&self, name: &[u8], value: &mut Bytes) {
        if let (Some(_), Ok(Some(mut acl))) = (AclKind::of(name), Acl::parse(value)) {
            let shown = acl.map_ids(
                |uid| Ok(outside(&self.uids, uid).unwrap_or(self.anonymous_uid)),
                |gid| Ok(outside(&self.gids, gid).unwrap_or(self.anonymous_gid)),
            );
            shown.expect("every id is shown as one");
            *value = acl.to_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{Cred, EntryName, FileKind, Ino};

    use super::*;
    use crate::{Applied, Apply, DirRef, HeldMade, NodeRef, Readdir, Squash, Unlink, XattrMode};

    /// Users 1000 to 1009 are 5000 to 5009 inside, and 0 is 4000; group 100 is 200.
    fn mapping(squash: Squash) -> IdMapping {
        let range = |outside, inside, count| IdRange { outside, inside, count };
        IdMapping {
            squash,
            anonymous_uid: 99,
            anonymous_gid: 98,
            uids: vec![range(1000, 5000, 10), range(0, 4000, 1)],
            gids: vec![range(100, 200, 1)],
        }
    }

    fn only(squash: Squash) -> IdMapping {
        IdMapping { uids: Vec::new(), gids: Vec::new(), ..mapping(squash) }
    }

    fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred { uid, gid, groups: groups.to_vec() }
    }

    fn acl(users: &[u32], groups: &[u32]) -> Bytes {
        let mut bytes = vec![2, 0, 0, 0];
        let mut entry = |tag: u16, id: u32| {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(7u16.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        };
        entry(1, u32::MAX);
        users.iter().for_each(|id| entry(2, *id));
        entry(4, u32::MAX);
        groups.iter().for_each(|id| entry(8, *id));
        entry(0x10, u32::MAX);
        entry(0x20, u32::MAX);
        bytes.into()
    }

    fn set_acl(value: Bytes) -> Request {
        let name = Bytes::from_static(base::acl::ACCESS);
        let node = NodeRef::Dir(DirRef::ROOT);
        Request::Setxattr(SetXattr { node, name, value, mode: XattrMode::Set })
    }

    fn chown(uid: Option<u32>, gid: Option<u32>) -> Setattr {
        let set = SetAttr { uid, gid, ..SetAttr::default() };
        Setattr { node: NodeRef::Dir(DirRef::ROOT), set }
    }

    #[test]
    fn the_superuser_or_everybody_is_squashed() {
        let (root, all) = (only(Squash::Root), only(Squash::All));
        assert_eq!(root.acting(&user(0, 0, &[0, 5])), user(99, 98, &[98, 5]));
        assert_eq!(root.acting(&user(7, 0, &[])), user(7, 98, &[]));
        assert_eq!(root.acting(&user(7, 8, &[9])), user(7, 8, &[9]));
        assert_eq!(all.acting(&user(7, 8, &[9])), user(99, 98, &[]));
        assert_eq!(only(Squash::Nobody).acting(&user(0, 0, &[])), Cred::ROOT);
    }

    #[test]
    fn an_id_that_no_range_has_is_anonymous() {
        let map = mapping(Squash::Nobody);
        assert_eq!(map.acting(&user(1009, 100, &[101, 100])), user(5009, 200, &[98, 200]));
        assert_eq!(map.acting(&user(1010, 0, &[])), user(99, 98, &[]));
        assert_eq!(map.acting(&user(0, 100, &[])), user(4000, 200, &[]));
    }

    #[test]
    fn the_squashed_superuser_is_neither_the_one_outside_nor_the_one_inside() {
        let mut map = mapping(Squash::Root);
        assert_eq!(map.acting(&user(0, 0, &[])), user(99, 98, &[]));
        map.uids = vec![IdRange { outside: 1000, inside: 0, count: 2 }];
        assert_eq!(map.acting(&user(1000, 100, &[])).uid, 99);
        assert_eq!(map.acting(&user(1001, 100, &[])).uid, 1);
    }

    #[test]
    fn ranges_end_where_ids_do() {
        let range = IdRange { outside: u32::MAX - 1, inside: 10, count: u32::MAX };
        assert_eq!(range.inside(u32::MAX), Some(11));
        assert_eq!(range.outside(12), None);
        let range = IdRange { outside: 10, inside: u32::MAX - 1, count: u32::MAX };
        assert_eq!(range.inside(12), None);
    }

    #[test]
    fn an_owner_is_named_only_by_an_id_that_a_range_has() {
        let map = mapping(Squash::Nobody);
        let mut request = Request::Setattr(chown(Some(1001), Some(100)));
        map.take_in(&mut request).unwrap();
        assert_eq!(request, Request::Setattr(chown(Some(5001), Some(200))));
        for (uid, gid) in [(Some(1), None), (None, Some(1)), (Some(99), None), (Some(5001), None)] {
            let mut request = Request::Setattr(chown(uid, gid));
            assert_eq!(map.take_in(&mut request), Err(FsError::Invalid), "{uid:?} {gid:?}");
        }
    }

    #[test]
    fn acls_are_mapped_both_ways() {
        let map = mapping(Squash::Nobody);
        let mut request = set_acl(acl(&[1000, 0], &[100]));
        map.take_in(&mut request).unwrap();
        assert_eq!(request, set_acl(acl(&[5000, 4000], &[200])));
        for value in [acl(&[1], &[100]), acl(&[1000], &[1])] {
            assert_eq!(map.take_in(&mut set_acl(value)), Err(FsError::Invalid));
        }
        let name = Bytes::from_static(base::acl::ACCESS);
        let shown = |value| {
            let mut answer = Answer::Done(Reply::Xattrs(vec![(name.clone(), value)]));
            map.show(&mut answer);
            answer
        };
        let is = |value| Answer::Done(Reply::Xattrs(vec![(name.clone(), value)]));
        assert_eq!(shown(acl(&[5000, 1], &[200, 1])), is(acl(&[1000, 99], &[100, 98])));
        // The operation says what is wrong with them.
        let bad = Bytes::from_static(b"no acl");
        let mut request = set_acl(bad.clone());
        map.take_in(&mut request).unwrap();
        assert_eq!(request, set_acl(bad.clone()));
        assert_eq!(shown(bad.clone()), is(bad));
    }

    #[test]
    fn each_of_several_changes_is_made_by_the_identity_inside() {
        let change = |cred: Cred, request| HeldChange {
            cred,
            at: base::Time::default(),
            ino: None,
            request,
        };
        let unlink = || Unlink { dir: DirRef::ROOT, name: EntryName::new(b"a").unwrap() };
        let changes = vec![
            change(user(1000, 100, &[]), HeldRequest::Unlink(unlink())),
            change(user(1, 1, &[]), HeldRequest::Setattr(chown(Some(1000), None))),
        ];
        let mut request = Request::Apply(Apply { dir: DirRef::ROOT, changes });
        mapping(Squash::Nobody).take_in(&mut request).unwrap();
        let changes = vec![
            change(user(5000, 200, &[]), HeldRequest::Unlink(unlink())),
            change(user(99, 98, &[]), HeldRequest::Setattr(chown(Some(5000), None))),
        ];
        assert_eq!(request, Request::Apply(Apply { dir: DirRef::ROOT, changes }));
    }

    #[test]
    fn owners_are_shown_by_their_ids_outside_wherever_an_answer_has_one() {
        let attr = |uid, gid| Attr { uid, gid, ..Attr::blank(Ino(9), FileKind::File) };
        let map = mapping(Squash::Nobody);
        for (inside, outside) in [((5003, 200), (1003, 100)), ((1, 1), (99, 98))] {
            let (from, to) = (attr(inside.0, inside.1), attr(outside.0, outside.1));
            let made = |attr| {
                let made = HeldReply::Made(HeldMade { attr, proof: None });
                Reply::Applied(Applied { done: vec![made, HeldReply::Attr(attr)] })
            };
            for reply in [Reply::Attr, made] {
                let mut answer = Answer::Done(reply(from));
                map.show(&mut answer);
                assert_eq!(answer, Answer::Done(reply(to)));
            }
        }
        let mut listing =
            Request::Readdir(Readdir { dir: DirRef::ROOT, after: 0, entries_max: 1, plus: true });
        let before = listing.clone();
        map.take_in(&mut listing).unwrap();
        assert_eq!(listing, before);
    }

    #[test]
    fn where_ids_are_only_squashed_owners_are_shown_as_they_are() {
        let mut answer = Answer::Done(Reply::Attr(Attr::blank(Ino(9), FileKind::File)));
        only(Squash::All).show(&mut answer);
        assert_eq!(answer, Answer::Done(Reply::Attr(Attr::blank(Ino(9), FileKind::File))));
        assert!(!only(Squash::All).maps() && mapping(Squash::Root).maps());
    }
}
