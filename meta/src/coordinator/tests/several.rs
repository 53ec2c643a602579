//! Several servers in one thread, with pipes between them.

use std::{
    pin::{Pin, pin},
    sync::atomic::AtomicBool,
};

use base::ShardId;
use parking_lot::Mutex;
use store::Engine as _;
use tokio::{
    io::DuplexStream,
    sync::mpsc,
    task::{AbortHandle, LocalSet},
};

use wire::{Answer, PeerRead, Reply, RequestHeader, Stand};

use super::*;
use crate::{
    Beside, Journal,
    cluster::{Visit, member::Member},
    coordinator::moves,
    driver::is_ours,
    format_joined,
    peer::Open,
};

/// How long a server goes on without the coordinator.
const ALONE: Duration = Duration::from_secs(60);

/// The listener at each address.
#[derive(Default)]
struct Pipes(Mutex<base::HashMap<String, mpsc::UnboundedSender<DuplexStream>>>);

impl Dial for Pipes {
    fn dial<'a>(&'a self, address: &'a str, _: Option<u16>) -> BoxFuture<'a, io::Result<Dialled>> {
        Box::pin(async move {
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let listener = self.0.lock().get(address).cloned().ok_or_else(refused)?;
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            listener.send(theirs).map_err(|_| refused())?;
            Ok(Dialled::plain(ours))
        })
    }
}

/// A running server, which is killed when this is dropped.
pub(crate) struct Node {
    server: Server,
    /// The first core, which also does the background work.
    pub(crate) core: crate::Core,
    tasks: Vec<AbortHandle>,
}

impl Node {
    /// Starts a server on its engine, with `running` of its cores. They take connections in turn.
    fn start(
        pipes: &Arc<Pipes>,
        engine: &Arc<MemoryEngine>,
        options: ServerOptions,
        coordinators: &[&str],
        (running, kept_all): (usize, bool),
    ) -> Node {
        let address = options.address.clone();
        let coordinators = coordinators.iter().map(|to| (*to).to_owned()).collect();
        let place = place(&format!("{:p}", Arc::as_ptr(engine)));
        let dial = pipes.clone();
        let cluster = ClusterOptions {
            dial,
            coordinators,
            alone: ALONE,
            kept_all,
            place,
            calls: address == "calls:1",
            ..member_options()
        };
        let options = ServerOptions { cluster: Some(cluster), ..options };
        let server = open_with(engine, options).unwrap();
        let cores: Vec<_> = (0..running).map(|index| server.core(index)).collect();
        let (listener, mut connections) = mpsc::unbounded_channel();
        pipes.0.lock().insert(address, listener);
        let (core, background) = (cores[0].clone(), cores[0].clone());
        let run = |core: &crate::Core| {
            let core = core.clone();
            tokio::task::spawn_local(async move { core.run().await }).abort_handle()
        };
        let mut tasks: Vec<_> = cores.iter().map(run).collect();
        let accept = async move {
            let mut served = tokio::task::JoinSet::new();
            for core in cores.iter().cycle() {
                let Some(stream) = connections.recv().await else { return };
                let core = core.clone();
                served.spawn_local(async move { core.serve(stream).await });
            }
        };
        tasks.push(
            tokio::task::spawn_local(async move { background.background().await }).abort_handle(),
        );
        tasks.push(tokio::task::spawn_local(accept).abort_handle());
        Node { server, core, tasks }
    }

    fn shared(&self) -> &Shared {
        &self.server.shared
    }

    fn cluster(&self) -> &Cluster {
        self.server.shared.cluster.as_ref().unwrap()
    }

    fn version(&self) -> u64 {
        self.shared().invalidations.version()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// A cluster of three servers, `a:1`, `b:1` and `c:1`.
pub(crate) struct Three {
    pipes: Arc<Pipes>,
    /// Options of the server at an address.
    options: fn(&str) -> ServerOptions,
    /// Number of cores that run in each server.
    running: usize,
    pub(crate) engines: Vec<Arc<MemoryEngine>>,
    nodes: Vec<Option<Node>>,
    /// Whether each server has kept all that it answered in earlier runs.
    kept_all: [bool; 3],
}

const ADDRESSES: [&str; 3] = ["a:1", "b:1", "c:1"];

impl Three {
    async fn new(options: fn(&str) -> ServerOptions, running: usize) -> Three {
        let pipes = Arc::new(Pipes::default());
        let first = formatted(3);
        let coordinator = Node::start(&pipes, &first, options("a:1"), &[], (running, false));
        let (engines, nodes) = (vec![first], vec![Some(coordinator)]);
        let mut three = Three { pipes, options, running, engines, nodes, kept_all: [false; 3] };
        for member in [1, 2] {
            let address = ADDRESSES[usize::from(member)].to_owned();
            let asked = Join { address, member: u64::from(member) };
            let joined = join(three.node(0).shared(), &asked).unwrap();
            assert_eq!(joined.server, member);
            let engine = Arc::new(MemoryEngine::default());
            format_joined(engine.as_ref(), &joined, asked.member, 3).unwrap();
            three.engines.push(engine);
            three.nodes.push(None);
            three.start(usize::from(member));
        }
        three.settle().await;
        three
    }

    pub(crate) fn node(&self, server: usize) -> &Node {
        self.nodes[server].as_ref().unwrap()
    }

    pub(crate) fn start(&mut self, server: usize) {
        self.start_at(server, ADDRESSES[server]);
    }

    fn start_at(&mut self, server: usize, address: &str) {
        self.start_told(server, address, if server == 0 { &[] } else { &["a:1"] });
    }

    /// Starts a server like [`Three::start_at`], with the addresses where the coordinator may be.
    fn start_told(&mut self, server: usize, address: &str, to: &[&str]) {
        let options = (self.options)(address);
        let (pipes, engine) = (&self.pipes, &self.engines[server]);
        let run = (self.running, self.kept_all[server]);
        self.nodes[server] = Some(Node::start(pipes, engine, options, to, run));
    }

    pub(crate) fn kill(&mut self, server: usize) {
        let node = self.nodes[server].take();
        // Before a server's first lease it is not known what the server had lost.
        self.kept_all[server] |= node.is_some_and(|node| node.cluster().had_lease());
    }

    /// Kills a server like [`Three::kill`]; it also loses what is not stable.
    fn cut_power(&mut self, server: usize) {
        self.kill(server);
        self.engines[server].power_cut(0);
        self.kept_all[server] = false;
    }

    /// Lets every server ask for a lease again.
    pub(crate) async fn settle(&self) {
        tokio::time::sleep(LEASE / 2).await;
    }

    fn serving(&self) -> Vec<bool> {
        self.nodes.iter().flatten().map(|node| node.cluster().has_lease()).collect()
    }
}

/// Runs a test on servers of two cores.
pub(crate) fn in_cluster(test: impl AsyncFnOnce(&mut Three)) {
    run(two_cores, 2, test);
}

fn two_cores(address: &str) -> ServerOptions {
    ServerOptions { cores: 2, ..ServerOptions::simulated(address) }
}

/// Runs a test like [`in_cluster`], on servers with these options.
pub(crate) fn in_cluster_of(
    options: fn(&str) -> ServerOptions,
    test: impl AsyncFnOnce(&mut Three),
) {
    run(options, options("").cores, test);
}

fn run(options: fn(&str) -> ServerOptions, running: usize, test: impl AsyncFnOnce(&mut Three)) {
    alone(pin!(async { test(&mut Three::new(options, running).await).await }));
}

/// Not generic, so that the executor is compiled once.
fn alone(test: Pin<&mut dyn Future<Output = ()>>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn servers_that_have_joined_have_leases_the_map_and_one_version() {
    in_cluster(async |three| {
        assert_eq!(three.serving(), [true; 3]);
        for (server, node) in three.nodes.iter().flatten().enumerate() {
            assert_eq!(node.cluster().map().servers, ADDRESSES);
            assert_eq!(node.version(), three.node(0).version());
            for shard in (0..5).map(ShardId) {
                let owns = usize::from(shard.0) % 3 == server;
                assert_eq!(node.cluster().owns(shard), owns, "{server} {shard:?}");
            }
        }
    });
}

#[test]
fn what_is_announced_is_in_every_list_at_once() {
    in_cluster(async |three| {
        let began = Instant::now();
        let version = announce(three.node(0).shared(), &[DirId(700)]).await.unwrap();
        for node in three.nodes.iter().flatten() {
            assert_eq!(node.version(), version);
            assert_eq!(node.shared().invalidations.since(version - 1).unwrap().dirs, [DirId(700)]);
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
    });
}

/// Runs a test like [`in_cluster`], but the second core of each server is left to the test.
fn in_wide_cluster(test: impl AsyncFnOnce(&mut Three)) {
    run(two_cores, 1, test);
}

#[test]
fn an_announcement_waits_for_what_any_core_has_executed_without_it() {
    in_wide_cluster(async |three| {
        for server in [0, 1] {
            let gate = &three.node(server).shared().gate;
            gate.enter(1);
            let began = Instant::now();
            let announced = announce(three.node(0).shared(), &[DirId(700)]);
            tokio::pin!(announced);
            // Heartbeats come meanwhile.
            let early = tokio::time::timeout(LEASE / 2, announced.as_mut()).await;
            assert!(early.is_err(), "server {server} has not written what it has executed");
            gate.leave(1);
            announced.await.unwrap();
            assert!(began.elapsed() < LEASE / 2 + LEASE / 50, "{:?}", began.elapsed());
        }
    });
}

#[test]
fn a_lease_after_one_that_has_ended_waits_for_what_any_core_has_executed() {
    in_wide_cluster(async |three| {
        three.node(1).shared().gate.enter(1);
        three.kill(0);
        tokio::time::sleep(LEASE * 2).await;
        three.start(0);
        three.settle().await;
        assert_eq!(three.serving(), [true, false, true]);
        three.node(1).shared().gate.leave(1);
        three.settle().await;
        assert_eq!(three.serving(), [true; 3]);
    });
}

#[test]
fn a_server_that_is_gone_holds_up_announcements_for_its_lease_and_has_them_when_it_is_back() {
    in_cluster(async |three| {
        let before = announce(three.node(0).shared(), &[DirId(600)]).await.unwrap();
        three.kill(2);
        let began = Instant::now();
        let version = announce(three.node(0).shared(), &[DirId(700)]).await.unwrap();
        assert!(began.elapsed() > LEASE / 2 && began.elapsed() <= LEASE + LEASE / 8);
        assert_eq!(three.node(1).version(), version);
        assert!(status(three.node(0).shared()).unwrap().problems[0].contains("server 2 at c:1"));
        three.start(2);
        assert!(!three.node(2).cluster().has_lease());
        three.settle().await;
        assert_eq!((three.node(2).version(), three.serving()), (version, vec![true; 3]));
        // The server was told the whole list, also the events that it had before it was gone.
        let list = &three.node(2).shared().invalidations;
        let events = list.since(before - 1).unwrap();
        assert_eq!((events.reset, events.dirs), (false, vec![DirId(600), DirId(700)]));
        assert!(list.since(before - 2).unwrap().reset);
    });
}

#[test]
fn what_was_cached_before_a_power_cut_of_any_server_is_believed_by_none() {
    in_cluster(async |three| {
        let before = announce(three.node(0).shared(), &[DirId(600)]).await.unwrap();
        three.cut_power(2);
        three.start(2);
        three.settle().await;
        // The list begins anew also on servers that have lost nothing: the loss may be above what
        // they have.
        let now = three.node(0).version();
        assert!(now > before);
        for node in three.nodes.iter().flatten() {
            assert_eq!(node.version(), now);
            assert!(node.shared().invalidations.since(before).unwrap().reset);
        }
        // The end of a process loses nothing.
        three.kill(2);
        three.start(2);
        let later = announce(three.node(0).shared(), &[DirId(800)]).await.unwrap();
        three.settle().await;
        assert_eq!((three.node(2).version(), three.serving()), (later, vec![true; 3]));
        let list = &three.node(2).shared().invalidations;
        assert_eq!(list.since(now).unwrap().dirs, vec![DirId(800)]);
        assert!(list.since(before).unwrap().reset);
    });
}

#[test]
fn what_is_announced_waits_for_nobody_for_longer_than_until_the_next_heartbeat() {
    in_cluster(async |three| {
        for server in [1, 0] {
            three.kill(server);
            three.start(server);
            let began = Instant::now();
            announce(three.node(0).shared(), &[DirId(700)]).await.unwrap();
            assert!(began.elapsed() <= LEASE / 4 + LEASE / 100, "{:?}", began.elapsed());
        }
    });
}

#[test]
fn without_the_coordinator_leases_end_and_with_it_they_come_back() {
    in_cluster(async |three| {
        let version = three.node(0).version();
        three.kill(0);
        three.settle().await;
        assert_eq!(three.serving(), [true; 2]);
        tokio::time::sleep(LEASE).await;
        assert_eq!(three.serving(), [false; 2]);
        three.start(0);
        three.settle().await;
        assert_eq!(three.serving(), [true; 3]);
        let now = three.node(0).version();
        assert!(now > version);
        for node in three.nodes.iter().flatten() {
            assert_eq!(node.version(), now);
        }
        assert!(three.node(1).shared().invalidations.since(version).unwrap().reset);
    });
}

/// Asks a server whether it may serve a request about its own shard that stands on this version.
fn asked(three: &Three, server: u16, version: u64) -> Result<()> {
    let node = three.node(usize::from(server));
    let epoch = node.cluster().map().epoch;
    let place = RequestHeader { shard: ShardId(server), epoch, ..RequestHeader::bare(1) };
    let stand = Stand { version, ..Stand::NONE };
    let header = RequestHeader { stand, ..place };
    let dir = wire::DirRef { id: DirId(7), ino: base::Ino(7), home: DirId(7), ticket: 0 };
    let request = Request::Getattr(wire::Getattr { node: wire::NodeRef::Dir(dir) });
    is_ours(node.shared(), &header, &request)
}

#[test]
fn without_the_coordinator_requests_by_handle_go_on_for_a_while() {
    in_cluster(async |three| {
        let version = three.node(1).version();
        let away = |asked| matches!(asked, Err(Fault::Retry(Retry::Away)));
        three.kill(0);
        tokio::time::sleep(LEASE + LEASE / 2).await;
        assert_eq!(three.serving(), [false; 2]);
        for server in [1, 2] {
            assert!(asked(three, server, 0).is_ok());
            assert!(away(asked(three, server, version)));
        }
        // A restarted server does not know what became of earlier answers, and waits for its first
        // lease.
        three.kill(2);
        three.start(2);
        three.settle().await;
        assert!(away(asked(three, 2, 0)));
        tokio::time::sleep(ALONE).await;
        assert!(away(asked(three, 1, 0)));
        three.start(0);
        three.settle().await;
        for server in [1, 2] {
            assert!(asked(three, server, 0).is_ok() && asked(three, server, version + 1).is_ok());
        }
    });
}

#[test]
fn a_server_that_comes_back_elsewhere_is_in_the_map_of_all() {
    in_cluster(async |three| {
        three.kill(1);
        three.start_at(1, "elsewhere:1");
        three.settle().await;
        for node in three.nodes.iter().flatten() {
            assert_eq!(node.cluster().map().servers[1], "elsewhere:1");
            assert_eq!(node.cluster().map().epoch, Epoch(2));
        }
        // The new map is stored, so it is known without the coordinator, too.
        let member = three.engines[2].get(&key::member()).unwrap().unwrap();
        assert_eq!(Member::from_record(&member).unwrap().map.epoch, Epoch(2));
        let version = announce(three.node(0).shared(), &[DirId(700)]).await.unwrap();
        assert_eq!(three.node(1).version(), version);
    });
}

#[test]
fn a_coordinator_that_begins_elsewhere_calls_the_others() {
    in_cluster(async |three| {
        three.kill(2);
        three.kill(0);
        tokio::time::sleep(LEASE).await;
        three.start_told(0, "calls:1", &[]);
        three.settle().await;
        assert_eq!(three.serving(), [true; 2]);
        // Also after a restart, although the coordinator's own map names the new place then.
        three.kill(0);
        three.start_told(0, "calls:1", &[]);
        three.start(2);
        three.settle().await;
        three.settle().await;
        assert_eq!(three.serving(), [true; 3]);
        for node in three.nodes.iter().flatten() {
            assert_eq!(node.cluster().map().servers[0], "calls:1");
        }
    });
}

/// A connection to the first server that has sent a hello, and the visit with the challenge it got.
async fn strangers(three: &Three) -> (Open, Visit) {
    let (node, dial) = (three.node(0), &three.node(1).cluster().options.dial);
    let mut open = Open::dial(dial.as_ref(), "a:1", 0).await.unwrap();
    let hello = Request::PeerHello(three.node(1).cluster().hello(0, "b:1"));
    let answer = open.ask(&hello).await.unwrap();
    let Answer::Done(Reply::Challenge(challenge)) = answer else { panic!("{answer:?}") };
    (
        open,
        Visit {
            uuid: node.shared().config.uuid,
            to: 0,
            challenge: challenge.number,
            binding: None,
        },
    )
}

const LET_IN: Answer = Answer::Done(Reply::Nothing);

#[test]
fn a_coordinator_that_is_elsewhere_is_found_by_who_was_told_of_both_places() {
    in_cluster(async |three| {
        three.kill(1);
        three.start_told(1, "b:1", &["a:1", "elsewhere:1"]);
        three.kill(0);
        three.start_at(0, "elsewhere:1");
        three.settle().await;
        assert_eq!(three.node(1).cluster().map().servers[0], "elsewhere:1");
        assert!(three.node(1).cluster().has_lease());
        // The other server looks at the old address; it must be restarted.
        assert_eq!(three.node(2).cluster().map().servers[0], "a:1");
        three.kill(2);
        three.start_told(2, "c:1", &["elsewhere:1"]);
        three.settle().await;
        assert_eq!(three.serving(), [true; 3]);
        // From now on the new address is in the map that both servers have.
        for server in [1, 2] {
            three.kill(server);
            three.start_told(server, ADDRESSES[server], &[]);
        }
        three.settle().await;
        assert_eq!(three.serving(), [true; 3]);
    });
}

#[test]
fn who_does_not_have_the_key_is_no_server() {
    in_cluster(async |three| {
        for (key, let_in) in [(&b"key"[..], true), (b"other", false)] {
            let (mut open, visit) = strangers(three).await;
            let hello = visit.prove(key, three.node(1).cluster().hello(0, "b:1"));
            let answer = open.ask(&Request::PeerHello(hello)).await.unwrap();
            assert_eq!(answer == LET_IN, let_in);
            let read = Request::PeerRead(PeerRead {
                keys: Vec::new(),
                inos: Vec::new(),
                hold: None,
                confirmed: false,
                session: None,
            });
            let refused = matches!(open.ask(&read).await.unwrap(), Answer::Refused(_));
            assert_eq!(refused, !let_in);
        }
    });
}

#[test]
fn what_a_server_has_proven_proves_nothing_a_second_time() {
    in_cluster(async |three| {
        let (mut open, visit) = strangers(three).await;
        let hello = visit.prove(b"key", three.node(1).cluster().hello(0, "b:1"));
        let said = Request::PeerHello(hello);
        assert_eq!(open.ask(&said).await.unwrap(), LET_IN);
        assert!(matches!(open.ask(&said).await.unwrap(), Answer::Refused(_)));
        let (mut other, _) = strangers(three).await;
        assert!(matches!(other.ask(&said).await.unwrap(), Answer::Refused(_)));
        // The same proof without a challenge is refused, too.
        let dial = &three.node(1).cluster().options.dial;
        let mut silent = Open::dial(dial.as_ref(), "a:1", 0).await.unwrap();
        assert!(matches!(silent.ask(&said).await.unwrap(), Answer::Refused(_)));
    });
}

#[test]
fn a_clock_that_has_missed_time_ends_the_lease() {
    in_cluster(async |three| {
        let cluster = three.node(1).cluster();
        let ms = Duration::from_millis;
        assert!(cluster.has_lease());
        // An eighth of the time and an eighth of the lease are allowed.
        cluster.compare_clocks(ms(2000), ms(2000) + ms(250) + LEASE / 8, LEASE);
        assert!(cluster.has_lease());
        cluster.compare_clocks(ms(2000), ms(2001) + ms(250) + LEASE / 8, LEASE);
        assert!(!cluster.has_lease());
        three.settle().await;
        assert!(three.node(1).cluster().has_lease(), "the next heartbeat brings another");
    });
}

#[test]
fn a_move_is_void_when_a_server_that_takes_part_has_begun_anew() {
    in_cluster(async |three| {
        let shared = three.node(0).shared();
        let before = three.node(0).cluster().map().shards.clone();
        let planned = moves::plan(shared, 7, &[1]).unwrap();
        assert!(planned.iter().all(|it| it.from == 1) && !planned.is_empty());
        assert!(moves::commit(shared, 8).is_err(), "another plan is none of its business");
        let run = three.node(1).cluster().run;
        let beat = |run| {
            let beat = Heartbeat { address: "b:1".into(), ..beat("b:1", 0) };
            let life = Life { generation: 1, ..life("b") };
            heartbeat(three.node(0).shared(), (1, run), &Heartbeat { life, ..beat })
        };
        beat(run).unwrap();
        // A process that begins after the copy is not overruled by the plan.
        drop(beat(run + 1));
        assert!(moves::commit(shared, 7).is_err());
        assert_eq!(three.node(0).cluster().map().shards, before);
    });
}

#[test]
fn a_commit_that_is_asked_for_again_is_the_same() {
    in_cluster(async |three| {
        let shared = three.node(0).shared();
        let planned = moves::plan(shared, 7, &[2]).unwrap();
        moves::commit(shared, 7).unwrap();
        moves::commit(shared, 7).unwrap();
        let map = shared.cluster.as_ref().unwrap().coordinator.as_ref().unwrap();
        let shards = map.map().shards;
        assert!(planned.iter().all(|it| shards[usize::from(it.shard.0)] == it.to));
    });
}

#[test]
fn the_time_between_answers_is_the_coordinators() {
    in_cluster(async |three| {
        let beat = |run| {
            let beat = Heartbeat { address: "b:1".into(), ..beat("b:1", 0) };
            let life = Life { generation: 1, ..life("b") };
            let asked = (1, run);
            heartbeat(three.node(0).shared(), asked, &Heartbeat { life, ..beat }).unwrap().since_ms
        };
        let run = three.node(1).cluster().run;
        beat(run);
        tokio::time::sleep(Duration::from_millis(70)).await;
        assert_eq!(beat(run), 70);
    });
}

#[test]
fn a_server_that_resigns_serves_nothing_and_another_place_does_not_wait_for_it() {
    in_cluster(async |three| {
        three.node(1).server.resign().await;
        assert!(!three.node(1).server.may_serve());
        three.settle().await;
        assert_eq!(three.serving(), [true, false, true]);
        three.kill(1);
        three.engines[1] = Arc::new(three.engines[1].copy(true));
        three.start_at(1, "elsewhere:1");
        tokio::time::sleep(LEASE / 100).await;
        assert!(three.node(1).cluster().has_lease());
        assert_eq!(three.node(1).server.generation(), 2);
    });
}

#[test]
fn a_copy_elsewhere_waits_and_a_process_that_was_replaced_ends() {
    in_cluster(async |three| {
        let before = three.nodes[1].take().unwrap();
        // The tasks of the process stand still.
        before.tasks.iter().for_each(AbortHandle::abort);
        three.engines[1] = Arc::new(three.engines[1].copy(true));
        three.start_at(1, "elsewhere:1");
        tokio::time::sleep(LEASE + LEASE / 8).await;
        let standing = three.node(1).server.standing();
        assert!(standing.unready.contains("in another place, may still serve"), "{standing:?}");
        tokio::time::sleep(ALONE + ALONE / 8).await;
        assert_eq!(three.serving(), [true; 3]);
        assert_eq!(three.node(1).server.generation(), 2);
        let hello = before.cluster().hello(0, "b:1");
        let challenge = wire::Challenge { number: 7, generation: 1, knows: 2 };
        let bugs = crate::bugs::Planted::default();
        assert_eq!(hello.generation, 1);
        assert!(before.cluster().own.reaches(0, challenge, bugs).is_err());
    });
}

/// A journal that another process may have taken over.
struct Journaled;

static MAY_SERVE: AtomicBool = AtomicBool::new(true);

impl Beside for Journaled {
    fn problem(&self) -> Option<String> {
        None
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

impl Journal for Journaled {
    fn may_serve(&self) -> bool {
        MAY_SERVE.load(Ordering::Relaxed)
    }
}

#[test]
fn a_server_whose_journal_may_be_another_ones_is_not_heard() {
    let options = |address: &str| ServerOptions {
        journal: (address == ADDRESSES[1]).then(|| Arc::new(Journaled) as Arc<dyn Journal>),
        ..two_cores(address)
    };
    run(options, 2, async |three| {
        MAY_SERVE.store(false, Ordering::Relaxed);
        tokio::time::sleep(LEASE * 2).await;
        assert_eq!(three.serving(), [true, false, true]);
        // No process has taken the journal over.
        MAY_SERVE.store(true, Ordering::Relaxed);
        three.settle().await;
        assert_eq!(three.serving(), [true, true, true]);
    });
}
