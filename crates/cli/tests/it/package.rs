//! `scripts/package`, with the binary of the tests: what it makes, and that the Debian package comes and goes without a trace.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pulselet_testing::{is_root, requires};

use crate::command::repository;

const BINARY: &str = env!("CARGO_BIN_EXE_pulselet");
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn has(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    requires(program, found.unwrap().status.success())
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    output
}

fn make(output: &Path) {
    let script = Path::new(repository()).join("scripts/package");
    let mut command = Command::new(script);
    command.args(["--binary", BINARY]).arg("--output").arg(output);
    // Nobody downloads this one: it need not be small.
    succeed(command.env("PULSELET_PACKAGE_COMPRESSION", "none"));
}

/// The file in a directory whose name ends so.
fn find(directory: &Path, end: &str) -> PathBuf {
    let files = std::fs::read_dir(directory).unwrap().flatten();
    let mut paths = files.map(|file| file.path());
    paths.find(|path| path.to_string_lossy().ends_with(end)).unwrap()
}

/// A root with a shell, what scripts of packages use, and a package manager that knows no package.
fn fresh_root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for path in ["bin", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log"] {
        std::fs::create_dir_all(root.path().join(path)).unwrap();
    }
    for file in ["status", "available"] {
        std::fs::write(root.path().join("var/lib/dpkg").join(file), "").unwrap();
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    std::fs::copy(busybox.unwrap(), root.path().join("bin/busybox")).unwrap();
    for name in ["sh", "cp", "rm", "["] {
        std::os::unix::fs::symlink("busybox", root.path().join("bin").join(name)).unwrap();
    }
    root
}

/// Every path of a root, without what the package manager writes down for itself.
fn listing(root: &Path) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            let own = entry.path().strip_prefix(root).unwrap().to_owned();
            if own.starts_with("var/lib/dpkg") || own.starts_with("var/log") {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            }
            all.insert(own);
        }
    }
    all
}

fn dpkg(root: &Path) -> Command {
    let mut command = Command::new("dpkg");
    command.arg(format!("--root={}", root.display()));
    command.args(["--force-depends", "--force-bad-path"]);
    command
}

#[test]
fn packages_come_and_go_without_a_trace() {
    if ![
        requires("root", is_root()),
        has("dpkg-deb"),
        has("strip"),
        has("busybox"),
    ]
    .into_iter()
    .all(|is| is)
    {
        return;
    }
    let made = tempfile::tempdir().unwrap();
    make(made.path());
    succeed(
        Command::new("sha256sum")
            .args(["--check", "SHA256SUMS"])
            .current_dir(made.path()),
    );
    let deb = find(made.path(), ".deb");
    assert!(
        deb.to_string_lossy().contains(&format!("pulselet_{VERSION}_")),
        "{deb:?}"
    );
    let root = fresh_root();
    let before = listing(root.path());
    succeed(dpkg(root.path()).arg("--install").arg(&deb));
    let there = |path: &str| root.path().join(path);
    for file in [
        "usr/bin/pulselet",
        "etc/pulselet/config.yaml",
        "etc/pulselet/manifests",
        "usr/share/man/man1/pulselet.1.gz",
        "usr/share/man/man1/pulselet-exec.1.gz",
        "usr/share/bash-completion/completions/pulselet",
        "usr/share/zsh/vendor-completions/_pulselet",
        "usr/share/fish/vendor_completions.d/pulselet.fish",
        "usr/share/doc/pulselet/copyright",
    ] {
        assert!(there(file).exists(), "{file}");
    }
    for unit in ["pulselet.service", "pulselet-serve.service"] {
        let text = std::fs::read_to_string(there("lib/systemd/system").join(unit)).unwrap();
        assert!(
            text.contains("ExecStart=/usr/bin/pulselet ") && !text.contains("/usr/local"),
            "{text}"
        );
        assert!(text.contains("--config /etc/pulselet/config.yaml"), "{text}");
    }
    // The settings that come with it are settings.
    let example = Path::new(repository()).join("examples/web.yaml");
    let explain = [
        example.as_path(),
        Path::new("--config"),
        &there("etc/pulselet/config.yaml"),
    ];
    succeed(Command::new(BINARY).arg("explain").args(explain));
    // Pods have left something; removing keeps it, and purging does not.
    std::fs::create_dir_all(there("var/lib/pulselet/pods")).unwrap();
    succeed(dpkg(root.path()).args(["--remove", "pulselet"]));
    assert!(there("var/lib/pulselet/pods").exists() && there("etc/pulselet/config.yaml").exists());
    assert!(!there("usr/bin/pulselet").exists());
    // The binary of the tests needs libraries that this root has not, so a script stands for it: it fails unless it is
    // asked to do what is right.
    let program = there("var/lib/pulselet/reset-program");
    assert!(program.exists());
    let asked = "reset --data-dir /var/lib/pulselet --yes";
    let script = format!("#!/bin/sh\n[ \"$*\" = \"{asked}\" ] && rm -r /var/lib/pulselet/pods\n");
    std::fs::write(program, script).unwrap();
    succeed(dpkg(root.path()).args(["--purge", "pulselet"]));
    let left: Vec<_> = listing(root.path()).difference(&before).cloned().collect();
    assert!(left.is_empty(), "{left:?}");
    the_image_can_be_loaded(made.path());
}

fn the_image_can_be_loaded(made: &Path) {
    let data = tempfile::tempdir().unwrap();
    let image = |args: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("image").args(args).arg("--data-dir").arg(data.path());
        String::from_utf8(succeed(&mut command).stdout).unwrap()
    };
    let archive = find(made, ".tar");
    image(&["load", archive.to_str().unwrap()]);
    let listed = image(&["ls"]);
    assert!(
        listed.contains("pulselet") && listed.contains(VERSION),
        "{listed}"
    );
}
