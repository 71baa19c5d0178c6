//! Static pods as the API shows them.
//!
//! A static pod belongs to its file. Its image at the API, the mirror, carries annotations that say so and which
//! version of the file it shows; it is owned by the Node, and removing it does nothing to the pod: it is put back.

use pulselet_agent::{Origin, PodView};
use pulselet_model::Pod;
use serde_json::{Value, json};

use crate::client::to_value;
use crate::registration::Registered;

const MIRROR: &str = "kubernetes.io/config.mirror";
const HASH: &str = "kubernetes.io/config.hash";
const SOURCE: &str = "kubernetes.io/config.source";
const SEEN: &str = "kubernetes.io/config.seen";

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

pub(crate) fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, MIRROR).is_some()
}

/// Whether a mirror shows this very version of a static pod.
pub(crate) fn shows(mirror: &Pod, here: &PodView) -> bool {
    matches!(here.origin, Origin::Manifest { .. }) && annotation(mirror, MIRROR) == Some(&here.uid)
}

/// The mirror of a static pod.
pub(crate) fn object(pod: &Pod, here: &PodView, node: &Registered) -> Value {
    let mut annotations = to_value(&pod.metadata.annotations.clone().unwrap_or_default());
    annotations[MIRROR] = json!(here.uid);
    annotations[HASH] = json!(here.uid);
    annotations[SOURCE] = json!("file");
    annotations[SEEN] = json!(here.accepted_at.to_string());
    let mut spec = to_value(&pod.spec);
    spec["nodeName"] = json!(node.name);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": here.name,
            "namespace": here.namespace,
            "labels": pod.metadata.labels,
            "annotations": annotations,
            "ownerReferences": [node.owner_reference()],
        },
        "spec": spec,
    })
}
