//! Tests of blocks against the store, and of the life of a check.

use std::sync::atomic::{AtomicI64, Ordering};

use base::Decode as _;
use bytes::Bytes;
use store::{Engine as _, Snapshot, kv::Visit};
use wire::{FileRef, FsckPoll, FsckStart, Reply, Request};

use super::{Damage, finds, only_finds, plant};
use crate::{
    fsck::{blocks::Listing, report::Report, sweep::Sweep},
    ops::tests::{
        client::user,
        world::{in_damaged_world, in_world},
    },
    record::{ChunkRecord, key},
};

pub(super) fn block_of(damage: &Damage<'_>, file: &FileRef) -> base::BlockId {
    let stored = damage.0.engine.get(&key::chunk(file.ino, 0)).unwrap().unwrap();
    let chunk = ChunkRecord::from_bytes(&stored.slice(1..)).unwrap();
    crate::record::inode::blocks_of(&chunk.slices).next().unwrap()
}

#[test]
fn blocks_that_do_not_fit_their_records_are_found() {
    finds(&["/a/big: chunk 0 of inode…has 9000 bytes, not 9999"], |damage, tree| {
        damage.chunk(&tree.big, |chunk| {
            let wire::SliceSource::Block(part) = &mut chunk.slices[0].source else { panic!() };
            part.block_bytes = 9999;
        });
    });
    only_finds(&["is named twice", "goes beyond the end"], |damage, tree| {
        let chunk = damage.0.engine.get(&key::chunk(tree.big.ino, 0)).unwrap().unwrap();
        damage.put_bytes(&key::chunk(tree.big.ino, 1), &chunk);
    });
    finds(&["is noted to be deleted"], |damage, tree| {
        let key = key::garbage(tree.big.ino.shard(), block_of(damage, &tree.big));
        damage.put(&key, &crate::reclaim::notes::Garbage::default());
    });
    in_damaged_world(async |world| {
        let tree = plant(world).await;
        world.blocks.delete(block_of(&Damage(world), &tree.big)).await.unwrap();
        let findings = world.findings().await;
        assert_eq!(findings.len(), 1);
        let block = format!("/a/big: chunk 0 of inode {}: block ", tree.big.ino);
        assert!(findings[0].starts_with(&block), "{findings:?}");
        assert!(findings[0].ends_with("is missing"), "{findings:?}");
    });
}

#[test]
fn what_has_several_names_is_told_by_one_of_them() {
    in_damaged_world(async |world| {
        let mut tree = plant(world).await;
        tree.client.write_blocks(&tree.linked, 0, &[1; 9000]).await.unwrap();
        world.blocks.delete(block_of(&Damage(world), &tree.linked)).await.unwrap();
        let findings = world.findings().await;
        let named = |name: &str| findings[0].starts_with(&format!("{name}: chunk 0 of inode "));
        assert!(findings.len() == 1 && (named("/l1") || named("/a/l2")), "{findings:?}");
    });
}

fn count(progress: &wire::FsckProgress, name: &str) -> u64 {
    progress.counts.iter().find(|(other, _)| other == name).unwrap().1
}

#[test]
fn a_check_counts_what_is_there() {
    in_world(async |world| {
        let mut tree = plant(world).await;
        let progress = tree.client.fsck(false).await;
        let counts = ["files", "directories", "orphans", "blocks"];
        assert_eq!(counts.map(|name| count(&progress, name)), [6, 3, 1, 1]);
        assert!(progress.records > 20 && progress.records_estimated > 20);
        assert_eq!(progress.findings_total, 0);
    });
}

#[test]
fn blocks_that_nothing_names_go_when_their_session_has_ended() {
    in_world(async |world| {
        let mut tree = plant(world).await;
        let mut gone = world.client().await;
        for client in [&mut tree.client, &mut gone] {
            let block = client.next_block();
            client.put_block(block, &[1; 100]).await.unwrap();
        }
        // The server knows nothing of blocks that were put before its start.
        world.restart().await;
        tree.client.resume(world).await;
        gone.resume(world).await;
        let file = gone.create(&tree.root, "kept").await.unwrap();
        gone.write_blocks(&file, 0, &[1; 5000]).await.unwrap();
        gone.bye().await;
        let progress = tree.client.fsck(false).await;
        assert_eq!(
            count(&progress, "blocks_unreferenced"),
            1,
            "one session may still name its block"
        );
        assert_eq!(count(&progress, "blocks_removed"), 0);
        let progress = tree.client.fsck(true).await;
        assert_eq!(count(&progress, "blocks_removed"), 1);
        let progress = tree.client.fsck(true).await;
        assert_eq!((count(&progress, "blocks_unreferenced"), count(&progress, "blocks")), (0, 2));
        assert_eq!(tree.client.read(&file).await.unwrap(), [1; 5000]);
    });
}

#[test]
fn one_check_runs_at_a_time_and_its_result_stays() {
    in_world(async |world| {
        let mut client = world.client().await;
        let start = Request::FsckStart(FsckStart { gc: false });
        client.send(base::Seq(0), base::Seq(1), &start).await;
        client.send(base::Seq(0), base::Seq(1), &start).await;
        let (first, second) = (client.receive().await, client.receive().await);
        let mut answers = [first, second];
        answers.sort_by_key(|answer| matches!(answer, wire::Answer::Failed(_)));
        assert_eq!(answers[0], wire::Answer::Done(Reply::Job(1)));
        assert_eq!(answers[1], wire::Answer::Failed(base::FsError::Busy));
        world.settle().await;
        for job in [0, 2] {
            let poll = Request::FsckPoll(FsckPoll { job, cancel: false });
            assert_eq!(client.get(poll).await, Err(base::FsError::NotFound));
        }
        let poll = Request::FsckPoll(FsckPoll { job: 1, cancel: false });
        for _ in 0..2 {
            let Ok(Reply::Fsck(progress)) = client.get(poll.clone()).await else { panic!() };
            assert!(progress.done);
        }
    });
}

#[test]
fn a_check_that_is_cancelled_ends_and_says_so() {
    in_world(async |world| {
        let mut tree = plant(world).await;
        let shared = &world.server.shared;
        let check = crate::fsck::start(shared, crate::fsck::Aim::Find { gc: true }).unwrap();
        let number = check.number;
        crate::fsck::poll(shared, FsckPoll { job: number, cancel: true }).unwrap();
        check.run().await;
        let progress = crate::fsck::poll(shared, FsckPoll { job: number, cancel: false }).unwrap();
        assert!(progress.done && progress.findings[0].contains("cancelled"), "{progress:?}");
        // A check that was dropped with its core has ended as well.
        drop(crate::fsck::start(shared, crate::fsck::Aim::Find { gc: false }).unwrap());
        assert_eq!(tree.client.fsck(false).await.findings_total, 0);
    });
}

/// A snapshot that cancels the check after a number of records.
struct Cut<'a> {
    moment: Box<dyn Snapshot>,
    report: &'a Report,
    left: AtomicI64,
}

impl Snapshot for Cut<'_> {
    fn get(&self, key: &[u8]) -> store::Result<Option<Bytes>> {
        self.moment.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> store::Result<()> {
        self.moment.scan(from, to, &mut |key, value| {
            if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
                self.report.cancel();
            }
            visit(key, value)
        })
    }
}

#[test]
fn a_check_that_is_cancelled_anywhere_finds_nothing() {
    in_world(async |world| {
        let _tree = plant(world).await;
        let (shared, mut ends) = (&world.server.shared, false);
        for records in 0..1000 {
            let (report, moment) = (Report::new(0), shared.engine.snapshot());
            let cut = Cut { moment, report: &report, left: AtomicI64::new(records) };
            let listing = Listing::of(&shared.blocks, &report).await.unwrap();
            Sweep::new(&cut, &shared.config, &report, listing, None).run().unwrap();
            report.finish();
            let findings = report.progress().findings;
            ends = !report.is_cancelled();
            if ends {
                assert_eq!(findings, [""; 0]);
                break;
            }
            let [only] = &findings[..] else { panic!("after {records} records: {findings:#?}") };
            assert!(only.contains("it was cancelled"), "{only}");
        }
        assert!(ends, "some check comes to its end");
    });
}

#[test]
fn only_administrators_check() {
    in_world(async |world| {
        let token = wire::Token { read_only: true, ..wire::Token::administrator() };
        let mut client = world.client_with(&token).await;
        client.cred = user(0);
        let start = Request::FsckStart(FsckStart { gc: true });
        assert_eq!(client.get(start).await, Err(base::FsError::NotPermitted));
    });
}
