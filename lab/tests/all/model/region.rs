//! A region over a file system in memory answers as the model does, whatever is committed when; and
//! at the end the file system below has the same tree.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

use base::{Acl, FileKind, FsError, Time};
use client::FileSystem as _;
use futures::{
    executor::{LocalPool, LocalSpawner, block_on},
    task::LocalSpawnExt as _,
};
use lab::{
    clock::HandClock,
    ops::{Difference, Op, Rules, Seen, Step, Tallies, compare, search},
};
use region::{Calls, Front, Lead, Memory, Region, Settings, Verify};

use super::{KEY, START, STEPS_MAX, model, tree::tree};

/// How a region is set up, and how much is committed before each step.
#[derive(Debug, Clone, Copy)]
struct Case {
    settings: Settings,
    /// After how many steps something is committed, and how much.
    commits: Option<(usize, usize)>,
    compared: fn(Seen) -> Seen,
    /// Operations that are tried.
    tried: fn(&Op) -> bool,
    /// Whether calls below fail now and then.
    fails: bool,
    /// Whether programs work on two other machines than the one that has the region.
    elsewhere: bool,
}

/// Failures that pass.
const PASSING: [FsError; 4] =
    [FsError::Io, FsError::NoSpace, FsError::QuotaExceeded, FsError::Stale];

/// A region does not promise the size of directories, access times of reads, or times of birth.
fn compared(seen: Seen) -> Seen {
    let is_dir = seen.kind == FileKind::Directory;
    let size = if is_dir { 0 } else { seen.size };
    Seen { size, atime: Time::default(), btime: Time::default(), ..seen }
}

/// The same; and a change of attributes below shows when it was committed there.
fn compared_below(seen: Seen) -> Seen {
    Seen { ctime: Time::default(), ..compared(seen) }
}

/// Of a large file that other machines have seen, each change has a later time, also where the clock
/// of the model stands still.
fn in_seconds(seen: Seen) -> Seen {
    Seen { mtime: Time { nsec: 0, ..seen.mtime }, ..seen }
}

fn small(inline_max: usize) -> Settings {
    Settings { inline_max, ..Settings::default() }
}

/// The largest file of a local file system, or less.
const FILE_MAX: u64 = 1 << 40;

/// Whether an operation stays within files as local file systems have them.
fn is_small(op: &Op) -> bool {
    match op {
        Op::Truncate { size, .. } => *size < FILE_MAX,
        Op::Write { offset, .. } | Op::Read { offset, .. } | Op::Seek { offset, .. } => {
            *offset < FILE_MAX
        }
        Op::Allocate { offset, len, .. } => *offset < FILE_MAX && *len < FILE_MAX && *len > 0,
        Op::CopyRange { offset, to_offset, len, .. } => offset.max(to_offset).max(len) < &FILE_MAX,
        _ => true,
    }
}

/// Everything but extended attributes.
fn without_xattrs(op: &Op) -> bool {
    use Op::{Removexattr, SetAcl, Setxattr, Xattrs};
    !matches!(op, Setxattr { .. } | SetAcl { .. } | Removexattr { .. } | Xattrs { .. })
}

/// Extended attributes that local file systems have, and no open files: what has no name has none
/// of them in a region.
fn without_opens(op: &Op) -> bool {
    match op {
        // A kernel refuses all others before they come to a file system.
        Op::Setxattr { name, len, .. } => name.starts_with("user.a") && *len <= 1_000,
        Op::Removexattr { name, .. } => name.starts_with("user.a"),
        Op::SetAcl { acl: Some(acl), .. } => Acl::parse(acl).is_ok_and(|acl| acl.is_some()),
        Op::Create { open, .. } => open.is_none(),
        Op::Tmpfile { .. } | Op::Open { .. } => false,
        _ => true,
    }
}

/// A region over `memory`, which somebody else has left as it is.
fn over(memory: &Memory, clock: &HandClock, settings: Settings) -> Region {
    let below = Arc::new(memory.clone());
    Region::new(below, Calls::Here, settings, Arc::new(clock.clone()), KEY).expect("it has a root")
}

/// A front end of another machine, over a pipe.
fn front(region: &Region, spawner: &LocalSpawner) -> Front {
    let (here, there) = tokio::io::duplex(1 << 20);
    let joined = Lead::new(region.clone()).join("elsewhere".to_owned()).expect("it does not end");
    let (front, carry) = Front::over(there, region.root().1);
    spawner.spawn_local(joined.serve(here)).expect("the pool is there");
    spawner.spawn_local(carry).expect("the pool is there");
    front
}

fn run(case: Case, steps: &[Step], tallies: &mut Tallies) -> Result<(), Difference> {
    let clock = HandClock::at(START);
    let models = model(&clock, [true; 2], 4096);
    let memory = Memory::new(Arc::new(clock.clone()));
    let region = over(&memory, &clock, case.settings);
    let count = Cell::new(0_usize);
    let settle = async || {
        region.check();
        count.set(count.get() + 1);
        if case.fails && count.get().is_multiple_of(3) {
            memory.heal();
            memory.fail_next(2, PASSING[count.get() / 3 % PASSING.len()]);
        }
        if let Some((every, jobs)) = case.commits
            && count.get().is_multiple_of(every)
        {
            // No change waits for others that one commit could take along.
            clock.tick();
            region.commit(jobs);
            region.check();
        }
    };
    let steps: Vec<Step> =
        steps.iter().filter(|step| is_small(&step.op) && (case.tried)(&step.op)).cloned().collect();
    let rules = Rules { page_entries: (2, 100), compared: case.compared, ..Rules::default() };
    let compared = if case.elsewhere {
        let mut pool = LocalPool::new();
        let fronts = [(); 2].map(|()| front(&region, &pool.spawner()));
        let sides = (&fronts[..], &models[..]);
        let compared = pool.run_until(compare(&clock, rules, sides, &steps, tallies, settle));
        fronts.iter().for_each(Front::close);
        pool.run();
        compared
    } else {
        let sides = (std::slice::from_ref(&region), &models[..1]);
        block_on(compare(&clock, rules, sides, &steps, tallies, settle))
    };
    // A region over a disk that fails answers with its errors; it loses nothing all the same.
    if !case.fails {
        compared?;
    }
    memory.heal();
    region.check();
    block_on(region.sync()).expect("nothing fails below");
    let progress = region.progress();
    assert_eq!((progress.dirty, progress.late, progress.failed), (0, 0, 0), "{progress:?}");
    assert!(progress.counts.add_up(), "{progress:?}");
    let differences = block_on(region.verify(Verify::All)).expect("nothing fails below");
    assert!(differences.is_empty(), "{differences:?}");
    // Somebody else, who knows nothing of the region, sees the same.
    let fresh = over(&memory, &clock, case.settings);
    let (here, there) =
        block_on(async { (tree(&region).await.copied(), tree(&fresh).await.copied()) });
    let unlike = here.unlike(&there);
    assert!(unlike.is_empty(), "{unlike:?}\n{:?}", there.unlike(&here));
    Ok(())
}

fn passes(case: Case, cases: u32) -> Tallies {
    let tallies = RefCell::new(Tallies::new());
    let found = search(cases, 1, STEPS_MAX, |steps| run(case, steps, &mut tallies.borrow_mut()));
    assert!(found.is_none(), "{case:?}\n{}", found.expect("checked"));
    tallies.into_inner()
}

#[test]
fn a_region_answers_as_the_model_does_and_leaves_the_same_below() {
    answers_as_the_model(false, 250);
}

#[test]
fn a_region_answers_two_other_machines_as_the_model_does() {
    answers_as_the_model(true, 100);
}

fn answers_as_the_model(elsewhere: bool, cases: u32) {
    let mut done = Tallies::new();
    for commits in [None, Some((1, 1)), Some((3, 16))] {
        for inline_max in [16, 4096] {
            type Tried = (fn(&Op) -> bool, fn(Seen) -> Seen);
            let both: [Tried; 2] = if elsewhere {
                [
                    (without_xattrs, |seen| in_seconds(compared(seen))),
                    (without_opens, |seen| in_seconds(compared_below(seen))),
                ]
            } else {
                [(without_xattrs, compared), (without_opens, compared_below)]
            };
            for (tried, compared) in both {
                let case = Case {
                    settings: small(inline_max),
                    commits,
                    compared,
                    tried,
                    fails: false,
                    elsewhere,
                };
                for (kind, tally) in passes(case, cases) {
                    // Few attributes are there to be removed.
                    done.entry(kind).or_default().done += tally.done + tally.refused;
                }
            }
        }
    }
    for (kind, tally) in done {
        assert!(tally.done > 0, "{kind} was never tried");
    }
}

#[test]
fn a_region_over_a_disk_that_fails_now_and_then_loses_nothing() {
    for commits in [Some((1, 1)), Some((3, 16))] {
        let tried = |op: &Op| without_xattrs(op) && is_small(op);
        passes(
            Case { settings: small(16), commits, compared, tried, fails: true, elsewhere: false },
            300,
        );
    }
}
