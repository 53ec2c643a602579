//! The source: executes the actions of its state machine.

use std::collections::{BTreeSet, VecDeque};

use base::Encode as _;
use bytes::Bytes;
use wire::TxnId;

use super::{
    super::{
        super::{
            HandoffRecord, Receiving,
            source::{Action, Event, Source},
        },
        disk::{Promise, Share, pos_in},
    },
    Check, Flaw, Giving, INO, Key, Message, Run,
};

impl Run {
    /// Takes the next step of the source.
    pub(super) fn drive_source(&mut self) -> Check {
        let (at, target) = (self.source(), self.target());
        let held = self.seed != 0 && self.draw(4) == 0;
        let end = &mut self.ends[at];
        let Some(giving) = &mut end.giving else {
            let share = end.share().ok_or("the source has no share")?;
            let Some(moving) = share.layout.moving(self.transfer) else { return Ok(()) };
            if end.handoff().is_some() || end.promise().is_some() {
                return Ok(());
            }
            self.attempts += 1;
            end.number += 1;
            let txn = TxnId { server: end.partition, run: end.run, number: end.number };
            end.open.insert(txn);
            let (machine, action) = Source::begin(self.kind.scan());
            end.giving = Some(Giving {
                txn,
                machine,
                action,
                waits: None,
                calls: 0,
                changed: None,
                snapshot: VecDeque::new(),
                frozen: false,
                moving,
                after: None,
            });
            return Ok(());
        };
        if let Some(waited) = &mut giving.waits {
            *waited += 1;
            if *waited > 60 {
                giving.waits = None;
                return match &giving.action {
                    Action::Switch(_) => self.switched(false),
                    _ => self.happened(Event::Lost),
                };
            }
            return Ok(());
        }
        let txn = giving.txn;
        giving.calls += 1;
        let call = giving.calls;
        match giving.action.clone() {
            Action::Begin => {
                let what = Receiving {
                    txn,
                    ino: INO,
                    source: self.transfer.source,
                    moving: giving.moving,
                };
                giving.waits = Some(0);
                self.mail[target].push_back(Message::Begin(call, what));
            }
            Action::Put { number, changes, stable } => {
                giving.waits = Some(0);
                self.mail[target].push_back(Message::Put(call, txn, number, changes, stable));
            }
            Action::Watch => {
                giving.changed = Some(BTreeSet::new());
                let (moving, own) = (giving.moving, end.share().expect("it was looked at").layout);
                let moves = |key: &Key| {
                    moving.contains(pos_in(key)) && own.partition(pos_in(key)) == end.partition
                };
                let moved = end.disk.names().filter(|(key, _)| moves(key));
                let all = moved
                    .map(|(key, value)| (Bytes::from(key.clone()), Some(value.clone())))
                    .collect();
                if let Some(giving) = &mut end.giving {
                    giving.snapshot = all;
                }
                return self.happened(Event::Watching);
            }
            Action::Copy { .. } => {
                let some = giving.snapshot.len().min(4);
                let run = giving.snapshot.drain(..some).collect();
                let last = giving.snapshot.is_empty();
                return self.happened(Event::Copied(run, last));
            }
            Action::Collect { .. } => {
                let changed = giving.changed.as_mut().map(std::mem::take).unwrap_or_default();
                let now = |key: Key| {
                    let value = end.disk.now.get(&key).cloned();
                    (Bytes::from(key), value)
                };
                let changes = changed.into_iter().map(now).collect();
                return self.happened(Event::Collected(changes));
            }
            // Some transaction holds one of them.
            Action::Freeze if held => return self.happened(Event::Held),
            Action::Freeze => {
                giving.frozen = self.flaw != Some(Flaw::NotFrozen);
                if self.flaw == Some(Flaw::PublishedEarly) {
                    let mut share = end.share().expect("it was looked at");
                    share.layout = share.layout.after(self.transfer).expect("it is next");
                    end.disk.write(vec![(b"D".to_vec(), Some(share.to_vec().into()))]);
                }
                return self.happened(Event::Frozen);
            }
            Action::Switch(tally) => {
                let mut layout = end.share().expect("it was looked at").layout;
                // A record of another server; it must be so when it prepares.
                if let Some(theirs) = self.ends[target].share() {
                    layout.learn(&theirs.layout);
                }
                let Some(after) = layout.after(self.transfer) else {
                    return self.switched(false);
                };
                let giving = self.ends[at].giving.as_mut().expect("it was looked at");
                giving.after = Some((after.clone(), tally));
                giving.waits = Some(0);
                let promise = Promise { txn, layout: after, entries: tally.entries };
                self.mail[target].push_back(Message::Prepare(promise));
            }
            Action::Thaw => {
                giving.frozen = false;
                return self.happened(Event::Thawed);
            }
            Action::End(_) => {
                end.open.remove(&txn);
                end.giving = None;
            }
        }
        Ok(())
    }

    pub(super) fn happened(&mut self, event: Event) -> Check {
        let at = self.source();
        if let Some(giving) = &mut self.ends[at].giving {
            giving.waits = None;
            giving.action = giving.machine.next(event);
        }
        Ok(())
    }

    /// The transaction is decided: the source's write, if it commits.
    pub(super) fn switched(&mut self, commit: bool) -> Check {
        let (at, target) = (self.source(), self.target());
        let early = self.has(Flaw::ToldEarly);
        let end = &mut self.ends[at];
        let Some(giving) = &mut end.giving else { return Ok(()) };
        let txn = giving.txn;
        end.open.remove(&txn);
        if commit {
            let (layout, tally) = giving.after.take().ok_or("nothing was prepared")?;
            let entries = end.share().ok_or("no share")?.entries.saturating_sub(tally.entries);
            let share = Share { layout, entries };
            end.disk.write(vec![
                (b"D".to_vec(), Some(share.to_vec().into())),
                (b"X".to_vec(), Some(txn.to_vec().into())),
                (b"H".to_vec(), Some(HandoffRecord::Given(INO).to_vec().into())),
            ]);
            if early {
                self.mail[target].push_back(Message::Decide(txn, true));
            }
        } else {
            self.mail[target].push_back(Message::Decide(txn, false));
        }
        self.happened(Event::Switched(commit))
    }
}
