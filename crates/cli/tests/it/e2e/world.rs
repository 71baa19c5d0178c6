//! A place of its own for each test: a data directory, ports, and the pods that are run in it.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeSet;
use std::net::{Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use pulselet_agent::Layout;
use pulselet_agent::control::ControlClient;
use rustix::process::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::harness::{Agent, eventually};
use crate::command::load_shell_image;
use crate::cri::CriProcess;
use pulselet_cgroup::PodCgroups;
use pulselet_testing::containerd::{self, Containerd};
use pulselet_testing::image_archive::busybox;
use pulselet_testing::{is_root, requires};

/// Ports below the kernel's range for outgoing connections, so that nothing else takes one by chance.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A user without rights.
const NOBODY: u32 = 65_534;

/// What containers are in a test. All that differs between runtimes is said here and in [`World::container`]; a further
/// one is a variant and its name in the list of [`e2e`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    Process,
    Oci,
    /// Those of a containerd that each test starts for itself.
    Containerd,
    /// Those of a `pulselet cri` that each test starts for itself, so that our client and our server of CRI prove each other.
    OwnCri,
}

impl Runtime {
    /// Its directory below that of the agent.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Oci => "oci",
            Self::Containerd | Self::OwnCri => "cri",
        }
    }

    /// The demo's program inside a container.
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Self::Process => env!("CARGO_BIN_EXE_pulselet"),
            Self::Oci => "pulselet",
            Self::Containerd | Self::OwnCri => "/program/pulselet",
        }
    }

    /// Whether this machine can run it; if not, the test is reported as skipped.
    pub(crate) fn is_usable(self) -> bool {
        match self {
            Self::Process => true,
            Self::Oci => requires("root", is_root()),
            Self::Containerd => containerd::is_usable(),
            Self::OwnCri => requires("root", is_root()) && busybox().is_some(),
        }
    }
}

/// A test of what pods do: one for every runtime. Where only the agent matters one will do, which is named. The body
/// gets a [`World`].
macro_rules! e2e {
    ($(#[$meta:meta])* $name:ident, $body:expr) => {
        e2e!($(#[$meta])* $name, [Process, Oci, Containerd, OwnCri], $body);
    };
    ($(#[$meta:meta])* $name:ident, [$($runtime:ident),+], $body:expr) => {
        mod $name {
            #[expect(clippy::allow_attributes, reason = "some tests use nothing of their module")]
            #[allow(unused_imports, reason = "some tests use nothing of their module")]
            use super::*;
            $(
                #[test]
                #[expect(non_snake_case, reason = "named after the runtime")]
                fn $runtime() {
                    let runtime = crate::e2e::world::Runtime::$runtime;
                    if runtime.is_usable() {
                        let test: fn(&crate::e2e::world::World) = $body;
                        test(&crate::e2e::world::World::new(runtime));
                    }
                }
            )+
        }
    };
}
pub(crate) use e2e;

pub(crate) struct World {
    pub(crate) directory: TempDir,
    pub(crate) runtime: Runtime,
    containerd: Option<RefCell<Containerd>>,
    own_cri: Option<RefCell<CriProcess>>,
}

impl World {
    pub(crate) fn new(runtime: Runtime) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("pulselet-e2e-")
            .tempdir()
            .expect("a directory");
        let containerd = (runtime == Runtime::Containerd).then(|| RefCell::new(Containerd::start()));
        let own_cri = (runtime == Runtime::OwnCri)
            .then(|| RefCell::new(CriProcess::start(&containerd::archive(containerd::IMAGE, None))));
        Self {
            directory,
            runtime,
            containerd,
            own_cri,
        }
    }

    /// The containerd of a test that has one.
    pub(crate) fn containerd(&self) -> RefMut<'_, Containerd> {
        self.containerd
            .as_ref()
            .expect("a test of containerd")
            .borrow_mut()
    }

    fn own_cri(&self) -> RefMut<'_, CriProcess> {
        self.own_cri
            .as_ref()
            .expect("a test of our own server")
            .borrow_mut()
    }

    /// What `--runtime` is given.
    pub(crate) fn runtime_flag(&self) -> String {
        match self.runtime {
            Runtime::Process | Runtime::Oci => self.runtime.name().to_owned(),
            Runtime::Containerd => format!("unix://{}", self.containerd().socket().display()),
            Runtime::OwnCri => format!("unix://{}", self.own_cri().socket().display()),
        }
    }

    /// Kills the CRI server of a test that has one, and nothing that it runs.
    pub(crate) fn kill_server(&self) {
        match self.runtime {
            Runtime::Process | Runtime::Oci => panic!("there is no server"),
            Runtime::Containerd => self.containerd().kill(),
            Runtime::OwnCri => self.own_cri().kill(),
        }
    }

    /// Starts the server again that was killed.
    pub(crate) fn resume_server(&self) {
        match self.runtime {
            Runtime::Process | Runtime::Oci => panic!("there is no server"),
            Runtime::Containerd => self.containerd().resume(),
            Runtime::OwnCri => self.own_cri().resume(),
        }
    }

    /// The image of containers that name none of their own.
    pub(crate) const fn image(&self) -> &'static str {
        match self.runtime {
            Runtime::Process | Runtime::Oci => "pulselet.local/host",
            Runtime::Containerd | Runtime::OwnCri => containerd::IMAGE,
        }
    }

    /// Gives the runtime an image of a shell. False if this machine has nothing to make it of.
    pub(crate) fn load_image(&self, name: &str, stop_signal: Option<&str>) -> bool {
        match self.runtime {
            Runtime::Process | Runtime::Oci => load_shell_image(&self.data(), name, stop_signal),
            Runtime::Containerd => {
                self.containerd().import(name, stop_signal);
                true
            }
            Runtime::OwnCri => load_shell_image(&self.own_cri().data(), name, stop_signal),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// A container with a demo as its program.
    pub(crate) fn demo(&self, name: &str, flags: &[&str]) -> Value {
        let mut command = vec![self.runtime.program(), "demo"];
        command.extend(flags);
        self.container(name, &command)
    }

    /// A container of the host's own files with a program of its own.
    pub(crate) fn container(&self, name: &str, command: &[&str]) -> Value {
        let mounts = match self.runtime {
            Runtime::Process | Runtime::Oci => json!([]),
            // What makes the image the host's own files.
            Runtime::Containerd | Runtime::OwnCri => json!([
                {"name": "usr", "mountPath": "/usr", "readOnly": true},
                {"name": "program", "mountPath": "/program", "readOnly": true},
            ]),
        };
        json!({"name": name, "image": self.image(), "command": command, "volumeMounts": mounts})
    }

    /// A demo that listens on a port of its own. `fields` of the container are made with a function that makes an
    /// `httpGet` probe of that port.
    pub(crate) fn server(
        &self,
        name: &str,
        flags: &[&str],
        fields: impl FnOnce(&dyn Fn(Value) -> Value) -> Value,
    ) -> Value {
        let port = port();
        let fields = fields(&|fields| http(port, fields));
        with(self.listening(name, port, flags), fields)
    }

    /// A demo that listens on a given port.
    pub(crate) fn listening(&self, name: &str, port: u16, flags: &[&str]) -> Value {
        let port = port.to_string();
        let mut all = vec!["--port", port.as_str()];
        all.extend(flags);
        self.demo(name, &all)
    }

    /// A demo whose pod is ready when it takes signals: before that the first process of a container does not.
    pub(crate) fn ready_demo(&self, name: &str, flags: &[&str]) -> Value {
        let every_second = json!({"periodSeconds": 1});
        self.server(name, flags, |http| json!({"readinessProbe": http(every_second)}))
    }

    /// A demo called `app` that is condemned a second after it takes signals, by a liveness probe with further fields.
    pub(crate) fn condemned(&self, flags: &[&str], fields: Value) -> Value {
        let once = json!({"periodSeconds": 1, "failureThreshold": 1});
        let liveness = http(port(), with(once, fields));
        self.server("app", flags, |http| {
            let patient = http(json!({"periodSeconds": 1, "failureThreshold": 60}));
            json!({"startupProbe": patient, "livenessProbe": liveness})
        })
    }

    /// A directory that a container has at the same place as the host, if it is made with [`Self::sharing`].
    pub(crate) fn shared(&self) -> PathBuf {
        self.path("shared")
    }

    pub(crate) fn sharing(&self, mut container: Value) -> Value {
        let mounts = container["volumeMounts"].as_array_mut().expect("a list");
        mounts.push(json!({"name": "shared", "mountPath": self.shared()}));
        container
    }

    /// A pod's spec with the volumes that containers of this world mount.
    pub(crate) fn with_volumes(&self, spec: &Value) -> Value {
        let program = Path::new(env!("CARGO_BIN_EXE_pulselet")).parent();
        let volumes = json!([
            {"name": "shared", "hostPath": {"path": self.shared(), "type": "DirectoryOrCreate"}},
            {"name": "usr", "hostPath": {"path": "/usr"}},
            {"name": "program", "hostPath": {"path": program}},
        ]);
        with(json!({"volumes": volumes}), spec.clone())
    }

    /// Writes a manifest; its path. Where a test does not care, a pod that takes no notice is killed soon.
    pub(crate) fn manifest(&self, name: &str, spec: &Value) -> PathBuf {
        let spec = with(
            json!({"terminationGracePeriodSeconds": 2}),
            self.with_volumes(spec),
        );
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        let path = self.path(&format!("{name}.json"));
        std::fs::write(&path, pod.to_string()).expect("the manifest is written");
        path
    }

    /// Runs one pod named `web`.
    pub(crate) fn run(&self, spec: &Value) -> Agent {
        self.run_with(spec, &[])
    }

    pub(crate) fn run_with(&self, spec: &Value, flags: &[&str]) -> Agent {
        self.run_files(&[self.manifest("web", spec)], flags)
    }

    pub(crate) fn run_files(&self, files: &[PathBuf], flags: &[&str]) -> Agent {
        let mut command = self.run_command(files);
        command.args(["-o", "json"]).args(flags);
        Agent::start(command)
    }

    /// A run of these manifests, not yet started.
    pub(crate) fn run_command(&self, files: &[PathBuf]) -> Command {
        let mut command = self.command("run");
        command.args(files).args(["--runtime", &self.runtime_flag()]);
        command
    }

    /// The pods of the agent that runs now; none if no agent answers.
    pub(crate) fn pods(&self) -> Option<Vec<Value>> {
        let output = self.command("ps").args(["-o", "json"]).output();
        let output = output.expect("pulselet runs");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let pods = text.lines().map(serde_json::from_str);
        let pods = pods.collect::<Result<_, _>>().expect("lines of JSON");
        output.status.success().then_some(pods)
    }

    /// The status of the container `app` in the only pod.
    pub(crate) fn app_status(&self) -> Value {
        let mut pods = self.pods().expect("the agent answers");
        assert_eq!(pods.len(), 1, "{pods:#?}");
        let statuses = pods.remove(0)["status"]["containerStatuses"].take();
        let Value::Array(statuses) = statuses else {
            panic!("no statuses");
        };
        let app = statuses.into_iter().find(|status| status["name"] == "app");
        app.expect("it is listed")
    }

    /// Reasons and messages of all events of the pods that run now.
    pub(crate) fn events(&self) -> Vec<(String, String)> {
        let client = ControlClient::new(Layout::new(self.data()).socket());
        let executor = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("an executor");
        executor.block_on(async {
            let mut all = Vec::new();
            for pod in client.pods().await.expect("the agent answers") {
                let events = client.events(&pod.uid).await.expect("the agent answers");
                all.extend(events.into_iter().map(|event| (event.reason, event.message)));
            }
            all
        })
    }

    /// Waits until the agent has written such an event down; its message.
    pub(crate) fn event(&self, reason: &str) -> String {
        eventually(reason, || {
            let mut events = self.events().into_iter();
            events.find_map(|(its, message)| (its == reason).then_some(message))
        })
    }

    /// A command that uses this world's directory.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pulselet"));
        command.arg(name).arg("--data-dir").arg(self.data());
        command
    }

    /// A command of somebody who is not root, without a data directory.
    pub(crate) fn command_as_nobody(&self, name: &str) -> Command {
        // The program must be where nobody may go.
        let program = self.path("pulselet");
        if !program.exists() {
            std::fs::copy(env!("CARGO_BIN_EXE_pulselet"), &program).expect("the program is copied");
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(self.directory.path(), open).expect("the directory is opened");
        }
        let mut command = Command::new(program);
        std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
        command.arg(name).current_dir("/").env("HOME", "/nonexistent");
        command
    }

    /// A config file; its path.
    pub(crate) fn config(&self, text: &str) -> String {
        let path = self.path("config.yaml");
        std::fs::write(&path, text).expect("the config is written");
        path.to_str().expect("a path in UTF-8").to_owned()
    }

    /// Everything that a world left running: shims and containers name its directory.
    pub(crate) fn processes(&self) -> BTreeSet<i32> {
        if let Some(containerd) = &self.containerd {
            return containerd
                .borrow()
                .first_processes()
                .into_iter()
                .map(Pid::as_raw_pid)
                .collect();
        }
        if self.own_cri.is_some() {
            let own = self.own_cri();
            let mut left = processes(|line| contains(line, own.directory()));
            left.remove(&own.pid());
            return without_starters(left);
        }
        let path = self.directory.path();
        without_starters(processes(|line| contains(line, path)))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Only after a failure is anything left. A container does not outlive its shim.
        for pid in self.processes() {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        // The server takes away what it has made, and then what the node has made for it is empty.
        drop(self.own_cri.take());
        if let Ok(owner) = std::fs::read_to_string(self.data().join("cri/owner"))
            && let Ok(cgroups) = PodCgroups::open(format!("pulselet-{}", owner.trim_end()).into())
        {
            cgroups.remove_all();
        }
    }
}

/// What shims are copies of is an agent's and goes with it.
fn without_starters(mut pids: BTreeSet<i32>) -> BTreeSet<i32> {
    pids.retain(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim_end() != "pulselet-start"
    });
    pids
}

fn contains(line: &[u8], path: &Path) -> bool {
    let path = path.as_os_str().as_encoded_bytes();
    line.windows(path.len()).any(|window| window == path)
}

/// Processes, except this one, whose command line or environment fits.
pub(crate) fn processes(fits: impl Fn(&[u8]) -> bool) -> BTreeSet<i32> {
    let pids = std::fs::read_dir("/proc")
        .expect("processes are listed")
        .flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let own = i32::try_from(std::process::id()).expect("process ids are small");
    let of = |pid: &i32, file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    pids.filter(|pid| *pid != own && (fits(&of(pid, "cmdline")) || fits(&of(pid, "environ"))))
        .collect()
}

/// A port that nobody uses. Tests are processes of their own, so each begins elsewhere.
pub(crate) fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let range = PORTS.end - PORTS.start;
    let start = u16::try_from(std::process::id() % u32::from(range)).expect("within the range");
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        // A stride that is prime to the range visits all of it, and keeps neighbouring processes apart.
        let offset = (u32::from(start) * 17 + u32::from(step) * 4_999) % u32::from(range);
        let port = PORTS.start + u16::try_from(offset).expect("within the range");
        if TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}

/// `httpGet` on a port, and the given fields.
pub(crate) fn http(port: u16, fields: Value) -> Value {
    probe(json!({"httpGet": {"port": port}}), fields)
}

/// A handler and the given fields.
pub(crate) fn probe(mut handler: Value, fields: Value) -> Value {
    let (Value::Object(probe), Value::Object(fields)) = (&mut handler, fields) else {
        panic!("a probe is an object");
    };
    probe.extend(fields);
    handler
}

/// A container with further fields.
pub(crate) fn with(mut container: Value, fields: Value) -> Value {
    let (Value::Object(all), Value::Object(fields)) = (&mut container, fields) else {
        panic!("a container is an object");
    };
    all.extend(fields);
    container
}

/// A running node on the directory `manifests`. Dropping it kills it, without a chance to do anything.
pub(crate) struct Node(Child);

impl Node {
    pub(crate) fn start(world: &World) -> Self {
        Self::start_program(world, Path::new(env!("CARGO_BIN_EXE_pulselet")))
    }

    /// With this binary.
    pub(crate) fn start_program(world: &World, program: &Path) -> Self {
        let mut command = Command::new(program);
        command.arg("node").arg("--data-dir").arg(world.data());
        command.arg("--manifests").arg(world.path("manifests"));
        command.args(["--config", &world.config("hostImage: true\n")]);
        command.args(["--runtime", &world.runtime_flag(), "--metrics", "127.0.0.1:0"]);
        Self(command.stderr(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
