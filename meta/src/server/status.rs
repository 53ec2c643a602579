//! The status that a server reports, for `status` and `--http`. Reading it changes nothing.

use base::ShardId;

use super::{Durability, Shared};

impl Shared {
    pub(crate) fn status(&self) -> wire::Status {
        let engine = self.engine.stats();
        let mut sessions: Vec<_> = self
            .sessions
            .lock()
            .values()
            .map(|session| wire::SessionStatus {
                session: session.id,
                client: session.client.clone(),
                idle_seconds: session.idle().as_secs(),
                open_files: self.opens.count(session.id),
            })
            .collect();
        sessions.sort_unstable_by_key(|status| status.session);
        wire::Status {
            name: self.config.name.clone(),
            uuid: self.config.uuid,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs(),
            shards: self.own_shards(),
            durability: match self.options.durability {
                Durability::Relaxed => "relaxed".to_owned(),
                Durability::Strict => "strict".to_owned(),
            },
            commit_interval_ms: u64::try_from(self.options.commit_interval.as_millis())
                .unwrap_or(u64::MAX),
            blocks: match self.blocks.compression() {
                store::Compression::None => self.config.blocks.clone(),
                how => format!("{} compressed={how}", self.config.blocks),
            },
            sessions,
            counters: self.counters_and_locks(),
            store_bytes: engine.disk_bytes,
            store_records: engine.keys_estimated,
            process: (self.options.process)(),
        }
    }

    /// The counters, and the numbers of locks held at present.
    fn counters_and_locks(&self) -> Vec<(String, u64)> {
        let (files, held, waiting) = self.file_locks.totals();
        let locks = [("files_locked", files), ("locks_held", held), ("locks_waiting", waiting)];
        let mut counters = self.counters.list();
        counters.extend(locks.map(|(name, count)| (name.to_owned(), count as u64)));
        counters
    }

    /// Number of shards that this server serves.
    fn own_shards(&self) -> u16 {
        let Some(cluster) = &self.cluster else { return self.config.shards };
        let owned = (0..self.config.shards).filter(|shard| cluster.owns(ShardId(*shard))).count();
        u16::try_from(owned).expect("no more than there are")
    }

    /// Approximate number of records, as the engine estimates it. Records that were overwritten or
    /// removed lately count as well.
    pub(crate) fn records_estimated(&self) -> u64 {
        self.engine.stats().keys_estimated
    }
}
