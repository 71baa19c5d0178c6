//! `pulselet cri` with real containers, driven by our own client of CRI: client and server prove each other.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pulselet_cri_client::{CriOptions, CriRuntime};
use pulselet_runtime::{
    ContainerConfig, ContainerFilter, ContainerId, ContainerState, ExecOptions, ExecOutcome, ExecRequest,
    PidNamespace, PodIdentity, Resources, Runtime, RuntimeCondition, SandboxConfig, SandboxId, SandboxState,
};
use pulselet_testing::image_archive::{ImageArchive, busybox};
use pulselet_testing::{is_root, requires};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const IMAGE: &str = "pulselet.test/shell:1";
/// How long anything may take to happen; nothing takes a tenth of it on an idle machine.
const PATIENCE: Duration = Duration::from_mins(1);
/// Longer than any test; a container that is told to stop leaves before.
const GRACE: Duration = Duration::from_mins(10);
/// Leaves with the number of the signal that it hears.
const TRAPS: &str =
    "for n in 2 10 12 15; do trap \"exit $n\" $n; done; echo up; while :; do sleep 0.05; done";

/// A `pulselet cri` of a test's own, in a directory that goes with it.
pub(crate) struct CriProcess {
    directory: tempfile::TempDir,
    flags: Vec<String>,
    server: Option<Child>,
}

impl CriProcess {
    /// Starts one that has an image, and waits until it listens.
    pub(crate) fn start(archive: &[u8]) -> Self {
        let mut process = Self::prepare(&[]);
        process.load(archive);
        process.resume();
        process
    }

    /// The same without images, and with further flags.
    pub(crate) fn start_with(flags: &[&str]) -> Self {
        let mut process = Self::prepare(flags);
        process.resume();
        process
    }

    fn prepare(flags: &[&str]) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("pulselet-cri-")
            .tempdir()
            .unwrap();
        Self {
            directory,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            server: None,
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Where the server keeps its data.
    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("cri.sock")
    }

    /// The server's process; zero if it was killed.
    pub(crate) fn pid(&self) -> i32 {
        let id = self.server.as_ref().map_or(0, Child::id);
        i32::try_from(id).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, verb: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pulselet"));
        command.args(verb).arg("--data-dir").arg(self.data());
        command
    }

    fn load(&self, archive: &[u8]) {
        let mut load = self.command(&["image", "load", "-"]);
        let mut child = load.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(archive).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// Starts the server, and waits until it listens.
    pub(crate) fn resume(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("log"));
        let listen = format!("unix://{}", self.socket().display());
        let mut server = self.command(&["cri", "--bridge", "--listen", &listen]);
        let server = server
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap());
        self.server = Some(server.spawn().unwrap());
        let begun = std::time::Instant::now();
        while std::os::unix::net::UnixStream::connect(self.socket()).is_err() {
            assert!(begun.elapsed() < PATIENCE, "{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the server without a chance to do anything.
    pub(crate) fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// A client, once the server answers.
    pub(crate) async fn open(&self) -> CriRuntime {
        let options = || CriOptions {
            socket: self.socket(),
            root: self.path("client"),
        };
        eventually("answer of the server", async || {
            CriRuntime::open(options()).await.ok()
        })
        .await
    }
}

impl Drop for CriProcess {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        // Also after a failure nothing stays on the machine.
        let _ = self
            .command(&["reset", "--yes"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// A server with an image of a shell.
struct World(CriProcess);

impl World {
    /// `None` where containers cannot be run.
    fn new() -> Option<Self> {
        if !requires("root", is_root()) {
            return None;
        }
        let programs = [
            "sh", "sleep", "cat", "echo", "true", "ls", "nc", "grep", "kill", "test",
        ];
        let links = programs.map(|program| (format!("bin/{program}"), "busybox".to_owned()));
        let archive = ImageArchive {
            name: IMAGE,
            program: "bin/busybox",
            links: links.into(),
            config: json!({"Env": ["PATH=/bin"], "StopSignal": "SIGUSR2"}),
        };
        Some(Self(CriProcess::start(&archive.pack(&busybox()?))))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    async fn open(&self) -> CriRuntime {
        self.0.open().await
    }

    fn sandbox(&self) -> SandboxConfig {
        SandboxConfig {
            pod: PodIdentity {
                uid: "5c0e8a52-0001-4000-8000-000000000001".into(),
                namespace: "default".into(),
                name: "web".into(),
            },
            hostname: "web".into(),
            log_directory: self.path("logs"),
            ..SandboxConfig::default()
        }
    }

    fn container(&self, script: &str) -> ContainerConfig {
        ContainerConfig {
            pod: self.sandbox().pod,
            name: "app".into(),
            image: IMAGE.into(),
            command: ["sh", "-c", script].map(Into::into).into(),
            log_path: self.path("logs/app/0.log"),
            ..ContainerConfig::default()
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("logs/app/0.log")).unwrap_or_default()
    }

    /// Runs one container that has said that it is up.
    async fn run(&self, runtime: &CriRuntime, config: &ContainerConfig) -> (SandboxId, ContainerId) {
        let pod = runtime.run_sandbox(&self.sandbox()).await.expect("a sandbox");
        let app = runtime.create_container(&pod, config).await.expect("created");
        runtime.start_container(&app).await.expect("started");
        eventually("log", async || self.log().contains(" stdout F up").then_some(())).await;
        (pod, app)
    }
}

async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .unwrap_or_else(|_| panic!("no {what} in time"))
}

fn exec(script: &str, timeout: Option<Duration>) -> ExecRequest {
    ExecRequest {
        command: ["sh", "-c", script].map(Into::into).into(),
        timeout,
        output_limit: 4096,
    }
}

async fn said(runtime: &CriRuntime, id: &ContainerId, script: &str) -> String {
    let output = runtime
        .exec_sync(id, &exec(script, Some(PATIENCE)))
        .await
        .expect("runs");
    assert_eq!(output.outcome, ExecOutcome::Exited(0), "{script}");
    String::from_utf8_lossy(&output.output).trim().to_owned()
}

async fn code(runtime: &CriRuntime, id: &ContainerId) -> Option<i32> {
    match runtime.container_status(id).await.ok()?.state {
        ContainerState::Exited(exit) => Some(exit.code),
        ContainerState::Created | ContainerState::Running { .. } | ContainerState::Unknown => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_lives_and_ends_by_way_of_cri() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let health = runtime.health().await.expect("asked");
    assert_eq!(health.network, RuntimeCondition::Ready);
    let (pod, app) = world.run(&runtime, &world.container(TRAPS)).await;
    let status = runtime.sandbox_status(&pod).await.expect("is there");
    assert!(
        status.addresses.first().is_some_and(std::net::IpAddr::is_ipv4),
        "{status:?}"
    );
    assert_eq!(said(&runtime, &app, "cat /proc/sys/kernel/hostname").await, "web");
    let late = runtime
        .exec_sync(&app, &exec("sleep 1000", Some(Duration::from_secs(1))))
        .await;
    assert_eq!(late.expect("runs").outcome, ExecOutcome::TimedOut);
    let usage = runtime.container_stats(&app).await.expect("measured");
    assert!(usage.memory_usage > 0 && usage.cpu_nanos > 0, "{usage:?}");
    let status = runtime.container_status(&app).await.expect("is there");
    let signal = status.stop_signal.expect("is told");
    assert_eq!(signal.to_string(), "SIGUSR2", "the image's");
    for _ in 0..2 {
        runtime.stop_container(&app, GRACE).await.expect("stopped");
    }
    assert_eq!(
        code(&runtime, &app).await,
        Some(12),
        "it heard the image's signal"
    );
    for _ in 0..2 {
        runtime.remove_container(&app).await.expect("removed");
        runtime.stop_sandbox(&pod).await.expect("stopped");
    }
    for _ in 0..2 {
        runtime.remove_sandbox(&pod).await.expect("removed");
    }
    assert!(runtime.list_sandboxes().await.expect("lists").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_finds_its_containers_again() {
    let Some(mut world) = World::new() else { return };
    let runtime = world.open().await;
    let mut config = world.container(TRAPS);
    config.stop_signal = "SIGINT".parse().ok();
    let (pod, app) = world.run(&runtime, &config).await;
    let before = runtime.container_status(&app).await.expect("is there");
    let init = said(&runtime, &app, "cat /proc/1/stat").await;
    for _ in 0..3 {
        world.0.kill();
        world.0.resume();
    }
    let runtime = world.open().await;
    let filter = ContainerFilter::default();
    let found = runtime.list_containers(&filter).await.expect("lists");
    assert_eq!(found.len(), 1);
    let after = runtime.container_status(&app).await.expect("is there");
    assert_eq!((&after.state, &after.name), (&before.state, &before.name));
    assert_eq!(after.stop_signal, before.stop_signal);
    let same = said(&runtime, &app, "cat /proc/1/stat").await;
    let begun_at = |line: &str| line.split(' ').nth(21).map(str::to_owned);
    assert_eq!(begun_at(&same), begun_at(&init), "the same process");
    let sandbox = runtime.sandbox_status(&pod).await.expect("is there");
    assert_eq!(sandbox.state, SandboxState::Ready);
    runtime.stop_container(&app, GRACE).await.expect("stopped");
    assert_eq!(code(&runtime, &app).await, Some(2), "it heard its own signal");
    runtime.remove_sandbox(&pod).await.expect("removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_ports_lead_into_the_pod() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let script = "echo up; while :; do echo hello | nc -l -p 8080; done";
    let (pod, app) = world.run(&runtime, &world.container(script)).await;
    let options = ExecOptions {
        command: ["sh", "-c", "cat; echo worse >&2; exit 5"].map(Into::into).into(),
        tty: false,
        stdin: true,
        stdout: true,
        stderr: true,
        term: None,
    };
    let mut streams = runtime.exec(&app, &options).await.expect("begins");
    let mut stdin = streams.stdin.take().unwrap();
    stdin.write_all(b"typed").await.expect("takes it");
    stdin.shutdown().await.expect("ends");
    drop(stdin);
    let (mut out, mut err) = (String::new(), String::new());
    streams
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .await
        .expect("reads");
    streams
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .await
        .expect("reads");
    assert_eq!((out.as_str(), err.trim()), ("typed", "worse"));
    assert_eq!(streams.exit.await.expect("is told").expect("ended"), 5);
    let heard = eventually("answer of the pod", async || {
        let mut stream = runtime.port_forward(&pod, 8080).await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        (text == "hello\n").then_some(())
    });
    heard.await;
    // What was moved away is written anew.
    std::fs::rename(world.path("logs/app/0.log"), world.path("logs/app/old.log")).unwrap();
    runtime.reopen_log(&app).await.expect("opens it");
    assert!(world.path("logs/app/0.log").exists());
    runtime.remove_sandbox(&pod).await.expect("removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_container_asks_for_arrives_in_it() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let mut config = world.container("echo up; sleep 1000000");
    config.resources = Resources {
        memory_limit: Some(64 << 20),
        ..Resources::default()
    };
    config.security.masked_paths = Some(vec![PathBuf::from("/etc/hostname")]);
    config.security.read_only_paths = Some(vec![PathBuf::from("/proc/sys")]);
    config.pid_namespace = Some(PidNamespace::Container);
    let (pod, app) = world.run(&runtime, &config).await;
    assert_eq!(
        said(&runtime, &app, "test -s /etc/hostname || echo hidden").await,
        "hidden"
    );
    let first = said(&runtime, &app, "cat /proc/1/cmdline").await;
    assert!(first.contains("1000000"), "its own first process: {first:?}");
    runtime.remove_sandbox(&pod).await.expect("removed");
}

#[test]
fn a_directory_that_is_used_is_not_shared() {
    let Some(world) = World::new() else { return };
    let listen = format!("unix://{}", world.path("second.sock").display());
    let second = world
        .0
        .command(&["cri", "--bridge", "--listen", &listen])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("another agent"), "{stderr}");
}
