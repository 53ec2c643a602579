//! Settings: properties that can be changed after format, of the whole file system or of a
//! directory.
//!
//! A setting is set as an extended attribute `pando.NAME`, which is never listed, so that copies do
//! not carry it along; `info` prints it. Settings of the whole file system are the root
//! directory's. Only root with an administrator's token sets them.
//!
//! Cost: as to set an extended attribute.
//! POSIX: none. EPERM, EOPNOTSUPP for an unknown name, EINVAL for a value that is none or for
//! anything but a directory, EBUSY while another quota is being counted, ENOTEMPTY where only an
//! empty directory can be divided.

use base::{
    Account, DirId, FsError, Ino, Spread,
    limits::{INLINE_BYTES_MAX, SMALL_BYTES_MAX},
};
use wire::NodeRef;

use super::divide;
use crate::{
    error::Result,
    placing,
    quota::{Seen, Told, UNHEARD},
    record::{
        Accounts, InlineMax, Key, QuotaId, QuotaRecord, QuotaState, Settings, UNLIMITED, Usage, key,
    },
    session::Session,
    txn::{Dir, Node, Txn},
};

/// A hundred years, in days.
const TRASH_DAYS_MAX: u32 = 36_500;

/// Fewest entries at which a partition may split: below, it would be split and merged all the time.
const SPLIT_THRESHOLD_MIN: u32 = 8;

/// The prefix of a setting's name in an extended attribute's name.
const PREFIX: &[u8] = b"pando.";

/// Every setting. A new one has a line here, and its arms in [`set`] and [`of_directory`].
const SETTINGS: &[(&str, Setting)] = &[
    ("inherit", Setting::Inherit),
    ("inline_max", Setting::InlineMax),
    ("large_dir", Setting::LargeDir),
    ("locality", Setting::Locality),
    ("quota.bytes", Setting::QuotaBytes),
    ("quota.entries", Setting::QuotaEntries),
    ("split_threshold", Setting::SplitThreshold),
    ("spread", Setting::Spread),
    ("trash_days", Setting::TrashDays),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// Whether directories made in a directory inherit its settings.
    Inherit,
    /// Most bytes of contents that are kept with the metadata. Of the whole file system, or of a
    /// directory: there, of those that rest in the entry.
    InlineMax,
    /// Number of partitions into which a directory is divided.
    LargeDir,
    /// Where directories made in a directory get their places, in a file system with hybrid
    /// placement.
    Locality,
    /// Most bytes below a directory.
    QuotaBytes,
    /// Most inodes below a directory.
    QuotaEntries,
    /// Number of entries at which a partition splits.
    SplitThreshold,
    /// The way in which a directory is divided.
    Spread,
    /// Days for which removed files are kept. Of the whole file system.
    TrashDays,
}

impl Setting {
    /// Whether a file system of one server has this setting, or one of several.
    fn is_of(self, several: bool) -> bool {
        match self {
            Setting::InlineMax
            | Setting::Inherit
            | Setting::Locality
            | Setting::TrashDays
            | Setting::QuotaBytes
            | Setting::QuotaEntries => true,
            // A divided directory is divided among servers.
            Setting::LargeDir | Setting::SplitThreshold | Setting::Spread => several,
        }
    }
}

/// The name of the setting that an extended attribute stands for, if any.
pub(crate) fn name_of(xattr: &[u8]) -> Option<&[u8]> {
    xattr.strip_prefix(PREFIX)
}

/// Sets a setting; `None` removes it.
pub(crate) fn set(
    txn: &mut Txn<'_>,
    node: &NodeRef,
    name: &[u8],
    value: Option<&[u8]>,
) -> Result<()> {
    if !txn.caller.cred.is_root() || !txn.caller.session.is_some_and(Session::administers) {
        return Err(FsError::NotPermitted.into());
    }
    let owner = owners_quota(name);
    let known = SETTINGS.iter().find(|(known, _)| known.as_bytes() == name);
    let setting = owner.map(|(_, setting)| setting).or(known.map(|(_, setting)| *setting));
    let setting = setting.ok_or(FsError::NotSupported)?;
    let dir = match txn.node_locked(node)? {
        Node::Dir(dir) => dir,
        Node::File(_) => return Err(FsError::Invalid.into()),
    };
    if !setting.is_of(txn.shared.cluster.is_some()) {
        return Err(FsError::NotSupported.into());
    }
    if setting == Setting::Locality {
        return placing::set(txn, dir, value);
    }
    let value = match value {
        None => Value::Removed,
        Some(text) => Value::parse(text).ok_or(FsError::Invalid)?,
    };
    if let Some((account, _)) = owner {
        if dir.id != DirId::ROOT {
            return Err(FsError::Invalid.into());
        }
        return limit_owner(txn, account, setting, value.limit()?);
    }
    match setting {
        // Set above, as its values are words of its own.
        Setting::Locality => Err(FsError::Invalid.into()),
        Setting::Inherit => {
            let inherit = value.flag().ok_or(FsError::Invalid)?;
            divide::set(txn, dir, |policy| policy.inherit = inherit)
        }
        Setting::LargeDir => {
            let count = value.partitions().ok_or(FsError::Invalid)?;
            divide::set(txn, dir, |policy| policy.large_dir = count)
        }
        Setting::SplitThreshold => {
            let threshold = value.threshold().ok_or(FsError::Invalid)?;
            divide::set(txn, dir, |policy| policy.split_threshold = threshold)
        }
        Setting::Spread => {
            let spread = value.spread().ok_or(FsError::Invalid)?;
            divide::set(txn, dir, |policy| policy.spread = spread)
        }
        Setting::InlineMax => {
            let is_root = dir.id == DirId::ROOT;
            let most = if is_root { SMALL_BYTES_MAX } else { INLINE_BYTES_MAX };
            let number = value.inline_max(most).ok_or(FsError::Invalid)?;
            if is_root {
                let inline_bytes_max = number.unwrap_or(txn.shared.config.inline_bytes_max);
                return txn.set_settings(Settings { inline_bytes_max, ..txn.settings() });
            }
            divide::set(txn, dir, |policy| policy.inline_max = InlineMax(number))
        }
        Setting::QuotaBytes => {
            let max = value.limit()?;
            quota(txn, dir, |record| record.bytes_max = max)
        }
        Setting::QuotaEntries => {
            let max = value.limit()?;
            quota(txn, dir, |record| record.entries_max = max)
        }
        Setting::TrashDays => trash_days(txn, &dir, value),
    }
}

/// A setting's value as users write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    /// The setting was removed, as if it had never been set.
    Removed,
    None,
    Unlimited,
    Number(u64),
    Flag(bool),
    Spread(Spread),
}

impl Value {
    /// Reads a word, or a number that K, M, G or T (of 1024) may follow.
    fn parse(text: &[u8]) -> Option<Value> {
        let text = std::str::from_utf8(text).ok()?.trim();
        match text {
            "none" => return Some(Value::None),
            "unlimited" => return Some(Value::Unlimited),
            "yes" => return Some(Value::Flag(true)),
            "no" => return Some(Value::Flag(false)),
            "extendible" => return Some(Value::Spread(Spread::Extendible)),
            "subsets" => return Some(Value::Spread(Spread::Subsets)),
            _ => {}
        }
        let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
        let unit = units.iter().find(|(unit, _)| text.ends_with(*unit));
        let (digits, shift) =
            unit.map_or((text, 0), |(_, shift)| (&text[..text.len() - 1], *shift));
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse::<u64>().ok().filter(|_| plain)?.checked_mul(1 << shift)?;
        (number < UNLIMITED).then_some(Value::Number(number))
    }

    fn limit(self) -> Result<Option<u64>> {
        match self {
            Value::Removed | Value::None => Ok(None),
            Value::Unlimited => Ok(Some(UNLIMITED)),
            Value::Number(number) => Ok(Some(number)),
            Value::Flag(_) | Value::Spread(_) => Err(FsError::Invalid.into()),
        }
    }

    fn flag(self) -> Option<bool> {
        match self {
            Value::Removed => Some(false),
            Value::Flag(flag) => Some(flag),
            Value::None | Value::Unlimited | Value::Number(_) | Value::Spread(_) => None,
        }
    }

    fn partitions(self) -> Option<u16> {
        match self {
            Value::Removed | Value::None => Some(0),
            Value::Number(number) => u16::try_from(number).ok(),
            Value::Unlimited | Value::Flag(_) | Value::Spread(_) => None,
        }
    }

    fn threshold(self) -> Option<u32> {
        match self {
            Value::Removed | Value::None => Some(0),
            Value::Number(number) => {
                u32::try_from(number).ok().filter(|number| *number >= SPLIT_THRESHOLD_MIN)
            }
            Value::Unlimited => Some(u32::MAX),
            Value::Flag(_) | Value::Spread(_) => None,
        }
    }

    fn inline_max(self, most: u32) -> Option<Option<u32>> {
        match self {
            Value::Removed | Value::None => Some(None),
            Value::Number(number) => {
                u32::try_from(number).ok().filter(|number| *number <= most).map(Some)
            }
            Value::Unlimited | Value::Flag(_) | Value::Spread(_) => None,
        }
    }

    fn spread(self) -> Option<Option<Spread>> {
        match self {
            Value::Removed => Some(None),
            Value::None => Some(Some(Spread::None)),
            Value::Spread(spread) => Some(Some(spread)),
            Value::Unlimited | Value::Flag(_) | Value::Number(_) => None,
        }
    }
}

fn trash_days(txn: &mut Txn<'_>, dir: &Dir, value: Value) -> Result<()> {
    let days = match value {
        Value::Removed | Value::None => 0,
        Value::Number(days) => u32::try_from(days).map_err(|_| FsError::Invalid)?,
        Value::Unlimited | Value::Flag(_) | Value::Spread(_) => {
            return Err(FsError::Invalid.into());
        }
    };
    if dir.id != DirId::ROOT || days > TRASH_DAYS_MAX {
        return Err(FsError::Invalid.into());
    }
    crate::trash::set(txn, dir, days)
}

/// Changes a directory's limits. The first limit makes it an accounting root; without any it is
/// none. In a cluster the coordinator does it.
fn quota(txn: &mut Txn<'_>, dir: Dir, change: impl FnOnce(&mut QuotaRecord)) -> Result<()> {
    txn.is_coordinators()?;
    let several = txn.shared.cluster.is_some();
    let own = QuotaId(dir.content.ino);
    let old = txn.shared.quotas.root(own).filter(|_| several || dir.content.quota == own);
    let mut record = old.map_or_else(
        || QuotaRecord {
            state: QuotaState::Counting,
            dir: dir.id,
            home: dir.content.home,
            parent: if dir.content.quota == own { Ino(0) } else { dir.content.quota.0 },
            bytes_max: None,
            entries_max: None,
        },
        |seen| seen.record,
    );
    change(&mut record);
    let none = record.bytes_max.is_none() && record.entries_max.is_none();
    let parent = QuotaId(record.parent);
    match (old, none) {
        (None, true) => Ok(()),
        (Some(seen), _) if several && seen.record.state == QuotaState::Removing => {
            Err(FsError::Busy.into())
        }
        (Some(_), false) => {
            txn.put_quota(own, &record);
            Ok(())
        }
        (None, false) => begin(txn, dir, own, &record, (parent, own)),
        (Some(_), true) => {
            record.state = QuotaState::Removing;
            begin(txn, dir, own, &record, (own, parent))
        }
    }
}

/// The account and the limit that a setting of the root directory is about, such as
/// `quota.user.1000.bytes`. The superuser and group 0 have none.
fn owners_quota(name: &[u8]) -> Option<(Account, Setting)> {
    let name = std::str::from_utf8(name).ok()?.strip_prefix("quota.")?;
    let (of, rest) = name.split_once('.')?;
    let (id, what) = rest.split_once('.')?;
    let plain = id.bytes().all(|byte| byte.is_ascii_digit());
    let id = id.parse().ok().filter(|id| plain && *id != 0)?;
    let account = match of {
        "user" => Account::User(id),
        "group" => Account::Group(id),
        _ => return None,
    };
    match what {
        "bytes" => Some((account, Setting::QuotaBytes)),
        "entries" => Some((account, Setting::QuotaEntries)),
        _ => None,
    }
}

/// Limits a user or a group. In a cluster the coordinator does it. What is used already is known, so
/// the limit holds at once.
fn limit_owner(
    txn: &mut Txn<'_>,
    account: Account,
    setting: Setting,
    max: Option<u64>,
) -> Result<()> {
    txn.is_coordinators()?;
    let id = QuotaId::from(account);
    let mut record = txn.shared.quotas.root(id).map_or(UNHEARD, |seen| seen.record);
    match setting {
        Setting::QuotaBytes => record.bytes_max = max,
        _ => record.entries_max = max,
    }
    let none = record.bytes_max.is_none() && record.entries_max.is_none();
    record.state = if none { QuotaState::Gone } else { QuotaState::Active };
    txn.put_quota(id, &record);
    Ok(())
}

/// Begins to count, or to release, the tree below a directory. One at a time.
fn begin(
    txn: &mut Txn<'_>,
    mut dir: Dir,
    id: QuotaId,
    record: &QuotaRecord,
    (from, to): (QuotaId, QuotaId),
) -> Result<()> {
    if !txn.shared.quotas.unfinished().is_empty() {
        return Err(FsError::Busy.into());
    }
    txn.put_quota(id, record);
    // In a cluster the walk begins with the directory itself, when all servers have heard of the
    // quota.
    if txn.shared.cluster.is_none() {
        txn.recharge_freely(Accounts::root(from), Accounts::root(to), Usage::of(1, 0));
        dir.content.quota = to;
        txn.put_dir(&dir);
    }
    Ok(())
}

/// The lines that `info` prints of a directory's settings, and of the usage below it.
pub(crate) fn of_directory(
    txn: &Txn<'_>,
    dir: &Dir,
    line: &mut dyn FnMut(&str, String),
) -> Result<()> {
    if dir.id == DirId::ROOT {
        line("inline_max", txn.shared.settings().inline_bytes_max.to_string());
        let days = txn.shared.settings().trash.0.map_or(0, |trash| trash.days);
        line("trash_days", days.to_string());
        line("compression", txn.shared.blocks.compression().to_string());
    }
    placing::tell(txn, dir, line);
    divide::tell(&dir.content, line);
    let Some(seen) = used(txn, dir)? else { return Ok(()) };
    let limit = |max: Option<u64>| match max {
        None => "none".to_owned(),
        Some(UNLIMITED) => "unlimited".to_owned(),
        Some(max) => max.to_string(),
    };
    line("quota.bytes", limit(seen.record.bytes_max));
    line("quota.entries", limit(seen.record.entries_max));
    line("used.bytes", seen.total.bytes.max(0).to_string());
    line("used.entries", seen.total.entries.max(0).to_string());
    let state = match seen.record.state {
        QuotaState::Counting => "counting",
        QuotaState::Active => "active",
        QuotaState::Removing | QuotaState::Gone => "removing",
    };
    line("quota.state", state.to_owned());
    Ok(())
}

/// The accounting root of a directory, if it is one, with the usage below it on all servers.
fn used(txn: &Txn<'_>, dir: &Dir) -> Result<Option<Seen>> {
    let own = QuotaId(dir.content.ino);
    let Some(cluster) = &txn.shared.cluster else {
        return Ok(txn.shared.quotas.get(own).filter(|_| dir.content.quota == own));
    };
    let map = cluster.map();
    // A server that has no shards any more has charged something while it had some.
    let keys: Vec<Key> = map.members().map(|server| key::charged(server, own)).collect();
    let told = |key: &Key| match txn.has_shard(key::shard_of(key)) {
        true => Ok(txn.shared.quotas.told(own)),
        false => txn.get::<Told>(key)?.ok_or(FsError::Io.into()),
    };
    // The coordinator comes first: it knows whether the directory is an accounting root.
    let first = keys.first().map(told).transpose()?;
    let Some(mut record) = first.and_then(|first| first.record) else { return Ok(None) };
    txn.want(&keys)?;
    let all = keys.iter().map(told).collect::<Result<Vec<Told>>>()?;
    // A server that has not heard of a limit does not heed it yet.
    let knows = |told: &Told| told.record.is_some_and(|known| known.allows_as(&record));
    if record.state == QuotaState::Active && !all.iter().all(knows) {
        record.state = QuotaState::Counting;
    }
    let total = all.iter().fold(Usage::default(), |sum, told| sum.plus(told.usage));
    Ok(Some(Seen { record, total }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_a_number_with_a_unit_or_a_word() {
        let parsed =
            ["7", "2K", "3T", "none", "unlimited"].map(|text| Value::parse(text.as_bytes()));
        let number = |number| Some(Value::Number(number));
        let words = [Some(Value::None), Some(Value::Unlimited)];
        assert_eq!(parsed[..3], [number(7), number(2 << 10), number(3 << 40)]);
        assert_eq!(parsed[3..], words);
        let spread = |text: &str| Value::parse(text.as_bytes()).and_then(Value::spread).flatten();
        let spreads = [Spread::None, Spread::Extendible, Spread::Subsets].map(Some);
        assert_eq!(["none", "extendible", "subsets"].map(spread), spreads);
        assert_eq!(
            ["yes", "no"].map(|text| Value::parse(text.as_bytes())),
            [Some(Value::Flag(true)), Some(Value::Flag(false)),]
        );
        for wrong in ["", "K", "-1", "+1", "1k", "1.5G", "18446744073709551615", "99999999999T"] {
            assert_eq!(Value::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
