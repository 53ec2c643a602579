//! The status page of a server, over HTTP: `/` for people, `/status.json` for that page, `/metrics`
//! for Prometheus, `/healthz` and `/readyz` for programs that restart servers or send clients
//! there.
//!
//! The page has a thread of its own, so that no scrape delays a request. It only reads, takes
//! everything from `Server::status` and `Server::load`, and names no path: every program of this
//! machine may read it. Readers on other machines come with TLS and a token ([`readers`]).

mod help;
mod json;
mod links;
mod metrics;
mod readers;

use std::{net::TcpListener, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{HeaderName, StatusCode, header},
    middleware,
    response::{Html, IntoResponse},
    routing::get,
};
use futures::FutureExt as _;
use meta::Server;
use tokio::{runtime::Runtime, sync::watch};
use wire::{Load, Standing};

use self::{
    links::Links,
    readers::{Reader, Readers},
};
use crate::admission::Admission;

/// The page: one file without anything from elsewhere.
const PAGE: &str = include_str!("http/page.html");
/// Security policy of the page: run its own script and style, and ask this server.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                      connect-src 'self'; frame-ancestors 'none'; base-uri 'none'";
/// Time after which a core that still works on one group is stuck.
const STUCK: Duration = Duration::from_secs(60);

/// State of the server behind the page.
pub(crate) enum Phase {
    /// The server reads records that it needs before it can serve.
    Starting,
    Serving(Server),
    /// The server finishes the work that it has begun.
    Stopping,
}

type Phases = watch::Receiver<Phase>;

/// Where the page is, and who may read it.
pub(crate) struct Listening {
    pub(crate) listener: TcpListener,
    pub(crate) admission: Admission,
    /// Whether readers on other machines need a token.
    pub(crate) need_tokens: bool,
}

/// Serves the page for as long as the sender of `phases` lives.
pub(crate) fn run(runtime: &Runtime, listening: Listening, mut phases: Phases) {
    let Listening { listener, admission, need_tokens } = listening;
    let readers = Arc::new(Readers { need_tokens, phases: phases.clone() });
    let routes = Router::new()
        .route("/", get(page))
        .route("/status.json", get(status))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(phases.clone())
        .layer(middleware::from_fn_with_state(readers, readers::check))
        .into_make_service_with_connect_info::<Reader>();
    let served = runtime.block_on(async {
        let listener = Links::start(tokio::net::TcpListener::from_std(listener)?, admission);
        tokio::select! {
            served = axum::serve(listener, routes) => served,
            // A browser that reads a page now reads another.
            () = async { while phases.changed().await.is_ok() {} } => Ok(()),
        }
    });
    if let Err(error) = served {
        tracing::error!(%error, "the status page is gone");
    }
}

/// A page that is nothing but words.
type Words = (StatusCode, String);

/// The server, while it serves.
fn serving(phases: &Phases) -> Result<Server, &'static str> {
    match &*phases.borrow() {
        Phase::Starting => Err("starting"),
        Phase::Serving(server) => Ok(server.clone()),
        Phase::Stopping => Err("stopping"),
    }
}

fn unavailable(why: &str) -> Words {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}

async fn page(State(phases): State<Phases>) -> Result<impl IntoResponse, Words> {
    let server = serving(&phases).map_err(unavailable)?;
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Html(PAGE.replace("{name}", &escape(&server.status().name)))))
}

async fn status(State(phases): State<Phases>) -> Result<impl IntoResponse, Words> {
    let server = serving(&phases).map_err(unavailable)?;
    let (status, load) = (server.status(), server.load());
    let standing = standing(&server, &load);
    let text = serde_json::to_string(&json::page(status, load, standing));
    let headers: [(HeaderName, &str); 2] =
        [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, text.expect("it has no map whose keys are not strings")))
}

async fn metrics(State(phases): State<Phases>) -> Result<impl IntoResponse, Words> {
    let server = serving(&phases).map_err(unavailable)?;
    let (status, load) = (server.status(), server.load());
    let standing = standing(&server, &load);
    let healthy = failure(&server, &load).is_none();
    let text = metrics::render(&status, &load, &standing, healthy);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

/// Whether the process should be left alone: it is not when it can never serve again.
async fn healthz(State(phases): State<Phases>) -> Words {
    match serving(&phases) {
        Ok(server) => match failure(&server, &server.load()) {
            Some(problem) => unavailable(&problem),
            None => (StatusCode::OK, "ok\n".to_owned()),
        },
        Err(phase) => (StatusCode::OK, format!("{phase}\n")),
    }
}

/// Whether clients should be sent here, which they should not while the server has no lease. A
/// server whose disk is nearly full is the only one that has these files, and reads and removals
/// are the way back: so it is ready, and says what is wrong; so does a coordinator that hears
/// nothing of another server.
async fn readyz(State(phases): State<Phases>) -> Words {
    let server = match serving(&phases) {
        Ok(server) => server,
        Err(phase) => return unavailable(phase),
    };
    let standing = standing(&server, &server.load());
    match &standing.problems[..] {
        _ if !standing.ready => unavailable(&standing.unready),
        [] => (StatusCode::OK, "ok\n".to_owned()),
        problems => (StatusCode::OK, format!("ok, but {}\n", problems.join("; "))),
    }
}

/// Returns the state of the server, with the facts that only threads other than its cores can see.
fn standing(server: &Server, load: &Load) -> Standing {
    let mut standing = server.standing();
    if let Some(problem) = failure(server, load).filter(|_| standing.ready) {
        standing.ready = false;
        standing.problems.insert(0, problem.clone());
        standing.unready = problem;
    }
    standing
}

/// Why only a restart can help, if that is so.
fn failure(server: &Server, load: &Load) -> Option<String> {
    if let Some(problem) = server.halted().now_or_never() {
        return Some(problem.to_string());
    }
    let busy = Duration::from_nanos(gauge(load, "busy_nanos"));
    (busy > STUCK).then(|| format!("a core has been busy with one group for {} s", busy.as_secs()))
}

fn gauge(load: &Load, name: &str) -> u64 {
    load.gauges.iter().find(|(other, _)| other == name).map_or(0, |(_, value)| *value)
}

/// Text as HTML: names are what others chose.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Clear;

    #[test]
    fn what_others_chose_is_no_markup() {
        assert_eq!(escape("<a href=\"&\">"), "&lt;a href=&quot;&amp;&quot;&gt;");
        let script = PAGE.split("<script>").nth(1).expect("the page has a script");
        for door in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!script.contains(door), "the script makes no markup of text: {door}");
        }
    }

    #[test]
    fn a_server_that_starts_or_stops_is_not_ready_and_not_dead() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (phase, phases) = watch::channel(Phase::Starting);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        let ask = |path: &str| {
            use std::io::{Read as _, Write as _};
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            (head.split(' ').nth(1).unwrap().to_owned(), body.trim().to_owned())
        };
        let is = |code: &str, body: &str| (code.to_owned(), body.to_owned());
        std::thread::scope(|scope| {
            let authority = tls::Authority::derive(b"key").unwrap();
            let names = tls::Names { server: 0, addresses: vec![], host: None };
            let identity = authority.issue(&names, crate::certificates::now()).unwrap();
            let acceptor = tls::Acceptor::new(identity).unwrap();
            let admission = Admission::new(acceptor, Clear::ThisMachine);
            let listening = Listening { listener, admission, need_tokens: true };
            scope.spawn(|| run(&runtime, listening, phases));
            for (now, named) in [(None, "starting"), (Some(Phase::Stopping), "stopping")] {
                now.into_iter().for_each(|now| drop(phase.send_replace(now)));
                assert_eq!(ask("/readyz"), is("503", named));
                assert_eq!(ask("/healthz"), is("200", named));
                assert_eq!(ask("/metrics"), is("503", named));
                assert_eq!(ask("/status.json"), is("503", named));
                assert_eq!(ask("/"), is("503", named));
            }
            drop(phase);
        });
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        for from in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!PAGE.contains(from), "{from}");
        }
    }
}
