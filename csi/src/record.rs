//! Records of mounts: what is to be mounted where, for a plugin that is started anew.
//!
//! A record is written before its mount is made and removed after it is gone, so that a mount
//! without a record is none of ours. The folder is root's alone: a token that came as a secret is
//! in its record.
//!
//! Persisted: a file of JSON for each place of staging, until the machine is started anew. Fields
//! are only added.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

const SUFFIX: &str = ".volume";

/// A volume that is mounted on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StagedVolume {
    /// Id of the volume.
    pub(crate) volume: String,
    /// Path of the mount.
    pub(crate) staging: PathBuf,
    /// Options of the mount.
    pub(crate) flags: Vec<String>,
    /// Token that came with the call; `None`: the plugin has one signed.
    #[serde(default)]
    pub(crate) secret: Option<String>,
    /// The volume is for readers alone.
    #[serde(default)]
    pub(crate) read_only: bool,
    /// The mount is being taken away.
    #[serde(default)]
    pub(crate) leaving: bool,
    /// Notes of the mounter about processes of mounts that were taken away: until such a process
    /// has ended, it may have writes to send.
    #[serde(default)]
    pub(crate) processes: BTreeSet<PathBuf>,
    /// A mount whose process had ended was taken away, and is to be made again.
    #[serde(default)]
    pub(crate) remount: bool,
    /// Places to which the mount is bound.
    #[serde(default)]
    pub(crate) targets: BTreeMap<PathBuf, BoundPlace>,
}

/// A place to which a mount is bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BoundPlace {
    /// Options beyond those of the mount.
    pub(crate) options: Vec<String>,
    /// The volume is for one place of this node at a time.
    #[serde(default)]
    pub(crate) alone: bool,
    /// The mount is being taken away from the place.
    #[serde(default)]
    pub(crate) leaving: bool,
}

/// The folder of records.
#[derive(Debug)]
pub(crate) struct Records {
    folder: PathBuf,
}

impl Records {
    pub(crate) fn new(folder: PathBuf) -> Records {
        Records { folder }
    }

    /// The record of a volume that is mounted at a path.
    pub(crate) fn find(&self, volume: &str, staging: &Path) -> io::Result<Option<StagedVolume>> {
        let all = self.all()?;
        Ok(all.into_iter().find(|one| one.volume == volume && one.staging == staging))
    }

    /// All records. A file that cannot be read is left out, and said.
    pub(crate) fn all(&self) -> io::Result<Vec<StagedVolume>> {
        let files = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            files => files?,
        };
        let mut all = Vec::new();
        for file in files {
            let path = file?.path();
            if !path.to_string_lossy().ends_with(SUFFIX) {
                continue;
            }
            // Another call may remove a record meanwhile.
            let Ok(bytes) = fs::read(&path) else { continue };
            match serde_json::from_slice(&bytes) {
                Ok(record) => all.push(record),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "a record cannot be read");
                }
            }
        }
        all.sort_by(|a: &StagedVolume, b| (&a.volume, &a.staging).cmp(&(&b.volume, &b.staging)));
        Ok(all)
    }

    /// Writes a record, whole or not at all.
    pub(crate) fn write(&self, record: &StagedVolume) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let path = self.path(record);
        let new = path.with_extension("new");
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&new);
        file?.write_all(&serde_json::to_vec(record)?)?;
        fs::rename(new, path)
    }

    /// Removes a record; fine when it is gone.
    pub(crate) fn remove(&self, record: &StagedVolume) -> io::Result<()> {
        match fs::remove_file(self.path(record)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// A place in root's own folder, where a mount gets its options before others see it.
    pub(crate) fn private(&self, target: &Path) -> PathBuf {
        let hash = fnv(target.as_os_str().as_encoded_bytes());
        self.folder.join(format!("{hash:016x}.place"))
    }

    fn path(&self, record: &StagedVolume) -> PathBuf {
        let staging = record.staging.as_os_str().as_encoded_bytes();
        let bytes = [record.volume.as_bytes(), &[0], staging].concat();
        self.folder.join(format!("{:016x}{SUFFIX}", fnv(&bytes)))
    }
}

/// FNV-1a: names of files need no better hash.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_record_is_found_again_and_is_roots_alone() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::new(folder.path().join("run"));
        assert_eq!(records.all().unwrap(), []);
        let place = BoundPlace { options: vec!["ro".to_owned()], alone: true, leaving: false };
        let record = StagedVolume {
            volume: "a/b".to_owned(),
            staging: "/stage".into(),
            flags: Vec::new(),
            secret: Some("secret".to_owned()),
            read_only: true,
            leaving: false,
            processes: ["/run/pando/0:1.left.2".into()].into(),
            remount: false,
            targets: [("/pod".into(), place)].into(),
        };
        records.write(&record).unwrap();
        records.write(&record).unwrap();
        assert_eq!(records.find("a/b", Path::new("/stage")).unwrap(), Some(record.clone()));
        assert_eq!(records.find("a/b", Path::new("/other")).unwrap(), None);
        let mode = fs::metadata(records.path(&record)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        records.remove(&record).unwrap();
        records.remove(&record).unwrap();
        assert_eq!(records.all().unwrap(), []);
    }

    #[test]
    fn a_record_of_the_first_version_is_read() {
        let first = r#"{"volume":"a","staging":"/stage","flags":[],"secret":null,"leaving":false,
            "targets":{"/pod":{"options":["ro"],"alone":false}}}"#;
        let record: StagedVolume = serde_json::from_str(first).unwrap();
        assert!(!record.read_only && record.processes.is_empty() && !record.remount);
        assert!(!record.targets[Path::new("/pod")].leaving);
    }
}
