//! What `scripts/package` makes: that the Debian package comes and goes without a trace, also while pods run, and that the
//! image can be loaded.
//!
//! It packs the binary of the tests, which takes seconds. Packages that were built for others are tested where
//! `PULSELET_PACKAGES` names their directory.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pulselet_testing::{is_root, requires};
use serde_json::json;
use tempfile::TempDir;

use crate::command::{repository, usual_places};

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

/// Where the packages are; the directory goes with the second where the test has made them.
fn packages() -> (PathBuf, Option<TempDir>) {
    if let Some(made) = std::env::var_os("PULSELET_PACKAGES") {
        return (Path::new(repository()).join(made), None);
    }
    let output = tempfile::tempdir().unwrap();
    let script = Path::new(repository()).join("scripts/package");
    let mut command = Command::new(script);
    command
        .args(["--binary", BINARY])
        .arg("--output")
        .arg(output.path());
    // Nobody downloads this one: it need not be small.
    succeed(command.env("PULSELET_PACKAGE_COMPRESSION", "none"));
    (output.path().to_owned(), Some(output))
}

/// The file in a directory whose name ends so.
fn find(directory: &Path, end: &str) -> PathBuf {
    let files = std::fs::read_dir(directory).unwrap().flatten();
    let mut paths = files.map(|file| file.path());
    paths.find(|path| path.to_string_lossy().ends_with(end)).unwrap()
}

/// A root with a shell, what scripts of packages use, the libraries of the test's binary, and a package manager that knows
/// no package.
fn fresh_root() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for path in [
        "bin",
        "dev",
        "proc",
        "run",
        "sys",
        "tmp",
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
        "var/log",
    ] {
        std::fs::create_dir_all(root.path().join(path)).unwrap();
    }
    for file in ["dev/null", "var/lib/dpkg/status", "var/lib/dpkg/available"] {
        std::fs::write(root.path().join(file), "").unwrap();
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    std::fs::copy(busybox.unwrap(), root.path().join("bin/busybox")).unwrap();
    for name in ["sh", "cp", "rm", "sleep", "["] {
        std::os::unix::fs::symlink("busybox", root.path().join("bin").join(name)).unwrap();
    }
    let listed = succeed(Command::new("ldd").arg(BINARY));
    let listed = String::from_utf8(listed.stdout).unwrap();
    for library in listed.split_whitespace().filter(|word| word.starts_with('/')) {
        let copy = root.path().join(library.trim_start_matches('/'));
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(library, copy).unwrap();
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
    let (made, _directory) = packages();
    succeed(
        Command::new("sha256sum")
            .args(["--check", "SHA256SUMS"])
            .current_dir(&made),
    );
    let deb = find(&made, ".deb");
    assert!(
        deb.to_string_lossy().contains(&format!("pulselet_{VERSION}_")),
        "{deb:?}"
    );
    let root = fresh_root();
    let before = listing(root.path());
    succeed(dpkg(root.path()).arg("--install").arg(&deb));
    check_installed(root.path());
    // Pods have left something; removing keeps it.
    let there = |path: &str| root.path().join(path);
    std::fs::create_dir_all(there("var/lib/pulselet/pods")).unwrap();
    succeed(dpkg(root.path()).args(["--remove", "pulselet"]));
    assert!(there("var/lib/pulselet/pods").exists() && there("etc/pulselet/config.yaml").exists());
    assert!(!there("usr/bin/pulselet").exists());
    purge_with_running_pods(root.path(), &deb);
    let left: Vec<_> = listing(root.path()).difference(&before).cloned().collect();
    assert!(left.is_empty(), "{left:?}");
    the_image_can_be_loaded(&made);
}

fn check_installed(root: &Path) {
    let there = |path: &str| root.join(path);
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
}

/// A node of the package in the root, without a service manager, and what the package does about its pods. In namespaces of
/// its own the node has the machine's usual places for itself. Each line that begins with `==` tells where the output is.
const PURGE: &str = r#"
set -eu
root=$1 deb=$2 seconds=$3
pulselet() { chroot "$root" /usr/bin/pulselet "$@"; }
package() { dpkg --root="$root" --force-depends --force-bad-path "$@"; }
traces() {
  find /sys/fs/cgroup -maxdepth 2 -name "${cgroup:-none}"
  grep " $root/var" /proc/self/mountinfo || true
  find "$root/run" -mindepth 1
}
clean_up() {
  kill "$agent" && wait "$agent" || true
  chroot "$root" /var/lib/pulselet/reset-program reset --yes || pulselet reset --yes
}
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
ip link set lo up
package --install "$deb"
echo 'hostImage: true' >"$root/etc/pulselet/config.yaml"
cat >"$root/etc/pulselet/manifests/web.yaml" <<END
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: pulselet.local/host, command: [/bin/sleep, "$seconds"]}
END
chroot "$root" /usr/bin/pulselet node --manifests /etc/pulselet/manifests --config /etc/pulselet/config.yaml >/dev/null 2>&1 &
agent=$!
trap clean_up EXIT
until pulselet ps | grep 'Running  yes'; do kill -0 $agent; sleep 0.1; done
cgroup=$(sed 's/.*"cgroup":"\([^"]*\)".*//' "$root/var/lib/pulselet/oci/place.json")
echo "== during"
traces
echo "== refused"
if package --purge pulselet; then exit 1; fi
# Others end meanwhile.
grep -ls "$seconds" /proc/[0-9]*/cmdline || true
echo "== purged"
kill $agent
wait $agent || true
package --purge pulselet
trap - EXIT
echo "== after"
traces
"#;

fn purge_with_running_pods(root: &Path, deb: &Path) {
    let _turn = usual_places();
    // No other process sleeps as long as this one.
    let seconds = format!("3155{}", std::process::id());
    let mut command = Command::new("timeout");
    command.args([
        "--kill-after=30",
        "120",
        "unshare",
        "--mount",
        "--net",
        "bash",
        "-c",
        PURGE,
        "bash",
    ]);
    let output = command.arg(root).arg(deb).arg(&seconds).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}\n{complained}");
    let part = |name: &str| {
        said.split("== ")
            .find_map(|part| part.strip_prefix(name))
            .unwrap()
            .trim()
    };
    assert!(part("during").lines().count() > 1, "{said}");
    assert!(
        complained.contains("stop that agent first") && complained.contains("purge the package again"),
        "{complained}"
    );
    assert!(part("refused").contains("/cmdline"), "pods run on: {said}");
    assert!(part("purged").contains("pod default/web"), "{said}");
    assert_eq!(part("after"), "", "{said}");
    let cmdlines = std::fs::read_dir("/proc").unwrap().flatten();
    let commands = cmdlines.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    let sleeping: Vec<String> = commands
        .filter(|command| command.starts_with("/bin/sleep\0") && command.contains(&seconds))
        .collect();
    assert!(sleeping.is_empty(), "{sleeping:?}");
}

fn the_image_can_be_loaded(made: &Path) {
    let data = tempfile::tempdir().unwrap();
    let ask = |program: &Path, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).arg("--data-dir").arg(data.path());
        String::from_utf8(succeed(&mut command).stdout).unwrap()
    };
    let archive = find(made, ".tar");
    ask(Path::new(BINARY), &["image", "load", archive.to_str().unwrap()]);
    let listed = ask(Path::new(BINARY), &["image", "ls"]);
    assert!(
        listed.contains("pulselet") && listed.contains(VERSION),
        "{listed}"
    );
    // The binary of the tests needs libraries, which the image has not.
    if std::env::var_os("PULSELET_PACKAGES").is_none() {
        return;
    }
    let image = format!("pulselet:{VERSION}");
    let container = json!({"name": "app", "image": image, "imagePullPolicy": "Never", "args": ["version"]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "version"},
        "spec": {"restartPolicy": "Never", "containers": [container]}});
    let file = data.path().join("version.json");
    std::fs::write(&file, pod.to_string()).unwrap();
    let program = find(
        made,
        if cfg!(target_arch = "x86_64") {
            "linux-amd64"
        } else {
            "linux-arm64"
        },
    );
    let said = ask(
        &program,
        &[
            "run",
            file.to_str().unwrap(),
            "--wait",
            "completed",
            "--timeout",
            "30s",
        ],
    );
    assert!(said.contains(VERSION), "{said}");
    ask(&program, &["reset", "--yes"]);
}
