//! From a Service and its Pods to the objects that say so. Pure functions.
//!
//! Pods whose ports of one name have different numbers are in different slices, because a slice has one list of ports.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use pulselet_apiserver::Object;
use serde_json::{Map, Value, json};

/// The label by which a slice says who wrote it, and the one of Endpoints.
const SLICE_MANAGER: &str = "endpointslice.kubernetes.io/managed-by";
const ENDPOINTS_MANAGER: &str = "endpoints.kubernetes.io/managed-by";
/// What they say of ours.
const US: &str = "pulselet";
/// What they say of those of a kube-controller-manager: by selectors, and by `Endpoints` that somebody wrote.
const MANAGERS: [&str; 2] = [
    "endpointslice-controller.k8s.io",
    "endpointslicemirroring-controller.k8s.io",
];
/// As many Pods are in one slice or subset, as upstream has it.
const MAX_ENDPOINTS: usize = 1_000;

/// What counts of a Service.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Selection {
    namespace: String,
    name: String,
    uid: String,
    labels: BTreeMap<String, String>,
    selector: BTreeMap<String, String>,
    ports: Vec<Value>,
    families: Vec<Family>,
    is_headless: bool,
    publishes_unready: bool,
}

/// What counts of a Pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Member {
    namespace: String,
    name: String,
    uid: String,
    labels: BTreeMap<String, String>,
    addresses: Vec<IpAddr>,
    node: String,
    hostname: String,
    subdomain: String,
    /// By name and protocol.
    ports: BTreeMap<(String, String), u64>,
    is_ready: bool,
    is_ending: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    fn of(self, addresses: &[IpAddr]) -> Option<IpAddr> {
        let fits = |address: &&IpAddr| match self {
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        };
        addresses.iter().find(fits).copied()
    }
}

fn texts(labels: &BTreeMap<&str, &str>) -> BTreeMap<String, String> {
    let owned = |(key, value): (&&str, &&str)| ((*key).to_owned(), (*value).to_owned());
    labels.iter().map(owned).collect()
}

impl Selection {
    /// `None` if the Service selects nothing.
    pub(super) fn new(service: &Object) -> Option<Self> {
        let spec = &service.value()["spec"];
        if spec["type"] == "ExternalName" || service.is_deleting() {
            return None;
        }
        let selector: BTreeMap<String, String> = spec["selector"]
            .as_object()?
            .iter()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect();
        let families = spec["ipFamilies"].as_array().into_iter().flatten();
        let families = families.map(|family| if family == "IPv6" { Family::V6 } else { Family::V4 });
        (!selector.is_empty()).then(|| Self {
            namespace: service.namespace().to_owned(),
            name: service.name().to_owned(),
            uid: service.uid().to_owned(),
            labels: texts(&service.labels()),
            selector,
            ports: spec["ports"].as_array().cloned().unwrap_or_default(),
            families: families.collect(),
            is_headless: spec["clusterIP"] == "None",
            publishes_unready: spec["publishNotReadyAddresses"] == true,
        })
    }

    pub(super) fn selects(&self, member: &Member) -> bool {
        let has = |(key, value): (&String, &String)| member.labels.get(key) == Some(value);
        member.namespace == self.namespace && self.selector.iter().all(has)
    }

    fn owner(&self) -> Value {
        json!([{"apiVersion": "v1", "kind": "Service", "name": self.name, "uid": self.uid,
            "controller": true, "blockOwnerDeletion": true}])
    }

    fn labels(&self, own: &[(&str, &str)]) -> Value {
        let mut labels: Map<String, Value> = self
            .labels
            .iter()
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        for (key, value) in own {
            labels.insert((*key).to_owned(), json!(value));
        }
        if self.is_headless {
            labels.insert("service.kubernetes.io/headless".to_owned(), json!(""));
        }
        Value::Object(labels)
    }

    /// The ports that the Service leads to in a Pod.
    fn ports(&self, member: &Member) -> Vec<Value> {
        let port = |port: &Value| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP");
            let number = match &port["targetPort"] {
                Value::String(name) => *member.ports.get(&(name.clone(), protocol.to_owned()))?,
                target => target
                    .as_u64()
                    .filter(|port| *port > 0)
                    .or_else(|| port["port"].as_u64())?,
            };
            let name = port["name"].as_str().unwrap_or_default();
            let mut found = json!({"name": name, "port": number, "protocol": protocol});
            if let Some(application) = port["appProtocol"].as_str() {
                found["appProtocol"] = json!(application);
            }
            Some(found)
        };
        self.ports.iter().filter_map(port).collect()
    }

    /// Members with equal ports together, no more than one object takes.
    fn groups<'a>(&self, members: &[&'a Member]) -> Vec<(Vec<Value>, Vec<&'a Member>)> {
        let mut groups: BTreeMap<String, (Vec<Value>, Vec<&Member>)> = BTreeMap::new();
        for member in members {
            let ports = self.ports(member);
            let group = groups.entry(json!(ports).to_string());
            group.or_insert_with(|| (ports, Vec::new())).1.push(*member);
        }
        let divided = groups.into_values().flat_map(|(ports, members)| {
            let chunks = members.chunks(MAX_ENDPOINTS).map(<[_]>::to_vec);
            chunks.map(|chunk| (ports.clone(), chunk)).collect::<Vec<_>>()
        });
        divided.collect()
    }
}

impl Member {
    /// `None` if the Pod has no address, or has ended.
    pub(super) fn new(pod: &Object) -> Option<Self> {
        let value = pod.value();
        if matches!(pod.text("/status/phase"), "Succeeded" | "Failed") {
            return None;
        }
        let listed = value.pointer("/status/podIPs").and_then(Value::as_array);
        let addresses: Vec<IpAddr> = listed
            .into_iter()
            .flatten()
            .filter_map(|address| address["ip"].as_str()?.parse().ok())
            .collect();
        if addresses.is_empty() {
            return None;
        }
        let conditions = value.pointer("/status/conditions").and_then(Value::as_array);
        let mut conditions = conditions.into_iter().flatten();
        Some(Self {
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
            labels: texts(&pod.labels()),
            addresses,
            node: pod.text("/spec/nodeName").to_owned(),
            hostname: pod.text("/spec/hostname").to_owned(),
            subdomain: pod.text("/spec/subdomain").to_owned(),
            ports: named_ports(value),
            is_ready: conditions.any(|it| it["type"] == "Ready" && it["status"] == "True"),
            is_ending: pod.is_deleting(),
        })
    }

    fn reference(&self) -> Value {
        json!({"kind": "Pod", "name": self.name, "namespace": self.namespace, "uid": self.uid})
    }

    /// The name under the Service's; `None` if the Pod has none.
    fn hostname(&self, selection: &Selection) -> Option<&str> {
        let is_below = !self.hostname.is_empty() && self.subdomain == selection.name;
        is_below.then_some(self.hostname.as_str())
    }

    fn takes_connections(&self, selection: &Selection) -> bool {
        selection.publishes_unready || (self.is_ready && !self.is_ending)
    }
}

fn named_ports(pod: &Value) -> BTreeMap<(String, String), u64> {
    let containers = ["/spec/containers", "/spec/initContainers"]
        .into_iter()
        .filter_map(|list| pod.pointer(list).and_then(Value::as_array))
        .flatten();
    let ports = containers
        .filter_map(|container| container["ports"].as_array())
        .flatten();
    let mut found = BTreeMap::new();
    for port in ports {
        if let (Some(name), Some(number)) = (port["name"].as_str(), port["containerPort"].as_u64()) {
            let protocol = port["protocol"].as_str().unwrap_or("TCP");
            // The first one of a name counts.
            found
                .entry((name.to_owned(), protocol.to_owned()))
                .or_insert(number);
        }
    }
    found
}

/// The slices of a Service. One without Pods has one slice, which says so.
pub(super) fn slices(selection: &Selection, members: &[&Member]) -> Vec<Value> {
    let mut slices = Vec::new();
    for family in &selection.families {
        let of_family: Vec<&Member> = members
            .iter()
            .copied()
            .filter(|member| family.of(&member.addresses).is_some())
            .collect();
        let mut groups = selection.groups(&of_family);
        if groups.is_empty() {
            groups.push((Vec::new(), Vec::new()));
        }
        for (number, (ports, members)) in groups.into_iter().enumerate() {
            slices.push(slice(selection, *family, number, &ports, &members));
        }
    }
    slices
}

fn slice(
    selection: &Selection,
    family: Family,
    number: usize,
    ports: &[Value],
    members: &[&Member],
) -> Value {
    // No name of a Service has a dot, so that no other Service's slice has this name.
    let mut name = selection.name.clone();
    if family == Family::V6 {
        name.push_str(".ipv6");
    }
    if number > 0 {
        // Writing to a string does not fail.
        let _ = write!(name, ".{}", number + 1);
    }
    let endpoint = |member: &&Member| {
        let address = family.of(&member.addresses)?;
        let mut endpoint = json!({
            "addresses": [address.to_string()],
            "conditions": {"ready": member.takes_connections(selection),
                "serving": member.is_ready || selection.publishes_unready, "terminating": member.is_ending},
            "nodeName": member.node,
            "targetRef": member.reference(),
        });
        if let Some(hostname) = member.hostname(selection) {
            endpoint["hostname"] = json!(hostname);
        }
        Some(endpoint)
    };
    let endpoints: Vec<Value> = members.iter().filter_map(endpoint).collect();
    let labels = [
        ("kubernetes.io/service-name", selection.name.as_str()),
        (SLICE_MANAGER, US),
    ];
    json!({
        "metadata": {"name": name, "namespace": selection.namespace, "labels": selection.labels(&labels),
            "ownerReferences": selection.owner()},
        "addressType": family.name(),
        "endpoints": endpoints,
        "ports": ports,
    })
}

/// The same for clients that know no slices.
pub(super) fn endpoints(selection: &Selection, members: &[&Member]) -> Value {
    let family = selection.families.first().copied().unwrap_or(Family::V4);
    let of_family = |member: &&&Member| family.of(&member.addresses).is_some();
    let members: Vec<&Member> = members.iter().filter(of_family).copied().collect();
    let subset = |(ports, members): (Vec<Value>, Vec<&Member>)| {
        let address = |member: &&Member| {
            let ip = family.of(&member.addresses)?;
            let mut address =
                json!({"ip": ip.to_string(), "nodeName": member.node, "targetRef": member.reference()});
            if let Some(hostname) = member.hostname(selection) {
                address["hostname"] = json!(hostname);
            }
            Some(address)
        };
        let (ready, others): (Vec<&Member>, Vec<&Member>) = members
            .iter()
            .partition(|member| member.takes_connections(selection));
        let mut subset = json!({"ports": ports});
        for (field, members) in [("addresses", ready), ("notReadyAddresses", others)] {
            let addresses: Vec<Value> = members.iter().filter_map(address).collect();
            if !addresses.is_empty() {
                subset[field] = json!(addresses);
            }
        }
        subset
    };
    let subsets: Vec<Value> = selection.groups(&members).into_iter().map(subset).collect();
    json!({
        "metadata": {"name": selection.name, "namespace": selection.namespace,
            "labels": selection.labels(&[(ENDPOINTS_MANAGER, US)])},
        "subsets": subsets,
    })
}

/// Whether this controller made an object.
pub(super) fn is_ours(object: &Object) -> bool {
    let labels = object.labels();
    [SLICE_MANAGER, ENDPOINTS_MANAGER]
        .iter()
        .any(|label| labels.get(label) == Some(&US))
}

/// Whether a kube-controller-manager made a slice.
pub(super) fn is_of_manager(object: &Object) -> bool {
    let labels = object.labels();
    let manager = labels.get(SLICE_MANAGER);
    manager.is_some_and(|manager| MANAGERS.contains(manager))
}

/// The stored object with what it should have; `None` if it has that.
pub(super) fn changed(stored: &Object, wanted: &Value) -> Option<Value> {
    let mut changed = stored.value().clone();
    for part in ["endpoints", "ports", "subsets"] {
        if let Some(wanted) = wanted.get(part) {
            let is_nothing = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            if !(is_nothing(wanted) && is_nothing(&changed[part])) {
                changed[part] = wanted.clone();
            }
        }
    }
    for part in ["labels", "ownerReferences"] {
        if let Some(wanted) = wanted["metadata"].get(part) {
            changed["metadata"][part] = wanted.clone();
        }
    }
    (changed != *stored.value()).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(fields: &Value) -> Selection {
        let mut spec = json!({"selector": {"app": "web"}, "ipFamilies": ["IPv4"], "clusterIP": "10.43.0.7",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "web"}]});
        for (field, value) in fields.as_object().unwrap() {
            spec[field] = value.clone();
        }
        let object = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "s"}, "spec": spec});
        Selection::new(&Object::new(object).unwrap()).unwrap()
    }

    fn pod(name: &str, last: u8, ready: &str, port: u64) -> Member {
        let object = json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": "web"}},
            "spec": {"nodeName": "n", "hostname": name, "subdomain": "web",
                "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": port, "protocol": "TCP"}]}]},
            "status": {"phase": "Running", "podIPs": [{"ip": format!("10.88.0.{last}")}, {"ip": format!("fd00::{last}")}],
                "conditions": [{"type": "Ready", "status": ready}]},
        });
        Member::new(&Object::new(object).unwrap()).unwrap()
    }

    fn addresses(slice: &Value) -> Vec<String> {
        let endpoints = slice["endpoints"].as_array().unwrap().iter();
        endpoints
            .map(|it| {
                format!(
                    "{} {}",
                    it["addresses"][0].as_str().unwrap(),
                    it["conditions"]["ready"]
                )
            })
            .collect()
    }

    #[test]
    fn pods_are_in_slices_by_their_ports_with_their_readiness() {
        let (one, two, odd) = (
            pod("one", 1, "True", 8080),
            pod("two", 2, "False", 8080),
            pod("odd", 3, "True", 9090),
        );
        let web = service(&json!({}));
        let made = slices(&web, &[&one, &two, &odd]);
        assert_eq!(made.len(), 2);
        assert_eq!(addresses(&made[0]), ["10.88.0.1 true", "10.88.0.2 false"]);
        assert_eq!(made[0]["ports"][0]["port"], 8080);
        assert_eq!(made[0]["endpoints"][0]["hostname"], "one");
        assert_eq!(made[1]["metadata"]["name"], "web.2");
        assert_eq!(addresses(&made[1]), ["10.88.0.3 true"]);
        let old = endpoints(&web, &[&one, &two, &odd]);
        assert_eq!(old["subsets"][0]["addresses"][0]["ip"], "10.88.0.1");
        assert_eq!(old["subsets"][0]["notReadyAddresses"][0]["ip"], "10.88.0.2");
        assert_eq!(old["subsets"][1]["ports"][0]["port"], 9090);
        let all = service(&json!({"publishNotReadyAddresses": true, "ipFamilies": ["IPv4", "IPv6"]}));
        let made = slices(&all, &[&two]);
        assert_eq!(addresses(&made[0]), ["10.88.0.2 true"]);
        assert_eq!(
            (made[1]["metadata"]["name"].as_str(), addresses(&made[1])),
            (Some("web.ipv6"), vec!["fd00::2 true".to_owned()])
        );
    }

    #[test]
    fn a_service_without_pods_has_an_empty_slice_and_one_without_selector_none() {
        let made = slices(&service(&json!({})), &[]);
        assert_eq!(
            (made.len(), made[0]["endpoints"].as_array().map(Vec::len)),
            (1, Some(0))
        );
        let external =
            json!({"metadata": {"name": "x"}, "spec": {"type": "ExternalName", "selector": {"a": "b"}}});
        let by_hand = json!({"metadata": {"name": "x"}, "spec": {}});
        for object in [external, by_hand] {
            assert_eq!(Selection::new(&Object::new(object).unwrap()), None);
        }
    }

    #[test]
    fn an_object_that_is_right_is_not_written_again() {
        let web = service(&json!({}));
        let one = pod("one", 1, "True", 8080);
        let mut stored = slices(&web, &[&one]).remove(0);
        stored["metadata"]["resourceVersion"] = json!("7");
        let stored = Object::new(stored).unwrap();
        assert!(is_ours(&stored));
        assert_eq!(changed(&stored, &slices(&web, &[&one])[0]), None);
        let emptied = changed(&stored, &slices(&web, &[])[0]).unwrap();
        assert_eq!(emptied["metadata"]["resourceVersion"], "7");
        assert_eq!(emptied["endpoints"], json!([]));
    }
}
