//! Paths as users type them: relative to where they are, by way of a link, longer than the kernel takes for a socket.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::harness::{Agent, eventually};
use super::world::{Runtime, World, e2e};

const FREE_PORT: &str = "127.0.0.1:0";
/// More than the kernel takes of a socket's path.
const LONG: usize = 120;

/// A command that is started somewhere and names its data directory as seen from there.
#[derive(Clone, Copy)]
struct Place<'a> {
    cwd: &'a Path,
    data_dir: &'a Path,
}

impl Place<'_> {
    fn command(self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pulselet"));
        command.args(args).arg("--data-dir").arg(self.data_dir);
        command.current_dir(self.cwd);
        command
    }

    /// The output of a command that must succeed.
    fn ask(self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Starts a run of one pod named `web`.
    fn run(self, world: &World, container: &Value) -> Agent {
        let manifest = world.manifest("web", &json!({"containers": [container]}));
        let mut command = self.command(&["run", "--runtime", &world.runtime_flag(), "-o", "json"]);
        command.arg(manifest);
        Agent::start(command)
    }
}

fn at<'a>(cwd: &'a Path, data_dir: &'a (impl AsRef<Path> + ?Sized)) -> Place<'a> {
    let data_dir = data_dir.as_ref();
    Place { cwd, data_dir }
}

/// Where a data directory has to be named by its absolute path.
fn elsewhere(data_dir: &Path) -> Place<'_> {
    at(Path::new("/"), data_dir)
}

/// A daemon that is killed when dropped.
struct Daemon(Child);

impl Daemon {
    fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn first_line(&mut self) -> String {
        let mut line = String::new();
        let stdout = self.0.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Says hello, then runs until it is told to end.
fn greeter(world: &World) -> Value {
    greeter_after(world, "true")
}

/// The same after a command of the shell.
fn greeter_after(world: &World, first: &str) -> Value {
    let script = format!("{first}; echo hello; trap 'exit 0' TERM; while :; do sleep 0.1; done");
    world.container("app", &["sh", "-c", &script])
}

/// Writes `manifests/web.json`.
fn static_pod(world: &World) {
    std::fs::create_dir(world.path("manifests")).unwrap();
    let written = world.manifest("web", &json!({"containers": [greeter(world)]}));
    std::fs::rename(written, world.path("manifests/web.json")).unwrap();
}

/// Waits until a pod is ready; its view.
fn until_ready(world: &World, name: &str) -> Value {
    eventually(name, || {
        let pods = world.pods()?;
        let pod = pods.into_iter().find(|pod| pod["name"] == name)?;
        (pod["status"]["containerStatuses"][0]["ready"] == true).then_some(pod)
    })
}

/// Asks for a pod in each place.
fn ask(pod: &str, places: &[Place<'_>]) {
    for place in places {
        let listed = place.ask(&["ps"]);
        assert!(listed.contains(pod) && listed.contains("Running"), "{listed}");
        eventually("greeting", || {
            (place.ask(&["logs", pod]) == "hello\n").then_some(())
        });
        place.ask(&["history", pod]);
        assert_eq!(place.ask(&["image", "ls", "-o", "json"]), "");
    }
}

fn stop(pod: &str, place: Place<'_>) {
    let stopped = place.ask(&["stop", pod]);
    assert_eq!(stopped, format!("pod default/{pod} stopped\n"));
}

/// Runs a pod that says nothing but hello in one place, asks for it in both, and stops it in the second.
fn run_ask_stop(world: &World, container: &Value, places: [Place<'_>; 2]) {
    let [first, second] = places;
    let mut agent = first.run(world, container);
    agent.until_is("", "ready");
    ask("web", &places);
    stop("web", second);
    let ended = agent.finish();
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.transcript(), ended.stderr);
    assert!(world.processes().is_empty());
}

e2e!(
    a_run_with_a_relative_data_directory,
    [Process, Oci, OwnCri],
    |world| {
        let (here, absolute) = (world.directory.path(), world.data());
        run_ask_stop(world, &greeter(world), [at(here, "./data"), elsewhere(&absolute)]);
        // The other way round, in the same directory.
        run_ask_stop(world, &greeter(world), [elsewhere(&absolute), at(here, "data")]);
    }
);

e2e!(
    the_next_agent_may_name_the_same_paths_otherwise,
    [Process, Oci, OwnCri],
    |world| {
        static_pod(world);
        let node = |place: Place<'_>, manifests: &Path| {
            let mut command = place.command(&["node", "--metrics", FREE_PORT]);
            command.arg("--manifests").arg(manifests);
            command.args(["--config", &world.config("hostImage: true\n")]);
            command.args(["--runtime", &world.runtime_flag()]);
            Daemon::start(command)
        };
        let below = world.path("below");
        std::fs::create_dir(&below).unwrap();
        let first = node(at(&below, "../data"), Path::new("../manifests"));
        let before = until_ready(world, "web");
        drop(first);
        let second = node(elsewhere(&world.data()), &world.path("manifests"));
        let after = until_ready(world, "web");
        let container = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
        assert_eq!(container(&after), container(&before), "{after:#}");
        // The file is followed under its other name: without it the pod goes.
        std::fs::remove_file(world.path("manifests/web.json")).unwrap();
        eventually("end of the pod", || world.pods()?.is_empty().then_some(()));
        drop(second);
        assert!(world.processes().is_empty());
    }
);

e2e!(a_server_with_relative_paths, [Process, Oci, OwnCri], |world| {
    static_pod(world);
    let (here, absolute) = (world.directory.path(), world.data());
    let place = at(here, "./data");
    let mut command = place.command(&["serve", "--manifests", "manifests", "--node-name", "node"]);
    command.args(["--listen", FREE_PORT, "--node-listen", FREE_PORT]);
    command.args(["--metrics", FREE_PORT, "--runtime", &world.runtime_flag()]);
    command.args(["--config", &world.config("hostImage: true\n")]);
    let mut server = Daemon::start(command);
    let line = server.first_line();
    let (_, kubeconfig) = line.split_once("kubeconfig: ").unwrap();
    let real = here.canonicalize().unwrap().join("data/admin.kubeconfig");
    assert_eq!(Path::new(kubeconfig), real);
    until_ready(world, "web-node");
    assert!(
        place
            .ask(&["api", "kubeconfig", "--node", "other"])
            .contains("client-key-data")
    );
    ask("web-node", &[place, elsewhere(&absolute)]);
    stop("web-node", place);
    drop(server);
    assert!(world.processes().is_empty());
});

e2e!(a_data_directory_behind_a_link, [Process, Oci, OwnCri], |world| {
    let (here, real) = (world.directory.path(), world.path("real"));
    std::fs::create_dir(&real).unwrap();
    symlink("real", world.data()).unwrap();
    let app = match world.runtime {
        Runtime::Process | Runtime::Containerd | Runtime::OwnCri => greeter(world),
        // The host's files are shown to it, those of the agent are not.
        Runtime::Oci => greeter_after(world, &format!("ls {} 2>/dev/null", real.display())),
    };
    run_ask_stop(world, &app, [at(here, "data"), elsewhere(&real)]);
});

e2e!(a_path_too_long_for_a_socket, [Process, Oci, OwnCri], |world| {
    let (here, long) = (world.directory.path(), "l".repeat(LONG));
    let absolute = here.join(&long);
    run_ask_stop(world, &greeter(world), [at(here, &long), elsewhere(&absolute)]);
    let nobody = at(here, &long).command(&["ps"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&nobody.stderr);
    assert!(stderr.contains("no agent answers at"), "{stderr}");
});

e2e!(a_working_directory_that_is_gone, [Process], |world| {
    let ps = |data_dir: &str| {
        let gone = world.path("gone");
        std::fs::create_dir(&gone).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"rmdir "$PWD"; exec "$0" ps --data-dir "$1""#]);
        shell.args([env!("CARGO_BIN_EXE_pulselet"), data_dir]);
        let output = shell.current_dir(&gone).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let relative = ps("data");
    assert!(
        relative.contains("working directory") && relative.contains("hint: "),
        "{relative}"
    );
    let absolute = ps(world.data().to_str().unwrap());
    assert!(absolute.contains("no agent answers at"), "{absolute}");
});
