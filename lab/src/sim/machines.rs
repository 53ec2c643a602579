//! Machines that may be lost: each server of such a world has several, of which one serves, and the
//! others stand by. What is stable is in the server's journal.
//!
//! ```text
//! empty     a base is restored                     -> follows
//! follows   the journal is applied; its lease ends -> owns, and serves
//! owns      another machine has the journal        -> empty
//! lost      the machine comes back                 -> empty
//! ```
//!
//! The steps are those of `pando serve --standby`: what takes a journal over and follows it is the
//! crate `journal`, here as there.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use backup::{Key, Place};
use base::Random;
use futures::FutureExt as _;
use journal::{
    Claim, Data, Failure, Followed, Follower, Journal, Note, Record, Segment, missing, take_over,
};
use object_store::memory::InMemory;
use parking_lot::Mutex;
use store::{Batch, Engine as _, MemoryEngine};
use tokio::time::{Instant, sleep};

use super::{
    plan::Plan,
    server::{Host, Inner, address_of},
    ship::{Ship, is_another_s, records},
    world::World,
};

/// Time in which nothing in memory is too slow.
const LIMIT: Duration = Duration::from_secs(30);
/// Pause between two looks at a machine with nothing to do.
const LOOK: Duration = Duration::from_millis(50);
/// Number of the first base, which all machines begin with.
const BASE: u64 = 1;

/// The object store of one server: its journal, and a base.
pub(super) struct Archive {
    journal: Journal,
    /// The records that the journal begins after.
    base: RefCell<Option<MemoryEngine>>,
}

/// The state of a machine's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disk {
    Empty,
    Follows,
    Owns,
}

/// The part of a machine whose server has a journal.
pub(super) struct Kept {
    archive: Rc<Archive>,
    disk: Cell<Disk>,
    note: RefCell<Note>,
    /// Whether a server has had a lease of its cluster with this disk.
    pub(super) had_lease: Cell<bool>,
    /// Number of the disk of this machine.
    pub(super) disks: Cell<u64>,
    /// How often a process that followed has died.
    deaths: Cell<u64>,
    /// Until then the machine does not reach the store.
    pub(super) cut_until: Arc<Mutex<Instant>>,
}

impl Archive {
    fn new(server: u16) -> Rc<Archive> {
        let place = Place::over(Arc::new(InMemory::new()), "");
        let (of, key) = ((1, 1), Key::new([7; 32]));
        let journal = Journal::new(place, of, server.into(), key, LIMIT);
        Rc::new(Archive { journal, base: RefCell::default() })
    }
}

impl Kept {
    /// The part of the first machine of a server, if machines may be lost.
    pub(super) fn first(plan: &Plan, server: u16) -> Option<Kept> {
        (plan.machines > 1).then(|| Kept::with(Archive::new(server), Disk::Owns))
    }

    /// The part of another machine for the same server.
    pub(super) fn another(&self) -> Kept {
        Kept::with(Rc::clone(&self.archive), Disk::Empty)
    }

    fn with(archive: Rc<Archive>, disk: Disk) -> Kept {
        Kept {
            archive,
            disk: Cell::new(disk),
            note: RefCell::default(),
            had_lease: Cell::default(),
            disks: Cell::default(),
            deaths: Cell::default(),
            cut_until: Arc::new(Mutex::new(Instant::now())),
        }
    }

    /// Whether a server may be started with the disk.
    pub(super) fn owns(&self) -> bool {
        self.disk.get() == Disk::Owns
    }

    /// Whether the lease of the process before has ended, and others have not heard of that.
    pub(super) fn succeeds(&self) -> bool {
        self.note.borrow().succeeds
    }

    /// The disk is a new one.
    fn empty(&self) {
        self.disk.set(Disk::Empty);
        self.disks.set(self.disks.get() + 1);
        self.had_lease.set(false);
        self.dies();
    }

    /// The process dies, whatever it did.
    pub(super) fn dies(&self) {
        self.deaths.set(self.deaths.get() + 1);
    }
}

impl Data for Inner {
    fn position(&self) -> u64 {
        self.engine().position()
    }

    fn reaches(&self, position: u64) -> bool {
        self.engine().log_after(position).is_some()
    }

    fn log_after(&self, position: u64) -> Option<Vec<Record>> {
        self.engine().log_after(position).map(records)
    }

    fn apply(&self, segment: Segment) -> Result<(), Failure> {
        let engine = self.engine();
        for record in missing(segment, engine.position())? {
            engine.write(Batch::decode(record.batch.into())?)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), Failure> {
        Ok(self.engine().sync()?)
    }

    fn keep(&self, note: &Note) -> Result<(), Failure> {
        if let Some(kept) = &self.kept {
            kept.note.replace(note.clone());
        }
        Ok(())
    }
}

impl Inner {
    /// Takes the journal over for a process that starts. Nothing, if the journal is another
    /// machine's: then the disk is given up.
    pub(super) fn take_over(
        &self,
        kept: &Kept,
        ends_at: Option<u64>,
    ) -> anyhow::Result<Option<Ship>> {
        let archive = &kept.archive;
        let mut note = kept.note.borrow().clone();
        if note.base == 0 {
            let engine = self.engine();
            engine.sync()?;
            (note.base, note.position) = (BASE, engine.position());
            archive.base.replace(Some(engine.copy(false)));
        }
        let zero = Instant::now();
        let claim = Claim {
            lease: Some(self.plan.journal_lease),
            ends_at,
            was_heard: kept.had_lease.get(),
            limit: LIMIT,
            now: &move || zero.elapsed(),
            told: &|_| (),
        };
        let random: Arc<dyn Random> = Arc::new(self.random.clone());
        let taken = take_over(&archive.journal, &mut note, self, &claim, &random);
        let taken = taken.now_or_never().context("a store in memory answers at once")?;
        match taken {
            Ok(taken) => {
                kept.had_lease.set(false);
                kept.disk.set(Disk::Owns);
                self.engine().begin_log();
                let ship = Ship::new(taken, zero, address_of(self.machine), &kept.cut_until);
                let numbers = [self.machine.into(), ship.segment(), self.position()];
                self.trace.note("owns", &numbers);
                Ok(Some(ship))
            }
            Err(error) if is_another_s(&error) => {
                self.trace.note("replaced", &[self.machine.into()]);
                self.gives_up(kept);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The contents of the disk are gone, or another machine has the journal by now.
    fn gives_up(&self, kept: &Kept) {
        kept.empty();
        self.kept_all.set(false);
    }

    /// Restores the base on an empty disk, once there is a journal.
    async fn restore(&self, kept: &Kept) -> anyhow::Result<bool> {
        let archive = &kept.archive;
        let Some(first) = archive.journal.read(1).await? else { return Ok(false) };
        let base = archive.base.borrow().as_ref().map(|base| base.copy(false));
        let base = base.context("a journal begins with a base")?;
        kept.note.replace(Note {
            follows: true,
            segment: 1,
            base: BASE,
            position: base.position(),
            generation: first.header.generation,
            ..Note::default()
        });
        self.engine.replace(Arc::new(base));
        kept.disk.set(Disk::Follows);
        self.trace.note("restored", &[self.machine.into()]);
        Ok(true)
    }
}

impl Host {
    /// Loses the machine: its server, its memory and its disk are gone. It is away until it
    /// [`Host::comes_back`].
    pub fn lose_disk(&self) {
        self.keep_away(true);
        self.kill();
        let inner = self.at();
        inner.trace.note("lost", &[inner.machine.into()]);
        if let Some(kept) = &inner.kept {
            inner.gives_up(kept);
        }
    }

    /// A machine that was lost, or was away, is there again.
    pub fn comes_back(&self) {
        self.keep_away(false);
    }

    /// Cuts the way from the machine to the object store, for some time.
    pub fn cut_off_store(&self, time: Duration) {
        let inner = self.at();
        inner.trace.say(format_args!("machine {} reaches no store {time:?}", inner.machine));
        if let Some(kept) = &inner.kept {
            *kept.cut_until.lock() = Instant::now() + time;
        }
    }
}

/// Has a machine do what it is there for: stand by, and serve when it is its turn. `server` is the
/// handle on whichever machine serves.
///
/// # Errors
/// When a journal or an engine is damaged.
pub(super) async fn run(world: World, server: Host, machine: Host) -> anyhow::Result<()> {
    loop {
        sleep(LOOK).await;
        let inner = machine.at();
        let Some(kept) = &inner.kept else { return Ok(()) };
        if machine.is_away() {
            continue;
        }
        match kept.disk.get() {
            Disk::Owns => {}
            Disk::Empty => drop(inner.restore(kept).await?),
            Disk::Follows => {
                let Some(segment) = follow(&machine, &inner, kept).await? else { continue };
                machine.start_after(segment)?;
                if kept.owns() {
                    world.count(|counts| {
                        // Changes may be gone that were not stable, as after a power cut.
                        counts.power_cuts += 1;
                        counts.takeovers += 1;
                    });
                    server.moves_to(&machine);
                }
            }
        }
    }
}

/// Applies the journal until its lease has ended. Nothing, if the process dies meanwhile, or a base is
/// needed.
async fn follow(machine: &Host, inner: &Inner, kept: &Kept) -> anyhow::Result<Option<u64>> {
    let zero = Instant::now();
    let now = move || zero.elapsed();
    let deaths = kept.deaths.get();
    let mut note = kept.note.borrow().clone();
    let begun = Follower::begin(&kept.archive.journal, &note, inner, &now).await;
    let mut follower = match begun {
        Err(error) if is_another_s(&error) => {
            inner.gives_up(kept);
            return Ok(None);
        }
        begun => begun?,
    };
    loop {
        let cut_until = *kept.cut_until.lock();
        if cut_until > Instant::now() {
            tokio::time::sleep_until(cut_until).await;
        }
        if machine.is_away() || kept.deaths.get() != deaths {
            return Ok(None);
        }
        match follower.look(&mut note, inner).await {
            Ok(Followed::Applied) => {}
            Ok(Followed::Waits(pause) | Followed::Unleased(pause)) => sleep(pause).await,
            Ok(Followed::Ended(segment)) => return Ok(Some(segment)),
            Err(error) if is_another_s(&error) => {
                inner.gives_up(kept);
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
    }
}
