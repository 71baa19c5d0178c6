//! Builds layers and archives for tests, hostile ones too: nothing of what is put into them is checked.

use std::io::Write;

use pulselet_image::{Digest, Image, ImageStore, Limits, LoadError, Platform};
use serde_json::{Value, json};
use tar::EntryType;
use tempfile::TempDir;

use crate::registry::answer;

/// Whether this test can do its work: as root only. In CI a test that cannot run has failed.
pub(crate) fn root() -> bool {
    pulselet_testing::requires("root", pulselet_testing::is_root())
}

/// A tar stream in the making.
#[derive(Default)]
pub(crate) struct Layer {
    bytes: Vec<u8>,
}

impl Layer {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn dir(self, path: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, path, "", b"", mode)
    }

    pub(crate) fn file(self, path: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, path, "", content.as_bytes(), 0o644)
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, path, target, b"", 0o777)
    }

    pub(crate) fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Link, path, target, b"", 0o644)
    }

    pub(crate) fn entry(self, kind: EntryType, path: &str, link: &str, content: &[u8], mode: u32) -> Self {
        self.raw(kind, path.as_bytes(), link, content, &|header| {
            header.set_mode(mode);
        })
    }

    /// An entry whose header can be changed before it gets its checksum.
    pub(crate) fn raw(
        mut self,
        kind: EntryType,
        path: &[u8],
        link: &str,
        content: &[u8],
        change: &dyn Fn(&mut tar::Header),
    ) -> Self {
        if path.len() > 100 {
            self = self.raw(EntryType::GNULongName, b"long", "", path, &|_| {});
        }
        if link.len() > 100 {
            self = self.raw(EntryType::GNULongLink, b"long", "", link.as_bytes(), &|_| {});
        }
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        let fields = header.as_gnu_mut().expect("it is a GNU header");
        let length = path.len().min(100);
        fields.name[..length].copy_from_slice(&path[..length]);
        let length = link.len().min(100);
        fields.linkname[..length].copy_from_slice(&link.as_bytes()[..length]);
        header.set_size(content.len() as u64);
        header.set_mtime(1_600_000_000);
        change(&mut header);
        header.set_cksum();
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    /// PAX records for the next entry.
    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut bytes = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length.to_string().len() + rest != length {
                length += 1;
            }
            bytes.extend_from_slice(format!("{length} {key}=").as_bytes());
            bytes.extend_from_slice(value);
            bytes.push(b'\n');
        }
        self.raw(EntryType::XHeader, b"pax", "", &bytes, &|_| {})
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

/// The configuration of an image with these layers, not compressed, lowest first.
pub(crate) fn config(layers: &[Vec<u8>], run: &Value) -> Value {
    let host = Platform::host();
    let diff_ids: Vec<_> = layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
    json!({
        "architecture": host.architecture,
        "os": host.os,
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
}

/// What `docker save` writes; each layer is stored as `pack` makes it.
pub(crate) fn docker_archive(
    tag: &str,
    config: &Value,
    layers: &[Vec<u8>],
    pack: fn(&[u8]) -> Vec<u8>,
) -> Vec<u8> {
    let config = config.to_string();
    let config_name = format!("{}.json", Digest::of(config.as_bytes()).hex());
    let mut archive = Layer::new();
    let mut names = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let name = format!("{number}/layer.tar");
        archive = archive.entry(EntryType::Regular, &name, "", &pack(layer), 0o644);
        names.push(name);
    }
    let manifest = json!([{"Config": config_name, "RepoTags": [tag], "Layers": names}]);
    archive
        .file(&config_name, &config)
        .file("manifest.json", &manifest.to_string())
        .finish()
}

/// The same as an OCI layout. Its names are annotations of the index.
pub(crate) fn oci_layout(
    annotations: &Value,
    config: &Value,
    layers: &[Vec<u8>],
    pack: fn(&[u8]) -> Vec<u8>,
) -> Vec<u8> {
    let config = config.to_string();
    let mut archive = Layer::new().file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    let mut add = |bytes: &[u8]| {
        let digest = Digest::of(bytes);
        let name = format!("blobs/sha256/{}", digest.hex());
        archive = std::mem::take(&mut archive).entry(EntryType::Regular, &name, "", bytes, 0o644);
        json!({"digest": digest, "size": bytes.len()})
    };
    let layers: Vec<_> = layers.iter().map(|layer| add(&pack(layer))).collect();
    let manifest = json!({"schemaVersion": 2, "config": add(config.as_bytes()), "layers": layers});
    let mut entry = add(manifest.to_string().as_bytes());
    entry["annotations"] = annotations.clone();
    let index = json!({"schemaVersion": 2, "manifests": [entry]});
    archive.file("index.json", &index.to_string()).finish()
}

pub(crate) fn plain(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

/// A store in a directory of its own.
pub(crate) struct Fixture {
    pub(crate) directory: TempDir,
    pub(crate) store: ImageStore,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::open_with(directory.path().join("images"), limits).unwrap();
        Self { directory, store }
    }

    /// Loads an image with these layers as `test:1`.
    pub(crate) fn load(&self, layers: Vec<Layer>) -> Result<Image, LoadError> {
        let layers: Vec<_> = layers.into_iter().map(Layer::finish).collect();
        let archive = docker_archive("test:1", &config(&layers, &Value::Null), &layers, plain);
        let mut images = self.store.load(archive.as_slice(), None)?;
        assert_eq!(images.len(), 1);
        Ok(images.remove(0))
    }

    /// Every path of the store, to compare before and after.
    pub(crate) fn paths(&self) -> Vec<std::path::PathBuf> {
        let mut found = Vec::new();
        let mut pending = vec![self.directory.path().to_owned()];
        while let Some(directory) = pending.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    pending.push(entry.path());
                }
                found.push(entry.path());
            }
        }
        found.sort();
        found
    }
}

/// The documents of an image with one layer, by the end of their path.
pub(crate) struct Documents {
    config: String,
    pub(crate) layer: Vec<u8>,
    manifest: String,
}

impl Documents {
    pub(crate) fn new() -> Self {
        let layer = Layer::new().file("a", "1").finish();
        let config = config(std::slice::from_ref(&layer), &Value::Null).to_string();
        let manifest = json!({
            "schemaVersion": 2,
            "config": {"digest": Digest::of(config.as_bytes()), "size": config.len()},
            "layers": [{"digest": Digest::of(&layer), "size": layer.len()}],
        })
        .to_string();
        Self {
            config,
            layer,
            manifest,
        }
    }

    pub(crate) fn find(&self, head: &str) -> Vec<u8> {
        let is = |bytes: &[u8]| head.contains(&Digest::of(bytes).to_string());
        if head.contains("/manifests/") {
            answer("200 OK", "", self.manifest.as_bytes())
        } else if is(self.config.as_bytes()) {
            answer("200 OK", "", self.config.as_bytes())
        } else if is(&self.layer) {
            answer("200 OK", "", &self.layer)
        } else {
            answer("404 Not Found", "", b"")
        }
    }
}
