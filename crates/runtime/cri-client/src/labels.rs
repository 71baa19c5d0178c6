//! Labels and annotations: what a kubelet sets, so that tools find their way, and ours, by which objects are known again.

use std::collections::BTreeMap;

use pulselet_runtime::PodIdentity;

const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_UID: &str = "io.kubernetes.pod.uid";
pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub(crate) const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";

/// Whose it is; see [`Owner`](crate::owner::Owner).
pub(crate) const OWNER: &str = "pulselet.local/owner";
/// A sandbox's configuration, which CRI wants to see again with every container.
pub(crate) const SANDBOX: &str = "pulselet.local/sandbox";
/// A container's image as the pod names it.
pub(crate) const IMAGE: &str = "pulselet.local/image";

const RESERVED: [&str; 8] = [
    POD_NAME,
    POD_NAMESPACE,
    POD_UID,
    CONTAINER_NAME,
    RESTART_COUNT,
    OWNER,
    SANDBOX,
    IMAGE,
];

pub(crate) type Map = BTreeMap<String, String>;

/// The labels by which a pod's objects are known, added to others.
pub(crate) fn with_identity(mut labels: Map, pod: &PodIdentity, owner: &str) -> Map {
    for (key, value) in [
        (POD_NAME, pod.name.as_str()),
        (POD_NAMESPACE, &pod.namespace),
        (POD_UID, &pod.uid),
        (OWNER, owner),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    labels
}

pub(crate) fn identity(labels: &Map) -> PodIdentity {
    let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
    PodIdentity {
        uid: label(POD_UID),
        namespace: label(POD_NAMESPACE),
        name: label(POD_NAME),
    }
}

/// What selects all that is an owner's.
pub(crate) fn selector(owner: &str) -> Map {
    Map::from([(OWNER.to_owned(), owner.to_owned())])
}

/// The same for one pod.
pub(crate) fn pod_selector(owner: &str, uid: &str) -> Map {
    let mut labels = selector(owner);
    labels.insert(POD_UID.to_owned(), uid.to_owned());
    labels
}

/// Without what was added here.
pub(crate) fn without_reserved(mut map: Map) -> Map {
    map.retain(|key, _| !RESERVED.contains(&key.as_str()));
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_cannot_pass_for_another() {
        let pod = PodIdentity {
            uid: "u".into(),
            namespace: "default".into(),
            name: "web".into(),
        };
        let own = Map::from([
            (POD_UID.to_owned(), "stolen".to_owned()),
            ("app".into(), "web".into()),
        ]);
        let labels = with_identity(own, &pod, "me");
        assert_eq!(identity(&labels), pod);
        assert_eq!(
            without_reserved(labels),
            Map::from([("app".into(), "web".into())])
        );
    }
}
