//! The attributes of many paths: a sequence whose objects are made when they are asked for.
//!
//! Making an `os.stat_result` takes a microsecond, and the servers answer faster than that. So
//! `stats` returns as soon as all answers are there.

use std::path::PathBuf;

use base::Attr;
use futures::StreamExt as _;
use pyo3::{
    exceptions::{PyIndexError, PyValueError},
    prelude::*,
    pyclass::CompareOp,
    sync::PyOnceLock,
    types::{PyList, PySlice, PyString, PyTuple},
};

use crate::{attr::stat_result, errors::os_error};

/// The answer of `Client.stats`: a sequence of `os.stat_result` or `OSError`.
#[pyclass(frozen, sequence, module = "pando", name = "Stats")]
pub(crate) struct Stats {
    paths: Vec<PathBuf>,
    answers: Vec<client::Result<Attr>>,
    made: Vec<PyOnceLock<Py<PyAny>>>,
}

/// The paths of a list of `str`, `bytes` and path objects.
pub(crate) fn paths_of(paths: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    let mut found = Vec::with_capacity(paths.len().unwrap_or(0));
    for path in paths.try_iter()? {
        let path = path?;
        let known = path.cast_exact::<PyString>().ok().and_then(|text| text.to_str().ok());
        let path = match known {
            Some(text) => PathBuf::from(text),
            None => path.py().import("os")?.call_method1("fsdecode", (path,))?.extract()?,
        };
        if path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(PyValueError::new_err("embedded null byte"));
        }
        found.push(path);
    }
    Ok(found)
}

/// Asks for the attributes of paths, `in_flight` at a time.
pub(crate) async fn ask(
    client: client::Client,
    paths: Vec<PathBuf>,
    follow: bool,
    in_flight: usize,
) -> Stats {
    let (client, asked) = (&client, &paths);
    let asked = (0..paths.len()).map(|at| async move {
        let path = &asked[at];
        if follow { client.stat(path).await } else { client.lstat(path).await }
    });
    let answers = futures::stream::iter(asked).buffered(in_flight);
    let answers: Vec<_> = answers.collect().await;
    let made = answers.iter().map(|_| PyOnceLock::new()).collect();
    Stats { paths, answers, made }
}

impl Stats {
    fn get<'a>(&'a self, py: Python<'_>, at: usize) -> PyResult<&'a Py<PyAny>> {
        self.made[at].get_or_try_init(py, || match &self.answers[at] {
            Ok(attr) => stat_result(py, attr),
            Err(error) => Ok(os_error(py, error, Some(&self.paths[at])).into_value(py).into_any()),
        })
    }

    fn list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let all = (0..self.answers.len()).map(|at| self.get(py, at));
        PyList::new(py, all.collect::<PyResult<Vec<_>>>()?)
    }
}

#[pymethods]
impl Stats {
    fn __len__(&self) -> usize {
        self.answers.len()
    }

    fn __getitem__(&self, py: Python<'_>, at: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let len = isize::try_from(self.answers.len())?;
        if let Ok(slice) = at.cast::<PySlice>() {
            let slice = slice.indices(len)?;
            let places = (0..slice.slicelength.cast_signed()).map(|n| slice.start + n * slice.step);
            let chosen =
                places.map(|at| self.get(py, at.cast_unsigned())).collect::<PyResult<Vec<_>>>()?;
            return Ok(PyList::new(py, chosen)?.into_any().unbind());
        }
        let at: isize = at.extract()?;
        let at = if at < 0 { at + len } else { at };
        if !(0..len).contains(&at) {
            return Err(PyIndexError::new_err("list index out of range"));
        }
        Ok(self.get(py, at.cast_unsigned())?.clone_ref(py))
    }

    fn __richcmp__(
        &self,
        py: Python<'_>,
        other: &Bound<'_, PyAny>,
        how: CompareOp,
    ) -> PyResult<Py<PyAny>> {
        let own = self.list(py)?;
        match other.cast::<Stats>() {
            Ok(other) => own.rich_compare(other.get().list(py)?, how).map(Bound::unbind),
            Err(_) if other.is_instance_of::<PyList>() => {
                own.rich_compare(other, how).map(Bound::unbind)
            }
            Err(_) => Ok(py.NotImplemented()),
        }
    }

    fn __add__<'py>(&self, py: Python<'py>, other: &Bound<'py, PyAny>) -> PyResult<Py<PyAny>> {
        let other = other.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        Ok(self.list(py)?.add(PyList::new(py, other)?)?.unbind())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.list(py)?.repr()?.to_string())
    }

    /// A copy that goes to another process is a list.
    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let list = py.import("builtins")?.getattr("list")?;
        Ok((list, PyTuple::new(py, [self.list(py)?])?))
    }

    #[pyo3(signature = (value, *args))]
    fn index(
        &self,
        py: Python<'_>,
        value: Py<PyAny>,
        args: &Bound<'_, PyTuple>,
    ) -> PyResult<Py<PyAny>> {
        let mut all = vec![value.into_bound(py)];
        all.extend(args.iter());
        Ok(self.list(py)?.call_method1("index", PyTuple::new(py, all)?)?.unbind())
    }

    fn count(&self, py: Python<'_>, value: Py<PyAny>) -> PyResult<Py<PyAny>> {
        Ok(self.list(py)?.call_method1("count", (value,))?.unbind())
    }
}
