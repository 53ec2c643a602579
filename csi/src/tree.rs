//! Walks below the root: name by name and by handle, so that nothing leads out of it.

use base::EntryName;
use tonic::Status;
use wire::DirRef;

use crate::{
    error::{Answer, status},
    fs::Fs,
    mark::Mark,
    volume::VolumeId,
};

/// Permission bits of directories that the plugin makes above volumes: root's alone. A mount of a
/// volume begins at the volume, so its users need no way through.
const ABOVE_MODE: u32 = 0o700;

/// The directory of a volume, and the one above.
pub(crate) struct VolumeDir {
    pub(crate) parent: DirRef,
    pub(crate) name: EntryName,
    pub(crate) dir: DirRef,
}

/// The root directory, which is made where it is missing.
pub(crate) async fn root(fs: &Fs, names: &[EntryName]) -> Answer<DirRef> {
    let mut dir = fs.root();
    for name in names {
        dir = down(fs, &dir, name).await?;
    }
    Ok(dir)
}

/// A directory in another one; made where it is missing.
async fn down(fs: &Fs, dir: &DirRef, name: &EntryName) -> Answer<DirRef> {
    let failed = |error| status("make the directory above a volume", &error);
    let found = match fs.find(dir, name).await.map_err(failed)? {
        Some(found) => found,
        None => match fs.mkdir(dir, name, ABOVE_MODE).await {
            // Another call has made it meanwhile.
            Err(client::Error::Fs(base::FsError::Exists)) => {
                let found = fs.find(dir, name).await.map_err(failed)?;
                found.ok_or_else(|| Status::aborted("a directory came and went"))?
            }
            made => made.map_err(failed)?,
        },
    };
    let shown = name.as_bytes().escape_ascii();
    found.dir.ok_or_else(|| Status::failed_precondition(format!("{shown} is no directory")))
}

/// The directory in which the volume is or will be. None of those above may be a volume.
pub(crate) async fn above(fs: &Fs, root: &DirRef, volume: &VolumeId) -> Answer<DirRef> {
    let mut dir = *root;
    for name in volume.names().0 {
        dir = down(fs, &dir, name).await?;
        if let Some(mark) = Mark::read(fs, &dir).await? {
            return Err(Status::already_exists(format!(
                "{volume} would lie within the volume {}",
                mark.name
            )));
        }
    }
    Ok(dir)
}

/// Finds a volume; `None` where none has this id. A directory within a volume is none.
pub(crate) async fn find(
    fs: &Fs,
    root: &[EntryName],
    volume: &VolumeId,
) -> Answer<Option<(VolumeDir, Mark)>> {
    let failed = |error| status("look for the volume", &error);
    let mut parent = fs.root();
    let (names, name) = volume.names();
    for (level, name) in root.iter().chain(names).enumerate() {
        match fs.find(&parent, name).await.map_err(failed)?.and_then(|found| found.dir) {
            Some(dir) => parent = dir,
            None => return Ok(None),
        }
        if level >= root.len() && Mark::is_at(fs, &parent).await? {
            return Ok(None);
        }
    }
    let found = fs.find(&parent, name).await.map_err(failed)?.and_then(|found| found.dir);
    let Some(dir) = found else { return Ok(None) };
    let mark = Mark::read(fs, &dir).await?;
    Ok(mark.map(|mark| (VolumeDir { parent, name: name.clone(), dir }, mark)))
}
