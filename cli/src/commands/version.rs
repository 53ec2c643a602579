//! `pando version`: what this program is.

use std::process::ExitCode;

use serde::Serialize;
use wire::frame::PROTOCOL_VERSION;

use crate::output;

/// Print the version of this program, of its protocol, and the commit it was built from, if known.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
    protocol: u16,
    revision: Option<&'static str>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        protocol: PROTOCOL_VERSION,
        revision: option_env!("PANDO_REVISION"),
    };
    if args.json {
        output::print_json(&version)?;
    } else {
        let Version { version, protocol, revision } = version;
        let revision =
            revision.map(|revision| format!(", revision {revision}")).unwrap_or_default();
        output::print(&format!("pando {version}, protocol {protocol}{revision}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
