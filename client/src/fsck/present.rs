//! A check needs all servers: one of which nothing is heard for long ends it.

use std::{pin::pin, time::Duration};

use futures::future::{Either, join_all, select, select_all};
use tokio::time::timeout;

use super::Fsck;
use crate::{Client, Error, Result};

/// Silence after which a server is gone. A server that is restarted is back before.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time that the other servers have to end their part.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

impl Client {
    /// Returns the result of `asked`, unless a server is gone meanwhile: the asked one, or another
    /// for which that one waits.
    pub(super) async fn unless_gone<T>(&self, asked: impl Future<Output = Result<T>>) -> Result<T> {
        let gone = self.members().into_iter().map(|server| {
            Box::pin(async move {
                self.core.channels.at(server).gone(PATIENCE).await;
                server
            })
        });
        match select(pin!(asked), select_all(gone)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((server, ..), _)) => {
                let addresses = || self.core.config.addresses.join(",");
                let address = self.core.channels.address(server).unwrap_or_else(addresses);
                Err(Error::Silent(server, address))
            }
        }
    }

    /// The servers to which there is no connection, of those that were asked for anything.
    #[must_use]
    pub fn servers_away(&self) -> Vec<u16> {
        let members = self.members();
        let joined = self.core.channels.joined().filter(|channel| !channel.is_up());
        joined.map(|channel| channel.server).filter(|server| members.contains(server)).collect()
    }
}

impl Fsck {
    /// Has the servers that are there end their parts.
    pub(super) async fn give_up(&self, client: &Client) {
        let all = self.jobs.all().map(|(server, job)| client.poll_server(server, job, true));
        // A server that does not hear of it ends by itself, since it waits for the one that is
        // gone.
        let _ = timeout(ENDS_WITHIN, join_all(all)).await;
    }
}
