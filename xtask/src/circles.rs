//! Keeps the modules of each crate from growing together: how many of them import each other in one
//! circle is written here, and may only become fewer.
//!
//! A module is a file. An import is a path that begins with `crate`, `super` or `self`, or with a
//! module that is imported or inside, in a `use` or in code. A name that a module only hands on
//! counts as an import of the module that it comes from. Tests are left out, and so are the root of
//! a crate, which lists its modules, and the path of a visibility.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    slice::from_ref,
};

/// The modules in the largest circle of a crate, where these are more than [`FEW`].
const LARGEST: &[(&str, usize)] = &[("meta", 7), ("store", 6), ("region", 6)];

/// A circle of so few modules is one mechanism in several files.
const FEW: usize = 4;

/// A module's path within its crate; the root's is empty.
type Module = Vec<String>;

/// The names that a module uses, and those that it hands on.
#[derive(Default)]
struct Names {
    used: Vec<Vec<String>>,
    /// Paths in code that begin with another name, which may be that of an imported module.
    others: Vec<Vec<String>>,
    handed_on: Vec<Vec<String>>,
    tests: Vec<String>,
}

/// Crates whose largest circle is not as large as it is written here.
pub(crate) fn problems(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut crates = BTreeMap::<String, BTreeMap<Module, String>>::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")) {
        let Ok(path) = file.strip_prefix(root) else { continue };
        let Some((name, module)) = module_of(path) else { continue };
        let text = fs::read_to_string(file).unwrap_or_default();
        crates.entry(name).or_default().insert(module, text);
    }
    let largest = crates.iter().map(|(name, modules)| (name.as_str(), largest_circle(modules)));
    largest.filter_map(|(name, circle)| problem(name, &circle)).collect()
}

fn problem(name: &str, circle: &[Module]) -> Option<String> {
    let (is, row) = (circle.len(), LARGEST.iter().find(|(of, _)| *of == name));
    let may_be = row.map_or(FEW, |(_, modules)| *modules);
    let shown: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
    if is > may_be {
        let shown = shown.join(", ");
        return Some(format!(
            "{name}: {is} modules import each other in one circle, and {may_be} may: {shown}"
        ));
    }
    let lower = row.is_some() && is < may_be;
    lower.then(|| format!("{name}: write {is} for {may_be} in xtask/src/circles.rs"))
}

/// The crate and the module of a source file; `None` for the files of tests, benches and others.
fn module_of(path: &Path) -> Option<(String, Module)> {
    let mut parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    let (name, src) = (parts.next()?, parts.next()?);
    let mut module: Module = parts.collect();
    if src != "src" || module.is_empty() {
        return None;
    }
    let last = module.pop()?.strip_suffix(".rs")?.to_owned();
    let is_root = module.is_empty() && (last == "lib" || last == "main");
    module.extend((!is_root).then_some(last));
    Some((name, module))
}

/// The modules of the largest circle of imports, in order.
fn largest_circle(texts: &BTreeMap<Module, String>) -> Vec<Module> {
    let mut names: BTreeMap<&Module, Names> = BTreeMap::new();
    for (module, text) in texts {
        names.insert(module, Names::of(&tokens(text)));
    }
    let tests: Vec<Module> = names
        .iter()
        .flat_map(|(module, names)| {
            names.tests.iter().map(|test| [&module[..], from_ref(test)].concat())
        })
        .collect();
    names.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    let is_module = |path: &[String]| names.contains_key(&path.to_vec());
    let mut handed_on = BTreeMap::new();
    for (module, of) in &names {
        for path in &of.handed_on {
            let name = path.last().cloned().unwrap_or_default();
            if let Some(from) = resolve(module, path, &is_module) {
                handed_on.insert(((*module).clone(), name), from);
            }
        }
    }
    let mut imports = BTreeMap::<Module, BTreeSet<Module>>::new();
    for (module, of) in &names {
        let paths = of.used.iter().cloned().chain(of.by_modules());
        let used = paths.filter_map(|path| resolve(module, &path, &is_module));
        let used = used.map(|mut found| {
            // Names are handed on a few times at most.
            for _ in 0..4 {
                let Some(from) = handed_on.get(&found) else { break };
                found = from.clone();
            }
            found.0
        });
        let others = used.filter(|used| used != *module && !used.is_empty());
        imports.insert((*module).clone(), others.collect());
    }
    circle_in(&imports)
}

/// The module that a path leads to, and the name in it.
fn resolve(
    from: &[String],
    path: &[String],
    is_module: &impl Fn(&[String]) -> bool,
) -> Option<(Module, String)> {
    let (mut at, mut rest) = (from.to_vec(), path);
    match path.first()?.as_str() {
        "crate" => (at, rest) = (Module::new(), &path[1..]),
        "super" | "self" => {
            while let [first, others @ ..] = rest
                && matches!(first.as_str(), "super" | "self")
            {
                if first == "super" {
                    at.pop();
                }
                rest = others;
            }
        }
        child => {
            let inner = [from, &[child.to_owned()]].concat();
            is_module(&inner).then_some(())?;
        }
    }
    while let [next, others @ ..] = rest {
        let inner = [&at[..], from_ref(next)].concat();
        if !is_module(&inner) {
            break;
        }
        (at, rest) = (inner, others);
    }
    Some((at, rest.first().cloned().unwrap_or_default()))
}

/// The largest set of modules of which each reaches each.
fn circle_in(imports: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Module> {
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        imports.keys().map(|module| (module, reached(imports, module))).collect();
    let circle = |module: &Module| -> Vec<Module> {
        let there = reach[module]
            .iter()
            .filter(|other| reach.get(**other).is_some_and(|back| back.contains(module)));
        there.map(|other| (*other).clone()).collect()
    };
    imports.keys().map(circle).max_by_key(Vec::len).unwrap_or_default()
}

fn reached<'a>(
    imports: &'a BTreeMap<Module, BTreeSet<Module>>,
    from: &'a Module,
) -> BTreeSet<&'a Module> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for used in imports.get(module).into_iter().flatten() {
            if found.insert(used) {
                next.push(used);
            }
        }
    }
    found
}

/// The words and marks of a source file, without comments and literals.
fn tokens(text: &str) -> Vec<String> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let end = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first == '"' {
            end_of_string(rest)
        } else if let Some(raw) = rest.strip_prefix('r').filter(|raw| raw.starts_with(['"', '#'])) {
            let marks = raw.len() - raw.trim_start_matches('#').len();
            match raw[marks..].starts_with('"') {
                true => {
                    let close = format!("\"{}", "#".repeat(marks));
                    let body = &raw[marks + 1..];
                    2 + marks + body.find(&close).map_or(body.len(), |at| at + close.len())
                }
                // A raw identifier.
                false => 1,
            }
        } else if first == '\'' {
            // A character, or a lifetime.
            let mut chars = rest[1..].chars();
            match (chars.next(), chars.next()) {
                (Some('\\'), Some(escaped)) => {
                    let from = 2 + escaped.len_utf8();
                    from + rest[from..].find('\'').map_or(0, |at| at + 1)
                }
                (Some(c), Some('\'')) => 2 + c.len_utf8(),
                _ => 1,
            }
        } else if is_word(first) {
            let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
            tokens.push(rest[..end].to_owned());
            end
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else {
            tokens.extend((!first.is_whitespace()).then(|| first.to_string()));
            first.len_utf8()
        };
        rest = &rest[end.min(rest.len())..];
    }
    tokens
}

fn end_of_string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    text.len()
}

impl Names {
    fn of(tokens: &[String]) -> Names {
        let (mut names, mut at) = (Names::default(), 0);
        while at < tokens.len() {
            let word = tokens[at].as_str();
            if word == "#" && is_of_tests(&tokens[at..]) {
                at = names.skip_test(tokens, at);
            } else if word == "in" && at > 1 && tokens[at - 1] == "(" && tokens[at - 2] == "pub" {
                at = end_of(tokens, at, ")");
            } else if word == "use" {
                let is_public = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
                let end = end_of(tokens, at, ";");
                let into = if is_public { &mut names.handed_on } else { &mut names.used };
                leaves(&tokens[at + 1..end], &[], into);
                at = end;
            } else if tokens.get(at + 1).is_some_and(|next| next == "::")
                && (at == 0 || tokens[at - 1] != "::")
            {
                let is_ours = matches!(word, "crate" | "super" | "self");
                let mut path = vec![word.to_owned()];
                while let [mark, name, ..] = &tokens[at + 1..]
                    && mark == "::"
                    && name.chars().all(|c| c.is_alphanumeric() || c == '_')
                {
                    path.push(name.clone());
                    at += 2;
                }
                if is_ours { &mut names.used } else { &mut names.others }.push(path);
                at += 1;
            } else {
                at += 1;
            }
        }
        names
    }

    /// The paths in code that begin with a module, in full.
    fn by_modules(&self) -> impl Iterator<Item = Vec<String>> {
        self.others.iter().map(|path| {
            let imported = self.used.iter().chain(&self.handed_on).find_map(|used| {
                let used = used.strip_suffix(&["self".to_owned()]).unwrap_or(used);
                (used.last() == path.first()).then_some(used)
            });
            imported.map_or_else(|| path.clone(), |used| [used, &path[1..]].concat())
        })
    }

    /// Skips an item of tests, and notes a module. Returns where the code goes on.
    fn skip_test(&mut self, tokens: &[String], from: usize) -> usize {
        let (end, block) = (end_of(tokens, from, ";"), end_of(tokens, from, "{"));
        if end < block {
            if let [.., word, name] = &tokens[from..end]
                && word == "mod"
            {
                self.tests.push(name.clone());
            }
            return end;
        }
        let mut depth = 0;
        for (at, token) in tokens.iter().enumerate().skip(block) {
            match token.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at + 1;
            }
        }
        tokens.len()
    }
}

/// Whether an attribute begins here that is for tests only.
fn is_of_tests(tokens: &[String]) -> bool {
    let attribute = &tokens[..end_of(tokens, 0, "]").min(tokens.len())];
    let has = |word: &str| attribute.iter().any(|token| token == word);
    has("cfg") && has("test")
}

fn end_of(tokens: &[String], from: usize, mark: &str) -> usize {
    let found = tokens.iter().skip(from).position(|token| token == mark);
    found.map_or(tokens.len(), |at| from + at)
}

/// The paths of a tree of imports.
fn leaves(tree: &[String], prefix: &[String], into: &mut Vec<Vec<String>>) {
    let (mut depth, mut start) = (0, 0);
    for at in 0..=tree.len() {
        match tree.get(at).map(String::as_str) {
            Some("{") => depth += 1,
            Some("}") => depth -= 1,
            Some(",") | None if depth == 0 => {
                leaf(&tree[start..at], prefix, into);
                start = at + 1;
            }
            _ => {}
        }
    }
}

fn leaf(branch: &[String], prefix: &[String], into: &mut Vec<Vec<String>>) {
    let brace = end_of(branch, 0, "{");
    let own = branch[..brace].iter().take_while(|token| *token != "as");
    let path: Vec<String> =
        prefix.iter().chain(own.filter(|token| *token != "::")).cloned().collect();
    match branch.get(brace + 1..branch.len().saturating_sub(1)) {
        Some(inner) => leaves(inner, &path, into),
        None if path.len() > prefix.len() => into.push(path),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(files: &[(&str, &str)]) -> Vec<String> {
        let modules = files.iter().map(|(path, text)| {
            let (_, module) = module_of(Path::new(path)).expect("a module");
            (module, (*text).to_owned())
        });
        largest_circle(&modules.collect()).iter().map(|module| module.join("::")).collect()
    }

    #[test]
    fn modules_that_import_each_other_are_in_one_circle() {
        let found = circle(&[
            ("a/src/lib.rs", "mod one;\nmod two;\nmod three;\nmod four;"),
            ("a/src/one.rs", "use crate::{two::{self, Two}, four};"),
            ("a/src/two.rs", "pub fn three() { crate::three::run() }"),
            ("a/src/three.rs", "mod inner;\nuse super::one as first;"),
            ("a/src/three/inner.rs", "use super::run;"),
            ("a/src/four.rs", "//! use crate::one;\nconst A: &str = \"use crate::one;\";"),
        ]);
        assert_eq!(found, ["one", "three", "two"]);
    }

    #[test]
    fn a_module_that_is_named_in_code_is_imported() {
        let found = circle(&[
            ("a/src/lib.rs", "mod one;\nmod two;"),
            ("a/src/one.rs", "mod inner;\nfn a() { inner::b() }"),
            ("a/src/one/inner.rs", "use crate::two;\nfn b() { two::deep::c(); std::mem::drop(1) }"),
            ("a/src/two.rs", "mod deep;"),
            ("a/src/two/deep.rs", "use crate::one::{self};\nfn c() { one::a() }"),
        ]);
        assert_eq!(found, ["one", "one::inner", "two::deep"]);
    }

    #[test]
    fn a_name_that_is_handed_on_is_of_the_module_where_it_is() {
        let found = circle(&[
            ("a/src/lib.rs", "mod one;\nmod two;\npub use two::inner::Name;"),
            ("a/src/one.rs", "use crate::Name;"),
            ("a/src/two.rs", "pub mod inner;"),
            ("a/src/two/inner.rs", "use crate::one::Other;"),
        ]);
        assert_eq!(found, ["one", "two::inner"]);
    }

    #[test]
    fn a_module_that_may_see_a_name_is_not_imported() {
        let found = circle(&[
            ("a/src/lib.rs", "mod one;"),
            ("a/src/one.rs", "mod inner;\nfn a() { inner::b() }"),
            ("a/src/one/inner.rs", "pub(in super::super::one) fn b() {}"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn tests_may_import_anything() {
        let found = circle(&[
            ("a/src/lib.rs", "mod one;\nmod two;"),
            ("a/src/one.rs", "use crate::two;\n#[cfg(test)]\nmod tests;"),
            ("a/src/one/tests.rs", "use crate::two;"),
            ("a/src/two.rs", "#[cfg(test)]\nmod tests { use crate::one; fn a() { if true {} } }"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_circle_neither_grows_nor_is_written_too_large() {
        let modules = |count: usize| vec![vec!["one".to_owned()]; count];
        let meta = LARGEST.iter().find(|(name, _)| *name == "meta").map_or(FEW, |(_, is)| *is);
        assert_eq!(problem("meta", &modules(meta)), None);
        assert!(problem("meta", &modules(meta + 1)).is_some_and(|text| text.contains("one")));
        assert!(problem("meta", &modules(meta - 1)).is_some_and(|text| text.contains("write")));
        assert_eq!(problem("base", &modules(FEW)), None);
        assert!(problem("base", &modules(FEW + 1)).is_some());
    }
}
