//! The columns of the kinds of the table, as `kubectl get` shows them.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Column, NONE, UNKNOWN, age, human_duration};
use crate::registry::object::Object;
use crate::registry::plain::PlainKind;

/// Shown where a field that has a meaning when absent is absent.
const UNSET: &str = "<unset>";
/// Addresses and ports that are named before the others are only counted.
const SHOWN: usize = 3;

/// A column that `-o wide` alone shows begins its name with this.
const WIDE: char = '+';

/// What a cell shows, from the object.
#[derive(Clone, Copy)]
enum Cell {
    Name,
    Age,
    /// The text at a pointer, or another where there is none.
    Text(&'static str, &'static str),
    Number(&'static str),
    Flag(&'static str),
    /// A number of another.
    Ratio(&'static str, &'static str),
    /// How many entries there are.
    Count(&'static str),
    Labels(&'static str),
    Selector(&'static str),
    /// A field of each item of a list.
    Each(&'static str, &'static str),
    AccessModes(&'static str),
    Since(&'static str),
    By(fn(&Object, Timestamp) -> Value),
}

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

fn requested_duration(request: &Object, _: Timestamp) -> Value {
    let seconds = request
        .value()
        .pointer("/spec/expirationSeconds")
        .and_then(Value::as_i64);
    json!(seconds.map_or_else(|| NONE.to_owned(), human_duration))
}

fn request_condition(request: &Object, _: Timestamp) -> Value {
    let conditions = request
        .value()
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let names: Vec<&str> = conditions
        .into_iter()
        .flatten()
        .filter_map(|condition| condition["type"].as_str())
        .collect();
    let mut shown = if names.is_empty() {
        "Pending".to_owned()
    } else {
        names.join(",")
    };
    if !request.text("/status/certificate").is_empty() {
        shown.push_str(",Issued");
    }
    json!(shown)
}

fn bound_role(binding: &Object, _: Timestamp) -> Value {
    json!(format!(
        "{}/{}",
        binding.text("/roleRef/kind"),
        binding.text("/roleRef/name")
    ))
}

fn bound(binding: &Object, kind: &str) -> Value {
    let subjects = binding.value().get("subjects").and_then(Value::as_array);
    let of_kind = subjects
        .into_iter()
        .flatten()
        .filter(|subject| subject["kind"] == kind);
    let names: Vec<String> = of_kind
        .map(|subject| {
            let name = subject["name"].as_str().unwrap_or_default();
            match subject["namespace"].as_str() {
                Some(namespace) => format!("{namespace}/{name}"),
                None => name.to_owned(),
            }
        })
        .collect();
    json!(names.join(", "))
}

fn bound_users(binding: &Object, _: Timestamp) -> Value {
    bound(binding, "User")
}

fn bound_groups(binding: &Object, _: Timestamp) -> Value {
    bound(binding, "Group")
}

fn bound_accounts(binding: &Object, _: Timestamp) -> Value {
    bound(binding, "ServiceAccount")
}

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

impl Cell {
    fn show(self, object: &Object, now: Timestamp) -> Value {
        let at = |pointer: &str| object.value().pointer(pointer);
        let number = |pointer: &str| at(pointer).and_then(Value::as_i64).unwrap_or(0);
        match self {
            Self::Name => json!(object.name()),
            Self::Age => json!(age(object.text("/metadata/creationTimestamp"), now)),
            Self::Text(pointer, otherwise) => match at(pointer) {
                Some(Value::String(text)) => json!(text),
                Some(Value::Number(number)) => json!(number.to_string()),
                _ => json!(otherwise),
            },
            Self::Number(pointer) => json!(number(pointer)),
            Self::Flag(pointer) => json!(at(pointer).and_then(Value::as_bool).unwrap_or(false)),
            Self::Ratio(part, whole) => json!(format!("{}/{}", number(part), number(whole))),
            Self::Count(pointer) => json!(list(object, pointer).len()),
            Self::Labels(pointer) => json!(labels(at(pointer))),
            Self::Selector(pointer) => json!(selector(at(pointer))),
            Self::Each(pointer, field) => {
                let items = list(object, pointer).iter();
                json!(
                    items
                        .map(|item| shown(&item[field]))
                        .collect::<Vec<_>>()
                        .join(",")
                )
            }
            Self::AccessModes(pointer) => json!(access_modes(list(object, pointer))),
            Self::Since(pointer) => match object.text(pointer) {
                "" => json!(NONE),
                time => json!(age(time, now)),
            },
            Self::By(show) => show(object, now),
        }
    }
}

fn list<'a>(object: &'a Object, pointer: &str) -> &'a [Value] {
    let found = object.value().pointer(pointer).and_then(Value::as_array);
    found.map(Vec::as_slice).unwrap_or_default()
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn joined(values: &[Value]) -> String {
    values.iter().map(shown).collect::<Vec<_>>().join(",")
}

fn pairs(labels: &Value) -> Vec<String> {
    let labels = labels.as_object().into_iter().flatten();
    labels
        .map(|(key, value)| format!("{key}={}", shown(value)))
        .collect()
}

fn labels(found: Option<&Value>) -> String {
    let pairs = found.map(pairs).unwrap_or_default();
    if pairs.is_empty() {
        NONE.to_owned()
    } else {
        pairs.join(",")
    }
}

/// A selector of labels on one line.
pub(crate) fn selector(found: Option<&Value>) -> String {
    let Some(found) = found else {
        return NONE.to_owned();
    };
    let mut parts = pairs(&found["matchLabels"]);
    for expression in found["matchExpressions"].as_array().into_iter().flatten() {
        let (key, values) = (shown(&expression["key"]), expression["values"].as_array());
        let mut values: Vec<String> = values.into_iter().flatten().map(shown).collect();
        values.sort();
        let values = values.join(",");
        parts.push(match expression["operator"].as_str() {
            Some("In") => format!("{key} in ({values})"),
            Some("NotIn") => format!("{key} notin ({values})"),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key,
        });
    }
    if parts.is_empty() {
        NONE.to_owned()
    } else {
        parts.join(",")
    }
}

fn access_modes(modes: &[Value]) -> String {
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let short = known
        .iter()
        .filter(|(mode, _)| modes.iter().any(|found| found == mode));
    short.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

/// Some of many, and how many more there are.
fn some(all: &[String]) -> String {
    if all.is_empty() {
        return UNSET.to_owned();
    }
    let first = all[..all.len().min(SHOWN)].join(",");
    if all.len() > SHOWN {
        format!("{first} + {} more...", all.len() - SHOWN)
    } else {
        first
    }
}

fn external_address(service: &Object, _: Timestamp) -> Value {
    let own = joined(list(service, "/spec/externalIPs"));
    match service.text("/spec/type") {
        "ExternalName" => json!(service.text("/spec/externalName")),
        "LoadBalancer" => {
            let ingress = list(service, "/status/loadBalancer/ingress").iter();
            let mut given: Vec<String> = ingress
                .map(|entry| {
                    shown(
                        entry
                            .get("ip")
                            .or_else(|| entry.get("hostname"))
                            .unwrap_or(&Value::Null),
                    )
                })
                .collect();
            given.extend(Some(own).filter(|own| !own.is_empty()));
            json!(if given.is_empty() {
                "<pending>".to_owned()
            } else {
                given.join(",")
            })
        }
        _ if own.is_empty() => json!(NONE),
        _ => json!(own),
    }
}

fn service_ports(service: &Object, _: Timestamp) -> Value {
    let ports = list(service, "/spec/ports").iter().map(|port| {
        let node_port = port["nodePort"].as_i64().filter(|port| *port > 0);
        let node_port = node_port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}{node_port}/{}", port["port"], shown(&port["protocol"]))
    });
    let ports: Vec<String> = ports.collect();
    json!(if ports.is_empty() {
        NONE.to_owned()
    } else {
        ports.join(",")
    })
}

fn endpoints(object: &Object, _: Timestamp) -> Value {
    let mut all = Vec::new();
    for subset in list(object, "/subsets") {
        let addresses = subset["addresses"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let ports = subset["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
        let plain = addresses.iter().map(|address| shown(&address["ip"]));
        if ports.is_empty() {
            all.extend(plain);
        } else {
            for port in ports {
                all.extend(
                    addresses
                        .iter()
                        .map(|address| format!("{}:{}", shown(&address["ip"]), port["port"])),
                );
            }
        }
    }
    json!(if all.is_empty() {
        NONE.to_owned()
    } else {
        some(&all)
    })
}

fn slice_ports(slice: &Object, _: Timestamp) -> Value {
    let ports = list(slice, "/ports").iter().map(|port| match port.get("port") {
        Some(number) if number.is_number() => number.to_string(),
        _ => port.get("name").map_or_else(|| "*".to_owned(), shown),
    });
    json!(some(&ports.collect::<Vec<_>>()))
}

fn slice_endpoints(slice: &Object, _: Timestamp) -> Value {
    let endpoints = list(slice, "/endpoints").iter();
    let all: Vec<String> = endpoints
        .flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten())
        .map(shown)
        .collect();
    json!(some(&all))
}

fn phase(volume: &Object, _: Timestamp) -> Value {
    json!(if volume.is_deleting() {
        "Terminating"
    } else {
        volume.text("/status/phase")
    })
}

fn claim(volume: &Object, _: Timestamp) -> Value {
    match volume.value().pointer("/spec/claimRef") {
        Some(claim) => json!(format!(
            "{}/{}",
            shown(&claim["namespace"]),
            shown(&claim["name"])
        )),
        None => json!(""),
    }
}

fn quota(object: &Object, limits: bool) -> Value {
    let hard = object.value().pointer("/status/hard").and_then(Value::as_object);
    let hard = hard.into_iter().flatten();
    let shown = hard
        .filter(|(resource, _)| resource.starts_with("limits.") == limits)
        .map(|(resource, hard)| {
            let used = object
                .value()
                .pointer("/status/used")
                .and_then(|used| used.get(resource));
            format!(
                "{resource}: {}/{}",
                used.map_or_else(|| "0".to_owned(), shown),
                shown(hard)
            )
        });
    json!(shown.collect::<Vec<_>>().join(", "))
}

fn quota_requests(object: &Object, _: Timestamp) -> Value {
    quota(object, false)
}

fn quota_limits(object: &Object, _: Timestamp) -> Value {
    quota(object, true)
}

fn controller(revision: &Object, _: Timestamp) -> Value {
    let owners = list(revision, "/metadata/ownerReferences").iter();
    let owner = owners.into_iter().find(|owner| owner["controller"] == true);
    let Some(owner) = owner else { return json!(NONE) };
    let (kind, name) = (shown(&owner["kind"]).to_lowercase(), shown(&owner["name"]));
    let version = shown(&owner["apiVersion"]);
    match version.split_once('/') {
        Some((group, _)) => json!(format!("{kind}.{group}/{name}")),
        None => json!(format!("{kind}/{name}")),
    }
}

fn job_status(job: &Object, _: Timestamp) -> Value {
    let holds = |kind: &str| {
        let mut conditions = list(job, "/status/conditions").iter();
        conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
    };
    let ended = [("Complete", "Complete"), ("Failed", "Failed")];
    if let Some((_, word)) = ended.iter().find(|(kind, _)| holds(kind)) {
        return json!(word);
    }
    if job.is_deleting() {
        return json!("Terminating");
    }
    let others = ["Suspended", "FailureTarget", "SuccessCriteriaMet"];
    json!(others.into_iter().find(|kind| holds(kind)).unwrap_or("Running"))
}

fn completions(job: &Object, _: Timestamp) -> Value {
    let number = |pointer: &str| job.value().pointer(pointer).and_then(Value::as_i64);
    let succeeded = number("/status/succeeded").unwrap_or(0);
    let parallel = number("/spec/parallelism").unwrap_or(0);
    json!(match number("/spec/completions") {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
        None => format!("{succeeded}/1"),
    })
}

fn job_duration(job: &Object, now: Timestamp) -> Value {
    let time = |field: &str| job.text(&format!("/status/{field}")).parse::<Timestamp>().ok();
    let Some(start) = time("startTime") else {
        return json!("");
    };
    let end = time("completionTime").unwrap_or(now);
    json!(human_duration(end.duration_since(start).as_secs()))
}

fn suspended(job: &Object, _: Timestamp) -> Value {
    let suspend = job.value().pointer("/spec/suspend").and_then(Value::as_bool);
    json!(match suspend {
        Some(true) => "True",
        Some(false) => "False",
        None => UNSET,
    })
}

fn class_name(class: &Object, _: Timestamp) -> Value {
    let annotations = class.metadata().get("annotations");
    let default = annotations.and_then(|all| all.get("storageclass.kubernetes.io/is-default-class"));
    let mark = if default == Some(&json!("true")) {
        " (default)"
    } else {
        ""
    };
    json!(format!("{}{mark}", class.name()))
}

fn token_audiences(driver: &Object, _: Timestamp) -> Value {
    let requests = list(driver, "/spec/tokenRequests");
    if requests.is_empty() {
        return json!(UNSET);
    }
    let audiences: Vec<String> = requests
        .iter()
        .map(|request| shown(&request["audience"]))
        .collect();
    json!(audiences.join(","))
}

fn lifecycle_modes(driver: &Object, _: Timestamp) -> Value {
    let modes = list(driver, "/spec/volumeLifecycleModes");
    json!(if modes.is_empty() {
        NONE.to_owned()
    } else {
        joined(modes)
    })
}

fn claim_state(claim: &Object, _: Timestamp) -> Value {
    let mut states = Vec::new();
    if claim.is_deleting() {
        states.push("deleted");
    }
    if claim
        .value()
        .pointer("/status/allocation")
        .is_none_or(Value::is_null)
    {
        if !claim.is_deleting() {
            states.push("pending");
        }
    } else {
        states.push("allocated");
        if !list(claim, "/status/reservedFor").is_empty() {
            states.push("reserved");
        }
    }
    json!(states.join(","))
}

#[cfg(test)]
mod tests {
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
