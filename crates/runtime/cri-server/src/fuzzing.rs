//! What fuzzers call, and nobody else: this function takes what clients send.

use prost::Message;
use pulselet_cri_wire::v1;
use pulselet_runtime::{ImageSummary, SecurityFeatures};

use crate::images;
use crate::request::{self, container::ContainerRequest};

/// A function with its name, by which fuzzers and their corpora know it.
type FuzzTarget = (&'static str, fn(&[u8]));

pub const TARGETS: &[FuzzTarget] = &[("cri_requests", read_request)];

/// Reads a request, as far as nothing of it is looked up. The first byte says which.
pub fn read_request(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else {
        return;
    };
    match kind {
        b'c' => make_container(body),
        b's' => {
            if let Ok(v1::RunPodSandboxRequest {
                config: Some(config), ..
            }) = v1::RunPodSandboxRequest::decode(body)
            {
                let _ = request::sandbox::sandbox(&config);
            }
        }
        b'p' => {
            if let Ok(request) = v1::PullImageRequest::decode(body) {
                images::fuzz_auth(request.auth.as_ref());
            }
        }
        b'u' => {
            if let Ok(request) = v1::UpdateContainerResourcesRequest::decode(body)
                && let Ok(resources) = request::resources::of_container(&request.linux.unwrap_or_default())
            {
                // What is told to clients can be asked for again.
                let told = request::resources::to_wire(&resources);
                let again = request::resources::of_container(&told);
                assert!(again.is_ok(), "{told:?} is not taken back");
            }
        }
        _ => {}
    }
}

fn make_container(body: &[u8]) {
    let Ok(asked) = v1::CreateContainerRequest::decode(body) else {
        return;
    };
    let Ok(sandbox) = request::sandbox::sandbox(&asked.sandbox_config.unwrap_or_default()) else {
        return;
    };
    let resolved = ContainerRequest {
        config: &asked.config.unwrap_or_default(),
        sandbox: &sandbox,
        image: &ImageSummary::default(),
        features: SecurityFeatures::ALL,
        own_log: "/log".into(),
    }
    .resolve();
    if let Ok(config) = resolved {
        let below = config.log_path.starts_with(&sandbox.log_directory);
        assert!(
            below || !config.log_rotated_by_caller,
            "{} is not the pod's",
            config.log_path.display()
        );
        let is_absolute = |mount: &pulselet_runtime::Mount| {
            mount.image.is_some() != mount.host_path.is_absolute() && mount.container_path.is_absolute()
        };
        assert!(config.mounts.iter().all(is_absolute), "{:?}", config.mounts);
    }
}
