//! Looking at the load of shards again and again, and moving some.
//!
//! `server balance --by-load` does it for who calls it, and the coordinator's process by itself
//! ([`Balancing`]), as a client like any other. What is to move is decided by `client::balance`.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use client::{
    Client, Moved,
    balance::{Balancer, Because, Goal, Plan, ShardLoad, Step},
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use wire::{BalanceLook, BalanceMode, BalanceStatus};

use crate::{
    connect::{self, Credentials, TlsArgs},
    data,
    server::{Options, Role},
};

/// Requests a second of all servers together below which they are not compared by them.
const REQUESTS_A_SECOND_MIN: u64 = 50;

/// A look, and its session, may take so long to end when the coordinator is to end.
const END_WITHIN: Duration = Duration::from_secs(1);
/// The session of a look may take so long to end otherwise.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// Looks at the load of a cluster.
pub(crate) struct Watcher {
    balancer: Balancer,
    began: Instant,
    before: Option<Vec<ShardLoad>>,
    /// Whether the log says that shards should move.
    has_said: bool,
}

/// The outcome of a look.
pub(crate) struct Seen {
    /// Number of servers that there have been.
    pub(crate) servers: u16,
    /// Numbers of servers that have left.
    pub(crate) left: Vec<u16>,
    /// The shards, and the requests for each since the last look.
    pub(crate) loads: Vec<ShardLoad>,
    /// The shards that should move.
    pub(crate) plan: Plan,
}

impl Watcher {
    /// One that is to look so often.
    pub(crate) fn new(period: Duration) -> Watcher {
        let requests_min = REQUESTS_A_SECOND_MIN * period.as_secs().max(1);
        let balancer = Balancer::new(Goal { requests_min, ..Goal::default() });
        Watcher { balancer, began: Instant::now(), before: None, has_said: false }
    }

    /// Looks; servers that were `drained` get nothing. `None` where there is nothing to compare
    /// with: this is the first look, or a server has begun anew since the last one.
    pub(crate) async fn look(
        &mut self,
        client: &Client,
        drained: &[u16],
    ) -> anyhow::Result<Option<Seen>> {
        let before = self.before.take();
        let told = client.shard_loads().await.context("cannot ask for the load of shards");
        let news = told.map(|(servers, now)| {
            let news = before.and_then(|before| since(&before, &now));
            self.before = Some(now);
            news.map(|loads| (servers, loads))
        });
        let Ok(Some((servers, loads))) = news else {
            self.balancer.misses();
            return news.map(|_| None);
        };
        let members = client.members();
        let left: Vec<u16> = (0..servers).filter(|it| !members.contains(it)).collect();
        let get_none = [&left[..], drained].concat();
        let plan = self.balancer.look(self.began.elapsed(), &loads, (servers, &get_none));
        Ok(Some(Seen { servers, left, loads, plan }))
    }

    /// Forgets the last look.
    fn rests(&mut self) {
        self.before = None;
        self.balancer.misses();
    }

    /// Has shards moved as planned, unless others move some. `tell` is called with the number of
    /// records copied so far.
    pub(crate) async fn take(
        &mut self,
        client: &Client,
        steps: &[Step],
        tell: &dyn Fn(u64),
    ) -> anyhow::Result<Moved> {
        let is_busy = client.any_is_busy().await.context("a server cannot be asked")?;
        anyhow::ensure!(!is_busy, "shards move already, or a dump or a check goes on");
        let moves: Vec<_> = steps.iter().map(|step| step.shard).collect();
        let moved = client.move_these_shards(&moves, tell).await;
        let now = self.began.elapsed();
        if moved.is_ok() {
            self.balancer.has_moved(now, steps);
            // Servers that begin anew count anew.
            self.before = None;
        } else {
            self.balancer.has_tried(now, steps);
        }
        moved.context("the shards stay where they were")
    }
}

/// The requests since an earlier look; `None` if a server has begun anew meanwhile, and counts from
/// 0, or a shard has moved.
fn since(before: &[ShardLoad], now: &[ShardLoad]) -> Option<Vec<ShardLoad>> {
    if before.len() != now.len() {
        return None;
    }
    let known: BTreeMap<_, _> =
        before.iter().map(|load| ((load.shard, load.server), load.requests)).collect();
    let news = |load: &ShardLoad| {
        let before = known.get(&(load.shard, load.server))?;
        Some(ShardLoad { requests: load.requests.checked_sub(*before)?, ..*load })
    };
    now.iter().map(news).collect()
}

/// The reason why a plan ends where it does, in words.
pub(crate) fn words(because: Because) -> &'static str {
    match because {
        Because::Even => "all servers have about equally much",
        Because::Waits => "one server has too much: looking on before shards move",
        Because::Idle => "there are too few requests, and too little is stored, to compare servers",
        Because::NoStep => {
            "no move of one shard makes it better, of those that have not just moved"
        }
        Because::Hour => "enough has moved within an hour",
    }
}

/// The largest shares of a server, where servers are compared by them.
pub(crate) fn shares(requests: Option<f64>, stored: Option<f64>) -> String {
    let of = |what: &str, share: Option<f64>| {
        share.map(|share| format!("; most {what} {share:.2} of the mean")).unwrap_or_default()
    };
    of("requests", requests) + &of("stored", stored)
}

/// How the coordinator's process reaches the cluster that it balances.
pub(crate) struct Balancing {
    data: PathBuf,
    advertised: Option<String>,
    tls: TlsArgs,
    period: Duration,
    /// Told when the servers are to end.
    ends: Notify,
    /// The client that looks just now.
    looks: RefCell<Option<Client>>,
}

impl Balancing {
    /// The way to the cluster whose coordinator serves `data` so, which is looked at so often.
    /// `None` for another server.
    pub(crate) fn of(data: &Path, options: &Options, period: Duration) -> Option<Balancing> {
        let Role::Coordinator { .. } = options.role else { return None };
        let ca = options.tls.files.as_ref().map(|files| files.ca.clone());
        Some(Balancing {
            data: data.to_owned(),
            advertised: options.advertise.clone(),
            tls: TlsArgs { tls: options.tls.only, tls_ca: ca, insecure: false },
            period,
            ends: Notify::new(),
            looks: RefCell::default(),
        })
    }

    /// Has [`Balancing::keep`] end, before the server ends: a look that goes on may end, or is given
    /// up with its session.
    pub(crate) async fn end(&self, keeps: impl Future<Output = ()>) {
        self.ends.notify_one();
        if timeout(END_WITHIN, keeps).await.is_err() {
            let client = self.looks.take();
            if let Some(client) = client {
                let _ = timeout(END_WITHIN, client.close()).await;
            }
        }
    }

    /// Balances the cluster, whose coordinator listens there, in the mode that it has
    /// (`server balance --mode`), until it is to end.
    pub(crate) async fn keep(&self, listens: SocketAddr) {
        let address = self.advertised.clone().unwrap_or_else(|| listens.to_string());
        let mut watcher = Watcher::new(self.period);
        while timeout(self.period, self.ends.notified()).await.is_err() {
            if let Err(error) = Box::pin(self.turn(&address, &mut watcher)).await {
                watcher.rests();
                tracing::info!(error = format!("{error:#}"), "a look at the load of shards failed");
            }
        }
    }

    /// Looks once, with a session of its own: one that stayed would be lost with the process, and
    /// locks would wait for its end at the next start.
    async fn turn(&self, address: &str, watcher: &mut Watcher) -> anyhow::Result<()> {
        let credentials = Credentials::shown(data::own_token(&self.data)?, &self.tls)?;
        let config = connect::config(vec![address.to_owned()], credentials, "balances");
        let standing = Client::standing(&config, address).await?;
        let are_several = standing.is_some_and(|it| it.ready && it.heard >= Some(2));
        if !are_several {
            watcher.rests();
            return Ok(());
        }
        let client = connect::connect(config).await?;
        self.looks.replace(Some(client.clone()));
        let looked = look(&client, watcher).await;
        let closed = timeout(CLOSE_WITHIN, connect::close(&client, looked)).await;
        self.looks.take();
        closed.context("a server that is away was not told of the end of the look")?
    }
}

/// Looks once, and has shards moved if that is wanted.
async fn look(client: &Client, watcher: &mut Watcher) -> anyhow::Result<()> {
    let BalanceStatus { mode, drained, .. } = client.cluster().await?.balance;
    if mode == BalanceMode::Off {
        watcher.rests();
        return Ok(());
    }
    let Some(Seen { plan: Plan { largest, steps, because }, .. }) =
        watcher.look(client, &drained).await?
    else {
        return Ok(());
    };
    let mut look = BalanceLook {
        requests: thousandths(largest.requests),
        stored: thousandths(largest.bytes),
        moves: steps.iter().map(|step| step.shard).collect(),
        moved: false,
        because: match because {
            Because::Even if !steps.is_empty() => "then all servers have about equally much",
            because => words(because),
        }
        .to_owned(),
    };
    watcher.has_said &= !steps.is_empty();
    if !steps.is_empty() {
        if !std::mem::replace(&mut watcher.has_said, true) {
            tracing::info!(count = steps.len(), ?largest, "shards should move");
        }
        if mode == BalanceMode::On {
            match watcher.take(client, &steps, &|_| ()).await {
                Ok(_) => look.moved = true,
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "shards do not move");
                    look.because = format!("{error:#}");
                }
            }
        }
    }
    Ok(client.tell_look(look).await?)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share is between nothing and the number of servers"
)]
fn thousandths(share: Option<f64>) -> u32 {
    (share.unwrap_or_default() * 1000.0).round() as u32
}

#[cfg(test)]
mod tests {
    use base::ShardId;

    use super::*;

    #[test]
    fn requests_are_those_since_the_last_look_unless_a_server_has_begun_anew() {
        let load = |shard, server, requests| {
            let shard = ShardId(shard);
            ShardLoad { shard, server, requests, bytes: 7 }
        };
        let before = [load(1, 0, 100), load(2, 1, 500)];
        let now = [load(1, 0, 130), load(2, 1, 500)];
        assert_eq!(since(&before, &now), Some(vec![load(1, 0, 30), load(2, 1, 0)]));
        assert_eq!(since(&before, &[load(1, 0, 130), load(2, 1, 20)]), None);
        assert_eq!(since(&before, &[load(1, 1, 130), load(2, 1, 600)]), None);
        assert_eq!(since(&before, &[load(1, 0, 130)]), None);
    }

    #[test]
    fn shares_are_told_in_thousandths() {
        assert_eq!([None, Some(1.0), Some(1.2346)].map(thousandths), [0, 1000, 1235]);
    }
}
