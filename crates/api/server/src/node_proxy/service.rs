//! Where a request for what a service offers goes: to one of its pods that are ready.
//!
//! The pods are looked up by the service's selector, as a controller of endpoints would, so that it works where none runs. A
//! service without a selector leads to addresses that somebody wrote down, and those are not asked.

use rand::seq::SliceRandom as _;
use serde_json::Value;

use super::proxy::{PodAddress, ProxyPath};
use crate::registry::object::Object;
use crate::rest::status::{ApiError, StatusReason};

/// How many pods are tried: one that is ready may have ended a moment ago.
const MAX_TRIED: usize = 3;

/// The addresses to try for a service, in a random order.
pub(super) fn addresses(
    path: &ProxyPath,
    service: &Object,
    pods: &[Object],
) -> Result<Vec<PodAddress>, ApiError> {
    let name = service.name();
    let unavailable = |why: String| {
        ApiError::new(
            StatusReason::ServiceUnavailable,
            format!("service {name:?} {why}"),
        )
    };
    let selector = service
        .value()
        .pointer("/spec/selector")
        .and_then(Value::as_object);
    let Some(selector) = selector.filter(|selector| !selector.is_empty()) else {
        return Err(unavailable(
            "has no selector: only pods of a service can be asked".to_owned(),
        ));
    };
    let port = chosen_port(service, path.port())?;
    let accepts_unready =
        service.value().pointer("/spec/publishNotReadyAddresses") == Some(&Value::Bool(true));
    let labels = |pod: &Object| {
        let found = pod.metadata().get("labels");
        selector
            .iter()
            .all(|(key, value)| found.is_some_and(|labels| labels[key] == *value))
    };
    let serves = |pod: &&Object| labels(pod) && !pod.is_deleting() && (accepts_unready || is_ready(pod));
    let mut found: Vec<PodAddress> = pods
        .iter()
        .filter(serves)
        .filter_map(|pod| path.address_at(pod, target_port(port, pod)?).ok())
        .collect();
    if found.is_empty() {
        return Err(unavailable("has no pod that is ready".to_owned()));
    }
    found.shuffle(&mut rand::rng());
    found.truncate(MAX_TRIED);
    Ok(found)
}

/// The port of a service that is asked for, by its number or its name; the only one if none is.
fn chosen_port<'a>(service: &'a Object, asked: &str) -> Result<&'a Value, ApiError> {
    let ports = service.value().pointer("/spec/ports").and_then(Value::as_array);
    let ports: &[Value] = ports.map_or(&[], Vec::as_slice);
    let found = match (asked, ports) {
        ("", [only]) => Some(only),
        ("", several) => several
            .iter()
            .find(|port| port["name"].as_str().unwrap_or_default().is_empty()),
        (asked, several) => several.iter().find(|port| {
            port["name"] == *asked
                || asked
                    .parse()
                    .is_ok_and(|number: u64| port["port"].as_u64() == Some(number))
        }),
    };
    found.ok_or_else(|| {
        let name = service.name();
        let why = format!("no service port {asked:?} found for service {name:?}: name one of its ports");
        ApiError::bad_request(why)
    })
}

/// The port of a pod behind a service's; `None` if the pod has none of that name.
fn target_port(port: &Value, pod: &Object) -> Option<u16> {
    match &port["targetPort"] {
        Value::String(name) => super::proxy::named_port(pod, name),
        target => {
            let number = target.as_u64().filter(|number| *number > 0);
            let number = number.or_else(|| port["port"].as_u64())?;
            u16::try_from(number).ok().filter(|number| *number > 0)
        }
    }
}

fn is_ready(pod: &Object) -> bool {
    let conditions = pod
        .value()
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        Object::new(value).expect("an object")
    }

    fn pod(name: &str, app: &str, ready: &str) -> Object {
        object(json!({
            "metadata": {"name": name, "labels": {"app": app, "other": "x"}},
            "spec": {"containers": [{"ports": [{"name": "web", "containerPort": 8080}]}]},
            "status": {"podIP": "10.0.0.9", "conditions": [{"type": "Ready", "status": ready}]},
        }))
    }

    fn service(ports: &Value) -> Object {
        object(json!({"metadata": {"name": "s"}, "spec": {"selector": {"app": "a"}, "ports": ports}}))
    }

    fn asked(name: &str, service: &Object, pods: &[Object]) -> Result<Vec<(bool, u16)>, String> {
        let path = format!("/api/v1/namespaces/default/services/{name}/proxy/x");
        let path = ProxyPath::parse(&path).expect("a path");
        let found = addresses(&path, service, pods).map_err(|error| error.message)?;
        Ok(found
            .iter()
            .map(|address| (address.is_tls, address.port))
            .collect())
    }

    #[test]
    fn pods_that_are_ready_and_selected_are_asked_at_the_port_behind_the_services() {
        let pods = [
            pod("p", "a", "True"),
            pod("q", "b", "True"),
            pod("r", "a", "False"),
        ];
        let two = service(&json!([
            {"name": "http", "port": 80, "targetPort": "web"},
            {"name": "metrics", "port": 9090},
        ]));
        let one = service(&json!([{"port": 80, "targetPort": 8081}]));
        for (name, service, expected) in [
            ("s:http", &two, Ok((false, 8080))),
            ("s:80", &two, Ok((false, 8080))),
            ("https:s:metrics", &two, Ok((true, 9090))),
            ("s", &one, Ok((false, 8081))),
            ("s:80", &one, Ok((false, 8081))),
            ("s", &two, Err("no service port")),
            ("s:8080", &two, Err("no service port")),
        ] {
            match (asked(name, service, &pods), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, [expected], "{name}"),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{name}: {error}"),
                (found, expected) => panic!("{name}: {found:?}, not {expected:?}"),
            }
        }
        let unready = asked("s", &one, &pods[1..]).expect_err("none is ready");
        assert!(unready.contains("no pod that is ready"), "{unready}");
        let mut eager = one.value().clone();
        eager["spec"]["publishNotReadyAddresses"] = json!(true);
        assert_eq!(asked("s", &object(eager), &pods[1..]), Ok(vec![(false, 8081)]));
        let mut by_hand = one.value().clone();
        by_hand["spec"]["selector"] = json!({});
        assert!(asked("s", &object(by_hand), &pods).is_err());
        let named = service(&json!([{"port": 80, "targetPort": "none"}]));
        assert!(asked("s", &named, &pods).is_err(), "no pod has such a port");
    }
}
