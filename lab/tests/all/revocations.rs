//! Tokens that are revoked: after a lease no server takes them, whatever fails meanwhile.
//!
//! Each bug of the way from the coordinator to the sessions of all servers is planted, and found.

use std::{cell::Cell, time::Duration};

use anyhow::{bail, ensure};
use lab::sim::plan::Plan;
use meta::{Bug, Durability};
use tokio::time::{Instant, timeout};
use wire::{KeysChange, Revoke, Token};

use crate::steps;

const SERVERS: u16 = 3;
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Number of the token that is revoked.
const TOKEN: u64 = 77;
/// Time after which no server may take a token that was revoked: a lease, which is a second, and
/// the time of a request.
const IN_FORCE_AFTER: Duration = Duration::from_millis(1300);

/// A token is revoked, or its key is retired, while members are cut off or die and the power of the
/// coordinator is cut; its holder goes on with requests to all servers.
fn revoked(seed: u64, bug: Option<Bug>) -> anyhow::Result<()> {
    let plan = steps::plan(SERVERS, Durability::Relaxed);
    let plan = Plan { seed, trash: false, alone: Duration::ZERO, ..plan };
    steps::run(plan, bug, 400 * SECOND, async |world| {
        world.trace().expect("this client ends");
        let random = world.random("revoked");
        let admin = world.connect("administers").await?.client;
        let token = Token { id: TOKEN, ..Token::administrator() };
        let user = world.connect_with("is revoked", &token).await?.client;
        let mut paths = Vec::new();
        for server in 0..SERVERS {
            paths.push(steps::dir_on(&admin, server, SERVERS).await?.0);
        }
        let revoked_at = Cell::new(None::<Instant>);
        let uses = async {
            for round in 0.. {
                for path in &paths {
                    let asked = Instant::now();
                    let made = user.mkdir(format!("{path}/{round}"), 0o755);
                    let is_taken = matches!(timeout(SECOND / 2, made).await, Ok(Ok(_)));
                    let late = revoked_at.get().map(|at| asked.saturating_duration_since(at));
                    if let Some(late) = late.filter(|late| is_taken && *late > IN_FORCE_AFTER) {
                        bail!("{path} is served for a token that was revoked {late:?} before");
                    }
                }
                world.wait(10 * MS).await;
            }
            Ok(())
        };
        let revokes = async {
            world.wait(random.ms(0..1000)).await;
            let (coordinator, member) = (&world.hosts()[0], &world.hosts()[random.index(2) + 1]);
            if random.one_in(2) {
                let time = random.ms(200..3000);
                steps::part(&world, member.place(), coordinator.place(), time);
            }
            let revoke = Revoke { id: TOKEN, key: None, expires: None };
            admin.keys(KeysChange::Revoke(revoke)).await?;
            revoked_at.set(Some(Instant::now()));
            let victim = [None, Some(coordinator), Some(member)][random.index(3)];
            if let Some(victim) = victim {
                victim.crash(true);
                world.wait(random.ms(0..1000)).await;
                victim.start()?;
            }
            world.wait(8 * SECOND).await;
            let shown = timeout(30 * SECOND, admin.keys(KeysChange::Show)).await??;
            ensure!(shown.revoked.iter().any(|it| it.id == TOKEN), "it is revoked no more");
            let again = timeout(30 * SECOND, world.connect_with("again", &token)).await?;
            ensure!(again.is_err(), "a session begins with a revoked token");
            Ok(())
        };
        tokio::select! {
            told = revokes => told,
            seen = uses => seen,
        }
    })
}

#[test]
fn after_a_lease_no_server_takes_a_token_that_was_revoked() {
    steps::goes_well(revoked);
    let word = "is served for a token that was revoked";
    for (bug, seed) in [(Bug::RingNotTaken, 2), (Bug::RingToldEarly, 1), (Bug::RingUnseen, 0)] {
        steps::finds(revoked, bug, seed, word);
    }
}
