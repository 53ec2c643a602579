//! `speculate`: look-ups in directories whose ids the client has predicted, all of one path that
//! this server has.
//!
//! Every guess is looked up by itself; only the client can tell whether they hang together. The
//! session must be trusted, because a prediction proves no walk. Records of other servers are not
//! asked for: a guess about them finds nothing, and a file in a slot elsewhere is not shown.
//!
//! Cost: as many look-ups as guesses. Paper: InfiniFS §3.3.

use base::{Access, FsError, limits::PATH_BYTES_MAX};
use wire::{Entry, Guess, Guessed, Retry, Speculate};

use crate::{
    error::{Fault, Result},
    record::{ContentState, EntryRecord},
    txn::{Dir, Txn},
};

/// Most guesses of one request: no path needs more than one for each name, and one for its end.
const GUESSES_MAX: usize = PATH_BYTES_MAX / 2 + 2;

pub(crate) fn run(txn: &mut Txn<'_>, req: &Speculate) -> Result<Vec<Guessed>> {
    if !txn.caller.standing.trusted {
        return Err(FsError::NotPermitted.into());
    }
    if req.guesses.len() > GUESSES_MAX {
        return Err(FsError::NameTooLong.into());
    }
    req.guesses.iter().map(|guess| look(txn, guess)).collect()
}

fn look(txn: &Txn<'_>, guess: &Guess) -> Result<Guessed> {
    let nothing = Guessed { dir: None, entry: None, error: None, layout: None };
    let Guess { dir: id, home, partition, name } = guess;
    if *partition >= txn.shared.config.shards || !txn.has_shard(txn.shard_of(*home, *partition)) {
        return Ok(nothing);
    }
    let content = txn.get_content(&txn.share_key(*home, *id, *partition))?;
    let is_meant = |content: &crate::record::Content| {
        content.state == ContentState::Live && content.home == guess.home
    };
    let Some(content) = content.filter(is_meant) else { return Ok(nothing) };
    let dir = Dir { id: *id, partition: *partition, content };
    if name.as_ref().is_some_and(|name| txn.owner_by(&dir, name) != *partition) {
        let layout = Some(dir.content.layout);
        return Ok(Guessed { dir: Some(dir.content.ino), layout, ..nothing });
    }
    let found = Guessed { dir: Some(dir.content.ino), ..nothing };
    match entry(txn, &dir, guess) {
        Ok(entry) => Ok(Guessed { entry, ..found }),
        Err(Fault::Answer(error)) => Ok(Guessed { error: Some(error), ..found }),
        Err(Fault::Retry(Retry::StaleLayout(news))) => Ok(Guessed { layout: news.layout, ..found }),
        Err(fault) => Err(fault),
    }
}

/// The entry that a guess asks for, in a directory that exists.
fn entry(txn: &Txn<'_>, dir: &Dir, guess: &Guess) -> Result<Option<Entry>> {
    let Some(name) = &guess.name else {
        txn.settle_shown_counts(dir)?;
        let itself = txn.dir_ref(dir.id, dir.content.ino, dir.content.home);
        let (attr, whole) = (dir.attr(), !dir.is_divided());
        return Ok(Some(Entry { attr, dir: Some(itself), target: None, whole }));
    };
    txn.dir_permits(dir, Access::EXECUTE)?;
    txn.settled(|txn| {
        let entry = txn.entry(dir, name)?.ok_or_else(|| txn.missing(dir))?;
        match &entry {
            EntryRecord::Link(ino) if !txn.has_shard(ino.shard()) => Ok(None),
            EntryRecord::Node(_) | EntryRecord::Dir(_) | EntryRecord::Link(_) => {
                txn.show(&entry).map(Some)
            }
        }
    })
}
