//! Extended attributes.
//!
//! `pando.info` is on every node and never listed: what `pando info` shows, as one JSON object. Its
//! lines can be read one by one as `pando.NAME`, and some of them set: the settings of a directory.
//! `pando.requests` is the same on every node: the requests of the kernel to this mount, by kind.
//! `pando.transport` is the same on every node as well: the way by which those requests come.
//! The kernel checks POSIX ACLs, and asks for them wherever the mode does not settle a check.

use base::{AclKind, Cred};
use bytes::Bytes;
use client::FileSystem;
use fuse::{Errno, NodeId};
use serde::{Serialize, Serializer};
use wire::XattrMode;

use super::Adapter;
use crate::{
    answer::{Answer, Outcome},
    convert::{self, Failed},
    mounted::transport_name,
};

const INFO: &[u8] = b"pando.info";
const REQUESTS: &[u8] = b"pando.requests";
const TRANSPORT: &[u8] = b"pando.transport";
const LINE: &[u8] = b"pando.";
const CAPABILITY: &[u8] = b"security.capability";
const TRUSTED: &[u8] = b"trusted.";

impl<S: FileSystem> Adapter<S> {
    /// GETXATTR. Before a write the kernel asks for the file's capability, unless it knows that the
    /// file has not changed; where we know that too, the file system is not asked. Nor is it where
    /// the attributes that the kernel may believe tell that the file has no such attribute.
    pub(super) async fn getxattr(
        &self,
        cred: &Cred,
        node: NodeId,
        name: &[u8],
        size: u32,
    ) -> Outcome {
        if name == INFO {
            return sized(self.info(node).await?, size);
        }
        if name == REQUESTS {
            return sized(object(self.counts.all()), size);
        }
        if name == TRANSPORT {
            let transport = transport_name(self.transport());
            return sized(Bytes::from_static(transport.as_bytes()), size);
        }
        if let Some(line) = name.strip_prefix(LINE) {
            return sized(self.line(node, line).await?, size);
        }
        let is_acl = AclKind::of(name).is_some();
        if !is_acl && self.nodes.lock().lacks_xattrs(node, self.manners.attr) {
            return Err(Failed(Errno::NODATA));
        }
        let capability = name == CAPABILITY;
        if capability && !self.manners.attr.is_zero() && self.nodes.lock().lacks_capability(node) {
            return Err(Failed(Errno::NODATA));
        }
        // This knowledge is as new as the mode that the kernel checks with it.
        if is_acl && self.nodes.lock().lacks_acl(node) {
            return Err(Failed(Errno::NODATA));
        }
        let (at, ctime) = {
            let nodes = self.nodes.lock();
            (nodes.get(node)?, nodes.ctime(node))
        };
        let all = self.fs.xattrs(cred, &at).await?;
        match all.into_iter().find(|(found, _)| found == name) {
            Some((_, value)) => sized(value, size),
            None => {
                if capability {
                    self.nodes.lock().has_no_capability(node, ctime);
                }
                Err(Failed(Errno::NODATA))
            }
        }
    }

    pub(super) async fn listxattr(&self, cred: &Cred, node: NodeId, size: u32) -> Outcome {
        let has_none = {
            let nodes = self.nodes.lock();
            nodes.lacks_xattrs(node, self.manners.attr) && nodes.lacks_acl(node)
        };
        if has_none {
            return sized(Bytes::new(), size);
        }
        let at = self.nodes.lock().get(node)?;
        let all = self.fs.xattrs(cred, &at).await?;
        let all = all.iter().filter(|(name, _)| cred.is_root() || !name.starts_with(TRUSTED));
        let names = all.flat_map(|(name, _)| name.iter().copied().chain([0]));
        sized(names.collect(), size)
    }

    pub(super) async fn setxattr(
        &self,
        cred: &Cred,
        node: NodeId,
        (name, value): (Bytes, Bytes),
        flags: u32,
        acl_kill_sgid: bool,
    ) -> Outcome {
        let mode = match convert::xattr_mode(flags)? {
            XattrMode::Set if acl_kill_sgid => XattrMode::SetClearSetgid,
            mode => mode,
        };
        let at = self.nodes.lock().get(node)?;
        let acl = AclKind::of(&name).is_some();
        {
            let mut nodes = self.nodes.lock();
            nodes.alters(node);
            nodes.gives_xattr(node);
        }
        let set = self.fs.setxattr(cred, &at, name, value, mode).await;
        self.nodes.lock().alters(node);
        set?;
        if acl {
            self.nodes.lock().may_have_acl(node);
        }
        Ok(Answer::Done)
    }

    pub(super) async fn removexattr(&self, cred: &Cred, node: NodeId, name: Bytes) -> Outcome {
        let at = self.nodes.lock().get(node)?;
        self.nodes.lock().alters(node);
        let removed = self.fs.removexattr(cred, &at, name).await;
        self.nodes.lock().alters(node);
        removed?;
        Ok(Answer::Done)
    }

    /// One line of what `pando info` shows.
    async fn line(&self, node: NodeId, line: &[u8]) -> Result<Bytes, Failed> {
        let at = self.nodes.lock().get(node)?;
        let lines = self.fs.info(&at).await?;
        let found = lines.into_iter().find(|(name, _)| name.as_bytes() == line);
        found.map(|(_, value)| value.into()).ok_or(Failed(Errno::NODATA))
    }

    async fn info(&self, node: NodeId) -> Result<Bytes, Failed> {
        let at = self.nodes.lock().get(node)?;
        Ok(object(self.fs.info(&at).await?))
    }
}

/// A JSON object of these members, in their order, which a map of `serde_json` would not keep.
fn object<K: Serialize, V: Serialize>(members: Vec<(K, V)>) -> Bytes {
    let mut json = Vec::new();
    serde_json::Serializer::new(&mut json)
        .collect_map(members)
        .expect("texts and numbers are written to memory");
    json.into()
}

/// The value, or its size if that is what was asked for.
fn sized(value: Bytes, size: u32) -> Outcome {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => Ok(Answer::Size(len)),
        Ok(len) if len <= size => Ok(Answer::Data(value)),
        Ok(_) | Err(_) => Err(Failed(Errno::RANGE)),
    }
}
