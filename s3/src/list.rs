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
    time::Duration,
};

use base::{Attr, FileKind, FsError, Time};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use client::Error;
use parking_lot::Mutex;
use s3s::{
    S3Error, S3ErrorCode, S3Result,
    dto::{CommonPrefix, ETag, EncodingType, Object as S3Object},
};
use tokio::{sync::Semaphore, task::JoinHandle, time::Instant};
use wire::{DirRef, NodeRef};

use crate::{
    error::of,
    etags::{Etags, Object, Shown},
    fs::Fs,
    key::STAGING,
    metadata::{self, OBJECT},
    walk::{Item, Items, Listed, Node, Page, Query, Source, walk},
};

/// Number of keys of a page at most, as in S3.
const KEYS_MAX: i32 = 1000;
/// Time for which the attributes that came with a large directory are believed.
const FRESH: Duration = Duration::from_secs(1);
/// A large directory is read anew after that many times the time that reading it takes. Until then
/// the keys of each page are looked up.
const READ_SHARE: u32 = 10;
/// Number of pages that are prepared at most.
const AHEAD_MAX: usize = 64;
/// Directories with fewer entries are read anew for each page.
const KEPT_ENTRIES_MIN: usize = 1000;
/// Number of directories of so many entries that are read at once.
const READ_AT_ONCE: usize = 4;
/// Number of entries of all directories that are kept.
const KEPT_ENTRIES_MAX: usize = 1_000_000;

/// A directory on the walk.
#[derive(Clone)]
pub(crate) struct Dir {
    dir: DirRef,
    /// Attributes when its entry was read.
    attr: Attr,
}

/// A sorted directory that is kept.
struct Kept {
    session: usize,
    dir: DirRef,
    /// When its entries and its attributes were changed.
    times: (Time, Time),
    /// When the entries were read, and how long that took.
    at: Instant,
    took: Duration,
    items: Items<Bucket<'static>>,
}

/// A page that is prepared: its ETags are asked for.
struct Ahead {
    session: usize,
    dir: DirRef,
    after: String,
    task: JoinHandle<()>,
}

/// Sorted directories of which a page was sent; the latest last.
pub(crate) struct Sorted {
    kept: Mutex<VecDeque<Kept>>,
    etags: Etags,
    ahead: Mutex<VecDeque<Ahead>>,
    /// Large directories are read a few at a time.
    reading: Semaphore,
}

impl Default for Sorted {
    fn default() -> Sorted {
        Sorted {
            kept: Mutex::default(),
            etags: Etags::default(),
            ahead: Mutex::default(),
            reading: Semaphore::new(READ_AT_ONCE),
        }
    }
}

impl Sorted {
    /// A directory that has not changed since it was read, when that was and how long it took.
    fn get(
        &self,
        session: usize,
        dir: &DirRef,
        attr: &Attr,
    ) -> Option<(Items<Bucket<'static>>, Instant, Duration)> {
        let mut kept = self.kept.lock();
        let at = kept.iter().position(|kept| kept.session == session && kept.dir.same(dir))?;
        let found = kept.remove(at)?;
        // Of an older state nothing is needed any more.
        if found.times != (attr.mtime, attr.ctime) {
            return None;
        }
        let known = (Arc::clone(&found.items), found.at, found.took);
        kept.push_back(found);
        Some(known)
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

    /// Begins to ask for the ETags of the page that `query` asks for.
    fn prepare(self: &Arc<Sorted>, (fs, session): (&Fs, usize), dir: &DirRef, query: Query) {
        let (fs, dir, sorted, after) = (fs.clone(), *dir, Arc::clone(self), query.after.clone());
        let task = tokio::spawn(async move {
            let Ok(page) = read((&fs, session, &sorted), &dir, &query).await else { return };
            // An error comes again with the page, which tells it.
            let _ = sorted.etags.show((&fs, session), page.objects, page.anew).await;
        });
        let mut ahead = self.ahead.lock();
        ahead.push_back(Ahead { session, dir, after, task });
        while ahead.len() > AHEAD_MAX {
            ahead.pop_front();
        }
    }

    /// Waits for a page that is being prepared.
    async fn prepared(&self, session: usize, dir: &DirRef, after: &str) {
        let found = {
            let mut ahead = self.ahead.lock();
            let is_it =
                |one: &Ahead| one.session == session && one.after == after && one.dir.same(dir);
            let at = ahead.iter().position(is_it);
            at.and_then(|at| ahead.remove(at))
        };
        if let Some(found) = found {
            // A task that has failed has prepared nothing.
            let _ = found.task.await;
        }
    }
}

/// A bucket as the walk sees it.
pub(crate) struct Bucket<'g> {
    fs: &'g Fs,
    session: usize,
    dir: DirRef,
    sorted: &'g Sorted,
    /// Whether the entries of a directory were read some time ago.
    is_old: AtomicBool,
    /// Whether a directory was read that is not kept.
    is_small: AtomicBool,
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
            if let Some((items, at, took)) = self.sorted.get(self.session, &dir.dir, &attr) {
                // A file that is written in place leaves the directory as it was.
                let (age, is_due) = (at.elapsed(), at.elapsed() > took * READ_SHARE);
                if age <= FRESH || !is_due {
                    self.is_old.fetch_or(age > FRESH, Ordering::Relaxed);
                    return Ok(items);
                }
            }
            if attr.size >= KEPT_ENTRIES_MIN as u64 {
                _reading = self.sorted.reading.acquire().await.ok();
            }
        }
        let at = Instant::now();
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
            let took = at.elapsed();
            self.sorted.keep(Kept { session, dir: dir.dir, times, at, took, items });
        } else {
            self.is_small.store(true, Ordering::Relaxed);
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
    (fs, session, sorted): (&Fs, usize, &Arc<Sorted>),
    bucket: &DirRef,
    query: &Query,
    encoding: Option<&EncodingType>,
) -> S3Result<Sent> {
    sorted.prepared(session, bucket, &query.after).await;
    let read = read((fs, session, sorted), bucket, query).await?;
    let etags = &sorted.etags;
    let shown = etags.show((fs, session), read.objects, read.anew).await?;
    // A client that asks for a second page mostly asks for all of them.
    if let Some(next) = &read.next
        && read.kept
        && !query.after.is_empty()
    {
        let query = Query { after: next.clone(), ..query.clone() };
        sorted.prepare((fs, session), bucket, query);
    }
    let object = |Shown { key, etag, attr }| S3Object {
        e_tag: Some(ETag::Strong(etag)),
        key: Some(encoded(&key, encoding)),
        last_modified: Some(metadata::last_modified(&attr)),
        size: Some(metadata::size(attr.size)),
        storage_class: Some("STANDARD".to_owned().into()),
        ..S3Object::default()
    };
    let prefix = |prefix: String| CommonPrefix { prefix: Some(encoded(&prefix, encoding)) };
    Ok(Sent {
        objects: shown.into_iter().map(object).collect(),
        prefixes: read.prefixes.into_iter().map(prefix).collect(),
        next: read.next,
    })
}

/// A page, as directories have it.
struct Read {
    objects: Vec<(String, Object)>,
    prefixes: Vec<String>,
    next: Option<String>,
    /// The attributes of objects may be old.
    anew: bool,
    /// All directories are kept for the next page.
    kept: bool,
}

async fn read(
    (fs, session, sorted): (&Fs, usize, &Sorted),
    bucket: &DirRef,
    query: &Query,
) -> S3Result<Read> {
    let (is_old, is_small) = (AtomicBool::new(false), AtomicBool::new(false));
    let source = Bucket { fs, session, dir: *bucket, sorted, is_old, is_small };
    // Only the times of directories that are objects are shown.
    let root = Dir { dir: *bucket, attr: Attr::blank(bucket.ino, FileKind::Directory) };
    let Page { lines, truncated } = walk(&source, &root, query).await?;
    let next = lines.last().filter(|_| truncated).map(|line| line.text().to_owned());
    let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
    for line in lines {
        match line {
            Listed::Object(key, object) => objects.push((key, object)),
            Listed::Prefix(prefix) => prefixes.push(prefix),
        }
    }
    let (anew, kept) = (source.is_old.into_inner(), !source.is_small.into_inner());
    Ok(Read { objects, prefixes, next, anew, kept })
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
