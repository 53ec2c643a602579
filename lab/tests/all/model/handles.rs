//! Links of open files by their handles, in sessions that may see only a subtree: several servers
//! answer as one does, and what has left the subtree gets no name in it.

use std::time::Duration;

use base::{EntryName, FsError, SetTime, Time};
use client::{Client, Error, File, FileSystem};
use lab::{clock::HandClock, ops::User};
use tokio::time::Instant;
use wire::{NodeRef, RenameMode, Token, XattrMode};

use super::{
    START,
    real::USUAL,
    world::{Setup, World, in_world},
};

/// Number of directories of each kind: their servers are several.
const DIRS: usize = 6;
/// Longest time until a refusal that is final. Many tries with pauses take longer.
const AT_ONCE: Duration = Duration::from_millis(500);

/// An administrator, and a user of a session that may see only `/sub`.
struct Two {
    admin: Client,
    ann: Client,
}

/// Runs a test with one server and with three.
fn with_servers(test: impl AsyncFn(&World, &Two)) {
    for servers in [1, 3] {
        let setup = Setup { servers, ..USUAL.setup };
        in_world(setup, &HandClock::at(START), async |world| {
            world.mkdir("sub").await;
            world.mkdir("out").await;
            let everything = Token::administrator();
            let admin = world.client(&everything, false).await;
            let subtree = Token { path: "/sub".to_owned(), ..everything };
            let limited = world.client(&subtree, false).await;
            let ann = limited.as_user(User::Ann.cred());
            let two = Two { admin, ann };
            for at in 0..DIRS {
                for dir in ["from", "to"] {
                    let path = format!("/sub/{dir}{at}");
                    two.admin.mkdir(&path, 0o777).await.unwrap();
                    two.admin.chmod(&path, 0o777).await.unwrap();
                }
            }
            test(world, &two).await;
            let found = world.fsck().await.findings;
            assert!(found.is_empty(), "{servers} servers: {found:?}");
        });
    }
}

impl Two {
    /// Makes `/from{at}/f`, and has Ann open it.
    async fn opened(&self, at: usize) -> File {
        let path = format!("/from{at}/f");
        self.admin.write(format!("/sub{path}"), b"opened").await.unwrap();
        self.ann.open(&path).await.unwrap()
    }
}

/// The refusal of a link, which must come at once.
async fn refused(file: &File, path: &str) -> FsError {
    let began = Instant::now();
    let linked = file.link(path).await;
    let took = began.elapsed();
    assert!(took < AT_ONCE, "{path}: {linked:?} after {took:?}");
    match linked {
        Err(Error::Fs(error)) => error,
        other => panic!("{path}: {other:?}"),
    }
}

#[test]
fn an_open_file_gets_a_name_though_its_directory_may_not_be_searched_any_more() {
    with_servers(async |_, two| {
        let Two { admin, ann } = two;
        for at in 0..DIRS {
            let file = two.opened(at).await;
            admin.chmod(format!("/sub/from{at}"), 0o700).await.unwrap();
            let name = EntryName::new(b"bobs").unwrap();
            for to in 0..DIRS {
                file.link(format!("/to{to}/of{at}")).await.unwrap();
                // A user of the same session that has not opened the file may not.
                let NodeRef::Dir(dir) = ann.resolve(format!("/to{to}")).await.unwrap() else {
                    panic!("it was made as a directory")
                };
                let (bob, node) = (User::Bob.cred(), file.node());
                let linked = FileSystem::link(ann, &bob, &node, &dir, &name).await;
                assert_eq!(linked.unwrap_err(), Error::Fs(FsError::Denied));
            }
            assert_eq!(admin.stat(format!("/sub/from{at}/f")).await.unwrap().nlink, 7);
            file.close().await.unwrap();
        }
    });
}

#[test]
fn a_file_without_a_name_gets_one_in_a_subtree_whichever_server_has_it() {
    with_servers(async |_, Two { admin, ann }| {
        for at in 0..DIRS {
            for closed in [false, true] {
                let file = ann.tmpfile(format!("/from{at}"), 0o644, true).await.unwrap();
                let mode = if closed { 0o700 } else { 0o777 };
                admin.chmod(format!("/sub/from{at}"), mode).await.unwrap();
                let path = format!("/to{}/of{at}{closed}", (at + 1) % DIRS);
                file.link(&path).await.unwrap();
                assert_eq!(ann.stat(&path).await.unwrap().nlink, 1);
                file.close().await.unwrap();
            }
        }
    });
}

#[test]
fn what_has_left_the_subtree_is_told_so_at_once() {
    with_servers(async |_, two| {
        let admin = &two.admin;
        for at in 0..DIRS {
            let file = two.opened(at).await;
            let (from, out) = (format!("/sub/from{at}"), format!("/out/{at}"));
            admin.rename(format!("{from}/f"), format!("/out/f{at}")).await.unwrap();
            for to in 0..DIRS {
                assert_eq!(refused(&file, &format!("/to{to}/f")).await, FsError::Stale);
            }
            file.close().await.unwrap();
            let file = two.opened(at).await;
            admin.chmod(&from, 0o700).await.unwrap();
            admin.rename(&from, &out).await.unwrap();
            for to in 0..DIRS {
                assert_eq!(refused(&file, &format!("/to{to}/f")).await, FsError::Stale);
            }
            file.close().await.unwrap();
        }
    });
}

#[test]
fn an_open_file_in_the_trash_is_not_found_in_a_subtree() {
    with_servers(async |_, two| {
        let Two { admin, ann } = two;
        admin.set_xattr("/", "pando.trash_days", b"1", XattrMode::Set).await.unwrap();
        // All servers have learnt it then.
        tokio::time::sleep(Duration::from_secs(20)).await;
        for at in 0..DIRS {
            let file = two.opened(at).await;
            ann.unlink(format!("/from{at}/f")).await.unwrap();
            for to in 0..DIRS {
                assert_eq!(refused(&file, &format!("/to{to}/f")).await, FsError::NotFound);
            }
            file.close().await.unwrap();
        }
    });
}

#[test]
fn an_open_file_is_known_by_the_name_that_its_client_gave_it_last() {
    with_servers(async |_, two| {
        let ann = &two.ann;
        for at in 0..DIRS {
            let file = two.opened(at).await;
            let [given, moved, last] =
                ["given", "moved", "last"].map(|text| format!("/to{at}/{text}"));
            file.link(&given).await.unwrap();
            ann.rename(&given, &moved).await.unwrap();
            ann.unlink(format!("/from{at}/f")).await.unwrap();
            file.link(&last).await.unwrap();
            assert_eq!(ann.read(&last).await.unwrap(), &b"opened"[..]);
            file.close().await.unwrap();
        }
    });
}

#[test]
fn an_open_file_keeps_the_name_that_is_left_whatever_its_client_does_to_the_others() {
    with_servers(async |_, two| {
        let Two { admin, ann } = two;
        for at in 0..DIRS {
            let path = |name: &str| format!("/to{at}/{name}");
            let from = format!("/from{at}/f");
            let again = async |file: File, name: &str| {
                file.link(path(name)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(ann.read(path(name)).await.unwrap(), &b"opened"[..]);
                file.close().await.unwrap();
            };
            // Another file is moved over the name by which it was opened.
            let file = two.opened(at).await;
            file.link(path("beside")).await.unwrap();
            ann.write(path("other"), b"other").await.unwrap();
            ann.rename(path("other"), &from).await.unwrap();
            again(file, "after a rename").await;

            // The name that it was given changes places with another file.
            ann.unlink(&from).await.unwrap();
            let file = two.opened(at).await;
            file.link(path("given")).await.unwrap();
            ann.write(path("other"), b"other").await.unwrap();
            let exchange = RenameMode::Exchange;
            ann.rename_with(path("given"), path("other"), exchange).await.unwrap();
            ann.unlink(&from).await.unwrap();
            again(file, "after an exchange").await;

            // The file is opened by the name that it was given, which is removed before the first.
            let file = two.opened(at).await;
            file.link(path("second")).await.unwrap();
            let second = ann.open(path("second")).await.unwrap();
            ann.unlink(path("second")).await.unwrap();
            again(file, "after the second").await;
            second.close().await.unwrap();

            // The name is removed, and then the file gets one under another name that it has.
            ann.unlink(&from).await.unwrap();
            let file = two.opened(at).await;
            admin.link(format!("/sub{from}"), format!("/sub{}", path("found"))).await.unwrap();
            ann.unlink(&from).await.unwrap();
            ann.link(path("found"), path("made")).await.unwrap();
            again(file, "after its only one").await;
        }
    });
}

#[test]
fn a_rename_sets_back_times_that_lie_ahead_of_the_clock_on_any_server() {
    with_servers(async |_, two| {
        let (admin, ahead) = (&two.admin, Time { sec: 2 * START, nsec: 0 });
        for from in 0..DIRS {
            for to in 0..DIRS {
                let [from, to] = [format!("/sub/from{from}"), format!("/sub/to{to}")];
                let moved = format!("{from}/moved");
                admin.write(&moved, b"").await.unwrap();
                for dir in [&from, &to] {
                    let set = admin.utimes(dir, None, Some(SetTime::At(ahead))).await.unwrap();
                    assert_eq!(set.mtime, ahead);
                }
                admin.rename(&moved, format!("{to}/{}", from.replace('/', "-"))).await.unwrap();
                for dir in [&from, &to] {
                    let attr = admin.stat(dir).await.unwrap();
                    assert_eq!(attr.mtime, attr.ctime, "{from} to {to}: {dir}");
                }
            }
        }
    });
}
