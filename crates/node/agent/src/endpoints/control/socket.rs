//! The socket itself, however long its path is.
//!
//! The kernel takes 107 bytes of a socket's path, and a data directory may have a longer one. Such a socket is reached by
//! way of its open directory.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::net::{UnixListener, UnixStream};

/// Longest path of a socket, in bytes, without the zero that ends it.
const MAX_PATH: usize = 107;

/// Listens, in the place of what a dead agent left.
///
/// The directory is its owner's alone, so nobody can connect before the mode is set.
pub(crate) fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&Address::of(path)?.path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

pub(super) async fn connect(path: &Path) -> io::Result<UnixStream> {
    let address = Address::of(path)?;
    UnixStream::connect(&address.path).await
}

/// A path that the kernel takes; it is good for as long as this value is there.
struct Address {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl Address {
    fn of(socket: &Path) -> io::Result<Self> {
        let (Some(parent), Some(name)) = (socket.parent(), socket.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if socket.as_os_str().len() <= MAX_PATH {
            return Ok(Self {
                path: socket.to_owned(),
                _directory: None,
            });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, Mode::empty())?;
        let path = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
        Ok(Self {
            path: path.join(name),
            _directory: Some(directory),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_path_of_any_length_is_reached() {
        let directory = tempfile::tempdir().unwrap();
        let shortest = directory.path().as_os_str().len() + "/".len() + "/s".len();
        for length in [shortest + 1, MAX_PATH, MAX_PATH + 1, MAX_PATH + 100] {
            let parent = directory.path().join("l".repeat(length - shortest));
            std::fs::create_dir(&parent).unwrap();
            let path = parent.join("s");
            assert_eq!(path.as_os_str().len(), length);
            let nobody = connect(&path).await.unwrap_err();
            assert_eq!(nobody.kind(), io::ErrorKind::NotFound, "{length}");
            let listener = bind(&path).unwrap();
            connect(&path).await.unwrap();
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            drop(listener);
            let dead = connect(&path).await.unwrap_err();
            assert_eq!(dead.kind(), io::ErrorKind::ConnectionRefused, "{length}");
            bind(&path).unwrap();
        }
    }
}
