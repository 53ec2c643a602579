//! Attributes as Python has them.

use base::{Attr, Time};
use pyo3::{IntoPyObjectExt as _, prelude::*, sync::PyOnceLock, types::PyTuple};

/// The size in which it is best to read and write.
const BLOCK: u32 = 1 << 20;

/// The attributes as `os.stat_result`, with nanoseconds, blocks and birth.
pub(crate) fn stat_result(py: Python<'_>, attr: &Attr) -> PyResult<Py<PyAny>> {
    static TYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class =
        TYPE.get_or_try_init(py, || py.import("os")?.getattr("stat_result").map(Bound::unbind))?;
    let nanos = |time: Time| {
        // Numbers of 64 bits, as nearly all are, are made several times as fast.
        let short = time.sec.checked_mul(1_000_000_000);
        match short.and_then(|nanos| nanos.checked_add(time.nsec.into())) {
            Some(nanos) => nanos.into_py_any(py),
            None => {
                let nanos = i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
                nanos.into_py_any(py)
            }
        }
    };
    #[expect(clippy::cast_precision_loss, reason = "as in os.stat; the exact time is beside it")]
    let seconds = |time: Time| time.sec as f64 + f64::from(time.nsec) * 1e-9;
    let fields: [Py<PyAny>; 19] = [
        (attr.kind.mode_bits() | attr.mode).into_py_any(py)?,
        attr.ino.0.into_py_any(py)?,
        0.into_py_any(py)?,
        attr.nlink.into_py_any(py)?,
        attr.uid.into_py_any(py)?,
        attr.gid.into_py_any(py)?,
        attr.size.into_py_any(py)?,
        attr.atime.sec.into_py_any(py)?,
        attr.mtime.sec.into_py_any(py)?,
        attr.ctime.sec.into_py_any(py)?,
        seconds(attr.atime).into_py_any(py)?,
        seconds(attr.mtime).into_py_any(py)?,
        seconds(attr.ctime).into_py_any(py)?,
        nanos(attr.atime)?,
        nanos(attr.mtime)?,
        nanos(attr.ctime)?,
        BLOCK.into_py_any(py)?,
        attr.allocated.div_ceil(512).into_py_any(py)?,
        attr.rdev.into_py_any(py)?,
    ];
    class.call1(py, (PyTuple::new(py, fields)?,))
}
