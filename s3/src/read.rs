//! Reading objects: get and head.

use std::{io, ops::Range, sync::Arc};

use base::{Attr, FsError};
use bytes::Bytes;
use client::{Error, Handle};
use futures::future::join;
use s3s::{
    Body, S3ErrorCode, S3Result,
    dto::{
        ChecksumMode, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput,
        StreamingBlob,
    },
};
use tokio::sync::mpsc;
use wire::{DirRef, NodeRef};

use crate::{
    conditions::Conditions,
    error::{not_implemented, of_object},
    fs::{Fs, Xattrs},
    gateway::Gateway,
    key::Key,
    metadata::{self, EMPTY_ETAG, Headers, Known},
    tree::{self, Found},
};

/// How much is read at once.
const PIECE_BYTES: u32 = 1 << 20;
/// Pieces that are read before the client of the gateway takes them.
const PIECES_AHEAD: usize = 2;
/// How often an object is looked for that is replaced meanwhile.
const TRIES_MAX: u32 = 16;
/// Content type of objects that were given none, as in S3.
const CONTENT_TYPE: &str = "binary/octet-stream";

/// An object that was found, with what is known of it.
pub(crate) struct Object {
    pub(crate) found: Found,
    pub(crate) attr: Attr,
    pub(crate) known: Known,
}

/// Finds an object and what is known of it.
pub(crate) async fn object(
    gateway: &Gateway,
    fs: &Fs,
    bucket: &str,
    key: &str,
) -> S3Result<Object> {
    let key = Key::parse(key)?;
    for _ in 0..TRIES_MAX {
        let found = tree::find_in(fs, &gateway.settings.root, bucket, &key).await?;
        let found = found.ok_or(S3ErrorCode::NoSuchKey)?;
        let xattrs = fs.xattrs(&found.node).await;
        if let Some(object) = with_known(found, None, xattrs)? {
            return Ok(Some(object).filter(Object::is_there).ok_or(S3ErrorCode::NoSuchKey)?);
        }
    }
    Err(S3ErrorCode::SlowDown.into())
}

/// Finds an object, if it is there, and what is known of it.
pub(crate) async fn find(fs: &Fs, bucket: &DirRef, key: &Key) -> S3Result<Option<Object>> {
    for _ in 0..TRIES_MAX {
        let Some(found) = tree::find(fs, bucket, key).await? else { return Ok(None) };
        let xattrs = fs.xattrs(&found.node).await;
        if let Some(object) = with_known(found, None, xattrs)? {
            return Ok(Some(object).filter(Object::is_there));
        }
    }
    Err(S3ErrorCode::SlowDown.into())
}

/// Finds an object and opens it: what is known of it is of the opened file. A directory has nothing
/// to open.
pub(crate) async fn open(
    gateway: &Gateway,
    fs: &Fs,
    bucket: &str,
    key: &str,
) -> S3Result<(Object, Option<Arc<Open>>)> {
    let key = Key::parse(key)?;
    for _ in 0..TRIES_MAX {
        let found = tree::find_in(fs, &gateway.settings.root, bucket, &key).await?;
        let found = found.ok_or(S3ErrorCode::NoSuchKey)?;
        // The attributes that are of other contents than the opened ones do not count.
        let (open, xattrs) = join(Open::new(fs, &found.node), fs.xattrs(&found.node)).await;
        let Some(open) = unless_gone(open)? else { continue };
        let attr = match open.as_ref().map(|open| fs.opened_attr(open.handle)) {
            None => None,
            Some(Some(attr)) => Some(attr),
            Some(None) => match unless_gone(fs.getattr(&found.node).await)? {
                Some(attr) => Some(attr),
                None => continue,
            },
        };
        if let Some(object) = with_known(found, attr, xattrs)? {
            if !object.is_there() {
                return Err(S3ErrorCode::NoSuchKey.into());
            }
            return Ok((object, open));
        }
    }
    Err(S3ErrorCode::SlowDown.into())
}

/// `None`: the node was replaced or removed since it was found.
fn unless_gone<T>(result: client::Result<T>) -> S3Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(Error::Fs(FsError::NotFound | FsError::Stale)) => Ok(None),
        Err(error) => Err(of_object(&error)),
    }
}

/// An object with what its extended attributes say; `attr` are newer attributes than those found.
fn with_known(
    found: Found,
    attr: Option<Attr>,
    xattrs: client::Result<Xattrs>,
) -> S3Result<Option<Object>> {
    let mut attr = attr.unwrap_or(found.attr);
    let Some(xattrs) = unless_gone(xattrs)? else { return Ok(None) };
    let mut known = Known::read(&attr, &xattrs);
    if matches!(found.node, NodeRef::Dir(_)) {
        known.etag = EMPTY_ETAG.to_owned();
        attr.size = 0;
    }
    Ok(Some(Object { found, attr, known }))
}

impl Object {
    /// Whether this is an object: not all directories are.
    fn is_there(&self) -> bool {
        matches!(self.found.node, NodeRef::File(_)) || self.known.marked
    }

    /// Fails if the contents were changed since what is known of them was read.
    pub(crate) async fn expect_unchanged(&self, fs: &Fs) -> S3Result<()> {
        if matches!(self.found.node, NodeRef::Dir(_)) {
            return Ok(());
        }
        match fs.getattr(&self.found.node).await {
            Ok(attr) if (attr.size, attr.mtime) == (self.attr.size, self.attr.mtime) => Ok(()),
            Ok(_) | Err(Error::Fs(FsError::NotFound | FsError::Stale)) => {
                Err(s3s::s3_error!(OperationAborted, "the source was changed while it was copied"))
            }
            Err(error) => Err(of_object(&error)),
        }
    }
}

/// The bytes of an object that a request asks for: one at least.
pub(crate) fn bytes_of(range: &s3s::dto::Range, size: u64) -> S3Result<Range<u64>> {
    let range = range.check(size)?;
    if range.is_empty() { Err(S3ErrorCode::InvalidRange.into()) } else { Ok(range) }
}

/// An open file; it is closed when this is dropped.
pub(crate) struct Open {
    fs: Fs,
    pub(crate) handle: Handle,
}

impl Open {
    pub(crate) async fn new(fs: &Fs, node: &NodeRef) -> client::Result<Option<Arc<Open>>> {
        let NodeRef::File(file) = node else { return Ok(None) };
        let handle = fs.open(file).await?;
        Ok(Some(Arc::new(Open { fs: fs.clone(), handle })))
    }

    /// Bytes of a range of the file.
    pub(crate) async fn body(self: Arc<Self>, range: Range<u64>) -> S3Result<StreamingBlob> {
        let len = range.end - range.start;
        if len <= PIECE_BYTES.into() {
            let bytes = self.piece(range).await.map_err(s3s::S3Error::internal_error)?;
            return Ok(StreamingBlob::from(Body::from(bytes)));
        }
        let (send, mut receive) = mpsc::channel::<io::Result<Bytes>>(PIECES_AHEAD);
        tokio::spawn(async move {
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min(at + u64::from(PIECE_BYTES));
                let piece = self.piece(at..end).await;
                let failed = piece.is_err();
                // The connection may be gone, and its reader with it.
                if send.send(piece).await.is_err() || failed {
                    return;
                }
                at = end;
            }
        });
        Ok(StreamingBlob::wrap(futures::stream::poll_fn(move |context| receive.poll_recv(context))))
    }

    async fn piece(&self, range: Range<u64>) -> io::Result<Bytes> {
        let len = u32::try_from(range.end - range.start).unwrap_or(PIECE_BYTES);
        if len == 0 {
            return Ok(Bytes::new());
        }
        let bytes = self.fs.read(self.handle, range.start, len).await.map_err(io::Error::other)?;
        if bytes.len() < len as usize {
            return Err(io::Error::other("the file became shorter while it was read"));
        }
        Ok(bytes)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let (fs, handle) = (self.fs.clone(), self.handle);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            // A file that was only read has nothing to send.
            let _ = fs.release(handle).await;
        });
    }
}

/// Answers with an object, or a range of it.
pub(crate) async fn get(
    gateway: &Gateway,
    fs: &Fs,
    input: GetObjectInput,
) -> S3Result<GetObjectOutput> {
    let customer_keys = input.sse_customer_key.is_some() || input.sse_customer_algorithm.is_some();
    refuse(input.version_id.as_deref(), customer_keys)?;
    let (object, open) = open(gateway, fs, &input.bucket, &input.key).await?;
    let Object { attr, known, .. } = object;
    let modified = metadata::last_modified(&attr);
    let conditions = Conditions {
        matches: input.if_match,
        none_match: input.if_none_match,
        modified_since: input.if_modified_since,
        unmodified_since: input.if_unmodified_since,
    };
    conditions.check(&known.etag, &modified, S3ErrorCode::NotModified)?;
    let range = wanted(input.range, input.part_number, &attr, &known.headers)?;
    let content_range = range.as_ref().map(|range| content_range(range, attr.size));
    let whole = input.checksum_mode.as_ref().map(ChecksumMode::as_str)
        == Some(ChecksumMode::ENABLED)
        && content_range.is_none();
    let sum = |name: &str| known.headers.checksum(name).filter(|_| whole);
    let range = range.unwrap_or(0..attr.size);
    let len = range.end - range.start;
    let body = match open {
        Some(open) => open.body(range).await?,
        None => StreamingBlob::from(Body::empty()),
    };
    let headers = &known.headers;
    let parts_count = input.part_number.and_then(|_| headers.parts_count());
    let content_type = headers.content_type.clone().unwrap_or_else(|| CONTENT_TYPE.to_owned());
    Ok(GetObjectOutput {
        accept_ranges: Some("bytes".to_owned()),
        body: Some(body),
        cache_control: input.response_cache_control.or_else(|| headers.cache_control.clone()),
        checksum_crc32: sum("crc32"),
        checksum_crc32c: sum("crc32c"),
        checksum_crc64nvme: sum("crc64nvme"),
        checksum_sha1: sum("sha1"),
        checksum_sha256: sum("sha256"),
        content_disposition: input
            .response_content_disposition
            .or_else(|| headers.content_disposition.clone()),
        content_encoding: input
            .response_content_encoding
            .or_else(|| headers.content_encoding.clone()),
        content_language: input
            .response_content_language
            .or_else(|| headers.content_language.clone()),
        content_length: Some(metadata::size(len)),
        content_range,
        content_type: Some(input.response_content_type.unwrap_or(content_type)),
        e_tag: Some(metadata::strong(&known.etag)),
        expires: input.response_expires.or_else(|| headers.expires()),
        last_modified: Some(modified),
        metadata: headers.user(),
        parts_count,
        tag_count: tag_count(&known),
        website_redirect_location: headers.website_redirect_location.clone(),
        ..GetObjectOutput::default()
    })
}

/// Answers with what is known of an object, and with the number of its tags.
pub(crate) async fn head(
    gateway: &Gateway,
    fs: &Fs,
    input: HeadObjectInput,
) -> S3Result<(HeadObjectOutput, Option<i32>)> {
    let customer_keys = input.sse_customer_key.is_some() || input.sse_customer_algorithm.is_some();
    refuse(input.version_id.as_deref(), customer_keys)?;
    let Object { attr, known, .. } = object(gateway, fs, &input.bucket, &input.key).await?;
    let modified = metadata::last_modified(&attr);
    let conditions = Conditions {
        matches: input.if_match,
        none_match: input.if_none_match,
        modified_since: input.if_modified_since,
        unmodified_since: input.if_unmodified_since,
    };
    conditions.check(&known.etag, &modified, S3ErrorCode::NotModified)?;
    let range = wanted(input.range, input.part_number, &attr, &known.headers)?;
    let content_range = range.as_ref().map(|range| content_range(range, attr.size));
    let range = range.unwrap_or(0..attr.size);
    let whole = input.checksum_mode.as_ref().map(ChecksumMode::as_str)
        == Some(ChecksumMode::ENABLED)
        && content_range.is_none();
    let sum = |name: &str| known.headers.checksum(name).filter(|_| whole);
    let headers = &known.headers;
    let parts_count = input.part_number.and_then(|_| headers.parts_count());
    let content_type = headers.content_type.clone().unwrap_or_else(|| CONTENT_TYPE.to_owned());
    let output = HeadObjectOutput {
        accept_ranges: Some("bytes".to_owned()),
        cache_control: input.response_cache_control.or_else(|| headers.cache_control.clone()),
        checksum_crc32: sum("crc32"),
        checksum_crc32c: sum("crc32c"),
        checksum_crc64nvme: sum("crc64nvme"),
        checksum_sha1: sum("sha1"),
        checksum_sha256: sum("sha256"),
        content_disposition: input
            .response_content_disposition
            .or_else(|| headers.content_disposition.clone()),
        content_encoding: input
            .response_content_encoding
            .or_else(|| headers.content_encoding.clone()),
        content_language: input
            .response_content_language
            .or_else(|| headers.content_language.clone()),
        content_length: Some(metadata::size(range.end - range.start)),
        content_range,
        content_type: Some(input.response_content_type.unwrap_or(content_type)),
        e_tag: Some(metadata::strong(&known.etag)),
        expires: input.response_expires.or_else(|| headers.expires()),
        last_modified: Some(modified),
        metadata: headers.user(),
        parts_count,
        website_redirect_location: headers.website_redirect_location.clone(),
        ..HeadObjectOutput::default()
    };
    Ok((output, tag_count(&known)))
}

fn content_range(range: &Range<u64>, size: u64) -> String {
    format!("bytes {}-{}/{size}", range.start, range.end - 1)
}

fn tag_count(known: &Known) -> Option<i32> {
    i32::try_from(known.tags.len()).ok().filter(|count| *count > 0)
}

/// The bytes that a read asks for, by a range or by the number of a part; `None`: all.
fn wanted(
    range: Option<s3s::dto::Range>,
    part: Option<i32>,
    attr: &Attr,
    headers: &Headers,
) -> S3Result<Option<Range<u64>>> {
    match (range, part) {
        (None, None) => Ok(None),
        (Some(range), None) => Ok(Some(bytes_of(&range, attr.size)?)),
        (None, Some(number)) => {
            let range = headers.part(number, attr.size)?;
            // No header can say the range of no bytes.
            if range.is_empty() && attr.size > 0 {
                return Err(S3ErrorCode::InvalidRange.into());
            }
            Ok(Some(range).filter(|range| !range.is_empty()))
        }
        (Some(_), Some(_)) => {
            Err(s3s::s3_error!(InvalidRequest, "a read has a range or the number of a part"))
        }
    }
}

/// Refuses what a read can ask for and this gateway has not.
pub(crate) fn refuse(version: Option<&str>, customer_keys: bool) -> S3Result<()> {
    if customer_keys {
        return Err(not_implemented("encryption with customers' keys is not supported"));
    }
    match version {
        None | Some("" | "null") => Ok(()),
        Some(_) => Err(not_implemented("objects have no versions")),
    }
}
