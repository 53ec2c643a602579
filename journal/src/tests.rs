//! Journals over stores that fail, and over two writers in every order.

mod faults;
mod interleaved;
mod leases;
mod stores;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use backup::{History, Key, Moment, Place};
use base::Random;
use bytes::Bytes;
use object_store::ObjectStore;

use crate::{Journal, Record, Times};

const UUID: u128 = 0xfeed;
const HISTORY: u64 = 7;

struct Counting(AtomicU64);

impl Random for Counting {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Random numbers; each seed has its own.
fn random(seed: u64) -> Arc<dyn Random> {
    Arc::new(Counting(AtomicU64::new(seed << 32 | 1)))
}

fn key() -> Key {
    Key::new([3; 32])
}

fn place(store: &Arc<impl ObjectStore>) -> Place {
    let store: Arc<dyn ObjectStore> = store.clone();
    Place::over(store, "some/where/")
}

fn journal(store: &Arc<impl ObjectStore>) -> Journal {
    Journal::new(place(store), (UUID, HISTORY), 0, key(), Duration::from_secs(1_000_000))
}

/// A journal whose requests end in time.
fn any_place(store: &Arc<impl ObjectStore>) -> Journal {
    Journal::new(place(store), (UUID, HISTORY), 0, key(), Duration::from_secs(3))
}

pub(crate) fn any_journal() -> Journal {
    journal(&Arc::new(object_store::memory::InMemory::new()))
}

fn times() -> Times {
    Times {
        hedge_min: Duration::from_secs(500_000),
        retry_first: Duration::from_millis(1),
        retry_max: Duration::from_millis(2),
    }
}

fn record(sequence: u64) -> Record {
    Record { sequence, count: 1, batch: Bytes::from(format!("change {sequence}")) }
}

/// Makes base `number` of a server with this generation and last segment.
async fn base(store: &Arc<impl ObjectStore>, number: u64, journal: (u64, u64), position: u64) {
    let folder = tempfile::tempdir().unwrap();
    let newest = number - 1;
    let noted = backup::Noted { history: HISTORY, newest, made: newest };
    let mut history = History::new(place(store), UUID, noted, key());
    let moment = Moment { made: number, position, journal, server: None, name: "pando".into() };
    let small = [("pando.json", Bytes::from_static(b"{}"))];
    let random = random(1000 + number);
    history.make((folder.path(), "meta"), &small, moment, &*random).await.unwrap();
}
