//! The world that workloads work in: its clients, and what happens to its servers.

use std::{
    cell::{Cell, RefCell},
    iter,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use anyhow::ensure;
use base::{Clock, Cred, DirId, EntryName, FsError, NameVersion, placement::shard_of};
use client::{AccessTimes, Client, Config, Error, Resolution};
use meta::Bug;
use tokio::time::Instant;
use wire::{Join, Token, XattrMode};

use super::{
    clock::SimClock,
    machines,
    network::{Network, Place},
    plan::{Plan, Special},
    random::SimRandom,
    server::{Host, SIGNING_KEY, address_of, addresses_of},
    trace::Trace,
};

/// Time in which a server is replaced whose machine is lost.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// Pause between two looks whether one is.
const LOOK: Duration = Duration::from_millis(20);
/// Maximum number of partitions of a directory; few, because names are few.
const PARTITIONS_MAX: u16 = 6;

/// A world. Clones share it.
#[derive(Clone)]
pub struct World {
    inner: Rc<Inner>,
}

struct Inner {
    plan: Plan,
    trace: Trace,
    random: SimRandom,
    network: Network,
    clock: Arc<SimClock>,
    hosts: Vec<Host>,
    /// All machines of each server.
    machines: Vec<Vec<Host>>,
    clients: Cell<u64>,
    counts: RefCell<Counts>,
}

/// Counts of events in a world.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that workloads asked for.
    pub operations: u64,
    /// Servers killed.
    pub kills: u64,
    /// Servers killed by a power cut.
    pub power_cuts: u64,
    /// Blocks lost in power cuts.
    pub blocks_lost: u64,
    /// Logs truncated because they named lost blocks.
    pub logs_cut: u64,
    /// Connections cut.
    pub cuts: u64,
    /// Times that a server stood still.
    pub stops: u64,
    /// Times that two machines did not reach each other for a while.
    pub walls: u64,
    /// Times that a machine was slow.
    pub slow: u64,
    /// Clients that died.
    pub deaths: u64,
    /// Requests that were sent again.
    pub retries: u64,
    /// Connections that replaced a lost one.
    pub reconnects: u64,
    /// Times that a client was told that changes which were answered are lost.
    pub losses: u64,
    /// Retried requests that got their stored answer.
    pub duplicates_suppressed: u64,
    /// Sessions that ended by their lease.
    pub sessions_expired: u64,
    /// Inodes removed in the background.
    pub inodes_reclaimed: u64,
    /// Handoffs begun between partitions of a directory.
    pub handoffs_begun: u64,
    /// Handoffs committed.
    pub handoffs_done: u64,
    /// Servers that were dead for longer than a lease.
    pub away: u64,
    /// Times that the coordinator was dead for longer than a lease.
    pub coordinators_away: u64,
    /// Machines that were lost with their disks.
    pub machines_lost: u64,
    /// Machines that took another one's place.
    pub takeovers: u64,
    /// Leases of servers that ended before they were renewed.
    pub leases_ended: u64,
    /// Transactions begun over several servers.
    pub transactions_begun: u64,
    /// Transactions over several servers that were not committed.
    pub transactions_aborted: u64,
    /// Transactions whose outcome a participant had to ask for.
    pub transactions_recovered: u64,
    /// Pairs of an absence of a server and another server that was asked for something meanwhile.
    pub beside_asked: u64,
    /// Pairs in which the other server answered meanwhile.
    pub beside_answered: u64,
    /// Times that disks were nearly full.
    pub full: u64,
    /// Operations refused because a disk was nearly full.
    pub refused_full: u64,
    /// Clients that resolved paths without predicted ids.
    pub sequential: u64,
    /// Operations of clients whose tokens were limited to a directory.
    pub limited: u64,
    /// Checks of all servers that found nothing while workloads ran.
    pub checks: u64,
    /// Dumps that were read to their end while workloads ran.
    pub dumps: u64,
    /// Changes refused by a quota.
    pub refused: u64,
    /// Contents of files refused by a quota.
    pub refused_contents: u64,
    /// Quotas of `/` that were set and removed while workloads ran.
    pub quotas_set: u64,
    /// The same, where counting never ended in time because the coordinator died again and again.
    pub quotas_left: u64,
    /// Locks taken and released.
    pub locks: u64,
    /// Locks that another client held when they were requested.
    pub locks_awaited: u64,
    /// Locks not granted in time.
    pub locks_late: u64,
    /// Comparisons with the model.
    pub models: u64,
    /// Comparisons with the model that ended early, because a removed file lived on after a
    /// restart.
    pub models_ended: u64,
    /// Directories that mounts were granted.
    pub granted: u64,
    /// Of these, those that others asked for.
    pub recalled: u64,
    /// Comparisons with the model that ended early, because a mount that could not be reached has
    /// lost a directory.
    pub taken_back: u64,
    /// Files and directories found in the trash.
    pub thrown: u64,
    /// Changes that watchers were told of, and gaps.
    pub watched: u64,
    /// Worlds in which a watcher was told of a gap.
    pub gaps: u64,
    /// Histories checked for linearizability.
    pub histories: u64,
    /// Operations in these histories.
    pub history_operations: u64,
    /// Operations of which nobody knows whether they happened, as their session was lost.
    pub unknown: u64,
    /// States visited to find an order of these histories.
    pub history_states: u64,
    /// Histories whose check gave up.
    pub histories_given_up: u64,
}

/// A client with the machine that it runs on.
pub struct Machine {
    /// The client.
    pub client: Client,
    number: u64,
    world: World,
}

impl World {
    /// A new world in which the first server runs. Must be called within the world's runtime.
    ///
    /// # Errors
    /// When a server cannot start.
    pub fn new(plan: Plan, bug: Option<Bug>, trace: &Trace) -> anyhow::Result<World> {
        trace.start();
        if plan.has_small_disks() {
            trace.expect("the disk is nearly full");
            trace.expect("the disk is full: only reads");
        }
        if plan.machines > 1 {
            trace.expect("the journal is lost");
            trace.expect("a newer process of server");
        }
        let random = SimRandom::new(plan.seed);
        let network = Network::new(&plan, random.stream("network"), trace.clone());
        let clock = Arc::new(SimClock::start(plan.fine_clock));
        let wall: Arc<dyn Clock> = clock.clone();
        let mut hosts = Vec::new();
        for server in 0..plan.servers {
            let random = random.stream(&format!("server {server}"));
            let host = Host::new(server, &plan, bug, &network, &wall, random, trace)?;
            hosts.push(host);
        }
        let all_of = |host: &Host| -> Vec<Host> {
            let standbys = (1..plan.machines).map(|number| host.standby(number));
            iter::once(host.machine()).chain(standbys).collect()
        };
        let machines = hosts.iter().map(all_of).collect();
        hosts[0].start()?;
        let inner = Inner {
            plan,
            trace: trace.clone(),
            random,
            network,
            clock,
            hosts,
            machines,
            clients: Cell::new(0),
            counts: RefCell::default(),
        };
        Ok(World { inner: Rc::new(inner) })
    }

    /// Lets the other servers join the first one.
    ///
    /// # Errors
    /// When a server is refused.
    pub async fn form(&self) -> anyhow::Result<()> {
        let servers = self.plan().begins_with.unwrap_or(self.plan().servers);
        if servers == 1 {
            return Ok(());
        }
        let client = Client::connect_incomplete(self.config("joins", false).0).await?;
        for server in 1..servers {
            self.join(&client, server).await?;
        }
        client.close().await?;
        // The cluster serves clients only once all servers have joined.
        self.connect("formed").await?.close().await
    }

    async fn join(&self, client: &Client, server: u16) -> anyhow::Result<()> {
        let host = &self.hosts()[usize::from(server)];
        let member = u64::from(server) << 32;
        let join = Join { address: address_of(server), member };
        host.format_joined(&client.join(join).await?, member)?;
        host.start()
    }

    /// Lets a server join a complete cluster, or a file system of one server.
    ///
    /// # Errors
    /// When the server is refused.
    pub async fn grow(&self, server: u16) -> anyhow::Result<()> {
        if server == 1 {
            let first = &self.hosts()[0];
            first.kill();
            first.found_cluster()?;
            first.start()?;
        }
        let machine = self.connect("joins").await?;
        self.join(&machine.client, server).await?;
        machine.close().await
    }

    /// Connects a client on a machine of its own. Its session is on stable storage when this
    /// returns.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn connect(&self, name: &str) -> anyhow::Result<Machine> {
        self.connect_as(name, false).await
    }

    /// Connects `count` clients of one name, as [`World::connect`] does, each on a machine of its
    /// own.
    ///
    /// # Errors
    /// When the server refuses one of them.
    pub async fn connect_all(&self, name: &str, count: usize) -> anyhow::Result<Vec<Machine>> {
        let mut machines = Vec::new();
        for _ in 0..count {
            machines.push(self.connect(name).await?);
        }
        Ok(machines)
    }

    /// Connects a client as [`World::connect`] does. With `kernel_checks` it is a mount whose
    /// kernel has checked every permission.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn connect_as(&self, name: &str, kernel_checks: bool) -> anyhow::Result<Machine> {
        self.connect_stable(|| self.config(name, kernel_checks)).await
    }

    /// Connects a client as [`World::connect`] does, with a token that is limited to a directory.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn connect_limited(&self, name: &str, path: &str) -> anyhow::Result<Machine> {
        let token = Token { path: path.to_owned(), ..Token::administrator() };
        let limited = || {
            let (config, number) = self.config(name, false);
            (Config { token: token.sign(SIGNING_KEY), ..config }, number)
        };
        self.connect_stable(limited).await
    }

    async fn connect_stable(&self, config: impl Fn() -> (Config, u64)) -> anyhow::Result<Machine> {
        loop {
            let (config, number) = config();
            let client = Client::connect(config).await?;
            match client.sync().await {
                Ok(()) => return Ok(Machine { client, number, world: self.clone() }),
                // The power was cut before the session was stable.
                Err(Error::SessionLost) => client.close().await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Connects a client as [`World::connect`] does, with a token that is bound to a user. Its
    /// session is untrusted and must prove every walk.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn connect_bound(&self, name: &str, uid: u32) -> anyhow::Result<Machine> {
        let token = Token { uid: Some(uid), gids: vec![uid], ..Token::administrator() };
        Ok(self.connect_with(name, &token).await?)
    }

    /// Connects a client with any token, as the user that the token is bound to.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn connect_with(&self, name: &str, token: &Token) -> client::Result<Machine> {
        let (config, number) = self.config(name, false);
        let cred = match token.uid {
            Some(uid) => Cred { uid, gid: uid, groups: Vec::new() },
            None => Cred::ROOT,
        };
        let client =
            Client::connect(Config { token: token.sign(SIGNING_KEY), cred, ..config }).await?;
        Ok(Machine { client, number, world: self.clone() })
    }

    fn config(&self, name: &str, kernel_checks: bool) -> (Config, u64) {
        let Inner { plan, network, clock, random, clients, .. } = &*self.inner;
        let number = clients.get() + 1;
        clients.set(number);
        let random = random.stream(&format!("client {number}"));
        let sequential =
            plan.special == Special::Sequential && random.stream("resolution").one_in(2);
        self.count(|counts| counts.sequential += u64::from(sequential));
        let config = Config {
            addresses: (0..plan.servers).flat_map(|server| addresses_of(server, plan)).collect(),
            token: Token::administrator().sign(SIGNING_KEY),
            client_name: name.to_owned(),
            cred: Cred::ROOT,
            kernel_checks,
            access_cache_bytes: if plan.access_cache { 64 << 10 } else { 0 },
            read_cache_bytes: if plan.read_cache { 4 << 20 } else { 0 },
            dirty_bytes_max: plan.dirty_bytes_max,
            blocks: None,
            tasks: client::Tasks::Runtime,
            pid: 1,
            access_times: AccessTimes::Relative,
            resolution: match sequential {
                true => Resolution::Sequential,
                false if plan.fast_paths => Resolution::Auto,
                false => Resolution::Speculative,
            },
            cache_lease: None,
            dial: network.port(number),
            clock: clock.clone(),
            random: Arc::new(random),
        };
        (config, number)
    }

    /// The plan that the seed decided.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.inner.plan
    }

    /// The record of all events.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.inner.trace
    }

    /// The machines of the servers.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.inner.hosts
    }

    /// Any of the machines of the server that `host` is one of.
    pub(super) fn machine_of(&self, host: &Host, random: &SimRandom) -> Host {
        let machines = &self.inner.machines[usize::from(host.at().server)];
        machines[random.index(machines.len())].clone()
    }

    /// Has the machines of all servers stand by, where there are several. The result ends only with
    /// an error.
    ///
    /// # Errors
    /// When a journal or an engine is damaged.
    pub async fn stand_by(&self) -> anyhow::Result<()> {
        let each = self.hosts().iter().zip(&self.inner.machines);
        let each = each.flat_map(|(host, machines)| machines.iter().map(move |one| (host, one)));
        let run = each.map(|(host, one)| machines::run(self.clone(), host.clone(), one.clone()));
        futures::future::try_join_all(run).await.map(drop)
    }

    /// Ends all faults of all machines, and waits until each server is served.
    ///
    /// # Errors
    /// When a server cannot be started, or no machine takes its place.
    pub async fn recover(&self) -> anyhow::Result<()> {
        for machine in self.inner.machines.iter().flatten() {
            machine.end_faults();
        }
        for host in self.hosts() {
            host.recover()?;
            let begun = Instant::now();
            while !host.is_alive() {
                ensure!(begun.elapsed() < RECOVERY_MAX, "{:?} is not replaced", host.place());
                self.wait(LOOK).await;
                host.recover()?;
            }
        }
        Ok(())
    }

    /// Merges the stores of all servers, none of which may run, and starts a single server on them.
    /// Clients find it at the first server's address.
    ///
    /// # Errors
    /// As for [`Host::unite`].
    pub async fn unite(&self) -> anyhow::Result<Host> {
        let host = Host::unite(self.hosts()).await?;
        host.start()?;
        Ok(host)
    }

    /// Divides an empty directory into partitions, and perhaps all directories that will be made in
    /// it, if the plan says so.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn divide(&self, client: &Client, path: &str) -> anyhow::Result<()> {
        let random = self.random(&format!("divides {path}"));
        if !self.plan().divides || random.one_in(4) {
            return Ok(());
        }
        let most = self.plan().shards.min(PARTITIONS_MAX);
        let partitions = random.within(2..u64::from(most) + 1).to_string();
        let spread = random.pick(&["extendible", "subsets"]);
        let inherit = if random.one_in(3) { "no" } else { "yes" };
        for (name, value) in [("spread", spread), ("large_dir", &partitions), ("inherit", inherit)]
        {
            let name = format!("pando.{name}");
            client.set_xattr(path, &name, value.as_bytes(), XattrMode::Set).await?;
        }
        Ok(())
    }

    /// Finds a name in `dir` that, for a directory, gives an id placed on `server`. Returns the
    /// name and the id. Every directory must be placed by its own id.
    ///
    /// # Panics
    /// Never: there is always another name.
    #[must_use]
    pub fn name_on(&self, client: &Client, dir: DirId, server: u16) -> (String, DirId) {
        let (key, plan) = (client.fs_info().hash_key, self.plan());
        let named = |number: u64| {
            let name = format!("dir {number}");
            let entry = EntryName::new(name.as_bytes()).expect("it is short");
            (name, key.dir_id(dir, &entry, NameVersion(0)))
        };
        let is_there =
            |(_, id): &(_, DirId)| shard_of(*id, 0, plan.shards).0 % plan.servers == server;
        (0..).map(named).find(is_there).expect("there is always another name")
    }

    /// The network.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.inner.network
    }

    /// The random stream with this label.
    #[must_use]
    pub fn random(&self, label: &str) -> SimRandom {
        self.inner.random.stream(label)
    }

    /// The counts of events so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let sum = |name| self.hosts().iter().map(|host| host.counter(name)).sum();
        Counts {
            blocks_lost: sum("blocks_lost"),
            logs_cut: sum("logs_cut"),
            duplicates_suppressed: sum("duplicates_suppressed"),
            sessions_expired: sum("sessions_expired"),
            inodes_reclaimed: sum("inodes_reclaimed"),
            handoffs_begun: sum("handoffs_begun"),
            handoffs_done: sum("handoffs_done"),
            leases_ended: sum("leases_ended"),
            transactions_begun: sum("transactions_begun"),
            transactions_aborted: sum("transactions_aborted"),
            transactions_recovered: sum("transactions_recovered"),
            ..*self.inner.counts.borrow()
        }
    }

    /// The counts of what the world itself does, such as kills: workloads ask often.
    #[must_use]
    pub fn happened(&self) -> Counts {
        *self.inner.counts.borrow()
    }

    /// Changes the counts.
    pub fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.inner.counts.borrow_mut());
    }

    /// The result of an operation; `None`, and a count, if a nearly full disk has refused it. A
    /// refused operation has changed nothing.
    ///
    /// # Errors
    /// The error of the operation. Where disks are never full, `NoSpace` is one.
    pub fn unless_full<T>(&self, done: Result<T, Error>) -> Result<Option<T>, Error> {
        match done {
            Err(Error::Fs(FsError::NoSpace)) if self.plan().has_small_disks() => {
                self.count(|counts| counts.refused_full += 1);
                Ok(None)
            }
            done => done.map(Some),
        }
    }

    /// Sets all clocks forward by some seconds, without waiting.
    pub fn skip(&self, seconds: i64) {
        self.inner.clock.skip(seconds);
    }

    /// Waits, in the time of the world.
    pub async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

impl Machine {
    /// The machine, as the network knows it.
    #[must_use]
    pub fn place(&self) -> Place {
        Place::Client(self.number)
    }

    /// Closes the client.
    ///
    /// # Errors
    /// When written data cannot be stored.
    pub async fn close(self) -> anyhow::Result<()> {
        self.client.close().await?;
        self.leave();
        Ok(())
    }

    /// Lets the machine die, or only the client's process (`closed`), without a goodbye.
    pub fn die(self, closed: bool) {
        let world = &self.world;
        world.trace().note("death", &[self.number, u64::from(closed)]);
        world.count(|counts| counts.deaths += 1);
        world.network().client_died(self.number, closed);
        self.leave();
    }

    fn leave(&self) {
        let stats = self.client.stats();
        self.world.count(|counts| {
            counts.retries += stats.retries;
            counts.reconnects += stats.reconnects;
            counts.losses += stats.losses;
        });
    }
}

impl Counts {
    /// Adds the counts of another world.
    pub fn add(&mut self, other: &Counts) {
        self.operations += other.operations;
        self.kills += other.kills;
        self.power_cuts += other.power_cuts;
        self.blocks_lost += other.blocks_lost;
        self.logs_cut += other.logs_cut;
        self.cuts += other.cuts;
        self.stops += other.stops;
        self.walls += other.walls;
        self.slow += other.slow;
        self.deaths += other.deaths;
        self.retries += other.retries;
        self.reconnects += other.reconnects;
        self.losses += other.losses;
        self.duplicates_suppressed += other.duplicates_suppressed;
        self.sessions_expired += other.sessions_expired;
        self.inodes_reclaimed += other.inodes_reclaimed;
        self.handoffs_begun += other.handoffs_begun;
        self.handoffs_done += other.handoffs_done;
        self.away += other.away;
        self.coordinators_away += other.coordinators_away;
        self.machines_lost += other.machines_lost;
        self.takeovers += other.takeovers;
        self.leases_ended += other.leases_ended;
        self.transactions_begun += other.transactions_begun;
        self.transactions_aborted += other.transactions_aborted;
        self.transactions_recovered += other.transactions_recovered;
        self.beside_asked += other.beside_asked;
        self.beside_answered += other.beside_answered;
        self.full += other.full;
        self.refused_full += other.refused_full;
        self.sequential += other.sequential;
        self.limited += other.limited;
        self.checks += other.checks;
        self.dumps += other.dumps;
        self.refused += other.refused;
        self.refused_contents += other.refused_contents;
        self.quotas_set += other.quotas_set;
        self.quotas_left += other.quotas_left;
        self.models += other.models;
        self.models_ended += other.models_ended;
        self.locks += other.locks;
        self.locks_awaited += other.locks_awaited;
        self.locks_late += other.locks_late;
        self.thrown += other.thrown;
        self.granted += other.granted;
        self.recalled += other.recalled;
        self.taken_back += other.taken_back;
        self.watched += other.watched;
        self.gaps += other.gaps;
        self.histories += other.histories;
        self.history_operations += other.history_operations;
        self.unknown += other.unknown;
        self.history_states += other.history_states;
        self.histories_given_up += other.histories_given_up;
    }
}
