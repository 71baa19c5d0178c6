//! Volumes as host paths: `emptyDir` in the pod's own directory, `hostPath` where the manifest says, and those that were
//! written before the pod's sandbox was made.
//!
//! A subPath never leads out of its volume, also not through a symbolic link that a container made.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};

use pulselet_model::openapi::api::core::v1 as core;
use pulselet_model::quantity::Amount;
use pulselet_model::{Container, Pod};
use pulselet_runtime::{EnvVar, Mount, Propagation};

use super::atomic::give;
use super::error::ConfigError;
use super::expansion::expand;
use super::memory;
use super::security::id;
use super::sub_path::{self, SubPathError};
use super::written::WrittenVolume;
use crate::layout::Layout;

/// Nano-units in one unit of a quantity.
const NANOS: i128 = 1_000_000_000;
/// Any user of a container may use an emptyDir.
const EMPTY_DIR_MODE: u32 = 0o777;
/// Files made in a directory get its group.
const SET_GROUP: u32 = 0o2000;

/// The mounts of a container, with every host path made or checked.
pub(super) fn mounts(
    layout: &Layout,
    uid: &str,
    pod: &Pod,
    container: &Container,
    env: &[EnvVar],
) -> Result<Vec<Mount>, ConfigError> {
    let mount = |mount| resolve(layout, uid, pod, mount, env);
    container.volume_mounts.iter().map(mount).collect()
}

fn resolve(
    layout: &Layout,
    uid: &str,
    pod: &Pod,
    mount: &core::VolumeMount,
    env: &[EnvVar],
) -> Result<Mount, ConfigError> {
    let volume = pod
        .spec
        .volumes
        .iter()
        .find(|volume| volume.name == mount.name)
        .ok_or_else(|| ConfigError::UnknownVolume {
            volume: mount.name.clone(),
            path: mount.mount_path.clone(),
        })?;
    let written = WrittenVolume::of(layout, uid, volume);
    let is_written = written.is_some();
    let root = match written {
        Some(written) => written.directory().ok_or_else(|| ConfigError::NotWritten {
            volume: volume.name.clone(),
        })?,
        None => host_path(layout, uid, pod, volume)?,
    };
    let sub_path = match (mount.sub_path.as_deref(), mount.sub_path_expr.as_deref()) {
        (Some(path), _) if !path.is_empty() => Some(path.to_owned()),
        (_, Some(text)) if !text.is_empty() => Some(expand(text, |name| value(env, name))),
        _ => None,
    };
    if let Some(path) = &sub_path {
        make_sub_path(&root, path, &volume.name)?;
    }
    Ok(Mount {
        volume: mount.name.clone(),
        container_path: PathBuf::from(&mount.mount_path),
        host_path: root,
        sub_path: sub_path.map(PathBuf::from),
        // What the node writes is not a container's to change.
        read_only: is_written || mount.read_only.unwrap_or(false),
        propagation: match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => Propagation::HostToContainer,
            Some("Bidirectional") => Propagation::Bidirectional,
            _ => Propagation::Private,
        },
    })
}

fn value<'a>(env: &'a [EnvVar], name: &str) -> Option<&'a str> {
    let found = env.iter().rev().find(|variable| variable.name == name);
    found.map(|variable| variable.value.as_str())
}

fn host_path(layout: &Layout, uid: &str, pod: &Pod, volume: &core::Volume) -> Result<PathBuf, ConfigError> {
    if let Some(source) = &volume.empty_dir {
        let path = layout.empty_dir(uid, &volume.name);
        make_empty_dir(&path, pod, source).map_err(|source| prepare(&path, source))?;
        return Ok(path);
    }
    if let Some(host) = &volume.host_path {
        let path = PathBuf::from(&host.path);
        check_host_path(&volume.name, &path, host.type_.as_deref().unwrap_or_default())?;
        return Ok(path);
    }
    Err(ConfigError::VolumeKind {
        volume: volume.name.clone(),
    })
}

fn prepare(path: &Path, source: io::Error) -> ConfigError {
    ConfigError::Prepare {
        path: path.to_owned(),
        source,
    }
}

/// A directory for everyone, in memory if it is to be, whose files belong to the pod's group if it has one.
fn make_empty_dir(path: &Path, pod: &Pod, source: &core::EmptyDirVolumeSource) -> io::Result<()> {
    if source.medium.as_deref() == Some("Memory") {
        let limit = source.size_limit.as_ref();
        let limit = limit.and_then(|limit| Amount::parse(&limit.0).ok());
        let bytes = limit.and_then(|limit| u64::try_from(limit.nanos() / NANOS).ok());
        memory::ensure(path, bytes.filter(|bytes| *bytes > 0), EMPTY_DIR_MODE)?;
    }
    make_directory(path, EMPTY_DIR_MODE)?;
    let group = pod.spec.security_context.as_ref().and_then(|it| id(it.fs_group));
    if group.is_some() {
        give(lchown(path, None, group), group)?;
        make_directory(path, EMPTY_DIR_MODE | SET_GROUP)?;
    }
    Ok(())
}

/// Makes the directory with exactly this mode, whatever the process's mask is.
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn check_host_path(volume: &str, path: &Path, kind: &str) -> Result<(), ConfigError> {
    let metadata = fs::metadata(path);
    match (kind, &metadata) {
        ("DirectoryOrCreate", Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            return make_directory(path, 0o755).map_err(|source| prepare(path, source));
        }
        ("FileOrCreate", Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            return fs::File::create_new(path)
                .map(drop)
                .map_err(|source| prepare(path, source));
        }
        _ => {}
    }
    let is = |test: fn(&fs::FileType) -> bool| metadata.as_ref().is_ok_and(|m| test(&m.file_type()));
    let (wanted, fits) = match kind {
        "" => return Ok(()),
        "Directory" | "DirectoryOrCreate" => ("directory", is(fs::FileType::is_dir)),
        "File" | "FileOrCreate" => ("file", is(fs::FileType::is_file)),
        "Socket" => ("socket", is(fs::FileType::is_socket)),
        "CharDevice" => ("character device", is(fs::FileType::is_char_device)),
        "BlockDevice" => ("block device", is(fs::FileType::is_block_device)),
        _ => {
            return Err(ConfigError::UnknownHostPathType {
                volume: volume.to_owned(),
                kind: kind.to_owned(),
            });
        }
    };
    if fits {
        return Ok(());
    }
    Err(ConfigError::HostPathType {
        volume: volume.to_owned(),
        path: path.to_owned(),
        wanted,
    })
}

fn make_sub_path(root: &Path, sub_path: &str, volume: &str) -> Result<(), ConfigError> {
    sub_path::make(root, Path::new(sub_path)).map_err(|error| match error {
        SubPathError::LeadsOut => ConfigError::SubPath {
            volume: volume.to_owned(),
            sub_path: sub_path.to_owned(),
        },
        SubPathError::Make { path, source } => ConfigError::Prepare { path, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::MetadataExt as _;

    fn mounted(
        directory: &Path,
        volume: &serde_json::Value,
        mount: &serde_json::Value,
    ) -> Result<PathBuf, ConfigError> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"volumes": [volume], "containers": [{"name": "app", "volumeMounts": [mount]}]},
        }))
        .unwrap();
        let layout = Layout::new(directory.join("data"));
        let env = [EnvVar {
            name: "PART".into(),
            value: "seven".into(),
        }];
        let mounts = mounts(&layout, "u", &pod, &pod.spec.containers[0], &env)?;
        Ok(mounts[0].source())
    }

    #[test]
    fn an_empty_dir_is_made_for_everyone() {
        let directory = tempfile::tempdir().unwrap();
        let volume = json!({"name": "v", "emptyDir": {}});
        let path = mounted(
            directory.path(),
            &volume,
            &json!({"name": "v", "mountPath": "/v"}),
        )
        .unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o777);
        let mount = json!({"name": "v", "mountPath": "/v", "subPathExpr": "a/$(PART)"});
        let sub = mounted(directory.path(), &volume, &mount).unwrap();
        assert!(sub.ends_with("v/a/seven") && sub.is_dir());
        assert_eq!(fs::metadata(&sub).unwrap().permissions().mode() & 0o777, 0o777);
    }

    #[test]
    fn an_empty_dir_may_be_in_memory_and_belong_to_a_group() {
        let directory = tempfile::tempdir().unwrap();
        let source = json!({"medium": "Memory", "sizeLimit": "1Mi"});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"}, "spec": {"securityContext": {"fsGroup": 77}},
        }))
        .unwrap();
        let path = directory.path().join("v");
        make_empty_dir(&path, &pod, &serde_json::from_value(source).unwrap()).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.mode() & 0o7777, 0o2777);
        if metadata.gid() == 77 {
            let full = fs::write(path.join("large"), vec![0; 2 << 20]).unwrap_err();
            assert_eq!(full.kind(), io::ErrorKind::StorageFull);
            memory::discard(&path).unwrap();
        } else {
            assert!(std::env::var_os("CI").is_none(), "giving things away needs root");
        }
    }

    #[test]
    fn a_sub_path_cannot_leave_its_volume() {
        let directory = tempfile::tempdir().unwrap();
        let host = directory.path().join("host");
        fs::create_dir(&host).unwrap();
        for (target, link) in [("/etc", "link"), ("../..", "up"), ("/none", "nowhere")] {
            std::os::unix::fs::symlink(target, host.join(link)).unwrap();
        }
        let volume = json!({"name": "v", "hostPath": {"path": host}});
        for sub_path in ["../x", "link", "link/ssh", "/etc", "up/x", "nowhere", "a/../b"] {
            let mount = json!({"name": "v", "mountPath": "/v", "subPath": sub_path});
            let result = mounted(directory.path(), &volume, &mount);
            assert!(matches!(result, Err(ConfigError::SubPath { .. })), "{sub_path}");
        }
    }

    #[test]
    fn a_sub_path_may_be_a_file_and_lead_through_links_inside() {
        let directory = tempfile::tempdir().unwrap();
        let host = directory.path().join("host");
        fs::create_dir_all(host.join("..data")).unwrap();
        fs::write(host.join("..data/key"), "text").unwrap();
        std::os::unix::fs::symlink("..data/key", host.join("key")).unwrap();
        std::os::unix::fs::symlink("gone", host.join("dangling")).unwrap();
        let volume = json!({"name": "v", "hostPath": {"path": host}});
        let sub = |path| {
            let mount = json!({"name": "v", "mountPath": "/v", "subPath": path});
            mounted(directory.path(), &volume, &mount)
        };
        assert_eq!(fs::read_to_string(sub("key").unwrap()).unwrap(), "text");
        for path in ["key/below", "dangling"] {
            assert!(matches!(sub(path), Err(ConfigError::Prepare { .. })), "{path}");
        }
    }

    #[test]
    fn host_paths_are_what_their_type_says() {
        let directory = tempfile::tempdir().unwrap();
        let mount = json!({"name": "v", "mountPath": "/v"});
        let cases = [
            ("Directory", "none", false),
            ("DirectoryOrCreate", "made", true),
            ("FileOrCreate", "made-file", true),
            ("Directory", "made-file", false),
            ("File", "made-file", true),
            ("Socket", "made-file", false),
            ("Nonsense", "made", false),
        ];
        for (kind, name, fits) in cases {
            let path = directory.path().join(name);
            let volume = json!({"name": "v", "hostPath": {"path": path, "type": kind}});
            let result = mounted(directory.path(), &volume, &mount);
            assert_eq!(result.is_ok(), fits, "{kind} {name}: {result:?}");
        }
    }

    #[test]
    fn what_is_not_supported_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let mount = json!({"name": "v", "mountPath": "/v"});
        let volume = json!({"name": "v", "nfs": {"server": "s", "path": "/"}});
        let result = mounted(directory.path(), &volume, &mount);
        assert!(matches!(result, Err(ConfigError::VolumeKind { .. })));
        let volume = json!({"name": "v", "secret": {"secretName": "s"}});
        let result = mounted(directory.path(), &volume, &mount);
        assert!(matches!(result, Err(ConfigError::NotWritten { .. })));
        let result = mounted(
            directory.path(),
            &volume,
            &json!({"name": "w", "mountPath": "/v"}),
        );
        assert!(matches!(result, Err(ConfigError::UnknownVolume { .. })));
    }
}
