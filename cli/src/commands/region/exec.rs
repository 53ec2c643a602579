//! `pando region exec`: run a program in a region that is there.

use std::{
    ffi::OsString,
    fs::File,
    os::{
        fd::AsFd as _,
        unix::{fs::MetadataExt as _, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, bail, ensure};
use rustix::{io::FdFlags, thread::LinkNameSpaceType};

use super::{
    control::{self, Asked, OTHER_VERSION, Told},
    library, site,
};

/// Run a program in a region that is there.
///
/// DIR is the region's directory. The program begins in the present folder, takes the place of this
/// command, and sees the region as all others do that were started so. The region does not end as
/// long as it runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The region's directory.
    dir: PathBuf,
    /// The program, and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let dir = site::known_as(&args.dir)?;
    let work_dir = std::env::current_dir().context("cannot tell the present folder")?;
    let mut connection = control::ask(&dir, &Asked::Enter)?;
    let Told::Entered(entered) = connection.next()? else {
        bail!(OTHER_VERSION);
    };
    if entered.is_hidden {
        let context = || format!("cannot enter the region of process {}", entered.pid);
        let namespace =
            File::open(format!("/proc/{}/ns/mnt", entered.pid)).with_context(context)?;
        let kind = Some(LinkNameSpaceType::Mount);
        rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).with_context(context)?;
    }
    // The same path, which may lead into the region by now.
    std::env::set_current_dir(&work_dir)
        .with_context(|| format!("cannot go to {}", work_dir.display()))?;
    // A program must not fall through to the file system below.
    let found = std::fs::metadata(&dir).with_context(|| format!("cannot use {}", dir.display()))?;
    ensure!(found.dev() == entered.device, "the region is not mounted at {}", dir.display());
    let stream = connection.into_stream();
    rustix::io::fcntl_setfd(&stream, FdFlags::empty())
        .context("cannot keep the region as long as the program runs")?;
    let (name, words) = args.program.split_first().expect("clap asks for one");
    let mut command = Command::new(name);
    command.args(words).env("PWD", &work_dir);
    match &entered.preloaded {
        Some(preloaded) => preloaded.give(&mut command, entered.device),
        None => library::take_away(&mut command),
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", Path::new(name).display()))
}
