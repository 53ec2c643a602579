//! Whole backups over stores that fail: what each step leaves when it is the last one.

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::Path as FsPath,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use base::Random;
use bytes::Bytes;
use futures::{TryStreamExt as _, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult, memory::InMemory,
    path::Path,
};
use tempfile::TempDir;

use crate::{Base, Error, History, Key, Made, Moment, Noted, Place, Result, Wanted};

const UUID: u128 = 0xfeed;
const HOUR: u64 = 3600;

/// A store in memory whose puts and deletes fail once its budget is spent.
#[derive(Debug)]
struct Faulty {
    inner: InMemory,
    left: AtomicI64,
}

impl std::fmt::Display for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("faulty")
    }
}

impl Faulty {
    fn new() -> Arc<Faulty> {
        Arc::new(Faulty { inner: InMemory::new(), left: AtomicI64::new(i64::MAX) })
    }

    fn allow(&self, changes: i64) {
        self.left.store(changes, Ordering::Relaxed);
    }

    fn change(&self) -> object_store::Result<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Ok(());
        }
        Err(object_store::Error::Generic { store: "faulty", source: "it is away".into() })
    }

    async fn names(&self) -> Vec<String> {
        let found: Vec<ObjectMeta> = self.inner.list(None).try_collect().await.unwrap();
        found.into_iter().map(|meta| meta.location.to_string()).collect()
    }

    async fn objects(&self) -> usize {
        self.names().await.iter().filter(|name| name.contains("/objects/")).count()
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.change()?;
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.change()?;
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.inner.get_opts(path, options).await
    }

    async fn get_ranges(
        &self,
        path: &Path,
        ranges: &[Range<u64>],
    ) -> object_store::Result<Vec<Bytes>> {
        self.inner.get_ranges(path, ranges).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        match self.change() {
            Ok(()) => self.inner.delete_stream(paths),
            Err(error) => Box::pin(futures::stream::once(async { Err(error) })),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

struct Counting(AtomicU64);

impl Random for Counting {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// A data directory's copy, and a store.
struct World {
    store: Arc<Faulty>,
    folder: TempDir,
    history: History,
    random: Counting,
    made: u64,
}

fn key() -> Key {
    Key::new([3; 32])
}

/// History 7, as a directory without a note of made bases has it.
fn noted(newest: u64) -> Noted {
    Noted { history: 7, newest, made: 0 }
}

fn until(at: u64) -> Wanted {
    Wanted { at: Some(at), ..Wanted::default() }
}

impl World {
    fn new() -> World {
        let store = Faulty::new();
        let world = World {
            history: History::new(Place::over(store.clone(), "some/where/"), UUID, noted(0), key()),
            store,
            folder: tempfile::tempdir().unwrap(),
            random: Counting(AtomicU64::new(1)),
            made: 1_000_000 * HOUR,
        };
        world.write("CURRENT", b"MANIFEST-1");
        world.write("000001.sst", &vec![1; 3 << 20]);
        world.write("000002.log", b"");
        world
    }

    fn place(&self) -> Place {
        Place::over(self.store.clone(), "some/where/")
    }

    /// The history as another process finds it.
    fn restarted(&mut self, newest: u64) {
        self.history = History::new(self.place(), UUID, noted(newest), key());
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.folder.path().join(name), bytes).unwrap();
    }

    async fn make(&mut self) -> Result<Made> {
        self.history.check_owner().await?;
        self.made += 300;
        let moment = Moment {
            made: self.made,
            position: 5,
            journal: (0, 0),
            server: None,
            name: "pando".into(),
        };
        let small = [("pando.json", Bytes::from_static(b"{}"))];
        let folder = self.folder.path().to_owned();
        self.history.make((&folder, "meta"), &small, moment, &self.random).await
    }

    async fn restore(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        let base = self.place().choose(&key(), &Wanted::default()).await?;
        self.restore_base(&base).await
    }

    async fn restore_base(&self, base: &Base) -> Result<BTreeMap<String, Vec<u8>>> {
        let to = tempfile::tempdir().unwrap();
        self.place().restore(base, &key(), to.path(), &|_| ()).await?;
        let meta = to.path().join("meta");
        Ok(fs::read_dir(meta).unwrap().map(|entry| read(&entry.unwrap().path())).collect())
    }

    fn local(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        entries.map(|entry| read(&entry.unwrap().path())).collect()
    }
}

fn read(path: &FsPath) -> (String, Vec<u8>) {
    (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap())
}

#[tokio::test]
async fn a_base_is_restored_as_it_was_and_tables_are_uploaded_once() {
    let mut world = World::new();
    let first = world.make().await.unwrap();
    assert_eq!(first.bytes, first.uploaded);
    world.write("000003.sst", &[2; 100]);
    let second = world.make().await.unwrap();
    assert!(second.uploaded < 1000, "{second:?}");
    assert!(world.restore().await.unwrap() == world.local());
    // Another process reads the manifest, and compares what it finds.
    world.restarted(second.number);
    let third = world.make().await.unwrap();
    assert!(third.uploaded < 1000, "{third:?}");
    world.restarted(third.number);
    world.write("000001.sst", &vec![9; 3 << 20]);
    assert!(world.make().await.unwrap().uploaded > 3 << 20);
    assert!(world.restore().await.unwrap() == world.local());
}

#[tokio::test]
async fn no_name_and_no_byte_of_a_file_is_readable_in_the_store() {
    let mut world = World::new();
    world.write("000009.sst", b"a secret in clear");
    world.make().await.unwrap();
    for name in world.store.names().await {
        assert!(!name.contains("sst"), "{name}");
        let bytes = world.store.inner.get(&name.into()).await.unwrap().bytes().await.unwrap();
        assert!(!bytes.windows(8).any(|part| part == b"a secret" || part == b"MANIFEST"));
    }
}

/// Every number of requests after which the store goes away, at a second base and its collection.
#[tokio::test]
async fn a_store_that_goes_away_at_any_step_leaves_a_base_that_can_be_restored() {
    for changes in 0..12 {
        let mut world = World::new();
        world.make().await.unwrap();
        let before = world.local();
        world.write("000003.sst", &vec![2; 6 << 20]);
        world.write("000004.sst", b"more");
        world.store.allow(changes);
        let made = world.make().await;
        let collected = world.history.collect(0, 0).await;
        let restored = world.restore().await.unwrap();
        match made {
            Ok(_) => assert!(restored == world.local(), "{changes}"),
            Err(_) => assert!(restored == before, "{changes}"),
        }
        world.store.allow(i64::MAX);
        drop(collected);
        let again = world.make().await.unwrap();
        assert!(world.restore().await.unwrap() == world.local(), "{changes}");
        let collected = world.history.collect(0, 0).await.unwrap();
        assert_eq!((collected.bases, again.number), (2, 3), "{changes}");
    }
}

#[tokio::test]
async fn an_incomplete_base_does_not_count() {
    let mut world = World::new();
    world.make().await.unwrap();
    let before = world.local();
    world.write("000003.sst", b"new");
    world.make().await.unwrap();
    let bases = world.place().bases(&key(), None).await.unwrap();
    let file = bases[1].manifest.files.iter().find(|file| file.path.ends_with("3.sst")).unwrap();
    let name = format!("some/where/{UUID:032x}/0000000000000007/objects/{}", file.object);
    world.store.inner.delete(&name.into()).await.unwrap();
    assert!(world.restore().await.unwrap() == before);
    let chosen = world.restore_base(&bases[1]).await;
    assert!(matches!(chosen, Err(Error::Missing(_))), "{chosen:?}");
    // The next base uploads what is lost.
    world.make().await.unwrap();
    assert!(world.restore().await.unwrap() == world.local());
}

#[tokio::test]
async fn altered_exchanged_and_renamed_objects_are_refused() {
    let mut world = World::new();
    world.make().await.unwrap();
    let names = world.store.names().await;
    for name in names {
        let path = Path::from(name.clone());
        let bytes = world.store.inner.get(&path).await.unwrap().bytes().await.unwrap();
        let mut altered = bytes.to_vec();
        *altered.last_mut().unwrap() ^= 1;
        world.store.inner.put(&path, altered.into()).await.unwrap();
        let restored = world.restore().await;
        assert!(matches!(restored, Err(Error::Altered(_))), "{name}: {restored:?}");
        world.store.inner.put(&path, bytes.clone().into()).await.unwrap();
        if name.contains("/bases/") {
            // An old manifest cannot be told as a newer one.
            let later = Path::from(name.replace("0000000001", "0000000002"));
            world.store.inner.put(&later, bytes.into()).await.unwrap();
            assert_eq!(world.place().bases(&key(), None).await.unwrap().len(), 1);
            world.store.inner.delete(&later).await.unwrap();
        }
    }
    assert!(world.restore().await.unwrap() == world.local());
}

#[tokio::test]
async fn another_key_and_an_empty_place_are_told_apart() {
    let mut world = World::new();
    assert!(matches!(world.restore().await, Err(Error::NoBase(_))));
    world.make().await.unwrap();
    let other = world.place().choose(&Key::new([4; 32]), &Wanted::default()).await;
    assert!(matches!(other, Err(Error::OtherKey { .. })), "{other:?}");
    let early = world.place().choose(&key(), &until(7)).await;
    assert!(matches!(early, Err(Error::NoBase(_))), "{early:?}");
}

#[tokio::test]
async fn the_last_base_is_the_newest_whatever_the_clock_said() {
    let mut world = World::new();
    world.made = 2_000_000 * HOUR;
    world.make().await.unwrap();
    world.made = 1_000_000 * HOUR;
    world.make().await.unwrap();
    world.write("000003.sst", b"later");
    world.make().await.unwrap();
    assert!(world.restore().await.unwrap() == world.local());
    let at = 1_000_000 * HOUR + 300;
    assert_eq!(world.place().choose(&key(), &until(at)).await.unwrap().manifest.number, 2);
}

#[tokio::test]
async fn two_processes_with_one_history_are_found_out() {
    let mut world = World::new();
    world.make().await.unwrap();
    // A copy of the data directory, which was made before.
    let mut copy = History::new(world.place(), UUID, noted(0), key());
    assert!(matches!(copy.check_owner().await, Err(Error::Foreign)));
    // An older copy, whose bases have expired since.
    world.make().await.unwrap();
    world.make().await.unwrap();
    world.history.collect(0, 0).await.unwrap();
    let noted_before = Noted { history: 7, newest: 1, made: 1 };
    let mut copy = History::new(world.place(), UUID, noted_before, key());
    assert!(matches!(copy.check_owner().await, Err(Error::Foreign)));
    // Both begin the same number: one manifest is put.
    world.restarted(3);
    world.history.check_owner().await.unwrap();
    let mut copy = History::new(world.place(), UUID, noted(3), key());
    copy.check_owner().await.unwrap();
    world.make().await.unwrap();
    let moment =
        Moment { made: 5, position: 5, journal: (0, 0), server: None, name: "pando".into() };
    let folder = world.folder.path().to_owned();
    let made = copy.make((&folder, "meta"), &[], moment, &world.random).await;
    assert!(matches!(made, Err(Error::Foreign)), "{made:?}");
}

#[tokio::test]
async fn old_bases_go_and_objects_of_a_base_under_way_stay() {
    let mut world = World::new();
    for _ in 0..40 {
        world.make().await.unwrap();
    }
    // An upload that was cut off, of another process.
    let stray = format!("some/where/{UUID:032x}/0000000000000007/objects/{:032x}", 5);
    world.store.inner.put(&stray.clone().into(), "x".into()).await.unwrap();
    let collected = world.history.collect(24 * HOUR, 0).await.unwrap();
    assert!((14..=17).contains(&collected.bases), "{collected:?}");
    assert_eq!(collected.bases + collected.removed, 40);
    assert!(world.store.names().await.contains(&stray), "the store says that it is new");
    assert!(world.restore().await.unwrap() == world.local());
    let bases = world.place().bases(&key(), None).await.unwrap();
    assert_eq!(bases.first().unwrap().manifest.number, collected.oldest);
    for base in &bases {
        assert!(base.is_complete());
    }
    // Another process reads all manifests, and finds nothing more to do.
    world.restarted(40);
    let again = world.history.collect(24 * HOUR, 0).await.unwrap();
    assert_eq!((again.bases, again.removed), (collected.bases, 0));
    assert!(world.store.objects().await > 40);
}

#[tokio::test]
async fn a_directory_is_a_store_too() {
    let store = tempfile::tempdir().unwrap();
    let url = format!("file://{}", store.path().display());
    let place = Place::open(&url, Vec::new()).unwrap();
    let mut world = World::new();
    world.history = History::new(place.clone(), UUID, noted(0), key());
    world.make().await.unwrap();
    world.make().await.unwrap();
    world.history.collect(0, 0).await.unwrap();
    let to = tempfile::tempdir().unwrap();
    let base = place.choose(&key(), &Wanted::default()).await.unwrap();
    place.check(&base, &key(), &|_| ()).await.unwrap();
    place.restore(&base, &key(), to.path(), &|_| ()).await.unwrap();
    assert_eq!(fs::read(to.path().join("meta/CURRENT")).unwrap(), b"MANIFEST-1");
    assert!(matches!(Place::open("http://x", Vec::new()), Err(Error::Url(_))));
}

#[tokio::test]
async fn junk_is_no_base_of_another_process() {
    let mut world = World::new();
    world.make().await.unwrap();
    let bases = format!("some/where/{UUID:032x}/0000000000000007/bases");
    let own = world.store.inner.get(&format!("{bases}/0000000000000001").into()).await.unwrap();
    let own = own.bytes().await.unwrap();
    for (name, bytes) in [
        ("ffffffffffffffff", Bytes::from_static(b"junk")),
        ("0000000000000002", own.clone()),
        ("+000000000000003", own.clone()),
        ("000000000000000A", own.clone()),
        ("x/0000000000000009", own),
        ("junk", Bytes::new()),
    ] {
        let name = format!("{bases}/{name}").into();
        world.store.inner.put(&name, bytes.into()).await.unwrap();
    }
    // The second base takes the place of what has its name.
    assert_eq!(world.make().await.unwrap().number, 2);
    assert_eq!(world.make().await.unwrap().number, 3);
    assert_eq!(world.history.collect(24 * HOUR, 0).await.unwrap().bases, 3);
    assert!(world.restore().await.unwrap() == world.local());
}

#[tokio::test]
async fn a_place_that_has_lost_its_bases_is_no_place_to_go_on() {
    let mut world = World::new();
    world.make().await.unwrap();
    world.store = Faulty::new();
    world.history =
        History::new(world.place(), UUID, Noted { history: 7, newest: 2, made: 1 }, key());
    let made = world.make().await;
    assert!(matches!(made, Err(Error::Empty { newest: 1 })), "{made:?}");
    let collected = world.history.collect(0, 0).await;
    assert!(matches!(collected, Err(Error::Empty { newest: 1 })), "{collected:?}");
    assert!(world.store.names().await.is_empty());
}

#[tokio::test]
async fn a_directory_is_made_once_and_then_missed() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("mounted/backups");
    let url = format!("file://{}", directory.display());
    let missing = |place: Result<Place>| matches!(place, Err(Error::NoDirectory(_)));
    assert!(missing(Place::open(&url, Vec::new())));
    assert!(!directory.exists());
    let mut world = World::new();
    let place = Place::begin(&url, Vec::new()).unwrap();
    world.history = History::new(place, UUID, noted(0), key());
    world.make().await.unwrap();
    fs::remove_dir_all(folder.path().join("mounted")).unwrap();
    let made = world.make().await;
    assert!(matches!(made, Err(Error::NoDirectory(_))), "{made:?}");
    assert!(!directory.exists());
    // An empty directory has taken the place of the mounted one.
    fs::create_dir_all(&directory).unwrap();
    let made = world.make().await;
    assert!(matches!(made, Err(Error::Empty { newest: 1 })), "{made:?}");
}

#[tokio::test]
async fn a_history_is_named_where_several_have_bases() {
    let mut world = World::new();
    world.make().await.unwrap();
    let before = world.local();
    let first = world.made;
    world.history =
        History::new(world.place(), UUID, Noted { history: 8, newest: 0, made: 0 }, key());
    world.write("000003.sst", b"of the copy");
    world.make().await.unwrap();
    let chosen = world.place().choose(&key(), &Wanted::default()).await;
    let Err(Error::Ambiguous(candidates)) = chosen else { panic!("{chosen:?}") };
    let found: Vec<_> = candidates.iter().map(|it| (it.history.as_str(), it.newest)).collect();
    let (seven, eight) = ("0000000000000007", "0000000000000008");
    assert_eq!(found, [(seven, first), (eight, first + 300)]);
    for (history, files) in [(seven, before), (eight, world.local())] {
        let wanted = Wanted { history: Some(history.to_owned()), at: None };
        let base = world.place().choose(&key(), &wanted).await.unwrap();
        assert!(world.restore_base(&base).await.unwrap() == files, "{history}");
    }
    // Only one of them has a base of that time.
    assert_eq!(world.place().choose(&key(), &until(first)).await.unwrap().at, first);
}

#[tokio::test]
async fn a_history_is_removed_whole_and_others_stay() {
    let mut world = World::new();
    world.make().await.unwrap();
    world.make().await.unwrap();
    world.history =
        History::new(world.place(), UUID, Noted { history: 8, newest: 0, made: 0 }, key());
    world.make().await.unwrap();
    let (seven, eight) = ("0000000000000007", "0000000000000008");
    let place = world.place();
    let other = place.forgotten(&Key::new([4; 32]), seven).await;
    assert!(matches!(other, Err(Error::OtherKey { .. })), "{other:?}");
    let none = place.forgotten(&key(), "0000000000000009").await;
    assert!(matches!(none, Err(Error::NoBase(_))), "{none:?}");
    let forgotten = place.forgotten(&key(), seven).await.unwrap();
    assert_eq!((forgotten.bases, forgotten.oldest.manifest.number), (2, 1));
    // A removal that is cut off can be begun again.
    world.store.allow(2);
    place.forget(&forgotten).await.unwrap_err();
    world.store.allow(i64::MAX);
    let forgotten = place.forgotten(&key(), seven).await.unwrap();
    place.forget(&forgotten).await.unwrap();
    let names = world.store.names().await;
    assert!(names.iter().all(|name| name.contains(eight)), "{names:?}");
    assert!(world.restore().await.unwrap() == world.local());
}
