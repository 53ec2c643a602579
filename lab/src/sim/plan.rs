//! What a seed decides before anything happens.

use std::time::Duration;

use base::Locality;
use meta::Durability;

use super::random::SimRandom;

/// One world.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// How many servers there are.
    pub servers: u16,
    /// How many cores each of them has.
    pub cores: usize,
    /// For how long a server of several may serve without being heard of.
    pub server_lease: Duration,
    /// For how long it goes on after that with what stands on no cached path.
    pub alone: Duration,
    /// When operations are answered.
    pub durability: Durability,
    /// The power is cut now and then.
    pub power_cuts: bool,
    /// A power cut takes blocks that were not synced, as of a local directory; otherwise each is
    /// stable when it is put.
    pub volatile_blocks: bool,
    /// See [`meta::ServerOptions`].
    pub commit_interval: Duration,
    /// See [`meta::ServerOptions`].
    pub lease: Duration,
    /// Shards.
    pub shards: u16,
    /// Ids of directories have only so many bits, so that they collide.
    pub id_bits: Option<u8>,
    /// Contents up to so many bytes are in the entry.
    pub inline_bytes_max: u32,
    /// Which home directories get.
    pub locality: Locality,
    /// See [`super::clock::SimClock`].
    pub fine_clock: bool,
    /// In a file system of several servers: directories are divided, mostly.
    pub divides: bool,
    /// How connections behave.
    pub weather: Weather,
    /// What blocks, as a sync does, takes less than so many milliseconds; 0: no time.
    pub disk_ms_max: u64,
    /// What is shown of a directory waits so long for a transaction in doubt.
    pub doubt_max: Duration,
    /// A partition of a directory with so many entries splits.
    pub split_threshold: u64,
    /// The workloads are about directories that split and merge.
    pub crowd: bool,
    /// What is removed is kept in the trash.
    pub trash: bool,
    /// Whether what is used is counted.
    pub quotas: Quotas,
    /// Clients keep directories that they walked through.
    pub access_cache: bool,
    /// Clients keep contents that they read.
    pub read_cache: bool,
    /// Contents that a client may hold back, bytes.
    pub dirty_bytes_max: u64,
    /// The mean time between two faults.
    pub calm: Duration,
    /// What some of the faults are aimed at.
    pub aim: Aim,
}

/// Faults hit anything at any time. In some worlds of several servers most of them are aimed at one
/// thing, which would be hit by chance too seldom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// At nothing.
    Nothing,
    /// Servers die when they have just sent what another one relies on.
    Promises,
    /// A server and the coordinator do not reach each other for longer than a lease.
    Leases,
    /// Answers to clients come late, from one server and not from others.
    Answers,
    /// A server, or the coordinator, is dead for longer than a lease.
    Away,
}

/// When `/` has a quota, so that what is used is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quotas {
    /// Never.
    None,
    /// Before anything is made.
    Before,
    /// From some moment on.
    Meanwhile,
    /// It is taken away meanwhile, and set again.
    Again,
}

/// How connections behave.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// Most delays are below so many milliseconds.
    pub delay_ms_max: u64,
    /// One in so many is much longer.
    pub stall_one_in: u64,
    /// Bytes arrive in pieces.
    pub pieces: bool,
}

impl Weather {
    /// The delay of one piece.
    #[must_use]
    pub fn delay(&self, random: &SimRandom) -> Duration {
        if random.one_in(self.stall_one_in) {
            random.ms(5..80)
        } else {
            random.ms(0..self.delay_ms_max)
        }
    }
}

impl Plan {
    /// How many servers a seed has.
    #[must_use]
    pub fn servers_of(seed: u64) -> u16 {
        SimRandom::new(seed).stream("how many").pick(&[1, 1, 2, 3, 4])
    }

    /// As it is, but servers may have several cores, and in one of three worlds a server, or the
    /// coordinator, is away for longer than a lease, in place of other faults that are aimed at
    /// something.
    #[must_use]
    pub fn wide(self) -> Plan {
        let random = SimRandom::new(self.seed).stream("wide");
        let cores = random.pick(&[1, 2, 3]);
        let away = random.one_in(3) && self.servers > 1;
        Plan { cores, aim: if away { Aim::Away } else { self.aim }, ..self }
    }

    /// What `seed` decides, with as many servers of one core.
    #[must_use]
    pub fn draw(seed: u64, servers: u16) -> Plan {
        let random = SimRandom::new(seed).stream("plan");
        let strict = random.one_in(2);
        let power_cuts = random.one_in(2);
        let several = SimRandom::new(seed).stream("servers");
        let server_lease = several.ms(400..3000);
        let aim = match servers {
            1 => Aim::Nothing,
            _ => several.pick(&[Aim::Nothing, Aim::Promises, Aim::Leases, Aim::Answers]),
        };
        Plan {
            seed,
            servers,
            cores: 1,
            server_lease,
            alone: SimRandom::new(seed)
                .stream("alone")
                .pick(&[Duration::ZERO, Duration::from_secs(600)]),
            durability: if strict { Durability::Strict } else { Durability::Relaxed },
            power_cuts,
            volatile_blocks: power_cuts && SimRandom::new(seed).stream("blocks").one_in(2),
            commit_interval: random.ms(1..200),
            lease: random.ms(3000..12_000),
            shards: random.pick(&[1, 2, 5, 16]).max(servers),
            id_bits: None,
            inline_bytes_max: random.pick(&[0, 100, 4096]),
            locality: random.pick(&[Locality::Directory, Locality::Subtree]),
            divides: servers > 1 && several.one_in(2),
            fine_clock: !random.one_in(3),
            weather: Weather {
                delay_ms_max: random.within(1..8),
                stall_one_in: random.within(10..200),
                pieces: random.one_in(2),
            },
            disk_ms_max: SimRandom::new(seed).stream("disk").pick(&[0, 2, 5, 15]),
            // What is shown in these worlds is always what was answered last.
            doubt_max: Duration::from_secs(3600),
            split_threshold: SimRandom::new(seed).stream("splits").pick(&[3, 5, 12, 8000]),
            crowd: false,
            trash: SimRandom::new(seed).stream("trash").one_in(3),
            quotas: SimRandom::new(seed).stream("quotas").pick(&[
                Quotas::None,
                Quotas::None,
                Quotas::None,
                Quotas::Before,
                Quotas::Meanwhile,
                Quotas::Again,
            ]),
            access_cache: !random.one_in(4) || matches!(aim, Aim::Leases | Aim::Answers),
            read_cache: !random.one_in(3),
            dirty_bytes_max: random.pick(&[10_000, 1 << 20, 64 << 20]),
            calm: random.ms(60..400),
            aim,
        }
    }

    /// As [`Plan::draw`], but names are about to move all the time.
    #[must_use]
    pub fn draw_crowd(seed: u64, servers: u16) -> Plan {
        let random = SimRandom::new(seed).stream("crowd");
        Plan {
            crowd: true,
            // What was answered stays.
            durability: Durability::Strict,
            shards: random.pick(&[5, 16]).max(servers),
            split_threshold: random.pick(&[3, 6, 12]),
            id_bits: random.one_in(3).then_some(9),
            ..Plan::draw(seed, servers)
        }
    }

    /// Directories may be in several partitions.
    #[must_use]
    pub fn may_divide(&self) -> bool {
        self.servers > 1 && (self.divides || self.split_threshold < 100)
    }

    /// A power cut may lose what was answered.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        self.power_cuts && self.durability == Durability::Relaxed
    }
}
