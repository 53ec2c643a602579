//! What a mount can be told. `pando mount -o` parses it here.

use std::{num::ParseFloatError, time::Duration};

use client::AccessTimes;

/// How to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Nothing can be changed through this mount.
    pub read_only: bool,
    /// Users other than the one who mounts may use it.
    pub allow_other: bool,
    /// Device files can be opened.
    pub dev: bool,
    /// Set-user-id and set-group-id bits have effect.
    pub suid: bool,
    /// The directory, from the root that the client may see, that becomes the mount's root; empty for that
    /// root itself. Its components are separated by `/`; symbolic links are not followed.
    pub subdir: Vec<u8>,
    /// How long the kernel may believe attributes; zero to ask each time.
    pub attr_timeout: Duration,
    /// How long the kernel may believe that a name stands for a file; zero to ask each time.
    pub entry_timeout: Duration,
    /// When reads bring access times up to date; whoever makes the client tells it.
    pub access_times: AccessTimes,
    /// What `mount` and `df` show as the device.
    pub fsname: String,
    /// The largest write of the kernel, in bytes: a multiple of 4096, at most 1 MiB.
    pub max_write: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            allow_other: false,
            dev: false,
            suid: false,
            subdir: Vec::new(),
            attr_timeout: Duration::from_secs(1),
            entry_timeout: Duration::from_secs(1),
            access_times: AccessTimes::Relative,
            fsname: "pando".to_owned(),
            max_write: 1 << 20,
        }
    }
}

/// Why a text is no option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// There is no such option.
    #[error("unknown mount option: {0}")]
    Unknown(String),
    /// Its value is none.
    #[error("mount option needs seconds: {option}")]
    NotSeconds {
        /// The option as given.
        option: String,
        /// What is wrong with the number, if it is one.
        #[source]
        source: Option<ParseFloatError>,
    },
}

impl Options {
    /// Takes in a list as `mount -o` has it: `ro,allow_other,dev,suid,subdir=/a,attr_timeout=S,entry_timeout=S`,
    /// where S are seconds, with a fraction if need be; `rw`, `nodev` and `nosuid` undo; and one of `relatime`,
    /// `noatime` and `strictatime`.
    ///
    /// # Errors
    /// At the first option that is none; those before it are taken in.
    pub fn set(&mut self, list: &str) -> Result<(), OptionError> {
        list.split(',').filter(|option| !option.is_empty()).try_for_each(|option| self.one(option))
    }

    fn one(&mut self, option: &str) -> Result<(), OptionError> {
        match option.split_once('=') {
            Some(("subdir", path)) => self.subdir = path.as_bytes().to_owned(),
            Some(("attr_timeout", value)) => self.attr_timeout = seconds(option, value)?,
            Some(("entry_timeout", value)) => self.entry_timeout = seconds(option, value)?,
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
            "noatime" => self.access_times = AccessTimes::Never,
            "relatime" => self.access_times = AccessTimes::Relative,
            "strictatime" => self.access_times = AccessTimes::Always,
            _ => return Err(OptionError::Unknown(option.to_owned())),
        }
        Ok(())
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

    #[test]
    fn a_list_sets_what_it_names_and_leaves_the_rest() {
        let mut options = Options::default();
        options.set("ro,suid,subdir=/a/b,attr_timeout=0,entry_timeout=0.25").unwrap();
        let expected = Options {
            read_only: true,
            suid: true,
            subdir: b"/a/b".to_vec(),
            attr_timeout: Duration::ZERO,
            entry_timeout: Duration::from_millis(250),
            ..Options::default()
        };
        assert_eq!(options, expected);
        options.set("noatime,rw,nosuid").unwrap();
        assert_eq!(options.access_times, AccessTimes::Never);
        options.set("strictatime,relatime").unwrap();
        assert_eq!(options.access_times, AccessTimes::Relative);
        assert!(!options.read_only && !options.suid);
    }

    #[test]
    fn what_is_no_option_is_refused() {
        let mut options = Options::default();
        assert_eq!(options.set("rw,quick"), Err(OptionError::Unknown("quick".to_owned())));
        assert_eq!(options.set("size=1"), Err(OptionError::Unknown("size=1".to_owned())));
        for option in ["attr_timeout=-1", "attr_timeout=", "entry_timeout=soon"] {
            assert!(matches!(options.set(option), Err(OptionError::NotSeconds { .. })), "{option}");
        }
    }
}
