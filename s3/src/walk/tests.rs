//! The walk over trees in memory, beside a sorted list of keys.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
};

use futures::FutureExt as _;
use proptest::prelude::*;

use super::*;

/// A bucket in memory: its keys. A directory is its path, with a slash at its end.
struct Memory {
    keys: BTreeSet<String>,
    listed: AtomicUsize,
}

impl Source for Memory {
    type Dir = String;
    type Object = ();
    type Error = Infallible;

    async fn items(&self, dir: &String) -> Result<Items<Memory>, Infallible> {
        self.listed.fetch_add(1, Ordering::Relaxed);
        let below = self.keys.iter().filter_map(|key| key.strip_prefix(dir.as_str()));
        let mut items = BTreeMap::new();
        for rest in below.filter(|rest| !rest.is_empty()) {
            match rest.split_once('/') {
                Some((name, _)) => {
                    let name = format!("{name}/");
                    let path = format!("{dir}{name}");
                    items.insert(name, Node::Dir(path));
                }
                None => drop(items.insert(rest.to_owned(), Node::Object(()))),
            }
        }
        let items = items.into_iter().map(|(sort_key, node)| Item { sort_key, node });
        Ok(Arc::new(items.collect()))
    }

    async fn own_object(&self, dir: &String) -> Result<Option<()>, Infallible> {
        Ok(self.keys.contains(dir).then_some(()))
    }
}

impl Memory {
    /// A tree of those keys that can be files and directories beside each other.
    fn new(keys: impl IntoIterator<Item = String>) -> Memory {
        let all: BTreeSet<String> = keys.into_iter().collect();
        let is_dir = |key: &String| {
            let below = format!("{key}/");
            all.iter().any(|other| other.starts_with(&below))
        };
        let keys = all.iter().filter(|key| key.ends_with('/') || !is_dir(key)).cloned().collect();
        Memory { keys, listed: AtomicUsize::new(0) }
    }

    fn list(&self, query: &Query) -> (Vec<String>, bool) {
        let walked = walk(self, &String::new(), query).now_or_never();
        let page = walked.expect("memory does not wait").expect("memory does not fail");
        (page.lines.iter().map(|line| line.text().to_owned()).collect(), page.truncated)
    }

    /// The answer of a sorted list of all keys.
    fn expected(&self, query: &Query) -> (Vec<String>, bool) {
        let mut lines: Vec<String> = Vec::new();
        for key in &self.keys {
            let Some(rest) = key.strip_prefix(&query.prefix) else { continue };
            if *key <= query.after {
                continue;
            }
            let at = rest.find(&query.delimiter).filter(|_| !query.delimiter.is_empty());
            let line = match at {
                Some(at) => &key[..query.prefix.len() + at + query.delimiter.len()],
                None => key,
            };
            if line != query.after && lines.last().is_none_or(|last| last != line) {
                lines.push(line.to_owned());
            }
        }
        let truncated = query.limit > 0 && lines.len() > query.limit;
        lines.truncate(query.limit);
        (lines, truncated)
    }
}

fn query(prefix: &str, delimiter: &str, after: &str, limit: usize) -> Query {
    Query { prefix: prefix.into(), delimiter: delimiter.into(), after: after.into(), limit }
}

#[test]
fn a_directory_sorts_among_names_as_with_its_slash() {
    let memory = Memory::new(["a0", "a/x", "a-b"].map(String::from));
    let (keys, truncated) = memory.list(&query("", "", "", 10));
    assert_eq!((keys, truncated), (["a-b", "a/x", "a0"].map(String::from).to_vec(), false));
}

#[test]
fn only_directories_that_are_needed_are_read() {
    let keys = (0..100).flat_map(|dir| (0..10).map(move |file| format!("{dir:02}/{file}")));
    let memory = Memory::new(keys);
    let reads = |query: Query| {
        let before = memory.listed.load(Ordering::Relaxed);
        memory.list(&query);
        memory.listed.load(Ordering::Relaxed) - before
    };
    assert_eq!(reads(query("", "/", "", 1000)), 1, "rolled up");
    assert_eq!(reads(query("42/", "", "", 1000)), 2, "by prefix");
    assert_eq!(reads(query("42/", "/", "", 1000)), 2, "by prefix and delimiter");
    assert_eq!(reads(query("4", "", "", 1000)), 11, "by the beginning of names");
    assert_eq!(reads(query("", "", "97/5", 1000)), 4, "behind the marker");
    assert_eq!(reads(query("", "", "", 5)), 2, "until the page is full");
}

/// Keys of few letters, so that they often share their beginnings.
fn key() -> impl Strategy<Value = String> {
    prop::collection::vec("[-.0ab]{1,2}", 1..4).prop_flat_map(|names| {
        let path = names.join("/");
        prop_oneof![9 => Just(path.clone()), 1 => Just(format!("{path}/"))]
    })
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[-/0ab]{1,4}", key()]
}

proptest! {
    #[test]
    fn a_listing_is_what_a_sorted_list_says(
        keys in prop::collection::btree_set(key(), 0..40),
        prefix in texts(),
        delimiter in prop_oneof![Just(""), Just("/"), Just("-"), Just("a/")],
        after in texts(),
        limit in 0_usize..12,
    ) {
        let memory = Memory::new(keys);
        let query = query(&prefix, delimiter, &after, limit);
        prop_assert_eq!(memory.list(&query), memory.expected(&query));
    }

    #[test]
    fn pages_together_are_the_whole_listing(
        keys in prop::collection::btree_set(key(), 0..40),
        prefix in texts(),
        delimiter in prop_oneof![Just(""), Just("/"), Just("-")],
        limit in 1_usize..5,
    ) {
        let memory = Memory::new(keys);
        let (whole, _) = memory.list(&query(&prefix, delimiter, "", 1000));
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let (page, truncated) = memory.list(&query(&prefix, delimiter, &after, limit));
            after = page.last().cloned().unwrap_or_default();
            all.extend(page);
            if !truncated {
                break;
            }
        }
        prop_assert_eq!(all, whole);
    }
}
