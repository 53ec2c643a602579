//! Stores in memory that fail by a script, wait at each request, or keep no conditions.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    ops::Range,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Poll, Waker},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{
    StreamExt as _, TryStreamExt as _,
    stream::{self, BoxStream},
};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    memory::InMemory, path::Path,
};

/// The fate of one put or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// An error, and no effect.
    Before,
    /// The effect, and an error.
    After,
    /// The effect, and "exists": the store's client repeated a put.
    Repeated,
    /// No effect, and "exists": a conflict that says "try again".
    Conflict,
    /// An error; the put arrives two requests later.
    Late,
    /// No answer.
    Silent,
}

/// One process' view of a store.
#[derive(Default)]
pub(super) struct Faulty {
    pub(super) inner: Arc<InMemory>,
    pub(super) script: Mutex<VecDeque<Fault>>,
    pub(super) late: Mutex<Vec<(u32, Path, PutPayload)>>,
    /// Waits for a grant at each request for a segment.
    pub(super) gated: bool,
    pub(super) gate: Arc<Mutex<Gate>>,
    /// Lists what was there then.
    pub(super) stale: Option<Arc<InMemory>>,
    /// Takes every put.
    pub(super) unconditional: bool,
}

#[derive(Default)]
pub(super) struct Gate {
    pub(super) waits: bool,
    pub(super) granted: bool,
    wakers: Vec<Waker>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

/// Waits until the request is granted. Of several requests one goes on.
async fn wait(gate: &Mutex<Gate>) {
    std::future::poll_fn(|context| {
        let mut gate = gate.lock().unwrap();
        if std::mem::take(&mut gate.granted) {
            return Poll::Ready(());
        }
        gate.waits = true;
        gate.wakers.push(context.waker().clone());
        Poll::Pending
    })
    .await;
}

fn failed() -> Error {
    Error::Generic { store: "faulty", source: "it is away".into() }
}

fn exists(path: &Path) -> Error {
    Error::AlreadyExists { path: path.to_string(), source: "exists".into() }
}

impl Faulty {
    /// Another view of the same objects.
    pub(super) fn of(inner: &Arc<InMemory>) -> Faulty {
        Faulty { inner: inner.clone(), ..Faulty::default() }
    }

    pub(super) fn scripted(inner: &Arc<InMemory>, script: &[Fault]) -> Arc<Faulty> {
        let script = Mutex::new(script.iter().copied().collect());
        Arc::new(Faulty { script, ..Faulty::of(inner) })
    }

    async fn begin(&self, path: &Path) -> Fault {
        if self.gated && path.as_ref().contains("/journal") {
            wait(&self.gate).await;
        }
        let mut due = Vec::new();
        self.late.lock().unwrap().retain_mut(|(left, path, payload)| {
            *left -= 1;
            if *left == 0 {
                due.push((path.clone(), payload.clone()));
            }
            *left > 0
        });
        for (path, payload) in due {
            let _ = self.inner.put_opts(&path, payload, PutMode::Create.into()).await;
        }
        let fault = self.script.lock().unwrap().pop_front().unwrap_or(Fault::None);
        if fault == Fault::Silent {
            std::future::pending::<()>().await;
        }
        fault
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        if self.unconditional {
            options.mode = PutMode::Overwrite;
        }
        let fault = self.begin(path).await;
        match fault {
            Fault::Before => Err(failed()),
            Fault::Conflict => Err(exists(path)),
            Fault::Late => {
                self.late.lock().unwrap().push((3, path.clone(), payload));
                Err(failed())
            }
            Fault::None | Fault::Silent => self.inner.put_opts(path, payload, options).await,
            Fault::After | Fault::Repeated => {
                let _ = self.inner.put_opts(path, payload, options).await;
                Err(if fault == Fault::After { failed() } else { exists(path) })
            }
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        match self.begin(path).await {
            Fault::Before | Fault::After => Err(failed()),
            _ => self.inner.get_opts(path, options).await,
        }
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(path, ranges).await
    }

    fn delete_stream(
        &self,
        mut paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (inner, gate, gated) = (self.inner.clone(), self.gate.clone(), self.gated);
        stream::once(async move {
            if gated {
                wait(&gate).await;
            }
        })
        .map(move |()| inner.delete_stream(std::mem::replace(&mut paths, stream::empty().boxed())))
        .flatten()
        .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.stale.as_ref().unwrap_or(&self.inner).list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// All objects, for a store that begins where another one is.
pub(super) async fn copied(store: &InMemory) -> Arc<InMemory> {
    let copy = InMemory::new();
    let all: Vec<ObjectMeta> = store.list(None).try_collect().await.unwrap();
    for meta in all {
        let path = &meta.location;
        let bytes = store.get_opts(path, GetOptions::default()).await.unwrap();
        let bytes = bytes.bytes().await.unwrap();
        copy.put_opts(path, bytes.into(), PutOptions::default()).await.unwrap();
    }
    Arc::new(copy)
}

/// An actor of an interleaving: a future, and the store through which alone it acts.
pub(super) struct Actor<'a> {
    pub(super) store: Arc<Faulty>,
    pub(super) work: Pin<Box<dyn Future<Output = ()> + 'a>>,
}

/// Steps that are taken in every order; those after them go in one.
const CHOICES_MAX: usize = 12;

/// Runs actors in the order that `choices` names, and afterwards the first that can go on. Returns
/// how many could go on at each choice.
pub(super) async fn run(mut actors: Vec<Actor<'_>>, choices: &[usize]) -> Vec<usize> {
    let mut made = Vec::new();
    let mut done = BTreeMap::new();
    loop {
        for (at, actor) in actors.iter_mut().enumerate() {
            while !done.contains_key(&at) && !actor.store.gate.lock().unwrap().waits {
                match futures::poll!(&mut actor.work) {
                    Poll::Ready(()) => drop(done.insert(at, ())),
                    // The actor waits for time.
                    Poll::Pending if !actor.store.gate.lock().unwrap().waits => {
                        tokio::time::advance(std::time::Duration::from_millis(3)).await;
                    }
                    Poll::Pending => {}
                }
            }
        }
        let ready: Vec<usize> = (0..actors.len()).filter(|at| !done.contains_key(at)).collect();
        if ready.is_empty() {
            return made;
        }
        let chosen = ready[choices.get(made.len()).copied().unwrap_or(0)];
        made.push(if made.len() < CHOICES_MAX { ready.len() } else { 1 });
        let mut gate = actors[chosen].store.gate.lock().unwrap();
        (gate.granted, gate.waits) = (true, false);
        gate.wakers.drain(..).for_each(Waker::wake);
    }
}

/// The choices after these, in the order of a walk over the whole tree.
pub(super) fn next(mut choices: Vec<usize>, made: &[usize]) -> Option<Vec<usize>> {
    choices.resize(made.len(), 0);
    while let Some(last) = choices.pop() {
        if last + 1 < made[choices.len()] {
            choices.push(last + 1);
            return Some(choices);
        }
    }
    None
}
