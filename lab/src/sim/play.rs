//! Worlds whose only faults are those that a test injects.
//!
//! Tests call [`in_world`] or [`test_in`]. Both listen to the logs of servers and clients.
//!
//! Invariant: a panic of any task, or a line of level ERROR in any log, is a failure of the test.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use futures::future::LocalBoxFuture;
use meta::Bug;
use tokio::{runtime::Builder, task::LocalSet, time::timeout};

use super::{
    plan::Plan,
    trace::{self, Trace},
    world::World,
};

/// Time limit of [`test_in`]: longer than any test of days and leases, and soon reached by a test
/// that hangs.
const DAYS: Duration = Duration::from_secs(20 * 86_400);

/// Runs `play` in the world of a plan, once its cluster is formed. Fails after `longest`, in the
/// world's own time.
///
/// # Errors
/// The error of `play`, and all problems in the logs of servers and clients.
pub fn in_world<T>(
    plan: Plan,
    bug: Option<Bug>,
    longest: Duration,
    play: impl AsyncFnOnce(World) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut result = None;
    let put = &mut result;
    let play = move |world| -> LocalBoxFuture<'_, anyhow::Result<()>> {
        Box::pin(async move {
            *put = Some(play(world).await?);
            Ok(())
        })
    };
    run(plan, bug, longest, Box::new(play))?;
    result.context("it has ended, so it has a result")
}

type Played<'a> = Box<dyn FnOnce(World) -> LocalBoxFuture<'a, anyhow::Result<()>> + 'a>;

/// Not generic, so that worlds and their executor are compiled once.
fn run(plan: Plan, bug: Option<Bug>, longest: Duration, play: Played<'_>) -> anyhow::Result<()> {
    let trace = Trace::new(false);
    let (ended, mut problems) = trace::hear(&trace, || {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let local = LocalSet::new();
        let ended = runtime.block_on(local.run_until(async {
            let world = World::new(plan, bug, &trace)?;
            world.form().await?;
            timeout(longest, play(world)).await.context("it hangs")?
        }));
        drop(local);
        drop(runtime);
        ended
    });
    match ended {
        Some(ended) if problems.is_empty() => ended,
        Some(Err(error)) => {
            problems.push(format!("{error:#}"));
            Err(anyhow!("{}", problems.join("\n  and ")))
        }
        // A panic is one of the problems.
        Some(Ok(_)) | None => Err(anyhow!("{}", problems.join("\n  and "))),
    }
}

/// Like [`in_world`], for a test that asserts.
///
/// # Panics
/// When anything goes wrong.
#[expect(clippy::panic, reason = "this is for tests")]
pub fn test_in<T>(plan: Plan, test: impl AsyncFnOnce(&World) -> T) -> T {
    let played = in_world(plan, None, DAYS, async |world| Ok(Box::pin(test(&world)).await));
    played.unwrap_or_else(|error| panic!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use tokio::task::{spawn_local, yield_now};

    use super::*;

    fn played(play: impl AsyncFnOnce(World) -> anyhow::Result<()>) -> String {
        let played = in_world(Plan::draw(1, 1), None, DAYS, play);
        format!("{:#}", played.unwrap_err())
    }

    #[test]
    fn a_panic_of_a_task_that_nobody_joins_is_heard() {
        let failure = played(async |_| {
            drop(spawn_local(async { panic!("nobody looks") }));
            yield_now().await;
            Ok(())
        });
        assert!(failure.contains("nobody looks"), "{failure}");
    }

    #[test]
    fn a_panic_of_a_test_is_told_where_it_was() {
        let failure = played(async |_| panic!("it does not hold"));
        assert!(failure.contains("it does not hold") && failure.contains("play.rs"), "{failure}");
    }

    #[test]
    fn a_line_that_asks_for_a_person_is_heard() {
        let failure = played(async |_| {
            tracing::warn!("it is late");
            tracing::error!("a disk is lost");
            Ok(())
        });
        assert!(failure.contains("a disk is lost") && !failure.contains("late"), "{failure}");
    }

    #[test]
    fn a_line_that_a_test_expects_is_no_failure() {
        let failure = played(async |world| {
            world.trace().expect("is damaged");
            tracing::error!("a record is damaged");
            tracing::error!("a disk is lost");
            Ok(())
        });
        assert!(failure.contains("a disk is lost") && !failure.contains("damaged"), "{failure}");
    }
}
