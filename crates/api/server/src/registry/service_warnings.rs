//! What is not done for a Service where one machine forwards to its Pods itself, said to whoever makes it.

use serde_json::Value;

use super::object::Object;

/// How long a client keeps its Pod if nobody says otherwise.
const USUAL_AFFINITY_SECONDS: i64 = 10_800;

/// The fields of a Service that have no effect here, each with what to do instead.
pub(super) fn unforwarded(service: &Object) -> Vec<String> {
    let spec = &service.value()["spec"];
    let mut warnings = Vec::new();
    if spec["type"] == "LoadBalancer" {
        warnings.push(
            "spec.type: there is no load balancer here; the service is reached at its node ports and its cluster address"
                .to_owned(),
        );
    }
    if spec["externalIPs"]
        .as_array()
        .is_some_and(|list| !list.is_empty())
    {
        warnings.push("spec.externalIPs: these addresses lead nowhere here; use a node port".to_owned());
    }
    for (index, port) in spec["ports"].as_array().into_iter().flatten().enumerate() {
        if port["protocol"] == "SCTP" {
            warnings.push(format!(
                "spec.ports[{index}].protocol: SCTP is not forwarded here; connect to the addresses of the pods, which a \
                 headless service gives"
            ));
        }
    }
    let seconds = spec.pointer("/sessionAffinityConfig/clientIP/timeoutSeconds");
    if seconds
        .and_then(Value::as_i64)
        .is_some_and(|it| it != USUAL_AFFINITY_SECONDS)
    {
        warnings.push(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: a client keeps its pod here for as long as that is ready"
                .to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_done_is_said() {
        let warnings = |spec: Value| unforwarded(&Object::new(json!({"spec": spec})).unwrap()).join("\n");
        let affinity = |seconds: i64| {
            json!({"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP"}],
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}})
        };
        assert_eq!(warnings(affinity(USUAL_AFFINITY_SECONDS)), "");
        for (spec, word) in [
            (affinity(5), "timeoutSeconds"),
            (json!({"type": "LoadBalancer"}), "load balancer"),
            (json!({"externalIPs": ["192.0.2.1"]}), "externalIPs"),
            (
                json!({"ports": [{"protocol": "TCP"}, {"protocol": "SCTP"}]}),
                "spec.ports[1].protocol",
            ),
        ] {
            assert!(warnings(spec).contains(word), "{word}");
        }
    }
}
