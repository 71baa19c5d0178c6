//! A volume as a path on the host that can be mounted: `emptyDir` in the pod's own directory, `hostPath` where the
//! manifest says, and those that were filled before the pod's sandbox was made.
//!
//! A sub path never leads out of its volume, also not through a symbolic link that a container made.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};

use pulselet_model::Pod;
use pulselet_model::openapi::api::core::v1 as core;
use pulselet_plan::limit_bytes;
use thiserror::Error;

use crate::atomic::give;
use crate::claim;
use crate::contents::fs_group;
use crate::directory::PodDirectory;
use crate::memory;
use crate::sub_path::{self, SubPathError};
use crate::written::WrittenVolume;

/// Any user of a container may use an emptyDir.
const EMPTY_DIR_MODE: u32 = 0o777;
/// In one in memory only owners may remove their files, as the kernel makes such file systems.
const MEMORY_DIR_MODE: u32 = 0o1777;
/// Files made in a directory get its group.
const SET_GROUP: u32 = 0o2000;

/// Why a volume cannot be mounted. The text goes into a container's status and event, so it speaks of the manifest.
#[derive(Debug, Error)]
pub enum PrepareError {
    #[error("volume {volume:?} has no files yet")]
    NotFilled { volume: String },
    #[error("volume {volume:?}: its kind is not supported on this node")]
    Unsupported { volume: String },
    #[error("volume {volume:?}: hostPath type check failed: {path} is not a {wanted}", path = path.display())]
    HostPathType {
        volume: String,
        path: PathBuf,
        wanted: &'static str,
    },
    #[error("volume {volume:?}: unknown hostPath type {kind:?}")]
    UnknownHostPathType { volume: String, kind: String },
    #[error("volume {volume:?}: subPath {sub_path:?} leads out of the volume")]
    SubPath { volume: String, sub_path: String },
    #[error("cannot prepare {path}: {source}", path = path.display())]
    Make { path: PathBuf, source: io::Error },
}

/// A volume that can be mounted.
#[derive(Debug)]
pub struct PreparedVolume {
    name: String,
    /// On the host.
    pub path: PathBuf,
    /// What the node writes is not a container's to change.
    pub read_only: bool,
}

impl PreparedVolume {
    /// Finds a volume, or makes it where it is a container's to fill. The disk may not answer, so this may block.
    pub fn new(directory: &PodDirectory, pod: &Pod, volume: &core::Volume) -> Result<Self, PrepareError> {
        let written = WrittenVolume::of(directory, volume);
        let read_only = written.is_some() || claim::is_read_only(volume);
        let path = match written {
            Some(written) => written.directory().ok_or_else(|| PrepareError::NotFilled {
                volume: volume.name.clone(),
            })?,
            None => host_path(directory, pod, volume)?,
        };
        Ok(Self {
            name: volume.name.clone(),
            path,
            read_only,
        })
    }

    /// Makes what is missing of a path below the volume, as directories.
    pub fn make_sub_path(&self, sub_path: &str) -> Result<(), PrepareError> {
        sub_path::make(&self.path, Path::new(sub_path)).map_err(|error| match error {
            SubPathError::LeadsOut => PrepareError::SubPath {
                volume: self.name.clone(),
                sub_path: sub_path.to_owned(),
            },
            SubPathError::Make { path, source } => PrepareError::Make { path, source },
        })
    }
}

fn host_path(directory: &PodDirectory, pod: &Pod, volume: &core::Volume) -> Result<PathBuf, PrepareError> {
    if let Some(source) = &volume.empty_dir {
        let path = directory.empty_dir(&volume.name);
        make_empty_dir(&path, pod, source).map_err(|source| make_error(&path, source))?;
        return Ok(path);
    }
    if let Some(host) = &volume.host_path {
        let path = PathBuf::from(&host.path);
        check_host_path(&volume.name, &path, host.type_.as_deref().unwrap_or_default())?;
        return Ok(path);
    }
    if claim::claim_name(pod, volume).is_some() {
        return claim::path(directory, &volume.name).ok_or_else(|| PrepareError::NotFilled {
            volume: volume.name.clone(),
        });
    }
    Err(PrepareError::Unsupported {
        volume: volume.name.clone(),
    })
}

fn make_error(path: &Path, source: io::Error) -> PrepareError {
    PrepareError::Make {
        path: path.to_owned(),
        source,
    }
}

/// A directory for everyone, in memory if it is to be, whose files belong to the pod's group if it has one.
fn make_empty_dir(path: &Path, pod: &Pod, source: &core::EmptyDirVolumeSource) -> io::Result<()> {
    let mode = if source.medium.as_deref() == Some("Memory") {
        memory::ensure(path, limit_bytes(source), MEMORY_DIR_MODE)?;
        MEMORY_DIR_MODE
    } else {
        EMPTY_DIR_MODE
    };
    make_directory(path, mode)?;
    let group = fs_group(pod);
    if group.is_some() {
        give(lchown(path, None, group), group)?;
        make_directory(path, mode | SET_GROUP)?;
    }
    Ok(())
}

/// Makes the directory with exactly this mode, whatever the process's mask is.
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

pub(crate) fn check_host_path(volume: &str, path: &Path, kind: &str) -> Result<(), PrepareError> {
    let metadata = fs::metadata(path);
    match (kind, &metadata) {
        ("DirectoryOrCreate", Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            return make_directory(path, 0o755).map_err(|source| make_error(path, source));
        }
        ("FileOrCreate", Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            return fs::File::create_new(path)
                .map(drop)
                .map_err(|source| make_error(path, source));
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
            return Err(PrepareError::UnknownHostPathType {
                volume: volume.to_owned(),
                kind: kind.to_owned(),
            });
        }
    };
    if fits {
        return Ok(());
    }
    Err(PrepareError::HostPathType {
        volume: volume.to_owned(),
        path: path.to_owned(),
        wanted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::MetadataExt as _;

    fn prepared(directory: &Path, volume: &serde_json::Value) -> Result<PreparedVolume, PrepareError> {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {}})).unwrap();
        let volume = serde_json::from_value(volume.clone()).unwrap();
        PreparedVolume::new(&PodDirectory::new(directory.join("pod")), &pod, &volume)
    }

    #[test]
    fn an_empty_dir_is_made_for_everyone() {
        let directory = tempfile::tempdir().unwrap();
        let volume = prepared(directory.path(), &json!({"name": "v", "emptyDir": {}})).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&volume.path), 0o777);
        volume.make_sub_path("a/seven").unwrap();
        assert_eq!(mode(&volume.path.join("a/seven")), 0o777);
        assert!(!volume.read_only);
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
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&path), 0o3777);
        sub_path::make(&path, Path::new("a/b")).unwrap();
        assert_eq!([mode(&path.join("a")), mode(&path.join("a/b"))], [0o3777; 2]);
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
        let volume = prepared(directory.path(), &volume).unwrap();
        for sub_path in ["../x", "link", "link/ssh", "/etc", "up/x", "nowhere", "a/../b"] {
            let result = volume.make_sub_path(sub_path);
            assert!(matches!(result, Err(PrepareError::SubPath { .. })), "{sub_path}");
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
        let volume = prepared(directory.path(), &volume).unwrap();
        volume.make_sub_path("key").unwrap();
        assert_eq!(fs::read_to_string(volume.path.join("key")).unwrap(), "text");
        for path in ["key/below", "dangling"] {
            let result = volume.make_sub_path(path);
            assert!(matches!(result, Err(PrepareError::Make { .. })), "{path}");
        }
    }

    #[test]
    fn host_paths_are_what_their_type_says() {
        let directory = tempfile::tempdir().unwrap();
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
            let result = prepared(directory.path(), &volume);
            assert_eq!(result.is_ok(), fits, "{kind} {name}: {result:?}");
        }
    }

    #[test]
    fn what_is_not_supported_says_so() {
        let directory = tempfile::tempdir().unwrap();
        // The second is CVE-2024-10220: whoever clones a repository runs its hooks.
        for volume in [
            json!({"name": "v", "nfs": {"server": "s", "path": "/"}}),
            json!({"name": "v", "gitRepo": {"repository": "https://example.com/r", "directory": "."}}),
        ] {
            let result = prepared(directory.path(), &volume);
            assert!(
                matches!(result, Err(PrepareError::Unsupported { .. })),
                "{volume}"
            );
        }
        let result = prepared(
            directory.path(),
            &json!({"name": "v", "secret": {"secretName": "s"}}),
        );
        assert!(matches!(result, Err(PrepareError::NotFilled { .. })));
    }
}
