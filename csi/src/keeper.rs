//! The keeper of a node: a process that starts the mounts for a node plugin in another container.
//!
//! The end of a container is the end of all processes in it. So the processes of mounts are those
//! of a keeper, which changes more seldom than the plugin.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{
    net::{UnixListener, UnixStream},
    time::timeout,
};
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint, Server},
};

use crate::{
    mounter::Mounter,
    proto::keeper::{
        Done, MountRequest, UnmountRequest,
        keeper_client::KeeperClient,
        keeper_server::{self, KeeperServer},
    },
    serve::run,
    turn::Turns,
};

/// Time that a keeper has to unmount: longer than the keeper's own limit.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(70);

struct Keeper {
    mounter: Arc<dyn Mounter>,
    turns: Turns,
}

#[tonic::async_trait]
impl keeper_server::Keeper for Keeper {
    async fn mount(&self, request: Request<MountRequest>) -> Result<Response<Done>, Status> {
        let MountRequest { path, token, options } = request.into_inner();
        let (mounter, at) = (Arc::clone(&self.mounter), path.clone());
        let work = async move {
            let mounted = mounter.mount(Path::new(&path), &token, &options).await;
            mounted.map_err(Status::unavailable)
        };
        self.turns.run(&at, work).await?;
        Ok(Response::new(Done {}))
    }

    async fn unmount(&self, request: Request<UnmountRequest>) -> Result<Response<Done>, Status> {
        let UnmountRequest { path } = request.into_inner();
        let (mounter, at) = (Arc::clone(&self.mounter), path.clone());
        let work = async move {
            let unmounted = mounter.unmount(Path::new(&path)).await;
            unmounted.map_err(Status::unavailable)
        };
        self.turns.run(&at, work).await?;
        Ok(Response::new(Done {}))
    }
}

/// Serves a node plugin's wishes until `stop`. Mounts stay.
///
/// # Errors
/// When the socket fails.
pub async fn serve_keeper(
    listener: UnixListener,
    mounter: Arc<dyn Mounter>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let keeper = Keeper { mounter, turns: Turns::default() };
    let mut server = Server::builder();
    run(server.add_service(KeeperServer::new(keeper)), listener, stop).await
}

/// Has the keeper of the node make mounts. What needs no process is done here.
pub struct FarKeeper {
    channel: Channel,
    here: Arc<dyn Mounter>,
}

impl FarKeeper {
    /// The keeper at a socket, to which a connection is made by the first wish.
    #[must_use]
    pub fn new(socket: &Path, here: Arc<dyn Mounter>) -> FarKeeper {
        let socket = socket.to_owned();
        let connect = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        // The name is not looked up: each connection is to the socket.
        let endpoint = Endpoint::from_static("http://keeper.invalid");
        FarKeeper { channel: endpoint.connect_with_connector_lazy(connect), here }
    }
}

fn told(status: &Status) -> String {
    format!("the keeper of the node: {}", status.message())
}

#[tonic::async_trait]
impl Mounter for FarKeeper {
    fn check(&self, options: &str) -> Result<(), String> {
        self.here.check(options)
    }

    async fn mount(&self, path: &Path, token: &str, options: &str) -> Result<(), String> {
        let request = MountRequest {
            path: path.to_string_lossy().into_owned(),
            token: token.to_owned(),
            options: options.to_owned(),
        };
        let answer = KeeperClient::new(self.channel.clone()).mount(request).await;
        answer.map(drop).map_err(|status| told(&status))
    }

    async fn unmount(&self, path: &Path) -> Result<(), String> {
        let request = UnmountRequest { path: path.to_string_lossy().into_owned() };
        let mut keeper = KeeperClient::new(self.channel.clone());
        match timeout(UNMOUNT_TIMEOUT, keeper.unmount(request)).await {
            Ok(answer) => answer.map(drop).map_err(|status| told(&status)),
            Err(_) => Err("the keeper of the node does not answer".to_owned()),
        }
    }

    fn note(&self, path: &Path) -> Result<Option<PathBuf>, String> {
        self.here.note(path)
    }

    fn has_ended(&self, note: &Path) -> Result<bool, String> {
        self.here.has_ended(note)
    }

    fn is_dead(&self, path: &Path) -> bool {
        self.here.is_dead(path)
    }
}
