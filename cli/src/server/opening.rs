//! Opens what a server stands on: the engine, the journal beside it, and the server itself.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use bench::Delayed;
use client::{SystemClock, Tcp};
use meta::{ClusterOptions, Limits, Offload, Server, ServerOptions, Word};
use store::{Engine, RocksConfig, RocksEngine};

use super::{
    Journaling, Left,
    ground::Ground,
    listen::bind,
    options::{CLUSTER_LEASE, Options, Role},
};
use crate::{
    audit::AuditLog,
    certificates::Certificates,
    data::{DataDir, KeptBackup},
    failure::usage,
    journal::{self, Started, Terms},
    memory,
    system::{self, SystemRandom},
};

/// Kept free unasked, in bytes; a twentieth of the disk where that is less.
const RESERVE_BYTES: u64 = 256 << 20;
/// Size that a file system on a store without bounds reports, in bytes: a pebibyte.
const UNBOUNDED: u64 = 1 << 50;

/// Opens a server, with the engine that an earlier run has left, if one has.
pub(super) fn open(
    ground: &Ground,
    options: &Options,
    beside: Besides,
    left: Option<Left>,
) -> anyhow::Result<Opened> {
    let Ground { data, blocks, address, certificates, .. } = ground;
    let (address, blocks) = (*address, blocks.clone());
    let folder = data.blocks_folder();
    let store = RocksConfig {
        block_cache_bytes: usize::try_from(options.memory.block_cache)?,
        memtable_bytes: usize::try_from(memory::memtable(&options.memory))?,
        ..RocksConfig::default()
    };
    // The engine opens before `cluster` looks: losses that it finds make `kept_all` false.
    let mut succeeds = false;
    let Left { engine, journal } = match (left, options.kept.journal()) {
        (Some(left), _) => left,
        (None, Some(kept)) => {
            let terms = terms(kept, options, address);
            let started = journal::start(data, &blocks, &store, &terms)?;
            succeeds = started.succeeds;
            let Started { engine, journaled, ship, journal: thread, .. } = started;
            Left { engine, journal: Some(Journaling { journaled, ship, thread }) }
        }
        (None, None) => {
            journal::start::end(data.path())?;
            Left { engine: Arc::new(data.engine(&blocks, &store)?), journal: None }
        }
    };
    let journaled = match &journal {
        Some(journal) => Arc::clone(&journal.journaled) as Arc<dyn Engine>,
        None => Arc::clone(&engine) as Arc<dyn Engine>,
    };
    let ship = journal.as_ref().map(|journal| Arc::clone(&journal.ship));
    let shortest = ship.as_ref().map_or(Duration::ZERO, |_| journal::COMMIT_INTERVAL_MIN);
    let options = ServerOptions {
        address: options.advertise.clone().unwrap_or_else(|| address.to_string()),
        cores: options.cores.get() + usize::from(options.near),
        durability: options.durability,
        commit_interval: options.commit_interval.max(shortest),
        lease: options.lease,
        offload: Offload::Threads,
        space: Arc::new(move || match &folder {
            Some(folder) => system::space(folder),
            None => (UNBOUNDED, UNBOUNDED),
        }),
        process: Arc::new(system::process_status),
        limits: limits(data, options),
        cluster: cluster(data, options, (address, certificates), (ship.is_some(), succeeds))?,
        backup: beside.backup,
        journal: ship.clone().map(|ship| ship as Arc<dyn meta::Journal>),
        audit: beside.audit.map(|audit| audit as Arc<dyn meta::Audit>),
    };
    let (clock, random) = (Arc::new(SystemClock), Arc::new(SystemRandom::default()));
    let server = Server::open(journaled, blocks, options, clock, random)
        .with_context(|| format!("cannot serve {}", data.path().display()))?;
    if let Some(ship) = ship {
        ship.serves(server.clone());
    }
    Ok(Opened { server, engine, journal })
}

fn terms(kept: &KeptBackup, options: &Options, address: SocketAddr) -> Terms {
    Terms {
        url: kept.url.clone(),
        address: options.advertise.clone().unwrap_or_else(|| address.to_string()),
        lease: kept.journal_lease(),
        ends_at: options.ends_at,
    }
}

/// Work of the process beside its server.
pub(super) struct Besides {
    pub(super) backup: Option<Arc<dyn meta::Backup>>,
    pub(super) audit: Option<Arc<AuditLog>>,
}

/// A server that was opened, and what it stands on.
pub(super) struct Opened {
    pub(super) server: Server,
    pub(super) engine: Arc<RocksEngine>,
    pub(super) journal: Option<Journaling>,
}

/// Returns how the server reaches the others of its cluster, if `data` and the options agree.
fn cluster(
    data: &DataDir,
    options: &Options,
    (address, certificates): (SocketAddr, &Certificates),
    (has_journal, succeeds): (bool, bool),
) -> anyhow::Result<Option<ClusterOptions>> {
    let dir = data.path().display();
    let (coordinators, lease) = match (data.server(), &options.role) {
        (None, Role::Alone) => return Ok(None),
        (None, Role::Coordinator { .. }) => {
            return Err(usage(format!(
                "{dir} holds a file system of one server, which has no coordinator: \
                 `pando serve --coordinator` makes it one of several"
            )));
        }
        (None, Role::Member { .. }) => {
            return Err(usage(format!(
                "{dir} holds a file system of its own: a server joins with an empty directory"
            )));
        }
        (Some(0), Role::Coordinator { lease }) => (Vec::new(), *lease),
        (Some(0), Role::Alone | Role::Member { .. }) => {
            return Err(usage(format!(
                "{dir} is that of a cluster's coordinator, which does not join: serve it with \
                 `pando serve --coordinator`"
            )));
        }
        (Some(server), Role::Coordinator { .. }) => {
            return Err(usage(format!(
                "{dir} is that of server {server} of a cluster, and not of its coordinator, server 0"
            )));
        }
        (Some(_), Role::Member { coordinators }) => (coordinators.clone(), CLUSTER_LEASE),
        (Some(server), Role::Alone) => {
            return Err(usage(format!(
                "{dir} is that of server {server} of a cluster: serve it with `pando serve`"
            )));
        }
    };
    is_reached(address, options)?;
    let encryption = certificates.encryption(options.tls.only);
    let dial = Arc::new(Delayed::new(Arc::new(Tcp::new(encryption)), options.peer_rtt));
    Ok(Some(ClusterOptions {
        dial,
        coordinators,
        lease,
        alone: options.alone,
        awake_or_not: Arc::new(system::since_boot),
        kept_all: data.ran_since_boot(),
        place: data.place(),
        // No process serves in another place: the lease of the journal has ended.
        word: Word { replaces: options.word.replaces || succeeds, ..options.word },
        // The journal has one owner, also where directories were copied.
        calls: has_journal,
    }))
}

/// Whether other servers can reach this one at an address that they are told.
fn is_reached(address: SocketAddr, options: &Options) -> anyhow::Result<()> {
    if address.ip().is_unspecified() && options.advertise.is_none() {
        return Err(usage(format!(
            "other servers cannot reach {address}: give --listen an address of one interface, or \
             --advertise the address at which they reach this server"
        )));
    }
    Ok(())
}

fn limits(data: &DataDir, options: &Options) -> Limits {
    let folders: Vec<_> =
        data.blocks_folder().into_iter().chain([data.metadata_folder()]).collect();
    let smallest = folders.iter().map(|folder| system::space(folder).0).min().unwrap_or_default();
    let reserve = options.reserve.unwrap_or(RESERVE_BYTES.min(smallest / 20));
    let free = move || folders.iter().map(|folder| system::space(folder).1).min();
    let (sessions_max, sessions_a_token_max) = (options.sessions_max, options.sessions_a_token_max);
    Limits {
        free: Arc::new(move || free().unwrap_or(u64::MAX)),
        reserve,
        sessions_max,
        sessions_a_token_max,
        split_by_locked_scan: options.split_by_locked_scan,
        memory: options.memory,
        ..Limits::default()
    }
}

/// Whether a server of several could listen where it is to: an error that comes before anything
/// else is done.
pub(crate) fn try_listen(options: &Options) -> anyhow::Result<()> {
    let address = try_bind(options)?;
    address.map_or(Ok(()), |address| is_reached(address, options))
}

/// Whether a server could listen where it is to. Returns the address for clients, for as long as
/// nobody else takes it.
pub(crate) fn try_bind(options: &Options) -> anyhow::Result<Option<SocketAddr>> {
    let addresses = std::iter::once(&options.listen).chain(&options.http);
    let bound: Vec<_> = addresses.map(bind).collect::<anyhow::Result<_>>()?;
    Ok(bound.first().map(TcpListener::local_addr).transpose()?)
}
