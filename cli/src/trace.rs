//! `--trace FILE`: what a server or a mount does, as spans, in the JSON format that Perfetto and
//! chrome://tracing read.
//!
//! The spans are `tracing`'s, of one target; `meta`, `mount` and `client` make them. What a server
//! tells are events with times ([`Event`]), as a request's way through a group is known when it is
//! over. Each request is a track of its own ("b" and "e" events with an id), whose parts nest in
//! it; a core's groups are on the track of the core.
//!
//! Always true: the file is a JSON array once the process has ended; of one that was killed only
//! the bracket and the latest spans are missing, which the viewers forgive. It has at most as many
//! bytes as were allowed, and a few.

use std::{
    fmt,
    fs::File,
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tracing::{
    Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

/// The target of the spans.
pub(crate) const TARGET: &str = "pando::trace";
/// The tracks of what a server does, and of what a mount does.
const SERVER: u64 = 1;
const CLIENT: u64 = 2;

/// Whether and where to write a trace.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TraceArgs {
    /// Write a trace of this process to this file, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Stop the trace at this size.
    #[arg(
        long, default_value = "256MiB", value_name = "SIZE", requires = "trace",
        value_parser = crate::values::size
    )]
    trace_max: u64,
}

/// The layer that writes them.
pub(crate) struct Trace {
    began: Instant,
    out: Arc<Mutex<Out>>,
}

/// Ends the file when it is dropped.
pub(crate) struct Guard(Arc<Mutex<Out>>);

struct Out {
    file: BufWriter<File>,
    /// Number of bytes that may still be written.
    left: u64,
    /// The number of the latest track.
    tracks: u64,
    failed: bool,
}

/// Data that a span carries until it ends.
struct Open {
    began: Instant,
    fields: Fields,
}

#[derive(Default)]
struct Fields(Map<String, Value>);

impl TraceArgs {
    /// Begins a trace, if there is to be one.
    pub(crate) fn begin(&self) -> anyhow::Result<Option<(Trace, Guard)>> {
        self.trace.as_deref().map(|path| begin(path, self.trace_max)).transpose()
    }
}

fn begin(path: &Path, bytes_max: u64) -> anyhow::Result<(Trace, Guard)> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut out = Out { file: BufWriter::new(file), left: bytes_max, tracks: 0, failed: false };
    for (before, process, name) in [("[\n", SERVER, "server"), (",\n", CLIENT, "mount")] {
        let named = json!({ "name": name });
        out.write(
            before,
            &json!({ "ph": "M", "name": "process_name", "pid": process, "args": named }),
        );
    }
    let out = Arc::new(Mutex::new(out));
    Ok((Trace { began: Instant::now(), out: out.clone() }, Guard(out)))
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Trace {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(Open { began: Instant::now(), fields });
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(Open { began, fields }) = span.extensions_mut().remove() else { return };
        let op = fields.0.get("op").and_then(Value::as_str).unwrap_or_default();
        let name = format!("{} {op}", span.name());
        let root =
            span.scope().from_root().next().map_or(id.into_u64(), |root| root.id().into_u64());
        let times =
            [began, Instant::now()].map(|at| micros(at.saturating_duration_since(self.began)));
        // Ids are used again, and never for two that are open at a time.
        let track = Track { process: CLIENT, id: root };
        self.out.lock().span(&track, &name, times, &Value::Object(fields.0));
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let told = Event { fields: fields.0, began: self.began };
        let mut out = self.out.lock();
        match told.fields.get("message").and_then(Value::as_str) {
            Some("group") => told.group(&mut out),
            Some("request") => told.request(&mut out),
            Some(_) | None => {}
        }
    }
}

/// Report of a server on a request or a group that is over.
struct Event {
    fields: Map<String, Value>,
    began: Instant,
}

/// A track of its own for one request. Viewers read ids as text: as numbers they would be rounded.
struct Track {
    process: u64,
    id: u64,
}

impl Event {
    fn nanos(&self, name: &str) -> u64 {
        self.fields.get(name).and_then(Value::as_u64).unwrap_or_default()
    }

    /// A time of the server's as one of the trace's, in microseconds.
    fn at(&self, name: &str) -> f64 {
        let ago = Duration::from_nanos(self.nanos("now").saturating_sub(self.nanos(name)));
        micros(self.began.elapsed().saturating_sub(ago))
    }

    fn some(&self, names: &[&str]) -> Value {
        let field = |name: &&str| Some(((*name).to_owned(), self.fields.get(*name)?.clone()));
        Value::Object(names.iter().filter_map(field).collect())
    }

    fn group(&self, out: &mut Out) {
        let (begun, executed, written) =
            (self.at("begun"), self.at("executed"), self.at("written"));
        let core = self.nanos("core");
        let args = self.some(&["core", "requests"]);
        for (name, from, to) in [("group", begun, written), ("write", executed, written)] {
            out.put(&json!({
                "ph": "X", "name": name, "cat": "group", "pid": SERVER, "tid": core, "ts": from,
                "dur": to - from, "args": args,
            }));
        }
    }

    fn request(&self, out: &mut Out) {
        out.tracks += 1;
        let track = Track { process: SERVER, id: out.tracks };
        // One look at the clock for all of them, or they would not nest.
        let base = self.at("arrived");
        let arrived = self.nanos("arrived");
        let at = |name: &str| {
            base + micros(Duration::from_nanos(self.nanos(name).saturating_sub(arrived)))
        };
        let op = self.fields.get("op").and_then(Value::as_str).unwrap_or_default();
        let args = self.some(&["op", "session", "request", "core", "outcome"]);
        let last = self.fields.get("last").and_then(Value::as_str).unwrap_or("wait");
        let parts = [
            ("queue", "arrived", "begun"),
            ("execute", "begun", "ended"),
            ("gather", "ended", "executed"),
            ("write", "executed", "written"),
            (last, "written", "answered"),
        ];
        let times = ["arrived", "answered"].map(at);
        out.begin(&track, op, times[0], &args);
        for (name, from, to) in parts.into_iter().filter(|(_, from, to)| at(from) < at(to)) {
            out.span(&track, name, [from, to].map(at), &Value::Null);
        }
        out.end(&track, op, times[1]);
    }
}

impl Out {
    fn span(&mut self, track: &Track, name: &str, [from, to]: [f64; 2], args: &Value) {
        self.begin(track, name, from, args);
        self.end(track, name, to);
    }

    fn begin(&mut self, track: &Track, name: &str, at: f64, args: &Value) {
        let Track { process, id } = track;
        self.put(&json!({
            "ph": "b", "name": name, "cat": "request", "pid": process, "tid": 0,
            "id": format!("{id:#x}"), "ts": at, "args": args,
        }));
    }

    fn end(&mut self, track: &Track, name: &str, at: f64) {
        let Track { process, id } = track;
        self.put(&json!({
            "ph": "e", "name": name, "cat": "request", "pid": process, "tid": 0,
            "id": format!("{id:#x}"), "ts": at,
        }));
    }

    fn put(&mut self, event: &Value) {
        self.write(",\n", event);
    }

    fn write(&mut self, before: &str, event: &Value) {
        if self.failed {
            return;
        }
        let text = format!("{before}{event}");
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        let written = match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                self.file.write_all(text.as_bytes())
            }
            None => Err(io::Error::other("the trace has reached --trace-max")),
        };
        if let Err(error) = written {
            // A trace that cannot be written is no reason to stop serving.
            self.failed = true;
            tracing::warn!(%error, "the trace ends here");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut out = self.0.lock();
        // The bracket ends the file: later spans are not written.
        out.failed = true;
        let ended = out.file.write_all(b"\n]\n").and_then(|()| out.file.flush());
        drop(out);
        if let Err(error) = ended {
            tracing::warn!(%error, "the trace could not be ended");
        }
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_has_so_many_bytes_and_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace");
        let (trace, guard) = begin(&file, 1000).unwrap();
        for _ in 0..100 {
            trace.out.lock().span(
                &Track { process: CLIENT, id: 1 },
                "call",
                [1.0, 2.0],
                &Value::Null,
            );
        }
        drop(guard);
        trace.out.lock().put(&json!({}));
        drop(trace);
        let text = std::fs::read(&file).unwrap();
        assert!((500..1010).contains(&text.len()), "{}", text.len());
        let events: Vec<Value> = serde_json::from_slice(&text).unwrap();
        assert!(events.iter().any(|event| event["name"] == "call"));
    }
}
