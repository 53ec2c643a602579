//! Serving calls on a socket, and the periodic look at the mounts beside.

use std::{sync::Arc, time::Duration};

use tokio::{net::UnixListener, time::timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Server, server::Router};

use crate::{
    Plugin,
    controller::Controller,
    identity::Identity,
    node::Node,
    proto::csi::{
        controller_server::ControllerServer, identity_server::IdentityServer,
        node_server::NodeServer,
    },
    recover,
};

/// Time that calls under way have when the plugin is to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves calls until `stop`, lets those under way come to their end, and ends the session. Mounts
/// stay.
///
/// # Errors
/// When the socket fails.
pub async fn serve(
    listener: UnixListener,
    plugin: Arc<Plugin>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let roles = plugin.options.roles;
    let controller = roles.controller.then(|| ControllerServer::new(Controller(plugin.clone())));
    let node = roles.node.then(|| NodeServer::new(Node(plugin.clone())));
    let router = Server::builder()
        .add_service(IdentityServer::new(Identity(plugin.clone())))
        .add_optional_service(controller)
        .add_optional_service(node);
    let looking = roles.node.then(|| tokio::spawn(recover::keep_looking(plugin.clone())));
    let served = run(router, listener, stop).await;
    if let Some(looking) = looking {
        looking.abort();
    }
    // A server that is away must not hold up the end.
    let _ = timeout(END_TIMEOUT, plugin.session.close()).await;
    served
}

/// Serves until `stop`, and a little longer.
pub(crate) async fn run(
    router: Router,
    listener: UnixListener,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let incoming = UnixListenerStream::new(listener);
    let serving = router.serve_with_incoming_shutdown(incoming, async {
        // A dropped sender is as good as a sent one.
        let _ = ended.await;
    });
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        served = &mut serving => return served,
        () = stop => {}
    }
    drop(end);
    timeout(END_TIMEOUT, serving).await.unwrap_or(Ok(()))
}
