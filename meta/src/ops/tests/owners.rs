//! Use and limits of users and groups. After every test a check compares what each account
//! was charged with a walk over all records.

use std::ops::ControlFlow;

use base::{Account, Attr, Cred, FsError, Seq, SetAttr};
use store::{Batch, Engine as _};
use wire::{
    AccountUse, Accounts, Answer, Apply, Create, DirRef, Granted, Held, HeldChange, HeldRequest,
    Mkdir, Reply, Request, Token,
};

use crate::record::key;

use super::{
    client::{Client, Node, name, user},
    world::{World, in_world},
};

/// All accounts that the client is told of.
async fn told(client: &mut Client) -> Vec<AccountUse> {
    match client.get(Request::Accounts(Accounts { after: base::Ino(0) })).await.unwrap() {
        Reply::Accounts(accounts) => accounts,
        other => panic!("{other:?}"),
    }
}

/// The entries and bytes of a user and of a group.
async fn used(client: &mut Client, uid: u32, gid: u32) -> [(i64, i64); 2] {
    let cred = std::mem::replace(&mut client.cred, Cred::ROOT);
    let told = told(client).await;
    client.cred = cred;
    [Account::User(uid), Account::Group(gid)].map(|account| {
        let found = told.iter().find(|told| told.account == account.number());
        found.map_or((0, 0), |found| (found.used.entries, found.used.bytes))
    })
}

async fn limit(client: &mut Client, what: &str, max: &str) -> Result<(), FsError> {
    let root = client.root;
    client.set_xattr(&root, &format!("pando.quota.{what}"), max.as_bytes()).await
}

/// Gives something to another user or group.
async fn give(
    client: &mut Client,
    node: impl Into<Node>,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<Attr, FsError> {
    client.setattr(node, SetAttr { uid, gid, ..SetAttr::default() }).await
}

/// A directory in which user 7 and everybody else may make things.
async fn shared(client: &mut Client, text: &str) -> DirRef {
    let root = client.root;
    let dir = client.mkdir(&root, text).await.unwrap();
    client.chmod(&dir, 0o777).await.unwrap();
    dir
}

#[test]
fn what_a_user_and_a_group_have_is_counted_from_the_beginning() {
    in_world(async |world| {
        let mut client = world.client().await;
        let dir = shared(&mut client, "d").await;
        client.cred = user(7);
        let own = client.mkdir(&dir, "own").await.unwrap();
        let small = client.create(&own, "small").await.unwrap();
        client.write(&small, 0, b"12345").await.unwrap();
        let large = client.create(&own, "large").await.unwrap();
        client.write_blocks(&large, 0, &[1; 9000]).await.unwrap();
        client.symlink(&own, "s", "target").await.unwrap();
        client.link(&small, &own, "again").await.unwrap();
        assert_eq!(used(&mut client, 7, 7).await, [(4, 9005); 2]);
        client.truncate(&large, 100).await.unwrap();
        client.unlink(&own, "s").await.unwrap();
        assert_eq!(used(&mut client, 7, 7).await, [(3, 105); 2]);
        // A file that is given away counts for others.
        client.cred = Cred::ROOT;
        give(&mut client, &large, Some(8), None).await.unwrap();
        give(&mut client, &own, None, Some(9)).await.unwrap();
        assert_eq!(used(&mut client, 7, 7).await, [(2, 5), (2, 105)]);
        assert_eq!(used(&mut client, 8, 9).await, [(1, 100), (1, 0)]);
        // A directory with the set-group-id bit gives its group on.
        client.chmod(&own, 0o2777).await.unwrap();
        client.cred = user(8);
        client.create(&own, "shared").await.unwrap();
        client.mkdir(&own, "sub").await.unwrap();
        assert_eq!(used(&mut client, 8, 9).await, [(3, 100), (3, 0)]);
        assert_eq!(used(&mut client, 8, 8).await, [(3, 100), (0, 0)]);
        client.cred = Cred::ROOT;
        client.unlink(&own, "small").await.unwrap();
        client.unlink(&own, "again").await.unwrap();
        assert_eq!(used(&mut client, 7, 7).await, [(1, 0), (1, 100)]);
        world.restart().await;
        let mut client = world.client().await;
        assert_eq!(used(&mut client, 7, 7).await, [(1, 0), (1, 100)]);
    });
}

#[test]
fn what_exceeds_a_users_or_a_groups_limit_is_refused_and_changes_nothing() {
    in_world(async |world| {
        let mut client = world.client().await;
        let full = Some(FsError::QuotaExceeded);
        let dir = shared(&mut client, "d").await;
        limit(&mut client, "user.7.entries", "2").await.unwrap();
        limit(&mut client, "user.7.bytes", "1K").await.unwrap();
        limit(&mut client, "group.9.bytes", "2000").await.unwrap();
        client.cred = user(7);
        let file = client.create(&dir, "a").await.unwrap();
        client.mkdir(&dir, "b").await.unwrap();
        assert_eq!(client.create(&dir, "c").await.err(), full);
        assert_eq!(client.mkdir(&dir, "c").await.err(), full);
        assert_eq!(client.symlink(&dir, "c", "x").await.err(), full);
        client.write(&file, 0, &[1; 1024]).await.unwrap();
        assert_eq!(client.write(&file, 1024, &[1]).await.err(), full);
        assert_eq!(client.write_blocks(&file, 0, &[1; 5000]).await.err(), full);
        assert_eq!(used(&mut client, 7, 7).await, [(2, 1024); 2]);
        // The file is the user's, whoever writes.
        client.cred = Cred::ROOT;
        assert_eq!(client.write(&file, 1024, &[1]).await.err(), full);
        // The superuser may give something away beyond the limit, and nobody else.
        let large = client.create(&dir, "large").await.unwrap();
        client.write_blocks(&large, 0, &[1; 3000]).await.unwrap();
        give(&mut client, &large, Some(7), Some(9)).await.unwrap();
        assert_eq!(used(&mut client, 7, 9).await, [(3, 4024), (1, 3000)]);
        client.cred = Cred { groups: vec![9], ..user(7) };
        assert_eq!(give(&mut client, &file, None, Some(9)).await.err(), full);
        // Others are not concerned, and where something goes there is room again.
        client.cred = user(8);
        client.create(&dir, "others").await.unwrap();
        client.cred = user(7);
        client.unlink(&dir, "large").await.unwrap();
        client.rmdir(&dir, "b").await.unwrap();
        client.create(&dir, "c").await.unwrap();
        // A limit that is taken away limits nothing.
        client.cred = Cred::ROOT;
        limit(&mut client, "user.7.entries", "none").await.unwrap();
        limit(&mut client, "user.7.bytes", "none").await.unwrap();
        client.cred = user(7);
        client.create(&dir, "d").await.unwrap();
        client.write(&file, 1024, &[1]).await.unwrap();
    });
}

#[test]
fn a_store_in_which_nothing_was_counted_is_counted_at_its_next_start() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = shared(&mut client, "d").await;
        client.set_xattr(&root, "pando.trash_days", b"1").await.unwrap();
        client.cred = user(7);
        let small = client.create(&dir, "small").await.unwrap();
        client.write(&small, 0, b"12345").await.unwrap();
        client.link(&small, &dir, "again").await.unwrap();
        let large = client.create(&dir, "large").await.unwrap();
        client.write_blocks(&large, 0, &[1; 9000]).await.unwrap();
        client.rename((&dir, "large"), (&dir, "moved")).await.unwrap();
        client.mkdir(&dir, "sub").await.unwrap();
        client.create(&dir, "removed").await.unwrap();
        client.unlink(&dir, "removed").await.unwrap();
        let counted = used(&mut client, 7, 7).await;
        assert_eq!(counted, [(3, 9005); 2]);
        let sums = key::own(b'A');
        let mut batch = Batch::new();
        let forget = &mut |at: &[u8], _: &[u8]| {
            batch.delete(at);
            ControlFlow::Continue(())
        };
        world.engine.scan(&sums, &key::end_of(&sums), forget).unwrap();
        world.engine.write(batch).unwrap();
        world.restart().await;
        let mut client = world.client().await;
        assert_eq!(used(&mut client, 7, 7).await, counted);
    });
}

#[test]
fn limits_of_owners_are_set_by_administrators_on_the_root_and_stay() {
    in_world(async |world| {
        let mut client = world.client().await;
        let dir = shared(&mut client, "d").await;
        for wrong in ["user.0.bytes", "group.0.entries", "user.x.bytes", "user.7", "user.7.files"] {
            limit(&mut client, wrong, "7").await.unwrap_err();
        }
        limit(&mut client, "user.7.bytes", "x").await.unwrap_err();
        let refused = client.set_xattr(&dir, "pando.quota.user.7.bytes", b"7").await;
        assert_eq!(refused, Err(FsError::Invalid));
        client.cred = user(7);
        assert_eq!(limit(&mut client, "user.7.bytes", "7").await, Err(FsError::NotPermitted));
        client.cred = Cred::ROOT;
        limit(&mut client, "user.7.bytes", "7").await.unwrap();
        let mut bound = world.client_with(&Token { uid: Some(0), ..Token::administrator() }).await;
        assert_eq!(limit(&mut bound, "user.7.bytes", "9").await, Err(FsError::NotPermitted));
        world.restart().await;
        let mut client = world.client().await;
        let user = Account::User(7).number();
        let seven = told(&mut client).await.into_iter().find(|told| told.account == user).unwrap();
        assert_eq!(seven.limits.unwrap().bytes_max, Some(7));
    });
}

#[test]
fn everybody_is_told_of_his_own_accounts_and_an_administrator_of_all() {
    in_world(async |world| {
        let mut client = world.client().await;
        let dir = shared(&mut client, "d").await;
        client.set_xattr(&dir, "pando.quota.bytes", b"1M").await.unwrap();
        world.settle().await;
        for uid in [7, 8] {
            client.cred = user(uid);
            client.create(&dir, &uid.to_string()).await.unwrap();
        }
        client.cred = Cred::ROOT;
        let all = told(&mut client).await;
        let kinds = |told: &[AccountUse]| -> Vec<Account> {
            told.iter().map(|told| Account::of(told.account)).collect()
        };
        let root = all.iter().find(|told| told.path == "/d").unwrap();
        assert_eq!((root.account, root.used.entries), (dir.ino, 3));
        assert!(kinds(&all).contains(&Account::User(7)) && kinds(&all).contains(&Account::User(8)));
        let mut other = {
            let token = Token { uid: Some(7), gids: vec![7], ..Token::administrator() };
            world.client_with(&token).await
        };
        other.cred = user(7);
        let own = kinds(&told(&mut other).await);
        assert!(own.contains(&Account::User(7)), "{own:?}");
        assert!(!own.contains(&Account::User(8)) && !own.contains(&Account::Directory(dir.ino)));
    });
}

#[test]
fn files_in_the_trash_count_for_nobody() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = shared(&mut client, "d").await;
        client.set_xattr(&root, "pando.trash_days", b"1").await.unwrap();
        limit(&mut client, "user.7.entries", "2").await.unwrap();
        client.cred = user(7);
        let file = client.create(&dir, "f").await.unwrap();
        client.write(&file, 0, b"123").await.unwrap();
        client.create(&dir, "g").await.unwrap();
        client.unlink(&dir, "f").await.unwrap();
        assert_eq!(used(&mut client, 7, 7).await, [(1, 0); 2]);
        client.create(&dir, "f").await.unwrap();
        // A file that is put back counts again, even where there is no room for it.
        client.cred = Cred::ROOT;
        let (hour, called) = super::trash::only_one(&mut client).await;
        client.rename((&hour, &called), (&dir, "back")).await.unwrap();
        assert_eq!(used(&mut client, 7, 7).await, [(3, 3); 2]);
    });
}

/// Makes a directory, and returns it if it was granted.
async fn granted(client: &mut Client, above: &DirRef, text: &str) -> Option<DirRef> {
    client.stands_on.held = Some(Held { dir: None, at: None, ino: None, wants: true });
    let mkdir = Mkdir { dir: *above, name: name(text), mode: 0o755 };
    let answer = client.ask(Request::Mkdir(mkdir)).await;
    client.stands_on.held = None;
    match answer {
        Answer::Granted(Granted { noted, .. }) => match noted.reply {
            Reply::Entry(entry) => entry.dir,
            other => panic!("{other:?}"),
        },
        _ => None,
    }
}

/// Sends a batch of changes of a granted directory that makes these files; how many it has made.
async fn made_under(world: &World, mount: &mut Client, held: &DirRef, names: &[&str]) -> usize {
    let cred = mount.cred.clone();
    let change = |text: &&str| HeldChange {
        cred: cred.clone(),
        at: world.tick(),
        ino: None,
        request: HeldRequest::Create(Create {
            dir: *held,
            name: name(text),
            kind: base::FileKind::File,
            mode: 0o644,
            rdev: 0,
            exclusive: true,
            open: None,
        }),
    };
    let changes = names.iter().map(change).collect();
    let at = Some(world.tick());
    mount.stands_on.held = Some(Held { dir: Some(held.id), at, ino: None, wants: false });
    match mount.ask(Request::Apply(Apply { dir: *held, changes })).await {
        Answer::Done(Reply::Applied(applied)) => applied.done.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_taken_for_lost_when_a_server_stops_before_a_batch_is_answered() {
    in_world(async |world: &mut World| {
        let mut client = world.client().await;
        let dir = shared(&mut client, "d").await;
        let mut mount = Client::open(world, &Token::administrator(), true).await.unwrap();
        let held = granted(&mut mount, &dir, "held").await.expect("there is room");
        for text in ["a", "b"] {
            assert_eq!(made_under(world, &mut mount, &held, &[text]).await, 1);
        }
        let had = mount.answered;
        made_under(world, &mut mount, &held, &["c"]).await;
        // The answer to the last one did not arrive.
        mount.answered = had;
        world.restart().await;
        mount.stands_on.held = None;
        mount.resume(world).await;
        assert!(!mount.welcome.forgot);
        // One before it is stored no more, and what is stored says that the mount has had it.
        mount.answered = Seq(had.0 - 1);
        mount.resume(world).await;
        assert!(!mount.welcome.forgot);
        // The one after the last was never asked for.
        mount.answered = Seq(had.0 + 2);
        mount.resume(world).await;
        assert!(mount.welcome.forgot);
    });
}

#[test]
fn what_a_mount_has_answered_is_kept_beyond_a_limit_and_the_next_change_is_refused() {
    in_world(async |world: &mut World| {
        let mut client = world.client().await;
        let dir = shared(&mut client, "d").await;
        limit(&mut client, "user.7.entries", "2000").await.unwrap();
        let mut mount = Client::open(world, &Token::administrator(), true).await.unwrap();
        mount.cred = user(7);
        let held = granted(&mut mount, &dir, "held").await.expect("there is room");
        limit(&mut client, "user.7.entries", "2").await.unwrap();
        assert_eq!(granted(&mut mount, &dir, "not").await, None, "there is too little room");
        assert_eq!(made_under(world, &mut mount, &held, &["a", "b", "c"]).await, 3);
        assert_eq!(used(&mut client, 7, 7).await, [(5, 0); 2]);
        mount.stands_on.held = None;
        match mount.get(Request::Recalls).await.unwrap() {
            Reply::Recalled(recalled) => assert_eq!(recalled.dirs, [held.id]),
            other => panic!("{other:?}"),
        }
        mount.get(Request::Return(wire::Return { dirs: vec![held.id] })).await.unwrap();
        assert_eq!(mount.create(&held, "d").await.err(), Some(FsError::QuotaExceeded));
        // Others on this mount get none either, or the user would pass his limit there again.
        mount.cred = user(8);
        assert_eq!(granted(&mut mount, &dir, "another").await, None);
        limit(&mut client, "user.7.entries", "none").await.unwrap();
        granted(&mut mount, &dir, "more").await.expect("there is room again");
    });
}
