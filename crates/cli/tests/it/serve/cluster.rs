//! Running servers and nodes, and kubectl to talk to them. Pods are plain processes unless a test asks for containers, built
//! in or of a CRI server of ours; none outlives its test.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cri::CriProcess;
use pulselet_testing::containerd;
use pulselet_testing::image_archive::busybox;

/// How long something may take to come; nothing waited for takes a tenth of it on an idle machine.
const PATIENCE: Duration = Duration::from_mins(2);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A node's settings with which it looks at no disk.
pub(crate) const NO_EVICTION: &str = "evictionHard: {memory.available: 1Mi}\n";
const NODE: &str = "node-under-test";

/// The parts that run.
#[derive(Clone, Debug)]
enum Parts {
    /// `serve` with these flags.
    One(Vec<String>),
    /// `api` and `node`, each with its flags.
    Two { api: Vec<String>, node: Vec<String> },
    /// `api`, and `node` with nothing but a bootstrap kubeconfig.
    Bootstrapped,
    /// The same, with a token in it.
    BootstrappedByToken,
}

pub(crate) struct Cluster {
    directory: TempDir,
    parts: Parts,
    /// What `--runtime` is given.
    runtime: String,
    /// The server whose containers the pods are, if it is by way of CRI. It goes after all else.
    own_cri: Option<CriProcess>,
    children: Vec<Child>,
    kubeconfig: PathBuf,
    /// Where an API of its own listens, also after a restart.
    address: SocketAddr,
}

/// An address of this machine where nobody listens.
fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address")
}

fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

/// Whether there is a kubectl; without one there is nothing to test.
fn has_kubectl() -> bool {
    let found = Command::new(kubectl_program()).arg("help").output().is_ok();
    pulselet_testing::requires("kubectl", found)
}

pub(crate) fn kubectl_program() -> std::ffi::OsString {
    std::env::var_os("PULSELET_KUBECTL").unwrap_or_else(|| "kubectl".into())
}

impl Cluster {
    /// `serve` with further flags. None if there is no kubectl.
    pub(crate) fn serve(flags: &[&str]) -> Option<Self> {
        Self::new(Parts::One(owned(flags)))
    }

    /// `api` and `node` as two processes, with further flags for each.
    pub(crate) fn apart(api: &[&str], node: &[&str]) -> Option<Self> {
        Self::new(Parts::Two {
            api: owned(api),
            node: owned(node),
        })
    }

    /// The same with a token in a Secret, as kubeadm makes them.
    pub(crate) fn bootstrapped_by_token() -> Option<Self> {
        Self::new(Parts::BootstrappedByToken)
    }

    /// `api`, and `node`, which asks for its certificates.
    pub(crate) fn bootstrapped() -> Option<Self> {
        Self::new(Parts::Bootstrapped)
    }

    /// `serve` by way of CRI: with containers of a `pulselet cri` of its own.
    pub(crate) fn serve_by_cri() -> Option<Self> {
        Self::new_by_cri(Parts::One(Vec::new()))
    }

    /// The same with `api` and `node` as two processes.
    pub(crate) fn apart_by_cri() -> Option<Self> {
        Self::new_by_cri(Parts::Two {
            api: Vec::new(),
            node: Vec::new(),
        })
    }

    fn new_by_cri(parts: Parts) -> Option<Self> {
        if !pulselet_testing::requires("root", pulselet_testing::is_root()) {
            return None;
        }
        busybox()?;
        let mut cluster = Self::prepare(parts, "none")?;
        let server = CriProcess::start(&containerd::archive(containerd::IMAGE, None));
        cluster.runtime = format!("unix://{}", server.socket().display());
        cluster.own_cri = Some(server);
        cluster.start();
        Some(cluster)
    }

    /// `serve` with built-in containers, and an image to run them from.
    pub(crate) fn serve_containers(archive: &[u8]) -> Option<Self> {
        if !pulselet_testing::requires("root", pulselet_testing::is_root()) {
            return None;
        }
        let mut cluster = Self::prepare(Parts::One(Vec::new()), "oci")?;
        let path = cluster.path("image.tar");
        std::fs::write(&path, archive).expect("writes");
        let loaded = Command::new(env!("CARGO_BIN_EXE_pulselet"))
            .args(["image", "load"])
            .arg(&path)
            .arg("--data-dir")
            .arg(cluster.data())
            .output()
            .expect("pulselet runs");
        assert!(loaded.status.success(), "{loaded:?}");
        cluster.start();
        Some(cluster)
    }

    fn new(parts: Parts) -> Option<Self> {
        let mut cluster = Self::prepare(parts, "process")?;
        cluster.start();
        Some(cluster)
    }

    fn prepare(parts: Parts, runtime: &str) -> Option<Self> {
        if !has_kubectl() {
            return None;
        }
        let directory = TempDir::new().expect("a directory");
        std::fs::create_dir(directory.path().join("manifests")).expect("a directory");
        Some(Self {
            kubeconfig: directory.path().join("none"),
            directory,
            parts,
            runtime: runtime.to_owned(),
            own_cri: None,
            children: Vec::new(),
            address: free_address(),
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The administrator's.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Where the agent keeps its data.
    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pulselet"));
        command
            .arg(name)
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    pub(crate) fn start(&mut self) {
        match self.parts.clone() {
            Parts::One(flags) => {
                let mut serve = self.command("serve");
                serve.args(["--listen", "127.0.0.1:0"]).args(flags);
                self.with_node_flags(&mut serve);
                self.spawn_server(serve);
            }
            Parts::Two { api, node } => {
                self.start_api(&api);
                self.start_node(&node);
            }
            Parts::Bootstrapped => {
                self.start_api(&[]);
                self.write_bootstrap_kubeconfig();
                self.start_bootstrapped_node();
            }
            Parts::BootstrappedByToken => {
                self.start_api(&[]);
                self.write_token_kubeconfig();
                self.start_bootstrapped_node();
            }
        }
    }

    /// A node evicts pods from a machine whose disk is nearly full, as a kubelet does: that is not what tests of others see.
    fn with_node_flags(&self, command: &mut Command) {
        if !command.get_args().any(|argument| argument == "--config") {
            let config = self.path("settings.yaml");
            std::fs::write(&config, NO_EVICTION).expect("a configuration");
            command.arg("--config").arg(config);
        }
        command
            .args([
                "--runtime",
                &self.runtime,
                "--node-name",
                NODE,
                "--node-listen",
                "127.0.0.1:0",
            ])
            .args(["--metrics", "127.0.0.1:0", "--data-dir"])
            .arg(self.data());
    }

    fn start_api(&mut self, flags: &[String]) {
        let mut api = self.command("api");
        api.args(["--bind-pods", "--listen", &self.address.to_string(), "--data-dir"])
            .arg(self.path("api"))
            .args(flags);
        self.spawn_server(api);
    }

    fn start_node(&mut self, flags: &[String]) {
        let issued = Command::new(env!("CARGO_BIN_EXE_pulselet"))
            .args(["api", "kubeconfig", "--node", NODE, "--data-dir"])
            .arg(self.path("api"))
            .output()
            .expect("pulselet runs");
        assert!(issued.status.success(), "{issued:?}");
        std::fs::write(self.path("node.kubeconfig"), issued.stdout).expect("a kubeconfig");
        let mut node = self.command("node");
        node.arg("--kubeconfig").arg(self.path("node.kubeconfig"));
        node.arg("--manifests").arg(self.path("manifests")).args(flags);
        self.with_node_flags(&mut node);
        self.children
            .push(node.stdout(Stdio::null()).spawn().expect("pulselet starts"));
    }

    fn write_bootstrap_kubeconfig(&self) {
        let printed = Command::new(env!("CARGO_BIN_EXE_pulselet"))
            .args(["api", "bootstrap-kubeconfig", "--data-dir"])
            .arg(self.path("api"))
            .output()
            .expect("pulselet runs");
        assert!(printed.status.success(), "{printed:?}");
        std::fs::write(self.path("bootstrap.kubeconfig"), printed.stdout).expect("a kubeconfig");
    }

    /// A kubeconfig with a token, and the Secret of the token.
    fn write_token_kubeconfig(&self) {
        self.kubectl(&[
            "create",
            "secret",
            "generic",
            "bootstrap-token-abcdef",
            "--namespace=kube-system",
            "--type=bootstrap.kubernetes.io/token",
            "--from-literal=token-id=abcdef",
            "--from-literal=token-secret=0123456789abcdef",
            "--from-literal=usage-bootstrap-authentication=true",
        ]);
        let admin = std::fs::read_to_string(&self.kubeconfig).expect("the administrator's kubeconfig");
        // Everything but who comes.
        let mut lines: Vec<&str> = admin
            .lines()
            .filter(|line| !line.trim_start().starts_with("client-"))
            .collect();
        lines.push("    token: abcdef.0123456789abcdef\n");
        let text = lines.join("\n");
        std::fs::write(self.path("bootstrap.kubeconfig"), text).expect("a kubeconfig");
    }

    fn start_bootstrapped_node(&mut self) {
        let mut node = self.command("node");
        node.arg("--bootstrap-kubeconfig")
            .arg(self.path("bootstrap.kubeconfig"));
        self.with_node_flags(&mut node);
        self.children
            .push(node.stdout(Stdio::null()).spawn().expect("pulselet starts"));
    }

    fn spawn_server(&mut self, mut command: Command) {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("pulselet starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("the first line");
        self.children.push(child);
        let (_, kubeconfig) = line
            .trim()
            .split_once(", kubeconfig: ")
            .expect("the line says where it is");
        self.kubeconfig = PathBuf::from(kubeconfig);
    }

    /// Kills every part.
    pub(crate) fn kill(&mut self) {
        for mut child in self.children.drain(..) {
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
        }
    }

    /// Kills the API alone; the node stays.
    pub(crate) fn kill_api(&mut self) {
        let mut api = self.children.remove(0);
        api.kill().expect("it can be killed");
        api.wait().expect("it ends");
    }

    /// Brings back the API that was killed.
    pub(crate) fn revive_api(&mut self) {
        if let Parts::Two { api, .. } = self.parts.clone() {
            self.start_api(&api);
        }
    }

    /// Asks every part to end, which must succeed.
    pub(crate) fn terminate(&mut self) {
        for mut child in self.children.drain(..) {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            kill_process(pid.expect("it runs"), Signal::TERM).expect("it can be signalled");
            assert_eq!(child.wait().expect("it ends").code(), Some(0));
        }
    }

    /// Restarts everything with other flags for the API.
    pub(crate) fn restart_with_api(&mut self, flags: &[&str]) {
        self.kill();
        if let Parts::Two { api, .. } = &mut self.parts {
            *api = owned(flags);
        }
        self.start();
    }

    /// Restarts an API and a node with other flags for both.
    pub(crate) fn restart_with(&mut self, api: &[&str], node: &[&str]) {
        self.kill();
        self.parts = Parts::Two {
            api: owned(api),
            node: owned(node),
        };
        self.start();
    }

    /// A client of the API.
    pub(crate) fn command_of(&self, program: &std::ffi::OsStr) -> Command {
        let mut command = Command::new(program);
        command
            .env("HOME", self.directory.path())
            .env("KUBECONFIG", &self.kubeconfig);
        command
    }

    pub(crate) fn try_kubectl(&self, args: &[&str], input: &str) -> Result<String, String> {
        let mut child = self
            .command_of(&kubectl_program())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        if let Some(mut stdin) = child.stdin.take() {
            // A kubectl that does not read its input closes it.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().expect("kubectl ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// The output of a kubectl that must succeed.
    #[track_caller]
    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args, "")
            .unwrap_or_else(|error| panic!("kubectl {args:?}: {error}"))
    }

    #[track_caller]
    pub(crate) fn apply(&self, object: &Value) {
        let mut object = object.clone();
        object["apiVersion"] = json!("v1");
        object["kind"] = json!("Pod");
        if self.own_cri.is_some() {
            self.give_files(&mut object["spec"]);
        }
        self.try_kubectl(&["apply", "-f", "-"], &object.to_string())
            .unwrap_or_else(|error| panic!("kubectl apply: {error}"));
    }

    /// Shows containers what plain processes see: the host's programs, and this cluster's directory.
    fn give_files(&self, spec: &mut Value) {
        let directory = self.directory.path();
        spec["volumes"] = json!([
            {"name": "usr", "hostPath": {"path": "/usr"}},
            {"name": "directory", "hostPath": {"path": directory}},
        ]);
        for container in spec["containers"].as_array_mut().expect("a list") {
            container["image"] = json!(containerd::IMAGE);
            container["imagePullPolicy"] = json!("Never");
            container["volumeMounts"] = json!([
                {"name": "usr", "mountPath": "/usr", "readOnly": true},
                {"name": "directory", "mountPath": directory},
            ]);
        }
    }

    /// What is said about a pod that the API does not take.
    pub(crate) fn refused(&self, object: &Value) -> String {
        let mut object = object.clone();
        object["apiVersion"] = json!("v1");
        object["kind"] = json!("Pod");
        self.try_kubectl(&["apply", "-f", "-"], &object.to_string())
            .expect_err("it is refused")
    }

    pub(crate) fn get_pod(&self, name: &str) -> Value {
        let text = self.kubectl(&["get", "pod", name, "-o", "json"]);
        serde_json::from_str(&text).expect("JSON")
    }

    /// Waits until something is there.
    pub(crate) fn until<T>(&self, what: &str, look: impl Fn() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look() {
                return found;
            }
            let state = || self.try_kubectl(&["get", "pods,nodes,events", "-A", "-o", "wide"], "");
            assert!(
                Instant::now() < deadline,
                "no {what} in time:\n{}",
                state().unwrap_or_else(|error| error)
            );
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until a pod fits, and returns it.
    pub(crate) fn until_pod(&self, name: &str, fits: impl Fn(&Value) -> bool) -> Value {
        self.until(&format!("{name} as wanted"), || {
            let text = self.try_kubectl(&["get", "pod", name, "-o", "json"], "").ok()?;
            serde_json::from_str(&text).ok().filter(&fits)
        })
    }

    pub(crate) fn until_ready(&self, name: &str) -> Value {
        self.until_pod(name, |pod| pod["status"]["containerStatuses"][0]["ready"] == true)
    }

    /// The name of the node, once it is ready.
    pub(crate) fn until_node_ready(&self) -> String {
        self.until("ready node", || {
            let text = self.try_kubectl(&["get", "nodes"], "").ok()?;
            text.contains(" Ready ").then(|| NODE.to_owned())
        })
    }

    fn ask_agent(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pulselet"));
        command.args(args).arg("--data-dir").arg(self.data());
        command.output().expect("pulselet runs")
    }

    /// The output of a command that asks the local agent.
    pub(crate) fn pulselet(&self, args: &[&str]) -> String {
        let output = self.ask_agent(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The complaint of a command that the local agent refuses.
    pub(crate) fn pulselet_refused(&self, args: &[&str]) -> String {
        let output = self.ask_agent(args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Drop for Cluster {
    /// Without its API a node gives up its pods.
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let nothing = self.path("nothing");
        let _ = std::fs::create_dir(&nothing);
        let mut node = self.command("node");
        node.arg("--manifests").arg(&nothing).stdout(Stdio::null());
        node.args([
            "--runtime",
            &self.runtime,
            "--metrics",
            "127.0.0.1:0",
            "--data-dir",
        ])
        .arg(self.data());
        let Ok(mut node) = node.spawn() else { return };
        let deadline = Instant::now() + PATIENCE;
        while !stop_all(&self.data()) && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        let _ = node.kill();
        let _ = node.wait();
    }
}

fn stop_all(data: &Path) -> bool {
    Command::new(env!("CARGO_BIN_EXE_pulselet"))
        .args(["stop", "--all", "--grace-period", "0", "--data-dir"])
        .arg(data)
        .output()
        .is_ok_and(|output| output.status.success())
}

/// The fields of a container that runs a script.
pub(crate) fn shell(script: &str) -> Value {
    json!({"command": ["sh", "-c", script]})
}

/// A pod with one container, which sleeps unless its fields say otherwise.
pub(crate) fn pod(name: &str, container: &Value) -> Value {
    let mut app = json!({"name": "app", "image": "none", "command": ["sleep", "1000000"]});
    let fields = container.as_object().expect("fields of a container");
    app.as_object_mut().expect("an object").extend(fields.clone());
    json!({
        "metadata": {"name": name},
        "spec": {"containers": [app], "terminationGracePeriodSeconds": 2},
    })
}
