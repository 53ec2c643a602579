//! `/lost+found`: the place for things that exist and cannot be reached any more. Only root may use
//! it. Each thing is named by its inode number, in decimal as `ls -i` shows it.

use base::{EntryName, FileKind, FsError, Ino};

use super::{files, sound};
use crate::{
    error::{Fault, Result},
    lock,
    record::{
        Content, Contents, EntryRecord, InTrash, InlineMax, Inode, QuotaId, Reclaim, Slot, Times,
        Xattrs, key, key::Part,
    },
    txn::{Dir, Located, Place, Txn, birthplace},
};
use base::{DirId, attr::MODE_BITS};

const NAME: &[u8] = b"lost+found";
/// Number of things with the same number that can get a name.
const SAME_NUMBER_MAX: u32 = 1000;

/// The directory `/lost+found`; it is made when needed.
pub(super) fn and_found(txn: &mut Txn<'_>) -> Result<Dir> {
    txn.lock(lock::dir_lock(DirId::ROOT))?;
    let root: Content =
        sound(txn, &txn.content_key(DirId::ROOT, DirId::ROOT))?.ok_or(FsError::Io)?;
    if root.home != DirId::ROOT {
        return Err(FsError::Io.into());
    }
    let root = Dir::master(DirId::ROOT, root);
    let name = EntryName::new(NAME).expect("it is a name");
    match txn.entry(&root, &name)? {
        Some(EntryRecord::Dir(access)) if txn.shared.cluster.is_none() => txn.child_locked(&access),
        // A record that does not fit must be repaired first; waiting would not help.
        Some(EntryRecord::Dir(access)) => {
            let content = sound(txn, &txn.content_key(access.home, access.id))?;
            let content = content.filter(|content: &Content| content.ino == access.ino);
            Ok(Dir::master(access.id, content.ok_or(FsError::Io)?))
        }
        // Something else has that name.
        Some(EntryRecord::Node(_) | EntryRecord::Link(_)) => Err(FsError::Exists.into()),
        None => {
            let dir = txn.dir_ref(root.id, root.content.ino, root.content.home);
            let made = crate::ops::mkdir::run(txn, &wire::Mkdir { dir, name, mode: 0o700 })?;
            txn.master_locked(&made.dir.ok_or(FsError::Io)?)
        }
    }
}

/// Name of something in `/lost+found`.
pub(super) fn name_of(ino: Ino) -> EntryName {
    EntryName::new(ino.0.to_string().as_bytes()).expect("a number is a name")
}

/// A name that is free in a locked directory, and the partition that has it.
fn free_name(txn: &Txn<'_>, dir: Dir, ino: Ino) -> Result<(Dir, EntryName)> {
    let mut name = name_of(ino);
    let whole = txn.dir_ref(dir.id, dir.content.ino, dir.content.home);
    for again in 1..SAME_NUMBER_MAX {
        let share = if dir.is_divided() { txn.owner(&whole, &name)? } else { dir.clone() };
        let key = txn.entry_key(&share, &name, Part::Main);
        if txn.get_bytes(&key)?.is_none() {
            return Ok((share, name));
        }
        name = EntryName::new(format!("{}.{again}", ino.0).as_bytes()).expect("it is a name");
    }
    Err(FsError::Exists.into())
}

/// Puts a directory that nothing leads to into `/lost+found`. The caller stores its record.
pub(crate) fn directory(txn: &mut Txn<'_>, dir: &mut Dir) -> Result<()> {
    let above = and_found(txn)?;
    if above.id == dir.id {
        return Err(FsError::Io.into());
    }
    let (mut above, name) = free_name(txn, above, dir.content.ino)?;
    dir.content.listing.0.listed = true;
    dir.content.parent = above.id;
    dir.content.parent_ino = above.content.ino;
    dir.content.parent_home = above.content.home;
    dir.content.name = Some(name.clone());
    birthplace::note_birthplace(txn, dir)?;
    txn.stays(above.id);
    txn.put_subdir(&mut above, &name, dir);
    Ok(())
}

/// Puts an inode that was in an entry into `/lost+found`.
pub(super) fn file(txn: &mut Txn<'_>, inode: Inode) -> Result<()> {
    let above = and_found(txn)?;
    let (mut above, name) = free_name(txn, above, inode.ino)?;
    txn.lock(lock::ino_lock(inode.ino))?;
    if txn.shared.cluster.is_some()
        && let Some(Slot::Inode(_)) = sound(txn, &key::inode(inode.ino, Part::Main))?
    {
        return Err(Fault::Refused("there is another inode of that number".into()));
    }
    let mut located = Located { place: Place::Slot, inode };
    let inode = &mut located.inode;
    inode.nlink = 1;
    txn.change_freely(inode, |inode| inode.in_trash = InTrash(false));
    inode.mode &= MODE_BITS;
    if inode.xattrs.is_spilled() {
        inode.xattrs =
            Xattrs::Embedded(crate::record::XattrSet { list: inode.xattrs.here().to_vec() });
    }
    txn.count_freely_for(inode, above.content.quota);
    if txn.shared.cluster.is_none() {
        let place = Place::under(txn, &above, &name);
        txn.settle_inode(&mut located, place, None);
    } else {
        // On a cluster the inode is in its slot, wherever its name is.
        txn.put_entry(&above, &name, &EntryRecord::Link(located.inode.ino));
        located.inode.moved = false;
        txn.put_inode(&located);
    }
    above.content.entries += 1;
    txn.touch(&mut above);
    txn.put_dir(&above);
    Ok(())
}

/// Gives an inode in its slot, which has no name any more, a name in `/lost+found`.
pub(super) fn linked(txn: &mut Txn<'_>, mut inode: Inode) -> Result<bool> {
    let above = and_found(txn)?;
    let (mut above, name) = free_name(txn, above, inode.ino)?;
    txn.put_entry(&above, &name, &EntryRecord::Link(inode.ino));
    inode.nlink = 1;
    txn.change_freely(&mut inode, |inode| inode.in_trash = InTrash(false));
    txn.put_inode(&Located { place: Place::Slot, inode });
    above.content.entries += 1;
    txn.touch(&mut above);
    txn.put_dir(&above);
    Ok(true)
}

/// Makes a file of chunks without an inode. If their number is `taken` by something else, they get
/// another.
pub(super) fn stray(txn: &mut Txn<'_>, ino: Ino, taken: bool) -> Result<bool> {
    txn.lock(lock::ino_lock(ino))?;
    // Race: the chunks may just be in removal, or have an inode by now.
    let has_inode = matches!(sound(txn, &key::inode(ino, Part::Main))?, Some(Slot::Inode(_)));
    let leaves = sound::<Reclaim>(txn, &key::reclaim(ino))?.is_some();
    if !taken && (has_inode || leaves) {
        return Ok(false);
    }
    let measured = files::measure(txn, ino)?;
    if measured.end == 0 {
        return empty(txn, ino);
    }
    let chunks = if taken { txn.scan_prefix(&key::chunks(ino), usize::MAX)? } else { Vec::new() };
    let number = if taken { txn.new_ino(ino.shard(), DirId::ROOT)? } else { ino };
    for (key, value) in chunks {
        if let Some((_, chunk)) = key::parse_chunk(&key) {
            txn.put_stored(key::chunk(number, chunk), &value);
        }
        txn.delete(key);
    }
    let inode = Inode {
        ino: number,
        kind: FileKind::File,
        mode: 0o600,
        uid: 0,
        gid: 0,
        nlink: 1,
        size: measured.end,
        allocated: measured.allocated,
        times: Times::born(txn.now),
        moved: true,
        xattrs: Xattrs::NONE,
        contents: Contents::Blocks,
        quota: QuotaId::NONE,
        inline_max: InlineMax::NONE,
        in_trash: InTrash(false),
    };
    txn.charge_freely(inode.accounts(), inode.usage());
    file(txn, inode)?;
    Ok(true)
}

/// Removes chunks with nothing in them, which are not worth a file.
fn empty(txn: &mut Txn<'_>, ino: Ino) -> Result<bool> {
    super::is_here(txn, &key::chunks(ino))?;
    let chunks = txn.scan_prefix(&key::chunks(ino), usize::MAX)?;
    let any = !chunks.is_empty();
    for (key, _) in chunks {
        txn.delete(key);
    }
    Ok(any)
}
