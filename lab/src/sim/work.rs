//! The workloads: what clients do while things go wrong, and what must have come of it.
//!
//! Each has three parts: it is set up before anything goes wrong, it runs, and it checks. Which of them a
//! world gets, the seed decides.

mod contents;
mod linear;
mod locks;
mod lost;
mod model;
mod mortal;
mod once;
mod opened;
mod paths;
mod race;

use std::pin::Pin;

use super::world::World;

/// A workload that was set up; `run` also checks.
pub struct Work {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub run: Pin<Box<dyn Future<Output = anyhow::Result<()>>>>,
}

impl Work {
    fn new(name: &'static str, run: impl Future<Output = anyhow::Result<()>> + 'static) -> Work {
        Work { name, run: Box::pin(run) }
    }
}

/// Sets up the workloads of a world. Where a power cut may lose what was answered, all are about that.
///
/// # Errors
/// When a client cannot make what it needs.
pub async fn set_up(world: &World) -> anyhow::Result<Vec<Work>> {
    let random = world.random("works");
    let mut works = vec![Work::new("lost", lost::set_up(world, 0).await?)];
    if world.plan().is_lossy() {
        for number in 1..3 {
            works.push(Work::new("lost", lost::set_up(world, number).await?));
        }
        return Ok(works);
    }
    for number in 0..3 {
        let choice = if number == 0 && world.plan().servers > 1 { 6 } else { random.below(8) };
        works.push(match choice {
            0 => Work::new("once", once::set_up(world, number).await?),
            1 => Work::new("paths", paths::set_up(world, number).await?),
            2 => Work::new("model", model::set_up(world, number).await?),
            3 => Work::new("contents", contents::set_up(world, number).await?),
            4 => Work::new("opened", opened::set_up(world, number).await?),
            5 => Work::new("race", race::set_up(world, number).await?),
            6 => Work::new("linear", linear::set_up(world, number).await?),
            _ => Work::new("mortal", mortal::set_up(world, number).await?),
        });
    }
    if world.random("locks").one_in(3) {
        works.push(Work::new("locks", locks::set_up(world, 3).await?));
    }
    Ok(works)
}
