//! What holds for any input: no panic, bounded work, idempotent defaults, faithful round trips.

use proptest::prelude::*;
use pulselet_model::{GateSet, Pod, Profile, admit_create, decode_documents, decode_pod};
use serde_json::{Map, Value, json};

/// Decodes and admits everything in an input, as `check` does.
fn digest(input: &[u8]) {
    for document in decode_documents(input).flatten() {
        let decoded = decode_pod(&document, Profile::Pulselet);
        document.locate_all(["spec.containers[0].image", "metadata.labels[a.b/c]"].into_iter());
        if let Ok(pod) = decoded.pod {
            let _ = admit_create(pod, Profile::Pulselet, GateSet::ALL);
        }
    }
}

/// Some of these keys, each with its value or not.
fn object(entries: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    entries
        .into_iter()
        .map(|(key, value)| {
            proptest::option::of(value).prop_map(move |value| value.map(|value| (key, value)))
        })
        .collect::<Vec<_>>()
        .prop_map(|entries| {
            let entries = entries
                .into_iter()
                .flatten()
                .map(|(key, value)| (key.to_owned(), value));
            Value::Object(entries.collect::<Map<_, _>>())
        })
        .boxed()
}

fn one_of(values: &[Value]) -> BoxedStrategy<Value> {
    proptest::sample::select(values.to_vec()).boxed()
}

fn number(values: impl Into<Vec<i64>>) -> BoxedStrategy<Value> {
    proptest::sample::select(values.into())
        .prop_map(Value::from)
        .boxed()
}

fn probe() -> BoxedStrategy<Value> {
    let handler = one_of(&[
        json!({"exec": {"command": ["true"]}}),
        json!({"httpGet": {"port": 80}}),
        json!({"httpGet": {"port": "http", "path": "/x", "httpHeaders": [{"name": "A", "value": "b"}]}}),
        json!({"tcpSocket": {"port": 1, "host": "h"}}),
        json!({"grpc": {"port": 5}}),
        json!({}),
    ]);
    let rest = object(vec![
        ("periodSeconds", number([-1, 0, 1, 10])),
        ("timeoutSeconds", number([0, 1, 5])),
        ("successThreshold", number([0, 1, 2])),
        ("failureThreshold", number([0, 3])),
        ("initialDelaySeconds", number([0, 7])),
        ("terminationGracePeriodSeconds", number([0, 5, 100])),
        ("periodMilliseconds", number([-999, -500, 0, 250])),
        ("initialDelayMilliseconds", number([-10, 0, 10])),
        ("timeoutMilliseconds", number([-900, -500, 0, 250])),
        ("initializationFailureThreshold", number([0, 20])),
    ]);
    (handler, rest)
        .prop_map(|(handler, mut rest)| {
            if let (Value::Object(rest), Value::Object(handler)) = (&mut rest, handler) {
                rest.extend(handler);
            }
            rest
        })
        .boxed()
}

/// Containers that use many fields of v1.36, those included that nothing here looks at.
fn container() -> BoxedStrategy<Value> {
    let optional = object(vec![
        ("command", one_of(&[json!([]), json!(["a", "b"])])),
        ("livenessProbe", probe()),
        ("readinessProbe", probe()),
        ("startupProbe", probe()),
        (
            "lifecycle",
            one_of(&[
                json!({}),
                json!({"stopSignal": "SIGHUP"}),
                json!({"preStop": {"sleep": {"seconds": 3}}}),
            ]),
        ),
        (
            "env",
            one_of(&[
                json!([{"name": "A", "value": "é\n\""}]),
                json!([{"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
            ]),
        ),
        (
            "resources",
            one_of(&[
                json!({}),
                json!({"limits": {"cpu": "0.5", "memory": 1_048_576}}),
                json!({"claims": [{"name": "x"}]}),
            ]),
        ),
        (
            "securityContext",
            one_of(&[
                json!({}),
                json!({"capabilities": {"drop": ["ALL"]}, "windowsOptions": {"hostProcess": false}}),
            ]),
        ),
        (
            "resizePolicy",
            one_of(&[json!([{"resourceName": "cpu", "restartPolicy": "NotRequired"}])]),
        ),
        (
            "ports",
            one_of(&[json!([{"containerPort": 80, "name": "http", "hostIP": "1.2.3.4"}])]),
        ),
        (
            "volumeMounts",
            one_of(&[json!([{"name": "v", "mountPath": "/v", "recursiveReadOnly": "Disabled"}])]),
        ),
        ("stdin", one_of(&[json!(true), json!(false)])),
        ("imagePullPolicy", one_of(&[json!("Always"), json!("Weird")])),
    ]);
    optional
        .prop_map(|mut container| {
            container["name"] = json!("app");
            container["image"] = json!("app:1");
            container
        })
        .boxed()
}

fn pod() -> BoxedStrategy<Value> {
    let spec = object(vec![
        ("restartPolicy", one_of(&[json!("Never"), json!("OnFailure")])),
        ("terminationGracePeriodSeconds", number([-3, 0, 30, 60])),
        ("os", one_of(&[json!({"name": "linux"})])),
        (
            "volumes",
            one_of(&[
                json!([{"name": "v"}]),
                json!([{"name": "v", "rbd": {"monitors": ["m"], "image": "i"}}]),
                json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}]),
            ]),
        ),
        (
            "affinity",
            one_of(&[
                json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchFields": [{"key": "a", "operator": "In"}]}}]}}),
            ]),
        ),
        (
            "topologySpreadConstraints",
            one_of(&[
                json!([{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}]),
            ]),
        ),
        ("overhead", one_of(&[json!({"cpu": "100m"})])),
        (
            "resourceClaims",
            one_of(&[json!([{"name": "x", "resourceClaimName": "y"}])]),
        ),
        ("hostUsers", one_of(&[json!(true)])),
        ("schedulingGates", one_of(&[json!([{"name": "g"}])])),
        ("setHostnameAsFQDN", one_of(&[json!(false)])),
        (
            "dnsConfig",
            one_of(&[json!({"options": [{"name": "ndots", "value": "2"}]})]),
        ),
    ]);
    let meta = object(vec![
        ("labels", one_of(&[json!({"a": "b"})])),
        ("annotations", one_of(&[json!({"x/y": "long text"})])),
        (
            "managedFields",
            one_of(&[json!([{"manager": "m", "fieldsV1": {"f:spec": {}}}])]),
        ),
        (
            "ownerReferences",
            one_of(&[json!([{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u"}])]),
        ),
    ]);
    (spec, meta, container())
        .prop_map(|(mut spec, mut meta, container)| {
            spec["containers"] = json!([container]);
            meta["name"] = json!("p");
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        })
        .boxed()
}

fn decode(json: &str) -> Result<Pod, String> {
    let document = decode_documents(json.as_bytes())
        .next()
        .expect("a document")
        .map_err(|error| error.to_string())?;
    decode_pod(&document, Profile::Pulselet)
        .pod
        .map_err(|error| error.to_string())
}

/// The same text, read as YAML, which JSON is.
fn decode_as_yaml(json: &str) -> Result<Pod, String> {
    decode(&format!("---\n{json}"))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_digested(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        digest(&bytes);
    }

    #[test]
    fn any_text_is_digested(text in "[ -~\n\t{}\\[\\]:,&*<>|%!\"'-]{0,400}") {
        digest(text.as_bytes());
    }

    #[test]
    fn a_mutilated_pod_is_digested(pod in pod(), at in any::<prop::sample::Index>(), with in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = serde_json::to_vec(&pod).unwrap();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = with }
        digest(&bytes);
        digest(&[b"---\n", bytes.as_slice()].concat());
    }

    /// The fast path and the tree give the same Pod, or both refuse.
    #[test]
    fn json_and_yaml_agree(pod in pod()) {
        let text = pod.to_string();
        prop_assert_eq!(decode(&text).is_ok(), decode_as_yaml(&text).is_ok());
        if let (Ok(json), Ok(yaml)) = (decode(&text), decode_as_yaml(&text)) {
            prop_assert_eq!(json, yaml);
        }
    }

    #[test]
    fn what_is_accepted_survives_a_round_trip_and_is_not_defaulted_again(pod in pod()) {
        let decoded = decode(&pod.to_string()).map_err(TestCaseError::fail)?;
        if let Ok(admission) = admit_create(decoded, Profile::Pulselet, GateSet::ALL) {
            let written = serde_json::to_string(&admission.pod).unwrap();
            let read = decode(&written).map_err(TestCaseError::fail)?;
            prop_assert_eq!(&read, &admission.pod);
            let again = admit_create(read, Profile::Pulselet, GateSet::ALL).map_err(|errors| TestCaseError::fail(format!("{errors:?}")))?;
            prop_assert_eq!(again.pod, admission.pod);
            prop_assert!(contains(&serde_json::from_str(&written).unwrap(), &pod), "something was lost");
        }
    }

    /// A Pod without the fields of the gates is the same under all of them.
    #[test]
    fn gates_do_not_touch_a_pod_without_their_fields(pod in pod()) {
        let mut decoded = decode(&pod.to_string()).map_err(TestCaseError::fail)?;
        let container = &mut decoded.spec.containers[0];
        container.startup_probe = None;
        if let Some(lifecycle) = &mut container.lifecycle {
            lifecycle.stop_signal = None;
        }
        for probe in [&mut container.liveness_probe, &mut container.readiness_probe].into_iter().flatten() {
            probe.termination_grace_period_seconds = None;
            probe.period_milliseconds = None;
            probe.initial_delay_milliseconds = None;
            probe.timeout_milliseconds = None;
            probe.initialization_failure_threshold = 0;
        }
        let reference = admit_create(decoded.clone(), Profile::Pulselet, GateSet::ALL);
        for gates in GateSet::combinations() {
            prop_assert_eq!(&admit_create(decoded.clone(), Profile::Pulselet, gates), &reference);
        }
    }
}

/// Whether everything the user wrote is in the result; quantities may be spelled differently, zeros be left out.
fn contains(result: &Value, written: &Value) -> bool {
    match (result, written) {
        (Value::Object(result), Value::Object(written)) => written.iter().all(|(key, value)| {
            let spelled_anew = ["cpu", "memory", "terminationGracePeriodSeconds"].contains(&key.as_str());
            let zero = [json!(0), json!(false), json!([])].contains(value);
            match result.get(key) {
                Some(found) => spelled_anew || zero || contains(found, value),
                None => zero,
            }
        }),
        (Value::Array(result), Value::Array(written)) => {
            result.len() == written.len()
                && result
                    .iter()
                    .zip(written)
                    .all(|(result, written)| contains(result, written))
        }
        _ => result == written,
    }
}
