//! What follows from how a pod is at the API and how it is on the node.
//!
//! Pure: two views come in, steps go out, and asking again with the same views gives the same steps. Nothing here
//! waits for the answer of a step; the next look shows what became of it.

use std::time::Duration;

use pulselet_agent::{Origin, PodView};
use pulselet_model::{Pod, PodStatus};

use crate::mirror;
use crate::status::merged;

/// A pod as the two sides have it.
#[derive(Debug)]
pub(crate) struct Sight<'a> {
    /// As the API has it.
    pub(crate) api: Option<&'a Pod>,
    /// As the node has it.
    pub(crate) here: Option<&'a PodView>,
    /// How the API's pod was when it ended on the node.
    pub(crate) last_status: Option<&'a PodStatus>,
    /// The API has listed its pods at least once: what it does not have, it really does not have.
    pub(crate) listed: bool,
    /// The uid of the pod that was removed at the API while it ran here.
    pub(crate) vanished: Option<&'a str>,
}

/// One thing to do.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// The node is to run the API's pod.
    Run,
    /// The node is to have the API's manifest, if it has another.
    Refresh,
    /// The pod on the node is to end; without a grace period with its own.
    End(Option<Duration>),
    /// The API is to know this status.
    Report(Box<PodStatus>),
    /// The API may forget its pod: it has ended here, or never was.
    Release,
    /// The API is to show the node's static pod.
    Publish,
}

pub(crate) fn decide(sight: &Sight<'_>) -> Vec<Step> {
    match (sight.api, sight.here) {
        (None, None) => Vec::new(),
        (None, Some(here)) => unknown_to_the_api(here, sight),
        (Some(api), here) if mirror::is_mirror(api) => mirrored(api, here),
        (Some(api), here) => owned(api, here, sight.last_status),
    }
}

fn unknown_to_the_api(here: &PodView, sight: &Sight<'_>) -> Vec<Step> {
    if !sight.listed {
        return Vec::new();
    }
    match here.origin {
        // Whoever removes a running pod at the API did not want to wait for its end.
        Origin::Api if sight.vanished == Some(&here.uid) => vec![Step::End(Some(Duration::ZERO))],
        Origin::Api => vec![Step::End(None)],
        Origin::Manifest { .. } if !here.deleting => vec![Step::Publish],
        Origin::Manifest { .. } | Origin::Run | Origin::Detached => Vec::new(),
    }
}

/// The API's image of a static pod follows it; it can neither start nor stop it.
fn mirrored(api: &Pod, here: Option<&PodView>) -> Vec<Step> {
    let shown = here.filter(|here| mirror::shows(api, here));
    match shown {
        Some(here) if !is_deleting(api) => vec![Step::Report(Box::new(merged(api, &here.status)))],
        Some(_) | None => vec![Step::Release],
    }
}

fn owned(api: &Pod, here: Option<&PodView>, last_status: Option<&PodStatus>) -> Vec<Step> {
    let own =
        here.filter(|here| here.origin.is_api() && Some(here.uid.as_str()) == api.metadata.uid.as_deref());
    let report = |status: &PodStatus| Step::Report(Box::new(merged(api, status)));
    match own {
        Some(here) if is_deleting(api) => vec![Step::End(Some(grace(api))), report(&here.status)],
        Some(here) => vec![Step::Refresh, report(&here.status)],
        None if is_deleting(api) => last_status
            .map(report)
            .into_iter()
            .chain([Step::Release])
            .collect(),
        // What has ended is not run again, whatever became of the node's memory of it.
        None if is_over(api) => here
            .filter(|here| here.origin.is_api())
            .map(|_| Step::End(None))
            .into_iter()
            .collect(),
        None => vec![Step::Run],
    }
}

fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn is_over(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

fn grace(pod: &Pod) -> Duration {
    let seconds = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn api(metadata: &Value, phase: &str) -> Pod {
        let mut whole = json!({"name": "web", "namespace": "default", "uid": "u"});
        let fields = metadata.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(fields);
        serde_json::from_value(json!({"metadata": whole, "status": {"phase": phase}})).unwrap()
    }

    fn here(uid: &str, origin: Origin) -> PodView {
        PodView {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            uid: uid.to_owned(),
            origin,
            accepted_at: jiff::Timestamp::UNIX_EPOCH,
            stopped: false,
            ports: std::collections::BTreeMap::new(),
            deleting: false,
            status: PodStatus::default(),
            probes: Vec::new(),
            stop_signals: std::collections::BTreeMap::new(),
        }
    }

    fn names(api: Option<&Pod>, here: Option<&PodView>) -> Vec<String> {
        let sight = Sight {
            api,
            here,
            last_status: None,
            listed: true,
            vanished: None,
        };
        let name = |step: &Step| match step {
            Step::End(grace) => format!("end {grace:?}"),
            Step::Report(_) => "report".to_owned(),
            Step::Run | Step::Refresh | Step::Release | Step::Publish => format!("{step:?}").to_lowercase(),
        };
        decide(&sight).iter().map(name).collect()
    }

    #[test]
    fn a_pod_is_run_reported_ended_and_released() {
        let (new, there) = (api(&json!({}), ""), here("u", Origin::Api));
        assert_eq!(names(Some(&new), None), ["run"]);
        assert_eq!(names(Some(&new), Some(&there)), ["refresh", "report"]);
        let ending = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 7});
        let ending = api(&ending, "Running");
        assert_eq!(names(Some(&ending), Some(&there)), ["end Some(7s)", "report"]);
        assert_eq!(names(Some(&ending), None), ["release"]);
    }

    #[test]
    fn what_has_ended_is_not_run_again() {
        assert_eq!(names(Some(&api(&json!({}), "Succeeded")), None), [""; 0]);
    }

    #[test]
    fn another_pod_of_that_name_makes_room() {
        // Running it replaces the one that has its name.
        assert_eq!(
            names(Some(&api(&json!({}), "")), Some(&here("old", Origin::Api))),
            ["run"]
        );
        let over = api(&json!({}), "Failed");
        assert_eq!(names(Some(&over), Some(&here("old", Origin::Api))), ["end None"]);
    }

    #[test]
    fn orphans_end_only_once_the_api_has_spoken() {
        let orphan = here("u", Origin::Api);
        let mut sight = Sight {
            api: None,
            here: Some(&orphan),
            last_status: None,
            listed: false,
            vanished: None,
        };
        assert_eq!(decide(&sight), []);
        sight.listed = true;
        assert_eq!(decide(&sight), [Step::End(None)]);
        sight.vanished = Some("u");
        assert_eq!(decide(&sight), [Step::End(Some(Duration::ZERO))]);
        assert_eq!(names(None, Some(&here("u", Origin::Detached))), [""; 0]);
    }

    #[test]
    fn a_mirror_follows_its_static_pod() {
        let file = Origin::Manifest {
            path: "web.yaml".to_owned(),
        };
        let there = here("hash", file);
        assert_eq!(names(None, Some(&there)), ["publish"]);
        let annotations = json!({"annotations": {
            "kubernetes.io/config.mirror": "hash", "kubernetes.io/config.hash": "hash",
        }});
        let image = api(&annotations, "Running");
        assert_eq!(names(Some(&image), Some(&there)), ["report"]);
        assert_eq!(names(Some(&image), None), ["release"]);
        let mut other = there.clone();
        other.uid = "changed".to_owned();
        assert_eq!(names(Some(&image), Some(&other)), ["release"]);
    }
}
