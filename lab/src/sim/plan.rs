//! The parameters that a seed decides before anything happens.

use std::time::Duration;

use base::Locality;
use meta::{Durability, HomeLimits};

use super::random::SimRandom;

/// The parameters of one world.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Number of servers.
    pub servers: u16,
    /// Number of cores of each server.
    pub cores: usize,
    /// Number of machines of each server. With more than one, each server has a journal, and machines
    /// may be lost: the others stand by.
    pub machines: u16,
    /// Lease of journals.
    pub journal_lease: Duration,
    /// Time for which a server of a cluster may serve without renewing its lease.
    pub server_lease: Duration,
    /// Time for which a server goes on after that with requests that depend on no cached path.
    pub alone: Duration,
    /// Whether operations are answered before or after they are durable.
    pub durability: Durability,
    /// Whether the power is cut now and then.
    pub power_cuts: bool,
    /// Whether a power cut takes unsynced blocks, as with a local directory. Otherwise each block
    /// is stable when it is put.
    pub volatile_blocks: bool,
    /// See [`meta::ServerOptions`].
    pub commit_interval: Duration,
    /// See [`meta::ServerOptions`].
    pub lease: Duration,
    /// Number of shards.
    pub shards: u16,
    /// Number of bits of directory ids, if fewer than usual, so that ids collide.
    pub id_bits: Option<u8>,
    /// Maximum size of contents that are stored in the entry, in bytes.
    pub inline_bytes_max: u32,
    /// The policy that gives directories their homes.
    pub locality: Locality,
    /// Sizes from which a home is full, with hybrid placement.
    pub home: HomeLimits,
    /// See [`super::clock::SimClock`].
    pub fine_clock: bool,
    /// Whether most directories are divided into partitions; only with several servers.
    pub divides: bool,
    /// Number of servers that the file system is formatted for, if fewer than `servers`: the others
    /// join later ([`super::world::World::grow`]). With one, that is made a coordinator then.
    pub begins_with: Option<u16>,
    /// Whether shards may move: a server that asks for it is opened anew.
    pub moves: bool,
    /// How connections behave.
    pub weather: Weather,
    /// Upper bound, in milliseconds, of the time of a blocking call such as a sync; 0: no time.
    pub disk_ms_max: u64,
    /// Time for which a reader of a directory waits for a transaction in doubt.
    pub doubt_max: Duration,
    /// Number of entries at which a partition of a directory splits.
    pub split_threshold: u64,
    /// The subject of the workloads.
    pub about: About,
    /// Whether removed files are kept in the trash.
    pub trash: bool,
    /// When usage is counted.
    pub quotas: Quotas,
    /// Whether clients cache directories that they walked through.
    pub access_cache: bool,
    /// Whether clients ask the server of a path's last directory for the whole path.
    pub fast_paths: bool,
    /// Whether clients cache contents that they read.
    pub read_cache: bool,
    /// Maximum number of dirty bytes that a client may hold back.
    pub dirty_bytes_max: u64,
    /// About the mean time between two faults.
    pub calm: Duration,
    /// The target of some of the faults.
    pub aim: Aim,
    /// The unusual property of the world.
    pub special: Special,
}

/// The subject of the workloads of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum About {
    /// Everything.
    #[default]
    Everything,
    /// Directories that split and merge.
    Crowd,
    /// The change feed.
    Watch,
    /// Directories that mounts hold.
    Delegations,
    /// Machines that are lost, and replaced.
    Machines,
}

impl About {
    /// The option of `lab sim`, with a space before it.
    #[must_use]
    pub fn option(self) -> &'static str {
        match self {
            About::Everything => "",
            About::Crowd => " --crowd",
            About::Watch => " --watch",
            About::Delegations => " --delegations",
            About::Machines => " --machines",
        }
    }
}

/// An unusual property of a world besides its faults. A world has at most one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// No such property.
    Nothing,
    /// The disks of servers are nearly full now and then, so that changes are refused.
    SmallDisks,
    /// About half of the clients resolve paths without predicted ids.
    Sequential,
    /// Some clients have tokens that are limited to the directory of their workload.
    Limited,
    /// All servers are checked together while the workloads run.
    Checks,
}

/// The target of most faults. Usually faults hit anything at any time. In some worlds of several
/// servers most of them have one target, which chance would hit too seldom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// No target.
    Nothing,
    /// Servers die when they have just sent a message that another one relies on.
    Promises,
    /// A server and the coordinator do not reach each other for longer than a lease.
    Leases,
    /// Answers to clients come late, from one server and not from others.
    Answers,
    /// A server, or the coordinator, is dead for longer than a lease.
    Away,
    /// Machines are lost with their disks, stand still, or do not reach their journals.
    Machines,
}

/// When `/` has a quota, so that usage is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quotas {
    /// Never.
    None,
    /// Before the workloads make anything.
    Before,
    /// From some moment on.
    Meanwhile,
    /// The quota is removed meanwhile, and set again.
    Again,
}

/// How connections behave.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// Upper bound of most delays, in milliseconds.
    pub delay_ms_max: u64,
    /// One delay in this many is much longer: 5 to 80 ms.
    pub stall_one_in: u64,
    /// Whether bytes arrive in pieces of any size.
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
    /// Number of servers that a seed decides.
    #[must_use]
    pub fn servers_of(seed: u64) -> u16 {
        SimRandom::new(seed).stream("how many").pick(&[1, 1, 2, 3, 4])
    }

    /// The same plan, but servers may have several cores. In one of three worlds a server, or the
    /// coordinator, is away for longer than a lease, in place of another aim. Most worlds have
    /// something special.
    #[must_use]
    pub fn wide(self) -> Plan {
        let random = SimRandom::new(self.seed).stream("wide");
        let cores = random.pick(&[1, 2, 3]);
        let away = random.one_in(3) && self.servers > 1;
        let special = SimRandom::new(self.seed).stream("special").pick(&[
            Special::Nothing,
            Special::SmallDisks,
            Special::SmallDisks,
            Special::Sequential,
            Special::Limited,
            Special::Checks,
        ]);
        let wide = Plan { cores, aim: if away { Aim::Away } else { self.aim }, special, ..self };
        if special == Special::SmallDisks { wide.full() } else { wide }
    }

    /// The same plan, but disks are nearly full now and then. Quotas are set before.
    #[must_use]
    pub fn full(self) -> Plan {
        let quotas = match self.quotas {
            Quotas::None => Quotas::None,
            Quotas::Before | Quotas::Meanwhile | Quotas::Again => Quotas::Before,
        };
        Plan { special: Special::SmallDisks, quotas, ..self }
    }

    /// The plan that `seed` decides, with `servers` servers of one core.
    #[must_use]
    pub fn draw(seed: u64, servers: u16) -> Plan {
        let random = SimRandom::new(seed).stream("plan");
        let hybrid = SimRandom::new(seed).stream("hybrid");
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
            machines: 1,
            journal_lease: Duration::ZERO,
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
            locality: match random.pick(&[Locality::Directory, Locality::Subtree]) {
                Locality::Directory if hybrid.one_in(3) => Locality::Hybrid,
                other => other,
            },
            home: HomeLimits {
                dirs: hybrid.pick(&[2, 5, 512]),
                entries: hybrid.pick(&[6, 30, 1000]),
            },
            begins_with: None,
            moves: false,
            divides: servers > 1 && several.one_in(2),
            fine_clock: !random.one_in(3),
            weather: Weather {
                delay_ms_max: random.within(1..8),
                stall_one_in: random.within(10..200),
                pieces: random.one_in(2),
            },
            disk_ms_max: SimRandom::new(seed).stream("disk").pick(&[0, 2, 5, 15]),
            // Readers in these worlds always see the last answered state.
            doubt_max: Duration::from_secs(3600),
            split_threshold: SimRandom::new(seed).stream("splits").pick(&[3, 5, 12, 8000]),
            about: About::Everything,
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
            fast_paths: !SimRandom::new(seed).stream("fast paths").one_in(4),
            read_cache: !random.one_in(3),
            dirty_bytes_max: random.pick(&[10_000, 1 << 20, 64 << 20]),
            calm: random.ms(60..400),
            aim,
            special: Special::Nothing,
        }
    }

    /// Draws the plan of worlds that are about this.
    #[must_use]
    pub fn draw_about(about: About, seed: u64, servers: u16) -> Plan {
        match about {
            About::Everything => Plan::draw(seed, servers),
            About::Crowd => Plan::draw_crowd(seed, servers),
            About::Watch => Plan { about, ..Plan::draw(seed, servers) },
            // No directory is granted where each answer is durable, nor below a quota.
            About::Delegations => Plan {
                about,
                durability: Durability::Relaxed,
                power_cuts: false,
                volatile_blocks: false,
                trash: false,
                quotas: Quotas::None,
                ..Plan::draw(seed, servers)
            },
            About::Machines => Plan::draw_machines(seed, servers),
        }
    }

    /// Like [`Plan::draw`], but each server has a journal and machines that stand by.
    #[must_use]
    pub fn draw_machines(seed: u64, servers: u16) -> Plan {
        let random = SimRandom::new(seed).stream("machines");
        let journal_lease = random.ms(300..2500);
        let plan = Plan::draw(seed, servers);
        Plan {
            about: About::Machines,
            machines: random.pick(&[2, 3]),
            journal_lease,
            // Sessions outlast takeovers, also of several servers one after the other.
            lease: plan.lease + 6 * (journal_lease + plan.server_lease),
            // A lost machine takes what is not stable.
            power_cuts: true,
            volatile_blocks: false,
            aim: Aim::Machines,
            ..plan
        }
    }

    /// Like [`Plan::draw`], but names move between partitions all the time.
    #[must_use]
    pub fn draw_crowd(seed: u64, servers: u16) -> Plan {
        let random = SimRandom::new(seed).stream("crowd");
        let shards = random.pick(&[5, 16]).max(servers);
        let split_threshold = random.pick(&[3, 6, 12]);
        let id_bits = random.one_in(3).then_some(9);
        let plan = Plan::draw(seed, servers);
        Plan {
            about: About::Crowd,
            // Answered changes are never lost.
            durability: Durability::Strict,
            shards,
            split_threshold,
            id_bits,
            locality: match plan.locality {
                // Directories with one id are in one place only where the id says the place.
                Locality::Hybrid if id_bits.is_some() => Locality::Directory,
                other => other,
            },
            ..plan
        }
    }

    /// Whether directories may be in several partitions.
    #[must_use]
    pub fn may_divide(&self) -> bool {
        self.servers > 1 && (self.divides || self.split_threshold < 100)
    }

    /// Whether nearly full disks may refuse changes.
    #[must_use]
    pub fn has_small_disks(&self) -> bool {
        self.special == Special::SmallDisks
    }

    /// Whether a power cut may lose a change of a directory, and not a later one: each server loses
    /// the end of what it has done itself. A rename of a directory is the coordinator's.
    #[must_use]
    pub fn loses_apart(&self) -> bool {
        self.may_divide() || self.machines > 1 && self.servers > 1
    }

    /// Whether a power cut may lose answered changes.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        self.power_cuts && self.durability == Durability::Relaxed
    }
}
