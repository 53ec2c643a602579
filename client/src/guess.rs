//! Look-ups of several components at once: the ids of the directories on a path are predicted, and
//! every server is asked for what it has of them in one message.
//!
//! `resolve` calls it where the cache ends, when there are several servers and the session is
//! trusted. What the servers say is believed as far as it hangs together: each directory that was
//! found must be the one that was predicted for the next guess. From the first that is not (it was
//! once renamed, or is homed otherwise) the caller predicts anew.
//!
//! A rename may have happened between the answers of one round. It has not if they are of one
//! version of the invalidation list, nor if each server had nothing in its list that touches the
//! way, the predicted directories included, since a version before all of them. So where the
//! versions differ the round is repeated on the lowest of them.
//!
//! Paper: InfiniFS §3.3.

use std::collections::BTreeMap;

use base::{Cred, DirId, EntryName, FsError, Level, Locality, Predicted};
use futures::future::try_join_all;
use wire::{DirRef, Entry, Guess, Guessed, Reply, Request, Speculate, Stand, Walked, way_mark};

use crate::{
    Error,
    core::{Core, Resolution},
    done::{Done, Failure},
    error::unexpected,
    mispredictions::Learnt,
    route::Route,
};

/// How many rounds there are at most: the second stands on a version.
const ROUNDS_MAX: u32 = 2;

/// The versions of the invalidation list that the answers of a round are of.
struct Versions {
    lowest: u64,
    highest: u64,
}

impl Versions {
    fn of(versions: impl Iterator<Item = u64> + Clone) -> Versions {
        let (lowest, highest) = (versions.clone().min(), versions.max());
        Versions { lowest: lowest.unwrap_or(0), highest: highest.unwrap_or(0) }
    }

    fn differ(&self) -> bool {
        self.lowest != self.highest
    }
}

/// One round of guesses: the path from a directory that is known.
struct Round {
    from: DirRef,
    guesses: Vec<Guess>,
}

impl Core {
    /// Whether paths are resolved by guessing.
    pub(crate) fn guesses(&self) -> bool {
        self.channels.are_several()
            && self.config.resolution != Resolution::Sequential
            && self.welcome().trusted
    }

    /// Walks down from `from` by one round of guesses; with `whole`, the attributes of what is at
    /// the end are all there if it is a directory. `None`: the servers do not agree, or say
    /// nothing; walk otherwise.
    pub(crate) async fn guess(
        &self,
        cred: &Cred,
        from: DirRef,
        names: &[EntryName],
        stand: &Stand,
        whole: bool,
    ) -> Result<Option<(Walked, u64)>, Failure> {
        let round = self.predict(from, names, whole);
        let mut stand = stand.clone();
        stand.way.extend(round.guesses.iter().map(|guess| way_mark(guess.dir)));
        for _ in 0..ROUNDS_MAX {
            self.counters.rounds();
            let (answers, version) = match self.send_round(cred, &round, &stand).await {
                // With a lease nothing is validated: the path is walked.
                Ok((_, versions)) if stand.is_none() && versions.differ() => {
                    stand.version = self.valid_from(versions.lowest);
                    continue;
                }
                Ok((answers, versions)) => (answers, versions.lowest),
                // The server does not take guesses of us.
                Err(Failure::Error(
                    Error::Refused(_) | Error::TokenExpired | Error::Fs(FsError::NotPermitted),
                )) => break,
                Err(failure) => return Err(failure),
            };
            self.learn_layouts(&round, &answers);
            if answers[0].dir.is_none() && round.guesses[0].partition != 0 {
                // The server does not have that partition: the master knows more.
                self.layouts.learn(&from, None);
                break;
            }
            if answers[0].dir != Some(from.ino) {
                self.cache.lock().forget(from.id);
                return Err(Failure::StaleDir);
            }
            let walked = self.verify(&round, answers, names, whole);
            let nothing = walked.entries.is_empty() && walked.error.is_none();
            return Ok((!nothing).then_some((walked, version)));
        }
        Ok(None)
    }

    fn predict(&self, from: DirRef, names: &[EntryName], whole: bool) -> Round {
        let hash_key = self.welcome().fs.hash_key;
        let learnt = self.learnt.lock();
        let mut at = Predicted::known(from.id, from.home);
        let mut guesses = Vec::with_capacity(names.len() + 1);
        for name in names {
            let Predicted { id: dir, home, .. } = at;
            let partition = self.layouts.guess(dir, || hash_key.pos(name));
            guesses.push(Guess { dir, home, partition, name: Some(name.clone()) });
            at = self.predict_child(&learnt, at, name);
        }
        if whole {
            guesses.push(Guess { dir: at.id, home: at.home, partition: 0, name: None });
        }
        Round { from, guesses }
    }

    /// Where a directory is likely to be.
    pub(crate) fn predict_child(
        &self,
        learnt: &Learnt,
        above: Predicted,
        name: &EntryName,
    ) -> Predicted {
        let fs = &self.welcome().fs;
        if let Some((id, home)) = learnt.get(above.id, name) {
            return Predicted::known(id, home);
        }
        let level = learnt.level_below(above.id).unwrap_or_else(|| above.level_below(fs.locality));
        above.child_of(level, fs.locality, &fs.hash_key, name)
    }

    /// Learns at which level a directory was found in `parent`, where it was predicted at another.
    pub(crate) fn learn_level(&self, parent: &DirRef, name: &EntryName, found: &DirRef) {
        let fs = &self.welcome().fs;
        if fs.locality != Locality::Hybrid {
            return;
        }
        let above = Predicted::known(parent.id, parent.home);
        let mut learnt = self.learnt.lock();
        if self.predict_child(&learnt, above, name).id == found.id {
            return;
        }
        let born_at = |level| above.child_of(level, fs.locality, &fs.hash_key, name).id;
        let levels = [Level::Below, Level::Boundary, Level::Above];
        match levels.into_iter().find(|level| born_at(*level) == found.id) {
            // Others of the parent are likely to be there as well, unless some are and some are not.
            Some(level) if learnt.level_below(parent.id).is_none() => {
                learnt.learn_level(parent.id, level);
            }
            Some(_) => learnt.learn(parent.id, name, found),
            None => {}
        }
    }

    /// The answers, in the order of the guesses, and their versions.
    async fn send_round(
        &self,
        cred: &Cred,
        round: &Round,
        stand: &Stand,
    ) -> Result<(Vec<Guessed>, Versions), Failure> {
        let mut by_server: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (index, guess) in round.guesses.iter().enumerate() {
            let route = Route::Partition(guess.home, guess.partition);
            let server = self.channels.of(route).server;
            by_server.entry(server).or_default().push(index);
        }
        let asked = by_server.iter().map(|(server, of)| {
            let guesses = of.iter().map(|index| round.guesses[*index].clone()).collect();
            let request = Request::Speculate(Speculate { guesses });
            self.call(cred, Route::Server(*server), request, stand.clone())
        });
        let answered = try_join_all(asked).await?;
        let versions = Versions::of(answered.iter().map(|done| done.version));
        let nothing = Guessed { dir: None, entry: None, error: None, layout: None };
        let mut answers = vec![nothing; round.guesses.len()];
        for (of, Done { reply, .. }) in by_server.values().zip(answered) {
            let Reply::Guessed(guessed) = reply else { return Err(unexpected().into()) };
            if guessed.len() != of.len() {
                return Err(unexpected().into());
            }
            of.iter().zip(guessed).for_each(|(index, guessed)| answers[*index] = guessed);
        }
        Ok((answers, versions))
    }

    /// Learns layouts from answers of partitions without the name, which tell only where the name
    /// is.
    fn learn_layouts(&self, round: &Round, answers: &[Guessed]) {
        for (guess, answer) in round.guesses.iter().zip(answers) {
            if let (Some(ino), Some(layout)) = (answer.dir, &answer.layout) {
                self.counters.wrong_partition();
                let dir = DirRef { id: guess.dir, ino, home: guess.home, ticket: 0 };
                self.layouts.learn(&dir, Some(layout));
            }
        }
    }

    /// How far the answers hang together.
    fn verify(
        &self,
        round: &Round,
        answers: Vec<Guessed>,
        names: &[EntryName],
        whole: bool,
    ) -> Walked {
        let mut walked = Walked { entries: Vec::with_capacity(names.len()), error: None };
        let mut at = round.from;
        let mut answers = answers.into_iter().peekable();
        for (index, name) in names.iter().enumerate() {
            let Some(answer) = answers.next() else { break };
            let Some(entry) = answer.entry else {
                walked.error = answer.error;
                break;
            };
            let found = entry.dir;
            walked.entries.push(entry);
            let Some(found) = found else { break };
            let next = round.guesses.get(index + 1);
            if next.is_some_and(|next| (next.dir, next.home) != (found.id, found.home)) {
                self.mispredicted(at.id, name, &found);
                break;
            }
            if answers.peek().is_some_and(|answer| answer.dir != Some(found.ino)) {
                break;
            }
            at = found;
        }
        if whole
            && walked.entries.len() == names.len()
            && let Some(itself) = answers.next().and_then(|answer| answer.entry)
            && let Some(last) = walked.entries.last_mut()
            && is_same_dir(last, &itself)
        {
            *last = itself;
        }
        walked
    }

    fn mispredicted(&self, parent: DirId, name: &EntryName, found: &DirRef) {
        self.counters.mispredicted();
        if !self.cache.lock().enabled() {
            self.learnt.lock().learn(parent, name, found);
        }
    }
}

fn is_same_dir(one: &Entry, other: &Entry) -> bool {
    match (&one.dir, &other.dir) {
        (Some(one), Some(other)) => one.same(other),
        (Some(_) | None, _) => false,
    }
}
