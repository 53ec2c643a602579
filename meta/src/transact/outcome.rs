//! How a transaction ended: who is asked.
//!
//! `recover` asks for what is prepared here, and a handoff for the names that it gets. The initiator is asked, and where
//! that is silent the coordinator, which asks it in turn.
//!
//! Always true: only the initiator presumes; what anybody else says it was told.

use std::time::Duration;

use futures::{
    future::ready,
    stream::{FuturesUnordered, Stream, StreamExt as _},
};
use tokio::time::timeout;
use wire::{Answer, AskOutcome, Outcome, Reply, ReplyHeader, Request, Retry, TxnId};

use crate::{Core, cluster::Cluster, driver::Incoming};

/// Who has not answered for so long is silent, and another one is asked as well.
const LATE: Duration = Duration::from_millis(500);
/// The server that asks for others.
const COORDINATOR: u16 = 0;

/// How a transaction of another server ended, as that one says or the coordinator has heard from it; `None`: it is silent.
pub(crate) async fn outcome_of(core: &Core, txn: TxnId) -> Option<Outcome> {
    let cluster = core.inner.shared.cluster.as_ref()?;
    let relays = !cluster.coordinates() && txn.server != COORDINATOR;
    let mut asked = FuturesUnordered::new();
    for server in [Some(txn.server), relays.then_some(COORDINATOR)].into_iter().flatten() {
        asked.push(said_by(core, server, txn));
        // A late answer is as good.
        if let Ok(said @ Some(_)) = timeout(LATE, first(&mut asked)).await {
            return said;
        }
    }
    first(&mut asked).await
}

/// The first answer of those that are still to come.
async fn first(asked: &mut (impl Stream<Item = Option<Outcome>> + Unpin)) -> Option<Outcome> {
    let mut answers = asked.filter_map(ready);
    answers.next().await
}

/// What a server says of how a transaction ended.
async fn said_by(core: &Core, server: u16, txn: TxnId) -> Option<Outcome> {
    let request = Request::AskOutcome(AskOutcome { txn });
    match core.inner.peers.ask(server, &request).await {
        Ok(Reply::Outcome(outcome)) => Some(outcome),
        Ok(_) | Err(_) => None,
    }
}

/// Asks the initiator of a transaction how it ended for another server, which does not reach it. Only the coordinator does,
/// and asks nobody else: nothing goes round.
pub(crate) async fn relay(core: Core, incoming: Incoming, txn: TxnId) {
    let coordinates = core.inner.shared.cluster.as_ref().is_some_and(Cluster::coordinates);
    let said = if coordinates { said_by(&core, txn.server, txn).await } else { None };
    let answer = match said {
        Some(outcome) => Answer::Done(Reply::Outcome(outcome)),
        None => Answer::Retry(Retry::Away),
    };
    let reply = ReplyHeader { call: incoming.header.call, cache_version: 0 };
    incoming.connection.reply_now(reply, &answer);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        coordinator::tests::several::{Three, in_cluster},
        peer::Unanswered,
    };

    /// What one server says of a transaction that another one has initiated.
    async fn asks(three: &Three, from: usize, to: u16, txn: TxnId) -> Option<Outcome> {
        let ask = Request::AskOutcome(AskOutcome { txn });
        match three.node(from).core.inner.peers.ask(to, &ask).await {
            Ok(Reply::Outcome(outcome)) => Some(outcome),
            Err(Unanswered::Lost) => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_coordinator_says_of_a_transaction_what_its_initiator_says() {
        in_cluster(async |three| {
            let [open, ended] = [1, 2].map(|number| TxnId { server: 2, run: 1, number });
            three.node(2).core.inner.shared.initiated.begin(open);
            for (txn, outcome) in [(open, Outcome::Pending), (ended, Outcome::Aborted)] {
                assert_eq!(asks(three, 1, 0, txn).await, Some(outcome));
            }
            three.kill(2);
            assert_eq!(asks(three, 1, 0, ended).await, None, "nobody presumes for another one");
        });
    }

    #[test]
    fn nobody_but_the_coordinator_says_anything_of_the_transactions_of_others() {
        in_cluster(async |three| {
            let txn = TxnId { server: 1, run: 1, number: 1 };
            assert_eq!(asks(three, 0, 2, txn).await, None);
            let txn = TxnId { server: 0, ..txn };
            assert_eq!(asks(three, 1, 2, txn).await, None);
        });
    }
}
