//! The requests of a session about the directories that it holds.

use std::time::Duration;

use base::{FsError, SessionId};
use futures::future::{FutureExt as _, LocalBoxFuture};
use tokio::time::timeout;
use wire::{InoRange, Recalled, ReserveInos, Retry, Return};

use super::grant;
use crate::{
    error::{Fault, Result},
    incoming::Incoming,
    record::key,
    server::Shared,
    txn::Txn,
    wait::{AtCore, Wait, WaitApart},
};

/// The longest wait of a session for news, or a tenth of the lease. Each answer also tells the
/// client that the server is there, which its lease needs.
const NEWS_WITHIN: Duration = Duration::from_secs(1);

fn news_within(shared: &Shared) -> Duration {
    NEWS_WITHIN.min(grant::lease(shared) / 10)
}

/// Waits until the session is to give directories back, for a while.
///
/// Cost: no read.
pub(crate) fn recalls(txn: &Txn<'_>) -> Result<Recalled> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?.id;
    let has_waited = txn.has_waited(news_within(txn.shared));
    let (dirs, revoked) = txn.shared.delegations.recalled_from(session, has_waited);
    if dirs.is_empty() && revoked.is_empty() && !has_waited {
        return Err(News { session }.into());
    }
    Ok(Recalled { dirs, revoked, now: txn.now })
}

/// Takes directories back. Everything that the session has done there was answered before.
///
/// Cost: a removal for each.
pub(crate) fn give_back(txn: &mut Txn<'_>, req: &Return) -> Result<()> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?.id;
    for dir in &req.dirs {
        if txn.shared.delegations.given_back(*dir, session) {
            txn.delete(key::delegation(*dir));
        }
    }
    Ok(())
}

/// Gives the session inode numbers for a directory that it holds.
pub(crate) fn reserve_inos(txn: &Txn<'_>, req: &ReserveInos) -> Result<InoRange> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?.id;
    if txn.shared.delegations.holder(req.dir) != Some(session) {
        return Err(Fault::Retry(Retry::NotHeld));
    }
    if req.shard.0 >= txn.shared.config.shards || !txn.has_shard(req.shard) {
        return Err(FsError::Invalid.into());
    }
    grant::draw(txn, req.shard, req.dir, req.count)
}

/// News for a session that it waits for.
#[derive(Debug)]
struct News {
    session: SessionId,
}

impl From<News> for Fault {
    fn from(news: News) -> Fault {
        Fault::Wait(Wait::Apart(Box::new(news)))
    }
}

impl WaitApart for News {
    fn begin(&self, of: &Incoming) {
        of.waits_since();
    }

    fn over<'a>(&'a self, at: AtCore<'a>, of: Option<&'a Incoming>) -> LocalBoxFuture<'a, ()> {
        let held = &at.shared.delegations;
        let since = of.map(Incoming::waits_since);
        async move {
            let within = news_within(at.shared);
            let left = since.map_or(within, |since| within.saturating_sub(since.elapsed()));
            if at.shared.session(self.session).is_none() {
                return;
            }
            let Some(told) = held.news_of(self.session) else { return };
            let news = told.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            // Race: the news may have come since.
            if held.news_of(self.session).is_some() {
                // When the time is over there is nothing to tell.
                let _ = timeout(left, news).await;
            }
        }
        .boxed_local()
    }

    fn is_asked_for(&self) -> bool {
        true
    }

    fn changes_records(&self) -> bool {
        false
    }
}
