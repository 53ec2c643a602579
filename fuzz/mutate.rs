//! Runs the fuzz targets as plain tests: on the corpus, on seeds, and on mutations of both.
//!
//! The tests of `wire`, `meta` and `fuse` include this file by its path, because those crates share
//! no other one. The mutations are the same in every run. A fuzzer (`fuzz/README.md`) finds other
//! inputs, and its findings go into the corpus.

use std::{fs, path::Path};

/// Runs `target` on the files of its corpus, on `seeds`, and on `rounds` mutations of them.
pub(crate) fn run(name: &str, seeds: Vec<Vec<u8>>, rounds: u32, target: impl Fn(&[u8])) {
    let mut inputs = corpus(name);
    inputs.extend(seeds);
    assert!(!inputs.is_empty(), "{name} has neither corpus nor seeds");
    inputs.iter().for_each(|input| target(input));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..rounds {
        let mut input = inputs[random.below(inputs.len())].clone();
        for _ in 0..=random.below(4) {
            let other = &inputs[random.below(inputs.len())];
            change(&mut input, other, &mut random);
        }
        target(&input);
    }
}

/// The bytes in a golden file whose names start with `subject`.
#[allow(dead_code, reason = "one of the crates that take this file in has no golden bytes")]
pub(crate) fn golden(file: &Path, subject: &str) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(file).expect("golden files are there");
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let found: Vec<_> =
        lines.filter(|(name, _)| name.starts_with(subject)).map(|(_, hex)| unhex(hex)).collect();
    assert!(!found.is_empty(), "no golden line starts with {subject}");
    found
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("golden bytes are hex");
    (0..text.len()).step_by(2).map(digits).collect()
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).expect("readable")).collect()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 33).expect("31 bits") % end.max(1)
    }

    /// Bytes that are often at an edge.
    fn byte(&mut self) -> u8 {
        const EDGES: [u8; 8] = [0, 1, 2, 0x2f, 0x7f, 0x80, 0xfe, 0xff];
        let drawn = self.next().to_le_bytes();
        if drawn[1] & 1 == 0 { EDGES[usize::from(drawn[2] % 8)] } else { drawn[3] }
    }
}

fn change(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(input.len() + 1);
    match random.below(8) {
        0 | 1 if at < input.len() => input[at] = random.byte(),
        2 if at < input.len() => input[at] ^= 1 << random.below(8),
        3 => input.insert(at, random.byte()),
        4 if at < input.len() => {
            input.remove(at);
        }
        5 => input.truncate(at),
        6 => {
            let from = random.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        // The longest number there is.
        7 => {
            let end = (at + 9).min(input.len());
            input.splice(at..end, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
        }
        _ => input.push(random.byte()),
    }
}
