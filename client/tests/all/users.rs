//! Several users of one client: what one of them has open lets no other do anything.

use base::{Cred, FsError};
use client::{Client, OpenOptions};

use crate::world::{World, fs};

/// A client, and two users of its session.
async fn two_users(world: &World) -> (Client, Client, Client) {
    let root = world.client().await;
    root.mkdir("/d", 0o777).await.unwrap();
    let user = |uid| root.as_user(Cred { uid, gid: uid, groups: Vec::new() });
    let (five, six) = (user(5), user(6));
    (root, five, six)
}

#[tokio::test(start_paused = true)]
async fn what_one_user_of_a_session_has_open_lets_no_other_write() {
    World::run(async |world| {
        let (root, five, six) = two_users(&world).await;
        let options = OpenOptions::both().create_new(0o644);
        let file = five.open_with("/d/f", options).await.unwrap();
        file.write_at(0, b"mine").await.unwrap();
        file.flush().await.unwrap();
        // Other clients' answers are those of a server that knows nothing of the open.
        assert_eq!(fs(six.truncate("/d/f", 0).await), FsError::Denied);
        assert_eq!(
            fs(six.open_with("/d/f", OpenOptions::writing()).await.map(drop)),
            FsError::Denied
        );
        let reader = six.open("/d/f").await.unwrap();
        assert_eq!(reader.read_all().await.unwrap(), &b"mine"[..]);
        assert_eq!(fs(six.truncate("/d/f", 0).await), FsError::Denied);

        // The user may still do with its open file what the mode forbids now; other users may not.
        root.chmod("/d/f", 0).await.unwrap();
        root.chown("/d/f", Some(0), Some(0)).await.unwrap();
        file.set_len(2).await.unwrap();
        file.write_at(2, b"ne").await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(reader.read_all().await.unwrap(), &b"mine"[..]);
        assert_eq!(fs(six.truncate("/d/f", 0).await), FsError::Denied);
        assert_eq!(root.read("/d/f").await.unwrap(), &b"mine"[..]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn each_user_keeps_what_he_has_open_when_the_server_restarts_and_no_more() {
    World::run(async |world| {
        let (root, five, six) = two_users(&world).await;
        let options = OpenOptions::both().create_new(0o644);
        let file = five.open_with("/d/f", options).await.unwrap();
        file.write_at(0, b"mine").await.unwrap();
        file.flush().await.unwrap();
        let reader = six.open("/d/f").await.unwrap();
        root.chmod("/d/f", 0).await.unwrap();
        root.chown("/d/f", Some(0), Some(0)).await.unwrap();
        root.unlink("/d/f").await.unwrap();
        world.kill();
        world.start();
        file.write_at(4, b", still").await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(reader.read_all().await.unwrap(), &b"mine, still"[..]);
        let node = reader.node();
        let cut = base::SetAttr { size: Some(0), ..base::SetAttr::default() };
        let cred = |uid| Cred { uid, gid: uid, groups: Vec::new() };
        let by_handle = client::FileSystem::setattr(&six, &cred(6), &node, cut).await;
        assert_eq!(fs(by_handle), FsError::Denied);
        client::FileSystem::setattr(&five, &cred(5), &node, cut).await.unwrap();
        assert_eq!(reader.metadata().await.unwrap().size, 0);
    })
    .await;
}
