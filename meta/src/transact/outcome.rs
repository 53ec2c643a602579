//! Outcomes of transactions: which servers are asked, and what is remembered for those that ask.
//!
//! `recover` asks for transactions that are prepared here, and a handoff for the names that it
//! gets. The initiator is asked first. Where that is silent, the coordinator is asked, which asks
//! the initiator in turn. Where the initiator is silent to both, the other participants are asked.
//!
//! A participant says committed if it was told so. If it has not prepared the transaction, it
//! promises that it never will ([`participant::ended`](super::participant::ended)). Then the
//! initiator, which needs its vote, cannot commit, and the transaction is aborted. If it has
//! prepared it and knows no more, it says so, and both stay in doubt. It stores its answer as an
//! `E` record, in the batch that does its part or makes the promise. It remembers the answer until
//! the initiator says that the transaction is over: not under way, and applied by all, if it was
//! committed. Transactions with one participant need none of this.
//!
//! Always true: only the initiator presumes an abort. A participant that has voted for a
//! transaction says aborted only if it was told so.

use std::time::Duration;

use futures::{
    future::{join_all, ready},
    stream::{FuturesUnordered, Stream, StreamExt as _},
};
use tokio::time::timeout;
use wire::{Answer, AskOutcome, AskOver, Outcome, Reply, ReplyHeader, Request, Retry, TxnId};

use crate::{Core, cluster::Cluster, incoming::Incoming, peer::Unanswered, record::key};

/// Silence of a server after which another one is asked as well.
const LATE: Duration = Duration::from_millis(500);
/// Period at which initiators are asked which transactions are over.
const FORGET_PERIOD: Duration = Duration::from_secs(1);
/// Most transactions in one such question.
const ASKED_MAX: usize = 10_000;
/// The server that asks on behalf of others.
const COORDINATOR: u16 = 0;

/// The outcome of another server's transaction, as that one says, or one of `others`, its
/// participants besides this server. `None`: no server that answers knows.
pub(crate) async fn outcome_of(core: &Core, txn: TxnId, others: &[u16]) -> Option<Outcome> {
    let cluster = core.inner.shared.cluster.as_ref()?;
    let mut asked = FuturesUnordered::new();
    for (all, relayed) in
        [(&[txn.server][..], false), (&[txn.server], true), (others, false), (others, true)]
    {
        let reached = |of: &u16| !relayed || !cluster.coordinates() && *of != COORDINATOR;
        for of in all.iter().copied().filter(reached) {
            let server = if relayed { COORDINATOR } else { of };
            asked.push(said_by(core, server, AskOutcome { txn, of }));
        }
        // A late answer is as good.
        if let Ok(said @ Some(_)) = timeout(LATE, first(&mut asked)).await {
            return said;
        }
    }
    first(&mut asked).await
}

/// The first of the answers that are still to come.
async fn first(asked: &mut (impl Stream<Item = Option<Outcome>> + Unpin)) -> Option<Outcome> {
    let mut answers = asked.filter_map(ready);
    answers.next().await
}

/// The outcome that a server states. A participant that merely knows the transaction to be prepared
/// states none.
async fn said_by(core: &Core, server: u16, ask: AskOutcome) -> Option<Outcome> {
    match core.inner.peers.ask(server, &Request::AskOutcome(ask)).await {
        Ok(Reply::Outcome(Outcome::Pending)) if ask.of != ask.txn.server => None,
        Ok(Reply::Outcome(outcome)) => Some(outcome),
        Ok(_) | Err(_) => None,
    }
}

/// Asks a server on behalf of another one, which does not reach it. Only the coordinator does, and
/// it asks the server itself, so no question goes round in circles.
pub(crate) async fn relay(core: Core, incoming: Incoming, ask: AskOutcome) {
    let coordinates = core.inner.shared.cluster.as_ref().is_some_and(Cluster::coordinates);
    let said = match coordinates {
        true => core.inner.peers.ask(ask.of, &Request::AskOutcome(ask)).await,
        false => Err(Unanswered::Lost),
    };
    let answer = said.map_or(Answer::Retry(Retry::Away), Answer::Done);
    let reply = ReplyHeader { call: incoming.header.call, cache_version: 0 };
    incoming.connection.reply_now(reply, &answer);
}

/// Forgets the outcomes that no other participant asks for any more, for as long as the server
/// runs.
pub(super) async fn forget(core: Core) {
    let shared = core.inner.shared.clone();
    loop {
        tokio::time::sleep(FORGET_PERIOD).await;
        let closed = shared.prepared.closed();
        let by_server = closed.chunk_by(|one, other| one.server == other.server);
        let asked = by_server.flat_map(|txns| txns.chunks(ASKED_MAX)).map(|txns| {
            let ask = Request::AskOver(AskOver { txns: txns.to_vec() });
            core.inner.peers.ask(txns[0].server, &ask)
        });
        for answer in join_all(asked).await {
            let Ok(Reply::Over(over)) = answer else { continue };
            if over.is_empty() {
                continue;
            }
            // This comes first: an outcome that is asked for in between is remembered once more.
            shared.prepared.are_over(&over);
            core.forget(over.into_iter().map(key::ended).collect()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use store::Engine as _;
    use wire::{Decide, Prepare, Vote};

    use super::*;
    use crate::coordinator::tests::several::{Three, in_cluster};

    /// A transaction of the second server, of which the two others have parts.
    const TXN: TxnId = TxnId { server: 1, run: 1, number: 1 };

    /// The outcome that a server hears when it asks `to` what `of` says.
    async fn asks(three: &Three, (from, to): (usize, u16), txn: TxnId, of: u16) -> Option<Outcome> {
        let ask = Request::AskOutcome(AskOutcome { txn, of });
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
                assert_eq!(asks(three, (1, 0), txn, 2).await, Some(outcome));
            }
            three.kill(2);
            assert_eq!(
                asks(three, (1, 0), ended, 2).await,
                None,
                "nobody presumes for another one"
            );
        });
    }

    #[test]
    fn nobody_but_the_coordinator_says_what_others_say() {
        in_cluster(async |three| {
            assert_eq!(asks(three, (0, 2), TXN, 1).await, None);
            assert_eq!(asks(three, (1, 2), TxnId { server: 0, ..TXN }, 0).await, None);
        });
    }

    /// Has the first server prepare its part.
    async fn prepare(three: &Three, others: &[u16]) -> Reply {
        let (expects, writes, others) = (vec![], vec![], others.to_vec());
        let prepare = Prepare {
            txn: TXN,
            expects,
            writes,
            early_mkdir: false,
            held: false,
            others,
            session: None,
        };
        three.node(1).core.inner.peers.ask(0, &Request::Prepare(prepare)).await.unwrap()
    }

    async fn commit(three: &Three) -> Reply {
        let decide = Decide { txn: TXN, commit: true };
        three.node(1).core.inner.peers.ask(0, &Request::Decide(decide)).await.unwrap()
    }

    /// The outcome that the first server states to the third.
    async fn says(three: &Three) -> Option<Outcome> {
        asks(three, (2, 0), TXN, 0).await
    }

    fn remembers(three: &Three) -> bool {
        three.engines[0].get(&key::ended(TXN)).unwrap().is_some()
    }

    async fn again(three: &mut Three) {
        three.kill(0);
        three.start(0);
        three.settle().await;
    }

    const VOTED: Reply = Reply::Vote(Vote::Prepared);
    const REFUSED: Reply = Reply::Vote(Vote::Busy);

    #[test]
    fn who_has_not_prepared_a_transaction_when_another_participant_asks_never_will() {
        in_cluster(async |three| {
            three.node(1).core.inner.shared.initiated.begin(TXN);
            for _ in 0..2 {
                assert_eq!(says(three).await, Some(Outcome::Aborted));
                assert_eq!(prepare(three, &[2]).await, REFUSED);
                again(three).await;
                assert_eq!(prepare(three, &[2]).await, REFUSED);
            }
            tokio::time::sleep(2 * FORGET_PERIOD).await;
            assert!(remembers(three), "it is under way");
            three.node(1).core.inner.shared.initiated.end(TXN);
            tokio::time::sleep(2 * FORGET_PERIOD).await;
            assert!(!remembers(three));
            // The initiator is asked for this, as for any late part of a transaction that was given
            // up.
            assert_eq!(prepare(three, &[2]).await, VOTED);
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert!(!three.node(0).core.inner.shared.prepared.any());
        });
    }

    #[test]
    fn who_was_told_of_a_commit_says_so_until_all_have_heard() {
        in_cluster(async |three| {
            three.node(1).core.inner.shared.initiated.begin(TXN);
            assert_eq!(prepare(three, &[2]).await, VOTED);
            assert_eq!(says(three).await, Some(Outcome::Pending), "it knows no more");
            assert_eq!(commit(three).await, Reply::Nothing);
            for _ in 0..2 {
                assert_eq!(says(three).await, Some(Outcome::Committed));
                again(three).await;
            }
            tokio::time::sleep(2 * FORGET_PERIOD).await;
            assert!(remembers(three), "another one may ask");
            three.node(1).core.inner.shared.initiated.end(TXN);
            tokio::time::sleep(2 * FORGET_PERIOD).await;
            assert!(!remembers(three));
        });
    }

    #[test]
    fn of_a_transaction_with_one_participant_nothing_is_remembered() {
        in_cluster(async |three| {
            three.node(1).core.inner.shared.initiated.begin(TXN);
            assert_eq!(prepare(three, &[]).await, VOTED);
            assert_eq!(commit(three).await, Reply::Nothing);
            assert!(!remembers(three));
        });
    }

    #[test]
    fn what_is_in_doubt_ends_as_the_other_participant_says() {
        in_cluster(async |three| {
            assert_eq!(prepare(three, &[2]).await, VOTED);
            three.kill(1);
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert!(!three.node(0).core.inner.shared.prepared.any(), "the other one has refused");
            assert!(three.engines[2].get(&key::ended(TXN)).unwrap().is_some());
        });
    }
}
