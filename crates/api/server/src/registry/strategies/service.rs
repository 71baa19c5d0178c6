//! Rules for Services: their ports, and the fields that belong to one type only.
//!
//! What must always hold: two ports of a Service differ in name, in number and protocol, and in node port and protocol;
//! and only a type that has node ports asks for some.
//!
//! What is left to others: addresses and node ports that other Services have (`registry::services`).

use std::collections::HashSet;

use pulselet_model::{CauseReason, FieldError};
use serde_json::{Value, json};

use super::plain::Plain;
use super::{Admitted, Allocation, Refusal, Rules, Strategy, Update, finish, invalid, required};
use crate::registry::object::Object;
use crate::registry::resource::ResourceKind;

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

#[derive(Debug)]
pub(crate) struct Service(Plain);

pub(crate) static SERVICE: Service = Service(Plain::NEW);

impl Strategy for Service {
    fn admit_create(&self, kind: ResourceKind, mut object: Object, _: Rules) -> Result<Admitted, Refusal> {
        self.0.prepare_create(kind, &mut object);
        let mut errors = self.0.all_errors(kind, &object)?;
        errors.extend(service_errors(&object));
        finish(object, errors)
    }

    fn admit_update(
        &self,
        kind: ResourceKind,
        mut update: Update<'_>,
        _: Rules,
    ) -> Result<Admitted, Refusal> {
        self.0.prepare_update(kind, &mut update);
        let (object, old) = (&mut update.new, update.old);
        let is_whole = update.subresource.is_none();
        if is_whole {
            drop_fields_of_old_type(object, old);
        }
        let mut errors = self.0.all_errors(kind, object)?;
        // A status can be reported of a Service that an earlier build stored without these checks.
        if is_whole {
            errors.extend(service_errors(object));
        }
        errors.extend(self.0.all_update_errors(object, old));
        finish(update.new, errors)
    }

    fn allocation(&self) -> Allocation {
        Allocation::ServiceAddresses
    }
}

/// Whether Services of this type have ports of the nodes.
pub(in crate::registry) fn has_node_ports(kind: &str) -> bool {
    matches!(kind, "NodePort" | "LoadBalancer")
}

/// What is wrong with a Service.
fn service_errors(service: &Object) -> Vec<FieldError> {
    let kind = service.text("/spec/type");
    let ports = ports(service);
    let headless = ["/spec/clusterIP", "/spec/clusterIPs/0"]
        .iter()
        .any(|pointer| service.text(pointer) == "None");
    let mut errors = Vec::new();
    if ports.is_empty() && kind != "ExternalName" && !headless {
        errors.push(required("spec.ports", ""));
    }
    if headless && has_node_ports(kind) {
        let detail = format!("may not be set to 'None' for {kind} services");
        errors.push(invalid("spec.clusterIPs[0]", &json!("None"), &detail));
    }
    if kind == "ExternalName" && service.text("/spec/externalName").is_empty() {
        errors.push(required("spec.externalName", ""));
    }
    let mut names = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        name_errors(index, port, ports.len(), &mut names, &mut errors);
        port_errors(index, port, &mut errors);
    }
    if !TYPES.contains(&kind) {
        errors.push(not_supported("spec.type", kind, &TYPES));
    }
    if kind == "ClusterIP" {
        errors.extend(forbidden_node_ports(ports));
    }
    errors.extend(repeated_node_ports(ports));
    errors.extend(repeated_ports(ports));
    errors
}

/// The name of a port, which several ports need, and which each of them has alone.
fn name_errors<'a>(
    index: usize,
    port: &'a Value,
    count: usize,
    names: &mut HashSet<&'a str>,
    errors: &mut Vec<FieldError>,
) {
    let field = format!("spec.ports[{index}].name");
    match port["name"].as_str().unwrap_or_default() {
        "" if count > 1 => errors.push(required(&field, "")),
        "" => {}
        name if names.insert(name) => {}
        name => errors.push(duplicate(&field, &json!(name))),
    }
}

fn port_errors(index: usize, port: &Value, errors: &mut Vec<FieldError>) {
    let field = |name: &str| format!("spec.ports[{index}].{name}");
    let mut number_error = |name: &str| {
        let number = port[name].as_i64();
        if number.is_some_and(|number| !(1..=65_535).contains(&number)) {
            let detail = "must be between 1 and 65535, inclusive";
            errors.push(invalid(&field(name), &port[name], detail));
        }
    };
    number_error("port");
    number_error("targetPort");
    let protocol = protocol(port);
    if !PROTOCOLS.contains(&protocol) {
        errors.push(not_supported(&field("protocol"), protocol, &PROTOCOLS));
    }
}

fn forbidden_node_ports(ports: &[Value]) -> impl Iterator<Item = FieldError> {
    let asking = ports
        .iter()
        .enumerate()
        .filter(|(_, port)| node_port(port).is_some());
    asking.map(|(index, _)| FieldError {
        field: format!("spec.ports[{index}].nodePort"),
        reason: CauseReason::Forbidden,
        message: "Forbidden: may not be used when `type` is 'ClusterIP'".to_owned(),
    })
}

fn repeated_node_ports(ports: &[Value]) -> impl Iterator<Item = FieldError> {
    let mut seen = HashSet::new();
    let numbered = ports.iter().enumerate();
    numbered.filter_map(move |(index, port)| {
        let number = node_port(port)?;
        let field = format!("spec.ports[{index}].nodePort");
        (!seen.insert((protocol(port), number))).then(|| duplicate(&field, &json!(number)))
    })
}

fn repeated_ports(ports: &[Value]) -> impl Iterator<Item = FieldError> {
    let mut seen = HashSet::new();
    let numbered = ports.iter().enumerate();
    numbered.filter_map(move |(index, port)| {
        let (protocol, number) = (protocol(port), port["port"].as_i64().unwrap_or_default());
        (!seen.insert((protocol, number))).then(|| {
            // As Kubernetes shows the two fields that are the same: in a port that has no others.
            let shown = format!(
                "{{\"Name\":\"\",\"Protocol\":{},\"AppProtocol\":null,\"Port\":{number},\"TargetPort\":0,\"NodePort\":0}}",
                json!(protocol)
            );
            duplicate(&format!("spec.ports[{index}]"), &shown)
        })
    })
}

/// Takes out what the server or its defaults set for the type that a Service had, if its new type has no use for it. A value
/// that was changed together with the type stays, for validation to judge.
fn drop_fields_of_old_type(service: &mut Object, old: &Object) {
    let (before, after) = (
        old.text("/spec/type").to_owned(),
        service.text("/spec/type").to_owned(),
    );
    if has_node_ports(&before) && !has_node_ports(&after) {
        drop_node_ports(service, old);
    }
    let (was_balanced, is_balanced) = (before == "LoadBalancer", after == "LoadBalancer");
    let needs_check = |service: &Object, is_balanced: bool| {
        is_balanced && service.text("/spec/externalTrafficPolicy") == "Local"
    };
    if needs_check(old, was_balanced) && !needs_check(service, is_balanced) {
        drop_if_same(service, old, "healthCheckNodePort");
    }
    if was_balanced && !is_balanced {
        drop_if_same(service, old, "allocateLoadBalancerNodePorts");
        drop_if_same(service, old, "loadBalancerClass");
    }
    if is_reached_from_outside(old) && !is_reached_from_outside(service) {
        drop_if_same(service, old, "externalTrafficPolicy");
    }
    if let Some(balancer) = service.value_mut().pointer_mut("/status/loadBalancer")
        && !is_balanced
    {
        *balancer = json!({});
    }
}

/// Ports may have come, gone or changed, as long as none asks for another node port than the Service had.
fn drop_node_ports(service: &mut Object, old: &Object) {
    let had: HashSet<i64> = ports(old).iter().filter_map(node_port).collect();
    if !ports(service)
        .iter()
        .filter_map(node_port)
        .all(|port| had.contains(&port))
    {
        return;
    }
    let ports = service.value_mut().pointer_mut("/spec/ports");
    for port in ports.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            port.remove("nodePort");
        }
    }
}

fn drop_if_same(service: &mut Object, old: &Object, field: &str) {
    let same = service.value()["spec"].get(field) == old.value()["spec"].get(field);
    if let (true, Some(spec)) = (same, service.value_mut()["spec"].as_object_mut()) {
        spec.remove(field);
    }
}

fn is_reached_from_outside(service: &Object) -> bool {
    let kind = service.text("/spec/type");
    let external = service
        .value()
        .pointer("/spec/externalIPs")
        .and_then(Value::as_array);
    has_node_ports(kind) || (kind == "ClusterIP" && external.is_some_and(|external| !external.is_empty()))
}

fn ports(service: &Object) -> &[Value] {
    let ports = service.value().pointer("/spec/ports").and_then(Value::as_array);
    ports.map(Vec::as_slice).unwrap_or_default()
}

/// Zero stands for none.
fn node_port(port: &Value) -> Option<i64> {
    port["nodePort"].as_i64().filter(|number| *number != 0)
}

fn protocol(port: &Value) -> &str {
    port["protocol"].as_str().unwrap_or_default()
}

fn duplicate(field: &str, shown: &impl std::fmt::Display) -> FieldError {
    FieldError {
        field: field.to_owned(),
        reason: CauseReason::Duplicate,
        message: format!("Duplicate value: {shown}"),
    }
}

fn not_supported(field: &str, value: &str, known: &[&str]) -> FieldError {
    let shown: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
    FieldError {
        field: field.to_owned(),
        reason: CauseReason::NotSupported,
        message: format!(
            "Unsupported value: {value:?}: supported values: {}",
            shown.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::resource::Subresource;
    use pulselet_model::{GateSet, Profile};

    const RULES: Rules = Rules {
        profile: Profile::Kubernetes,
        gates: GateSet::ALL,
    };

    /// As a build without these checks stored it.
    fn stored() -> Object {
        let ports = json!([{"name": "a", "port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 26_443},
            {"name": "b", "port": 80, "protocol": "TCP", "targetPort": 80}]);
        let value = json!({"metadata": {"name": "web", "namespace": "default", "uid": "u"},
            "spec": {"type": "ClusterIP", "clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"],
                "sessionAffinity": "None", "ports": ports},
            "status": {"loadBalancer": {}}});
        Object::new(value).expect("an object")
    }

    fn fields(subresource: Option<Subresource>, new: Object) -> Vec<String> {
        let old = stored();
        let update = Update {
            subresource,
            old: &old,
            new,
        };
        match SERVICE.admit_update(ResourceKind::SERVICE, update, RULES) {
            Ok(_) => Vec::new(),
            Err(Refusal::Invalid(errors)) => errors.into_iter().map(|error| error.field).collect(),
            Err(Refusal::Undecodable(why)) => panic!("{why}"),
        }
    }

    #[test]
    fn a_bad_service_of_an_older_build_can_be_reported_on_and_fixed() {
        assert_eq!(fields(Some(Subresource::Status), stored()), Vec::<String>::new());
        // As upstream: everything else is checked as a whole.
        let mut labeled = stored();
        labeled.set_meta("labels", json!({"a": "b"}));
        assert_eq!(fields(None, labeled), ["spec.ports[0].nodePort", "spec.ports[1]"]);
        let mut fixed = stored();
        fixed.value_mut()["spec"]["ports"] = json!([{"port": 80}]);
        assert_eq!(fields(None, fixed), Vec::<String>::new());
    }
}
