//! An image to run offline, packed as `docker save` would: Debian's static busybox and links to it.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::requires;

const BUSYBOX: &str = "/bin/busybox";
pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// What an image holds beside busybox, and what its configuration says.
#[derive(Debug)]
pub struct ImageArchive<'a> {
    pub name: &'a str,
    /// Where busybox is, without the leading slash.
    pub program: &'a str,
    /// Links as pairs of path and target.
    pub links: Vec<(String, String)>,
    /// The `config` of the image: variables, entry point, stop signal.
    pub config: Value,
}

/// An image as a registry has it.
#[derive(Debug, Clone)]
pub struct ImageDocuments {
    pub manifest: Vec<u8>,
    /// By their digests.
    pub blobs: BTreeMap<String, Vec<u8>>,
}

/// The bytes of busybox; `None` if this machine has none, in which case the test is reported as skipped.
pub fn busybox() -> Option<Vec<u8>> {
    let program = fs::read(BUSYBOX).ok();
    requires("Debian's busybox-static", program.is_some()).then_some(program)?
}

/// The programs of busybox that pods under test use, with a stop signal of the image's own.
pub fn shell_image(name: &str, stop_signal: Option<&str>) -> Option<Vec<u8>> {
    Some(shell(name, stop_signal).pack(&busybox()?))
}

/// The same image as a registry has it.
pub fn shell_documents() -> Option<ImageDocuments> {
    Some(shell("shell", None).documents(&busybox()?))
}

fn shell<'a>(name: &'a str, stop_signal: Option<&str>) -> ImageArchive<'a> {
    const PROGRAMS: [&str; 6] = ["sh", "mkdir", "rm", "sleep", "httpd", "true"];
    let links = PROGRAMS.map(|program| (format!("bin/{program}"), "busybox".to_owned()));
    ImageArchive {
        name,
        program: "bin/busybox",
        links: links.into(),
        config: json!({"Env": ["PATH=/bin"], "StopSignal": stop_signal}),
    }
}

impl ImageArchive<'_> {
    pub fn pack(&self, busybox: &[u8]) -> Vec<u8> {
        let layer = self.layer(busybox);
        let config = self.config_file(&layer);
        let manifest = json!([{"Config": "config.json", "RepoTags": [self.name], "Layers": ["layer.tar"]}]);
        let mut tar = tar::Builder::new(Vec::new());
        append(&mut tar, "manifest.json", manifest.to_string().as_bytes());
        append(&mut tar, "config.json", config.to_string().as_bytes());
        append(&mut tar, "layer.tar", &layer);
        tar.into_inner().expect("it is in memory")
    }

    /// The same as a registry has it: the manifest, and what it refers to by digest.
    pub fn documents(&self, busybox: &[u8]) -> ImageDocuments {
        let layer = self.layer(busybox);
        let config = self.config_file(&layer).to_string().into_bytes();
        let descriptor = |kind: &str, bytes: &[u8]| {
            let media_type = format!("application/vnd.oci.image.{kind}");
            json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
        };
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": descriptor("config.v1+json", &config),
            "layers": [descriptor("layer.v1.tar", &layer)],
        });
        ImageDocuments {
            manifest: manifest.to_string().into_bytes(),
            blobs: [config, layer].map(|blob| (digest(&blob), blob)).into(),
        }
    }

    fn config_file(&self, layer: &[u8]) -> Value {
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        })
    }

    fn layer(&self, busybox: &[u8]) -> Vec<u8> {
        let mut layer = tar::Builder::new(Vec::new());
        append(&mut layer, self.program, busybox);
        for (path, target) in &self.links {
            let mut header = tar::Header::new_gnu();
            header.set_size(0);
            header.set_entry_type(tar::EntryType::Symlink);
            layer.append_link(&mut header, path, target).expect("it fits");
        }
        layer.into_inner().expect("it is in memory")
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// The machine's architecture under the name that images use.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn append(tar: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o755);
    tar.append_data(&mut header, path, content).expect("it fits");
}
