//! The command line itself: help, and what is refused.

use crate::harness::{fail, folder, run, stderr, succeed, text};

/// All subcommands, with the options that are a contract.
const COMMANDS: &[(&[&str], &[&str])] = &[
    (
        &["format"],
        &[
            "--data",
            "--shards",
            "--servers",
            "--name",
            "--blocks",
            "--inline-max",
            "--compression",
            "--locality",
        ],
    ),
    (&["watch"], &["--since", "--once", "--keep", "--json"]),
    (&["serve"], &["--data", "--listen", "--http", "--commit-interval", "--durability"]),
    (&["serve"], &["--memory", "SIZE|auto"]),
    (&["serve"], &["--coordinator", "--join", "--token-file", "--cluster-lease", "--rtt"]),
    (&["dev"], &["--servers", "--dir", "--listen", "--mount", "--restart", "--cores", "--lease"]),
    (&["dev"], &["--memory"]),
    (&["mount"], &["MOUNTPOINT", "--token", "-o", "--foreground", "--log"]),
    (&["umount"], &["MOUNTPOINT"]),
    (&["s3"], &["HOST:PORT", "--keys", "--root", "--listen", "--listen-in-clear"]),
    (&["s3"], &["--connections", "--abandoned-after", "--token"]),
    (&["csi"], &["--endpoint", "--server", "--token", "--node", "--controller", "--node-only"]),
    (&["csi"], &["--root", "--state", "--driver", "--keeper", "--keeper-only"]),
    (&["region", "run"], &["--inline-max", "--memory", "--dirty-max", "--verify", "--patience"]),
    (&["region", "run"], &["--spill", "--json", "--verbose", "-o"]),
    (&["region", "up"], &["--inline-max", "--patience", "--log", "--foreground", "-o"]),
    (&["region", "run"], &["--listen", "--nodes", "--hostfile", "--rsh"]),
    (&["region", "join"], &["DIR", "-o", "--log", "--foreground"]),
    (&["region", "exec"], &["DIR", "PROGRAM"]),
    (&["region", "status"], &["DIR", "--json"]),
    (&["region", "flush"], &["DIR"]),
    (&["region", "end"], &["DIR", "--force", "--verify", "--patience", "--spill", "--json"]),
    (&["up"], &["--data", "--mount", "-o", "--listen", "--memory"]),
    (&["serve"], &["--backup", "--backup-every", "--backup-keep"]),
    (&["serve"], &["--journal"]),
    (&["journal", "check"], &["URL", "--puts"]),
    (&["journal", "verify"], &["--from", "--key", "--history"]),
    (&["journal", "recover"], &["--from", "--key", "--history", "--data"]),
    (&["backup", "now"], &["--data", "--to"]),
    (&["backup", "list"], &["--from", "--key", "--history", "--json"]),
    (&["backup", "check"], &["--from", "--key", "--history", "--at"]),
    (&["backup", "restore"], &["--from", "--key", "--data", "--history", "--at"]),
    (&["backup", "forget"], &["--data", "--history", "--from", "--key", "--yes"]),
    (&["backup", "final"], &["--data"]),
    (&["backup", "key"], &["--data"]),
    (&["token", "create"], &["--data", "--path", "--uid", "--gid", "--ro", "--expires"]),
    (&["token", "create"], &["HOST:PORT", "--token"]),
    (&["token", "show"], &["--json"]),
    (&["token", "list"], &["HOST:PORT", "--token", "--json"]),
    (&["token", "revoke"], &["HOST:PORT", "FILE|ID", "--token", "--yes"]),
    (&["server", "list"], &["HOST:PORT", "--token", "--json"]),
    (&["server", "balance"], &["HOST:PORT", "--token", "--dry-run", "--json"]),
    (&["server", "drain"], &["HOST:PORT", "N", "--token", "--dry-run", "--json"]),
    (&["server", "remove"], &["HOST:PORT", "N", "--token", "--dry-run", "--json"]),
    (&["keys", "list"], &["HOST:PORT", "--token", "--json"]),
    (&["keys", "rotate"], &["HOST:PORT", "--token"]),
    (&["keys", "retire"], &["HOST:PORT", "KEY", "--token", "--yes"]),
    (&["status"], &["HOST:PORT", "--json", "--token"]),
    (&["info"], &["PATH", "--json"]),
    (&["du"], &["PATH", "--json"]),
    (&["quota"], &["HOST:PORT", "--users", "--groups", "--directories", "--over", "--json"]),
    (&["restore"], &["HOST:PORT", "PATH", "--list"]),
    (&["fsck"], &["HOST:PORT", "--repair", "--discard-lost", "--gc", "--json"]),
    (
        &["bench", "md"],
        &["--ranks", "--files", "--shared", "--depth", "--phases", "--in-flight", "--json"],
    ),
    (&["bench", "floor"], &["--fuse-threads", "--iterations", "--json"]),
    (&["bench", "io"], &["--size", "--local", "--json"]),
    (&["bench", "list"], &["--entries", "--json"]),
    (&["bench", "fill"], &["--files", "--json"]),
    (&["bench", "large"], &["make", "list", "stat", "remove", "--entries", "--directory"]),
    (&["bench", "elastic"], &["--servers", "--files", "--in-flight", "--seconds", "--json"]),
    (&["bench", "report"], &["--out", "--size"]),
    (&["bench", "figures", "infinifs"], &["--out", "--only", "--rtt", "--counts", "--files"]),
    (
        &["bench", "figures", "duplex-balance"],
        &["--out", "--entries", "--files", "--threshold", "--shards", "--servers"],
    ),
    (&["bench", "figures", "hsm2"], &["--out", "--only", "--directories", "--files", "--scanned"]),
    (&["bench", "figures", "pacon"], &["--out", "--only", "--clients", "--jobs", "--delay"]),
    (&["bench", "figures", "reads"], &["--out", "--files", "--cache", "--directory"]),
    (&["bench", "figures", "sfs"], &["--out", "--only", "--clients", "--grown", "--modelled"]),
    (&["version"], &["--json"]),
];

#[test]
fn every_command_has_help_that_names_its_options() {
    let all = succeed(&["--help"]);
    for (command, options) in COMMANDS {
        assert!(all.contains(&format!("  {} ", command[0])), "{all}");
        let help = succeed(&[command, &["--help"][..]].concat());
        for option in *options {
            assert!(help.contains(option), "{command:?} {option}: {help}");
        }
    }
}

#[test]
fn each_paragraph_of_help_names_its_subject() {
    let all = succeed(&["--help"]);
    let commands = all.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let mut commands: Vec<Vec<&str>> = commands
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        // Benchmarks are for developers, and are described for them.
        .filter(|name| !name.is_empty() && *name != "bench")
        .map(|name| vec![name, "--help"])
        .collect();
    assert!(commands.len() > 20, "{commands:?}");
    commands.extend([vec!["token", "create", "--help"], vec!["token", "show", "--help"]]);
    commands.extend(["list", "revoke"].map(|of| vec!["token", of, "--help"]));
    commands.extend(["list", "rotate", "retire"].map(|of| vec!["keys", of, "--help"]));
    commands.extend(["list", "balance", "drain", "remove"].map(|of| vec!["server", of, "--help"]));
    let pronouns = ["It ", "Its ", "So ", "Those ", "As ", "And ", "Who ", "Whoever ", "What "];
    for command in commands {
        let help = succeed(&command);
        for line in help.lines().map(str::trim) {
            let begins = pronouns.iter().find(|word| line.starts_with(**word));
            assert_eq!(begins, None, "{command:?}: {line}");
            for sentence in line.split(". ") {
                let begins = pronouns.iter().find(|word| sentence.starts_with(**word));
                assert_eq!(begins, None, "{command:?}: {line}");
            }
            for vague in ["so long", "so many", "so much"] {
                assert!(!line.contains(vague), "{command:?}: {line}");
            }
        }
    }
}

#[test]
fn the_options_of_a_mount_are_a_list() {
    for command in ["mount", "up"] {
        let help = succeed(&[command, "--help"]);
        for option in ["ro", "allow_other", "subdir=/PATH", "attr_timeout=S", "relatime", "sync"] {
            let begins = |line: &str| line.split_whitespace().next() == Some(option);
            assert!(help.lines().any(begins), "{command} {option}: {help}");
        }
    }
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    let wrong: &[&[&str]] = &[
        &[],
        &["frobnicate"],
        &["format"],
        &["format", "--data", "d", "--shards", "0"],
        &["format", "--data", "d", "--shards", "5000"],
        &["format", "--data", "d", "--inline-max", "65537"],
        &["serve", "--data", "d", "--commit-interval", "soon"],
        &["serve", "--data", "d", "--commit-interval", "0s"],
        &["serve", "--data", "d", "--cores", "0"],
        &["serve", "--data", "d", "--durability", "maybe"],
        &["mount", "nowhere", "m"],
        &["mount", "localhost:1", "m", "-o", "ro,bogus"],
        &["mount", "localhost:1", "m", "-o", "attr_timeout=-1"],
        &["token", "create", "--data", "d", "--path", "a"],
        &["token", "create", "--data", "d", "--path", "/a/../b"],
        &["token", "create", "--data", "d", "--gid", "5"],
        &["token", "create", "--data", "d", "--expires", "later"],
        &["status", "no-port"],
        &["status", "h:99999"],
        &["bench", "md", "/tmp", "--phases", "file_create,nothing"],
        &["bench", "md", "neither"],
        &["bench", "io", "/tmp", "--size", "much"],
        &["bench", "fill", "/tmp"],
        &["bench", "md", "/tmp", "--in-flight", "2"],
        &["bench", "md", "/tmp", "--connections", "2"],
        &["bench", "md", "h:1", "--ranks", "2", "--connections", "3"],
        &["--log-level", "a=b=c", "version"],
    ];
    for args in wrong {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn what_is_not_there_is_one_line_and_1() {
    let folder = folder();
    let none = folder.path().join("none");
    let none = text(&none);
    fail(1, &["serve", "--data", none]);
    fail(1, &["token", "create", "--data", none]);
    fail(1, &["token", "show", none]);
    fail(1, &["info", none]);
    fail(1, &["info", text(folder.path())]);
    fail(1, &["du", none]);
    fail(1, &["umount", none]);
    fail(1, &["status", "127.0.0.1:1"]);
    fail(1, &["status", "127.0.0.1:1", "--token", none]);
}

#[test]
fn version_and_du_print_json() {
    let version: serde_json::Value =
        serde_json::from_str(&succeed(&["version", "--json"])).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    let folder = folder();
    std::fs::write(folder.path().join("file"), "12345").unwrap();
    let usage = succeed(&["du", "--json", text(folder.path())]);
    let usage: serde_json::Value = serde_json::from_str(&usage).unwrap();
    assert_eq!((&usage["bytes"], &usage["files"]), (&5.into(), &1.into()));
}
