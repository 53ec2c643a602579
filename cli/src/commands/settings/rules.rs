//! Rules of the settings: their meaning, as `pando set --help` lists it, and the rule that a
//! refused value breaks.
//!
//! The server checks all of it as well, and answers with an errno: what is said here is why.

use base::{
    Account,
    limits::{INLINE_BYTES_MAX, SMALL_BYTES_MAX},
};

use super::super::place::Facts;
use crate::people::Kind;

/// A hundred years.
const TRASH_DAYS_MAX: u64 = 36_500;
/// A partition with fewer would be split and merged all the time.
const SPLIT_THRESHOLD_MIN: u64 = 8;
/// Longest line of the help, in characters.
const WIDTH: usize = 100;

struct Rule {
    key: &'static str,
    of: Of,
    /// Value that holds when nothing was set.
    default: &'static str,
    /// Values that the setting takes.
    range: &'static str,
    meaning: &'static str,
}

/// Object that a setting belongs to.
#[derive(PartialEq, Eq)]
enum Of {
    /// The whole file system: its root.
    All,
    /// The whole file system, or a directory.
    Any,
    Directory,
    /// A directory of a file system of several servers.
    Divided,
    /// A directory of a file system with hybrid placement.
    Hybrid,
}

/// Settings of each user and of each group, as the help names them.
const USERS: &str = "quota.user.USER.bytes, quota.user.USER.entries";
const GROUPS: &str = "quota.group.GROUP.bytes, quota.group.GROUP.entries";

const RULES: [Rule; 11] = [
    Rule {
        key: "inherit",
        of: Of::Directory,
        default: "no",
        range: "yes or no",
        meaning: "directories that are made in it get its inline_max, split_threshold, spread, \
                  large_dir and inherit",
    },
    Rule {
        key: "inline_max",
        of: Of::Any,
        default: "what was chosen at format, 16K as a rule",
        range: "0 to 64K, of a directory 0 to 4K, or none",
        meaning: "contents of a file up to this many bytes are kept with its metadata, on the disk \
                  of the server: one request and one write for a small file, and none to S3. Up to \
                  4K of them are in the entry. Of a directory: how many are in the entries of files \
                  that are made in it, where the file system does not say less",
    },
    Rule {
        key: "large_dir",
        of: Of::Divided,
        default: "none",
        range: "none, or a number up to that of the shards",
        meaning: "an empty directory is divided at once into this many partitions, and never has \
                  fewer; set spread before",
    },
    Rule {
        key: "locality",
        of: Of::Hybrid,
        default: "hybrid on the root, none elsewhere",
        range: "hash, subtree, hybrid, hybrid:N with N from 1 to 16, or none",
        meaning: "places of directories that are made in it from now on. hash: each of them, and \
                  what is made in those, has a place of its own. hybrid:N: so on N levels, and \
                  further ones are with their parents; hybrid is hybrid:2. subtree: they are with \
                  it. none: they are with it until there is much, and then have places of their \
                  own. Directories that exist stay where they are",
    },
    Rule {
        key: "quota.bytes",
        of: Of::Directory,
        default: "none",
        range: "a number of bytes, unlimited or none",
        meaning: "limit of what is used below it; unlimited only counts, so that `pando du` need not walk",
    },
    Rule {
        key: "quota.entries",
        of: Of::Directory,
        default: "none",
        range: "a number, unlimited or none",
        meaning: "limit of the inodes below it, itself among them",
    },
    Rule {
        key: GROUPS,
        of: Of::All,
        default: "none",
        range: "a number, unlimited or none",
        meaning: "limits of what belongs to the group: bytes and inodes",
    },
    Rule {
        key: USERS,
        of: Of::All,
        default: "none",
        range: "a number, unlimited or none",
        meaning: "limits of what the user owns: bytes and inodes. By name or number; the superuser \
                  and group 0 have none. `pando quota` lists what is used",
    },
    Rule {
        key: "split_threshold",
        of: Of::Divided,
        default: "8000",
        range: "8 or more, unlimited or none",
        meaning: "a partition with this many entries splits. From 1000 on, each later partition \
                  has a limit of its own between 0.75 and 1.25 of that, so that they do not all \
                  split at once. Partitions that have become small are merged again",
    },
    Rule {
        key: "spread",
        of: Of::Divided,
        default: "extendible",
        range: "extendible, subsets or none",
        meaning: "how a directory is divided. extendible: each partition splits by itself, and has \
                  one range of a listing. subsets: as many partitions as the size needs, and names \
                  are scattered over all. none: one partition",
    },
    Rule {
        key: "trash_days",
        of: Of::All,
        default: "0",
        range: "0 to 36500",
        meaning: "removed files are kept this many days, see `pando restore`; 0 keeps nothing, and \
                  empties the trash",
    },
];

/// The list of all settings, for the help.
pub(super) fn help() -> String {
    let mut text = "Settings:\n".to_owned();
    for Rule { key, of, default, range, meaning } in &RULES {
        let of = match of {
            Of::All => "the whole file system",
            Of::Any => "the whole file system, or a directory",
            Of::Directory => "a directory",
            Of::Divided => "a directory, on several servers",
            Of::Hybrid => "a directory, with hybrid placement",
        };
        text += &format!("  {key}  [{of}]\n");
        wrap(&mut text, &format!("{range}; default: {default}"));
        wrap(&mut text, meaning);
    }
    text + "\nNumbers may end with K, M, G or T (of 1024). `none` takes a setting away."
}

/// Adds the words to the text, in indented lines of at most [`WIDTH`].
fn wrap(text: &mut String, words: &str) {
    let mut line = "     ".to_owned();
    for word in words.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            *text += &format!("{line}\n");
            line = "     ".to_owned();
        }
        line = format!("{line} {word}");
    }
    *text += &format!("{line}\n");
}

/// A setting that limits a user or a group: the kind, the name or number, and which limit.
fn owner(key: &str) -> Option<(Kind, &str, &str)> {
    let key = key.strip_prefix("quota.")?;
    let (kind, rest) = match key.split_once('.')? {
        ("user", rest) => (Kind::User, rest),
        ("group", rest) => (Kind::Group, rest),
        _ => return None,
    };
    let (name, what) = rest.rsplit_once('.')?;
    (!name.is_empty() && matches!(what, "bytes" | "entries")).then_some((kind, name, what))
}

/// The user or the group that a setting limits, in numbers.
pub(super) fn account_of(key: &str) -> Option<Account> {
    let (kind, number, _) = owner(key)?;
    let number = number.parse().ok()?;
    Some(match kind {
        Kind::User => Account::User(number),
        Kind::Group => Account::Group(number),
    })
}

/// Whether a setting limits a user or a group.
pub(super) fn is_owners(key: &str) -> bool {
    owner(key).is_some()
}

fn rule(key: &str) -> Option<&'static Rule> {
    let key = match owner(key) {
        Some((Kind::User, ..)) => USERS,
        Some((Kind::Group, ..)) => GROUPS,
        None => key,
    };
    RULES.iter().find(|rule| rule.key == key)
}

/// The setting as servers know it: they have numbers of users and groups, and no names.
pub(super) fn in_numbers(key: &str) -> Result<String, String> {
    let Some((kind, name, what)) = owner(key) else { return Ok(key.to_owned()) };
    let of = if kind == Kind::User { "user" } else { "group" };
    match kind.number(name)? {
        0 => Err("the superuser and group 0 have no limits".to_owned()),
        number => Ok(format!("quota.{of}.{number}.{what}")),
    }
}

/// Says which values a setting takes.
pub(super) fn range(key: &str) -> String {
    rule(key).map_or_else(String::new, |rule| format!("allowed: {}", rule.range))
}

/// Why a value is refused, as far as that can be seen from here; `facts` are those of the place.
pub(super) fn broken(key: &str, value: &str, facts: &Facts) -> Option<String> {
    let Some(rule) = rule(key) else {
        let known: Vec<_> = RULES.iter().map(|rule| rule.key).collect();
        return Some(format!("there is no setting {key}; known are {}", known.join(", ")));
    };
    if facts.get("kind").is_some_and(|kind| kind != "directory") {
        return Some("settings belong to directories, and this is not a directory".to_owned());
    }
    let is_root = facts.get("ino").is_some_and(|ino| ino == &base::Ino::ROOT.to_string());
    if rule.of == Of::All && !is_root {
        let text =
            "this setting belongs to the whole file system: set it on the root, as HOST:PORT alone";
        return Some(text.to_owned());
    }
    if rule.of == Of::Hybrid && !facts.contains_key("locality") {
        let text = "this file system has no hybrid placement: see `pando format --locality hybrid`";
        return Some(text.to_owned());
    }
    let value = value.trim();
    let fits = match key {
        "inherit" => matches!(value, "yes" | "no"),
        "locality" => is_locality(value),
        "spread" => matches!(value, "extendible" | "subsets" | "none"),
        "quota.bytes" | "quota.entries" if value == "unlimited" => true,
        "split_threshold" if value == "unlimited" => true,
        _ if value == "none" => true,
        _ => match number(value) {
            Err(why) => return Some(format!("{why}; allowed: {}", rule.range)),
            Ok(number) => match key {
                "inline_max" if is_root => number <= u64::from(SMALL_BYTES_MAX),
                "inline_max" => number <= u64::from(INLINE_BYTES_MAX),
                "large_dir" => number <= u64::from(u16::MAX),
                "split_threshold" => number >= SPLIT_THRESHOLD_MIN && number <= u64::from(u32::MAX),
                "trash_days" => number <= TRASH_DAYS_MAX,
                _ => number < u64::MAX,
            },
        },
    };
    (!fits).then(|| format!("allowed: {}", rule.range))
}

fn is_locality(value: &str) -> bool {
    let digits = value.strip_prefix("hybrid:");
    let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let levels = || digits.and_then(|digits| digits.parse::<u8>().ok());
    matches!(value, "hash" | "subtree" | "hybrid" | "none")
        || levels().is_some_and(|levels| (1..=16).contains(&levels))
}

/// A number with K, M, G or T (of 1024) after it.
fn number(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ if digits.is_empty() => return Err(format!("{text} is not a number")),
        unit => return Err(format!("{unit} is not a unit; use K, M, G or T (of 1024)")),
    };
    let number = digits.parse::<u64>().map_err(|_| format!("{text} is not a number"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(kind: &str, ino: u64) -> Facts {
        Facts::from([("kind".to_owned(), kind.to_owned()), ("ino".to_owned(), ino.to_string())])
    }

    #[test]
    fn a_refusal_names_the_rule_that_is_broken() {
        let (root, dir, file) = (facts("directory", 1), facts("directory", 7), facts("file", 8));
        let says = |key, value, facts: &Facts, words: &str| {
            let broken = broken(key, value, facts).unwrap_or_else(|| panic!("{key}={value} fits"));
            assert!(broken.contains(words), "{key}={value}: {broken}");
        };
        says("quota.bytes", "1X", &dir, "X is not a unit; use K, M, G or T");
        says("quota.bytes", "much", &dir, "much is not a number");
        says("quota.entries", "99999999999T", &dir, "too large");
        says("quota.bytes", "1M", &file, "settings belong to directories");
        says("trash_days", "3", &dir, "this setting belongs to the whole file system");
        says("trash_days", "100000", &root, "0 to 36500");
        says("inline_max", "1G", &root, "0 to 64K");
        says("inline_max", "8K", &dir, "of a directory 0 to 4K");
        says("split_threshold", "7", &dir, "8 or more");
        says("spread", "wide", &dir, "extendible, subsets or none");
        says("inherit", "1", &dir, "yes or no");
        says("locality", "hash", &dir, "this file system has no hybrid placement");
        let mut hybrid = dir.clone();
        hybrid.insert("locality".to_owned(), "none".to_owned());
        says("locality", "hybrid:17", &hybrid, "N from 1 to 16");
        for value in ["hash", "subtree", "hybrid", "hybrid:3", "none"] {
            assert_eq!(broken("locality", value, &hybrid), None, "{value}");
        }
        says("nothing", "1", &dir, "there is no setting nothing");
        for (key, value) in [
            ("quota.bytes", "10G"),
            ("quota.entries", "unlimited"),
            ("inline_max", "4K"),
            ("split_threshold", "none"),
            ("spread", "subsets"),
            ("inherit", "yes"),
            ("large_dir", "16"),
        ] {
            assert_eq!(broken(key, value, &dir), None, "{key}={value}");
        }
        assert_eq!(broken("trash_days", "36500", &root), None);
        assert_eq!(broken("inline_max", "64K", &root), None);
    }

    #[test]
    fn every_setting_is_in_the_help_in_lines_that_fit() {
        let help = help();
        assert!(RULES.iter().all(|rule| help.contains(rule.key) && help.contains(rule.range)));
        assert!(help.lines().all(|line| line.len() <= WIDTH), "{help}");
    }
}
