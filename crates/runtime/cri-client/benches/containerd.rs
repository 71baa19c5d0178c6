//! What containers cost at a containerd of the benchmark's own: sandbox, time from creation to running, a command, a
//! kill. The CPU is that of containerd, its shims and all they ran, and of this process.
//!
//! Machines are noisy: compare the numbers of one run.

use std::fs;
use std::time::{Duration, Instant};

use pulselet_cri_client::{CriOptions, CriRuntime};
use pulselet_runtime::{
    ContainerConfig, ContainerId, ExecRequest, PROBE_OUTPUT_LIMIT, PodIdentity, Runtime, SandboxConfig,
    SandboxId,
};

use pulselet_testing::containerd::{self, Containerd, IMAGE};

const STARTS: u32 = 20;
const COMMANDS: u32 = 100;

/// Clock ticks a second in /proc, on every architecture of today.
const TICKS: f64 = 100.0;

fn main() {
    if !containerd::is_usable() {
        eprintln!("needs root, containerd, runc, CNI plugins and Debian's busybox-static");
        return;
    }
    let server = Containerd::start();
    let home = tempfile::tempdir().expect("a directory");
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    tokio.block_on(measure(&server, home.path()));
}

async fn measure(server: &Containerd, home: &std::path::Path) {
    let options = CriOptions {
        socket: server.socket(),
        root: home.join("root"),
    };
    let runtime = CriRuntime::open(options).await.expect("opens");
    let config = SandboxConfig {
        pod: PodIdentity {
            uid: "bench".into(),
            namespace: "default".into(),
            name: "bench".into(),
        },
        hostname: "bench".into(),
        log_directory: home.join("logs"),
        ..SandboxConfig::default()
    };
    let begin = Instant::now();
    let sandbox = runtime.run_sandbox(&config).await.expect("runs");
    println!("containerd: sandbox with its own network {:.1?}", begin.elapsed());
    let mut times = Vec::new();
    let mut containers = Vec::new();
    for number in 0..STARTS {
        let begin = Instant::now();
        containers.push(start(&runtime, &sandbox, &config, number).await);
        times.push(begin.elapsed());
    }
    println!("containerd: create to running {}", summary(&mut times));
    commands(server, &runtime, &containers[0]).await;
    let mut times = Vec::new();
    for id in &containers {
        let begin = Instant::now();
        runtime.stop_container(id, Duration::ZERO).await.expect("stops");
        times.push(begin.elapsed());
    }
    println!("containerd: kill to exit seen {}", summary(&mut times));
    runtime.remove_sandbox(&sandbox).await.expect("removes");
}

async fn start(runtime: &CriRuntime, sandbox: &SandboxId, of: &SandboxConfig, number: u32) -> ContainerId {
    let config = ContainerConfig {
        pod: of.pod.clone(),
        name: format!("c{number}"),
        image: IMAGE.into(),
        command: ["/busybox", "sleep", "1000"].map(Into::into).into(),
        log_path: of.log_directory.join(format!("c{number}/0.log")),
        ..ContainerConfig::default()
    };
    let id = runtime.create_container(sandbox, &config).await.expect("creates");
    runtime.start_container(&id).await.expect("starts");
    id
}

async fn commands(server: &Containerd, runtime: &CriRuntime, id: &ContainerId) {
    let request = ExecRequest {
        command: ["/busybox", "true"].map(Into::into).into(),
        timeout: Some(Duration::from_secs(10)),
        output_limit: PROBE_OUTPUT_LIMIT,
    };
    let before = cpu(server);
    let mut times = Vec::new();
    for _ in 0..COMMANDS {
        let begin = Instant::now();
        runtime.exec_sync(id, &request).await.expect("runs");
        times.push(begin.elapsed());
    }
    let cpu = (cpu(server) - before) / f64::from(COMMANDS);
    println!(
        "containerd: command {}, {:.2} ms CPU each",
        summary(&mut times),
        cpu * 1000.0
    );
}

/// Seconds of CPU of everything that names the server's socket or directory, of what that has run, and of this process.
fn cpu(server: &Containerd) -> f64 {
    let own = std::process::id().to_string();
    let ticks: u32 = server
        .processes()
        .iter()
        .map(|pid| pid.as_raw_pid().to_string())
        .chain([own])
        .map(|pid| ticks(&pid))
        .sum();
    f64::from(ticks) / TICKS
}

/// User and system time, with that of children that were waited for. Zero for a process that is gone.
fn ticks(pid: &str) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name is in parentheses and may hold anything.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    fields
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse::<u32>().ok())
        .sum()
}

fn summary(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1000.0;
    format!("median {:.1} ms, 90% {:.1} ms", at(50), at(90))
}
