//! A connection to another server, for one request at a time: leases and announcements do not queue
//! behind the transactions of clients. When it is lost, the next request opens another one.

use std::{io, time::Duration};

use wire::{Answer, Reply, Request};

use crate::{cluster::Cluster, log_limit::LogLimit, peer::Open, server::Shared};

/// An error: there is no answer, and the request may have been executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost;

/// A connection to `server`.
pub(crate) struct Link<'a> {
    shared: &'a Shared,
    cluster: &'a Cluster,
    server: u16,
    open: Option<Open>,
    /// Number of attempts that did not reach the server; its possible addresses are tried in turn.
    misses: u32,
    /// Log lines about a server that this one does not trust, or that does not trust this one.
    distrust: LogLimit,
}

/// Shortest pause between two log lines about distrust.
const LOG_PERIOD: Duration = Duration::from_secs(10);

impl Link<'_> {
    pub(crate) fn new<'a>(shared: &'a Shared, cluster: &'a Cluster, server: u16) -> Link<'a> {
        let distrust = LogLimit::new(LOG_PERIOD);
        Link { shared, cluster, server, open: None, misses: 0, distrust }
    }

    /// Sends a request and returns its answer. A server that says nothing for half a lease counts
    /// as lost.
    pub(crate) async fn ask(&mut self, request: Request) -> Result<Reply, Lost> {
        let timeout = self.cluster.options.lease / 2;
        let answer = match tokio::time::timeout(timeout, self.try_ask(&request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                // A wrong certificate, or clock, does not mend itself.
                let is_distrust = error.kind() == io::ErrorKind::InvalidData;
                if is_distrust && self.distrust.due().is_some() {
                    tracing::warn!(server = self.server, %error, "cannot ask a server");
                } else {
                    tracing::debug!(server = self.server, %error, "cannot ask a server");
                }
                self.open = None;
                return Err(Lost);
            }
            Err(_) => {
                tracing::debug!(server = self.server, "a server does not answer");
                self.open = None;
                return Err(Lost);
            }
        };
        match answer {
            Answer::Done(reply) => Ok(reply),
            Answer::Refused(reason) => {
                if self.distrust.due().is_some() {
                    tracing::warn!(server = self.server, reason, "refused by another server");
                }
                self.open = None;
                Err(Lost)
            }
            Answer::Failed(_)
            | Answer::Retry(_)
            | Answer::Halted
            | Answer::Noted(_)
            | Answer::Granted(_) => Err(Lost),
        }
    }

    /// Has the next request open another connection.
    pub(crate) fn close(&mut self) {
        self.open = None;
    }

    async fn try_ask(&mut self, request: &Request) -> io::Result<Answer> {
        if self.open.is_none() {
            let places = self.cluster.places(self.server);
            let turn = usize::try_from(self.misses).expect("usize has at least 32 bits");
            let turn = turn.checked_rem(places.len()).ok_or(io::ErrorKind::NotFound)?;
            // Count a miss, unless the server is reached.
            self.misses = self.misses.wrapping_add(1);
            let (shared, cluster) = (self.shared, self.cluster);
            // Seldom, and large.
            let connecting = Box::pin(Open::connect(shared, cluster, self.server, &places[turn]));
            self.open = Some(connecting.await?);
            self.misses = self.misses.wrapping_sub(1);
        }
        self.open.as_mut().expect("it was just opened").ask(request).await
    }
}
