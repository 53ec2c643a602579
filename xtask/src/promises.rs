//! The pages of promises: each names the tests that show what it says, and each of these tests is
//! there.
//!
//! In `docs/SEMANTICS.md` every paragraph below a heading ends with a line `Shown by` and the
//! tests; in `docs/POSIX.md` every table of promises has them in its last column.
//! `docs/OPERATIONS.md` and `docs/KEEPING.md` have them anywhere in the text: each part below a
//! heading of the second level names tests, or says `Not tested`. A name without a test, a promise
//! without a name, and a page that is not there are problems. What a test is: whatever has
//! `#[test]`, or stands in a list of the simulation's bugs (`finds! { name: Bug, ... }`).

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

const PARAGRAPHS: &str = "docs/SEMANTICS.md";
const TABLES: &str = "docs/POSIX.md";
const PARTS: [&str; 2] = ["docs/OPERATIONS.md", "docs/KEEPING.md"];
const SHOWN_BY: &str = "Shown by ";

/// Returns the problems of the pages, given all files of the tree.
pub(crate) fn problems(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut tests = BTreeSet::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")) {
        tests.extend(tests_of(&fs::read_to_string(file).unwrap_or_default()));
    }
    let page = |name| fs::read_to_string(root.join(name)).unwrap_or_default();
    let mut problems = of_paragraphs(&page(PARAGRAPHS), &tests);
    problems.extend(of_tables(&page(TABLES), &tests));
    for name in PARTS {
        problems.extend(of_parts(name, &page(name), &tests));
    }
    problems
}

/// The tests of a source file.
fn tests_of(text: &str) -> Vec<String> {
    let mut tests = Vec::new();
    let (mut marked, mut listed) = (false, false);
    for line in text.lines().map(str::trim) {
        marked |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let function = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
        if let Some(function) = function.filter(|_| marked) {
            tests.extend(name_of(function));
            marked = false;
        }
        listed = line == "finds! {" || (listed && line != "}");
        if let Some((name, _)) = line.split_once(": ").filter(|_| listed) {
            tests.extend(name_of(name));
        }
    }
    tests
}

/// The name that a text begins with.
fn name_of(text: &str) -> Option<String> {
    let end = text.find(|c: char| !is_of_name(c)).unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'
}

/// Every paragraph below a heading of the second level says by what it is shown.
fn of_paragraphs(page: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut below = false;
    for (at, paragraph) in paragraphs(page) {
        if paragraph.starts_with('#') {
            below |= paragraph.starts_with("## ");
            continue;
        }
        if below {
            let shown = paragraph.rfind(&format!("\n{SHOWN_BY}"));
            let names = shown.map_or("", |from| &paragraph[from..]);
            problems.extend(of_names(PARAGRAPHS, at, names, tests));
        }
    }
    if !below {
        problems.push(format!("{PARAGRAPHS}: no heading, and so no promise"));
    }
    problems
}

/// Paragraphs and headings, each with its first line's number.
fn paragraphs(page: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (at, line) in page.lines().enumerate() {
        if line.trim().is_empty() {
            open = false;
        } else if open && let Some((_, paragraph)) = found.last_mut() {
            paragraph.push('\n');
            paragraph.push_str(line);
        } else {
            found.push((at + 1, line.to_owned()));
            open = true;
        }
    }
    found
}

/// Every row of a table whose first column is `promise` names tests in its last one.
fn of_tables(page: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let (mut promises, mut rows) = (false, 0);
    for (at, line) in page.lines().enumerate() {
        let Some(row) = line.strip_prefix('|') else {
            promises = false;
            continue;
        };
        let cells: Vec<&str> = row.trim().trim_end_matches('|').split('|').map(str::trim).collect();
        if cells[0] == "promise" {
            promises = true;
        } else if promises && !cells[0].starts_with("--") {
            rows += 1;
            let names = if cells.len() == 2 { cells[1] } else { "" };
            problems.extend(of_names(TABLES, at + 1, names, tests));
        }
    }
    if rows == 0 {
        problems.push(format!("{TABLES}: no table of promises"));
    }
    problems
}

/// Every part below a heading of the second level names tests, or says that it has none.
fn of_parts(name: &str, page: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    // Where the last heading is below which nothing is named yet.
    let mut unshown = None;
    let mut parts = 0;
    for (at, line) in (1..).zip(page.lines()) {
        if line.starts_with("## ") {
            problems.extend(unshown.replace(at).map(|at| not_shown(name, at)));
            parts += 1;
        }
        if line.contains("Not tested") {
            unshown = None;
        }
        for shown in line.split('`').skip(1).step_by(2).filter(|name| is_of_test(name)) {
            unshown = None;
            if !tests.contains(shown) {
                problems.push(format!("{name}:{at}: there is no test {shown}"));
            }
        }
    }
    problems.extend(unshown.map(|at| not_shown(name, at)));
    if parts == 0 {
        problems.push(format!("{name}: no heading, and so no promise"));
    }
    problems
}

fn not_shown(page: &str, line: usize) -> String {
    format!("{page}:{line}: no test shows what is below this heading")
}

/// Whether this can only be a test: other names have fewer words.
fn is_of_test(name: &str) -> bool {
    name.matches('_').count() >= 4 && name.chars().all(is_of_name)
}

/// Returns the problems with the names of one promise.
fn of_names(page: &str, line: usize, text: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let names: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    if names.is_empty() {
        return vec![format!("{page}:{line}: no test shows this promise")];
    }
    let missing = names.iter().filter(|name| !tests.contains(**name));
    missing.map(|name| format!("{page}:{line}: there is no test {name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#[test]\nfn one() {}\n#[tokio::test(start_paused = true)]\nasync fn two() {}\n\
                          fn helper() {}\n#[test]\n#[expect(unsafe_code)]\n/// Why.\nfn three() {}\n\
                          finds! {\n    four: Bug,\n}\nlet five: u8 = 5;\n";

    fn tests() -> BTreeSet<String> {
        tests_of(SOURCE).into_iter().collect()
    }

    #[test]
    fn tests_are_found_by_their_marks() {
        assert_eq!(tests_of(SOURCE), ["one", "two", "three", "four"]);
    }

    #[test]
    fn a_paragraph_must_name_tests_that_there_are() {
        let page = "# Page\n\nWhat it is.\n\n## Part\n\nA promise.\nShown by `one`, `two`.\n\n";
        let of = |more: &str| of_paragraphs(&format!("{page}{more}"), &tests());
        assert_eq!(of(""), [""; 0]);
        assert_eq!(of("Another.\n"), ["docs/SEMANTICS.md:10: no test shows this promise"]);
        let wrong = of("Another.\nShown by `one`, `onw`,\n`two`.\n");
        assert_eq!(wrong, ["docs/SEMANTICS.md:10: there is no test onw"]);
        assert_eq!(of("Another.\nShown by nobody.\n").len(), 1);
        assert_eq!(of_paragraphs("", &tests()).len(), 1);
    }

    #[test]
    fn a_part_must_name_tests_or_say_that_there_are_none() {
        let tests = BTreeSet::from(["what_it_is_is_so".to_owned()]);
        let page = "# Page\n\n## Part\n\n`a_key` is so.\n`what_it_is_is_so`\n\n";
        let of = |more: &str| of_parts("page", &format!("{page}{more}"), &tests);
        assert_eq!(of(""), [""; 0]);
        assert_eq!(of("## Next\n\nNot tested: anything.\n"), [""; 0]);
        let wrong = of("`what_it_is_not_is_so`\n\n## Next\n\n`a_key`\n");
        assert_eq!(
            wrong,
            [
                "page:8: there is no test what_it_is_not_is_so",
                "page:10: no test shows what is below this heading"
            ]
        );
        assert_eq!(of_parts("page", "", &tests).len(), 1);
    }

    #[test]
    fn a_row_must_name_tests_that_there_are() {
        let page = "| suite | |\n| --- | --- |\n| `x` | 1 |\n\n| promise | test |\n| --- | --- |\n\
                    | it is | `three` |\n";
        let of = |more: &str| of_tables(&format!("{page}{more}"), &tests());
        assert_eq!(of(""), [""; 0]);
        assert_eq!(of("| it is | |\n"), ["docs/POSIX.md:8: no test shows this promise"]);
        assert_eq!(of("| it is |\n").len(), 1);
        assert_eq!(of("| it is | `helper` |\n"), ["docs/POSIX.md:8: there is no test helper"]);
        assert_eq!(of_tables("", &tests()).len(), 1);
    }
}
