//! The data directory of a server.
//!
//! ```text
//! DIR/pando.json    version of this layout, name, where blocks are; there once all the rest is
//! DIR/meta/         metadata: a RocksDB database
//! DIR/blocks/       contents of files, unless they are elsewhere
//! DIR/signing.key   the root key, which signs tokens until there is a newer one; secret
//! DIR/newest.key    the newest key that signs tokens, once there is another; secret
//! DIR/admin.token   the administrator's token; secret
//! DIR/ca.pem        the certificate of the file system's authority, for browsers and scrapers
//! DIR/member        the number that a server drew before it joined a cluster
//! DIR/coordinator   where a server that has joined was told that the coordinator is
//! DIR/address       where the server listens, while it runs
//! DIR/boot          the run of the machine in which a server of a cluster last had a lease
//! DIR/serve.json    options that `serve` was last given ([`kept`])
//! DIR/backup.key    the key of its backups, once there was one; secret
//! DIR/backup.json   the history of its bases, and the number of the newest one begun
//! DIR/journal.json  the journal's generation, and a segment and base from which it is read
//! DIR/journal-logs/  logs that a start has not brought into the journal yet
//! DIR/backup-copy/  the copy that is being backed up
//! DIR/restored      there in a restored copy, until `pando backup final`
//! DIR/restoring/    what `pando backup restore` has read so far
//! ```
//!
//! Invariants: one process at a time has the directory, by a lock on it. A directory without
//! `pando.json` holds no files of users: a command that was interrupted leaves `formatting` behind,
//! which names it ([`Making`]), and the same command begins anew.

mod backup;
mod founding;
mod journal;
mod kept;

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail, ensure};
use client::SystemClock;
use meta::{Belonging, FormatOptions};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use store::{
    Blocks, BlocksConfig, Compression, LogTail, RocksConfig, RocksEngine,
    stable::{sync_above, sync_folder},
};
use wire::{Fingerprint, Joined, Token, TokenError};

pub(crate) use self::{
    backup::{
        KEY as BACKUP_KEY, Progress as BackupProgress, Restored, backup_key, begin_copy, end_copy,
        finalize, has_backup_key, is_restored, keep_backup_key, make_backup_key, read_backup_key,
        restore, small_files, unmake,
    },
    journal::{JournalNote, drop_logs, keep_logs},
    kept::{Kept, KeptAddress, KeptBackup},
};
use crate::{
    system::{self, SystemRandom, secret},
    values,
};

/// Version of the layout above and of the records in `meta/`.
///
/// 1 was the first. In 2 inodes and content records may end with a quota, and there are records of
/// kinds `O` and `A`; in 3 blocks may be compressed, and there may be a trash; 4 are those of
/// clusters only; in 5, of clusters as well, records of kind `P` may end with the participants, and
/// there are records of kind `E`; in 6 and 7, of clusters, there may be a record of kind `K`, and
/// tokens are `pando2.` ones; in 8 and 9, of clusters, there may be records of kind `L`; in 10 and
/// 11, of clusters, records of kind `M` may end with generations; in 12, and 13 of clusters, keys have
/// three zones, and the configuration has lanes and the hash of ids; in 14, and 15 of clusters,
/// content records may end with a listing; in 16, and 17 of clusters, records of kind `G` may name a
/// base of a backup; in 18, and 19 of clusters, records of kind `A` count what users and groups use;
/// in 20, and 21 of clusters, placement may be hybrid, and content records say so before a listing;
/// in 22, and 23 of clusters, a record of kind `Q` may have several answers.
/// Every data directory can be brought to the next version, but not the other way round.
const VERSION: u32 = 22;
/// Version of a directory of one server of several: who does not know of them must not serve it.
const VERSION_CLUSTER: u32 = 23;
/// The oldest that is brought up to date.
const VERSION_MIN: u32 = 1;
const ABOUT: &str = "pando.json";
const FORMATTING: &str = "formatting";
const META: &str = "meta";
const BLOCKS: &str = "blocks";
const SIGNING_KEY: &str = "signing.key";
const NEWEST_KEY: &str = "newest.key";
const ADMIN_TOKEN: &str = "admin.token";
const AUTHORITY: &str = "ca.pem";
const MEMBER: &str = "member";
const COORDINATOR: &str = "coordinator";
const ADDRESS: &str = "address";
const BOOT: &str = "boot";
/// Advice for damaged files.
const ADVICE: &str = "load a dump into another directory (`pando load`), or bring back a copy";
/// The folder that a new ext4 disk has.
const LOST_AND_FOUND: &str = "lost+found";

/// Choices made when a file system is made.
pub(crate) struct New {
    pub(crate) name: String,
    pub(crate) shards: u16,
    /// Number of servers it will have.
    pub(crate) servers: u16,
    pub(crate) locality: base::Locality,
    pub(crate) inline_bytes_max: u32,
    /// Where blocks are; `None`: in the data directory.
    pub(crate) blocks: Option<String>,
    /// Compression of blocks.
    pub(crate) compression: Compression,
}

/// Command that makes a file system, or a server's part of one, in a directory. Persisted: until
/// its end the file `formatting` holds its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Making {
    Format,
    Load,
    Join,
    Restore,
}

impl Making {
    /// Returns the interrupted command that left something in a directory. The inner `None`: a
    /// command that is not known any more, as it was interrupted at its last step.
    fn left_in(path: &Path) -> Option<Option<Making>> {
        let mark = fs::read(path.join(FORMATTING)).ok()?;
        let known = [Making::Format, Making::Load, Making::Join, Making::Restore];
        Some(known.into_iter().find(|making| mark.trim_ascii() == making.name().as_bytes()))
    }

    fn name(self) -> &'static str {
        match self {
            Making::Format => "format",
            Making::Load => "load",
            Making::Join => "join",
            Making::Restore => "restore",
        }
    }

    /// The command line, as far as it is known.
    fn command(self) -> &'static str {
        match self {
            Making::Format => "pando format",
            Making::Load => "pando load",
            Making::Join => "pando serve --join",
            Making::Restore => "pando backup restore",
        }
    }

    /// Error for a directory in which the command was interrupted.
    fn interrupted(self, path: &Path) -> anyhow::Error {
        let (name, command, path) = (self.name(), self.command(), path.display());
        anyhow!("a {name} in {path} was interrupted: run `{command}` again, or remove {path}")
    }
}

/// Contents of `pando.json`. Persisted.
#[derive(Debug, Serialize, Deserialize)]
struct About {
    version: u32,
    name: String,
    /// URL of the block store; absent: `DIR/blocks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<String>,
    /// Compression of new blocks, `lz4` or `zstd`; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    compression: Option<String>,
    /// Number of the server in its cluster; absent: the file system has one server.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u16>,
}

impl About {
    fn to_text(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// A data directory that is ours for as long as this lives.
pub(crate) struct DataDir {
    path: PathBuf,
    about: About,
    /// Holds the lock.
    directory: File,
}

/// Whether there is a file system in `path`, of whatever version.
pub(crate) fn is_formatted(path: &Path) -> bool {
    path.join(ABOUT).exists()
}

/// Remembers where the coordinator was said to be: no map says it before the cluster is complete.
/// Takes no lock.
pub(crate) fn write_coordinators(path: &Path, addresses: &[String]) -> anyhow::Result<()> {
    write_addresses(&path.join(COORDINATOR), addresses)
}

/// Where the coordinator was said to be, if anywhere.
pub(crate) fn coordinators(path: &Path) -> Vec<String> {
    let told = fs::read_to_string(path.join(COORDINATOR)).unwrap_or_default();
    told.lines().map(str::to_owned).collect()
}

fn write_addresses(file: &Path, addresses: &[String]) -> anyhow::Result<()> {
    let new = file.with_extension("new");
    let text: String = addresses.iter().map(|address| format!("{address}\n")).collect();
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, file))
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Number of the server whose directory this is, if the file system is a cluster. Takes no lock.
pub(crate) fn server_of(path: &Path) -> Option<u16> {
    read_about(path).ok()?.server
}

/// Stores in which a new file system is made.
pub(crate) struct Target<'a> {
    pub(crate) engine: &'a RocksEngine,
    pub(crate) blocks: &'a Blocks,
    /// Where the blocks are, as the file system remembers it.
    pub(crate) url: &'a str,
    pub(crate) signing_key: &'a [u8],
}

/// Makes a file system in a directory, which is made when it is missing and must be empty
/// otherwise.
pub(crate) fn format(path: &Path, new: &New) -> anyhow::Result<()> {
    let place = (new.blocks.as_deref(), new.compression);
    let server = (new.servers > 1).then_some(0);
    let filling = Begun::new(path, Making::Format)?.open(place, &secret::<32>())?;
    let target = filling.target();
    let options = FormatOptions {
        name: new.name.clone(),
        shards: new.shards,
        lanes: base::limits::LANES_MAX,
        servers: new.servers,
        locality: new.locality,
        inline_bytes_max: new.inline_bytes_max,
        blocks: target.url.to_owned(),
        signing_key: target.signing_key.to_vec(),
    };
    meta::format(target.engine, &options, &SystemClock, &SystemRandom::default())?;
    // The file system counts from here on.
    filling.finish(&new.name, server)
}

/// Makes a file system of as many servers as there are directories, with the contents that `fill`
/// puts into them. Nothing of it counts before the end: that of the first server is finished last.
pub(crate) fn load_all(
    paths: &[PathBuf],
    name: &str,
    place: (Option<&str>, Compression),
    fill: impl FnOnce(&[Target<'_>]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let [first, others @ ..] = paths else { bail!("a file system has a server") };
    if Making::left_in(first).is_some_and(|left| left.is_none_or(|left| left == Making::Load)) {
        others.iter().try_for_each(|path| undo(path))?;
    }
    let key = secret::<32>();
    let begun = paths.iter().map(|path| Begun::new(path, Making::Load));
    let begun = begun.collect::<anyhow::Result<Vec<_>>>()?;
    let open = |begun: Begun<'_>| begun.open(place, &key);
    let filling = begun.into_iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    fill(&filling.iter().map(Filling::target).collect::<Vec<_>>())?;
    let mut numbered: Vec<_> = (0..).zip(filling).collect();
    while let Some((server, filling)) = numbered.pop() {
        filling.finish(name, (paths.len() > 1).then_some(server))?;
    }
    Ok(())
}

/// Takes back that a directory was finished, of a file system that was not.
fn undo(path: &Path) -> anyhow::Result<()> {
    match fs::rename(path.join(ABOUT), path.join(FORMATTING)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot clear {}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A directory in which a file system is being made, and which is ours.
struct Begun<'a> {
    path: &'a Path,
    directory: File,
    /// The directory was missing.
    is_new: bool,
}

impl Begun<'_> {
    fn new(path: &Path, making: Making) -> anyhow::Result<Begun<'_>> {
        let (directory, is_new) = prepare(path)?;
        ensure!(!is_formatted(path), "{} holds a file system already", path.display());
        begin(path, making)?;
        fs::set_permissions(path, Permissions::from_mode(0o700))
            .with_context(|| format!("cannot restrict {} to its owner", path.display()))?;
        Ok(Begun { path, directory, is_new })
    }

    /// Opens what belongs into it, under this signing key.
    fn open(
        self,
        (url, compression): (Option<&str>, Compression),
        key: &[u8],
    ) -> anyhow::Result<Filling> {
        let path = self.path;
        write_private(path, SIGNING_KEY, key)?;
        let blocks = match url {
            None => {
                Blocks::directory(&path.join(BLOCKS)).context("cannot make the block directory")?
            }
            // No request is sent, but a wrong address is reported now.
            Some(_) => open_blocks(path, url, compression)?,
        };
        let blocks = blocks.compressing(compression);
        let engine = RocksEngine::open(&path.join(META), &RocksConfig::default())?;
        Ok(Filling {
            path: path.to_owned(),
            engine,
            blocks,
            url: url.map(ToOwned::to_owned),
            compression,
            key: key.to_owned(),
            _directory: self.directory,
        })
    }
}

/// Directory that is being formatted, as [`Begun`] is, with the stores that a file system goes
/// into.
struct Filling {
    path: PathBuf,
    engine: RocksEngine,
    blocks: Blocks,
    url: Option<String>,
    compression: Compression,
    key: Vec<u8>,
    _directory: File,
}

impl Filling {
    fn target(&self) -> Target<'_> {
        let url = self.url.as_deref().unwrap_or(BLOCKS);
        Target { engine: &self.engine, blocks: &self.blocks, url, signing_key: &self.key }
    }

    /// All of it is there: from now on it is a file system, or this server's part of one.
    fn finish(self, name: &str, server: Option<u16>) -> anyhow::Result<()> {
        let Filling { path, engine, url, compression, key, .. } = self;
        drop(engine);
        let token = of_administrator(&key)?.sign(&key);
        write_private(&path, ADMIN_TOKEN, format!("{token}\n").as_bytes())?;
        let compression = (compression != Compression::None).then(|| compression.to_string());
        let name = name.to_owned();
        let version = version_of(server);
        let about = About { version, name, blocks: url, compression, server };
        finish(&path, &about.to_text()?)
            .with_context(|| format!("cannot write to {}", path.display()))
    }
}

/// The directory of a server that joins a cluster.
pub(crate) struct Joining<'a> {
    begun: Begun<'a>,
    member: u64,
    /// The number was drawn now: no coordinator has heard of it before.
    is_drawn: bool,
}

impl Joining<'_> {
    /// Takes a directory that is missing or empty, or in which a join was interrupted.
    pub(crate) fn begin(path: &Path) -> anyhow::Result<Joining<'_>> {
        let begun = Begun::new(path, Making::Join)?;
        let member = match fs::read_to_string(path.join(MEMBER)) {
            Ok(text) => text.trim().parse().ok(),
            Err(_) => None,
        };
        if let Some(member) = member {
            return Ok(Joining { begun, member, is_drawn: false });
        }
        remove(fs::remove_file(path.join(MEMBER)), path)?;
        let member = u64::from_le_bytes(secret::<8>());
        write_private(path, MEMBER, format!("{member}\n").as_bytes())?;
        Ok(Joining { begun, member, is_drawn: true })
    }

    /// The coordinator has refused the join, so the directory is left as it was found. A number
    /// that was drawn earlier stays: a coordinator may have given a place to it.
    pub(crate) fn withdraw(self) -> io::Result<()> {
        let Begun { path, directory, is_new } = self.begun;
        if !self.is_drawn {
            return Ok(());
        }
        fs::remove_file(path.join(MEMBER))?;
        fs::remove_file(path.join(FORMATTING))?;
        if is_new {
            fs::remove_dir(path)?;
        }
        // The lock is held up to here.
        drop(directory);
        Ok(())
    }

    /// The number by which the coordinator knows it again.
    pub(crate) fn member(&self) -> u64 {
        self.member
    }

    /// Makes the server's part of the file system, as the coordinator answered; the cluster is to
    /// have so many servers.
    pub(crate) fn finish(self, joined: &Joined, servers: u16) -> anyhow::Result<()> {
        let Belonging { name, blocks, signing_key } = Belonging::of(joined)?;
        let url = (blocks != BLOCKS).then_some(blocks.as_str());
        let (member, place) = (self.member, (url, Compression::None));
        let filling = self.begun.open(place, &signing_key)?;
        meta::format_joined(filling.target().engine, joined, member, servers)?;
        filling.finish(&name, Some(joined.server))
    }
}

impl DataDir {
    /// Takes the directory of a file system.
    pub(crate) fn open(path: &Path) -> anyhow::Result<DataDir> {
        let mut about = read_about(path)?;
        let directory = lock(path)?;
        if about.version < version_of(about.server) {
            upgrade(path, &mut about)?;
        }
        Ok(DataDir { path: path.to_owned(), about, directory })
    }

    /// Number of the server in its cluster; `None`: the file system has one server.
    pub(crate) fn server(&self) -> Option<u16> {
        self.about.server
    }

    /// Name of the file system.
    pub(crate) fn name(&self) -> &str {
        &self.about.name
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the metadata, without what refers to blocks that a power cut has taken. Where it is
    /// damaged nothing is written to it.
    pub(crate) fn engine(
        &self,
        blocks: &Blocks,
        config: &RocksConfig,
    ) -> anyhow::Result<RocksEngine> {
        let folder = self.metadata_folder();
        // The engine would make a new one.
        ensure!(folder.exists(), "{} is missing; {ADVICE}", folder.display());
        self.open_engine(&folder, blocks, config).map_err(|error| {
            let path = folder.display();
            let why = match error.downcast_ref::<store::Error>() {
                Some(store::Error::Io(_) | store::Error::Corrupt(_)) => {
                    format!("cannot open {path}; if it is damaged, {ADVICE}")
                }
                Some(store::Error::Version { .. }) => {
                    format!("cannot open {path}; it is of another version, or of another program")
                }
                Some(store::Error::Full(_) | store::Error::InUse(_) | store::Error::Unordered)
                | None => format!("cannot open {path}"),
            };
            error.context(why)
        })
    }

    fn open_engine(
        &self,
        folder: &Path,
        blocks: &Blocks,
        config: &RocksConfig,
    ) -> anyhow::Result<RocksEngine> {
        self.cut_log(blocks)?;
        let named = blocks.clone();
        let stabilize = Box::new(move || named.sync().map_err(io::Error::other));
        Ok(RocksEngine::open(folder, config)?.before_tables(stabilize))
    }

    /// Cuts off the end of the log what refers to blocks that a power cut has taken.
    pub(crate) fn cut_log(&self, blocks: &Blocks) -> anyhow::Result<()> {
        let folder = &self.metadata_folder();
        if !blocks.puts_are_stable()
            && let Some(log) = LogTail::read(folder)?
        {
            let (written, kept) = (log.batches().len(), meta::kept(log.batches(), blocks)?);
            if kept < written {
                tracing::warn!(lost = written - kept, "a power cut took the newest operations");
                DataDir::forget_boot(&self.path);
            }
            log.cut(kept)?;
        }
        Ok(())
    }

    /// Opens the block store.
    pub(crate) fn blocks(&self) -> anyhow::Result<Blocks> {
        open_blocks(&self.path, self.about.blocks.as_deref(), self.compression()?)
    }

    /// Compression of new blocks.
    pub(crate) fn compression(&self) -> anyhow::Result<Compression> {
        let Some(text) = &self.about.compression else { return Ok(Compression::None) };
        let known = text.parse().ok();
        known.with_context(|| format!("{ABOUT} names an unknown compression: {text}"))
    }

    /// The folder whose space is that of the file system; `None` when blocks are elsewhere and have
    /// no bound.
    pub(crate) fn blocks_folder(&self) -> Option<PathBuf> {
        match &self.about.blocks {
            None => Some(self.path.join(BLOCKS)),
            Some(url) => url.strip_prefix("file://").map(PathBuf::from),
        }
    }

    /// Whether blocks are in the data directory.
    pub(crate) fn has_local_blocks(&self) -> bool {
        self.about.blocks.is_none()
    }

    /// The folder of the metadata.
    pub(crate) fn metadata_folder(&self) -> PathBuf {
        self.path.join(META)
    }

    /// Whether a server has had a lease with this directory since the machine was started: then
    /// nothing that it had answered is lost since, as its log was written, if not to the disk.
    pub(crate) fn ran_since_boot(&self) -> bool {
        let noted = fs::read_to_string(self.path.join(BOOT)).ok();
        noted.is_some_and(|noted| this_run(&self.path).as_deref() == Some(noted.trim()))
    }

    /// Whether a server has had a lease with this directory.
    pub(crate) fn had_lease(&self) -> bool {
        self.path.join(BOOT).exists()
    }

    /// A server has a lease with this directory.
    pub(crate) fn note_boot(path: &Path) -> io::Result<()> {
        let Some(run) = this_run(path) else { return Ok(()) };
        fs::write(path.join(BOOT), format!("{run}\n"))
    }

    /// Removes the note of this boot, as changes that a server has answered may be lost.
    pub(crate) fn forget_boot(path: &Path) {
        // If the file stays, the disk takes no writes, and the server cannot serve.
        let _ = fs::remove_file(path.join(BOOT));
    }

    /// The place of a process that has this directory: its lock lets no other have the same.
    pub(crate) fn place(&self) -> meta::Place {
        let name = || {
            let directory = self.directory.metadata().ok()?;
            let (device, inode) = (directory.dev(), directory.ino());
            let process = format!("{} {device} {inode}", system::boot()?);
            let home = system::machine().map(|machine| format!("{machine} {inode}"));
            let [process, home] = [process, home.unwrap_or_default()].map(Into::into);
            Some(meta::Place { process, home })
        };
        name().unwrap_or_default()
    }

    /// Says where the server listens: an address in each line.
    pub(crate) fn write_address(&self, addresses: &[String]) -> anyhow::Result<()> {
        write_addresses(&self.path.join(ADDRESS), addresses)
    }

    /// Writes the certificate of the file system's authority, unless the directory has it.
    pub(crate) fn write_authority(&self, pem: &str) -> anyhow::Result<()> {
        if self.path.join(AUTHORITY).exists() {
            return Ok(());
        }
        replace(&self.path, AUTHORITY, pem.as_bytes())
            .with_context(|| format!("cannot write {}", self.path.join(AUTHORITY).display()))
    }

    /// Replaces an administrator's token that a program of before has made, which no server takes.
    pub(crate) fn renew_admin_token(&self) -> anyhow::Result<()> {
        let file = self.path.join(ADMIN_TOKEN);
        let Ok(text) = read_token(&file) else { return Ok(()) };
        if Token::unverified(&text) != Err(TokenError::Version) {
            return Ok(());
        }
        let key = signing_key(&self.path)?;
        let token = of_administrator(&key)?.sign(&key);
        replace(&self.path, ADMIN_TOKEN, format!("{token}\n").as_bytes())
            .with_context(|| format!("cannot renew {}", file.display()))?;
        let file = file.display();
        tracing::warn!(%file, "a new administrator's token: tokens of earlier versions have ended");
        Ok(())
    }

    /// The server listens no more.
    pub(crate) fn remove_address(&self) {
        // No other program relies on this file.
        let _ = fs::remove_file(self.path.join(ADDRESS));
    }
}

/// A name of the run of this machine and of where the metadata are, which a copy of them does not
/// have.
fn this_run(path: &Path) -> Option<String> {
    let meta = fs::metadata(path.join(META)).ok()?;
    Some(format!("{} {} {}", system::boot()?, meta.dev(), meta.ino()))
}

/// Keeps the newest key that signs tokens for [`newest_key`], whole or not at all. Where the root
/// key is the newest, no file need say so.
pub(crate) fn write_newest_key(path: &Path, number: u32, secret: &[u8]) -> io::Result<()> {
    let new = format!("{number} {}\n", values::hex(secret));
    let now = fs::read_to_string(path.join(NEWEST_KEY));
    let is_kept = now.as_ref().map_or(number == 0, |now| *now == new);
    if is_kept { Ok(()) } else { replace(path, NEWEST_KEY, new.as_bytes()) }
}

/// The newest key that signs tokens: its number and its secret. Takes no lock: a server may be
/// running, and writes the file that is read here.
pub(crate) fn newest_key(path: &Path) -> anyhow::Result<(u32, Vec<u8>)> {
    let root = signing_key(path)?;
    let file = path.join(NEWEST_KEY);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, root)),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", file.display()));
        }
    };
    let key = text
        .trim()
        .split_once(' ')
        .and_then(|(number, secret)| Some((number.parse().ok()?, values::unhex(secret)?)));
    key.ok_or_else(|| {
        anyhow!("{} is damaged: remove it, and start the server, which writes it", file.display())
    })
}

/// A random number for a token, never 0.
pub(crate) fn token_id() -> u64 {
    u64::from_le_bytes(secret::<8>()).max(1)
}

/// The root key, which signs tokens until there is a newer one. Takes no lock: a server may be
/// running.
pub(crate) fn signing_key(path: &Path) -> anyhow::Result<Vec<u8>> {
    read_about(path)?;
    let file = path.join(SIGNING_KEY);
    fs::read(&file).with_context(|| format!("cannot read {}", file.display()))
}

/// A token for the server's own process, which administers.
pub(crate) fn own_token(path: &Path) -> anyhow::Result<String> {
    let (key, secret) = newest_key(path)?;
    Ok(Token { key, ..of_administrator(&signing_key(path)?)? }.sign(&secret))
}

/// The administrator's token of the file system with this key.
fn of_administrator(signing_key: &[u8]) -> anyhow::Result<Token> {
    let authority = Some(authority_of(signing_key)?);
    Ok(Token { id: token_id(), authority, ..Token::administrator() })
}

/// The authority that certifies the servers of the file system with this key.
pub(crate) fn authority_of(signing_key: &[u8]) -> anyhow::Result<Fingerprint> {
    Ok(Fingerprint(tls::Authority::derive(signing_key)?.fingerprint()))
}

fn read_about(path: &Path) -> anyhow::Result<About> {
    let file = path.join(ABOUT);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(nothing_in(path));
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", file.display()));
        }
    };
    // The version first: another one may have other fields.
    let value: serde_json::Value = serde_json::from_str(&text)
        .with_context(|| format!("{} is damaged; {ADVICE}", file.display()))?;
    let version = &value["version"];
    let known = u64::from(VERSION_MIN)..=u64::from(VERSION_CLUSTER);
    ensure!(
        version.as_u64().is_some_and(|version| known.contains(&version)),
        "{} has on-disk version {version}, this program knows {VERSION_MIN} to {VERSION_CLUSTER}",
        path.display()
    );
    serde_json::from_value(value)
        .with_context(|| format!("{} is damaged; {ADVICE}", file.display()))
}

/// Error for a directory without a file system.
fn nothing_in(path: &Path) -> anyhow::Error {
    let Some(left) = Making::left_in(path) else {
        return anyhow!("no file system in {}; run `pando format` first", path.display());
    };
    // The command may be running now.
    if let Err(error) = lock(path) {
        return error;
    }
    left.map_or_else(
        || {
            let path = path.display();
            anyhow!(
                "making a file system in {path} was interrupted: make it again, or remove {path}"
            )
        },
        |left| left.interrupted(path),
    )
}

fn open_blocks(path: &Path, url: Option<&str>, compression: Compression) -> anyhow::Result<Blocks> {
    let blocks = match url {
        None => Blocks::directory(&path.join(BLOCKS)),
        Some(url) => Blocks::open(&BlocksConfig {
            environment: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
            ..BlocksConfig::new(url)
        }),
    };
    Ok(blocks.context("cannot open the block store")?.compressing(compression))
}

/// The version that a data directory has, of a file system of one server or of one of several.
fn version_of(server: Option<u16>) -> u32 {
    if server.is_some() { VERSION_CLUSTER } else { VERSION }
}

/// Brings a data directory up to date: from then on older programs refuse it. What its records need
/// is done when they are next written, as each can be read in its old form.
fn upgrade(path: &Path, about: &mut About) -> anyhow::Result<()> {
    let now = version_of(about.server);
    let was = std::mem::replace(&mut about.version, now);
    replace(path, ABOUT, about.to_text()?.as_bytes())
        .with_context(|| format!("cannot upgrade {}", path.display()))?;
    tracing::warn!(from = was, to = now, "upgraded the on-disk version of {}", path.display());
    Ok(())
}

/// Writes a file that only its owner may read in place of an older one, whole or not at all, also
/// where power is lost meanwhile. The file is stable when this returns.
fn replace(path: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let file = path.join(name);
    let new = file.with_extension("new");
    let mut options = OpenOptions::new();
    let mut out = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    out.set_permissions(Permissions::from_mode(0o600))?;
    out.write_all(bytes)?;
    out.sync_all()?;
    fs::rename(&new, &file)?;
    sync_folder(path)
}

/// Makes the directory if need be, and takes it; whether it was missing.
fn prepare(path: &Path) -> anyhow::Result<(File, bool)> {
    let is_new = !path.exists();
    if is_new {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .and_then(|()| sync_above(path))
            .with_context(|| format!("cannot make {}", path.display()))?;
    }
    Ok((lock(path)?, is_new))
}

/// Makes sure that the directory is empty, but for what the same command left when it was
/// interrupted, and marks it.
fn begin(path: &Path, making: Making) -> anyhow::Result<()> {
    if let Some(left) = Making::left_in(path) {
        if let Some(other) = left.filter(|left| *left != making) {
            return Err(other.interrupted(path));
        }
        let name = left.map_or("command", Making::name);
        tracing::warn!("removing what an interrupted {name} left in {}", path.display());
        for folder in [META, BLOCKS, backup::RESTORING] {
            remove(fs::remove_dir_all(path.join(folder)), path)?;
        }
        for file in [SIGNING_KEY, ADMIN_TOKEN, NEWEST_KEY, backup::RESTORED] {
            remove(fs::remove_file(path.join(file)), path)?;
        }
        // The key that opens the base may be nowhere else.
        if making != Making::Restore {
            remove(fs::remove_file(path.join(backup::KEY)), path)?;
        }
        return fs::write(path.join(FORMATTING), making.name())
            .with_context(|| format!("cannot write to {}", path.display()));
    }
    for entry in fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
        let name = entry?.file_name();
        ensure!(
            name == LOST_AND_FOUND,
            "{} is not empty: it holds {}",
            path.display(),
            name.display()
        );
    }
    write_private(path, FORMATTING, making.name().as_bytes())
}

fn remove(removed: io::Result<()>, path: &Path) -> anyhow::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).with_context(|| {
            format!("cannot clear what an interrupted command left in {}", path.display())
        }),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes `pando.json` in place of the mark, whole or not at all.
fn finish(path: &Path, about: &str) -> io::Result<()> {
    let mark = path.join(FORMATTING);
    let mut file = File::create(&mark)?;
    file.write_all(about.as_bytes())?;
    file.sync_all()?;
    // The names of everything else are stable before the one that vouches for them.
    sync_folder(path)?;
    fs::rename(&mark, path.join(ABOUT))?;
    sync_folder(path)
}

/// Writes a file that only its owner may read, and waits until it is stable.
fn write_private(path: &Path, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let file = path.join(name);
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        sync_folder(path)
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}

fn lock(path: &Path) -> anyhow::Result<File> {
    let directory = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(directory),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            bail!("{} is in use by another pando process", path.display())
        }
        Err(errno) => Err(errno).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// Reads a token from a file.
pub(crate) fn read_token(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    File::open(file)
        .and_then(|file| file.take(1 << 20).read_to_string(&mut text))
        .with_context(|| format!("cannot read the token in {}", file.display()))?;
    Ok(text.trim().to_owned())
}
