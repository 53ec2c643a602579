//! The model: a client alone in its directory does random operations by handle. Each is answered as
//! the model answers it, whatever faults happened in between.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use base::{EntryName, FsError, HashKey};
use client::model::Model;
use proptest::{
    strategy::{Strategy as _, ValueTree as _},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use crate::{
    clock::HandClock,
    ops::{Answer, Difference, Listed, Rules, Step, Tallies, compare, steps},
    sim::{jail::Jail, random::SimRandom, world::World},
};

const STEPS: usize = 120;
/// A little longer than a client waits before it releases a closed file.
const RELEASED: Duration = Duration::from_millis(12);

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let label = format!("model-{number}");
    let name = EntryName::new(label.as_bytes())?;
    let random = world.random(&label);
    let kernel_checks = random.one_in(2);
    let machine = world.connect_as("model", kernel_checks).await?;
    let real = [Jail::make(machine.client.clone(), &name).await?];
    world.divide(&machine.client, &format!("/{label}")).await?;
    let clock = HandClock::at(1_000_000);
    let model = Model::new(Arc::new(clock.clone()), HashKey::new(1, number), kernel_checks);
    let model = [Jail::make(model, &name).await?];
    let steps = draw(&random, 1)?;
    let (world, client) = (world.clone(), machine.client.clone());
    Ok(async move {
        let rules = Rules { page_entries: (2, 100), ..Rules::default() };
        let settle = async || {
            world.count(|counts| counts.operations += 1);
            // The client releases a closed file a moment later. Until then the server knows it as
            // open.
            world.wait(RELEASED).await;
            let answered = client.statfs().await;
            answered.expect("the session outlives what goes wrong here");
        };
        let mut tallies = Tallies::new();
        let compared = compare(&clock, rules, (&real, &model), &steps, &mut tallies, settle).await;
        match compared {
            Ok(()) => {}
            // After a restart a removed file may live on until every session has said which files
            // it has open.
            Err(difference) if lives_on(&difference) && restarts(&world) > 0 => {
                world.trace().say(format_args!("{label}: a removed file lives on"));
                world.count(|counts| counts.models_ended += 1);
            }
            // A listing does not wait for a server that is away, which has the inode of an entry.
            Err(difference) if tells_less(&difference) && world.plan().servers > 1 => {
                world.trace().say(format_args!("{label}: the kind of an entry is not told"));
                world.count(|counts| counts.models_ended += 1);
            }
            Err(difference) => return Err(difference).context(label),
        }
        world.count(|counts| counts.models += 1);
        drop((real, client));
        machine.close().await
    })
}

/// Number of times that a server was started again, there or elsewhere.
fn restarts(world: &World) -> u64 {
    world.happened().kills + world.happened().takeovers
}

/// Whether the model no longer has the file, and the server still treats it as any other. The
/// server may then fail too, for another reason.
pub(super) fn lives_on(difference: &Difference) -> bool {
    let does = match *difference.left {
        Answer::Failed(error) => error != FsError::Io,
        Answer::Broken(_) | Answer::Skipped => false,
        _ => true,
    };
    *difference.right == Answer::Failed(FsError::Stale) && does
}

/// Whether the server lists what the model lists, but does not tell the kind of some entries.
fn tells_less(difference: &Difference) -> bool {
    let (
        Answer::Listing(attr, parent, listed),
        Answer::Listing(model_attr, model_parent, model_listed),
    ) = (&*difference.left, &*difference.right)
    else {
        return false;
    };
    let same = |(one, other): (&Listed, &Listed)| {
        // The entry may have been looked up later.
        let untold = |entry| Listed { kind: None, entry, ..other.clone() };
        one == other || *one == untold(None) || *one == untold(other.entry.clone())
    };
    (attr, parent, listed.len()) == (model_attr, model_parent, model_listed.len())
        && listed.iter().zip(model_listed).all(same)
}

pub(super) fn draw(random: &SimRandom, clients: usize) -> anyhow::Result<Vec<Step>> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &random.bytes(32));
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let drawn =
        steps(clients, STEPS).new_tree(&mut runner).map_err(|reason| anyhow!("{reason}"))?;
    Ok(drawn.current())
}
