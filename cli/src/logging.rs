//! The log: lines on stderr, quiet unless something is wrong or someone asks; and the trace, when
//! there is one.

use std::io::{self, IsTerminal as _};

use anyhow::Context as _;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    EnvFilter, Layer as _, filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::trace::{self, TraceArgs};

/// The form of the log.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON object in each line.
    Json,
}

/// Starts logging what `filter` lets through: a level, or `target=level` pairs; and the trace, if
/// there is to be one. That ends with what is returned.
pub(crate) fn start(
    filter: &str,
    format: LogFormat,
    trace: Option<&TraceArgs>,
) -> anyhow::Result<Option<trace::Guard>> {
    let asked = filter;
    let mut filter = EnvFilter::try_new(filter)
        .with_context(|| format!("cannot read the log level {filter:?}"))
        .map_err(|error| crate::failure::usage(format!("{error:#}")))?;
    if !asked.contains("s3s") {
        // To that library each answer that is no success is an error.
        filter = filter.add_directive("s3s=off".parse()?);
    }
    let log = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let log = match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => log.json().flatten_event(true).boxed(),
    };
    let (layer, guard) = trace.map(TraceArgs::begin).transpose()?.flatten().unzip();
    let spans = Targets::new().with_target(trace::TARGET, LevelFilter::TRACE);
    tracing_subscriber::registry()
        .with(log.with_filter(filter))
        .with(layer.map(|layer| layer.with_filter(spans)))
        .init();
    Ok(guard)
}
