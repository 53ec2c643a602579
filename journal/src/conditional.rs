//! Whether a store keeps conditions on puts (J4): a store that does not must hold no journal.
//!
//! Tests run at format, at each start, daily, and by `pando journal check`. A store that passes may
//! still be a wrong one; a chain that is broken shows it later (J2).

use std::time::Duration;

use backup::Place;
use base::Random;
use bytes::Bytes;
use futures::future::join_all;
use object_store::{Error as StoreError, ObjectStoreExt as _, PutMode, path::Path};
use tokio::time::Instant;

use crate::{Error, Result, place::random_id};

/// Creates of one name that are sent at a time.
const WRITERS: u64 = 64;
/// Names that are created so: a store that looks first and writes then loses some of these races.
const RACES: u64 = 8;

/// Creates one fresh object many times at once, and looks that one writer wins and the object has
/// its bytes. The object is removed afterwards.
///
/// # Errors
/// [`Error::Untrusted`], or what the store says when it cannot be tested.
pub async fn check(place: &Place, random: &dyn Random) -> Result<()> {
    for _ in 0..RACES {
        race_of_one(place, random).await?;
    }
    Ok(())
}

async fn race_of_one(place: &Place, random: &dyn Random) -> Result<()> {
    let path = place.path(&format!("conditional/{:032x}", random_id(random)));
    let tested = race(place, &path, random).await;
    let cleaned = match place.objects().delete(&path).await {
        Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(Error::Store(error)),
    };
    tested.and(cleaned)
}

/// Puts and removes an object of so many bytes, as a segment is put. Returns the time of the put.
///
/// # Errors
/// The store's own errors.
pub async fn time_put(place: &Place, bytes: usize, random: &dyn Random) -> Result<Duration> {
    let path = place.path(&format!("conditional/{:032x}", random_id(random)));
    let begun = Instant::now();
    place.objects().put_opts(&path, vec![0; bytes].into(), PutMode::Create.into()).await?;
    let took = begun.elapsed();
    place.objects().delete(&path).await?;
    Ok(took)
}

async fn race(place: &Place, path: &Path, random: &dyn Random) -> Result<()> {
    let untrusted = |reason: String| {
        Err(Error::Untrusted { place: format!("{}/{path}", place.objects()), reason })
    };
    let create = |bytes: Bytes| async move {
        place.objects().put_opts(path, bytes.into(), PutMode::Create.into()).await
    };
    let contents: Vec<Bytes> = (0..WRITERS)
        .map(|writer| Bytes::from(format!("{writer} {:032x}", random_id(random))))
        .collect();
    let results = join_all(contents.iter().cloned().map(create)).await;
    let (mut won, mut unknown, mut failed) = (Vec::new(), Vec::new(), None);
    for (bytes, result) in contents.iter().zip(results) {
        match result {
            Ok(_) => won.push(bytes),
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {}
            Err(error) => {
                unknown.push(bytes);
                failed = Some(error);
            }
        }
    }
    if won.len() > 1 {
        return untrusted(format!("{} of {WRITERS} creates of one name succeeded", won.len()));
    }
    // A create whose answer was lost may be the one that won.
    let may_have_won = if won.is_empty() { &unknown } else { &won };
    let found = match place.objects().get(path).await {
        Ok(found) => found.bytes().await?,
        Err(StoreError::NotFound { .. }) if won.is_empty() => {
            return match failed {
                Some(error) => Err(error.into()),
                None => untrusted("no create of a fresh name succeeded".to_owned()),
            };
        }
        Err(StoreError::NotFound { .. }) => {
            return untrusted("what was created is not there".to_owned());
        }
        Err(error) => return Err(error.into()),
    };
    if !may_have_won.contains(&&found) {
        return untrusted("the object has the bytes of a create that failed".to_owned());
    }
    if create(Bytes::from_static(b"later")).await.is_ok() {
        return untrusted("a create over an object succeeded".to_owned());
    }
    let after = place.objects().get(path).await?.bytes().await?;
    if after != found {
        return untrusted("a create that failed replaced the object".to_owned());
    }
    Ok(())
}
