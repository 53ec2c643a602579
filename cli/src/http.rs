//! The status page of a server, over HTTP: `/` for people, `/status.json` for that page, `/metrics` for
//! Prometheus, `/healthz` and `/readyz` for whoever restarts things or sends clients there.
//!
//! It has a thread of its own, so that no scrape delays a request. It only reads, everything it says comes
//! from `Server::status` and `Server::load`, and it names no path: whoever reaches it may read it.

mod json;
mod metrics;

use std::{net::TcpListener, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{HeaderName, StatusCode, header},
    response::{Html, IntoResponse},
    routing::get,
};
use futures::FutureExt as _;
use meta::Server;
use tokio::{runtime::Runtime, sync::watch};
use wire::Load;

/// The page: one file without anything from elsewhere.
const PAGE: &str = include_str!("http/page.html");
/// What the page may do: run its own script and style, and ask this server.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                      connect-src 'self'; frame-ancestors 'none'; base-uri 'none'";
/// A core that works on one group for so long is stuck.
const STUCK: Duration = Duration::from_secs(60);

/// Serves the page until `stopped` says so.
pub(crate) fn run(
    runtime: &Runtime,
    listener: TcpListener,
    server: Server,
    mut stopped: watch::Receiver<bool>,
) {
    let routes = Router::new()
        .route("/", get(page))
        .route("/status.json", get(status))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(server);
    let served = runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tokio::select! {
            served = axum::serve(listener, routes) => served,
            // The sender lives as long as the server. Whoever is reading a page now reads another.
            _ = stopped.wait_for(|stopped| *stopped) => Ok(()),
        }
    });
    if let Err(error) = served {
        tracing::error!(%error, "the status page is gone");
    }
}

async fn page(State(server): State<Server>) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, Html(PAGE.replace("{name}", &escape(&server.status().name))))
}

async fn status(State(server): State<Server>) -> impl IntoResponse {
    let (status, load) = (server.status(), server.load());
    let problem = problem(&server, &load);
    let text = serde_json::to_string(&json::page(status, load, problem));
    let headers: [(HeaderName, &str); 2] =
        [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, text.expect("it has no map whose keys are not strings"))
}

async fn metrics(State(server): State<Server>) -> impl IntoResponse {
    let (status, load) = (server.status(), server.load());
    let healthy = failure(&server, &load).is_none();
    let text = metrics::render(&status, &load, healthy, problem(&server, &load).is_none());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

/// Whether the process should be left alone: it is not when it can never serve again.
async fn healthz(State(server): State<Server>) -> (StatusCode, String) {
    say(failure(&server, &server.load()))
}

/// Whether every request would be taken.
async fn readyz(State(server): State<Server>) -> (StatusCode, String) {
    say(problem(&server, &server.load()))
}

fn say(problem: Option<String>) -> (StatusCode, String) {
    match problem {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}

/// Why only a restart can help, if that is so.
fn failure(server: &Server, load: &Load) -> Option<String> {
    if let Some(problem) = server.halted().now_or_never() {
        return Some(problem.to_string());
    }
    let busy = Duration::from_nanos(gauge(load, "busy_nanos"));
    (busy > STUCK).then(|| format!("a core has been busy with one group for {} s", busy.as_secs()))
}

/// Why the server does not take every request, if that is so.
fn problem(server: &Server, load: &Load) -> Option<String> {
    failure(server, load)
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

    #[test]
    fn what_others_chose_is_no_markup() {
        assert_eq!(escape("<a href=\"&\">"), "&lt;a href=&quot;&amp;&quot;&gt;");
        let script = PAGE.split("<script>").nth(1).expect("the page has a script");
        for door in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!script.contains(door), "the script makes no markup of text: {door}");
        }
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        for from in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!PAGE.contains(from), "{from}");
        }
    }
}
