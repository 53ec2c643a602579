//! Compares what servers say of the same inodes: side by side, a page of each server at a time.
//!
//! `fsck` calls it when all servers have checked what they have.

use std::collections::{BTreeMap, VecDeque};

use base::{Account, Ino, Time};
use wire::{FsckInos, FsckNames, FsckQuotas, InosPage, MendQuota, NamesOf, Reply, Request};

use super::Jobs;
use crate::{Client, Result, error::unexpected};

/// Maximum number of inodes that are checked again, of each kind.
const SUSPECTS_MAX: usize = 10_000;

/// Faults that the comparison suspects.
#[derive(Default)]
pub(super) struct Suspects {
    pub(super) links: Vec<Links>,
    /// Inode numbers that more than one server uses, with those servers.
    shared: Vec<(Ino, Vec<u16>)>,
    /// Quotas to which something else was charged than there is.
    pub(super) quotas: Vec<MendQuota>,
}

/// An inode that has more or fewer names than it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Links {
    pub(super) ino: Ino,
    pub(super) counted: u32,
    pub(super) found: u32,
    pub(super) changed: Time,
}

impl Suspects {
    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty() && self.shared.is_empty() && self.quotas.is_empty()
    }

    /// Keeps only the suspects that are also in `before`.
    pub(super) fn also_in(mut self, before: &Suspects) -> Suspects {
        self.links.retain(|links| before.links.contains(links));
        self.shared.retain(|shared| before.shared.contains(shared));
        self.quotas.retain(|quota| before.quotas.contains(quota));
        self
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let shared = self.shared.iter().map(|(ino, servers)| {
            let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
            format!("inode number {ino} is used on several servers: {}", servers.join(", "))
        });
        let quotas = self.quotas.iter().map(quota_line);
        self.links.iter().map(Links::line).chain(shared).chain(quotas).collect()
    }
}

impl Links {
    pub(super) fn line(&self) -> String {
        let Links { ino, counted, found, .. } = self;
        format!("inode {ino} counts {counted} names, but all servers together have {found}")
    }
}

/// Compares what the checks of all servers have found.
pub(super) async fn compare(client: &Client, jobs: &Jobs) -> Result<Suspects> {
    let (links, shared) = (links(client, jobs).await?, shared(client, jobs).await?);
    Ok(Suspects { links, shared, quotas: quotas(client, jobs).await? })
}

/// One server's list, in order.
struct List<T> {
    server: u16,
    job: u64,
    read: VecDeque<T>,
    /// Where the next page begins.
    from: u64,
    end: bool,
}

impl<T> List<T> {
    fn of(jobs: &Jobs) -> Vec<List<T>> {
        let list = |(server, job)| List { server, job, read: VecDeque::new(), from: 0, end: false };
        jobs.all().map(list).collect()
    }

    /// Another page was read.
    fn add(&mut self, page: Vec<T>, next: impl Fn(&T) -> u64) {
        self.end = page.is_empty();
        self.from = page.last().map_or(self.from, next);
        self.read = page.into();
    }
}

async fn links(client: &Client, jobs: &Jobs) -> Result<Vec<Links>> {
    let mut lists = List::<NamesOf>::of(jobs);
    let mut wrong = Vec::new();
    while wrong.len() < SUSPECTS_MAX {
        for list in &mut lists {
            if list.read.is_empty() && !list.end {
                let request = FsckNames { job: list.job, after: Ino(list.from) };
                let reply = client.ask_server(list.server, Request::FsckNames(request)).await?;
                let Reply::FsckNames(page) = reply else { return Err(unexpected()) };
                list.add(page, |names| names.ino.0);
            }
        }
        let next = lists.iter().filter_map(|list| list.read.front()).map(|names| names.ino).min();
        let Some(ino) = next else { break };
        let (mut found, mut counts) = (0u32, None);
        for list in &mut lists {
            if let Some(names) = list.read.pop_front_if(|names| names.ino == ino) {
                found = found.saturating_add(names.found);
                counts = counts.or(names.counted);
            }
        }
        // One that is not there was found by the server that has the name.
        if let Some((counted, changed)) = counts.filter(|(counted, _)| *counted != found) {
            wrong.push(Links { ino, counted, found, changed });
        }
    }
    Ok(wrong)
}

async fn shared(client: &Client, jobs: &Jobs) -> Result<Vec<(Ino, Vec<u16>)>> {
    let mut lists = List::<InosPage>::of(jobs);
    let mut shared = Vec::new();
    while shared.len() < SUSPECTS_MAX {
        for list in &mut lists {
            if list.read.is_empty() && !list.end {
                let request = FsckInos { job: list.job, from: list.from };
                let reply = client.ask_server(list.server, Request::FsckInos(request)).await?;
                let Reply::FsckInos(pages) = reply else { return Err(unexpected()) };
                list.add(pages, |page| page.page + 1);
            }
        }
        let next = lists.iter().filter_map(|list| list.read.front()).map(|page| page.page).min();
        let Some(page) = next else { break };
        let of_page =
            |list: &mut List<InosPage>| list.read.pop_front_if(|other| other.page == page);
        let pages: Vec<(u16, InosPage)> = (0..)
            .zip(&mut lists)
            .filter_map(|(server, list)| Some((server, of_page(list)?)))
            .collect();
        in_several(&pages, &mut shared);
    }
    Ok(shared)
}

/// How far what all servers have charged to a quota is from what there is.
pub(super) fn quota_line(quota: &MendQuota) -> String {
    let MendQuota { root, lacks: (entries, bytes) } = quota;
    let less = "counts less than there is, on all servers together:";
    let account = Account::of(*root);
    format!("the quota of {account} {less} {entries} entries and {bytes} bytes")
}

async fn quotas(client: &Client, jobs: &Jobs) -> Result<Vec<MendQuota>> {
    let mut lacks = BTreeMap::<Ino, (i64, i64)>::new();
    for (server, job) in jobs.all() {
        let request = Request::FsckQuotas(FsckQuotas { job });
        let reply = client.ask_server(server, request).await?;
        let Reply::FsckQuotas(quotas) = reply else { return Err(unexpected()) };
        for quota in quotas {
            let (entries, bytes) = lacks.entry(quota.root).or_default();
            *entries += quota.found.0 - quota.charged.0;
            *bytes += quota.found.1 - quota.charged.1;
        }
    }
    let lacks = lacks.into_iter().filter(|(_, lacks)| *lacks != (0, 0));
    Ok(lacks.map(|(root, lacks)| MendQuota { root, lacks }).collect())
}

/// The numbers that are in more than one server's page.
fn in_several(pages: &[(u16, InosPage)], shared: &mut Vec<(Ino, Vec<u16>)>) {
    let Some(bytes) =
        pages.iter().map(|(_, page)| page.bits.len()).max().filter(|_| pages.len() > 1)
    else {
        return;
    };
    let byte = |page: &InosPage, at: usize| page.bits.get(at).copied().unwrap_or_default();
    for at in 0..bytes {
        let (mut once, mut twice) = (0u8, 0u8);
        for (_, page) in pages {
            twice |= once & byte(page, at);
            once |= byte(page, at);
        }
        for bit in (0..8u8).filter(|bit| twice & (1 << bit) != 0) {
            let in_page = u64::try_from(at * 8).unwrap_or(u64::MAX) + u64::from(bit);
            let first = pages[0].1.page * u64::try_from(bytes * 8).unwrap_or(u64::MAX);
            let users = pages.iter().filter(|(_, page)| byte(page, at) & (1 << bit) != 0);
            shared.push((Ino(first + in_page), users.map(|(server, _)| *server).collect()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(server: u16, bits: &[u8]) -> (u16, InosPage) {
        (server, InosPage { page: 3, bits: bits.to_vec().into() })
    }

    #[test]
    fn numbers_that_several_servers_use_are_found_with_their_users() {
        let mut shared = Vec::new();
        let pages = [page(0, &[1, 0b110]), page(2, &[2, 0b100]), page(5, &[4, 0b010])];
        in_several(&pages, &mut shared);
        assert_eq!(shared, [(Ino(48 + 9), vec![0, 5]), (Ino(48 + 10), vec![0, 2])]);
        in_several(&pages[..1], &mut shared);
        assert_eq!(shared.len(), 2);
    }
}
