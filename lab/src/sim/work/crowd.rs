//! A crowd: several clients make, rename, remove and list names in one directory, while its
//! partitions split and merge.
//!
//! Each client has names of its own there, and no other client uses them: it knows which names must
//! be found, and which must not. A listing in small pages has each of its names once. A client
//! makes more than it removes, and then less, again and again. Some names come from a directory
//! beside this one, and go there.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use anyhow::{Context as _, ensure};
use base::{Cred, FileKind, FsError, Ino};
use client::{Client, Error, FileSystem as _};
use futures::future::try_join_all;
use wire::{DirRef, NodeRef};

use crate::sim::{random::SimRandom, world::World};

const CLIENTS: usize = 4;
/// Maximum number of names of a client.
const NAMES: u64 = 24;
const OPERATIONS: u64 = 120;
/// Number of operations after which a client changes between making and removing names.
const SWING: u64 = 30;

struct Crowd {
    world: World,
    /// The crowded directory, and the one beside it where names rest meanwhile.
    dir: String,
    beside: String,
    at: DirRef,
}

/// A client, with its names in the directory and beside it.
struct Member {
    number: usize,
    client: Client,
    random: SimRandom,
    here: BTreeMap<u64, Ino>,
    beside: BTreeMap<u64, Ino>,
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let machines = world.connect_all("crowd", CLIENTS).await?;
    let (dir, beside) = (format!("/crowd-{number}"), format!("/beside-{number}"));
    let first = machines[0].client.clone();
    for path in [&dir, &beside] {
        first.mkdir(path, 0o755).await?;
        world.divide(&first, path).await?;
    }
    let spread = if world.random(&dir).one_in(3) { "subsets" } else { "extendible" };
    first.set_xattr(&dir, "pando.spread", spread.as_bytes(), wire::XattrMode::Set).await?;
    let NodeRef::Dir(at) = first.resolve(&dir).await? else {
        anyhow::bail!("{dir} is no directory")
    };
    let crowd = Rc::new(Crowd { world: world.clone(), dir, beside, at });
    Ok(async move {
        let runs = machines.iter().enumerate().map(|(number, machine)| {
            let random = crowd.world.random(&format!("{} {number}", crowd.dir));
            let (here, beside) = (BTreeMap::new(), BTreeMap::new());
            let client = machine.client.clone();
            crowd.run(Member { number, client, random, here, beside })
        });
        let members = try_join_all(runs).await?;
        let there: usize = members.iter().map(|member| member.here.len()).sum();
        for member in &members {
            let attr = member.client.stat(&crowd.dir).await?;
            ensure!(attr.size == there as u64, "{} entries are counted, {there} there", attr.size);
            crowd.list(member, 1000).await?;
        }
        for machine in machines {
            machine.close().await?;
        }
        Ok(())
    })
}

impl Crowd {
    async fn run(&self, mut member: Member) -> anyhow::Result<Member> {
        for step in 0..OPERATIONS {
            self.world.count(|counts| counts.operations += 1);
            let grows = (step / SWING).is_multiple_of(2);
            let name = member.random.below(NAMES);
            let did = self.step(&mut member, name, grows).await;
            did.with_context(|| {
                format!("{} of client {}", self.path(&member, name), member.number)
            })?;
            if member.random.one_in(8) {
                self.world.wait(member.random.ms(0..40)).await;
            }
        }
        Ok(member)
    }

    /// Whether a change was made, and not refused by a full disk.
    fn is_done<T>(
        &self,
        changed: client::Result<T>,
        what: &'static str,
    ) -> anyhow::Result<Option<T>> {
        self.world.unless_full(changed).context(what)
    }

    async fn step(&self, member: &mut Member, name: u64, grows: bool) -> anyhow::Result<()> {
        let (random, client) = (&member.random, &member.client);
        let (path, beside) = (self.path(member, name), self.beside(member, name));
        match random.below(10) {
            0 => return self.list(member, u32::try_from(random.within(1..6))?).await,
            1 => {
                let found = match client.stat(&path).await {
                    Ok(attr) => Some(attr.ino),
                    Err(Error::Fs(FsError::NotFound)) => None,
                    Err(error) => return Err(error).context("stat"),
                };
                let should = member.here.get(&name).copied();
                ensure!(found == should, "it is {found:?}, and should be {should:?}");
                return Ok(());
            }
            _ => {}
        }
        match (member.here.get(&name).copied(), member.beside.get(&name).copied()) {
            (Some(_), _) if grows && random.one_in(2) => {
                let new = random.below(NAMES);
                if member.here.contains_key(&new) {
                    return Ok(());
                }
                let renamed = client.rename(&path, self.path(member, new)).await;
                if self.is_done(renamed, "rename")?.is_some() {
                    member.here.remove(&name).map(|ino| member.here.insert(new, ino));
                }
            }
            (Some(ino), None) if random.one_in(3) => {
                let renamed = client.rename(&path, &beside).await;
                if self.is_done(renamed, "rename from it")?.is_some() {
                    member.here.remove(&name);
                    member.beside.insert(name, ino);
                }
            }
            (Some(_), _) if !grows => {
                let attr = client.stat(&path).await.context("stat before it is removed")?;
                let removed = match attr.kind {
                    FileKind::Directory => self.is_done(client.rmdir(&path).await, "rmdir")?,
                    _ => self.is_done(client.unlink(&path).await, "unlink")?,
                };
                if removed.is_some() {
                    member.here.remove(&name);
                }
            }
            (None, Some(ino)) => {
                let renamed = client.rename(&beside, &path).await;
                if self.is_done(renamed, "rename into it")?.is_some() {
                    member.beside.remove(&name);
                    member.here.insert(name, ino);
                }
            }
            (None, None) if grows => {
                let made = if random.one_in(5) {
                    self.is_done(client.mkdir(&path, 0o755).await, "mkdir")?
                } else {
                    let new = client::New { kind: FileKind::File, mode: 0o644, rdev: 0 };
                    self.is_done(client.mknod(&path, new).await, "mknod")?
                };
                member.here.extend(made.map(|made| (name, made.ino)));
            }
            (Some(_) | None, _) => {}
        }
        Ok(())
    }

    /// Lists the directory in pages of about `entries_max` entries, and checks the client's names.
    async fn list(&self, member: &Member, entries_max: u32) -> anyhow::Result<()> {
        let (mut found, mut after) = (BTreeMap::new(), 0);
        let own = format!("{}.", member.number);
        let mut seen = BTreeSet::new();
        loop {
            let client = &member.client;
            let page = client.readdir(&Cred::ROOT, &self.at, after, entries_max, false).await;
            let page = page.context("list")?;
            after = page.entries.last().map_or(after, |entry| entry.pos);
            for entry in page.entries {
                let name = String::from_utf8(entry.name.as_bytes().to_vec())?;
                if let Some(number) = name.strip_prefix(&own) {
                    ensure!(seen.insert(name.clone()), "{name} is listed twice");
                    found.insert(number.parse()?, entry.ino);
                }
            }
            if page.end {
                break;
            }
        }
        let should = &member.here;
        ensure!(found == *should, "{found:?} are listed, and there should be {should:?}");
        Ok(())
    }

    fn path(&self, member: &Member, name: u64) -> String {
        format!("{}/{}.{name}", self.dir, member.number)
    }

    fn beside(&self, member: &Member, name: u64) -> String {
        format!("{}/{}.{name}", self.beside, member.number)
    }
}
