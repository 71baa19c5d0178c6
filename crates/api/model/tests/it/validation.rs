//! Rules that the recorded answers do not exercise: the other errors hand-written Pods commonly have.

use pulselet_model::Profile;

use crate::{errors, manifest};

/// Both profiles give these errors for this spec and container.
fn check(spec: &str, container: &str, expected: &[&str]) {
    let manifest = manifest(spec, container);
    for profile in [Profile::Pulselet, Profile::Kubernetes] {
        assert_eq!(errors(&manifest, profile), expected, "{profile}: {manifest}");
    }
}

#[test]
fn mounts_refer_to_volumes() {
    check(
        "volumes: [{name: data, emptyDir: {}}]",
        "volumeMounts: [{name: data, mountPath: /a}, {name: dat, mountPath: /a}, {name: data}]",
        &[
            "spec.containers[0].volumeMounts[1].name: Not found: \"dat\"",
            "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/a\": must be unique",
            "spec.containers[0].volumeMounts[2].mountPath: Required value",
        ],
    );
    check(
        "volumes: [{name: data}]",
        "volumeMounts: [{name: data, mountPath: /a, subPath: ../x, mountPropagation: Bidirectional}]",
        &[
            "spec.containers[0].volumeMounts.subPath: Invalid value: \"../x\": must not contain '..'",
            "spec.containers[0].volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is \
             available only to privileged containers",
        ],
    );
}

#[test]
fn volumes_have_a_name_and_one_complete_source() {
    check(
        "volumes: [{name: a, emptyDir: {}, hostPath: {path: /x}}, {name: a}, {name: a}, {name: b, hostPath: {path: ''}}, \
         {emptyDir: {}}, {name: c, secret: {}}, {name: d, configMap: {name: m, defaultMode: 1000}}, \
         {name: e, hostPath: {path: /x, type: Dir}}]",
        "",
        &[
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
            "spec.volumes[2].name: Duplicate value: \"a\"",
            "spec.volumes[3].hostPath.path: Required value",
            "spec.volumes[4].name: Required value",
            "spec.volumes[5].secret.secretName: Required value",
            "spec.volumes[6].configMap.defaultMode: Invalid value: 1000: must be a number between 0 and 0777 (octal), \
             both inclusive",
            "spec.volumes[7].hostPath.type: Unsupported value: \"Dir\": supported values: \"\", \"BlockDevice\", \
             \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
        ],
    );
}

#[test]
fn projected_paths_do_not_collide() {
    check(
        "volumes: [{name: v, projected: {sources: [{secret: {name: s, items: [{key: k, path: x}]}}, \
         {configMap: {name: c, items: [{key: k, path: x}]}}, {downwardAPI: {items: [{path: l, fieldRef: {fieldPath: \
         status.podIP}}]}}]}}]",
        "",
        &[
            "spec.volumes[0].projected: Invalid value: \"c\": conflicting duplicate paths",
            "spec.volumes[0].projected.sources[2].downwardAPI.fieldRef.fieldPath: Unsupported value: \"status.podIP\": \
             supported values: \"metadata.annotations\", \"metadata.labels\", \"metadata.name\", \
             \"metadata.namespace\", \"metadata.uid\"",
        ],
    );
}

#[test]
fn environment_variables() {
    check(
        "",
        "env: [{name: ''}, {name: 'a=b', value: x}, {name: A, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, \
         {name: B, valueFrom: {}}, {name: C, valueFrom: {configMapKeyRef: {name: m, key: 'a b'}}}, \
         {name: D, valueFrom: {fieldRef: {fieldPath: spec.nope}}}, {name: E, valueFrom: {resourceFieldRef: {resource: \
         limits.disk}}}], envFrom: [{}, {configMapRef: {name: A_B}}]",
        &[
            "spec.containers[0].env[0].name: Required value",
            "spec.containers[0].env[1].name: Invalid value: \"a=b\": a valid environment variable name must consist only \
             of printable ASCII characters other than '='",
            "spec.containers[0].env[2].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
            "spec.containers[0].env[3].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, \
             `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            "spec.containers[0].env[4].valueFrom.configMapKeyRef.key: Invalid value: \"a b\": a valid config key must \
             consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex \
             used for validation is '[-._a-zA-Z0-9]+')",
            "spec.containers[0].env[5].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.nope\": error converting \
             fieldPath: field label not supported: spec.nope",
            "spec.containers[0].env[6].valueFrom.resourceFieldRef.resource: Unsupported value: \"limits.disk\": supported \
             values: \"limits.cpu\", \"limits.ephemeral-storage\", \"limits.memory\", \"requests.cpu\", \
             \"requests.ephemeral-storage\", \"requests.memory\"",
            "spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
            "spec.containers[0].envFrom[1].configMapRef.name: Invalid value: \"A_B\": a lowercase RFC 1123 subdomain must \
             consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric \
             character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ],
    );
}

#[test]
fn requests_stay_below_limits() {
    check(
        "",
        "resources: {requests: {cpu: 2, memory: -1Gi, disk: 1}, limits: {cpu: 1500m}}",
        &[
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1500m",
            "spec.containers[0].resources.requests[disk]: Invalid value: \"disk\": must be a standard resource type or \
             fully qualified",
            "spec.containers[0].resources.requests[disk]: Invalid value: \"disk\": must be a standard resource for \
             containers",
            "spec.containers[0].resources.requests[memory]: Invalid value: \"-1Gi\": must be greater than or equal to 0",
        ],
    );
    check(
        "",
        "resources: {requests: {example.com/gpu: 1, hugepages-2Mi: 2Mi}}",
        &[
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
            "spec.containers[0].resources: Forbidden: HugePages require cpu or memory",
        ],
    );
}

#[test]
fn host_ports_do_not_clash() {
    check(
        "",
        "ports: [{containerPort: 80, hostPort: 80}, {containerPort: 81, hostPort: 80}, {containerPort: 0}, \
         {containerPort: 82, hostPort: 70000, protocol: ICMP}]",
        &[
            "spec.containers[0].ports[2].containerPort: Required value",
            "spec.containers[0].ports[3].hostPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            "spec.containers[0].ports[3].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            "spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//80\"",
        ],
    );
    check(
        "hostNetwork: true",
        "ports: [{containerPort: 80, hostPort: 81}, {containerPort: 90}]",
        &[
            "spec.containers[0].ports[0].hostPort: Invalid value: 81: must match `containerPort` when `hostNetwork` is true",
        ],
    );
}

#[test]
fn security_contexts() {
    check(
        "hostPID: true, shareProcessNamespace: true, securityContext: {runAsUser: -1, fsGroupChangePolicy: Sometimes, \
         sysctls: [{name: 'a b', value: x}]}",
        "securityContext: {runAsGroup: 3000000000, procMount: Weird, allowPrivilegeEscalation: false, privileged: true, \
         seccompProfile: {type: Localhost}}",
        &[
            "spec.containers[0].securityContext.runAsGroup: Invalid value: 3000000000: must be between 0 and 2147483647, \
             inclusive",
            "spec.containers[0].securityContext.procMount: Unsupported value: \"Weird\": supported values: \"Default\", \
             \"Unmasked\"",
            "spec.containers[0].securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp \
             type is Localhost",
            "spec.containers[0].securityContext: Invalid value: \
             {\"allowPrivilegeEscalation\":false,\"privileged\":true,\"procMount\":\"Weird\",\"runAsGroup\":3000000000,\
             \"seccompProfile\":{\"type\":\"Localhost\"}}: cannot set `allowPrivilegeEscalation` to false and `privileged` \
             to true",
            "spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            "spec.securityContext.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot \
             both be enabled",
            "spec.securityContext.sysctls[0].name: Invalid value: \"a b\": must have at most 253 characters and match regex \
             ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
            "spec.securityContext.fsGroupChangePolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \
             \"OnRootMismatch\"",
        ],
    );
}

#[test]
fn a_windows_pod_has_no_linux_options() {
    check(
        "os: {name: windows}, securityContext: {runAsUser: 1}, hostPID: true",
        "securityContext: {privileged: true}",
        &[
            "spec.hostPID: Forbidden: cannot be set for a windows pod",
            "spec.securityContext.runAsUser: Forbidden: cannot be set for a windows pod",
            "spec.containers[0].securityContext.privileged: Forbidden: cannot be set for a windows pod",
        ],
    );
}

#[test]
fn dns_tolerations_deadlines_and_host_names() {
    check(
        "dnsPolicy: Nope, activeDeadlineSeconds: 0, hostname: a.b, subdomain: B, nodeName: X, \
         hostAliases: [{ip: 1.2.3, hostnames: [ok]}], tolerations: [{operator: Equal}, {key: k, operator: Exists, value: v}, \
         {key: k, operator: Maybe, effect: NoRun}, {key: k, tolerationSeconds: 5}], preemptionPolicy: Sometimes",
        "terminationMessagePolicy: Stdout",
        &[
            "spec.containers[0].terminationMessagePolicy: Unsupported value: \"Stdout\": supported values: \"File\", \
             \"FallbackToLogsOnError\"",
            "spec.dnsPolicy: Unsupported value: \"Nope\": supported values: \"ClusterFirstWithHostNet\", \"ClusterFirst\", \
             \"Default\", \"None\"",
            "spec.nodeName: Invalid value: \"X\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
             characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used \
             for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
            "spec.hostname: Invalid value: \"a.b\": must not contain dots",
            "spec.subdomain: Invalid value: \"B\": a lowercase RFC 1123 label must consist of lower case alphanumeric \
             characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex \
             used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
            "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \
             \"match all values and all keys\"",
            "spec.tolerations[1].operator: Invalid value: \"v\": value must be empty when `operator` is 'Exists'",
            "spec.tolerations[2].operator: Unsupported value: \"Maybe\": supported values: \"Equal\", \"Exists\"",
            "spec.tolerations[2].effect: Unsupported value: \"NoRun\": supported values: \"NoSchedule\", \
             \"PreferNoSchedule\", \"NoExecute\"",
            "spec.tolerations[3].effect: Invalid value: \"\": effect must be 'NoExecute' when `tolerationSeconds` is set",
            "spec.hostAliases[0].ip: Invalid value: \"1.2.3\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            "spec.preemptionPolicy: Unsupported value: \"Sometimes\": supported values: \"PreemptLowerPriority\", \"Never\"",
        ],
    );
    check(
        "dnsPolicy: None",
        "",
        &["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
    );
}

#[test]
fn labels_and_annotations() {
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  labels: {'a b': x, ok: 'x y'}\n  annotations: {'/x': z}\n\
                    spec:\n  containers: [{name: a, image: b}]\n";
    let fields: Vec<String> = errors(manifest, Profile::Kubernetes)
        .iter()
        .map(|error| error.chars().take(44).collect())
        .collect();
    assert_eq!(
        fields,
        [
            "metadata.labels: Invalid value: \"a b\": name ",
            "metadata.labels: Invalid value: \"x y\": a val",
            "metadata.annotations: Invalid value: \"/x\": p",
        ]
    );
}

#[test]
fn a_pod_needs_containers_and_a_name() {
    let manifest = "{\"apiVersion\":\"v1\",\"kind\":\"Pod\"}";
    assert_eq!(
        errors(manifest, Profile::Kubernetes),
        [
            "metadata.name: Required value: name or generateName is required",
            "spec.containers: Required value"
        ]
    );
    check(
        "ephemeralContainers: [{name: e, image: i}]",
        "",
        &["spec.ephemeralContainers: Forbidden: cannot be set on create"],
    );
}

#[test]
fn restart_rules_of_a_container() {
    check(
        "",
        "restartPolicyRules: [{action: Stop}, {action: Restart, exitCodes: {operator: Is, values: []}}]",
        &[
            "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
            "spec.containers[0].restartPolicyRules[0].action: Unsupported value: \"Stop\": supported values: \"Restart\", \
             \"RestartAllContainers\"",
            "spec.containers[0].restartPolicyRules[0].exitCodes: Required value: must be specified",
            "spec.containers[0].restartPolicyRules[1].exitCodes.operator: Unsupported value: \"Is\": supported values: \
             \"In\", \"NotIn\"",
        ],
    );
    check(
        "",
        "restartPolicy: Never, restartPolicyRules: [{exitCodes: {values: [1]}}]",
        &[
            "spec.containers[0].restartPolicyRules[0].action: Unsupported value: \"\": supported values: \"Restart\", \
             \"RestartAllContainers\"",
            "spec.containers[0].restartPolicyRules[0].exitCodes.operator: Unsupported value: \"\": supported values: \
             \"In\", \"NotIn\"",
        ],
    );
    let many = vec!["{action: Restart, exitCodes: {operator: In, values: [1]}}"; 21].join(", ");
    check(
        "",
        &format!("restartPolicy: Never, restartPolicyRules: [{many}]"),
        &["spec.containers[0].restartPolicyRules: Too many: 21: must have at most 20 items"],
    );
    let codes = vec!["1"; 256].join(", ");
    check(
        "",
        &format!(
            "restartPolicy: Never, restartPolicyRules: [{{action: RestartAllContainers, exitCodes: {{operator: In, \
             values: [{codes}]}}}}]"
        ),
        &[
            "spec.containers[0].restartPolicyRules[0].exitCodes.values: Too many: 256: must have at most 255 items",
        ],
    );
}

#[test]
fn all_containers_restart_by_a_rule_of_any_container() {
    let rules =
        "restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: NotIn, values: []}}]";
    for policy in ["Always", "OnFailure", "Never"] {
        let rules = format!("restartPolicy: {policy}, {rules}");
        check("", &rules, &[]);
        check(
            &format!("initContainers: [{{name: i, image: i, {rules}}}]"),
            "",
            &[],
        );
    }
}

#[test]
fn rules_of_an_init_container_need_its_restart_policy() {
    // The rules of a regular container are judged without it too.
    check(
        "initContainers: [{name: i, image: i, restartPolicyRules: [{action: Stop}]}]",
        "",
        &[
            "spec.initContainers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
        ],
    );
    check(
        "initContainers: [{name: i, image: i, restartPolicy: Always, restartPolicyRules: [{action: Stop}]}]",
        "",
        &[
            "spec.initContainers[0].restartPolicyRules[0].action: Unsupported value: \"Stop\": supported values: \
             \"Restart\", \"RestartAllContainers\"",
            "spec.initContainers[0].restartPolicyRules[0].exitCodes: Required value: must be specified",
        ],
    );
}

/// Errors of the default profile, for one probe of kind `kind` with these entries.
fn probe_errors(kind: &str, entries: &str) -> Vec<String> {
    let prefix = format!("spec.containers[0].{kind}.");
    errors(
        &manifest("", &format!("{kind}: {{{entries}}}")),
        Profile::Pulselet,
    )
    .into_iter()
    .map(|error| error.strip_prefix(&prefix).map(str::to_owned).unwrap_or(error))
    .collect()
}

#[test]
fn sub_second_fields_belong_to_their_kinds() {
    let port = "tcpSocket: {port: 80}";
    assert_eq!(
        probe_errors("livenessProbe", &format!("{port}, periodMilliseconds: 500")),
        ["periodMilliseconds: Invalid value: 500: must not be set for livenessProbes"]
    );
    assert_eq!(
        probe_errors("livenessProbe", &format!("{port}, timeoutMilliseconds: 5000")),
        ["timeoutMilliseconds: Invalid value: 5000: must not be set for livenessProbes"]
    );
    assert_eq!(
        probe_errors(
            "startupProbe",
            &format!("{port}, initializationFailureThreshold: 5")
        ),
        ["initializationFailureThreshold: Invalid value: 5: must not be set for startupProbes"]
    );
    for kind in ["readinessProbe", "startupProbe"] {
        assert_eq!(
            probe_errors(
                kind,
                &format!("{port}, periodMilliseconds: 500, timeoutMilliseconds: -900")
            ),
            Vec::<String>::new()
        );
    }
}

#[test]
fn sub_second_values_have_a_range_and_a_minimum() {
    let probe = |entries: &str| probe_errors("readinessProbe", entries);
    let none = Vec::<String>::new();
    assert_eq!(
        probe("tcpSocket: {port: 80}, periodMilliseconds: 1000, initialDelayMilliseconds: -1000"),
        [
            "initialDelayMilliseconds: Invalid value: -1000: must be between -999 and 999, inclusive",
            "periodMilliseconds: Invalid value: 1000: must be between -999 and 999, inclusive",
        ]
    );
    assert_eq!(
        probe("tcpSocket: {port: 80}, periodSeconds: 1, periodMilliseconds: -800"),
        none
    );
    assert_eq!(
        probe("tcpSocket: {port: 80}, periodSeconds: 1, periodMilliseconds: -801"),
        [
            "periodMilliseconds: Invalid value: -801: periodSeconds and periodMilliseconds together must be at least 200ms \
          for probes over the network"
        ]
    );
    assert_eq!(
        probe("exec: {command: [a]}, periodSeconds: 1, periodMilliseconds: -500"),
        none
    );
    assert_eq!(
        probe("exec: {command: [a]}, periodSeconds: 1, periodMilliseconds: -501"),
        [
            "periodMilliseconds: Invalid value: -501: periodSeconds and periodMilliseconds together must be at least 500ms \
          for exec probes"
        ]
    );
    for (timeout, errors) in [
        ("timeoutMilliseconds: -900", None),
        ("timeoutSeconds: 0, timeoutMilliseconds: -900", None),
        ("timeoutSeconds: 2, timeoutMilliseconds: -999", None),
        (
            "timeoutMilliseconds: -901",
            Some(
                "timeoutMilliseconds: Invalid value: -901: timeoutSeconds and timeoutMilliseconds together must be at \
                 least 100ms",
            ),
        ),
        (
            "timeoutMilliseconds: -1000",
            Some("timeoutMilliseconds: Invalid value: -1000: must be between -999 and 999, inclusive"),
        ),
        (
            "timeoutSeconds: -1, timeoutMilliseconds: 50",
            Some("timeoutSeconds: Invalid value: -1: must be greater than or equal to 0"),
        ),
    ] {
        let found = probe(&format!("exec: {{command: [a]}}, {timeout}"));
        assert_eq!(found.first().map(String::as_str), errors, "{timeout}");
    }
    assert_eq!(
        probe("tcpSocket: {port: 80}, initialDelaySeconds: 1, initialDelayMilliseconds: -999"),
        none
    );
    assert_eq!(
        probe("tcpSocket: {port: 80}, initialDelayMilliseconds: -1"),
        [
            "initialDelayMilliseconds: Invalid value: -1: initialDelaySeconds and initialDelayMilliseconds together must be \
          at least 0ms"
        ]
    );
    assert_eq!(
        probe("tcpSocket: {port: 80}, initializationFailureThreshold: -1"),
        ["initializationFailureThreshold: Invalid value: -1: must be greater than or equal to 0"]
    );
}

#[test]
fn errors_of_our_fields_follow_those_of_the_probe() {
    assert_eq!(
        probe_errors(
            "livenessProbe",
            "periodSeconds: -1, successThreshold: 2, periodMilliseconds: 1"
        ),
        [
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
            "periodSeconds: Invalid value: -1: must be greater than or equal to 0",
            "successThreshold: Invalid value: 2: must be 1",
            "periodMilliseconds: Invalid value: 1: must not be set for livenessProbes",
        ]
    );
}

#[test]
fn the_profiles_differ_in_grace_zero_and_signals_without_os() {
    let grace = manifest(
        "",
        "livenessProbe: {tcpSocket: {port: 80}, terminationGracePeriodSeconds: 0}",
    );
    assert_eq!(errors(&grace, Profile::Pulselet), Vec::<String>::new());
    assert_eq!(
        errors(&grace, Profile::Kubernetes),
        [
            "spec.containers[0].livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0"
        ]
    );
    let negative = manifest(
        "",
        "livenessProbe: {tcpSocket: {port: 80}, terminationGracePeriodSeconds: -1}",
    );
    assert_eq!(
        errors(&negative, Profile::Pulselet),
        [
            "spec.containers[0].livenessProbe.terminationGracePeriodSeconds: Invalid value: -1: must be greater than or \
          equal to 0"
        ]
    );
    let signal = manifest("", "lifecycle: {stopSignal: SIGUSR1}");
    assert_eq!(errors(&signal, Profile::Pulselet), Vec::<String>::new());
    assert_eq!(errors(&signal, Profile::Kubernetes).len(), 1);
    let unknown = manifest("", "lifecycle: {stopSignal: SIGNOPE}");
    assert!(errors(&unknown, Profile::Pulselet)[0].contains("Unsupported value: \"SIGNOPE\""));
}
