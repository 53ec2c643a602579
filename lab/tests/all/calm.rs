//! Clusters in memory in which nothing goes wrong except by the test.

use std::time::Duration;

use base::FsError;
use client::{Client, Error};
use lab::sim::{plan::Plan, play::test_in, world::World};
use meta::Durability;
use tokio::time::timeout;

const SERVERS: u16 = 3;

/// Runs a test in a cluster in which nothing goes wrong except by the test.
pub(crate) fn in_cluster(test: impl AsyncFnOnce(&World, &Client)) {
    in_cluster_of(|_| {}, test);
}

/// Like [`in_cluster`], with a plan changed by `change`.
pub(crate) fn in_cluster_of(
    change: impl FnOnce(&mut Plan),
    test: impl AsyncFnOnce(&World, &Client),
) {
    let mut plan = Plan {
        durability: Durability::Strict,
        disk_ms_max: 0,
        split_threshold: u64::MAX,
        ..Plan::draw(1, SERVERS)
    };
    plan.weather.delay_ms_max = 2;
    change(&mut plan);
    test_in(plan, async |world| {
        let machine = world.connect("test").await.unwrap();
        let ended = timeout(Duration::from_secs(100), test(world, &machine.client)).await;
        ended.expect("nobody waits for ever");
    });
}

/// The error of the file system in a failed result.
pub(crate) fn failed<T: std::fmt::Debug>(result: Result<T, Error>) -> FsError {
    match result {
        Err(Error::Fs(error)) => error,
        other => panic!("{other:?}"),
    }
}
