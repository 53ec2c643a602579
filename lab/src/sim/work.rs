//! The workloads: operations of clients while faults happen, and checks of their results.
//!
//! Each workload has three parts: it is set up before any fault, it runs, and it checks. The seed
//! decides which workloads a world gets.

mod below;
mod beside;
mod checks;
mod contents;
mod crossed;
mod crowd;
mod delegated;
pub mod filled;
mod linear;
mod locks;
mod lost;
mod model;
mod mortal;
mod moved;
mod once;
mod opened;
mod paths;
mod race;
mod thrown;
mod watched;

use std::pin::Pin;

use base::Locality;

use super::{
    plan::{About, Aim, Quotas, Special},
    world::World,
};

/// A workload that was set up. `run` also checks the results.
pub struct Work {
    /// The name of the workload.
    pub name: &'static str,
    /// The workload itself.
    pub run: Pin<Box<dyn Future<Output = anyhow::Result<()>>>>,
}

impl Work {
    fn new(name: &'static str, run: impl Future<Output = anyhow::Result<()>> + 'static) -> Work {
        Work { name, run: Box::pin(run) }
    }
}

/// Sets up workloads that go on when a full disk refuses an operation. Each of them checks that a
/// refused operation has changed nothing.
async fn on_small_disks(world: &World) -> anyhow::Result<Vec<Work>> {
    let mut works = vec![Work::new("lost", lost::set_up(world, 1).await?)];
    if world.plan().is_lossy() {
        return Ok(works);
    }
    for number in 2..4 {
        works.push(Work::new("linear", linear::set_up(world, number).await?));
    }
    if world.plan().trash {
        works.push(Work::new("thrown", thrown::set_up(world, 4).await?));
    }
    Ok(works)
}

/// Sets up the workloads of a world. Where a power cut may lose answered changes, only workloads
/// that can tell what may be lost are chosen.
///
/// # Errors
/// When a client cannot make what it needs.
pub async fn set_up(world: &World) -> anyhow::Result<Vec<Work>> {
    let random = world.random("works");
    match world.plan().about {
        About::Everything | About::Machines => {}
        About::Crowd => {
            return Ok(vec![
                Work::new("crowd", crowd::set_up(world, 0).await?),
                Work::new("linear", linear::set_up(world, 1).await?),
            ]);
        }
        About::Watch => return Ok(vec![Work::new("watched", watched::set_up(world).await?)]),
        About::Delegations => {
            return Ok(vec![
                Work::new("delegated", delegated::set_up(world, 0).await?),
                Work::new("delegated", delegated::set_up(world, 1).await?),
            ]);
        }
    }
    let mut works = vec![Work::new("lost", lost::set_up(world, 0).await?)];
    if world.plan().quotas != Quotas::None && !world.random("limits").one_in(3) {
        works.push(Work::new("filled", filled::set_up(world, 0).await?));
    }
    if world.plan().special == Special::Checks {
        works.push(Work::new("checks", checks::set_up(world).await?));
    }
    if world.plan().has_small_disks() {
        works.extend(on_small_disks(world).await?);
        return Ok(works);
    }
    if world.plan().is_lossy() {
        works.push(Work::new("lost", lost::set_up(world, 1).await?));
        works.push(Work::new("below", below::set_up(world, 2).await?));
        let more = world.random("works that lose");
        if more.one_in(2) {
            works.push(Work::new("opened", opened::set_up(world, 5).await?));
        }
        if more.one_in(2) {
            works.push(Work::new("mortal", mortal::set_up(world, 6).await?));
        }
        if more.one_in(3) {
            works.push(Work::new("locks", locks::set_up(world, 7).await?));
        }
        return Ok(works);
    }
    for number in 0..3 {
        let choice = match (number, world.plan().aim) {
            (0, _) if world.plan().servers > 1 => 6,
            // `moved`, whose lookers use a cache.
            (1, Aim::Leases | Aim::Answers) => 8,
            (2, Aim::Answers) => 6,
            (2, Aim::Leases) => 9,
            (
                _,
                Aim::Nothing
                | Aim::Promises
                | Aim::Leases
                | Aim::Answers
                | Aim::Away
                | Aim::Machines,
            ) => random.below(8),
        };
        let choice = match choice {
            // A removed file that the trash keeps has a name. In the model it has none.
            2 if world.plan().trash => 0,
            choice => choice,
        };
        works.push(match choice {
            0 => Work::new("once", once::set_up(world, number).await?),
            1 => Work::new("paths", paths::set_up(world, number).await?),
            2 => Work::new("model", model::set_up(world, number).await?),
            3 => Work::new("contents", contents::set_up(world, number).await?),
            4 => Work::new("opened", opened::set_up(world, number).await?),
            5 => Work::new("race", race::set_up(world, number).await?),
            6 => Work::new("linear", linear::set_up(world, number).await?),
            7 => Work::new("mortal", mortal::set_up(world, number).await?),
            8 => Work::new("moved", moved::set_up(world, number).await?),
            _ => Work::new("crossed", crossed::set_up(world, number).await?),
        });
    }
    // Each directory is on a server of its own.
    if world.plan().aim == Aim::Away && world.plan().locality == Locality::Directory {
        works.push(Work::new("beside", beside::set_up(world).await?));
    }
    if world.plan().trash {
        works.push(Work::new("thrown", thrown::set_up(world, 4).await?));
    }
    if world.random("locks").one_in(3) {
        works.push(Work::new("locks", locks::set_up(world, 3).await?));
    }
    Ok(works)
}
