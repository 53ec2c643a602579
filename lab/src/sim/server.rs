//! The machine of a server: its processes, which are started, stopped and killed, and the state
//! that survives them.
//!
//! A process is a set of local tasks. It can be swept away, with its memory, between any two steps
//! of any of them. The engine and the blocks stay. When the power is cut, their stable part stays,
//! and a part of the rest. Before a server opens the engine, the end of its log is checked as `cli`
//! does, so that no block that the log names is missing.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    ops::ControlFlow,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
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
    time::{Instant, Sleep, sleep_until},
};

use wire::Joined;

use super::{
    disk::{Disk, Process, Steps},
    network::{Network, Place},
    pipe::End,
    plan::Plan,
    random::SimRandom,
    show::Message,
    trace::Trace,
};

/// Free bytes below which servers with small disks refuse what needs room.
const RESERVE: u64 = 64 << 20;

/// Added to the number of a machine for that of its copy.
const COPIES: u16 = 100;

/// The key that signs the tokens of every world.
pub(super) const SIGNING_KEY: &[u8] = b"a key that every world has alike";

/// The machine of a server. Clones share it.
#[derive(Clone)]
pub struct Host {
    inner: Rc<Inner>,
}

struct Inner {
    server: u16,
    engine: Arc<MemoryEngine>,
    blocks: Blocks,
    plan: Plan,
    bug: Option<Bug>,
    network: Network,
    clock: Arc<dyn Clock>,
    random: SimRandom,
    disk_random: SimRandom,
    /// Time of each sync in milliseconds while the disk is slow; 0: it is not.
    disk_ms_slow: Arc<AtomicU64>,
    trace: Trace,
    running: RefCell<Option<Running>>,
    /// Free bytes of the disk.
    free: Arc<AtomicU64>,
    /// Whether the server may not be started.
    away: Cell<bool>,
    /// Whether the server has left its cluster.
    has_left: Cell<bool>,
    /// Whether all changes that the server answered are still there. A loss before it last had a
    /// lease does not count, because the coordinator knows of that.
    kept_all: Cell<bool>,
    counters: RefCell<Vec<(String, u64)>>,
    /// Number of the machine, that of the server unless the disk is a copy of another machine's.
    machine: u16,
    /// The operator's word on the disk.
    word: Cell<meta::Word>,
    /// How often the machine has booted again.
    boots: Cell<u64>,
    /// Addresses at which the server looks for the coordinator, besides the first server's.
    coordinators: RefCell<Vec<String>>,
}

struct Running {
    process: Arc<Process>,
    server: Server,
    body: Rc<Body>,
}

/// The tasks of a process.
#[derive(Default)]
struct Body {
    tasks: RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
    stopped: Cell<bool>,
    /// Minimum time between two steps of the process.
    pace: Cell<Duration>,
    rest: RefCell<Option<Pin<Box<Sleep>>>>,
    waker: RefCell<Option<Waker>>,
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

impl Host {
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
        Ok(Host {
            inner: Rc::new(Inner {
                server,
                engine,
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
            }),
        })
    }

    /// Another machine for the same server, with a copy of the disk as it is now: with everything
    /// that was written, or only with what is stable. Blocks are in a store that both have.
    #[must_use]
    pub fn copy(&self, with_unsynced: bool) -> Host {
        let before = &self.inner;
        let machine = before.machine + COPIES;
        let disk = (Arc::new(before.engine.copy(with_unsynced)), before.blocks.clone());
        let inner = self.beside((before.server, machine), disk, &format!("copy {machine}"));
        Host { inner: Rc::new(inner) }
    }

    /// Another machine of the same world, with these stores. `label` tells its random numbers from
    /// those of others.
    fn beside(
        &self,
        (server, machine): (u16, u16),
        (engine, blocks): (Arc<MemoryEngine>, Blocks),
        label: &str,
    ) -> Inner {
        let before = &self.inner;
        Inner {
            server,
            engine,
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
        }
    }

    /// Gives the operator's word on the disk, for the next starts.
    pub fn say(&self, word: meta::Word) {
        self.inner.word.set(word);
    }

    /// Lets the machine boot again: no process of before runs on it, which the next one can show.
    pub fn boot(&self) {
        self.kill();
        self.inner.boots.set(self.inner.boots.get() + 1);
    }

    /// Lets the server look for the coordinator at another address as well, from its next start on.
    pub fn look_also_at(&self, coordinator: String) {
        self.inner.coordinators.borrow_mut().push(coordinator);
    }

    /// The address at which a copy of the machine will listen.
    #[must_use]
    pub fn address_of_copy(&self) -> String {
        address_of(self.inner.machine + COPIES)
    }

    /// Whether the server's process runs, is not stopped, and may serve.
    #[must_use]
    pub fn may_serve(&self) -> bool {
        let running = self.inner.running.borrow();
        let serves = |running: &Running| {
            let runs = running.process.is_alive() && !running.body.stopped.get();
            runs && running.server.may_serve()
        };
        running.as_ref().is_some_and(serves)
    }

    /// Whether the server runs and has stopped serving for good.
    #[must_use]
    pub fn has_halted(&self) -> bool {
        let running = self.inner.running.borrow();
        running.as_ref().is_some_and(|running| running.server.halted().now_or_never().is_some())
    }

    /// The generation of the server's process; 0: it has none.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.inner.running.borrow().as_ref().map_or(0, |running| running.server.generation())
    }

    /// Merges the stores of all servers of a cluster, none of which may run, into the machine of a
    /// single server.
    ///
    /// # Errors
    /// When a record or a block cannot be read.
    pub async fn unite(hosts: &[Host]) -> anyhow::Result<Host> {
        let (engine, blocks) = (Arc::new(MemoryEngine::new()), Blocks::memory());
        let plan = &hosts[0].inner.plan;
        for (server, host) in hosts.iter().enumerate() {
            let mut batch = Batch::default();
            host.inner.engine.scan(&[], &[u8::MAX; 16], &mut |key, value| {
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
            let mut list = host.inner.blocks.list();
            while let Some(block) = list.try_next().await? {
                let len = block.bytes.context("blocks in memory know how long they are")?;
                match host.inner.blocks.get(block.id, len, 0..len).await {
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
            plan: Plan { servers, ..self.inner.plan.clone() },
            bug: None,
            ..self.beside((server, server), disk, &label)
        };
        Host { inner: Rc::new(inner) }
    }

    /// Formats the machine as a member of the cluster.
    ///
    /// # Errors
    /// When it was formatted before.
    pub fn format_joined(&self, joined: &Joined, member: u64) -> anyhow::Result<()> {
        let Inner { engine, plan, .. } = &*self.inner;
        let servers = plan.begins_with.unwrap_or(plan.servers);
        Ok(meta::format_joined(engine.as_ref(), joined, member, servers)?)
    }

    /// Makes the only server of a file system a coordinator, from its next start on.
    ///
    /// # Errors
    /// When its store fails.
    pub fn found_cluster(&self) -> anyhow::Result<()> {
        Ok(meta::found_cluster(self.inner.engine.as_ref(), &self.inner.random)?)
    }

    /// Whether the server has left its cluster: it does not start any more.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.inner.has_left.get()
    }

    /// Starts the server, if it does not run, is not kept away and has not left its cluster.
    ///
    /// # Errors
    /// When the server cannot open the file system.
    pub fn start(&self) -> anyhow::Result<()> {
        let inner = &self.inner;
        if inner.running.borrow().is_some() || inner.away.get() || inner.has_left.get() {
            return Ok(());
        }
        self.take_log()?;
        let process = Process::new();
        let disk = Disk {
            engine: Arc::clone(&inner.engine),
            process: Arc::clone(&process),
            trace: inner.trace.clone(),
        };
        let server = Server::open_wrong(
            Arc::new(disk),
            inner.blocks.clone(),
            self.options(&process),
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
        if inner.plan.moves {
            let (begin, begins_anew) = oneshot::channel();
            let says = says_to_begin_anew(server.clone(), begin);
            body.tasks.replace(Some(Box::pin(async {
                join!(serving, says);
            })));
            spawn_local(begin_anew(self.clone(), Arc::clone(&process), begins_anew));
        } else {
            body.tasks.replace(Some(Box::pin(serving)));
        }
        spawn_local(run(Rc::clone(&body)));
        inner.running.replace(Some(Running { process, server, body }));
        Ok(())
    }

    /// Whether this process is the server's.
    fn is_of(&self, process: &Arc<Process>) -> bool {
        let running = self.inner.running.borrow();
        running.as_ref().is_some_and(|running| Arc::ptr_eq(&running.process, process))
    }

    /// Truncates the log before the first record whose block a power cut has taken.
    fn take_log(&self) -> anyhow::Result<()> {
        let Inner { engine, blocks, bug, trace, .. } = &*self.inner;
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

    fn options(&self, process: &Arc<Process>) -> ServerOptions {
        let Inner { plan, network, machine, .. } = &*self.inner;
        let (started, free) = (Instant::now(), Arc::clone(&self.inner.free));
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
                kept_all: self.inner.kept_all.get(),
                place: self.place_of(),
                word: self.inner.word.get(),
                calls: false,
            }),
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
        match self.inner.server {
            0 => Vec::new(),
            _ => [&[address_of(0)][..], &self.inner.coordinators.borrow()].concat(),
        }
    }

    /// The place of the machine's processes: a word for its boot, and its disk. A power cut leaves
    /// the place as it is: the process before has ended then, too.
    fn place_of(&self) -> meta::Place {
        let Inner { machine, boots, .. } = &*self.inner;
        let boot = match boots.get() {
            0 if *machine < COPIES => "disk".to_owned(),
            0 => "copy".to_owned(),
            boots => format!("boot-{boots}"),
        };
        meta::Place {
            process: format!("{boot} {machine}").into(),
            home: format!("disk {machine}").into(),
        }
    }

    fn offload(&self) -> Offload {
        let max = self.inner.plan.disk_ms_max;
        if max == 0 {
            return Offload::Inline;
        }
        let (random, slow) = (self.inner.disk_random.clone(), Arc::clone(&self.inner.disk_ms_slow));
        Offload::Timed(Arc::new(move || {
            let slow = slow.load(Ordering::Relaxed);
            if slow > 0 {
                return (Duration::from_millis(slow), Duration::ZERO);
            }
            let takes = random.ms(0..max);
            // The sync is done at the beginning of this time or at its end, so that it is as late
            // as possible for some observer.
            if random.one_in(2) { (takes, Duration::ZERO) } else { (Duration::ZERO, takes) }
        }))
    }

    /// Lets each sync take `ms` milliseconds from now on; 0 ends that. Where the plan gives syncs
    /// no time they still take none.
    pub fn slow_down_disk(&self, ms: u64) {
        self.inner.disk_ms_slow.store(ms, Ordering::Relaxed);
    }

    /// Fills the disk, as another program would, so that removals still work; with `all` only reads
    /// do. The server looks at its disk a few times in a second.
    pub fn fill_disk(&self, all: bool) {
        self.inner.trace.note("full", &[u64::from(self.inner.server), u64::from(all)]);
        self.inner.free.store(if all { 0 } else { RESERVE - 1 }, Ordering::Relaxed);
    }

    /// Makes room on the disk again.
    pub fn free_disk(&self) {
        self.inner.free.store(u64::MAX, Ordering::Relaxed);
    }

    /// Kills the server (SIGKILL). Bytes in flight from it may be lost.
    pub fn kill(&self) {
        if self.inner.running.borrow().is_some() {
            self.sweep_away(self.inner.random.one_in(2));
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
        let Some(running) = self.inner.running.take() else { return };
        running.process.die();
        if running.server.has_had_lease() {
            self.inner.kept_all.set(true);
        }
        self.inner.trace.note("kill", &[u64::from(self.inner.server), u64::from(reset)]);
        self.inner.network.server_died(self.inner.machine, reset);
        for (name, count) in running.server.counters() {
            self.add_count(&name, count);
        }
        drop(running.body.tasks.take());
        running.body.wake();
    }

    fn add_count(&self, name: &str, count: u64) {
        let mut sum = self.inner.counters.borrow_mut();
        match sum.iter_mut().find(|(known, _)| known == name) {
            Some((_, total)) => *total += count,
            None => sum.push((name.to_owned(), count)),
        }
    }

    /// Cuts the power: kills the server, and loses a part of the unsynced data.
    pub fn power_cut(&self) {
        self.kill();
        let random = &self.inner.random;
        let keep = random.index(self.inner.engine.unsynced() + 1);
        self.lose(keep, |bytes| match random.below(3) {
            0 => 0,
            1 => random.index(bytes),
            _ => bytes,
        });
    }

    /// Keeps the first `keep` of the unsynced writes, and of each unsynced block the number of
    /// bytes that `left` says.
    fn lose(&self, keep: usize, left: impl FnMut(usize) -> usize) {
        let Inner { engine, blocks, trace, kept_all, .. } = &*self.inner;
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
        if let Some(running) = &*self.inner.running.borrow() {
            running.process.die_at(writes, before);
        }
    }

    /// Lets the server die when it has sent such a message.
    pub fn doom_with(&self, message: Message) {
        if let Some(running) = &*self.inner.running.borrow() {
            running.process.die_with(Some(message));
        }
    }

    /// Forbids starting the server, or allows it again.
    pub fn keep_away(&self, away: bool) {
        self.inner.away.set(away);
    }

    /// Whether starting the server is forbidden.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.inner.away.get()
    }

    /// Counts the steps of the server from now on. A victim dies with the last step.
    pub fn count_steps(&self, steps: &Arc<Steps>, is_victim: bool) {
        if let Some(running) = &*self.inner.running.borrow() {
            running.process.count_steps(steps);
            if is_victim {
                steps.doom(&running.process);
            }
        }
    }

    /// Takes back the server's doom, if that has not struck yet.
    pub fn pardon(&self) {
        if let Some(running) = &*self.inner.running.borrow() {
            running.process.die_at(i64::MAX, false);
            running.process.die_with(None);
        }
    }

    /// Whether the server runs and has not died of its doom.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.inner.running.borrow().as_ref().is_some_and(|running| running.process.is_alive())
    }

    /// Stops the server (SIGSTOP), or continues it (SIGCONT).
    pub fn stop(&self, stopped: bool) {
        if let Some(running) = &*self.inner.running.borrow() {
            self.inner.trace.note("stop", &[u64::from(self.inner.server), u64::from(stopped)]);
            running.body.stopped.set(stopped);
            running.body.wake();
        }
    }

    /// Slows the server down to one step in `pace`; zero is full speed.
    pub fn slow_down(&self, pace: Duration) {
        if let Some(running) = &*self.inner.running.borrow() {
            self.inner.trace.say(format_args!("server {} at {pace:?}", self.inner.server));
            running.body.pace.set(pace);
            running.body.wake();
        }
    }

    /// Ends all faults of the server, and starts it if it does not run.
    ///
    /// # Errors
    /// As for [`Host::start`].
    pub fn recover(&self) -> anyhow::Result<()> {
        self.keep_away(false);
        self.free_disk();
        self.stop(false);
        self.slow_down(Duration::ZERO);
        self.pardon();
        if !self.is_alive() {
            self.kill();
        }
        self.start()
    }

    /// The server's place in the network.
    #[must_use]
    pub fn place(&self) -> Place {
        Place::Server(self.inner.machine)
    }

    /// The sum of a counter over all server processes that ran here.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let of = |list: &[(String, u64)]| -> u64 {
            list.iter().filter(|(known, _)| known == name).map(|(_, count)| count).sum()
        };
        let now = self.inner.running.borrow().as_ref().map(|running| running.server.counters());
        of(&self.inner.counters.borrow()) + now.map_or(0, |now| of(&now))
    }

    /// Total of a timed distribution since the server was started, such as `handoff_frozen_nanos`.
    #[must_use]
    pub fn time_of(&self, name: &str) -> Duration {
        let load = self.inner.running.borrow().as_ref().map(|running| running.server.load());
        let timed = load.into_iter().flat_map(|load| load.distributions);
        let sum = timed.filter(|(known, _)| known == name).map(|(_, times)| times.sum).sum();
        Duration::from_nanos(sum)
    }

    /// The engine, which survives the server.
    #[must_use]
    pub fn engine(&self) -> &MemoryEngine {
        &self.inner.engine
    }

    /// The block store, which survives the server.
    #[must_use]
    pub fn blocks(&self) -> &Blocks {
        &self.inner.blocks
    }

    /// Syncs blocks and engine, so that a power cut loses nothing written before.
    ///
    /// # Errors
    /// When one of them cannot sync.
    pub fn settle(&self) -> anyhow::Result<()> {
        self.inner.blocks.sync()?;
        Ok(self.inner.engine.sync()?)
    }
}

/// The address at which a server listens.
#[must_use]
pub fn address_of(server: u16) -> String {
    format!("server-{server}:1")
}

impl Body {
    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Whether a slow machine has to wait before the next step.
    fn rests(&self, cx: &mut Context<'_>) -> bool {
        let mut rest = self.rest.borrow_mut();
        if let Some(rest) = rest.as_mut()
            && rest.as_mut().poll(cx).is_pending()
        {
            return true;
        }
        let pace = self.pace.get();
        *rest = (!pace.is_zero()).then(|| Box::pin(sleep_until(Instant::now() + pace)));
        false
    }
}

/// Says when the server of a process ends for good, or is to be opened anew: then `true`.
async fn says_to_begin_anew(server: Server, begin: oneshot::Sender<bool>) {
    let problem = server.halted().await;
    let ends = match problem.then {
        Then::BeginsAnew => Some(true),
        Then::Leaves => Some(false),
        Then::Ends | Then::Waits => None,
    };
    if let Some(again) = ends {
        // At the end of a world nobody listens any more.
        let _ = begin.send(again);
    }
    std::future::pending().await
}

/// Starts a server again that is to be opened anew, unless it has left, as `pando serve` does.
async fn begin_anew(host: Host, process: Arc<Process>, begins: oneshot::Receiver<bool>) {
    let Ok(again) = begins.await else { return };
    if !host.is_of(&process) {
        return;
    }
    if !again {
        host.inner.trace.note("leaves", &[u64::from(host.inner.server)]);
        host.kill();
        host.inner.has_left.set(true);
        return;
    }
    host.inner.trace.note("begins anew", &[u64::from(host.inner.server)]);
    host.kill();
    if let Err(error) = host.start() {
        tracing::error!(error = format!("{error:#}"), "a server does not begin anew");
    }
}

/// Runs the tasks of a process until they are swept away.
async fn run(body: Rc<Body>) {
    poll_fn(|cx| {
        body.waker.replace(Some(cx.waker().clone()));
        match body.tasks.borrow_mut().as_mut() {
            None => Poll::Ready(()),
            Some(_) if body.stopped.get() || body.rests(cx) => Poll::Pending,
            Some(tasks) => tasks.as_mut().poll(cx),
        }
    })
    .await;
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
