//! Runs of servers that answered, and what each knows of this client's open files and locks there.
//!
//! Open files and locks live in the memory of the server that has their shard of birth. A server
//! that restarts is told of them again; one that has lost the session knows none of them. Each
//! table of such things keeps a [`Runs`].

/// The run of a server, and the session there, that gave an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The server's position in the cluster map.
    pub(crate) server: u16,
    /// The run of the server.
    pub(crate) incarnation: u64,
    /// The session there, counted from 0.
    pub(crate) life: u64,
}

/// For each server, the session and the run that know the entries of a table.
#[derive(Debug)]
pub(crate) struct Runs(Vec<Known>);

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    life: u64,
    incarnation: u64,
}

impl Runs {
    /// A table of so many servers, none of them met. At least one, though a map may not say so yet.
    pub(crate) fn new(servers: usize) -> Runs {
        Runs(vec![Known::default(); servers.max(1)])
    }

    /// This run of a server knows all that is open there, or is being told.
    pub(crate) fn meet(&mut self, server: u16, incarnation: u64) {
        self.known(server).incarnation = incarnation;
    }

    /// The session was lost at a server.
    pub(crate) fn lose(&mut self, server: u16, incarnation: u64) {
        let known = self.known(server);
        known.life += 1;
        known.incarnation = incarnation;
    }

    /// Whether the session is still the one in which this was answered.
    pub(crate) fn lives(&mut self, run: Run) -> bool {
        self.known(run.server).life == run.life
    }

    /// Whether the server has not restarted since it answered this.
    pub(crate) fn is_told(&mut self, run: Run) -> bool {
        self.known(run.server).incarnation == run.incarnation
    }

    fn known(&mut self, server: u16) -> &mut Known {
        let server = usize::from(server);
        if self.0.len() <= server {
            // The client began at a cluster that was not complete.
            self.0.resize(server + 1, Known::default());
        }
        &mut self.0[server]
    }
}
