//! Shelves of the record cache: the records of one generation.

use base::HashMap;

use crate::record::{Content, Key};

/// Records of one generation of a stripe, by the hash of their key. Has a bound.
pub(super) trait Shelf {
    /// A value as it is handed out.
    type Value;

    /// An empty shelf of so many bytes at most.
    fn new(bytes_max: usize) -> Self;

    /// Bytes of a value.
    fn value_bytes(value: &Self::Value) -> usize;

    fn get(&self, hash: u64, key: &[u8]) -> Option<Self::Value>;

    /// Whether one record more fits. May move what is here closer together.
    fn has_room(&mut self, key: &[u8], value: &Self::Value) -> bool;

    /// Puts a record that fits, and whose hash no other record here has.
    fn put(&mut self, hash: u64, key: &[u8], value: &Self::Value);

    fn remove(&mut self, hash: u64);

    /// Memory that the shelf has taken, in bytes.
    fn bytes(&self) -> usize;

    fn clear(&mut self);
}

/// Bytes that a directory takes besides what is counted: its place in a map, and allocations.
const DIR_BYTES: usize = 60;

/// A shelf of directories, or partitions of them, as values.
pub(super) struct Values {
    dirs: HashMap<u64, Dir>,
    bytes: usize,
    bytes_max: usize,
}

struct Dir {
    key: Key,
    content: Content,
}

impl Dir {
    /// Memory of a directory, in bytes.
    fn bytes(content: &Content) -> usize {
        size_of::<Dir>() + content.bytes_beside() + DIR_BYTES
    }
}

impl Shelf for Values {
    type Value = Content;

    fn new(bytes_max: usize) -> Values {
        Values { dirs: HashMap::default(), bytes: 0, bytes_max }
    }

    fn value_bytes(content: &Content) -> usize {
        Dir::bytes(content)
    }

    fn get(&self, hash: u64, key: &[u8]) -> Option<Content> {
        let dir = self.dirs.get(&hash)?;
        (dir.key[..] == *key).then(|| dir.content.clone())
    }

    fn has_room(&mut self, _key: &[u8], content: &Content) -> bool {
        self.bytes + Dir::bytes(content) <= self.bytes_max
    }

    fn put(&mut self, hash: u64, key: &[u8], content: &Content) {
        self.bytes += Dir::bytes(content);
        let dir = Dir { key: Key::from_slice(key), content: content.clone() };
        let before = self.dirs.insert(hash, dir);
        debug_assert!(before.is_none(), "what was there is removed first");
    }

    fn remove(&mut self, hash: u64) {
        if let Some(dir) = self.dirs.remove(&hash) {
            self.bytes -= Dir::bytes(&dir.content);
        }
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn clear(&mut self) {
        self.dirs.clear();
        self.bytes = 0;
    }
}
