//! Copies of one server's data directory: of two processes one serves, and an old copy is not taken
//! for the newest one.

use std::{collections::BTreeSet, fs, path::Path, process::Command, time::Duration};

use client::{Client, Config};
use rustix::process::Signal;
use tokio::time::Instant;

use crate::{
    cluster::{FREE, Forming, status},
    harness::{Running, fail, pando, pause, run, succeed, text},
};

/// Copies a data directory, as `cp -a` does.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").args(["-a", text(from), text(to)]).status().unwrap();
    assert!(copied.success());
}

fn serve<'a>(data: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    [&["serve", "--data", text(data)], &FREE[..], more].concat()
}

/// Makes files in so many directories that each server has some, and returns their inode numbers.
fn make_files(forming: &Forming, round: usize) -> BTreeSet<u64> {
    let token = fs::read_to_string(&forming.token).unwrap();
    let config = Config::new(vec![forming.address.clone()], token.trim());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Box::pin(Client::connect(config)).await.unwrap();
        let mut made = BTreeSet::new();
        for number in 0..16 {
            let dir = format!("/{round}-{number}");
            client.mkdir(&dir, 0o755).await.unwrap();
            client.write(format!("{dir}/file"), b"it").await.unwrap();
            made.insert(client.stat(&dir).await.unwrap().ino.0);
            made.insert(client.stat(format!("{dir}/file")).await.unwrap().ino.0);
        }
        client.close().await.unwrap();
        made
    })
}

/// Waits until the server has a lease; how long that took.
fn until_it_serves(forming: &Forming) -> Duration {
    let began = Instant::now();
    loop {
        let cluster = status(&forming.address, &forming.token);
        if cluster["servers"][1]["lease_ms"].as_u64() > Some(0) {
            return began.elapsed();
        }
        assert!(began.elapsed() < Duration::from_secs(20), "it has no lease: {cluster:#}");
        pause(Duration::from_millis(10));
    }
}

#[test]
fn a_second_process_on_a_copied_directory_is_refused() {
    let forming = Forming::of("2");
    let second = forming.join("second");
    forming.until_sound();
    let (data, other) = (forming.data_of("second"), forming.data_of("copy"));
    assert_eq!(second.stop(), Some(0));
    copy(&data, &other);
    let second = forming.start_again("second");
    forming.until_sound();
    for word in [&[][..], &["--replace"], &["--restored"]] {
        let said = fail(1, &serve(&other, word));
        let address = second.address();
        let wanted = format!("server 1 is being served by another process, at {address}");
        assert!(said.contains(&wanted), "{word:?}: {said}");
    }
    let sound = forming.until_sound();
    assert_eq!(sound["servers"][1]["address"], second.address());
    make_files(&forming, 0);
    // Within its directory the lock says so.
    let said = fail(1, &serve(&data, &[]));
    assert!(said.contains("is in use by another pando process"), "{said}");
    assert_eq!((second.stop(), forming.coordinator.stop()), (Some(0), Some(0)));
}

#[test]
fn a_directory_that_was_stopped_is_served_elsewhere_at_once() {
    let forming = Forming::of("2");
    let second = forming.join("second");
    forming.until_sound();
    make_files(&forming, 0);
    let (data, other) = (forming.data_of("second"), forming.data_of("copy"));
    assert_eq!(second.stop(), Some(0));
    copy(&data, &other);
    let elsewhere = Running::start(pando(&serve(&other, &[])), "serving ");
    let took = until_it_serves(&forming);
    assert!(took < Duration::from_secs(5), "{took:?}");
    make_files(&forming, 1);
    // The directory that was left behind is an old copy now.
    assert_eq!(elsewhere.stop(), Some(0));
    let said = fail(1, &serve(&data, &[]));
    assert!(said.contains("this data directory of server 1 is an old copy"), "{said}");
}

#[test]
fn an_old_copy_is_refused_and_with_the_operators_word_no_inode_number_comes_twice() {
    let forming = Forming::of("2");
    let second = forming.join("second");
    forming.until_sound();
    let before = make_files(&forming, 0);
    let (data, old) = (forming.data_of("second"), forming.data_of("old"));
    assert_eq!(second.stop(), Some(0));
    copy(&data, &old);
    let second = forming.start_again("second");
    forming.until_sound();
    let lost = make_files(&forming, 1);
    assert_eq!(second.stop(), Some(0));

    let said = fail(1, &serve(&old, &[]));
    for words in ["this data directory of server 1 is an old copy", "`pando serve --restored`"] {
        assert!(said.contains(words), "{said}");
    }
    let restored = Running::start(pando(&serve(&old, &["--restored"])), "serving ");
    until_it_serves(&forming);
    let problems = || status(&forming.address, &forming.token)["problems"].to_string();
    assert!(problems().contains("server 1 serves an old copy of its data"), "{}", problems());
    let after = make_files(&forming, 2);
    for given in [&before, &lost] {
        let twice: Vec<_> = given.intersection(&after).collect();
        assert!(twice.is_empty(), "{twice:?}");
    }
    // The word is for one start. What the copy lacks is named until a check has run.
    assert_eq!(restored.stop(), Some(0));
    let again = Running::start(pando(&serve(&old, &[])), "serving ");
    until_it_serves(&forming);
    assert!(problems().contains("server 1 serves an old copy of its data"), "{}", problems());
    let token = text(&forming.token);
    let checked = run(&["fsck", &forming.address, "--token", token, "--repair"]);
    assert!(matches!(checked.status.code(), Some(0..=2)), "{checked:?}");
    let began = Instant::now();
    while problems().contains("serves an old copy") {
        assert!(began.elapsed() < Duration::from_secs(10), "{}", problems());
        pause(Duration::from_millis(100));
    }
    assert_eq!((again.stop(), forming.coordinator.stop()), (Some(0), Some(0)));
}

#[test]
fn an_old_copy_of_the_coordinators_directory_is_found_by_a_server_that_knew_the_newer_one() {
    let mut forming = Forming::of("2");
    let second = forming.join("second");
    forming.until_sound();
    let (data, old) = (forming.data.path(), forming.data_of("old"));
    // A snapshot of the disk would be so: the coordinator never begins anew, and its generation
    // says nothing.
    forming.coordinator.signal(Signal::STOP);
    copy(&data, &old);
    forming.coordinator.signal(Signal::CONT);
    make_files(&forming, 0);
    // The server hears how far the coordinator is with its next lease.
    pause(Duration::from_secs(2));
    forming.coordinator.signal(Signal::KILL);
    // Until it has ended it has the address.
    forming.coordinator.wait();
    let address = forming.address.clone();
    let lease = ["--coordinator", "--cluster-lease", "500ms", "--http", "off"];
    let starts = ["serve", "--data", text(&old), "--listen", &address];
    let starts = |more: &[&'static str]| [&starts[..], &lease, more].concat();
    let said = fail(1, &starts(&[]));
    assert!(said.contains("this directory of the coordinator is an old copy"), "{said}");
    // A server that is away while the word is given is believed later, too.
    assert_eq!(second.stop(), Some(0));
    let restored = Running::start(pando(&starts(&["--restored"])), "serving ");
    assert_eq!(restored.stop(), Some(0));
    forming.coordinator = Running::start(pando(&starts(&[])), "serving ");
    let second = forming.start_again("second");
    until_it_serves(&forming);
    make_files(&forming, 1);
    assert_eq!((second.stop(), forming.coordinator.stop()), (Some(0), Some(0)));
}

#[test]
fn a_server_that_was_killed_serves_again_at_once_where_it_was() {
    let forming = Forming::of("2");
    let second = forming.join("second");
    forming.until_sound();
    second.signal(Signal::KILL);
    drop(second);
    let second = forming.start_again("second");
    let took = until_it_serves(&forming);
    // Well below the lease of 500 ms and `--alone`; the rest is for a machine that is busy.
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(second.stop(), Some(0));
}

#[test]
fn the_words_of_the_operator_are_for_servers_of_clusters() {
    let data = crate::harness::Data::formatted();
    let path = data.path();
    for word in ["--replace", "--restored"] {
        let said = run(&serve(&path, &[word]));
        assert_eq!(said.status.code(), Some(2), "{said:?}");
    }
    succeed(&["version"]);
}
