//! One file of a held directory: its attributes, and what of them is not sent. Pure values.

use base::{
    Attr, Cred, EntryName, FileKind, SetAttr, SetTime, Time,
    attr::{MODE_BITS, without_set_id},
};
use bytes::Bytes;

/// A file of a held directory.
#[derive(Debug, Clone)]
pub(super) struct Local {
    /// Attributes as the server has them, or will have them when the file is made.
    pub(super) attr: Attr,
    /// Whether `attr` is what the server has. Otherwise it is asked.
    pub(super) is_known: bool,
    /// How to make the file, which the server does not have yet.
    pub(super) make: Option<Make>,
    /// Whether the server may have the file: it has, or was asked to make it.
    pub(super) is_begun: bool,
    /// A change that is not sent.
    pub(super) pending: Option<Change>,
    /// A change that is being sent.
    pub(super) sending: Option<Change>,
    /// A second name here that is not sent, and when the file was given it.
    pub(super) twin: Option<(EntryName, Time)>,
    /// When the file was read, and by whom, if that is not sent.
    pub(super) read: Option<Read>,
    /// Whether the file has no extended attributes for certain.
    pub(super) is_plain: bool,
    /// Target of a symbolic link.
    pub(super) target: Option<Bytes>,
}

/// How to make a file.
#[derive(Debug, Clone)]
pub(super) struct Make {
    pub(super) mode: u32,
    pub(super) cred: Cred,
    pub(super) at: Time,
}

/// When a file was read, and by whom.
pub(super) type Read = (Time, Cred);

/// A change of attributes, with times that are spelt out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) set: SetAttr,
    pub(super) cred: Cred,
    pub(super) at: Time,
}

impl Local {
    /// A file that the server has.
    pub(super) fn of_server(attr: Attr, target: Option<Bytes>) -> Local {
        Local {
            attr,
            is_known: true,
            make: None,
            is_begun: true,
            pending: None,
            sending: None,
            twin: None,
            read: None,
            is_plain: false,
            target,
        }
    }

    /// A file that is not made yet.
    pub(super) fn new(attr: Attr, make: Make) -> Local {
        Local { make: Some(make), is_begun: false, is_plain: true, ..Local::of_server(attr, None) }
    }

    /// Whether anything but contents waits to be sent, or is being sent.
    pub(super) fn is_unsent(&self) -> bool {
        let changes = self.pending.is_some() || self.sending.is_some();
        self.make.is_some() || changes || self.read.is_some()
    }

    /// The attributes with all changes, on top of these, which have what was written.
    pub(super) fn shown(&self, mut attr: Attr) -> Attr {
        for change in self.sending.iter().chain(&self.pending) {
            change.apply(&mut attr);
        }
        if let Some((at, _)) = &self.read {
            attr.atime = attr.atime.max(*at);
        }
        if let Some((_, at)) = &self.twin {
            (attr.nlink, attr.ctime) = (attr.nlink + 1, attr.ctime.max(*at));
        }
        attr
    }

    /// The file has lost the name under which it was to be made, and has another one. `shown` are
    /// the attributes before. Names change no time but `ctime`.
    pub(super) fn moves(&mut self, at: Time, shown: &Attr) {
        let set = SetAttr {
            atime: Some(SetTime::At(shown.atime)),
            mtime: Some(SetTime::At(shown.mtime)),
            ..SetAttr::default()
        };
        let maker = self.make.as_ref().map(|make| &make.cred);
        let cred = self.pending.as_ref().map(|pending| &pending.cred).or(maker);
        if let Some(cred) = cred.cloned() {
            self.twin = None;
            self.change(set, &cred, at.max(shown.ctime), shown);
        }
    }

    /// Takes in that `cred` has read the file.
    pub(super) fn was_read(&mut self, at: Time, cred: &Cred) {
        self.attr.atime = self.attr.atime.max(at);
        self.read = Some((at, cred.clone()));
    }

    /// Whether a change may wait: of mode, owner and times of a file without an ACL.
    pub(super) fn may_wait(&self, set: &SetAttr, cred: &Cred) -> bool {
        let same_caller = self.pending.as_ref().is_none_or(|pending| pending.cred == *cred);
        self.is_known
            && self.is_plain
            && self.attr.kind == FileKind::File
            && set.size.is_none()
            && !set.access_only
            && same_caller
    }

    /// Takes in a change that may wait; `shown` are the attributes before.
    pub(super) fn change(&mut self, set: SetAttr, cred: &Cred, at: Time, shown: &Attr) {
        let change = Change::new(set, cred, at, shown);
        if change.set.atime.is_some() {
            // The time of the read is not the file's any more.
            self.read = None;
        }
        self.pending = Some(match self.pending.take() {
            Some(before) => before.then(change),
            None => change,
        });
    }

    /// The change that was being sent was not made: it waits again, before what came since.
    pub(super) fn take_back(&mut self) {
        if let Some(sent) = self.sending.take() {
            self.pending = Some(match self.pending.take() {
                Some(later) => sent.then(later),
                None => sent,
            });
        }
    }
}

impl Change {
    /// A change that `cred` makes at `at`, of a node with the attributes `shown`.
    pub(super) fn new(set: SetAttr, cred: &Cred, at: Time, shown: &Attr) -> Change {
        Change { set: spelt_out(set, at, shown), cred: cred.clone(), at }
    }

    /// This change and then a later one, as one.
    pub(super) fn then(self, later: Change) -> Change {
        let (before, set) = (self.set, later.set);
        let set = SetAttr {
            mode: set.mode.or(before.mode),
            uid: set.uid.or(before.uid),
            gid: set.gid.or(before.gid),
            atime: set.atime.or(before.atime),
            mtime: set.mtime.or(before.mtime),
            ..SetAttr::default()
        };
        Change { set, cred: later.cred, at: self.at.max(later.at) }
    }

    pub(super) fn apply(&self, attr: &mut Attr) {
        let SetAttr { mode, uid, gid, atime, mtime, .. } = self.set;
        if let Some(mode) = mode {
            attr.mode = attr.mode & !MODE_BITS | mode & MODE_BITS;
        }
        attr.uid = uid.unwrap_or(attr.uid);
        attr.gid = gid.unwrap_or(attr.gid);
        for (time, set) in [(&mut attr.atime, atime), (&mut attr.mtime, mtime)] {
            if let Some(SetTime::At(at)) = set {
                *time = at;
            }
        }
        attr.ctime = attr.ctime.max(self.at);
    }
}

/// The change with times in place of "now", and with the mode that it leads to, so that it means
/// the same together with others, and later.
fn spelt_out(set: SetAttr, at: Time, shown: &Attr) -> SetAttr {
    let time = |time: Option<SetTime>| match time {
        Some(SetTime::Now) => Some(SetTime::At(at)),
        given => given,
    };
    let changes_owner = set.uid.is_some() || set.gid.is_some();
    let mut mode = set.mode.map(|mode| mode & MODE_BITS);
    if set.clear_set_id || (changes_owner && mode.is_none()) {
        let before = mode.unwrap_or(shown.mode & MODE_BITS);
        let after = without_set_id(before);
        if after != before || mode.is_some() {
            mode = Some(after);
        }
    }
    SetAttr { mode, atime: time(set.atime), mtime: time(set.mtime), clear_set_id: false, ..set }
}

#[cfg(test)]
mod tests {
    use base::Ino;

    use super::*;

    fn time(sec: i64) -> Time {
        Time { sec, nsec: 0 }
    }

    fn local() -> Local {
        let attr = Attr { mode: 0o6755, ..Attr::blank(Ino(9), FileKind::File) };
        let make = Make { mode: 0o6755, cred: Cred::ROOT, at: time(1) };
        Local::new(attr, make)
    }

    fn after(local: &mut Local, set: SetAttr, at: i64) -> Attr {
        let shown = local.shown(local.attr);
        local.change(set, &Cred::ROOT, time(at), &shown);
        local.shown(local.attr)
    }

    #[test]
    fn changes_add_up_to_one_that_means_the_same() {
        let mut file = local();
        let owner = SetAttr { uid: Some(5), ..SetAttr::default() };
        let attr = after(&mut file, owner, 2);
        assert_eq!((attr.mode, attr.uid, attr.ctime), (0o755, 5, time(2)));
        let mode = SetAttr { mode: Some(0o4711), ..SetAttr::default() };
        assert_eq!(after(&mut file, mode, 3).mode, 0o4711);
        let times = SetAttr {
            mtime: Some(SetTime::At(time(-7))),
            atime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        let attr = after(&mut file, times, 4);
        assert_eq!((attr.mtime, attr.atime, attr.ctime), (time(-7), time(4), time(4)));
        let sent = file.pending.unwrap().set;
        assert_eq!((sent.mode, sent.uid, sent.gid), (Some(0o4711), Some(5), None));
        assert_eq!(
            (sent.mtime, sent.atime),
            (Some(SetTime::At(time(-7))), Some(SetTime::At(time(4))))
        );
    }

    #[test]
    fn an_owner_alone_says_nothing_of_a_mode_without_set_id_bits() {
        let mut file = local();
        file.attr.mode = 0o644;
        let attr = after(&mut file, SetAttr { gid: Some(6), ..SetAttr::default() }, 2);
        assert_eq!((attr.mode, attr.gid), (0o644, 6));
        assert_eq!(file.pending.as_ref().unwrap().set.mode, None);
        let cleared = SetAttr { clear_set_id: true, mode: Some(0o6711), ..SetAttr::default() };
        assert_eq!(after(&mut file, cleared, 3).mode, 0o711);
    }

    #[test]
    fn a_size_an_access_or_another_caller_does_not_wait() {
        let mut file = local();
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        assert!(file.may_wait(&set, &Cred::ROOT));
        let sized = SetAttr { size: Some(1), ..SetAttr::default() };
        let read = SetAttr { access_only: true, ..SetAttr::default() };
        assert!(!file.may_wait(&sized, &Cred::ROOT) && !file.may_wait(&read, &Cred::ROOT));
        after(&mut file, set, 2);
        let other = Cred { uid: 7, gid: 7, groups: Vec::new() };
        assert!(!file.may_wait(&set, &other));
    }
}
