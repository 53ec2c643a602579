//! Volumes for Kubernetes: the plugin over a real server, asked as a kubelet and a provisioner do.
//!
//! Every mount is below the folder of its test, and is taken away when the test ends, however it
//! ends.

mod others;
mod places;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use client::{Client, Config};
use csi::proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest,
    ListVolumesRequest, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, VolumeCapability,
    controller_client::ControllerClient,
    node_client::NodeClient,
    volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
    volume_usage::Unit,
};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{net::UnixStream, runtime::Runtime};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use crate::harness::{Data, Running, fail, pando, pause, succeed, text};

const MIB: i64 = 1 << 20;

/// A server, a plugin, and a client of it. What the test mounts is below `folder`.
struct Plugged {
    plugin: Option<Running>,
    keeper: Option<Running>,
    runtime: Runtime,
    server: Running,
    data: Data,
}

impl Plugged {
    fn start() -> Plugged {
        let data = Data::formatted();
        let server = data.serve(&[]);
        // The lowest mount of the test tells others of those above, as that of a kubelet does.
        let pods = data.folder.path().join("pods");
        fs::create_dir(&pods).unwrap();
        rustix::mount::mount_bind(&pods, &pods).unwrap();
        let shared = rustix::mount::MountPropagationFlags::SHARED;
        rustix::mount::mount_change(&pods, shared).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let mut plugged = Plugged { plugin: None, keeper: None, runtime, server, data };
        plugged.restart(&[]);
        plugged
    }

    fn path(&self, name: &str) -> PathBuf {
        self.data.folder.path().join(name)
    }

    /// Starts a plugin; the one before was killed or has ended.
    fn restart(&mut self, args: &[&str]) {
        self.plugin = Some(self.run(args, "csi.sock", "serving csi at "));
    }

    fn run(&self, args: &[&str], socket: &str, ready: &str) -> Running {
        let endpoint = format!("unix://{}", text(&self.path(socket)));
        let (token, state) = (self.data.admin_token(), self.path("state"));
        let all = ["csi", "--endpoint", &endpoint, "--server", self.server.address(), "--token"];
        let rest = [text(&token), "--node", "node-1", "--state", text(&state)];
        Running::start(pando(&[&all[..], &rest, args].concat()), ready)
    }

    /// Asks the plugin something.
    fn ask<T>(&self, ask: impl AsyncFnOnce(Asking) -> T) -> T {
        let socket = self.path("csi.sock");
        self.runtime.block_on(Box::pin(async move {
            let connect = tower::service_fn(move |_| {
                let socket = socket.clone();
                async move { UnixStream::connect(socket).await.map(TokioIo::new) }
            });
            let endpoint = Endpoint::from_static("http://plugin.invalid");
            let channel = endpoint.connect_with_connector(connect).await.unwrap();
            ask(Asking(channel)).await
        }))
    }

    fn staging(&self) -> PathBuf {
        self.path("pods/staging")
    }

    fn target(&self, pod: &str) -> PathBuf {
        self.path("pods").join(pod)
    }

    /// A volume with a quota of `mib`, staged and published for the pod `a`.
    fn mounted(&self, name: &str, mib: i64) -> String {
        let (staging, target) = (self.staging(), self.target("a"));
        self.ask(async |asking| {
            let id = asking.create(name, mib).await.unwrap();
            asking.stage(&id, &staging).await.unwrap();
            asking.publish(&id, &staging, &target, false).await.unwrap();
            id
        })
    }

    /// The processes of mounts of this test, by their command lines.
    fn mount_processes(&self) -> Vec<Pid> {
        let pods = self.path("pods");
        let is_ours = |entry: &fs::DirEntry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("\0mount\0") && line.contains(text(&pods))
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten().filter(is_ours);
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        entries.filter_map(number).filter_map(Pid::from_raw).collect()
    }

    /// The process of the only mount.
    fn mount_process(&self) -> Pid {
        let found = self.mount_processes();
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]
    }
}

impl Drop for Plugged {
    fn drop(&mut self) {
        // The plugin would mount again while mounts are taken away.
        drop(self.plugin.take());
        drop(self.keeper.take());
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut paths: Vec<&str> =
            table.lines().filter_map(|line| line.split(' ').nth(4)).collect();
        paths.retain(|path| Path::new(path).starts_with(self.data.folder.path()));
        paths.sort_unstable();
        for path in paths.iter().rev() {
            let _ = rustix::mount::unmount(*path, rustix::mount::UnmountFlags::DETACH);
        }
        // The processes of mounts end by themselves while the server is there.
        for _ in 0..100 {
            if self.mount_processes().is_empty() {
                return;
            }
            pause(Duration::from_millis(50));
        }
        for process in self.mount_processes() {
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

/// A connection to the plugin.
struct Asking(Channel);

fn capability(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

impl Asking {
    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.0.clone())
    }

    fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.0.clone())
    }

    async fn create(&self, name: &str, mib: i64) -> Result<String, Status> {
        let request = CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: mib * MIB, limit_bytes: 0 }),
            volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter)],
            ..CreateVolumeRequest::default()
        };
        let volume = self.controller().create_volume(request).await?.into_inner().volume.unwrap();
        assert_eq!(volume.capacity_bytes, mib * MIB);
        assert!(volume.volume_context.is_empty(), "whoever reads a PersistentVolume sees it");
        Ok(volume.volume_id)
    }

    async fn delete(&self, id: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        self.controller().delete_volume(request).await.map(drop)
    }

    async fn stage(&self, id: &str, staging: &Path) -> Result<(), Status> {
        self.stage_for(Mode::MultiNodeMultiWriter, id, staging).await
    }

    async fn stage_for(&self, mode: Mode, id: &str, staging: &Path) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(staging).to_owned(),
            volume_capability: Some(capability(mode)),
            ..NodeStageVolumeRequest::default()
        };
        self.node().node_stage_volume(request).await.map(drop)
    }

    async fn publish(
        &self,
        id: &str,
        staging: &Path,
        target: &Path,
        readonly: bool,
    ) -> Result<(), Status> {
        let request = NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(staging).to_owned(),
            target_path: text(target).to_owned(),
            volume_capability: Some(capability(Mode::MultiNodeMultiWriter)),
            readonly,
            ..NodePublishVolumeRequest::default()
        };
        self.node().node_publish_volume(request).await.map(drop)
    }

    async fn unpublish(&self, id: &str, target: &Path) -> Result<(), Status> {
        let (volume_id, target_path) = (id.to_owned(), text(target).to_owned());
        let request = NodeUnpublishVolumeRequest { volume_id, target_path };
        self.node().node_unpublish_volume(request).await.map(drop)
    }

    async fn unstage(&self, id: &str, staging: &Path) -> Result<(), Status> {
        let (volume_id, staging_target_path) = (id.to_owned(), text(staging).to_owned());
        let request = NodeUnstageVolumeRequest { volume_id, staging_target_path };
        self.node().node_unstage_volume(request).await.map(drop)
    }

    async fn health(&self, id: &str, target: &Path) -> Vec<String> {
        let request = NodeGetVolumeHealthRequest {
            volume_id: id.to_owned(),
            volume_publish_path: text(target).to_owned(),
            ..NodeGetVolumeHealthRequest::default()
        };
        let answer = self.node().node_get_volume_health(request).await.unwrap().into_inner();
        let health = answer.volume_health.unwrap();
        health.health_statuses.into_iter().map(|entry| entry.reason).collect()
    }
}

/// Waits until something is so, as others bring it about.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..600 {
        if is_so() {
            return;
        }
        pause(Duration::from_millis(50));
    }
    panic!("not in time: {what}");
}

/// A container: mounts propagate to it, or do not.
fn container(propagation: &str) -> Running {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", propagation, "sh", "-c"]);
    command.arg("echo ready; read end").stdin(Stdio::piped());
    Running::start(command, "ready")
}

/// A path as a container sees it.
fn inside(container: &Running, path: &Path) -> PathBuf {
    let root = PathBuf::from(format!("/proc/{}/root", container.pid().as_raw_nonzero()));
    root.join(path.strip_prefix("/").unwrap())
}

fn write(path: &Path, mib: usize) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    for _ in 0..mib {
        file.write_all(&vec![7; 1 << 20])?;
    }
    file.sync_all()
}

#[test]
fn a_volume_lives_from_its_claim_to_the_trash() {
    let plugged = Plugged::start();
    let token = plugged.data.admin_token();
    let address = plugged.server.address();
    let root = address.to_owned();
    succeed(&["set", &root, "trash_days=7", "--token", text(&token)]);
    let id = plugged.mounted("pvc-1", 4);
    let (staging, target) = (plugged.staging(), plugged.target("a"));
    let reader = plugged.target("reader");
    plugged.ask(async |asking| {
        assert_eq!(asking.create("pvc-1", 4).await.unwrap(), id, "the same again");
        let other = asking.create("pvc-1", 4096).await.unwrap_err();
        assert_eq!(other.code(), Code::AlreadyExists, "{other}");
        asking.stage(&id, &staging).await.unwrap();
        asking.publish(&id, &staging, &target, false).await.unwrap();
        asking.publish(&id, &staging, &reader, true).await.unwrap();
        let changed = asking.publish(&id, &staging, &reader, false).await.unwrap_err();
        assert_eq!(changed.code(), Code::AlreadyExists, "{changed}");
    });
    write(&target.join("file"), 1).unwrap();
    assert_eq!(fs::read(reader.join("file")).unwrap().len(), 1 << 20);
    let refused = fs::write(reader.join("other"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(30), "EROFS: {refused}");
    let full = write(&target.join("large"), 8).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(122), "EDQUOT: {full}");
    fs::remove_file(target.join("large")).unwrap();

    plugged.ask(async |asking| {
        let request = ControllerExpandVolumeRequest {
            volume_id: id.clone(),
            capacity_range: Some(CapacityRange { required_bytes: 64 * MIB, limit_bytes: 0 }),
            ..ControllerExpandVolumeRequest::default()
        };
        let grown = asking.controller().controller_expand_volume(request).await.unwrap();
        let grown = grown.into_inner();
        assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (64 * MIB, false));
    });
    write(&target.join("large"), 8).unwrap();
    plugged.ask(async |asking| {
        let request = NodeGetVolumeStatsRequest {
            volume_id: id.clone(),
            volume_path: text(&target).to_owned(),
            ..NodeGetVolumeStatsRequest::default()
        };
        let stats = asking.node().node_get_volume_stats(request).await.unwrap().into_inner();
        let of = |unit: Unit| stats.usage.iter().find(|usage| usage.unit() == unit).unwrap();
        assert_eq!((of(Unit::Bytes).total, of(Unit::Bytes).used), (64 * MIB, 9 * MIB));
        assert_eq!(of(Unit::Inodes).used, 3, "the volume and two files");
        assert!(asking.health(&id, &target).await.is_empty());
        for place in [&target, &reader] {
            asking.unpublish(&id, place).await.unwrap();
            asking.unpublish(&id, place).await.unwrap();
            assert!(!place.exists());
        }
        asking.unstage(&id, &staging).await.unwrap();
        asking.unstage(&id, &staging).await.unwrap();
        asking.delete(&id).await.unwrap();
        asking.delete(&id).await.unwrap();
        let all = asking.controller().list_volumes(ListVolumesRequest::default()).await.unwrap();
        assert!(all.into_inner().entries.is_empty());
    });
    let trash = succeed(&["restore", address, "--list", "--token", text(&token)]);
    for lost in ["/volumes/pvc-1", "/volumes/pvc-1/file"] {
        assert!(trash.contains(lost), "{trash}");
    }
    assert_eq!(plugged.plugin_stops(), Some(0));
}

impl Plugged {
    fn plugin_stops(mut self) -> Option<i32> {
        let stopped = self.plugin.take().unwrap().stop();
        assert!(!self.path("csi.sock").exists());
        stopped
    }
}

#[test]
fn a_mount_goes_on_while_its_plugin_is_killed_and_started_again() {
    let mut plugged = Plugged::start();
    let id = plugged.mounted("pvc-1", 16);
    let (staging, target) = (plugged.staging(), plugged.target("a"));
    let mut open = fs::File::create(target.join("log")).unwrap();
    let process = plugged.mount_process();
    let mut plugin = plugged.plugin.take().unwrap();
    plugin.signal(Signal::KILL);
    plugin.wait();
    open.write_all(b"meanwhile").unwrap();
    // The socket of the killed one is still there.
    assert!(plugged.path("csi.sock").exists());
    plugged.restart(&[]);
    open.write_all(b" and after").unwrap();
    drop(open);
    assert_eq!(fs::read(target.join("log")).unwrap(), b"meanwhile and after");
    assert_eq!(plugged.mount_process(), process, "it is the same mount");
    plugged.ask(async |asking| {
        asking.unpublish(&id, &target).await.unwrap();
        asking.unstage(&id, &staging).await.unwrap();
    });
    until("the end of the mount's process", || {
        !Path::new(&format!("/proc/{}", process.as_raw_nonzero())).exists()
    });
}

#[test]
fn a_mount_whose_process_is_killed_is_made_again_and_pods_that_propagate_see_it() {
    let plugged = Plugged::start();
    let id = plugged.mounted("pvc-1", 16);
    let (staging, target) = (plugged.staging(), plugged.target("a"));
    fs::write(target.join("file"), "kept").unwrap();
    let (follows, stays) = (container("slave"), container("private"));
    let inside = |container: &Running| fs::read(inside(container, &target.join("file")));
    assert_eq!(inside(&follows).unwrap(), b"kept");
    kill_process(plugged.mount_process(), Signal::KILL).unwrap();
    until("a new mount", || fs::read(target.join("file")).is_ok_and(|found| found == b"kept"));
    assert_eq!(inside(&follows).unwrap(), b"kept");
    assert_eq!(inside(&stays).unwrap_err().raw_os_error(), Some(107), "ENOTCONN");
    plugged.ask(async |asking| {
        assert!(asking.health(&id, &target).await.is_empty());
        asking.unpublish(&id, &target).await.unwrap();
        asking.unstage(&id, &staging).await.unwrap();
    });
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(text(&target)), "no layer stays: {table}");
}

#[test]
fn a_mount_of_a_volume_reaches_nothing_else_and_its_plugin_leaves_no_token() {
    let plugged = Plugged::start();
    plugged.mounted("pvc-1", 16);
    let target = plugged.target("a");
    plugged.ask(async |asking| asking.create("pvc-2", 16).await.unwrap());
    assert!(fs::read_dir(&target).unwrap().next().is_none(), "the root is the volume");
    std::os::unix::fs::symlink("/volumes/pvc-2", target.join("link")).unwrap();
    assert!(fs::read_dir(target.join("link")).is_err(), "a link leads into this machine");
    // The session of the mount is one of the volume's directory.
    let (token, address) = (plugged.data.admin_token(), plugged.server.address());
    let sessions = succeed(&["token", "list", address, "--token", text(&token), "--json"]);
    let sessions: serde_json::Value = serde_json::from_str(&sessions).unwrap();
    let paths: Vec<_> =
        sessions["used"].as_array().unwrap().iter().map(|one| &one["path"]).collect();
    assert!(paths.contains(&&serde_json::json!("/volumes/pvc-1")), "{sessions}");
    for file in fs::read_dir(plugged.path("state")).unwrap().flatten() {
        let said = fs::read_to_string(file.path()).unwrap();
        assert!(!said.contains("pando2."), "{}", file.path().display());
    }

    // With a secret the plugin needs no right to sign; one for more than the volume is refused.
    let staging = plugged.path("pods/staging-2");
    plugged.ask(async |asking| {
        for (limits, works) in
            [(["--path", "/volumes"], false), (["--path", "/volumes/pvc-2"], true)]
        {
            let secret = fs::read_to_string(plugged.data.token(&limits)).unwrap();
            let request = NodeStageVolumeRequest {
                volume_id: "pvc-2".to_owned(),
                staging_target_path: text(&staging).to_owned(),
                volume_capability: Some(capability(Mode::MultiNodeMultiWriter)),
                secrets: [("token".to_owned(), secret.trim().to_owned())].into(),
                ..NodeStageVolumeRequest::default()
            };
            let staged = asking.node().node_stage_volume(request).await;
            assert_eq!(staged.is_ok(), works, "{limits:?}: {staged:?}");
        }
        asking.unstage("pvc-2", &staging).await.unwrap();
        for id in ["..", "../etc", "a/../b", ".trash", "/volumes"] {
            let refused = asking.stage(id, &staging).await.unwrap_err();
            assert_eq!(refused.code(), Code::NotFound, "{id}: {refused}");
            asking.delete(id).await.unwrap();
        }
    });
}

#[test]
fn a_directory_that_is_no_volume_is_left_alone_and_no_volume_is_within_another() {
    let plugged = Plugged::start();
    let token = fs::read_to_string(plugged.data.admin_token()).unwrap();
    let config = Config::new(vec![plugged.server.address().to_owned()], token.trim());
    plugged.ask(async |asking| {
        let client = Box::pin(Client::connect(config)).await.unwrap();
        client.create_dir_all("/volumes/mine", 0o755).await.unwrap();
        client.write("/volumes/mine/file", b"kept").await.unwrap();
        let taken = asking.create("mine", 1).await.unwrap_err();
        assert_eq!(taken.code(), Code::AlreadyExists, "{taken}");
        asking.delete("mine").await.unwrap();
        assert_eq!(client.read("/volumes/mine/file").await.unwrap(), &b"kept"[..]);
        // An empty directory is another's as well.
        client.create_dir_all("/volumes/empty", 0o755).await.unwrap();
        let taken = asking.create("empty", 1).await.unwrap_err();
        assert_eq!(taken.code(), Code::AlreadyExists, "{taken}");
        asking.delete("empty").await.unwrap();
        assert!(client.stat("/volumes/empty").await.is_ok());
        // A killed call leaves a hidden directory, which the same request takes up.
        let hidden = "/volumes/.new-2e292101c89ece92";
        client.create_dir_all(hidden, 0o700).await.unwrap();
        asking.create("pvc-9", 1).await.unwrap();
        assert!(client.stat(hidden).await.is_err(), "{hidden}");

        let claimed = |pattern: &str| CreateVolumeRequest {
            name: "pvc-2".to_owned(),
            volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter)],
            parameters: [("pathPattern".to_owned(), pattern.to_owned())].into(),
            ..CreateVolumeRequest::default()
        };
        asking.create("outer", 1).await.unwrap();
        for (pattern, code) in [
            ("outer/inner", Code::AlreadyExists),
            ("outer", Code::AlreadyExists),
            ("mine/../../etc", Code::InvalidArgument),
            ("${pvc.name}", Code::InvalidArgument),
        ] {
            let refused = asking.controller().create_volume(claimed(pattern)).await.unwrap_err();
            assert_eq!(refused.code(), code, "{pattern}: {refused}");
        }
        // A volume is removed with all that is below it, through no link.
        asking.controller().create_volume(claimed("team/data")).await.unwrap();
        client.create_dir_all("/volumes/team/data/a/b", 0o755).await.unwrap();
        client.write("/volumes/team/data/a/b/file", b"gone").await.unwrap();
        client.symlink("/volumes/mine", "/volumes/team/data/a/link").await.unwrap();
        asking.delete("team/data").await.unwrap();
        assert!(client.stat("/volumes/team/data").await.is_err());
        assert_eq!(client.read("/volumes/mine/file").await.unwrap(), &b"kept"[..]);
        client.close().await.unwrap();
    });
}

#[test]
fn mounts_of_a_keeper_outlive_the_plugin_and_what_it_has_started() {
    let mut plugged = Plugged::start();
    drop(plugged.plugin.take());
    plugged.keeper = Some(plugged.run(&["--keeper-only"], "keeper.sock", "serving mounts at "));
    let keeper = format!("unix://{}", text(&plugged.path("keeper.sock")));
    plugged.restart(&["--keeper", &keeper]);
    let id = plugged.mounted("pvc-1", 16);
    let (staging, target) = (plugged.staging(), plugged.target("a"));
    fs::write(target.join("file"), "kept").unwrap();
    plugged.ask(async |asking| {
        asking.unpublish(&id, &target).await.unwrap();
        asking.unstage(&id, &staging).await.unwrap();
        let back = asking.stage(&id, &staging).await;
        back.unwrap();
        asking.publish(&id, &staging, &target, false).await.unwrap();
    });
    assert_eq!(fs::read(target.join("file")).unwrap(), b"kept");
    drop(plugged.keeper.take());
    plugged.ask(async |asking| {
        let refused = asking.unstage(&id, &staging).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().contains("the keeper of the node"), "{refused}");
    });
}

#[test]
fn a_plugin_takes_no_place_of_another_and_says_why() {
    let plugged = Plugged::start();
    let endpoint = format!("unix://{}", text(&plugged.path("csi.sock")));
    let token = plugged.data.admin_token();
    let args = ["csi", "--endpoint", &endpoint, "--server", "127.0.0.1:1", "--token", text(&token)];
    assert!(fail(1, &args).contains("another process listens"));
    let file = plugged.path("file");
    fs::write(&file, "mine").unwrap();
    let endpoint = format!("unix://{}", text(&file));
    let args = [&args[..2], &[&endpoint], &args[3..]].concat();
    assert!(fail(1, &args).contains("no socket"));
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}
