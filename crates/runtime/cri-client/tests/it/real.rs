//! What pods do at a real containerd.

use std::path::Path;
use std::time::Duration;

use pulselet_cri_client::CriRuntime;
use pulselet_runtime::{
    AttachOptions, ContainerFilter, ContainerId, ContainerState, Error, EventKind, ExecOptions, ExecOutcome,
    ExecRequest, Mount, Propagation, Runtime, RuntimeCondition, SandboxId, Signal, TerminalSize,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::world::{code, container, event, eventually, open, sandbox};
use pulselet_testing::containerd::{self, Containerd, IMAGE};

/// Longer than any test; a container that is told to stop leaves before.
const GRACE: Duration = Duration::from_mins(10);
/// Leaves with the number of the signal that it hears first.
const TRAPS: &str =
    "for n in 2 10 12 15; do trap \"exit $n\" $n; done; echo up; while :; do sleep 0.05; done";

struct World {
    containerd: Containerd,
    directory: tempfile::TempDir,
}

impl World {
    /// None where there is no containerd.
    fn new() -> Option<Self> {
        containerd::is_usable().then(|| Self {
            containerd: Containerd::start(),
            directory: tempfile::tempdir().expect("a directory"),
        })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    async fn open(&self) -> CriRuntime {
        open(self.containerd.socket(), &self.path().join("root")).await
    }

    /// Runs one container that has said that it is up.
    async fn run(&self, runtime: &CriRuntime, script: &str) -> (SandboxId, ContainerId) {
        let pod = runtime
            .run_sandbox(&sandbox(self.path()))
            .await
            .expect("a sandbox");
        let config = container(self.path(), script);
        let app = runtime.create_container(&pod, &config).await.expect("created");
        runtime.start_container(&app).await.expect("started");
        eventually("log", async || {
            let log = std::fs::read_to_string(&config.log_path).ok()?;
            log.contains(" stdout F up").then_some(())
        })
        .await;
        (pod, app)
    }
}

fn exec(script: &str, timeout: Option<Duration>) -> ExecRequest {
    ExecRequest {
        command: ["sh", "-c", script].map(Into::into).into(),
        timeout,
        output_limit: 64,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_lives_and_ends() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let version = runtime.version().await.expect("known");
    assert_eq!(
        (version.name.as_str(), version.features.images),
        ("containerd", true)
    );
    assert_eq!(
        runtime.health().await.expect("asked").network,
        RuntimeCondition::Ready
    );
    let mut events = runtime.events();
    let (pod, app) = world.run(&runtime, "echo up; sleep 1000").await;
    let status = runtime.sandbox_status(&pod).await.expect("it is there");
    assert!(status.addresses.first().is_some_and(std::net::IpAddr::is_ipv4));
    event(&mut events, &app, EventKind::Started).await;
    let again = runtime
        .create_container(&pod, &container(world.path(), "true"))
        .await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    let again = runtime.run_sandbox(&sandbox(world.path())).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    runtime
        .stop_container(&app, Duration::ZERO)
        .await
        .expect("stopped");
    assert_eq!(code(&runtime, &app).await, Some(137));
    event(&mut events, &app, EventKind::Stopped).await;
    runtime.remove_sandbox(&pod).await.expect("removed");
    runtime.remove_sandbox(&pod).await.expect("removed again");
    runtime
        .stop_container(&app, GRACE)
        .await
        .expect("gone is stopped");
    let gone = runtime.container_status(&app).await;
    assert!(gone.is_err_and(|error| error.is_not_found()));
    event(&mut events, &app, EventKind::Deleted).await;
    assert!(runtime.list_sandboxes().await.expect("listed").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_of_its_own_is_told() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let mut events = runtime.events();
    let (_, app) = world.run(&runtime, "echo up; sleep 3; exit 7").await;
    let state = event(&mut events, &app, EventKind::Stopped).await;
    let Some(ContainerState::Exited(exit)) = state else {
        panic!("{state:?}");
    };
    assert_eq!((exit.code, exit.reason.as_str()), (7, "Error"));
    assert!(exit.started_at.is_some_and(|started| started < exit.finished_at));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_run_and_bounded() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let (_, app) = world.run(&runtime, "echo up; sleep 1000").await;
    let output = runtime
        .exec_sync(&app, &exec("echo out; echo err >&2; exit 3", None))
        .await;
    let output = output.expect("it ran");
    assert_eq!(
        (output.outcome, output.output.as_slice()),
        (ExecOutcome::Exited(3), &b"out\nerr\n"[..])
    );
    let long = runtime
        .exec_sync(&app, &exec("yes | head -c 1000", None))
        .await
        .expect("it ran");
    assert_eq!((long.output.len(), long.truncated), (64, true));
    for timeout in [Duration::from_millis(700), Duration::from_secs(1)] {
        let late = runtime
            .exec_sync(&app, &exec("exec sleep 777", Some(timeout)))
            .await;
        assert_eq!(late.expect("it is no error").outcome, ExecOutcome::TimedOut);
    }
    eventually("end of the commands", async || {
        let ps = runtime
            .exec_sync(&app, &exec("ls -d /proc/[0-9]*", None))
            .await
            .ok()?;
        // The container's own two, and this one with its shell.
        (String::from_utf8_lossy(&ps.output).lines().count() <= 4).then_some(())
    })
    .await;
    let missing = ExecRequest {
        command: vec!["/no/such/program".into()],
        ..exec("", None)
    };
    let missing = runtime.exec_sync(&app, &missing).await;
    assert!(matches!(missing, Err(Error::CannotRun { .. })), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_have_streams() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let (_, app) = world.run(&runtime, "echo up; sleep 1000").await;
    let options = |script: &str, tty| ExecOptions {
        command: ["sh", "-c", script].map(Into::into).into(),
        tty,
        stdin: true,
        stdout: true,
        stderr: true,
        term: None,
    };
    let script = "cat; echo err >&2; exit 3";
    let mut streams = runtime.exec(&app, &options(script, false)).await.expect("begun");
    let text = "x".repeat(200_000);
    let mut stdin = streams.stdin.take().expect("asked for");
    let written = text.clone();
    // Its end is the end of what the command reads.
    tokio::spawn(async move { stdin.write_all(written.as_bytes()).await });
    let (mut out, mut err) = (String::new(), String::new());
    let mut stdout = streams.stdout.take().expect("asked for");
    let mut stderr = streams.stderr.take().expect("asked for");
    let (read, said) = tokio::join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err));
    assert_eq!((read.expect("read"), said.expect("read")), (text.len(), 4));
    assert_eq!((out, err.as_str()), (text, "err\n"));
    assert_eq!(streams.exit.await.expect("told").expect("it ran"), 3);
    // A terminal has a size, and one stream for all that is said.
    let script = "while read line; do stty size; done";
    let mut streams = runtime.exec(&app, &options(script, true)).await.expect("begun");
    assert!(streams.stderr.is_none());
    let resize = streams.resize.take().expect("a terminal");
    let mut stdin = streams.stdin.take().expect("asked for");
    let size = TerminalSize {
        columns: 97,
        rows: 41,
    };
    resize.send(size).await.expect("it listens");
    let mut stdout = streams.stdout.take().expect("asked for");
    eventually("size", async || {
        stdin.write_all(b"\n").await.ok();
        let mut piece = [0; 256];
        let length = stdout.read(&mut piece).await.expect("read");
        String::from_utf8_lossy(&piece[..length])
            .contains("41 97")
            .then_some(())
    })
    .await;
    // Without standard input it is told only how it ended.
    let quiet = ExecOptions {
        stdin: false,
        ..options("exit 0", false)
    };
    let streams = runtime.exec(&app, &quiet).await.expect("begun");
    assert!(streams.stdin.is_none());
    assert_eq!(streams.exit.await.expect("told").expect("it ran"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_attached_to() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let (_, app) = world
        .run(&runtime, "echo up; while :; do echo tick; sleep 0.1; done")
        .await;
    let options = AttachOptions {
        tty: false,
        stdin: false,
        stdout: true,
        stderr: false,
    };
    let mut streams = runtime.attach(&app, &options).await.expect("attached");
    let mut stdout = streams.stdout.take().expect("asked for");
    let mut piece = [0; 5];
    stdout.read_exact(&mut piece).await.expect("it speaks");
    assert_eq!(&piece, b"tick\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_forwarded() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let serve = "busybox httpd -p 8080 -h /usr/share/misc 2>/dev/null; echo up; sleep 1000";
    let (pod, _) = world.run(&runtime, serve).await;
    let mut stream = runtime.port_forward(&pod, 8080).await.expect("connected");
    stream
        .write_all(b"GET /none HTTP/1.0\r\n\r\n")
        .await
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.starts_with("HTTP/1."), "{answer:?}");
    // Nobody listens there, so there is nothing to read.
    let mut stream = runtime
        .port_forward(&pod, 1)
        .await
        .expect("the server connects later");
    let _ = stream.write_all(b"x").await;
    assert_eq!(stream.read(&mut [0; 8]).await.expect("an end"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_started_is_told() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let pod = runtime
        .run_sandbox(&sandbox(world.path()))
        .await
        .expect("a sandbox");
    let mut config = container(world.path(), "");
    config.command = vec!["/no/such/program".into()];
    let app = runtime.create_container(&pod, &config).await.expect("created");
    let started = runtime.start_container(&app).await;
    assert!(matches!(started, Err(Error::CannotRun { .. })), "{started:?}");
    config.attempt = 1;
    config.image = "pulselet.test/none:1".into();
    let refused = runtime.create_container(&pod, &config).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(runtime.image_status(&config.image).await.expect("asked"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_never_ran_counts_as_exited_when_it_is_stopped() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let pod = runtime
        .run_sandbox(&sandbox(world.path()))
        .await
        .expect("a sandbox");
    let config = container(world.path(), "sleep 1000");
    let app = runtime.create_container(&pod, &config).await.expect("created");
    runtime.stop_container(&app, GRACE).await.expect("stopped");
    assert_eq!(code(&runtime, &app).await, Some(137));
    assert!(runtime.start_container(&app).await.is_err());
    let all = runtime
        .list_containers(&ContainerFilter::default())
        .await
        .expect("listed");
    assert!(matches!(all[0].state, ContainerState::Exited(_)));
    runtime.remove_container(&app).await.expect("removed");
    let all = runtime
        .list_containers(&ContainerFilter::default())
        .await
        .expect("listed");
    assert!(all.is_empty(), "{all:?}");
}

/// It knows no stop signals, so the image's counts, and that is what is told.
#[tokio::test(flavor = "multi_thread")]
async fn the_signal_of_the_image_is_used_and_told() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let pod = runtime
        .run_sandbox(&sandbox(world.path()))
        .await
        .expect("a sandbox");
    let image = "pulselet.test/usr2:1";
    world.containerd.import(image, Some("SIGUSR2"));
    for (attempt, (image, signal, number)) in [(IMAGE, "SIGTERM", 15), (image, "SIGUSR2", 12)]
        .into_iter()
        .enumerate()
    {
        let mut config = container(world.path(), TRAPS);
        config.image = image.into();
        config.stop_signal = "SIGINT".parse().ok();
        config.attempt = u32::try_from(attempt).expect("small");
        config.log_path = world.path().join(format!("logs/app/{attempt}.log"));
        let app = runtime.create_container(&pod, &config).await.expect("created");
        runtime.start_container(&app).await.expect("started");
        eventually("log", async || {
            std::fs::read_to_string(&config.log_path).ok()?.find("up")
        })
        .await;
        let status = runtime.container_status(&app).await.expect("known");
        assert_eq!(status.stop_signal.map(Signal::name), Some(signal));
        runtime.stop_container(&app, GRACE).await.expect("stopped");
        assert_eq!(code(&runtime, &app).await, Some(number));
    }
    assert!(!runtime.version().await.expect("known").features.stop_signal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_can_be_shortened() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let (_, app) = world
        .run(&runtime, "trap '' TERM; echo up; while :; do sleep 0.1; done")
        .await;
    let patient = tokio::spawn({
        let (runtime, app) = (runtime.clone(), app.clone());
        async move { runtime.stop_container(&app, GRACE).await }
    });
    runtime
        .stop_container(&app, Duration::from_secs(1))
        .await
        .expect("stopped");
    patient.await.expect("no panic").expect("stopped");
    assert_eq!(code(&runtime, &app).await, Some(137));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_containerd_takes_nothing_with_it() {
    let Some(mut world) = World::new() else { return };
    let runtime = world.open().await;
    let (pod, app) = world.run(&runtime, TRAPS).await;
    let before = runtime.container_status(&app).await.expect("known");
    let mut events = runtime.events();
    world.containerd.kill();
    let away = runtime.list_containers(&ContainerFilter::default()).await;
    assert!(matches!(away, Err(Error::Unavailable { .. })), "{away:?}");
    let away = runtime.exec_sync(&app, &exec("true", None)).await;
    assert!(matches!(away, Err(Error::Unavailable { .. })), "{away:?}");
    world.containerd.resume();
    let after = eventually("answer", async || runtime.container_status(&app).await.ok()).await;
    assert_eq!(before, after);
    let listed = runtime.list_sandboxes().await.expect("listed");
    assert_eq!(listed.iter().map(|status| &status.id).collect::<Vec<_>>(), [&pod]);
    runtime.stop_container(&app, GRACE).await.expect("stopped");
    event(&mut events, &app, EventKind::Stopped).await;
    assert_eq!(code(&runtime, &app).await, Some(15));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_finds_its_containers_and_no_others() {
    let Some(world) = World::new() else { return };
    let first = world.open().await;
    let (pod, app) = world.run(&first, "echo up; sleep 1000").await;
    let status = first.container_status(&app).await.expect("known");
    drop(first);
    let stranger = open(world.containerd.socket(), &world.path().join("other")).await;
    assert!(stranger.list_sandboxes().await.expect("listed").is_empty());
    assert!(
        stranger
            .container_status(&app)
            .await
            .is_err_and(|error| error.is_not_found())
    );
    // The same pod again, at another owner's.
    let taken = stranger.run_sandbox(&sandbox(world.path())).await;
    assert!(matches!(taken, Err(Error::Failed { .. })), "{taken:?}");
    let second = world.open().await;
    let all = second
        .list_containers(&ContainerFilter::default())
        .await
        .expect("listed");
    assert_eq!(all, [status]);
    // It can still make containers in a sandbox that it never saw made.
    let mut config = container(world.path(), "echo up; sleep 1000");
    config.attempt = 1;
    config.log_path = world.path().join("logs/app/1.log");
    let next = second.create_container(&pod, &config).await.expect("created");
    second.start_container(&next).await.expect("started");
    second.remove_container(&app).await.expect("removed");
    let all = second
        .list_containers(&ContainerFilter::default())
        .await
        .expect("listed");
    assert_eq!(all.iter().map(|status| status.attempt).collect::<Vec<_>>(), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_below_a_volume_is_mounted_and_taken_away() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    let volume = world.path().join("volume");
    std::fs::create_dir_all(volume.join("part")).expect("made");
    std::fs::write(volume.join("part/file"), "mine").expect("written");
    let pod = runtime
        .run_sandbox(&sandbox(world.path()))
        .await
        .expect("a sandbox");
    let mut config = container(world.path(), "cat /data/file; exit 5");
    config.mounts.push(Mount {
        volume: "data".into(),
        container_path: "/data".into(),
        host_path: volume.clone(),
        image: None,
        sub_path: Some("part".into()),
        read_only: true,
        recursive_read_only: false,
        propagation: Propagation::Private,
    });
    let app = runtime.create_container(&pod, &config).await.expect("created");
    runtime.start_container(&app).await.expect("started");
    eventually("exit", async || code(&runtime, &app).await).await;
    let log = std::fs::read_to_string(&config.log_path).expect("a log");
    assert!(log.contains("mine"), "{log}");
    runtime.remove_sandbox(&pod).await.expect("removed");
    let places = world.path().join("root/sub-paths").join(pod.as_str());
    assert!(!places.exists());
    assert!(volume.join("part/file").exists());
}

/// As after a start whose caller died: a container that counts as exited, and a task that is in the way.
#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_task_does_not_keep_a_pod() {
    let Some(world) = World::new() else { return };
    let runtime = world.open().await;
    for remove_container in [true, false] {
        let (pod, app) = world.run(&runtime, "echo up; exit 0").await;
        eventually("exit", async || code(&runtime, &app).await).await;
        let started = world
            .containerd
            .ctr(&["tasks", "start", "-d", app.as_str()])
            .status();
        assert!(started.expect("ctr runs").success());
        if remove_container {
            runtime.remove_container(&app).await.expect("removed");
        }
        runtime.remove_sandbox(&pod).await.expect("removed");
        let all = runtime
            .list_containers(&ContainerFilter::default())
            .await
            .expect("listed");
        assert!(all.is_empty(), "{all:?}");
    }
}
