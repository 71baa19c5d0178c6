//! What a pod needs that no node of ours has: storage drivers, block devices, device plugins, huge pages.
//!
//! A pod that got none of it would wait for ever or run without what it counts on, so it is refused.

use pulselet_model::openapi::api::core::v1::Volume;
use pulselet_model::{Container, Pod, Shortage, pod_limits, pod_requests};

use crate::refusal::{PodRefusal, RefusalReason, out_of};

const HUGE_PAGES: &str = "hugepages-";

/// The first thing that is missing.
pub(crate) fn unserved(pod: &Pod) -> Option<PodRefusal> {
    volume(pod)
        .or_else(|| block_device(pod))
        .or_else(|| resource_claim(pod))
        .or_else(|| resource(pod))
}

fn volume(pod: &Pod) -> Option<PodRefusal> {
    let sources = pod.spec.volumes.iter().map(foreign_source).enumerate();
    sources
        .filter_map(|(index, source)| Some((index, source?)))
        .map(|(index, source)| PodRefusal {
            reason: RefusalReason::PodFeatureUnsupported,
            field: format!("spec.volumes[{index}].{source}"),
            message: "this node has no storage drivers; use a volume of the node itself, or run the pod on a node that \
                      has the driver"
                .to_owned(),
        })
        .next()
}

/// The name of a source that only a storage driver or a service elsewhere could serve.
fn foreign_source(volume: &Volume) -> Option<&'static str> {
    let sources = [
        (volume.aws_elastic_block_store.is_some(), "awsElasticBlockStore"),
        (volume.azure_disk.is_some(), "azureDisk"),
        (volume.azure_file.is_some(), "azureFile"),
        (volume.cephfs.is_some(), "cephfs"),
        (volume.cinder.is_some(), "cinder"),
        (volume.csi.is_some(), "csi"),
        (volume.fc.is_some(), "fc"),
        (volume.flex_volume.is_some(), "flexVolume"),
        (volume.flocker.is_some(), "flocker"),
        (volume.gce_persistent_disk.is_some(), "gcePersistentDisk"),
        (volume.git_repo.is_some(), "gitRepo"),
        (volume.glusterfs.is_some(), "glusterfs"),
        (volume.iscsi.is_some(), "iscsi"),
        (volume.nfs.is_some(), "nfs"),
        (volume.photon_persistent_disk.is_some(), "photonPersistentDisk"),
        (volume.portworx_volume.is_some(), "portworxVolume"),
        (volume.quobyte.is_some(), "quobyte"),
        (volume.rbd.is_some(), "rbd"),
        (volume.scale_io.is_some(), "scaleIO"),
        (volume.storageos.is_some(), "storageos"),
        (volume.vsphere_volume.is_some(), "vsphereVolume"),
    ];
    sources
        .into_iter()
        .find_map(|(is_set, name)| is_set.then_some(name))
}

fn block_device(pod: &Pod) -> Option<PodRefusal> {
    let lists = [
        ("initContainers", &pod.spec.init_containers),
        ("containers", &pod.spec.containers),
    ];
    let has_device = |container: &Container| !container.volume_devices.is_empty();
    lists.into_iter().find_map(|(list, containers)| {
        let index = containers.iter().position(has_device)?;
        Some(PodRefusal {
            reason: RefusalReason::PodFeatureUnsupported,
            field: format!("spec.{list}[{index}].volumeDevices"),
            message: "this node gives containers no block devices; mount the volume instead".to_owned(),
        })
    })
}

fn resource_claim(pod: &Pod) -> Option<PodRefusal> {
    let claim = pod.spec.resource_claims.first()?;
    Some(PodRefusal {
        reason: RefusalReason::UnexpectedAdmissionError,
        field: "spec.resourceClaims[0]".to_owned(),
        message: format!(
            "Failed to prepare dynamic resources: this node has no driver for the claim {:?}",
            claim.name
        ),
    })
}

/// Devices and huge pages count whether they are requested or only limited.
fn resource(pod: &Pod) -> Option<PodRefusal> {
    let mut wanted = pod_requests(&pod.spec).others;
    wanted.extend(pod_limits(&pod.spec).others);
    let (name, requested) = wanted.into_iter().find(|(_, amount)| *amount > 0)?;
    if name.starts_with(HUGE_PAGES) {
        return Some(out_of(&Shortage {
            resource: name,
            requested,
            used: 0,
            capacity: 0,
        }));
    }
    let is_device = name.contains('/') && !name.contains("kubernetes.io/");
    is_device.then(|| PodRefusal {
        reason: RefusalReason::UnexpectedAdmissionError,
        field: "spec.containers".to_owned(),
        message: format!(
            "Allocate failed due to no device plugin on this node for {name}, which is unexpected"
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refused(spec: &Value) -> Option<String> {
        let mut spec = spec.clone();
        if spec.get("containers").is_none() {
            spec["containers"] = json!([{"name": "app"}]);
        }
        let pod = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec}));
        let refusal = unserved(&pod.expect("a pod"))?;
        Some(format!(
            "{}: {}",
            refusal.reason.as_str(),
            refusal.status_message()
        ))
    }

    #[test]
    fn volumes_of_drivers_are_refused_and_those_of_the_node_are_not() {
        let volume = |source: Value| json!({"volumes": [source]});
        for source in [
            json!({"name": "v", "emptyDir": {}}),
            json!({"name": "v", "hostPath": {"path": "/x"}}),
            json!({"name": "v", "configMap": {"name": "c"}}),
            json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}}),
            json!({"name": "v", "image": {"reference": "i"}}),
        ] {
            assert_eq!(refused(&volume(source.clone())), None, "{source}");
        }
        let csi = refused(&volume(json!({"name": "v", "csi": {"driver": "d"}}))).expect("a refusal");
        assert!(
            csi.starts_with("PodFeatureUnsupported: spec.volumes[0].csi: this node has no storage drivers"),
            "{csi}"
        );
        assert!(refused(&volume(json!({"name": "v", "nfs": {"server": "n", "path": "/"}}))).is_some());
        let device = json!([{"name": "app", "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]}]);
        let device = refused(&json!({"containers": device})).expect("a refusal");
        assert!(device.contains("spec.containers[0].volumeDevices"), "{device}");
    }

    #[test]
    fn devices_huge_pages_and_claims_are_refused_with_a_kubelets_reasons() {
        let limited = |name: &str, amount: &str| {
            let resources = json!({"limits": {name: amount}});
            json!({"containers": [{"name": "app", "resources": resources}]})
        };
        assert_eq!(refused(&limited("cpu", "1")), None);
        assert_eq!(refused(&limited("example.com/gpu", "0")), None);
        assert_eq!(
            refused(&limited("example.com/gpu", "1")).as_deref(),
            Some(
                "UnexpectedAdmissionError: Allocate failed due to no device plugin on this node for \
                 example.com/gpu, which is unexpected"
            )
        );
        assert_eq!(
            refused(&limited("hugepages-2Mi", "4Mi")).as_deref(),
            Some(
                "OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 4194304, used: 0, \
                 capacity: 0"
            )
        );
        let claim = refused(&json!({"resourceClaims": [{"name": "gpu"}]})).expect("a refusal");
        assert!(
            claim.starts_with("UnexpectedAdmissionError: Failed to prepare dynamic resources"),
            "{claim}"
        );
    }
}
