//! Ids of volumes. The id is the path of the volume's directory below the root: nothing has to be
//! looked up to find a volume, and nothing else says where a volume is.

use std::fmt;

use base::EntryName;

/// The longest id, as CSI limits it.
const ID_BYTES_MAX: usize = 128;

/// A path below the root: names that are no `.` or `..` and do not begin with a dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VolumeId {
    text: String,
    names: Vec<EntryName>,
}

/// Why a text is no id of a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoVolumeId {
    #[error("the path of a volume is empty, or has an empty component: {0:?}")]
    Empty(String),
    #[error("a component of a volume's path begins with a dot: {0:?}")]
    Dot(String),
    #[error("a component of a volume's path cannot be the name of a directory: {0:?}")]
    Name(String),
    #[error("the path of a volume has more than {ID_BYTES_MAX} bytes: {0:?}")]
    Long(String),
}

impl VolumeId {
    /// Reads an id.
    pub(crate) fn parse(text: &str) -> Result<VolumeId, NoVolumeId> {
        if text.len() > ID_BYTES_MAX {
            return Err(NoVolumeId::Long(text.to_owned()));
        }
        let name = |name: &str| {
            if name.is_empty() {
                return Err(NoVolumeId::Empty(text.to_owned()));
            }
            if name.starts_with('.') {
                return Err(NoVolumeId::Dot(text.to_owned()));
            }
            let named = EntryName::new(name.as_bytes()).ok();
            let named = named.filter(|_| !name.contains(char::is_control));
            named.ok_or_else(|| NoVolumeId::Name(text.to_owned()))
        };
        let names = text.split('/').map(name).collect::<Result<_, _>>()?;
        Ok(VolumeId { text: text.to_owned(), names })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The names of the directories above, and that of the volume.
    pub(crate) fn names(&self) -> (&[EntryName], &EntryName) {
        let (last, above) = self.names.split_last().expect("a path has a name");
        (above, last)
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A text as one component of a path: slashes, percent signs and a dot at its beginning are written
/// as `%2F`, `%25` and `%2E`.
pub(crate) fn component(text: &str) -> String {
    let plain = text.replace('%', "%25").replace('/', "%2F");
    match plain.strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_leads_nowhere_but_down() {
        assert_eq!(VolumeId::parse("team/data").unwrap().names().0.len(), 1);
        for text in ["", "/a", "a/", "a//b", ".", "..", "a/../b", ".trash", "a/.b", "a\nb", "a\0"] {
            assert!(VolumeId::parse(text).is_err(), "{text:?}");
        }
        assert!(VolumeId::parse(&"a".repeat(128)).is_ok());
        assert!(VolumeId::parse(&"a".repeat(129)).is_err());
    }

    #[test]
    fn any_name_is_one_component() {
        assert_eq!(component("pvc-1"), "pvc-1");
        assert_eq!(component("../a%"), "%2E.%2Fa%25");
        assert!(VolumeId::parse(&component("..")).is_ok());
    }
}
