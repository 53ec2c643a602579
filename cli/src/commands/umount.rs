//! `pando umount`: take a mount away.

use std::{path::PathBuf, process::ExitCode};

use anyhow::bail;
use mount::Unmount;

use crate::{connect, mounts};

/// Unmount a file system, and wait until everything written was sent and the process that served it has ended.
///
/// A mount that is in use is left as it is. One whose process was killed is only taken away. One that is bound to another
/// place as well is served there on, and not waited for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where it is mounted.
    mountpoint: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(mount) = mounts::find(&args.mountpoint)? else {
        bail!("no file system of pando is mounted at {}", args.mountpoint.display());
    };
    let keeper = mount.keeper();
    let when = if mount.is_dead() { Unmount::Lazy } else { Unmount::WhenIdle };
    connect::runtime()?.block_on(mount::unmount(&mount.path, when))?;
    if let Some(keeper) = keeper
        && !mounts::is_left(&mount)?
    {
        keeper.wait()?;
    }
    Ok(ExitCode::SUCCESS)
}
