//! A tree of small files, made from a seed.
//!
//! Directories nest as those of source trees do. Sizes of files are spread over four orders of
//! magnitude, so that most files are small and most bytes are in large ones. One directory holds a
//! program in C, for a build.

use crate::draws::Draws;

/// Entries of the tree for each of its directories.
const ENTRIES_PER_DIRECTORY: u64 = 16;
/// Entries of the tree for each source file of the program in it.
const ENTRIES_PER_SOURCE: u64 = 80;
/// Sizes are spread over so many powers of two.
const SIZE_POWERS: u64 = 12;
/// Directories above a file, at most.
const DEPTH_MAX: usize = 8;
/// Bytes of text from which contents are cut.
const TEXT_BYTES: usize = 1 << 20;

/// Directory of the program.
const PROGRAM: &str = "program";

/// Directories and files of a tree, in an order in which they can be made.
#[derive(Debug, Clone, PartialEq)]
pub struct Tree {
    /// Paths of the directories, parents first.
    pub directories: Vec<String>,
    /// The files.
    pub files: Vec<File>,
    seed: u64,
}

/// A file of a tree.
#[derive(Debug, Clone, PartialEq)]
pub struct File {
    /// Path from the root of the tree.
    pub path: String,
    /// Content of the file.
    pub content: Content,
}

/// Content of a file.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Part of the tree's text.
    Text {
        /// First byte.
        start: usize,
        /// Number of bytes.
        size: usize,
    },
    /// Written out.
    Whole(String),
}

impl Tree {
    /// A tree of about `entries` files and directories with about so many bytes in all.
    #[must_use]
    pub fn of(seed: u64, entries: u64, bytes: u64) -> Tree {
        let mut draws = Draws::of(seed);
        let mut tree = Tree { directories: Vec::new(), files: Vec::new(), seed };
        let directories = (entries / ENTRIES_PER_DIRECTORY).max(2);
        for number in 1..directories {
            // The top is as likely as each of the others.
            let above = tree.directories.get(draws.index(tree.directories.len() + 1));
            let above = above.filter(|above| above.matches('/').count() + 1 < DEPTH_MAX);
            let above = above.map_or_else(String::new, |above| format!("{above}/"));
            tree.directories.push(format!("{above}dir-{number}"));
        }
        let sources = (entries / ENTRIES_PER_SOURCE).max(2);
        let others = entries.saturating_sub(directories + sources + 3).max(1);
        let weights: Vec<u64> = (0..others).map(|_| weight(&mut draws)).collect();
        let unit = u128::from(bytes) << 32;
        let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
        for (number, weight) in weights.into_iter().enumerate() {
            let at = draws.index(tree.directories.len());
            let size = (unit / sum.max(1) * u128::from(weight)) >> 32;
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let start = draws.index(TEXT_BYTES);
            let path = format!("{}/file-{number}.txt", tree.directories[at]);
            tree.files.push(File { path, content: Content::Text { start, size } });
        }
        tree.add_program(sources);
        tree
    }

    /// Number of files and directories, the root of the tree not counted.
    #[must_use]
    pub fn entries(&self) -> u64 {
        u64::try_from(self.directories.len() + self.files.len()).unwrap_or(u64::MAX)
    }

    /// Directory with the program that `make` builds.
    #[must_use]
    pub fn program(&self) -> &'static str {
        PROGRAM
    }

    /// The text that contents are parts of; a part that ends behind it goes on at its beginning.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let mut draws = Draws::of(!self.seed);
        let words: Vec<String> = (0..4096).map(|_| format!("{:x}", draws.below(1 << 28))).collect();
        let mut text = Vec::with_capacity(TEXT_BYTES + 16);
        while text.len() < TEXT_BYTES {
            let word = &words[draws.index(words.len())];
            text.extend_from_slice(word.as_bytes());
            text.push(if draws.below(12) == 0 { b'\n' } else { b' ' });
        }
        text.truncate(TEXT_BYTES);
        text
    }

    fn add_program(&mut self, sources: u64) {
        let mut whole = |name: &str, text: String| {
            let path = format!("{PROGRAM}/{name}");
            self.files.push(File { path, content: Content::Whole(text) });
        };
        let mut calls = String::new();
        for number in 0..sources {
            let name = format!("part_{number}");
            whole(
                &format!("{name}.c"),
                format!(
                    "#include <stdio.h>\n#include \"parts.h\"\n\
                     int {name}(int n) {{ return n > 0 ? snprintf(0, 0, \"%d\", n) + {number} : 0; }}\n"
                ),
            );
            calls += &format!("int {name}(int n);\n");
        }
        let sum: Vec<_> = (0..sources).map(|number| format!("part_{number}(n)")).collect();
        let main = format!(
            "#include \"parts.h\"\nint main(int n, char **v) {{ (void)v; return ({}) == 0; }}\n",
            sum.join(" + ")
        );
        whole("parts.h", calls);
        whole("main.c", main);
        let make = "SOURCES := $(wildcard *.c)\n\
                    program: $(SOURCES:.c=.o)\n\t$(CC) -o $@ $^\n\
                    %.o: %.c parts.h\n\t$(CC) -c -o $@ $<\n";
        whole("Makefile", make.to_owned());
        self.directories.push(PROGRAM.to_owned());
    }
}

impl Content {
    /// The bytes; `text` is [`Tree::text`].
    #[must_use]
    pub fn bytes(&self, text: &[u8]) -> Vec<u8> {
        match self {
            Content::Whole(text) => text.clone().into_bytes(),
            Content::Text { start, size } => {
                let mut bytes = Vec::with_capacity(*size);
                let mut rest = text.get(*start..).unwrap_or(text);
                while bytes.len() < *size && !text.is_empty() {
                    let part = rest.get(..*size - bytes.len()).unwrap_or(rest);
                    bytes.extend_from_slice(part);
                    rest = text;
                }
                bytes
            }
        }
    }
}

/// A size before it is scaled: as many files have sizes of each power of two.
fn weight(draws: &mut Draws) -> u64 {
    let power = 1_u64 << draws.below(SIZE_POWERS);
    power * 64 + draws.below(power * 64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "these are tests")]

    use base::HashSet;

    use super::*;

    fn bytes(tree: &Tree) -> u64 {
        let text = tree.text();
        tree.files.iter().map(|file| file.content.bytes(&text).len() as u64).sum()
    }

    #[test]
    fn a_tree_is_that_of_its_seed() {
        let tree = Tree::of(1, 200, 100_000);
        assert_eq!(tree, Tree::of(1, 200, 100_000));
        assert_ne!(tree, Tree::of(2, 200, 100_000));
        assert_eq!(tree.text(), Tree::of(1, 200, 100_000).text());
    }

    #[test]
    fn a_tree_has_what_was_asked_for() {
        let tree = Tree::of(7, 2000, 20_000_000);
        assert!((1990..=2010).contains(&tree.entries()), "{}", tree.entries());
        assert!((19_000_000..21_000_000).contains(&bytes(&tree)), "{}", bytes(&tree));
        let small = tree.files.iter().filter(|file| match &file.content {
            Content::Text { size, .. } => *size <= 4096,
            Content::Whole(text) => text.len() <= 4096,
        });
        let small = small.count() * 100 / tree.files.len();
        assert!((40..80).contains(&small), "{small} % are small");
    }

    #[test]
    fn everything_can_be_made_in_the_order_of_the_lists() {
        let tree = Tree::of(3, 500, 10_000);
        let mut made: HashSet<&str> = HashSet::default();
        for directory in &tree.directories {
            let above = directory.rsplit_once('/').map(|(above, _)| above);
            assert!(above.is_none_or(|above| made.contains(above)), "{directory}");
            assert!(directory.matches('/').count() < DEPTH_MAX);
            assert!(made.insert(directory), "{directory} comes twice");
        }
        let mut files: HashSet<&str> = HashSet::default();
        for file in &tree.files {
            let (above, _) = file.path.rsplit_once('/').unwrap();
            assert!(made.contains(above), "{}", file.path);
            assert!(files.insert(&file.path), "{} comes twice", file.path);
        }
        assert!(files.contains("program/Makefile") && files.contains("program/part_5.c"));
    }
}
