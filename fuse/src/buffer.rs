//! Read buffers, as large as the largest request, and the pool they go back to.
//!
//! The session reads into a buffer that it alone holds. A handler that keeps a large body shares
//! the buffer, and the session goes on with another. Invariant: a buffer is written only while its
//! `Arc` has one owner, so shared bytes never change.

use std::{ops::Deref, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;

/// Buffers kept for later; more are given back to the allocator.
const SPARE_MAX: usize = 16;

/// Buffers that are not in use, all of one size.
#[derive(Debug)]
pub(crate) struct Pool {
    size: usize,
    spare: Mutex<Vec<Box<[u8]>>>,
}

impl Pool {
    /// A pool of buffers of `size` bytes; none is made before it is asked for.
    pub(crate) fn new(size: usize) -> Arc<Self> {
        Arc::new(Pool { size, spare: Mutex::new(Vec::new()) })
    }

    /// A buffer with one owner. Its contents are whatever the last request left.
    pub(crate) fn get(self: &Arc<Self>) -> Arc<Buffer> {
        let spare = self.spare.lock().pop();
        let bytes = spare.unwrap_or_else(|| vec![0; self.size].into_boxed_slice());
        Arc::new(Buffer { bytes, pool: Arc::clone(self) })
    }
}

/// One buffer; goes back to its pool when dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    pool: Arc<Pool>,
}

impl Buffer {
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The first `len` bytes, sharing the buffer.
    pub(crate) fn share(this: &Arc<Self>, len: usize) -> Bytes {
        Bytes::from_owner(Shared { buffer: Arc::clone(this), len })
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut spare = self.pool.spare.lock();
        if spare.len() < SPARE_MAX {
            spare.push(std::mem::take(&mut self.bytes));
        }
    }
}

struct Shared {
    buffer: Arc<Buffer>,
    len: usize,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_buffer_returns_to_the_pool_with_its_last_owner() {
        let pool = Pool::new(64);
        let mut buffer = pool.get();
        Arc::get_mut(&mut buffer).unwrap().bytes_mut()[..2].copy_from_slice(b"ab");
        let kept = Buffer::share(&buffer, 2);

        drop(buffer);
        assert_eq!(pool.spare.lock().len(), 0);
        assert_eq!(&kept[..], b"ab");
        drop(kept);
        assert_eq!(pool.spare.lock().len(), 1);
    }
}
