//! Options of a mount. `pando mount -o` and mount.fuse.pando parse them here.
//!
//! An option is the kernel's (it becomes a flag of mount(2)), ours, or one that only programs look
//! at which decide what to mount: those are accepted and mean nothing here. Anything else is
//! refused by its name.

use std::{num::ParseFloatError, time::Duration};

use client::AccessTimes;
use fuse::IoUring;

/// Options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Read-only: this mount allows no changes.
    pub read_only: bool,
    /// The mount point may be the root of another mount, which this one hides.
    pub over_mounts: bool,
    /// Users other than the one who mounts may use it.
    pub allow_other: bool,
    /// Device files can be opened.
    pub dev: bool,
    /// Set-user-id and set-group-id bits have effect.
    pub suid: bool,
    /// Programs can be executed.
    pub exec: bool,
    /// Changes that are on stable storage when they are answered.
    pub synchronous: Synchronous,
    /// The directory, from the root that the client may see, that becomes the mount's root; empty
    /// for that root itself. Its components are separated by `/`; symbolic links are not followed.
    pub subdir: Vec<u8>,
    /// Duration for which the kernel may believe attributes; zero to ask each time.
    pub attr_timeout: Duration,
    /// Duration for which the kernel may believe that a name stands for a file; zero to ask each
    /// time.
    pub entry_timeout: Duration,
    /// When reads bring access times up to date; the code that makes the client passes this on.
    pub access_times: AccessTimes,
    /// For the kernel's security module, as given: `context=` and its like.
    pub security: Vec<String>,
    /// Device that `mount` and `df` show.
    pub fsname: String,
    /// Directories that this mount makes are changed without asking the server first, as long as
    /// nobody else asks for them; the code that makes the client acts on this.
    pub delegations: bool,
    /// Whether the kernel checks permissions, by the owners that it is shown. Not where the token
    /// makes all callers one user, who need not be the one who calls.
    pub kernel_checks: bool,
    /// The largest write of the kernel, in bytes: a multiple of 4096, at most 1 MiB.
    pub max_write: u32,
    /// Whether the kernel's requests come over io_uring.
    pub io_uring: IoUring,
}

/// Changes that are on stable storage when they are answered, without an `fsync` of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synchronous {
    /// Only writes that `O_SYNC` asks for.
    OnDemand,
    /// Also every change of a name.
    Names,
    /// Also every write and every change of attributes.
    Everything,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            over_mounts: false,
            allow_other: false,
            dev: false,
            suid: false,
            exec: true,
            synchronous: Synchronous::OnDemand,
            subdir: Vec::new(),
            attr_timeout: Duration::from_secs(1),
            entry_timeout: Duration::from_secs(1),
            access_times: AccessTimes::Relative,
            security: Vec::new(),
            fsname: "pando".to_owned(),
            delegations: true,
            kernel_checks: true,
            max_write: 1 << 20,
            io_uring: IoUring::Auto,
        }
    }
}

/// Options that mount(8), systemd and the init scripts act on, or no program any more.
const FOR_OTHERS: &[&str] = &[
    "defaults", "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner",
    "group", "nogroup", "_netdev", "nofail", "fail", "mand", "nomand", "silent", "loud",
];

/// Such options with a value: `user=NAME` is how mount(8) notes the user who has mounted.
const FOR_OTHERS_WITH_VALUE: &[&str] = &["comment", "user", "uhelper", "helper"];

/// Options that go to the kernel's security module.
const SECURITY: &[&str] = &["context", "fscontext", "defcontext", "rootcontext"];

/// Why a text is no option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// There is no such option.
    #[error("unknown mount option: {0}")]
    Unknown(String),
    /// The value is none of those that the option has.
    #[error("mount option has another value: {option}, expected {expected}")]
    Value {
        /// The option as given.
        option: String,
        /// Values that it has.
        expected: &'static str,
    },
    /// The value is no number of seconds.
    #[error("mount option needs seconds: {option}")]
    NotSeconds {
        /// The option as given.
        option: String,
        /// Parse error; `None` where the value is a number but no duration.
        #[source]
        source: Option<ParseFloatError>,
    },
}

/// The options of a list as `mount -o` has it. A comma between double quotes ends none.
pub fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let parts = list.split(move |c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    });
    parts.filter(|option| !option.is_empty())
}

impl Options {
    /// Takes in a list as `mount -o` has it. Ours: `allow_other`, `subdir=/a`, `attr_timeout=S`,
    /// `entry_timeout=S`, where S are seconds, with a fraction if need be, `delegations=on|off`, and
    /// `io_uring=auto|on|off`. Those of mount(8): `ro`, `dev`, `suid`, `noexec`, `sync`, `dirsync`
    /// and what undoes them, `relatime`, `noatime`, `strictatime`, `context=`; and those that
    /// mount(8) and others act on themselves (`_netdev`, `nofail`, `x-*`, ...), which change nothing.
    ///
    /// # Errors
    /// At the first option that is none; those before it are taken in.
    pub fn set(&mut self, list: &str) -> Result<(), OptionError> {
        split(list).try_for_each(|option| self.one(option))
    }

    fn one(&mut self, option: &str) -> Result<(), OptionError> {
        if option.starts_with("x-") || option.starts_with("X-") {
            return Ok(());
        }
        match option.split_once('=') {
            Some(("subdir", path)) => self.subdir = path.as_bytes().to_owned(),
            Some(("attr_timeout", value)) => self.attr_timeout = seconds(option, value)?,
            Some(("entry_timeout", value)) => self.entry_timeout = seconds(option, value)?,
            Some(("delegations", "on")) => self.delegations = true,
            Some(("delegations", "off")) => self.delegations = false,
            Some(("io_uring", value)) => self.io_uring = io_uring(option, value)?,
            Some((name, _)) if SECURITY.contains(&name) => self.security.push(option.to_owned()),
            Some((name, _)) if FOR_OTHERS_WITH_VALUE.contains(&name) => {}
            Some(_) => return Err(OptionError::Unknown(option.to_owned())),
            None => self.switch(option)?,
        }
        Ok(())
    }

    fn switch(&mut self, option: &str) -> Result<(), OptionError> {
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = true,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "sync" => self.synchronous = Synchronous::Everything,
            "dirsync" if self.synchronous == Synchronous::Everything => {}
            "dirsync" => self.synchronous = Synchronous::Names,
            "async" if self.synchronous == Synchronous::Everything => {
                self.synchronous = Synchronous::OnDemand;
            }
            "async" => {}
            "noatime" => self.access_times = AccessTimes::Never,
            "relatime" | "atime" => self.access_times = AccessTimes::Relative,
            "strictatime" => self.access_times = AccessTimes::Always,
            _ if FOR_OTHERS.contains(&option) => {}
            _ => return Err(OptionError::Unknown(option.to_owned())),
        }
        Ok(())
    }
}

fn io_uring(option: &str, value: &str) -> Result<IoUring, OptionError> {
    match value {
        "auto" => Ok(IoUring::Auto),
        "on" => Ok(IoUring::On),
        "off" => Ok(IoUring::Off),
        _ => Err(OptionError::Value { option: option.to_owned(), expected: "auto, on or off" }),
    }
}

fn seconds(option: &str, value: &str) -> Result<Duration, OptionError> {
    let wrong = |source| OptionError::NotSeconds { option: option.to_owned(), source };
    let seconds: f64 = value.parse().map_err(|error| wrong(Some(error)))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &str) -> Options {
        let mut options = Options::default();
        options.set(list).unwrap();
        options
    }

    #[test]
    fn a_list_sets_what_it_names_and_leaves_the_rest() {
        let mut options = of("ro,suid,noexec,subdir=/a/b,attr_timeout=0,entry_timeout=0.25");
        let expected = Options {
            read_only: true,
            suid: true,
            exec: false,
            subdir: b"/a/b".to_vec(),
            attr_timeout: Duration::ZERO,
            entry_timeout: Duration::from_millis(250),
            ..Options::default()
        };
        assert_eq!(options, expected);
        options.set("noatime,rw,nosuid,exec").unwrap();
        assert_eq!(options.access_times, AccessTimes::Never);
        options.set("strictatime,relatime").unwrap();
        assert_eq!(options.access_times, AccessTimes::Relative);
        assert!(!options.read_only && !options.suid && options.exec);
    }

    #[test]
    fn sync_is_more_than_dirsync_and_async_is_neither() {
        assert_eq!(of("dirsync").synchronous, Synchronous::Names);
        assert_eq!(of("dirsync,sync").synchronous, Synchronous::Everything);
        assert_eq!(of("sync,dirsync").synchronous, Synchronous::Everything);
        assert_eq!(of("sync,async").synchronous, Synchronous::OnDemand);
    }

    #[test]
    fn what_is_for_mount_8_and_systemd_changes_nothing() {
        let list = "defaults,auto,noauto,user,users,nouser,owner,group,_netdev,nofail,user=ann,\
                    comment=x,x-systemd.automount,x-gvfs-hide,X-mount.mkdir=0755,loud";
        assert_eq!(of(list), Options::default());
    }

    #[test]
    fn a_security_context_goes_on_as_it_is_with_its_commas() {
        let context = "context=\"system_u:object_r:tmp_t:s0:c1,c2\"";
        let options = of(&format!("ro,{context},suid"));
        assert_eq!(options.security, [context]);
        assert!(options.read_only && options.suid);
    }

    #[test]
    fn names_and_attributes_are_kept_for_a_second() {
        let Options { attr_timeout, entry_timeout, .. } = Options::default();
        assert_eq!((attr_timeout, entry_timeout), (Duration::from_secs(1), Duration::from_secs(1)));
    }

    #[test]
    fn io_uring_is_used_where_the_kernel_offers_it_unless_a_mount_says_otherwise() {
        assert_eq!(of("").io_uring, IoUring::Auto);
        assert_eq!(of("io_uring=off").io_uring, IoUring::Off);
        assert_eq!(of("io_uring=off,io_uring=on").io_uring, IoUring::On);
        assert_eq!(of("io_uring=on,io_uring=auto").io_uring, IoUring::Auto);
        for option in ["io_uring=", "io_uring=yes"] {
            let refused = Options::default().set(option);
            assert!(matches!(refused, Err(OptionError::Value { .. })), "{option}: {refused:?}");
        }
        let unknown = OptionError::Unknown("io_uring".to_owned());
        assert_eq!(Options::default().set("io_uring"), Err(unknown));
    }

    #[test]
    fn what_is_no_option_is_refused() {
        let mut options = Options::default();
        assert_eq!(options.set("rw,quick"), Err(OptionError::Unknown("quick".to_owned())));
        for unknown in ["size=1", "contexts=x", "noatime=1", "ro=", "xy", "nodiratime"] {
            assert_eq!(options.set(unknown), Err(OptionError::Unknown(unknown.to_owned())));
        }
        for option in ["attr_timeout=-1", "attr_timeout=", "entry_timeout=soon"] {
            assert!(matches!(options.set(option), Err(OptionError::NotSeconds { .. })), "{option}");
        }
    }
}
