//! The way to the store of blocks, which is chosen once, when the session opens.

use store::Blocks;

use crate::{Result, contents::direct::Direct};

/// Way to the store of blocks.
pub(crate) enum BlockIo {
    /// The server reads and writes them for us.
    Server,
    /// The store of this very process.
    Store(Blocks),
    /// A store that this client reaches itself, under addresses that the server signs.
    Direct(Direct),
}

impl BlockIo {
    /// The store of this very process, where it has one; otherwise as the server says of a shared
    /// one.
    pub(crate) fn new(own: Option<&Blocks>, direct: Option<&str>) -> Result<BlockIo> {
        Ok(match (own, direct) {
            (Some(blocks), _) => BlockIo::Store(blocks.clone()),
            (None, Some(compression)) => BlockIo::Direct(Direct::new(compression)?),
            (None, None) => BlockIo::Server,
        })
    }

    /// Whether all blocks go through the server.
    pub(crate) fn is_by_server(&self) -> bool {
        matches!(self, BlockIo::Server)
    }
}
