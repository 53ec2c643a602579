//! The calls of a node: a volume is mounted once, bound to the place of each pod, and looked at.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tonic::{Request, Response, Status};

use crate::{
    Plugin, bind, capability,
    controller::no_volume,
    error::{Answer, given},
    health::PlaceState,
    proto::csi::{
        NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
        NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
        NodeGetStorageHealthRequest, NodeGetStorageHealthResponse, NodeGetVolumeHealthRequest,
        NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
        NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability,
        NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
        NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
        VolumeHealth, VolumeHealthErrorType, VolumeUsage, node_server,
        node_service_capability::{Rpc, Type, rpc},
        volume_capability::access_mode::Mode,
        volume_health::VolumeHealthEntry,
        volume_usage::Unit,
    },
    publish,
    record::{BoundPlace, StagedVolume},
    stage, table, token,
    volume::VolumeId,
};

/// The calls that a node answers beyond those that each must.
const CAPABILITIES: [rpc::Type; 4] = [
    rpc::Type::StageUnstageVolume,
    rpc::Type::GetVolumeStats,
    rpc::Type::SingleNodeMultiWriter,
    rpc::Type::GetVolumeHealth,
];

pub(crate) struct Node(pub(crate) Arc<Plugin>);

/// A path of this machine, which must be given and absolute.
fn path(field: &str, text: &str) -> Answer<PathBuf> {
    let path = PathBuf::from(given(field, text)?);
    let plain = path.is_absolute()
        && path.components().all(|part| !matches!(part, std::path::Component::ParentDir));
    if plain { Ok(path) } else { Err(Status::invalid_argument(format!("{field} is not absolute"))) }
}

/// Whether a mode of access allows no change.
fn is_reader(mode: Mode) -> bool {
    matches!(mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)
}

/// A number of blocks or inodes as CSI has it.
fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn usage(unit: Unit, total: u64, free: u64, available: u64) -> VolumeUsage {
    VolumeUsage {
        available: number(available),
        total: number(total),
        used: number(total.saturating_sub(free)),
        unit: unit.into(),
    }
}

impl Node {
    /// A place that one of this node's records names, and what it answers; `None` where the volume
    /// is not.
    async fn look(&self, volume: &str, place: &Path) -> Answer<Option<PlaceState>> {
        let failed = |error| stage::local("look for what is at", place, &error);
        let records = self.0.records.all().map_err(failed)?;
        let known = records.iter().filter(|record| record.volume == volume);
        let known =
            known.filter(|record| record.staging == place || record.targets.contains_key(place));
        if known.count() == 0 || !table::at(place).map_err(failed)?.iter().any(|top| top.ours) {
            return Ok(None);
        }
        Ok(Some(self.0.asked.ask(place).await))
    }
}

#[tonic::async_trait]
impl node_server::Node for Node {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let text = given("the id of the volume", &request.volume_id)?.to_owned();
        let staging = path("the path for staging", &request.staging_target_path)?;
        let usable =
            capability::check(self.0.mounter.as_ref(), request.volume_capability.as_ref())?;
        let id = VolumeId::parse(&text).map_err(|_| no_volume(&text))?;
        let secret = request.secrets.get(token::SECRET).cloned();
        if let Some(secret) = &secret {
            token::check(secret, &self.0.path(&id))?;
        }
        let wanted = StagedVolume {
            volume: text.clone(),
            staging,
            read_only: is_reader(usable.mode),
            flags: usable.flags,
            secret,
            leaving: false,
            processes: [].into(),
            remount: false,
            targets: [].into(),
        };
        let plugin = Arc::clone(&self.0);
        let work = async move { Box::pin(stage::stage(&plugin, wanted)).await };
        self.0.turns.run(&text, work).await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = given("the id of the volume", &request.volume_id)?.to_owned();
        let staging = path("the path for staging", &request.staging_target_path)?;
        let (plugin, text) = (Arc::clone(&self.0), volume.clone());
        let work = async move { stage::unstage(&plugin, &volume, &staging).await };
        self.0.turns.run(&text, work).await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = given("the id of the volume", &request.volume_id)?.to_owned();
        let target = path("the target path", &request.target_path)?;
        let usable =
            capability::check(self.0.mounter.as_ref(), request.volume_capability.as_ref())?;
        if request.staging_target_path.is_empty() {
            return Err(Status::failed_precondition("the volume must be staged first"));
        }
        let staging = path("the path for staging", &request.staging_target_path)?;
        let mut options = usable.flags;
        options.retain(|option| bind::is_of_place(option));
        let read_only = request.readonly || is_reader(usable.mode);
        if read_only && !options.iter().any(|option| option == "ro") {
            options.push("ro".to_owned());
        }
        let alone = usable.mode == Mode::SingleNodeSingleWriter;
        let place = BoundPlace { options, alone, leaving: false };
        let (plugin, text) = (Arc::clone(&self.0), volume.clone());
        let work = async move {
            let failed = |error| stage::local("look for what is at", &staging, &error);
            let record = plugin.records.find(&volume, &staging).map_err(failed)?;
            // A mount that has died is not waited for until the next look.
            if let Some(record) = record.filter(|record| !record.leaving) {
                Box::pin(stage::revive(&plugin, &record)).await?;
            }
            let bound = tokio::task::spawn_blocking(move || {
                publish::publish(&plugin, (&volume, &staging), &target, &place)
            });
            bound.await.map_err(|error| Status::internal(error.to_string()))?
        };
        self.0.turns.run(&text, work).await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = given("the id of the volume", &request.volume_id)?.to_owned();
        let target = path("the target path", &request.target_path)?;
        let (plugin, text) = (Arc::clone(&self.0), volume.clone());
        let work = async move {
            let taken =
                tokio::task::spawn_blocking(move || publish::unpublish(&plugin, &volume, &target));
            taken.await.map_err(|error| Status::internal(error.to_string()))?
        };
        self.0.turns.run(&text, work).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let volume = given("the id of the volume", &request.volume_id)?;
        let place = PathBuf::from(given("the path of the volume", &request.volume_path)?);
        let state = self.look(volume, &place).await?;
        let state = state
            .ok_or_else(|| Status::not_found(format!("{volume} is not at {}", place.display())))?;
        // Without an answer there are no numbers; the call for the volume's health says why.
        let usage = match state {
            PlaceState::Works(found) => {
                let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
                let (total, free) = (bytes(found.f_blocks), bytes(found.f_bfree));
                let (files, left) = (found.f_files, found.f_ffree);
                vec![
                    usage(Unit::Bytes, total, free, bytes(found.f_bavail)),
                    usage(Unit::Inodes, files, left, found.f_favail),
                ]
            }
            PlaceState::Dead | PlaceState::Silent | PlaceState::Failed(_) => Vec::new(),
        };
        Ok(Response::new(NodeGetVolumeStatsResponse { usage }))
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        let request = request.into_inner();
        let volume = given("the id of the volume", &request.volume_id)?.to_owned();
        let places = [request.volume_publish_path, request.staging_target_path];
        let given = places.into_iter().find(|place| !place.is_empty());
        let failed = |error| stage::local("look for", Path::new(&volume), &error);
        let records = self.0.records.all().map_err(failed)?;
        let mut staged = records.into_iter().filter(|record| record.volume == volume);
        let place = given.map(PathBuf::from).or_else(|| Some(staged.next()?.staging));
        let place = place.ok_or_else(|| no_volume(&volume))?;
        let state = self
            .look(&volume, &place)
            .await?
            .ok_or_else(|| Status::not_found(format!("{volume} is not at {}", place.display())))?;
        let (reason, message) = match state {
            PlaceState::Works(_) => ("", String::new()),
            PlaceState::Dead => {
                ("MountDied", "the process of the mount has ended; it is mounted again".to_owned())
            }
            PlaceState::Silent => ("ServerSilent", "no server answers the mount".to_owned()),
            PlaceState::Failed(errno) => ("MountFails", errno.to_string()),
        };
        let status = VolumeHealthErrorType::Inaccessible.into();
        let entry = VolumeHealthEntry { status, reason: reason.to_owned(), message };
        let health_statuses = if reason.is_empty() { Vec::new() } else { vec![entry] };
        let health = VolumeHealth { volume_id: volume, health_statuses };
        Ok(Response::new(NodeGetVolumeHealthResponse { volume_health: Some(health) }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capability = |of: rpc::Type| NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: of.into() })),
        };
        let capabilities = CAPABILITIES.map(capability).into();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node_id = self.0.options.node.clone();
        Ok(Response::new(NodeGetInfoResponse { node_id, ..NodeGetInfoResponse::default() }))
    }

    async fn node_expand_volume(
        &self,
        _: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("the plugin has no such call"))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        Err(Status::unimplemented("the plugin has no such call"))
    }
}
