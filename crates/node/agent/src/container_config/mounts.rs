//! The volume mounts of a container, with every host path made or checked.

use std::path::PathBuf;

use pulselet_model::openapi::api::core::v1 as core;
use pulselet_model::{Container, Pod};
use pulselet_plan::RecursiveReadOnly;
use pulselet_runtime::{EnvVar, Mount, Propagation, SecurityFeatures};
use pulselet_volume::{PodDirectory, PreparedVolume};

use super::error::ConfigError;
use super::expand_with;

pub(super) fn mounts(
    directory: &PodDirectory,
    pod: &Pod,
    container: &Container,
    env: &[EnvVar],
    security: SecurityFeatures,
) -> Result<Vec<Mount>, ConfigError> {
    let mount = |mount| resolve(directory, pod, mount, env, security);
    container.volume_mounts.iter().map(mount).collect()
}

fn resolve(
    directory: &PodDirectory,
    pod: &Pod,
    mount: &core::VolumeMount,
    env: &[EnvVar],
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
    let sub_path = match (mount.sub_path.as_deref(), mount.sub_path_expr.as_deref()) {
        (Some(path), _) if !path.is_empty() => Some(path.to_owned()),
        (_, Some(text)) if !text.is_empty() => Some(expand_with(env, text)),
        _ => None,
    };
    if let Some(path) = &sub_path {
        prepared.make_sub_path(path)?;
    }
    Ok(Mount {
        volume: mount.name.clone(),
        container_path: PathBuf::from(&mount.mount_path),
        host_path: prepared.path,
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
        );
        assert!(made.unwrap().is_empty());
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
