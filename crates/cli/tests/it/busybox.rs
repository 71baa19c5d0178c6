//! An image to run offline: Debian's static busybox, packed as `docker save` would.

use std::fs;
use std::path::Path;

use pulselet_image::{Digest, Platform};
use serde_json::json;

use crate::command::pulselet_with_stdin;

const PROGRAMS: [&str; 6] = ["sh", "mkdir", "rm", "sleep", "httpd", "true"];

/// Loads the image under a name, with a stop signal of its own. False if this machine has no busybox; with `CI` it has
/// to have one.
pub(crate) fn load(data_dir: &Path, name: &str, stop_signal: Option<&str>) -> bool {
    let program = fs::read("/bin/busybox").ok();
    let in_ci = std::env::var_os("CI").is_some();
    assert!(
        program.is_some() || !in_ci,
        "this test needs Debian's busybox-static"
    );
    let Some(program) = program else { return false };
    let data_dir = data_dir.to_str().expect("a plain path");
    let archive = archive(&program, name, stop_signal);
    let load = pulselet_with_stdin(&["image", "load", "-", "--data-dir", data_dir], &archive);
    assert_eq!(load.code, Some(0), "{load:?}");
    true
}

fn archive(busybox: &[u8], name: &str, stop_signal: Option<&str>) -> Vec<u8> {
    let mut layer = tar::Builder::new(Vec::new());
    append(&mut layer, "bin/busybox", busybox);
    for program in PROGRAMS {
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_entry_type(tar::EntryType::Symlink);
        layer
            .append_link(&mut header, format!("bin/{program}"), "busybox")
            .expect("it fits");
    }
    let layer = layer.into_inner().expect("it is in memory");
    let config = json!({
        "architecture": Platform::host().architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "StopSignal": stop_signal},
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&layer)]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    let mut tar = tar::Builder::new(Vec::new());
    append(&mut tar, "manifest.json", manifest.to_string().as_bytes());
    append(&mut tar, "config.json", config.to_string().as_bytes());
    append(&mut tar, "layer.tar", &layer);
    tar.into_inner().expect("it is in memory")
}

fn append(tar: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o755);
    tar.append_data(&mut header, path, content).expect("it fits");
}
