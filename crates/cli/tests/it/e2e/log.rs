//! The log of an agent whose reader is gone, stalls or has no room: the agent does its work all the same.

use std::fs::File;
use std::io::{PipeReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pulselet_testing::requires;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::harness::eventually;
use super::world::{Runtime, World, port};

/// How long an answer may take; then the agent is asked again, until the test's patience is over.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A running `node` or `serve`.
struct Logger {
    child: Child,
    metrics: u16,
}

impl Logger {
    fn start(world: &World, command: &str, stderr: Stdio, change: impl FnOnce(&mut Command)) -> Self {
        let metrics = port();
        std::fs::create_dir_all(world.path("manifests")).unwrap();
        let mut agent = world.command(command);
        agent.arg("--manifests").arg(world.path("manifests"));
        // A disk that is full on purpose evicts no pod.
        let config = "hostImage: true\nevictionHard: {memory.available: 1Mi}\n";
        agent.args(["--config", &world.config(config)]);
        agent.args(["--runtime", &world.runtime_flag()]);
        agent.args(["--metrics", &format!("127.0.0.1:{metrics}")]);
        if command == "serve" {
            agent.args(["--listen", "127.0.0.1:0", "--node-listen", "127.0.0.1:0"]);
        }
        agent.stdout(Stdio::null()).stderr(stderr);
        change(&mut agent);
        let child = agent.spawn().unwrap();
        Self { child, metrics }
    }

    /// The text of a page; none if the agent does not answer in time.
    fn page(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics)).ok()?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn until_healthy(&self) {
        eventually("health", || {
            self.page("/healthz")?.starts_with("HTTP/1.1 200").then_some(())
        });
    }

    /// Waits until the metrics report lost lines.
    fn until_lines_are_lost(&self) {
        eventually("lost lines", || {
            let page = self.page("/metrics")?;
            let mut lines = page.lines();
            let count = lines.find_map(|line| line.strip_prefix("pulselet_log_lines_dropped_total "));
            (count? != "0").then_some(())
        });
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Asks it to end; its exit code.
    fn terminate(mut self) -> Option<i32> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.unwrap(), Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Logger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Adds a pod that fails its liveness probe, and waits until it was killed and restarted for it.
fn until_a_liveness_kill(world: &World, agent: &mut Logger) {
    let spec = world.with_volumes(&json!({
        "containers": [world.condemned(&[], json!({}))],
        "terminationGracePeriodSeconds": 1,
    }));
    let written = world.manifest("web", &spec);
    std::fs::rename(written, world.path("manifests/web.json")).unwrap();
    eventually("a liveness kill", || {
        assert!(agent.is_running(), "the agent has ended");
        let pods = world.pods()?;
        let restarts = pods.first()?["status"]["containerStatuses"][0]["restartCount"].as_u64()?;
        (restarts > 0).then_some(())
    });
}

/// Ends the pod and the agent.
fn end(world: &World, agent: Logger) {
    std::fs::remove_file(world.path("manifests/web.json")).unwrap();
    eventually("the end of the pod", || world.pods()?.is_empty().then_some(()));
    assert_eq!(agent.terminate(), Some(0));
    assert!(world.processes().is_empty());
}

fn full_device() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// A pipe that takes nothing more until it is read.
fn full_pipe() -> (PipeReader, Stdio) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(b"x").is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    (reader, OwnedFd::from(writer).into())
}

/// More than the queue of the log takes: a line about each of these manifests names the field that no pod has.
fn write_what_is_complained_of_at_length(world: &World) {
    let field = "x".repeat(16 * 1024);
    for number in 0..200 {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"}, "spec": {field.as_str(): 1}});
        let path = world.path("manifests").join(format!("bad-{number}.json"));
        std::fs::write(path, pod.to_string()).unwrap();
    }
}

#[test]
fn a_node_whose_log_goes_to_a_full_device_kills() {
    let world = &World::new(Runtime::Process);
    let mut agent = Logger::start(world, "node", full_device(), |_| {});
    until_a_liveness_kill(world, &mut agent);
    agent.until_healthy();
    agent.until_lines_are_lost();
    end(world, agent);
}

#[test]
fn a_server_whose_output_goes_to_a_full_device_kills() {
    let world = &World::new(Runtime::Process);
    let mut agent = Logger::start(world, "serve", full_device(), |serve| {
        serve.stdout(full_device());
    });
    until_a_liveness_kill(world, &mut agent);
    agent.until_healthy();
    agent.until_lines_are_lost();
    end(world, agent);
}

#[test]
fn a_node_whose_logger_has_ended_kills() {
    let world = &World::new(Runtime::Process);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut agent = Logger::start(world, "node", OwnedFd::from(writer).into(), |_| {});
    until_a_liveness_kill(world, &mut agent);
    agent.until_healthy();
    agent.until_lines_are_lost();
    end(world, agent);
}

#[test]
fn a_node_whose_logger_stalls_kills_and_says_what_it_lost() {
    let world = &World::new(Runtime::Process);
    let (mut reader, stderr) = full_pipe();
    let mut agent = Logger::start(world, "node", stderr, |_| {});
    until_a_liveness_kill(world, &mut agent);
    agent.until_healthy();
    write_what_is_complained_of_at_length(world);
    agent.until_lines_are_lost();
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&text).contains(" WARN log lines dropped count=") {
        let count = reader.read(&mut buffer).unwrap();
        assert!(count > 0, "the log has ended");
        text.drain(..text.len().saturating_sub(buffer.len()));
        text.extend_from_slice(&buffer[..count]);
    }
    let draining = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    end(world, agent);
    draining.join().unwrap().unwrap();
}

#[test]
fn a_server_whose_logger_stalls_starts_and_kills() {
    let world = &World::new(Runtime::Process);
    let (reader, stderr) = full_pipe();
    let (unread, stdout) = full_pipe();
    let mut agent = Logger::start(world, "serve", stderr, |serve| {
        serve.stdout(stdout);
    });
    until_a_liveness_kill(world, &mut agent);
    agent.until_healthy();
    end(world, agent);
    drop((reader, unread));
}

#[test]
fn every_line_before_the_end_reaches_the_log() {
    let world = &World::new(Runtime::Process);
    std::fs::create_dir_all(world.path("manifests")).unwrap();
    let log = world.path("log");
    let agent = Logger::start(world, "node", File::create(&log).unwrap().into(), |_| {});
    eventually("the agent", || world.pods());
    // Another agent ends with an error, which is the last thing it says.
    let second = world
        .command("node")
        .args(["--runtime", &world.runtime_flag(), "--metrics", "127.0.0.1:0"])
        .arg("--manifests")
        .arg(world.path("manifests"))
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(3), "{second:?}");
    assert!(
        String::from_utf8_lossy(&second.stderr).contains("error: "),
        "{second:?}"
    );
    assert_eq!(agent.terminate(), Some(0));
    let text = std::fs::read_to_string(log).unwrap();
    assert!(text.contains("node is up: runtime pulselet-process"), "{text}");
}

/// A small file system with everything of an agent on it.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// None without the privilege to mount.
    fn mount(world: &World) -> Option<Self> {
        use rustix::mount::{MountFlags, mount};
        std::fs::create_dir(world.data()).unwrap();
        let mounted = mount("tmpfs", world.data(), "tmpfs", MountFlags::empty(), c"size=8m");
        let disk = mounted.ok().map(|()| Self(world.data()));
        requires("the right to mount", disk.is_some())
            .then_some(disk)
            .flatten()
    }

    fn log(&self) -> File {
        let mut options = File::options();
        let log = options.create(true).append(true).open(self.0.join("node.log"));
        log.unwrap()
    }

    /// Takes all room, also that in the last block of the log.
    fn fill(&self) {
        let filler = File::options()
            .create(true)
            .append(true)
            .open(self.0.join("filler"));
        for mut file in filler.into_iter().chain([self.log()]) {
            while file.write_all(&[b'x'; 4096]).is_ok() {}
            while file.write_all(b"x").is_ok() {}
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_node_kills_when_data_and_log_are_on_a_full_disk() {
    let world = &World::new(Runtime::Process);
    let Some(disk) = SmallDisk::mount(world) else {
        return;
    };
    let mut agent = Logger::start(world, "node", disk.log().into(), |_| {});
    let sick = world.path("sick");
    let probe =
        json!({"exec": {"command": ["test", "!", "-e", sick]}, "periodSeconds": 1, "failureThreshold": 1});
    let mut app = world.demo("app", &[]);
    app["livenessProbe"] = probe;
    let spec = json!({"containers": [app], "terminationGracePeriodSeconds": 1});
    let written = world.manifest("web", &spec);
    std::fs::rename(written, world.path("manifests/web.json")).unwrap();
    let container = |world: &World| {
        let pods = world.pods()?;
        Some(pods.first()?["status"]["containerStatuses"][0].clone())
    };
    let running = |status: &serde_json::Value| status["state"]["running"]["startedAt"].is_string();
    eventually("container", || running(&container(world)?).then_some(()));
    disk.fill();
    std::fs::write(&sick, "").unwrap();
    eventually("a liveness kill", || {
        assert!(agent.is_running(), "the agent has ended");
        // The agent gives back what it had set aside for this, which is not taken from it: a restart needs it.
        (container(world)?["restartCount"].as_u64()? > 0).then_some(())
    });
    std::fs::remove_file(&sick).unwrap();
    std::fs::remove_file(world.data().join("filler")).unwrap();
    agent.until_healthy();
    end(world, agent);
    drop(disk);
}
