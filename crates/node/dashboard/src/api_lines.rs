//! What an API knows of pods, as the event lines that a node would have written.
//!
//! Status and events tell less than a node knows: no probe that succeeded, no signal, and times in whole seconds. What is
//! told here was said by the API or follows from the manifest by the rules of Kubernetes; nothing else is made up. Events
//! that mean nothing for a timeline are told in their own words.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use pulselet_agent::pod_name_of;
use pulselet_cluster::{ObservedEvent, Seen};
use pulselet_engine::line::{GraceFrom, KillReason, LineBody, LineOutcome, LineRecord};
use pulselet_engine::plan::ProbeKind;
use pulselet_engine::time::Span;
use pulselet_model::{Container, Pod, Probe};
use pulselet_vocabulary::PodName;
use serde::Serialize;

use crate::api_status;

/// The grace period of a pod that names none, in seconds.
const DEFAULT_GRACE: i64 = 30;

/// What is kept of a namespace, and what is not told yet.
#[derive(Debug, Default)]
pub(crate) struct ApiStory {
    pods: BTreeMap<PodName, Pod>,
    pod_news: Vec<Seen<Pod>>,
    event_news: Vec<ObservedEvent>,
    /// Per uid of an event, how often it has happened as far as was told.
    told_events: HashMap<String, u32>,
    runs: HashMap<ProbeKey, FailureRun>,
}

/// A probe of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProbeKey {
    uid: String,
    container: String,
    kind: ProbeKind,
}

/// Failures in a row, as far as events tell.
#[derive(Clone, Debug)]
struct FailureRun {
    /// `None` if nobody knows how many.
    count: Option<u32>,
    last: Timestamp,
    detail: String,
    /// The last of them was concluded from a kill; its own event comes later.
    is_concluded: bool,
}

/// Something to tell.
#[derive(Debug)]
pub(crate) struct ApiLine {
    pub(crate) at: Timestamp,
    pub(crate) container: Option<String>,
    pub(crate) body: ApiLineBody,
}

#[derive(Debug)]
pub(crate) enum ApiLineBody {
    Line(LineBody),
    Event(EventLine),
}

/// An event in its own words.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "event")]
pub(crate) struct EventLine {
    warning: bool,
    reason: String,
    message: String,
}

/// A line of either kind as JSON, as [`LineRecord`] has it.
#[derive(Debug, Serialize)]
struct EventRecord<'a> {
    t: f64,
    time: &'a str,
    pod: &'a PodName,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<&'a str>,
    #[serde(flatten)]
    event: &'a EventLine,
}

impl ApiStory {
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    pub(crate) fn take_pods(&mut self, seen: Seen<Pod>) {
        self.pod_news.push(seen);
    }

    pub(crate) fn take_events(&mut self, seen: Seen<ObservedEvent>) {
        match seen {
            Seen::Listed(events) => {
                let is_there = |uid: &str| events.iter().any(|event| event.metadata.uid == uid);
                self.told_events.retain(|uid, _| is_there(uid));
                self.event_news.extend(events);
            }
            Seen::Changed(event) => self.event_news.push(*event),
            Seen::Gone(event) => {
                self.told_events.remove(&event.metadata.uid);
            }
        }
    }

    /// Everything that came since it was asked last, as lines in order of time.
    pub(crate) fn drain(&mut self, now: Timestamp) -> Vec<String> {
        let mut told = Vec::new();
        // Events of a life come before the status that has the next one.
        let events = std::mem::take(&mut self.event_news);
        let (known, others): (Vec<_>, Vec<_>) = events
            .into_iter()
            .partition(|event| self.subject(event).is_some());
        self.tell_events(known, &mut told);
        for seen in std::mem::take(&mut self.pod_news) {
            self.tell_pods(seen, now, &mut told);
        }
        self.tell_events(others, &mut told);
        told.sort_by_key(|(_, line)| (line.at, line.rank()));
        told.iter().map(|(pod, line)| json(pod, line)).collect()
    }

    /// The pod that an event is about; `None` if it is another object, or an earlier pod of that name.
    fn subject(&self, event: &ObservedEvent) -> Option<&Pod> {
        let subject = &event.involved_object;
        let mut pods = self.pods.values();
        pods.find(|pod| pod.name() == subject.name && pod.metadata.uid.as_deref() == Some(&subject.uid))
            .filter(|_| subject.kind == "Pod")
    }

    fn tell_pods(&mut self, seen: Seen<Pod>, now: Timestamp, told: &mut Vec<(Subject, ApiLine)>) {
        match seen {
            Seen::Listed(pods) => {
                let there: Vec<PodName> = pods.iter().map(pod_name_of).collect();
                let gone: Vec<PodName> = self
                    .pods
                    .keys()
                    .filter(|name| !there.contains(name))
                    .cloned()
                    .collect();
                for name in gone {
                    self.remove(&name, now, told);
                }
                for pod in pods {
                    self.change(pod, now, told);
                }
            }
            Seen::Changed(pod) => self.change(*pod, now, told),
            Seen::Gone(pod) => {
                let name = pod_name_of(&pod);
                // Its last status comes with its end.
                self.change(*pod, now, told);
                self.remove(&name, now, told);
            }
        }
    }

    fn change(&mut self, pod: Pod, now: Timestamp, told: &mut Vec<(Subject, ApiLine)>) {
        let name = pod_name_of(&pod);
        if self
            .pods
            .get(&name)
            .is_some_and(|before| before.metadata.uid != pod.metadata.uid)
        {
            self.remove(&name, now, told);
        }
        let before = self.pods.get(&name);
        for line in api_status::lines(before, &pod, now) {
            // Another life begins to count anew.
            if let (ApiLineBody::Line(LineBody::Running { .. }), Some(container)) =
                (&line.body, &line.container)
            {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                self.runs
                    .retain(|key, _| key.uid != uid || key.container != *container);
            }
            told.push((Subject::of(&pod), line));
        }
        self.pods.insert(name, pod);
    }

    fn remove(&mut self, name: &PodName, now: Timestamp, told: &mut Vec<(Subject, ApiLine)>) {
        let Some(pod) = self.pods.remove(name) else { return };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.runs.retain(|key, _| key.uid != uid);
        told.push((Subject::of(&pod), ApiLine::of_pod(now, LineBody::Deleted)));
    }

    fn tell_events(&mut self, mut events: Vec<ObservedEvent>, told: &mut Vec<(Subject, ApiLine)>) {
        events.sort_by_key(|event| (event.last(), Kill::read(event).is_some()));
        for event in events {
            let Some(pod) = self.subject(&event).cloned() else {
                continue;
            };
            let before = self.told_events.insert(event.metadata.uid.clone(), event.times());
            let Some(at) = event.last().filter(|_| before != Some(event.times())) else {
                continue;
            };
            let subject = Subject::of(&pod);
            for line in self.event_lines(&pod, &event, before, at) {
                told.push((subject.clone(), line));
            }
        }
    }

    /// `before` is how often it had happened when it was told last; `None` if it was not.
    fn event_lines(
        &mut self,
        pod: &Pod,
        event: &ObservedEvent,
        before: Option<u32>,
        at: Timestamp,
    ) -> Vec<ApiLine> {
        let container = event.container().map(str::to_owned);
        let line = |at: Timestamp, body: ApiLineBody| ApiLine {
            at,
            container: container.clone(),
            body,
        };
        if let (Some(name), Some(answer)) = (&container, ProbeAnswer::read(event)) {
            let attempts = match answer.outcome {
                LineOutcome::Failure => self.count(pod, name, event, &answer, before),
                LineOutcome::Success | LineOutcome::Warning | LineOutcome::Error => vec![(at, 0)],
            };
            let told = attempts.into_iter();
            return told
                .map(|(at, run)| line(at, ApiLineBody::Line(answer.line(run))))
                .collect();
        }
        if let (Some(name), Some(kill)) = (&container, Kill::read(event)) {
            let failure = self.conclude(pod, name, event, kill, at);
            let told = failure.into_iter().chain([kill.line(pod, name)]);
            return told.map(|body| line(at, ApiLineBody::Line(body))).collect();
        }
        let told = EventLine {
            warning: event.kind == "Warning",
            reason: event.reason.clone(),
            message: event.message.clone(),
        };
        vec![line(at, ApiLineBody::Event(told))]
    }

    /// When a probe failed and how often in a row by then, 0 if that cannot be told.
    fn count(
        &mut self,
        pod: &Pod,
        container: &str,
        event: &ObservedEvent,
        answer: &ProbeAnswer,
        before: Option<u32>,
    ) -> Vec<(Timestamp, u32)> {
        let (Some(first), Some(last)) = (event.first(), event.last()) else {
            return Vec::new();
        };
        let key = ProbeKey::new(event, container, answer.kind);
        let rhythm = Rhythm::of(pod, container, answer.kind);
        let times = event.times();
        let known = self.runs.get_mut(&key);
        if let Some(run) = known
            && run.is_concluded
            && run.last.as_second() == last.as_second()
        {
            run.is_concluded = false;
            return Vec::new();
        }
        let known = self.runs.get(&key);
        let (mut attempts, count) = if before.is_none() && times > 1 {
            // Seen for the first time, and it has happened before.
            let is_row = rhythm.is_row(first, last, times)
                && api_status::life_began(pod, container, last).is_none_or(|began| began <= first);
            if is_row {
                (vec![(first, 1)], Some(times))
            } else {
                (Vec::new(), None)
            }
        } else {
            let more = times.saturating_sub(before.unwrap_or(0)).max(1);
            let row = known.filter(|run| rhythm.is_row(run.last, last, more + 1));
            let count = row.map_or(Some(more), |run| {
                run.count.map(|count| count.saturating_add(more))
            });
            (Vec::new(), count)
        };
        let run = FailureRun {
            count,
            last,
            detail: answer.detail.clone(),
            is_concluded: false,
        };
        self.runs.insert(key, run);
        attempts.push((last, count.map_or(0, |count| rhythm.bounded(answer.kind, count))));
        attempts
    }

    /// The failure that a kill follows from, where its own event is not there yet: nodes count equal events late.
    fn conclude(
        &mut self,
        pod: &Pod,
        container: &str,
        event: &ObservedEvent,
        kill: Kill,
        at: Timestamp,
    ) -> Option<LineBody> {
        let kind = kill.kind?;
        let rhythm = Rhythm::of(pod, container, kind);
        let run = self.runs.get_mut(&ProbeKey::new(event, container, kind))?;
        let is_patient = probe_of(pod, container, kind)?.initialization_failure_threshold != 0;
        if is_patient || run.count? >= rhythm.threshold {
            return None;
        }
        run.count = Some(rhythm.threshold);
        run.is_concluded = run.last.as_second() != at.as_second();
        run.last = at;
        let answer = ProbeAnswer {
            kind,
            outcome: LineOutcome::Failure,
            detail: run.detail.clone(),
        };
        Some(answer.line(rhythm.threshold))
    }
}

impl ProbeKey {
    fn new(event: &ObservedEvent, container: &str, kind: ProbeKind) -> Self {
        Self {
            uid: event.involved_object.uid.clone(),
            container: container.to_owned(),
            kind,
        }
    }
}

impl ApiLine {
    pub(crate) fn of_pod(at: Timestamp, body: LineBody) -> Self {
        Self {
            at,
            container: None,
            body: ApiLineBody::Line(body),
        }
    }

    pub(crate) fn of_container(at: Timestamp, container: &str, body: LineBody) -> Self {
        Self {
            at,
            container: Some(container.to_owned()),
            body: ApiLineBody::Line(body),
        }
    }

    /// Within a second, which is all that an API tells, failures come before the kill and the kill before the exit.
    fn rank(&self) -> u8 {
        match &self.body {
            ApiLineBody::Line(LineBody::Probe { .. }) => 0,
            ApiLineBody::Line(LineBody::Killing { .. }) => 1,
            ApiLineBody::Line(_) | ApiLineBody::Event(_) => 2,
        }
    }
}

/// Whom a line is about.
#[derive(Clone, Debug)]
struct Subject {
    pod: PodName,
    created: Option<Timestamp>,
}

impl Subject {
    fn of(pod: &Pod) -> Self {
        Self {
            pod: pod_name_of(pod),
            created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
        }
    }
}

fn json(subject: &Subject, line: &ApiLine) -> String {
    let since = subject.created.unwrap_or(line.at);
    let t = line.at.duration_since(since).as_secs_f64().max(0.0);
    let time = line.at.to_string();
    let (pod, container) = (&subject.pod, line.container.as_deref());
    let text = match &line.body {
        ApiLineBody::Line(body) => serde_json::to_string(&LineRecord {
            t,
            time: Some(&time),
            pod,
            container,
            body,
        }),
        ApiLineBody::Event(event) => serde_json::to_string(&EventRecord {
            t,
            time: &time,
            pod,
            container,
            event,
        }),
    };
    text.expect("a line is plain data")
}

/// What an event says about a probe.
#[derive(Debug, PartialEq)]
struct ProbeAnswer {
    kind: ProbeKind,
    outcome: LineOutcome,
    detail: String,
}

impl ProbeAnswer {
    /// `None` if the event is about something else.
    fn read(event: &ObservedEvent) -> Option<Self> {
        if !matches!(event.reason.as_str(), "Unhealthy" | "ProbeWarning") {
            return None;
        }
        let (kind, rest) = event.message.split_once(" probe ")?;
        let kind = ProbeKind::ALL.into_iter().find(|known| known.title() == kind)?;
        let (outcome, detail) = rest.split_once(": ").unwrap_or((rest, ""));
        let outcome = match outcome {
            "failed" => LineOutcome::Failure,
            "warning" => LineOutcome::Warning,
            // `errored`, and in newer versions `errored and resulted in ...`
            other if other.starts_with("errored") => LineOutcome::Error,
            _ => return None,
        };
        Some(Self {
            kind,
            outcome,
            detail: detail.to_owned(),
        })
    }

    fn line(&self, run: u32) -> LineBody {
        LineBody::Probe {
            kind: self.kind,
            outcome: self.outcome,
            detail: self.detail.clone(),
            latency_ms: 0.0,
            run,
            counted: self.outcome == LineOutcome::Failure,
            look: false,
        }
    }
}

/// How often a probe asks, as its manifest says.
#[derive(Clone, Copy, Debug)]
struct Rhythm {
    /// The longest time between two failures in a row, in seconds.
    gap: i64,
    threshold: u32,
}

impl Rhythm {
    fn of(pod: &Pod, container: &str, kind: ProbeKind) -> Self {
        let probe = probe_of(pod, container, kind);
        let field = |read: fn(&Probe) -> i32, usual: i32| probe.map_or(usual, read).max(1);
        let period = field(|probe| probe.period_seconds, 10);
        let timeout = field(|probe| probe.timeout_seconds, 1);
        let threshold = field(|probe| probe.failure_threshold, 3);
        Self {
            // One more period would hold a success; a second is what the API's times are off.
            gap: i64::from(period) * 3 / 2 + i64::from(timeout) + 1,
            threshold: threshold.unsigned_abs(),
        }
    }

    /// Whether so many failures between two times, both included, can be all there was.
    fn is_row(self, first: Timestamp, last: Timestamp, count: u32) -> bool {
        let gaps = i64::from(count.saturating_sub(1));
        last.as_second() - first.as_second() <= self.gap.saturating_mul(gaps)
    }

    /// A probe that condemns is at its threshold then, and not asked further.
    fn bounded(self, kind: ProbeKind, count: u32) -> u32 {
        match kind {
            ProbeKind::Startup | ProbeKind::Liveness => count.min(self.threshold),
            ProbeKind::Readiness => count,
        }
    }
}

fn container_of<'p>(pod: &'p Pod, name: &str) -> Option<&'p Container> {
    let mut containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    containers.find(|container| container.name == name)
}

fn probe_of<'p>(pod: &'p Pod, container: &str, kind: ProbeKind) -> Option<&'p Probe> {
    let container = container_of(pod, container)?;
    match kind {
        ProbeKind::Startup => container.startup_probe.as_ref(),
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
    }
}

/// What a `Killing` event means.
#[derive(Clone, Copy, Debug)]
struct Kill {
    reason: KillReason,
    /// The kind of probe that condemned; `None` if none did.
    kind: Option<ProbeKind>,
}

impl Kill {
    /// `None` if the status tells it, or the event does not say why.
    fn read(event: &ObservedEvent) -> Option<Self> {
        let reasons = [
            (
                "failed liveness probe",
                KillReason::LivenessProbe,
                Some(ProbeKind::Liveness),
            ),
            (
                "failed startup probe",
                KillReason::StartupProbe,
                Some(ProbeKind::Startup),
            ),
            ("definition changed", KillReason::ImageChanged, None),
            ("FailedPostStartHook", KillReason::PostStartHook, None),
        ];
        let mut reasons = reasons.into_iter().filter(|_| event.reason == "Killing");
        let (_, reason, kind) = reasons.find(|(words, ..)| event.message.contains(words))?;
        Some(Self { reason, kind })
    }

    /// With the grace period that the manifest gives it.
    fn line(self, pod: &Pod, container: &str) -> LineBody {
        let probe = self.kind.and_then(|kind| probe_of(pod, container, kind));
        let of_pod = pod.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
        let (seconds, grace_from) = match probe.and_then(|probe| probe.termination_grace_period_seconds) {
            Some(seconds) => (seconds, GraceFrom::Probe),
            None => (of_pod, GraceFrom::Pod),
        };
        LineBody::Killing {
            reason: self.reason,
            grace_period_seconds: Span::from_secs(seconds.max(0).unsigned_abs()),
            grace_from,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Seconds after the pod was created.
    fn at(seconds: i64) -> String {
        Timestamp::from_second(1_800_000_000 + seconds)
            .unwrap()
            .to_string()
    }

    fn pod(uid: &str, status: &Value) -> Pod {
        let probe = json!({"httpGet": {"port": 80}, "periodSeconds": 10, "failureThreshold": 3,
            "terminationGracePeriodSeconds": 60, "timeoutSeconds": 1});
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop", "uid": uid, "creationTimestamp": at(0)},
            "spec": {"containers": [{"name": "app", "image": "a", "livenessProbe": probe}]},
            "status": status}))
        .unwrap()
    }

    fn running(began: i64, restarts: u32, ready: bool) -> Value {
        json!({"phase": "Running", "containerStatuses": [{"name": "app", "ready": ready, "started": true, "image": "a",
            "imageID": "", "restartCount": restarts, "containerID": format!("c{restarts}"),
            "state": {"running": {"startedAt": at(began)}}, "lastState": {}}]})
    }

    fn with_last_end(mut status: Value, began: i64, finished: i64) -> Value {
        status["containerStatuses"][0]["lastState"] = json!({"terminated": {"exitCode": 137, "reason": "Error",
            "startedAt": at(began), "finishedAt": at(finished), "containerID": "c0"}});
        status
    }

    fn event(reason: &str, message: &str, count: u32, first: i64, last: i64) -> ObservedEvent {
        serde_json::from_value(json!({"metadata": {"uid": format!("{reason}{message}")}, "reason": reason,
            "message": message, "type": "Warning", "count": count, "firstTimestamp": at(first), "lastTimestamp": at(last),
            "involvedObject": {"kind": "Pod", "name": "web", "uid": "u1", "fieldPath": "spec.containers{app}"}}))
        .unwrap()
    }

    fn failure(count: u32, first: i64, last: i64) -> ObservedEvent {
        let message = "Liveness probe failed: HTTP probe failed with statuscode: 503";
        event("Unhealthy", message, count, first, last)
    }

    fn killing(when: i64) -> ObservedEvent {
        event(
            "Killing",
            "Container app failed liveness probe, will be restarted",
            1,
            when,
            when,
        )
    }

    fn drain(story: &mut ApiStory, seconds: i64) -> Vec<Value> {
        let lines = story.drain(Timestamp::from_second(1_800_000_000 + seconds).unwrap());
        lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn types(lines: &[Value]) -> Vec<(f64, &str)> {
        let told = lines.iter();
        told.map(|line| (line["t"].as_f64().unwrap(), line["type"].as_str().unwrap()))
            .collect()
    }

    #[test]
    fn a_pod_that_is_seen_first_tells_what_its_status_and_events_know() {
        let mut story = ApiStory::default();
        let status = with_last_end(running(100, 1, false), 2, 95);
        story.take_events(Seen::Listed(vec![killing(35), failure(3, 15, 35)]));
        story.take_pods(Seen::Listed(vec![pod("u1", &status)]));
        let lines = drain(&mut story, 200);
        assert_eq!(
            types(&lines),
            [
                (0.0, "phase"),
                (2.0, "running"),
                (15.0, "probe"),
                (35.0, "probe"),
                (35.0, "killing"),
                (95.0, "exited"),
                (100.0, "running"),
                (100.0, "started"),
            ]
        );
        assert_eq!((&lines[2]["run"], &lines[3]["run"]), (&json!(1), &json!(3)));
        assert_eq!(lines[4]["gracePeriodSeconds"], 60.0);
        assert_eq!(
            (&lines[4]["graceFrom"], &lines[5]["exitCode"]),
            (&json!("probe"), &json!(137))
        );
        assert_eq!(drain(&mut story, 201), Vec::<Value>::new());
    }

    #[test]
    fn changes_are_told_once_and_failures_are_counted_in_a_row() {
        let mut story = ApiStory::default();
        story.take_events(Seen::Listed(Vec::new()));
        story.take_pods(Seen::Listed(vec![pod("u1", &running(2, 0, true))]));
        drain(&mut story, 10);
        story.take_events(Seen::Changed(Box::new(failure(1, 15, 15))));
        assert_eq!(drain(&mut story, 15)[0]["run"], 1);
        // Long after: others succeeded between.
        story.take_events(Seen::Changed(Box::new(failure(2, 15, 315))));
        assert_eq!(drain(&mut story, 315)[0]["run"], 1);
        story.take_events(Seen::Changed(Box::new(failure(3, 15, 325))));
        assert_eq!(drain(&mut story, 325)[0]["run"], 2);
        // The kill says that there was a third; its own event comes late, and the next life comes with it.
        story.take_events(Seen::Changed(Box::new(killing(335))));
        let lines = drain(&mut story, 335);
        assert_eq!(types(&lines), [(335.0, "probe"), (335.0, "killing")]);
        assert_eq!(lines[0]["run"], 3);
        story.take_events(Seen::Changed(Box::new(failure(4, 15, 335))));
        let status = with_last_end(running(340, 1, false), 2, 339);
        story.take_pods(Seen::Changed(Box::new(pod("u1", &status))));
        let lines = drain(&mut story, 341);
        assert_eq!(
            types(&lines),
            [(339.0, "exited"), (340.0, "running"), (341.0, "started")]
        );
        story.take_pods(Seen::Changed(Box::new(pod(
            "u1",
            &with_last_end(running(340, 1, true), 2, 339),
        ))));
        assert_eq!(types(&drain(&mut story, 350)), [(350.0, "ready")]);
    }

    #[test]
    fn failures_of_several_lives_are_told_without_a_number() {
        let mut story = ApiStory::default();
        story.take_events(Seen::Listed(vec![killing(135), failure(6, 15, 135)]));
        story.take_pods(Seen::Listed(vec![pod(
            "u1",
            &with_last_end(running(200, 2, false), 100, 195),
        )]));
        let lines = drain(&mut story, 300);
        let probes: Vec<_> = lines.iter().filter(|line| line["type"] == "probe").collect();
        assert_eq!(probes.len(), 1, "{lines:?}");
        assert_eq!(probes[0]["run"], 0);
    }

    #[test]
    fn an_event_of_an_earlier_pod_or_another_kind_says_nothing() {
        let mut story = ApiStory::default();
        story.take_pods(Seen::Listed(vec![pod("u2", &json!({}))]));
        story.take_events(Seen::Listed(vec![failure(1, 15, 15)]));
        assert_eq!(drain(&mut story, 20), Vec::<Value>::new());
        story.take_pods(Seen::Changed(Box::new(pod("u1", &json!({"phase": "Pending"})))));
        let mut scheduled = event("Scheduled", "Successfully assigned shop/web to n", 1, 1, 1);
        scheduled.involved_object.field_path = String::new();
        story.take_events(Seen::Changed(Box::new(scheduled)));
        let lines = drain(&mut story, 21);
        assert_eq!(types(&lines), [(0.0, "phase"), (1.0, "event"), (21.0, "deleted")]);
    }
}
