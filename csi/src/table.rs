//! The kernel's table of mounts, as far as the plugin looks at it: what is mounted at one path.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

/// The type of our mounts, also where they are bound.
const TYPE: &str = "fuse.pando";

/// One mount of several that may lie on each other at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountLayer {
    path: PathBuf,
    /// `MAJOR:MINOR`, the same wherever a file system is bound.
    pub(crate) device: String,
    /// Options of this place, such as `ro` and `nosuid`.
    pub(crate) options: Vec<String>,
    /// Whether the file system is ours.
    pub(crate) ours: bool,
}

/// The mounts at exactly this path, the lowest first. Asks no file system that is mounted
/// there.
pub(crate) fn at(path: &Path) -> io::Result<Vec<MountLayer>> {
    let path = resolve(path);
    let table = fs::read("/proc/self/mountinfo")?;
    let lines = table.split(|byte| *byte == b'\n').filter_map(parse);
    Ok(lines.filter(|layer| layer.path == path).collect())
}

/// Whether a mount of ours is at this path, be it on top or not.
pub(crate) fn has_ours(path: &Path) -> io::Result<bool> {
    Ok(at(path)?.iter().any(|layer| layer.ours))
}

/// The device of the mount on top at a path, if that is ours.
pub(crate) fn device(path: &Path) -> Option<String> {
    let top = at(path).ok()?.pop()?;
    top.ours.then_some(top.device)
}

/// The path as the table has it: only directories above the last name are looked at.
fn resolve(path: &Path) -> PathBuf {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            parent.canonicalize().map_or_else(|_| path.to_owned(), |parent| parent.join(name))
        }
        _ => path.to_owned(),
    }
}

fn parse(line: &[u8]) -> Option<MountLayer> {
    let text = String::from_utf8_lossy(line);
    let (mount, source) = text.split_once(" - ")?;
    let options = mount.split(' ').nth(5)?.split(',').map(str::to_owned).collect();
    // From the bytes: a path need not be UTF-8.
    let path = unescape(line.split(|byte| *byte == b' ').nth(4)?);
    let device = mount.split(' ').nth(2)?.to_owned();
    Some(MountLayer { path, device, options, ours: source.split(' ').next() == Some(TYPE) })
}

/// Undoes the octal escapes of the kernel.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        let digits = if *byte == b'\\' { after.get(..3) } else { None };
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[3..];
            }
            None => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_mounted_where() {
        let line = b"36 35 0:31 / /tmp/a\\040b rw,nosuid shared:3 - fuse.pando h:1 rw,user_id=0";
        let found = parse(line).unwrap();
        assert_eq!(found.path, Path::new("/tmp/a b"));
        assert_eq!((found.device.as_str(), found.ours), ("0:31", true));
        assert_eq!(found.options, ["rw", "nosuid"]);
        assert!(!parse(b"37 35 0:32 / /tmp rw - tmpfs tmpfs rw").unwrap().ours);
    }
}
