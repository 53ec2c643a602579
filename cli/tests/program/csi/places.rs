//! The places of a volume: who may write there, and when a volume is gone for good.

use std::{fs, os::unix::fs::PermissionsExt as _};

use base::{Cred, EntryName};
use client::{Client, Config, FileSystem};
use csi::proto::csi::{ListVolumesRequest, volume_capability::access_mode::Mode};
use rustix::process::{Signal, kill_process};
use tonic::Code;
use wire::{NodeRef, XattrMode};

use super::{Plugged, container, inside, until};
use crate::harness::{succeed, text};

/// Errno of a change of what is read-only.
const EROFS: Option<i32> = Some(30);

#[test]
fn a_volume_stays_staged_until_the_process_of_its_mount_has_ended() {
    let mut plugged = Plugged::start();
    let id = plugged.mounted("pvc-1", 16);
    let (staging, target) = (plugged.staging(), plugged.target("a"));
    fs::write(target.join("file"), "kept").unwrap();
    // A process that cannot send, and no server to send to.
    let process = plugged.mount_process();
    kill_process(process, Signal::STOP).unwrap();
    let address = plugged.server.address().to_owned();
    plugged.server.signal(Signal::KILL);
    plugged.server.wait();
    plugged.ask(async |asking| {
        asking.unpublish(&id, &target).await.unwrap();
        for _ in 0..2 {
            let refused = asking.unstage(&id, &staging).await.unwrap_err();
            assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        }
        let refused = asking.stage(&id, &staging).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().contains("has not ended"), "{refused}");
    });
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(text(&staging)), "the mount is gone, the process is not: {table}");
    // A new plugin does not forget it either.
    drop(plugged.plugin.take());
    plugged.restart(&[]);
    let refused = plugged.ask(async |asking| asking.unstage(&id, &staging).await.unwrap_err());
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    plugged.server = plugged.data.serve(&["--listen", &address]);
    kill_process(process, Signal::CONT).unwrap();
    until("the end of the process", || {
        plugged.ask(async |asking| asking.unstage(&id, &staging).await.is_ok())
    });
    plugged.ask(async |asking| {
        asking.stage(&id, &staging).await.unwrap();
        assert_eq!(fs::read(staging.join("file")).unwrap(), b"kept");
        asking.unstage(&id, &staging).await.unwrap();
    });
}

#[test]
fn readers_change_nothing_also_where_mounts_propagate_to() {
    let plugged = Plugged::start();
    let follows = container("slave");
    let id = plugged.mounted("pvc-1", 16);
    let (staging, target, reader) =
        (plugged.staging(), plugged.target("a"), plugged.target("reader"));
    plugged.ask(async |asking| {
        asking.publish(&id, &staging, &reader, true).await.unwrap();
    });
    fs::write(inside(&follows, &target.join("file")), "kept").unwrap();
    let seen = inside(&follows, &reader.join("file"));
    assert_eq!(fs::read(&seen).unwrap(), b"kept");
    assert_eq!(fs::write(&seen, "x").unwrap_err().raw_os_error(), EROFS);
    assert_eq!(fs::write(reader.join("file"), "x").unwrap_err().raw_os_error(), EROFS);
    let state = fs::read_dir(plugged.path("state")).unwrap().flatten();
    let names: Vec<_> = state.map(|file| file.file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|name| !name.ends_with(".place")), "{names:?}");

    // A mount that is made again is no other.
    kill_process(plugged.mount_process(), Signal::KILL).unwrap();
    for place in [&inside(&follows, &target.join("file")), &seen, &reader.join("file")] {
        until("a new mount", || fs::read(place).is_ok_and(|found| found == b"kept"));
    }
    assert_eq!(fs::write(&seen, "x").unwrap_err().raw_os_error(), EROFS);
    assert_eq!(fs::write(reader.join("file"), "x").unwrap_err().raw_os_error(), EROFS);
    fs::write(inside(&follows, &target.join("file")), "more").unwrap();
    assert_eq!(fs::read(&seen).unwrap(), b"more");

    // A mode for readers alone makes the mount read-only, and its token.
    let readers = plugged.path("pods/readers");
    plugged.ask(async |asking| {
        let id = asking.create("pvc-2", 16).await.unwrap();
        asking.stage_for(Mode::MultiNodeReaderOnly, &id, &readers).await.unwrap();
        let other = asking.stage(&id, &readers).await.unwrap_err();
        assert_eq!(other.code(), Code::AlreadyExists, "{other}");
    });
    assert_eq!(fs::write(readers.join("file"), "x").unwrap_err().raw_os_error(), EROFS);
    let (token, address) = (plugged.data.admin_token(), plugged.server.address());
    let used = succeed(&["token", "list", address, "--token", text(&token), "--json"]);
    let used: serde_json::Value = serde_json::from_str(&used).unwrap();
    let used = used["used"].as_array().unwrap();
    let of = |path: &str| used.iter().find(|one| one["path"] == path).unwrap();
    assert_eq!(of("/volumes/pvc-1")["read_only"], false);
    assert_eq!(of("/volumes/pvc-2")["read_only"], true);
}

#[test]
fn a_mount_without_a_record_is_left_alone() {
    let plugged = Plugged::start();
    let id = plugged.mounted("pvc-1", 16);
    let (staging, target) = (plugged.staging(), plugged.target("a"));
    plugged.ask(async |asking| {
        asking.unpublish("other", &target).await.unwrap();
        asking.unstage("other", &staging).await.unwrap();
    });
    fs::write(target.join("file"), "kept").unwrap();
    assert_eq!(fs::read(staging.join("file")).unwrap(), b"kept");
    plugged.ask(async |asking| {
        asking.unpublish(&id, &target).await.unwrap();
        asking.unstage(&id, &staging).await.unwrap();
    });
    assert!(!target.exists() && fs::read_dir(&staging).unwrap().next().is_none());
}

#[test]
fn the_folder_of_records_is_roots_alone_and_has_no_token_of_a_killed_process() {
    let mut plugged = Plugged::start();
    drop(plugged.plugin.take());
    let state = plugged.path("state");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).unwrap();
    // The number is that of a process which lives, and is another's.
    let (killed, handed) = (state.join("token.1.0"), state.join("token.1.1"));
    fs::write(&killed, "secret").unwrap();
    let lock = fs::File::create(&handed).unwrap();
    lock.lock().unwrap();
    plugged.restart(&[]);
    assert!(!killed.exists() && handed.exists());
    assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_mark_that_cannot_be_read_hides_no_other_volume_and_what_is_within_one_is_none() {
    let plugged = Plugged::start();
    let token = fs::read_to_string(plugged.data.admin_token()).unwrap();
    let config = Config::new(vec![plugged.server.address().to_owned()], token.trim());
    plugged.ask(async |asking| {
        for name in ["a", "b", "c"] {
            asking.create(name, 1).await.unwrap();
        }
        let client = Box::pin(Client::connect(config)).await.unwrap();
        client.create_dir_all("/volumes/c/within", 0o755).await.unwrap();
        let marks = [("b", "no mark"), ("c/within", r#"{"name":"w","ready":true}"#)];
        for (volume, mark) in marks {
            let mut dir = client.root().0;
            for name in ["volumes"].into_iter().chain(volume.split('/')) {
                let name = EntryName::new(name.as_bytes()).unwrap();
                let found = FileSystem::lookup(&client, &Cred::ROOT, &dir, &name).await.unwrap();
                dir = found.dir.unwrap();
            }
            let (name, mark) = ("trusted.pando.csi".into(), mark.into());
            let node = NodeRef::Dir(dir);
            FileSystem::setxattr(&client, &Cred::ROOT, &node, name, mark, XattrMode::Set)
                .await
                .unwrap();
        }
        let all = asking.controller().list_volumes(ListVolumesRequest::default()).await.unwrap();
        let all = all.into_inner().entries.into_iter();
        let ids: Vec<_> = all.map(|entry| entry.volume.unwrap().volume_id).collect();
        assert_eq!(ids, ["a", "c"]);
        asking.delete("c/within").await.unwrap();
        assert!(client.stat("/volumes/c/within").await.is_ok());
        client.close().await.unwrap();
    });
}
