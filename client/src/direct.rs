//! Where requests go in a cluster, beyond the home that their operation names.
//!
//! `call` asks before it sends anything, when there is more than one server. All of it saves round
//! trips only: servers send back what they do not do.

use base::{DirId, acl};
use wire::{LayoutNews, NodeRef, Request};

use crate::{
    channel::Ticket,
    core::Core,
    inode_routes::{self, Remembered},
    layouts,
    route::Route,
};

impl Core {
    /// The best route of a request that goes by `route`, and how it was before if it was changed
    /// from memory.
    pub(crate) fn direct(
        &self,
        route: Route,
        request: &mut Request,
    ) -> (Route, Option<Remembered>) {
        let Route::Home(home) = route else { return (route, None) };
        if self.is_coordinated(request) {
            return (Route::COORDINATOR, None);
        }
        let opens = matches!(request, Request::Open(_));
        let Some(file) = inode_routes::file_of(request) else {
            return (self.divided(home, request), None);
        };
        let birth = Route::Shard(file.ino.shard());
        if let Some(ticket) = self.inode_routes.lock().ticket(file.ino) {
            let before = Remembered { home, ticket: file.dir.ticket };
            file.dir.ticket = ticket;
            return (birth, Some(before));
        }
        // Others must prove that they found the file, which the server of its directory sees.
        let direct = opens && self.welcome().trusted;
        (if direct { birth } else { self.divided(home, request) }, None)
    }

    /// The route of a request about a directory with this home, or about a name there.
    pub(crate) fn divided(&self, home: DirId, request: &mut Request) -> Route {
        if self.layouts.is_empty() {
            return Route::Home(home);
        }
        let key = self.welcome().fs.hash_key;
        let found = layouts::named_dir(request, &key);
        let partition = found.and_then(|(dir, pos)| self.layouts.partition(&dir, pos));
        partition.map_or(Route::Home(home), |partition| Route::Partition(home, partition))
    }

    /// Returns the route of a request that was sent to a file's shard of birth, and must go by the
    /// file's directory.
    pub(crate) fn by_directory(&self, home: DirId, ticket: &Ticket<'_>) -> Route {
        ticket.with_request(|request| self.divided(home, request))
    }

    /// Returns the right route of a request that was sent to the wrong partition, and whether to
    /// wait before; `None`: the request names no entry.
    pub(crate) fn corrected(
        &self,
        news: &LayoutNews,
        ticket: &Ticket<'_>,
    ) -> Option<(Route, bool)> {
        let key = self.welcome().fs.hash_key;
        let (dir, pos) = ticket.with_request(|request| layouts::named_dir(request, &key))?;
        let asked = match ticket.route() {
            Route::Partition(_, partition) => partition,
            Route::Home(_) | Route::Shard(_) | Route::Server(_) => 0,
        };
        let to = self.layouts.correct(news, pos, asked);
        Some((Route::Partition(dir.home, to.partition), to.wait))
    }

    /// Whether only the coordinator does it, as far as is known here.
    fn is_coordinated(&self, request: &Request) -> bool {
        match request {
            Request::Rename(req) => {
                let mut cache = self.cache.lock();
                cache.child(&req.from_dir, &req.from_name).is_some()
                    || req.mode == wire::RenameMode::Exchange
                        && cache.child(&req.to_dir, &req.to_name).is_some()
            }
            // A new owner is mostly the old one, as tar(1) and cp(1) set it: that is seen where the
            // directory is.
            Request::Setattr(req) => req.set.mode.is_some() && matches!(req.node, NodeRef::Dir(_)),
            Request::Setxattr(req) => is_acl(&req.name) && matches!(req.node, NodeRef::Dir(_)),
            Request::Removexattr(req) => is_acl(&req.name) && matches!(req.node, NodeRef::Dir(_)),
            _ => false,
        }
    }
}

fn is_acl(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}
