//! The kernel's parameter for FUSE over io_uring, which tests of several programs set.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    sync::OnceLock,
};

/// Whether the kernel offers FUSE over io_uring to new mounts.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// Zero where everybody may use io_uring.
pub(crate) const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// Whether tests can have the kernel offer FUSE over io_uring. Where they cannot, each program says
/// so once: such a test passes without having tested anything.
pub(crate) fn can_be_offered() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| match set_to_what_it_is() {
        Ok(()) => true,
        Err(why) => {
            not_tested(&format!(
                "FUSE over io_uring (Linux 6.14, and the right to allow it): {why}"
            ));
            false
        }
    })
}

/// Says loudly that a test passes without having tested this. Not by `eprintln`, which the harness
/// keeps to itself where a test passes.
pub(crate) fn not_tested(what: &str) {
    let _ = writeln!(io::stderr(), "NOT TESTED: {what}");
}

fn set_to_what_it_is() -> Result<(), String> {
    let at = |path: &'static str| move |error: io::Error| format!("{path}: {error}");
    let _lock = locked().map_err(|error| format!("the lock of the parameter: {error}"))?;
    let before = fs::read_to_string(PARAMETER).map_err(at(PARAMETER))?;
    fs::write(PARAMETER, before).map_err(at(PARAMETER))?;
    let disabled = fs::read_to_string(DISABLED).map_err(at(DISABLED))?;
    if disabled.trim() != "0" {
        return Err(format!("{DISABLED} is {}", disabled.trim()));
    }
    Ok(())
}

/// Waits until no other test needs the parameter.
fn locked() -> io::Result<File> {
    let lock = File::create(std::env::temp_dir().join("pando-test-enable-uring"))?;
    lock.lock()?;
    // Opening the device loads the module.
    drop(File::open("/dev/fuse"));
    Ok(lock)
}

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
    let _lock = locked().unwrap();
    let _restore = Restore(fs::read_to_string(PARAMETER).unwrap());
    fs::write(PARAMETER, value).unwrap();
    act()
}
