//! Memory as a file system: mounts below a pod's directory, and their end.
//!
//! What always holds: a pod's directory is removed only when nothing is mounted below it any more, so that removing
//! never reaches what a mount shows.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use pulselet_durable::remove_tree;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// The kernel's list of what is mounted where.
const MOUNTS: &str = "/proc/self/mountinfo";

/// What a directory's files are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    Memory,
    /// The agent may not mount.
    Disk,
}

/// Makes the directory and mounts memory there, unless it is there already. Without a number of bytes it is what the
/// kernel allows, half of the machine's memory.
pub(crate) fn ensure(path: &Path, bytes: Option<u64>, mode: u32) -> io::Result<Medium> {
    fs::create_dir_all(path)?;
    if is_mount_point(path)? {
        return Ok(Medium::Memory);
    }
    let size = bytes.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
    let options = |more: &str| CString::new(format!("mode={mode:o}{size}{more}"));
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let attempt = |more: &str| -> io::Result<()> {
        Ok(mount("tmpfs", path, "tmpfs", flags, options(more)?.as_c_str())?)
    };
    // Kernels before 6.4 cannot keep it out of the swap.
    let mounted = attempt(",noswap").or_else(|_| attempt(""));
    match mounted {
        Ok(()) => Ok(Medium::Memory),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Medium::Disk),
        Err(error) => Err(error),
    }
}

/// A mount has a device number of its own.
fn is_mount_point(path: &Path) -> io::Result<bool> {
    let own = fs::symlink_metadata(path)?.dev();
    let parent = path.parent().unwrap_or(path);
    Ok(own != fs::symlink_metadata(parent)?.dev())
}

/// Unmounts everything below a directory and removes it. What is gone already is no error.
///
/// The kernel's list has lines for every pod of the machine, so it is read only where something is mounted: a mount point can
/// be neither removed nor renamed, and what is on it is not looked into before that was tried.
pub fn discard(directory: &Path) -> io::Result<()> {
    let directory = match directory.canonicalize() {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if may_be_mount_point(&directory) {
        unmount_below(&directory)?;
    }
    let removed = match remove_tree(&directory) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            unmount_below(&directory)?;
            remove_tree(&directory)
        }
        removed => removed,
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether something is mounted at a directory. What the kernel does not say may be.
fn may_be_mount_point(directory: &Path) -> bool {
    let found = statx(CWD, directory, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    found.is_ok_and(|found| {
        let says = found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
        !says || found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
    })
}

/// Unmounts a directory and everything below it.
fn unmount_below(directory: &Path) -> io::Result<()> {
    let mut below: Vec<_> = mount_points(&fs::read(MOUNTS)?)
        .filter(|point| point.starts_with(directory))
        .collect();
    // What is mounted on a mount comes later in the list.
    below.reverse();
    for point in below {
        match unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::NOENT | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The fifth field of each line.
fn mount_points(list: &[u8]) -> impl Iterator<Item = PathBuf> {
    let lines = list.split(|byte| *byte == b'\n');
    let fields = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    fields.map(|field| PathBuf::from(std::ffi::OsString::from_vec(unescape(field))))
}

/// Blanks and the like are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| byte == b'\\');
        let code = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        out.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_from_the_kernels_list() {
        let list = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n\
                     37 36 0:31 / /a\\040b\\134c rw - tmpfs tmpfs rw\n\n";
        let points: Vec<_> = mount_points(list).collect();
        assert_eq!(points, [Path::new("/mnt2"), Path::new("/a b\\c")]);
    }

    #[test]
    fn a_pod_directory_goes_with_its_mounts_but_not_with_what_they_show() {
        let directory = tempfile::tempdir().unwrap();
        let pod = directory.path().join("pod with blanks");
        let secrets = pod.join("memory");
        let medium = ensure(&secrets, Some(1 << 20), 0o755).unwrap();
        if medium == Medium::Disk {
            assert!(std::env::var_os("CI").is_none(), "mounting needs root");
            return;
        }
        fs::write(secrets.join("kept"), "x").unwrap();
        assert_eq!(ensure(&secrets, Some(1 << 20), 0o755).unwrap(), Medium::Memory);
        assert!(secrets.join("kept").exists(), "mounted once");
        let full = fs::write(secrets.join("large"), vec![0; 2 << 20]).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        let precious = directory.path().join("precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("file"), "x").unwrap();
        let shown = secrets.join("shown");
        fs::create_dir(&shown).unwrap();
        mount(&precious, &shown, "", MountFlags::BIND, None).unwrap();
        // Of the same file system, so that no device number gives it away; a file; and the directory itself.
        for name in ["directory", "file"] {
            let (from, to) = (precious.join(name), pod.join(name));
            if name == "file" {
                fs::write(&to, "").unwrap();
            } else {
                fs::create_dir(&from).unwrap();
                fs::write(from.join("file"), "x").unwrap();
                fs::create_dir_all(to.join("below")).unwrap();
                fs::write(to.join("below/own"), "").unwrap();
            }
            mount(&from, &to, "", MountFlags::BIND, None).unwrap();
        }
        discard(&pod).unwrap();
        assert!(precious.join("directory/file").exists());
        fs::create_dir(&pod).unwrap();
        mount(&precious, &pod, "", MountFlags::BIND, None).unwrap();
        discard(&pod).unwrap();
        assert!(!pod.exists());
        assert!(precious.join("file").exists());
        let list = fs::read(MOUNTS).unwrap();
        assert!(!mount_points(&list).any(|point| point.starts_with(&pod)));
        discard(&pod).unwrap();
    }
}
