//! Accounts, to which usage is charged: the tree below a directory, a user, or a group.
//!
//! Each has a number in the space of inode numbers, so that a record, a message and a table name
//! all three kinds alike. A directory has its own; a user or a group has one of shard 0 that is
//! beyond all that the counter of that shard can reach.

use std::fmt;

use crate::Ino;

const USERS: u64 = 0x8000 << 32;
const GROUPS: u64 = 0x8001 << 32;

/// An account, to which usage is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Account {
    /// All below the directory of this inode, itself among it.
    Directory(Ino),
    /// All that the user owns.
    User(u32),
    /// All of which this is the group.
    Group(u32),
}

impl Account {
    /// The account of a number.
    #[must_use]
    pub fn of(number: Ino) -> Account {
        let id = u32::try_from(number.0 & u64::from(u32::MAX)).expect("32 bits");
        match number.0 & !u64::from(u32::MAX) {
            USERS => Account::User(id),
            GROUPS => Account::Group(id),
            _ => Account::Directory(number),
        }
    }

    /// The number of the account.
    #[must_use]
    pub fn number(self) -> Ino {
        match self {
            Account::Directory(ino) => ino,
            Account::User(uid) => Ino(USERS | u64::from(uid)),
            Account::Group(gid) => Ino(GROUPS | u64::from(gid)),
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Account::Directory(ino) => write!(out, "directory inode {ino}"),
            Account::User(uid) => write!(out, "user {uid}"),
            Account::Group(gid) => write!(out, "group {gid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardId;

    #[test]
    fn every_account_has_a_number_of_its_own() {
        let all = [
            Account::Directory(Ino::ROOT),
            Account::Directory(Ino::new(ShardId(0), (1 << 47) - 1)),
            Account::Directory(Ino::new(ShardId(4095), 1 << 47).on_lane(15)),
            Account::User(0),
            Account::User(u32::MAX),
            Account::Group(0),
            Account::Group(u32::MAX),
        ];
        for account in all {
            assert_eq!(Account::of(account.number()), account);
        }
    }
}
