//! The walk of a listing: a tree of directories in the order of their full keys.
//!
//! S3 orders keys by their bytes. A directory `a` stands for keys that begin with `a/`, so it sorts
//! among the names beside it as `a/`: `a-b` < `a/x` < `a0`. The walk descends only where the prefix
//! leads, begins behind the marker, and never enters a directory that the delimiter `/` rolls up.
//!
//! Cost: one listing for each directory that is entered.

use std::sync::Arc;

/// Where directories come from.
pub(crate) trait Source {
    /// How the source names a directory.
    type Dir: Clone + Send + Sync;
    /// The source's knowledge of an object.
    type Object: Clone + Send + Sync;
    /// Why a listing can fail.
    type Error;

    /// The entries of a directory, sorted by [`Item::sort_key`]; none if it is gone.
    fn items(
        &self,
        dir: &Self::Dir,
    ) -> impl Future<Output = Result<Items<Self>, Self::Error>> + Send;

    /// The directory as an object whose key ends with a slash, if it is one.
    fn own_object(
        &self,
        dir: &Self::Dir,
    ) -> impl Future<Output = Result<Option<Self::Object>, Self::Error>> + Send;
}

/// A sorted directory.
pub(crate) type Items<S> = Arc<Vec<Item<<S as Source>::Dir, <S as Source>::Object>>>;

/// An entry of a directory.
#[derive(Debug, Clone)]
pub(crate) struct Item<D, O> {
    /// The name; of a directory with a slash at its end.
    pub(crate) sort_key: String,
    pub(crate) node: Node<D, O>,
}

/// The node of an entry.
#[derive(Debug, Clone)]
pub(crate) enum Node<D, O> {
    Dir(D),
    Object(O),
}

/// The keys that a listing asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query {
    /// Keys begin with this.
    pub(crate) prefix: String,
    /// Keys that have this behind the prefix are rolled up; empty: none are.
    pub(crate) delimiter: String,
    /// Keys are greater than this.
    pub(crate) after: String,
    /// Number of keys and common prefixes at most.
    pub(crate) limit: usize,
}

/// A line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listed<O> {
    Object(String, O),
    Prefix(String),
}

impl<O> Listed<O> {
    /// The key or common prefix.
    pub(crate) fn text(&self) -> &str {
        match self {
            Listed::Object(text, _) | Listed::Prefix(text) => text,
        }
    }
}

/// A page of a listing.
#[derive(Debug)]
pub(crate) struct Page<O> {
    pub(crate) lines: Vec<Listed<O>>,
    /// Whether there is more behind the last line.
    pub(crate) truncated: bool,
}

/// A directory that the walk is in.
struct Frame<S: Source + ?Sized> {
    path: String,
    items: Items<S>,
    next: usize,
}

/// Whether the walk goes on.
enum Step {
    On,
    Full,
}

/// Lists what `query` asks for below `root`.
pub(crate) async fn walk<S: Source + Sync>(
    source: &S,
    root: &S::Dir,
    query: &Query,
) -> Result<Page<S::Object>, S::Error> {
    let mut page = Page { lines: Vec::new(), truncated: false };
    if query.limit == 0 {
        return Ok(page);
    }
    let items = source.items(root).await?;
    let mut frames = vec![Frame::<S>::begin(String::new(), items, query)];
    while let Some(frame) = frames.last_mut() {
        let Some(item) = frame.items.get(frame.next) else {
            frames.pop();
            continue;
        };
        frame.next += 1;
        let key = format!("{}{}", frame.path, item.sort_key);
        let inside = key.starts_with(&query.prefix);
        // All that comes behind has another beginning, too.
        if !inside && key > query.prefix {
            return Ok(page);
        }
        match &item.node {
            Node::Object(object) => {
                if inside && let Step::Full = page.object(query, key, object.clone()) {
                    return Ok(page);
                }
            }
            Node::Dir(dir) => {
                if query.before_all_of(&key) || (!inside && !query.prefix.starts_with(&key)) {
                    continue;
                }
                let dir = dir.clone();
                if let Some(rolled) = query.rolled_up(&key) {
                    if page.has(rolled) || rolled == query.after {
                        continue;
                    }
                    if query.delimiter == "/" && any_after(source, &dir, &key, query).await? {
                        if let Step::Full = page.prefix(query, rolled.to_owned()) {
                            return Ok(page);
                        }
                        continue;
                    } else if query.delimiter == "/" {
                        continue;
                    }
                }
                if inside
                    && let Some(object) = source.own_object(&dir).await?
                    && let Step::Full = page.object(query, key.clone(), object)
                {
                    return Ok(page);
                }
                let items = source.items(&dir).await?;
                frames.push(Frame::begin(key, items, query));
            }
        }
    }
    Ok(page)
}

/// Whether a directory that is to be rolled up has a key behind the marker. A directory that the
/// marker does not lead into is believed to have one, and not read.
async fn any_after<S: Source + Sync>(
    source: &S,
    dir: &S::Dir,
    path: &str,
    query: &Query,
) -> Result<bool, S::Error> {
    let Some(rest) = query.after.strip_prefix(path) else { return Ok(true) };
    if rest.is_empty() {
        return Ok(true);
    }
    let below = Query { after: rest.to_owned(), limit: 1, ..Query::default() };
    let page = Box::pin(walk(source, dir, &below)).await?;
    Ok(!page.lines.is_empty())
}

impl<S: Source + ?Sized> Frame<S> {
    /// Begins at the first entry that the prefix and the marker leave.
    fn begin(path: String, items: Items<S>, query: &Query) -> Frame<S> {
        let from = query.prefix.as_str().max(&query.after);
        let next = match from.strip_prefix(path.as_str()) {
            Some(rest) => items.partition_point(|item| {
                let whole =
                    matches!(item.node, Node::Object(_)) || !rest.starts_with(&item.sort_key);
                item.sort_key.as_str() < rest && whole
            }),
            None => 0,
        };
        Frame { path, items, next }
    }
}

impl Query {
    /// Whether all keys below a directory are at or before the marker.
    fn before_all_of(&self, dir: &str) -> bool {
        dir < self.after.as_str() && !self.after.starts_with(dir)
    }

    /// The common prefix of a key, if the delimiter rolls it up.
    fn rolled_up<'k>(&self, key: &'k str) -> Option<&'k str> {
        if self.delimiter.is_empty() {
            return None;
        }
        let rest = key.strip_prefix(&self.prefix)?;
        let at = rest.find(&self.delimiter)?;
        Some(&key[..self.prefix.len() + at + self.delimiter.len()])
    }
}

impl<O> Page<O> {
    /// Whether a common prefix is the last line.
    fn has(&self, prefix: &str) -> bool {
        matches!(self.lines.last(), Some(Listed::Prefix(last)) if last == prefix)
    }

    fn object(&mut self, query: &Query, key: String, object: O) -> Step {
        if key <= query.after {
            return Step::On;
        }
        match query.rolled_up(&key) {
            Some(rolled) => self.prefix(query, rolled.to_owned()),
            None => self.push(query, Listed::Object(key, object)),
        }
    }

    fn prefix(&mut self, query: &Query, prefix: String) -> Step {
        if prefix == query.after || self.has(&prefix) {
            return Step::On;
        }
        self.push(query, Listed::Prefix(prefix))
    }

    fn push(&mut self, query: &Query, line: Listed<O>) -> Step {
        if self.lines.len() == query.limit {
            self.truncated = true;
            return Step::Full;
        }
        self.lines.push(line);
        Step::On
    }
}

#[cfg(test)]
mod tests;
