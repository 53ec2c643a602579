//! Connections: as many as may be at once, and their end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt as _;
use http::{HeaderValue, header};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
};
use s3s::{
    Body, HttpError, HttpRequest, HttpResponse,
    service::{S3Service, S3ServiceBuilder},
};
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    Gateway, clean,
    impatient::{Connection, Patient},
    service::Service,
};

/// Time for the head of a request, and between two requests of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that requests under way have when the gateway stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a connection could not be accepted, as when files run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Period of looking for abandoned uploads.
const CLEAN_PERIOD: Duration = Duration::from_secs(3600);

/// Serves at most `connections_max` connections at once, until `stop` is done; then what is under
/// way has 30 s to end.
pub async fn serve(
    listener: TcpListener,
    gateway: Arc<Gateway>,
    connections_max: usize,
    stop: impl Future<Output = ()>,
) {
    let mut service = S3ServiceBuilder::new(Service(Arc::clone(&gateway)));
    service.set_auth(Service(Arc::clone(&gateway)));
    let service = service.build();
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let (graceful, places) = (GracefulShutdown::new(), Arc::new(Semaphore::new(connections_max)));
    let cleaning = async {
        let mut period = interval(CLEAN_PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            period.tick().await;
            clean::run(&gateway).await;
        }
    };
    let accepting = async {
        loop {
            let place = Arc::clone(&places).acquire_owned().await;
            let place = place.expect("the semaphore is never closed");
            let socket = match listener.accept().await {
                Ok((socket, _)) => socket,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // Answers are written whole, or in large pieces.
            let _ = socket.set_nodelay(true);
            let service = service.clone();
            let begun = Arc::new(AtomicBool::new(false));
            let socket = Connection::new(socket, Arc::clone(&begun));
            let answer = service_fn(move |request| {
                begun.store(true, Ordering::Relaxed);
                answer(service.clone(), request)
            });
            let served = builder.serve_connection(TokioIo::new(socket), answer);
            let served = graceful.watch(served.into_owned());
            tokio::spawn(async move {
                if let Err(error) = served.await {
                    tracing::debug!(%error, "a connection ended");
                }
                drop(place);
            });
        }
    };
    futures::select_biased! {
        () = stop.fuse() => {}
        () = Box::pin(cleaning).fuse() => {}
        () = Box::pin(accepting).fuse() => {}
    }
    drop(listener);
    if timeout(STOP_TIMEOUT, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests that were under way are given up");
    }
    for account in gateway.sessions() {
        account.close().await;
    }
}

/// Answers a request. A client that asked for `100 Continue` and gets an answer instead may lose
/// count of the answers that follow (botocore does), so the connection ends with it.
async fn answer(
    service: S3Service,
    request: http::Request<Incoming>,
) -> Result<HttpResponse, HttpError> {
    let expects = request.headers().contains_key(header::EXPECT);
    // For no body hyper sends no `100 Continue`.
    let empty = request.headers().get(header::CONTENT_LENGTH).is_some_and(|len| len == "0");
    let request: HttpRequest = request.map(|body| Body::http_body(Patient::new(body)));
    let mut response = service.call(request).await?;
    if expects && (empty || !response.status().is_success()) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}
