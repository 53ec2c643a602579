//! The calls of the controller: volumes are made, found, enlarged and removed.
//!
//! There are no snapshots and no clones: a volume with a source is refused, and their calls answer
//! UNIMPLEMENTED.

use std::sync::Arc;

use base::{EntryName, SetAttr};
use tonic::{Request, Response, Status};
use wire::DirRef;

use crate::{
    Plugin, capability,
    error::{Answer, given, missing, status},
    fs::Fs,
    limit::{SizeLimit, SizeRange, capacity},
    list,
    mark::Mark,
    parameters::Parameters,
    proto::csi::{
        ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
        ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
        ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
        ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerListVolumeHealthRequest,
        ControllerListVolumeHealthResponse, ControllerModifyVolumeRequest,
        ControllerModifyVolumeResponse, ControllerPublishVolumeRequest,
        ControllerPublishVolumeResponse, ControllerServiceCapability,
        ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse, CreateSnapshotRequest,
        CreateSnapshotResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest,
        DeleteSnapshotResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest,
        GetCapacityResponse, GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest,
        ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse,
        ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
        controller_server,
        controller_service_capability::{Rpc, Type, rpc},
        list_volumes_response, validate_volume_capabilities_response,
    },
    record::fnv,
    remove, tree,
    volume::VolumeId,
};

/// Permission bits of a volume until it is ready.
const NEW_MODE: u32 = 0o700;
/// Beginning of the name of a volume's directory until it is marked. No volume's name begins so.
const HIDDEN: &str = ".new-";
/// Volumes in a page whose caller does not say how many.
const PAGE_VOLUMES: usize = 1000;

/// The calls that a controller answers beyond those that each must.
const CAPABILITIES: [rpc::Type; 5] = [
    rpc::Type::CreateDeleteVolume,
    rpc::Type::ListVolumes,
    rpc::Type::GetCapacity,
    rpc::Type::ExpandVolume,
    rpc::Type::SingleNodeMultiWriter,
];

pub(crate) struct Controller(pub(crate) Arc<Plugin>);

/// A volume that is to be made.
struct Wanted {
    id: VolumeId,
    name: String,
    range: SizeRange,
    parameters: Parameters,
}

impl Wanted {
    fn parse(plugin: &Plugin, request: &CreateVolumeRequest) -> Answer<Wanted> {
        let name = given("the name of the volume", &request.name)?;
        capability::check_all(plugin.mounter.as_ref(), &request.volume_capabilities)?;
        if request.volume_content_source.is_some() {
            return Err(Status::invalid_argument("the plugin makes no clones of anything"));
        }
        if !request.mutable_parameters.is_empty() {
            return Err(Status::invalid_argument("no parameter of a volume can be changed later"));
        }
        let parameters = Parameters::parse(name, request.parameters.iter())
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let id = VolumeId::parse(&parameters.path)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let range = SizeRange::parse(request.capacity_range)?;
        Ok(Wanted { id, name: name.to_owned(), range, parameters })
    }
}

/// Makes a volume, or finds the one that an earlier call has made; its size.
async fn create(plugin: &Plugin, wanted: &Wanted) -> Answer<Option<u64>> {
    let Wanted { id, name, range, .. } = wanted;
    let fs = plugin.fs().await?;
    let root = tree::root(&fs, &plugin.root).await?;
    let parent = tree::above(&fs, &root, id).await?;
    let (_, last) = id.names();
    let failed = |error| status("make the directory of the volume", &error);
    let taken = |why: &str| Status::already_exists(format!("{} {why}", plugin.path(id)));
    let found = match fs.find(&parent, last).await.map_err(failed)? {
        Some(found) => found,
        None => {
            begin(&fs, &parent, wanted).await?;
            let found = fs.find(&parent, last).await.map_err(failed)?;
            found.ok_or_else(|| Status::aborted("the directory of the volume came and went"))?
        }
    };
    let dir = found.dir.ok_or_else(|| taken("is no directory"))?;
    let mark = Mark::read(&fs, &dir).await?;
    // A directory without a mark is another's, even an empty one.
    let mark = mark.ok_or_else(|| taken("is there, and no volume"))?;
    if mark.name != *name {
        return Err(taken(&format!("is the volume {}: change pathPattern", mark.name)));
    }
    if mark.ready {
        let limit = SizeLimit::read(&fs, &dir).await?;
        if !range.allows(limit.bytes) {
            return Err(taken("is a volume of another size"));
        }
        stable(&fs).await?;
        return Ok(limit.bytes);
    }
    finish(&fs, &dir, wanted).await?;
    Ok(range.bytes())
}

/// Makes the directory of a volume, marked from the moment at which it has its name. A call that
/// was killed leaves a hidden directory, which the same request takes up again.
async fn begin(fs: &Fs, parent: &DirRef, wanted: &Wanted) -> Answer<()> {
    let failed = |error| status("make the directory of the volume", &error);
    let (_, last) = wanted.id.names();
    let hidden = format!("{HIDDEN}{:016x}", fnv(wanted.name.as_bytes()));
    let hidden = EntryName::new(hidden.as_bytes());
    let hidden = hidden.map_err(|_| Status::internal("no name for a new directory"))?;
    let found = match fs.find(parent, &hidden).await.map_err(failed)? {
        Some(found) => found,
        None => fs.mkdir(parent, &hidden, NEW_MODE).await.map_err(failed)?,
    };
    let busy = || Status::aborted("a hidden directory of another volume is in the way");
    let dir = found.dir.ok_or_else(busy)?;
    match Mark::read(fs, &dir).await? {
        Some(mark) if mark.name != wanted.name => return Err(busy()),
        Some(_) => {}
        None if !is_empty(fs, &dir).await? => return Err(busy()),
        None => Mark { name: wanted.name.clone(), ready: false }.write(fs, &dir).await?,
    }
    match fs.rename(parent, &hidden, last).await {
        // Another has taken the name: the caller looks whose it is.
        Err(client::Error::Fs(base::FsError::Exists)) => {
            fs.rmdir(parent, &hidden).await.map_err(failed)
        }
        renamed => renamed.map_err(failed),
    }
}

async fn is_empty(fs: &Fs, dir: &DirRef) -> Answer<bool> {
    let page = fs.page(dir, 0).await;
    let page = page.map_err(|error| status("look into the directory of the volume", &error))?;
    Ok(page.entries.is_empty() && page.end)
}

async fn stable(fs: &Fs) -> Answer<()> {
    fs.sync().await.map_err(|error| status("make the volume stable", &error))
}

/// Makes a volume of a marked directory. Each step can be done again, and the last one says that
/// all were.
async fn finish(fs: &Fs, dir: &DirRef, wanted: &Wanted) -> Answer<()> {
    let mark = Mark { name: wanted.name.clone(), ready: false };
    mark.write(fs, dir).await?;
    SizeLimit::set(fs, dir, wanted.range.bytes()).await?;
    let Parameters { mode, uid, gid, .. } = wanted.parameters;
    let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    let failed = |error| status("give the volume to its owner", &error);
    fs.setattr(dir, set).await.map_err(failed)?;
    // A change of the owner may take bits away.
    fs.setattr(dir, SetAttr { mode: Some(mode), ..SetAttr::default() }).await.map_err(failed)?;
    Mark { ready: true, ..mark }.write(fs, dir).await?;
    stable(fs).await
}

async fn delete(plugin: &Plugin, id: &VolumeId) -> Answer<()> {
    let fs = plugin.fs().await?;
    match tree::find(&fs, &plugin.root, id).await? {
        Some((volume, _)) => remove::volume(&fs, &volume).await,
        // A call before may have removed it, and ended before that was stable.
        None => stable(&fs).await,
    }
}

async fn expand(plugin: &Plugin, id: &VolumeId, range: SizeRange) -> Answer<i64> {
    let fs = plugin.fs().await?;
    let (volume, _) = tree::find(&fs, &plugin.root, id).await?.ok_or_else(|| no_volume(id))?;
    let limit = SizeLimit::read(&fs, &volume.dir).await?;
    let wanted = range.bytes().ok_or_else(|| missing("the capacity"))?;
    let Some(bytes) = limit.bytes else {
        // A volume without a limit has room for any size.
        return Ok(capacity(Some(wanted)));
    };
    if bytes >= wanted && !range.allows(Some(bytes)) {
        return Err(Status::out_of_range("the volume is larger, and does not shrink"));
    }
    let bytes = bytes.max(wanted);
    if limit != (SizeLimit { bytes: Some(bytes), active: true }) {
        SizeLimit::set(&fs, &volume.dir, Some(bytes)).await?;
    }
    stable(&fs).await?;
    Ok(capacity(Some(bytes)))
}

pub(crate) fn no_volume(id: impl std::fmt::Display) -> Status {
    Status::not_found(format!("there is no volume {id}"))
}

#[tonic::async_trait]
impl controller_server::Controller for Controller {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let plugin = Arc::clone(&self.0);
        let wanted = Wanted::parse(&plugin, request.get_ref())?;
        let id = wanted.id.text().to_owned();
        let work = async move { Box::pin(create(&plugin, &wanted)).await };
        let bytes = self.0.turns.run(&id, work).await?;
        let volume = Volume { capacity_bytes: capacity(bytes), volume_id: id, ..Volume::default() };
        Ok(Response::new(CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let id = given("the id of the volume", &request.get_ref().volume_id)?;
        // An id that is none of ours is a volume that is gone.
        if let Ok(id) = VolumeId::parse(id) {
            let (plugin, text) = (Arc::clone(&self.0), id.text().to_owned());
            let work = async move { Box::pin(delete(&plugin, &id)).await };
            self.0.turns.run(&text, work).await?;
        }
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let text = given("the id of the volume", &request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(missing("the capabilities of the volume"));
        }
        let id = VolumeId::parse(text).map_err(|_| no_volume(text))?;
        let fs = self.0.fs().await?;
        tree::find(&fs, &self.0.root, &id).await?.ok_or_else(|| no_volume(&id))?;
        let checked = capability::check_all(self.0.mounter.as_ref(), &request.volume_capabilities);
        let response = match checked {
            Ok(()) => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(validate_volume_capabilities_response::Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    mutable_parameters: request.mutable_parameters,
                }),
                message: String::new(),
            },
            Err(status) => ValidateVolumeCapabilitiesResponse {
                confirmed: None,
                message: status.message().to_owned(),
            },
        };
        Ok(Response::new(response))
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let ListVolumesRequest { max_entries, starting_token } = request.into_inner();
        let max = usize::try_from(max_entries)
            .map_err(|_| Status::invalid_argument("max_entries is less than nothing"))?;
        let max = if max == 0 { PAGE_VOLUMES } else { max };
        let after = list::parse(&starting_token)?;
        let fs = self.0.fs().await?;
        let root = tree::root(&fs, &self.0.root).await?;
        let (found, more) = Box::pin(list::page(&fs, &root, after.as_ref(), max)).await?;
        let last = found.last().filter(|_| more).map(|(id, _)| list::token(id));
        let entry = |(id, bytes): (VolumeId, Option<u64>)| list_volumes_response::Entry {
            volume: Some(Volume {
                capacity_bytes: capacity(bytes),
                volume_id: id.text().to_owned(),
                ..Volume::default()
            }),
            status: None,
        };
        Ok(Response::new(ListVolumesResponse {
            entries: found.into_iter().map(entry).collect(),
            next_token: last.unwrap_or_default(),
        }))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let capabilities = &request.get_ref().volume_capabilities;
        let checks = |one| capability::check(self.0.mounter.as_ref(), Some(one)).is_ok();
        let available = if capabilities.iter().all(checks) {
            let free = self.0.fs().await?.statfs().await;
            free.map_err(|error| status("ask for the free space", &error))?.bytes_free
        } else {
            0
        };
        Ok(Response::new(GetCapacityResponse {
            available_capacity: capacity(Some(available)),
            ..GetCapacityResponse::default()
        }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let text = given("the id of the volume", &request.volume_id)?.to_owned();
        let range = request.capacity_range.ok_or_else(|| missing("the capacity"))?;
        let range = SizeRange::parse(Some(range))?;
        let id = VolumeId::parse(&text).map_err(|_| no_volume(&text))?;
        let plugin = Arc::clone(&self.0);
        let work = async move { Box::pin(expand(&plugin, &id, range)).await };
        let capacity_bytes = self.0.turns.run(&text, work).await?;
        Ok(Response::new(ControllerExpandVolumeResponse {
            capacity_bytes,
            node_expansion_required: false,
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability = |of: rpc::Type| ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: of.into() })),
        };
        let capabilities = CAPABILITIES.map(capability).into();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        Err(Status::unimplemented("the plugin has no such call"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        Err(Status::unimplemented("the plugin has no such call"))
    }

    async fn controller_list_volume_health(
        &self,
        _: Request<ControllerListVolumeHealthRequest>,
    ) -> Result<Response<ControllerListVolumeHealthResponse>, Status> {
        Err(Status::unimplemented("the plugin has no such call"))
    }

    async fn controller_get_volume_health(
        &self,
        _: Request<ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<ControllerGetVolumeHealthResponse>, Status> {
        Err(Status::unimplemented("the plugin has no such call"))
    }

    async fn create_snapshot(
        &self,
        _: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        Err(Status::unimplemented("the plugin has no such call"))
    }

    async fn delete_snapshot(
        &self,
        _: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        Err(Status::unimplemented("the plugin has no such call"))
    }

    async fn list_snapshots(
        &self,
        _: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        Err(Status::unimplemented("the plugin has no such call"))
    }

    async fn get_snapshot(
        &self,
        _: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        Err(Status::unimplemented("the plugin has no such call"))
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        Err(Status::unimplemented("the plugin has no such call"))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        Err(Status::unimplemented("the plugin has no such call"))
    }
}
