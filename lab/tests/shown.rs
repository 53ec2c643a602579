//! What a session that must prove its walks was shown once, at the server where a file was born.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod calm;

use base::{Cred, FsError};
use calm::{failed, in_cluster};
use client::FileSystem as _;

#[test]
fn a_file_is_reached_by_its_name_only_as_long_as_its_directory_may_be_searched() {
    in_cluster(async |world, root| {
        let bound = world.connect_bound("bound", 100).await.unwrap();
        let user = Cred { uid: 100, gid: 100, groups: Vec::new() };
        // Some are born at another server than that of their directory.
        for number in 0..6 {
            let [made, shown, hidden] =
                ["made", "shown", "hidden"].map(|name| format!("/{name}-{number}"));
            for (dir, mode) in [(&made, 0o755), (&shown, 0o755), (&hidden, 0o700)] {
                root.mkdir(dir, mode).await.unwrap();
            }
            let path = format!("{shown}/f");
            root.write(format!("{made}/f"), b"contents").await.unwrap();
            root.rename(format!("{made}/f"), &path).await.unwrap();

            let node = bound.client.resolve(&path).await.unwrap();
            bound.client.getattr(&user, &node).await.unwrap();
            root.chmod(&shown, 0o700).await.unwrap();
            assert_eq!(failed(bound.client.getattr(&user, &node).await), FsError::Denied);
            root.chmod(&shown, 0o755).await.unwrap();
            bound.client.getattr(&user, &node).await.unwrap();
            root.rename(&path, format!("{hidden}/f")).await.unwrap();
            assert_eq!(failed(bound.client.getattr(&user, &node).await), FsError::Stale);
        }
    });
}
