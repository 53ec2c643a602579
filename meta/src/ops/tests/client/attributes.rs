//! A client's requests about attributes, extended ones as well.

use base::{Attr, SetAttr};
use bytes::Bytes;
use wire::{FileRef, Getattr, Removexattr, Reply, Request, SetXattr, Setattr, XattrMode};

use super::{Client, Node, Result};

impl Client {
    pub(super) async fn attr(&mut self, request: Request) -> Result<Attr> {
        match self.get(request).await? {
            Reply::Attr(attr) => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn stat(&mut self, node: impl Into<Node>) -> Result<Attr> {
        self.attr(Request::Getattr(Getattr { node: node.into().0 })).await
    }

    pub(crate) async fn setattr(&mut self, node: impl Into<Node>, set: SetAttr) -> Result<Attr> {
        self.attr(Request::Setattr(Setattr { node: node.into().0, set })).await
    }

    pub(crate) async fn chmod(&mut self, node: impl Into<Node>, mode: u32) -> Result<Attr> {
        self.setattr(node, SetAttr { mode: Some(mode), ..SetAttr::default() }).await
    }

    pub(crate) async fn chown(
        &mut self,
        node: impl Into<Node>,
        uid: u32,
        gid: u32,
    ) -> Result<Attr> {
        let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        self.setattr(node, set).await
    }

    pub(crate) async fn truncate(&mut self, file: &FileRef, size: u64) -> Result<Attr> {
        self.setattr(file, SetAttr { size: Some(size), ..SetAttr::default() }).await
    }

    pub(crate) async fn set_xattr(
        &mut self,
        node: impl Into<Node>,
        text: &str,
        value: &[u8],
    ) -> Result<()> {
        let (name, value) =
            (Bytes::copy_from_slice(text.as_bytes()), Bytes::copy_from_slice(value));
        let set = SetXattr { node: node.into().0, name, value, mode: XattrMode::Set };
        self.get(Request::Setxattr(set)).await.map(drop)
    }

    /// The lines that `pando info` prints.
    pub(crate) async fn info(&mut self, node: impl Into<Node>) -> Vec<(String, String)> {
        match self.get(Request::Info(wire::Info { node: node.into().0 })).await.unwrap() {
            Reply::Lines(lines) => lines,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn remove_xattr(&mut self, node: impl Into<Node>, text: &str) -> Result<()> {
        let name = Bytes::copy_from_slice(text.as_bytes());
        self.get(Request::Removexattr(Removexattr { node: node.into().0, name })).await.map(drop)
    }

    pub(crate) async fn xattrs(&mut self, node: impl Into<Node>) -> Vec<(Bytes, Bytes)> {
        match self.get(Request::Xattrs(Getattr { node: node.into().0 })).await.unwrap() {
            Reply::Xattrs(list) => list,
            other => panic!("{other:?}"),
        }
    }
}
