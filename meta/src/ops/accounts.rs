//! `accounts`: lists what users, groups and directories use here, and their limits.
//!
//! An administrator is told of all. Anybody else is told of the user and the groups for whom the
//! request is made: who may act for anybody, may ask of anybody. Below a directory who may act for
//! anybody is told of nobody.
//!
//! Cost: reads the engine for the paths of directories alone, on the coordinator.

use base::{Account, DirId};
use wire::{AccountLimits, AccountUse, Accounts};

use super::info;
use crate::{
    error::{Fault, Result},
    quota::Seen,
    record::{Content, QuotaId, QuotaRecord, QuotaState},
    txn::{Dir, Txn},
};

/// Most accounts in one answer.
const PAGE: usize = 1000;

pub(crate) fn list(txn: &Txn<'_>, req: Accounts) -> Result<Vec<AccountUse>> {
    let Some(session) = txn.caller.session else { return Ok(Vec::new()) };
    let all = session.administers();
    // Below a directory a session may act for anybody, and is told of nobody, unless it is bound to
    // a user: sums are of the whole file system.
    let bound = session.token().is_some_and(|token| token.uid.is_some());
    if txn.caller.standing.within.is_some() && !bound {
        return Ok(Vec::new());
    }
    // All that others may see is on the first page, and the ids that they know may be others.
    if !all && req.after.0 > 0 {
        return Ok(Vec::new());
    }
    let cred = txn.caller.cred;
    let may_see = |id: QuotaId| match id.account() {
        _ if all => true,
        Account::User(uid) => uid == cred.uid,
        Account::Group(gid) => cred.in_group(gid),
        Account::Directory(_) => false,
    };
    let page = txn.shared.quotas.page(QuotaId(req.after), PAGE, may_see);
    page.into_iter().map(|(id, seen)| told(txn, id, seen)).collect()
}

fn told(txn: &Txn<'_>, id: QuotaId, Seen { record, total }: Seen) -> Result<AccountUse> {
    let limits = (record.state != QuotaState::Gone).then(|| AccountLimits {
        bytes_max: record.bytes_max,
        entries_max: record.entries_max,
        hold: record.state == QuotaState::Active,
    });
    let here = txn.shared.cluster.as_ref().is_none_or(|cluster| cluster.coordinates());
    let path = match id.account() {
        Account::Directory(_) if here && limits.is_some() => match path(txn, id, &record) {
            // Sums are told wherever the directory is.
            Err(Fault::Answer(_)) => String::new(),
            path => path?,
        },
        Account::Directory(_) | Account::User(_) | Account::Group(_) => String::new(),
    };
    Ok(AccountUse { account: id.0, used: total.into(), limits, path })
}

/// The path of an accounting root; empty when it is gone.
fn path(txn: &Txn<'_>, id: QuotaId, record: &QuotaRecord) -> Result<String> {
    if record.dir == DirId::ROOT {
        return Ok("/".to_owned());
    }
    match txn.get::<Content>(&txn.content_key(record.home, record.dir))? {
        Some(content) if content.ino == id.0 => info::path(txn, &Dir::master(record.dir, content)),
        Some(_) | None => Ok(String::new()),
    }
}
