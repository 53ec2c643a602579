//! Checks of references from one server of a cluster to another, on the live file system.
//!
//! `fsck` calls this after the walk over the server's snapshot, which leaves out references to
//! other servers. It goes through this server's directories and names in pages, and asks the others
//! for the records that they lead to. Then it walks up from each directory of this server until it
//! comes to the root or to a known directory.
//!
//! Two servers are never read at one moment. So what does not fit is read again after a while, here
//! and there, several times. It is a finding only if the same record here has led to something
//! wrong each time. Nothing is changed. A repair looks at that record again, in a transaction over
//! the servers that it leads to.
//!
//! In memory are a page, and the ids of directories that are known to reach the root: those of this
//! server and those above them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    sync::Arc,
    time::Duration,
};

use base::{
    DirId, EntryName, HashMap, HashSet, Ino, NameVersion, SearchClass, ShardId,
    permissions::Listing,
};
use bytes::Bytes;
use wire::{PeerRead, Reply, Request};

use super::{
    fix::Fix,
    report::Report,
    shares::{Way, difference},
};
use crate::{
    cluster::Cluster,
    error::describe,
    permissions, placing,
    quota::Quotas,
    record::{
        Access, Config, Content, EntryRecord, Key, Record as _, RenameList, Slot, key, key::Part,
    },
    server::Shared,
};

/// Number of records that are checked at a time.
const PAGE: usize = 256;
/// Pauses after each of which what does not fit is read again.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(600),
    Duration::from_millis(1000),
];
/// Number of times that a server without an answer is asked.
const ASKED_MAX: u32 = 60;
/// Pause before it is asked again.
const ASKED_PAUSE: Duration = Duration::from_millis(250);

type Result<T> = std::result::Result<T, String>;

/// A reference: one record leads to another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Claim {
    /// The record that holds the reference.
    here: Key,
    there: There,
    wants: Wants,
}

/// Target of a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
enum There {
    /// This record.
    Record(Key),
    /// A name in a directory with this home, in whichever partition.
    Name { home: DirId, at: At },
}

/// Requirement on the target record.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wants {
    /// The content record of this entry, which leads back to it.
    Content { at: At, id: DirId, ino: Ino },
    /// The directory above this one, which is not listed. The bound below it grants at most that
    /// of this one.
    Bound { at: At, below: SearchClass },
    /// The entry of this directory.
    Entry { at: At, access: Access },
    /// A rename list with the version under which this directory was born. The directory lives
    /// elsewhere now.
    Listed { id: DirId, version: NameVersion },
    /// The directory of a version in a rename list, which lives elsewhere.
    Born { at: At, version: NameVersion },
    /// An inode, in its slot.
    Slot { at: At, ino: Ino },
    /// A partition of this directory.
    Share { id: DirId, ino: Ino, partition: u16 },
    /// The master of this partition, which agrees with it.
    Master { id: DirId, partition: u16, share: Box<Content> },
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct At {
    dir: DirId,
    name: EntryName,
}

impl std::fmt::Display for At {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "(directory {})/{}", self.dir, self.name)
    }
}

/// Keys of records.
struct Places<'a>(&'a Config);

impl Places<'_> {
    fn content(&self, home: DirId, dir: DirId) -> Key {
        key::content(self.0.placement().shard_of(home, 0), dir, 0, Part::Main)
    }

    fn name(&self, shard: ShardId, at: &At, part: Part) -> Key {
        key::name(shard, at.dir, self.0.hash_key.pos(&at.name), &at.name, part)
    }

    fn way(&self, home: DirId, at: &At) -> Way {
        Way::to(home, at.dir, self.0.hash_key.pos(&at.name))
    }

    /// Whether a claim leads to another server, or over one, or could not be checked on the
    /// snapshot, as others were. `read` reads records of this server.
    fn leaves(
        &self,
        claim: &Claim,
        owns: &dyn Fn(&Key) -> bool,
        read: &dyn Fn(&Key) -> store::Result<Option<Bytes>>,
    ) -> store::Result<bool> {
        let (home, at) = match &claim.there {
            There::Record(key) if owns(key) => {
                let Wants::Master { share, .. } = &claim.wants else { return Ok(false) };
                // A counting walk may be between the two, on any snapshot.
                let master = read(key)?.and_then(|value| Content::from_record(&value).ok());
                return Ok(master.is_some_and(|master| master.quota != share.quota));
            }
            There::Record(_) => return Ok(true),
            There::Name { home, at } => (*home, at),
        };
        let mut way = self.way(home, at);
        loop {
            let key = way.key(self.0.placement());
            if !owns(&key) {
                return Ok(true);
            }
            let content = read(&key)?.and_then(|value| Content::from_record(&value).ok());
            if way.arrives(content.as_ref(), self.0.shards) {
                return Ok(false);
            }
        }
    }

    /// Claims of a record. An unreadable record has none: the walk has reported it.
    fn claims(&self, here: &[u8], value: &[u8]) -> Vec<Claim> {
        let value = Bytes::copy_from_slice(value);
        let to = |there, wants| Claim { here: Key::from_slice(here), there, wants };
        let claim = |there, wants| to(There::Record(there), wants);
        if key::is_content(here) {
            let content = Content::from_record(&value).ok();
            let at = key::parse_dir(here).zip(key::parse_share(here)).zip(content);
            let Some(((id, (partition, _)), content)) = at else { return Vec::new() };
            let claims = match partition {
                0 => self.of_content(id, &content),
                partition => vec![self.of_share(id, partition, &content)],
            };
            return claims.into_iter().map(|(there, wants)| to(there, wants)).collect();
        }
        let Some((dir, (_, name, part))) = key::parse_dir(here).zip(key::parse_name(here)) else {
            return Vec::new();
        };
        let Ok(name) = EntryName::new(name) else { return Vec::new() };
        let at = At { dir, name };
        if part == Part::Main as u8 {
            return match EntryRecord::from_record(&value) {
                Ok(EntryRecord::Dir(Access { id, ino, home, .. })) => {
                    vec![claim(self.content(home, id), Wants::Content { at, id, ino })]
                }
                Ok(EntryRecord::Link(ino)) => {
                    vec![claim(key::inode(ino, Part::Main), Wants::Slot { at, ino })]
                }
                Ok(EntryRecord::Node(_)) | Err(_) => Vec::new(),
            };
        }
        if part != Part::RenameList as u8 {
            return Vec::new();
        }
        let versions = RenameList::from_record(&value).map(|list| list.versions);
        let born = versions.unwrap_or_default().into_iter().map(|version| {
            let id = self.0.hash_key.dir_id(dir, &at.name, version);
            let (placement, here) = (self.0.placement(), key::shard_of(here));
            let shard = placing::shard_of_born(placement, here, id, version);
            let there = key::content(shard, id, 0, Part::Main);
            claim(there, Wants::Born { at: at.clone(), version })
        });
        born.collect()
    }

    fn of_share(&self, id: DirId, partition: u16, share: &Content) -> (There, Wants) {
        // A share's times and counts are its own, and change.
        let repeated = Content { layout: share.layout.clone(), ..share.repeated() };
        let wants = Wants::Master { id, partition, share: Box::new(repeated) };
        (There::Record(self.content(share.home, id)), wants)
    }

    fn of_content(&self, id: DirId, content: &Content) -> Vec<(There, Wants)> {
        let Content { ino, home, parent, .. } = *content;
        let others = content.layout.active().filter(|partition| *partition > 0);
        let share = |partition| {
            let shard = self.0.placement().shard_of(home, partition);
            let key = key::content(shard, id, partition, Part::Main);
            (There::Record(key), Wants::Share { id, ino, partition })
        };
        let mut claims: Vec<_> = others.map(share).collect();
        let Some(name) = content.name.clone() else { return claims };
        let at = At { dir: parent, name };
        let Listing { below, listed } = &content.listing.0;
        if !listed {
            let wants = Wants::Bound { at: at.clone(), below: below.clone() };
            claims.push((There::Record(self.content(content.parent_home, parent)), wants));
        }
        let access = Access::of(id, content);
        let there = There::Name { home: content.parent_home, at: at.clone() };
        if let Some(name) = content.birth_name.clone() {
            let birth = At { dir: content.birth_parent, name };
            if birth != at {
                let born_at = placing::birth_home(self.0, content);
                let shard = self.0.placement().shard_of(born_at, 0);
                let list = There::Record(self.name(shard, &birth, Part::RenameList));
                claims.push((list, Wants::Listed { id, version: content.birth_version }));
            }
        }
        claims.push((there, Wants::Entry { at, access }));
        claims
    }
}

impl Claim {
    /// Returns an error in the target record; `None` if it is as the claim says. `quotas` knows
    /// which are being counted.
    fn wrong(&self, value: Option<&Bytes>, quotas: &Quotas) -> Option<String> {
        match &self.wants {
            Wants::Content { at, id, ino } => {
                let content = value.and_then(|value| Content::from_record(value).ok());
                let Some(content) = content.filter(|content| content.ino == *ino) else {
                    return Some(format!("{at} has no content record: id={id} ino={ino}"));
                };
                let back = content.name.map(|name| At { dir: content.parent, name });
                let there = back.as_ref().map_or_else(|| "/".to_owned(), ToString::to_string);
                (back.as_ref() != Some(at))
                    .then(|| format!("{at} is the directory that is at {there}: id={id} ino={ino}"))
            }
            Wants::Bound { at, below } => {
                let above = value.and_then(|value| Content::from_record(value).ok())?;
                let wrong = permissions::wrong_bound(below, &above.listing.0.below);
                wrong.map(|wrong| format!("{at} {wrong}"))
            }
            Wants::Entry { at, access } => {
                match value.and_then(|value| EntryRecord::from_record(value).ok()) {
                    Some(EntryRecord::Dir(found)) if found == *access => None,
                    Some(EntryRecord::Dir(found))
                        if (found.id, found.ino) == (access.id, access.ino) =>
                    {
                        Some(format!("{at}: its entry has another mode, owner or home"))
                    }
                    Some(EntryRecord::Dir(_) | EntryRecord::Node(_) | EntryRecord::Link(_))
                    | None => Some(format!(
                        "{at} is not there, but its contents are: id={} ino={}",
                        access.id, access.ino
                    )),
                }
            }
            Wants::Listed { id, version } => {
                let list = value.and_then(|value| RenameList::from_record(value).ok());
                let listed = list.is_some_and(|list| list.versions.contains(version));
                (!listed)
                    .then(|| format!("directory {id} was moved and its birth place does not know"))
            }
            Wants::Born { at, version } => {
                let content = value.and_then(|value| Content::from_record(value).ok());
                let lives = content.is_some_and(|content| {
                    let (born, name) = (content.birth_parent, content.birth_name.as_ref());
                    let born_here = born == at.dir && name == Some(&at.name);
                    let is_here =
                        content.parent == at.dir && content.name.as_ref() == Some(&at.name);
                    born_here && content.birth_version == *version && !is_here
                });
                (!lives).then(|| {
                    format!(
                        "the rename list of {at} has version {version}, which lives nowhere else"
                    )
                })
            }
            Wants::Share { id, ino, partition } => {
                let share = value.and_then(|value| Content::from_record(value).ok());
                let is_there = share.is_some_and(|share| share.ino == *ino);
                (!is_there).then(|| format!("partition {partition} of directory {id} is not there"))
            }
            Wants::Master { id, partition, share } => {
                let master = value.and_then(|value| Content::from_record(value).ok());
                let wrong = match master {
                    None => Some("is there, but its directory is not"),
                    Some(master) => {
                        let moves = quotas.is_moving(master.quota, share.quota);
                        difference(&master, *partition, share, moves)
                    }
                };
                wrong.map(|wrong| format!("partition {partition} of directory {id} {wrong}"))
            }
            Wants::Slot { at, ino } => {
                let slot = value.and_then(|value| Slot::from_record(value).ok());
                (!matches!(slot, Some(Slot::Inode(_))))
                    .then(|| format!("{at} leads to inode {ino}, which is not in its slot"))
            }
        }
    }
}

/// A walk up from a directory of this server.
struct Climb {
    here: Key,
    walked: Vec<DirId>,
    /// The next directory, and its record.
    at: DirId,
    ino: Ino,
    key: Key,
}

/// A page of this server's records.
#[derive(Default)]
struct Page {
    claims: Vec<Claim>,
    /// Keys of content records on the page.
    dirs: Vec<Key>,
    /// Key of the next page; `None` after the last one.
    next: Option<Key>,
}

/// State of the check across servers.
pub(super) struct Across<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) cluster: &'a Cluster,
    pub(super) report: &'a Report,
    rooted: HashSet<DirId>,
}

/// Checks all references from this server to others.
pub(super) async fn check(shared: &Arc<Shared>, cluster: &Cluster, report: &Report) -> Result<()> {
    let mut across = Across::new(shared, cluster, report);
    across.undecided().await?;
    for shard in (0..shared.config.shards).map(ShardId).filter(|shard| cluster.owns(*shard)) {
        for kind in [b'D', b'N'] {
            let prefix = key::kind(shard, kind);
            across.range(prefix.clone(), key::end_of(&prefix)).await?;
        }
    }
    Ok(())
}

impl<'a> Across<'a> {
    /// A check that has read nothing yet.
    pub(super) fn new(shared: &'a Arc<Shared>, cluster: &'a Cluster, report: &'a Report) -> Self {
        Across { shared, cluster, report, rooted: HashSet::from_iter([DirId::ROOT]) }
    }

    async fn range(&mut self, mut from: Key, to: Key) -> Result<()> {
        loop {
            let page = self.page(from, to.clone()).await?;
            self.follow(page.claims).await?;
            self.climb(page.dirs).await?;
            match page.next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    async fn page(&self, from: Key, to: Key) -> Result<Page> {
        if self.report.is_cancelled() {
            return Err("it was cancelled".into());
        }
        let (shared, map) = (Arc::clone(self.shared), self.cluster.map());
        let me = self.cluster.me;
        let read = self.shared.options.offload.run(move || -> store::Result<Page> {
            let (mut page, places) = (Page::default(), Places(&shared.config));
            let owns = |key: &Key| map.server_of(key::shard_of(key)) == Some(me);
            // All records are read, and most have no claims. A snapshot's scan leaves the cache to
            // other requests.
            let moment = shared.engine.snapshot();
            let read = moment.scan(&from, &to, &mut |here, value| {
                if page.claims.len() >= PAGE || page.dirs.len() >= PAGE {
                    page.next = Some(Key::from_slice(here));
                    return ControlFlow::Break(());
                }
                page.claims.extend(places.claims(here, value));
                if key::is_content(here) && key::parse_share(here).is_some_and(|at| at.0 == 0) {
                    page.dirs.push(Key::from_slice(here));
                }
                ControlFlow::Continue(())
            });
            read?;
            let mut others = Vec::new();
            for claim in std::mem::take(&mut page.claims) {
                if places.leaves(&claim, &owns, &|key| shared.engine.get(key))? {
                    others.push(claim);
                }
            }
            Ok(Page { claims: others, ..page })
        });
        read.await.map_err(|error| describe(&error))
    }

    /// Checks the targets of claims.
    async fn follow(&self, claims: Vec<Claim>) -> Result<()> {
        let mut left = self.unmet(claims).await?;
        for pause in PAUSES {
            if left.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(pause).await;
            let still = self.still(left).await?;
            left = self.unmet(still).await?;
        }
        let wrong = left.iter().map(|(claim, line)| (claim.clone(), line.clone())).collect();
        let still = self.still(wrong).await?;
        for (claim, line) in left {
            if still.contains(&claim) {
                self.report.find_to_fix(line, Fix::Look(claim.here));
            }
        }
        Ok(())
    }

    async fn unmet(&self, claims: Vec<Claim>) -> Result<Vec<(Claim, String)>> {
        let there = self.followed(&claims).await?;
        let (found, quotas) = (self.read(there.iter().cloned()).await?, &self.shared.quotas);
        let unmet = claims.into_iter().zip(there).filter_map(|(claim, there)| {
            let line = claim.wrong(found.get(&there).and_then(Option::as_ref), quotas)?;
            Some((claim, line))
        });
        Ok(unmet.collect())
    }

    /// Keys of the records that claims lead to. Names are in the partitions that have them now.
    async fn followed(&self, claims: &[Claim]) -> Result<Vec<Key>> {
        let config = &self.shared.config;
        let (places, placement, shards) = (Places(config), config.placement(), config.shards);
        let mut keys = vec![Key::new(); claims.len()];
        let mut ways = Vec::new();
        for (index, claim) in claims.iter().enumerate() {
            match &claim.there {
                There::Record(key) => keys[index] = key.clone(),
                There::Name { home, at } => ways.push((index, at, places.way(*home, at))),
            }
        }
        while !ways.is_empty() {
            let found = self.read(ways.iter().map(|(.., way)| way.key(placement))).await?;
            ways.retain_mut(|(index, at, way)| {
                let value = found.get(&way.key(placement)).and_then(Option::as_ref);
                let content = value.and_then(|value| Content::from_record(value).ok());
                let arrived = way.arrives(content.as_ref(), shards);
                if arrived {
                    keys[*index] = places.name(way.shard(placement), at, Part::Main);
                }
                !arrived
            });
        }
        Ok(keys)
    }

    /// Claims that their records still make.
    async fn still(&self, claims: Vec<(Claim, String)>) -> Result<Vec<Claim>> {
        let found = self.read(claims.iter().map(|(claim, _)| claim.here.clone())).await?;
        let places = Places(&self.shared.config);
        let still = claims.into_iter().map(|(claim, _)| claim).filter(|claim| {
            let value = found.get(&claim.here).and_then(Option::as_ref);
            value.is_some_and(|value| places.claims(&claim.here, value).contains(claim))
        });
        Ok(still.collect())
    }

    /// Walks up from directories.
    async fn climb(&mut self, dirs: Vec<Key>) -> Result<()> {
        let mut left = self.astray(dirs).await?;
        for pause in PAUSES {
            if left.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(pause).await;
            left = self.astray(left.into_iter().map(|(here, _)| here).collect()).await?;
        }
        for (here, line) in left {
            self.report.find_to_fix(line, Fix::Look(here));
        }
        Ok(())
    }

    /// Directories from which the root is not reached, and why. When a directory above leads
    /// nowhere, that is reported for the directory in it.
    async fn astray(&mut self, dirs: Vec<Key>) -> Result<Vec<(Key, String)>> {
        let mut astray = Vec::new();
        let found = self.read(dirs.iter().cloned()).await?;
        let mut climbs: Vec<Climb> = Vec::new();
        for here in dirs {
            let id = key::parse_dir(&here).filter(|id| *id != DirId::ROOT);
            let value = found.get(&here).and_then(Option::as_ref);
            let content = value.and_then(|value| Content::from_record(value).ok());
            let (Some(id), Some(content)) = (id, content) else { continue };
            climbs.push(self.from(here, vec![id], &content));
        }
        while !climbs.is_empty() {
            let mut next = Vec::new();
            for climb in climbs {
                if self.rooted.contains(&climb.at) {
                    self.rooted.extend(climb.walked);
                } else if climb.walked.contains(&climb.at) {
                    astray
                        .push((climb.here, format!("directory {} is in a loop", climb.walked[0])));
                } else {
                    next.push(climb);
                }
            }
            let found = self.read(next.iter().map(|climb| climb.key.clone())).await?;
            climbs = Vec::new();
            for mut climb in next {
                let value = found.get(&climb.key).and_then(Option::as_ref);
                let content = value.and_then(|value| Content::from_record(value).ok());
                match content.filter(|content| content.ino == climb.ino) {
                    Some(content) => {
                        climb.walked.push(climb.at);
                        climbs.push(self.from(climb.here, climb.walked, &content));
                    }
                    None if climb.walked.len() == 1 => {
                        let id = climb.walked[0];
                        let line = format!("directory {id} is in a directory that is not there");
                        astray.push((climb.here, line));
                    }
                    None => {}
                }
            }
        }
        Ok(astray)
    }

    fn from(&self, here: Key, walked: Vec<DirId>, content: &Content) -> Climb {
        let key = Places(&self.shared.config).content(content.parent_home, content.parent);
        Climb { here, walked, at: content.parent, ino: content.parent_ino, key }
    }

    /// Reads records of this server and of others.
    pub(super) async fn read(
        &self,
        keys: impl Iterator<Item = Key>,
    ) -> Result<HashMap<Key, Option<Bytes>>> {
        let keys: BTreeSet<Key> = keys.collect();
        let (mut ours, mut theirs) = (Vec::new(), BTreeMap::<u16, Vec<Bytes>>::new());
        for key in keys {
            match self.cluster.server_of_key(&key) {
                Some(server) if server != self.cluster.me => {
                    theirs.entry(server).or_default().push(Bytes::copy_from_slice(&key));
                }
                Some(_) | None => ours.push(key),
            }
        }
        let shared = Arc::clone(self.shared);
        let here = self.shared.options.offload.run(move || {
            let read = |key: Key| Ok((key.clone(), shared.engine.get(&key)?));
            ours.into_iter().map(read).collect::<store::Result<HashMap<_, _>>>()
        });
        let mut found = here.await.map_err(|error| describe(&error))?;
        for (server, keys) in theirs {
            let values = self.ask(server, &keys).await?;
            found.extend(keys.iter().map(|key| Key::from_slice(key)).zip(values));
        }
        Ok(found)
    }

    async fn ask(&self, server: u16, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>> {
        let request = Request::PeerRead(PeerRead {
            keys: keys.to_vec(),
            inos: Vec::new(),
            hold: None,
            confirmed: false,
            session: None,
        });
        match self.request(server, request).await? {
            Reply::Values(values) if values.len() == keys.len() => Ok(values),
            _ => Err(format!("server {server} does not answer what it is asked")),
        }
    }

    /// Asks another server until it answers.
    pub(super) async fn request(&self, server: u16, request: Request) -> Result<Reply> {
        for _ in 0..ASKED_MAX {
            if self.report.is_cancelled() {
                return Err("it was cancelled".into());
            }
            match self.shared.jobs.asked.ask(server, request.clone()).await {
                Some(reply) => return Ok(reply),
                None => tokio::time::sleep(ASKED_PAUSE).await,
            }
        }
        Err(format!("server {server} does not answer"))
    }
}
