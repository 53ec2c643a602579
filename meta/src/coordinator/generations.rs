//! The generations of servers: which process of each may serve. Pure; times come in.
//!
//! A server asks for a generation at each start, and each is given once. A process gets one when
//! the process before it has certainly stopped serving. Either it has said so, or the new one is in
//! its place, where the lock on the data directory proves it, or its lease has ended for certain,
//! and so has the time for which it serves without one. `coordinator` stores each decision before
//! anybody hears of it.
//!
//! Always true: a lease is given to the newest generation only, and no process of an older one may
//! serve any more when a generation is given.

use std::time::Duration;

use base::{Decode, DecodeError, Encode, Reader, codec};
use bytes::Bytes;
use tokio::time::Instant;
use wire::{Life, Term};

use crate::{
    bugs::{Bug, Planted},
    cluster::generation::is_outdated,
    record::tail,
};

/// Added to the generation of a coordinator that is an old copy: above all that it gave before.
pub(super) const FAR: u64 = 1 << 32;

/// Number of processes that can wait at once. Of more the first is forgotten, and waits anew.
const WAITING_MAX: usize = 1024;

codec! {
    /// The newest generation of a server, and the process that has it.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub(crate) struct Generation {
        /// Number of the generation; 0: none was given.
        pub number: u64,
        /// Number of the run that it was given to.
        pub run: u64,
        /// Place of that run, as [`Life`] has it.
        pub place: Bytes,
        /// Machine and directory of that run.
        pub home: Bytes,
        /// How long that run serves without a lease, in milliseconds.
        pub alone_ms: u64,
        /// A position that was stable on the server's disk, and not much later than this record.
        pub position: u64,
        /// The newest generation that was stable on the server's disk: a directory that has none
        /// as new is an older copy, wherever its store ends.
        pub confirmed: u64,
        /// Whether that run has said that it has stopped.
        pub resigned: bool,
        /// The generation in which the server last began on an old copy, with the operator's word;
        /// 0: never.
        pub restored_in: u64,
    }
}

/// The newest generation of each server, in the order of their numbers. Persisted: nothing before
/// the first one, otherwise a tag and the list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Generations(pub(crate) Vec<Generation>);

impl Encode for Generations {
    fn encode(&self, out: &mut Vec<u8>) {
        tail::encode(Some(&self.0).filter(|all| !all.is_empty()), out);
    }
}

impl Decode for Generations {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Generations(tail::decode(input)?.unwrap_or_default()))
    }
}

/// The process that had the generation before, as the coordinator knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before<'a> {
    /// Moment at which its lease has ended for certain.
    pub(crate) until: Instant,
    /// When it was last heard of.
    pub(crate) heard: Option<Instant>,
    /// Address of that process.
    pub(crate) address: &'a str,
}

/// The judgement on a process that asks for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Judged {
    /// The process has the newest generation of its server.
    Has(u64),
    /// The process was given this generation now: to be stored before it hears of that.
    Given(u64),
    /// The process before may serve for so long.
    Waits(Duration),
    /// The process must end.
    Ends(String),
    /// The coordinator must end: it is an old copy.
    IsOld(String),
}

/// Processes that wait until the one before has certainly stopped: their servers and runs, and
/// since when. Lost with the coordinator.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Vec<(u16, u64, Instant)>);

impl Waiting {
    fn since(&mut self, server: u16, run: u64, now: Instant) -> Instant {
        let known = self.0.iter().find(|(of, by, _)| (*of, *by) == (server, run));
        if let Some((_, _, since)) = known {
            return *since;
        }
        if self.0.len() >= WAITING_MAX {
            self.0.remove(0);
        }
        self.0.push((server, run, now));
        now
    }

    fn end(&mut self, server: u16, run: u64) {
        self.0.retain(|(of, by, _)| (*of, *by) != (server, run));
    }
}

impl Generations {
    /// The newest generation of a server; 0: none was given.
    pub(crate) fn of(&self, server: u16) -> u64 {
        self.0.get(usize::from(server)).map_or(0, |it| it.number)
    }

    /// The newest generations of all servers that have one or come before one that has.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.0.iter().map(|it| it.number).collect()
    }

    fn entry(&mut self, server: usize) -> &mut Generation {
        if self.0.len() <= server {
            self.0.resize(server + 1, Generation::default());
        }
        &mut self.0[server]
    }

    /// Gives the coordinator's own server its next generation, at its start: nobody judges it.
    /// `restored` says that its directory is an old copy.
    pub(crate) fn begin(&mut self, run: u64, restored: bool) -> u64 {
        let own = self.entry(0);
        own.number += if restored { FAR } else { 1 };
        own.run = run;
        if restored {
            own.restored_in = own.number;
        }
        own.number
    }

    /// The generation in which the coordinator last began on an old copy; 0: never.
    pub(crate) fn restored_in(&self) -> u64 {
        self.0.first().map_or(0, |it| it.restored_in)
    }

    /// The positions that were stable on the disks of the other servers, by number. The roster is in
    /// the coordinator's own store, so a copy of that lacks both or neither.
    pub(crate) fn positions(&self) -> Vec<u64> {
        self.0.iter().skip(1).map(|it| it.position).collect()
    }

    /// Judges a process of `server` that asks for a lease. `restored` says that the coordinator's
    /// own directory was an old copy when it last heard of this server, which may know more.
    pub(crate) fn judge(
        &mut self,
        waiting: &mut Waiting,
        (server, run): (u16, u64),
        life: &Life,
        before: Before<'_>,
        (now, restored, bugs): (Instant, bool, Planted),
    ) -> Judged {
        let newest = self.entry(usize::from(server));
        let shown = life.generation.max(life.stored);
        if shown > newest.number {
            if !restored {
                return Judged::IsOld(is_old(server, shown, newest.number));
            }
            // This old copy knows nothing else of the process before that holds.
            let (place, home) = match life.generation {
                0 => Default::default(),
                _ => (life.place.clone(), life.home.clone()),
            };
            *newest = Generation {
                number: shown,
                run: if life.generation > 0 { run } else { newest.run },
                place,
                home,
                alone_ms: newest.alone_ms.max(life.alone_ms),
                position: 0,
                confirmed: 0,
                resigned: false,
                restored_in: newest.restored_in,
            };
        }
        if life.generation == newest.number && life.generation > 0 || is_repeated(newest, run) {
            return match newest.run == run {
                true => Judged::Has(newest.number),
                false => Judged::Ends(in_two_runs(server, newest.number)),
            };
        }
        if life.generation > 0 {
            return Judged::Ends(is_outdated(server, life.generation, newest.number));
        }
        let is_behind =
            (life.position < newest.position || life.stored < newest.confirmed) && !life.restored;
        let wait = stopped_at(newest, life, before.until, bugs);
        let wait = wait.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let since = waiting.since(server, run, now);
        if !wait.is_zero() && !bugs.has(Bug::GenerationNotAwaited) {
            // A copy of the directory may be served elsewhere. Where the process before is said to
            // have ended, what it had asked by then may have been on its way for a while.
            let on_its_way = match (life.replaces, before.heard) {
                (true, Some(heard)) => before.until.saturating_duration_since(heard),
                _ => Duration::ZERO,
            };
            if let Some(heard) = before.heard.filter(|heard| *heard > since + on_its_way) {
                return Judged::Ends(is_served(server, before.address, now - heard));
            }
            // An old copy need not wait to hear that it is one, once nobody serves any more.
            if !is_behind || before.until > now {
                return Judged::Waits(wait);
            }
        }
        if is_behind {
            return Judged::Ends(behind(server, life, newest));
        }
        waiting.end(server, run);
        let number = newest.number + 1;
        *newest = Generation {
            number,
            run,
            place: life.place.clone(),
            home: life.home.clone(),
            alone_ms: life.alone_ms,
            position: life.position,
            confirmed: life.stored,
            resigned: false,
            restored_in: if life.restored { number } else { newest.restored_in },
        };
        Judged::Given(number)
    }

    /// Notes what the newest process of a server says besides. Returns whether it has stopped, and
    /// this is news.
    pub(crate) fn beat(&mut self, server: u16, life: &Life) -> bool {
        let newest = self.entry(usize::from(server));
        newest.position = newest.position.max(life.position);
        newest.confirmed = newest.confirmed.max(life.stored);
        life.resigns && !std::mem::replace(&mut newest.resigned, true)
    }
}

/// Whether the run has asked before, and the answer was lost.
fn is_repeated(newest: &Generation, run: u64) -> bool {
    newest.number > 0 && newest.run == run
}

/// The moment at which the process before has certainly stopped serving, if a new one has to wait
/// for it. Its lease has ended for certain at `until`.
fn stopped_at(newest: &Generation, life: &Life, until: Instant, bugs: Planted) -> Option<Instant> {
    let in_place = !life.place.is_empty() && life.place == newest.place;
    if newest.number == 0 || newest.resigned || in_place {
        return None;
    }
    // A machine that has booted again runs nothing that it ran before.
    let boot = |place: &Bytes| place.split(|byte| *byte == b' ').next().map(<[u8]>::to_vec);
    let has_booted = !newest.place.is_empty() && boot(&life.place) != boot(&newest.place);
    let is_home = !life.home.is_empty() && life.home == newest.home;
    let at_home = has_booted && (is_home || bugs.has(Bug::HomeIgnored));
    if life.replaces || at_home {
        return Some(until);
    }
    let alone = Duration::from_millis(newest.alone_ms);
    Some(until + alone + alone / 8)
}

/// The reason why the coordinator ends that hears of another run of its server, or of a newer one;
/// `None`: the member keeps to this coordinator, or to one before it.
pub(crate) fn another(own: Term, follows: Term, server: u16) -> Option<String> {
    let is_other = follows.number > own.number
        || follows.number == own.number && follows.run != own.run && own.number > 0;
    is_other.then(|| {
        format!(
            "two processes coordinate this cluster: server {server} keeps to one of generation {}, \
             and this one has generation {}. A copy of the coordinator's directory is served \
             elsewhere: end one of the two, and do not use its directory any more. If this \
             directory is the only one left, and is an old copy, start it with `pando serve \
             --restored`",
            follows.number, own.number
        )
    })
}

fn is_old(server: u16, shown: u64, known: u64) -> String {
    format!(
        "this directory of the coordinator is an old copy: server {server} has generation {shown}, \
         and the newest given by this coordinator is {known}. Serve the newest copy of the \
         directory. If it is lost, start this one with `pando serve --restored`, and run \
         `pando fsck --repair` then"
    )
}

/// The reason why the coordinator ends: its directory ended at `ends` when it began, and an earlier
/// coordinator had more on stable storage.
pub(crate) fn lacks(server: u16, at: u64, ends: u64) -> String {
    format!(
        "this directory of the coordinator is an old copy: it ended at position {ends}, and \
         server {server} knows that position {at} was on stable storage. Serve the newest copy of \
         the directory. If it is lost, start this one with `pando serve --restored`, and run \
         `pando fsck --repair` then"
    )
}

fn in_two_runs(server: u16, number: u64) -> String {
    format!(
        "generation {number} of server {server} is in another process too, so its memory was \
         copied: end one of the two, and do not use its data directory any more"
    )
}

fn behind(server: u16, life: &Life, newest: &Generation) -> String {
    format!(
        "this data directory of server {server} is an old copy: it ends at position {} in \
         generation {}, and position {} in generation {} was on stable storage. Serve the newest \
         copy of the directory. If it is lost, start this one once with `pando serve --restored`, \
         and run `pando fsck --repair` then",
        life.position, life.stored, newest.position, newest.confirmed
    )
}

fn is_served(server: u16, address: &str, ago: Duration) -> String {
    format!(
        "server {server} is being served by another process, at {address}, which was heard of {} \
         ms ago. A data directory and its copy cannot both be served: end that process first, with \
         SIGTERM, or do not start this one",
        ago.as_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(3);
    const ALONE: Duration = Duration::from_secs(80);

    fn life(place: &'static str) -> Life {
        Life {
            place: Bytes::from_static(place.as_bytes()),
            home: Bytes::from_static(place.rsplit(' ').next().unwrap().as_bytes()),
            position: 0,
            alone_ms: u64::try_from(ALONE.as_millis()).unwrap(),
            ..crate::coordinator::tests::life(place)
        }
    }

    /// A coordinator at a moment, with a server that has had generation 1 in run 1.
    struct World {
        generations: Generations,
        waiting: Waiting,
        now: Instant,
        until: Instant,
        heard: Option<Instant>,
    }

    impl World {
        fn begun() -> World {
            let now = Instant::now();
            let (generations, waiting) = Default::default();
            let mut world = World { generations, waiting, now, until: now, heard: None };
            assert_eq!(world.asks(1, &life("boot1 here")), Judged::Given(1));
            world.beats();
            world
        }

        /// The first process asks for a lease, and gets it.
        fn beats(&mut self) {
            let has = Life { generation: 1, stored: 1, ..life("boot1 here") };
            assert_eq!(self.asks(1, &has), Judged::Has(1));
            (self.until, self.heard) = (self.now + LEASE, Some(self.now));
        }

        fn asks(&mut self, run: u64, life: &Life) -> Judged {
            self.asks_of(run, life, false)
        }

        fn asks_of(&mut self, run: u64, life: &Life, restored: bool) -> Judged {
            let World { generations, waiting, now, until, heard } = self;
            let before = Before { until: *until, heard: *heard, address: "b:1" };
            let rest = (*now, restored, Planted::default());
            generations.judge(waiting, (2, run), life, before, rest)
        }
    }

    #[test]
    fn a_generation_is_given_once_and_again_only_to_the_run_that_has_it() {
        let mut world = World::begun();
        assert_eq!(world.asks(1, &life("boot1 here")), Judged::Has(1));
        assert_eq!(world.asks(2, &life("boot1 here")), Judged::Given(2));
        assert_eq!(world.asks(2, &life("boot1 here")), Judged::Has(2));
        assert_eq!(world.generations.numbers(), [0, 0, 2]);
    }

    #[test]
    fn a_restart_in_place_waits_for_nothing() {
        let mut world = World::begun();
        assert_eq!(world.asks(2, &life("boot1 here")), Judged::Given(2));
    }

    #[test]
    fn a_process_that_has_resigned_is_not_waited_for() {
        let mut world = World::begun();
        let resigns = Life { generation: 1, resigns: true, ..life("boot1 here") };
        assert!(world.generations.beat(2, &resigns) && !world.generations.beat(2, &resigns));
        assert_eq!(world.asks(2, &life("boot2 there")), Judged::Given(2));
    }

    #[test]
    fn another_boot_of_the_machine_waits_for_the_lease_alone() {
        let mut world = World::begun();
        assert_eq!(world.asks(2, &life("boot2 here")), Judged::Waits(LEASE));
        world.now += LEASE;
        assert_eq!(world.asks(2, &life("boot2 here")), Judged::Given(2));
    }

    #[test]
    fn another_place_waits_until_the_process_before_serves_nothing() {
        let mut world = World::begun();
        let wait = LEASE + ALONE + ALONE / 8;
        assert_eq!(world.asks(2, &life("boot2 there")), Judged::Waits(wait));
        world.now += LEASE;
        assert_eq!(world.asks(2, &life("boot2 there")), Judged::Waits(wait - LEASE));
        world.now += ALONE + ALONE / 8;
        assert_eq!(world.asks(2, &life("boot2 there")), Judged::Given(2));
    }

    #[test]
    fn with_the_word_of_the_operator_another_place_waits_for_the_lease_alone() {
        let mut world = World::begun();
        let replaces = Life { replaces: true, ..life("boot2 there") };
        assert_eq!(world.asks(2, &replaces), Judged::Waits(LEASE));
        world.now += LEASE;
        assert_eq!(world.asks(2, &replaces), Judged::Given(2));
    }

    #[test]
    fn places_that_are_not_known_are_not_the_same() {
        let mut world = World::begun();
        let unknown = Life { place: Bytes::new(), home: Bytes::new(), ..life("") };
        world.now = world.until + ALONE * 2;
        assert_eq!(world.asks(2, &unknown), Judged::Given(2));
        (world.until, world.heard) = (world.now + LEASE, Some(world.now));
        assert!(matches!(world.asks(3, &unknown), Judged::Waits(_)));
    }

    #[test]
    fn a_copy_of_a_directory_that_is_served_is_refused_and_the_server_goes_on() {
        let mut world = World::begun();
        let replaces = Life { replaces: true, ..life("boot2 there") };
        for (copy, on_its_way) in [(life("boot2 there"), 0), (replaces, 4)] {
            assert!(matches!(world.asks(2, &copy), Judged::Waits(_)));
            // Heartbeats that were on their way when the process before ended are no sign of it.
            for _ in 0..on_its_way {
                world.now += LEASE / 4;
                world.beats();
                assert!(matches!(world.asks(2, &copy), Judged::Waits(_)));
            }
            world.now += LEASE / 4;
            world.beats();
            let Judged::Ends(why) = world.asks(2, &copy) else { panic!("it is not refused") };
            assert!(why.contains("served by another process, at b:1"), "{why}");
            world.waiting = Waiting::default();
            world.now += LEASE / 8;
        }
        world.beats();
    }

    #[test]
    fn an_older_generation_ends_and_so_does_a_second_run_of_one() {
        let mut world = World::begun();
        assert_eq!(world.asks(2, &life("boot1 here")), Judged::Given(2));
        let old = Life { generation: 1, ..life("boot1 here") };
        let Judged::Ends(why) = world.asks(1, &old) else { panic!("it goes on") };
        assert!(why.contains("a newer process of server 2"), "{why}");
        let twin = Life { generation: 2, ..life("boot1 here") };
        let Judged::Ends(why) = world.asks(3, &twin) else { panic!("it goes on") };
        assert!(why.contains("in another process too"), "{why}");
    }

    #[test]
    fn an_old_copy_is_refused_unless_it_is_the_only_one_left() {
        let mut world = World::begun();
        let at = |position| Life { position, ..life("boot1 here") };
        world.generations.beat(2, &at(500));
        world.generations.beat(2, &at(400));
        let Judged::Ends(why) = world.asks(2, &at(499)) else { panic!("it goes on") };
        assert!(why.contains("ends at position 499 in generation 0, and position 500"), "{why}");
        assert_eq!(world.asks(3, &Life { restored: true, ..at(499) }), Judged::Given(2));
        // From now on the copy is what counts.
        assert_eq!(world.asks(4, &at(499)), Judged::Given(3));
    }

    #[test]
    fn an_old_copy_elsewhere_hears_first_whether_the_server_is_served() {
        let mut world = World::begun();
        world.generations.beat(2, &Life { position: 500, ..life("boot1 here") });
        let old = life("boot2 there");
        assert!(matches!(world.asks(2, &old), Judged::Waits(_)));
        world.now += LEASE;
        let Judged::Ends(why) = world.asks(2, &old) else { panic!("it waits for `alone`") };
        assert!(why.contains("is an old copy"), "{why}");
    }

    #[test]
    fn a_coordinator_that_is_an_old_copy_ends_unless_it_is_the_only_one_left() {
        let mut world = World::begun();
        let member = Life { generation: 7, stored: 7, ..life("boot1 here") };
        assert!(matches!(world.asks(9, &member), Judged::IsOld(_)));
        let starts = Life { stored: 7, ..life("boot1 here") };
        assert!(matches!(world.asks(9, &starts), Judged::IsOld(_)));
        assert_eq!(world.asks_of(9, &member, true), Judged::Has(7));
        assert_eq!(world.asks(9, &member), Judged::Has(7));
        assert_eq!(world.asks(10, &starts), Judged::Given(8));
    }

    #[test]
    fn a_coordinator_ends_when_a_member_keeps_to_another_one() {
        let own = Term { number: 5, run: 50 };
        assert_eq!(another(own, own, 1), None);
        assert_eq!(another(own, Term { number: 4, run: 40 }, 1), None);
        assert_eq!(another(own, Term::default(), 1), None);
        assert!(another(own, Term { number: 5, run: 51 }, 1).is_some());
        assert!(another(own, Term { number: 6, run: 60 }, 1).unwrap().contains("server 1 keeps"));
    }

    #[test]
    fn generations_are_stored_after_the_first_and_read_as_they_were() {
        let none = Generations::default();
        assert!(none.to_vec().is_empty());
        let read =
            |bytes: &[u8]| Generations::decode(&mut Reader::new(&Bytes::copy_from_slice(bytes)));
        assert_eq!(read(&[]).unwrap(), none);
        let some = World::begun().generations;
        assert_eq!(read(&some.to_vec()).unwrap(), some);
        assert!(read(&[9]).is_err());
    }
}
