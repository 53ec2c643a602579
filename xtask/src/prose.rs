//! Keeps comments readable alone: none begins with a pronoun or a headless relative.
//!
//! A reader meets a comment in a hover box, or at the place where a search ends. "It is kept until
//! then" says nothing there; "The lease is kept until the next heartbeat" does. A comment is a run
//! of lines with one marker; its paragraphs after the first may begin as they like.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Words with which no comment begins, in lower case.
const FIRST: [&str; 22] = [
    "and", "as", "he", "his", "it", "its", "nobody", "nothing", "so", "that", "their", "them",
    "these", "they", "those", "what", "whatever", "which", "who", "whoever", "whom", "whose",
];

/// The comments of all source files that begin so.
pub(crate) fn problems(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")) {
        let shown = file.strip_prefix(root).unwrap_or(file).display();
        let text = fs::read_to_string(file).unwrap_or_default();
        for (line, word) in begun_badly(&text) {
            problems.push(format!(
                "{shown}:{line}: a comment begins with {word:?}: name what it is about"
            ));
        }
    }
    problems
}

/// The lines on which comments begin with one of the words, and the words.
fn begun_badly(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut before = None;
    for (line, text) in text.lines().enumerate() {
        let Some((marker, text)) = comment_of(text) else {
            before = None;
            continue;
        };
        // Lists, code and tables of a comment are within it.
        if before != Some(marker)
            && let Some(word) = first_word(text)
        {
            found.push((line + 1, word));
        }
        before = Some(marker);
    }
    found
}

/// The marker of a line of a comment, and its text.
fn comment_of(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let marker = ["///", "//!", "//"].into_iter().find(|marker| line.starts_with(marker))?;
    Some((marker, line[marker.len()..].trim()))
}

/// The word that a comment begins with, if none should.
fn first_word(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
    let word = &text[..end];
    // A name that only looks like such a word is in quotes of code.
    FIRST.contains(&word.to_ascii_lowercase().as_str()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_begins_with_what_it_is_about() {
        let text = "/// It is kept.\nlet a = 1;\n    // Who asks.\n    //! The lease.\n/// `it` is a name.\n\
                    // The first line.\n// What follows is the same comment.\n\n//! So long.\n";
        assert_eq!(begun_badly(text), [(1, "It"), (3, "Who"), (9, "So")]);
        assert_eq!(
            begun_badly("let it = 1; // it is no comment of its own\n/// Italic text.\n"),
            []
        );
    }
}
