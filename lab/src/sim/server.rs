//! The machine of a server: its processes, which are started, stopped and killed, and the state
//! that survives them.
//!
//! A process is a set of local tasks. It can be swept away, with its memory, between any two steps
//! of any of them. The engine and the blocks stay. When the power is cut, their stable part stays,
//! and a part of the rest. Before a server opens the engine, the end of its log is checked as `cli`
//! does, so that no block that the log names is missing.

use std::{
    cell::{Cell, RefCell},
    ops::ControlFlow,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use base::Clock;
use futures::{FutureExt as _, TryStreamExt as _, future::join_all, join};
use meta::{
    Bug, ClusterOptions, Core, FormatOptions, Limits, Offload, Server, ServerOptions, Then,
};
use store::{Batch, Blocks, BlocksError, Engine as _, MemoryEngine};
use tokio::{
    sync::{mpsc, oneshot},
    task::{LocalSet, spawn_local},
    time::Instant,
};

use wire::Joined;

use super::{
    body::{Body, run},
    disk::{Disk, Process, Steps},
    machines::Kept,
    network::{Network, Place},
    pipe::End,
    plan::Plan,
    random::SimRandom,
    ship::Ship,
    show::Message,
    trace::Trace,
};

/// Free bytes below which servers with small disks refuse what needs room.
const RESERVE: u64 = 64 << 20;

/// Added to the number of a machine for that of its copy.
const COPIES: u16 = 100;

/// The key that signs the tokens of every world.
pub(super) const SIGNING_KEY: &[u8] = b"a key that every world has alike";

/// The machine of a server; where machines are lost, the one that serves at present. Clones share it.
#[derive(Clone)]
pub struct Host {
    inner: Rc<RefCell<Rc<Inner>>>,
}

pub(super) struct Inner {
    pub(super) server: u16,
    pub(super) engine: RefCell<Arc<MemoryEngine>>,
    pub(super) blocks: Blocks,
    pub(super) plan: Plan,
    bug: Option<Bug>,
    network: Network,
    clock: Arc<dyn Clock>,
    pub(super) random: SimRandom,
    disk_random: SimRandom,
    /// Time of each sync in milliseconds while the disk is slow; 0: it is not.
    disk_ms_slow: Arc<AtomicU64>,
    pub(super) trace: Trace,
    running: RefCell<Option<Running>>,
    /// Free bytes of the disk.
    free: Arc<AtomicU64>,
    /// Whether the server may not be started.
    away: Cell<bool>,
    /// Whether the server has left its cluster.
    has_left: Cell<bool>,
    /// Whether all changes that the server answered are still there. A loss before it last had a
    /// lease does not count, because the coordinator knows of that.
    pub(super) kept_all: Cell<bool>,
    counters: RefCell<Vec<(String, u64)>>,
    /// Number of the machine, that of the server unless the disk is a copy of another machine's.
    pub(super) machine: u16,
    /// The operator's word on the disk.
    word: Cell<meta::Word>,
    /// How often the machine has booted again.
    boots: Cell<u64>,
    /// Addresses at which the server looks for the coordinator, besides the first server's.
    coordinators: RefCell<Vec<String>>,
    /// The part of a machine whose server has a journal.
    pub(super) kept: Option<Kept>,
}

struct Running {
    process: Arc<Process>,
    server: Server,
    body: Rc<Body>,
}

/// The key under which one server that has all records stores what a core of a server of several
/// has charged to a quota. Each server has such records of any quota. `None` for any other key.
fn united_usage(key: &[u8], server: usize, servers: usize) -> Option<Vec<u8>> {
    let (root, core) = key.split_last_chunk::<2>().filter(|_| key.get(2) == Some(&b'A'))?;
    let core = u16::from_be_bytes(*core).checked_sub(1)?;
    let core = usize::from(core) * servers + server + 1;
    let core = u16::try_from(core).expect("there are few");
    Some([root, &core.to_be_bytes()].concat())
}

impl Inner {
    pub(super) fn engine(&self) -> Arc<MemoryEngine> {
        Arc::clone(&self.engine.borrow())
    }
}

impl Host {
    fn of(inner: Inner) -> Host {
        Host { inner: Rc::new(RefCell::new(Rc::new(inner))) }
    }

    pub(super) fn at(&self) -> Rc<Inner> {
        Rc::clone(&self.inner.borrow())
    }

    /// The machine of a server, by its number. The first one has an empty file system, others have
    /// nothing yet.
    ///
    /// # Errors
    /// When the file system cannot be formatted.
    pub fn new(
        server: u16,
        plan: &Plan,
        bug: Option<Bug>,
        network: &Network,
        clock: &Arc<dyn Clock>,
        random: SimRandom,
        trace: &Trace,
    ) -> anyhow::Result<Host> {
        let engine = Arc::new(MemoryEngine::new());
        if server == 0 {
            let options = FormatOptions {
                name: "world".to_owned(),
                shards: plan.shards,
                lanes: base::limits::LANES_MAX,
                servers: plan.begins_with.unwrap_or(plan.servers),
                locality: plan.locality,
                inline_bytes_max: plan.inline_bytes_max,
                blocks: "memory:".to_owned(),
                signing_key: SIGNING_KEY.to_vec(),
            };
            meta::format(engine.as_ref(), &options, clock.as_ref(), &random)?;
            if let Some(bits) = plan.id_bits {
                meta::shorten_ids(engine.as_ref(), bits)?;
            }
        }
        Ok(Host::of(Inner {
            server,
            engine: RefCell::new(engine),
            blocks: if plan.volatile_blocks { Blocks::volatile() } else { Blocks::memory() },
            plan: plan.clone(),
            bug,
            network: network.clone(),
            clock: Arc::clone(clock),
            disk_random: random.stream("disk"),
            disk_ms_slow: Arc::default(),
            random,
            trace: trace.clone(),
            running: RefCell::default(),
            free: Arc::new(AtomicU64::new(u64::MAX)),
            away: Cell::default(),
            has_left: Cell::default(),
            kept_all: Cell::default(),
            counters: RefCell::default(),
            machine: server,
            word: Cell::default(),
            boots: Cell::default(),
            coordinators: RefCell::default(),
            kept: Kept::first(plan, server),
        }))
    }

    /// Another machine for the same server, with a copy of the disk as it is now: with everything
    /// that was written, or only with what is stable. Blocks are in a store that both have.
    #[must_use]
    pub fn copy(&self, with_unsynced: bool) -> Host {
        let before = self.at();
        let machine = before.machine + COPIES;
        let disk = (Arc::new(before.engine().copy(with_unsynced)), before.blocks.clone());
        let inner = self.beside((before.server, machine), disk, &format!("copy {machine}"));
        Host::of(inner)
    }

    /// Another machine of the same world, with these stores. `label` tells its random numbers from
    /// those of others.
    fn beside(
        &self,
        (server, machine): (u16, u16),
        (engine, blocks): (Arc<MemoryEngine>, Blocks),
        label: &str,
    ) -> Inner {
        let before = self.at();
        Inner {
            server,
            engine: RefCell::new(engine),
            blocks,
            plan: before.plan.clone(),
            bug: before.bug,
            network: before.network.clone(),
            clock: Arc::clone(&before.clock),
            random: before.random.stream(label),
            disk_random: before.random.stream(&format!("disk {label}")),
            disk_ms_slow: Arc::default(),
            trace: before.trace.clone(),
            running: RefCell::default(),
            free: Arc::new(AtomicU64::new(u64::MAX)),
            away: Cell::default(),
            has_left: Cell::default(),
            kept_all: Cell::default(),
            counters: RefCell::default(),
            machine,
            word: Cell::default(),
            boots: Cell::default(),
            coordinators: RefCell::default(),
            kept: before.kept.as_ref().map(Kept::another),
        }
    }

    /// The machine that serves now, or did: not the one that may take its place.
    #[must_use]
    pub fn machine(&self) -> Host {
        Host { inner: Rc::new(RefCell::new(self.at())) }
    }

    /// Lets another machine be the one that serves.
    pub(super) fn moves_to(&self, machine: &Host) {
        self.inner.replace(machine.at());
    }

    /// Another machine for the same server, with an empty disk. It stands by.
    pub(super) fn standby(&self, number: u16) -> Host {
        let before = self.at();
        let machine = before.server + number * COPIES;
        let disk = (Arc::new(MemoryEngine::new()), before.blocks.clone());
        Host::of(self.beside((before.server, machine), disk, &format!("standby {machine}")))
    }

    /// Gives the operator's word on the disk, for the next starts.
    pub fn say(&self, word: meta::Word) {
        self.at().word.set(word);
    }

    /// Lets the machine boot again: no process of before runs on it, which the next one can show.
    pub fn boot(&self) {
        self.kill();
        self.at().boots.set(self.at().boots.get() + 1);
    }

    /// Lets the server look for the coordinator at another address as well, from its next start on.
    pub fn look_also_at(&self, coordinator: String) {
        self.at().coordinators.borrow_mut().push(coordinator);
    }

    /// The address at which a copy of the machine will listen.
    #[must_use]
    pub fn address_of_copy(&self) -> String {
        address_of(self.at().machine + COPIES)
    }

    /// Whether the server's process runs, is not stopped, and may serve.
    #[must_use]
    pub fn may_serve(&self) -> bool {
        let inner = self.at();
        let running = inner.running.borrow();
        let serves = |running: &Running| {
            let runs = running.process.is_alive() && !running.body.stopped.get();
            runs && running.server.may_serve()
        };
        running.as_ref().is_some_and(serves)
    }

    /// Whether the server runs and has stopped serving for good.
    #[must_use]
    pub fn has_halted(&self) -> bool {
        let inner = self.at();
        let running = inner.running.borrow();
        running.as_ref().is_some_and(|running| running.server.halted().now_or_never().is_some())
    }

    /// The generation of the server's process; 0: it has none.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.at().running.borrow().as_ref().map_or(0, |running| running.server.generation())
    }

    /// Merges the stores of all servers of a cluster, none of which may run, into the machine of a
    /// single server.
    ///
    /// # Errors
    /// When a record or a block cannot be read.
    pub async fn unite(hosts: &[Host]) -> anyhow::Result<Host> {
        let (engine, blocks) = (Arc::new(MemoryEngine::new()), Blocks::memory());
        let plan = &hosts[0].at().plan;
        for (server, host) in hosts.iter().enumerate() {
            let mut batch = Batch::default();
            host.engine().scan(&[], &[u8::MAX; 16], &mut |key, value| {
                // Of what servers have for themselves, the first one's is taken, but for its
                // identity. The rest is of the shards of each.
                let kept = match key {
                    [0xff, 0xff, kind, ..] => server == 0 && !matches!(kind, b'M' | b'S'),
                    _ => true,
                };
                match united_usage(key, server, hosts.len()) {
                    Some(usage) => batch.put(&usage, value),
                    None if kept => batch.put(key, value),
                    None => {}
                }
                ControlFlow::Continue(())
            })?;
            engine.write(batch)?;
            let mut list = host.at().blocks.list();
            while let Some(block) = list.try_next().await? {
                let len = block.bytes.context("blocks in memory know how long they are")?;
                match host.at().blocks.get(block.id, len, 0..len).await {
                    Ok(data) => drop(blocks.put(block.id, data).await?),
                    // A power cut has torn the block. A check finds it missing if a record names
                    // it.
                    Err(BlocksError::Corrupt { .. }) if plan.volatile_blocks => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        engine.sync()?;
        Ok(hosts[0].with(0, 1, (engine, blocks)))
    }

    /// The machine of a server of a new cluster that replaces the old one, with these stores and no
    /// planted bug.
    pub(super) fn with(
        &self,
        server: u16,
        servers: u16,
        disk: (Arc<MemoryEngine>, Blocks),
    ) -> Host {
        let label = format!("in its place {server}");
        let inner = Inner {
            plan: Plan { servers, machines: 1, ..self.at().plan.clone() },
            bug: None,
            kept: None,
            ..self.beside((server, server), disk, &label)
        };
        Host::of(inner)
    }

    /// Formats the machine as a member of the cluster.
    ///
    /// # Errors
    /// When it was formatted before.
    pub fn format_joined(&self, joined: &Joined, member: u64) -> anyhow::Result<()> {
        let Inner { plan, .. } = &*self.at();
        let servers = plan.begins_with.unwrap_or(plan.servers);
        Ok(meta::format_joined(&*self.engine(), joined, member, servers)?)
    }

    /// Makes the only server of a file system a coordinator, from its next start on.
    ///
    /// # Errors
    /// When its store fails.
    pub fn found_cluster(&self) -> anyhow::Result<()> {
        Ok(meta::found_cluster(&*self.engine(), &self.at().random)?)
    }

    /// Whether the server has left its cluster: it does not start any more.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.at().has_left.get()
    }

    /// Starts the server, if it does not run, is not kept away and has not left its cluster, and if
    /// its journal is not another machine's.
    ///
    /// # Errors
    /// When the server cannot open the file system.
    pub fn start(&self) -> anyhow::Result<()> {
        match &self.at().kept {
            Some(kept) if !kept.owns() => Ok(()),
            Some(_) | None => self.start_if(None),
        }
    }

    /// Starts the server of a machine that stands by, if its journal still ends with this segment.
    pub(super) fn start_after(&self, segment: u64) -> anyhow::Result<()> {
        self.start_if(Some(segment))
    }

    fn start_if(&self, ends_at: Option<u64>) -> anyhow::Result<()> {
        let inner = self.at();
        if inner.running.borrow().is_some() || inner.away.get() || inner.has_left.get() {
            return Ok(());
        }
        self.take_log()?;
        let ship = match &inner.kept {
            None => None,
            Some(kept) => {
                let Some(ship) = inner.take_over(kept, ends_at)? else { return Ok(()) };
                Some(Arc::new(ship))
            }
        };
        let process = Process::new();
        let disk = Disk {
            engine: inner.engine(),
            process: Arc::clone(&process),
            trace: inner.trace.clone(),
            machine: inner.machine.into(),
            ship: ship.clone(),
        };
        let server = Server::open_wrong(
            Arc::new(disk),
            inner.blocks.clone(),
            self.options(&process, ship.clone()),
            Arc::clone(&inner.clock),
            Arc::new(inner.random.clone()),
            inner.bug,
        )?;
        inner.trace.note("start", &[u64::from(inner.server)]);
        let body = Rc::new(Body::default());
        let serving = serve(
            (0..inner.plan.cores).map(|index| server.core(index)).collect(),
            inner.network.listen(inner.machine, address_of(inner.machine), &process),
        );
        if inner.plan.moves || ship.is_some() {
            let (says, said) = oneshot::channel();
            let ends = says_how_it_ends(server.clone(), says);
            let (keeper, kept) = (server.clone(), ship);
            let keeps = async move {
                if let Some(ship) = kept {
                    ship.keep(keeper).await;
                }
            };
            body.tasks.replace(Some(Box::pin(async {
                join!(serving, ends, keeps);
            })));
            spawn_local(end_of(self.machine(), Arc::clone(&process), said));
        } else {
            body.tasks.replace(Some(Box::pin(serving)));
        }
        spawn_local(run(Rc::clone(&body)));
        inner.running.replace(Some(Running { process, server, body }));
        Ok(())
    }

    /// Whether this process is the server's.
    fn is_of(&self, process: &Arc<Process>) -> bool {
        let inner = self.at();
        let running = inner.running.borrow();
        running.as_ref().is_some_and(|running| Arc::ptr_eq(&running.process, process))
    }

    /// Truncates the log before the first record whose block a power cut has taken.
    fn take_log(&self) -> anyhow::Result<()> {
        let Inner { blocks, bug, trace, .. } = &*self.at();
        let engine = self.engine();
        if blocks.puts_are_stable() {
            return Ok(());
        }
        let log = engine.log();
        let kept = meta::kept(&log, blocks)?;
        if kept < log.len() && *bug != Some(Bug::LogTakenUnseen) {
            trace.note("log cut", &[log.len() as u64, kept as u64]);
            engine.cut_log(kept);
            self.add_count("logs_cut", 1);
        }
        engine.begin_log();
        Ok(())
    }

    fn options(&self, process: &Arc<Process>, ship: Option<Arc<Ship>>) -> ServerOptions {
        let Inner { plan, network, machine, .. } = &*self.at();
        let (started, free) = (Instant::now(), Arc::clone(&self.at().free));
        ServerOptions {
            cores: plan.cores,
            durability: plan.durability,
            commit_interval: plan.commit_interval,
            lease: plan.lease,
            cluster: (plan.servers > 1).then(|| ClusterOptions {
                dial: network.server_port(*machine, process),
                coordinators: self.coordinators(),
                lease: plan.server_lease,
                alone: plan.alone,
                awake_or_not: Arc::new(move || started.elapsed()),
                kept_all: self.at().kept_all.get(),
                place: self.place_of(),
                word: self.word(),
                calls: ship.is_some(),
            }),
            journal: ship.map(|ship| ship as Arc<dyn meta::Journal>),
            offload: self.offload(),
            limits: Limits {
                free: Arc::new(move || free.load(Ordering::Relaxed)),
                reserve: if plan.has_small_disks() { RESERVE } else { 0 },
                split_threshold: plan.split_threshold,
                home: plan.home,
                doubt_max: plan.doubt_max,
                ..Limits::default()
            },
            ..ServerOptions::simulated(&address_of(*machine))
        }
    }

    fn coordinators(&self) -> Vec<String> {
        let inner = self.at();
        match inner.server {
            0 => Vec::new(),
            _ => [addresses_of(0, &inner.plan), inner.coordinators.borrow().clone()].concat(),
        }
    }

    /// The operator's word on the disk, or that of the journal: the process before has ended.
    fn word(&self) -> meta::Word {
        let inner = self.at();
        let word = inner.word.get();
        let succeeds = inner.kept.as_ref().is_some_and(Kept::succeeds);
        meta::Word { replaces: word.replaces || succeeds, ..word }
    }

    /// The place of the machine's processes: a word for its boot, and its disk. A power cut leaves
    /// the place as it is: the process before has ended then, too.
    fn place_of(&self) -> meta::Place {
        let Inner { machine, boots, .. } = &*self.at();
        let boot = match boots.get() {
            0 if *machine < COPIES => "disk".to_owned(),
            0 => "copy".to_owned(),
            boots => format!("boot-{boots}"),
        };
        meta::Place {
            process: format!("{boot} {machine}").into(),
            home: match self.at().kept.as_ref().map_or(0, |kept| kept.disks.get()) {
                0 => format!("disk {machine}").into(),
                disk => format!("disk {machine} {disk}").into(),
            },
        }
    }

    fn offload(&self) -> Offload {
        let max = self.at().plan.disk_ms_max;
        let cut = self.at().kept.as_ref().map(|kept| Arc::clone(&kept.cut_until));
        if max == 0 && cut.is_none() {
            return Offload::Inline;
        }
        let (random, slow) = (self.at().disk_random.clone(), Arc::clone(&self.at().disk_ms_slow));
        Offload::Timed(Arc::new(move || {
            let cut = cut.as_ref().map(|until| *until.lock());
            if let Some(until) = cut.filter(|until| *until > Instant::now()) {
                return (until - Instant::now(), Duration::ZERO);
            }
            let slow = slow.load(Ordering::Relaxed);
            if slow > 0 {
                return (Duration::from_millis(slow), Duration::ZERO);
            }
            let takes = random.ms(0..max.max(1));
            // The sync is done at the beginning of this time or at its end, so that it is as late
            // as possible for some observer.
            if random.one_in(2) { (takes, Duration::ZERO) } else { (Duration::ZERO, takes) }
        }))
    }

    /// Lets each sync take `ms` milliseconds from now on; 0 ends that. Where the plan gives syncs
    /// no time they still take none.
    pub fn slow_down_disk(&self, ms: u64) {
        self.at().disk_ms_slow.store(ms, Ordering::Relaxed);
    }

    /// Fills the disk, as another program would, so that removals still work; with `all` only reads
    /// do. The server looks at its disk a few times in a second.
    pub fn fill_disk(&self, all: bool) {
        self.at().trace.note("full", &[u64::from(self.at().server), u64::from(all)]);
        self.at().free.store(if all { 0 } else { RESERVE - 1 }, Ordering::Relaxed);
    }

    /// Makes room on the disk again.
    pub fn free_disk(&self) {
        self.at().free.store(u64::MAX, Ordering::Relaxed);
    }

    /// Kills the server (SIGKILL). Bytes in flight from it may be lost.
    pub fn kill(&self) {
        if self.at().running.borrow().is_some() {
            self.sweep_away(self.at().random.one_in(2));
        }
    }

    /// Kills the server; the bytes that it had sent still arrive. With `power` all unsynced data is
    /// lost.
    pub fn crash(&self, power: bool) {
        self.sweep_away(false);
        if power {
            self.lose(0, |_| 0);
        }
    }

    fn sweep_away(&self, reset: bool) {
        let Some(running) = self.at().running.take() else { return };
        running.process.die();
        if running.server.has_had_lease() {
            self.at().kept_all.set(true);
            if let Some(kept) = &self.at().kept {
                kept.had_lease.set(true);
            }
        }
        self.at().trace.note("kill", &[u64::from(self.at().server), u64::from(reset)]);
        self.at().network.server_died(self.at().machine, reset);
        for (name, count) in running.server.counters() {
            self.add_count(&name, count);
        }
        drop(running.body.tasks.take());
        running.body.wake();
    }

    fn add_count(&self, name: &str, count: u64) {
        let inner = self.at();
        let mut sum = inner.counters.borrow_mut();
        match sum.iter_mut().find(|(known, _)| known == name) {
            Some((_, total)) => *total += count,
            None => sum.push((name.to_owned(), count)),
        }
    }

    /// Cuts the power: kills the server, and loses a part of the unsynced data.
    pub fn power_cut(&self) {
        self.kill();
        let random = &self.at().random;
        let keep = random.index(self.engine().unsynced() + 1);
        self.lose(keep, |bytes| match random.below(3) {
            0 => 0,
            1 => random.index(bytes),
            _ => bytes,
        });
    }

    /// Keeps the first `keep` of the unsynced writes, and of each unsynced block the number of
    /// bytes that `left` says.
    fn lose(&self, keep: usize, left: impl FnMut(usize) -> usize) {
        let Inner { blocks, trace, kept_all, .. } = &*self.at();
        let engine = self.engine();
        if let Some(kept) = &self.at().kept {
            kept.dies();
        }
        trace.note("power cut", &[engine.unsynced() as u64, keep as u64]);
        engine.power_cut(keep);
        let lost = blocks.power_cut(left) as u64;
        if lost > 0 {
            trace.note("blocks lost", &[lost]);
            self.add_count("blocks_lost", lost);
        }
        kept_all.set(false);
    }

    /// Lets the server die with its `writes`th write from now, before or after that write is done.
    pub fn doom(&self, writes: i64, before: bool) {
        if let Some(running) = &*self.at().running.borrow() {
            running.process.die_at(writes, before);
        }
    }

    /// Lets the server die when it has sent such a message.
    pub fn doom_with(&self, message: Message) {
        if let Some(running) = &*self.at().running.borrow() {
            running.process.die_with(Some(message));
        }
    }

    /// Forbids starting the server, or allows it again.
    pub fn keep_away(&self, away: bool) {
        self.at().away.set(away);
    }

    /// Whether starting the server is forbidden.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.at().away.get()
    }

    /// Counts the steps of the server from now on. A victim dies with the last step.
    pub fn count_steps(&self, steps: &Arc<Steps>, is_victim: bool) {
        if let Some(running) = &*self.at().running.borrow() {
            running.process.count_steps(steps);
            if is_victim {
                steps.doom(&running.process);
            }
        }
    }

    /// Takes back the server's doom, if that has not struck yet.
    pub fn pardon(&self) {
        if let Some(running) = &*self.at().running.borrow() {
            running.process.die_at(i64::MAX, false);
            running.process.die_with(None);
        }
    }

    /// Whether the server runs and has not died of its doom.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.at().running.borrow().as_ref().is_some_and(|running| running.process.is_alive())
    }

    /// Stops the server (SIGSTOP), or continues it (SIGCONT).
    pub fn stop(&self, stopped: bool) {
        if let Some(running) = &*self.at().running.borrow() {
            self.at().trace.note("stop", &[u64::from(self.at().server), u64::from(stopped)]);
            running.body.stopped.set(stopped);
            running.body.wake();
        }
    }

    /// Slows the server down to one step in `pace`; zero is full speed.
    pub fn slow_down(&self, pace: Duration) {
        if let Some(running) = &*self.at().running.borrow() {
            self.at().trace.say(format_args!("server {} at {pace:?}", self.at().server));
            running.body.pace.set(pace);
            running.body.wake();
        }
    }

    /// Ends all faults of the machine.
    pub(super) fn end_faults(&self) {
        self.keep_away(false);
        self.free_disk();
        self.stop(false);
        self.slow_down(Duration::ZERO);
        self.pardon();
        self.cut_off_store(Duration::ZERO);
    }

    /// Ends all faults of the server, and starts it if it does not run.
    ///
    /// # Errors
    /// As for [`Host::start`].
    pub fn recover(&self) -> anyhow::Result<()> {
        self.end_faults();
        if !self.is_alive() {
            self.kill();
        }
        self.start()
    }

    /// The server's place in the network.
    #[must_use]
    pub fn place(&self) -> Place {
        Place::Server(self.at().machine)
    }

    /// The sum of a counter over all server processes that ran here.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let of = |list: &[(String, u64)]| -> u64 {
            list.iter().filter(|(known, _)| known == name).map(|(_, count)| count).sum()
        };
        let now = self.at().running.borrow().as_ref().map(|running| running.server.counters());
        of(&self.at().counters.borrow()) + now.map_or(0, |now| of(&now))
    }

    /// Total of a timed distribution since the server was started, such as `handoff_frozen_nanos`.
    #[must_use]
    pub fn time_of(&self, name: &str) -> Duration {
        let load = self.at().running.borrow().as_ref().map(|running| running.server.load());
        let timed = load.into_iter().flat_map(|load| load.distributions);
        let sum = timed.filter(|(known, _)| known == name).map(|(_, times)| times.sum).sum();
        Duration::from_nanos(sum)
    }

    /// The engine, which survives the server.
    #[must_use]
    pub fn engine(&self) -> Arc<MemoryEngine> {
        self.at().engine()
    }

    /// The block store, which survives the server.
    #[must_use]
    pub fn blocks(&self) -> Blocks {
        self.at().blocks.clone()
    }

    /// Syncs blocks and engine, so that a power cut loses nothing written before.
    ///
    /// # Errors
    /// When one of them cannot sync.
    pub fn settle(&self) -> anyhow::Result<()> {
        self.at().blocks.sync()?;
        Ok(self.engine().sync()?)
    }
}

/// The addresses at which a server may listen.
pub(super) fn addresses_of(server: u16, plan: &Plan) -> Vec<String> {
    (0..plan.machines).map(|machine| address_of(server + machine * COPIES)).collect()
}

/// The address at which the server of a machine listens.
#[must_use]
pub fn address_of(server: u16) -> String {
    format!("server-{server}:1")
}

/// Says when the server of a process ends for good, or is to be opened anew.
async fn says_how_it_ends(server: Server, says: oneshot::Sender<Then>) {
    let then = server.halted().await.then;
    // At the end of a world nobody listens any more.
    let _ = says.send(then);
    std::future::pending().await
}

/// Starts a server again that is to be opened anew, unless it has left, as `pando serve` does. The
/// process of a server whose journal is lost ends.
async fn end_of(host: Host, process: Arc<Process>, said: oneshot::Receiver<Then>) {
    let Ok(then) = said.await else { return };
    if !host.is_of(&process) {
        return;
    }
    let inner = host.at();
    let number = u64::from(inner.server);
    match then {
        Then::BeginsAnew if inner.plan.moves => {
            inner.trace.note("begins anew", &[number]);
            host.kill();
            if let Err(error) = host.start() {
                tracing::error!(error = format!("{error:#}"), "a server does not begin anew");
            }
        }
        Then::Leaves if inner.plan.moves => {
            inner.trace.note("leaves", &[number]);
            host.kill();
            inner.has_left.set(true);
        }
        // One that was doomed to die is started again by who has doomed it.
        Then::Ends if inner.kept.is_some() && process.is_alive() => {
            inner.trace.note("ends", &[number]);
            host.kill();
            match host.start() {
                Ok(()) if host.is_alive() => {
                    inner.trace.problem("the owner of a journal has stopped serving".to_owned());
                }
                Ok(()) => {}
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), "a server does not start again");
                }
            }
        }
        Then::Ends | Then::Waits | Then::BeginsAnew | Then::Leaves => {}
    }
}

/// Runs a server process. Its cores take connections in turn.
async fn serve(cores: Vec<Core>, mut connections: mpsc::UnboundedReceiver<End>) {
    let local = LocalSet::new();
    let accept = async {
        for core in cores.iter().cycle() {
            let Some(end) = connections.recv().await else { return };
            let core = core.clone();
            spawn_local(async move { core.serve(end).await });
        }
    };
    let run = join_all(cores.iter().map(Core::run));
    local.run_until(async { join!(run, Box::pin(cores[0].background()), accept) }).await;
}
