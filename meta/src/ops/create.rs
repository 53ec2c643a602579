//! `create`: make a file or a special file, and open it if that is asked.
//!
//! The inode is embedded in its entry, and born on the shard of its directory: one shard, one
//! batch.
//!
//! Cost: two locked reads (one of them, for the name, mostly answered by the bloom filter) and one
//! batch of two puts and the stored answer.
//! POSIX: open(2) with `O_CREAT`, mknod(2). EEXIST when the name is taken and `exclusive` was
//! asked.

use base::{
    Access, AclKind, FileKind, FsError,
    acl::without_umask,
    attr::{MODE_BITS, MODE_GROUP_EXECUTE, MODE_SETGID},
};
use bytes::Bytes;
use wire::{Create, Created};

use super::open;
use crate::{
    error::Result,
    record::{Accounts, Contents, InTrash, InlineMax, Inode, Location, Times, Usage, Xattrs},
    txn::{Dir, Txn, show_inode},
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Create) -> Result<Created> {
    let mut dir = txn.dir_for_locked(&req.dir, &req.name)?;
    if let Some(found) = txn.entry(&dir, &req.name)? {
        if req.exclusive {
            txn.dir_permits(&dir, Access::EXECUTE)?;
            return Err(FsError::Exists.into());
        }
        txn.dir_permits(&dir, Access::EXECUTE)?;
        return Ok(Created {
            entry: txn.settled(|txn| txn.show(&found))?,
            existed: true,
            opened: None,
        });
    }
    txn.dir_permits(&dir, Access::CHANGE)?;
    let contents = match req.kind {
        FileKind::File => Contents::Inline(Bytes::new()),
        FileKind::Fifo | FileKind::Socket => Contents::Device(0),
        FileKind::CharDevice | FileKind::BlockDevice => {
            if txn.checks() && !txn.caller.cred.is_root() {
                return Err(FsError::NotPermitted.into());
            }
            Contents::Device(req.rdev)
        }
        FileKind::Directory | FileKind::Symlink => return Err(FsError::Invalid.into()),
    };
    let inode = new_inode(txn, &dir, req.kind, req.mode, contents)?;

    // Race: `dir` is locked until we commit, so no rmdir can leave the name without a directory,
    // and no other create can take it.
    txn.put_new(&dir, &req.name, &inode);
    dir.content.entries += 1;
    txn.touch(&mut dir);
    txn.put_dir(&dir);
    txn.note_dir(&dir);
    let opened = match req.open {
        // The creator may use the file as it was opened, whatever mode it got.
        Some(number) => {
            let (name, access) = (Location::of(&dir, &req.name), Access::READ.and(Access::WRITE));
            Some(open::opened(txn, &inode, Some(name), number, access)?)
        }
        None => None,
    };
    Ok(Created { entry: show_inode(&inode), existed: false, opened })
}

/// A new inode in `dir`, with the owner and group that POSIX gives it, charged to the directory's
/// quota.
pub(crate) fn new_inode(
    txn: &mut Txn<'_>,
    dir: &Dir,
    kind: FileKind,
    mode: u32,
    contents: Contents,
) -> Result<Inode> {
    let cred = txn.caller.cred;
    let inherits = dir.content.mode & MODE_SETGID != 0;
    let (uid, gid) = dir.content.owner_of_new(cred);
    // Like Linux: a caller outside the group may not make an executable that acts as the group.
    let acts = mode & (MODE_SETGID | MODE_GROUP_EXECUTE) == MODE_SETGID | MODE_GROUP_EXECUTE;
    let (mut mode, xattrs) = inherited(dir, kind, mode)?;
    if acts && inherits && txn.checks() && !cred.is_root() && !cred.in_group(gid) {
        mode &= !MODE_SETGID;
    }
    let accounts = Accounts { quota: dir.content.quota, owner: Some((uid, gid)) };
    txn.charge(accounts, Usage::of(1, 0))?;
    let shard = txn.shard_of_share(dir);
    let inline_max = match kind {
        FileKind::File => dir.content.policy.inline_max,
        FileKind::Directory
        | FileKind::Symlink
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => InlineMax::NONE,
    };
    Ok(Inode {
        ino: txn.new_ino(shard, dir.id)?,
        kind,
        mode,
        uid,
        gid,
        nlink: 1,
        size: 0,
        allocated: 0,
        times: Times::born(txn.now),
        moved: false,
        xattrs,
        contents,
        quota: dir.content.quota,
        inline_max,
        in_trash: InTrash(false),
    })
}

/// The mode and the ACLs of something that is made in `dir` with `mode`, see
/// [`with_umask`](base::acl::with_umask).
pub(crate) fn inherited(dir: &Dir, kind: FileKind, mode: u32) -> Result<(u32, Xattrs)> {
    if kind == FileKind::Symlink {
        return Ok((mode & MODE_BITS, Xattrs::NONE));
    }
    Ok(match dir.content.xattrs.acl(AclKind::Default)? {
        None => (without_umask(mode), Xattrs::NONE),
        Some(default) => {
            let new = default.inherit(mode & MODE_BITS, kind);
            (new.mode, Xattrs::of_acls(new.access.as_ref(), new.default.as_ref()))
        }
    })
}
