//! Servers that join a complete cluster, and shards that move: `pando server`.

use std::{
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::{
    cluster::{Forming, status, until_sound},
    harness::{Data, fail, pando, pause, run, stderr, succeed, text},
};

/// Shards of each server, by what the coordinator says.
fn shards(forming: &Forming) -> Vec<u64> {
    let cluster = status(&forming.address, &forming.token);
    let of = |server: &Value| server["shards"].as_u64().unwrap();
    cluster["servers"].as_array().unwrap().iter().map(of).collect()
}

/// Waits until as many servers as that are in the map and have leases.
fn until_there_are(forming: &Forming, servers: usize) {
    for _ in 0..100 {
        let cluster = forming.until_sound();
        if cluster["servers"].as_array().unwrap().len() == servers {
            return;
        }
    }
    panic!("there are never {servers} servers");
}

/// Starts a client that makes, looks at and removes files.
fn load(address: &str, token: &Path) -> Child {
    let load = ["bench", "md", address, "--token", text(token), "--ranks", "2"];
    let load = [&load[..], &["--files", "1500", "--iterations", "2"]].concat();
    pando(&load).stdout(Stdio::null()).spawn().unwrap()
}

fn ends_well(load: Child) {
    let load = load.wait_with_output().unwrap();
    assert!(load.status.success(), "a client sees an error");
}

/// Moves shards while a client makes, looks at and removes files, which sees no error.
fn move_under_load(forming: &Forming, args: &[&str]) -> String {
    let load = load(&forming.address, &forming.token);
    let said = succeed(&[&["server"], args, &["--token", text(&forming.token)]].concat());
    ends_well(load);
    said
}

#[test]
fn a_complete_cluster_takes_in_a_server_and_another_is_drained() {
    let forming = Forming::of("2");
    let (address, token) = (forming.address.as_str(), text(&forming.token));
    let second = forming.join("second");
    forming.until_sound();
    let third = forming.join("third");
    assert!(third.said.starts_with("joined as server 2 of 3\n"), "{}", third.said);
    until_there_are(&forming, 3);
    assert_eq!(shards(&forming), [512, 512, 0]);
    let said = succeed(&["server", "balance", address, "--dry-run", "--token", token]);
    assert!(said.contains("would move 170 shards from server 0 to server 2"), "{said}");
    assert_eq!(shards(&forming), [512, 512, 0]);

    let said = move_under_load(&forming, &["balance", address]);
    assert!(said.contains("moved 171 shards from server 1 to server 2"), "{said}");
    until_there_are(&forming, 3);
    assert_eq!(shards(&forming), [342, 341, 341]);
    let said = succeed(&["server", "balance", address, "--token", token]);
    assert_eq!(said.trim(), "nothing has to move");

    move_under_load(&forming, &["drain", address, "1"]);
    until_there_are(&forming, 3);
    assert_eq!(shards(&forming), [512, 0, 512]);
    let list = succeed(&["server", "list", address, "--token", token]);
    assert!(list.contains("servers  3 of 3"), "{list}");
    let said = fail(1, &["server", "drain", address, "7", "--token", token]);
    assert!(said.contains("there is no server 7"), "{said}");
    let said = succeed(&["fsck", address, "--token", token]);
    assert!(said.contains("nothing is wrong"), "{said}");
    assert_eq!(
        (third.stop(), second.stop(), forming.coordinator.stop()),
        (Some(0), Some(0), Some(0))
    );
}

#[test]
fn a_server_is_removed_while_the_cluster_is_used_and_another_takes_its_place() {
    let forming = Forming::of("2");
    let (address, token) = (forming.address.as_str(), text(&forming.token));
    let mut second = forming.join_with("second", &["--lease", "2s"]);
    forming.until_sound();
    let of = |server| ["server", "remove", address, server, "--token", token];
    let said = fail(1, &of("0"));
    assert!(said.contains("server 0 leads the others"), "{said}");
    let said = fail(1, &of("7"));
    assert!(said.contains("there is no server 7"), "{said}");
    let said = succeed(&[&of("1")[..], &["--dry-run"]].concat());
    assert!(said.contains("would move 512 shards") && !said.contains("left"), "{said}");
    assert_eq!(shards(&forming), [512, 512]);

    let said = move_under_load(&forming, &["remove", address, "1"]);
    assert!(said.contains("moved 512 shards from server 1 to server 0"), "{said}");
    assert!(said.contains("server 1 has left the cluster"), "{said}");
    assert_eq!(second.wait().code(), Some(0));
    let list = succeed(&["server", "list", address, "--token", token]);
    assert!(list.contains("servers  1 of 1"), "{list}");
    let said = fail(1, &of("1"));
    assert!(said.contains("server 1 has left already"), "{said}");
    // The directory is of no use any more.
    let again =
        run(&["serve", "--data", text(&forming.data_of("second")), "--listen", "127.0.0.1:0"]);
    assert_eq!(again.status.code(), Some(0));
    assert!(stderr(&again).contains("server 1 has left the cluster"), "{}", stderr(&again));

    let third = forming.join("third");
    assert!(third.said.starts_with("joined as server 2 of 3\n"), "{}", third.said);
    until_there_are(&forming, 2);
    let said = move_under_load(&forming, &["balance", address]);
    assert!(said.contains("moved 512 shards from server 0 to server 2"), "{said}");
    until_there_are(&forming, 2);
    for args in [&["fsck"][..], &["fsck", "--gc"], &["server", "balance"]] {
        let said = succeed(&[args, &[address, "--token", token]].concat());
        assert!(
            said.contains("nothing is wrong") || said.contains("nothing has to move"),
            "{said}"
        );
    }
    let top = succeed(&["top", address, "--token", token, "--once"]);
    assert!(top.contains("all 2 servers"), "{top}");
    // A coordinator that is started again waits for no server that has left.
    assert_eq!(forming.coordinator.stop(), Some(0));
    let again = forming.data.serve(&["--http", "off", "--listen", address]);
    until_sound(address, &forming.token);
    ends_well(load(address, &forming.token));
    assert_eq!((again.stop(), third.stop()), (Some(0), Some(0)));
}

#[test]
fn shards_move_to_servers_that_have_less_to_do() {
    // The server that joins has nothing yet.
    let forming = Forming::founded(Data::formatted(), "127.0.0.1:0");
    let (address, token) = (forming.address.as_str(), text(&forming.token));
    let second = forming.join("second");
    until_there_are(&forming, 2);
    assert_eq!(shards(&forming), [1024, 0]);
    let by_load = ["server", "balance", address, "--token", token, "--by-load", "--look", "1"];
    let said = succeed(&by_load);
    assert!(said.contains("too few requests"), "{said}");

    // The client is stopped when it is not needed any more.
    let load = ["bench", "md", address, "--token", token, "--ranks", "2", "--files", "1500"];
    let load = [&load[..], &["--iterations", "200"]].concat();
    let mut load = pando(&load).stdout(Stdio::null()).spawn().unwrap();
    let until_looked = |options: &[&str]| {
        // The load may begin later than this does.
        (0..20).map(|_| succeed(&[&by_load[..], options].concat())).find(|it| it.contains("shard "))
    };
    let said = until_looked(&["--dry-run"]).expect("the load is never seen");
    assert!(said.contains("would move shard ") && said.contains("from server 0 to server 1"));
    assert_eq!(shards(&forming), [1024, 0]);
    let said = until_looked(&[]).expect("the load is seen no more");
    assert!(said.contains("moving shard "), "{said}");
    assert!(load.try_wait().unwrap().is_none(), "a client sees an error");
    load.kill().unwrap();
    load.wait().unwrap();
    until_there_are(&forming, 2);
    let now = shards(&forming);
    assert!(now[1] > 0 && now[0] + now[1] == 1024, "{now:?}");
    let said = succeed(&["fsck", address, "--token", token]);
    assert!(said.contains("nothing is wrong"), "{said}");
    assert_eq!((second.stop(), forming.coordinator.stop()), (Some(0), Some(0)));
}

/// The balance of a cluster, by what the coordinator says.
fn balance(forming: &Forming) -> Value {
    status(&forming.address, &forming.token)["balance"].clone()
}

#[test]
fn the_coordinator_moves_shards_by_itself_when_it_is_told_to() {
    let looks = ["--balance-look", "1"];
    let forming = Forming::founded_with(Data::formatted(), "127.0.0.1:0", &looks);
    let (address, token) = (forming.address.as_str(), text(&forming.token));
    let second = forming.join("second");
    until_there_are(&forming, 2);
    // Unless told otherwise it only says so.
    assert_eq!(balance(&forming)["mode"], "advise");
    let set = |mode: &str| {
        succeed(&["server", "balance", address, "--token", token, "--mode", mode]);
        assert_eq!(balance(&forming)["mode"], mode);
    };
    let load = ["bench", "md", address, "--token", token, "--ranks", "2", "--files", "1500"];
    let load = [&load[..], &["--iterations", "400"]].concat();
    let mut load = pando(&load).stdout(Stdio::null()).spawn().unwrap();
    let until = |what: &str, reached: &dyn Fn() -> bool| {
        let reached = || {
            pause(Duration::from_millis(50));
            reached()
        };
        assert!((0..1000).any(|_| reached()), "never: {what}");
    };
    until("it says what should move", &|| {
        let look = &balance(&forming)["look"];
        look["shards"].as_u64() > Some(0) && look["moved"] == false
    });
    assert_eq!(shards(&forming), [1024, 0]);
    let said = succeed(&["server", "list", address, "--token", token]);
    assert!(said.contains("balancing: advise; most requests "), "{said}");
    set("off");
    assert!(balance(&forming)["look"].is_null(), "what was seen before is not told");

    set("on");
    until("shards move", &|| shards(&forming)[1] > 0);
    until_there_are(&forming, 2);

    // A server that was drained stays as it is, until it is to have its share again.
    succeed(&["server", "drain", address, "1", "--token", token]);
    until("it looks again", &|| {
        balance(&forming)["look"]["requests_of_mean"].as_f64() == Some(1.0)
    });
    assert_eq!(shards(&forming), [1024, 0]);
    succeed(&["server", "balance", address, "--token", token]);
    until_there_are(&forming, 2);
    let now = shards(&forming);
    assert!(now[1] > 0 && now[0] + now[1] == 1024, "{now:?}");
    assert!(load.try_wait().unwrap().is_none(), "a client sees an error");
    load.kill().unwrap();
    load.wait().unwrap();
    // The word counts at later starts, too, and no session of the coordinator's own is left.
    assert_eq!(forming.coordinator.stop(), Some(0));
    let again = forming.data.serve(&["--http", "off", "--listen", address]);
    assert_eq!(until_sound(address, &forming.token)["balance"]["mode"], "on");
    let sessions = succeed(&["sessions", address, "--token", token]);
    let left = sessions.lines().filter(|line| line.contains("balances"));
    assert_eq!(left.count(), 0, "{sessions}");
    let said = succeed(&["fsck", address, "--token", token]);
    assert!(said.contains("nothing is wrong"), "{said}");
    assert_eq!((second.stop(), again.stop()), (Some(0), Some(0)));
}

#[test]
fn a_file_system_of_one_server_becomes_one_of_several_while_it_is_used() {
    let data = Data::formatted();
    let alone = data.serve(&["--http", "off"]);
    let (address, token) = (alone.address().to_owned(), data.admin_token());
    let load = load(&address, &token);
    assert_eq!(alone.stop(), Some(0));
    let forming = Forming::founded(data, &address);
    let second = forming.join("second");
    assert!(second.said.starts_with("joined as server 1 of 2\n"), "{}", second.said);
    until_there_are(&forming, 2);
    assert_eq!(shards(&forming), [1024, 0]);
    let said = succeed(&["server", "balance", &address, "--token", text(&token)]);
    assert!(said.contains("moved 512 shards from server 0 to server 1"), "{said}");
    until_there_are(&forming, 2);
    assert_eq!(shards(&forming), [512, 512]);
    ends_well(load);
    let said = succeed(&["fsck", &address, "--token", text(&token)]);
    assert!(said.contains("nothing is wrong"), "{said}");
    // The directory says from now on what it is.
    assert_eq!(forming.coordinator.stop(), Some(0));
    let again = forming.data.serve(&["--http", "off", "--listen", &address]);
    until_sound(&address, &token);
    assert_eq!((again.stop(), second.stop()), (Some(0), Some(0)));
}
