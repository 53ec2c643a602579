//! The calls that ask who the plugin is, and whether it works.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tonic::{Request, Response, Status};

use crate::{
    Plugin,
    error::status,
    proto::csi::{
        GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
        GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse, identity_server,
        plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion},
    },
};

/// Time that the server has to answer a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Identity(pub(crate) Arc<Plugin>);

#[tonic::async_trait]
impl identity_server::Identity for Identity {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.0.options.driver.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let mut types = Vec::new();
        if self.0.options.roles.controller {
            let controller = service::Type::ControllerService.into();
            types.push(Type::Service(Service { r#type: controller }));
            let online = volume_expansion::Type::Online.into();
            types.push(Type::VolumeExpansion(VolumeExpansion { r#type: online }));
        }
        let capability = |of| PluginCapability { r#type: Some(of) };
        let capabilities = types.into_iter().map(capability).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let asked = async {
            let fs = self.0.fs().await?;
            fs.statfs().await.map_err(|error| status("ask the server", &error))
        };
        let answered = timeout(PROBE_TIMEOUT, asked).await;
        let answered =
            answered.unwrap_or_else(|_| Err(Status::unavailable("the server does not answer")));
        match answered {
            Ok(_) => Ok(Response::new(ProbeResponse { ready: Some(true) })),
            Err(error) => Err(Status::failed_precondition(error.message())),
        }
    }
}
