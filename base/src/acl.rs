//! POSIX ACLs: their binary form, what they permit, and how they and the mode follow each other.
//!
//! The server checks with them for native clients, the model does as the server, and a mount leaves
//! it to its kernel, which asks for the same bytes. An ACL is the value of an extended attribute
//! ([`ACCESS`], [`DEFAULT`]) in Linux' form: the version 2 (u32), then for each entry its tag
//! (u16), permissions (u16) and id (u32), all little-endian.
//!
//! Invariant: an [`Acl`] has exactly one entry each for the owner, the group and others, a mask if
//! it names a user or group, and its entries in the order of their tags, as Linux wants it.
//!
//! POSIX: draft 1003.1e; Linux: acl(5), `fs/posix_acl.c`.

use bytes::{BufMut as _, Bytes};

use crate::{
    Access, Attr, Cred, FileKind, FsError,
    access::permits,
    attr::{MODE_ACL, MODE_BITS},
    limits::ACL_BYTES_MAX,
};

/// Extended attribute of the access ACL, which decides who may use an inode.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The extended attribute of the ACL that a directory gives to what is made in it.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// Id of entries that name no particular user or group.
const NOBODY: u32 = u32::MAX;

/// Kind of an ACL: each kind is one extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclKind {
    /// The access ACL decides who may use an inode.
    Access,
    /// The default ACL of a directory is given to every inode made in it.
    Default,
}

impl AclKind {
    /// The ACL that an extended attribute of this name is, if it is one.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<AclKind> {
        match name {
            ACCESS => Some(AclKind::Access),
            DEFAULT => Some(AclKind::Default),
            _ => None,
        }
    }

    /// The name of the extended attribute.
    #[must_use]
    pub fn name(self) -> &'static [u8] {
        match self {
            AclKind::Access => ACCESS,
            AclKind::Default => DEFAULT,
        }
    }
}

/// Party that an ACL entry is for, in the order in which entries stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    Group = 0x04,
    NamedGroup = 0x08,
    Mask = 0x10,
    Other = 0x20,
}

impl Tag {
    fn of(tag: u16) -> Option<Tag> {
        let all = [Tag::Owner, Tag::User, Tag::Group, Tag::NamedGroup, Tag::Mask, Tag::Other];
        all.into_iter().find(|known| *known as u16 == tag)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AclEntry {
    tag: Tag,
    /// The low three bits.
    perm: u32,
    id: u32,
}

/// Party that an ACL decides about: all but the owner, about whom the mode decides, and the mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Party {
    /// A named user.
    User(u32),
    /// A named group.
    Group(u32),
    /// The group of the inode.
    OwningGroup,
    /// Everybody else.
    Others,
}

/// A valid ACL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

/// Mode and ACLs that a new inode gets from its directory's default ACL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// Mode of the new inode.
    pub mode: u32,
    /// Access ACL of the new inode; `None` where the mode says it all.
    pub access: Option<Acl>,
    /// A directory's default ACL.
    pub default: Option<Acl>,
}

impl Acl {
    /// The ACL of these bytes; `None` for one without entries, which stands for no ACL.
    ///
    /// # Errors
    /// `Invalid` for bytes that are no valid ACL, `NotSupported` for another version, `TooBig` for
    /// more than [`ACL_BYTES_MAX`] bytes.
    pub fn parse(bytes: &[u8]) -> Result<Option<Acl>, FsError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (version, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(FsError::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(FsError::NotSupported);
        }
        let (entries, left) = rest.as_chunks::<ENTRY_BYTES>();
        if !left.is_empty() {
            return Err(FsError::Invalid);
        }
        if bytes.len() > ACL_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let entries = entries.iter().map(|entry| {
            let [tag_low, tag_high, perm_low, perm_high, id @ ..] = *entry;
            let tag = Tag::of(u16::from_le_bytes([tag_low, tag_high])).ok_or(FsError::Invalid)?;
            let perm = u32::from(u16::from_le_bytes([perm_low, perm_high]));
            let named = matches!(tag, Tag::User | Tag::NamedGroup);
            let id = if named { u32::from_le_bytes(id) } else { NOBODY };
            if perm & !7 != 0 || (named && id == NOBODY) {
                return Err(FsError::Invalid);
            }
            Ok(AclEntry { tag, perm, id })
        });
        let acl = Acl { entries: entries.collect::<Result<_, _>>()? };
        if acl.is_valid() { Ok(Some(acl)) } else { Err(FsError::Invalid) }
    }

    /// The bytes that [`Acl::parse`] reads.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.entries.len() * ENTRY_BYTES);
        out.put_u32_le(VERSION);
        for entry in &self.entries {
            out.put_u16_le(entry.tag as u16);
            out.put_u16_le(u16::try_from(entry.perm).expect("three bits"));
            out.put_u32_le(entry.id);
        }
        out.into()
    }

    /// Replaces the users and the groups that entries name. Two entries may name the same one
    /// then.
    ///
    /// # Errors
    /// The first error of `user` or `group`; entries before it are replaced by then.
    pub fn map_ids(
        &mut self,
        user: impl Fn(u32) -> Result<u32, FsError>,
        group: impl Fn(u32) -> Result<u32, FsError>,
    ) -> Result<(), FsError> {
        for entry in &mut self.entries {
            match entry.tag {
                Tag::User => entry.id = user(entry.id)?,
                Tag::NamedGroup => entry.id = group(entry.id)?,
                Tag::Owner | Tag::Group | Tag::Mask | Tag::Other => {}
            }
        }
        Ok(())
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let names_somebody = count(Tag::User) + count(Tag::NamedGroup) > 0;
        self.entries.is_sorted_by_key(|entry| entry.tag)
            && [Tag::Owner, Tag::Group, Tag::Other].into_iter().all(|tag| count(tag) == 1)
            && count(Tag::Mask) <= 1
            && (count(Tag::Mask) == 1 || !names_somebody)
    }

    fn perm(&self, tag: Tag) -> Option<u32> {
        self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    fn perm_mut(&mut self, tag: Tag) -> Option<&mut u32> {
        self.entries.iter_mut().find(|entry| entry.tag == tag).map(|entry| &mut entry.perm)
    }

    /// Whether the ACL says more than the nine bits of a mode can.
    #[must_use]
    pub fn says_more_than_a_mode(&self) -> bool {
        self.entries.len() > 3
    }

    /// `mode` with the nine bits that this ACL stands for; the mask, if there is one, is the
    /// group's part.
    #[must_use]
    pub fn in_mode(&self, mode: u32) -> u32 {
        let perm = |tag| self.perm(tag).expect("a valid ACL has it");
        let group = self.perm(Tag::Mask).unwrap_or_else(|| perm(Tag::Group));
        mode & !0o777 | perm(Tag::Owner) << 6 | group << 3 | perm(Tag::Other)
    }

    /// Changes the entries to match a new mode. The group's bits go to the mask, if there is one.
    pub fn follow_mode(&mut self, mode: u32) {
        let mask = if self.perm(Tag::Mask).is_some() { Tag::Mask } else { Tag::Group };
        for (tag, shift) in [(Tag::Owner, 6), (mask, 3), (Tag::Other, 0)] {
            *self.perm_mut(tag).expect("a valid ACL has it") = mode >> shift & 7;
        }
    }

    /// Returns the mode and ACLs of an inode that is made with `mode` below this default ACL. The
    /// umask has no part in it.
    #[must_use]
    pub fn inherit(&self, mode: u32, kind: FileKind) -> Inherited {
        let mut access = self.clone();
        let mask = if self.perm(Tag::Mask).is_some() { Tag::Mask } else { Tag::Group };
        for (tag, shift) in [(Tag::Owner, 6), (mask, 3), (Tag::Other, 0)] {
            *access.perm_mut(tag).expect("a valid ACL has it") &= mode >> shift & 7;
        }
        let mode = access.in_mode(mode);
        Inherited {
            mode,
            access: Some(access).filter(Acl::says_more_than_a_mode),
            default: (kind == FileKind::Directory).then(|| self.clone()),
        }
    }

    /// The parties in their order, and whether each may search a directory: its x bit, after the
    /// mask. Only where [`acl_decides`].
    pub(crate) fn searchers(&self) -> impl Iterator<Item = (Party, bool)> {
        let mask = self.perm(Tag::Mask).unwrap_or(7);
        let searches = |perm: u32| perm & Access::EXECUTE.bits() != 0;
        self.entries.iter().filter_map(move |entry| match entry.tag {
            Tag::User => Some((Party::User(entry.id), searches(entry.perm & mask))),
            Tag::NamedGroup => Some((Party::Group(entry.id), searches(entry.perm & mask))),
            Tag::Group => Some((Party::OwningGroup, searches(entry.perm & mask))),
            Tag::Other => Some((Party::Others, searches(entry.perm))),
            Tag::Owner | Tag::Mask => None,
        })
    }

    /// Whether a user other than the owner and the superuser has `want`.
    fn grants(&self, attr: &Attr, cred: &Cred, want: Access) -> bool {
        let has = |perm: u32| perm & want.bits() == want.bits();
        let masked = |perm: u32| has(perm & self.perm(Tag::Mask).unwrap_or(7));
        let named = self.entries.iter().find(|e| e.tag == Tag::User && e.id == cred.uid);
        if let Some(named) = named {
            return masked(named.perm);
        }
        let groups = self.entries.iter().filter(|entry| match entry.tag {
            Tag::Group => cred.in_group(attr.gid),
            Tag::NamedGroup => cred.in_group(entry.id),
            Tag::Owner | Tag::User | Tag::Mask | Tag::Other => false,
        });
        let mut member = false;
        for group in groups {
            member = true;
            if has(group.perm) {
                return masked(group.perm);
            }
        }
        !member && self.perm(Tag::Other).is_some_and(has)
    }
}

/// Checks access like [`permits`], for an inode that has this ACL.
///
/// # Errors
/// `Denied` when not.
///
/// Linux: the owner has what the mode says. Where the mask is empty the ACL is not looked at, and
/// the mode decides, even for those whom the ACL names.
pub fn permits_with(
    attr: &Attr,
    acl: Option<&Acl>,
    cred: &Cred,
    want: Access,
) -> Result<(), FsError> {
    match acl {
        Some(acl) if !cred.is_root() && cred.uid != attr.uid && acl_decides(attr) => {
            if acl.grants(attr, cred, want) { Ok(()) } else { Err(FsError::Denied) }
        }
        Some(_) | None => permits(attr, cred, want),
    }
}

/// Whether the ACL of an inode, if there is one, decides about all but its owner: the mode has bits
/// for the group, which are the mask of the ACL.
pub(crate) fn acl_decides(attr: &Attr) -> bool {
    attr.mode & 0o070 != 0
}

/// Whether the attributes alone say what `cred` may do: for the owner and the superuser they do,
/// and where there is no ACL.
#[must_use]
pub fn mode_decides(attr: &Attr, cred: &Cred) -> bool {
    attr.mode & MODE_ACL == 0 || cred.is_root() || cred.uid == attr.uid
}

/// Bits above a mode in which a request to make an inode carries the umask of its caller.
const UMASK_SHIFT: u32 = 16;

/// The mode of a request to make something: what was asked for, and a umask that counts where the
/// directory has no default ACL.
#[must_use]
pub fn with_umask(mode: u32, umask: u32) -> u32 {
    mode & MODE_BITS | (umask & 0o777) << UMASK_SHIFT
}

/// The mode of something made with [`with_umask`] where there is no default ACL.
#[must_use]
pub fn without_umask(mode: u32) -> u32 {
    mode & MODE_BITS & !(mode >> UMASK_SHIFT & 0o777)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ino;

    #[test]
    fn a_mode_that_tells_of_attributes_takes_no_permission_when_it_is_asked_for() {
        assert_eq!(without_umask(0o666 | crate::attr::MODE_XATTRS | MODE_ACL), 0o666);
    }

    /// An ACL in the words of setfacl: `u:` and `g:` with an id, `m`, `o`.
    fn acl(text: &str) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (who, perm) = word.rsplit_once(':').unwrap();
            let (tag, id) = match who.split_once(':') {
                Some(("u", id)) => (2u16, id.parse().unwrap()),
                Some(("g", id)) => (8, id.parse().unwrap()),
                _ => (
                    match who {
                        "u" => 1,
                        "g" => 4,
                        "m" => 16,
                        _ => 32,
                    },
                    NOBODY,
                ),
            };
            out.extend(tag.to_le_bytes());
            out.extend(perm.parse::<u16>().unwrap().to_le_bytes());
            out.extend(u32::to_le_bytes(id));
        }
        out
    }

    fn parsed(text: &str) -> Acl {
        Acl::parse(&acl(text)).unwrap().unwrap()
    }

    fn attr(mode: u32) -> Attr {
        Attr { mode: mode | MODE_ACL, uid: 10, gid: 20, ..Attr::blank(Ino(2), FileKind::File) }
    }

    #[test]
    fn valid_acls_are_read_and_written_as_they_were() {
        for text in ["u:7,g:5,o:0", "u:6,g:4,m:4,o:0", "u:7,u:5:6,u:6:0,g:5,g:9:7,m:7,o:1"] {
            assert_eq!(parsed(text).to_bytes(), acl(text), "{text}");
        }
        assert_eq!(Acl::parse(b""), Ok(None));
        assert_eq!(Acl::parse(&acl("")), Ok(None));
    }

    #[test]
    fn what_linux_refuses_is_refused() {
        for text in [
            "u:7,g:5",
            "u:7,u:7,g:5,o:0",
            "g:5,u:7,o:0",
            "u:7,u:5:6,g:5,o:0",
            "u:7,g:5,o:0,m:7",
            "u:7,g:8,o:0",
            "u:7,u:4294967295:6,g:5,m:7,o:0",
        ] {
            assert_eq!(Acl::parse(&acl(text)), Err(FsError::Invalid), "{text}");
        }
        let good = acl("u:7,g:5,o:0");
        assert_eq!(Acl::parse(&good[..good.len() - 1]), Err(FsError::Invalid));
        assert_eq!(Acl::parse(&good[..3]), Err(FsError::Invalid));
        let mut unknown = good.clone();
        unknown[4] = 3;
        assert_eq!(Acl::parse(&unknown), Err(FsError::Invalid));
        let mut version = good;
        version[0] = 1;
        assert_eq!(Acl::parse(&version), Err(FsError::NotSupported));
    }

    #[test]
    fn an_acl_has_up_to_511_entries() {
        let of = |entries: u32| {
            let named: String = (4..entries).map(|id| format!("u:{id}:7,")).collect();
            Acl::parse(&acl(&format!("u:7,{named}g:7,m:7,o:0")))
        };
        assert_eq!(of(511).unwrap().unwrap().entries.len(), 511);
        assert_eq!(of(512), Err(FsError::TooBig));
    }

    #[test]
    fn the_first_entry_that_fits_decides_and_the_mask_limits_it() {
        let acl = parsed("u:6,u:5:7,u:6:2,g:4,g:9:6,g:30:1,m:5,o:7");
        let attr = attr(acl.in_mode(0));
        let may = |uid, groups: &[u32], want| {
            let cred = Cred { uid, gid: groups[0], groups: groups[1..].to_vec() };
            permits_with(&attr, Some(&acl), &cred, want).is_ok()
        };
        let (read, write, execute) = (Access::READ, Access::WRITE, Access::EXECUTE);
        assert!(may(10, &[1], read.and(write)), "the owner is not masked");
        assert!(may(5, &[1], read.and(execute)) && !may(5, &[1], write), "masked");
        assert!(!may(6, &[20], write), "a named user has nothing from groups, and is masked");
        assert!(may(7, &[20], read) && !may(7, &[20], write));
        assert!(may(7, &[9], read) && !may(7, &[9], write));
        assert!(may(7, &[20, 30], execute), "any of the groups will do");
        assert!(!may(7, &[20, 30], read.and(execute)), "but one alone must");
        assert!(may(7, &[1], Access::CHANGE), "others are not masked");
        assert!(may(0, &[0], Access::CHANGE), "the superuser");
    }

    #[test]
    fn an_empty_mask_leaves_it_to_the_mode_as_on_linux() {
        let acl = parsed("u:6,u:5:7,g:7,m:0,o:4");
        let attr = attr(acl.in_mode(0));
        let cred = Cred { uid: 5, gid: 1, groups: Vec::new() };
        assert_eq!(permits_with(&attr, Some(&acl), &cred, Access::READ), Ok(()));
        let member = Cred { uid: 7, gid: 20, groups: Vec::new() };
        let denied = permits_with(&attr, Some(&acl), &member, Access::READ);
        assert_eq!(denied, Err(FsError::Denied));
    }

    #[test]
    fn a_mode_changes_an_acl_and_an_acl_a_mode() {
        let mut masked = parsed("u:7,u:5:7,g:5,m:6,o:1");
        assert_eq!(masked.in_mode(0o4000), 0o4761);
        masked.follow_mode(0o640);
        assert_eq!(masked, parsed("u:6,u:5:7,g:5,m:4,o:0"));
        let mut plain = parsed("u:7,g:5,o:1");
        assert_eq!(plain.in_mode(0), 0o751);
        plain.follow_mode(0o620);
        assert_eq!(plain, parsed("u:6,g:2,o:0"));
    }

    #[test]
    fn a_default_acl_takes_the_place_of_the_umask() {
        let default = parsed("u:7,u:5:7,g:5,m:7,o:5");
        let file = default.inherit(0o640, FileKind::File);
        assert_eq!(file.mode, 0o640);
        assert_eq!(file.access, Some(parsed("u:6,u:5:7,g:5,m:4,o:0")));
        assert_eq!(file.default, None);
        let dir = default.inherit(0o1777, FileKind::Directory);
        assert_eq!((dir.mode, dir.default), (0o1775, Some(default)));
        let plain = parsed("u:7,g:5,o:0").inherit(0o666, FileKind::File);
        assert_eq!((plain.mode, plain.access), (0o640, None));
    }

    #[test]
    fn the_umask_rides_above_the_mode() {
        let asked = with_umask(0o4777, 0o1027);
        assert_eq!((asked & MODE_BITS, without_umask(asked)), (0o4777, 0o4750));
        assert_eq!(without_umask(0o666), 0o666);
    }
}
