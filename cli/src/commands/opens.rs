//! `pando opens`: open files, and the sessions that have them open.

use std::{cell::Cell, process::ExitCode};

use anyhow::bail;
use base::{Ino, SessionId};
use serde::Serialize;

use super::{everywhere, sessions::session_id};
use crate::connect::{self, Servers, TokenArgs};

/// Number of open files that are asked for at a time.
const PAGE: u32 = 4096;

/// List the files that sessions have open. Needs the administrator's token.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// List only files of this session, by its id in `pando sessions`.
    #[arg(long, value_name = "ID", value_parser = session_id)]
    session: Option<SessionId>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct OpenFile {
    ino: u64,
    session: String,
    read: bool,
    write: bool,
    client: String,
    /// `None` when it is not known, or the file is removed.
    path: Option<String>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0, args.token.read()?, "pando opens");
    let files = connect::runtime()?.block_on(async {
        let client = connect::connect(config).await?;
        let is_known = Cell::new(args.session.is_none());
        let files =
            Box::pin(everywhere::ask(&client, |server| list(server, args.session, &is_known)));
        let files = connect::close(&client, files.await).await?;
        if let Some(session) = args.session.filter(|_| !is_known.get()) {
            files.complete("the session may be there")?;
            bail!("there is no session {session}: `pando sessions` lists them");
        }
        anyhow::Ok(files)
    })?;
    files.print(args.json, &["INO", "FOR", "SESSION", "CLIENT", "FILE"], cells)?;
    Ok(ExitCode::SUCCESS)
}

/// Lists the open files of a server.
async fn list(
    server: everywhere::Server<'_>,
    session: Option<SessionId>,
    is_known: &Cell<bool>,
) -> anyhow::Result<Vec<OpenFile>> {
    let sessions = server.answer(server.client.sessions(server.number)).await?;
    if sessions.iter().any(|detail| Some(detail.session) == session) {
        is_known.set(true);
    }
    let (mut files, mut after) = (Vec::new(), Ino(0));
    loop {
        let page = server.answer(server.client.opens(server.number, after, session, PAGE)).await?;
        files.extend(page.files);
        match files.last() {
            Some(last) if !page.end => after = last.ino,
            Some(_) | None => break,
        }
    }
    let client_of = |session: SessionId| {
        let found = sessions.iter().find(|detail| detail.session == session);
        found.map_or_else(String::new, |detail| detail.client.clone())
    };
    let file = |file: wire::OpenFile| OpenFile {
        ino: file.ino.0,
        session: file.session.to_string(),
        read: file.read,
        write: file.write,
        client: client_of(file.session),
        path: (!file.path.is_empty()).then_some(file.path),
    };
    Ok(files.into_iter().map(file).collect())
}

fn cells(file: &OpenFile) -> Vec<String> {
    let mode = match (file.read, file.write) {
        (true, true) => "rw",
        (false, true) => "w",
        (true | false, false) => "r",
    };
    vec![
        file.ino.to_string(),
        mode.to_owned(),
        file.session.clone(),
        file.client.clone(),
        file.path.clone().unwrap_or_default(),
    ]
}
