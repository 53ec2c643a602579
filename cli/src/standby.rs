//! A server that stands by while another one has the journal, and says when it is its turn.
//!
//! ```text
//! DIR has never had a journal         serve: the journal begins with it
//! DIR is empty                        restore the newest base, apply the journal
//! DIR owns the journal's end          serve
//! DIR has served, and was replaced    its metadata are set aside; as an empty one
//! DIR has followed                    apply what is new, again and again
//! the lease of the last segment ends  serve, if the journal still ends there
//! ```
//!
//! `serve --standby` calls it before the server starts. Metadata are written by this module only
//! while nobody serves the directory, and the fence that makes the server the journal's owner is put
//! by its start ([`journal::start`](crate::journal::start)), which the number of the last segment is
//! handed to.
//!
//! Always true: a directory that follows has what the journal has up to the segment that its note
//! names, and nothing else.

use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use ::backup::{Key, Place};
use ::journal::{Error, Followed as Looked, Follower, Journal as Chain, Note, check, own};
use anyhow::{Context as _, anyhow, bail, ensure};
use base::error::describe;
use store::{RocksConfig, RocksEngine};
use tokio::{
    runtime::Runtime,
    sync::{oneshot, watch},
    time::sleep,
};

use crate::{
    backups::{self, address, variables},
    connect,
    data::{self, DataDir, JournalNote, Kept},
    failure::usage,
    journal::{
        recover::{NoBase, Recovered, Source, Watch},
        shown,
        start::{Directory, REQUEST_TIMEOUT, STORE_TIMEOUT, member},
    },
    output,
    system::{self, SystemRandom},
};

/// Pause after a failure of the store, and before a journal without a base is looked at again.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A server that stands by.
#[derive(Clone)]
pub(crate) struct Standby {
    pub(crate) data: PathBuf,
    pub(crate) url: String,
    /// The file with the journal's key, where the directory does not have it yet.
    pub(crate) key: Option<PathBuf>,
    /// Number of the server that it stands by for, if the file system is a cluster.
    pub(crate) server: Option<u16>,
    /// Options that the directory is to keep.
    pub(crate) kept: Kept,
}

/// How standing by ends.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The server starts: where the journal ends at this segment, or as the journal's owner.
    Serve(Option<u64>),
    /// The server was told to stop.
    Stopped,
}

/// Whether a start has failed for what standing by again can mend: another server has the journal, or
/// the store is away.
pub(crate) fn stands_by_again(error: &anyhow::Error) -> bool {
    let is_of_chain = |error: &Error| {
        matches!(
            error,
            Error::GoesOn { .. }
                | Error::Fenced { .. }
                | Error::NeedsBase { .. }
                | Error::Forked { .. }
        )
    };
    is_passing(error) || error.downcast_ref().is_some_and(is_of_chain)
}

/// Whether the store may answer later.
fn is_passing(error: &anyhow::Error) -> bool {
    let backup = error.downcast_ref::<::backup::Error>();
    let backup = backup.is_some_and(|error| {
        matches!(
            error,
            ::backup::Error::Store(_)
                | ::backup::Error::NoDirectory(_)
                | ::backup::Error::Missing(_)
        )
    });
    backup || error.downcast_ref::<Error>().is_some_and(Error::is_passing)
}

impl Standby {
    /// Returns when this server is to serve, or `stop` is over.
    pub(crate) async fn until_its_turn(
        &self,
        stop: impl Future<Output = ()>,
    ) -> anyhow::Result<Turn> {
        let (stops, stopped) = watch::channel(false);
        let (done, mut turn) = oneshot::channel();
        let standby = self.clone();
        let run = move || {
            // Without a listener the process ends.
            let _ = done.send(standby.run(&stopped));
        };
        let thread = thread::Builder::new().name("standby".to_owned()).spawn(run);
        let thread = thread.context("cannot start a thread")?;
        let turn = tokio::select! {
            turn = &mut turn => turn,
            () = stop => {
                stops.send_replace(true);
                turn.await
            }
        };
        // A panic was logged.
        let _ = thread.join();
        turn.map_err(|_| anyhow!("the thread that stands by has ended"))?
    }

    fn run(&self, stopped: &watch::Receiver<bool>) -> anyhow::Result<Turn> {
        let runtime = connect::runtime()?;
        let stood = self.begin(&runtime, stopped);
        // Requests of a store that does not answer are not waited for.
        runtime.shutdown_background();
        if *stopped.borrow() { Ok(Turn::Stopped) } else { stood }
    }

    fn begin(&self, runtime: &Runtime, stopped: &watch::Receiver<bool>) -> anyhow::Result<Turn> {
        if data::is_formatted(&self.data) && JournalNote::read(&self.data)?.is_none() {
            // The journal begins with it.
            return Ok(Turn::Serve(None));
        }
        let key = self.key()?;
        let once = Place::open_once(&self.url, variables(), REQUEST_TIMEOUT)?;
        let Standby { data, url, kept, server, .. } = self;
        Stand { data, url, key, kept, server: *server, once, runtime, stopped }.by()
    }

    /// The journal's key.
    fn key(&self) -> anyhow::Result<Key> {
        if data::has_backup_key(&self.data) {
            return data::backup_key(&self.data);
        }
        let Some(file) = &self.key else {
            return Err(usage(
                "the first --standby needs --journal-key FILE, with what `pando backup key` prints \
                 where the file system is served",
            ));
        };
        data::read_backup_key(file)
    }
}

/// A server that stands by, on its thread.
struct Stand<'a> {
    data: &'a Path,
    url: &'a str,
    key: Key,
    server: Option<u16>,
    kept: &'a Kept,
    once: Place,
    runtime: &'a Runtime,
    stopped: &'a watch::Receiver<bool>,
}

impl Stand<'_> {
    fn by(&self) -> anyhow::Result<Turn> {
        let (mut told, mut is_trusted) = (Told::default(), false);
        loop {
            let Some(state) = self.or_wait(self.state(), &mut told)? else { continue };
            let follows = match state {
                State::Owns => return Ok(Turn::Serve(None)),
                State::Empty => self.or_wait(self.recover(), &mut told)?.is_some(),
                State::Replaced => {
                    tracing::warn!(
                        "another server has taken the journal over: what {} had is set aside",
                        self.data.display()
                    );
                    data::unmake(self.data, true)?;
                    false
                }
                State::Follows => true,
                State::OfAnother => {
                    data::unmake(self.data, false)?;
                    false
                }
            };
            if !follows {
                continue;
            }
            if !is_trusted {
                // Only where the journal is seen: a directory may not be mounted.
                let checked = self.block_on(check(&self.once, &SystemRandom::default()))?;
                let context = || format!("cannot stand by for the journal at {}", self.shown());
                let checked = checked.with_context(context);
                // A file system of one server may have become a cluster.
                let checked = checked.and_then(|()| self.bases());
                is_trusted = self.or_wait(checked, &mut told)?.is_some();
                continue;
            }
            let followed = self.block_on(self.follow(&mut told))?;
            match self.or_wait(followed, &mut told)? {
                None => {}
                Some(Followed::Ended(number)) => return Ok(Turn::Serve(Some(number))),
                Some(Followed::TooOld(error)) => {
                    tracing::warn!(error = describe(&error), "a newer base is needed");
                    data::unmake(self.data, false)?;
                }
            }
        }
    }

    fn shown(&self) -> String {
        shown(self.url)
    }

    /// The result of `work`, or an error when the server is told to stop.
    fn block_on<T>(&self, work: impl Future<Output = T>) -> anyhow::Result<T> {
        self.runtime.block_on(until(self.stopped, work))
    }

    fn chain(&self, note: &JournalNote) -> anyhow::Result<Chain> {
        let uuid = u128::from_str_radix(&note.uuid, 16).context("journal.json has no id")?;
        let of = (uuid, note.history);
        let member = member(self.server);
        Ok(Chain::new(self.once.clone(), of, member, self.key.clone(), REQUEST_TIMEOUT))
    }

    /// The state of the directory, by what the journal has.
    fn state(&self) -> anyhow::Result<State> {
        let path = self.data;
        if !data::is_formatted(path) {
            return Ok(State::Empty);
        }
        let noted = JournalNote::read(path)?.context("journal.json is gone")?;
        ensure!(
            address(&noted.url) == address(self.url),
            "{} is of the journal at {}, and not at {}",
            path.display(),
            shown(&noted.url),
            self.shown()
        );
        let mut note = noted.note.clone();
        if note.follows {
            // A standby of the only server of a file system that has others by now.
            let is_of_it = data::server_of(path) == self.server;
            return Ok(if is_of_it { State::Follows } else { State::OfAnother });
        }
        let chain = self.chain(&noted)?;
        let number = note.segment;
        let owned = self.block_on(async {
            match own(&chain, &mut note, STORE_TIMEOUT).await {
                Ok(_) => Ok(()),
                Err(error) => Err(confirmed(&chain, number, error).await),
            }
        })?;
        match owned {
            Ok(()) => Ok(State::Owns),
            Err(
                Error::Fenced { .. }
                | Error::Forked { .. }
                | Error::NeedsBase { .. }
                | Error::Missing(_),
            ) => Ok(State::Replaced),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for a moment where something may be tried again: then there is nothing yet.
    fn or_wait<T>(&self, done: anyhow::Result<T>, told: &mut Told) -> anyhow::Result<Option<T>> {
        let error = match done {
            Ok(done) => return Ok(Some(done)),
            Err(error) => error,
        };
        if !is_passing(&error) && !error.is::<NoBase>() {
            return Err(error);
        }
        told.waits(format!("{error:#}"));
        self.block_on(async { sleep(RETRY_PAUSE).await })?;
        Ok(None)
    }

    fn source<'a>(&'a self, place: &'a Place) -> Source<'a> {
        let (url, key, server) = (self.url, &self.key, self.server);
        Source { url, place, key, server, kept: self.kept.clone() }
    }

    /// Sees that there are bases of this server.
    fn bases(&self) -> anyhow::Result<()> {
        let place = backups::open_place(self.url)?;
        self.block_on(self.source(&place).bases(None))?.map(drop)
    }

    /// Makes the directory of the newest base and the journal.
    fn recover(&self) -> anyhow::Result<()> {
        let place = backups::open_place(self.url)?;
        let source = self.source(&place);
        let bases = self.block_on(source.bases(None))??;
        let asked = Asked(self.stopped.clone());
        let Recovered { name, base, end } =
            source.recover(bases, self.data, self.runtime, &asked)?;
        tracing::info!(name, base = base.manifest.number, end, "restored");
        Ok(())
    }

    /// Applies what comes, until the lease of the journal's owner has ended.
    async fn follow(&self, told: &mut Told) -> anyhow::Result<Followed> {
        let data = DataDir::open(self.data)?;
        let noted = JournalNote::read(self.data)?.context("journal.json is gone")?;
        let chain = self.chain(&noted)?;
        let engine = RocksEngine::open(&data.metadata_folder(), &RocksConfig::default())?;
        let mut note = noted.note.clone();
        let directory = Directory { path: self.data, noted: &noted, engine: &engine, logged: &[] };
        let followed =
            follow_with(&chain, &directory, &mut note, (data.name(), &self.shown(), told)).await;
        match followed {
            Ok(number) => Ok(Followed::Ended(number)),
            Err(Error::Data(error)) => Err(anyhow!(error)),
            Err(error) => match confirmed(&chain, note.segment, error).await {
                error @ (Error::NeedsBase { .. }
                | Error::Forked { .. }
                | Error::Missing(_)
                | Error::Broken { .. }) => Ok(Followed::TooOld(error)),
                error => Err(error.into()),
            },
        }
    }
}

async fn follow_with(
    chain: &Chain,
    directory: &Directory<'_>,
    note: &mut Note,
    (name, shown, told): (&str, &str, &mut Told),
) -> Result<u64, Error> {
    let mut follower = loop {
        match Follower::begin(chain, note, directory, &system::since_boot).await {
            Err(error) if error.is_passing() => {
                told.waits(describe(&error));
                sleep(RETRY_PAUSE).await;
            }
            begun => break begun?,
        }
    };
    loop {
        let looked = match follower.look(note, directory).await {
            // A segment that cannot be read is no end.
            Err(error) if error.is_passing() => {
                told.waits(describe(&error));
                sleep(RETRY_PAUSE).await;
                continue;
            }
            looked => looked?,
        };
        let address = &follower.last().lease.address;
        if looked != Looked::Applied {
            told.stands_by(name, address);
        }
        match looked {
            Looked::Applied => told.waits = None,
            Looked::Waits(pause) => sleep(pause).await,
            Looked::Unleased(pause) => {
                told.cannot(shown);
                sleep(pause).await;
            }
            Looked::Ended(segment) => {
                tracing::warn!(segment, address, "the server is gone: taking over");
                return Ok(segment);
            }
        }
    }
}

/// The meaning of an absent segment: where none is there after `number` either, which the directory
/// has seen, the place is not mounted, or is another one.
async fn confirmed(chain: &Chain, number: u64, error: Error) -> Error {
    if !matches!(error, Error::NeedsBase { .. } | Error::Missing(_)) {
        return error;
    }
    match chain.beyond(number.saturating_sub(1)).await {
        Ok(Some(_)) => error,
        Ok(None) => Error::NotMounted(number),
        Err(error) => error,
    }
}

/// The state of a directory, by what the journal has.
enum State {
    Empty,
    Owns,
    /// The directory has served, and another one serves since.
    Replaced,
    Follows,
    /// The directory has followed the server when it was another one.
    OfAnother,
}

enum Followed {
    /// The lease of this segment has ended.
    Ended(u64),
    TooOld(Error),
}

/// News that people were told.
#[derive(Default)]
pub(crate) struct Told {
    stands_by: Option<String>,
    cannot: bool,
    waits: Option<String>,
}

impl Told {
    fn stands_by(&mut self, name: &str, address: &str) {
        // A fence has no address.
        let is_told = |before: &String| before == address || address.is_empty();
        if self.stands_by.as_ref().is_some_and(is_told) {
            return;
        }
        self.stands_by = Some(address.to_owned());
        let served = if address.is_empty() { "" } else { ", served at " };
        output::or_log(output::print(&format!("standing by for {name}{served}{address}")));
        crate::notify::ready();
    }

    fn cannot(&mut self, shown: &str) {
        if !std::mem::replace(&mut self.cannot, true) {
            tracing::warn!(
                "the server of the journal at {shown} has no lease (`pando serve --journal-lease`), \
                 so this one follows and does not take over"
            );
        }
    }

    /// Each reason is told once, until the journal was read again.
    pub(crate) fn waits(&mut self, error: String) {
        if self.waits.as_ref() != Some(&error) {
            tracing::warn!(error, "the journal is waited for");
            self.waits = Some(error);
        }
    }
}

/// Stops a recovery that nobody wants any more.
struct Asked(watch::Receiver<bool>);

impl Asked {
    fn goes_on(&self) -> anyhow::Result<()> {
        ensure!(!*self.0.borrow(), "interrupted");
        Ok(())
    }
}

impl Watch for Asked {
    fn reads(&self, _base: &::backup::Base, _bytes: u64) -> anyhow::Result<()> {
        self.goes_on()
    }

    fn applies(&self, _segment: u64) -> anyhow::Result<()> {
        self.goes_on()
    }
}

/// The result of `work`, or an error when the server is told to stop.
async fn until<T>(
    stopped: &watch::Receiver<bool>,
    work: impl Future<Output = T>,
) -> anyhow::Result<T> {
    let mut stopped = stopped.clone();
    tokio::select! {
        done = work => Ok(done),
        _ = stopped.wait_for(|stopped| *stopped) => bail!("interrupted"),
    }
}
