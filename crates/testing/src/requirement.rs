//! What a test needs of the machine.
//!
//! A test that cannot run on a contributor's machine returns early. It must not look as if it had passed: it is reported,
//! on its own output and in the file that `PULSELET_SKIPPED` names, which `scripts/test` prints at the end. Where `CI` is
//! `true` everything has to be there, and a missing thing is a failure.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

/// The file that skipped tests are written to, a line each.
const REPORT: &str = "PULSELET_SKIPPED";

/// Whether what a test needs is there. If not, the test is reported as skipped and has to return.
///
/// # Panics
/// In CI, where nothing may be missing.
#[must_use = "a test that lacks something has to return"]
pub fn requires(what: &str, is_there: bool) -> bool {
    if is_there {
        return true;
    }
    let in_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(
        !in_ci,
        "this test needs {what}, and in CI everything has to be there"
    );
    report(what);
    false
}

/// Whether this process may do what only root may.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a program of that name is in `PATH`, or a file is at that path.
pub fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    Path::new(name).is_absolute() && Path::new(name).exists()
        || std::env::split_paths(&path).any(|directory| directory.join(name).exists())
}

fn report(what: &str) {
    let thread = std::thread::current();
    let line = format!("{}: needs {what}\n", thread.name().unwrap_or("a test"));
    eprint!("skipped {line}");
    let Some(path) = std::env::var_os(REPORT) else {
        return;
    };
    let file = File::options().create(true).append(true).open(path);
    // One write of a short line to a file opened for appending is not mixed with those of other tests.
    if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        eprintln!("cannot report the skipped test: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_reported() {
        assert!(requires("nothing", true));
    }

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        assert!(has_program("sh") && has_program("/bin/sh"));
        assert!(!has_program("pulselet-no-such-program") && !has_program("/bin/pulselet-no-such-program"));
    }
}
