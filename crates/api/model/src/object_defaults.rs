//! What the parts of objects mean where nothing was said, as a v1.36 server fills it in.
//!
//! Defaults belong to messages, wherever these are: a probe has the same ones in every template. The message around is
//! filled in first. A Pod's own defaults are `pulselet-model`'s; a template has fewer of them.

use serde_json::{Map, Value, json};

use pulselet_schema::{Message, Shape};

/// Fills in an object, or a part of one, and everything in it.
pub fn fill(message: &'static Message, value: &mut Value) {
    let Value::Object(map) = value else { return };
    set(message.name, map);
    fill_fields(message, map);
}

fn fill_fields(message: &'static Message, map: &mut Map<String, Value>) {
    for field in &message.fields {
        let Some(inner) = field.message() else { continue };
        match field.shape {
            Shape::Inline => {
                set(inner.name, map);
                fill_fields(inner, map);
            }
            Shape::One | Shape::Optional => {
                if let Some(value) = map.get_mut(field.name) {
                    fill(inner, value);
                }
            }
            Shape::List => {
                for item in map
                    .get_mut(field.name)
                    .and_then(Value::as_array_mut)
                    .into_iter()
                    .flatten()
                {
                    fill(inner, item);
                }
            }
            Shape::Map => {
                if let Some(entries) = map.get_mut(field.name).and_then(Value::as_object_mut) {
                    entries.values_mut().for_each(|entry| fill(inner, entry));
                }
            }
        }
    }
}

/// Puts a value where there is none.
fn put(map: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    let found = map.entry(field).or_insert(Value::Null);
    if found.is_null() || found.as_str() == Some("") {
        *found = value.into();
    }
}

/// Puts a value where the field is absent. An empty one is a value here.
fn put_absent(map: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    let found = map.entry(field).or_insert(Value::Null);
    if found.is_null() {
        *found = value.into();
    }
}

/// Puts a number where there is none or zero.
fn put_number(map: &mut Map<String, Value>, field: &str, number: i64) {
    if map.get(field).and_then(Value::as_i64).unwrap_or(0) == 0 {
        map.insert(field.to_owned(), json!(number));
    }
}

/// An object in a field, made if it is not there.
fn part<'a>(map: &'a mut Map<String, Value>, field: &str) -> &'a mut Map<String, Value> {
    let found = map.entry(field).or_insert_with(|| json!({}));
    if !found.is_object() {
        *found = json!({});
    }
    found.as_object_mut().expect("it was just made an object")
}

fn text<'a>(map: &'a Map<String, Value>, field: &str) -> &'a str {
    map.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn is_empty(map: &Map<String, Value>, field: &str) -> bool {
    match map.get(field) {
        None | Some(Value::Null) => true,
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(entries)) => entries.is_empty(),
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => false,
    }
}

fn set(message: &str, map: &mut Map<String, Value>) {
    match message.split_once('.') {
        Some(("apps", name)) => set_apps(name, map),
        Some(("batch", name)) => set_batch(name, map),
        Some(("core", name)) => {
            set_pod(name, map);
            set_core(name, map);
        }
        Some(("rbac", name)) => set_rbac(name, map),
        Some(("storage", name)) => set_storage(name, map),
        Some((_, name)) => set_other(name, map),
        None => {}
    }
}

fn set_rbac(name: &str, map: &mut Map<String, Value>) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    match name {
        "RoleRef" => put(map, "apiGroup", GROUP),
        "Subject" if matches!(text(map, "kind"), "User" | "Group") => put(map, "apiGroup", GROUP),
        _ => {}
    }
}

fn set_apps(name: &str, map: &mut Map<String, Value>) {
    match name {
        "DeploymentSpec" => {
            put(map, "replicas", 1);
            put(map, "revisionHistoryLimit", 10);
            put(map, "progressDeadlineSeconds", 600);
            let strategy = part(map, "strategy");
            put(strategy, "type", "RollingUpdate");
            if text(strategy, "type") == "RollingUpdate" {
                let rolling = part(strategy, "rollingUpdate");
                put(rolling, "maxUnavailable", "25%");
                put(rolling, "maxSurge", "25%");
            }
        }
        "DaemonSetSpec" => {
            put(map, "revisionHistoryLimit", 10);
            let strategy = part(map, "updateStrategy");
            put(strategy, "type", "RollingUpdate");
            if text(strategy, "type") == "RollingUpdate" {
                let rolling = part(strategy, "rollingUpdate");
                put(rolling, "maxUnavailable", 1);
                put(rolling, "maxSurge", 0);
            }
        }
        "StatefulSetSpec" => set_stateful(map),
        "ReplicaSetSpec" => put(map, "replicas", 1),
        _ => {}
    }
}

fn set_stateful(map: &mut Map<String, Value>) {
    put(map, "podManagementPolicy", "OrderedReady");
    put(map, "replicas", 1);
    put(map, "revisionHistoryLimit", 10);
    let strategy = part(map, "updateStrategy");
    if text(strategy, "type").is_empty() {
        put(strategy, "type", "RollingUpdate");
        part(strategy, "rollingUpdate");
    }
    if text(strategy, "type") == "RollingUpdate" && strategy.contains_key("rollingUpdate") {
        put(part(strategy, "rollingUpdate"), "partition", 0);
    }
    let retention = part(map, "persistentVolumeClaimRetentionPolicy");
    put(retention, "whenDeleted", "Retain");
    put(retention, "whenScaled", "Retain");
}

fn set_batch(name: &str, map: &mut Map<String, Value>) {
    match name {
        // A template of a Job is left as it is until a Job is made from it.
        "Job" => {
            let map = part(map, "spec");
            if is_empty(map, "completions") && is_empty(map, "parallelism") {
                put(map, "completions", 1);
            }
            put(map, "parallelism", 1);
            let retries = if is_empty(map, "backoffLimitPerIndex") {
                6
            } else {
                i32::MAX
            };
            put(map, "backoffLimit", retries);
            put_absent(map, "completionMode", "NonIndexed");
            put(map, "suspend", false);
            let replacement = if is_empty(map, "podFailurePolicy") {
                "TerminatingOrFailed"
            } else {
                "Failed"
            };
            put_absent(map, "podReplacementPolicy", replacement);
            put(map, "manualSelector", false);
        }
        "CronJobSpec" => {
            put(map, "concurrencyPolicy", "Allow");
            put(map, "suspend", false);
            put(map, "successfulJobsHistoryLimit", 3);
            put(map, "failedJobsHistoryLimit", 1);
        }
        "PodFailurePolicyOnPodConditionsPattern" => put(map, "status", "True"),
        _ => {}
    }
}

/// The parts of a Pod's template.
fn set_pod(name: &str, map: &mut Map<String, Value>) {
    match name {
        "PodSpec" => {
            put(map, "dnsPolicy", "ClusterFirst");
            put(map, "restartPolicy", "Always");
            part(map, "securityContext");
            put(map, "terminationGracePeriodSeconds", 30);
            put(map, "schedulerName", "default-scheduler");
            // One field under two names; the new name wins.
            let account = [text(map, "serviceAccountName"), text(map, "serviceAccount")];
            let account = account
                .into_iter()
                .find(|name| !name.is_empty())
                .map(str::to_owned);
            if let Some(account) = account {
                map.insert("serviceAccountName".to_owned(), json!(account));
                map.insert("serviceAccount".to_owned(), json!(account));
            }
        }
        "Container" | "EphemeralContainerCommon" => {
            let policy = pull_policy(text(map, "image"));
            put(map, "imagePullPolicy", policy);
            put(map, "terminationMessagePath", "/dev/termination-log");
            put(map, "terminationMessagePolicy", "File");
        }
        "ContainerPort" => put(map, "protocol", "TCP"),
        "ObjectFieldSelector" => put(map, "apiVersion", "v1"),
        "FileKeySelector" => put(map, "optional", false),
        "Probe" => {
            for (field, number) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                put_number(map, field, number);
            }
        }
        "HTTPGetAction" => {
            put(map, "path", "/");
            put(map, "scheme", "HTTP");
        }
        "GRPCAction" => put(map, "service", ""),
        _ => set_volume(name, map),
    }
}

/// Readable by all, writable by the owner.
const FILE_MODE: i32 = 0o644;

fn set_volume(name: &str, map: &mut Map<String, Value>) {
    match name {
        "Volume" if map.len() == 1 => drop(part(map, "emptyDir")),
        "SecretVolumeSource"
        | "ConfigMapVolumeSource"
        | "DownwardAPIVolumeSource"
        | "ProjectedVolumeSource" => {
            put(map, "defaultMode", FILE_MODE);
        }
        "ServiceAccountTokenProjection" => put(map, "expirationSeconds", 3600),
        "HostPathVolumeSource" => put(map, "type", ""),
        "ImageVolumeSource" => {
            let policy = pull_policy(text(map, "reference"));
            put(map, "pullPolicy", policy);
        }
        "ISCSIVolumeSource" | "ISCSIPersistentVolumeSource" => put(map, "iscsiInterface", "default"),
        "RBDVolumeSource" | "RBDPersistentVolumeSource" => {
            put(map, "pool", "rbd");
            put(map, "user", "admin");
            put(map, "keyring", "/etc/ceph/keyring");
        }
        "AzureDiskVolumeSource" => {
            put(map, "cachingMode", "ReadWrite");
            put(map, "kind", "Shared");
            put(map, "fsType", "ext4");
            put(map, "readOnly", false);
        }
        "ScaleIOVolumeSource" | "ScaleIOPersistentVolumeSource" => {
            put(map, "storageMode", "ThinProvisioned");
            put(map, "fsType", "xfs");
        }
        _ => {}
    }
}

/// A moving tag is pulled every time.
fn pull_policy(image: &str) -> &'static str {
    if crate::image::tag(image) == Some("latest") {
        "Always"
    } else {
        "IfNotPresent"
    }
}

fn set_core(name: &str, map: &mut Map<String, Value>) {
    match name {
        "PersistentVolumeSpec" => {
            put(map, "persistentVolumeReclaimPolicy", "Retain");
            put(map, "volumeMode", "Filesystem");
        }
        "PersistentVolumeStatus" | "PersistentVolumeClaimStatus" => put(map, "phase", "Pending"),
        "PersistentVolumeClaimSpec" => {
            put(map, "volumeMode", "Filesystem");
            // One field under two names.
            for (from, to) in [("dataSource", "dataSourceRef"), ("dataSourceRef", "dataSource")] {
                if let Some(source) = map
                    .get(from)
                    .filter(|source| source["namespace"].is_null())
                    .cloned()
                {
                    map.entry(to).or_insert(source);
                }
            }
        }
        "EndpointPort" => put(map, "protocol", "TCP"),
        "ReplicationControllerSpec" => put(map, "replicas", 1),
        "ServiceSpec" => set_service(map),
        "ServicePort" => {
            put(map, "protocol", "TCP");
            let unset = map
                .get("targetPort")
                .is_none_or(|port| port.as_i64() == Some(0) || port.as_str() == Some(""));
            if unset {
                let port = map.get("port").cloned().unwrap_or_default();
                map.insert("targetPort".to_owned(), port);
            }
        }
        "LimitRangeItem" => set_limits(map),
        _ => {}
    }
}

/// Seconds that a client is kept at one endpoint.
const CLIENT_AFFINITY_SECONDS: i32 = 10_800;

fn set_service(map: &mut Map<String, Value>) {
    put(map, "sessionAffinity", "None");
    match text(map, "sessionAffinity") {
        "None" => drop(map.remove("sessionAffinityConfig")),
        "ClientIP" => {
            let client = part(part(map, "sessionAffinityConfig"), "clientIP");
            put(client, "timeoutSeconds", CLIENT_AFFINITY_SECONDS);
        }
        _ => {}
    }
    put(map, "type", "ClusterIP");
    let kind = text(map, "type").to_owned();
    let has_external = !is_empty(map, "externalIPs");
    let has_address = matches!(kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer");
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") || (kind == "ClusterIP" && has_external) {
        put(map, "externalTrafficPolicy", "Cluster");
    }
    if has_address {
        put(map, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        put(map, "allocateLoadBalancerNodePorts", true);
    }
}

/// A container's limit comes from the maximum, its request from the limit or the minimum.
fn set_limits(map: &mut Map<String, Value>) {
    if text(map, "type") != "Container" {
        return;
    }
    for (from, to) in [
        ("max", "default"),
        ("default", "defaultRequest"),
        ("min", "defaultRequest"),
    ] {
        let given = map
            .get(from)
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        if given.is_empty() {
            continue;
        }
        let filled = part(map, to);
        for (resource, amount) in given {
            filled.entry(resource).or_insert(amount);
        }
    }
}

fn set_storage(name: &str, map: &mut Map<String, Value>) {
    match name {
        "StorageClass" => {
            put(map, "reclaimPolicy", "Delete");
            put(map, "volumeBindingMode", "Immediate");
        }
        "CSIDriverSpec" => {
            put(map, "attachRequired", true);
            put(map, "fsGroupPolicy", "ReadWriteOnceWithFSType");
            for field in [
                "podInfoOnMount",
                "storageCapacity",
                "requiresRepublish",
                "seLinuxMount",
            ] {
                put(map, field, false);
            }
            if is_empty(map, "volumeLifecycleModes") {
                map.insert("volumeLifecycleModes".to_owned(), json!(["Persistent"]));
            }
        }
        _ => {}
    }
}

fn set_other(name: &str, map: &mut Map<String, Value>) {
    match name {
        "NetworkPolicyPort" => put(map, "protocol", "TCP"),
        "NetworkPolicySpec" if is_empty(map, "policyTypes") => {
            let mut types = vec!["Ingress"];
            if !is_empty(map, "egress") {
                types.push("Egress");
            }
            map.insert("policyTypes".to_owned(), json!(types));
        }
        // Of endpoint slices.
        "EndpointPort" => {
            put(map, "name", "");
            put(map, "protocol", "TCP");
        }
        "PriorityClass" => put(map, "preemptionPolicy", "PreemptLowerPriority"),
        "ExactDeviceRequest" | "DeviceSubRequest" => {
            put(map, "allocationMode", "ExactCount");
            if text(map, "allocationMode") == "ExactCount" {
                put_number(map, "count", 1);
            }
        }
        _ => {}
    }
}
