//! File contents, and the handles that read and write them.

use std::collections::BTreeMap;

use base::{Access, FsError, Ino, attr::without_set_id, limits::FILE_BYTES_MAX};
use bytes::Bytes;
use wire::FileRef;

use super::{Body, Open, State, who::Who};
use crate::Handle;

/// The bytes of a file, in pages; a page that is missing is zeros.
///
/// Invariant: bytes of a page beyond the end of the file are zeros.
pub(super) struct Contents {
    len: u64,
    page_bytes: u32,
    pages: BTreeMap<u64, Vec<u8>>,
}

/// A piece of one page: its number, and from where to where in it.
struct Piece {
    page: u64,
    from: usize,
    to: usize,
}

impl Contents {
    pub(super) fn new(page_bytes: u32) -> Contents {
        Contents { len: 0, page_bytes, pages: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes in pages.
    pub(super) fn stored(&self) -> u64 {
        self.pages.len() as u64 * u64::from(self.page_bytes)
    }

    pub(super) fn read(&self, offset: u64, len: u32) -> Bytes {
        let end = self.len.min(offset.saturating_add(u64::from(len)));
        let mut out = Vec::new();
        for piece in self.pieces(offset, end) {
            match self.pages.get(&piece.page) {
                Some(page) => out.extend_from_slice(&page[piece.from..piece.to]),
                None => out.resize(out.len() + (piece.to - piece.from), 0),
            }
        }
        out.into()
    }

    pub(super) fn write(&mut self, offset: u64, mut data: &[u8]) {
        let end = offset + data.len() as u64;
        for piece in self.pieces(offset, end) {
            let (now, later) = data.split_at(piece.to - piece.from);
            self.page(piece.page)[piece.from..piece.to].copy_from_slice(now);
            data = later;
        }
        self.len = self.len.max(end);
    }

    /// Cuts, or grows with zeros.
    pub(super) fn truncate(&mut self, len: u64) {
        let page_bytes = u64::from(self.page_bytes);
        self.pages.retain(|page, _| page * page_bytes < len);
        let from = usize::try_from(len % page_bytes).expect("less than a page");
        if let Some(last) = self.pages.get_mut(&(len / page_bytes)) {
            last[from..].fill(0);
        }
        self.len = len;
    }

    /// Makes a range zeros, as far as there is a file. Pages of which nothing is left become holes.
    pub(super) fn zero(&mut self, from: u64, to: u64) {
        for piece in self.pieces(from, to.min(self.len)).collect::<Vec<_>>() {
            let Some(page) = self.pages.get_mut(&piece.page) else { continue };
            page[piece.from..piece.to].fill(0);
            if page.iter().all(|byte| *byte == 0) {
                self.pages.remove(&piece.page);
            }
        }
    }

    /// The first byte from `offset` on that is in a page.
    pub(super) fn next_data(&self, offset: u64) -> Option<u64> {
        let page_bytes = u64::from(self.page_bytes);
        let (page, _) = self.pages.range(offset / page_bytes..).next()?;
        Some(offset.max(page * page_bytes)).filter(|found| *found < self.len)
    }

    /// The first one that is not, at the latest the end.
    pub(super) fn next_hole(&self, offset: u64) -> u64 {
        let page_bytes = u64::from(self.page_bytes);
        let mut page = offset / page_bytes;
        while self.pages.contains_key(&page) {
            page += 1;
        }
        offset.max(page * page_bytes).min(self.len)
    }

    /// Whether the invariant holds.
    pub(super) fn is_zero_beyond_its_end(&self) -> bool {
        let page_bytes = u64::from(self.page_bytes);
        self.pages.iter().all(|(number, page)| {
            let kept = self.len.saturating_sub(number * page_bytes).min(page_bytes);
            let kept = usize::try_from(kept).expect("at most a page");
            page[kept..].iter().all(|byte| *byte == 0)
        })
    }

    fn page(&mut self, number: u64) -> &mut Vec<u8> {
        let page_bytes = usize::try_from(self.page_bytes).expect("u32 fits");
        self.pages.entry(number).or_insert_with(|| vec![0; page_bytes])
    }

    fn pieces(&self, offset: u64, end: u64) -> impl Iterator<Item = Piece> + use<> {
        let page_bytes = u64::from(self.page_bytes);
        let within = |bytes: u64| usize::try_from(bytes).expect("at most a page");
        (offset / page_bytes..end.div_ceil(page_bytes)).filter_map(move |page| {
            let start = page * page_bytes;
            let from = offset.max(start) - start;
            let to = end.min(start + page_bytes) - start;
            (from < to).then(|| Piece { page, from: within(from), to: within(to) })
        })
    }
}

impl State {
    pub(super) fn open(
        &mut self,
        who: Who<'_>,
        file: &FileRef,
        access: Option<Access>,
    ) -> Result<Handle, FsError> {
        let ino = self.file(who, file)?;
        match &self.inode(ino).body {
            Body::File(_) => {}
            Body::Directory(_) => return Err(FsError::IsDirectory),
            Body::Symlink(_) => return Err(FsError::Loop),
            Body::Special => return Err(FsError::NoSuchDevice),
        }
        if let Some(access) = access {
            self.may(who, ino, access)?;
        }
        // A trusted session's kernel knows what each of its handles may do.
        let all = Access::READ.and(Access::WRITE);
        let may = if who.trusted { all } else { access.unwrap_or(Access::NONE) };
        Ok(self.add_handle(who, ino, may))
    }

    /// A handle for everything, on a file that was just made.
    pub(super) fn open_new(&mut self, who: Who<'_>, ino: Ino) -> Handle {
        self.add_handle(who, ino, Access::READ.and(Access::WRITE))
    }

    /// Returns the access for which a user of the client has the file open, if any. The user may
    /// then read or truncate the file, whatever its mode is by now.
    pub(super) fn granted(&self, who: Who<'_>, ino: Ino) -> Option<Access> {
        self.grants(who, ino)?.get(&who.opener()).copied()
    }

    fn grants(&self, who: Who<'_>, ino: Ino) -> Option<&BTreeMap<u32, Access>> {
        let mut opens = self.handles.values();
        let open = opens.find(|open| open.ino == ino && open.client == who.client)?;
        Some(&open.granted)
    }

    fn add_handle(&mut self, who: Who<'_>, ino: Ino, may: Access) -> Handle {
        self.last_handle += 1;
        let handle = Handle(self.last_handle);
        self.inode_mut(ino).opens += 1;
        let (client, clears_set_id) = (who.client, !who.privileged());
        let mut granted = self.grants(who, ino).cloned().unwrap_or_default();
        let own = granted.entry(who.opener()).or_insert(Access::NONE);
        *own = own.and(may);
        let others = self.handles.values_mut();
        others
            .filter(|open| open.ino == ino && open.client == client)
            .for_each(|open| open.granted = granted.clone());
        self.handles.insert(handle, Open { ino, client, may, granted, clears_set_id });
        handle
    }

    pub(super) fn opened(&self, handle: Handle) -> Result<&Open, FsError> {
        self.handles.get(&handle).ok_or(FsError::BadHandle)
    }

    pub(super) fn read(&mut self, handle: Handle, offset: u64, len: u32) -> Result<Bytes, FsError> {
        let open = self.opened(handle)?;
        if !open.may.includes(Access::READ) {
            return Err(FsError::BadHandle);
        }
        let ino = open.ino;
        // POSIX: a read of no bytes does nothing else.
        if len > 0 {
            self.accessed(ino);
        }
        Ok(self.contents(ino).read(offset, len))
    }

    pub(super) fn write(
        &mut self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        clear_set_id: bool,
    ) -> Result<(), FsError> {
        let open = self.opened(handle)?;
        if !open.may.includes(Access::WRITE) {
            return Err(FsError::BadHandle);
        }
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(data.len() as u64).ok_or(FsError::FileTooBig)?;
        if end > FILE_BYTES_MAX {
            return Err(FsError::FileTooBig);
        }

        let (ino, clear) = (open.ino, clear_set_id || open.clears_set_id);
        let now = self.now();
        self.contents_mut(ino).write(offset, data);
        self.drop_capability(ino);
        let attr = &mut self.inode_mut(ino).attr;
        (attr.mtime, attr.ctime) = (now, now);
        if clear {
            attr.mode = without_set_id(attr.mode);
        }
        Ok(())
    }

    pub(super) fn release(&mut self, handle: Handle) -> Result<(), FsError> {
        self.unlock_released(handle)?;
        let open = self.handles.remove(&handle).ok_or(FsError::BadHandle)?;
        self.inode_mut(open.ino).opens -= 1;
        self.forget_unused(open.ino);
        Ok(())
    }

    /// The contents of what is known to be a file.
    pub(super) fn contents_mut(&mut self, ino: Ino) -> &mut Contents {
        match &mut self.inode_mut(ino).body {
            Body::File(contents) => contents,
            Body::Directory(_) | Body::Symlink(_) | Body::Special => unreachable!("checked before"),
        }
    }

    pub(super) fn contents(&self, ino: Ino) -> &Contents {
        match &self.inode(ino).body {
            Body::File(contents) => contents,
            Body::Directory(_) | Body::Symlink(_) | Body::Special => unreachable!("checked before"),
        }
    }
}
