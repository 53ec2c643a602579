//! One side of a comparison: applies operations to its clients, and keeps their slots.

use base::{Access, EntryName, FileKind, FsError, Ino, SetAttr, SetTime, Time};
use bytes::Bytes;
use client::{Error, FileSystem, Handle, Made, New, Unnamed};
use wire::{DirRef, Entry, FileRef, NodeRef, ReaddirEntry, SeekTo};

use super::{
    Answer, DIRS, HANDLES, NODES, Op, OpenFor, Place, Rules, Step, User,
    answer::{Listed, Numbering},
};

/// The device number of every special file.
const RDEV: u32 = 0x0103;

/// A file system, as one or more of its clients see it.
pub(super) struct Side<'a, F> {
    clients: Vec<(&'a F, Slots)>,
    numbering: Numbering,
    page_entries: u32,
    flush: bool,
}

/// Slots of a client.
#[derive(Default)]
struct Slots {
    dirs: [Option<DirRef>; DIRS],
    nodes: [Option<NodeRef>; NODES],
    handles: [Option<OpenSlot>; HANDLES],
}

/// An open file.
#[derive(Clone)]
struct OpenSlot {
    handle: Handle,
    file: FileRef,
    /// Whether another client has changed the contents since the file was opened.
    behind: bool,
}

type Outcome = Result<Answer, Error>;

impl<'a, F: FileSystem> Side<'a, F> {
    pub(super) fn new(clients: &'a [F], page_entries: u32, rules: Rules) -> Side<'a, F> {
        let clients = clients.iter().map(|fs| (fs, Slots::default())).collect();
        let Rules { flush, compared, .. } = rules;
        Side { clients, numbering: Numbering::new(flush, compared), page_entries, flush }
    }

    pub(super) async fn apply(&mut self, step: &Step) -> Answer {
        match self.run(step).await {
            Ok(answer) => answer,
            Err(Error::Fs(error)) => Answer::Failed(error),
            Err(error) => Answer::Broken(error.to_string()),
        }
    }

    /// Lets all users work in the root from now on.
    pub(super) async fn open_up(&mut self) -> Outcome {
        let fs = self.clients[0].0;
        let root = NodeRef::Dir(fs.root().0);
        let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        let attr = fs.setattr(&User::Root.cred(), &root, set).await?;
        Ok(Answer::Attr(self.numbering.attr(&attr)))
    }

    async fn run(&mut self, step: &Step) -> Outcome {
        let (client, cred) = (step.client, &step.user.cred());
        let fs = self.clients[client].0;
        let set = SetAttr::default();
        match &step.op {
            Op::Lookup { at, into } => {
                let (dir, name) = self.place(client, at);
                let entry = fs.lookup(cred, &dir, name).await?;
                Ok(self.keep(client, at, *into, &entry))
            }
            Op::Create { at, kind, mode, exclusive, open, into } => {
                let (dir, name) = self.place(client, at);
                let new = New { kind: *kind, mode: *mode, rdev: RDEV };
                let made = fs.create(cred, &dir, name, new, *exclusive, open.is_some()).await?;
                self.keep(client, at, *into, &made.entry);
                self.made(client, (dir, name), *open, &made).await
            }
            Op::Tmpfile { dir, mode, linkable, open, into } => {
                let dir = self.dir(client, *dir);
                let made = fs.tmpfile(cred, &dir, *mode, *linkable).await?;
                let Unnamed { file, attr, handle } = made;
                self.clients[client].1.nodes[*into] = Some(NodeRef::File(file.clone()));
                let slot = OpenSlot { handle, file, behind: false };
                self.put_handle(client, *open, Some(slot)).await?;
                Ok(Answer::Attr(self.numbering.attr(&attr)))
            }
            Op::Mkdir { at, mode, into } => {
                let (dir, name) = self.place(client, at);
                let entry = fs.mkdir(cred, &dir, name, *mode).await?;
                Ok(self.keep(client, at, *into, &entry))
            }
            Op::Symlink { at, target, into } => {
                let (dir, name) = self.place(client, at);
                let entry = fs.symlink(cred, &dir, name, target.clone()).await?;
                Ok(self.keep(client, at, *into, &entry))
            }
            Op::Link { node, at, into } => {
                let ((dir, name), node) =
                    (self.place(client, at), self.file_or_node(client, *node));
                let entry = fs.link(cred, &node, &dir, name).await?;
                Ok(self.keep(client, at, *into, &entry))
            }
            Op::Unlink { at } => {
                let (dir, name) = self.place(client, at);
                let attr = fs.unlink(cred, &dir, name).await?;
                Ok(Answer::Attr(self.numbering.attr(&attr)))
            }
            Op::Rmdir { at } => {
                let (dir, name) = self.place(client, at);
                let ino = fs.rmdir(cred, &dir, name).await?;
                Ok(Answer::Ino(self.numbering.ino(ino)))
            }
            Op::Rename { from, to, mode } => {
                let (from, to) = (self.place(client, from), self.place(client, to));
                let done = fs.rename(cred, (&from.0, from.1), (&to.0, to.1), *mode).await?;
                Ok(Answer::Ino(self.numbering.ino(done.moved)))
            }
            Op::List { dir, plus } => self.list(step, *dir, *plus).await,
            Op::Getattr { node } => {
                let attr = fs.getattr(cred, &self.node(client, *node)).await?;
                Ok(Answer::Attr(self.numbering.attr(&attr)))
            }
            Op::Chmod { node, mode } => {
                self.set(step, self.node(client, *node), SetAttr { mode: Some(*mode), ..set }).await
            }
            Op::Chown { node, uid, gid } => {
                self.set(step, self.node(client, *node), SetAttr { uid: *uid, gid: *gid, ..set })
                    .await
            }
            Op::Utimes { node, atime, mtime } => {
                self.set(
                    step,
                    self.node(client, *node),
                    SetAttr { atime: *atime, mtime: *mtime, ..set },
                )
                .await
            }
            Op::Accessed { node, sec } => {
                let atime = Some(SetTime::At(Time { sec: *sec, nsec: 0 }));
                self.set(
                    step,
                    self.node(client, *node),
                    SetAttr { atime, access_only: true, ..set },
                )
                .await
            }
            Op::Truncate { node, size, clear_set_id } => {
                let clear_set_id = *clear_set_id;
                let set = SetAttr { size: Some(*size), clear_set_id, ..set };
                self.set(step, self.file_or_node(client, *node), set).await
            }
            Op::Readlink { node } => {
                let Some(file) = self.file(client, *node) else {
                    return Ok(Answer::Skipped);
                };
                Ok(Answer::Data(fs.readlink(cred, &file).await?))
            }
            Op::Open { node, access, into } => {
                let Some(file) = self.file(client, *node) else {
                    return Ok(Answer::Skipped);
                };
                let handle = fs.open(cred, &file, access.bits()).await?;
                let open = OpenSlot { handle, file, behind: false };
                self.put_handle(client, *into, Some(open)).await?;
                Ok(Answer::Done)
            }
            Op::Read { handle, offset, len } => {
                let Some((slot, open)) = self.open_slot(client, *handle) else {
                    return Ok(Answer::Skipped);
                };
                if open.behind {
                    self.catch_up(step, slot).await?;
                }
                let data = fs.read(open.handle, *offset, *len).await?;
                self.numbering.was_read(open.file.ino);
                Ok(Answer::Data(data))
            }
            Op::Write { handle, offset, len, seed, clear_set_id } => {
                let Some((_, OpenSlot { handle, file, .. })) = self.open_slot(client, *handle)
                else {
                    return Ok(Answer::Skipped);
                };
                fs.write(handle, *offset, pattern(*seed, *len), *clear_set_id).await?;
                // Times and other clients' answers are exact once the server knows.
                if self.flush {
                    fs.flush(handle).await?;
                }
                self.changed(client, file.ino);
                Ok(Answer::Done)
            }
            Op::Close { handle, fsync } => {
                let Some((slot, open)) = self.open_slot(client, *handle) else {
                    return Ok(Answer::Skipped);
                };
                if *fsync {
                    fs.fsync(open.handle).await?;
                }
                self.put_handle(client, slot, None).await?;
                Ok(Answer::Done)
            }
            Op::Xattrs { node } => {
                let mut all = fs.xattrs(cred, &self.node(client, *node)).await?;
                all.sort();
                Ok(Answer::Xattrs(all))
            }
            Op::Setxattr { node, name, len, mode } => {
                let (name, value) = (Bytes::from_static(name.as_bytes()), vec![7; *len].into());
                fs.setxattr(cred, &self.node(client, *node), name, value, *mode).await?;
                Ok(Answer::Done)
            }
            Op::SetAcl { node, kind, acl, mode } => {
                let (node, name) = (self.node(client, *node), Bytes::from_static(kind.name()));
                match acl {
                    Some(acl) => fs.setxattr(cred, &node, name, acl.clone(), *mode).await?,
                    None => fs.removexattr(cred, &node, name).await?,
                }
                Ok(Answer::Done)
            }
            Op::Removexattr { node, name } => {
                let name = Bytes::from_static(name.as_bytes());
                fs.removexattr(cred, &self.node(client, *node), name).await?;
                Ok(Answer::Done)
            }
            Op::Allocate { handle, offset, len, mode } => {
                let Some((_, open)) = self.open_slot(client, *handle) else {
                    return Ok(Answer::Skipped);
                };
                fs.allocate(open.handle, *offset, *len, *mode, false).await?;
                self.changed(client, open.file.ino);
                Ok(Answer::Done)
            }
            Op::Seek { handle, offset, to } => self.seek(step, *handle, *offset, *to).await,
            Op::CopyRange { from, to, offset, to_offset, len } => {
                self.copy_range(step, (*from, *offset), (*to, *to_offset), *len).await
            }
            Op::Sync => {
                fs.sync().await?;
                Ok(Answer::Done)
            }
        }
    }

    /// Number of names that the file had which a step was about, before the step, which was
    /// answered so; `None` when it was about no file or several, or the file is gone.
    pub(super) async fn names_before(&self, step: &Step, answer: &Answer) -> Option<u32> {
        let client = step.client;
        let node = match &step.op {
            Op::Getattr { node }
            | Op::Chmod { node, .. }
            | Op::Chown { node, .. }
            | Op::Utimes { node, .. }
            | Op::Accessed { node, .. }
            | Op::Xattrs { node }
            | Op::Setxattr { node, .. }
            | Op::SetAcl { node, .. }
            | Op::Removexattr { node, .. } => self.node(client, *node),
            Op::Truncate { node, .. } | Op::Link { node, .. } => self.file_or_node(client, *node),
            Op::Readlink { node } | Op::Open { node, .. } => {
                NodeRef::File(self.file(client, *node)?)
            }
            Op::Read { handle, .. }
            | Op::Write { handle, .. }
            | Op::Allocate { handle, .. }
            | Op::Seek { handle, .. } => NodeRef::File(self.open_slot(client, *handle)?.1.file),
            Op::Lookup { .. }
            | Op::Create { .. }
            | Op::Tmpfile { .. }
            | Op::Mkdir { .. }
            | Op::Symlink { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::List { .. }
            | Op::Close { .. }
            | Op::CopyRange { .. }
            | Op::Sync => return None,
        };
        let attr = self.clients[client].0.getattr(&User::Root.cred(), &node).await.ok()?;
        let added = matches!((&step.op, answer), (Op::Link { .. }, Answer::Entry(_)));
        (attr.kind != FileKind::Directory).then(|| attr.nlink.saturating_sub(added.into()))
    }

    fn dir(&self, client: usize, slot: usize) -> DirRef {
        let (fs, slots) = &self.clients[client];
        slots.dirs[slot].unwrap_or_else(|| fs.root().0)
    }

    fn place<'b>(&self, client: usize, at: &'b Place) -> (DirRef, &'b EntryName) {
        (self.dir(client, at.dir), &at.name)
    }

    fn node(&self, client: usize, slot: usize) -> NodeRef {
        let (fs, slots) = &self.clients[client];
        slots.nodes[slot].clone().unwrap_or_else(|| NodeRef::Dir(fs.root().0))
    }

    /// Target of a link or truncate: a file if there is one.
    fn file_or_node(&self, client: usize, slot: usize) -> NodeRef {
        self.file(client, slot).map_or_else(|| self.node(client, slot), NodeRef::File)
    }

    /// The first node from `slot` on that is not a directory.
    fn file(&self, client: usize, slot: usize) -> Option<FileRef> {
        let nodes = &self.clients[client].1.nodes;
        (slot..slot + NODES).find_map(|slot| match &nodes[slot % NODES] {
            Some(NodeRef::File(file)) => Some(file.clone()),
            Some(NodeRef::Dir(_)) | None => None,
        })
    }

    /// The first slot from `slot` on that holds a handle.
    fn open_slot(&self, client: usize, slot: usize) -> Option<(usize, OpenSlot)> {
        let handles = &self.clients[client].1.handles;
        let mut slots = (slot..slot + HANDLES).map(|slot| slot % HANDLES);
        slots.find_map(|slot| Some((slot, handles[slot].clone()?)))
    }

    /// Puts an entry that was found or made into its slots.
    fn keep(&mut self, client: usize, at: &Place, into: usize, entry: &Entry) -> Answer {
        let (dir, name) = self.place(client, at);
        let slots = &mut self.clients[client].1;
        slots.nodes[into] = Some(entry.node(&dir, name));
        // The first slot stays the root.
        if let Some(found) = entry.dir.filter(|_| into > 0 && into < DIRS) {
            slots.dirs[into] = Some(found);
        }
        Answer::Entry(self.numbering.entry(entry))
    }

    async fn made(
        &mut self,
        client: usize,
        at: (DirRef, &EntryName),
        open: Option<usize>,
        made: &Made,
    ) -> Outcome {
        if let (Some(slot), Some(handle)) = (open, made.handle) {
            let NodeRef::File(file) = made.entry.node(&at.0, at.1) else {
                return Ok(Answer::Broken("a directory was opened".to_owned()));
            };
            let open = OpenSlot { handle, file, behind: false };
            self.put_handle(client, slot, Some(open)).await?;
        }
        let entry = self.numbering.entry(&made.entry);
        Ok(Answer::Made(entry, made.existed, made.handle.is_some()))
    }

    async fn set(&mut self, step: &Step, node: NodeRef, set: SetAttr) -> Outcome {
        let fs = self.clients[step.client].0;
        let attr = fs.setattr(&step.user.cred(), &node, set).await?;
        if set.atime.is_some() && !set.access_only {
            self.numbering.atime_was_set(attr.ino);
        }
        if set.mtime.is_some() {
            self.numbering.mtime_was_set(attr.ino);
        }
        if set.size.is_some() {
            self.changed(step.client, attr.ino);
        }
        Ok(Answer::Attr(self.numbering.attr(&attr)))
    }

    async fn list(&mut self, step: &Step, slot: usize, plus: bool) -> Outcome {
        let (fs, dir) = (self.clients[step.client].0, self.dir(step.client, slot));
        let (cred, mut after) = (step.user.cred(), 0);
        let mut found: Vec<ReaddirEntry> = Vec::new();
        let mut first = None;
        let parent_ino = loop {
            let page = fs.readdir(&cred, &dir, after, self.page_entries, plus).await?;
            let positions = page.entries.iter().map(|entry| entry.pos);
            let ordered = positions.clone().is_sorted() && positions.clone().all(|pos| pos > after);
            if !ordered || (page.entries.is_empty() && !page.end) {
                return Ok(Answer::Broken(format!("a page after {after}: {page:?}")));
            }
            after = positions.last().unwrap_or(after);
            found.extend(page.entries.iter().cloned());
            // The first page is asked for before the listing changes the access time.
            first.get_or_insert(page.attr);
            if page.end {
                break page.parent_ino;
            }
        };
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let numbering = &mut self.numbering;
        let listed = found.into_iter().map(|entry| Listed {
            ino: numbering.ino(entry.ino),
            name: entry.name,
            kind: entry.kind,
            entry: entry.entry.map(|entry| numbering.entry(&entry)),
        });
        let listed = listed.collect();
        let attr = numbering.attr(&first.expect("there is a first page"));
        Ok(Answer::Listing(attr, numbering.ino(parent_ino), listed))
    }

    /// Seeks in a file. The exact places of data and holes are each file system's own affair; but a
    /// hole reads as zeros, and an end is an end.
    async fn seek(&mut self, step: &Step, slot: usize, offset: u64, to: SeekTo) -> Outcome {
        let Some((slot, open)) = self.open_slot(step.client, slot) else {
            return Ok(Answer::Skipped);
        };
        if open.behind {
            self.catch_up(step, slot).await?;
        }
        let fs = self.clients[step.client].0;
        let attr = fs.getattr(&step.user.cred(), &NodeRef::File(open.file.clone())).await;
        let found = fs.seek(open.handle, offset, to).await;
        // Not every user may ask for the size.
        let Ok(attr) = attr else { return Ok(Answer::Skipped) };
        let hole = match (&found, to) {
            _ if offset >= attr.size => return found.map(|_| Answer::Done),
            (Err(Error::Fs(FsError::NoSuchDevice)), SeekTo::Data) => offset..attr.size,
            (Ok(found), SeekTo::Data) if (offset..attr.size).contains(found) => offset..*found,
            (Ok(found), SeekTo::Hole) if (offset..=attr.size).contains(found) => offset..offset,
            (Ok(_) | Err(_), _) => {
                return Ok(Answer::Broken(format!("from {offset} of {}: {found:?}", attr.size)));
            }
        };
        let some = u32::try_from(hole.end - hole.start).unwrap_or(1 << 20).min(1 << 20);
        match fs.read(open.handle, hole.start, some).await {
            Ok(read) if read.iter().any(|byte| *byte != 0) => {
                Ok(Answer::Broken(format!("no hole: {hole:?}")))
            }
            Ok(_) | Err(Error::Fs(FsError::BadHandle)) => {
                self.numbering.was_read(open.file.ino);
                Ok(Answer::Done)
            }
            Err(error) => Err(error),
        }
    }

    async fn copy_range(
        &mut self,
        step: &Step,
        from: (usize, u64),
        to: (usize, u64),
        len: u64,
    ) -> Outcome {
        let client = step.client;
        let (Some((slot, source)), Some((_, target))) =
            (self.open_slot(client, from.0), self.open_slot(client, to.0))
        else {
            return Ok(Answer::Skipped);
        };
        if source.file.ino == target.file.ino && from.1.abs_diff(to.1) < len {
            return Ok(Answer::Skipped);
        }
        if source.behind {
            self.catch_up(step, slot).await?;
        }
        let fs = self.clients[client].0;
        self.numbering.was_read(source.file.ino);
        let copied =
            fs.copy_range((source.handle, from.1), (target.handle, to.1), len, false).await?;
        if self.flush {
            fs.flush(target.handle).await?;
        }
        self.changed(client, target.file.ino);
        Ok(Answer::Copied(copied))
    }

    /// Notes that a client has changed the contents of a file.
    fn changed(&mut self, client: usize, ino: Ino) {
        let others = self.clients.iter_mut().enumerate().filter(|(other, _)| *other != client);
        let open = others.flat_map(|(_, (_, slots))| slots.handles.iter_mut().flatten());
        open.filter(|open| open.file.ino == ino).for_each(|open| open.behind = true);
    }

    /// Opens a file once more, because only an open need show earlier writes of other clients.
    async fn catch_up(&mut self, step: &Step, slot: usize) -> Result<(), Error> {
        let (fs, slots) = &mut self.clients[step.client];
        let Some(open) = &mut slots.handles[slot] else { return Ok(()) };
        let again = fs.open(&step.user.cred(), &open.file, None).await?;
        open.behind = false;
        fs.release(again).await
    }

    /// Closes the handle in a slot, as programs do: flush, then release.
    async fn put_handle(
        &mut self,
        client: usize,
        slot: usize,
        open: Option<OpenSlot>,
    ) -> Result<(), Error> {
        let (fs, slots) = &mut self.clients[client];
        if let Some(OpenSlot { handle, .. }) = std::mem::replace(&mut slots.handles[slot], open) {
            fs.flush(handle).await?;
            fs.release(handle).await?;
        }
        Ok(())
    }
}

impl OpenFor {
    fn bits(self) -> Option<Access> {
        match self {
            OpenFor::Both => Some(Access::READ.and(Access::WRITE)),
            OpenFor::Read => Some(Access::READ),
            OpenFor::Write => Some(Access::WRITE),
            OpenFor::Nothing => None,
        }
    }
}

/// Bytes that differ from place to place and from write to write.
fn pattern(seed: u8, len: u32) -> Bytes {
    let byte = |at: u32| {
        let mixed = (at ^ (u32::from(seed) << 8)).wrapping_mul(0x9e37_79b1);
        u8::try_from(mixed >> 24).expect("eight bits are left")
    };
    (0..len).map(byte).collect()
}
