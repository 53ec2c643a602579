//! Mode, owner, ACLs and times of a held directory itself, and what says that there are no ACLs.
//!
//! `fs` calls these. Times wait in the directory's queue. Mode and owner are changed by the server
//! at once.

use std::sync::Arc;

use base::{
    Acl, AclKind, Attr, Cred, SetAttr, SetTime,
    attr::{MODE_SETGID, MODE_SETUID},
};
use wire::NodeRef;

use super::{
    Delegating,
    dir::{HeldDir, Phase, State},
};
use crate::{FileSystem as _, Result};

/// How names of settings begin, among those of extended attributes.
const SETTINGS: &[u8] = b"pando.";

/// The server is being asked to change mode or owner of a held directory.
struct AccessChange {
    held: Arc<HeldDir>,
    number: u64,
    is_made: bool,
}

impl AccessChange {
    /// The server has done it, and says what it knows of the directory. The attributes, if they are
    /// known.
    fn made(mut self, told: &Attr) -> Option<Attr> {
        self.is_made = true;
        let mut state = self.held.state.lock();
        state.learn_access(self.number, told);
        state.is_known.then_some(state.attr)
    }
}

impl Drop for AccessChange {
    fn drop(&mut self) {
        if !self.is_made {
            self.held.state.lock().access_is_unknown();
        }
    }
}

impl Delegating {
    /// The attributes of a held directory whose times were set from here; `None` when the server
    /// must do it. Only times are the directory's alone: who may search it, others know, too.
    pub(super) async fn set_times_here(
        &self,
        held: &Arc<HeldDir>,
        cred: &Cred,
        set: SetAttr,
    ) -> Option<Attr> {
        let SetAttr { atime, mtime, .. } = set;
        let only_times = set == SetAttr { atime, mtime, ..SetAttr::default() };
        if !only_times || (atime.is_none() && mtime.is_none()) {
            return None;
        }
        self.queue_times_of(held, cred, |_| Some(set)).await
    }

    /// Removes an ACL from a directory that has none: that is no error, and sets `ctime` alone.
    /// Whether it could be done from here.
    pub(super) async fn removes_no_acl(&self, held: &Arc<HeldDir>, cred: &Cred) -> bool {
        let set = |state: &State| {
            let mtime = Some(SetTime::At(state.attr.mtime));
            state.is_plain.then_some(SetAttr { mtime, ..SetAttr::default() })
        };
        self.queue_times_of(held, cred, set).await.is_some()
    }

    /// Has times of a held directory wait that `times` makes of what it is then. The attributes with
    /// them; `None` when they cannot wait, or there are none.
    async fn queue_times_of(
        &self,
        held: &Arc<HeldDir>,
        cred: &Cred,
        times: impl FnOnce(&State) -> Option<SetAttr>,
    ) -> Option<Attr> {
        self.wait_for_queue().await;
        let at = self.now_in(held);
        let attr = {
            let mut state = held.state.lock();
            let set = times(&state)?;
            self.queue_times(held, &mut state, (set, cred), at)?;
            state.attr
        };
        self.pump_later(held);
        Some(attr)
    }

    /// Has the server change mode or owner of a held directory at once, if that may be. The
    /// attributes then, if they are known.
    pub(super) async fn set_access(
        &self,
        (held, node): (&Arc<HeldDir>, &NodeRef),
        cred: &Cred,
        set: SetAttr,
    ) -> Option<Result<Option<Attr>>> {
        let change = self.begin_access(held, &set)?;
        let told = self.server().setattr(cred, node, set).await;
        Some(told.map(|told| change.made(&told)))
    }

    /// Begins to change mode or owner of a held directory. The server does it at once, before what
    /// waits in the directory is sent: nothing of that depends on it. `None` where something may, as
    /// files inherit what the set-group-id bit says, and ACLs follow the mode.
    ///
    /// These do not wait for others, as times do: who may search a directory stands with its name,
    /// too, which others may look at without asking for the directory.
    fn begin_access(&self, held: &Arc<HeldDir>, set: &SetAttr) -> Option<AccessChange> {
        let SetAttr { mode, uid, gid, .. } = *set;
        if *set != (SetAttr { mode, uid, gid, ..SetAttr::default() }) {
            return None;
        }
        let mut state = held.state.lock();
        let inherited = state.attr.mode | mode.unwrap_or_default();
        let is_plain = state.is_known && state.is_group_known && state.is_plain;
        if state.phase != Phase::Held || !is_plain || inherited & (MODE_SETGID | MODE_SETUID) != 0 {
            return None;
        }
        let number = state.begin_access();
        Some(AccessChange { held: Arc::clone(held), number, is_made: false })
    }

    /// The attributes of a node that is held and has no extended attributes for certain.
    pub(super) async fn plain_attr(&self, node: &NodeRef) -> Option<Attr> {
        match node {
            NodeRef::File(file) => {
                let (held, at) = self.held_file(file.ino).await?;
                if !self.is_file(&held, &at, |local| local.is_plain) {
                    return None;
                }
                self.look(&held, &at)?.ok().map(|entry| entry.attr)
            }
            NodeRef::Dir(dir) => {
                let held = self.held(dir).await?;
                let state = held.state.lock();
                (state.is_plain && state.is_known).then_some(state.attr)
            }
        }
    }

    /// The mode that an access ACL says, if it says no more than a mode.
    pub(super) fn mode_of_acl(name: &[u8], value: &[u8], shown: &Attr) -> Option<u32> {
        if AclKind::of(name) != Some(AclKind::Access) {
            return None;
        }
        let acl = Acl::parse(value).ok()??;
        (!acl.says_more_than_a_mode()).then(|| acl.in_mode(shown.mode))
    }

    /// Settings of a directory are set as extended attributes, and may divide it, limit all that is
    /// below, or say otherwise what is made there: nothing is held then.
    pub(super) async fn may_be_setting(&self, name: &[u8]) {
        if name.starts_with(SETTINGS) && self.holds_any() {
            self.give_back_everything().await;
        }
    }

    /// A node may have extended attributes from now on. A directory with a default ACL is given
    /// back: what is made there inherits it.
    pub(super) async fn is_not_plain(&self, node: &NodeRef, is_default_acl: bool) {
        match node {
            NodeRef::Dir(dir) => {
                let Some(held) = self.held(dir).await else { return };
                held.state.lock().is_plain = false;
                if is_default_acl {
                    self.give_back(&held).await;
                }
            }
            NodeRef::File(file) => {
                let Some((held, name)) = self.place_of(file.ino) else { return };
                let pos = self.pos(&name);
                if let Some(local) = held.state.lock().file(pos, &name, file.ino) {
                    local.is_plain = false;
                }
            }
        }
    }
}
