//! Reads `/lost+found`, for the rule "Nothing that was stable is lost": files whose directories
//! were lost are there.

use base::FsError;
use client::{Client, Error};

/// Returns the contents of all files below `/lost+found`, in no order, or nothing where that does
/// not exist.
///
/// # Errors
/// When anything there cannot be listed or read.
pub async fn files(client: &Client) -> Result<Vec<Vec<u8>>, Error> {
    let (mut dirs, mut found) = (vec!["/lost+found".to_owned()], Vec::new());
    while let Some(dir) = dirs.pop() {
        let listed = match client.read_dir(&dir).await {
            Err(Error::Fs(FsError::NotFound)) if dirs.is_empty() => return Ok(found),
            listed => listed?.all().await?,
        };
        for entry in listed {
            let path = format!("{dir}/{}", String::from_utf8_lossy(entry.name.as_bytes()));
            if entry.is_dir() {
                dirs.push(path);
            } else {
                found.push(client.read(&path).await?.to_vec());
            }
        }
    }
    Ok(found)
}
