//! Replacing a file in one step.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// What the name of a file ends in while it is written. A writer that is killed leaves such a file behind.
pub const UNFINISHED: &str = ".new";

/// Replaces a file, or makes it. Once this returns it survives the loss of power; until then the old file does. The
/// mode counts for the new file.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let temporary = temporary(path);
    let written = write(&temporary, bytes, mode).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        // On a full disk the remains would take the room that is missing.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    match path.parent() {
        Some(directory) => sync_directory(directory),
        None => Ok(()),
    }
}

/// Makes what was created, renamed or removed in a directory survive the loss of power.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    let directory = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    File::open(directory)?.sync_all()
}

/// Beside the file, so that a rename stays in one file system.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(UNFINISHED);
    PathBuf::from(name)
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // A leftover of a crash may have another mode.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(bytes)?;
    // Before the rename: otherwise the new name may lead to a file without content after a power cut.
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_nothing_is_left() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        fs::write(directory.path().join("file.new"), b"of a crash").expect("writes");
        for content in [b"old".as_slice(), b"new"] {
            replace(&path, content, 0o600).expect("replaces");
            assert_eq!(fs::read(&path).expect("reads"), content);
        }
        let mode = fs::metadata(&path).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).expect("lists").count(), 1);
    }

    #[test]
    fn a_failed_replacement_leaves_the_old_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        fs::write(&path, b"old").expect("writes");
        // A directory in the place of the temporary file cannot be removed as a file.
        fs::create_dir(directory.path().join("file.new")).expect("makes");
        replace(&path, b"new", 0o600).expect_err("the way is blocked");
        assert_eq!(fs::read(&path).expect("reads"), b"old");
    }
}
