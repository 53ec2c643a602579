//! `pando serve --standby`: a server that waits until it is its turn.

use std::path::{Path, PathBuf};

use tokio::time::sleep;

use crate::{
    data::{self, JournalNote, Kept},
    failure::usage,
    server::{self, Options, Role},
    serving::Serving,
    signals::Stop,
    standby::{self, Standby, Told, Turn},
};

/// A server that waits until it is its turn.
#[derive(Debug, clap::Args)]
pub(super) struct StandbyArgs {
    /// Stand by while another server has the journal, and serve when that one is gone: when the
    /// journal has had nothing of it for its --journal-lease. DIR is missing, empty, or has stood by
    /// or served before. All machines of a file system may be started with the same options; clients
    /// need the addresses of all of them.
    #[arg(long)]
    standby: bool,
    /// File with the key of the journal, as `pando backup key` prints it. Needed until DIR has it:
    /// by a server with --standby, and by one that has joined a cluster, whose servers share it.
    #[arg(long, value_name = "FILE")]
    journal_key: Option<PathBuf>,
    /// With --standby: stand by for this server of a cluster. Each of its servers has a journal, and
    /// standbys of its own. A DIR that has served or stood by before knows the number.
    #[arg(long, value_name = "N", requires = "standby")]
    server: Option<u16>,
}

impl StandbyArgs {
    pub(super) fn is_given(&self) -> bool {
        self.standby
    }

    /// Number of the server that DIR is, or stands by for; `None` for the only one of its file
    /// system, and for one that has not joined yet.
    pub(super) fn number(&self, data: &Path, kept: &Kept) -> anyhow::Result<Option<u16>> {
        let known = data::server_of(data).or(kept.server);
        let followed = JournalNote::read(data)?.is_some_and(|noted| noted.note.follows);
        let shown = data.display();
        match self.server {
            Some(0) if followed => {}
            Some(server) if data::is_formatted(data) && data::server_of(data).is_none() => {
                return Err(usage(format!(
                    "{shown} is that of a file system of one server, and not of server {server}"
                )));
            }
            Some(_) | None => {}
        }
        if let (Some(given), Some(known)) = (self.server, known)
            && given != known
        {
            return Err(usage(format!("{shown} is that of server {known}, and not of {given}")));
        }
        Ok(self.server.or(known))
    }

    /// Has a directory without a key of its journal keep the one that was given.
    pub(super) fn keep_key(&self, data: &Path, kept: &Kept) -> anyhow::Result<()> {
        if kept.journal().is_none() || !data::is_formatted(data) || data::has_backup_key(data) {
            return Ok(());
        }
        match (&self.journal_key, data::server_of(data).unwrap_or_default()) {
            // All machines may be given the file, and the first one of them makes the key.
            (Some(file), 0) if !file.exists() => Ok(()),
            (Some(file), _) => data::keep_backup_key(data, &data::read_backup_key(file)?),
            // With keys of their own no command could read all journals.
            (None, 1..) => Err(usage(
                "the first --journal of a server that has joined needs --journal-key FILE, with what \
                 `pando backup key` prints at server 0: the journals of a cluster have one key",
            )),
            (None, 0) => Ok(()),
        }
    }

    /// The server that stands by, if it does, with what the directory keeps.
    fn of(&self, data: &Path, kept: &Kept) -> anyhow::Result<Option<Standby>> {
        if !self.standby {
            return Ok(None);
        }
        let Some(backup) = kept.journal() else {
            return Err(usage("--standby needs --journal URL"));
        };
        if backup.journal_lease_ms == 0 {
            return Err(usage(
                "--standby needs --journal-lease TIME: without one no server takes over from this \
                 one again",
            ));
        }
        let (data, url) = (data.to_owned(), backup.url.clone());
        let (key, server, kept) = (self.journal_key.clone(), kept.server, kept.clone());
        Ok(Some(Standby { data, url, key, server, kept }))
    }

    /// Starts the server, when it is its turn, in the role that the directory then has; nothing when
    /// it was told to stop before.
    pub(super) async fn start(
        &self,
        data: &Path,
        options: &Options,
        (joins, role): (bool, impl Fn() -> Role),
        stop: &mut Stop,
    ) -> anyhow::Result<Option<Serving>> {
        let begin = |ends_at| {
            let options = Options { ends_at, role: role(), ..options.clone() };
            Serving::start(data, options)
        };
        let Some(standby) = self.of(data, &options.kept)? else {
            return begin(None).map(Some);
        };
        // A server that could not start must not take another one's journal.
        match standby.server {
            Some(server) => {
                server::try_listen(options)?;
                if server == 0 && joins {
                    return Err(usage(
                        "server 0 is the one that others join: start its standbys without --join",
                    ));
                }
            }
            None => drop(server::try_bind(options)?),
        }
        let (mut stood_by, mut told) = (false, Told::default());
        loop {
            let ends_at = match standby.until_its_turn(stop.asked()).await {
                Ok(Turn::Stopped) => return Ok(None),
                Ok(Turn::Serve(ends_at)) => ends_at,
                Err(error) if stood_by && standby::stands_by_again(&error) => {
                    told.waits(format!("{error:#}"));
                    sleep(standby::RETRY_PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            stood_by = true;
            match begin(ends_at) {
                // A directory without a journal does not stand by.
                Err(error) if ends_at.is_some() && standby::stands_by_again(&error) => {
                    tracing::warn!(why = format!("{error:#}"), "standing by again");
                    sleep(standby::RETRY_PAUSE).await;
                }
                started => return started.map(Some),
            }
        }
    }
}
