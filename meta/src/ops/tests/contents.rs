//! File contents: inline, in blocks, cut, grown, compacted; always what a vector of bytes would
//! hold.

use base::{BlockId, Decode as _, FsError, SetAttr, limits::CHUNK_BYTES};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use proptest::{collection::vec, prelude::*};
use store::Engine as _;
use wire::{ChunkSlices, FileRef, Request, Slice, SliceSource, data::BlockPart};

use super::{
    client::{Client, user},
    world::{Setup, World, in_world, in_world_of},
};

const CHUNK: u64 = CHUNK_BYTES as u64;

async fn stored_blocks(world: &World) -> usize {
    world.blocks.list().count().await
}

#[test]
fn a_write_and_the_change_of_attributes_with_it_happen_both_or_not_at_all() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create_mode(&root, "f", 0o666).await.unwrap();
        let made = client.stat(&file).await.unwrap();
        let time = base::Time { sec: 7, nsec: 8 };
        let write = |set| {
            let source = SliceSource::Embedded(Bytes::from_static(b"new"));
            let slices = vec![Slice { start: 0, len: 3, source }];
            Request::Write(wire::Write {
                file: file.clone(),
                chunks: vec![ChunkSlices { chunk: 0, slices }],
                end: 3,
                at: None,
                clear_set_id: false,
                set: Some(set),
                blocks: Vec::new(),
            })
        };
        let times = SetAttr { mtime: Some(base::SetTime::At(time)), ..SetAttr::default() };
        client.cred = user(7);
        assert_eq!(client.get(write(times)).await, Err(FsError::NotPermitted));
        client.cred = user(0);
        assert_eq!(client.stat(&file).await.unwrap(), made);
        for wrong in [
            SetAttr { size: Some(1), ..SetAttr::default() },
            SetAttr { access_only: true, ..times },
        ] {
            assert_eq!(client.get(write(wrong)).await, Err(FsError::Invalid));
        }
        let set = SetAttr { mode: Some(0o640), uid: Some(7), ..times };
        client.get(write(set)).await.unwrap();
        let attr = client.stat(&file).await.unwrap();
        assert_eq!((attr.size, attr.mtime, attr.mode, attr.uid), (3, time, 0o640, 7));
        assert!(attr.ctime > made.ctime);
        assert_eq!(client.read(&file).await.unwrap(), b"new");
    });
}

#[test]
fn small_files_rest_in_their_entry_and_move_to_blocks_when_they_grow() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        let now = world.tick();
        let attr = client.write(&file, 3, b"abc").await.unwrap();
        assert_eq!((attr.size, attr.allocated, attr.mtime, attr.ctime), (6, 6, now, now));
        assert_eq!(client.read(&file).await.unwrap(), b"\0\0\0abc");
        let before = world.server.status().store_records;
        let attr = client.write(&file, 4094, b"xyz").await.unwrap();
        assert_eq!((attr.size, attr.allocated), (4097, 9));
        // A chunk's record; the stored answer took the place of the one before.
        assert_eq!(world.server.status().store_records, before + 1);
        let data = client.read(&file).await.unwrap();
        assert_eq!((&data[..6], &data[4094..]), (&b"\0\0\0abc"[..], &b"xyz"[..]));
        client.truncate(&file, 4).await.unwrap();
        assert_eq!(client.read(&file).await.unwrap(), b"\0\0\0a");
        let attr = client.truncate(&file, 0).await.unwrap();
        assert_eq!((attr.size, attr.allocated), (0, 0));
        client.write(&file, 0, b"anew").await.unwrap();
        assert_eq!(client.read(&file).await.unwrap(), b"anew");
    });
}

#[test]
fn the_time_of_a_write_is_when_it_was_made() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        let made = world.tick();
        let sent = world.tick();
        let write = |at| wire::Write {
            file: file.clone(),
            chunks: Vec::new(),
            end: 0,
            at: Some(at),
            clear_set_id: false,
            set: None,
            blocks: Vec::new(),
        };
        client.get(Request::Write(write(made))).await.unwrap();
        let attr = client.stat(&file).await.unwrap();
        assert_eq!((attr.mtime, attr.ctime), (made, made));
        client.get(Request::Write(write(sent.plus_ms(60_000)))).await.unwrap();
        assert_eq!(client.stat(&file).await.unwrap().mtime, sent);
        client.get(Request::Write(write(made))).await.unwrap();
        assert_eq!(client.stat(&file).await.unwrap().mtime, sent);
    });
}

#[test]
fn a_file_may_be_sparse_and_as_long_as_the_limit() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        let max = base::limits::FILE_BYTES_MAX;
        let attr = client.truncate(&file, max).await.unwrap();
        assert_eq!((attr.size, attr.allocated), (max, 0));
        let attr = client.write(&file, max - 1, b"z").await.unwrap();
        assert_eq!((attr.size, attr.allocated), (max, 1));
        let last = u32::try_from(max / CHUNK - 1).unwrap();
        for (first, count) in [(last, 1), (last - 1, 2), (last, 64)] {
            let map = wire::BlockMap { file: file.clone(), first, count };
            let reply = client.get(Request::BlockMap(map)).await.unwrap();
            let wire::Reply::BlockMapped(mapped) = reply else { panic!("{reply:?}") };
            assert_eq!(mapped.chunks.len(), 1);
            assert_eq!(mapped.chunks[0].chunk, last);
        }
        client.truncate(&file, max - 1).await.unwrap();
        assert_eq!(client.stat(&file).await.unwrap().allocated, 0);
        client.write(&file, 5 * CHUNK, b"a").await.unwrap();
        let attr = client.truncate(&file, 5 * CHUNK).await.unwrap();
        assert_eq!((attr.size, attr.allocated), (5 * CHUNK, 0));
    });
}

#[test]
fn blocks_that_nothing_shows_any_more_are_deleted() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.write_blocks(&file, 0, &[1; 9000]).await.unwrap();
        client.write_blocks(&file, 9000, &[2; 9000]).await.unwrap();
        client.write_blocks(&file, 2 * CHUNK - 10, &[3; 20]).await.unwrap();
        world.settle().await;
        assert_eq!(stored_blocks(world).await, 4);
        client.write_blocks(&file, 0, &[4; 9000]).await.unwrap();
        world.settle().await;
        assert_eq!(stored_blocks(world).await, 4);
        client.truncate(&file, 2 * CHUNK).await.unwrap();
        world.settle().await;
        assert_eq!(stored_blocks(world).await, 3);
        client.truncate(&file, 9001).await.unwrap();
        world.settle().await;
        assert_eq!(stored_blocks(world).await, 2);
        assert_eq!(client.stat(&file).await.unwrap().allocated, 9001);
        client.unlink(&root, "f").await.unwrap();
        world.settle().await;
        assert_eq!(stored_blocks(world).await, 0);
    });
}

#[test]
fn a_block_that_is_hidden_by_the_request_that_names_it_is_deleted() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        let mut slices = Vec::new();
        for _ in 0..2 {
            let block = client.next_block();
            client.put_block(block, &[1; 5000]).await.unwrap();
            let part = BlockPart { block, block_bytes: 5000, offset: 0, ticket: 0 };
            slices.push(Slice { start: 0, len: 5000, source: SliceSource::Block(part) });
        }
        client.write_chunks(&file, vec![ChunkSlices { chunk: 0, slices }], 5000).await.unwrap();
        world.settle().await;
        assert_eq!(stored_blocks(world).await, 1);
    });
}

#[test]
fn a_block_that_is_stored_stays_as_it_is() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.write_blocks(&file, 0, &[1; 9000]).await.unwrap();
        let block = BlockId::new(client.welcome.session, 1);
        for other in [&[2; 9000][..], &[1; 8999], &[1; 9001]] {
            assert_eq!(client.put_block(block, other).await, Err(FsError::Exists));
        }
        // A client that has lost the answer puts it once more.
        client.put_block(block, &[1; 9000]).await.unwrap();
        assert_eq!(client.read(&file).await.unwrap(), [1; 9000]);
    });
}

#[test]
fn a_large_file_is_removed_in_steps() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        for chunk in 0..600 {
            client.write(&file, chunk * CHUNK, b"x").await.unwrap();
        }
        client.unlink(&root, "f").await.unwrap();
        world.settle().await;
        let prefix = crate::record::key::chunks(file.ino);
        let mut left = 0;
        let mut count = |_: &[u8], _: &[u8]| {
            left += 1;
            std::ops::ControlFlow::Continue(())
        };
        world.engine.scan(&prefix, &crate::record::key::end_of(&prefix), &mut count).unwrap();
        assert_eq!(left, 0);
    });
}

#[test]
fn a_chunk_of_many_slices_becomes_one_block() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        let mut model = vec![0; 200_000];
        for index in 0..70_u8 {
            let at = usize::from(index) * 2500;
            let data = [index + 1; 1000];
            model[at..at + 1000].copy_from_slice(&data);
            match index % 3 {
                0 => client.write_blocks(&file, at as u64, &data).await.unwrap(),
                _ => client.write(&file, at as u64, &data).await.unwrap(),
            };
        }
        world.settle().await;
        assert!(world.counter("chunks_compacted") > 0);
        model.truncate(69 * 2500 + 1000);
        assert_eq!(client.read(&file).await.unwrap(), model);
        // The file has moved meanwhile, and is found.
        client.rename((&root, "f"), (&root, "g")).await.unwrap();
        for index in 0..40 {
            client.write(&file, index * 3, b"x").await.unwrap();
            model[usize::try_from(index).unwrap() * 3] = b'x';
        }
        world.settle().await;
        assert_eq!(client.read(&file).await.unwrap(), model);
        assert_eq!(stored_blocks(world).await, 1);
        let record = chunk_record(world, &file);
        assert!(record.slices.len() <= 33);
        assert_eq!(client.stat(&file).await.unwrap().allocated, record.allocated());
    });
}

#[test]
fn a_little_of_a_large_block_is_stored_as_a_little() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let stored = async |world: &World| {
            world.settle().await;
            let listed: Vec<_> = world.blocks.list().try_collect().await.unwrap();
            listed.iter().map(|block| u64::from(block.bytes.unwrap())).sum::<u64>()
        };
        // A hole stays one.
        let file = client.create(&root, "f").await.unwrap();
        let mut model = vec![7; 1 << 20];
        client.write_blocks(&file, 0, &model).await.unwrap();
        let zeros = wire::Allocate {
            file: file.clone(),
            mode: wire::AllocateMode::ZeroWithin,
            offset: 10_000,
            len: (1 << 20) - 30_000,
            clear_set_id: false,
        };
        client.get(Request::Allocate(zeros)).await.unwrap();
        model[10_000..(1 << 20) - 20_000].fill(0);
        assert_eq!(stored(world).await, 30_000);
        assert_eq!(client.stat(&file).await.unwrap().allocated, 30_000);
        assert_eq!(client.read(&file).await.unwrap(), model);
        client.unlink(&root, "f").await.unwrap();

        let cut = client.create(&root, "g").await.unwrap();
        client.write_blocks(&cut, 0, &[1; 1 << 20]).await.unwrap();
        client.truncate(&cut, 1 << 18).await.unwrap();
        assert_eq!(stored(world).await, 1 << 20, "so much is not rewritten");
        client.truncate(&cut, 1).await.unwrap();
        assert_eq!(stored(world).await, 1);
        client.write(&cut, 1, b"x").await.unwrap();
        assert_eq!(client.read(&cut).await.unwrap(), [1, b'x']);
    });
}

fn chunk_record(world: &World, file: &FileRef) -> crate::record::ChunkRecord {
    let stored = world.engine.get(&crate::record::key::chunk(file.ino, 0)).unwrap().unwrap();
    crate::record::ChunkRecord::from_bytes(&stored.slice(1..)).unwrap()
}

#[test]
fn writers_wait_when_a_chunk_has_too_many_slices() {
    let setup = Setup { background: false, ..Setup::default() };
    in_world_of(setup, async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        let slices = |round: u32| {
            let slice = |index: u32| Slice {
                start: (index * 8 + round) * 8,
                len: 8,
                source: SliceSource::Embedded(Bytes::from(vec![1; 8])),
            };
            vec![ChunkSlices { chunk: 0, slices: (0..1024).map(slice).collect() }]
        };
        for round in 0..5 {
            client.write_chunks(&file, slices(round), 1 << 20).await.unwrap();
        }
        let chunks = slices(5);
        let write = wire::Write {
            file,
            chunks,
            end: 1 << 20,
            at: None,
            clear_set_id: false,
            set: None,
            blocks: Vec::new(),
        };
        let answer = client.ask(Request::Write(write)).await;
        assert_eq!(answer, wire::Answer::Retry(wire::Retry::Busy));
    });
}

#[derive(Debug, Clone)]
enum Step {
    Embedded(u64, usize),
    Blocks(u64, usize),
    Truncate(u64),
    Rename,
    Settle,
    Restart,
}

fn step(at: impl Strategy<Value = u64> + Clone + 'static) -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (at.clone(), 1..60_usize).prop_map(|(at, len)| Step::Embedded(at, len)),
        6 => (at.clone(), 1..60_usize).prop_map(|(at, len)| Step::Blocks(at, len)),
        3 => at.prop_map(Step::Truncate),
        1 => Just(Step::Rename),
        1 => Just(Step::Settle),
        1 => Just(Step::Restart),
    ]
}

async fn play(world: &mut World, client: &mut Client, steps: &[Step]) {
    let root = client.root;
    let names = ["f", "g"];
    let mut named = 0;
    let mut file = client.create(&root, "f").await.unwrap();
    let mut model: Vec<u8> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let byte = u8::try_from(index % 250 + 1).unwrap();
        match step {
            Step::Embedded(at, len) | Step::Blocks(at, len) => {
                let data = vec![byte; *len];
                let start = usize::try_from(*at).unwrap();
                if model.len() < start + len {
                    model.resize(start + len, 0);
                }
                model[start..start + len].copy_from_slice(&data);
                let attr = match step {
                    Step::Blocks(..) => client.write_blocks(&file, *at, &data).await.unwrap(),
                    _ => client.write(&file, *at, &data).await.unwrap(),
                };
                assert_eq!(attr.size, model.len() as u64);
            }
            Step::Truncate(size) => {
                model.resize(usize::try_from(*size).unwrap(), 0);
                client.truncate(&file, *size).await.unwrap();
            }
            Step::Rename => {
                client.rename((&root, names[named]), (&root, names[1 - named])).await.unwrap();
                named = 1 - named;
                file.name = super::client::name(names[named]);
            }
            Step::Settle => world.settle().await,
            Step::Restart => {
                world.restart().await;
                client.resume(world).await;
                client.claim_nothing().await;
            }
        }
    }
    world.settle().await;
    assert!(client.read(&file).await.unwrap() == model, "the file holds something else");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_small_file_is_a_vector_of_bytes(steps in vec(step(0..200_u64), 1..60)) {
        let setup = Setup { inline_bytes_max: 64, ..Setup::default() };
        in_world_of(setup, async |world| {
            let mut client = world.client().await;
            play(world, &mut client, &steps).await;
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_file_is_a_vector_of_bytes_across_chunks(steps in vec(step(CHUNK - 80..CHUNK + 80), 1..40)) {
        in_world(async |world| {
            let mut client = world.client().await;
            play(world, &mut client, &steps).await;
        });
    }
}
