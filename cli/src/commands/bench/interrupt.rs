//! Ctrl-C during work that waits for nothing: it is looked at between two pieces of it, so that
//! what was made is removed. The second one ends the program at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context as _, ensure};

use crate::{connect, signals::Stop};

/// Exit code of a program that a signal ended, as shells have it.
const KILLED: i32 = 130;

/// Whether the program was told to end.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on signals are noted here.
    pub(crate) fn watch() -> anyhow::Result<Interrupt> {
        let noted = Arc::new(AtomicBool::new(false));
        let runtime = connect::runtime()?;
        let mut stop = runtime.block_on(async { Stop::listen() })?;
        let note = Arc::clone(&noted);
        let watch = move || {
            runtime.block_on(async {
                stop.asked().await;
                note.store(true, Ordering::Relaxed);
                stop.asked().await;
            });
            std::process::exit(KILLED);
        };
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(watch)
            .context("cannot start a thread")?;
        Ok(Interrupt(noted))
    }

    /// Fails once the program was told to end.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.0.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }
}
