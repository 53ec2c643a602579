//! Files of very many chunks: cut and removed in steps, with a crash after each of them.

use base::{Ino, limits::CHUNK_BYTES};
use bytes::Bytes;
use store::Engine as _;
use wire::{Answer, ChunkSlices, FileRef, Request, Retry, Slice, SliceSource, Write};

use super::{
    client::Client,
    world::{Setup, World, in_world, in_world_of},
};
use crate::{
    reclaim::{self, notes::CHUNKS_A_STEP},
    record::key,
};

const CHUNK: u64 = CHUNK_BYTES as u64;
/// Enough chunks for two whole steps, and a third one that finds fewer.
const CHUNKS: u32 = 600;
const STEPS: usize = 3;

/// Runs a test that takes the steps itself.
fn by_hand(test: impl AsyncFnOnce(&mut World)) {
    in_world_of(Setup { background: false, ..Setup::default() }, test);
}

/// A byte in each chunk.
fn bytes(chunks: std::ops::Range<u32>) -> Vec<ChunkSlices> {
    let source = SliceSource::Embedded(Bytes::from_static(b"x"));
    let slices = vec![Slice { start: 0, len: 1, source }];
    chunks.map(|chunk| ChunkSlices { chunk, slices: slices.clone() }).collect()
}

async fn huge(client: &mut Client, name: &str) -> FileRef {
    let root = client.root;
    let file = client.create(&root, name).await.unwrap();
    let end = u64::from(CHUNKS) * CHUNK;
    let attr = client.write_chunks(&file, bytes(0..CHUNKS), end).await.unwrap();
    assert_eq!((attr.size, attr.allocated), (end, u64::from(CHUNKS)));
    file
}

async fn step(world: &World, ino: Ino) {
    world.core.step(move |txn| reclaim::step(txn, ino)).await;
}

fn stored_chunks(world: &World, ino: Ino) -> usize {
    let (mut found, prefix) = (0, key::chunks(ino));
    let count = &mut |_: &[u8], _: &[u8]| {
        found += 1;
        std::ops::ControlFlow::Continue(())
    };
    world.engine.scan(&prefix, &key::end_of(&prefix), count).unwrap();
    found
}

fn has_tail(world: &World, ino: Ino) -> bool {
    world.engine.get(&key::tail(ino)).unwrap().is_some()
}

/// Ends the server as a crash does; the client comes back.
async fn crash(world: &mut World, client: &mut Client) {
    world.restart().await;
    client.resume(world).await;
    client.claim_nothing().await;
}

/// Writes a byte at the start of a chunk, and nothing else.
async fn poke(client: &mut Client, file: &FileRef, chunk: u32) -> Answer {
    let (file, chunks) = (file.clone(), bytes(chunk..chunk + 1));
    let end = u64::from(chunk) * CHUNK + 1;
    client
        .ask(Request::Write(Write {
            file,
            chunks,
            end,
            at: None,
            clear_set_id: false,
            set: None,
            blocks: Vec::new(),
        }))
        .await
}

#[test]
fn a_huge_file_is_cut_and_removed_in_steps_of_bounded_size() {
    by_hand(async |world| {
        let mut client = world.client().await;
        let (root, bound) = (client.root, 2 * CHUNKS_A_STEP as u64 + 8);
        for cut in [true, false] {
            let file = huge(&mut client, "f").await;
            world.engine.take_cost();
            if cut {
                assert_eq!(client.truncate(&file, CHUNK / 2).await.unwrap().size, CHUNK / 2);
            } else {
                client.unlink(&root, "f").await.unwrap();
            }
            assert!(world.engine.take_cost().changes < 8);
            for _ in 0..STEPS {
                assert!(stored_chunks(world, file.ino) > 1);
                world.engine.take_cost();
                step(world, file.ino).await;
                let cost = world.engine.take_cost();
                assert!(cost.batches == 1 && cost.changes <= bound, "{cost:?}");
            }
            assert_eq!(stored_chunks(world, file.ino), usize::from(cut));
            assert!(!has_tail(world, file.ino));
            if cut {
                assert_eq!(client.stat(&file).await.unwrap().allocated, 1);
                client.unlink(&root, "f").await.unwrap();
                step(world, file.ino).await;
            }
        }
        client.bye().await;
    });
}

#[test]
fn a_cut_goes_on_after_a_crash_at_any_step_and_nothing_shows_again() {
    by_hand(async |world| {
        let mut client = world.client().await;
        let file = huge(&mut client, "f").await;
        assert_eq!(client.truncate(&file, CHUNK + 1).await.unwrap().size, CHUNK + 1);
        for done in 0..STEPS {
            crash(world, &mut client).await;
            assert_eq!(world.server.shared.deferred_truncations.inos(), [file.ino]);
            assert_eq!(client.stat(&file).await.unwrap().size, CHUNK + 1);
            let data = client.read(&file).await.unwrap();
            assert!(data.len() as u64 == CHUNK + 1 && data[CHUNK_BYTES as usize] == b'x');
            assert_eq!(client.fsck(false).await.findings, Vec::<String>::new());
            // A chunk that is gone may be written again, and one that is not may not.
            let gone = 2 + u32::try_from(done * CHUNKS_A_STEP).unwrap();
            assert_eq!(poke(&mut client, &file, gone).await, Answer::Retry(Retry::Busy));
            let grows = client.ask(Request::Setattr(wire::Setattr {
                node: wire::NodeRef::File(file.clone()),
                set: base::SetAttr { size: Some(1 << 40), ..Default::default() },
            }));
            assert_eq!(grows.await, Answer::Retry(Retry::Busy));
            step(world, file.ino).await;
        }
        crash(world, &mut client).await;
        assert!(
            !has_tail(world, file.ino)
                && world.server.shared.deferred_truncations.inos().is_empty()
        );
        let end = u64::from(CHUNKS) * CHUNK;
        let attr = client.truncate(&file, end).await.unwrap();
        assert_eq!((attr.size, attr.allocated), (end, 2));
        assert_eq!(stored_chunks(world, file.ino), 2);
        client.bye().await;
    });
}

#[test]
fn a_removal_goes_on_after_a_crash_at_any_step() {
    by_hand(async |world| {
        let mut client = world.client().await;
        let (root, file) = (client.root, huge(&mut client, "f").await);
        client.unlink(&root, "f").await.unwrap();
        for done in 0..STEPS {
            crash(world, &mut client).await;
            assert_eq!(stored_chunks(world, file.ino), CHUNKS as usize - done * CHUNKS_A_STEP);
            assert_eq!(client.fsck(false).await.findings, Vec::<String>::new());
            step(world, file.ino).await;
        }
        assert_eq!(stored_chunks(world, file.ino), 0);
        assert!(world.engine.get(&key::reclaim(file.ino)).unwrap().is_none());
        client.bye().await;
    });
}

#[test]
fn a_file_that_was_cut_may_be_moved_linked_cut_again_and_removed() {
    by_hand(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        for (at, remove) in [(1, false), (2, true), (3, true)] {
            let name = format!("f{at}");
            let file = huge(&mut client, &name).await;
            client.truncate(&file, 300 * CHUNK).await.unwrap();
            let mut file = client.link(&file, &root, "other").await.unwrap();
            client.unlink(&root, &name).await.unwrap();
            client.rename((&root, "other"), (&root, "moved")).await.unwrap();
            file.name = super::client::name("moved");
            assert_eq!(client.truncate(&file, 0).await.unwrap().size, 0);
            assert_eq!(client.open_file(&file).await.unwrap().attr.size, 0);
            if at == 3 {
                step(world, file.ino).await;
            }
            if remove {
                client.unlink(&root, "moved").await.unwrap();
                client.release(file.ino, client.opened()).await;
            }
            assert_eq!(client.fsck(false).await.findings, Vec::<String>::new());
            for _ in 0..2 * STEPS {
                step(world, file.ino).await;
            }
            assert!(!has_tail(world, file.ino));
            assert_eq!(stored_chunks(world, file.ino), 0);
            if !remove {
                let attr = client.write(&file, 0, b"anew").await.unwrap();
                assert_eq!((attr.size, attr.allocated), (4, 4));
                client.unlink(&root, "moved").await.unwrap();
                client.release(file.ino, client.opened()).await;
                step(world, file.ino).await;
            }
        }
        client.bye().await;
    });
}

#[test]
fn the_background_cuts_by_itself_and_who_waits_goes_on() {
    in_world(async |world| {
        let mut client = world.client().await;
        let file = huge(&mut client, "f").await;
        client.truncate(&file, 0).await.unwrap();
        let mut tries = 0;
        while poke(&mut client, &file, CHUNKS).await == Answer::Retry(Retry::Busy) {
            world.settle().await;
            tries += 1;
            assert!(tries < 20, "the tail is never gone");
        }
        let attr = client.stat(&file).await.unwrap();
        assert_eq!((attr.size, attr.allocated), (u64::from(CHUNKS) * CHUNK + 1, 1));
        client.bye().await;
    });
}
