//! One run of an operation that needs other servers, within a commit group.
//!
//! [`run`](super::run) asks for runs, as many as it takes: without effect until the operation lacks
//! nothing, and once for good. Each result goes back to the task that asked; nothing here waits for
//! another server.
//!
//! Always true: a run that is for good commits what was prepared elsewhere, with its answer, or has
//! no effect.

use std::{rc::Rc, sync::Arc};

use base::{DirId, FsError, Time};
use tokio::sync::oneshot;
use wire::{Expected, Reply, ReplyHeader, Retry, TxnId};

use super::{CommittedRecord, early_mkdirs};
use crate::{
    bugs::Bug,
    driver,
    error::{self, Fault},
    incoming::Incoming,
    ops,
    record::{Key, key},
    serve::connection::Connection,
    server::Shared,
    session::Session,
    step::Step,
    txn::{Caller, CommitGroup, Remote, Txn, remote::Plan},
    wait::{Wait, WaitApart, WaitNow},
};

/// One run of an operation, for a core to execute.
pub(crate) struct Phase {
    pub(super) job: Job,
    pub(super) remote: Option<Box<Remote>>,
    /// The prepared transaction to commit; `None` for a run without effect.
    pub(super) commit: Option<Commit>,
    pub(crate) done: oneshot::Sender<Ended>,
}

/// The operation that a phase runs.
#[derive(Clone)]
pub(super) enum Job {
    /// A client's request.
    Request(Rc<Asked>),
    /// A step of this server itself.
    Step(Step),
}

/// A client's request, with the session for which it began.
pub(super) struct Asked {
    pub(super) incoming: Incoming,
    pub(super) session: Arc<Session>,
    pub(super) reply: ReplyHeader,
}

/// The plan that must have been prepared for a run to commit.
#[derive(Clone)]
pub(super) struct Commit {
    pub(super) txn: TxnId,
    pub(super) plan: Rc<Plan>,
    /// Whether making a directory is all that the transaction does elsewhere.
    pub(super) is_early_mkdir: bool,
    /// The directories that were announced to move, and (`chain`) those that stay meanwhile.
    pub(super) moves: Vec<DirId>,
    pub(super) chain: Vec<DirId>,
}

/// The end of a run.
pub(crate) enum Ended {
    /// The run would give this answer, and write these keys here.
    Ran(Box<Remote>, Box<Reply>, Vec<Key>),
    /// The run lacks records of other servers.
    Lacks(Box<Remote>),
    /// The run must wait for this, and be repeated with the current records of other servers.
    Waits(Box<Remote>, Box<dyn WaitApart>),
    /// The records that the run knows do not fit together.
    Torn(Box<Remote>),
    /// The run would be refused with this error, if the records that it has read of other servers
    /// are of one moment.
    Refused(Box<Remote>, FsError),
    /// The run does not want just what was prepared.
    Differs(Box<Remote>),
    /// The run is in the group, with its answer.
    Committed,
    /// The run has failed, with this fault as its answer.
    Failed(Fault),
}

impl Phase {
    /// Whether the run is to have an effect.
    pub(crate) fn commits(&self) -> bool {
        self.commit.is_some()
    }

    /// The connection that is answered, if a client has asked.
    pub(crate) fn connection(&self) -> Option<&Rc<Connection>> {
        match &self.job {
            Job::Request(asked) => Some(&asked.incoming.connection),
            Job::Step(_) => None,
        }
    }

    /// Executes the run. It must be executed again after the wait that is an error.
    pub(crate) fn execute(
        &mut self,
        shared: &Arc<Shared>,
        group: &mut CommitGroup,
        now: Time,
    ) -> Result<Ended, Box<dyn WaitNow>> {
        let remote = self.remote.take().expect("it is given back before a run is repeated");
        match self.job.clone() {
            Job::Request(asked) => self.execute_request(&asked, remote, shared, group, now),
            Job::Step(step) => {
                let mut txn = self.begin(Caller::SERVER, remote, shared, group, now);
                let done = step.execute(&mut txn).map(|()| Reply::Nothing);
                self.end(txn, done, None)
            }
        }
    }

    fn execute_request(
        &mut self,
        asked: &Asked,
        remote: Box<Remote>,
        shared: &Arc<Shared>,
        group: &mut CommitGroup,
        now: Time,
    ) -> Result<Ended, Box<dyn WaitNow>> {
        let Asked { incoming, session, .. } = asked;
        // The run belongs to the session for which it began, whichever session has the connection
        // by now.
        if !incoming.connection.is_of(Some(session)) || !group.enter(session) {
            return Ok(Ended::Failed(Fault::Retry(Retry::NoSession)));
        }
        let (header, request) = (&incoming.header, &incoming.request);
        // The announcement of its own move is news to everybody but this request.
        let holds = || match &self.commit {
            Some(commit) if remote.coordinated && !commit.moves.is_empty() => {
                driver::is_ours(shared, header, request)
            }
            Some(_) | None => driver::is_current(shared, header, request),
        };
        let has_room = || shared.space_guard.admits(request, &header.stand).map_err(Fault::from);
        let standing = driver::admit(shared, session, header, request, now)
            .and_then(|standing| holds().map(|()| standing))
            .and_then(|standing| has_room().map(|()| standing))
            .and_then(|standing| {
                driver::is_held(shared, session, header, request).map(|()| standing)
            });
        let standing = match standing {
            Ok(standing) => standing,
            Err(fault) => return Ok(Ended::Failed(fault)),
        };
        let grant_state = incoming.grant_state.get();
        let caller = Caller { cred: &header.cred, session: Some(session), standing, grant_state };
        let mut txn = driver::of_request(self.begin(caller, remote, shared, group, now), incoming);
        let done = ops::run(&mut txn, request);
        self.end(txn, done, Some(asked))
    }

    fn begin<'a>(
        &self,
        caller: Caller<'a>,
        mut remote: Box<Remote>,
        shared: &'a Shared,
        group: &'a mut CommitGroup,
        now: Time,
    ) -> Txn<'a> {
        remote.begin();
        let own = self.commit.as_ref().map(|commit| commit.txn);
        Txn::new(shared, group, caller, now).knowing(remote, own)
    }

    fn end(
        &mut self,
        mut txn: Txn<'_>,
        done: error::Result<Reply>,
        asked: Option<&Asked>,
    ) -> Result<Ended, Box<dyn WaitNow>> {
        let shared = txn.shared;
        let done = done.and_then(|reply| txn.unsettled().map(|()| reply));
        let mut remote = txn.take_remote().expect("it was given one");
        match done {
            Err(Fault::Remote) => Ok(Ended::Lacks(remote)),
            Err(Fault::Wait(Wait::Apart(wait))) if wait.changes_records() => {
                Ok(Ended::Waits(remote, wait))
            }
            Err(Fault::Retry(Retry::Busy)) if remote.is_torn() => Ok(Ended::Torn(remote)),
            Err(Fault::Wait(Wait::Now(wait))) => {
                self.remote = Some(remote);
                Err(wait)
            }
            Err(Fault::Answer(error)) if remote.has_seen() => match &self.commit {
                None => Ok(Ended::Refused(remote, error)),
                Some(commit) => Ok(refuse_with(shared, remote, commit, error)),
            },
            // The fault may rest on an assumption that is wrong.
            Err(Fault::Retry(_)) if self.commit.is_none() && remote.assumed().is_some() => {
                remote.unlearn_assumed(&shared.remote_hints);
                remote.forget();
                Ok(Ended::Lacks(remote))
            }
            Err(fault) => Ok(Ended::Failed(fault)),
            Ok(reply) => match &self.commit {
                None => {
                    let written = txn.written();
                    Ok(Ended::Ran(remote, Box::new(reply), written))
                }
                Some(commit) => Ok(commit_with(txn, remote, commit, asked, reply)),
            },
        }
    }
}

/// Refuses for good if all records that the run has seen of other servers were prepared, and so are
/// of one moment. Otherwise the plan differs.
fn refuse_with(shared: &Shared, mut remote: Box<Remote>, commit: &Commit, error: FsError) -> Ended {
    let cluster = shared.cluster.as_ref().expect("it has other servers");
    remote.refuses();
    let stands = remote.plan(cluster, shared.bugs).map(|plan| covers(&commit.plan, &plan));
    match stands {
        Ok(true) => Ended::Failed(error.into()),
        Ok(false) => Ended::Differs(remote),
        Err(fault) => Ended::Failed(fault),
    }
}

/// Whether `prepared` has all that `plan` expects of other servers.
fn covers(prepared: &Plan, plan: &Plan) -> bool {
    plan.iter().all(|(server, part)| {
        let known = prepared.get(server).map_or(&[][..], |part| &part.expects);
        part.expects.iter().all(|expected| {
            let same = |known: &Expected| known.key == expected.key && known.was == expected.was;
            known.iter().any(same)
        })
    })
}

fn commit_with(
    mut txn: Txn<'_>,
    remote: Box<Remote>,
    commit: &Commit,
    asked: Option<&Asked>,
    done: Reply,
) -> Ended {
    let cluster = txn.shared.cluster.as_ref().expect("it has other servers");
    // Only announced directories may move, and only while the announced others stay where they are.
    let same_moves = remote.moves == commit.moves && remote.chain == commit.chain;
    let plan = match remote.plan(cluster, txn.shared.bugs) {
        Ok(plan) => plan,
        Err(fault) => return Ended::Failed(fault),
    };
    if !same_moves || plan != *commit.plan {
        return Ended::Differs(remote);
    }
    let born = match commit.is_early_mkdir {
        true => match early_mkdirs::commit(&txn, commit.txn) {
            None => return Ended::Differs(remote),
            born => born,
        },
        false => None,
    };
    if !commit.plan.is_empty() && !txn.shared.bugs.has(Bug::CommitNotNoted) {
        let participants = commit.plan.keys().copied().collect();
        txn.put(key::committed(commit.txn), &CommittedRecord { participants, born });
    }
    let Some(Asked { incoming, session, reply }) = asked else {
        txn.commit();
        return Ended::Committed;
    };
    driver::answer_change(txn, incoming, *reply, session, done);
    Ended::Committed
}
