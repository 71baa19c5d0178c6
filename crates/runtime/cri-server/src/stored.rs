//! What CRI wants to hear again of a sandbox or a container, kept with the runtime's own object as an annotation.
//!
//! So there is one record of each, the runtime's: nothing has to be kept in step, also when this process is killed between
//! two lines.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use prost::Message;
use pulselet_cri_wire::v1;
use pulselet_runtime::{ContainerStatus, SandboxStatus};

/// The annotation that holds the configuration of a sandbox or a container, in base64.
const CONFIG: &str = "pulselet.dev/cri-config";
/// The annotation that holds what a container's image is called in its registry.
const IMAGE_REF: &str = "pulselet.dev/cri-image-ref";

type Annotations = std::collections::BTreeMap<String, String>;

/// A sandbox of a client of this server.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    pub(crate) status: SandboxStatus,
    pub(crate) config: v1::PodSandboxConfig,
}

/// A container of a client of this server.
#[derive(Debug, Clone)]
pub(crate) struct Container {
    pub(crate) status: ContainerStatus,
    pub(crate) config: v1::ContainerConfig,
    /// `name@sha256:...`, or the image's id if it has no such name.
    pub(crate) image_ref: String,
}

pub(crate) fn sandbox_annotations(config: &v1::PodSandboxConfig) -> Annotations {
    Annotations::from([(CONFIG.to_owned(), encode(config))])
}

pub(crate) fn container_annotations(config: &v1::ContainerConfig, image_ref: String) -> Annotations {
    Annotations::from([
        (CONFIG.to_owned(), encode(config)),
        (IMAGE_REF.to_owned(), image_ref),
    ])
}

impl Sandbox {
    /// Returns `None` if it is none of this server's.
    pub(crate) fn recall(mut status: SandboxStatus) -> Option<Self> {
        let config = decode(&status.annotations)?;
        status.annotations.clear();
        Some(Self { status, config })
    }

    pub(crate) fn metadata(&self) -> v1::PodSandboxMetadata {
        self.config.metadata.clone().unwrap_or_default()
    }

    pub(crate) fn namespaces(&self) -> v1::NamespaceOption {
        let linux = self.config.linux.as_ref();
        let security = linux.and_then(|linux| linux.security_context.as_ref());
        security
            .and_then(|security| security.namespace_options.clone())
            .unwrap_or_default()
    }

    pub(crate) fn has_host_network(&self) -> bool {
        self.namespaces().network() == v1::NamespaceMode::Node
    }
}

impl Container {
    /// Returns `None` if it is none of this server's.
    pub(crate) fn recall(mut status: ContainerStatus) -> Option<Self> {
        let config = decode(&status.annotations)?;
        let image_ref = status.annotations.remove(IMAGE_REF).unwrap_or_default();
        status.annotations.clear();
        Some(Self {
            status,
            config,
            image_ref,
        })
    }

    pub(crate) fn metadata(&self) -> v1::ContainerMetadata {
        self.config.metadata.clone().unwrap_or_default()
    }
}

fn encode(message: &impl Message) -> String {
    STANDARD_NO_PAD.encode(message.encode_to_vec())
}

fn decode<M: Message + Default>(annotations: &Annotations) -> Option<M> {
    let bytes = STANDARD_NO_PAD.decode(annotations.get(CONFIG)?).ok()?;
    M::decode(bytes.as_slice()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_away_comes_back() {
        let config = v1::ContainerConfig {
            log_path: "a/0.log".into(),
            labels: Annotations::from([("a".to_owned(), "b".to_owned())]),
            ..v1::ContainerConfig::default()
        };
        let annotations = container_annotations(&config, "image@sha256:0".into());
        assert_eq!(decode::<v1::ContainerConfig>(&annotations), Some(config));
        let broken = Annotations::from([(CONFIG.to_owned(), "%%".to_owned())]);
        assert_eq!(decode::<v1::ContainerConfig>(&broken), None);
        assert_eq!(decode::<v1::ContainerConfig>(&Annotations::new()), None);
    }
}
