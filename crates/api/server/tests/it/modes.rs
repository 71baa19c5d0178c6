//! The server's files are its owner's alone.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::TempDir;

use crate::harness::TestServer;

fn mode(path: &Path) -> u32 {
    let metadata = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    metadata.permissions().mode() & 0o777
}

/// Every file below a directory, and its mode.
fn modes(directory: &Path) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(modes(&path));
        } else {
            found.push((path.display().to_string(), mode(&path)));
        }
    }
    found
}

#[track_caller]
fn assert_private(directory: &Path) {
    assert_eq!(mode(directory), 0o700);
    assert_eq!(mode(&directory.join("pki")), 0o700);
    let files = modes(directory);
    assert!(files.len() > 5, "{files:?}");
    for (path, mode) in files {
        assert_eq!(mode, 0o600, "{path} has mode {mode:o}");
    }
}

#[test]
fn the_files_of_a_server_are_private_also_those_that_were_not() {
    let directory = TempDir::new().expect("a directory");
    let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
    set(directory.path(), 0o755);
    let server = TestServer::start_in(directory, |_| {});
    assert_private(server.path());
    let directory = server.stop();
    for (path, _) in modes(directory.path()) {
        set(Path::new(&path), 0o644);
    }
    set(&directory.path().join("pki"), 0o755);
    set(directory.path(), 0o777);
    // What others keep here stays as it is.
    let other = directory.path().join("other");
    fs::write(&other, "").expect("a file");
    set(&other, 0o644);
    let server = TestServer::start_in(directory, |_| {});
    assert_eq!(mode(&server.path().join("other")), 0o644);
    fs::remove_file(server.path().join("other")).expect("the file is there");
    assert_private(server.path());
}
