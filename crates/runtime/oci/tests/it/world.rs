//! A runtime on a directory and a bridge of its own, and a way to see whether it left anything behind.

use std::{
    collections::BTreeSet,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
};

use pulselet_image::ImageStore;
use pulselet_runtime::{
    ContainerConfig, ContainerExit, ContainerFilter, ContainerId, ContainerStatus, ExecOutcome, Mount,
    Namespaces, PodIdentity, Propagation, Runtime, SandboxConfig, SandboxId,
};
use pulselet_runtime_oci::{
    CniOptions, HOST_IMAGE, NetworkOptions, OciOptions, OciRuntime, ShimCommand, Subnet,
};
use pulselet_testing::containers;
use tempfile::TempDir;

pub(crate) use pulselet_testing::containers::{FOREVER, eventually, init_pid, is_alive, parent_of, shell};

/// Where scripts leave what the test wants to know.
const SHARED: &str = "/shared";

/// Below a world's directory: network configurations. With it plugins make the networks.
pub(crate) const CNI: &str = "cni";

/// Below a world's directory: a file with which the range has thirteen addresses for pods, so that they are soon used
/// again.
pub(crate) const FEW_ADDRESSES: &str = "few-addresses";

pub(crate) struct World {
    pub(crate) runtime: OciRuntime,
    pub(crate) sandbox: SandboxId,
    pub(crate) home: Home,
}

/// What is there while no agent is.
pub(crate) struct Agentless {
    sandbox: SandboxId,
    home: Home,
}

impl Agentless {
    pub(crate) fn path(&self) -> &Path {
        self.home.path()
    }

    pub(crate) async fn come_back(self) -> World {
        World {
            runtime: open(self.home.path()).await,
            sandbox: self.sandbox,
            home: self.home,
        }
    }
}

/// The directory of a world. After a failed test what is left should not trouble the next one.
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for trace in traces(self.path()) {
            let words: Vec<&str> = trace.split(' ').collect();
            let command: &[&str] = match words[0] {
                "process" => &["kill", "-9", words[1].trim_start_matches("/proc/")],
                "mount" => &["umount", "-l", words[5]],
                "link" => &[
                    "ip",
                    "link",
                    "delete",
                    words[1].trim_start_matches("/sys/class/net/"),
                ],
                _ => continue,
            };
            let _ = Command::new(command[0]).args(&command[1..]).output();
        }
        let table = format!("pulselet_{}", network_for(self.path()).bridge);
        for table in [format!("{table}_services"), table] {
            let _ = Command::new("nft")
                .args(["delete", "table", "ip", &table])
                .output();
        }
    }
}

/// Whether tests that need root can run.
pub(crate) fn can_run() -> bool {
    pulselet_testing::requires("root", pulselet_testing::is_root())
}

/// A sandbox on the host's network: all that most tests need.
pub(crate) fn on_host_network() -> SandboxConfig {
    SandboxConfig {
        namespaces: Namespaces {
            host_network: true,
            ..Namespaces::default()
        },
        ..SandboxConfig::default()
    }
}

/// A sandbox with a network of its own.
pub(crate) fn on_bridge() -> SandboxConfig {
    SandboxConfig {
        hostname: "pod".into(),
        ..SandboxConfig::default()
    }
}

pub(crate) fn identity(name: &str) -> PodIdentity {
    PodIdentity {
        uid: format!("uid-{name}"),
        namespace: "default".into(),
        name: name.into(),
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(on_host_network()).await
    }

    pub(crate) async fn with(config: SandboxConfig) -> Self {
        let mut world = Self::without_sandbox().await;
        world.sandbox = world.add_sandbox("pod", config).await;
        world
    }

    pub(crate) async fn without_sandbox() -> Self {
        Self::prepared(|_| ()).await
    }

    /// In a directory in which something is there before the first agent.
    pub(crate) async fn prepared(prepare: impl FnOnce(&Path)) -> Self {
        let home = Home(tempfile::tempdir().expect("a directory"));
        fs::create_dir(home.path().join("shared")).expect("makes");
        prepare(home.path());
        Agentless {
            sandbox: SandboxId::new("none"),
            home,
        }
        .come_back()
        .await
    }

    pub(crate) async fn add_sandbox(&self, name: &str, config: SandboxConfig) -> SandboxId {
        let config = SandboxConfig {
            pod: identity(name),
            log_directory: self.home.path().join("logs"),
            ..config
        };
        self.runtime.run_sandbox(&config).await.expect("the sandbox runs")
    }

    /// As if the agent had died.
    pub(crate) fn leave(self) -> Agentless {
        Agentless {
            sandbox: self.sandbox,
            home: self.home,
        }
    }

    /// As if the agent had died and come back at once.
    pub(crate) async fn reopen(self) -> Self {
        self.leave().come_back().await
    }

    pub(crate) fn container_dir(&self, id: &ContainerId) -> PathBuf {
        self.home.path().join("root/containers").join(id.as_str())
    }

    pub(crate) fn shared(&self, name: &str) -> PathBuf {
        self.home.path().join("shared").join(name)
    }

    pub(crate) fn config(&self, name: &str, script: &str) -> ContainerConfig {
        shell_container(self.home.path(), name, script)
    }

    /// Runs a shell script as a container of the built-in image.
    pub(crate) async fn run(&self, script: &str) -> ContainerId {
        self.run_config(&self.config("main", script)).await
    }

    pub(crate) async fn run_config(&self, config: &ContainerConfig) -> ContainerId {
        self.run_in(&self.sandbox, config).await
    }

    pub(crate) async fn run_in(&self, sandbox: &SandboxId, config: &ContainerConfig) -> ContainerId {
        let id = self
            .runtime
            .create_container(sandbox, config)
            .await
            .expect("the container is created");
        self.runtime
            .start_container(&id)
            .await
            .expect("the container starts");
        id
    }

    /// Runs a script to its end and returns what it printed.
    pub(crate) async fn output_of(&self, config: &ContainerConfig) -> String {
        let id = self.run_config(config).await;
        self.wait_for_exit(&id).await;
        let log = fs::read_to_string(&config.log_path).expect("has a log");
        let text = |line: &str| line.splitn(4, ' ').nth(3).map(str::to_owned);
        log.lines().filter_map(text).collect::<Vec<_>>().join("\n")
    }

    pub(crate) async fn status(&self, id: &ContainerId) -> ContainerStatus {
        containers::status(&self.runtime, id).await
    }

    pub(crate) async fn wait_for_exit(&self, id: &ContainerId) -> ContainerExit {
        containers::exit_of(&self.runtime, id).await
    }

    /// The text of a file that a script writes below /shared, once it is there with its newline.
    pub(crate) async fn file(&self, name: &str) -> String {
        containers::text_of(&self.shared(name)).await
    }

    pub(crate) async fn exec(&self, id: &ContainerId, script: &str) -> (ExecOutcome, String) {
        containers::exec(&self.runtime, id, script).await
    }

    pub(crate) fn traces(&self) -> BTreeSet<String> {
        traces(self.home.path())
    }

    /// Removes everything and makes sure that nothing is left.
    pub(crate) async fn finish(self) {
        for sandbox in self.runtime.list_sandboxes().await.expect("lists") {
            self.runtime
                .remove_sandbox(&sandbox.id)
                .await
                .expect("the sandbox is removed");
        }
        let containers = self.runtime.list_containers(&ContainerFilter::default()).await;
        assert_eq!(containers.expect("lists"), []);
        eventually("no shim is left", async || {
            self.traces()
                .iter()
                .all(|trace| !trace.starts_with("process"))
                .then_some(())
        })
        .await;
        assert_eq!(self.traces(), BTreeSet::new());
        for kind in ["containers", "sandboxes"] {
            let remains = fs::read_dir(self.home.path().join("root").join(kind)).expect("lists");
            assert_eq!(remains.count(), 0, "directories of {kind} are left");
        }
    }
}

/// What the kernel has because of a world: processes, mounts, cgroups, links, rules.
pub(crate) fn traces(home: &Path) -> BTreeSet<String> {
    let path = home.display().to_string();
    let bridge = network_for(home).bridge;
    let mut traces = BTreeSet::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("reads");
    traces.extend(
        mounts
            .lines()
            .filter(|line| line.contains(&path))
            .map(|line| format!("mount {line}")),
    );
    let tag = format!("pulselet-{:016x}", tag(&home.join("root")));
    for directory in directories(Path::new("/sys/fs/cgroup")) {
        if directory.join(&tag).exists() {
            traces.insert(format!("cgroup {}", directory.join(&tag).display()));
        }
    }
    for link in directories(Path::new("/sys/class/net")) {
        if link.ends_with(&bridge)
            || link
                .join("master")
                .canonicalize()
                .is_ok_and(|m| m.ends_with(&bridge))
        {
            traces.insert(format!("link {}", link.display()));
        }
    }
    for process in directories(Path::new("/proc")) {
        let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
        let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let groups = String::from_utf8_lossy(&read("cgroup")).into_owned();
        if (command.contains(&path) && command.contains("shim")) || groups.contains(&tag) {
            traces.insert(format!("process {} {command}", process.display()));
        }
    }
    traces
}

/// A bridge and a range that no other test has: both are made from the directory's random name.
pub(crate) fn network_for(home: &Path) -> NetworkOptions {
    let mut hasher = DefaultHasher::new();
    home.hash(&mut hasher);
    let number = hasher.finish();
    let prefix = if home.join(FEW_ADDRESSES).exists() { 28 } else { 24 };
    let subnet = format!("10.{}.{}.0/{prefix}", 128 + (number & 0x7f), (number >> 8) & 0xff);
    NetworkOptions {
        bridge: format!("pltt{:08x}", number >> 32),
        subnet: Some(subnet.parse::<Subnet>().expect("a range")),
        cni: Some(home.join(CNI))
            .filter(|dir| dir.is_dir())
            .map(CniOptions::new),
    }
}

/// As the runtime names its cgroups.
fn tag(root: &Path) -> u64 {
    let bytes = root.as_os_str().as_encoded_bytes();
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn directories(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .chain([parent.to_owned()])
        .collect()
}

/// The images of a world.
pub(crate) fn images(home: &Path) -> ImageStore {
    ImageStore::open(home.join("images")).expect("the store opens")
}

/// A container of the built-in image that runs a shell script.
pub(crate) fn shell_container(home: &Path, name: &str, script: &str) -> ContainerConfig {
    ContainerConfig {
        pod: identity("pod"),
        name: name.into(),
        image: HOST_IMAGE.into(),
        command: vec!["sh".into(), "-c".into(), script.into()],
        mounts: vec![Mount {
            volume: "shared".into(),
            container_path: SHARED.into(),
            host_path: home.join("shared"),
            image: None,
            sub_path: None,
            read_only: false,
            recursive_read_only: false,
            propagation: Propagation::Private,
        }],
        log_path: home.join(format!("logs/{name}/0.log")),
        ..Default::default()
    }
}

pub(crate) fn options(home: &Path) -> OciOptions {
    let shim = ShimCommand {
        program: env!("CARGO_BIN_EXE_pulselet-oci-shim").into(),
        args: Vec::new(),
    };
    OciOptions {
        root: home.join("root"),
        data_dir: home.to_owned(),
        program: shim.program.clone(),
        shim,
        images: images(home),
        host_image: true,
        network: network_for(home),
    }
}

pub(crate) async fn open(home: &Path) -> OciRuntime {
    OciRuntime::open(options(home)).await.expect("the runtime opens")
}

pub(crate) async fn address_of(world: &World, sandbox: &SandboxId) -> IpAddr {
    let status = world.runtime.sandbox_status(sandbox).await.expect("is there");
    status.addresses[0]
}
