//! The mount over the model in memory, and over a client of a server in memory, used as programs
//! use it: each test is one rule.
//!
//! Needs `/dev/fuse` and root; without them these tests fail, they are not skipped.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

#[path = "mounted/acls.rs"]
mod acls;
#[path = "mounted/attributes.rs"]
mod attributes;
#[path = "mounted/caches.rs"]
mod caches;
#[path = "mounted/contents.rs"]
mod contents;
#[path = "mounted/ends.rs"]
mod ends;
#[path = "mounted/handles.rs"]
mod handles;
#[path = "mounted/harness.rs"]
mod harness;
#[path = "mounted/listings.rs"]
mod listings;
#[path = "mounted/locks.rs"]
mod locks;
#[path = "mounted/names.rs"]
mod names;
#[path = "mounted/ofd.rs"]
mod ofd;
#[path = "mounted/options.rs"]
mod options;
#[path = "mounted/probe.rs"]
mod probe;
#[path = "mounted/races.rs"]
mod races;
#[path = "mounted/ranges.rs"]
mod ranges;
#[path = "mounted/renames.rs"]
mod renames;
#[path = "mounted/requests.rs"]
mod requests;
#[path = "mounted/unnamed.rs"]
mod unnamed;
#[path = "mounted/users.rs"]
mod users;
#[path = "mounted/waits.rs"]
mod waits;
#[path = "../../client/tests/all/world.rs"]
#[allow(dead_code, reason = "this server is never killed")]
mod world;
#[path = "mounted/xattrs.rs"]
mod xattrs;

/// Exit code of a test program in which a test has failed.
const FAILED_TEST: i32 = 101;

/// Plays the role that a test names in the environment of a child process. As a test: a child
/// without a part to play fails.
#[test]
fn child_role() {
    let Ok(role) = std::env::var("MOUNT_TEST_ROLE") else {
        let status = harness::start_role("nothing", std::path::Path::new("/")).end();
        assert_eq!(status.code(), Some(FAILED_TEST), "{status}");
        return;
    };
    let path = std::path::PathBuf::from(std::env::var_os("MOUNT_TEST_PATH").unwrap());
    match role.as_str() {
        "stat" => drop(std::fs::metadata(&path)),
        "read" => drop(std::fs::read(&path)),
        "mkdir" => std::fs::create_dir(&path).unwrap(),
        "map" => contents::write_and_read_through_maps(&path),
        "flock" => locks::hold(&path, locks::flock_alone),
        "fcntl" => locks::hold(&path, locks::fcntl_alone),
        "ofd" => ofd::wait_for(&path),
        "ping" => contents::count_in_turn(&path, 0),
        "pong" => contents::count_in_turn(&path, 1),
        "umask" => names::make_with_umask(&path),
        _ => panic!("no such role: {role}"),
    }
}
