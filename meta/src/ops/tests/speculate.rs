//! Look-ups in directories whose ids were predicted.

use base::{DirId, FsError, NameVersion};
use wire::{DirRef, Guess, Guessed, RenameMode, Reply, Request, Speculate, Token};

use super::{
    client::{Client, name, user},
    world::in_world,
};

/// The id of a directory of this name that was born in `parent`.
fn predicted(client: &Client, parent: DirId, text: &str) -> DirId {
    client.welcome.fs.hash_key.dir_id(parent, &name(text), NameVersion(0))
}

fn guess(dir: DirId, text: Option<&str>) -> Guess {
    Guess { dir, home: dir, partition: 0, name: text.map(name) }
}

async fn speculate(client: &mut Client, guesses: Vec<Guess>) -> Result<Vec<Guessed>, FsError> {
    match client.get(Request::Speculate(Speculate { guesses })).await? {
        Reply::Guessed(guessed) => Ok(guessed),
        other => panic!("{other:?}"),
    }
}

fn shown(guessed: &Guessed) -> DirRef {
    guessed.entry.as_ref().and_then(|entry| entry.dir).unwrap()
}

#[test]
fn a_path_is_found_by_its_predicted_ids() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let a = client.mkdir(&root, "a").await.unwrap();
        let b = client.mkdir(&a, "b").await.unwrap();
        let file = client.create(&b, "f").await.unwrap();
        let id_a = predicted(&client, root.id, "a");
        let id_b = predicted(&client, id_a, "b");
        let guesses = vec![
            guess(root.id, Some("a")),
            guess(id_a, Some("b")),
            guess(id_b, Some("f")),
            guess(id_b, None),
            guess(id_b, Some("missing")),
        ];
        let found = speculate(&mut client, guesses).await.unwrap();
        assert!(shown(&found[0]).same(&a) && shown(&found[1]).same(&b));
        assert_eq!(found[1].dir, Some(a.ino));
        assert_eq!(found[2].entry.as_ref().unwrap().attr.ino, file.ino);
        let itself = found[3].entry.as_ref().unwrap();
        assert!(itself.whole && itself.attr.ino == b.ino);
        assert_eq!((&found[4].entry, found[4].error), (&None, Some(FsError::NotFound)));
    });
}

#[test]
fn a_directory_that_was_moved_is_not_where_it_would_be_predicted() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let a = client.mkdir(&root, "a").await.unwrap();
        client.rename_mode((&root, "a"), (&root, "b"), RenameMode::Replace).await.unwrap();
        let id_b = predicted(&client, root.id, "b");
        let guesses = vec![guess(root.id, Some("b")), guess(id_b, Some("x"))];
        let found = speculate(&mut client, guesses).await.unwrap();
        assert!(shown(&found[0]).same(&a));
        assert_eq!(found[1], Guessed { dir: None, entry: None, error: None, layout: None });
    });
}

#[test]
fn a_guess_is_refused_like_a_look_up() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let hidden = client.mkdir_mode(&root, "d", 0o700).await.unwrap();
        client.create(&hidden, "f").await.unwrap();
        client.cred = user(7);
        let found = speculate(&mut client, vec![guess(hidden.id, Some("f"))]).await.unwrap();
        assert_eq!((&found[0].entry, found[0].error), (&None, Some(FsError::Denied)));
        // A session that must prove its walks may not guess at all.
        let token = Token { uid: Some(7), gids: vec![7], ..Token::administrator() };
        let mut client = world.client_with(&token).await;
        client.cred = user(7);
        let guesses = vec![guess(root.id, Some("d"))];
        assert_eq!(speculate(&mut client, guesses).await, Err(FsError::NotPermitted));
    });
}
