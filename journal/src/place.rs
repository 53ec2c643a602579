//! Where a journal is: its names, its key, and the requests that are sent for it.
//!
//! Always true: each request ends within [`Journal::request`], so a store that does not answer is
//! seen; a segment that was read is authentic, and belongs to this journal and number.

use std::{collections::BTreeMap, future::Future, time::Duration};

use backup::{Key, Manifest, Names, Place, seal};
use base::Random;
use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::{ObjectStoreExt as _, PutMode};

use crate::{Error, Result, Segment, bugs::Bug, segment};

/// The journal of one member, in a place.
#[derive(Clone)]
pub struct Journal {
    place: Place,
    names: Names,
    key: Key,
    pub(crate) uuid: u128,
    pub(crate) history: u64,
    pub(crate) member: u32,
    request: Duration,
    #[cfg(test)]
    pub(crate) planted: Option<Bug>,
}

impl Journal {
    /// The journal of a member of the file system `uuid`, in one of its histories.
    ///
    /// The place was opened with [`Place::open_once`]: a client that repeats puts would hide what
    /// became of the first one. `request` bounds each request, sent with either client.
    #[must_use]
    pub fn new(
        place: Place,
        (uuid, history): (u128, u64),
        member: u32,
        key: Key,
        request: Duration,
    ) -> Journal {
        Journal {
            place,
            names: Names::new(uuid, history),
            key,
            uuid,
            history,
            member,
            request,
            #[cfg(test)]
            planted: None,
        }
    }

    /// Whether a bug is planted.
    pub(crate) fn has(&self, bug: Bug) -> bool {
        #[cfg(test)]
        return self.planted == Some(bug);
        #[cfg(not(test))]
        {
            let _ = bug;
            false
        }
    }

    async fn within<T>(
        &self,
        request: impl Future<Output = std::result::Result<T, impl Into<Error>>>,
    ) -> Result<T> {
        match tokio::time::timeout(self.request, request).await {
            Ok(done) => done.map_err(Into::into),
            Err(_) => Err(Error::Slow(self.request)),
        }
    }

    /// Puts a segment where there is none. Any result but success is unknown.
    ///
    /// A directory may be unmounted at any time, and a put would begin another chain beneath its
    /// mount point: there the segment before is looked for first.
    pub(crate) async fn put(&self, number: u64, sealed: Bytes) -> Result<()> {
        if self.place.is_directory() {
            self.place.is_there()?;
            if number > 1 && !self.has_segment(number - 1).await? {
                return Err(Error::NotMounted(number - 1));
            }
        }
        let path = self.place.path(&self.names.segment(number));
        let put = self.place.objects().put_opts(&path, sealed.into(), PutMode::Create.into());
        self.within(put).await.map(drop)
    }

    /// Reads a segment; `None` when it is not there.
    ///
    /// # Errors
    /// When the store fails, or the object is not this segment.
    pub async fn read(&self, number: u64) -> Result<Option<Segment>> {
        let name = self.names.segment(number);
        let path = self.place.path(&name);
        let get = async {
            let found = match self.place.objects().get(&path).await {
                Err(object_store::Error::NotFound { .. }) => return Ok(None),
                found => found?,
            };
            // Not read, as no segment is so long.
            if found.meta.size > seal::sealed_bytes(segment::bytes_max() as u64) {
                return Err(Error::Altered(number));
            }
            Ok(Some(found.bytes().await?))
        };
        let Some(sealed) = self.within(get).await? else { return Ok(None) };
        let bytes = seal::open(seal::Kind::Segment, &self.key, &name, &sealed);
        let bytes = bytes.map_err(|error| match error {
            backup::Error::OtherKey { found, given, .. } => {
                Error::OtherKey { number, found, given }
            }
            _ => Error::Altered(number),
        })?;
        let (header, records) =
            segment::decode(&bytes).map_err(|reason| Error::Malformed { number, reason })?;
        let differs = [
            (header.uuid == self.uuid, "the file system"),
            (header.history == self.history, "the history"),
            (header.member == self.member, "the member"),
            (header.number == number, "the number"),
        ];
        if let Some((_, what)) = differs.into_iter().find(|(same, _)| !same) {
            return Err(Error::Foreign { number, what });
        }
        Ok(Some(Segment { header, records, stored_bytes: sealed.len() as u64 }))
    }

    /// Whether a segment is there, unread.
    pub(crate) async fn has_segment(&self, number: u64) -> Result<bool> {
        let path = self.place.path(&self.names.segment(number));
        let head = async {
            match self.place.objects().head(&path).await {
                Ok(_) => Ok(true),
                Err(object_store::Error::NotFound { .. }) => Ok(false),
                Err(error) => Err(Error::Store(error)),
            }
        };
        self.within(head).await
    }

    /// Deletes a segment.
    pub(crate) async fn delete(&self, number: u64) -> Result<()> {
        self.within(self.place.delete(&self.names.segment(number))).await
    }

    /// Numbers of the segments that the store lists, rising, with their lengths: a hint. Others may
    /// have put objects there.
    pub(crate) async fn listed(&self) -> Result<BTreeMap<u64, u64>> {
        self.listed_after(0).await
    }

    /// The same, of the segments after this one. However many there are, only the wait for the next
    /// one is bounded.
    async fn listed_after(&self, number: u64) -> Result<BTreeMap<u64, u64>> {
        let folder = self.place.path(&self.names.journal());
        let after = self.place.path(&self.names.segment(number));
        let mut listed = self.place.objects().list_with_offset(Some(&folder), &after);
        let mut found = BTreeMap::new();
        while let Some(object) = self.within(listed.try_next()).await? {
            let mut below = object.location.prefix_match(&folder).into_iter().flatten();
            let name = below.next().filter(|name| name.as_ref().len() == 16);
            let number = name.and_then(|name| u64::from_str_radix(name.as_ref(), 16).ok());
            found.extend(number.map(|number| (number, object.size)));
        }
        Ok(found)
    }

    /// The highest segment above a number that the store lists and that is this journal's.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn beyond(&self, number: u64) -> Result<Option<u64>> {
        for above in self.listed_after(number).await?.into_keys().rev() {
            match self.read(above).await {
                Ok(Some(_)) => return Ok(Some(above)),
                Err(error) if error.is_passing() => return Err(error),
                Ok(None) => {}
                Err(error) => {
                    let error = base::error::describe(&error);
                    tracing::warn!(number = above, error, "an object that is no segment");
                }
            }
        }
        Ok(None)
    }

    /// The complete bases of the history that `wanted` takes, the newest first, at most `max`.
    pub(crate) async fn bases(
        &self,
        max: usize,
        wanted: impl Fn(&Manifest) -> bool,
    ) -> Result<Vec<Manifest>> {
        let mut bases = Vec::new();
        let numbers = self.within(self.place.numbers(&self.names)).await?;
        if numbers.is_empty() {
            return Ok(bases);
        }
        let mut objects = None;
        for number in numbers.into_iter().rev() {
            let manifest =
                match self.within(self.place.manifest(&self.names, number, &self.key)).await {
                    // Removed since it was listed.
                    Err(Error::Base(backup::Error::Missing(_))) => continue,
                    // Others may write to the store.
                    Err(Error::Base(error)) => {
                        let error = base::error::describe(&error);
                        tracing::warn!(number, error, "an object that is no base");
                        continue;
                    }
                    manifest => manifest?,
                };
            if !wanted(&manifest) {
                continue;
            }
            let objects = match &mut objects {
                Some(objects) => objects,
                none => none.insert(self.within(self.place.list(&self.names.objects())).await?),
            };
            let is_there = |file: &backup::File| {
                let bytes = seal::sealed_bytes(file.bytes);
                objects.get(&file.object).is_some_and(|listed| listed.bytes == bytes)
            };
            if manifest.files.iter().all(is_there) {
                bases.push(manifest);
            }
            if bases.len() == max {
                break;
            }
        }
        Ok(bases)
    }

    /// Seals a segment.
    pub(crate) fn seal(&self, number: u64, bytes: &[u8], random: &dyn Random) -> Bytes {
        let salt = random_id(random).to_be_bytes();
        seal::seal(seal::Kind::Segment, &self.key, &self.names.segment(number), salt, bytes)
    }
}

/// A random number that no other object has.
pub(crate) fn random_id(random: &dyn Random) -> u128 {
    u128::from(random.next()) << 64 | u128::from(random.next())
}
