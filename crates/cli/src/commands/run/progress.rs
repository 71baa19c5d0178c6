//! How far the pods of a run have come, by the status that their agent gives. A run goes by this; what it shows is
//! folded from event lines, in `state`.

use std::sync::Arc;

use pulselet_agent::{PodView, pod_name_of, uid_of};
use pulselet_engine::line::Phase;
use pulselet_model::Pod;
use pulselet_vocabulary::PodName;

/// The pods of a run. Another pod that has or had the name of one of them does not count.
#[derive(Clone, Debug)]
pub(super) struct Progress(Vec<PodProgress>);

#[derive(Clone, Debug)]
struct PodProgress {
    name: PodName,
    uid: Arc<str>,
    phase: Phase,
    ready: bool,
    deleted: bool,
}

impl Progress {
    pub(super) fn new<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let progress = |pod| PodProgress {
            name: pod_name_of(pod),
            uid: uid_of(pod).into(),
            phase: Phase::Pending,
            ready: false,
            deleted: false,
        };
        Self(pods.into_iter().map(progress).collect())
    }

    /// The pod is as this says now.
    pub(super) fn update(&mut self, view: &PodView) {
        if let Some(pod) = self.find(view) {
            pod.phase = phase(view).unwrap_or(pod.phase);
            pod.ready = is_ready(view);
        }
    }

    /// The pod is gone, and this was its last status.
    pub(super) fn departed(&mut self, last: &PodView) {
        if let Some(pod) = self.find(last) {
            pod.phase = phase(last).unwrap_or(pod.phase);
            pod.ready = false;
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

    pub(super) fn any_ended(&self) -> bool {
        self.0.iter().any(PodProgress::has_ended)
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

    pub(super) fn all_ready(&self) -> bool {
        self.0.iter().all(|pod| pod.ready)
    }

    pub(super) fn any_failed(&self) -> bool {
        self.0.iter().any(|pod| pod.phase == Phase::Failed)
    }
}

impl PodProgress {
    fn has_ended(&self) -> bool {
        self.deleted || self.phase.is_terminal()
    }
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
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web"}, "spec": {"containers": [{"name": "app", "image": "i"}]},
        }))
        .unwrap()
    }

    fn view(uid: &str, phase: &str, ready: &str) -> PodView {
        let status = json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}]});
        PodView {
            namespace: "default".into(),
            name: "web".into(),
            uid: uid.into(),
            origin: Origin::Run,
            accepted_at: jiff::Timestamp::UNIX_EPOCH,
            deleting: false,
            status: serde_json::from_value(status).unwrap(),
            probes: Vec::new(),
        }
    }

    #[test]
    fn only_the_pods_of_the_run_count() {
        let pod = pod();
        let uid = uid_of(&pod);
        let mut progress = Progress::new([&pod]);
        progress.update(&view("another", "Failed", "False"));
        assert!(!progress.any_ended());
        progress.update(&view(&uid, "Running", "True"));
        assert!(progress.all_ready() && !progress.any_ended());
        progress.update(&view(&uid, "Failed", "False"));
        assert!(progress.any_failed() && progress.all_ended() && !progress.all_ready());
    }

    #[test]
    fn a_pod_that_is_gone_has_ended_and_is_not_ready() {
        let pod = pod();
        let mut progress = Progress::new([&pod]);
        progress.departed(&view(&uid_of(&pod), "Running", "True"));
        assert!(progress.all_ended() && !progress.all_ready() && !progress.any_failed());
    }
}
