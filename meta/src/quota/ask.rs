//! Asking for room below a root with limits, and how the coordinator answers.
//!
//! A request that finds no room waits while its server asks, and is executed again. The coordinator
//! allows what is left of the limit. When that is too little it begins a round: all servers say
//! what they use, and may use no more, so that only actual usage is subtracted from the limit. If
//! there is still no room, the request fails. A server that is away keeps its grant. A server
//! that has not answered since the coordinator began this ledger may use any amount: until it
//! answers no server is allowed more.
//!
//! Cost: a message and its answer for a part of what is left; where nothing is left, two messages
//! to each server, for all that ask at one time.

use std::{cell::Cell, time::Duration};

use futures::future::{FutureExt as _, LocalBoxFuture, join_all};
use tokio::{task::yield_now, time::sleep};
use wire::{Answer, AskRoom, GiveRoom, Reply, ReplyHeader, Request, Room};

use super::{
    grant::{GrantState, NeedsGrant},
    ledger::{Ledger, Next},
};
use crate::{
    bugs::Bug,
    cluster::Cluster,
    coordinator::state::Coordinator,
    error::Fault,
    incoming::Incoming,
    record::{QuotaId, Usage},
    wait::{AtCore, Wait, WaitApart},
};

/// Pause before asking again when room is unknown.
const AGAIN_PAUSE: Duration = Duration::from_millis(100);

impl From<NeedsGrant> for Fault {
    fn from(short: NeedsGrant) -> Fault {
        Fault::Wait(Wait::Apart(Box::new(short)))
    }
}

impl WaitApart for NeedsGrant {
    fn over<'a>(&'a self, at: AtCore<'a>, of: Option<&'a Incoming>) -> LocalBoxFuture<'a, ()> {
        // Only clients' requests wait for room: the server itself may not ask.
        async move {
            if let Some(incoming) = of {
                ask(at, *self, &incoming.grant_state).await;
            }
        }
        .boxed_local()
    }

    fn changes_records(&self) -> bool {
        false
    }
}

/// Asks for room for a request, and notes a refusal in `grant_state`. A request that needs less
/// than was refused may ask once more.
async fn ask(at: AtCore<'_>, short: NeedsGrant, grant_state: &Cell<GrantState>) {
    let shared = at.shared;
    let Some(cluster) = &shared.cluster else { return };
    let Some(ask) = shared.quotas.wants(short) else {
        // There is room by now. Other tasks of this core may need it as well.
        yield_now().await;
        return;
    };
    let grant = match &cluster.coordinator {
        Some(coordinator) => grant(at, coordinator, cluster.me, &ask).await,
        None => match at.peers.ask(0, &Request::AskRoom(ask)).await {
            Ok(Reply::Room(grant)) => grant,
            Ok(_) | Err(_) => Room::Unknown,
        },
    };
    match grant {
        Room::Allowed(allowed) => shared.quotas.allow(short.root, allowed),
        Room::Full => grant_state.set(GrantState::Full(short)),
        Room::Unknown => sleep(AGAIN_PAUSE).await,
    }
}

/// Answers another server's question for room.
pub(crate) async fn answer(at: AtCore<'_>, incoming: Incoming, from: u16, ask: AskRoom) {
    let shared = at.shared;
    let coordinator = shared.cluster.as_ref().and_then(|cluster| cluster.coordinator.as_ref());
    let grant = match coordinator {
        Some(coordinator) => grant(at, coordinator, from, &ask).await,
        None => Room::Unknown,
    };
    // A limit that a power cut would take back must neither allow nor refuse anything.
    shared.sync.until_stable().await;
    let reply = ReplyHeader { call: incoming.header.call, cache_version: 0 };
    incoming.connection.reply_now(reply, &Answer::Done(Reply::Room(grant)));
}

async fn grant(at: AtCore<'_>, coordinator: &Coordinator, from: u16, ask: &AskRoom) -> Room {
    let (shared, ledgers) = (at.shared, &coordinator.ledgers);
    let Some(cluster) = &shared.cluster else { return Room::Unknown };
    let root = QuotaId(ask.root);
    let mut then = None;
    loop {
        let over = ledgers.over.notified();
        tokio::pin!(over);
        over.as_mut().enable();
        let Some((record, left)) = shared.quotas.holding(root) else {
            // The server that asks will hear of the root's end.
            return Room::Unknown;
        };
        let (next, round) = {
            let mut ledgers = ledgers.of.lock();
            let new = || {
                let mut ledger = Ledger::new(cluster.servers, record, left);
                let map = cluster.map();
                let gone = (0..cluster.servers).filter(|server| map.has_left(*server));
                gone.for_each(|server| ledger.leaves(server));
                ledger
            };
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
            Next::Answer(grant) => return grant,
            Next::Wait => over.await,
            Next::Gather => {
                let said = gather(at, cluster, root, round).await;
                if let Some(ledger) = ledgers.of.lock().get_mut(&root) {
                    ledger.end(round, &said.used, said.behind);
                }
                ledgers.over.notify_waiters();
            }
        }
    }
}

/// Answers of servers in a round.
struct Said {
    used: Vec<(u16, Usage)>,
    /// Whether the answer of some server was based on an old list of roots.
    behind: bool,
}

/// Has all servers give back unused grant, and returns the usage of those that answered.
async fn gather(at: AtCore<'_>, cluster: &Cluster, root: QuotaId, round: u64) -> Said {
    let shared = at.shared;
    let give = GiveRoom { root: root.0, round };
    // Each server is asked once: a late second question would revive an older answer.
    let others = cluster.others().map(|server| {
        let answer = at.peers.ask(server, &Request::GiveRoom(give));
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
