//! Strict decoding: what is refused, where it says so, and what bounds hold.

use pulselet_model::{
    DecodeError, FileObject, FileReader, MAX_DOCUMENT_BYTES, Position, Profile, decode_documents,
    decode_file_object, decode_object, decode_pod,
};

use crate::{decode, manifest};

fn error(manifest: &str) -> DecodeError {
    decode(manifest, Profile::Pulselet)
        .expect_err("does not decode")
        .first()
        .clone()
}

fn place(error: &DecodeError) -> (u32, u32) {
    let Position { line, column } = error.at.expect("a place");
    (line, column)
}

const HEAD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n  - name: a\n    image: b\n";

#[test]
fn unknown_fields_in_our_types_and_in_leaf_types() {
    let ours = error(&format!("{HEAD}    livenesProbe: {{}}\n"));
    assert_eq!(
        (place(&ours), ours.field.as_str()),
        ((9, 5), "spec.containers[0].livenesProbe")
    );
    assert_eq!(ours.hint.as_deref(), Some("did you mean \"livenessProbe\"?"));
    let leaf = error(&format!(
        "{HEAD}  volumes:\n  - name: v\n    emptyDir:\n      sizelimit: 1Gi\n"
    ));
    assert_eq!(
        (place(&leaf), leaf.field.as_str()),
        ((12, 7), "spec.volumes[0].emptyDir.sizelimit")
    );
    assert_eq!(leaf.hint.as_deref(), Some("did you mean \"sizeLimit\"?"));
}

#[test]
fn the_same_error_in_json_and_yaml() {
    let json = "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"spec\": {\n  \"containers\": [{\"name\": \"a\", \"bogus\": 1}]}}";
    let yaml = "---\n{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"spec\": {\n  \"containers\": [{\"name\": \"a\", \"bogus\": 1}]}}";
    let (json, yaml) = (error(json), error(yaml));
    assert_eq!(
        (json.message.as_str(), json.field.as_str()),
        (yaml.message.as_str(), yaml.field.as_str())
    );
    assert_eq!((place(&json), place(&yaml)), ((2, 32), (3, 32)));
}

#[test]
fn duplicate_keys() {
    let yaml = error(&format!("{HEAD}    image: c\n"));
    assert_eq!(
        (place(&yaml), yaml.message.as_str()),
        ((9, 5), "duplicate field \"image\"; it is also on line 8")
    );
    let json = "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"labels\":{\"a\":\"1\",\"a\":\"2\"}}}";
    assert!(error(json).message.starts_with("duplicate field \"a\""));
    let leaf =
        "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"spec\":{\"volumes\":[{\"name\":\"a\",\"name\":\"b\"}]}}";
    assert!(error(leaf).message.starts_with("duplicate field \"name\""));
}

#[test]
fn wrong_types() {
    for (entry, says) in [
        (
            "livenessProbe: {periodSeconds: '5'}",
            "found string \"5\", expected a 32-bit integer",
        ),
        ("livenessProbe: {periodSeconds: 1.5}", "expected a 32-bit integer"),
        (
            "livenessProbe: {periodSeconds: 3000000000}",
            "expected a 32-bit integer",
        ),
        ("livenessProbe: {periodSeconds: true}", "found boolean `true`"),
        ("livenessProbe: 5", "found integer `5`, expected an object"),
        ("command: sh", "expected a list"),
        (
            "env: [{name: A, value: 5}]",
            "found integer `5`, expected a string",
        ),
        (
            "env: [{name: A, value: yes}]",
            "found boolean `true`, expected a string",
        ),
        ("tty: 'true'", "expected a boolean"),
        ("resources: {limits: {cpu: lots}}", "is not a quantity"),
        ("resources: {limits: {cpu: [1]}}", "expected a quantity"),
    ] {
        let message = error(&manifest("", entry)).message;
        assert!(message.contains(says), "{entry}: {message}");
    }
}

#[test]
fn every_problem_is_reported_with_its_place() {
    let yaml = format!("{HEAD}    livenesProbe: {{}}\n    tty: 'yes'\n    image: c\n  foo: 1\n");
    let json = "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"p\"}, \"spec\": {\n \
                \"containers\": [{\n\n\n\n\"name\": \"a\",\n\n    \"image\": \"b\",\n    \"livenesProbe\": {},\n    \
                \"tty\": \"yes\",\n    \"image\": \"c\"}],\n  \"foo\": 1}}";
    for manifest in [yaml.as_str(), json] {
        let errors = decode(manifest, Profile::Pulselet).expect_err("does not decode");
        let places: Vec<_> = errors
            .iter()
            .map(|error| (place(error).0, error.field.as_str()))
            .collect();
        assert_eq!(
            places,
            [
                (9, "spec.containers[0].livenesProbe"),
                (10, "spec.containers[0].tty"),
                (11, "spec.containers[0].image"),
                (12, "spec.foo"),
            ],
            "{errors}"
        );
    }
}

#[test]
fn types_have_the_fields_of_the_table() {
    for profile in [Profile::Pulselet, Profile::Kubernetes] {
        let mut sample = pulselet_schema::sample("core.Pod", profile);
        sample["apiVersion"] = "v1".into();
        sample["kind"] = "Pod".into();
        let pod = decode(&sample.to_string(), profile).expect("every field has a type");
        let written = serde_json::to_value(&pod).expect("a Pod can be written");
        assert_eq!(written, sample);
    }
}

#[test]
fn null_is_the_zero_value_everywhere() {
    let nulls = "command: null, args: [null], tty: null, livenessProbe: null, ports: [{containerPort: 80, name: null}], \
                 resources: null, readinessProbe: {tcpSocket: {port: 80}, periodSeconds: null}";
    let pod = decode(
        &manifest("hostNetwork: null, volumes: null, nodeSelector: null", nulls),
        Profile::Kubernetes,
    )
    .unwrap();
    let container = &pod.spec.containers[0];
    assert_eq!(container.args, [""]);
    assert!(container.liveness_probe.is_none());
    assert_eq!(container.readiness_probe.as_ref().unwrap().period_seconds, 0);
}

#[test]
fn quantities_accept_numbers_and_become_canonical() {
    let pod = decode(
        &manifest(
            "",
            "resources: {limits: {cpu: 2, memory: 1024Mi}, requests: {cpu: 0.5, memory: '1000'}}",
        ),
        Profile::Kubernetes,
    )
    .unwrap();
    let resources = serde_json::to_string(&pod.spec.containers[0].resources).unwrap();
    assert_eq!(
        resources,
        "{\"limits\":{\"cpu\":\"2\",\"memory\":\"1Gi\"},\"requests\":{\"cpu\":\"500m\",\"memory\":\"1k\"}}"
    );
}

#[test]
fn fields_of_ours_are_unknown_upstream_even_when_zero() {
    for value in ["0", "null", "5"] {
        for format in ["---\n", ""] {
            let manifest = format!(
                "{format}{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{\"name\":\"p\"}},\"spec\":{{\"containers\":[{{\
                 \"name\":\"a\",\"image\":\"b\",\"livenessProbe\":{{\"initializationFailureThreshold\":{value}}}}}]}}}}"
            );
            assert!(decode(&manifest, Profile::Pulselet).is_ok(), "{manifest}");
            assert!(decode(&manifest, Profile::Kubernetes).is_err(), "{manifest}");
        }
    }
}

#[test]
fn kinds_and_versions() {
    for (manifest, says) in [
        ("kind: Pod", "apiVersion is missing"),
        ("apiVersion: v1", "kind is missing"),
        (
            "apiVersion: apps/v1\nkind: Deployment",
            "kind \"Deployment\" is not supported",
        ),
        ("apiVersion: v2\nkind: Pod", "apiVersion \"v2\" is not supported"),
        ("apiVersion: v1\nkind: 5", "kind must be a string"),
        ("- a", "found a list"),
        ("just text", "found a string"),
        ("{\"kind\":\"Pod\"}", "apiVersion is missing"),
        ("[1]", "found a list"),
    ] {
        let message = error(manifest).message;
        assert!(message.contains(says), "{manifest}: {message}");
    }
}

#[test]
fn many_documents_with_comments_markers_and_directives() {
    let pod =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: NAME}\nspec: {containers: [{name: a, image: b}]}\n";
    let input = format!(
        "# first\n---\n{}---\n# nothing\n---\n{}...\n%YAML 1.2\n---\nnull\n--- # last\n{}",
        pod.replace("NAME", "one"),
        pod.replace("NAME", "two"),
        pod.replace("NAME", "three"),
    );
    let names: Vec<String> = decode_documents(input.as_bytes())
        .map(|document| decode_pod(&document.expect("a document"), Profile::Pulselet).name)
        .collect();
    assert_eq!(names, ["one", "two", "three"]);
}

#[test]
fn a_yaml_syntax_error_ends_the_input_and_has_a_place() {
    let input = "apiVersion: v1\n---\na: [1\n---\nb: 2\n";
    let results: Vec<_> = decode_documents(input.as_bytes()).collect();
    assert_eq!(results.len(), 2);
    let error = results[1].as_ref().expect_err("the second document is broken");
    assert!(error.fatal);
    assert!(error.at.expect("a place").line >= 3, "{error}");
}

#[test]
fn documents_are_bounded() {
    let padding = "x".repeat(10 * 1024 * 1024);
    for input in [
        format!("{HEAD}    command: ['{padding}']\n"),
        format!("{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{\"name\":\"{padding}\"}}}}"),
    ] {
        assert!(input.len() > MAX_DOCUMENT_BYTES);
        let first = decode_documents(input.as_bytes()).next().expect("an answer");
        let error = first.expect_err("is refused");
        assert!(error.message.contains("too large"), "{error}");
    }
    for deep in ["[".repeat(10_000), "{\"a\":".repeat(10_000), "- ".repeat(10_000)] {
        let outcome = decode_documents(deep.as_bytes()).next().expect("an answer");
        assert!(outcome.is_err() || decode_pod(&outcome.unwrap(), Profile::Pulselet).pod.is_err());
    }
    let nested = format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{}{}}}",
        "{\"a\":".repeat(10_000) + "1",
        "}".repeat(10_000)
    );
    let error = error(&nested);
    assert!(error.message.contains("nested deeper"), "{error}");
}

#[test]
fn anchors_and_merge_keys_work_in_a_manifest() {
    let yaml = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: a\n    image: i\n    \
                livenessProbe: &probe\n      httpGet: {port: 80}\n      periodSeconds: 7\n    readinessProbe:\n      <<: *probe\n      \
                periodSeconds: 3\n";
    let pod = decode(yaml, Profile::Kubernetes).unwrap();
    let readiness = pod.spec.containers[0].readiness_probe.as_ref().unwrap();
    assert_eq!(readiness.period_seconds, 3);
    assert!(readiness.http_get.is_some());
}

#[test]
fn octal_modes_mean_what_they_mean_on_kubernetes() {
    let pod = decode(
        &manifest(
            "volumes: [{name: v, secret: {secretName: s, defaultMode: 0400}}]",
            "",
        ),
        Profile::Kubernetes,
    )
    .unwrap();
    assert_eq!(
        pod.spec.volumes[0].secret.as_ref().unwrap().default_mode,
        Some(0o400)
    );
}

#[test]
fn a_node_rejects_workloads_and_names_the_way() {
    for (manifest, hint) in [
        (
            "apiVersion: apps/v1\nkind: Deployment\nspec: 5",
            "`pulselet serve`",
        ),
        ("apiVersion: v1\nkind: Service", "`pulselet node --kubeconfig`"),
    ] {
        let document = decode_documents(manifest.as_bytes()).next();
        let document = document.expect("a document").expect("it is YAML");
        let errors = decode_object(&document, Profile::Pulselet).object.unwrap_err();
        let error = errors.first();
        assert!(error.message.contains("is not supported"), "{error}");
        assert!(
            error.hint.as_ref().is_some_and(|text| text.contains(hint)),
            "{error}"
        );
    }
}

#[test]
fn kinds_of_other_groups_are_skipped_even_if_they_share_a_name() {
    for (manifest, skipped) in [
        ("apiVersion: apps.example.com/v1\nkind: Deployment", true),
        ("apiVersion: v1\nkind: Deployment", true),
        ("apiVersion: serving.example.com/v1\nkind: Service", true),
        ("apiVersion: apps/v1\nkind: Deployment", false),
        ("apiVersion: v1\nkind: Service", false),
    ] {
        let document = decode_documents(manifest.as_bytes()).next();
        let document = document.expect("a document").expect("it is YAML");
        let decoded = decode_file_object(&document, Profile::Pulselet, FileReader::Inspector);
        let object = decoded.object.expect("it is read or skipped");
        assert_eq!(
            matches!(object, FileObject::Skipped(_)),
            skipped,
            "{manifest}: {object:?}"
        );
    }
}
