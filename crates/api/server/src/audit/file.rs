//! A file of lines that is put aside when it is full.
//!
//! What must always hold: no more than a known number of bytes is kept, and a line is in one file only. Files are the
//! owner's alone.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// How many bytes a file may have before it is put aside.
pub(super) const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// How many files are kept besides the one that is written: `FILE.1` is the newest of them.
const KEPT: u32 = 4;

#[derive(Debug)]
pub(super) struct RotatingFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    max_bytes: u64,
}

impl RotatingFile {
    /// Opens the file to go on at its end, or creates it.
    pub(super) fn open(path: &Path, max_bytes: u64) -> io::Result<Self> {
        let file = append(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
            max_bytes,
        })
    }

    /// Writes a line and its end.
    pub(super) fn write_line(&mut self, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        let length = line.len() as u64;
        if self.bytes > 0 && self.bytes + length > self.max_bytes {
            self.rotate()?;
        }
        self.file.write_all(line.as_bytes())?;
        self.bytes += length;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..KEPT).rev() {
            rename(&numbered(&self.path, number), &numbered(&self.path, number + 1))?;
        }
        rename(&self.path, &numbered(&self.path, 1))?;
        self.file = append(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    // A file that somebody else made may be open to others; a device is left as it is.
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// Renames a file that may not be there.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_files_are_put_aside_and_the_oldest_goes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        fs::write(&path, "before\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut log = RotatingFile::open(&path, 14).unwrap();
        for index in 0..20 {
            log.write_line(&format!("line{index:02}")).unwrap();
        }
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!(read(&path), "line19\n");
        assert_eq!(read(&numbered(&path, 1)), "line17\nline18\n");
        assert_eq!(read(&numbered(&path, 4)), "line11\nline12\n");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 5);
        for entry in fs::read_dir(directory.path()).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn a_line_longer_than_a_file_is_written_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let mut log = RotatingFile::open(&path, 4).unwrap();
        log.write_line("long line").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "long line\n");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
