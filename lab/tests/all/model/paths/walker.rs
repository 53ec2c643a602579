//! Paths for the model, which takes single names: a walk by the rules of `path_resolution(7)`
//! alone.

use base::{Access, Cred, EntryName, FsError, SetAttr, limits::SYMLINKS_FOLLOWED_MAX as LINKS_MAX};
use client::{Error, FileSystem as _, model::Model};
use wire::{DirRef, Entry, NodeRef, RenameMode};

use super::{Op, Out, done, file, names};

/// A user of the model that gives paths.
pub(super) struct Walker<'a> {
    pub(super) fs: &'a Model,
    pub(super) cred: &'a Cred,
}

/// The end of a path.
enum Place {
    /// A directory without a name of its own: the root, or `..`.
    Dir(DirRef),
    /// A directory, a name in it, and the entry of that name, if it exists.
    Name(DirRef, EntryName, Option<Box<Entry>>),
}

impl Walker<'_> {
    async fn walk(&self, path: &str, follow: bool) -> Result<Place, Error> {
        let root = self.fs.root().0;
        let (mut chain, mut links) = (vec![root], 0);
        let mut left: Vec<String> = parts(path);
        while let Some(part) = left.pop() {
            let dir = *chain.last().expect("the root stays");
            if part == ".." {
                self.may_search(&dir).await?;
                chain.truncate(1.max(chain.len() - 1));
                continue;
            }
            let name = EntryName::new(part.as_bytes()).expect("these are names");
            let last = left.is_empty();
            let entry = match self.fs.lookup(self.cred, &dir, &name).await {
                Ok(entry) => entry,
                Err(Error::Fs(FsError::NotFound)) if last => {
                    return Ok(Place::Name(dir, name, None));
                }
                Err(error) => return Err(error),
            };
            if let Some(target) = entry.target.clone().filter(|_| !last || follow) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(FsError::Loop.into());
                }
                let target = String::from_utf8(target.into()).expect("it was a string");
                if target.starts_with('/') {
                    chain.truncate(1);
                }
                left.extend(parts(&target));
            } else if last {
                return Ok(Place::Name(dir, name, Some(Box::new(entry))));
            } else {
                chain.push(entry.dir.ok_or(FsError::NotDirectory)?);
            }
        }
        Ok(Place::Dir(*chain.last().expect("the root stays")))
    }

    /// Checks that the directory may be searched, as a step to `..` does.
    async fn may_search(&self, dir: &DirRef) -> Result<(), Error> {
        let name = EntryName::new(b"nothing has this name").expect("a name");
        match self.fs.lookup(self.cred, dir, &name).await {
            Err(Error::Fs(FsError::NotFound)) | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn node(&self, path: &str, follow: bool) -> Result<NodeRef, Error> {
        match self.walk(path, follow).await? {
            Place::Dir(dir) => Ok(NodeRef::Dir(dir)),
            Place::Name(dir, name, Some(entry)) => Ok(entry.node(&dir, &name)),
            Place::Name(_, _, None) => Err(FsError::NotFound.into()),
        }
    }

    /// The directory of a last name; `otherwise` when the path ends without one.
    async fn parent(&self, path: &str, otherwise: FsError) -> Result<(DirRef, EntryName), Error> {
        match self.walk(path, false).await? {
            Place::Dir(_) => Err(otherwise.into()),
            Place::Name(dir, name, _) => Ok((dir, name)),
        }
    }

    async fn set(&self, path: &str, set: SetAttr) -> Result<Out, Error> {
        let node = self.node(path, true).await?;
        Ok(Out::Attr(self.fs.setattr(self.cred, &node, set).await?))
    }

    async fn list(&self, path: &str) -> Result<Out, Error> {
        let NodeRef::Dir(dir) = self.node(path, true).await? else {
            return Err(FsError::NotDirectory.into());
        };
        let page = self.fs.readdir(self.cred, &dir, 0, u32::MAX, false).await?;
        Ok(names(page.entries.into_iter().map(|entry| (entry.name, entry.kind))))
    }

    async fn write(&self, path: &str, len: usize) -> Result<Out, Error> {
        let (fs, cred) = (self.fs, self.cred);
        let clear_set_id = !cred.is_root();
        let handle = match self.walk(path, true).await? {
            Place::Name(dir, name, None) => {
                let made = fs.create(cred, &dir, &name, file(0o644), false, true).await?;
                made.handle.expect("it was not there")
            }
            Place::Name(dir, name, Some(entry)) => {
                let NodeRef::File(found) = entry.node(&dir, &name) else {
                    return Err(FsError::IsDirectory.into());
                };
                let handle = fs.open(cred, &found, Some(Access::WRITE)).await?;
                let set = SetAttr { size: Some(0), clear_set_id, ..SetAttr::default() };
                fs.setattr(cred, &NodeRef::File(found), set).await?;
                handle
            }
            Place::Dir(_) => return Err(FsError::IsDirectory.into()),
        };
        fs.write(handle, 0, vec![7; len].into(), clear_set_id).await?;
        Ok(done(fs.release(handle).await?))
    }

    async fn read(&self, path: &str) -> Result<Out, Error> {
        let NodeRef::File(found) = self.node(path, true).await? else {
            return Err(FsError::IsDirectory.into());
        };
        let handle = self.fs.open(self.cred, &found, Some(Access::READ)).await?;
        let data = self.fs.read(handle, 0, u32::MAX).await?;
        self.fs.release(handle).await?;
        Ok(Out::Data(data))
    }

    async fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<Out, Error> {
        let ends = (self.walk(from, false).await?, self.walk(to, false).await?);
        match ends {
            (Place::Name(from, from_name, _), Place::Name(to, to_name, _)) => {
                self.fs.rename(self.cred, (&from, &from_name), (&to, &to_name), mode).await?;
                Ok(Out::Done)
            }
            (Place::Name(..), Place::Dir(_)) if mode == RenameMode::NoReplace => {
                Err(FsError::Exists.into())
            }
            (Place::Dir(_) | Place::Name(..), _) => Err(FsError::Busy.into()),
        }
    }

    /// The same as [`super::by_client`].
    pub(super) async fn run(&self, op: &Op) -> Result<Out, Error> {
        let (fs, cred) = (self.fs, self.cred);
        let set = SetAttr::default();
        match op {
            Op::Stat(path) => Ok(Out::Attr(fs.getattr(cred, &self.node(path, true).await?).await?)),
            Op::Lstat(path) => {
                Ok(Out::Attr(fs.getattr(cred, &self.node(path, false).await?).await?))
            }
            Op::List(path) => self.list(path).await,
            Op::Mkdir(path, mode) => {
                let (dir, name) = self.parent(path, FsError::Exists).await?;
                Ok(Out::Attr(fs.mkdir(cred, &dir, &name, *mode).await?.attr))
            }
            Op::Mknod(path, mode) => {
                let (dir, name) = self.parent(path, FsError::Exists).await?;
                let made = fs.create(cred, &dir, &name, file(*mode), true, false).await?;
                Ok(Out::Attr(made.entry.attr))
            }
            Op::Rmdir(path) => {
                let (dir, name) = self.parent(path, FsError::NotEmpty).await?;
                fs.rmdir(cred, &dir, &name).await?;
                Ok(Out::Done)
            }
            Op::Unlink(path) => {
                let (dir, name) = self.parent(path, FsError::IsDirectory).await?;
                fs.unlink(cred, &dir, &name).await?;
                Ok(Out::Done)
            }
            Op::Symlink(target, path) => {
                let (dir, name) = self.parent(path, FsError::Exists).await?;
                fs.symlink(cred, &dir, &name, target.clone().into()).await?;
                Ok(Out::Done)
            }
            Op::Link(old, new) => {
                let old = self.node(old, false).await?;
                let (dir, name) = self.parent(new, FsError::Exists).await?;
                fs.link(cred, &old, &dir, &name).await?;
                Ok(Out::Done)
            }
            Op::Rename(from, to, mode) => self.rename(from, to, *mode).await,
            Op::Readlink(path) => match self.node(path, false).await? {
                NodeRef::File(file) => Ok(Out::Data(fs.readlink(cred, &file).await?)),
                NodeRef::Dir(_) => Err(FsError::Invalid.into()),
            },
            Op::Chmod(path, mode) => self.set(path, SetAttr { mode: Some(*mode), ..set }).await,
            Op::Chown(path, uid) => self.set(path, SetAttr { uid: Some(*uid), ..set }).await,
            Op::Truncate(path, size) => {
                let clear_set_id = !cred.is_root();
                self.set(path, SetAttr { size: Some(*size), clear_set_id, ..set }).await
            }
            Op::Write(path, len) => self.write(path, *len).await,
            Op::Read(path) => self.read(path).await,
        }
    }
}

/// The parts of a path, the next one last.
fn parts(path: &str) -> Vec<String> {
    path.split('/').filter(|part| !part.is_empty()).rev().map(str::to_owned).collect()
}
