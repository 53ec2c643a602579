//! Machines of a test: network namespaces, which stand for machines.
//!
//! `nsenter` enters only the network, so mounts are seen from here. Needs root.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::harness::{pando, stderr};

/// Machines: network namespaces with addresses on a bridge. They go with the test.
pub(crate) struct Machines {
    names: Vec<String>,
    bridge: String,
}

static NETWORKS: AtomicU32 = AtomicU32::new(0);

impl Machines {
    pub(crate) fn new(count: usize) -> Machines {
        let network = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:x}{network}", std::process::id());
        let mut machines = Machines { names: Vec::new(), bridge: format!("pb{id}") };
        ip(&["link", "add", &machines.bridge, "type", "bridge"]);
        ip(&["link", "set", &machines.bridge, "up"]);
        for machine in 0..count {
            let (name, near, far) = (
                format!("pando-{id}-{machine}"),
                format!("pv{id}{machine}"),
                format!("pw{id}{machine}"),
            );
            ip(&["netns", "add", &name]);
            machines.names.push(name.clone());
            ip(&["link", "add", &near, "type", "veth", "peer", "name", &far, "netns", &name]);
            ip(&["link", "set", &near, "master", &machines.bridge, "up"]);
            let address = format!("{}/24", Machines::host(machine));
            ip(&["-n", &name, "addr", "add", &address, "dev", &far]);
            ip(&["-n", &name, "link", "set", &far, "up"]);
            ip(&["-n", &name, "link", "set", "lo", "up"]);
        }
        machines
    }

    /// Address of a machine, which nobody has outside of its namespace.
    pub(crate) fn host(machine: usize) -> String {
        format!("198.51.100.{}", machine + 1)
    }

    /// The program on one of the machines.
    pub(crate) fn pando(&self, machine: usize, args: &[&str]) -> Command {
        let program = pando(args);
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.file(machine).display())).arg("--");
        command.arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    fn run(&self, machine: usize, args: &[&str]) -> Output {
        self.pando(machine, args).output().unwrap()
    }

    pub(crate) fn succeed(&self, machine: usize, args: &[&str]) -> String {
        let output = self.run(machine, args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn fail(&self, machine: usize, args: &[&str]) -> String {
        let output = self.run(machine, args);
        assert!(!output.status.success(), "{args:?}");
        stderr(&output)
    }

    pub(crate) fn file(&self, machine: usize) -> PathBuf {
        Path::new("/run/netns").join(&self.names[machine])
    }

    /// The result of work that a thread on one of the machines does.
    pub(crate) fn on<T: Send>(&self, machine: usize, work: impl FnOnce() -> T + Send) -> T {
        let network = File::open(self.file(machine)).unwrap();
        std::thread::scope(|scope| {
            let moved = scope.spawn(|| {
                use std::os::fd::AsFd as _;
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                    .unwrap();
                work()
            });
            moved.join().unwrap()
        })
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let gone = |args: &[&str]| drop(Command::new("ip").args(args).output());
        self.names.iter().for_each(|name| gone(&["netns", "del", name]));
        gone(&["link", "del", &self.bridge]);
    }
}

fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().unwrap();
    assert!(output.status.success(), "ip {args:?}: {}", stderr(&output));
}
