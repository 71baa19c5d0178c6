//! How far the pods of a run have come, by the status that their agent gives, and whether that is what was waited for.
//! A run goes by this; what it shows is folded from event lines, in `state`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pulselet_agent::{PodView, pod_name_of, uid_of};
use pulselet_engine::line::Phase;
use pulselet_model::{ContainerStatusFields, Pod};
use pulselet_vocabulary::PodName;
use tokio::time::Instant;

use crate::cli::WaitArg;

/// How long a container must have run before it counts as ready if no probe says so: one that leaves at once is not.
const SETTLING: Duration = Duration::from_secs(1);

/// The pods of a run. Another pod that has or had the name of one of them does not count.
#[derive(Clone, Debug)]
pub(super) struct Progress(Vec<PodProgress>);

#[derive(Clone, Debug)]
struct PodProgress {
    name: PodName,
    uid: Arc<str>,
    phase: Phase,
    /// Since when the pod's Ready condition is true, without a restart since then.
    ready_since: Option<Instant>,
    restarts: i64,
    deleted: bool,
    /// Containers that are ready as soon as they run.
    unprobed: Vec<String>,
    /// The life of each such container, and since when it is seen running.
    running_since: HashMap<String, (String, Instant)>,
    last: Option<Box<PodView>>,
}

/// Whether what is waited for is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    Holds,
    /// It may still come; by itself at this moment, if nothing changes.
    Open(Option<Instant>),
    Impossible,
}

impl Progress {
    pub(super) fn new<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        Self(pods.into_iter().map(PodProgress::new).collect())
    }

    /// The pod is as this says now.
    pub(super) fn update(&mut self, view: &PodView, now: Instant) {
        if let Some(pod) = self.find(view) {
            pod.update(view, now);
        }
    }

    /// The pod is gone, and this was its last status.
    pub(super) fn departed(&mut self, last: &PodView, now: Instant) {
        if let Some(pod) = self.find(last) {
            pod.update(last, now);
            pod.ready_since = None;
            pod.deleted = true;
        }
    }

    fn find(&mut self, view: &PodView) -> Option<&mut PodProgress> {
        self.0.iter_mut().find(|pod| *pod.uid == *view.uid)
    }

    /// Every pod has ended or was deleted.
    pub(super) fn all_ended(&self) -> bool {
        self.0.iter().all(PodProgress::has_ended)
    }

    /// How a pod has ended; `None` if it has not.
    pub(super) fn end_of(&self, name: &PodName) -> Option<&'static str> {
        let pod = self.0.iter().find(|pod| pod.name == *name)?;
        let end = if pod.deleted {
            "deleted"
        } else {
            pod.phase.as_str()
        };
        pod.has_ended().then_some(end)
    }

    /// The last status of a pod.
    pub(super) fn view_of(&self, name: &PodName) -> Option<&PodView> {
        let pod = self.0.iter().find(|pod| pod.name == *name)?;
        pod.last.as_deref()
    }

    pub(super) fn any_failed(&self) -> bool {
        self.0.iter().any(|pod| pod.phase == Phase::Failed)
    }

    /// The exit code of the first container that failed, init containers first, where there is only one pod.
    pub(super) fn failed_code(&self) -> Option<i32> {
        let [pod] = &self.0[..] else { return None };
        let codes = statuses(pod.last.as_deref()?).filter_map(exit_code);
        codes.into_iter().find(|code| *code != 0)
    }

    pub(super) fn outlook(&self, goal: WaitArg, now: Instant) -> Outlook {
        let outlooks = self.0.iter().map(|pod| pod.outlook(goal, now));
        outlooks.fold(Outlook::Holds, |all, pod| match (all, pod) {
            (Outlook::Impossible, _) | (_, Outlook::Impossible) => Outlook::Impossible,
            (Outlook::Holds, other) | (other, Outlook::Holds) => other,
            // All together at the last of these moments; never if one of them waits for something else.
            (Outlook::Open(one), Outlook::Open(other)) => {
                Outlook::Open(one.zip(other).map(|(one, other)| one.max(other)))
            }
        })
    }
}

impl PodProgress {
    fn new(pod: &Pod) -> Self {
        let containers = pod.spec.containers.iter();
        let unprobed = containers.filter(|container| container.readiness_probe.is_none());
        Self {
            name: pod_name_of(pod),
            uid: uid_of(pod).into(),
            phase: Phase::Pending,
            ready_since: None,
            restarts: 0,
            deleted: false,
            unprobed: unprobed.map(|container| container.name.clone()).collect(),
            running_since: HashMap::new(),
            last: None,
        }
    }

    fn update(&mut self, view: &PodView, now: Instant) {
        self.phase = phase(view).unwrap_or(self.phase);
        let restarts = statuses(view).map(|status| i64::from(status.restart_count)).sum();
        let ready = is_ready(view) || self.phase == Phase::Succeeded;
        let goes_on = self.ready_since.filter(|_| restarts == self.restarts);
        self.ready_since = ready.then(|| goes_on.unwrap_or(now));
        self.restarts = restarts;
        for status in statuses(view).filter(|status| self.unprobed.contains(&status.name)) {
            let known = self.running_since.get(&status.name);
            let same = known.is_some_and(|(id, _)| *id == status.container_id);
            if status.state.running.is_none() {
                self.running_since.remove(&status.name);
            } else if !same {
                let life = (status.container_id.clone(), now);
                self.running_since.insert(status.name.clone(), life);
            }
        }
        self.last = Some(Box::new(view.clone()));
    }

    fn has_ended(&self) -> bool {
        self.deleted || self.phase.is_terminal()
    }

    fn outlook(&self, goal: WaitArg, now: Instant) -> Outlook {
        if self.phase == Phase::Succeeded {
            return Outlook::Holds;
        }
        if self.has_ended() {
            return Outlook::Impossible;
        }
        let lasting = match goal {
            WaitArg::Completed => return Outlook::Open(None),
            WaitArg::Ready => Duration::ZERO,
            WaitArg::Stable(lasting) => lasting,
        };
        if self.has_failed_container() {
            return Outlook::Impossible;
        }
        let Some(ready_since) = self.ready_since else {
            return Outlook::Open(None);
        };
        let settled = self.running_since.values().map(|(_, since)| *since + SETTLING);
        let since = settled.fold(ready_since, Instant::max);
        let at = since + lasting;
        if at <= now {
            Outlook::Holds
        } else {
            Outlook::Open(Some(at))
        }
    }

    /// A container has ended with another code than zero, also if it runs again.
    fn has_failed_container(&self) -> bool {
        let statuses = self.last.iter().flat_map(|view| statuses(view));
        let mut codes = statuses.flat_map(|status| {
            let last = status.last_state.terminated.as_ref();
            [exit_code(status), last.map(|ended| ended.exit_code)]
        });
        codes.any(|code| code.is_some_and(|code| code != 0))
    }
}

/// Init containers first, as they ran.
pub(super) fn statuses(view: &PodView) -> impl Iterator<Item = &ContainerStatusFields> {
    let init = view.status.init_container_statuses.iter();
    init.chain(&view.status.container_statuses)
}

fn exit_code(status: &ContainerStatusFields) -> Option<i32> {
    let ended = status.state.terminated.as_ref();
    ended.map(|ended| ended.exit_code)
}

/// The phase of a status; `None` if it is not one of ours.
pub(super) fn phase(view: &PodView) -> Option<Phase> {
    let phases = [Phase::Pending, Phase::Running, Phase::Succeeded, Phase::Failed];
    phases
        .into_iter()
        .find(|phase| phase.as_str() == view.status.phase)
}

pub(super) fn is_ready(view: &PodView) -> bool {
    let ready = view.status.conditions.iter().find(|it| it.type_ == "Ready");
    ready.is_some_and(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulselet_agent::Origin;
    use serde_json::{Value, json};

    fn pod(probed: bool) -> Pod {
        let mut container = json!({"name": "app", "image": "i"});
        if probed {
            container["readinessProbe"] = json!({"tcpSocket": {"port": 1}});
        }
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"containers": [container]}}))
            .unwrap()
    }

    fn view(uid: &str, phase: &str, ready: &str) -> PodView {
        view_with(uid, phase, ready, &json!({"running": {}}), 0)
    }

    fn view_with(uid: &str, phase: &str, ready: &str, state: &Value, restarts: i32) -> PodView {
        let status = json!({
            "phase": phase,
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [{
                "name": "app", "image": "i", "imageID": "", "ready": ready == "True", "containerID": "c",
                "restartCount": restarts, "state": state, "lastState": {},
            }],
        });
        PodView {
            namespace: "default".into(),
            name: "web".into(),
            uid: uid.into(),
            origin: Origin::Run,
            accepted_at: jiff::Timestamp::UNIX_EPOCH,
            deleting: false,
            stopped: false,
            ports: std::collections::BTreeMap::new(),
            status: serde_json::from_value(status).unwrap(),
            probes: Vec::new(),
            stop_signals: std::collections::BTreeMap::new(),
        }
    }

    #[test]
    fn only_the_pods_of_the_run_count() {
        let (pod, now) = (pod(true), Instant::now());
        let uid = uid_of(&pod);
        let mut progress = Progress::new([&pod]);
        progress.update(&view("another", "Failed", "False"), now);
        assert!(!progress.all_ended());
        progress.update(&view(&uid, "Running", "True"), now);
        assert_eq!(progress.outlook(WaitArg::Ready, now), Outlook::Holds);
        progress.update(&view(&uid, "Failed", "False"), now);
        assert!(progress.any_failed() && progress.all_ended());
        assert_eq!(progress.outlook(WaitArg::Ready, now), Outlook::Impossible);
    }

    #[test]
    fn a_pod_that_is_gone_has_ended_and_is_not_ready() {
        let (pod, now) = (pod(true), Instant::now());
        let mut progress = Progress::new([&pod]);
        progress.departed(&view(&uid_of(&pod), "Running", "True"), now);
        assert!(progress.all_ended() && !progress.any_failed());
        assert_eq!(progress.outlook(WaitArg::Ready, now), Outlook::Impossible);
    }

    #[test]
    fn without_a_probe_a_container_must_have_run_for_a_second() {
        let (pod, now) = (pod(false), Instant::now());
        let uid = uid_of(&pod);
        let mut progress = Progress::new([&pod]);
        progress.update(&view(&uid, "Running", "True"), now);
        let settled = now + SETTLING;
        assert_eq!(
            progress.outlook(WaitArg::Ready, now),
            Outlook::Open(Some(settled))
        );
        assert_eq!(progress.outlook(WaitArg::Ready, settled), Outlook::Holds);
        let exited = json!({"terminated": {"exitCode": 7}});
        progress.update(&view_with(&uid, "Running", "False", &exited, 0), now);
        assert_eq!(progress.outlook(WaitArg::Ready, settled), Outlook::Impossible);
        assert_eq!(progress.failed_code(), Some(7));
        let done = json!({"terminated": {"exitCode": 0}});
        progress.update(&view_with(&uid, "Succeeded", "False", &done, 0), now);
        for goal in [WaitArg::Ready, WaitArg::Completed] {
            assert_eq!(progress.outlook(goal, now), Outlook::Holds);
        }
    }

    #[test]
    fn stable_begins_anew_with_a_restart() {
        let (pod, now) = (pod(true), Instant::now());
        let uid = uid_of(&pod);
        let (second, minute) = (Duration::from_secs(1), Duration::from_mins(1));
        let goal = WaitArg::Stable(minute);
        let mut progress = Progress::new([&pod]);
        progress.update(&view(&uid, "Running", "True"), now);
        progress.update(&view(&uid, "Running", "True"), now + second);
        assert_eq!(progress.outlook(goal, now), Outlook::Open(Some(now + minute)));
        let running = json!({"running": {}});
        progress.update(&view_with(&uid, "Running", "True", &running, 1), now + second);
        assert_eq!(
            progress.outlook(goal, now + minute),
            Outlook::Open(Some(now + second + minute))
        );
        assert_eq!(progress.outlook(goal, now + second + minute), Outlook::Holds);
    }
}
