//! Delegations: two mounts, of which one or both hold the directories that they make, work in one
//! tree in turns. Each operation is answered as the model answers it: so what one mount was told is
//! seen by the other, whatever dies or is cut off in between.
//!
//! A mount that cannot be reached for longer than its lease may lose what it had not sent, and says
//! so. Then the comparison ends, unless nothing was lost.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use base::{EntryName, HashKey};
use client::{Delegating, model::Model};

use super::model::{draw, lives_on};
use crate::{
    clock::HandClock,
    ops::{Rules, Tallies, compare},
    sim::{jail::Jail, network::Place, world::World},
};

/// Time between two operations, at most: longer than a change waits until it is sent.
const PAUSE_MS_MAX: u64 = 40;

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let label = format!("delegated-{number}");
    let name = EntryName::new(label.as_bytes())?;
    let random = world.random(&label);
    let one = world.connect_as("holds", true).await?;
    let other = world.connect_as("asks", true).await?;
    let both_hold = random.one_in(2);
    let mounts = [
        Delegating::new(one.client.clone(), true),
        Delegating::new(other.client.clone(), both_hold),
    ];
    let real =
        [Jail::make(mounts[0].clone(), &name).await?, Jail::find(mounts[1].clone(), &name).await?];
    let clock = HandClock::at(1_000_000);
    let model = Model::new(Arc::new(clock.clone()), HashKey { k0: 1, k1: number }, true);
    let models =
        [Jail::make(model.clone(), &name).await?, Jail::find(model.client(true), &name).await?];
    let steps = draw(&random, 2)?;
    let world = world.clone();
    Ok(async move {
        let rules = Rules { page_entries: (2, 100), ..Rules::default() };
        let lease = world.plan().lease;
        let settle = async || {
            world.count(|counts| counts.operations += 1);
            if random.one_in(30) {
                // Long enough to lose what is held, and too short to lose the session.
                let time = lease.mul_f64(0.2) + random.ms(0..1 + ms(lease) / 4);
                for server in 0..world.plan().servers {
                    world.network().wall(one.place(), Place::Server(server), time);
                    world.network().wall(Place::Server(server), one.place(), time);
                }
            }
            // The client releases a closed file a moment after it was sent.
            world.wait(random.ms(12..PAUSE_MS_MAX)).await;
        };
        let mut tallies = Tallies::new();
        let compared = compare(&clock, rules, (&real, &models), &steps, &mut tallies, settle).await;
        let lost: usize = mounts.iter().map(Delegating::lost).sum();
        for (granted, recalled) in mounts.iter().map(Delegating::grants_and_recalls) {
            world.count(|counts| counts.granted += granted as u64);
            world.count(|counts| counts.recalled += recalled as u64);
        }
        match compared {
            Ok(()) => {}
            Err(difference) if lost > 0 => {
                world.trace().say(format_args!("{label}: changes are lost: {difference}"));
                world.count(|counts| counts.taken_back += 1);
            }
            Err(difference) if lives_on(&difference) => {
                world.trace().say(format_args!("{label}: a removed file lives on"));
                world.count(|counts| counts.models_ended += 1);
            }
            Err(difference) => return Err(difference).context(label),
        }
        world.count(|counts| counts.models += 1);
        for mount in &mounts {
            let settled = tokio::time::timeout(Duration::from_secs(300), mount.settle_all()).await;
            ensure!(settled.is_ok(), "changes of a mount are never sent");
        }
        drop((real, mounts));
        one.close().await?;
        other.close().await
    })
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
