//! Things that a run of a server stands on, and leaves to the run that follows in the same process.

use std::{
    net::{SocketAddr, TcpListener},
    thread,
};

use store::Blocks;
use tokio::sync::watch;

use super::{
    cores::{runtime, spawn},
    listen::{Listen, bind},
    options::Options,
};
use crate::{
    accept::Slots,
    admission::{Admission, Clear},
    audit::{self, AuditLog},
    certificates::{self, Certificates},
    data::{self, DataDir},
    http::{self, Phase},
    system,
};

/// A data directory that is ours, the way in, and what goes on beside the server.
pub(super) struct Ground {
    pub(super) data: DataDir,
    /// The address for clients, and that of the status page.
    pub(super) address: SocketAddr,
    pub(super) http: Option<SocketAddr>,
    /// URL of the status page, if there is one.
    pub(super) page_url: Option<String>,
    /// Connections wait in it while nobody accepts them.
    pub(super) listener: TcpListener,
    pub(super) connections: Slots,
    pub(super) admission: Admission,
    pub(super) certificates: Certificates,
    /// The blocks as the server has them.
    pub(super) blocks: Blocks,
    page: Option<StatusPage>,
    /// The end of what was executed is written when this is dropped.
    pub(super) audit: Option<audit::Writing>,
}

impl Ground {
    /// Takes the addresses, and opens all that comes before the engine.
    pub(super) fn prepare(data: DataDir, options: &Options) -> anyhow::Result<Ground> {
        let connections = Slots::new(options.connections_max, system::raise_open_files());
        let listener = bind(&options.listen)?;
        let page = options.http.as_ref().map(bind).transpose()?;
        let address = listener.local_addr()?;
        let http = page.as_ref().map(TcpListener::local_addr).transpose()?;
        data.renew_admin_token()?;
        let certificates = certificates(&data, options, (address, http))?;
        if options.listen.insecure {
            let kept = options.listen.is_kept;
            tracing::warn!(kept, "clients on other machines may talk in clear: --insecure");
        }
        let admit =
            |listen: &Listen| Admission::new(certificates.acceptor(), listen.clear(&options.tls));
        let admission = admit(&options.listen);
        let page_url = options.http.as_ref().zip(http).map(|(listen, address)| {
            let in_clear = match listen.clear(&options.tls) {
                Clear::Everybody => true,
                Clear::ThisMachine => address.ip().is_loopback(),
                Clear::Nobody => false,
            };
            format!("{}://{address}", if in_clear { "http" } else { "https" })
        });
        let page = options.http.as_ref().zip(page).map(|(listen, listener)| http::Listening {
            listener,
            admission: admit(listen),
            need_tokens: !listen.insecure,
        });
        let page = page.map(StatusPage::start).transpose()?;

        let blocks = data.blocks()?;
        let cores = options.cores.get() + usize::from(options.near);
        let of = (data.server().unwrap_or_default(), cores);
        let audit = options.audit.as_ref().map(|audit| AuditLog::start(audit, of)).transpose()?;
        Ok(Ground {
            data,
            address,
            http,
            page_url,
            listener,
            connections,
            admission,
            certificates,
            blocks,
            page,
            audit,
        })
    }

    /// The same for another run.
    pub(super) fn again(mut self) -> anyhow::Result<Ground> {
        // Connections to a store elsewhere ended with the threads. What is known of a local one,
        // as what is not stable there yet, stays known.
        if !self.data.has_local_blocks() {
            self.blocks = self.data.blocks()?;
        }
        Ok(self)
    }

    /// Has the status page show how the server stands.
    pub(super) fn tell(&self, now: Phase) {
        if let Some(page) = &self.page {
            page.tell(now);
        }
    }
}

/// The status page: it is there before the server is, and until the server has stopped.
struct StatusPage {
    /// `None` at its end.
    phase: Option<watch::Sender<Phase>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl StatusPage {
    fn start(listening: http::Listening) -> anyhow::Result<StatusPage> {
        let (phase, phases) = watch::channel(Phase::Starting);
        let runtime = runtime()?;
        let thread = spawn("http".to_owned(), move || http::run(&runtime, listening, phases))?;
        Ok(StatusPage { phase: Some(phase), thread: Some(thread) })
    }

    fn tell(&self, now: Phase) {
        if let Some(phase) = &self.phase {
            phase.send_replace(now);
        }
    }
}

impl Drop for StatusPage {
    fn drop(&mut self) {
        self.phase.take();
        if let Some(thread) = self.thread.take() {
            // A panic was logged.
            let _ = thread.join();
        }
    }
}

/// The certificate of the server that listens at `address`. The file system's authority is written
/// to the directory, for programs that must know it.
fn certificates(
    data: &DataDir,
    options: &Options,
    (address, page): (SocketAddr, Option<SocketAddr>),
) -> anyhow::Result<Certificates> {
    let key = data::signing_key(data.path())?;
    let server = data.server().unwrap_or_default();
    let names = certificates::names(server, (address, page), options.advertise.as_deref());
    let certificates = Certificates::open(&key, options.tls.files.as_ref(), names)?;
    if let Some(pem) = certificates.authority_pem()
        && let Err(error) = data.write_authority(pem)
    {
        tracing::warn!(error = format!("{error:#}"), "browsers and scrapers lack the authority");
    }
    Ok(certificates)
}
