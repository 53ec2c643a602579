//! The promises of [`Blocks`], on every kind of store.

use std::{fs, path::Path, time::Duration};

use futures::TryStreamExt;

use super::*;

fn data(len: u32) -> Bytes {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0]).collect()
}

/// Checks the behaviour that every store has.
pub(super) async fn behaves(blocks: &Blocks) {
    let ids = [BlockId(1), BlockId(7 << 64), BlockId(u128::MAX)];
    let lens = [1, 100_000, BLOCK_BYTES_MAX];
    for (id, len) in ids.into_iter().zip(lens) {
        assert!(matches!(blocks.get(id, len, 0..len).await, Err(BlocksError::Missing { .. })));
        assert!(blocks.put(id, data(len)).await.expect("put"), "it was not there");
        assert!(!blocks.put(id, data(len)).await.expect("put again"), "it was there");
        for other in
            [Bytes::from(vec![1; len as usize]), data(len).slice(..len as usize / 2 + 1), data(7)]
        {
            if other != data(len) {
                let put = blocks.put(id, other).await;
                assert!(matches!(put, Err(BlocksError::Exists { .. })), "len={len} {put:?}");
            }
        }
        assert_eq!(blocks.get(id, len, 0..len).await.expect("whole"), data(len));
        let middle = blocks.get(id, len, len / 3..len / 2).await.expect("part");
        assert_eq!(middle, data(len).slice(len as usize / 3..len as usize / 2));
    }
    let mut listed: Vec<_> = blocks.list().try_collect().await.expect("list");
    listed.sort_by_key(|block| block.id.0);
    assert_eq!(listed.iter().map(|block| block.id).collect::<Vec<_>>(), ids);
    for (listed, len) in listed.iter().zip(lens) {
        let told = blocks.compression() == Compression::None;
        assert!(listed.bytes == Some(len) || (listed.bytes.is_none() && !told), "{listed:?}");
    }
    for id in ids {
        blocks.delete(id).await.expect("delete");
        blocks.delete(id).await.expect("delete what is not there");
    }
    assert!(blocks.list().try_collect::<Vec<_>>().await.expect("list").is_empty());
    blocks.trial(7).await.expect("it works");
    blocks.trial(7).await.expect("nothing is left of a trial");
}

/// Checks the behaviour of every store that compresses.
pub(super) async fn compresses(blocks: &Blocks) {
    let (text, len) = (Bytes::from(vec![b'a'; 300_000]), 300_000);
    let plain = blocks.clone().compressing(Compression::None);
    for how in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let put = blocks.clone().compressing(how);
        let (packed, noise) = (BlockId(1), BlockId(2));
        put.put(packed, text.clone()).await.expect("put");
        put.put(noise, data(1)).await.expect("put");
        // Blocks are read back with any setting of the reader.
        for reader in [&plain, blocks, &put] {
            for range in [0..len, 0..10, 100_000..250_000, len - 1..len] {
                let read = reader.get(packed, len, range.clone()).await.expect("get");
                assert_eq!(read, text.slice(range.start as usize..range.end as usize));
            }
            assert_eq!(reader.get(noise, 1, 0..1).await.expect("get"), data(1));
            let other = reader.get(BlockId(3), len, 0..len).await;
            assert!(matches!(other, Err(BlocksError::Missing { .. })), "{other:?}");
        }
        let listed: Vec<_> = plain.list().try_collect().await.expect("list");
        let found = listed.iter().find(|block| block.id == packed).expect("it is listed");
        assert_eq!(found.bytes, (how == Compression::None).then_some(len));
        for id in [packed, noise] {
            blocks.delete(id).await.expect("delete");
        }
        assert!(plain.list().try_collect::<Vec<_>>().await.expect("list").is_empty());
    }
}

/// The one file below a directory.
fn only_file(dir: &Path) -> std::path::PathBuf {
    let entry = fs::read_dir(dir).unwrap().next().unwrap().unwrap();
    if entry.file_type().unwrap().is_dir() { only_file(&entry.path()) } else { entry.path() }
}

/// A power cut may leave any part of a file that was not synced, or zeros in its place.
#[tokio::test]
async fn what_a_power_cut_has_torn_is_restored_and_nothing_else_is_replaced() {
    for how in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let dir = tempfile::tempdir().unwrap();
        let blocks = Blocks::directory(dir.path()).unwrap().compressing(how);
        let (id, len) = (BlockId(3), 150_000);
        blocks.put(id, data(len)).await.unwrap();
        let file = only_file(dir.path());
        let whole = fs::read(&file).unwrap();
        let mut zeros = whole.clone();
        zeros[4096..8192].fill(0);
        // Where a piece ends, what is left is a block for itself.
        let cuts = [0, 1, 4096, 65_536, 65_540, 131_072, 131_080, whole.len() - 1];
        let torn = cuts.into_iter().filter_map(|cut| Some(whole.get(..cut)?.to_vec()));
        for torn in torn.chain([zeros, vec![0; whole.len()]]) {
            fs::write(&file, &torn).unwrap();
            let put = blocks.put(id, data(len)).await;
            assert!(matches!(put, Err(BlocksError::Exists { .. })), "{how} {put:?}");
            blocks.restore(id, data(len)).await.expect("it is stored once more");
            assert_eq!(blocks.get(id, len, 0..len).await.unwrap(), data(len), "{how}");
        }
        let put = blocks.restore(id, data(len - 1)).await;
        assert!(matches!(put, Err(BlocksError::Exists { .. })), "{how} {put:?}");
        blocks.restore(id, data(len)).await.expect("it is there");
        assert_eq!(fs::read(&file).unwrap(), whole, "{how}");
    }
}

#[test]
fn memory_behaves_and_needs_no_runtime() {
    futures::executor::block_on(behaves(&Blocks::memory()));
    futures::executor::block_on(behaves(&Blocks::volatile()));
}

#[tokio::test]
async fn a_local_directory_behaves_and_survives_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let config = BlocksConfig::new(format!("file://{}/new", dir.path().display()));
    behaves(&Blocks::open(&config).unwrap()).await;
    Blocks::open(&config).unwrap().put(BlockId(5), data(9)).await.unwrap();
    let again = Blocks::open(&config).unwrap();
    assert_eq!(again.get(BlockId(5), 9, 0..9).await.unwrap(), data(9));
}

#[tokio::test]
async fn compressing_stores_behave_and_blocks_are_read_whatever_the_setting() {
    for how in [Compression::Lz4, Compression::Zstd] {
        let memory = Blocks::memory().compressing(how);
        behaves(&memory).await;
        compresses(&memory).await;
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}", dir.path().display());
        let config = BlocksConfig { compression: how, ..BlocksConfig::new(url) };
        let local = Blocks::open(&config).unwrap();
        behaves(&local).await;
        compresses(&local).await;
    }
}

#[tokio::test]
async fn a_compressed_file_is_smaller_and_damage_to_it_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = Blocks::directory(dir.path()).unwrap().compressing(Compression::Zstd);
    let (id, len) = (BlockId(3), 200_000);
    blocks.put(id, vec![b'x'; 200_000].into()).await.unwrap();
    let file = only_file(dir.path());
    let whole = fs::read(&file).unwrap();
    assert!(whole.len() < 1000, "{}", whole.len());
    for (at, range) in [(2, 0..10), (whole.len() - 2, len - 5..len), (30, 0..len)] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&file, damaged).unwrap();
        let read = blocks.get(id, len, range).await;
        assert!(matches!(read, Err(BlocksError::Corrupt { .. })), "at={at} {read:?}");
    }
    for cut in [0, 5, 20, whole.len() - 1] {
        fs::write(&file, &whole[..cut]).unwrap();
        for range in [0..len, len - 5..len] {
            let read = blocks.get(id, len, range).await;
            assert!(matches!(read, Err(BlocksError::Corrupt { .. })), "cut={cut} {read:?}");
        }
    }
}

#[tokio::test]
async fn a_damaged_cut_or_grown_file_is_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = Blocks::directory(dir.path()).unwrap();
    let (id, len) = (BlockId(3), 70_000);
    blocks.put(id, data(len)).await.unwrap();
    let file = only_file(dir.path());
    let whole = fs::read(&file).unwrap();

    let mut damaged = whole.clone();
    damaged[65_545] ^= 1;
    fs::write(&file, damaged).unwrap();
    assert!(matches!(
        blocks.get(id, len, 0..len).await,
        Err(BlocksError::Corrupt { id: BlockId(3) })
    ));
    blocks.get(id, len, 0..10).await.expect("the damage is in another piece");

    for cut in [0, 1, 65_540, whole.len() - 1] {
        fs::write(&file, &whole[..cut]).unwrap();
        let read = blocks.get(id, len, 0..len).await;
        assert!(matches!(read, Err(BlocksError::Corrupt { .. })), "cut={cut} {read:?}");
    }
}

#[tokio::test]
async fn lengths_and_ranges_out_of_bounds_are_refused() {
    let blocks = Blocks::memory();
    let id = BlockId(1);
    for len in [0, BLOCK_BYTES_MAX + 1] {
        assert!(matches!(blocks.put(id, data(len)).await, Err(BlocksError::Bounds { .. })));
        assert!(matches!(blocks.get(id, len, 0..0).await, Err(BlocksError::Bounds { .. })));
    }
    #[expect(clippy::reversed_empty_ranges, reason = "such a range is what is refused")]
    for range in [0..11, 11..11, 5..4] {
        assert!(matches!(blocks.get(id, 10, range).await, Err(BlocksError::Bounds { .. })));
    }
    assert_eq!(blocks.get(id, 10, 4..4).await.expect("nothing to read"), Bytes::new());
}

#[tokio::test]
async fn what_unfinished_puts_left_is_swept_and_not_listed() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = Blocks::directory(dir.path()).unwrap();
    blocks.put(BlockId(1), data(10)).await.unwrap();
    let file = only_file(dir.path());
    let left = file.with_file_name(format!("{:032x}#1", 2));
    fs::write(&left, b"half").unwrap();
    fs::write(file.with_file_name("notes"), b"not ours").unwrap();

    let touched = fs::metadata(&left).unwrap().modified().unwrap();
    assert_eq!(blocks.sweep(touched).await.unwrap(), 0);
    assert_eq!(blocks.sweep(touched + Duration::from_secs(1)).await.unwrap(), 1);
    assert!(!left.exists());
    let listed: Vec<_> = blocks.list().try_collect().await.unwrap();
    assert_eq!(listed.len(), 1);
}

#[test]
fn an_address_that_names_no_store_says_so() {
    for url in ["", "/tmp", "ftp://host/dir"] {
        let opened = Blocks::open(&BlocksConfig::new(url));
        assert!(matches!(opened, Err(BlocksError::Config { .. })), "{url}");
    }
}

#[tokio::test]
async fn blocks_of_a_directory_are_stable_after_a_sync_and_others_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = Blocks::directory(dir.path()).unwrap();
    assert!(!blocks.puts_are_stable());
    blocks.sync().expect("sync of nothing");
    blocks.put(BlockId(1), data(10)).await.unwrap();
    blocks.sync().expect("sync");
    assert!(Blocks::memory().puts_are_stable());
    Blocks::memory().sync().expect("nothing to do");
}

#[test]
fn a_power_cut_takes_of_memory_what_was_not_synced() {
    let blocks = Blocks::volatile();
    assert!(!blocks.puts_are_stable());
    let put = |number| {
        let put = blocks.put(BlockId(number), data(1000));
        futures::executor::block_on(put).expect("put");
    };
    let get = |number| {
        let got = blocks.get(BlockId(number), 1000, 0..1000);
        futures::executor::block_on(got)
    };
    put(1);
    blocks.sync().expect("sync");
    (2..=5).for_each(put);
    futures::executor::block_on(blocks.delete(BlockId(5))).expect("delete");
    assert_eq!(blocks.unsynced(), 3);
    let mut left = [0, 100, usize::MAX].into_iter();
    assert_eq!(blocks.power_cut(|_| left.next().expect("three are not synced")), 2);
    assert!(matches!(get(2), Err(BlocksError::Missing { .. })));
    assert!(matches!(get(3), Err(BlocksError::Corrupt { .. })));
    for number in [1, 4] {
        assert_eq!(get(number).expect("it is left"), data(1000));
    }
    // The blocks that are left are stable, and a torn one can be restored from its data.
    assert_eq!(blocks.power_cut(|_| 0), 0);
    futures::executor::block_on(blocks.restore(BlockId(3), data(1000))).expect("restore");
    assert_eq!(blocks.power_cut(|_| 0), 1);
    assert_eq!(Blocks::memory().power_cut(|_| 0), 0);
}
