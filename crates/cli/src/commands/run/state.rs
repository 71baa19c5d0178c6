//! What people see of the pods of a run, folded from their event lines.
//!
//! Lines of other pods are ignored, also those of a pod that had the same name before: a pod is known by its uid.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pulselet_agent::{PodLine, PodView, pod_name_of, uid_of};
use pulselet_engine::line::{LineBody, Phase};
use pulselet_engine::plan::ProbeKind;
use pulselet_engine::time::Span;
use pulselet_model::Pod;
use pulselet_sim::timeline::ProbeResult;
use pulselet_vocabulary::PodName;

/// Results kept per probe: what a terminal has room for.
const STRIP: usize = 16;

/// The pods of a run, in the order of the files.
#[derive(Clone, Debug)]
pub(crate) struct Pods(Vec<PodState>);

#[derive(Clone, Debug)]
pub(crate) struct PodState {
    pub(crate) name: PodName,
    uid: Arc<str>,
    pub(crate) phase: Phase,
    pub(crate) ready: bool,
    pub(crate) deleted: bool,
    pub(crate) containers: Vec<ContainerState>,
    /// What the newest warning about the pod as a whole said.
    complaint: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct ContainerState {
    pub(crate) name: Arc<str>,
    pub(crate) life: Life,
    pub(crate) started: bool,
    pub(crate) ready: bool,
    pub(crate) restarts: u32,
    /// The last results of each probe, the newest last, in the order of [`ProbeKind::ALL`].
    strips: [VecDeque<ProbeResult>; 3],
    /// What the newest probe that did not succeed said.
    pub(crate) complaint: Option<String>,
}

/// Where a container is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Waiting,
    Created,
    Running { since: Timestamp },
    Stopping { since: Timestamp, until: Timestamp },
    Exited { code: i32 },
    BackingOff { until: Timestamp },
}

impl Pods {
    pub(crate) fn new<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        Self(pods.into_iter().map(PodState::new).collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PodState> {
        self.0.iter()
    }

    pub(crate) fn has(&self, name: &PodName) -> bool {
        self.0.iter().any(|pod| pod.name == *name)
    }

    /// Fills in what was so before the first line: the pod may have been adopted.
    pub(crate) fn recall(&mut self, view: &PodView) {
        if let Some(pod) = self.0.iter_mut().find(|pod| *pod.uid == *view.uid) {
            pod.recall(view);
        }
    }

    pub(crate) fn apply(&mut self, line: &PodLine) {
        if let Some(pod) = self.0.iter_mut().find(|pod| pod.uid == line.uid) {
            pod.apply(line);
        }
    }

    /// Why a pod is not what was waited for, a line for each container that is not.
    pub(crate) fn missing(&self, name: &PodName) -> Vec<String> {
        let pod = self.0.iter().filter(|pod| pod.name == *name);
        pod.flat_map(PodState::missing).collect()
    }
}

impl PodState {
    fn new(pod: &Pod) -> Self {
        let names = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        Self {
            name: pod_name_of(pod),
            uid: uid_of(pod).into(),
            phase: Phase::Pending,
            ready: false,
            deleted: false,
            containers: names
                .map(|container| ContainerState::new(&container.name))
                .collect(),
            complaint: None,
        }
    }

    fn recall(&mut self, view: &PodView) {
        self.phase = super::progress::phase(view).unwrap_or(self.phase);
        self.ready = super::progress::is_ready(view);
        let statuses = view.status.init_container_statuses.iter();
        for status in statuses.chain(&view.status.container_statuses) {
            if let Some(container) = self.containers.iter_mut().find(|it| *it.name == *status.name) {
                container.recall(status);
            }
        }
    }

    fn apply(&mut self, line: &PodLine) {
        if let Some(name) = &line.line.container {
            if let Some(container) = self.containers.iter_mut().find(|it| it.name == *name) {
                container.apply(&line.line.body, line.time);
            }
            return;
        }
        match &line.line.body {
            LineBody::Phase { phase } => self.phase = *phase,
            LineBody::Ready => self.ready = true,
            LineBody::Unready => self.ready = false,
            LineBody::Deleted => {
                self.deleted = true;
                self.ready = false;
            }
            LineBody::Warning { message } => self.complaint = Some(message.clone()),
            LineBody::Created { .. }
            | LineBody::Running { .. }
            | LineBody::Probe { .. }
            | LineBody::Started
            | LineBody::Killing { .. }
            | LineBody::Hook { .. }
            | LineBody::Signal { .. }
            | LineBody::GraceExceeded { .. }
            | LineBody::Exited { .. }
            | LineBody::Backoff { .. }
            | LineBody::RestartAllContainers { .. }
            | LineBody::AgentRestarted => {}
        }
    }

    fn missing(&self) -> Vec<String> {
        let name = &self.name;
        let waiting = |container: &&ContainerState| container.life == Life::Waiting;
        // While nothing of it runs, what keeps the pod from beginning is all there is to say.
        if let (Some(complaint), true) = (&self.complaint, self.containers.iter().all(|it| waiting(&it))) {
            return vec![format!("pod {name}: {complaint}")];
        }
        let unready = self.containers.iter().filter(|container| !container.ready);
        unready
            .map(|container| format!("pod {name}: {}", container.missing()))
            .collect()
    }
}

impl ContainerState {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            life: Life::Waiting,
            started: false,
            ready: false,
            restarts: 0,
            strips: Default::default(),
            complaint: None,
        }
    }

    /// The last results of a probe, the newest last.
    pub(crate) fn strip(&self, kind: ProbeKind) -> impl Iterator<Item = ProbeResult> {
        self.strips[index(kind)].iter().copied()
    }

    fn recall(&mut self, status: &pulselet_model::status::ContainerStatusFields) {
        self.started = status.started.unwrap_or_default();
        self.ready = status.ready;
        self.restarts = u32::try_from(status.restart_count).unwrap_or_default();
        if let Some(since) = status
            .state
            .running
            .as_ref()
            .and_then(|it| it.started_at.as_ref())
        {
            self.life = Life::Running { since: since.0 };
        }
        if let Some(ended) = &status.state.terminated {
            self.life = Life::Exited {
                code: ended.exit_code,
            };
        }
    }

    fn apply(&mut self, body: &LineBody, now: Timestamp) {
        match body {
            LineBody::Created { restart_count, .. } => {
                self.begin(*restart_count);
                self.life = Life::Created;
            }
            LineBody::Running { restart_count, .. } => {
                self.begin(*restart_count);
                self.life = Life::Running { since: now };
            }
            LineBody::Probe {
                kind,
                outcome,
                counted,
                detail,
                ..
            } => self.probed(*kind, ProbeResult::of(*outcome, *counted), detail),
            LineBody::Started => self.started = true,
            LineBody::Ready => self.ready = true,
            LineBody::Unready => self.ready = false,
            LineBody::Killing {
                grace_period_seconds, ..
            } => self.stop(now, *grace_period_seconds),
            LineBody::Exited { exit_code, .. } => {
                self.started = false;
                self.life = Life::Exited { code: *exit_code };
            }
            LineBody::Backoff { seconds } => {
                self.life = Life::BackingOff {
                    until: after(now, *seconds),
                };
            }
            LineBody::Warning { message } => self.complaint = Some(message.clone()),
            LineBody::Hook { .. }
            | LineBody::Signal { .. }
            | LineBody::GraceExceeded { .. }
            | LineBody::RestartAllContainers { .. }
            | LineBody::Phase { .. }
            | LineBody::Deleted
            | LineBody::AgentRestarted => {}
        }
    }

    fn begin(&mut self, restarts: u32) {
        self.restarts = restarts;
        self.started = false;
        self.complaint = None;
    }

    fn stop(&mut self, now: Timestamp, grace: Span) {
        let since = match self.life {
            Life::Running { since } | Life::Stopping { since, .. } => since,
            Life::Waiting | Life::Created | Life::Exited { .. } | Life::BackingOff { .. } => now,
        };
        self.life = Life::Stopping {
            since,
            until: after(now, grace),
        };
    }

    fn probed(&mut self, kind: ProbeKind, result: ProbeResult, detail: &str) {
        let strip = &mut self.strips[index(kind)];
        if strip.len() == STRIP {
            strip.pop_front();
        }
        strip.push_back(result);
        self.complaint = match result {
            ProbeResult::Success => None,
            ProbeResult::Warning | ProbeResult::Failure | ProbeResult::Look | ProbeResult::Error => {
                Some(format!("{} probe: {detail}", kind.as_str()))
            }
        };
    }

    fn missing(&self) -> String {
        let where_it_is = match self.life {
            Life::Waiting => "has not been created".to_owned(),
            Life::Created => "has not been started".to_owned(),
            Life::Running { .. } if self.started => "is started but not ready".to_owned(),
            Life::Running { .. } => "runs but has not started".to_owned(),
            Life::Stopping { .. } => "is being stopped".to_owned(),
            Life::Exited { code } => format!("has exited with {code}"),
            Life::BackingOff { .. } => "waits for its next start".to_owned(),
        };
        let complaint = self.complaint.iter().map(|text| format!(" ({text})"));
        let complaint: String = complaint.collect();
        format!("container {} {where_it_is}{complaint}", self.name)
    }
}

const fn index(kind: ProbeKind) -> usize {
    match kind {
        ProbeKind::Startup => 0,
        ProbeKind::Liveness => 1,
        ProbeKind::Readiness => 2,
    }
}

fn after(now: Timestamp, span: Span) -> Timestamp {
    now.checked_add(Duration::from(span)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use pulselet_engine::line::{ExitReason, GraceFrom, KillReason, Line, LineOutcome};
    use pulselet_engine::time::Time;
    use serde_json::json;

    pub(crate) fn pods() -> Pods {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"}, "spec": {"containers": [{"name": "app", "image": "i"}]},
        }))
        .unwrap();
        Pods::new([&pod])
    }

    pub(crate) fn line(pods: &Pods, second: i64, container: bool, body: LineBody) -> PodLine {
        let pod = &pods.0[0];
        PodLine {
            pod: pod.name.clone(),
            uid: Arc::clone(&pod.uid),
            t: Span::from_secs(u64::try_from(second).unwrap()),
            time: Timestamp::from_second(second).unwrap(),
            line: Line {
                at: Time::ZERO,
                container: container.then(|| "app".into()),
                body,
            },
        }
    }

    pub(crate) fn probe(kind: ProbeKind, outcome: LineOutcome, run: u32) -> LineBody {
        LineBody::Probe {
            kind,
            outcome,
            detail: "connection refused".into(),
            latency_ms: 1.0,
            run,
            counted: true,
            look: false,
        }
    }

    pub(crate) fn play(pods: &mut Pods, bodies: impl IntoIterator<Item = (bool, LineBody)>) {
        for (second, (container, body)) in bodies.into_iter().enumerate() {
            let line = line(pods, i64::try_from(second).unwrap(), container, body);
            pods.apply(&line);
        }
    }

    fn running(restart_count: u32) -> LineBody {
        let id = "c".into();
        LineBody::Running { id, restart_count }
    }

    #[test]
    fn what_is_missing_names_the_probe() {
        let mut pods = pods();
        let name = &pods.0[0].name.clone();
        assert_eq!(
            pods.missing(name),
            ["pod default/web: container app has not been created"]
        );
        let mut unmounted = pods.clone();
        let message = "no such volume".to_owned();
        play(&mut unmounted, [(false, LineBody::Warning { message })]);
        assert_eq!(unmounted.missing(name), ["pod default/web: no such volume"]);
        play(
            &mut pods,
            [
                (true, running(0)),
                (true, probe(ProbeKind::Startup, LineOutcome::Failure, 1)),
            ],
        );
        assert_eq!(
            pods.missing(name),
            ["pod default/web: container app runs but has not started (startup probe: connection refused)"]
        );
        play(
            &mut pods,
            [
                (true, LineBody::Started),
                (true, LineBody::Ready),
                (false, LineBody::Ready),
            ],
        );
        assert!(pods.0[0].ready && pods.missing(name).is_empty());
    }

    #[test]
    fn a_kill_counts_its_grace_down_and_an_exit_ends_it() {
        let mut pods = pods();
        let killing = LineBody::Killing {
            reason: KillReason::LivenessProbe,
            grace_period_seconds: Span::from_secs(5),
            grace_from: GraceFrom::Probe,
        };
        play(&mut pods, [(true, running(2)), (true, killing)]);
        let at = |second| Timestamp::from_second(second).unwrap();
        let (since, until) = (at(0), at(6));
        assert_eq!(pods.0[0].containers[0].life, Life::Stopping { since, until });
        let exited = LineBody::Exited {
            exit_code: 137,
            reason: ExitReason::Error,
            seconds: None,
        };
        play(&mut pods, [(true, exited)]);
        assert_eq!(pods.0[0].containers[0].life, Life::Exited { code: 137 });
        assert_eq!(pods.0[0].containers[0].restarts, 2);
    }

    #[test]
    fn strips_are_bounded_and_other_pods_do_not_count() {
        let mut pods = pods();
        for _ in 0..100 {
            play(
                &mut pods,
                [(true, probe(ProbeKind::Liveness, LineOutcome::Success, 1))],
            );
        }
        assert_eq!(pods.0[0].containers[0].strip(ProbeKind::Liveness).count(), STRIP);
        let phase = Phase::Failed;
        let mut other = line(&pods, 0, false, LineBody::Phase { phase });
        other.uid = "another".into();
        pods.apply(&other);
        assert_eq!(pods.0[0].phase, Phase::Pending);
        pods.apply(&line(&pods, 0, false, LineBody::Phase { phase }));
        assert_eq!(pods.0[0].phase, Phase::Failed);
    }
}
