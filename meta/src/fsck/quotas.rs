//! Quotas: the charges of each compared with the records below it. With several servers the client
//! that asked for the check compares the sums of all.

use std::collections::BTreeMap;

use base::DirId;
use wire::QuotaOf;

use super::{fix::Fix, sweep::Sweep};
use crate::record::{
    Accounts, Content, Inode, QuotaId, QuotaRecord, Usage,
    key::{self, UsagePart},
};

/// Findings about all accounting roots.
#[derive(Default)]
pub(super) struct AccountSums {
    all: BTreeMap<QuotaId, Account>,
    /// Whether a counting walk is in progress: records below may be charged to either root.
    pub(super) moving: bool,
    /// Whether some directory is an accounting root.
    any_root: bool,
}

#[derive(Default)]
struct Account {
    record: Option<QuotaRecord>,
    /// Charges as stored by the cores.
    charged: Usage,
    /// Whether some charges could not be read.
    damaged: bool,
    /// Charges according to the records.
    found: Usage,
}

impl AccountSums {
    /// Roots with charges, stored or found.
    pub(super) fn told(&self) -> Vec<QuotaOf> {
        let both = |usage: Usage| (usage.entries, usage.bytes);
        let told = |(id, account): (&QuotaId, &Account)| QuotaOf {
            root: id.0,
            charged: both(account.charged),
            found: both(account.found),
        };
        self.all.iter().map(told).collect()
    }
}

impl Sweep<'_> {
    /// Reads an accounting root, or a core's charges to it. Called before everything else.
    pub(super) fn quota(&mut self, key: &[u8], value: &[u8]) {
        // A key that is none is found with all others.
        let Some((id, part)) = key::parse_usage(key) else { return };
        let what = || format!("the quota of {}", id.account());
        self.accounts.any_root |= !id.is_owners();
        match part {
            UsagePart::Root => {
                let record = self.decode::<QuotaRecord>(value, what);
                self.accounts.moving |= record.is_some_and(|record| record.state.is_moving());
                self.accounts.all.entry(id).or_default().record = record;
            }
            UsagePart::Core(_) => {
                let usage = self.decode::<Usage>(value, what);
                let account = self.accounts.all.entry(id).or_default();
                account.damaged |= usage.is_none();
                account.charged = account.charged.plus(usage.unwrap_or_default());
            }
        }
    }

    /// Counts a directory, which must be charged like its parent unless it is a root itself.
    pub(super) fn charged_dir(&mut self, content: &Content, what: &dyn Fn(&Self) -> String) {
        self.found_charged(content.accounts(), Usage::of(1, 0));
        self.charged_to_nothing(content.quota, content.ino);
        // With several servers only the coordinator knows which roots are being counted.
        if !self.accounts.any_root || self.accounts.moving || self.is_one_of_several() {
            return;
        }
        if content.quota == QuotaId(content.ino) || content.name.is_none() {
            return;
        }
        let key = self.content_key(content.parent_home, content.parent);
        let parent: Option<Content> = self.get(&key, || what(self));
        // A directory that has lost its place stays charged to its quota.
        let is_lost = |parent: &Content| {
            let name = parent.name.as_ref().map(|name| name.as_bytes());
            parent.parent == DirId::ROOT && name == Some(b"lost+found".as_slice())
        };
        if parent
            .filter(|parent| !is_lost(parent))
            .is_some_and(|parent| parent.quota != content.quota)
        {
            self.find(format!("{} is charged to another quota than its directory", what(self)));
        }
    }

    /// Counts an inode.
    pub(super) fn charged_inode(&mut self, inode: &Inode) {
        self.found_charged(inode.accounts(), inode.usage());
        self.charged_to_nothing(inode.quota, inode.ino);
    }

    /// Checks that the quota exists. All quotas were read before.
    fn charged_to_nothing(&self, id: QuotaId, ino: base::Ino) {
        if self.is_one_of_several() {
            return;
        }
        let known = self.accounts.all.get(&id).is_some_and(|account| account.record.is_some());
        if id != QuotaId::NONE && !known {
            let quota = format!("the quota of {} is not there", id.account());
            self.find(format!("{quota}, but inode {ino} is charged to it"));
        }
    }

    /// Checks that a file of one name is charged like its directory.
    pub(super) fn charged_entry(
        &self,
        inode: &Inode,
        dir: Option<QuotaId>,
        what: &dyn Fn(&Self) -> String,
    ) {
        let other = dir.is_some_and(|dir| dir != inode.quota);
        if other && !self.accounts.moving && !self.is_one_of_several() {
            self.find(format!("{} is charged to another quota than its directory", what(self)));
        }
    }

    fn found_charged(&mut self, accounts: Accounts, usage: Usage) {
        for id in accounts.ids() {
            let account = self.accounts.all.entry(id).or_default();
            account.found = account.found.plus(usage);
        }
    }

    /// Checks that the stored charges of every quota agree with the records.
    pub(super) fn count_quotas(&mut self) {
        if self.is_one_of_several() {
            return;
        }
        for (id, account) in &self.accounts.all {
            let Account { record, charged, found, damaged } = account;
            if record.is_none() && !id.is_owners() {
                let line = format!("the quota of {} is not there", id.account());
                self.find_to_fix(line, Fix::Forget(*id));
            } else if charged != found {
                let line = format!(
                    "the quota of {} counts {} entries and {} bytes, but has {} and {}",
                    id.account(),
                    charged.entries,
                    charged.bytes,
                    found.entries,
                    found.bytes
                );
                if *damaged {
                    // The quota is counted again when its charges can be read.
                    self.report.find(line);
                } else {
                    self.find_to_fix(line, Fix::Usage(*id, found.plus(charged.minus())));
                }
            }
        }
    }
}
