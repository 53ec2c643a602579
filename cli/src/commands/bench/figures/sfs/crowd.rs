//! Clients of one site that make names together.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, bail};
use client::Client;
use wire::{Distribution, XattrMode};

use super::super::{
    load::{self, Op, Took, Work, float64},
    site::{Shape, Site},
};

/// Counters of a server that go on for as long as names move.
const MOVING: [&str; 4] = ["handoffs_begun", "handoffs_done", "handoff_names", "groups"];
/// For how long servers have frozen names, each time.
const FROZEN: &str = "handoff_frozen_nanos";
/// Distribution of the times that requests have waited for names that move, without requests that
/// did not wait.
const WAITED: &str = "handoff_wait_nanos";
/// Pause between two looks at the counts of [`MOVING`]. The names are at rest when none has changed
/// in between.
const PAUSE: Duration = Duration::from_millis(100);
/// Number of such looks before the measurement is given up.
const LOOKS_MAX: u32 = 200;

/// A site with its clients.
pub(super) struct Crowd {
    site: Site,
    pub(super) clients: Vec<Client>,
    /// Client that asks servers for their counts; none of the measured ones.
    pub(super) watcher: Client,
    servers: u16,
}

/// Counts of servers of their handoffs during a measurement.
#[derive(Debug, Clone, Default)]
pub(super) struct Moved {
    /// Handoffs whose names have moved.
    handoffs: u64,
    /// Handoffs that began and ended without.
    given_up: u64,
    /// Names that moved.
    names: u64,
    /// For how many nanoseconds names were frozen, each time.
    frozen: Distribution,
    /// For how many nanoseconds requests waited for that, of those that did.
    waited: Distribution,
}

impl Moved {
    pub(super) fn handoffs(&self) -> f64 {
        float64(self.handoffs)
    }

    pub(super) fn given_up(&self) -> f64 {
        float64(self.given_up)
    }

    pub(super) fn names(&self) -> f64 {
        float64(self.names)
    }

    /// For how many milliseconds they were frozen on average, each time.
    pub(super) fn frozen_ms(&self) -> f64 {
        let times: u64 = self.frozen.buckets.iter().sum();
        float64(self.frozen.sum) / 1e6 / float64(times.max(1))
    }

    /// Milliseconds that so many of a thousand freezes did not exceed; the next power of two
    /// microseconds.
    pub(super) fn frozen_within_ms(&self, permille: u64) -> f64 {
        within_ms(&self.frozen, self.frozen.buckets.iter().sum(), permille)
    }

    /// Requests that waited for names that move.
    pub(super) fn waited(&self) -> f64 {
        float64(self.waited.buckets.iter().sum())
    }

    /// Milliseconds that so many of a thousand of `all` requests did not wait longer than for names
    /// that move: 0, or the next of 0.078125, 0.15625 and so on, of which 20 is one.
    pub(super) fn waited_within_ms(&self, all: usize, permille: u64) -> f64 {
        within_ms(&self.waited, u64::try_from(all).unwrap_or(u64::MAX), permille)
    }
}

/// Milliseconds that so many of a thousand of `all` did not exceed, where uncounted ones took none.
fn within_ms(counted: &Distribution, all: u64, permille: u64) -> f64 {
    let took_none = all.saturating_sub(counted.buckets.iter().sum());
    let rank = (all * permille).div_ceil(1000).max(1);
    let mut seen = took_none;
    if seen >= rank {
        return 0.0;
    }
    let at = counted.buckets.iter().position(|count| {
        seen += count;
        seen >= rank
    });
    at.map_or(0.0, |at| float64(counted.unit << at) / 1e6)
}

impl Crowd {
    pub(super) async fn start(
        directory: Option<&Path>,
        shape: Shape<'_>,
        clients: u16,
    ) -> anyhow::Result<Crowd> {
        let site = Site::start(directory, shape)?;
        let watcher = site.client(|_| {}).await?;
        let mut all = Vec::new();
        for _ in 0..clients {
            all.push(site.client(|_| {}).await?);
        }
        Ok(Crowd { site, clients: all, watcher, servers: shape.servers })
    }

    /// Makes a directory that is divided when a partition has so many names.
    pub(super) async fn divided(&self, path: &str, threshold: u32) -> anyhow::Result<()> {
        self.watcher.mkdir(path, 0o755).await.with_context(|| format!("mkdir {path}"))?;
        self.set(path, "spread", "extendible").await?;
        self.set(path, "split_threshold", &threshold.to_string()).await
    }

    /// Makes a directory that is in so many partitions from the beginning, and not divided further.
    pub(super) async fn divided_before(&self, path: &str, partitions: u16) -> anyhow::Result<()> {
        self.watcher.mkdir(path, 0o755).await.with_context(|| format!("mkdir {path}"))?;
        self.set(path, "spread", "extendible").await?;
        self.set(path, "split_threshold", &u32::MAX.to_string()).await?;
        self.set(path, "large_dir", &partitions.to_string()).await
    }

    /// Makes directories that stay in one partition.
    pub(super) async fn whole(&self, paths: &[String]) -> anyhow::Result<()> {
        load::mkdirs(&self.watcher, paths).await?;
        for path in paths {
            self.set(path, "spread", "none").await?;
        }
        Ok(())
    }

    /// A single server divides nothing.
    async fn set(&self, path: &str, key: &str, value: &str) -> anyhow::Result<()> {
        if self.servers == 1 {
            return Ok(());
        }
        let name = format!("pando.{key}");
        let set = self.watcher.set_xattr(path, &name, value.as_bytes(), XattrMode::Set);
        set.await.with_context(|| format!("setting {key} of {path}"))
    }

    /// Does all of `work`, and waits until nothing moves any more; what moved.
    pub(super) async fn run(
        &self,
        clients: &[Client],
        under_way: usize,
        work: Vec<Work>,
    ) -> anyhow::Result<(Took, Moved)> {
        let before = self.counted().await?;
        let (frozen, waited) = (self.distribution(FROZEN).await?, self.distribution(WAITED).await?);
        let took = load::run(clients, &self.watcher, under_way, work).await?;
        let after = self.settled().await?;
        let since = |at: usize| after[at].saturating_sub(before[at]);
        let moved = Moved {
            handoffs: since(1),
            given_up: since(0).saturating_sub(since(1)),
            names: since(2),
            frozen: less(self.distribution(FROZEN).await?, &frozen),
            waited: less(self.distribution(WAITED).await?, &waited),
        };
        Ok((took, moved))
    }

    /// Returns a distribution of all servers, counted since they were started.
    async fn distribution(&self, wanted: &str) -> anyhow::Result<Distribution> {
        let loads = self.watcher.loads().await.context("a server does not say its counts")?;
        let mut all = Distribution::default();
        for (name, of) in loads.into_iter().flat_map(|load| load.distributions) {
            if name == wanted {
                all.unit = of.unit;
                all.sum += of.sum;
                all.buckets.resize(of.buckets.len(), 0);
                all.buckets.iter_mut().zip(of.buckets).for_each(|(all, more)| *all += more);
            }
        }
        Ok(all)
    }

    /// Returns the counts of [`MOVING`], summed over the servers.
    async fn counted(&self) -> anyhow::Result<[u64; MOVING.len()]> {
        let statuses = self.watcher.statuses().await.context("a server does not say its counts")?;
        let counters = || statuses.iter().flat_map(|status| &status.counters);
        let sum =
            |name: &str| counters().filter(|(known, _)| known == name).map(|(_, of)| of).sum();
        Ok(MOVING.map(sum))
    }

    /// Returns the counts of [`MOVING`] once nothing moves.
    async fn settled(&self) -> anyhow::Result<[u64; MOVING.len()]> {
        let mut last = self.counted().await?;
        for _ in 0..LOOKS_MAX {
            tokio::time::sleep(PAUSE).await;
            let now = self.counted().await?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
        bail!("the servers did not come to rest")
    }

    /// In how many partitions a directory is.
    pub(super) async fn partitions(&self, path: &str) -> anyhow::Result<f64> {
        let facts =
            self.watcher.info(path).await.with_context(|| format!("asking about {path}"))?;
        let found = facts.iter().find(|(name, _)| name == "partitions");
        Ok(found.and_then(|(_, value)| value.parse().ok()).unwrap_or(1.0))
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        for client in self.clients {
            client.close().await?;
        }
        self.site.stop()
    }
}

/// Returns the counts since the earlier distribution.
fn less(mut after: Distribution, before: &Distribution) -> Distribution {
    let buckets = after.buckets.iter_mut().zip(&before.buckets);
    buckets.for_each(|(after, before)| *after -= before);
    after.sum -= before.sum;
    after
}

/// New names in one directory.
pub(super) fn creates(dir: &str, count: usize) -> Vec<Work> {
    (0..count).map(|at| (Op::Create, format!("{dir}/file{at}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_not_waited_counts_among_those_that_waited_for_nothing() {
        let mut waited = Distribution { unit: 78_125, buckets: vec![0; 28], sum: 0 };
        waited.buckets[8] = 9;
        waited.buckets[9] = 2;
        let moved = Moved { waited, ..Moved::default() };
        let within = |permille| moved.waited_within_ms(10_000, permille);
        assert_eq!([998, 999, 1000].map(within), [0.0, 20.0, 40.0]);
    }
}
