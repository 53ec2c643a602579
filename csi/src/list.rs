//! The volumes below the root, in the order of their ids' components.
//!
//! A page goes on after the last id of the page before, whether that volume is still there or not.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use tonic::{Code, Status};
use wire::DirRef;

use crate::{
    error::{Answer, status},
    fs::Fs,
    limit::SizeLimit,
    mark::Mark,
    volume::VolumeId,
};

/// Prefix of the token of a page.
const TOKEN: &str = "after:";
/// Most levels below the root in which volumes are looked for.
const LEVELS_MAX: usize = 16;

/// Volumes with their sizes.
pub(crate) type Listed = Vec<(VolumeId, Option<u64>)>;

/// The token of the page after this id.
pub(crate) fn token(last: &VolumeId) -> String {
    format!("{TOKEN}{last}")
}

/// The id in a token; an empty token has none.
pub(crate) fn parse(token: &str) -> Answer<Option<VolumeId>> {
    if token.is_empty() {
        return Ok(None);
    }
    let id = token.strip_prefix(TOKEN).and_then(|id| VolumeId::parse(id).ok());
    id.map(Some).ok_or_else(|| Status::aborted(format!("{token:?} is no token of this plugin")))
}

/// Up to `max` volumes after an id, and whether there may be more.
pub(crate) async fn page(
    fs: &Fs,
    root: &DirRef,
    after: Option<&VolumeId>,
    max: usize,
) -> Answer<(Listed, bool)> {
    let mut walk =
        Walk { fs, after: after.map(components).unwrap_or_default(), max, found: vec![] };
    let more = walk.down(root, Vec::new()).await?;
    Ok((walk.found, more))
}

fn components(id: &VolumeId) -> Vec<String> {
    id.text().split('/').map(str::to_owned).collect()
}

struct Walk<'a> {
    fs: &'a Fs,
    after: Vec<String>,
    max: usize,
    found: Listed,
}

impl Walk<'_> {
    /// Collects what is below a directory; whether the page is full.
    fn down<'a>(&'a mut self, dir: &'a DirRef, path: Vec<String>) -> BoxFuture<'a, Answer<bool>> {
        Box::pin(async move {
            for (name, dir) in self.dirs(dir).await? {
                let mut path = path.clone();
                path.push(name);
                // Everything below a path comes after the path itself.
                let passed = path < self.after && !self.after.starts_with(&path);
                if passed || path.len() > LEVELS_MAX {
                    continue;
                }
                let mark = match Mark::bytes(self.fs, &dir).await {
                    // The directory was removed meanwhile.
                    Err(status) if status.code() == Code::NotFound => continue,
                    mark => mark?,
                };
                let Some(mark) = mark else {
                    if self.down(&dir, path).await? {
                        return Ok(true);
                    }
                    continue;
                };
                if let Err(status) = Mark::parse(&mark) {
                    let (volume, error) = (path.join("/"), status.message());
                    tracing::warn!(volume, error, "a volume is left out of the list");
                    continue;
                }
                let Ok(id) = VolumeId::parse(&path.join("/")) else { continue };
                if path == self.after {
                    continue;
                }
                if self.found.len() == self.max {
                    return Ok(true);
                }
                self.found.push((id, SizeLimit::read(self.fs, &dir).await?.bytes));
            }
            Ok(false)
        })
    }

    /// The directories in a directory, by name.
    async fn dirs(&self, dir: &DirRef) -> Answer<BTreeMap<String, DirRef>> {
        let failed = |error| status("list volumes", &error);
        let (mut found, mut after) = (BTreeMap::new(), 0);
        loop {
            let page = self.fs.page(dir, after).await.map_err(failed)?;
            after = page.reach;
            for listed in page.entries.into_iter().filter(wire::ReaddirEntry::is_dir) {
                let text = std::str::from_utf8(listed.name.as_bytes()).unwrap_or_default();
                if VolumeId::parse(text).is_err() {
                    continue;
                }
                let dir = match listed.entry.and_then(|entry| entry.dir) {
                    Some(dir) => Some(dir),
                    None => {
                        let found = self.fs.find(dir, &listed.name).await.map_err(failed)?;
                        found.and_then(|entry| entry.dir)
                    }
                };
                found.extend(dir.map(|dir| (text.to_owned(), dir)));
            }
            if page.end {
                return Ok(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_the_last_volume_and_others_are_refused() {
        let id = VolumeId::parse("a/b").unwrap();
        assert_eq!(parse(&token(&id)).unwrap(), Some(id));
        assert_eq!(parse("").unwrap(), None);
        for wrong in ["a/b", "after:", "after:../a"] {
            assert_eq!(parse(wrong).unwrap_err().code(), Code::Aborted);
        }
    }
}
