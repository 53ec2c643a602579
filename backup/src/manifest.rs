//! The manifest of a base: which objects are which files.
//!
//! Persisted: JSON, sealed like every object. A reader takes fields that it does not know for
//! absent, and refuses another version.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Version of manifests.
const VERSION: u32 = 1;

/// All that is known of one base. Persisted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub(crate) version: u32,
    /// Unique id of the file system, 32 hex digits.
    pub uuid: String,
    /// Id of the history, 16 hex digits.
    pub history: String,
    /// Number of the base in its history; grows by at least one.
    pub number: u64,
    /// When the copy was taken, in seconds since the Unix epoch, by the server's clock.
    pub made: u64,
    /// Position of the engine: grows with each write.
    pub position: u64,
    /// Generation of the server, 0 without a journal.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: u64,
    /// Number of the newest segment of the journal when the copy was begun, 0 for none. No segment
    /// up to that one goes beyond `position`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub segment: u64,
    /// Number of the server in its cluster; absent for the only server of a file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<u16>,
    /// Name of the file system.
    pub name: String,
    /// Version of the program that made the base.
    pub program: String,
    /// The files.
    pub files: Vec<File>,
}

/// One file of a base. Persisted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Path below the data directory.
    pub path: String,
    /// Id of the object that holds it, 32 hex digits.
    pub object: String,
    /// Length of the file.
    pub bytes: u64,
    /// CRC-32C of the file.
    pub crc32c: u32,
}

impl Manifest {
    pub(crate) const fn version() -> u32 {
        VERSION
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("a manifest has text and numbers only")
    }

    /// Reads the manifest of the base with this number, stored under `name`.
    pub(crate) fn read(name: &str, number: u64, bytes: &[u8]) -> Result<Manifest> {
        let wrong = |reason: String| Error::Manifest { name: name.to_owned(), reason };
        let value: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        // The version first: another one may have other fields.
        let version = &value["version"];
        if version.as_u64() != Some(u64::from(VERSION)) {
            return Err(wrong(format!("its version is {version}, this program knows {VERSION}")));
        }
        let manifest: Manifest =
            serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        if manifest.number != number {
            return Err(wrong(format!("it is that of base {}", manifest.number)));
        }
        match manifest.files.iter().find(|file| !is_plain(&file.path) || !is_id(&file.object)) {
            Some(file) => Err(wrong(format!("it names a file {:?}", file.path))),
            None => Ok(manifest),
        }
    }
}

/// Manifests of servers without a journal are written as before there were journals.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Whether a path stays below the folder that it is relative to.
fn is_plain(path: &str) -> bool {
    path.split('/').all(|part| !matches!(part, "" | "." | "..")) && !path.contains(['\0', '\\'])
}

fn is_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            version: VERSION,
            uuid: "0123456789abcdef0123456789abcdef".into(),
            history: "00000000000000aa".into(),
            number: 3,
            made: 1_700_000_000,
            position: 77,
            generation: 0,
            server: None,
            segment: 0,
            name: "pando".into(),
            program: "0.1.0".into(),
            files: vec![File {
                path: "meta/000012.sst".into(),
                object: "000000000000000000000000000000bb".into(),
                bytes: 5,
                crc32c: 9,
            }],
        }
    }

    #[test]
    fn a_manifest_never_changes_its_bytes() {
        let golden = r#"{
  "version": 1,
  "uuid": "0123456789abcdef0123456789abcdef",
  "history": "00000000000000aa",
  "number": 3,
  "made": 1700000000,
  "position": 77,
  "name": "pando",
  "program": "0.1.0",
  "files": [
    {
      "path": "meta/000012.sst",
      "object": "000000000000000000000000000000bb",
      "bytes": 5,
      "crc32c": 9
    }
  ]
}"#;
        assert_eq!(String::from_utf8(manifest().to_bytes()).unwrap(), golden);
        assert_eq!(Manifest::read("m", 3, golden.as_bytes()).unwrap(), manifest());
    }

    #[test]
    fn a_manifest_of_a_server_with_a_journal_says_where_the_journal_was() {
        let with = Manifest { generation: 4, segment: 9, ..manifest() };
        let text = String::from_utf8(with.to_bytes()).unwrap();
        assert!(text.contains("\"position\": 77,\n  \"generation\": 4,\n  \"segment\": 9,\n"));
        assert_eq!(Manifest::read("m", 3, text.as_bytes()).unwrap(), with);
    }

    #[test]
    fn a_manifest_of_a_server_of_a_cluster_says_which_one_it_is() {
        let with = Manifest { server: Some(2), ..manifest() };
        let text = String::from_utf8(with.to_bytes()).unwrap();
        assert!(text.contains("\"position\": 77,\n  \"server\": 2,\n  \"name\""));
        assert_eq!(Manifest::read("m", 3, text.as_bytes()).unwrap(), with);
    }

    #[test]
    fn a_manifest_that_names_files_elsewhere_is_refused() {
        for path in ["../x", "/etc/passwd", "meta/../../x", "", "meta//x", "a/."] {
            let mut wrong = manifest();
            wrong.files[0].path = path.into();
            assert!(Manifest::read("m", 3, &wrong.to_bytes()).is_err(), "{path}");
        }
    }

    #[test]
    fn another_version_or_number_is_refused() {
        let read = |manifest: Manifest, number| {
            Manifest::read("m", number, &manifest.to_bytes()).unwrap_err().to_string()
        };
        assert!(read(Manifest { version: 2, ..manifest() }, 3).contains("its version is 2"));
        assert!(read(manifest(), 4).contains("that of base 3"));
        assert!(Manifest::read("m", 3, b"{").is_err());
    }
}
