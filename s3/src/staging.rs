//! Files that are being written, under names of their own in the bucket's staging directory.
//!
//! A staged file that is dropped before it was renamed is removed. What a crash leaves behind,
//! `clean` removes later.

use std::time::Duration;

use base::{Attr, EntryName, FileKind, FsError, SetAttr, acl, attr::MODE_ACL};
use client::{Error, Handle};
use futures::{
    StreamExt as _,
    future::{try_join, try_join_all},
};
use http::HeaderMap;
use s3s::{
    S3Error, S3ErrorCode, S3Result, TrailingHeaders,
    checksum::ChecksumHasher,
    crypto::{Checksum as _, Md5},
    dto::{Checksum, ChecksumAlgorithm, StreamingBlob},
};
use wire::{DirRef, Entry, FileRef, NodeRef, RenameMode};

use crate::{
    error::{invalid, of, of_object},
    fs::Fs,
    gateway::Used,
    metadata::{self, COMPLETED, ETAG, HEADERS, TAGS, hex},
    tree::Place,
};

/// Time for which a body may say nothing.
const BODY_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Permission bits of new objects.
const NEW_MODE: u32 = 0o644;

/// A file that is not under its final name yet.
pub(crate) struct Staged {
    fs: Fs,
    dir: DirRef,
    name: EntryName,
    file: FileRef,
    handle: Option<Handle>,
    size: u64,
    /// The permissions are those of a new object.
    pub(crate) is_plain: bool,
    renamed: bool,
    used: Option<Used>,
}

/// Facts about a file whose contents are there.
#[derive(Default)]
pub(crate) struct Facts<'a> {
    /// Without an ETag the file keeps none, and has one that is derived.
    pub(crate) etag: Option<&'a str>,
    pub(crate) headers: Option<Vec<u8>>,
    pub(crate) tags: Option<Vec<u8>>,
    /// The id of the upload that the file was put together from.
    pub(crate) upload: Option<&'a str>,
    /// The place that the file will have, if that is known.
    pub(crate) place: Option<&'a Place>,
}

impl Staged {
    /// Makes an empty file.
    pub(crate) async fn create(fs: &Fs, dir: &DirRef, used: Used) -> S3Result<Staged> {
        let name = used.name();
        let made = fs.create(dir, &name).await;
        let (file, handle) = made.map_err(|error| of(&error, S3ErrorCode::OperationAborted))?;
        let (fs, handle, used) = (fs.clone(), Some(handle), Some(used));
        let (size, is_plain, renamed) = (0, false, false);
        Ok(Staged { fs, dir: *dir, name, file, handle, size, is_plain, renamed, used })
    }

    /// Removes the file.
    pub(crate) async fn remove(mut self) -> client::Result<()> {
        if let Some(handle) = self.handle.take() {
            self.fs.release(handle).await?;
        }
        self.fs.unlink(&self.dir, &self.name).await?;
        self.renamed = true;
        Ok(())
    }

    /// The attributes of the file.
    pub(crate) async fn attr(&self) -> client::Result<Attr> {
        self.fs.getattr(&NodeRef::File(self.file.clone())).await
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    fn handle(&self) -> S3Result<Handle> {
        self.handle.ok_or_else(|| S3ErrorCode::InternalError.into())
    }

    /// Appends a body of at most `bytes_max`, and of exactly `expected` bytes if that is known.
    pub(crate) async fn receive(
        &mut self,
        mut body: StreamingBlob,
        (expected, bytes_max): (Option<u64>, u64),
        digest: &mut Digest,
    ) -> S3Result<()> {
        let handle = self.handle()?;
        loop {
            let next = tokio::time::timeout(BODY_PAUSE_MAX, body.next()).await;
            let Some(bytes) = next.map_err(|_| S3ErrorCode::RequestTimeout)? else { break };
            let bytes = bytes.map_err(body_error)?;
            if self.size + bytes.len() as u64 > bytes_max {
                return Err(S3ErrorCode::EntityTooLarge.into());
            }
            digest.update(&bytes);
            let (offset, len) = (self.size, bytes.len() as u64);
            self.fs.write(handle, offset, bytes).await.map_err(|error| of_object(&error))?;
            self.size += len;
        }
        if expected.is_some_and(|expected| expected != self.size) {
            return Err(S3ErrorCode::IncompleteBody.into());
        }
        Ok(())
    }

    /// Appends `len` bytes of another open file.
    pub(crate) async fn copy(&mut self, from: Handle, offset: u64, len: u64) -> S3Result<()> {
        let (handle, mut done) = (self.handle()?, 0);
        while done < len {
            let copied = self.fs.copy_range((from, offset + done), (handle, self.size), len - done);
            let copied = copied.await.map_err(|error| of_object(&error))?;
            if copied == 0 {
                return Err(s3s::s3_error!(OperationAborted, "the source became shorter"));
            }
            (done, self.size) = (done + copied, self.size + copied);
        }
        Ok(())
    }

    /// Makes the contents stable and closes the file; then sets what is known of it.
    ///
    /// Race: a server that loses what is not stable may be asked for the rename when it is back. The
    /// contents must not be lost then, so they are stable before the name.
    pub(crate) async fn seal(&mut self, facts: Facts<'_>) -> S3Result<Attr> {
        let handle = self.handle()?;
        let node = NodeRef::File(self.file.clone());
        let told = |error: Error| of_object(&error);
        self.fs.fsync(handle).await.map_err(told)?;
        let attr = match self.fs.opened_attr(handle) {
            Some(attr) => attr,
            None => self.fs.getattr(&node).await.map_err(told)?,
        };
        self.handle = None;
        self.fs.release(handle).await.map_err(told)?;
        let etag = facts.etag.map(|etag| metadata::etag_record(etag, &attr));
        let upload = facts.upload.map(|id| id.as_bytes().to_vec());
        let all = [(ETAG, etag), (HEADERS, facts.headers), (TAGS, facts.tags), (COMPLETED, upload)];
        let set = all.into_iter().filter_map(|(name, value)| {
            let (fs, node) = (&self.fs, &node);
            Some(fs.setxattr(node, name.as_bytes(), value?))
        });
        let set = try_join_all(set);
        self.is_plain = facts.place.is_some_and(|place| makes_plain(place.old.as_ref(), &attr));
        if self.is_plain {
            let mode = SetAttr { mode: Some(NEW_MODE), ..SetAttr::default() };
            try_join(set, self.fs.setattr(&node, mode)).await.map_err(told)?;
        } else {
            set.await.map_err(told)?;
        }
        Ok(attr)
    }

    /// Gives the file the owner and permissions of the file that it replaces as far as this user
    /// may, or those of new ones. Where the group is another one, it may do no more than others.
    pub(crate) async fn permit(
        &self,
        old: Option<&Entry>,
        (dir, name): (&DirRef, &EntryName),
    ) -> client::Result<()> {
        let node = NodeRef::File(self.file.clone());
        let of = |mode: u32| SetAttr { mode: Some(mode), ..SetAttr::default() };
        let Some(old) = old.filter(|old| old.attr.kind == FileKind::File) else {
            self.fs.setattr(&node, of(NEW_MODE)).await?;
            return Ok(());
        };
        let mut mode = old.attr.mode & 0o777;
        let own = self.fs.getattr(&node).await?;
        if (own.uid, own.gid) != (old.attr.uid, old.attr.gid) {
            let group = SetAttr { gid: Some(old.attr.gid), ..SetAttr::default() };
            let both = SetAttr { uid: Some(old.attr.uid), ..group };
            let refused = |set: &client::Result<Attr>| {
                matches!(set, Err(Error::Fs(FsError::NotPermitted | FsError::Denied)))
            };
            let mut set = self.fs.setattr(&node, both).await;
            if refused(&set) {
                set = self.fs.setattr(&node, group).await;
            }
            if refused(&set) {
                mode &= 0o707 | (mode & 0o007) << 3;
            } else {
                set?;
            }
        }
        self.fs.setattr(&node, of(mode)).await?;
        if old.attr.mode & MODE_ACL == 0 && own.mode & MODE_ACL == 0 {
            return Ok(());
        }
        let (name, ino) = (name.clone(), old.attr.ino);
        let replaced = NodeRef::File(FileRef { dir: *dir, name, ino });
        let xattrs = match self.fs.xattrs(&replaced).await {
            Err(Error::Fs(FsError::Denied | FsError::NotPermitted)) => return Ok(()),
            xattrs => xattrs?,
        };
        match xattrs.into_iter().find(|(name, _)| name == acl::ACCESS) {
            Some((_, acl)) => self.fs.setxattr(&node, acl::ACCESS, acl.to_vec()).await,
            None => self.fs.removexattr(&node, acl::ACCESS).await,
        }
    }

    /// Gives the file its final name.
    pub(crate) async fn rename(
        &mut self,
        dir: &DirRef,
        name: &EntryName,
        mode: RenameMode,
    ) -> client::Result<()> {
        self.fs.rename((&self.dir, &self.name), (dir, name), mode).await?;
        self.renamed = true;
        Ok(())
    }
}

/// Whether an object has the permissions of a new one where it replaces `old`.
fn makes_plain(old: Option<&Entry>, own: &Attr) -> bool {
    let Some(old) = old.filter(|old| old.attr.kind == FileKind::File) else { return true };
    let same = (own.uid, own.gid) == (old.attr.uid, old.attr.gid);
    same && old.attr.mode & 0o777 == NEW_MODE && (old.attr.mode | own.mode) & MODE_ACL == 0
}

impl Drop for Staged {
    fn drop(&mut self) {
        let handle = self.handle.take();
        if self.renamed && handle.is_none() {
            return;
        }
        let used = self.used.take();
        let (fs, dir, name, renamed) = (self.fs.clone(), self.dir, self.name.clone(), self.renamed);
        // At the end of the process `clean` of the next one is left to do it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let _used = used;
            if let Some(handle) = handle {
                // The file goes, whatever was written to it.
                let _ = fs.release(handle).await;
            }
            if renamed {
                return;
            }
            match fs.unlink(&dir, &name).await {
                Ok(()) | Err(Error::Fs(FsError::NotFound | FsError::Stale)) => {}
                Err(error) => tracing::debug!(%error, "a staged file stays until it is cleaned"),
            }
        });
    }
}

fn body_error(error: s3s::StdError) -> S3Error {
    match error.downcast::<S3Error>() {
        Ok(error) => *error,
        Err(error) => S3Error::with_source(S3ErrorCode::IncompleteBody, error),
    }
}

/// Digests of contents, and what they should be.
#[derive(Default)]
pub(crate) struct Digest {
    md5: Md5Sum,
    sums: ChecksumHasher,
    expected_md5: Option<Vec<u8>>,
    expected: Checksum,
    /// Checksums that come behind the body.
    named: Vec<String>,
}

/// An MD5 that begins empty.
struct Md5Sum(Md5);

impl Default for Md5Sum {
    fn default() -> Md5Sum {
        Md5Sum(Md5::new())
    }
}

/// The MD5 of bytes.
pub(crate) fn md5(bytes: &[u8]) -> Vec<u8> {
    let mut md5 = Md5::new();
    md5.update(bytes);
    md5.finalize().to_vec()
}

impl Digest {
    /// Digests for a request with these headers.
    pub(crate) fn new(
        content_md5: Option<String>,
        algorithm: Option<&ChecksumAlgorithm>,
        expected: Checksum,
    ) -> S3Result<Digest> {
        let mut digest = Digest { expected, ..Digest::default() };
        if let Some(text) = content_md5 {
            use base64::Engine as _;
            let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok();
            let bytes = bytes.filter(|bytes| bytes.len() == 16);
            digest.expected_md5 = Some(bytes.ok_or(S3ErrorCode::InvalidDigest)?);
        }
        let (sums, expected) = (&mut digest.sums, &digest.expected);
        let chosen = algorithm.map(ChecksumAlgorithm::as_str);
        let wants = |name: &str, given: &Option<String>| given.is_some() || chosen == Some(name);
        if wants(ChecksumAlgorithm::CRC32, &expected.checksum_crc32) {
            sums.crc32 = Some(s3s::crypto::Crc32::new());
        }
        if wants(ChecksumAlgorithm::CRC32C, &expected.checksum_crc32c) {
            sums.crc32c = Some(s3s::crypto::Crc32c::new());
        }
        if wants(ChecksumAlgorithm::CRC64NVME, &expected.checksum_crc64nvme) {
            sums.crc64nvme = Some(s3s::crypto::Crc64Nvme::new());
        }
        if wants(ChecksumAlgorithm::SHA1, &expected.checksum_sha1) {
            sums.sha1 = Some(s3s::crypto::Sha1::new());
        }
        if wants(ChecksumAlgorithm::SHA256, &expected.checksum_sha256) {
            sums.sha256 = Some(s3s::crypto::Sha256::new());
        }
        Ok(digest)
    }

    /// Digests for a request, whose trailer may name one more checksum.
    pub(crate) fn with_trailer(mut self, headers: &HeaderMap) -> Digest {
        let named = headers.get_all("x-amz-trailer").iter().filter_map(|value| value.to_str().ok());
        for name in named.flat_map(|value| value.split(',')) {
            let name = name.trim().to_ascii_lowercase();
            match name.as_str() {
                "x-amz-checksum-crc32" => self.sums.crc32 = Some(s3s::crypto::Crc32::new()),
                "x-amz-checksum-crc32c" => self.sums.crc32c = Some(s3s::crypto::Crc32c::new()),
                "x-amz-checksum-crc64nvme" => {
                    self.sums.crc64nvme = Some(s3s::crypto::Crc64Nvme::new());
                }
                "x-amz-checksum-sha1" => self.sums.sha1 = Some(s3s::crypto::Sha1::new()),
                "x-amz-checksum-sha256" => self.sums.sha256 = Some(s3s::crypto::Sha256::new()),
                _ => continue,
            }
            self.named.push(name);
        }
        self
    }

    fn update(&mut self, bytes: &[u8]) {
        self.md5.0.update(bytes);
        self.sums.update(bytes);
    }

    /// The MD5 in hex and the other checksums, if all are as the request says.
    pub(crate) fn verify(self, trailers: Option<&TrailingHeaders>) -> S3Result<(String, Checksum)> {
        let md5 = self.md5.0.finalize();
        if self.expected_md5.is_some_and(|expected| expected[..] != md5[..]) {
            return Err(S3ErrorCode::BadDigest.into());
        }
        let trailers = trailers.and_then(TrailingHeaders::take).unwrap_or_default();
        if let Some(missing) = self.named.iter().find(|name| !trailers.contains_key(*name)) {
            return Err(invalid(format!("the trailer {missing} did not come")));
        }
        let (found, expected) = (self.sums.finalize(), self.expected);
        let checks = [
            ("x-amz-checksum-crc32", &found.checksum_crc32, expected.checksum_crc32),
            ("x-amz-checksum-crc32c", &found.checksum_crc32c, expected.checksum_crc32c),
            ("x-amz-checksum-crc64nvme", &found.checksum_crc64nvme, expected.checksum_crc64nvme),
            ("x-amz-checksum-sha1", &found.checksum_sha1, expected.checksum_sha1),
            ("x-amz-checksum-sha256", &found.checksum_sha256, expected.checksum_sha256),
        ];
        for (name, found, expected) in checks {
            let trailer = trailers.get(name).map(|value| value.to_str().map(str::to_owned));
            let trailer = trailer.transpose().map_err(|_| invalid("a trailer is no text"))?;
            let expected = trailer.or(expected);
            if expected.is_some() && expected != *found {
                return Err(S3ErrorCode::BadDigest.into());
            }
        }
        Ok((hex(md5.as_ref()), found))
    }
}
