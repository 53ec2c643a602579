//! The pages of promises: each names the tests that show what it says, and each of these tests is
//! there.
//!
//! In `docs/SEMANTICS.md` every paragraph below a heading ends with a line `Shown by` and the
//! tests; in `docs/POSIX.md` every table of promises has them in its last column.
//! `docs/OPERATIONS.md` and `docs/KEEPING.md` have them anywhere in the text: each part below a
//! heading of the second level names tests, or says `Not tested`. A name without a test, a promise
//! without a name, and a page that is not there are problems. What a test is: whatever has
//! `#[test]`, or stands in a list of the simulation's bugs (`finds! { name: Bug, ... }`).
//!
//! A test that a page names has a name of its own. A paragraph of `docs/SEMANTICS.md` names at
//! least one test of the real thing, which is any that is not of values, of the model or of a mount
//! of the model alone.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const PARAGRAPHS: &str = "docs/SEMANTICS.md";
const TABLES: &str = "docs/POSIX.md";
const PARTS: [&str; 2] = ["docs/OPERATIONS.md", "docs/KEEPING.md"];
const SHOWN_BY: &str = "Shown by ";
/// Folders whose tests need no server.
const WITHOUT_SERVER: [&str; 4] = ["base/src", "client/src/model", "fuse", "mount"];
/// A test in those folders that calls this runs with a server, too.
const WITH_SERVER: &str = "on_each(";

/// A test, or several of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Test {
    /// Number of tests that have the name.
    count: usize,
    /// Whether a server, or all of the system, is in it.
    is_real: bool,
}

type Tests = BTreeMap<String, Test>;

/// Returns the problems of the pages, given all files of the tree.
pub(crate) fn problems(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut tests = Tests::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")) {
        let of = file.strip_prefix(root).unwrap_or(file);
        let is_real = !WITHOUT_SERVER.iter().any(|folder| of.starts_with(folder));
        add(&mut tests, &fs::read_to_string(file).unwrap_or_default(), is_real);
    }
    let page = |name| fs::read_to_string(root.join(name)).unwrap_or_default();
    let mut problems = of_paragraphs(&page(PARAGRAPHS), &tests);
    problems.extend(of_tables(&page(TABLES), &tests));
    for name in PARTS {
        problems.extend(of_parts(name, &page(name), &tests));
    }
    problems
}

/// Adds the tests of a source file. All of them are real if the file's tests are.
fn add(tests: &mut Tests, text: &str, is_real: bool) {
    for (name, with_server) in tests_of(text) {
        let test = tests.entry(name).or_insert(Test { count: 0, is_real: false });
        test.count += 1;
        test.is_real |= is_real || with_server;
    }
}

/// The tests of a source file, and whether each calls [`WITH_SERVER`].
fn tests_of(text: &str) -> Vec<(String, bool)> {
    let mut tests = Vec::new();
    let (mut marked, mut listed, mut within) = (false, false, false);
    for line in text.lines().map(str::trim) {
        marked |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let function = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
        if let Some(function) = function {
            let name = name_of(function).filter(|_| marked);
            within = name.is_some();
            tests.extend(name.map(|name| (name, false)));
            marked = false;
        }
        if let Some((_, with_server)) = tests.last_mut().filter(|_| within) {
            *with_server |= line.contains(WITH_SERVER);
        }
        listed = line == "finds! {" || (listed && line != "}");
        if let Some((name, _)) = line.split_once(": ").filter(|_| listed) {
            tests.extend(name_of(name).map(|name| (name, false)));
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
fn of_paragraphs(page: &str, tests: &Tests) -> Vec<String> {
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
            let wrong = of_names(PARAGRAPHS, at, names, tests);
            let is_real = names_in(names).any(|name| tests.get(name).is_some_and(|t| t.is_real));
            if wrong.is_empty() && !is_real {
                problems.push(format!("{PARAGRAPHS}:{at}: no test with a server shows this"));
            }
            problems.extend(wrong);
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
fn of_tables(page: &str, tests: &Tests) -> Vec<String> {
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
fn of_parts(name: &str, page: &str, tests: &Tests) -> Vec<String> {
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
            problems.extend(wrong(name, at, shown, tests));
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
fn of_names(page: &str, line: usize, text: &str, tests: &Tests) -> Vec<String> {
    if names_in(text).next().is_none() {
        return vec![format!("{page}:{line}: no test shows this promise")];
    }
    names_in(text).filter_map(|name| wrong(page, line, name, tests)).collect()
}

/// The names in a text.
fn names_in(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The problem with a name of a test, if there is one.
fn wrong(page: &str, line: usize, name: &str, tests: &Tests) -> Option<String> {
    match tests.get(name).map_or(0, |test| test.count) {
        0 => Some(format!("{page}:{line}: there is no test {name}")),
        1 => None,
        count => Some(format!("{page}:{line}: {count} tests are called {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#[test]\nfn one() {}\n#[tokio::test(start_paused = true)]\nasync fn two() {}\n\
                          fn helper() {}\n#[test]\n#[expect(unsafe_code)]\n/// Why.\nfn three() {}\n\
                          finds! {\n    four: Bug,\n}\nlet five: u8 = 5;\n";

    fn tests() -> Tests {
        let mut tests = Tests::new();
        add(&mut tests, SOURCE, true);
        tests
    }

    #[test]
    fn tests_are_found_by_their_marks() {
        let names: Vec<_> = tests_of(SOURCE).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["one", "two", "three", "four"]);
    }

    #[test]
    fn a_paragraph_must_name_a_test_with_a_server_and_no_name_of_two() {
        let mut tests = tests();
        add(&mut tests, "#[test]\nfn one() {}\n#[test]\nfn values() {}\n", false);
        add(&mut tests, "#[test]\nfn each() {\n    on_each(|_| {});\n}\nfn on_each() {}\n", false);
        let of =
            |names: &str| of_paragraphs(&format!("## Part\n\nIt is.\nShown by {names}."), &tests);
        assert_eq!(of("`values`, `two`"), [""; 0]);
        assert_eq!(of("`each`"), [""; 0]);
        assert_eq!(of("`values`"), ["docs/SEMANTICS.md:3: no test with a server shows this"]);
        assert_eq!(of("`one`"), ["docs/SEMANTICS.md:3: 2 tests are called one"]);
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
        let test = Test { count: 1, is_real: false };
        let tests = Tests::from([("what_it_is_is_so".to_owned(), test)]);
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
