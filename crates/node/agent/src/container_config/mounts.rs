//! The volume mounts of a container, with every host path made or checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pulselet_model::openapi::api::core::v1 as core;
use pulselet_model::{Container, Pod};
use pulselet_plan::RecursiveReadOnly;
use pulselet_runtime::{EnvVar, Mount, MountedImage, Propagation, SecurityFeatures};
use pulselet_volume::{PodDirectory, PreparedVolume};

use super::error::ConfigError;
use super::expand_with;

pub(super) fn mounts(
    directory: &PodDirectory,
    pod: &Pod,
    container: &Container,
    env: &[EnvVar],
    security: SecurityFeatures,
    images: &BTreeMap<String, MountedImage>,
) -> Result<Vec<Mount>, ConfigError> {
    let mount = |mount: &core::VolumeMount| {
        let sub_path = sub_path(mount, env);
        if let Some(image) = images.get(&mount.name) {
            return Ok(image_mount(mount, image.clone(), sub_path));
        }
        resolve(directory, pod, mount, sub_path, security)
    };
    container.volume_mounts.iter().map(mount).collect()
}

fn sub_path(mount: &core::VolumeMount, env: &[EnvVar]) -> Option<String> {
    match (mount.sub_path.as_deref(), mount.sub_path_expr.as_deref()) {
        (Some(path), _) if !path.is_empty() => Some(path.to_owned()),
        (_, Some(text)) if !text.is_empty() => Some(expand_with(env, text)),
        _ => None,
    }
}

/// The files of an image, which nobody can change. The runtime makes them visible, so nothing is prepared here.
fn image_mount(mount: &core::VolumeMount, image: MountedImage, sub_path: Option<String>) -> Mount {
    Mount {
        volume: mount.name.clone(),
        container_path: PathBuf::from(&mount.mount_path),
        host_path: PathBuf::new(),
        image: Some(image),
        sub_path: sub_path.map(PathBuf::from),
        read_only: true,
        recursive_read_only: false,
        propagation: Propagation::Private,
    }
}

fn resolve(
    directory: &PodDirectory,
    pod: &Pod,
    mount: &core::VolumeMount,
    sub_path: Option<String>,
    security: SecurityFeatures,
) -> Result<Mount, ConfigError> {
    let mut volumes = pod.spec.volumes.iter();
    let volume =
        volumes
            .find(|volume| volume.name == mount.name)
            .ok_or_else(|| ConfigError::UnknownVolume {
                volume: mount.name.clone(),
                path: mount.mount_path.clone(),
            })?;
    let prepared = PreparedVolume::new(directory, pod, volume)?;
    if let Some(path) = &sub_path {
        prepared.make_sub_path(path)?;
    }
    Ok(Mount {
        volume: mount.name.clone(),
        container_path: PathBuf::from(&mount.mount_path),
        host_path: prepared.path,
        image: None,
        sub_path: sub_path.map(PathBuf::from),
        read_only: prepared.read_only || mount.read_only.unwrap_or(false),
        recursive_read_only: RecursiveReadOnly::read(mount).resolve(security.recursive_read_only),
        propagation: match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => Propagation::HostToContainer,
            Some("Bidirectional") => Propagation::Bidirectional,
            _ => Propagation::Private,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(mount: &serde_json::Value) -> Result<Mount, ConfigError> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {
                "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "app", "volumeMounts": [mount]}],
            },
        }))
        .unwrap();
        let root = tempfile::tempdir().unwrap();
        let env = [EnvVar {
            name: "PART".into(),
            value: "seven".into(),
        }];
        let directory = PodDirectory::new(root.path());
        let mut mounts = mounts(
            &directory,
            &pod,
            &pod.spec.containers[0],
            &env,
            SecurityFeatures::ALL,
            &BTreeMap::new(),
        )?;
        assert!(mounts[0].source().is_dir());
        Ok(mounts.remove(0))
    }

    #[test]
    fn a_container_has_no_volumes_but_those_it_mounts() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"automountServiceAccountToken": true, "containers": [{"name": "app"}]},
        }))
        .unwrap();
        let root = tempfile::tempdir().unwrap();
        let directory = PodDirectory::new(root.path());
        let made = mounts(
            &directory,
            &pod,
            &pod.spec.containers[0],
            &[],
            SecurityFeatures::ALL,
            &BTreeMap::new(),
        );
        assert!(made.unwrap().is_empty());
    }

    #[test]
    fn the_files_of_an_image_are_mounted_as_they_are() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {
                "volumes": [{"name": "v", "image": {"reference": "site:1"}}],
                "containers": [{"name": "app", "volumeMounts": [
                    {"name": "v", "mountPath": "/v", "subPathExpr": "$(PART)/x"},
                ]}],
            },
        }))
        .unwrap();
        let root = tempfile::tempdir().unwrap();
        let env = [EnvVar {
            name: "PART".into(),
            value: "seven".into(),
        }];
        let image = MountedImage {
            reference: "site:1".into(),
            id: "sha256:1".into(),
        };
        let mounts = mounts(
            &PodDirectory::new(root.path()),
            &pod,
            &pod.spec.containers[0],
            &env,
            SecurityFeatures::ALL,
            &BTreeMap::from([("v".to_owned(), image.clone())]),
        );
        let [mount] = &mounts.unwrap()[..] else {
            panic!("one mount");
        };
        assert_eq!(mount.image.as_ref(), Some(&image));
        assert_eq!(mount.sub_path.as_deref(), Some(std::path::Path::new("seven/x")));
        assert!(mount.read_only);
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_mount_says_which_part_of_which_volume_is_shown() {
        let whole = check(&json!({"name": "v", "mountPath": "/v", "readOnly": true})).unwrap();
        assert_eq!((whole.sub_path.clone(), whole.read_only), (None, true));
        assert!(whole.host_path.ends_with("volumes/kubernetes.io~empty-dir/v"));
        let part = check(&json!({"name": "v", "mountPath": "/v", "subPathExpr": "a/$(PART)"})).unwrap();
        assert_eq!(part.sub_path, Some(PathBuf::from("a/seven")));
        assert!(!part.read_only);
        let tree =
            json!({"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "IfPossible"});
        assert!(check(&tree).unwrap().recursive_read_only && !whole.recursive_read_only);
        let unknown = check(&json!({"name": "w", "mountPath": "/v"}));
        assert!(matches!(unknown, Err(ConfigError::UnknownVolume { .. })));
    }
}
