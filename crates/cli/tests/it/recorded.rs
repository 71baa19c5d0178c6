//! Pods that were recorded on a kubelet, run for real with the built-in runtime, and what happened compared.
//!
//! Counted are the lives that both runs have: the order of what the workload logs, signals, exit codes, phases and
//! events. Times are only bounded, generously. Not counted is what is meant to differ: a pod that is being deleted
//! restarts nothing, a killed container has an event `ExceededGracePeriod`, probes are exact (so that a life may be
//! shorter or there may be one more), and what a readiness probe sees of a container that was told to stop.

mod agent;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use agent::{Agent, NAMESPACE, Seen};

const RECORDINGS: &str = include_str!("../data/kubelet-runs.json");
/// What a loaded machine may add to a restart or to an end, in seconds.
const SLACK: f64 = 10.0;

/// One instance of a container; the first has number 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Life {
    container: String,
    number: u32,
}

/// Something the workload logs, and when, in seconds.
#[derive(Clone, Debug)]
struct Milestone {
    t: f64,
    line: String,
}

impl Milestone {
    /// None for what is no milestone.
    fn new(t: f64, line: &str) -> Option<Self> {
        let known = matches!(line, "start" | "up" | "down" | "bye");
        let logged = ["got ", "ignored ", "exit "]
            .iter()
            .any(|word| line.starts_with(word));
        (known || logged).then(|| Self {
            t,
            line: line.to_owned(),
        })
    }

    /// It comes from a signal, not from the workload's own clock.
    fn is_of_the_end(&self) -> bool {
        self.line == "bye" || self.line.starts_with("got ") || self.line.starts_with("ignored ")
    }
}

/// Exit code and reason.
type Exit = (i64, String);

/// What happened to a pod, reduced to what is compared.
#[derive(Debug, Default)]
struct Behaviour {
    phases: Vec<String>,
    logs: BTreeMap<Life, Vec<Milestone>>,
    exits: BTreeMap<Life, Exit>,
    /// Stop signals per container.
    signals: BTreeSet<(String, String)>,
    /// Reasons and messages.
    events: BTreeSet<(String, String)>,
    /// Seconds from the deletion until the pod was gone.
    stopping: f64,
}

/// A pod of the recordings.
struct Recorded {
    name: String,
    spec: Value,
    deleted_at: f64,
    logs: BTreeMap<Life, Vec<Milestone>>,
    whole: Value,
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn count(value: &Value) -> u32 {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.expect("a small number")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn recordings() -> Vec<Recorded> {
    let all: Vec<Value> = serde_json::from_str(RECORDINGS).expect("JSON");
    all.into_iter().map(Recorded::new).collect()
}

impl Recorded {
    fn new(whole: Value) -> Self {
        let mut logs: BTreeMap<Life, Vec<Milestone>> = BTreeMap::new();
        for (container, entries) in whole["logs"].as_object().expect("logs by container") {
            for entry in list(entries) {
                let life = Life {
                    container: container.clone(),
                    number: count(&entry["life"]),
                };
                let milestone = Milestone::new(number(&entry["t"]), &text(&entry["line"]));
                logs.entry(life).or_default().extend(milestone);
            }
        }
        Self {
            name: text(&whole["name"]),
            spec: whole["spec"].clone(),
            deleted_at: number(&whole["deletedAt"]),
            logs,
            whole,
        }
    }

    fn behaviour(&self) -> Behaviour {
        let mut behaviour = Behaviour {
            logs: self.logs.clone(),
            events: self.events(),
            stopping: number(&self.whole["goneAt"]) - self.deleted_at,
            ..Behaviour::default()
        };
        for status in list(&self.whole["status"]) {
            // The last change says only that the pod is gone.
            let Some(phase) = status["phase"].as_str() else {
                continue;
            };
            if behaviour.phases.last().is_none_or(|last| last != phase) {
                behaviour.phases.push(phase.to_owned());
            }
            for (container, status) in status["containers"].as_object().expect("containers by name") {
                if let Some(signal) = status["signal"].as_str() {
                    behaviour.signals.insert((container.clone(), signal.to_owned()));
                }
                if let Some(code) = status["exitCode"].as_i64() {
                    let life = Life {
                        container: container.clone(),
                        number: count(&status["restarts"]) + 1,
                    };
                    behaviour.exits.insert(life, (code, text(&status["reason"])));
                }
            }
        }
        behaviour
    }

    /// All events up to the stop of the containers, and no Unhealthy after it.
    fn events(&self) -> BTreeSet<(String, String)> {
        let mut stopping = false;
        let mut events = BTreeSet::new();
        for event in list(&self.whole["events"]) {
            let (reason, message) = (text(&event["reason"]), text(&event["message"]));
            stopping |= message.starts_with("Stopping container");
            if !(stopping && reason == "Unhealthy") {
                events.insert((reason, comparable(&message)));
            }
        }
        events
    }
}

/// A message without what no two runs have in common: addresses and uids.
fn comparable(message: &str) -> String {
    let message = message
        .split_once(&format!("_{NAMESPACE}("))
        .map_or(message, |(pod, _)| pod);
    let is_address = |word: &str| word.split('.').filter(|part| part.parse::<u8>().is_ok()).count() == 4;
    let mut result = String::new();
    for piece in message.split_inclusive(|letter: char| !letter.is_ascii_digit() && letter != '.') {
        let word = piece.trim_end_matches(|letter: char| !letter.is_ascii_digit() && letter != '.');
        if is_address(word) {
            result.push_str("ADDRESS");
            result.push_str(&piece[word.len()..]);
        } else {
            result.push_str(piece);
        }
    }
    result
}

/// Our own behaviour of a pod.
fn our_behaviour(seen: &Seen, pod: &str) -> Behaviour {
    let mut behaviour = Behaviour {
        logs: seen.logs(pod),
        stopping: seen.stopping(pod).unwrap_or(f64::INFINITY),
        ..Behaviour::default()
    };
    let mut lives: BTreeMap<String, u32> = BTreeMap::new();
    for line in seen.lines(pod) {
        let container = line["container"].as_str().unwrap_or_default().to_owned();
        match line["type"].as_str().expect("a type") {
            "phase" => behaviour.phases.push(text(&line["phase"])),
            "created" => drop(lives.insert(container, count(&line["restartCount"]) + 1)),
            "signal" => drop(behaviour.signals.insert((container, text(&line["signal"])))),
            "exited" => {
                let number = lives.get(&container).copied().unwrap_or_default();
                let exit = (line["exitCode"].as_i64().expect("a code"), text(&line["reason"]));
                behaviour.exits.insert(Life { container, number }, exit);
            }
            // Events go with their pod: those of its end are in lines.
            "killing" if line["reason"] == "stopped" => {
                let message = format!("Stopping container {container}");
                behaviour.events.insert(("Killing".to_owned(), message));
            }
            _ => {}
        }
    }
    for event in seen.events(pod) {
        if event.reason != "ExceededGracePeriod" {
            behaviour
                .events
                .insert((event.reason.clone(), comparable(&event.message)));
        }
    }
    behaviour
}

/// Everything in which our behaviour differs from the recorded one and should not.
fn differences(recorded: &Behaviour, ours: &Behaviour) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: &str, recorded: String, ours: String| {
        if recorded != ours {
            found.push(format!(
                "{what}:\n      recorded {recorded}\n      ours     {ours}"
            ));
        }
    };
    compare(
        "phases",
        format!("{:?}", recorded.phases),
        format!("{:?}", ours.phases),
    );
    for (life, theirs) in &recorded.logs {
        let lines = |log: &[Milestone]| log.iter().map(|entry| entry.line.clone()).collect::<Vec<_>>();
        if let Some(log) = ours.logs.get(life) {
            compare(
                &format!("log of {life:?}"),
                format!("{:?}", lines(theirs)),
                format!("{:?}", lines(log)),
            );
        }
    }
    for (life, exit) in &recorded.exits {
        if ours.logs.contains_key(life) {
            compare(
                &format!("exit of {life:?}"),
                format!("{:?}", Some(exit)),
                format!("{:?}", ours.exits.get(life)),
            );
        }
    }
    let events = |only: BTreeSet<&(String, String)>| format!("{only:?}");
    compare(
        "events only there",
        events(recorded.events.difference(&ours.events).collect()),
        events(BTreeSet::new()),
    );
    // One more life of ours has events of its own.
    if ours.logs.keys().all(|life| recorded.logs.contains_key(life)) {
        compare(
            "events only here",
            events(BTreeSet::new()),
            events(ours.events.difference(&recorded.events).collect()),
        );
    }
    found.extend(wrong_signals(recorded, ours));
    found.extend(delays(recorded, ours));
    found
}

/// Signals we sent that the recorded status does not have.
fn wrong_signals(recorded: &Behaviour, ours: &Behaviour) -> Option<String> {
    let wrong: Vec<_> = ours.signals.difference(&recorded.signals).collect();
    (!wrong.is_empty()).then(|| format!("signals: recorded {:?}, ours {wrong:?}", recorded.signals))
}

/// Restarts and ends that took much longer than the recorded ones.
fn delays(recorded: &Behaviour, ours: &Behaviour) -> Vec<String> {
    let pauses = |behaviour: &Behaviour, life: &Life| {
        let next = Life {
            container: life.container.clone(),
            number: life.number + 1,
        };
        Some(behaviour.logs.get(&next)?.first()?.t - behaviour.logs.get(life)?.last()?.t)
    };
    let mut found = Vec::new();
    for life in recorded.logs.keys() {
        if let (Some(theirs), Some(pause)) = (pauses(recorded, life), pauses(ours, life))
            && pause > theirs + SLACK
        {
            found.push(format!(
                "restart after {life:?}: recorded {theirs} s, ours {pause} s"
            ));
        }
    }
    if ours.stopping > recorded.stopping + SLACK {
        let (theirs, stopping) = (recorded.stopping, ours.stopping);
        found.push(format!(
            "from deletion to gone: recorded {theirs} s, ours {stopping} s"
        ));
    }
    found
}

/// Lives that upstream begins although the pod is being deleted.
fn begins_after_deletion(pod: &Recorded, life: &Life) -> bool {
    pod.logs[life]
        .first()
        .is_some_and(|first| first.t > pod.deleted_at)
}

#[test]
fn recorded_pods_behave_the_same_here() {
    let root = pulselet_testing::requires("root", pulselet_testing::is_root());
    let pods = recordings();
    let Some(agent) = root.then(|| Agent::start(&pods)).flatten() else {
        return;
    };
    let (seen, status, remarks) = agent.play(&pods);
    // Two of the pods fail, in the recording too.
    assert_eq!(status.code(), Some(1), "{remarks}");
    let mut report = Vec::new();
    for pod in &pods {
        let ours = our_behaviour(&seen, &pod.name);
        let mut found = differences(&pod.behaviour(), &ours);
        for life in pod.logs.keys().filter(|life| !begins_after_deletion(pod, life)) {
            if !ours.logs.contains_key(life) {
                found.push(format!("no {life:?}"));
            }
        }
        report.extend(found.iter().map(|found| format!("{}: {found}", pod.name)));
    }
    assert!(
        report.is_empty(),
        "differences:\n{}\nagent: {remarks}",
        report.join("\n")
    );
}

#[test]
fn messages_are_compared_without_addresses_and_uids() {
    assert_eq!(
        comparable("dial tcp 10.88.1.46:9999: connect: connection refused"),
        "dial tcp ADDRESS:9999: connect: connection refused"
    );
    assert_eq!(
        comparable("container app in pod web_diff(0-1)"),
        "container app in pod web"
    );
    assert_eq!(comparable("busybox:1.35 after 1s"), "busybox:1.35 after 1s");
}
