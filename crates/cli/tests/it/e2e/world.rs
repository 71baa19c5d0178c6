//! A place of its own for each test: a data directory, ports, and the pods that are run in it.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::harness::Agent;

/// Ports below the kernel's range for outgoing connections, so that nothing else takes one by chance.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// What containers are in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    Process,
    Oci,
}

impl Runtime {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Oci => "oci",
        }
    }

    /// Whether this machine can run it. In CI what cannot be tested is a failure.
    pub(crate) fn is_usable(self) -> bool {
        let usable = match self {
            Self::Process => true,
            Self::Oci => rustix::process::geteuid().is_root(),
        };
        let in_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(usable || !in_ci, "{self:?} needs root");
        usable
    }
}

/// A test for each runtime it names. Its body gets a [`World`].
macro_rules! e2e {
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
}

impl World {
    pub(crate) fn new(runtime: Runtime) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("pulselet-e2e-")
            .tempdir()
            .expect("a directory");
        Self { directory, runtime }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// A container with a demo as its program.
    pub(crate) fn demo(&self, name: &str, flags: &[&str]) -> Value {
        let mut command = vec![self.program(), "demo".to_owned()];
        command.extend(flags.iter().map(|flag| (*flag).to_owned()));
        container(name, &command)
    }

    fn program(&self) -> String {
        match self.runtime {
            Runtime::Process => env!("CARGO_BIN_EXE_pulselet").to_owned(),
            Runtime::Oci => "pulselet".to_owned(),
        }
    }

    /// A demo whose pod is ready when it takes signals: before that the first process of a container does not.
    pub(crate) fn ready_demo(&self, name: &str, flags: &[&str]) -> Value {
        let port = port();
        let number = port.to_string();
        let mut all = vec!["--port", number.as_str()];
        all.extend(flags);
        let ready = http(port, json!({"periodSeconds": 1}));
        with(self.demo(name, &all), json!({"readinessProbe": ready}))
    }

    /// Writes a manifest; its path. Where a test does not care, a pod that takes no notice is killed soon.
    pub(crate) fn manifest(&self, name: &str, spec: &Value) -> PathBuf {
        let spec = with(json!({"terminationGracePeriodSeconds": 2}), spec.clone());
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
        let mut command = self.command("run");
        command
            .args(files)
            .args(["-o", "json"])
            .args(["--runtime", self.runtime.name()]);
        command.args(flags);
        Agent::start(command)
    }

    /// A command that uses this world's directory.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pulselet"));
        command.arg(name).arg("--data-dir").arg(self.data());
        command
    }

    /// A config file; its path.
    pub(crate) fn config(&self, text: &str) -> String {
        let path = self.path("config.yaml");
        std::fs::write(&path, text).expect("the config is written");
        path.to_str().expect("a path in UTF-8").to_owned()
    }

    /// Everything that a world left running: monitors and containers name its directory.
    pub(crate) fn processes(&self) -> BTreeSet<i32> {
        let path = self.directory.path();
        processes(|line| contains(line, path))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Only after a failure is anything left. A container does not outlive its monitor.
        for pid in self.processes() {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
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

/// A container of the host's own files with a program of its own.
pub(crate) fn container(name: &str, command: &[impl AsRef<str>]) -> Value {
    let command: Vec<&str> = command.iter().map(AsRef::as_ref).collect();
    json!({"name": name, "image": "pulselet.local/host", "command": command})
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
