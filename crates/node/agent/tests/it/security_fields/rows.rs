//! The table itself.

use std::fmt;

use serde_json::{Value, json};

/// What a runtime does about a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is done; the test proves it.
    Honoured(&'static str),
    /// It is done, as the test proves, if the server or the kernel can; refused otherwise.
    IfAble(&'static str),
    Refused,
    /// Host processes are not confined, which the command says when it starts.
    Unconfined,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Honoured(test) => write!(f, "honoured: {test}"),
            Self::IfAble(test) => write!(f, "if able: {test}"),
            Self::Refused => f.write_str("refused"),
            Self::Unconfined => f.write_str("not confined"),
        }
    }
}

/// A field, a pod that uses it, and what becomes of that pod.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Without the numbers of containers.
    pub(super) field: String,
    /// The field's value.
    pub(super) example: String,
    pub(super) pod: Value,
    /// The path that a refusal names.
    pub(super) path: String,
    /// Of the refusal; empty where nobody refuses it.
    pub(super) reason: &'static str,
    pub(super) oci: Verdict,
    pub(super) process: Verdict,
    pub(super) cri: Verdict,
}

/// On containers, host processes and CRI servers.
type Verdicts = [Verdict; 3];

const REFUSED: Verdicts = [Verdict::Refused; 3];

/// Proven once for all runtimes, because the node does it.
const fn everywhere(test: &'static str) -> Verdicts {
    [Verdict::Honoured(test); 3]
}

const fn honoured(oci: &'static str, process: &'static str, cri: &'static str) -> Verdicts {
    [
        Verdict::Honoured(oci),
        Verdict::Honoured(process),
        Verdict::Honoured(cri),
    ]
}

const fn unless_process(oci: &'static str, process: Verdict, cri: &'static str) -> Verdicts {
    [Verdict::Honoured(oci), process, Verdict::Honoured(cri)]
}

const USERS: Verdicts = honoured(
    "users_and_groups_are_the_pods",
    "a_user_can_be_given",
    "a_security_context_is_passed_on",
);
const NON_ROOT: Verdicts = everywhere("only_who_is_certainly_not_root_may_run");
const GROUP_OF_VOLUMES: Verdicts = everywhere("an_empty_dir_may_be_in_memory_and_belong_to_a_group");
const SECCOMP: Verdicts = unless_process(
    "system_calls_are_filtered_as_the_profile_says",
    Verdict::Refused,
    "a_security_context_is_passed_on",
);
/// Where the kernel has it.
const APP_ARMOR: Verdicts = [
    Verdict::IfAble("containers_run_under_the_app_armor_profile_they_ask_for"),
    Verdict::Refused,
    Verdict::IfAble(OF_SERVERS),
];
/// Where the kernel can map the owners of files, and the server makes use of that.
const fn with_own_users(oci: &'static str, cri: &'static str) -> Verdicts {
    [Verdict::IfAble(oci), Verdict::Refused, Verdict::IfAble(cri)]
}
/// The test of what only some servers have.
const OF_SERVERS: &str = "profiles_groups_and_attributes_of_mounts_are_passed_on";
const CRI_SANDBOX: &str = "namespaces_ports_and_groups_are_as_cri_wants_them";

pub(super) fn rows() -> Vec<Row> {
    let mut rows = of_containers();
    rows.extend(of_pods());
    rows.extend(beside_contexts());
    rows
}

fn of_containers() -> Vec<Row> {
    let capabilities = "capabilities_are_the_default_set_with_the_pods_changes";
    let context = "a_security_context_is_passed_on";
    let no_escalation = honoured(
        capabilities,
        "the_agents_groups_are_not_inherited_and_no_privileges_are_gained",
        context,
    );
    let fields = [
        ("allowPrivilegeEscalation", json!(false), no_escalation),
        ("appArmorProfile", json!({"type": "RuntimeDefault"}), APP_ARMOR),
        (
            "capabilities",
            json!({"drop": ["ALL"]}),
            unless_process(capabilities, Verdict::Refused, context),
        ),
        (
            "privileged",
            json!(true),
            unless_process(
                capabilities,
                Verdict::Unconfined,
                "privileged_containers_see_everything",
            ),
        ),
        (
            "procMount",
            json!("Unmasked"),
            with_own_users(
                "an_unmasked_proc_gives_such_a_pod_nothing_of_the_host",
                "privileged_containers_see_everything",
            ),
        ),
        (
            "readOnlyRootFilesystem",
            json!(true),
            unless_process(
                "a_read_only_root_and_read_only_volumes_cannot_be_written",
                Verdict::Refused,
                context,
            ),
        ),
        ("runAsGroup", json!(1), USERS),
        ("runAsNonRoot", json!(true), NON_ROOT),
        ("runAsUser", json!(1), USERS),
        ("seLinuxOptions", json!({"level": "s0:c1,c2"}), REFUSED),
        ("seccompProfile", json!({"type": "RuntimeDefault"}), SECCOMP),
        ("windowsOptions", json!({"runAsUserName": "me"}), REFUSED),
    ];
    let rows = fields.into_iter().map(|(field, value, verdicts)| {
        let owner = "containers[].securityContext";
        let container = json!({"securityContext": {field: value}});
        let mut row = container_row(owner, field, &value, &container, verdicts);
        if field == "procMount" {
            // Nobody admits it without.
            row.pod["spec"]["hostUsers"] = json!(false);
            row.path = String::from("spec.hostUsers");
        }
        row
    });
    rows.collect()
}

fn of_pods() -> Vec<Row> {
    let groups = [
        Verdict::Honoured("strict_groups_leave_out_those_of_the_image"),
        Verdict::Honoured("the_agents_groups_are_not_inherited_and_no_privileges_are_gained"),
        Verdict::IfAble(OF_SERVERS),
    ];
    let sysctls = unless_process("names_and_resolvers_are_the_pods", Verdict::Refused, CRI_SANDBOX);
    let sysctl = json!([{"name": "net.ipv4.tcp_syncookies", "value": "1"}]);
    let fields = [
        ("appArmorProfile", json!({"type": "RuntimeDefault"}), APP_ARMOR),
        ("fsGroup", json!(1), GROUP_OF_VOLUMES),
        // Says when the files of lasting volumes are changed; those of a pod are made with their group.
        ("fsGroupChangePolicy", json!("OnRootMismatch"), GROUP_OF_VOLUMES),
        ("runAsGroup", json!(1), USERS),
        ("runAsNonRoot", json!(true), NON_ROOT),
        ("runAsUser", json!(1), USERS),
        ("seLinuxChangePolicy", json!("Recursive"), REFUSED),
        ("seLinuxOptions", json!({"level": "s0:c1,c2"}), REFUSED),
        ("seccompProfile", json!({"type": "RuntimeDefault"}), SECCOMP),
        ("supplementalGroups", json!([1]), USERS),
        ("supplementalGroupsPolicy", json!("Strict"), groups),
        ("sysctls", sysctl, sysctls),
        ("windowsOptions", json!({"runAsUserName": "me"}), REFUSED),
    ];
    let rows = fields.into_iter().map(|(field, value, verdicts)| {
        let spec = json!({"securityContext": {field: value}});
        spec_row(&format!("spec.securityContext.{field}"), &value, &spec, verdicts)
    });
    rows.collect()
}

/// What is not part of a security context.
fn beside_contexts() -> Vec<Row> {
    let namespaces = |oci| unless_process(oci, Verdict::Unconfined, CRI_SANDBOX);
    let fields = [
        (
            "hostUsers",
            json!(false),
            with_own_users(
                "root_in_a_pod_with_its_own_users_is_nobody_on_the_host",
                "users_of_a_pods_own_are_one_range_and_are_found_again",
            ),
        ),
        (
            "hostPID",
            json!(true),
            namespaces("the_hosts_processes_are_seen_only_if_asked_for"),
        ),
        (
            "hostIPC",
            json!(true),
            namespaces("a_namespace_of_the_host_is_not_pinned"),
        ),
        (
            "hostNetwork",
            json!(true),
            namespaces("a_namespace_of_the_host_is_not_pinned"),
        ),
        (
            "shareProcessNamespace",
            json!(true),
            namespaces("containers_of_a_pod_share_what_they_should"),
        ),
        (
            "automountServiceAccountToken",
            json!(false),
            everywhere("a_container_has_no_volumes_but_those_it_mounts"),
        ),
    ];
    let of_spec = fields.into_iter().map(|(field, value, verdicts)| {
        spec_row(&format!("spec.{field}"), &value, &json!({field: value}), verdicts)
    });
    of_spec
        .chain(of_mounts())
        .chain([of_port(), of_annotation()])
        .collect()
}

fn of_mounts() -> Vec<Row> {
    let read_only = "a_read_only_root_and_read_only_volumes_cannot_be_written";
    let tree = "a_recursive_read_only_volume_is_read_only_below_its_mounts_too";
    let possible = "mounts_are_shown_with_what_became_of_the_trees_below_them";
    let fields = [
        (
            "readOnly",
            json!(true),
            unless_process(read_only, Verdict::Unconfined, OF_SERVERS),
        ),
        (
            "recursiveReadOnly",
            json!("Enabled"),
            [
                Verdict::Honoured(tree),
                Verdict::Refused,
                Verdict::IfAble(OF_SERVERS),
            ],
        ),
        ("recursiveReadOnly", json!("IfPossible"), everywhere(possible)),
        (
            "mountPropagation",
            json!("HostToContainer"),
            unless_process(
                "a_later_mount_of_the_host_appears_where_it_is_asked_for",
                Verdict::Unconfined,
                OF_SERVERS,
            ),
        ),
    ];
    let rows = fields.into_iter().map(|(field, value, verdicts)| {
        let mut mount = json!({"name": "v", "mountPath": "/v", "readOnly": true});
        mount[field] = value.clone();
        let container = json!({"volumeMounts": [mount]});
        let mut row = container_row("containers[].volumeMounts[]", field, &value, &container, verdicts);
        row.pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        row
    });
    rows.collect()
}

fn of_port() -> Row {
    let value = json!("127.0.0.1");
    let container = json!({"ports": [{"containerPort": 80, "hostPort": 8080, "hostIP": value}]});
    let verdicts = unless_process("ports_lead_to_their_pods", Verdict::Refused, CRI_SANDBOX);
    container_row("containers[].ports[]", "hostIP", &value, &container, verdicts)
}

fn of_annotation() -> Row {
    let name = "container.apparmor.security.beta.kubernetes.io/app";
    let value = json!("localhost/mine");
    let mut row = spec_row(
        &format!("metadata.annotations[{name}]"),
        &value,
        &json!({}),
        APP_ARMOR,
    );
    row.reason = "AppArmor";
    row.pod["metadata"]["annotations"] = json!({name: value});
    row
}

fn container_row(owner: &str, field: &str, value: &Value, fields: &Value, verdicts: Verdicts) -> Row {
    let mut container = json!({"name": "app", "image": "app:1"});
    let fields = fields.as_object().expect("fields of a container").clone();
    container.as_object_mut().expect("an object").extend(fields);
    let spec = json!({"containers": [container]});
    Row {
        path: format!("spec.{}.{field}", owner.replace("[]", "[0]")),
        ..spec_row(&format!("{owner}.{field}"), value, &spec, verdicts)
    }
}

fn spec_row(field: &str, value: &Value, spec: &Value, verdicts: Verdicts) -> Row {
    let mut spec = spec.clone();
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "app", "image": "app:1"}]);
    }
    let [oci, process, cri] = verdicts;
    let refused = |verdict: &Verdict| match verdict {
        Verdict::Refused | Verdict::IfAble(_) => true,
        Verdict::Honoured(_) | Verdict::Unconfined => false,
    };
    let reason = match field.rsplit('.').next() {
        _ if !verdicts.iter().any(refused) => "",
        Some("appArmorProfile") => "AppArmor",
        Some("supplementalGroupsPolicy") => "SupplementalGroupsPolicyNotSupported",
        Some(_) | None => "PodFeatureUnsupported",
    };
    Row {
        field: field.to_owned(),
        example: value.to_string(),
        pod: json!({"metadata": {}, "spec": spec}),
        path: field.to_owned(),
        reason,
        oci,
        process,
        cri,
    }
}
