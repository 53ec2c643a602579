//! ETags of listed objects: remembered ones, and those that the file system is asked for.
//!
//! An ETag is an extended attribute, and each change of those changes a file's `ctime`. So what was
//! read once counts while the file has the same number and `ctime`. The memory is by session: what
//! one user may read, another one may not.

use base::{Attr, EntryName, FileKind, FsError, HashMap, Ino, Time};
use client::Error;
use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use s3s::{S3Error, S3ErrorCode, S3Result};
use wire::{DirRef, FileRef, NodeRef};

use crate::{
    error::of_object,
    fs::Fs,
    metadata::{self, EMPTY_ETAG},
};

/// Number of ETags that are asked for at once.
const AT_ONCE: usize = 256;
/// Number of ETags that are remembered.
const REMEMBERED_MAX: usize = 250_000;
/// How often an object is looked up anew that is replaced meanwhile.
const TRIES_MAX: u32 = 16;

/// An object of a listing.
#[derive(Clone)]
pub(crate) struct Object {
    /// The directory that has the file; `None`: the object is a directory.
    pub(crate) parent: Option<DirRef>,
    /// Attributes when its entry was read.
    pub(crate) attr: Attr,
}

/// A listed object as it is.
pub(crate) struct Shown {
    pub(crate) key: String,
    pub(crate) etag: String,
    pub(crate) attr: Attr,
}

/// Remembered ETags, by session and file.
#[derive(Default)]
pub(crate) struct Etags(Mutex<HashMap<(usize, Ino), Remembered>>);

/// An ETag, and the `ctime` of its file.
type Remembered = (Time, Box<str>);

impl Etags {
    fn get(&self, session: usize, attr: &Attr) -> Option<String> {
        let etags = self.0.lock();
        let (time, etag) = etags.get(&(session, attr.ino))?;
        (*time == attr.ctime).then(|| etag.to_string())
    }

    fn put(&self, session: usize, attr: &Attr, etag: &str) {
        let mut etags = self.0.lock();
        if etags.len() >= REMEMBERED_MAX {
            etags.clear();
        }
        etags.insert((session, attr.ino), (attr.ctime, etag.into()));
    }

    /// Says of listed objects what is so now, in the same order; those that are gone are left out.
    /// With `anew` the attributes that were listed may be old.
    pub(crate) async fn show(
        &self,
        (fs, session): (&Fs, usize),
        objects: Vec<(String, Object)>,
        anew: bool,
    ) -> S3Result<Vec<Shown>> {
        let mut shown = Vec::with_capacity(objects.len());
        let mut asked = Vec::new();
        for (at, (key, Object { parent, mut attr })) in objects.into_iter().enumerate() {
            let etag = match parent {
                None => Some(EMPTY_ETAG.to_owned()),
                Some(_) if anew => None,
                Some(_) => self.get(session, &attr),
            };
            if parent.is_none() {
                attr.size = 0;
            }
            if let (None, Some(parent)) = (&etag, parent) {
                asked.push((at, parent));
            }
            shown.push((Shown { key, etag: etag.unwrap_or_default(), attr }, true));
        }
        let answers = asked.into_iter().map(|(at, parent)| {
            let (Shown { key, attr, .. }, _) = &shown[at];
            let (key, attr) = (key.as_str(), *attr);
            async move { (at, self.ask((fs, session), &parent, key, attr, anew).await) }
        });
        let answers: Vec<_> = stream::iter(answers).buffer_unordered(AT_ONCE).collect().await;
        for (at, answer) in answers {
            let (one, is_there) = &mut shown[at];
            match answer? {
                Some((etag, attr)) => (one.etag, one.attr) = (etag, attr),
                None => *is_there = false,
            }
        }
        Ok(shown.into_iter().filter_map(|(one, is_there)| is_there.then_some(one)).collect())
    }

    /// Asks for the ETag and attributes of a file; `None`: the file was removed meanwhile.
    async fn ask(
        &self,
        (fs, session): (&Fs, usize),
        parent: &DirRef,
        key: &str,
        mut attr: Attr,
        mut anew: bool,
    ) -> S3Result<Option<(String, Attr)>> {
        let name = key.rsplit('/').next().unwrap_or(key);
        let name = EntryName::new(name.as_bytes()).map_err(S3Error::internal_error)?;
        for _ in 0..TRIES_MAX {
            if anew {
                match fs.find(parent, &name).await {
                    Ok(Some(entry)) if entry.attr.kind == FileKind::File => attr = entry.attr,
                    Ok(_) | Err(Error::Fs(FsError::NotDirectory | FsError::Stale)) => {
                        return Ok(None);
                    }
                    Err(error) => return Err(of_object(&error)),
                }
                if let Some(etag) = self.get(session, &attr) {
                    return Ok(Some((etag, attr)));
                }
            }
            let file = FileRef { dir: *parent, name: name.clone(), ino: attr.ino };
            let etag = match fs.xattrs(&NodeRef::File(file)).await {
                Ok(xattrs) => metadata::etag(&attr, &xattrs),
                // A file that this user may not read has the ETag of a file without attributes.
                Err(Error::Fs(FsError::Denied | FsError::NotPermitted)) => {
                    metadata::etag(&attr, &Vec::new())
                }
                Err(Error::Fs(FsError::NotFound | FsError::Stale)) => {
                    anew = true;
                    continue;
                }
                Err(error) => return Err(of_object(&error)),
            };
            self.put(session, &attr, &etag);
            return Ok(Some((etag, attr)));
        }
        Err(S3ErrorCode::SlowDown.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_is_remembered_while_its_file_does_not_change() {
        let etags = Etags::default();
        let attr = Attr::blank(Ino(7), FileKind::File);
        etags.put(1, &attr, "e");
        assert_eq!(etags.get(1, &attr).as_deref(), Some("e"));
        assert_eq!(etags.get(2, &attr), None, "another user may not be permitted to read");
        let changed = Attr { ctime: Time { sec: 1, nsec: 0 }, ..attr };
        assert_eq!(etags.get(1, &changed), None);
    }
}
