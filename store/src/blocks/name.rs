//! The name of a block's object: `blocks/ab/cd/<id as 32 hexadecimal digits>`, with `.z` behind it
//! where the block is stored compressed.
//!
//! Persisted: `abcd` is the upper half of the CRC-32C of the id (16 bytes BE) with its low 10 bits
//! cleared. So up to 1,024 blocks that a session wrote one after the other share a folder, which
//! keeps folders few, and sessions spread over 65,536 folders.

use base::BlockId;
use object_store::path::Path;

const RUN_BITS: u32 = 10;

/// The number of the folder that a block is in.
fn folder(id: BlockId) -> u16 {
    let run = (id.0 >> RUN_BITS) << RUN_BITS;
    let [.., low, high] = crc32c::crc32c(&run.to_be_bytes()).to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// The names of the two folders, the outer one first.
fn folder_names(folder: u16) -> [String; 2] {
    folder.to_be_bytes().map(|byte| format!("{byte:02x}"))
}

/// Where all blocks are.
pub(super) fn root(prefix: &str) -> Path {
    Path::from(format!("{prefix}blocks"))
}

/// Where a block is.
pub(super) fn path(prefix: &str, id: BlockId) -> Path {
    let [outer, inner] = folder_names(folder(id));
    Path::from(format!("{prefix}blocks/{outer}/{inner}/{:032x}", id.0))
}

/// Suffix of the name of a block that is stored compressed.
pub(super) const PACKED: &str = ".z";

/// Where a block is if it is stored compressed.
pub(super) fn packed(prefix: &str, id: BlockId) -> Path {
    Path::from(format!("{}{PACKED}", path(prefix, id)))
}

/// The block with this name, and whether it is the name of a compressed one; `None` when it is no
/// block's.
pub(super) fn parse(path: &Path) -> Option<(BlockId, bool)> {
    let path = path.as_ref();
    let plain = path.strip_suffix(PACKED);
    let id = parse_plain(&Path::from(plain.unwrap_or(path)))?;
    Some((id, plain.is_some()))
}

fn parse_plain(path: &Path) -> Option<BlockId> {
    let name = path.filename()?;
    let ours = name.len() == 32 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let id = BlockId(u128::from_str_radix(name, 16).ok().filter(|_| ours)?);
    let [outer, inner] = folder_names(folder(id));
    path.as_ref().ends_with(&format!("blocks/{outer}/{inner}/{name}")).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_golden_ones() {
        let id = BlockId(0x0102_0304_0506_0708_090A_0B0C_0D0E_0F10);
        let golden = "p/blocks/84/67/0102030405060708090a0b0c0d0e0f10";
        assert_eq!(path("p/", id).as_ref(), golden);
        assert_eq!(parse(&Path::from(golden)), Some((id, false)));
        assert_eq!(packed("p/", id).as_ref(), format!("{golden}.z"));
        assert_eq!(parse(&packed("p/", id)), Some((id, true)));
    }

    #[test]
    fn what_is_not_a_blocks_name_is_passed_over() {
        let good = path("", BlockId(7));
        assert_eq!(parse(&good), Some((BlockId(7), false)));
        let good = good.as_ref();
        for bad in
            [&good[..good.len() - 1], "blocks/zz/00/x", "readme", &good.replace("blocks", "b")]
        {
            assert_eq!(parse(&Path::from(bad)), None, "{bad}");
        }
    }

    #[test]
    fn neighbours_share_a_folder_and_sessions_spread() {
        assert_eq!(folder(BlockId(0)), folder(BlockId(1023)));
        let mut folders: Vec<u16> = (0..1000_u128).map(|s| folder(BlockId(s << 64))).collect();
        folders.sort_unstable();
        folders.dedup();
        assert!(folders.len() > 900, "folders={}", folders.len());
    }
}
