//! A containerd of a test's own: its root, state, socket and network are in a directory that goes with it.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;

use crate::image_archive::{self, ImageArchive};
use crate::requirement::{has_program, is_root, requires};

/// An image of links into `/usr`, which pods mount from the host, and of the program that holds sandboxes.
pub const IMAGE: &str = "pulselet.test/host:1";
/// How long containerd may take to answer; on an idle machine a tenth of a second.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(20);
/// Where Debian puts CNI plugins, and where everybody else does.
const CNI: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

#[derive(Debug)]
pub struct Containerd {
    directory: TempDir,
    child: Option<Child>,
    bridge: String,
}

/// Whether this machine can run one; if not, the test is reported as skipped.
#[must_use]
pub fn is_usable() -> bool {
    let needs = [
        (has_program("containerd"), "containerd"),
        (has_program("runc"), "runc"),
        (has_program("ip"), "iproute2"),
        (has_program("/bin/busybox"), "busybox-static"),
        (cni().is_some(), "containernetworking-plugins"),
        (is_root(), "root"),
    ];
    let missing: Vec<_> = needs
        .iter()
        .filter(|(is_there, _)| !is_there)
        .map(|(_, name)| *name)
        .collect();
    requires(&missing.join(", "), missing.is_empty())
}

fn cni() -> Option<&'static str> {
    CNI.into_iter()
        .find(|directory| Path::new(directory).join("bridge").exists())
}

impl Containerd {
    /// Starts one that has [`IMAGE`].
    pub fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("pulselet-ctd-").tempdir();
        let mut containerd = Self {
            directory: directory.expect("a directory"),
            child: None,
            bridge: format!("ctd{}", std::process::id()),
        };
        containerd.configure();
        containerd.resume();
        containerd.import(IMAGE, None);
        containerd
    }

    pub fn socket(&self) -> PathBuf {
        self.path("containerd.sock")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn configure(&self) {
        let networks = self.path("net.d");
        fs::create_dir(&networks).expect("a directory");
        let text = format!(
            "version = 2\n\
             root = '{root}'\n\
             state = '{state}'\n\
             [grpc]\n\
             address = '{socket}'\n\
             [plugins.'io.containerd.grpc.v1.cri']\n\
             sandbox_image = '{IMAGE}'\n\
             # Machines of tests may not lower an oom_score_adj.\n\
             restrict_oom_score_adj = true\n\
             netns_mounts_under_state_dir = true\n\
             [plugins.'io.containerd.grpc.v1.cri'.cni]\n\
             bin_dir = '{plugins}'\n\
             conf_dir = '{networks}'\n",
            root = self.path("root").display(),
            state = self.path("state").display(),
            socket = self.socket().display(),
            networks = networks.display(),
            plugins = cni().expect("checked before"),
        );
        fs::write(self.path("config.toml"), text).expect("written");
        // Processes of tests have different ids, and so different networks.
        let number = std::process::id() % (64 * 256);
        let subnet = format!("10.{}.{}.0/24", 192 + number / 256, number % 256);
        let network = json!({"cniVersion": "0.4.0", "name": self.bridge, "plugins": [
            {
                "type": "bridge", "bridge": self.bridge, "isGateway": true,
                "ipam": {"type": "host-local", "dataDir": self.path("ipam"), "ranges": [[{"subnet": subnet}]]},
            },
            {"type": "loopback"},
        ]});
        fs::write(networks.join("10-bridge.conflist"), network.to_string()).expect("written");
    }

    /// Starts the daemon, and waits until it answers.
    pub fn resume(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("log"));
        let log = log.expect("a log");
        let mut command = Command::new("containerd");
        command.arg("--config").arg(self.path("config.toml"));
        // Of its own group, so that a signal to the test does not take the shims with it.
        command.process_group(0);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.expect("containerd starts"));
        let deadline = Instant::now() + PATIENCE;
        while !self
            .ctr(&["plugins", "ls", "-q"])
            .status()
            .is_ok_and(|status| status.success())
        {
            assert!(Instant::now() < deadline, "{}", self.log());
            std::thread::sleep(LOOK);
        }
    }

    /// Kills the daemon, and nothing that it runs.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it is ours");
            child.wait().expect("it has ended");
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// containerd's own client.
    pub fn ctr(&self, args: &[&str]) -> Command {
        let mut command = Command::new("ctr");
        command
            .arg("--address")
            .arg(self.socket())
            .args(["-n", "k8s.io"])
            .args(args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Makes an image of that name, with a stop signal of its own.
    pub fn import(&self, name: &str, stop_signal: Option<&str>) {
        let mut ctr = self.ctr(&["images", "import", "-"]);
        let mut child = ctr.stdin(Stdio::piped()).spawn().expect("ctr starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(&archive(name, stop_signal)).expect("it reads");
        drop(stdin);
        assert!(child.wait().expect("it ends").success(), "{}", self.log());
    }

    /// The first processes of all its containers, those of sandboxes included.
    pub fn first_processes(&self) -> Vec<Pid> {
        let tasks = self.path("state/io.containerd.runtime.v2.task/k8s.io");
        let tasks = fs::read_dir(tasks).into_iter().flatten().flatten();
        tasks
            .filter_map(|task| fs::read_to_string(task.path().join("init.pid")).ok())
            .filter_map(|text| text.trim().parse().ok().and_then(Pid::from_raw))
            .collect()
    }

    /// The daemon and its shims: they name its directory.
    pub fn processes(&self) -> Vec<Pid> {
        let directory = self.directory.path().as_os_str().as_encoded_bytes();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter(|process| {
                let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
                line.windows(directory.len()).any(|window| window == directory)
            })
            .filter_map(|process| process.file_name().to_str()?.parse().ok().and_then(Pid::from_raw))
            .collect()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // A test that failed leaves pods; shims outlive their daemon, and containers their shims.
        self.kill();
        for pid in self.first_processes().into_iter().chain(self.processes()) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let below = |line: &&str| {
            line.split(' ')
                .nth(1)
                .is_some_and(|path| Path::new(path).starts_with(self.directory.path()))
        };
        for mount in mounts.lines().filter(below).collect::<Vec<_>>().into_iter().rev() {
            let path = mount.split(' ').nth(1).unwrap_or_default();
            let _ = unmount(path, UnmountFlags::DETACH);
        }
        let _ = Command::new("ip")
            .args(["link", "delete", &self.bridge])
            .stderr(Stdio::null())
            .status();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// An image of links into the host's `/usr` that runs nothing but busybox by itself.
pub fn archive(name: &str, stop_signal: Option<&str>) -> Vec<u8> {
    let links = ["bin", "sbin", "lib", "lib64"].map(|link| (link.to_owned(), format!("usr/{link}")));
    let archive = ImageArchive {
        name,
        program: "busybox",
        links: links.into(),
        config: json!({
            "Entrypoint": ["/busybox", "tail", "-f", "/dev/null"],
            "Env": ["PATH=/usr/bin:/bin"],
            "StopSignal": stop_signal,
        }),
    };
    archive.pack(&image_archive::busybox().expect("checked before"))
}
