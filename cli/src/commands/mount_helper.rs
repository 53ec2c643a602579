//! `mount.fuse.pando` and `umount.fuse.pando`: what mount(8) and umount(8) call for file systems of
//! the type `fuse.pando`, from the command line and from /etc/fstab. Both are this program by
//! another name.
//!
//! They only turn the arguments of mount(8) into those of `pando mount` and `pando umount`, and
//! become that. What the kernel does without us (`remount`, and with it `ro`) goes back to
//! mount(8).
//!
//! mount(8) hands over no option that it takes for the default, such as `suid` and `dev`: what it
//! does not forbid it allows. To users mount(8) forbids both, by name, unless the line in
//! /etc/fstab allows them.

use std::{
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser};

use crate::output;

/// Mount helper that this program was called as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Helper {
    Mount,
    Umount,
}

/// Mount a file system of the type fuse.pando, for mount(8).
///
/// In /etc/fstab: `HOST:PORT[,HOST:PORT...] /mnt fuse.pando
/// _netdev,nofail,token=/etc/pando/token,subdir=/a 0 0`
#[derive(Debug, Parser)]
#[command(name = "mount.fuse.pando", version)]
struct MountArgs {
    /// Servers of the file system.
    #[arg(value_name = "HOST:PORT[,HOST:PORT...]")]
    servers: String,
    /// Where to mount it.
    mountpoint: PathBuf,
    /// Options of `pando mount -o`, those of mount(8), token=FILE, log=FILE, tls, tls_ca=FILE and
    /// insecure, separated by commas. All users are let in unless noallow_other is among them;
    /// set-id bits have effect and devices can be opened unless nosuid and nodev are.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Pass over options that nobody knows.
    #[arg(short = 's')]
    sloppy: bool,
    /// Do everything but mount.
    #[arg(short = 'f')]
    fake: bool,
    /// Write nothing to /etc/mtab (nothing is).
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Say what is done.
    #[arg(short = 'v')]
    verbose: bool,
    /// The type of the file system.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// Unmount a file system of the type fuse.pando, for umount(8).
#[derive(Debug, Parser)]
#[command(name = "umount.fuse.pando", version)]
struct UmountArgs {
    /// Where it is mounted.
    mountpoint: PathBuf,
    /// Take it out of the tree at once, and end it when nobody uses it any more.
    #[arg(short = 'l')]
    lazy: bool,
    /// Take it away from its users, as `pando umount --force` does: data that was not sent is lost.
    #[arg(short = 'f')]
    force: bool,
    /// Write nothing to /etc/mtab (nothing is).
    #[arg(short = 'n')]
    no_mtab: bool,
    /// If it cannot be unmounted, make it read-only (it is not).
    #[arg(short = 'r')]
    read_only: bool,
    /// Say what is done.
    #[arg(short = 'v')]
    verbose: bool,
    /// The type of the file system.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// Commands of the helpers, from which their manual pages are made.
pub(crate) fn commands() -> [clap::Command; 2] {
    [MountArgs::command(), UmountArgs::command()]
}

/// Returns the helper that a program of this name is.
pub(crate) fn helper(program: &OsStr) -> Option<Helper> {
    let name = Path::new(program).file_name()?;
    if name == "mount.fuse.pando" {
        Some(Helper::Mount)
    } else if name == "umount.fuse.pando" {
        Some(Helper::Umount)
    } else {
        None
    }
}

/// Becomes what the helper stands for; returns only if it cannot.
pub(crate) fn run(helper: Helper) -> anyhow::Result<ExitCode> {
    let (verbose, mut command) = match helper {
        Helper::Mount => {
            let args = MountArgs::parse();
            let command = mount(&args)?;
            if args.fake {
                return Ok(ExitCode::SUCCESS);
            }
            (args.verbose, command)
        }
        Helper::Umount => {
            let args = UmountArgs::parse();
            (args.verbose, umount(&args)?)
        }
    };
    if verbose {
        output::print(&shown(&command))?;
    }
    Err(command.exec()).context("cannot start the program that mounts")
}

fn shown(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

fn mount(args: &MountArgs) -> anyhow::Result<Command> {
    let options = sort_options(&args.options.join(","), args.sloppy)?;
    if options.remount {
        let mut command = Command::new("mount");
        command.arg("-i").arg("-o").arg(options.kernel.join(",")).arg(&args.mountpoint);
        return Ok(command);
    }
    let mut command = Command::new(this_program()?);
    command.arg("mount").arg("--quiet").arg(&args.servers).arg(&args.mountpoint);
    if let Some(token) = options.token {
        command.arg("--token").arg(token);
    }
    if let Some(log) = options.log {
        command.arg("--log").arg(log);
    }
    command.args(options.encryption);
    if !options.ours.is_empty() {
        command.arg("-o").arg(options.ours.join(","));
    }
    Ok(command)
}

fn umount(args: &UmountArgs) -> anyhow::Result<Command> {
    if args.lazy && !args.force {
        let mut command = Command::new("umount");
        command.arg("-i").arg("-l").arg(&args.mountpoint);
        return Ok(command);
    }
    let mut command = Command::new(this_program()?);
    command.arg("umount");
    if args.force {
        command.arg("--force");
    }
    command.arg(&args.mountpoint);
    Ok(command)
}

fn this_program() -> anyhow::Result<OsString> {
    Ok(std::env::current_exe().context("cannot find this program")?.into_os_string())
}

/// Options of mount(8), by the program that wants them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sorted {
    token: Option<String>,
    log: Option<String>,
    /// Options of `pando mount` that say which connections are encrypted.
    encryption: Vec<String>,
    /// For `pando mount -o`.
    ours: Vec<String>,
    /// All that the kernel knows, for a remount.
    kernel: Vec<String>,
    remount: bool,
}

/// Options that the kernel changes by itself when a mount is mounted again.
const FOR_KERNEL: &[&str] = &[
    "ro",
    "rw",
    "dev",
    "nodev",
    "suid",
    "nosuid",
    "exec",
    "noexec",
    "noatime",
    "relatime",
    "strictatime",
    "nodiratime",
    "sync",
    "async",
    "dirsync",
];

fn sort_options(list: &str, sloppy: bool) -> anyhow::Result<Sorted> {
    let allowed = ["suid", "dev"].map(str::to_owned);
    let mut sorted = Sorted { ours: allowed.to_vec(), ..Sorted::default() };
    let mut allow_other = true;
    let is_remount = mount::split(list).any(|option| option == "remount");
    for option in mount::split(list) {
        if option == "remount" {
            sorted.remount = true;
            sorted.kernel.push(option.to_owned());
            continue;
        }
        if FOR_KERNEL.contains(&option) {
            sorted.kernel.push(option.to_owned());
        }
        match option.split_once('=') {
            Some(("token", file)) => sorted.token = Some(file.to_owned()),
            Some(("log", file)) => sorted.log = Some(file.to_owned()),
            Some(("tls_ca", file)) => sorted.encryption.push(format!("--tls-ca={file}")),
            None if matches!(option, "tls" | "insecure") => {
                sorted.encryption.push(format!("--{option}"));
            }
            _ if option == "noallow_other" => allow_other = false,
            _ if option == "allow_other" => allow_other = true,
            _ => match mount::Options::default().set(option) {
                Ok(()) => sorted.ours.push(option.to_owned()),
                Err(_) if sloppy => {}
                // mount(8) hands over what the mount table shows; a remount is the kernel's.
                Err(_) if is_remount => {}
                Err(error) => return Err(error.into()),
            },
        }
    }
    if allow_other {
        sorted.ours.push("allow_other".to_owned());
    }
    Ok(sorted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_name_says_which_helper_it_is() {
        assert_eq!(helper(OsStr::new("/sbin/mount.fuse.pando")), Some(Helper::Mount));
        assert_eq!(helper(OsStr::new("umount.fuse.pando")), Some(Helper::Umount));
        assert_eq!(helper(OsStr::new("/usr/bin/pando")), None);
    }

    #[test]
    fn options_of_fstab_go_to_whom_they_are_for() {
        let list = "rw,_netdev,nofail,x-systemd.automount,token=/etc/t,subdir=/a,nodev,suid,attr_timeout=0";
        let sorted = sort_options(list, false).unwrap();
        assert_eq!(sorted.token.as_deref(), Some("/etc/t"));
        assert_eq!(
            sorted.ours,
            [
                "suid",
                "dev",
                "rw",
                "_netdev",
                "nofail",
                "x-systemd.automount",
                "subdir=/a",
                "nodev",
                "suid",
                "attr_timeout=0",
                "allow_other"
            ]
        );
        assert!(!sorted.remount);
        let sorted = sort_options("noallow_other,log=/var/log/p", false).unwrap();
        assert_eq!(sorted.ours, ["suid", "dev"]);
        assert_eq!(sorted.log.as_deref(), Some("/var/log/p"));
        let sorted = sort_options("noallow_other,tls,tls_ca=/etc/ca.pem", false).unwrap();
        assert_eq!(sorted.ours, ["suid", "dev"]);
        assert_eq!(sorted.encryption, ["--tls", "--tls-ca=/etc/ca.pem"]);
    }

    #[test]
    fn an_option_that_nobody_knows_is_refused_unless_sloppy() {
        assert!(sort_options("rw,quick", false).unwrap_err().to_string().contains("quick"));
        assert_eq!(
            sort_options("rw,quick", true).unwrap().ours,
            ["suid", "dev", "rw", "allow_other"]
        );
    }

    #[test]
    fn a_remount_is_the_kernels() {
        let args = ["mount.fuse.pando", "h:1", "/mnt", "-o", "rw,user_id=0,remount,ro,token=/t"];
        let command = mount(&MountArgs::parse_from(args)).unwrap();
        assert_eq!(command.get_program(), "mount");
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args, ["-i", "-o", "rw,remount,ro", "/mnt"]);
    }
}
