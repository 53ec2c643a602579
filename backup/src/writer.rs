//! One history: its bases are made, and old ones removed.
//!
//! A base is put in this order: objects that the store lacks, a look that all objects are there,
//! the manifest. A crash in between leaves objects that no manifest names; the next base of this
//! process uses them, and the collection removes them when they are a day old by the store's clock.
//! Manifests are deleted before the objects that only they name.
//!
//! Race: two processes with copies of one data directory would write one history. A manifest whose
//! number this process did not give shows it, at the next base: [`Error::Foreign`]. Only a manifest
//! with a sound seal counts, as others than the owner may be able to put objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read as _,
    path::Path,
};

use base::{HashMap, Random};
use bytes::Bytes;
use object_store::{ObjectStoreExt as _, PutMode, buffered::BufWriter};
use tokio::io::AsyncWriteExt as _;

use crate::{
    Error, File, Key, Manifest, Place, Result,
    key::hex,
    place::Names,
    retention,
    seal::{CHUNK_BYTES, SALT_BYTES, Sealer, sealed_bytes},
};

/// Objects up to this length are put at once, longer ones in parts of it: the least that S3 takes.
const PART_BYTES: usize = 5 << 20;
/// Parts under way at a time.
const PARTS: usize = 2;
/// Age of an object that no manifest names, by the store's clock, from which it is removed.
const UNNAMED_SECONDS: i64 = 24 * 3600;
/// Ending of files that never change: RocksDB gives no name twice.
const TABLE: &str = ".sst";

/// The bases of one data directory.
pub struct History {
    place: Place,
    names: Names,
    key: Key,
    /// Number of the newest base that this data directory has begun.
    newest: u64,
    /// Number of the newest base of this history that was made; 0: none is known.
    made: u64,
    /// Tables that are stored, by path and length.
    stored: Stored,
    /// Paths of those that an earlier process has stored, until they are compared.
    doubtful: BTreeSet<String>,
    /// Manifests that were read or put, by number.
    manifests: BTreeMap<u64, Manifest>,
    /// Whether the newest base of an earlier process was read.
    has_remembered: bool,
}

/// A history as a data directory has noted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Id of the history.
    pub history: u64,
    /// Number of the newest base that the directory has begun, in whatever history; 0: none.
    pub newest: u64,
    /// Number of the newest base that was made in this history; 0: none is known.
    pub made: u64,
}

/// Tables by path and length.
type Stored = HashMap<(String, u64), File>;

/// The moment that a base is of.
#[derive(Clone, Debug)]
pub struct Moment {
    /// Seconds since the Unix epoch.
    pub made: u64,
    /// Position of the engine, no later than the copy.
    pub position: u64,
    /// Generation of the server, and the number of the newest segment of its journal, which was
    /// stored before the copy was begun. Both are 0 without a journal.
    pub journal: (u64, u64),
    /// Number of the server in its cluster; `None` for the only server of a file system.
    pub server: Option<u16>,
    /// Name of the file system.
    pub name: String,
}

/// A base that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Number of the base.
    pub number: u64,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Bytes of the files that were uploaded for it.
    pub uploaded: u64,
}

/// Bases and objects that a collection has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Number of bases that are kept.
    pub bases: u64,
    /// Number of the oldest of them.
    pub oldest: u64,
    /// Bytes of all objects of this history.
    pub bytes: u64,
    /// Number of bases that were removed.
    pub removed: u64,
}

impl History {
    /// A history of the file system `uuid`, as its data directory has noted it.
    #[must_use]
    pub fn new(place: Place, uuid: u128, noted: Noted, key: Key) -> History {
        History {
            place,
            names: Names::new(uuid, noted.history),
            key,
            newest: noted.newest,
            made: noted.made,
            stored: HashMap::default(),
            doubtful: BTreeSet::new(),
            manifests: BTreeMap::new(),
            has_remembered: false,
        }
    }

    /// Number of the next base. The caller notes it on stable storage before it makes the base.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.newest + 1
    }

    /// Looks whether another process writes this history, and whether its bases are there.
    ///
    /// # Errors
    /// [`Error::Foreign`]; [`Error::NoDirectory`] and [`Error::Empty`] for a place that is not the
    /// one that was used; or what the store says.
    pub async fn check_owner(&mut self) -> Result<()> {
        let (own, others) = self.numbers().await?;
        for number in others.iter().rev() {
            match self.place.manifest(&self.names, *number, &self.key).await {
                Ok(_) => return Err(Error::Foreign),
                Err(error @ Error::Store(_)) => return Err(error),
                Err(error) => {
                    let error = base::error::describe(&error);
                    tracing::warn!(error, "an object that is no base is passed over");
                }
            }
        }
        self.must_have_bases(&own)?;
        if !self.has_remembered {
            if let Some(newest) = own.last() {
                self.remember(*newest).await?;
            }
            self.has_remembered = true;
        }
        Ok(())
    }

    /// Numbers of the bases, ascending, and names of the same form that this process did not give.
    async fn numbers(&self) -> Result<(BTreeSet<u64>, BTreeSet<u64>)> {
        self.place.is_there()?;
        let numbers = self.place.numbers(&self.names).await?.into_iter();
        Ok(numbers.partition(|number| *number <= self.newest))
    }

    /// A place that has lost all bases is not the one that was used.
    fn must_have_bases(&mut self, own: &BTreeSet<u64>) -> Result<()> {
        let newest = own.last().copied().unwrap_or_default();
        if newest == 0 && self.made > 0 {
            return Err(Error::Empty { newest: self.made });
        }
        self.made = self.made.max(newest);
        Ok(())
    }

    /// Remembers the tables of an earlier process' newest base.
    async fn remember(&mut self, number: u64) -> Result<()> {
        match self.place.manifest(&self.names, number, &self.key).await {
            Ok(manifest) => {
                self.stored = tables_of(&manifest);
                self.doubtful = self.stored.keys().map(|(path, _)| path.clone()).collect();
                self.manifests.insert(number, manifest);
                Ok(())
            }
            Err(error @ Error::Store(_)) => Err(error),
            Err(error) => {
                let error = base::error::describe(&error);
                tracing::warn!(error, "the last base cannot be read: everything is uploaded anew");
                Ok(())
            }
        }
    }

    /// Makes a base of the files in a folder, whose paths are to begin with `below`, and of small
    /// files at hand. [`History::check_owner`] was called before.
    ///
    /// # Errors
    /// When the store or a file fails. What was uploaded counts for the next try.
    pub async fn make(
        &mut self,
        (folder, below): (&Path, &str),
        small: &[(&str, Bytes)],
        moment: Moment,
        random: &dyn Random,
    ) -> Result<Made> {
        let number = self.next();
        self.newest = number;
        let mut uploaded = 0;
        let mut files = Vec::new();
        for (path, bytes) in small {
            let mut contents: &[u8] = bytes;
            files.push(self.upload((*path).to_owned(), &mut contents, random).await?);
            uploaded += bytes.len() as u64;
        }
        let paths = files_of(folder)?;
        for name in &paths {
            let path = format!("{below}/{name}");
            let (file, new) = self.file(&folder.join(name), path, random).await?;
            uploaded += if new { file.bytes } else { 0 };
            files.push(file);
        }
        uploaded += self.complete(folder, below, &mut files, random).await?;
        let manifest = Manifest {
            version: Manifest::version(),
            uuid: self.names.uuid.clone(),
            history: self.names.history.clone(),
            number,
            made: moment.made,
            position: moment.position,
            generation: moment.journal.0,
            segment: moment.journal.1,
            server: moment.server,
            name: moment.name,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            files,
        };
        self.put_manifest(&manifest, random).await?;
        let bytes = manifest.bytes();
        self.stored = tables_of(&manifest);
        self.manifests.insert(number, manifest);
        self.made = number;
        Ok(Made { number, bytes, uploaded })
    }

    /// The stored form of a local file, and whether it was uploaded now.
    async fn file(
        &mut self,
        local: &Path,
        path: String,
        random: &dyn Random,
    ) -> Result<(File, bool)> {
        let failed = |error| Error::local(local)(error);
        let mut contents = fs::File::open(local).map_err(failed)?;
        let bytes = contents.metadata().map_err(failed)?.len();
        let is_table = path.ends_with(TABLE);
        let known = self.stored.get(&(path.clone(), bytes)).filter(|_| is_table).cloned();
        if let Some(known) = known {
            // A data directory that was replaced may give a name to another table.
            if !self.doubtful.contains(&path) {
                return Ok((known, false));
            }
            let same = crc_of(local).await? == known.crc32c;
            if !same {
                // An upload that fails must not leave the other table's object under this name.
                self.stored.remove(&(path.clone(), bytes));
            }
            self.doubtful.remove(&path);
            if same {
                return Ok((known, false));
            }
        }
        let file = self.upload(path.clone(), &mut contents, random).await?;
        if is_table {
            self.stored.insert((path, file.bytes), file.clone());
        }
        Ok((file, true))
    }

    /// Uploads again what the store has lost. Returns the number of bytes.
    async fn complete(
        &mut self,
        folder: &Path,
        below: &str,
        files: &mut [File],
        random: &dyn Random,
    ) -> Result<u64> {
        let listed = self.place.list(&self.names.objects()).await?;
        let mut uploaded = 0;
        for file in files {
            let is_there = |listed: &crate::place::Listed| listed.bytes == sealed_bytes(file.bytes);
            if listed.get(&file.object).is_some_and(is_there) {
                continue;
            }
            let name = file.path.strip_prefix(below).and_then(|name| name.strip_prefix('/'));
            let Some(name) = name.filter(|name| name.ends_with(TABLE)) else {
                return Err(Error::Missing(self.names.object(&file.object)));
            };
            tracing::warn!(file = file.path, "the backup store has lost a table: uploaded again");
            self.stored.remove(&(file.path.clone(), file.bytes));
            let (again, _) = self.file(&folder.join(name), file.path.clone(), random).await?;
            uploaded += again.bytes;
            *file = again;
        }
        Ok(uploaded)
    }

    /// Seals a file on its way to the store. At most [`PARTS`] and one parts are in memory.
    async fn upload(
        &self,
        path: String,
        contents: &mut (dyn std::io::Read + Send),
        random: &dyn Random,
    ) -> Result<File> {
        let object = hex(&[random.next().to_be_bytes(), random.next().to_be_bytes()].concat());
        let name = self.names.object(&object);
        let (mut sealer, header) = Sealer::new(&self.key, &name, salt(random));
        let objects = std::sync::Arc::clone(&self.place.objects);
        let mut out = BufWriter::with_capacity(objects, self.place.path(&name), PART_BYTES)
            .with_max_concurrency(PARTS);
        let (mut bytes, mut crc32c) = (0, 0);
        let put: Result<()> = async {
            out.put(header).await?;
            let failed = |error| Error::Local { path: path.clone(), error };
            let mut chunk = read_chunk(contents).map_err(failed)?;
            loop {
                let next = read_chunk(contents).map_err(failed)?;
                bytes += chunk.len() as u64;
                crc32c = crc32c::crc32c_append(crc32c, &chunk);
                let last = next.is_empty();
                out.put(sealer.seal(chunk, last)).await?;
                if last {
                    break;
                }
                chunk = next;
            }
            Ok(())
        }
        .await;
        if put.is_err() {
            // A store that takes no request keeps the parts until its own rules remove them.
            let _ = out.abort().await;
        }
        put?;
        // A writer that was shut down cannot be aborted.
        out.shutdown().await.map_err(|error| Error::Store(stream_error(error)))?;
        Ok(File { path, object, bytes, crc32c })
    }

    async fn put_manifest(&self, manifest: &Manifest, random: &dyn Random) -> Result<()> {
        let name = self.names.base(manifest.number);
        let sealed = Sealer::seal_all(&self.key, &name, salt(random), &manifest.to_bytes());
        let path = self.place.path(&name);
        let put = self.place.objects.put_opts(&path, sealed.clone().into(), PutMode::Create.into());
        match put.await {
            Ok(_) => Ok(()),
            // The store's client repeats a request whose answer was lost.
            Err(object_store::Error::AlreadyExists { .. }) => {
                if self.place.get(&name).await? == sealed {
                    return Ok(());
                }
                match self.place.manifest(&self.names, manifest.number, &self.key).await {
                    Ok(_) => Err(Error::Foreign),
                    Err(error @ Error::Store(_)) => Err(error),
                    // The object was put without the key.
                    Err(_) => {
                        self.place.objects.put(&path, sealed.into()).await?;
                        Ok(())
                    }
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes old bases, and objects that no base names. `keep_seconds`: for so long hourly bases
    /// are kept; `quiet_seconds`: for so long nothing has changed since the newest base.
    ///
    /// # Errors
    /// When the store fails, or a manifest cannot be read: then no object is removed. As
    /// [`History::check_owner`] for a place that is not the one that was used.
    pub async fn collect(&mut self, keep_seconds: u64, quiet_seconds: u64) -> Result<Collected> {
        let (numbers, _) = self.numbers().await?;
        self.must_have_bases(&numbers)?;
        self.manifests.retain(|number, _| numbers.contains(number));
        for number in &numbers {
            if !self.manifests.contains_key(number) {
                let read = self.place.manifest(&self.names, *number, &self.key).await?;
                self.manifests.insert(*number, read);
            }
        }
        let times = self.manifests.iter().map(|(number, it)| (*number, it.made)).collect();
        let expired = retention::expired(&times, keep_seconds, quiet_seconds);
        for number in &expired {
            self.place.delete(&self.names.base(*number)).await?;
            self.manifests.remove(number);
        }
        let bytes = self.sweep().await?;
        Ok(Collected {
            bases: self.manifests.len() as u64,
            oldest: self.manifests.keys().next().copied().unwrap_or_default(),
            bytes,
            removed: expired.len() as u64,
        })
    }

    /// Removes objects that no manifest names and that are old enough. Returns the bytes that stay.
    async fn sweep(&self) -> Result<u64> {
        let Some((newest, _)) = self.manifests.last_key_value() else { return Ok(0) };
        let bases = self.place.list(&self.names.bases()).await?;
        let newest = format!("{newest:016x}");
        // The store's time of the newest manifest stands for now.
        let Some(now) = bases.get(&newest).map(|listed| listed.modified) else { return Ok(0) };
        let manifests = self.manifests.values().flat_map(|manifest| &manifest.files);
        let named: BTreeSet<&str> = manifests.map(|file| file.object.as_str()).collect();
        let mut bytes = 0;
        for (id, listed) in self.place.list(&self.names.objects()).await? {
            if !named.contains(id.as_str()) && now - listed.modified > UNNAMED_SECONDS {
                self.place.delete(&self.names.object(&id)).await?;
            } else {
                bytes += listed.bytes;
            }
        }
        Ok(bytes)
    }
}

fn tables_of(manifest: &Manifest) -> Stored {
    let tables = manifest.files.iter().filter(|file| file.path.ends_with(TABLE));
    tables.map(|file| ((file.path.clone(), file.bytes), file.clone())).collect()
}

fn salt(random: &dyn Random) -> [u8; SALT_BYTES] {
    let mut salt = [0; SALT_BYTES];
    salt[..8].copy_from_slice(&random.next().to_be_bytes());
    salt[8..].copy_from_slice(&random.next().to_be_bytes());
    salt
}

/// Names of the files in a folder, which has no folders.
fn files_of(folder: &Path) -> Result<Vec<String>> {
    let failed = |error| Error::local(folder)(error);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Reads a whole chunk, or what is left.
fn read_chunk(contents: &mut (dyn std::io::Read + Send)) -> std::io::Result<Vec<u8>> {
    // Room for the seal's tag, so that a chunk is not copied.
    let mut chunk = Vec::with_capacity(CHUNK_BYTES + 16);
    std::io::Read::take(&mut *contents, CHUNK_BYTES as u64).read_to_end(&mut chunk)?;
    Ok(chunk)
}

/// CRC-32C of a file. Yields after each chunk, so that whoever waits can end it.
async fn crc_of(path: &Path) -> Result<u32> {
    let failed = |error| Error::local(path)(error);
    let mut contents = fs::File::open(path).map_err(failed)?;
    let mut crc = 0;
    loop {
        let chunk = read_chunk(&mut contents).map_err(failed)?;
        if chunk.is_empty() {
            return Ok(crc);
        }
        crc = crc32c::crc32c_append(crc, &chunk);
        tokio::task::yield_now().await;
    }
}

fn stream_error(error: std::io::Error) -> object_store::Error {
    object_store::Error::Generic { store: "backup", source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_sum_of_a_long_table_lets_others_run_after_each_chunk() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("000001.sst");
        fs::write(&table, vec![7; 3 * CHUNK_BYTES]).unwrap();
        let mut sum = std::pin::pin!(crc_of(&table));
        let mut polls = 1;
        let crc = loop {
            match futures::poll!(&mut sum) {
                std::task::Poll::Ready(crc) => break crc.unwrap(),
                std::task::Poll::Pending => polls += 1,
            }
        };
        assert_eq!((crc, polls), (crc32c::crc32c(&vec![7; 3 * CHUNK_BYTES]), 4));
    }
}
