//! Ranges of files: longer, zeros, data and holes, copies; against a server in memory.

use base::FsError;
use client::{Client, Error, File, OpenOptions};
use wire::{AllocateMode, SeekTo};

use crate::world::World;

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 4 * MIB;

async fn open(client: &Client, path: &str) -> File {
    client.open_with(path, OpenOptions::both().create(0o644)).await.unwrap()
}

fn failed<T: std::fmt::Debug>(result: Result<T, Error>) -> FsError {
    match result {
        Err(Error::Fs(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_punched_hole_reads_as_zeros_and_gives_its_space_back() {
    World::run(async |world| {
        let client = world.client().await;
        let file = open(&client, "/f").await;
        file.write_at(0, &vec![7; 9 << 20]).await.unwrap();
        file.flush().await.unwrap();
        let before = file.metadata().await.unwrap();
        // From within the first chunk, over all of the second, into the third, and beyond the end.
        for (offset, len, freed) in [(MIB, 6 * MIB, 6 * MIB), (8 * MIB, 50 * MIB, 7 * MIB)] {
            file.allocate(offset, len, AllocateMode::ZeroWithin).await.unwrap();
            let after = file.metadata().await.unwrap();
            assert_eq!((after.size, after.allocated), (9 * MIB, before.allocated - freed));
        }
        let read = file.read_all().await.unwrap();
        for (mib, bytes) in read.chunks(1 << 20).enumerate() {
            let expected = if mib == 0 || mib == 7 { 7 } else { 0 };
            assert!(bytes.iter().all(|byte| *byte == expected), "mib={mib}");
        }
        file.close().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_written_and_not_sent_is_under_a_hole_too() {
    World::run(async |world| {
        let client = world.client().await;
        for size in [100, 5000, 300_000] {
            let path = format!("/{size}");
            let file = open(&client, &path).await;
            file.write_at(0, &vec![1; size]).await.unwrap();
            file.allocate(10, 20, AllocateMode::ZeroWithin).await.unwrap();
            file.write_at(15, b"new").await.unwrap();
            let mut expected = vec![1; size];
            expected[10..30].fill(0);
            expected[15..18].copy_from_slice(b"new");
            assert!(file.read_all().await.unwrap() == expected);
            file.close().await.unwrap();
            assert!(client.read(&path).await.unwrap() == expected);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn allocating_grows_the_file_unless_its_size_is_kept() {
    World::run(async |world| {
        let client = world.client().await;
        let file = open(&client, "/f").await;
        file.write_at(0, b"abc").await.unwrap();
        let size = async || file.metadata().await.unwrap().size;
        file.allocate(0, 10, AllocateMode::Keep).await.unwrap();
        assert_eq!(size().await, 3);
        file.allocate(1, 1, AllocateMode::Grow).await.unwrap();
        assert_eq!(size().await, 3);
        file.allocate(5, 5, AllocateMode::Grow).await.unwrap();
        assert_eq!(&file.read_all().await.unwrap()[..], b"abc\0\0\0\0\0\0\0");
        file.allocate(2, 10_000, AllocateMode::Zero).await.unwrap();
        assert_eq!(size().await, 10_002);
        assert_eq!(&file.read_at(0, 5).await.unwrap()[..], b"ab\0\0\0");
        assert_eq!(failed(file.allocate(0, 0, AllocateMode::Grow).await), FsError::Invalid);
        let huge = file.allocate(u64::MAX - 1, 2, AllocateMode::Grow).await;
        assert_eq!(failed(huge), FsError::FileTooBig);
        let reader = client.open("/f").await.unwrap();
        assert_eq!(failed(reader.allocate(0, 1, AllocateMode::Keep).await), FsError::BadHandle);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn seeks_find_data_and_holes_at_the_byte() {
    World::run(async |world| {
        let client = world.client().await;
        let file = open(&client, "/f").await;
        // 0: hole, 1000: data, 3000: hole, then data around the border of two chunks, and a hole to
        // the end.
        file.write_at(1000, &[1; 2000]).await.unwrap();
        file.write_at(CHUNK - 100, &[2; 300]).await.unwrap();
        file.set_len(3 * CHUNK).await.unwrap();
        for (from, data, hole) in [
            (0, Some(1000), 0),
            (1000, Some(1000), 3000),
            (2999, Some(2999), 3000),
            (3000, Some(CHUNK - 100), 3000),
            (CHUNK - 1, Some(CHUNK - 1), CHUNK + 200),
            (CHUNK + 200, None, CHUNK + 200),
            (3 * CHUNK - 1, None, 3 * CHUNK - 1),
        ] {
            assert_eq!(file.seek(from, SeekTo::Data).await.ok(), data, "from={from}");
            assert_eq!(file.seek(from, SeekTo::Hole).await.unwrap(), hole, "from={from}");
        }
        file.allocate(1500, 100, AllocateMode::ZeroWithin).await.unwrap();
        assert_eq!(file.seek(1000, SeekTo::Hole).await.unwrap(), 1500);
        assert_eq!(file.seek(1500, SeekTo::Data).await.unwrap(), 1600);
        for to in [SeekTo::Data, SeekTo::Hole] {
            assert_eq!(failed(file.seek(3 * CHUNK, to).await), FsError::NoSuchDevice);
        }
        let small = open(&client, "/small").await;
        small.write_at(100, b"x").await.unwrap();
        assert_eq!(small.seek(0, SeekTo::Data).await.unwrap(), 0, "in the entry all is data");
        assert_eq!(small.seek(0, SeekTo::Hole).await.unwrap(), 101);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_has_what_was_just_written_and_ends_at_the_end() {
    World::run(async |world| {
        let client = world.client().await;
        let (from, to) = (open(&client, "/from").await, open(&client, "/to").await);
        let data: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251).to_le_bytes()[0]).collect();
        from.write_at(0, &data).await.unwrap();
        to.write_at(0, b"0123456789").await.unwrap();
        assert_eq!(from.copy_to(7, &to, 2, u64::MAX).await.unwrap(), 3_000_000 - 7);
        let copied = to.read_all().await.unwrap();
        assert!(copied[..2] == *b"01" && copied[2..] == data[7..]);
        assert_eq!(from.copy_to(3_000_000, &to, 0, 5).await.unwrap(), 0);
        assert_eq!(failed(from.copy_to(0, &from, 5, 10).await), FsError::Invalid);
        assert_eq!(from.copy_to(0, &from, 5, 5).await.unwrap(), 5);
        assert!(from.read_at(5, 5).await.unwrap() == data[..5]);
        let reader = client.open("/to").await.unwrap();
        assert_eq!(failed(from.copy_to(0, &reader, 0, 1).await), FsError::BadHandle);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn others_see_a_hole_when_they_open_the_file() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        one.write("/f", &vec![9; 1 << 20]).await.unwrap();
        assert_eq!(two.read("/f").await.unwrap()[5000], 9);
        let file = open(&one, "/f").await;
        file.allocate(4096, 8192, AllocateMode::Zero).await.unwrap();
        let read = two.read("/f").await.unwrap();
        assert!(read[4096..12_288].iter().all(|byte| *byte == 0) && read[12_288] == 9);
    })
    .await;
}
