//! Blocks that bases of a backup hold.

use std::sync::Arc;

use futures::StreamExt as _;
use parking_lot::Mutex;
use store::Engine as _;
use wire::{DumpNext, Reply, Request};

use super::world::{Setup, World, in_world_of};
use crate::{
    Backup, Beside, Hold, Server,
    reclaim::notes::{Garbage, HeldFor},
    record::{Record as _, key},
};

/// Bases as a test says.
struct Bases(Mutex<Hold>);

impl Beside for Bases {
    fn problem(&self) -> Option<String> {
        None
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

impl Backup for Bases {
    fn hold(&self) -> Hold {
        *self.0.lock()
    }
}

async fn with(bases: &Bases, world: &World, hold: Hold) -> usize {
    *bases.0.lock() = hold;
    world.server.bases_changed();
    world.settle().await;
    world.blocks.list().count().await
}

/// A world in which a block is to be deleted that a base with this number may name.
fn with_a_mark(base: u64, test: impl AsyncFnOnce(&mut World, &Bases)) {
    let bases = Arc::new(Bases(Mutex::new(Hold::Everything)));
    let setup = Setup { backup: Some(bases.clone()), ..Setup::default() };
    in_world_of(setup, async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.write_blocks(&file, 0, &[7; 9000]).await.unwrap();
        client.unlink(&root, "f").await.unwrap();
        assert_eq!(with(&bases, world, Hold::Everything).await, 1);
        let begun = Hold::Bases { begun: base, oldest: 0 };
        assert_eq!(with(&bases, world, begun).await, 1);
        test(world, &bases).await;
    });
}

#[test]
fn a_marked_block_outlives_the_start_of_another_history() {
    with_a_mark(5, async |world, bases| {
        assert_eq!(Server::newest_mark(world.engine.as_ref()).unwrap(), 5);
        assert_eq!(with(bases, world, Hold::Bases { begun: 0, oldest: 0 }).await, 1);
        assert_eq!(with(bases, world, Hold::Bases { begun: 6, oldest: 5 }).await, 1);
        assert_eq!(with(bases, world, Hold::Bases { begun: 7, oldest: 6 }).await, 0);
    });
}

#[test]
fn a_copy_has_no_marks_of_its_original() {
    with_a_mark(70_000, async |world, bases| {
        Server::prepare_copy(world.engine.as_ref()).unwrap();
        assert_eq!(Server::newest_mark(world.engine.as_ref()).unwrap(), 0);
        let block = world.blocks.list().next().await.unwrap().unwrap();
        let notes = (0..8).filter_map(|shard| {
            world.engine.get(&key::garbage(base::ShardId(shard), block.id)).unwrap()
        });
        let notes: Vec<_> = notes.map(|note| Garbage::from_record(&note).unwrap()).collect();
        assert_eq!(notes, [Garbage { held_for: HeldFor(None) }]);
        // Numbers of the copy's own bases begin at 1.
        assert_eq!(with(bases, world, Hold::Bases { begun: 1, oldest: 1 }).await, 1);
        assert_eq!(with(bases, world, Hold::Bases { begun: 3, oldest: 2 }).await, 0);
    });
}

#[test]
fn a_look_at_the_notes_that_was_cut_off_is_made_again() {
    with_a_mark(5, async |world, bases| {
        let mut client = world.client().await;
        let Ok(Reply::DumpStarted(started)) = client.get(Request::DumpStart).await else {
            panic!("no dump was made before")
        };
        let free = Hold::Bases { begun: 7, oldest: 6 };
        // A dump that is being made keeps all blocks.
        assert_eq!(with(bases, world, free).await, 1);
        let end = DumpNext { dump: started.dump, from: bytes::Bytes::new(), end: true };
        client.get(Request::DumpNext(end)).await.unwrap();
        assert_eq!(with(bases, world, free).await, 0);
    });
}
