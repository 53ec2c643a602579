//! The record of a world: a hash of all events, and all problems.
//!
//! Two runs of a seed must have the same hash, so everything that could differ between them goes
//! in: bytes that arrive, batches that are written, faults, answers. A printed run shows its events
//! with their times. Log lines of level ERROR and panics are problems.

use std::{
    cell::RefCell,
    fmt::{self, Write as _},
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Once},
};

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// The error that a killed process gets. Log lines with this text are no problems.
pub const DEAD: &str = "the process is dead";

/// The record of one world. Clones share it.
#[derive(Clone)]
pub struct Trace {
    inner: Arc<Mutex<Inner>>,
    print: bool,
}

struct Inner {
    started: Option<Instant>,
    hash: u64,
    events: u64,
    problems: Vec<String>,
    /// Log lines that contain one of these texts are no problems.
    expected: Vec<&'static str>,
}

impl Trace {
    /// An empty record. If `print`, events are printed to standard error.
    #[must_use]
    pub fn new(print: bool) -> Trace {
        let inner =
            Inner { started: None, hash: 0, events: 0, problems: Vec::new(), expected: Vec::new() };
        Trace { inner: Arc::new(Mutex::new(inner)), print }
    }

    /// Starts the time of the world.
    pub fn start(&self) {
        self.inner.lock().started = Some(Instant::now());
    }

    /// Records an event that is a few numbers.
    pub fn note(&self, what: &'static str, numbers: &[u64]) {
        let mut inner = self.inner.lock();
        let ms = inner.ms();
        inner.take_in(ms);
        inner.take_in(what.len() as u64);
        numbers.iter().for_each(|number| inner.take_in(*number));
        if self.print {
            print(ms, format_args!("{what} {numbers:x?}"));
        }
    }

    /// Records an event as text.
    pub fn say(&self, words: fmt::Arguments<'_>) {
        let mut inner = self.inner.lock();
        let ms = inner.ms();
        inner.take_in(ms);
        let text = words.to_string();
        inner.take_in(hash_of(text.as_bytes()));
        if self.print {
            print(ms, words);
        }
    }

    /// Whether the run is printed.
    #[must_use]
    pub fn prints(&self) -> bool {
        self.print
    }

    /// Prints text that is no event, if the run is printed.
    pub fn show(&self, words: fmt::Arguments<'_>) {
        if self.print {
            print(self.ms(), words);
        }
    }

    /// Records a problem.
    pub fn problem(&self, text: String) {
        let mut inner = self.inner.lock();
        if self.print {
            print(inner.ms(), format_args!("PROBLEM {text}"));
        }
        inner.problems.push(text);
    }

    /// Log lines of level ERROR that contain this text are no problems from now on, because a test
    /// has damaged something.
    pub fn expect(&self, words: &'static str) {
        self.inner.lock().expected.push(words);
    }

    fn is_expected(&self, line: &str) -> bool {
        self.inner.lock().expected.iter().any(|words| line.contains(words))
    }

    /// All problems so far.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.inner.lock().problems.clone()
    }

    /// The hash of all events, and their number.
    #[must_use]
    pub fn hash(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.hash, inner.events)
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn ms(&self) -> u64 {
        self.inner.lock().ms()
    }
}

impl Inner {
    fn ms(&self) -> u64 {
        let passed = self.started.map_or(0, |started| started.elapsed().as_millis());
        u64::try_from(passed).unwrap_or(u64::MAX)
    }

    fn take_in(&mut self, number: u64) {
        self.events += 1;
        self.hash = (self.hash.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

fn print(ms: u64, words: fmt::Arguments<'_>) {
    eprintln!("{:>8}.{:03} {words}", ms / 1000, ms % 1000);
}

/// Hashes bytes, for events that are bytes.
#[must_use]
pub fn hash_of(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let start = bytes.len() as u64;
    let hash = words.iter().fold(start, |hash, word| {
        (hash.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x517c_c1b7_2722_0a95)
    });
    rest.iter().fold(hash, |hash, byte| {
        (hash.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}

/// Listens to logs and panics of this thread until the returned value is dropped.
fn listen(trace: &Trace) -> impl Sized {
    catch_panics();
    LISTENER.with(|listener| listener.replace(Some(trace.clone())));
    let log = tracing::subscriber::set_default(Log { trace: trace.clone() });
    (log, Listening)
}

/// Runs a closure on this thread and listens to its log. Returns its result, or `None` if it
/// panicked, and all problems.
pub fn hear<T>(trace: &Trace, run: impl FnOnce() -> T) -> (Option<T>, Vec<String>) {
    let listening = listen(trace);
    // The panic hook has recorded the panic as a problem.
    let ended = panic::catch_unwind(AssertUnwindSafe(run)).ok();
    drop(listening);
    (ended, trace.problems())
}

thread_local! {
    static LISTENER: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

struct Listening;

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENER.with(|listener| listener.replace(None));
    }
}

/// Records each panic as a problem of the world on its thread, because many tasks are never joined.
fn catch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let caught = LISTENER.with(|listener| match listener.try_borrow() {
                Ok(listener) => listener.clone(),
                Err(_) => None,
            });
            match caught {
                Some(trace) => trace.problem(format!("a panic: {info}")),
                None => before(info),
            }
        }));
    });
}

struct Log {
    trace: Trace,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let wanted = if self.trace.print { Level::DEBUG } else { Level::ERROR };
        *metadata.level() <= wanted
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut line = Line(format!("{} {}:", metadata.level(), metadata.target()));
        event.record(&mut line);
        let is_wanted = line.0.contains(DEAD) || self.trace.is_expected(&line.0);
        if *metadata.level() == Level::ERROR && !is_wanted {
            self.trace.problem(line.0);
        } else if self.trace.print {
            print(self.trace.ms(), format_args!("{}", line.0));
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = if field.name() == "message" {
            write!(self.0, " {value:?}")
        } else {
            write!(self.0, " {}={value:?}", field.name())
        };
        written.expect("writing to a string cannot fail");
    }
}
