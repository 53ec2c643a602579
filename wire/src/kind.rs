//! Properties of each kind of request: the one table to extend for a new kind.
//!
//! The client asks it for numbers, the server for permission, disk space and counting. The table
//! never looks at stored records.

use crate::{DirRef, NodeRef, Request};

/// Kind of a request, with the directory that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind<'a> {
    /// Whether the request changes what is stored, and so needs a number.
    pub mutates: bool,
    /// Free disk space that the request needs.
    pub needs: Needs,
    /// The directory that the request names, or that holds what it names; `None` where it does
    /// nothing in the tree.
    pub about: Option<&'a DirRef>,
    /// Whether only administrators may send the request.
    pub administrative: bool,
    /// Only other servers of the cluster may ask it.
    pub between_servers: bool,
}

/// How much room there must be for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// None.
    Nothing,
    /// Next to none; the request may even free some.
    Little,
    /// Room for all bytes that the request brings.
    Space,
}

impl Kind<'_> {
    /// Kind of a request that changes nothing and names nothing in the tree.
    const BARE: Kind<'static> = Kind {
        mutates: false,
        needs: Needs::Nothing,
        about: None,
        administrative: false,
        between_servers: false,
    };
}

impl Request {
    /// Returns the request's row of the table.
    #[must_use]
    pub fn kind(&self) -> Kind<'_> {
        use Needs::{Little, Nothing, Space};
        let (mutates, needs, about) = match self {
            // The session and what belongs to it; a new one needs some room, which
            // `meta::ops::hello` knows.
            Request::Hello(_)
            // Without a session: `meta::driver` looks at its token.
            | Request::Standing(_)
            | Request::Ping
            | Request::Claim(_)
            | Request::Statfs
            | Request::Sync
            | Request::Recalls
            | Request::Release(_)
            | Request::BlockGet(_)
            | Request::BlockDrop(_)
            | Request::SignBlocks(_)
            | Request::Lock(_)
            | Request::LockTest(_)
            | Request::LockCancel(_)
            | Request::LockClaim(_)
            | Request::Accounts(_)
            | Request::Speculate(_) => (false, Nothing, None),
            Request::Bye | Request::Return(_) | Request::ReserveInos(_) => (false, Little, None),
            Request::BlockPut(_) => (false, Space, None),
            // Requests of administrators.
            Request::Status
            | Request::FsckStart(_)
            | Request::FsckPoll(_)
            | Request::FsckNames(_)
            | Request::FsckFixes(_)
            | Request::FsckInos(_)
            | Request::FsckQuotas(_)
            | Request::Repair(_)
            | Request::Load
            | Request::Slow(_)
            | Request::Sessions
            | Request::Opens(_)
            | Request::Evict(_)
            | Request::Locks(_)
            | Request::DumpStart
            | Request::DumpNext(_)
            | Request::DumpStep(_)
            | Request::Move(_)
            | Request::Cluster
            | Request::Join(_) => {
                return Kind { administrative: true, ..Kind::BARE };
            }
            // Revoking works on a full disk, too.
            Request::Keys(_) | Request::SignToken(_) => {
                return Kind { needs: Little, administrative: true, ..Kind::BARE };
            }
            Request::FsckMend(_) => {
                return Kind { mutates: true, needs: Little, administrative: true, ..Kind::BARE };
            }
            // Requests between servers.
            Request::PeerHello(_)
            | Request::PeerRead(_)
            | Request::Prepare(_)
            | Request::Decide(_)
            | Request::AskOutcome(_)
            | Request::AskOver(_)
            | Request::ShardPull(_)
            | Request::ShardBlock(_)
            | Request::Heartbeat(_)
            | Request::Announce(_)
            | Request::HandoffBegin(_)
            | Request::HandoffPut(_)
            | Request::LayoutLearnt(_)
            | Request::Born(_)
            | Request::AskBirths
            | Request::SettleBirths
            | Request::Count(_)
            | Request::AskRoom(_)
            | Request::GiveRoom(_)
            | Request::HurryBirths(_) => return Kind { between_servers: true, ..Kind::BARE },
            // Looking.
            Request::Lookup(req) => (false, Nothing, Some(&req.dir)),
            Request::Walk(req) => (false, Nothing, Some(&req.from)),
            Request::WalkTo(req) => (false, Nothing, Some(&req.from)),
            Request::Getattr(req) | Request::Readlink(req) | Request::Xattrs(req) => {
                (false, Nothing, Some(holder(&req.node)))
            }
            Request::Info(req) => (false, Nothing, Some(holder(&req.node))),
            Request::Readdir(req) => (false, Nothing, Some(&req.dir)),
            Request::Search(req) => (false, Nothing, Some(&req.dir)),
            Request::Watch(req) => (false, Nothing, Some(&req.dir)),
            Request::Delegate(req) => (false, Little, Some(&req.dir)),
            Request::Open(req) => (false, Nothing, Some(&req.file.dir)),
            Request::BlockMap(req) => (false, Nothing, Some(&req.file.dir)),
            Request::Seek(req) => (false, Nothing, Some(&req.file.dir)),
            // Making.
            Request::Create(req) => (true, Space, Some(&req.dir)),
            Request::Tmpfile(req) => (true, Space, Some(&req.dir)),
            Request::Mkdir(req) => (true, Space, Some(&req.dir)),
            Request::Symlink(req) => (true, Space, Some(&req.dir)),
            Request::Link(req) => (true, Space, Some(&req.dir)),
            Request::Write(req) => (true, Space, Some(&req.file.dir)),
            Request::Apply(req) => (true, Space, Some(&req.dir)),
            Request::Setxattr(req) => (true, Space, Some(holder(&req.node))),
            // Changing and removing.
            Request::Setattr(req) => (true, Little, Some(holder(&req.node))),
            Request::Allocate(req) => (true, Little, Some(&req.file.dir)),
            Request::Unlink(req) => (true, Little, Some(&req.dir)),
            Request::Rmdir(req) => (true, Little, Some(&req.dir)),
            Request::Rename(req) => (true, Little, Some(&req.from_dir)),
            Request::Removexattr(req) => (true, Little, Some(holder(&req.node))),
        };
        Kind { mutates, needs, about, ..Kind::BARE }
    }

    /// Whether it changes what is stored, and so needs a number.
    #[must_use]
    pub fn mutates(&self) -> bool {
        self.kind().mutates
    }

    /// Whether it does something in the tree as somebody. All others are about the session or the
    /// server: whose they are and by which map they were sent does not matter.
    #[must_use]
    pub fn acts(&self) -> bool {
        self.kind().about.is_some() || matches!(self, Request::Speculate(_) | Request::Accounts(_))
    }
}

fn holder(node: &NodeRef) -> &DirRef {
    match node {
        NodeRef::Dir(dir) => dir,
        NodeRef::File(file) => &file.dir,
    }
}
