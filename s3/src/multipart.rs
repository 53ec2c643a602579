//! Uploads of several parts.
//!
//! An upload is a directory `uploads/ID` in the bucket's staging directory, with what it is to
//! become in an extended attribute. A part is a file there, named by its number and its MD5. So a
//! part that is sent again lies beside the first one, and the request that completes the upload
//! says by its ETags which ones it means.

use std::collections::BTreeMap;

use base::{Attr, EntryName, FsError};
use client::Error;
use s3s::{
    S3Error, S3ErrorCode, S3Result,
    dto::{
        CompletedPart, ListMultipartUploadsInput, ListMultipartUploadsOutput, ListPartsInput,
        ListPartsOutput, MultipartUpload, Part, TagSet,
    },
};
use serde::{Deserialize, Serialize};
use wire::{DirRef, FileRef, NodeRef};

use crate::{
    commit::{self, Wanted},
    error::{invalid, of, of_object},
    fs::Fs,
    gateway::{Gateway, Used},
    key::Key,
    list::encoded,
    metadata::{self, Headers, size, strong, timestamp, unhex},
    read::{self, Open},
    staging::{Facts, Staged},
    tree,
};

/// Name of the directory of uploads in the staging directory.
pub(crate) const UPLOADS: &str = "uploads";
/// The attribute of an upload's directory.
const UPLOAD: &str = "user.s3.upload";
/// Permission bits of an upload's directory.
const UPLOAD_MODE: u32 = 0o700;
/// Bytes of every part but the last, at least, as in S3.
const PART_BYTES_MIN: u64 = 5 << 20;
/// Bytes of a part at most, as in S3.
pub(crate) const PART_BYTES_MAX: u64 = 5 << 30;
/// The highest number of a part, as in S3.
const PARTS_MAX: i32 = 10_000;
/// Lines of a page at most, as in S3.
const PAGE_MAX: usize = 1000;

/// The object that an upload is to become. Persisted: JSON in [`UPLOAD`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Upload {
    key: String,
    #[serde(default)]
    headers: Headers,
    /// JSON of the tags, as the object will have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tags: Option<String>,
}

/// An upload that is there.
pub(crate) struct Found {
    upload: Upload,
    pub(crate) dir: DirRef,
    name: EntryName,
    uploads: DirRef,
    _used: Used,
}

fn name_of(text: &str) -> EntryName {
    EntryName::new(text.as_bytes()).expect("it is short and has no slash")
}

/// Begins an upload; its id.
pub(crate) async fn create(
    gateway: &Gateway,
    fs: &Fs,
    bucket: &DirRef,
    key: String,
    headers: Headers,
    tags: &TagSet,
) -> S3Result<String> {
    commit::expect_file(&Key::parse(&key)?)?;
    let tags = metadata::tags_to_bytes(tags)?;
    let tags = tags.map(|tags| String::from_utf8_lossy(&tags).into_owned());
    let upload = Upload { key, headers, tags };
    let value = serde_json::to_vec(&upload).map_err(S3Error::internal_error)?;
    let staging = commit::staging(fs, bucket).await?;
    let mode = commit::STAGING_MODE;
    let uploads = tree::ensure_one(fs, &staging, &name_of(UPLOADS), mode).await?;
    let id = gateway.unique_id();
    let told = |error: Error| of(&error, S3ErrorCode::OperationAborted);
    let dir = fs.mkdir(&uploads, &name_of(&id), UPLOAD_MODE).await.map_err(told)?;
    fs.setxattr(&NodeRef::Dir(dir), UPLOAD.as_bytes(), value).await.map_err(told)?;
    fs.sync_dir(&uploads).await.map_err(told)?;
    Ok(id)
}

async fn uploads(fs: &Fs, bucket: &DirRef) -> S3Result<Option<DirRef>> {
    let Some(staging) = commit::find_staging(fs, bucket).await? else { return Ok(None) };
    let found = fs.find(&staging, &name_of(UPLOADS)).await.map_err(|error| of_object(&error))?;
    Ok(found.and_then(|entry| entry.dir))
}

async fn read(fs: &Fs, dir: &DirRef) -> client::Result<Option<Upload>> {
    let xattrs = fs.xattrs(&NodeRef::Dir(*dir)).await?;
    let value = xattrs.iter().find(|(name, _)| name == UPLOAD.as_bytes());
    Ok(value.and_then(|(_, value)| serde_json::from_slice(value).ok()))
}

/// The name of an upload's directory.
fn id_of(id: &str) -> S3Result<EntryName> {
    if id.len() != 32 || !id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(S3ErrorCode::NoSuchUpload.into());
    }
    Ok(name_of(id))
}

/// Finds an upload by its id; it must be of this key.
pub(crate) async fn find(
    gateway: &Gateway,
    fs: &Fs,
    bucket: &DirRef,
    key: &str,
    id: &str,
) -> S3Result<Found> {
    let missing = || S3Error::from(S3ErrorCode::NoSuchUpload);
    let told = |error: Error| of(&error, S3ErrorCode::NoSuchUpload);
    let name = id_of(id)?;
    let used = gateway.uses(name.clone());
    let uploads = uploads(fs, bucket).await?.ok_or_else(missing)?;
    let entry = fs.find(&uploads, &name).await.map_err(told)?.ok_or_else(missing)?;
    let dir = entry.dir.ok_or_else(missing)?;
    let upload = read(fs, &dir).await.map_err(told)?.ok_or_else(missing)?;
    if upload.key != key {
        return Err(missing());
    }
    Ok(Found { upload, dir, name, uploads, _used: used })
}

/// Checks the number of a part.
pub(crate) fn number(number: i32) -> S3Result<i32> {
    match number {
        1..=PARTS_MAX => Ok(number),
        _ => Err(invalid("a part number is between 1 and 10000")),
    }
}

/// A file in which a part is received.
pub(crate) async fn stage(gateway: &Gateway, fs: &Fs, upload: &Found) -> S3Result<Staged> {
    let staged = Staged::create(fs, &upload.dir, gateway.unique("part")).await;
    staged.map_err(|error| match error.code() {
        S3ErrorCode::OperationAborted => S3ErrorCode::NoSuchUpload.into(),
        _ => error,
    })
}

/// Keeps a part that was received.
pub(crate) async fn keep(
    staged: &mut Staged,
    fs: &Fs,
    upload: &Found,
    number: i32,
    md5: &str,
) -> S3Result<Attr> {
    let told = |error: Error| of(&error, S3ErrorCode::NoSuchUpload);
    let attr = staged.seal(Facts::default()).await?;
    let name = name_of(&format!("{number:05}-{md5}"));
    staged.rename(&upload.dir, &name, wire::RenameMode::Replace).await.map_err(told)?;
    fs.sync_dir(&upload.dir).await.map_err(told)?;
    Ok(attr)
}

/// A part that was kept.
struct Kept {
    name: EntryName,
    md5: String,
    attr: Attr,
}

/// All parts by their numbers; of one number, the latest last.
async fn parts(fs: &Fs, dir: &DirRef) -> S3Result<BTreeMap<i32, Vec<Kept>>> {
    let told = |error: Error| of(&error, S3ErrorCode::NoSuchUpload);
    let mut parts: BTreeMap<i32, Vec<Kept>> = BTreeMap::new();
    for listed in fs.entries(dir).await.map_err(told)?.0 {
        let text = String::from_utf8_lossy(listed.name.as_bytes()).into_owned();
        let Some(entry) = listed.entry else { continue };
        if let Some((number, md5)) = text.split_once('-')
            && let (Ok(number), Some(_)) = (number.parse(), unhex(md5))
        {
            let kept = Kept { name: listed.name, md5: md5.to_owned(), attr: entry.attr };
            parts.entry(number).or_default().push(kept);
        }
    }
    for same in parts.values_mut() {
        same.sort_by_key(|kept| (kept.attr.ctime.sec, kept.attr.ctime.nsec));
    }
    Ok(parts)
}

/// Puts the parts together and gives them the name of the object; its ETag.
pub(crate) async fn complete(
    gateway: &Gateway,
    fs: &Fs,
    (bucket, key, id): (&DirRef, &str, &str),
    chosen: Vec<CompletedPart>,
    wanted: &Wanted,
) -> S3Result<String> {
    let _locked = gateway.lock_upload(&id_of(id)?).await;
    let found = find(gateway, fs, bucket, key, id).await;
    let key = Key::parse(key)?;
    // The answer to an earlier request may have been lost.
    if let Some(etag) = completed(fs, bucket, &key, id).await? {
        if let Ok(upload) = found {
            remove(fs, &upload).await;
        }
        return Ok(etag);
    }
    let upload = found?;
    let kept = parts(fs, &upload.dir).await?;
    if chosen.is_empty() {
        return Err(S3ErrorCode::MalformedXML.into());
    }
    let (mut before, mut md5s, mut files) = (0, Vec::new(), Vec::new());
    for part in chosen {
        let number = part.part_number.ok_or(S3ErrorCode::MalformedXML)?;
        if number <= before {
            return Err(S3ErrorCode::InvalidPartOrder.into());
        }
        before = number;
        let etag = part.e_tag.ok_or(S3ErrorCode::InvalidPart)?.into_value();
        let same = kept.get(&number).into_iter().flatten();
        let found = same.rev().find(|kept| kept.md5 == etag).ok_or(S3ErrorCode::InvalidPart)?;
        md5s.push(unhex(&found.md5).ok_or(S3ErrorCode::InvalidPart)?);
        files.push(found);
    }
    let but_last = &files[..files.len() - 1];
    if but_last.iter().any(|kept| kept.attr.size < PART_BYTES_MIN) {
        return Err(S3ErrorCode::EntityTooSmall.into());
    }
    let sizes: Vec<u64> = files.iter().map(|kept| kept.attr.size).collect();
    let mut staged = commit::stage(gateway, fs, bucket).await?;
    for kept in files {
        let (name, ino) = (kept.name.clone(), kept.attr.ino);
        let node = NodeRef::File(FileRef { dir: upload.dir, name, ino });
        let open =
            Open::new(fs, &node).await.map_err(|error| of(&error, S3ErrorCode::InvalidPart))?;
        let open = open.ok_or(S3ErrorCode::InvalidPart)?;
        staged.copy(open.handle, 0, kept.attr.size).await?;
    }
    let etag = commit::etag_of_parts(&md5s);
    let tags = upload.upload.tags.clone().map(String::into_bytes);
    let mut headers = upload.upload.headers.clone();
    headers.set_parts(sizes.into_iter());
    let headers = headers.to_bytes()?;
    let (etag_kept, upload_kept) = (Some(etag.as_str()), Some(id));
    let facts = Facts { etag: etag_kept, headers, tags, upload: upload_kept, place: None };
    staged.seal(facts).await?;
    commit::put(gateway, fs, (bucket, &key), &mut staged, wanted, None).await?;
    remove(fs, &upload).await;
    Ok(etag)
}

/// The ETag of an object, if it was put together from this upload.
async fn completed(fs: &Fs, bucket: &DirRef, key: &Key, id: &str) -> S3Result<Option<String>> {
    let Some(object) = read::find(fs, bucket, key).await? else { return Ok(None) };
    let same = object.known.completed.as_deref() == Some(id.as_bytes());
    Ok(same.then_some(object.known.etag))
}

/// Removes an upload of which the object is there; what is left, `clean` would remove, too.
async fn remove(fs: &Fs, upload: &Found) {
    if let Err(error) = commit::remove_flat(fs, &upload.uploads, &upload.name).await {
        tracing::warn!(%error, "the parts of a completed upload stay until they are cleaned");
    }
}

/// Removes an upload with its parts.
pub(crate) async fn abort(
    gateway: &Gateway,
    fs: &Fs,
    (bucket, key, id): (&DirRef, &str, &str),
) -> S3Result<()> {
    let _locked = gateway.lock_upload(&id_of(id)?).await;
    let upload = find(gateway, fs, bucket, key, id).await?;
    commit::remove_flat(fs, &upload.uploads, &upload.name).await
}

/// Answers with a page of the parts of an upload.
pub(crate) async fn list_parts(
    gateway: &Gateway,
    fs: &Fs,
    bucket: &DirRef,
    input: ListPartsInput,
) -> S3Result<ListPartsOutput> {
    let upload = find(gateway, fs, bucket, &input.key, &input.upload_id).await?;
    let limit = limit(input.max_parts)?;
    let after = input.part_number_marker.unwrap_or(0);
    let mut later = parts(fs, &upload.dir).await?.split_off(&after.saturating_add(1)).into_iter();
    let shown = later.by_ref().take(limit).filter_map(|(number, mut same)| {
        let kept = same.pop()?;
        Some(Part {
            e_tag: Some(strong(&kept.md5)),
            last_modified: Some(metadata::last_modified(&kept.attr)),
            part_number: Some(number),
            size: Some(size(kept.attr.size)),
            ..Part::default()
        })
    });
    let shown: Vec<_> = shown.collect();
    let truncated = limit > 0 && later.next().is_some();
    Ok(ListPartsOutput {
        bucket: Some(input.bucket),
        is_truncated: Some(truncated),
        key: Some(input.key),
        max_parts: input.max_parts,
        next_part_number_marker: shown.last().and_then(|part| part.part_number),
        part_number_marker: input.part_number_marker,
        parts: Some(shown),
        storage_class: Some("STANDARD".to_owned().into()),
        upload_id: Some(input.upload_id),
        ..ListPartsOutput::default()
    })
}

/// Answers with a page of the uploads of a bucket, in the order of their keys and ids.
pub(crate) async fn list_uploads(
    fs: &Fs,
    bucket: &DirRef,
    input: ListMultipartUploadsInput,
) -> S3Result<ListMultipartUploadsOutput> {
    if input.delimiter.as_ref().is_some_and(|delimiter| !delimiter.is_empty()) {
        return Err(crate::error::not_implemented("uploads are listed without a delimiter"));
    }
    let limit = limit(input.max_uploads)?;
    let prefix = input.prefix.clone().unwrap_or_default();
    let mut found = all_uploads(fs, bucket).await?;
    found.retain(|(key, _), _| key.starts_with(&prefix));
    if let Some(key) = input.key_marker.clone().filter(|key| !key.is_empty()) {
        let id = input.upload_id_marker.clone().filter(|id| !id.is_empty());
        found.retain(|(other, other_id), _| match &id {
            Some(id) => (other, other_id) > (&key, id),
            None => *other > key,
        });
    }
    let truncated = limit > 0 && found.len() > limit;
    let encoding = input.encoding_type.as_ref();
    let last = found.keys().take(limit).next_back().cloned().filter(|_| truncated);
    let uploads = found.into_iter().take(limit).map(|((key, id), attr)| MultipartUpload {
        initiated: Some(timestamp(attr.btime)),
        key: Some(encoded(&key, encoding)),
        storage_class: Some("STANDARD".to_owned().into()),
        upload_id: Some(id),
        ..MultipartUpload::default()
    });
    Ok(ListMultipartUploadsOutput {
        uploads: Some(uploads.collect()),
        is_truncated: Some(truncated),
        next_key_marker: last.as_ref().map(|(key, _)| encoded(key, encoding)),
        next_upload_id_marker: last.map(|(_, id)| id),
        bucket: Some(input.bucket),
        key_marker: input.key_marker.map(|key| encoded(&key, encoding)),
        prefix: input.prefix.map(|prefix| encoded(&prefix, encoding)),
        encoding_type: input.encoding_type,
        max_uploads: input.max_uploads,
        upload_id_marker: input.upload_id_marker,
        ..ListMultipartUploadsOutput::default()
    })
}

/// All uploads of a bucket that this user may see.
async fn all_uploads(fs: &Fs, bucket: &DirRef) -> S3Result<BTreeMap<(String, String), Attr>> {
    let mut found = BTreeMap::new();
    let Some(uploads) = uploads(fs, bucket).await? else { return Ok(found) };
    let (entries, _) = fs.entries(&uploads).await.map_err(|error| of_object(&error))?;
    for listed in entries {
        let Some((dir, entry)) = listed.entry.and_then(|entry| Some((entry.dir?, entry))) else {
            continue;
        };
        let id = String::from_utf8_lossy(listed.name.as_bytes()).into_owned();
        match read(fs, &dir).await {
            Ok(Some(upload)) => drop(found.insert((upload.key, id), entry.attr)),
            Ok(None) => {}
            // The upload is another user's, or is gone by now.
            Err(Error::Fs(FsError::Denied | FsError::NotPermitted | FsError::NotFound)) => {}
            Err(Error::Fs(FsError::Stale)) => {}
            Err(error) => return Err(of_object(&error)),
        }
    }
    Ok(found)
}

fn limit(asked: Option<i32>) -> S3Result<usize> {
    let asked = asked.map(usize::try_from).transpose();
    let asked = asked.map_err(|_| invalid("the size of a page must not be negative"))?;
    Ok(asked.unwrap_or(PAGE_MAX).min(PAGE_MAX))
}
