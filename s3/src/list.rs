//! Listings: the walk over the file system, and its pages as S3 sends them.
//!
//! The entries of a directory come in no order, so a directory is read whole and sorted. Clients
//! ask for long listings in pages; a large directory that was sorted for one page is kept for the
//! next ones, for as long as the directory has not changed.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use base::{Attr, EntryName, FileKind, FsError, Time};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use client::Error;
use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use s3s::{
    S3Error, S3ErrorCode, S3Result,
    dto::{CommonPrefix, ETag, EncodingType, Object as S3Object},
};
use tokio::sync::Semaphore;
use wire::{DirRef, FileRef, NodeRef};

use crate::{
    error::{of, of_object},
    fs::Fs,
    key::STAGING,
    metadata::{self, EMPTY_ETAG, OBJECT},
    walk::{Item, Items, Listed, Node, Page, Query, Source, walk},
};

/// Number of keys of a page at most, as in S3.
const KEYS_MAX: i32 = 1000;
/// Number of ETags that are asked for at once.
const ETAGS_AT_ONCE: usize = 256;
/// Directories with fewer entries are read anew for each page.
const KEPT_ENTRIES_MIN: usize = 1000;
/// Number of directories of so many entries that are read at once.
const READ_AT_ONCE: usize = 4;
/// How often an object is looked up anew that is replaced meanwhile.
const TRIES_MAX: u32 = 16;
/// Number of entries of all directories that are kept.
const KEPT_ENTRIES_MAX: usize = 1_000_000;

/// A directory on the walk.
#[derive(Clone)]
pub(crate) struct Dir {
    dir: DirRef,
    /// Attributes when its entry was read.
    attr: Attr,
}

/// An object on the walk.
#[derive(Clone)]
pub(crate) struct Object {
    /// The directory that has the file; `None`: the object is a directory.
    parent: Option<DirRef>,
    attr: Attr,
}

/// A sorted directory that is kept.
struct Kept {
    session: usize,
    dir: DirRef,
    /// When its entries and its attributes were changed.
    times: (Time, Time),
    items: Items<Bucket<'static>>,
}

/// Sorted directories of which a page was sent; the latest last.
pub(crate) struct Sorted {
    kept: Mutex<VecDeque<Kept>>,
    /// Large directories are read a few at a time.
    reading: Semaphore,
}

impl Default for Sorted {
    fn default() -> Sorted {
        Sorted { kept: Mutex::default(), reading: Semaphore::new(READ_AT_ONCE) }
    }
}

impl Sorted {
    fn get(&self, session: usize, dir: &DirRef, attr: &Attr) -> Option<Items<Bucket<'static>>> {
        let mut kept = self.kept.lock();
        let at = kept.iter().position(|kept| kept.session == session && kept.dir.same(dir))?;
        let found = kept.remove(at)?;
        // Of an older state nothing is needed any more.
        if found.times != (attr.mtime, attr.ctime) {
            return None;
        }
        let items = Arc::clone(&found.items);
        kept.push_back(found);
        Some(items)
    }

    fn keep(&self, new: Kept) {
        let mut kept = self.kept.lock();
        kept.retain(|old| old.session != new.session || !old.dir.same(&new.dir));
        kept.push_back(new);
        let mut entries: usize = kept.iter().map(|kept| kept.items.len()).sum();
        while entries > KEPT_ENTRIES_MAX && kept.len() > 1 {
            entries -= kept.pop_front().map_or(0, |kept| kept.items.len());
        }
    }
}

/// A bucket as the walk sees it.
pub(crate) struct Bucket<'g> {
    fs: &'g Fs,
    session: usize,
    dir: DirRef,
    sorted: &'g Sorted,
    /// Whether the entries of a directory were kept since an earlier page.
    used_kept: AtomicBool,
}

impl Source for Bucket<'_> {
    type Dir = Dir;
    type Object = Object;
    type Error = S3Error;

    async fn items(&self, dir: &Dir) -> S3Result<Items<Self>> {
        let top = dir.dir.same(&self.dir);
        let skipped = |error: Error| match error {
            // The directory was removed since its entry was read.
            Error::Fs(FsError::NotFound | FsError::NotDirectory | FsError::Stale) => {
                Ok(Items::<Self>::default())
            }
            Error::Fs(FsError::Denied | FsError::NotPermitted) if !top => {
                Ok(Items::<Self>::default())
            }
            error => Err(of(&error, S3ErrorCode::NoSuchBucket)),
        };
        let large = top || dir.attr.size >= KEPT_ENTRIES_MIN as u64;
        let mut _reading = None;
        if large {
            let attr = match self.fs.getattr(&NodeRef::Dir(dir.dir)).await {
                Ok(attr) => attr,
                Err(error) => return skipped(error),
            };
            if let Some(items) = self.sorted.get(self.session, &dir.dir, &attr) {
                self.used_kept.store(true, Ordering::Relaxed);
                return Ok(items);
            }
            if attr.size >= KEPT_ENTRIES_MIN as u64 {
                _reading = self.sorted.reading.acquire().await.ok();
            }
        }
        let (entries, before) = match self.fs.entries(&dir.dir).await {
            Ok(read) => read,
            Err(error) => return skipped(error),
        };
        let mut items: Vec<_> = entries
            .into_iter()
            .filter_map(|listed| {
                let name = std::str::from_utf8(listed.name.as_bytes()).ok()?;
                let entry = listed.entry?;
                match (entry.attr.kind, entry.dir) {
                    (FileKind::Directory, Some(_)) if top && name == STAGING => None,
                    (FileKind::Directory, Some(found)) => Some(Item {
                        sort_key: format!("{name}/"),
                        node: Node::Dir(Dir { dir: found, attr: entry.attr }),
                    }),
                    (FileKind::File, _) => Some(Item {
                        sort_key: name.to_owned(),
                        node: Node::Object(Object { parent: Some(dir.dir), attr: entry.attr }),
                    }),
                    // Symbolic links and special files are no objects.
                    _ => None,
                }
            })
            .collect();
        items.sort_unstable_by(|one, other| one.sort_key.cmp(&other.sort_key));
        let items = Arc::new(items);
        if items.len() >= KEPT_ENTRIES_MIN {
            let (session, items) = (self.session, Arc::clone(&items));
            let times = (before.mtime, before.ctime);
            self.sorted.keep(Kept { session, dir: dir.dir, times, items });
        }
        Ok(items)
    }

    async fn own_object(&self, dir: &Dir) -> S3Result<Option<Object>> {
        match self.fs.xattrs(&NodeRef::Dir(dir.dir)).await {
            Ok(xattrs) => {
                let marked = xattrs.iter().any(|(name, _)| name == OBJECT.as_bytes());
                Ok(marked.then_some(Object { parent: None, attr: dir.attr }))
            }
            Err(Error::Fs(
                FsError::NotFound | FsError::Stale | FsError::Denied | FsError::NotPermitted,
            )) => Ok(None),
            Err(error) => Err(of(&error, S3ErrorCode::NoSuchBucket)),
        }
    }
}

/// A page, as S3 sends it.
pub(crate) struct Sent {
    pub(crate) objects: Vec<S3Object>,
    pub(crate) prefixes: Vec<CommonPrefix>,
    /// Where the next page begins, if there is one.
    pub(crate) next: Option<String>,
}

/// How many keys a page may have.
pub(crate) fn keys_max(asked: Option<i32>) -> S3Result<i32> {
    match asked {
        None => Ok(KEYS_MAX),
        Some(asked @ 0..) => Ok(asked.min(KEYS_MAX)),
        Some(_) => Err(crate::error::invalid("max-keys must not be negative")),
    }
}

/// Lists a page of a bucket.
pub(crate) async fn page(
    (fs, session, sorted): (&Fs, usize, &Sorted),
    bucket: &DirRef,
    query: &Query,
    encoding: Option<&EncodingType>,
) -> S3Result<Sent> {
    let source = Bucket { fs, session, dir: *bucket, sorted, used_kept: AtomicBool::new(false) };
    // Only the times of directories that are objects are shown.
    let root = Dir { dir: *bucket, attr: Attr::blank(bucket.ino, FileKind::Directory) };
    let Page { lines, truncated } = walk(&source, &root, query).await?;
    let next = lines.last().filter(|_| truncated).map(|line| line.text().to_owned());
    let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
    for line in lines {
        match line {
            Listed::Object(key, object) => objects.push((key, object)),
            Listed::Prefix(prefix) => {
                prefixes.push(CommonPrefix { prefix: Some(encoded(&prefix, encoding)) });
            }
        }
    }
    // A file that is written in place leaves the directory as it was.
    let anew = source.used_kept.load(Ordering::Relaxed);
    let asked = objects.into_iter().map(|(key, object)| async move {
        let Some((etag, attr)) = now(fs, &key, object, anew).await? else { return Ok(None) };
        Ok(Some(S3Object {
            e_tag: Some(ETag::Strong(etag)),
            key: Some(encoded(&key, encoding)),
            last_modified: Some(metadata::last_modified(&attr)),
            size: Some(metadata::size(attr.size)),
            storage_class: Some("STANDARD".to_owned().into()),
            ..S3Object::default()
        }))
    });
    let objects: Vec<S3Result<Option<S3Object>>> =
        stream::iter(asked).buffered(ETAGS_AT_ONCE).collect().await;
    let objects = objects.into_iter().filter_map(Result::transpose).collect::<S3Result<_>>()?;
    Ok(Sent { objects, prefixes, next })
}

/// The ETag and attributes of a listed object; `None`: the object was removed meanwhile. With
/// `anew` the attributes that were listed may be old.
async fn now(
    fs: &Fs,
    key: &str,
    object: Object,
    mut anew: bool,
) -> S3Result<Option<(String, Attr)>> {
    let mut attr = object.attr;
    let Some(parent) = object.parent else {
        attr.size = 0;
        return Ok(Some((EMPTY_ETAG.to_owned(), attr)));
    };
    let name = key.rsplit('/').next().unwrap_or(key);
    let name = EntryName::new(name.as_bytes()).map_err(S3Error::internal_error)?;
    for _ in 0..TRIES_MAX {
        if anew {
            match fs.find(&parent, &name).await {
                Ok(Some(entry)) if entry.attr.kind == FileKind::File => attr = entry.attr,
                Ok(_) | Err(Error::Fs(FsError::NotDirectory | FsError::Stale)) => return Ok(None),
                Err(error) => return Err(of_object(&error)),
            }
        }
        let file = FileRef { dir: parent, name: name.clone(), ino: attr.ino };
        match fs.xattrs(&NodeRef::File(file)).await {
            Ok(xattrs) => return Ok(Some((metadata::etag(&attr, &xattrs), attr))),
            Err(Error::Fs(FsError::NotFound | FsError::Stale)) => anew = true,
            // A file that this user may not read has the ETag of a file without attributes.
            Err(Error::Fs(FsError::Denied | FsError::NotPermitted)) => {
                return Ok(Some((metadata::etag(&attr, &Vec::new()), attr)));
            }
            Err(error) => return Err(of_object(&error)),
        }
    }
    Err(S3ErrorCode::SlowDown.into())
}

/// Text of a listing as the request wants it: XML cannot have all characters.
pub(crate) fn encoded(text: &str, encoding: Option<&EncodingType>) -> String {
    if encoding.map(EncodingType::as_str) != Some(EncodingType::URL) {
        return text.to_owned();
    }
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                encoded.push(char::from(byte));
            }
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The continuation token of a page that ends with this key or common prefix.
pub(crate) fn token_of(last: &str) -> String {
    URL_SAFE_NO_PAD.encode(last)
}

/// Where the page of a continuation token begins.
pub(crate) fn after_of(token: &str) -> S3Result<String> {
    let bytes = URL_SAFE_NO_PAD.decode(token).ok();
    let after = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    after.ok_or_else(|| crate::error::invalid("the continuation token is none of this gateway's"))
}
