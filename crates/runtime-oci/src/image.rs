//! Images as containers are made of them: the built-in one, and those of the store.

use std::path::{Path, PathBuf};

use pulselet_runtime::{Image, ImageError, ImageErrorKind, Mount, Propagation};

/// The host's own files under a throw-away layer, for machines without a registry. Its containers can read what the
/// host's root file system has.
pub const HOST_IMAGE: &str = "pulselet.local/host";

/// Where containers of the built-in image find the program itself.
const PROGRAM_PATH: &str = "/usr/local/bin/pulselet";

/// What a container takes from its image.
#[derive(Debug, Clone, Default)]
pub(crate) struct Template {
    /// Directories, the lowest first.
    pub(crate) layers: Vec<PathBuf>,
    pub(crate) hidden: Vec<PathBuf>,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) cmd: Vec<String>,
    /// `NAME=value`
    pub(crate) env: Vec<String>,
    pub(crate) working_dir: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) stop_signal: Option<String>,
}

/// The built-in image: `data_dir` is not shown in it, `program` is.
pub(crate) fn host_template(data_dir: &Path, program: &Path) -> Template {
    Template {
        layers: vec![PathBuf::from("/")],
        hidden: vec![data_dir.to_owned()],
        mounts: vec![Mount {
            volume: String::new(),
            container_path: PROGRAM_PATH.into(),
            host_path: program.to_owned(),
            read_only: true,
            propagation: Propagation::Private,
        }],
        ..Template::default()
    }
}

/// The built-in image as runtimes list images.
pub(crate) fn host_image() -> Image {
    Image {
        id: HOST_IMAGE.to_owned(),
        tags: vec![format!("{HOST_IMAGE}:latest")],
        stop_signal_known: true,
        ..Image::default()
    }
}

pub(crate) fn is_host_image(reference: &str) -> bool {
    reference.strip_suffix(":latest").unwrap_or(reference) == HOST_IMAGE
}

pub(crate) fn not_found(reference: &str) -> ImageError {
    ImageError {
        reference: reference.to_owned(),
        kind: ImageErrorKind::NotFound,
        message: format!("image {reference:?} is not there"),
    }
}
