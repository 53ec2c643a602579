//! Signing keys and revoked tokens, over connections to one server.

use base::{Clock as _, FsError, Time};
use wire::{Answer, KeysChange, KeysShown, Reply, Request, Revoke, SignToken, Token};

use super::{
    client::Client,
    world::{Setup, in_world, in_world_of},
};
use crate::{Durability, keys::ring::KeyRing, record::key, server::Shared};

fn token(id: u64) -> Token {
    Token { id, ..Token::administrator() }
}

async fn keys(client: &mut Client, change: KeysChange) -> Result<KeysShown, String> {
    match client.ask(Request::Keys(change)).await {
        Answer::Done(Reply::Keys(shown)) => Ok(shown),
        Answer::Refused(reason) => Err(reason),
        other => panic!("{other:?}"),
    }
}

async fn revoke(client: &mut Client, id: u64) {
    let revoke = Revoke { id, key: Some(0), expires: None };
    keys(client, KeysChange::Revoke(revoke)).await.unwrap();
}

async fn signed(client: &mut Client, token: &Token) -> String {
    match client.ask(Request::SignToken(SignToken { token: token.clone() })).await {
        Answer::Done(Reply::Signed(text)) => text,
        other => panic!("{other:?}"),
    }
}

/// The reason why the client's next request is refused; empty when it is not.
async fn refused(client: &mut Client) -> String {
    match client.ask(Request::Statfs).await {
        Answer::Done(Reply::Statfs(_)) => String::new(),
        Answer::Refused(reason) => reason,
        other => panic!("{other:?}"),
    }
}

fn ring(shared: &Shared) -> KeyRing {
    shared.keys.get().ring.clone()
}

#[test]
fn a_revoked_token_ends_its_sessions_at_their_next_request_and_opens_no_others() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let (mut first, mut second) =
            (world.client_with(&token(7)).await, world.client_with(&token(7)).await);
        let mut other = world.client_with(&token(8)).await;
        let session = first.welcome.session;
        let root = first.root;
        let file = first.create(&root, "f").await.unwrap();
        first.open_file(&file).await.unwrap();
        revoke(&mut admin, 7).await;
        assert_eq!(refused(&mut first).await, "token revoked");
        assert_eq!(refused(&mut second).await, "token revoked");
        let said = Client::open(world, &token(7), true).await.err();
        assert_eq!(said.as_deref(), Some("token revoked"));
        let said = first.resume_with(world, &token(7)).await.unwrap_err();
        assert_eq!(said, "token revoked");
        assert_eq!((refused(&mut other).await, refused(&mut admin).await), Default::default());
        // Files and locks of the session go within a part of a lease.
        tokio::time::sleep(world.server.shared.options.lease / 3).await;
        assert!(world.server.shared.session(session).is_none());
        assert_eq!(world.server.shared.opens.count(session), 0);
        // Revoking again is fine.
        revoke(&mut admin, 7).await;
        let shown = keys(&mut admin, KeysChange::Show).await.unwrap();
        assert_eq!(shown.revoked.iter().map(|token| token.id).collect::<Vec<_>>(), [7]);
    });
}

#[test]
fn tokens_of_a_key_are_good_until_it_is_retired() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let mut of_root = world.client_with(&token(7)).await;
        let said = keys(&mut admin, KeysChange::Retire(0)).await.unwrap_err();
        assert!(said.contains("key 0 signs new tokens"), "{said}");
        assert_eq!(Token::unverified(&signed(&mut admin, &token(9)).await).unwrap().key, 0);

        let shown = keys(&mut admin, KeysChange::Rotate(0)).await.unwrap();
        assert_eq!((shown.newest, shown.keys.len()), (1, 2));
        let again = keys(&mut admin, KeysChange::Rotate(0)).await.unwrap();
        assert_eq!(again, shown, "a repeated rotation is the same one");
        let text = signed(&mut admin, &token(9)).await;
        assert_eq!(Token::unverified(&text).unwrap(), Token { key: 1, ..token(9) });
        let mut newer = Client::open_signed(world, text.clone(), true).await.unwrap();
        assert_eq!(refused(&mut of_root).await, "", "its key is not retired");

        // All of it outlives the process.
        world.restart().await;
        assert_eq!(ring(&world.server.shared).newest, 1);
        newer.resume(world).await;
        keys(&mut newer, KeysChange::Retire(0)).await.unwrap();
        let said = of_root.resume_with(world, &token(7)).await.unwrap_err();
        assert!(said.contains("token of a retired key"), "{said}");
        assert_eq!(refused(&mut newer).await, "");
        let said = Client::open(world, &token(7), true).await.err().unwrap();
        assert!(said.contains("`pando token create` makes a new one"), "{said}");
        // The world's own clients have tokens of the root key.
        world.server.shared.keys.set(KeyRing::default());
    });
}

#[test]
fn a_token_that_is_made_does_not_outlast_the_one_by_which_it_is_made() {
    in_world(async |world| {
        let end = world.clock.now().plus_ms(60_000);
        let until = |expires| Token { expires, ..token(7) };
        let mut admin = world.client_with(&until(Some(end))).await;
        for expires in [None, Some(end.plus_ms(1))] {
            let sign = Request::SignToken(SignToken { token: until(expires) });
            let Answer::Refused(said) = admin.ask(sign).await else { panic!() };
            assert!(said.contains("would outlast"), "{said}");
        }
        assert_eq!(
            Token::unverified(&signed(&mut admin, &until(Some(end))).await),
            Ok(until(Some(end)))
        );
    });
}

#[test]
fn a_session_ends_with_the_key_of_its_token_unless_it_is_renewed_before() {
    in_world(async |world| {
        let mut admin = world.client().await;
        let mut client = world.client_with(&token(7)).await;
        let session = client.welcome.session;
        keys(&mut admin, KeysChange::Rotate(0)).await.unwrap();
        let text = signed(&mut admin, &token(9)).await;
        client.resume_signed(world, text).await.unwrap();
        assert_eq!(client.welcome.session, session);
        keys(&mut admin, KeysChange::Retire(0)).await.unwrap();
        assert!(refused(&mut admin).await.contains("token of a retired key"));
        assert_eq!(refused(&mut client).await, "");
        world.server.shared.keys.set(KeyRing::default());
    });
}

#[test]
fn a_change_of_the_keys_is_stable_when_it_is_answered() {
    for durability in [Durability::Relaxed, Durability::Strict] {
        in_world_of(Setup { durability, ..Setup::default() }, async |world| {
            let mut admin = world.client().await;
            keys(&mut admin, KeysChange::Rotate(0)).await.unwrap();
            revoke(&mut admin, 7).await;
            world.power_cut(0).await;
            let ring = ring(&world.server.shared);
            assert!(ring.newest == 1 && ring.is_revoked(7), "{ring:?}");
        });
    }
}

#[test]
fn only_administrators_see_and_change_keys() {
    in_world(async |world| {
        for limited in [
            Token { read_only: true, ..token(5) },
            Token { uid: Some(0), gids: vec![0], ..token(5) },
        ] {
            let mut client = world.client_with(&limited).await;
            for request in [
                Request::Keys(KeysChange::Show),
                Request::Keys(KeysChange::Rotate(0)),
                Request::SignToken(SignToken { token: token(9) }),
            ] {
                let answer = client.ask(request).await;
                assert_eq!(answer, Answer::Failed(FsError::NotPermitted));
            }
        }
        assert_eq!(ring(&world.server.shared), KeyRing::default());
        let mut admin = world.client().await;
        let nameless = Request::SignToken(SignToken { token: token(0) });
        assert!(matches!(admin.ask(nameless).await, Answer::Refused(_)));
        let revoke = Revoke { id: 0, key: None, expires: None };
        let said = keys(&mut admin, KeysChange::Revoke(revoke)).await.unwrap_err();
        assert!(said.contains("a token without a number"), "{said}");
    });
}

#[test]
fn a_damaged_key_ring_is_repaired_with_the_one_in_force() {
    in_world(async |world| {
        let mut admin = world.client().await;
        keys(&mut admin, KeysChange::Rotate(0)).await.unwrap();
        let mut batch = store::Batch::default();
        batch.put(&key::key_ring(), b"\x01damaged");
        store::Engine::write(world.engine.as_ref(), batch).unwrap();
        let found = admin.fsck(false).await.findings;
        assert!(found.iter().any(|line| line.contains("key ring")), "{found:?}");
        admin.repair(false).await;
        assert!(admin.fsck(false).await.findings.is_empty());
        world.restart().await;
        assert_eq!(ring(&world.server.shared).newest, 1);
    });
}

#[test]
fn sessions_are_listed_with_the_marks_of_their_tokens() {
    in_world(async |world| {
        let expires = Some(Time { sec: 2_000_000, nsec: 0 });
        let _client = world.client_with(&Token { expires, ..token(7) }).await;
        let mut admin = world.client().await;
        let Ok(Reply::Sessions(sessions)) = admin.get(Request::Sessions).await else { panic!() };
        let mut marks: Vec<_> = sessions.iter().filter_map(|session| session.token).collect();
        marks.sort_unstable();
        let of = |id, expires| wire::TokenShown { id, key: 0, expires };
        assert_eq!(marks, [of(0, None), of(7, expires)]);
    });
}

#[test]
fn a_client_in_the_servers_process_is_let_in_whatever_the_ring() {
    in_world(async |world| {
        let mut ring = KeyRing { version: 1, ..KeyRing::default() };
        ring.rotate(0, wire::Secret(b"another".to_vec().into()), Time { sec: 1, nsec: 0 }).unwrap();
        let mut near = Client::open_near(world, &token(0)).await.unwrap();
        ring.retire(0).unwrap();
        world.server.shared.keys.set(ring);
        assert_eq!(refused(&mut near).await, "");
        let mut near = Client::open_near(world, &token(0)).await.unwrap();
        assert_eq!(refused(&mut near).await, "");
        assert!(Client::open(world, &token(0), true).await.is_err());
        world.server.shared.keys.set(KeyRing::default());
    });
}
