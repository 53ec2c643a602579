//! Attributes by handle, of a directory of several partitions as well.
//!
//! Each partition counts its own entries and keeps the times of its own changes, so all are asked
//! at once: twice at least, until two rounds in a row say the same, so that all of it was so at one
//! moment in between. While others make and remove entries all the time it may never be; then what
//! was heard last is as good as anything.

use base::{Attr, Backoff, Cred};
use futures::future::join_all;
use tokio::time::sleep;
use wire::{DirRef, Getattr, NodeRef, Reply, Request, ShareStat, Stand};

use crate::{
    call::{BUSY_PAUSE_FIRST, BUSY_PAUSE_MAX},
    core::Core,
    divided::shares::{Shares, total},
    done::Failure,
    error::unexpected,
    route::Route,
};

/// How often all partitions are asked at most.
const ROUNDS_MAX: u32 = 5;

impl Core {
    /// The attributes of a node, and the version of the servers' invalidation list that came with
    /// them.
    pub(crate) async fn attributes_of(
        &self,
        cred: &Cred,
        node: &NodeRef,
        stand: &Stand,
    ) -> Result<(Attr, u64), Failure> {
        if let NodeRef::Dir(dir) = node
            && let Some(layout) = self.layouts.get(dir)
        {
            return Box::pin(self.attributes_of_all(cred, dir, Shares::new(layout), stand)).await;
        }
        let request = Request::Getattr(Getattr { node: node.clone() });
        let done = self.call(cred, node.home(), request, stand.clone()).await?;
        match (done.reply, node) {
            (Reply::Attr(attr), _) => Ok((attr, done.version)),
            (Reply::Share(share), NodeRef::Dir(dir)) => {
                let mut shares = Shares::new(share.layout.clone());
                shares.take(0, share);
                Box::pin(self.attributes_of_all(cred, dir, shares, stand)).await
            }
            _ => Err(unexpected().into()),
        }
    }

    /// The attributes of a directory of which `shares` knows how it may be divided.
    async fn attributes_of_all(
        &self,
        cred: &Cred,
        dir: &DirRef,
        mut shares: Shares,
        stand: &Stand,
    ) -> Result<(Attr, u64), Failure> {
        let (mut before, mut version, mut rounds) = (None, u64::MAX, 0);
        let mut pauses = Backoff::new(BUSY_PAUSE_FIRST, BUSY_PAUSE_MAX);
        loop {
            if let Some(parts) = shares.complete() {
                self.layouts.learn(dir, Some(shares.layout()));
                rounds += 1;
                let same = before.as_ref() == Some(&parts);
                if same || rounds >= ROUNDS_MAX {
                    let attr = total(&parts).ok_or_else(unexpected)?;
                    return Ok((attr, version));
                }
                before = Some(parts);
            }
            if shares.must_wait() {
                sleep(pauses.draw(self.config.random.as_ref())).await;
            }
            let wants = shares.wants();
            let asked = wants.iter().map(|partition| self.share(cred, dir, *partition, stand));
            for (partition, answer) in wants.iter().zip(join_all(asked).await) {
                match answer {
                    Ok((Share::Part(share), at)) => {
                        version = version.min(at);
                        shares.take(*partition, share);
                    }
                    Ok((Share::All(attr), at)) => {
                        self.layouts.learn(dir, None);
                        return Ok((attr, version.min(at)));
                    }
                    Err(Failure::StaleLayout(news)) => shares.correct(*partition, &news),
                    Err(failure) => return Err(failure),
                }
            }
        }
    }

    async fn share(
        &self,
        cred: &Cred,
        dir: &DirRef,
        partition: u16,
        stand: &Stand,
    ) -> Result<(Share, u64), Failure> {
        let request = Request::Getattr(Getattr { node: NodeRef::Dir(*dir) });
        let route = Route::Partition(dir.home, partition);
        let done = self.call(cred, route, request, stand.clone()).await?;
        match done.reply {
            Reply::Share(share) => Ok((Share::Part(share), done.version)),
            Reply::Attr(attr) => Ok((Share::All(attr), done.version)),
            _ => Err(unexpected().into()),
        }
    }
}

/// Answer of one partition.
enum Share {
    /// The partition is one of several.
    Part(ShareStat),
    /// The partition is the only one.
    All(Attr),
}
