//! The participant's side: requests of other servers for records of this one.
//!
//! Each request is executed within a group, as an operation is. It may come twice, late, or never
//! be followed by another. A prepared transaction stays so until the initiator says how it ended,
//! or is asked (`recover`).

use std::{collections::BTreeMap, time::Duration};

use base::{DirId, Ino, SessionId, ShardId};
use bytes::Bytes;
use wire::{
    Answer, Decide, Expected, Hold, Outcome, PeerRead, PeerWrite, Prepare, Reply, Request, Retry,
    Stands, TxnId, Vote,
};

use super::{
    CommittedRecord, EndedRecord, Others, PreparedRecord, early_mkdirs,
    locks::{Has, Mode},
};
use crate::{
    bugs::Bug,
    error::{Fault, Result},
    feed, handoff,
    record::{
        Content, Key, Record as _,
        key::{self, Part},
    },
    space_guard::Level,
    txn::Txn,
    wait::Wait,
};

/// Longest wait of a vote for the confirmation of a directory that its transaction touches.
const VOTE_WITHIN: Duration = Duration::from_millis(100);
/// Longest wait of a read for a transaction that is about to change the records.
pub(super) const READ_WITHIN: Duration = Duration::from_millis(250);

/// The time for which a request of another server waits for a transaction in its way, and the
/// answer after that. `None`: the request waits until the transaction has ended.
///
/// While an initiator asks for a vote, other servers have prepared and hold their keys for it. A
/// reader may give up, and ask again, long before a transaction ends whose initiator is away: its
/// forgotten reads would pile up.
pub(crate) fn patience(request: &Request) -> Option<(Duration, Answer)> {
    match request {
        Request::Prepare(_) => Some((VOTE_WITHIN, Answer::Done(Reply::Vote(Vote::Busy)))),
        Request::PeerRead(_) => Some((READ_WITHIN, Answer::Retry(Retry::Busy))),
        _ => None,
    }
}

/// Reads records as they are, or says whether inodes are open.
pub(crate) fn read(txn: &mut Txn<'_>, req: &PeerRead) -> Result<Reply> {
    match req.hold {
        Some(hold) => read_and_hold(txn, req, hold),
        None => Ok(Reply::Values(values(txn, req)?)),
    }
}

fn values(txn: &Txn<'_>, req: &PeerRead) -> Result<Vec<Option<Bytes>>> {
    let meant = req.inos.iter().map(|ino| Some(*ino).filter(|ino| *ino != Ino(0)));
    let meant = meant.chain(std::iter::repeat(None));
    let value = |(key, ino): (&Bytes, _)| match current(txn, key, ino)? {
        Some(_) if req.confirmed && !txn.is_confirmed(&Key::from_slice(key)) => Ok(None),
        value => Ok(value),
    };
    req.keys.iter().zip(meant).map(value).collect()
}

/// Reads records and holds some of them. A transaction that holds records waits for no other: two
/// could wait for each other.
fn read_and_hold(txn: &mut Txn<'_>, req: &PeerRead, hold: Hold) -> Result<Reply> {
    let held: Vec<Key> =
        req.keys.iter().take(hold.keys.into()).map(|key| Key::from_slice(key)).collect();
    for key in &held {
        is_ours(txn, key)?;
        txn.lock_key(key)?;
    }
    let values = match values(txn, req) {
        Ok(values) => values,
        Err(Fault::Wait(Wait::Apart(_))) => return Ok(Reply::Vote(Vote::Busy)),
        Err(fault) => return Err(fault),
    };
    // The transaction would have to wait when it is prepared, after all servers have been told of
    // it.
    let others = req.keys.iter().skip(held.len()).filter(|key| key::is_content(key));
    if others.into_iter().any(|key| txn.shared.prepared.is_being_updated(key, hold.txn)) {
        return Ok(Reply::Vote(Vote::Busy));
    }
    let holds = !txn.shared.bugs.has(Bug::HoldNotKept) && !held.is_empty();
    let is_kept = !holds || txn.shared.prepared.hold(hold.txn, held);
    Ok(if is_kept { Reply::Values(values) } else { Reply::Vote(Vote::Busy) })
}

/// The value under a key. For a content record `ino` says which directory is meant, if that is
/// known.
fn current(txn: &Txn<'_>, at: &[u8], ino: Option<Ino>) -> Result<Option<Bytes>> {
    is_ours(txn, at)?;
    if let Some(root) = key::parse_charged(at) {
        return Ok(Some(txn.shared.quotas.told(root).to_record()));
    }
    if let Some((ino, opener)) = key::parse_opener(at) {
        return is_open_for(txn, ino, opener).map(|open| open.then(Bytes::new));
    }
    match key::parse_open(at) {
        Some(ino) => Ok(txn.shared.opens.maybe_open(ino).then(Bytes::new)),
        None => {
            let value = txn.get_bytes(at)?;
            // Another server may not have reported the early mkdir yet. A directory that is just
            // born has one partition.
            let may_be_born = || {
                key::is_content(at)
                    && key::parse_share(at).is_some_and(|(partition, _)| partition == 0)
                    && match ino {
                        Some(ino) => txn.may_be_born(key::shard_of(at), ino),
                        None => txn.shared.early_mkdirs.are_unheard(),
                    }
            };
            if value.is_none() && may_be_born() {
                Err(Fault::Retry(Retry::Busy))
            } else {
                Ok(value)
            }
        }
    }
}

/// Whether a user of a session has an inode open. A session that has not claimed yet what it had
/// open before a restart is waited for.
fn is_open_for(txn: &Txn<'_>, ino: Ino, (session, user): (SessionId, u32)) -> Result<bool> {
    let opens = &txn.shared.opens;
    let open = opens.access_of(ino, session, user).is_some();
    if !open && opens.awaits_claims_of(session) {
        return Err(Fault::Retry(Retry::Busy));
    }
    Ok(open)
}

fn is_ours(txn: &Txn<'_>, at: &[u8]) -> Result<()> {
    if !key::zone(at).is_some_and(|(_, shard)| txn.has_shard(shard)) {
        // Or this server has not learnt yet that it has the shard.
        return Err(Fault::Retry(Retry::Busy));
    }
    Ok(())
}

/// Prepares a transaction, unless a record has changed or another transaction is in the way.
pub(crate) fn prepare(txn: &mut Txn<'_>, req: &Prepare) -> Result<Vote> {
    if txn.shared.prepared.is_prepared(req.txn) {
        return Ok(Vote::Prepared);
    }
    // Race: after a restart others may have read the records that were held, and are told nothing
    // any more.
    let is_lost = req.held && !txn.shared.prepared.is_holding(req.txn);
    if is_lost && !txn.shared.bugs.has(Bug::HoldNotKept) {
        return Ok(Vote::Busy);
    }
    if req.early_mkdir {
        // A transaction that does more than an early mkdir is not prepared as one.
        txn.shared.space_guard.has(needed(req))?;
        let made = early_mkdirs::made(&req.expects, &req.writes);
        return made.map_or(Ok(Vote::Changed), |made| prepare_early_mkdir(txn, req.txn, made));
    }
    let written = |key: &Bytes| req.writes.iter().any(|write| key_of(write) == key);
    let stands = req.expects.iter().map(|expected| expected.key.clone());
    let stands = stands.filter(|key| !written(key)).collect();
    let (writes, others) = (req.writes.clone(), Others(req.others.clone()));
    let record = PreparedRecord { stands, writes, born: None, others };
    lock_all(txn, &record)?;
    for expected in &req.expects {
        if let Some(refusal) = refusal(is_as_expected(txn, expected))? {
            return Ok(refusal);
        }
    }
    if let Some(refusal) = refusal(has_names(txn, req))? {
        return Ok(refusal);
    }
    // Space is checked last: a transaction that assumed wrongly fails before, and makes other
    // records in its next run.
    txn.shared.space_guard.has(needed(req))?;
    let holds = !txn.shared.bugs.has(Bug::PreparedNotHeld);
    let held = held(&record);
    if holds && !txn.shared.prepared.take(req.txn, held.clone()) {
        // An early mkdir waits for no transaction that waits for it.
        let early_mkdir = txn.shared.prepared.early_mkdir_among(held.iter().map(|(key, _)| key));
        return early_mkdir.map_or(Ok(Vote::Busy), |doubt| Err(doubt.into()));
    }
    if !txn.shared.bugs.has(Bug::PrepareNotStored) {
        txn.put(key::prepared(req.txn), &record);
    }
    Ok(Vote::Prepared)
}

/// The free space that a transaction needs here. One that makes a record is refused below the
/// low-water mark, like an operation that makes one. One that changes or removes records is refused
/// only when next to nothing is left.
fn needed(req: &Prepare) -> Level {
    let makes = |write: &PeerWrite| match write {
        PeerWrite::Put((at, _)) => {
            req.expects.iter().any(|expected| expected.key == at && expected.was.is_none())
        }
        PeerWrite::Delete(_) | PeerWrite::Patch(_) => false,
    };
    if req.writes.iter().any(makes) { Level::Enough } else { Level::Low }
}

/// The vote against a transaction whose expectation does not hold, or cannot be checked while
/// another transaction is under way.
fn refusal(is_so: Result<bool>) -> Result<Option<Vote>> {
    match is_so {
        Ok(true) => Ok(None),
        Ok(false) => Ok(Some(Vote::Changed)),
        Err(Fault::Wait(Wait::Apart(_))) => Ok(Some(Vote::Busy)),
        Err(fault) => Err(fault),
    }
}

fn prepare_early_mkdir(
    txn: &mut Txn<'_>,
    early_mkdir: TxnId,
    (at, content): (&Bytes, &Bytes),
) -> Result<Vote> {
    txn.lock_key(at)?;
    // The initiator has the name's rename list, so the id is free if it has no record.
    let is_free = txn.get_bytes(at).map(|found| found.is_none());
    if let Some(refusal) = refusal(is_free)? {
        return Ok(refusal);
    }
    let stored = early_mkdirs::store(txn, early_mkdir, at, content);
    Ok(if stored { Vote::Prepared } else { Vote::Busy })
}

/// Ends early mkdirs of directories whose entries server `from` has: they are confirmed.
pub(crate) fn confirm(txn: &mut Txn<'_>, from: u16, early_mkdirs: &[TxnId]) -> Result<()> {
    if !txn.shared.early_mkdirs.has_heard(from) {
        // The server's list of all early mkdirs comes first.
        return Err(Fault::Retry(Retry::Busy));
    }
    for early_mkdir in early_mkdirs {
        if let Some(at) = early_mkdir_here(txn, *early_mkdir)? {
            early_mkdirs::end(txn, *early_mkdir, &at, true)?;
        }
    }
    Ok(())
}

fn early_mkdir_here(txn: &mut Txn<'_>, early_mkdir: TxnId) -> Result<Option<Key>> {
    let Some(at) = txn.shared.prepared.early_mkdir_content(early_mkdir) else { return Ok(None) };
    txn.lock_key(&at)?;
    // Race: another core may have ended the early mkdir before the lock was taken. Ending it twice
    // in this group is as good as once.
    Ok(txn.shared.prepared.has(early_mkdir).then_some(at))
}

/// Whether every name that the transaction puts belongs to the partition here. The initiator has
/// checked that; a name that is put anywhere else would be lost.
fn has_names(txn: &Txn<'_>, req: &Prepare) -> Result<bool> {
    for write in &req.writes {
        if let PeerWrite::Put((at, _)) = write
            && let Some((dir, (pos, ..))) = key::parse_dir(at).zip(key::parse_name(at))
            && key::is_entry(at)
            && let Some((partition, share)) = share_beside(txn, req, key::shard_of(at), dir)?
            && share.layout.partition(pos) != partition
        {
            tracing::error!(%dir, pos, partition, "another server puts a name where it does not belong");
            return Ok(false);
        }
    }
    Ok(true)
}

/// The partition of a directory that a shard has: as the transaction expects it, or else as it is
/// stored.
fn share_beside(
    txn: &Txn<'_>,
    req: &Prepare,
    shard: ShardId,
    dir: DirId,
) -> Result<Option<(u16, Content)>> {
    let expected = req.expects.iter().find(|expected| {
        let at = &expected.key;
        key::is_content(at) && key::shard_of(at) == shard && key::parse_dir(at) == Some(dir)
    });
    if let Some(Expected { key: at, was: Some(was), .. }) = expected
        && let Some((partition, _)) = key::parse_share(at)
    {
        return Ok(Some((partition, Content::from_record(was)?)));
    }
    let partition = txn.partition_on(shard, dir)?;
    let share = txn.get_content(&key::content(shard, dir, partition, Part::Main))?;
    Ok(share.map(|share| (partition, share)))
}

fn lock_all(txn: &mut Txn<'_>, record: &PreparedRecord) -> Result<()> {
    for key in record.writes.iter().map(key_of).chain(&record.stands) {
        txn.lock_key(key)?;
    }
    Ok(())
}

/// The mode in which a transaction holds each key: the strongest of its uses.
pub(super) fn held(record: &PreparedRecord) -> Vec<(Key, Mode)> {
    let mut held: BTreeMap<Key, Mode> = BTreeMap::new();
    held.extend(record.stands.iter().map(|key| (Key::from_slice(key), Mode::Shared)));
    for write in &record.writes {
        let mode = held.entry(Key::from_slice(key_of(write))).or_insert(Mode::Shared);
        *mode = mode_of(write).max(*mode);
    }
    held.into_iter().collect()
}

pub(super) fn key_of(write: &PeerWrite) -> &Bytes {
    match write {
        PeerWrite::Put((key, _)) | PeerWrite::Delete(key) | PeerWrite::Patch((key, _)) => key,
    }
}

fn mode_of(write: &PeerWrite) -> Mode {
    match write {
        PeerWrite::Patch((_, patch)) if patch.stable.is_none() => Mode::Increment,
        PeerWrite::Put(_) | PeerWrite::Delete(_) | PeerWrite::Patch(_) => Mode::Exclusive,
    }
}

fn is_as_expected(txn: &Txn<'_>, expected: &Expected) -> Result<bool> {
    let Expected { key, was, stands } = expected;
    is_ours(txn, key)?;
    let is_so = match (stands, was) {
        (Stands::Stable, Some(was)) if key::is_content(key) => match txn.get_content(key)? {
            Some(is) => is.is_stable_as(Content::from_record(was)?),
            None => current(txn, key, None)?.is_some(),
        },
        (Stands::Whole, Some(_)) if key::is_content(key) => {
            // Counts that other transactions are about to change differ from the expected ones.
            txn.settle_counts_at(key)?;
            current(txn, key, None)? == *was
        }
        (Stands::Whole | Stands::Stable, was) => current(txn, key, None)? == *was,
    };
    Ok(is_so || txn.shared.bugs.has(Bug::ExpectationsIgnored))
}

/// Ends a transaction as its initiator says.
pub(crate) fn decide(txn: &mut Txn<'_>, req: &Decide) -> Result<()> {
    let at = key::prepared(req.txn);
    if txn.shared.prepared.early_mkdir(req.txn) == Some(Has::Content) {
        if req.commit {
            txn.shared.prepared.is_born(req.txn);
        } else if let Some(at) = early_mkdir_here(txn, req.txn)? {
            early_mkdirs::end(txn, req.txn, &at, false)?;
        }
        return Ok(());
    }
    // Race: a late prepare of this transaction cannot rely on the hold any more.
    if txn.shared.prepared.let_go(req.txn) {
        return Ok(());
    }
    if !req.commit {
        handoff::steps::given_up(txn, req.txn)?;
    }
    let Some(record) = txn.get::<PreparedRecord>(&at)? else { return Ok(()) };
    lock_all(txn, &record)?;
    // Race: another core may have ended the transaction before its keys were locked.
    if txn.get::<PreparedRecord>(&at)?.is_none() {
        return Ok(());
    }
    txn.ends_prepared(true);
    for write in record.writes.iter().filter(|_| req.commit) {
        apply(txn, write)?;
    }
    txn.ends_prepared(false);
    if txn.shared.feed.is_on() && !txn.shared.bugs.has(Bug::ParticipantUnwatched) {
        feed::events::of_participant(txn);
    }
    if !txn.shared.bugs.has(Bug::CommitAppliedTwice) {
        txn.delete(at);
    }
    if req.commit && !record.others.0.is_empty() {
        txn.put(key::ended(req.txn), &EndedRecord::Committed);
        txn.shared.prepared.close(req.txn);
    }
    txn.facts.ended.push(req.txn);
    Ok(())
}

fn apply(txn: &mut Txn<'_>, write: &PeerWrite) -> Result<()> {
    match write {
        PeerWrite::Put((at, value)) => {
            if at.get(2) == Some(&b'R') {
                txn.facts.left.extend(key::parse_ino(at));
            }
            txn.put_stored(Key::from_slice(at), value);
        }
        PeerWrite::Delete(at) => {
            txn.shared.handoffs.has_come(at);
            txn.delete(Key::from_slice(at));
        }
        PeerWrite::Patch((at, patch)) => {
            let stable = patch.stable.as_ref().map(Content::from_record).transpose()?;
            // The record was prepared, so it exists.
            if let Some(mut content) = txn.get_content(at)? {
                content.apply(patch, stable);
                txn.put_content(Key::from_slice(at), content);
            }
        }
    }
    Ok(())
}

/// The outcome of a transaction that this server has initiated.
pub(crate) fn outcome(txn: &Txn<'_>, id: TxnId) -> Result<Outcome> {
    // In this order: a transaction is open until its commit is written.
    if txn.shared.initiated.is_open(id) {
        let ended = txn.shared.bugs.has(Bug::PendingSaidAborted);
        return Ok(if ended { Outcome::Aborted } else { Outcome::Pending });
    }
    let committed = txn.get::<CommittedRecord>(&key::committed(id))?;
    Ok(if committed.is_some() { Outcome::Committed } else { Outcome::Aborted })
}

/// The end here of another server's transaction, as another participant asks for it. A transaction
/// that is not prepared here never will be.
pub(crate) fn ended(txn: &mut Txn<'_>, id: TxnId) -> Result<Outcome> {
    let (prepared, keeps) = (&txn.shared.prepared, !txn.shared.bugs.has(Bug::RefusalNotKept));
    let is_refused = if keeps { prepared.refuse(id) } else { !prepared.is_prepared(id) };
    if !is_refused {
        return Ok(Outcome::Pending);
    }
    // Race: the record is read after the refusal. A commit is stored before its keys are free.
    let at = key::ended(id);
    if txn.get(&at)? == Some(EndedRecord::Committed) {
        return Ok(Outcome::Committed);
    }
    if keeps {
        // Also if the record exists: the answer waits until the writes of this group are stable.
        txn.put(at, &EndedRecord::Refused);
    }
    Ok(Outcome::Aborted)
}

/// The transactions among `txns`, which this server has initiated, that no participant asks for any
/// more.
pub(crate) fn over(txn: &Txn<'_>, txns: &[TxnId]) -> Result<Vec<TxnId>> {
    let mut over = Vec::new();
    for id in txns {
        // In this order, as in [`outcome`].
        if !txn.shared.initiated.is_open(*id)
            && txn.get::<CommittedRecord>(&key::committed(*id))?.is_none()
        {
            over.push(*id);
        }
    }
    Ok(over)
}

#[cfg(test)]
mod tests {
    use base::EntryName;
    use store::Engine as _;
    use tokio::time::{Instant, sleep, timeout};
    use wire::ContentPatch;

    use super::*;
    use crate::{
        coordinator::tests::several::{Three, in_cluster},
        peer::Unanswered,
    };

    const TXN: TxnId = TxnId { server: 1, run: 1, number: 1 };

    /// A request to read a name that the first server has.
    fn read_of_name(hold: Option<Hold>) -> Request {
        let name = EntryName::new(b"name").unwrap();
        let at = key::name(ShardId(0), DirId(7), 8, &name, Part::Main);
        let keys = vec![Bytes::copy_from_slice(&at)];
        Request::PeerRead(PeerRead {
            keys,
            inos: Vec::new(),
            hold,
            confirmed: false,
            session: None,
        })
    }

    /// Asks until an answer comes.
    async fn read(three: &Three, hold: Option<Hold>) -> Reply {
        loop {
            match three.node(1).core.inner.peers.ask(0, &read_of_name(hold)).await {
                Err(Unanswered::Lost) => {}
                told => return told.unwrap(),
            }
        }
    }

    async fn prepare(three: &Three) -> Reply {
        let prepare = Prepare {
            txn: TXN,
            expects: vec![],
            writes: vec![],
            early_mkdir: false,
            held: true,
            others: vec![],
            session: None,
        };
        three.node(1).core.inner.peers.ask(0, &Request::Prepare(prepare)).await.unwrap()
    }

    async fn decide(three: &Three) -> Reply {
        let decide = Request::Decide(Decide { txn: TXN, commit: false });
        three.node(1).core.inner.peers.ask(0, &decide).await.unwrap()
    }

    #[test]
    fn nobody_reads_what_is_held_until_its_transaction_has_ended() {
        in_cluster(async |three| {
            let hold = |number| Some(Hold { txn: TxnId { number, ..TXN }, keys: 1 });
            let free = Reply::Values(vec![None]);
            assert_eq!(read(three, hold(1)).await, free);
            assert_eq!(read(three, hold(2)).await, Reply::Vote(Vote::Busy), "it waits for nobody");
            let began = Instant::now();
            let ends = async {
                sleep(Duration::from_millis(10)).await;
                decide(three).await
            };
            let (seen, ended) = futures::join!(read(three, None), ends);
            assert_eq!((seen, ended), (free.clone(), Reply::Nothing));
            assert!(began.elapsed() >= Duration::from_millis(10));

            // Requests in one group are executed one after the other.
            assert_eq!(read(three, hold(1)).await, free);
            let (_, voted) = futures::join!(decide(three), prepare(three));
            assert_eq!(voted, Reply::Vote(Vote::Busy));

            // An initiator that does not tell the outcome is asked for it.
            assert_eq!(read(three, hold(3)).await, free);
            assert_eq!(read(three, None).await, free);
        });
    }

    #[test]
    fn reads_of_what_is_in_doubt_do_not_pile_up() {
        in_cluster(async |three| {
            let free = Reply::Values(vec![None]);
            assert_eq!(read(three, Some(Hold { txn: TXN, keys: 1 })).await, free);
            let peers = &three.node(1).core.inner.peers;
            let read = async || peers.ask(0, &read_of_name(None)).await;
            // The transaction is under way for long.
            three.node(1).core.inner.shared.initiated.begin(TXN);
            for _ in 0..20 {
                // Like a listing, the reader can do without the record.
                let told = timeout(READ_WITHIN, read()).await;
                assert!(!matches!(told, Ok(Ok(_))), "{told:?}");
                assert!(peers.unanswered(0) <= 2, "of earlier listings: {}", peers.unanswered(0));
            }
            sleep(READ_WITHIN).await;
            assert_eq!(peers.unanswered(0), 0);
            // A waiting client asks again.
            assert_eq!(read().await, Err(Unanswered::Lost));
            let ends = async {
                sleep(Duration::from_millis(10)).await;
                decide(three).await
            };
            assert_eq!(futures::join!(read(), ends), (Ok(free), Reply::Nothing));
        });
    }

    #[test]
    fn a_vote_waits_for_an_early_mkdir_though_not_for_long() {
        in_cluster(async |three| {
            let at = key::content(ShardId(0), DirId(77), 0, Part::Main);
            let at = Bytes::copy_from_slice(&at);
            let record =
                three.engines[0].get(&key::content(ShardId(0), DirId::ROOT, 0, Part::Main));
            let record = record.unwrap().unwrap();
            let prepare = async |number, was, write, early_mkdir| {
                let txn = TxnId { number, ..TXN };
                let expects = vec![Expected { key: at.clone(), was, stands: Stands::Stable }];
                let prepare = Prepare {
                    txn,
                    expects,
                    writes: vec![write],
                    early_mkdir,
                    held: false,
                    others: vec![],
                    session: None,
                };
                three.node(1).core.inner.peers.ask(0, &Request::Prepare(prepare)).await.unwrap()
            };
            let born = PeerWrite::Put((at.clone(), record.clone()));
            assert_eq!(prepare(1, None, born.clone(), true).await, Reply::Vote(Vote::Prepared));
            // Everybody sees the directory, and it is not confirmed.
            three.node(0).core.inner.shared.prepared.is_born(TXN);
            // A server that keeps what it reads may not learn of it: its entry may be lost.
            for (confirmed, told) in [(false, Some(record.clone())), (true, None)] {
                let (keys, inos) = (vec![at.clone()], Vec::new());
                let read = Request::PeerRead(PeerRead {
                    keys,
                    inos,
                    hold: None,
                    confirmed,
                    session: None,
                });
                let read = three.node(1).core.inner.peers.ask(0, &read).await.unwrap();
                assert_eq!(read, Reply::Values(vec![told]));
            }
            let began = Instant::now();
            let voted = prepare(2, Some(record), born, false).await;
            assert_eq!(voted, Reply::Vote(Vote::Busy));
            let took = began.elapsed();
            assert!((Duration::from_millis(100)..Duration::from_millis(150)).contains(&took));
        });
    }

    #[test]
    fn nobody_stands_on_counts_that_another_transaction_changes() {
        in_cluster(async |three| {
            let at = key::content(ShardId(0), DirId::ROOT, 0, Part::Main);
            let key = Bytes::copy_from_slice(&at);
            let was = three.engines[0].get(&at).unwrap();
            let prepare = async |number, expects, writes| {
                let txn = TxnId { number, ..TXN };
                let prepare = Prepare {
                    txn,
                    expects,
                    writes,
                    early_mkdir: false,
                    held: false,
                    others: vec![],
                    session: None,
                };
                three.node(1).core.inner.peers.ask(0, &Request::Prepare(prepare)).await.unwrap()
            };
            let expected = |stands| vec![Expected { key: key.clone(), was: was.clone(), stands }];
            let (stable, mtime, ctime) = (None, None, None);
            let (entries, subdirs) = (1, 0);
            let one = ContentPatch { stable, entries, subdirs, mtime, ctime, exact: false };
            let adds = vec![PeerWrite::Patch((key.clone(), one))];
            let prepared = Reply::Vote(Vote::Prepared);
            assert_eq!(prepare(1, vec![], adds).await, prepared);
            assert_eq!(prepare(2, expected(Stands::Stable), vec![]).await, prepared);
            let whole = prepare(3, expected(Stands::Whole), vec![]).await;
            assert_eq!(whole, Reply::Vote(Vote::Busy));
        });
    }

    #[test]
    fn what_was_to_be_held_and_is_not_any_more_is_not_prepared() {
        in_cluster(async |three| {
            assert_eq!(prepare(three).await, Reply::Vote(Vote::Busy));
            let hold = Some(Hold { txn: TXN, keys: 1 });
            assert_eq!(read(three, hold).await, Reply::Values(vec![None]));
            three.kill(0);
            three.start(0);
            three.settle().await;
            assert_eq!(prepare(three).await, Reply::Vote(Vote::Busy));
            assert_eq!(read(three, hold).await, Reply::Values(vec![None]));
            assert_eq!(prepare(three).await, Reply::Vote(Vote::Prepared));
        });
    }
}
