//! Messages: how an end answers each, and the work that both ends do in the background.

use base::Encode as _;
use wire::{Tally, TxnId};

use super::{
    super::{
        super::{
            Change, HandoffRecord,
            source::{Action, Event},
            target::{Taking, Target, abandoned, told},
        },
        disk::{Promise, Share, pos_in, weigh},
    },
    Batch, Check, Flaw, Key, Message, Run,
};

impl Run {
    /// One step of the background: tells a commit, sweeps, asks for outcomes.
    pub(super) fn background(&mut self) -> Check {
        let (source, target) = (self.source(), self.target());
        if let Some(txn) = self.ends[source].disk.get::<TxnId>(b"X") {
            // A commit must be stable before the target is told.
            if !self.has(Flaw::ToldEarly) {
                self.ends[source].disk.sync();
            }
            self.mail[target].push_back(Message::Decide(txn, true));
        }
        for at in [source, target] {
            self.sweep(at);
        }
        let patience = self.has(Flaw::PromiseTimesOut);
        let end = &mut self.ends[target];
        let asked = end.promise().map(|promise| promise.txn);
        let received = || match end.handoff() {
            Some(HandoffRecord::Receiving(what)) => Some(what.txn),
            Some(HandoffRecord::Given(_) | HandoffRecord::Sweeping(_)) | None => None,
        };
        if let Some(txn) = asked.or_else(received) {
            self.patience += 1;
            if patience && asked.is_some() && self.patience > 12 {
                return self.decide(txn, false);
            }
            if self.patience.is_multiple_of(4) {
                self.mail[source].push_back(Message::Ask(txn));
            }
        } else {
            self.patience = 0;
        }
        Ok(())
    }

    fn sweep(&mut self, at: usize) {
        let careless = self.has(Flaw::OwnedSwept);
        let end = &mut self.ends[at];
        match end.handoff() {
            // The master's part, which is told and answers, is not modelled.
            Some(record @ HandoffRecord::Given(_)) => {
                let next = told(&record).expect("it was given");
                end.disk.write(vec![(b"H".to_vec(), Some(next.to_vec().into()))]);
            }
            Some(HandoffRecord::Sweeping(_)) if end.promise().is_none() => {
                let stray = |key: &Key| careless || !end.owns(pos_in(key));
                let some = end.disk.names().filter(|(key, _)| stray(key)).take(5);
                let gone: Batch = some.map(|(key, _)| (key.clone(), None)).collect();
                let done = gone.is_empty();
                end.disk.write(gone);
                if done {
                    end.disk.write(vec![(b"H".to_vec(), None)]);
                }
            }
            Some(HandoffRecord::Sweeping(_) | HandoffRecord::Receiving(_)) | None => {}
        }
    }

    pub(super) fn deliver(&mut self, to: usize) -> Check {
        let Some(message) = self.mail[to].pop_front() else { return Ok(()) };
        let from = 1 - to;
        match message {
            Message::Begin(call, what) => {
                let end = &mut self.ends[to];
                let free = end.promise().is_none();
                let comes = |key: &Key| what.moving.contains(pos_in(key));
                let empty = !end.disk.names().any(|(key, _)| comes(key));
                let received = end.receiving.as_ref();
                let begun = Target::begin(what, end.handoff().as_ref(), received, empty);
                let event = match begun.filter(|_| free) {
                    Some(target) => {
                        let record = target.record().to_vec().into();
                        end.disk.write(vec![(b"H".to_vec(), Some(record))]);
                        end.receiving = Some(target);
                        Event::Taken(Tally::default())
                    }
                    None => Event::Refused,
                };
                self.mail[from].push_back(Message::Answer(call, what.txn, event));
            }
            Message::Put(call, txn, number, changes, stable) => {
                let event = self.take(to, txn, number, changes, stable);
                self.mail[from].push_back(Message::Answer(call, txn, event));
            }
            Message::Prepare(promise) => {
                let vote = self.prepare(to, &promise);
                self.mail[from].push_back(Message::Vote(promise.txn, vote));
            }
            Message::Decide(txn, commit) => {
                self.decide(txn, commit)?;
                self.ends[to].disk.sync();
                if commit {
                    self.mail[from].push_back(Message::Known(txn));
                }
            }
            Message::Ask(txn) => {
                let end = &self.ends[to];
                let outcome = match end.open.contains(&txn) {
                    true => None,
                    false => Some(end.disk.get::<TxnId>(b"X") == Some(txn)),
                };
                if outcome == Some(true) && !self.has(Flaw::ToldEarly) {
                    self.ends[to].disk.sync();
                }
                self.mail[from].push_back(Message::Outcome(txn, outcome));
            }
            Message::Answer(call, txn, event) => {
                let giving = self.ends[to].giving.as_ref();
                let asked = giving.is_some_and(|giving| {
                    (giving.txn, giving.calls) == (txn, call) && giving.waits.is_some()
                });
                let answers = giving.is_some_and(|giving| match giving.action {
                    Action::Begin | Action::Put { .. } => true,
                    Action::Watch
                    | Action::Copy { .. }
                    | Action::Collect { .. }
                    | Action::Freeze
                    | Action::Switch(_)
                    | Action::Thaw
                    | Action::End(_) => false,
                });
                if asked && answers {
                    return self.happened(event);
                }
            }
            Message::Vote(txn, vote) => {
                let giving = self.ends[to].giving.as_ref();
                let asked =
                    giving.is_some_and(|giving| giving.txn == txn && giving.after.is_some());
                if asked && giving.is_some_and(|giving| giving.waits.is_some()) {
                    return self.switched(vote);
                }
            }
            Message::Known(txn) => {
                let end = &mut self.ends[to];
                if end.disk.get::<TxnId>(b"X") == Some(txn) {
                    end.disk.write(vec![(b"X".to_vec(), None)]);
                }
            }
            Message::Outcome(txn, outcome) => {
                if let Some(commit) = outcome {
                    self.decide(txn, commit)?;
                }
            }
        }
        Ok(())
    }

    fn take(
        &mut self,
        to: usize,
        txn: TxnId,
        number: u64,
        changes: Vec<Change>,
        stable: bool,
    ) -> Event {
        let (echoes, careless) = (self.has(Flaw::EchoTaken), self.has(Flaw::LossNotNoticed));
        let end = &mut self.ends[to];
        let here = matches!(end.handoff(), Some(HandoffRecord::Receiving(what)) if what.txn == txn);
        if careless && end.receiving.is_none() {
            // With this flaw, a target that was restarted goes on where the source is.
            let write = changes.into_iter().map(|(key, value)| (key.into(), value));
            end.disk.write(write.collect());
            return Event::Taken(Tally { entries: end.disk.names().count() as u64, subdirs: 0 });
        }
        if !here || end.promise().is_some() {
            return Event::Refused;
        }
        let Some(target) = end.receiving.as_mut() else { return Event::Refused };
        let disk = &end.disk.now;
        let new = target.are_new(&changes);
        let was = |key: &[u8]| disk.get(key).filter(|_| !new).cloned();
        let tally = match target.put(number, &changes, was, weigh) {
            Taking::Store(tally) => tally,
            Taking::Again(tally) if echoes => tally,
            Taking::Again(tally) => return Event::Taken(tally),
            Taking::Refuse => return Event::Refused,
        };
        end.disk.write(changes.into_iter().map(|(key, value)| (key.into(), value)).collect());
        if stable {
            end.disk.sync();
        }
        Event::Taken(tally)
    }

    /// Votes on a switch. The record and the layout at the target must be those that the source has
    /// begun with.
    fn prepare(&mut self, to: usize, promise: &Promise) -> bool {
        let (unstable, careless) =
            (self.has(Flaw::PromiseNotStable), self.has(Flaw::LossNotNoticed));
        let end = &mut self.ends[to];
        if end.promise().is_some_and(|held| held == *promise) {
            return true;
        }
        let here = matches!(end.handoff(), Some(HandoffRecord::Receiving(what)) if what.txn == promise.txn);
        let share = end.share();
        let same = share.is_none_or(|share| {
            let mut joined = share.layout.clone();
            !joined.learn(&promise.layout)
                || share.layout.after(self.transfer).is_some_and(|mut after| {
                    after.learn(&promise.layout);
                    after == promise.layout
                })
        });
        if end.promise().is_some() || !(here || careless) || !same {
            return false;
        }
        end.disk.write(vec![(b"P".to_vec(), Some(promise.to_vec().into()))]);
        if !unstable {
            end.disk.sync();
        }
        true
    }

    fn decide(&mut self, txn: TxnId, commit: bool) -> Check {
        let target = self.target();
        let end = &mut self.ends[target];
        let record = end.handoff();
        match end.promise() {
            Some(promise) if promise.txn == txn => {
                let mut batch: Batch = vec![(b"P".to_vec(), None)];
                if commit {
                    let entries = end.share().map_or(0, |share| share.entries) + promise.entries;
                    let mut layout = promise.layout;
                    if let Some(share) = end.share() {
                        layout.learn(&share.layout);
                    }
                    let share = Share { layout, entries };
                    batch.push((b"D".to_vec(), Some(share.to_vec().into())));
                    batch.push((b"H".to_vec(), None));
                } else {
                    let next = record.as_ref().and_then(abandoned);
                    batch.extend(next.map(|next| (b"H".to_vec(), Some(next.to_vec().into()))));
                }
                end.disk.write(batch);
                end.receiving = None;
            }
            Some(_) => {}
            None => {
                // Without a promise nothing received counts, whatever the outcome.
                if let Some(record @ HandoffRecord::Receiving(what)) = record
                    && what.txn == txn
                {
                    let next = abandoned(&record).expect("it was being received");
                    end.disk.write(vec![(b"H".to_vec(), Some(next.to_vec().into()))]);
                    end.receiving = None;
                }
            }
        }
        Ok(())
    }
}
