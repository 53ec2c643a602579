//! Keeps the words of the tree few and known: each word of the glossary in `docs/DESIGN.md` is in
//! the code, no word comes back that was replaced, and lines stay short enough to be read.
//!
//! A word matches whatever joins its parts: `record cache`, `record_cache` and `RecordCache` are
//! the same. Words that were replaced are banned where they had the old meaning: several of them
//! are good words elsewhere.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

const PAGE: &str = "docs/DESIGN.md";

/// The most columns of a line of code or of a page.
const COLUMNS_MAX: usize = 110;

/// Pages whose lines a program writes.
const GENERATED: [&str; 1] = ["docs/SCALE.md"];

/// Words that were replaced by another one.
struct Replaced {
    old: &'static [&'static str],
    new: &'static str,
    /// Beginnings of the paths of files in which the old words are banned; all files if there are
    /// none.
    within: &'static [&'static str],
}

const SERVER: &[&str] = &["meta/src", "docs/DESIGN.md", "docs/ARCHITECTURE.md"];

const REPLACED: &[Replaced] = &[
    Replaced { old: &["hot", "Hot", "hot record"], new: "record cache", within: SERVER },
    Replaced {
        old: &["met::Met", "mod met", "shared.met", "meta::met", "met.rs"],
        new: "remote hints",
        within: &[],
    },
    Replaced { old: &["giver", "givers", "Giver", "GIVER"], new: "source", within: &[] },
    Replaced { old: &["taker", "takers", "Taker", "TAKER"], new: "target", within: &[] },
    Replaced { old: &["Shift", "base::Shift"], new: "transfer", within: &[] },
    Replaced {
        old: &["room::Level", "room::Room", "mod room", "shared.room", "meta::room", "room.rs"],
        new: "space guard",
        within: &[],
    },
    Replaced { old: &["likeness"], new: "trashed copy", within: &[] },
    Replaced {
        old: &["Tails", "mod tails", "shared.tails", "meta::tails", "tails.rs"],
        new: "deferred truncation",
        within: &[],
    },
    Replaced { old: &["births", "Births"], new: "inode routes", within: &["client"] },
    Replaced {
        old: &["transact::births", "mod births", "shared.births", "births.rs", "a birth", "births"],
        new: "early mkdir",
        within: &["meta/src/transact", "meta/src/dump", "lab/tests", "docs/DESIGN.md"],
    },
    Replaced {
        old: &["presume_free", "forget_presumed", "presumption", "presumes()", "to presume"],
        new: "to assume",
        within: &[],
    },
    Replaced { old: &["tears", "TEARS_MAX"], new: "mark_torn", within: &["meta/src"] },
    Replaced { old: &["Pauses::new", "base::Pauses"], new: "backoff", within: &[] },
    Replaced {
        old: &["coordinator::ways", "ways::Ways", "mod ways", "ways.rs"],
        new: "ancestry hints",
        within: &[],
    },
    Replaced {
        old: &["transact::way", "mod way", "Outcome::Way"],
        new: "session root",
        within: &[],
    },
    Replaced { old: &["ways::Group"], new: "homed dir", within: &[] },
    Replaced { old: &["txn::Group", "group of a core"], new: "commit group", within: &[] },
    Replaced {
        old: &["Mode::Stands", "Mode::Adds", "Mode::Shifts", "Mode::Changes", "is_shifted"],
        new: "Mode::{Shared, Increment, Update, Exclusive}",
        within: &[],
    },
    Replaced {
        old: &["allowance", "allowances", "Allowance", "Allowances"],
        new: "grant",
        within: &[],
    },
    Replaced { old: &["Short", "Heard"], new: "needs grant, grant state", within: &["meta/src"] },
    Replaced { old: &["ragged", "Ragged", "is_ragged"], new: "due chunk", within: &[] },
];

/// Returns what is wrong with the words and the lines of all files of the tree.
pub(crate) fn problems(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut code = Vec::new();
    for file in files {
        let Ok(path) = file.strip_prefix(root) else { continue };
        let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        if !matches!(kind, "rs" | "md") {
            continue;
        }
        let (shown, text) = (path.display().to_string(), read(file));
        problems.extend(long_lines(&shown, &text));
        // This file holds the words that are banned.
        if shown == "xtask/src/words.rs" {
            continue;
        }
        problems.extend(replaced_in(&shown, &text));
        if kind == "rs" {
            code.push(parts(&text));
        }
    }
    let glossary = glossary(&read(&root.join(PAGE)));
    let unused = glossary.into_iter().filter(|word| !is_in(&code, word));
    problems.extend(unused.map(|word| format!("{PAGE}: no code has the word {word:?}")));
    problems
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// The words of the glossary, in lower case.
fn glossary(page: &str) -> Vec<String> {
    let words = page.split("\n## Words\n").nth(1).unwrap_or_default();
    let words = words.split("\n## ").next().unwrap_or_default();
    let rows = words.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    rows.filter(|word| *word != "word").map(essence).collect()
}

/// A word without what only explains it: `to glance`, `run of an operation`.
fn essence(word: &str) -> String {
    let word = word.strip_prefix("to ").unwrap_or(word);
    word.split(" of a").next().unwrap_or(word).to_lowercase()
}

/// Whether some text has a word, or its plural.
fn is_in(texts: &[String], word: &str) -> bool {
    let (one, several) = (format!(" {word} "), format!(" {word}s "));
    texts.iter().any(|text| text.contains(&one) || text.contains(&several))
}

/// The parts of all names and words of a text, in lower case, each between spaces.
fn parts(text: &str) -> String {
    let mut parts = String::with_capacity(text.len() * 2);
    parts.push(' ');
    let mut before = ' ';
    for c in text.chars() {
        let begins = c.is_uppercase() && before.is_lowercase();
        if (begins || !c.is_alphanumeric()) && !parts.ends_with(' ') {
            parts.push(' ');
        }
        if c.is_alphanumeric() {
            parts.extend(c.to_lowercase());
        }
        before = c;
    }
    parts.push(' ');
    parts
}

/// The lines of a file that have a word that was replaced.
fn replaced_in(path: &str, text: &str) -> Vec<String> {
    let mut problems = BTreeSet::new();
    for Replaced { old, new, within } in REPLACED {
        if !within.is_empty() && !within.iter().any(|prefix| path.starts_with(prefix)) {
            continue;
        }
        for old in *old {
            let lines = text.lines().enumerate().filter(|(_, line)| has(line, old));
            problems.extend(lines.map(|(at, _)| (at + 1, *old, *new)));
        }
    }
    let shown = |(line, old, new)| format!("{path}:{line}: {old:?} was replaced by {new:?}");
    problems.into_iter().map(shown).collect()
}

/// Whether a line has a word that is not a part of a longer one.
fn has(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let borders = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
        borders(before) && (borders(after) || word.ends_with(')'))
    })
}

/// The lines of a file that are too long, but for tables, lines of JSON, and addresses.
fn long_lines(path: &str, text: &str) -> Vec<String> {
    if GENERATED.contains(&path) {
        return Vec::new();
    }
    let columns = |line: &str| line.chars().count();
    let lines = text.lines().enumerate().filter(|(_, line)| columns(line) > COLUMNS_MAX);
    lines
        .filter(|(_, line)| !may_be_long(line))
        .map(|(at, line)| format!("{path}:{}: {} columns", at + 1, columns(line)))
        .collect()
}

fn may_be_long(line: &str) -> bool {
    let text = line.trim_start().trim_start_matches(['/', '!']).trim_start();
    let is_data = text.starts_with("{\"");
    text.starts_with('|') || is_data || text.contains("](") || text.contains("://")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLOSSARY: &str = "# Design\n\n## Words\n\n### Records\n\n| word | meaning | elsewhere |\n\
        |---|---|---|\n| record cache | records in memory | |\n| to glance | to read | |\n\
        | run of an operation | one execution | |\n\n## Records\n\n| other | table |\n";

    #[test]
    fn a_word_of_the_glossary_is_in_the_code() {
        let words = glossary(GLOSSARY);
        assert_eq!(words, ["record cache", "glance", "run"]);
        let code = [parts("struct RecordCache;\nfn glances() {}\n// One run of it.")];
        assert!(words.iter().all(|word| is_in(&code, word)));
        let code = [parts("struct Records { cache: Cache }\nfn glanced() {}\nlet runt = 1;")];
        assert!(!words.iter().any(|word| is_in(&code, word)));
    }

    #[test]
    fn a_word_that_was_replaced_is_found_with_its_line() {
        let text = "let a = 1;\nlet at_taker = key;\n// takers\nlet oneshot = Shifts;\n";
        assert_eq!(
            replaced_in("lab/src/a.rs", text),
            [
                "lab/src/a.rs:2: \"taker\" was replaced by \"target\"",
                "lab/src/a.rs:3: \"takers\" was replaced by \"target\"",
            ]
        );
        assert_eq!(replaced_in("meta/src/a.rs", "is_hot(name)\nsnapshot\n").len(), 1);
        assert_eq!(replaced_in("cli/src/a.rs", "is_hot(name)\n"), [""; 0], "a word elsewhere");
    }

    #[test]
    fn long_lines_are_found_but_for_tables_and_addresses() {
        let long = "x ".repeat(56);
        let text = format!("short\n{long}\n| {long}|\n//! | {long}|\n[a](b) {long}\n");
        assert_eq!(long_lines("a.md", &text), ["a.md:2: 112 columns"]);
        assert_eq!(long_lines("docs/SCALE.md", &text), [""; 0]);
    }
}
