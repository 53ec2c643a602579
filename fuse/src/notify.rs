//! Messages to the kernel that answer nothing: drop or fill what it has cached.
//!
//! The kernel may take the lock of a directory or wait for a page to handle one, and a process that
//! holds either may be waiting for an answer of ours. So a notification must never be sent from the
//! thread that answers requests: [`Notifier::send_all`] uses a thread of tokio's blocking pool, and
//! [`Notifier::send`] is for callers that have a thread of their own.

use std::sync::Arc;

use bytes::Bytes;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::{abi, channel::Channel, types::NodeId};

/// One notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Drop the node's attributes and its pages in this range: `len` 0 means to the end, a negative
    /// `offset` means attributes only.
    InvalInode {
        /// The node.
        node: NodeId,
        /// First byte of the range.
        offset: i64,
        /// Length of the range.
        len: i64,
    },
    /// Drop a name, or with `expire_only` (`HAS_EXPIRE_ONLY`) look it up again at its next use.
    InvalEntry {
        /// The directory.
        parent: NodeId,
        /// The name in it.
        name: Bytes,
        /// Expire rather than drop; files below stay open and mounts stay.
        expire_only: bool,
    },
    /// A name is gone, if it is still this child's; watchers are told.
    Delete {
        /// The directory.
        parent: NodeId,
        /// The node that had the name.
        child: NodeId,
        /// The name.
        name: Bytes,
    },
    /// Put contents into the page cache.
    Store {
        /// The node.
        node: NodeId,
        /// First byte.
        offset: u64,
        /// The contents.
        data: Bytes,
    },
    /// Processes that poll this open file should look again.
    PollWakeup {
        /// `kh` of the POLL request.
        kh: u64,
    },
    /// Every cached name is to be looked up again (7.44).
    IncEpoch,
}

/// Sends notifications on one connection; cheap to clone, usable from any thread.
#[derive(Clone, Debug)]
pub struct Notifier {
    channel: Arc<Channel>,
}

impl Notifier {
    pub(crate) fn new(channel: Arc<Channel>) -> Self {
        Notifier { channel }
    }

    /// Sends one, which may block until requests under way are answered: see the module's rule.
    ///
    /// # Errors
    /// The kernel's refusal. That it has nothing cached (ENOENT) is none, nor that it is gone.
    pub fn send(&self, notice: &Notice) -> Result<(), Errno> {
        match send(&self.channel, notice) {
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Sends them in order from a thread of tokio's blocking pool, and returns when the kernel has
    /// taken them all.
    ///
    /// # Errors
    /// The first refusal; those after it were sent all the same.
    pub async fn send_all(&self, notices: Vec<Notice>) -> Result<(), Errno> {
        let this = self.clone();
        let sent = tokio::task::spawn_blocking(move || {
            let mut first = Ok(());
            for notice in &notices {
                first = first.and(this.send(notice));
            }
            first
        });
        sent.await.unwrap_or(Err(Errno::CANCELED))
    }
}

fn send(channel: &Channel, notice: &Notice) -> Result<(), Errno> {
    let len = |bytes: &Bytes| u32::try_from(bytes.len()).map_err(|_| Errno::TOOBIG);
    match notice {
        Notice::InvalInode { node, offset, len } => {
            let out = abi::NotifyInvalInodeOut { ino: node.0, off: *offset, len: *len };
            channel.write(0, abi::NOTIFY_INVAL_INODE, &[out.as_bytes()])
        }
        Notice::InvalEntry { parent, name, expire_only } => {
            let flags = if *expire_only { abi::EXPIRE_ONLY } else { 0 };
            let out = abi::NotifyInvalEntryOut { parent: parent.0, namelen: len(name)?, flags };
            channel.write(0, abi::NOTIFY_INVAL_ENTRY, &[out.as_bytes(), name, &[0]])
        }
        Notice::Delete { parent, child, name } => {
            let namelen = len(name)?;
            let (parent, child) = (parent.0, child.0);
            let out = abi::NotifyDeleteOut { parent, child, namelen, padding: 0 };
            channel.write(0, abi::NOTIFY_DELETE, &[out.as_bytes(), name, &[0]])
        }
        Notice::Store { node, offset, data } => {
            let size = len(data)?;
            let out = abi::NotifyStoreOut { nodeid: node.0, offset: *offset, size, padding: 0 };
            channel.write(0, abi::NOTIFY_STORE, &[out.as_bytes(), data])
        }
        Notice::PollWakeup { kh } => {
            let out = abi::NotifyPollWakeupOut { kh: *kh };
            channel.write(0, abi::NOTIFY_POLL, &[out.as_bytes()])
        }
        Notice::IncEpoch => channel.write(0, abi::NOTIFY_INC_EPOCH, &[]),
    }
}
