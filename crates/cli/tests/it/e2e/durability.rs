//! The agent is killed again and again while pods start, fail, are killed and restart. Nothing is lost by it.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::harness::{Line, eventually, of};
use super::world::{Runtime, World, e2e, http, port, with};

/// How often the agent is killed. Containers of their own take longer to come to anything, so there are fewer.
const fn kills(runtime: Runtime) -> u64 {
    match runtime {
        Runtime::Process => 200,
        Runtime::Oci => 100,
        Runtime::Containerd | Runtime::OwnCri => 30,
    }
}

/// Milliseconds that agents live up to; many die while they adopt. What a server was asked for and had not done when the
/// agent died it gives up, so there they get more.
const fn longest_life(runtime: Runtime) -> u64 {
    match runtime {
        Runtime::Process | Runtime::Oci => 300,
        Runtime::Containerd | Runtime::OwnCri => 900,
    }
}

/// Now and then one lives this many times as long, so that the pods get somewhere.
const EVERY_TENTH: u64 = 5;

/// What a container wrote of its lives: its log goes to a file that no restart touches.
struct LifeLog(PathBuf);

impl LifeLog {
    fn lives(&self) -> Vec<Vec<String>> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let mut lives: Vec<Vec<String>> = Vec::new();
        for line in text.lines() {
            if line == "start" {
                lives.push(Vec::new());
            }
            lives
                .last_mut()
                .expect("a life begins with its start")
                .push(line.to_owned());
        }
        lives
    }
}

/// A demo that keeps a log of its lives.
fn demo(world: &World, name: &str, flags: &str) -> (Value, LifeLog) {
    let log = world.shared().join(name);
    let script = format!(
        "exec {} demo {flags} >> {}",
        world.runtime.program(),
        log.display()
    );
    let container = world.container(name, &["sh", "-c", &script]);
    (world.sharing(container), LifeLog(log))
}

e2e!(an_agent_killed_again_and_again_loses_nothing, |world| {
    let ports = [port(), port()];
    let (steady, steady_diary) = demo(world, "steady", &format!("--port {}", ports[0]));
    let steady = with(
        steady,
        json!({
            "startupProbe": http(ports[0], json!({"periodSeconds": 1, "failureThreshold": 60})),
            "livenessProbe": http(ports[0], json!({"periodSeconds": 1, "failureThreshold": 10, "timeoutSeconds": 10})),
            "readinessProbe": http(ports[0], json!({"periodSeconds": 1, "failureThreshold": 10, "timeoutSeconds": 10})),
        }),
    );
    let (sick, sick_diary) = demo(world, "sick", &format!("--port {} --fail-at 1s", ports[1]));
    // Until it was seen up it may fail more often, so that a slow start does not condemn it.
    let fields = json!({"periodSeconds": 1, "failureThreshold": 1, "initializationFailureThreshold": 3, "timeoutSeconds": 10});
    let sick = with(sick, json!({"livenessProbe": http(ports[1], fields)}));
    let (deaf, deaf_diary) = demo(world, "deaf", "--fail-at 1s --ignore SIGTERM");
    let fields = json!({"periodSeconds": 1, "failureThreshold": 1, "terminationGracePeriodSeconds": 1});
    let deaf = with(deaf, json!({"startupProbe": http(port(), fields)}));
    let (crashing, crashing_diary) = demo(world, "crashing", "--exit-at 700ms --exit-code 5");
    let files = [
        world.manifest("steady", &json!({"containers": [steady]})),
        world.manifest("sick", &json!({"containers": [sick, deaf]})),
        world.manifest("crashing", &json!({"containers": [crashing]})),
    ];
    let config = world.config("crashLoopBackOff: {initial: 1s, max: 1s}\n");
    let (mut lines, pids) = kill_again_and_again(world, &files, &config);

    let mut last = world.run_files(&files, &["--config", &config]);
    last.until_is("crashing", "exited:5");
    for name in ["sick", "deaf"] {
        last.sooner_or_later(name, |line| line["container"] == name);
    }
    last.until_is("steady", "probe:readiness:success");
    let listed = world.pods().expect("the agent answers");
    let ended = last.interrupt();
    let (before, after) = split_at_deletion(&ended.seen);
    lines.extend(before);

    nothing_happened_to_the_steady_one(&lines, &steady_diary);
    time_goes_on(&lines);
    // A start that a server took back is an exit of a container that never ran.
    let ran = |line: &&Line| world.runtime != Runtime::Containerd || line["reason"] != "StartError";
    assert_eq!(of(&lines, "steady", "exited").filter(ran).count(), 0);
    let known = |line: &&Line| line["exitCode"] != 255;
    let exits = |name: &'static str| of(&lines, name, "exited").chain(of(&after, name, "exited"));
    for name in ["sick", "deaf", "crashing"] {
        assert!(
            exits(name).all(|line| known(&line)),
            "an exit status of {name} was lost"
        );
    }
    // A life was ended because of its probe, never before it had failed.
    for life in sick_diary
        .lives()
        .iter()
        .rev()
        .skip(1)
        .filter(|life| !is_undone(world, life))
    {
        let place = |what: &str| life.iter().position(|line| line == what);
        assert!(
            place("down") < place("got SIGTERM") && place("down").is_some(),
            "{life:?}"
        );
    }
    for life in crashing_diary
        .lives()
        .iter()
        .rev()
        .skip(1)
        .filter(|life| !is_undone(world, life))
    {
        assert_eq!(life.last().map(String::as_str), Some("exit 5"), "{life:?}");
    }
    let restarts = restart_counts(&listed);
    for (name, log) in [
        ("steady", &steady_diary),
        ("sick", &sick_diary),
        ("deaf", &deaf_diary),
        ("crashing", &crashing_diary),
    ] {
        let (_, count) = restarts
            .iter()
            .find(|(container, _)| container == name)
            .expect("listed");
        let starts = u64::try_from(log.lives().len()).unwrap();
        // One more may have begun after the question, and the last one may have been stopped before it wrote a line.
        let uncertain = u64::from(name != "steady");
        let most = count + 1 + uncertain;
        let fewest = match world.runtime {
            Runtime::Process | Runtime::Oci => count + 1 - uncertain,
            // A start whose caller died may be given up by the server: a life that never ran.
            Runtime::Containerd | Runtime::OwnCri => 1,
        };
        assert!(
            (fewest..=most).contains(&starts),
            "{name}: {starts} starts, {count} restarts"
        );
    }
    nothing_is_left(world, &pids);
});

/// Whether a server took a life back at once, because the agent that had asked for it died before the answer.
fn is_undone(world: &World, life: &[String]) -> bool {
    let just_begun = matches!(life.last().map(String::as_str), Some("start" | "up"));
    world.runtime == Runtime::Containerd && just_begun
}

/// Runs and kills agents; all lines they published, and every process there was.
fn kill_again_and_again(world: &World, files: &[PathBuf], config: &str) -> (Vec<Line>, BTreeSet<i32>) {
    let random = RandomState::new();
    let mut lines = Vec::new();
    let mut pids = BTreeSet::new();
    for round in 0..kills(world.runtime) {
        let agent = world.run_files(files, &["--config", config]);
        let times = if round % 10 == 0 { EVERY_TENTH } else { 1 };
        let longest = longest_life(world.runtime) * times;
        // The instant of death is the test's input; nothing is waited for.
        std::thread::sleep(Duration::from_millis(random.hash_one(round) % longest));
        if round % 10 == 0 {
            pids.extend(world.processes());
        }
        lines.extend(agent.kill().seen);
    }
    (lines, pids)
}

/// Lines up to the first kill of a deletion, and those from there on.
fn split_at_deletion(lines: &[Line]) -> (Vec<Line>, Vec<Line>) {
    let at = lines.iter().position(|line| line.brief() == "killing:deleted");
    let (before, after) = lines.split_at(at.expect("the pods were deleted"));
    (before.to_vec(), after.to_vec())
}

fn nothing_happened_to_the_steady_one(lines: &[Line], log: &LifeLog) {
    let its_lives = log.lives();
    assert_eq!(its_lives.len(), 1, "{its_lives:?}");
    assert_eq!(of(lines, "steady", "unready").count(), 0, "ready stays ready");
    assert_eq!(of(lines, "steady", "killing").count(), 0);
    let ids: BTreeSet<&str> = of(lines, "steady", "running")
        .filter_map(|line| line["id"].as_str())
        .collect();
    assert!(ids.len() <= 1, "{ids:?}");
    let pod_unready = lines
        .iter()
        .filter(|line| line["pod"] == "default/steady" && line.is("", "unready"));
    assert_eq!(pod_unready.count(), 0);
}

/// The time of a pod goes on across agents.
fn time_goes_on(lines: &[Line]) {
    for pod in ["default/steady", "default/sick", "default/crashing"] {
        let lines: Vec<&Line> = lines.iter().filter(|line| line["pod"] == pod).collect();
        for pair in lines.windows(2) {
            assert!(pair[0].t() <= pair[1].t(), "time went back: {pair:?}");
        }
    }
}

fn restart_counts(pods: &[Value]) -> Vec<(String, u64)> {
    let statuses = pods
        .iter()
        .filter_map(|pod| pod["status"]["containerStatuses"].as_array());
    let count = |status: &Value| {
        let name = status["name"].as_str().expect("a name").to_owned();
        (name, status["restartCount"].as_u64().expect("a number"))
    };
    statuses.flatten().map(count).collect()
}

/// No process of the pods is left, not even as a zombie, and nothing on the disk.
fn nothing_is_left(world: &World, pids: &BTreeSet<i32>) {
    assert!(world.processes().is_empty(), "{:?}", world.processes());
    // Shims whose agent was killed are the init process's to reap, which takes its time.
    eventually("end of the zombies", || {
        (!pids.iter().any(|pid| is_zombie(*pid))).then_some(())
    });
    let left = |name: &str| std::fs::read_dir(world.data().join(name)).map_or(0, Iterator::count);
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts are listed");
    let directory = world.directory.path().to_str().expect("a plain path");
    assert!(!mounts.contains(directory), "{mounts}");
    let of_runtime = |name: &str| left(&format!("{}/{name}", world.runtime.name()));
    assert_eq!(
        left("pods") + of_runtime("containers") + of_runtime("sandboxes"),
        0
    );
}

fn is_zombie(pid: i32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    // The name is in parentheses and may hold anything.
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}
