//! What containers cost, beside other runtimes where they are installed: time from creation to running, CPU per command
//! run in a container, memory of a shim. The same files, a static busybox, and the host's network for all.
//!
//! Machines are noisy: compare the numbers of one run.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use pulselet_image::{Digest, ImageStore, Platform};
use pulselet_runtime::{
    ContainerConfig, ContainerId, ExecRequest, Namespaces, PROBE_OUTPUT_LIMIT, Runtime, SandboxConfig,
    SandboxId,
};
use pulselet_runtime_oci::{NetworkOptions, OciOptions, OciRuntime, ShimCommand};
use pulselet_shim::record;
use serde_json::json;

const STARTS: usize = 40;
const COMMANDS: u32 = 300;

/// Clock ticks a second in /proc, on every architecture of today.
const TICKS: f64 = 100.0;

fn main() {
    if !rustix::process::geteuid().is_root() || !Path::new("/bin/busybox").exists() {
        eprintln!("needs root and Debian's busybox-static");
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    tokio.block_on(ours(home.path()));
    for program in ["runc", "crun"] {
        others(program, home.path());
    }
}

async fn ours(home: &Path) {
    let runtime = open(home).await;
    let config = SandboxConfig {
        namespaces: Namespaces {
            host_network: true,
            ..Namespaces::default()
        },
        log_directory: home.join("logs"),
        ..SandboxConfig::default()
    };
    let sandbox = runtime.run_sandbox(&config).await.expect("runs");
    let mut times = Vec::new();
    let mut containers = Vec::new();
    for number in 0..STARTS {
        let begin = Instant::now();
        containers.push(start(&runtime, &sandbox, home, number).await);
        times.push(begin.elapsed());
    }
    println!("pulselet: create to running {}", summary(&mut times));
    let shims: Vec<String> = containers.iter().map(|id| shim_of(home, id)).collect();
    let memory: u64 = shims.iter().map(|pid| proportional_memory(pid)).sum();
    println!(
        "pulselet: shim {} KiB proportional, {STARTS} of them",
        memory / STARTS as u64
    );
    our_commands(&runtime, &containers[0], &shims[0]).await;
    let mut times = Vec::new();
    for id in &containers {
        let begin = Instant::now();
        runtime.stop_container(id, Duration::ZERO).await.expect("stops");
        times.push(begin.elapsed());
    }
    println!("pulselet: kill to exit seen {}", summary(&mut times));
    our_sandboxes(&runtime).await;
}

async fn our_commands(runtime: &OciRuntime, container: &ContainerId, shim: &str) {
    let request = ExecRequest {
        command: vec!["/bin/busybox".into(), "true".into()],
        timeout: Some(Duration::from_secs(10)),
        output_limit: PROBE_OUTPUT_LIMIT,
    };
    let before = cpu_of("self") + cpu_of(shim);
    let mut times = Vec::new();
    for _ in 0..COMMANDS {
        let begin = Instant::now();
        runtime.exec_sync(container, &request).await.expect("runs");
        times.push(begin.elapsed());
    }
    let cpu = (cpu_of("self") + cpu_of(shim) - before) / f64::from(COMMANDS);
    println!(
        "pulselet: command {}, {:.2} ms CPU each",
        summary(&mut times),
        cpu * 1000.0
    );
}

/// Also removes all sandboxes.
async fn our_sandboxes(runtime: &OciRuntime) {
    let mut times = Vec::new();
    for number in 0..STARTS {
        let config = SandboxConfig {
            pod: pulselet_runtime::PodIdentity {
                uid: number.to_string(),
                ..Default::default()
            },
            hostname: "pod".into(),
            ..SandboxConfig::default()
        };
        let begin = Instant::now();
        runtime.run_sandbox(&config).await.expect("runs");
        times.push(begin.elapsed());
    }
    println!("pulselet: sandbox with its own network {}", summary(&mut times));
    for sandbox in runtime.list_sandboxes().await.expect("lists") {
        runtime.remove_sandbox(&sandbox.id).await.expect("removes");
    }
}

async fn open(home: &Path) -> OciRuntime {
    let images = ImageStore::open(home.join("images")).expect("opens");
    images.load(archive().as_slice(), None).expect("loads");
    let shim = ShimCommand {
        program: env!("CARGO_BIN_EXE_pulselet-oci-shim").into(),
        args: Vec::new(),
    };
    let options = OciOptions {
        root: home.join("root"),
        data_dir: home.to_owned(),
        program: shim.program.clone(),
        shim,
        images,
        host_image: true,
        network: NetworkOptions {
            bridge: "pltbench".into(),
            subnet: Some("10.99.0.0/16".parse().expect("a range")),
            cni: None,
        },
    };
    OciRuntime::open(options).await.expect("opens")
}

async fn start(runtime: &OciRuntime, sandbox: &SandboxId, home: &Path, number: usize) -> ContainerId {
    let config = ContainerConfig {
        name: format!("c{number}"),
        image: "bench:1".into(),
        log_path: home.join(format!("logs/{number}.log")),
        ..ContainerConfig::default()
    };
    let id = runtime.create_container(sandbox, &config).await.expect("creates");
    runtime.start_container(&id).await.expect("starts");
    id
}

/// An image of busybox alone, as `docker save` writes it.
fn archive() -> Vec<u8> {
    let mut layer = tar::Builder::new(Vec::new());
    let busybox = fs::read("/bin/busybox").expect("is there");
    add(&mut layer, "bin/busybox", 0o755, &busybox);
    let layer = layer.into_inner().expect("is complete");
    let config = json!({
        "architecture": Platform::host().architecture, "os": "linux",
        "config": {"Cmd": ["/bin/busybox", "sleep", "1000"]},
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&layer).to_string()]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": ["bench:1"], "Layers": ["layer.tar"]}]);
    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, "manifest.json", 0o644, manifest.to_string().as_bytes());
    add(&mut tar, "config.json", 0o644, config.to_string().as_bytes());
    add(&mut tar, "layer.tar", 0o644, &layer);
    tar.into_inner().expect("is complete")
}

fn add(tar: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, data: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(data.len() as u64);
    header.set_mode(mode);
    tar.append_data(&mut header, path, data).expect("fits");
}

/// The same with another runtime's program, if it is there.
fn others(program: &str, home: &Path) {
    let bundle = home.join(program);
    if !run(program, &bundle, &["--version"]) {
        println!("{program}: not installed");
        return;
    }
    make_bundle(program, &bundle);
    let mut times = Vec::new();
    for number in 0..STARTS {
        let id = format!("pulselet-bench-{number}");
        let begin = Instant::now();
        if !run(program, &bundle, &["create", &id]) || !run(program, &bundle, &["start", &id]) {
            println!("{program}: cannot run containers here");
            return;
        }
        times.push(begin.elapsed());
    }
    println!("{program}: create to running {}", summary(&mut times));
    let before = cpu_of("self");
    let mut times = Vec::new();
    for _ in 0..COMMANDS {
        let begin = Instant::now();
        run(
            program,
            &bundle,
            &["exec", "pulselet-bench-0", "/bin/busybox", "true"],
        );
        times.push(begin.elapsed());
    }
    let cpu = (cpu_of("self") - before) / f64::from(COMMANDS);
    println!(
        "{program}: command {}, {:.2} ms CPU each",
        summary(&mut times),
        cpu * 1000.0
    );
    for number in 0..STARTS {
        run(
            program,
            &bundle,
            &["delete", "--force", &format!("pulselet-bench-{number}")],
        );
    }
}

fn make_bundle(program: &str, bundle: &Path) {
    fs::create_dir_all(bundle.join("rootfs/bin")).expect("makes");
    fs::copy("/bin/busybox", bundle.join("rootfs/bin/busybox")).expect("copies");
    run(program, bundle, &["spec"]);
    let path = bundle.join("config.json");
    let text = fs::read(&path).expect("was written");
    let mut config: serde_json::Value = serde_json::from_slice(&text).expect("is JSON");
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = json!(["/bin/busybox", "sleep", "1000"]);
    // Machines under test may lack the right to raise it.
    config["process"]["rlimits"] = json!([]);
    if let Some(namespaces) = config["linux"]["namespaces"].as_array_mut() {
        namespaces.retain(|namespace| namespace["type"] != "network");
    }
    fs::write(path, config.to_string()).expect("writes");
}

fn run(program: &str, bundle: &Path, args: &[&str]) -> bool {
    fs::create_dir_all(bundle).expect("makes");
    let status = Command::new(program)
        .args(args)
        .current_dir(bundle)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

fn shim_of(home: &Path, id: &ContainerId) -> String {
    let dir: PathBuf = home.join("root/containers").join(id.as_str());
    let Ok(Some(record::LifeRecord::Running { pid, .. })) = record::read_life(&dir) else {
        panic!("it does not run")
    };
    stat(&pid.to_string())[1].clone()
}

/// The fields after the name: state, parent and so on.
fn stat(pid: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("is there");
    let (_, rest) = text.rsplit_once(") ").expect("has a name");
    rest.split_ascii_whitespace().map(str::to_owned).collect()
}

/// Seconds of CPU, of children it has waited for too.
fn cpu_of(pid: &str) -> f64 {
    let fields = stat(pid);
    let ticks: u32 = fields[11..15]
        .iter()
        .map(|field| field.parse::<u32>().expect("a number"))
        .sum();
    f64::from(ticks) / TICKS
}

/// KiB.
fn proportional_memory(pid: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("is there");
    let line = text
        .lines()
        .find(|line| line.starts_with("Pss:"))
        .expect("has it");
    line.split_ascii_whitespace()
        .nth(1)
        .expect("a number")
        .parse()
        .expect("a number")
}

fn summary(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1000.0;
    format!("median {:.1} ms, 90% {:.1} ms", at(50), at(90))
}
