//! A sequential file system, small and quick to copy.
//!
//! An inode is identified by the operation that made it, so that the same operations lead to the
//! same state in any order. Its inode number is learnt from the first answer that shows it.

use std::{collections::BTreeMap, fmt, rc::Rc};

use base::{FsError, Ino};
use wire::RenameMode;

use super::{Answer, Attributes, By, Call, Names, Path, Seen};

/// An inode: 0 is the root, any other is one more than the number of the operation that made it.
pub(super) type Id = u16;
const ROOT: Id = 0;
/// The mode of a new directory: everybody may list it and walk through it.
const OPEN: u32 = 0o755;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Node {
    /// `None` until an answer shows it: the operation that made the inode may never be answered.
    ino: Option<Ino>,
    kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Kind {
    Dir { mode: u32, entries: BTreeMap<u8, Id> },
    File { nlink: u32 },
}

/// A state of the tree.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    nodes: BTreeMap<Id, Rc<Node>>,
}

/// The answer that the model expects.
enum Want {
    Nothing,
    /// The inode that was made or changed.
    Made(Id),
    Found(Id),
    Names(BTreeMap<u8, Id>),
    /// Refused with any of these errors.
    Refused(Vec<FsError>),
}

/// A state after an operation, `None` when it is the same.
pub(super) struct After(pub(super) Option<State>);

type Refusal = Vec<FsError>;

fn only(error: FsError) -> Refusal {
    vec![error]
}

impl State {
    /// An empty root.
    pub(super) fn new(root: Ino) -> State {
        let kind = Kind::Dir { mode: OPEN, entries: BTreeMap::new() };
        let node = Node { ino: Some(root), kind };
        State { nodes: BTreeMap::from([(ROOT, Rc::new(node))]) }
    }

    fn entries(&self, id: Id) -> Option<&BTreeMap<u8, Id>> {
        match &self.nodes.get(&id)?.kind {
            Kind::Dir { entries, .. } => Some(entries),
            Kind::File { .. } => None,
        }
    }

    fn entries_mut(&mut self, id: Id) -> &mut BTreeMap<u8, Id> {
        match &mut self.node_mut(id).kind {
            Kind::Dir { entries, .. } => entries,
            Kind::File { .. } => unreachable!("only directories are changed so"),
        }
    }

    fn node_mut(&mut self, id: Id) -> &mut Node {
        Rc::make_mut(self.nodes.get_mut(&id).expect("it was found in this state"))
    }

    fn is_dir(&self, id: Id) -> bool {
        self.entries(id).is_some()
    }

    fn closed(&self, id: Id, by: By) -> bool {
        let node = self.nodes.get(&id).map(|node| &node.kind);
        by == By::User && matches!(node, Some(Kind::Dir { mode, .. }) if mode & 5 == 0)
    }

    /// The inode that a path leads to.
    fn walk(&self, names: &[u8], by: By) -> Result<Id, FsError> {
        names.iter().try_fold(ROOT, |at, name| {
            let entries = self.entries(at).ok_or(FsError::NotDirectory)?;
            if self.closed(at, by) {
                return Err(FsError::Denied);
            }
            entries.get(name).copied().ok_or(FsError::NotFound)
        })
    }

    /// The directory of a path's last name, and that name.
    fn place(&self, path: &Path) -> Result<(Id, u8), FsError> {
        let (name, above) = path.0.split_last().ok_or(FsError::Busy)?;
        let dir = self.walk(above, By::Root)?;
        if self.is_dir(dir) { Ok((dir, *name)) } else { Err(FsError::NotDirectory) }
    }

    /// Whether `dir` is `above` or below it.
    fn is_within(&self, dir: Id, above: Id) -> bool {
        let below = |id: &Id| self.is_within(dir, *id);
        dir == above || self.entries(above).is_some_and(|entries| entries.values().any(below))
    }

    fn make(&self, path: &Path, new: Id, kind: Kind) -> Result<(State, Want), Refusal> {
        let (dir, name) = self.place(path).map_err(only)?;
        let mut state = self.clone();
        if state.entries_mut(dir).insert(name, new).is_some() {
            return Err(only(FsError::Exists));
        }
        state.nodes.insert(new, Rc::new(Node { ino: None, kind }));
        Ok((state, Want::Made(new)))
    }

    fn remove(&self, path: &Path, directory: bool) -> Result<(State, Want), Refusal> {
        let (dir, name) = self.place(path).map_err(only)?;
        let found = self.entries(dir).and_then(|entries| entries.get(&name));
        let found = *found.ok_or_else(|| only(FsError::NotFound))?;
        match (directory, self.entries(found)) {
            (true, None) => return Err(only(FsError::NotDirectory)),
            (false, Some(_)) => return Err(only(FsError::IsDirectory)),
            (true, Some(entries)) if !entries.is_empty() => return Err(only(FsError::NotEmpty)),
            (true, Some(_)) | (false, None) => {}
        }
        let mut state = self.clone();
        state.entries_mut(dir).remove(&name);
        state.drop_name(found);
        Ok((state, Want::Nothing))
    }

    /// Removes a name of an inode, and the inode with its last name.
    fn drop_name(&mut self, id: Id) {
        let last = match &mut self.node_mut(id).kind {
            Kind::Dir { .. } => true,
            Kind::File { nlink } => {
                *nlink -= 1;
                *nlink == 0
            }
        };
        if last {
            self.nodes.remove(&id);
        }
    }

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<(State, Want), Refusal> {
        let mut refusal = Refusal::new();
        let mut place = |path| self.place(path).inspect_err(|error| refusal.push(*error)).ok();
        let (Some((from, name)), Some((to, to_name))) = (place(from), place(to)) else {
            return Err(refusal);
        };
        let at = |dir, name| self.entries(dir).and_then(|entries| entries.get(&name)).copied();
        let (source, target) = (at(from, name), at(to, to_name));
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => refusal.push(FsError::Exists),
            (RenameMode::Exchange, None) => refusal.push(FsError::NotFound),
            (RenameMode::NoReplace | RenameMode::Exchange | RenameMode::Replace, _) => {}
        }
        let Some(source) = source else {
            refusal.push(FsError::NotFound);
            return Err(refusal);
        };
        if from != to && self.is_within(to, source) {
            refusal.push(FsError::Invalid);
        }
        if let Some(target) = target
            && target != source
        {
            let exchange = mode == RenameMode::Exchange;
            if from != to && self.is_within(from, target) {
                refusal.push(if exchange { FsError::Invalid } else { FsError::NotEmpty });
            }
            match (self.is_dir(source), self.entries(target)) {
                _ if exchange => {}
                (true, None) => refusal.push(FsError::NotDirectory),
                (false, Some(_)) => refusal.push(FsError::IsDirectory),
                (true, Some(below)) if !below.is_empty() => refusal.push(FsError::NotEmpty),
                (true, Some(_)) | (false, None) => {}
            }
        }
        if !refusal.is_empty() {
            return Err(refusal);
        }
        let mut state = self.clone();
        if target == Some(source) {
            return Ok((state, Want::Nothing));
        }
        state.entries_mut(from).remove(&name);
        state.entries_mut(to).insert(to_name, source);
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => {
                state.entries_mut(from).insert(name, target);
            }
            (RenameMode::Exchange | RenameMode::Replace | RenameMode::NoReplace, target) => {
                target.into_iter().for_each(|target| state.drop_name(target));
            }
        }
        Ok((state, Want::Nothing))
    }

    fn link(&self, file: Id, path: &Path) -> Result<(State, Want), Refusal> {
        let place = self.place(path);
        let mut refusal: Refusal = place.err().into_iter().collect();
        let taken = place.is_ok_and(|(dir, name)| {
            self.entries(dir).is_some_and(|entries| entries.contains_key(&name))
        });
        if taken {
            refusal.push(FsError::Exists);
        }
        match self.nodes.get(&file).map(|node| &node.kind) {
            None => refusal.push(FsError::NotFound),
            Some(Kind::Dir { .. }) => refusal.push(FsError::NotPermitted),
            Some(Kind::File { .. }) => {}
        }
        let (Ok((dir, name)), true) = (place, refusal.is_empty()) else { return Err(refusal) };
        let mut state = self.clone();
        state.entries_mut(dir).insert(name, file);
        if let Kind::File { nlink } = &mut state.node_mut(file).kind {
            *nlink += 1;
        }
        Ok((state, Want::Nothing))
    }

    fn chmod(&self, id: Id, new: u32) -> (State, Want) {
        let mut state = self.clone();
        if let Kind::Dir { mode, .. } = &mut state.node_mut(id).kind {
            *mode = new;
        }
        (state, Want::Made(id))
    }

    fn list(&self, id: Id, by: By) -> Result<(State, Want), Refusal> {
        if !self.nodes.contains_key(&id) {
            return Err(only(FsError::Stale));
        }
        let entries = self.entries(id).ok_or_else(|| only(FsError::NotDirectory))?;
        if self.closed(id, by) {
            return Err(only(FsError::Denied));
        }
        Ok((self.clone(), Want::Names(entries.clone())))
    }

    /// A set of names, one bit each: those for which the directory and the listing agree now. A
    /// name that neither has is in the set.
    pub(super) fn shown(&self, dir: Id, by: By, listed: &Names) -> u32 {
        let Some(entries) = self.listable(dir, by) else { return 0 };
        let is_shown = |name: &u8| match (entries.get(name), listed.get(name)) {
            (None, None) => true,
            (Some(id), Some((ino, directory))) => {
                self.is_dir(*id) == *directory && self.nodes[id].ino == Some(*ino)
            }
            (None, Some(_)) | (Some(_), None) => false,
        };
        let shown = (b'a'..=b'z').zip(0..).filter(|(name, _)| is_shown(name));
        shown.fold(0, |shown, (_, bit): (u8, u32)| shown | 1 << bit)
    }

    /// The states in which one inode, whose number was unknown, has the number that a listing
    /// shows.
    pub(super) fn learn(&self, dir: Id, by: By, listed: &Names) -> Vec<State> {
        let entries = self.listable(dir, by).into_iter().flatten();
        let learned = entries.filter_map(|(name, id)| {
            let (ino, directory) = listed.get(name)?;
            let is_new = self.nodes[id].ino.is_none() && self.is_dir(*id) == *directory;
            let mut state = self.clone();
            (is_new && state.is(*id, *ino)).then_some(state)
        });
        learned.collect()
    }

    fn listable(&self, dir: Id, by: By) -> Option<&BTreeMap<u8, Id>> {
        self.entries(dir).filter(|_| !self.closed(dir, by))
    }

    /// The first point of an operation with two points: finds the inode.
    pub(super) fn look(&self, call: &Call) -> Result<Id, FsError> {
        match call {
            Call::Stat(path, by) | Call::List(path, by) => self.walk(&path.0, *by),
            Call::Link(path, _) | Call::Chmod(path, _) => self.walk(&path.0, By::Root),
            Call::Mkdir(_)
            | Call::Create(_)
            | Call::Unlink(_)
            | Call::Rmdir(_)
            | Call::Rename(..) => Ok(ROOT),
        }
    }

    /// Whether the operation can go on with the inode found at the first point. Otherwise the
    /// client looks again.
    pub(super) fn can_work_on(&self, call: &Call, id: Id) -> bool {
        self.nodes.contains_key(&id) || matches!(call, Call::Link(..))
    }

    /// Does an operation. `looked` is the inode it works on, if it has two points. `None` when the
    /// answer would be another one, or when it was never answered and changes nothing.
    pub(super) fn act(
        &self,
        call: &Call,
        looked: Result<Id, FsError>,
        new: Id,
        answer: Option<&Answer>,
    ) -> Option<After> {
        if let Some(Err(FsError::NoSpace)) = answer {
            // A full disk may refuse any change at any time, and no look.
            return (!matches!(call, Call::Stat(..) | Call::List(..))).then_some(After(None));
        }
        let done = match (call, looked) {
            (_, Err(error)) => Err(only(error)),
            (Call::Mkdir(path), Ok(_)) => {
                self.make(path, new, Kind::Dir { mode: OPEN, entries: BTreeMap::new() })
            }
            (Call::Create(path), Ok(_)) => self.make(path, new, Kind::File { nlink: 1 }),
            (Call::Unlink(path), Ok(_)) => self.remove(path, false),
            (Call::Rmdir(path), Ok(_)) => self.remove(path, true),
            (Call::Rename(from, to, mode), Ok(_)) => self.rename(from, to, *mode),
            (Call::Link(_, path), Ok(id)) => self.link(id, path),
            (Call::Chmod(_, mode), Ok(id)) => Ok(self.chmod(id, *mode)),
            (Call::Stat(..), Ok(id)) => Ok((self.clone(), Want::Found(id))),
            (Call::List(_, by), Ok(id)) => self.list(id, *by),
        };
        let (mut state, want) =
            done.unwrap_or_else(|refusal| (self.clone(), Want::Refused(refusal)));
        if let Some(answer) = answer
            && !state.gives(&want, answer)
        {
            return None;
        }
        let changed = state != *self;
        (changed || answer.is_some()).then(|| After(changed.then_some(state)))
    }

    /// Whether `answer` is the expected one. Learns inode numbers from it.
    fn gives(&mut self, want: &Want, answer: &Answer) -> bool {
        match (want, answer) {
            (Want::Refused(errors), Err(error)) => errors.contains(error),
            (Want::Nothing, Ok(Seen::Nothing)) => true,
            (Want::Made(id), Ok(Seen::Made(found))) => {
                let mode = |attributes: &Attributes| attributes.dir.map(|(mode, _)| mode);
                let should = self.attributes(*id, found.ino);
                should.is_some_and(|should| mode(&should) == mode(found)) && self.is(*id, found.ino)
            }
            (Want::Found(id), Ok(Seen::Found(found))) => {
                self.attributes(*id, found.ino) == Some(*found) && self.is(*id, found.ino)
            }
            (Want::Names(entries), Ok(Seen::Names(found))) => {
                entries.len() == found.len()
                    && entries.iter().zip(found).all(|((name, id), (shown, (ino, directory)))| {
                        name == shown && self.is_dir(*id) == *directory && self.is(*id, *ino)
                    })
            }
            (
                Want::Refused(_) | Want::Nothing | Want::Made(_) | Want::Found(_) | Want::Names(_),
                _,
            ) => false,
        }
    }

    fn attributes(&self, id: Id, ino: Ino) -> Option<Attributes> {
        Some(match &self.nodes.get(&id)?.kind {
            Kind::File { nlink } => Attributes { ino, dir: None, nlink: *nlink },
            Kind::Dir { mode, entries } => {
                let dirs = entries.values().filter(|id| self.is_dir(**id)).count();
                let nlink = u32::try_from(dirs).ok()? + 2;
                Attributes { ino, dir: Some((*mode, entries.len() as u64)), nlink }
            }
        })
    }

    /// Whether the inode has this number. An inode whose number is unknown gets it, if no other one
    /// has it.
    fn is(&mut self, id: Id, ino: Ino) -> bool {
        match self.nodes.get(&id).and_then(|node| node.ino) {
            Some(known) => known == ino,
            None => {
                let free = self.nodes.values().all(|node| node.ino != Some(ino));
                if free {
                    self.node_mut(id).ino = Some(ino);
                }
                free
            }
        }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>, id: Id) -> fmt::Result {
        let node = &self.nodes[&id];
        let ino = node.ino.map_or_else(|| "?".to_owned(), |ino| ino.to_string());
        match &node.kind {
            Kind::File { nlink } => write!(f, "{ino}*{nlink}"),
            Kind::Dir { mode, entries } => {
                write!(f, "{ino}:{mode:o}{{")?;
                for (name, id) in entries {
                    write!(f, " {}=", char::from(*name))?;
                    self.show(f, *id)?;
                }
                f.write_str(" }")
            }
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show(f, ROOT)
    }
}
