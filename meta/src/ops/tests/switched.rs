//! Reads of one core while another one gives names away and removes the old ones: a name that was
//! there all the time is found.
//!
//! A request that only reads locks nothing. So another thread does the whole handoff between any
//! two reads of a request: the switch, the news to the master, and the sweep.

use std::ops::ControlFlow;

use base::{Layout, Moving, Splits, Spread, Subsets, Transfer};
use bytes::Bytes;
use wire::{
    Answer, DirRef, FileRef, Getattr, Guess, Lookup, NodeRef, Readdir, Reply, Request, Retry,
    Speculate, Tally, Token, TxnId, Walk,
};

use super::{
    client::{Client, name, user},
    world::{World, in_world},
};
use crate::{
    Server,
    error::Result,
    followers,
    handoff::{
        HandoffRecord, Receiving, steps,
        switch::{self, Switch},
        table::Partition,
    },
    record::{
        Accounts, Content, EntryRecord, Key, QuotaId, Record as _, RenameList, Usage, key,
        key::Part,
    },
    txn::{Caller, CommitGroup, Txn},
};

const TXN: TxnId = TxnId { server: 0, run: 1, number: 1 };
const NAMES: usize = 16;

/// Executes something as another core does.
fn elsewhere<T>(server: &Server, act: impl FnOnce(&mut Txn<'_>) -> Result<T>) -> T {
    let shared = &server.shared;
    let mut group = CommitGroup::new(1);
    let mut txn = Txn::new(shared, &mut group, Caller::SERVER, shared.clock.now());
    let done = act(&mut txn).unwrap_or_else(|fault| panic!("{fault:?}"));
    txn.commit();
    followers::write(shared, &mut group);
    shared.locks.unlock_all(&mut group.locks);
    done
}

/// A handoff of names from one partition to another of the same server.
#[derive(Clone)]
struct Handoff {
    server: Server,
    dir: DirRef,
    source: Partition,
    target: Partition,
    moving: Moving,
    spread: Spread,
}

impl Handoff {
    fn new(server: &Server, dir: &DirRef, transfer: Transfer) -> Handoff {
        let server = server.clone();
        let placement = server.shared.config.placement();
        let [source, target] = [transfer.source, transfer.target]
            .map(|number| Partition::of(dir.home, dir.id, number, placement));
        let share = server.shared.engine.get(&source.share()).unwrap().unwrap();
        let layout = Content::from_record(&share).unwrap().layout;
        let spread = match layout {
            Layout::Subsets(_) => Spread::Subsets,
            Layout::Whole | Layout::Extendible(_) => Spread::Extendible,
        };
        let moving = layout.moving(transfer).unwrap();
        Handoff { server, dir: *dir, source, target, moving, spread }
    }

    /// The records of all names that move.
    fn records(&self) -> Vec<(Key, Bytes)> {
        let names = key::names(self.source.shard, self.source.dir);
        let mut found = Vec::new();
        let scanned =
            self.server.shared.engine.scan(&names, &key::end_of(&names), &mut |at, is| {
                if key::parse_moving(at).is_some_and(|pos| self.moving.contains(pos)) {
                    found.push((Key::from_slice(at), Bytes::copy_from_slice(is)));
                }
                ControlFlow::Continue(())
            });
        scanned.unwrap();
        found
    }

    /// Copies the names, as a handoff does before its switch.
    fn copy(&self) -> Tally {
        let records = self.records();
        let names: Vec<_> = records.iter().filter_map(|(at, is)| steps::inode_in(at, is)).collect();
        elsewhere(&self.server, |txn| steps::detach(txn, self.source, &names));
        let mut tally = Tally::default();
        elsewhere(&self.server, |txn| {
            for (at, is) in self.records() {
                let shard = self.target.shard.0.to_be_bytes();
                txn.put_stored(Key::from_slice(&[&shard[..], &at[2..]].concat()), &is);
                if key::is_entry(&at) {
                    tally.entries += 1;
                    let is_dir = matches!(EntryRecord::from_record(&is), Ok(EntryRecord::Dir(_)));
                    tally.subdirs += u64::from(is_dir);
                }
            }
            let source = self.source.number;
            let what = Receiving { txn: TXN, ino: self.dir.ino, source, moving: self.moving };
            txn.put(self.target.handoff(), &HandoffRecord::Receiving(what));
            Ok(())
        });
        tally
    }

    /// Executes the switch, and everything after it.
    fn switch(&self, tally: Tally) {
        let Handoff { source, target, spread, .. } = *self;
        let switch = Switch { txn: TXN, source, target, ino: self.dir.ino, spread, tally };
        elsewhere(&self.server, |txn| switch::run(txn, &switch));
        elsewhere(&self.server, |txn| steps::told(txn, source));
        let mut from = key::names(source.shard, source.dir);
        loop {
            match elsewhere(&self.server, |txn| steps::sweep(txn, source, &from)) {
                Some(at) => from = at,
                None => return,
            }
        }
    }
}

/// The kinds of handoff.
#[derive(Debug, Clone, Copy)]
enum Scene {
    /// Half of the names of partition 1 move, to a new partition.
    Split,
    /// All names of a partition move back to where they came from.
    Merge,
    /// Names of the master move that belong to a third subset.
    Subsets,
    /// A split, after which all names come back.
    SplitAndMerge,
}

impl Scene {
    const ALL: [Scene; 4] = [Scene::Split, Scene::Merge, Scene::Subsets, Scene::SplitAndMerge];

    fn before(self) -> Layout {
        match self {
            Scene::Split | Scene::Merge | Scene::SplitAndMerge => {
                Layout::Extendible(Splits::started(1, 2))
            }
            Scene::Subsets => {
                let begun = Subsets::started(1, 2).begin(3, 8).unwrap();
                Layout::Subsets(begun)
            }
        }
    }

    fn transfers(self) -> &'static [Transfer] {
        const SPLIT: Transfer = Transfer { source: 1, target: 3 };
        const BACK: Transfer = Transfer { source: 3, target: 1 };
        match self {
            Scene::Split => &[SPLIT],
            Scene::Merge => &[Transfer { source: 1, target: 0 }],
            Scene::Subsets => &[Transfer { source: 0, target: 2 }],
            Scene::SplitAndMerge => &[SPLIT, BACK],
        }
    }
}

/// A directory with names, of which some will move, and are copied.
struct Stage {
    dir: DirRef,
    source: u16,
    text: String,
    names: Vec<String>,
    /// A file and a directory that move, and a file with another name elsewhere.
    file: (String, FileRef),
    subdir: String,
    linked: (String, FileRef),
    absent: String,
}

async fn stage(world: &mut World, client: &mut Client, scene: Scene, text: String) -> Stage {
    let root = client.root;
    let dir = client.mkdir(&root, &text).await.unwrap();
    client.chmod(&dir, 0o777).await.unwrap();
    elsewhere(&world.server, |txn| {
        let mut master = txn.master_locked(&dir)?;
        txn.divide(&mut master, scene.before())
    });
    let moving = Handoff::new(&world.server, &dir, scene.transfers()[0]).moving;
    let hash_key = world.server.shared.config.hash_key;
    let moves = |text: &str| moving.contains(hash_key.pos(&name(text)));
    let mut coming = (0..).map(|number| format!("n{number}"));
    let names: Vec<String> = coming.by_ref().take(NAMES).collect();
    let [file_at, subdir, linked_at] = {
        let mut all = names.iter().filter(|name| moves(name));
        [(); 3].map(|()| all.next().unwrap().clone())
    };
    let (mut file, mut linked) = (None, None);
    for name in &names {
        if *name == subdir {
            client.mkdir(&dir, name).await.unwrap();
            continue;
        }
        let made = client.create(&dir, name).await.unwrap();
        if *name == linked_at {
            client.link(&made, &root, &format!("{text}-link")).await.unwrap();
            linked = Some(made);
        } else if *name == file_at {
            file = Some(made);
        }
    }
    let absent = coming.find(|name| moves(name)).unwrap();
    let (file, linked) = ((file_at, file.unwrap()), (linked_at, linked.unwrap()));
    Stage { dir, source: scene.transfers()[0].source, text, names, file, subdir, linked, absent }
}

/// The requests that the reader makes.
#[derive(Debug, Clone, Copy)]
enum Ask {
    LookUpFile,
    LookUpDirectory,
    LookUpLinked,
    LookUpAbsent,
    Walk,
    Guess,
    Stat,
    StatLinked,
    List,
}

impl Ask {
    const ALL: [Ask; 9] = [
        Ask::LookUpFile,
        Ask::LookUpDirectory,
        Ask::LookUpLinked,
        Ask::LookUpAbsent,
        Ask::Walk,
        Ask::Guess,
        Ask::Stat,
        Ask::StatLinked,
        Ask::List,
    ];
}

/// Asks until the answer is final: records that have changed meanwhile are read anew.
async fn insist(
    client: &mut Client,
    request: Request,
) -> std::result::Result<Reply, base::FsError> {
    for _ in 0..20 {
        match client.ask(request.clone()).await {
            Answer::Retry(Retry::Busy | Retry::StaleLayout(_)) => {}
            Answer::Done(reply) => return Ok(reply),
            Answer::Failed(error) => return Err(error),
            other => panic!("{other:?}"),
        }
    }
    panic!("it is sent away again and again");
}

/// Asks. Returns what is amiss with the answer.
async fn ask(client: &mut Client, stage: &Stage, dir: DirRef, ask: Ask) -> Option<String> {
    let look_up = |text: &str| Request::Lookup(Lookup { dir, name: name(text) });
    let stat = |file: &FileRef| {
        let file = FileRef { dir, ..file.clone() };
        Request::Getattr(Getattr { node: NodeRef::File(file) })
    };
    let request = match ask {
        Ask::LookUpFile => look_up(&stage.file.0),
        Ask::LookUpDirectory => look_up(&stage.subdir),
        Ask::LookUpLinked => look_up(&stage.linked.0),
        Ask::LookUpAbsent => look_up(&stage.absent),
        Ask::Walk => {
            let names = vec![name(&stage.text), name(&stage.file.0)];
            Request::Walk(Walk { from: client.root, names })
        }
        Ask::Guess => {
            let share = Guess { dir: dir.id, home: dir.home, partition: stage.source, name: None };
            let guess = Guess { name: Some(name(&stage.file.0)), ..share };
            Request::Speculate(Speculate { guesses: vec![guess] })
        }
        Ask::Stat => stat(&stage.file.1),
        Ask::StatLinked => stat(&stage.linked.1),
        Ask::List => return list(client, stage, dir).await,
    };
    let answer = insist(client, request).await;
    let good = match (ask, &answer) {
        (Ask::LookUpAbsent, answer) => *answer == Err(base::FsError::NotFound),
        (Ask::LookUpFile | Ask::LookUpDirectory | Ask::LookUpLinked, Ok(Reply::Entry(_)))
        | (Ask::Stat | Ask::StatLinked, Ok(Reply::Attr(_))) => true,
        (Ask::Walk, Ok(Reply::Walked(walked))) => {
            walked.entries.len() == 2 || walked.error.is_none()
        }
        // A guess may find out nothing, or where to ask.
        (Ask::Guess, Ok(Reply::Guessed(guessed))) => guessed[0].error.is_none(),
        (_, _) => false,
    };
    (!good).then(|| format!("{answer:?}"))
}

async fn list(client: &mut Client, stage: &Stage, dir: DirRef) -> Option<String> {
    let (mut found, mut after) = (Vec::new(), 0);
    loop {
        let readdir = Request::Readdir(Readdir { dir, after, entries_max: 5, plus: true });
        let page = match insist(client, readdir).await {
            Ok(Reply::Page(page)) => page,
            other => return Some(format!("{other:?}")),
        };
        found.extend(page.entries.iter().map(|entry| entry.name.to_string()));
        after = page.reach;
        if page.end && after >= base::layout::POS_MAX {
            break;
        }
    }
    found.sort_unstable();
    let mut all = stage.names.clone();
    all.sort_unstable();
    (found != all).then(|| format!("{found:?}"))
}

/// Asks with the handoff before each of the reads of the request. Returns the number of reads.
async fn before_each_read(world: &mut World, scene: Scene, what: Ask, bound: bool) -> u64 {
    let mut admin = world.client().await;
    let token = match bound {
        true => Token { uid: Some(7), gids: vec![7], ..Token::administrator() },
        false => Token::administrator(),
    };
    let mut reader = world.client_with(&token).await;
    reader.cred = user(7);
    let root = reader.root;
    for read in 0.. {
        let text = format!("{scene:?}-{what:?}-{bound}-{read}");
        let stage = stage(world, &mut admin, scene, text).await;
        let dir = reader.lookup(&root, &stage.text).await.unwrap().dir.unwrap();
        let (server, whole) = (world.server.clone(), stage.dir);
        let first = Handoff::new(&server, &whole, scene.transfers()[0]);
        let tally = first.copy();
        world.server.shared.record_cache.clear();
        world.engine.meanwhile(read, move || {
            first.switch(tally);
            for transfer in &scene.transfers()[1..] {
                let next = Handoff::new(&server, &whole, *transfer);
                next.switch(next.copy());
            }
        });
        let wrong = ask(&mut reader, &stage, dir, what).await;
        let left = world.engine.not_any_more();
        assert_eq!(wrong, None, "{scene:?} before read {read} of {what:?}, bound: {bound}");
        if let Some(never) = left {
            never();
            admin.bye().await;
            reader.bye().await;
            return read;
        }
    }
    unreachable!("every request ends")
}

#[test]
fn what_another_core_gives_away_meanwhile_is_found() {
    in_world(async |world| {
        for scene in Scene::ALL {
            for what in Ask::ALL {
                for bound in [false, true] {
                    // The client puts pages of scattered names together, and a session that must
                    // prove its walks guesses nothing.
                    let scattered = matches!((scene, what), (Scene::Subsets, Ask::List));
                    if scattered || (bound && matches!(what, Ask::Guess)) {
                        continue;
                    }
                    let reads = before_each_read(world, scene, what, bound).await;
                    assert!(reads >= 2, "{scene:?} {what:?}: it reads {reads} times");
                }
            }
        }
    });
}

#[test]
fn what_was_removed_while_names_were_away_is_not_found_when_they_come_back() {
    in_world(async |world| {
        let mut client = world.client().await;
        let stage = stage(world, &mut client, Scene::SplitAndMerge, "back".to_owned()).await;
        let (server, dir) = (world.server.clone(), stage.dir);
        let file = Request::Lookup(Lookup { dir, name: name(&stage.file.0) });
        // From now on the file is found without a look into the store.
        insist(&mut client, file.clone()).await.unwrap();
        let [split, back] = [0, 1].map(|at| Scene::SplitAndMerge.transfers()[at]);
        let away = Handoff::new(&server, &dir, split);
        let pos = server.shared.config.hash_key.pos(&name(&stage.file.0));
        let key_on =
            |of: Partition, part| key::name(of.shard, of.dir, pos, &name(&stage.file.0), part);
        let stays = key_on(away.source, Part::RenameList);
        elsewhere(&server, |txn| {
            txn.put(stays.clone(), &RenameList::default());
            Ok(())
        });
        away.switch(away.copy());
        let records = |of: Partition| {
            let names = key::names(of.shard, of.dir);
            let mut found = Vec::new();
            let scanned = server.shared.engine.scan(&names, &key::end_of(&names), &mut |at, _| {
                found.push(Key::from_slice(at));
                ControlFlow::Continue(())
            });
            scanned.unwrap();
            found
        };
        let left = records(away.source);
        assert!(left.contains(&stays), "what does not move is not swept");
        let moves = |at: &Key| key::parse_moving(at).is_some_and(|pos| away.moving.contains(pos));
        assert!(!left.iter().any(moves), "what has moved is");
        elsewhere(&server, |txn| {
            txn.delete(key_on(away.target, Part::Main));
            txn.delete(key::inode(stage.file.1.ino, Part::Main));
            let owner = Accounts { quota: QuotaId::NONE, owner: Some((0, 0)) };
            txn.charge_freely(owner, Usage::of(1, 0).minus());
            Ok(())
        });
        let back = Handoff::new(&server, &dir, back);
        back.switch(back.copy());
        assert!(records(back.source).is_empty());
        assert_eq!(insist(&mut client, file).await, Err(base::FsError::NotFound));
        assert_eq!(ask(&mut client, &stage, dir, Ask::LookUpLinked).await, None);
        elsewhere(&server, |txn| {
            txn.delete(stays);
            Ok(())
        });
        client.bye().await;
    });
}
