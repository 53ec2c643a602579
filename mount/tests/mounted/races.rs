//! Two mounts that remove and make the same names at the same time: no program sees ESTALE of a
//! path.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::harness::{Mounted, Way, mount, new_model};

/// How often the directory is made and removed.
const ROUNDS: usize = 1500;
/// Number of rounds where no change came between in the first ones: that depends on scheduling.
const ROUNDS_MAX: usize = 10 * ROUNDS;

/// The outcomes of the system calls of one thread, by errno; 0 is success.
type Outcomes = BTreeMap<(&'static str, i32), usize>;

type Call = (&'static str, fn(&Path, &Path) -> io::Result<()>);

/// The calls that make a name below `dir`, or use the one that is there; `beside` is a directory
/// that stays.
const CALLS: &[Call] = &[
    ("create", |dir, _| File::create(dir.join("file")).map(drop)),
    ("create_new", |dir, _| File::create_new(dir.join("new")).map(drop)),
    ("mkdir", |dir, _| fs::create_dir(dir.join("sub"))),
    ("symlink", |dir, _| std::os::unix::fs::symlink("x", dir.join("symlink"))),
    ("link", |dir, beside| fs::hard_link(beside.join("linked"), dir.join("link"))),
    ("rename", |dir, beside| {
        fs::write(beside.join("moved"), "")?;
        fs::rename(beside.join("moved"), dir.join("moved"))
    }),
    ("rename a directory", |dir, beside| {
        match fs::create_dir(beside.join("tree")) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        fs::rename(beside.join("tree"), dir.join("tree"))
    }),
    ("rename out", |dir, beside| fs::rename(dir.join("file"), beside.join("out"))),
    ("stat", |dir, _| fs::metadata(dir).map(drop)),
    ("stat inside", |dir, _| fs::metadata(dir.join("file")).map(drop)),
    ("open", |dir, _| File::open(dir).map(drop)),
    ("chmod", |dir, _| {
        fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755))
    }),
    ("unlink", |dir, _| fs::remove_file(dir.join("symlink"))),
    ("rmdir", |dir, _| fs::remove_dir(dir.join("sub"))),
];

fn count(outcomes: &mut Outcomes, call: &'static str, done: &io::Result<()>) {
    let errno = done.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(-1));
    *outcomes.entry((call, errno)).or_default() += 1;
}

/// Calls of which the race must have seen both outcomes. A mount may answer EEXIST from its cache
/// for the others; these ask the server whenever the name was there before.
const MUST_MEET: &[&str] = &["create", "rename"];

/// Observations of a thread that makes a name in the directory that comes and goes.
#[derive(Default)]
struct Seen {
    there: AtomicBool,
    gone: AtomicBool,
}

impl Seen {
    fn note(&self, done: &io::Result<()>) {
        match done.as_ref().map_err(io::Error::raw_os_error) {
            Ok(()) => self.there.store(true, Ordering::Relaxed),
            Err(Some(libc::ENOENT)) => self.gone.store(true, Ordering::Relaxed),
            Err(_) => {}
        }
    }

    fn both(&self) -> bool {
        self.there.load(Ordering::Relaxed) && self.gone.load(Ordering::Relaxed)
    }
}

/// Uses the directory in every way until `stop`.
fn use_it(dir: &Path, beside: &Path, seen: &Seen, stop: &AtomicBool) -> Outcomes {
    let mut outcomes = Outcomes::new();
    fs::write(beside.join("linked"), "").unwrap();
    while !stop.load(Ordering::Relaxed) {
        for (call, make) in CALLS {
            let done = make(dir, beside);
            if MUST_MEET.contains(call) {
                seen.note(&done);
            }
            count(&mut outcomes, call, &done);
        }
    }
    outcomes
}

/// Makes and removes the directory, over and over, until all has been seen; it is there at the end.
fn make_and_remove(dir: &Path, seen: &Seen) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS && seen.both() {
            break;
        }
        count(&mut outcomes, "the maker's mkdir", &fs::create_dir(dir));
        for file in ["file", "new", "symlink", "link", "moved"] {
            count(&mut outcomes, "the maker's unlink", &fs::remove_file(dir.join(file)));
        }
        for below in ["sub", "tree"] {
            count(&mut outcomes, "the maker's rmdir", &fs::remove_dir(dir.join(below)));
        }
        // Others may add to it meanwhile: then it stays until the next round.
        count(&mut outcomes, "the maker's removal", &fs::remove_dir(dir));
    }
    fs::create_dir_all(dir).unwrap();
    outcomes
}

fn race(mounts: [&Mounted; 2], name: &str) {
    let (stop, seen) = (AtomicBool::new(false), Seen::default());
    let mut outcomes = std::thread::scope(|scope| {
        let users: Vec<_> = (0..2)
            .map(|user| {
                let beside: PathBuf = mounts[1].path(&format!("beside{user}"));
                fs::create_dir_all(&beside).unwrap();
                let (dir, stop, seen) = (mounts[1].path(name), &stop, &seen);
                scope.spawn(move || use_it(&dir, &beside, seen, stop))
            })
            .collect();
        let mut outcomes = make_and_remove(&mounts[0].path(name), &seen);
        stop.store(true, Ordering::Relaxed);
        for user in users {
            for (key, count) in user.join().unwrap() {
                *outcomes.entry(key).or_default() += count;
            }
        }
        outcomes
    });
    let met_both = seen.both();
    let seen = format!("{outcomes:?}");
    // Others came between: the test has seen what it is about.
    assert!(met_both, "{seen}");
    outcomes.retain(|(_, errno), _| *errno == libc::ESTALE);
    assert!(outcomes.is_empty(), "ESTALE: {outcomes:?} of {seen}");
    // The kernel may have cached anything: a name is made in the directory that is there now.
    File::create(mounts[1].path(name).join("at last")).unwrap();
    assert!(mounts[0].path(name).join("at last").exists());
}

#[test]
fn a_race_with_the_removal_of_a_directory_never_ends_in_estale() {
    for way in [Way::default(), Way::late(), Way::uncached()] {
        let model = new_model();
        let [one, other] = [mount(&model, &way), mount(&model, &way)];
        race([&one, &other], "dir");
        fs::create_dir(one.path("above")).unwrap();
        race([&one, &other], "above/dir");
        one.unmount();
        other.unmount();
    }
}

#[test]
fn what_is_made_in_a_directory_that_another_mount_has_made_again_is_made() {
    let model = new_model();
    let [one, other] = [mount(&model, &Way::cached()), mount(&model, &Way::cached())];
    for (index, (call, make)) in CALLS.iter().enumerate() {
        let name = format!("dir{index}");
        let beside = other.path(&format!("beside{index}"));
        fs::create_dir(&beside).unwrap();
        fs::write(beside.join("linked"), "").unwrap();
        fs::create_dir(one.path(&name)).unwrap();
        // The other mount's kernel believes this directory for the length of the test.
        assert!(other.path(&name).is_dir());
        fs::remove_dir(one.path(&name)).unwrap();
        fs::create_dir(one.path(&name)).unwrap();
        fs::write(one.path(&name).join("file"), "").unwrap();
        fs::create_dir(one.path(&name).join("sub")).unwrap();
        fs::write(one.path(&name).join("symlink"), "").unwrap();
        let made = make(&other.path(&name), &beside);
        match (*call, made.as_ref().map_err(|error| error.raw_os_error())) {
            (_, Ok(())) => {}
            ("mkdir" | "symlink", Err(Some(libc::EEXIST))) => {}
            // The directory that was there until just now had no such name.
            ("rename out" | "stat inside" | "unlink" | "rmdir", Err(Some(libc::ENOENT))) => {}
            (_, Err(_)) => panic!("{call}: {made:?}"),
        }
    }
    one.unmount();
    other.unmount();
}
