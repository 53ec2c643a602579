//! The walk over three machines in `docs/OPERATIONS.md`, typed as it is printed there.
//!
//! Each machine is a shell in namespaces of its own: network, mounts, processes and name. So paths
//! and names are those of the page, and all that a machine has started and mounted ends with its
//! shell. Needs root, /dev/fuse, unshare and openssl.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    harness::{folder, pando, pause, text},
    machines::Machines,
};

const PAGE: &str = include_str!("../../../docs/OPERATIONS.md");
const HEADING: &str = "### A walk over three machines\n";
/// The longest time that a block takes.
const PATIENCE: Duration = Duration::from_secs(90);
const SHOWN: &str = "# =>";
const FAILED: &str = "failed: ";

/// Makes a machine of a fresh set of namespaces: its name, the addresses of all, folders of its
/// own, the program, and commands that stand for others.
const MACHINE: &str = r#"
set -e
name=$1 machines=$2 program=$3
hostname "$name"
mount --bind "$machines/hosts" /etc/hosts
if [ -e /etc/machine-id ]; then mount --bind "$machines/$name/machine-id" /etc/machine-id; fi
mount --bind "$program" "$machines/$name/bin/pando"
mount --bind "$machines/$name/srv" /srv
cd "$machines/$name/home"
export HOME=$PWD PATH="$machines/$name/bin:$PATH" MACHINES=$machines
exec bash --norc 2>&1
"#;

/// Copies as scp does, between the folders of machines.
const SCP: &str = r#"#!/bin/sh
of() {
    case $1 in
        *:/*) echo "$MACHINES/${1%%:*}${1#*:}" ;;
        *:*) echo "$MACHINES/${1%%:*}/home/${1#*:}" ;;
        *) echo "$1" ;;
    esac
}
for last; do :; done
while [ $# -gt 1 ]; do
    cp "$(of "$1")" "$(of "$last")" || exit
    shift
done
"#;

/// A block of commands of the page.
#[derive(Debug)]
struct Block<'a> {
    machine: &'a str,
    commands: String,
    /// Lines that are to be shown, in this order. Three dots stand for anything.
    shown: Vec<&'a str>,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let (_, walk) = page.split_once(HEADING).expect("the page has the walk");
    let walk = walk.split_once("\n## ").map_or(walk, |(walk, _)| walk);
    let pieces = walk.split("```").skip(1).step_by(2);
    pieces.map(|piece| block(piece.strip_prefix("sh\n").expect("it is for a shell"))).collect()
}

fn block(piece: &str) -> Block<'_> {
    let mut lines = piece.lines().map(str::trim);
    let machine = lines.next().and_then(|first| first.strip_prefix("# "));
    let machine = machine.expect("a block begins with its machine");
    let mut block = Block { machine, commands: String::new(), shown: Vec::new() };
    for line in lines {
        match line.strip_prefix(SHOWN) {
            Some(shown) => block.shown.push(shown.trim()),
            None => block.commands = block.commands + line + "\n",
        }
    }
    block
}

/// Whether a line has all parts of what is to be shown, in their order.
fn is_shown(line: &str, wanted: &str) -> bool {
    let mut rest = line;
    wanted.split("...").map(str::trim).all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

/// A machine with somebody who types.
struct Machine {
    shell: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<String>>,
    blocks: usize,
}

impl Machine {
    fn start(machines: &Machines, number: usize, name: &str, all: &Path) -> Machine {
        let own = all.join(name);
        for dir in ["srv", "home", "bin", "logs"] {
            fs::create_dir_all(own.join(dir)).unwrap();
        }
        fs::write(own.join("machine-id"), format!("{number:032x}\n")).unwrap();
        fs::write(own.join("bin/pando"), "").unwrap();
        fs::write(own.join("bin/scp"), SCP).unwrap();
        fs::set_permissions(own.join("bin/scp"), fs::Permissions::from_mode(0o755)).unwrap();
        let program = pando(&[]);
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", machines.file(number).display()));
        command.args(["--", "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"]);
        command.args(["--mount-proc", "sh", "-c", MACHINE, "sh", name, text(all)]);
        command.arg(program.get_program());
        for variable in ["PANDO_LOG", "PANDO_TOKEN_FILE", "PANDO_TLS_CA"] {
            command.env_remove(variable);
        }
        command.env("LOGS_DIRECTORY", own.join("logs")).env("LC_ALL", "C");
        let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut keys, mut output) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        writeln!(keys, "trap 'echo \"{FAILED}$? $BASH_COMMAND\"' ERR").unwrap();
        let screen: Arc<Mutex<String>> = Arc::default();
        let seen = Arc::clone(&screen);
        spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                seen.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Machine { shell, keys, screen, blocks: 0 }
    }

    /// Types a block, and waits until it has ended and shown what it should.
    fn types(&mut self, block: &Block<'_>) {
        let begins = self.screen.lock().unwrap().len();
        self.blocks += 1;
        let end = format!("block {} has ended", self.blocks);
        writeln!(self.keys, "{}\necho {end}", block.commands).unwrap();
        let began = Instant::now();
        loop {
            let said = self.screen.lock().unwrap()[begins..].to_owned();
            let missing = missing(&said, &block.shown);
            if said.contains(&end) {
                let failed = failures(&said);
                assert_eq!(failed, expected_failures(block), "{block:?} shows\n{said}");
                if missing.is_none() {
                    return;
                }
            }
            assert!(
                began.elapsed() < PATIENCE,
                "on {}: {}\nhas not shown {missing:?}, but\n{said}",
                block.machine,
                block.commands
            );
            pause(Duration::from_millis(20));
        }
    }
}

/// The first of these lines that was not shown, in their order.
fn missing<'a>(said: &str, wanted: &[&'a str]) -> Option<&'a str> {
    let mut lines = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    wanted.iter().find(|wanted| !lines.any(|line| is_shown(&line, wanted))).copied()
}

/// The number of commands that have failed, but for a check that repairs and what was killed: both
/// say so with their exit code.
fn failures(said: &str) -> usize {
    let failed = said.lines().filter_map(|line| line.strip_prefix(FAILED));
    failed.filter(|line| !line.starts_with("1 pando fsck") && !line.starts_with("137 wait")).count()
}

/// A message of a program begins with its name, and comes of a failure.
fn expected_failures(block: &Block<'_>) -> usize {
    let is_message = |line: &&&str| line.starts_with("pando: ") || line.starts_with("touch: ");
    block.shown.iter().filter(is_message).count()
}

impl Drop for Machine {
    fn drop(&mut self) {
        // All processes of the machine end with `unshare`, and its mounts with them.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "a reader of a test")]
fn spawn(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(work);
}

#[test]
fn the_walk_over_three_machines_goes_as_the_page_says() {
    let names = ["HOST-A", "HOST-B", "HOST-C"];
    let (networks, folder) = (Machines::new(names.len()), folder());
    let lines =
        names.iter().enumerate().map(|(at, name)| format!("{} {name}\n", Machines::host(at)));
    let hosts: String = ["127.0.0.1 localhost\n".to_owned()].into_iter().chain(lines).collect();
    fs::write(folder.path().join("hosts"), hosts).unwrap();
    let start =
        |(number, name): (usize, &&str)| Machine::start(&networks, number, name, folder.path());
    let mut machines: Vec<_> = names.iter().enumerate().map(start).collect();
    let walk = blocks(PAGE);
    assert!(walk.len() > 20, "the walk is read in full");
    for block in &walk {
        let at = names.iter().position(|name| *name == block.machine).expect("it is on the page");
        machines[at].types(block);
    }
}

#[test]
fn a_line_is_shown_in_parts() {
    assert!(is_shown("state serving", "state serving"));
    assert!(is_shown("pando: cannot ask: token of a retired key", "pando: ...retired key"));
    assert!(!is_shown("retired key: pando: no", "pando: ...retired key"));
    assert_eq!(missing("a\nb  c\nd", &["a", "b c"]), None);
    assert_eq!(missing("b\na", &["a", "b"]), Some("b"));
}
