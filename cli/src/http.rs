//! The status page of a server, over HTTP: `/` for people, `/metrics` for Prometheus, `/healthz` for whoever
//! restarts things.
//!
//! It has a thread of its own, so that no scrape delays a request. It only reads, and everything it says comes
//! from `Server::status`.

mod metrics;
mod page;

use std::net::TcpListener;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{Html, IntoResponse},
    routing::get,
};
use futures::FutureExt as _;
use meta::Server;
use tokio::{runtime::Runtime, sync::watch};

/// Serves the page until `stopped` says so.
pub(crate) fn run(
    runtime: &Runtime,
    listener: TcpListener,
    server: Server,
    mut stopped: watch::Receiver<bool>,
) {
    let routes = Router::new()
        .route("/", get(page))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
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

async fn page(State(server): State<Server>) -> Html<String> {
    Html(page::render(&server.status(), problem(&server).as_deref()))
}

async fn metrics(State(server): State<Server>) -> impl IntoResponse {
    let text = metrics::render(&server.status(), problem(&server).is_none());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

async fn healthz(State(server): State<Server>) -> (StatusCode, String) {
    match problem(&server) {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}

/// Why the server has stopped serving, if it has.
fn problem(server: &Server) -> Option<String> {
    server.halted().now_or_never().map(|problem| problem.to_string())
}
