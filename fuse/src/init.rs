//! INIT: what we and the kernel agree on before the first real request.
//!
//! The negotiation itself is a pure function of the kernel's offer and the caller's wish. The rule
//! of the protocol is that both sides use the smaller minor version and the capabilities both have.

use crate::abi;

bitflags::bitflags! {
    /// Features of the kernel that a file system can use (`FUSE_*` init flags).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Capabilities: u64 {
        /// Several reads of one file at once.
        const ASYNC_READ = 1 << 0;
        /// fcntl(2) locks are ours; otherwise the kernel keeps them per mount.
        const POSIX_LOCKS = 1 << 1;
        /// `O_TRUNC` comes with OPEN rather than as a SETATTR after it.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// Look-ups of `.` and `..` work, so that the mount can be exported by NFS.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes over 4 KiB. Always asked for.
        const BIG_WRITES = 1 << 5;
        /// The file system applies the umask.
        const DONT_MASK = 1 << 6;
        /// flock(2) locks are ours; otherwise the kernel keeps them per mount.
        const FLOCK_LOCKS = 1 << 10;
        /// ioctl(2) on directories.
        const HAS_IOCTL_DIR = 1 << 11;
        /// Drop cached pages when size or mtime turn out to have changed.
        const AUTO_INVAL_DATA = 1 << 12;
        /// READDIRPLUS.
        const DO_READDIRPLUS = 1 << 13;
        /// READDIRPLUS only where look-ups follow; READDIR otherwise.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct IO in several requests at once.
        const ASYNC_DIO = 1 << 15;
        /// The page cache collects writes; size and mtime are then the kernel's.
        const WRITEBACK_CACHE = 1 << 16;
        /// Answering OPEN with ENOSYS turns it off.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Look-ups and listings of one directory at once.
        const PARALLEL_DIROPS = 1 << 18;
        /// The file system clears set-id bits on write, chown and truncate.
        const HANDLE_KILLPRIV = 1 << 19;
        /// The kernel checks POSIX ACLs, which come as xattrs.
        const POSIX_ACL = 1 << 20;
        /// After an abort reads give ECONNABORTED, not ENODEV.
        const ABORT_ERROR = 1 << 21;
        /// Requests of more than 32 pages. Always asked for.
        const MAX_PAGES = 1 << 22;
        /// The kernel caches the targets of symlinks.
        const CACHE_SYMLINKS = 1 << 23;
        /// Answering OPENDIR with ENOSYS turns it off.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached pages are dropped only when told to.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// Like `HANDLE_KILLPRIV`, with the rules of the VFS and a flag that says when.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR says when set-group-id is to be cleared. Always asked for.
        const SETXATTR_EXT = 1 << 29;
        /// Capabilities over 32 bits. Always asked for.
        const INIT_EXT = 1 << 30;
        /// Create-like requests carry security labels.
        const SECURITY_CTX = 1 << 32;
        /// Create-like requests carry the caller's group that matches the parent's.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Entries can be expired rather than dropped by a notification.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Shared mmap of files opened with `DIRECT_IO`.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// The mount cannot be exported by NFS.
        const NO_EXPORT_SUPPORT = 1 << 38;
        /// Requests over io_uring. Asked for by [`InitOptions::io_uring`] only.
        const OVER_IO_URING = 1 << 41;
    }
}

impl Capabilities {
    /// Capabilities that this crate handles whatever the file system does, and so always asks for.
    const ALWAYS: Capabilities = Capabilities::BIG_WRITES
        .union(Capabilities::MAX_PAGES)
        .union(Capabilities::SETXATTR_EXT)
        .union(Capabilities::INIT_EXT);
}

/// Whether requests come over io_uring, which saves system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoUring {
    /// Over `/dev/fuse`.
    #[default]
    Off,
    /// Over io_uring where the kernel allows it, and over `/dev/fuse` elsewhere.
    Auto,
    /// Over io_uring; the session does not start without it.
    On,
}

/// Threads that take requests over io_uring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threads {
    /// The session's own takes all of them.
    #[default]
    One,
    /// One for each CPU on which this process may run, beside the session's own: see
    /// [`Session::start_workers`](crate::Session::start_workers).
    EachCpu,
}

/// Way by which requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// `/dev/fuse`.
    Device,
    /// io_uring.
    IoUring,
}

/// Wishes of the file system.
#[derive(Clone, Copy, Debug)]
pub struct InitOptions {
    /// Capabilities to use if the kernel has them.
    pub capabilities: Capabilities,
    /// Largest write, in bytes: a multiple of 4096, at most 1 MiB.
    pub max_write: u32,
    /// Largest read-ahead, in bytes.
    pub max_readahead: u32,
    /// Read-aheads and other requests that no process waits for that may be under way.
    pub max_background: u16,
    /// Number of those at which the kernel holds back.
    pub congestion_threshold: u16,
    /// The step of the file system's times, in nanoseconds.
    pub time_gran: u32,
    /// Whether requests come over io_uring. The largest write shrinks there, to 128 KiB at least,
    /// where the machine has more than 8 CPUs.
    pub io_uring: IoUring,
    /// Threads that take requests over io_uring.
    pub threads: Threads,
}

impl Default for InitOptions {
    fn default() -> Self {
        InitOptions {
            capabilities: Capabilities::empty(),
            max_write: MAX_WRITE_LIMIT,
            max_readahead: 1 << 20,
            max_background: 64,
            congestion_threshold: 48,
            time_gran: 1,
            io_uring: IoUring::Off,
            threads: Threads::One,
        }
    }
}

/// Result of the negotiation with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The protocol's minor version in use.
    pub minor: u32,
    /// Capabilities in use.
    pub capabilities: Capabilities,
    /// Largest write, in bytes.
    pub max_write: u32,
    /// Largest read-ahead, in bytes.
    pub max_readahead: u32,
}

impl Negotiated {
    /// Returns the way by which requests come.
    pub fn transport(&self) -> Transport {
        if self.capabilities.contains(Capabilities::OVER_IO_URING) {
            Transport::IoUring
        } else {
            Transport::Device
        }
    }
}

/// The kernel's default limit of pages per request, 256, in bytes.
const MAX_WRITE_LIMIT: u32 = 1 << 20;
/// The limit without `MAX_PAGES`.
const MAX_WRITE_COMPAT: u32 = 32 * PAGE;
const PAGE: u32 = 4096;

/// Answer to the kernel's INIT.
pub(crate) enum Answer {
    /// Agreed; send this.
    Agreed(Negotiated, abi::InitOut),
    /// The kernel speaks a newer major version: send ours, and it asks again.
    AskAgain(abi::InitOut),
    /// The kernel is too old.
    TooOld,
}

/// Capabilities that the kernel offers.
pub(crate) fn offered(offer: &abi::InitIn) -> Capabilities {
    let mut offered = u64::from(offer.flags);
    if offered & Capabilities::INIT_EXT.bits() != 0 {
        offered |= u64::from(offer.flags2) << 32;
    }
    Capabilities::from_bits_truncate(offered)
}

/// Whether and on what we agree with the kernel.
pub(crate) fn negotiate(offer: &abi::InitIn, wish: &InitOptions) -> Answer {
    let version = abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..Default::default() };
    if offer.major > abi::MAJOR {
        return Answer::AskAgain(version);
    }
    if offer.major < abi::MAJOR || offer.minor < abi::MINOR_MIN {
        return Answer::TooOld;
    }

    let wanted = wish.capabilities | Capabilities::ALWAYS;
    let capabilities = wanted & offered(offer);
    let max_write = if capabilities.contains(Capabilities::MAX_PAGES) {
        wish.max_write.clamp(PAGE, MAX_WRITE_LIMIT)
    } else {
        wish.max_write.clamp(PAGE, MAX_WRITE_COMPAT)
    };
    let agreed = Negotiated {
        minor: offer.minor.min(abi::MINOR),
        capabilities,
        max_write,
        max_readahead: wish.max_readahead.min(offer.max_readahead),
    };
    let low = capabilities.bits() & u64::from(u32::MAX);
    let out = abi::InitOut {
        minor: agreed.minor,
        max_readahead: agreed.max_readahead,
        flags: u32::try_from(low).expect("masked to 32 bits"),
        flags2: u32::try_from(capabilities.bits() >> 32).expect("shifted to 32 bits"),
        max_background: wish.max_background,
        congestion_threshold: wish.congestion_threshold,
        max_write,
        time_gran: wish.time_gran,
        max_pages: u16::try_from(max_write.div_ceil(PAGE)).expect("at most 256"),
        ..version
    };
    Answer::Agreed(agreed, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, flags: u32, flags2: u32) -> abi::InitIn {
        abi::InitIn { major: 7, minor, max_readahead: 1 << 17, flags, flags2, unused: [0; 11] }
    }

    fn agreed(offer: &abi::InitIn, wish: &InitOptions) -> (Negotiated, abi::InitOut) {
        match negotiate(offer, wish) {
            Answer::Agreed(agreed, out) => (agreed, out),
            Answer::AskAgain(_) | Answer::TooOld => panic!("not agreed"),
        }
    }

    #[test]
    fn the_smaller_minor_version_and_the_common_capabilities_are_used() {
        let wish = InitOptions {
            capabilities: Capabilities::POSIX_ACL | Capabilities::CREATE_SUPP_GROUP,
            ..InitOptions::default()
        };
        let (agreed, out) = agreed(&offer(46, u32::MAX, u32::MAX), &wish);

        assert_eq!(agreed.minor, abi::MINOR);
        assert_eq!(agreed.capabilities, wish.capabilities | Capabilities::ALWAYS);
        assert_eq!(out.flags2, 1 << 2);
        assert_eq!((out.max_write, out.max_pages), (1 << 20, 256));
        assert_eq!(agreed.max_readahead, 1 << 17);
    }

    #[test]
    fn what_the_kernel_does_not_offer_is_not_used() {
        let wish = InitOptions { capabilities: Capabilities::all(), ..InitOptions::default() };
        let posix_locks = 1 << 1;
        // Without INIT_EXT the upper half is not an offer, whatever it says.
        let (agreed, out) = agreed(&offer(31, posix_locks, u32::MAX), &wish);

        assert_eq!(agreed.minor, 31);
        assert_eq!(agreed.capabilities, Capabilities::POSIX_LOCKS);
        assert_eq!((out.flags, out.flags2), (posix_locks, 0));
        assert_eq!(agreed.max_write, MAX_WRITE_COMPAT);
    }

    #[test]
    fn a_newer_major_version_is_asked_again_and_an_older_one_refused() {
        let wish = InitOptions::default();
        let newer = abi::InitIn { major: 8, ..offer(0, 0, 0) };
        assert!(matches!(negotiate(&newer, &wish), Answer::AskAgain(out) if out.major == 7));
        assert!(matches!(negotiate(&offer(30, 0, 0), &wish), Answer::TooOld));
    }
}
