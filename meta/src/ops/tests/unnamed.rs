//! Blocks between their put and the write that names them: how many there may be, what becomes of those that nothing
//! names, and what a write does that names one which a power cut may have taken.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc,
    time::Duration,
};

use base::{BlockId, FsError};
use futures::StreamExt as _;
use store::Blocks;
use wire::{
    Answer, BlockDrop, BlockPut, ChunkSlices, FileRef, Request, Retry, Slice, SliceSource, Write,
    data::BlockPart,
};

use super::{
    client::Client,
    world::{Setup, World, in_world, in_world_of},
};
use crate::Limits;

const BYTES: u32 = 9000;

async fn stored(world: &World) -> usize {
    world.settle().await;
    world.blocks.list().count().await
}

async fn put(client: &mut Client) -> BlockId {
    let block = client.next_block();
    client.put_block(block, &[1; BYTES as usize]).await.unwrap();
    block
}

/// The first chunk, with parts of these blocks.
fn naming(blocks: &[BlockId]) -> Vec<ChunkSlices> {
    let slices = (0..).zip(blocks).map(|(start, block)| {
        let part = BlockPart { block: *block, block_bytes: BYTES, offset: 0, ticket: 0 };
        Slice { start: start * 100, len: 100, source: SliceSource::Block(part) }
    });
    vec![ChunkSlices { chunk: 0, slices: slices.collect() }]
}

fn write(file: &FileRef, blocks: &[BlockId]) -> Request {
    let (chunks, end) = (naming(blocks), 100 * blocks.len() as u64);
    Request::Write(Write { file: file.clone(), chunks, end, at: None, clear_set_id: false })
}

#[test]
fn what_no_write_names_is_deleted_when_its_session_ends() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        let named = put(&mut client).await;
        put(&mut client).await;
        client.get(write(&file, &[named])).await.unwrap();
        // The echo of a put says nothing of a block that is named.
        client.put_block(named, &[1; BYTES as usize]).await.unwrap();
        assert_eq!(stored(world).await, 2);
        client.get(Request::Bye).await.unwrap();
        assert_eq!(stored(world).await, 1);
        let mut other = world.client().await;
        let file = FileRef { dir: other.root, ..file };
        assert_eq!(other.read(&file).await.unwrap(), [1; 100]);
    });
}

#[test]
fn what_no_write_names_is_deleted_when_its_client_is_gone() {
    in_world(async |world| {
        let mut client = world.client().await;
        put(&mut client).await;
        drop(client);
        assert_eq!(stored(world).await, 1);
        world.wait(Duration::from_secs(120)).await;
        assert_eq!(stored(world).await, 0);
    });
}

#[test]
fn a_block_that_was_put_before_a_restart_is_named_after_it_and_stays() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        let block = put(&mut client).await;
        world.restart().await;
        client.resume(world).await;
        // It has no answer, and puts it once more.
        client.put_block(block, &[1; BYTES as usize]).await.unwrap();
        client.get(write(&file, &[block])).await.unwrap();
        client.get(Request::Bye).await.unwrap();
        assert_eq!(stored(world).await, 1);
        let mut other = world.client().await;
        let file = FileRef { dir: other.root, ..file };
        assert_eq!(other.read(&file).await.unwrap(), [1; 100]);
    });
}

#[test]
fn a_session_has_so_much_stored_that_nothing_names_and_no_more() {
    let limits = Limits { unnamed_bytes_max: 2 * u64::from(BYTES), ..Limits::default() };
    in_world_of(Setup { limits, ..Setup::default() }, async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        let (one, two) = (put(&mut client).await, put(&mut client).await);
        let block = client.next_block();
        let third = Request::BlockPut(BlockPut { block, data: vec![1; BYTES as usize].into() });
        let full = Answer::Retry(Retry::Busy);
        assert_eq!(client.ask(third.clone()).await, full);
        client.put_block(two, &[1; BYTES as usize]).await.unwrap();
        client.get(write(&file, &[one])).await.unwrap();
        client.get(third).await.unwrap();
        assert_eq!(stored(world).await, 3);

        // A write that fails leaves them to be given up.
        let over = FileRef { ino: base::Ino(77), ..file.clone() };
        assert!(client.attempt(write(&over, &[two])).await.is_err());
        let fourth = client.next_block();
        let data = vec![1; BYTES as usize].into();
        let put = Request::BlockPut(BlockPut { block: fourth, data });
        assert_eq!(client.ask(put.clone()).await, full);
        client.get(Request::BlockDrop(BlockDrop { blocks: vec![one, two, block] })).await.unwrap();
        client.get(put).await.unwrap();
        assert_eq!(stored(world).await, 2, "the named one and the last");
        assert_eq!(client.read(&file).await.unwrap(), [1; 100]);
    });
}

#[test]
fn nobody_gives_up_the_blocks_of_another() {
    in_world(async |world| {
        let (mut one, mut other) = (world.client().await, world.client().await);
        let block = put(&mut one).await;
        other.get(Request::BlockDrop(BlockDrop { blocks: vec![block] })).await.unwrap();
        assert_eq!(stored(world).await, 1);
    });
}

/// The one file below a folder.
fn only_file(folder: &Path) -> PathBuf {
    let entry = fs::read_dir(folder).unwrap().next().unwrap().unwrap();
    if entry.file_type().unwrap().is_dir() { only_file(&entry.path()) } else { entry.path() }
}

/// A client that has put one block into a folder, and comes back after the server was restarted.
async fn back_with_a_block(world: &mut World, folder: &Path) -> (Client, FileRef, BlockId) {
    world.blocks = Blocks::directory(folder).unwrap();
    world.restart().await;
    let mut client = world.client().await;
    let root = client.root;
    let file = client.create(&root, "f").await.unwrap();
    let block = put(&mut client).await;
    world.restart().await;
    client.resume(world).await;
    client.open_for(&file, 6).await.unwrap();
    (client, file, block)
}

#[test]
fn a_block_that_a_power_cut_has_torn_is_refused_and_stored_again() {
    let folder = tempfile::tempdir().unwrap();
    in_world(async |world| {
        let (mut client, file, block) = back_with_a_block(world, folder.path()).await;
        let stored = only_file(folder.path());
        let whole = fs::read(&stored).unwrap();
        fs::write(&stored, &whole[..4096]).unwrap();
        let lost = client.attempt(write(&file, &[block, block])).await;
        assert_eq!(lost.unwrap_err(), Answer::Retry(Retry::StaleDir));
        client.put_block(block, &[1; BYTES as usize]).await.unwrap();
        client.get(write(&file, &[block, block])).await.unwrap();
        assert_eq!(client.read(&file).await.unwrap(), [1; 200]);
    });
}

#[test]
fn a_write_of_doubtful_blocks_holds_up_nobody() {
    let folder = tempfile::tempdir().unwrap();
    in_world(async |world| {
        let (mut client, file, block) = back_with_a_block(world, folder.path()).await;
        let stored = only_file(folder.path());
        fs::remove_file(&stored).unwrap();
        // Whoever opens it to read waits for somebody who opens it to write.
        assert!(Command::new("mkfifo").arg(&stored).status().unwrap().success());
        let (say, told) = mpsc::channel();
        let opens = tokio::task::spawn_blocking(move || {
            let told = told.recv_timeout(Duration::from_secs(20)).is_ok();
            drop(fs::OpenOptions::new().write(true).open(&stored).unwrap());
            told
        });
        client.seq = client.seq.next();
        client.send(client.seq, client.seq, &write(&file, &[block; 50])).await;
        let mut other = world.client().await;
        let root = other.root;
        other.create(&root, "meanwhile").await.unwrap();
        say.send(()).unwrap();
        assert!(opens.await.unwrap(), "another client was answered while the block was looked at");
        assert_eq!(client.receive().await, Answer::Failed(FsError::Io));
    });
}
