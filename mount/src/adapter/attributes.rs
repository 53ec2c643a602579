//! Attributes of files, directories and the file system.

use std::{sync::atomic::Ordering, time::Duration};

use base::{Cred, FsError};
use client::FileSystem;
use fuse::{Errno, NodeId};
use tokio::time::{Instant, timeout};

use super::{Adapter, Space};
use crate::{
    answer::{Answer, Outcome, Told},
    convert::{self, Failed},
};

/// STATFS does not wait longer for the quota of the root.
const INFO_TAKES_MAX: Duration = Duration::from_millis(500);

impl<S: FileSystem> Adapter<S> {
    pub(super) async fn getattr(&self, cred: &Cred, node: NodeId) -> Outcome {
        self.attr(cred, node).await.map(Answer::Attr)
    }

    pub(super) async fn statx(&self, cred: &Cred, node: NodeId) -> Outcome {
        self.attr(cred, node).await.map(Answer::Statx)
    }

    /// Attributes of a node; where it has gone through this mount, those that it had
    /// last. Of a directory in which a name was just changed through this mount, those that the
    /// change left.
    ///
    /// POSIX: a process that works in a removed directory, or holds a removed file, may stat it.
    async fn attr(&self, cred: &Cred, node: NodeId) -> Result<Told, Failed> {
        let (since, left) = {
            let mut nodes = self.nodes.lock();
            (nodes.changes(node), nodes.take_left(node, self.manners.attr))
        };
        let told = |(attr, age)| Told { node, attr, age, since };
        if let Some(left) = left {
            return Ok(told(left));
        }
        let at = self.nodes.lock().get(node)?;
        let attr = match self.fs.getattr(cred, &at).await {
            Ok(attr) => attr,
            Err(client::Error::Fs(FsError::Stale)) => {
                self.nodes.lock().epitaph(node).ok_or(Failed(Errno::STALE))?
            }
            Err(error) => return Err(error.into()),
        };
        Ok(told((attr, Duration::ZERO)))
    }

    /// SETATTR. The kernel has applied the rules of chmod and chown; it says when set-id bits must
    /// go.
    pub(super) async fn setattr(&self, cred: &Cred, node: NodeId, set: &fuse::SetAttr) -> Outcome {
        let at = self.nodes.lock().get(node)?;
        self.nodes.lock().alters(node);
        let since = self.nodes.lock().changes(node);
        let set = self.fs.setattr(cred, &at, convert::set_attr(set)).await;
        self.nodes.lock().alters(node);
        Ok(Answer::Attr(Told { node, attr: set?, age: Duration::ZERO, since }))
    }

    /// READLINK. The name by which we know the link may be gone while it has others: ESTALE makes
    /// the kernel look up the one that it came by.
    pub(super) async fn readlink(&self, cred: &Cred, node: NodeId) -> Outcome {
        let file = self.nodes.lock().file(node)?;
        match self.fs.readlink(cred, &file).await {
            Ok(target) => Ok(Answer::Data(target)),
            Err(client::Error::Fs(FsError::NotFound)) => Err(Failed(Errno::STALE)),
            Err(error) => Err(error.into()),
        }
    }

    /// STATFS. Where a directory with a quota is mounted, its quota is the size of the file system.
    /// While a server that knows the quota is silent or refuses, the last known quota is used: a
    /// caller such as the `df` of an agent, which may do nothing else here, gets an answer.
    ///
    /// Programs ask again and again (`find` does in each directory): an answer holds for as long as
    /// attributes do, and a second at most, until something is changed or sent through this mount.
    pub(super) async fn statfs(&self) -> Outcome {
        let (asked, own) = (
            Instant::now(),
            (self.changes.load(Ordering::Acquire), self.sends.load(Ordering::Acquire)),
        );
        let known = self.space.lock().filter(|known| known.own == own);
        let age_max = self.manners.attr.min(Duration::from_secs(1));
        if let Some(known) = known.filter(|known| known.asked.elapsed() < age_max) {
            return Ok(Answer::StatFs(known.told));
        }
        let mut statfs = self.fs.statfs().await?;
        let root = self.nodes.lock().get(NodeId::ROOT)?;
        if let Ok(Ok(lines)) = timeout(INFO_TAKES_MAX, self.fs.info(&root)).await {
            *self.root_info.lock() = lines;
        }
        convert::limit_statfs(&mut statfs, &self.root_info.lock());
        let told = convert::statfs(&statfs);
        *self.space.lock() = Some(Space { told, asked, own });
        Ok(Answer::StatFs(told))
    }
}
