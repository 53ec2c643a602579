//! Blocks between their put and the write that names them: limits on their number, the end of those
//! that no file names, and the checks of a write that names them.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use base::{BlockId, FsError, limits::CHUNK_BYTES};
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
    Request::Write(Write {
        file: file.clone(),
        chunks,
        end,
        at: None,
        clear_set_id: false,
        set: None,
        blocks: Vec::new(),
    })
}

/// A write that brings the blocks which it names.
fn bringing(file: &FileRef, blocks: &[BlockId]) -> Request {
    let Request::Write(write) = write(file, blocks) else { unreachable!("it is a write") };
    let put = |block: &BlockId| BlockPut { block: *block, data: vec![1; BYTES as usize].into() };
    Request::Write(Write { blocks: blocks.iter().map(put).collect(), ..write })
}

#[test]
fn a_write_is_executed_when_the_blocks_that_it_brings_are_stored() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        let blocks: Vec<BlockId> = (0..3).map(|_| client.next_block()).collect();
        let request = bringing(&file, &blocks);
        client.get(request.clone()).await.unwrap();
        assert_eq!(client.read(&file).await.unwrap(), [1; 300]);
        assert_eq!(stored(world).await, 3);
        // A repetition has its answer, and changes nothing.
        let again = client.ask_as(client.seq, client.seq, request.clone()).await;
        assert!(matches!(again, Answer::Done(_)), "{again:?}");
        assert_eq!(world.counter("duplicates_suppressed"), 1);
        // Under another number the blocks are named already.
        assert_eq!(client.attempt(request).await, Err(Answer::Failed(FsError::Exists)));

        // A write that would be refused anyway stores nothing.
        let others = [BlockId::new(base::SessionId(77), 1)];
        let many: Vec<BlockId> = (0..8).map(|_| client.next_block()).collect();
        for blocks in [&others[..], &many] {
            let refused = client.attempt(bringing(&file, blocks)).await;
            assert_eq!(refused, Err(Answer::Failed(FsError::Invalid)));
        }
        // None twice, none empty, none that is not named.
        let request = |change: &dyn Fn(&mut Write)| {
            let Request::Write(mut write) = bringing(&file, &many[..2]) else { unreachable!() };
            change(&mut write);
            Request::Write(write)
        };
        // A write is kept while it waits, with all of its slices.
        let zeros = Slice { start: 0, len: 1, source: SliceSource::Zeros };
        let slices = vec![zeros; base::limits::SLICES_A_WRITE_MAX];
        let too_many = ChunkSlices { chunk: 1, slices };
        let wrong: [&dyn Fn(&mut Write); 5] = [
            &|write| {
                write.chunks.push(too_many.clone());
                write.end = 2 * u64::from(CHUNK_BYTES);
            },
            &|write| write.blocks[1] = write.blocks[0].clone(),
            &|write| write.blocks[1].data = bytes::Bytes::new(),
            &|write| write.blocks[1].data = bytes::Bytes::from_static(b"short"),
            &|write| write.chunks = naming(&many[..1]),
        ];
        for wrong in wrong {
            let refused = client.attempt(request(wrong)).await;
            assert_eq!(refused, Err(Answer::Failed(FsError::Invalid)));
        }
        let gone = FileRef { ino: base::Ino(77), ..file.clone() };
        assert!(client.attempt(bringing(&gone, &many[..1])).await.is_err());
        assert_eq!(stored(world).await, 3);
        assert_eq!(client.read(&file).await.unwrap(), [1; 300]);
    });
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
        // The repetition of a put changes nothing about a block that is named.
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
fn a_block_is_named_by_one_write_only() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let (one, two) =
            (client.create(&root, "f").await.unwrap(), client.create(&root, "g").await.unwrap());
        let block = put(&mut client).await;
        let named = client.get(write(&one, &[block, block])).await;
        assert!(named.is_ok(), "{named:?}");
        for again in [&one, &two] {
            assert_eq!(client.get(write(again, &[block])).await, Err(FsError::Exists));
        }
        // The block is put once more, as by a client that has lost the answer.
        client.put_block(block, &[1; BYTES as usize]).await.unwrap();
        assert_eq!(client.get(write(&two, &[block])).await, Err(FsError::Exists));
        // With its only name the block goes, and then the number may be another block's.
        client.truncate(&one, 0).await.unwrap();
        assert_eq!(stored(world).await, 0);
        assert_eq!(client.get(write(&two, &[block])).await, Err(FsError::Exists));
        client.put_block(block, &[2; BYTES as usize]).await.unwrap();
        client.get(write(&two, &[block])).await.unwrap();
        assert_eq!(client.read(&two).await.unwrap(), [2; 100]);
    });
}

#[test]
fn a_block_is_named_in_one_chunk_and_by_its_length() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        let block = put(&mut client).await;
        let end = u64::from(CHUNK_BYTES) + 100;
        for place in [0, 1] {
            let [mut chunks, other] = [naming(&[block]), naming(&[block])];
            chunks.extend(other.into_iter().map(|chunk| ChunkSlices { chunk: place, ..chunk }));
            assert_eq!(client.write_chunks(&file, chunks, end).await, Err(FsError::Invalid));
        }
        let mut chunks = naming(&[block]);
        let SliceSource::Block(part) = &mut chunks[0].slices[0].source else { unreachable!() };
        part.block_bytes = BYTES - 1;
        assert_eq!(client.write_chunks(&file, chunks, 100).await, Err(FsError::Exists));
        client.get(write(&file, &[block])).await.unwrap();
    });
}

#[test]
fn a_block_that_was_put_before_a_restart_is_not_named_after_it() {
    let folder = tempfile::tempdir().unwrap();
    in_world(async |world| {
        world.blocks = Blocks::directory(folder.path()).unwrap();
        world.restart().await;
        for torn in [false, true] {
            let mut client = world.client().await;
            let root = client.root;
            let file = client.create(&root, if torn { "f" } else { "g" }).await.unwrap();
            client.write_blocks(&file, 0, &[7; BYTES as usize]).await.unwrap();
            let named = BlockId::new(client.welcome.session, 1);
            let block = put(&mut client).await;
            world.restart().await;
            client.resume(world).await;
            client.open_for(&file, 6).await.unwrap();
            if torn {
                let stored = file_of(folder.path(), block);
                let whole = fs::read(&stored).unwrap();
                fs::write(&stored, &whole[..4096]).unwrap();
            }
            // The client has no answer, and puts the block once more.
            let again = client.put_block(block, &[1; BYTES as usize]).await;
            assert_eq!(again, if torn { Err(FsError::Exists) } else { Ok(()) });
            client.put_block(named, &[7; BYTES as usize]).await.unwrap();
            for block in [block, named] {
                assert_eq!(client.get(write(&file, &[block])).await, Err(FsError::Exists));
            }
            let anew = put(&mut client).await;
            client.get(write(&file, &[anew])).await.unwrap();
            assert_eq!(client.read(&file).await.unwrap()[..200], [[1; 100], [7; 100]].concat());
            client.get(Request::Bye).await.unwrap();
        }
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

        // A write that fails leaves its blocks to be given up.
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

/// The path of a block's file, below a folder.
fn file_of(folder: &Path, block: BlockId) -> PathBuf {
    let found = fs::read_dir(folder).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let found = file_of(&path, block);
            found.exists().then_some(found)
        } else {
            path.ends_with(format!("{:032x}", block.0)).then_some(path)
        }
    });
    found.unwrap_or_default()
}
