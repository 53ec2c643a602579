//! Golden bytes: what is sent and stored, written down in text files, so that nothing changes by
//! accident.
//!
//! Used by the tests of this crate and of `meta`, which takes this file in by its path. A line of a
//! golden file is a name, a space and the bytes in hex. `BLESS=1 cargo test` adds the lines that
//! are missing, and changes none. Whether a line may change is said in `docs/BYTES.md`.

use std::{collections::BTreeMap, fmt::Debug, fmt::Write as _, fs, path::Path};

use base::{Decode, Encode};
use bytes::Bytes;
use proptest::{prelude::*, sample::Index};

/// One line of a golden file, and how to read its bytes.
pub(crate) struct Case {
    name: String,
    bytes: Vec<u8>,
    reads_back: Box<dyn Fn(&Bytes) -> bool>,
}

impl Case {
    /// A value that `bytes` were made of, and that `read` must find in them.
    pub(crate) fn new<T: PartialEq + 'static>(
        name: impl Into<String>,
        value: T,
        bytes: impl Into<Vec<u8>>,
        read: impl Fn(&Bytes) -> Option<T> + 'static,
    ) -> Case {
        let reads_back = Box::new(move |bytes: &Bytes| read(bytes).as_ref() == Some(&value));
        Case { name: name.into(), bytes: bytes.into(), reads_back }
    }

    /// A value in its plain encoding.
    pub(crate) fn of<T: Encode + Decode + PartialEq + 'static>(
        name: impl Into<String>,
        value: T,
    ) -> Case {
        let bytes = value.to_vec();
        Case::new(name, value, bytes, |bytes| T::from_bytes(bytes).ok())
    }
}

/// An enum whose variants are all known by name; see [`variants!`].
pub(crate) trait Variants {
    const ENUM: &'static str;
    const ALL: &'static [&'static str];
    fn variant(&self) -> &'static str;
}

/// Lists the variants of an enum. A variant that is missing here does not compile, and one that is
/// here but has no value fails in [`all`].
macro_rules! variants {
    ($name:ident { $($variant:ident),* $(,)? }) => {
        impl Variants for $name {
            const ENUM: &'static str = stringify!($name);
            const ALL: &'static [&'static str] = &[$(stringify!($variant)),*];
            fn variant(&self) -> &'static str {
                match self {
                    $($name::$variant { .. } => stringify!($variant),)*
                }
            }
        }
    };
}
pub(crate) use variants;

/// A case for each value of an enum, named after its variant.
pub(crate) fn all<T: Variants>(
    values: impl IntoIterator<Item = T>,
    case: impl Fn(String, T) -> Case,
) -> Vec<Case> {
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    let mut cases = Vec::new();
    for value in values {
        let count = seen.entry(value.variant()).and_modify(|count| *count += 1).or_insert(1);
        let mut name = format!("{}::{}", T::ENUM, value.variant());
        if *count > 1 {
            write!(name, ".{count}").unwrap();
        }
        cases.push(case(name, value));
    }
    let missing: Vec<_> = T::ALL.iter().filter(|name| !seen.contains_key(**name)).collect();
    assert!(missing.is_empty(), "{} has variants without golden bytes: {missing:?}", T::ENUM);
    cases
}

/// A golden file with a line for each case that has none, and with all other lines as they are.
pub(crate) fn with_missing(text: &str, cases: &[Case]) -> String {
    let mut golden: Vec<&str> = text.lines().collect();
    let mut lines = String::new();
    for Case { name, bytes, .. } in cases {
        let is_of_case = |line: &&str| line.split(' ').next() == Some(name);
        match golden.iter().position(is_of_case) {
            Some(at) => writeln!(lines, "{}", golden.remove(at)).unwrap(),
            None => writeln!(lines, "{name} {}", hex(bytes)).unwrap(),
        }
    }
    golden.iter().for_each(|line| writeln!(lines, "{line}").unwrap());
    lines
}

/// Compares with the golden file, line by line, and reads every golden line.
pub(crate) fn check(file: &Path, cases: &[Case]) {
    if std::env::var_os("BLESS").is_some() {
        let text = fs::read_to_string(file).unwrap_or_default();
        fs::write(file, with_missing(&text, cases)).unwrap();
    }
    let text = fs::read_to_string(file).unwrap();
    let mut golden: BTreeMap<&str, &str> = BTreeMap::new();
    for line in text.lines() {
        let (name, bytes) = line.split_once(' ').expect("a line is a name, a space and hex");
        assert_eq!(golden.insert(name, bytes), None, "two golden lines for {name}");
    }
    for Case { name, bytes, reads_back } in cases {
        let line = golden.remove(name.as_str());
        let line = line.unwrap_or_else(|| panic!("{name} has no golden line: BLESS=1 adds it"));
        assert_eq!(line, hex(bytes), "the bytes of {name} changed: see docs/BYTES.md");
        assert!(reads_back(&unhex(line)), "the golden bytes of {name} are read as something else");
    }
    assert!(golden.is_empty(), "golden lines of nothing: {golden:?}");
}

/// The first part of each line's name: what the golden file tells about, such as an enum.
pub(crate) fn subjects(cases: &[Case]) -> Vec<&str> {
    cases.iter().filter_map(|case| case.name.split([':', '.']).next()).collect()
}

/// The sources in a folder, tests aside.
pub(crate) fn sources(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let sources = files.filter(|file| file.is_file() && !file.ends_with("tests.rs"));
    sources.map(|file| fs::read_to_string(file).unwrap()).collect()
}

/// The words that come right after `before` in a text.
pub(crate) fn words_after<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let rests = text.split(before).skip(1);
    rests.filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next()).collect()
}

/// Reads every golden line cut off anywhere, longer by a byte, and with any byte replaced.
pub(crate) fn damage_each_byte(cases: &[Case]) {
    for case in cases {
        for end in 0..case.bytes.len() {
            (case.reads_back)(&Bytes::copy_from_slice(&case.bytes[..end]));
        }
        for byte in 0..=u8::MAX {
            (case.reads_back)(&[&case.bytes[..], &[byte]].concat().into());
        }
        for at in 0..case.bytes.len() {
            for byte in [0, 1, 2, 0x2f, 0x7f, 0x80, 0xff, !case.bytes[at], case.bytes[at] ^ 1] {
                let mut bytes = case.bytes.clone();
                bytes[at] = byte;
                (case.reads_back)(&bytes.into());
            }
        }
    }
}

/// One change of some bytes.
#[derive(Debug, Clone)]
pub(crate) enum Edit {
    Replace(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Truncate(Index),
    Extend(Vec<u8>),
}

/// A few changes, one after the other.
pub(crate) fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        4 => any::<(Index, u8)>().prop_map(|(at, byte)| Edit::Replace(at, byte)),
        2 => any::<(Index, u8)>().prop_map(|(at, byte)| Edit::Insert(at, byte)),
        2 => any::<Index>().prop_map(Edit::Remove),
        1 => any::<Index>().prop_map(Edit::Truncate),
        1 => any::<Vec<u8>>().prop_map(Edit::Extend),
    ];
    prop::collection::vec(edit, 1..8)
}

/// Reads every golden line after `edits`.
pub(crate) fn damage(cases: &[Case], edits: &[Edit]) {
    for case in cases {
        let mut bytes = case.bytes.clone();
        for edit in edits {
            apply(&mut bytes, edit);
        }
        (case.reads_back)(&bytes.into());
    }
}

fn apply(bytes: &mut Vec<u8>, edit: &Edit) {
    let len = bytes.len();
    match edit {
        Edit::Insert(at, byte) => bytes.insert(at.index(len + 1), *byte),
        Edit::Extend(more) => bytes.extend_from_slice(more),
        Edit::Replace(at, byte) if len > 0 => bytes[at.index(len)] = *byte,
        Edit::Remove(at) if len > 0 => {
            bytes.remove(at.index(len));
        }
        Edit::Truncate(at) if len > 0 => bytes.truncate(at.index(len)),
        Edit::Replace(..) | Edit::Remove(_) | Edit::Truncate(_) => {}
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Bytes {
    let digits = |at| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..text.len()).step_by(2).map(|at| digits(at).expect("golden bytes are hex")).collect()
}
