//! Rules about files that neither the compiler nor clippy knows.
//!
//! Every `.rs` file begins by saying what it is, stays short, and holds no unfinished work; no file
//! names a folder of somebody's machine; pages link to what exists; decisions are numbered once;
//! what is promised names the tests that show it (`promises`); comments begin with their subject
//! (`prose`); the table of waits is that of the code (`waits`); the modules of a crate grow no
//! further together (`circles`); words are those of the glossary, and lines are short (`words`).

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};

use crate::{circles, promises, prose, waits, words};

const LINES_MAX: usize = 900;

/// Words of unfinished work. They are put together here so that this file does not hold them.
const UNFINISHED: [&str; 5] = [
    concat!("#[", "ignore"),
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
];

/// Beginnings of paths that exist on one machine only.
const MACHINES: [&str; 3] = [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/")];

/// Folders that are no source: built, served or hidden.
const SKIPPED: [&str; 3] = ["target", "var", "mnt"];
const HIDDEN_KEPT: [&str; 2] = [".cargo", ".ci"];

/// Fails with a list of everything that is not tidy.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    for file in &files {
        let path = file.strip_prefix(root).context("files lie below the root")?;
        // Files that are not text, such as golden bytes, have no rules.
        let Ok(text) = String::from_utf8(fs::read(file)?) else { continue };
        problems.extend(of_file(root, path, &text));
    }
    problems.extend(of_decisions(&files));
    problems.extend(promises::problems(root, &files));
    problems.extend(prose::problems(root, &files));
    problems.extend(waits::problems(root, &files));
    problems.extend(circles::problems(root, &files));
    problems.extend(words::problems(root, &files));
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let hidden = name.starts_with('.') && !HIDDEN_KEPT.contains(&name.as_str());
        if hidden || SKIPPED.contains(&name.as_str()) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn of_file(root: &Path, path: &Path, text: &str) -> Vec<String> {
    let shown = path.display();
    let mut problems = Vec::new();
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if extension == "rs" {
        if !text.starts_with("//! ") {
            problems.push(format!("{shown}: begin with `//! ` and say what the file is"));
        }
        let lines = text.lines().count();
        if lines > LINES_MAX {
            problems.push(format!("{shown}: {lines} lines; the second story gets its own file"));
        }
        problems
            .extend(found(text, &UNFINISHED).map(|(line, word)| format!("{shown}:{line}: {word}")));
    }
    if path.file_name().is_none_or(|name| name != "Cargo.lock") {
        let machines = found(text, &MACHINES)
            .map(|(line, word)| format!("{shown}:{line}: {word} is a folder of one machine"));
        problems.extend(machines);
    }
    if extension == "md" {
        let here = path.parent().unwrap_or(Path::new(""));
        let broken =
            links(text).into_iter().filter(|(_, link)| !root.join(here).join(link).exists());
        problems.extend(broken.map(|(line, link)| format!("{shown}:{line}: no such file: {link}")));
    }
    problems
}

/// Every line, counted from 1, that holds one of the words.
fn found<'a>(text: &'a str, words: &'a [&'a str]) -> impl Iterator<Item = (usize, &'a str)> {
    text.lines().enumerate().flat_map(move |(at, line)| {
        words.iter().filter(move |word| holds(line, word)).map(move |word| (at + 1, *word))
    })
}

/// Whether a line holds a word that is not the tail of a longer word or path.
fn holds(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before
            .is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '_' | '-' | '.' | '}' | ')' | '~'))
    })
}

/// Links of a page to files, with their line. Code and other sites are left out.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut links = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for rest in line.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains(':') && !file.contains(' ') {
                links.push((at + 1, file));
            }
        }
    }
    links
}

fn of_decisions(files: &[PathBuf]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for file in
        files.iter().filter(|file| file.parent().is_some_and(|dir| dir.ends_with("docs/decisions")))
    {
        let Some(name) = file.file_name().and_then(|name| name.to_str()) else { continue };
        let numbered = name.split_once('-').filter(|(number, title)| {
            number.len() == 4
                && number.bytes().all(|c| c.is_ascii_digit())
                && title.ends_with(".md")
        });
        let Some((number, _)) = numbered else {
            problems.push(format!("docs/decisions/{name}: name it NNNN-title.md"));
            continue;
        };
        if let Some(other) = seen.insert(number, name) {
            problems.push(format!("docs/decisions: {name} and {other} have one number"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> Vec<String> {
        of_file(Path::new(env!("CARGO_MANIFEST_DIR")), Path::new(path), text)
    }

    #[test]
    fn a_file_without_a_header_is_found() {
        assert_eq!(problems("a.rs", "//! What it is.\n"), [""; 0]);
        assert_eq!(problems("a.rs", "use std::fs;\n").len(), 1);
    }

    #[test]
    fn a_long_file_is_found() {
        let text = format!("//! Long.\n{}", "//\n".repeat(LINES_MAX));
        assert_eq!(problems("a.rs", &text).len(), 1);
    }

    #[test]
    fn unfinished_work_is_found_with_its_line() {
        let text = format!("//! Header.\nfn f() {{ {}() }}\n", UNFINISHED[1]);
        assert_eq!(problems("a.rs", &text), [format!("a.rs:2: {}", UNFINISHED[1])]);
    }

    #[test]
    fn a_path_of_one_machine_is_found_in_any_text() {
        let text = format!("see {}me\n", MACHINES[0]);
        assert_eq!(problems("a.txt", &text).len(), 1);
        assert_eq!(problems("a.txt", &format!("see a{}me\n", MACHINES[0])), [""; 0]);
    }

    #[test]
    fn a_link_to_a_missing_file_is_found() {
        let page = "[here](Cargo.toml#x) [top](#top) [web](https://example.org) [gone](gone.md)\n";
        assert_eq!(problems("a.md", page), ["a.md:1: no such file: gone.md"]);
        assert_eq!(problems("a.md", &format!("```\n{page}```\n")), [""; 0]);
    }

    #[test]
    fn decisions_are_numbered_once() {
        let files =
            ["0001-a.md", "0001-b.md", "c.md"].map(|name| Path::new("docs/decisions").join(name));
        assert_eq!(of_decisions(&files).len(), 2);
    }
}
