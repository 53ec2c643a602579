//! An owner that renews its lease and processes that watch it, over a store that is slow and fails,
//! with clocks of different rates: never may two serve.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use base::Random;
use futures::{future::join_all, stream::BoxStream};
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result as StoreResult, memory::InMemory, path::Path,
};
use tokio::time::{Instant, sleep, timeout};

use super::{any_place, random};
use crate::{
    Error, Journal, Known, Lease, Owner, Reader, Replica, Tenure, Times, Verdict, Vigil, Writer,
    bugs::Bug, fence,
};

const LEASE: Duration = Duration::from_millis(800);
const RUN: Duration = Duration::from_secs(30);

/// A store whose requests take time on their way there and back, and are lost now and then.
struct Slow {
    inner: Arc<InMemory>,
    random: Arc<dyn Random>,
}

impl fmt::Debug for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("slow")
    }
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("slow")
    }
}

impl Slow {
    /// One way; `false`: lost.
    async fn way(&self) -> StoreResult<()> {
        let millis = match self.random.next() % 20 {
            0 => 50 + self.random.next() % 900,
            _ => self.random.next() % 8,
        };
        sleep(Duration::from_millis(millis)).await;
        if self.random.next().is_multiple_of(25) {
            return Err(StoreError::Generic { store: "slow", source: "lost".into() });
        }
        Ok(())
    }
}

#[async_trait]
impl ObjectStore for Slow {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        self.way().await?;
        let done = self.inner.put_opts(path, payload, options).await;
        self.way().await?;
        done
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.way().await?;
        let done = self.inner.get_opts(path, options).await;
        self.way().await?;
        done
    }

    async fn get_ranges(
        &self,
        path: &Path,
        ranges: &[Range<u64>],
    ) -> StoreResult<Vec<bytes::Bytes>> {
        self.inner.get_ranges(path, ranges).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// The moment until which somebody may serve by the true time, and who.
type Serving = Mutex<Vec<(u64, Duration, Duration)>>;

/// One machine.
struct Machine {
    number: u64,
    journal: Journal,
    random: Arc<dyn Random>,
    begun: Instant,
    /// Rate of its clock, in thousandths of the true one.
    rate: u32,
    bug: Option<Bug>,
}

impl Machine {
    /// The machine's own clock.
    fn now(&self) -> Duration {
        self.begun.elapsed() * self.rate / 1000 + Duration::from_secs(100 * self.number)
    }

    /// The true time at which its clock shows this.
    fn truly(&self, now: Duration) -> Duration {
        (now - Duration::from_secs(100 * self.number)) * 1000 / self.rate
    }

    /// Stands by, serves, is held up for a while, and stands by again.
    async fn run(&self, serving: &Serving, takeovers: &Mutex<u32>) {
        loop {
            let Ok((writer, begun)) = self.stand_by(self.number == 0).await else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            *takeovers.lock().unwrap() += 1;
            self.serve(writer, begun, serving).await;
        }
    }

    fn takes_early(&self) -> bool {
        self.bug == Some(Bug::TakenEarly)
    }

    async fn next(&self, reader: &mut Reader) -> Result<Option<crate::Segment>, Error> {
        loop {
            match reader.next().await {
                Err(error) if error.is_passing() => {}
                done => return done,
            }
        }
    }

    /// Returns a writer, and when its fence was begun.
    async fn stand_by(&self, at_once: bool) -> Result<(Writer, Duration), Error> {
        let mut reader = Reader::new(self.journal.clone(), 0, Replica::default()).alone();
        let mut vigil: Option<Vigil> = None;
        loop {
            let before = self.now();
            while let Some(found) = self.next(&mut reader).await? {
                vigil = Some(Vigil::new(found.header, self.now()));
            }
            let ends_at = match &vigil {
                None if at_once => 0,
                None => {
                    sleep(Duration::from_millis(20)).await;
                    continue;
                }
                Some(vigil) => match vigil.verdict(before) {
                    Verdict::Ended => vigil.last().number,
                    Verdict::Held(left) if self.takes_early() && left < LEASE / 2 => {
                        vigil.last().number
                    }
                    Verdict::Held(_) | Verdict::Unleased => {
                        sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                },
            };
            let generation = reader.end().owner.generation + 1;
            let position = reader.end().last.unwrap_or_default();
            let known = Known {
                segment: ends_at,
                replica: Replica { generation: generation - 1, position },
                ends_at: Some(ends_at),
                lease_millis: 800,
                ..Known::default()
            };
            let owner = Owner { generation, run: self.random.next() };
            let begun = self.now();
            let times = Times::default();
            let fenced = fence(&self.journal, owner, &known, times, self.random.clone(), &|_| ());
            match Box::pin(fenced).await {
                Ok(taken) => return Ok((taken.writer, begun)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Renews the lease until the journal is another's, and notes for how long it may serve.
    async fn serve(&self, mut writer: Writer, begun: Duration, serving: &Serving) {
        let tenure = Tenure::unbound(Some(LEASE));
        tenure.bind(begun);
        writer.set_lease(Lease { millis: 800, resigned: false, address: "here".to_owned() });
        let note = |begun| {
            let (from, ends) = (self.begun.elapsed(), self.truly(begun + LEASE));
            if from < ends {
                serving.lock().unwrap().push((self.number, from, ends));
            }
        };
        note(begun);
        loop {
            let pause = match self.random.next() % 12 {
                0 => LEASE * 4,
                _ => LEASE / 4,
            };
            sleep(pause).await;
            let begun = self.now();
            let renewed = Box::pin(writer.renew(&|_| ()));
            match timeout(RUN, renewed).await {
                Ok(Ok(appended)) if appended.renews => {
                    let counted =
                        if self.bug == Some(Bug::LeaseFromStored) { self.now() } else { begun };
                    tenure.extend(counted);
                    assert_eq!(tenure.holds(self.now()), self.now() < counted + LEASE);
                    note(counted);
                }
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }
}

/// Runs a world; returns the number of takeovers, or who served together.
async fn world(seed: u64, bug: Option<Bug>) -> Result<u32, String> {
    let inner = Arc::new(InMemory::new());
    let (serving, takeovers) = (Serving::default(), Mutex::default());
    let begun = Instant::now();
    let machines: Vec<Machine> = (0..3)
        .map(|number| {
            let random = random(seed * 8 + number);
            let store = Arc::new(Slow { inner: inner.clone(), random: random.clone() });
            let mut journal = any_place(&store);
            journal.planted = bug;
            let rate = 1000 + u32::try_from(random.next() % 100).unwrap() - 50;
            Machine { number, journal, random, begun, rate, bug }
        })
        .collect();
    let all = join_all(machines.iter().map(|machine| machine.run(&serving, &takeovers)));
    let _ = timeout(RUN, all).await;
    let serving = serving.into_inner().unwrap();
    for (index, (one, from, to)) in serving.iter().enumerate() {
        for (other, since, until) in &serving[index + 1..] {
            if one != other && from < until && since < to {
                return Err(format!(
                    "seed {seed}: {one} may serve from {from:?} to {to:?}, {other} from {since:?} \
                     to {until:?}"
                ));
            }
        }
    }
    Ok(takeovers.into_inner().unwrap())
}

#[tokio::test(start_paused = true)]
async fn never_may_two_serve() {
    let mut takeovers = 0;
    for seed in 0..100 {
        takeovers += world(seed, None).await.unwrap_or_else(|both| panic!("{both}"));
    }
    assert!(takeovers > 120, "only {takeovers}");
}

#[tokio::test(start_paused = true)]
async fn two_that_serve_are_found_with_each_bug() {
    for bug in [Bug::TakenEarly, Bug::LeaseFromStored, Bug::RenewalIgnored] {
        let mut found = None;
        for seed in 0..60 {
            found = world(seed, Some(bug)).await.err();
            if found.is_some() {
                break;
            }
        }
        assert!(found.is_some(), "{bug:?} is not found");
    }
}
