//! A container's view of files: its root from the image's layers, the kernel's file systems, devices and volumes.
//!
//! Runs in a process on its way into the container, in a mount namespace of its own, so that nothing of it is ever
//! mounted on the host and all of it goes with the container's last process. What comes from the host ([`HostParts`]) is opened
//! among the host's mounts, before that namespace is made, and attached after the root has changed.
//!
//! What always holds:
//! - Nothing is mounted by a path of the container: targets are looked up by [`lookup`], and a mount is attached to
//!   what was found. No link of an image or a volume, and nobody who changes one meanwhile, leads it elsewhere.
//! - What hides a file is a device file made here for that, never something of the container's own /dev.
//! - The machine's secrets are not in the root of the built-in image, also for who may mount: see [`hiding_layer`].
//! - No volume takes the place of the kernel's own files below /proc, but for those that [`check_volume_target`] names.
//! - Unless the container is privileged no mount it can write to lets device files be used; those it may use are mounts
//!   of their own. So a container that makes a device file gains nothing by it.

mod change_root;
mod devices;
mod hiding;
mod hiding_layer;
mod kernel_files;
mod lookup;
mod overlay;

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use pulselet_runtime::{Mount, Propagation, VolumeRoot};
use pulselet_sys::{MountAttributes, map_owners, own_files_as, set_mount_attributes};
use rustix::{
    fs::{CWD, FileType, fstat},
    mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree},
    thread::{CapabilitySet, capabilities, set_capabilities},
};

use self::{
    devices::Devices,
    lookup::{Links, Missing, RootDir, Target},
};
pub(crate) use change_root::{change_root, covers_host};
pub(crate) use overlay::UPPER;

use crate::{confinement::PodUsers, shim::Container, spec::ContainerSpec};

/// The mount point of the root, in the container's directory.
const ROOT: &str = "root";
/// Where images that are volumes are mounted, in the container's directory.
const IMAGES: &str = "images";

/// Files below /proc that a volume may cover: those by which programs show a container its own share of the machine.
/// Other runtimes allow the same.
const REPLACEABLE_PROC_FILES: [&str; 11] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/net/dev",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/sys/crypto/fips_enabled",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/uptime",
];

#[derive(Debug, thiserror::Error)]
pub(crate) enum RootError {
    /// The pod's fault.
    #[error("cannot mount {path}: {source}", path = path.display())]
    OpenSource { path: PathBuf, source: io::Error },
    /// The pod's fault.
    #[error("cannot show {path} to the pod's own users: {source}; put it on a file system that maps owners, or leave hostUsers out", path = path.display())]
    MapOwners { path: PathBuf, source: io::Error },
    /// The pod's or the image's fault.
    #[error("cannot mount at {path}: {source}", path = path.display())]
    Attach { path: PathBuf, source: io::Error },
    /// The pod's or the image's fault.
    #[error("cannot mount at {path}: the kernel's own files are there ({resolved})", path = path.display(), resolved = resolved.display())]
    KernelTarget { path: PathBuf, resolved: PathBuf },
    #[error("cannot mount the root file system: {0}")]
    Overlay(io::Error),
    #[error("cannot make files of the pod's own users: {0}")]
    OwnFiles(io::Error),
    #[error("cannot change the root: {0}")]
    Pivot(io::Error),
    /// The pod's fault.
    #[error(
        "with the capability SYS_ADMIN a container could uncover this machine's root, which is the kernel's first one, in memory; \
         leave it out, set hostUsers to false, or let the machine switch to another root when it boots"
    )]
    CoveredRoot,
    #[error("cannot mount {what}: {source}")]
    Kernel { what: &'static str, source: io::Error },
    #[error("cannot make device files: {0}")]
    Devices(io::Error),
    #[error("cannot take the machine's secrets out of its image: {0}")]
    HidingLayer(io::Error),
    #[error("cannot hide {path}: {source}", path = path.display())]
    Hide { path: PathBuf, source: io::Error },
    #[error("cannot make the root read-only: {0}")]
    ReadOnlyRoot(io::Error),
}

/// Something detached, and where it goes.
struct Bind {
    tree: OwnedFd,
    target: PathBuf,
    attributes: MountAttributes,
    read_only: bool,
}

impl Bind {
    fn set_attributes(&self) -> io::Result<()> {
        let mut attributes = self.attributes;
        // With the others, unless they are also for what is mounted below it.
        attributes.read_only |= self.read_only && !attributes.recursive;
        set_mount_attributes(&self.tree, attributes)?;
        if self.read_only && !attributes.read_only {
            let read_only = MountAttributes {
                read_only: true,
                ..MountAttributes::default()
            };
            set_mount_attributes(&self.tree, read_only)?;
        }
        Ok(())
    }
}

/// What a container has of the host, opened among the host's mounts and detached from them.
pub(crate) struct HostParts {
    devices: Vec<devices::DeviceFile>,
    cgroups: Vec<Bind>,
    /// In the order of the specification; `None` stands for an image.
    volumes: Vec<Option<Bind>>,
    /// The files of a process namespace that is shared.
    proc: Option<OwnedFd>,
}

impl HostParts {
    pub(crate) fn open(container: &Container, users: Option<&PodUsers>) -> Result<Self, RootError> {
        let Container { spec, cgroup, .. } = container;
        let privileged = spec.confinement.privileged;
        check_cover(spec)?;
        Ok(Self {
            devices: if privileged {
                devices::host_devices()
            } else {
                Vec::new()
            },
            cgroups: kernel_files::cgroup_binds(cgroup, privileged)?,
            volumes: volume_binds(spec, users)?,
            proc: kernel_files::shared_proc(spec)?,
        })
    }
}

/// Builds the root and makes it this process's, which has a mount namespace of its own. `terminal` is the container's
/// terminal, `users` are the pod's if it has its own.
pub(crate) fn enter(
    container: &Container,
    parts: HostParts,
    terminal: Option<BorrowedFd<'_>>,
    users: Option<&PodUsers>,
) -> Result<(), RootError> {
    let Container {
        dir, spec, cgroup, ..
    } = container;
    let privileged = spec.confinement.privileged;
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).map_err(|errno| RootError::Pivot(errno.into()))?;
    let volumes = with_images(parts.volumes, container, users)?;
    let host_root = users.map_or(0, PodUsers::root);
    overlay::make_directories(dir).map_err(RootError::Overlay)?;
    let place = dir.join(ROOT);
    let devices = Devices::make(spec, &place, terminal, host_root)?;
    overlay::mount_overlay(spec, dir, users)?;
    change_root(&place).map_err(RootError::Pivot)?;
    if let Some(users) = users {
        own_files(users).map_err(RootError::OwnFiles)?;
    }
    let root = RootDir::open().map_err(RootError::Pivot)?;
    kernel_files::mount_proc(&root, parts.proc)?;
    let dev = kernel_files::mount_dev(&root, privileged, host_root)?;
    devices
        .fill(&root, &dev, &parts.devices, users.is_some())
        .map_err(|source| RootError::Kernel { what: "/dev", source })?;
    let sys = kernel_files::mount_sys(&root, privileged)?;
    kernel_files::mount_cgroups(&root, &sys, cgroup, privileged, &parts.cgroups)?;
    for path in &spec.root.volumes {
        keep_writable(&root, path)?;
    }
    for bind in &devices.of_pod {
        attach(&root, bind, |_| Ok(()))?;
    }
    for bind in volumes {
        attach(&root, &bind, |target| check_volume_target(&bind, target))?;
    }
    hiding::protect_kernel_files(&root, spec, devices.mask)?;
    if spec.root.read_only {
        make_root_read_only(&root).map_err(RootError::ReadOnlyRoot)?;
    }
    Ok(())
}

/// Whether a container may take away what was mounted for it, though it is not to have all of the host: a privileged one is,
/// and among users of its own nobody may.
fn may_unmount(spec: &ContainerSpec) -> bool {
    let confinement = &spec.confinement;
    let capable =
        CapabilitySet::from_bits_retain(confinement.capabilities).contains(CapabilitySet::SYS_ADMIN);
    capable && !confinement.privileged && spec.namespaces.users.is_none()
}

/// A container that may take mounts away must have nothing of the host below its root.
fn check_cover(spec: &ContainerSpec) -> Result<(), RootError> {
    if !may_unmount(spec) {
        return Ok(());
    }
    match covers_host() {
        Ok(true) => Err(RootError::CoveredRoot),
        Ok(false) => Ok(()),
        Err(error) => Err(RootError::Pivot(error)),
    }
}

/// From here on what this process makes belongs to the pod's root. Its rights on files stay.
fn own_files(users: &PodUsers) -> io::Result<()> {
    let held = capabilities(None)?;
    own_files_as(users.root(), users.root())?;
    Ok(set_capabilities(None, held)?)
}

/// Makes a directory of the root, with its parents, if it is missing. The root is this process's.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    RootDir::open()?
        .look_up(path, Links::Follow, Missing::MakeDirectory)
        .map(drop)
}

fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(CWD, path, flags)?)
}

/// What a mount shows. Below a volume nothing leads out of it, whatever containers that share it do meanwhile.
fn clone_source(mount: &Mount) -> io::Result<OwnedFd> {
    let Some(sub_path) = &mount.sub_path else {
        return match clone_tree(&mount.host_path) {
            // Who wants to know whether it is there says so by the type of a volume; other runtimes make it, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&mount.host_path)?;
                clone_tree(&mount.host_path)
            }
            cloned => cloned,
        };
    };
    let source = VolumeRoot::open(&mount.host_path)?.look_up(sub_path)?;
    clone_opened(source, OpenTreeFlags::AT_RECURSIVE)
}

/// What the specification mounts, in its order; `None` stands for an image.
fn volume_binds(spec: &ContainerSpec, users: Option<&PodUsers>) -> Result<Vec<Option<Bind>>, RootError> {
    let bind = |mount: &Mount| {
        if mount.image.is_some() {
            return Ok(None);
        }
        let tree = clone_source(mount).map_err(|source| RootError::OpenSource {
            path: mount.source(),
            source,
        })?;
        if let Some(users) = users {
            map_owners(&tree, &users.namespace).map_err(|source| RootError::MapOwners {
                path: mount.source(),
                source,
            })?;
        }
        let attributes = MountAttributes {
            // With what is mounted below it; otherwise `attach` makes the volume's own mount read-only.
            read_only: mount.read_only && mount.recursive_read_only,
            no_dev: !spec.confinement.privileged,
            slave: mount.propagation == Propagation::HostToContainer,
            private: mount.propagation == Propagation::Private,
            recursive: true,
            ..MountAttributes::default()
        };
        Ok(Some(Bind {
            tree,
            target: mount.container_path.clone(),
            attributes,
            read_only: mount.read_only,
        }))
    };
    spec.mounts.iter().map(bind).collect()
}

/// Puts the images among the volumes into their places. Images are mounted below the container's directory for a moment, so
/// what is mounted here must not be seen on the host any more.
fn with_images(
    volumes: Vec<Option<Bind>>,
    container: &Container,
    users: Option<&PodUsers>,
) -> Result<Vec<Bind>, RootError> {
    let mounts = container.spec.mounts.iter();
    let all = volumes.into_iter().zip(mounts).enumerate();
    let place = |(index, (of_host, mount)): (usize, (Option<Bind>, &Mount))| match of_host {
        Some(bind) => Ok(bind),
        None => image_bind(container, index, mount, users),
    };
    all.map(place).collect()
}

fn image_bind(
    container: &Container,
    index: usize,
    mount: &Mount,
    users: Option<&PodUsers>,
) -> Result<Bind, RootError> {
    let Container { dir, spec, .. } = container;
    let id = mount.image.as_ref().map(|image| image.id.as_str());
    let layers = id.and_then(|id| spec.mounted_images.get(id));
    let place = dir.join(IMAGES).join(index.to_string());
    let files = overlay::mount_image(layers.map(Vec::as_slice).unwrap_or_default(), &place, users)?;
    let part = mount.sub_path.as_deref().unwrap_or(Path::new("."));
    let tree = clone_directory(&files, part).map_err(|source| RootError::OpenSource {
        path: mount.source(),
        source,
    })?;
    Ok(Bind {
        tree,
        target: mount.container_path.clone(),
        attributes: MountAttributes {
            no_dev: true,
            private: true,
            recursive: true,
            ..MountAttributes::default()
        },
        read_only: true,
    })
}

/// A directory of an image. Files of it cannot be mounted by themselves, as other runtimes have it.
fn clone_directory(files: &Path, part: &Path) -> io::Result<OwnedFd> {
    let found = VolumeRoot::open(files)?.look_up(part)?;
    if !FileType::from_raw_mode(fstat(&found)?.st_mode).is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    clone_opened(found, OpenTreeFlags::AT_RECURSIVE)
}

fn look_up(root: &RootDir, path: &Path, links: Links, missing: Missing) -> Result<Target, RootError> {
    root.look_up(path, links, missing)
        .map_err(|source| RootError::Attach {
            path: path.to_owned(),
            source,
        })
}

/// Makes the target if it is missing, as a directory or file like its source, and mounts there if `check` agrees.
fn attach(
    root: &RootDir,
    bind: &Bind,
    check: impl FnOnce(&Target) -> Result<(), RootError>,
) -> Result<(), RootError> {
    let failed = |source| RootError::Attach {
        path: bind.target.clone(),
        source,
    };
    let stat = fstat(&bind.tree).map_err(|errno| failed(errno.into()))?;
    let missing = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        Missing::MakeDirectory
    } else {
        Missing::MakeFile
    };
    let target = look_up(root, &bind.target, Links::Follow, missing)?;
    check(&target)?;
    let prepared = bind.set_attributes();
    prepared
        .and_then(|()| attach_to(&bind.tree, &target))
        .map_err(failed)
}

/// Refuses the root itself and what belongs to the kernel: what hides and protects files there would cover the volume's
/// instead, and programs would take the volume's word for the kernel's. A whole proc file system is allowed.
fn check_volume_target(bind: &Bind, target: &Target) -> Result<(), RootError> {
    let allowed = if target.path == Path::new("/proc") {
        kernel_files::is_proc_root(&bind.tree)
    } else {
        is_free(&target.path)
    };
    if allowed {
        Ok(())
    } else {
        Err(RootError::KernelTarget {
            path: bind.target.clone(),
            resolved: target.path.clone(),
        })
    }
}

fn is_free(path: &Path) -> bool {
    let replaceable = REPLACEABLE_PROC_FILES.iter().any(|file| path == Path::new(file));
    path != Path::new("/") && (replaceable || !path.starts_with("/proc"))
}

/// Mounts on what was found, whatever has become of its path.
fn attach_to(tree: &OwnedFd, target: &Target) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree.as_fd(), "", target.fd.as_fd(), "", flags)?)
}

/// A mount of what was opened, detached.
fn clone_opened(fd: impl AsFd, recursive: OpenTreeFlags) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | recursive;
    Ok(open_tree(fd, "", flags)?)
}

/// Makes a directory of the root a mount of its own: a root that becomes read-only leaves it as it is.
fn keep_writable(root: &RootDir, path: &Path) -> Result<(), RootError> {
    let target = look_up(root, path, Links::Follow, Missing::MakeDirectory)?;
    if !is_free(&target.path) {
        return Err(RootError::KernelTarget {
            path: path.to_owned(),
            resolved: target.path,
        });
    }
    clone_opened(&target.fd, OpenTreeFlags::AT_RECURSIVE)
        .and_then(|tree| attach_to(&tree, &target))
        .map_err(|source| RootError::Attach {
            path: path.to_owned(),
            source,
        })
}

fn make_root_read_only(root: &RootDir) -> io::Result<()> {
    let read_only = MountAttributes {
        read_only: true,
        ..MountAttributes::default()
    };
    set_mount_attributes(root, read_only)
}
