//! One descriptor of a FUSE connection, and what all descriptors of it share.
//!
//! Used by the session to read, by replies and notifications to write. A message is always one
//! writev(2): the kernel takes it whole or not at all, so several threads may write at once.

use std::{
    io::IoSlice,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Arc, OnceLock},
};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::{abi, init::Negotiated, interrupt::Interrupts, sys};

/// State that the descriptors of one connection share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) interrupts: Interrupts,
    pub(crate) negotiated: OnceLock<Negotiated>,
}

/// One descriptor of the connection.
#[derive(Debug)]
pub(crate) struct Channel {
    fd: OwnedFd,
    pub(crate) shared: Arc<Shared>,
}

impl Channel {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Channel { fd, shared: Arc::default() }
    }

    /// One more descriptor of the same connection, which can be read at the same time.
    pub(crate) fn try_clone(&self) -> Result<Self, Errno> {
        let fd = sys::open_device()?;
        sys::clone_device(&fd, &self.fd)?;
        Ok(Channel { fd, shared: Arc::clone(&self.shared) })
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.fd, buffer)
    }

    /// Sends an answer (`error` 0 or a negative errno) or, with unique 0, a notification.
    pub(crate) fn write(&self, unique: u64, error: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        let len = size_of::<abi::OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let len = u32::try_from(len).map_err(|_| Errno::TOOBIG)?;
        let head = abi::OutHeader { len, error, unique };
        match parts {
            [] => rustix::io::write(&self.fd, head.as_bytes())?,
            [one] => self.writev(&[IoSlice::new(head.as_bytes()), IoSlice::new(one)])?,
            [one, two] => {
                self.writev(&[IoSlice::new(head.as_bytes()), IoSlice::new(one), IoSlice::new(two)])?
            }
            many => {
                let mut slices = Vec::with_capacity(many.len() + 1);
                slices.push(IoSlice::new(head.as_bytes()));
                slices.extend(many.iter().map(|part| IoSlice::new(part)));
                self.writev(&slices)?
            }
        };
        Ok(())
    }

    fn writev(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        rustix::io::writev(&self.fd, slices)
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
