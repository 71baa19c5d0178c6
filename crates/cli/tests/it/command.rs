//! Runs the built command and looks at what comes out; also its smallest commands.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// One run of `pulselet`, reduced to what users and scripts see.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
        Self {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pulselet"));
    command
        .args(args)
        .env_remove("NO_COLOR")
        .current_dir(repository());
    command
}

/// The root of the repository.
pub(crate) fn repository() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../..")
}

/// Waits for its turn to use the machine's usual places in a mount namespace of its own. Cgroups go by the names of places,
/// so there is one test at a time, until the file is closed.
pub(crate) fn usual_places() -> std::fs::File {
    let turn = std::env::temp_dir().join("pulselet-test-pages.lock");
    let turn = std::fs::File::create(turn).expect("a file for the lock");
    turn.lock().expect("the lock can be waited for");
    turn
}

pub(crate) fn pulselet(args: &[&str]) -> Run {
    command(args)
        .stdin(Stdio::null())
        .output()
        .expect("pulselet runs")
        .into()
}

pub(crate) fn pulselet_with_stdin(args: &[&str], stdin: &[u8]) -> Run {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("pulselet starts");
    let mut pipe = child.stdin.take().expect("stdin is piped");
    let bytes = stdin.to_vec();
    // The child may answer before it has read everything.
    let writer = std::thread::spawn(move || pipe.write_all(&bytes));
    let output = child.wait_with_output().expect("pulselet ends");
    writer
        .join()
        .expect("the writer does not panic")
        .expect("pulselet reads its input");
    output.into()
}

#[test]
fn version_in_both_forms() {
    let text = pulselet(&["version"]);
    assert_eq!((text.code, text.stderr.as_str()), (Some(0), ""));
    assert!(text.stdout.starts_with("pulselet "));
    let json = pulselet(&["version", "-o", "json"]);
    let value: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(value["kubernetes"], "v1.36");
}

#[test]
fn completion_scripts_ask_the_program() {
    for shell in ["bash", "zsh", "fish"] {
        let run = pulselet(&["completion", shell]);
        assert_eq!(run.code, Some(0));
        assert!(run.stdout.contains("PULSELET_COMPLETE"), "{shell}");
    }
}

#[test]
fn usage_errors_exit_with_two() {
    for args in [
        &["frobnicate"][..],
        &["check"],
        &["check", "--profile", "x", "f"],
        &["completion", "tcsh"],
    ] {
        let run = pulselet(args);
        assert_eq!(run.code, Some(2), "{args:?}");
        assert_eq!(run.stdout, "");
        assert!(run.stderr.contains("error"), "{args:?}");
    }
}

#[test]
fn an_unknown_gate_lists_the_known_ones() {
    let run = pulselet(&[
        "check",
        "--feature-gates",
        "Nope=true",
        "examples/slow-starter.yaml",
    ]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("SubSecondProbes") && run.stderr.contains("ContainerStopSignals"));
}

/// Loads an image of a shell into a data directory, with a stop signal of its own. False if this machine has nothing to
/// make it of.
pub(crate) fn load_shell_image(data_dir: &Path, name: &str, stop_signal: Option<&str>) -> bool {
    let Some(archive) = pulselet_testing::image_archive::shell_image(name, stop_signal) else {
        return false;
    };
    let data_dir = data_dir.to_str().expect("a plain path");
    let load = pulselet_with_stdin(&["image", "load", "-", "--data-dir", data_dir], &archive);
    assert_eq!(load.code, Some(0), "{load:?}");
    true
}
