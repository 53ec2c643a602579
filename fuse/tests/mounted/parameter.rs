//! The kernel's parameter for FUSE over io_uring, which tests of several programs set.

use std::fs::{self, File};

/// Whether the kernel offers FUSE over io_uring to new mounts.
pub(crate) const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Runs `act`, which mounts and agrees with the kernel, while the module parameter has this value.
/// Tests of all programs take turns.
pub(crate) fn with_parameter<T>(value: &str, act: impl FnOnce() -> T) -> T {
    /// Restores what was there, also after a panic.
    struct Restore(String);
    impl Drop for Restore {
        fn drop(&mut self) {
            let restored = fs::write(PARAMETER, &self.0);
            assert!(restored.is_ok() || std::thread::panicking(), "{restored:?}");
        }
    }
    let lock = File::create(std::env::temp_dir().join("pando-test-enable-uring")).unwrap();
    lock.lock().unwrap();
    // Opening the device loads the module.
    drop(File::open("/dev/fuse"));
    let before = fs::read_to_string(PARAMETER).unwrap_or_else(|error| {
        panic!(
            "this kernel has no FUSE over io_uring (Linux 6.14), so it cannot be tested: {error}"
        )
    });
    let _restore = (before.trim() != value).then(|| {
        fs::write(PARAMETER, value).unwrap();
        Restore(before)
    });
    act()
}
