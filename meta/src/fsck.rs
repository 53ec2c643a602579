//! Checks (being written).

use base::FsError;
use wire::{FsckPoll, FsckProgress, FsckStart};

use crate::{error::Result, server::Shared};

#[derive(Default)]
pub(crate) struct Jobs {}

pub(crate) fn start(_: &Shared, _: FsckStart) -> Result<u64> {
    Err(FsError::NotSupported.into())
}

pub(crate) fn poll(_: &Shared, _: FsckPoll) -> Result<FsckProgress> {
    Err(FsError::NotSupported.into())
}
