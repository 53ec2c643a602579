//! A session with the servers, and the three ways to call an operation.

use std::{mem::ManuallyDrop, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use base::Cred;
use client::{Client, Config, Tasks};
use futures::{Stream, StreamExt as _};
use pyo3::{
    exceptions::PyTimeoutError,
    prelude::*,
    types::{PyList, PyTuple},
};
use tokio::time::timeout;

use crate::{
    driver::Driver,
    errors::{bad_handle, os_error},
    op::Op,
    out::Out,
    stats::{self, Stats},
};

/// The most operations of a bulk call that are under way.
const IN_FLIGHT_MAX: usize = 4096;

/// Values of a bulk call that are made at a time.
const CHUNK: usize = 128;

/// The path that an operation names, and how it ended.
type Done = (Option<PathBuf>, client::Result<Out>);

/// Parts that the objects of a session share.
pub(crate) struct Inner {
    client: ManuallyDrop<Client>,
    pub(crate) driver: &'static Driver,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.driver.is_here() {
            #[expect(unsafe_code, reason = "a session of the parent of a fork is not dropped")]
            // SAFETY: `self` is dropped, so nobody uses the field any more.
            let client = unsafe { ManuallyDrop::take(&mut self.client) };
            self.driver.drop(client);
        }
    }
}

impl Inner {
    fn client(&self, py: Python<'_>) -> PyResult<Client> {
        if self.driver.is_here() { Ok((*self.client).clone()) } else { Err(bad_handle(py)) }
    }

    /// Waits for an operation, with the GIL free, until it is done or a signal's handler raises.
    pub(crate) fn call(self: &Arc<Inner>, py: Python<'_>, op: Op) -> PyResult<Py<PyAny>> {
        let path = op.path().map(PathBuf::from);
        let client = self.client(py)?;
        match wait(py, self.driver, op.run(client))? {
            Ok(out) => out.into_py(py, self),
            Err(error) => Err(os_error(py, &error, path.as_deref())),
        }
    }

    /// The values of many operations: while some are made, the servers answer others.
    fn values(
        self: &Arc<Inner>,
        py: Python<'_>,
        chunks: &mut (impl Stream<Item = Vec<Done>> + Send + Unpin),
    ) -> PyResult<Vec<Py<PyAny>>> {
        let mut values = Vec::new();
        loop {
            let chunk = wait(py, self.driver, async {
                let chunk = chunks.next().await;
                // The requests that have taken the place of these are sent.
                tokio::task::yield_now().await;
                chunk
            })?;
            let Some(chunk) = chunk else { return Ok(values) };
            for done in chunk {
                values.push(self.value(py, done)?);
            }
        }
    }

    /// The value, or the error as a value.
    fn value(self: &Arc<Inner>, py: Python<'_>, (path, done): Done) -> PyResult<Py<PyAny>> {
        match done {
            Ok(out) => out.into_py(py, self),
            Err(error) => Ok(os_error(py, &error, path.as_deref()).into_value(py).into_any()),
        }
    }
}

/// Waits for a future with the GIL free; signals are handled meanwhile.
fn wait<F>(py: Python<'_>, driver: &'static Driver, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let mut future = driver.turns().in_turn(future);
    loop {
        let done = match py.detach(|| driver.tick(Pin::new(&mut future))) {
            Ok(None) => py.check_signals().map(|()| None),
            done => done,
        };
        match done {
            Ok(Some(done)) => return Ok(done),
            Ok(None) => {}
            Err(raised) => {
                driver.drop(future);
                return Err(raised);
            }
        }
    }
}

/// A session with the servers of a file system.
#[pyclass(frozen, module = "pando", name = "Session")]
pub(crate) struct Session(Arc<Inner>);

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (addresses, token, *, user = None, name = String::new(), seconds = 10.0))]
    fn new(
        py: Python<'_>,
        addresses: Vec<String>,
        token: String,
        user: Option<(u32, u32, Vec<u32>)>,
        name: String,
        seconds: f64,
    ) -> PyResult<Session> {
        let driver = Driver::get()?;
        let mut config = Config::new(addresses.clone(), token.trim());
        let only = wire::Token::unverified(token.trim())
            .ok()
            .and_then(|token| Some((token.uid?, *token.gids.first()?, Vec::new())));
        if let Some((uid, gid, groups)) = user.or(only) {
            config.cred = Cred { uid, gid, groups };
        }
        config.client_name = name;
        config.tasks = Tasks::InTurns(driver.turns().clone());
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let connected = wait(py, driver, async { timeout(limit, Client::connect(config)).await })?;
        match connected {
            Ok(Ok(client)) => {
                Ok(Session(Arc::new(Inner { client: ManuallyDrop::new(client), driver })))
            }
            Ok(Err(error)) => Err(os_error(py, &error, None)),
            Err(_) => {
                Err(PyTimeoutError::new_err(format!("no answer from {}", addresses.join(", "))))
            }
        }
    }

    /// The same session, acting as another user.
    fn as_user(&self, py: Python<'_>, uid: u32, gid: u32, groups: Vec<u32>) -> PyResult<Session> {
        let client = self.0.client(py)?.as_user(Cred { uid, gid, groups });
        let client = ManuallyDrop::new(client);
        Ok(Session(Arc::new(Inner { client, driver: self.0.driver })))
    }

    #[getter]
    fn read_only(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.0.client(py)?.read_only())
    }

    /// Whether the session is of this process, and not of one that forked it.
    #[getter]
    fn is_here(&self) -> bool {
        self.0.driver.is_here()
    }

    /// Waits for an operation.
    #[pyo3(signature = (name, *args))]
    fn call(&self, py: Python<'_>, name: &str, args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
        self.0.call(py, Op::parse(name, args)?)
    }

    /// Does many operations of one kind, `in_flight` at a time; what each returned, or its `OSError`.
    fn bulk(
        &self,
        py: Python<'_>,
        name: &str,
        args: Vec<Bound<'_, PyTuple>>,
        in_flight: usize,
    ) -> PyResult<Py<PyList>> {
        let mut ops = Vec::with_capacity(args.len());
        for args in &args {
            match Op::parse(name, args) {
                Ok(op) => ops.push(op),
                Err(error) => {
                    self.0.driver.drop(ops);
                    return Err(error);
                }
            }
        }
        let client = self.0.client(py)?;
        let done = ops.into_iter().map(|op| {
            let (path, client) = (op.path().map(PathBuf::from), client.clone());
            async move { (path, op.run(client).await) }
        });
        let in_flight = in_flight.clamp(1, IN_FLIGHT_MAX);
        let mut chunks = futures::stream::iter(done).buffered(in_flight).ready_chunks(CHUNK);
        let values = self.0.values(py, &mut chunks);
        self.0.driver.drop(chunks);
        let values = values?;
        Ok(PyList::new(py, values)?.unbind())
    }

    /// The attributes of many paths, `in_flight` at a time.
    fn stats(
        &self,
        py: Python<'_>,
        paths: &Bound<'_, PyAny>,
        follow: bool,
        in_flight: usize,
    ) -> PyResult<Stats> {
        let (client, paths) = (self.0.client(py)?, stats::paths_of(paths)?);
        let in_flight = in_flight.clamp(1, IN_FLIGHT_MAX);
        wait(py, self.0.driver, stats::ask(client, paths, follow, in_flight))
    }

    /// Starts an operation; `done(value)` is called with what it returned, or with its `OSError`,
    /// on a thread of the client. The operation goes on when it is not waited for any more.
    #[pyo3(signature = (done, name, *args))]
    fn start(
        &self,
        py: Python<'_>,
        done: Py<PyAny>,
        name: &str,
        args: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        let op = Op::parse(name, args)?;
        let path = op.path().map(PathBuf::from);
        let (client, inner) = (self.0.client(py)?, Arc::clone(&self.0));
        let driver = inner.driver;
        driver.spawn(async move {
            let answer = driver.turns().in_turn(op.run(client)).await;
            driver.calls().soon(move |py| {
                let value = inner.value(py, (path, answer));
                let value = value.unwrap_or_else(|error| error.into_value(py).into_any());
                if let Err(error) = done.call1(py, (value,)) {
                    error.write_unraisable(py, None);
                }
            });
        });
        Ok(())
    }

    /// Sends what was written, and ends the session.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let client = self.0.client(py)?;
        match wait(py, self.0.driver, async move { client.close().await })? {
            Ok(()) => Ok(()),
            Err(error) => Err(os_error(py, &error, None)),
        }
    }
}
