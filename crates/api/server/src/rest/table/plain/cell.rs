//! What a cell of a table shows of an object.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::{NONE, age, human_duration};
use super::UNSET;
use crate::registry::object::Object;

/// Addresses and ports that are named before the others are only counted.
const SHOWN: usize = 3;

/// What a cell shows, from the object.
#[derive(Clone, Copy)]
pub(super) enum Cell {
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

impl Cell {
    pub(super) fn show(self, object: &Object, now: Timestamp) -> Value {
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

pub(super) fn shown(value: &Value) -> String {
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

pub(super) fn external_address(service: &Object, _: Timestamp) -> Value {
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

pub(super) fn service_ports(service: &Object, _: Timestamp) -> Value {
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

pub(super) fn endpoints(object: &Object, _: Timestamp) -> Value {
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

pub(super) fn slice_ports(slice: &Object, _: Timestamp) -> Value {
    let ports = list(slice, "/ports").iter().map(|port| match port.get("port") {
        Some(number) if number.is_number() => number.to_string(),
        _ => port.get("name").map_or_else(|| "*".to_owned(), shown),
    });
    json!(some(&ports.collect::<Vec<_>>()))
}

pub(super) fn slice_endpoints(slice: &Object, _: Timestamp) -> Value {
    let endpoints = list(slice, "/endpoints").iter();
    let all: Vec<String> = endpoints
        .flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten())
        .map(shown)
        .collect();
    json!(some(&all))
}

pub(super) fn phase(volume: &Object, _: Timestamp) -> Value {
    json!(if volume.is_deleting() {
        "Terminating"
    } else {
        volume.text("/status/phase")
    })
}

pub(super) fn claim(volume: &Object, _: Timestamp) -> Value {
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

pub(super) fn quota_requests(object: &Object, _: Timestamp) -> Value {
    quota(object, false)
}

pub(super) fn quota_limits(object: &Object, _: Timestamp) -> Value {
    quota(object, true)
}

pub(super) fn controller(revision: &Object, _: Timestamp) -> Value {
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

pub(super) fn job_status(job: &Object, _: Timestamp) -> Value {
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

pub(super) fn completions(job: &Object, _: Timestamp) -> Value {
    let number = |pointer: &str| job.value().pointer(pointer).and_then(Value::as_i64);
    let succeeded = number("/status/succeeded").unwrap_or(0);
    let parallel = number("/spec/parallelism").unwrap_or(0);
    json!(match number("/spec/completions") {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
        None => format!("{succeeded}/1"),
    })
}

pub(super) fn job_duration(job: &Object, now: Timestamp) -> Value {
    let time = |field: &str| job.text(&format!("/status/{field}")).parse::<Timestamp>().ok();
    let Some(start) = time("startTime") else {
        return json!("");
    };
    let end = time("completionTime").unwrap_or(now);
    json!(human_duration(end.duration_since(start).as_secs()))
}

pub(super) fn suspended(job: &Object, _: Timestamp) -> Value {
    let suspend = job.value().pointer("/spec/suspend").and_then(Value::as_bool);
    json!(match suspend {
        Some(true) => "True",
        Some(false) => "False",
        None => UNSET,
    })
}

pub(super) fn class_name(class: &Object, _: Timestamp) -> Value {
    let annotations = class.metadata().get("annotations");
    let default = annotations.and_then(|all| all.get("storageclass.kubernetes.io/is-default-class"));
    let mark = if default == Some(&json!("true")) {
        " (default)"
    } else {
        ""
    };
    json!(format!("{}{mark}", class.name()))
}

pub(super) fn token_audiences(driver: &Object, _: Timestamp) -> Value {
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

pub(super) fn lifecycle_modes(driver: &Object, _: Timestamp) -> Value {
    let modes = list(driver, "/spec/volumeLifecycleModes");
    json!(if modes.is_empty() {
        NONE.to_owned()
    } else {
        joined(modes)
    })
}

pub(super) fn claim_state(claim: &Object, _: Timestamp) -> Value {
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

pub(super) fn requested_duration(request: &Object, _: Timestamp) -> Value {
    let seconds = request
        .value()
        .pointer("/spec/expirationSeconds")
        .and_then(Value::as_i64);
    json!(seconds.map_or_else(|| NONE.to_owned(), human_duration))
}

pub(super) fn request_condition(request: &Object, _: Timestamp) -> Value {
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

pub(super) fn bound_role(binding: &Object, _: Timestamp) -> Value {
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

pub(super) fn bound_users(binding: &Object, _: Timestamp) -> Value {
    bound(binding, "User")
}

pub(super) fn bound_groups(binding: &Object, _: Timestamp) -> Value {
    bound(binding, "Group")
}

pub(super) fn bound_accounts(binding: &Object, _: Timestamp) -> Value {
    bound(binding, "ServiceAccount")
}
