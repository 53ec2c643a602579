//! Asking for room below a root with limits, and what the coordinator does for who asks.
//!
//! A request that finds no room waits while its server asks, and is executed again. The coordinator allows what is left of the
//! limit. When that is too little it begins a round: all servers say what they use, and may use no more, so that only what they use
//! is taken. If there is no room then, the request fails. A server that is away keeps what it was allowed. One that
//! the coordinator has not heard of since it began to keep this ledger may use anything: until it is heard of nobody is allowed more.
//!
//! Cost: a message and its answer for a part of what is left; where nothing is, two to each server, for all that ask at one time.

use std::{cell::Cell, time::Duration};

use base::HashMap;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::{sync::Notify, task::yield_now, time::sleep};
use wire::{Answer, AskRoom, GiveRoom, Reply, ReplyHeader, Request, Room};

use super::{
    allowance::{Heard, Short},
    ledger::{Ledger, Next},
};
use crate::{
    Core,
    bugs::Bug,
    cluster::Cluster,
    coordinator::Coordinator,
    driver::Incoming,
    record::{QuotaId, Usage},
};

/// After so long it is asked again where nobody knows.
const AGAIN_PAUSE: Duration = Duration::from_millis(100);

/// What the coordinator has allowed.
#[derive(Default)]
pub(crate) struct Ledgers {
    of: Mutex<HashMap<QuotaId, Ledger>>,
    /// A round is over.
    over: Notify,
}

/// Asks for room for a request, which remembers that there was none: what it needs at first it may get once more.
pub(crate) async fn ask(core: &Core, short: Short, heard: &Cell<Heard>) {
    let shared = &core.inner.shared;
    let Some(cluster) = &shared.cluster else { return };
    let Some(ask) = shared.quotas.wants(short) else {
        // There is room by now; whoever else is here may need it as well.
        yield_now().await;
        return;
    };
    let room = match &cluster.coordinator {
        Some(coordinator) => room(core, coordinator, cluster.me, &ask).await,
        None => match core.inner.peers.ask(0, &Request::AskRoom(ask)).await {
            Ok(Reply::Room(room)) => room,
            Ok(_) | Err(_) => Room::Unknown,
        },
    };
    match room {
        Room::Allowed(allowed) => shared.quotas.allow(short.root, allowed),
        Room::Full => heard.set(Heard::Full(short)),
        Room::Unknown => sleep(AGAIN_PAUSE).await,
    }
}

/// Answers a server that asks.
pub(crate) async fn answer(core: Core, incoming: Incoming, from: u16, ask: AskRoom) {
    let shared = &core.inner.shared;
    let coordinator = shared.cluster.as_ref().and_then(|cluster| cluster.coordinator.as_ref());
    let room = match coordinator {
        Some(coordinator) => room(&core, coordinator, from, &ask).await,
        None => Room::Unknown,
    };
    // A limit that a power cut would take back allows nothing, and refuses nothing.
    shared.sync.until_stable().await;
    let reply = ReplyHeader { call: incoming.header.call, cache_version: 0 };
    incoming.connection.reply_now(reply, &Answer::Done(Reply::Room(room)));
}

async fn room(core: &Core, coordinator: &Coordinator, from: u16, ask: &AskRoom) -> Room {
    let (shared, ledgers) = (&core.inner.shared, &coordinator.ledgers);
    let Some(cluster) = &shared.cluster else { return Room::Unknown };
    let root = QuotaId(ask.root);
    let mut then = None;
    loop {
        let over = ledgers.over.notified();
        tokio::pin!(over);
        over.as_mut().enable();
        let Some((record, left)) = shared.quotas.holding(root) else {
            // Who asks will hear of it.
            return Room::Unknown;
        };
        let (next, round) = {
            let mut ledgers = ledgers.of.lock();
            let new = || Ledger::new(cluster.servers, record, left);
            let ledger = ledgers.entry(root).or_insert_with(new);
            if !ledger.is_of(&record, left) {
                *ledger = new();
            }
            let then = *then.get_or_insert(ledger.round());
            let next = ledger.ask(from, ask, then);
            if next == Next::Gather {
                ledger.begin(shared.random.next() | 1);
            }
            (next, ledger.round())
        };
        match next {
            Next::Answer(room) => return room,
            Next::Wait => over.await,
            Next::Gather => {
                let said = gather(core, cluster, root, round).await;
                if let Some(ledger) = ledgers.of.lock().get_mut(&root) {
                    ledger.end(round, &said.used, said.behind);
                }
                ledgers.over.notify_waiters();
            }
        }
    }
}

/// What servers have said in a round.
struct Said {
    used: Vec<(u16, Usage)>,
    /// Some have said it that have not heard yet what the roots are.
    behind: bool,
}

/// Has all servers give back what they do not use; what those use that were reached.
async fn gather(core: &Core, cluster: &Cluster, root: QuotaId, round: u64) -> Said {
    let shared = &core.inner.shared;
    let give = GiveRoom { root: root.0, round };
    // Each is asked once: a late one would let an answer count again that is older still.
    let others = (0..cluster.servers).filter(|server| *server != cluster.me).map(|server| {
        let answer = core.inner.peers.ask(server, &Request::GiveRoom(give));
        async move { (server, answer.await) }
    });
    let here = async {
        let gave = shared.quotas.give(&give, shared.bugs);
        shared.sync.wait().await;
        (cluster.me, Ok(Reply::Gave(gave)))
    };
    let roots = shared.quotas.version();
    let (here, others) = futures::join!(here, join_all(others));
    let mut said = Said { used: Vec::new(), behind: false };
    for (server, answer) in others.into_iter().chain([here]) {
        match answer {
            Ok(Reply::Gave(gave)) if gave.roots == roots => {
                said.used.push((server, gave.used.into()));
            }
            Ok(Reply::Gave(_)) => said.behind = true,
            Ok(_) | Err(_) if shared.bugs.has(Bug::UnheardHaveNone) => {
                said.used.push((server, Usage::default()));
            }
            Ok(_) | Err(_) => {}
        }
    }
    said
}
