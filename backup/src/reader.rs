//! Bases are found, checked and restored.
//!
//! Everything is verified on the way: the seal of each object, its name, and length and CRC-32C of
//! each file. A restore writes files of the base only, and syncs them.

use std::{
    collections::BTreeMap, fs, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path,
};

use futures::{StreamExt as _, TryStreamExt as _};
use object_store::ObjectStoreExt as _;

use crate::{
    Candidate, Error, File, Key, Manifest, Place, Result,
    place::Names,
    seal::{Opener, sealed_bytes},
};

/// Files that are read at a time.
const READS: usize = 4;

/// A base as it is found.
#[derive(Clone, Debug)]
pub struct Base {
    pub(crate) names: Names,
    /// The manifest.
    pub manifest: Manifest,
    /// When it was made, but not after a later base of its history: a clock may have been wrong.
    pub at: u64,
    /// Number of files whose object is missing, or has another length.
    pub missing: u64,
}

/// Bases that are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Id of their history; `None`: the only one that has such bases.
    pub history: Option<String>,
    /// Time of the last one, in seconds since the Unix epoch; `None`: the newest.
    pub at: Option<u64>,
}

/// How far a check or a restore is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of files that are done.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
}

impl Base {
    /// Sees that bases, the oldest first, are of one history.
    ///
    /// # Errors
    /// [`Error::Ambiguous`].
    pub fn must_be_of_one_history(bases: &[Base]) -> Result<()> {
        let mut histories = BTreeMap::new();
        for base in bases {
            let Manifest { uuid, history, name, .. } = base.manifest.clone();
            let of = (uuid.clone(), history.clone());
            histories.insert(of, Candidate { history, uuid, name, newest: base.at });
        }
        if histories.len() > 1 {
            return Err(Error::Ambiguous(histories.into_values().collect()));
        }
        Ok(())
    }

    /// Whether all objects are there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing == 0
    }
}

impl Place {
    /// The bases that this key opens, of one history or all of them, the oldest first. Manifests
    /// that cannot be read are logged and left out, unless none can.
    ///
    /// # Errors
    /// When the store fails, or there are manifests and none can be read.
    pub async fn bases(&self, key: &Key, of: Option<&str>) -> Result<Vec<Base>> {
        let (mut bases, mut first) = (Vec::<Base>::new(), None);
        for uuid in self.folders("").await? {
            for history in self.folders(&uuid).await? {
                if of.is_some_and(|of| of != history) {
                    continue;
                }
                let names = Names { uuid: uuid.clone(), history };
                let numbers = self.numbers(&names).await?;
                let first_of_history = bases.len();
                if numbers.is_empty() {
                    continue;
                }
                let listed = self.list(&names.objects()).await?;
                let lengths: BTreeMap<_, _> =
                    listed.into_iter().map(|(id, listed)| (id, listed.bytes)).collect();
                for number in numbers {
                    match self.manifest(&names, number, key).await {
                        Ok(manifest) => {
                            let is_missing = |file: &&File| {
                                lengths.get(&file.object) != Some(&sealed_bytes(file.bytes))
                            };
                            let missing = manifest.files.iter().filter(is_missing).count() as u64;
                            bases.push(Base {
                                names: names.clone(),
                                at: manifest.made,
                                manifest,
                                missing,
                            });
                        }
                        Err(error @ Error::Store(_)) => return Err(error),
                        Err(error) => {
                            let text = base::error::describe(&error);
                            // Other file systems may have bases in the same place.
                            if matches!(error, Error::OtherKey { .. }) {
                                tracing::debug!(error = text, "a base is passed over");
                            } else {
                                tracing::warn!(error = text, "a base is passed over");
                            }
                            first.get_or_insert(error);
                        }
                    }
                }
                let mut later = u64::MAX;
                for base in bases[first_of_history..].iter_mut().rev() {
                    later = later.min(base.at);
                    base.at = later;
                }
            }
        }
        if bases.is_empty()
            && let Some(error) = first
        {
            return Err(error);
        }
        bases.sort_by_key(|base| (base.at, base.manifest.number));
        Ok(bases)
    }

    /// The newest complete base of those that are wanted. Bases of several histories are not
    /// compared: a restored copy and its original may both have newer ones than the other.
    ///
    /// # Errors
    /// [`Error::NoBase`], [`Error::Ambiguous`], or as [`Place::bases`].
    pub async fn choose(&self, key: &Key, wanted: &Wanted) -> Result<Base> {
        let (of, at) = (wanted.history.as_deref(), wanted.at);
        let mut bases = self.bases(key, of).await?;
        if bases.is_empty() {
            let of = of.map(|of| format!("of history {of} ")).unwrap_or_default();
            return Err(Error::NoBase(format!("{of}is there")));
        }
        bases.retain(|base| at.is_none_or(|at| base.at <= at));
        let before = bases.len();
        bases.retain(Base::is_complete);
        if bases.len() < before {
            let incomplete = before - bases.len();
            tracing::warn!(incomplete, "bases that lack objects are passed over");
        }
        Base::must_be_of_one_history(&bases)?;
        bases.pop().ok_or_else(|| {
            let of = if at.is_some() { " of that time or before" } else { "" };
            Error::NoBase(format!("{of} has all its objects").trim_start().to_owned())
        })
    }

    /// Reads and verifies all objects of a base.
    ///
    /// # Errors
    /// The first fault.
    pub async fn check(&self, base: &Base, key: &Key, told: &dyn Fn(Progress)) -> Result<()> {
        self.each(
            base,
            told,
            |file| async move { self.read(base, file, key, &mut |_| Ok(())).await },
        )
        .await
    }

    /// Writes the files of a base into a folder, and returns when they are on stable storage. Files
    /// that are there already are replaced. Only their owner can read them.
    ///
    /// # Errors
    /// The first fault: the folder is then of no use.
    pub async fn restore(
        &self,
        base: &Base,
        key: &Key,
        to: &Path,
        told: &dyn Fn(Progress),
    ) -> Result<()> {
        for file in &base.manifest.files {
            let path = to.join(&file.path);
            let folder = path.parent().unwrap_or(to);
            fs::create_dir_all(folder).map_err(Error::local(folder))?;
        }
        self.each(base, told, |file| async move {
            let path = to.join(&file.path);
            let failed = |error| Error::local(&path)(error);
            let mut options = fs::OpenOptions::new();
            let mut out = options
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&path)
                .map_err(failed)?;
            self.read(base, file, key, &mut |chunk| out.write_all(chunk).map_err(failed)).await?;
            out.sync_all().map_err(failed)?;
            let folder = path.parent().unwrap_or(to);
            store::stable::sync_folder(folder).map_err(Error::local(folder))
        })
        .await
    }

    async fn each<'a, F: Future<Output = Result<()>>>(
        &self,
        base: &'a Base,
        told: &dyn Fn(Progress),
        work: impl Fn(&'a File) -> F,
    ) -> Result<()> {
        let mut progress = Progress::default();
        let files = base.manifest.files.iter();
        let one = |file: &'a File| {
            let done = work(file);
            async move { done.await.map(|()| file.bytes) }
        };
        let mut done = futures::stream::iter(files.map(one)).buffer_unordered(READS);
        while let Some(bytes) = done.try_next().await? {
            progress.files += 1;
            progress.bytes += bytes;
            told(progress);
        }
        Ok(())
    }

    /// Reads one file, and compares it with what the manifest says of it.
    async fn read(
        &self,
        base: &Base,
        file: &File,
        key: &Key,
        out: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let name = base.names.object(&file.object);
        let found = self.objects.get(&self.path(&name)).await.map_err(|error| match error {
            object_store::Error::NotFound { .. } => Error::Missing(name.clone()),
            error => error.into(),
        })?;
        let (mut bytes, mut crc) = (0, 0);
        let mut count = |chunk: &[u8]| {
            bytes += chunk.len() as u64;
            crc = crc32c::crc32c_append(crc, chunk);
            out(chunk)
        };
        let mut opener = Opener::new(key, &name);
        let mut stream = found.into_stream();
        while let Some(piece) = stream.try_next().await? {
            opener.take(&piece, &mut count)?;
        }
        opener.end(&mut count)?;
        if (bytes, crc) == (file.bytes, file.crc32c) { Ok(()) } else { Err(Error::Altered(name)) }
    }
}
