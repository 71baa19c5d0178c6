//! Client certificates that no longer count, though they have not expired: a file of the administrator.
//!
//! Each line is the serial number of a certificate, as `openssl x509 -serial` shows it, or `user:` and a name, which means
//! all certificates of that user, those to come included. Empty lines and those that begin with `#` do not count.
//!
//! The file is looked at for every request that shows a certificate, so a new line counts at once, also on connections that
//! stand already. What always holds: a file that cannot be understood takes nothing back. The last list that could be
//! read stays, and the server does not start without one.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Bytes of the file; a line has some forty.
const MAX_BYTES: u64 = 4 << 20;
const USER: &str = "user:";

#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} has more than {MAX_BYTES} bytes")]
    TooLong { path: PathBuf },
    #[error("line {line} of {path} is neither a serial number in hexadecimal digits nor user:NAME")]
    Line { path: PathBuf, line: usize },
}

#[derive(Debug)]
pub(crate) struct RevocationList {
    path: PathBuf,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    /// What the file was when it was read; `None` if there was none.
    version: Option<FileVersion>,
    entries: Entries,
}

/// Tells one content of the file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    modified: Option<SystemTime>,
    inode: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Entries {
    /// Without leading zeros, in lower case.
    serials: HashSet<String>,
    users: HashSet<String>,
}

impl RevocationList {
    /// Reads the list; a missing file is an empty one.
    pub(super) fn open(path: PathBuf) -> Result<Self, RevocationError> {
        let version = version(&path);
        let entries = read(&path)?;
        let current = Mutex::new(Current { version, entries });
        Ok(Self { path, current })
    }

    /// Whether a certificate with this serial number, of this user, has been taken back.
    pub(super) fn has(&self, serial: &[u8], user: &str) -> bool {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let now = version(&self.path);
        if now != current.version {
            // Once for each change: a file that stays wrong is not read again for every request.
            current.version = now;
            match read(&self.path) {
                Ok(entries) => current.entries = entries,
                Err(error) => {
                    tracing::warn!(%error, "the list of revoked certificates stays as it was; mend the file");
                }
            }
        }
        let Entries { serials, users } = &current.entries;
        users.contains(user) || serials.contains(&hex(serial))
    }
}

fn version(path: &Path) -> Option<FileVersion> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = fs::metadata(path).ok()?;
    Some(FileVersion {
        modified: metadata.modified().ok(),
        inode: metadata.ino(),
        bytes: metadata.len(),
    })
}

fn read(path: &Path) -> Result<Entries, RevocationError> {
    let failed = |source| RevocationError::Read {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    match File::open(path) {
        Ok(file) => file
            .take(MAX_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(source) => return Err(failed(source)),
    };
    if text.len() as u64 > MAX_BYTES {
        return Err(RevocationError::TooLong {
            path: path.to_owned(),
        });
    }
    let mut entries = Entries::default();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        entries.add(line).ok_or_else(|| RevocationError::Line {
            path: path.to_owned(),
            line: index + 1,
        })?;
    }
    Ok(entries)
}

impl Entries {
    /// Adds a line; `None` if it is neither a serial number nor a user.
    fn add(&mut self, line: &str) -> Option<()> {
        if let Some(user) = line.strip_prefix(USER) {
            let user = Some(user.trim()).filter(|user| !user.is_empty())?;
            self.users.insert(user.to_owned());
            return Some(());
        }
        // As openssl prints it, with or without what it puts before.
        let line = line.strip_prefix("serial=").unwrap_or(line);
        let digits: String = line.chars().filter(|c| *c != ':').collect();
        let is_number = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_hexdigit());
        is_number.then_some(())?;
        self.serials.insert(normal(&digits));
        Some(())
    }
}

fn hex(serial: &[u8]) -> String {
    let digits = serial.iter().fold(String::new(), |mut digits, byte| {
        // Writing to a string does not fail.
        let _ = write!(digits, "{byte:02x}");
        digits
    });
    normal(&digits)
}

fn normal(digits: &str) -> String {
    digits.trim_start_matches('0').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_and_users_are_found_in_every_form() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("revoked");
        fs::write(&path, "# lost\n\n00:AB:cd\nserial=0F01\nuser: system:node:n1\n").unwrap();
        let list = RevocationList::open(path).unwrap();
        assert!(list.has(&[0xab, 0xcd], "ann") && list.has(&[0, 0x0f, 1], "ann"));
        assert!(list.has(&[1], "system:node:n1"));
        assert!(!list.has(&[1], "system:node:n2") && !list.has(&[0xab], "ann"));
    }

    #[test]
    fn a_file_that_becomes_wrong_takes_nothing_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("revoked");
        let list = RevocationList::open(path.clone()).unwrap();
        assert!(!list.has(&[1], "ann"));
        fs::write(&path, "01\n").unwrap();
        assert!(list.has(&[1], "bob"));
        fs::write(&path, "01 and more\n").unwrap();
        assert!(list.has(&[1], "bob"), "the last good list stays");
        fs::write(&path, "user:ann\n").unwrap();
        assert!(list.has(&[2], "ann") && !list.has(&[1], "bob"));
        for text in ["xyz", "user:", "12 34", ":"] {
            fs::write(&path, text).unwrap();
            assert!(RevocationList::open(path.clone()).is_err(), "{text:?}");
        }
    }
}
