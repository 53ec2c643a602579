//! Paths to directories and nodes: the cached prefix first, the rest from the server in one
//! request.
//!
//! `fs` calls it and goes on from what it returns. Symbolic links are followed here, `..` goes back
//! along the directories that were walked. Whatever is answered says on which version of the cache
//! it stands, so that the server can refuse what is built on something outdated.
//!
//! The last component of a node is always asked for; only what leads to it may come from the cache.
//! When the cache says that a walk is not permitted, the server is asked before anybody hears of
//! it.

mod straight;

use std::time::Duration;

use base::{Backoff, Cred, EntryName, FsError, acl::mode_decides, limits::SYMLINKS_FOLLOWED_MAX};
use smallvec::{SmallVec, smallvec};
use tokio::time::sleep;
use wire::{DirRef, Entry, Lookup, NodeRef, Reply, Request, Stand, Walk, Walked, way_mark};

use self::straight::{Begun, Straight};
use crate::{
    Error,
    cache::CachedDir,
    core::Core,
    done::Failure,
    path::{PathEnd, Step, Steps},
};

/// Maximum pause in which a server may catch up with the others.
const VERSIONS_PAUSE: Duration = Duration::from_millis(2);
/// How many names one request walks: symbolic links can make a path longer than any that is
/// written.
const WALKED_NAMES_MAX: usize = 1000;

/// How a path ends, for an operation on its last name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Last {
    /// The path ends with a name in the directory.
    Name(EntryName),
    /// The path is the root.
    Root,
    /// The path ends with `.`.
    Dot,
    /// The path ends with `..`.
    DotDot,
}

/// The directory that an operation on a path works in.
#[derive(Debug, Clone)]
pub(crate) struct Parent {
    pub(crate) dir: DirRef,
    pub(crate) last: Last,
    /// The path ends in a slash: only a directory is meant.
    pub(crate) slash: bool,
    /// See [`wire::RequestHeader::stand`].
    pub(crate) stand: Stand,
}

/// The node that a path names.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) entry: Entry,
    node: NodeRef,
}

impl Found {
    /// How to name it from now on.
    pub(crate) fn node(&self) -> &NodeRef {
        &self.node
    }

    /// The directory, if it is one.
    pub(crate) fn dir(&self) -> Result<DirRef, FsError> {
        match &self.node {
            NodeRef::Dir(dir) => Ok(*dir),
            NodeRef::File(_) => Err(FsError::NotDirectory),
        }
    }
}

/// How far a path was walked.
struct Way {
    /// The directories from the root to where we are.
    chain: SmallVec<[CachedDir; 4]>,
    /// All that were passed, also where symbolic links led the path elsewhere, and the oldest
    /// version that any part of the chain comes from.
    stand: Stand,
    steps: Steps,
    links: u32,
    /// Do not believe the cache.
    fresh: bool,
    /// Facts wanted of the path's end.
    end: End,
}

/// Facts that a caller wants of the node at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The node's kind and identity, as its name says.
    Name,
    /// All attributes of the node.
    Whole,
    /// The directory alone: the caller's next request goes there, and finds what is outdated.
    Dir,
}

impl Way {
    /// A way that has taken none of `steps`. A way is large, so it is made where it stays.
    #[inline]
    fn from(root: CachedDir, steps: Steps, end: End) -> Way {
        let stand = Stand { way: smallvec![way_mark(root.dir.id)], ..Stand::NONE };
        Way { chain: smallvec![root], steps, links: 0, stand, fresh: false, end }
    }

    fn top(&self) -> &CachedDir {
        self.chain.last().expect("the root is never popped")
    }

    fn enter(&mut self, dir: CachedDir) {
        self.stand.mark(dir.dir.id);
        self.chain.push(dir);
    }

    fn stands_on(&mut self, version: u64) {
        self.stand.is_since(version);
    }

    /// Replaces a symbolic link, which was just taken off, by the steps of its target.
    fn follow(&mut self, target: &[u8]) -> Result<(), FsError> {
        self.links += 1;
        if self.links > SYMLINKS_FOLLOWED_MAX {
            return Err(FsError::Loop);
        }
        let target = Steps::parse(target)?;
        if target.absolute {
            self.chain.truncate(1);
        }
        if self.steps.left.is_empty() && self.steps.tail == PathEnd::Plain {
            self.steps.tail = target.tail;
        }
        self.steps.left.extend(target.left);
        Ok(())
    }
}

/// Treatment of a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// Follow the link.
    Follow,
    /// Return the link itself.
    Keep,
}

/// The entry at the end of a path.
struct Landing {
    name: EntryName,
    entry: Entry,
}

impl Core {
    /// The directory of a path's last name.
    pub(crate) async fn resolve_parent(&self, cred: &Cred, path: &[u8]) -> Result<Parent, Failure> {
        self.counters.resolves();
        match self.cached_parent(cred, path) {
            Some((dir, name, stand)) => {
                Ok(Parent { dir, last: Last::Name(name), slash: false, stand })
            }
            // Boxed, and so are the steps of a node: paths seldom need them, and they are large.
            None => Box::pin(self.step_to_parent(cred, path)).await,
        }
    }

    async fn step_to_parent(&self, cred: &Cred, path: &[u8]) -> Result<Parent, Failure> {
        let steps = Steps::parse(path)?;
        let dot = steps.tail == PathEnd::Dot;
        let mut way = Way::from(self.start(cred).await?, steps, End::Name);
        let names_root = way.steps.left.is_empty();
        // A path that goes up at the end needs search permission on the directory below.
        let up = matches!(way.steps.left.first(), Some(Step::Up));
        let keep = usize::from(!dot && !up);
        self.advance_surely(cred, path, &mut way, keep, Links::Follow).await?;
        let last = match way.steps.left.pop() {
            Some(Step::Down(name)) => Last::Name(name),
            Some(Step::TooLong) => return Err(FsError::NameTooLong.into()),
            Some(Step::Up) => Last::DotDot,
            None if up => Last::DotDot,
            None if names_root && !dot => Last::Root,
            None => Last::Dot,
        };
        let slash = way.steps.tail != PathEnd::Plain;
        Ok(Parent { dir: way.top().dir, last, slash, stand: way.stand })
    }

    /// Returns the node that a path names. Attributes may be missing even where they are wanted:
    /// see [`Entry::whole`].
    pub(crate) async fn resolve_node(
        &self,
        cred: &Cred,
        path: &[u8],
        links: Links,
        end: End,
    ) -> Result<Found, Failure> {
        self.counters.resolves();
        // A cached directory at the end is asked of the server of its own group.
        let begun = if end == End::Name || !self.channels.are_several() {
            match self.straight_node(cred, path, links).await? {
                Straight::Found(found) => return Ok(found),
                Straight::Begun(begun) => begun,
            }
        } else {
            Begun::No
        };
        Box::pin(self.step_to_node(cred, path, links, end, begun)).await
    }

    async fn step_to_node(
        &self,
        cred: &Cred,
        path: &[u8],
        links: Links,
        end: End,
        begun: Begun,
    ) -> Result<Found, Failure> {
        let steps = Steps::parse(path)?;
        let mut way = Way::from(self.start(cred).await?, steps, end);
        match begun {
            Begun::No => {}
            Begun::Denied => way.fresh = true,
            Begun::Link { dir, target, version } => {
                let walked = self.advance_cached(cred, &mut way, 1);
                // Otherwise the cache has changed since, and the name is looked up again.
                if walked.is_ok() && way.steps.left.len() == 1 && way.top().dir.same(&dir) {
                    way.stands_on(version);
                    way.steps.left.pop();
                    way.follow(&target)?;
                }
            }
        }
        let landing = self.advance_surely(cred, path, &mut way, 0, links).await?;
        let dir = way.top().dir;
        let Some(Landing { name, entry }) = landing else {
            return self.found_on_the_way(cred, dir, &way.stand).await;
        };
        let node = entry.node(&dir, &name);
        Ok(Found { entry, node })
    }

    /// The directory that a path names, and the version of the cache that it stands on. With
    /// several servers one that is cached is believed.
    pub(crate) async fn resolve_dir(
        &self,
        cred: &Cred,
        path: &[u8],
    ) -> Result<(DirRef, Stand), Failure> {
        self.counters.resolves();
        let steps = Steps::parse(path)?;
        let mut way = Way::from(self.start(cred).await?, steps, End::Dir);
        let landing = self.advance_surely(cred, path, &mut way, 0, Links::Follow).await?;
        let dir = match landing {
            Some(Landing { entry, .. }) => {
                let dir = entry.dir.ok_or(FsError::NotDirectory)?;
                way.stand.mark(dir.id);
                dir
            }
            None => way.top().dir,
        };
        Ok((dir, way.stand))
    }

    /// A directory that the path went through to end there (`/`, `..`).
    async fn found_on_the_way(
        &self,
        cred: &Cred,
        dir: DirRef,
        stand: &Stand,
    ) -> Result<Found, Failure> {
        let node = NodeRef::Dir(dir);
        let asked = self.attributes_of(cred, &node, stand).await;
        let (attr, _) = asked.inspect_err(|failure| self.forget_if_stale(failure, &dir))?;
        Ok(Found { entry: Entry { attr, dir: Some(dir), target: None, whole: true }, node })
    }

    /// Drops a directory that is no longer what it was.
    pub(crate) fn forget_if_stale(&self, failure: &Failure, dir: &DirRef) {
        if *failure == Failure::StaleDir {
            self.cache.lock().forget(dir.id);
        }
    }

    /// The root, where a resolution begins.
    async fn start(&self, cred: &Cred) -> Result<CachedDir, Failure> {
        let root = self.cache().root();
        match root {
            Some(root) => Ok(root),
            None => Box::pin(self.ask_root(cred)).await,
        }
    }

    async fn ask_root(&self, cred: &Cred) -> Result<CachedDir, Failure> {
        let dir = self.welcome().root;
        let (attr, version) = self.attributes_of(cred, &NodeRef::Dir(dir), &Stand::NONE).await?;
        self.cache().set_root(attr, self.valid_from(version));
        Ok(CachedDir { dir, attr })
    }

    /// Takes all steps of `path` but the last `keep`; where the cache denies the way, again without
    /// it.
    async fn advance_surely(
        &self,
        cred: &Cred,
        path: &[u8],
        way: &mut Way,
        keep: usize,
        links: Links,
    ) -> Result<Option<Landing>, Failure> {
        match self.advance(cred, way, keep, links).await {
            Err(Failure::Error(Error::Fs(FsError::Denied)))
                if !way.fresh && self.cache.lock().enabled() =>
            {
                way.chain.truncate(1);
                let steps = Steps::parse(path)?;
                way.stand.way.truncate(1);
                let stand = Stand { way: way.stand.way.clone(), ..Stand::NONE };
                let (chain, end) = (way.chain.clone(), way.end);
                *way = Way { chain, steps, links: 0, stand, fresh: true, end };
                Box::pin(self.advance(cred, way, keep, links)).await
            }
            ended => ended,
        }
    }

    async fn advance(
        &self,
        cred: &Cred,
        way: &mut Way,
        keep: usize,
        links: Links,
    ) -> Result<Option<Landing>, Failure> {
        while way.steps.left.len() > keep {
            match way.steps.left.last() {
                None => break,
                Some(Step::TooLong) => return Err(FsError::NameTooLong.into()),
                Some(Step::Up) => {
                    if way.chain.len() == 1 {
                        way.chain[0] = self.ask_root(cred).await?;
                    }
                    self.permits_up(cred, way.top(), &way.stand).await?;
                    way.steps.left.pop();
                    if way.chain.len() > 1 {
                        way.chain.pop();
                    }
                }
                Some(Step::Down(_)) => {
                    if !way.fresh {
                        // A cached directory at the end is asked of the server of its own group.
                        let ends_cached = way.end != End::Name && self.channels.are_several();
                        let keep = if ends_cached { keep } else { keep.max(1) };
                        self.advance_cached(cred, way, keep)?;
                        if way.steps.left.is_empty() {
                            break;
                        }
                    }
                    let names = names_ahead(&way.steps, keep);
                    if names.is_empty() {
                        continue;
                    }
                    let landing = self.advance_asking(cred, way, names, links).await?;
                    if landing.is_some() {
                        return Ok(landing);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Whether a path may go up from a directory. Where an ACL decides, the server says so with any
    /// look-up.
    async fn permits_up(&self, cred: &Cred, dir: &CachedDir, stand: &Stand) -> Result<(), Failure> {
        if mode_decides(&dir.attr, cred) {
            return Ok(dir.permits_walk(cred)?);
        }
        let name = EntryName::new(b"a").expect("a name");
        match self.walk(cred, dir.dir, vec![name], stand).await {
            Ok(_) | Err(Failure::Error(Error::Fs(FsError::NotFound))) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Goes down as far as the cache reaches.
    ///
    /// Not where the path goes up again: a directory that is only passed is not in any request, so
    /// nobody would say that it is gone.
    fn advance_cached(&self, cred: &Cred, way: &mut Way, keep: usize) -> Result<(), FsError> {
        if way.steps.left.contains(&Step::Up) {
            return Ok(());
        }
        let mut cache = self.cache();
        while way.steps.left.len() > keep
            && let Some(Step::Down(name)) = way.steps.left.last()
            && let Some(found) = cache.child(&way.top().dir, name)
        {
            way.top().permits_walk(cred)?;
            way.steps.left.pop();
            way.enter(found);
            way.stands_on(cache.version());
        }
        Ok(())
    }

    /// Goes down by asking the server.
    async fn advance_asking(
        &self,
        cred: &Cred,
        way: &mut Way,
        names: Vec<EntryName>,
        links: Links,
    ) -> Result<Option<Landing>, Failure> {
        let from = way.top().dir;
        let ends = way.steps.left.len() == names.len() && way.end != End::Dir;
        let mut guessed = self.walk_to(cred, from, &names, &way.stand, ends).await?;
        if guessed.is_none() && names.len() > 1 && self.guesses() {
            let whole = way.end == End::Whole && way.steps.left.len() == names.len();
            guessed = self.guess(cred, from, &names, &way.stand, whole).await?;
        }
        let (walked, version) = match guessed {
            Some(guessed) => guessed,
            None => self.walk(cred, from, names, &way.stand).await?,
        };
        let version = self.valid_from(version);
        if walked.entries.is_empty() && walked.error.is_none() {
            return Err(FsError::Io.into());
        }
        way.stands_on(version);
        for entry in walked.entries {
            let Some(Step::Down(name)) = way.steps.left.pop() else {
                return Err(FsError::Io.into());
            };
            let last = way.steps.left.is_empty();
            if let Some(dir) = entry.dir {
                let found = CachedDir { dir, attr: entry.attr };
                self.learn_level(&way.top().dir, &name, &dir);
                let current = self.cache().insert(&way.top().dir, &name, found, version);
                if !current {
                    return Err(self.overtaken().await);
                }
                if last {
                    return Ok(Some(Landing { name, entry }));
                }
                way.enter(found);
            } else if let Some(target) = &entry.target {
                if last && links == Links::Keep && way.steps.tail == PathEnd::Plain {
                    return Ok(Some(Landing { name, entry }));
                }
                way.follow(target)?;
                return Ok(None);
            } else if last && way.steps.tail == PathEnd::Plain {
                return Ok(Some(Landing { name, entry }));
            } else {
                return Err(FsError::NotDirectory.into());
            }
        }
        match walked.error {
            Some(error) => Err(error.into()),
            None => Ok(None),
        }
    }

    /// A reply is older than the cache: it was overtaken, or the server that gave it is behind the
    /// others, for a moment. One that is alone may be in another run, whose versions say nothing.
    async fn overtaken(&self) -> Failure {
        if self.channels.are_several() {
            let pause =
                Backoff::new(VERSIONS_PAUSE, VERSIONS_PAUSE).draw(self.config.random.as_ref());
            sleep(pause).await;
        } else {
            self.cache.lock().forget_all();
        }
        Failure::StaleCache
    }

    async fn walk(
        &self,
        cred: &Cred,
        from: DirRef,
        mut names: Vec<EntryName>,
        stand: &Stand,
    ) -> Result<(Walked, u64), Failure> {
        let request = if names.len() == 1 {
            Request::Lookup(Lookup { dir: from, name: names.pop().expect("there is one") })
        } else {
            Request::Walk(Walk { from, names })
        };
        let done = self.call(cred, from.home, request, stand.clone()).await;
        let done = done.inspect_err(|failure| self.forget_if_stale(failure, &from))?;
        match done.reply {
            Reply::Entry(entry) => Ok((Walked { entries: vec![entry], error: None }, done.version)),
            Reply::Walked(walked) => Ok((walked, done.version)),
            _ => Err(FsError::Io.into()),
        }
    }
}

/// The names that come next, up to anything else, without the last `keep` steps.
fn names_ahead(steps: &Steps, keep: usize) -> Vec<EntryName> {
    let ahead = steps.left.iter().skip(keep).rev().take(WALKED_NAMES_MAX);
    let names = ahead.map_while(|step| match step {
        Step::Down(name) => Some(name.clone()),
        Step::Up | Step::TooLong => None,
    });
    names.collect()
}
