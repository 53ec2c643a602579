//! Records of quotas: the usage charged to a directory, a user or a group, and its limits.

use base::{Account, Decode, DecodeError, DirId, Encode, Ino, Reader, codec};

use super::Record;

/// The account that an inode or a directory is charged to: an accounting root, by the inode number
/// of that directory, or the account of a user or a group, by a number that no inode has.
///
/// Persisted: nothing when there is none, so it stands last in its record, or before fields with
/// other tags; otherwise a tag and the number. A record without one has the bytes that it had
/// before there were quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct QuotaId(pub(crate) Ino);

/// The tag before the number.
const TAG: u8 = 1;

impl QuotaId {
    /// No accounting root: nothing is charged.
    pub(crate) const NONE: QuotaId = QuotaId(Ino(0));

    /// This id, unless it is [`QuotaId::NONE`].
    pub(crate) fn some(self) -> Option<QuotaId> {
        (self != QuotaId::NONE).then_some(self)
    }

    /// The account of this number.
    pub(crate) fn account(self) -> Account {
        Account::of(self.0)
    }

    /// Whether it is the account of a user or a group.
    pub(crate) fn is_owners(self) -> bool {
        !matches!(self.account(), Account::Directory(_))
    }
}

impl From<Account> for QuotaId {
    fn from(account: Account) -> QuotaId {
        QuotaId(account.number())
    }
}

/// All that one inode or directory is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Accounts {
    /// The accounting root, if any.
    pub(crate) quota: QuotaId,
    /// User and group; nobody for what is in the trash.
    pub(crate) owner: Option<(u32, u32)>,
}

impl Accounts {
    /// Just an accounting root.
    pub(crate) fn root(quota: QuotaId) -> Accounts {
        Accounts { quota, owner: None }
    }

    /// Both, without what they have in common.
    pub(crate) fn apart(self, other: Accounts) -> (Accounts, Accounts) {
        let quota = |of: Accounts| if self.quota == other.quota { QuotaId::NONE } else { of.quota };
        let owner = |of: Accounts| of.owner.filter(|_| self.owner != other.owner);
        let apart = |of| Accounts { quota: quota(of), owner: owner(of) };
        (apart(self), apart(other))
    }

    /// Each of them.
    pub(crate) fn ids(self) -> impl Iterator<Item = QuotaId> {
        let none = (QuotaId::NONE, QuotaId::NONE);
        let (user, group) = self
            .owner
            .map_or(none, |(uid, gid)| (Account::User(uid).into(), Account::Group(gid).into()));
        [self.quota, user, group].into_iter().filter(|id| *id != QuotaId::NONE)
    }
}

impl Encode for QuotaId {
    fn encode(&self, out: &mut Vec<u8>) {
        if *self != QuotaId::NONE {
            out.push(TAG);
            self.0.encode(out);
        }
    }
}

impl Decode for QuotaId {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if input.peek() != Some(TAG) {
            return Ok(QuotaId::NONE);
        }
        input.take(1)?;
        let id = QuotaId(Ino::decode(input)?);
        if id == QuotaId::NONE { Err(DecodeError::Invalid("quota")) } else { Ok(id) }
    }
}

codec! {
    /// The state of a quota in its life.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum QuotaState {
        /// The tree below the directory is being counted; nothing is refused yet.
        Counting = 1,
        /// The limits hold.
        Active = 2,
        /// The quota was removed; the tree below the directory is being released.
        Removing = 3,
        /// The directory, or the quota, is gone. Files that are still charged to it stay so until
        /// they go.
        Gone = 4,
    }
}

/// No limit, but all usage is counted.
pub(crate) const UNLIMITED: u64 = u64::MAX;

codec! {
    /// A directory that accounts for everything below it, or a user or a group, which have no
    /// directory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct QuotaRecord {
        pub state: QuotaState,
        pub dir: DirId,
        pub home: DirId,
        /// The next accounting root above, or 0.
        pub parent: Ino,
        /// Most bytes below the directory; [`UNLIMITED`] for no limit, `None` where nothing was
        /// set.
        pub bytes_max: Option<u64>,
        /// Most inodes below the directory, itself among them; likewise.
        pub entries_max: Option<u64>,
    }
}

impl Record for QuotaRecord {}

impl QuotaRecord {
    /// Whether the state and the limits are those of another record.
    pub(crate) fn allows_as(&self, other: &QuotaRecord) -> bool {
        self.state == other.state && self.limits() == other.limits()
    }

    /// Whether there is a limit.
    pub(crate) fn is_limited(&self) -> bool {
        let Usage { bytes, entries } = self.limits();
        bytes.min(entries) != i64::MAX
    }

    /// The most that may be used; `i64::MAX` where there is no limit.
    pub(crate) fn limits(&self) -> Usage {
        let limit =
            |max: Option<u64>| max.and_then(|max| i64::try_from(max).ok()).unwrap_or(i64::MAX);
        Usage { bytes: limit(self.bytes_max), entries: limit(self.entries_max) }
    }
}

codec! {
    /// Usage that is charged to one accounting root itself, not to those below it. A record holds
    /// the charges of one core since the beginning; their sum is the usage.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub(crate) struct Usage {
        pub bytes: i64,
        pub entries: i64,
    }
}

impl Record for Usage {}

impl Usage {
    /// Usage of `entries` entries with `bytes` bytes.
    pub(crate) fn of(entries: i64, bytes: u64) -> Usage {
        // A file has less than 2^63 bytes.
        Usage { entries, bytes: i64::try_from(bytes).unwrap_or(i64::MAX) }
    }

    /// The sum of both.
    pub(crate) fn plus(self, other: Usage) -> Usage {
        Usage {
            bytes: self.bytes.saturating_add(other.bytes),
            entries: self.entries.saturating_add(other.entries),
        }
    }

    /// The lesser of each number.
    pub(crate) fn min(self, other: Usage) -> Usage {
        Usage { bytes: self.bytes.min(other.bytes), entries: self.entries.min(other.entries) }
    }

    /// The greater of each number.
    pub(crate) fn max(self, other: Usage) -> Usage {
        Usage { bytes: self.bytes.max(other.bytes), entries: self.entries.max(other.entries) }
    }

    /// The negative of both numbers.
    pub(crate) fn minus(self) -> Usage {
        Usage { bytes: self.bytes.saturating_neg(), entries: self.entries.saturating_neg() }
    }
}
