//! The plugin and its manifests, as programs of others see them. Without Go these are skipped.

use std::{fs, process::Command};

use super::Plugged;
use crate::{
    go::built,
    harness::{stderr, succeed},
};

/// Folder of the Go module with the programs of others.
const MODULE: &str = "../csi/tests/kubernetes";

#[test]
fn csi_sanity_finds_the_plugin_sane() {
    let package = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity";
    let Some(sanity) = built(MODULE, package, "csi-sanity") else { return };
    let plugged = Plugged::start();
    let mut command = Command::new(sanity);
    command.arg("--csi.endpoint").arg(plugged.path("csi.sock"));
    command.arg("--csi.mountdir").arg(plugged.path("pods/mount"));
    command.arg("--csi.stagingdir").arg(plugged.path("pods/stage"));
    command.args(["--csi.testvolumesize", "1048576", "--csi.testvolumeexpandsize", "2097152"]);
    command.arg("--ginkgo.no-color");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", stderr(&output));
    let counts = said.lines().find(|line| line.contains(" Passed ")).unwrap();
    eprintln!("{counts}");
}

#[test]
fn kubernetes_knows_each_field_of_the_manifests() {
    let Some(check) = built(MODULE, ".", "manifests") else { return };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../contrib/kubernetes");
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "yaml"));
    files.sort();
    let output = Command::new(&check).args(&files).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for kind in ["CSIDriver", "StorageClass", "Deployment", "DaemonSet", "Secret", "ClusterRole"] {
        assert!(said.contains(kind), "{kind}: {said}");
    }
    // The commands of the manifests are ones that the program takes.
    for file in &files {
        let words = fs::read_to_string(file).unwrap();
        for option in words.lines().filter_map(|line| line.trim().strip_prefix("- --")) {
            let name = option.split('=').next().unwrap();
            let ours = ["server", "token", "node", "root", "state", "keeper", "driver"];
            if ours.contains(&name) {
                let help = succeed(&["csi", "--help"]);
                assert!(help.contains(&format!("--{name}")), "{name}");
            }
        }
    }
}
