//! `pando serve --standby`: a server that waits until it is its turn.

use std::path::{Path, PathBuf};

use tokio::time::sleep;

use crate::{
    data::Kept,
    failure::usage,
    server::{self, Options},
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
    /// With --standby: file with the key of the journal, as `pando backup key` prints it. Needed
    /// until DIR has it.
    #[arg(long, value_name = "FILE", requires = "standby")]
    journal_key: Option<PathBuf>,
}

impl StandbyArgs {
    pub(super) fn is_given(&self) -> bool {
        self.standby
    }

    /// The server that stands by, if it does, with what the directory keeps.
    fn of(&self, data: &Path, kept: &Kept) -> anyhow::Result<Option<Standby>> {
        if !self.standby {
            return Ok(None);
        }
        let Some(backup) = kept.backup.as_ref().filter(|backup| backup.journal) else {
            return Err(usage("--standby needs --journal URL"));
        };
        if backup.journal_lease_ms == 0 {
            return Err(usage(
                "--standby needs --journal-lease TIME: without one no server takes over from this \
                 one again",
            ));
        }
        let (data, url) = (data.to_owned(), backup.url.clone());
        let (key, kept) = (self.journal_key.clone(), kept.clone());
        Ok(Some(Standby { data, url, key, kept }))
    }

    /// Starts the server, when it is its turn; nothing when it was told to stop before.
    pub(super) async fn start(
        &self,
        data: &Path,
        options: Options,
        stop: &mut Stop,
    ) -> anyhow::Result<Option<Serving>> {
        let Some(standby) = self.of(data, &options.kept)? else {
            return Serving::start(data, options).map(Some);
        };
        server::try_bind(&options)?;
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
            match Serving::start(data, Options { ends_at, ..options.clone() }) {
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
