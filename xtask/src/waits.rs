//! Keeps the table of waits in `docs/DESIGN.md` true: each constant of type `Duration` in the
//! crates of the protocols has a row with its value, and each row has a constant.
//!
//! A row looks like "| 250 ms | `meta/src/space_guard.rs` `LOOK_PERIOD` | meaning |". Constants of
//! tests have none, and neither have those that are another name of a constant.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const PAGE: &str = "docs/DESIGN.md";
const FOLDERS: [&str; 4] = ["meta/src", "client/src", "mount/src", "tls/src"];

/// A file and the name of a constant in it.
type Place = (String, String);

/// The differences between the table and the code, given all files of the tree.
pub(crate) fn problems(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut waits = BTreeMap::new();
    for file in files {
        let Ok(path) = file.strip_prefix(root) else { continue };
        let is_test = path
            .components()
            .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs")));
        if is_test || !FOLDERS.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let text = fs::read_to_string(file).unwrap_or_default();
        for (name, micros) in waits_of(&text) {
            waits.insert((path.display().to_string(), name), micros);
        }
    }
    let page = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    differences(&waits, &rows_of(&page))
}

/// The constants of a source file and their values in microseconds.
fn waits_of(text: &str) -> Vec<(String, u64)> {
    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    product.lines().filter_map(wait_of).collect()
}

fn wait_of(line: &str) -> Option<(String, u64)> {
    let (_, constant) = line.split_once("const ")?;
    let (name, value) = constant.split_once(": Duration = Duration::from_")?;
    let (unit, number) = value.strip_suffix(");")?.split_once('(')?;
    let micros = match unit {
        "secs" => 1_000_000,
        "millis" => 1_000,
        "micros" => 1,
        _ => return None,
    };
    Some((name.to_owned(), micros * number.parse::<u64>().ok()?))
}

/// The rows of the table and their values in microseconds.
fn rows_of(page: &str) -> BTreeMap<Place, u64> {
    page.lines().filter_map(row_of).collect()
}

fn row_of(line: &str) -> Option<(Place, u64)> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
    let (number, unit) = cells.next()?.split_once(' ')?;
    let micros = match unit {
        "s" => 1_000_000,
        "ms" => 1_000,
        "µs" => 1,
        _ => return None,
    };
    let (file, name) = cells.next()?.strip_prefix('`')?.strip_suffix('`')?.split_once("` `")?;
    Some(((file.to_owned(), name.to_owned()), micros * number.parse::<u64>().ok()?))
}

fn differences(waits: &BTreeMap<Place, u64>, rows: &BTreeMap<Place, u64>) -> Vec<String> {
    let mut problems = Vec::new();
    for ((file, name), micros) in waits {
        match rows.get(&(file.clone(), name.clone())) {
            None => problems.push(format!("{PAGE}: the table of waits lacks `{file}` `{name}`")),
            Some(told) if told != micros => {
                problems.push(format!("{PAGE}: `{file}` `{name}` is {micros} µs, not {told} µs"));
            }
            Some(_) => {}
        }
    }
    let gone = rows.keys().filter(|place| !waits.contains_key(*place));
    problems.extend(gone.map(|(file, name)| format!("{PAGE}: there is no `{file}` `{name}`")));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "const A: Duration = Duration::from_millis(250);\n\
                        pub(crate) const B: Duration = Duration::from_secs(3);\n\
                        const C: Duration = other::A;\n\
                        #[cfg(test)]\n\
                        mod tests {\n\
                        const D: Duration = Duration::from_secs(1);\n";

    fn found(page: &str) -> Vec<String> {
        let waits =
            waits_of(CODE).into_iter().map(|(name, wait)| (("f.rs".to_owned(), name), wait));
        differences(&waits.collect(), &rows_of(page))
    }

    #[test]
    fn the_table_of_waits_has_what_the_code_has() {
        let row = |value, name| format!("| {value} | `f.rs` `{name}` | what for |\n");
        let (a, b) = (row("250 ms", "A"), row("3 s", "B"));
        assert_eq!(found(&(a.clone() + &b)), [""; 0]);
        assert!(found(&a)[0].contains("lacks `f.rs` `B`"));
        assert!(found(&(row("25 ms", "A") + &b))[0].contains("is 250000 µs, not 25000 µs"));
        assert!(found(&(a + &b + &row("1 s", "D")))[0].contains("there is no `f.rs` `D`"));
    }
}
