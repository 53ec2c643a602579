//! `pando backup forget`: a history that nobody writes any more is removed from a store.

use std::path::PathBuf;

use ::backup::Forgotten;
use anyhow::{Context as _, ensure};

use super::{at, history, open, place_url};
use crate::{
    backups, connect,
    data::{self, BackupProgress, DataDir, Kept},
    failure::usage,
    output,
};

/// Remove the bases of a history that no server writes any more, and their objects: that of an
/// original whose restored copy has taken its place, or of an address or a key of before.
///
/// The command says what it would remove, and removes it with --yes. The history that DIR writes is
/// never removed. Another directory may write the one that is named: make sure that none does.
#[derive(Debug, clap::Args)]
pub(super) struct Forget {
    /// A data directory of the file system. It may be served meanwhile.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The history, as `pando backup list` prints it.
    #[arg(long, value_name = "ID", value_parser = history)]
    history: String,
    /// Store of the backup [default: what DIR keeps of the last start].
    #[arg(long, value_name = "URL", value_parser = place_url)]
    from: Option<String>,
    /// File with the key that opens the bases of the history [default: DIR/backup.key].
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Remove it.
    #[arg(long)]
    yes: bool,
}

impl Forget {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let key = match &self.key {
            Some(file) => data::read_backup_key(file)?,
            None => data::backup_key(&self.data)?,
        };
        let kept = Kept::read(&self.data)?.backup.map(|kept| kept.url);
        let Some(url) = self.from.clone().or(kept) else {
            return Err(usage("--from URL says where the backup is"));
        };
        let (id, shown) = (&self.history, self.data.display());
        let noted = BackupProgress::read(&self.data)?;
        let is_current = noted.as_ref().is_some_and(|noted| noted.current.id() == *id);
        ensure!(!is_current, "history {id} is the one that {shown} writes: it stays");
        let is_noted = noted.is_some_and(|noted| noted.others.iter().any(|of| of.id() == *id));
        let (place, runtime) = (open(&url)?, connect::runtime()?);
        let forgotten = runtime.block_on(place.forgotten(&key, id))?;
        let text = described(&forgotten);
        if !self.yes {
            output::print(&format!("would remove history {id}: {text}"))?;
            return output::print("nothing is removed without --yes");
        }
        if is_noted {
            self.strike()?;
        }
        runtime.block_on(place.forget(&forgotten))?;
        output::print(&format!("removed history {id}: {text}"))
    }

    /// Takes the history out of the directory's note, or a server would miss its bases when it is
    /// given their address again.
    fn strike(&self) -> anyhow::Result<()> {
        let data = DataDir::open(&self.data).with_context(|| {
            format!("history {} is noted in backup.json: stop the server first", self.history)
        })?;
        let Some(mut noted) = BackupProgress::read(data.path())? else { return Ok(()) };
        noted.others.retain(|of| of.id() != self.history);
        noted.write(data.path())
    }
}

fn described(forgotten: &Forgotten) -> String {
    let Forgotten { newest, oldest, bases, objects, bytes, .. } = forgotten;
    let (from, to, size) = (at(oldest.at), at(newest.at), backups::size(*bytes));
    let name = &newest.manifest.name;
    format!("{bases} bases of {name}, made from {from} to {to}, {objects} objects, {size}")
}
