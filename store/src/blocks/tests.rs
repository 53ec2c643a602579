//! The promises of [`Blocks`], on every kind of store.

use std::{fs, path::Path, time::Duration};

use futures::TryStreamExt;

use super::*;

fn data(len: u32) -> Bytes {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0]).collect()
}

/// What every store does.
pub(super) async fn behaves(blocks: &Blocks) {
    let ids = [BlockId(1), BlockId(7 << 64), BlockId(u128::MAX)];
    let lens = [1, 100_000, BLOCK_BYTES_MAX];
    for (id, len) in ids.into_iter().zip(lens) {
        assert!(matches!(blocks.get(id, len, 0..len).await, Err(BlocksError::Missing { .. })));
        blocks.put(id, data(len)).await.expect("put");
        blocks.put(id, data(len)).await.expect("put again");
        assert_eq!(blocks.get(id, len, 0..len).await.expect("whole"), data(len));
        let middle = blocks.get(id, len, len / 3..len / 2).await.expect("part");
        assert_eq!(middle, data(len).slice(len as usize / 3..len as usize / 2));
    }
    let mut listed: Vec<_> = blocks.list().try_collect().await.expect("list");
    listed.sort_by_key(|block| block.id.0);
    assert_eq!(
        listed.iter().map(|b| (b.id, b.bytes)).collect::<Vec<_>>(),
        ids.into_iter().zip(lens).collect::<Vec<_>>()
    );
    for id in ids {
        blocks.delete(id).await.expect("delete");
        blocks.delete(id).await.expect("delete what is not there");
    }
    assert!(blocks.list().try_collect::<Vec<_>>().await.expect("list").is_empty());
}

/// The one file below a directory.
fn only_file(dir: &Path) -> std::path::PathBuf {
    let entry = fs::read_dir(dir).unwrap().next().unwrap().unwrap();
    if entry.file_type().unwrap().is_dir() { only_file(&entry.path()) } else { entry.path() }
}

#[test]
fn memory_behaves_and_needs_no_runtime() {
    futures::executor::block_on(behaves(&Blocks::memory()));
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
