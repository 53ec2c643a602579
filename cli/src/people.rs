//! Users and groups by the names that this machine has for them. Servers know numbers alone.

use nix::unistd::{Gid, Group, Uid, User};

/// A user or a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    User,
    Group,
}

impl Kind {
    /// The number of a name, or of a number as it is.
    pub(crate) fn number(self, name: &str) -> Result<u32, String> {
        if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
            return name.parse().map_err(|_| format!("{name} is larger than any such number"));
        }
        let found = match self {
            Kind::User => User::from_name(name).map(|user| user.map(|user| user.uid.as_raw())),
            Kind::Group => {
                Group::from_name(name).map(|group| group.map(|group| group.gid.as_raw()))
            }
        };
        let what = if self == Kind::User { "user" } else { "group" };
        match found {
            Ok(Some(number)) => Ok(number),
            Ok(None) => Err(format!("this machine knows no {what} {name}: give a number")),
            Err(error) => Err(format!("cannot look the {what} {name} up: {error}")),
        }
    }

    /// The name of a number; the number itself where this machine has none for it.
    pub(crate) fn name(self, number: u32) -> String {
        let found = match self {
            Kind::User => {
                User::from_uid(Uid::from_raw(number)).ok().flatten().map(|user| user.name)
            }
            Kind::Group => {
                Group::from_gid(Gid::from_raw(number)).ok().flatten().map(|group| group.name)
            }
        };
        found.unwrap_or_else(|| number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_to_each_other() {
        for kind in [Kind::User, Kind::Group] {
            assert_eq!(kind.number("root"), Ok(0));
            assert_eq!(kind.name(0), "root");
            assert_eq!(kind.number("4000000001"), Ok(4_000_000_001));
            assert_eq!(kind.name(4_000_000_001), "4000000001");
            for wrong in ["", "no such name", "4294967296"] {
                kind.number(wrong).unwrap_err();
            }
        }
    }
}
