//! What becomes of written data when it is sent: who wins, and who learns of an error.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

#[path = "support/world.rs"]
#[allow(dead_code, reason = "each test uses a part of it")]
mod world;

use std::time::Duration;

use base::FsError;
use client::{Error, OpenOptions};
use tokio::time::sleep;
use wire::XattrMode;
use world::World;

#[tokio::test(start_paused = true)]
async fn of_two_who_write_the_same_bytes_the_last_to_send_wins() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        for large in [10, 20_000] {
            one.write("/f", &vec![b'-'; large]).await.unwrap();
            let first = one.open_with("/f", OpenOptions::both()).await.unwrap();
            let second = two.open_with("/f", OpenOptions::both()).await.unwrap();
            first.write_at(2, b"oneone").await.unwrap();
            second.write_at(4, b"twotwo").await.unwrap();
            second.flush().await.unwrap();
            first.flush().await.unwrap();
            let found = two.read("/f").await.unwrap();
            assert_eq!(&found[..10], b"--oneonewo");
            assert_eq!(found.len(), large);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_error_of_sending_is_told_once_by_the_next_flush() {
    World::run(async |world| {
        let client = world.client().await;
        client.mkdir("/d", 0o755).await.unwrap();
        client.set_xattr("/d", "pando.quota.bytes", b"8192", XattrMode::Set).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        let full = Err(Error::Fs(FsError::QuotaExceeded));
        let file = client.create("/d/f", 0o644).await.unwrap();
        file.write_at(0, &[b'x'; 20_000]).await.unwrap();
        assert_eq!(file.flush().await, full);
        assert_eq!(file.flush().await, Ok(()));
        assert_eq!(file.metadata().await.unwrap().size, 0);
        file.write_at(0, &[b'x'; 20_000]).await.unwrap();
        assert_eq!(file.sync_all().await, full);
        file.write_at(0, &[b'x'; 20_000]).await.unwrap();
        // It is sent without anybody's asking when it is a second old.
        sleep(Duration::from_secs(3)).await;
        assert_eq!(file.close().await, full);
        client.write("/d/g", b"there is room").await.unwrap();
    })
    .await;
}
