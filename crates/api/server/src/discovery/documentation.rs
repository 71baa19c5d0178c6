//! What `kubectl explain` says about the fields whose behaviour is Pulselet's own: what happens here, not what might
//! elsewhere. A field that upstream has keeps its type; those that it lacks are added.

use serde_json::{Map, Value, json};

const PROBE: &str = "io.k8s.api.core.v1.Probe";
const CONTAINER: &str = "io.k8s.api.core.v1.Container";
const LIFECYCLE: &str = "io.k8s.api.core.v1.Lifecycle";
const CONTAINER_STATUS: &str = "io.k8s.api.core.v1.ContainerStatus";

/// Schema, field and text.
const TEXTS: [(&str, &str, &str); 13] = [
    (
        PROBE,
        "terminationGracePeriodSeconds",
        "How long the container may take to stop after this probe has condemned it, in place of the pod's grace period; \
         for liveness and startup probes. 0 is SIGKILL at once, without a hook. Left out, the pod's own value counts. It \
         may be longer than the pod's, with a warning, and plays no part when the pod is deleted or evicted. While the \
         feature gate ProbeTerminationGracePeriod is off, at the API or at the node, the pod's value is used, also for \
         containers that run already.",
    ),
    (
        PROBE,
        "periodSeconds",
        "Seconds between two probes, 10 if left out or 0. The first counted probe comes one period after the container \
         runs, is started (for liveness and readiness) and its initial delay is over. Startup and readiness probes also \
         look once before that, as soon as somebody listens, so that a quick start is seen at once; a look that fails \
         counts for nothing.",
    ),
    (
        PROBE,
        "timeoutSeconds",
        "Seconds after which a probe without an answer has failed, 1 if left out or 0. With timeoutMilliseconds it can be a \
         fraction.",
    ),
    (
        PROBE,
        "failureThreshold",
        "Failures in a row after which the container counts as failed, 3 if left out or 0. A container is never given less \
         than this many periods.",
    ),
    (
        CONTAINER,
        "startupProbe",
        "Says when the container has started. Until it has succeeded once in a life of the container, neither liveness nor \
         readiness is probed and the container is not ready; after that it is not asked again in this life. Failing as \
         often as its failureThreshold says, it has the container killed and restarted as restartPolicy says.",
    ),
    (
        CONTAINER,
        "livenessProbe",
        "Says whether the container is alive. It is asked once the container is started; failing as often as its \
         failureThreshold says, it has the container killed and restarted as restartPolicy says. It never runs while the \
         pod ends.",
    ),
    (
        CONTAINER,
        "readinessProbe",
        "Says whether the container can serve. It is asked once the container is started, the first time at that very \
         moment, and goes on while the pod ends. Failing, it takes the container's readiness and nothing else.",
    ),
    (
        LIFECYCLE,
        "postStart",
        "Run as soon as the container runs, beside its program and beside its probes: it delays neither probes nor the \
         moment at which the container counts as started. If it fails, the container is killed with the pod's grace period \
         and restarted as restartPolicy says.",
    ),
    (
        LIFECYCLE,
        "preStop",
        "Run before the stop signal, for as long as the grace period lasts at most; its time is taken from the grace \
         period, of which at least 2 seconds are left for the signal. Not run at grace period 0.",
    ),
    (
        LIFECYCLE,
        "stopSignal",
        "The signal that asks the container's main process to end, in place of the image's STOPSIGNAL and of SIGTERM, which \
         is sent if neither names one. What is left when the grace period is over gets SIGKILL; with SIGKILL here nothing is \
         waited for. A program that does not handle the signal takes the whole grace period at every stop, which an event \
         StopSignalNotHandled tells in advance. While the feature gate ContainerStopSignals is off at the API, a value that \
         the stored object lacks is refused; off at the node, the next life of the container has none. Without spec.os.name \
         the names of Linux are accepted.",
    ),
    (
        CONTAINER_STATUS,
        "started",
        "Whether the container has started: false until it runs; then true at once without a startup probe (or while the \
         node's gate StartupProbeEnabled is off), else once the startup probe has succeeded. It stays true for the rest of \
         the container's life, also when the agent restarts. A postStart hook does not delay it. A container that has not \
         started is not ready.",
    ),
    (
        CONTAINER_STATUS,
        "stopSignal",
        "The signal with which the container is stopped: the manifest's, else the image's, else SIGTERM. Absent where the \
         runtime does not tell, and while the node's gate ContainerStopSignals is off.",
    ),
    (
        CONTAINER_STATUS,
        "ready",
        "Whether the container can serve: it runs, has started, and its readiness probe's result is success, if it has one.",
    ),
];

/// The fields of probes that upstream does not have.
const PROBE_FIELDS: [(&str, &str); 4] = [
    (
        "initialDelayMilliseconds",
        "Milliseconds added to initialDelaySeconds, -999 to 999; the sum is not negative.",
    ),
    (
        "periodMilliseconds",
        "Milliseconds added to periodSeconds, -999 to 999, for startup and readiness probes. The least sum is 500 ms for exec \
         and 200 ms otherwise. A sum below one second holds until the probe has succeeded in this life of the container, then \
         the period is periodSeconds (the node's subSecondPolicy can say otherwise); it is so too while the node is late, \
         which its event ProbesStretched says.",
    ),
    (
        "timeoutMilliseconds",
        "Milliseconds added to timeoutSeconds, -999 to 999, for startup and readiness probes; the sum is at least 100 ms. \
         It holds after the first success too.",
    ),
    (
        "initializationFailureThreshold",
        "Failures in a row that count as a failure until the probe has succeeded once in this life of the container, for \
         liveness and readiness probes; after that failureThreshold holds for good. The larger of the two is used. The node \
         remembers across its restarts whether the probe has succeeded.",
    ),
];

pub(super) fn describe(schemas: &mut Map<String, Value>) {
    for (schema, field, text) in TEXTS {
        if let Some(schema) = schemas.get_mut(schema) {
            schema["properties"][field]["description"] = json!(text);
        }
    }
    if let Some(probe) = schemas.get_mut(PROBE) {
        for (field, text) in PROBE_FIELDS {
            probe["properties"][field] = json!({"description": text, "type": "integer", "format": "int32"});
        }
    }
    if let Some(status) = schemas.get_mut(CONTAINER_STATUS) {
        status["properties"]["lifecycle"] = json!({
            "description": "How the container is stopped, as the node knows it.",
            "type": "object",
            "properties": {"stopSignal": {
                "description": "The same as the status's stopSignal: the signal with which the container is stopped.",
                "type": "string",
            }},
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::openapi;
    use crate::registry::resource::GroupVersion;
    use pulselet_model::Profile;

    use super::*;

    fn schemas(profile: Profile) -> Value {
        openapi::v3(GroupVersion::CoreV1, profile)["components"]["schemas"].take()
    }

    #[test]
    fn fields_with_texts_of_ours_exist_upstream_or_are_added() {
        let (ours, upstream) = (schemas(Profile::Pulselet), schemas(Profile::Kubernetes));
        for (schema, field, text) in TEXTS {
            let before = &upstream[schema]["properties"][field];
            assert!(before.is_object(), "{schema} has no {field}");
            let now = &ours[schema]["properties"][field];
            assert_eq!(now["description"], text);
            assert_eq!(now["type"], before["type"], "{schema}.{field} keeps its type");
        }
        for (field, _) in PROBE_FIELDS {
            assert!(upstream[PROBE]["properties"][field].is_null(), "{field} is ours");
            assert_eq!(ours[PROBE]["properties"][field]["type"], "integer");
        }
        assert!(upstream[CONTAINER_STATUS]["properties"]["lifecycle"].is_null());
    }
}
