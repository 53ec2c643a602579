//! Everything that happens around an operation, once: session, limits, stored answer, transaction,
//! counters.

use std::{rc::Rc, sync::Arc};

use base::{Encode as _, FsError, Seq, Time};
use wire::{
    Answer, AskOutcome, AskRoom, Born, CacheEvents, Challenge, HurryBirths, Lock, LockTest, Noted,
    PeerHello, Reply, ReplyHeader, Request, RequestHeader, Retry, Vote,
};

use crate::{
    audit,
    bugs::Bug,
    cluster::{Visit, generation::Met},
    coordinator,
    data::{self, Task},
    delegations::{self, apply, grant},
    error::{Fault, Result},
    feed,
    handoff::take,
    incoming::Incoming,
    lag, moves,
    observe::Verdict,
    ops,
    quota::count::part,
    serve::connection::{Connection, Peer},
    server::{Counters, Durability, Shared},
    session::{Seen, Session, Standing},
    transact::{early_mkdirs, participant},
    txn::{Caller, CommitGroup, Promise, Remote, Txn, Unwritten},
    unheard,
    wait::Wait,
};

/// A refusal with more events is remembered as one that makes the client drop its whole cache.
const EVENTS_KEPT_MAX: usize = 32;

/// How execution went.
pub(crate) enum Outcome {
    /// The answer is in the connection's buffer.
    Answered(Verdict),
    /// The answer comes later, from this task.
    Async(Task),
    /// The request must be executed again when this wait is over.
    Waits(Wait),
    /// The operation needs other servers: this is what it knows of them.
    Elsewhere(Box<Remote>),
    /// Like [`Outcome::Elsewhere`], for a request that opens a session.
    SessionRoot(Box<Remote>),
    /// Another server asks for room below a quota.
    Grant { from: u16, ask: AskRoom },
    /// Another server asks how a transaction ended; the answer must come from a third one, which
    /// the asking server does not reach.
    Relayed(AskOutcome),
}

impl Outcome {
    /// Whether the request waits from now on, while the core goes on with others.
    pub(crate) fn waits(&self) -> bool {
        match self {
            Outcome::Waits(Wait::Apart(_))
            | Outcome::Elsewhere(_)
            | Outcome::SessionRoot(_)
            | Outcome::Grant { .. }
            | Outcome::Relayed(_) => true,
            // A task is not made where it may not wait.
            Outcome::Answered(_) | Outcome::Async(_) | Outcome::Waits(Wait::Now(_)) => false,
        }
    }
}

/// Answers that the client must ask again, as too many requests of its connection wait already.
pub(crate) fn turn_away(incoming: &Incoming) -> Verdict {
    let Incoming { connection, header, request, .. } = incoming;
    let busy = Fault::Retry(Retry::Busy);
    if let Some(session) = connection.session().filter(|_| request.mutates()) {
        remember_refusal(&session, header.seq, &busy);
    }
    turn_away_at_once(incoming)
}

/// Like [`turn_away`], for a request that has not begun: its number may belong to another request
/// that is under way.
pub(crate) fn turn_away_at_once(incoming: &Incoming) -> Verdict {
    let Incoming { connection, header, .. } = incoming;
    let (reply, answer) =
        (ReplyHeader { call: header.call, cache_version: 0 }, Answer::Retry(Retry::Busy));
    connection.reply(reply, &answer);
    Verdict::of(&answer)
}

/// Answers that an id which the request names is not among those of its session's token. The
/// number of the request is free, as where the token does not allow a request.
pub(crate) fn refuse_ids(shared: &Shared, incoming: &Incoming, error: FsError) -> Verdict {
    let cache_version = shared.invalidations.version();
    let answer = Answer::Failed(error);
    let reply = ReplyHeader { call: incoming.header.call, cache_version };
    incoming.connection.reply(reply, &answer);
    Verdict::of(&answer)
}

/// Executes one request as a part of `group`. `way` is what a request that opens a session knows of
/// other servers.
pub(crate) fn execute(
    shared: &Arc<Shared>,
    group: &mut CommitGroup,
    incoming: &Incoming,
    now: Time,
    mut way: Option<Box<Remote>>,
) -> Outcome {
    let Incoming { connection, header, request, .. } = incoming;
    let reply = ReplyHeader { call: header.call, cache_version: shared.invalidations.version() };
    if let Request::Standing(ask) = request {
        let result = ops::observe::standing(shared, ask, now).map(Reply::Standing);
        return finish(shared, incoming, reply, result);
    }
    let is_halted = shared.is_halted() && !moves::is_answered(shared, request);
    if is_halted || shared.may_be_replaced() {
        connection.reply(reply, &Answer::Halted);
        return Outcome::Answered(Verdict::Halted);
    }
    let result = match request {
        other if other.kind().between_servers => {
            return between_servers(shared, group, incoming, reply, now);
        }
        // A client's cache is bound to the version of the invalidation list, which arrives with the
        // first lease.
        Request::Hello(_) if shared.cluster.is_some() && reply.cache_version == 0 => {
            Err(Fault::Retry(Retry::Busy))
        }
        Request::Hello(hello) => {
            match ops::hello::run(shared, group, connection, hello, now, &mut way) {
                Err(Fault::Remote) => return Outcome::SessionRoot(way.unwrap_or_default()),
                done => {
                    audit::note::hello(shared, group, connection, (hello, &done));
                    done
                }
            }
        }
        other => match connection.session() {
            None => Err(Fault::Retry(Retry::NoSession)),
            Some(session) => {
                return in_session(shared, group, incoming, reply, &session, other, now);
            }
        },
    };
    finish(shared, incoming, reply, result)
}

fn in_session(
    shared: &Arc<Shared>,
    group: &mut CommitGroup,
    incoming: &Incoming,
    reply: ReplyHeader,
    session: &Arc<Session>,
    request: &Request,
    now: Time,
) -> Outcome {
    let Incoming { connection, header, .. } = incoming;
    // A request that ends a session waits until no other is inside, and may end its own session.
    if !matches!(request, Request::Bye | Request::Evict(_)) && !group.enter(session) {
        return finish(shared, incoming, reply, Err(Fault::Retry(Retry::NoSession)));
    }
    let standing = match admit(shared, session, header, request, now) {
        Ok(standing) => standing,
        Err(fault) => return finish(shared, incoming, reply, Err(fault)),
    };
    if !outlasts_leases(request) {
        if shared.is_cut_off() {
            return finish(shared, incoming, reply, Err(Fault::Retry(Retry::Away)));
        }
        group.after.serves = true;
    }
    unheard::heard(shared, session, header.unanswered);
    if !request.mutates()
        && let Err(error) = shared.space_guard.admits(request, &header.stand)
    {
        return finish(shared, incoming, reply, Err(error.into()));
    }
    if let Err(fault) = has_locks_of(shared, header, request) {
        return finish(shared, incoming, reply, Err(fault));
    }
    if let Some(future) = data::task(shared, group, session, incoming, reply) {
        return match future {
            Ok(task) => {
                audit::note::begun(shared, group, incoming);
                Outcome::Async(task)
            }
            Err(fault) => finish(shared, incoming, reply, Err(fault)),
        };
    }
    let numbered = request.mutates();
    if numbered {
        match session.begin(header.seq, header.unanswered) {
            Ok(Seen::New) => {}
            Ok(Seen::Echo) if shared.bugs.has(Bug::EchoExecuted) => {}
            Ok(Seen::Answered(answer)) => {
                Counters::add(&shared.counters.duplicates_suppressed);
                unheard::asked(shared, session, header.seq, request);
                connection.reply_encoded(reply, &answer);
                group.after.tells_of_change = true;
                return Outcome::Answered(Verdict::Repeated);
            }
            Ok(Seen::Echo) => {
                return finish(shared, incoming, reply, Err(Fault::Retry(Retry::Busy)));
            }
            Err(spent) => return finish(shared, incoming, reply, Err(spent.into())),
        }
    }
    // Race: directories that this group has moved are not in the list yet, and its writes are seen
    // already.
    let unlisted = !header.stand.is_none() && !group.changes.facts.moved.is_empty();
    let current =
        if unlisted { Err(Unwritten.into()) } else { is_current(shared, header, request) };
    if let Err(fault) = current {
        if numbered {
            remember_refusal(session, header.seq, &fault);
        }
        return finish(shared, incoming, reply, Err(fault));
    }

    if let Request::Apply(several) = request {
        let done = shared.space_guard.admits(request, &header.stand).map_err(Fault::from);
        let done = done
            .and_then(|()| lag::wait::admits(&shared.lag))
            .and_then(|()| is_held(shared, session, header, request))
            .and_then(|()| apply::run(shared, group, incoming, (session, now), several));
        return match done {
            Ok((done, dirs)) => {
                let caller =
                    Caller { cred: &header.cred, session: Some(session), ..Caller::SERVER };
                let txn = Txn::new(shared, group, caller, now).tells_of(dirs);
                answer_change(txn, incoming, reply, session, Reply::Applied(done));
                Outcome::Answered(Verdict::Done)
            }
            Err(fault) => {
                remember_refusal(session, header.seq, &fault);
                finish(shared, incoming, reply, Err(fault))
            }
        };
    }
    let grant_state = incoming.grant_state.get();
    let caller = Caller { cred: &header.cred, session: Some(session), standing, grant_state };
    let mut txn = of_request(Txn::new(shared, group, caller, now), incoming);
    let done = shared.space_guard.admits(request, &header.stand).map_err(Fault::from);
    let done = done.and_then(|()| if numbered { lag::wait::admits(&shared.lag) } else { Ok(()) });
    let done = done.and_then(|()| is_held(shared, session, header, request));
    let done = done.and_then(|()| ops::run(&mut txn, request));
    let done = done.and_then(|reply| txn.unsettled().map(|()| reply));
    match done {
        Ok(_) | Err(Fault::Remote) if txn.is_remote() => {
            let mut remote = txn.take_remote().expect("it is remote");
            remote.complete = done.is_ok() && numbered && !remote.coordinated;
            Outcome::Elsewhere(remote)
        }
        Err(Fault::Retry(Retry::Busy)) if txn.is_torn() => {
            Outcome::Elsewhere(txn.take_remote().expect("it is torn"))
        }
        // The refusal may rest on an assumption that is wrong.
        Err(Fault::Answer(_) | Fault::Retry(_)) if txn.assumes() => {
            let mut remote = txn.take_remote().expect("it presumes");
            remote.unlearn_assumed(&shared.remote_hints);
            remote.forget();
            Outcome::Elsewhere(remote)
        }
        Ok(done) if numbered => {
            answer_change(txn, incoming, reply, session, done);
            Outcome::Answered(Verdict::Done)
        }
        Ok(done)
            if matches!(request, Request::Keys(_) | Request::SignToken(_))
                && !shared.bugs.has(Bug::RingToldEarly) =>
        {
            txn.commit();
            tell_when_stable(group, connection, reply, done)
        }
        Ok(done) => {
            let grant = grant::put_in_force(&mut txn);
            txn.commit();
            let Some(grant) = grant else { return finish(shared, incoming, reply, Ok(done)) };
            connection.reply(reply, &grant::answer(grant, Vec::new(), done));
            Outcome::Answered(Verdict::Done)
        }
        Err(fault) => {
            if numbered {
                remember_refusal(session, header.seq, &fault);
            }
            finish(shared, incoming, reply, Err(fault))
        }
    }
}

/// Has the operation of a request know what is known of the request.
pub(crate) fn of_request<'a>(txn: Txn<'a>, incoming: &Incoming) -> Txn<'a> {
    let Incoming { header, request, .. } = incoming;
    let session = txn.caller.session.map(|session| session.id);
    txn.asked_of(header.shard)
        .waited(incoming.waited_since.get())
        .brings(incoming.brought.get())
        .keeps_held(session.filter(|_| delegations::keeps_held(request)))
        .stands_on(header.stand.held)
}

/// Refuses a request that stands on a delegation which has ended.
pub(crate) fn is_held(
    shared: &Shared,
    session: &Session,
    header: &RequestHeader,
    request: &Request,
) -> Result<()> {
    let Some(held) = header.stand.held else { return Ok(()) };
    let Some(dir) = held.dir else {
        let is_wish = held.at.is_none() && held.ino.is_none();
        return if is_wish { Ok(()) } else { Err(FsError::Invalid.into()) };
    };
    // A request that stands on a delegation is about that directory.
    if request.kind().about.is_none_or(|about| about.id != dir) {
        return Err(FsError::Invalid.into());
    }
    if shared.delegations.holder(dir) == Some(session.id) || shared.bugs.has(Bug::LateChangeTaken) {
        return Ok(());
    }
    Err(Fault::Retry(Retry::NotHeld))
}

/// Answers a change, and commits it with its answer. Facts that a mount notes are sent once, and
/// not stored: they are old when an answer is repeated.
pub(crate) fn answer_change(
    mut txn: Txn<'_>,
    incoming: &Incoming,
    reply: ReplyHeader,
    session: &Arc<Session>,
    done: Reply,
) {
    let Incoming { connection, header, request, .. } = incoming;
    if txn.shared.feed.is_on() {
        feed::events::of_request(&mut txn, request);
    }
    audit::note::change(&mut txn, incoming, &done);
    let (mut stored, dirs) = (txn.take_scratch(), txn.take_noted());
    let answer = Answer::Done(done);
    answer.encode(&mut stored);
    let grant = grant::put_in_force(&mut txn);
    match answer {
        Answer::Done(done) if let Some(grant) = grant => {
            connection.reply(reply, &grant::answer(grant, dirs, done));
        }
        Answer::Done(done) if !dirs.is_empty() => {
            connection.reply(reply, &Answer::Noted(Noted { dirs, reply: done }));
        }
        _ => connection.reply_encoded(reply, &stored),
    }
    txn.commit_with_answer(session, header.seq, stored);
}

/// Notes how a numbered request ended that had no effect.
///
/// An outcome that ends the number is remembered, though not stored: the client goes on with
/// another number, here or elsewhere, and no repetition of this one may succeed where it failed.
pub(crate) fn remember_refusal(session: &Session, seq: Seq, fault: &Fault) {
    let last = match fault {
        Fault::Answer(error) => Some(Answer::Failed(*error)),
        Fault::Retry(
            retry @ (Retry::StaleCache(_)
            | Retry::StaleDir
            | Retry::Coordinate
            | Retry::AtBirth(_)
            | Retry::StaleLayout(_)
            | Retry::NotHeld),
        ) => Some(Answer::Retry(retry.clone())),
        Fault::Retry(Retry::NoSession | Retry::Busy | Retry::Away | Retry::Moved(_))
        | Fault::Refused(_)
        | Fault::Wait(_)
        | Fault::Remote
        | Fault::Halt(_) => None,
    };
    match last {
        // An answer is kept for each number that a client may use: a long list would be kept
        // thousands of times.
        Some(Answer::Retry(Retry::StaleCache(events))) if events.dirs.len() > EVENTS_KEPT_MAX => {
            let all = CacheEvents { reset: true, dirs: Vec::new(), ..events };
            session.answered(seq, Answer::Retry(Retry::StaleCache(all)).to_vec().into());
        }
        Some(answer) => session.answered(seq, answer.to_vec().into()),
        None => session.not_executed(seq),
    }
}

/// Executes a request of another server.
fn between_servers(
    shared: &Arc<Shared>,
    group: &mut CommitGroup,
    incoming: &Incoming,
    reply: ReplyHeader,
    now: Time,
) -> Outcome {
    let Incoming { connection, request, .. } = incoming;
    if let Request::PeerHello(hello) = request {
        let result = greet(shared, connection, hello);
        return finish(shared, incoming, reply, result);
    }
    if let Err(fault) = is_believed(shared, connection, request) {
        return finish(shared, incoming, reply, Err(fault));
    }
    group.after.serves_servers = true;
    let mut txn = Txn::new(shared, group, Caller::SERVER, now);
    let done = match request {
        Request::Prepare(prepare) => {
            txn = txn.part_of(prepare.txn).keeps_held(prepare.session);
            participant::prepare(&mut txn, prepare).map(Reply::Vote)
        }
        Request::Decide(decide) => {
            txn = txn.part_of(decide.txn);
            participant::decide(&mut txn, decide).map(|()| Reply::Nothing)
        }
        Request::PeerRead(read) => {
            txn = txn.keeps_held(read.session);
            if let Some(hold) = read.hold {
                txn = txn.part_of(hold.txn);
            }
            let values = participant::read(&mut txn, read);
            drop(txn);
            return match (shared.options.durability, values) {
                // The other server may tell a client these values.
                (Durability::Strict, Ok(done @ Reply::Values(_))) => {
                    tell_when_stable(group, connection, reply, done)
                }
                (_, values) => finish(shared, incoming, reply, values),
            };
        }
        Request::Heartbeat(beat) => {
            let from = connection.run_of_peer().expect("it was looked at");
            let from = (from.server, from.run);
            drop(txn);
            return match coordinator::heartbeat(shared, from, beat) {
                // The other server acts on these for good, and stores them.
                Ok(lease)
                    if lease.settings.is_some()
                        || lease.keys.is_some()
                        || lease.roots.is_some() =>
                {
                    tell_when_stable(group, connection, reply, Reply::Lease(lease))
                }
                lease => finish(shared, incoming, reply, lease.map(Reply::Lease)),
            };
        }
        Request::Announce(events) => {
            let from = connection.peer().expect("it was looked at");
            drop(txn);
            if let Some(cluster) = shared.cluster.as_ref().filter(|_| events.dirs.is_empty()) {
                cluster.asks.notify_one();
            }
            let taken = coordinator::take_in(shared, from, events).map(|()| Reply::Nothing);
            if taken.is_err() || !shared.gate.is_shared() {
                return finish(shared, incoming, reply, taken);
            }
            let (shared, connection) = (Arc::clone(shared), Rc::clone(connection));
            let future = Box::pin(async move {
                shared.settle_events().await;
                connection.reply_now(reply, &Answer::Done(Reply::Nothing));
            });
            return Outcome::Async(Task { future, after_write: false });
        }
        Request::AskOutcome(ask)
            if shared.cluster.as_ref().is_some_and(|cluster| cluster.me != ask.of) =>
        {
            return Outcome::Relayed(*ask);
        }
        // A commit is told when it is stable, and so is a refusal. Only the initiator presumes an
        // abort.
        Request::AskOutcome(AskOutcome { txn: id, of }) if id.server == *of => {
            participant::outcome(&txn, *id).map(Reply::Outcome)
        }
        Request::AskOutcome(ask) => participant::ended(&mut txn, ask.txn).map(Reply::Outcome),
        Request::AskOver(ask) => participant::over(&txn, &ask.txns).map(Reply::Over),
        Request::Born(Born { txns, confirmed: false }) => {
            txns.iter().for_each(|early_mkdir| shared.prepared.is_born(*early_mkdir));
            Ok(Reply::Nothing)
        }
        Request::Born(Born { txns, confirmed: true }) => {
            let from = connection.peer().expect("it was looked at");
            participant::confirm(&mut txn, from, txns).map(|()| Reply::Nothing)
        }
        Request::AskBirths => {
            let from = connection.peer().expect("it was looked at");
            Ok(Reply::Births(shared.early_mkdirs.at(from)))
        }
        Request::HurryBirths(HurryBirths { txns }) => {
            shared.early_mkdirs.hurry();
            Ok(Reply::Born(shared.early_mkdirs.born_of(txns)))
        }
        // More births of before this start may become known.
        Request::SettleBirths if shared.early_mkdirs.are_unheard() => {
            Err(Fault::Retry(Retry::Busy))
        }
        Request::SettleBirths => {
            drop(txn);
            let (shared, connection) = (Arc::clone(shared), Rc::clone(connection));
            let future = Box::pin(async move {
                shared.prepared.early_mkdirs_over().await;
                connection.reply_now(reply, &Answer::Done(Reply::Nothing));
            });
            return Outcome::Async(Task { future, after_write: false });
        }
        Request::Count(count) => part::run(&mut txn, count).map(Reply::Counted),
        Request::GiveRoom(give) => Ok(Reply::Gave(shared.quotas.give(give, shared.bugs))),
        Request::AskRoom(ask) => {
            let from = connection.peer().expect("it was looked at");
            return Outcome::Grant { from, ask: *ask };
        }
        Request::HandoffBegin(begin) => take::begin(&mut txn, begin).map(Reply::Taken),
        Request::HandoffPut(put) => take::put(&mut txn, put).map(Reply::Taken),
        Request::LayoutLearnt(learnt) => take::learn(&mut txn, learnt).map(Reply::Layout),
        Request::ShardPull(pull) => {
            drop(txn);
            let page = moves::pull(shared, pull).map(Reply::ShardPage);
            return finish(shared, incoming, reply, page);
        }
        Request::ShardBlock(block) => {
            drop(txn);
            let (shared, connection, block) = (Arc::clone(shared), Rc::clone(connection), *block);
            let future = Box::pin(async move {
                let data = moves::block(&shared, &block).await.map(Reply::Data);
                let answer = data.map_or_else(|fault| fault.answer(&shared), Answer::Done);
                connection.reply_now(reply, &answer);
            });
            return Outcome::Async(Task { future, after_write: false });
        }
        _ => Err(Fault::Refused("this server does not answer that".into())),
    };
    let done = done.and_then(|done| txn.unsettled().map(|()| done));
    let waits =
        matches!(request, Request::Prepare(it) if early_mkdirs::stands_on_a_removal(&txn, it));
    match done {
        // The other server relies on this answer only in later requests, whose answers are
        // promises.
        Ok(done) if !waits && !is_promise(request, &done) => {
            txn.commit();
            finish(shared, incoming, reply, Ok(done))
        }
        Ok(done) => {
            txn.commit();
            let (connection, answer) = (connection.clone(), Answer::Done(done));
            let promise = Promise { connection, reply, answer };
            match request {
                // No request waits for this answer.
                Request::Decide(_) => group.after.acknowledgements.push(promise),
                _ => group.after.promises.push(promise),
            }
            Outcome::Answered(Verdict::Done)
        }
        Err(fault) => finish(shared, incoming, reply, Err(fault)),
    }
}

/// Whether a connection is that of a server, whose newest process it is as far as is known here.
fn is_believed(shared: &Shared, connection: &Connection, request: &Request) -> Result<()> {
    let (Some(cluster), Some(peer)) = (&shared.cluster, connection.run_of_peer()) else {
        return Err(Fault::Refused("only servers of the cluster may ask this".into()));
    };
    // The coordinator judges those that ask for a lease.
    if matches!(request, Request::Heartbeat(_)) {
        return Ok(());
    }
    if peer.generation == 0 && !shared.bugs.has(Bug::OlderGenerationTaken) {
        return Err(Fault::Retry(Retry::Busy));
    }
    if cluster.own.outdates(peer.server, peer.generation, shared.bugs) {
        // The process connects again, and hears of the newer one.
        connection.close();
        return Err(Fault::Refused("a newer process of this server has begun".into()));
    }
    Ok(())
}

/// Answers when everything written before is stable.
fn tell_when_stable(
    group: &mut CommitGroup,
    connection: &Rc<Connection>,
    reply: ReplyHeader,
    done: Reply,
) -> Outcome {
    let (connection, answer) = (connection.clone(), Answer::Done(done));
    group.after.looks.push(Promise { connection, reply, answer });
    Outcome::Answered(Verdict::Done)
}

/// Whether the answer to another server's request must wait until what it says is stable.
fn is_promise(request: &Request, done: &Reply) -> bool {
    match request {
        // The initiator of such a vote reads anew.
        _ if matches!(done, Reply::Vote(Vote::Busy | Vote::Changed)) => false,
        Request::HandoffBegin(_)
        | Request::AskBirths
        | Request::HurryBirths(_)
        | Request::AskOver(_) => false,
        Request::HandoffPut(put) => put.stable,
        Request::Born(born) => born.confirmed,
        Request::Prepare(prepare) => !prepare.early_mkdir,
        _ => true,
    }
}

/// Accepts another server on this connection, once it has proven that it belongs to the cluster.
fn greet(shared: &Shared, connection: &Connection, hello: &PeerHello) -> Result<Reply> {
    let stranger = || Fault::Refused("no server of this cluster".into());
    let cluster = shared.cluster.as_ref().ok_or_else(stranger)?;
    if hello.proof.is_empty() {
        let number = cluster.next_challenge(shared.random.next());
        connection.challenge(number);
        let (generation, knows) = (cluster.own.generation(), cluster.own.known(hello.from));
        return Ok(Reply::Challenge(Challenge { number, generation, knows }));
    }
    let (uuid, to) = (shared.config.uuid, cluster.me);
    let challenge = connection.take_challenge().ok_or_else(stranger)?;
    if !(Visit { uuid, to, challenge, binding: connection.binding() })
        .is_proven(&shared.config.signing_key, hello)
    {
        return Err(stranger());
    }
    let met = cluster.own.meets(hello, shared.bugs);
    // A server that has no generation yet lets nobody in, and must know where to ask for one.
    if hello.from == 0 && matches!(met, Met::LetIn | Met::Later) {
        cluster.is_called_from(&hello.address);
    }
    match met {
        Met::LetIn => {
            connection.is_of_peer(Peer {
                server: hello.from,
                run: hello.run,
                generation: hello.generation,
            });
            Ok(Reply::Nothing)
        }
        Met::Later => Err(Fault::Retry(Retry::Busy)),
        Met::Outdated(reason) => Err(Fault::Refused(reason)),
        Met::Ends(problem) => Err(Fault::Halt(problem)),
    }
}

/// Whether the request may be executed at all.
pub(crate) fn admit(
    shared: &Shared,
    session: &Session,
    header: &RequestHeader,
    request: &Request,
    now: Time,
) -> Result<Standing> {
    let kind = request.kind();
    let acts_as = request.acts().then_some(&header.cred);
    let standing = session.admit(acts_as, kind.mutates, now, &shared.keys)?;
    if kind.mutates && header.seq == Seq(0) {
        return Err(Fault::Refused("a change without a request number".into()));
    }
    if kind.administrative && !session.administers() {
        return Err(FsError::NotPermitted.into());
    }
    Ok(standing)
}

/// Whether the client's knowledge, on which the request was built, still holds. The stored answers
/// are asked first: a request that was executed gets its result, however old its knowledge is by
/// now.
pub(crate) fn is_current(shared: &Shared, header: &RequestHeader, request: &Request) -> Result<()> {
    is_ours(shared, header, request)?;
    if shared.cluster.is_some() && header.stand.version > shared.invalidations.version() {
        // Another server has told the client of an event that this one has not heard yet.
        return Err(Fault::Retry(Retry::Busy));
    }
    if request.acts()
        && !header.stand.is_none()
        && let Some(events) = shared.invalidations.outdates(&header.stand)
    {
        return Err(Fault::Retry(Retry::StaleCache(events)));
    }
    Ok(())
}

/// Whether a request is answered by a server that is cut off for good, as far as that knows: those
/// that keep a session, and give back what it has.
fn outlasts_leases(request: &Request) -> bool {
    matches!(
        request,
        Request::Ping
            | Request::Bye
            | Request::Release(_)
            | Request::Claim(_)
            | Request::LockClaim(_)
            | Request::LockCancel(_)
            | Request::Cluster
            | Request::Status
    )
}

/// Whether this server has the locks that a request asks for: another one has them since the shard
/// of the file has moved there.
fn has_locks_of(shared: &Shared, header: &RequestHeader, request: &Request) -> Result<()> {
    let ino = match request {
        // A lock that is given back is not claimed elsewhere.
        Request::Lock(Lock { ino, mode: Some(_), .. })
        | Request::LockTest(LockTest { ino, .. }) => ino,
        _ => return Ok(()),
    };
    if shared.owns(ino.shard()) {
        return Ok(());
    }
    let map = shared.map();
    // Else this server has not heard of the newest map yet.
    let is_newest = header.epoch <= map.epoch;
    Err(Fault::Retry(if is_newest { Retry::Moved(map) } else { Retry::Busy }))
}

/// Whether this is the right server for the request, and may serve.
pub(crate) fn is_ours(shared: &Shared, header: &RequestHeader, request: &Request) -> Result<()> {
    if !request.acts() {
        return Ok(());
    }
    if let Some(cluster) = &shared.cluster {
        let map = cluster.map();
        let serves = cluster.has_lease()
            || header.stand.is_none() && cluster.serves_alone()
            || shared.bugs.has(Bug::LeaseIgnored);
        if !serves {
            return Err(Fault::Retry(Retry::Away));
        }
        if header.epoch > map.epoch {
            return Err(Fault::Retry(Retry::Busy));
        }
        if header.epoch < map.epoch || !cluster.owns(header.shard) {
            return Err(Fault::Retry(Retry::Moved((*map).clone())));
        }
    } else if header.epoch < shared.alone.epoch {
        return Err(Fault::Retry(Retry::Moved(shared.map())));
    }
    Ok(())
}

/// Answers a request, unless it must be run again.
fn finish(
    shared: &Shared,
    incoming: &Incoming,
    reply: ReplyHeader,
    result: Result<Reply>,
) -> Outcome {
    let answer = match result {
        Ok(done) => Answer::Done(done),
        Err(Fault::Wait(wait)) => return Outcome::Waits(wait),
        Err(fault) => fault.answer(shared),
    };
    let verdict = Verdict::of(&answer);
    incoming.connection.reply(reply, &answer);
    Outcome::Answered(verdict)
}
