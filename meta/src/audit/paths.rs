//! How the path of a directory is found that a line of the audit log names.
//!
//! A path is climbed once, from records of this server, and remembered until any directory is moved
//! anywhere. Of a directory that is on the way up and another server's, or part of a transaction that
//! has not ended, nothing is known: then the line has no path. That is not remembered, as a request
//! may name a directory wrongly.

use std::rc::Rc;

use base::DirId;
use wire::DirRef;

use super::dirs::Dir;
use crate::{paths::Steps, txn::Txn};

/// Most directories of a path; longer ones are not told.
const STEPS_MAX: u32 = 128;
/// Most bytes of a path; longer ones are not told.
const PATH_BYTES_MAX: usize = 4096;

/// A directory as a line names it.
///
/// Race: directories that this group has moved are not in the list of moves yet, so nothing is
/// remembered meanwhile.
pub(super) fn find(txn: &mut Txn<'_>, dir: &DirRef) -> Rc<Dir> {
    let version = txn.shared.invalidations.version();
    let is_kept = !txn.moves();
    if is_kept && let Some(found) = txn.audit_memory().dirs.find(version, dir.id, dir.ino) {
        return found;
    }
    let found = Rc::new(Dir::new(dir.ino, climb(txn, dir)));
    if is_kept && found.path.is_some() {
        txn.audit_memory().dirs.insert(dir.id, Rc::clone(&found));
    }
    found
}

fn climb(txn: &Txn<'_>, dir: &DirRef) -> Option<Vec<u8>> {
    let (mut id, mut home) = (dir.id, dir.home);
    let mut names = Vec::new();
    let mut steps = Steps::bounded(id, STEPS_MAX);
    while id != DirId::ROOT {
        let key = txn.content_key(home, id);
        if !txn.is_here(&key) {
            return None;
        }
        let content = txn.get_content(&key).ok()??;
        (id, home) = (content.parent, content.parent_home);
        names.push(content.name?);
        steps.step(id).ok()?;
    }
    if names.is_empty() {
        return Some(b"/".to_vec());
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name.as_bytes());
    }
    (path.len() <= PATH_BYTES_MAX).then_some(path)
}
