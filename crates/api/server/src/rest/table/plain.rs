//! The columns of the kinds of the table, as `kubectl get` shows them.

mod cell;

use jiff::Timestamp;
use serde_json::Value;

use super::{Column, NONE, UNKNOWN};
use crate::registry::object::Object;
use crate::registry::plain::PlainKind;

pub(crate) use cell::selector;
use cell::{
    Cell, bound_accounts, bound_groups, bound_role, bound_users, claim, claim_state, class_name, completions,
    controller, endpoints, external_address, job_duration, job_status, lifecycle_modes, phase, quota_limits,
    quota_requests, request_condition, requested_duration, service_ports, slice_endpoints, slice_ports,
    suspended, token_audiences,
};

/// Shown where a field that has a meaning when absent is absent.
const UNSET: &str = "<unset>";
/// A column that `-o wide` alone shows begins its name with this.
const WIDE: char = '+';

type PlainColumns = &'static [(&'static str, Cell)];

const CONTAINERS: &str = "/spec/template/spec/containers";
const JOB_CONTAINERS: &str = "/spec/jobTemplate/spec/template/spec/containers";
const REPLICAS: PlainColumns = &[
    ("Name", Cell::Name),
    ("Desired", Cell::Number("/spec/replicas")),
    ("Current", Cell::Number("/status/replicas")),
    ("Ready", Cell::Number("/status/readyReplicas")),
    ("Age", Cell::Age),
    ("+Containers", Cell::Each(CONTAINERS, "name")),
    ("+Images", Cell::Each(CONTAINERS, "image")),
    ("+Selector", Cell::Selector("/spec/selector")),
];
const BINDING: PlainColumns = &[
    ("Name", Cell::Name),
    ("Role", Cell::By(bound_role)),
    ("Age", Cell::Age),
    ("+Users", Cell::By(bound_users)),
    ("+Groups", Cell::By(bound_groups)),
    ("+ServiceAccounts", Cell::By(bound_accounts)),
];
const ONLY_AGE: PlainColumns = &[("Name", Cell::Name), ("Age", Cell::Age)];

static COLUMNS: [(&str, PlainColumns); 35] = [
    (
        "certificatesigningrequests",
        &[
            ("Name", Cell::Name),
            ("Age", Cell::Age),
            ("SignerName", Cell::Text("/spec/signerName", NONE)),
            ("Requestor", Cell::Text("/spec/username", "")),
            ("RequestedDuration", Cell::By(requested_duration)),
            ("Condition", Cell::By(request_condition)),
        ],
    ),
    (
        "clusterroles",
        &[
            ("Name", Cell::Name),
            ("Created At", Cell::Text("/metadata/creationTimestamp", "")),
        ],
    ),
    (
        "roles",
        &[
            ("Name", Cell::Name),
            ("Created At", Cell::Text("/metadata/creationTimestamp", "")),
        ],
    ),
    ("clusterrolebindings", BINDING),
    ("rolebindings", BINDING),
    (
        "services",
        &[
            ("Name", Cell::Name),
            ("Type", Cell::Text("/spec/type", "")),
            ("Cluster-IP", Cell::Text("/spec/clusterIPs/0", NONE)),
            ("External-IP", Cell::By(external_address)),
            ("Port(s)", Cell::By(service_ports)),
            ("Age", Cell::Age),
            ("+Selector", Cell::Labels("/spec/selector")),
        ],
    ),
    (
        "endpoints",
        &[
            ("Name", Cell::Name),
            ("Endpoints", Cell::By(endpoints)),
            ("Age", Cell::Age),
        ],
    ),
    (
        "endpointslices",
        &[
            ("Name", Cell::Name),
            ("AddressType", Cell::Text("/addressType", "")),
            ("Ports", Cell::By(slice_ports)),
            ("Endpoints", Cell::By(slice_endpoints)),
            ("Age", Cell::Age),
        ],
    ),
    (
        "persistentvolumes",
        &[
            ("Name", Cell::Name),
            ("Capacity", Cell::Text("/spec/capacity/storage", "0")),
            ("Access Modes", Cell::AccessModes("/spec/accessModes")),
            (
                "Reclaim Policy",
                Cell::Text("/spec/persistentVolumeReclaimPolicy", ""),
            ),
            ("Status", Cell::By(phase)),
            ("Claim", Cell::By(claim)),
            ("StorageClass", Cell::Text("/spec/storageClassName", "")),
            (
                "VolumeAttributesClass",
                Cell::Text("/spec/volumeAttributesClassName", UNSET),
            ),
            ("Reason", Cell::Text("/status/reason", "")),
            ("Age", Cell::Age),
            ("+VolumeMode", Cell::Text("/spec/volumeMode", UNSET)),
        ],
    ),
    (
        "persistentvolumeclaims",
        &[
            ("Name", Cell::Name),
            ("Status", Cell::By(phase)),
            ("Volume", Cell::Text("/spec/volumeName", "")),
            ("Capacity", Cell::Text("/status/capacity/storage", "")),
            ("Access Modes", Cell::AccessModes("/status/accessModes")),
            ("StorageClass", Cell::Text("/spec/storageClassName", "")),
            (
                "VolumeAttributesClass",
                Cell::Text("/spec/volumeAttributesClassName", UNSET),
            ),
            ("Age", Cell::Age),
            ("+VolumeMode", Cell::Text("/spec/volumeMode", UNSET)),
        ],
    ),
    (
        "limitranges",
        &[
            ("Name", Cell::Name),
            ("Created At", Cell::Text("/metadata/creationTimestamp", UNKNOWN)),
        ],
    ),
    (
        "resourcequotas",
        &[
            ("Name", Cell::Name),
            ("Request", Cell::By(quota_requests)),
            ("Limit", Cell::By(quota_limits)),
            ("Age", Cell::Age),
        ],
    ),
    (
        "replicationcontrollers",
        &[
            ("Name", Cell::Name),
            ("Desired", Cell::Number("/spec/replicas")),
            ("Current", Cell::Number("/status/replicas")),
            ("Ready", Cell::Number("/status/readyReplicas")),
            ("Age", Cell::Age),
            ("+Containers", Cell::Each(CONTAINERS, "name")),
            ("+Images", Cell::Each(CONTAINERS, "image")),
            ("+Selector", Cell::Labels("/spec/selector")),
        ],
    ),
    (
        "podtemplates",
        &[
            ("Name", Cell::Name),
            ("Containers", Cell::Each("/template/spec/containers", "name")),
            ("Images", Cell::Each("/template/spec/containers", "image")),
            ("Pod Labels", Cell::Labels("/template/metadata/labels")),
        ],
    ),
    (
        "deployments",
        &[
            ("Name", Cell::Name),
            ("Ready", Cell::Ratio("/status/readyReplicas", "/spec/replicas")),
            ("Up-to-date", Cell::Number("/status/updatedReplicas")),
            ("Available", Cell::Number("/status/availableReplicas")),
            ("Age", Cell::Age),
            ("+Containers", Cell::Each(CONTAINERS, "name")),
            ("+Images", Cell::Each(CONTAINERS, "image")),
            ("+Selector", Cell::Selector("/spec/selector")),
        ],
    ),
    ("replicasets", REPLICAS),
    (
        "daemonsets",
        &[
            ("Name", Cell::Name),
            ("Desired", Cell::Number("/status/desiredNumberScheduled")),
            ("Current", Cell::Number("/status/currentNumberScheduled")),
            ("Ready", Cell::Number("/status/numberReady")),
            ("Up-to-date", Cell::Number("/status/updatedNumberScheduled")),
            ("Available", Cell::Number("/status/numberAvailable")),
            ("Node Selector", Cell::Labels("/spec/template/spec/nodeSelector")),
            ("Age", Cell::Age),
            ("+Containers", Cell::Each(CONTAINERS, "name")),
            ("+Images", Cell::Each(CONTAINERS, "image")),
            ("+Selector", Cell::Selector("/spec/selector")),
        ],
    ),
    (
        "statefulsets",
        &[
            ("Name", Cell::Name),
            ("Ready", Cell::Ratio("/status/readyReplicas", "/spec/replicas")),
            ("Age", Cell::Age),
            ("+Containers", Cell::Each(CONTAINERS, "name")),
            ("+Images", Cell::Each(CONTAINERS, "image")),
        ],
    ),
    (
        "controllerrevisions",
        &[
            ("Name", Cell::Name),
            ("Controller", Cell::By(controller)),
            ("Revision", Cell::Number("/revision")),
            ("Age", Cell::Age),
        ],
    ),
    (
        "jobs",
        &[
            ("Name", Cell::Name),
            ("Status", Cell::By(job_status)),
            ("Completions", Cell::By(completions)),
            ("Duration", Cell::By(job_duration)),
            ("Age", Cell::Age),
            ("+Containers", Cell::Each(CONTAINERS, "name")),
            ("+Images", Cell::Each(CONTAINERS, "image")),
            ("+Selector", Cell::Selector("/spec/selector")),
        ],
    ),
    (
        "cronjobs",
        &[
            ("Name", Cell::Name),
            ("Schedule", Cell::Text("/spec/schedule", "")),
            ("Timezone", Cell::Text("/spec/timeZone", NONE)),
            ("Suspend", Cell::By(suspended)),
            ("Active", Cell::Count("/status/active")),
            ("Last Schedule", Cell::Since("/status/lastScheduleTime")),
            ("Age", Cell::Age),
            ("+Containers", Cell::Each(JOB_CONTAINERS, "name")),
            ("+Images", Cell::Each(JOB_CONTAINERS, "image")),
            ("+Selector", Cell::Selector("/spec/jobTemplate/spec/selector")),
        ],
    ),
    (
        "networkpolicies",
        &[
            ("Name", Cell::Name),
            ("Pod-Selector", Cell::Selector("/spec/podSelector")),
            ("Age", Cell::Age),
        ],
    ),
    (
        "runtimeclasses",
        &[
            ("Name", Cell::Name),
            ("Handler", Cell::Text("/handler", "")),
            ("Age", Cell::Age),
        ],
    ),
    (
        "poddisruptionbudgets",
        &[
            ("Name", Cell::Name),
            ("Min Available", Cell::Text("/spec/minAvailable", "N/A")),
            ("Max Unavailable", Cell::Text("/spec/maxUnavailable", "N/A")),
            ("Allowed Disruptions", Cell::Number("/status/disruptionsAllowed")),
            ("Age", Cell::Age),
        ],
    ),
    (
        "priorityclasses",
        &[
            ("Name", Cell::Name),
            ("Value", Cell::Number("/value")),
            ("Global-Default", Cell::Flag("/globalDefault")),
            ("Age", Cell::Age),
            ("PreemptionPolicy", Cell::Text("/preemptionPolicy", "")),
        ],
    ),
    (
        "storageclasses",
        &[
            ("Name", Cell::By(class_name)),
            ("Provisioner", Cell::Text("/provisioner", "")),
            ("ReclaimPolicy", Cell::Text("/reclaimPolicy", "Delete")),
            ("VolumeBindingMode", Cell::Text("/volumeBindingMode", "Immediate")),
            ("AllowVolumeExpansion", Cell::Flag("/allowVolumeExpansion")),
            ("Age", Cell::Age),
        ],
    ),
    (
        "volumeattributesclasses",
        &[
            ("Name", Cell::Name),
            ("DriverName", Cell::Text("/driverName", "")),
            ("Age", Cell::Age),
        ],
    ),
    (
        "csidrivers",
        &[
            ("Name", Cell::Name),
            ("AttachRequired", Cell::Flag("/spec/attachRequired")),
            ("PodInfoOnMount", Cell::Flag("/spec/podInfoOnMount")),
            ("StorageCapacity", Cell::Flag("/spec/storageCapacity")),
            ("TokenRequests", Cell::By(token_audiences)),
            ("RequiresRepublish", Cell::Flag("/spec/requiresRepublish")),
            ("Modes", Cell::By(lifecycle_modes)),
            ("Age", Cell::Age),
        ],
    ),
    (
        "csinodes",
        &[
            ("Name", Cell::Name),
            ("Drivers", Cell::Count("/spec/drivers")),
            ("Age", Cell::Age),
        ],
    ),
    (
        "csistoragecapacities",
        &[
            ("Name", Cell::Name),
            ("StorageClassName", Cell::Text("/storageClassName", "")),
            ("Capacity", Cell::Text("/capacity", UNSET)),
        ],
    ),
    (
        "volumeattachments",
        &[
            ("Name", Cell::Name),
            ("Attacher", Cell::Text("/spec/attacher", "")),
            ("PV", Cell::Text("/spec/source/persistentVolumeName", "")),
            ("Node", Cell::Text("/spec/nodeName", "")),
            ("Attached", Cell::Flag("/status/attached")),
            ("Age", Cell::Age),
        ],
    ),
    ("deviceclasses", ONLY_AGE),
    (
        "resourceclaims",
        &[
            ("Name", Cell::Name),
            ("State", Cell::By(claim_state)),
            ("Age", Cell::Age),
        ],
    ),
    ("resourceclaimtemplates", ONLY_AGE),
    (
        "resourceslices",
        &[
            ("Name", Cell::Name),
            ("Node", Cell::Text("/spec/nodeName", NONE)),
            ("Driver", Cell::Text("/spec/driver", "")),
            ("Pool", Cell::Text("/spec/pool/name", "")),
            ("Age", Cell::Age),
        ],
    ),
];

fn of(kind: PlainKind) -> PlainColumns {
    let found = COLUMNS.iter().find(|(plural, _)| *plural == kind.info().plural);
    found.map_or(ONLY_AGE, |(_, columns)| columns)
}

pub(super) fn columns(kind: PlainKind) -> Vec<Column> {
    let column = |(name, cell): &(&'static str, Cell)| Column {
        name: name.trim_start_matches(WIDE),
        format: if matches!(cell, Cell::Name) { "name" } else { "" },
        description: "",
        priority: u8::from(name.starts_with(WIDE)),
    };
    of(kind).iter().map(column).collect()
}

pub(super) fn cells(kind: PlainKind, object: &Object, now: Timestamp) -> Vec<Value> {
    of(kind).iter().map(|(_, cell)| cell.show(object, now)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::cell::shown;
    use super::*;
    use crate::registry::resource::ResourceKind;

    #[test]
    fn every_kind_of_the_table_has_columns() {
        for kind in PlainKind::all() {
            let found = COLUMNS.iter().any(|(plural, _)| *plural == kind.info().plural);
            assert!(found, "{} has no columns", kind.info().plural);
        }
    }

    #[test]
    fn a_service_and_a_job_read_as_in_kubectl() {
        let row = |kind: ResourceKind, value: Value| {
            let ResourceKind::Plain(kind) = kind else {
                panic!("not of the table")
            };
            let object = Object::new(value).unwrap();
            let cells = cells(kind, &object, "2026-01-01T00:02:10Z".parse().unwrap());
            cells.iter().map(shown).collect::<Vec<_>>()
        };
        let service = json!({"metadata": {"name": "web", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {
            "type": "NodePort", "clusterIPs": ["10.0.0.7"], "selector": {"app": "web"},
            "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}});
        assert_eq!(
            row(ResourceKind::SERVICE, service),
            [
                "web",
                "NodePort",
                "10.0.0.7",
                "<none>",
                "80:30080/TCP,53/UDP",
                "2m10s",
                "app=web"
            ]
        );
        let job = json!({"metadata": {"name": "once", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"completions": 2, "template": {"spec": {"containers": [{"name": "a", "image": "i"}]}},
                "selector": {"matchExpressions": [{"key": "x", "operator": "In", "values": ["b", "a"]}]}},
            "status": {"succeeded": 1, "startTime": "2026-01-01T00:00:10Z"}});
        assert_eq!(
            row(ResourceKind::JOB, job),
            ["once", "Running", "1/2", "2m", "2m10s", "a", "i", "x in (a,b)"]
        );
    }
}
