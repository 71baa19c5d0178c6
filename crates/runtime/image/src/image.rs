//! What the store knows about an image, and the documents that describe one.
//!
//! The documents come from outside: their size is bounded before they are parsed, and they are turned into types that
//! cannot be invalid right here. Fields nobody uses are not read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::digest::{self, Digest};
use crate::platform::Platform;
use crate::reference::Reference;

/// Layers of one image. Docker builds no image with more, and an overlay mount takes few more.
pub const MAX_LAYERS: usize = 127;
/// Bytes of a manifest or an index, as registries bound them.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 4 << 20;
/// Bytes of a configuration; one with a long history has some ten thousand.
pub(crate) const MAX_CONFIG_BYTES: u64 = 8 << 20;

/// An image that is completely there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The digest of its configuration.
    pub id: Digest,
    /// Its names with a tag.
    pub references: Vec<Reference>,
    /// Its names with the digest under which a registry has it.
    pub digests: Vec<Reference>,
    pub config: ImageConfig,
    /// Unpacked layers, lowest first, ready to be lower directories of an overlay mount. All are siblings: a mount whose
    /// options would be too long can name them relative to their common parent's parent.
    pub layers: Vec<PathBuf>,
    /// Bytes of all files in all layers.
    pub size: u64,
}

/// What an image says about how to run it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageConfig {
    /// `NAME=value`.
    pub env: Vec<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    pub working_dir: Option<String>,
    /// `USER` as the image has it: a name or a number, and a group after a colon.
    pub user: Option<String>,
    /// `STOPSIGNAL` as the image has it.
    pub stop_signal: Option<String>,
    /// Paths that the image declares as volumes.
    pub volumes: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// As Go names it, such as amd64; empty where the image does not say.
    pub architecture: String,
    /// Empty where the image does not say.
    pub os: String,
}

/// Why a document that describes an image is not one.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("cannot parse {what}: {source}")]
    Parse {
        what: &'static str,
        source: serde_json::Error,
    },
    #[error("the image has {count} layers, more than the {MAX_LAYERS} supported")]
    TooManyLayers { count: usize },
    #[error("the manifest has {manifest} layers, the configuration {config}")]
    LayersDiffer { manifest: usize, config: usize },
    #[error("media type {media_type:?} is not supported: not a container image of the current formats")]
    MediaType { media_type: String },
}

/// The configuration as a document: what [`ImageConfig`] shows, and the layers.
#[derive(Debug, Clone)]
pub(crate) struct ConfigFile {
    pub(crate) config: ImageConfig,
    /// Digests of the uncompressed layers, lowest first.
    pub(crate) diff_ids: Vec<Digest>,
}

impl ConfigFile {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        let wire: WireConfigFile = from_json("the image's configuration", bytes)?;
        let run = wire.config.unwrap_or_default();
        let diff_ids = wire.rootfs.diff_ids;
        if diff_ids.len() > MAX_LAYERS {
            return Err(DocumentError::TooManyLayers {
                count: diff_ids.len(),
            });
        }
        let text = |value: Option<String>| value.filter(|text| !text.is_empty());
        let config = ImageConfig {
            env: run.env.unwrap_or_default(),
            entrypoint: run.entrypoint.unwrap_or_default(),
            cmd: run.cmd.unwrap_or_default(),
            working_dir: text(run.working_dir),
            user: text(run.user),
            stop_signal: text(run.stop_signal),
            volumes: run.volumes.unwrap_or_default().keys().cloned().collect(),
            labels: run.labels.unwrap_or_default(),
            architecture: wire.architecture.unwrap_or_default(),
            os: wire.os.unwrap_or_default(),
        };
        Ok(Self { config, diff_ids })
    }

    /// What the image runs on.
    pub(crate) fn platform(&self) -> Platform {
        Platform {
            os: self.config.os.clone(),
            architecture: self.config.architecture.clone(),
            variant: None,
        }
    }

    /// The name of each layer on top of those below it, lowest first.
    pub(crate) fn chain_ids(&self) -> Vec<Digest> {
        let mut below = None;
        let mut next = |diff_id: &Digest| {
            let id = digest::chain(below, *diff_id);
            below = Some(id);
            id
        };
        self.diff_ids.iter().map(&mut next).collect()
    }
}

#[derive(Deserialize)]
struct WireConfigFile {
    architecture: Option<String>,
    os: Option<String>,
    config: Option<WireRunConfig>,
    rootfs: WireRootFs,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireRunConfig {
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    stop_signal: Option<String>,
    volumes: Option<serde_json::Map<String, serde_json::Value>>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct WireRootFs {
    #[serde(default)]
    diff_ids: Vec<Digest>,
}

/// A manifest or an index of manifests for several platforms.
#[derive(Debug)]
pub(crate) enum Manifest {
    Image(ImageManifest),
    Index(Vec<Descriptor>),
}

#[derive(Debug)]
pub(crate) struct ImageManifest {
    pub(crate) config: Descriptor,
    /// Lowest first.
    pub(crate) layers: Vec<Descriptor>,
}

/// A piece of content, by digest and size.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) platform: Option<Platform>,
    #[serde(default)]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireManifest {
    media_type: Option<String>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
}

impl Manifest {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        let wire: WireManifest = from_json("the manifest", bytes)?;
        // A document that can be read as both would be one image here and another where it was checked.
        let says_index = wire.media_type.as_deref().and_then(says_index);
        match (wire.config, wire.layers, wire.manifests) {
            (Some(config), layers, None) if says_index != Some(true) => {
                let layers = layers.unwrap_or_default();
                if layers.len() > MAX_LAYERS {
                    return Err(DocumentError::TooManyLayers { count: layers.len() });
                }
                Ok(Self::Image(ImageManifest { config, layers }))
            }
            (None, None, Some(manifests)) if says_index != Some(false) => Ok(Self::Index(manifests)),
            _ => Err(DocumentError::MediaType {
                media_type: wire.media_type.unwrap_or_default(),
            }),
        }
    }
}

/// Whether a media type is that of an index; `None` if it is neither that nor a manifest's.
fn says_index(media_type: &str) -> Option<bool> {
    match media_type {
        "application/vnd.oci.image.index.v1+json"
        | "application/vnd.docker.distribution.manifest.list.v2+json" => Some(true),
        "application/vnd.oci.image.manifest.v1+json"
        | "application/vnd.docker.distribution.manifest.v2+json" => Some(false),
        _ => None,
    }
}

impl ImageManifest {
    /// That it lists as many layers as the configuration does.
    pub(crate) fn check(&self, config: &ConfigFile) -> Result<(), DocumentError> {
        if self.layers.len() == config.diff_ids.len() {
            Ok(())
        } else {
            Err(DocumentError::LayersDiffer {
                manifest: self.layers.len(),
                config: config.diff_ids.len(),
            })
        }
    }
}

pub(crate) fn from_json<'a, T: Deserialize<'a>>(
    what: &'static str,
    bytes: &'a [u8],
) -> Result<T, DocumentError> {
    serde_json::from_slice(bytes).map_err(|source| DocumentError::Parse { what, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_with_nulls_and_unknown_fields() {
        let json = br#"{"architecture":"amd64","os":"linux","history":[{}],"rootfs":{"type":"layers","diff_ids":[]},
            "config":{"Env":null,"Entrypoint":["/a"],"Cmd":null,"User":"","StopSignal":"SIGUSR2","Volumes":{"/v":{}}}}"#;
        let config = ConfigFile::parse(json).unwrap().config;
        assert_eq!(config.entrypoint, ["/a"]);
        assert_eq!(config.user, None);
        assert_eq!(config.stop_signal.as_deref(), Some("SIGUSR2"));
        assert_eq!(config.volumes, ["/v"]);
    }

    #[test]
    fn a_configuration_without_run_settings() {
        let config = ConfigFile::parse(br#"{"config":null,"rootfs":{"diff_ids":[]}}"#).unwrap();
        assert_eq!(config.config, ImageConfig::default());
    }

    #[test]
    fn too_many_layers_are_refused() {
        let ids: Vec<_> = (0..=MAX_LAYERS).map(|n| Digest::of(&n.to_le_bytes())).collect();
        let json = serde_json::json!({"rootfs": {"diff_ids": ids}}).to_string();
        let error = ConfigFile::parse(json.as_bytes()).unwrap_err();
        assert!(matches!(error, DocumentError::TooManyLayers { count: 128 }));
    }

    /// CVE-2021-41190: two clients that read one document differently run different images under one digest.
    #[test]
    fn a_document_is_a_manifest_or_an_index_and_never_both() {
        let digest = Digest::of(b"");
        let entry = format!(r#"{{"digest":"{digest}","size":1}}"#);
        let (config, manifests) = (
            format!(r#""config":{entry}"#),
            format!(r#""manifests":[{entry}]"#),
        );
        let index = "application/vnd.oci.image.index.v1+json";
        let manifest = "application/vnd.docker.distribution.manifest.v2+json";
        for json in [
            format!("{{{config},{manifests}}}"),
            format!(r#"{{{manifests},"layers":[]}}"#),
            format!(r#"{{{manifests},"layers":[{entry}],"mediaType":"{index}"}}"#),
            format!(r#"{{{config},"layers":[],"mediaType":"{index}"}}"#),
            format!(r#"{{{manifests},"mediaType":"{manifest}"}}"#),
            format!(r#"{{"mediaType":"{manifest}",{config},"mediaType":"{index}"}}"#),
        ] {
            Manifest::parse(json.as_bytes()).expect_err(&json);
        }
        for json in [
            format!(r#"{{{config},"layers":[],"mediaType":"{manifest}"}}"#),
            format!(r#"{{{manifests},"mediaType":"{index}"}}"#),
            format!("{{{manifests}}}"),
        ] {
            Manifest::parse(json.as_bytes()).expect(&json);
        }
    }

    #[test]
    fn neither_manifest_nor_index() {
        for json in [
            "{}",
            r#"{"schemaVersion":1,"fsLayers":[]}"#,
            r#"{"config":{"digest":"sha512:1","size":1}}"#,
            "[]",
            r#"{"manifests":[{"digest":"sha256:00","size":-1}]}"#,
        ] {
            assert!(Manifest::parse(json.as_bytes()).is_err(), "{json}");
        }
    }
}
